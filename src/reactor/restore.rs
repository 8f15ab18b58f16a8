use std::collections::HashMap;

use crate::{
    actors::life,
    children,
    effects::{Effects, Submission},
    history, lifecycle,
    loss::LostAttempt,
    state::{
        State,
        now::Now,
        progress::{Progress, TaskEnd},
        shared::Bundle,
        task::{Description, Shown, Task},
    },
    submit, values, versions, waiting,
};
use tracer_core::codec::WireError;
use tracer_core::task::{AttemptReport, Charge, Envelope, Failure, JobId, SpanLink, TaskId, WorkerId};

/// Reads back a task that a head before this one had accepted. Nobody waits for it any more.
pub fn on_restored_submission(
    state: &mut State,
    id: TaskId,
    job: JobId,
    submitted_unix_nano: u64,
    envelope: impl AsRef<[u8]>,
) -> Result<(), WireError> {
    if is_known(state, id) {
        return Ok(());
    }
    let queued_unix_nano = submitted_unix_nano;
    let bytes = envelope.as_ref();
    let envelope = Envelope::decode(bytes)?;
    let submission = Submission { driver: None, tag: 0, job, bytes, envelope, queued_unix_nano };
    let (task, fingerprint) = submit::new_task(state, submission, submitted_unix_nano);
    if task.traces_runtime {
        state.runtime_since.insert(id, queued_unix_nano);
    }
    state.open_bytes += task.open_bytes();
    state.tasks.restore(id, task);
    values::pin(state, id);
    children::note_child(state, id);
    life::on_task(state, id);
    versions::on_task(state, id);
    submit::remember_key(state, id, fingerprint);
    Ok(())
}

/// Returns whether a task that is read back has been read before. Ids come in their order, each once, unless records are there twice.
pub(crate) fn is_known(state: &State, id: TaskId) -> bool {
    id < state.tasks.next_id()
}

/// Reads back a task that has ended under a head before this one, as far as it is remembered.
pub fn on_restored_memory(state: &mut State, id: TaskId, task: PastTask<'_>) {
    if is_known(state, id) {
        return;
    }
    let target = state.targets.index(task.target);
    state.tasks.restore(
        id,
        Task {
            description: Description::Shown(Some(Box::new(Shown {
                name: task.name.into(),
                trace_id: task.trace_id,
                of_queue: None,
            }))),
            submitted_unix_nano: task.submitted_unix_nano,
            ..Task::plain(target, task.job)
        },
    );
}

/// Reads back the key of a task under a head before this one.
pub fn on_restored_key(state: &mut State, id: TaskId, key: &str, fingerprint: u64) {
    if let Some(task) = state.tasks.get_mut(id) {
        task.key = Some(Box::new(key.into()));
        submit::remember_key(state, id, fingerprint);
    }
}

/// Reads back an attempt under a head before this one, after which the task was to be tried again.
pub fn on_restored_attempt(state: &mut State, id: TaskId, attempt: AttemptReport, span: Option<SpanLink>) {
    let is_new = |task: &&mut Task| attempt.number > task.attempt && !matches!(task.progress(), Progress::Ended(_));
    if let Some(task) = state.tasks.get_mut(id).filter(is_new) {
        task.attempt = attempt.number;
        let charge = attempt.failure.as_ref().and_then(tracer_core::task::charge).unwrap_or(Charge::Own);
        lifecycle::charge_attempt(task, charge, attempt, span);
    }
}

/// Reads back which tasks have gone into a queue together under a head before this one.
pub fn on_restored_bundle(state: &mut State, first: TaskId, count: u32) {
    state.shared.bundles.insert(first, Bundle { count, open: 0, claim: None });
}

/// The part of an ended task's description that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastTask<'a> {
    /// See `Task::job`.
    pub job: JobId,
    /// See `Task::submitted_unix_nano`.
    pub submitted_unix_nano: u64,
    /// See `Shown::trace_id`.
    pub trace_id: [u8; 16],
    /// Its target's name.
    pub target: &'a str,
    /// The name given with `--name`; empty for none.
    pub name: &'a str,
}

/// Reads back the end of a task under a head before this one.
pub fn on_restored_end(state: &mut State, id: TaskId, attempt: u32, ended: TaskEnd) {
    // The first end counts.
    if let Some(task) = state.tasks.get_mut(id).filter(|task| !matches!(task.progress(), Progress::Ended(_))) {
        task.attempt = attempt;
        life::on_restored_end(state, id, attempt, &ended);
        values::unpin(state, id);
        children::forget_children(state, id);
        // Written again it would be told twice.
        history::remember_end(state, id, ended);
    }
}

/// A claim that was found in what a worker of a dead head has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftClaim {
    /// Number of the attempt at its task.
    pub attempt: u32,
    /// The worker.
    pub worker: WorkerId,
    /// The pid of that worker.
    pub worker_pid: u32,
}

/// Ends the restore: everything is read back. What had been claimed by a worker of the dead head, and has not ended, was lost with it, which is charged
/// like any lost worker; what had not, waits again. A task in `started` must not be started again. Returns the lost attempts.
pub fn on_restored(
    state: &mut State,
    effects: &mut impl Effects,
    claimed: &HashMap<TaskId, LeftClaim>,
    started: &HashMap<TaskId, u32>,
    now: Now,
) -> Vec<LostAttempt> {
    life::on_restored(state, effects, |id| claimed.get(&id).map(|claim| claim.attempt));
    let mut open: Vec<_> = state
        .tasks
        .iter_newest_first()
        .filter(|(_, task)| !matches!(task.progress(), Progress::Ended(_)))
        .map(|(id, _)| id)
        .collect();
    open.reverse();
    state.shared.new_from = Some(state.tasks.next_id());
    let mut lost = Vec::new();
    for id in open {
        let Some(task) = state.tasks.get_mut(id) else { continue };
        // A claim of an attempt that is in the journal has been charged already.
        let claim = claimed.get(&id).filter(|claim| claim.attempt > task.attempt);
        let start = started.get(&id).filter(|_| task.at_most_once);
        let Some(attempt) = claim.map(|claim| claim.attempt).or(start.copied()) else {
            let waited_ns = now.unix_nano.saturating_sub(task.submitted_unix_nano);
            let has_begun = task.past.is_some();
            waiting::queue_or_hold(state, id);
            if !has_begun {
                lifecycle::watch_queue_limit(state, id, now.monotonic_ns.saturating_sub(waited_ns));
            }
            continue;
        };
        task.attempt = attempt;
        lost.push(LostAttempt {
            task: id,
            attempt,
            job: task.job,
            submitted_unix_nano: task.submitted_unix_nano,
            granted_unix_nano: task.submitted_unix_nano,
            previous: task.past.as_ref().and_then(|past| past.span),
            envelope: task.envelope().into(),
        });
        let ended = TaskEnd {
            worker: claim.map(|claim| claim.worker),
            worker_pid: claim.map(|claim| claim.worker_pid),
            ..lifecycle::unstarted(
                life::why_lost(state, id, "the head died, and its worker with it", "lost").unwrap_or(Failure::HeadLost),
                now,
            )
        };
        lifecycle::end_attempt(state, effects, id, ended, None, now);
    }
    state.shared.bundles.retain(|_, bundle| bundle.open > 0);
    lost
}

#[cfg(test)]
#[path = "restore_tests.rs"]
mod tests;
