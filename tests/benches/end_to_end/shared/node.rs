//! A node beside its engine: what it takes while nothing is to be done, what its agent takes with tasks, and large values on the way.

use std::time::Duration;

use super::super::cluster::{self, Cluster};
use super::super::process;
use super::super::report::{self, Figure, Variant};
use super::super::{Failure, Run, say};
use super::{Broker, engine_alone};

/// Time for which an idle node is watched.
const IDLE: Duration = Duration::from_secs(5);
/// Bytes of a large argument, and of a large result.
const LARGE: usize = 100 << 20;

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

/// The memory of an agent before it holds tasks.
pub(super) struct Held {
    pid: u32,
    before: u64,
}

impl Held {
    pub(super) fn begin(holder: &Cluster<'_>) -> Result<Held, Failure> {
        let pid = holder.head_and_agent()?[1].pid;
        process::forget_peak(pid)?;
        Ok(Held { pid, before: process::memory(pid)?.0 })
    }

    /// Measures how much more it has taken at the most since then.
    pub(super) fn end(self, run: &mut Run) -> Result<(), Failure> {
        let more = process::memory(self.pid)?.1.saturating_sub(self.before);
        let name = "memory that an agent takes more while it holds thousands of short tasks";
        run.report.add(Figure::bytes(name, Variant::Traced, more as f64));
        Ok(())
    }
}
