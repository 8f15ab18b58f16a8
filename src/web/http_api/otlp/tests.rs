use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use http::StatusCode;
use http_body_util::BodyExt;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, KeyValue, KeyValueList, any_value};
use opentelemetry_proto::tonic::trace::v1::span::{Event, Link};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
use proptest::prelude::*;
use prost::Message as _;
use serde_json::{Value, json};

use super::line::{Malformed, VALUE_DEPTH};
use super::*;

fn attribute(key: &str, value: any_value::Value) -> KeyValue {
    KeyValue { key: key.into(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

fn text(text: &str) -> any_value::Value {
    any_value::Value::StringValue(text.into())
}

fn span(id: u8) -> Span {
    Span {
        trace_id: vec![0xab; 16],
        span_id: vec![id; 8],
        name: "work".into(),
        start_time_unix_nano: 1,
        ..Span::default()
    }
}

fn request(spans: Vec<Span>) -> ExportTraceServiceRequest {
    let scope_spans = vec![ScopeSpans { spans, ..ScopeSpans::default() }];
    ExportTraceServiceRequest { resource_spans: vec![ResourceSpans { scope_spans, ..ResourceSpans::default() }] }
}

/// Returns a span with everything that one may have.
fn whole_span() -> Span {
    Span {
        parent_span_id: vec![0, 1, 2, 3, 4, 5, 6, 7],
        trace_state: "a=b".into(),
        kind: 3,
        start_time_unix_nano: u64::MAX,
        end_time_unix_nano: 7,
        attributes: vec![
            attribute("text", text("a\"\u{1}\u{2028}é")),
            attribute("flag", any_value::Value::BoolValue(true)),
            attribute("int", any_value::Value::IntValue(i64::MIN)),
            attribute("double", any_value::Value::DoubleValue(2.5)),
            attribute("nan", any_value::Value::DoubleValue(f64::NAN)),
            attribute("bytes", any_value::Value::BytesValue(vec![0, 1, 254, 255])),
            attribute(
                "list",
                any_value::Value::ArrayValue(ArrayValue {
                    values: vec![AnyValue { value: Some(text("x")) }, AnyValue { value: None }],
                }),
            ),
            attribute(
                "map",
                any_value::Value::KvlistValue(KeyValueList {
                    values: vec![attribute("k", any_value::Value::IntValue(1))],
                }),
            ),
        ],
        dropped_attributes_count: 1,
        events: vec![Event { time_unix_nano: 5, name: "e".into(), ..Event::default() }],
        dropped_events_count: 2,
        links: vec![Link { trace_id: vec![1; 16], span_id: vec![2; 8], flags: 0x100, ..Link::default() }],
        dropped_links_count: 3,
        status: Some(Status { message: "no".into(), code: 2 }),
        flags: 0x301,
        ..span(0xcd)
    }
}

fn whole_json() -> Value {
    json!({"resourceSpans": [{"scopeSpans": [{"spans": [{
        "traceId": "abababababababababababababababab", "spanId": "cdcdcdcdcdcdcdcd", "traceState": "a=b",
        "parentSpanId": "0001020304050607", "name": "work", "kind": 3,
        "startTimeUnixNano": u64::MAX.to_string(), "endTimeUnixNano": "7",
        "attributes": [
            {"key": "text", "value": {"stringValue": "a\"\u{1}\u{2028}é"}},
            {"key": "flag", "value": {"boolValue": true}},
            {"key": "int", "value": {"intValue": i64::MIN.to_string()}},
            {"key": "double", "value": {"doubleValue": 2.5}},
            {"key": "nan", "value": {"doubleValue": "NaN"}},
            {"key": "bytes", "value": {"bytesValue": "AAH+/w=="}},
            {"key": "list", "value": {"arrayValue": {"values": [{"stringValue": "x"}, {}]}}},
            {"key": "map", "value": {"kvlistValue": {"values": [{"key": "k", "value": {"intValue": "1"}}]}}},
        ],
        "droppedAttributesCount": 1,
        "events": [{"timeUnixNano": "5", "name": "e"}],
        "droppedEventsCount": 2,
        "links": [{"traceId": "01010101010101010101010101010101", "spanId": "0202020202020202", "flags": 256}],
        "droppedLinksCount": 3,
        "status": {"message": "no", "code": 2},
        "flags": 769,
    }]}]}]})
}

fn line_of(decoded: &Decoded) -> Value {
    assert_eq!(decoded.line.iter().filter(|&&byte| byte == b'\n').count(), 1, "it is one line");
    serde_json::from_slice(&decoded.line).expect("it is JSON")
}

fn from_json(signal: Signal, body: &Value) -> Result<Decoded, Malformed> {
    json::decode(signal.schema(), body.to_string().as_bytes())
}

/// Returns the counts, with the reason.
fn fate(decoded: &Decoded) -> (u64, u64, Option<&str>) {
    (decoded.accepted, decoded.rejected, decoded.reason.as_deref())
}

#[test]
fn fields_are_in_the_order_of_their_numbers_and_not_too_many_to_note() {
    for message in schema::ALL {
        let numbers: Vec<_> = message.fields.iter().map(|field| field.number).collect();
        assert!(numbers.is_sorted_by(|before, after| before < after), "{}", message.name);
        assert!(numbers.len() <= 32, "{}", message.name);
    }
}

#[test]
fn a_span_in_protobuf_is_written_whole() {
    let decoded = protobuf::decode(&schema::TRACES, &request(vec![whole_span()]).encode_to_vec()).unwrap();
    assert_eq!(line_of(&decoded), whole_json());
    assert_eq!(fate(&decoded), (1, 0, None));
}

#[test]
fn a_span_in_json_is_written_as_it_is_in_protobuf() {
    let decoded = from_json(Signal::Traces, &whole_json()).unwrap();
    assert_eq!(line_of(&decoded), whole_json());
    assert_eq!(fate(&decoded), (1, 0, None));
}

#[test]
fn json_is_taken_as_senders_may_write_it() {
    let span = |more: Value| {
        let mut span = json!({"traceId": "AB".repeat(16), "spanId": "cd".repeat(8)});
        span.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        if span["start_time_unix_nano"].is_null() {
            span.as_object_mut().unwrap().entry("startTimeUnixNano").or_insert("1".into());
        }
        json!({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})
    };
    for (sent, expected) in [
        (json!({"future": {"a": [1, {}]}, "name": null, "events": null}), json!({})),
        (
            json!({"start_time_unix_nano": 5, "endTimeUnixNano": "18446744073709551615"}),
            json!({"startTimeUnixNano": "5", "endTimeUnixNano": "18446744073709551615"}),
        ),
        (
            json!({"startTimeUnixNano": 1.7e18, "endTimeUnixNano": "1.7e18", "kind": "SPAN_KIND_SERVER", "status": {"code": "STATUS_CODE_ERROR"}}),
            json!({"startTimeUnixNano": "1700000000000000000", "endTimeUnixNano": "1700000000000000000", "kind": 2, "status": {"code": 2}}),
        ),
        (json!({"parentSpanId": "", "attributes": []}), json!({"attributes": []})),
        (json!({"parentSpanId": "0000000000000000"}), json!({})),
        (
            json!({"attributes": [{"key": "a", "value": {"doubleValue": 1}}, {"key": "b", "value": {"doubleValue": "-Infinity"}}]}),
            json!({"attributes": [{"key": "a", "value": {"doubleValue": 1.0}}, {"key": "b", "value": {"doubleValue": "-Infinity"}}]}),
        ),
        (
            json!({"attributes": [{"key": "a", "value": {"intValue": -3}}, {"key": "b", "value": {"bytesValue": "_-8"}}]}),
            json!({"attributes": [{"key": "a", "value": {"intValue": "-3"}}, {"key": "b", "value": {"bytesValue": "/+8="}}]}),
        ),
    ] {
        let mut written = line_of(&from_json(Signal::Traces, &span(sent.clone())).unwrap());
        let mut written = written.pointer_mut("/resourceSpans/0/scopeSpans/0/spans/0").unwrap().take();
        let object = written.as_object_mut().unwrap();
        assert_eq!(object.shift_remove("traceId"), Some("ab".repeat(16).into()), "{sent}");
        assert_eq!(object.shift_remove("spanId"), Some("cd".repeat(8).into()), "{sent}");
        let start = object.shift_remove("startTimeUnixNano");
        assert_eq!(start, Some(expected.get("startTimeUnixNano").unwrap_or(&"1".into()).clone()), "{sent}");
        let mut expected = expected;
        expected.as_object_mut().unwrap().shift_remove("startTimeUnixNano");
        assert_eq!(written, expected, "{sent}");
    }
}

#[test]
fn json_that_is_no_otlp_is_refused_with_what_was_expected() {
    let span = |span: &str| format!(r#"{{"resourceSpans":[{{"scopeSpans":[{{"spans":[{span}]}}]}}]}}"#);
    for (body, expected) in [
        ("[]".to_owned(), "expected an object, ExportTraceServiceRequest"),
        (r#"{"resourceSpans":{}}"#.into(), "expected a list, `resourceSpans` of ExportTraceServiceRequest"),
        (span(r#"{"kind":"SERVER"}"#), "expected an integer, or the name of a value, `kind` of Span"),
        (span(r#"{"flags":"1"}"#), "expected an integer, `flags` of Span"),
        (span(r#"{"startTimeUnixNano":1e30}"#), "expected 0 to 18446744073709551615"),
        (span(r#"{"startTimeUnixNano":"1.5"}"#), "expected an integer, as a text or a number, `startTimeUnixNano`"),
        (span(r#"{"kind":-1}"#), "Span: `kind` is -1, expected 0 to 4294967295"),
        (span(r#"{"kind":1.5}"#), "expected an integer, or the name of a value, `kind` of Span"),
        (span(r#"{"name":5}"#), "expected a text, `name` of Span"),
        (span(r#"{"name":"a","name":"b"}"#), "Span: `name` is there twice"),
        (span(r#"{"traceId":"xy"}"#), "expected an id in hexadecimal digits, `traceId` of Span"),
        (span(r#"{"startTimeUnixNano":"-1"}"#), "Span: `startTimeUnixNano` is -1, expected 0 to"),
        (
            span(r#"{"attributes":[{"key":"a","value":{"intValue":"1","boolValue":true}}]}"#),
            "it has more than one value",
        ),
        (span("{"), "key must be a string"),
        ("{".into(), "EOF"),
        (format!("{} x", span("")), "trailing characters"),
        (String::new(), "EOF"),
    ] {
        let error = json::decode(&schema::TRACES, body.as_bytes()).unwrap_err().0;
        assert!(error.contains(expected), "{body}: {error}");
    }
}

#[test]
fn spans_without_ids_or_a_start_are_rejected_alone() {
    type Change = fn(&mut Span);
    let without = |change: Change| {
        let mut span = whole_span();
        change(&mut span);
        span
    };
    let bad: [(Change, &str); 6] = [
        (|span| span.start_time_unix_nano = 0, "a span has no time of its start (`startTimeUnixNano`)"),
        (|span| span.trace_id.clear(), "a span has no trace id"),
        (|span| span.trace_id = vec![0; 16], "a span has no trace id"),
        (|span| span.span_id.clear(), "a span has no span id"),
        (|span| span.span_id = vec![1; 7], "an id has 7 bytes, expected 8"),
        (|span| span.links[0].trace_id = vec![1; 8], "an id has 8 bytes, expected 16"),
    ];
    for (change, reason) in bad {
        let spans = vec![span(1), without(change), span(2), without(change)];
        let decoded = protobuf::decode(&schema::TRACES, &request(spans).encode_to_vec()).unwrap();
        assert_eq!(fate(&decoded), (2, 2, Some(reason)));
        let line = line_of(&decoded);
        let ids: Vec<_> = line["resourceSpans"][0]["scopeSpans"][0]["spans"]
            .as_array()
            .unwrap()
            .iter()
            .map(|span| span["spanId"].clone())
            .collect();
        assert_eq!(ids, ["0101010101010101", "0202020202020202"]);
        let alone = protobuf::decode(&schema::TRACES, &request(vec![without(change)]).encode_to_vec()).unwrap();
        assert_eq!((alone.line.len(), fate(&alone)), (0, (0, 1, Some(reason))));
    }
}

#[test]
fn values_are_nested_as_deep_as_readers_of_json_go_and_no_deeper() {
    let nested = |depth: usize| {
        let mut value = field(1, b"end");
        for _ in 1..depth {
            value = field(6, &field(1, &[field(1, b"k"), field(2, &value)].concat()));
        }
        let event = field(11, &field(3, &[field(1, b"deep"), field(2, &value)].concat()));
        let spans = [[span(1).encode_to_vec(), event].concat(), span(2).encode_to_vec()];
        field(1, &field(2, &spans.map(|span| field(2, &span)).concat()))
    };
    let decoded = protobuf::decode(&schema::TRACES, &nested(VALUE_DEPTH)).unwrap();
    assert_eq!(fate(&decoded), (2, 0, None));
    let line = line_of(&decoded);
    assert_eq!(from_json(Signal::Traces, &line).unwrap(), decoded);
    let reason = "a value is nested more than 24 levels deep";
    for depth in [VALUE_DEPTH + 1, 5000] {
        assert_eq!(fate(&protobuf::decode(&schema::TRACES, &nested(depth)).unwrap()), (1, 1, Some(reason)), "{depth}");
    }
    let deep = |depth: usize| {
        let (open, close) = (r#"{"arrayValue":{"values":["#.repeat(depth), "]}}".repeat(depth));
        let value = format!(r#"{open}{{"stringValue":"end"}}{close}"#);
        format!(
            r#"{{"resourceSpans":[{{"scopeSpans":[{{"spans":[{{"traceId":"{}","spanId":"{}","startTimeUnixNano":"1","attributes":[{{"key":"a","value":{value}}}]}}]}}]}}]}}"#,
            "1".repeat(32),
            "2".repeat(16)
        )
    };
    for depth in [VALUE_DEPTH, 100_000] {
        assert_eq!(
            fate(&json::decode(&schema::TRACES, deep(depth).as_bytes()).unwrap()),
            (0, 1, Some(reason)),
            "{depth}"
        );
    }
    // Outside of a span there is nothing to reject but all of it.
    let whole = json!({"resourceSpans": [{"resource": {"attributes": [{"key": "a", "value": serde_json::from_str::<Value>(&format!("{}{}", r#"{"arrayValue":{"values":["#.repeat(30), "]}}".repeat(30))).unwrap()}]}}]});
    assert!(from_json(Signal::Traces, &whole).unwrap_err().0.contains(reason));
}

/// Returns a field with its length before it.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut whole = vec![number << 3 | 2];
    prost::encoding::encode_varint(bytes.len() as u64, &mut whole);
    whole.extend_from_slice(bytes);
    whole
}

#[test]
fn fields_in_another_order_are_put_together() {
    let (trace, id) = (field(1, &[0xab; 16]), field(2, &[1; 8]));
    let attribute = |key: &str| field(9, &field(1, key.as_bytes()));
    let status = |number: u8, value: &[u8]| {
        let part = if number == 2 { field(2, value) } else { [&[number << 3], value].concat() };
        [&[15 << 3 | 2][..], &[part.len() as u8], &part].concat()
    };
    let span = [
        attribute("a"),
        field(5, b"first"),
        status(2, b"why"),
        id,
        attribute("b"),
        field(5, b"last"),
        [&[7 << 3 | 1, 1][..], &[0; 7]].concat(),
        trace,
        status(3, &[2]),
        // A field that nobody knows.
        vec![0xf8, 0x7f, 1],
    ]
    .concat();
    let body = field(1, &field(2, &field(2, &span)));
    let decoded = protobuf::decode(&schema::TRACES, &body).unwrap();
    let expected = json!({
        "traceId": "ab".repeat(16), "spanId": "01".repeat(8), "name": "last", "startTimeUnixNano": "1",
        "attributes": [{"key": "a"}, {"key": "b"}], "status": {"message": "why", "code": 2},
    });
    assert_eq!(line_of(&decoded)["resourceSpans"][0]["scopeSpans"][0]["spans"][0], expected);
    // What was read before is counted once.
    let body = [request(vec![self::span(5), Span::default()]).encode_to_vec(), body].concat();
    let decoded = protobuf::decode(&schema::TRACES, &body).unwrap();
    assert_eq!(fate(&decoded), (2, 1, Some("a span has no trace id")));
    assert_eq!(line_of(&decoded)["resourceSpans"][1]["scopeSpans"][0]["spans"][0], expected);
}

#[test]
fn numbers_of_metrics_are_taken_packed_and_one_by_one() {
    let fixed = |values: &[u64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    let point = [
        field(6, &fixed(&[1, 2])),
        [&[6 << 3 | 1][..], &fixed(&[3])].concat(),
        field(7, &fixed(&[0.5_f64.to_bits(), 10_f64.to_bits()])),
        [&[11 << 3 | 1][..], &fixed(&[f64::INFINITY.to_bits()])].concat(),
    ]
    .concat();
    let exponential = [field(8, &[&[1 << 3, 3][..], &field(2, &[1, 0x80, 1])].concat()), vec![6 << 3, 4]];
    let exponential = [&exponential[1][..], &exponential[0]].concat();
    let metric = [field(1, b"m"), field(9, &field(1, &point)), field(10, &field(1, &exponential))].concat();
    let body = field(1, &field(2, &field(2, &metric)));
    let decoded = protobuf::decode(&schema::METRICS, &body).unwrap();
    let expected = json!({
        "name": "m",
        "histogram": {"dataPoints": [{"bucketCounts": ["1", "2", "3"], "explicitBounds": [0.5, 10.0], "min": "Infinity"}]},
        "exponentialHistogram": {"dataPoints": [{"scale": 2, "positive": {"offset": -2, "bucketCounts": ["1", "128"]}}]},
    });
    assert_eq!(line_of(&decoded)["resourceMetrics"][0]["scopeMetrics"][0]["metrics"][0], expected);
    assert_eq!(decoded.accepted, 2, "each data point counts");
    assert_eq!(from_json(Signal::Metrics, &line_of(&decoded)).unwrap(), decoded);
}

#[test]
fn log_records_need_no_ids_but_right_ones() {
    let records = |record: Value| json!({"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]});
    let whole = json!({
        "timeUnixNano": "1", "severityNumber": 9, "severityText": "INFO", "body": {"stringValue": "hello"},
        "attributes": [{"key": "a", "value": {"boolValue": false}}], "flags": 1, "traceId": "ab".repeat(16), "spanId": "cd".repeat(8),
        "observedTimeUnixNano": "2", "eventName": "e",
    });
    let decoded = from_json(Signal::Logs, &records(whole.clone())).unwrap();
    assert_eq!(line_of(&decoded), records(whole));
    let without = from_json(Signal::Logs, &records(json!({"body": {"intValue": "1"}, "traceId": ""}))).unwrap();
    assert_eq!(line_of(&without), records(json!({"body": {"intValue": "1"}})));
    let wrong = from_json(Signal::Logs, &records(json!({"traceId": "ab"}))).unwrap();
    assert_eq!(fate(&wrong), (0, 1, Some("an id has 1 bytes, expected 16")));
}

#[test]
fn protobuf_that_is_cut_off_is_refused_wherever_it_is_cut() {
    let body = request(vec![whole_span()]).encode_to_vec();
    for length in 1..body.len() {
        assert!(protobuf::decode(&schema::TRACES, &body[..length]).is_err(), "{length}");
    }
    assert_eq!(fate(&protobuf::decode(&schema::TRACES, &[]).unwrap()), (0, 0, None));
    let wrong = protobuf::decode(&schema::TRACES, &[1 << 3, 1]).unwrap_err().0;
    assert_eq!(wrong, "ExportTraceServiceRequest: `resourceSpans` is Varint, expected LengthDelimited");
    let not_text = request(vec![span(1)]).encode_to_vec();
    let not_text: Vec<_> = not_text.iter().map(|&byte| if byte == b'w' { 0xff } else { byte }).collect();
    assert_eq!(protobuf::decode(&schema::TRACES, &not_text).unwrap_err().0, "Span: `name` is not UTF-8");
}

#[test]
fn what_is_unpacked_is_bounded() {
    let packed = |bytes: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    assert_eq!(unpack(&packed(b"abc")).unwrap(), b"abc");
    assert_eq!(unpack(&[packed(b"abc"), packed(b"def")].concat()).unwrap(), b"abcdef");
    assert_eq!(unpack(&packed(&vec![0; UNPACKED_BYTES])).unwrap().len(), UNPACKED_BYTES);
    let bomb = unpack(&packed(&vec![0; UNPACKED_BYTES + 1])).unwrap_err();
    assert_eq!(bomb.face().0, 413);
    for damaged in [b"abc".to_vec(), packed(b"abc")[..12].to_vec(), Vec::new()] {
        assert_eq!(unpack(&damaged).unwrap_err().face().0, 400, "{damaged:?}");
    }
}

fn body_of(response: http::Response<super::super::body::Body>) -> Vec<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(response.into_body().collect()).unwrap().to_bytes().to_vec()
}

#[test]
fn answers_are_in_the_form_of_the_request() {
    let decoded = |rejected| Decoded { rejected, reason: (rejected > 0).then(|| "why".into()), ..Decoded::default() };
    for (signal, form, rejected, expected) in [
        (Signal::Traces, Form::Protobuf, 0, b"".to_vec()),
        (Signal::Traces, Form::Json, 0, b"{}".to_vec()),
        (Signal::Logs, Form::Protobuf, 300, b"\x0a\x08\x08\xac\x02\x12\x03why".to_vec()),
        (Signal::Traces, Form::Json, 2, br#"{"partialSuccess":{"rejectedSpans":"2","errorMessage":"why"}}"#.to_vec()),
        (
            Signal::Logs,
            Form::Json,
            2,
            br#"{"partialSuccess":{"rejectedLogRecords":"2","errorMessage":"why"}}"#.to_vec(),
        ),
        (
            Signal::Metrics,
            Form::Json,
            2,
            br#"{"partialSuccess":{"rejectedDataPoints":"2","errorMessage":"why"}}"#.to_vec(),
        ),
    ] {
        let response = form.success(signal, &decoded(rejected));
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(body_of(response), expected, "{signal:?} {form:?} {rejected}");
    }
    let problem = || Problem::new(problem::TOO_MANY, "why\n(hint: wait)").header(header::RETRY_AFTER, "1");
    let response = Form::Protobuf.failure(problem());
    assert_eq!((response.status().as_u16(), &response.headers()["retry-after"]), (429, &"1".parse().unwrap()));
    assert_eq!(response.headers()["content-type"], "application/x-protobuf");
    assert_eq!(body_of(response), b"\x08\x08\x12\x10why\n(hint: wait)");
    assert_eq!(body_of(Form::Json.failure(problem())), br#"{"code":8,"message":"why\n(hint: wait)"}"#);
}

fn any_value() -> impl Strategy<Value = AnyValue> {
    let leaf = prop_oneof![
        Just(None),
        ".{0,8}".prop_map(|text| Some(any_value::Value::StringValue(text))),
        any::<i64>().prop_map(|number| Some(any_value::Value::IntValue(number))),
        any::<f64>().prop_map(|number| Some(any_value::Value::DoubleValue(number))),
        any::<Vec<u8>>().prop_map(|bytes| Some(any_value::Value::BytesValue(bytes))),
    ];
    let leaf = leaf.prop_map(|value| AnyValue { value });
    leaf.prop_recursive(4, 16, 4, |inner| {
        let list = prop::collection::vec(inner.clone(), 0..4)
            .prop_map(|values| any_value::Value::ArrayValue(ArrayValue { values }));
        let map = prop::collection::vec(("[a-z]{0,3}", inner), 0..4).prop_map(|pairs| {
            let pair = |(key, value)| KeyValue { key, value: Some(value), ..KeyValue::default() };
            any_value::Value::KvlistValue(KeyValueList { values: pairs.into_iter().map(pair).collect() })
        });
        prop_oneof![list, map].prop_map(|value| AnyValue { value: Some(value) })
    })
}

fn any_span() -> impl Strategy<Value = Span> {
    let attributes = prop::collection::vec((".{0,4}", any_value()), 0..4);
    (prop::collection::vec(any::<u8>(), 15..18), any::<[u8; 8]>(), ".{0,8}", any::<(u64, u32, i32)>(), attributes)
        .prop_map(|(trace_id, span_id, name, (time, flags, kind), attributes)| Span {
            trace_id,
            span_id: span_id.to_vec(),
            name,
            start_time_unix_nano: time,
            flags,
            kind: kind.abs(),
            attributes: attributes
                .into_iter()
                .map(|(key, value)| KeyValue { key, value: Some(value), ..KeyValue::default() })
                .collect(),
            ..Span::default()
        })
}

proptest! {
    #[test]
    fn every_span_is_accepted_or_counted_and_the_line_is_read_as_what_it_says(
        spans in prop::collection::vec(any_span(), 0..6),
    ) {
        let good = spans.iter().filter(|span| span.trace_id.len() == 16).count() as u64;
        let count = spans.len() as u64;
        let sent = request(spans);
        let decoded = protobuf::decode(&schema::TRACES, &sent.encode_to_vec()).unwrap();
        prop_assert_eq!((decoded.accepted, decoded.rejected), (good, count - good));
        if good == count && count > 0 {
            let encoded = encode::encode(&schema::TRACES, &decoded.line).unwrap();
            let back = ExportTraceServiceRequest::decode(&encoded[..]).unwrap();
            prop_assert_eq!(format!("{back:?}"), format!("{:?}", sampled(sent)));
        }
        if good > 0 {
            let again = json::decode(&schema::TRACES, &decoded.line).unwrap();
            prop_assert_eq!(String::from_utf8(again.line), String::from_utf8(decoded.line));
        }
    }

    #[test]
    fn damaged_bytes_are_refused_or_make_a_line_of_json(
        spans in prop::collection::vec(any_span(), 1..4),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        signal in prop_oneof![Just(Signal::Traces), Just(Signal::Logs), Just(Signal::Metrics)],
    ) {
        let mut body = request(spans).encode_to_vec();
        for (at, byte) in damage {
            let at = at.index(body.len());
            body[at] = byte;
        }
        if let Ok(decoded) = protobuf::decode(signal.schema(), &body) && !decoded.line.is_empty() {
            line_of(&decoded);
        }
    }

    #[test]
    fn any_bytes_are_refused_or_make_a_line_of_json(bytes in any::<Vec<u8>>()) {
        for message in schema::ALL {
            for decoded in [protobuf::decode(message, &bytes), json::decode(message, &bytes)].into_iter().flatten() {
                if !decoded.line.is_empty() {
                    line_of(&decoded);
                }
            }
        }
    }
}

/// Returns the same, with the flag on each span that says that it is sampled.
fn sampled(mut request: ExportTraceServiceRequest) -> ExportTraceServiceRequest {
    let scopes = request.resource_spans.iter_mut().flat_map(|resource| &mut resource.scope_spans);
    scopes.flat_map(|scope| &mut scope.spans).for_each(|span| span.flags |= 1);
    request
}

#[test]
fn what_was_accepted_is_encoded_as_it_was_sent() {
    let sent = request(vec![whole_span(), span(2), Span { flags: 0x300, ..span(3) }]);
    let decoded = protobuf::decode(&schema::TRACES, &sent.encode_to_vec()).unwrap();
    let encoded = encode::encode(&schema::TRACES, &decoded.line).unwrap();
    let back = ExportTraceServiceRequest::decode(&encoded[..]).unwrap();
    // No number equals one that is none.
    assert_eq!(format!("{back:?}"), format!("{:?}", sampled(sent)));
    let metrics = json!({"resourceMetrics": [{"scopeMetrics": [{"metrics": [
        {"name": "m", "gauge": {"dataPoints": [{"asDouble": "-Infinity", "flags": 1}, {"asInt": "-5"}]}},
        {"name": "e", "exponentialHistogram": {"dataPoints": [
            {"sum": 3.0, "scale": -2, "positive": {"offset": 3, "bucketCounts": ["1", "18446744073709551615"]}, "min": -1.0}]}}]}]}]});
    let decoded = from_json(Signal::Metrics, &metrics).unwrap();
    let encoded = encode::encode(&schema::METRICS, &decoded.line).unwrap();
    assert_eq!(protobuf::decode(&schema::METRICS, &encoded).unwrap(), decoded);
}
