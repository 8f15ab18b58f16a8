use std::cmp::Reverse;

use crate::{
    actors::life,
    children,
    effects::Effects,
    exports, lifecycle,
    state::{
        State,
        actor::{Death, Life},
        now::Now,
        progress::Progress,
        task::Task,
        worker::Ending,
    },
    stopping, waiting,
};
use tracer_core::task::{DEFAULT_GRACE, StopReason, TaskId};
use tracer_ipc::protocol::{CancelReport, CancelWhich, INLINE_LEASE, Stop};

/// Ends tasks for someone who wants that.
pub fn on_cancel_many(
    state: &mut State,
    effects: &mut impl Effects,
    which: &CancelWhich,
    grace_ns: Option<u64>,
    now: Now,
) -> Vec<(TaskId, CancelReport)> {
    // What a job has created for longer than itself, it leaves.
    let takes_detached = !matches!(which, CancelWhich::Job(_));
    let is_open = |id, task: &Task| {
        let has_ended = matches!(task.progress(), Progress::Ended(_));
        !has_ended || (state.actors.is_living(id) && (takes_detached || !state.actors.is_detached(id)))
    };
    let open = |fits: &dyn Fn(&Task) -> bool| {
        let open = state.tasks.iter_newest_first().filter(|&(id, task)| is_open(id, task) && fits(task));
        open.map(|(id, _)| id).collect()
    };
    let ids: Vec<TaskId> = match which {
        CancelWhich::Ids(ids) => {
            let mut ids = ids.clone();
            ids.sort_unstable_by_key(|&id| Reverse(id));
            ids
        }
        CancelWhich::All => open(&|_| true),
        CancelWhich::Job(job) => open(&|task| task.job == *job),
        CancelWhich::Named(pattern) => open(&|task| {
            let name = task.shown().name;
            !name.is_empty() && tracer_core::pattern::fits(pattern, name)
        }),
    };
    // Those that wait first and the newest first: what is ended makes room, which nothing of this shall take, and the newest is found at once among
    // those that wait.
    let mut reports: Vec<_> = ids.into_iter().map(|id| (id, on_cancel(state, effects, id, grace_ns, now))).collect();
    reports.sort_by_key(|&(id, _)| id);
    reports
}

/// Ends a task for someone who wants that.
pub fn on_cancel(
    state: &mut State,
    effects: &mut impl Effects,
    id: TaskId,
    grace_ns: Option<u64>,
    now: Now,
) -> CancelReport {
    let Some(task) = state.tasks.get(id) else { return CancelReport::Unknown };
    let worker_id = match task.progress() {
        Progress::Ended(_) => {
            let is_ended = end_actor(state, effects, id, "it was cancelled", grace_ns, now);
            return if is_ended { CancelReport::Cancelling } else { CancelReport::Ended };
        }
        Progress::Waiting | Progress::Held | Progress::Retrying { .. } => {
            waiting::take_out(state, id);
            let failure = children::why_cancelled(state, id);
            lifecycle::end_task(state, effects, id, lifecycle::unstarted(failure, now));
            return CancelReport::Cancelled;
        }
        &Progress::Leased { worker } => worker,
        Progress::Shared => {
            let failure = children::why_cancelled(state, id);
            return exports::withdraw(state, effects, id, failure, Some(Stop { grace_ns }), now);
        }
        // Whoever has let go of it goes on with it at once.
        Progress::Between => return CancelReport::Unknown,
    };
    let Some(worker) = state.workers.get(&worker_id) else { return CancelReport::Unknown };
    let Some(number) = worker.lease_of(id) else { return CancelReport::Unknown };
    if number & INLINE_LEASE == 0 && effects.revoke(worker_id, number) {
        let failure = children::why_cancelled(state, id);
        lifecycle::end_unbegun(state, effects, worker_id, number, failure, now);
        return CancelReport::Cancelled;
    }
    let why = if state.shared.is_superseded(id) { StopReason::Superseded } else { StopReason::Cancelled };
    // Afterwards the worker runs this task or none.
    if stopping::stop_attempt(state, effects, worker_id, number, why, grace_ns, now) {
        CancelReport::Cancelling
    } else {
        // It has ended, and its result is on the way.
        CancelReport::Ended
    }
}

/// Ends an actor for someone who wants that, or with its job. False when there is nothing to end.
pub(crate) fn end_actor(
    state: &mut State,
    effects: &mut impl Effects,
    id: TaskId,
    cause: &str,
    grace_ns: Option<u64>,
    now: Now,
) -> bool {
    let Some(actor) = state.actors.get(id).filter(|actor| !actor.is_dead()) else { return false };
    let worker_id = actor.worker();
    if *actor.life() == Life::Pending {
        // It is still a task like any other.
        on_cancel(state, effects, id, grace_ns, now);
        return true;
    }
    life::die(state, effects, id, Death::of(cause));
    let Some(worker_id) = worker_id else { return true };
    lifecycle::take_back_unclaimed(state, effects, worker_id);
    // If it was to be made again there and that had not begun, the worker is any task's again.
    let worker = state.workers.get_mut(&worker_id).filter(|worker| worker.actor == Some(id));
    let Some(mut worker) = worker else { return true };
    let default_ns = u64::try_from(DEFAULT_GRACE.as_nanos()).unwrap_or(u64::MAX);
    let grace_ns = grace_ns.unwrap_or(default_ns);
    worker.end(Ending::ActorEnded { actor: id, until_ns: now.monotonic_ns.saturating_add(grace_ns) });
    if grace_ns == 0 {
        effects.kill(worker_id);
    } else {
        effects.ask_to_end(worker_id);
    }
    true
}

#[cfg(test)]
#[path = "cancel_tests.rs"]
mod tests;
