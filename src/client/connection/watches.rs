//! Wake-ups by tag: wakers of futures, callbacks of tasks, sets of tasks.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use rustc_hash::FxHashMap;

/// A call that is made while the connection is not locked.
pub type Callback = Box<dyn FnOnce() + Send>;

/// Tasks that have ended, of those that somebody waits for together.
#[derive(Debug, Default)]
pub struct EndedTasks(Mutex<EndedTasksState>);

#[derive(Debug, Default)]
struct EndedTasksState {
    tags: VecDeque<u64>,
    waker: Option<Waker>,
}

impl EndedTasks {
    fn lock(&self) -> MutexGuard<'_, EndedTasksState> {
        // What the lock guards is whole after every statement.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a task has ended. Returns who is to be woken.
    pub(super) fn push(&self, tag: u64) -> Option<Waker> {
        let mut state = self.lock();
        state.tags.push_back(tag);
        state.waker.take()
    }

    /// Sets the waker that the next end wakes.
    pub fn wake(&self, waker: &Waker) {
        self.lock().waker = Some(waker.clone());
    }

    /// Returns whether none has ended that was not taken out.
    pub fn is_empty(&self) -> bool {
        self.lock().tags.is_empty()
    }

    /// Returns the tag of a task that has ended, once.
    pub fn pop(&self) -> Option<u64> {
        self.lock().tags.pop_front()
    }
}

/// An interest in the end of a task.
pub(super) enum Watch {
    /// A future.
    Waker(Waker),
    /// A task's callback.
    Call(Callback),
    /// A set of tasks, and whoever waits for that.
    Set(Arc<EndedTasks>),
}

/// Wake-ups that are due as soon as the connection is not locked.
#[derive(Default)]
pub(super) struct Woken {
    pub(super) wakers: Vec<Waker>,
    calls: Vec<Callback>,
    /// Leases that have come, to be run while tasks wait.
    pub(super) runs: Vec<Vec<u8>>,
}

impl Woken {
    pub(super) fn is_empty(&self) -> bool {
        self.wakers.is_empty() && self.calls.is_empty() && self.runs.is_empty()
    }

    /// Wakes them. What they do may be anything, such as polling a future here and now.
    pub(super) fn wake(self, on_run: impl Fn(Vec<u8>)) {
        self.runs.into_iter().for_each(on_run);
        self.wakers.into_iter().for_each(Waker::wake);
        self.calls.into_iter().for_each(|call| call());
    }
}

/// The watches of a connection.
#[derive(Default)]
pub(super) struct Watches {
    ends: FxHashMap<u64, Vec<Watch>>,
    /// Called when submissions are accepted or refused.
    settlements: FxHashMap<u64, Callback>,
}

impl Watches {
    pub(super) fn add(&mut self, tag: u64, watch: Watch) {
        let watches = self.ends.entry(tag).or_default();
        // A future that is polled again is one future.
        if let Watch::Waker(new) = &watch
            && watches.iter().any(|watch| matches!(watch, Watch::Waker(waker) if waker.will_wake(new)))
        {
            return;
        }
        watches.push(watch);
    }

    /// Calls back when the submission is accepted or refused. There is one such callback for each.
    pub(super) fn on_settled(&mut self, tag: u64, callback: Callback) {
        self.settlements.insert(tag, callback);
    }

    /// Notes that so many submissions from this one on are accepted or refused.
    pub(super) fn settled(&mut self, first_tag: u64, count: u64, woken: &mut Woken) {
        if !self.settlements.is_empty() {
            woken.calls.extend((first_tag..first_tag + count).filter_map(|tag| self.settlements.remove(&tag)));
        }
    }

    /// Notes that a task has ended.
    pub(super) fn ended(&mut self, tag: u64, woken: &mut Woken) {
        if self.ends.is_empty() {
            return;
        }
        for watch in self.ends.remove(&tag).into_iter().flatten() {
            match watch {
                Watch::Waker(waker) => woken.wakers.push(waker),
                Watch::Call(call) => woken.calls.push(call),
                Watch::Set(set) => woken.wakers.extend(set.push(tag)),
            }
        }
    }

    /// Notes that nobody will ask for the task with this tag: its callbacks are called all the same.
    pub(super) fn forget(&mut self, tag: u64, woken: &mut Woken) {
        self.settlements.remove(&tag);
        if self.ends.is_empty() {
            return;
        }
        for watch in self.ends.remove(&tag).into_iter().flatten() {
            match watch {
                Watch::Waker(waker) => woken.wakers.push(waker),
                Watch::Call(call) => woken.calls.push(call),
                // It has not ended.
                Watch::Set(_) => {}
            }
        }
    }

    /// Notes that nothing comes any more: wakes everybody.
    pub(super) fn break_off(&mut self, woken: &mut Woken) {
        woken.calls.extend(self.settlements.drain().map(|(_, call)| call));
        for watch in self.ends.drain().flat_map(|(_, watches)| watches) {
            match watch {
                Watch::Waker(waker) => woken.wakers.push(waker),
                Watch::Call(call) => woken.calls.push(call),
                Watch::Set(set) => woken.wakers.extend(set.lock().waker.take()),
            }
        }
    }
}
