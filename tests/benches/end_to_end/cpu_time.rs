//! The cpu time of a process.

use super::Failure;

/// Returns the cpu time of a process in nanoseconds. `/proc/<pid>/stat` counts in hundredths of a second, which is too coarse.
pub(crate) fn cpu_ns(pid: u32) -> Result<u64, Failure> {
    let mut clock = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both functions only write what they are lent.
    let found = unsafe {
        libc::clock_getcpuclockid(i32::try_from(pid)?, &mut clock) == 0 && libc::clock_gettime(clock, &mut time) == 0
    };
    if !found {
        return Err(format!("the cpu time of process {pid} cannot be read").into());
    }
    Ok(u64::try_from(time.tv_sec)? * 1_000_000_000 + u64::try_from(time.tv_nsec)?)
}
