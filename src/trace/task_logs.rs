//! The output of tasks, read from the logs of a session and their indexes. Works beside a head that writes them, and without one.
//!
//! ```text
//!   index of a worker ─▶ stretches that are wanted ─┐
//!   log of a worker   ─▶ a window of its bytes     ─┴▶ lines in the order in which they began ─┬▶ lines by time
//!   the same of each other worker                   ───────────────────────────────────────────┘
//! ```
//!
//! Memory does not grow with the logs, and hardly with their number.
//! It has of each worker the place of the line that is next, a small window, and a line that has not come to its end, with those that came after it,
//! within `LINE_LIMIT` bytes of the log. Where these are many, less is waited for.

mod lines;
mod worker_log;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::{fs, io};

use tracer_core::task::TaskId;
use tracer_ipc::protocol::Stream;
use tracer_ipc::task_output::{Extent, Owner, index_path, read_extents};
use worker_log::{Reading, WorkerLog};

use crate::known_file::{KnownFile, identity};
use crate::merging::{Key, Merged};

/// The longest line that is put together, and how far its end may be in the log: what is longer, or ends farther away, comes in pieces.
const LINE_LIMIT: usize = 64 << 10;

/// The bytes of logs that are in memory: windows, and beside them lines that wait for the end of another one.
const WINDOWS: usize = 8 << 20;
const WAITING: usize = 16 << 20;
/// Distance at which the end of a line may be where more than that waits.
const LEAST_LINE_LIMIT: usize = 1 << 10;
/// The most logs whose files are left open between two reads.
const OPEN_FILES: usize = 100;

/// A line that a task wrote, or a piece of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// Owner: an attempt, or an actor.
    pub(crate) owner: Owner,
    /// True if it may be another task's.
    pub(crate) is_approximate: bool,
    pub(crate) stream: Stream,
    /// Number of the worker, and its process id.
    pub(crate) worker: (u64, u32),
    /// Time at which the head read its beginning, in nanoseconds since the Unix epoch.
    pub(crate) unix_nano: u64,
    /// Text without the line feed; what is no UTF-8 is replaced.
    pub(crate) text: String,
    /// True if it does not end here: the next one of its writer goes on with it, if there is one.
    pub(crate) is_partial: bool,
    /// Place of its beginning: the inode of the index, and the offset in the log.
    pub(crate) place: (u64, u64),
}

impl Line {
    fn key(&self) -> Key {
        (self.unix_nano, self.place.0, self.place.1, 0)
    }
}

/// Returns the task that an owner is, or the actor.
pub(crate) fn task_of(owner: Owner) -> Option<TaskId> {
    match owner {
        Owner::None | Owner::Unmarked => None,
        Owner::Attempt { task, .. } | Owner::Actor(task) => Some(task),
    }
}

/// The logs of the workers of a session, as far as they were read.
#[derive(Debug)]
pub struct TaskLogs {
    folder: PathBuf,
    numbers: HashMap<(u64, u32), usize>,
    workers: Vec<WorkerLog>,
    /// Places of the lines that are next, of each log that has more. A log may turn out to have only later ones.
    next: Merged<()>,
    reading: Reading,
    /// Bytes of lines that wait for the end of another one.
    waiting: usize,
}

impl TaskLogs {
    /// Returns the logs of a session.
    pub fn of_session(session_dir: &Path) -> TaskLogs {
        TaskLogs {
            folder: session_dir.join("logs"),
            numbers: HashMap::new(),
            workers: Vec::new(),
            next: Merged::default(),
            reading: Reading::default(),
            waiting: 0,
        }
    }

    /// Begins to read what has come since the last time, of the owners that are wanted; with `is_last`, lines that have not come to their end too. With
    /// `newest`, lines that are not among so many of the newest may be left out, and what is left of the first may lack its beginning.
    pub(crate) fn begin(
        &mut self,
        is_last: bool,
        newest: Option<usize>,
        mut is_wanted: impl FnMut(&Extent) -> bool,
    ) -> io::Result<()> {
        let mut parts: BTreeMap<usize, Vec<KnownFile>> = BTreeMap::new();
        for path in self.indexes()? {
            let Some((_, worker)) = log_of(&path) else { continue };
            let found = match identity(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                identity => KnownFile { path, identity: identity? },
            };
            let count = self.workers.len();
            let number = *self.numbers.entry(worker).or_insert(count);
            if number == count {
                self.workers.push(WorkerLog::new(worker));
            }
            parts.entry(number).or_default().push(found);
        }
        let window = (WINDOWS / parts.len().max(1)).clamp(1 << 9, LINE_LIMIT);
        let leaves_open = parts.len() <= OPEN_FILES;
        self.reading = Reading { is_last, window, leaves_open, line_limit: LINE_LIMIT };
        self.next.clear();
        for (number, parts) in parts {
            self.workers[number].begin(parts);
            if let Some(newest) = newest {
                // Others may have written between the beginning of a line and its end.
                let bytes = (newest as u64).saturating_add(2).saturating_mul(2 * LINE_LIMIT as u64);
                self.workers[number].pass_over(bytes, &mut is_wanted)?;
            }
            self.advance(number, &mut is_wanted)?;
        }
        Ok(())
    }

    /// Returns the place of the next line.
    pub(crate) fn first(&self) -> Option<Key> {
        self.next.first()
    }

    /// Takes the next line.
    pub(crate) fn take(&mut self, mut is_wanted: impl FnMut(&Extent) -> bool) -> io::Result<Option<Line>> {
        while let (Some(place), Some((number, ()))) = (self.next.first(), self.next.pop()) {
            let next = self.next.first();
            let is_later = |line: &Line| line.key() > place && next.is_some_and(|next| next < line.key());
            let line = self.read(number, |worker, reading| match worker.take(reading, &mut is_wanted)? {
                // The one that began there has not come to its end.
                Some(line) if is_later(&line) => {
                    worker.put_back(line);
                    Ok(None)
                }
                line => Ok(line),
            })?;
            self.advance(number, &mut is_wanted)?;
            if line.is_some() {
                return Ok(line);
            }
        }
        Ok(None)
    }

    fn advance(&mut self, number: usize, is_wanted: &mut impl FnMut(&Extent) -> bool) -> io::Result<()> {
        if let Some(place) = self.read(number, |worker, reading| worker.first(reading, is_wanted))? {
            self.next.push(place, number, ());
        }
        Ok(())
    }

    /// Reads one log, and counts what waits in it.
    fn read<R>(&mut self, number: usize, read: impl FnOnce(&mut WorkerLog, Reading) -> io::Result<R>) -> io::Result<R> {
        let worker = &mut self.workers[number];
        let line_limit = if self.waiting > WAITING { LEAST_LINE_LIMIT } else { LINE_LIMIT };
        self.waiting -= worker.waiting();
        let read = read(worker, Reading { line_limit, ..self.reading });
        self.waiting += worker.waiting();
        read
    }

    /// Hands on every stretch of output, without its bytes.
    pub fn owners(&self, mut take: impl FnMut(&Extent)) -> io::Result<()> {
        for index in self.indexes()? {
            match read_extents(&index, 0, |extent| take(&extent)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => drop(other?),
            }
        }
        Ok(())
    }

    /// Returns the folder of the logs.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the indexes of all workers, oldest part first.
    fn indexes(&self) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if let Some((_, part)) = name.split_once(".index") {
                let part = part.trim_start_matches('.').parse().unwrap_or(u64::MAX);
                found.push((part, path));
            }
        }
        found.sort();
        Ok(found.into_iter().map(|(_, path)| path).collect())
    }
}

/// Returns the log that an index is of, and the worker: its number and its process id.
fn log_of(index: &Path) -> Option<(PathBuf, (u64, u32))> {
    let name = index.file_name()?.to_str()?;
    let (worker, part) = name.split_once(".index")?;
    let (number, pid) = worker.strip_prefix("worker-")?.split_once('-')?;
    let log = index.with_file_name(format!("{worker}.log{part}"));
    debug_assert_eq!(index_path(&log), index);
    Some((log, (number.parse().ok()?, pid.parse().ok()?)))
}

#[cfg(test)]
#[path = "task_logs_tests.rs"]
mod tests;
