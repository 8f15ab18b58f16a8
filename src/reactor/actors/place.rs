//! Actors: a part of the [reactor](crate).
//!
//! An actor is made by a task, its *creation*, whose id is the actor's. The creation is granted alone to a worker, which is the actor's from
//! then on: it is in no pool, takes the actor's calls only, and another worker is started in its place. Where as many processes run as may,
//! an actor waits; one process is always left for tasks.
//!
//! Calls are tasks too. They line up behind their actor in the order in which they were accepted, save for priorities, and are leased to its worker ahead of time,
//! many at once; the worker decides what runs beside what. A call whose arguments are not there yet holds up those of the same
//! submitter behind it, and no others: what is not there may hang on them.
//!
//! When the worker is lost, the actor is made again as often as its creation allows: a further attempt at the same task, whose one outcome
//! stays what it was. What had been begun is charged or fails, what had not keeps its place. Beyond that the actor is dead, and every call fails
//! with the reason.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};

use crate::{
    actors::life,
    attempt::{self, Way},
    effects::Effects,
    lifecycle,
    scheduler::LEASE_LIMIT,
    state::{State, actor::Life, now::Now, progress::Progress, ready_queue::Rank, task::Task, worker::WorkerPhase},
};
use tracer_core::task::{TaskId, WorkerId};
use tracer_ipc::spool::CLAIM_COUNT;

/// Returns the number of actors there is room for, of those that wait for a worker. One process is always left for tasks.
pub(crate) fn placeable(state: &State) -> usize {
    let most = state.settings.max_processes.max(state.settings.workers_wanted).saturating_sub(1 + state.replicas);
    state.actors.waiting_for_worker().len().min(most.saturating_sub(state.workers.of_actors()))
}

/// Gives actors that wait for one a worker that has nothing to do.
pub(crate) fn place(state: &mut State, effects: &mut impl Effects, now: Now) {
    for _ in 0..placeable(state) {
        let Some(worker_id) = state.workers.last_idle() else { return };
        let Some(id) = next_creation(state) else { return };
        state.actors.end_wait_for_worker(id);
        if !make(state, effects, id, worker_id, now) {
            state.actors.wait_for_worker(id);
            return;
        }
    }
}

/// Returns the actor whose turn it is to be placed.
fn next_creation(state: &State) -> Option<TaskId> {
    state.actors.waiting_for_worker().iter().copied().min_by_key(|&id| turn(state, id))
}

/// Returns the number of actors that are placed before this one.
pub(crate) fn count_before(state: &State, id: TaskId) -> usize {
    let own = turn(state, id);
    state.actors.waiting_for_worker().iter().filter(|&&other| turn(state, other) < own).count()
}

/// Returns the place of a creation among those that wait, the first being the least: by priority, which rises as it waits, then by submission.
fn turn(state: &State, id: TaskId) -> (Reverse<Option<Rank>>, TaskId) {
    (Reverse(state.tasks.get(id).map(Rank::of)), id)
}

/// Leases a creation to what is the actor's worker from now on.
fn make(state: &mut State, effects: &mut impl Effects, id: TaskId, worker_id: WorkerId, now: Now) -> bool {
    let Some(actor) = state.actors.get_mut(id) else { return true };
    let Some(mut worker) = state.workers.get_mut(&worker_id) else { return false };
    let way = if *actor.life() == Life::Restarting { Way::Again } else { Way::Ring };
    actor.begin_attempt(worker_id);
    worker.actor = Some(id);
    drop(worker);
    let has_begun = attempt::begin_attempt(state, effects, worker_id, id, way, now);
    if !has_begun {
        life::put_back(state, id);
    }
    has_begun
}

/// Leases calls to the worker of an actor, as many as it has room for. False when it is to be tried again with the next turn.
pub(crate) fn serve(state: &mut State, effects: &mut impl Effects, actor: TaskId, now: Now) -> bool {
    if let Some(actor) = state.actors.get_mut(actor) {
        actor.note_served();
    }
    take_back_overtaken(state, effects, actor);
    while let Some(worker) = may_be_served(state, actor) {
        let Some(call) = next_call(state, actor) else { break };
        let Some(is_alone) = may_be_leased(state, actor, worker, call) else { break };
        if !attempt::begin_attempt(state, effects, worker, call, Way::Ring, now) {
            // A full disk.
            return false;
        }
        if let Some(mut worker) = state.workers.get_mut(&worker).filter(|_| is_alone) {
            worker.load.is_exclusive = true;
        }
        if let Some(actor) = state.actors.get_mut(actor) {
            actor.remove_call(call);
        }
    }
    true
}

/// Takes calls back that the worker of an actor has not begun, if one with a priority has come since: so it does not wait for those.
fn take_back_overtaken(state: &mut State, effects: &mut impl Effects, id: TaskId) {
    if !state.queue.has_priority_calls(id) {
        return;
    }
    let actor = state.actors.get(id).filter(|actor| *actor.life() == Life::Alive && !actor.calls().is_empty());
    let Some(worker) = actor.and_then(|actor| actor.worker()) else {
        state.queue.forget_priority_calls(id);
        return;
    };
    if state.queue.lease_priority_calls(id) {
        lifecycle::take_back_unclaimed(state, effects, worker);
        // Those that were taken back are in their places again, and are no reason to do it once more.
        state.queue.lease_priority_calls(id);
    }
}

/// Returns whether a call may be leased beside what its actor's worker has; and if so, whether nothing may be leased beside it.
///
/// What a call writes is told from what others write by which calls run. So one whose output somebody wants is leased with no call that might
/// run just before or after it and be taken for it: alone, if its method runs alone, and else beside calls that begin while it runs.
fn may_be_leased(state: &State, actor: TaskId, worker: WorkerId, call: TaskId) -> Option<bool> {
    let (actor, task) = (state.actors.get(actor)?, state.tasks.get(call)?);
    let worker = state.workers.get(&worker)?;
    let is_concurrent = |task: &Task| actor.is_concurrent(task.target);
    let is_alone = task.must_be_alone || (task.wants_output && !is_concurrent(task));
    let must_wait = if is_alone {
        !worker.leases.is_empty()
    } else if task.wants_output {
        worker.leases.iter().any(|grant| state.tasks.get(grant.task).is_some_and(|task| !is_concurrent(task)))
    } else {
        !worker.watched.is_empty() && !is_concurrent(task)
    };
    (!must_wait).then_some(is_alone)
}

/// Returns the worker of an actor, if it may be leased a call.
fn may_be_served(state: &State, id: TaskId) -> Option<WorkerId> {
    let actor = state.actors.get(id).filter(|actor| *actor.life() == Life::Alive && !actor.calls().is_empty())?;
    let worker_id = actor.worker()?;
    let worker = state.workers.get(&worker_id)?;
    let is_open = worker.phase() == WorkerPhase::Ready && !worker.ends_attempt() && worker.ending().is_none();
    // The ring has room for this many numbers from the oldest lease on.
    let in_ring = worker.leases.front().map_or(0, |oldest| worker.next_lease - oldest.number);
    let has_room = worker.leases.len() < LEASE_LIMIT && in_ring < CLAIM_COUNT as u64;
    (is_open && has_room && !worker.load.is_exclusive).then_some(worker_id)
}

/// Returns the call of an actor whose turn it is: of those with the highest priority, which rises as they wait, the first that was submitted. One that is
/// held holds up those of its submitter that came after it.
fn next_call(state: &State, id: TaskId) -> Option<TaskId> {
    let has_priorities = state.queue.has_priority_calls(id);
    let mut held = HashSet::new();
    // The first of each priority.
    let mut firsts: BTreeMap<i8, (Rank, TaskId)> = BTreeMap::new();
    for &id in state.actors.get(id)?.calls() {
        let Some(task) = state.tasks.get(id) else { continue };
        let submitter = (task.submitter, task.job);
        match task.progress() {
            Progress::Waiting if held.contains(&submitter) => {}
            Progress::Waiting if !has_priorities => return Some(id),
            Progress::Waiting => drop(firsts.entry(task.extra.priority).or_insert((Rank::of(task), id))),
            _ => drop(held.insert(submitter)),
        }
    }
    firsts.into_values().max_by_key(|&(rank, id)| (rank, Reverse(id))).map(|(_, id)| id)
}

#[cfg(test)]
#[path = "place_tests.rs"]
mod tests;
