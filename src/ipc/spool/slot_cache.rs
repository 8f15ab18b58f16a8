//! One thread's part of a spool's slots: free ones for its next spans, and those of its ended spans for whoever commits.
//!
//! `tests/slot_cache_model.rs` includes this file with loom's atomics and runs it in all orders in which its steps can happen.

use std::array;

use super::sync::Ordering::{Acquire, Relaxed, Release};
use super::sync::{AtomicBool, AtomicU32};

/// The slots of one thread, its owner: at most `ROOM` free ones, and as many of ended spans.
///
/// Threads: [`take_free`](Self::take_free), [`refill`](Self::refill), [`put_ended`](Self::put_ended) and [`abandon`](Self::abandon) are for the
/// owner, [`collect`](Self::collect) for whoever has the lock of the slots, under which the owner refills too.
#[derive(Debug)]
pub(super) struct SlotCache<const ROOM: usize> {
    /// Free slots: those up to `free_len` are the owner's. Only it changes them, or, once it is gone, whoever collects.
    free: [AtomicU32; ROOM],
    free_len: AtomicU32,
    /// Count of slots given the last time. Changed under the lock.
    given: AtomicU32,
    /// A ring of slots of ended spans.
    ended: [AtomicU32; ROOM],
    /// Count of items that the owner has put down.
    put: AtomicU32,
    /// Count of slots that were collected. Changed under the lock.
    collected: AtomicU32,
    /// True if the owner has ended, or has turned to another spool.
    is_abandoned: AtomicBool,
}

impl<const ROOM: usize> Default for SlotCache<ROOM> {
    fn default() -> Self {
        let zero = || AtomicU32::new(0);
        SlotCache {
            free: array::from_fn(|_| zero()),
            free_len: zero(),
            given: zero(),
            ended: array::from_fn(|_| zero()),
            put: zero(),
            collected: zero(),
            is_abandoned: AtomicBool::new(false),
        }
    }
}

impl<const ROOM: usize> SlotCache<ROOM> {
    /// Takes a free slot.
    pub(super) fn take_free(&self) -> Option<u32> {
        let last = self.free_len.load(Relaxed).checked_sub(1)?;
        self.free_len.store(last, Relaxed);
        Some(self.free[last as usize].load(Relaxed))
    }

    /// Gives the owner, which has none left, these free slots, of which it takes the first one first.
    pub(super) fn refill(&self, slots: &[u32]) {
        for (place, slot) in self.free.iter().zip(slots.iter().rev()) {
            place.store(*slot, Relaxed);
        }
        self.free_len.store(slots.len() as u32, Relaxed);
        self.given.store(slots.len() as u32, Relaxed);
    }

    /// Count of slots given the last time.
    pub(super) fn given(&self) -> usize {
        self.given.load(Relaxed) as usize
    }

    /// Count of free slots.
    pub(super) fn free_len(&self) -> usize {
        self.free_len.load(Relaxed) as usize
    }

    /// Puts the slot of an ended span down. False when there is no room, or the thread has not made enough spans.
    pub(super) fn put_ended(&self, slot: u32) -> bool {
        if self.given() < ROOM {
            return false;
        }
        let put = self.put.load(Relaxed);
        if put.wrapping_sub(self.collected.load(Acquire)) as usize == ROOM {
            return false;
        }
        self.ended[put as usize % ROOM].store(slot, Relaxed);
        self.put.store(put.wrapping_add(1), Release);
        true
    }

    /// Count of slots of ended spans that nobody has collected.
    #[cfg(test)]
    pub(super) fn ended_len(&self) -> u32 {
        self.put.load(Relaxed) - self.collected.load(Relaxed)
    }

    /// Collects the slots of ended spans, in their order.
    pub(super) fn collect(&self, mut take: impl FnMut(u32)) {
        let (put, mut collected) = (self.put.load(Acquire), self.collected.load(Relaxed));
        while collected != put {
            take(self.ended[collected as usize % ROOM].load(Relaxed));
            collected = collected.wrapping_add(1);
        }
        self.collected.store(collected, Release);
    }

    /// Notes that the owner uses it no more.
    pub(super) fn abandon(&self) {
        self.is_abandoned.store(true, Release);
    }

    /// Returns whether the owner uses it no more. What it has done last is seen by whoever sees that.
    pub(super) fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Acquire)
    }
}
