//! The cases of the proxy for OpenTelemetry 0.31.

use opentelemetry_0_31 as otel;
use tracer_sdk::proxy::otel_0_31::TracerProvider;

// The other version loads the same file.
#[allow(clippy::duplicate_mod)]
#[path = "proxy.rs"]
mod cases;

#[test]
fn status_in_a_builder_is_set() {
    use otel::trace::{SpanBuilder, Status, TracerProvider as _};

    use crate::support::{TRACED, module, take_spans};

    module(&TRACED);
    take_spans();
    let tracer = TracerProvider::default().tracer("status");
    let builder = SpanBuilder::from_name("failed").with_status(Status::error("at once"));
    drop(builder.start_with_context(&tracer, &otel::Context::new()));
    assert_eq!(take_spans()[0].status, Some((tracer_abi::SPAN_STATUS_ERROR, "at once".to_owned())));
}
