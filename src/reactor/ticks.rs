use crate::{
    effects::Effects,
    exports, lifecycle, nesting,
    schedule::BEHIND_NS,
    sharing::WAIT_NS,
    state::{State, now::Now, progress::Progress, worker::Ending},
    stopping::{self, COMMAND_START_NS},
    waiting,
};
use tracer_core::task::{Failure, TimeLimit, WorkerId};
use tracer_ipc::protocol::INLINE_LEASE;

/// Ends tasks that have waited for too long and have not begun.
fn end_waited_too_long(state: &mut State, effects: &mut impl Effects, now: Now) {
    while let Some(&(until, id)) = state.queue_limits.first().filter(|(until, _)| *until <= now.monotonic_ns) {
        state.queue_limits.remove(&(until, id));
        let Some(task) = state.tasks.get(id) else { continue };
        let after_ns = task.limits.as_ref().map_or(0, |limits| limits.queue_ns);
        let failure = Failure::TimedOut { limit: TimeLimit::Queue, after_ns };
        match task.progress() {
            Progress::Waiting | Progress::Held if task.past.is_none() => {
                waiting::take_out(state, id);
                lifecycle::end_task(state, effects, id, lifecycle::unstarted(failure, now));
            }
            &Progress::Leased { worker } if task.past.is_none() => {
                let lease = state.workers.get(&worker).and_then(|worker| worker.lease_of(id));
                let is_in_ring = |lease: &u64| lease & INLINE_LEASE == 0;
                if let Some(lease) = lease.filter(|lease| is_in_ring(lease) && effects.revoke(worker, *lease)) {
                    lifecycle::end_unbegun(state, effects, worker, lease, failure, now);
                }
            }
            Progress::Shared => drop(exports::withdraw(state, effects, id, failure, None, now)),
            // It has begun.
            Progress::Between
            | Progress::Waiting
            | Progress::Held
            | Progress::Leased { .. }
            | Progress::Retrying { .. }
            | Progress::Ended(_) => {}
        }
    }
}

/// Ends what has run, waited or written nothing for too long, goes on with what is being ended, and ends workers that do not get
/// ready. Returns when to call again, in nanoseconds of the
/// monotonic clock.
pub fn on_tick(state: &mut State, effects: &mut impl Effects, start_limit_ns: u64, now: Now) -> Option<u64> {
    end_waited_too_long(state, effects, now);
    let mut next = state.queue_limits.first().map(|&(until, _)| until);
    let mut wake_at = |deadline: u64| next = Some(next.map_or(deadline, |next: u64| next.min(deadline)));
    while let Some((since, worker_id)) = state.workers.first_start() {
        let deadline = since.saturating_add(start_limit_ns);
        if deadline > now.monotonic_ns {
            wake_at(deadline);
            break;
        }
        if let Some(mut worker) = state.workers.get_mut(&worker_id) {
            worker.note_ending(Ending::StartTimedOut);
        }
        effects.kill(worker_id);
    }
    for worker_id in state.workers.due(now.monotonic_ns) {
        if !stopping::on_deadline(state, effects, worker_id, now) {
            // It has not begun, or has ended just now: it is looked at again soon.
            wake_at(now.monotonic_ns + COMMAND_START_NS);
        }
    }
    state.workers.next_deadline(now.monotonic_ns).into_iter().for_each(&mut wake_at);
    if let Some(again) = state.starts.again()
        && state.starts.no_worker().is_none()
        && state.stop.is_none()
        && nesting::missing_workers(state) > 0
    {
        wake_at(again.monotonic_ns);
    }
    state.starts.resumes_ns().filter(|_| state.stop.is_none()).into_iter().for_each(&mut wake_at);
    nesting::end_surplus(state, effects, now).into_iter().for_each(&mut wake_at);
    nesting::next_waiters_ns(state, now).into_iter().for_each(&mut wake_at);
    let handed_over = state.shared.waiting.map(|(_, since_ns)| since_ns.saturating_add(WAIT_NS));
    handed_over.filter(|until| *until > now.monotonic_ns).into_iter().for_each(&mut wake_at);
    // A task may turn out to be long while another worker has nothing to do; nobody would say so.
    let may_fall_behind = state.workers.idle() > 0 && state.workers.has_filled();
    // What follows from a limit that was reached is done with the next turn.
    let follow_up = (!state.follow_ups.is_empty()).then_some(now.monotonic_ns);
    let look_again = may_fall_behind.then(|| now.monotonic_ns + BEHIND_NS);
    let retry = state.tally.retrying().first().map(|&(until, _)| until);
    next.into_iter().chain(follow_up).chain(look_again).chain(retry).min()
}

/// Notes that a worker's output was read, or could not be because nobody takes it.
pub fn on_output(state: &mut State, worker_id: WorkerId, now: Now) {
    if let Some(mut worker) = state.workers.get_mut(&worker_id) {
        worker.last_output_ns = now.monotonic_ns;
    }
}

#[cfg(test)]
#[path = "ticks_tests.rs"]
mod tests;
