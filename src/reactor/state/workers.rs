//! The workers that there are, and what the head has to know of all of them together: how many do what, who has room, who is looked at
//! next. Data, no effects.
//!
//! The head decides with each wake-up, whether it has ten workers or ten thousand, so nothing that it asks then goes through all of them. What
//! a worker counts for is its standing. It is entered when the worker is, and again whenever a `WorkerMut` is let go, so that nobody can
//! forget to. [`check`](Workers::check) compares everything with a count anew.

#[cfg(test)]
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::{
    scheduler,
    state::{
        needs::Needs,
        worker::{Ending, Worker, WorkerPhase},
    },
};
use tracer_core::task::WorkerId;

/// Every worker process that has not been reaped, by id.
#[derive(Debug, Default)]
pub struct Workers {
    all: BTreeMap<WorkerId, Entry>,
    totals: Totals,
    order: Order,
    /// Number of workers that were looked at.
    #[cfg(test)]
    looks: Cell<usize>,
}

#[derive(Debug)]
struct Entry {
    worker: Worker,
    /// Its entry in the totals.
    listed: Listed,
    /// The needs that are entered in the totals.
    held: Vec<Arc<Needs>>,
}

/// The place of a worker among those that take tasks: the one used last comes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Recency {
    last_use: i64,
    /// The worker.
    pub worker: WorkerId,
}

/// Gives out places.
#[derive(Debug, Default)]
struct Order {
    first: i64,
    last: i64,
}

/// A worker with what it counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Listed {
    place: Recency,
    standing: Standing,
}

/// A worker's contribution to the totals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Standing {
    is_starting: bool,
    /// Time of its start, while it is being started and nobody ends it.
    start_ns: Option<u64>,
    ready_ns: Option<u64>,
    is_actors: bool,
    /// True if it is in the pool, and not about to end.
    stays_in_pool: bool,
    /// True if it is in the pool beside those that the slots are for: its task waits for others, or takes none.
    is_beside: bool,
    is_waiting: bool,
    goes_on: bool,
    slots: usize,
    holds_no_slot: bool,
    takes_leases: bool,
    is_idle: bool,
    has_room: bool,
    is_filled: bool,
    look_ns: Option<u64>,
}

impl Standing {
    /// The standing of a worker that is not there.
    const NONE: Standing = Standing {
        is_starting: false,
        start_ns: None,
        ready_ns: None,
        is_actors: false,
        stays_in_pool: false,
        is_beside: false,
        is_waiting: false,
        goes_on: false,
        slots: 0,
        holds_no_slot: false,
        takes_leases: false,
        is_idle: false,
        has_room: false,
        is_filled: false,
        look_ns: None,
    };

    fn of(worker: &Worker) -> Standing {
        let (is_actors, is_waiting, holds_slot, slots) =
            (worker.actor.is_some(), worker.is_waiting(), worker.holds_slot(), worker.slots());
        let (is_starting, is_ending) =
            (worker.phase() == WorkerPhase::Starting, worker.phase() == WorkerPhase::Stopping);
        let holds_no_slot = holds_slot && slots == 0;
        let serves = is_actors && !worker.leases.is_empty() && !is_waiting;
        let takes_leases = worker.takes_leases();
        let has_leases = !worker.leases.is_empty();
        Standing {
            is_starting,
            start_ns: (is_starting && worker.ending().is_none()).then_some(worker.started.monotonic_ns),
            ready_ns: worker.ready_monotonic_ns,
            is_actors,
            stays_in_pool: !is_actors && !is_ending,
            is_beside: !is_actors && (is_waiting || holds_no_slot),
            is_waiting: is_waiting && worker.phase() == WorkerPhase::Ready,
            goes_on: holds_slot || serves || is_ending,
            slots,
            holds_no_slot,
            takes_leases,
            is_idle: takes_leases && !has_leases,
            has_room: takes_leases && has_leases && scheduler::wants_more(worker.load),
            is_filled: takes_leases && worker.leases.len() > 1,
            look_ns: look_ns(worker),
        }
    }
}

/// Returns when a worker that does not start is to be looked at, by the monotonic clock.
fn look_ns(worker: &Worker) -> Option<u64> {
    let stopping = worker.stopping().map(|stopping| stopping.next_ns);
    let other = match worker.ending() {
        None => worker.terms.iter().map(|terms| terms.until_ns(worker.last_output_ns)).min(),
        Some(Ending::ActorEnded { until_ns, .. }) => Some(*until_ns),
        Some(_) => None,
    };
    stopping.into_iter().chain(other).min().filter(|&ns| ns < u64::MAX)
}

/// Totals and indexes over all workers.
#[derive(Debug, Default, PartialEq, Eq)]
struct Totals {
    starting: usize,
    actors: usize,
    stay_in_pool: usize,
    beside: usize,
    go_on: usize,
    slots: usize,
    hold_no_slot: usize,
    /// Workers that are being started, by the time of their start.
    starts: BTreeSet<(u64, WorkerId)>,
    /// Workers that got ready, by the time at which they did.
    ready: BTreeSet<(u64, WorkerId)>,
    waiting: BTreeSet<WorkerId>,
    /// Workers that take tasks and have nothing to do.
    idle: BTreeSet<Recency>,
    /// Workers that have something to do, and room for more.
    with_room: BTreeSet<Recency>,
    /// Workers that take tasks and have several.
    filled: BTreeSet<Recency>,
    /// Workers with a deadline, by it.
    deadlines: BTreeSet<(u64, WorkerId)>,
    /// Amounts of named resources that are held.
    held: BTreeMap<Box<str>, u64>,
}

impl Totals {
    /// Notes that a worker counts for something else from now on.
    fn change(&mut self, was: &Listed, is: &Listed) {
        let worker = is.place.worker;
        let (before, now) = (&was.standing, &is.standing);
        count(&mut self.starting, before.is_starting, now.is_starting);
        count(&mut self.actors, before.is_actors, now.is_actors);
        count(&mut self.stay_in_pool, before.stays_in_pool, now.stays_in_pool);
        count(&mut self.beside, before.is_beside, now.is_beside);
        count(&mut self.go_on, before.goes_on, now.goes_on);
        count(&mut self.hold_no_slot, before.holds_no_slot, now.holds_no_slot);
        self.slots = self.slots - before.slots + now.slots;
        let by_time = |ns: Option<u64>| ns.map(|ns| (ns, worker));
        list(&mut self.starts, by_time(before.start_ns), by_time(now.start_ns));
        list(&mut self.ready, by_time(before.ready_ns), by_time(now.ready_ns));
        list(&mut self.deadlines, by_time(before.look_ns), by_time(now.look_ns));
        list(&mut self.waiting, before.is_waiting.then_some(worker), now.is_waiting.then_some(worker));
        let by_use = |listed: &Listed, is_in: bool| is_in.then_some(listed.place);
        list(&mut self.idle, by_use(was, before.is_idle), by_use(is, now.is_idle));
        list(&mut self.with_room, by_use(was, before.has_room), by_use(is, now.has_room));
        list(&mut self.filled, by_use(was, before.is_filled), by_use(is, now.is_filled));
    }

    fn hold(&mut self, needs: &Needs) {
        for (name, amount) in &needs.resources {
            match self.held.get_mut(name) {
                Some(held) => *held += amount,
                None => drop(self.held.insert(name.clone(), *amount)),
            }
        }
    }

    fn release(&mut self, needs: &Needs) {
        for (name, amount) in &needs.resources {
            let Some(held) = self.held.get_mut(name) else { continue };
            *held -= amount;
            if *held == 0 {
                self.held.remove(name);
            }
        }
    }
}

fn count(total: &mut usize, was: bool, is: bool) {
    *total = *total - usize::from(was) + usize::from(is);
}

fn list<T: Ord>(set: &mut BTreeSet<T>, was: Option<T>, is: Option<T>) {
    if was == is {
        return;
    }
    if let Some(was) = was {
        set.remove(&was);
    }
    if let Some(is) = is {
        set.insert(is);
    }
}

/// A worker that may be changed. What it counts for is entered when this is let go.
#[derive(Debug)]
pub(crate) struct WorkerMut<'a> {
    entry: &'a mut Entry,
    totals: &'a mut Totals,
    order: &'a mut Order,
}

impl Deref for WorkerMut<'_> {
    type Target = Worker;

    fn deref(&self) -> &Worker {
        &self.entry.worker
    }
}

impl DerefMut for WorkerMut<'_> {
    fn deref_mut(&mut self) -> &mut Worker {
        &mut self.entry.worker
    }
}

impl Drop for WorkerMut<'_> {
    fn drop(&mut self) {
        let Entry { worker, listed, held } = &mut *self.entry;
        let standing = Standing::of(worker);
        if standing != listed.standing {
            let mut is = Listed { standing, ..*listed };
            if standing.takes_leases && !listed.standing.takes_leases {
                // Workers that are warm already come before one that is new.
                let is_new = listed.standing.is_starting;
                is.place.last_use = if is_new { self.order.before_all() } else { self.order.behind_all() };
            }
            self.totals.change(listed, &is);
            *listed = is;
        }
        if !(worker.terms.is_empty() && held.is_empty()) {
            enter_held(self.totals, worker, held);
        }
    }
}

/// Enters what a worker holds of named resources.
fn enter_held(totals: &mut Totals, worker: &Worker, held: &mut Vec<Arc<Needs>>) {
    if held.iter().eq(worker.needs()) {
        return;
    }
    held.drain(..).for_each(|needs| totals.release(&needs));
    held.extend(worker.needs().cloned());
    held.iter().for_each(|needs| totals.hold(needs));
}

impl Order {
    fn before_all(&mut self) -> i64 {
        self.first -= 1;
        self.first
    }

    fn behind_all(&mut self) -> i64 {
        self.last += 1;
        self.last
    }
}

impl Workers {
    /// Returns how many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Enters one.
    pub(crate) fn insert(&mut self, id: WorkerId, worker: Worker) {
        self.remove(&id);
        let listed = Listed { place: Recency { last_use: 0, worker: id }, standing: Standing::NONE };
        self.all.insert(id, Entry { worker, listed, held: Vec::new() });
        drop(self.get_mut(&id));
    }

    /// Takes one out.
    pub(crate) fn remove(&mut self, id: &WorkerId) -> Option<Worker> {
        let entry = self.all.remove(id)?;
        self.totals.change(&entry.listed, &Listed { standing: Standing::NONE, ..entry.listed });
        entry.held.iter().for_each(|needs| self.totals.release(needs));
        Some(entry.worker)
    }

    /// Returns one of them.
    pub fn get(&self, id: &WorkerId) -> Option<&Worker> {
        self.note_look();
        self.all.get(id).map(|entry| &entry.worker)
    }

    /// Returns one of them, to be changed.
    pub(crate) fn get_mut(&mut self, id: &WorkerId) -> Option<WorkerMut<'_>> {
        self.note_look();
        let entry = self.all.get_mut(id)?;
        Some(WorkerMut { entry, totals: &mut self.totals, order: &mut self.order })
    }

    /// Returns all of them, in the order of their ids. Nothing that is done with every wake-up may ask for this.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (WorkerId, &Worker)> + Clone {
        self.all.iter().map(|(&id, entry)| {
            self.note_look();
            (id, &entry.worker)
        })
    }

    /// Iterates over the workers without their ids.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &Worker> + Clone {
        self.iter().map(|(_, worker)| worker)
    }

    /// Iterates over the ids alone.
    pub(crate) fn keys(&self) -> impl DoubleEndedIterator<Item = WorkerId> + Clone {
        self.iter().map(|(id, _)| id)
    }

    /// Returns how many are being started.
    pub fn starting(&self) -> usize {
        self.totals.starting
    }

    /// Returns how many are actors'.
    pub fn of_actors(&self) -> usize {
        self.totals.actors
    }

    /// Returns how many are not, those included that are about to end.
    pub(crate) fn of_pool(&self) -> usize {
        self.len() - self.totals.actors
    }

    /// Returns how many of the pool are not about to end.
    pub(crate) fn staying_in_pool(&self) -> usize {
        self.totals.stay_in_pool
    }

    /// Returns how many of the pool are beside those that the slots are for: their tasks wait for others, or take no slot.
    pub(crate) fn beside(&self) -> usize {
        self.totals.beside
    }

    /// Returns whether something in any of them may end that others wait for, or a worker itself.
    pub(crate) fn resumes(&self) -> bool {
        self.totals.go_on > 0
    }

    /// Returns how many slots they hold.
    pub fn slots(&self) -> usize {
        self.totals.slots
    }

    /// Returns how many run tasks that take no slot.
    pub(crate) fn without_slot(&self) -> usize {
        self.totals.hold_no_slot
    }

    /// Returns how much of a resource they hold.
    pub(crate) fn held(&self, resource: &str) -> u64 {
        self.totals.held.get(resource).copied().unwrap_or(0)
    }

    /// Returns how many have nothing to do.
    pub(crate) fn idle(&self) -> usize {
        self.totals.idle.len()
    }

    /// Returns how many have something to do, and room for more.
    pub(crate) fn with_room(&self) -> usize {
        self.totals.with_room.len()
    }

    /// Returns how many of those that take tasks have several.
    pub(crate) fn filled_count(&self) -> usize {
        self.totals.filled.len()
    }

    /// Returns whether any that takes tasks has several.
    pub(crate) fn has_filled(&self) -> bool {
        !self.totals.filled.is_empty()
    }

    /// Returns the one used last of those that have nothing to do.
    pub(crate) fn last_idle(&self) -> Option<WorkerId> {
        self.idle_before(None).map(|place| place.worker)
    }

    /// Returns the one of those that have nothing to do that was not used for longest.
    pub(crate) fn first_idle(&self) -> Option<WorkerId> {
        self.totals.idle.first().map(|place| place.worker)
    }

    /// Returns the one used last of those that have nothing to do, or the next after this one.
    pub(crate) fn idle_before(&self, place: Option<Recency>) -> Option<Recency> {
        last_before(&self.totals.idle, place)
    }

    /// Returns the one used last of those that have something to do and room for more, or the next after this one.
    pub(crate) fn with_room_before(&self, place: Option<Recency>) -> Option<Recency> {
        last_before(&self.totals.with_room, place)
    }

    /// Returns workers that have several tasks: so many of those that were used last, and of those that were not for longest.
    pub(crate) fn filled(&self, most: usize) -> impl Iterator<Item = (Recency, &Worker)> {
        let filled = &self.totals.filled;
        let places = filled.iter().take(most).chain(filled.iter().rev().take(most));
        places.filter_map(|&place| Some((place, self.get(&place.worker)?)))
    }

    /// Returns whether the tasks of any that is ready wait for others.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.totals.waiting.is_empty()
    }

    /// Iterates over workers that are ready and whose tasks wait for others, from this one on.
    pub(crate) fn waiting_from(&self, first: WorkerId) -> impl Iterator<Item = (WorkerId, &Worker)> {
        self.totals.waiting.range(first..).filter_map(|&id| Some((id, self.get(&id)?)))
    }

    /// Returns the one that is being started for longest, and since when.
    pub(crate) fn first_start(&self) -> Option<(u64, WorkerId)> {
        self.totals.starts.first().copied()
    }

    /// Returns when the one got ready that is ready for longest.
    pub(crate) fn first_ready_ns(&self) -> Option<u64> {
        self.totals.ready.first().map(|&(ready_ns, _)| ready_ns)
    }

    /// Returns the workers whose deadline is reached, in the order of their ids.
    pub(crate) fn due(&self, now_ns: u64) -> Vec<WorkerId> {
        let due = self.totals.deadlines.range(..=(now_ns, WorkerId(u64::MAX)));
        let mut due: Vec<_> = due.map(|&(_, id)| id).collect();
        due.sort_unstable();
        due
    }

    /// Returns the next deadline after this time.
    pub(crate) fn next_deadline(&self, now_ns: u64) -> Option<u64> {
        self.totals.deadlines.range((now_ns.saturating_add(1), WorkerId(0))..).next().map(|&(ns, _)| ns)
    }

    /// Notes that a worker is the one used last from now on.
    pub(crate) fn note_use(&mut self, id: WorkerId) {
        let Some(entry) = self.all.get_mut(&id) else { return };
        if entry.listed.place.last_use == self.order.last {
            return;
        }
        let place = Recency { last_use: self.order.behind_all(), worker: id };
        let is = Listed { place, ..entry.listed };
        self.totals.change(&entry.listed, &is);
        entry.listed = is;
    }

    /// Fails with a sentence when what is entered is not what is there.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut anew = Totals::default();
        for (id, entry) in &self.all {
            let standing = Standing::of(&entry.worker);
            if standing != entry.listed.standing {
                return Err(format!("worker {id} is entered as {:?} and is {standing:?}", entry.listed.standing));
            }
            anew.change(&Listed { standing: Standing::NONE, ..entry.listed }, &entry.listed);
            entry.worker.needs().for_each(|needs| anew.hold(needs));
        }
        if anew != self.totals {
            return Err(format!("the workers amount to {anew:?}, but {:?} is entered", self.totals));
        }
        Ok(())
    }

    /// Notes that one is looked at.
    fn note_look(&self) {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
    }

    /// Returns how many were looked at since this was asked last.
    #[cfg(test)]
    pub(crate) fn take_looks(&self) -> usize {
        self.looks.take()
    }
}

fn last_before(places: &BTreeSet<Recency>, place: Option<Recency>) -> Option<Recency> {
    match place {
        None => places.last().copied(),
        Some(place) => places.range(..place).next_back().copied(),
    }
}

#[cfg(test)]
impl std::ops::Index<&WorkerId> for Workers {
    type Output = Worker;

    fn index(&self, id: &WorkerId) -> &Worker {
        self.get(id).expect("a worker with this id")
    }
}
