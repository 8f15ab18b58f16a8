//! System calls of a task in each process, as strace counts them: no clock is in it, so that a call too many is seen on any machine.
//!
//! Nobody looks before sleeping here: how often somebody looks in vain depends on the machine.

use std::collections::BTreeMap;

use super::Failure;
use super::cluster::Cluster;
pub(crate) use super::strace::obstacle;
use super::strace::{Calls, Counter, read};

/// Calls by their names, and how often each was made for a task.
pub(crate) type CallsPerTask = BTreeMap<String, f64>;

/// The processes of a task, by the names of their figures.
pub(crate) const PROCESSES: [&str; 3] = ["head", "workers together", "driver"];

/// Tasks that are submitted at once.
pub(crate) const AMONG_MANY: Counted = Counted {
    name: "of a task among many",
    role: "throughput",
    times: 20_000,
    said: [0.06, 0.11, 0.06],
    tolerance: 1.6,
};
/// One task after the other, each waited for.
pub(crate) const ROUND_TRIP: Counted =
    Counted { name: "of a round trip", role: "round_trips", times: 2_000, said: [9.0, 5.0, 3.1], tolerance: 1.15 };

/// A workload with the numbers of calls that are stated for it.
pub(crate) struct Counted {
    pub(crate) name: &'static str,
    /// Role of the driver, with its repetitions.
    pub(crate) role: &'static str,
    pub(crate) times: usize,
    /// Calls of each of [`PROCESSES`].
    pub(crate) said: [f64; 3],
    /// Multiple of the stated numbers that is let pass. Batches are smaller where other work runs, but a call for each task is many times more.
    pub(crate) tolerance: f64,
}

const RUNS: usize = 3;

/// Returns the calls of a task in each of [`PROCESSES`]. Start-up and warm-up of a driver are counted alone, and are not in it. Batches are
/// larger and smaller as processes happen to run, so it is done several times, and the fewest calls count.
pub(crate) fn per_task(cluster: &Cluster<'_>, counted: &Counted) -> Result<Vec<CallsPerTask>, Failure> {
    let drive = |times: usize| of_drive(cluster, &[counted.role.into(), times.to_string()]);
    let without = drive(0)?;
    let mut fewest = Vec::new();
    for _ in 0..RUNS {
        let with = drive(counted.times)?;
        for (index, (with, without)) in with.iter().zip(&without).enumerate() {
            let found = difference(with, without, counted.times);
            match fewest.get_mut(index) {
                None => fewest.push(found),
                Some(fewest) if sum(&found) < sum(fewest) => *fewest = found,
                Some(_) => {}
            }
        }
    }
    Ok(fewest)
}

/// Returns the calls of each of [`PROCESSES`] while a driver runs.
fn of_drive(cluster: &Cluster<'_>, role: &[String]) -> Result<[Calls; 3], Failure> {
    let folder = tempfile::tempdir()?;
    let processes = cluster.processes()?;
    let counters = processes.iter().map(|one| Counter::attach(one.pid, &folder.path().join(one.pid.to_string())));
    let counters = counters.collect::<Result<Vec<_>, _>>()?;
    let table = folder.path().join("driver");
    let strace = ["strace", "-f", "-c", "-o"].map(Into::into).into_iter().chain([table.clone().into_os_string()]);
    cluster.drive_under::<serde_json::Value>(&strace.collect::<Vec<_>>(), role)?;
    let [mut head, mut workers] = [Calls::new(), Calls::new()];
    for (process, counter) in processes.iter().zip(counters) {
        let into = if process.name == "head" { &mut head } else { &mut workers };
        for (name, count) in counter.finish()? {
            *into.entry(name).or_default() += count;
        }
    }
    Ok([head, workers, read(&table)?])
}

fn difference(with: &Calls, without: &Calls, tasks: usize) -> CallsPerTask {
    let each = with.iter().map(|(name, &count)| {
        let others = without.get(name).copied().unwrap_or_default();
        (name.clone(), (count as f64 - others as f64) / tasks as f64)
    });
    each.filter(|(_, count)| count.abs() >= 0.0005).collect()
}

pub(crate) fn sum(calls: &CallsPerTask) -> f64 {
    calls.values().sum()
}
