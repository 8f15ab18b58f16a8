//! The memory of workers, bounded.
//!
//! Where the head may make control groups, each bounded worker has one, and the kernel holds the bound. Elsewhere the head looks: it adds up what the
//! worker and all that descends from it have of memory of their own, as often as they could have grown beyond the bound since the last look, and
//! kills them. A task that takes memory very fast may be beyond the bound for some milliseconds then. Nothing is looked at while no bounded
//! worker runs anything.

use std::time::Duration;

use tracer_core::task::{MemoryExceeded, WorkerId};
use tracer_process::children;
use tracer_process::control_group::Group;
use tracer_reactor::state::State;
use tracer_reactor::{Effects, WorkerExit};

use super::io::HeadIo;

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

impl HeadIo {
    /// Bounds the memory of a worker: as every worker, and as its task says.
    pub(super) fn bound_memory(&mut self, worker: WorkerId, of_task: Option<u64>) {
        self.set_bound(worker, of_task);
        if self.bound_of(worker).is_some_and(|(bound, _)| bound.is_watched()) {
            self.workers.to_watch.insert(worker);
        } else {
            self.workers.to_watch.remove(&worker);
        }
    }

    /// Returns the bound on a worker or replica, and its process.
    fn bound_of(&mut self, worker: WorkerId) -> Option<(&mut Bound, u32)> {
        match self.workers.processes.get_mut(&worker) {
            Some(process) => Some((&mut process.bound, process.worker.pid())),
            None => self.services.bound_of(worker),
        }
    }

    fn set_bound(&mut self, worker: WorkerId, of_task: Option<u64>) {
        let limit = [of_task, self.settings.worker_memory].into_iter().flatten().min();
        let groups = self.workers.groups.take();
        let Some((bound, pid)) = self.bound_of(worker) else {
            self.workers.groups = groups;
            return;
        };
        bound.limit = limit;
        bound.is_by_kernel = false;
        if bound.group.is_none() && limit.is_some() {
            bound.group = groups.as_ref().and_then(|groups| {
                let group = groups.make(worker.0).ok()?;
                match group.attach(pid) {
                    Ok(()) => Some(group),
                    Err(_) => group.remove().ok().and(None),
                }
            });
        }
        let set = bound.group.as_ref().map(|group| {
            bound.kills = group.kills();
            group.set_limit(limit)
        });
        bound.is_by_kernel = matches!(set, Some(Ok(())));
        self.workers.groups = groups;
        if let Some(Err(error)) = set {
            // It has more than that already, which the head sees when it looks.
            self.log(format!("the kernel does not bound the memory of worker {worker}, so it is watched: {error}"));
        }
    }

    /// Returns whether any worker is bounded and not by the kernel.
    pub(super) fn has_to_watch(&self) -> bool {
        !self.workers.to_watch.is_empty()
    }

    /// Looks at bounded workers that the kernel does not bound. Returns when to look again, in nanoseconds of the monotonic clock.
    pub(super) fn watch_memory(&mut self, state: &State, now_ns: u64) -> Option<u64> {
        // A replica may have requests at any time.
        let runs = |worker: &WorkerId| {
            let worker = state.workers().get(worker);
            worker.is_none_or(|worker| !worker.leases().is_empty() || worker.runs_inline())
        };
        let watched: Vec<_> = self.workers.to_watch.iter().copied().filter(runs).collect();
        let mut next: Option<u64> = None;
        for worker in watched {
            let Some((bound, pid)) = self.bound_of(worker) else {
                self.workers.to_watch.remove(&worker);
                continue;
            };
            let Some(limit) = bound.limit else { continue };
            let used = children::memory_of_tree(pid);
            if used > limit {
                bound.exceeded = Some(used);
                self.workers.to_watch.remove(&worker);
                self.kill(worker);
                self.kill_of_service(worker);
                continue;
            }
            let until_full = Duration::from_nanos(
                u64::try_from(u128::from(limit - used) * 1_000_000_000 / u128::from(GROWTH)).unwrap_or(u64::MAX),
            );
            let look = now_ns + until_full.clamp(LOOK_LEAST, LOOK_MOST).as_nanos() as u64;
            next = Some(next.map_or(look, |next| next.min(look)));
        }
        next
    }
}
