//! `tracer` launches tasks, and every task is a trace.
//!
//! The user's guide is [`guide`]; what is promised, with its limits and its tests, is in [`guide::promises`].
//!
//! # A program that submits tasks
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/documentation.rs"));
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use_built_executable();
//! let cluster = tracer::init()?;
//! let tasks = (0..3).map(|_| cluster.remote("demo:my_function").submit());
//! let tasks = tasks.collect::<Result<Vec<_>, _>>()?;
//! let ones: Vec<u64> = tracer::get_all(tasks)?;
//! assert_eq!(ones, [1, 1, 1]);
//! # Ok(()) }
//! ```
//!
//! [`init`] connects to the head that runs on this machine. If none does it starts one, from the executable `tracer`, which lives as long as the
//! program. `demo` is built into `tracer`; tasks of your own are functions of a library, written with `tracer_sdk`, where submitting has the
//! same words.
//!
//! | to | |
//! |---|---|
//! | say which head, how many workers, which hook, and what a Ctrl-C does | [`Init`] |
//! | submit a function or a command, with retries, limits and needs | [`Cluster::remote`], [`Cluster::command`], [`Remote`] |
//! | pass the result of a task to another one without waiting for it | [`Remote::arg`] takes `&TaskHandle` |
//! | wait for one, all, any | [`TaskHandle::get`], [`get_all`], [`wait_any`] |
//! | take results as tasks end, and show how far they are | [`as_completed`], [`Progress`] |
//! | call a deployment of a service, in the same trace | [`Cluster::deployment`] |
//! | wait in an executor, without blocking its thread | [`TaskHandle::get_async`], [`AsCompleted::next_async`] |
//! | cancel | [`TaskHandle::cancel`], [`Cluster::cancel_all`], [`Init::cancel_on_ctrl_c`] |
//! | know why a task failed | [`RemoteError`]: its kind, type, message, stack, attempts and trace |
//!
//! Submissions are collected, and sent when some have come together or something is waited for; [`Cluster::flush`] sends them at once.
//!
//! If the cluster is traced, so is the program: its hook runs here too, and each submission is a span. It is a child of the span that
//! the crate `opentelemetry` 0.33 has current, if the program makes spans of its own; else of what [`Remote::parent`], [`Init::parent`] or
//! `TRACEPARENT` say, or of a span around all of it, which [`Init::job_span`] asks for.
//!
//! `examples/driver` is a whole program. The rest of this page is the map of the code.
//!
//! # The picture
//!
//! ```text
//!  tracer submit / a Rust driver         head                             worker (one process per slot)
//!  ┌─────────────────────────────┐ socket ┌────────────────────┐  socket  ┌──────────────────────────────┐
//!  │ runs the hook, opens the    │──────▶ │ accept → queue →   │────────▶ │ claims, opens the CONSUMER   │
//!  │ PRODUCER span, puts its     │        │ place → lease      │          │ span, calls the task in its  │
//!  │ context in the envelope     │◀────── │ supervise          │◀──────── │ library, ends the span       │
//!  └──────────────┬──────────────┘ result └─────────┬──────────┘  result  └──────┬───────────────────┬───┘
//!                 ▼                                 │ finishes a dead one's      ▼                   ▼
//!        <spans>/<pid>.json                         └──────────────────▶ spool (shared)   <spans>/<pid>.json
//! ```
//!
//! # One task, from the command line to the span file
//!
//! 1. [`cli`] parses `tracer submit task m:f`, and a [`Driver`] connects to the head whose place [`session`] finds.
//! 2. The driver runs the session's hook ([`hook::run_hook`]), opens the job's span and the PRODUCER span, and sends a
//!    [`task::Envelope`], which carries the trace context beside the arguments, never in them.
//! 3. The head's loop (`head::server`) reads it, writes it to the journal, and tells the reactor ([`head::reactor`]), which queues the task over
//!    [`head::state`] and, as [`scheduler`] decides, leases it to a worker.
//! 4. The `worker` claims the lease in its [`spool`], opens the CONSUMER span through its [`hook::Recorder`], loads the module, and
//!    calls the task, to which it lends the span. Every span of the task passes through the recorder into the spool.
//! 5. The span ends, the recorder commits, and only then is the result sent: *seen means recorded*.
//! 6. The head records the one outcome and tells the driver, whose spans end the same way. [`trace`] reads it all back.
//!
//! When a process dies on the way, `head::recovery` finishes its story from its spool before anyone is told of the loss. When
//! the head ends, `head::guard` above it ends whatever is left. Where services live when the head is killed, the guard starts the next head, which goes on with their processes.
//!
//! # The rooms
//!
//! Crates, from the lowest; each may use those above it in this table, and its first page says what it never does:
//!
//! | crate | folder | |
//! |---|---|---|
//! | `tracer-core` | `src/core` | values and words: [`task`], [`value`], [`propagation`], [`names`], [`clock`], [`count`], [`suggestion`], [`exit`] |
//! | `tracer-ipc` | `src/ipc` | what the processes of a session share: [`protocol`], connections, [`spool`], [`session`], [`stored`] |
//! | `tracer-reactor` | `src/reactor` | what the head decides: plain functions over its state |
//! | `tracer-engine` | `src/engine` | tasks that many machines share: the record of a task, what an agent decides, an engine's interface |
//! | `tracer-host` | `src/host` | the host's side of the module boundary: [`hook`], module store, recorder |
//! | `tracer-client` | `src/client` | the side that submits: one connection and its faces, [`driver`] and [`cluster`] |
//! | `tracer-process` | `src/process` | one process and those around it: parent, children, control group, memory |
//! | `tracer-settings` | `src/settings` | [`config`]: settings of a head and of services, from flags, variables and files |
//! | `tracer-trace` | `src/trace` | [`trace`]: the reader of spans, log records and output |
//! | `tracer-web` | `src/web` | [`http_api`] and the page, [`view`], in a process of their own |
//! | `tracer-serving` | `src/serving` | [`serving`]: the proxy of services, a process too |
//! | `tracer-worker` | `src/worker` | the process that runs attempts, actors and replicas |
//! | `tracer-head` | `src/head` | [`head`]: the loop around what decides, its journal, its guard |
//! | `tracer` | `src` | the program: [`cli`] |
//!
//! Web side, proxy, worker and head are four processes, and their crates do not use each other: a change in one compiles none of the others.
//!
//! A program that submits tasks depends on `tracer` with `default-features = false`: then the program's modules and what only they need
//! (clap, hyper, tokio, ...) are not built.
//!
//! The other side of the hook boundary is under `hooks`: `tracer-abi` is the contract, `tracer-sdk` is for authors, and each shipped hook is a
//! library with a thin loadable module around it. Host and modules meet only at `tracer-abi`; what is built into this binary is loaded through the
//! same tables as any library.
//!
//! # What is deliberately not there
//!
//! Nothing but these files does these things; a test (`tests/integration/invariants.rs`) reads the sources and compares. Paths are relative to
//! `src`, and a folder ends with `/`.
//!
//! | these alone | files |
//! |---|---|
//! | start processes | `head/process.rs` (workers, the HTTP API, the agent), `head/guard.rs` (the head itself, and for it the processes of services), `worker/command/` (commands), `client/cluster/embedded.rs` (a program's own head), `cli/restart.rs` (this program, to try settings), `cli/start.rs` (a head in the background, hooks and engines that are tried out), `cli/engine.rs` (a server of NATS, which is asked for its version), `cli/report.rs` (the pager), `cli.rs` (itself anew, with room for libraries), `hooks/program/` (programs that are deployments) |
//! | signal processes | `head/process.rs`, `head/guard.rs`, `head/io.rs`, `worker/command.rs`, `client/cluster/embedded.rs`, `cli/start.rs`, `cli/restart.rs`, `ipc/fault.rs` (itself, in tests), `process/parent.rs` (itself and its group, without a head), `hooks/program/` (its program, and itself after it) |
//! | print | `cli/report.rs`, `cli/live_line.rs`, `cli/submit/map/progress.rs`, `cli/start.rs`; to a log of their own process: `host/hook/log.rs`, `worker/`, `web/http_api.rs`, `web/http_api/link.rs`, `web/http_api/metrics/export.rs`, `web/http_api/metrics/received.rs`, `serving/proxy.rs`, `serving/proxy/`, `ipc/fork.rs`; of hooks, which have no log but standard error: `hooks/otlp/` (once, that spans do not arrive), `hooks/sdk/src/panics.rs` and `hooks/sdk/src/host.rs` (without a host); `hooks/program/` (the log of its replica) |
//! | change the environment of their own process | while it has one thread: `cli.rs` (removes empty variables of tracer, which count as not set, and what tracer set for the loading of libraries), `client/driver/session_environment.rs` (a driver takes over the session's: exporters of a hook read it by themselves, where no ABI reaches) |
//! | open shared libraries | `host/hook/module.rs` |
//! | write span files | `host/hook/logs.rs`, `host/hook/own.rs`, `head/recovery.rs`, `web/http_api/otlp.rs`, `hooks/local_tmp_tracing/`, `hooks/span_file/` |
//! | run on tokio | `engine/nats.rs`, `engine/nats/`, `engine/process.rs`, `web/`, `serving/proxy.rs`, `serving/proxy/`, `hooks/otlp_grpc/`, `hooks/sdk/src/blocking.rs` (a task's own runtime), `hooks/sdk/src/serve/` (a replica's loop), `hooks/program/` |
//! | use `unsafe` | `host/`, `ipc/`, `head/guard.rs`, `process/allocator.rs`, `worker/command.rs`, `worker/command/`, `worker/usage.rs`, `worker/output_marks.rs`, `cli.rs`, `client/driver/session_environment.rs`, `hooks/abi/`, `hooks/sdk/` |
//! | decide, from arguments alone | `reactor/`, `engine/record.rs`, `engine/agent.rs`, `engine/message.rs`, `engine/interface.rs`, `engine/survey.rs`, `engine/doctor.rs`, `engine/server_version.rs` |
//!
//! And beside the table:
//!
//! * What decides reads no clock, opens no file and knows no socket. Time is an argument.
//! * A process is signalled by whoever started it, or by its pid and birth; nothing is ever found by name.
//! * Where a program uses the library, what tracer itself would log goes to a file of the session and not to the program's standard error.
//! * Only [`hook`] and the crates under `hooks` touch the ABI's pointers.
//! * Only `head::journal` writes what the head has to remember.
//! * The head makes no spans and loads no hook: what a hook does cannot hurt it.
//! * No task argument carries trace context, and no span carries arguments unless `--record-arguments` asks for it.
//! * There is no runtime between a socket and its caller: driver and worker block, the head is one loop over epoll. Only [`http_api`], [`view`], the agent
//!   (`tracer_engine::process`) and the proxy of a service, processes of their own, have one, and so have `tracer engine init` and `tracer doctor`, which speak
//!   to an engine themselves.

#![warn(missing_docs)]

// The library of a program that submits tasks.
pub use tracer_client::{
    Actor, ActorHandle, AsCompleted, Call, CancelReport, Cluster, Completed, DeploymentAnswer, DeploymentCall,
    DeploymentError, DeploymentHandle, DeploymentValues, Driver, EmbeddedHead, Init, InitError, OutputLine, Progress,
    Remote, RemoteError, RemoteErrorKind, TaskHandle, as_completed, cluster, driver, get_all, init, wait_any,
};
pub use tracer_core::{clock, count, exit, names, propagation, suggestion, task, value};
pub use tracer_host::hook;
pub use tracer_ipc::stored::Value;
pub use tracer_ipc::{VERSION, environment, lane, protocol, session, spool, stored, task_output};

// The program.
#[cfg(feature = "program")]
pub mod cli;
#[cfg(feature = "program")]
pub mod guide;

#[cfg(feature = "program")]
pub use {
    tracer_head as head,
    tracer_reactor::scheduler,
    tracer_serving as serving, tracer_settings as config, tracer_trace as trace,
    tracer_web::{http_api, view},
};
