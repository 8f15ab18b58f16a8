//! Scheduling of a thread that does what can wait, such as writing spans, beside threads that answer somebody; and of a process that does better when it handles
//! several messages at a time.
//!
//! A thread that writes spans sleeps for long, has a millisecond of work, and would take a core for as long as that from a thread that is about to be woken: with a fair
//! scheduler whoever has slept goes first. A long *slice* (`sched_setattr` with `sched_runtime`, Linux 6.12 and later; see sched(7)) changes the order and
//! not the share: it is given its deadline that much later, so that threads with slices of the usual length run before it, and take a core from it
//! when they are woken. It still gets its share of a busy machine, which a low priority would not give it. Older kernels ignore the slice.

use std::mem::MaybeUninit;

/// The longest slice that the kernel takes, in nanoseconds.
const SLICE_NS: u64 = 100_000_000;

/// Gives the calling thread a long slice, where the kernel knows of slices, unless it has a policy of its own. Threads that it starts later do not inherit it.
pub fn yield_to_others() {
    let Some(attributes) = attributes().filter(|found| found.sched_policy == libc::SCHED_OTHER as u32) else { return };
    let sched_flags = attributes.sched_flags | libc::SCHED_FLAG_RESET_ON_FORK as u64;
    let _ = set_attributes(libc::sched_attr { sched_flags, sched_runtime: SLICE_NS, ..attributes });
}

/// Has the calling thread, and threads and processes that it starts later, take no core from others when they are woken (`SCHED_BATCH`, see sched(7)), unless it has a
/// policy of its own. On a busy machine more has then come by the time it runs, and is handled at one go; on an idle one nothing changes. Its priority and its
/// share stay as they are.
pub fn batch_wakeups() {
    change_policy(libc::SCHED_OTHER, libc::SCHED_BATCH);
}

/// Does some work, such as starting a process, with the usual policy, which that inherits. A thread that [batches its wakeups](batch_wakeups) goes on to afterwards.
pub fn as_usual<R>(work: impl FnOnce() -> R) -> R {
    let was_batching = change_policy(libc::SCHED_BATCH, libc::SCHED_OTHER);
    let result = work();
    if was_batching {
        batch_wakeups();
    }
    result
}

/// Gives the calling thread another policy, if it has this one. Returns whether that was done.
fn change_policy(from: i32, to: i32) -> bool {
    let Some(attributes) = attributes().filter(|found| found.sched_policy == from as u32) else { return false };
    set_attributes(libc::sched_attr { sched_policy: to as u32, ..attributes })
}

/// Changes the scheduling of the calling thread. False if that is refused.
fn set_attributes(attributes: libc::sched_attr) -> bool {
    // SAFETY: the call reads a structure of the size that it says, which outlives it, and changes the calling thread alone.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    result == 0
}

/// Returns the scheduling of the calling thread.
fn attributes() -> Option<libc::sched_attr> {
    let mut attributes = MaybeUninit::<libc::sched_attr>::zeroed();
    let size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: the call writes at most as many bytes as it is told.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, attributes.as_mut_ptr(), size, 0) };
    // SAFETY: all zeroes are attributes, and so is what the call has written.
    (result == 0).then(|| unsafe { attributes.assume_init() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gets_a_long_slice_and_keeps_its_policy_and_its_priority() {
        let attributes = || attributes().unwrap();
        let before = attributes();
        let after = std::thread::spawn(move || {
            yield_to_others();
            let own = attributes();
            (own, std::thread::spawn(attributes).join().unwrap())
        });
        let (own, child) = after.join().unwrap();
        assert_eq!((own.sched_policy, own.sched_nice), (before.sched_policy, before.sched_nice));
        // A kernel without slices says 0 for all.
        assert!(own.sched_runtime == SLICE_NS || own.sched_runtime == before.sched_runtime, "{}", own.sched_runtime);
        assert_eq!(child.sched_runtime, before.sched_runtime, "a thread that it starts has the usual one");
    }

    #[test]
    fn a_thread_that_batches_its_wakeups_keeps_its_priority_and_threads_that_it_starts_do_the_same() {
        let attributes = || attributes().unwrap();
        let before = attributes();
        let after = std::thread::spawn(move || {
            batch_wakeups();
            (attributes(), std::thread::spawn(attributes).join().unwrap())
        });
        let (own, child) = after.join().unwrap();
        for found in [own, child] {
            assert_eq!((found.sched_policy, found.sched_nice), (libc::SCHED_BATCH as u32, before.sched_nice));
        }
    }

    #[test]
    fn what_a_thread_that_batches_its_wakeups_starts_as_usual_has_the_usual_policy() {
        let policy = || attributes().unwrap().sched_policy;
        let before = policy();
        let after = std::thread::spawn(move || {
            assert_eq!(as_usual(policy), before);
            assert_eq!(policy(), before, "it did not batch any");
            batch_wakeups();
            let mut cat = std::process::Command::new("cat");
            let process = as_usual(|| cat.arg("/proc/self/stat").output()).unwrap();
            (policy(), String::from_utf8(process.stdout).unwrap())
        });
        let (own, process) = after.join().unwrap();
        assert_eq!(own, libc::SCHED_BATCH as u32);
        // See proc_pid_stat(5); the name, which is the second field, has no space.
        assert_eq!(process.split_whitespace().nth(40), Some(before.to_string().as_str()), "{process}");
    }
}
