//! Spans in OTLP's JSON form: an object with `resourceSpans`, one per line or over several.
//!
//! What other writers do is taken as well where it cannot be mistaken: the names of the protobuf fields, enumerations by name, 64-bit
//! integers as numbers (also such as `1.7e18`), ids in base64, and `instrumentationLibrarySpans` of writers before OTLP 0.15. Instrumentation scope, flags and counts of what was dropped are stepped over, as the format of the
//! other span files has no place for them.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tracer_core::names;
use tracer_core::propagation::TraceParent;

use super::super::span::{Attributes, Found, HAS_LOCAL_PARENT, Kind, Maker, Origin, Span, SpanId, Status, TraceId};
use super::super::time;
use super::{Piece, Scanner, Text};

/// Beginning of an object with spans on a line of its own.
pub(super) const START: &[u8] = b"{\"resourceSpans\"";

/// Returns whether an object that begins like this can be one of OTLP.
pub(super) fn is_begun(object: &[u8]) -> bool {
    let key = object.get(1..).unwrap_or_default().trim_ascii_start();
    [b"\"resourceSpans\"".as_slice(), b"\"resource_spans\""].iter().any(|known| key.starts_with(known))
}

/// `TracesData`, with spans still as text.
#[derive(Deserialize)]
pub(super) struct Traces<'a> {
    #[serde(borrow, rename = "resourceSpans", alias = "resource_spans")]
    resource_spans: Vec<ResourceSpans<'a>>,
}

#[derive(Deserialize)]
struct ResourceSpans<'a> {
    #[serde(borrow, default)]
    resource: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "scopeSpans", alias = "scope_spans")]
    scope_spans: Vec<ScopeSpans<'a>>,
    /// The name of `scope_spans` before OTLP 0.15, under which a writer of that time may have them once more.
    #[serde(borrow, default, rename = "instrumentationLibrarySpans", alias = "instrumentation_library_spans")]
    library_spans: Vec<ScopeSpans<'a>>,
    #[serde(borrow, default, rename = "schemaUrl", alias = "schema_url")]
    schema_url: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ScopeSpans<'a> {
    #[serde(borrow, default)]
    spans: Vec<&'a RawValue>,
}

/// Fields that are parsed of every span.
#[derive(Deserialize)]
struct Header<'a> {
    #[serde(borrow, rename = "traceId", alias = "trace_id")]
    trace_id: Text<'a>,
    #[serde(borrow, rename = "spanId", alias = "span_id")]
    span_id: Text<'a>,
    #[serde(borrow, default, rename = "parentSpanId", alias = "parent_span_id")]
    parent_span_id: Option<Text<'a>>,
    #[serde(borrow, default)]
    name: Option<Text<'a>>,
    #[serde(borrow, default)]
    kind: Option<Scalar<'a>>,
    #[serde(borrow, rename = "startTimeUnixNano", alias = "start_time_unix_nano")]
    start_time: Scalar<'a>,
    #[serde(borrow, default, rename = "endTimeUnixNano", alias = "end_time_unix_nano")]
    end_time: Option<Scalar<'a>>,
    #[serde(borrow, default)]
    status: Option<StatusHeader<'a>>,
    #[serde(default)]
    flags: u32,
}

#[derive(Deserialize)]
struct StatusHeader<'a> {
    #[serde(borrow, default)]
    code: Option<Scalar<'a>>,
}

/// A number, or a text that is one or names one.
#[derive(Deserialize)]
#[serde(untagged)]
enum Scalar<'a> {
    Number(u64),
    /// Such as `1.7e18`.
    Float(f64),
    #[serde(borrow)]
    Text(Text<'a>),
}

impl Scalar<'_> {
    /// Returns the number; a text counts by its position among `names`, of which `prefix` may be left out.
    fn number(&self, names: &[&str]) -> Option<u64> {
        match self {
            Scalar::Number(number) => Some(*number),
            Scalar::Float(number) => whole(*number),
            Scalar::Text(text) => {
                let named = names.iter().position(|name| *name == text.0);
                let parsed = || text.0.parse().ok().or_else(|| whole(text.0.parse().ok()?));
                named.map(|at| at as u64).or_else(parsed)
            }
        }
    }
}

/// Returns a number without a fraction as an integer.
fn whole(number: f64) -> Option<u64> {
    // The greatest integer is no float: the next one is the first that is too great.
    (number.fract() == 0.0 && (0.0..u64::MAX as f64).contains(&number)).then_some(number as u64)
}

const KINDS: [&str; 6] = [
    "SPAN_KIND_UNSPECIFIED",
    "SPAN_KIND_INTERNAL",
    "SPAN_KIND_SERVER",
    "SPAN_KIND_CLIENT",
    "SPAN_KIND_PRODUCER",
    "SPAN_KIND_CONSUMER",
];
const STATUS_CODES: [&str; 3] = ["STATUS_CODE_UNSET", "STATUS_CODE_OK", "STATUS_CODE_ERROR"];

/// The flags that say whether a parent is known to be remote or not, and whether it is: `SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK` and
/// `SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK`.
const REMOTE_FLAGS: u32 = 0x300;
/// Value of these flags for a parent that is not remote.
const IS_LOCAL: u32 = 0x100;

/// The context that a resource names in [`names::TRACEPARENT`].
fn stem_in(resource: Option<&RawValue>) -> Option<(TraceId, SpanId)> {
    // It is parsed only where the name is there.
    let text = resource?.get();
    memchr::memmem::find(text.as_bytes(), names::TRACEPARENT.as_bytes())?;
    let resource: ResourcePart = serde_json::from_str(text).ok()?;
    let pair = resource.attributes.into_iter().rfind(|pair| pair.key == names::TRACEPARENT)?;
    let context = TraceParent::parse(plain(pair.value).as_str()?).ok()?;
    Some((TraceId(u128::from_be_bytes(context.trace_id)), SpanId(u64::from_be_bytes(context.span_id))))
}

impl Traces<'_> {
    /// Appends the spans, and returns how many of those that are there are none.
    pub(super) fn add_spans(self, piece: &Piece<'_>, scanner: &mut Scanner, spans: &mut Vec<Span>) -> usize {
        let mut not_spans = 0;
        for group in self.resource_spans {
            let texts = [group.resource, group.schema_url].map(|part| part.map(|part| part.get().as_bytes()));
            let group_id = scanner.number_of(texts);
            let maker = |file| Maker {
                is_otlp: true,
                resource: piece.part(texts[0]),
                schema_url: piece.part(texts[1]),
                stem: stem_in(group.resource),
                ..Maker::new(file)
            };
            let scopes = if group.scope_spans.is_empty() { group.library_spans } else { group.scope_spans };
            for raw in scopes.into_iter().flat_map(|scope| scope.spans) {
                let header: Option<Header<'_>> = serde_json::from_str(raw.get()).ok();
                let span = header.and_then(|header| {
                    let trace_id = id(&header.trace_id.0)?.parse().ok()?;
                    let name = header.name.as_ref().map_or("", |name| &name.0);
                    let origin = scanner.origin(trace_id, group_id, name, maker);
                    header.into_span(origin, piece, raw.get().as_bytes())
                });
                match span {
                    Some(span) => spans.push(span),
                    None => not_spans += 1,
                }
            }
        }
        not_spans
    }
}

impl Header<'_> {
    /// Returns the span, or `None` when an id or a time is not one.
    fn into_span(self, origin: Arc<Origin>, piece: &Piece<'_>, text: &[u8]) -> Option<Span> {
        let parent_id = match &self.parent_span_id {
            Some(text) if !text.0.is_empty() => Some(id(&text.0)?.parse().ok()?),
            _ => None,
        };
        let end = match self.end_time {
            Some(end) => end.number(&[])?,
            None => 0,
        };
        let kind = match self.kind.map_or(0, |kind| kind.number(&KINDS).unwrap_or(0)) {
            2 => Kind::Server,
            3 => Kind::Client,
            4 => Kind::Producer,
            5 => Kind::Consumer,
            _ => Kind::Internal,
        };
        let status = self.status.and_then(|status| status.code?.number(&STATUS_CODES));
        let found = Found {
            span_id: id(&self.span_id.0)?.parse().ok()?,
            parent_id,
            kind,
            start_unix_nano: self.start_time.number(&[])?,
            // The default of protobuf is that it is not known.
            end_unix_nano: (end > 0).then_some(end),
            status: match status {
                Some(1) => Status::Ok,
                Some(2) => Status::Error,
                _ => Status::Unset,
            },
            marks: if self.flags & REMOTE_FLAGS == IS_LOCAL { HAS_LOCAL_PARENT } else { 0 },
            origin,
            offset: piece.part(Some(text)).offset,
            text,
        };
        Some(found.into())
    }
}

/// Returns an id in hexadecimal digits, as OTLP has it, from what may be base64, as protobuf's own JSON has bytes. The lengths tell them apart.
fn id(text: &str) -> Option<Cow<'_, str>> {
    if !matches!(text.len(), 12 | 24) {
        return Some(text.into());
    }
    let (mut bits, mut count, mut hex) = (0_u32, 0, String::with_capacity(32));
    for byte in text.trim_end_matches('=').bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };
        (bits, count) = ((bits << 6 | u32::from(value)) & 0xffff, count + 6);
        if count >= 8 {
            count -= 8;
            hex.push_str(&format!("{:02x}", bits >> count & 0xff));
        }
    }
    Some(hex.into())
}

/// The parts of a span that are parsed on demand.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Parts {
    #[serde(alias = "trace_state")]
    trace_state: String,
    status: StatusPart,
    attributes: Vec<KeyValue>,
    events: Vec<EventPart>,
    links: Vec<LinkPart>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct StatusPart {
    message: String,
}

#[derive(Deserialize)]
pub(crate) struct KeyValue {
    key: String,
    #[serde(default)]
    value: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct EventPart {
    #[serde(alias = "time_unix_nano")]
    time_unix_nano: Value,
    name: String,
    attributes: Vec<KeyValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LinkPart {
    #[serde(alias = "trace_id")]
    trace_id: String,
    #[serde(alias = "span_id")]
    span_id: String,
    #[serde(default, alias = "trace_state")]
    trace_state: String,
    #[serde(default)]
    attributes: Vec<KeyValue>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResourcePart {
    attributes: Vec<KeyValue>,
}

/// Returns the attributes of a resource.
pub(crate) fn resource(text: &[u8]) -> Attributes {
    let resource: ResourcePart = serde_json::from_slice(text).unwrap_or_default();
    Attributes(resource.attributes.into_iter().map(|pair| (pair.key, plain(pair.value))).collect())
}

/// Returns the span as an object in the format of the Python console exporter.
pub(crate) fn text(span: &Span, object_text: &[u8], resource: &[u8], schema_url: &[u8]) -> String {
    let parts: Parts = serde_json::from_slice(object_text).unwrap_or_default();
    let context = |trace_id: TraceId, span_id: SpanId, trace_state: &str| {
        let trace_state = tracer_span_file::python_trace_state(trace_state);
        json!({"trace_id": format!("0x{trace_id}"), "span_id": format!("0x{span_id}"), "trace_state": trace_state})
    };
    let mut status = Map::new();
    let code = match span.status {
        Status::Unset => "UNSET",
        Status::Ok => "OK",
        Status::Error => "ERROR",
    };
    status.insert("status_code".into(), code.into());
    if !parts.status.message.is_empty() {
        status.insert("description".into(), parts.status.message.into());
    }
    let kind = match span.kind {
        Kind::Internal => "SpanKind.INTERNAL",
        Kind::Server => "SpanKind.SERVER",
        Kind::Client => "SpanKind.CLIENT",
        Kind::Producer => "SpanKind.PRODUCER",
        Kind::Consumer => "SpanKind.CONSUMER",
    };
    let events = parts.events.into_iter().map(|event| {
        let time = match &event.time_unix_nano {
            Value::String(text) => text.parse().ok(),
            number => number.as_u64(),
        };
        json!({"name": event.name, "timestamp": time.map(time::format), "attributes": object(event.attributes)})
    });
    let links = parts.links.into_iter().filter_map(|link| {
        let (trace_id, span_id) = (id(&link.trace_id)?.parse().ok()?, id(&link.span_id)?.parse().ok()?);
        let context = context(trace_id, span_id, &link.trace_state);
        Some(json!({"context": context, "attributes": object(link.attributes)}))
    });
    let stored = |unix_nano: u64| time::format(unix_nano.saturating_add_signed(span.clock_shift_ns().saturating_neg()));
    let resource: ResourcePart = serde_json::from_slice(resource).unwrap_or_default();
    let schema_url: String = serde_json::from_slice(schema_url).unwrap_or_default();
    json!({
        "name": span.name(),
        "context": context(span.trace_id(), span.span_id, &parts.trace_state),
        "kind": kind,
        "parent_id": span.parent_id().map(|id| format!("0x{id}")),
        "start_time": stored(span.start_unix_nano),
        "end_time": span.end_unix_nano().map(stored),
        "status": status,
        "attributes": object(parts.attributes),
        "events": events.collect::<Vec<_>>(),
        "links": links.collect::<Vec<_>>(),
        "resource": {"attributes": object(resource.attributes), "schema_url": schema_url},
    })
    .to_string()
}

/// Converts pairs to an object. Of several values with one key, the last holds.
fn object(pairs: Vec<KeyValue>) -> Map<String, Value> {
    pairs.into_iter().map(|pair| (pair.key, plain(pair.value))).collect()
}

/// Returns attributes with plain values.
pub(crate) fn pairs(pairs: Vec<KeyValue>) -> Vec<(String, Value)> {
    pairs.into_iter().map(|pair| (pair.key, plain(pair.value))).collect()
}

/// Returns the value in an `AnyValue`; null for none.
pub(crate) fn any_value(any: Value) -> Value {
    plain(any)
}

/// Returns the value in an `AnyValue`. Bytes stay the text that they are in JSON; what is not known is null.
fn plain(any: Value) -> Value {
    let Value::Object(any) = any else { return Value::Null };
    let Some((kind, value)) = any.into_iter().next() else { return Value::Null };
    match (&*kind, value) {
        ("intValue" | "int_value", Value::String(text)) => text.parse::<i64>().map_or(Value::Null, Value::from),
        // What JSON has no number for: `NaN` and the infinities stay texts.
        ("stringValue" | "string_value" | "boolValue" | "bool_value" | "intValue" | "int_value", value) => value,
        ("doubleValue" | "double_value" | "bytesValue" | "bytes_value", value) => value,
        ("arrayValue" | "array_value", mut value) => match value["values"].take() {
            Value::Array(values) => values.into_iter().map(plain).collect(),
            _ => Value::Array(Vec::new()),
        },
        ("kvlistValue" | "kvlist_value", mut value) => {
            let pairs: Vec<KeyValue> = serde_json::from_value(value["values"].take()).unwrap_or_default();
            Value::Object(object(pairs))
        }
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::fixture::loaded;
    use super::*;

    #[test]
    fn ids_are_read_in_hexadecimal_and_in_base64() {
        for (text, expected) in [
            ("00f067aa0ba902b7", Some("00f067aa0ba902b7")),
            ("APBnqgupArc=", Some("00f067aa0ba902b7")),
            ("/////////+8=", Some("ffffffffffffffef")),
            ("S/kvNXezTaajzpKdDg5HNg==", Some("4bf92f3577b34da6a3ce929d0e0e4736")),
            ("S_kvNXezTaajzpKdDg5HNg==", Some("4bf92f3577b34da6a3ce929d0e0e4736")),
            ("S/kvNXezTaajzpKdDg5H?g==", None),
        ] {
            assert_eq!(id(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn every_kind_of_value_becomes_plain_json() {
        for (any, expected) in [
            (json!({"stringValue": "a"}), json!("a")),
            (json!({"boolValue": true}), json!(true)),
            (json!({"intValue": "-9223372036854775808"}), json!(i64::MIN)),
            (json!({"intValue": 5}), json!(5)),
            (json!({"int_value": "5"}), json!(5)),
            (json!({"doubleValue": 2.5}), json!(2.5)),
            (json!({"doubleValue": "NaN"}), json!("NaN")),
            (json!({"bytesValue": "AAE="}), json!("AAE=")),
            (json!({"arrayValue": {"values": [{"intValue": "1"}, {"stringValue": "x"}]}}), json!([1, "x"])),
            (json!({"arrayValue": {}}), json!([])),
            (json!({"kvlistValue": {"values": [{"key": "k", "value": {"intValue": "1"}}]}}), json!({"k": 1})),
            (json!({"intValue": "one"}), Value::Null),
            (json!({"futureValue": 1}), Value::Null),
            (json!({}), Value::Null),
            (json!(1), Value::Null),
        ] {
            assert_eq!(plain(any.clone()), expected, "{any}");
        }
    }

    #[test]
    fn other_names_of_the_fields_are_known() {
        let text = r#"{ "resource_spans": [{"resource": null, "scope_spans": [{"spans": [{
            "trace_id": "S/kvNXezTaajzpKdDg5HNg==", "span_id": "APBnqgupArc=", "parent_span_id": "", "name": "a",
            "kind": "SPAN_KIND_CLIENT", "start_time_unix_nano": 1793880000000000001, "status": {"code": "STATUS_CODE_ERROR"}}]}]}]}"#;
        let loaded = loaded([("1.json", text.into())]);
        assert_eq!(loaded.notices, []);
        let span = &loaded.traces[0].spans[0];
        assert_eq!((span.kind, span.status, span.parent_id()), (Kind::Client, Status::Error, None));
        assert_eq!((span.start_unix_nano, span.end_unix_nano()), (1793880000000000001, None));
        assert_eq!((span.pid(), span.attributes()), (Some(1), Attributes::default()));
    }
}
