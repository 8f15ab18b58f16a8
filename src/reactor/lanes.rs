//! Tasks with demands: where they wait, what is free, and which of them may begin. Data and decisions, no effects.
//!
//! A head has *slots*, as many as workers are wanted, and named *resources*. A plain task takes one slot. What else is asked for is a
//! [`Needs`]. Tasks of equal needs wait in a *lane*, those without any in the plain one; in a lane, jobs take turns, and within a job the order
//! is that of submission. Lanes take turns too: the one whose first task has been first for longest comes first. If that task does not
//! fit what is free, others may pass it for [`PASSED_FOR_NS`]; from then on what it lacks is kept for it, one kind after another and
//! slots last. So nothing starves: what is kept grows until the task fits. And nothing is kept before it is its turn: while a task waits
//! for a resource, slots are for others.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::state::{Now, Progress, Queue, State, Task, Worker};
use tracer_core::suggestion;
use tracer_core::task::{Amounts, Demand, TaskId};
use tracer_ipc::protocol::DemandReport;

/// How long others may pass a task that is first in its lane and does not fit.
pub const PASSED_FOR_NS: u64 = 1_000_000_000;

/// What a task needs, if that is not just a slot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Needs {
    /// How many slots.
    pub cpus: u32,
    /// How much of which resources, by name.
    pub resources: Box<[(Box<str>, u64)]>,
}

impl Needs {
    /// What a demand needs of the head; none for a slot.
    pub fn of(demand: &Demand<'_>) -> Option<Needs> {
        let is_plain = demand.num_cpus == 1 && demand.resources.is_empty();
        let resources = demand.resources.iter().map(|&(name, amount)| (name.into(), amount)).collect();
        (!is_plain).then_some(Needs { cpus: demand.num_cpus, resources })
    }
}

impl Needs {
    /// For people and programs.
    pub fn report(&self) -> DemandReport {
        let resources = self.resources.iter().map(|(name, amount)| (name.as_ref().into(), *amount));
        DemandReport { num_cpus: self.cpus, resources: resources.collect(), memory_bytes: None }
    }
}

/// A named resource of the head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Its name.
    pub name: Box<str>,
    /// How much there is.
    pub total: u64,
}

/// Tasks that wait for their turn, by what they need.
#[derive(Debug, Default)]
pub struct Queues {
    /// Those that need a slot and nothing else.
    pub plain: Queue,
    /// When the first of those became that.
    plain_turn: u64,
    /// The others. No lane is empty.
    lanes: BTreeMap<Arc<Needs>, Lane>,
    /// How many tasks are in lanes.
    in_lanes: usize,
    next_turn: u64,
    /// The task for which something is kept, as it was when tasks were begun last.
    pub kept_for: Option<TaskId>,
}

/// Tasks of equal needs.
#[derive(Debug)]
struct Lane {
    queue: Queue,
    /// Lanes with lower numbers come first.
    turn: u64,
    /// Since when its first task has been looked at, by the clock that never jumps.
    first_since_ns: Option<u64>,
}

/// Which lane; none for the plain one.
pub type LaneKey = Option<Arc<Needs>>;

impl Queues {
    /// How many tasks there are.
    pub fn len(&self) -> usize {
        self.plain.len() + self.in_lanes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.in_lanes == 0
    }

    /// Whether any of them needs something else than a slot.
    pub fn has_lanes(&self) -> bool {
        self.in_lanes > 0
    }

    /// The needs in the form in which all tasks with them share them.
    pub fn share(&self, needs: Needs) -> Arc<Needs> {
        let needs = Arc::new(needs);
        self.lanes.get_key_value(&needs).map_or(needs, |(known, _)| Arc::clone(known))
    }

    /// Adds a task behind all of its kind and job.
    pub fn push_back(&mut self, id: TaskId, task: &Task) {
        self.queue_of(task).push_back(id, task.submitter, task.job);
    }

    /// Adds a task before all of its kind and job.
    pub fn push_front(&mut self, id: TaskId, task: &Task) {
        self.queue_of(task).push_front(id, task.submitter, task.job);
    }

    fn queue_of(&mut self, task: &Task) -> &mut Queue {
        let Some(needs) = &task.needs else { return &mut self.plain };
        self.in_lanes += 1;
        let next_turn = &mut self.next_turn;
        let lane = self.lanes.entry(Arc::clone(needs)).or_insert_with(|| {
            *next_turn += 1;
            Lane { queue: Queue::default(), turn: *next_turn, first_since_ns: None }
        });
        &mut lane.queue
    }

    /// Takes a task out, wherever it is.
    pub fn remove(&mut self, id: TaskId, task: &Task) {
        let Some(needs) = &task.needs else { return self.plain.remove(id, task.submitter, task.job) };
        let Some(lane) = self.lanes.get_mut(needs) else { return };
        let was_first = lane.queue.front() == Some(&id);
        let before = lane.queue.len();
        lane.queue.remove(id, task.submitter, task.job);
        self.in_lanes -= before - lane.queue.len();
        if was_first {
            lane.first_since_ns = None;
        }
        if lane.queue.is_empty() {
            self.lanes.remove(needs);
        }
    }

    /// Whose turn it is in a lane.
    pub fn front(&self, lane: &LaneKey) -> Option<TaskId> {
        match lane {
            None => self.plain.front().copied(),
            Some(needs) => self.lanes.get(needs)?.queue.front().copied(),
        }
    }

    /// Takes out whose turn it is in a lane.
    pub fn pop_front(&mut self, lane: &LaneKey) -> Option<TaskId> {
        let Some(needs) = lane else { return self.plain.pop_front() };
        let lane = self.lanes.get_mut(needs)?;
        let id = lane.queue.pop_front()?;
        self.in_lanes -= 1;
        if lane.queue.is_empty() {
            self.lanes.remove(needs);
        }
        Some(id)
    }

    /// A lane has had its turn.
    pub fn end_turn(&mut self, lane: &LaneKey) {
        self.next_turn += 1;
        match lane {
            None => self.plain_turn = self.next_turn,
            Some(needs) => {
                if let Some(lane) = self.lanes.get_mut(needs) {
                    lane.turn = self.next_turn;
                    lane.first_since_ns = None;
                }
            }
        }
    }

    /// The lanes that have tasks, in the order of their turn, each with since when its first task has been first.
    fn in_turn(&mut self, now: Now) -> Vec<(LaneKey, u64)> {
        let mut lanes: Vec<_> = Vec::with_capacity(self.lanes.len() + 1);
        for (needs, lane) in &mut self.lanes {
            let since = *lane.first_since_ns.get_or_insert(now.monotonic_ns);
            lanes.push((lane.turn, Some(Arc::clone(needs)), since));
        }
        if !self.plain.is_empty() {
            lanes.push((self.plain_turn, None, now.monotonic_ns));
        }
        lanes.sort_unstable_by_key(|&(turn, ..)| turn);
        lanes.into_iter().map(|(_, lane, since)| (lane, since)).collect()
    }

    /// All of them, lane after lane, each in the order of its turn.
    pub fn iter(&self) -> impl Iterator<Item = TaskId> {
        self.plain.iter().chain(self.lanes.values().flat_map(|lane| lane.queue.iter()))
    }

    /// The tasks of a task's lane, in the order of their turn.
    pub fn lane_of(&self, task: &Task) -> impl Iterator<Item = TaskId> {
        let queue = match &task.needs {
            None => Some(&self.plain),
            Some(needs) => self.lanes.get(needs).map(|lane| &lane.queue),
        };
        queue.into_iter().flat_map(Queue::iter)
    }

    /// Fails with a sentence when the parts contradict each other.
    pub fn check(&self) -> Result<(), String> {
        let counted: usize = self.lanes.values().map(|lane| lane.queue.len()).sum();
        if counted != self.in_lanes || self.lanes.values().any(|lane| lane.queue.is_empty()) {
            return Err(format!("{counted} tasks are in lanes, {} counted", self.in_lanes));
        }
        Ok(())
    }
}

/// What nobody has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Free {
    /// Slots.
    pub cpus: usize,
    /// Of each resource of the head, in its order.
    pub resources: Vec<u64>,
    /// Processes for tasks that take no slot.
    pub without_slot: usize,
}

impl Free {
    /// What is free now.
    pub fn of(state: &State) -> Free {
        let workers = &state.workers;
        let resource = |resource: &Resource| resource.total.saturating_sub(workers.held(&resource.name));
        // So that they never take the processes that slots need.
        let beside_slots = state.max_processes.saturating_sub(state.workers_wanted).max(1);
        Free {
            cpus: state.workers_wanted.saturating_sub(workers.slots()),
            resources: state.resources.iter().map(resource).collect(),
            without_slot: beside_slots.saturating_sub(workers.without_slot()),
        }
    }

    /// Whether a task with these needs could begin, given a process.
    pub fn fits(&self, state: &State, needs: Option<&Needs>) -> bool {
        let Some(needs) = needs else { return self.cpus > 0 };
        let has_slots = match needs.cpus {
            0 => self.without_slot > 0,
            cpus => self.cpus >= cpus as usize,
        };
        has_slots && self.short(state, needs).next().is_none()
    }

    /// The resources that these needs find too little of, with how much there is.
    pub fn short<'a>(&'a self, state: &'a State, needs: &'a Needs) -> impl Iterator<Item = (&'a str, u64, u64)> {
        needs.resources.iter().filter_map(|(name, amount)| {
            let free = place(state, name).map_or(0, |index| self.resources[index]);
            (free < *amount).then_some((&**name, *amount, free))
        })
    }

    /// Takes what a task needs that begins.
    pub fn take(&mut self, state: &State, needs: Option<&Needs>) {
        let Some(needs) = needs else {
            self.cpus = self.cpus.saturating_sub(1);
            return;
        };
        self.cpus = self.cpus.saturating_sub(needs.cpus as usize);
        if needs.cpus == 0 {
            self.without_slot = self.without_slot.saturating_sub(1);
        }
        for (name, amount) in &needs.resources {
            if let Some(index) = place(state, name) {
                self.resources[index] = self.resources[index].saturating_sub(*amount);
            }
        }
    }
}

/// What the tasks of a worker have of named resources.
pub fn held_resources(worker: &Worker) -> BTreeMap<String, u64> {
    let mut held = BTreeMap::new();
    for (name, amount) in worker.needs().flat_map(|needs| &needs.resources) {
        *held.entry(name.as_ref().into()).or_default() += amount;
    }
    held
}

fn place(state: &State, name: &str) -> Option<usize> {
    state.resources.binary_search_by(|resource| (*resource.name).cmp(name)).ok()
}

/// What is kept for a task that others have passed for long enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The lane whose first task it is.
    pub lane: Arc<Needs>,
    /// How many of its resources are kept, from the first.
    resources: usize,
    /// Whether slots are kept.
    pub cpus: bool,
}

impl Kept {
    fn of(state: &State, free: &Free, lane: &Arc<Needs>) -> Kept {
        // One kind after another: what comes before is there already and stays. The first that is short is kept, so that it comes.
        let is_there =
            |(name, amount): &(Box<str>, u64)| place(state, name).is_some_and(|index| free.resources[index] >= *amount);
        let there = lane.resources.iter().take_while(|needed| is_there(needed)).count();
        let (resources, cpus) = if there == lane.resources.len() { (there, true) } else { (there + 1, false) };
        Kept { lane: Arc::clone(lane), resources, cpus }
    }

    /// Whether a task with these needs leaves what is kept.
    pub fn leaves(&self, state: &State, free: &Free, needs: Option<&Needs>) -> bool {
        if self.cpus && self.lane.cpus > 0 {
            let cpus = needs.map_or(1, |needs| needs.cpus as usize);
            if cpus > 0 && free.cpus < cpus + self.lane.cpus as usize {
                return false;
            }
        }
        let Some(needs) = needs else { return true };
        let kept = &self.lane.resources[..self.resources];
        needs.resources.iter().all(|(name, amount)| {
            let kept = kept.iter().find(|(kept, _)| kept == name).map(|&(_, kept)| kept);
            let free = place(state, name).map_or(0, |index| free.resources[index]);
            kept.is_none_or(|kept| free >= amount.saturating_add(kept))
        })
    }
}

/// What may be done in one turn.
#[derive(Debug, Default)]
pub struct Turn {
    /// The lanes whose first task may begin, in their order.
    pub may_begin: Vec<LaneKey>,
    /// What is kept, and for whom.
    pub kept: Option<Kept>,
    /// Whether a task in a lane lacks nothing but slots.
    pub wants_slots: bool,
}

/// Looks at every lane. Those that can never fit here, as may be after a start with less, are passed over.
pub fn turn(state: &mut State, free: &Free, now: Now) -> Turn {
    let lanes = state.queue.in_turn(now);
    let mut turn = Turn::default();
    for (lane, since) in lanes {
        let needs = lane.as_deref();
        if needs.is_some_and(|needs| check(state, needs.cpus, &needs.resources).is_err()) {
            continue;
        }
        let is_kept_from = turn.kept.as_ref().is_some_and(|kept| !kept.leaves(state, free, needs));
        if free.fits(state, needs) && !is_kept_from {
            turn.may_begin.push(lane);
            continue;
        }
        let Some(lane) = lane else { continue };
        turn.wants_slots |= lane.cpus > 0 && free.short(state, &lane).next().is_none();
        let is_passed_for_long = now.monotonic_ns.saturating_sub(since) >= PASSED_FOR_NS;
        if turn.kept.is_none() && is_passed_for_long && !free.fits(state, Some(&lane)) {
            turn.kept = Some(Kept::of(state, free, &lane));
        }
    }
    turn
}

/// How many tasks could begin now, given processes.
pub fn may_begin(state: &State) -> usize {
    let free = Free::of(state);
    let mut with_slot = state.queue.plain.len();
    let mut without_slot = 0;
    for (needs, lane) in &state.queue.lanes {
        if check(state, needs.cpus, &needs.resources).is_err() || free.short(state, needs).next().is_some() {
            continue;
        }
        let amount = |(name, amount): &(Box<str>, u64)| Some(free.resources[place(state, name)?] / amount);
        let most = needs.resources.iter().filter_map(amount).min().unwrap_or(u64::MAX);
        let count = lane.queue.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        match needs.cpus {
            0 => without_slot += count,
            cpus => with_slot += count.min(free.cpus / cpus as usize),
        }
    }
    with_slot.min(free.cpus) + without_slot.min(free.without_slot)
}

/// Says why a task with these needs can never run here, if so.
pub fn check<N: AsRef<str>>(state: &State, cpus: u32, resources: &[(N, u64)]) -> Result<(), String> {
    let slots = state.workers_wanted;
    if cpus as usize > slots {
        return Err(format!(
            "the task asks for {cpus} cpus (--num-cpus), but this head has {slots}, one for each of its workers\n\
             (hint: ask for less, or start the head with --num-workers {cpus})"
        ));
    }
    for (name, amount) in resources {
        let name = name.as_ref();
        let Some(index) = place(state, name) else {
            let known: Vec<_> = state.resources.iter().map(|resource| (&*resource.name, resource.total)).collect();
            let hint = match suggestion::hint(name, known.iter().map(|&(name, _)| name)) {
                none if none.is_empty() => {
                    let all = Amounts(&known).to_string();
                    let all = if all.is_empty() { String::new() } else { format!("{all},") };
                    format!("\n(hint: start the head with --resources {all}{name}={amount})")
                }
                hint => hint,
            };
            let has = if known.is_empty() { "none".to_owned() } else { format!("`{}`", Amounts(&known)) };
            return Err(format!(
                "the task asks for the resource `{name}`, which this head does not have; it has {has}{hint}"
            ));
        };
        let total = state.resources[index].total;
        if *amount > total {
            return Err(format!(
                "the task asks for `{name}={amount}`, but this head has {total} of it in all\n\
                 (hint: ask for less, or start the head with --resources {name}={amount})"
            ));
        }
    }
    Ok(())
}

/// The tasks that hold this resource, with how much each has.
pub fn holders(state: &State, name: &str) -> Vec<(TaskId, u64)> {
    let grants = state.workers.values().flat_map(|worker| worker.leases.iter().chain(&worker.inline));
    let held = grants.filter_map(|grant| {
        let needs = state.tasks.get(grant.task)?.needs.as_deref()?;
        needs.resources.iter().find(|(held, _)| **held == *name).map(|&(_, amount)| (grant.task, amount))
    });
    held.collect()
}

/// Whether this task, which has not ended, waits for that one, perhaps through others.
pub fn waits_for(state: &State, waiter: TaskId, id: TaskId) -> bool {
    let mut next = Some(id);
    for _ in 0..128 {
        let Some(submitter) = next.and_then(|id| state.tasks.get(id)?.submitter) else { return false };
        let Some(Progress::Leased { worker }) = state.tasks.get(submitter).map(|task| task.progress()) else {
            return false;
        };
        let waits = state.workers.get(worker).is_some_and(|worker| {
            worker.waits.iter().any(|wait| wait.task == submitter && next.is_some_and(|id| wait.open.contains(&id)))
        });
        if !waits {
            return false;
        }
        if submitter == waiter {
            return true;
        }
        next = Some(submitter);
    }
    false
}
