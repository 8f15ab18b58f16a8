//! The host's side of the boundary to modules: finds and loads them, runs the hook, lends tracing to tasks, calls tasks.
//!
//! ```text
//!  hook module                      this process                           task module
//!  on_setup makes a table ───────▶ Recorder wraps it in its own table ───▶ the SDK's proxy provider uses it
//!                                   └─ every start, attribute, event, status and end is in the spool
//! ```
//!
//! Modules are lent the recorder's table, never the hook's, so what the host promises about spans holds for hooks in any
//! language and for a hook that breaks half-way.
//!
//! # When a hook or a module misbehaves
//!
//! 1. A library that does not pass a step of the loading staircase ([`ModuleError`]) is refused with the step, the file, what was
//!    found and what to do. Nothing of it runs.
//! 2. A panic is caught on the side where it happens and becomes an error with its message and place.
//! 3. A hook that fails in a process leaves the process without it: tracer writes the spans itself ([`OwnTracing`]),
//!    unless tracing is required.
//! 4. A hook that does not return within its limit counts as failed. Its thread is left behind; it cannot be ended.
//! 5. A library is never unloaded: its code may be on some thread's stack.
//!
//! Only [`module`](self) opens shared libraries, and only this part of tracer and the crates under `hooks` touch the ABI.

mod builtin;
mod calls;
mod deliveries;
mod error;
mod host;
mod import;
mod log;
mod logs;
mod metrics;
mod module;
mod otel_versions;
mod own;
pub(crate) mod recorder;
mod records;
mod search;
mod serving;
mod setup;
mod span_parts;
mod task;
mod trust;

pub use builtin::names as builtin_names;
pub use calls::{CallEvent, CallHeaders, CallHost, CallRequest, CallSink, offer_calls};
pub use error::{HookError, ModuleError};
pub use host::{TaskHost, TaskSubmission, Waited, offer_tasks};
pub use import::ImportString;
pub use log::{log_in, log_to_standard_error};
pub use logs::EXTENSION as LOGS_EXTENSION;
pub use metrics::offer_metrics;
pub use module::{HookDescription, Module, ModuleDescription, ParameterDescription, TaskDescription, note_in};
pub use otel_versions::{OtelVersion, advice as otel_advice};
pub use own::{OwnSettings, OwnTracing, random};
pub use recorder::{ActiveSpan, Attribute, AttributePrefix, PutAttribute, Recorder, RunningTask, SCOPE, SpanRequest};
pub use search::{Located, SearchPath, locate_in};
pub use serving::{
    Answered, LoadedDeployment, ModuleHeaders, ModulePiece, ModuleResponse, NewRequest, RequestEvents, RequestHost,
    ServingSettings,
};
pub use setup::{HookCheck, HookRun, check_hook, owners, run_hook};
pub use span_parts::{AttributeList, client_text};
pub use task::{
    ActorState, CallArguments, LoadedActor, LoadedTask, TaskContext, is_to_stop, set_stops, was_told_to_stop,
};
pub use tracer_core::HookContract;
pub use tracer_core::module_name::is_path;
pub use trust::changeable_by_others;
