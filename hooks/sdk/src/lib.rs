//! Safe Rust for the authors of task modules and tracing hooks: the only crate that either needs.
//!
//! # A task module
//!
//! A library of crate type `cdylib`, with functions that carry [`task`]. This is all of it:
//!
//! ```
//! use tracer_sdk::task;
//!
//! /// Counts the words of a text.
//! #[task]
//! fn count(text: String) -> usize {
//!     text.split_whitespace().count()
//! }
//! # assert_eq!(count("one two".to_owned()), 2);
//! ```
//!
//! ```toml
//! [lib]
//! crate-type = ["cdylib"]
//! ```
//!
//! `cargo build` makes `libwordcount.so`, and `tracer submit task wordcount:count '"the quick brown fox"'` prints `4`.
//! Task code traces with the ordinary `opentelemetry` or `tracing` API; see [`proxy`] for what makes that work.
//!
//! # A tracing hook
//!
//! With feature `hooks`, in a library of the same kind:
//!
//! ```text
//! use tracer_sdk::hook::Tracing;
//!
//! /// Sends spans to the collector next door.
//! #[tracer_sdk::startup_hook]
//! fn setup_tracing() -> Result<Tracing, Box<dyn std::error::Error>> {
//!     let exporter = opentelemetry_otlp::SpanExporter::builder().with_http().build()?;
//!     Ok(Tracing::builder().with_batch_exporter(exporter).build())
//! }
//! ```
//!
//! `tracer start --head --tracing-startup-hook=collector:setup_tracing` runs it in every process.
//!
//! # The life of a task
//!
//! ```text
//!   host                                   module
//!    │  opens the library
//!    ├─ tracer_module() ──────────────────▶ the record: tasks, hooks
//!    ├─ on_load(host) ────────────────────▶ proxy becomes the global tracer provider
//!    │                                      #[on_load] functions run
//!    │                                      default `tracing` subscriber, if there is none
//!    │  a task is claimed, its span opened
//!    ├─ on_run(task, call) ───────────────▶ span and baggage become current
//!    │                                      arguments are decoded ──✗ error, function not called
//!    │ ◀─ spans of the user's ────────────  the function runs ──────✗ error or panic, caught
//!    │                                      span and baggage are detached, the loan ends
//!    │                                      standard output is flushed
//!    │ ◀─ host_result / host_error ───────  result is encoded ──────✗ error
//!    │  the task's span ends
//!    ▼  next task; the library is never closed
//! ```
//!
//! # Features
//!
//! | feature | default | what it brings |
//! |---|---|---|
//! | `otel-0-33` | yes | the proxy for `opentelemetry` 0.33 |
//! | `otel-0-32` | | the proxy for `opentelemetry` 0.32; several may be on |
//! | `otel-0-31` | | the proxy for `opentelemetry` 0.31 |
//! | `tracing` | yes | `layer` and a default subscriber for the `tracing` crate, on OpenTelemetry 0.33 |
//! | `tracing-0-32` | | the same on OpenTelemetry 0.32 |
//! | `tracing-0-31` | | the same on OpenTelemetry 0.31 |
//! | `async` | yes | tasks that are `async fn`, on a Tokio runtime of the module's |
//! | `serve` | | deployments: functions, types and tower services that answer HTTP requests |
//! | `hooks` | | what hook authors need |

#![warn(missing_docs)]

// The attributes write `::tracer_sdk`, also in this crate's own tests.
extern crate self as tracer_sdk;

mod actor;
#[cfg(any(feature = "otel-0-31", feature = "otel-0-32", feature = "otel-0-33", feature = "hooks"))]
mod baggage;
mod blocking;
pub mod export;
#[cfg(feature = "hooks")]
pub mod hook;
mod host;
mod items;
mod messagepack;
mod panics;
pub mod proxy;
mod remote;
mod runtime;
#[cfg(feature = "serve")]
pub mod serve;
#[cfg(any(feature = "tracing", feature = "tracing-0-32", feature = "tracing-0-31"))]
mod subscriber;
mod task;
mod trace_state;
mod wide;

pub use actor::{Actor, ActorHandle, Call, actor, find_actor};
#[cfg(feature = "hooks")]
pub use hook::{DurableProcessor, IntoTracing, Tracing};
pub use remote::{Argument, Remote, RemoteError, RemoteErrorKind, TaskHandle, get_all, remote, wait_any};
pub use runtime::{RuntimeContext, current, current as runtime_context};
#[cfg(any(feature = "otel-0-31", feature = "otel-0-32", feature = "otel-0-33"))]
pub use runtime::{TraceContext, current_trace_context};
#[cfg(any(feature = "tracing", feature = "tracing-0-32", feature = "tracing-0-31"))]
pub use subscriber::layer;
/// Makes a type an actor: its state lives in a worker of its own, and its methods are called from anywhere.
///
/// On an `impl` block with `pub fn new`, which makes the state: `Self`, or a `Result` of it. Public methods are exported, and are called by their
/// names with [`ActorHandle::call`], or from the shell; the others stay what they are. Parameters and results are as those of a [`task`](macro@task).
///
/// - `&mut self`, and `&self` that is not `async`: one at a time, in the order in which they were submitted.
/// - `async` with `&self`: beside each other, up to `max_concurrency` of them, each on a thread of its own. They begin in order: the next one when
///   the one before waits for the first time. A call of
///   another method waits until they have ended, and holds up those behind it. The type is then `Send` and `Sync`.
/// - Public functions without `self` are tasks, by the name `Type.function`: they run anywhere and have no state.
///
/// The limit is 64 unless `#[actor(max_concurrency = 8)]` says otherwise. The state is dropped, in the actor's worker, when the actor ends in good order. A
/// panic fails the call, and the actor lives on.
///
/// ```
/// use tracer_sdk::actor;
///
/// pub struct Counter {
///     count: i64,
/// }
///
/// /// Counts.
/// #[actor]
/// impl Counter {
///     /// Begins at `start`.
///     pub fn new(start: i64) -> Self {
///         Counter { count: start }
///     }
///
///     /// Adds to the count, and returns it.
///     pub fn increment(&mut self, by: i64) -> i64 {
///         self.count += by;
///         self.count
///     }
///
///     pub fn get(&self) -> i64 {
///         self.count
///     }
/// }
/// # let mut counter = Counter::new(1);
/// # assert_eq!((counter.increment(2), counter.get()), (3, 3));
/// ```
///
/// ```text
/// $ tracer submit actor counter:Counter 1 --name hits
/// 7
/// $ tracer submit call hits increment 2
/// 3
/// ```
pub use tracer_macros::actor;
/// Makes a function that returns the record of a module which is linked into the host.
///
/// The record holds what is listed and nothing else, whatever is registered in the program. It is built at the first
/// call and lives as long as the process. Its version is that of the crate where this is written.
///
/// ```
/// /// Returns 1.
/// #[tracer_sdk::task]
/// pub fn my_function() -> u32 {
///     1
/// }
///
/// tracer_sdk::builtin_module! {
///     /// The module `demo`.
///     pub fn module, tasks = [my_function]
/// }
/// # let record = module();
/// # assert_eq!(unsafe { (*record).task_count }, 1);
/// ```
///
/// The lists are `tasks`, `hooks` and `loads`, with paths to functions that carry the attribute.
pub use tracer_macros::builtin_module;
/// Exports items of other crates from this library.
///
/// For a thin library around a crate that others link too: the linker may leave out what a crate registers if
/// nothing else of it is used, so the shim names what it exports. What arrives twice is exported once.
///
/// ```
/// # mod inner {
/// #     #[tracer_sdk::task]
/// #     pub fn my_function() -> u32 { 1 }
/// # }
/// # use inner as tracer_demo;
/// tracer_sdk::export!(tasks = [tracer_demo::my_function]);
/// ```
///
/// The lists are `tasks`, `hooks` and `loads`, with paths to functions that carry the attribute.
pub use tracer_macros::export;
/// Makes a function run once when the module is loaded: after the proxy is in place, before a `tracing` subscriber
/// is set and before the first task.
///
/// It takes nothing and returns nothing, or a `Result` of nothing: then `Err`, like a panic, makes the host refuse to run
/// the module's tasks. It runs on the host's loading thread.
///
/// ```
/// #[tracer_sdk::on_load]
/// fn check_table() -> Result<(), String> {
///     let table = "data/table.csv";
///     # let table = "/";
///     std::fs::metadata(table).map(|_| ()).map_err(|error| format!("cannot read `{table}`: {error}"))
/// }
/// ```
pub use tracer_macros::on_load;
/// Makes a function a tracing hook, under the function's name.
///
/// It takes nothing and returns a description of the tracing it wants, or a `Result` of one. It runs once in every
/// process of a cluster that was started with `--tracing-startup-hook=module:function`.
#[cfg(feature = "hooks")]
pub use tracer_macros::startup_hook;
/// Makes a function a task, under the function's name.
///
/// Parameters are of types that implement `serde::Deserialize`, or references to them; a parameter that is an
/// `Option` may be left out. The result is of a type that implements `serde::Serialize`, or a `Result` of one with an
/// error that can be displayed: then `Err` fails the task, with the error's message and causes. The documentation of
/// the function is the task's. The function itself stays what it was and can be called and tested as ever.
///
/// Arguments that do not fit are an error that names the parameter and both types, and the function is not called.
/// A panic fails the task, with its message and place, and with a stack when `RUST_BACKTRACE` asks for one.
///
/// An `async fn` runs on a Tokio runtime of the module's, on the task's thread (feature `async`).
///
/// ```
/// use std::{collections::BTreeMap, fs, io};
///
/// /// The most frequent words of a file.
/// #[tracer_sdk::task]
/// fn frequencies(path: &str, limit: Option<usize>) -> io::Result<BTreeMap<String, u64>> {
///     let mut counts = BTreeMap::new();
///     for word in fs::read_to_string(path)?.split_whitespace().take(limit.unwrap_or(usize::MAX)) {
///         *counts.entry(word.to_owned()).or_default() += 1;
///     }
///     Ok(counts)
/// }
///
/// # #[cfg(feature = "async")]
/// #[tracer_sdk::task]
/// async fn nap(seconds: f64) {
///     tokio::time::sleep(std::time::Duration::from_secs_f64(seconds)).await;
/// }
/// ```
pub use tracer_macros::task;
/// Makes a function a tracing exporter, under the function's name.
///
/// It takes nothing and returns span processors, as a `Vec<Box<dyn SpanProcessor>>` or a `Result` of one. It says where spans go and
/// nothing else: `tracer` builds the provider around them, with ids, sampling and resource of its own. It runs once in every
/// process of a cluster that was started with `--tracing-exporter=module:function`; as a startup hook it is refused.
///
/// ```
/// use opentelemetry_sdk::trace::{BatchSpanProcessor, SpanProcessor};
/// # use opentelemetry_sdk::{error::OTelSdkResult, trace::{SpanData, SpanExporter}};
/// # #[derive(Debug)]
/// # struct MyExporter;
/// # impl SpanExporter for MyExporter {
/// #     async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult { Ok(()) }
/// # }
///
/// #[tracer_sdk::tracing_exporter]
/// fn to_my_backend() -> Vec<Box<dyn SpanProcessor>> {
///     vec![Box::new(BatchSpanProcessor::builder(MyExporter).build())]
/// }
/// ```
///
/// What is no list of processors does not compile:
///
/// ```compile_fail
/// #[tracer_sdk::tracing_exporter]
/// fn sets_up_all() -> tracer_sdk::hook::Tracing {
///     tracer_sdk::hook::Tracing::builder().build()
/// }
/// ```
#[cfg(feature = "hooks")]
pub use tracer_macros::tracing_exporter;

/// For the code that the macros write.
#[doc(hidden)]
pub mod __private {
    pub use inventory;
    pub use tracer_abi::{
        DEPLOYMENT_CALL, DEPLOYMENT_CONFIGURE, DEPLOYMENT_HEALTH, HOOK_EXPORTER, HOOK_STARTUP, Module,
    };

    pub use crate::blocking::block_on;

    /// The state of an actor with methods that run beside each other.
    pub trait SharedState {}
    impl<T: Send + Sync> SharedState for T {}

    /// Result that a function with `on_load` may return.
    #[diagnostic::on_unimplemented(
        message = "a function with `on_load` returns nothing or a `Result` of nothing, not `{Self}`",
        note = "the error of the `Result` implements `std::fmt::Display`"
    )]
    pub trait LoadResult {
        /// The same with the error put into words.
        fn into_result(self) -> Result<(), String>;
    }

    impl LoadResult for () {
        fn into_result(self) -> Result<(), String> {
            Ok(())
        }
    }

    impl<E: std::fmt::Display> LoadResult for Result<(), E> {
        fn into_result(self) -> Result<(), String> {
            self.map_err(|error| format!("{error:#}"))
        }
    }
}
