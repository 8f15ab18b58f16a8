//! Space on the disk ahead of what is appended to a file.

use std::os::fd::AsFd;

use rustix::fs::{FallocateFlags, fallocate, ftruncate};

/// A file that is shorter takes its space as it grows: most are, and end soon.
const LEAST_FILE: u64 = 128 << 10;
/// The piece that is taken is half of the file, within these: whoever appends waits some 50 microseconds for each, however large it is.
const LEAST_PIECE: u64 = 1 << 20;
const LARGEST_PIECE: u64 = 8 << 20;

/// Space that a file has on the disk beyond its end, where the file system can give it.
///
/// It is taken in large pieces, which spares the kernel a search with every page: an append that finds some costs a quarter less.
/// The length of the file is not changed, nor is what others read of it.
#[derive(Debug, Default)]
pub struct SpaceAhead {
    /// The offset up to which there is some.
    until: u64,
}

impl SpaceAhead {
    /// Takes some, if there is none for as many bytes more. It is no failure that there is none to have: appending tells.
    #[inline]
    pub fn take(&mut self, file: impl AsFd, length: u64, more: usize) {
        let end = length + more as u64;
        if end > self.until && end >= LEAST_FILE {
            self.take_piece(file, length, end);
        }
    }

    #[cold]
    fn take_piece(&mut self, file: impl AsFd, length: u64, end: u64) {
        let until = end + (end / 2).clamp(LEAST_PIECE, LARGEST_PIECE);
        let taken = fallocate(file, FallocateFlags::KEEP_SIZE, length, until - length);
        // What cannot be had now is not asked for again.
        self.until = if taken.is_ok() { until } else { u64::MAX };
    }

    /// Gives back what is left, when nothing more is appended.
    pub fn give_back(&mut self, file: impl AsFd, length: u64) {
        if std::mem::take(&mut self.until) > length {
            // At worst, the space stays the file's.
            let _ = ftruncate(file, length);
        }
    }
}
