//! Spans of a spool as OTLP, which is what span sinks take.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1 as proto;
use prost::Message;
use tracer_abi as abi;

use super::record::{OwnedValue, SpanRecord};

/// W3C: the span is sampled, as all are that are recorded here.
const SAMPLED: u32 = 1;
/// OTLP: it is known whether the parent is in another process.
const KNOWS_REMOTE: u32 = 0x100;
/// OTLP: it is.
const IS_REMOTE: u32 = 0x200;

/// Encodes spans of one process as an `ExportTraceServiceRequest`.
pub fn export_request(resource: &[(String, OwnedValue)], spans: Vec<SpanRecord>) -> Vec<u8> {
    let mut scope_spans: Vec<proto::ScopeSpans> = Vec::new();
    for mut record in spans {
        let name = std::mem::take(&mut record.scope);
        let is_of = |group: &proto::ScopeSpans| group.scope.as_ref().is_some_and(|scope| scope.name == name);
        match scope_spans.iter_mut().find(|group| is_of(group)) {
            Some(group) => group.spans.push(span(record)),
            None => scope_spans.push(proto::ScopeSpans {
                scope: Some(InstrumentationScope { name, ..InstrumentationScope::default() }),
                spans: vec![span(record)],
                schema_url: String::new(),
            }),
        }
    }
    let resource = Resource { attributes: attributes(resource.to_vec()), ..Resource::default() };
    let group = proto::ResourceSpans { resource: Some(resource), scope_spans, schema_url: String::new() };
    ExportTraceServiceRequest { resource_spans: vec![group] }.encode_to_vec()
}

fn span(record: SpanRecord) -> proto::Span {
    // Attempts and requests that are answered have their parents elsewhere; of the others it is not known, and most have not.
    let is_remote = matches!(record.kind, abi::SPAN_KIND_CONSUMER | abi::SPAN_KIND_SERVER);
    let remote = if record.parent_span_id.is_some() && is_remote { IS_REMOTE } else { 0 };
    proto::Span {
        trace_id: record.trace_id.to_vec(),
        span_id: record.span_id.to_vec(),
        trace_state: record.trace_state,
        parent_span_id: record.parent_span_id.map(|id| id.to_vec()).unwrap_or_default(),
        flags: SAMPLED | KNOWS_REMOTE | remote,
        name: record.name,
        kind: match record.kind {
            abi::SPAN_KIND_SERVER => proto::span::SpanKind::Server,
            abi::SPAN_KIND_CLIENT => proto::span::SpanKind::Client,
            abi::SPAN_KIND_PRODUCER => proto::span::SpanKind::Producer,
            abi::SPAN_KIND_CONSUMER => proto::span::SpanKind::Consumer,
            _ => proto::span::SpanKind::Internal,
        } as i32,
        start_time_unix_nano: record.start_time_unix_nano,
        end_time_unix_nano: record.end_time_unix_nano,
        attributes: attributes(record.attributes),
        dropped_attributes_count: 0,
        events: record
            .events
            .into_iter()
            .map(|event| proto::span::Event {
                time_unix_nano: event.time_unix_nano,
                name: event.name,
                attributes: attributes(event.attributes),
                dropped_attributes_count: 0,
            })
            .collect(),
        dropped_events_count: 0,
        links: record
            .links
            .into_iter()
            .map(|link| proto::span::Link {
                trace_id: link.trace_id.to_vec(),
                span_id: link.span_id.to_vec(),
                trace_state: link.trace_state,
                attributes: attributes(link.attributes),
                dropped_attributes_count: 0,
                flags: 0,
            })
            .collect(),
        dropped_links_count: 0,
        status: Some(proto::Status {
            code: match record.status {
                abi::SPAN_STATUS_OK => proto::status::StatusCode::Ok,
                abi::SPAN_STATUS_ERROR => proto::status::StatusCode::Error,
                _ => proto::status::StatusCode::Unset,
            } as i32,
            message: if record.status == abi::SPAN_STATUS_ERROR { record.status_description } else { String::new() },
        }),
    }
}

fn attributes(attributes: Vec<(String, OwnedValue)>) -> Vec<KeyValue> {
    let pair = |(key, value)| KeyValue { key, value: Some(any(value)), ..KeyValue::default() };
    attributes.into_iter().map(pair).collect()
}

fn any(value: OwnedValue) -> AnyValue {
    fn array<T>(values: Vec<T>, value: impl Fn(T) -> Value) -> Value {
        let values = values.into_iter().map(|item| AnyValue { value: Some(value(item)) }).collect();
        Value::ArrayValue(ArrayValue { values })
    }
    let value = match value {
        OwnedValue::Bool(value) => Value::BoolValue(value),
        OwnedValue::I64(value) => Value::IntValue(value),
        OwnedValue::F64(value) => Value::DoubleValue(value),
        OwnedValue::Str(value) => Value::StringValue(value),
        OwnedValue::BoolArray(values) => array(values, Value::BoolValue),
        OwnedValue::I64Array(values) => array(values, Value::IntValue),
        OwnedValue::F64Array(values) => array(values, Value::DoubleValue),
        OwnedValue::StrArray(values) => array(values, Value::StringValue),
    };
    AnyValue { value: Some(value) }
}
