//! Time from the death of a whole node until another one runs what it had.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::super::cluster::{Cluster, Place};
use super::super::report::{self, Figure, Variant};
use super::super::{Failure, Run, process, say};
use super::{Broker, LISTENS};

/// Interval after which a server delivers a message again that nobody keeps.
const ACK_WAIT: Duration = Duration::from_secs(10);
/// Time after which a take-over counts as one that does not come.
const LIMIT: Duration = Duration::from_secs(120);
/// Command that notes each of its starts, and does not end by itself.
const COMMAND: &str = "echo started >> \"$0\"; exec sleep 1000";

pub(super) fn measure(run: &mut Run, broker: &Broker) -> Result<(), Failure> {
    say("a node that is killed, until another one runs its task");
    let places = [Place::new()?, Place::new()?, Place::new()?];
    let joined = format!("--address={}", broker.address());
    let flags = [&*joined, "--queue=default=1", "--shared-commands"];
    let origin = Cluster::start_to_submit(&places[0], Some(&run.hook), &[&joined])?;
    let first = Cluster::start_with_flags(&places[1], Some(&run.hook), &flags)?;
    let noted = places[0].temp_dir().join("starts");
    let file = noted.to_string_lossy().into_owned();
    let flags_of_task = ["--queue", "default", "--crash-limit", "1"];
    origin.submit_command(&flags_of_task, &["sh", "-c", COMMAND, &file])?.wait()?;
    wait_for_starts(&noted, 1, LISTENS)?;
    let second = Cluster::start_with_flags(&places[2], Some(&run.hook), &flags)?;
    let begun = Instant::now();
    for pid in process::of_place(&places[1].temp_dir())? {
        if let Some(pid) = Pid::from_raw(pid as i32) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    wait_for_starts(&noted, 2, LIMIT)?;
    run.report.add(Figure {
        floor: Some(("the interval of redelivery", report::nanos(ACK_WAIT))),
        ..Figure::time(
            "a node that is killed, until its task runs elsewhere",
            Variant::Traced,
            report::nanos(begun.elapsed()),
        )
    });
    drop(first);
    second.stop_at_once()?;
    origin.stop_at_once()
}

fn wait_for_starts(noted: &Path, starts: usize, limit: Duration) -> Result<(), Failure> {
    let begun = Instant::now();
    while std::fs::read_to_string(noted).unwrap_or_default().lines().count() < starts {
        if begun.elapsed() > limit {
            return Err(format!("the command has not been started {starts} times within {limit:?}").into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
