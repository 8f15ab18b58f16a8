//! Tracing hooks: a description of a process's tracing becomes the table that the host drives.
//!
//! A hook is a function without arguments. It returns anything that is [`IntoTracing`]: most often a [`Tracing`], made with
//! [`Tracing::builder`], whose methods have the names they have in `opentelemetry_sdk`'s `TracerProviderBuilder`. [`export`]
//! runs it and hands out a [`tracer_abi::Tracing`] behind which the SDK of this very library records, samples and
//! exports. The host reaches the SDK by no other way.
//!
//! ```
//! use tracer_sdk::hook::{Error, Tracing};
//!
//! fn setup_tracing() -> Result<Tracing, Error> {
//!     let endpoint = std::fs::read_to_string("/dev/null")?; // Any error can be returned with `?`.
//!     Ok(Tracing::builder().with_description(format!("spans to `{endpoint}`")).build())
//! }
//! # assert!(tracer_sdk::hook::export(setup_tracing).is_ok());
//! ```
//!
//! What the hook does not say gets a default, and what it says is never replaced: see [`TracingBuilder::build`].
//!
//! # What a sampler and a span processor see
//!
//! The parent of a span arrives as a bare span context, with tracestate and baggage. It is not recording, and other
//! values that a task kept in its `Context` are not there: they live in another library's copy of OpenTelemetry.
//!
//! # What this module does not do
//!
//! It does not set OpenTelemetry's global provider: nobody outside this library would see it. It does not load or call
//! hooks; the host does.

mod additions;
mod box_ring;
mod builder;
mod convert;
mod delivery;
mod direct;
mod given_up;
mod guard;
mod intern;
mod into_tracing;
mod limits;
mod lock;
mod logs;
mod otlp;
mod pause;
mod request_stamps;
mod ring;
mod running_request;
mod sink;
mod sync;
mod table;

pub use builder::{SAMPLING_RATIO_VARIABLE, SERVICE_VARIABLE, Tracing, TracingBuilder};
pub use convert::trace_state_as_sent;
pub use delivery::{refused, refused_in_part};
pub use direct::{AttributeValue, RenderedSpan, SpanWriter};
pub use given_up::GivenUpLogRecords;
pub use guard::{DurableProcessor, FileFormat, GuardedExporter, LostSpans};
pub use into_tracing::{Error, IntoProcessors, IntoTracing};
pub use otlp::decode as decode_otlp;
pub use pause::{Pause, SharedPause};
pub use request_stamps::RequestStamps;
pub use running_request::{RunningRequest, running_request};

/// Runs a hook and returns the table for it, which lives as long as the process.
///
/// `#[startup_hook]` calls it; a hook's author need not. A panic of the hook goes on to the caller, who must not let it
/// cross the boundary. On failure: the text of the hook's error.
pub fn export<R: IntoTracing>(setup: fn() -> R) -> Result<*const tracer_abi::Tracing, String> {
    match setup().into_tracing() {
        Ok(tracing) => Ok(table::leak(tracing)),
        Err(error) => Err(error.to_string()),
    }
}

/// Runs an exporter and returns the table of a provider around its processors, as [`export`] does for a hook.
///
/// `#[tracing_exporter]` calls it.
pub fn export_processors<R: IntoProcessors>(setup: fn() -> R) -> Result<*const tracer_abi::Tracing, String> {
    match setup().into_processors().and_then(IntoTracing::into_tracing) {
        Ok(tracing) => Ok(table::leak(tracing)),
        Err(error) => Err(error.to_string()),
    }
}
