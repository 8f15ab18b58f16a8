//! Layout of a spool file, and its mapping.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::mm::Advice;

use super::rescue::Rescue;
use crate::claims::{CLAIM_COUNT, Claims};
use crate::pages::{FileExt, Pages};

/// Tasks that a worker remembers to have begun while others of its tasks waited.
pub(super) const INLINE_COUNT: usize = 256;
/// Tasks that a worker may run inside of one another: half of those that it remembers, so that some that have ended are among them.
pub const INLINE_LIMIT: usize = INLINE_COUNT / 2;
/// Spans that may be open or unwritten at once, in the spool of a process that asks for no more.
pub const SLOT_COUNT: usize = 4096;
/// Slots that a spool has at most: what a file says of itself is not believed beyond that.
pub(super) const SLOT_LIMIT: usize = 1 << 17;
/// Bytes of a slot, header included. What does not fit is cut from the spool's copy, never from the span itself. No power of two: then the
/// first parts of all slots, which are used most, would be in the same few places of the processor's caches. 32 of them fill pages.
pub const SLOT_SIZE: usize = 2176;

pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"TRACERSP");
pub(super) const VERSION: u32 = 10;
const PATH_SIZE: usize = 1024;
const RESOURCE_SIZE: usize = 8192;
const CLAIMS_OFFSET: usize = size_of::<Header>();
pub(super) const SLOTS_OFFSET: usize = (CLAIMS_OFFSET + size_of::<Claims>()).next_multiple_of(4096);
/// Slots that get their space on the disk together.
pub(super) const SLOTS_PER_STEP: usize = 32;

/// Error for which a spool could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// The file could not be opened, sized or mapped. Look at the space and the rights of the session folder.
    #[error("the spool `{}` cannot be used", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file is not a spool of this version; it was left by another version of tracer, or is damaged.
    #[error("`{}` is not a spool of version {}: {found}", .path.display(), VERSION)]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Content that was found instead, as a clause.
        found: String,
    },
}

/// The first bytes of a spool file. Everything is an atomic because two processes may look at once.
#[repr(C, align(4096))]
pub(super) struct Header {
    pub(super) magic: AtomicU64,
    pub(super) version: AtomicU32,
    pub(super) slot_count: AtomicU32,
    pub(super) slot_size: AtomicU32,
    pub(super) claim_count: AtomicU32,
    /// The owner, once it has attached.
    pub(super) pid: AtomicU32,
    /// The process group of the command that the owner runs now; 0 for none.
    pub(super) command_group: AtomicU32,
    /// The owner's [birth](crate::identity::birth).
    pub(super) owner_birth: AtomicU64,
    /// The [window](crate::identity::BirthWindow) in which the leader of `command_group` was born.
    pub(super) command_birth: AtomicU64,
    /// The lease that is being run, plus 1; 0 for none. Set before the claim and cleared when the attempt has ended, so a claimed
    /// lease that is not here has ended.
    pub(super) running_lease: AtomicU64,
    /// Time since which it is run, in nanoseconds since the Unix epoch.
    pub(super) running_since: AtomicU64,
    /// The task whose attempt is to end; 0 for none. Written last by the head, after the two below.
    pub(super) stop_task: AtomicU64,
    /// Number of the attempt at it.
    pub(super) stop_attempt: AtomicU32,
    /// Reason for the end: 1 for cancelled, 2 and 3 for its run and its idle limit.
    pub(super) stop_reason: AtomicU32,
    /// The task that has asked whether it is to end, and was told that it is.
    pub(super) stop_seen: AtomicU64,
    /// Entries that did not fit their slot, of spans that were brought on from there, and attributes of the resource that did not fit.
    pub(super) cut: AtomicU64,
    /// Spans that found no free slot, and that nobody has told to be delivered.
    pub(super) unrecorded: AtomicU64,
    /// Ended spans whose slot was needed, and that nobody has told to be delivered.
    pub(super) evicted: AtomicU64,
    /// Ended spans that no exporter took, and that could not be put aside either.
    pub(super) given_up: AtomicU64,
    /// Spans that a process began which was forked from the owner.
    pub(super) forked: AtomicU64,
    /// Ended spans that the first hook has given up, of those that its last commit that succeeded, or one before it, was to cover.
    pub(super) dropped: AtomicU64,
    /// The same, of those that have ended since.
    pub(super) dropped_since: AtomicU64,
    /// Ended spans that additional hooks have not got because there was no slot for them.
    pub(super) missed: AtomicU64,
    /// 1 when the first hook does not tell what it has delivered.
    pub(super) is_untold: AtomicU32,
    /// Log records that a hook has given up.
    pub(super) log_records_given_up: AtomicU32,
    /// The owner's [hooks](super::hooks), which an ended span is for.
    pub(super) hooks: AtomicU32,
    /// Mark that tells these hooks from those of another session.
    pub(super) hooks_mark: AtomicU32,
    /// Form in which the owner keeps its spans in its span file: one of `tracer_abi::SPAN_FILE_*`; 0 when it does not say.
    pub(super) span_file_format: AtomicU32,
    /// Bytes of `span_file` that hold its path.
    pub(super) span_file_len: AtomicU32,
    /// Slots from the first on that have their space on the disk. The others may not be touched, not even to read: where there is no
    /// space for a page of a mapping, the kernel's answer is SIGBUS.
    pub(super) slots_backed: AtomicU32,
    /// Bytes of `resource` that hold attributes.
    pub(super) resource_len: AtomicU32,
    /// The path of the owner's span file.
    pub(super) span_file: [AtomicU32; PATH_SIZE / 4],
    /// The resource of the owner's spans, as entries of a [record](super::record).
    pub(super) resource: [AtomicU32; RESOURCE_SIZE / 4],
    /// Tasks that the owner has begun while others of its tasks waited, whether or not they have ended; 0 for none.
    pub(super) inline_tasks: [AtomicU64; INLINE_COUNT],
    /// Numbers of these attempts at them.
    pub(super) inline_attempts: [AtomicU32; INLINE_COUNT],
    /// Seals: tell an entry of the two above that was written as a whole from bytes that something else has left there.
    pub(super) inline_seals: [AtomicU64; INLINE_COUNT],
}

/// The fixed part of a slot; the entries follow it.
#[repr(C)]
pub(super) struct SlotHeader {
    pub(super) state: AtomicU32,
    /// Bytes of entries that are complete.
    pub(super) len: AtomicU32,
    pub(super) start_time_unix_nano: AtomicU64,
    pub(super) end_time_unix_nano: AtomicU64,
    /// The task in whose attempt the span was started; 0 outside of tasks.
    pub(super) task_id: AtomicU64,
    pub(super) trace_id: [AtomicU64; 2],
    pub(super) span_id: AtomicU64,
    /// 0 for a root.
    pub(super) parent_span_id: AtomicU64,
    pub(super) kind: AtomicU32,
    /// 1 when this is the span of the attempt itself.
    pub(super) is_attempt: AtomicU32,
    pub(super) status: AtomicU32,
    /// Entries of this span that did not fit.
    pub(super) cut: AtomicU32,
    /// The [hooks](super::hooks) that do not have the span yet. It counts once the span has ended.
    pub(super) pending: AtomicU32,
    /// The W3C trace flags of the span, and [`PARENT_IS_REMOTE`].
    pub(super) flags: AtomicU32,
}

/// The bit in [`SlotHeader::flags`] of a span whose parent is in another process.
pub(super) const PARENT_IS_REMOTE: u32 = 0x100;

pub(super) const SLOT_FREE: u32 = 0;
pub(super) const SLOT_OPEN: u32 = 1;
pub(super) const SLOT_ENDED: u32 = 2;
pub(super) const ENTRIES_SIZE: usize = SLOT_SIZE - size_of::<SlotHeader>();

const _: () = assert!(size_of::<SlotHeader>() == 88 && SLOT_SIZE.is_multiple_of(align_of::<SlotHeader>()));

/// A mapped spool file, or a copy of one in private memory.
///
/// It is reached through atomics, and through entry bytes that one thread at a time writes under the owner's lock of the slot.
pub(super) struct Mapping {
    /// By the size of the file when it was mapped.
    slot_count: usize,
    /// Answers for pages that the file has lost, in a process that must not end with its workers' files. Dropped before the mapping goes.
    rescue: Option<Rescue>,
    pages: Pages,
    pub(super) file: File,
}

impl Mapping {
    /// Makes a new spool file with so many slots, private to the user. Slots that are never used have no space on the disk and no memory.
    ///
    /// # Panics
    ///
    /// With no slots, or more than a spool may have.
    pub(super) fn create(path: &Path, slot_count: usize) -> Result<Mapping, SpoolError> {
        assert!((1..=SLOT_LIMIT).contains(&slot_count), "a spool of {slot_count} slots");
        let io = |source| SpoolError::Io { path: path.into(), source };
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path).map_err(io)?;
        let made = file.set_len(size_of_file(slot_count) as u64).and_then(|()| {
            back(&file, 0, SLOTS_OFFSET)?;
            let mapping = Mapping::map(file, slot_count)?;
            mapping.back_more_slots(0)?;
            Ok(mapping)
        });
        let mapping = made.map_err(|error| {
            // Nobody could use it, and it would be taken for what a process left behind.
            let _ = std::fs::remove_file(path);
            io(error)
        })?;
        let header = mapping.header();
        header.inline_seals.iter().for_each(|seal| seal.store(inline_seal(0, 0), Relaxed));
        header.version.store(VERSION, Relaxed);
        header.slot_count.store(slot_count as u32, Relaxed);
        header.slot_size.store(SLOT_SIZE as u32, Relaxed);
        header.claim_count.store(CLAIM_COUNT as u32, Relaxed);
        header.magic.store(MAGIC, Release);
        Ok(mapping)
    }

    /// Maps a spool file that someone else made, after checking that it is one.
    pub(super) fn open(path: &Path) -> Result<Mapping, SpoolError> {
        let io = |source| SpoolError::Io { path: path.into(), source };
        let foreign = |found: String| SpoolError::Foreign { path: path.into(), found };
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let slot_count = check_start(&file, path)?;
        let expected = size_of_file(slot_count);
        if length != expected as u64 || slot_count > SLOT_LIMIT {
            return Err(foreign(format!("it has {length} bytes, expected {expected} for {slot_count} slots")));
        }
        Mapping::map(file, slot_count).map_err(io)
    }

    /// Private memory for a [copy](Self::copy) of what is in a file of this length, which decides how many slots there are, whatever the
    /// header says.
    pub(super) fn for_copies(file: File, length: u64) -> io::Result<Mapping> {
        let slot_count = slots_in(length);
        Ok(Mapping { slot_count, rescue: None, pages: Pages::private(size_of_file(slot_count))?, file })
    }

    /// Reads this part of the file again. Returns how many bytes the file has there; the others are zero from now on. Only for
    /// [private memory](Self::for_copies).
    pub(super) fn copy(&self, offset: usize, length: usize) -> io::Result<usize> {
        assert!(offset + length <= self.size(), "bytes {offset} to {} are not in the spool", offset + length);
        // SAFETY: within the mapping by the assertion, which is this process's own memory and is reached through atomics, and through bytes
        // that are copied before anything else is read here.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.pages.base().add(offset).as_ptr(), length) };
        let mut filled = 0;
        while filled < length {
            match self.file.read_at(&mut bytes[filled..], (offset + filled) as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        bytes[filled..].fill(0);
        Ok(filled)
    }

    /// Makes the kernel answer a page that the file has lost with a page of zeroes, instead of the end of this process.
    pub(super) fn rescue(&mut self) {
        self.rescue = Rescue::new(self.pages.base(), self.size());
    }

    fn map(file: File, slot_count: usize) -> io::Result<Mapping> {
        let pages = Pages::shared(&file, size_of_file(slot_count))?;
        // The file is one big hole of which a few pages are ever used; reading ahead would fill the others with zeroes.
        pages.advise(Advice::Random);
        Ok(Mapping { slot_count, rescue: None, pages, file })
    }

    fn size(&self) -> usize {
        self.pages.bytes()
    }

    /// Count of slots, whether or not they may be touched.
    pub(super) fn slot_count(&self) -> usize {
        self.slot_count
    }

    pub(super) fn header(&self) -> &Header {
        // SAFETY: the mapping is page-aligned and larger than a header, whose fields are atomics.
        unsafe { self.pages.base().cast::<Header>().as_ref() }
    }

    pub(super) fn claims(&self) -> &Claims {
        // SAFETY: within the mapping, aligned, and atomics.
        unsafe { self.pages.base().add(CLAIMS_OFFSET).cast::<Claims>().as_ref() }
    }

    /// Returns whether the header begins as it was made. Of a file that was cut short since, too.
    pub(super) fn is_sound(&self) -> bool {
        let header = self.header();
        let numbers = [&header.version, &header.slot_size, &header.claim_count];
        let expected = [VERSION, SLOT_SIZE as u32, CLAIM_COUNT as u32];
        header.magic.load(Acquire) == MAGIC
            && numbers.map(|number| number.load(Relaxed)) == expected
            && (self.slot_count..=SLOT_LIMIT).contains(&(header.slot_count.load(Relaxed) as usize))
    }

    /// Returns whether a file of this length has the slots that its header says it has.
    pub(super) fn is_whole(&self, length: u64) -> bool {
        length == size_of_file(self.header().slot_count.load(Relaxed) as usize) as u64
    }

    /// Count of slots, from the first on, that may be touched.
    pub(super) fn slots_backed(&self) -> usize {
        (self.header().slots_backed.load(Acquire) as usize).min(self.slot_count)
    }

    /// Gets space on the disk for the few slots that follow the first `backed` ones. Returns how many have it then. Called by one thread at
    /// a time of one process at a time: who makes the file, then who owns it.
    pub(super) fn back_more_slots(&self, backed: usize) -> io::Result<usize> {
        let count = SLOTS_PER_STEP.min(self.slot_count - backed);
        back(&self.file, SLOTS_OFFSET + backed * SLOT_SIZE, count * SLOT_SIZE)?;
        self.header().slots_backed.store((backed + count) as u32, Release);
        Ok(backed + count)
    }

    /// Returns the slot's header. `index` is below [`slots_backed`](Self::slots_backed).
    pub(super) fn slot(&self, index: usize) -> &SlotHeader {
        assert!(index < self.slot_count, "slot {index} is not in the spool");
        // SAFETY: within the mapping by the assertion, aligned by the assertion on SLOT_SIZE, and atomics.
        unsafe { self.pages.base().add(SLOTS_OFFSET + index * SLOT_SIZE).cast::<SlotHeader>().as_ref() }
    }

    /// Returns the slot's bytes for entries.
    pub(super) fn entries(&self, index: usize) -> NonNull<[u8]> {
        assert!(index < self.slot_count, "slot {index} is not in the spool");
        // SAFETY: within the mapping by the assertion.
        let start = unsafe { self.pages.base().add(SLOTS_OFFSET + index * SLOT_SIZE + size_of::<SlotHeader>()) };
        NonNull::slice_from_raw_parts(start, ENTRIES_SIZE)
    }

    /// Returns the bytes for the path of the span file.
    pub(super) fn span_file(&self) -> NonNull<[u8]> {
        let start = NonNull::from(&self.header().span_file).cast::<u8>();
        NonNull::slice_from_raw_parts(start, PATH_SIZE)
    }

    /// Returns the bytes for the resource.
    pub(super) fn resource(&self) -> NonNull<[u8]> {
        let start = NonNull::from(&self.header().resource).cast::<u8>();
        NonNull::slice_from_raw_parts(start, RESOURCE_SIZE)
    }
}

fn size_of_file(slot_count: usize) -> usize {
    SLOTS_OFFSET + slot_count * SLOT_SIZE
}

/// Count of whole slots that a file of this length has room for.
fn slots_in(length: u64) -> usize {
    let slots = length.saturating_sub(SLOTS_OFFSET as u64) / SLOT_SIZE as u64;
    usize::try_from(slots).map_or(SLOT_LIMIT, |slots| slots.min(SLOT_LIMIT))
}

/// Fails when a file does not begin as a spool of this version does. Returns how many slots it says that it has.
pub(super) fn check_start(file: &File, path: &Path) -> Result<usize, SpoolError> {
    let foreign = |found: String| SpoolError::Foreign { path: path.into(), found };
    let read = |bytes: &mut [u8], offset: usize| {
        file.read_exact_at(bytes, offset as u64).map_err(|source| SpoolError::Io { path: path.into(), source })
    };
    let (mut magic, mut version, mut slot_count) = ([0; 8], [0; 4], [0; 4]);
    read(&mut magic, offset_of!(Header, magic))?;
    read(&mut version, offset_of!(Header, version))?;
    read(&mut slot_count, offset_of!(Header, slot_count))?;
    if magic != MAGIC.to_ne_bytes() {
        return Err(foreign("it does not begin with the mark of a spool".into()));
    }
    if version != VERSION.to_ne_bytes() {
        return Err(foreign(format!("it has version {}", u32::from_ne_bytes(version))));
    }
    Ok(u32::from_ne_bytes(slot_count) as usize)
}

/// Seal beside an entry for a task that runs inside of others.
pub(super) fn inline_seal(task: u64, attempt: u32) -> u64 {
    seal(task ^ u64::from(attempt).rotate_left(32))
}

/// Returns a number that no bytes but those of `value` are likely to be beside.
pub(super) fn seal(value: u64) -> u64 {
    (value ^ MAGIC).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ MAGIC
}

/// Gets space on the disk for a part of the file that nobody has used yet.
pub(super) fn back(file: &File, offset: usize, length: usize) -> io::Result<()> {
    if cfg!(miri) {
        return Ok(());
    }
    match fallocate(file, FallocateFlags::empty(), offset as u64, length as u64) {
        // Not every file system can; then zeroes are written, which are what is there.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.write_all_at(&vec![0; length], offset as u64),
        outcome => Ok(outcome?),
    }
}
