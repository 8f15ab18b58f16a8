//! Mappings for Miri, which has none of files: memory that all mappings of a file share, by the file's inode. What is written to it reaches the
//! file when the last of them is gone; until then [`FileExt`] reads the memory.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt as OfFile, MetadataExt};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::{Errno, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Memory that stands for mappings of one file, or for one of no file.
struct Memory {
    file: Option<File>,
    base: *mut u8,
    bytes: usize,
    mappings: usize,
}

// SAFETY: an address, and a file; what is there is reached under the rules of the mapping.
unsafe impl Send for Memory {}

fn all() -> MutexGuard<'static, Vec<Memory>> {
    static ALL: Mutex<Vec<Memory>> = Mutex::new(Vec::new());
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 4096).expect("a size that the kernel could map")
}

fn inode(file: &File) -> io::Result<u64> {
    Ok(file.metadata()?.ino())
}

fn of_file<'a>(all: &'a mut [Memory], inode: u64) -> Option<&'a mut Memory> {
    all.iter_mut().find(|memory| memory.file.as_ref().is_some_and(|file| self::inode(file).is_ok_and(|of| of == inode)))
}

pub(super) unsafe fn mmap_anonymous(_: *mut c_void, bytes: usize, _: ProtFlags, _: MapFlags) -> Result<*mut c_void> {
    // SAFETY: the size is not 0.
    let base = unsafe { alloc_zeroed(layout(bytes)) };
    all().push(Memory { file: None, base, bytes, mappings: 1 });
    Ok(base.cast())
}

pub(super) unsafe fn mmap(
    at: *mut c_void,
    bytes: usize,
    access: ProtFlags,
    flags: MapFlags,
    file: impl AsFd,
    _: u64,
) -> Result<*mut c_void> {
    let file = File::from(file.as_fd().try_clone_to_owned().map_err(|_| Errno::BADF)?);
    let inode = inode(&file).map_err(|_| Errno::BADF)?;
    if let Some(memory) = of_file(&mut all(), inode) {
        assert!(bytes <= memory.bytes, "{bytes} bytes of a file of which {} are mapped", memory.bytes);
        memory.mappings += 1;
        return Ok(memory.base.cast());
    }
    // SAFETY: promised by the caller.
    let base = unsafe { mmap_anonymous(at, bytes, access, flags)? };
    // SAFETY: the memory above, which nobody else knows of yet.
    let all_of_it = unsafe { std::slice::from_raw_parts_mut(base.cast(), bytes) };
    OfFile::read_exact_at(&file, all_of_it, 0).map_err(|_| Errno::IO)?;
    all().last_mut().expect("it was put there just now").file = Some(file);
    Ok(base)
}

pub(super) unsafe fn munmap(base: *mut c_void, _: usize) -> Result<()> {
    let mut all = all();
    let index = all.iter().position(|memory| memory.base == base.cast()).ok_or(Errno::INVAL)?;
    all[index].mappings -= 1;
    if all[index].mappings == 0 {
        let Memory { file, base, bytes, .. } = all.swap_remove(index);
        if let Some(file) = file {
            // SAFETY: the last mapping of this size, and nobody uses it any more.
            let written = unsafe { std::slice::from_raw_parts(base, bytes) };
            OfFile::write_all_at(&file, written, 0).map_err(|_| Errno::IO)?;
        }
        // SAFETY: allocated with this layout, and in nobody's use.
        unsafe { dealloc(base, layout(bytes)) };
    }
    Ok(())
}

pub(super) unsafe fn madvise(_: *mut c_void, _: usize, _: Advice) -> Result<()> {
    Ok(())
}

/// Reads and writes of a file that may be mapped too.
pub(crate) trait FileExt {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let count = self.read_at(bytes, offset)?;
        if count == bytes.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

impl FileExt for File {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut all = all();
        let Some(memory) = of_file(&mut all, inode(self)?) else { return OfFile::read_at(self, bytes, offset) };
        let from = memory.bytes.min(offset as usize);
        let count = bytes.len().min(memory.bytes - from);
        // SAFETY: within the memory, by the two lines above; the threads of a test that reads in this way write at another time.
        unsafe { memory.base.add(from).copy_to_nonoverlapping(bytes.as_mut_ptr(), count) };
        Ok(count)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut all = all();
        let Some(memory) = of_file(&mut all, inode(self)?) else { return OfFile::write_all_at(self, bytes, offset) };
        let from = offset as usize;
        assert!(from + bytes.len() <= memory.bytes, "bytes {from} on, behind what is mapped");
        // SAFETY: within the memory by the assertion; as in `read_at`.
        unsafe { memory.base.add(from).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }
}
