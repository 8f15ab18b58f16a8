//! A ring of boxes with a single producer, drained by whichever thread commits.
//!
//! `tests/ring_model.rs` includes this file with loom's atomics and looks at all orders in which its steps can happen.

use std::fmt;
use std::ptr;

use super::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use super::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32};
use super::sync::{Mutex, PoisonError};

/// The ring of one thread, its owner.
///
/// Threads: [`put`](Self::put), [`take_back`](Self::take_back) and [`abandon`](Self::abandon) are for the owner, the others are for all.
pub(super) struct BoxRing<T, const ROOM: usize> {
    /// From `taken_back` up to `put`, each place holds a box: from `drained` on of an item that nobody has drained, which nobody
    /// changes, and before that of one that is the owner's again.
    places: [AtomicPtr<T>; ROOM],
    /// Count of items that the owner has put down.
    put: AtomicU32,
    /// Count of items that were drained. Changed under the lock.
    drained: AtomicU32,
    /// Count of drained boxes that the owner has taken back.
    taken_back: AtomicU32,
    /// Held while items are drained.
    draining: Mutex<()>,
    /// True if the owner has ended, or uses another ring.
    is_abandoned: AtomicBool,
}

impl<T, const ROOM: usize> Default for BoxRing<T, ROOM> {
    fn default() -> Self {
        BoxRing {
            places: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
            put: AtomicU32::new(0),
            drained: AtomicU32::new(0),
            taken_back: AtomicU32::new(0),
            draining: Mutex::new(()),
            is_abandoned: AtomicBool::new(false),
        }
    }
}

impl<T, const ROOM: usize> BoxRing<T, ROOM> {
    fn place(&self, number: u32) -> &AtomicPtr<T> {
        &self.places[number as usize % ROOM]
    }

    /// Puts an item down. It comes back when there is no room.
    pub(super) fn put(&self, item: Box<T>) -> Result<(), Box<T>> {
        let put = self.put.load(Relaxed);
        if put.wrapping_sub(self.taken_back.load(Relaxed)) as usize == ROOM {
            return Err(item);
        }
        self.place(put).store(Box::into_raw(item), Relaxed);
        self.put.store(put.wrapping_add(1), Release);
        Ok(())
    }

    /// Takes back the box of an item that was drained.
    pub(super) fn take_back(&self) -> Option<Box<T>> {
        let taken_back = self.taken_back.load(Relaxed);
        if taken_back == self.drained.load(Acquire) {
            return None;
        }
        self.taken_back.store(taken_back.wrapping_add(1), Relaxed);
        // SAFETY: `put` got it from a box. It is taken back once, by the owner, and whoever drained it has let go of it.
        Some(unsafe { Box::from_raw(self.place(taken_back).load(Relaxed)) })
    }

    /// Returns whether nothing is there to be drained.
    pub(super) fn is_drained(&self) -> bool {
        self.put.load(Acquire) == self.drained.load(Acquire)
    }

    /// Gives those that nobody has drained to a function, in order, and then counts them as drained.
    pub(super) fn drain(&self, give: impl FnOnce(Undrained<'_, T, ROOM>)) {
        // Panics of who gets them are caught there; besides, nothing here can.
        let _draining = self.draining.lock().unwrap_or_else(PoisonError::into_inner);
        let (put, drained) = (self.put.load(Acquire), self.drained.load(Relaxed));
        give(Undrained { ring: self, next: drained, end: put });
        self.drained.store(put, Release);
    }

    /// Notes that the owner uses it no more.
    pub(super) fn abandon(&self) {
        self.is_abandoned.store(true, Release);
    }

    /// Returns whether the owner uses it no more. What it has put down last is seen by whoever sees that.
    pub(super) fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Acquire)
    }
}

impl<T, const ROOM: usize> Drop for BoxRing<T, ROOM> {
    fn drop(&mut self) {
        // Whoever had it last has drained all.
        while self.take_back().is_some() {}
    }
}

impl<T, const ROOM: usize> fmt::Debug for BoxRing<T, ROOM> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoxRing").finish_non_exhaustive()
    }
}

/// Items of a ring that nobody has drained.
pub(super) struct Undrained<'a, T, const ROOM: usize> {
    ring: &'a BoxRing<T, ROOM>,
    next: u32,
    end: u32,
}

impl<'a, T, const ROOM: usize> Iterator for Undrained<'a, T, ROOM> {
    type Item = &'a T;

    fn next(&mut self) -> Option<&'a T> {
        if self.next == self.end {
            return None;
        }
        let place = self.ring.place(self.next);
        self.next = self.next.wrapping_add(1);
        // SAFETY: `put` got it from a box, and nobody changes it or takes it back before `drained` says so, which is after `give`.
        Some(unsafe { &*place.load(Relaxed) })
    }
}
