//! Task code that uses the `tracing` crate, with the subscriber that it gets when it sets none.

#![cfg(any(feature = "tracing", feature = "tracing-0-31"))]

mod support;

use serde_json::json;
use support::{Call, TRACED, module};
use tracing::{debug, error, info, instrument, trace_span};

#[tracer_sdk::task]
fn outer(number: i64) -> i64 {
    info!("an event outside of any span of `tracing` is dropped, as everywhere");
    inner(number)
}

#[instrument]
fn inner(number: i64) -> i64 {
    info!(doubled = number * 2, "doubling");
    debug!("not at this level");
    let _too_fine = trace_span!("too fine").entered();
    if number == 0 {
        error!("nothing to double");
    }
    number * 2
}

// One test, because it changes the environment, which no other thread may read meanwhile.
#[test]
fn spans_and_events_of_tracing_belong_to_the_task() {
    // SAFETY: this is the only test of the program, and no other thread uses the environment.
    unsafe { std::env::remove_var("RUST_LOG") };
    module(&TRACED);
    let called = Call::new(json!([4])).run("outer");
    assert_eq!(called.result, Ok(json!(8)));
    assert_eq!(called.spans.len(), 1);
    let span = &called.spans[0];
    assert_eq!((span.name.as_str(), &span.attributes["number"]), ("inner", &json!(4)));
    assert_eq!(span.parent.as_ref().map(|parent| parent.span_id), Some(0xdef));
    assert_eq!(span.scope.0, "tracer-sdk", "the scope is the crate that the task is in");
    assert_eq!(span.scope.1, env!("CARGO_PKG_VERSION"));
    let events: Vec<_> =
        span.events.iter().map(|(name, _, attributes)| (name.as_str(), &attributes["doubled"])).collect();
    assert_eq!(events, [("doubling", &json!(8))]);
    assert_eq!((span.status.clone(), span.ends.len(), span.releases), (None, 1, 1));

    // An event at level `error` is the status of its span.
    let called = Call::new(json!([0])).run("outer");
    let status = called.spans[0].status.as_ref().map(|(code, _)| *code);
    assert_eq!(status, Some(tracer_abi::SPAN_STATUS_ERROR));
}
