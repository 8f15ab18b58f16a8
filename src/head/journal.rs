//! The journal: the append-only record from which a head recovers.
//!
//! A submission is in the journal before it is acknowledged, and a task's outcome before anyone is told of it. So a task that was
//! accepted survives a SIGKILL of the head. The loss of power it survives if the journal is [synced](sync), and nothing is acknowledged before.
//!
//! ```text
//! file    = "TRACERJN" version:u32 0:u32 record*        version 5; older ones are read, and are of version 5 from then on
//! record  = length:u32 checksum:u32 kind:u8 body        the checksum (CRC-32) is over kind and body, as is the length
//! ```
//!
//! A record that was torn at the end, when its writer died, is cut off. Damage anywhere else is said, and [reading](scan) goes on at the next whole
//! record; the damaged file is kept beside the new one. It is read in pieces, so a journal that is longer than the memory can be read too. A [write
//! that failed](log) leaves nothing that could be taken for a record. When the file has grown to several times what is still worth keeping, what is kept is
//! [written to a new file](compaction) that takes its place.

mod compaction;
mod log;
mod scan;
mod sync;

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Release;
use std::time::Duration;

use compaction::Compacted;
use log::Log;
use rustix::event::{PollFd, PollFlags, poll};
use scan::Scanned;
use sync::{Events, Syncer};
use tracer_core::count::Count;
use tracer_core::task::{ActorRole, AttemptReport, Envelope, JobId, Outcome, SpanLink, TaskId, WorkerId};
use tracer_core::value;
use tracer_ipc::fault;
use tracer_ipc::protocol::wire::{Put, Take, WireError};
use tracer_ipc::serving::Service;
use tracer_reactor::PastTask;
use tracer_reactor::state::{Death, TaskEnd};
use tracer_span_file::SpaceAhead;

const MAGIC: &[u8; 8] = b"TRACERJN";
/// The version that is written. Older ones are read, newer ones refused.
const VERSION: u32 = 5;
const HEADER: usize = 16;
const RECORD_HEADER: usize = 8;
/// A file below this size is not compacted.
const COMPACTION_BYTES: u64 = 64 << 20;
/// Factor by which it may be longer while tasks are open: they need the cores, and when they have ended, less is to be kept.
const OPEN_FACTOR: u64 = 4;
/// So much memory is kept for what is noted next.
const PENDING_BYTES: usize = 64 << 10;
/// Time that to wait before the journal is written anew that cannot be trusted, at first and at most: the disk has just failed.
const ANEW_PAUSE: Duration = Duration::from_secs(1);
const ANEW_PAUSE_LIMIT: Duration = Duration::from_secs(60);

// Up to version 3, with an envelope as it was then.
const SUBMITTED_OLDER: u8 = 1;
const ENDED: u8 = 2;
const NEXT_IDS: u8 = 3;
const REMEMBERED: u8 = 4;
// Since version 2.
const ATTEMPT: u8 = 5;
const STARTED: u8 = 6;
const KEY: u8 = 7;
// Since version 3.
const ACTOR: u8 = 16;
// Since version 4.
const SUBMITTED: u8 = 17;
// Since version 5.
const PRUNED: u8 = 18;
const SERVICE_DEPLOYED: u8 = 19;
const SERVICE_SHUT_DOWN: u8 = 20;
const BUNDLE: u8 = 21;

/// A submission as the journal has it. Its envelope is borrowed where it is written, and may have to be made where it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Submitted<E> {
    pub(super) task: TaskId,
    pub(super) job: JobId,
    pub(super) submitted_unix_nano: u64,
    pub(super) envelope: E,
}

/// The end of a task as the journal has it.
#[derive(Debug)]
pub(super) struct EndedRecord {
    pub(super) task: TaskId,
    pub(super) attempt: u32,
    pub(super) ended: TaskEnd,
}

/// A version of a service as the journal has it.
#[derive(Debug)]
pub(super) struct DeployedRecord<'a> {
    pub(super) name: &'a str,
    pub(super) version: u64,
    pub(super) deployed_unix_nano: u64,
    /// None when it cannot be read.
    pub(super) service: Option<Service>,
}

/// A record of the journal.
#[derive(Debug)]
pub(super) enum Record<'a> {
    Submitted(Submitted<Cow<'a, [u8]>>),
    Ended(Box<EndedRecord>),
    /// The part of a task's description that is kept, if its end follows.
    Remembered(TaskId, PastTask<'a>),
    /// An attempt that failed, and after which the task was to be tried again.
    Attempt {
        task: TaskId,
        attempt: Box<AttemptReport>,
        span: Option<SpanLink>,
    },
    /// An attempt that was about to start, of a task that must not be started twice.
    Started {
        task: TaskId,
        attempt: u32,
    },
    /// Tasks with ids in a row that go into their queue together.
    Bundle {
        first: TaskId,
        count: u32,
    },
    /// The idempotency key of a remembered task, with what stands for what it runs.
    Key {
        task: TaskId,
        fingerprint: u64,
        key: &'a str,
    },
    /// An actor whose creation has ended: the attempt that it is at, how often it was begun again, and why it is dead, if it is.
    Actor {
        task: TaskId,
        attempt: u32,
        restarts: u32,
        death: Option<Death>,
    },
    /// Ended tasks that are forgotten.
    Pruned(Vec<TaskId>),
    /// A version of a service that is served from then on.
    ServiceDeployed(Box<DeployedRecord<'a>>),
    /// A service that is not served any more.
    ServiceShutDown(&'a str),
    /// Ids that are not to be given out again, although no record of them is left.
    NextIds {
        task: TaskId,
        job: JobId,
    },
}

/// Reason why a journal cannot be used.
#[derive(Debug)]
pub(crate) enum JournalError {
    /// Something with the file.
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    /// It is not a journal.
    Foreign { path: PathBuf },
    /// A newer tracer has written it.
    Newer { path: PathBuf, version: u32 },
    /// It is no file of bytes.
    NoFile { path: PathBuf, kind: &'static str },
    /// It is not to be put aside, because it has tasks that have not ended, or actors that live.
    Unfinished { tasks: usize, actors: usize },
}

impl fmt::Display for JournalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JournalError::Io { doing, path, .. } => write!(f, "cannot {doing} the journal `{}`", path.display()),
            JournalError::Foreign { path } => {
                write!(
                    f,
                    "`{}` is not a journal of tracer\n(hint: move it away, or name another --temp-dir)",
                    path.display()
                )
            }
            JournalError::Newer { path, version } => {
                write!(
                    f,
                    "the journal `{}` has version {version}, but this tracer reads up to {VERSION}",
                    path.display()
                )?;
                f.write_str("\n(hint: start the newer tracer again, or name another --temp-dir)")
            }
            JournalError::NoFile { path, kind } => {
                write!(f, "the journal `{}` is {kind}, but has to be a regular file", path.display())?;
                f.write_str("\n(hint: move it away, or name another --temp-dir)")
            }
            JournalError::Unfinished { tasks, actors } => {
                let tasks = (*tasks > 0).then(|| match tasks {
                    1 => "1 task has not ended".to_owned(),
                    tasks => format!("{tasks} tasks have not ended"),
                });
                let actors = (*actors > 0).then(|| match actors {
                    1 => "1 actor lives".to_owned(),
                    actors => format!("{actors} actors live"),
                });
                let both: Vec<_> = tasks.into_iter().chain(actors).collect();
                write!(f, "--fresh would forget tasks that are not done: {}", both.join(", and "))?;
                f.write_str(
                    "\n(hint: start without --fresh to go on with them, or add --discard-unfinished to give them up)",
                )
            }
        }
    }
}

impl std::error::Error for JournalError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            JournalError::Io { source, .. } => Some(source),
            JournalError::Foreign { .. }
            | JournalError::Newer { .. }
            | JournalError::NoFile { .. }
            | JournalError::Unfinished { .. } => None,
        }
    }
}

/// The file, open for appending.
pub(super) struct Journal {
    path: PathBuf,
    log: Log<Arc<File>>,
    space: SpaceAhead,
    /// Its length after its last compaction: what was worth keeping then.
    kept: u64,
    /// Ends of tasks that are not written yet.
    pending: Vec<u8>,
    is_suspended: bool,
    /// The length of the file, for threads.
    good: Arc<AtomicU64>,
    compaction: Option<Compaction>,
    /// After a compaction that failed, none is tried below this length.
    retry_above: u64,
    /// True if it holds tasks that were pruned: their descriptions and results are to be gone soon.
    has_pruned: bool,
    /// Number of times in a row that it could not be written anew.
    failures: u32,
    /// True if its name leads elsewhere.
    is_misplaced: bool,
    events: Events,
    syncer: Option<Syncer>,
}

/// Stage of a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compaction {
    /// A thread writes what is kept.
    Compacting,
    /// A thread puts the new file in the place of the old one. Both get what is appended.
    Committing,
}

/// Messages of threads.
enum Event {
    Compacted(io::Result<Compacted>),
    /// True if its name is on the disk too, where that is wanted.
    Committed(io::Result<bool>),
    /// The position up to which it is on the disk.
    Synced(io::Result<u64>),
}

/// An opened journal, with what was found in it.
pub(super) struct Opened {
    pub(super) journal: Journal,
    /// Bytes at the end that were the beginning of a record, and were cut off.
    pub(super) torn: u64,
    /// The damage, if there is any.
    pub(super) damage: Option<Damage>,
    /// The ids that come next: above all that were read, and all that the bytes may have held that could not be read.
    pub(super) next_task: TaskId,
    pub(super) next_job: JobId,
}

/// Damage in a journal.
#[derive(Debug)]
pub(super) struct Damage {
    /// In how many places.
    places: usize,
    bytes: u64,
    /// The journal as it was found.
    pub(super) kept: PathBuf,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, places) = (Count(self.bytes, "byte"), Count(self.places, "place"));
        write!(
            f,
            "the journal was damaged: {bytes} in {places} could not be read, and their records of tasks are lost"
        )?;
        write!(f, "\n(hint: everything else was restored; the damaged file is kept as `{}`)", self.kept.display())
    }
}

impl Journal {
    /// Opens the journal of a place, or makes it, and mends it.
    pub(super) fn open(path: &Path, now_unix_nano: u64) -> Result<Opened, JournalError> {
        let io = |doing| move |source| JournalError::Io { doing, path: path.into(), source };
        let no_file = |kind| JournalError::NoFile { path: path.into(), kind };
        // Whoever wrote it died before it took the place of this one.
        let _ = fs::remove_file(compaction::new_path(path));
        if let Ok(found) = fs::symlink_metadata(path)
            && let Some(kind) = kind_of(&found)
        {
            return Err(no_file(kind));
        }
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(flags.bits() as i32)
            .open(path)
            .map_err(io("open"))?;
        let found = file.metadata().map_err(io("look at"))?;
        if let Some(kind) = kind_of(&found) {
            return Err(no_file(kind));
        }
        let mut length = found.len();
        let mut head = vec![0; length.min(HEADER as u64) as usize];
        file.read_exact_at(&mut head, 0).map_err(io("read"))?;
        // Whoever made it may have died before its header was whole.
        if head.len() < HEADER && header().starts_with(&head) {
            file.set_len(0).and_then(|()| (&file).write_all(&header())).map_err(io("write"))?;
            head = header().to_vec();
            length = HEADER as u64;
        }
        let is_headed = head.len() == HEADER && head.starts_with(MAGIC);
        if !is_headed && !scan::holds_records(&file, length).map_err(io("read"))? {
            return Err(JournalError::Foreign { path: path.into() });
        }
        let version = u32::from_le_bytes(head[8..12].try_into().expect("four of sixteen bytes"));
        if is_headed && version > VERSION {
            return Err(JournalError::Newer { path: path.into(), version });
        }
        let mut scanned = scan::scan(&file, length).map_err(io("read"))?;
        if !is_headed {
            scanned.damages += 1;
            scanned.lost += HEADER as u64;
        }
        let (file, damage) = if scanned.damages == 0 {
            if version < VERSION {
                // From here on it may hold what an older tracer cannot read, and must refuse by name.
                let head = OpenOptions::new().write(true).open(path).map_err(io("open"))?;
                head.write_all_at(&header(), 0).map_err(io("write"))?;
            }
            if scanned.torn > 0 {
                file.set_len(length - scanned.torn).map_err(io("mend"))?;
            }
            (file, None)
        } else {
            let (file, kept) = write_whole(path, &file, &scanned, ("damaged", now_unix_nano)).map_err(io("mend"))?;
            (file, Some(Damage { places: scanned.damages, bytes: scanned.lost, kept }))
        };
        let length = file.metadata().map_err(io("look at"))?.len();
        let mut journal = Journal {
            path: path.into(),
            log: Log::new(Arc::new(file), length),
            space: SpaceAhead::default(),
            kept: length,
            pending: Vec::new(),
            is_suspended: false,
            good: Arc::new(AtomicU64::new(length)),
            compaction: None,
            retry_above: 0,
            has_pruned: false,
            failures: 0,
            is_misplaced: false,
            events: Events::new().map_err(io("watch"))?,
            syncer: None,
        };
        let (next_task, next_job) = (TaskId(scanned.next_task), JobId(scanned.next_job));
        if scanned.torn > 0 && damage.is_none() {
            // What was cut off tells the next head nothing.
            put_next_ids(&mut journal.pending, next_task, next_job);
        }
        Ok(Opened { journal, torn: scanned.torn, damage, next_task, next_job })
    }

    /// Calls with each record that was there when the journal was opened.
    pub(super) fn read(&self, mut take: impl FnMut(Record<'_>)) -> io::Result<()> {
        scan::for_each_record(self.log.file(), self.log.length(), |_, record| {
            take(record);
            Ok(())
        })
    }

    /// Writes submissions. When it fails, none of them is in the journal and none may be acknowledged.
    pub(super) fn submit<'a>(&mut self, submissions: impl Iterator<Item = Submitted<&'a [u8]>>) -> io::Result<()> {
        // What has ended goes first: the file tells what happened in its order.
        let mut bytes = std::mem::take(&mut self.pending);
        let ended = bytes.len();
        submissions.for_each(|submitted| put_submitted(&mut bytes, &submitted));
        let written = self.append(&bytes);
        bytes.truncate(if written.is_err() { ended } else { 0 });
        self.keep_pending(bytes);
        written
    }

    /// Notes that a task has ended. It is written with [`write`](Self::write).
    pub(super) fn ended(&mut self, task: TaskId, attempt: u32, ended: &TaskEnd) {
        if self.is_suspended {
            return;
        }
        put_ended(&mut self.pending, task, attempt, ended);
    }

    /// Notes that an attempt failed after which the task is tried again. It is written with [`write`](Self::write).
    pub(super) fn attempt(&mut self, task: TaskId, attempt: &AttemptReport, span: Option<SpanLink>) {
        if !self.is_suspended {
            put_attempt(&mut self.pending, task, attempt, span);
        }
    }

    /// Notes that an actor is made again, or is dead. It is written with [`write`](Self::write).
    pub(super) fn actor(&mut self, task: TaskId, attempt: u32, restarts: u32, death: Option<&Death>) {
        if !self.is_suspended {
            put_actor(&mut self.pending, task, attempt, restarts, death);
        }
    }

    /// Notes that ended tasks are forgotten. It is written with [`write`](Self::write), and the next compaction leaves them out.
    pub(super) fn pruned(&mut self, tasks: &[TaskId]) {
        if !self.is_suspended {
            put_pruned(&mut self.pending, tasks);
            self.has_pruned = true;
        }
    }

    /// Notes which version of a service is served. It is written with [`write`](Self::write).
    pub(super) fn service_deployed(&mut self, version: u64, deployed_unix_nano: u64, service: &Service) {
        if !self.is_suspended {
            put_service_deployed(&mut self.pending, version, deployed_unix_nano, service);
        }
    }

    /// Notes that a service is not served any more. It is written with [`write`](Self::write).
    pub(super) fn service_shut_down(&mut self, name: &str, unix_nano: u64) {
        if !self.is_suspended {
            put_service_shut_down(&mut self.pending, name, unix_nano);
        }
    }

    /// Writes that an attempt is about to start, and what was noted before it.
    pub(super) fn started(&mut self, task: TaskId, attempt: u32) -> io::Result<()> {
        let before = self.pending.len();
        put_started(&mut self.pending, task, attempt);
        let written = self.write();
        if written.is_err() {
            self.pending.truncate(before);
        }
        written
    }

    /// Writes that tasks go into their queue together, and what was noted before it.
    pub(super) fn bundle(&mut self, first: TaskId, count: u32) -> io::Result<()> {
        let before = self.pending.len();
        put_bundle(&mut self.pending, first, count);
        let written = self.write();
        if written.is_err() {
            self.pending.truncate(before);
        }
        written
    }

    /// Writes what was noted. When it fails, it is kept for the next time.
    pub(super) fn write(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let mut bytes = std::mem::take(&mut self.pending);
        let written = self.append(&bytes);
        if written.is_ok() {
            bytes.clear();
        }
        self.keep_pending(bytes);
        written
    }

    /// Keeps the buffer for the records that come next, unless a large batch has made it large.
    fn keep_pending(&mut self, bytes: Vec<u8>) {
        if !bytes.is_empty() || bytes.capacity() <= PENDING_BYTES {
            self.pending = bytes;
        }
    }

    /// Writes nothing from now on, and forgets what was noted and not written.
    pub(super) fn suspend(&mut self) {
        self.pending.clear();
        self.is_suspended = true;
    }

    /// Returns whether most of the file is about tasks that nobody remembers, some were pruned, or it cannot be trusted, and no compaction is under way. The
    /// envelopes of tasks that have not ended take so many bytes, which are to be kept.
    pub(super) fn needs_compaction(&self, open_bytes: u64) -> bool {
        let least = fault::setting("compaction_bytes").unwrap_or(COMPACTION_BYTES);
        let least = if open_bytes > 0 { OPEN_FACTOR * least } else { least };
        let length = self.log.length();
        let is_long = length > least && length > 4 * self.kept.max(open_bytes) && length >= self.retry_above;
        let is_wanted = is_long || self.has_pruned || self.needs_new_file();
        is_wanted && self.compaction.is_none() && !self.is_suspended
    }

    /// Returns whether its file cannot be trusted, or not be appended to, or has lost its name.
    fn needs_new_file(&self) -> bool {
        self.log.needs_new_file() || self.is_misplaced
    }

    /// Begins to write what is worth keeping to a new file, on a thread of its own.
    pub(super) fn begin_compaction(&mut self) -> io::Result<()> {
        self.retry_above = 0;
        // One that fails leaves it to the next.
        self.has_pruned = false;
        let (path, good, tell) = (self.path.clone(), Arc::clone(&self.good), self.events.teller());
        let old = Arc::clone(self.log.file());
        let pause = match self.failures {
            0 if !self.log.needs_new_file() => Duration::ZERO,
            failures => ANEW_PAUSE.saturating_mul(1 << failures.min(6)).min(ANEW_PAUSE_LIMIT),
        };
        let run = move || {
            std::thread::sleep(pause);
            tell(Event::Compacted(compaction::compact(&path, &old, &good)));
        };
        std::thread::Builder::new().name("tracer-journal".into()).spawn(run)?;
        self.compaction = Some(Compaction::Compacting);
        Ok(())
    }

    /// Writes what is worth keeping to a new file, and waits for it. Returns what is to be said of it.
    pub(super) fn compact_now(&mut self) -> io::Result<Vec<String>> {
        let mut said = Vec::new();
        if self.compaction.is_none() {
            self.begin_compaction()?;
        }
        while self.compaction.is_some() {
            poll(&mut [PollFd::new(&self.watched(), PollFlags::IN)], None)?;
            said.append(&mut self.on_told());
        }
        Ok(said)
    }

    /// Readable when a thread has told something: then [`on_told`](Self::on_told).
    pub(super) fn watched(&self) -> BorrowedFd<'_> {
        self.events.watched()
    }

    /// Takes in what threads have told. Returns what is to be said of it.
    pub(super) fn on_told(&mut self) -> Vec<String> {
        let mut said = Vec::new();
        for event in self.events.take() {
            let done = match event {
                Event::Compacted(compacted) => compacted.and_then(|compacted| self.commit(compacted)),
                Event::Committed(committed) => committed.map(|is_durable| self.finish_compaction(is_durable)),
                Event::Synced(synced) => {
                    self.on_synced(synced, &mut said);
                    continue;
                }
            };
            if let Err(error) = done {
                said.push(format!("the journal cannot be compacted: {error}"));
                self.compaction = None;
                self.log.abandon_change();
                let _ = fs::remove_file(compaction::new_path(&self.path));
                // One that is for want of a file to be trusted is tried again and again.
                self.retry_above = self.log.length() + COMPACTION_BYTES;
                self.failures = self.failures.saturating_add(1);
            }
        }
        said
    }

    /// Gives the new file what is missing, and from now on everything, while a thread puts it in the place of the old one.
    fn commit(&mut self, compacted: Compacted) -> io::Result<()> {
        let Compacted { mut file, mut length, copied_to } = compacted;
        compaction::copy(self.log.file(), copied_to, self.log.length(), &mut file)?;
        length += self.log.length() - copied_to;
        let file = Arc::new(file);
        let (path, is_synced, tell) = (self.path.clone(), self.syncer.is_some(), self.events.teller());
        let (old, new) = (Arc::clone(self.log.file()), Arc::clone(&file));
        let run = move || tell(Event::Committed(take_place(&path, &old, &new, is_synced)));
        std::thread::Builder::new().name("tracer-journal".into()).spawn(run)?;
        self.log.begin_change(file, length);
        self.compaction = Some(Compaction::Committing);
        Ok(())
    }

    fn finish_compaction(&mut self, is_durable: bool) {
        self.compaction = None;
        self.log.end_change(is_durable);
        self.space = SpaceAhead::default();
        self.kept = self.log.length();
        self.good.store(self.log.length(), Release);
        self.is_misplaced = false;
        self.failures = if self.needs_new_file() { self.failures.saturating_add(1) } else { 0 };
        self.sync();
    }

    fn on_synced(&mut self, synced: io::Result<u64>, said: &mut Vec<String>) {
        if self.log.on_synced(&synced)
            && let Err(error) = synced
        {
            said.push(format!("the journal cannot be synced, so nothing is acknowledged until it is: {error}"));
        }
    }

    /// Returns whether the name of the journal leads to its file. If it does not, all that is known is written to a new file under that name.
    pub(super) fn check_place(&mut self) -> bool {
        // While a new file takes the place, the name may lead to either.
        if self.compaction.is_none() {
            self.is_misplaced = !leads_to(&self.path, self.log.file());
        }
        !self.is_misplaced
    }

    /// Returns whether its file is shorter than what was written to it: somebody has cut it.
    pub(super) fn is_cut_short(&self) -> bool {
        let length = self.log.file().metadata().map_or(u64::MAX, |metadata| metadata.len());
        self.compaction.is_none() && length < self.log.length()
    }

    /// Begins to bring to the disk what was written, if that is wanted at all.
    pub(super) fn sync(&mut self) {
        let Some(syncer) = &self.syncer else { return };
        if let Some((files, position)) = self.log.want_sync() {
            syncer.want(files, position);
        }
    }

    /// Brings everything to the disk, and waits for it.
    pub(super) fn sync_now(&mut self) -> io::Result<()> {
        self.log.sync_now()
    }

    /// Syncs from now on.
    pub(super) fn start_syncing(&mut self) -> io::Result<()> {
        self.syncer = Some(Syncer::start(File::sync_data, self.events.teller())?);
        // What is there already, the name of the file included.
        self.log.file().sync_all()?;
        sync_folder(&self.path)
    }

    /// Returns whether the journal is synced.
    pub(super) fn is_syncing(&self) -> bool {
        self.syncer.is_some()
    }

    /// Returns whether it cannot be synced.
    pub(super) fn has_sync_failed(&self) -> bool {
        self.log.has_sync_failed()
    }

    /// Returns how much was written since it was opened, in bytes.
    pub(super) fn written(&self) -> u64 {
        self.log.written()
    }

    /// Returns how much of that is on the disk.
    pub(super) fn synced(&self) -> u64 {
        self.log.synced()
    }

    /// Appends whole records, or nothing.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.space.take(&**self.log.file(), self.log.length(), bytes.len());
        self.log.append(bytes)?;
        self.good.store(self.log.length(), Release);
        Ok(())
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.space.give_back(&**self.log.file(), self.log.length());
    }
}

/// Puts the journal at a path aside and begins a new one, which gives out no id twice. None if there are no tasks in it.
///
/// # Errors
///
/// Some of the tasks have not ended, or an actor lives, and they are not to be discarded.
pub(super) fn put_aside(
    path: &Path,
    discards_unfinished: bool,
    now_unix_nano: u64,
) -> Result<Option<tracer_ipc::start_report::PutAside>, JournalError> {
    let io = |doing| move |source| JournalError::Io { doing, path: path.into(), source };
    let Opened { journal, next_task, next_job, .. } = Journal::open(path, now_unix_nano)?;
    let found = Found::read(&journal).map_err(io("read"))?;
    if found.tasks.is_empty() && !found.has_services {
        return Ok(None);
    }
    let unfinished = found.open.len() + found.living.len();
    if unfinished > 0 && !discards_unfinished {
        return Err(JournalError::Unfinished { tasks: found.open.len(), actors: found.living.len() });
    }
    let nothing = Scanned { next_task: next_task.0, next_job: next_job.0, ..Scanned::default() };
    let (_, kept) = write_whole(path, journal.log.file(), &nothing, ("old", now_unix_nano)).map_err(io("put aside"))?;
    Ok(Some(tracer_ipc::start_report::PutAside { tasks: found.tasks.len(), unfinished, journal: kept }))
}

/// The tasks that a journal holds.
#[derive(Debug, Default)]
struct Found {
    tasks: HashSet<TaskId>,
    /// Tasks that have not ended.
    open: HashSet<TaskId>,
    /// Tasks that have made an actor which is not dead.
    living: HashSet<TaskId>,
    /// True if it names services.
    has_services: bool,
}

impl Found {
    fn read(journal: &Journal) -> io::Result<Found> {
        let mut found = Found::default();
        let mut creations = HashSet::new();
        journal.read(|record| match record {
            Record::Submitted(Submitted { task, envelope, .. }) => {
                found.tasks.insert(task);
                found.open.insert(task);
                let is_creation = |envelope: Envelope<'_>| matches!(envelope.spec.actor(), ActorRole::Create(_));
                if Envelope::decode(&envelope).is_ok_and(is_creation) {
                    creations.insert(task);
                }
            }
            Record::Remembered(task, _) => drop(found.tasks.insert(task)),
            Record::Ended(record) => {
                found.open.remove(&record.task);
                let is_made = !matches!(record.ended.outcome, Outcome::Failed(_));
                if creations.contains(&record.task) && is_made {
                    found.living.insert(record.task);
                }
            }
            Record::Actor { task, death: Some(_), .. } => drop(found.living.remove(&task)),
            Record::Pruned(tasks) => found.tasks.retain(|task| !tasks.contains(task)),
            Record::Actor { .. }
            | Record::Attempt { .. }
            | Record::Started { .. }
            | Record::Bundle { .. }
            | Record::Key { .. }
            | Record::ServiceShutDown(_)
            | Record::NextIds { .. } => {}
            Record::ServiceDeployed(_) => found.has_services = true,
        })?;
        Ok(found)
    }
}

/// Puts a new file in the place of the journal. What is there and is not the journal is kept beside it.
fn take_place(path: &Path, old: &File, new: &File, is_synced: bool) -> io::Result<bool> {
    if is_synced {
        new.sync_data()?;
    }
    fault::point("committing");
    if fs::symlink_metadata(path).is_ok() && !leads_to(path, old) {
        fs::rename(path, free_name(path, "replaced", tracer_core::clock::now_unix_nano()))?;
    }
    fs::rename(compaction::new_path(path), path)?;
    fault::point("committed");
    Ok(!is_synced || sync_folder(path).is_ok())
}

/// Returns whether a path is the name of an open file.
fn leads_to(path: &Path, file: &File) -> bool {
    let id = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    fs::symlink_metadata(path).map(id).ok().is_some_and(|found| file.metadata().map(id).ok() == Some(found))
}

/// Writes the parts of a journal that are to stay to a new file in its place, and keeps the old one under another name, which is returned. What it
/// is called by and the time are in that name.
fn write_whole(
    path: &Path,
    old: &File,
    scanned: &Scanned,
    (what, now_unix_nano): (&str, u64),
) -> io::Result<(File, PathBuf)> {
    let new = compaction::create_new(path)?;
    let mut out = io::BufWriter::with_capacity(256 << 10, &new);
    out.write_all(&header())?;
    for part in &scanned.parts {
        compaction::copy(old, part.start, part.end, &mut out)?;
    }
    let mut ids = Vec::new();
    put_next_ids(&mut ids, TaskId(scanned.next_task), JobId(scanned.next_job));
    out.write_all(&ids)?;
    out.flush()?;
    drop(out);
    new.sync_data()?;
    let kept = free_name(path, what, now_unix_nano);
    // At no moment is there no journal.
    if fs::hard_link(path, &kept).is_err() {
        fs::copy(path, &kept)?;
    }
    fs::rename(compaction::new_path(path), path)?;
    // Without it an older one is found after a loss of power, which is no worse than before.
    let _ = sync_folder(path);
    Ok((new, kept))
}

/// Returns a name beside the journal that nothing has.
fn free_name(path: &Path, what: &str, now_unix_nano: u64) -> PathBuf {
    let time: String = tracer_core::clock::utc(now_unix_nano).to_string().replace(['-', ':'], "");
    let name = |number: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{what}-{time}"));
        if number > 1 {
            name.push(format!("-{number}"));
        }
        PathBuf::from(name)
    };
    (1..).map(name).find(|name| fs::symlink_metadata(name).is_err()).expect("there are not as many files")
}

/// Returns what a path leads to that is no regular file.
fn kind_of(found: &fs::Metadata) -> Option<&'static str> {
    let kind = found.file_type();
    Some(match () {
        () if kind.is_file() => return None,
        () if kind.is_dir() => "a folder",
        () if kind.is_symlink() => "a symbolic link",
        () if kind.is_fifo() => "a named pipe",
        () if kind.is_socket() => "a socket",
        () if kind.is_block_device() || kind.is_char_device() => "a device",
        () => "no file",
    })
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

fn header() -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header
}

/// Appends a submission.
pub(super) fn put_submitted(out: &mut Vec<u8>, submitted: &Submitted<&[u8]>) {
    put_record(out, SUBMITTED, |out| {
        out.put_u64(submitted.task.0);
        out.put_u64(submitted.job.0);
        out.put_u64(submitted.submitted_unix_nano);
        out.put_exact(submitted.envelope);
    });
}

/// Appends the end of a task.
pub(super) fn put_ended(out: &mut Vec<u8>, task: TaskId, attempt: u32, ended: &TaskEnd) {
    put_record(out, ENDED, |out| {
        out.put_u64(task.0);
        out.put_u32(attempt);
        out.put_u64(ended.worker.map_or(0, |worker| worker.0));
        out.put_u32(ended.worker_pid.unwrap_or(0));
        out.put_u64(ended.started_unix_nano.unwrap_or(0));
        out.put_u64(ended.ended_unix_nano);
        ended.outcome.encode(out);
    });
}

/// Appends what is left of a task that has ended; its end follows.
pub(super) fn put_remembered(out: &mut Vec<u8>, task: TaskId, remembered: &PastTask<'_>) {
    put_record(out, REMEMBERED, |out| {
        out.put_u64(task.0);
        out.put_u64(remembered.job.0);
        out.put_u64(remembered.submitted_unix_nano);
        out.put_exact(&remembered.trace_id);
        out.put_str(remembered.target);
        out.put_str(remembered.name);
    });
}

/// Appends an attempt that failed and was not the last.
pub(super) fn put_attempt(out: &mut Vec<u8>, task: TaskId, attempt: &AttemptReport, span: Option<SpanLink>) {
    put_record(out, ATTEMPT, |out| {
        out.put_u64(task.0);
        SpanLink::put_option(span.as_ref(), out);
        out.put_bytes(&rmp_serde::to_vec_named(attempt).expect("an attempt is plain data"));
    });
}

/// Appends that an attempt is about to start.
pub(super) fn put_started(out: &mut Vec<u8>, task: TaskId, attempt: u32) {
    put_record(out, STARTED, |out| {
        out.put_u64(task.0);
        out.put_u32(attempt);
    });
}

/// Appends which tasks go into their queue together.
pub(super) fn put_bundle(out: &mut Vec<u8>, first: TaskId, count: u32) {
    put_record(out, BUNDLE, |out| {
        out.put_u64(first.0);
        out.put_u32(count);
    });
}

/// Appends the idempotency key of a task that is in the journal.
pub(super) fn put_key(out: &mut Vec<u8>, task: TaskId, fingerprint: u64, key: &str) {
    put_record(out, KEY, |out| {
        out.put_u64(task.0);
        out.put_u64(fingerprint);
        out.put_str(key);
    });
}

/// Appends where an actor is in its life.
pub(super) fn put_actor(out: &mut Vec<u8>, task: TaskId, attempt: u32, restarts: u32, death: Option<&Death>) {
    put_record(out, ACTOR, |out| {
        out.put_u64(task.0);
        out.put_u32(attempt);
        out.put_u32(restarts);
        out.put_u8(death.is_some().into());
        if let Some(death) = death {
            out.put_str(&death.cause);
            out.put_str(&death.error_type);
        }
    });
}

/// Appends which ended tasks are forgotten.
pub(super) fn put_pruned(out: &mut Vec<u8>, tasks: &[TaskId]) {
    put_record(out, PRUNED, |out| tasks.iter().for_each(|task| out.put_u64(task.0)));
}

/// Appends which version of a service is served.
pub(super) fn put_service_deployed(out: &mut Vec<u8>, version: u64, deployed_unix_nano: u64, service: &Service) {
    put_record(out, SERVICE_DEPLOYED, |out| {
        out.put_str(&service.name);
        out.put_u64(version);
        out.put_u64(deployed_unix_nano);
        out.put_bytes(&rmp_serde::to_vec_named(service).expect("a service is plain data"));
    });
}

/// Appends that a service is not served any more.
pub(super) fn put_service_shut_down(out: &mut Vec<u8>, name: &str, unix_nano: u64) {
    put_record(out, SERVICE_SHUT_DOWN, |out| {
        out.put_u64(unix_nano);
        out.put_str(name);
    });
}

/// Appends which ids come next.
pub(super) fn put_next_ids(out: &mut Vec<u8>, task: TaskId, job: JobId) {
    put_record(out, NEXT_IDS, |out| {
        out.put_u64(task.0);
        out.put_u64(job.0);
    });
}

fn put_record(out: &mut Vec<u8>, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; RECORD_HEADER]);
    out.push(kind);
    body(out);
    let length = u32::try_from(out.len() - start - RECORD_HEADER).expect("frames are limited to less than 4 GiB");
    let checksum = crc32fast::hash(&out[start + RECORD_HEADER..]);
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    out[start + 4..start + RECORD_HEADER].copy_from_slice(&checksum.to_le_bytes());
}

fn read_record(bytes: &[u8]) -> Result<Record<'_>, WireError> {
    let mut take = Take::new(bytes);
    match take.u8()? {
        kind @ (SUBMITTED | SUBMITTED_OLDER) => {
            let (task, job, submitted_unix_nano) = (TaskId(take.u64()?), JobId(take.u64()?), take.u64()?);
            let envelope = match kind {
                SUBMITTED => Cow::Borrowed(&bytes[25..]),
                // One that cannot be read is as good as none, which is told where it is needed.
                _ => Cow::Owned(Envelope::renew(&bytes[25..]).unwrap_or_default()),
            };
            Ok(Record::Submitted(Submitted { task, job, submitted_unix_nano, envelope }))
        }
        ENDED => {
            let (task, attempt) = (TaskId(take.u64()?), take.u32()?);
            let worker = Some(take.u64()?).filter(|&worker| worker != 0).map(WorkerId);
            let worker_pid = Some(take.u32()?).filter(|&pid| pid != 0);
            let started_unix_nano = Some(take.u64()?).filter(|&time| time != 0);
            let ended_unix_nano = take.u64()?;
            let outcome = Outcome::take(&mut take)?;
            take.finish()?;
            let ended = TaskEnd { outcome, worker, worker_pid, started_unix_nano, ended_unix_nano };
            Ok(Record::Ended(Box::new(EndedRecord { task, attempt, ended })))
        }
        REMEMBERED => {
            let task = TaskId(take.u64()?);
            let remembered = PastTask {
                job: JobId(take.u64()?),
                submitted_unix_nano: take.u64()?,
                trace_id: take.array()?,
                target: take.str()?,
                name: take.str()?,
            };
            take.finish()?;
            Ok(Record::Remembered(task, remembered))
        }
        ATTEMPT => {
            let task = TaskId(take.u64()?);
            let span = SpanLink::take_option(&mut take)?;
            let attempt =
                value::plain_from_bytes(take.bytes()?).map(Box::new).ok_or(WireError::UnknownValue("attempt"))?;
            take.finish()?;
            Ok(Record::Attempt { task, attempt, span })
        }
        STARTED => {
            let record = Record::Started { task: TaskId(take.u64()?), attempt: take.u32()? };
            take.finish()?;
            Ok(record)
        }
        BUNDLE => {
            let record = Record::Bundle { first: TaskId(take.u64()?), count: take.u32()? };
            take.finish()?;
            Ok(record)
        }
        KEY => {
            let record = Record::Key { task: TaskId(take.u64()?), fingerprint: take.u64()?, key: take.str()? };
            take.finish()?;
            Ok(record)
        }
        ACTOR => {
            let (task, attempt, restarts) = (TaskId(take.u64()?), take.u32()?, take.u32()?);
            let death = match take.u8()? {
                0 => None,
                _ => Some(Death { cause: take.str()?.into(), error_type: take.str()?.into() }),
            };
            take.finish()?;
            Ok(Record::Actor { task, attempt, restarts, death })
        }
        PRUNED => {
            let mut tasks = Vec::with_capacity(bytes.len() / 8);
            while !take.is_empty() {
                tasks.push(TaskId(take.u64()?));
            }
            Ok(Record::Pruned(tasks))
        }
        SERVICE_DEPLOYED => {
            let (name, version, deployed_unix_nano) = (take.str()?, take.u64()?, take.u64()?);
            let service = value::plain_from_bytes(take.bytes()?);
            take.finish()?;
            Ok(Record::ServiceDeployed(Box::new(DeployedRecord { name, version, deployed_unix_nano, service })))
        }
        SERVICE_SHUT_DOWN => {
            // When.
            take.u64()?;
            let record = Record::ServiceShutDown(take.str()?);
            take.finish()?;
            Ok(record)
        }
        NEXT_IDS => {
            let record = Record::NextIds { task: TaskId(take.u64()?), job: JobId(take.u64()?) };
            take.finish()?;
            Ok(record)
        }
        _ => Err(WireError::UnknownValue("journal record")),
    }
}

#[cfg(test)]
mod tests {
    use tracer_core::task::{ActorOptions, ActorRole};
    use tracer_reactor::deployments::VERSION_LIMIT;
    use tracer_reactor::state::{Settings, State};

    use super::*;

    const NOW: u64 = 1_764_000_000_123_000_000;

    fn open(path: &Path) -> Opened {
        Journal::open(path, NOW).unwrap()
    }

    /// Returns the records of a journal's bytes up to the first that is not whole, header included.
    fn read_records(bytes: &[u8]) -> impl Iterator<Item = Record<'_>> {
        let mut rest = bytes.get(HEADER..).unwrap_or_default();
        std::iter::from_fn(move || {
            let length = u32::from_le_bytes(rest.get(..4)?.try_into().ok()?) as usize;
            let body = rest.get(RECORD_HEADER..)?.get(..length)?;
            let is_whole = crc32fast::hash(body).to_le_bytes() == rest[4..RECORD_HEADER];
            rest = &rest[RECORD_HEADER + length..];
            read_record(body).ok().filter(|_| is_whole)
        })
    }

    fn ended(outcome: Outcome) -> TaskEnd {
        let worker = Some(WorkerId(3));
        TaskEnd { outcome, worker, worker_pid: Some(77), started_unix_nano: Some(5), ended_unix_nano: 9 }
    }

    fn submitted(task: u64) -> Submitted<&'static [u8]> {
        Submitted { task: TaskId(task), job: JobId(2), submitted_unix_nano: 4, envelope: b"what to run" }
    }

    /// Three submissions, two of which have ended.
    fn sample(path: &Path) -> Vec<u8> {
        let mut journal = open(path).journal;
        journal.submit([submitted(1), submitted(2)].into_iter()).unwrap();
        journal.ended(TaskId(1), 1, &ended(Outcome::Returned(vec![1])));
        journal.submit([submitted(3)].into_iter()).unwrap();
        journal.ended(TaskId(3), 0, &ended(Outcome::Failed(tracer_core::task::Failure::Cancelled)));
        journal.write().unwrap();
        fs::read(path).unwrap()
    }

    fn told(bytes: &[u8]) -> Vec<String> {
        read_records(bytes)
            .map(|record| match record {
                Record::Submitted(record) => format!("submitted {}", record.task),
                Record::Ended(record) => format!("ended {}", record.task),
                Record::Remembered(task, _) => format!("remembered {task}"),
                Record::Attempt { task, attempt, .. } => format!("attempt {} at {task}", attempt.number),
                Record::Started { task, attempt } => format!("started {task} for the {attempt}. time"),
                Record::Bundle { first, count } => format!("{count} together from {first} on"),
                Record::Key { task, key, .. } => format!("key {key} of {task}"),
                Record::Actor { task, attempt, restarts, death } => {
                    let cause = death.map(|death| format!(": {} ({})", death.cause, death.error_type));
                    format!("actor {task}, attempt {attempt}, restart {restarts}{}", cause.unwrap_or_default())
                }
                Record::Pruned(tasks) => format!("pruned {tasks:?}"),
                Record::ServiceDeployed(record) => format!("version {} of {}", record.version, record.name),
                Record::ServiceShutDown(name) => format!("{name} shut down"),
                Record::NextIds { task, job } => format!("next {task} {job}"),
            })
            .collect()
    }

    #[test]
    fn a_long_journal_has_no_more_space_than_it_fills_once_it_is_closed_and_goes_on_after_that() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let envelope = [7; 1_000];
        for opened in 1..=2 {
            let Opened { mut journal, torn, .. } = open(&path);
            let bytes = fs::read(&path).unwrap();
            assert_eq!((torn, read_records(&bytes).count()), (0, (opened - 1) * 500));
            for task in 0..500 {
                journal.submit([Submitted { envelope: &envelope[..], ..submitted(task) }].into_iter()).unwrap();
            }
            let length = journal.log.length();
            drop(journal);
            let found = fs::metadata(&path).unwrap();
            assert_eq!(found.len(), length);
            let blocks = std::os::unix::fs::MetadataExt::blocks(&found);
            assert!(blocks * 512 <= length.next_multiple_of(64 << 10), "{blocks} blocks for {length} bytes");
        }
    }

    const STORY: [&str; 5] = ["submitted 1", "submitted 2", "ended 1", "submitted 3", "ended 3"];

    #[test]
    fn a_journal_tells_what_happened_in_its_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.journal");
        let bytes = sample(&path);
        assert_eq!(told(&bytes), STORY);
        let Some(Record::Submitted(first)) = read_records(&bytes).next() else { panic!("a submission") };
        assert_eq!((first.task, &*first.envelope), (TaskId(1), submitted(1).envelope));
        let Some(Record::Ended(record)) = read_records(&bytes).nth(2) else { panic!("an end") };
        assert_eq!((record.task, record.attempt), (TaskId(1), 1));
        assert_eq!(record.ended.outcome, Outcome::Returned(vec![1]));
        let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_journal_cut_anywhere_is_good_up_to_the_last_whole_record_and_goes_on_from_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.journal");
        let whole = sample(&path);
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            let opened = open(&path);
            let bytes = fs::read(&path).unwrap();
            let before = told(&bytes);
            assert_eq!(before, STORY[..before.len()], "cut at {length}");
            assert_eq!(bytes.len() as u64 + opened.torn, length.max(HEADER) as u64);
            assert!(opened.damage.is_none(), "it is no damage");
            let mut journal = opened.journal;
            journal.submit([submitted(9)].into_iter()).unwrap();
            let mut after = told(&fs::read(&path).unwrap());
            after.retain(|line| !line.starts_with("next "));
            assert_eq!((after.len(), after.last().unwrap().as_str()), (before.len() + 1, "submitted 9"));
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is kept of it");
        }
    }

    #[test]
    fn a_journal_tells_of_actors_that_begin_again_and_die() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.journal");
        let mut journal = open(&path).journal;
        journal.actor(TaskId(7), 2, 1, None);
        let death = Death { cause: "it was cancelled".into(), error_type: "cancelled".into() };
        journal.actor(TaskId(7), 3, 2, Some(&death));
        journal.write().unwrap();
        let told = told(&fs::read(&path).unwrap());
        assert_eq!(
            told,
            ["actor 7, attempt 2, restart 1", "actor 7, attempt 3, restart 2: it was cancelled (cancelled)"]
        );
    }

    /// Returns the journal as it was found, kept beside the one that is there now.
    fn kept(folder: &Path) -> Vec<PathBuf> {
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        names.filter(|path| path.to_string_lossy().contains(".damaged-")).collect()
    }

    #[test]
    fn a_bit_that_is_wrong_costs_one_record_and_the_damaged_journal_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.journal");
        let whole = sample(&path);
        for place in 0..whole.len() {
            // The version is no matter of damage.
            if (8..HEADER).contains(&place) {
                continue;
            }
            let mut damaged = whole.clone();
            damaged[place] ^= 0x10;
            fs::write(&path, &damaged).unwrap();
            let opened = open(&path);
            let mut found = told(&fs::read(&path).unwrap());
            found.retain(|line| !line.starts_with("next "));
            let lost = usize::from(place >= HEADER);
            let mut expected = STORY.to_vec();
            expected.retain(|line| found.iter().any(|found| found == line));
            assert_eq!(
                (found.len(), &found),
                (STORY.len() - lost, &expected.into_iter().map(String::from).collect()),
                "{place}"
            );
            assert!(opened.next_task.0 > 3 && opened.next_job.0 > 2, "{place}: {}", opened.next_task);
            // A length that goes beyond the end is what a torn record has.
            let Some(damage) = opened.damage else {
                assert!(opened.torn > 0 && found.len() == STORY.len() - 1, "{place}");
                continue;
            };
            assert_eq!(kept(folder.path()), std::slice::from_ref(&damage.kept));
            assert_eq!(fs::read(&damage.kept).unwrap(), damaged);
            let name = damage.kept.file_name().unwrap().to_str().unwrap();
            assert_eq!(name, "tasks.journal.damaged-20251124T160000.123Z");
            // It is whole from now on.
            drop(opened.journal);
            let again = open(&path);
            assert!(again.damage.is_none() && again.torn == 0);
            assert!(again.next_task >= opened.next_task);
            fs::remove_file(damage.kept).unwrap();
        }
    }

    #[test]
    fn a_record_of_any_kind_right_behind_damage_is_read() {
        let service = tracer_settings::service_file::parse(
            "name = \"orders\"\n[[applications]]\nimport_path = \"shop:app\"",
            Path::new("/"),
        )
        .unwrap();
        let attempt = ended(Outcome::Completed).attempt_report(1).unwrap();
        let death = Death { cause: "it was killed".into(), error_type: "signal:9".into() };
        let past = PastTask { job: JobId(1), submitted_unix_nano: 1, trace_id: [1; 16], target: "m:f", name: "" };
        let record = |put: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = Vec::new();
            put(&mut bytes);
            bytes
        };
        let records = [
            record(&|out| put_submitted(out, &submitted(1))),
            record(&|out| put_ended(out, TaskId(1), 1, &ended(Outcome::Completed))),
            record(&|out| put_remembered(out, TaskId(1), &past)),
            record(&|out| put_attempt(out, TaskId(1), &attempt, None)),
            record(&|out| put_started(out, TaskId(1), 1)),
            record(&|out| put_bundle(out, TaskId(1), 2)),
            record(&|out| put_key(out, TaskId(1), 3, "k")),
            record(&|out| put_actor(out, TaskId(1), 1, 0, Some(&death))),
            record(&|out| put_pruned(out, &[TaskId(1)])),
            record(&|out| put_service_deployed(out, 1, u64::MAX, &service)),
            record(&|out| put_service_shut_down(out, "orders", u64::MAX)),
            record(&|out| put_next_ids(out, TaskId(1), JobId(1))),
        ];
        let folder = tempfile::tempdir().unwrap();
        for record in records {
            let expected = told(&[&header()[..], &record].concat());
            assert_eq!(expected.len(), 1);
            let bytes = [&header()[..], &[0xa5; 40], &record].concat();
            let (found, opened) = opened_with(&folder.path().join("tasks.journal"), &bytes);
            assert!(opened.damage.is_some());
            // Which ids come next is said anew.
            assert!(found == expected || expected[0].starts_with("next "), "{expected:?} of {found:?}");
        }
    }

    #[test]
    fn damage_of_each_kind_is_told_and_what_is_behind_it_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.journal");
        let mut journal = open(&path).journal;
        let envelope = [7; 300];
        for task in 1..=100 {
            journal.submit([Submitted { envelope: &envelope[..], ..submitted(task) }].into_iter()).unwrap();
        }
        drop(journal);
        let whole = fs::read(&path).unwrap();
        let mut records = Vec::new();
        let mut unknown = Vec::new();
        put_record(&mut unknown, 99, |out| out.put_exact(&[5; 40]));
        let mut huge = Vec::new();
        put_submitted(&mut huge, &Submitted { envelope: &envelope[..], ..submitted(u64::MAX - 1) });
        let mut far = Vec::new();
        put_submitted(&mut far, &Submitted { envelope: &envelope[..], ..submitted(1 << 40) });
        let size = (whole.len() - HEADER) / 100;
        let at = |task: usize| HEADER + (task - 1) * size;
        let with = |range: std::ops::Range<usize>, bytes: &[u8]| {
            let mut damaged = whole.clone();
            damaged.splice(range, bytes.iter().copied());
            damaged
        };
        // Zeroes over some records, lengths that lead to another record, lengths that are very large, foreign records, holes.
        records.push((with(at(20) + 5..at(30) + 5, &vec![0; 10 * size]), 20..=30));
        records.push((with(at(7)..at(7) + 4, &((2 * size - RECORD_HEADER) as u32).to_le_bytes()), 7..=7));
        records.push((with(at(7)..at(7) + 4, &u32::MAX.to_le_bytes()), 7..=7));
        records.push((with(at(7)..at(7) + 4, &0_u32.to_le_bytes()), 7..=7));
        #[expect(clippy::reversed_empty_ranges, reason = "none is lost")]
        records.push((with(at(50)..at(50), &unknown), 1..=0));
        #[expect(clippy::reversed_empty_ranges, reason = "none is lost")]
        records.push((with(at(50)..at(50), &huge), 1..=0));
        #[expect(clippy::reversed_empty_ranges, reason = "none is lost")]
        records.push((with(at(50)..at(50), &far), 1..=0));
        #[expect(clippy::reversed_empty_ranges, reason = "none is lost")]
        records.push((with(whole.len()..whole.len(), &far), 1..=0));
        records.push((with(at(60) + 1..at(61) + 7, &[]), 60..=61));
        for (number, (damaged, lost)) in records.into_iter().enumerate() {
            fs::write(&path, &damaged).unwrap();
            let opened = open(&path);
            let expected: Vec<_> =
                (1..=100).filter(|task| !lost.contains(task)).map(|task| format!("submitted {task}")).collect();
            let mut found = Vec::new();
            let bytes = fs::read(&path).unwrap();
            found.extend(told(&bytes).into_iter().filter(|line| !line.starts_with("next ")));
            assert_eq!(found, expected, "{number}");
            let mut read = 0;
            opened.journal.read(|_| read += 1).unwrap();
            assert_eq!(read, expected.len() + 1, "{number}");
            let damage = opened.damage.unwrap();
            assert_eq!(damage.places, 1, "{number}");
            assert!((101..1000).contains(&opened.next_task.0), "{number}: {}", opened.next_task);
            fs::remove_file(damage.kept).unwrap();
        }
    }

    #[test]
    fn ids_that_follow_a_jump_are_taken_and_one_alone_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.journal");
        let after = |tasks: &[u64]| {
            let mut bytes = header().to_vec();
            tasks.iter().for_each(|&task| put_submitted(&mut bytes, &submitted(task)));
            fs::write(&path, &bytes).unwrap();
            let opened = open(&path);
            let found: Vec<_> = told(&fs::read(&path).unwrap());
            (found.iter().filter(|line| line.starts_with("submitted")).count(), opened.damage.is_some())
        };
        // Billions of tasks were forgotten between an actor that lives on and those that are remembered.
        assert_eq!(after(&[1, 1 << 40, (1 << 40) + 1, (1 << 40) + 9]), (4, false));
        assert_eq!(after(&[1 << 40, (1 << 40) + 1]), (2, false));
        assert_eq!(after(&[1, 1 << 40, 2, 3]), (3, true));
        assert_eq!(after(&[1, 2, 3, 1 << 40]), (3, true));
        assert_eq!(after(&[1, 2, 3, 1 << 60]), (3, true));
    }

    /// Finding the next record takes time in proportion to what is searched: arguments may look like many beginnings of records.
    #[test]
    fn reading_goes_on_behind_what_looks_like_many_long_records() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.journal");
        const LENGTH: usize = 2 << 20;
        // A length of 1 MiB, a checksum, a kind and an id, again and again.
        let mut look = Vec::from(((1_u32 << 20) + 7).to_le_bytes());
        look.extend_from_slice(&[1, 2, 3, 4, SUBMITTED, 9, 0, 0, 0, 0, 0, 0, 0, 0, 5, 5]);
        look.resize(32, 0);
        let envelope: Vec<u8> = look.iter().copied().cycle().take(LENGTH).collect();
        let mut journal = open(&path).journal;
        journal.submit([Submitted { envelope: &envelope[..], ..submitted(1) }, submitted(2)].into_iter()).unwrap();
        drop(journal);
        let mut bytes = fs::read(&path).unwrap();
        bytes[HEADER + 4] ^= 1;
        fs::write(&path, &bytes).unwrap();
        // Each of 32,768 candidates as a whole would be 32 GiB of checksums.
        assert!(open(&path).damage.is_some());
        assert_eq!(told(&fs::read(&path).unwrap())[0], "submitted 2");
    }

    #[test]
    fn a_newer_journal_and_what_is_no_journal_are_refused_by_name_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.journal");
        let mut newer = sample(&path);
        newer[8] = VERSION as u8 + 1;
        for (bytes, expected) in [
            (newer.as_slice(), "has version 6, but this tracer reads up to 5"),
            (b"shopping list: milk, eggs, bread", "is not a journal of tracer"),
        ] {
            fs::write(&path, bytes).unwrap();
            let Err(error) = Journal::open(&path, NOW) else { panic!("it was taken") };
            assert!(error.to_string().contains(expected), "{error}");
            assert_eq!(fs::read(&path).unwrap(), bytes);
        }
    }

    #[test]
    fn an_older_journal_is_read_and_is_one_of_this_version_from_then_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.journal");
        let mut older = sample(&path);
        older[8] = 1;
        fs::write(&path, &older).unwrap();
        let mut opened = open(&path);
        assert_eq!(told(&fs::read(&path).unwrap()), STORY);
        opened.journal.started(TaskId(2), 1).unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes[..HEADER], header());
        assert_eq!(told(&bytes).last().unwrap(), "started 2 for the 1. time");
    }

    #[test]
    fn what_was_tried_is_in_the_journal() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.journal");
        let mut journal = open(&path).journal;
        let attempt = AttemptReport {
            number: 1,
            worker_id: Some(WorkerId(3)),
            worker_pid: Some(77),
            started_unix_nano: Some(5),
            ended_unix_nano: 9,
            failure: Some(tracer_core::task::Failure::HeadLost),
            message: Some("lost".into()),
        };
        let span = SpanLink { trace_id: [1; 16], span_id: [2; 8], trace_flags: 1 };
        journal.submit([submitted(1)].into_iter()).unwrap();
        journal.attempt(TaskId(1), &attempt, Some(span));
        journal.write().unwrap();
        compact(&mut journal);
        let bytes = fs::read(&path).unwrap();
        assert_eq!(told(&bytes), ["submitted 1", "attempt 1 at 1", "next 2 3"]);
        let Some(Record::Attempt { attempt: found, span: linked, .. }) = read_records(&bytes).nth(1) else {
            panic!("an attempt")
        };
        assert_eq!((*found, linked), (attempt, Some(span)));
    }

    /// Envelopes in which everything is that there may be.
    fn envelopes_of_each_kind() -> [Envelope<'static>; 7] {
        use tracer_core::task::{CommandSpec, Demand, FunctionSpec, Input, InputSource, Policy, TaskSpec, TraceLink};
        use tracer_ipc::stored::Stored;
        let long = "x".repeat(300).leak();
        let function =
            |actor| TaskSpec::Function(FunctionSpec { actor, ..FunctionSpec::of_task("demo", "function", &[0x91, 7]) });
        let plain = Envelope::of(function(ActorRole::None));
        let link = |trace_state| Some(TraceLink { trace_id: [1; 16], span_id: [2; 8], trace_flags: 1, trace_state });
        let command = CommandSpec {
            program: b"/bin/echo",
            arguments: vec![b"", long.as_bytes()],
            environment: vec![(b"KEY", b"value"), (b"EMPTY", b"")],
            replaces_environment: false,
            input: b"",
            directory: b"/tmp",
        };
        let options = ActorOptions {
            max_restarts: 3,
            max_call_retries: 1,
            is_detached: true,
            or_existing: false,
            name: "counter",
        };
        let stored = Stored { name: "7-1".into(), bytes: 1 << 20 };
        [
            plain.clone(),
            Envelope { trace: link(""), ..plain.clone() },
            Envelope {
                name: long,
                run_limit: Some(Duration::from_secs(7)),
                policy: Policy { retries: 2, retry_on: "exit", idempotency_key: "nightly", ..Policy::default() },
                demand: Demand { num_cpus: 2, resources: vec![("gpu", 1)], memory_bytes: Some(1 << 30) },
                wants_output: true,
                traces_runtime: true,
                trace: link("vendor=1"),
                baggage: "user=alice",
                submitter: Some(TaskId(2)),
                inputs: vec![
                    Input { argument: 0, source: InputSource::Task(TaskId(1)) },
                    Input { argument: 1, source: InputSource::Stored(stored) },
                ],
                ..plain.clone()
            },
            Envelope::of(TaskSpec::Command(command)),
            Envelope::of(function(ActorRole::Create(options))),
            Envelope::of(function(ActorRole::Call(TaskId(5)))),
            Envelope { baggage: "user=bob", ..plain },
        ]
    }

    #[test]
    fn everything_in_a_journal_of_version_3_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.journal");
        fs::write(&path, include_bytes!("../../tests/fixtures/journals/version_3.journal")).unwrap();
        let mut opened = open(&path);
        let before = fs::read(&path).unwrap();
        assert!(opened.torn == 0 && opened.damage.is_none());
        let rest = ["started 4 for the 1. time", "actor 5, attempt 2, restart 1", "ended 7"];
        let story: Vec<_> = (1..=7).map(|task| format!("submitted {task}")).chain(rest.map(String::from)).collect();
        assert_eq!(told(&before), story);
        for (record, (task, expected)) in read_records(&before).zip((1..).zip(envelopes_of_each_kind())) {
            let Record::Submitted(found) = record else { panic!("a submission") };
            assert_eq!((found.task, found.job, found.submitted_unix_nano), (TaskId(task), JobId(2), 4));
            assert_eq!(Envelope::decode(&found.envelope), Ok(expected));
        }
        // What a key stands for is compared with what an older journal says of it.
        let fingerprints = envelopes_of_each_kind().map(|envelope| envelope.spec.fingerprint());
        let (function, command) = (0x8f0d_364c_ccbc_9faa, 0x157c_1329_3b6c_29ee);
        let (creation, call) = (0xcfb0_c7c8_3ca0_0a3e, 0xd956_1776_313b_564a);
        assert_eq!(fingerprints, [function, function, function, command, creation, call, function]);
        // It goes on, and is compacted.
        submit(&mut opened.journal, 8, &envelope(tracer_core::task::Policy::default(), None));
        compact(&mut opened.journal);
        let again = fs::read(&path).unwrap();
        let envelopes = read_records(&again).filter_map(|record| match record {
            Record::Submitted(found) => Some(Envelope::decode(&found.envelope).unwrap().spec.target()),
            _ => None,
        });
        let targets: Vec<_> = envelopes.collect();
        assert_eq!(targets[..3], ["demo.function"; 3]);
        assert_eq!(targets[3..], ["echo", "function", "function", "demo.f"]);
    }

    #[test]
    fn a_journal_of_version_4_is_read_and_raised_to_this_version() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.journal");
        fs::write(&path, include_bytes!("../../tests/fixtures/journals/version_4.journal")).unwrap();
        let opened = open(&path);
        assert!(opened.torn == 0 && opened.damage.is_none());
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes[8], VERSION as u8, "an older tracer refuses it by name");
        let story = [
            "submitted 1",
            "ended 1",
            "submitted 2",
            "ended 2",
            "submitted 3",
            "attempt 1 at 3",
            "ended 3",
            "submitted 4",
            "started 4 for the 1. time",
            "submitted 5",
        ];
        assert_eq!(told(&bytes), story);
        // It goes on with what is new.
        let mut journal = opened.journal;
        journal.pruned(&[TaskId(1), TaskId(3)]);
        assert!(journal.needs_compaction(1 << 40), "what was pruned is to be gone soon");
        journal.write().unwrap();
        assert_eq!(told(&fs::read(&path).unwrap()).last().unwrap(), "pruned [TaskId(1), TaskId(3)]");
        assert_eq!(journal.compact_now().unwrap(), Vec::<String>::new());
        assert!(!journal.needs_compaction(1 << 40));
        let left = ["remembered 2", "ended 2", "submitted 4", "started 4 for the 1. time", "submitted 5", "next 6 6"];
        assert_eq!(told(&fs::read(&path).unwrap()), left);
    }

    #[test]
    fn a_bundle_is_kept_as_long_as_one_of_its_tasks_is_open() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.journal");
        let mut journal = open(&path).journal;
        let plain = envelope(tracer_core::task::Policy::default(), None);
        (1..=6).for_each(|task| submit(&mut journal, task, &plain));
        journal.bundle(TaskId(1), 2).unwrap();
        journal.bundle(TaskId(3), 3).unwrap();
        [1, 2, 3, 5].into_iter().for_each(|task| journal.ended(TaskId(task), 1, &ended(Outcome::Completed)));
        journal.write().unwrap();
        for _ in 0..2 {
            compact(&mut journal);
            let bundles = told(&fs::read(&path).unwrap()).into_iter().filter(|record| record.contains("together"));
            assert_eq!(bundles.collect::<Vec<_>>(), ["3 together from 3 on"]);
        }
        journal.ended(TaskId(4), 1, &ended(Outcome::Completed));
        journal.write().unwrap();
        compact(&mut journal);
        assert!(told(&fs::read(&path).unwrap()).iter().all(|record| !record.contains("together")));
    }

    #[test]
    fn a_journal_without_its_pruned_tasks_restores_the_same_as_one_that_has_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.journal");
        let mut journal = open(&path).journal;
        let key = |key| tracer_core::task::Policy { idempotency_key: key, ..tracer_core::task::Policy::default() };
        for (task, name) in (1..=4).zip(["a", "b", "c", "d"]) {
            submit(&mut journal, task, &envelope(key(name), None));
            journal.ended(TaskId(task), 1, &ended(Outcome::Returned(vec![task as u8])));
        }
        // Of an actor that lives, and of one that is dead.
        for task in 5..=6 {
            submit(&mut journal, task, &creation());
            journal.ended(TaskId(task), 1, &ended(Outcome::Completed));
        }
        let death = Death { cause: "it was killed".into(), error_type: "signal:9".into() };
        journal.actor(TaskId(6), 1, 0, Some(&death));
        submit(&mut journal, 7, &envelope(key("e"), Some(3)));
        journal.pruned(&[TaskId(1), TaskId(2), TaskId(6)]);
        submit(&mut journal, 8, &envelope(key("a"), None));
        journal.write().unwrap();
        let restored = |journal: &Journal| {
            let mut state = State::new(Settings::of_workers(1));
            super::super::restore::read_back(journal, &mut state).unwrap();
            let mut keys: Vec<_> = state.keys().map(|(key, task)| format!("{key}: {task}")).collect();
            keys.sort();
            let ids: Vec<_> = state.tasks().map(|(id, _)| id.0).collect();
            (ids, keys)
        };
        let (ids, keys) = restored(&journal);
        assert_eq!(ids, [8, 7, 5, 4, 3]);
        assert_eq!(keys, ["a: 8", "c: 3", "d: 4", "e: 7"]);
        compact(&mut journal);
        assert_eq!(restored(&open(&path).journal), (ids, keys));
        assert!(!told(&fs::read(&path).unwrap()).iter().any(|line| line.ends_with(" 1") || line.ends_with(" 6")));
    }

    #[test]
    fn versions_of_services_that_are_served_are_kept_and_those_that_were_shut_down_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.journal");
        let parse = |text: &str| tracer_settings::service_file::parse(text, Path::new("/")).unwrap();
        let shop = parse("name = \"shop\"\n[[applications]]\nimport_path = \"shop:app\"");
        let old = parse("name = \"o\"\n[[applications]]\nimport_path = \"shop:app\"");
        let mut journal = open(&path).journal;
        for version in 1..=VERSION_LIMIT as u64 + 3 {
            journal.service_deployed(version, 10 * version, &shop);
        }
        journal.service_deployed(1, 7, &old);
        journal.service_shut_down("o", 8);
        journal.write().unwrap();
        let restored = |journal: &Journal| {
            let mut state = State::new(Settings::of_workers(1));
            super::super::restore::read_back(journal, &mut state).unwrap().services
        };
        let before = restored(&journal);
        assert_eq!(before.len(), VERSION_LIMIT + 3, "that of the other one is gone");
        compact(&mut journal);
        drop(journal);
        let opened = open(&path);
        assert!(opened.torn == 0 && opened.damage.is_none());
        assert_eq!(restored(&opened.journal), before[3..], "the newest stay, whole and in their order");
        assert!(!told(&fs::read(&path).unwrap()).iter().any(|line| line.contains(" of o") || line.starts_with("o ")));
    }

    #[test]
    fn records_of_services_have_the_bytes_that_later_heads_read() {
        let parse = |text: &str| tracer_settings::service_file::parse(text, Path::new("/")).unwrap();
        let service = parse("name = \"s\"\n[[applications]]\nimport_path = \"m:a\"");
        let mut bytes = Vec::new();
        put_service_deployed(&mut bytes, 2, 3, &service);
        let body = &bytes[RECORD_HEADER..];
        let name = [&[1, 0, 0, 0][..], b"s"].concat();
        let numbers = [2_u64.to_le_bytes(), 3_u64.to_le_bytes()].concat();
        assert!(body.starts_with(&[&[SERVICE_DEPLOYED][..], &name, &numbers].concat()), "{body:?}");
        let Ok(Record::ServiceDeployed(record)) = read_record(body) else { panic!("it is read back") };
        assert_eq!((record.name, record.version, record.deployed_unix_nano), ("s", 2, 3));
        assert_eq!(record.service, Some(service));
        let shut_down = [&[SERVICE_SHUT_DOWN][..], &9_u64.to_le_bytes(), &name].concat();
        assert!(matches!(read_record(&shut_down), Ok(Record::ServiceShutDown("s"))));
    }

    /// Waits for what a thread tells, and takes it in.
    fn hear(journal: &mut Journal) -> Vec<String> {
        use rustix::event::Timespec;
        let limit = Timespec { tv_sec: 30, tv_nsec: 0 };
        let told = poll(&mut [PollFd::new(&journal.watched(), PollFlags::IN)], Some(&limit));
        assert_eq!(told, Ok(1), "a thread tells something");
        journal.on_told()
    }

    fn compact(journal: &mut Journal) {
        journal.begin_compaction().unwrap();
        while journal.compaction.is_some() {
            assert_eq!(hear(journal), Vec::<String>::new());
        }
    }

    #[test]
    fn a_journal_is_compacted_when_little_of_it_is_kept_and_late_while_tasks_are_open() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = open(&folder.path().join("tasks.journal")).journal;
        let mut wants = |length, kept, open_bytes| {
            journal.log = Log::new(Arc::clone(journal.log.file()), length);
            journal.kept = kept;
            journal.needs_compaction(open_bytes)
        };
        let least = COMPACTION_BYTES;
        assert!(!wants(least, 0, 0) && wants(least + 1, 0, 0), "nothing is open");
        assert!(!wants(least + 1, 0, 1) && wants(OPEN_FACTOR * least + 1, 0, 1), "a task is open");
        assert!(!wants(8 * least, 2 * least, 0) && !wants(8 * least, 0, 2 * least), "a quarter of it is kept");
    }

    fn envelope(policy: tracer_core::task::Policy<'_>, input: Option<u64>) -> Vec<u8> {
        use tracer_core::task::{FunctionSpec, Input, InputSource, TaskSpec};
        let spec = TaskSpec::Function(FunctionSpec::of_task("demo", "f", &[0x90; 64]));
        let of_task = |task| Input { argument: 0, source: InputSource::Task(TaskId(task)) };
        let envelope =
            Envelope { name: "mine", policy, inputs: input.map(of_task).into_iter().collect(), ..Envelope::of(spec) };
        let mut bytes = Vec::new();
        envelope.encode(&mut bytes);
        bytes
    }

    fn submit(journal: &mut Journal, task: u64, envelope: &[u8]) {
        let submitted = Submitted { task: TaskId(task), job: JobId(2), submitted_unix_nano: 4, envelope };
        journal.submit([submitted].into_iter()).unwrap();
    }

    /// Returns a journal in which one task waits, one has failed once, one has ended with a key, one long ago and is still an argument, and
    /// very many have ended long ago.
    fn long_story(path: &Path) -> Journal {
        let mut journal = open(path).journal;
        let plain = envelope(tracer_core::task::Policy::default(), None);
        let keyed = tracer_core::task::Policy { idempotency_key: "nightly", ..Default::default() };
        submit(&mut journal, 1, &envelope(keyed, None));
        submit(&mut journal, 2, &plain);
        submit(&mut journal, 3, &plain);
        journal.ended(TaskId(3), 1, &ended(Outcome::Returned(vec![3])));
        submit(&mut journal, 4, &envelope(tracer_core::task::Policy::default(), Some(3)));
        journal.started(TaskId(4), 1).unwrap();
        for task in 5..20 + tracer_reactor::HISTORY_LIMIT as u64 {
            submit(&mut journal, task, &plain);
            journal.ended(TaskId(task), 1, &ended(Outcome::Completed));
        }
        journal.started(TaskId(1), 1).unwrap();
        journal.ended(TaskId(1), 1, &ended(Outcome::Returned(vec![1])));
        journal.write().unwrap();
        journal
    }

    /// Returns what the journal tells of the first tasks, and how many ends there are.
    fn gist(bytes: &[u8]) -> (Vec<String>, usize) {
        let all = told(bytes);
        let is_of_first = |line: &&String| {
            let words = line.split(' ').collect::<Vec<_>>();
            words.iter().any(|word| ["1", "2", "3", "4"].contains(word)) && !line.contains("next")
        };
        (all.iter().filter(is_of_first).cloned().collect(), all.iter().filter(|line| line.starts_with("ended")).count())
    }

    const KEPT: [&str; 8] = [
        "remembered 1",
        "key nightly of 1",
        "submitted 2",
        "remembered 3",
        "ended 3",
        "submitted 4",
        "started 4 for the 1. time",
        "ended 1",
    ];

    #[test]
    fn a_journal_that_is_compacted_holds_what_is_worth_keeping_and_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.journal");
        let mut journal = long_story(&path);
        let before = journal.log.length();
        let last = 19 + tracer_reactor::HISTORY_LIMIT as u64;
        journal.begin_compaction().unwrap();
        // What comes meanwhile is kept too, at whichever step it comes.
        let mut task = last;
        while journal.compaction.is_some() {
            task += 1;
            submit(&mut journal, task, b"");
            assert_eq!(hear(&mut journal), Vec::<String>::new());
        }
        submit(&mut journal, task + 1, b"");
        let bytes = fs::read(&path).unwrap();
        let (first, ends) = gist(&bytes);
        assert_eq!(first, KEPT);
        assert_eq!(ends, tracer_reactor::HISTORY_LIMIT + 1, "those that are remembered, and an argument");
        let all = told(&bytes);
        assert!(all.contains(&format!("next {} 3", last + 1)) || all.contains(&format!("next {} 3", last + 2)));
        for task in last + 1..=task + 1 {
            assert_eq!(all.iter().filter(|line| **line == format!("submitted {task}")).count(), 1, "{task}");
        }
        assert!((bytes.len() as u64) < before && bytes.len() as u64 == journal.log.length());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
        let again = open(&path);
        assert!(again.torn == 0 && again.damage.is_none());
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }

    fn of_actor(actor: ActorRole<'_>) -> Vec<u8> {
        use tracer_core::task::{FunctionSpec, TaskSpec};
        let spec = FunctionSpec { actor, ..FunctionSpec::of_task("demo", "A.new", &[0x90]) };
        let (plain, mut bytes) = (envelope(tracer_core::task::Policy::default(), None), Vec::new());
        Envelope { spec: TaskSpec::Function(spec), ..Envelope::decode(&plain).unwrap() }.encode(&mut bytes);
        bytes
    }

    fn creation() -> Vec<u8> {
        of_actor(ActorRole::Create(ActorOptions {
            max_restarts: 1,
            max_call_retries: 0,
            is_detached: true,
            or_existing: false,
            name: "a",
        }))
    }

    #[test]
    fn an_actor_that_lives_is_kept_as_it_was_made_and_a_dead_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.journal");
        let mut journal = open(&path).journal;
        let plain = envelope(tracer_core::task::Policy::default(), None);
        for task in 1..=2 {
            submit(&mut journal, task, &creation());
            journal.ended(TaskId(task), 1, &ended(Outcome::Completed));
            journal.actor(TaskId(task), 2, 1, None);
        }
        let death = Death { cause: "it was killed".into(), error_type: "signal:9".into() };
        journal.actor(TaskId(2), 2, 1, Some(&death));
        for task in 3..10 + tracer_reactor::HISTORY_LIMIT as u64 {
            submit(&mut journal, task, &plain);
            journal.ended(TaskId(task), 1, &ended(Outcome::Completed));
        }
        journal.write().unwrap();
        compact(&mut journal);
        let (first, _) = gist(&fs::read(&path).unwrap());
        assert_eq!(first, ["submitted 1", "ended 1", "actor 1, attempt 2, restart 1"]);
    }

    #[test]
    fn whoever_dies_at_any_step_of_a_compaction_leaves_one_whole_journal() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.journal");
        let mut journal = open(&path).journal;
        let plain = envelope(tracer_core::task::Policy::default(), None);
        for task in 1..=6 {
            submit(&mut journal, task, &plain);
        }
        journal.ended(TaskId(2), 1, &ended(Outcome::Completed));
        // An actor that was begun again, with a call that waits.
        submit(&mut journal, 7, &creation());
        journal.ended(TaskId(7), 1, &ended(Outcome::Completed));
        journal.actor(TaskId(7), 2, 1, None);
        submit(&mut journal, 8, &of_actor(ActorRole::Call(TaskId(7))));
        journal.write().unwrap();
        let outcome_of = |bytes: &[u8]| {
            let mut tasks = std::collections::BTreeMap::new();
            for line in told(bytes) {
                let (what, task) = line.split_once(' ').unwrap();
                match what {
                    "submitted" | "remembered" => drop(tasks.entry(task.to_owned()).or_insert("open")),
                    "ended" => drop(tasks.insert(task.to_owned(), "ended")),
                    "actor" => drop(tasks.insert(line.to_owned(), "alive")),
                    _ => {}
                }
            }
            tasks
        };
        // While the new one is written, cut at every byte: the old one is the journal.
        let compacted = compaction::compact(&path, journal.log.file(), &journal.good).unwrap();
        let new = fs::read(compaction::new_path(&path)).unwrap();
        assert_eq!((compacted.length, compacted.copied_to), (new.len() as u64, journal.log.length()));
        let old = fs::read(&path).unwrap();
        assert_eq!(outcome_of(&new), outcome_of(&old));
        assert_eq!(outcome_of(&new)["actor 7, attempt 2, restart 1"], "alive");
        for length in 0..=new.len() {
            fs::write(compaction::new_path(&path), &new[..length]).unwrap();
            let opened = open(&path);
            assert!(opened.torn == 0 && opened.damage.is_none());
            assert_eq!(fs::read(&path).unwrap(), old);
            assert!(!compaction::new_path(&path).exists());
        }
        // From the moment at which both get what is appended, either is the journal, and a torn end is cut off either.
        fs::write(compaction::new_path(&path), &new).unwrap();
        let file = OpenOptions::new().append(true).open(compaction::new_path(&path)).unwrap();
        journal.commit(Compacted { file, length: compacted.length, copied_to: compacted.copied_to }).unwrap();
        submit(&mut journal, 9, &plain);
        journal.actor(TaskId(7), 3, 2, None);
        journal.ended(TaskId(5), 1, &ended(Outcome::Completed));
        journal.write().unwrap();
        assert_eq!(journal.compaction, Some(Compaction::Committing));
        let written = outcome_of(&old);
        assert!(hear(&mut journal).is_empty() && journal.compaction.is_none());
        let after = fs::read(&path).unwrap();
        assert_eq!(after.len() as u64, journal.log.length());
        assert_eq!(outcome_of(&after).len(), written.len() + 2);
        for length in new.len()..=after.len() {
            fs::write(&path, &after[..length]).unwrap();
            let opened = open(&path);
            let bytes = fs::read(&path).unwrap();
            let found = outcome_of(&bytes);
            assert!(found.len() >= written.len() && bytes.len() as u64 + opened.torn == length as u64);
            assert_eq!((found["8"], found["actor 7, attempt 2, restart 1"]), ("open", "alive"));
        }
    }

    #[test]
    fn a_compaction_without_room_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.journal");
        let mut journal = long_story(&path);
        let old = fs::read(&path).unwrap();
        // Both get what is appended, and the new one has no room.
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        journal.log.begin_change(Arc::new(full), 7);
        journal.compaction = Some(Compaction::Committing);
        let refused = journal.submit([submitted(999_999)].into_iter()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read(&path).unwrap(), old);
        // The thread had none.
        fs::create_dir(compaction::new_path(&path)).unwrap();
        journal.compaction = None;
        journal.log.abandon_change();
        journal.begin_compaction().unwrap();
        let said = hear(&mut journal);
        assert!(said[0].starts_with("the journal cannot be compacted: "), "{said:?}");
        assert!(!journal.needs_compaction(0), "not at once again");
        submit(&mut journal, 999_999, b"");
        assert_eq!(told(&fs::read(&path).unwrap()).last().unwrap(), "submitted 999999");
    }

    #[test]
    fn what_is_written_is_synced_later_together_and_never_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.journal");
        let mut journal = open(&path).journal;
        let (permit, permits) = std::sync::mpsc::channel::<io::Result<()>>();
        let syncs = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&syncs);
        let sync = move |_: &File| {
            counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            permits.recv().unwrap_or(Ok(()))
        };
        journal.syncer = Some(Syncer::start(sync, journal.events.teller()).unwrap());
        let plain = envelope(tracer_core::task::Policy::default(), None);
        submit(&mut journal, 1, &plain);
        journal.sync();
        let first = journal.written();
        while syncs.load(std::sync::atomic::Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        for task in 2..=9 {
            submit(&mut journal, task, &plain);
            journal.sync();
        }
        assert!(journal.on_told().is_empty());
        assert_eq!(journal.synced(), 0, "the disk is busy");
        permit.send(Ok(())).unwrap();
        hear(&mut journal);
        assert_eq!(journal.synced(), first, "what came later is not there yet");
        permit.send(Ok(())).unwrap();
        hear(&mut journal);
        assert_eq!(
            (journal.synced(), syncs.load(std::sync::atomic::Ordering::SeqCst)),
            (journal.written(), 2),
            "all at once"
        );

        // A disk that fails: a new file is needed, as a whole.
        submit(&mut journal, 10, &plain);
        journal.sync();
        permit.send(Err(io::Error::other("bad sector"))).unwrap();
        assert!(hear(&mut journal)[0].contains("cannot be synced, so nothing is acknowledged until it is: bad sector"));
        assert!(journal.has_sync_failed() && journal.needs_compaction(0));
        assert!(journal.synced() < journal.written());
        compact(&mut journal);
        permit.send(Ok(())).unwrap();
        while journal.synced() < journal.written() {
            assert_eq!(hear(&mut journal), Vec::<String>::new());
        }
        assert!(!journal.has_sync_failed());
    }

    #[test]
    fn a_full_disk_refuses_submissions_and_keeps_what_has_ended_for_later() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.journal");
        let mut journal = open(&path).journal;
        journal.submit([submitted(1)].into_iter()).unwrap();
        journal.ended(TaskId(1), 1, &ended(Outcome::Completed));
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let log = Log::new(Arc::new(full), journal.log.length());
        let log = std::mem::replace(&mut journal.log, log);
        assert_eq!(journal.submit([submitted(2)].into_iter()).unwrap_err().kind(), io::ErrorKind::StorageFull);
        // It is a device, and cannot be cut.
        assert_eq!(journal.write().unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(journal.needs_compaction(0), "a new file is needed");
        journal.log = log;
        journal.submit([submitted(3)].into_iter()).unwrap();
        assert_eq!(told(&fs::read(&path).unwrap()), ["submitted 1", "ended 1", "submitted 3"]);
    }

    /// Returns what a journal that holds these bytes tells once it is opened, without which ids come next.
    fn opened_with(path: &Path, bytes: &[u8]) -> (Vec<String>, Opened) {
        fs::write(path, bytes).unwrap();
        let opened = open(path);
        let mut found = told(&fs::read(path).unwrap());
        found.retain(|line| !line.starts_with("next "));
        (found, opened)
    }

    proptest::proptest! {
        #[test]
        fn hostile_journals_never_panic(bytes: Vec<u8>) {
            let folder = tempfile::tempdir().unwrap();
            let mut whole = header().to_vec();
            whole.extend_from_slice(&bytes);
            let (found, _) = opened_with(&folder.path().join("tasks.journal"), &whole);
            proptest::prop_assert!(found.len() * 17 <= bytes.len());
        }

        /// Bytes are changed, removed, put in or zeroed at random places. Every record that none of it met is read, in its order, and no
        /// id is given out again.
        #[test]
        fn damage_costs_the_records_that_it_meets_and_no_other(
            sizes in proptest::collection::vec(0_usize..600, 1..60),
            damages in proptest::collection::vec(
                (proptest::prelude::any::<proptest::sample::Index>(), 0_usize..5, 1_usize..900, proptest::prelude::any::<u8>()), 0..6),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("tasks.journal");
            let mut bytes = header().to_vec();
            let mut records = Vec::new();
            for (task, size) in (1..).zip(&sizes) {
                let envelope: Vec<u8> = (0..*size).map(|at| (at * 7) as u8).collect();
                let start = bytes.len();
                put_submitted(&mut bytes, &Submitted { envelope: &envelope[..], ..submitted(task) });
                records.push((format!("submitted {task}"), start..bytes.len()));
                if task % 3 == 0 {
                    let start = bytes.len();
                    put_ended(&mut bytes, TaskId(task), 1, &ended(Outcome::Completed));
                    records.push((format!("ended {task}"), start..bytes.len()));
                }
            }
            // From the end on, so that the places of what is before stay. A place where bytes go or come belongs to both of its neighbours
            // only if it is inside of one.
            let whole = bytes.len();
            let mut places: Vec<_> = damages.into_iter().map(|(at, how, size, with)| (HEADER + at.index(whole - HEADER), how, size, with)).collect();
            places.sort_by_key(|(at, ..)| std::cmp::Reverse(*at));
            let mut met = vec![false; records.len()];
            let mut limit = whole;
            for (at, how, size, with) in places {
                // None reaches into another, which may have moved what is behind it.
                let end = (at + size).min(limit);
                if end <= at {
                    continue;
                }
                limit = at;
                let range = match how {
                    0 => at..at + 1,
                    1..=3 => at..end,
                    _ => at..at,
                };
                for ((_, record), met) in records.iter().zip(&mut met) {
                    *met |= record.start < range.end.max(at + 1) && range.start < record.end && (range.start > record.start || !range.is_empty());
                }
                match how {
                    0 => bytes[at] ^= with | 1,
                    1 => bytes[range].fill(0),
                    2 => bytes[range].fill(with),
                    3 => drop(bytes.drain(range)),
                    _ => drop(bytes.splice(at..at, vec![with; size])),
                }
            }
            let (found, opened) = opened_with(&path, &bytes);
            let expected: Vec<_> = records.iter().zip(&met).filter(|(_, met)| !**met).map(|((told, _), _)| told.clone()).collect();
            // What a change left as it was is there too.
            let mut rest = found.iter();
            for line in &expected {
                proptest::prop_assert!(rest.any(|found| found == line), "{line} of {found:?}");
            }
            let known = records.iter().map(|(told, _)| told.clone()).collect::<Vec<_>>();
            proptest::prop_assert!(found.iter().all(|line| known.contains(line)), "{:?}", found);
            // Where bytes are gone for good, nothing tells how many ids were in them.
            let is_longer = bytes.len() >= whole;
            proptest::prop_assert!(!is_longer || opened.next_task.0 > sizes.len() as u64, "{}", opened.next_task);
            let largest = found.iter().filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).max();
            proptest::prop_assert!(opened.next_task.0 > largest.unwrap_or(0));
            if let Some(damage) = &opened.damage {
                proptest::prop_assert_eq!(fs::read(&damage.kept).unwrap(), bytes);
            }
            let mut journal = opened.journal;
            journal.write().unwrap();
            drop(journal);
            let again = open(&path);
            proptest::prop_assert!(again.damage.is_none() && again.torn == 0 && again.next_task >= opened.next_task);
        }
    }
}
