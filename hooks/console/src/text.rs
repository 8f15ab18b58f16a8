//! A span as a line for people.
//!
//! ```text
//! "count" INTERNAL 1.2 ms trace_id=… span_id=… parent_id=… status=ERROR "it broke" words=3 event "moment" +0.1 ms link …-…
//! ```
//!
//! Texts are quoted and escaped as in JSON, so that a line feed in one does not end the line, nor a control character reach a
//! terminal.

use std::time::{Duration, SystemTime};

use opentelemetry::trace::{SpanId, SpanKind, Status};
use opentelemetry::{Array, KeyValue, Value};
use opentelemetry_sdk::trace::SpanData;
use tracer_span_file::json;

pub(crate) fn write_line(line: &mut Vec<u8>, span: &SpanData) {
    write_text(line, &span.name);
    let kind = match span.span_kind {
        SpanKind::Internal => " INTERNAL ",
        SpanKind::Server => " SERVER ",
        SpanKind::Client => " CLIENT ",
        SpanKind::Producer => " PRODUCER ",
        SpanKind::Consumer => " CONSUMER ",
    };
    line.extend_from_slice(kind.as_bytes());
    line.extend_from_slice(duration(span.start_time, span.end_time).as_bytes());
    let context = &span.span_context;
    line.extend_from_slice(format!(" trace_id={} span_id={}", context.trace_id(), context.span_id()).as_bytes());
    if span.parent_span_id != SpanId::INVALID {
        line.extend_from_slice(format!(" parent_id={}", span.parent_span_id).as_bytes());
    }
    match &span.status {
        Status::Unset => {}
        Status::Ok => line.extend_from_slice(b" status=OK"),
        Status::Error { description } => {
            line.extend_from_slice(b" status=ERROR ");
            write_text(line, description);
        }
    }
    write_attributes(line, &span.attributes);
    for event in &span.events.events {
        line.extend_from_slice(b" event ");
        write_text(line, &event.name);
        line.extend_from_slice(b" +");
        line.extend_from_slice(duration(span.start_time, event.timestamp).as_bytes());
        write_attributes(line, &event.attributes);
    }
    for link in &span.links.links {
        let context = &link.span_context;
        line.extend_from_slice(format!(" link {}-{}", context.trace_id(), context.span_id()).as_bytes());
        write_attributes(line, &link.attributes);
    }
    line.push(b'\n');
}

/// Three digits or so: `850 ns`, `1.2 ms`, `3.4 s`. A time before `start` is as long as none.
fn duration(start: SystemTime, end: SystemTime) -> String {
    let taken = end.duration_since(start).unwrap_or(Duration::ZERO);
    let nanos = taken.as_nanos() as f64;
    match taken.as_nanos() {
        0..1_000 => format!("{nanos} ns"),
        1_000..1_000_000 => format!("{:.1} µs", nanos / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", nanos / 1e6),
        _ => format!("{:.1} s", nanos / 1e9),
    }
}

/// Writes a text as JSON does, with the control characters escaped too that JSON allows: some terminals act on them.
fn write_text(line: &mut Vec<u8>, text: &str) {
    if text.chars().any(|character| matches!(character, '\u{7f}'..='\u{9f}')) {
        let shown: String = text
            .chars()
            .map(|character| if matches!(character, '\u{7f}'..='\u{9f}') { '\u{fffd}' } else { character })
            .collect();
        json::write_string(line, &shown);
    } else {
        json::write_string(line, text);
    }
}

fn write_attributes(line: &mut Vec<u8>, attributes: &[KeyValue]) {
    for attribute in attributes {
        line.push(b' ');
        let key = attribute.key.as_str();
        let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'=' && byte != b'"';
        if !key.is_empty() && key.bytes().all(is_plain) {
            line.extend_from_slice(key.as_bytes());
        } else {
            write_text(line, key);
        }
        line.push(b'=');
        write_value(line, &attribute.value);
    }
}

fn write_value(line: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Bool(value) => json::write_bool(line, *value),
        Value::I64(value) => json::write_i64(line, *value),
        Value::F64(value) => json::write_f64(line, *value),
        Value::String(value) => write_text(line, value.as_str()),
        Value::Array(Array::Bool(values)) => write_array(line, values, |line, value| json::write_bool(line, *value)),
        Value::Array(Array::I64(values)) => write_array(line, values, |line, value| json::write_i64(line, *value)),
        Value::Array(Array::F64(values)) => write_array(line, values, |line, value| json::write_f64(line, *value)),
        Value::Array(Array::String(values)) => {
            write_array(line, values, |line, value| write_text(line, value.as_str()));
        }
        // A kind of value that OpenTelemetry has added since.
        other => write_text(line, &other.as_str()),
    }
}

fn write_array<T>(line: &mut Vec<u8>, values: &[T], write_item: impl Fn(&mut Vec<u8>, &T)) {
    line.push(b'[');
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            line.push(b',');
        }
        write_item(line, value);
    }
    line.push(b']');
}
