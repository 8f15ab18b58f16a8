//! The SDK's spans in the terms of the span file.

use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry::trace::{Event, Link, SpanContext, SpanId, SpanKind, Status, TraceState};
use opentelemetry::{Array, KeyValue, Value};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanData;
use tracer_sdk::hook::{AttributeValue, RenderedSpan, trace_state_as_sent};
use tracer_span_file as file;
use tracer_span_file::ResourceJson;

/// Appends the line of one span to `buffer`.
pub fn write_span(buffer: &mut Vec<u8>, span: &SpanData, resource: &ResourceJson) {
    let events: Vec<file::Event<'_, Pairs<'_>>> = span.events.iter().map(event_of).collect();
    let link_states: Vec<Cow<'_, str>> = span.links.iter().map(|link| trace_state(&link.span_context)).collect();
    let links: Vec<file::Link<'_, Pairs<'_>>> =
        span.links.iter().zip(&link_states).map(|(link, trace_state)| link_of(link, trace_state)).collect();
    let attributes = with_keys(&span.attributes);
    let line = file::Span {
        name: &span.name,
        trace_id: span.span_context.trace_id().to_bytes(),
        span_id: span.span_context.span_id().to_bytes(),
        trace_state: &trace_state(&span.span_context),
        kind: kind_of(&span.span_kind),
        parent_span_id: (span.parent_span_id != SpanId::INVALID).then(|| span.parent_span_id.to_bytes()),
        start_time_unix_nano: unix_nano(span.start_time),
        end_time_unix_nano: unix_nano(span.end_time),
        status: status_of(&span.status),
        attributes: Pairs(&attributes),
        events: &events,
        links: &links,
    };
    file::write_line(buffer, &line, resource);
}

/// Appends the line of one span that was rendered as it grew.
pub(crate) fn write_rendered_span(buffer: &mut Vec<u8>, span: &RenderedSpan<'_>, resource: &ResourceJson) {
    let head = file::Head {
        trace_id: span.trace_id,
        span_id: span.span_id,
        // Spans that have one are left to the SDK.
        trace_state: "",
        kind: kind_of(&span.kind),
        parent_span_id: span.parent_span_id,
        start_time_unix_nano: span.start_time_unix_nano,
        end_time_unix_nano: span.end_time_unix_nano,
        status: status_of(span.status),
    };
    let RenderedSpan { name, attributes, events, links, .. } = *span;
    let rendered = file::Rendered { name, attributes, events, links };
    file::write_rendered_line(buffer, &head, &rendered, resource);
}

pub(crate) fn push_value(rendered: &mut Vec<u8>, value: AttributeValue<'_>) {
    match value {
        AttributeValue::Str(text) => file::json::write_byte_string(rendered, text),
        AttributeValue::I64(number) => file::json::write_i64(rendered, number),
        AttributeValue::Bool(is_so) => file::json::write_bool(rendered, is_so),
        AttributeValue::F64(number) => file::json::write_f64(rendered, number),
        AttributeValue::Array(values) => with_array(&values, |value| file::write_value(rendered, value)),
    }
}

pub(crate) fn push_event(rendered: &mut Vec<u8>, event: &Event) {
    file::push_event(rendered, &event_of(event));
}

pub(crate) fn push_link(rendered: &mut Vec<u8>, link: &Link) {
    file::push_link(rendered, &link_of(link, &trace_state(&link.span_context)));
}

fn event_of(event: &Event) -> file::Event<'_, Pairs<'_>> {
    file::Event { name: &event.name, time_unix_nano: unix_nano(event.timestamp), attributes: Pairs(&event.attributes) }
}

fn link_of<'a>(link: &'a Link, trace_state: &'a str) -> file::Link<'a, Pairs<'a>> {
    file::Link {
        trace_id: link.span_context.trace_id().to_bytes(),
        span_id: link.span_context.span_id().to_bytes(),
        trace_state,
        attributes: Pairs(&link.attributes),
    }
}

fn kind_of(kind: &SpanKind) -> file::SpanKind {
    match kind {
        SpanKind::Internal => file::SpanKind::Internal,
        SpanKind::Server => file::SpanKind::Server,
        SpanKind::Client => file::SpanKind::Client,
        SpanKind::Producer => file::SpanKind::Producer,
        SpanKind::Consumer => file::SpanKind::Consumer,
    }
}

fn status_of(status: &Status) -> file::Status<'_> {
    match status {
        Status::Unset => file::Status::Unset,
        Status::Ok => file::Status::Ok,
        Status::Error { description } => file::Status::Error { description },
    }
}

/// Renders a resource, sorted by key: the SDK keeps it in no order.
pub fn resource_json(resource: &Resource) -> ResourceJson {
    let mut pairs: Vec<KeyValue> =
        resource.iter().map(|(key, value)| KeyValue::new(key.clone(), value.clone())).collect();
    pairs.sort_by(|a, b| a.key.cmp(&b.key));
    ResourceJson::new(Pairs(&pairs), resource.schema_url().unwrap_or(""))
}

/// Keeps the attributes that have a key. The host drops others before they come here, but not those that the hook's own processors add.
fn with_keys(attributes: &[KeyValue]) -> Cow<'_, [KeyValue]> {
    let has_key = |attribute: &&KeyValue| !attribute.key.as_str().is_empty();
    if attributes.iter().all(|attribute| has_key(&attribute)) {
        return attributes.into();
    }
    attributes.iter().filter(has_key).cloned().collect()
}

/// The SDK's attributes, read where they are.
#[derive(Clone, Copy)]
struct Pairs<'a>(&'a [KeyValue]);

impl file::Attributes for Pairs<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn key(&self, index: usize) -> &str {
        self.0[index].key.as_str()
    }

    #[inline(always)]
    fn with_value(&self, index: usize, read: impl FnOnce(file::Value<'_>)) {
        match &self.0[index].value {
            Value::Bool(value) => read(file::Value::Bool(*value)),
            Value::I64(value) => read(file::Value::I64(*value)),
            Value::F64(value) => read(file::Value::F64(*value)),
            Value::String(value) => read(file::Value::Str(value.as_str())),
            Value::Array(values) => with_array(values, read),
            // A kind of value that OpenTelemetry has added since: better its text than nothing.
            other => read(file::Value::Str(&other.as_str())),
        }
    }
}

fn with_array(values: &Array, read: impl FnOnce(file::Value<'_>)) {
    match values {
        Array::Bool(values) => read(file::Value::BoolArray(values)),
        Array::I64(values) => read(file::Value::I64Array(values)),
        Array::F64(values) => read(file::Value::F64Array(values)),
        Array::String(values) => {
            let texts: Vec<&str> = values.iter().map(|value| value.as_str()).collect();
            read(file::Value::StrArray(&texts));
        }
        // A kind that OpenTelemetry has added since: better its text than nothing.
        other => read(file::Value::Str(&other.to_string())),
    }
}

fn trace_state(context: &SpanContext) -> Cow<'static, str> {
    if *context.trace_state() == TraceState::NONE {
        Cow::Borrowed("")
    } else {
        Cow::Owned(trace_state_as_sent(context.trace_state().header()))
    }
}

/// Returns a time in nanoseconds since the Unix epoch: one before 1970 is taken as 1970, and one after 2554 as that.
fn unix_nano(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
