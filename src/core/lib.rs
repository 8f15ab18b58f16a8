//! The values of tracer: what a task is, how it ended, how a trace context travels, and the words that people and files use for them.
//!
//! **For** every other crate of tracer. **Uses** nothing of tracer: only the standard library and serde's formats.
//!
//! **Never** opens a file or a socket, starts a process or a thread, loads a library, prints, or makes a span. The one thing it asks the
//! operating system for is the time of day ([`clock::now_unix_nano`]), and no decision in here depends on it. There is no `unsafe` code.
//!
//! | | |
//! |---|---|
//! | [`task`] | tasks as values: ids, envelope, options, outcome, attempts |
//! | [`PlaceId`], [`ClusterTaskId`] | ids that hold beyond one head |
//! | [`propagation`] | `traceparent`, `tracestate`, `baggage`: strict parsers and writers |
//! | [`codec`] | the fixed layout of hot messages and journal records |
//! | [`value`] | arguments and results: MessagePack on the wire, JSON for people |
//! | [`names`], [`request_names`] | names of spans and attributes: of tasks, and of requests to services |
//! | [`grpc`] | which requests are of gRPC, and its statuses |
//! | [`hook_contract`], [`sampling_ratio`], [`logs`], [`module_name`] | words of the tracing settings that travel in messages |
//! | [`clock`], [`duration`], [`size`], [`count`] | time and quantities, as numbers and as text |
//! | [`pattern`], [`suggestion`] | names as people type them |
//! | [`exit`] | the exit codes of the program |
//! | [`hosts`], [`routes`] | the application of a request: by its host, and by the longest prefix of its path |
//! | [`address`] | the address of a server that only this machine reaches |
//! | `problem`, `parameters` | what is wrong with a request over HTTP, and its parameters (feature `http`) |
//! | [`hex`], [`http_field`] | bytes as hexadecimal digits; names and values of HTTP |
//! | [`paged_map`] | a map by ids that come in runs |
//! | [`lock`] | locks of data that stays whole when a thread panics |
//! | [`causes`] | errors with their causes, as people are told them |
//! | [`escape`] | control characters of others, shown escaped |

#![forbid(unsafe_code)]

pub mod address;
pub mod causes;
pub mod clock;
pub mod codec;
pub mod count;
pub mod duration;
pub mod escape;
pub mod exit;
pub mod grpc;
pub mod hex;
pub mod hook_contract;
pub mod hosts;
pub mod http_field;
pub mod lock;
pub mod logs;
pub mod metric_names;
pub mod module_name;
pub mod names;
pub mod paged_map;
#[cfg(feature = "http")]
pub mod parameters;
pub mod pattern;
mod place_id;
#[cfg(feature = "http")]
pub mod problem;
pub mod propagation;
pub mod queue;
pub mod request_names;
pub mod routes;
pub mod sampling_ratio;
pub mod size;
mod stored;
pub mod suggestion;
pub mod task;
pub mod value;

pub use hook_contract::HookContract;
pub use logs::{LogEvents, LogLevel, LogSettings};
pub use place_id::{ClusterTaskId, ClusterTaskText, PlaceId, PlaceIdError};
pub use sampling_ratio::{SamplingRatio, SamplingRatioError};
pub use stored::Stored;
