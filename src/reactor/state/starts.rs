//! Starts of workers that fail: in a row until no more are started, and when they are again. Data, no effects.

use super::now::Now;

/// Workers in a row that may die before they are ready.
pub(crate) const FAILED_STARTS_LIMIT: u32 = 3;

/// Workers in a row that may die soon after they were ready, without having run anything. More than of the others: some may have been
/// killed by somebody who is at it.
pub(crate) const BRIEF_LIVES_LIMIT: u32 = 12;

/// Time to wait after a worker could not be started.
const START_AGAIN_NS: u64 = 1_000_000_000;

/// Time that no worker is started after so many have failed in a row; twice as long each further time, up to a limit.
const RESUME_NS: u64 = 2_000_000_000;

const RESUME_LIMIT_NS: u64 = 64_000_000_000;

/// A worker that could not be started, and shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartAgain {
    /// Answer of the system.
    pub reason: String,
    /// Time of the next try, monotonic.
    pub monotonic_ns: u64,
}

/// Starts of workers, as far as they have failed.
#[derive(Debug, Default)]
pub(crate) struct Starts {
    /// True if the head has said that it has started.
    has_begun: bool,
    /// Workers in a row that died before they were ready.
    failed: u32,
    /// Workers in a row that died soon after they were ready, without having run anything.
    brief: u32,
    /// The worker for which the system has no room.
    again: Option<StartAgain>,
    /// Reason why no worker is started for now.
    no_worker: Option<String>,
    /// True if the last worker that was wanted could not be started by the system: no hook has run in it.
    was_refused: bool,
    /// Time when workers are started again, monotonic; none while they are, and where they never will be.
    resumes_ns: Option<u64>,
    /// Number of times in a row that no more workers were started.
    give_ups: u32,
}

impl Starts {
    /// Notes that the head has said that it has started.
    pub(crate) fn begin(&mut self) {
        self.has_begun = true;
    }

    /// Returns whether the head has [said](Self::begin) that it has started.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Returns why no worker is started for now.
    pub(crate) fn no_worker(&self) -> Option<&str> {
        self.no_worker.as_deref()
    }

    /// Returns the worker for which the system has no room.
    pub(crate) fn again(&self) -> Option<&StartAgain> {
        self.again.as_ref()
    }

    /// Returns when workers are started again after too many have failed.
    pub(crate) fn resumes_ns(&self) -> Option<u64> {
        self.resumes_ns
    }

    /// Returns whether the system could not start the last worker that was wanted.
    pub(crate) fn was_refused(&self) -> bool {
        self.was_refused
    }

    /// Returns whether nothing is known that speaks against a start.
    pub(crate) fn are_possible(&self) -> bool {
        self.no_worker.is_none() && self.again.is_none()
    }

    /// Returns whether a start may be tried now.
    pub(crate) fn may_be_tried(&self, now: Now) -> bool {
        let must_wait = self.again.as_ref().is_some_and(|again| again.monotonic_ns > now.monotonic_ns);
        self.no_worker.is_none() && !must_wait
    }

    /// Starts workers again, if it is time. One that fails is enough to wait again, and longer.
    pub(crate) fn resume_if_due(&mut self, now: Now) -> bool {
        let is_due = self.resumes_ns.is_some_and(|resumes| resumes <= now.monotonic_ns);
        if is_due {
            (self.no_worker, self.resumes_ns) = (None, None);
            (self.failed, self.brief) = (FAILED_STARTS_LIMIT - 1, BRIEF_LIVES_LIMIT - 1);
        }
        is_due
    }

    /// Notes that a process was started.
    pub(crate) fn note_started(&mut self) {
        self.again = None;
    }

    /// Notes that the system could not start one, which is tried again later. True if the one before was not such a one.
    pub(crate) fn postpone(&mut self, reason: &str, now: Now) -> bool {
        let monotonic_ns = now.monotonic_ns.saturating_add(START_AGAIN_NS);
        self.again.replace(StartAgain { reason: reason.into(), monotonic_ns }).is_none()
    }

    /// Notes that the system could not start one, which counts as a start that has failed.
    pub(crate) fn note_refused(&mut self) {
        self.failed += 1;
        self.was_refused = true;
    }

    /// Notes that a worker has died that has run nothing, before it was ready or soon after.
    pub(crate) fn note_death(&mut self, was_ready: bool) {
        self.was_refused = false;
        *if was_ready { &mut self.brief } else { &mut self.failed } += 1;
    }

    /// Notes that workers can live: those that failed before are forgiven.
    pub(crate) fn note_success(&mut self) {
        (self.failed, self.brief, self.give_ups) = (0, 0, 0);
    }

    /// Returns what speaks against any further start, when too many have failed in a row and none is said to be wanted any more.
    pub(crate) fn hopeless(&self) -> Option<String> {
        if self.no_worker.is_some() {
            None
        } else if self.failed >= FAILED_STARTS_LIMIT {
            Some(format!("{} workers in a row did not get ready", self.failed))
        } else if self.brief >= BRIEF_LIVES_LIMIT {
            Some(format!("{} workers in a row ended as soon as they were ready", self.brief))
        } else {
            None
        }
    }

    /// Starts no worker from now on: for good in a head that has not begun, else for a while, which is longer each time and is returned.
    pub(crate) fn give_up(&mut self, message: String, now: Now) -> Option<u64> {
        self.no_worker = Some(message);
        if !self.has_begun {
            return None;
        }
        let pause_ns = RESUME_NS.saturating_mul(1 << self.give_ups.min(10)).min(RESUME_LIMIT_NS);
        self.give_ups += 1;
        self.resumes_ns = Some(now.monotonic_ns.saturating_add(pause_ns));
        Some(pause_ns)
    }

    /// Returns the number of workers in a row that died before they were ready.
    #[cfg(test)]
    pub(crate) fn failed(&self) -> u32 {
        self.failed
    }

    /// Forgets all that has failed.
    #[cfg(test)]
    pub(crate) fn forgive(&mut self) {
        *self = Starts { has_begun: self.has_begun, ..Starts::default() };
    }
}
