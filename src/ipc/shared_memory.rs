//! Sealed shared memory: words of an unnamed file, which one process makes and others map.
//!
//! The file can neither shrink nor grow, so that no other process can take pages away from under a mapping. Everything in it is an atomic:
//! whoever has the file may write anything at any time, which costs the others what they read there and never their memory.

use std::ffi::CStr;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;

use crate::pages::Pages;
use crate::spool::rescue::Rescue;

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A mapping of such a file.
#[derive(Debug)]
pub struct SharedMemory(Pages);

impl SharedMemory {
    /// Makes so many words, all zero, and the file from which others map them. A word that nobody touches takes no memory.
    pub fn create(name: &CStr, words: usize) -> io::Result<(SharedMemory, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
            // Before Linux 6.3.
            Err(Errno::INVAL) => memfd_create(name, flags)?,
            made => made?,
        };
        ftruncate(&file, (words * size_of::<AtomicU64>()) as u64)?;
        fcntl_add_seals(&file, SEALS)?;
        Ok((SharedMemory(Pages::shared(&file, words * size_of::<AtomicU64>())?), file))
    }

    /// Maps what another process has made. Fails unless it is sealed and has at most `limit` words.
    pub fn attach(file: impl AsFd, limit: usize) -> io::Result<SharedMemory> {
        let file = file.as_fd();
        let words = usize::try_from(fstat(file)?.st_size).map_or(0, |size| size / size_of::<AtomicU64>());
        // A file that cannot be sealed at all is none of these.
        let seals = fcntl_get_seals(file).map_err(|_| ErrorKind::InvalidData)?;
        if !seals.contains(SEALS) || words == 0 || words > limit {
            return Err(ErrorKind::InvalidData.into());
        }
        Ok(SharedMemory(Pages::shared(file, words * size_of::<AtomicU64>())?))
    }

    /// Returns the words.
    #[inline]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: mapped with this size, page-aligned, and all bytes are atomics for whoever has them.
        unsafe { std::slice::from_raw_parts(self.0.base().as_ptr().cast(), self.0.bytes() / size_of::<AtomicU64>()) }
    }
}

/// Words of a file that others may cut short: a page that is lost reads as zeroes from then on, and what is written there stays in this process.
#[derive(Debug)]
pub struct RescuedMemory {
    /// Dropped before the mapping.
    _rescue: Option<Rescue>,
    pages: Pages,
}

impl RescuedMemory {
    /// Maps so many words at the beginning of a file.
    pub fn of_file(file: impl AsFd, words: usize) -> io::Result<RescuedMemory> {
        let pages = Pages::shared(file, words * size_of::<AtomicU64>())?;
        Ok(RescuedMemory { _rescue: Rescue::new(pages.base(), pages.bytes()), pages })
    }

    /// Returns the words.
    #[inline]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: mapped with this size, page-aligned, and all bytes are atomics for whoever has them.
        unsafe {
            std::slice::from_raw_parts(self.pages.base().as_ptr().cast(), self.pages.bytes() / size_of::<AtomicU64>())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn both_ends_see_the_same_words_and_neither_can_take_them_away() {
        let (made, file) = SharedMemory::create(c"test", 1000).unwrap();
        let attached = SharedMemory::attach(&file, 1000).unwrap();
        made.words()[999].store(7, Relaxed);
        assert_eq!((attached.words().len(), attached.words()[999].load(Relaxed)), (1000, 7));
        assert!(ftruncate(&file, 0).is_err() && ftruncate(&file, 1 << 20).is_err());
        drop(made);
        assert_eq!(attached.words()[999].load(Relaxed), 7);
    }

    #[test]
    fn a_file_that_its_maker_could_cut_short_is_refused_and_so_is_one_of_another_size() {
        let (_made, file) = SharedMemory::create(c"test", 1000).unwrap();
        assert_eq!(SharedMemory::attach(&file, 999).unwrap_err().kind(), ErrorKind::InvalidData);
        let unsealed = memfd_create(c"test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&unsealed, 8000).unwrap();
        assert_eq!(SharedMemory::attach(&unsealed, 1000).unwrap_err().kind(), ErrorKind::InvalidData);
        let ordinary = tempfile::tempfile().unwrap();
        ordinary.set_len(8000).unwrap();
        assert_eq!(SharedMemory::attach(&ordinary, 1000).unwrap_err().kind(), ErrorKind::InvalidData);
        let (_made, empty) = (0, memfd_create(c"test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap());
        fcntl_add_seals(&empty, SEALS).unwrap();
        assert_eq!(SharedMemory::attach(&empty, 1000).unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
