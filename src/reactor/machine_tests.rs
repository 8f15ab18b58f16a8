//! A simulated machine: so many cores, workers that compute or sleep, and the reactor that gives them tasks. Everything costs what it says,
//! so what is counted is the same wherever this runs.

use std::collections::VecDeque;

use crate::testing::*;

/// Time of a core that it takes to wake a sleeping worker.
const WAKE_UP_NS: u64 = 30_000;
/// Time slice: a worker keeps its core for so long while others want one.
const SLICE_NS: u64 = 1_000_000;
/// Interval at which the head takes results.
const STEP_NS: u64 = 10_000;

/// The work of a task.
#[derive(Clone, Copy)]
enum Work {
    Computes(u64),
    Sleeps(u64),
}

/// A worker of the machine.
#[derive(Default)]
struct Process {
    /// Leases that were sent and not begun: number and task.
    sent: VecDeque<(u64, TaskId)>,
    /// The lease that runs, since when, and what is left of it.
    running: Option<(u64, u64, Work)>,
    /// Time that is left of its wake-up.
    waking_ns: u64,
    has_slept: bool,
}

struct Machine {
    story: Story,
    processes: Vec<Process>,
    /// Work of each task, from the first on.
    works: Vec<Work>,
    cores: usize,
    /// The process that has the first core next; those that have cores keep them until `turn_ends_ns`.
    turn: usize,
    turn_ends_ns: u64,
    /// The longest that a task that sleeps waited behind another one while a worker had nothing to do.
    longest_wait_ns: u64,
    waits: HashMap<TaskId, u64>,
    wake_ups: u64,
}

impl Machine {
    fn new(workers: usize, cores: usize) -> Machine {
        let mut story = Story::with_workers(workers);
        story.is_large = true;
        story.state.settings.cores = cores;
        story.measure(3_000);
        let processes = (0..=workers).map(|_| Process { has_slept: true, ..Process::default() }).collect();
        Machine {
            story,
            processes,
            works: Vec::new(),
            cores,
            turn: 1,
            turn_ends_ns: 0,
            longest_wait_ns: 0,
            waits: HashMap::new(),
            wake_ups: 0,
        }
    }

    /// Runs tasks, with so many in flight, and returns how long that took.
    fn run(&mut self, works: impl IntoIterator<Item = Work>) -> u64 {
        const IN_FLIGHT: usize = 4_000;
        let mut works = works.into_iter().peekable();
        let began = self.story.now.monotonic_ns;
        loop {
            while self.story.state.tasks.len() - self.story.state.history.len() < IN_FLIGHT
                && let Some(work) = works.next()
            {
                self.works.push(work);
                self.story.submit(1);
            }
            self.give_out();
            let open = self.story.state.tally.counts().waiting + self.story.state.tally.counts().leased;
            if open == 0 && works.peek().is_none() {
                return self.story.now.monotonic_ns - began;
            }
            self.step();
        }
    }

    fn give_out(&mut self) {
        for (worker, lease, task, _) in self.story.schedule() {
            let process = &mut self.processes[worker as usize];
            if process.sent.is_empty() && process.running.is_none() && std::mem::take(&mut process.has_slept) {
                process.waking_ns = WAKE_UP_NS;
                self.wake_ups += 1;
            }
            process.sent.push_back((lease, TaskId(task)));
        }
    }

    /// Lets time pass, and tells the head what has ended.
    fn step(&mut self) {
        let is_idle = |process: &Process| process.sent.is_empty() && process.running.is_none();
        let has_idle = self.processes[1..].iter().any(is_idle);
        let now = self.story.now;
        if now.monotonic_ns >= self.turn_ends_ns {
            self.turn += self.cores;
            self.turn_ends_ns = now.monotonic_ns + SLICE_NS;
        }
        let (mut free_cores, count) = (self.cores, self.processes.len() - 1);
        let mut results = Vec::new();
        for place in 0..count {
            let worker = 1 + (self.turn + place) % count;
            let has_core = free_cores > 0;
            let mut left_ns = STEP_NS;
            let mut used_core = false;
            loop {
                let process = &mut self.processes[worker];
                if process.waking_ns > 0 {
                    let spent = if has_core { process.waking_ns.min(left_ns) } else { 0 };
                    used_core |= has_core;
                    process.waking_ns -= spent;
                    left_ns -= spent;
                    if process.waking_ns > 0 {
                        break;
                    }
                }
                if process.running.is_none() {
                    // It needs a core to begin.
                    let Some((lease, task)) = process.sent.front().copied().filter(|_| has_core && left_ns > 0) else {
                        break;
                    };
                    process.sent.pop_front();
                    if self.story.effects.claim_state(WorkerId(worker as u64), lease) == ClaimState::Granted {
                        let work = self.works[task.0 as usize - 1];
                        self.processes[worker].running = Some((lease, now.unix_nano, work));
                        self.story.claim(worker as u64, lease);
                    }
                    continue;
                }
                let Some((lease, since, work)) = &mut process.running else { break };
                let rest = match work {
                    Work::Computes(rest) => {
                        used_core |= has_core;
                        let spent = if has_core { left_ns.min(*rest) } else { 0 };
                        *rest -= spent;
                        left_ns -= spent;
                        *rest
                    }
                    Work::Sleeps(rest) => {
                        *rest = rest.saturating_sub(left_ns);
                        left_ns = 0;
                        *rest
                    }
                };
                if rest > 0 {
                    break;
                }
                results.push((worker as u64, *lease, now.unix_nano + STEP_NS - *since));
                process.running = None;
            }
            free_cores -= usize::from(used_core);
        }
        // Who waits behind another one although a worker has nothing to do.
        for process in self.processes.iter().filter(|process| process.running.is_some()) {
            for &(_, task) in &process.sent {
                if matches!(self.works[task.0 as usize - 1], Work::Sleeps(_)) && has_idle {
                    *self.waits.entry(task).or_default() += STEP_NS;
                }
            }
        }
        self.longest_wait_ns = self.longest_wait_ns.max(self.waits.values().copied().max().unwrap_or(0));
        self.story.now.monotonic_ns += STEP_NS;
        self.story.now.unix_nano += STEP_NS;
        for (worker, lease, run_ns) in results {
            // A short one takes a part of a step.
            let run_ns = if run_ns == STEP_NS { 3_000 } else { run_ns };
            self.story.result(worker, lease, run_ns);
            self.waits.clear();
        }
        for process in &mut self.processes {
            process.has_slept |= process.sent.is_empty() && process.running.is_none();
        }
        on_tick(&mut self.story.state, &mut self.story.effects, START_LIMIT_NS, self.story.now);
    }
}

#[test]
fn more_workers_than_cores_cost_short_tasks_next_to_nothing() {
    let took = |workers| {
        let mut machine = Machine::new(workers, 2);
        (machine.run((0..20_000).map(|_| Work::Computes(3_000))), machine.wake_ups)
    };
    let ((few, few_woken), (many, many_woken)) = (took(2), took(64));
    assert!(many * 10 <= few * 13, "{many} ns with 64 workers, {few} ns with 2; {many_woken} and {few_woken} wake-ups");
}

#[test]
fn tasks_that_begin_to_sleep_are_spread_over_all_workers_at_once() {
    const MS: u64 = 1_000_000;
    let mut machine = Machine::new(64, 2);
    machine.run((0..5_000).map(|_| Work::Computes(3_000)));
    let took = machine.run((0..640).map(|_| Work::Sleeps(10 * MS)));
    // Ten of them one after the other, and what it takes to notice.
    assert!(took <= 110 * MS, "{took} ns");
    assert!(machine.longest_wait_ns <= 3 * MS, "one waited for {} ns", machine.longest_wait_ns);
    // And back.
    let mut few = Machine::new(2, 2);
    let short = few.run((0..20_000).map(|_| Work::Computes(3_000)));
    let again = machine.run((0..20_000).map(|_| Work::Computes(3_000)));
    assert!(again * 10 <= short * 15, "{again} ns after that, {short} ns with 2 workers");
}

#[test]
fn a_task_that_sleeps_among_short_ones_holds_up_none_of_them() {
    const MS: u64 = 1_000_000;
    let mut machine = Machine::new(64, 2);
    let works =
        (0..10_000).map(|number| if number % 500 == 250 { Work::Sleeps(10 * MS) } else { Work::Computes(3_000) });
    let took = machine.run(works);
    // 30 ms of work, and the last one that sleeps.
    assert!(took <= 60 * MS, "{took} ns");
    assert!(machine.longest_wait_ns <= 3 * MS, "one waited for {} ns", machine.longest_wait_ns);
}
