//! The table of replicas: what all callers of the deployments of a service share, in [sealed memory](crate::shared_memory).
//!
//! A *caller* is whoever sends requests to replicas: a thread of the proxy, or a replica that calls another deployment. The head makes the
//! table and alone writes states and limits; callers write counts. So a caller admits a request by one compare-and-swap on the counter of a
//! replica, without asking anyone, and there is one live table and no copy that could be out of date.
//!
//! | for each | there is |
//! |---|---|
//! | deployment | how many requests may wait, how many do, for each caller and in all; whose turn it is; whether the head wants to hear of the next request |
//! | replica | its [state](ReplicaState), its deployment, its limit, how many requests are in flight, and how many of these each caller has |
//! | caller | its *grants*: places at replicas that another caller has taken for one of its waiting requests |
//!
//! Nothing in it is believed. Every number that is read is bounded before it is used, so a wrong one costs balance: a request too many at
//! a replica, one that waits too long. It never costs memory safety, and no loop over it is endless.
//!
//! A process may die between any two stores. What it held is counted under its own number *before* it counts in the sum, so that
//! [`ReplicaTable::forget_caller`] takes back all of it; a sum may be too low by one for that moment.
//!
//! What is decided over it is in `tracer_client::router`.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use crate::shared_memory::SharedMemory;

/// Mark of the file: the table and its layout.
const MAGIC: u64 = u64::from_le_bytes(*b"TRACERT2");

// Words of the header.
const MAGIC_AT: usize = 0;
const REPLICAS_AT: usize = 1;
const CALLERS_AT: usize = 2;
const DEPLOYMENTS_AT: usize = 3;
/// Number of callers there have been at once, so that nobody looks at places that were never used.
const CALLERS_USED_AT: usize = 4;
/// The same for deployments.
const DEPLOYMENTS_USED_AT: usize = 5;
/// A cache line: what one side writes often is in no line with what another reads.
const LINE: usize = 8;

// Words of a deployment; the waiting requests of each caller follow.
const WAITING_LIMIT: usize = 0;
const WAITING: usize = 1;
const TURN: usize = 2;
const GENERATION: usize = 3;
const WATCHED: usize = 4;

// Words of a replica.
const STATE: usize = 0;
const DEPLOYMENT: usize = 1;
const LIMIT: usize = 2;
const IN_FLIGHT: usize = 3;

/// Grants that a caller has not taken yet, at most: a caller that is stuck keeps no more places from the others.
pub const GRANT_LIMIT: usize = 64;

/// Number of of each a table has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Replicas, of all deployments; at most 4,096.
    pub replicas: usize,
    /// Callers; at most 1,024.
    pub callers: usize,
    /// Deployments; at most 2,048.
    pub deployments: usize,
}

/// The largest that any table is.
const MOST: Capacity = Capacity { replicas: 4096, callers: 1024, deployments: 2048 };

impl Capacity {
    fn is_allowed(self) -> bool {
        (1..=MOST.replicas).contains(&self.replicas)
            && (1..=MOST.callers).contains(&self.callers)
            && (1..=MOST.deployments).contains(&self.deployments)
    }

    /// Words of a row with one for each caller.
    const fn row(self) -> usize {
        self.callers.next_multiple_of(LINE)
    }

    const fn replicas_at(self) -> usize {
        LINE + self.deployments * (LINE + self.row())
    }

    const fn held_at(self) -> usize {
        self.replicas_at() + self.replicas * LINE
    }

    const fn grants_at(self) -> usize {
        self.held_at() + self.callers * self.replicas.next_multiple_of(LINE)
    }

    const fn words(self) -> usize {
        self.grants_at() + self.callers * GRANT_LIMIT
    }
}

/// The number of a replica in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReplicaIndex(u32);

/// The number of a caller in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallerIndex(u32);

/// The number of a deployment in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeploymentIndex(u32);

impl ReplicaIndex {
    /// Returns it as a number from 0 on.
    pub fn get(self) -> usize {
        self.0 as usize
    }
}

impl CallerIndex {
    /// Returns it as a number from 0 on.
    pub fn get(self) -> usize {
        self.0 as usize
    }
}

impl DeploymentIndex {
    /// Returns it as a number from 0 on.
    pub fn get(self) -> usize {
        self.0 as usize
    }
}

/// Readiness of a replica for requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaState {
    /// There is no such replica, or not any more.
    Gone,
    /// It takes requests.
    Ready,
    /// It ends those that it has, and takes no more.
    Draining,
}

/// The table, mapped.
#[derive(Debug)]
pub struct ReplicaTable {
    memory: SharedMemory,
    /// Capacity that it was made with: a change of its header counts for nothing.
    capacity: Capacity,
}

impl ReplicaTable {
    /// Makes a table in which there is no replica yet, and the file from which others map it.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a capacity that no table has.
    pub fn create(capacity: Capacity) -> io::Result<(ReplicaTable, OwnedFd)> {
        if !capacity.is_allowed() {
            return Err(ErrorKind::InvalidInput.into());
        }
        let (memory, file) = SharedMemory::create(c"tracer-replicas", capacity.words())?;
        let table = ReplicaTable { memory, capacity };
        let Capacity { replicas, callers, deployments } = capacity;
        for (at, value) in [(REPLICAS_AT, replicas), (CALLERS_AT, callers), (DEPLOYMENTS_AT, deployments)] {
            table.word(at).store(value as u64, Relaxed);
        }
        table.word(MAGIC_AT).store(MAGIC, Release);
        Ok((table, file))
    }

    /// Maps the table that the head has made.
    ///
    /// # Errors
    ///
    /// `InvalidData` for a file that is no table of this layout.
    pub fn attach(file: impl AsFd) -> io::Result<ReplicaTable> {
        let memory = SharedMemory::attach(file, MOST.words())?;
        let words = memory.words();
        let said = |at: usize| words.get(at).map_or(0, |word| word.load(Relaxed) as usize);
        let is_table = words[MAGIC_AT].load(Acquire) == MAGIC;
        let capacity =
            Capacity { replicas: said(REPLICAS_AT), callers: said(CALLERS_AT), deployments: said(DEPLOYMENTS_AT) };
        if !is_table || !capacity.is_allowed() || words.len() != capacity.words() {
            return Err(ErrorKind::InvalidData.into());
        }
        Ok(ReplicaTable { memory, capacity })
    }

    /// Returns the number of each that it has room for.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Returns the replica with this number; none when the table has no room for it.
    pub fn replica(&self, number: usize) -> Option<ReplicaIndex> {
        (number < self.capacity.replicas).then_some(ReplicaIndex(number as u32))
    }

    /// Returns the caller with this number.
    pub fn caller(&self, number: usize) -> Option<CallerIndex> {
        (number < self.capacity.callers).then_some(CallerIndex(number as u32))
    }

    /// Returns the deployment with this number.
    pub fn deployment(&self, number: usize) -> Option<DeploymentIndex> {
        (number < self.capacity.deployments).then_some(DeploymentIndex(number as u32))
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.memory.words()[at]
    }

    fn of_deployment(&self, deployment: DeploymentIndex, at: usize) -> &AtomicU64 {
        self.word(LINE + deployment.get() * (LINE + self.capacity.row()) + at)
    }

    fn waiting_of(&self, deployment: DeploymentIndex, caller: CallerIndex) -> &AtomicU64 {
        self.of_deployment(deployment, LINE + caller.get())
    }

    fn of_replica(&self, replica: ReplicaIndex, at: usize) -> &AtomicU64 {
        self.word(self.capacity.replicas_at() + replica.get() * LINE + at)
    }

    fn held(&self, caller: CallerIndex, replica: ReplicaIndex) -> &AtomicU64 {
        let row = self.capacity.replicas.next_multiple_of(LINE);
        self.word(self.capacity.held_at() + caller.get() * row + replica.get())
    }

    fn grants(&self, caller: CallerIndex) -> &[AtomicU64] {
        let start = self.capacity.grants_at() + caller.get() * GRANT_LIMIT;
        &self.memory.words()[start..start + GRANT_LIMIT]
    }

    /// Returns the callers that there are, or have been.
    fn callers(&self) -> impl DoubleEndedIterator<Item = CallerIndex> + Clone {
        let used = (self.word(CALLERS_USED_AT).load(Relaxed) as usize).min(self.capacity.callers);
        (0..used as u32).map(CallerIndex)
    }

    /// Returns the deployments that there are, or have been.
    fn deployments(&self) -> impl Iterator<Item = DeploymentIndex> {
        let used = (self.word(DEPLOYMENTS_USED_AT).load(Relaxed) as usize).min(self.capacity.deployments);
        (0..used as u32).map(DeploymentIndex)
    }
}

/// The head's side.
impl ReplicaTable {
    /// Enters a replica, which takes requests from now on. Its place must be that of one that is gone.
    pub fn add_replica(&self, replica: ReplicaIndex, deployment: DeploymentIndex, limit: u32) {
        self.of_replica(replica, IN_FLIGHT).store(0, Relaxed);
        (0..self.capacity.callers as u32).for_each(|caller| self.held(CallerIndex(caller), replica).store(0, Relaxed));
        self.of_replica(replica, DEPLOYMENT).store(deployment.0.into(), Relaxed);
        self.of_replica(replica, LIMIT).store(limit.into(), Relaxed);
        self.set_state(replica, ReplicaState::Ready);
    }

    /// Says who may be called.
    pub fn set_state(&self, replica: ReplicaIndex, state: ReplicaState) {
        self.of_replica(replica, STATE).store(state as u64, SeqCst);
        if let Some(deployment) = self.deployment_of(replica) {
            self.of_deployment(deployment, GENERATION).fetch_add(1, SeqCst);
        }
    }

    /// Says how many requests may be in flight at a replica.
    pub fn set_limit(&self, replica: ReplicaIndex, limit: u32) {
        self.of_replica(replica, LIMIT).store(limit.into(), SeqCst);
    }

    /// Says how many requests may wait for a place at a deployment, those of all callers together. None may until that is said.
    pub fn set_waiting_limit(&self, deployment: DeploymentIndex, limit: u32) {
        self.word(DEPLOYMENTS_USED_AT).fetch_max(u64::from(deployment.0) + 1, SeqCst);
        self.of_deployment(deployment, WAITING_LIMIT).store(limit.into(), Relaxed);
    }

    /// Has the next request of a deployment be told of: the caller that finds it [watched](Self::is_first) does so.
    pub fn watch(&self, deployment: DeploymentIndex) {
        self.of_deployment(deployment, WATCHED).store(1, SeqCst);
    }

    /// Enters a caller.
    pub fn add_caller(&self, caller: CallerIndex) {
        self.word(CALLERS_USED_AT).fetch_max(u64::from(caller.0) + 1, Relaxed);
    }

    /// Takes back what a caller held that is dead: its places at replicas, its waiting requests, its grants. Whoever else waits is to be
    /// woken then. To be called again before the number is given to another caller: one that lives may have granted it a place meanwhile.
    pub fn forget_caller(&self, caller: CallerIndex) {
        for deployment in self.deployments() {
            let waited = self.waiting_of(deployment, caller).swap(0, SeqCst);
            reduce(self.of_deployment(deployment, WAITING), waited);
        }
        self.grants(caller).iter().for_each(|grant| grant.store(0, SeqCst));
        for replica in (0..self.capacity.replicas as u32).map(ReplicaIndex) {
            let held = self.held(caller, replica).swap(0, SeqCst);
            reduce(self.of_replica(replica, IN_FLIGHT), held);
        }
    }
}

/// Reads of the table, for every process.
impl ReplicaTable {
    /// Returns whether a replica may be called.
    #[inline]
    pub fn state(&self, replica: ReplicaIndex) -> ReplicaState {
        match self.of_replica(replica, STATE).load(SeqCst) {
            1 => ReplicaState::Ready,
            2 => ReplicaState::Draining,
            _ => ReplicaState::Gone,
        }
    }

    /// Returns the deployment of a replica; none when it says none that there can be.
    pub fn deployment_of(&self, replica: ReplicaIndex) -> Option<DeploymentIndex> {
        let number = usize::try_from(self.of_replica(replica, DEPLOYMENT).load(Relaxed)).ok()?;
        self.deployment(number)
    }

    /// Returns the number of requests that may be in flight at a replica.
    pub fn limit(&self, replica: ReplicaIndex) -> u64 {
        self.of_replica(replica, LIMIT).load(SeqCst)
    }

    /// Returns the number of requests that are in flight at a replica, those of all callers together.
    #[inline]
    pub fn in_flight(&self, replica: ReplicaIndex) -> u64 {
        self.of_replica(replica, IN_FLIGHT).load(SeqCst)
    }

    /// Returns the replicas of a deployment that are ready.
    pub fn ready(&self, deployment: DeploymentIndex) -> impl Iterator<Item = ReplicaIndex> {
        let all = (0..self.capacity.replicas as u32).map(ReplicaIndex);
        all.filter(move |&replica| {
            self.state(replica) == ReplicaState::Ready && self.deployment_of(replica) == Some(deployment)
        })
    }

    /// Returns a number that changes with the states of a deployment's replicas.
    pub fn generation(&self, deployment: DeploymentIndex) -> u64 {
        self.of_deployment(deployment, GENERATION).load(SeqCst)
    }

    /// Returns the number of requests that wait for a place at a deployment that nobody has granted them yet, those of all callers together.
    #[inline]
    pub fn waiting(&self, deployment: DeploymentIndex) -> u64 {
        self.of_deployment(deployment, WAITING).load(SeqCst)
    }
}

/// A caller's side.
impl ReplicaTable {
    /// Takes a place at a replica. False when it has none, or takes no requests.
    #[inline]
    pub fn take(&self, caller: CallerIndex, replica: ReplicaIndex) -> bool {
        let in_flight = self.of_replica(replica, IN_FLIGHT);
        // Not to write where there is no room.
        if in_flight.load(SeqCst) >= self.limit(replica) {
            return false;
        }
        self.held(caller, replica).fetch_add(1, SeqCst);
        let limit = self.limit(replica);
        let add = |count: u64| (count < limit).then(|| count + 1);
        if in_flight.fetch_update(SeqCst, SeqCst, add).is_err() {
            reduce(self.held(caller, replica), 1);
            return false;
        }
        if self.state(replica) != ReplicaState::Ready {
            self.release(caller, replica);
            return false;
        }
        true
    }

    /// Gives a place back. One that the caller does not hold, because it was taken back from it, changes nothing.
    #[inline]
    pub fn release(&self, caller: CallerIndex, replica: ReplicaIndex) {
        if subtract_one(self.held(caller, replica)) {
            reduce(self.of_replica(replica, IN_FLIGHT), 1);
        }
    }

    /// Says that one more request of this caller waits. Returns how many waited before it, of all callers; none when no further one may.
    pub fn enqueue(&self, caller: CallerIndex, deployment: DeploymentIndex) -> Option<u64> {
        let limit = self.of_deployment(deployment, WAITING_LIMIT).load(Relaxed);
        let waiting = self.of_deployment(deployment, WAITING);
        let before = waiting.fetch_update(SeqCst, SeqCst, |count| (count < limit).then(|| count + 1)).ok()?;
        self.waiting_of(deployment, caller).fetch_add(1, SeqCst);
        Some(before)
    }

    /// Returns whether the head is to be told that a request has come, which counts by now as one that is in flight or waits. Once for each time that it
    /// [watches](Self::watch).
    #[inline]
    pub fn is_first(&self, deployment: DeploymentIndex) -> bool {
        let watched = self.of_deployment(deployment, WATCHED);
        // Not to write where nobody asks.
        watched.load(SeqCst) != 0 && watched.swap(0, SeqCst) != 0
    }

    /// Says again that a request waits whose grant could not be used.
    pub fn enqueue_again(&self, caller: CallerIndex, deployment: DeploymentIndex) {
        self.of_deployment(deployment, WAITING).fetch_add(1, SeqCst);
        self.waiting_of(deployment, caller).fetch_add(1, SeqCst);
    }

    /// Says that so many requests of this caller wait, those counted that were granted a place which it has not taken, unless the table has
    /// it that as many do.
    pub fn enqueue_at_least(&self, caller: CallerIndex, deployment: DeploymentIndex, count: u64) {
        let granted = self.grants(caller).iter().filter(|grant| grant.load(SeqCst) != 0).count() as u64;
        let known = self.waiting_of(deployment, caller).load(SeqCst).saturating_add(granted);
        (known..count).for_each(|_| self.enqueue_again(caller, deployment));
    }

    /// Says that a request of this caller waits no more. False when all of them have been granted a place: then one comes that nobody needs.
    pub fn leave(&self, caller: CallerIndex, deployment: DeploymentIndex) -> bool {
        let has_left = subtract_one(self.waiting_of(deployment, caller));
        if has_left {
            reduce(self.of_deployment(deployment, WAITING), 1);
        }
        has_left
    }

    /// Returns whether a request of any caller waits that nobody has granted a place yet.
    pub fn has_waiting(&self, deployment: DeploymentIndex) -> bool {
        self.callers().any(|caller| self.waiting_of(deployment, caller).load(SeqCst) > 0)
    }

    /// Takes the turn of the next caller that has a waiting request, in the order of their numbers, one request of each after the other. That
    /// request is to be granted a place now. None when nobody waits whom a place can be granted to.
    pub fn next_waiting(&self, deployment: DeploymentIndex) -> Option<CallerIndex> {
        let turn = self.of_deployment(deployment, TURN);
        let last = turn.load(SeqCst);
        let after = self.callers().filter(|caller| u64::from(caller.0) > last);
        let before = self.callers().filter(|caller| u64::from(caller.0) <= last);
        let next = after.chain(before).find(|&caller| {
            self.waiting_of(deployment, caller).load(SeqCst) > 0
                && self.grants(caller).iter().any(|grant| grant.load(SeqCst) == 0)
                && self.leave(caller, deployment)
        })?;
        turn.store(next.0.into(), SeqCst);
        Some(next)
    }

    /// Gives a place that `from` has taken to a request of `to`, which is to be [woken](Self::take_grant). False when `to` has too many that
    /// it has not taken yet.
    pub fn grant(&self, from: CallerIndex, to: CallerIndex, replica: ReplicaIndex) -> bool {
        self.held(to, replica).fetch_add(1, SeqCst);
        let value = u64::from(replica.0) + 1;
        let is_put =
            |entry: &AtomicU64| entry.load(SeqCst) == 0 && entry.compare_exchange(0, value, SeqCst, SeqCst).is_ok();
        let is_granted = self.grants(to).iter().any(is_put);
        reduce(self.held(if is_granted { from } else { to }, replica), 1);
        is_granted
    }

    /// Takes a place that was granted to this caller.
    pub fn take_grant(&self, caller: CallerIndex) -> Option<ReplicaIndex> {
        let taken =
            self.grants(caller).iter().filter(|entry| entry.load(SeqCst) != 0).map(|entry| entry.swap(0, SeqCst));
        let mut replicas = taken.filter_map(|value| self.replica(usize::try_from(value.checked_sub(1)?).ok()?));
        replicas.next()
    }
}

/// Takes one off. False when there is none.
fn subtract_one(from: &AtomicU64) -> bool {
    from.fetch_update(SeqCst, SeqCst, |found| found.checked_sub(1)).is_ok()
}

/// Takes `count` off, or what there is.
fn reduce(from: &AtomicU64, count: u64) {
    let _ = from.fetch_update(SeqCst, SeqCst, |found| Some(found.saturating_sub(count)));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    const SMALL: Capacity = Capacity { replicas: 5, callers: 3, deployments: 2 };

    struct Fixture {
        table: ReplicaTable,
        file: OwnedFd,
        callers: Vec<CallerIndex>,
        deployment: DeploymentIndex,
        replica: ReplicaIndex,
    }

    /// Returns one replica of the second deployment, with two places, and three callers.
    fn fixture() -> Fixture {
        let (table, file) = ReplicaTable::create(SMALL).unwrap();
        let callers: Vec<_> = (0..3).map(|number| table.caller(number).unwrap()).collect();
        callers.iter().for_each(|caller| table.add_caller(*caller));
        let (deployment, replica) = (table.deployment(1).unwrap(), table.replica(4).unwrap());
        table.add_replica(replica, deployment, 2);
        table.set_waiting_limit(deployment, 10);
        Fixture { table, file, callers, deployment, replica }
    }

    #[test]
    fn all_who_map_it_see_the_same_replicas_and_counts() {
        let Fixture { table, file, callers, deployment, replica } = fixture();
        let other = ReplicaTable::attach(&file).unwrap();
        assert_eq!((other.capacity(), other.ready(deployment).collect::<Vec<_>>()), (SMALL, vec![replica]));
        assert_eq!(other.ready(other.deployment(0).unwrap()).count(), 0);
        assert!(other.take(callers[0], replica) && table.take(callers[1], replica));
        assert!(!other.take(callers[2], replica), "the limit is 2");
        table.set_limit(replica, 3);
        assert!(other.take(callers[2], replica));
        assert_eq!((table.in_flight(replica), other.limit(replica)), (3, 3));
        table.release(callers[0], replica);
        table.release(callers[0], replica);
        assert_eq!(table.in_flight(replica), 2, "a place is given back once");
        let generation = other.generation(deployment);
        table.set_state(replica, ReplicaState::Draining);
        assert_ne!(other.generation(deployment), generation);
        assert!(!other.take(callers[0], replica) && other.in_flight(replica) == 2, "it takes no more");
        assert_eq!(other.state(replica), ReplicaState::Draining);
    }

    #[test]
    fn numbers_that_a_table_has_no_room_for_name_nothing() {
        let table = fixture().table;
        assert!(table.replica(5).is_none() && table.caller(3).is_none() && table.deployment(2).is_none());
        for capacity in [
            Capacity { replicas: 0, ..SMALL },
            Capacity { callers: 1025, ..SMALL },
            Capacity { deployments: usize::MAX, ..SMALL },
        ] {
            assert_eq!(ReplicaTable::create(capacity).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
        assert!(ReplicaTable::create(MOST).is_ok(), "what is not touched takes no memory");
    }

    #[test]
    fn what_a_dead_caller_held_is_taken_back_and_nothing_of_the_others() {
        let Fixture { table, callers, deployment, replica, .. } = fixture();
        assert!(table.take(callers[0], replica) && table.take(callers[1], replica));
        assert_eq!(table.enqueue(callers[0], deployment), Some(0));
        assert_eq!(table.enqueue(callers[0], deployment), Some(1));
        assert_eq!(table.enqueue(callers[1], deployment), Some(2));
        assert!(table.leave(callers[0], deployment) && table.grant(callers[1], callers[0], replica));
        assert_eq!(table.in_flight(replica), 2, "the place has gone from one to the other");
        table.forget_caller(callers[0]);
        assert_eq!((table.in_flight(replica), table.waiting(deployment)), (0, 1));
        table.release(callers[0], replica);
        assert_eq!((table.in_flight(replica), table.take_grant(callers[0])), (0, None));
        table.forget_caller(callers[0]);
        assert_eq!((table.in_flight(replica), table.waiting(deployment)), (0, 1));
    }

    #[test]
    fn callers_take_turns_and_one_that_takes_no_grants_is_passed_over() {
        let Fixture { table, callers, deployment, replica, .. } = fixture();
        table.set_waiting_limit(deployment, 1000);
        for caller in &callers {
            (0..100).for_each(|_| assert!(table.enqueue(*caller, deployment).is_some()));
        }
        let turns: Vec<_> = (0..7).map(|_| table.next_waiting(deployment).unwrap().get()).collect();
        assert_eq!(turns, [1, 2, 0, 1, 2, 0, 1]);
        table.set_limit(replica, 1000);
        (0..GRANT_LIMIT).for_each(|_| {
            assert!(table.take(callers[0], replica) && table.grant(callers[0], callers[2], replica));
        });
        assert!(table.take(callers[0], replica) && !table.grant(callers[0], callers[2], replica));
        assert_eq!(table.in_flight(replica), GRANT_LIMIT as u64 + 1, "nothing is counted twice");
        let turns: Vec<_> = (0..3).map(|_| table.next_waiting(deployment).unwrap().get()).collect();
        assert_eq!(turns, [0, 1, 0]);
        assert_eq!(table.take_grant(callers[2]), Some(replica));
        assert_eq!(table.next_waiting(deployment), Some(callers[1]));
        assert_eq!(table.next_waiting(deployment), Some(callers[2]));
    }

    #[test]
    fn no_more_wait_than_may_however_many_ask_at_once() {
        let Fixture { table, callers, deployment, .. } = fixture();
        table.set_waiting_limit(deployment, 50);
        let let_in = std::thread::scope(|scope| {
            let asks = callers.iter().map(|&caller| {
                let table = &table;
                scope.spawn(move || (0..100).filter(|_| table.enqueue(caller, deployment).is_some()).count())
            });
            asks.collect::<Vec<_>>().into_iter().map(|asked| asked.join().unwrap()).sum::<usize>()
        });
        assert_eq!((let_in, table.waiting(deployment)), (50, 50));
    }

    #[test]
    fn a_limit_holds_whoever_takes_and_gives_back_at_once() {
        let Fixture { table, callers, replica, .. } = fixture();
        let inside = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for &caller in &callers {
                let (table, inside) = (&table, &inside);
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        if table.take(caller, replica) {
                            assert!(inside.fetch_add(1, SeqCst) < 2);
                            inside.fetch_sub(1, SeqCst);
                            table.release(caller, replica);
                        }
                    }
                });
            }
        });
        assert_eq!(table.in_flight(replica), 0);
    }

    #[test]
    fn a_file_that_is_no_table_is_refused() {
        let Fixture { table, file, .. } = fixture();
        for (at, value) in [(MAGIC_AT, 1), (REPLICAS_AT, 4), (CALLERS_AT, u64::MAX), (DEPLOYMENTS_AT, 0)] {
            let before = table.word(at).swap(value, SeqCst);
            assert_eq!(ReplicaTable::attach(&file).unwrap_err().kind(), ErrorKind::InvalidData, "word {at}");
            table.word(at).store(before, SeqCst);
        }
        assert!(ReplicaTable::attach(&file).is_ok());
        assert!(ReplicaTable::attach(memfd_create(c"x", MemfdFlags::CLOEXEC).unwrap()).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        /// Writes anything from a process that maps it: others read numbers that are in bounds, and come to an end.
        #[test]
        fn whatever_is_in_it_is_used_without_harm(
            words in prop::collection::vec((any::<prop::sample::Index>(), prop_oneof![0..10_u64, any::<u64>()]), 0..40),
            steps in prop::collection::vec((0..10_u8, 0..3_usize), 0..60),
        ) {
            let Fixture { table, callers, deployment, replica, .. } = fixture();
            let all = table.memory.words();
            words.iter().for_each(|(at, value)| at.get(all).store(*value, SeqCst));
            for (step, caller) in steps {
                let caller = callers[caller];
                match step {
                    0 => drop(table.take(caller, replica)),
                    1 => table.release(caller, replica),
                    2 => drop(table.enqueue(caller, deployment)),
                    3 => drop(table.leave(caller, deployment)),
                    4 => drop(table.next_waiting(deployment)),
                    5 => drop(table.grant(callers[0], caller, replica)),
                    6 => prop_assert!(table.take_grant(caller).is_none_or(|replica| replica.get() < SMALL.replicas)),
                    7 => table.forget_caller(caller),
                    8 => prop_assert!(table.ready(deployment).count() <= SMALL.replicas),
                    _ => prop_assert!(table.deployment_of(replica).is_none_or(|found| found.get() < SMALL.deployments)),
                }
            }
        }
    }
}
