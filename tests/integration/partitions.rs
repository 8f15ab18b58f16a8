//! Nodes that their engine does not hear for a while, although both live: what they run of queues goes on, or ends if they were told so.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::engine::{agent_pid, origin};
use crate::support::{Broker, Builder, Cluster, HOOK, Relay, is_alive, wait_until, wait_until_within};

/// Name of the spans of attempts in these tests.
pub(crate) const ATTEMPT: &str = "misbehaving_tasks.waits tracer.remote_worker";
/// Time that it may take until a cut-off node has noticed, or until its tasks are another one's.
const NOTICED: Duration = Duration::from_secs(60);

/// Returns a node that runs tasks of the queue `default`, and does this when the engine does not hear it.
pub(crate) fn holder_that(on_partition: &str, address: &str) -> Builder {
    let builder = Cluster::builder().workers(2).hook(HOOK).arg("--address").arg(address).arg("--queue=default=2");
    builder.arg("--on-partition").arg(on_partition)
}

/// A task that says in one file that it has begun, with the process that runs it, and waits for another one.
pub(crate) struct Waiting {
    pub(crate) id: u64,
    started: std::path::PathBuf,
    go: std::path::PathBuf,
}

impl Waiting {
    /// Submits one on a node.
    pub(crate) fn submit(on: &Cluster, name: &str, flags: &[&str]) -> Waiting {
        let [started, go] = ["started", "go"].map(|what| on.file(&format!("{name}-{what}")));
        let arguments = [&started, &go].map(|path| json!(path).to_string());
        let command = ["submit", "task", "--no-wait", "misbehaving_tasks:waits", &arguments[0], &arguments[1]];
        let run = on.tracer(&[&command[..], flags].concat()).success();
        Waiting { id: run.stdout_text().trim().parse().expect("an id"), started, go }
    }

    /// Returns the process that has begun it last, if one has.
    pub(crate) fn process(&self) -> Option<u32> {
        fs::read_to_string(&self.started).ok()?.parse().ok()
    }

    /// Waits until a process has begun it that is not this one.
    pub(crate) fn wait_for_process(&self, before: Option<u32>) -> u32 {
        wait_until_within(NOTICED, "a process has begun it", || self.process().filter(|pid| Some(*pid) != before))
    }

    /// Lets it end.
    pub(crate) fn go(&self) {
        fs::write(&self.go, "").expect("the folder is ours");
    }
}

fn warnings(node: &Cluster) -> String {
    node.status()["warnings"].to_string()
}

/// Waits until a node runs nothing of queues and is heard again.
pub(crate) fn wait_until_idle(node: &Cluster) {
    wait_until_within(NOTICED, "it is heard again, and runs nothing of queues", || {
        let engine = node.status()["engine"].clone();
        (engine["is_reachable"] == true && engine["imports"] == 0).then_some(())
    });
}

/// Returns the spans of attempts at a task of a node, on all these: each with its number, whether it stands in for another and its error.
pub(crate) fn attempts(on: &[&Cluster], origin: &Cluster, task: u64) -> Vec<(u64, bool, Value)> {
    let id = format!("{}-{task}", origin.status()["engine"]["place_id"].as_str().expect("it has one"));
    let mut found = Vec::new();
    for node in on {
        let spans = node.spans();
        let of_task =
            spans.all_named(ATTEMPT).into_iter().filter(|span| *span.attribute("tracer.cluster_task_id") == id);
        found.extend(of_task.map(|span| {
            let number = span.attribute("tracer.attempt").as_u64().expect("a number");
            (number, *span.attribute("tracer.stand_in") == json!(true), span.attribute("error.type").clone())
        }));
    }
    found.sort_by_key(|(number, is_stand_in, _)| (*number, *is_stand_in));
    found
}

/// Cuts a node off that holds a task, and was told to end it then, until another one has it, and expects that the two never run it at once.
pub(crate) fn ends_what_it_runs_when_cut_off(
    (origin, holder): (&Cluster, &Cluster),
    other: impl FnOnce() -> Cluster,
    cut: impl Fn(bool),
) {
    let shared = Waiting::submit(origin, "shared", &["--queue", "default", "--grace", "300ms"]);
    let local = Waiting::submit(holder, "local", &[]);
    let [first, of_local] = [&shared, &local].map(|task| task.wait_for_process(None));
    let other = other();
    agent_pid(&other);
    assert_eq!(holder.status()["engine"]["on_partition"], "stop");

    cut(true);
    wait_until_within(NOTICED, "its process is gone", || (!is_alive(first)).then_some(()));
    assert_eq!(shared.process(), Some(first), "before anybody else has begun it");
    let warning = "has not heard this node for 10 s, so 1 task of a queue is ended here (--on-partition stop)";
    let told = warnings(holder);
    assert!(told.contains(warning) && holder.head_log().contains(warning), "{told}");
    assert_eq!(holder.status()["engine"]["ended_on_partition"], 1);
    let second = shared.wait_for_process(Some(first));
    assert!(is_alive(of_local), "what is of no queue goes on");
    shared.go();
    let before = origin.wait_for_task(shared.id);
    assert_eq!(
        (&before["state"], &before["attempt"], &before["result"]),
        (&json!("succeeded"), &json!(2), &json!(second))
    );

    cut(false);
    wait_until_idle(holder);
    wait_until("it says so no more", || (!warnings(holder).contains("has not heard")).then_some(()));
    assert_eq!(origin.task(shared.id), before, "the outcome is that of the other node");
    local.go();
    let task = holder.wait_for_task(local.id);
    assert_eq!((&task["attempt"], &task["result"]), (&json!(1), &json!(of_local)), "{task}");
    let nodes = [origin, holder, &other];
    assert_eq!(
        attempts(&nodes, origin, shared.id),
        [(1, false, json!("superseded")), (1, true, json!("node:lost")), (2, false, Value::Null)]
    );
    // It goes on to take tasks.
    let again = Waiting::submit(origin, "again", &["--queue", "default"]);
    again.go();
    assert_eq!(origin.wait_for_task(again.id)["attempt"], 1);
}

#[test]
fn a_node_that_is_to_stop_when_the_engine_does_not_hear_it_ends_its_tasks_before_another_one_begins_them() {
    let Some(broker) = Broker::start() else { return };
    let relay = Relay::start(broker.port());
    let (a, b) = (origin(&broker), holder_that("stop", &relay.address()).start());
    agent_pid(&b);
    ends_what_it_runs_when_cut_off(
        (&a, &b),
        || holder_that("stop", &broker.address()).start(),
        |is_held| relay.hold(is_held),
    );
}

/// The broker is there and answers nobody: all nodes are cut off from each other.
#[test]
fn tasks_that_were_ended_while_the_engine_answered_nobody_begin_again_when_it_is_back() {
    let Some(broker) = Broker::start() else { return };
    let (a, stops) = (origin(&broker), holder_that("stop", &broker.address()).start());
    agent_pid(&stops);
    let ended = Waiting::submit(&a, "ended", &["--queue", "default", "--grace", "0s"]);
    let first = ended.wait_for_process(None);
    let once = Waiting::submit(&a, "once", &["--queue", "default", "--at-most-once"]);
    once.wait_for_process(None);
    broker.signal(Signal::STOP);
    wait_until_within(NOTICED, "its process is gone", || (!is_alive(first)).then_some(()));
    assert_eq!(ended.process(), Some(first), "nobody can have it");
    broker.signal(Signal::CONT);
    ended.wait_for_process(Some(first));
    ended.go();
    let task = a.wait_for_task(ended.id);
    assert_eq!((&task["state"], &task["attempt"]), (&json!("succeeded"), &json!(2)), "{task}");
    assert_eq!(
        attempts(&[&a, &stops], &a, ended.id),
        [(1, false, json!("superseded")), (2, false, Value::Null)],
        "its own node has written its span, so nothing stands in for it"
    );
    let task = a.wait_for_task(once.id);
    assert_eq!(task["failure"]["reason"], "lost", "{task}");
}

#[test]
fn a_node_that_the_engine_does_not_hear_goes_on_unless_it_was_told_to_stop() {
    let Some(broker) = Broker::start() else { return };
    let relay = Relay::start(broker.port());
    let (a, b) = (origin(&broker), holder_that("continue", &relay.address()).start());
    let task = Waiting::submit(&a, "goes-on", &["--queue", "default"]);
    let first = task.wait_for_process(None);
    relay.hold(true);
    wait_until_within(NOTICED, "the node has noticed", || {
        (b.status()["engine"]["is_reachable"] == false).then_some(())
    });
    assert!(!warnings(&b).contains("--on-partition"));
    relay.hold(false);
    agent_pid(&b);
    assert!(is_alive(first));
    task.go();
    let task = a.wait_for_task(task.id);
    assert_eq!((&task["state"], &task["attempt"], &task["result"]), (&json!("succeeded"), &json!(1), &json!(first)));
}
