//! The journal: the append-only record from which a head recovers.
//!
//! A submission is in the journal before it is acknowledged, and a task's outcome before anyone is told of it. So a task that was
//! accepted survives a SIGKILL of the head; the loss of power it does not survive, because nothing is synced.
//!
//! ```text
//! file    = "TRACERJN" version:u32 0:u32 record*        version 3; older ones are read, and are of version 3 from then on
//! record  = length:u32 checksum:u32 kind:u8 body        the checksum (CRC-32) is over kind and body, as is the length
//! ```
//!
//! A record that was torn or damaged ends the reading, and the file is cut back to the last good one. When the file has grown to
//! several times what is still worth keeping, what is kept is written to a new file that takes its place.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::actors::Death;
use super::reactor::Remembered;
use super::state::Ended;
use crate::protocol::wire::{Put, Take, WireError};
use crate::task::{AttemptReport, JobId, Outcome, SpanLink, TaskId, WorkerId};

const MAGIC: &[u8; 8] = b"TRACERJN";
/// The version that is written. Older ones are read, newer ones refused.
const VERSION: u32 = 3;
const HEADER: usize = 16;
const RECORD_HEADER: usize = 8;
/// A file below this size is not turned over.
const TURN_OVER_BYTES: u64 = 64 << 20;

const SUBMITTED: u8 = 1;
const ENDED: u8 = 2;
const NEXT_IDS: u8 = 3;
const REMEMBERED: u8 = 4;
// Since version 2.
const ATTEMPT: u8 = 5;
const STARTED: u8 = 6;
const KEY: u8 = 7;
// Since version 3.
const ACTOR: u8 = 16;

/// A submission as the journal has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Submitted<'a> {
    pub(super) task: TaskId,
    pub(super) job: JobId,
    pub(super) submitted_unix_nano: u64,
    pub(super) envelope: &'a [u8],
}

/// The end of a task as the journal has it.
#[derive(Debug)]
pub(super) struct EndedRecord {
    pub(super) task: TaskId,
    pub(super) attempt: u32,
    pub(super) ended: Ended,
}

/// What a record says.
#[derive(Debug)]
pub(super) enum Record<'a> {
    Submitted(Submitted<'a>),
    Ended(Box<EndedRecord>),
    /// What is left of a task whose end follows.
    Remembered(TaskId, Remembered<'a>),
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
    /// Ids that are not to be given out again, although no record of them is left.
    NextIds {
        task: TaskId,
        job: JobId,
    },
}

/// Why a journal cannot be used.
#[derive(Debug)]
pub(crate) enum JournalError {
    /// Something with the file.
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    /// It is not a journal.
    Foreign { path: PathBuf },
    /// A newer tracer has written it.
    Newer { path: PathBuf, version: u32 },
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
        }
    }
}

impl std::error::Error for JournalError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            JournalError::Io { source, .. } => Some(source),
            JournalError::Foreign { .. } | JournalError::Newer { .. } => None,
        }
    }
}

/// The file, open for appending.
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    /// Bytes of good records in the file, its header included.
    length: u64,
    /// Its length after it was turned over last: what was worth keeping then.
    kept: u64,
    /// Ends of tasks that are not written yet.
    pending: Vec<u8>,
    is_suspended: bool,
}

/// What opening a journal found.
pub(super) struct Opened {
    pub(super) journal: Journal,
    /// Everything that was written, for [`read_records`].
    pub(super) bytes: Vec<u8>,
    /// Bytes at the end that were no whole record, and were cut off.
    pub(super) cut: u64,
}

impl Journal {
    /// Opens the journal of a place, or makes it, and mends its end.
    pub(super) fn open(path: &Path) -> Result<Opened, JournalError> {
        let io = |doing| move |source| JournalError::Io { doing, path: path.into(), source };
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
            .open(path)
            .map_err(io("open"))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(io("read"))?;
        // Whoever made it may have died before its header was whole.
        if bytes.len() < HEADER && header().starts_with(&bytes) {
            file.set_len(0).and_then(|()| file.write_all(&header())).map_err(io("write"))?;
            bytes = header().to_vec();
        }
        let Some((head, _)) = bytes.split_at_checked(HEADER).filter(|(head, _)| head.starts_with(MAGIC)) else {
            return Err(JournalError::Foreign { path: path.into() });
        };
        let version = u32::from_le_bytes(head[8..12].try_into().expect("four of sixteen bytes"));
        if version > VERSION {
            return Err(JournalError::Newer { path: path.into(), version });
        }
        if version < VERSION {
            // From here on it may hold what an older tracer cannot read, and must refuse by name.
            let head = OpenOptions::new().write(true).open(path).map_err(io("open"))?;
            head.write_all_at(&header(), 0).map_err(io("write"))?;
        }
        let good = good_length(&bytes);
        let cut = (bytes.len() - good) as u64;
        if cut > 0 {
            file.set_len(good as u64).map_err(io("mend"))?;
            bytes.truncate(good);
        }
        let length = good as u64;
        Ok(Opened {
            journal: Journal {
                path: path.into(),
                file,
                length,
                kept: length,
                pending: Vec::new(),
                is_suspended: false,
            },
            bytes,
            cut,
        })
    }

    /// Writes submissions. When it fails, none of them is in the journal and none may be acknowledged.
    pub(super) fn submit<'a>(&mut self, submissions: impl Iterator<Item = Submitted<'a>>) -> io::Result<()> {
        // What has ended goes first: the file tells what happened in its order.
        let mut bytes = std::mem::take(&mut self.pending);
        let ended = bytes.len();
        submissions.for_each(|submitted| put_submitted(&mut bytes, &submitted));
        let written = self.append(&bytes);
        if written.is_err() {
            bytes.truncate(ended);
            self.pending = bytes;
        }
        written
    }

    /// Notes that a task has ended. It is written with [`write`](Self::write).
    pub(super) fn ended(&mut self, task: TaskId, attempt: u32, ended: &Ended) {
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

    /// Writes what was noted. When it fails, it is kept for the next time.
    pub(super) fn write(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let bytes = std::mem::take(&mut self.pending);
        let written = self.append(&bytes);
        if written.is_err() {
            self.pending = bytes;
        }
        written
    }

    /// Writes nothing from now on, and forgets what was noted and not written.
    pub(super) fn suspend(&mut self) {
        self.pending.clear();
        self.is_suspended = true;
    }

    /// Whether most of the file is about tasks that nobody remembers.
    pub(super) fn wants_turning_over(&self) -> bool {
        self.length > TURN_OVER_BYTES && self.length > 4 * self.kept
    }

    /// Writes what is kept to a new file that takes the place of this one. `write` appends the records.
    pub(super) fn turn_over(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let mut bytes = header().to_vec();
        write(&mut bytes);
        let new_path = self.path.with_extension("new");
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&new_path)?;
        file.write_all(&bytes)?;
        fs::rename(&new_path, &self.path)?;
        self.file = OpenOptions::new().append(true).open(&self.path)?;
        self.length = bytes.len() as u64;
        self.kept = self.length;
        // What has ended is among what was kept.
        self.pending.clear();
        Ok(())
    }

    /// Appends whole records, or nothing.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Err(error) = self.file.write_all(bytes) {
            // A part of it may be there. If it cannot be cut off now, the next reading cuts it.
            let _ = self.file.set_len(self.length);
            return Err(error);
        }
        self.length += bytes.len() as u64;
        Ok(())
    }
}

fn header() -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header
}

/// Appends a submission.
pub(super) fn put_submitted(out: &mut Vec<u8>, submitted: &Submitted<'_>) {
    put_record(out, SUBMITTED, |out| {
        out.put_u64(submitted.task.0);
        out.put_u64(submitted.job.0);
        out.put_u64(submitted.submitted_unix_nano);
        out.put_exact(submitted.envelope);
    });
}

/// Appends the end of a task.
pub(super) fn put_ended(out: &mut Vec<u8>, task: TaskId, attempt: u32, ended: &Ended) {
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
pub(super) fn put_remembered(out: &mut Vec<u8>, task: TaskId, remembered: &Remembered<'_>) {
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

/// The records of a journal's bytes, header included.
pub(super) fn read_records(bytes: &[u8]) -> impl Iterator<Item = Record<'_>> {
    let mut rest = bytes.get(HEADER..).unwrap_or_default();
    std::iter::from_fn(move || {
        let (kind_and_body, after) = next_record(rest)?;
        rest = after;
        read_record(kind_and_body).ok()
    })
}

fn good_length(bytes: &[u8]) -> usize {
    let mut rest = &bytes[HEADER..];
    while let Some((kind_and_body, after)) = next_record(rest)
        && read_record(kind_and_body).is_ok()
    {
        rest = after;
    }
    bytes.len() - rest.len()
}

/// The next whole and undamaged record, and what follows it.
fn next_record(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (header, rest) = bytes.split_at_checked(RECORD_HEADER)?;
    let (length, checksum) = header.split_at(4);
    let length = u32::from_le_bytes(length.try_into().ok()?) as usize;
    let (record, after) = rest.split_at_checked(length)?;
    let is_whole = crc32fast::hash(record).to_le_bytes() == checksum;
    is_whole.then_some((record, after))
}

fn read_record(bytes: &[u8]) -> Result<Record<'_>, WireError> {
    let mut take = Take::new(bytes);
    match take.u8()? {
        SUBMITTED => {
            let (task, job, submitted_unix_nano) = (TaskId(take.u64()?), JobId(take.u64()?), take.u64()?);
            Ok(Record::Submitted(Submitted { task, job, submitted_unix_nano, envelope: &bytes[25..] }))
        }
        ENDED => {
            let (task, attempt) = (TaskId(take.u64()?), take.u32()?);
            let worker = Some(take.u64()?).filter(|&worker| worker != 0).map(WorkerId);
            let worker_pid = Some(take.u32()?).filter(|&pid| pid != 0);
            let started_unix_nano = Some(take.u64()?).filter(|&time| time != 0);
            let ended_unix_nano = take.u64()?;
            let outcome = Outcome::take(&mut take)?;
            take.finish()?;
            let ended = Ended { outcome, worker, worker_pid, started_unix_nano, ended_unix_nano };
            Ok(Record::Ended(Box::new(EndedRecord { task, attempt, ended })))
        }
        REMEMBERED => {
            let task = TaskId(take.u64()?);
            let remembered = Remembered {
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
                rmp_serde::from_slice(take.bytes()?).map_err(|_| WireError::UnknownValue("attempt")).map(Box::new)?;
            take.finish()?;
            Ok(Record::Attempt { task, attempt, span })
        }
        STARTED => {
            let record = Record::Started { task: TaskId(take.u64()?), attempt: take.u32()? };
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
    use super::*;

    fn ended(outcome: Outcome) -> Ended {
        let worker = Some(WorkerId(3));
        Ended { outcome, worker, worker_pid: Some(77), started_unix_nano: Some(5), ended_unix_nano: 9 }
    }

    fn submitted(task: u64) -> Submitted<'static> {
        Submitted { task: TaskId(task), job: JobId(2), submitted_unix_nano: 4, envelope: b"what to run" }
    }

    /// Three submissions, two of which have ended.
    fn sample(path: &Path) -> Vec<u8> {
        let mut journal = Journal::open(path).unwrap().journal;
        journal.submit([submitted(1), submitted(2)].into_iter()).unwrap();
        journal.ended(TaskId(1), 1, &ended(Outcome::Returned(vec![1])));
        journal.submit([submitted(3)].into_iter()).unwrap();
        journal.ended(TaskId(3), 0, &ended(Outcome::Failed(crate::task::Failure::Cancelled)));
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
                Record::Key { task, key, .. } => format!("key {key} of {task}"),
                Record::Actor { task, attempt, restarts, death } => {
                    let cause = death.map(|death| format!(": {} ({})", death.cause, death.error_type));
                    format!("actor {task}, attempt {attempt}, restart {restarts}{}", cause.unwrap_or_default())
                }
                Record::NextIds { task, job } => format!("next {task} {job}"),
            })
            .collect()
    }

    const STORY: [&str; 5] = ["submitted 1", "submitted 2", "ended 1", "submitted 3", "ended 3"];

    #[test]
    fn a_journal_tells_what_happened_in_its_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.journal");
        let bytes = sample(&path);
        assert_eq!(told(&bytes), STORY);
        let Some(Record::Submitted(first)) = read_records(&bytes).next() else { panic!("a submission") };
        assert_eq!(first, submitted(1));
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
            let opened = Journal::open(&path).unwrap();
            let before = told(&opened.bytes);
            assert_eq!(before, STORY[..before.len()], "cut at {length}");
            assert_eq!(opened.bytes.len() as u64 + opened.cut, length.max(HEADER) as u64);
            let mut journal = opened.journal;
            journal.submit([submitted(9)].into_iter()).unwrap();
            let after = told(&fs::read(&path).unwrap());
            assert_eq!((after.len(), after.last().unwrap().as_str()), (before.len() + 1, "submitted 9"));
        }
    }

    #[test]
    fn a_journal_tells_of_actors_that_begin_again_and_die() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.journal");
        let mut journal = Journal::open(&path).unwrap().journal;
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

    #[test]
    fn a_damaged_record_ends_the_story_before_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.journal");
        let whole = sample(&path);
        for place in HEADER..whole.len() {
            let mut damaged = whole.clone();
            damaged[place] ^= 0x10;
            fs::write(&path, &damaged).unwrap();
            let opened = Journal::open(&path).unwrap();
            let before = told(&opened.bytes);
            assert!(before.len() < STORY.len() && before == STORY[..before.len()], "damaged at {place}: {before:?}");
            assert!(opened.cut > 0);
        }
    }

    #[test]
    fn a_newer_journal_and_what_is_no_journal_are_refused_by_name_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.journal");
        let mut newer = sample(&path);
        newer[8] = 4;
        for (bytes, expected) in [
            (newer.as_slice(), "has version 4, but this tracer reads up to 3"),
            (b"shopping list: milk, eggs, bread", "is not a journal of tracer"),
        ] {
            fs::write(&path, bytes).unwrap();
            let Err(error) = Journal::open(&path) else { panic!("it was taken") };
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
        let mut opened = Journal::open(&path).unwrap();
        assert_eq!(told(&opened.bytes), STORY);
        opened.journal.started(TaskId(2), 1).unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes[..HEADER], header());
        assert_eq!(told(&bytes).last().unwrap(), "started 2 for the 1. time");
    }

    #[test]
    fn what_was_tried_is_in_the_journal() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.journal");
        let mut journal = Journal::open(&path).unwrap().journal;
        let attempt = AttemptReport {
            number: 1,
            worker_id: Some(WorkerId(3)),
            worker_pid: Some(77),
            started_unix_nano: Some(5),
            ended_unix_nano: 9,
            failure: Some(crate::task::Failure::HeadLost),
            message: Some("lost".into()),
        };
        let span = SpanLink { trace_id: [1; 16], span_id: [2; 8], trace_flags: 1 };
        journal.submit([submitted(1)].into_iter()).unwrap();
        journal.attempt(TaskId(1), &attempt, Some(span));
        journal.write().unwrap();
        journal.turn_over(|out| put_key(out, TaskId(1), 42, "nightly")).unwrap();
        journal.attempt(TaskId(1), &attempt, Some(span));
        journal.write().unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!(told(&bytes), ["key nightly of 1", "attempt 1 at 1"]);
        let Some(Record::Attempt { attempt: found, span: linked, .. }) = read_records(&bytes).nth(1) else {
            panic!("an attempt")
        };
        assert_eq!((*found, linked), (attempt, Some(span)));
    }

    #[test]
    fn a_journal_that_is_turned_over_holds_what_was_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.journal");
        let mut journal = Journal::open(&path).unwrap().journal;
        journal.submit((1..=3).map(submitted)).unwrap();
        let remembered =
            Remembered { job: JobId(2), submitted_unix_nano: 4, trace_id: [7; 16], target: "demo.f", name: "mine" };
        journal
            .turn_over(|out| {
                put_next_ids(out, TaskId(4), JobId(3));
                put_submitted(out, &submitted(2));
                put_remembered(out, TaskId(3), &remembered);
                put_ended(out, TaskId(3), 1, &ended(Outcome::Completed));
            })
            .unwrap();
        journal.submit([submitted(4)].into_iter()).unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!(told(&bytes), ["next 4 3", "submitted 2", "remembered 3", "ended 3", "submitted 4"]);
        let found = read_records(&bytes).find_map(|record| match record {
            Record::Remembered(TaskId(3), found) => Some(found),
            _ => None,
        });
        assert_eq!(found, Some(remembered));
        assert!(!path.with_extension("new").exists());
    }

    #[test]
    fn a_full_disk_refuses_submissions_and_keeps_what_has_ended_for_later() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.journal");
        let mut journal = Journal::open(&path).unwrap().journal;
        journal.submit([submitted(1)].into_iter()).unwrap();
        journal.ended(TaskId(1), 1, &ended(Outcome::Completed));
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let file = std::mem::replace(&mut journal.file, full);
        assert_eq!(journal.submit([submitted(2)].into_iter()).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(journal.write().unwrap_err().kind(), io::ErrorKind::StorageFull);
        journal.file = file;
        journal.submit([submitted(3)].into_iter()).unwrap();
        assert_eq!(told(&fs::read(&path).unwrap()), ["submitted 1", "ended 1", "submitted 3"]);
    }

    proptest::proptest! {
        #[test]
        fn hostile_journals_never_panic(bytes: Vec<u8>) {
            let mut whole = header().to_vec();
            whole.extend_from_slice(&bytes);
            let good = good_length(&whole);
            proptest::prop_assert!(good >= HEADER && good <= whole.len());
            read_records(&whole).for_each(drop);
        }
    }
}
