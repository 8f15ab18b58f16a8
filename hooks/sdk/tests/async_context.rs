//! The task's span in async tasks: current whenever the task's own future runs, and at no other time. Beyond, it is carried by hand.

#![cfg(all(feature = "async", feature = "otel-0-33"))]

mod support;

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use opentelemetry::trace::{FutureExt, Span, TraceContextExt, Tracer, get_active_span};
use opentelemetry::{Context, KeyValue, global};
use serde_json::json;
use support::Call;
use tokio::task::{spawn, yield_now};

/// Held while calls are made: as in a worker, there is one at a time, and all of them run in the same runtime.
static CALLS: Mutex<()> = Mutex::new(());

fn current() -> String {
    get_active_span(|span| span.span_context().span_id().to_string())
}

async fn step(name: &'static str) -> [String; 2] {
    let span = global::tracer("async").start(name);
    let own = span.span_context().span_id().to_string();
    let context = Context::current_with_span(span);
    let work = async {
        yield_now().await;
        let before = current();
        yield_now().await;
        [before, current()]
    };
    let seen = work.with_context(context).await;
    assert_eq!(seen, [own.as_str(), own.as_str()]);
    seen
}

#[tracer_sdk::task]
async fn interleaved() -> Vec<String> {
    let before = current();
    yield_now().await;
    tokio::join!(step("left"), step("right"));
    let carried = spawn(async { current() }.with_context(Context::current()));
    let bare = spawn(async { Context::current().has_active_span().to_string() });
    let (carried, bare) = tokio::join!(carried, bare);
    get_active_span(|span| span.set_attribute(KeyValue::new("done", true)));
    vec![before, carried.expect("it does not panic"), bare.expect("it does not panic"), current()]
}

#[test]
fn task_span_is_current_at_every_poll() {
    let _calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let called = Call::new(json!([])).run("interleaved");
    let own = "0000000000000def";
    // A future that was spawned without a context runs on the task's thread, in between, where the task's span is not current.
    assert_eq!(called.result, Ok(json!([own, own, "false", own])));
    assert_eq!(called.task_span.attributes, json!({"done": true}));
    let spans: Vec<_> =
        called.spans.iter().map(|span| (span.name.as_str(), span.parent.clone().map(|it| it.span_id))).collect();
    assert_eq!(spans, [("left", Some(0xdef)), ("right", Some(0xdef))]);
}

#[tracer_sdk::task]
async fn leaves_a_future() {
    spawn(async {
        yield_now().await;
        let call = tracer_sdk::runtime_context().map(|context| context.task_id);
        *LEFT.lock().expect("nobody panics with it") = Some(format!("{} {call:?}", current()));
    });
}

#[tracer_sdk::task]
async fn lets_it_run() -> String {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        assert!(Instant::now() < deadline, "the future that was left behind does not run");
        if let Some(seen) = LEFT.lock().expect("nobody panics with it").take() {
            return seen;
        }
        yield_now().await;
    }
}

static LEFT: Mutex<Option<String>> = Mutex::new(None);

#[test]
fn a_future_that_a_task_left_behind_does_not_see_the_next_one() {
    let _calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(Call::new(json!([])).run("leaves_a_future").result, Ok(json!(null)));
    let called = Call::new(json!([])).run("lets_it_run");
    assert_eq!(called.result, Ok(json!("0000000000000000 None")));
    assert_eq!(called.spans, []);
}
