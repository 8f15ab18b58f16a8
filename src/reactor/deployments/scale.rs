//! The scale of a deployment: its recent load, and the number of replicas that follows from it. Time and load are arguments.
//!
//! A *sample* is the number of requests that are in flight at a deployment's replicas or wait for one. The mean of the last few,
//! divided by the number that one replica should have, is how many replicas are *wanted* now. The number that there should be follows that with two
//! delays, as a stabilization window does: it rises to the least that was wanted in all of `upscale_delay`, and falls to the most that was wanted in
//! all of `downscale_delay`. So a peak that is shorter than the first starts nothing, a pause that is shorter than the second ends nothing, and it goes to
//! and fro at most once in the sum of both. Without any replica nothing is waited for: the first request starts what is wanted.

use std::collections::VecDeque;

use tracer_ipc::serving::Autoscaling;

/// Samples whose mean counts.
const SMOOTHED: usize = 8;
/// Samples in the delay before the number rises.
const SAMPLES_IN_DELAY: u64 = 16;
/// Time between two samples, at least and at most, in nanoseconds.
const SAMPLE_LEAST_NS: u64 = 50_000_000;
const SAMPLE_MOST_NS: u64 = 1_000_000_000;

/// Values of the recent past of which one end counts: the least of them, or the most. Each holds until the next one; so many are kept as there are different
/// ones at most.
#[derive(Clone, Debug, Default)]
struct Window {
    /// Values with the time until which each was seen, oldest first; none is beyond the next one of what counts.
    values: VecDeque<(u32, u64)>,
}

impl Window {
    /// Adds a value. `is_beyond` says whether one is nearer to the end that counts than another, or the same.
    fn add(&mut self, value: u32, now_ns: u64, length_ns: u64, is_beyond: impl Fn(u32, u32) -> bool) {
        if let Some((_, until_ns)) = self.values.back_mut() {
            *until_ns = now_ns;
        }
        while self.values.back().is_some_and(|(last, _)| is_beyond(value, *last)) {
            self.values.pop_back();
        }
        self.values.push_back((value, now_ns));
        while self.values.len() > 1 && self.expires_ns(length_ns).is_some_and(|at| at <= now_ns) {
            self.values.pop_front();
        }
    }

    /// Returns the least or the most.
    fn end(&self) -> Option<u32> {
        self.values.front().map(|(value, _)| *value)
    }

    /// Returns when that is in the window no more.
    fn expires_ns(&self, length_ns: u64) -> Option<u64> {
        self.values.front().map(|(_, until_ns)| until_ns.saturating_add(length_ns))
    }
}

/// Requests of a deployment at one time: in flight at replicas that take requests, and waiting for one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) ongoing: u64,
    pub(super) waiting: u64,
}

impl Load {
    fn requests(self) -> u64 {
        self.ongoing.saturating_add(self.waiting)
    }
}

/// Recent load of a deployment, from which the number of its replicas follows. Pure: time and load are arguments.
#[derive(Clone, Debug, Default)]
pub(super) struct Scale {
    samples: VecDeque<u64>,
    up: Window,
    down: Window,
    /// Time of the next sample, by the monotonic clock; none while it waits for a request.
    pub(super) next_ns: Option<u64>,
    /// True while the table says it when there is a request.
    pub(super) is_watched: bool,
    /// Lack of room for the replicas that it should have, in words.
    pub(super) short: Option<String>,
}

impl Scale {
    /// Begins with this number of replicas, which counts as wanted until now.
    pub(super) fn new(current: u32, now_ns: u64) -> Scale {
        let mut scale = Scale { next_ns: Some(now_ns), ..Scale::default() };
        for window in [&mut scale.up, &mut scale.down] {
            window.values.push_back((current, now_ns));
        }
        scale
    }

    /// Adds a sample, and returns the number of replicas that there should be; `current` is how many should be now.
    pub(super) fn decide(&mut self, scaling: &Autoscaling, current: u32, load: Load, now_ns: u64) -> u32 {
        let (up_ns, down_ns) = (nanoseconds(scaling.upscale_delay), nanoseconds(scaling.downscale_delay));
        if current == 0 && load.requests() > 0 {
            // There is nothing that could wait, and nothing to compare with.
            self.samples.clear();
        }
        if self.samples.len() == SMOOTHED {
            self.samples.pop_front();
        }
        self.samples.push_back(load.requests());
        let wanted = self.wanted(scaling);
        self.up.add(wanted, now_ns, up_ns, |new, last| new <= last);
        self.down.add(wanted, now_ns, down_ns, |new, last| new >= last);
        let (least, most) = (self.up.end().unwrap_or(wanted), self.down.end().unwrap_or(wanted));
        let next = match current {
            0 => wanted,
            _ if least > current => least,
            _ if most < current => most,
            _ => current,
        };
        next.clamp(scaling.min, scaling.max)
    }

    /// Number of replicas that the last samples want.
    fn wanted(&self, scaling: &Autoscaling) -> u32 {
        let sum = self.samples.iter().fold(0_u64, |sum, sample| sum.saturating_add(*sample));
        let of_one = u64::from(scaling.target_ongoing_requests.max(1)).saturating_mul(self.samples.len().max(1) as u64);
        u32::try_from(sum.div_ceil(of_one)).unwrap_or(u32::MAX).clamp(scaling.min, scaling.max)
    }

    /// Returns whether no request was there in all samples that count.
    pub(super) fn is_idle(&self) -> bool {
        self.samples.len() == SMOOTHED && self.samples.iter().all(|sample| *sample == 0)
    }

    /// Says that a request has come. As many samples without one as count are taken before it sleeps again, so that requests that follow each other wake it
    /// once.
    pub(super) fn wake(&mut self, now_ns: u64) {
        self.samples.clear();
        self.is_watched = false;
        self.next_ns = Some(now_ns);
    }

    /// Says that the next sample is due after the usual pause.
    pub(super) fn look_again(&mut self, scaling: &Autoscaling, now_ns: u64) {
        self.is_watched = false;
        self.next_ns = Some(now_ns.saturating_add(pause_ns(scaling)));
    }

    /// Says that it sleeps until a request comes, or the number can fall.
    pub(super) fn sleep(&mut self, scaling: &Autoscaling, current: u32, now_ns: u64) {
        self.is_watched = true;
        let falls_ns = self.down.expires_ns(nanoseconds(scaling.downscale_delay)).map(|at| at.max(now_ns + 1));
        self.next_ns = falls_ns.filter(|_| current > scaling.min);
    }
}

fn nanoseconds(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Time between two samples.
pub(super) fn pause_ns(scaling: &Autoscaling) -> u64 {
    (nanoseconds(scaling.upscale_delay) / SAMPLES_IN_DELAY).clamp(SAMPLE_LEAST_NS, SAMPLE_MOST_NS)
}

#[cfg(test)]
#[path = "scale_tests.rs"]
mod tests;
