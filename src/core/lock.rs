//! Locks whose data stays whole when a thread panics.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, a poisoned one too: for data that is whole after every statement that can panic.
#[inline]
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
