//! OTLP in JSON lines, after the OTLP specification (JSON Protobuf encoding) and the file exporter's: each line is a `TracesData`
//! with the spans of one resource. Keys are in lowerCamelCase, ids in hexadecimal, enumerations are numbers, and 64-bit integers
//! are strings.
//!
//! What the span files have no place for is not there: the instrumentation scope, flags, and counts of what was dropped.

use std::collections::HashMap;
use std::io::{self, Write};

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::loaded::Trace;
use crate::span::{Attributes, Details, Kind, Span, SpanId, SpanLink, Status, TraceId, resource};

/// Limit on the spans in one line: that of a batch of the SDK, so that no reader meets a line of any length.
const SPANS_PER_LINE: usize = 512;

/// Limit on the spans that wait for others of their resource.
const SPANS_WAITING: usize = 16 * SPANS_PER_LINE;

/// Writes the spans of the traces.
pub fn otlp(traces: &[&Trace], out: &mut dyn Write) -> io::Result<()> {
    let mut otlp = Otlp::default();
    traces.iter().try_for_each(|trace| otlp.write(trace, out))?;
    otlp.finish(out)
}

/// Spans that are being written, trace by trace.
#[derive(Default)]
pub struct Otlp {
    index_by_resource: HashMap<String, usize>,
    groups: Vec<(String, Vec<SpanJson>)>,
    waiting: usize,
}

impl Otlp {
    /// Writes the spans of a trace that have ended; some wait for others of their resource.
    pub fn write(&mut self, trace: &Trace, out: &mut dyn Write) -> io::Result<()> {
        for span in trace.spans.iter().filter(|span| !span.is_running()) {
            let mut details = span.details();
            let text = std::mem::take(&mut details.resource);
            let index = match self.index_by_resource.get(&text) {
                Some(index) => *index,
                None => {
                    self.index_by_resource.insert(text.clone(), self.groups.len());
                    self.groups.push((text, Vec::new()));
                    self.groups.len() - 1
                }
            };
            let (text, spans) = &mut self.groups[index];
            spans.push(SpanJson::new(span, details));
            self.waiting += 1;
            if spans.len() == SPANS_PER_LINE {
                write_line(text, spans, out)?;
                self.waiting -= spans.len();
                *spans = Vec::new();
            }
            if self.waiting == SPANS_WAITING {
                self.finish(out)?;
            }
        }
        Ok(())
    }

    /// Writes the spans that wait.
    pub fn finish(&mut self, out: &mut dyn Write) -> io::Result<()> {
        self.waiting = 0;
        self.index_by_resource.clear();
        let groups = self.groups.drain(..).filter(|(_, spans)| !spans.is_empty());
        groups.into_iter().try_for_each(|(text, spans)| write_line(&text, &spans, out))
    }
}

fn write_line(resource_text: &str, spans: &[SpanJson], out: &mut dyn Write) -> io::Result<()> {
    let (attributes, schema_url) = resource(resource_text);
    let scope_spans = [ScopeSpans { scope: Empty {}, spans }];
    let resource = ResourceJson { attributes: key_values(attributes) };
    let line = TracesData { resource_spans: [ResourceSpans { resource, scope_spans, schema_url }] };
    serde_json::to_writer(&mut *out, &line)?;
    out.write_all(b"\n")
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TracesData<'a> {
    resource_spans: [ResourceSpans<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceSpans<'a> {
    resource: ResourceJson,
    scope_spans: [ScopeSpans<'a>; 1],
    #[serde(skip_serializing_if = "String::is_empty")]
    schema_url: String,
}

#[derive(Serialize)]
struct ResourceJson {
    attributes: Vec<KeyValue>,
}

#[derive(Serialize)]
struct ScopeSpans<'a> {
    scope: Empty,
    spans: &'a [SpanJson],
}

#[derive(Serialize)]
struct Empty {}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SpanJson {
    trace_id: TraceId,
    span_id: SpanId,
    #[serde(skip_serializing_if = "String::is_empty")]
    trace_state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_span_id: Option<SpanId>,
    name: String,
    kind: u8,
    start_time_unix_nano: Long,
    end_time_unix_nano: Long,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    attributes: Vec<KeyValue>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    events: Vec<EventJson>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    links: Vec<LinkJson>,
    status: StatusJson,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EventJson {
    time_unix_nano: Long,
    name: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    attributes: Vec<KeyValue>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LinkJson {
    trace_id: TraceId,
    span_id: SpanId,
    #[serde(skip_serializing_if = "String::is_empty")]
    trace_state: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    attributes: Vec<KeyValue>,
}

#[derive(Serialize)]
struct StatusJson {
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<u8>,
}

#[derive(Serialize)]
struct KeyValue {
    key: String,
    value: AnyValue,
}

/// An integer of 64 bits, which JSON numbers cannot hold everywhere.
struct Long(u64);

impl Serialize for Long {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

struct AnyValue(Value);

impl Serialize for AnyValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match &self.0 {
            // A value of no kind is an empty one.
            Value::Null => {}
            Value::Bool(value) => map.serialize_entry("boolValue", value)?,
            Value::Number(number) => match number.as_i64() {
                Some(value) => map.serialize_entry("intValue", &value.to_string())?,
                None => map.serialize_entry("doubleValue", number)?,
            },
            Value::String(value) => map.serialize_entry("stringValue", value)?,
            Value::Array(values) => {
                let values: Vec<AnyValue> = values.iter().cloned().map(AnyValue).collect();
                map.serialize_entry("arrayValue", &Values { values })?;
            }
            Value::Object(entries) => {
                let values = entries.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
                map.serialize_entry("kvlistValue", &Values { values: key_values(Attributes(values)) })?;
            }
        }
        map.end()
    }
}

#[derive(Serialize)]
struct Values<T> {
    values: Vec<T>,
}

/// Converts attributes. Of several values of one key the last one holds; a receiver may refuse the others.
fn key_values(attributes: Attributes) -> Vec<KeyValue> {
    let mut unique: Vec<KeyValue> = Vec::with_capacity(attributes.0.len());
    for (key, value) in attributes.0 {
        match unique.iter_mut().find(|known| known.key == key) {
            Some(known) => known.value = AnyValue(value),
            None => unique.push(KeyValue { key, value: AnyValue(value) }),
        }
    }
    unique
}

impl SpanJson {
    fn new(span: &Span, details: Details) -> SpanJson {
        SpanJson {
            trace_id: span.trace_id(),
            span_id: span.span_id,
            trace_state: details.trace_state,
            parent_span_id: span.parent_id(),
            name: span.name().to_string(),
            kind: match span.kind {
                Kind::Internal => 1,
                Kind::Server => 2,
                Kind::Client => 3,
                Kind::Producer => 4,
                Kind::Consumer => 5,
            },
            start_time_unix_nano: Long(span.start_unix_nano),
            end_time_unix_nano: Long(span.end_unix_nano().unwrap_or(0)),
            attributes: key_values(details.attributes),
            events: details
                .events
                .into_iter()
                .map(|event| EventJson {
                    time_unix_nano: Long(event.time_unix_nano.unwrap_or(0)),
                    name: event.name,
                    attributes: key_values(event.attributes),
                })
                .collect(),
            links: details
                .links
                .into_iter()
                .map(|(SpanLink { trace_id, span_id, attributes }, trace_state)| LinkJson {
                    trace_id,
                    span_id,
                    trace_state,
                    attributes: key_values(attributes),
                })
                .collect(),
            status: match span.status {
                Status::Unset => StatusJson { message: None, code: None },
                Status::Ok => StatusJson { message: None, code: Some(1) },
                Status::Error => StatusJson { message: details.status_description, code: Some(2) },
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{loaded, span};

    fn lines(traces: &crate::Loaded) -> Vec<Value> {
        let mut out = Vec::new();
        otlp(&traces.traces.iter().collect::<Vec<_>>(), &mut out).expect("a vector takes everything");
        let text = String::from_utf8(out).expect("JSON is UTF-8");
        text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
    }

    #[test]
    fn values_keep_their_types() {
        let attributes = r#"{"b": true, "i": -9007199254740993, "f": 1.0, "s": "x", "a": [1, 2.5], "n": null, "i": 2, "o": {"k": "v"}}"#;
        let lines = lines(&loaded([(
            "1.json",
            span("a", 1, 2, (0, 1)).kind("CLIENT").attributes(attributes).failed("no").line().into(),
        )]));
        let span = &lines[0]["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
        assert_eq!(
            *span,
            serde_json::json!({
                "traceId": "4bf92f3577b34da6a3ce929d0e0e4736",
                "spanId": "0000000000000001",
                "parentSpanId": "0000000000000002",
                "name": "a",
                "kind": 3,
                "startTimeUnixNano": "1793880000000000000",
                "endTimeUnixNano": "1793880000000001000",
                "attributes": [
                    {"key": "b", "value": {"boolValue": true}},
                    {"key": "i", "value": {"intValue": "2"}},
                    {"key": "f", "value": {"doubleValue": 1.0}},
                    {"key": "s", "value": {"stringValue": "x"}},
                    {"key": "a", "value": {"arrayValue": {"values": [{"intValue": "1"}, {"doubleValue": 2.5}]}}},
                    {"key": "n", "value": {}},
                    {"key": "o", "value": {"kvlistValue": {"values": [{"key": "k", "value": {"stringValue": "v"}}]}}},
                ],
                "status": {"message": "no", "code": 2},
            })
        );
        let service = &lines[0]["resourceSpans"][0]["resource"]["attributes"];
        assert_eq!(*service, serde_json::json!([{"key": "service.name", "value": {"stringValue": "tracer"}}]));
    }

    #[test]
    fn each_resource_has_lines_of_its_own_and_no_line_is_endless() {
        let mut text = String::new();
        for number in 1..=700 {
            let line = span("a", number, None, (number, number + 1)).line();
            text += &if number % 7 == 0 { line.replace("\"tracer\"", "\"other\"") } else { line };
        }
        let lines = lines(&loaded([("1.json", text.into_bytes())]));
        let counts: Vec<(String, usize)> = lines
            .iter()
            .map(|line| {
                let group = &line["resourceSpans"][0];
                let spans = group["scopeSpans"][0]["spans"].as_array().map_or(0, Vec::len);
                (group["resource"]["attributes"][0]["value"]["stringValue"].to_string(), spans)
            })
            .collect();
        let expected = [("\"tracer\"", 512), ("\"tracer\"", 88), ("\"other\"", 100)];
        assert_eq!(counts, expected.map(|(name, count)| (name.to_owned(), count)));
    }
}
