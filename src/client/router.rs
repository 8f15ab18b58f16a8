//! The router of one caller: chooses a replica for each request, or has it wait for its turn.
//!
//! Pure: it reads no clock, knows no socket, and starts nothing. What it shares with other callers is the [table](tracer_ipc::replica_table);
//! what waits in it is of any type. Whoever has it does four things: it lets requests [arrive](Router::arrive), [gives places
//! back](Router::release), takes what is [admitted](Router::next_admitted), and wakes the callers that it names in
//! [`next_wake`](Router::next_wake), each of which then [collects](Router::collect) what it was granted. A thread of the proxy has one, and so
//! has a replica that calls other deployments.
//!
//! # Admission
//!
//! Of two replicas drawn at random, the one with fewer requests in flight is taken (power of two choices), if it has room; if neither has,
//! the rest are looked at. If none has, the request waits behind those of the same caller that came before it, up to the bound of the
//! deployment, which all callers share; beyond that it is refused with the time after which trying again may help.
//!
//! # Turns
//!
//! To wake a process takes longer than many a request. So a caller that knows a replica to be quick [stays](Preference::Awake) with it, as long as that is
//! awake and has no more requests than it is done with before another one had begun: requests that come together are handled in one batch then, however
//! many replicas there are. After a *turn* of some hundred requests it draws again, and of two with as many requests in flight the one that was given
//! fewer so far has the next turn, so that in the long run all have the same part.
//!
//! # Fairness
//!
//! While anyone waits, a request that arrives waits too. Whoever sees room, because it has given a place back, or because the first request
//! has just begun to wait, hands it out: callers have turns, and each place goes to the oldest request of the next caller that has
//! one. So a caller that waits is passed over by each other caller once, at most, before a request of its own is admitted. A place that goes to
//! another caller stays taken on the way, as a grant in the table.
//!
//! That nobody waits while there is room follows from an order: who begins to wait says so *before* it looks for room, and who gives a place
//! back does that *before* it looks whether anyone waits, so that one of the two sees the other.

use std::collections::VecDeque;
use std::sync::Arc;

use tracer_ipc::replica_table::{CallerIndex, DeploymentIndex, ReplicaIndex, ReplicaState, ReplicaTable};

/// Places that are handed out at one time: what the table says is not believed, and could say for ever that someone waits.
const HAND_OUT_LIMIT: usize = 1 << 16;
/// Time for which a replica counts as awake that has answered, or was given something to do, in nanoseconds.
const AWAKE_NS: u64 = 1_000_000;
/// Requests of a turn: so many that to wake the next replica costs little of them.
const TURN: u32 = 256;
/// Turns of a deployment at the same time, at most: as many replicas are awake before another is drawn.
const TURNS: usize = 4;
/// The longest time after which a refused request is told to try again, in seconds.
const RETRY_AFTER_LIMIT: u64 = 120;

/// Outcome of a request's arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival<T> {
    /// It has a place at this replica.
    Admitted(T, ReplicaIndex),
    /// It waits. [`Router::next_admitted`] gives it back, or [`Router::next_expired`], or [`Router::give_up`].
    Waits(Ticket),
    /// The queue is full.
    Refused {
        /// The request.
        request: T,
        /// After how many seconds a place in the queue may be free: a `Retry-After`.
        retry_after_s: u64,
    },
}

/// Replicas that a request prefers.
#[derive(Clone, Copy)]
pub enum Preference<'a> {
    /// The one with fewer requests of two.
    None,
    /// The one that every caller prefers for this model, then the same second one (rendezvous hashing).
    Model(&'a str),
    /// One that is awake, with fewer requests than it is done with in the time of waking another. The function says how many these are.
    Awake(&'a dyn Fn(ReplicaIndex) -> u64),
}

impl<'a> Preference<'a> {
    /// Returns the preference for a model; none for an empty name.
    pub fn of_model(model: &'a str) -> Preference<'a> {
        if model.is_empty() { Preference::None } else { Preference::Model(model) }
    }
}

/// A request that has waited, or could have, and has a place now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted<T> {
    /// The request.
    pub request: T,
    /// The replica at which it has a place.
    pub replica: ReplicaIndex,
    /// Time that it has waited, in nanoseconds.
    pub waited_ns: u64,
}

/// A request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    deployment: DeploymentIndex,
    number: u64,
}

/// The router of one caller.
#[derive(Debug)]
pub struct Router<T> {
    table: Arc<ReplicaTable>,
    caller: CallerIndex,
    /// By the number of the deployment, as far as they were used.
    queues: Vec<Queue<T>>,
    /// Deployments at which requests wait, and others at which none does any more.
    waited_for: Vec<DeploymentIndex>,
    admitted: VecDeque<Admitted<T>>,
    wakes: VecDeque<CallerIndex>,
    /// Deployments of which the head wants to know that a request has come.
    firsts: Vec<DeploymentIndex>,
    random: Random,
}

impl<T> Router<T> {
    /// Makes a router for this caller. `seed` decides which replicas are drawn.
    pub fn new(table: Arc<ReplicaTable>, caller: CallerIndex, seed: u64) -> Router<T> {
        Router {
            table,
            caller,
            queues: Vec::new(),
            waited_for: Vec::new(),
            admitted: VecDeque::new(),
            wakes: VecDeque::new(),
            firsts: Vec::new(),
            random: Random(seed | 1),
        }
    }

    /// Says how long a request may wait for a place at a deployment; none for as long as it takes.
    pub fn set_queue_timeout(&mut self, deployment: DeploymentIndex, timeout_ns: Option<u64>) {
        queue_of(&mut self.queues, deployment).timeout_ns = timeout_ns;
    }

    /// Looks which replicas a deployment has, if the head has changed something, and hands out what room there is. To be called when the
    /// head has said so, and when another caller has died, perhaps with a place in its hands that one of these requests was to get.
    pub fn refresh(&mut self, deployment: DeploymentIndex, now_ns: u64) {
        let queue = queue_of(&mut self.queues, deployment);
        queue.refresh(&self.table, deployment);
        self.table.enqueue_at_least(self.caller, deployment, queue.count as u64);
        self.hand_out(deployment, now_ns);
    }

    /// Finds a place for a request, or has it wait.
    pub fn arrive(&mut self, deployment: DeploymentIndex, request: T, now_ns: u64) -> Arrival<T> {
        self.arrive_for(deployment, Preference::None, request, now_ns)
    }

    /// Does what [`arrive`](Self::arrive) does, for a request that prefers replicas, as long as these have room. One that has to wait is given the next place
    /// there is.
    pub fn arrive_for(
        &mut self,
        deployment: DeploymentIndex,
        preference: Preference<'_>,
        request: T,
        now_ns: u64,
    ) -> Arrival<T> {
        let queue = queue_of(&mut self.queues, deployment);
        queue.refresh(&self.table, deployment);
        if queue.is_empty() && self.table.waiting(deployment) == 0 {
            let place = match preference {
                Preference::Model(model) => queue.take_place_for(model, &self.table, self.caller),
                Preference::Awake(room) => queue.take_awake(room, &self.table, self.caller, &mut self.random, now_ns),
                Preference::None => queue.take_place(&self.table, self.caller, &mut self.random),
            };
            if let Some(replica) = place {
                if self.table.is_first(deployment) {
                    self.firsts.push(deployment);
                }
                return Arrival::Admitted(request, replica);
            }
        }
        let Some(before) = self.table.enqueue(self.caller, deployment) else {
            return Arrival::Refused { request, retry_after_s: queue.retry_after_s(now_ns) };
        };
        let ticket = Ticket { deployment, number: queue.push(request, now_ns) };
        if !std::mem::replace(&mut queue.is_waited_for, true) {
            self.waited_for.push(deployment);
        }
        if self.table.is_first(deployment) {
            self.firsts.push(deployment);
        }
        // While others wait, whoever gives a place back hands it out.
        if before == 0 {
            self.hand_out(deployment, now_ns);
        }
        Arrival::Waits(ticket)
    }

    /// Gives back the place of a request that has ended.
    pub fn release(&mut self, replica: ReplicaIndex, now_ns: u64) {
        self.table.release(self.caller, replica);
        if let Some(deployment) = self.table.deployment_of(replica) {
            queue_of(&mut self.queues, deployment).answered(replica, now_ns);
            self.hand_out(deployment, now_ns);
        }
    }

    /// Takes the places that other callers have granted to requests of this one. To be called when it was woken.
    pub fn collect(&mut self, now_ns: u64) {
        while let Some(replica) = self.table.take_grant(self.caller) {
            let deployment = self.table.deployment_of(replica);
            let Some(deployment) = deployment.filter(|_| self.table.state(replica) == ReplicaState::Ready) else {
                // It was to drain meanwhile.
                self.table.release(self.caller, replica);
                if let Some(deployment) = deployment {
                    self.refresh(deployment, now_ns);
                }
                continue;
            };
            match queue_of(&mut self.queues, deployment).pop(now_ns) {
                Some((request, waited_ns)) => self.admitted.push_back(Admitted { request, replica, waited_ns }),
                // Who waited for it has given up.
                None => self.release(replica, now_ns),
            }
        }
    }

    /// Takes a request that has a place now.
    pub fn next_admitted(&mut self) -> Option<Admitted<T>> {
        self.admitted.pop_front()
    }

    /// Takes a caller that is to be woken, because it was granted a place.
    pub fn next_wake(&mut self) -> Option<CallerIndex> {
        self.wakes.pop_front()
    }

    /// Takes a deployment of which the head is to be told that a request has come. To be asked for after each [arrival](Self::arrive).
    #[inline]
    pub fn next_first(&mut self) -> Option<DeploymentIndex> {
        self.firsts.pop()
    }

    /// Returns whether a deployment has a replica that is ready.
    pub fn has_replica(&mut self, deployment: DeploymentIndex) -> bool {
        let queue = queue_of(&mut self.queues, deployment);
        queue.refresh(&self.table, deployment);
        !queue.replicas.is_empty()
    }

    /// Takes a request out that waits, because its client has gone. None when it waits no more.
    pub fn give_up(&mut self, ticket: Ticket) -> Option<T> {
        let request = self.queues.get_mut(ticket.deployment.get())?.remove(ticket.number)?;
        // If every request that waited was granted a place, one place comes too many, which is given back then.
        self.table.leave(self.caller, ticket.deployment);
        Some(request)
    }

    /// Takes a request out that has waited for longer than it may, with its ticket.
    pub fn next_expired(&mut self, now_ns: u64) -> Option<(Ticket, T)> {
        let Router { queues, waited_for, .. } = self;
        waited_for.retain(|deployment| {
            let queue = queue_of(queues, *deployment);
            queue.is_waited_for = !queue.is_empty();
            queue.is_waited_for
        });
        let is_over = |deployment: &&DeploymentIndex| {
            queues[deployment.get()].expires_ns().is_some_and(|expires| expires <= now_ns)
        };
        let deployment = *waited_for.iter().find(is_over)?;
        let ticket = Ticket { deployment, number: queues[deployment.get()].first };
        Some((ticket, self.give_up(ticket)?))
    }

    /// Returns when [`next_expired`](Self::next_expired) has something, unless it is admitted before.
    pub fn next_expiry_ns(&self) -> Option<u64> {
        self.waited_for.iter().filter_map(|deployment| self.queues[deployment.get()].expires_ns()).min()
    }

    /// Returns how many requests of this caller wait for a place at a deployment.
    pub fn waiting(&self, deployment: DeploymentIndex) -> usize {
        self.queues.get(deployment.get()).map_or(0, |queue| queue.count)
    }

    /// Gives the room there is to requests that wait, whoever's they are.
    fn hand_out(&mut self, deployment: DeploymentIndex, now_ns: u64) {
        let Router { table, caller, queues, admitted, wakes, random, .. } = self;
        let queue = queue_of(queues, deployment);
        for _ in 0..HAND_OUT_LIMIT {
            if table.waiting(deployment) == 0 {
                return;
            }
            queue.refresh(table, deployment);
            let Some(replica) = queue.take_place(table, *caller, random) else { return };
            match table.next_waiting(deployment) {
                Some(next) if next == *caller => {
                    if let Some((request, waited_ns)) = queue.pop(now_ns) {
                        admitted.push_back(Admitted { request, replica, waited_ns });
                        continue;
                    }
                }
                Some(next) if table.grant(*caller, next, replica) => {
                    wakes.push_back(next);
                    continue;
                }
                // Others have filled its grants just now. It hands out what room there is when it has collected them.
                Some(next) => table.enqueue_again(next, deployment),
                None => {}
            }
            table.release(*caller, replica);
            // Who has begun to wait meanwhile may have seen the place taken.
            if !table.has_waiting(deployment) {
                return;
            }
        }
    }
}

/// The requests of one caller that wait for a place at one deployment.
#[derive(Debug)]
struct Queue<T> {
    /// Replicas of this generation of the table.
    replicas: Vec<ReplicaIndex>,
    /// Requests that each of them was given in this generation.
    given: Vec<u64>,
    /// Turns that are not over, the oldest first.
    staying: Vec<Turn>,
    generation: Option<u64>,
    timeout_ns: Option<u64>,
    /// Oldest first; those that were given up leave a gap, but never at the front.
    waiting: VecDeque<Option<Waiting<T>>>,
    /// The number of the first of them.
    first: u64,
    /// Without the gaps.
    count: usize,
    /// True if the router has it among the deployments at which requests wait.
    is_waited_for: bool,
    pace: Pace,
}

/// Returns the queue of a deployment, which is made if it was not used before.
#[inline]
fn queue_of<T>(queues: &mut Vec<Queue<T>>, deployment: DeploymentIndex) -> &mut Queue<T> {
    if queues.len() <= deployment.get() {
        queues.resize_with(deployment.get() + 1, Queue::default);
    }
    &mut queues[deployment.get()]
}

/// A turn of a replica that is awake.
#[derive(Debug)]
struct Turn {
    /// Place among the replicas of the deployment.
    at: usize,
    /// Requests until it is over.
    left: u32,
    /// Time at which it was given something to do, or has answered.
    awake_ns: u64,
}

#[derive(Debug)]
struct Waiting<T> {
    request: T,
    since_ns: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue {
            replicas: Vec::new(),
            given: Vec::new(),
            staying: Vec::new(),
            generation: None,
            timeout_ns: None,
            waiting: VecDeque::new(),
            first: 0,
            count: 0,
            is_waited_for: false,
            pace: Pace::default(),
        }
    }
}

impl<T> Queue<T> {
    #[inline]
    fn refresh(&mut self, table: &ReplicaTable, deployment: DeploymentIndex) {
        let generation = table.generation(deployment);
        if self.generation != Some(generation) {
            self.generation = Some(generation);
            self.replicas.clear();
            self.replicas.extend(table.ready(deployment));
            // One that is new has had none, and is not to make up for it.
            self.given.clear();
            self.given.resize(self.replicas.len(), 0);
            self.staying.clear();
        }
    }

    /// Takes a place at a replica that is awake, or where a turn begins.
    fn take_awake(
        &mut self,
        room: &dyn Fn(ReplicaIndex) -> u64,
        table: &ReplicaTable,
        caller: CallerIndex,
        random: &mut Random,
        now_ns: u64,
    ) -> Option<ReplicaIndex> {
        let stays = self.staying.iter_mut().position(|turn| {
            let replica = self.replicas[turn.at];
            let in_flight = table.in_flight(replica);
            let is_awake = now_ns.saturating_sub(turn.awake_ns) < AWAKE_NS;
            if !is_awake || in_flight >= room(replica) || !table.take(caller, replica) {
                return false;
            }
            if in_flight == 0 {
                turn.awake_ns = now_ns;
            }
            turn.left -= 1;
            true
        });
        let at = match stays {
            Some(number) if self.staying[number].left == 0 => self.staying.remove(number).at,
            Some(number) => self.staying[number].at,
            None => {
                let at = self.find_place(table, caller, random)?;
                if room(self.replicas[at]) > 0 {
                    self.staying.retain(|turn| turn.at != at);
                    if self.staying.len() >= TURNS {
                        self.staying.remove(0);
                    }
                    self.staying.push(Turn { at, left: TURN - 1, awake_ns: now_ns });
                }
                at
            }
        };
        self.given[at] += 1;
        Some(self.replicas[at])
    }

    /// Notes that a replica has answered.
    #[inline]
    fn answered(&mut self, replica: ReplicaIndex, now_ns: u64) {
        if let Some(turn) = self.staying.iter_mut().find(|turn| self.replicas[turn.at] == replica) {
            turn.awake_ns = now_ns;
        }
    }

    /// Takes a place where it is the better one of two, or where there is one.
    fn take_place(&self, table: &ReplicaTable, caller: CallerIndex, random: &mut Random) -> Option<ReplicaIndex> {
        self.find_place(table, caller, random).map(|at| self.replicas[at])
    }

    fn find_place(&self, table: &ReplicaTable, caller: CallerIndex, random: &mut Random) -> Option<usize> {
        let count = self.replicas.len();
        let (first, second) = match count {
            0 => return None,
            1 => (0, 0),
            _ => {
                let first = random.below(count);
                (first, (first + 1 + random.below(count - 1)) % count)
            }
        };
        let load = |at: usize| (table.in_flight(self.replicas[at]), self.given[at]);
        let (better, other) = if load(second) < load(first) { (second, first) } else { (first, second) };
        let take = |at: usize| table.take(caller, self.replicas[at]);
        if take(better) {
            return Some(better);
        }
        if count > 1 && take(other) {
            return Some(other);
        }
        let start = random.below(count);
        (start..count).chain(0..start).find(|&at| take(at))
    }

    /// Takes a place at the first replica that has room, in the order of a model.
    fn take_place_for(&self, model: &str, table: &ReplicaTable, caller: CallerIndex) -> Option<ReplicaIndex> {
        let mut ordered = self.replicas.clone();
        ordered.sort_by_cached_key(|replica| std::cmp::Reverse(weight(model, *replica)));
        ordered.into_iter().find(|&replica| table.take(caller, replica))
    }

    fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn push(&mut self, request: T, now_ns: u64) -> u64 {
        if self.is_empty() {
            self.pace.begin(now_ns);
        }
        self.waiting.push_back(Some(Waiting { request, since_ns: now_ns }));
        self.count += 1;
        self.first + self.waiting.len() as u64 - 1
    }

    /// Takes the oldest, which was admitted, and how long it has waited.
    fn pop(&mut self, now_ns: u64) -> Option<(T, u64)> {
        let Waiting { request, since_ns } = self.waiting.front_mut()?.take()?;
        self.count -= 1;
        self.close_gap();
        self.pace.admitted(now_ns);
        Some((request, now_ns.saturating_sub(since_ns)))
    }

    fn remove(&mut self, number: u64) -> Option<T> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let Waiting { request, .. } = self.waiting.get_mut(at)?.take()?;
        self.count -= 1;
        self.close_gap();
        Some(request)
    }

    fn close_gap(&mut self) {
        while let Some(None) = self.waiting.front() {
            self.waiting.pop_front();
            self.first += 1;
        }
    }

    fn expires_ns(&self) -> Option<u64> {
        let Waiting { since_ns, .. } = self.waiting.front()?.as_ref()?;
        Some(since_ns.saturating_add(self.timeout_ns?))
    }

    /// Returns the time in which the queue moves on by as many requests as wait in it, and one more.
    fn retry_after_s(&self, now_ns: u64) -> u64 {
        let wait_ns = self.pace.interval_ns(now_ns).saturating_mul(self.count as u64 + 1);
        wait_ns.div_ceil(1_000_000_000).clamp(1, RETRY_AFTER_LIMIT)
    }
}

/// Returns the weight of a replica for a model, the same in every process: FNV-1a, mixed so that numbers that are near each other are told apart.
fn weight(model: &str, replica: ReplicaIndex) -> u64 {
    let place = (replica.get() as u64).to_le_bytes();
    let hash = model
        .bytes()
        .chain(place)
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let mixed = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed ^ (mixed >> 33)
}

/// Rate of a queue: the mean time between two admissions, in which the last eight count most.
#[derive(Debug, Default)]
struct Pace {
    last_ns: Option<u64>,
    mean_ns: Option<u64>,
}

impl Pace {
    /// Notes that the first request begins to wait.
    fn begin(&mut self, now_ns: u64) {
        self.last_ns = Some(now_ns);
    }

    fn admitted(&mut self, now_ns: u64) {
        let interval = now_ns.saturating_sub(self.last_ns.replace(now_ns).unwrap_or(now_ns));
        self.mean_ns = Some(self.mean_ns.map_or(interval, |mean| mean - mean / 8 + interval / 8));
    }

    /// Returns the interval at which the queue moves; one that stands still is as slow as it has been since it moved last.
    fn interval_ns(&self, now_ns: u64) -> u64 {
        let since_last = self.last_ns.map_or(0, |last| now_ns.saturating_sub(last));
        self.mean_ns.unwrap_or(0).max(since_last)
    }
}

/// Numbers that are random enough to draw replicas (xorshift64*). Never 0.
#[derive(Debug)]
struct Random(u64);

impl Random {
    /// Returns a number below `bound`, which is not 0.
    #[inline]
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let drawn = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        ((drawn * bound as u64) >> 32) as usize
    }
}

#[cfg(test)]
#[path = "router_tests.rs"]
mod tests;
