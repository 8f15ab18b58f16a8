//! Errors of connections and submissions.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tracer_core::causes;
use tracer_core::codec::WireError;
use tracer_core::task::{AttemptReport, Failure, PastAttempts, Refusal, RefusalCode, TaskId};
use tracer_core::value::ValueError;
use tracer_ipc::protocol::frame::PAYLOAD_LIMIT;
use tracer_ipc::session::SessionError;
use tracer_ipc::stored::StoredError;

use crate::driver::meant_target;

/// Reason why a driver cannot go on.
pub enum DriverError {
    /// There is no head, or it cannot be reached.
    Session(SessionError),
    /// The connection broke. The head has died or closed it; what it had accepted is in its hands.
    Disconnected(io::Error),
    /// The head is there and does not answer.
    NoAnswer {
        /// Its process; none if even that is not known.
        head_pid: Option<u32>,
        /// True if it was stopped by a signal.
        is_stopped: bool,
        /// Time for which it was waited.
        waited: Duration,
    },
    /// The head does not take this driver or its tasks; it says why.
    Refused(Refusal),
    /// The head said something that this version does not understand.
    Protocol(WireError),
    /// The task failed.
    Failed {
        /// The task.
        id: TaskId,
        /// Its failure.
        failure: Failure,
        /// The attempts before the last one, oldest first.
        past: Vec<AttemptReport>,
    },
    /// An argument or a result cannot be carried over.
    Value(ValueError),
    /// A task with its arguments has more bytes than can be sent.
    TooLarge {
        /// Number of bytes, encoded.
        bytes: usize,
    },
    /// A large argument could not be written to a file.
    Store {
        /// Folder in which it was to be.
        folder: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A large result cannot be read.
    Stored(StoredError),
    /// The text of kinds to retry on is not a list of kinds; the message says why.
    RetryOn(String),
    /// A demand names no resource, or names one twice; the text says why.
    Resource(String),
    /// There is no such actor, or it is dead; the text says which.
    Actor(String),
    /// The module's library cannot be used; the text says why.
    Module(String),
    /// The name is not `module:function`.
    Target {
        /// The text that was given instead.
        given: String,
    },
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DriverError::Session(error) => error.fmt(f),
            DriverError::Disconnected(_) => {
                f.write_str(
                    "the connection to the head broke\n\
                     (hint: see whether it still runs with `tracer status`; a task that it had not acknowledged may run all the same, \
                     and with an idempotency key it is safe to submit it again)",
                )
            }
            DriverError::NoAnswer { head_pid, is_stopped, waited } => {
                let process = head_pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
                let pid = head_pid.map_or_else(|| "PID".to_owned(), |pid| pid.to_string());
                if *is_stopped {
                    write!(f, "the head{process} was stopped by a signal, so it does not answer")?;
                    return write!(
                        f,
                        "\n(hint: let it go on with `kill -CONT {pid}`, or end it with `kill -KILL {pid}`)"
                    );
                }
                write!(f, "the head{process} has not answered for {} s", waited.as_secs())?;
                f.write_str("\n(hint: it may be busy, or have no file descriptors left: its log is `logs/head.log` in the folder of its session")?;
                write!(f, "; try again, or end it with `kill {pid}`)")
            }
            DriverError::Refused(refusal) => {
                write!(f, "the head refused: {refusal}")?;
                if refusal.code == RefusalCode::ProtocolVersion {
                    f.write_str(
                        "\n(hint: `tracer restart` has this version go on in the head's place, with its tasks and services; `tracer stop` ends it)",
                    )?;
                }
                Ok(())
            }
            DriverError::Protocol(_) => {
                write!(f, "the head sent a message that this version ({}) cannot decode", tracer_ipc::VERSION)?;
                f.write_str("\n(hint: compare `tracer --version` with `tracer status`)")
            }
            DriverError::Failed { id, failure, past } => {
                write!(f, "task {id} {}: {failure}{}", failure.predicate(), PastAttempts(past))
            }
            DriverError::Value(error) => error.fmt(f),
            DriverError::TooLarge { bytes } => {
                write!(f, "the task with its arguments has {bytes} bytes, but at most {PAYLOAD_LIMIT} are taken")?;
                f.write_str("\n(hint: pass large data in a file, and its path as the argument)")
            }
            DriverError::Store { folder, .. } => {
                write!(f, "a large argument cannot be written to a file in `{}`", folder.display())?;
                f.write_str(
                    "
(hint: make room there, or start the head with another --temp-dir)",
                )
            }
            DriverError::Stored(error) => error.fmt(f),
            DriverError::RetryOn(problem)
            | DriverError::Resource(problem)
            | DriverError::Actor(problem)
            | DriverError::Module(problem) => f.write_str(problem),
            DriverError::Target { given } => {
                write!(f, "a task is named `module:function`, but got `{given}`")?;
                // As lists and spans print it.
                match meant_target(given) {
                    Some(meant) => write!(f, "\n(hint: did you mean `{meant}`?)"),
                    None => f.write_str("\n(hint: for example `demo:my_function`)"),
                }
            }
        }
    }
}

impl fmt::Debug for DriverError {
    /// The text with its causes and its hint, because `main` prints this form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        causes::debug(self, f)
    }
}

impl std::error::Error for DriverError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            DriverError::Session(error) => error.source(),
            DriverError::Disconnected(error) => Some(error),
            DriverError::Protocol(error) => Some(error),
            DriverError::Store { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<WireError> for DriverError {
    fn from(error: WireError) -> DriverError {
        DriverError::Protocol(error)
    }
}

impl From<ValueError> for DriverError {
    fn from(error: ValueError) -> DriverError {
        DriverError::Value(error)
    }
}
