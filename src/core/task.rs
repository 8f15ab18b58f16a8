//! Tasks as values: what was asked for, and how it ended.
//!
//! A *task* is one unit of work that someone asked for. Its [`Envelope`] is the immutable description that travels from the
//! driver through the head to a worker; the head keeps the bytes as they came. An *attempt* is one execution of it. Its
//! [`Outcome`] is recorded once. This module holds no state and decides nothing.

mod attempt;
mod demand;
mod envelope;
mod id;
mod module_version;
mod outcome;
mod policy;
mod refusal;
mod span_names;

pub use attempt::{AttemptReport, PastAttempts, SpanLink};
pub use demand::Demand;
pub use envelope::module_stem;
pub use envelope::{
    ActorOptions, ActorRole, ClockOffsets, CommandSpec, Envelope, EnvelopeHead, FunctionSpec, Input, InputSource,
    TaskSpec, TraceLink,
};
pub use id::{JobId, TaskId, WorkerId};
pub use module_version::ModuleVersion;
pub use outcome::{Failure, MemoryExceeded, OUT_OF_MEMORY, Outcome, SignalName, StopReason, TimeLimit, describe_exit};
pub use policy::{Charge, Policy, RETRY_BACKOFF_CAP, Verdict, charge};
pub use refusal::{Refusal, RefusalCode};
pub use span_names::{SpanNameTable, SpanNames};
pub use tracer_options::{
    Amounts, DEFAULT_CRASH_LIMIT, DEFAULT_GRACE, DEFAULT_RETRY_BACKOFF, ExtraOptions, TaskOptions, check_resource,
    check_retry_on, parse_resource, sort_resources,
};
