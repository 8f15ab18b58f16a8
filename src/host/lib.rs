//! The host's side of the module boundary: finds and loads libraries, runs hooks, lends tasks their spans, and records every span in the spool.
//!
//! **For** workers, drivers and the HTTP API, which make spans, and for the verbs that describe modules. **Uses** `tracer-core`, `tracer-ipc`
//! and `tracer-abi`; the other side of the boundary is `tracer-sdk`, which it does not know.
//!
//! **Never** talks to a head, or decides what a task does next. What it has to say goes to the log of its process, through `hook::log` alone. Only [`hook::Module`] opens a shared library, and only here are the
//! ABI's pointers followed.
//!
//! | | |
//! |---|---|
//! | [`hook`] | modules and their search path, hooks, the recorder, delivery of spans to additional hooks |
//! | [`module_store`] | private copies of libraries, by content: what was built last is what runs |
//! | [`attempt_span`], [`runtime_spans`], [`recorded_arguments`] | the spans that tracer itself makes, and their attributes |
//! | [`static_tls`] | room for the thread-local variables of libraries, in processes that load them |

pub mod attempt_span;
pub mod hook;
pub mod module_store;
pub mod recorded_arguments;
pub mod runtime_spans;
pub mod static_tls;
