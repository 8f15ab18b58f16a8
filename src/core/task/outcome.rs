//! Outcome of a task.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::codec::{Put, Take, WireError};
use crate::count::{Elapsed, Size};
use crate::stored::Stored;
use crate::task::refusal::{Refusal, RefusalCode};
use crate::value;

/// The one recorded end of a task.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The function returned: a MessagePack value.
    Returned(Vec<u8>),
    /// The function returned: a large MessagePack value, in a file.
    Stored(Stored),
    /// The command ended by itself with exit status 0.
    Completed,
    /// It did not succeed.
    Failed(Failure),
}

/// Every way in which a task can fail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Failure {
    /// The function returned an error.
    Error {
        /// The type of the error, as the module names it.
        type_name: String,
        /// Message of the error.
        message: String,
        /// The stack at the time, if the module's language gave one; else empty.
        stacktrace: String,
    },
    /// The function panicked.
    Panic {
        /// Message of the panic.
        message: String,
        /// `file:line:column` of the panic; empty when it is not known.
        location: String,
        /// The stack at the time, if the module's language gave one; else empty.
        stacktrace: String,
    },
    /// The arguments do not fit the function; it was not called.
    Arguments {
        /// Values that were expected and that were given.
        message: String,
    },
    /// The result could not be encoded.
    Result {
        /// Reason why not.
        message: String,
    },
    /// The module cannot be loaded or has no such task.
    Module {
        /// Step of loading that failed, and the next step for the user, in the words of the host's `ModuleError`.
        message: String,
    },
    /// The program could not be started.
    NotStarted {
        /// The program, as it was submitted.
        program: String,
        /// Reason why not, in words that fit after a colon.
        message: String,
        /// True if the program does not exist, rather than cannot be executed.
        is_missing: bool,
    },
    /// The command ended with another exit status than 0.
    ExitCode {
        /// The program, as it was submitted.
        program: String,
        /// Its exit code, 1 to 255.
        code: i32,
    },
    /// The command was ended by a signal that tracer did not send.
    Signal {
        /// The program, as it was submitted.
        program: String,
        /// The signal's number; see [`SignalName`].
        signal: i32,
    },
    /// It took longer than it was given.
    TimedOut {
        /// Limit that was reached.
        limit: TimeLimit,
        /// Value of the limit, in nanoseconds.
        after_ns: u64,
    },
    /// The worker died while it ran the task.
    WorkerLost {
        /// The worker's process.
        worker_pid: u32,
        /// End of the worker, in words that fit after it: `was killed by SIGKILL (signal 9)`.
        cause: String,
        /// The low-cardinality form of the same: `signal:9`, `exit:3`.
        error_type: String,
    },
    /// It took more memory than it may: its worker process with everything that it had started.
    OutOfMemory {
        /// Memory limit, in bytes.
        limit_bytes: u64,
        /// The most that it had, in bytes, where that is known.
        peak_bytes: Option<u64>,
    },
    /// Someone cancelled it.
    Cancelled,
    /// The task that had submitted it was cancelled, ran too long or lost its worker, so that nobody can get its result.
    Abandoned {
        /// Task that had submitted it.
        submitter: super::TaskId,
    },
    /// The head was stopped before the task or the attempt had ended.
    HeadStopped,
    /// The head was stopped, and the task stays in its journal for the next one. No end of a task: only those who wait for it are told so.
    Kept,
    /// The attempt counts for nothing: it is of a queue, and its node has lost the claim to it, or may have.
    Superseded,
    /// The head died while a worker ran the task, and the worker with it.
    HeadLost,
    /// A task failed whose result was to be one of its arguments; it was not begun.
    Input {
        /// Task that failed.
        task: super::TaskId,
        /// Target of that task, as people call it: its function or program.
        target: String,
        /// Failure of that task.
        cause: Box<Failure>,
    },
    /// The task whose result was to be one of its arguments is not remembered any more.
    InputForgotten {
        /// Task that is not remembered any more.
        task: super::TaskId,
    },
    /// The head did not take it in.
    Refused {
        /// The reason, for programs.
        #[serde(default)]
        code: RefusalCode,
        /// Message of the head.
        message: String,
    },
    /// Its worker or its head died after the task had been started, and it must not be started again.
    Lost {
        /// Event that ended it, as a clause.
        message: String,
    },
    /// The actor whose method it is died while it ran, or was dead.
    ActorDied {
        /// The actor.
        actor: super::TaskId,
        /// Module and type of the actor, as people call it: `counter.Counter`; empty when it is not known any more.
        target: Box<str>,
        /// Event that ended the actor, as a clause that fits after "because".
        cause: String,
        /// The low-cardinality form of the same, where the worker's end was the cause: `signal:9`; else empty.
        error_type: Box<str>,
        /// True if it ran at the time; else it was not begun.
        has_begun: bool,
    },
    /// It could not begin before a task had ended that waited for it; it was not begun.
    Deadlock {
        /// Tasks that wait for each other, and the next step for the user.
        message: String,
    },
    /// No worker can be started.
    NoWorker {
        /// Reason why none can be started, as the last that was tried showed.
        message: String,
    },
}

/// The value of `error.type` of what was killed for memory.
pub const OUT_OF_MEMORY: &str = "oom";

/// Memory that was used, and its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryExceeded {
    /// Memory limit, in bytes.
    pub limit_bytes: u64,
    /// The most that there was, in bytes, where that is known.
    pub peak_bytes: Option<u64>,
}

impl fmt::Display for MemoryExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "may take {}", Size(self.limit_bytes))?;
        match self.peak_bytes {
            // The kernel lets nothing have more: it was asked for more.
            Some(peak) if peak <= self.limit_bytes => write!(f, ", had {} and wanted more", Size(peak)),
            Some(peak) => write!(f, " and had {}", Size(peak)),
            None => f.write_str(" and wanted more"),
        }
    }
}

/// Time limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeLimit {
    /// `--timeout`: how long an attempt may run (start to close).
    Run,
    /// `--queue-timeout`: how long the first attempt may be waited for (schedule to start).
    Queue,
    /// `--idle-timeout`: how long a command may write nothing.
    Idle,
}

/// Reason for which an attempt that is going on is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// Someone cancelled the task.
    Cancelled,
    /// Its node has lost the claim to the task, or may have.
    Superseded,
    /// It has run for longer than it may.
    RunTimeout,
    /// It has written nothing for longer than it may.
    IdleTimeout,
}

impl Failure {
    /// Returns whether the task was cancelled: by somebody, or because the one that had submitted it did not get to its end.
    pub fn is_cancellation(&self) -> bool {
        matches!(self, Failure::Cancelled | Failure::Abandoned { .. })
    }

    /// Returns the low-cardinality value of the span attribute `error.type`.
    pub fn error_type(&self) -> String {
        match self {
            Failure::Error { type_name, .. } => type_name.clone(),
            Failure::Panic { .. } => "panic".into(),
            Failure::Arguments { .. } => "arguments".into(),
            Failure::Result { .. } => "result".into(),
            Failure::Module { .. } => "module".into(),
            Failure::NotStarted { .. } => "not_started".into(),
            Failure::ExitCode { code, .. } => format!("exit:{code}"),
            Failure::Signal { signal, .. } => format!("signal:{signal}"),
            Failure::TimedOut { .. } => "timeout".into(),
            Failure::WorkerLost { error_type, .. } => error_type.clone(),
            Failure::OutOfMemory { .. } => OUT_OF_MEMORY.into(),
            Failure::Cancelled => "cancelled".into(),
            Failure::Abandoned { .. } => "abandoned".into(),
            Failure::HeadStopped | Failure::Kept => "stopped".into(),
            Failure::Superseded => "superseded".into(),
            Failure::Input { .. } | Failure::InputForgotten { .. } => "input".into(),
            Failure::Refused { code, .. } => code.error_type(),
            Failure::HeadLost | Failure::Lost { .. } => "lost".into(),
            Failure::NoWorker { .. } => "no_worker".into(),
            Failure::Deadlock { .. } => "deadlock".into(),
            Failure::ActorDied { error_type, .. } if !error_type.is_empty() => error_type.to_string(),
            Failure::ActorDied { .. } => "actor_died".into(),
        }
    }

    /// Returns the predicate of a sentence about a task with this failure, before its message.
    pub fn predicate(&self) -> &'static str {
        match self {
            Failure::Kept => "has not ended",
            _ => "failed",
        }
    }

    /// Returns the stack at the time, where the task's language gave one.
    pub fn stacktrace(&self) -> &str {
        match self {
            Failure::Error { stacktrace, .. } | Failure::Panic { stacktrace, .. } => stacktrace,
            _ => "",
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Error { message, .. }
            | Failure::Arguments { message }
            | Failure::Result { message }
            | Failure::Module { message }
            | Failure::NoWorker { message } => f.write_str(message),
            Failure::Deadlock { message } => write!(f, "deadlock: {message}"),
            Failure::Panic { message, location, .. } if location.is_empty() => write!(f, "panicked: {message}"),
            Failure::Panic { message, location, .. } => write!(f, "panicked at {location}: {message}"),
            Failure::NotStarted { program, message, .. } => write!(f, "`{program}` could not be started: {message}"),
            Failure::ExitCode { program, code } => write!(f, "`{program}` exited with code {code}"),
            Failure::Signal { program, signal } => write!(f, "`{program}` was killed by {}", SignalName(*signal)),
            Failure::TimedOut { limit, after_ns } => {
                let what = match limit {
                    TimeLimit::Run => "it was still running after",
                    TimeLimit::Queue => "it was still waiting for a worker after",
                    TimeLimit::Idle => "it had written nothing for",
                };
                write!(f, "timed out: {what} {}", Elapsed(Duration::from_nanos(*after_ns)))
            }
            Failure::WorkerLost { worker_pid, cause, .. } => {
                write!(f, "its worker (pid {worker_pid}) {cause}")
            }
            Failure::OutOfMemory { limit_bytes, peak_bytes } => {
                let memory = MemoryExceeded { limit_bytes: *limit_bytes, peak_bytes: *peak_bytes };
                write!(f, "out of memory: it {memory}")
            }
            Failure::Cancelled => f.write_str("it was cancelled"),
            Failure::Abandoned { submitter } => {
                write!(f, "it was cancelled, because task {submitter}, which had submitted it, did not get to its end")
            }
            Failure::Input { task, target, cause } => {
                write!(f, "task {task} ({target}), whose result is an argument of it, failed: {cause}")
            }
            Failure::InputForgotten { task } => {
                write!(f, "task {task}, whose result is an argument of it, is not remembered any more")
            }
            Failure::Refused { message, .. } => write!(f, "the head refused it: {message}"),
            Failure::HeadLost => f.write_str("the head died while it ran, and its worker with it"),
            Failure::Lost { message } => {
                write!(f, "lost: {message}; it may not be started again, and whether it was done is not known")
            }
            Failure::HeadStopped => f.write_str("the head was stopped before it had ended"),
            Failure::Kept => {
                f.write_str("the head was stopped before it had ended; it is kept for the next head in this place")
            }
            Failure::Superseded => f.write_str("another node has its task by now, or may have, so it was ended here"),
            Failure::ActorDied { actor, target, cause, has_begun, .. } => {
                let target = if target.is_empty() { String::new() } else { format!(" ({target})") };
                let when = if *has_begun { "died while it ran" } else { "is dead" };
                write!(f, "actor {actor}{target} {when}: {cause}")
            }
        }
    }
}

impl std::error::Error for Failure {}

impl From<Refusal> for Failure {
    fn from(Refusal { code, text }: Refusal) -> Failure {
        Failure::Refused { code, message: text }
    }
}

/// Describes how a process ended: as the predicate of a sentence ("exited with code 1"), and as a value of `error.type` (`exit:1`).
pub fn describe_exit(status: ExitStatus) -> (String, String) {
    match (status.code(), status.signal()) {
        (Some(code), _) => (format!("exited with code {code}"), format!("exit:{code}")),
        (None, Some(signal)) => (format!("was killed by {}", SignalName(signal)), format!("signal:{signal}")),
        (None, None) => ("ended in an unknown way".into(), "unknown".into()),
    }
}

/// `SIGKILL (9)`.
pub struct SignalName(pub i32);

impl fmt::Display for SignalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use rustix::process::Signal;
        let name = match Signal::from_named_raw(self.0) {
            Some(Signal::ABORT) => "SIGABRT",
            Some(Signal::ALARM) => "SIGALRM",
            Some(Signal::BUS) => "SIGBUS",
            Some(Signal::FPE) => "SIGFPE",
            Some(Signal::HUP) => "SIGHUP",
            Some(Signal::ILL) => "SIGILL",
            Some(Signal::INT) => "SIGINT",
            Some(Signal::KILL) => "SIGKILL",
            Some(Signal::PIPE) => "SIGPIPE",
            Some(Signal::QUIT) => "SIGQUIT",
            Some(Signal::SEGV) => "SIGSEGV",
            Some(Signal::SYS) => "SIGSYS",
            Some(Signal::TERM) => "SIGTERM",
            Some(Signal::TRAP) => "SIGTRAP",
            Some(Signal::XCPU) => "SIGXCPU",
            Some(Signal::XFSZ) => "SIGXFSZ",
            _ => return write!(f, "signal {}", self.0),
        };
        write!(f, "{name} (signal {})", self.0)
    }
}

const RETURNED: u8 = 0;
const COMPLETED: u8 = 1;
const FAILED: u8 = 2;
const STORED: u8 = 3;

impl Outcome {
    /// Appends the outcome to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Outcome::Returned(value) => {
                out.put_u8(RETURNED);
                out.put_bytes(value);
            }
            Outcome::Stored(stored) => {
                out.put_u8(STORED);
                stored.put(out);
            }
            Outcome::Completed => out.put_u8(COMPLETED),
            Outcome::Failed(failure) => {
                out.put_u8(FAILED);
                out.put_bytes(&rmp_serde::to_vec_named(failure).expect("a failure is plain data"));
            }
        }
    }

    /// Takes the first byte of an outcome, and returns whether it is of a large value.
    pub fn is_stored(take: &mut Take<'_>) -> Result<bool, WireError> {
        Ok(take.u8()? == STORED)
    }

    /// Takes an outcome.
    pub fn take(take: &mut Take<'_>) -> Result<Outcome, WireError> {
        match take.u8()? {
            RETURNED => Ok(Outcome::Returned(take.bytes()?.to_vec())),
            STORED => Ok(Outcome::Stored(Stored::take(take)?)),
            COMPLETED => Ok(Outcome::Completed),
            FAILED => {
                let failure = value::plain_from_bytes(take.bytes()?).ok_or(WireError::UnknownValue("failure"))?;
                Ok(Outcome::Failed(failure))
            }
            _ => Err(WireError::UnknownValue("outcome")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failures() -> Vec<(Failure, &'static str, &'static str)> {
        vec![
            (
                Failure::Error { type_name: "io::Error".into(), message: "no such file".into(), stacktrace: "".into() },
                "io::Error",
                "no such file",
            ),
            (
                Failure::Panic { message: "boom".into(), location: "src/lib.rs:3:5".into(), stacktrace: "".into() },
                "panic",
                "panicked at src/lib.rs:3:5: boom",
            ),
            (
                Failure::NotStarted { program: "nope".into(), message: "not found".into(), is_missing: true },
                "not_started",
                "`nope` could not be started: not found",
            ),
            (Failure::ExitCode { program: "false".into(), code: 1 }, "exit:1", "`false` exited with code 1"),
            (
                Failure::Signal { program: "sleep".into(), signal: 9 },
                "signal:9",
                "`sleep` was killed by SIGKILL (signal 9)",
            ),
            (Failure::Signal { program: "x".into(), signal: 35 }, "signal:35", "`x` was killed by signal 35"),
            (
                Failure::TimedOut { limit: TimeLimit::Run, after_ns: 2_000_000_000 },
                "timeout",
                "timed out: it was still running after 2 s",
            ),
            (
                Failure::TimedOut { limit: TimeLimit::Queue, after_ns: 2_000_000_000 },
                "timeout",
                "timed out: it was still waiting for a worker after 2 s",
            ),
            (
                Failure::TimedOut { limit: TimeLimit::Idle, after_ns: 2_000_000_000 },
                "timeout",
                "timed out: it had written nothing for 2 s",
            ),
            (
                Failure::WorkerLost {
                    worker_pid: 7,
                    cause: "was killed by SIGSEGV (signal 11)".into(),
                    error_type: "signal:11".into(),
                },
                "signal:11",
                "its worker (pid 7) was killed by SIGSEGV (signal 11)",
            ),
            (
                Failure::Input {
                    task: crate::task::TaskId(7),
                    target: "demo.f".into(),
                    cause: Box::new(Failure::ExitCode { program: "false".into(), code: 1 }),
                },
                "input",
                "task 7 (demo.f), whose result is an argument of it, failed: `false` exited with code 1",
            ),
            (
                Failure::OutOfMemory { limit_bytes: 512 << 20, peak_bytes: Some(600 << 20) },
                "oom",
                "out of memory: it may take 512 MiB and had 600 MiB",
            ),
            (
                Failure::OutOfMemory { limit_bytes: 512 << 20, peak_bytes: Some(512 << 20) },
                "oom",
                "out of memory: it may take 512 MiB, had 512 MiB and wanted more",
            ),
            (Failure::Cancelled, "cancelled", "it was cancelled"),
            (
                Failure::Abandoned { submitter: crate::task::TaskId(7) },
                "abandoned",
                "it was cancelled, because task 7, which had submitted it, did not get to its end",
            ),
            (
                Failure::ActorDied {
                    actor: crate::task::TaskId(7),
                    target: "counter.Counter".into(),
                    cause: "its worker (pid 3) was killed by SIGKILL (signal 9)".into(),
                    error_type: "signal:9".into(),
                    has_begun: true,
                },
                "signal:9",
                "actor 7 (counter.Counter) died while it ran: its worker (pid 3) was killed by SIGKILL (signal 9)",
            ),
            (
                Failure::ActorDied {
                    actor: crate::task::TaskId(7),
                    target: "".into(),
                    cause: "it was cancelled".into(),
                    error_type: "".into(),
                    has_begun: false,
                },
                "actor_died",
                "actor 7 is dead: it was cancelled",
            ),
            (
                Failure::Deadlock { message: "task 2 waits for itself".into() },
                "deadlock",
                "deadlock: task 2 waits for itself",
            ),
            (Failure::HeadLost, "lost", "the head died while it ran, and its worker with it"),
            (
                Failure::Lost { message: "its worker died".into() },
                "lost",
                "lost: its worker died; it may not be started again, and whether it was done is not known",
            ),
            (Failure::HeadStopped, "stopped", "the head was stopped before it had ended"),
            (
                Failure::Kept,
                "stopped",
                "the head was stopped before it had ended; it is kept for the next head in this place",
            ),
            (Failure::Superseded, "superseded", "another node has its task by now, or may have, so it was ended here"),
        ]
    }

    #[test]
    fn every_failure_names_its_error_type_and_says_what_happened() {
        for (failure, error_type, text) in failures() {
            assert_eq!(failure.error_type(), error_type);
            assert_eq!(failure.to_string(), text);
        }
    }

    #[test]
    fn outcomes_survive_the_wire() {
        let outcomes = failures().into_iter().map(|(failure, ..)| Outcome::Failed(failure));
        for outcome in outcomes.chain([
            Outcome::Returned(vec![1, 2]),
            Outcome::Stored(Stored { name: "1-2-3".into(), bytes: 9 }),
            Outcome::Completed,
        ]) {
            let mut bytes = Vec::new();
            outcome.encode(&mut bytes);
            let mut take = Take::new(&bytes);
            assert_eq!(Outcome::take(&mut take).unwrap(), outcome);
            take.finish().unwrap();
            for length in 0..bytes.len() {
                assert!(Outcome::take(&mut Take::new(&bytes[..length])).is_err());
            }
        }
    }
}
