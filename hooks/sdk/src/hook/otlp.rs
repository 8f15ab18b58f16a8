//! Finished spans out of OTLP: what a span sink is given becomes what exporters and span processors take.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry::trace::{Event, Link, SpanContext, SpanId, SpanKind, Status, TraceId};
use opentelemetry::{Array, InstrumentationScope, KeyValue, StringValue, TraceFlags, Value};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1 as common;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1 as proto;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use prost::Message;

/// OTLP span flag: the parent is in another process.
const PARENT_IS_REMOTE: u32 = 0x200;

/// Takes an encoded `ExportTraceServiceRequest` of OTLP apart, resource by resource. On failure: what is wrong with it, for people to read.
pub fn decode(request: &[u8]) -> Result<Vec<(Resource, Vec<SpanData>)>, String> {
    let request = ExportTraceServiceRequest::decode(request)
        .map_err(|error| format!("the spans are no OTLP `ExportTraceServiceRequest`: {error}"))?;
    let mut groups = Vec::with_capacity(request.resource_spans.len());
    for group in request.resource_spans {
        let attributes = group.resource.map(|resource| attributes(resource.attributes)).unwrap_or_default();
        let builder = Resource::builder_empty().with_attributes(attributes);
        let resource = match group.schema_url {
            url if url.is_empty() => builder.build(),
            url => builder.with_schema_url([], url).build(),
        };
        let mut spans = Vec::new();
        for scoped in group.scope_spans {
            let scope = scope(scoped.scope.unwrap_or_default(), scoped.schema_url);
            for found in scoped.spans {
                spans.push(span(found, &scope)?);
            }
        }
        groups.push((resource, spans));
    }
    Ok(groups)
}

fn scope(scope: common::InstrumentationScope, schema_url: String) -> InstrumentationScope {
    let mut builder = InstrumentationScope::builder(scope.name).with_attributes(attributes(scope.attributes));
    if !scope.version.is_empty() {
        builder = builder.with_version(scope.version);
    }
    if !schema_url.is_empty() {
        builder = builder.with_schema_url(schema_url);
    }
    builder.build()
}

fn span(span: proto::Span, scope: &InstrumentationScope) -> Result<SpanData, String> {
    let context = context(&span.trace_id, &span.span_id, span.flags, &span.trace_state, false)?;
    let parent_span_id = match span.parent_span_id.as_slice() {
        [] => SpanId::INVALID,
        id => SpanId::from_bytes(fixed(id, "parent span id")?),
    };
    let mut events = SpanEvents::default();
    events.dropped_count = span.dropped_events_count;
    for event in span.events {
        let (time, dropped) = (time(event.time_unix_nano), event.dropped_attributes_count);
        events.events.push(Event::new(event.name, time, attributes(event.attributes), dropped));
    }
    let mut links = SpanLinks::default();
    links.dropped_count = span.dropped_links_count;
    for link in span.links {
        let is_remote = link.flags & PARENT_IS_REMOTE != 0;
        let target = self::context(&link.trace_id, &link.span_id, link.flags, &link.trace_state, is_remote)?;
        links.links.push(Link::new(target, attributes(link.attributes), link.dropped_attributes_count));
    }
    Ok(SpanData {
        span_context: context,
        parent_span_id,
        parent_span_is_remote: span.flags & PARENT_IS_REMOTE != 0,
        span_kind: match proto::span::SpanKind::try_from(span.kind) {
            Ok(proto::span::SpanKind::Server) => SpanKind::Server,
            Ok(proto::span::SpanKind::Client) => SpanKind::Client,
            Ok(proto::span::SpanKind::Producer) => SpanKind::Producer,
            Ok(proto::span::SpanKind::Consumer) => SpanKind::Consumer,
            _ => SpanKind::Internal,
        },
        name: span.name.into(),
        start_time: time(span.start_time_unix_nano),
        end_time: time(span.end_time_unix_nano),
        attributes: attributes(span.attributes),
        dropped_attributes_count: span.dropped_attributes_count,
        events,
        links,
        status: match span.status {
            Some(status) if status.code == proto::status::StatusCode::Error as i32 => Status::error(status.message),
            Some(status) if status.code == proto::status::StatusCode::Ok as i32 => Status::Ok,
            _ => Status::Unset,
        },
        instrumentation_scope: scope.clone(),
    })
}

fn context(
    trace_id: &[u8],
    span_id: &[u8],
    flags: u32,
    trace_state: &str,
    is_remote: bool,
) -> Result<SpanContext, String> {
    Ok(SpanContext::new(
        TraceId::from_bytes(fixed(trace_id, "trace id")?),
        SpanId::from_bytes(fixed(span_id, "span id")?),
        TraceFlags::new(flags as u8),
        is_remote,
        super::convert::parse_trace_state(trace_state),
    ))
}

fn fixed<const N: usize>(bytes: &[u8], what: &str) -> Result<[u8; N], String> {
    bytes.try_into().map_err(|_| format!("a {what} has {} bytes, expected {N}", bytes.len()))
}

fn time(unix_nano: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(unix_nano)
}

/// Attributes of the kinds that the SDK has; others are left out.
fn attributes(attributes: Vec<common::KeyValue>) -> Vec<KeyValue> {
    let known = attributes.into_iter().filter_map(|attribute| {
        let value = value(attribute.value?.value?)?;
        Some(KeyValue::new(attribute.key, value))
    });
    known.collect()
}

pub(super) fn value(value: Any) -> Option<Value> {
    Some(match value {
        Any::StringValue(text) => Value::String(text.into()),
        Any::BoolValue(truth) => Value::Bool(truth),
        Any::IntValue(number) => Value::I64(number),
        Any::DoubleValue(number) => Value::F64(number),
        Any::ArrayValue(array) => Value::Array(self::array(array.values)?),
        _ => return None,
    })
}

/// Returns an array of one kind; an empty one says nothing about its kind.
fn array(values: Vec<common::AnyValue>) -> Option<Array> {
    let mut values = values.into_iter().map(|value| value.value).peekable();
    Some(match values.peek() {
        Some(Some(Any::BoolValue(_))) => Array::Bool(
            values
                .map(|value| if let Some(Any::BoolValue(it)) = value { Some(it) } else { None })
                .collect::<Option<_>>()?,
        ),
        Some(Some(Any::IntValue(_))) => Array::I64(
            values
                .map(|value| if let Some(Any::IntValue(it)) = value { Some(it) } else { None })
                .collect::<Option<_>>()?,
        ),
        Some(Some(Any::DoubleValue(_))) => Array::F64(
            values
                .map(|value| if let Some(Any::DoubleValue(it)) = value { Some(it) } else { None })
                .collect::<Option<_>>()?,
        ),
        Some(Some(Any::StringValue(_))) | None => {
            let text = |value| if let Some(Any::StringValue(it)) = value { Some(StringValue::from(it)) } else { None };
            Array::String(values.map(text).collect::<Option<_>>()?)
        }
        Some(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
    use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;

    use super::*;

    /// Spans are taken back whole from the OpenTelemetry project's own conversion of them.
    #[test]
    fn a_span_survives_the_way_through_otlp() {
        let link =
            SpanContext::new(TraceId::from(3), SpanId::from(4), TraceFlags::SAMPLED, true, "a=1".parse().unwrap());
        let mut events = SpanEvents::default();
        events.events.push(Event::new("moment", time(15), vec![KeyValue::new("at", "noon")], 1));
        events.dropped_count = 2;
        let mut links = SpanLinks::default();
        links.links.push(Link::new(link, vec![KeyValue::new("why", true)], 3));
        let span = SpanData {
            span_context: SpanContext::new(
                TraceId::from(1),
                SpanId::from(2),
                TraceFlags::SAMPLED,
                false,
                "vendor=value".parse().unwrap(),
            ),
            parent_span_id: SpanId::from(9),
            parent_span_is_remote: true,
            span_kind: SpanKind::Consumer,
            name: "step".into(),
            start_time: time(10),
            end_time: time(20),
            attributes: vec![
                KeyValue::new("bool", true),
                KeyValue::new("int", -7),
                KeyValue::new("float", 2.5),
                KeyValue::new("bools", Value::Array(Array::Bool(vec![true, false]))),
                KeyValue::new("ints", Value::Array(Array::I64(vec![1, 2]))),
                KeyValue::new("floats", Value::Array(Array::F64(vec![0.5]))),
                KeyValue::new("texts", Value::Array(Array::String(vec!["x".into(), "y".into()]))),
            ],
            dropped_attributes_count: 4,
            events,
            links,
            status: Status::error("it broke"),
            instrumentation_scope: InstrumentationScope::builder("scope").with_version("1.2").build(),
        };
        let resource = Resource::builder_empty().with_attributes([KeyValue::new("service.name", "shop")]).build();
        let with_schema = ResourceAttributesWithSchema::from(&resource);
        let resource_spans = group_spans_by_resource_and_scope(vec![span.clone()], &with_schema);
        let request = ExportTraceServiceRequest { resource_spans }.encode_to_vec();
        assert_eq!(decode(&request).unwrap(), [(resource, vec![span])]);
    }

    #[test]
    fn what_is_no_request_is_an_error_that_says_so() {
        assert!(decode(b"\xff\xff").unwrap_err().contains("no OTLP"));
        let span = proto::Span { trace_id: vec![1; 3], span_id: vec![1; 8], ..proto::Span::default() };
        let scoped = proto::ScopeSpans { spans: vec![span], ..proto::ScopeSpans::default() };
        let group = proto::ResourceSpans { scope_spans: vec![scoped], ..proto::ResourceSpans::default() };
        let request = ExportTraceServiceRequest { resource_spans: vec![group] }.encode_to_vec();
        assert_eq!(decode(&request).unwrap_err(), "a trace id has 3 bytes, expected 16");
    }
}
