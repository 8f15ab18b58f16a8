//! The size of a page of memory.

use std::sync::OnceLock;

/// Returns the size of a page in bytes.
pub fn page_size() -> usize {
    // Not by rustix, whose own way ends a process that runs under valgrind.
    static SIZE: OnceLock<usize> = OnceLock::new();
    // SAFETY: it takes nothing but a number, and only tells.
    *SIZE.get_or_init(|| unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.try_into().unwrap_or(4096))
}
