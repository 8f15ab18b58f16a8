//! The logs of a session: the head's own, and one for each worker. That of the HTTP API's process is kept short by that process.
//!
//! All together they stay within a bound. A log is written in parts; when the bound is reached, the oldest part goes that nobody writes to any
//! more, and the log that it belonged to says so where it goes on. A task never waits for its log: what cannot be written is counted, and gone.

use std::collections::{HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::count::Size;
use crate::task::WorkerId;

/// The parts that fit into the bound: so much of it goes at a time.
const PARTS: u64 = 8;

/// The logs of workers.
#[derive(Debug)]
pub(super) struct Logs {
    folder: PathBuf,
    limit: u64,
    /// Bytes in all parts.
    total: u64,
    /// Parts that nobody writes to any more, oldest first.
    closed: VecDeque<Part>,
    open: HashMap<WorkerId, Log>,
    dropped: u64,
}

/// A part that nobody writes to any more.
#[derive(Debug)]
struct Part {
    worker: WorkerId,
    path: PathBuf,
    size: u64,
}

/// The log of a worker that lives.
#[derive(Debug)]
struct Log {
    /// Where it is written now. Older parts have a number behind that.
    path: PathBuf,
    /// None when it could not be opened.
    file: Option<File>,
    size: u64,
    /// How many older parts there ever were.
    parts: u64,
    /// Bytes of it that are gone, and of which it does not say so yet.
    unsaid: u64,
}

impl Logs {
    /// Logs in this folder, which take so many bytes at most.
    pub(super) fn new(folder: PathBuf, limit: u64) -> Logs {
        Logs { folder, limit, total: 0, closed: VecDeque::new(), open: HashMap::new(), dropped: 0 }
    }

    /// Bytes that are gone because there was no room for them.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Opens the log of a worker.
    pub(super) fn open(&mut self, worker: WorkerId, pid: u32) -> io::Result<()> {
        self.open_as(worker, &format!("worker-{worker}-{pid}.log")).map(drop)
    }

    /// Opens the log of a worker, with this name, and returns where it is.
    pub(super) fn open_as(&mut self, worker: WorkerId, name: &str) -> io::Result<PathBuf> {
        let path = self.folder.join(name);
        let file = Some(open(&path)?);
        self.open.insert(worker, Log { path: path.clone(), file, size: 0, parts: 0, unsaid: 0 });
        Ok(path)
    }

    /// A worker has ended.
    pub(super) fn close(&mut self, worker: WorkerId) {
        if let Some(log) = self.open.remove(&worker) {
            self.closed.push_back(Part { worker, path: log.path, size: log.size });
        }
    }

    /// Writes what a worker has written.
    pub(super) fn write(&mut self, worker: WorkerId, bytes: &[u8]) {
        let size = bytes.len() as u64;
        let Some(log) = self.open.get(&worker) else { return };
        if log.size > 0 && log.size + size > self.limit / PARTS {
            self.begin_part(worker);
        }
        while self.total + size > self.limit {
            if !self.make_room() {
                self.dropped += size;
                return;
            }
        }
        let (limit, Some(log)) = (self.limit, self.open.get_mut(&worker)) else { return };
        let mut written = 0;
        if log.unsaid > 0 {
            let (gone, limit) = (Size(std::mem::take(&mut log.unsaid)), Size(limit));
            let line = format!(
                "tracer: {gone} of older output were dropped here: the logs of a session take {limit} at most (--max-log-size)\n"
            );
            written += log.append(line.as_bytes());
        }
        let of_these = log.append(bytes);
        self.dropped += size - of_these;
        self.total += written + of_these;
    }

    /// A worker's log goes on in a new part.
    fn begin_part(&mut self, worker: WorkerId) {
        let Some(log) = self.open.get_mut(&worker) else { return };
        log.parts += 1;
        let older = PathBuf::from(format!("{}.{}", log.path.display(), log.parts));
        if std::fs::rename(&log.path, &older).is_ok() {
            self.closed.push_back(Part { worker, path: older, size: log.size });
            log.size = 0;
            log.file = open(&log.path).ok();
        }
    }

    /// Removes the oldest part. False when there is nothing to remove.
    fn make_room(&mut self) -> bool {
        if self.closed.is_empty() {
            // Many logs that are written to, and none of them large.
            let largest = self.open.iter().filter(|(_, log)| log.size > 0).max_by_key(|(_, log)| log.size);
            let Some((&worker, _)) = largest else { return false };
            self.begin_part(worker);
        }
        let Some(part) = self.closed.pop_front() else { return false };
        // What somebody else has removed takes no room either.
        let _ = std::fs::remove_file(&part.path);
        self.total = self.total.saturating_sub(part.size);
        self.dropped += part.size;
        if let Some(log) = self.open.get_mut(&part.worker) {
            log.unsaid += part.size;
        }
        true
    }
}

impl Log {
    /// Writes what there is room for on the disk, and returns how much that was.
    fn append(&mut self, bytes: &[u8]) -> u64 {
        let Some(file) = &mut self.file else { return 0 };
        let mut written = 0;
        while written < bytes.len() {
            match file.write(&bytes[written..]) {
                Ok(0) => break,
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A full disk must not keep the task from running.
                Err(_) => break,
            }
        }
        self.size += written as u64;
        written as u64
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// The log of the head itself, in two parts: the one that it writes, and the one before.
#[derive(Debug)]
pub(super) struct HeadLog {
    path: PathBuf,
    file: File,
    size: u64,
    limit: u64,
}

impl HeadLog {
    /// Opens it, to take so many bytes at most.
    pub(super) fn open(path: PathBuf, limit: u64) -> io::Result<HeadLog> {
        let file = open(&path)?;
        Ok(HeadLog { file, size: 0, limit: limit / 2, path })
    }

    /// Writes a line.
    pub(super) fn write(&mut self, line: &str) {
        if self.size + line.len() as u64 > self.limit {
            let older = PathBuf::from(format!("{}.1", self.path.display()));
            if std::fs::rename(&self.path, older).is_ok()
                && let Ok(file) = open(&self.path)
            {
                (self.file, self.size) = (file, 0);
            }
        }
        self.size += line.len() as u64;
        // Where the log cannot be written, there is nobody to tell.
        let _ = self.file.write_all(line.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn on_disk(folder: &Path) -> u64 {
        folder.read_dir().unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
    }

    #[test]
    fn a_log_that_is_too_long_loses_its_oldest_part_and_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let mut logs = Logs::new(folder.path().into(), 80_000);
        let worker = WorkerId(1);
        logs.open(worker, 7).unwrap();
        (0..1000).for_each(|number| logs.write(worker, format!("{number:0>99}\n").as_bytes()));
        assert!(on_disk(folder.path()) <= 80_000 && logs.dropped() >= 20_000, "{} were dropped", logs.dropped());
        let last = std::fs::read_to_string(folder.path().join("worker-1-7.log")).unwrap();
        assert!(last.ends_with("999\n"), "the newest is kept");
        let all =
            folder.path().read_dir().unwrap().map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap());
        let said = all.filter(|text| text.contains("of older output were dropped here")).count();
        assert!(said > 0, "it says that something is gone");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn whatever_is_written_the_bound_holds(writes in prop::collection::vec((1_u64..6, 1_usize..3000, any::<bool>()), 1..200)) {
            let folder = tempfile::tempdir().unwrap();
            let mut logs = Logs::new(folder.path().into(), 20_000);
            let mut written = 0;
            for (worker, size, ends) in writes {
                let worker = WorkerId(worker);
                if !logs.open.contains_key(&worker) {
                    logs.open(worker, written as u32).unwrap();
                }
                logs.write(worker, &vec![b'x'; size]);
                written += size as u64;
                let found = on_disk(folder.path());
                // What is said of dropped output comes beside.
                prop_assert!(found <= 20_000 + 200, "{found} bytes");
                prop_assert!(found + logs.dropped() >= written, "{found} bytes, and {} dropped, of {written}", logs.dropped());
                if ends {
                    logs.close(worker);
                }
            }
        }
    }
}
