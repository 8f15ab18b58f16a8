//! Decides how much work a worker gets. Pure: no clock, no file, no socket.
//!
//! Workers hold *leases*: tasks sent ahead of time, so that a short task does not cost a round trip. How many follows from how
//! long tasks of that function have taken: enough for [`LEASE_TIME_NS`], at most [`LEASE_LIMIT`]. A function that has not been
//! measured, and a task that must be alone, is leased singly. Tasks are placed in the order of their turn.
//!
//! Tasks that are [short](RunTime::is_short) go to as few workers as keep the cores busy: each further worker would cost more wake-ups and
//! switches than its tasks take. A worker that gets stuck, because its task sleeps or turns out to be long, gives what it has not begun to
//! another one; after a few of those the function is not short any more, and its tasks go to all workers.

/// Limit on the work that a worker holds, in expected nanoseconds.
pub const LEASE_TIME_NS: u64 = 2_000_000;
/// The most leases that a worker holds. Well below the entries of the ring of claims, which also holds those taken back.
pub const LEASE_LIMIT: usize = 256;

/// Tasks that typically take less than this are done sooner than a sleeping worker is awake.
pub const SHORT_NS: u64 = 50_000;

/// Number of tasks over which the average of a function's run times reaches back.
const AVERAGED: u32 = 256;

/// Measured run times of a function's tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTime {
    /// A moving mean in nanoseconds; none before the first result.
    mean_ns: Option<u64>,
    /// Typical run time, in nanoseconds: one that is much longer, perhaps because its worker had no core for a while, at most doubles it.
    typical_ns: u64,
    /// Average over the last [`AVERAGED`] tasks or so, in nanoseconds. Unlike the mean it is not moved far by one task whose worker had no core for a while.
    average_ns: u64,
    /// Number of tasks in the average.
    averaged: u32,
}

impl RunTime {
    /// Takes in one more measurement. The mean follows a change within about eight tasks, and a longer one at once by half, so
    /// that long tasks are not queued behind each other for long.
    pub fn observe(&mut self, run_ns: u64) {
        self.typical_ns = match self.mean_ns {
            None => run_ns,
            Some(_) if run_ns > self.typical_ns => run_ns.min(self.typical_ns.saturating_mul(2).max(1_000)),
            Some(_) => self.typical_ns - (self.typical_ns - run_ns) / 4,
        };
        self.averaged = (self.averaged + 1).min(AVERAGED);
        let share_ns = run_ns.abs_diff(self.average_ns) / u64::from(self.averaged);
        if run_ns > self.average_ns {
            self.average_ns += share_ns;
        } else {
            self.average_ns -= share_ns;
        }
        self.mean_ns = Some(match self.mean_ns {
            None => run_ns,
            Some(mean) if run_ns > mean => mean + (run_ns - mean) / 2,
            Some(mean) => mean - (mean - run_ns) / 8,
        });
    }

    /// Notes that a task has been running for so long, and runs on.
    pub fn observe_running(&mut self, ns: u64) {
        if self.mean_ns.is_some() && ns > self.typical_ns {
            self.typical_ns = ns.min(self.typical_ns.saturating_mul(2).max(1_000));
        }
    }

    /// Returns whether its tasks are typically done sooner than a sleeping worker is awake. Unknown before the first result.
    pub fn is_short(&self) -> bool {
        self.mean_ns.is_some() && self.typical_ns < SHORT_NS
    }

    /// Returns the nanoseconds that one more task is expected to take.
    pub fn expected_ns(&self) -> u64 {
        self.mean_ns.unwrap_or(LEASE_TIME_NS)
    }

    /// Returns the nanoseconds that each of many tasks is expected to take, if any task was measured.
    pub fn average_ns(&self) -> Option<u64> {
        (self.averaged > 0).then_some(self.average_ns)
    }
}

/// The leases that a worker holds, summed up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Number of leases.
    pub leases: usize,
    /// Their expected run time together, in nanoseconds.
    pub expected_ns: u64,
    /// True if it runs a task that must be alone.
    pub is_exclusive: bool,
}

/// The task whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its expected run time, in nanoseconds.
    pub expected_ns: u64,
    /// True if no other task may be leased to the same worker beside it.
    pub must_be_alone: bool,
}

/// Returns whether a worker that holds `load` should be given more at all. It is topped up at half, so that it never runs dry and
/// leases travel in batches.
pub fn wants_more(load: Load) -> bool {
    load.leases == 0 || (!load.is_exclusive && load.leases < LEASE_LIMIT / 2 && load.expected_ns < LEASE_TIME_NS / 2)
}

/// Returns whether `candidate` may be leased to a worker that holds `load`.
pub fn fits(load: Load, candidate: Candidate) -> bool {
    load.leases == 0
        || (!load.is_exclusive
            && !candidate.must_be_alone
            && load.leases < LEASE_LIMIT
            && load.expected_ns + candidate.expected_ns <= LEASE_TIME_NS)
}

/// Returns the most tasks to give to one worker in one turn, so that what is waiting is shared among those that have room.
pub fn share(waiting: usize, workers_with_room: usize) -> usize {
    waiting.div_ceil(workers_with_room.max(1))
}

/// Returns how many workers that have nothing to do may get tasks, of so many, when `busy` others have several tasks each.
pub fn may_wake(idle: usize, busy: usize, cores: usize, are_short: bool) -> usize {
    if are_short { idle.min(cores.saturating_sub(busy)) } else { idle }
}

/// Returns how many unclaimed leases to take back from a worker for one that has none.
pub fn to_take_back(unclaimed: usize) -> usize {
    unclaimed.div_ceil(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(expected_ns: u64, must_be_alone: bool) -> usize {
        let candidate = Candidate { expected_ns, must_be_alone };
        let mut load = Load::default();
        while fits(load, candidate) {
            load.leases += 1;
            load.expected_ns += expected_ns;
            load.is_exclusive |= must_be_alone;
        }
        load.leases
    }

    #[test]
    fn a_lease_follows_the_length_of_tasks() {
        assert_eq!(filled(RunTime::default().expected_ns(), false), 1, "not measured");
        assert_eq!(filled(5_000_000, false), 1, "long");
        assert_eq!(filled(500_000, false), 4, "half a millisecond");
        assert_eq!(filled(1_000, false), LEASE_LIMIT, "short");
        assert_eq!(filled(0, false), LEASE_LIMIT, "too short to measure");
        assert_eq!(filled(1_000, true), 1, "alone");
    }

    #[test]
    fn a_worker_is_topped_up_at_half() {
        let load = |leases, expected_ns| Load { leases, expected_ns, is_exclusive: false };
        assert!(wants_more(load(0, 0)));
        assert!(wants_more(load(127, 1_000)));
        assert!(!wants_more(load(128, 1_000)));
        assert!(!wants_more(load(1, LEASE_TIME_NS)));
        assert!(!wants_more(Load { is_exclusive: true, ..load(1, 0) }));
    }

    #[test]
    fn the_mean_rises_fast_and_falls_slowly() {
        let mut time = RunTime::default();
        time.observe(1_000);
        assert_eq!(time.expected_ns(), 1_000);
        time.observe(1_001_000);
        assert_eq!(time.expected_ns(), 501_000);
        time.observe(1_000);
        assert_eq!(time.expected_ns(), 438_500);
        (0..100).for_each(|_| time.observe(1_000));
        assert!(time.expected_ns() < 2_000);
    }

    #[test]
    fn the_average_is_that_of_many_tasks() {
        let mut time = RunTime::default();
        assert_eq!(time.average_ns(), None);
        time.observe(5_000_000);
        assert_eq!(time.average_ns(), Some(5_000_000), "its worker had to load the module");
        (0..3).for_each(|_| time.observe(1_000));
        assert!((1_250_000..1_252_000).contains(&time.average_ns().unwrap()));
        (0..3 * AVERAGED).for_each(|_| time.observe(1_000));
        time.observe(4_000_000);
        assert!(time.average_ns().unwrap() < 50_000 && time.expected_ns() > 1_000_000, "its worker had no core");
        // Long ones are not put into bundles by hundreds for long.
        (0..20).for_each(|_| time.observe(10_000_000));
        assert!(time.average_ns().unwrap() > 500_000);
    }

    #[test]
    fn one_long_task_among_short_ones_does_not_make_them_long_and_several_in_a_row_do() {
        let mut time = RunTime::default();
        assert!(!time.is_short(), "not measured");
        time.observe(3_000);
        assert!(time.is_short());
        time.observe(10_000_000);
        assert!(time.is_short() && time.expected_ns() > 1_000_000, "it is leased with care, and not to everybody");
        (0..20).for_each(|_| time.observe(3_000));
        let mut needed = 0;
        while time.is_short() {
            time.observe_running(500_000);
            needed += 1;
        }
        assert!((3..=6).contains(&needed), "{needed}");
        (0..40).for_each(|_| time.observe(3_000));
        assert!(time.is_short());
        (0..6).for_each(|_| time.observe(200_000));
        assert!(!time.is_short());
    }

    #[test]
    fn short_tasks_wake_no_more_workers_than_there_are_cores() {
        assert_eq!(may_wake(64, 0, 2, true), 2);
        assert_eq!(may_wake(63, 1, 2, true), 1);
        assert_eq!(may_wake(62, 2, 2, true), 0);
        assert_eq!(may_wake(60, 4, 2, true), 0);
        assert_eq!(may_wake(62, 2, 2, false), 62);
    }

    #[test]
    fn what_waits_is_shared() {
        assert_eq!(share(10, 2), 5);
        assert_eq!(share(1, 2), 1);
        assert_eq!(share(11, 2), 6);
        assert_eq!(share(0, 2), 0);
        assert_eq!(to_take_back(1), 1);
        assert_eq!(to_take_back(255), 128);
    }
}
