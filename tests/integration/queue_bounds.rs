//! Bounds of queues, the most that their tasks may ask for: who says it, who is refused, and that a node takes what fits.

use serde_json::{Value, json};

use super::engine::origin;
use crate::support::{Broker, Cluster, HOOK, Run, wait_until};

fn node(broker: &Broker, workers: usize, flags: &[&str]) -> (Cluster, Run) {
    let node = Cluster::builder().workers(workers).hook(HOOK).arg("--address").arg(broker.address());
    flags.iter().fold(node, |node, flag| node.arg(flag)).try_start()
}

#[track_caller]
fn engine(cluster: &Cluster, broker: &Broker, arguments: &[&str]) -> Run {
    cluster.tracer(&[&["engine"], arguments, &["--address", &broker.address()]].concat())
}

#[test]
fn a_queue_says_what_its_tasks_may_ask_for_and_keeps_it() {
    let Some(broker) = Broker::start() else { return };
    let origin = origin(&broker);
    let address = broker.address();
    engine(&origin, &broker, &["queue", "gpu", "--num-cpus=2"]).status(1).stderr_contains(&format!(
        "the engine at `{address}` has no queue `gpu`\n(hint: `tracer engine init --address {address} --queue gpu` makes it)"
    ));
    engine(&origin, &broker, &["init", "--queue=gpu"]).success();
    let show = || engine(&origin, &broker, &["queue", "gpu"]).success().stdout_text();
    assert_eq!(show(), "a task of the queue `gpu` may ask for 1 cpu\n");
    let said = engine(&origin, &broker, &["queue", "gpu", "--num-cpus=2", "--resource=gpu=1", "--format=json"]);
    let expected = json!({ "num_cpus": 2, "resources": { "gpu": 1 } });
    let said = said.success().json();
    assert_eq!((&said["num_cpus"], &said["resources"]), (&expected["num_cpus"], &expected["resources"]));
    assert_eq!(show(), "a task of the queue `gpu` may ask for 2 cpus, gpu=1\n");

    // What is refused never runs, and what makes the queue again leaves the bound.
    let submit =
        |flags: &[&str]| origin.tracer(&[&["submit", "task", "--queue=gpu", "demo:my_function"], flags].concat());
    submit(&["--num-cpus=3", "--resource=tpu=1"]).status(1).stderr_contains(&format!(
        "the task asks for 3 cpus, tpu=1, but one of the queue `gpu` may ask for 2 cpus, gpu=1\n(hint: ask for less, or have it permitted: \
         `tracer engine queue gpu --address {address} --num-cpus 3 --resource gpu=1 --resource tpu=1`)"
    ));
    let small = node(&broker, 1, &["--queue=gpu"]).1.status(1);
    small.stderr_contains(
        "a task of the queue `gpu` may ask for 2 cpus, gpu=1, but this node has 1 cpu\n\
         (hint: start it with `--num-workers 2 --resources gpu=1`, or without this queue)",
    );
    let (holder, run) = node(&broker, 2, &["--queue=gpu", "--resources=gpu=1"]);
    run.success();
    submit(&["--num-cpus=2", "--resource=gpu=1"]).success().stdout("1\n");
    submit(&["--memory=64MiB"]).success().stdout("1\n");
    let nodes = origin.tracer(&["list", "nodes", "--format=json"]).success().json();
    let queue = &nodes["queues"][0];
    assert_eq!((&queue["num_cpus"], &queue["resources"]), (&expected["num_cpus"], &expected["resources"]), "{queue}");
    origin.tracer(&["list", "nodes"]).success().stdout_contains("2 cpus, gpu=1");
    origin.tracer(&["status"]).success().stdout_contains("gpu: tasks of up to 2 cpus, gpu=1, ");
    engine(&origin, &broker, &["init", "--queue=gpu"]).success();
    assert_eq!(show(), "a task of the queue `gpu` may ask for 2 cpus, gpu=1\n");
    assert_eq!(holder.tasks().len(), 2);
}

#[test]
fn a_queue_whose_tasks_may_ask_for_more_than_a_node_has_is_left_to_others() {
    let Some(broker) = Broker::start() else { return };
    let origin = origin(&broker);
    let (small, run) = node(&broker, 1, &["--queue=default"]);
    run.success();
    let small_name = small.status()["node_id"].as_str().expect("it has a name").to_owned();
    wait_until("its heartbeat tells what it has", || {
        let nodes = origin.tracer(&["list", "nodes", "--format=json"]).success().json();
        let is_it = |node: &Value| node["node_id"] == *small_name && node["slots"] == 1;
        nodes["nodes"].as_array()?.iter().any(is_it).then_some(())
    });
    // Said while it serves the queue: it finds that out by the first task that it cannot run.
    engine(&origin, &broker, &["queue", "default", "--num-cpus=2"]).success();
    let finding = |word: &str| {
        let said = format!(
            "warning: a task of the queue `default` may ask for 2 cpus, but node `{small_name}`, which is to serve it, has 1 cpu: it takes nothing from it"
        );
        assert!(small.tracer(&["doctor"]).status(6).stdout_text().contains(&said), "{word}");
    };
    finding("at once, before the node has read it");
    let submit = |flags: &[&str]| {
        let run =
            origin.tracer(&[&["submit", "task", "--no-wait", "--queue=default", "demo:my_function"], flags].concat());
        run.success().stdout_text().trim().parse::<u64>().expect("an id")
    };
    let large = submit(&["--num-cpus=2"]);
    wait_until("it says so", || {
        let said = "nothing is taken from the queue `default`: a task of it may ask for 2 cpus, and this node does not have that much";
        small.head_log().contains(said).then_some(())
    });
    wait_until("nobody serves the queue", || {
        let why = origin.tracer(&["explain", &large.to_string()]).success().stdout_text();
        why.contains("no living node serves the queue `default`").then_some(())
    });
    finding("and after");
    let (_large, run) = node(&broker, 2, &["--queue=default"]);
    run.success();
    assert_eq!(origin.wait_for_task(large)["state"], "succeeded");
    assert_eq!(small.tasks().len(), 0);
}
