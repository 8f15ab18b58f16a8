//! Gathering of a batch: which inputs go together, and when. Decided from arguments alone: time is one of them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Queue of inputs that wait for a batch, oldest first.
#[derive(Debug)]
pub(super) struct Gathering<T> {
    waiting: VecDeque<Waiting<T>>,
    max_size: usize,
    wait: Duration,
    last_ticket: u64,
}

#[derive(Debug)]
struct Waiting<T> {
    ticket: Ticket,
    since: Instant,
    input: T,
}

/// Number of an input, by which it can leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

/// Next step of a handler that is free.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<T> {
    /// It runs this batch.
    Batch(Batch<T>),
    /// It waits until then, unless the batch is full before.
    Until(Instant),
    /// There is nothing to do.
    Nothing,
}

/// Inputs that go together, oldest first.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Batch<T> {
    pub(super) inputs: Vec<T>,
    /// Time that the oldest one has waited.
    pub(super) waited: Duration,
}

impl<T> Gathering<T> {
    /// Makes an empty queue for batches of at most `max_size`, of which each is due when its oldest input has waited for `wait`.
    pub(super) fn new(max_size: usize, wait: Duration) -> Gathering<T> {
        Gathering { waiting: VecDeque::new(), max_size: max_size.max(1), wait, last_ticket: 0 }
    }

    /// Takes an input.
    pub(super) fn put(&mut self, input: T, now: Instant) -> Ticket {
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        self.waiting.push_back(Waiting { ticket, since: now, input });
        ticket
    }

    /// Takes an input out that still waits, and none that is in a batch already.
    pub(super) fn leave(&mut self, ticket: Ticket) -> Option<T> {
        // Tickets are in order.
        let index = self.waiting.binary_search_by_key(&ticket, |waiting| waiting.ticket).ok()?;
        Some(self.waiting.remove(index)?.input)
    }

    /// Returns whether a whole batch waits.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= self.max_size
    }

    /// Returns what a handler that is free does: the batch that is due, because it is full or the time of its oldest input is up.
    pub(super) fn next(&mut self, now: Instant) -> Next<T> {
        let Some(oldest) = self.waiting.front() else { return Next::Nothing };
        let due = oldest.since + self.wait;
        if !self.is_full() && now < due {
            return Next::Until(due);
        }
        let waited = now.saturating_duration_since(oldest.since);
        let size = self.waiting.len().min(self.max_size);
        Next::Batch(Batch { inputs: self.waiting.drain(..size).map(|waiting| waiting.input).collect(), waited })
    }

    /// Takes all that wait.
    pub(super) fn clear(&mut self) -> Vec<T> {
        self.waiting.drain(..).map(|waiting| waiting.input).collect()
    }
}

#[cfg(test)]
#[path = "gathering_tests.rs"]
mod tests;
