//! The second in which the head of a service is killed, beside the second before.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::Failure;
use super::load::Load;
use super::service::{Service, one};

/// The longest that the next head may take to come.
const LIMIT: Duration = Duration::from_secs(10);

/// Kills the head so often, and shows the median of the ratios.
pub(crate) fn measure(_: u32, runs: usize) -> Result<(), Failure> {
    let served = Service::start(&one("handlers:app"), true, &[])?;
    let load = Load::get(32, "/");
    load.run(&served, 1)?;
    let mut found = Vec::new();
    for _ in 0..runs {
        let before = load.run(&served, 1)?;
        let head = served.current_head()?;
        let pid = Pid::from_raw(head).ok_or("the head has no process")?;
        kill_process(pid, Signal::KILL)?;
        let after = load.run(&served, 1)?;
        let since = Instant::now();
        while served.current_head()? == head {
            if since.elapsed() > LIMIT {
                return Err("no head has come".into());
            }
            std::thread::yield_now();
        }
        found.push((before.per_second, after.per_second));
    }
    found.sort_by(|one, other| (one.1 / one.0).total_cmp(&(other.1 / other.0)));
    let (before, after) = found[found.len() / 2];
    println!("the head is killed under {load}:");
    println!("  {before:>9.0} req/s in the second before, {after:>9.0} req/s in that second: {:.2} x", after / before);
    Ok(())
}
