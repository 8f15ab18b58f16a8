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
//! | [`driver`] | the connection of one thread to a head: submits, waits, makes the spans of submissions |
//! | [`router`] | chooses a replica of a deployment for each request, or has it wait its turn: for the proxy, and for replicas that call others |
//! | [`cluster`] | what programs use: [`init`], [`Cluster`], [`TaskHandle`], shared between threads and executors |

pub mod cluster;
pub mod driver;
pub mod router;

pub use cluster::{
    Actor, ActorHandle, AsCompleted, Call, CancelReport, Cluster, Completed, EmbeddedHead, Init, InitError, OutputLine,
    Progress, Remote, RemoteError, RemoteErrorKind, TaskHandle, as_completed, get_all, init, wait_any,
};
pub use driver::Driver;
