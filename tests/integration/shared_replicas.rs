//! Tasks of a queue on three current servers that keep three copies: they flow while one of the servers is killed and comes back.

use std::fs;
use std::path::PathBuf;

use serde_json::json;
use tracer::Driver;
use tracer::driver::Ticket;

use crate::support::{Broker, Cluster, HOOK};

/// Time that a submission waits: for a connection to go to another server, and for the streams to choose another leader.
const WAIT: &str = "--engine-wait=60s";
/// Tasks of each wave.
const WAVE: usize = 20;

/// Starts a node whose first server is this one. Without TLS it goes to the others only if it may.
fn node(broker: &Broker, workers: usize, flags: &[&str]) -> Cluster {
    let builder = Cluster::builder().workers(workers).hook(HOOK).arg("--address").arg(broker.address());
    flags.iter().fold(builder.arg("--insecure-engine").arg(WAIT), |builder, flag| builder.arg(flag)).start()
}

/// A task that notes its starts in a file.
struct Counted {
    ticket: Ticket,
    file: PathBuf,
}

/// Submits tasks, and waits until all are accepted.
fn submit_wave(a: &Cluster, driver: &mut Driver, name: &str) -> Vec<Counted> {
    let submit = |number: usize| {
        let file = a.file(&format!("{name}-{number}"));
        let task = driver.remote("misbehaving_tasks:notes_when").queue("default").arg(&file).expect("a path");
        Counted { ticket: task.at_most_once().submit().expect("its head runs"), file }
    };
    let wave: Vec<_> = (0..WAVE).map(submit).collect();
    for Counted { ticket, file } in &wave {
        driver.accepted(ticket).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
    wave
}

#[test]
fn each_task_ends_once_while_one_server_of_three_is_killed_and_comes_back() {
    let Some(mut brokers) = Broker::start_three() else { return };
    let (a, b) = (node(&brokers[0], 0, &[]), node(&brokers[1], 2, &["--queue=default=2"]));
    let c = node(&brokers[2], 2, &["--queue=default=2"]);
    let streams = brokers[0].jetstream("STREAM.INFO.TRACER_default_Q_default", &json!({}));
    assert_eq!(streams["config"]["num_replicas"], 3, "{streams}");
    let mut driver = Driver::connect(&a.temp_dir()).expect("its head runs");

    let mut tasks = submit_wave(&a, &mut driver, "before");
    // The server of the origin, and then the one of a node with workers.
    for killed in [0, 1] {
        brokers[killed].kill();
        tasks.extend(submit_wave(&a, &mut driver, &format!("without-{killed}")));
        brokers[killed].come_back();
        tasks.extend(submit_wave(&a, &mut driver, &format!("with-{killed}")));
    }
    let text = "0123456789abcdef".repeat(1 << 16);
    let echoed = driver.remote("nested_tasks:echo").queue("default").arg(&text).unwrap().submit().unwrap();
    assert!(driver.get::<String>(echoed).unwrap() == text, "1 MiB went through the engine and back");

    for Counted { ticket, file } in tasks {
        driver.get::<()>(ticket).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        assert_eq!(fs::read_to_string(&file).unwrap(), "begin\nend\n", "{}", file.display());
    }
    let ran = [&b, &c].map(|node| node.spans().iter().filter(|span| span.kind() == "SpanKind.CONSUMER").count());
    assert_eq!(ran.iter().sum::<usize>(), 5 * WAVE + 1, "each has one attempt: {ran:?}");
}
