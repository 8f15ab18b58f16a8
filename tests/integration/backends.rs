//! The shipped hooks that write for others than tracer itself. What they write is read by those others' own code.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Cluster, kill, python_with, wait_until};

/// Reads OTLP with the official protobuf classes.
const OTLP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/otlp.py");
const SHELL: (&str, &str) = ("TRACEPARENT", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
const TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";

const INTERNAL: i64 = 1;
const CLIENT: i64 = 3;
const PRODUCER: i64 = 4;
const CONSUMER: i64 = 5;

#[track_caller]
fn named<'a>(spans: &'a [Value], name: &str) -> &'a Value {
    let found: Vec<_> = spans.iter().filter(|span| span["name"] == name).collect();
    assert_eq!(found.len(), 1, "spans named `{name}` among {spans:#?}");
    found[0]
}

/// Runs the task that makes a span with everything, in a trace of the shell's.
#[track_caller]
pub(crate) fn submit_rich(cluster: &Cluster) {
    let mut submit = cluster.command(&["submit", "task", "traced_tasks:rich"]);
    submit.env(SHELL.0, SHELL.1).env("TRACESTATE", "rojo=1");
    cluster.run(submit).success();
}

/// Expects the four spans of [`submit_rich`] with every field that OTLP has for them.
#[track_caller]
pub(crate) fn assert_rich_trace(spans: &[Value]) {
    assert_eq!(spans.len(), 4, "{spans:#?}");
    let job = named(spans, "tracer job");
    let producer = named(spans, "traced_tasks.rich tracer.remote");
    let consumer = named(spans, "traced_tasks.rich tracer.remote_worker");
    let rich = named(spans, "rich and renamed");
    // The flags: sampled, it is known whether the parent is remote, it is remote.
    let expected = [
        (job, INTERNAL, &json!("b7ad6b7169203331"), 0x301),
        (producer, PRODUCER, &job["span_id"], 0x101),
        (consumer, CONSUMER, &producer["span_id"], 0x301),
        (rich, CLIENT, &consumer["span_id"], 0x101),
    ];
    for (span, kind, parent, flags) in expected {
        assert_eq!(span["trace_id"], TRACE_ID, "{span:#}");
        assert_eq!(span["span_id"].as_str().map(str::len), Some(16), "{span:#}");
        assert_eq!(span["parent_span_id"], *parent, "{span:#}");
        assert_eq!(span["trace_state"], "rojo=1", "{span:#}");
        assert_eq!(span["kind"], kind, "{span:#}");
        assert_eq!(span["flags"], flags, "{span:#}");
        assert_eq!(span["dropped"], json!([0, 0, 0]), "{span:#}");
        let time = |key: &str| span[key].as_u64().expect("a time is a number");
        assert!(1_700_000_000_000_000_000 < time("start") && time("start") <= time("end"), "{span:#}");
        assert_eq!(span["resource"]["service.name"], json!({"string_value": "tracer"}), "{span:#}");
        assert_eq!(span["resource"]["telemetry.sdk.language"], json!({"string_value": "rust"}), "{span:#}");
        assert!(span["resource"]["process.pid"]["int_value"].is_u64(), "{span:#}");
        assert!(span["resource"]["service.instance.id"]["string_value"].is_string(), "{span:#}");
    }
    assert_eq!(job["resource"], producer["resource"]);
    assert_eq!(consumer["resource"], rich["resource"]);
    assert_ne!(job["resource"]["process.pid"], rich["resource"]["process.pid"]);
    assert_eq!(consumer["attributes"]["tracer.pid"], rich["resource"]["process.pid"]);
    assert_eq!(consumer["attributes"]["tracer.function"], json!({"string_value": "traced_tasks.rich"}));
    assert_eq!(consumer["status"], json!({"code": 0, "message": ""}));
    assert_eq!(rich["scope"], json!({"name": "rich_scope", "version": "1.2.3", "attributes": {}, "schema_url": ""}));
    assert_eq!(
        rich["attributes"],
        json!({
            "bool": {"bool_value": true},
            "int": {"int_value": 8},
            "float": {"double_value": 2.5},
            "text": {"string_value": "é\n\"quoted\""},
            "bools": {"array_value": [{"bool_value": true}, {"bool_value": false}]},
            "ints": {"array_value": [{"int_value": 1}, {"int_value": i64::MIN}]},
            "floats": {"array_value": [{"double_value": 0.5}]},
            "texts": {"array_value": [{"string_value": "a"}, {"string_value": "b"}]},
        })
    );
    assert_eq!(rich["status"], json!({"code": 2, "message": "it did not go well"}));
    assert_eq!(
        rich["links"],
        json!([{
            "trace_id": "00000000000000000000000000000abc",
            "span_id": "0000000000000def",
            "trace_state": "vendor=value",
            "flags": 0x301,
            "attributes": {"why": {"string_value": "because"}},
            "dropped": 0,
        }])
    );
    let events = rich["events"].as_array().expect("events are a list");
    assert_eq!(events.len(), 1, "{rich:#}");
    assert_eq!(events[0]["name"], "moment");
    assert_eq!(events[0]["attributes"], json!({"at": {"string_value": "noon"}}));
    assert!(events[0]["time"].as_u64() >= rich["start"].as_u64(), "{rich:#}");
    assert!(events[0]["time"].as_u64() <= rich["end"].as_u64(), "{rich:#}");
}

/// Returns the files with OTLP lines, each with the process that it is named by.
fn otlp_files(folder: &Path) -> Vec<(PathBuf, u64)> {
    let files = folder.read_dir().into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let pid = |file: &Path| file.file_name()?.to_str()?.strip_suffix(".otlp.jsonl")?.parse().ok();
    files.filter_map(|file| pid(&file).map(|pid| (file, pid))).collect()
}

#[test]
fn otlp_lines_are_read_by_the_official_parser_with_every_field() {
    let Some(python) = python_with("opentelemetry.proto.trace.v1.trace_pb2") else { return };
    let cluster = Cluster::builder().hook("otlp_file:setup_tracing").start();
    submit_rich(&cluster);
    // No waiting: what anyone can see to have ended is in the files.
    let mut spans = Vec::new();
    for (file, pid) in otlp_files(&cluster.spans_dir()) {
        let mut command = cluster.program(&python);
        command.args([OTLP, "lines"]).arg(&file);
        let of_file = cluster.run(command).success().json();
        for span in of_file.as_array().expect("the reader prints a list") {
            assert_eq!(span["resource"]["process.pid"], json!({"int_value": pid}), "{}", file.display());
            spans.push(span.clone());
        }
    }
    assert_rich_trace(&spans);
    assert!(cluster.spans().is_empty(), "nobody died: {}", cluster.spans().describe());
}

#[test]
fn otlp_lines_come_from_the_built_in_hook_too() {
    let cluster = Cluster::builder().build();
    // Alone in its folder, with no library beside it.
    let alone = cluster.file("alone/tracer");
    std::fs::create_dir(cluster.file("alone")).expect("the test's folder can be written to");
    // By another process: a child that some other test starts meanwhile would inherit the open file, which is then busy.
    let mut copy = cluster.program("cp");
    copy.arg(env!("CARGO_BIN_EXE_tracer")).arg(&alone);
    cluster.run(copy).success();
    let mut start = cluster.program(&alone);
    start.args(["start", "--head", "--num-workers", "1", "--tracing-startup-hook=otlp_file:setup_tracing"]);
    cluster.run(start).success().stderr_contains(
        "\n  tracing  otlp_file:setup_tracing, built in\
         \n           spans in OTLP JSON to `<folder>/spans/<pid>.otlp.jsonl`\n",
    );
    let mut submit = cluster.program(&alone);
    submit.args(["submit", "task"]);
    cluster.run(submit).success().stdout("1\n");
    let lines: Vec<String> = otlp_files(&cluster.spans_dir())
        .iter()
        .flat_map(|(file, _)| {
            let text = std::fs::read_to_string(file).expect("a span file can be read");
            text.lines().map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(lines.len(), 3, "{lines:#?}");
}

/// Returns the spans in the files of OTLP lines, each with the file that it is in.
fn otlp_spans(folder: &Path) -> Vec<(Value, PathBuf)> {
    let mut spans = Vec::new();
    for (file, _) in otlp_files(folder) {
        let text = std::fs::read_to_string(&file).expect("a span file can be read");
        for line in text.lines() {
            let line: Value = serde_json::from_str(line).expect("a line is JSON");
            spans.push((line["resourceSpans"][0]["scopeSpans"][0]["spans"][0].clone(), file.clone()));
        }
    }
    spans
}

/// Returns the name and version of the instrumentation scope of each span in the files of OTLP lines, by the span's name.
fn otlp_scopes(folder: &Path) -> Vec<(String, Value)> {
    let files = otlp_files(folder).into_iter().map(|(file, _)| std::fs::read_to_string(file).expect("it can be read"));
    let lines = files.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
    let scope = |line: String| {
        let line: Value = serde_json::from_str(&line).expect("a line is JSON");
        let scoped = &line["resourceSpans"][0]["scopeSpans"][0];
        (scoped["spans"][0]["name"].as_str().expect("a span has a name").to_owned(), scoped["scope"].clone())
    };
    lines.map(scope).collect()
}

/// Returns the value of a span's attribute, whatever its type.
fn otlp_attribute<'a>(span: &'a Value, key: &str) -> &'a Value {
    let attributes = span["attributes"].as_array().into_iter().flatten();
    let found = attributes.filter(|attribute| attribute["key"] == key).map(|attribute| &attribute["value"]).next();
    found.and_then(|value| value.as_object()?.values().next()).unwrap_or(&Value::Null)
}

/// Wherever the worker is killed: before, between and after the steps in which its hook writes the spans.
#[test]
fn the_spans_of_a_killed_worker_are_in_the_files_of_its_hook_and_none_twice() {
    for point in ["after_claim", "function_returned", "after_span_end", "after_write", "after_commit"] {
        let cluster = Cluster::builder().hook("otlp_file:setup_tracing").build();
        cluster.note(format!("a worker dies at {point}"));
        let mut start = cluster.start_command(&[]);
        start.env("TRACER_TEST_KILL_AT", format!("{point}:1"));
        start.env("TRACER_TEST_KILL_ONCE", cluster.file("killed"));
        cluster.run(start).success();
        let pid = cluster.worker_pids()[0];
        cluster.submit("misbehaving_tasks:makes_spans", &["3", "--crash-limit=0"]).status(1);
        // No waiting: what anyone can see to have ended is in the files.
        let spans = otlp_spans(&cluster.spans_dir());
        let ids: HashSet<&str> = spans.iter().filter_map(|(span, _)| span["spanId"].as_str()).collect();
        assert_eq!(ids.len(), spans.len(), "a span is there twice: {spans:#?}");
        let is_claimed_only = point == "after_claim";
        assert_eq!(spans.len(), 2 + if is_claimed_only { 1 } else { 5 }, "{point}: {spans:#?}");
        let of_worker = cluster.spans_dir().join(format!("{pid}.otlp.jsonl"));
        for (span, file) in &spans {
            let parent = span["parentSpanId"].as_str();
            assert!(parent.is_none_or(|parent| ids.contains(parent)), "{point}: {span}");
            let is_of_worker = !["tracer job", "misbehaving_tasks.makes_spans tracer.remote"]
                .contains(&span["name"].as_str().expect("a span has a name"));
            assert_eq!(*file == of_worker, is_of_worker, "{point}: {span} in {}", file.display());
            // Sampled, with a random trace id; it is known whether the parent is remote, which that of the attempt is.
            let is_attempt = span["name"] == "misbehaving_tasks.makes_spans tracer.remote_worker";
            assert_eq!(span["flags"], if is_attempt { 0x303 } else { 0x103 }, "{point}: {span}");
        }
        let named = |name: &str| spans.iter().find(|(span, _)| span["name"] == name).map(|(span, _)| span);
        let attempt = named("misbehaving_tasks.makes_spans tracer.remote_worker").expect("the attempt");
        assert_eq!(attempt["kind"], 5);
        let left_open = named("left open");
        assert_eq!(left_open.is_none(), is_claimed_only, "{point}");
        let is_closed = ["after_claim", "function_returned"].contains(&point);
        for span in left_open.into_iter().chain(is_closed.then_some(attempt)) {
            assert_eq!(*otlp_attribute(span, "error.type"), "signal:9", "{point}: {span}");
            assert_eq!(span["status"]["code"], 2, "{point}: {span}");
            assert!(span["endTimeUnixNano"].as_str() >= span["startTimeUnixNano"].as_str(), "{point}: {span}");
        }
        for (name, scope) in otlp_scopes(&cluster.spans_dir()) {
            let is_own = name == "tracer job" || name.contains(" tracer.remote");
            assert_eq!(is_own, scope == json!({"name": "tracer", "version": "0.1.0"}), "{point}: {name} of {scope}");
        }
        assert!(cluster.spans().is_empty(), "there is no other file: {}", cluster.spans().describe());
        if let Some(python) = python_with("opentelemetry.proto.trace.v1.trace_pb2") {
            let mut command = cluster.program(&python);
            command.args([OTLP, "lines"]).arg(&of_worker);
            let of_file = cluster.run(command).success().json();
            assert_eq!(of_file.as_array().map(Vec::len), Some(spans.len() - 2));
        }
        let shown = cluster.tracer(&["trace", "show", "last", "--format", "json"]).success().json();
        assert_eq!((&shown["duplicates"], &shown["missing_parents"]), (&json!(0), &json!([])));
    }
}

/// Returns the lines of the console hook in the outputs of a command and of the workers, without the beginning that names the process.
fn console_lines(cluster: &Cluster, stderr: &str) -> Vec<(u32, String)> {
    let logs = std::fs::read_dir(cluster.session_dir().join("logs")).expect("a session has logs");
    let logs = logs.filter_map(|log| std::fs::read_to_string(log.ok()?.path()).ok()).collect::<String>();
    let mut found: Vec<(u32, String)> = (logs + stderr)
        .lines()
        .filter_map(|line| {
            let (pid, span) = line.strip_prefix("[pid ")?.split_once("] ")?;
            Some((pid.parse().ok()?, span.to_owned()))
        })
        .collect();
    found.sort();
    found
}

#[test]
fn spans_on_the_console_are_lines_that_begin_with_the_process() {
    let cluster = Cluster::builder().hook("console:setup_tracing").start();
    let worker = cluster.worker_pids()[0];
    let submit = cluster.tracer_in_background(&["submit", "task", "traced_tasks:rich"]);
    let submitter = submit.pid();
    let run = submit.wait().success();
    // The worker's lines come to the submitter as all that a task writes, and stay in the worker's log.
    let rich = format!("(rich pid={worker}) [pid {worker}] \"rich and renamed\" CLIENT ");
    let shown = run.stderr_text();
    let line = shown.lines().find(|line| line.starts_with(&rich)).unwrap_or_else(|| panic!("no `{rich}` in {run:?}"));
    for part in [" status=ERROR \"it did not go well\" ", " int=8 ", " event \"moment\" +", " at=\"noon\" link "] {
        assert!(line.contains(part), "`{part}` in {line}");
    }
    let lines = wait_until("all spans are in the logs", || {
        let lines = console_lines(&cluster, &run.stderr_text());
        (lines.len() == 4).then_some(lines)
    });
    for (pid, start) in [
        (submitter, "\"tracer job\" INTERNAL "),
        (submitter, "\"traced_tasks.rich tracer.remote\" PRODUCER "),
        (worker, "\"traced_tasks.rich tracer.remote_worker\" CONSUMER "),
        (worker, "\"rich and renamed\" CLIENT "),
    ] {
        let count = lines.iter().filter(|(of, line)| *of == pid && line.starts_with(start)).count();
        assert_eq!(count, 1, "`{start}` of {pid} in {lines:#?}");
    }
}

#[test]
fn spans_of_a_killed_worker_are_on_the_console_of_the_next_one_once() {
    let cluster = Cluster::builder().hook("console:setup_tracing").start();
    let pid = cluster.worker_pids()[0];
    cluster.submit("misbehaving_tasks:makes_spans", &["3"]).success();
    kill(pid, Signal::KILL);
    let run = cluster.tracer(&["status"]);
    let lines = wait_until("the span that was open is there", || {
        let lines = console_lines(&cluster, &run.stderr_text());
        lines.iter().any(|(_, line)| line.starts_with("\"left open\" ")).then_some(lines)
    });
    let of_worker: Vec<_> = lines.iter().filter(|(of, _)| *of == pid).collect();
    for (start, end) in [
        ("\"ended 1\" ", ""),
        ("\"ended 2\" ", ""),
        ("\"ended 3\" ", ""),
        ("\"misbehaving_tasks.makes_spans tracer.remote_worker\" ", ""),
        ("\"left open\" ", "error.type=\"signal:9\""),
    ] {
        let count = of_worker.iter().filter(|(_, line)| line.starts_with(start) && line.contains(end)).count();
        assert_eq!(count, 1, "`{start}` in {lines:#?}");
    }
    assert_eq!((of_worker.len(), lines.len()), (5, 5), "{lines:#?}");
    assert!(cluster.spans().is_empty(), "nothing is in a file: {}", cluster.spans().describe());
}

#[test]
fn spans_on_the_console_are_json_when_asked_for() {
    let cluster = Cluster::builder().hook("console:setup_tracing").env("TRACER_CONSOLE_FORMAT", "json").start();
    let run = cluster.submit("traced_tasks:rich", &[]).success();
    let lines = wait_until("all spans are in the logs", || {
        let lines = console_lines(&cluster, &run.stderr_text());
        (lines.len() == 4).then_some(lines)
    });
    for (pid, line) in &lines {
        let span: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}"));
        assert_eq!(span["resource"]["attributes"]["process.pid"], *pid);
    }
}

#[test]
fn a_console_format_that_does_not_exist_is_refused() {
    let (_cluster, run) =
        Cluster::builder().hook("console:setup_tracing").env("TRACER_CONSOLE_FORMAT", "xml").try_start();
    run.status(4).stderr(
        "error: hook `console:setup_tracing` (<bin>/libconsole.so) returned an error: `TRACER_CONSOLE_FORMAT` is `xml`, \
         expected `text` or `json`\n",
    );
}
