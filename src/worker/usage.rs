//! What the kernel knows of this process: its parent, its use of cpu and memory.

use std::io;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// Asks the kernel for SIGKILL when the head dies, which has to be this process's parent, and checks that it has not died before.
///
/// The kernel watches the *thread* that started this process; the head has only one that starts any.
pub(super) fn die_with_parent(head_pid: u32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    match getppid() {
        Some(pid) if pid.as_raw_nonzero().get().unsigned_abs() == head_pid => Ok(()),
        _ => Err(io::Error::other(format!("its parent is not process {head_pid}, which has died already"))),
    }
}

/// CPU time and peak memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    /// User and system time.
    pub(super) cpu_time_ns: u64,
    pub(super) peak_memory_bytes: u64,
}

/// Of this process with all its threads.
pub(super) fn of_this_process() -> Usage {
    // SAFETY: all zeroes are a valid value, and getrusage fills it in.
    let usage = unsafe {
        let mut usage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    Usage::of(&usage)
}

impl Usage {
    pub(super) fn of(usage: &libc::rusage) -> Usage {
        let nanos = |time: libc::timeval| {
            u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_usec).unwrap_or(0) * 1000
        };
        Usage {
            cpu_time_ns: nanos(usage.ru_utime) + nanos(usage.ru_stime),
            // Linux counts in KiB.
            peak_memory_bytes: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
        }
    }
}
