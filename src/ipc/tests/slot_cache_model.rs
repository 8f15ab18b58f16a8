//! A model of one thread's slots (`spool/slot_cache.rs`): loom says when a slot is lost, in two places, or used by two threads at a time.

#![allow(unreachable_pub, dead_code, reason = "the file that is included has them for its own crate")]

mod model;
#[path = "../spool/slot_cache.rs"]
mod slot_cache;

mod sync {
    pub(super) use super::model::{AtomicBool, AtomicU32, Ordering};
}

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;
use model::{Weakened, check};

/// So few that they are used again.
const ROOM: usize = 2;

/// A spool: the slots of one thread, and the rest of them behind the lock.
struct Spool {
    cache: slot_cache::SlotCache<ROOM>,
    slots: [UnsafeCell<u32>; 3],
    behind_lock: Mutex<BehindLock>,
}

struct BehindLock {
    free: Vec<u32>,
    committed: Vec<u32>,
}

impl Spool {
    fn new() -> Arc<Spool> {
        Arc::new(Spool {
            cache: slot_cache::SlotCache::default(),
            slots: std::array::from_fn(|_| UnsafeCell::new(0)),
            behind_lock: Mutex::new(BehindLock { free: vec![2, 1, 0], committed: Vec::new() }),
        })
    }

    /// Makes a span as the owner does: writes to a free slot, and puts it down as that of an ended span.
    fn make_span(&self, number: u32) {
        let slot = self.cache.take_free().unwrap_or_else(|| {
            let mut behind = self.behind_lock.lock().unwrap();
            if behind.free.len() < ROOM {
                self.commit(&mut behind);
            }
            let given: Vec<u32> =
                (0..ROOM).map(|_| behind.free.pop().expect("all but the thread's are free")).collect();
            self.cache.refill(&given);
            self.cache.take_free().expect("it was given")
        });
        // SAFETY: loom says when somebody reads it still.
        self.slots[slot as usize].with_mut(|span| unsafe { *span = number });
        if !self.cache.put_ended(slot) {
            let mut behind = self.behind_lock.lock().unwrap();
            self.commit(&mut behind);
            assert!(self.cache.put_ended(slot), "there is room");
        }
    }

    /// Commits as the holder of the lock does: reads the spans in the slots, which are free then.
    fn commit(&self, behind: &mut BehindLock) {
        self.cache.collect(|slot| {
            // SAFETY: loom says when somebody changes it meanwhile.
            behind.committed.push(self.slots[slot as usize].with(|span| unsafe { *span }));
            behind.free.push(slot);
        });
    }
}

fn committed_while_made(weakened: Weakened) {
    check(weakened, || {
        let spool = Spool::new();
        let of_committer = Arc::clone(&spool);
        let committer = thread::spawn(move || of_committer.commit(&mut of_committer.behind_lock.lock().unwrap()));
        (1..=3).for_each(|number| spool.make_span(number));
        committer.join().unwrap();
        let mut behind = spool.behind_lock.lock().unwrap();
        spool.commit(&mut behind);
        assert_eq!(behind.committed, [1, 2, 3]);
        behind.free.extend(std::iter::from_fn(|| spool.cache.take_free()));
        behind.free.sort_unstable();
        assert_eq!(behind.free, [0, 1, 2]);
    });
}

fn collected_when_abandoned(weakened: Weakened) {
    check(weakened, || {
        let spool = Spool::new();
        let of_owner = Arc::clone(&spool);
        let owner = thread::spawn(move || {
            of_owner.make_span(1);
            of_owner.cache.abandon();
        });
        let is_abandoned = spool.cache.is_abandoned();
        let mut behind = spool.behind_lock.lock().unwrap();
        spool.commit(&mut behind);
        if is_abandoned {
            behind.free.extend(std::iter::from_fn(|| spool.cache.take_free()));
            behind.free.sort_unstable();
            assert_eq!((&behind.committed[..], &behind.free[..]), (&[1][..], &[0, 1, 2][..]));
        }
        drop(behind);
        owner.join().unwrap();
    });
}

#[test]
fn each_span_is_committed_once_and_in_order_and_no_slot_is_lost() {
    committed_while_made(Weakened::Nothing);
}

#[test]
fn whoever_sees_that_the_owner_is_gone_has_all_its_slots() {
    collected_when_abandoned(Weakened::Nothing);
}

#[test]
#[should_panic(expected = "left == right")]
fn without_acquire_and_release_a_slot_is_read_while_it_is_written() {
    committed_while_made(Weakened::Synchronization);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_acquire_and_release_slots_of_a_gone_owner_are_lost() {
    collected_when_abandoned(Weakened::Synchronization);
}
