//! Adaptive busy-polling: spins with `sched_yield` for at most 150 µs before it blocks.
//!
//! To wake a core that sleeps takes longer than a short task does, and a request passes through four processes' sleeps. So whoever
//! waits looks again and again for a little while, and lets others run in between, before it sleeps. That pays only if driver,
//! head and worker all do it, and only while one request follows the other closely: each of them decides by how soon a request
//! has begun after the last one ended, which is much the same for all three. A request each millisecond makes none of them spin.
//!
//! Letting others run is not enough where the other end shares the core: the kernel gives both the same part of it, so whoever has less to do
//! runs on, looking, until it has had as much. So a driver sleeps at once when the head has run on its core last, and is woken there.
//!
//! When letting others run takes long, someone else needs the core, and when nothing has come, the task takes longer than it pays to
//! wait for. Each such wait is set against what the waits before it have saved. If it has cost more, waits sleep at once for a time,
//! and for twice as long after each further one. The times end at marks of the clock that all processes share. Otherwise one of them
//! would look while the others sleep, wait in vain for what sleepers cannot send in time, and sleep itself when they look again.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use tracer_core::clock::now_unix_nano;

/// Time that an answer is looked for before sleeping: longer than a short task takes when every other process has to be woken for it.
const LOOK_NS: u64 = 150_000;
/// A request that begins this soon after the last one has ended follows it closely.
const CLOSE_NS: u64 = 100_000;
/// Others that were let run for this long needed the core.
const LATE_NS: u64 = 100_000;
/// Time that a wait has saved that was not in vain: that of sleeping and of being woken.
const SAVED_NS: u64 = 20_000;
/// Waits that cost more than was saved make the next ones sleep at once until the next mark. The marks are so far apart, and twice as
/// far at each level.
const MARK_NS: u64 = 256_000;
/// Looks that were not in vain after which more are expected to follow.
const PAID_OFTEN: u32 = 32;
/// A quarter of a second.
const HIGHEST_LEVEL: u32 = 10;

/// For benchmarks, which compare, and for tests: `never` makes everybody sleep at once, and `always` look each time. Everything that a
/// process with it starts has it too.
const VARIABLE: &str = "TRACER_TEST_SPINNING";

/// A wait that has not slept yet.
#[derive(Debug)]
pub struct Look {
    begun_ns: u64,
    /// Time at which others were let run last.
    last_ns: u64,
}

/// Decides whether to look for an answer or to sleep. One for each side of a conversation.
#[derive(Debug)]
pub struct Spin {
    clock: Clock,
    last_end_ns: Option<u64>,
    is_close: bool,
    /// Fixed answer, from the environment: whether to look, whatever pays.
    told: Option<bool>,
    sleeps_until_ns: u64,
    level: u32,
    /// By the waits since the last one in vain.
    saved_ns: u64,
    paid_looks: u32,
    is_for_answers: bool,
}

impl Default for Spin {
    fn default() -> Spin {
        let told = std::env::var_os(VARIABLE).and_then(|told| match told.to_str()? {
            "never" => Some(false),
            "always" => Some(true),
            _ => None,
        });
        Spin {
            clock: Clock::default(),
            last_end_ns: None,
            is_close: told == Some(true),
            told,
            sleeps_until_ns: 0,
            level: 0,
            saved_ns: 0,
            paid_looks: 0,
            is_for_answers: false,
        }
    }
}

impl Spin {
    /// For a side that asks and waits for the answer: the other has to run before it comes.
    pub fn for_answers(self) -> Spin {
        Spin { is_for_answers: true, ..self }
    }

    /// Returns whether it is for such a side.
    pub fn is_for_answers(&self) -> bool {
        self.is_for_answers
    }

    /// Notes that a request begins. Only the first one after an end says something.
    pub fn request_began(&mut self) {
        if let Some(last_end) = self.last_end_ns.take() {
            self.is_close = self.told.unwrap_or_else(|| self.clock.now_ns().saturating_sub(last_end) < CLOSE_NS);
        }
    }

    /// Notes that a request has ended.
    pub fn request_ended(&mut self) {
        self.last_end_ns = Some(self.clock.now_ns());
    }

    /// Returns whether the next wait looks before it sleeps.
    pub fn will_look(&self) -> bool {
        self.is_close && self.clock.now_ns() >= self.sleeps_until_ns
    }

    /// Looks for a while whether `is_ready`, if that pays just now. Whoever calls it sleeps afterwards, if need be.
    pub fn look(&mut self, is_ready: impl FnMut() -> bool) {
        let clock = self.clock;
        self.look_with(is_ready, std::thread::yield_now, || clock.now_ns());
    }

    /// Returns one that looks each time, for tests.
    pub fn always() -> Spin {
        Spin { is_close: true, told: Some(true), ..Spin::default() }
    }

    /// Count of looks that have paid.
    #[cfg(test)]
    pub fn paid_looks(&self) -> u32 {
        self.paid_looks
    }

    /// Returns whether looking has paid so often that it will go on to.
    pub fn has_paid_often(&self) -> bool {
        self.told.unwrap_or(self.paid_looks >= PAID_OFTEN)
    }

    /// Begins to look, if that pays just now, for whoever returns to an event loop between two looks: a task of an executor, which must
    /// not keep its thread. It looks, lets others run, and asks whether it [looks on](Self::looks_on), until it [has
    /// found](Self::has_found) something or is to sleep.
    pub fn begin_look(&mut self) -> Option<Look> {
        let clock = self.clock;
        self.begin_look_at(|| clock.now_ns())
    }

    /// Returns whether to look again, after others were let run. If not, the look was in vain.
    pub fn looks_on(&mut self, look: &mut Look) -> bool {
        let now_ns = self.clock.now_ns();
        self.looks_on_at(look, now_ns)
    }

    /// Says that a look has found something.
    pub fn has_found(&mut self, _: Look) {
        self.saved_ns += SAVED_NS;
        self.paid_looks = self.paid_looks.saturating_add(1);
    }

    fn look_with(
        &mut self,
        mut is_ready: impl FnMut() -> bool,
        mut let_others_run: impl FnMut(),
        mut now_ns: impl FnMut() -> u64,
    ) {
        let Some(mut look) = self.begin_look_at(&mut now_ns) else { return };
        while !is_ready() {
            let_others_run();
            if !self.looks_on_at(&mut look, now_ns()) {
                return;
            }
        }
        self.has_found(look);
    }

    #[inline]
    fn begin_look_at(&mut self, now_ns: impl FnOnce() -> u64) -> Option<Look> {
        if !self.is_close {
            return None;
        }
        let now_ns = now_ns();
        (now_ns >= self.sleeps_until_ns).then_some(Look { begun_ns: now_ns, last_ns: now_ns })
    }

    #[inline]
    fn looks_on_at(&mut self, look: &mut Look, now_ns: u64) -> bool {
        let is_late = now_ns - look.last_ns > LATE_NS;
        look.last_ns = now_ns;
        if is_late || now_ns - look.begun_ns > LOOK_NS {
            self.was_in_vain(now_ns, now_ns - look.begun_ns);
            return false;
        }
        true
    }

    fn was_in_vain(&mut self, now_ns: u64, cost_ns: u64) {
        if self.told == Some(true) {
            return;
        }
        if self.saved_ns < cost_ns {
            self.sleeps_until_ns = (now_ns + 1).next_multiple_of(MARK_NS << self.level);
            self.level = (self.level + 1).min(HIGHEST_LEVEL);
        } else {
            self.level = self.level.saturating_sub(1);
        }
        self.saved_ns = 0;
    }
}

/// Returns whether reading would not wait, now or within `limit`: something has come, or nothing comes any more.
pub fn is_readable(stream: &impl AsFd, limit: Duration) -> bool {
    let mut wanted = [PollFd::new(stream, PollFlags::IN)];
    // What cannot be asked is found out by reading, or asked again.
    Timespec::try_from(limit).is_ok_and(|limit| poll(&mut wanted, Some(&limit)).is_ok_and(|ready| ready > 0))
}

/// Nanoseconds that never go back, and are the same for all processes as long as nobody sets the time.
#[derive(Debug, Clone, Copy)]
struct Clock {
    begun: Instant,
    begun_unix_nano: u64,
}

impl Default for Clock {
    fn default() -> Clock {
        Clock { begun: Instant::now(), begun_unix_nano: now_unix_nano() }
    }
}

impl Clock {
    fn now_ns(&self) -> u64 {
        self.begun_unix_nano + u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Looks from `begun` on, with a clock that goes on by `yield_ns` each time others run. Returns how often it looked, and when it
    /// stopped.
    fn look(spin: &mut Spin, begun: u64, ready_after_ns: u64, yield_ns: u64) -> (u32, u64) {
        let (looks, now) = (Cell::new(0), Cell::new(begun));
        let is_ready = || {
            looks.set(looks.get() + 1);
            now.get() - begun >= ready_after_ns
        };
        spin.look_with(is_ready, || now.set(now.get() + yield_ns), || now.get());
        (looks.get(), now.get())
    }

    fn close() -> Spin {
        Spin { is_close: true, ..Spin::default() }
    }

    #[test]
    fn a_request_that_does_not_follow_another_closely_is_not_looked_for() {
        let mut spin = Spin::default();
        assert_eq!(look(&mut spin, 0, 0, 1), (0, 0), "there was no request before");
        spin.last_end_ns = Some(spin.clock.now_ns() - CLOSE_NS);
        spin.request_began();
        assert_eq!(look(&mut spin, 0, 0, 1), (0, 0), "the last one ended long ago");
        spin.last_end_ns = Some(spin.clock.now_ns() + CLOSE_NS);
        spin.request_began();
        assert_eq!(look(&mut spin, 0, 0, 1), (1, 0), "the last one has just ended");
    }

    #[test]
    fn an_answer_that_comes_soon_is_waited_for_and_no_other() {
        assert_eq!(look(&mut close(), 0, 5_000, 1_000), (6, 5_000));
        let (_, stopped) = look(&mut close(), 0, u64::MAX, 1_000);
        assert!((LOOK_NS..LOOK_NS + 2_000).contains(&stopped), "it sleeps after {stopped} ns");
        // What has come while others ran is seen.
        assert_eq!(look(&mut close(), 0, 1, LATE_NS).0, 2);
    }

    #[test]
    fn waits_in_vain_make_the_next_ones_sleep_until_marks_that_are_ever_farther_apart() {
        let mut spin = close();
        let mut now = 1;
        for level in 0..14 {
            let (looks, stopped) = look(&mut spin, now, u64::MAX, 1_000);
            assert_ne!(looks, 0, "at level {level}");
            let mark = stopped.next_multiple_of(MARK_NS << level.min(HIGHEST_LEVEL));
            assert_eq!(look(&mut spin, mark - 1, 0, 1).0, 0, "it sleeps before the mark of level {level}");
            now = mark;
        }
    }

    #[test]
    fn two_that_stop_at_different_times_look_again_at_the_same() {
        let (mut one, mut other) = (close(), close());
        look(&mut one, 1_000, u64::MAX, 1_000);
        look(&mut other, 71_000, u64::MAX, 1_000);
        assert_eq!(one.sleeps_until_ns, other.sleeps_until_ns);
    }

    #[test]
    fn a_wait_in_vain_is_paid_by_those_that_were_not() {
        let mut spin = close();
        look(&mut spin, 0, u64::MAX, 1_000);
        let mut now = MARK_NS;
        for _ in 0..=LOOK_NS / SAVED_NS {
            now = look(&mut spin, now, 1_000, 1_000).1;
        }
        now = look(&mut spin, now, u64::MAX, 1_000).1;
        assert_eq!(look(&mut spin, now, 0, 1).0, 1, "it goes on looking");
        assert_eq!(spin.level, 0);
        now = look(&mut spin, now, u64::MAX, 1_000).1;
        assert_eq!(look(&mut spin, now, 0, 1).0, 0, "nothing was saved since");
    }

    #[test]
    fn whoever_returns_to_an_event_loop_between_looks_decides_as_one_that_blocks() {
        for (ready_after, yields) in
            [(0, 1_000), (5_000, 1_000), (u64::MAX, 1_000), (u64::MAX, LATE_NS + 1), (1, LATE_NS)]
        {
            let (mut blocking, mut stepping) = (close(), close());
            let (mut now, mut looks) = (0, 0);
            for _ in 0..40 {
                let blocked = look(&mut blocking, now, ready_after, yields);
                let begun = now;
                let mut count = 0;
                if let Some(mut look) = stepping.begin_look_at(|| now) {
                    count += 1;
                    while now - begun < ready_after {
                        now += yields;
                        if !stepping.looks_on_at(&mut look, now) {
                            break;
                        }
                        count += 1;
                    }
                    if now - begun >= ready_after {
                        stepping.has_found(look);
                    }
                }
                assert_eq!((count, now), blocked);
                let told = |spin: &Spin| (spin.sleeps_until_ns, spin.level, spin.saved_ns, spin.paid_looks);
                assert_eq!(told(&stepping), told(&blocking));
                looks += count;
                now += 10_000;
            }
            assert_ne!(looks, 0);
        }
        assert!(Spin::default().begin_look().is_none(), "there was no request before");
    }

    #[test]
    fn a_core_that_others_need_is_left_to_them() {
        let mut spin = close();
        assert_eq!(look(&mut spin, 0, 500_000, 1_000_000), (1, 1_000_000));
        assert_eq!(look(&mut spin, 1_000_000, 0, 1).0, 0);
    }
}
