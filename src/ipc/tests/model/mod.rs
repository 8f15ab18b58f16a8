//! Loom's atomics, whose orderings a test may weaken: a model that still passes then shows nothing.

use std::cell::Cell;

pub use std::sync::atomic::Ordering;

use Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// Orderings that a test has weakened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weakened {
    Nothing,
    /// Acquire and release are relaxed.
    Synchronization,
    /// Fences in the one order of all are as those that are not.
    #[allow(dead_code, reason = "not every model has fences")]
    Fences,
}

thread_local! {
    /// Loom runs all threads of a model on the test's own.
    static WEAKENED: Cell<Weakened> = const { Cell::new(Weakened::Nothing) };
}

/// Preemptions that loom tries at most; with more it looks for minutes.
const PREEMPTIONS: usize = 3;

/// Runs a model in every order that the memory model permits, to a bound of preemptions.
pub fn check(weakened: Weakened, model: impl Fn() + Send + Sync + 'static) {
    WEAKENED.set(weakened);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}

fn weaken(ordering: Ordering) -> Ordering {
    match ordering {
        Acquire | Release | AcqRel if WEAKENED.get() == Weakened::Synchronization => Relaxed,
        kept => kept,
    }
}

#[allow(dead_code, reason = "not every model has fences")]
pub fn fence(ordering: Ordering) {
    assert_eq!(ordering, SeqCst);
    loom::sync::atomic::fence(if WEAKENED.get() == Weakened::Fences { AcqRel } else { SeqCst });
}

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        #[derive(Debug)]
        pub struct $name(loom::sync::atomic::$name);

        #[allow(dead_code, reason = "not every model has all of it")]
        impl $name {
            pub fn new(value: $value) -> $name {
                $name(loom::sync::atomic::$name::new(value))
            }

            pub fn load(&self, ordering: Ordering) -> $value {
                self.0.load(weaken(ordering))
            }

            pub fn store(&self, value: $value, ordering: Ordering) {
                self.0.store(value, weaken(ordering));
            }

            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.0.compare_exchange(current, new, weaken(success), weaken(failure))
            }
        }
    };
}

atomic!(AtomicBool, bool);
atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);
