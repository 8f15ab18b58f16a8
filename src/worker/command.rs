//! Runs a program as a task.
//!
//! The program gets a process group of its own, the worker's outputs, no input or its submitter's, the environment that its worker had before the
//! first task with what the task sets on top or its submitter's, and `TRACEPARENT`, `TRACESTATE` and `BAGGAGE` of the attempt's span. There is no shell. It dies with
//! the worker. When it has ended, whatever is left of its group is killed before the group's number can be used by anyone else.

mod exporting;
mod spawn;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub(super) use exporting::{CommandAttempt, Receiver};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};
pub(super) use spawn::Inherited;
use tracer_core::count::Count;
use tracer_core::propagation::Carrier;
use tracer_core::task::{CommandSpec, Failure, Outcome, StopReason};
use tracer_ipc::identity::{self, BirthWindow};
use tracer_ipc::spool::Spool;
use tracer_process::control_group::Group;
use tracer_process::{children, standard_input};

use super::usage::Usage;

/// Result of a command.
pub(super) struct CommandRun {
    pub(super) outcome: Outcome,
    pub(super) exit_code: Option<i32>,
    pub(super) usage: Usage,
    /// Number of processes that it left behind and that run on.
    pub(super) leaked: usize,
}

/// Surroundings of a command.
pub(super) struct Surroundings<'a> {
    /// Context of its attempt.
    pub(super) carrier: &'a Carrier,
    pub(super) inherited: &'a Inherited,
    /// Receiver of its spans, log records and metrics, if there is one.
    pub(super) receiver: Option<&'a Receiver>,
    pub(super) of: CommandAttempt,
}

/// Runs a command to its end. One that is to end before gets its signals from the head; then all that it has started ends with it.
pub(super) fn run(spec: &CommandSpec<'_>, around: &Surroundings<'_>, spool: &'static Spool) -> CommandRun {
    let program = OsStr::from_bytes(spec.program);
    let name = program.to_string_lossy().into_owned();
    let failed =
        |failure| CommandRun { outcome: Outcome::Failed(failure), exit_code: None, usage: Usage::default(), leaked: 0 };
    let directory = Path::new(OsStr::from_bytes(spec.directory));
    let input = match spec.input {
        [] => None,
        path => match standard_input::take(Path::new(OsStr::from_bytes(path))) {
            Ok(input) => Some(input),
            Err(error) => {
                let message =
                    format!("its standard input could not be had from its submitter, which may have ended: {error}");
                return failed(Failure::NotStarted { program: name, message, is_missing: false });
            }
        },
    };
    let before = children::of_this_process();
    let window = BirthWindow::open();
    let started = spawn::spawn(spec, directory, input, around, spool);
    let pid = match started {
        Ok(pid) => pid,
        Err(error) => {
            spool.clear_command_group();
            return failed(not_started(name, directory, &error));
        }
    };
    // Again, now with when its leader was born.
    spool.set_command_group(pid.as_raw_nonzero().get().unsigned_abs(), window);
    wait_for_end(pid);
    // Ended and not reaped: the group's number is still its own.
    let _ = kill_process_group(pid, Signal::KILL);
    let (status, usage) = reap(pid);
    spool.clear_command_group();
    let stop = spool.stop_reason(around.of.task.0, around.of.attempt);
    // One that has succeeded in time has not been ended by a cancellation.
    let is_ended = stop.is_some_and(|why| {
        matches!(why, StopReason::RunTimeout | StopReason::IdleTimeout)
            || !matches!(status, Ok(status) if status.success())
    });
    if is_ended {
        end_children(&name, |pid| !before.contains(&pid));
    }
    let leaked = Leaked::look(&before);
    leaked.say(&name);
    let outcome = match status {
        Ok(status) => for_memory(outcome(name, status)),
        Err(error) => Outcome::Failed(Failure::NotStarted {
            program: name,
            message: format!("its exit status could not be read: {error}"),
            is_missing: false,
        }),
    };
    let exit_code = status_code(&outcome);
    CommandRun { outcome, exit_code, usage, leaked: leaked.pids.len() }
}

fn not_started(program: String, directory: &Path, error: &io::Error) -> Failure {
    if !directory.is_dir() {
        let message = format!("its working directory `{}` does not exist", directory.display());
        return Failure::NotStarted { program, message, is_missing: false };
    }
    let is_missing = error.kind() == io::ErrorKind::NotFound;
    let message = match error.kind() {
        io::ErrorKind::NotFound if program.contains('/') => "there is no such file".to_owned(),
        io::ErrorKind::NotFound => "there is no such program in PATH".to_owned(),
        io::ErrorKind::PermissionDenied if directory.join(&program).is_dir() => "it is a folder".to_owned(),
        io::ErrorKind::PermissionDenied => "it is not executable".to_owned(),
        _ => error.to_string(),
    };
    Failure::NotStarted { program, message, is_missing }
}

/// Waits until the process has ended, and leaves it to be reaped.
fn wait_for_end(pid: Pid) {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    // Without it, reaping waits for the end.
    while let Err(rustix::io::Errno::INTR) = waitid(WaitId::Pid(pid), options) {}
}

/// Time in which processes that were killed end. One that the kernel holds longer is left.
const KILL_LIMIT: Duration = Duration::from_secs(1);

/// Kills the children of an attempt that was ended, and what becomes a child by that, until there is none: all that it has started, in sessions of its own
/// too.
fn end_children(name: &str, is_of_it: impl Fn(Pid) -> bool) {
    let deadline = Instant::now() + KILL_LIMIT;
    let mut killed = BTreeSet::new();
    loop {
        let mut left = children::of_this_process();
        left.retain(|&pid| is_of_it(pid) && !children::reap(pid));
        if left.is_empty() || Instant::now() >= deadline {
            break;
        }
        for pid in left {
            // A child's number is its own until it is reaped, which nobody else does.
            if kill_process(pid, Signal::KILL).is_ok() {
                killed.insert(pid.as_raw_nonzero());
            }
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
    if let Some(first) = killed.first() {
        let count = Count(killed.len(), "process");
        eprintln!("tracer: `{name}` had left {count} behind (pid {first}), ended with it");
    }
}

/// Ends what a function has started that was ended after so long. What commands have left before it stays.
pub(super) fn end_children_of_function(name: &str, ran: Duration) {
    let left = LEFT_BEFORE.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let is_young = |pid: Pid| identity::is_younger_than(pid.as_raw_nonzero().get().unsigned_abs(), ran);
    end_children(name, |pid| !left.contains(&pid) && is_young(pid));
}

/// Processes that a command has left behind: those that left its group, and became children of the worker when their parents ended. They run
/// on until the worker ends; nobody waits for them, also when they hold the output open.
struct Leaked {
    pids: Vec<Pid>,
    holds_output: bool,
}

/// Processes that earlier commands have left, to be reaped when they have ended: nobody else knows of them.
static LEFT_BEFORE: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

impl Leaked {
    /// Looks for children of the worker that were not there before the command.
    fn look(before: &[Pid]) -> Leaked {
        let mut left = LEFT_BEFORE.lock().unwrap_or_else(PoisonError::into_inner);
        left.retain(|&pid| !children::reap(pid));
        let mut pids = children::of_this_process();
        pids.retain(|pid| !before.contains(pid) && !children::reap(*pid));
        left.extend(&pids);
        // What was in the command's group is killed already, and no leak.
        pids.retain(|pid| !identity::is_gone_or_going(pid.as_raw_nonzero().get().unsigned_abs()));
        let holds_output = pids.iter().any(|&pid| children::holds_output(pid));
        Leaked { pids, holds_output }
    }

    /// Says so where the output of the command goes.
    fn say(&self, name: &str) {
        let Some(first) = self.pids.first() else { return };
        let count = Count(self.pids.len(), "process");
        let output = if self.holds_output { " and has its output open" } else { "" };
        let pid = first.as_raw_nonzero();
        eprintln!("tracer: `{name}` left {count} behind (pid {pid}), which runs on until its worker ends{output}");
    }
}

/// Reaps the process, and learns what it used.
fn reap(pid: Pid) -> (io::Result<ExitStatus>, Usage) {
    loop {
        let mut status = 0;
        // SAFETY: all zeroes are a valid rusage; wait4 fills both in for a child of this process.
        let (reaped, usage) = unsafe {
            let mut usage = std::mem::zeroed();
            (libc::wait4(pid.as_raw_nonzero().get(), &mut status, 0, &mut usage), usage)
        };
        if reaped >= 0 {
            return (Ok(ExitStatus::from_raw(status)), Usage::of(&usage));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return (Err(error), Usage::default());
        }
    }
}

fn outcome(program: String, status: ExitStatus) -> Outcome {
    match (status.code(), status.signal()) {
        (Some(0), _) => Outcome::Completed,
        (Some(code), _) => Outcome::Failed(Failure::ExitCode { program, code }),
        (None, signal) => Outcome::Failed(Failure::Signal { program, signal: signal.unwrap_or(0) }),
    }
}

/// Number of processes of this worker's own group that the kernel had killed for memory when it was last asked.
static KILLED_FOR_MEMORY: Mutex<Option<(Group, u64)>> = Mutex::new(None);

/// Returns a command that failed when the kernel had killed it, or what it had started, for more memory than its worker may take.
fn for_memory(outcome: Outcome) -> Outcome {
    if !matches!(outcome, Outcome::Failed(Failure::ExitCode { .. } | Failure::Signal { .. })) {
        return outcome;
    }
    let Some(group) = Group::of(std::process::id()).filter(Group::is_of_worker) else { return outcome };
    let kills = group.kills();
    let mut before = KILLED_FOR_MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
    let seen = before.as_ref().filter(|(known, _)| *known == group).map_or(0, |&(_, kills)| kills);
    let peak_bytes = group.peak();
    let limit = group.limit();
    *before = Some((group, kills));
    match limit.filter(|_| kills > seen) {
        Some(limit_bytes) => Outcome::Failed(Failure::OutOfMemory { limit_bytes, peak_bytes }),
        None => outcome,
    }
}

fn status_code(outcome: &Outcome) -> Option<i32> {
    match outcome {
        Outcome::Completed => Some(0),
        Outcome::Failed(Failure::ExitCode { code, .. }) => Some(*code),
        _ => None,
    }
}
