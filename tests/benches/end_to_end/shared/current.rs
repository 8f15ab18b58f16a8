//! One shared task and many of them on current servers that sync each write before they acknowledge it: on one, and on three that keep three copies.
//! Without `TRACER_CURRENT_NATS_SERVER` nothing is measured.

use std::net::TcpListener;
use std::time::Instant;

use super::super::cluster::{self, Cluster, Place};
use super::super::report::{self, Figure, Variant};
use super::super::{Failure, Run, driver, say};
use super::engine_alone::{self, Alone};
use super::{BUNDLE, BUNDLES, Broker, LISTENS};

/// Servers, and how many copies of everything they keep.
const SERVERS: [(&str, usize); 2] = [("synced", 1), ("three copies, synced", 3)];

pub(super) fn measure(run: &mut Run) -> Result<(), Failure> {
    let Some(program) = std::env::var_os("TRACER_CURRENT_NATS_SERVER") else {
        say("current servers are left out: TRACER_CURRENT_NATS_SERVER names none");
        return Ok(());
    };
    for (how, copies) in SERVERS {
        let brokers = start(&program.to_string_lossy(), copies)?;
        measure_on(run, &brokers[0], how, copies)?;
    }
    Ok(())
}

/// Starts servers that know each other, each in a folder of its own.
fn start(program: &str, servers: usize) -> Result<Vec<Broker>, Failure> {
    let listeners: Vec<_> = (0..2 * servers).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
    let ports =
        listeners.iter().map(|listener| Ok(listener.local_addr()?.port())).collect::<Result<Vec<_>, Failure>>()?;
    drop(listeners);
    let (ports, routes) = ports.split_at(servers);
    let run = |at: usize| {
        let others = routes.iter().filter(|route| **route != routes[at]);
        let others: Vec<_> = others.map(|route| format!("nats://127.0.0.1:{route}")).collect();
        let cluster = match servers {
            1 => String::new(),
            _ => format!(
                "server_name: bench-{at}\ncluster {{ name: bench, listen: 127.0.0.1:{}, routes: [ {} ] }}\n",
                routes[at],
                others.join(", ")
            ),
        };
        Broker::run(program, ports[at], "sync_interval: always", &cluster)
    };
    (0..servers).map(run).collect()
}

fn measure_on(run: &mut Run, broker: &Broker, how: &str, copies: usize) -> Result<(), Failure> {
    let (trips, tasks) = (run.effort.round_trips, run.effort.shared);
    let place = [Place::new()?, Place::new()?];
    let count = copies.to_string();
    let init = ["engine", "init", "--address", broker.address(), "--replicas", &count, "--queue", "default"];
    let begun = Instant::now();
    // Servers that have just started have to find each other first.
    while let Err(error) = cluster::run_tracer(&place[0], &init) {
        if begun.elapsed() > LISTENS {
            return Err(error);
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }

    say(&format!("engine alone, {how}"));
    let one = engine_alone::measure(broker.address(), &Alone { copies, ..Alone::of_one(trips, 1) })?;
    let bundled = Alone { messages: tasks.div_ceil(BUNDLE), in_flight: BUNDLES, tasks: BUNDLE, copies };
    let bundled = tasks as f64 / engine_alone::measure(broker.address(), &bundled)?.seconds;

    let joined = format!("--address={}", broker.address());
    let hook = Some(&run.hook);
    let holder = Cluster::start_with_flags(&place[1], hook, &[&joined, "--queue=default"])?;
    let origin = Cluster::start_to_submit(&place[0], hook, &[&joined])?;
    say(&format!("{trips} shared tasks one after another, {how}"));
    let local: Vec<f64> = holder.drive(&["round_trips".into(), trips.to_string()])?;
    let times: Vec<f64> = origin.drive(&["shared_round_trips".into(), trips.to_string()])?;
    let floor = report::percentile(&one.times, 50) + report::percentile(&local, 50);
    run.report.add(Figure {
        floor: Some(("engine alone on the same, and a local round trip", floor)),
        ..Figure::time(
            &format!("round trip of a shared task, {how}, p50"),
            Variant::Traced,
            report::percentile(&times, 50),
        )
    });
    say(&format!("{tasks} shared tasks, {how}"));
    let own: driver::Throughput = holder.drive(&["throughput".into(), tasks.to_string()])?;
    let own = tasks as f64 / own.seconds;
    let many: driver::Throughput = origin.drive(&["shared_throughput".into(), tasks.to_string()])?;
    run.report.add(Figure {
        floor: Some(("the slower of the engine alone in bundles on the same and the holder", bundled.min(own))),
        ..Figure::rate(&format!("{tasks} shared no-op tasks, {how}"), Variant::Traced, tasks as f64 / many.seconds)
    });
    origin.stop()?;
    holder.stop()
}
