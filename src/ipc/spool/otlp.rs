//! Spans of a spool as OTLP, which is what span sinks take.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1 as proto;
use prost::Message;
use tracer_abi as abi;

use super::record::{OwnedValue, SpanRecord};

/// OTLP: it is known whether the parent is in another process.
const KNOWS_REMOTE: u32 = 0x100;
/// OTLP: it is.
const IS_REMOTE: u32 = 0x200;

/// Encodes spans of one process as an `ExportTraceServiceRequest`.
pub fn export_request(resource: &[(String, OwnedValue)], spans: Vec<SpanRecord>) -> Vec<u8> {
    let mut scope_spans: Vec<proto::ScopeSpans> = Vec::new();
    for mut record in spans {
        let (name, version) = (std::mem::take(&mut record.scope), std::mem::take(&mut record.scope_version));
        let is_of = |group: &proto::ScopeSpans| {
            group.scope.as_ref().is_some_and(|scope| scope.name == name && scope.version == version)
        };
        match scope_spans.iter_mut().find(|group| is_of(group)) {
            Some(group) => group.spans.push(span(record)),
            None => scope_spans.push(proto::ScopeSpans {
                scope: Some(InstrumentationScope { name, version, ..InstrumentationScope::default() }),
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
    proto::Span {
        trace_id: record.trace_id.to_vec(),
        span_id: record.span_id.to_vec(),
        trace_state: record.trace_state,
        parent_span_id: record.parent_span_id.map(|id| id.to_vec()).unwrap_or_default(),
        flags: flags(record.trace_flags, record.is_parent_remote),
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
                flags: flags(link.trace_flags, link.is_remote),
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

/// Returns the flags of a span with a parent that is remote or not, or of a link to such a span.
fn flags(trace_flags: u8, is_remote: bool) -> u32 {
    u32::from(trace_flags) | KNOWS_REMOTE | if is_remote { IS_REMOTE } else { 0 }
}

pub(super) fn attributes(attributes: Vec<(String, OwnedValue)>) -> Vec<KeyValue> {
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

#[cfg(test)]
mod tests {
    use tracer_core::propagation::FLAG_SAMPLED;

    use super::*;
    use crate::spool::layout::SLOT_COUNT;
    use crate::spool::owner::{SpanOpening, Spool};
    use crate::spool::prefixes::Prefix;
    use crate::spool::story::Story;

    const SAMPLED_AND_RANDOM: u8 = FLAG_SAMPLED | 2;

    /// Spans that a process left in its spool, as OTLP.
    #[test]
    fn flags_and_scopes_survive_the_spool() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("test.spool");
        let spool = Spool::create(&path, SLOT_COUNT).unwrap();
        let open = |id: u8, trace_flags, parent: u8, is_parent_remote, scope_version: &[u8]| {
            let opening = SpanOpening {
                trace_id: [7; 16],
                span_id: [id; 8],
                parent_span_id: [parent; 8],
                is_parent_remote,
                trace_flags,
                trace_state: b"",
                start_time_unix_nano: u64::from(id),
                kind: abi::SPAN_KIND_INTERNAL,
                name: b"step",
                scope: b"test",
                scope_version,
                prefix: Prefix::NONE,
                task_id: 0,
                is_attempt: false,
            };
            spool.open(&opening).unwrap()
        };
        let slot = open(1, SAMPLED_AND_RANDOM, 0, false, b"1.2");
        for (id, trace_flags, is_remote) in [(21, SAMPLED_AND_RANDOM, 1), (22, 0, 0)] {
            let context = abi::SpanContext { trace_id: [9; 16], span_id: [id; 8], ..abi::SpanContext::INVALID };
            let context = abi::SpanContext { trace_flags, is_remote, ..context };
            let size = size_of::<abi::Link>();
            let link = abi::Link { size, context, attributes: std::ptr::null(), attribute_count: 0 };
            // SAFETY: it points to nothing.
            unsafe { spool.add_link(slot, &link) };
        }
        open(2, FLAG_SAMPLED, 1, false, b"1.2");
        open(3, SAMPLED_AND_RANDOM, 8, true, b"");
        let records = Story::open(&path).unwrap().spans().into_iter().map(|span| span.record).collect();
        let request = ExportTraceServiceRequest::decode(&*export_request(&[], records)).unwrap();
        let groups = &request.resource_spans[0].scope_spans;
        let scopes: Vec<_> = groups.iter().map(|group| group.scope.as_ref().unwrap()).collect();
        let scopes: Vec<_> = scopes.iter().map(|scope| (scope.name.as_str(), scope.version.as_str())).collect();
        assert_eq!(scopes, [("test", "1.2"), ("test", "")]);
        let spans: Vec<_> = groups.iter().flat_map(|group| &group.spans).collect();
        assert_eq!(spans.iter().map(|span| span.flags).collect::<Vec<_>>(), [0x103, 0x101, 0x303]);
        assert_eq!(spans[0].links.iter().map(|link| link.flags).collect::<Vec<_>>(), [0x303, 0x100]);
    }
}
