//! Memory that the allocator of the C library keeps, given back to the system.

/// Gives back what the allocator keeps and nobody uses.
pub fn give_back() {
    // SAFETY: it takes no pointer, and may be called at any time, from any thread.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Makes the allocator release what is large when it is freed, in the whole process.
/// It would keep up to 32 MiB of each size, once there was such a one.
pub fn release_at_once() {
    /// The allocator's own bound, which it raises unless it is set.
    #[cfg(target_env = "gnu")]
    const LARGE: libc::c_int = 128 << 10;
    // SAFETY: it takes no pointer; the process has one thread still, and has read nothing.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
    }
}
