//! The logs of a session: the head's own, and one for each worker, with its index ([`tracer_ipc::task_output`]). That of the HTTP API's process is
//! kept short by that process.
//!
//! All together they stay within a bound. A log is written in parts; when the bound is reached, the oldest part goes that nobody writes to any
//! more, and the log that it belonged to says so where it goes on. A task never waits for its log: what cannot be written is counted, and gone.

use std::collections::{HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use tracer_core::count::Size;
use tracer_core::task::WorkerId;
use tracer_ipc::task_output::{Extent, HEADER, index_path};

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
    /// Path of the part that is written. Older parts have a number behind it.
    path: PathBuf,
    /// None when it could not be opened.
    file: Option<File>,
    /// None until there is something to put into it.
    index: Option<File>,
    size: u64,
    /// Bytes of the index beside this part.
    index_size: u64,
    /// Number of older parts that there ever were.
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
        let log = Log {
            path: path.clone(),
            file: Some(open(&path)?),
            index: None,
            size: 0,
            index_size: 0,
            parts: 0,
            unsaid: 0,
        };
        self.open.insert(worker, log);
        Ok(path)
    }

    /// Notes that a worker has ended.
    pub(super) fn close(&mut self, worker: WorkerId) {
        if let Some(log) = self.open.remove(&worker) {
            self.closed.push_back(Part { worker, size: log.size + log.index_size, path: log.path });
        }
    }

    /// Writes what a worker has written, and who did: extents whose offsets count from the beginning of `bytes`.
    ///
    /// What was read at once may be more than a part, and more than all of them: it is written piece by piece, so that the end of it stays.
    pub(super) fn write(&mut self, worker: WorkerId, bytes: &[u8], extents: &[Extent]) {
        let most = usize::try_from(self.limit / PARTS).unwrap_or(usize::MAX).max(1);
        let mut start = 0;
        while bytes.len() - start > most {
            let piece = &bytes[start..start + most];
            // After a line, if there is one: a part begins with a whole one.
            let length = piece.iter().rposition(|byte| *byte == b'\n').map_or(most, |end| end + 1);
            self.write_piece(worker, &bytes[start..start + length], &within(extents, start, length));
            start += length;
        }
        if start == 0 {
            return self.write_piece(worker, bytes, extents);
        }
        self.write_piece(worker, &bytes[start..], &within(extents, start, bytes.len() - start));
    }

    fn write_piece(&mut self, worker: WorkerId, bytes: &[u8], extents: &[Extent]) {
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
        let start = log.size;
        let of_these = log.append(bytes);
        self.dropped += size - of_these;
        self.total += written + of_these + log.append_index(extents, start);
    }

    /// Notes that a worker's log goes on in a new part.
    fn begin_part(&mut self, worker: WorkerId) {
        let Some(log) = self.open.get_mut(&worker) else { return };
        log.parts += 1;
        let older = PathBuf::from(format!("{}.{}", log.path.display(), log.parts));
        if std::fs::rename(&log.path, &older).is_ok() {
            // It is not there if nothing was put into it.
            let _ = std::fs::rename(index_path(&log.path), index_path(&older));
            self.closed.push_back(Part { worker, path: older, size: log.size + log.index_size });
            (log.size, log.index_size, log.index) = (0, 0, None);
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
        let _ = std::fs::remove_file(index_path(&part.path));
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
        let written = write_some(file, bytes);
        self.size += written;
        written
    }

    /// Puts extents into the index, those whose bytes begin at `start` and were written, and returns how many bytes that took.
    fn append_index(&mut self, extents: &[Extent], start: u64) -> u64 {
        let mut records = Vec::new();
        for extent in extents {
            let offset = start + extent.offset;
            let left = u32::try_from(self.size.saturating_sub(offset)).unwrap_or(u32::MAX);
            let extent = Extent { offset, length: extent.length.min(left), ..*extent };
            if extent.length > 0 {
                records.extend_from_slice(&extent.encode());
            }
        }
        if records.is_empty() {
            return 0;
        }
        if self.index.is_none() {
            self.index = open(&index_path(&self.path)).ok();
            records.splice(..0, HEADER);
        }
        let Some(index) = &mut self.index else { return 0 };
        let written = write_some(index, &records);
        if written < records.len() as u64 {
            // A record that is cut must not shift those that follow.
            let _ = index.set_len(self.index_size);
            return 0;
        }
        self.index_size += written;
        written
    }
}

/// Returns the parts of extents that lie in so many bytes from a start on, with offsets from there.
fn within(extents: &[Extent], start: usize, length: usize) -> Vec<Extent> {
    let (start, end) = (start as u64, (start + length) as u64);
    let cut = |extent: &Extent| {
        let (first, last) = (extent.offset.max(start), (extent.offset + u64::from(extent.length)).min(end));
        let length = u32::try_from(last.checked_sub(first)?).ok().filter(|length| *length > 0)?;
        Some(Extent { offset: first - start, length, ..*extent })
    };
    extents.iter().filter_map(cut).collect()
}

/// Writes what there is room for on the disk, and returns how much that was: a full disk must not keep a task from running.
fn write_some(file: &mut File, bytes: &[u8]) -> u64 {
    let mut written = 0;
    while written < bytes.len() {
        match file.write(&bytes[written..]) {
            Ok(0) => break,
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    written as u64
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
    /// Lines that could not be written.
    waiting: Vec<u8>,
}

/// Bytes of lines that wait for a disk that is full; further lines are lost.
const WAITING_LIMIT: usize = 64 << 10;

impl HeadLog {
    /// Opens it, to take so many bytes at most.
    pub(super) fn open(path: PathBuf, limit: u64) -> io::Result<HeadLog> {
        let file = open(&path)?;
        Ok(HeadLog { file, size: 0, limit: limit / 2, path, waiting: Vec::new() })
    }

    /// Writes a line, behind those that could not be written. Where it cannot be written it waits for the next one.
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
        if self.waiting.len() + line.len() <= WAITING_LIMIT {
            self.waiting.extend_from_slice(line.as_bytes());
        }
        self.write_waiting();
    }

    /// Tries again to write the lines that could not be written.
    pub(super) fn write_waiting(&mut self) {
        while !self.waiting.is_empty()
            && let Ok(written @ 1..) = self.file.write(&self.waiting)
        {
            self.waiting.drain(..written);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tracer_core::task::TaskId;
    use tracer_ipc::protocol::Stream;
    use tracer_ipc::task_output::{Owner, read_extents};

    use super::*;

    fn on_disk(folder: &Path) -> u64 {
        folder.read_dir().unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
    }

    /// The extent of what a task writes at once.
    fn extent(size: usize) -> Extent {
        let owner = Owner::Attempt { task: TaskId(3), attempt: 1, trace_id: [1; 16] };
        Extent { offset: 0, length: size as u32, stream: Stream::Stdout, owner, is_approximate: false, unix_nano: 1 }
    }

    #[test]
    fn an_extent_names_its_bytes_in_each_part() {
        let folder = tempfile::tempdir().unwrap();
        let mut logs = Logs::new(folder.path().into(), 100_000);
        logs.open(WorkerId(1), 7).unwrap();
        for number in 0..300 {
            logs.write(WorkerId(1), format!("line {number:03} {}\n", "x".repeat(90)).as_bytes(), &[extent(100)]);
        }
        let mut found = 0;
        for part in ["worker-1-7.log.1", "worker-1-7.log.2", "worker-1-7.log"] {
            let log = folder.path().join(part);
            let text = std::fs::read(&log).unwrap();
            read_extents(&index_path(&log), 0, |extent| {
                let line = &text[extent.offset as usize..][..extent.length as usize];
                assert!(line.starts_with(format!("line {found:03} ").as_bytes()) && line.ends_with(b"\n"), "{part}");
                found += 1;
            })
            .unwrap();
        }
        assert_eq!(found, 300);
    }

    #[test]
    fn what_was_read_at_once_may_be_more_than_the_bound_and_its_end_stays() {
        let folder = tempfile::tempdir().unwrap();
        let mut logs = Logs::new(folder.path().into(), 80_000);
        let worker = WorkerId(1);
        logs.open(worker, 7).unwrap();
        let text: String = (0..10_000).map(|number| format!("{number:0>99}\n")).collect();
        logs.write(worker, text.as_bytes(), &[extent(text.len())]);
        let size = on_disk(folder.path());
        assert!((40_000..=80_400).contains(&size), "{size} bytes are kept of {}", text.len());
        let log = folder.path().join("worker-1-7.log");
        let last = std::fs::read_to_string(&log).unwrap();
        assert!(last.ends_with("9999\n"), "the newest is kept");
        // All of it but what tracer says itself is the task's.
        let mut owned = 0;
        read_extents(&index_path(&log), 0, |extent| owned += extent.length as usize).unwrap();
        let said: usize = last.lines().filter(|line| line.starts_with("tracer: ")).map(|line| line.len() + 1).sum();
        assert_eq!(owned + said, last.len());
    }

    #[test]
    fn a_log_that_is_too_long_loses_its_oldest_part_and_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let mut logs = Logs::new(folder.path().into(), 80_000);
        let worker = WorkerId(1);
        logs.open(worker, 7).unwrap();
        (0..1000).for_each(|number| logs.write(worker, format!("{number:0>99}\n").as_bytes(), &[]));
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
        fn whatever_is_written_the_bound_holds(writes in prop::collection::vec((1_u64..6, prop_oneof![9 => 1_usize..3000, 1 => 1_usize..50_000], any::<bool>()), 1..200)) {
            let folder = tempfile::tempdir().unwrap();
            let mut logs = Logs::new(folder.path().into(), 20_000);
            let mut written = 0;
            for (worker, size, ends) in writes {
                let worker = WorkerId(worker);
                if !logs.open.contains_key(&worker) {
                    logs.open(worker, written as u32).unwrap();
                }
                logs.write(worker, &vec![b'x'; size], &[extent(size)]);
                written += size as u64;
                let found = on_disk(folder.path());
                // What is said of dropped output comes beside.
                prop_assert!(found <= 20_000 + 400, "{found} bytes");
                prop_assert!(found + logs.dropped() >= written, "{found} bytes, and {} dropped, of {written}", logs.dropped());
                if ends {
                    logs.close(worker);
                }
            }
        }
    }
}
