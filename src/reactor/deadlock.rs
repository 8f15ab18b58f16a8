//! Deadlocks: a part of the [reactor](crate).
//!
//! An actor runs one call at a time, but for those of concurrent methods. A call that waits for another call of its own actor, itself or
//! through other tasks, waits for what cannot begin before it has ended. When an attempt blocks its own thread, with no limit, the tasks
//! that wait for each other are searched from it: if it can never go on, the call that has not begun fails, and names the cycle.
//!
//! A wait in a future, on another thread or with a limit may end otherwise, so it breaks nothing; [`find`] counts it, to explain.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::rc::Rc;

use crate::{
    actors::line::{self, Line},
    effects::Effects,
    lifecycle,
    state::{State, actor::Part, now::Now, progress::Progress, task::Task},
    waiting,
};
use tracer_core::task::{Failure, Input, TaskId, WorkerId};
use tracer_ipc::protocol::{BlockedTask, Cycle, INLINE_LEASE, WaitsFor};
use tracer_ipc::spool::ClaimState;

/// Conditions that are looked at in one search. Beyond it nothing is found.
const LOOKS_LIMIT: usize = 1 << 17;
/// Limit on searches for one wait: each fails as many calls as the wait needs.
const ROUNDS: usize = 4;

/// Fails calls that have not begun, until this attempt, which blocks its thread, may go on.
pub(crate) fn break_cycles(state: &mut State, effects: &mut impl Effects, waiter: TaskId, now: Now) {
    for _ in 0..ROUNDS {
        if !line::may_block(state) {
            return;
        }
        let Some(stuck) = Stuck::of(state, effects, waiter, Waits::Blocking) else { return };
        let cycles = stuck.cycles_to_break(waiter);
        let mut has_failed = false;
        for (call, cycle) in cycles {
            let hint = match cycle.len() {
                2 => {
                    "a method calls another one of the same actor as a function, `self.method(..)`, or returns without waiting for it"
                }
                _ => {
                    "let one of them return before the other is called; calls of `async` methods that take `&self` run beside each other"
                }
            };
            let message = format!("{}\n(hint: {hint})", told(state, &cycle));
            has_failed |= fail(state, effects, call, Failure::Deadlock { message }, now);
        }
        if !has_failed {
            return;
        }
    }
}

/// Returns the cycle that this task is in, or waits for, whatever may end the waits.
pub(crate) fn find(state: &State, effects: &impl Effects, id: TaskId) -> Option<Cycle> {
    if !line::may_block(state) {
        return None;
    }
    let stuck = Stuck::of(state, effects, id, Waits::All)?;
    Some(told(state, &stuck.cycle_from(id)?))
}

/// Ends a task that no worker has begun. False when one has.
fn fail(state: &mut State, effects: &mut impl Effects, id: TaskId, failure: Failure, now: Now) -> bool {
    match state.tasks.get(id).map(|task| task.progress()) {
        Some(Progress::Waiting | Progress::Held) => {
            waiting::take_out(state, id);
            lifecycle::end_task(state, effects, id, lifecycle::unstarted(failure, now));
            true
        }
        Some(&Progress::Leased { worker }) => {
            let lease = state.workers.get(&worker).and_then(|worker| worker.lease_of(id));
            let Some(lease) = lease.filter(|&lease| effects.revoke(worker, lease)) else { return false };
            lifecycle::end_unbegun(state, effects, worker, lease, failure, now);
            true
        }
        Some(Progress::Between | Progress::Retrying { .. } | Progress::Shared | Progress::Ended(_)) | None => false,
    }
}

type Step = (TaskId, WaitsFor);

fn told(state: &State, cycle: &[Step]) -> Cycle {
    let target =
        |id| state.tasks.get(id).map_or_else(String::new, |task: &Task| state.targets.name(task.target).into());
    let tasks = cycle.iter().map(|&(id, waits_for)| BlockedTask { id, target: target(id), waits_for });
    Cycle { tasks: tasks.collect() }
}

/// Waits that a search counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    /// Waits that nothing ends but the ends of tasks.
    Blocking,
    /// Every one.
    All,
}

/// A condition to go on: so many of these tasks have to end.
struct Condition {
    wanted: usize,
    of: Rc<[TaskId]>,
    waits_for: WaitsFor,
}

/// The tasks that can never go on, among those that one task waits for, each with what it waits for.
struct Stuck {
    tasks: HashMap<TaskId, Vec<Condition>>,
}

impl Stuck {
    /// None when the task may go on, or that cannot be said.
    fn of(state: &State, effects: &impl Effects, id: TaskId, waits: Waits) -> Option<Stuck> {
        let mut search = Search { state, effects, waits, lines: HashMap::new() };
        let (mut tasks, mut order) = (HashMap::new(), Vec::new());
        let (mut to_look_at, mut looks) = (vec![id], 0);
        while let Some(id) = to_look_at.pop() {
            if tasks.contains_key(&id) {
                continue;
            }
            let conditions = search.conditions(id);
            for condition in &conditions {
                looks += condition.of.len();
                to_look_at.extend(condition.of.iter().filter(|&id| !tasks.contains_key(id)));
            }
            if looks > LOOKS_LIMIT {
                return None;
            }
            order.push(id);
            tasks.insert(id, conditions);
        }
        // Whatever waits for nothing can end; then what waits for enough of those, and so on. The rest never can.
        let mut can_end = BTreeSet::new();
        loop {
            let before = can_end.len();
            for id in order.iter().rev() {
                let holds = |condition: &Condition| {
                    condition.of.iter().filter(|&id| can_end.contains(id)).take(condition.wanted).count()
                        == condition.wanted
                };
                if !can_end.contains(id) && tasks[id].iter().all(holds) {
                    can_end.insert(*id);
                }
            }
            if can_end.len() == before {
                break;
            }
        }
        if can_end.contains(&id) {
            return None;
        }
        tasks.retain(|id, _| !can_end.contains(id));
        for conditions in tasks.values_mut() {
            for condition in conditions.iter_mut() {
                let stuck: Rc<[TaskId]> = condition.of.iter().copied().filter(|id| !can_end.contains(id)).collect();
                let ended = condition.of.len() - stuck.len();
                *condition = Condition { wanted: condition.wanted.saturating_sub(ended), of: stuck, ..*condition };
            }
            conditions.retain(|condition| condition.wanted > 0);
        }
        Some(Stuck { tasks })
    }

    /// Waits of each of these tasks.
    fn waits(&self, id: TaskId) -> impl Iterator<Item = (TaskId, WaitsFor)> {
        let conditions = self.tasks.get(&id).into_iter().flatten();
        conditions.flat_map(|condition| condition.of.iter().map(|&id| (id, condition.waits_for)))
    }

    /// Returns the first step of the shortest way to this task, by the task that it begins at.
    fn ways_to(&self, end: TaskId) -> HashMap<TaskId, (WaitsFor, TaskId)> {
        let mut waiting: HashMap<TaskId, Vec<Step>> = HashMap::new();
        for &id in self.tasks.keys() {
            for (next, waits_for) in self.waits(id) {
                waiting.entry(next).or_default().push((id, waits_for));
            }
        }
        let mut ways = HashMap::new();
        let mut to_look_at = VecDeque::from([end]);
        while let Some(id) = to_look_at.pop_front() {
            let mut before = waiting.remove(&id).unwrap_or_default();
            before.sort_unstable_by_key(|&(id, _)| id);
            for (from, waits_for) in before {
                ways.entry(from).or_insert_with(|| {
                    to_look_at.push_back(from);
                    (waits_for, id)
                });
            }
        }
        ways
    }

    /// Returns the way from one task to another, each task with what it waits for in the next, without the last.
    fn way(ways: &HashMap<TaskId, (WaitsFor, TaskId)>, from: TaskId, end: TaskId) -> Vec<Step> {
        let mut way = Vec::new();
        let mut at = from;
        while let Some(&(waits_for, next)) = ways.get(&at) {
            way.push((at, waits_for));
            at = next;
            if at == end {
                break;
            }
        }
        way
    }

    /// Returns the calls whose failure lets this task go on, each with the cycle that it is in, which begins with it.
    fn cycles_to_break(&self, waiter: TaskId) -> Vec<(TaskId, Vec<Step>)> {
        let ways = self.ways_to(waiter);
        let mut calls: Vec<(TaskId, Vec<Step>)> = Vec::new();
        for condition in self.tasks.get(&waiter).into_iter().flatten() {
            for &next in condition.of.iter().take(condition.wanted) {
                let mut cycle = vec![(waiter, condition.waits_for)];
                if next != waiter {
                    cycle.extend(Stuck::way(&ways, next, waiter));
                }
                let Some(place) = cycle.iter().position(|&(_, waits_for)| waits_for == WaitsFor::Actor) else {
                    continue;
                };
                cycle.rotate_left(place);
                let call = cycle[0].0;
                if calls.iter().all(|&(known, _)| known != call) {
                    calls.push((call, cycle));
                }
            }
        }
        calls
    }

    /// Returns a cycle that this task is in, or else one that it waits for.
    fn cycle_from(&self, id: TaskId) -> Option<Vec<Step>> {
        let (mut seen, mut to_look_at) = (BTreeSet::from([id]), VecDeque::from([id]));
        while let Some(id) = to_look_at.pop_front() {
            let ways = self.ways_to(id);
            if ways.contains_key(&id) {
                return Some(Stuck::way(&ways, id, id));
            }
            to_look_at.extend(self.waits(id).map(|(next, _)| next).filter(|&next| seen.insert(next)));
        }
        None
    }
}

struct Search<'a, E> {
    state: &'a State,
    effects: &'a E,
    waits: Waits,
    /// By actor.
    lines: HashMap<TaskId, Option<Line>>,
}

impl<E: Effects> Search<'_, E> {
    /// Returns what has to end before this task can; empty for what can end as far as the head knows.
    fn conditions(&mut self, id: TaskId) -> Vec<Condition> {
        let Some(task) = self.state.tasks.get(id) else { return Vec::new() };
        match task.progress() {
            Progress::Held => {
                let inputs = task.links.iter().flat_map(|links| &links.inputs).filter_map(Input::task);
                let mut conditions = vec![all(inputs.filter(|&input| input < id).collect(), WaitsFor::Argument)];
                conditions.extend(self.place_in_line(id, task));
                conditions
            }
            Progress::Waiting => self.place_in_line(id, task),
            &Progress::Leased { worker } => match self.has_begun(worker, id) {
                true => self.waits_of(worker, id),
                false => self.place_in_line(id, task),
            },
            Progress::Ended(_) => match line::worker_that_makes_again(self.state, id) {
                Some(worker) if self.has_begun(worker, id) => self.waits_of(worker, id),
                _ => Vec::new(),
            },
            Progress::Between | Progress::Retrying { .. } | Progress::Shared => Vec::new(),
        }
    }

    fn has_begun(&self, worker_id: WorkerId, id: TaskId) -> bool {
        let lease = self.state.workers.get(&worker_id).and_then(|worker| worker.lease_of(id));
        lease.is_some_and(|lease| {
            lease & INLINE_LEASE != 0 || self.effects.claim_state(worker_id, lease) == ClaimState::Claimed
        })
    }

    /// Wait that a running task makes in its code.
    fn waits_of(&self, worker_id: WorkerId, id: TaskId) -> Vec<Condition> {
        let has_ended =
            |id: TaskId| self.state.tasks.get(id).is_none_or(|task| matches!(task.progress(), Progress::Ended(_)));
        let waits = self.state.workers.get(&worker_id).map_or(&[][..], |worker| &worker.waits);
        let waits = waits.iter().filter(|wait| match wait.blocked {
            Some(blocked) => blocked == id,
            None => self.waits == Waits::All && wait.task == id,
        });
        let conditions = waits.map(|wait| {
            let open: Rc<[TaskId]> = wait.open.iter().copied().filter(|&id| !has_ended(id)).collect();
            let wanted = wait.left.saturating_sub(wait.open.len() - open.len());
            Condition { wanted, of: open, waits_for: WaitsFor::End }
        });
        conditions.filter(|condition| condition.wanted > 0).collect()
    }

    /// Reason for which a call that has not begun waits in its actor.
    fn place_in_line(&mut self, id: TaskId, task: &Task) -> Vec<Condition> {
        let Part::Call(actor) = task.actor else { return Vec::new() };
        let (state, effects) = (self.state, self.effects);
        let line = self.lines.entry(actor).or_insert_with(|| line::line(state, effects, actor));
        let Some(line) = line else { return Vec::new() };
        let blockers = line.blockers(state, id, task).into_iter();
        blockers.map(|(wanted, of)| Condition { wanted, of, waits_for: WaitsFor::Actor }).collect()
    }
}

fn all(of: Vec<TaskId>, waits_for: WaitsFor) -> Condition {
    Condition { wanted: of.len(), of: of.into(), waits_for }
}

#[cfg(test)]
#[path = "deadlock_tests.rs"]
mod tests;
