//! Activity of a connection and its duration: who is too slow, and who has nothing to do.
//!
//! Time is counted in looks, which are a second apart, so that nothing reads a clock for each request.

use super::limits::{HEAD_LOOKS, IDLE_LOOKS, STALL_LOOKS};

/// Part of HTTP/1 that came last. With HTTP/2 it is always the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// A handshake of TLS that is not complete.
    Handshake,
    /// Nothing, or the end of a request.
    Idle,
    /// A part of a head.
    Head,
    /// A part of a body.
    Body,
}

/// Verdict on a connection that has taken too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It goes on.
    Fine,
    /// The request that comes is refused.
    TooSlow,
    /// It is closed.
    Close,
    /// It has had nothing to do for so many looks, which is too long.
    Idle(u32),
}

/// Activity of a connection.
#[derive(Debug)]
pub(super) struct Activity {
    /// Requests that have come and whose answers are not written.
    pub(super) serving: u32,
    pub(super) stage: Stage,
    /// True while hyper waits for the client to send.
    is_reading: bool,
    /// True while hyper waits for the client to take.
    is_writing: bool,
    /// The look since which nothing has come; of a head, since which it comes.
    since_read: u32,
    since_written: u32,
    since_served: u32,
}

impl Activity {
    pub(super) fn new(now: u32) -> Activity {
        Activity {
            serving: 0,
            stage: Stage::Idle,
            is_reading: true,
            is_writing: false,
            since_read: now,
            since_written: now,
            since_served: now,
        }
    }

    /// Notes that a handshake begins.
    pub(super) fn begins_handshake(&mut self) {
        self.stage = Stage::Handshake;
    }

    /// Notes that something has come, after which HTTP/1 is at this stage.
    pub(super) fn came(&mut self, stage: Stage, is_new_head: bool, now: u32) {
        // The time of a head runs from its first byte.
        if stage != Stage::Head || self.stage != Stage::Head || is_new_head {
            self.since_read = now;
        }
        self.stage = stage;
    }

    /// Notes that hyper waits for the client to send, or does not. While it does not, the client is not the slow one.
    pub(super) fn reads(&mut self, is_reading: bool, now: u32) {
        if is_reading && !self.is_reading && self.stage == Stage::Body {
            self.since_read = now;
        }
        self.is_reading = is_reading;
    }

    /// Notes that hyper waits for the client to take, or does not.
    pub(super) fn writes(&mut self, is_writing: bool, now: u32) {
        if !(is_writing && self.is_writing) {
            self.since_written = now;
        }
        self.is_writing = is_writing;
    }

    pub(super) fn begin_request(&mut self) {
        self.serving += 1;
    }

    pub(super) fn end_request(&mut self, now: u32) {
        self.serving -= 1;
        self.since_served = now;
    }

    /// Returns whether everything that was asked is answered and written.
    pub(super) fn is_done(&self) -> bool {
        self.serving == 0 && !self.is_writing
    }

    /// Returns for how many looks it has had nothing to do; none if it has.
    pub(super) fn idle_for(&self, now: u32) -> Option<u32> {
        let is_idle = self.serving == 0 && matches!(self.stage, Stage::Idle | Stage::Handshake);
        is_idle.then(|| now.wrapping_sub(self.since_served).min(now.wrapping_sub(self.since_read)))
    }

    /// Returns in how many looks it is to be looked at again; none if it has something to do, and may be late at any look.
    pub(super) fn rests_for(&self, now: u32) -> Option<u32> {
        let is_at_rest = self.is_done() && self.stage == Stage::Idle;
        let idle = self.idle_for(now).filter(|_| is_at_rest)?;
        Some((IDLE_LOOKS + 1).saturating_sub(idle).max(1))
    }

    /// Looks how long it has taken.
    pub(super) fn judge(&self, now: u32) -> Verdict {
        let is_over = |since: u32, limit: u32| now.wrapping_sub(since) > limit;
        if self.is_writing && is_over(self.since_written, STALL_LOOKS) {
            return Verdict::Close;
        }
        if let Some(looks) = self.idle_for(now).filter(|looks| *looks > IDLE_LOOKS) {
            return Verdict::Idle(looks);
        }
        let limit = match self.stage {
            Stage::Head | Stage::Handshake => HEAD_LOOKS,
            Stage::Body if self.is_reading => STALL_LOOKS,
            Stage::Body | Stage::Idle => return Verdict::Fine,
        };
        if is_over(self.since_read, limit) { Verdict::TooSlow } else { Verdict::Fine }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Beginning near the end of the numbers, which begin again.
    const START: u32 = u32::MAX - 5;

    fn after(looks: u32) -> u32 {
        START.wrapping_add(looks)
    }

    #[test]
    fn a_head_has_its_time_from_the_first_byte_however_many_follow() {
        let mut activity = Activity::new(START);
        (0..=HEAD_LOOKS).for_each(|look| activity.came(Stage::Head, look == 0, after(look)));
        assert_eq!(activity.judge(after(HEAD_LOOKS)), Verdict::Fine);
        assert_eq!(activity.judge(after(HEAD_LOOKS + 1)), Verdict::TooSlow);
        // The next one of many that come at once has a time of its own.
        activity.came(Stage::Head, true, after(HEAD_LOOKS));
        assert_eq!(activity.judge(after(HEAD_LOOKS + 1)), Verdict::Fine);
    }

    #[test]
    fn a_body_that_goes_on_may_take_as_long_as_it_likes_and_one_that_nobody_wants_is_not_slow() {
        let mut activity = Activity::new(START);
        activity.begin_request();
        for look in 0..5 * STALL_LOOKS {
            activity.came(Stage::Body, false, after(look));
            assert_eq!(activity.judge(after(look + STALL_LOOKS)), Verdict::Fine);
        }
        let stopped = after(5 * STALL_LOOKS - 1);
        activity.reads(false, stopped);
        assert_eq!(activity.judge(stopped.wrapping_add(1000)), Verdict::Fine);
        activity.reads(true, stopped.wrapping_add(1000));
        assert_eq!(activity.judge(stopped.wrapping_add(1000 + STALL_LOOKS)), Verdict::Fine);
        assert_eq!(activity.judge(stopped.wrapping_add(1001 + STALL_LOOKS)), Verdict::TooSlow);
    }

    #[test]
    fn who_takes_nothing_is_cut_and_who_takes_a_little_is_not() {
        let mut activity = Activity::new(START);
        activity.begin_request();
        activity.writes(true, START);
        activity.writes(true, after(STALL_LOOKS));
        assert_eq!(activity.judge(after(STALL_LOOKS)), Verdict::Fine);
        assert_eq!(activity.judge(after(STALL_LOOKS + 1)), Verdict::Close);
        activity.writes(false, after(STALL_LOOKS + 1));
        activity.writes(true, after(STALL_LOOKS + 1));
        assert_eq!(activity.judge(after(2 * STALL_LOOKS)), Verdict::Fine);
    }

    #[test]
    fn a_connection_without_a_request_is_closed_after_its_time_and_one_with_a_request_is_not() {
        let mut activity = Activity::new(START);
        assert_eq!(activity.judge(after(IDLE_LOOKS)), Verdict::Fine);
        assert_eq!(activity.judge(after(IDLE_LOOKS + 1)), Verdict::Idle(IDLE_LOOKS + 1));
        activity.begin_request();
        assert_eq!((activity.judge(after(1000)), activity.idle_for(after(1000))), (Verdict::Fine, None));
        activity.end_request(after(1000));
        assert_eq!((activity.judge(after(1001)), activity.idle_for(after(1001))), (Verdict::Fine, Some(1)));
        assert!(activity.is_done());
    }

    #[test]
    fn one_that_does_nothing_is_looked_at_when_it_is_to_be_closed_and_any_other_at_each_look() {
        let mut activity = Activity::new(START);
        assert_eq!(activity.rests_for(START), Some(IDLE_LOOKS + 1));
        let closed = after(activity.rests_for(after(7)).unwrap() + 7);
        assert_eq!((activity.judge(closed.wrapping_sub(1)), activity.judge(closed)), {
            (Verdict::Fine, Verdict::Idle(IDLE_LOOKS + 1))
        });
        assert_eq!(activity.rests_for(after(1000)), Some(1));
        activity.came(Stage::Head, true, START);
        assert_eq!(activity.rests_for(START), None);
        activity.came(Stage::Idle, false, START);
        activity.begin_request();
        assert_eq!(activity.rests_for(START), None);
        activity.end_request(START);
        activity.writes(true, START);
        assert_eq!(activity.rests_for(START), None);
        activity.writes(false, START);
        activity.begins_handshake();
        assert_eq!(activity.rests_for(START), None);
    }
}
