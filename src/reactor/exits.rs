use crate::{
    actors::life,
    children,
    effects::Effects,
    lifecycle,
    loss::{Loss, LostAttempt, Why, WorkerExit},
    starts,
    state::{
        State,
        actor::Part,
        now::Now,
        progress::{Event, TaskEnd},
        worker::{Ending, Grant, Worker, WorkerPhase},
    },
};
use tracer_core::task::{Failure, MemoryExceeded, Outcome, SpanLink, StopReason, TaskId, TimeLimit, WorkerId};
use tracer_ipc::protocol::INLINE_LEASE;
use tracer_ipc::spool::ClaimState;

/// Time that a worker has to live after it got ready, if it runs no task, to show that workers can.
pub(crate) const LIVED_NS: u64 = 1_000_000_000;

/// The [`WorkerExit::error_type`] of a process that ended without an error.
const EXITED_WELL: &str = "exit:0";
/// The same of one that was killed.
const KILLED: &str = "signal:9";

/// Returns whether a worker that was asked to end has done so, or was killed for it: it has not died of what it ran.
fn is_cut_short(exit: &WorkerExit) -> bool {
    exit.memory.is_none() && matches!(&*exit.error_type, EXITED_WELL | KILLED)
}

/// Returns when an attempt ended that its worker did not report: now, but never before it began, and not later than if it had begun when it was
/// granted. So a wall clock that was set meanwhile makes neither a negative duration nor one of days.
fn lost_unix_nano(started_unix_nano: u64, granted: Now, now: Now) -> u64 {
    started_unix_nano.saturating_add(now.ran_ns(started_unix_nano, granted))
}

/// Notes that a worker process has ended. Its claimed tasks are charged and tried again, or fail; the others go back to the front of the queue,
/// free of charge. [`on_attempt_spans`] follows before anything is leased.
pub fn on_worker_exited(
    state: &mut State,
    effects: &mut impl Effects,
    worker_id: WorkerId,
    exit: &WorkerExit,
    now: Now,
) -> Option<Loss> {
    let worker = state.workers.remove(&worker_id)?;
    let was_asked = worker.was_asked_to_end();
    if !was_asked {
        state.workers_lost += 1;
        effects.log(format!("worker {worker_id} (pid {}) {}", worker.pid, exit.cause));
    }
    let description = match worker.ending() {
        Some(Ending::TimedOut { limit, after_ns, .. }) => {
            Failure::TimedOut { limit: *limit, after_ns: *after_ns }.to_string()
        }
        Some(Ending::Cancelled { .. }) => Failure::Cancelled.to_string(),
        Some(Ending::Superseded { .. }) => Failure::Superseded.to_string(),
        Some(Ending::ActorEnded { actor, .. }) => format!("actor {actor} was ended"),
        // It ended in good order, and what it had not ended itself is what task code forgot.
        Some(Ending::Stopped | Ending::NotNeeded) if exit.error_type == EXITED_WELL => {
            "it was still open when the worker ended".to_owned()
        }
        Some(Ending::Stopped) if is_cut_short(exit) => Failure::HeadStopped.to_string(),
        _ => format!("the worker {}", exit.cause),
    };
    let error_type = match worker.ending() {
        Some(Ending::TimedOut { .. }) => "timeout".to_owned(),
        Some(Ending::Cancelled { .. } | Ending::ActorEnded { .. }) => "cancelled".to_owned(),
        Some(Ending::Superseded { .. }) => Failure::Superseded.error_type(),
        Some(Ending::Stopped | Ending::NotNeeded) if exit.error_type == EXITED_WELL => "unfinished".to_owned(),
        Some(Ending::Stopped) if is_cut_short(exit) => Failure::HeadStopped.error_type(),
        _ => exit.error_type.clone(),
    };
    let mut loss = Loss { why: Why { error_type, description }, of_tasks: Vec::new(), attempts: Vec::new() };
    let running = effects.running(worker_id);
    let mut unclaimed = Vec::new();
    let mut had_begun_actor = true;
    for grant in worker.leases.iter().chain(&worker.inline) {
        if !has_begun(state, effects, worker_id, grant) {
            had_begun_actor &= worker.actor != Some(grant.task);
            unclaimed.push(grant.task);
            continue;
        }
        if worker.actor == Some(grant.task) && life::is_restart(state, grant.task) {
            loss.attempts.extend(life::lost_restart(state, grant));
            continue;
        }
        if let Some(task) = state.tasks.get_mut(grant.task) {
            task.advance(grant.task, Event::LetGo, &mut state.tally);
        }
        let Some(task) = state.tasks.get(grant.task) else { continue };
        loss.attempts.push(LostAttempt {
            task: grant.task,
            attempt: task.attempt,
            job: task.job,
            submitted_unix_nano: task.submitted_unix_nano,
            granted_unix_nano: grant.granted.unix_nano,
            previous: task.past.as_ref().and_then(|past| past.span),
            envelope: task.envelope().into(),
        });
        let failure = match worker.ending() {
            Some(Ending::TimedOut { task, limit, after_ns }) if *task == grant.task => {
                Failure::TimedOut { limit: *limit, after_ns: *after_ns }
            }
            Some(Ending::Cancelled { task } | Ending::Superseded { task }) if *task == grant.task => {
                children::why_cancelled(state, *task)
            }
            Some(Ending::Stopped) if is_cut_short(exit) => Failure::HeadStopped,
            _ if worker.to_stop().iter().any(|next| next.lease == grant.number) => {
                let failure = why_to_stop(state, &worker, grant);
                let why = Why { error_type: failure.error_type(), description: failure.to_string() };
                loss.of_tasks.push((grant.task, why));
                failure
            }
            _ if task.actor != Part::None && worker.actor != Some(grant.task) => {
                let (cause, error_type) = why_actor_died(&worker, exit);
                life::why_lost(state, grant.task, &cause, &error_type).unwrap_or(Failure::HeadLost)
            }
            _ if worker.actor.is_some() || is_running(running, grant) => match exit.memory {
                Some(MemoryExceeded { limit_bytes, peak_bytes }) => Failure::OutOfMemory { limit_bytes, peak_bytes },
                None => Failure::WorkerLost {
                    worker_pid: worker.pid,
                    cause: exit.cause.clone(),
                    error_type: exit.error_type.clone(),
                },
            },
            _ => Failure::WorkerLost {
                worker_pid: worker.pid,
                cause: format!("{} after the task had ended and before its result was sent", exit.cause),
                error_type: exit.error_type.clone(),
            },
        };
        let since = running.filter(|&(lease, _)| lease == grant.number).map(|(_, since)| since);
        let started_unix_nano = since.unwrap_or(grant.granted.unix_nano);
        let ended = TaskEnd {
            outcome: Outcome::Failed(failure),
            worker: Some(worker_id),
            worker_pid: Some(worker.pid),
            started_unix_nano: Some(started_unix_nano),
            ended_unix_nano: lost_unix_nano(started_unix_nano, grant.granted, now),
        };
        lifecycle::end_attempt(state, effects, grant.task, ended, None, now);
    }
    if let Some((task, what)) = killed_for(&worker)
        && loss.attempts.iter().any(|lost| lost.task != task)
    {
        let others =
            Why { error_type: exit.error_type.clone(), description: format!("{what}, so the worker {}", exit.cause) };
        loss.of_tasks.push((task, std::mem::replace(&mut loss.why, others)));
    }
    for task in unclaimed.into_iter().rev() {
        lifecycle::put_back(state, task);
    }
    if let Some(actor) = worker.actor {
        let cause = why_actor_died(&worker, exit);
        life::on_worker_lost(state, effects, actor, cause, had_begun_actor);
    }
    // A worker that ends as soon as it is ready is no better than one that never gets ready.
    let first_ready_ns = worker.ready_monotonic_ns.into_iter().chain(state.workers.first_ready_ns()).min();
    let has_any_lived = first_ready_ns.is_some_and(|ready| now.monotonic_ns.saturating_sub(ready) >= LIVED_NS);
    if worker.tasks_ended > 0 || has_any_lived {
        state.starts.note_success();
    } else if !was_asked && loss.attempts.is_empty() {
        state.starts.note_death(worker.phase() != WorkerPhase::Starting);
        let reason = match worker.ending() {
            Some(Ending::StartTimedOut) => "did not get ready in time".to_owned(),
            Some(Ending::HookFailed) => worker.hook_failure.clone().unwrap_or_default(),
            _ => exit.cause.clone(),
        };
        if state.settings.is_hook_required && !state.starts.has_begun() && worker.ending() == Some(&Ending::HookFailed)
        {
            let message = format!("tracing is required, but the hook failed in a worker: {reason}");
            starts::give_up(state, effects, message, now);
        }
        starts::give_up_if_hopeless(state, effects, &reason, now);
    }
    Some(loss)
}

/// Returns why the actor of a worker that is gone has died: in words, and as a value of `error.type`.
fn why_actor_died(worker: &Worker, exit: &WorkerExit) -> (String, String) {
    let pid = worker.pid;
    let what = killed_for(worker).map_or_else(String::new, |(_, what)| format!("{what}, so "));
    (format!("{what}its worker (pid {pid}) {}", exit.cause), exit.error_type.clone())
}

/// Returns the task for whose end its worker was killed, and why in words.
fn killed_for(worker: &Worker) -> Option<(TaskId, String)> {
    let noun = if worker.actor.is_some() { "call" } else { "task" };
    match worker.ending() {
        Some(Ending::TimedOut { task, .. }) => Some((*task, format!("{noun} {task} ran for too long and did not end"))),
        Some(Ending::Cancelled { task }) => Some((*task, format!("{noun} {task} was cancelled and did not end"))),
        Some(Ending::Superseded { task }) => {
            Some((*task, format!("{noun} {task} may be another node's and did not end")))
        }
        _ => None,
    }
}

/// Returns whether a claimed lease is being run, by what the worker says of those in its ring.
fn is_running(in_ring: Option<(u64, u64)>, grant: &Grant) -> bool {
    grant.number & INLINE_LEASE != 0 || in_ring.is_some_and(|(lease, _)| lease == grant.number)
}

/// Returns whether a worker has begun what it was given.
pub(crate) fn has_begun(state: &State, effects: &impl Effects, worker_id: WorkerId, grant: &Grant) -> bool {
    if grant.number & INLINE_LEASE == 0 {
        return effects.claim_state(worker_id, grant.number) == ClaimState::Claimed;
    }
    let attempt = state.tasks.get(grant.task).map_or(0, |task| task.attempt);
    effects.has_begun_inline(worker_id, grant.task, attempt)
}

/// Returns what a task fails with whose end was wanted and that its worker was not told of any more.
fn why_to_stop(state: &State, worker: &Worker, grant: &Grant) -> Failure {
    let limits = state.tasks.get(grant.task).and_then(|task| task.limits.as_deref().copied()).unwrap_or_default();
    match worker.to_stop().iter().find(|next| next.lease == grant.number).map(|next| next.why) {
        Some(StopReason::RunTimeout) => Failure::TimedOut { limit: TimeLimit::Run, after_ns: limits.run_ns },
        Some(StopReason::IdleTimeout) => Failure::TimedOut { limit: TimeLimit::Idle, after_ns: limits.idle_ns },
        Some(StopReason::Cancelled | StopReason::Superseded) | None => children::why_cancelled(state, grant.task),
    }
}

/// Notes the spans of attempts that were lost: those of the next attempts are linked to them.
pub fn on_attempt_spans(state: &mut State, spans: impl IntoIterator<Item = (TaskId, SpanLink)>) {
    for (id, span) in spans {
        if let Some(past) = state.tasks.get_mut(id).and_then(|task| task.past.as_mut()) {
            past.span = Some(span);
        }
    }
}

#[cfg(test)]
#[path = "exits_tests.rs"]
mod tests;
