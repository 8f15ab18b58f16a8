//! Idempotency keys with a queue: the same key is the same task on every node, whoever dies in between.

use std::fs;

use serde_json::{Value, json};

use super::engine::{agent_pid, holder, origin};
use crate::support::{Broker, Cluster, wait_until};

/// The task of a key, which says in a file that it starts and waits for another one.
struct Keyed {
    starts: String,
    released: String,
}

impl Keyed {
    fn of(cluster: &Cluster) -> Keyed {
        let path = |name| json!(cluster.file(name)).to_string();
        Keyed { starts: path("starts"), released: path("released") }
    }

    fn command<'c>(&'c self, flags: &[&'c str]) -> Vec<&'c str> {
        let command = ["submit", "task", "--queue=default", "--idempotency-key=day 1/ü"];
        let target = ["misbehaving_tasks:counts_and_waits", &self.starts, &self.released];
        [&command[..], flags, &target].concat()
    }

    fn submit(&self, cluster: &Cluster) -> u64 {
        let run = cluster.tracer(&self.command(&["--no-wait"])).success();
        run.stdout_text().trim().parse().expect("an id")
    }

    /// Returns how often it was started.
    fn starts(&self, cluster: &Cluster) -> usize {
        fs::read_to_string(cluster.file("starts")).map_or(0, |text| text.lines().count())
    }
}

/// Returns how many messages the queue has.
fn in_queue(broker: &Broker) -> Value {
    broker.jetstream("STREAM.INFO.TRACER_default_Q_default", &Value::Null)["state"]["messages"].clone()
}

#[test]
fn the_same_key_on_two_nodes_is_one_run_and_both_have_its_result() {
    let Some(broker) = Broker::start() else { return };
    let (holding, a, b) = (holder(&broker), origin(&broker), origin(&broker));
    for cluster in [&holding, &a, &b] {
        agent_pid(cluster);
    }
    let keyed = Keyed::of(&a);
    let of_a = keyed.submit(&a);
    holding.wait_for_file(&a.file("starts"));
    let of_b = keyed.submit(&b);
    assert_eq!(keyed.submit(&a), of_a, "a head knows its own keys");
    wait_until("the other node says that it runs", || (b.task(of_b)["state"] == "running").then_some(()));
    assert_eq!(in_queue(&broker), 1);
    fs::write(a.file("released"), "").expect("the folder is ours");
    let ends = [a.wait_for_task(of_a), b.wait_for_task(of_b)];
    for end in &ends {
        assert_eq!((&end["state"], &end["result"]), (&json!("succeeded"), &json!(1)), "{end}");
    }
    assert_eq!((keyed.starts(&a), holding.tasks().len()), (1, 1));
    // After its end too, on a node that has never heard of it.
    let c = origin(&broker);
    assert_eq!(c.tracer(&keyed.command(&[])).success().stdout_text(), "1\n");
    assert_eq!(holding.tasks().len(), 1);

    let other = ["submit", "task", "--queue=default", "--idempotency-key=day 1/ü", "demo:my_function"];
    let d = origin(&broker);
    for _ in 0..2 {
        d.tracer(&other)
            .status(1)
            .stderr_contains("the idempotency key `day 1/ü` names task ")
            .stderr_contains("another one");
    }
    d.tracer(&keyed.command(&[])).success();
}

#[test]
fn an_origin_that_is_killed_between_its_key_and_its_message_has_its_task_run_once_by_who_submits_it_again() {
    let Some(broker) = Broker::start() else { return };
    let holding = holder(&broker);
    agent_pid(&holding);
    // Its agents die there again and again.
    let a =
        Cluster::builder().workers(0).env("TRACER_TEST_KILL_AT", "key_entered").arg("--address").arg(broker.address());
    let a = a.start();
    agent_pid(&a);
    let keyed = Keyed::of(&holding);
    let submitting = a.tracer_in_background(&keyed.command(&["--no-wait"]));
    wait_until("the key is entered", || {
        let keys = broker.jetstream("STREAM.INFO.TRACER_default_KEY", &Value::Null)["state"]["messages"].clone();
        (keys == 1).then_some(())
    });
    wait_until("its agent has died", || (a.status()["engine"]["restarts"].as_u64() > Some(0)).then_some(()));
    a.kill_head_and_guard();
    drop(submitting);
    assert_eq!(in_queue(&broker), 0, "nothing was published");
    fs::write(holding.file("released"), "").expect("the folder is ours");

    let b = origin(&broker);
    let run = b.tracer(&keyed.command(&[])).success();
    assert_eq!(run.stdout_text(), "1\n");
    assert_eq!((keyed.starts(&holding), holding.tasks().len()), (1, 1));
    // The record is that of the first submission, whose head comes back to it.
    let mut start = a.start_command(&[]);
    start.env_remove("TRACER_TEST_KILL_AT");
    a.run(start).success();
    let task = a.wait_for_task(1);
    assert_eq!((&task["state"], &task["result"]), (&json!("succeeded"), &json!(1)), "{task}");
    assert_eq!((keyed.starts(&holding), holding.tasks().len()), (1, 1), "it ran once");
}
