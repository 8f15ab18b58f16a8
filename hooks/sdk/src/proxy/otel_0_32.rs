//! The proxy for OpenTelemetry 0.32.

use opentelemetry_0_32 as api;
use opentelemetry_0_32::trace::{SpanBuilder, Status};

// The other versions load the same file: what differs between them is in this one.
#[allow(clippy::duplicate_mod)]
#[path = "spans.rs"]
mod spans;

#[cfg(feature = "async")]
pub(super) use api::Context as Held;
pub(super) use spans::{Guard, attach, current_headers, current_plain, install, is_in_place};
pub use spans::{Span, Tracer, TracerProvider};

/// The status that the builder of a span asks for: since this version it cannot.
fn builder_status(_builder: &mut SpanBuilder) -> Status {
    Status::Unset
}
