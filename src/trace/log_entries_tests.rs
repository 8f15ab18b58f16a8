use std::fs::{self, OpenOptions};
use std::io::Write as _;

use serde_json::{Value, json};
use tracer_ipc::task_output::{HEADER, index_path};

use super::*;

const TRACE: u128 = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;

fn append(path: &Path, bytes: &[u8]) {
    OpenOptions::new().create(true).append(true).open(path).unwrap().write_all(bytes).unwrap();
}

/// A folder of span files, and a session with the log of a worker.
struct Place {
    folder: tempfile::TempDir,
    written: u64,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("session/logs")).unwrap();
        fs::create_dir(folder.path().join("spans")).unwrap();
        append(&index_path(&folder.path().join("session/logs/worker-1-70.log")), &HEADER);
        Place { folder, written: 0 }
    }

    /// Writes output of the first attempt of a task, in the trace.
    fn write(&mut self, task: u64, unix_nano: u64, text: &str) {
        let log = self.folder.path().join("session/logs/worker-1-70.log");
        let owner = Owner::Attempt { task: TaskId(task), attempt: 1, trace_id: TRACE.to_be_bytes() };
        let length = u32::try_from(text.len()).unwrap();
        let extent =
            Extent { offset: self.written, length, stream: Stream::Stdout, owner, is_approximate: false, unix_nano };
        append(&log, text.as_bytes());
        append(&index_path(&log), &extent.encode());
        self.written += text.len() as u64;
    }

    /// Writes a line with one record, of a process of that resource.
    fn log(&self, unix_nano: u64, severity: u8, text: &str, span_id: Option<u64>, resource: &Value) {
        let mut record = json!({
            "timeUnixNano": unix_nano.to_string(), "severityNumber": severity, "body": {"stringValue": text},
        });
        if let Some(span_id) = span_id {
            record["traceId"] = format!("{TRACE:032x}").into();
            record["spanId"] = format!("{span_id:016x}").into();
        }
        let scope = json!({"scope": {"name": "shop"}, "logRecords": [record]});
        let line = json!({"resourceLogs": [{"resource": {"attributes": resource}, "scopeLogs": [scope]}]});
        append(&self.folder.path().join("spans/9.logs.jsonl"), format!("{line}\n").as_bytes());
    }

    /// Writes spans: attempts of tasks 1 and 2, with ids 1 and 2, and one in each, with ids 11 and 12.
    fn trace(&self) {
        let span = |id: u64, parent: Option<u64>, kind: &str, attributes: Value| {
            json!({
                "name": format!("span {id}"), "kind": kind, "attributes": attributes,
                "context": {"trace_id": format!("0x{TRACE:032x}"), "span_id": format!("0x{id:016x}")},
                "parent_id": parent.map(|parent| format!("0x{parent:016x}")),
                "start_time": "2026-11-20T19:23:48.000001Z", "end_time": "2026-11-20T19:23:49.000001Z",
            })
        };
        for id in [1, 2] {
            let attempt = span(id, None, "SpanKind.CONSUMER", json!({"tracer.task_id": id, "tracer.attempt": 1}));
            let inner = span(id + 10, Some(id), "SpanKind.INTERNAL", json!({}));
            append(&self.folder.path().join("spans/9.json"), format!("{attempt}\n{inner}\n").as_bytes());
        }
    }

    fn reader(&self, selection: Selection) -> Reader<'static> {
        let (spans, session) = (self.folder.path().join("spans"), self.folder.path().join("session"));
        Reader::new(selection, &spans, Some(session.as_path()), Spans::Stored(None))
    }

    fn page(&self, selection: &Selection, part: Part, limit: usize) -> Page {
        self.reader(selection.clone()).page(part, limit).unwrap()
    }

    fn texts(&self, selection: &Selection) -> Vec<String> {
        texts(&self.page(selection, Part::Newest { before: None }, 100))
    }
}

fn texts(page: &Page) -> Vec<String> {
    page.entries.iter().map(|entry| entry.text.clone()).collect()
}

fn of_task(id: u64) -> Selection {
    let tasks = Tasks { ids: [TaskId(id)].into(), traces: [TraceId(TRACE)].into(), since_unix_nano: 0 };
    Selection { tasks: Some(tasks), ..Selection::default() }
}

/// Two tasks that write and log in turns.
fn place() -> Place {
    let mut place = Place::new();
    place.trace();
    place.write(1, 10, "one\n");
    place.log(20, 9, "two", Some(11), &json!([]));
    place.write(2, 30, "three\nfo");
    place.log(40, 17, "five", Some(2), &json!([{"key": "process.pid", "value": {"intValue": "71"}}]));
    place.write(2, 50, "ur\n");
    place.log(60, 13, "six", None, &json!([]));
    place
}

#[test]
fn lines_and_records_stand_by_time_each_with_its_attempt_and_span() {
    let place = place();
    let page = place.page(&Selection::default(), Part::Newest { before: None }, 100);
    assert_eq!(texts(&page), ["one", "two", "three", "four", "five", "six"]);
    assert_eq!((page.left_out, page.notices.len()), (0, 0));
    let found: Vec<_> =
        page.entries.iter().map(|entry| (entry.task.map(|id| id.0), entry.span_id.map(|id| id.0))).collect();
    let (one, two) = (Some(1), Some(2));
    assert_eq!(found, [(one, Some(1)), (one, Some(11)), (two, two), (two, two), (two, two), (None, None)]);
    let names: Vec<_> = page.entries.iter().map(|entry| entry.span_name.as_deref()).collect();
    assert_eq!(names[..3], [Some("span 1"), Some("span 11"), Some("span 2")]);
    let record = serde_json::to_value(&page.entries[4]).unwrap();
    assert_eq!(
        record,
        json!({
            "time": "1970-01-01T00:00:00.000000040Z", "unix_ms": 0, "unix_nano": 40, "stream": "record", "text": "five", "is_partial": false,
            "severity": "ERROR", "severity_number": 17, "attributes": {}, "scope": "shop", "task_id": 2, "attempt": 1,
            "trace_id": format!("{TRACE:032x}"), "span_id": "0000000000000002", "span_name": "span 2",
            "worker_id": null, "pid": 71, "is_approximate": false,
        })
    );
}

#[test]
fn what_was_written_during_a_trace_is_read_with_that_of_its_parts() {
    let place = place();
    let part = TraceId(7);
    let line = json!({"resourceLogs": [{"resource": {}, "scopeLogs": [{"logRecords": [
        {"timeUnixNano": "45", "body": {"kvlistValue": {"values": []}}, "traceId": part.to_string(), "spanId": "000000000000000c"},
        {"timeUnixNano": "46", "traceId": part.to_string()},
    ]}]}]});
    append(&place.folder.path().join("spans/9.logs.jsonl"), format!("{line}\n").as_bytes());
    let spans = place.folder.path().join("spans");
    let sessions = [place.folder.path().join("session"), place.folder.path().join("a session that is gone")];
    let loaded = crate::load(&spans).unwrap();
    let read = |parts| {
        let OfTrace { entries, left_out, notices } =
            of_trace(&spans, &sessions, &loaded.traces[0], parts, 100).unwrap();
        assert_eq!((left_out, notices), (0, Vec::new()));
        entries.into_iter().map(Entry::into_log_record).collect::<Vec<_>>()
    };
    let bodies = |records: &[LogRecord]| records.iter().map(|record| record.body.clone()).collect::<Vec<_>>();
    assert_eq!(bodies(&read(Vec::new())), [json!("one"), json!("two"), json!("three"), json!("four"), json!("five")]);
    let records = read(vec![part]);
    assert_eq!(bodies(&records)[5..], [json!({}), Value::Null], "a value stays what it was");
    let found: Vec<_> = records.iter().map(|record| (&*record.severity, record.span_id.map(|id| id.0))).collect();
    assert_eq!(found[..2], [("stdout", Some(1)), ("INFO", Some(11))]);
    assert_eq!(found[5], ("", Some(12)), "with its span");
}

#[test]
fn a_selection_lets_through_what_fits_all_of_it() {
    let place = place();
    let all = Selection::default();
    for (selection, expected) in [
        (of_task(1), &["one", "two"][..]),
        (of_task(2), &["three", "four", "five"]),
        (of_task(3), &[]),
        (Selection { trace: Some("4bf9".into()), ..all.clone() }, &["one", "two", "three", "four", "five"]),
        (Selection { trace: Some("4bf8".into()), ..all.clone() }, &[]),
        (Selection { text: Some("o".into()), ..all.clone() }, &["one", "two", "four"]),
        (Selection { origin: Some(Origin::Record), ..all.clone() }, &["two", "five", "six"]),
        (Selection { origin: Some(Origin::Stdout), ..all.clone() }, &["one", "three", "four"]),
        (Selection { origin: Some(Origin::Stderr), ..all.clone() }, &[]),
        (Selection { least_severity: 13, ..all.clone() }, &["five", "six"]),
        (Selection { since_unix_nano: 20, until_unix_nano: Some(40), ..all.clone() }, &["two", "three", "four"]),
        (Selection { least_severity: 17, ..of_task(2) }, &["five"]),
    ] {
        assert_eq!(place.texts(&selection), expected, "{selection:?}");
    }
}

#[test]
fn parts_meet_at_their_places_and_say_what_they_leave_out() {
    let place = place();
    let all = Selection::default();
    let newest = place.page(&all, Part::Newest { before: None }, 4);
    assert_eq!((texts(&newest), newest.left_out), (["three", "four", "five", "six"].map(String::from).to_vec(), 2));
    let before = newest.before.unwrap().parse().unwrap();
    let older = place.page(&all, Part::Newest { before: Some(before) }, 4);
    assert_eq!((texts(&older), older.left_out), (["one", "two"].map(String::from).to_vec(), 0));
    let after = older.after.unwrap().parse().unwrap();
    let next = place.page(&all, Part::Oldest { after, before: None }, 3);
    assert_eq!((texts(&next), next.left_out), (["three", "four", "five"].map(String::from).to_vec(), 1));
    let last = newest.after.unwrap().parse().unwrap();
    let between = place.page(&all, Part::Oldest { after, before: Some(last) }, 9);
    assert_eq!(texts(&between), ["three", "four", "five"]);
    let none = place.page(&all, Part::Oldest { after: last, before: None }, 9);
    assert_eq!((none.entries.len(), none.before, none.after), (0, None, None));
    for wrong in ["", "1", "1-2-3", "1-2-3-4-5", "A-2-3-4", "+1-2-3-4", "1-2-3-100000000", "00000000000000001-2-3-4"] {
        assert!(wrong.parse::<super::Place>().is_err(), "{wrong}");
    }
}

#[test]
fn an_answer_has_a_bound_of_bytes() {
    let mut place = Place::new();
    let long = "x".repeat(60 << 10);
    for number in 0..100 {
        place.write(1, number, &format!("{number} {long}\n"));
    }
    let page = place.page(&Selection::default(), Part::Newest { before: None }, 100);
    let bytes: usize = page.entries.iter().map(|entry| entry.text.len()).sum();
    assert!(bytes <= ANSWER_BYTES && bytes > ANSWER_BYTES - (128 << 10), "{bytes}");
    assert_eq!(page.left_out, 100 - page.entries.len() as u64);
    assert!(page.entries.last().unwrap().text.starts_with("99 "));
}

#[test]
fn each_entry_is_read_once_and_a_record_waits_for_the_span_it_is_in() {
    let mut place = Place::new();
    let mut reader = place.reader(of_task(1));
    let read = |reader: &mut Reader<'_>| {
        let mut texts = Vec::new();
        reader.begin(false).unwrap();
        let mut take =
            |entry: Entry| texts.push(format!("{}{}", entry.text, if entry.is_approximate { "~" } else { "" }));
        while reader.step(&mut take).unwrap() {}
        assert_eq!(reader.take_notices(), [""; 0]);
        texts.sort();
        texts
    };
    place.write(1, 1, "a\nb");
    place.log(2, 9, "without its span", Some(11), &json!([]));
    assert_eq!(read(&mut reader), ["a", "without its span~"]);
    place.trace();
    place.log(3, 9, "c", Some(11), &json!([]));
    place.log(3, 9, "of the other", Some(12), &json!([]));
    place.write(1, 4, "\n");
    assert_eq!(read(&mut reader), ["b", "c"]);
    assert_eq!(read(&mut reader), [""; 0]);
    let command = json!([
        {"key": "tracer.task_id", "value": {"stringValue": "1"}}, {"key": "tracer.attempt", "value": {"stringValue": "1"}},
        {"key": "tracer.traceparent", "value": {"stringValue": format!("00-{TRACE:032x}-0000000000000001-01")}},
    ]);
    place.log(5, 9, "of a program", None, &command);
    assert_eq!(read(&mut reader), ["of a program"]);
}

#[test]
fn parameters_are_checked_and_name_what_they_take() {
    let parse = |query: &str| {
        PageRequest::new(&parameters::parse(query, PageRequest::PARAMETERS).unwrap()).map_err(|problem| problem.text())
    };
    let whole =
        parse("task=7&trace=4bf&text=a%20b&stream=record&level=warn&since=2026-11-23T17:00:00Z&limit=9&after=1-2-3-4");
    let whole = whole.unwrap();
    assert_eq!((whole.task, whole.limit, whole.selection.least_severity), (Some(TaskId(7)), 9, 13));
    assert_eq!(whole.selection.origin, Some(Origin::Record));
    assert!(matches!(whole.part, Part::Oldest { before: None, .. }));
    let plain = parse("").unwrap();
    assert_eq!((plain.part, plain.limit, plain.selection), (Part::Newest { before: None }, 200, Selection::default()));
    for (query, expected) in [
        ("task=0", "a number from 1"),
        ("trace=xyz", "the id of a trace"),
        ("stream=both", "`stdout`, `stderr` or `record`"),
        ("level=loud", "`trace`, `debug`"),
        ("since=now", "a time as"),
        ("limit=5001", "a number from 1 to 5000"),
        ("before=1", "what `before` or `after` of an answer is"),
    ] {
        let error = parse(query).unwrap_err();
        assert!(error.contains(expected), "{query}: {error}");
    }
}
