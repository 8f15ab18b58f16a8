//! The exporter in this process: spans made with the SDK's own API, as the lines they become.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry::trace::{
    Event, Link, Span as _, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState,
    Tracer as _, TracerProvider as _,
};
use opentelemetry::{Array, Context, InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{IdGenerator, SdkTracerProvider, SpanData, SpanEvents, SpanExporter, SpanLinks};
use serde_json::Value as Json;
use tracer_console::{ConsoleExporter, Format};

#[derive(Debug)]
struct Ids;

impl IdGenerator for Ids {
    fn new_trace_id(&self) -> TraceId {
        TraceId::from(0xa)
    }

    fn new_span_id(&self) -> SpanId {
        SpanId::from(0xb)
    }
}

/// Keeps each write apart, until there is no more room for one.
#[derive(Clone, Debug, Default)]
struct Writes {
    done: Arc<Mutex<Vec<String>>>,
    is_closed: bool,
}

impl Write for Writes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_closed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.done.lock().unwrap().push(String::from_utf8(bytes.to_vec()).unwrap());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn time(nanos: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(nanos)
}

fn provider(format: Format, writes: &Writes) -> SdkTracerProvider {
    SdkTracerProvider::builder()
        .with_id_generator(Ids)
        .with_resource(Resource::builder_empty().with_attributes([KeyValue::new("service.name", "test")]).build())
        .with_simple_exporter(ConsoleExporter::new(format, writes.clone()))
        .build()
}

/// Returns one span with everything, as its one line without the beginning.
fn line_of_a_whole_span(format: Format) -> String {
    let writes = Writes::default();
    let provider = provider(format, &writes);
    let tracer = provider.tracer("test");
    let parent = SpanContext::new(TraceId::from(1), SpanId::from(2), TraceFlags::SAMPLED, true, TraceState::NONE);
    let mut span = tracer
        .span_builder("two\nlines")
        .with_kind(SpanKind::Server)
        .with_start_time(time(1_000))
        .with_attributes([
            KeyValue::new("words", 3),
            KeyValue::new("two words", "a \"b\" \u{1b}[31m \u{9b}"),
            KeyValue::new("floats", Value::Array(Array::F64(vec![0.5, f64::NAN]))),
            KeyValue::new("flags", Value::Array(Array::Bool(vec![]))),
        ])
        .with_links(vec![Link::new(parent.clone(), vec![KeyValue::new("why", "retry")], 0)])
        .with_events(vec![Event::new("moment", time(1_250), vec![KeyValue::new("n", 1)], 0)])
        .start_with_context(&tracer, &Context::new().with_remote_span_context(parent));
    span.set_status(Status::error("it broke"));
    span.end_with_timestamp(time(1_501_000));
    let writes = writes.done.lock().unwrap();
    let [line] = &writes[..] else { panic!("one write for one span: {writes:?}") };
    assert_eq!(line.matches('\n').count(), 1, "{line}");
    line.strip_prefix(&format!("[pid {}] ", std::process::id())).unwrap().to_owned()
}

#[test]
fn a_span_as_text_is_one_line_for_people() {
    assert_eq!(
        line_of_a_whole_span(Format::Text),
        "\"two\\nlines\" SERVER 1.5 ms trace_id=00000000000000000000000000000001 span_id=000000000000000b \
         parent_id=0000000000000002 status=ERROR \"it broke\" words=3 \
         \"two words\"=\"a \\\"b\\\" \\u001b[31m \u{fffd}\" floats=[0.5,\"NaN\"] flags=[] \
         event \"moment\" +250 ns n=1 link 00000000000000000000000000000001-0000000000000002 why=\"retry\"\n"
    );
}

#[test]
fn a_span_as_json_is_the_object_of_the_default_hook() {
    let object: Json = serde_json::from_str(&line_of_a_whole_span(Format::Json)).unwrap();
    assert_eq!(object["name"], "two\nlines");
    assert_eq!(object["kind"], "SpanKind.SERVER");
    assert_eq!(object["context"]["span_id"], "0x000000000000000b");
    assert_eq!(object["parent_id"], "0x0000000000000002");
    assert_eq!(object["attributes"]["words"], 3);
    assert_eq!(object["resource"]["attributes"]["service.name"], "test");
}

/// Returns a span that has ended, for an exporter.
fn ended() -> SpanData {
    SpanData {
        span_context: SpanContext::new(1.into(), 2.into(), TraceFlags::SAMPLED, false, TraceState::NONE),
        parent_span_id: SpanId::INVALID,
        parent_span_is_remote: false,
        span_kind: SpanKind::Internal,
        name: "ended".into(),
        start_time: time(1),
        end_time: time(2),
        attributes: vec![],
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: Status::Unset,
        instrumentation_scope: InstrumentationScope::default(),
    }
}

fn export(exporter: &ConsoleExporter<Writes>, spans: Vec<SpanData>) -> OTelSdkResult {
    let mut exporting = std::pin::pin!(exporter.export(spans));
    match exporting.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(result) => result,
        std::task::Poll::Pending => panic!("an export blocks, it does not wait"),
    }
}

#[test]
fn spans_that_cannot_be_written_are_not_exported() {
    let closed = Writes { is_closed: true, ..Writes::default() };
    let error = export(&ConsoleExporter::new(Format::Text, closed), vec![ended()]).unwrap_err().to_string();
    assert!(error.contains("spans cannot be written to standard error: broken pipe"), "{error}");
}

#[test]
fn a_line_begins_with_the_process_that_made_the_span() {
    let writes = Writes::default();
    let mut exporter = ConsoleExporter::new(Format::Text, writes.clone());
    exporter.set_resource(&Resource::builder_empty().with_attribute(KeyValue::new("process.pid", 77)).build());
    export(&exporter, vec![ended(), ended()]).unwrap();
    exporter.set_resource(&Resource::builder_empty().build());
    export(&exporter, vec![ended()]).unwrap();
    let own = std::process::id().to_string();
    let begun: Vec<_> =
        writes.done.lock().unwrap().iter().map(|line| line.split_once("] ").unwrap().0.to_owned()).collect();
    assert_eq!(begun, ["[pid 77", "[pid 77", &format!("[pid {own}")]);
}

#[test]
fn a_format_that_does_not_exist_is_refused_by_name() {
    for (text, expected) in [("", Format::Text), ("text", Format::Text), ("json", Format::Json)] {
        assert_eq!(text.parse::<Format>().unwrap(), expected);
    }
    let error = "xml".parse::<Format>().unwrap_err().to_string();
    assert_eq!(error, "`TRACER_CONSOLE_FORMAT` is `xml`, expected `text` or `json`");
}
