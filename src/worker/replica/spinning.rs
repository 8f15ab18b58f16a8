//! Busy-polling for the next request before the loop sleeps, by the rule of `src/ipc/spin.rs`, as the proxy does.
//!
//! With one request at a time nearly all of its time is sleep. So while one follows the other closely, the module is told to look for the next
//! one rather than to sleep. With more than one at a time looking takes requests out of the batch in which they would come, so nobody looks
//! until they have come one by one for a while.

use std::sync::Mutex;

use tracer_core::lock::lock;
use tracer_ipc::spin::{Look, Spin};

/// Requests that have to come one by one before anybody looks.
const ALONE: u32 = 16;

/// Busy-polling of a replica: whether its module looks. Any thread may end a request.
#[derive(Debug, Default)]
pub(super) struct Spinning(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    spin: Spin,
    /// Requests that the module has.
    open: u32,
    /// Requests that have begun one after the other while no other was open.
    alone: u32,
    look: Option<Look>,
}

impl Spinning {
    /// Notes that a request has come.
    pub(super) fn request_began(&self) {
        let mut state = lock(&self.0);
        if let Some(look) = state.look.take() {
            state.spin.has_found(look);
        }
        if state.open == 0 {
            state.spin.request_began();
            state.alone = state.alone.saturating_add(1);
        } else {
            state.alone = 0;
        }
        state.open += 1;
    }

    /// Notes that the module has ended a request.
    pub(super) fn request_ended(&self) {
        let mut state = lock(&self.0);
        state.open = state.open.saturating_sub(1);
        if state.open == 0 {
            state.spin.request_ended();
        }
    }

    /// Number of requests that the module has.
    pub(super) fn open(&self) -> u32 {
        lock(&self.0).open
    }

    /// Returns whether to look once more. Lets other processes run between two looks.
    pub(super) fn look(&self) -> bool {
        let mut state = lock(&self.0);
        if state.open != 0 || state.alone < ALONE {
            return false;
        }
        let Some(mut look) = state.look.take() else {
            state.look = state.spin.begin_look();
            return state.look.is_some();
        };
        drop(state);
        std::thread::yield_now();
        let mut state = lock(&self.0);
        let looks_on = state.spin.looks_on(&mut look);
        state.look = looks_on.then_some(look);
        looks_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn always() -> Spinning {
        Spinning(Mutex::new(State { spin: Spin::always(), ..State::default() }))
    }

    fn one_by_one(spinning: &Spinning, count: u32) {
        for _ in 0..count {
            spinning.request_began();
            assert!(!spinning.look(), "the module is about to answer");
            spinning.request_ended();
        }
    }

    #[test]
    fn nobody_looks_before_requests_come_one_by_one() {
        let spinning = always();
        one_by_one(&spinning, ALONE - 1);
        assert!(!spinning.look());
        one_by_one(&spinning, 1);
        assert!(spinning.look());
        spinning.request_began();
        spinning.request_began();
        spinning.request_ended();
        assert!(!spinning.look(), "there is another one");
        spinning.request_ended();
        assert!(!spinning.look(), "there were two at a time");
        one_by_one(&spinning, ALONE);
        assert!(spinning.look());
    }

    #[test]
    fn a_look_ends_with_the_request_that_it_has_found_or_when_it_has_taken_too_long() {
        let spinning = always();
        one_by_one(&spinning, ALONE);
        assert!(spinning.look());
        assert!(lock(&spinning.0).look.is_some());
        spinning.request_began();
        assert!(lock(&spinning.0).look.is_none(), "it has found one");
        spinning.request_ended();
        // Nothing comes.
        while spinning.look() {}
        assert!(lock(&spinning.0).look.is_none());
        let never = Spinning::default();
        one_by_one(&never, 1);
        lock(&never.0).alone = ALONE;
        assert!(!never.look(), "one request follows no other");
    }

    #[test]
    fn a_module_that_ends_more_than_has_begun_breaks_nothing() {
        let spinning = always();
        spinning.request_ended();
        one_by_one(&spinning, ALONE);
        assert!(spinning.look());
    }
}
