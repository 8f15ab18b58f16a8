//! The contract between `tracer` (the *host*) and the shared libraries it loads (*modules*).
//!
//! A module exports tasks, actors, deployments, tracing hooks. This crate holds the types that cross the
//! boundary and nothing else: it has no dependencies and allocates nothing. Authors in Rust
//! use `tracer-sdk`, which wraps it; authors in C use `tracer_abi.h`, which is generated from it.
//!
//! # Compatibility
//!
//! The first five fields of [`Module`] never change. They let a host of any age read which version
//! of the rest a module speaks. A module works with a host of the same [`ABI_MAJOR`]; the host reads
//! modules of an older or newer [`ABI_MINOR`].
//!
//! # Rules that hold for every item here
//!
//! 1. Every struct that may grow begins with `size`, the size its writer compiled. A reader uses
//!    the smaller of that and its own, and treats what is missing as zero. Fields are appended,
//!    never moved or renumbered. Arrays of such structs are arrays of pointers, so that an
//!    element may grow too.
//! 2. Function pointers are nullable. A null entry means that the operation is not offered.
//! 3. [`Str`] and [`Bytes`] are borrowed for the duration of the call and copied by the callee if it
//!    keeps them. `Str` is UTF-8 without a terminating NUL; invalid UTF-8 is decoded lossily.
//!    Strings in [`Module`] and what it points to live as long as the process.
//! 4. Whoever allocates frees: each handle has its own release function in the table that made it.
//! 5. No panic, exception or `longjmp` crosses the boundary, in either direction.
//! 6. Times are nanoseconds since the Unix epoch; 0 means now. Timeouts are milliseconds.
//! 7. Enumerations are `uint32_t`. A reader maps a value it does not know to the documented default.
//! 8. A module is never unloaded.
//! 9. Modules are trusted: they run in the process and may do whatever it may do.
//!
//! # Who calls whom
//!
//! Functions that the host calls in a module begin with `on_`; functions that a module calls in the host begin
//! with `host_`. The functions of [`Tracing`] have no prefix, because the same table serves in both
//! directions: a hook hands one to the host, and the host lends a table of its own to the modules.

#![warn(missing_docs)]
#![no_std]

use core::ffi::c_void;
use core::ptr;

/// The major version of this contract. A host refuses a module whose major version differs.
pub const ABI_MAJOR: u32 = 1;
/// The minor version of this contract. It grows with every appended field.
pub const ABI_MINOR: u32 = 6;
/// The first field of every [`Module`]: the bytes `TRACERMO`, read as a little-endian integer.
pub const MODULE_MAGIC: u64 = 0x4f4d_5245_4341_5254;
/// The one symbol a module exports, of type [`ModuleEntry`].
pub const ENTRY_SYMBOL: &str = "tracer_module";

/// Done.
pub const STATUS_OK: u32 = 0;
/// It failed; where the function takes a [`TextBuffer`], the reason is there.
pub const STATUS_FAILED: u32 = 1;
/// The code behind the function panicked; the panic was caught on the side where it happened.
pub const STATUS_PANICKED: u32 = 2;
/// It was not done within the time given.
pub const STATUS_TIMED_OUT: u32 = 3;
/// There was nothing left to do: it was shut down before.
pub const STATUS_ALREADY: u32 = 4;
/// [`Tracing::commit`] only: the spans are not on this machine's disk, they go to an exporter at its own pace.
pub const STATUS_NOT_DURABLE: u32 = 5;
/// Spans only: they were not taken, because as many are under way as there may be. Whoever has them keeps them.
pub const STATUS_FULL: u32 = 6;
/// Spans only: whoever was to have them will never take them, so nobody need try again.
pub const STATUS_REFUSED: u32 = 7;
/// [`Host::host_wait`] only: the attempt that waits is to end, because it was cancelled or has run for too long.
pub const STATUS_CANCELLED: u32 = 8;
/// [`Tracing::commit`] only: it is done, but for spans that the table has given up. [`Tracing::lost`] counts them, and the reason is where
/// that of a failure would be. Since ABI 1.6.
pub const STATUS_LOST: u32 = 9;
/// [`Host::host_measure`] only: it is done, and the current span would be welcome. Since ABI 1.6.
pub const STATUS_WANTS_SPAN: u32 = 10;

/// A borrowed string: UTF-8, not NUL-terminated. Empty when `len` is 0, whatever `ptr` is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Str {
    /// Owner: whoever filled the struct in. Valid until the call returns (rule 3).
    pub ptr: *const u8,
    /// In bytes.
    pub len: usize,
}

/// Borrowed bytes. Empty when `len` is 0, whatever `ptr` is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Bytes {
    /// Owner: whoever filled the struct in. Valid until the call returns (rule 3).
    pub ptr: *const u8,
    /// In bytes.
    pub len: usize,
}

/// A buffer lent by the caller, for a text that the callee writes.
#[repr(C)]
#[derive(Debug)]
pub struct TextBuffer {
    /// Owner: the caller. The callee writes at most `capacity` bytes.
    pub ptr: *mut u8,
    /// In bytes.
    pub capacity: usize,
    /// Set by the callee: the length of the whole text, which may exceed `capacity`; the text is then cut.
    pub len: usize,
}

/// Entry function of a module, which it exports under the name [`ENTRY_SYMBOL`]. Returns the module's record, which lives as long as the process, or
/// null when it cannot be made.
///
/// Called from: the host's loading thread, any number of times; every call returns the same record.
pub type ModuleEntry = unsafe extern "C" fn() -> *const Module;

/// Record of a module: its description, and the functions that it exports.
#[repr(C)]
#[derive(Debug)]
pub struct Module {
    /// [`MODULE_MAGIC`].
    pub magic: u64,
    /// The size of this struct, as the module compiled it.
    pub size: usize,
    /// [`ABI_MAJOR`], as the module compiled it.
    pub abi_major: u32,
    /// [`ABI_MINOR`], as the module compiled it.
    pub abi_minor: u32,
    /// Builder of the module: SDK, compiler and OpenTelemetry with their versions, for people to read.
    pub producer: Str,
    // The fields above never change.
    /// The version of the module itself.
    pub version: Str,
    /// `hook_count` pointers.
    pub hooks: *const *const Hook,
    /// Number of hooks that the module exports.
    pub hook_count: usize,
    /// `task_count` pointers.
    pub tasks: *const *const Task,
    /// Number of tasks that the module exports.
    pub task_count: usize,
    /// Makes the module ready to run tasks: its OpenTelemetry provider becomes a proxy for the table that
    /// the host lends. Null when there is nothing to do.
    ///
    /// Called from: the host's loading thread, once, before the first task runs, and after the
    /// process's hook has run. `host` lives as long as the process.
    /// On failure: returns a status other than [`STATUS_OK`] with the reason in `error`; no task of the module is run.
    pub on_load: Option<unsafe extern "C" fn(host: *const Host, error: *mut TextBuffer) -> u32>,
    /// `actor_count` pointers. Since ABI 1.2, as what follows.
    pub actors: *const *const Actor,
    /// Number of types of actors that the module exports.
    pub actor_count: usize,
    /// `deployment_count` pointers. Since ABI 1.6, as what follows.
    pub deployments: *const *const Deployment,
    /// Number of deployments that the module exports.
    pub deployment_count: usize,
}

/// Functions and values that the host lends to a module for as long as the process lives.
#[repr(C)]
#[derive(Debug)]
pub struct Host {
    /// The size of this struct, as the host compiled it.
    pub size: usize,
    /// [`ABI_MAJOR`] of the host.
    pub abi_major: u32,
    /// [`ABI_MINOR`] of the host.
    pub abi_minor: u32,
    /// Tracing table that the module's spans go to, or null when this process is not traced.
    /// Owner: the host. Lives as long as the process.
    pub tracing: *const Tracing,
    /// Writes a line to the host's log. `level` is one of the `LOG_` constants; unknown ones are taken as [`LOG_INFO`].
    ///
    /// Called from: any thread.
    pub host_log: Option<unsafe extern "C" fn(level: u32, text: Str)>,

    // What follows lets tasks submit tasks. A host that is older than ABI 1.1 has none of it; one in which nothing can be
    // submitted returns `STATUS_FAILED` with the reason.
    /// Submits a task for the one that runs, and fills in a *ticket*, which names it in this process. It need not be
    /// accepted yet when this returns.
    /// Owner of the ticket: the caller, until `host_forget`.
    ///
    /// Called from: any thread, while the task that submits runs.
    pub host_submit:
        Option<unsafe extern "C" fn(submission: *const Submission, ticket: *mut u64, error: *mut TextBuffer) -> u32>,
    /// Waits until `wanted` of the `count` tasks have ended, however they ended, and at most `timeout_ms`, where the largest value is
    /// for ever. `ended`, unless it is null, is filled with a 1 for each that has ended and a 0 for each other.
    ///
    /// While it waits, the process gives its slot back, and the head may run another task in its place, or in this
    /// very process on a thread of the host's.
    ///
    /// Called from: any thread. Returns [`STATUS_TIMED_OUT`] when time was up; a timeout of 0 only looks. Returns [`STATUS_CANCELLED`], at
    /// once, when the attempt that submitted the first of the tasks is to end and had not been told so when the wait began: this tells
    /// it, as `host_is_cancelled` does. What has been told may wait again, for what it cleans up.
    pub host_wait: Option<
        unsafe extern "C" fn(
            tickets: *const u64,
            count: usize,
            wanted: usize,
            timeout_ms: u64,
            ended: *mut u8,
            error: *mut TextBuffer,
        ) -> u32,
    >,
    /// Hands the outcome of a task that has ended to one of the callbacks, exactly one of which is called, before this returns. An
    /// outcome can be taken once. Returns [`STATUS_TIMED_OUT`], and calls neither, when the task has not ended.
    ///
    /// Called from: any thread. `data` is handed back.
    pub host_take: Option<
        unsafe extern "C" fn(
            ticket: u64,
            data: *mut c_void,
            on_value: Option<unsafe extern "C" fn(data: *mut c_void, value: Bytes)>,
            on_error: Option<unsafe extern "C" fn(data: *mut c_void, error: *const TaskError)>,
        ) -> u32,
    >,
    /// Calls `on_ended` exactly once: when the task has ended, which may be before this returns, or when its ticket is given
    /// back. When this fails, `on_ended` is not called. It must not block.
    ///
    /// Called from: any thread; so is `on_ended`.
    pub host_watch: Option<
        unsafe extern "C" fn(
            ticket: u64,
            data: *mut c_void,
            on_ended: Option<unsafe extern "C" fn(data: *mut c_void)>,
            error: *mut TextBuffer,
        ) -> u32,
    >,
    /// Returns the task's id, and waits until it is accepted if need be. 0 when it was refused.
    ///
    /// Called from: any thread.
    pub host_task_id: Option<unsafe extern "C" fn(ticket: u64) -> u64>,
    /// Gives a ticket back. The task runs on; nobody in this process can get its result any more.
    ///
    /// Called from: any thread.
    pub host_forget: Option<unsafe extern "C" fn(ticket: u64)>,
    /// Returns 1 if the attempt at that task is to end: because it was cancelled, or has run for too long; else 0, also for one that does not run. An
    /// attempt that was told 1, and ends, is cancelled, whatever it returns.
    ///
    /// Called from: any thread.
    pub host_is_cancelled: Option<unsafe extern "C" fn(task_id: u64, attempt: u32) -> u8>,

    // What follows is for actors, since ABI 1.2. In a host that is older, a submission that has to do with an actor is taken
    // for that of a task; so whoever submits one looks whether these are there.
    /// Finds an actor by its name, or by its id in decimal digits, and hands it to `on_found` before this returns. Returns
    /// [`STATUS_FAILED`] with the reason when there is none.
    ///
    /// Called from: any thread. `data` is handed back.
    pub host_find_actor: Option<
        unsafe extern "C" fn(
            wanted: Str,
            data: *mut c_void,
            on_found: Option<unsafe extern "C" fn(data: *mut c_void, actor: *const ActorIdentity)>,
            error: *mut TextBuffer,
        ) -> u32,
    >,
    /// Ends an actor: what waits for it fails, what runs may take `grace_ms`, where 0 ends it at once. One that has ended is none.
    ///
    /// Called from: any thread.
    pub host_end_actor: Option<unsafe extern "C" fn(actor_id: u64, grace_ms: u64, error: *mut TextBuffer) -> u32>,

    // What follows is for log records, since ABI 1.6.
    /// Takes a log record: when this returns, the end of the process cannot lose it. One below `log_severity` is left out. Null where nobody takes
    /// records: in an older host, and in a process that is not traced.
    ///
    /// Called from: any thread. Everything is borrowed for the call. Returns [`STATUS_FULL`] for a record that is lost because the disk takes no more.
    pub host_log_record: Option<unsafe extern "C" fn(record: *const LogRecord) -> u32>,
    /// Least severity that is wanted, by OpenTelemetry's numbers (`SEVERITY_`).
    pub log_severity: u32,
    /// Forms that events of a library for logging and tracing take, such as those of Rust's `tracing`: `EVENTS_AS_` constants, added. 0 in an
    /// older host, which takes span events.
    pub log_events: u32,

    // What follows is for calls of deployments, since ABI 1.6. Null in an older host.
    /// Calls a deployment of a service, without waiting: `on_event` is told what comes of it, and `number` is filled with a number that names the call
    /// in this process. A deployment that there is not fails the call by an event.
    ///
    /// Called from: any thread. `on_event` is called from any thread, also before this returns, from one at a time for one call. It must not block.
    /// Its last event is [`CALL_RELEASED`], after which `data` is not used any more; when this fails, the only one.
    pub host_call: Option<
        unsafe extern "C" fn(
            call: *const Call,
            data: *mut c_void,
            on_event: Option<unsafe extern "C" fn(data: *mut c_void, event: *const CallEvent)>,
            number: *mut u64,
            error: *mut TextBuffer,
        ) -> u32,
    >,
    /// Says that so many bytes of an answer's body were used, so that more of it may come.
    ///
    /// Called from: any thread.
    pub host_call_consumed: Option<unsafe extern "C" fn(number: u64, bytes: usize)>,
    /// Gives a call up, if it has not ended: the replica's request is cancelled.
    ///
    /// Called from: any thread.
    pub host_call_cancel: Option<unsafe extern "C" fn(number: u64)>,

    // What follows is for metrics, since ABI 1.6. All of it is there, or nothing.
    /// Returns an instrument, the same one for the same description; null when it cannot be made, with the reason in the host's log.
    /// Owner: the host. It lives as long as the process.
    ///
    /// Called from: any thread. Everything is borrowed for the call.
    pub host_instrument: Option<unsafe extern "C" fn(instrument: *const Instrument) -> *mut c_void>,
    /// Takes a value: when this returns, the end of the process cannot lose it. One of an observable instrument is taken in an observer only.
    ///
    /// Called from: any thread. Everything is borrowed for the call. Returns [`STATUS_WANTS_SPAN`] when the value is taken and no span was
    /// named, where one would be welcome as an exemplar: `host_exemplar` takes it. Returns [`STATUS_REFUSED`] for a value
    /// that the instrument does not take: below zero for a sum that grows or a distribution, or no finite number.
    pub host_measure: Option<unsafe extern "C" fn(instrument: *mut c_void, measurement: *const Measurement) -> u32>,
    /// Takes the span of a value that was taken before, as an exemplar. One that is not sampled is left out.
    ///
    /// Called from: any thread. Everything is borrowed for the call.
    pub host_exemplar: Option<unsafe extern "C" fn(instrument: *mut c_void, measurement: *const Measurement)>,
    /// Adds an observer: a function that measures with observable instruments, whenever somebody wants their values. What it does not measure at
    /// one time has no value then. Returns [`STATUS_FAILED`] when the process has no thread for it.
    ///
    /// Called from: any thread. `observe` is called from a thread of the host's, one at a time, as long as the process lives; `data` is handed back.
    pub host_observe: Option<
        unsafe extern "C" fn(data: *mut c_void, observe: Option<unsafe extern "C" fn(data: *mut c_void)>) -> u32,
    >,
}

/// An instrument of metrics, as OpenTelemetry's API has it. Since ABI 1.6.
#[repr(C)]
#[derive(Debug)]
pub struct Instrument {
    /// The size of this struct, as the module compiled it.
    pub size: usize,
    /// Kind of the instrument: one of the `INSTRUMENT_` constants.
    pub kind: u32,
    /// Type of its values: one of the `NUMBER_` constants.
    pub number: u32,
    /// Its name. Not empty.
    pub name: Str,
    /// Unit by UCUM, such as `s` or `By`; empty for none.
    pub unit: Str,
    /// Description for people; empty for none.
    pub description: Str,
    /// Name of the instrumentation scope.
    pub scope: Str,
    /// Version of the scope; empty for none.
    pub scope_version: Str,
    /// Upper boundaries of the buckets of a histogram, each above the one before, at most 200; null for those of OpenTelemetry's specification.
    pub boundaries: *const f64,
    /// Number of boundaries.
    pub boundary_count: usize,
}

/// A sum that only grows.
pub const INSTRUMENT_COUNTER: u32 = 1;
/// A sum that grows and shrinks.
pub const INSTRUMENT_UP_DOWN_COUNTER: u32 = 2;
/// A distribution of values.
pub const INSTRUMENT_HISTOGRAM: u32 = 3;
/// The latest value.
pub const INSTRUMENT_GAUGE: u32 = 4;
/// A sum that only grows, which an observer measures whole.
pub const INSTRUMENT_OBSERVABLE_COUNTER: u32 = 5;
/// A sum that grows and shrinks, which an observer measures whole.
pub const INSTRUMENT_OBSERVABLE_UP_DOWN_COUNTER: u32 = 6;
/// The latest value, which an observer measures.
pub const INSTRUMENT_OBSERVABLE_GAUGE: u32 = 7;

/// Values are integers of 64 bits without a sign.
pub const NUMBER_U64: u32 = 1;
/// Values are integers of 64 bits.
pub const NUMBER_I64: u32 = 2;
/// Values are floating-point numbers of 64 bits.
pub const NUMBER_F64: u32 = 3;

/// A value of an instrument. Since ABI 1.6.
#[repr(C)]
pub struct Measurement {
    /// The size of this struct, as the module compiled it.
    pub size: usize,
    /// The value, in the instrument's type.
    pub value: Number,
    /// `attribute_count` attributes. Arrays are left out.
    pub attributes: *const KeyValue,
    /// Number of attributes.
    pub attribute_count: usize,
    /// The span in which it was measured; null for none, or to be asked for it.
    pub span_context: *const SpanContext,
}

/// A number in the type of its instrument.
#[repr(C)]
#[derive(Clone, Copy)]
pub union Number {
    /// [`NUMBER_U64`].
    pub u64_: u64,
    /// [`NUMBER_I64`].
    pub i64_: i64,
    /// [`NUMBER_F64`].
    pub f64_: f64,
}

/// A call of a deployment. Everything in it is borrowed for the call of [`Host::host_call`]. Since ABI 1.6.
#[repr(C)]
#[derive(Debug)]
pub struct Call {
    /// The size of this struct, as the module compiled it.
    pub size: usize,
    /// The deployment: its name, `application/name` or `service/application/name`. The caller's own application is searched first.
    pub deployment: Str,
    /// The method of HTTP; empty for a call of a method of the deployment, whose name is `target` and whose arguments are the body.
    pub method: Str,
    /// Path and query, or the name of the method.
    pub target: Str,
    /// The host that the request is for; empty for none.
    pub authority: Str,
    /// `header_count` headers, with names in lower case.
    pub headers: *const Header,
    /// Number of headers.
    pub header_count: usize,
    /// The whole body.
    pub body: Bytes,
    /// The id of the request that the call is made for; empty for a new one.
    pub request_id: Str,
    /// The current span of the caller, or null; the call's span is then the first of a trace.
    pub parent: *const SpanContext,
    /// The current W3C baggage header of the caller; empty for none. Read with `parent` only.
    pub baggage: Str,
    /// Time after which the answer is not wanted, in nanoseconds since the Unix epoch; 0 for never.
    pub deadline_unix_nano: u64,
    /// The model that the call is for; empty for none. A replica that has it is preferred.
    pub model: Str,
}

/// Something has come of a call. Everything in it is borrowed for the call of `on_event`. Since ABI 1.6.
#[repr(C)]
#[derive(Debug)]
pub struct CallEvent {
    /// The size of this struct, as the host compiled it.
    pub size: usize,
    /// One of the `CALL_` constants.
    pub kind: u32,
    /// The status of the answer, with [`CALL_HEAD`].
    pub status: u32,
    /// `header_count` headers of the answer, or trailers.
    pub headers: *const Header,
    /// Number of headers.
    pub header_count: usize,
    /// A piece of the body.
    pub bytes: Bytes,
    /// With [`CALL_FAILED`], what became of the call in a word, as the attribute `tracer.outcome` says it.
    pub outcome: Str,
    /// With [`CALL_FAILED`], the reason for people.
    pub message: Str,
}

/// The answer begins.
pub const CALL_HEAD: u32 = 1;
/// A piece of its body has come.
pub const CALL_BODY: u32 = 2;
/// Trailers have come.
pub const CALL_TRAILERS: u32 = 3;
/// The answer is whole, and the spans of the call have ended.
pub const CALL_ENDED: u32 = 4;
/// There is no answer, or no more of it.
pub const CALL_FAILED: u32 = 5;
/// Nothing follows, and the data of the call is not used any more.
pub const CALL_RELEASED: u32 = 6;

/// An event of a library for tracing becomes a log record with the ids of its span.
pub const EVENTS_AS_LOG_RECORDS: u32 = 1;
/// An event of a library for tracing becomes an event of its span.
pub const EVENTS_AS_SPAN_EVENTS: u32 = 2;

/// A log record, as OpenTelemetry's data model for logs has it. Since ABI 1.6.
#[repr(C)]
#[derive(Debug)]
pub struct LogRecord {
    /// The size of this struct, as the module compiled it.
    pub size: usize,
    /// Time of the event, in nanoseconds since the Unix epoch; 0 for now.
    pub time_unix_nano: u64,
    /// The span that it is in; null for none. In a task, [`TaskCall::span_context`] is that of the attempt.
    pub span_context: *const SpanContext,
    /// OpenTelemetry's severity number, 1 to 24, of which the `SEVERITY_` constants are the first of their names; 0 when it has none.
    pub severity: u32,
    /// Name of the severity in the module's language; empty for OpenTelemetry's.
    pub severity_text: Str,
    /// The instrumentation scope: which part of the program says it.
    pub target: Str,
    /// The message. More than 32 KiB are cut.
    pub body: Str,
    /// `attribute_count` attributes. All of a record has room in 64 KiB; attributes beyond that are counted as dropped.
    pub attributes: *const KeyValue,
    /// Number of attributes.
    pub attribute_count: usize,
}

/// OpenTelemetry's severity number of TRACE.
pub const SEVERITY_TRACE: u32 = 1;
/// OpenTelemetry's severity number of DEBUG.
pub const SEVERITY_DEBUG: u32 = 5;
/// OpenTelemetry's severity number of INFO.
pub const SEVERITY_INFO: u32 = 9;
/// OpenTelemetry's severity number of WARN.
pub const SEVERITY_WARN: u32 = 13;
/// OpenTelemetry's severity number of ERROR.
pub const SEVERITY_ERROR: u32 = 17;
/// OpenTelemetry's severity number of FATAL.
pub const SEVERITY_FATAL: u32 = 21;

/// An actor, as the head knows it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ActorIdentity {
    /// The size of this struct, as the host compiled it.
    pub size: usize,
    /// Its id, which is that of the task that makes it.
    pub actor_id: u64,
    /// The name of its module, or the path of the library.
    pub module: Str,
    /// The name of its type in it.
    pub type_name: Str,
    /// Reason why it is dead; empty while it is not.
    pub death: Str,
}

/// A task to submit from a task.
#[repr(C)]
#[derive(Debug)]
pub struct Submission {
    /// The size of this struct, as the module compiled it.
    pub size: usize,
    /// The task that submits: [`TaskCall::task_id`], or 0 for the one that the process runs.
    pub submitter: u64,
    /// The name of the module, or the path of its library.
    pub module: Str,
    /// The function's name in it.
    pub function: Str,
    /// A MessagePack array of the arguments, in order; nil where a reference stands.
    pub arguments: Bytes,
    /// `reference_count` arguments whose values are the results of other tasks.
    pub references: *const Reference,
    /// Number of references.
    pub reference_count: usize,
    /// A name for the task, for people; empty for none.
    pub name: Str,
    /// The longest an attempt may run, in milliseconds; 0 for no limit.
    pub run_limit_ms: u64,
    /// The current span of the caller, or null; the submission's span is then a child of the submitter's.
    pub parent: *const SpanContext,
    /// The current W3C baggage header of the caller; empty for none. Read with `parent` only.
    pub baggage: Str,
    /// The actor that the task is a method of, with `function` as `Type.method`; 0 for none. Since ABI 1.2.
    pub actor_id: u64,
    /// Not null if the task makes an actor, with `function` as `Type.new`. Since ABI 1.2.
    pub actor_options: *const ActorOptions,
    /// Policy for an attempt that fails, or null for the default one. Since ABI 1.2.
    pub policy: *const Policy,
    /// Slots and resources that it needs while it runs, or null for a slot and nothing else. A host that is older gives it a slot, so whoever says
    /// something else looks at [`Host::abi_minor`]. Not for actors. Since ABI 1.3.
    pub demand: *const Demand,
    /// Options of the task that have no field here or in [`Policy`] and [`Demand`]: a MessagePack map from their names to their values, which are
    /// those of the HTTP API, such as `grace_ms`; empty for none. What the host does not know is refused. A host that is older ignores
    /// them, so whoever says something here looks at [`Host::abi_minor`]. Since ABI 1.6.
    pub options: Bytes,
}

/// Slots and resources that a task needs while it runs. Since ABI 1.3.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// The size of this struct, as the module compiled it. Since ABI 1.3.
    pub size: usize,
    /// Number of slots that it takes. With 0 it takes none, and runs as soon as there is a process for it. Since ABI 1.3.
    pub num_cpus: u32,
    /// `resource_count` resources that it takes, each once. Since ABI 1.3.
    pub resources: *const Resource,
    /// Number of resources. Since ABI 1.3.
    pub resource_count: usize,
    /// The most memory of an attempt, in bytes: that of its worker process with everything that it starts; 0 for what every
    /// worker may take. Since ABI 1.3.
    pub memory_bytes: u64,
}

/// An amount of a resource of the head. Since ABI 1.3.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Resource {
    /// The resource's name. Since ABI 1.3.
    pub name: Str,
    /// Amount of it; at least 1. Since ABI 1.3.
    pub amount: u64,
}

/// Policy for an attempt at a task that fails. Since ABI 1.2.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// The size of this struct, as the module compiled it.
    pub size: usize,
    /// Limit of how often it is tried again after failures of its own.
    pub retries: u32,
    /// Limit of how often it is started again after its worker was lost.
    pub crash_limit: u32,
    /// The wait before the first retry, in milliseconds. It doubles with each further one, up to a minute.
    pub retry_backoff_ms: u64,
    /// Failures of its own that are tried again: kinds as `tracer submit task --retry-on` takes them; empty for the usual ones.
    pub retry_on: Str,
    /// Submissions with the same key are one task; empty for none.
    pub idempotency_key: Str,
    /// The longest it may wait until its first attempt begins, in milliseconds; 0 for no limit.
    pub queue_limit_ms: u64,
    /// 1 if it must never be started a second time, else 0.
    pub at_most_once: u8,
}

/// Options of an actor.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ActorOptions {
    /// The size of this struct, as the module compiled it.
    pub size: usize,
    /// A name of its own, by which others find it; empty for none.
    pub name: Str,
    /// Limit of how often it is made again after its worker was lost.
    pub max_restarts: u32,
    /// Limit of how often a call is run again that was going on when its worker was lost.
    pub max_call_retries: u32,
    /// The `ACTOR_` constants, added up.
    pub flags: u32,
}

/// The actor outlives the job that makes it.
pub const ACTOR_DETACHED: u32 = 1;
/// A living actor of this type with the name is taken, if there is one.
pub const ACTOR_OR_EXISTING: u32 = 2;

/// An argument whose value is the result of another task.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Reference {
    /// Index of the argument, from 0.
    pub argument: usize,
    /// The ticket of the task.
    pub ticket: u64,
}

/// Something is lost or will not work.
pub const LOG_ERROR: u32 = 1;
/// Something works less well than asked for.
pub const LOG_WARN: u32 = 2;
/// Worth knowing once.
pub const LOG_INFO: u32 = 3;

/// A tracing hook: the function that sets up tracing in a process.
#[repr(C)]
#[derive(Debug)]
pub struct Hook {
    /// The size of this struct, as the module compiled it.
    pub size: usize,
    /// The attribute in `module:attribute`.
    pub name: Str,
    /// Description of the hook, for people to read; its first line is a summary.
    pub doc: Str,
    /// Sets up tracing and returns the table to use.
    ///
    /// Called from: a thread of the host's choosing, once per process. It may take its time up to the host's
    /// limit (10 s by default) and may start threads.
    /// On failure: returns a status other than [`STATUS_OK`] with the reason in `error`, and leaves `tracing` alone.
    /// Owner of the table: the module. It lives as long as the process.
    pub on_setup:
        Option<unsafe extern "C" fn(hook: *const Hook, tracing: *mut *const Tracing, error: *mut TextBuffer) -> u32>,
    /// Contract of the function: one of the `HOOK_` constants; an unknown one is taken as [`HOOK_STARTUP`].
    pub contract: u32,
}

/// A startup hook: it says all of how the process is traced.
pub const HOOK_STARTUP: u32 = 0;
/// An exporter: it says where spans go, and nothing else. Ids, sampling and resource are the product's.
pub const HOOK_EXPORTER: u32 = 1;

/// The OpenTelemetry tracing API as a table: provider, tracer and span.
///
/// Threads: every function may be called from any thread. Calls for one span handle never overlap: the host
/// sees to that for hooks, and a module that uses the host's table from several threads must do so itself
/// for its own spans, save for the task's span, which the host guards.
///
/// A handle stays valid after [`Tracing::shutdown`]; what happens to spans from then on is up to the table.
#[repr(C)]
#[derive(Debug)]
pub struct Tracing {
    /// The size of this struct, as its maker compiled it.
    pub size: usize,
    /// Handed back in every call that takes `data`. Owner: the table's maker.
    pub data: *mut c_void,

    /// Returns a tracer for an instrumentation scope, or null when nothing it makes would be recorded.
    /// Owner of the handle: the caller, until `tracer_release`.
    pub tracer: Option<unsafe extern "C" fn(data: *mut c_void, scope: *const Scope) -> *mut c_void>,
    /// Gives a tracer back. Spans it made stay valid.
    pub tracer_release: Option<unsafe extern "C" fn(tracer: *mut c_void)>,

    /// Starts a span. Fills in `started` and returns a handle; null for a span that is not recorded and
    /// needs no handle (`started` is valid all the same, and says what to propagate). The host never passes a
    /// null `started`; a module that passes one gets its handle, and does not learn the span's ids.
    /// Owner of the handle: the caller, until `span_release` or `span_end_and_release`.
    pub span_start: Option<
        unsafe extern "C" fn(tracer: *mut c_void, span: *const SpanStart, started: *mut SpanStarted) -> *mut c_void,
    >,
    /// Copies the span's tracestate into `text`. Null when tracers never change it: it is then the parent's.
    pub span_trace_state: Option<unsafe extern "C" fn(span: *mut c_void, text: *mut TextBuffer)>,
    /// Sets attributes. A key that was set before is replaced.
    pub span_set_attributes: Option<unsafe extern "C" fn(span: *mut c_void, attributes: *const KeyValue, count: usize)>,
    /// Adds a span event.
    pub span_add_event: Option<unsafe extern "C" fn(span: *mut c_void, event: *const Event)>,
    /// Adds a link.
    pub span_add_link: Option<unsafe extern "C" fn(span: *mut c_void, link: *const Link)>,
    /// Sets the status: one of the `SPAN_STATUS_` constants; an unknown one is ignored.
    pub span_set_status: Option<unsafe extern "C" fn(span: *mut c_void, code: u32, description: Str)>,
    /// Replaces the name.
    pub span_update_name: Option<unsafe extern "C" fn(span: *mut c_void, name: Str)>,
    /// Ends the span. A second call does nothing.
    pub span_end: Option<unsafe extern "C" fn(span: *mut c_void, end_time_unix_nano: u64)>,
    /// Gives the handle back; ends the span if it has not ended.
    pub span_release: Option<unsafe extern "C" fn(span: *mut c_void)>,

    /// Puts every span that has ended before this call where a SIGKILL of the process cannot reach it. Returns
    /// [`STATUS_OK`] when that is done, [`STATUS_NOT_DURABLE`] when this table sends spans over a network and
    /// keeps no file, [`STATUS_FAILED`] when it should have worked and is to be tried again, [`STATUS_LOST`] when it is done but for
    /// spans that nobody will have. Null means [`STATUS_NOT_DURABLE`].
    ///
    /// Called from: the thread that sends results, before every batch of them. It must not wait for a network.
    pub commit: Option<unsafe extern "C" fn(data: *mut c_void, error: *mut TextBuffer) -> u32>,
    /// Delivers what is still queued.
    pub flush: Option<unsafe extern "C" fn(data: *mut c_void, timeout_ms: u64, error: *mut TextBuffer) -> u32>,
    /// Delivers what is still queued and ends. A second call returns [`STATUS_ALREADY`].
    pub shutdown: Option<unsafe extern "C" fn(data: *mut c_void, timeout_ms: u64, error: *mut TextBuffer) -> u32>,

    /// The OpenTelemetry resource of the spans. Owner: the table's maker; lives as long as the process.
    pub resource: *const KeyValue,
    /// Number of attributes of the resource; 0 when the maker does not say.
    pub resource_count: usize,
    /// Description of what the table does with spans, in a few words for people to read, such as `/tmp/spans/<pid>.json`.
    pub description: Str,

    /// Takes the listener that is to hear which ended spans were delivered. Null for a table that sends nothing over a
    /// network, or cannot tell: the host then takes a span as delivered once `commit` has covered it.
    ///
    /// Called from: the thread that sets up tracing, once, before the first span. `listener` lives as long as the process.
    pub listen: Option<unsafe extern "C" fn(data: *mut c_void, listener: *const DeliveryListener) -> u32>,
    /// The span sink: takes finished spans that did not begin in this table, of another process or under another hook, and
    /// delivers them at its own pace, with the resource and the ids that they have. Returns [`STATUS_OK`] when it has
    /// them: then [`FinishedSpans::host_delivered`] is called, once, perhaps before this returns. Any other status, with the
    /// reason in `error`, means that it did not take them. Null for a table that cannot take such spans.
    ///
    /// Called from: any thread. It must not wait for a network.
    pub sink_export:
        Option<unsafe extern "C" fn(data: *mut c_void, spans: *const FinishedSpans, error: *mut TextBuffer) -> u32>,

    /// The file in which this table keeps the spans of its process, when `span_file_format` says in which form; its name begins
    /// with the process id and a dot. When the process has died, the host appends what it completes.
    /// Owner: the table's maker; lives as long as the process.
    pub span_file: Str,
    /// One of the `SPAN_FILE_` constants. 0, and a format that the host does not know, mean that the host writes to a file of its own.
    pub span_file_format: u32,

    /// Ends the span at this time, if it has not ended, and gives the handle back: `span_end` and `span_release` in one call, as
    /// nearly every span needs them. Null where the two are to be called. Since ABI 1.5.
    pub span_end_and_release: Option<unsafe extern "C" fn(span: *mut c_void, end_time_unix_nano: u64)>,

    /// Ends the table in a process that is about to exit and leaves its undelivered spans to the host: begins no further delivery, and
    /// waits for those that are under way no longer than `timeout_ms`. The host brings on every span of which its listener was not told.
    /// Null for a table that has deliveries of which it does not tell; then `shutdown` is called. Since ABI 1.6.
    ///
    /// Called from: any thread, once, in place of `shutdown`.
    pub hand_back: Option<unsafe extern "C" fn(data: *mut c_void, timeout_ms: u64, error: *mut TextBuffer) -> u32>,

    /// Counts the ended spans that this table has given up since it was made: they are not on the disk, and nobody will try again. Null for
    /// a table that gives up none, or does not count them. Since ABI 1.6.
    ///
    /// Called from: whichever thread has called `commit`, when that returned neither [`STATUS_OK`] nor [`STATUS_NOT_DURABLE`].
    pub lost: Option<unsafe extern "C" fn(data: *mut c_void) -> u64>,

    /// Takes log records of this process, to be delivered at the table's own pace: an OTLP `ExportLogsServiceRequest`
    /// (`opentelemetry/proto/collector/logs/v1`), encoded. `flush` and `shutdown` count for them too. The host keeps them on the disk whatever this
    /// returns. Null for a table that takes none. Since ABI 1.6.
    ///
    /// Called from: any thread, one at a time. It must not wait for a network. `request` is borrowed for the call.
    pub log_export: Option<unsafe extern "C" fn(data: *mut c_void, request: Bytes, error: *mut TextBuffer) -> u32>,
}

/// The objects of OpenTelemetry's Python console exporter, one a line.
pub const SPAN_FILE_CONSOLE: u32 = 1;
/// OTLP in JSON, one `TracesData` with one span a line.
pub const SPAN_FILE_OTLP: u32 = 2;

/// Listener of the host, which a hook tells about the spans that its exporters have dealt with.
#[repr(C)]
#[derive(Debug)]
pub struct DeliveryListener {
    /// The size of this struct, as the host compiled it.
    pub size: usize,
    /// Handed back in every call. Owner: the host.
    pub data: *mut c_void,
    /// Most ended spans that may be under way at once; a further one is given back with [`STATUS_FULL`]. 0 for any number.
    pub in_flight_max: usize,
    /// Says of ended spans, each once, that every exporter has them ([`STATUS_OK`]), that they could not be delivered
    /// ([`STATUS_FAILED`]), that they were not even tried ([`STATUS_FULL`]), or that they never can be delivered
    /// ([`STATUS_REFUSED`]). The host keeps those of the two in the middle and offers them again to a span sink.
    ///
    /// Called from: any thread, also from within a call that ends a span. `count` identities at `spans`.
    pub host_delivered:
        Option<unsafe extern "C" fn(data: *mut c_void, spans: *const SpanIdentity, count: usize, status: u32)>,
    /// For so many milliseconds from now on, a table that has `hand_back` begins no delivery: it gives each ended span back at once, with
    /// [`STATUS_FULL`]. For processes that are likely to exit before an answer could come. 0 for none. Since ABI 1.6.
    pub quiet_ms: u64,
    /// Tells that the receiver of the spans is not to be asked for `pause_ms` milliseconds: it has asked for that, when `failures` is 0,
    /// or has failed so many times in a row. 0 and 0 when it has taken spans again. It counts for all processes of the session. Null in a
    /// host that does not pass it on. Since ABI 1.6.
    ///
    /// Called from: any thread.
    pub host_pause: Option<unsafe extern "C" fn(data: *mut c_void, pause_ms: u64, failures: u32)>,
    /// Returns the milliseconds that are left of the pause that a process of the session has told of, 0 when the receiver may be asked, and
    /// writes to `failures`, unless that is null, what was told of failures with it. Since ABI 1.6.
    ///
    /// Called from: any thread, before spans are sent.
    pub host_pause_left: Option<unsafe extern "C" fn(data: *mut c_void, failures: *mut u32) -> u64>,
    /// Counts log records that the table has taken and given up: no receiver gets them. The host has them on the disk. Null in a host that does not
    /// count them. Since ABI 1.6.
    ///
    /// Called from: any thread.
    pub host_log_records_given_up: Option<unsafe extern "C" fn(data: *mut c_void, count: u64)>,
}

/// Trace id and span id of a span.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanIdentity {
    /// Most significant byte first.
    pub trace_id: [u8; 16],
    /// Most significant byte first.
    pub span_id: [u8; 8],
}

/// Finished spans on their way into a span sink.
#[repr(C)]
#[derive(Debug)]
pub struct FinishedSpans {
    /// The size of this struct, as the host compiled it.
    pub size: usize,
    /// An OTLP `ExportTraceServiceRequest` (`opentelemetry/proto/collector/trace/v1`), encoded.
    pub request: Bytes,
    /// One of the `SINK_` constants; an unknown one is taken as [`SINK_ALL`].
    pub wanted: u32,
    /// Handed back in `host_delivered`. Owner: the host.
    pub data: *mut c_void,
    /// Says what became of the spans: [`STATUS_OK`], [`STATUS_FAILED`], [`STATUS_REFUSED`], or [`STATUS_ALREADY`] when the
    /// table was shut down before.
    ///
    /// Called from: any thread.
    pub host_delivered: Option<unsafe extern "C" fn(data: *mut c_void, status: u32)>,
    /// Says how many of the spans never will be taken by their receiver although it took the others, before `host_delivered` says
    /// [`STATUS_OK`]. The host counts them as lost. A host that is older than ABI 1.1 has not got it.
    ///
    /// Called from: the thread that calls `host_delivered`.
    pub host_refused: Option<unsafe extern "C" fn(data: *mut c_void, count: u64)>,
}

/// Wherever the hook sends spans.
pub const SINK_ALL: u32 = 0;
/// Only where it sends spans over a network: what it keeps on this machine's disk has them.
pub const SINK_EXPORTERS: u32 = 1;

/// An instrumentation scope.
#[repr(C)]
#[derive(Debug)]
pub struct Scope {
    /// The size of this struct, as the caller compiled it.
    pub size: usize,
    /// The name of the instrumented library.
    pub name: Str,
    /// Its version; empty for none.
    pub version: Str,
    /// The schema URL; empty for none.
    pub schema_url: Str,
    /// `attribute_count` attributes.
    pub attributes: *const KeyValue,
    /// Number of attributes.
    pub attribute_count: usize,
}

/// The identity of a span, as it travels. All-zero ids mean that there is none.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SpanContext {
    /// The size of this struct, as the writer compiled it.
    pub size: usize,
    /// Most significant byte first.
    pub trace_id: [u8; 16],
    /// Most significant byte first.
    pub span_id: [u8; 8],
    /// W3C trace flags: bit 0 sampled, bit 1 random trace id.
    pub trace_flags: u8,
    /// 1 when the context came from another process.
    pub is_remote: u8,
    /// The W3C tracestate header; empty for none.
    pub trace_state: Str,
}

/// Everything a span begins with.
#[repr(C)]
#[derive(Debug)]
pub struct SpanStart {
    /// The size of this struct, as the caller compiled it.
    pub size: usize,
    /// The span's name.
    pub name: Str,
    /// One of the `SPAN_KIND_` constants; an unknown one is taken as [`SPAN_KIND_INTERNAL`].
    pub kind: u32,
    /// Time of its start, in nanoseconds since the Unix epoch; 0 for now.
    pub start_time_unix_nano: u64,
    /// The parent, or null for a new trace.
    pub parent: *const SpanContext,
    /// `attribute_count` attributes.
    pub attributes: *const KeyValue,
    /// Number of attributes.
    pub attribute_count: usize,
    /// `link_count` pointers.
    pub links: *const *const Link,
    /// Number of links.
    pub link_count: usize,
    /// `event_count` pointers.
    pub events: *const *const Event,
    /// Number of events.
    pub event_count: usize,
    /// The W3C baggage header of the parent context; empty for none. For span processors that copy baggage to attributes.
    pub baggage: Str,
    /// The task that the process runs, filled in by the host for hooks; null when it runs none. Modules leave it null.
    pub runtime: *const Runtime,
    /// Not 0 when the name and the first `prefix_count` of the attributes are the same for all spans of the process with this
    /// number, so that what was made of them once may be used again. Only the host says so, to hooks. Since ABI 1.4.
    pub prefix_id: u64,
    /// Number of these attributes. Since ABI 1.4.
    pub prefix_count: usize,
    /// Receiver of what a hook's sampler and its span processors put on the span while it starts, so that whoever completes the span has it too. Null
    /// when nobody wants to know. Only the host fills it in, for hooks. Since ABI 1.6.
    pub additions: *const SpanAdditions,
    /// The request to a service for which the span is made: a module fills it in for its handler's spans, the host for the span around the handler, and
    /// hooks get both. Null outside of requests. Since ABI 1.6.
    pub request: *const RunningRequest,
}

/// Callbacks for what a hook adds to a span that is starting, beyond what it was asked to start it with.
///
/// Called from: the thread in `span_start`, before that returns. Everything is borrowed for the call. Since ABI 1.6.
#[repr(C)]
#[derive(Debug)]
pub struct SpanAdditions {
    /// The size of this struct, as the host compiled it.
    pub size: usize,
    /// Handed back in every call. Owner: the host.
    pub data: *mut c_void,
    /// Attributes that were set. A key that was set before is replaced.
    pub host_set_attributes: Option<unsafe extern "C" fn(data: *mut c_void, attributes: *const KeyValue, count: usize)>,
    /// An event that was added.
    pub host_add_event: Option<unsafe extern "C" fn(data: *mut c_void, event: *const Event)>,
    /// A link that was added.
    pub host_add_link: Option<unsafe extern "C" fn(data: *mut c_void, link: *const Link)>,
    /// The status that was set.
    pub host_set_status: Option<unsafe extern "C" fn(data: *mut c_void, code: u32, description: Str)>,
    /// The name that the span has now.
    pub host_update_name: Option<unsafe extern "C" fn(data: *mut c_void, name: Str)>,
}

/// The task that a process runs, for span processors that put its ids on every span.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Runtime {
    /// The size of this struct, as the host compiled it.
    pub size: usize,
    /// The task's id.
    pub task_id: u64,
    /// The id of the job that the task belongs to.
    pub job_id: u64,
    /// The id of the worker that runs it.
    pub worker_id: u64,
    /// The machine, as spans name it.
    pub node_id: Str,
    /// Number of the attempt at the task, from 1.
    pub attempt: u32,
    /// The actor that is made, or whose method this is; 0 for other tasks. Since ABI 1.2.
    pub actor_id: u64,
}

/// The request to a service that a replica handles, for span processors that put its ids on every span. Everything is borrowed for the call.
/// Since ABI 1.6.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RunningRequest {
    /// The size of this struct, as its maker compiled it.
    pub size: usize,
    /// The id that the client and the access log see. A client may choose it, so two requests may have the same.
    pub request_id: Str,
    /// The name of the application.
    pub application: Str,
    /// The deployment's name in the application.
    pub deployment: Str,
    /// The replica that handles it.
    pub replica: Str,
    /// The prefix under which the application is served; `/` for all.
    pub route_prefix: Str,
    /// The client's address, as `address:port`; empty when unknown.
    pub client: Str,
    /// Time after which the answer is not wanted, in nanoseconds since the Unix epoch; 0 for none.
    pub deadline_unix_nano: u64,
    /// The model that the request is for, as its header `x-model-id` or its caller says; empty if neither does.
    pub model: Str,
}

/// Answer of the maker of a span about it.
#[repr(C)]
#[derive(Debug)]
pub struct SpanStarted {
    /// The size of this struct, as the caller compiled it.
    pub size: usize,
    /// Most significant byte first.
    pub trace_id: [u8; 16],
    /// Most significant byte first.
    pub span_id: [u8; 8],
    /// W3C trace flags.
    pub trace_flags: u8,
    /// 1 when attributes, events and so on are kept. When 0, the caller need not send them.
    pub is_recording: u8,
    /// 1 when the span's tracestate is not its parent's; `span_trace_state` returns it.
    pub has_trace_state: u8,
}

/// A key and a value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KeyValue {
    /// The key.
    pub key: Str,
    /// The value.
    pub value: Value,
}

/// An attribute's value. Values of an unknown `tag` are dropped.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Value {
    /// One of the `VALUE_` constants: says which member of `as_` holds the value.
    pub tag: u32,
    /// The value.
    pub as_: ValueUnion,
}

/// The members of a [`Value`].
#[repr(C)]
#[derive(Clone, Copy)]
pub union ValueUnion {
    /// [`VALUE_BOOL`]: 0 or 1.
    pub bool_: u8,
    /// [`VALUE_I64`].
    pub i64_: i64,
    /// [`VALUE_F64`].
    pub f64_: f64,
    /// [`VALUE_STR`].
    pub str_: Str,
    /// [`VALUE_BOOL_ARRAY`] (bytes, 0 or 1), [`VALUE_I64_ARRAY`], [`VALUE_F64_ARRAY`] and [`VALUE_STR_ARRAY`] ([`Str`]s).
    pub array: Array,
}

impl core::fmt::Debug for ValueUnion {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("ValueUnion")
    }
}

/// A borrowed array; the element type follows from the tag.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Array {
    /// Owner: whoever filled the struct in. Valid until the call returns.
    pub ptr: *const c_void,
    /// Number of elements.
    pub count: usize,
}

/// See [`ValueUnion::bool_`].
pub const VALUE_BOOL: u32 = 1;
/// See [`ValueUnion::i64_`].
pub const VALUE_I64: u32 = 2;
/// See [`ValueUnion::f64_`].
pub const VALUE_F64: u32 = 3;
/// See [`ValueUnion::str_`].
pub const VALUE_STR: u32 = 4;
/// An array of `uint8_t`, 0 or 1.
pub const VALUE_BOOL_ARRAY: u32 = 5;
/// An array of `int64_t`.
pub const VALUE_I64_ARRAY: u32 = 6;
/// An array of `double`.
pub const VALUE_F64_ARRAY: u32 = 7;
/// An array of [`Str`].
pub const VALUE_STR_ARRAY: u32 = 8;

/// A span event.
#[repr(C)]
#[derive(Debug)]
pub struct Event {
    /// The size of this struct, as the caller compiled it.
    pub size: usize,
    /// The event's name.
    pub name: Str,
    /// Time of the event, in nanoseconds since the Unix epoch; 0 for now.
    pub time_unix_nano: u64,
    /// `attribute_count` attributes.
    pub attributes: *const KeyValue,
    /// Number of attributes.
    pub attribute_count: usize,
}

/// A link to another span.
#[repr(C)]
#[derive(Debug)]
pub struct Link {
    /// The size of this struct, as the caller compiled it.
    pub size: usize,
    /// The span linked to.
    pub context: SpanContext,
    /// `attribute_count` attributes.
    pub attributes: *const KeyValue,
    /// Number of attributes.
    pub attribute_count: usize,
}

/// The default: a step inside a process.
pub const SPAN_KIND_INTERNAL: u32 = 0;
/// Span that answers a remote call.
pub const SPAN_KIND_SERVER: u32 = 1;
/// Span that makes a remote call.
pub const SPAN_KIND_CLIENT: u32 = 2;
/// Span that sends work that is done later.
pub const SPAN_KIND_PRODUCER: u32 = 3;
/// Span that does work that was sent.
pub const SPAN_KIND_CONSUMER: u32 = 4;

/// Nothing was said.
pub const SPAN_STATUS_UNSET: u32 = 0;
/// Explicitly fine.
pub const SPAN_STATUS_OK: u32 = 1;
/// It failed.
pub const SPAN_STATUS_ERROR: u32 = 2;

/// A task: a function that can be submitted.
#[repr(C)]
#[derive(Debug)]
pub struct Task {
    /// The size of this struct, as the module compiled it.
    pub size: usize,
    /// The function's name, as in `module:function`.
    pub name: Str,
    /// Description of the task, for people to read; its first line is a summary.
    pub doc: Str,
    /// The fully qualified name of the function in its language (`code.function.name`).
    pub code_function_name: Str,
    /// The source file (`code.file.path`); empty when unknown.
    pub code_file_path: Str,
    /// The line in it, from 1 (`code.line.number`); 0 when unknown.
    pub code_line_number: u32,
    /// 1 when the function is asynchronous in its language. For people to read; the call is the same.
    pub is_async: u32,
    /// `parameter_count` pointers, in the order of the call.
    pub parameters: *const *const Parameter,
    /// Number of parameters.
    pub parameter_count: usize,
    /// The type of the result, in the words of its language.
    pub result_type: Str,
    /// Runs the task: decodes the arguments, calls the function, and hands the result or the error to the
    /// callbacks in `call`, exactly one of which is called, at most once, before it returns.
    ///
    /// Called from: the worker's main thread, one call at a time; while a task waits for others (`host_wait`), another one
    /// may be called from a thread of the host's.
    /// On failure: returns [`STATUS_FAILED`] after `host_error`; [`STATUS_PANICKED`] when not even that was possible.
    pub on_run: Option<unsafe extern "C" fn(task: *const Task, call: *const TaskCall) -> u32>,
    /// The `TASK_` flags, added up. Since ABI 1.2.
    pub flags: u32,
}

/// Of an actor's method: calls of it, and of others with this flag, may run beside each other, each on a thread of its own. They begin in
/// the order of their submission: the next one when the one before waits for the first time ([`TASK_PHASE_WAIT`]) or has ended. All other calls of an actor, and its creation, run one at a time, on the worker's main thread.
pub const TASK_CONCURRENT: u32 = 1;

/// A type of actors: a state in a worker of its own, and the methods that work on it.
#[repr(C)]
#[derive(Debug)]
pub struct Actor {
    /// The size of this struct, as the module compiled it.
    pub size: usize,
    /// The type's name.
    pub name: Str,
    /// Description of the actor, for people to read; its first line is a summary.
    pub doc: Str,
    /// Makes the state and leaves it in [`TaskCall::state`]; the result is nil. Its name is `Type.new`.
    pub creation: *const Task,
    /// `method_count` pointers. Their names are `Type.method`.
    pub methods: *const *const Task,
    /// Number of methods.
    pub method_count: usize,
    /// Most calls of methods with [`TASK_CONCURRENT`] that run at a time; at least 1.
    pub max_concurrency: u32,
    /// Releases the state, when the actor ends in good order.
    /// Owner of the state: the module, which has made it. The host only keeps the pointer.
    ///
    /// Called from: the worker's main thread, once, when no call is going on and none will be.
    pub on_drop: Option<unsafe extern "C" fn(actor: *const Actor, state: *mut c_void)>,
}

/// A parameter of a task.
#[repr(C)]
#[derive(Debug)]
pub struct Parameter {
    /// The size of this struct, as the module compiled it.
    pub size: usize,
    /// Its name.
    pub name: Str,
    /// Its type, in the words of its language.
    pub type_name: Str,
    /// 1 when it may be left out.
    pub is_optional: u32,
}

/// One call of a task.
#[repr(C)]
#[derive(Debug)]
pub struct TaskCall {
    /// The size of this struct, as the host compiled it.
    pub size: usize,
    /// A MessagePack array of the arguments, in order.
    pub arguments: Bytes,
    /// The span of this attempt, a handle of the host's table, or null when it is not recorded. Borrowed: the
    /// module uses it while the call lasts, and neither ends nor releases it.
    pub span: *mut c_void,
    /// The context of that span, or of the submission when this process is not traced, or null when there is none.
    pub span_context: *const SpanContext,
    /// The W3C baggage header that came with the submission; empty for none.
    pub baggage: Str,
    /// The task's id.
    pub task_id: u64,
    /// Number of the attempt at the task, from 1.
    pub attempt: u32,
    /// The id of the job that the task belongs to.
    pub job_id: u64,
    /// The id of this worker.
    pub worker_id: u64,
    /// Handed back in the callbacks. Owner: the host.
    pub data: *mut c_void,
    /// Takes the result, a MessagePack value, and copies it.
    pub host_result: Option<unsafe extern "C" fn(data: *mut c_void, value: Bytes)>,
    /// Takes the error and copies it.
    pub host_error: Option<unsafe extern "C" fn(data: *mut c_void, error: *const TaskError)>,
    /// The machine, as spans name it; empty when the host does not say.
    pub node_id: Str,
    /// Takes note that the module begins one of the `TASK_PHASE_` parts of the call, which ends the one before. Null when the
    /// host does not ask. Called from one thread at a time, while the call lasts.
    pub host_phase: Option<unsafe extern "C" fn(data: *mut c_void, phase: u32)>,
    /// The actor that is made, or whose method this is; 0 for other tasks. Since ABI 1.2.
    pub actor_id: u64,
    /// Place of the actor's state: a creation that goes well puts it there, methods find it. Null for other tasks. Since ABI 1.2.
    pub state: *mut *mut c_void,
    /// The arguments, each a MessagePack value, in order; null when they are in `arguments`, which is empty otherwise. A host gives them in this way
    /// to modules of ABI 1.3 and later, when some are large. Since ABI 1.3.
    pub argument_values: *const Bytes,
    /// Number of arguments.
    pub argument_value_count: usize,
    /// Takes the next bytes of a large result; those that are left, none perhaps, go to `host_result`, which ends it. `host_error` drops what came
    /// before. Null when the host takes a result in one piece only. Since ABI 1.3.
    pub host_result_part: Option<unsafe extern "C" fn(data: *mut c_void, part: Bytes)>,
}

/// The module decodes the arguments.
pub const TASK_PHASE_DECODE: u32 = 1;
/// The function runs.
pub const TASK_PHASE_RUN: u32 = 2;
/// The module encodes the result or the error.
pub const TASK_PHASE_ENCODE: u32 = 3;
/// Something else, which nobody needs to know about.
pub const TASK_PHASE_END: u32 = 4;
/// The function of a call with [`TASK_CONCURRENT`] waits for the first time. It ends no part; the host lets the next call begin. A
/// function that never waits need not say so. Since ABI 1.2.
pub const TASK_PHASE_WAIT: u32 = 5;

/// Error for which a task failed.
#[repr(C)]
#[derive(Debug)]
pub struct TaskError {
    /// The size of this struct, as the module compiled it.
    pub size: usize,
    /// One of the `TASK_ERROR_` constants; an unknown one is taken as [`TASK_ERROR_RETURNED`].
    pub kind: u32,
    /// The type of the error in its language (`exception.type`); low cardinality.
    pub type_name: Str,
    /// Message of the error, for people to read (`exception.message`).
    pub message: Str,
    /// Location of a panic, as `file:line:column`; empty when unknown.
    pub location: Str,
    /// The stack at that time (`exception.stacktrace`); empty when it was not captured.
    pub stacktrace: Str,
}

/// The function returned an error.
pub const TASK_ERROR_RETURNED: u32 = 1;
/// The function panicked.
pub const TASK_ERROR_PANICKED: u32 = 2;
/// The arguments do not fit the parameters; the function was not called.
pub const TASK_ERROR_ARGUMENTS: u32 = 3;
/// The result could not be encoded.
pub const TASK_ERROR_RESULT: u32 = 4;
/// The task did not get to an end of its own: it timed out, or its process died. Only from the host.
pub const TASK_ERROR_RUNTIME: u32 = 5;
/// The task was to end, and did. From the host: it was cancelled; an older host says [`TASK_ERROR_RUNTIME`] of that.
pub const TASK_ERROR_CANCELLED: u32 = 6;

/// A deployment: a handler of requests. A *replica* is one process that runs it. Since ABI 1.6, as everything about requests.
#[repr(C)]
#[derive(Debug)]
pub struct Deployment {
    /// The size of this struct, as the module compiled it.
    pub size: usize,
    /// The name in `module:name`.
    pub name: Str,
    /// Description of the deployment, for people to read; its first line is a summary.
    pub doc: Str,
    /// The fully qualified name of the function or type in its language (`code.function.name`).
    pub code_function_name: Str,
    /// The source file (`code.file.path`); empty when unknown.
    pub code_file_path: Str,
    /// The line in it, from 1 (`code.line.number`); 0 when unknown.
    pub code_line_number: u32,
    /// The `DEPLOYMENT_` flags, added up.
    pub flags: u32,
    /// `parameter_count` pointers: the arguments of its creation, in order.
    pub parameters: *const *const Parameter,
    /// Number of parameters.
    pub parameter_count: usize,
    /// Most requests that a replica handles at a time, by its author; 0 to leave it to the service.
    pub max_ongoing_requests: u32,
    /// Size of the largest batch that a function of the handler collects requests into; 0 for none. The host refuses limits with which such a batch
    /// would never be full.
    pub max_batch_size: u32,
    /// The name of that function; empty for none.
    pub batch_function: Str,
    /// Runs a replica: makes the handler, calls [`Serving::host_ready`], and handles requests until it takes an event
    /// [`EVENT_STOP`]; then it drops the handler and returns.
    ///
    /// Called from: the replica's main thread, once. `serving` and what it points to live as long as the process.
    /// On failure: returns a status other than [`STATUS_OK`] with the reason in `error`; the host answers the requests that are still open.
    pub on_serve: Option<
        unsafe extern "C" fn(deployment: *const Deployment, serving: *const Serving, error: *mut TextBuffer) -> u32,
    >,
}

/// The handler can be asked whether it is healthy ([`EVENT_HEALTH`]); one that cannot is healthy while it takes events.
pub const DEPLOYMENT_HEALTH: u32 = 1;
/// The handler takes settings while it runs ([`EVENT_CONFIGURE`]); one that does not is replaced when they change.
pub const DEPLOYMENT_CONFIGURE: u32 = 2;
/// The handler takes calls of its methods: requests of the version 0 of HTTP, whose target is the name of the method and whose body is a MessagePack
/// array of arguments. They are answered with a status 200 and a MessagePack value as body; what fails one goes to the caller with type and message.
pub const DEPLOYMENT_CALL: u32 = 4;

/// Table that the host lends to a replica: its settings, its requests as events, and the functions that answer them.
///
/// The module runs a loop of its own: it waits until `event_fd` is readable, takes all events, handles them, and calls `host_flush`
/// before it waits again. Nobody wakes a thread for a request. While requests follow each other closely, `host_look` keeps it from sleeping.
///
/// A request begins with [`EVENT_REQUEST`] and ends with the one call of `host_end` or `host_fail` that the module owes for it, also
/// when the client has gone ([`EVENT_GONE`]). Its number is used for nothing else while the process lives. The span of the request is
/// lent until that call.
///
/// Threads: `host_take_events` is called from one thread at a time; all other functions may be called from any thread. Calls for one
/// request do not overlap.
#[repr(C)]
#[derive(Debug)]
pub struct Serving {
    /// The size of this struct, as the host compiled it.
    pub size: usize,
    /// Handed back in every call. Owner: the host.
    pub data: *mut c_void,
    /// A MessagePack array of the arguments of the handler's creation, in order.
    pub arguments: Bytes,
    /// The name of the application that the deployment belongs to.
    pub application: Str,
    /// The deployment's name in it.
    pub deployment: Str,
    /// The replica's name, unique in the service.
    pub replica: Str,
    /// Most requests that are handled at a time.
    pub max_ongoing_requests: u32,
    /// Number of threads that run handlers; at least 1.
    pub threads: u32,
    /// Readable while there are events. Owner: the host; the module neither reads from it nor closes it.
    pub event_fd: i32,
    /// Says that the handler is made and takes requests. None arrive before.
    pub host_ready: Option<unsafe extern "C" fn(data: *mut c_void)>,
    /// Writes pointers to the next events to `events`, at most `capacity`, and returns how many. They are the host's, and valid until the
    /// next call. 0 when there are none; then `event_fd` is not readable until there are.
    pub host_take_events:
        Option<unsafe extern "C" fn(data: *mut c_void, events: *mut *const RequestEvent, capacity: usize) -> usize>,
    /// Begins the response of a request, once, before its body. Informational responses (1xx) are not taken. Returns [`STATUS_CANCELLED`] when
    /// the client has gone, [`STATUS_FAILED`] when the response cannot be sent as it is: the host then answers in its place.
    pub host_respond:
        Option<unsafe extern "C" fn(data: *mut c_void, request: u64, response: *const ResponseHead) -> u32>,
    /// Takes the next piece of the response's body. With [`STATUS_OK`] the piece is the host's, which releases it. With [`STATUS_FULL`] it
    /// stays the module's, because the client reads too slowly: [`EVENT_ROOM`] says when to offer it again. [`STATUS_CANCELLED`] when the client
    /// has gone.
    pub host_send: Option<unsafe extern "C" fn(data: *mut c_void, request: u64, piece: *const Piece) -> u32>,
    /// Ends the request in good order, with `count` trailers. The response has begun.
    pub host_end:
        Option<unsafe extern "C" fn(data: *mut c_void, request: u64, trailers: *const Header, count: usize) -> u32>,
    /// Ends the request without a whole response: the handler returned an error, panicked, or was cancelled. The host answers with status 500 if
    /// the response has not begun, and cuts it short if it has.
    pub host_fail: Option<unsafe extern "C" fn(data: *mut c_void, request: u64, error: *const TaskError) -> u32>,
    /// Says that the handler has used so many bytes of the request's body, so that as many more may arrive.
    pub host_consumed: Option<unsafe extern "C" fn(data: *mut c_void, request: u64, bytes: usize)>,
    /// Says which of its routes the handler has found, such as `/users/{id}` (`http.route`). Of several the last counts.
    pub host_set_route: Option<unsafe extern "C" fn(data: *mut c_void, request: u64, route: Str)>,
    /// Answers [`EVENT_HEALTH`] or [`EVENT_CONFIGURE`], once, by the number of the event: a status, and the reason unless it is [`STATUS_OK`].
    pub host_answer: Option<unsafe extern "C" fn(data: *mut c_void, order: u64, status: u32, reason: Str)>,
    /// Sends what was answered since the last call.
    pub host_flush: Option<unsafe extern "C" fn(data: *mut c_void)>,
    /// Says whether to look for events once more before sleeping: 1 while requests follow each other so closely that looking takes less time than being
    /// woken, else 0. A module that has nothing to do calls it after `host_flush`, and again each time that it has looked whether `event_fd` is readable,
    /// without waiting, and found that it is not. It lets other processes run. Null for a host that does not say, for which a module sleeps at once.
    /// Since ABI 1.6.
    pub host_look: Option<unsafe extern "C" fn(data: *mut c_void) -> u32>,
}

/// Something that happened to a request, or to the replica.
#[repr(C)]
#[derive(Debug)]
pub struct RequestEvent {
    /// The size of this struct, as the host compiled it.
    pub size: usize,
    /// One of the `EVENT_` constants; an unknown one is passed over.
    pub kind: u32,
    /// [`EVENT_REQUEST`], [`EVENT_BODY`]: 1 when nothing of the body follows.
    pub is_last: u32,
    /// The number of the request; of the order for [`EVENT_HEALTH`] and [`EVENT_CONFIGURE`].
    pub number: u64,
    /// [`EVENT_REQUEST`] only; null for others.
    pub head: *const RequestHead,
    /// The next bytes of the body, perhaps none; the MessagePack value of the settings for [`EVENT_CONFIGURE`].
    /// Owner: the module, from the moment the event is taken.
    pub piece: Piece,
    /// The trailers of the request, with the last of its body.
    pub trailers: *const Header,
    /// Number of trailers.
    pub trailer_count: usize,
}

/// A request begins: its head, and the first piece of its body.
pub const EVENT_REQUEST: u32 = 1;
/// A piece of a request's body.
pub const EVENT_BODY: u32 = 2;
/// The rest of a request's body will not come.
pub const EVENT_BODY_CUT: u32 = 3;
/// There is room again for the response's body.
pub const EVENT_ROOM: u32 = 4;
/// The client has gone, or time is up: nobody wants the response any more. The module drops what handles the request, then calls `host_fail`.
pub const EVENT_GONE: u32 = 5;
/// Asks whether the handler is healthy.
pub const EVENT_HEALTH: u32 = 6;
/// Gives the handler settings.
pub const EVENT_CONFIGURE: u32 = 7;
/// No request is open and none will come.
pub const EVENT_STOP: u32 = 8;

/// The head of a request. It is valid, with all that it points to, as long as its event.
#[repr(C)]
#[derive(Debug)]
pub struct RequestHead {
    /// The size of this struct, as the host compiled it.
    pub size: usize,
    /// Such as `GET`.
    pub method: Str,
    /// The target: path and query, or `*`.
    pub target: Str,
    /// `http` or `https`.
    pub scheme: Str,
    /// The authority that the client named (`Host`); empty for none.
    pub authority: Str,
    /// The version of HTTP that the client speaks: 10, 11, 20; 0 for a call of a method ([`DEPLOYMENT_CALL`]).
    pub version: u32,
    /// 1 when the head says how long the body is, in a header `content-length`.
    pub has_length: u32,
    /// `header_count` headers, with names in lower case, without those that belong to the client's connection.
    pub headers: *const Header,
    /// Number of headers.
    pub header_count: usize,
    /// Names the request in logs; not unique, because clients may choose it.
    pub request_id: Str,
    /// The prefix under which the application is served; `/` for all.
    pub route_prefix: Str,
    /// The client's address, as `address:port`; empty when unknown.
    pub client: Str,
    /// Time after which the answer is not wanted; 0 for never.
    pub deadline_unix_nano: u64,
    /// The span of this request in the replica, a handle of the host's table, or null when it is not recorded. Borrowed until the request
    /// is ended: the module neither ends nor releases it.
    pub span: *mut c_void,
    /// The context of that span, or of the request when this process is not traced, or null when there is none.
    pub span_context: *const SpanContext,
    /// The W3C baggage header of the request; empty for none.
    pub baggage: Str,
}

/// A header or a trailer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// Its name; in lower case from the host.
    pub name: Str,
    /// Its value: bytes without CR, LF and NUL.
    pub value: Bytes,
}

/// Bytes with an owner, which cross the boundary without a copy.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// The bytes, until they are released.
    pub bytes: Bytes,
    /// Handed to `release`.
    pub owner: *mut c_void,
    /// Gives the bytes back to whoever made them; null when there is nothing to give back.
    ///
    /// Called from: any thread, once.
    pub release: Option<unsafe extern "C" fn(owner: *mut c_void)>,
}

/// The head of a response.
#[repr(C)]
#[derive(Debug)]
pub struct ResponseHead {
    /// The size of this struct, as the module compiled it.
    pub size: usize,
    /// From 200 to 999.
    pub status: u32,
    /// 1 when there is neither body nor trailers; `host_end` is called all the same.
    pub is_last: u32,
    /// `header_count` headers. Those of the connection, such as `connection` and `transfer-encoding`, are dropped.
    pub headers: *const Header,
    /// Number of headers.
    pub header_count: usize,
}

impl Piece {
    /// No bytes, and nothing to release.
    pub const EMPTY: Piece = Piece { bytes: Bytes::EMPTY, owner: ptr::null_mut(), release: None };
}

impl Str {
    /// The empty string.
    pub const EMPTY: Str = Str { ptr: core::ptr::null(), len: 0 };

    /// Borrows `text`. The caller sees to it that `text` outlives every use of the result.
    pub const fn new(text: &str) -> Str {
        Str { ptr: text.as_ptr(), len: text.len() }
    }

    /// Returns the bytes.
    ///
    /// # Safety
    ///
    /// `ptr` and `len` describe memory that stays readable and unchanged for `'a`, or `len` is 0.
    pub const unsafe fn as_bytes<'a>(self) -> &'a [u8] {
        if self.len == 0 || self.ptr.is_null() {
            return &[];
        }
        // SAFETY: promised by the caller.
        unsafe { core::slice::from_raw_parts(self.ptr, self.len) }
    }
}

impl Bytes {
    /// No bytes.
    pub const EMPTY: Bytes = Bytes { ptr: core::ptr::null(), len: 0 };

    /// Borrows `bytes`. The caller sees to it that they outlive every use of the result.
    pub const fn new(bytes: &[u8]) -> Bytes {
        Bytes { ptr: bytes.as_ptr(), len: bytes.len() }
    }

    /// Returns the bytes.
    ///
    /// # Safety
    ///
    /// `ptr` and `len` describe memory that stays readable and unchanged for `'a`, or `len` is 0.
    pub const unsafe fn as_bytes<'a>(self) -> &'a [u8] {
        // SAFETY: promised by the caller.
        unsafe { Str { ptr: self.ptr, len: self.len }.as_bytes() }
    }
}

impl TextBuffer {
    /// Lends `buffer` to a callee.
    pub fn new(buffer: &mut [u8]) -> TextBuffer {
        TextBuffer { ptr: buffer.as_mut_ptr(), capacity: buffer.len(), len: 0 }
    }

    /// Writes `text` as the callee: as much of it as fits, and its whole length.
    ///
    /// # Safety
    ///
    /// `ptr` and `capacity` describe memory that may be written to.
    pub unsafe fn write(&mut self, text: &str) {
        self.len = text.len();
        let fits = text.len().min(self.capacity);
        if fits > 0 && !self.ptr.is_null() {
            // SAFETY: promised by the caller, and `fits` is within both.
            unsafe { core::ptr::copy_nonoverlapping(text.as_ptr(), self.ptr, fits) };
        }
    }

    /// Returns the number of bytes of the buffer that hold text.
    pub fn filled(&self) -> usize {
        self.len.min(self.capacity)
    }
}

impl SpanStart {
    /// Makes a span that begins a new trace now, with nothing but a name and a kind.
    pub const fn new(name: Str, kind: u32) -> SpanStart {
        SpanStart {
            size: size_of::<SpanStart>(),
            name,
            kind,
            start_time_unix_nano: 0,
            parent: ptr::null(),
            attributes: ptr::null(),
            attribute_count: 0,
            links: ptr::null(),
            link_count: 0,
            events: ptr::null(),
            event_count: 0,
            baggage: Str::EMPTY,
            runtime: ptr::null(),
            prefix_id: 0,
            prefix_count: 0,
            additions: ptr::null(),
            request: ptr::null(),
        }
    }
}

impl SpanStarted {
    /// Room for what `span_start` says.
    pub const EMPTY: SpanStarted = SpanStarted {
        size: size_of::<SpanStarted>(),
        trace_id: [0; 16],
        span_id: [0; 8],
        trace_flags: 0,
        is_recording: 0,
        has_trace_state: 0,
    };
}

impl SpanContext {
    /// No span.
    pub const INVALID: SpanContext = SpanContext {
        size: size_of::<SpanContext>(),
        trace_id: [0; 16],
        span_id: [0; 8],
        trace_flags: 0,
        is_remote: 0,
        trace_state: Str::EMPTY,
    };
}

// SAFETY: the pointers in these records are to memory that lives as long as the process and does not change.
unsafe impl Sync for Module {}
// SAFETY: as for `Module`.
unsafe impl Send for Module {}
// SAFETY: as for `Module`.
unsafe impl Sync for Hook {}
// SAFETY: as for `Module`.
unsafe impl Send for Hook {}
// SAFETY: as for `Module`.
unsafe impl Sync for Task {}
// SAFETY: as for `Module`.
unsafe impl Send for Task {}
// SAFETY: as for `Module`.
unsafe impl Sync for Actor {}
// SAFETY: as for `Module`.
unsafe impl Send for Actor {}
// SAFETY: as for `Module`.
unsafe impl Sync for Deployment {}
// SAFETY: as for `Module`.
unsafe impl Send for Deployment {}
// SAFETY: as for `Module`.
unsafe impl Sync for Parameter {}
// SAFETY: as for `Module`.
unsafe impl Send for Parameter {}
// SAFETY: the table may be used from any thread by contract; what it points to lives as long as the process.
unsafe impl Sync for Tracing {}
// SAFETY: as above.
unsafe impl Send for Tracing {}
// SAFETY: as for `Tracing`.
unsafe impl Sync for DeliveryListener {}
// SAFETY: as for `Tracing`.
unsafe impl Send for DeliveryListener {}
// SAFETY: as for `Tracing`.
unsafe impl Sync for Host {}
// SAFETY: as for `Tracing`.
unsafe impl Send for Host {}

/// The part of the layout that must never change, checked when this crate is compiled.
#[cfg(target_pointer_width = "64")]
const _: () = {
    use core::mem::offset_of;
    // A literal above, because the generator of the C header does not evaluate calls.
    assert!(MODULE_MAGIC == u64::from_le_bytes(*b"TRACERMO"));
    assert!(offset_of!(Module, magic) == 0);
    assert!(offset_of!(Module, size) == 8);
    assert!(offset_of!(Module, abi_major) == 16);
    assert!(offset_of!(Module, abi_minor) == 20);
    assert!(offset_of!(Module, producer) == 24);
    assert!(offset_of!(Module, version) == 40);
    assert!(size_of::<Module>() == 128);
    assert!(size_of::<Host>() == 176);
    assert!(size_of::<Call>() == 168);
    assert!(size_of::<CallEvent>() == 80);
    assert!(size_of::<LogRecord>() == 96);
    assert!(size_of::<Instrument>() == 112);
    assert!(size_of::<Measurement>() == 40);
    assert!(size_of::<ActorIdentity>() == 64);
    assert!(size_of::<ActorOptions>() == 40);
    assert!(size_of::<Actor>() == 80);
    assert!(size_of::<Submission>() == 176);
    assert!(size_of::<Demand>() == 40);
    assert!(size_of::<Resource>() == 24);
    assert!(size_of::<Policy>() == 72);
    assert!(size_of::<Reference>() == 16);
    assert!(size_of::<Hook>() == 56);
    assert!(size_of::<Tracing>() == 232);
    assert!(size_of::<DeliveryListener>() == 64);
    assert!(size_of::<SpanIdentity>() == 24);
    assert!(size_of::<FinishedSpans>() == 56);
    assert!(size_of::<Scope>() == 72);
    assert!(size_of::<SpanContext>() == 56);
    assert!(size_of::<SpanStart>() == 152);
    assert!(size_of::<RunningRequest>() == 128);
    assert!(size_of::<SpanAdditions>() == 56);
    assert!(size_of::<Runtime>() == 64);
    assert!(size_of::<SpanStarted>() == 40);
    assert!(size_of::<Value>() == 24);
    assert!(size_of::<KeyValue>() == 40);
    assert!(size_of::<Event>() == 48);
    assert!(size_of::<Link>() == 80);
    assert!(size_of::<Task>() == 128);
    assert!(size_of::<Parameter>() == 48);
    assert!(size_of::<TaskCall>() == 176);
    assert!(size_of::<TaskError>() == 80);
    assert!(size_of::<Deployment>() == 128);
    assert!(size_of::<Serving>() == 184);
    assert!(size_of::<RequestEvent>() == 80);
    assert!(size_of::<RequestHead>() == 184);
    assert!(size_of::<Header>() == 32);
    assert!(size_of::<Piece>() == 32);
    assert!(size_of::<ResponseHead>() == 32);
};
