//! Costs in the head of tasks that wait: its memory for each, and its cpu time from the submission of each to its end.
//!
//! Both workers have something else to do until all tasks wait.

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracer::{Cluster, TaskHandle};

use super::cluster::WORKERS;
use super::{Failure, driver, process};

/// Tasks that are so few that nothing of the head has grown for them.
pub(crate) const FEW: usize = 1_000;

/// Bytes and nanoseconds for each task.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Queued {
    /// Memory while all wait.
    pub(crate) bytes: f64,
    /// Peak of the memory until then.
    pub(crate) peak_bytes: f64,
    pub(crate) cpu_ns: f64,
}

/// Lets `count` tasks wait and run, `rounds` times. What the head does for a round without them is not in it.
pub(crate) fn measure(cluster: &Cluster, count: usize, rounds: usize) -> Result<Queued, Failure> {
    let folder = tempfile::tempdir()?;
    let head = cluster.welcome().head_pid;
    let cpu_of = |count: usize| {
        let before = process::cpu_ns(head)?;
        let mut found = None;
        for round in 0..rounds {
            found = Some(wait_and_run(cluster, count, &folder.path().join(format!("{count}-{round}")))?);
        }
        Ok::<_, Failure>((process::cpu_ns(head)? - before, found))
    };
    let (without, _) = cpu_of(0)?;
    let (with, memory) = cpu_of(count)?;
    let (bytes, peak) = memory.ok_or("no round was asked for")?;
    let per_task = |value: u64| value as f64 / count as f64;
    Ok(Queued {
        bytes: per_task(bytes),
        peak_bytes: per_task(peak),
        cpu_ns: per_task(with.saturating_sub(without)) / rounds as f64,
    })
}

/// One round. The bytes that the head has more while all tasks wait, and at the most until then.
fn wait_and_run(cluster: &Cluster, count: usize, release: &Path) -> Result<(u64, u64), Failure> {
    let head = cluster.welcome().head_pid;
    let path = release.to_str().ok_or("a folder whose name is no text")?;
    let busy = || Ok(cluster.remote("misbehaving_tasks:waits_for").arg(path).submit()?);
    let busy = (0..WORKERS).map(|_| busy()).collect::<Result<Vec<TaskHandle>, Failure>>()?;
    cluster.flush()?;
    while cluster.status()?.metrics.tasks.leased < WORKERS {
        std::thread::sleep(Duration::from_millis(1));
    }
    process::forget_peak(head)?;
    let before = process::memory(head)?.0;
    let tasks = driver::submit_all(cluster, count)?;
    cluster.flush()?;
    let open = cluster.status()?.metrics.tasks;
    let (now, peak) = process::memory(head)?;
    if open.waiting + open.leased != count + WORKERS {
        return Err(format!("{open:?} of {count} tasks").into());
    }
    std::fs::write(release, "")?;
    driver::expect_ones(tasks)?;
    busy.into_iter().try_for_each(|task| task.get::<()>())?;
    Ok((now.saturating_sub(before), peak.saturating_sub(before)))
}
