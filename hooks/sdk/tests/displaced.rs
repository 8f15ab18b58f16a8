//! A module that puts a provider of its own in the proxy's place, as code does that was written to stand alone.

#![cfg(feature = "otel-0-33")]

mod support;

use opentelemetry::global;
use opentelemetry::trace::noop::NoopTracerProvider;
use serde_json::json;
use support::Call;

#[tracer_sdk::task]
fn displaces() {
    global::set_tracer_provider(NoopTracerProvider::new());
}

#[test]
fn displaced_proxy_is_reported_once() {
    for _ in 0..2 {
        assert_eq!(Call::new(json!([])).run("displaces").result, Ok(json!(null)));
    }
    let expected = "module `tracer-sdk` has replaced its global tracer provider (OpenTelemetry 0.33), so its spans do \
                    not belong to its tasks\n(hint: leave `set_tracer_provider` to the startup hook)";
    assert_eq!(support::log(), [(tracer_abi::LOG_WARN, expected.to_owned())]);
}
