//! Rounds over the connections of a thread: who is late, who may rest, and who is read although they are slow.
//!
//! Each has a timer only while there is somebody to look at, so that nobody is woken while no client does anything.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::connection::Connection;
use super::limits;
use super::thread::ProxyThread;

/// Interval between two rounds over connections that have been answered. One that is idle from one to the next rests. It is short, because what clients
/// have taken who come and go within it stays with the allocator.
const REST: Duration = Duration::from_millis(20);
/// Interval between two rounds over connections with slow heads. It is short, because other requests wait for as long as a round takes.
const SLOW: Duration = Duration::from_millis(2);
/// Connections with slow heads that are read in one round, unless there are so many that each would wait for more than [`SLOW_ROUNDS`].
const SLOW_READS: usize = 4;
/// Rounds in which each of them is read, however many there are.
const SLOW_ROUNDS: usize = 160;

/// Rounds of a thread.
#[derive(Default)]
pub(super) struct Rounds {
    /// Counts the intervals of looks that have passed.
    look: Cell<u32>,
    /// Time since which nobody is looked at, because nobody can be late.
    paused_since: Cell<Option<Instant>>,
    goes_on: Notify,
    /// Connections that have been answered since they rested.
    answered: RefCell<Vec<Rc<Connection>>>,
    /// Connections with slow heads, the one that waits longest first.
    slow: RefCell<VecDeque<Rc<Connection>>>,
}

impl Rounds {
    /// Returns the number of the last look. Whoever asks notes that a connection does something, which may be late from now on.
    pub(super) fn look(&self) -> u32 {
        if self.resume() {
            self.goes_on.notify_one();
        }
        self.look.get()
    }

    /// Ends a pause, and counts the looks that there would have been. False if there was none.
    fn resume(&self) -> bool {
        let Some(since) = self.paused_since.take() else { return false };
        let looks = since.elapsed().as_nanos() / limits::look().as_nanos();
        self.look.set(self.look.get().wrapping_add(looks as u32));
        true
    }

    /// Waits for the next look. `looks` is the number of those in which nobody can be late; none if nobody can be at all.
    async fn next_look(&self, looks: Option<u32>) {
        let interval = limits::look();
        if looks != Some(1) {
            self.paused_since.set(Some(Instant::now()));
            match looks {
                None => self.goes_on.notified().await,
                Some(looks) => drop(tokio::time::timeout(interval * looks, self.goes_on.notified()).await),
            }
            if self.resume() {
                return;
            }
        }
        tokio::time::sleep(interval).await;
        self.look.set(self.look.get().wrapping_add(1));
    }
}

/// Looks at connections that may have taken too long.
pub(super) async fn look_after(thread: Rc<ProxyThread>) {
    loop {
        let now = thread.rounds.look.get();
        let looks = thread.connections().values().map(|connection| connection.rests_for(now).unwrap_or(1)).min();
        thread.rounds.next_look(looks).await;
        let now = thread.rounds.look.get();
        thread.connections().values().for_each(|connection| connection.look(now));
    }
}

/// Notes that a connection has been answered: if it asks for nothing more it rests after a while.
pub(super) fn was_answered(thread: &Rc<ProxyThread>, connection: Rc<Connection>) {
    let mut answered = thread.rounds.answered.borrow_mut();
    answered.push(connection);
    if answered.len() > 1 {
        return;
    }
    go_round(thread, REST, |rounds| {
        let mut answered = rounds.answered.borrow_mut();
        answered.retain(|connection| !connection.begins_rest());
        answered.is_empty()
    });
}

/// Notes that the head of a request comes in small pieces: it is read in rounds, and no more for each piece.
pub(super) fn became_slow(thread: &Rc<ProxyThread>, connection: Rc<Connection>) {
    let mut slow = thread.rounds.slow.borrow_mut();
    slow.push_back(connection);
    if slow.len() > 1 {
        return;
    }
    go_round(thread, SLOW, |rounds| {
        let mut slow = rounds.slow.borrow_mut();
        for _ in 0..(slow.len() / SLOW_ROUNDS).max(SLOW_READS).min(slow.len()) {
            let next = slow.pop_front();
            slow.extend(next.filter(|connection| connection.may_read_slowly()));
        }
        slow.is_empty()
    });
}

/// Starts rounds at an interval, which go on until one says that nobody is left.
fn go_round(thread: &Rc<ProxyThread>, interval: Duration, round: impl Fn(&Rounds) -> bool + 'static) {
    let thread = Rc::clone(thread);
    drop(tokio::task::spawn_local(async move {
        loop {
            tokio::time::sleep(interval).await;
            if round(&thread.rounds) {
                return;
            }
        }
    }));
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn run(test: impl AsyncFnOnce()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(test());
    }

    #[test]
    fn nobody_is_woken_while_nobody_can_be_late_and_the_time_counts_that_has_passed() {
        run(async || {
            let rounds = Rounds::default();
            let mut next = pin!(rounds.next_look(None));
            let mut context = Context::from_waker(Waker::noop());
            assert_eq!(next.as_mut().poll(&mut context), Poll::Pending);
            let begun = Instant::now().checked_sub(limits::look() * 7).unwrap();
            rounds.paused_since.set(Some(begun));
            assert_eq!(rounds.look(), 7);
            assert_eq!(rounds.paused_since.get(), None, "somebody does something, and there are looks again");
            assert_eq!(next.as_mut().poll(&mut context), Poll::Pending);
            assert_eq!(rounds.look(), 7, "which come after their interval");
        });
    }
}
