use std::sync::Arc;

use crate::{
    actors::place,
    attempt::{self, Way},
    effects::Effects,
    follow_up, lifecycle, nesting,
    resources::{self, Free},
    scheduler::{self, Candidate, LEASE_TIME_NS},
    sharing,
    state::{State, now::Now, ready_queue::QueueKey, worker::Worker},
    waiting,
};
use tracer_core::task::{TaskId, WorkerId};
use tracer_ipc::spool::CLAIM_COUNT;

/// Time that tasks wait behind others before they are moved to a worker that has nothing to do.
pub(crate) const BEHIND_NS: u64 = LEASE_TIME_NS / 4;

/// Workers with several tasks that are looked at in one turn for some to take back: of those used last, and of those that were not for longest.
const FILLED_PER_TURN: usize = 16;

/// Workers in one turn for which what is next in the queue may be too long.
const FULL_PER_TURN: usize = 32;

/// Queues what has waited for long enough to be tried again.
fn queue_retries(state: &mut State, now: Now) {
    let due = state.tally.retrying().iter().take_while(|&&(until, _)| until <= now.monotonic_ns);
    for id in due.map(|&(_, id)| id).collect::<Vec<_>>() {
        waiting::enqueue(state, id);
    }
}

/// Grants leases to workers that have room, and takes unclaimed ones back for workers that have nothing.
pub fn schedule(state: &mut State, effects: &mut impl Effects, now: Now) {
    queue_retries(state, now);
    follow_up::follow_up(state, effects, now);
    if !state.shared.to_share.is_empty() {
        sharing::hand_over(state, effects, now);
    }
    if state.stop.is_some() {
        return;
    }
    place::place(state, effects, now);
    let may_rebalance = if state.queue.has_demanding() {
        begin_in_turn(state, effects, now)
    } else {
        state.queue.reserve_for(None);
        let free_slots = nesting::free_slots(state);
        share_out(state, effects, free_slots, now);
        true
    };
    if may_rebalance {
        relieve_stuck(state, effects, now);
    }
    if state.queue.plain().is_empty() && may_rebalance {
        rebalance(state, effects, now);
    }
    nesting::run_in_waiters(state, effects, now);
}

/// Begins what may begin of tasks that need different things. False when slots are kept for one of them.
fn begin_in_turn(state: &mut State, effects: &mut impl Effects, now: Now) -> bool {
    loop {
        let free = Free::of(state);
        let turn = resources::turn(state, &free, now);
        let reserved = turn.reserved.as_ref().and_then(|it| state.queue.front(&Some(Arc::clone(&it.needs))));
        state.queue.reserve_for(reserved);
        let is_reserved = turn.reserved.as_ref().is_some_and(|it| it.cpus && it.needs.cpus > 0);
        let has_begun = turn.may_begin.iter().any(|key| begin_first(state, effects, key, now));
        if has_begun {
            continue;
        }
        if is_reserved {
            // Otherwise its slots would come only when workers have run all that they have.
            let filled: Vec<_> = state.workers.filled(FILLED_PER_TURN).map(|(place, _)| place.worker).collect();
            for worker_id in filled {
                lifecycle::take_back_unclaimed(state, effects, worker_id);
            }
        } else if !turn.wants_slots {
            // A worker that is given more before it has nothing left never gives its slot to a task that needs several.
            share_out(state, effects, 0, now);
        }
        return !is_reserved;
    }
}

/// Gives the first task of a ready queue to a worker that has nothing to do; of the plain queue, as many as are its share. False when there is no
/// such worker.
fn begin_first(state: &mut State, effects: &mut impl Effects, key: &QueueKey, now: Now) -> bool {
    let Some(worker_id) = state.workers.last_idle() else { return false };
    let share = match key {
        None => scheduler::share(state.queue.plain().len(), state.workers.idle()),
        Some(_) => 1,
    };
    let has_begun = grant(state, effects, worker_id, key, share, now) > 0;
    if has_begun {
        state.queue.end_turn(key);
    }
    has_begun
}

/// Shares plain tasks out among workers that have room, of which so many may have nothing to do yet.
fn share_out(state: &mut State, effects: &mut impl Effects, mut free_slots: usize, now: Now) {
    // Of those that are left: how many have nothing to do, and how many have something and room for more.
    let (mut idle, mut busy) = (state.workers.idle(), state.workers.with_room());
    let had_idle = idle > 0 && free_slots > 0;
    let (mut last, mut too_full) = (None, 0);
    while let Some(&front) = state.queue.plain().front() {
        let are_short = is_short(state, front);
        let free_slots_now =
            scheduler::may_wake(free_slots, state.workers.filled_count(), state.settings.cores, are_short);
        // The worker used last comes first: its caches are warm, and with little to do the others can sleep.
        let next_idle = state.workers.idle_before(last).filter(|_| free_slots_now > 0);
        let next_busy = state.workers.with_room_before(last).filter(|_| too_full < FULL_PER_TURN);
        let Some(place) = next_idle.max(next_busy) else { break };
        last = Some(place);
        let was_idle = next_idle == last;
        let looks_long = |worker: &Worker| runs_long(effects, place.worker, worker, now);
        if !was_idle && had_idle && state.workers.get(&place.worker).is_some_and(looks_long) {
            // What it got would be taken back at once.
            (busy, too_full) = (busy - 1, too_full + 1);
            continue;
        }
        let share = scheduler::share(state.queue.plain().len(), busy + free_slots_now.min(idle));
        let has_begun = grant(state, effects, place.worker, &None, share, now) > 0;
        match (was_idle, has_begun) {
            (true, true) => (idle, free_slots) = (idle - 1, free_slots - 1),
            // A full disk: it is tried again with the next turn.
            (true, false) => break,
            (false, true) => busy -= 1,
            (false, false) => (busy, too_full) = (busy - 1, too_full + 1),
        }
    }
}

/// Leases tasks of a ready queue to a worker, up to its share, and returns how many.
pub(crate) fn grant(
    state: &mut State,
    effects: &mut impl Effects,
    worker_id: WorkerId,
    key: &QueueKey,
    share: usize,
    now: Now,
) -> usize {
    let mut granted = 0;
    while granted < share {
        let (Some(worker), Some(id)) = (state.workers.get(&worker_id), state.queue.front(key)) else { break };
        let task = state.tasks.get_mut(id).expect("a queued task is in the table");
        let candidate = Candidate {
            expected_ns: state.targets.run_time(task.target).expected_ns(),
            must_be_alone: task.must_be_alone,
        };
        if !scheduler::fits(worker.load, candidate) {
            break;
        }
        // The ring has room for this many numbers from the oldest lease on; those taken back in between have used some.
        if worker.leases.front().is_some_and(|oldest| worker.next_lease - oldest.number >= CLAIM_COUNT as u64) {
            break;
        }
        if !attempt::begin_attempt(state, effects, worker_id, id, Way::Ring, now) {
            break;
        }
        state.queue.pop_front(key);
        granted += 1;
    }
    if granted > 0 {
        state.workers.note_use(worker_id);
    }
    granted
}

/// Returns whether a task is one of those that are done sooner than a sleeping worker is awake.
pub(crate) fn is_short(state: &mut State, id: TaskId) -> bool {
    let target = state.tasks.get(id).map(|task| task.target);
    target.is_some_and(|target| state.targets.run_time(target).is_short())
}

/// Takes everything that they have not begun from workers whose task sleeps or turns out to be long, while others have nothing to do.
fn relieve_stuck(state: &mut State, effects: &mut impl Effects, now: Now) {
    if state.workers.idle() == 0 || nesting::free_slots(state) == 0 {
        return;
    }
    let stuck = state.workers.filled(FILLED_PER_TURN).filter_map(|(place, worker)| {
        let (lease, since) = effects.running(place.worker)?;
        let running = worker.leases.iter().find(|grant| grant.number == lease)?;
        let ns = now.ran_ns(since, running.granted);
        (ns >= BEHIND_NS).then_some((place.worker, running.task, ns))
    });
    let mut stuck: Vec<_> = stuck.collect();
    // Of few, each was looked at from both ends.
    stuck.sort_unstable_by_key(|&(worker, ..)| worker);
    stuck.dedup();
    for &(worker, task, ns) in &stuck {
        if let Some(target) = state.tasks.get(task).map(|task| task.target) {
            state.targets.run_time(target).observe_running(ns);
        }
        lifecycle::take_back_unclaimed(state, effects, worker);
    }
    if !stuck.is_empty() && !state.queue.has_demanding() {
        let free_slots = nesting::free_slots(state);
        share_out(state, effects, free_slots, now);
    }
}

/// Takes unclaimed leases back from a worker that is behind, for one that has nothing to do.
fn rebalance(state: &mut State, effects: &mut impl Effects, now: Now) {
    if state.workers.idle() == 0 || nesting::free_slots(state) == 0 {
        return;
    }
    let filled = state.workers.filled(FILLED_PER_TURN);
    let behind = filled.filter(|(place, worker)| is_behind(effects, place.worker, worker, now));
    let Some((place, _)) = behind.max_by_key(|&(place, worker)| (worker.load.expected_ns, place)) else { return };
    let busiest = place.worker;
    let next = state.workers.get(&busiest).and_then(|worker| Some(worker.leases.back()?.task));
    // Short ones are done sooner by those that are awake, as long as they keep the cores busy.
    let are_short = next.is_some_and(|next| is_short(state, next));
    if scheduler::may_wake(1, state.workers.filled_count(), state.settings.cores, are_short) == 0 {
        return;
    }
    let mut worker = state.workers.get_mut(&busiest).expect("chosen among those that exist");
    // The first is being run, or about to be.
    let unclaimed: Vec<_> = worker.leases.iter().skip(1).copied().collect();
    let mut taken = Vec::new();
    for grant in unclaimed.iter().rev().take(scheduler::to_take_back(unclaimed.len())) {
        if !effects.revoke(busiest, grant.number) {
            break;
        }
        worker.take_lease(grant.number);
        taken.push(grant.task);
    }
    drop(worker);
    if taken.is_empty() {
        return;
    }
    for task in taken {
        lifecycle::put_back(state, task);
    }
    if let Some(idle) = state.workers.last_idle() {
        grant(state, effects, idle, &None, state.queue.plain().len(), now);
    }
}

/// Returns whether what a worker has not begun would wait so long that it is worth moving: a few short tasks are done before they could
/// be moved. How long tasks take is a guess; how long this one has been running is not.
pub(crate) fn is_behind(effects: &impl Effects, id: WorkerId, worker: &Worker, now: Now) -> bool {
    worker.load.expected_ns >= BEHIND_NS || runs_long(effects, id, worker, now)
}

/// Returns whether a worker has been at its task for so long that others should not wait behind it.
fn runs_long(effects: &impl Effects, id: WorkerId, worker: &Worker, now: Now) -> bool {
    let Some((lease, since)) = effects.running(id) else { return false };
    let running = worker.leases.iter().find(|grant| grant.number == lease);
    running.is_some_and(|grant| now.ran_ns(since, grant.granted) >= BEHIND_NS)
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
