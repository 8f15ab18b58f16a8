//! Grants: the leases that the head has given to a worker, in a file of the head's own beside the spool, so that
//! nothing which a task does to the spool changes it.
//!
//! Two parties write, each in pages of its own: the head says which task and attempt each lease is for; the worker says how
//! far it has come, as a second record of its claims. The worker maps nothing but that page, with gaps around it that nobody can touch: bytes that a task
//! writes where it should not seldom reach both records.
//!
//! Where the [ring of claims](super::claims) says something that no ring says, this is what counts.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::layout::{INLINE_COUNT, SpoolError, VERSION, back, seal};
use super::rescue::Rescue;
use crate::claims::CLAIM_COUNT;
use crate::pages::{FileExt, Pages};

const PAGE: usize = 4096;
const MAGIC: u64 = u64::from_le_bytes(*b"TRACERGR");
const FILE_SIZE: usize = PAGE + size_of::<Granted>().next_multiple_of(PAGE);

/// The head's part of the file.
#[repr(C, align(4096))]
struct Granted {
    magic: AtomicU64,
    version: AtomicU32,
    /// The worker; 0 until it was started.
    pid: AtomicU32,
    /// 1 when the worker's attempts have spans.
    is_traced: AtomicU32,
    /// Index of the entry for the next task that runs inside of another.
    next_inline: AtomicU32,
    /// The lease of each entry, plus 1; 0 for one that was taken back, or that never was.
    leases: [AtomicU64; CLAIM_COUNT],
    tasks: [AtomicU64; CLAIM_COUNT],
    attempts: [AtomicU32; CLAIM_COUNT],
    /// Tasks that were sent to run inside of others, the newest of them; 0 for none.
    inline_tasks: [AtomicU64; INLINE_COUNT],
    inline_attempts: [AtomicU32; INLINE_COUNT],
}

/// Progress of a worker, on the first page.
#[repr(C)]
struct Progress {
    /// The lease that was claimed last, plus 1.
    claimed: AtomicU64,
    /// Seal: tells it from bytes that something else has left there.
    seal: AtomicU64,
}

/// Returns the file of grants beside a spool.
pub(super) fn path_of(spool: &Path) -> PathBuf {
    spool.with_extension("grants")
}

/// Progress of a worker, as it says itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reached {
    /// It has claimed, or passed, all leases before this one, and none from there on.
    Lease(u64),
    /// Progress that cannot be read any more.
    Unknown,
}

/// The head's side. The mapping is reached through atomics.
pub(super) struct Grants {
    /// Answers for pages that the file has lost. Dropped before the mapping goes.
    _rescue: Option<Rescue>,
    pages: Pages,
}

impl Grants {
    /// Makes the file beside a spool.
    pub(super) fn create(spool: &Path) -> Result<Grants, SpoolError> {
        let path = path_of(spool);
        let io = |source| SpoolError::Io { path: path.clone(), source };
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path).map_err(io)?;
        let made =
            file.set_len(FILE_SIZE as u64).and_then(|()| back(&file, 0, FILE_SIZE)).and_then(|()| Grants::map(&file));
        let grants = made.map_err(|error| {
            let _ = std::fs::remove_file(&path);
            io(error)
        })?;
        grants.progress().set(0);
        let granted = grants.granted();
        granted.version.store(VERSION, Relaxed);
        granted.magic.store(MAGIC, Release);
        Ok(grants)
    }

    /// Maps the file beside a spool that a head before this one has made.
    pub(super) fn take_over(spool: &Path) -> Result<Grants, SpoolError> {
        let path = path_of(spool);
        let io = |source| SpoolError::Io { path: path.clone(), source };
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        if length != FILE_SIZE as u64 {
            let found = format!("it has {length} bytes, expected {FILE_SIZE}");
            return Err(SpoolError::Foreign { path: path.clone(), found });
        }
        Grants::map(&file).map_err(io)
    }

    /// Reads the file beside a spool; none when there is none, or none of this version.
    pub(super) fn read(spool: &Path) -> Option<Grants> {
        let file = File::open(path_of(spool)).ok()?;
        let grants = Grants { _rescue: None, pages: Pages::private(FILE_SIZE).ok()? };
        // SAFETY: all of the memory above, which nobody else knows of yet.
        let bytes = unsafe { std::slice::from_raw_parts_mut(grants.pages.base().as_ptr(), FILE_SIZE) };
        file.read_exact_at(bytes, 0).ok()?;
        let granted = grants.granted();
        (granted.magic.load(Acquire) == MAGIC && granted.version.load(Relaxed) == VERSION).then_some(grants)
    }

    fn map(file: &File) -> io::Result<Grants> {
        let pages = Pages::shared(file, FILE_SIZE)?;
        Ok(Grants { _rescue: Rescue::new(pages.base(), FILE_SIZE), pages })
    }

    fn progress(&self) -> &Progress {
        // SAFETY: the mapping is page-aligned and larger than that, and its fields are atomics.
        unsafe { self.pages.base().cast::<Progress>().as_ref() }
    }

    fn granted(&self) -> &Granted {
        // SAFETY: within the mapping, aligned to a page, and atomics.
        unsafe { self.pages.base().add(PAGE).cast::<Granted>().as_ref() }
    }

    /// Says who the worker is.
    pub(super) fn set_worker(&self, pid: u32, is_traced: bool) {
        self.granted().is_traced.store(is_traced.into(), Relaxed);
        self.granted().pid.store(pid, Release);
    }

    /// Returns the worker, and whether its attempts have spans; none when it was not started.
    pub(super) fn worker(&self) -> Option<(u32, bool)> {
        let pid = Some(self.granted().pid.load(Acquire)).filter(|&pid| pid != 0)?;
        Some((pid, self.granted().is_traced.load(Relaxed) != 0))
    }

    /// Enters a lease.
    pub(super) fn grant(&self, lease: u64, task: u64, attempt: u32) {
        let (granted, entry) = (self.granted(), entry(lease));
        // In between it is nobody's, whenever this process ends.
        granted.leases[entry].store(0, Release);
        granted.tasks[entry].store(task, Release);
        granted.attempts[entry].store(attempt, Release);
        granted.leases[entry].store(lease + 1, Release);
    }

    /// Notes that a lease was taken back.
    pub(super) fn revoke(&self, lease: u64) {
        self.granted().leases[entry(lease)].store(0, Release);
    }

    /// Enters a task that is sent to run inside of another.
    pub(super) fn grant_inline(&self, task: u64, attempt: u32) {
        let granted = self.granted();
        let entry = granted.next_inline.fetch_add(1, Relaxed) as usize % INLINE_COUNT;
        granted.inline_tasks[entry].store(0, Release);
        granted.inline_attempts[entry].store(attempt, Release);
        granted.inline_tasks[entry].store(task, Release);
    }

    /// Returns the leases on record that were not taken back: lease, task and attempt.
    pub(super) fn leases(&self) -> impl Iterator<Item = (u64, u64, u32)> {
        let granted = self.granted();
        let entries = granted.leases.iter().zip(&granted.tasks).zip(&granted.attempts);
        entries.filter_map(|((lease, task), attempt)| {
            Some((lease.load(Acquire).checked_sub(1)?, task.load(Acquire), attempt.load(Acquire)))
        })
    }

    /// Returns the tasks on record that were sent to run inside of others, with their attempts.
    pub(super) fn inline(&self) -> impl Iterator<Item = (u64, u32)> {
        let sent = self.granted().inline_tasks.iter().zip(&self.granted().inline_attempts);
        sent.map(|(task, attempt)| (task.load(Acquire), attempt.load(Acquire))).filter(|&(task, _)| task != 0)
    }

    /// Reads the progress of the worker.
    pub(super) fn reached(&self) -> Reached {
        self.progress().get()
    }
}

impl Progress {
    fn set(&self, claimed: u64) {
        self.seal.store(seal(claimed), Relaxed);
        self.claimed.store(claimed, Release);
    }

    fn get(&self) -> Reached {
        let claimed = self.claimed.load(Acquire);
        if self.seal.load(Relaxed) == seal(claimed) { Reached::Lease(claimed) } else { Reached::Unknown }
    }
}

/// The worker's side: the page on which it says how far it has come, between two that nobody can touch.
pub(super) struct Reach {
    page: Pages,
}

/// Bytes on either side of the worker's own page.
const GAP: usize = 64 * PAGE;

impl Reach {
    /// Maps the page of the file beside a spool.
    pub(super) fn open(spool: &Path) -> Result<Reach, SpoolError> {
        let path = path_of(spool);
        let io = |source| SpoolError::Io { path: path.clone(), source };
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(io)?;
        let page = Pages::shared_between_gaps(&file, PAGE, GAP).map_err(io)?;
        Ok(Reach { page })
    }

    /// Says that a lease was claimed.
    #[inline]
    pub(super) fn claimed(&self, lease: u64) {
        // SAFETY: the page is mapped as long as `self` lives, and its fields are atomics.
        unsafe { self.page.base().cast::<Progress>().as_ref() }.set(lease + 1);
    }
}

fn entry(lease: u64) -> usize {
    (lease % CLAIM_COUNT as u64) as usize
}
