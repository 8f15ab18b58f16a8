use crate::{
    actors::life,
    children,
    effects::{Effects, EndedAttempt},
    history, imports,
    state::{
        State, Unfinished,
        actor::Part,
        now::Now,
        progress::{Event, TaskEnd},
        task::{Past, Task},
    },
    values, waiting,
};
use tracer_core::task::{
    AttemptReport, Charge, Envelope, Failure, Outcome, Policy, SpanLink, TaskId, Verdict, WorkerId, charge,
};

/// Failed attempts of a task that are remembered one by one; of more than that, the newest.
const PAST_LIMIT: usize = 100;

/// Enters when a task that has not begun has waited for too long.
pub(crate) fn watch_queue_limit(state: &mut State, id: TaskId, since_ns: u64) {
    let limits = state.tasks.get_mut(id).and_then(|task| task.limits.as_mut());
    if let Some(limits) = limits.filter(|limits| limits.queue_ns > 0) {
        limits.queue_until = since_ns.saturating_add(limits.queue_ns);
        state.queue_limits.insert((limits.queue_until, id));
    }
}

/// Forgets the limit on a task's waiting.
fn unwatch_queue_limit(state: &mut State, id: TaskId) {
    if let Some(limits) = state.tasks.get(id).and_then(|task| task.limits.as_ref()) {
        state.queue_limits.remove(&(limits.queue_until, id));
    }
}

pub(crate) fn past_attempts(task: &Task) -> &[AttemptReport] {
    task.past.as_ref().map_or(&[], |past| &past.attempts)
}

pub(crate) fn unstarted(failure: Failure, now: Now) -> TaskEnd {
    TaskEnd {
        outcome: Outcome::Failed(failure),
        worker: None,
        worker_pid: None,
        started_unix_nano: None,
        ended_unix_nano: now.unix_nano,
    }
}

/// Ends a task whose lease was taken back from its worker before it was begun.
pub(crate) fn end_unbegun(
    state: &mut State,
    effects: &mut impl Effects,
    worker_id: WorkerId,
    lease: u64,
    failure: Failure,
    now: Now,
) {
    let Some(mut worker) = state.workers.get_mut(&worker_id) else { return };
    let Some(grant) = worker.take_lease(lease) else { return };
    let actor = worker.actor;
    drop(worker);
    if actor == Some(grant.task) && life::is_restart(state, grant.task) {
        return;
    }
    if let Some(task) = state.tasks.get_mut(grant.task) {
        task.advance(grant.task, Event::LetGo, &mut state.tally);
        task.attempt -= 1;
    }
    end_task(state, effects, grant.task, unstarted(failure, now));
}

/// Puts a task whose lease was taken back to where it waits, before all others.
pub(crate) fn put_back(state: &mut State, id: TaskId) {
    let is_restart = life::is_restart(state, id);
    let Some(task) = state.tasks.get_mut(id) else { return };
    let is_creation = task.actor == Part::Creation;
    if !is_restart {
        task.advance(id, Event::LetGo, &mut state.tally);
        task.attempt -= 1;
        waiting::enqueue_first(state, id);
    }
    if is_creation {
        life::put_back(state, id);
    }
}

/// Ends an attempt that had begun. When it failed and the task may be tried again, it is charged and the task waits; else this is
/// the end of the task.
pub(crate) fn end_attempt(
    state: &mut State,
    effects: &mut impl Effects,
    id: TaskId,
    mut ended: TaskEnd,
    span: Option<SpanLink>,
    now: Now,
) {
    let Some(task) = state.tasks.get_mut(id) else { return };
    effects.count_attempt(&EndedAttempt {
        target: task.target.number(),
        name: state.targets.name(task.target),
        failure: match &ended.outcome {
            Outcome::Failed(failure) => Some(failure),
            _ => None,
        },
        run_ns: ended.started_unix_nano.map(|started| ended.ended_unix_nano.saturating_sub(started)),
        queued_ns: ended
            .started_unix_nano
            .filter(|_| task.attempt == 1)
            .map(|started| started.saturating_sub(task.submitted_unix_nano)),
        span,
        envelope: task.envelope(),
        ended_unix_nano: ended.ended_unix_nano,
    });
    let Outcome::Failed(failure) = &ended.outcome else { return end_task(state, effects, id, ended) };
    // What another node has put into its queue is not for this one to discard.
    let is_discarded = state.stop == Some(Unfinished::Discarded) && !task.is_import();
    let Some(charge) = charge(failure).filter(|_| !is_discarded) else {
        return end_task(state, effects, id, ended);
    };
    if task.at_most_once && charge != Charge::Own {
        ended.outcome = Outcome::Failed(lost(failure));
        return end_task(state, effects, id, ended);
    }
    let (failures, crashes) = task.past.as_ref().map_or((0, 0), |past| (past.failures, past.crashes));
    let seed = now.unix_nano ^ id.0.rotate_left(32) ^ u64::from(task.attempt);
    let crash_limit = life::crash_limit(state, id);
    let Some(task) = state.tasks.get_mut(id) else { return };
    let verdict = match Envelope::decode(task.envelope()) {
        Ok(Envelope { policy, .. }) => {
            let crash_limit = crash_limit.unwrap_or(policy.crash_limit);
            Policy { crash_limit, ..policy }.judge(failure, failures, crashes, seed)
        }
        Err(_) => Verdict::Final,
    };
    let Verdict::Again { after_ns } = verdict else {
        if charge == Charge::Free {
            ended.outcome = Outcome::Failed(lost(failure));
        }
        return end_task(state, effects, id, ended);
    };
    if state.shared.is_superseded(id) {
        // Whoever has it goes on with it.
        ended.outcome = Outcome::Failed(Failure::Superseded);
        return end_task(state, effects, id, ended);
    }
    let report = AttemptReport {
        number: task.attempt,
        worker_id: ended.worker,
        worker_pid: ended.worker_pid,
        started_unix_nano: ended.started_unix_nano,
        ended_unix_nano: ended.ended_unix_nano,
        message: Some(failure.to_string()),
        failure: Some(failure.clone()),
    };
    let report = report.shortened();
    if task.is_import() {
        imports::note_failed(&mut state.shared, effects, id, &report, charge);
    } else {
        effects.journal_attempt(id, &report, span);
    }
    charge_attempt(task, charge, report, span);
    if task.traces_runtime && charge != Charge::Own {
        // What a lost attempt did not report ended when the head learnt of it; from then on the task waits.
        state.runtime_since.insert(id, now.unix_nano);
    }
    if state.stop.is_some() && task.is_import() {
        // The next attempt is for the node that takes it.
        end_task(state, effects, id, unstarted(Failure::HeadStopped, now));
    } else if after_ns == 0 {
        waiting::enqueue_first(state, id);
    } else {
        let until = now.monotonic_ns.saturating_add(after_ns);
        task.advance(id, Event::PutOff { until }, &mut state.tally);
    }
    children::leave_children_of_attempt(state, id, &ended.outcome);
}

/// Returns what a task fails with that had begun and may not begin again.
fn lost(failure: &Failure) -> Failure {
    let message = match failure {
        Failure::HeadStopped => "the head was stopped while it ran".to_owned(),
        failure => failure.to_string(),
    };
    Failure::Lost { message }
}

pub(crate) fn charge_attempt(task: &mut Task, charge: Charge, report: AttemptReport, span: Option<SpanLink>) {
    let past: &mut Past = task.past.get_or_insert_default();
    match charge {
        Charge::Own => past.failures += 1,
        Charge::Crash => past.crashes += 1,
        Charge::Free => {}
    }
    if past.attempts.len() == PAST_LIMIT {
        past.attempts.remove(0);
    }
    past.attempts.push(report);
    past.span = span;
}

/// Records the one outcome of a task and tells who waits for it.
pub(crate) fn end_task(state: &mut State, effects: &mut impl Effects, id: TaskId, ended: TaskEnd) {
    unwatch_queue_limit(state, id);
    if matches!(ended.outcome, Outcome::Stored(_)) && state.shared.imports.contains_key(&id) {
        values::keep_for_agent(state, id);
    }
    let Some(task) = state.tasks.get_mut(id) else { return };
    if task.is_import() {
        let here = imports::Here {
            node_id: &state.settings.node_id,
            max_shared_value: state.settings.max_shared_value,
            is_followed: task.wants_output,
        };
        imports::note_end(&mut state.shared, effects, id, (task.attempt, &ended, past_attempts(task)), here);
    } else {
        effects.journal_end(id, task.attempt, &ended);
    }
    // What an attempt did not report ended when the head learnt of it.
    let ended_unix_nano = task.traces_runtime.then(|| {
        let since = state.runtime_since.remove(&id);
        let is_reported = |since: &u64| ended.started_unix_nano.is_some_and(|started| *since > started);
        since.filter(is_reported).unwrap_or(ended.ended_unix_nano)
    });
    let first = task.driver.map(|driver| (driver, task.tag));
    let others = state.also_waiting.remove(&id).unwrap_or_default();
    for to in first.into_iter().chain(others) {
        effects.finished(to, id, task.attempt, &ended.outcome, ended_unix_nano, past_attempts(task));
    }
    let submitter = task.submitter;
    life::on_task_ended(state, effects, id, &ended.outcome);
    waiting::release_dependants(state, id, &ended.outcome);
    children::leave_children(state, id, &ended.outcome);
    history::remember_end(state, id, ended);
    children::on_task_ended(state, id, submitter);
}

/// Puts every lease that a worker has not begun back at the front of the queue.
pub(crate) fn take_back_unclaimed(state: &mut State, effects: &mut impl Effects, worker_id: WorkerId) {
    let Some(mut worker) = state.workers.get_mut(&worker_id) else { return };
    let mut taken = Vec::new();
    for grant in worker.leases.iter().copied().collect::<Vec<_>>() {
        if effects.revoke(worker_id, grant.number) {
            worker.take_lease(grant.number);
            taken.push(grant.task);
        }
    }
    drop(worker);
    for task in taken.into_iter().rev() {
        put_back(state, task);
    }
}

#[cfg(test)]
#[path = "lifecycle_tests.rs"]
mod tests;
