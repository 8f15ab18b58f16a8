use std::collections::BTreeMap;
use std::sync::Arc;

use crate::state::{
    State,
    needs::{Needs, Resource},
    now::Now,
    progress::Progress,
    ready_queue::QueueKey,
    worker::Worker,
};
use tracer_core::suggestion;
use tracer_core::task::{Amounts, TaskId};

/// Time that others may pass a task that is first in its queue and does not fit.
pub(crate) const PASSED_FOR_NS: u64 = 1_000_000_000;

/// Amounts that no task holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Free {
    /// Slots.
    pub cpus: usize,
    /// Amount of each resource of the head, in its order.
    pub resources: Vec<u64>,
    /// Processes for tasks that take no slot.
    pub without_slot: usize,
}

impl Free {
    /// Returns what is free now.
    pub fn of(state: &State) -> Free {
        let workers = &state.workers;
        let resource = |resource: &Resource| {
            let of_replicas = state.occupied.get(&*resource.name).copied().unwrap_or(0);
            resource.total.saturating_sub(workers.held(&resource.name)).saturating_sub(of_replicas)
        };
        // So that they never take the processes that slots need.
        let beside_slots = state.settings.max_processes.saturating_sub(state.settings.workers_wanted).max(1);
        Free {
            cpus: state.settings.workers_wanted.saturating_sub(workers.slots()),
            resources: state.settings.resources.iter().map(resource).collect(),
            without_slot: beside_slots.saturating_sub(workers.without_slot()),
        }
    }

    /// Returns whether a task with these needs could begin, given a process.
    pub fn fits(&self, state: &State, needs: Option<&Needs>) -> bool {
        let Some(needs) = needs else { return self.cpus > 0 };
        let has_slots = match needs.cpus {
            0 => self.without_slot > 0,
            cpus => self.cpus >= cpus as usize,
        };
        has_slots && self.short(state, needs).next().is_none()
    }

    /// Returns the resources that these needs find too little of, with how much there is.
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
        self.take_resources(state, needs);
    }

    /// Takes the named resources that a task needs.
    pub(crate) fn take_resources(&mut self, state: &State, needs: &Needs) {
        for (name, amount) in &needs.resources {
            if let Some(index) = place(state, name) {
                self.resources[index] = self.resources[index].saturating_sub(*amount);
            }
        }
    }
}

/// Returns what the tasks of a worker have of named resources.
pub(crate) fn held_resources(worker: &Worker) -> BTreeMap<String, u64> {
    let mut held = BTreeMap::new();
    for (name, amount) in worker.needs().flat_map(|needs| &needs.resources) {
        *held.entry(name.as_ref().into()).or_default() += amount;
    }
    held
}

pub(crate) fn place(state: &State, name: &str) -> Option<usize> {
    state.settings.resources.binary_search_by(|resource| (*resource.name).cmp(name)).ok()
}

/// Resources that are reserved for a task that others have passed for long enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reserved {
    /// Needs of the task for which they are reserved.
    pub needs: Arc<Needs>,
    /// Number of its resources that are kept, from the first.
    resources: usize,
    /// True if slots are kept.
    pub cpus: bool,
}

impl Reserved {
    fn of(state: &State, free: &Free, needs: &Arc<Needs>) -> Reserved {
        // One kind after another: what comes before is there already and stays. The first that is short is kept, so that it comes.
        let is_there =
            |(name, amount): &(Box<str>, u64)| place(state, name).is_some_and(|index| free.resources[index] >= *amount);
        let there = needs.resources.iter().take_while(|needed| is_there(needed)).count();
        let (resources, cpus) = if there == needs.resources.len() { (there, true) } else { (there + 1, false) };
        Reserved { needs: Arc::clone(needs), resources, cpus }
    }

    /// Returns whether a task with these needs leaves what is kept.
    fn leaves(&self, state: &State, free: &Free, needs: Option<&Needs>) -> bool {
        if self.cpus && self.needs.cpus > 0 {
            let cpus = needs.map_or(1, |needs| needs.cpus as usize);
            if cpus > 0 && free.cpus < cpus + self.needs.cpus as usize {
                return false;
            }
        }
        let Some(needs) = needs else { return true };
        let kept = &self.needs.resources[..self.resources];
        needs.resources.iter().all(|(name, amount)| {
            let kept = kept.iter().find(|(kept, _)| kept == name).map(|&(_, kept)| kept);
            let free = place(state, name).map_or(0, |index| free.resources[index]);
            kept.is_none_or(|kept| free >= amount.saturating_add(kept))
        })
    }
}

/// The queues and the reservation of one turn of scheduling.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// The queues whose first task may begin, in their order.
    pub may_begin: Vec<QueueKey>,
    /// Resources that are reserved.
    pub reserved: Option<Reserved>,
    /// True if a task that needs more than a slot lacks nothing but slots.
    pub wants_slots: bool,
}

/// Looks at every ready queue. Those that can never fit here, as may be after a start with less, are passed over.
pub(crate) fn turn(state: &mut State, free: &Free, now: Now) -> Turn {
    let queues = state.queue.in_turn(now);
    let mut turn = Turn::default();
    for (key, since) in queues {
        let needs = key.as_deref();
        if needs.is_some_and(|needs| check(state, needs.cpus, &needs.resources).is_err()) {
            continue;
        }
        let is_kept_from = turn.reserved.as_ref().is_some_and(|reserved| !reserved.leaves(state, free, needs));
        if free.fits(state, needs) && !is_kept_from {
            turn.may_begin.push(key);
            continue;
        }
        let Some(needs) = key else { continue };
        turn.wants_slots |= needs.cpus > 0 && free.short(state, &needs).next().is_none();
        let is_passed_for_long = now.monotonic_ns.saturating_sub(since) >= PASSED_FOR_NS;
        if turn.reserved.is_none() && is_passed_for_long && !free.fits(state, Some(&needs)) {
            turn.reserved = Some(Reserved::of(state, free, &needs));
        }
    }
    turn
}

/// Returns the number of tasks could begin now, given processes.
pub(crate) fn may_begin(state: &State) -> usize {
    let free = Free::of(state);
    let mut with_slot = state.queue.plain().len();
    let mut without_slot = 0;
    for (needs, waiting) in state.queue.demands() {
        if check(state, needs.cpus, &needs.resources).is_err() || free.short(state, needs).next().is_some() {
            continue;
        }
        let amount = |(name, amount): &(Box<str>, u64)| Some(free.resources[place(state, name)?] / amount);
        let most = needs.resources.iter().filter_map(amount).min().unwrap_or(u64::MAX);
        let count = waiting.min(usize::try_from(most).unwrap_or(usize::MAX));
        match needs.cpus {
            0 => without_slot += count,
            cpus => with_slot += count.min(free.cpus / cpus as usize),
        }
    }
    with_slot.min(free.cpus) + without_slot.min(free.without_slot)
}

/// Says why a task with these needs can never run here, if so.
pub(crate) fn check<N: AsRef<str>>(state: &State, cpus: u32, resources: &[(N, u64)]) -> Result<(), String> {
    let slots = state.settings.workers_wanted;
    if cpus as usize > slots {
        return Err(format!(
            "the task asks for {cpus} cpus (--num-cpus), but this head has {slots}, one for each of its workers\n\
             (hint: ask for less, or start the head with --num-workers {cpus})"
        ));
    }
    for (name, amount) in resources {
        let name = name.as_ref();
        let Some(index) = place(state, name) else {
            let known: Vec<_> =
                state.settings.resources.iter().map(|resource| (&*resource.name, resource.total)).collect();
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
        let total = state.settings.resources[index].total;
        if *amount > total {
            return Err(format!(
                "the task asks for `{name}={amount}`, but this head has {total} of it in all\n\
                 (hint: ask for less, or start the head with --resources {name}={amount})"
            ));
        }
    }
    Ok(())
}

/// Returns the tasks that hold this resource, with how much each has.
pub(crate) fn holders(state: &State, name: &str) -> Vec<(TaskId, u64)> {
    let grants = state.workers.values().flat_map(|worker| worker.leases.iter().chain(&worker.inline));
    let held = grants.filter_map(|grant| {
        let needs = state.tasks.get(grant.task)?.needs.as_deref()?;
        needs.resources.iter().find(|(held, _)| **held == *name).map(|&(_, amount)| (grant.task, amount))
    });
    held.collect()
}

/// Returns whether this task, which has not ended, waits for that one, perhaps through others.
pub(crate) fn waits_for(state: &State, waiter: TaskId, id: TaskId) -> bool {
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

#[cfg(test)]
#[path = "resources_tests.rs"]
mod tests;
