use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn record<'a>(body: &'a str, target: &'a str, attributes: &'a [abi::KeyValue]) -> abi::LogRecord {
    abi::LogRecord {
        size: size_of::<abi::LogRecord>(),
        time_unix_nano: 0,
        span_context: std::ptr::null(),
        severity: abi::SEVERITY_WARN,
        severity_text: abi::Str::EMPTY,
        target: abi::Str::new(target),
        body: abi::Str::new(body),
        attributes: attributes.as_ptr(),
        attribute_count: attributes.len(),
    }
}

fn attribute(key: &str, tag: u32, as_: abi::ValueUnion) -> abi::KeyValue {
    abi::KeyValue { key: abi::Str::new(key), value: abi::Value { tag, as_ } }
}

fn append(buffer: &mut LogBuffer, record: &abi::LogRecord) -> bool {
    // SAFETY: all that it points to lives in the test.
    unsafe { buffer.append(record, 7) }
}

fn line(resource: &[(String, OwnedValue)], records: &[u8]) -> Vec<u8> {
    let mut line = Vec::new();
    write_line(&mut line, &line_head(resource), records);
    line
}

#[test]
fn records_are_in_the_file_at_once_and_become_one_line_of_otlp() {
    let folder = tempfile::tempdir().unwrap();
    let spool = folder.path().join("worker-1.spool");
    assert_eq!(left_behind(&spool).unwrap(), b"", "nobody has logged");
    let mut buffer = LogBuffer::create(&spool).unwrap();
    let numbers = [1.5, f64::NAN];
    let array = abi::Array { ptr: numbers.as_ptr().cast(), count: 2 };
    let attributes = [
        attribute("text", abi::VALUE_STR, abi::ValueUnion { str_: abi::Str::new("a\"b") }),
        attribute("number", abi::VALUE_I64, abi::ValueUnion { i64_: -3 }),
        attribute("true", abi::VALUE_BOOL, abi::ValueUnion { bool_: 1 }),
        attribute("numbers", abi::VALUE_F64_ARRAY, abi::ValueUnion { array }),
        attribute("unknown", 77, abi::ValueUnion { i64_: 0 }),
    ];
    let mut context = abi::SpanContext { trace_id: [1; 16], span_id: [2; 8], ..abi::SpanContext::INVALID };
    context.trace_flags = 1;
    let first = abi::LogRecord { span_context: &context, ..record("said", "a::b", &attributes) };
    assert!(append(&mut buffer, &first));
    let text = abi::Str::new("loud");
    assert!(append(&mut buffer, &abi::LogRecord { severity: 0, severity_text: text, ..record("2\n", "a::b", &[]) }));
    assert!(append(&mut buffer, &abi::LogRecord { time_unix_nano: 9, ..record("", "other", &[]) }));
    let left = left_behind(&spool).unwrap();
    assert_eq!((left.as_slice(), count(&left)), (buffer.records(), 3));
    let resource = [("service.name".to_owned(), OwnedValue::Str("tracer".into()))];
    let found = line(&resource, &left);
    assert_eq!(found.iter().filter(|&&byte| byte == b'\n').count(), 1);
    let expected = json!({"resourceLogs": [{
        "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "tracer"}}]},
        "scopeLogs": [
            {"scope": {"name": "a::b"}, "logRecords": [
                {"timeUnixNano": "7", "severityNumber": 13, "severityText": "WARN", "body": {"stringValue": "said"}, "flags": 1, "attributes": [
                    {"key": "text", "value": {"stringValue": "a\"b"}},
                    {"key": "number", "value": {"intValue": "-3"}},
                    {"key": "true", "value": {"boolValue": true}},
                    {"key": "numbers", "value": {"arrayValue": {"values": [{"doubleValue": 1.5}, {"doubleValue": "NaN"}]}}},
                ], "traceId": "01".repeat(16), "spanId": "02".repeat(8)},
                {"timeUnixNano": "7", "severityText": "loud", "body": {"stringValue": "2\n"}},
            ]},
            {"scope": {"name": "other"}, "logRecords": [
                {"timeUnixNano": "9", "severityNumber": 13, "severityText": "WARN", "body": {"stringValue": ""}},
            ]},
        ],
    }]});
    assert_eq!(serde_json::from_slice::<Value>(&found).unwrap(), expected);
    let request = ExportLogsServiceRequest::decode(&*export_request(&resource, &left)).unwrap();
    let scopes: Vec<_> = request.resource_logs[0].scope_logs.iter().map(|scope| scope.log_records.len()).collect();
    assert_eq!(scopes, [2, 1]);
    let first = &request.resource_logs[0].scope_logs[0].log_records[0];
    assert_eq!(
        (first.severity_text.as_str(), first.trace_id.as_slice(), first.attributes.len()),
        ("WARN", &[1; 16][..], 4)
    );
    buffer.clear();
    assert_eq!(left_behind(&spool).unwrap(), b"");
    assert_eq!(line(&resource, b""), b"");
}

#[test]
fn what_is_too_long_is_cut_and_counted_and_a_full_buffer_takes_no_more() {
    let mut buffer = LogBuffer::private().unwrap();
    let body = "ä".repeat(RECORD_LIMIT);
    let text = "x".repeat(20_000);
    let value = abi::ValueUnion { str_: abi::Str::new(&text) };
    let attributes = ["a", "b", "c"].map(|key| attribute(key, abi::VALUE_STR, value));
    let long = record(&body, &body, &attributes);
    while append(&mut buffer, &long) {}
    assert!(!buffer.has_room());
    assert_eq!(count(buffer.records()), CAPACITY / (BODY_LIMIT + TEXT_LIMIT + 20_000));
    let found: Value = serde_json::from_slice(&line(&[], buffer.records())).unwrap();
    let first = &found["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0];
    let body = first["body"]["stringValue"].as_str().unwrap();
    assert!(body.ends_with("ä…") && (BODY_LIMIT - 4..=BODY_LIMIT).contains(&body.len()), "{}", body.len());
    assert_eq!((first["attributes"].as_array().unwrap().len(), &first["droppedAttributesCount"]), (1, &json!(2)));
    buffer.clear();
    assert!(append(&mut buffer, &long));
}

#[test]
fn a_file_of_something_else_is_no_records() {
    let folder = tempfile::tempdir().unwrap();
    let spool = folder.path().join("worker-1.spool");
    for bytes in [vec![], vec![1; 10], vec![0xff; FILE_SIZE]] {
        std::fs::write(path_of(&spool), bytes).unwrap();
        assert_eq!(left_behind(&spool).unwrap(), b"");
    }
    drop(std::fs::remove_file(path_of(&spool)));
    let mut buffer = LogBuffer::create(&spool).unwrap();
    assert!(append(&mut buffer, &record("kept", "", &[])));
    let end = RECORDS_OFFSET + buffer.records().len();
    OpenOptions::new().write(true).open(path_of(&spool)).unwrap().set_len(end as u64 - 1).unwrap();
    assert_eq!(count(&left_behind(&spool).unwrap()), 0, "a record that is not whole is none");
}

proptest! {
    #[test]
    fn any_bytes_become_a_line_that_is_json_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let (line, request) = render_any(&bytes);
        prop_assert!(line.is_empty() || serde_json::from_slice::<Value>(&line).is_ok());
        prop_assert!(ExportLogsServiceRequest::decode(&*request).is_ok());
    }

    #[test]
    fn records_with_a_damaged_byte_become_a_line_that_is_json(
        body in ".{0,40}", key in ".{0,10}", text in ".{0,20}", number in any::<i64>(), at in any::<prop::sample::Index>(), byte in any::<u8>(),
    ) {
        let attributes = [
            attribute(&key, abi::VALUE_STR, abi::ValueUnion { str_: abi::Str::new(&text) }),
            attribute(&key, abi::VALUE_I64, abi::ValueUnion { i64_: number }),
        ];
        let mut room = vec![0; RECORD_LIMIT];
        // SAFETY: all that it points to lives in the test.
        let length = unsafe { write_record(&mut room, &record(&body, &key, &attributes), 1) };
        room.truncate(length);
        let (whole, _) = render_any(&room);
        let whole: Value = serde_json::from_slice(&whole).unwrap();
        let read = &whole["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0];
        prop_assert_eq!(read["body"]["stringValue"].as_str(), Some(body.as_str()));
        prop_assert_eq!(read["attributes"][0]["value"]["stringValue"].as_str(), Some(text.as_str()));
        prop_assert_eq!(&read["attributes"][1]["value"]["intValue"], &json!(number.to_string()));
        let at = at.index(room.len());
        room[at] = byte;
        let (line, _) = render_any(&room);
        prop_assert!(line.is_empty() || serde_json::from_slice::<Value>(&line).is_ok());
    }
}
