//! Cost of a turn of the head, counted in workers that are looked at instead of time. With ten thousand workers it is that of ten.

use crate::exits::LIVED_NS;
use crate::testing::*;

/// Workers that may be looked at in a turn in which one thing happens, each time one is.
const LOOKS_LIMIT: usize = 200;
const FEW: usize = 10;
const MANY: usize = 10_000;
/// Run time of tasks of which a worker is given one, and of those of which it is given several.
const LONG_NS: u64 = 5_000_000;
const HALF_NS: u64 = scheduler::LEASE_TIME_NS / 4;

impl Story {
    /// Returns a head with so many workers that are ready. The parts are not compared with each other after every step: that looks at all of them.
    fn large(workers: usize) -> Story {
        let mut story = Story { is_large: true, ..Story::new(workers, false) };
        story.start_missing();
        for worker in std::mem::take(&mut story.effects.started) {
            story.ready(worker, None);
        }
        story
    }

    /// Something happens, and the head does what it does with each wake-up.
    #[track_caller]
    fn turn(&mut self, what: impl FnOnce(&mut Story)) -> Vec<(u64, u64, u64, u32)> {
        self.state.workers.take_looks();
        what(self);
        self.start_missing();
        fail_if_no_worker(&mut self.state, &mut self.effects, self.now);
        let leases = self.schedule();
        on_tick(&mut self.state, &mut self.effects, START_LIMIT_NS, self.now);
        let (looks, workers) = (self.state.workers.take_looks(), self.state.workers.len());
        assert!(looks <= LOOKS_LIMIT, "workers were looked at {looks} times, of {workers} that there are");
        leases
    }

    /// Begins so many tasks, each in a worker of its own.
    fn run_long(&mut self, tasks: usize) -> Vec<(u64, u64, u64, u32)> {
        self.measure(LONG_NS);
        self.submit(tasks as u64);
        let leases = self.schedule();
        assert_eq!(leases.len(), tasks);
        leases.iter().for_each(|lease| self.claim(lease.0, lease.1));
        leases
    }
}

#[test]
fn few_workers_are_looked_at_when_tasks_come_and_end() {
    for workers in [FEW, MANY] {
        let mut story = Story::large(workers);
        story.measure(LONG_NS);
        let (worker, lease, ..) = story.turn(|story| story.submit(1))[0];
        story.claim(worker, lease);
        story.turn(|story| story.result(worker, lease, LONG_NS));
        let leases = story.run_long(workers);
        story.turn(|story| story.submit(5));
        for &(worker, lease, ..) in &leases[..8] {
            story.turn(|story| story.result(worker, lease, LONG_NS));
        }
        story.state.check().unwrap();
    }
}

#[test]
fn few_workers_are_looked_at_when_what_is_next_is_too_long_for_those_that_have_room() {
    for workers in [FEW, MANY] {
        let mut story = Story::large(workers);
        story.measure(1_000);
        story.submit(2 * workers as u64);
        story.schedule();
        assert_eq!((story.state.workers.idle(), story.state.workers.with_room()), (0, workers));
        let alone = story.submit_with(None, true);
        assert!(story.turn(|_| ()).is_empty());
        story.result(1, 0, 1_000);
        let leases = story.turn(|story| story.result(1, 1, 1_000));
        assert_eq!(leases[0].2, alone.0);
        story.state.check().unwrap();
    }
}

#[test]
fn few_workers_are_looked_at_when_some_are_behind_and_others_have_nothing_to_do() {
    for workers in [FEW, MANY] {
        let mut story = Story::large(workers);
        story.measure(HALF_NS);
        story.submit(4 * workers as u64);
        for (worker, lease, ..) in story.schedule() {
            if worker as usize <= workers / 2 {
                story.claim(worker, lease);
                story.result(worker, lease, HALF_NS);
            }
        }
        assert_eq!(story.state.workers.idle(), workers / 2);
        for _ in 0..4 {
            assert!(!story.turn(|story| story.now.monotonic_ns += BEHIND_NS).is_empty(), "what waits is moved");
        }
        story.state.check().unwrap();
    }
}

#[test]
fn few_workers_are_looked_at_when_workers_come_and_go() {
    for workers in [FEW, MANY] {
        let mut story = Story::large(workers);
        story.now.monotonic_ns += LIVED_NS;
        let leases = story.run_long(workers - 1);
        let (worker, ..) = leases[0];
        story.turn(|story| drop(story.exit(worker)));
        let started = story.effects.started.pop().expect("another one is started");
        story.turn(|story| story.ready(started, None));
        let idle = story.state.workers.last_idle().expect("not all have something to do");
        story.turn(|story| drop(story.exit(idle.0)));
        story.now.monotonic_ns += START_LIMIT_NS;
        story.turn(|_| ());
        assert_eq!(story.effects.killed, std::mem::take(&mut story.effects.started), "it did not get ready");
        story.state.check().unwrap();
    }
}

#[test]
fn few_workers_are_looked_at_when_tasks_need_more_than_a_slot() {
    for workers in [FEW, MANY] {
        let mut story = Story::large(workers);
        story.resources(&[("gpu", workers as u64 / 2)]);
        let leases = story.run_long(workers - 2);
        for begun in [1, 0] {
            let leases = story.turn(|story| {
                story.submit_demand(None, demand(2, &[("gpu", 1)]));
            });
            assert_eq!(leases.len(), begun);
        }
        story.turn(|story| story.submit(3));
        story.turn(|story| story.now.monotonic_ns += 2 * PASSED_FOR_NS);
        assert!(story.state.queue.reserved_for().is_some());
        for &(worker, lease, ..) in &leases[..4] {
            story.turn(|story| story.result(worker, lease, LONG_NS));
        }
        story.state.check().unwrap();
    }
}

#[test]
fn few_workers_are_looked_at_when_tasks_wait_for_others_and_all_that_may_begin_does() {
    for workers in [FEW, MANY] {
        let mut story = Story::large(workers);
        let leases = story.run_long(workers);
        let waiting = &leases[2..];
        for &(worker, _, parent, _) in waiting {
            let child = story.submit_nested(TaskId(parent));
            story.wait(worker, 1, 1, &[child]);
        }
        // Each in the worker in which its parent waits; where they are many, in several turns.
        let mut begun = Vec::new();
        while begun.len() < waiting.len() {
            begun.extend(story.turn(|_| ()));
            let has_next = nesting::next_waiters_ns(&story.state, story.now).is_some();
            assert!(has_next || begun.len() == waiting.len(), "{} of {} have begun", begun.len(), waiting.len());
        }
        let (worker, lease, ..) = begun[0];
        story.turn(|story| story.result(worker, lease, LONG_NS));
        assert!(!story.state.workers[&WorkerId(worker)].is_waiting());
        story.turn(|story| story.submit(1));
        story.state.check().unwrap();
    }
}

#[test]
fn few_workers_are_looked_at_when_tasks_reach_their_limits_and_are_cancelled() {
    for workers in [FEW, MANY] {
        let mut story = Story::large(workers);
        for place in 0..workers {
            story.submit_with(Some(Duration::from_secs(1 + place as u64)), false);
        }
        let leases = story.schedule();
        leases.iter().for_each(|lease| story.claim(lease.0, lease.1));
        story.turn(|story| story.now.monotonic_ns += 1_000_000_000);
        assert_eq!(story.effects.steps.len(), 1, "one has reached its limit");
        story.turn(|story| {
            on_cancel(&mut story.state, &mut story.effects, TaskId(7), Some(0), story.now);
        });
        assert_eq!(story.effects.killed.len(), 1);
        story.state.check().unwrap();
    }
}

#[test]
fn few_workers_are_looked_at_when_actors_begin_are_called_and_end() {
    for actors in [FEW, MANY] {
        let mut story = Story::large(1);
        story.state.settings.max_processes = 2 + actors;
        let options =
            ActorOptions { name: "", is_detached: false, or_existing: false, max_restarts: 0, max_call_retries: 0 };
        for _ in 0..actors {
            story.create(options);
        }
        story.get_ready();
        let leases = story.schedule();
        assert_eq!(leases.len(), actors);
        for &(worker, lease, ..) in &leases {
            story.claim(worker, lease);
            story.result(worker, lease, 1_000);
        }
        story.turn(|story| {
            story.create(options);
        });
        story.turn(Story::get_ready);
        let (worker, _, actor, _) = leases[actors / 2];
        let calls = story.turn(|story| {
            story.call(TaskId(actor));
        });
        let call = calls[0];
        assert_eq!(call.0, worker);
        story.claim(worker, call.1);
        story.turn(|story| story.result(worker, call.1, 1_000));
        story.turn(|story| drop(story.exit(worker)));
        story.state.check().unwrap();
    }
}
