//! Tasks of queues, over a NATS server on this machine: what a node pays that has joined, and one shared task and many of them beside what the engine alone
//! takes by the same client for the least that they need of it; both also on current servers that sync each write, one and three. Without `nats-server` nothing is measured.

mod current;
mod engine_alone;
mod node;
mod take_over;

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::cluster::{Cluster, Place};
use super::driver::ONCE_AT_A_TIME;
use super::report::{self, Figure, Variant};
use super::{Failure, Run, driver, each, say};
use engine_alone::Alone;

/// Tasks of a bundle, and bundles on the way at a time where the engine alone is measured with them.
const BUNDLE: usize = 64;
const BUNDLES: usize = 32;
/// Bytes of one task in a message, and of one outcome in a record.
const TASK_BYTES: usize = 200;
const OUTCOME_BYTES: usize = 60;
/// Time within which the server listens.
const LISTENS: Duration = Duration::from_secs(10);

/// A `nats-server` with JetStream. Dropped, it is killed.
struct Broker {
    child: Child,
    address: String,
    _folder: TempDir,
}

impl Broker {
    /// None if it is not installed.
    fn start() -> Result<Option<Broker>, Failure> {
        let mut programs = ["nats-server", "/usr/sbin/nats-server"].into_iter();
        let is_there = |program: &&str| Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok();
        let Some(program) = programs.find(is_there) else { return Ok(None) };
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        Broker::run(program, port, "", "").map(Some)
    }

    /// Starts a program with further lines of configuration, of JetStream and of all.
    fn run(program: &str, port: u16, of_jetstream: &str, of_all: &str) -> Result<Broker, Failure> {
        let folder = tempfile::Builder::new().prefix("broker-").tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
        let file = folder.path().join("nats.conf");
        let store = folder.path().display();
        std::fs::write(&file, format!("jetstream {{\n  store_dir: \"{store}\"\n  {of_jetstream}\n}}\n{of_all}"))?;
        let mut command = Command::new(program);
        command.args(["-a", "127.0.0.1", "-p", &port.to_string(), "-c"]).arg(file);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let broker = Broker { child, address: format!("nats://127.0.0.1:{port}"), _folder: folder };
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if begun.elapsed() > LISTENS {
                return Err("nats-server does not listen".into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(broker)
    }

    fn address(&self) -> &str {
        &self.address
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn measure(run: &mut Run) -> Result<(), Failure> {
    let Some(broker) = Broker::start()? else {
        say("tasks of queues are left out: there is no nats-server");
        return Ok(());
    };
    let joined = format!("--address={}", broker.address);
    beside_the_same_not_joined(run, &joined)?;

    say("engine alone, one task after another");
    let trips = run.effort.round_trips;
    let one = engine_alone::measure(&broker.address, &Alone::of_one(trips, 1))?;

    let place = [Place::new()?, Place::new()?];
    let hook = Some(&run.hook);
    let holder = Cluster::start_with_flags(&place[1], hook, &[&joined, "--queue=default"])?;
    let origin = Cluster::start_to_submit(&place[0], hook, &[&joined])?;
    say(&format!("{trips} shared tasks one after another"));
    let local: Vec<f64> = holder.drive(&["round_trips".into(), trips.to_string()])?;
    let times: Vec<f64> = origin.drive(&["shared_round_trips".into(), trips.to_string()])?;
    for percent in [50, 99] {
        let floor = report::percentile(&one.times, percent) + report::percentile(&local, percent);
        run.report.add(Figure {
            floor: Some(("engine alone, and a local round trip", floor)),
            ..Figure::time(
                &format!("round trip of a shared task, p{percent}"),
                Variant::Traced,
                report::percentile(&times, percent),
            )
        });
    }
    node::idle(run, &broker, &holder)?;
    node::large(run, &broker, &origin)?;
    node::held(run, &holder, &origin)?;
    let before = place[1].span_lines()?;
    let expected = throughput(run, &broker, &holder, &origin)?;
    origin.stop()?;
    holder.stop()?;
    // Work that is lost is no measurement.
    let attempts = place[1].span_lines()? - before;
    if attempts < expected {
        return Err(format!("{expected} shared tasks left {attempts} spans of attempts").into());
    }
    take_over::measure(run, &broker)?;
    current::measure(run)
}

/// Many tasks at a time, in bundles and by themselves, by turns with what they are compared with. Returns the number of attempts that leave a span at the holder.
fn throughput(run: &mut Run, broker: &Broker, holder: &Cluster<'_>, origin: &Cluster<'_>) -> Result<usize, Failure> {
    let (tasks, once) = (run.effort.shared, run.effort.shared_once);
    let [mut bundled, mut own, mut many, mut singles, mut at_most_once] = [const { Vec::new() }; 5];
    let mut attempts = 0;
    for number in 1..=run.effort.runs {
        say(&format!(
            "{tasks} shared tasks, and {once} that are not started twice, run {number} of {}",
            run.effort.runs
        ));
        let alone = Alone { messages: tasks.div_ceil(BUNDLE), in_flight: BUNDLES, tasks: BUNDLE, copies: 1 };
        bundled.push(tasks as f64 / engine_alone::measure(&broker.address, &alone)?.seconds);
        let local: driver::Throughput = holder.drive(&["throughput".into(), tasks.to_string()])?;
        own.push(tasks as f64 / local.seconds);
        let shared: driver::Throughput = origin.drive(&["shared_throughput".into(), tasks.to_string()])?;
        many.push(tasks as f64 / shared.seconds);
        let alone = Alone::of_one(once, ONCE_AT_A_TIME);
        singles.push(once as f64 / engine_alone::measure(&broker.address, &alone)?.seconds);
        let seconds: f64 = origin.drive(&["shared_once".into(), once.to_string()])?;
        at_most_once.push(once as f64 / seconds);
        attempts += local.tasks_in_all + shared.tasks_in_all + once;
    }
    let floor = report::percentile(&bundled, 50).min(report::percentile(&own, 50));
    run.report.add(Figure {
        floor: Some(("the slower of the engine alone in bundles and the holder", floor)),
        ..Figure::rate(&format!("{tasks} shared no-op tasks"), Variant::Traced, f64::NAN).over(&many)
    });
    let name = format!("{once} shared no-op tasks, at most once, {ONCE_AT_A_TIME} at a time");
    run.report.add(Figure {
        floor: Some(("engine alone, as many at a time", report::percentile(&singles, 50))),
        ..Figure::rate(&name, Variant::Traced, f64::NAN).over(&at_most_once)
    });
    Ok(attempts)
}

/// Local no-op tasks of a node that has joined, beside those of one that has not: by turns, as no machine is equally fast all the time.
fn beside_the_same_not_joined(run: &mut Run, joined: &str) -> Result<(), Failure> {
    let tasks = run.effort.tasks;
    let mut found = [Vec::new(), Vec::new()];
    for number in 1..=run.effort.runs {
        for (found, flags) in found.iter_mut().zip([&[][..], &[joined, "--queue=default"][..]]) {
            let how = if flags.is_empty() { "not joined" } else { "joined" };
            say(&format!("{tasks} local tasks of a node that has {how}, run {number} of {}", run.effort.runs));
            let place = Place::new()?;
            let cluster = Cluster::start_with_flags(&place, Some(&run.hook), flags)?;
            found.push(cluster.drive::<driver::Throughput>(&["throughput".into(), tasks.to_string()])?);
            cluster.stop()?;
        }
    }
    let [without, with] = found.map(|runs| each(&runs, |one| tasks as f64 / one.seconds));
    let name = format!("no-op tasks, {tasks} by one driver, of a node that has joined");
    run.report.add(Figure {
        floor: Some(("the same, not joined", report::percentile(&without, 50))),
        ..Figure::rate(&name, Variant::Traced, f64::NAN).over(&with)
    });
    Ok(())
}
