//! The proxy for OpenTelemetry 0.33.

use opentelemetry as api;
use opentelemetry::trace::{SpanBuilder, Status};

// The other versions load the same file: what differs between them is in this one.
#[allow(clippy::duplicate_mod)]
#[path = "meters.rs"]
mod meters;
#[allow(clippy::duplicate_mod)]
#[path = "spans.rs"]
mod spans;

#[cfg(feature = "async")]
pub(super) use api::Context as Held;
pub use meters::MeterProvider;
#[cfg(feature = "serve")]
pub(super) use spans::add_link;
pub(super) use spans::{Guard, attach, current_headers, current_plain, is_in_place};
pub use spans::{Span, Tracer, TracerProvider};

/// Makes the proxy this copy's global providers.
pub(super) fn install() {
    spans::install();
    meters::install();
}

/// Returns the status that the builder of a span asks for: since 0.32 it cannot.
fn builder_status(_builder: &mut SpanBuilder) -> Status {
    Status::Unset
}
