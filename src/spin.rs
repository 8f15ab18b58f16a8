//! Waiting for an answer that is about to come.
//!
//! To wake a core that sleeps takes longer than a short task does, and a request passes through four processes' sleeps. So whoever
//! waits looks again and again for a little while, and lets others run in between, before it sleeps. That pays only if driver,
//! head and worker all do it, and only while one request follows the other closely: each of them decides by how soon a request
//! has begun after the last one ended, which is much the same for all three. A request each millisecond makes none of them spin.
//!
//! When letting others run takes long, someone else needs the core, and when nothing has come, the task takes longer than it pays to
//! wait for: then the next waits sleep at once, ever more of them until a wait succeeds.

use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, recv};

use crate::protocol::frame::FrameBuffer;

/// How long an answer is looked for before sleeping.
const LOOK_NS: u64 = 50_000;
/// A request that begins this soon after the last one has ended follows it closely.
const CLOSE_NS: u64 = 100_000;
/// Others that were let run for this long needed the core.
const LATE_NS: u64 = 100_000;
/// How many waits sleep at once after one that was in vain: at first, and at most.
const PAUSE: (u32, u32) = (16, 4_096);

/// For benchmarks, which compare: when it is set, nobody looks before sleeping. Everything that a process with it starts has it too.
const OFF_VARIABLE: &str = "TRACER_TEST_WITHOUT_SPINNING";

/// Decides whether to look for an answer or to sleep. One for each side of a conversation.
#[derive(Debug)]
pub(crate) struct Spin {
    clock: Instant,
    last_end_ns: Option<u64>,
    is_close: bool,
    is_off: bool,
    /// How many of the next waits sleep at once.
    left: u32,
    /// How many will, after the next wait that is in vain.
    pause: u32,
}

impl Default for Spin {
    fn default() -> Spin {
        Spin {
            clock: Instant::now(),
            last_end_ns: None,
            is_close: false,
            is_off: std::env::var_os(OFF_VARIABLE).is_some(),
            left: 0,
            pause: PAUSE.0,
        }
    }
}

impl Spin {
    /// A request begins. Only the first one after an end says something.
    pub(crate) fn request_began(&mut self) {
        if let Some(last_end) = self.last_end_ns.take() {
            self.is_close = !self.is_off && self.now_ns().saturating_sub(last_end) < CLOSE_NS;
        }
    }

    /// A request has ended.
    pub(crate) fn request_ended(&mut self) {
        self.last_end_ns = Some(self.now_ns());
    }

    /// Whether the next wait looks before it sleeps.
    pub(crate) fn will_look(&self) -> bool {
        self.is_close && self.left == 0
    }

    /// Looks for a while whether `is_ready`, if that pays just now. Whoever calls it sleeps afterwards, if need be.
    pub(crate) fn look(&mut self, is_ready: impl FnMut() -> bool) {
        let clock = self.clock;
        self.look_with(is_ready, std::thread::yield_now, || nanoseconds(clock));
    }

    /// Reads once: what comes while it looks, or else what comes whenever it does.
    pub(crate) fn read(&mut self, inbox: &mut FrameBuffer, mut stream: &UnixStream) -> io::Result<usize> {
        let mut found = None;
        self.look(|| match inbox.read_from(&mut WithoutWaiting(stream)) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            read => {
                found = Some(read);
                true
            }
        });
        found.unwrap_or_else(|| inbox.read_from(&mut stream))
    }

    fn look_with(
        &mut self,
        mut is_ready: impl FnMut() -> bool,
        mut let_others_run: impl FnMut(),
        mut now_ns: impl FnMut() -> u64,
    ) {
        if !self.is_close {
            return;
        }
        if self.left > 0 {
            self.left -= 1;
            return;
        }
        let begun = now_ns();
        let mut before = begun;
        while !is_ready() {
            let_others_run();
            let now = now_ns();
            if now - before > LATE_NS || now - begun > LOOK_NS {
                self.left = self.pause;
                self.pause = (self.pause * 2).min(PAUSE.1);
                return;
            }
            before = now;
        }
        self.pause = (self.pause / 2).max(PAUSE.0);
    }

    fn now_ns(&self) -> u64 {
        nanoseconds(self.clock)
    }
}

/// Reads what is there, and never waits.
struct WithoutWaiting<'a>(&'a UnixStream);

impl Read for WithoutWaiting<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (count, _) = recv(self.0, buffer, RecvFlags::DONTWAIT)?;
        Ok(count)
    }
}

/// Whether reading would not wait: something has come, or nothing comes any more.
pub(crate) fn is_readable(stream: &impl AsFd) -> bool {
    let mut wanted = [PollFd::new(stream, PollFlags::IN)];
    // What cannot be asked is found out by reading, or asked again.
    poll(&mut wanted, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Looks with a clock that goes on by `yield_ns` each time others run. Returns how often it looked, and after how long it stopped.
    fn look(spin: &mut Spin, ready_after_ns: u64, yield_ns: u64) -> (u32, u64) {
        let (looks, now) = (Cell::new(0), Cell::new(0));
        let is_ready = || {
            looks.set(looks.get() + 1);
            now.get() >= ready_after_ns
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
        assert_eq!(look(&mut spin, 0, 1), (0, 0), "there was no request before");
        spin.last_end_ns = Some(0);
        while nanoseconds(spin.clock) <= CLOSE_NS {}
        spin.request_began();
        assert_eq!(look(&mut spin, 0, 1), (0, 0), "the last one ended long ago");
        let now = nanoseconds(spin.clock);
        spin.last_end_ns = Some(now + CLOSE_NS);
        spin.request_began();
        assert_eq!(look(&mut spin, 0, 1), (1, 0), "the last one has just ended");
    }

    #[test]
    fn an_answer_that_comes_soon_is_waited_for_and_no_other() {
        assert_eq!(look(&mut close(), 5_000, 1_000), (6, 5_000));
        let (_, stopped) = look(&mut close(), u64::MAX, 1_000);
        assert!((LOOK_NS..LOOK_NS + 2_000).contains(&stopped), "it sleeps after {stopped} ns");
    }

    #[test]
    fn waits_in_vain_make_the_next_ones_sleep_at_once_and_ever_more_of_them() {
        let mut spin = close();
        let mut pauses = Vec::new();
        for _ in 0..12 {
            assert_ne!(look(&mut spin, u64::MAX, 1_000).0, 0);
            pauses.push((0..).take_while(|_| look(&mut spin, 0, 1_000).0 == 0).count());
            // The one that looked again succeeded, and halves the next pause.
            spin.pause *= 2;
        }
        assert_eq!(pauses[..4], [16, 32, 64, 128]);
        assert_eq!(pauses[11], PAUSE.1 as usize);
    }

    #[test]
    fn a_core_that_others_need_is_left_to_them() {
        let mut spin = close();
        assert_eq!(look(&mut spin, 500_000, 1_000_000), (1, 1_000_000));
        assert_eq!(look(&mut spin, 0, 1), (0, 0));
    }
}
