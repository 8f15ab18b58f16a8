//! Reading traces: lists with filters, figures for each name, what is open now, and formats of other tools.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Background, Cluster, HOOK, in_a_terminal, is_alive, kill, run_in_a_terminal, skip, wait_until};

/// Returns the JSON of `tracer trace …`.
#[track_caller]
fn trace_json(cluster: &Cluster, arguments: &[&str]) -> Value {
    cluster.tracer(&[&["trace"], arguments, &["--format", "json"]].concat()).success().json()
}

/// Starts a cluster that has run a task that succeeds and one that panics in a span of its own.
fn with_two_traces() -> Cluster {
    let cluster = Cluster::traced();
    cluster.submit("wordcount:frequencies", &["\"a b a\""]).success();
    cluster.submit("misbehaving_tasks:panics_in_span", &[]).status(1);
    cluster
}

#[test]
fn a_trace_is_named_by_what_it_does_and_the_heads_folder_is_found() {
    let cluster = Cluster::traced();
    cluster.submit("wordcount:count", &["\"a b\""]).success();
    cluster.tracer(&["submit", "command", "--", "true"]).success();
    let list = cluster.tracer(&["trace", "list"]).success().stdout_text();
    assert!(list.contains("wordcount.count  tracer job") && list.contains("true  tracer job"), "{list}");
    let check = cluster.tracer(&["trace", "check", "last", "--max-spans", "1"]).status(1);
    assert!(check.stdout_text().contains("true  tracer job"), "{}", check.stdout_text());
    cluster.tracer(&["trace", "check", "last", "--no-errors"]).success();
    let json = cluster.tracer(&["trace", "list", "--format", "json"]).success().json();
    assert_eq!(json["traces"][1]["does"], "wordcount.count", "{json}");
    // A shell whose variable names another folder.
    let mut elsewhere = cluster.command(&["trace", "list"]);
    elsewhere.env("TRACER_SPANS_DIR", cluster.file("nowhere"));
    let found = cluster.run(elsewhere).success();
    let said = found.stderr_text();
    assert!(
        said.contains("which `TRACER_SPANS_DIR` names") && said.contains(&cluster.spans_dir().display().to_string()),
        "{said}"
    );
    assert!(found.stdout_text().contains("wordcount.count"), "{}", found.stdout_text());
    let typed = cluster.file("nowhere").display().to_string();
    let refused = cluster.tracer(&["trace", "list", "--spans-dir", &typed]).status(1).stderr_text();
    assert!(refused.contains(&format!("--spans-dir {}", cluster.spans_dir().display())), "{refused}");
}

#[test]
fn a_list_is_filtered_and_says_what_it_left_out() {
    let cluster = with_two_traces();
    let roots = |arguments: &[&str]| {
        let list = trace_json(&cluster, &[&["list"], arguments].concat());
        let traces = list["traces"].as_array().expect("traces are a list");
        let ids: Vec<Value> = traces.iter().map(|trace| trace["trace_id"].clone()).collect();
        (ids, list["left_out"].clone(), list["filtered_out"].clone())
    };
    let (all, left_out, filtered_out) = roots(&[]);
    assert_eq!((all.len(), left_out, filtered_out), (2, json!(0), json!(0)));
    let (failed, good) = (vec![all[0].clone()], vec![all[1].clone()]);
    assert_eq!(roots(&["--limit", "1"]), (failed.clone(), json!(1), json!(0)));
    assert_eq!(roots(&["--errors"]), (failed.clone(), json!(0), json!(1)));
    assert_eq!(roots(&["--name", "Frequencies"]), (good, json!(0), json!(1)));
    assert_eq!(roots(&["--name", "misbehaving", "--errors"]), (failed, json!(0), json!(1)));
    assert_eq!(roots(&["--min-duration", "1h"]), (vec![], json!(0), json!(2)));
    assert_eq!(roots(&["--min-duration", "0"]).0.len(), 2);
    cluster.tracer(&["trace", "list", "--errors"]).success().stdout_contains("1 trace does not match");
    cluster
        .tracer(&["trace", "list", "--min-duration", "soon"])
        .status(2)
        .stderr_contains("expected a duration such as `500ms`, `10s` or `2m`, found `soon`");
}

#[test]
fn figures_for_each_name_are_those_of_the_span_files() {
    let cluster = with_two_traces();
    let stats = trace_json(&cluster, &["stats"]);
    let spans = cluster.spans();
    let names = stats["names"].as_array().expect("names are a list");
    assert_eq!(stats["spans"], spans.len());
    assert_eq!(stats["left_out"], 0);
    for row in names {
        let name = row["name"].as_str().expect("a name is a text");
        let found = spans.all_named(name);
        let errors = found.iter().filter(|span| span.status_code() == "ERROR").count();
        assert_eq!((&row["count"], &row["errors"]), (&json!(found.len()), &json!(errors)), "{row}");
        assert!(row["self_ns"].as_u64() <= row["max_ns"].as_u64().map(|max| max * found.len() as u64), "{row}");
        assert!(row["p50_ns"].as_u64() <= row["p95_ns"].as_u64(), "{row}");
    }
    let own: Vec<_> = names.iter().map(|row| row["self_ns"].as_u64()).collect();
    assert!(own.is_sorted_by(|left, right| left >= right), "{own:?}");
    let text = cluster.tracer(&["trace", "stats", "--limit", "2"]).success().stdout_text();
    assert_eq!(text.lines().count(), 4, "{text}");
    assert!(text.ends_with(&format!("{} further names not shown\n", names.len() - 2)), "{text}");
}

const WAITS: &str = "misbehaving_tasks.waits_in_nested_spans tracer.remote_worker";

/// A task that runs inside of nested spans until a file is there.
struct Waiting {
    submission: Background,
    worker_pid: u32,
    release: PathBuf,
}

impl Waiting {
    #[track_caller]
    fn start(cluster: &Cluster) -> Waiting {
        let (started, release) = (cluster.file("started"), cluster.file("release"));
        let argument = |path: &std::path::Path| json!(path).to_string();
        let arguments = [argument(&started), argument(&release)];
        let [started_argument, release_argument] = arguments.each_ref().map(String::as_str);
        let arguments = [started_argument, release_argument, "--crash-limit=0"];
        let submission = cluster.submit_in_background("misbehaving_tasks:waits_in_nested_spans", &arguments);
        cluster.wait_for_file(&started);
        let worker_pid = fs::read_to_string(&started).expect("the file is whole").parse().expect("a process id");
        Waiting { submission, worker_pid, release }
    }

    #[track_caller]
    fn release(&self) {
        fs::write(&self.release, "").expect("the test's folder can be written to");
    }

    #[track_caller]
    fn end(self) {
        self.release();
        self.submission.wait().success();
    }
}

/// Returns the names of the open spans, with the spans.
#[track_caller]
fn open_spans(cluster: &Cluster) -> Vec<(String, Value)> {
    let open = trace_json(cluster, &["open"]);
    let traces = open["traces"].as_array().expect("traces are a list");
    let spans: Vec<Value> =
        traces.iter().flat_map(|trace| trace["spans"].as_array().cloned().unwrap_or_default()).collect();
    assert_eq!(open["open"], spans.len());
    spans.into_iter().map(|span| (span["name"].as_str().expect("a name is a text").to_owned(), span)).collect()
}

#[test]
fn what_is_open_in_tasks_and_submissions_is_seen_while_it_runs() {
    let cluster = Cluster::traced();
    cluster.tracer(&["trace", "open"]).success().stdout("nothing is open\n");
    let waiting = Waiting::start(&cluster);

    let spans = open_spans(&cluster);
    let names: Vec<&str> = spans.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["tracer job", WAITS, "outer", "inner"]);
    let [job, attempt, outer, inner] = [0, 1, 2, 3].map(|index| &spans[index].1);
    assert_eq!(
        (&job["pid"], &job["kind"], &job["task_id"]),
        (&json!(waiting.submission.pid()), &json!("INTERNAL"), &Value::Null)
    );
    assert_eq!((&attempt["pid"], &attempt["kind"]), (&json!(waiting.worker_pid), &json!("CONSUMER")));
    assert_eq!((&outer["parent_id"], &inner["parent_id"]), (&attempt["span_id"], &outer["span_id"]));
    assert_eq!((&outer["attributes"], &inner["task_id"]), (&json!({"fixture.mark": 7}), &json!(1)));
    assert_eq!(attempt["attributes"]["tracer.task_id"], 1);
    let ages: Vec<u64> = spans.iter().map(|(_, span)| span["age_ns"].as_u64().expect("an age is a number")).collect();
    assert!(ages[3] > 0 && ages.is_sorted_by(|older, younger| older >= younger), "{ages:?}");
    let later = open_spans(&cluster);
    assert!(later[3].1["age_ns"].as_u64() > Some(ages[3]), "a span that runs grows older");

    // The PRODUCER span has ended; it holds the tree together.
    let text = cluster.tracer(&["trace", "open"]).success().stdout_text();
    let starts: Vec<&str> = text.lines().skip(1).map(|line| line.split("  pid").next().unwrap_or(line)).collect();
    for (line, start) in starts.iter().zip([
        "  tracer job ",
        "  └─ misbeh",
        "     └─ misbeh",
        "        └─ outer ",
        "           └─ inner ",
    ]) {
        assert!(line.starts_with(start), "expected `{start}` in\n{text}");
    }
    assert!(starts.len() == 5 && starts[1].ends_with("ended"), "{text}");
    assert!(text.lines().next().is_some_and(|head| head.ends_with("  4 open")), "{text}");

    let shown = trace_json(&cluster, &["show", "last"]);
    assert_eq!((&shown["running"], shown["spans"].as_array().map(Vec::len)), (&json!(4), Some(6)), "{shown}");
    let ends: Vec<_> =
        shown["spans"].as_array().into_iter().flatten().filter(|span| span["end_time"].is_null()).collect();
    assert_eq!(ends.len(), 4, "{shown}");
    let text = cluster.tracer(&["trace", "show", "last"]).success().stdout_contains("4 running").stdout_text();
    assert_eq!(text.lines().filter(|line| line.ends_with("running")).count(), 5, "{text}");

    waiting.end();
    cluster.tracer(&["trace", "open"]).success().stdout("nothing is open\n");
    assert_eq!(trace_json(&cluster, &["show", "last"])["running"], 0);
    cluster.spans().assert_whole(&[]);
}

#[test]
fn what_the_end_of_a_trace_waited_for_is_marked_the_queue_included() {
    let cluster = Cluster::traced();
    let waiting = Waiting::start(&cluster);
    let queued = cluster.tracer_in_background(&["submit", "task"]);
    wait_until("a task waits in the queue", || {
        cluster.tasks().iter().any(|task| task["state"] == "waiting").then_some(())
    });
    waiting.end();
    queued.wait().success();

    let shown = trace_json(&cluster, &["show", "last"]);
    let spans = shown["spans"].as_array().expect("spans are a list");
    let id_of = |end: &str| {
        let span = spans.iter().find(|span| span["name"].as_str().is_some_and(|name| name.ends_with(end)));
        span.expect("it is there")["context"]["span_id"].clone()
    };
    let parts = shown["critical_path"].as_array().expect("the path is a list");
    let of = |kind: &str| -> Vec<&Value> { parts.iter().filter(|part| part["kind"] == kind).collect() };
    let [queue] = of("queued")[..] else { panic!("{shown}") };
    assert_eq!(queue["span_id"], id_of("tracer.remote_worker"));
    assert_eq!(queue["duration_ns"], shown["queued_ns"]);
    assert!(queue["duration_ns"].as_u64() > Some(0), "{shown}");
    for end in ["tracer job", "tracer.remote", "tracer.remote_worker"] {
        assert!(of("span").iter().any(|part| part["span_id"] == id_of(end)), "{end}: {shown}");
    }
    let mut at = 0;
    for part in parts {
        assert_eq!(part["start_ns"], at, "{shown}");
        at += part["duration_ns"].as_u64().expect("a duration is a number");
    }
    assert_eq!(shown["duration_ns"], at);

    let text = cluster.tracer(&["trace", "show", "last"]).success().stdout_text();
    assert_eq!(text.lines().filter(|line| line.starts_with("* ")).count(), 3 + 1, "{text}");
    assert!(text.contains("\n* The critical path, which the end of the trace waited for: "), "{text}");
    assert!(text.contains(" queued"), "{text}");
}

#[test]
fn what_was_open_in_a_dead_process_is_not_running() {
    let cluster = Cluster::traced();
    let waiting = Waiting::start(&cluster);
    // The submission may not have been told yet that its task is accepted.
    wait_until("the submission is accepted", || {
        (!open_spans(&cluster).iter().any(|(name, _)| name.ends_with("tracer.remote"))).then_some(())
    });
    // A head that stands still completes nothing.
    let head = cluster.head_pid();
    kill(head, Signal::STOP);
    kill(waiting.worker_pid, Signal::KILL);
    wait_until("the worker is gone", || (!is_alive(waiting.worker_pid)).then_some(()));
    let names: Vec<String> = open_spans(&cluster).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["tracer job"]);
    kill(head, Signal::CONT);
    waiting.submission.wait().status(1);
    assert_eq!(open_spans(&cluster), []);
    cluster.spans().assert_whole(&[]);
}

#[test]
fn a_trace_is_followed_span_by_span_until_it_is_complete() {
    let cluster = Cluster::traced();
    let waiting = Waiting::start(&cluster);
    let follow = cluster.tracer_in_background(&["trace", "show", "last", "--follow"]);
    let json = cluster.tracer_in_background(&["trace", "show", "--follow", "--format", "json"]);
    follow.wait_for_stdout("ended before");
    json.wait_for_stdout("ended before");
    assert!(!follow.stdout_text().contains("inner"), "{}", follow.stdout_text());
    // What starts after it was begun to follow is seen as well.
    let mut other = cluster.command(&["submit", "task", "demo:my_function"]);
    let trace_id = trace_json(&cluster, &["show", "last"])["trace_id"].as_str().expect("an id is a text").to_owned();
    other.arg("--no-wait").env("TRACEPARENT", format!("00-{trace_id}-b7ad6b7169203331-01"));
    cluster.run(other).success();
    follow.wait_for_stdout("demo.my_function tracer.remote  ");
    waiting.end();

    let text = follow.wait().success().stderr("").stdout_text();
    let spans = cluster.wait_for_spans("both tasks are over", |spans| spans.len() == 9);
    let ids: HashSet<&str> = spans.iter().map(|span| span.trace_id().trim_start_matches("0x")).collect();
    assert_eq!(ids, HashSet::from([&*trace_id]));
    let json = json.wait().success().stderr("").stdout_text();
    let objects: Vec<Value> =
        json.lines().map(|line| serde_json::from_str(line).expect("a line is an object")).collect();
    let followed: HashSet<&str> = objects.iter().filter_map(|span| span["context"]["span_id"].as_str()).collect();
    assert_eq!((objects.len(), followed.len()), (9, 9), "{json}");
    for span in spans.iter() {
        assert!(followed.contains(span.span_id()), "{json}");
        let lines = text.lines().filter(|line| line.contains(&format!("  {}  pid ", span.name()))).count();
        assert_eq!(lines, spans.all_named(span.name()).len(), "`{}` in\n{text}", span.name());
    }
    // A trace that is complete is shown at once.
    let again = cluster.tracer(&["trace", "show", "last", "--follow"]).success().stdout_text();
    assert_eq!(again.lines().count(), 9, "{again}");
    cluster.stop().success();
    let again = cluster.tracer(&["trace", "show", &trace_id, "--follow"]).success().stdout_text();
    assert_eq!(again.lines().count(), 9, "{again}");
}

#[test]
fn a_trace_whose_task_dies_is_followed_to_its_end() {
    let cluster = Cluster::traced();
    let waiting = Waiting::start(&cluster);
    let follow = cluster.tracer_in_background(&["trace", "show", "last", "--follow"]);
    follow.wait_for_stdout("ended before");
    kill(waiting.worker_pid, Signal::KILL);
    waiting.submission.wait().status(1);
    let text = follow.wait().success().stdout_text();
    for name in ["inner", "outer", WAITS, "tracer job"] {
        let line = text.lines().find(|line| line.contains(&format!("✗ {name}  pid ")));
        assert!(line.is_some_and(|line| line.contains("SIGKILL")), "`{name}` in\n{text}");
    }
}

#[test]
fn on_a_terminal_the_tree_is_drawn_again_while_it_grows() {
    let cluster = Cluster::traced();
    let waiting = Waiting::start(&cluster);
    let (mut follow, screen) = in_a_terminal(&cluster, &["trace", "show", "--follow"]);
    wait_until("it was drawn at least twice", || {
        screen.lock().expect("the reader is well").matches("\u{1b}[J").nth(1).map(drop)
    });
    waiting.end();
    wait_until("it ends", || follow.try_wait().expect("it can be waited for"));
    let text = wait_until("the end was drawn", || {
        let text = screen.lock().expect("the reader is well").clone();
        text.contains("  ok\r\n").then_some(text)
    });
    let drawings: Vec<&str> = text.split("\u{1b}[J").collect();
    // Or five, when the submission has not been told yet that its task is accepted.
    assert!(["4 running", "5 running"].iter().any(|running| drawings[0].contains(running)), "{text}");
    let last = drawings.last().expect("there is one");
    assert!(last.contains("6 spans  2 processes") && last.contains("  ok") && !last.contains("running"), "{text}");
}

#[test]
fn without_a_head_nothing_can_be_open() {
    let cluster = Cluster::builder().build();
    cluster.tracer(&["trace", "open"]).status(3).stdout("").stderr_contains("no head is running");
}

#[test]
fn what_others_have_written_is_read_in_each_of_its_forms() {
    let Some(python) = python_with_otlp() else {
        return skip(
            "python3 modules",
            "opentelemetry-sdk and opentelemetry-proto; PYTHON can name a Python that has them",
        );
    };
    let cluster = Cluster::builder().build();
    fs::create_dir(cluster.spans_dir()).expect("the folder is ours");
    let mut write = cluster.program(python);
    write.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/python/write_spans.py")).arg(cluster.spans_dir());
    let expected: Vec<Value> = cluster
        .run(write)
        .success()
        .stdout_text()
        .lines()
        .map(|line| serde_json::from_str(line).expect("Python writes JSON"))
        .collect();
    // A torn tail of each form.
    for file in ["1.json", "2.txt", "3.jsonl", "4.json"] {
        let path = cluster.spans_dir().join(file);
        let text = fs::read(&path).expect("it was written");
        let torn = [&text[..], &text[..text.len() / 3]].concat();
        fs::write(path, torn).expect("the folder is ours");
    }
    let shown = trace_json(&cluster, &["show", "last"]);
    let spans = shown["spans"].as_array().expect("spans are a list");
    assert_eq!((spans.len(), expected.len()), (6, 6), "{shown}");
    for expected in &expected {
        let found = spans.iter().find(|span| span["context"]["span_id"] == expected["context"]["span_id"]);
        let mut found = found.unwrap_or_else(|| panic!("{expected} is missing in {shown}")).clone();
        let expect_time = |found: &mut Value, expected: &Value| {
            // OTLP has nanoseconds. Python makes microseconds of them with floats, sometimes one too many.
            let digits = |time: &Value| {
                let text = time.as_str().expect("a time is a text")["2026-11-20T".len()..][.."22:59:41.123456".len()]
                    .to_owned();
                let parts: Vec<i64> =
                    text.split([':', '.']).map(|part| part.parse().expect("it is a number")).collect();
                ((parts[0] * 60 + parts[1]) * 60 + parts[2]) * 1_000_000 + parts[3]
            };
            let difference = (digits(found) - digits(expected)).abs();
            assert!(difference <= 1, "{found} and {expected}");
            *found = expected.clone();
        };
        for key in ["start_time", "end_time"] {
            expect_time(&mut found[key], &expected[key]);
        }
        let events = found["events"].as_array_mut().expect("a list").iter_mut();
        for (found, expected) in events.zip(expected["events"].as_array().expect("a list")) {
            expect_time(&mut found["timestamp"], &expected["timestamp"]);
        }
        assert_eq!(found, *expected);
    }
    let text = cluster.tracer(&["trace", "show", "last"]).success().stdout_text();
    for name in ["root", "├─ pretty", "├─ one per line", "├─ ✗ collector", "├─ ✗ collector too", "└─ ✗ protobuf"]
    {
        assert!(text.contains(name), "`{name}` in\n{text}");
    }
    let list = cluster.tracer(&["trace", "list"]).success();
    let said = list.stderr_text();
    for file in ["1.json", "2.txt", "3.jsonl", "4.json"] {
        assert!(said.contains(&format!("`{file}`: the last record is cut off")), "{said}");
    }
}

#[test]
fn a_trace_in_otlp_lines_is_shown_like_any_other() {
    let cluster = Cluster::builder().hook("otlp_file:setup_tracing").start();
    cluster.submit("traced_tasks:rich", &[]).success();
    // What the head completes is in the other format.
    cluster.submit("misbehaving_tasks:aborts", &["--crash-limit=0"]).status(1);
    cluster.stop().success();
    let list = trace_json(&cluster, &["list"]);
    let rows: Vec<_> = list["traces"].as_array().into_iter().flatten().map(|row| &row["spans"]).collect();
    assert_eq!(rows, [3, 4], "{list}");
    let mut show = cluster.command(&["trace", "show", "last"]);
    show.env("COLUMNS", "120");
    let text = cluster.run(show).success().stdout_text();
    let tree = [
        "tracer job",
        "└─ misbehaving_tasks.aborts tracer.remote",
        "└─ ✗ misbehaving_tasks.aborts tracer.remote_worker",
    ];
    assert!(tree.iter().all(|line| text.contains(line)), "{text}");
    let rich = &list["traces"][1];
    let shown = trace_json(&cluster, &["show", rich["trace_id"].as_str().expect("an id is a text")]);
    let span = shown["spans"].as_array().into_iter().flatten().find(|span| span["name"] == "rich and renamed");
    let span = span.unwrap_or_else(|| panic!("{shown}"));
    assert_eq!((&span["attributes"]["int"], &span["attributes"]["ints"]), (&json!(8), &json!([1, i64::MIN])));
    assert_eq!(span["links"][0]["context"]["trace_state"], "['{key=vendor, value=value}']");
    assert_eq!(span["status"], json!({"status_code": "ERROR", "description": "it did not go well"}));
}

/// Returns a Python that has the official protobuf classes of OTLP: what `PYTHON` says, else the system's.
fn python_with_otlp() -> Option<PathBuf> {
    let candidates = [std::env::var_os("PYTHON").map(PathBuf::from), Some("python3".into())];
    candidates.into_iter().flatten().find(|python| {
        let mut check = Command::new(python);
        check.args([
            "-c",
            "import opentelemetry.sdk, opentelemetry.proto.trace.v1.trace_pb2, google.protobuf.json_format",
        ]);
        check.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    })
}

/// Starts a cluster that has run tasks with everything that spans can have.
fn with_rich_traces() -> Cluster {
    let cluster = with_two_traces();
    cluster.submit("traced_tasks:rich", &[]).success();
    cluster.submit("traced_tasks:concurrent", &[]).success();
    let mut traced = cluster.command(&["submit", "task", "demo:my_function"]);
    traced.envs([
        ("TRACEPARENT", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("TRACESTATE", "rojo=1,congo=2"),
    ]);
    cluster.run(traced).success();
    cluster
}

#[test]
fn otlp_lines_are_what_the_official_parser_understands() {
    let cluster = with_rich_traces();
    let output = cluster.file("all.jsonl");
    let path = output.to_str().expect("the path is text");
    cluster.tracer(&["trace", "export", "--all", "--format", "otlp", "--output", path]).success().stdout("").stderr("");
    assert_eq!(fs::metadata(&output).expect("it is there").permissions().mode() & 0o777, 0o600);
    let stdout = cluster.tracer(&["trace", "export", "--all", "--format", "otlp"]).success().stdout_text();
    assert_eq!(stdout, fs::read_to_string(&output).expect("it is text"));
    let states: Vec<&str> =
        stdout.split("\"traceState\":\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(states.contains(&"rojo=1,congo=2") && states.contains(&"vendor=value"), "{states:?}");

    let Some(python) = python_with_otlp() else {
        return skip(
            "python3 modules",
            "opentelemetry-sdk and opentelemetry-proto; PYTHON can name a Python that has them",
        );
    };
    let mut parse = cluster.program(python);
    parse.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/python/parse_otlp.py"));
    parse.stdin(File::open(&output).expect("it was written"));
    let understood = cluster.run(parse).success().stdout_text();
    let understood: HashMap<String, Value> = understood
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("Python writes JSON"))
        .map(|span| (span["span_id"].as_str().expect("an id is a text").to_owned(), span))
        .collect();
    let spans = cluster.spans();
    assert_eq!(understood.len(), spans.len());
    for span in spans.iter() {
        let found = &understood[span.span_id()];
        for (key, expected) in [
            ("trace_id", &span.value["context"]["trace_id"]),
            ("parent_id", &span.value["parent_id"]),
            ("name", &span.value["name"]),
            ("kind", &span.value["kind"]),
            ("status", &span.value["status"]["status_code"]),
            ("description", &json!(span.status_description())),
            ("attributes", &span.value["attributes"]),
            ("resource", &span.value["resource"]["attributes"]),
        ] {
            assert_eq!(found[key], *expected, "`{key}` of {}", span.value);
        }
        let elapsed =
            found["end"].as_u64().zip(found["start"].as_u64()).map(|(end, start)| end >= start && start > 1 << 60);
        assert_eq!(elapsed, Some(true), "{found}");
        let events: Vec<Value> = span.value["events"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|event| json!([event["name"], true, event["attributes"]]))
            .collect();
        assert_eq!(found["events"], Value::Array(events), "{found}");
        assert_eq!(found["links"].as_array().map(Vec::len), Some(span.links().len()), "{found}");
    }
    let rich = spans.named("rich and renamed");
    let link = format!("0x{:032x}", 0xabc);
    assert_eq!(
        understood[rich.span_id()]["links"],
        json!([[link, format!("0x{:016x}", 0xdef), "vendor=value", {"why": "because"}]])
    );
}

#[test]
fn chrome_events_hold_every_span_with_its_process_and_arrows() {
    let cluster = with_rich_traces();
    let exported = cluster.tracer(&["trace", "export", "--all", "--format", "chrome"]).success().json();
    let events = exported["traceEvents"].as_array().expect("events are a list");
    let with = |phase: &str| -> Vec<&Value> { events.iter().filter(|event| event["ph"] == phase).collect() };
    let spans = cluster.spans();
    let shown: HashMap<&str, &Value> = with("X")
        .into_iter()
        .chain(with("b"))
        .map(|event| (event["args"]["span_id"].as_str().expect("an id is a text"), event))
        .collect();
    assert_eq!(shown.len(), spans.len());
    assert_eq!(with("b").len(), with("e").len());
    // On a runtime with several threads, one may end before the other starts.
    let (left, right) = (spans.named("left"), spans.named("right"));
    let [starts, ends] = ["start_time", "end_time"].map(|key| [left, right].map(|span| span.value[key].as_str()));
    let overlap = starts.iter().max() < ends.iter().min();
    assert_eq!(with("b").iter().any(|event| event["name"] == "right" || event["name"] == "left"), overlap);
    let named: HashSet<&Value> =
        with("M").into_iter().filter(|event| event["name"] == "process_name").map(|event| &event["pid"]).collect();
    for span in spans.iter() {
        let event = shown[span.span_id().trim_start_matches("0x")];
        assert_eq!(event["name"], span.name());
        assert_eq!(event["pid"], *span.resource_attribute("process.pid"), "{event}");
        assert!(named.contains(&event["pid"]), "{event}");
        assert!(event["ts"].as_f64().is_some_and(|time| time >= 0.0) && event["tid"].is_u64(), "{event}");
    }
    let (starts, finishes) = (with("s"), with("f"));
    assert_eq!((starts.len(), finishes.len()), (5, 5));
    for (start, finish) in starts.iter().zip(&finishes) {
        assert_eq!((&start["id"], &start["cat"], &start["name"]), (&finish["id"], &finish["cat"], &finish["name"]));
        assert_ne!(start["pid"], finish["pid"]);
    }
    // Slices of a thread nest: each begins after the one before it has ended, or lies within it.
    let mut stacks: HashMap<(u64, u64), Vec<f64>> = HashMap::new();
    for slice in with("X") {
        let [ts, duration] = ["ts", "dur"].map(|key| slice[key].as_f64().expect("a number"));
        let thread = (slice["pid"].as_u64().expect("a number"), slice["tid"].as_u64().expect("a number"));
        let stack = stacks.entry(thread).or_default();
        stack.retain(|end| *end > ts);
        // A double has room for a thousandth of a nanosecond here.
        assert!(stack.last().is_none_or(|end| ts + duration <= end + 1e-6), "{slice}");
        stack.push(ts + duration);
    }

    let one = cluster.tracer(&["trace", "export", "--format", "chrome"]).success().json();
    assert_eq!(one["otherData"]["spans"], 3, "the last trace is exported by default");
    cluster.tracer(&["trace", "export", "last", "--all", "--format", "otlp"]).status(2);
    cluster
        .tracer(&["trace", "export", "--format", "otlp", "--output", "missing/file"])
        .status(1)
        .stderr("error: cannot write `missing/file`: No such file or directory (os error 2)\n");
}

#[test]
fn the_last_trace_is_the_submissions_also_when_its_task_began_another() {
    let cluster = Cluster::traced();
    cluster.submit("traced_tasks:on_a_forgetful_thread", &[]).success();
    let list = trace_json(&cluster, &["list"]);
    assert_eq!(list["traces"].as_array().map(Vec::len), Some(2), "{list}");
    assert_eq!(list["traces"][0]["root"], "on its own", "the newest trace is the task's own: {list}");
    for verb in [&["show"][..], &["show", "last"], &["stats", "last"]] {
        let shown = trace_json(&cluster, verb);
        assert_eq!(shown["trace_id"], list["traces"][1]["trace_id"], "{verb:?}: {shown}");
    }
    let exported = cluster.tracer(&["trace", "export", "--format", "otlp"]).success().stdout_text();
    assert!(exported.contains("tracer job"), "{exported}");
    cluster.tracer(&["trace", "show", "--follow"]).success().stdout_contains("tracer job");
}

#[test]
fn figures_of_one_trace_leave_the_others_out() {
    let cluster = with_two_traces();
    // Names are whole in a wide terminal.
    let wide = |arguments: &[&str]| {
        let mut command = cluster.command(&["trace", "stats"]);
        command.args(arguments).env("COLUMNS", "200");
        cluster.run(command)
    };
    let of = |trace: &[&str]| trace_json(&cluster, &[&["stats"], trace].concat());
    let (all, last) = (of(&[]), of(&["last"]));
    assert_eq!(all["trace_id"], Value::Null);
    let first = trace_json(&cluster, &["list"])["traces"][1]["trace_id"].as_str().expect("an id").to_owned();
    let first = of(&[&first[..16]]);
    assert_ne!(first["trace_id"], last["trace_id"]);
    let spans = |stats: &Value| stats["spans"].as_u64().expect("a number");
    assert_eq!(spans(&all), spans(&first) + spans(&last));
    wide(&["last"]).success().stdout_contains("misbehaving_tasks.panics_in_span");
    cluster.tracer(&["trace", "stats", "zz"]).stderr_contains("`last`, found `zz`");
}

#[test]
fn attributes_events_and_folds_are_shown_when_asked_for() {
    let cluster = Cluster::builder().hook(HOOK).env("COLUMNS", "200").start();
    let lines = cluster.file("lines");
    fs::write(&lines, "\"a b\"\n".repeat(40)).expect("the test's folder can be written to");
    cluster.tracer(&["submit", "task", "wordcount:frequencies", "--map", &lines.display().to_string()]).success();
    let show = |more: &[&str]| cluster.tracer(&[&["trace", "show"], more].concat()).success().stdout_text();
    let folded = show(&[]);
    assert!(folded.contains("× wordcount.frequencies tracer.remote_worker"), "{folded}");
    // What the end waited for considerably keeps its lines, which are at most ten.
    assert!(folded.contains("p50 ") && folded.lines().count() < 80, "{folded}");
    for flag in ["--no-fold", "--all"] {
        let all = show(&[flag]);
        assert_eq!(all.matches(" wordcount.frequencies tracer.remote_worker ").count(), 40, "{all}");
    }
    cluster.submit("traced_tasks:active_span", &[]).success();
    let plain = show(&[]);
    assert!(!plain.contains("fixture.mark") && !plain.contains("marked"), "{plain}");
    let attributes = show(&["--attributes"]);
    assert!(attributes.contains("fixture.mark = \"set by the task\"\n") && !attributes.contains('◆'), "{attributes}");
    let events = show(&["--events", "--follow"]);
    assert!(events.contains(" marked\n") && events.contains("step = 1\n"), "{events}");
}

#[test]
fn on_a_terminal_a_long_tree_goes_through_the_pager() {
    let cluster = Cluster::traced();
    cluster.submit("traced_tasks:many", &["2000"]).success();
    // What is drawn in a terminal by `tracer trace show` with this pager, when it has ended.
    let drawn = |pager: &str, arguments: &[&str], end: &str| {
        let mut command = cluster.command(&["trace", "show", "--no-fold"]);
        command.args(arguments).env("TRACER_PAGER", pager);
        let (mut child, screen) = run_in_a_terminal(command);
        let status = wait_until("it ends", || child.try_wait().expect("it can be waited for"));
        let text = wait_until("the end was drawn", || {
            let text = screen.lock().expect("the reader is well").clone();
            text.contains(end).then_some(text)
        });
        assert_eq!(status.code(), Some(0), "{text}");
        text
    };
    let whole = drawn("sed 's/^/paged: /'", &[], "The critical path");
    assert!(whole.starts_with("paged: trace ") && whole.matches("paged: ").count() > 2000, "{whole}");
    // It is left early, with more to come than a pipe holds.
    let beginning = drawn("head -n 2", &[], "tracer job");
    assert!(beginning.lines().count() <= 2, "{beginning}");
    for (pager, arguments) in [("sed 's/^/paged: /'", &["--no-pager"][..]), ("cat", &[]), ("/no/such/pager", &[])] {
        let text = drawn(pager, arguments, "The critical path");
        assert!(!text.contains("paged: ") && text.lines().count() > 2000, "{pager}: {text}");
    }
    // What fits needs none.
    cluster.submit("demo:my_function", &[]).success();
    let short = drawn("sed 's/^/paged: /'", &[], "The critical path");
    assert!(!short.contains("paged: "), "{short}");
}
