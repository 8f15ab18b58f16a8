use std::collections::BTreeSet;

use crate::{
    actors::life,
    effects::Effects,
    lifecycle, sharing,
    state::{
        State, Unfinished,
        now::Now,
        progress::Progress,
        task::Task,
        worker::{Ending, Worker},
    },
    waiting,
};
use tracer_core::task::{Failure, Outcome, TaskId};

/// Notes that the head is to stop: nothing more begins, and workers are asked to end, or killed. What has not begun is kept for the next head in this
/// place, or ends. A stop that discards is not taken back by a further one.
pub fn on_stop(state: &mut State, effects: &mut impl Effects, unfinished: Unfinished, force: bool, now: Now) {
    let unfinished = state.stop.filter(|&before| before == Unfinished::Discarded).unwrap_or(unfinished);
    state.stop = Some(unfinished);
    life::on_stop(state, effects);
    let workers: Vec<_> = state.workers.keys().collect();
    for &worker_id in &workers {
        state.workers.get_mut(&worker_id).expect("its id was just read").end(Ending::Stopped);
        // What it has not begun, it shall not begin.
        lifecycle::take_back_unclaimed(state, effects, worker_id);
    }
    end_waiting(state, effects, now);
    for worker_id in workers {
        if force {
            effects.kill(worker_id);
        } else {
            effects.ask_to_end(worker_id);
        }
    }
}

/// Notes that the head is to stop once the tasks have ended that it has: no driver's task is accepted any more.
pub fn on_drain(state: &mut State) {
    state.is_draining = true;
}

/// Returns whether a task is here that has not ended; those in queues of an engine do not count.
pub fn has_own_tasks(state: &State) -> bool {
    let counts = state.tally.counts();
    counts.waiting - state.tally.shared() + counts.leased > 0
}

/// Notes that the grace period is over.
pub fn on_stop_overdue(state: &mut State, effects: &mut impl Effects) {
    state.workers.keys().for_each(|worker| effects.kill(worker));
}

/// Kills the workers of tasks that wait for tasks which are kept, where nothing else runs.
/// None of them can end before the next head goes on with both.
/// A wait that may end otherwise, by its own limit or as one of several futures, is given its time.
pub fn end_stuck(state: &State, effects: &mut impl Effects) {
    if state.stop != Some(Unfinished::Kept) {
        return;
    }
    let workers: Vec<_> = state.workers.iter().filter(|(_, worker)| worker.granted().next().is_some()).collect();
    // Most of the time something runs that waits for nothing.
    let may_be_stuck =
        |worker: &Worker| !worker.ends_attempt() && worker.granted().all(|task| worker.blocking_wait(task).is_some());
    if !workers.iter().all(|(_, worker)| may_be_stuck(worker)) {
        return;
    }
    let mut can_end: BTreeSet<TaskId> = BTreeSet::new();
    let running = || workers.iter().flat_map(|(_, worker)| worker.granted().map(move |task| (task, worker)));
    loop {
        let ends = |id: TaskId| match state.tasks.get(id).map(|task| task.progress()) {
            // A node that has it goes on.
            Some(Progress::Shared | Progress::Ended(_)) | None => true,
            Some(Progress::Leased { .. }) => can_end.contains(&id),
            Some(Progress::Between | Progress::Waiting | Progress::Held | Progress::Retrying { .. }) => false,
        };
        let goes_on = |(task, worker): &(TaskId, &&Worker)| {
            let Some(wait) = worker.blocking_wait(*task) else { return true };
            wait.open.iter().filter(|&&id| ends(id)).take(wait.left).count() == wait.left
        };
        let further: Vec<_> = running().filter(|(task, _)| !can_end.contains(task)).filter(goes_on).collect();
        if further.is_empty() {
            break;
        }
        can_end.extend(further.into_iter().map(|(task, _)| task));
    }
    if can_end.is_empty() {
        workers.iter().for_each(|&(worker, _)| effects.kill(worker));
    }
}

/// Notes that the last worker has ended: whoever waits for a task that is kept is told so. Returns the number of these tasks.
pub fn on_workers_gone(state: &mut State, effects: &mut impl Effects, now: Now) -> usize {
    // What a worker had left unbegun when it ended waits again.
    end_waiting(state, effects, now);
    sharing::acknowledge_all(state, effects);
    let is_kept = |task: &Task| !task.is_import() && !matches!(task.progress(), Progress::Ended(_));
    let kept: Vec<_> = state.tasks.iter_newest_first().filter(|(_, task)| is_kept(task)).map(|(id, _)| id).collect();
    let outcome = Outcome::Failed(Failure::Kept);
    for &id in kept.iter().rev() {
        let others = state.also_waiting.remove(&id).unwrap_or_default();
        let Some(task) = state.tasks.get_mut(id) else { continue };
        let first = task.driver.take().map(|driver| (driver, task.tag));
        for to in first.into_iter().chain(others) {
            effects.finished(to, id, task.attempt, &outcome, None, lifecycle::past_attempts(task));
        }
    }
    kept.len()
}

/// Ends tasks that have not begun and are not kept: all of them in a stop that discards; else those of other nodes, which go back to their queues, and
/// those that make an actor for a job, which ends with this head.
fn end_waiting(state: &mut State, effects: &mut impl Effects, now: Now) {
    let tasks = match state.stop {
        Some(Unfinished::Discarded) => waiting::take_all(state),
        Some(Unfinished::Kept) | None => take_unkept(state),
    };
    for task in tasks {
        lifecycle::end_task(state, effects, task, lifecycle::unstarted(Failure::HeadStopped, now));
    }
}

fn take_unkept(state: &mut State) -> Vec<TaskId> {
    let waits = |task: &Task| matches!(task.progress(), Progress::Waiting | Progress::Held | Progress::Retrying { .. });
    let is_unkept = |id: TaskId, task: &Task| waits(task) && (task.is_import() || life::ends_with_head(state, id));
    let tasks: Vec<_> =
        state.tasks.iter_newest_first().filter(|&(id, task)| is_unkept(id, task)).map(|(id, _)| id).collect();
    tasks.iter().for_each(|&id| waiting::take_out(state, id));
    tasks
}

#[cfg(test)]
#[path = "shutdown_tests.rs"]
mod tests;
