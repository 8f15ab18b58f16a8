//! Routers over one table: simulated with a clock of their own, and as threads.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Condvar, Mutex};

use proptest::prelude::*;
use tracer_ipc::replica_table::Capacity;

use super::*;

/// A caller and the number of its request, which grows.
type Request = (usize, u64);

/// Callers of one deployment, with what each of them does at once when it is woken.
struct Simulation {
    table: Arc<ReplicaTable>,
    deployment: DeploymentIndex,
    routers: Vec<Router<Request>>,
    now_ns: u64,
    sent: Vec<u64>,
    /// Number of the last request that each caller has begun, of those that waited and of all.
    begun: Vec<Option<u64>>,
    /// By replica.
    in_flight: HashMap<ReplicaIndex, u64>,
    running: BinaryHeap<Reverse<(u64, ReplicaIndex, usize)>>,
    /// Callers that were woken and have not run yet.
    woken: Vec<usize>,
    /// Number of waiting requests of others that were admitted since a waiting caller was served, and the most of all.
    passed_over: Vec<u64>,
    most_passed_over: u64,
    admitted: u64,
    refused: u64,
    random: Random,
    /// Requests that a replica is done with in the time of waking another; none if nobody knows.
    room: Option<u64>,
}

impl Simulation {
    fn new(callers: usize, limits: &[u32], waiting_limit: u32, seed: u64) -> Simulation {
        let capacity = Capacity { replicas: limits.len().max(1), callers, deployments: 2 };
        let table = Arc::new(ReplicaTable::create(capacity).unwrap().0);
        let deployment = table.deployment(1).unwrap();
        table.set_waiting_limit(deployment, waiting_limit);
        for (number, limit) in limits.iter().enumerate() {
            table.add_replica(table.replica(number).unwrap(), deployment, *limit);
        }
        let router = |number: usize| {
            let caller = table.caller(number).unwrap();
            table.add_caller(caller);
            Router::new(Arc::clone(&table), caller, seed.wrapping_mul(31) + number as u64)
        };
        Simulation {
            deployment,
            routers: (0..callers).map(router).collect(),
            now_ns: 0,
            sent: vec![0; callers],
            begun: vec![None; callers],
            in_flight: HashMap::new(),
            running: BinaryHeap::new(),
            woken: Vec::new(),
            passed_over: vec![0; callers],
            most_passed_over: 0,
            admitted: 0,
            refused: 0,
            random: Random(seed | 1),
            room: None,
            table,
        }
    }

    fn begin(&mut self, (caller, number): Request, replica: ReplicaIndex, service_ns: u64) {
        let in_flight = self.in_flight.entry(replica).or_default();
        *in_flight += 1;
        assert!(*in_flight <= self.table.limit(replica), "replica {} is above its limit", replica.get());
        assert!(self.begun[caller].is_none_or(|last| last < number), "a request of {caller} has overtaken another");
        self.begun[caller] = Some(number);
        self.admitted += 1;
        self.running.push(Reverse((self.now_ns + service_ns, replica, caller)));
    }

    fn service_ns(&mut self) -> u64 {
        500_000 + self.random.below(1_000_000) as u64
    }

    fn arrive(&mut self, caller: usize) {
        let number = self.sent[caller];
        self.sent[caller] += 1;
        let room = self.room.map(|room| move |_| room);
        let preference = room.as_ref().map_or(Preference::None, |room| Preference::Awake(room));
        match self.routers[caller].arrive_for(self.deployment, preference, (caller, number), self.now_ns) {
            Arrival::Admitted(request, replica) => {
                let service_ns = self.service_ns();
                self.begin(request, replica, service_ns);
            }
            Arrival::Waits(_) => {}
            Arrival::Refused { request, retry_after_s } => {
                assert_eq!(request, (caller, number));
                assert!((1..=RETRY_AFTER_LIMIT).contains(&retry_after_s));
                self.refused += 1;
            }
        }
        self.take_admitted(caller);
    }

    /// Ends the request that ends next.
    fn end_one(&mut self) {
        let Some(Reverse((ends_ns, replica, caller))) = self.running.pop() else { return };
        self.now_ns = self.now_ns.max(ends_ns);
        *self.in_flight.get_mut(&replica).unwrap() -= 1;
        self.routers[caller].release(replica, self.now_ns);
        self.take_admitted(caller);
    }

    fn take_admitted(&mut self, caller: usize) {
        while let Some(Admitted { request, replica, .. }) = self.routers[caller].next_admitted() {
            for other in 0..self.routers.len() {
                if other != caller && self.routers[other].waiting(self.deployment) > 0 {
                    self.passed_over[other] += 1;
                    self.most_passed_over = self.most_passed_over.max(self.passed_over[other]);
                }
            }
            self.passed_over[caller] = 0;
            let service_ns = self.service_ns();
            self.begin(request, replica, service_ns);
        }
        while let Some(woken) = self.routers[caller].next_wake() {
            self.woken.push(woken.get());
        }
        if self.routers[caller].waiting(self.deployment) == 0 {
            self.passed_over[caller] = 0;
        }
    }

    fn run_woken(&mut self) {
        while !self.woken.is_empty() {
            let next = self.random.below(self.woken.len());
            let caller = self.woken.swap_remove(next);
            self.routers[caller].collect(self.now_ns);
            self.take_admitted(caller);
        }
    }

    fn waiting(&self) -> usize {
        self.routers.iter().map(|router| router.waiting(self.deployment)).sum()
    }

    /// Asserts what holds once everyone who was woken has run.
    fn check_settled(&self) {
        let mut ready = self.table.ready(self.deployment);
        let room = ready.find(|&replica| self.table.in_flight(replica) < self.table.limit(replica));
        assert!(self.waiting() == 0 || room.is_none(), "{} wait while there is room", self.waiting());
        assert_eq!(self.waiting() as u64, self.table.waiting(self.deployment));
    }

    fn run_to_end(&mut self) {
        while !self.running.is_empty() {
            self.end_one();
            self.run_woken();
        }
        self.check_settled();
        assert_eq!((self.waiting(), self.admitted + self.refused), (0, self.sent.iter().sum::<u64>()));
        self.table.ready(self.deployment).for_each(|replica| assert_eq!(self.table.in_flight(replica), 0));
    }
}

const CALLERS: usize = 8;

#[test]
fn a_hundred_thousand_requests_to_a_thousand_replicas_keep_limits_order_and_turns() {
    let limits: Vec<u32> = (0..1000).map(|number| 1 + number % 7).collect();
    let room: u32 = limits.iter().sum();
    let mut simulation = Simulation::new(CALLERS, &limits, 3000, 7);
    for step in 0..100_000_u64 {
        // For half of the time they stay with replicas that are awake.
        simulation.room = (step % 20_000 < 10_000).then_some(4);
        // The first caller asks for as much as all others, and all of them for more than there is, in waves.
        let caller = if step % 2 == 0 { 0 } else { simulation.random.below(CALLERS) };
        simulation.arrive(caller);
        let is_wave = step / 10_000 % 2 == 0;
        if !is_wave || simulation.random.below(10) == 0 {
            simulation.end_one();
        }
        simulation.run_woken();
        if step % 97 == 0 {
            simulation.check_settled();
        }
    }
    assert!(simulation.refused > 1000, "{} were refused", simulation.refused);
    assert!(simulation.admitted > u64::from(room), "{} were admitted", simulation.admitted);
    simulation.run_to_end();
    assert!(simulation.most_passed_over > 0, "some have waited");
    assert!(simulation.most_passed_over < CALLERS as u64, "{} times in a row", simulation.most_passed_over);
}

#[test]
fn two_choices_keep_replicas_within_ten_per_cent_of_even() {
    [None, Some(4)].into_iter().for_each(stay_even);
}

/// Asserts it for callers that stay with a replica until it has this many requests.
fn stay_even(room: Option<u64>) {
    let mut simulation = Simulation::new(CALLERS, &[1000; 1000], 1000, 3);
    simulation.room = room;
    for _ in 0..100_000 {
        let caller = simulation.random.below(CALLERS);
        simulation.arrive(caller);
    }
    let counts = |simulation: &Simulation| simulation.in_flight.values().map(|&count| count as f64).collect::<Vec<_>>();
    assert_eq!(counts(&simulation).len(), 1000);
    assert!(counts(&simulation).iter().all(|count| (90.0..=110.0).contains(count)), "{:?}", counts(&simulation));
    // What ends anywhere while others come disturbs that less than half as much as choosing at random would: the root of the mean.
    for _ in 0..50_000 {
        simulation.end_one();
        let caller = simulation.random.below(CALLERS);
        simulation.arrive(caller);
    }
    let variance = counts(&simulation).iter().map(|count| (count - 100.0).powi(2)).sum::<f64>() / 1000.0;
    assert!(variance.sqrt() < 5.0, "the standard deviation is {}", variance.sqrt());
}

#[test]
fn who_waits_gets_the_place_that_becomes_free_and_who_comes_then_does_not() {
    let mut simulation = Simulation::new(2, &[1], 10, 1);
    (0..3).for_each(|_| simulation.arrive(0));
    simulation.arrive(1);
    assert_eq!((simulation.admitted, simulation.waiting()), (1, 3));
    simulation.end_one();
    assert_eq!(simulation.woken, [1], "it is the other's turn");
    // A request that comes before the other has run does not take its place.
    simulation.arrive(0);
    assert_eq!(simulation.admitted, 1);
    simulation.run_woken();
    assert_eq!((simulation.begun[0], simulation.begun[1]), (Some(0), Some(0)));
    simulation.run_to_end();
}

#[test]
fn a_full_queue_refuses_and_says_when_to_come_again_by_how_fast_it_moves() {
    let mut simulation = Simulation::new(1, &[1], 4, 1);
    let deployment = simulation.deployment;
    let second = 1_000_000_000;
    let router = &mut simulation.routers[0];
    let Arrival::Admitted(_, replica) = router.arrive(deployment, (0, 0), 0) else { panic!("there is room") };
    (1..=4).for_each(|number| assert!(matches!(router.arrive(deployment, (0, number), 0), Arrival::Waits(_))));
    let retry_after = |router: &mut Router<Request>, now_ns| match router.arrive(deployment, (0, 9), now_ns) {
        Arrival::Refused { retry_after_s, .. } => retry_after_s,
        other => panic!("{other:?}"),
    };
    assert_eq!(retry_after(router, 0), 1, "nobody knows yet");
    // One each three seconds.
    for number in 1..=2 {
        router.release(replica, number * 3 * second);
        assert_eq!(router.next_admitted().map(|admitted| admitted.waited_ns), Some(number * 3 * second));
        assert!(matches!(router.arrive(deployment, (0, 9), number * 3 * second), Arrival::Waits(_)));
    }
    assert_eq!(retry_after(router, 6 * second), 15, "four wait");
    assert_eq!(retry_after(router, 10 * second), 20, "it has stood still for four");
    assert_eq!(retry_after(router, 1000 * second), RETRY_AFTER_LIMIT);
}

#[test]
fn what_waits_too_long_or_is_given_up_goes_and_its_place_goes_to_the_next() {
    let mut simulation = Simulation::new(2, &[1], 10, 1);
    let deployment = simulation.deployment;
    let [first, second] = &mut simulation.routers[..] else { unreachable!() };
    first.set_queue_timeout(deployment, Some(100));
    let Arrival::Admitted(_, replica) = first.arrive(deployment, (0, 0), 0) else { panic!("there is room") };
    let tickets: Vec<_> = (1..=4).map(|number| first.arrive(deployment, (0, number), number * 10)).collect();
    let ticket = |number: usize| match tickets[number - 1] {
        Arrival::Waits(ticket) => ticket,
        ref other => panic!("{other:?}"),
    };
    assert_eq!(first.give_up(ticket(2)), Some((0, 2)));
    assert_eq!(first.give_up(ticket(2)), None);
    assert_eq!((first.next_expiry_ns(), first.next_expired(109)), (Some(110), None));
    assert_eq!(first.next_expired(139), Some((ticket(1), (0, 1))));
    assert_eq!(
        (first.next_expired(139), first.next_expired(130), first.waiting(deployment)),
        (Some((ticket(3), (0, 3))), None, 1)
    );
    // The other's turn comes, and its request is given up before it hears of that.
    let Arrival::Waits(other) = second.arrive(deployment, (1, 0), 0) else { panic!("there is none") };
    first.release(replica, 150);
    assert_eq!(first.next_wake().map(CallerIndex::get), Some(1));
    assert_eq!(second.give_up(other), Some((1, 0)));
    second.collect(151);
    assert_eq!((second.next_admitted(), second.next_wake().map(CallerIndex::get)), (None, Some(0)));
    first.collect(152);
    assert_eq!(first.next_admitted(), Some(Admitted { request: (0, 4), replica, waited_ns: 112 }));
    first.release(replica, 160);
    assert_eq!((simulation.table.in_flight(replica), simulation.table.waiting(deployment)), (0, 0));
}

#[test]
fn replicas_that_come_and_drain_are_seen_and_the_places_of_a_dead_caller_are_free() {
    let mut simulation = Simulation::new(2, &[], 10, 1);
    let (table, deployment) = (Arc::clone(&simulation.table), simulation.deployment);
    simulation.arrive(0);
    simulation.arrive(1);
    assert_eq!(simulation.waiting(), 2, "there is no replica");
    let replica = table.replica(0).unwrap();
    table.add_replica(replica, deployment, 1);
    simulation.routers[0].refresh(deployment, 1);
    simulation.take_admitted(0);
    assert_eq!(simulation.woken, [1], "one place, and the other's turn");
    // It is to drain before the other has taken it.
    table.set_state(replica, ReplicaState::Draining);
    simulation.run_woken();
    assert_eq!((simulation.admitted, simulation.waiting(), table.in_flight(replica)), (0, 2, 0));
    table.set_state(replica, ReplicaState::Ready);
    simulation.routers[1].refresh(deployment, 2);
    assert_eq!(simulation.routers[1].next_wake().map(CallerIndex::get), Some(0));
    // The caller whose turn it is dies with the grant, and the other is told.
    table.forget_caller(table.caller(0).unwrap());
    simulation.routers[1].refresh(deployment, 3);
    assert_eq!(simulation.routers[1].next_admitted().map(|admitted| admitted.request), Some((1, 0)));
    assert_eq!((table.in_flight(replica), table.waiting(deployment)), (1, 0));
}

#[test]
fn a_request_whose_place_died_with_another_caller_waits_again() {
    let mut simulation = Simulation::new(2, &[1], 10, 1);
    let (table, deployment) = (Arc::clone(&simulation.table), simulation.deployment);
    simulation.arrive(0);
    simulation.arrive(1);
    // The other has taken the turn of the request that waits, and is killed before it grants the place.
    assert_eq!(table.next_waiting(deployment).map(CallerIndex::get), Some(1));
    table.forget_caller(table.caller(0).unwrap());
    simulation.routers[1].refresh(deployment, 1);
    assert_eq!(simulation.routers[1].next_admitted().map(|admitted| admitted.request), Some((1, 0)));
}

#[test]
fn threads_lose_no_request_and_no_place() {
    const REQUESTS: u64 = 5_000;
    let simulation = Simulation::new(CALLERS, &[2, 1, 3], u32::MAX, 1);
    let Simulation { table, deployment, routers, .. } = simulation;
    let inside: Vec<AtomicUsize> = (0..3).map(|_| AtomicUsize::new(0)).collect();
    let bells: Vec<(Mutex<bool>, Condvar)> = (0..CALLERS).map(|_| Default::default()).collect();
    std::thread::scope(|scope| {
        for (caller, mut router) in routers.into_iter().enumerate() {
            let (table, inside, bells) = (&table, &inside, &bells);
            scope.spawn(move || {
                let (mut sent, mut ended) = (0, 0);
                let mut running = VecDeque::new();
                while ended < REQUESTS {
                    if sent < REQUESTS && sent - ended < 8 {
                        if let Arrival::Admitted(_, replica) = router.arrive(deployment, (caller, sent), 0) {
                            running.push_back(replica);
                        }
                        sent += 1;
                    }
                    router.collect(0);
                    while let Some(admitted) = router.next_admitted() {
                        running.push_back(admitted.replica);
                    }
                    if let Some(replica) = running.pop_front() {
                        let count = &inside[replica.get()];
                        assert!(count.fetch_add(1, SeqCst) < table.limit(replica) as usize);
                        std::thread::yield_now();
                        count.fetch_sub(1, SeqCst);
                        router.release(replica, 0);
                        ended += 1;
                        while let Some(admitted) = router.next_admitted() {
                            running.push_back(admitted.replica);
                        }
                    } else if sent == REQUESTS || sent - ended == 8 {
                        // All that is left waits for a place: whoever grants one rings.
                        let (bell, rung) = &bells[caller];
                        let limit = std::time::Duration::from_secs(60);
                        let waited = rung.wait_timeout_while(bell.lock().unwrap(), limit, |bell| !*bell).unwrap();
                        assert!(!waited.1.timed_out(), "{caller} was not woken: {ended} of {sent} have ended");
                        *{ waited.0 } = false;
                    }
                    while let Some(woken) = router.next_wake() {
                        let (bell, rung) = &bells[woken.get()];
                        *bell.lock().unwrap() = true;
                        rung.notify_one();
                    }
                }
            });
        }
    });
    assert_eq!(table.waiting(deployment), 0);
    table.ready(deployment).for_each(|replica| assert_eq!(table.in_flight(replica), 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn whatever_happens_in_which_order_all_that_arrives_is_admitted_refused_or_given_up(
        limits in prop::collection::vec(0..4_u32, 1..5),
        steps in prop::collection::vec((0..8_u8, 0..3_usize), 0..200),
        seed: u64,
    ) {
        let mut simulation = Simulation::new(3, &limits, 12, seed);
        let deployment = simulation.deployment;
        simulation.routers.iter_mut().for_each(|router| router.set_queue_timeout(deployment, Some(2_000_000)));
        let mut gone = 0;
        for (step, caller) in steps {
            match step {
                0..=3 => simulation.arrive(caller),
                4 => simulation.end_one(),
                5 => {
                    while simulation.routers[caller].next_expired(simulation.now_ns).is_some() {
                        gone += 1;
                    }
                }
                6 => {
                    let replica = simulation.table.replica(caller.min(limits.len() - 1)).unwrap();
                    let is_ready = simulation.table.state(replica) == ReplicaState::Ready;
                    simulation.table.set_state(replica, if is_ready { ReplicaState::Draining } else { ReplicaState::Ready });
                    for caller in 0..3 {
                        simulation.routers[caller].refresh(deployment, simulation.now_ns);
                        simulation.take_admitted(caller);
                    }
                }
                _ => simulation.run_woken(),
            }
        }
        simulation.run_woken();
        while !simulation.running.is_empty() {
            simulation.end_one();
            simulation.run_woken();
        }
        // What is left has no replica that is ready.
        for caller in 0..3 {
            while simulation.routers[caller].next_expired(u64::MAX).is_some() {
                gone += 1;
            }
        }
        prop_assert_eq!(simulation.admitted + simulation.refused + gone, simulation.sent.iter().sum::<u64>());
        for number in 0..limits.len() {
            prop_assert_eq!(simulation.table.in_flight(simulation.table.replica(number).unwrap()), 0);
        }
    }
}

#[test]
fn callers_agree_where_a_model_is_and_on_the_next_replica_when_that_one_is_full() {
    let mut simulation = Simulation::new(2, &[2; 5], 10, 1);
    let deployment = simulation.deployment;
    let mut place = |caller: usize, model: &str| {
        let arrival = simulation.routers[caller].arrive_for(deployment, Preference::of_model(model), (caller, 0), 0);
        let Arrival::Admitted(_, replica) = arrival else { panic!("there is room") };
        replica
    };
    let first = place(0, "llama");
    assert_eq!(place(1, "llama"), first);
    let second = place(0, "llama");
    assert_ne!(second, first);
    assert_eq!(place(1, "llama"), second);
    let places: std::collections::BTreeSet<_> = (0..4).map(|number| place(0, &format!("model-{number}"))).collect();
    assert!(places.len() > 1, "models are spread");
}

/// A caller of replicas that are done with ten requests in the time of waking another.
struct Quick {
    simulation: Simulation,
    room: u64,
}

impl Quick {
    fn new(replicas: usize) -> Quick {
        Quick { simulation: Simulation::new(1, &vec![100; replicas], 10, 1), room: 10 }
    }

    fn place(&mut self) -> ReplicaIndex {
        let Simulation { routers, deployment, now_ns, .. } = &mut self.simulation;
        match routers[0].arrive_for(*deployment, Preference::Awake(&|_| self.room), (0, 0), *now_ns) {
            Arrival::Admitted(_, replica) => replica,
            arrival => panic!("there is room, and it was {arrival:?}"),
        }
    }

    fn release(&mut self, replica: ReplicaIndex) {
        self.simulation.routers[0].release(replica, self.simulation.now_ns);
    }
}

#[test]
fn a_caller_stays_with_a_replica_for_a_turn_and_all_have_the_same_part_in_the_long_run() {
    const REPLICAS: usize = 16;
    const TURNS: usize = 100;
    let mut quick = Quick::new(REPLICAS);
    let (mut counts, mut changes, mut last) = ([0; REPLICAS], 0, None);
    for _ in 0..REPLICAS * TURNS * TURN as usize {
        let replica = quick.place();
        quick.simulation.now_ns += AWAKE_NS / 2;
        quick.release(replica);
        counts[replica.get()] += 1;
        changes += usize::from(last.replace(replica) != Some(replica));
    }
    assert!((REPLICAS * TURNS / 2..=REPLICAS * TURNS).contains(&changes), "{changes} changes");
    let even = TURNS * TURN as usize;
    assert!(counts.iter().all(|count| (even * 9 / 10..=even * 11 / 10).contains(count)), "{counts:?}");
}

#[test]
fn a_caller_stays_with_no_replica_that_has_enough_or_sleeps_or_is_to_drain() {
    let mut quick = Quick::new(100);
    let first = quick.place();
    (1..quick.room).for_each(|_| assert_eq!(quick.place(), first));
    let second = quick.place();
    assert_ne!(second, first, "it has enough");
    quick.release(first);
    assert_eq!(quick.place(), first);
    assert_eq!(quick.place(), second);
    // The second one answers, and the first one does not.
    quick.simulation.now_ns += AWAKE_NS;
    quick.release(second);
    quick.release(second);
    assert_eq!([quick.place(), quick.place()], [second; 2]);
    quick.simulation.now_ns += AWAKE_NS;
    let third = quick.place();
    assert!(![first, second].contains(&third), "nobody has answered for long");
    quick.simulation.table.set_state(third, ReplicaState::Draining);
    let fourth = quick.place();
    assert_ne!(fourth, third);
    assert_eq!(quick.place(), fourth);
    quick.room = 0;
    let places: std::collections::BTreeSet<_> = (0..50).map(|_| quick.place()).collect();
    assert!(places.len() > 30, "nobody is quick: {places:?}");
}

#[test]
fn the_head_hears_once_that_a_request_has_come_if_it_asks() {
    let mut simulation = Simulation::new(2, &[1], 10, 1);
    let deployment = simulation.deployment;
    let router = &mut simulation.routers[0];
    assert!(matches!(router.arrive(deployment, (0, 0), 0), Arrival::Admitted(..)));
    assert_eq!(router.next_first(), None, "nobody has asked");
    simulation.table.watch(deployment);
    let router = &mut simulation.routers[1];
    assert!(matches!(router.arrive(deployment, (1, 0), 0), Arrival::Waits(_)));
    assert_eq!((router.next_first(), router.next_first()), (Some(deployment), None));
    assert!(matches!(router.arrive(deployment, (1, 1), 0), Arrival::Waits(_)));
    assert_eq!(router.next_first(), None, "once");
    assert!(router.has_replica(deployment));
    // It counts by the time it is told of: the head sees it in the table.
    simulation.table.watch(deployment);
    simulation.table.set_state(simulation.table.replica(0).unwrap(), ReplicaState::Gone);
    let router = &mut simulation.routers[0];
    assert!(!router.has_replica(deployment));
    assert!(matches!(router.arrive(deployment, (0, 1), 0), Arrival::Waits(_)));
    assert_eq!((router.next_first(), simulation.table.waiting(deployment)), (Some(deployment), 3));
}
