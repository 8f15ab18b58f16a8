//! A span of the SDK as one line of OTLP JSON.
//!
//! The message is `TracesData` of opentelemetry-proto 1.x in the JSON form that the OTLP specification asks for: keys in
//! lower camel case, ids in hexadecimal digits, enumerations as numbers, 64-bit integers as texts. What is zero or empty is left
//! out, as protobuf has it, but for the ends of the span's life and its kind.
//!
//! It is written by hand because this is on the path of every span: what all spans of a process share is rendered once,
//! and nothing is allocated but the buffer.

use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceState};
use opentelemetry::{Array, InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanData;
use tracer_local_tmp_tracing::LineFormat;
use tracer_sdk::hook::{FileFormat, trace_state_as_sent};
use tracer_span_file::json;

/// `SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK`: it is known whether the context is remote.
const HAS_IS_REMOTE: u32 = 0x100;
/// `SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK`.
const IS_REMOTE: u32 = 0x200;

/// Lines of OTLP JSON, one span in each.
#[derive(Debug)]
pub struct OtlpFormat {
    /// The line up to the scope.
    head: Vec<u8>,
    /// The line from the end of the list of scopes.
    tail: Vec<u8>,
}

impl Default for OtlpFormat {
    /// Returns the format for spans without a resource.
    fn default() -> OtlpFormat {
        OtlpFormat::new(&Resource::builder_empty().build())
    }
}

impl OtlpFormat {
    fn new(resource: &Resource) -> OtlpFormat {
        let mut pairs: Vec<KeyValue> =
            resource.iter().map(|(key, value)| KeyValue::new(key.clone(), value.clone())).collect();
        // The SDK keeps them in no order.
        pairs.sort_by(|a, b| a.key.cmp(&b.key));
        let mut head = br#"{"resourceSpans":[{"resource":{"#.to_vec();
        write_attributes(&mut head, &pairs);
        close(&mut head, b'}');
        head.extend_from_slice(br#","scopeSpans":["#);
        let mut tail = b"],".to_vec();
        write_text(&mut tail, "schemaUrl", resource.schema_url().unwrap_or(""));
        close(&mut tail, b'}');
        tail.extend_from_slice(b"]}\n");
        OtlpFormat { head, tail }
    }
}

impl LineFormat for OtlpFormat {
    fn set_resource(&mut self, resource: &Resource) {
        *self = OtlpFormat::new(resource);
    }

    fn of_resource(&self, resource: &Resource) -> OtlpFormat {
        OtlpFormat::new(resource)
    }

    fn write_line(&self, buffer: &mut Vec<u8>, span: &SpanData) {
        buffer.extend_from_slice(&self.head);
        buffer.extend_from_slice(br#"{"scope":{"#);
        write_scope(buffer, &span.instrumentation_scope);
        close(buffer, b'}');
        buffer.extend_from_slice(br#","spans":[{"#);
        write_span(buffer, span);
        close(buffer, b'}');
        buffer.extend_from_slice(b"],");
        write_text(buffer, "schemaUrl", span.instrumentation_scope.schema_url().unwrap_or(""));
        close(buffer, b'}');
        buffer.extend_from_slice(&self.tail);
    }

    fn known(&self) -> Option<FileFormat> {
        Some(FileFormat::Otlp)
    }
}

// Each member of an object is written with a comma after it, and `close` takes the last one back.

fn close(buffer: &mut Vec<u8>, bracket: u8) {
    if buffer.last() == Some(&b',') {
        buffer.pop();
    }
    buffer.push(bracket);
}

fn write_key(buffer: &mut Vec<u8>, key: &'static str) {
    buffer.push(b'"');
    buffer.extend_from_slice(key.as_bytes());
    buffer.extend_from_slice(b"\":");
}

fn write_text(buffer: &mut Vec<u8>, key: &'static str, text: &str) {
    if !text.is_empty() {
        write_key(buffer, key);
        json::write_string(buffer, text);
        buffer.push(b',');
    }
}

fn write_number(buffer: &mut Vec<u8>, key: &'static str, number: u32) {
    if number != 0 {
        write_key(buffer, key);
        json::write_i64(buffer, number.into());
        buffer.push(b',');
    }
}

fn write_id<const N: usize>(buffer: &mut Vec<u8>, key: &'static str, id: &[u8; N]) {
    write_key(buffer, key);
    buffer.push(b'"');
    json::write_hex(buffer, id);
    buffer.extend_from_slice(b"\",");
}

/// Writes a time, one before 1970 as 1970. As a text: it does not fit into the numbers of JavaScript.
fn write_time(buffer: &mut Vec<u8>, key: &'static str, time: SystemTime) {
    let nanos = time.duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_nanos()).unwrap_or(i64::MAX));
    write_key(buffer, key);
    write_long(buffer, nanos);
    buffer.push(b',');
}

fn write_long(buffer: &mut Vec<u8>, number: i64) {
    buffer.push(b'"');
    json::write_i64(buffer, number);
    buffer.push(b'"');
}

fn write_list<T>(buffer: &mut Vec<u8>, key: &'static str, items: &[T], mut write_item: impl FnMut(&mut Vec<u8>, &T)) {
    if items.is_empty() {
        return;
    }
    write_key(buffer, key);
    buffer.push(b'[');
    for item in items {
        buffer.push(b'{');
        write_item(buffer, item);
        close(buffer, b'}');
        buffer.push(b',');
    }
    close(buffer, b']');
    buffer.push(b',');
}

fn write_scope(buffer: &mut Vec<u8>, scope: &InstrumentationScope) {
    write_text(buffer, "name", scope.name());
    write_text(buffer, "version", scope.version().unwrap_or(""));
    let attributes: Vec<KeyValue> = scope.attributes().cloned().collect();
    write_attributes(buffer, &attributes);
}

fn write_span(buffer: &mut Vec<u8>, span: &SpanData) {
    write_context(buffer, &span.span_context);
    if span.parent_span_id != SpanId::INVALID {
        write_id(buffer, "parentSpanId", &span.parent_span_id.to_bytes());
    }
    write_number(buffer, "flags", flags(&span.span_context, span.parent_span_is_remote));
    write_text(buffer, "name", &span.name);
    let kind = match span.span_kind {
        SpanKind::Internal => 1,
        SpanKind::Server => 2,
        SpanKind::Client => 3,
        SpanKind::Producer => 4,
        SpanKind::Consumer => 5,
    };
    write_number(buffer, "kind", kind);
    write_time(buffer, "startTimeUnixNano", span.start_time);
    write_time(buffer, "endTimeUnixNano", span.end_time);
    write_attributes(buffer, &span.attributes);
    write_number(buffer, "droppedAttributesCount", span.dropped_attributes_count);
    write_list(buffer, "events", &span.events, |buffer, event| {
        write_time(buffer, "timeUnixNano", event.timestamp);
        write_text(buffer, "name", &event.name);
        write_attributes(buffer, &event.attributes);
        write_number(buffer, "droppedAttributesCount", event.dropped_attributes_count);
    });
    write_number(buffer, "droppedEventsCount", span.events.dropped_count);
    write_list(buffer, "links", &span.links, |buffer, link| {
        write_context(buffer, &link.span_context);
        write_attributes(buffer, &link.attributes);
        write_number(buffer, "droppedAttributesCount", link.dropped_attributes_count);
        write_number(buffer, "flags", flags(&link.span_context, link.span_context.is_remote()));
    });
    write_number(buffer, "droppedLinksCount", span.links.dropped_count);
    match &span.status {
        Status::Unset => {}
        Status::Ok => buffer.extend_from_slice(br#""status":{"code":1},"#),
        Status::Error { description } => {
            buffer.extend_from_slice(br#""status":{"#);
            write_text(buffer, "message", description);
            buffer.extend_from_slice(br#""code":2},"#);
        }
    }
}

fn write_context(buffer: &mut Vec<u8>, context: &SpanContext) {
    write_id(buffer, "traceId", &context.trace_id().to_bytes());
    write_id(buffer, "spanId", &context.span_id().to_bytes());
    if *context.trace_state() != TraceState::NONE {
        write_text(buffer, "traceState", &trace_state_as_sent(context.trace_state().header()));
    }
}

fn flags(context: &SpanContext, is_remote: bool) -> u32 {
    u32::from(context.trace_flags().to_u8()) | HAS_IS_REMOTE | if is_remote { IS_REMOTE } else { 0 }
}

fn write_attributes(buffer: &mut Vec<u8>, attributes: &[KeyValue]) {
    write_list(buffer, "attributes", attributes, |buffer, attribute| {
        write_key(buffer, "key");
        json::write_string(buffer, attribute.key.as_str());
        buffer.extend_from_slice(br#","value":{"#);
        write_value(buffer, &attribute.value);
        buffer.push(b'}');
    });
}

fn write_value(buffer: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Bool(value) => write_bool(buffer, *value),
        Value::I64(value) => write_int(buffer, *value),
        Value::F64(value) => write_double(buffer, *value),
        Value::String(value) => write_string(buffer, value.as_str()),
        Value::Array(Array::Bool(values)) => write_array(buffer, values, |buffer, value| write_bool(buffer, *value)),
        Value::Array(Array::I64(values)) => write_array(buffer, values, |buffer, value| write_int(buffer, *value)),
        Value::Array(Array::F64(values)) => write_array(buffer, values, |buffer, value| write_double(buffer, *value)),
        Value::Array(Array::String(values)) => {
            write_array(buffer, values, |buffer, value| write_string(buffer, value.as_str()));
        }
        // A kind of value that OpenTelemetry has added since: better its text than nothing.
        other => write_string(buffer, &other.as_str()),
    }
}

fn write_array<T>(buffer: &mut Vec<u8>, values: &[T], write_item: impl Fn(&mut Vec<u8>, &T)) {
    buffer.extend_from_slice(br#""arrayValue":{"#);
    write_list(buffer, "values", values, write_item);
    close(buffer, b'}');
}

fn write_bool(buffer: &mut Vec<u8>, value: bool) {
    write_key(buffer, "boolValue");
    json::write_bool(buffer, value);
}

fn write_int(buffer: &mut Vec<u8>, value: i64) {
    write_key(buffer, "intValue");
    write_long(buffer, value);
}

fn write_double(buffer: &mut Vec<u8>, value: f64) {
    write_key(buffer, "doubleValue");
    json::write_f64(buffer, value);
}

fn write_string(buffer: &mut Vec<u8>, value: &str) {
    write_key(buffer, "stringValue");
    json::write_string(buffer, value);
}
