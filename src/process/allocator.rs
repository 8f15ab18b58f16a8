//! Memory that the allocator of the C library keeps, returned to the system.

/// Returns memory that the allocator keeps and nobody uses to the system.
pub fn trim() {
    // SAFETY: it takes no pointer, and may be called at any time, from any thread.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Makes the allocator release what is large when it is freed, in the whole process.
/// Without it, up to 32 MiB of each size are kept once such a block was freed.
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
