//! Folders with much text of spans, and traces that have many: what reads them takes memory for a few figures of each span, and for what it shows.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};

use serde_json::{Value, json};

use crate::support::{Api, Cluster, HOOK, Run};

/// Tasks of a large trace. Each has the span of its submission and that of its attempt.
const TASKS: u64 = 5_000;
/// Length of an attribute that each span has.
const TEXT: usize = 1500;
/// The most memory of its own that a process has which reads 20 MB of spans, in KiB.
const MEMORY_KIB: u64 = 14 << 10;
const LARGE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// A span as the shipped hook writes it; times are in microseconds.
fn line(trace: &str, id: u64, parent: Option<u64>, name_and_kind: (&str, &str), times: (u64, u64)) -> String {
    line_with(TEXT, trace, id, parent, name_and_kind, times)
}

fn line_with(
    text: usize,
    trace: &str,
    id: u64,
    parent: Option<u64>,
    (name, kind): (&str, &str),
    (start, end): (u64, u64),
) -> String {
    let time = |micros: u64| {
        format!("2026-11-05T12:{:02}:{:02}.{:06}Z", micros / 60_000_000, micros / 1_000_000 % 60, micros % 1_000_000)
    };
    let span = json!({
        "name": name,
        "context": {"trace_id": format!("0x{trace}"), "span_id": format!("0x{id:016x}"), "trace_state": "[]"},
        "kind": format!("SpanKind.{kind}"),
        "parent_id": parent.map(|id| format!("0x{id:016x}")),
        "start_time": time(start),
        "end_time": time(end),
        "status": {"status_code": "UNSET"},
        "attributes": {"text": "x".repeat(text)},
        "events": [],
        "links": [],
        "resource": {"attributes": {"service.name": "tracer", "process.pid": 7}, "schema_url": ""},
    });
    format!("{span}\n")
}

/// Writes a large trace, in the order in which its spans ended, and a small one.
fn write(path: &std::path::Path) {
    let mut file = BufWriter::new(File::create(path).expect("the folder is ours"));
    let mut put = |line: String| file.write_all(line.as_bytes()).expect("there is room");
    for task in 0..TASKS {
        let (id, at) = (2 + 2 * task, 100 * task);
        put(line(LARGE, id, Some(1), ("m.f tracer.remote", "PRODUCER"), (at, at + 10)));
        put(line(LARGE, id + 1, Some(id), ("m.f tracer.remote_worker", "CONSUMER"), (at + 20, at + 90)));
    }
    put(line(LARGE, 1, None, ("tracer job", "INTERNAL"), (0, 100 * TASKS)));
    put(line(&"7".repeat(32), 1, None, ("small", "INTERNAL"), (100 * TASKS, 100 * TASKS + 5)));
    file.flush().expect("there is room");
}

/// Runs `tracer trace`, which may have so much memory of its own.
#[track_caller]
fn bounded(cluster: &Cluster, folder: &str, arguments: &[&str]) -> Run {
    bounded_by(MEMORY_KIB, cluster, folder, arguments)
}

#[track_caller]
fn bounded_by(memory_kib: u64, cluster: &Cluster, folder: &str, arguments: &[&str]) -> Run {
    let tracer = cluster.command(&[&["trace"], arguments, &["--spans-dir", folder]].concat());
    let mut command = cluster.program("sh");
    command.args(["-c", "ulimit -d \"$0\" && exec \"$@\"", &memory_kib.to_string()]);
    command.arg(tracer.get_program()).args(tracer.get_args());
    cluster.run(command).success()
}

#[test]
fn readers_of_many_spans_do_not_hold_their_text() {
    let cluster = Cluster::traced();
    let folder = cluster.file("many");
    fs::create_dir(&folder).expect("the place is ours");
    write(&folder.join("7.json"));
    let folder = folder.display().to_string();
    let run = |arguments: &[&str]| bounded(&cluster, &folder, arguments).stdout_text();
    let listed: Value = serde_json::from_str(&run(&["list", "--format", "json"])).expect("it is JSON");
    let spans: Vec<&Value> = listed["traces"].as_array().expect("a list").iter().map(|trace| &trace["spans"]).collect();
    assert_eq!(spans, [1, 2 * TASKS + 1]);
    let shown = run(&["show", LARGE]);
    assert!(
        shown.contains("5000 × m.f tracer.remote ") && shown.contains("5000 × m.f tracer.remote_worker "),
        "{shown}"
    );
    let report: Value = serde_json::from_str(&run(&["show", LARGE, "--format", "json"])).expect("it is JSON");
    let whole = report["spans"].as_array().expect("a list");
    assert_eq!((whole.len() as u64, &report["schema_version"]), (2 * TASKS + 1, &json!(1)));
    assert!(whole.iter().all(|span| span["attributes"]["text"].as_str().is_some_and(|text| text.len() == TEXT)));
    let stats: Value = serde_json::from_str(&run(&["stats", "--format", "json"])).expect("it is JSON");
    assert_eq!(stats["spans"], json!(2 * TASKS + 2));
    assert!(run(&["check", "--no-errors"]).ends_with("2 traces with 10002 spans checked\n"));
    assert!(run(&["diff", LARGE, "7"]).contains("10001 spans"));
    let exported = run(&["export", "--all", "--format", "otlp"]);
    assert_eq!(exported.matches("\"spanId\"").count() as u64, 2 * TASKS + 2);
}

/// A folder beyond what is read at once, of which an index and a few traces are in memory.
#[test]
fn readers_of_many_traces_do_not_hold_their_spans() {
    const TRACES: u64 = 60_000;
    const MEMORY_KIB: u64 = 28 << 10;
    let cluster = Cluster::traced();
    let folder = cluster.file("many");
    fs::create_dir(&folder).expect("the place is ours");
    let mut file = BufWriter::new(File::create(folder.join("7.json")).expect("the folder is ours"));
    for trace in 1..=TRACES {
        let id = format!("{trace:032x}");
        let submission = line_with(120, &id, 1, None, ("m.f tracer.remote", "PRODUCER"), (trace, trace + 10));
        let attempt = line_with(120, &id, 2, Some(1), ("m.f tracer.remote_worker", "CONSUMER"), (trace, trace + 9));
        file.write_all((submission + &attempt).as_bytes()).expect("there is room");
    }
    file.flush().expect("there is room");
    assert!(folder.join("7.json").metadata().expect("it is there").len() > 48 << 20);
    let folder = folder.display().to_string();
    let run = |arguments: &[&str]| {
        let text = bounded_by(MEMORY_KIB, &cluster, &folder, arguments).stdout_text();
        serde_json::from_str::<Value>(&text).expect("it is JSON")
    };
    let listed = run(&["list", "--limit", "2", "--format", "json"]);
    let ids: Vec<_> = listed["traces"].as_array().expect("a list").iter().map(|trace| &trace["trace_id"]).collect();
    assert_eq!(ids, [&format!("{TRACES:032x}"), &format!("{:032x}", TRACES - 1)]);
    assert_eq!(listed["left_out"], json!(TRACES - 2));
    let stats = run(&["stats", "--format", "json"]);
    assert_eq!((&stats["spans"], &stats["names"][0]["count"]), (&json!(2 * TRACES), &json!(TRACES)));
}

#[test]
fn a_large_trace_is_read_over_http_without_its_text() {
    let cluster = Cluster::builder().hook(HOOK).arg("--http").arg("127.0.0.1:0").start();
    let api = Api::of(&cluster);
    api.get("/api/v1/traces").status(200);
    let http = cluster.status()["http"]["pid"].as_u64().expect("it has a process");
    let before = super::long_logs::peak(http);
    write(&cluster.spans_dir().join("7.json"));
    let columns = api.get(&format!("/api/v1/traces/{LARGE}")).status(200).json();
    assert_eq!(columns["span_id"].as_array().expect("a list").len() as u64, 2 * TASKS + 1);
    assert_eq!((&columns["left_out"], &columns["cuts"]), (&json!(0), &json!([])));

    // A few rows: the first of equal spans, and what is asked for.
    let asked = format!("/api/v1/traces/{LARGE}?rows=1000&span={:016x}", 2 * TASKS);
    let columns = api.get(&asked).status(200).json();
    let ids = columns["span_id"].as_array().expect("a list");
    assert!((15..=30).contains(&ids.len()) && ids.contains(&json!(format!("{:016x}", 2 * TASKS))), "{columns}");
    assert_eq!(columns["left_out"], json!(2 * TASKS as usize + 1 - ids.len()));
    let cut = json!([{"row": 1, "count": TASKS, "median_ns": 10_000, "longest_ns": 10_000}]);
    assert_eq!((&columns["cuts"], &columns["errors_left_out"]), (&cut, &json!(0)));
    let found = api.get(&format!("/api/v1/traces/{LARGE}?rows=1000&text=remote_worker")).status(200).json();
    let rows = found["span_id"].as_array().expect("a list").len();
    assert!((2000..2100).contains(&rows), "a thousand that are found, with what is above them: {rows}");
    let attempts = api.get(&format!("/api/v1/traces/{LARGE}/attempts")).status(200).json();
    assert_eq!(attempts["attempts"].as_array().map(Vec::len), Some(TASKS as usize));
    assert_eq!(attempts["attempts_left_out"], json!(0));
    let after = super::long_logs::peak(http);
    assert!(after < before + MEMORY_KIB, "the process of the HTTP API had {before} KiB, and then {after}");
}

#[test]
fn what_a_file_had_is_read_from_it_after_it_was_rotated() {
    let cluster = Cluster::traced();
    let folder = cluster.file("rotated");
    fs::create_dir(&folder).expect("the place is ours");
    let text = line(LARGE, 1, None, ("first", "INTERNAL"), (0, 5)).replace(&"x".repeat(TEXT), "of the first");
    fs::write(folder.join("7.json"), &text).expect("the folder is ours");
    let loaded = tracer::trace::load(&folder).expect("it can be read");
    fs::rename(folder.join("7.json"), folder.join("7.1.json")).expect("the folder is ours");
    fs::write(folder.join("7.json"), text.replace("of the first", "of another")).expect("the folder is ours");
    let span = &loaded.traces[0].spans[0];
    assert_eq!(span.attributes().text("text"), Some("of the first"));
    assert_eq!(span.text(), text.trim_end());
    fs::remove_file(folder.join("7.1.json")).expect("the folder is ours");
    assert_eq!((span.text().as_ref(), span.name()), ("{}", "first"));
}
