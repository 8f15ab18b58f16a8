use std::collections::HashMap;

use crate::{
    effects::{self, Effects},
    state::{State, actor::Part, now::Now, progress::Event, task::Task, worker::Worker},
    values,
};
use tracer_core::task::{TaskId, WorkerId};
use tracer_ipc::protocol::Period;

/// Way in which a worker is given an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Through its ring of claims, ahead of time.
    Ring,
    /// Beside tasks of it that wait.
    Inline,
    /// Through its ring, to make an actor again whose creation has ended.
    Again,
}

/// Gives a worker the next attempt at a task. False when that cannot be done now: with the next turn it is tried again. The caller takes the
/// task out of where it waited.
pub(crate) fn begin_attempt(
    state: &mut State,
    effects: &mut impl Effects,
    worker_id: WorkerId,
    id: TaskId,
    way: Way,
    now: Now,
) -> bool {
    let is_watched = way == Way::Ring && state.tasks.get(id).is_some_and(|task| task.wants_output);
    if is_watched {
        // What was written before it began is not this one's.
        let watchers = effects::watchers(state, worker_id, |lease| effects.claim_state(worker_id, lease));
        effects.drain_output(worker_id, &watchers);
    }
    let inputs = values::values(&state.tasks, id);
    let (Some(task), Some(mut worker)) = (state.tasks.get_mut(id), state.workers.get_mut(&worker_id)) else {
        return false;
    };
    if way != Way::Again {
        if task.at_most_once && !task.is_import() && !effects.journal_start(id, task.attempt + 1) {
            // A full disk.
            return false;
        }
        task.attempt += 1;
        task.advance(id, Event::Leased(worker_id), &mut state.tally);
    }
    // An actor's bound is that of its creation, and what runs inline has none.
    if way != Way::Inline && !matches!(task.actor, Part::Call(_)) {
        worker.bound_memory(effects, worker_id, task.limits.as_ref().map_or(0, |limits| limits.memory_bytes));
    }
    if let Some(version) = state.targets.version(task.target) {
        state.versions.on_lease(worker_id, &mut worker, version);
    }
    let (limits, needs) = (task.limits.as_deref(), task.needs.as_ref());
    let slots = needs.map_or(1, |needs| needs.cpus);
    let number = match way {
        Way::Ring => {
            let expected_ns = state.targets.run_time(task.target).expected_ns();
            worker.grant(id, slots, expected_ns, task.must_be_alone, now)
        }
        Way::Inline => worker.grant_inline(id, slots, now),
        Way::Again => worker.grant(id, 0, 0, false, now),
    };
    worker.bind(number, limits, needs.filter(|_| way != Way::Again), now);
    if is_watched {
        worker.watched.push(number);
    }
    let queued = time_in_queue(task, &state.runtime_since, id, now);
    match way {
        Way::Ring => effects.lease(worker_id, task.lease(id, number, queued, &inputs)),
        Way::Inline => effects.lease_inline(worker_id, task.lease(id, number, queued, &inputs)),
        Way::Again => {
            if let Some(lease) = state.actors.lease_again(id, number, &inputs) {
                effects.lease(worker_id, lease);
            }
        }
    }
    true
}

impl Worker {
    /// Bounds its memory for what it is about to be given; 0 for what every worker may take.
    fn bound_memory(&mut self, effects: &mut impl Effects, id: WorkerId, bytes: u64) {
        let bound = Some(bytes).filter(|&bytes| bytes > 0);
        if bound != self.memory_bytes {
            self.memory_bytes = bound;
            effects.bound_memory(id, bound);
        }
    }
}

/// Returns the time that a task that is leased now has waited, for the worker that traces it; none unless it traces the runtime.
fn time_in_queue(task: &Task, since: &HashMap<TaskId, u64>, id: TaskId, now: Now) -> Option<Period> {
    task.traces_runtime.then(|| {
        let start_unix_nano = since.get(&id).copied().unwrap_or(now.unix_nano);
        Period { start_unix_nano, end_unix_nano: now.unix_nano.max(start_unix_nano) }
    })
}
