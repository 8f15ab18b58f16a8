//! The proxy for OpenTelemetry 0.31.

use opentelemetry_0_31 as api;
use opentelemetry_0_31::trace::{SpanBuilder, Status};

// The other versions load the same file: what differs between them is in this one.
#[allow(clippy::duplicate_mod)]
#[path = "spans.rs"]
mod spans;

#[cfg(feature = "async")]
pub(super) use api::Context as Held;
pub(super) use spans::{Guard, attach, current_headers, current_plain, install, is_in_place};
pub use spans::{Span, Tracer, TracerProvider};

/// The status that the builder of a span asks for. Its ids are not taken: they are the hook's to make.
fn builder_status(builder: &mut SpanBuilder) -> Status {
    std::mem::take(&mut builder.status)
}
