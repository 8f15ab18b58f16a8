//! The span of the program's own that is current where it submits.

use opentelemetry::Context;
use opentelemetry::baggage::BaggageExt;
use opentelemetry::trace::TraceContextExt;

use tracer_core::propagation::{Carrier, TraceContext, TraceParent};

/// Returns what OpenTelemetry has current on this thread, with its baggage; none without a span.
pub(super) fn carrier() -> Option<Carrier> {
    Context::map_current(|context| {
        if !context.has_active_span() {
            return None;
        }
        let span = context.span();
        let span = span.span_context();
        let parent = TraceParent {
            trace_id: span.trace_id().to_bytes(),
            span_id: span.span_id().to_bytes(),
            flags: span.trace_flags().to_u8(),
        };
        let trace_context = TraceContext { parent, trace_state: span.trace_state().header() };
        span.is_valid().then(|| Carrier { trace_context: Some(trace_context), baggage: context.baggage().to_string() })
    })
}
