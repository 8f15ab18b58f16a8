//! Mapped memory: pages of a file that processes share, or private ones.

use std::io;
use std::os::fd::AsFd;
use std::ptr::{NonNull, null_mut};

use rustix::mm::{Advice, MapFlags, ProtFlags};
#[cfg(not(miri))]
use rustix::mm::{madvise, mmap, mmap_anonymous, munmap};

#[cfg(miri)]
mod simulated;
#[cfg(miri)]
pub(crate) use simulated::FileExt;
#[cfg(miri)]
use simulated::{madvise, mmap, mmap_anonymous, munmap};
/// Reads and writes of a file that may be mapped too.
#[cfg(not(miri))]
pub(crate) use std::os::unix::fs::FileExt;

/// A mapping, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Pages {
    base: NonNull<u8>,
    bytes: usize,
    /// Bytes on either side that nobody can touch.
    gap: usize,
}

// SAFETY: a mapping belongs to the process and no thread of it. Here it is an address; whoever reads or writes there says why that is sound.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

impl Pages {
    /// Maps the first bytes of a file, at least one, to be read and written by all that map them.
    pub(crate) fn shared(file: impl AsFd, bytes: usize) -> io::Result<Pages> {
        Pages::of_file(file, bytes, READ_WRITE)
    }

    /// Maps the first bytes of a file, at least one, to be read.
    pub(crate) fn read_only(file: impl AsFd, bytes: usize) -> io::Result<Pages> {
        Pages::of_file(file, bytes, ProtFlags::READ)
    }

    fn of_file(file: impl AsFd, bytes: usize, access: ProtFlags) -> io::Result<Pages> {
        // Not populated: what is in memory is mapped by a fault, many pages at once, for less than it costs to ask for each.
        // SAFETY: a new mapping at an address of the kernel's choosing; it is unmapped in `drop` only.
        let base = unsafe { mmap(null_mut(), bytes, access, MapFlags::SHARED, file, 0)? };
        Ok(Pages::at(base.cast(), bytes, 0))
    }

    /// Maps zeroed memory of this process's own, which takes space once it is written to.
    pub(crate) fn private(bytes: usize) -> io::Result<Pages> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: as in `of_file`.
        let base = unsafe { mmap_anonymous(null_mut(), bytes, READ_WRITE, flags)? };
        Ok(Pages::at(base.cast(), bytes, 0))
    }

    /// Maps a file as [`shared`](Self::shared) does, between two gaps that nobody can touch: writes beyond the bounds seldom get there.
    #[cfg(not(miri))]
    pub(crate) fn shared_between_gaps(file: impl AsFd, bytes: usize, gap: usize) -> io::Result<Pages> {
        // SAFETY: new memory at an address of the kernel's choosing, which nobody can touch; it is unmapped in `drop` only.
        let room = unsafe { mmap_anonymous(null_mut(), 2 * gap + bytes, ProtFlags::empty(), MapFlags::PRIVATE)? };
        // SAFETY: within the mapping made just now.
        let base = unsafe { room.cast::<u8>().add(gap) };
        let pages = Pages::at(base, bytes, gap);
        // SAFETY: the file takes the place of a part of that mapping, of which nobody knows yet.
        unsafe { mmap(base.cast(), bytes, READ_WRITE, MapFlags::SHARED | MapFlags::FIXED, file, 0)? };
        Ok(pages)
    }

    /// The same without gaps: memory of Miri's has no place of its own choosing.
    #[cfg(miri)]
    pub(crate) fn shared_between_gaps(file: impl AsFd, bytes: usize, _gap: usize) -> io::Result<Pages> {
        Pages::shared(file, bytes)
    }

    fn at(base: *mut u8, bytes: usize, gap: usize) -> Pages {
        Pages { base: NonNull::new(base).expect("a successful mmap is never at null"), bytes, gap }
    }

    /// Returns the first byte. It is at the beginning of a page.
    #[inline]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Advises the kernel how the pages will be used. One that does not take the advice is only slower.
    pub(crate) fn advise(&self, advice: Advice) {
        // SAFETY: mapped with this size, and these kinds of advice change no contents of shared mappings.
        let _ = unsafe { madvise(self.base.as_ptr().cast(), self.bytes, advice) };
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped with this size, gaps included, and whoever had the address from `base` lives no longer than this.
        let _ = unsafe { munmap(self.base.sub(self.gap).as_ptr().cast(), self.bytes + 2 * self.gap) };
    }
}
