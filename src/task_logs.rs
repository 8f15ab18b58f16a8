//! The output of tasks, read from the logs of a session and their indexes. Works beside a head that writes them, and without one.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::protocol::Stream;
use crate::task::TaskId;
use crate::task_output::{Extent, Owner, index_path, read_extents};

/// The longest line that is put together; what is longer comes in pieces.
const LINE_LIMIT: usize = 64 << 10;

/// A line that a task wrote.
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
    /// Place of its beginning: the inode of the index, and the offset in the log.
    pub(crate) place: (u64, u64),
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
pub(crate) struct TaskLogs {
    folder: PathBuf,
    /// Position in each index, by its file, which keeps that when its part of the log is closed and renamed.
    positions: HashMap<(u64, u64), u64>,
    /// Lines that have not come to their end.
    open: BTreeMap<LineKey, Line>,
}

/// The writer of a line: worker, stream and owner.
type LineKey = (u64, bool, u64, u32, bool);

/// A piece of a log.
struct Piece<'a> {
    extent: Extent,
    worker: (u64, u32),
    index_inode: u64,
    bytes: &'a [u8],
}

impl TaskLogs {
    /// Returns the logs of a session.
    pub(crate) fn of_session(session_dir: &Path) -> TaskLogs {
        TaskLogs { folder: session_dir.join("logs"), positions: HashMap::new(), open: BTreeMap::new() }
    }

    /// Hands on the lines that have come since the last time, of the owners that are wanted: log by log, each from its beginning.
    pub(crate) fn each(
        &mut self,
        mut is_wanted: impl FnMut(&Extent) -> bool,
        mut take: impl FnMut(Line),
    ) -> io::Result<()> {
        for index in self.indexes()? {
            // What goes between two looks is gone.
            match self.read_part(&index, &mut is_wanted, &mut take) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Hands on every stretch of output, without its bytes.
    pub(crate) fn owners(&self, mut take: impl FnMut(&Extent)) -> io::Result<()> {
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

    /// Takes what is left of lines that have not come to their end.
    pub(crate) fn take_rest(&mut self) -> Vec<Line> {
        let mut rest: Vec<Line> = std::mem::take(&mut self.open).into_values().collect();
        rest.sort_by_key(|line| line.unix_nano);
        rest
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

    /// Reads one part. The log is opened after its index, and both are renamed in that order, so a log that was renamed in between is noticed: its
    /// index is not where it was.
    fn read_part(
        &mut self,
        index: &Path,
        is_wanted: &mut impl FnMut(&Extent) -> bool,
        take: &mut impl FnMut(Line),
    ) -> io::Result<()> {
        let identity = |path: &Path| fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino()));
        let key = identity(index)?;
        let Some((log_path, worker)) = log_of(index) else { return Ok(()) };
        let mut extents = Vec::new();
        let from = self.positions.get(&key).copied().unwrap_or(0);
        let position = read_extents(index, from, |extent| {
            if is_wanted(&extent) {
                extents.push(extent);
            }
        })?;
        if !extents.is_empty() {
            let log = File::open(&log_path)?;
            if identity(index)? != key {
                return Ok(());
            }
            let mut bytes = Vec::new();
            for extent in extents {
                bytes.resize(extent.length as usize, 0);
                log.read_exact_at(&mut bytes, extent.offset)
                    .map_err(|error| io::Error::new(error.kind(), format!("`{}`: {error}", log_path.display())))?;
                self.join(&Piece { extent, worker, index_inode: key.1, bytes: &bytes }, take);
            }
        }
        self.positions.insert(key, position);
        Ok(())
    }

    /// Puts a piece behind what its writer wrote before, and takes the lines that are whole.
    fn join(&mut self, piece: &Piece<'_>, take: &mut impl FnMut(Line)) {
        let Piece { extent, worker, index_inode, bytes } = piece;
        let (task, attempt) = match extent.owner {
            Owner::None | Owner::Unmarked => return,
            Owner::Attempt { task, attempt, .. } => (task.0, attempt),
            Owner::Actor(actor) => (actor.0, 0),
        };
        let key = (worker.0, extent.stream == Stream::Stderr, task, attempt, extent.is_approximate);
        let mut offset = extent.offset;
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            let place = (*index_inode, offset);
            offset += part.len() as u64;
            let line = self.open.entry(key).or_insert_with(|| Line {
                owner: extent.owner,
                is_approximate: extent.is_approximate,
                stream: extent.stream,
                worker: *worker,
                unix_nano: extent.unix_nano,
                text: String::new(),
                place,
            });
            let (text, is_whole) = match part.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (part, false),
            };
            line.text.push_str(&String::from_utf8_lossy(text));
            if is_whole || line.text.len() >= LINE_LIMIT {
                self.open.remove(&key).into_iter().for_each(&mut *take);
            }
        }
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
