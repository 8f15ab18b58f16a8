//! The head's side of the bounds: it sets them, and watches those that the kernel does not keep.

use std::time::Duration;

use tracer_core::task::WorkerId;
use tracer_process::children;
use tracer_reactor::Effects;
use tracer_reactor::state::State;

use super::{Bound, GROWTH, LOOK_LEAST, LOOK_MOST};
use crate::io::HeadIo;

impl HeadIo {
    /// Bounds the memory of a worker: as every worker, and as its task says.
    pub(crate) fn bound_memory(&mut self, worker: WorkerId, of_task: Option<u64>) {
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
    pub(crate) fn has_to_watch(&self) -> bool {
        !self.workers.to_watch.is_empty()
    }

    /// Looks at bounded workers that the kernel does not bound. Returns when to look again, in nanoseconds of the monotonic clock.
    pub(crate) fn watch_memory(&mut self, state: &State, now_ns: u64) -> Option<u64> {
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
