//! The cases, for the version of OpenTelemetry that the parent module calls `otel`.

// The calls of the contract are the test's own host's.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value as Json, json};
use tracer_abi::*;

use super::otel::baggage::BaggageExt;
use super::otel::trace::{
    Event, Link, Span as _, SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId,
    TraceState, Tracer as _, TracerProvider as _, get_active_span,
};
use super::otel::{Array, Context, InstrumentationScope, KeyValue, StringValue, Value, global};
use crate::support::{self, Call, Context as Plain, Making, Span, TRACED, make, take_spans};

/// Returns a tracer of the proxy's, live.
fn tracer(name: &'static str) -> global::BoxedTracer {
    support::module(&TRACED);
    take_spans();
    global::tracer(name)
}

fn remote_parent() -> (Context, Plain) {
    let trace_state = TraceState::from_key_value([("a", "1"), ("b", "2")]).expect("it is valid");
    let parent = SpanContext::new(TraceId::from(0xfeed), SpanId::from(0xbeef), TraceFlags::SAMPLED, true, trace_state);
    let plain = Plain { trace_id: 0xfeed, span_id: 0xbeef, flags: 1, is_remote: true, trace_state: "a=1,b=2".into() };
    (Context::new().with_remote_span_context(parent), plain)
}

/// Returns one attribute of every kind there is.
fn all_kinds() -> (Vec<KeyValue>, Json) {
    let strings = vec![StringValue::from("x"), StringValue::from(String::from("ü"))];
    let attributes = vec![
        KeyValue::new("bool", true),
        KeyValue::new("i64", -7),
        KeyValue::new("f64", 0.5),
        KeyValue::new("str", "text"),
        KeyValue::new("bools", Value::Array(Array::Bool(vec![true, false]))),
        KeyValue::new("i64s", Value::Array(Array::I64(vec![1, -2]))),
        KeyValue::new("f64s", Value::Array(Array::F64(vec![1.5]))),
        KeyValue::new("strs", Value::Array(Array::String(strings))),
        KeyValue::new("none", Value::Array(Array::I64(vec![]))),
    ];
    let expected = json!({
        "bool": true, "i64": -7, "f64": 0.5, "str": "text",
        "bools": [true, false], "i64s": [1, -2], "f64s": [1.5], "strs": ["x", "ü"], "none": [],
    });
    (attributes, expected)
}

#[test]
fn everything_that_a_span_begins_with_arrives() {
    support::module(&TRACED);
    take_spans();
    let scope = InstrumentationScope::builder("lib")
        .with_version("1.2")
        .with_schema_url("https://schema")
        .with_attributes([KeyValue::new("s", 1)])
        .build();
    let tracer = super::TracerProvider::default().tracer_with_scope(scope);
    let (parent_cx, parent) = remote_parent();
    let parent_cx = parent_cx.with_baggage([KeyValue::new("who", "a b,c=%")]);
    let (attributes, expected) = all_kinds();
    let linked = SpanContext::new(TraceId::from(5), SpanId::from(6), TraceFlags::default(), false, TraceState::NONE);
    let at = |nanos| UNIX_EPOCH + Duration::from_nanos(nanos);
    let span = SpanBuilder::from_name("work")
        .with_kind(SpanKind::Client)
        .with_start_time(at(1_234))
        .with_attributes(attributes.clone())
        .with_links(vec![
            Link::new(parent_cx.span().span_context().clone(), attributes.clone(), 0),
            Link::with_context(linked),
        ])
        .with_events(vec![Event::new("first", at(5), attributes.clone(), 0), Event::new("second", at(6), vec![], 0)])
        .start_with_context(&tracer, &parent_cx);

    let spans = take_spans();
    let expected = Span {
        scope: ("lib".into(), "1.2".into(), "https://schema".into(), json!({"s": 1})),
        name: "work".into(),
        kind: SPAN_KIND_CLIENT,
        start: 1_234,
        parent: Some(parent.clone()),
        attributes: expected.clone(),
        links: vec![(parent, expected.clone()), (Plain { trace_id: 5, span_id: 6, ..Plain::default() }, json!({}))],
        events: vec![("first".into(), 5, expected), ("second".into(), 6, json!({}))],
        baggage: "who=a%20b%2Cc%3D%25".into(),
        context: spans[0].context.clone(),
        ..Span::default()
    };
    assert_eq!(spans, [expected]);
    let context = span.span_context();
    assert_eq!(context.trace_id(), TraceId::from(0xfeed));
    assert_eq!(context.span_id(), SpanId::from(spans[0].context.span_id));
    assert!(context.is_sampled() && !context.is_remote());
    assert_eq!(context.trace_state().header(), "a=1,b=2", "a tracer that changes none leaves the parent's");
}

#[test]
fn a_span_without_anything_is_a_root_that_begins_now() {
    let tracer = tracer("bare");
    drop(tracer.start_with_context("bare", &Context::new()));
    let spans = take_spans();
    assert_eq!(spans.len(), 1);
    let expected = Span {
        scope: ("bare".into(), String::new(), String::new(), json!({})),
        name: "bare".into(),
        attributes: json!({}),
        releases: 1,
        context: spans[0].context.clone(),
        ..Span::default()
    };
    assert_eq!(spans[0], Span { ends: vec![], ..expected });
}

#[test]
fn everything_that_happens_to_a_span_arrives() {
    let tracer = tracer("changes");
    let (attributes, expected) = all_kinds();
    let mut span = tracer.start_with_context("before", &Context::new());
    assert!(span.is_recording());
    span.set_attributes(attributes.clone());
    span.set_attribute(KeyValue::new("i64", 8));
    span.add_event_with_timestamp("event", UNIX_EPOCH + Duration::from_nanos(9), attributes.clone());
    span.record_error(&std::fmt::Error);
    let (parent_cx, linked) = remote_parent();
    span.add_link(parent_cx.span().span_context().clone(), attributes);
    span.set_status(Status::error("first"));
    span.update_name("after");
    span.end_with_timestamp(UNIX_EPOCH + Duration::from_nanos(10));
    assert!(!span.is_recording());
    span.set_attribute(KeyValue::new("late", true));
    span.add_event("late", vec![]);
    span.set_status(Status::Ok);
    span.update_name("late");
    span.end();
    drop(span);

    let span = take_spans().remove(0);
    let mut changed = expected.clone();
    changed["i64"] = json!(8);
    assert_eq!((span.name.as_str(), &span.attributes), ("after", &changed));
    assert_eq!(span.events[0], ("event".to_owned(), 9, expected.clone()));
    assert_eq!(span.events[1].0, "exception");
    assert_eq!(span.events.len(), 2);
    assert_eq!(span.links, [(linked, expected)]);
    assert_eq!(span.status, Some((SPAN_STATUS_ERROR, "first".to_owned())));
    assert_eq!((span.ends, span.releases), (vec![10], 1));
}

#[test]
fn many_attributes_arrive_together() {
    let tracer = tracer("many");
    let attributes: Vec<_> = (0..40).map(|number| KeyValue::new(format!("key {number}"), number)).collect();
    let mut span = tracer.start_with_context("many", &Context::new());
    span.set_attributes(attributes);
    drop(span);
    let span = take_spans().remove(0);
    assert_eq!(span.attributes.as_object().map(serde_json::Map::len), Some(40));
    assert_eq!(span.attributes["key 39"], json!(39));
}

#[test]
fn kinds_are_told_apart() {
    let tracer = tracer("kinds");
    for kind in [SpanKind::Internal, SpanKind::Server, SpanKind::Client, SpanKind::Producer, SpanKind::Consumer] {
        drop(tracer.span_builder("kind").with_kind(kind).start_with_context(&tracer, &Context::new()));
    }
    let kinds: Vec<_> = take_spans().iter().map(|span| span.kind).collect();
    let expected = [SPAN_KIND_INTERNAL, SPAN_KIND_SERVER, SPAN_KIND_CLIENT, SPAN_KIND_PRODUCER, SPAN_KIND_CONSUMER];
    assert_eq!(kinds, expected);
}

#[test]
fn spans_that_are_not_recorded_carry_their_context_and_nothing_else() {
    let tracer = tracer("sampled out");
    for making in [Making::Dropped, Making::Unrecorded] {
        make(making);
        let (parent_cx, parent) = remote_parent();
        let mut span = tracer.start_with_context("unseen", &parent_cx);
        assert!(!span.is_recording());
        span.set_attribute(KeyValue::new("a", 1));
        assert_eq!(span.span_context().trace_id(), TraceId::from(parent.trace_id));
        let context = span.span_context().clone();
        span.end();
        drop(span);
        let seen = take_spans().remove(0);
        assert_eq!(context.span_id(), SpanId::from(seen.context.span_id));
        assert!(!context.is_sampled());
        assert_eq!((seen.attributes, seen.ends), (json!({}), vec![]));
        assert_eq!(seen.releases, u32::from(making == Making::Unrecorded), "what has no handle is not released");
    }
}

#[test]
fn tracestate_of_a_sampler_is_read_however_long() {
    let tracer = tracer("tracestate");
    make(Making::WithTraceState);
    let span = tracer.start_with_context("span", &Context::new());
    let header = span.span_context().trace_state().header();
    assert!(header.starts_with("made=here,long=xxx") && header.ends_with("zzz"), "{header}");
    assert!(header.len() > 512, "{}", header.len());
}

#[test]
fn suppressed_context_makes_no_spans() {
    let tracer = tracer("suppressed");
    let (parent_cx, _) = remote_parent();
    let span = tracer.start_with_context("quiet", &parent_cx.with_telemetry_suppressed());
    assert!(!span.is_recording());
    assert!(!span.span_context().is_valid());
    assert_eq!(take_spans(), []);
}

#[test]
fn tracer_that_the_host_does_not_want_passes_the_context_on() {
    let tracer = tracer("unwanted");
    let (parent_cx, _) = remote_parent();
    let span = tracer.start_with_context("span", &parent_cx);
    assert_eq!(span.span_context(), parent_cx.span().span_context());
    assert!(!span.is_recording());
    assert_eq!(take_spans(), []);
}

#[test]
fn tracer_from_before_the_load_goes_live() {
    let early = super::TracerProvider::default().tracer("early");
    support::module(&TRACED);
    take_spans();
    drop(early.start_with_context("span", &Context::new()));
    assert_eq!(take_spans()[0].scope.0, "early");
}

/// Returns what is current, and a span below it.
fn look_around() -> Json {
    let (trace_id, span_id, trace_state) = get_active_span(|span| {
        span.set_attribute(KeyValue::new("seen", true));
        span.update_name("renamed");
        span.end();
        span.set_attribute(KeyValue::new("after the end", true));
        let context = span.span_context();
        (context.trace_id(), context.span_id(), context.trace_state().header())
    });
    let context = Context::current();
    let mut baggage: Vec<_> =
        context.baggage().iter().map(|(key, (value, rest))| format!("{key}={value};{rest}")).collect();
    baggage.sort();
    global::tracer("task code").in_span("child", |_| {});
    json!([format!("{trace_id:x}"), format!("{span_id:x}"), trace_state, baggage])
}

mod task_code {
    use super::*;

    #[tracer_sdk::task]
    pub(crate) fn look() -> Json {
        look_around()
    }

    #[tracer_sdk::task]
    pub(crate) fn panics() {
        let span = global::tracer("task code").start("open");
        let _attached = Context::current_with_span(span).attach();
        panic!("in the middle");
    }

    #[tracer_sdk::task]
    pub(crate) fn errs() -> Result<(), &'static str> {
        let span = global::tracer("task code").start("open");
        let _attached = Context::current_with_span(span).attach();
        Err("in the middle")
    }

    /// Keeps its context beyond its end.
    #[tracer_sdk::task]
    pub(crate) fn keeps() {
        KEPT.set(Some(Context::current()));
    }

    /// Attaches a context and forgets it.
    #[tracer_sdk::task]
    pub(crate) fn leaks() {
        std::mem::forget(Context::current_with_span(global::tracer("task code").start("leaked")).attach());
    }
}

thread_local! {
    static KEPT: std::cell::Cell<Option<Context>> = const { std::cell::Cell::new(None) };
}

tracer_sdk::builtin_module! {
    fn cases, tasks = [task_code::look, task_code::panics, task_code::errs, task_code::keeps, task_code::leaks]
}

fn run(call: Call, name: &str) -> support::Called {
    support::module(&TRACED);
    // This version's tasks and not those of the same name that are made for the other.
    call.run_in(unsafe { &*cases() }, name)
}

#[test]
fn the_task_span_is_current_and_cannot_be_ended() {
    let call = Call { baggage: "who=me;p=1,rate=50%25", ..Call::new(json!([])) };
    let called = run(call, "look");
    let expected = json!(["abc", "def", "vendor=1,other=2", ["rate=50%;", "who=me;p=1"]]);
    assert_eq!(called.result, Ok(expected));
    assert_eq!(called.task_span.attributes, json!({"seen": true, "after the end": true}));
    assert_eq!(called.task_span.name, "renamed");
    assert_eq!((called.task_span.ends, called.task_span.releases), (vec![], 0));
    let child = &called.spans[0];
    let parent =
        Plain { trace_id: 0xabc, span_id: 0xdef, flags: 1, is_remote: false, trace_state: "vendor=1,other=2".into() };
    assert_eq!((child.name.as_str(), &child.parent), ("child", &Some(parent)));
    assert!(child.baggage == "who=me;p=1,rate=50%25" || child.baggage == "rate=50%25,who=me;p=1", "{}", child.baggage);
    assert_eq!((child.ends.len(), child.releases), (0, 1), "released without an end, which ends it now");
    assert!(!Context::current().has_active_span(), "the task's context is detached");
}

#[test]
fn span_that_is_not_recorded_is_still_the_parent() {
    let mut call = Call { is_recorded: false, ..Call::new(json!([])) };
    call.context.is_remote = true;
    call.context.flags = 0;
    let called = run(call, "look");
    assert!(called.result.is_ok());
    assert_eq!(called.task_span.attributes, json!({}));
    let parent = called.spans[0].parent.clone().expect("it has one");
    assert_eq!((parent.span_id, parent.flags, parent.is_remote), (0xdef, 0, true));
}

#[test]
fn panic_ends_what_was_open_and_detaches() {
    let called = run(Call::new(json!([])), "panics");
    assert!(called.result.is_err());
    assert_eq!((called.spans[0].name.as_str(), called.spans[0].releases), ("open", 1));
    assert!(!Context::current().has_active_span());
}

#[test]
fn task_span_that_was_kept_too_long_writes_into_the_void() {
    let called = run(Call::new(json!([])), "keeps");
    assert!(called.result.is_ok());
    let kept = KEPT.take().expect("the task kept it");
    assert_eq!(kept.span().span_context().span_id(), SpanId::from(0xdef));
    assert!(!kept.span().is_recording());
    kept.span().set_attribute(KeyValue::new("late", true));
    assert_eq!(called.task_handle.0.lock().expect("nobody panics with it").attributes, json!({}));
}

#[test]
fn the_context_after_a_task_is_the_one_before_it() {
    let (context, outer) = remote_parent();
    let _attached = context.with_baggage([KeyValue::new("outer", "entry")]).attach();
    for (name, arguments, is_fine) in [
        ("look", json!([]), true),
        ("errs", json!([]), false),
        ("panics", json!([]), false),
        ("look", json!([1]), false),
    ] {
        let call = Call { baggage: "who=me", ..Call::new(arguments) };
        assert_eq!(run(call, name).result.is_ok(), is_fine, "{name}");
        let current = Context::current();
        assert_eq!(current.span().span_context().span_id(), SpanId::from(outer.span_id), "{name}");
        assert_eq!(current.baggage().to_string(), "outer=entry", "{name}");
    }
}

#[test]
fn context_that_a_task_leaks_is_not_the_next_ones() {
    assert!(run(Call::new(json!([])), "leaks").result.is_ok());
    let called = run(Call::new(json!([])), "look");
    let parent = called.spans[0].parent.clone().expect("it has one");
    assert_eq!(parent.span_id, 0xdef);
}

#[test]
fn tracestate_members_that_this_version_refuses_are_kept_under_a_legal_key() {
    let mut call = Call::new(json!([]));
    // Two members of the recommendation's second level, which the crate does not know.
    call.context.trace_state = format!("good=1,{}@long=2,also=3", "a".repeat(20) + "@" + &"b".repeat(18));
    let called = run(call, "look").result.expect("it runs");
    assert_eq!(called[2], json!("good=1,tracer-level2/1=aaaaaaaaaaaaaaaaaaaa@bbbbbbbbbbbbbbbbbb@long:2,also=3"));
}

#[test]
fn proxy_that_is_in_place_is_not_reported() {
    assert!(run(Call::new(json!([])), "look").result.is_ok());
    assert_eq!(support::log(), []);
}
