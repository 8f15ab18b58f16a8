//! The options of a task and of an actor, described once: for the command line, the HTTP API, the libraries of programs and of tasks, C, and the
//! head.
//!
//! A row of `task_options!` below is all that says that there is an option: its name, its doc comment, its kind and its default. From it come
//!
//! | what | by |
//! |---|---|
//! | a field of [`TaskOptions`] | the macro `options_struct!` |
//! | its row in [`TaskOptions::ROWS`], from which the command line makes a flag, and the HTTP API a JSON field with its schema | [`Row`] |
//! | a method of each builder, in the client library and in the SDK | [`task_builder_methods!`] |
//! | an entry of the encoded field `options` of the C struct `TracerSubmission` | [`TaskOptions::encoded`], [`TaskOptions::read`] |
//!
//! This crate holds values and their checks. It knows neither clap nor JSON nor the head: those who use the rows do.

#![warn(missing_docs)]

mod extra;
mod resources;
mod retry_on;
mod row;

use std::time::Duration;

pub use extra::{Said, UnknownOption};
pub use resources::{Amounts, RESOURCES_LIMIT, check_name, check_resource, parse_resource, sort_resources};
pub use retry_on::check_retry_on;
pub use row::{Encoded, Face, Field, Kind, LONGEST_MS, Raw, Row, Scope, Value};

/// Times that a task is started again after its worker was lost, if its submission says nothing.
pub const DEFAULT_CRASH_LIMIT: u32 = 2;
/// The wait before the first retry, if the submission says nothing.
pub const DEFAULT_RETRY_BACKOFF: Duration = Duration::from_secs(1);
/// The grace period of an attempt that is to end, for each step, if the submission says nothing.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(2);

/// Headings of the flags in the help of the command line.
const LIMITS: &str = "Limits";
const NEEDS: &str = "Resources";
const FAILURES: &str = "Failures and retries";

/// Hands the options of a task, one row each, to a macro: their documentation, name, kind, what has them if not functions and commands, default,
/// and how they look.
#[doc(hidden)]
#[macro_export]
macro_rules! task_options {
    ($callback:path, [$($argument:tt)*]) => {
        $callback! {
            [$($argument)*]
            /// A name of your own for the task, shown in lists and on its spans.
            name: text = String::new(),
                Face { kind: Kind::Text { longest: 128 }, json: "name", is_c_field: true, ..Face::PLAIN };
            /// Maximum run time of an attempt, 0 for none; one that runs longer is ended as `tracer cancel` ends it.
            ///
            /// A call of an actor with a limit runs alone on its actor; if it exceeds the limit and does not end, the actor's worker is killed.
            timeout: time in calls = None,
                Face { kind: Kind::Time { least_ms: 1 }, json: "timeout_ms", heading: LIMITS, is_c_field: true, ..Face::PLAIN };
            /// Trace the runtime's own work for it too: the head's journal and queue, the loading of the module, arguments and results.
            ///
            /// `tracer trace show last` then says where the time went.
            trace_runtime: flag = false,
                Face { kind: Kind::Flag, json: "trace_runtime", ..Face::PLAIN };
            /// Maximum wait until the first attempt begins.
            queue_timeout: time in calls = None,
                Face { kind: Kind::Time { least_ms: 1 }, json: "queue_timeout_ms", heading: LIMITS, is_c_field: true, ..Face::PLAIN };
            /// Maximum time without output.
            idle_timeout: time in commands = None,
                Face { kind: Kind::Time { least_ms: 1 }, json: "idle_timeout_ms", heading: LIMITS, ..Face::PLAIN };
            /// Time for each step of ending an attempt: a function is asked, then gets SIGTERM, then SIGKILL; a command gets SIGTERM, then
            /// SIGKILL.
            grace: span = DEFAULT_GRACE,
                Face { kind: Kind::Time { least_ms: 0 }, json: "grace_ms", heading: LIMITS, ..Face::PLAIN };
            /// Priority, from -100 to 100: of tasks that wait, the one with the highest begins first.
            ///
            /// Each minute that a task has waited counts as one more, so that none waits for ever. Tasks that tasks have submitted come before
            /// those of drivers, whatever their priority, and a call overtakes other calls of its actor only.
            priority: whole in calls = 0,
                Face { kind: Kind::Whole { least: -100, most: 100 }, json: "priority", ..Face::PLAIN };
            /// Queue that it goes to: any node that serves it runs the task, on this machine or another.
            ///
            /// The head must have joined an engine, with `tracer start --address`; without one the task is refused. The children of the task run
            /// where it runs, unless they name a queue themselves.
            queue: text = String::new(),
                Face { kind: Kind::Text { longest: 64 }, json: "queue", ..Face::PLAIN };
            /// Number of slots it occupies; a head has one for each worker. 0: none, it only needs a process.
            ///
            /// A task that asks for more than the head has is refused.
            num_cpus: count = 1,
                Face { kind: Kind::Count { most: 1024 }, json: "num_cpus", heading: NEEDS, is_c_field: true, ..Face::PLAIN };
            /// Amount of a named resource that it occupies while it runs; may be repeated.
            ///
            /// A head has the amounts of `tracer start --resources`; a task that asks for more is refused. It holds its resources until it has
            /// ended, also while it waits for tasks of its own: if those need the same and none is left, it waits for ever.
            resource: amounts = Vec::new(),
                Face { kind: Kind::Amounts, json: "resources", value_name: "NAME=AMOUNT", heading: NEEDS, is_c_field: true, ..Face::PLAIN };
            /// Memory limit of an attempt, such as 500MiB: for its worker process with everything that it starts.
            ///
            /// An attempt that exceeds it fails with `oom`, as with `tracer start --worker-memory`; the lower of the two limits applies. A task
            /// that runs inside of the one that waits for it shares the limit of that one.
            memory: size = None,
                Face { kind: Kind::Size { least: 32 << 20 }, json: "memory_bytes", heading: NEEDS, is_c_field: true, ..Face::PLAIN };
            /// Number of retries after its own failures; lost workers are counted apart.
            ///
            /// Its own failures are an error, a panic, an exit code, a signal, a timeout. A mistake in its arguments, its result or its
            /// module is not retried, unless --retry-on names it.
            retries: count = 0,
                Face { kind: Kind::Count { most: 1000 }, json: "retries", heading: FAILURES, is_c_field: true, ..Face::PLAIN };
            /// Wait before the first retry; it doubles each time, up to 1 minute, and is shortened by a random part of up to half.
            retry_backoff: span = DEFAULT_RETRY_BACKOFF,
                Face { kind: Kind::Time { least_ms: 0 }, json: "retry_backoff_ms", heading: FAILURES, is_c_field: true, ..Face::PLAIN };
            /// Retry after these failures only, separated by commas: error, panic, timeout, exit, exit:CODE, signal, signal:NUMBER, the type of
            /// an error such as io::Error, or another error.type of the attempt's span.
            retry_on: kinds = String::new(),
                Face { kind: Kind::Failures, json: "retry_on", value_name: "KINDS", heading: FAILURES, is_c_field: true, ..Face::PLAIN };
            /// Number of restarts after its worker was lost: killed, crashed, or dead with the head.
            crash_limit: count = DEFAULT_CRASH_LIMIT,
                Face { kind: Kind::Count { most: 1000 }, json: "crash_limit", heading: FAILURES, is_c_field: true, ..Face::PLAIN };
            /// Never start it a second time: when its worker or its head dies, it is reported lost.
            at_most_once: flag = false,
                Face { kind: Kind::Flag, json: "at_most_once", heading: FAILURES, excludes: &["retries", "crash_limit"], is_c_field: true, ..Face::PLAIN };
            /// Return the task that was submitted before with this key, if the head remembers it, instead of starting another.
            idempotency_key: text = String::new(),
                Face { kind: Kind::Text { longest: 255 }, value_name: "KEY", heading: FAILURES, ..Face::PLAIN };
        }
    };
}

/// Hands the options of an actor to a macro, as [`task_options!`] those of a task.
#[doc(hidden)]
#[macro_export]
macro_rules! actor_options {
    ($callback:path, [$($argument:tt)*]) => {
        $callback! {
            [$($argument)*]
            /// A name by which it is found; while it lives, no other actor can have it.
            name: text = String::new(),
                Face { kind: Kind::Text { longest: 128 }, ..Face::PLAIN };
            /// Number of times to create it again after its worker was lost; its state begins anew.
            max_restarts: count = 0,
                Face { kind: Kind::Count { most: 1000 }, ..Face::PLAIN };
            /// Number of times to run a call again that was going on when the worker was lost; calls that had not begun wait in any case, as long
            /// as the actor is created again.
            max_call_retries: count = 0,
                Face { kind: Kind::Count { most: 1000 }, ..Face::PLAIN };
            /// Let it outlive the job that creates it, until somebody ends it.
            detached: flag in libraries = false,
                Face { kind: Kind::Flag, ..Face::PLAIN };
            /// Take the living actor of this name and type, if there is one, and create none.
            get_or_create: flag = false,
                Face { kind: Kind::Flag, requires: &["name"], ..Face::PLAIN };
        }
    };
}

/// The type of an option of a kind.
macro_rules! type_of {
    (text) => { String };
    (kinds) => { String };
    (time) => { Option<Duration> };
    (span) => { Duration };
    (count) => { u32 };
    (whole) => { i8 };
    (flag) => { bool };
    (size) => { Option<u64> };
    (amounts) => { Vec<(String, u64)> };
}

/// The scope of an option, by the word `in` of its row.
macro_rules! scope_of {
    () => {
        Scope::Tasks
    };
    (calls) => {
        Scope::Any
    };
    (commands) => {
        Scope::Commands
    };
    (libraries) => {
        Scope::Libraries
    };
}

/// A struct with a field for each option, its defaults, and its rows.
macro_rules! options_struct {
    ([$(#[$about:meta])* $options:ident]
     $($(#[doc = $doc:literal])+ $name:ident : $kind:ident $(in $scope:ident)? = $default:expr, $face:expr;)*) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $options {
            $($(#[doc = $doc])+ pub $name: type_of!($kind),)*
        }

        impl Default for $options {
            fn default() -> $options {
                $options { $($name: $default,)* }
            }
        }

        impl $options {
            /// Every option, in the order in which people read them.
            pub const ROWS: &[Row<$options>] = &[$(Row {
                name: stringify!($name),
                doc: concat!($($doc, "\n"),+),
                face: Face { scope: scope_of!($($scope)?), ..$face },
                get: |options| options.$name.get(),
                set: |options, value| options.$name.set(value),
            },)*];
        }
    };
}

task_options!(
    options_struct,
    [
        /// The options of a task: what its submission may say beside what it runs.
        TaskOptions
    ]
);

actor_options!(
    options_struct,
    [
        /// The options of an actor: what its creation may say beside those of a task.
        ActorOptions
    ]
);

extra::extra_options! {
    /// Options of tasks that the head acts on and of which most tasks have none. In an envelope each has its number.
    1 => priority: i8, "tracer.priority";
}

/// The ways in which a task can have no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RemoteErrorKind {
    /// It could not be submitted, or its outcome not be had.
    Submission,
    /// The function returned an error.
    Returned,
    /// The function panicked.
    Panicked,
    /// The arguments did not fit the function.
    Arguments,
    /// The result could not be carried over.
    Result,
    /// It did not get to an end of its own: it timed out, or its worker died. For a command also: it ended with another exit code than 0, or by
    /// a signal.
    Runtime,
    /// It was cancelled: by somebody, or because the task that had submitted it did not get to its end.
    ///
    /// In a task also: it may run on, and the task that waits for it is itself to end, because it was cancelled or has run for too long; then
    /// `tracer_sdk::RuntimeContext::is_cancelled` says so. That is told once, to the waits that had begun; what waits after that, to clean up,
    /// waits as ever.
    Cancelled,
}

/// A builder that has options, for [`task_builder_methods!`].
#[doc(hidden)]
pub trait HasOptions {
    /// Of a task or of an actor.
    type Options;

    /// Returns the options that were set so far.
    fn options(&mut self) -> &mut Self::Options;
}

/// A builder that says what is wrong when it submits, for [`task_builder_methods!`].
#[doc(hidden)]
pub trait NotesProblems {
    /// Remembers the first problem.
    fn note(&mut self, problem: String);
}

/// The methods of a builder of tasks, one for each option that functions have: a type that [has options](HasOptions).
///
/// `[later]` is for a builder that [notes problems](NotesProblems) until it submits, `[at once ERROR]` for one whose checked methods return a
/// result; `ERROR` has a variant for each of them.
#[doc(hidden)]
#[macro_export]
macro_rules! task_builder_methods {
    ($how:tt) => { $crate::task_options!($crate::builder_methods, [$how [] [calls]]); };
}

/// The methods of a builder of commands, beside those of [`task_builder_methods!`].
#[doc(hidden)]
#[macro_export]
macro_rules! command_builder_methods {
    ($how:tt) => {
        $crate::task_options!($crate::builder_methods, [$how[commands]]);
    };
}

/// The methods of a builder of calls of an actor; see [`task_builder_methods!`].
#[doc(hidden)]
#[macro_export]
macro_rules! call_builder_methods {
    ($how:tt) => {
        $crate::task_options!($crate::builder_methods, [$how[calls]]);
    };
}

/// The methods of a builder of actors; see [`task_builder_methods!`].
#[doc(hidden)]
#[macro_export]
macro_rules! actor_builder_methods {
    ($how:tt) => { $crate::actor_options!($crate::builder_methods, [$how [] [libraries]]); };
}

/// A method for each row, if it is of a scope that the builder has.
#[doc(hidden)]
#[macro_export]
macro_rules! builder_methods {
    ($how:tt $($(#[doc = $doc:literal])+ $name:ident : $kind:ident $(in $scope:ident)? = $default:expr, $face:expr;)*) => {
        $($crate::builder_method!($how [$($scope)?] $kind $name $(#[doc = $doc])+);)*
    };
}

/// One method of a builder.
#[doc(hidden)]
#[macro_export]
macro_rules! builder_method {
    // The scopes that the builder has, and that of the option.
    ([$how:tt [] $($more:tt)*] [] $($row:tt)+) => { $crate::builder_method!($how $($row)+); };
    ([$how:tt [] $($more:tt)*] [$scope:ident] $($row:tt)+) => { $crate::builder_method!([$how $($more)*] [$scope] $($row)+); };
    ([$how:tt [calls] $($more:tt)*] [calls] $($row:tt)+) => { $crate::builder_method!($how $($row)+); };
    ([$how:tt [commands] $($more:tt)*] [commands] $($row:tt)+) => { $crate::builder_method!($how $($row)+); };
    ([$how:tt [libraries] $($more:tt)*] [libraries] $($row:tt)+) => { $crate::builder_method!($how $($row)+); };
    ([$how:tt $($others:tt)*] [$($scope:ident)?] $($row:tt)+) => {};

    ($how:tt text $name:ident $(#[doc = $doc:literal])+) => {
        $(#[doc = $doc])+
        pub fn $name(mut self, $name: impl Into<String>) -> Self {
            $crate::HasOptions::options(&mut self).$name = $name.into();
            self
        }
    };
    ($how:tt flag $name:ident $(#[doc = $doc:literal])+) => {
        $(#[doc = $doc])+
        pub fn $name(mut self) -> Self {
            $crate::HasOptions::options(&mut self).$name = true;
            self
        }
    };
    ($how:tt time $name:ident $(#[doc = $doc:literal])+) => {
        $(#[doc = $doc])+
        pub fn $name(mut self, limit: ::std::time::Duration) -> Self {
            $crate::HasOptions::options(&mut self).$name = Some(limit);
            self
        }
    };
    ($how:tt span $name:ident $(#[doc = $doc:literal])+) => {
        $(#[doc = $doc])+
        pub fn $name(mut self, $name: ::std::time::Duration) -> Self {
            $crate::HasOptions::options(&mut self).$name = $name;
            self
        }
    };
    ($how:tt count $name:ident $(#[doc = $doc:literal])+) => {
        $(#[doc = $doc])+
        pub fn $name(mut self, $name: u32) -> Self {
            $crate::HasOptions::options(&mut self).$name = $name;
            self
        }
    };
    ($how:tt whole $name:ident $(#[doc = $doc:literal])+) => {
        $(#[doc = $doc])+
        pub fn $name(mut self, $name: i8) -> Self {
            $crate::HasOptions::options(&mut self).$name = $name;
            self
        }
    };
    ($how:tt size $name:ident $(#[doc = $doc:literal])+) => {
        $(#[doc = $doc])+
        pub fn $name(mut self, bytes: u64) -> Self {
            $crate::HasOptions::options(&mut self).$name = Some(bytes);
            self
        }
    };
    ([later] kinds $name:ident $(#[doc = $doc:literal])+) => {
        $(#[doc = $doc])+
        pub fn $name(mut self, kinds: impl Into<String>) -> Self {
            let kinds = kinds.into();
            if let Err(problem) = $crate::check_retry_on(&kinds) {
                $crate::NotesProblems::note(&mut self, problem);
            }
            $crate::HasOptions::options(&mut self).$name = kinds;
            self
        }
    };
    ([at once $error:ident] kinds $name:ident $(#[doc = $doc:literal])+) => {
        $(#[doc = $doc])+
        pub fn $name(mut self, kinds: impl Into<String>) -> Result<Self, $error> {
            let kinds = kinds.into();
            $crate::check_retry_on(&kinds).map_err($error::RetryOn)?;
            $crate::HasOptions::options(&mut self).$name = kinds;
            Ok(self)
        }
    };
    ([later] amounts $name:ident $(#[doc = $doc:literal])+) => {
        $(#[doc = $doc])+
        pub fn $name(mut self, name: impl Into<String>, amount: u64) -> Self {
            match $crate::check_resource(&name.into(), i64::try_from(amount).unwrap_or(i64::MAX)) {
                Ok(resource) => $crate::HasOptions::options(&mut self).$name.push(resource),
                Err(problem) => $crate::NotesProblems::note(&mut self, problem),
            }
            self
        }
    };
    ([at once $error:ident] amounts $name:ident $(#[doc = $doc:literal])+) => {
        $(#[doc = $doc])+
        pub fn $name(mut self, name: impl Into<String>, amount: u64) -> Result<Self, $error> {
            let amount = i64::try_from(amount).unwrap_or(i64::MAX);
            let resource = $crate::check_resource(&name.into(), amount).map_err($error::Resource)?;
            $crate::HasOptions::options(&mut self).$name.push(resource);
            Ok(self)
        }
    };
}
