//! Tasks of queues that somebody ends at another node than the one that submitted them, which may be there, stopped for a while, or gone.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::engine::{agent_pid, holder, origin, submit_blocked};
use crate::shared_deaths::{in_cluster, place_of, signal_all, starts, submit_counted, with_busy_slots};
use crate::support::{Broker, Cluster, wait_until};

/// Cancels a task by its id in the cluster, and returns what is said of it.
#[track_caller]
fn cancel(node: &Cluster, id: &str, flags: &[&str]) -> Value {
    let said = node.tracer(&[&["cancel", id, "--format", "json"], flags].concat()).success().json();
    assert_eq!(said["tasks"][0]["cluster_task_id"], id, "{said}");
    said["tasks"][0]["state"].clone()
}

/// Waits until any node says of a task that it was cancelled.
#[track_caller]
fn wait_until_cancelled(node: &Cluster, id: &str) {
    wait_until("its record says that it was cancelled", || {
        let found = node.tracer(&["get", id, "--format", "json"]).success().json();
        (found["state"] == "cancelled").then_some(())
    });
}

#[test]
fn a_task_that_waits_and_one_that_runs_are_ended_from_a_node_that_has_nothing_to_do_with_them() {
    let Some(broker) = Broker::start() else { return };
    let (b, a, running) = with_busy_slots(&broker, &[]);
    let c = origin(&broker);
    agent_pid(&c);
    let path = a.file("counted");
    let waiting = submit_counted(&a, &[], &path).expect("it is accepted");
    let place = place_of(&a);
    let [id, other] = [waiting, running[0].0].map(|id| in_cluster(&place, id));

    assert_eq!(cancel(&c, &id, &[]), "cancelling");
    assert_eq!(a.wait_for_task(waiting)["state"], "cancelled");
    assert_eq!(cancel(&c, &id, &[]), "ended");
    c.tracer(&["cancel", &id]).success().stderr_contains(&format!("task {id} had ended before"));
    // Each side of a running one sees how far it is: it does not ask whether it is to end.
    let said = c.tracer(&["cancel", &other, "--grace", "1h"]).success();
    said.stderr_contains(&format!("task {other} is being cancelled; `tracer get {other}` shows how far that is"));
    for (node, number) in [(&a, running[0].0), (&b, 1)] {
        wait_until("the step is seen", || (node.task(number)["state"] == "cancelling").then_some(()));
    }
    assert_eq!(cancel(&b, &other, &["--grace", "0s"]), "cancelling");
    let task = a.wait_for_task(running[0].0);
    assert_eq!((&task["state"], &task["failure"]["reason"]), (&json!("cancelled"), &json!("cancelled")), "{task}");
    wait_until_cancelled(&c, &other);

    // What was meant for nobody has touched nobody.
    fs::write(&running[1].1[1], "").expect("the folder is ours");
    assert_eq!(a.wait_for_task(running[1].0)["state"], "succeeded");
    assert_eq!(starts(&path), 0);
    let never = in_cluster(&place, 1_000);
    c.tracer(&["cancel", &never])
        .status(1)
        .stderr_contains(&format!("has no task {never}: it was never put"))
        .stderr_contains("(hint: ");
}

#[test]
fn a_task_whose_own_node_is_gone_is_ended_by_its_record_and_that_node_sees_it_when_it_is_back() {
    let Some(broker) = Broker::start() else { return };
    let (b, a, running) = with_busy_slots(&broker, &[]);
    let path = a.file("counted");
    let waiting = submit_counted(&a, &[], &path).expect("it is accepted");
    let place = place_of(&a);
    let [id, other] = [waiting, running[0].0].map(|id| in_cluster(&place, id));
    signal_all(&a, Signal::KILL);
    wait_until("the origin is gone", || a.processes().is_empty().then_some(()));

    assert_eq!(cancel(&b, &id, &[]), "cancelled");
    assert_eq!(cancel(&b, &other, &["--grace", "0s"]), "cancelling");
    [&id, &other].iter().for_each(|id| wait_until_cancelled(&b, id));
    assert_eq!(cancel(&b, &id, &[]), "ended");
    fs::write(&running[1].1[1], "").expect("the folder is ours");
    a.start_head(&[]).success();
    for task in [waiting, running[0].0] {
        let task = a.wait_for_task(task);
        assert_eq!((&task["state"], &task["failure"]["reason"]), (&json!("cancelled"), &json!("cancelled")), "{task}");
    }
    assert_eq!(a.wait_for_task(running[1].0)["state"], "succeeded");
    assert_eq!(starts(&path), 0);
    for node in [&a, &b] {
        node.stop().success();
        node.assert_nothing_runs();
    }
    crate::shared_spans::spans_of(&[&a, &b]).assert_whole(&[]);
}

#[test]
fn who_cannot_end_a_task_is_told_why() {
    let Some(mut broker) = Broker::start() else { return };
    let (b, a) = (holder(&broker), origin(&broker));
    agent_pid(&b);
    let (task, [started, go]) = submit_blocked(&a, &[], "one");
    b.wait_for_file(started.as_ref());
    let id = in_cluster(&place_of(&a), task);
    let alone = Cluster::untraced();
    alone
        .tracer(&["cancel", &id])
        .status(1)
        .stderr_contains("this head has joined no engine")
        .stderr_contains("(hint: ");
    broker.kill();
    wait_until("the node has seen that", || (b.status()["engine"]["is_reachable"] == false).then_some(()));
    let text = format!("task {id} cannot be cancelled now");
    let run = b.tracer(&["cancel", &id, "--format", "json"]).status(1);
    assert!(run.json()["error"]["message"].as_str().is_some_and(|why| why.contains(&text)), "{}", run.describe());
    broker.come_back();
    fs::write(go, "").expect("the folder is ours");
    assert_eq!(a.wait_for_task(task)["state"], "succeeded");
}

#[test]
fn a_running_task_that_was_cancelled_is_not_begun_again_although_its_own_node_and_the_one_that_ran_it_are_lost() {
    let Some(broker) = Broker::start() else { return };
    let (b, a) = (holder(&broker), origin(&broker));
    agent_pid(&b);
    let (task, [started, _]) = submit_blocked(&a, &[], "one");
    b.wait_for_file(started.as_ref());
    let id = in_cluster(&place_of(&a), task);
    let c = holder(&broker);
    agent_pid(&c);
    for node in [&a, &b] {
        signal_all(node, Signal::KILL);
        wait_until("it is gone", || node.processes().is_empty().then_some(()));
    }
    assert_eq!(cancel(&c, &id, &[]), "cancelling");
    assert_eq!(cancel(&c, &id, &[]), "cancelling", "so it is until somebody takes it over");

    fs::remove_file(&started).expect("the folder is ours");
    // A new life of the node that had it is a reason to take it over.
    b.start_head(&[]).success();
    wait_until_cancelled(&c, &id);
    a.start_head(&[]).success();
    let ended = a.wait_for_task(task);
    assert_eq!((&ended["state"], &ended["failure"]["reason"]), (&json!("cancelled"), &json!("cancelled")), "{ended}");
    assert!(!std::path::Path::new(&started).exists(), "another attempt has begun");
    for node in [&a, &b, &c] {
        node.stop().success();
        node.assert_nothing_runs();
    }
    crate::shared_spans::spans_of(&[&a, &b, &c]).assert_whole(&[]);
}
