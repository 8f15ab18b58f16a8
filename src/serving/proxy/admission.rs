//! Admission: a place at a replica for each request, or its turn in the queue.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tracer_client::router::{Admitted, Arrival, Preference, Router, Ticket};
use tracer_ipc::replica_table::{CallerIndex, DeploymentIndex, ReplicaIndex, ReplicaTable};
use tracer_ipc::serving::ProxyReport;

use super::reports::Reports;

/// The router of a thread, with those who wait in it.
pub(super) struct Admission {
    router: RefCell<Router<u64>>,
    /// By the number that the router has.
    waiting: RefCell<HashMap<u64, Waiter>>,
    next: Cell<u64>,
    /// Event descriptors that wake the other callers of the table.
    callers: RefCell<HashMap<CallerIndex, Arc<OwnedFd>>>,
    epoch: Instant,
    /// The way to the head, which is told of requests that it waits for.
    reports: Arc<Reports>,
}

struct Waiter {
    waker: Option<Waker>,
    found: Option<(ReplicaIndex, u64)>,
}

/// A place at a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Its stage.
    pub(super) replica: ReplicaIndex,
    /// Time that the request has waited for it, if it had to.
    pub(super) waited_ns: Option<u64>,
    /// True if it had to because the deployment had no replica.
    pub(super) is_cold: bool,
}

/// Reason why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoPlace {
    /// The queue is full.
    Full {
        /// After how many seconds to try again.
        retry_after_s: u64,
    },
    /// It has waited for as long as it may.
    TimedOut,
}

impl Admission {
    pub(super) fn new(table: Arc<ReplicaTable>, caller: CallerIndex, seed: u64, reports: Arc<Reports>) -> Admission {
        Admission {
            router: RefCell::new(Router::new(table, caller, seed)),
            waiting: RefCell::default(),
            next: Cell::new(0),
            callers: RefCell::default(),
            epoch: Instant::now(),
            reports,
        }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Says what wakes another caller.
    pub(super) fn add_caller(&self, caller: CallerIndex, wake: Arc<OwnedFd>) {
        self.callers.borrow_mut().insert(caller, wake);
    }

    /// Finds a place, at once or when it is the request's turn. A place that is not used is to be [released](Self::release).
    pub(super) async fn admit(
        &self,
        deployment: DeploymentIndex,
        preference: Preference<'_>,
        timeout: Option<Duration>,
    ) -> Result<Place, NoPlace> {
        let number = self.next.get();
        self.next.set(number.wrapping_add(1));
        let arrival = {
            let mut router = self.router.borrow_mut();
            let arrival = router.arrive_for(deployment, preference, number, self.now_ns());
            if let Some(first) = router.next_first() {
                self.reports.send(&ProxyReport::Wanted { deployment: first.get() as u32 });
            }
            arrival
        };
        let ticket = match arrival {
            Arrival::Admitted(_, replica) => return Ok(Place { replica, waited_ns: None, is_cold: false }),
            Arrival::Refused { retry_after_s, .. } => return Err(NoPlace::Full { retry_after_s }),
            Arrival::Waits(ticket) => ticket,
        };
        self.waiting.borrow_mut().insert(number, Waiter { waker: None, found: None });
        let is_cold = !self.router.borrow_mut().has_replica(deployment);
        // There may have been room after all.
        self.settle();
        let turn = Turn { admission: self, number, ticket };
        let found = match timeout {
            Some(timeout) => tokio::time::timeout(timeout, turn).await.map_err(|_| NoPlace::TimedOut)?,
            None => turn.await,
        };
        Ok(Place { replica: found.0, waited_ns: Some(found.1), is_cold })
    }

    /// Gives a place back.
    pub(super) fn release(&self, replica: ReplicaIndex) {
        self.router.borrow_mut().release(replica, self.now_ns());
        self.settle();
    }

    /// Takes what other callers have granted. To be called when this one was woken.
    pub(super) fn collect(&self) {
        self.router.borrow_mut().collect(self.now_ns());
        self.settle();
    }

    /// Looks what the head has changed.
    pub(super) fn refresh(&self, deployment: DeploymentIndex) {
        self.router.borrow_mut().refresh(deployment, self.now_ns());
        self.settle();
    }

    /// Says to requests that they were admitted, and to other callers that they were granted a place.
    fn settle(&self) {
        loop {
            let Some(Admitted { request, replica, waited_ns }) = self.router.borrow_mut().next_admitted() else {
                break;
            };
            match self.waiting.borrow_mut().get_mut(&request) {
                Some(waiter) => {
                    waiter.found = Some((replica, waited_ns));
                    waiter.waker.take().into_iter().for_each(Waker::wake);
                }
                None => self.router.borrow_mut().release(replica, self.now_ns()),
            }
        }
        loop {
            let Some(caller) = self.router.borrow_mut().next_wake() else { break };
            if let Some(wake) = self.callers.borrow().get(&caller) {
                // One that is full wakes whoever has it all the same.
                let _ = rustix::io::write(wake, &1_u64.to_ne_bytes());
            }
        }
    }
}

/// A request that waits for its turn.
struct Turn<'a> {
    admission: &'a Admission,
    number: u64,
    ticket: Ticket,
}

impl Future for Turn<'_> {
    type Output = (ReplicaIndex, u64);

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<(ReplicaIndex, u64)> {
        let mut waiting = self.admission.waiting.borrow_mut();
        let Some(waiter) = waiting.get_mut(&self.number) else { return Poll::Pending };
        match waiter.found {
            Some(found) => {
                waiting.remove(&self.number);
                Poll::Ready(found)
            }
            None => {
                waiter.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Turn<'_> {
    /// Ends the wait: it has its place, or its client has gone, or its time is up.
    fn drop(&mut self) {
        let Some(waiter) = self.admission.waiting.borrow_mut().remove(&self.number) else { return };
        match waiter.found {
            Some((replica, _)) => self.admission.release(replica),
            None => drop(self.admission.router.borrow_mut().give_up(self.ticket)),
        }
    }
}
