use std::collections::BTreeSet;

use crate::state::{State, follow_ups::FollowUp, progress::Progress, worker::Worker};
use tracer_core::task::{Failure, Outcome, TaskId, WorkerId};

/// Notes that a task has ended: whoever waits for it may go on.
pub(crate) fn on_task_ended(state: &mut State, id: TaskId, submitter: Option<TaskId>) {
    let of_submitter = match submitter.and_then(|submitter| state.tasks.get(submitter)).map(|task| task.progress()) {
        Some(Progress::Leased { worker }) => Some(*worker),
        _ => None,
    };
    let awaited_in = if state.awaited_in.is_empty() { None } else { state.awaited_in.remove(&id) };
    let Some(worker_id) = awaited_in.or(of_submitter) else { return };
    let Some(mut worker) = state.workers.get_mut(&worker_id).filter(|worker| !worker.waits.is_empty()) else { return };
    for wait in &mut worker.waits {
        if wait.open.remove(&id) {
            wait.left -= 1;
        }
    }
    worker.waits.retain(|wait| wait.left > 0);
}

/// Notes that an attempt of this worker has ended, and with it what it waited for. A thread that still waits while tasks run beside it is one of theirs:
/// it was taken for one of this attempt's, because it belongs to none for certain.
pub(crate) fn on_attempt_ended(state: &mut State, worker_id: WorkerId, task: TaskId) {
    let waits = |worker: &Worker| !worker.waits.is_empty();
    if !state.workers.get(&worker_id).is_some_and(waits) {
        return;
    }
    let Some(mut worker) = state.workers.get_mut(&worker_id) else { return };
    // The calls of an actor run beside each other, and none inside of another.
    let outer = worker.innermost().filter(|_| !worker.is_of_actor());
    let mut moved = Vec::new();
    worker.waits.retain_mut(|wait| {
        if wait.blocked == Some(task) {
            return false;
        }
        if wait.task != task {
            return true;
        }
        let Some(outer) = outer.filter(|_| wait.blocked.is_none()) else { return false };
        wait.task = outer;
        moved.extend(wait.open.iter().map(|&id| (id, worker_id)));
        true
    });
    drop(worker);
    state.awaited_in.extend(moved);
}

/// Notes that a task was submitted, perhaps by another.
pub(crate) fn note_child(state: &mut State, id: TaskId) {
    let submitter = state.tasks.get(id).and_then(|task| task.submitter);
    let is_open = |submitter: &TaskId| {
        state.tasks.get(*submitter).is_some_and(|task| !matches!(task.progress(), Progress::Ended(_)))
    };
    if let Some(submitter) = submitter.filter(is_open) {
        state.children.entry(submitter).or_default().insert(id);
    }
}

/// Notes that a task has ended: it is nobody's open child any more, and has none that matter. Returns those that it had.
pub(crate) fn forget_children(state: &mut State, id: TaskId) -> BTreeSet<TaskId> {
    if let Some(submitter) = state.tasks.get(id).and_then(|task| task.submitter)
        && let Some(siblings) = state.children.get_mut(&submitter)
    {
        siblings.remove(&id);
        if siblings.is_empty() {
            state.children.remove(&submitter);
        }
    }
    state.children.remove(&id).unwrap_or_default()
}

/// Notes that a task has ended. What it has submitted runs on if it came to an end of its own, good or bad; else nobody can get those results, and
/// whoever submits the task again submits those again too.
pub(crate) fn leave_children(state: &mut State, id: TaskId, outcome: &Outcome) {
    let children = forget_children(state, id);
    if was_cut_short(outcome) {
        abandon(state, children);
    }
}

/// Notes that an attempt has ended and the task is tried again, so its submitter still waits for it. It submits again what it has submitted; what it did
/// not get to the end of goes.
pub(crate) fn leave_children_of_attempt(state: &mut State, id: TaskId, outcome: &Outcome) {
    if was_cut_short(outcome) {
        let children = state.children.remove(&id).unwrap_or_default();
        abandon(state, children);
    }
}

/// Notes that tasks are to be cancelled, the newest first: what is ended makes room, which nothing of this shall take.
fn abandon(state: &mut State, children: BTreeSet<TaskId>) {
    children.into_iter().rev().for_each(|child| state.follow_ups.push(FollowUp::Abandoned(child)));
}

/// Returns whether a task did not get to an end of its own.
fn was_cut_short(outcome: &Outcome) -> bool {
    matches!(
        outcome,
        Outcome::Failed(
            Failure::Cancelled
                | Failure::Superseded
                | Failure::Abandoned { .. }
                | Failure::TimedOut { .. }
                | Failure::WorkerLost { .. }
                | Failure::OutOfMemory { .. }
                | Failure::HeadLost
                | Failure::HeadStopped
                | Failure::Lost { .. }
        )
    )
}

/// Returns what a task fails with that is cancelled.
pub(crate) fn why_cancelled(state: &State, id: TaskId) -> Failure {
    if state.shared.is_superseded(id) {
        return Failure::Superseded;
    }
    let submitter = state.tasks.get(id).and_then(|task| task.submitter);
    let has_left_it = |submitter: &TaskId| match state.tasks.get(*submitter).map(|task| task.progress()) {
        Some(Progress::Ended(ended)) => matches!(ended.outcome, Outcome::Failed(_)),
        // It is tried again, and knows no more of what an attempt before has submitted.
        Some(_) => !state.children.get(submitter).is_some_and(|children| children.contains(&id)),
        None => false,
    };
    submitter.filter(has_left_it).map_or(Failure::Cancelled, |submitter| Failure::Abandoned { submitter })
}

#[cfg(test)]
#[path = "children_tests.rs"]
mod tests;
