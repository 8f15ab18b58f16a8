//! Per-thread cache of a spool's slots: nearly all spans open and close without the spool's lock.
//!
//! A thread takes several free slots at a time, and puts those of its ended spans where whoever commits collects them. A lock for each
//! would wait until all that was just written to the slot has left the processor: a seventh of what the host does for a span.

use std::cell::RefCell;
use std::sync::Arc;

use super::slot_cache;

/// Free slots that a thread has at most, and ended spans that it puts down until it collects them itself. Only threads that were given as many
/// slots put any down, so that all of them together have no more than [`FREE_LIMIT`] that no commit was asked for, however many threads make a
/// span each.
const ROOM: usize = 8;
/// Free slots that all threads have at most: a thread that makes no more spans keeps what it has from the others.
const FREE_LIMIT: usize = 256;
type SlotCache = slot_cache::SlotCache<ROOM>;

/// The cache of this thread, for the spool with this number.
struct Own {
    spool: u64,
    cache: Arc<SlotCache>,
}

impl Drop for Own {
    fn drop(&mut self) {
        self.cache.abandon();
    }
}

thread_local! {
    static OWN: RefCell<Option<Own>> = const { RefCell::new(None) };
}

/// None when this thread has no cache in the spool.
#[inline]
fn with_own<R>(spool: u64, work: impl FnOnce(&SlotCache) -> R) -> Option<R> {
    let with = |own: &RefCell<Option<Own>>| match &*own.borrow() {
        Some(own) if own.spool == spool => Some(work(&own.cache)),
        _ => None,
    };
    OWN.try_with(with).ok().flatten()
}

/// Takes a free slot that this thread has.
#[inline]
pub(super) fn take_free(spool: u64) -> Option<u32> {
    with_own(spool, SlotCache::take_free).flatten()
}

/// Puts the slot of an ended span down, for whoever collects them next. False when that has to be done under the lock.
#[inline]
pub(super) fn put_ended(spool: u64, slot: u32) -> bool {
    with_own(spool, |cache| cache.put_ended(slot)).unwrap_or(false)
}

/// The caches of a spool. They are behind the lock of its slots.
#[derive(Debug, Default)]
pub(super) struct SlotCaches {
    all: Vec<Arc<SlotCache>>,
    /// The sum of what they were given the last time.
    given: usize,
}

impl SlotCaches {
    /// Gives this thread, which has none left, further free slots: twice as many as the last time. `next` gives one.
    pub(super) fn give(&mut self, spool: u64, mut next: impl FnMut() -> Option<u32>) {
        // A thread that ends has no cache any more, and takes its slots one by one.
        let _ = OWN.try_with(|own| {
            let mut own = own.borrow_mut();
            let known = own.as_ref().filter(|own| own.spool == spool);
            let cache = known.map_or_else(Arc::default, |known| Arc::clone(&known.cache));
            let is_new = known.is_none();
            let before = cache.given();
            let room = FREE_LIMIT.saturating_sub(self.given - before);
            let most = (2 * before).clamp(1, ROOM).min(room);
            let (mut slots, mut count) = ([0; ROOM], 0);
            while count < most
                && let Some(slot) = next()
            {
                slots[count] = slot;
                count += 1;
            }
            cache.refill(&slots[..count]);
            self.given = self.given - before + count;
            // One without slots need not be known, so that there are no more of them than slots.
            if is_new && count > 0 {
                self.all.push(Arc::clone(&cache));
                *own = Some(Own { spool, cache });
            }
        });
    }

    /// Returns whether threads have all that they may.
    pub(super) fn is_all_given(&self) -> bool {
        self.given >= FREE_LIMIT
    }

    /// Collects the slots of ended spans, and the free ones of threads that are gone.
    pub(super) fn collect(&mut self, mut ended: impl FnMut(u32), mut free: impl FnMut(u32)) {
        let given = &mut self.given;
        self.all.retain(|cache| {
            // Asked first: what an owner has done last is seen by whoever sees that it is gone.
            let is_abandoned = cache.is_abandoned();
            cache.collect(&mut ended);
            if is_abandoned {
                std::iter::from_fn(|| cache.take_free()).for_each(&mut free);
                *given -= cache.given();
            }
            !is_abandoned
        });
    }

    /// The same of this thread alone, and of ended spans only.
    pub(super) fn collect_own(spool: u64, ended: impl FnMut(u32)) {
        with_own(spool, |cache| cache.collect(ended));
    }

    /// Count of free slots in the hands of threads.
    pub(super) fn free(&self) -> usize {
        self.all.iter().map(|cache| cache.free_len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// Returns a number that no other test has.
    fn number() -> u64 {
        use std::sync::atomic::AtomicU64;
        use std::sync::atomic::Ordering::Relaxed;
        static NEXT: AtomicU64 = AtomicU64::new(1 << 32);
        NEXT.fetch_add(1, Relaxed)
    }

    fn collected(caches: &mut SlotCaches) -> (Vec<u32>, Vec<u32>) {
        let (mut ended, mut free) = (Vec::new(), Vec::new());
        caches.collect(|slot| ended.push(slot), |slot| free.push(slot));
        (ended, free)
    }

    #[test]
    fn a_thread_is_given_more_the_more_it_needs() {
        let (spool, mut caches, mut next) = (number(), SlotCaches::default(), 0..);
        assert_eq!(take_free(spool), None);
        for expected in [1, 2, 4, 8, 8] {
            caches.give(spool, || next.next());
            assert_eq!(caches.free(), expected);
            let mut last = None;
            for left in (0..expected).rev() {
                let slot = take_free(spool).expect("it was given");
                assert!(last.is_none_or(|last| last + 1 == slot), "the first is used first");
                last = Some(slot);
                assert_eq!(caches.free(), left);
            }
            assert_eq!(take_free(spool), None);
        }
    }

    #[test]
    fn threads_that_make_no_more_spans_keep_few_slots_from_the_others() {
        let (spool, mut caches, mut next) = (number(), SlotCaches::default(), 0..);
        let threads = 4 * FREE_LIMIT / ROOM;
        let caches = std::sync::Mutex::new((&mut caches, &mut next));
        let (all_have, may_end) = (std::sync::Barrier::new(threads + 1), std::sync::Barrier::new(threads + 1));
        std::thread::scope(|scope| {
            let work = || {
                for _ in 0..6 {
                    while take_free(spool).is_some() {}
                    let mut caches = caches.lock().unwrap();
                    let (caches, next) = &mut *caches;
                    caches.give(spool, || next.next());
                }
                all_have.wait();
                may_end.wait();
            };
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            all_have.wait();
            assert_eq!(caches.lock().unwrap().0.free(), FREE_LIMIT);
            may_end.wait();
            // A thread that is joined has dropped what was its own; the end of a scope does not wait for that.
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        let (caches, _) = caches.into_inner().unwrap();
        let (ended, mut free) = collected(caches);
        free.sort_unstable();
        free.dedup();
        assert_eq!((ended.len(), free.len(), caches.all.len(), caches.given), (0, FREE_LIMIT, 0, 0));
    }

    #[test]
    fn a_thread_that_turns_to_another_spool_gives_back_what_it_has_of_the_first() {
        let (first, second) = (number(), number());
        let (mut of_first, mut of_second) = (SlotCaches::default(), SlotCaches::default());
        let mut next = 0..;
        for _ in 0..4 {
            while take_free(first).is_some() {}
            of_first.give(first, || next.next());
        }
        assert!(put_ended(first, 50) && !put_ended(second, 51));
        of_second.give(second, || Some(52));
        assert!(!put_ended(second, 53), "one that makes few spans puts none down");
        assert_eq!((take_free(first), take_free(second)), (None, Some(52)));
        let (ended, mut free) = collected(&mut of_first);
        free.sort_unstable();
        assert_eq!((ended, free), (vec![50], (7..15).collect()));
        assert_eq!(collected(&mut of_second), (vec![], vec![]));
    }

    #[test]
    fn what_threads_put_down_while_others_collect_arrives_once_and_in_order() {
        const COUNT: u32 = 20_000;
        let (spool, caches) = (number(), std::sync::Mutex::new(SlotCaches::default()));
        let mut seen = [Vec::new(), Vec::new()];
        std::thread::scope(|scope| {
            let threads = [0, 1].map(|thread| {
                let caches = &caches;
                scope.spawn(move || {
                    for _ in 0..4 {
                        while take_free(spool).is_some() {}
                        caches.lock().unwrap().give(spool, || Some(0));
                    }
                    for number in 0..COUNT {
                        while !put_ended(spool, 2 * number + thread) {
                            std::thread::yield_now();
                        }
                    }
                })
            });
            while !threads.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                caches.lock().unwrap().collect(|slot| seen[slot as usize % 2].push(slot / 2), |_| ());
            }
        });
        caches.lock().unwrap().collect(|slot| seen[slot as usize % 2].push(slot / 2), |_| ());
        for of_one in seen {
            assert!(of_one.into_iter().eq(0..COUNT));
        }
    }

    proptest! {
        /// Takes and returns slots in random steps: no slot is lost and none is twice.
        #[test]
        fn every_slot_is_in_one_place(steps in prop::collection::vec(0..4u8, 0..400)) {
            let (spool, mut caches) = (number(), SlotCaches::default());
            let (mut shared, mut open, mut ended): (Vec<u32>, VecDeque<u32>, Vec<u32>) =
                ((0..100).collect(), VecDeque::new(), Vec::new());
            for step in steps {
                match step {
                    0 | 1 => match take_free(spool) {
                        Some(slot) => open.push_back(slot),
                        None => caches.give(spool, || shared.pop()),
                    },
                    2 => if let Some(slot) = open.pop_front()
                        && !put_ended(spool, slot)
                    {
                        SlotCaches::collect_own(spool, |slot| ended.push(slot));
                        ended.push(slot);
                    },
                    _ => {
                        caches.collect(|slot| ended.push(slot), |_| unreachable!("the thread lives"));
                        shared.append(&mut ended);
                    }
                }
                let in_ring = caches.all.iter().map(|cache| cache.ended_len());
                let count = shared.len() + open.len() + ended.len() + caches.free() + in_ring.sum::<u32>() as usize;
                prop_assert_eq!(count, 100);
            }
            caches.collect(|slot| ended.push(slot), |_| unreachable!("the thread lives"));
            let mut all: Vec<u32> = std::iter::from_fn(|| take_free(spool)).chain(shared).chain(open).chain(ended).collect();
            all.sort_unstable();
            prop_assert!(all.into_iter().eq(0..100));
        }
    }
}
