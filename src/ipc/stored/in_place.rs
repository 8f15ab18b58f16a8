//! Copies large parts of values into pages that their file has from a value before.
//!
//! `write` takes its time for each page, and reads from memory what it is about to replace. Where the pages are there already they can be mapped
//! and written to past the caches, and by several threads at once, which `write` does for one file in turn. A page that is mapped for the first time
//! is got ready by the file system, which is a third of the whole; so mappings are kept for a while, for the next value in the same file.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::fstatfs;
use rustix::mm::{Advice, madvise};

use super::{SPARE_BYTES, SPARE_FILES, SPARE_FOR_NS};
use crate::page::page_size;
use crate::pages::Pages;

/// Parts of so many bytes are copied in this way; for shorter ones it is not worth it, and who reads them finds them in a cache after a `write`.
const COPIED_FROM: usize = 8 << 20;
/// Each thread copies at least so many bytes,
const THREAD_BYTES: usize = 4 << 20;
/// and there are at most so many: the memory is busy then.
const THREADS: usize = 4;
/// Bytes that are made sure of at a time before they are copied to.
const WINDOW: usize = 4 << 20;
/// For how long a mapping is kept after its last use: as long as the head keeps files that nobody needs.
const KEPT_FOR: Duration = Duration::from_nanos(SPARE_FOR_NS);

/// Copies `part` to where the file has bytes already, from `offset` on, and says how many bytes that were: all, or none, and then they are to be
/// written as ever. The file is open for reading and writing, and locked so that nobody else writes to it, reads it or cuts it.
pub(super) fn copy(file: &File, offset: u64, part: &[u8]) -> usize {
    let is_copied = part.len() >= COPIED_FROM && keeps_places(file) && copy_mapped(file, offset, part).is_some();
    if is_copied { part.len() } else { 0 }
}

/// Returns whether a page of the file can be written to again without new space, now and later. Where every write goes to a new place, a disk that is full
/// would be told by a signal.
fn keeps_places(file: &File) -> bool {
    let known = [libc::EXT4_SUPER_MAGIC, libc::XFS_SUPER_MAGIC, libc::TMPFS_MAGIC];
    fstatfs(file).is_ok_and(|system| known.contains(&(system.f_type as _)))
}

fn copy_mapped(file: &File, offset: u64, part: &[u8]) -> Option<()> {
    let metadata = file.metadata().ok()?;
    let begin = usize::try_from(offset).ok()?;
    let end = begin.checked_add(part.len()).filter(|end| *end as u64 <= metadata.len())?;
    let id = FileId { device: metadata.dev(), inode: metadata.ino() };
    let kept = lock().take(id).filter(|mapping| mapping.pages.bytes() >= end);
    let mut mapping = match kept {
        Some(mapping) => mapping,
        None => Mapping::new(file, id, usize::try_from(metadata.len()).ok()?)?,
    };
    let threads = (part.len() / THREAD_BYTES).min(cpus()).clamp(1, THREADS);
    let is_copied = copy_by(threads, &mut mapping.bytes()[begin..end], part);
    keep(mapping);
    is_copied.then_some(())
}

fn cpus() -> usize {
    // To ask takes longer than to copy a MiB.
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| thread::available_parallelism().map_or(1, Into::into))
}

/// Copies the part to mapped bytes, of which there are as many, a share of it by each of so many threads. False when not all are there.
fn copy_by(threads: usize, to: &mut [u8], part: &[u8]) -> bool {
    if threads <= 1 {
        return copy_alone(to, part);
    }
    let share = part.len() / threads;
    let ((here, there), (to_here, to_there)) = (part.split_at(share), to.split_at_mut(share));
    thread::scope(|scope| {
        let others = || copy_by(threads - 1, to_there, there);
        // One that cannot be started is one that is not there: there are too many already.
        let helper = thread::Builder::new().name("tracer-copy".into()).spawn_scoped(scope, others);
        let is_copied = copy_alone(to_here, here);
        helper.is_ok_and(|helper| helper.join().unwrap_or(false)) && is_copied
    })
}

fn copy_alone(to: &mut [u8], part: &[u8]) -> bool {
    to.chunks_mut(WINDOW).zip(part.chunks(WINDOW)).all(|(to, part)| {
        let is_there = make_sure_of(to);
        if is_there {
            copy_past_caches(to, part);
        }
        is_there
    })
}

/// Gets the pages of mapped bytes ready to be written to. What is not in the file, or has no space, is an error here, and would be a signal later.
fn make_sure_of(bytes: &mut [u8]) -> bool {
    let before = bytes.as_ptr().addr() % page_size();
    // SAFETY: the pages with these bytes, and a mapping has whole ones; the advice changes nothing in them. Linux knows it since 5.14.
    unsafe {
        let page = bytes.as_mut_ptr().sub(before);
        madvise(page.cast(), before + bytes.len(), Advice::LinuxPopulateWrite).is_ok()
    }
}

/// Identity of a file, for as long as somebody has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

/// A file, mapped from its beginning to be written to.
#[derive(Debug)]
struct Mapping {
    pages: Pages,
    id: FileId,
}

impl Mapping {
    fn new(file: &File, id: FileId, bytes: usize) -> Option<Mapping> {
        Some(Mapping { pages: Pages::shared(file, bytes).ok()?, id })
    }

    /// Returns the bytes of the file, if it has as many as then. Only for whoever has the file locked, so that nobody else looks at them or changes them;
    /// only what was [made sure of](make_sure_of) may be touched.
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is that long, and is borrowed as a whole. Processes of tracer look at the file only with a lock on it.
        unsafe { std::slice::from_raw_parts_mut(self.pages.base().as_ptr(), self.pages.bytes()) }
    }
}

/// The mappings of this process that are kept.
#[derive(Debug)]
struct MappingCache {
    /// Each with the time of its last use, the latest last.
    mappings: VecDeque<(Instant, Mapping)>,
    /// True if a thread removes those that were not used for a while.
    has_thread: bool,
}

static KEPT: Mutex<MappingCache> = Mutex::new(MappingCache { mappings: VecDeque::new(), has_thread: false });

fn lock() -> MutexGuard<'static, MappingCache> {
    // Whole after every statement.
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MappingCache {
    fn take(&mut self, id: FileId) -> Option<Mapping> {
        let index = self.mappings.iter().position(|(_, mapping)| mapping.id == id)?;
        self.mappings.remove(index).map(|(_, mapping)| mapping)
    }

    /// Keeps one that was just used. There are no more than the head keeps files.
    fn put(&mut self, mapping: Mapping, now: Instant) {
        self.mappings.push_back((now, mapping));
        while self.mappings.len() > SPARE_FILES || self.bytes() > SPARE_BYTES {
            self.mappings.pop_front();
        }
    }

    fn bytes(&self) -> u64 {
        self.mappings.iter().map(|(_, mapping)| mapping.pages.bytes() as u64).sum()
    }

    /// Removes those that were not used for a while, and says when there will be more to remove; none when nothing is left.
    fn expire(&mut self, now: Instant) -> Option<Duration> {
        while let Some((used, _)) = self.mappings.front() {
            match KEPT_FOR.checked_sub(now.duration_since(*used)).filter(|rest| !rest.is_zero()) {
                Some(rest) => return Some(rest),
                None => drop(self.mappings.pop_front()),
            }
        }
        None
    }
}

fn keep(mapping: Mapping) {
    let mut kept = lock();
    kept.put(mapping, Instant::now());
    if !kept.has_thread {
        kept.has_thread = thread::Builder::new().name("tracer-mapped".into()).spawn(remove_late).is_ok();
        if !kept.has_thread {
            kept.mappings.clear();
        }
    }
}

/// Removes what is kept and was not used for a while, until there is nothing more.
fn remove_late() {
    loop {
        let mut kept = lock();
        let Some(rest) = kept.expire(Instant::now()) else {
            kept.has_thread = false;
            return;
        };
        drop(kept);
        thread::sleep(rest);
    }
}

/// Copies bytes to where there are as many that nobody looks at soon, so that those need not be read first.
#[cfg(target_arch = "x86_64")]
fn copy_past_caches(to: &mut [u8], from: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    /// Size of a cache line: the bytes that a cache loads and stores at once.
    const LINE: usize = 64;
    /// A processor compares so much of the addresses of loads and stores, and has a load wait for a store of the same.
    const ALIAS: usize = 4096;
    let head = to.as_ptr().align_offset(LINE).min(from.len());
    let ((to_head, to), (from_head, from)) = (to.split_at_mut(head), from.split_at(head));
    let ((to, to_tail), (from, from_tail)) = (to.as_chunks_mut::<LINE>(), from.as_chunks::<LINE>());
    to_head.copy_from_slice(from_head);
    to_tail.copy_from_slice(from_tail);
    let is_to_ahead = to.as_ptr().addr().wrapping_sub(from.as_ptr().addr()) % ALIAS < ALIAS / 2;
    let copy_line = |(to, from): (&mut [u8; LINE], &[u8; LINE])| {
        let (to, from) = (to.as_mut_ptr().cast::<__m128i>(), from.as_ptr().cast::<__m128i>());
        // SAFETY: four loads and four stores of 16 bytes are a line; that of `to` begins at a multiple of its length.
        unsafe {
            let words: [__m128i; LINE / 16] = std::array::from_fn(|word| _mm_loadu_si128(from.add(word)));
            words.into_iter().enumerate().for_each(|(word, bytes)| _mm_stream_si128(to.add(word), bytes));
        }
    };
    // So that no load is from where the last stores seem to have gone.
    let lines = to.iter_mut().zip(from);
    if is_to_ahead {
        lines.rev().for_each(copy_line)
    } else {
        lines.for_each(copy_line)
    }
    // SAFETY: every x86-64 processor has it. Such stores are in no order with others, as with that of a lock that is given back.
    unsafe { _mm_sfence() };
}

/// Copies bytes to where there are as many.
#[cfg(not(target_arch = "x86_64"))]
fn copy_past_caches(to: &mut [u8], from: &[u8]) {
    to.copy_from_slice(from);
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use proptest::prelude::*;
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    /// Returns a file of so many bytes, all of them 7, that is nowhere else.
    fn file(bytes: usize) -> File {
        let file = File::from(memfd_create("in place", MemfdFlags::CLOEXEC).unwrap());
        file.write_all_at(&vec![7; bytes], 0).unwrap();
        file
    }

    fn content(file: &File) -> Vec<u8> {
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    /// Bytes of which those near each other are not alike.
    fn bytes(count: usize) -> Vec<u8> {
        (0..count as u64).map(|number| (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn bytes_from_anywhere_go_to_anywhere(from in 0..5000_usize, to in 0..5000_usize, length in 0..9000_usize) {
            let source = bytes(from + length);
            let mut target = vec![7_u8; to + length + 100];
            copy_past_caches(&mut target[to..to + length], &source[from..]);
            prop_assert!(target[to..to + length] == source[from..]);
            prop_assert!(target[..to].iter().chain(&target[to + length..]).all(|byte| *byte == 7));
        }
    }

    #[test]
    fn what_is_copied_is_there_and_nothing_else_is_touched() {
        let source = bytes(COPIED_FROM * 2);
        for (offset, from, length) in [
            (0, 0, COPIED_FROM),
            (5, 0, COPIED_FROM),
            (5, 16, COPIED_FROM + 1),
            (4096, 3, COPIED_FROM + 4095),
            (WINDOW - 1, 1, COPIED_FROM + 12_345),
        ] {
            let part = &source[from..from + length];
            for threads in 1..=THREADS {
                let mut target = vec![7; offset + length + 5000];
                assert!(copy_by(threads, &mut target[offset..offset + length], part));
                assert!(target[offset..offset + length] == *part, "{offset} {from} {length} by {threads}");
                assert!(target[..offset].iter().chain(&target[offset + length..]).all(|byte| *byte == 7));
            }
            let file = file(offset + length + 5000);
            // The second time into the same mapping.
            for part in [part, &source[from + 1..from + 1 + length]] {
                assert_eq!(copy(&file, offset as u64, part), length);
                let found = content(&file);
                assert!(found[offset..offset + length] == *part);
                assert!(found[..offset].iter().chain(&found[offset + length..]).all(|byte| *byte == 7));
            }
        }
    }

    #[test]
    fn what_the_file_does_not_have_is_left_to_others() {
        let source = bytes(COPIED_FROM + 1);
        let file = file(COPIED_FROM);
        assert_eq!(copy(&file, 0, &source[1..COPIED_FROM]), 0, "it is short");
        assert_eq!(copy(&file, COPIED_FROM as u64 * 4, &source), 0, "the file ends before");
        assert_eq!(copy(&file, 4096, &source), 0, "the file ends in the middle");
        assert_eq!(file.metadata().unwrap().len(), COPIED_FROM as u64);
        let other = File::open("/proc/self/maps").unwrap();
        assert_eq!(copy(&other, 0, &source), 0, "a file system that nobody knows");
    }

    #[test]
    fn a_file_that_was_cut_is_found_out_before_it_is_written_to() {
        let source = bytes(COPIED_FROM);
        let file = file(2 * COPIED_FROM);
        assert_eq!(copy(&file, 0, &source), COPIED_FROM);
        let mut mapping = Mapping::new(&file, FileId { device: 0, inode: 0 }, 2 * COPIED_FROM).unwrap();
        file.set_len(COPIED_FROM as u64 / 2).unwrap();
        assert_eq!(copy(&file, 0, &source), 0, "the file says so");
        assert!(!copy_by(2, &mut mapping.bytes()[..COPIED_FROM], &source), "its pages say so");
        file.set_len(3 * COPIED_FROM as u64).unwrap();
        assert_eq!(copy(&file, 2 * COPIED_FROM as u64, &source), COPIED_FROM, "what was mapped is too short");
        assert!(content(&file)[2 * COPIED_FROM..] == *source);
    }

    #[test]
    fn mappings_are_few_and_go() {
        let mut kept = MappingCache { mappings: VecDeque::new(), has_thread: false };
        let file = file(1);
        let id = |inode| FileId { device: 1, inode };
        let mapping = |inode, length| Mapping::new(&file, id(inode), length).unwrap();
        let begin = Instant::now();
        let second = Duration::from_secs(1);
        for inode in 0..=SPARE_FILES as u64 {
            kept.put(mapping(inode, 1), begin + second);
        }
        assert!(kept.take(id(0)).is_none(), "the first had to go");
        assert_eq!(kept.take(id(1)).unwrap().id, id(1));
        kept.put(mapping(1, 1), begin + second * 3);
        assert_eq!(kept.mappings.len(), SPARE_FILES);
        assert_eq!(kept.expire(begin + second * 2), Some(KEPT_FOR - second));
        assert_eq!(kept.mappings.len(), SPARE_FILES);
        assert_eq!(kept.expire(begin + second + KEPT_FOR), Some(second * 2), "the one that was used later stays");
        assert_eq!(kept.mappings.len(), 1);
        assert_eq!(kept.expire(begin + second * 3 + KEPT_FOR), None);
        assert_eq!(kept.mappings.len(), 0);
        kept.put(mapping(8, 1), begin);
        kept.put(mapping(9, SPARE_BYTES as usize), begin);
        assert_eq!(kept.mappings.len(), 1, "a large one leaves no room for others");
        kept.put(mapping(10, SPARE_BYTES as usize + 1), begin);
        assert_eq!(kept.mappings.len(), 0, "what is too large is not kept");
    }
}
