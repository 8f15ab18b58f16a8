//! Clients of HTTP/2 that are slow with one stream, over a connection that goes on: with the body of a request, or with what they take of an
//! answer.

use std::cell::{Cell, RefCell};
use std::task::{Context, Waker};

use super::limits::STALL_LOOKS;

/// Pace of the client with one stream. Time is counted in looks, as for its connection.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Look since which the next piece of the request's body is waited for.
    body_since: Cell<Option<u32>>,
    /// True while the replica takes no more of the body.
    is_held: Cell<bool>,
    /// Look since which a piece of the answer waits for the client to take it.
    answer_since: Cell<Option<u32>>,
    is_body_late: Cell<bool>,
    is_cut: Cell<bool>,
    /// Waker of the one that reads the body.
    body_waker: RefCell<Option<Waker>>,
    /// Waker of the stream itself.
    waker: RefCell<Option<Waker>>,
}

impl Pace {
    /// Notes that the body goes on.
    pub(super) fn body_came(&self) {
        self.body_since.set(None);
    }

    /// Says whether the replica takes no more of the body.
    pub(super) fn hold(&self, is_held: bool) {
        self.is_held.set(is_held);
    }

    pub(super) fn is_held(&self) -> bool {
        self.is_held.get()
    }

    /// Waits for the body from this look on. True when that has taken too long.
    pub(super) fn poll_body_late(&self, now: u32, context: &Context<'_>) -> bool {
        if self.body_since.get().is_none() {
            self.body_since.set(Some(now));
        }
        set(&self.body_waker, context);
        self.is_body_late.get()
    }

    /// Notes at this look whether a piece of the answer waits for the client.
    pub(super) fn gave(&self, is_waiting: bool, now: u32) {
        self.answer_since.set(is_waiting.then_some(now));
    }

    /// Returns true when the stream is to be dropped as it is.
    pub(super) fn poll_cut(&self, context: &Context<'_>) -> bool {
        set(&self.waker, context);
        self.is_cut.get()
    }

    /// Looks how long the client has taken. Nobody is late with a body while another one of the connection is held: the client may not send
    /// more than the window that all bodies share.
    pub(super) fn look(&self, now: u32, is_any_held: bool) {
        if is_any_held {
            self.body_since.set(self.body_since.get().map(|_| now));
        }
        let is_over = |since: Option<u32>| since.is_some_and(|since| now.wrapping_sub(since) > STALL_LOOKS);
        if is_over(self.body_since.get()) && !self.is_body_late.replace(true) {
            wake(&self.body_waker);
        }
        if is_over(self.answer_since.get()) && !self.is_cut.replace(true) {
            wake(&self.waker);
        }
    }
}

fn set(waker: &RefCell<Option<Waker>>, context: &Context<'_>) {
    match &mut *waker.borrow_mut() {
        Some(known) => known.clone_from(context.waker()),
        none => *none = Some(context.waker().clone()),
    }
}

fn wake(waker: &RefCell<Option<Waker>>) {
    if let Some(waker) = waker.borrow_mut().take() {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_that_goes_on_is_not_late_and_one_that_stops_is() {
        let (pace, context) = (Pace::default(), Context::from_waker(Waker::noop()));
        for look in [0, STALL_LOOKS, 2 * STALL_LOOKS] {
            assert!(!pace.poll_body_late(look, &context));
            pace.look(look + STALL_LOOKS, false);
            pace.body_came();
        }
        pace.look(10 * STALL_LOOKS, false);
        assert!(!pace.poll_body_late(u32::MAX, &context));
        // It is waited for from the first time on that it is asked for; the numbers of looks begin again.
        assert!(!pace.poll_body_late(3, &context));
        pace.look(STALL_LOOKS - 1, false);
        assert!(!pace.poll_body_late(3, &context));
        pace.look(STALL_LOOKS, true);
        pace.look(2 * STALL_LOOKS, false);
        assert!(!pace.poll_body_late(3, &context));
        pace.look(2 * STALL_LOOKS + 1, false);
        assert!(pace.poll_body_late(3, &context) && !pace.poll_cut(&context));
    }

    #[test]
    fn an_answer_that_nobody_takes_is_cut_and_one_that_its_replica_is_slow_with_is_not() {
        let (pace, context) = (Pace::default(), Context::from_waker(Waker::noop()));
        pace.gave(true, 0);
        pace.gave(false, 1);
        pace.look(5 * STALL_LOOKS, false);
        pace.gave(true, 7);
        pace.look(7 + STALL_LOOKS, true);
        assert!(!pace.poll_cut(&context));
        pace.look(8 + STALL_LOOKS, true);
        assert!(pace.poll_cut(&context));
    }
}
