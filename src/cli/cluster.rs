//! The engine that the head has joined, with all nodes and queues: what `list nodes`, `status` and `explain` show of it.

use tracer_core::count::{Count, Elapsed};
use tracer_core::queue::QueueBound;
use tracer_ipc::protocol::{ClusterReport, NodeReport, QueueReport};

use super::report;

/// Renders all of it: the nodes, the queues, and the engine itself.
pub(super) fn render(cluster: &ClusterReport) -> String {
    let mut text = report::table(
        ["NODE", "STATE", "HEARD", "QUEUES", "FREE", "CLOCK", "VERSION", "PLACE"],
        cluster.nodes.iter().map(|node| {
            [
                node.node_id.clone(),
                if node.is_alive { "alive" } else { "silent" }.to_owned(),
                format!("{} ago", Elapsed::from_nanos(node.heard_ns)),
                match node.shared_commands {
                    true => format!("{} (commands too)", node.queues.join(", ")),
                    false => node.queues.join(", "),
                },
                format!("{} of {}", node.free, node.slots),
                clock(node),
                node.version.clone(),
                node.place_id.clone(),
            ]
        }),
    );
    if cluster.unread_nodes > 0 {
        let nodes = Count(cluster.unread_nodes, "node");
        text.push_str(&format!("and {nodes} of another version, whose heartbeats cannot be read here\n"));
    }
    if !cluster.queues.is_empty() {
        text.push('\n');
        text.push_str(&report::table(
            ["QUEUE", "WAITING", "RUNNING", "A TASK MAY ASK FOR", "SERVED BY"],
            cluster.queues.iter().map(|queue| {
                let (waiting, held) = (queue.waiting.to_string(), queue.held.to_string());
                [queue.name.clone(), waiting, held, bound(queue).to_string(), served_by(queue)]
            }),
        ));
    }
    if !cluster.unanswered.is_empty() {
        text.push_str(&format!("without {}, whose servers do not answer\n", cluster.unanswered.join(", ")));
    }
    text.push_str(&format!("\n{}\n", engine_line(cluster)));
    text
}

/// Returns how far the clock of a node is ahead of the engine's, with the most by which that is wrong.
fn clock(node: &NodeReport) -> String {
    match (node.clock_offset_ns, node.clock_error_ns) {
        (Some(offset_ns), Some(error_ns)) => {
            let sign = if offset_ns < 0 { '-' } else { '+' };
            let [offset, error] = [offset_ns.unsigned_abs(), error_ns].map(Elapsed::from_nanos);
            format!("{sign}{offset} ± {error}")
        }
        _ => "-".to_owned(),
    }
}

fn engine_line(cluster: &ClusterReport) -> String {
    let ClusterReport { address, engine, version, replicas, .. } = cluster;
    let copies = match replicas {
        0 => "no records yet".to_owned(),
        1 => "one copy of each record".to_owned(),
        copies => format!("{copies} copies of each record"),
    };
    format!("{engine} {version} at {address}, {copies}")
}

/// Returns the most that a task of a queue may ask for.
fn bound(queue: &QueueReport) -> QueueBound {
    QueueBound { num_cpus: queue.num_cpus, resources: queue.resources.clone().into_iter().collect() }
}

/// Names the nodes that serve a queue. Where commands wait that none of them runs, that is said.
fn served_by(queue: &QueueReport) -> String {
    let mut nodes = match queue.served_by.join(", ") {
        nobody if nobody.is_empty() => "nobody".into(),
        nodes => nodes,
    };
    if queue.waiting_commands > 0 && queue.commands_run_by.is_empty() && !queue.served_by.is_empty() {
        nodes.push_str(&format!("; {} for nobody", Count(queue.waiting_commands as usize, "command")));
    }
    nodes
}

/// Returns what `status` says of it, in two of its lines.
pub(super) fn status_lines(cluster: &ClusterReport) -> [(&'static str, String); 2] {
    let living: Vec<_> = cluster.nodes.iter().filter(|node| node.is_alive).map(|node| &*node.node_id).collect();
    let mut nodes = match living.len() {
        0 => "none is alive".to_owned(),
        count => format!("{count} alive ({})", living.join(", ")),
    };
    let silent = cluster.nodes.len() - living.len() + cluster.unread_nodes;
    if silent > 0 {
        nodes.push_str(&format!(", {silent} silent or of another version"));
    }
    let queues: Vec<_> = cluster
        .queues
        .iter()
        .map(|queue| {
            let QueueReport { name, waiting, held, .. } = queue;
            let up_to = match bound(queue) {
                plain if plain == QueueBound::default() => String::new(),
                bound => format!(" tasks of up to {bound},"),
            };
            let stuck =
                queue.problem.as_ref().map(|problem| format!("; it stands still: {problem}")).unwrap_or_default();
            format!("{name}:{up_to} {waiting} waiting, {held} running, served by {}{stuck}", served_by(queue))
        })
        .collect();
    let queues = if queues.is_empty() { "none".to_owned() } else { queues.join("\n") };
    [("nodes", nodes), ("all queues", queues)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> ClusterReport {
        let node = |node_id: &str, is_alive: bool| NodeReport {
            node_id: node_id.into(),
            place_id: "k3f9a2m4q7cxw".into(),
            version: "0.1.0".into(),
            is_alive,
            heard_ns: 2_000_000_000,
            queues: vec!["default".into()],
            slots: 2,
            free: 1,
            shared_commands: node_id == "a",
            modules: Vec::new(),
            modules_left_out: 0,
            clock_offset_ns: is_alive.then_some(-5_000_000_000),
            clock_error_ns: is_alive.then_some(80_000),
        };
        let queue = |name: &str, served_by: Vec<String>| QueueReport {
            name: name.into(),
            waiting: 3,
            held: 1,
            bytes: 100,
            max_bytes: None,
            replicas: 1,
            served_by,
            num_cpus: if name == "gpu" { 4 } else { 1 },
            resources: if name == "gpu" { [("gpu".into(), 1)].into() } else { [].into() },
            waiting_commands: 2,
            commands_run_by: Vec::new(),
            problem: None,
        };
        ClusterReport {
            address: "nats://127.0.0.1".into(),
            engine: "nats-server".into(),
            version: "2.9.10".into(),
            replicas: 3,
            nodes: vec![node("a", true), node("b", false)],
            queues: vec![queue("default", vec!["a".into()]), queue("gpu", Vec::new())],
            unread_nodes: 1,
            unanswered: vec!["TRACER_default_Q_c".into()],
        }
    }

    #[test]
    fn a_queue_that_nobody_serves_and_what_is_left_out_are_said() {
        let text = render(&cluster());
        let lines: Vec<_> = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            lines,
            [
                "NODE STATE HEARD QUEUES FREE CLOCK VERSION PLACE",
                "a alive 2 s ago default (commands too) 1 of 2 -5 s ± 80 µs 0.1.0 k3f9a2m4q7cxw",
                "b silent 2 s ago default 1 of 2 - 0.1.0 k3f9a2m4q7cxw",
                "and 1 node of another version, whose heartbeats cannot be read here",
                "",
                "QUEUE WAITING RUNNING A TASK MAY ASK FOR SERVED BY",
                "default 3 1 1 cpu a; 2 commands for nobody",
                "gpu 3 1 4 cpus, gpu=1 nobody",
                "without TRACER_default_Q_c, whose servers do not answer",
                "",
                "nats-server 2.9.10 at nats://127.0.0.1, 3 copies of each record",
            ]
        );
        let [(_, nodes), (_, queues)] = status_lines(&cluster());
        assert_eq!(nodes, "1 alive (a), 2 silent or of another version");
        assert_eq!(
            queues.lines().nth(1),
            Some("gpu: tasks of up to 4 cpus, gpu=1, 3 waiting, 1 running, served by nobody")
        );
    }
}
