//! Processes that are copies of this one.
//!
//! A task may call `fork`. Its child is a copy of the worker, down to the socket and the shared spool, and would go on as a second worker when the
//! task's function returned there. Whoever must not run in a copy asks [`is_copy`], which costs a load: the answer is on a page that
//! the kernel gives to no copy (`MADV_WIPEONFORK`).

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

/// A page with the pid of the process that asked for it; a copy finds 0 there. Null before that.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
/// The same where the kernel wipes no pages, and the pid is asked for each time.
static PID: AtomicU32 = AtomicU32::new(0);

/// Remembers this process: what is forked from it from now on is a copy.
pub fn remember_process() {
    let pid = std::process::id();
    let known = PAGE.load(Acquire);
    if !known.is_null() {
        // SAFETY: the page is never unmapped.
        return unsafe { &*known }.store(pid, Release);
    }
    if cfg!(miri) {
        return PID.store(pid, Release);
    }
    const SIZE: usize = 4096;
    // SAFETY: new memory at an address of the kernel's choosing, which is kept for good, and advice on the whole of it.
    let page = unsafe {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        mmap_anonymous(std::ptr::null_mut(), SIZE, access, MapFlags::PRIVATE)
            .and_then(|page| madvise(page, SIZE, Advice::LinuxWipeOnFork).map(|()| page))
    };
    let Ok(page) = page else { return PID.store(pid, Release) };
    let page: *mut AtomicU32 = page.cast();
    // SAFETY: mapped above, aligned, and zero, which is a valid number.
    unsafe { &*page }.store(pid, Relaxed);
    // Another thread may have come first; then its page counts, and says the same.
    let _ = PAGE.compare_exchange(std::ptr::null_mut(), page, Release, Relaxed);
}

/// Returns whether this process was forked from one that is [remembered](remember_process), and has not been remembered itself.
#[inline]
pub fn is_copy() -> bool {
    let page = PAGE.load(Relaxed);
    if page.is_null() {
        let pid = PID.load(Relaxed);
        return pid != 0 && pid != std::process::id();
    }
    // SAFETY: the page is never unmapped, and holds an atomic.
    unsafe { &*page }.load(Relaxed) == 0
}

/// Ends this process if it is a copy of a worker: the function that forked it has returned, and the worker itself goes on elsewhere.
#[inline]
pub fn end_copy() {
    if is_copy() {
        end();
    }
}

#[cold]
fn end() -> ! {
    let pid = std::process::id();
    eprintln!(
        "tracer: process {pid} was forked by a task and came back from the task's function, so it ends here: only the worker itself takes tasks\n\
         (hint: a child of `fork` has to call `_exit` or `exec`)"
    );
    // SAFETY: it ends the process at once. What is registered to run at exit, and what is buffered, belongs to the worker.
    unsafe { libc::_exit(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_knows_that_it_is_one() {
        remember_process();
        assert!(!is_copy());
        // SAFETY: the child only reads memory and leaves.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: it ends the copy at once.
            unsafe { libc::_exit(i32::from(is_copy())) };
        }
        let mut status = 0;
        // SAFETY: the child is this process's own.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 1, "the copy says that it is one");
        assert!(!is_copy());
    }
}
