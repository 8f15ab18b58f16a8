//! A process without tracing: tasks run, spans record nothing, and what they pass on belongs to the submission's trace.

#![cfg(feature = "otel-0-33")]

mod support;

use opentelemetry::baggage::BaggageExt;
use opentelemetry::trace::{TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue, global};
use serde_json::json;
use support::{Call, UNTRACED};

#[tracer_sdk::task]
fn context_within() -> Vec<String> {
    global::tracer("task code").in_span("outer", |_| {
        global::tracer("task code").in_span("inner", |context| {
            let span = context.span();
            span.set_attribute(KeyValue::new("a", 1));
            let own = span.span_context();
            let baggage = Context::map_current(|context| context.baggage().to_string());
            vec![own.trace_id().to_string(), own.span_id().to_string(), span.is_recording().to_string(), baggage]
        })
    })
}

#[test]
fn spans_pass_on_the_context_of_the_submission() {
    let mut call = Call { host: &UNTRACED, is_recorded: false, baggage: "k=v", ..Call::new(json!([])) };
    call.context.is_remote = true;
    let called = call.run("context_within");
    let expected = json!(["00000000000000000000000000000abc", "0000000000000def", "false", "k=v"]);
    assert_eq!(called.result, Ok(expected));
    assert_eq!(called.spans, []);
}

#[test]
fn without_a_submission_there_is_no_context() {
    let mut call = Call { host: &UNTRACED, is_recorded: false, ..Call::new(json!([])) };
    call.context = support::Context::default();
    let expected = json!(["0".repeat(32), "0".repeat(16), "false", ""]);
    assert_eq!(call.run("context_within").result, Ok(expected));
}
