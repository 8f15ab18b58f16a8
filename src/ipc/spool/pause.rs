//! Pauses of receivers, shared by all processes of a session: for each hook a small file in the session's `handover` folder.
//!
//! A process whose receiver asks to be left alone, or fails, says so there. Every process reads it before it sends spans, and the head
//! before it offers any: `<when it ends, in ns of `CLOCK_BOOTTIME`> <failures in a row>`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::private_file;

/// The longest pause that is kept, whatever a receiver asks for.
const LONGEST: Duration = Duration::from_secs(3600);

/// The pause of one hook's receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pause {
    /// Time that is left of it.
    pub left: Duration,
    /// Failures of the receiver in a row; 0 when it has asked for the pause.
    pub failures: u32,
}

impl Pause {
    /// Reads the pause of the receiver of this [hook](super::hooks); zero when there is none.
    pub fn read(folder: &Path, hook: u32) -> Pause {
        let read = || {
            let text = fs::read_to_string(path(folder, hook)).ok()?;
            let (until, failures) = text.trim_end().split_once(' ')?;
            let left = Duration::from_nanos(until.parse::<u64>().ok()?.saturating_sub(now_ns()));
            // After a restart of the machine the clock is another.
            (left <= LONGEST).then_some(Pause { left, failures: failures.parse().ok()? })
        };
        read().unwrap_or_default()
    }

    /// Says that the receiver has failed. Of several pauses, the one that ends last counts.
    pub fn begin(folder: &Path, hook: u32, left: Duration, failures: u32) -> io::Result<()> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let before = Pause::read(folder, hook);
        let left = left.min(LONGEST);
        if before.left > left {
            return Ok(());
        }
        let until = now_ns().saturating_add(left.as_nanos() as u64);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let unfinished = folder.join(format!("pause.{hook:x}.{}-{number}.part", std::process::id()));
        let text = format!("{until} {failures}\n");
        let written = private_file::replace(&path(folder, hook), &unfinished, text.as_bytes());
        written.inspect_err(|_| {
            let _ = fs::remove_file(&unfinished);
        })
    }

    /// Says that the receiver takes spans again.
    pub fn end(folder: &Path, hook: u32) {
        let _ = fs::remove_file(path(folder, hook));
    }
}

fn path(folder: &Path, hook: u32) -> PathBuf {
    folder.join(format!("pause.{hook:x}"))
}

/// Nanoseconds of a clock that all processes of the machine share, and that goes on while it sleeps (`CLOCK_BOOTTIME`).
fn now_ns() -> u64 {
    // Not by rustix, whose own look for the vDSO ends a process that runs under valgrind.
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a clock that every Linux has, and a place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_that_ends_last_counts_until_the_receiver_takes_spans_again() {
        let folder = tempfile::tempdir().unwrap();
        let read = |hook| Pause::read(folder.path(), hook);
        assert_eq!(read(2), Pause::default());
        Pause::begin(folder.path(), 2, Duration::from_secs(100), 1).unwrap();
        Pause::begin(folder.path(), 2, Duration::from_secs(10), 3).unwrap();
        assert!(read(2).left > Duration::from_secs(50) && read(2).left <= Duration::from_secs(100), "{:?}", read(2));
        assert_eq!((read(2).failures, read(4)), (1, Pause::default()), "each hook has its own");
        Pause::end(folder.path(), 2);
        assert_eq!(read(2), Pause::default());
        Pause::begin(folder.path(), 2, Duration::MAX, 1).unwrap();
        assert!(read(2).left <= LONGEST && read(2).left > LONGEST / 2);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn a_file_that_is_damaged_is_no_pause() {
        let folder = tempfile::tempdir().unwrap();
        for text in ["", "1", "x y", "99999999999999999999 1", "18446744073709551615 1", "\0"] {
            fs::write(path(folder.path(), 4), text).unwrap();
            assert_eq!(Pause::read(folder.path(), 4), Pause::default(), "{text:?}");
        }
    }
}
