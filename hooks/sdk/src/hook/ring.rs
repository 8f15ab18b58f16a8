//! Per-thread single-producer rings of ended spans, which the span writer drains in batches.
//!
//! A thread puts its own down in a ring, and whoever commits gives those of all threads to the writer, as does the thread itself when its
//! ring is full: so the writer takes its lock once for many of them. A lock for each would wait, twice, until all that was just
//! written of the span has left the processor.

use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use super::box_ring::BoxRing;
use super::direct::{Handle, write};
use super::lock::lock;

/// Number of spans that a thread puts down: enough that the lock is not felt, and few enough that their memory, which comes back in turn, stays in
/// the nearest cache.
const ROOM: usize = 16;

/// One thread's ring.
pub(super) type EndedRing = BoxRing<Handle, ROOM>;

thread_local! {
    /// True while this thread gives spans to a writer.
    static IS_WRITING: Cell<bool> = const { Cell::new(false) };
}

/// Gives the writer what it does not have of a ring, in order. Nothing happens when this thread is about that already: a writer may make spans.
pub(super) fn write_all(ring: &EndedRing) {
    if ring.is_drained() || IS_WRITING.get() {
        return;
    }
    ring.drain(|spans| {
        IS_WRITING.set(true);
        write(spans.filter_map(Handle::direct));
        IS_WRITING.set(false);
    });
}

/// The rings of all threads.
#[derive(Debug, Default)]
pub(super) struct EndedRings {
    rings: Mutex<Vec<Arc<EndedRing>>>,
}

impl EndedRings {
    /// Makes a ring for a thread. None while spans are given to the writer, perhaps on this very thread.
    #[cold]
    pub(super) fn new_ring(&self) -> Option<Arc<EndedRing>> {
        let mut rings = try_lock(&self.rings)?;
        let ring = Arc::new(EndedRing::default());
        rings.push(Arc::clone(&ring));
        Some(ring)
    }

    /// Gives the writer what threads have put down.
    pub(super) fn write_all(&self) {
        if IS_WRITING.get() {
            return;
        }
        lock(&self.rings).retain(|ring| {
            // Asked first: what an owner has put down last is seen by whoever sees that it is gone.
            let is_abandoned = ring.is_abandoned();
            write_all(ring);
            !is_abandoned
        });
    }
}

fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;
    use std::sync::OnceLock;
    use std::sync::atomic::Ordering::{Acquire, Release};

    use opentelemetry::trace::Event;
    use opentelemetry_sdk::Resource;
    use opentelemetry_sdk::error::OTelSdkResult;
    use opentelemetry_sdk::trace::{SpanData, SpanLimits, SpanProcessor};
    use tracer_abi as abi;

    use super::super::direct::{AttributeValue, Direct, RenderedSpan, SpanWriter};
    use super::super::guard::{DurableProcessor, GuardedProcessor, Kind};
    use super::*;

    /// Remembers the ends of spans, which tell one from another.
    #[derive(Default)]
    struct Written {
        ends: Mutex<Vec<u64>>,
        /// Function that is called with the end of each.
        then: Option<fn(&'static Direct, u64)>,
        direct: OnceLock<&'static Direct>,
    }

    impl fmt::Debug for Written {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Written")
        }
    }

    impl SpanWriter for Written {
        fn push_name(&self, rendered: &mut Vec<u8>, name: &[u8]) {
            rendered.extend_from_slice(name);
        }

        fn push_key(&self, _rendered: &mut Vec<u8>, _key: &[u8]) {}
        fn push_value(&self, _rendered: &mut Vec<u8>, _value: AttributeValue<'_>) {}
        fn push_event(&self, _rendered: &mut Vec<u8>, _event: &Event) {}
        fn push_link(&self, _rendered: &mut Vec<u8>, _link: &opentelemetry::trace::Link) {}

        fn on_end(&self, span: &RenderedSpan<'_>) {
            if let (Some(then), Some(direct)) = (self.then, self.direct.get()) {
                then(direct, span.end_time_unix_nano);
            }
            lock(&self.ends).push(span.end_time_unix_nano);
        }
    }

    /// A processor that has nothing to do: the writer has it all.
    #[derive(Debug)]
    struct Nothing;

    impl SpanProcessor for Nothing {
        fn on_start(&self, _span: &mut opentelemetry_sdk::trace::Span, _context: &opentelemetry::Context) {}
        fn on_end(&self, _span: SpanData) {}
        fn force_flush(&self) -> OTelSdkResult {
            Ok(())
        }
        fn shutdown_with_timeout(&self, _timeout: std::time::Duration) -> OTelSdkResult {
            Ok(())
        }
    }

    impl DurableProcessor for Nothing {
        fn commit(&self) -> Result<(), String> {
            Ok(())
        }
    }

    fn provider(then: Option<fn(&'static Direct, u64)>) -> (&'static Direct, Arc<Written>) {
        let writer = Arc::new(Written { then, ..Written::default() });
        let resource = Resource::builder_empty().build();
        let direct: &'static Direct = Box::leak(Box::new(Direct {
            writer: Arc::clone(&writer) as _,
            processor: Arc::new(GuardedProcessor::new(Kind::Durable(Box::new(Nothing)), None, &resource)),
            limits: SpanLimits::default(),
            follows_parent: true,
            samples_roots: true,
        }));
        writer.direct.set(direct).unwrap();
        (direct, writer)
    }

    fn start(direct: &'static Direct) -> Box<Handle> {
        let start = abi::SpanStart {
            start_time_unix_nano: 1,
            ..abi::SpanStart::new(abi::Str::new("span"), abi::SPAN_KIND_INTERNAL)
        };
        // SAFETY: it points to nothing but a constant.
        unsafe { direct.start(None, &start, |_, _| ()) }
    }

    #[test]
    fn a_commit_covers_what_ended_before_it_on_every_thread() {
        // Miri takes some thousand times as long.
        const COUNT: u64 = if cfg!(miri) { 24 } else { 5_000 };
        const THREADS: u64 = if cfg!(miri) { 2 } else { 4 };
        let (direct, writer) = provider(None);
        let ended: [std::sync::atomic::AtomicU64; THREADS as usize] = Default::default();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let ended = &ended[thread as usize];
                    scope.spawn(move || {
                        for number in 1..=COUNT {
                            start(direct).release(thread << 32 | number);
                            ended.store(number, Release);
                        }
                    })
                })
                .collect();
            while !threads.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                let before: Vec<u64> = ended.iter().map(|ended| ended.load(Acquire)).collect();
                direct.processor.commit().unwrap();
                let mut last = [0; THREADS as usize];
                lock(&writer.ends).iter().for_each(|end| last[(end >> 32) as usize] = end & 0xffff_ffff);
                assert!(before.iter().zip(last).all(|(&before, last)| last >= before), "{before:?} {last:?}");
            }
            // The end of the scope does not wait for the destructors of what is the threads' own; a join does.
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        direct.processor.commit().unwrap();
        let written = lock(&writer.ends);
        for thread in 0..THREADS {
            let of_thread = written.iter().filter(|&end| end >> 32 == thread).map(|end| end & 0xffff_ffff);
            assert!(of_thread.eq(1..=COUNT), "each once, and in order");
        }
        assert!(lock(&direct.processor.ended.rings).is_empty(), "nothing is kept of threads that are gone");
    }

    #[test]
    fn flush_and_shutdown_write_what_has_ended_too() {
        let (direct, writer) = provider(None);
        start(direct).release(1);
        assert!(lock(&writer.ends).is_empty());
        direct.processor.force_flush().unwrap();
        assert_eq!(*lock(&writer.ends), [1]);
        start(direct).release(2);
        direct.processor.shutdown_with_timeout(std::time::Duration::ZERO).unwrap();
        assert_eq!(*lock(&writer.ends), [1, 2]);
    }

    #[test]
    fn spans_are_written_in_the_order_of_their_ends_however_they_end() {
        let (direct, writer) = provider(None);
        start(direct).release(1);
        let mut kept = start(direct);
        kept.end(2);
        kept.end(3);
        assert_eq!(*lock(&writer.ends), [1, 2]);
        kept.release(4);
        start(direct).release(5);
        let mut large = start(direct);
        let Handle::Direct(span) = &mut *large else { panic!("it is not the SDK's") };
        span.update_name(&[b'x'; 10_000]);
        large.release(6);
        assert_eq!(*lock(&writer.ends), [1, 2, 5, 6], "a large one does not wait");
        start(direct).release(7);
        direct.processor.commit().unwrap();
        assert_eq!(*lock(&writer.ends), [1, 2, 5, 6, 7]);
    }

    #[test]
    fn a_span_at_which_the_writer_panics_costs_no_other() {
        let (direct, writer) = provider(Some(|_, end| assert!(!end.is_multiple_of(7), "by intention")));
        (1..=100).for_each(|end| start(direct).release(end));
        let error = direct.processor.commit().unwrap_err();
        assert_eq!(error, "a span processor panicked at 14 spans");
        assert!(lock(&writer.ends).iter().copied().eq((1..=100).filter(|end| end % 7 != 0)));
    }

    #[test]
    fn a_writer_may_make_spans() {
        let one_more = |direct: &'static Direct, end: u64| {
            if end < 1_000 {
                start(direct).release(1_000 + end);
            }
        };
        let (direct, writer) = provider(Some(one_more));
        (1..=100).for_each(|end| start(direct).release(end));
        direct.processor.commit().unwrap();
        direct.processor.commit().unwrap();
        let mut ends = lock(&writer.ends).clone();
        ends.sort_unstable();
        assert!(ends.into_iter().eq((1..=100).chain(1_001..=1_100)));
    }

    #[test]
    fn a_thread_that_turns_to_another_provider_loses_nothing() {
        let (one, by_one) = provider(None);
        let (other, by_other) = provider(None);
        for number in (1..=60).step_by(2) {
            start(one).release(number);
            start(other).release(number + 1);
        }
        one.processor.commit().unwrap();
        other.processor.commit().unwrap();
        assert!(lock(&by_one.ends).iter().copied().eq((1..=60).step_by(2)));
        assert!(lock(&by_other.ends).iter().copied().eq((2..=60).step_by(2)));
    }
}
