//! A model of the ring of ended spans (`src/hook/box_ring.rs`): loom runs it in every order that the memory model permits, to a bound of
//! preemptions, and says when an item is lost, given twice, out of order, or read while its owner changes it.

#![allow(unreachable_pub, dead_code, reason = "the file that is included has them for its own crate")]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

#[path = "../src/hook/box_ring.rs"]
mod box_ring;

mod sync {
    pub(super) use std::sync::PoisonError;

    pub(super) use loom::sync::{Mutex, atomic};
}

/// So few places that they are used again.
type Ring = box_ring::BoxRing<UnsafeCell<u32>, 2>;

/// Preemptions that loom tries at most; with more it looks for minutes.
const PREEMPTIONS: usize = 3;

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}

/// Appends what nobody has drained to `seen`, which is read and written under the ring's lock.
fn drain(ring: &Ring, seen: &UnsafeCell<Vec<u32>>) {
    if ring.is_drained() {
        return;
    }
    ring.drain(|items| {
        for item in items {
            // SAFETY: loom says when somebody changes it meanwhile.
            let item = item.with(|item| unsafe { *item });
            // SAFETY: as above.
            seen.with_mut(|seen| unsafe { (*seen).push(item) });
        }
    });
}

/// Puts each span where an owner does: into the ring, into a box that came back if there is one, and drained by itself when there is no room.
fn put(ring: &Ring, seen: &UnsafeCell<Vec<u32>>, number: u32) {
    let fresh = || Box::new(UnsafeCell::new(0));
    let item = ring.take_back().unwrap_or_else(fresh);
    // SAFETY: loom says when somebody reads it still.
    item.with_mut(|item| unsafe { *item = number });
    if let Err(item) = ring.put(item) {
        drain(ring, seen);
        while let Some(spare) = ring.take_back() {
            // SAFETY: as above.
            spare.with_mut(|spare| unsafe { *spare = u32::MAX });
        }
        assert!(ring.put(item).is_ok(), "there is room");
    }
}

fn seen(seen: &UnsafeCell<Vec<u32>>) -> Vec<u32> {
    // SAFETY: all threads have ended.
    seen.with(|seen| unsafe { (*seen).clone() })
}

#[test]
fn each_span_is_given_once_and_in_order_whoever_drains() {
    check(|| {
        let shared = Arc::new((Ring::default(), UnsafeCell::new(Vec::new())));
        let of_committer = Arc::clone(&shared);
        let committer = thread::spawn(move || {
            drain(&of_committer.0, &of_committer.1);
            drain(&of_committer.0, &of_committer.1);
        });
        for number in 1..=4 {
            put(&shared.0, &shared.1, number);
        }
        committer.join().unwrap();
        drain(&shared.0, &shared.1);
        assert_eq!(seen(&shared.1), [1, 2, 3, 4]);
    });
}

#[test]
fn whoever_sees_that_the_owner_is_gone_drains_its_last_span() {
    check(|| {
        let shared = Arc::new((Ring::default(), UnsafeCell::new(Vec::new())));
        let of_owner = Arc::clone(&shared);
        let owner = thread::spawn(move || {
            put(&of_owner.0, &of_owner.1, 1);
            of_owner.0.abandon();
        });
        let is_abandoned = shared.0.is_abandoned();
        drain(&shared.0, &shared.1);
        if is_abandoned {
            // SAFETY: the owner, which alone drains beside this thread, has ended.
            assert_eq!(shared.1.with(|seen| unsafe { (*seen).clone() }), [1]);
        }
        owner.join().unwrap();
    });
}
