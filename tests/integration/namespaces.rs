//! An engine and nodes in networks of their own, where the kernel permits some: their links go down, and are up again.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::engine::agent_pid;
use crate::partitions::{ATTEMPT, Waiting, attempts, ends_what_it_runs_when_cut_off, wait_until_idle};
use crate::shared_spans::{shown_attempts, spans_of};
use crate::support::{Builder, Cluster, HOOK, Network, broker_program, in_network_of, wait_until};

/// A broker in a network of its own, with a link to each of three nodes. Dropped, it is killed.
struct Engine {
    network: Network,
    folder: tempfile::TempDir,
    broker: Child,
}

impl Engine {
    const PORT: u16 = 4222;

    /// Starts one, or skips the test.
    fn start() -> Option<Engine> {
        let program = broker_program()?;
        let network = Network::start(3)?;
        let folder = tempfile::tempdir().expect("a folder for the broker");
        let node = nkeys::KeyPair::new_user();
        let seed = folder.path().join("node.nk");
        fs::write(&seed, node.seed().expect("it was made here")).expect("the folder is ours");
        fs::set_permissions(&seed, Permissions::from_mode(0o600)).expect("the file is ours");
        let users = format!("authorization {{ users: [ {{ nkey: {} }} ] }}\n", node.public_key());
        let [configuration, log] = ["nats.conf", "log"].map(|name| folder.path().join(name));
        fs::write(&configuration, users).expect("the folder is ours");
        let mut command = in_network_of(network.of_engine());
        command.arg(program).arg("-c").arg(configuration).arg("-js").arg("-sd").arg(folder.path());
        command.args(["-a", "0.0.0.0", "-p", &Engine::PORT.to_string()]);
        command.stdout(Stdio::null()).stderr(File::create(&log).expect("the folder is ours"));
        let broker = command.spawn().expect("the broker starts");
        wait_until("the broker listens", || {
            fs::read_to_string(&log).unwrap_or_default().contains("Server is ready").then_some(())
        });
        Some(Engine { network, folder, broker })
    }

    /// Returns a node in a network of its own, over `nats://` beyond loopback.
    fn node(&self, at: usize) -> Builder {
        let (network, address) = self.network.of_node(at);
        let builder = Cluster::builder().hook(HOOK).in_network_of(network).arg("--insecure-engine");
        let builder = builder.arg("--credentials").arg(self.folder.path().join("node.nk"));
        builder.arg("--address").arg(format!("nats://{address}:{}", Engine::PORT))
    }

    fn origin(&self, at: usize) -> Cluster {
        self.node(at).workers(0).start()
    }

    fn holder(&self, at: usize, on_partition: &str) -> Cluster {
        let builder = self.node(at).workers(2).arg("--queue=default=2");
        let node = builder.arg("--on-partition").arg(on_partition).start();
        agent_pid(&node);
        node
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.broker.kill();
        let _ = self.broker.wait();
    }
}

#[test]
fn a_node_whose_link_is_down_is_replaced_and_its_outcome_counts_for_nothing_when_it_is_up_again() {
    let Some(engine) = Engine::start() else { return };
    let (a, b) = (engine.origin(0), engine.holder(1, "continue"));
    let task = Waiting::submit(&a, "task", &["--queue", "default"]);
    let first = task.wait_for_process(None);
    let c = engine.holder(2, "continue");
    engine.network.set_link(1, false);
    let cut = Instant::now();
    let second = task.wait_for_process(Some(first));
    // A message comes again ten seconds after it was held last, which was three before at the earliest; then its holder has to be silent for ten more.
    let silent = cut.elapsed();
    assert!((Duration::from_secs(15)..Duration::from_secs(50)).contains(&silent), "{silent:?}");
    // Both end: the one whose link is down cannot say so.
    task.go();
    let before = a.wait_for_task(task.id);
    let end = [&before["state"], &before["attempt"], &before["result"]];
    assert_eq!(end, [&json!("succeeded"), &json!(2), &json!(second)], "{before}");
    wait_until("it has ended where its link is down too", || (b.tasks()[0]["state"] == "succeeded").then_some(()));

    engine.network.set_link(1, true);
    wait_until_idle(&b);
    assert_eq!(a.task(task.id), before, "its outcome has changed nothing");
    let found = b.tracer(&["get", &in_cluster(&a, task.id), "--format", "json"]).success().json();
    assert_eq!((&found["node_id"], &found["attempt"]), (&c.status()["node_id"], &json!(2)), "{found}");
    let nodes = [&a, &b, &c];
    let numbers: Vec<_> = attempts(&nodes, &a, task.id).iter().map(|attempt| (attempt.0, attempt.1)).collect();
    assert_eq!(numbers, [(1, false), (1, true), (2, false)]);
    let spans = spans_of(&nodes);
    let trace = spans.all_named(ATTEMPT)[0].trace_id();
    assert_eq!(
        shown_attempts(&nodes, (ATTEMPT, trace)),
        [(1, false), (2, false)],
        "what stands in for a span that is there is not shown"
    );
}

fn in_cluster(origin: &Cluster, task: u64) -> String {
    format!("{}-{task}", origin.status()["engine"]["place_id"].as_str().expect("it has one"))
}

#[test]
fn a_node_whose_link_is_down_ends_its_tasks_before_another_one_begins_them_if_it_was_told_to() {
    let Some(engine) = Engine::start() else { return };
    let (a, b) = (engine.origin(0), engine.holder(1, "stop"));
    let cut = |is_cut: bool| engine.network.set_link(1, !is_cut);
    ends_what_it_runs_when_cut_off((&a, &b), || engine.holder(2, "stop"), cut);
}
