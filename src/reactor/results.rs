use crate::{
    actors::life,
    children,
    effects::Effects,
    lifecycle,
    state::{
        State,
        now::Now,
        progress::{Event, TaskEnd},
    },
    stopping, waiting,
};
use tracer_core::task::{Failure, Outcome, WorkerId};
use tracer_ipc::protocol::AttemptResult;

/// Notes that an attempt has ended.
pub fn on_result(state: &mut State, effects: &mut impl Effects, worker_id: WorkerId, result: AttemptResult, now: Now) {
    let Some(mut worker) = state.workers.get_mut(&worker_id) else { return };
    let Some(grant) = worker.take_lease(result.lease) else {
        effects.log(format!("worker {worker_id} reported lease {}, which it does not have", result.lease));
        return;
    };
    worker.tasks_ended += 1;
    worker.note_attempt_ended(result.lease);
    state.starts.note_success();
    let (pid, actor) = (worker.pid, worker.actor);
    drop(worker);
    if let Some(actor) = actor {
        waiting::note_ready(state, actor);
        if let Some(span) = result.span.filter(|_| grant.task == actor) {
            life::on_span(state, actor, span);
        }
        if grant.task == actor && life::is_restart(state, actor) {
            life::on_restart_result(state, effects, actor, &result.outcome);
            children::on_attempt_ended(state, worker_id, actor);
            return stopping::stop_next(state, effects, worker_id, now);
        }
    }
    if let Some(task) = state.tasks.get_mut(grant.task) {
        task.advance(grant.task, Event::LetGo, &mut state.tally);
        state.targets.run_time(task.target).observe(result.run_ns);
        if task.traces_runtime {
            state.runtime_since.insert(grant.task, result.started_unix_nano.saturating_add(result.run_ns));
        }
    }
    state.ended_while_stopping += usize::from(state.stop.is_some());
    let outcome = match result.outcome {
        Outcome::Failed(Failure::Cancelled | Failure::Superseded) => {
            Outcome::Failed(children::why_cancelled(state, grant.task))
        }
        outcome => outcome,
    };
    let ended = TaskEnd {
        outcome,
        worker: Some(worker_id),
        worker_pid: Some(pid),
        started_unix_nano: Some(result.started_unix_nano),
        // Not the time now: the wall clock may have been set since it began.
        ended_unix_nano: result.started_unix_nano.saturating_add(result.run_ns),
    };
    lifecycle::end_attempt(state, effects, grant.task, ended, result.span, now);
    children::on_attempt_ended(state, worker_id, grant.task);
    stopping::stop_next(state, effects, worker_id, now);
}
