//! Spans of tasks of queues whose nodes die: each attempt has one that is shown, nothing is written twice, and whoever reads an outcome finds its spans.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::engine::{agent_pid, origin};
use crate::support::{Broker, Cluster, HOOK, Spans, is_alive, kill_if_there, wait_until, wait_until_within};

const ATTEMPT: &str = "misbehaving_tasks.waits_in_span tracer.remote_worker";
/// Points at which somebody dies at whoever takes a task over, and the attempt that the task ends with. The writes of its agent are in this order: a suspicion,
/// the claim, and that spans stand in for those that were lost.
const POINTS: [(&str, u64); 5] =
    [("record_written:1", 2), ("record_written:2", 2), ("record_written:3", 2), ("stood_in", 3), ("after_claim", 3)];
/// Time for two take-overs, one after the other.
const TAKEN_OVER: Duration = Duration::from_secs(120);

fn kill_all(node: &Cluster) {
    for process in node.processes() {
        kill_if_there(process.pid, Signal::KILL);
    }
    wait_until("all of it is gone", || node.processes().is_empty().then_some(()));
}

fn serving(broker: &Broker, queues: &[String]) -> crate::support::Builder {
    let builder = Cluster::builder().workers(queues.len()).hook(HOOK).arg("--address").arg(broker.address());
    queues.iter().fold(builder, |builder, queue| builder.arg(format!("--queue={queue}=1")))
}

/// Returns the spans of all these nodes.
pub(crate) fn spans_of(nodes: &[&Cluster]) -> Spans {
    let mut all = Spans::default();
    for Spans { spans, torn_lines } in nodes.iter().map(|node| node.spans()) {
        all.spans.extend(spans);
        all.torn_lines.extend(torn_lines);
    }
    all
}

/// Returns the attempts with spans of this name that are shown of a trace of these nodes: the number of each, and whether its span stands in for another.
pub(crate) fn shown_attempts(nodes: &[&Cluster], (name, trace): (&str, &str)) -> Vec<(u64, bool)> {
    let folders: Vec<_> = nodes.iter().map(|node| node.spans_dir().to_string_lossy().into_owned()).collect();
    let folders = folders.iter().flat_map(|folder| ["--spans-dir", folder]);
    let command: Vec<_> = ["trace", "show", trace, "--format", "json"].into_iter().chain(folders).collect();
    let shown = nodes[0].tracer(&command).success().json();
    let spans = shown["spans"].as_array().expect("it has spans").iter().filter(|span| span["name"] == name);
    let attempt = |span: &Value| {
        let attributes = &span["attributes"];
        (attributes["tracer.attempt"].as_u64().expect("a number"), attributes["tracer.stand_in"] == true)
    };
    let mut shown: Vec<_> = spans.map(attempt).collect();
    shown.sort_unstable();
    shown
}

/// Returns whether an attempt was claimed and no worker has begun it, so that nobody has a span of it but whoever stands in.
fn is_claim_alone(point: &str, number: u64) -> bool {
    (point, number) == ("stood_in", 2)
}

/// One node has five tasks, each of a queue of its own, and is killed whole; of each queue another node takes over, and somebody dies there at another step.
#[test]
fn whoever_dies_between_claim_stand_in_and_run_each_attempt_has_one_span_that_is_shown() {
    let Some(broker) = Broker::start() else { return };
    let queues: Vec<_> = (0..POINTS.len()).map(|at| format!("q{at}")).collect();
    let b = serving(&broker, &queues).start();
    let a = origin(&broker);
    agent_pid(&b);
    let go = a.file("go");
    let path = |path: &std::path::Path| json!(path).to_string();
    let ids: Vec<u64> = queues
        .iter()
        .map(|queue| {
            let started = a.file(&format!("{queue}-started"));
            let arguments = [path(&started), path(&go)];
            let command = ["submit", "task", "--no-wait", "--queue", queue, "misbehaving_tasks:waits_in_span"];
            let run = a.tracer(&[&command[..], &arguments.each_ref().map(String::as_str)].concat());
            b.wait_for_file(&started);
            run.success().stdout_text().trim().parse().expect("an id")
        })
        .collect();
    kill_all(&b);
    fs::write(&go, "").expect("the folder is ours");

    let takers: Vec<_> = POINTS
        .iter()
        .zip(&queues)
        .map(|((point, _), queue)| {
            let c = serving(&broker, std::slice::from_ref(queue)).env("TRACER_TEST_KILL_AT", point).build();
            let mut start = c.start_command(&[]);
            start.env("TRACER_TEST_KILL_ONCE", c.file("once"));
            c.run(start).success();
            c
        })
        .collect();
    let heads: Vec<_> = takers.iter().map(Cluster::head_pid).collect();
    for ((c, head), (point, _)) in takers.iter().zip(heads).zip(POINTS) {
        wait_until_within(TAKEN_OVER, &format!("{point}: somebody has died"), || c.file("once").exists().then_some(()));
        if point == "stood_in" {
            wait_until("its head is gone", || (!is_alive(head)).then_some(()));
            let mut start = c.start_command(&[]);
            start.env("TRACER_TEST_KILL_ONCE", c.file("once"));
            c.run(start).success();
        }
    }
    for (id, (point, attempt)) in ids.iter().zip(POINTS) {
        let task = wait_until_within(TAKEN_OVER, &format!("{point}: task {id} ends"), || {
            Some(a.task(*id)).filter(|task| task["state"] == "succeeded")
        });
        assert_eq!(task["attempt"], attempt, "{point}: {task}");
    }

    let place = a.status()["engine"]["place_id"].as_str().expect("it has one").to_owned();
    let nodes: Vec<_> = [&a, &b].into_iter().chain(&takers).collect();
    let trace_of = |spans: &Spans, id: u64| {
        let of_task = spans.all_named(ATTEMPT).into_iter();
        let mut of_task = of_task.filter(|span| *span.attribute("tracer.cluster_task_id") == format!("{place}-{id}"));
        of_task.next().expect("it has an attempt").trace_id().to_owned()
    };
    let all = spans_of(&nodes);
    all.assert_whole(&[]);
    let mut traces = Vec::new();
    for (id, (point, last)) in ids.iter().zip(POINTS) {
        let trace = trace_of(&all, *id);
        let expected: Vec<_> =
            (1..=last).map(|number| (number, number == 1 || is_claim_alone(point, number))).collect();
        assert_eq!(shown_attempts(&nodes, (ATTEMPT, &trace)), expected, "{point}");
        traces.push(trace);
    }

    // The lost node comes back: its user's spans arrive under their own ids, below the attempt that it knew.
    b.run(b.start_command(&[])).success();
    let all = spans_of(&nodes);
    all.assert_whole(&[]);
    let of_b = b.spans();
    for (trace, (point, last)) in traces.iter().zip(POINTS) {
        let expected: Vec<_> = (1..=last).map(|number| (number, is_claim_alone(point, number))).collect();
        assert_eq!(shown_attempts(&nodes, (ATTEMPT, trace)), expected, "{point}");
        let of_trace = |name: &str| {
            let mut spans = of_b.all_named(name).into_iter().filter(|span| span.trace_id() == trace);
            spans.next().unwrap_or_else(|| panic!("{point}: no `{name}` among {}", of_b.describe()))
        };
        assert_eq!(of_trace("inner").parent_id(), Some(of_trace(ATTEMPT).span_id()), "{point}");
    }
}

#[test]
fn an_outcome_that_its_origin_has_heard_of_has_its_spans_whatever_dies_where_it_ran() {
    let Some(broker) = Broker::start() else { return };
    let (a, b) = (origin(&broker), serving(&broker, &["default".into()]).start());
    for number in 1..=4 {
        agent_pid(&b);
        let command = ["submit", "task", "--queue", "default", "misbehaving_tasks:makes_one_span", &number.to_string()];
        let run = a.tracer(&command);
        kill_all(&b);
        assert_eq!(run.success().stdout_text(), format!("{number}\n"));
        b.run(b.start_command(&[])).success();
        let spans = spans_of(&[&a, &b]);
        spans.assert_whole(&[]);
        for name in ["misbehaving_tasks.makes_one_span tracer.remote_worker", "inner"] {
            let found = spans.all_named(name);
            assert_eq!(found.len(), number, "{}", spans.describe());
            let is_whole = found.iter().all(|span| span.attribute("error.type").is_null());
            assert!(is_whole, "an attempt that has an outcome was not lost: {}", spans.describe());
        }
    }
}
