//! The hook in this process: spans made with the SDK's own API, read back from the file.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry::trace::{
    Event, Link, Span as _, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState,
    Tracer as _, TracerProvider as _,
};
use opentelemetry::{Array, Context, InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{IdGenerator, SdkTracerProvider};
use serde_json::{Value as Json, json};
use tracer_local_tmp_tracing::{FileProcessor, Rotation};
use tracer_otlp_file::{EXTENSION, OtlpFormat, setup_tracing_in};
use tracer_sdk::hook::{DurableProcessor, IntoTracing};

const TRACE: u128 = 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c;

#[derive(Debug)]
struct Ids;

impl IdGenerator for Ids {
    fn new_trace_id(&self) -> TraceId {
        TraceId::from(TRACE)
    }

    fn new_span_id(&self) -> SpanId {
        SpanId::from(0xab)
    }
}

fn time(nanos: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(nanos)
}

/// Returns what `make` makes with the SDK, as the lines in the file.
fn lines_of(resource: Resource, make: impl FnOnce(&SdkTracerProvider)) -> Vec<Json> {
    let temp = tempfile::tempdir().unwrap();
    let processor =
        FileProcessor::try_with_format(temp.path(), EXTENSION, Rotation::default(), OtlpFormat::default()).unwrap();
    let provider = SdkTracerProvider::builder()
        .with_id_generator(Ids)
        .with_resource(resource)
        .with_span_processor(processor.clone())
        .build();
    make(&provider);
    processor.commit().unwrap();
    let path = temp.path().join(format!("{}.otlp.jsonl", std::process::id()));
    assert_eq!(processor.path(), path);
    let text = fs::read_to_string(path).unwrap();
    assert!(text.ends_with('\n'));
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}"))).collect()
}

#[test]
fn a_span_with_everything_becomes_its_line() {
    let resource = Resource::builder_empty()
        .with_attributes([KeyValue::new("service.name", "test"), KeyValue::new("a", 1)])
        .with_schema_url([], "https://example.org/resource")
        .build();
    let scope = InstrumentationScope::builder("scope")
        .with_version("1.2")
        .with_schema_url("https://example.org/scope")
        .with_attributes([KeyValue::new("part", "x")])
        .build();
    let state = TraceState::from_key_value([("rojo", "1")]).unwrap();
    let parent = SpanContext::new(TraceId::from(TRACE), SpanId::from(0xcd), TraceFlags::SAMPLED, true, state);
    let linked = SpanContext::new(TraceId::from(2), SpanId::from(3), TraceFlags::NOT_SAMPLED, false, TraceState::NONE);
    let lines = lines_of(resource, |provider| {
        let tracer = provider.tracer_with_scope(scope);
        let array = |array| Value::Array(array);
        let mut span = tracer
            .span_builder("whole \"name\"")
            .with_kind(SpanKind::Producer)
            .with_start_time(time(1_700_000_000_123_456_789))
            .with_attributes([
                KeyValue::new("b", true),
                KeyValue::new("i", i64::MIN),
                KeyValue::new("f", 0.5),
                KeyValue::new("nan", f64::NAN),
                KeyValue::new("s", "é\n"),
                KeyValue::new("bs", array(Array::Bool(vec![true, false]))),
                KeyValue::new("is", array(Array::I64(vec![1]))),
                KeyValue::new("fs", array(Array::F64(vec![f64::INFINITY]))),
                KeyValue::new("ss", array(Array::String(vec!["x".into(), "y".into()]))),
                KeyValue::new("none", array(Array::String(vec![]))),
            ])
            .with_links(vec![
                Link::new(parent.clone(), vec![KeyValue::new("why", "retry")], 0),
                Link::new(linked, vec![], 0),
            ])
            .with_events(vec![Event::new("moment", time(2), vec![KeyValue::new("n", 1)], 0)])
            .start_with_context(&tracer, &Context::new().with_remote_span_context(parent));
        span.set_status(Status::error("it broke"));
        span.end_with_timestamp(time(1_700_000_001_000_000_001));
    });
    let expected = json!({"resourceSpans": [{
        "resource": {"attributes": [
            {"key": "a", "value": {"intValue": "1"}},
            {"key": "service.name", "value": {"stringValue": "test"}},
        ]},
        "schemaUrl": "https://example.org/resource",
        "scopeSpans": [{
            "scope": {
                "name": "scope",
                "version": "1.2",
                "attributes": [{"key": "part", "value": {"stringValue": "x"}}],
            },
            "schemaUrl": "https://example.org/scope",
            "spans": [{
                "traceId": "0af7651916cd43dd8448eb211c80319c",
                "spanId": "00000000000000ab",
                "traceState": "rojo=1",
                "parentSpanId": "00000000000000cd",
                "flags": 0x301,
                "name": "whole \"name\"",
                "kind": 4,
                "startTimeUnixNano": "1700000000123456789",
                "endTimeUnixNano": "1700000001000000001",
                "attributes": [
                    {"key": "b", "value": {"boolValue": true}},
                    {"key": "i", "value": {"intValue": "-9223372036854775808"}},
                    {"key": "f", "value": {"doubleValue": 0.5}},
                    {"key": "nan", "value": {"doubleValue": "NaN"}},
                    {"key": "s", "value": {"stringValue": "é\n"}},
                    {"key": "bs", "value": {"arrayValue": {"values": [{"boolValue": true}, {"boolValue": false}]}}},
                    {"key": "is", "value": {"arrayValue": {"values": [{"intValue": "1"}]}}},
                    {"key": "fs", "value": {"arrayValue": {"values": [{"doubleValue": "Infinity"}]}}},
                    {"key": "ss", "value": {"arrayValue": {"values": [{"stringValue": "x"}, {"stringValue": "y"}]}}},
                    {"key": "none", "value": {"arrayValue": {}}},
                ],
                "events": [{
                    "timeUnixNano": "2",
                    "name": "moment",
                    "attributes": [{"key": "n", "value": {"intValue": "1"}}],
                }],
                "links": [
                    {
                        "traceId": "0af7651916cd43dd8448eb211c80319c",
                        "spanId": "00000000000000cd",
                        "traceState": "rojo=1",
                        "attributes": [{"key": "why", "value": {"stringValue": "retry"}}],
                        "flags": 0x301,
                    },
                    {
                        "traceId": "00000000000000000000000000000002",
                        "spanId": "0000000000000003",
                        "flags": 0x100,
                    },
                ],
                "status": {"message": "it broke", "code": 2},
            }],
        }],
    }]});
    assert_eq!(lines, [expected]);
}

#[test]
fn a_bare_span_leaves_out_what_is_empty() {
    let lines = lines_of(Resource::builder_empty().build(), |provider| {
        let tracer = provider.tracer("");
        let mut span = tracer.span_builder("").with_start_time(time(0)).start_with_context(&tracer, &Context::new());
        span.set_status(Status::Ok);
        span.end_with_timestamp(time(1));
    });
    let expected = json!({"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": [{
        "traceId": "0af7651916cd43dd8448eb211c80319c",
        "spanId": "00000000000000ab",
        "flags": 0x101,
        "kind": 1,
        "startTimeUnixNano": "0",
        "endTimeUnixNano": "1",
        "status": {"code": 1},
    }]}]}]});
    assert_eq!(lines, [expected]);
}

#[test]
fn what_the_limits_drop_is_counted_in_the_line() {
    let temp = tempfile::tempdir().unwrap();
    let processor =
        FileProcessor::try_with_format(temp.path(), EXTENSION, Rotation::default(), OtlpFormat::default()).unwrap();
    let provider = SdkTracerProvider::builder()
        .with_max_attributes_per_span(1)
        .with_max_events_per_span(1)
        .with_max_links_per_span(1)
        .with_max_attributes_per_event(1)
        .with_max_attributes_per_link(2)
        .with_span_processor(processor.clone())
        .build();
    let mut span = provider.tracer("test").start("crowded");
    for number in 1..=3 {
        span.set_attribute(KeyValue::new(format!("key {number}"), number));
        let attributes = || (1..=4).map(|number| KeyValue::new(format!("key {number}"), number)).collect();
        span.add_event("event", attributes());
        let context = SpanContext::new(
            TraceId::from(1),
            SpanId::from(number as u64),
            TraceFlags::default(),
            false,
            TraceState::NONE,
        );
        span.add_link(context, attributes());
    }
    span.end();
    processor.commit().unwrap();
    let line: Json = serde_json::from_slice(&fs::read(processor.path()).unwrap()).unwrap();
    let span = &line["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
    for (list, count) in
        [("attributes", "droppedAttributesCount"), ("events", "droppedEventsCount"), ("links", "droppedLinksCount")]
    {
        assert_eq!(span[list].as_array().map(Vec::len), Some(1), "{list} of {span}");
        assert_eq!(span[count], 2, "{count} of {span}");
    }
    assert_eq!(span["events"][0]["droppedAttributesCount"], 3, "{span}");
    assert_eq!(span["links"][0]["droppedAttributesCount"], 2, "{span}");
}

#[test]
fn a_full_file_is_rotated_under_its_own_extension() {
    let temp = tempfile::tempdir().unwrap();
    let rotation = Rotation { max_bytes: 1, keep: 1 };
    let processor = FileProcessor::try_with_format(temp.path(), EXTENSION, rotation, OtlpFormat::default()).unwrap();
    let provider = SdkTracerProvider::builder().with_span_processor(processor.clone()).build();
    for name in ["first", "second"] {
        provider.tracer("test").start(name).end();
        processor.commit().unwrap();
    }
    let name_in = |file: String| {
        let line: Json = serde_json::from_slice(&fs::read(temp.path().join(file)).unwrap()).unwrap();
        line["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["name"].clone()
    };
    let pid = std::process::id();
    assert_eq!(name_in(format!("{pid}.otlp.jsonl")), "second");
    assert_eq!(name_in(format!("{pid}.1.otlp.jsonl")), "first");
}

#[test]
fn the_hook_refuses_a_folder_that_is_a_file() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("file");
    fs::write(&path, "").unwrap();
    let error = setup_tracing_in(&path).into_tracing().err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("is not a folder"), "{error}");
}
