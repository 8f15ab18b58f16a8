//! Scaling over loads: what is decided alone, and with a queue whose replicas take time to start.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

fn scaling(min: u32, max: u32) -> Autoscaling {
    Autoscaling { min, ..Autoscaling::up_to(max) }
}

/// A deployment whose load is as it is told, and whose replicas are there at once.
struct Told {
    scaling: Autoscaling,
    scale: Scale,
    current: u32,
    now: u64,
    /// Numbers of replicas with the time from which there were so many.
    changes: Vec<(u64, u32)>,
}

impl Told {
    fn new(scaling: Autoscaling, current: u32) -> Told {
        Told { scaling, scale: Scale::new(current, 0), current, now: 0, changes: Vec::new() }
    }

    /// Has a load for so long.
    fn with(&mut self, requests: u64, time: Duration) -> &mut Told {
        let until = self.now + time.as_nanos() as u64;
        while self.now < until {
            let load = Load { ongoing: requests, waiting: 0 };
            let next = self.scale.decide(&self.scaling, self.current, load, self.now);
            if next != self.current {
                self.changes.push((self.now, next));
                self.current = next;
            }
            self.now += pause_ns(&self.scaling);
        }
        self
    }
}

#[test]
fn the_number_follows_the_load_after_its_delays() {
    let mut told = Told::new(scaling(1, 8), 1);
    told.with(1, Duration::from_secs(10)).with(9, Duration::from_secs(60)).with(0, Duration::from_secs(200));
    let (up, down): (Vec<_>, Vec<_>) = told.changes.iter().partition(|(at, _)| *at < 100 * SECOND);
    assert_eq!(up.last().map(|(_, number)| *number), Some(5), "9 requests, 2 for each");
    let is_in_time = |&(at, _): &(u64, u32)| (12 * SECOND..=13 * SECOND).contains(&at);
    assert!(up.iter().all(is_in_time), "two seconds after more came, and with the mean of eight samples: {up:?}");
    assert_eq!(down.last().map(|(_, number)| *number), Some(1), "the least when there are none");
    let is_in_time = |&(at, _): &(u64, u32)| (130 * SECOND..=131 * SECOND).contains(&at);
    assert!(down.iter().all(is_in_time), "a minute after fewer came: {down:?}");
    assert!(up.is_sorted_by_key(|(_, number)| *number) && down.iter().rev().is_sorted_by_key(|(_, number)| *number));
}

#[test]
fn short_peaks_start_nothing_and_short_pauses_end_nothing() {
    let mut told = Told::new(scaling(1, 8), 1);
    for _ in 0..20 {
        told.with(2, Duration::from_secs(10)).with(12, Duration::from_secs(1));
    }
    assert_eq!(told.changes, []);
    told.with(12, Duration::from_secs(10));
    assert_eq!(told.current, 6);
    told.changes.clear();
    for _ in 0..20 {
        told.with(0, Duration::from_secs(50)).with(12, Duration::from_secs(3));
    }
    assert_eq!(told.changes, []);
}

#[test]
fn without_a_replica_the_first_request_starts_what_is_wanted_at_once_and_it_goes_when_there_were_none_for_the_delay() {
    let mut told = Told::new(scaling(0, 4), 0);
    told.with(0, Duration::from_secs(100));
    assert_eq!(told.changes, []);
    told.with(3, Duration::from_millis(1));
    assert_eq!(told.changes, [(100 * SECOND, 2)], "two for each");
    told.with(3, Duration::from_secs(10)).with(0, Duration::from_secs(65));
    let down = &told.changes[1..];
    assert_eq!(down.last().map(|(_, number)| *number), Some(0));
    assert!(down.iter().all(|(at, _)| (170 * SECOND..172 * SECOND).contains(at)), "{down:?}");
    let mut burst = Told::new(scaling(0, 4), 0);
    burst.with(1000, Duration::from_millis(1));
    assert_eq!(burst.current, 4, "no more than there may be");
}

#[test]
fn a_load_around_a_step_does_not_flap() {
    // A mean of 4 requests for 2 replicas, at one time 1 and at another 8: at most once up, and never to and fro.
    let mut told = Told::new(scaling(1, 8), 2);
    let mut seed = 7_u64;
    for _ in 0..20_000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        told.with(1 + (seed >> 33) % 8, Duration::from_millis(100));
    }
    assert!(told.changes.len() <= 2, "{:?}", told.changes);
}

/// A queue: requests that take so long each, at replicas that take one at a time and so long to start, or end what they have and then end.
struct Queue {
    told: Told,
    /// Times at which the requests at each replica that takes more are done.
    serving: Vec<Option<u64>>,
    /// The same of those that end.
    draining: Vec<u64>,
    /// Times at which replicas are ready that were started.
    starting: Vec<u64>,
    waiting: u64,
    arrived: u64,
    answered: u64,
    longest_queue: u64,
}

const STEP: u64 = 50 * MS;

impl Queue {
    fn new(scaling: Autoscaling) -> Queue {
        let told = Told::new(scaling, scaling.min);
        let serving = vec![None; scaling.min as usize];
        let (draining, starting) = (Vec::new(), Vec::new());
        Queue { told, serving, draining, starting, waiting: 0, arrived: 0, answered: 0, longest_queue: 0 }
    }

    /// Lets a step of time pass in which so many requests come.
    fn step(&mut self, arrivals: u64, takes: u64, start: u64) {
        let now = self.told.now + STEP;
        self.told.now = now;
        self.arrived += arrivals;
        self.waiting += arrivals;
        self.starting.retain(|ready| {
            let is_ready = *ready <= now;
            self.serving.extend(is_ready.then_some(None));
            !is_ready
        });
        for place in &mut self.serving {
            if place.is_some_and(|done| done <= now) {
                (*place, self.answered) = (None, self.answered + 1);
            }
            if place.is_none() && self.waiting > 0 {
                (*place, self.waiting) = (Some(now + takes), self.waiting - 1);
            }
        }
        let before = self.draining.len();
        self.draining.retain(|done| *done > now);
        self.answered += (before - self.draining.len()) as u64;
        self.longest_queue = self.longest_queue.max(self.waiting);
        let Some(due) = self.told.scale.next_ns.or((self.waiting > 0).then_some(now)) else { return };
        if due > now {
            return;
        }
        let ongoing = self.serving.iter().flatten().count() as u64;
        let load = Load { ongoing, waiting: self.waiting };
        let (scaling, current) = (self.told.scaling, self.told.current);
        let next = self.told.scale.decide(&scaling, current, load, now);
        self.told.scale.look_again(&scaling, now);
        if next != current {
            self.told.changes.push((now, next));
            self.told.current = next;
        }
        let there = self.serving.len() + self.starting.len();
        for _ in there..next as usize {
            self.starting.push(now + start);
        }
        for _ in next as usize..there {
            // Those that start and those that have nothing to do first.
            if self.starting.pop().is_some() {
                continue;
            }
            let idle = self.serving.iter().position(Option::is_none).unwrap_or(self.serving.len() - 1);
            self.draining.extend(self.serving.remove(idle));
        }
    }

    /// Lets all end.
    fn end(&mut self) {
        while self.answered < self.arrived {
            self.step(0, STEP, STEP);
            assert!(self.told.now < 100_000 * SECOND, "requests are left: {} of {}", self.answered, self.arrived);
        }
    }
}

/// Requests in each second of recorded loads, which were drawn from the shapes that services have: a day in which most come at noon, an hour of which the
/// first minutes have most, steps, single requests, and bursts.
fn recorded() -> Vec<(&'static str, Vec<u64>)> {
    let day = (0..1_200).map(|second: u64| {
        let from_noon = second.abs_diff(600);
        1 + (600 - from_noon.min(600)) / 20
    });
    let launch = (0..600).map(|second: u64| 200_u64.saturating_sub(second));
    let steps = (0..900).map(|second: u64| [2, 40, 12][(second / 300) as usize]);
    let single = (0..1_800).map(|second: u64| u64::from(second.is_multiple_of(200)));
    let bursts = (0..600).map(|second: u64| if second % 30 < 2 { 60 } else { 1 });
    vec![
        ("day", day.collect()),
        ("launch", launch.collect()),
        ("steps", steps.collect()),
        ("single", single.collect()),
        ("bursts", bursts.collect()),
    ]
}

#[test]
fn recorded_loads_are_served_whole_within_bounds_and_without_flapping() {
    for (name, load) in recorded() {
        for min in [0, 1, 3] {
            let bounds = Autoscaling { target_ongoing_requests: 1, ..scaling(min, 24) };
            let mut queue = Queue::new(bounds);
            for arrivals in &load {
                for step in 0..SECOND / STEP {
                    // Evenly within the second.
                    let per = SECOND / STEP;
                    let now = arrivals * (step + 1) / per - arrivals * step / per;
                    queue.step(now, 100 * MS, 50 * MS);
                }
            }
            queue.end();
            let numbers = queue.told.changes.iter().map(|(_, number)| *number);
            assert!(numbers.clone().all(|number| (min..=24).contains(&number)), "{name}: {:?}", queue.told.changes);
            assert_eq!(queue.answered, queue.arrived, "{name}");
            // To and fro: up after down within less than the delay downward would be flapping.
            let turns = queue.told.changes.windows(2).filter(|pair| {
                let ((at, one), (then, other)) = (pair[0], pair[1]);
                other < one && then - at < 60 * SECOND && one > min
            });
            let ups_then_down = turns.filter(|pair| {
                queue
                    .told
                    .changes
                    .iter()
                    .any(|(at, number)| *at > pair[1].0 && at - pair[1].0 < 2 * SECOND && *number > pair[1].1)
            });
            assert_eq!(ups_then_down.count(), 0, "{name}: {:?}", queue.told.changes);
        }
    }
}

#[test]
fn steps_end_with_as_many_replicas_as_the_load_has_requests_in_flight() {
    let mut queue = Queue::new(Autoscaling { target_ongoing_requests: 1, ..scaling(1, 24) });
    for (per_second, expected) in [(20_u64, 2), (80, 8), (40, 4)] {
        for step in 0..200 * SECOND / STEP {
            let per = SECOND / STEP;
            queue.step(per_second * (step + 1) / per - per_second * step / per, 100 * MS, 50 * MS);
        }
        let most = expected + 2;
        assert!((expected..=most).contains(&queue.told.current), "{per_second}: {:?}", queue.told.changes);
        assert!(queue.waiting <= per_second, "{per_second}: {}", queue.waiting);
    }
}

fn any_scaling() -> impl Strategy<Value = Autoscaling> {
    (0..4_u32, 1..12_u32, 1..5_u32, 0..5_000_u64, 0..20_000_u64).prop_map(|(min, more, target, up, down)| Autoscaling {
        min,
        max: min + more,
        target_ongoing_requests: target,
        upscale_delay: Duration::from_millis(up),
        downscale_delay: Duration::from_millis(down),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    /// Any load: bounds hold, nothing rises before the delay upward has passed since a lower number was wanted, nothing falls before the other one.
    #[test]
    fn bounds_and_delays_are_kept_whatever_the_load(
        scaling in any_scaling(),
        loads in prop::collection::vec((0..40_u64, 0..60_u64), 1..60),
        current in 0..20_u32,
    ) {
        let current = current.clamp(scaling.min, scaling.max);
        let mut scale = Scale::new(current, 0);
        let (mut current, mut now) = (current, 0);
        // What was wanted, and from when on; the number at the beginning counts as wanted before.
        let mut wanted = vec![(0, current)];
        for (requests, times) in loads {
            for _ in 0..=times {
                let next = scale.decide(&scaling, current, Load { ongoing: requests, waiting: 0 }, now);
                let now_wanted = scale.wanted(&scaling);
                if wanted.last().is_none_or(|(_, last)| *last != now_wanted) {
                    wanted.push((now, now_wanted));
                }
                prop_assert!((scaling.min..=scaling.max).contains(&next));
                let was_wanted = |since: u64| {
                    let before = wanted.iter().rev().find(|(from, _)| *from <= since).map_or(wanted[0].1, |(_, number)| *number);
                    let later = wanted.iter().filter(move |(from, _)| *from > since).map(|(_, number)| *number);
                    later.chain([before]).collect::<Vec<_>>()
                };
                if next > current && current > 0 {
                    let since = now.saturating_sub(scaling.upscale_delay.as_nanos() as u64);
                    prop_assert!(was_wanted(since).iter().all(|number| *number >= next), "up to {next} from {current} at {now}: {wanted:?}");
                }
                if next < current {
                    let since = now.saturating_sub(scaling.downscale_delay.as_nanos() as u64);
                    prop_assert!(was_wanted(since).iter().all(|number| *number <= next), "down to {next} from {current} at {now}: {wanted:?}");
                }
                current = next;
                now += pause_ns(&scaling);
            }
        }
        // A window keeps no more values than there are different ones.
        prop_assert!(scale.up.values.len() + scale.down.values.len() <= 2 * (scaling.max as usize + 2));
        // A load that stays is followed, whatever was before.
        let constant = u64::from(scaling.target_ongoing_requests) * 3;
        for _ in 0..2_000 {
            current = scale.decide(&scaling, current, Load { ongoing: constant, waiting: 0 }, now);
            now += pause_ns(&scaling);
        }
        prop_assert_eq!(current, 3.clamp(scaling.min, scaling.max));
    }
}
