//! The side of tracer that submits: a connection to a head, submissions and their spans, results as they come, and a head of a program's own.
//!
//! **For** programs that use `tracer` as a library, and for the command line, the HTTP API and tasks that submit tasks, which stand on the
//! same code. **Uses** `tracer-core`, `tracer-ipc`, and `tracer-host` for the hook of the process and the versions of modules.
//!
//! **Never** parses a command line, serves HTTP, prints, or decides where a task runs. It starts one kind of process: the executable
//! `tracer` as the head of a program ([`EmbeddedHead`]). `unsafe` is here for one thing: the environment of the program,
//! in which the session's variables are set before its hook runs.
//!
//! | | |
//! |---|---|
//! | [`connection`] | the connection to a head, shared by threads, futures and tasks: who reads, who is woken, submissions and their spans |
//! | [`driver`] | its blocking face, for one thread |
//! | [`router`] | chooses a replica of a deployment for each request, or has it wait its turn: for the proxy, and for replicas that call others |
//! | [`calls`] | calls of deployments by code that is no proxy: admission, lanes, spans |
//! | [`search_path`] | the variables by which a caller finds its programs, for commands |
//! | [`cluster`] | what programs use: [`init`], [`Cluster`], [`TaskHandle`], shared between threads and executors |

#![warn(missing_docs)]

pub mod calls;
pub mod cluster;
pub mod connection;
pub mod driver;
mod error;
pub mod router;
pub mod search_path;
mod tracing;

pub use cluster::{
    Actor, ActorHandle, AsCompleted, Call, CancelReport, Cluster, Completed, DeploymentAnswer, DeploymentCall,
    DeploymentError, DeploymentHandle, DeploymentValues, EmbeddedHead, Init, InitError, OutputLine, Progress, Remote,
    RemoteError, RemoteErrorKind, TaskHandle, as_completed, get_all, init, wait_any,
};
pub use driver::Driver;
