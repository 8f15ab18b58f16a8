//! Reading traces: lists with filters, figures for each name, and what is open now.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Background, Cluster, is_alive, kill, wait_until};

/// What `tracer trace …` says in JSON.
#[track_caller]
fn trace_json(cluster: &Cluster, arguments: &[&str]) -> Value {
    cluster.tracer(&[&["trace"], arguments, &["--format", "json"]].concat()).success().json()
}

/// A cluster that has run a task that succeeds and one that panics in a span of its own.
fn with_two_traces() -> Cluster {
    let cluster = Cluster::traced();
    cluster.submit("wordcount:frequencies", &["\"a b a\""]).success();
    cluster.submit("misbehaving_tasks:panics_in_span", &[]).status(1);
    cluster
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
    release: std::path::PathBuf,
}

impl Waiting {
    #[track_caller]
    fn start(cluster: &Cluster) -> Waiting {
        let (started, release) = (cluster.file("started"), cluster.file("release"));
        let argument = |path: &std::path::Path| json!(path).to_string();
        let arguments = [argument(&started), argument(&release)];
        let arguments = arguments.each_ref().map(String::as_str);
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

/// The names of the open spans, with the spans.
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
fn what_was_open_in_a_dead_process_is_not_running() {
    let cluster = Cluster::traced();
    let waiting = Waiting::start(&cluster);
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
fn without_a_head_nothing_can_be_open() {
    let cluster = Cluster::builder().build();
    cluster.tracer(&["trace", "open"]).status(3).stdout("").stderr_contains("no head is running");
}
