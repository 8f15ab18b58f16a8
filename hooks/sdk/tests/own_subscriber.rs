//! A module that sets a subscriber of its own when it is loaded, with the SDK's layer in it.

#![cfg(any(feature = "tracing", feature = "tracing-0-31"))]

mod support;

use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::json;
use support::Call;
use tracing::Subscriber;
use tracing::subscriber::SetGlobalDefaultError;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::{Layer, registry};

static EVENTS: AtomicU32 = AtomicU32::new(0);

/// Counts events.
struct Counting;

impl<S: Subscriber> Layer<S> for Counting {
    fn on_event(&self, _: &tracing::Event<'_>, _: Context<'_, S>) {
        EVENTS.fetch_add(1, Ordering::Relaxed);
    }
}

#[tracer_sdk::on_load]
fn subscribe() -> Result<(), SetGlobalDefaultError> {
    tracing::subscriber::set_global_default(registry().with(Counting).with(tracer_sdk::layer()))
}

#[tracer_sdk::task]
fn traces() {
    let _span = tracing::debug_span!("fine").entered();
    tracing::debug!("noticed");
}

#[test]
fn own_subscriber_stays_and_its_spans_arrive() {
    let called = Call::new(json!([])).run("traces");
    assert_eq!(called.result, Ok(json!(null)));
    assert_eq!(called.spans.len(), 1, "the default subscriber would have left out what is below `info`");
    assert_eq!((called.spans[0].name.as_str(), called.spans[0].events.len()), ("fine", 1));
    assert_eq!(EVENTS.load(Ordering::Relaxed), 1);
}
