//! The library for programs that submit tasks: [`init`], and what it gives.
//!
//! The words are those of `tracer_sdk` in a task: `remote("module:function")`, `arg`, `submit`, `get`, [`get_all`], [`wait_any`],
//! [`TaskHandle`], [`RemoteError`].

mod actor;
mod completed;
mod connected;
mod current;
mod deployment;
mod embedded;
mod error;
mod init;
mod interrupts;
mod output;
mod remote;
mod task;

pub use tracer_ipc::protocol::{CancelReport, StatusReport};

pub use self::actor::{Actor, Call};
pub use self::completed::{AsCompleted, Completed, Progress, as_completed};
pub use self::connected::Cluster;
pub use self::deployment::{DeploymentAnswer, DeploymentCall, DeploymentError, DeploymentHandle, DeploymentValues};
pub use self::embedded::EXECUTABLE_VARIABLE;
pub use self::error::{RemoteError, RemoteErrorKind};
pub use self::init::{EmbeddedHead, HookPlace, Init, InitError, init};
pub use self::output::OutputLine;
pub use self::remote::{Argument, Command, Function, Remote};
pub use self::task::{TaskHandle, get_all, wait_any};
pub use crate::driver::ActorHandle;
