//! Busy-polling for the next frame before `epoll_wait`, while one request follows the other closely, by the rule of `src/ipc/spin.rs`.
//!
//! With one request at a time nearly all of its time is sleep: the proxy's, until the answer comes, and until the next request does. So
//! while that pays a task keeps the loop from sleeping, and lets other processes run in between. With more than one request in flight there is
//! always something to do, and nobody spins.
//!
//! Spinning for answers and for requests is decided apart: a client may send its next request at once to a replica that takes long.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

use tracer_ipc::spin::Spin;

/// Message that comes next.
#[derive(Clone, Copy, Debug)]
enum For {
    Answers,
    Requests,
}

/// Busy-polling of a thread: whether it looks, and for what.
#[derive(Default)]
pub(super) struct Spinning {
    for_answers: RefCell<Spin>,
    for_requests: RefCell<Spin>,
    in_flight: Cell<u32>,
    /// Counts what has come, from clients and from replicas.
    came: Cell<u64>,
    asked: Cell<Option<For>>,
    waker: RefCell<Option<Waker>>,
}

impl Spinning {
    /// Notes that a request has come.
    pub(super) fn request_began(&self) {
        self.something_came();
        self.in_flight.set(self.in_flight.get() + 1);
        if self.in_flight.get() == 1 {
            self.for_answers.borrow_mut().request_began();
            self.for_requests.borrow_mut().request_began();
        }
    }

    /// Notes that a request was sent to a replica, whose answer comes next.
    pub(super) fn request_was_sent(&self) {
        if self.in_flight.get() == 1 {
            self.ask(For::Answers);
        }
    }

    /// Notes that a request has ended, and perhaps the next one comes.
    pub(super) fn request_ended(&self) {
        self.in_flight.set(self.in_flight.get() - 1);
        if self.in_flight.get() == 0 {
            self.for_answers.borrow_mut().request_ended();
            self.for_requests.borrow_mut().request_ended();
            self.ask(For::Requests);
        }
    }

    /// Notes that something has come from a replica.
    pub(super) fn something_came(&self) {
        self.came.set(self.came.get().wrapping_add(1));
    }

    fn spin(&self, what: For) -> &RefCell<Spin> {
        match what {
            For::Answers => &self.for_answers,
            For::Requests => &self.for_requests,
        }
    }

    fn ask(&self, what: For) {
        if self.spin(what).borrow().will_look() {
            self.asked.set(Some(what));
            if let Some(waker) = self.waker.borrow_mut().take() {
                waker.wake();
            }
        }
    }

    /// Looks for as long as the thread runs.
    pub(super) async fn run(&self) {
        loop {
            let what = poll_fn(|context| match self.asked.take() {
                Some(what) => Poll::Ready(what),
                None => {
                    *self.waker.borrow_mut() = Some(context.waker().clone());
                    Poll::Pending
                }
            })
            .await;
            self.look(self.spin(what)).await;
        }
    }

    async fn look(&self, spin: &RefCell<Spin>) {
        let Some(mut look) = spin.borrow_mut().begin_look() else { return };
        let before = self.came.get();
        loop {
            // The loop takes in what is ready, and comes back without having slept.
            tokio::task::yield_now().await;
            if self.came.get() != before || self.in_flight.get() > 1 {
                return spin.borrow_mut().has_found(look);
            }
            std::thread::yield_now();
            if !spin.borrow_mut().looks_on(&mut look) {
                return;
            }
        }
    }
}
