//! Tasks of a queue that wait for tasks of that queue, on two nodes that both run them.

use serde_json::json;

use crate::support::{Broker, Cluster, HOOK, Spans};

/// The depth at which tasks wait for one another.
const DEPTH: u64 = 50;

/// Starts a node with one slot that runs tasks of the queue.
fn node(broker: &Broker, max_processes: &str) -> Cluster {
    let node = Cluster::builder().workers(1).hook(HOOK).arg("--max-processes").arg(max_processes);
    node.arg("--address").arg(broker.address()).arg("--queue=default").submits_to("default").start()
}

/// Has tasks wait for one another as deep as [`DEPTH`], each of which is in the queue, and returns their spans and the nodes.
#[track_caller]
fn descend(max_processes: &str) -> Option<(Spans, [Cluster; 2], Broker)> {
    let broker = Broker::start()?;
    let nodes = [node(&broker, max_processes), node(&broker, max_processes)];
    let run = nodes[0].submit("nested_tasks:descend_over", &["\"default\"", &DEPTH.to_string()]);
    assert_eq!(run.success().json(), json!(DEPTH));
    let all = nodes.each_ref().map(Cluster::spans);
    let spans = Spans { spans: all.into_iter().flat_map(|spans| spans.spans).collect(), ..Spans::default() };
    spans.assert_whole(&[]);
    assert_eq!(spans.all_named("nested_tasks.descend_over tracer.remote_worker").len(), DEPTH as usize + 1);
    for node in &nodes {
        assert_eq!(node.status()["workers"]["lost"], 0);
    }
    Some((spans, nodes, broker))
}

#[test]
fn fifty_deep_on_two_nodes_with_one_slot_each() {
    let Some((spans, nodes, _broker)) = descend("60") else { return };
    let runs = spans.all_named("nested_tasks.descend_over tracer.remote_worker");
    for node in nodes {
        let node_id = node.status()["node_id"].clone();
        assert!(runs.iter().any(|run| *run.attribute("tracer.node_id") == node_id), "each of them has run some");
    }
}

#[test]
fn fifty_deep_where_no_further_process_may_be_had() {
    for max_processes in ["1", "2"] {
        let Some((spans, _nodes, _broker)) = descend(max_processes) else { return };
        let runs = spans.all_named("nested_tasks.descend_over tracer.remote_worker");
        let processes = runs.iter().map(|run| &run.file).collect::<std::collections::HashSet<_>>().len();
        assert!(processes <= 2 * max_processes.parse::<usize>().unwrap(), "{processes} processes ran them");
    }
}

/// Returns how many messages the queue has had.
fn messages(broker: &Broker) -> u64 {
    let of = |stream: &str| {
        let info = broker.jetstream(&format!("STREAM.INFO.TRACER_default_{stream}_default"), &json!({}));
        info["state"]["last_seq"].as_u64().expect("it has a sequence")
    };
    of("Q") + of("Q2")
}

#[test]
fn fifty_deep_where_what_is_waited_for_is_in_bundles_and_no_further_process_may_be_had() {
    let Some(broker) = Broker::start() else { return };
    let nodes = [node(&broker, "1"), node(&broker, "1")];
    // Each node knows how short they are.
    for node in &nodes {
        node.submit("nested_tasks:descend_among", &["\"default\"", "0", "--no-wait"]).success();
        node.wait_for_task(1);
    }
    let before = messages(&broker);
    let run = nodes[0].submit("nested_tasks:descend_among", &["\"default\"", &DEPTH.to_string(), "--timeout=100s"]);
    assert_eq!(run.success().json(), json!(DEPTH));
    let sent = messages(&broker) - before;
    assert!(sent < 4 * DEPTH, "{sent} messages for {} tasks", 4 * DEPTH + 1);
    for node in &nodes {
        assert_eq!(node.status()["workers"]["lost"], 0);
    }
}
