//! Nodes that stop while they have tasks of queues: they take nothing new, what runs gets its grace, and the rest begins elsewhere at once.

use std::fs;

use rustix::process::Signal;
use serde_json::json;

use crate::engine::{agent_pid, holder, origin};
use crate::partitions::Waiting;
use crate::support::{Background, Broker, Cluster, HOOK, wait_until};

fn starts(path: &std::path::Path) -> usize {
    fs::read_to_string(path).unwrap_or_default().lines().count()
}

/// A node that has a task which runs and one that waits for its next attempt is told to stop by `stop`, and ends by the returned process.
fn drains(b: &Cluster, broker: &Broker, stop: impl FnOnce() -> Background) {
    let a = origin(broker);
    agent_pid(b);
    let counted = a.file("counted");
    let [path, fails] = [json!(counted).to_string(), "1".into()];
    let retried = ["submit", "task", "--queue", "default", "--no-wait", "--retries=1", "--retry-backoff=1h"];
    let target = ["misbehaving_tasks:fails_at_first", &path, &fails];
    let retried = a.tracer(&[&retried[..], &target].concat()).success().stdout_text().trim().parse().expect("an id");
    wait_until("it has failed once", || (starts(&counted) == 1).then_some(()));
    let running = Waiting::submit(&a, "running", &["--queue", "default"]);
    let process = running.wait_for_process(None);
    // Nobody else was there before.
    let c = holder(broker);
    agent_pid(&c);

    let stopping = stop();
    // The engine would deliver it by itself only when its node does not hold it any more, which it does for as long as the other one runs.
    let task = a.wait_for_task(retried);
    assert_eq!(
        (&task["state"], &task["attempt"], &task["result"]),
        (&json!("succeeded"), &json!(2), &json!(2)),
        "{task}"
    );
    assert_eq!(starts(&counted), 2);
    let new = Waiting::submit(&a, "new", &["--queue", "default"]);
    let by = new.wait_for_process(None);
    assert!(c.worker_pids().contains(&by), "what is new goes to the other one");
    new.go();
    assert_eq!(a.task(running.id)["state"], "running");
    running.go();
    let task = a.wait_for_task(running.id);
    assert_eq!((&task["attempt"], &task["result"]), (&json!(1), &json!(process)), "it had its grace: {task}");
    stopping.wait().success();
    b.assert_nothing_runs();
    assert_eq!(a.wait_for_task(new.id)["attempt"], 1);
}

#[test]
fn a_node_that_is_told_to_stop_takes_nothing_new_finishes_what_runs_and_gives_the_rest_back() {
    let Some(broker) = Broker::start() else { return };
    let b = holder(&broker);
    drains(&b, &broker, || b.tracer_in_background(&["stop", "--grace-period", "60s"]));
}

#[test]
fn a_node_that_gets_sigterm_takes_nothing_new_finishes_what_runs_and_gives_the_rest_back() {
    let Some(broker) = Broker::start() else { return };
    let builder = Cluster::builder().workers(2).hook(HOOK).arg("--address").arg(broker.address());
    let b = builder.arg("--queue=default=2").build();
    let head = b.spawn(b.start_command(&["--block"]));
    head.wait_for_stderr("Ctrl-C");
    drains(&b, &broker, || {
        head.signal(Signal::TERM);
        head
    });
}
