//! The memory of workers, bounded.
//!
//! Where the head may make control groups, each bounded worker has one, and the kernel holds the bound. Elsewhere the head looks: it adds up what the
//! worker and all that descends from it have of memory of their own, as often as they could have grown beyond the bound since the last look, and
//! kills them. A task that takes memory very fast may be beyond the bound for some milliseconds then. Nothing is looked at while no bounded
//! worker runs anything.

mod watching;

use std::time::Duration;

use tracer_core::task::MemoryExceeded;
use tracer_process::control_group::Group;
use tracer_reactor::WorkerExit;

/// Rate at which a process may take memory, in bytes a second: about what a core can fill.
const GROWTH: u64 = 4 << 30;
const LOOK_LEAST: Duration = Duration::from_millis(2);
const LOOK_MOST: Duration = Duration::from_millis(250);

/// The bound on a worker.
#[derive(Debug, Default)]
pub(super) struct Bound {
    /// The bound in bytes; none for none.
    limit: Option<u64>,
    /// Its group; none while it was not bounded, and where there are none.
    group: Option<Group>,
    /// True if the kernel holds the bound.
    is_by_kernel: bool,
    /// Number of its processes that the kernel had killed when it was last asked.
    kills: u64,
    /// Memory that it had when it was killed for that.
    exceeded: Option<u64>,
}

impl Bound {
    /// A bound that is not set yet, on a process in this group.
    pub(super) fn of_group(group: Option<Group>) -> Bound {
        Bound { group, ..Bound::default() }
    }

    fn is_watched(&self) -> bool {
        self.limit.is_some() && !self.is_by_kernel && self.exceeded.is_none()
    }

    /// Notes that the worker has said itself that something of it was killed for memory.
    pub(super) fn note_kills(&mut self) {
        self.kills = self.group.as_ref().map_or(0, Group::kills);
    }

    /// Returns what the end of the worker says, if that was for memory. The group goes.
    pub(super) fn end(&mut self, exit: WorkerExit) -> WorkerExit {
        let by_kernel = self.group.as_ref().is_some_and(|group| group.kills() > self.kills);
        let peak = self.exceeded.or_else(|| self.group.as_ref().filter(|_| by_kernel)?.peak());
        if let Some(group) = self.group.take() {
            // With a process in it that was just killed it stays, and goes with the next head at the latest.
            let _ = group.remove();
        }
        let Some(limit_bytes) = self.limit.filter(|_| by_kernel || self.exceeded.is_some()) else { return exit };
        let memory = MemoryExceeded { limit_bytes, peak_bytes: peak };
        WorkerExit {
            cause: format!("was killed, because it {memory}"),
            error_type: tracer_core::task::OUT_OF_MEMORY.into(),
            memory: Some(memory),
        }
    }
}
