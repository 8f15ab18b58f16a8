//! A node beside its engine: what it takes while nothing is to be done, what its agent takes with tasks, and large values on the way.

use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::super::cluster::{self, Cluster};
use super::super::process;
use super::super::report::{self, Figure, Variant};
use super::super::{Failure, Run, say};
use super::{Broker, LISTENS, engine_alone};

/// Time for which an idle node is watched.
const IDLE: Duration = Duration::from_secs(5);
/// Bytes of a large argument, and of a large result.
const LARGE: usize = 100 << 20;
/// Tasks that an agent holds at once.
const HELD: usize = 1_000;

/// Measures processor time and memory of a node that serves a queue of two parts and has nothing to do, and of its server.
pub(super) fn idle(run: &mut Run, broker: &Broker, holder: &Cluster<'_>) -> Result<(), Failure> {
    say(&format!("an idle node, {} s", IDLE.as_secs()));
    let before = (holder.head_and_agent()?, process::cpu_ns(broker.pid())?);
    std::thread::sleep(IDLE);
    let after = (holder.head_and_agent()?, process::cpu_ns(broker.pid())?);
    let [head, agent] = [0, 1].map(|at| after.0[at].cpu_ns - before.0[at].cpu_ns);
    let of_second = |cpu_ns: u64| cpu_ns as f64 / IDLE.as_secs_f64();
    for (name, cpu_ns) in [("the head", head), ("the agent", agent), ("the server", after.1 - before.1)] {
        let name = format!("cpu time of an idle node that has joined, {name}, a second");
        run.report.add(Figure::time(&name, Variant::Traced, of_second(cpu_ns)));
    }
    let bytes = process::memory(after.0[1].pid)?.0 as f64;
    run.report.add(Figure::bytes("memory of an idle agent (RSS)", Variant::Traced, bytes));
    Ok(())
}

/// Measures large values over a queue, beside the least that they take: into the engine and out of it, there and back.
pub(super) fn large(run: &mut Run, broker: &Broker, origin: &Cluster<'_>) -> Result<(), Failure> {
    say(&format!("{} MiB in and out", LARGE >> 20));
    cluster::build("nested_tasks")?;
    let alone = engine_alone::values(broker.address(), LARGE)?;
    let times: Vec<f64> = origin.drive(&["shared_large".into(), LARGE.to_string()])?;
    run.report.add(Figure {
        floor: Some(("engine alone, there and back", alone)),
        ..Figure::time(
            &format!("a shared task with {} MiB in and out, p50", LARGE >> 20),
            Variant::Traced,
            report::percentile(&times, 50),
        )
    });
    Ok(())
}

/// Measures the memory that an agent takes more while it holds tasks, which it does for a moment while the workers are stopped.
pub(super) fn held(run: &mut Run, holder: &Cluster<'_>, origin: &Cluster<'_>) -> Result<(), Failure> {
    say(&format!("{HELD} tasks that are held"));
    let agent = holder.head_and_agent()?[1].pid;
    let stopped = Stopped::all_of(holder)?;
    process::forget_peak(agent)?;
    let before = process::memory(agent)?.0;
    let mut burst = origin.driver(&["shared_burst".into(), HELD.to_string()])?;
    let mut burst = burst.stdout(Stdio::null()).spawn()?;
    let begun = Instant::now();
    while holder.imports()? < HELD {
        if begun.elapsed() > LISTENS {
            return Err(format!("expected {HELD} tasks to be held at once, found {}", holder.imports()?).into());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let more = process::memory(agent)?.1.saturating_sub(before);
    drop(stopped);
    if !burst.wait()?.success() {
        return Err("the tasks that were held have not succeeded".into());
    }
    let name = format!("memory that an agent takes more while it holds {HELD} short tasks");
    run.report.add(Figure::bytes(&name, Variant::Traced, more as f64));
    Ok(())
}

/// Workers that are stopped. Dropped, they go on.
struct Stopped(Vec<Pid>);

impl Stopped {
    fn all_of(cluster: &Cluster<'_>) -> Result<Stopped, Failure> {
        let processes = cluster.processes()?;
        let workers = processes.iter().filter(|process| process.name != "head");
        let workers = workers.filter_map(|worker| Pid::from_raw(worker.pid as i32)).collect::<Vec<_>>();
        let stopped = Stopped(workers);
        stopped.0.iter().try_for_each(|worker| kill_process(*worker, Signal::STOP))?;
        Ok(stopped)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for worker in &self.0 {
            let _ = kill_process(*worker, Signal::CONT);
        }
    }
}
