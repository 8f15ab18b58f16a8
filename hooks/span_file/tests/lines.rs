//! Lines against the OpenTelemetry Python SDK (`golden/python_console.jsonl`, which `golden/make.py` wrote) and against a
//! JSON reader.

use proptest::prelude::*;
use serde_json::Value as Json;
use tracer_span_file::{Event, Link, ResourceJson, Span, SpanKind, Status, Value, write_line};

const PYTHON: &str = include_str!("golden/python_console.jsonl");
const TRACE: [u8; 16] = 0x0af7651916cd43dd8448eb211c80319c_u128.to_be_bytes();

fn resource() -> ResourceJson {
    let attributes = [
        ("telemetry.sdk.language", Value::Str("rust")),
        ("service.name", Value::Str("tracer")),
        ("service.instance.id", Value::Str("5f1c2f6e-2a4b-4c36-9d1c-000000000001")),
        ("process.pid", Value::I64(4242)),
    ];
    ResourceJson::new(&attributes[..], "")
}

fn span<'a>(name: &'a str, span_id: u64, kind: SpanKind) -> Span<'a> {
    Span {
        name,
        trace_id: TRACE,
        span_id: span_id.to_be_bytes(),
        trace_state: "",
        kind,
        parent_span_id: None,
        start_time_unix_nano: 1_000,
        end_time_unix_nano: 2_000,
        status: Status::Unset,
        attributes: &[],
        events: &[],
        links: &[],
    }
}

fn line(span: &Span<'_>) -> String {
    let mut buffer = Vec::new();
    write_line(&mut buffer, span, &resource());
    String::from_utf8(buffer).expect("a line is UTF-8")
}

/// Returns the spans of `golden/make.py`, in its order.
fn golden_lines() -> Vec<String> {
    let attributes = [
        ("bool", Value::Bool(true)),
        ("int", Value::I64(i64::MIN)),
        ("float", Value::F64(0.1)),
        ("text", Value::Str("a/b")),
        ("bools", Value::BoolArray(&[true, false])),
        ("ints", Value::I64Array(&[1, -2])),
        ("floats", Value::F64Array(&[1.5, -0.25])),
        ("texts", Value::StrArray(&["a", "b\""])),
        ("none of them", Value::StrArray(&[])),
    ];
    let event_attributes = [("exception.type", Value::Str("E"))];
    let events = [
        Event { name: "exception", time_unix_nano: 1_795_203_275_500_000_000, attributes: &event_attributes[..] },
        Event { name: "bare", time_unix_nano: 1_795_203_276_000_001_000, attributes: &[] },
    ];
    let link_attributes = [("why", Value::Str("retry"))];
    let links = [
        Link {
            trace_id: TRACE,
            span_id: 0xff_u64.to_be_bytes(),
            trace_state: "rojo=1",
            attributes: &link_attributes[..],
        },
        Link { trace_id: TRACE, span_id: 0xfe_u64.to_be_bytes(), trace_state: "", attributes: &[] },
    ];
    vec![
        line(&Span {
            start_time_unix_nano: 1_795_203_275_000_000_000,
            end_time_unix_nano: 1_795_203_275_000_250_000,
            ..span("plain", 0xb7ad6b7169203331, SpanKind::Internal)
        }),
        line(&Span {
            trace_state: "rojo=1,congo=t61rcWkgMzE",
            parent_span_id: Some(1_u64.to_be_bytes()),
            start_time_unix_nano: 1_795_203_275_123_456_000,
            end_time_unix_nano: 1_795_203_277_999_999_000,
            status: Status::Error { description: "it 'broke'" },
            attributes: &attributes,
            events: &events,
            links: &links,
            ..span("quote \" backslash \\ line\nfeed tab\t end\u{1}", 0xb7ad6b7169203332, SpanKind::Consumer)
        }),
        line(&Span {
            trace_state: "a=it's, b=\"x\",,c='\"\\",
            end_time_unix_nano: 4_102_444_800_000_000_000,
            status: Status::Ok,
            ..span("quoted state", 0x0102030405060708, SpanKind::Server)
        }),
        line(&Span {
            status: Status::Error { description: "" },
            ..span("no description", 0x0102030405060709, SpanKind::Producer)
        }),
        line(&Span {
            attributes: &[("language", Value::Str("日本語 é"))],
            ..span("client", 0x010203040506070a, SpanKind::Client)
        }),
    ]
}

#[test]
fn lines_are_those_of_the_python_sdk_without_its_spaces() {
    let ours = golden_lines();
    assert_eq!(ours.len(), PYTHON.lines().count());
    for (ours, python) in ours.iter().zip(PYTHON.lines()) {
        // Python escapes what is not ASCII. Everything else between the spaces is the same to the byte.
        let python = without_spaces(python);
        let python = if python.contains("\\u65e5") { without_escaped_letters(&python) } else { python };
        assert_eq!(ours.trim_end_matches('\n'), python);
    }
}

/// Returns a line without the spaces outside of its texts.
fn without_spaces(line: &str) -> String {
    let (mut text, mut is_inside, mut is_escaped) = (String::new(), false, false);
    for character in line.chars() {
        if is_inside || character != ' ' {
            text.push(character);
        }
        is_inside ^= character == '"' && !is_escaped;
        is_escaped = character == '\\' && !is_escaped;
    }
    text
}

/// Undoes Python's escapes in a line whose only escapes are those of letters.
fn without_escaped_letters(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some(at) = rest.find("\\u") {
        text.push_str(&rest[..at]);
        let code = u32::from_str_radix(&rest[at + 2..at + 6], 16).unwrap();
        text.push(char::from_u32(code).unwrap());
        rest = &rest[at + 6..];
    }
    text + rest
}

#[test]
fn the_last_value_of_a_repeated_key_stands_in_the_first_place() {
    let attributes = [
        ("a", Value::I64(1)),
        ("b", Value::I64(2)),
        ("a", Value::I64(3)),
        ("c", Value::I64(4)),
        ("b", Value::Str("last")),
        ("a", Value::Bool(true)),
    ];
    let line = line(&Span { attributes: &attributes, ..span("repeats", 1, SpanKind::Internal) });
    assert!(line.contains(r#""attributes":{"a":true,"b":"last","c":4},"events""#), "{line}");
}

#[test]
fn the_kinds_have_the_numbers_of_the_api() {
    let kinds = [SpanKind::Internal, SpanKind::Server, SpanKind::Client, SpanKind::Producer, SpanKind::Consumer];
    for (code, kind) in kinds.into_iter().enumerate() {
        assert_eq!(SpanKind::from_code(code as u32), kind);
    }
    assert_eq!(SpanKind::from_code(5), SpanKind::Internal);
}

#[derive(Clone, Debug)]
enum Owned {
    Bool(bool),
    I64(i64),
    F64(f64),
    Str(String),
    Bools(Vec<bool>),
    Ints(Vec<i64>),
    Floats(Vec<f64>),
    Strs(Vec<String>),
}

fn value() -> impl Strategy<Value = Owned> {
    prop_oneof![
        any::<bool>().prop_map(Owned::Bool),
        any::<i64>().prop_map(Owned::I64),
        any::<f64>().prop_map(Owned::F64),
        any::<String>().prop_map(Owned::Str),
        prop::collection::vec(any::<bool>(), 0..4).prop_map(Owned::Bools),
        prop::collection::vec(any::<i64>(), 0..4).prop_map(Owned::Ints),
        prop::collection::vec(any::<f64>(), 0..4).prop_map(Owned::Floats),
        prop::collection::vec(any::<String>(), 0..4).prop_map(Owned::Strs),
    ]
}

fn float(value: f64) -> Json {
    if value.is_nan() {
        "NaN".into()
    } else if value.is_infinite() {
        if value > 0.0 { "Infinity".into() } else { "-Infinity".into() }
    } else {
        value.into()
    }
}

fn expected(value: &Owned) -> Json {
    match value {
        Owned::Bool(value) => (*value).into(),
        Owned::I64(value) => (*value).into(),
        Owned::F64(value) => float(*value),
        Owned::Str(value) => value.as_str().into(),
        Owned::Bools(values) => values.clone().into(),
        Owned::Ints(values) => values.clone().into(),
        Owned::Floats(values) => values.iter().copied().map(float).collect(),
        Owned::Strs(values) => values.clone().into(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_span_reads_back_as_one_json_object_on_one_line(
        name in any::<String>(),
        trace_id in any::<[u8; 16]>(),
        span_id in any::<[u8; 8]>(),
        parent in any::<Option<[u8; 8]>>(),
        trace_state in any::<String>(),
        description in any::<String>(),
        pairs in prop::collection::vec(("[a-c]{0,2}|\\PC{0,12}", value()), 0..12),
    ) {
        let texts: Vec<Vec<&str>> = pairs.iter().map(|(_, value)| match value {
            Owned::Strs(values) => values.iter().map(String::as_str).collect(),
            _ => Vec::new(),
        }).collect();
        let attributes: Vec<(&str, Value<'_>)> = pairs.iter().zip(&texts).map(|((key, value), texts)| {
            let value = match value {
                Owned::Bool(value) => Value::Bool(*value),
                Owned::I64(value) => Value::I64(*value),
                Owned::F64(value) => Value::F64(*value),
                Owned::Str(value) => Value::Str(value),
                Owned::Bools(values) => Value::BoolArray(values),
                Owned::Ints(values) => Value::I64Array(values),
                Owned::Floats(values) => Value::F64Array(values),
                Owned::Strs(_) => Value::StrArray(texts),
            };
            (key.as_str(), value)
        }).collect();
        let line = line(&Span {
            trace_id,
            span_id,
            parent_span_id: parent,
            trace_state: &trace_state,
            status: Status::Error { description: &description },
            attributes: &attributes[..],
            events: &[Event { name: &name, time_unix_nano: 0, attributes: &attributes[..] }],
            ..span(&name, 1, SpanKind::Internal)
        });

        prop_assert!(line.ends_with('\n'));
        prop_assert_eq!(line.trim_end_matches('\n').lines().count(), 1);
        let breaks = ['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}'];
        prop_assert_eq!(line.trim_end_matches('\n').find(breaks), None);
        let read: Json = serde_json::from_str(&line).expect("a line is JSON");
        prop_assert_eq!(read["name"].as_str(), Some(name.as_str()));
        prop_assert!(read["context"]["trace_state"].is_string());
        let id = format!("0x{:032x}", u128::from_be_bytes(trace_id));
        prop_assert_eq!(read["context"]["trace_id"].as_str(), Some(id.as_str()));
        let parent = parent.map(|id| format!("0x{:016x}", u64::from_be_bytes(id)));
        prop_assert_eq!(read["parent_id"].as_str(), parent.as_deref());
        prop_assert_eq!(read["status"]["description"].as_str().unwrap_or(""), description);
        let mut wanted = serde_json::Map::new();
        for (key, value) in &pairs {
            // Inserting a key again keeps its place.
            wanted.insert(key.clone(), expected(value));
        }
        let keys: Vec<&String> = wanted.keys().collect();
        let found = read["attributes"].as_object().expect("attributes are an object");
        prop_assert_eq!(found.keys().collect::<Vec<_>>(), keys);
        prop_assert_eq!(found, &wanted);
        prop_assert_eq!(&read["events"][0]["attributes"], &read["attributes"]);
    }
}
