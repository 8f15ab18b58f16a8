use crate::{
    effects::Effects,
    lifecycle,
    state::{
        State,
        now::Now,
        worker::{Ending, StopStep, Stopping, Terms, ToStop, Worker},
    },
};
use tracer_core::task::{DEFAULT_GRACE, Envelope, StopReason, TimeLimit, WorkerId};
use tracer_ipc::protocol::INLINE_LEASE;
use tracer_ipc::spool::ClaimState;

/// Interval at which a command that has not quite started is looked for again, to be ended.
pub(crate) const COMMAND_START_NS: u64 = 10_000_000;

/// Time that a worker may take to report a command that got SIGKILL, before it is killed itself.
const COMMAND_END_NS: u64 = 2_000_000_000;

/// Notes that a worker has reached a deadline: what has run or written nothing for too long is ended, and what is being ended goes on. False when the
/// worker does not run what is to end.
pub(crate) fn on_deadline(state: &mut State, effects: &mut impl Effects, worker_id: WorkerId, now: Now) -> bool {
    let Some(mut worker) = state.workers.get_mut(&worker_id) else { return true };
    if worker.outlives_actor(now) {
        effects.kill(worker_id);
    }
    let mut too_long = Vec::new();
    if worker.ending().is_none() {
        let exceeded = |terms: &Terms| Some((terms.lease, terms.exceeded(worker.last_output_ns, now)?));
        too_long.extend(worker.terms.iter().filter_map(exceeded));
    }
    drop(worker);
    let mut runs_all = true;
    for (lease, why) in too_long {
        runs_all &= stop_attempt(state, effects, worker_id, lease, why, None, now);
    }
    resume_stopping(state, effects, worker_id, now);
    runs_all
}

/// Begins to end the attempt that a worker runs: it is asked, then gets SIGTERM, then SIGKILL. What the worker has not begun is taken
/// back first, so that no other task is harmed. An attempt that is being ended already is given no more time than this. False when
/// the worker does not run it: it has ended, and its result is on the way, or it has not begun.
pub(crate) fn stop_attempt(
    state: &mut State,
    effects: &mut impl Effects,
    worker_id: WorkerId,
    lease: u64,
    why: StopReason,
    grace_ns: Option<u64>,
    now: Now,
) -> bool {
    let Some(mut worker) = state.workers.get_mut(&worker_id) else { return false };
    if let Some(mut stopping) = worker.stopping() {
        if stopping.lease != lease {
            worker.stop_later(ToStop { lease, why, grace_ns });
        }
        // Whichever of them it is for, the last step is the end of both.
        if let Some(grace_ns) = grace_ns {
            stopping.grace_ns = stopping.grace_ns.min(grace_ns);
            stopping.next_ns = stopping.next_ns.min(now.monotonic_ns.saturating_add(grace_ns));
            worker.stop(stopping);
            drop(worker);
            resume_stopping(state, effects, worker_id, now);
        }
        return true;
    }
    drop(worker);
    lifecycle::take_back_unclaimed(state, effects, worker_id);
    let is_inline = lease & INLINE_LEASE != 0;
    if !is_inline && !runs(state, effects, worker_id, lease) {
        return false;
    }
    let Some(mut worker) = state.workers.get_mut(&worker_id) else { return false };
    let mut grants = worker.leases.iter().chain(&worker.inline);
    let Some(id) = grants.find(|grant| grant.number == lease).map(|grant| grant.task) else { return false };
    let Some(task) = state.tasks.get(id) else { return false };
    let grace_ns = grace_ns.unwrap_or_else(|| {
        let grace = Envelope::decode(task.envelope()).map_or(DEFAULT_GRACE, |envelope| envelope.policy.grace);
        u64::try_from(grace.as_nanos()).unwrap_or(u64::MAX)
    });
    let limits = task.limits.as_deref().copied().unwrap_or_default();
    worker.note_ending(match why {
        StopReason::Cancelled => Ending::Cancelled { task: id },
        StopReason::Superseded => Ending::Superseded { task: id },
        StopReason::RunTimeout => Ending::TimedOut { task: id, limit: TimeLimit::Run, after_ns: limits.run_ns },
        StopReason::IdleTimeout => Ending::TimedOut { task: id, limit: TimeLimit::Idle, after_ns: limits.idle_ns },
    });
    let give_up_ns = now.monotonic_ns.saturating_add(grace_ns);
    // A program cannot be asked otherwise than by SIGTERM.
    let next_ns = if task.is_command { now.monotonic_ns } else { give_up_ns };
    worker.stop(Stopping { task: id, lease, grace_ns, step: StopStep::Asked, next_ns, give_up_ns });
    drop(worker);
    effects.ask_to_stop(worker_id, id, task.attempt, why);
    resume_stopping(state, effects, worker_id, now);
    true
}

/// Returns whether a worker runs what it was leased. An actor's may run several, and then it says of each that it has begun; the end is on the way.
pub(crate) fn runs(state: &State, effects: &impl Effects, worker_id: WorkerId, lease: u64) -> bool {
    if state.workers.get(&worker_id).is_some_and(|worker| worker.actor.is_some()) {
        return effects.claim_state(worker_id, lease) == ClaimState::Claimed;
    }
    effects.running(worker_id).is_some_and(|(running, _)| running == lease)
}

/// Notes that an attempt has ended: the next one in its worker that is to end is told.
pub(crate) fn stop_next(state: &mut State, effects: &mut impl Effects, worker_id: WorkerId, now: Now) {
    let has_next = |worker: &Worker| !worker.ends_attempt() && !worker.to_stop().is_empty();
    while state.workers.get(&worker_id).is_some_and(has_next) {
        let next = state.workers.get_mut(&worker_id).and_then(|mut worker| worker.take_to_stop());
        let Some(next) = next else { return };
        stop_attempt(state, effects, worker_id, next.lease, next.why, next.grace_ns, now);
    }
}

/// Takes the steps that are due, and returns when the next one is.
fn resume_stopping(state: &mut State, effects: &mut impl Effects, worker_id: WorkerId, now: Now) -> Option<u64> {
    let mut worker = state.workers.get_mut(&worker_id)?;
    let mut stopping = worker.stopping()?;
    let is_command = state.tasks.get(stopping.task).is_some_and(|task| task.is_command);
    while stopping.next_ns <= now.monotonic_ns {
        let after = |ns: u64| now.monotonic_ns.saturating_add(ns);
        match stopping.step {
            // Without any grace there is nothing to ask.
            StopStep::Asked if is_command && stopping.grace_ns > 0 => {
                if effects.signal_command(worker_id, false) {
                    stopping.step = StopStep::Terminated;
                    stopping.next_ns = after(stopping.grace_ns);
                } else if stopping.give_up_ns <= now.monotonic_ns {
                    stopping.step = StopStep::Killed;
                } else {
                    stopping.next_ns = after(COMMAND_START_NS);
                }
            }
            StopStep::Asked if stopping.grace_ns > 0 => {
                effects.terminate(worker_id);
                stopping.step = StopStep::Terminated;
                stopping.next_ns = after(stopping.grace_ns);
            }
            StopStep::Asked | StopStep::Terminated if is_command => {
                if effects.signal_command(worker_id, true) {
                    stopping.next_ns = after(COMMAND_END_NS);
                }
                stopping.step = StopStep::Killed;
            }
            StopStep::Asked | StopStep::Terminated | StopStep::Killed => {
                stopping.step = StopStep::Killed;
                stopping.next_ns = u64::MAX;
                worker.die_with_attempt();
                effects.kill(worker_id);
            }
        }
    }
    worker.stop(stopping);
    // After the last step nothing but the end of the worker is waited for.
    Some(stopping.next_ns).filter(|&next| next < u64::MAX)
}

#[cfg(test)]
#[path = "stopping_tests.rs"]
mod tests;
