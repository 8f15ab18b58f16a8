//! Waiting for facts.

use std::time::{Duration, Instant};

/// Limit of time for a fact. Generous: it is reached only by a test that fails.
pub const DEADLINE: Duration = Duration::from_secs(30);
const INTERVAL: Duration = Duration::from_millis(5);

/// Looks until `look` finds something, and returns it. Panics, naming `what`, when it has not been found in time.
#[track_caller]
pub fn wait_until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    match try_wait_until(DEADLINE, &mut look) {
        Some(found) => found,
        None => panic!("waited {DEADLINE:?} in vain until {what}"),
    }
}

/// [`wait_until`] for what takes longer than anything else.
#[track_caller]
pub fn wait_until_within<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    match try_wait_until(limit, &mut look) {
        Some(found) => found,
        None => panic!("waited {limit:?} in vain until {what}"),
    }
}

/// Looks until `look` finds something, or the time is up.
pub(super) fn try_wait_until<T>(limit: Duration, look: &mut dyn FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::park_timeout(INTERVAL);
    }
}
