use std::fs::OpenOptions;
use std::io::Write;

use super::*;
use crate::task_output::HEADER;

/// A worker's log that is written as the head writes it.
struct Worker {
    log: PathBuf,
    size: u64,
}

impl Worker {
    fn new(session: &Path, name: &str) -> Worker {
        let folder = session.join("logs");
        fs::create_dir_all(&folder).unwrap();
        Worker { log: folder.join(name), size: 0 }
    }

    fn append(path: &Path, bytes: &[u8]) {
        OpenOptions::new().create(true).append(true).open(path).unwrap().write_all(bytes).unwrap();
    }

    fn write(&mut self, task: u64, stream: Stream, unix_nano: u64, text: &str) {
        let owner = Owner::Attempt { task: TaskId(task), attempt: 1, trace_id: [0; 16] };
        let length = u32::try_from(text.len()).unwrap();
        let extent = Extent { offset: self.size, length, stream, owner, is_approximate: false, unix_nano };
        if self.size == 0 {
            Worker::append(&index_path(&self.log), &HEADER);
        }
        Worker::append(&self.log, text.as_bytes());
        Worker::append(&index_path(&self.log), &extent.encode());
        self.size += text.len() as u64;
    }

    fn begin_part(&mut self) {
        let older = PathBuf::from(format!("{}.1", self.log.display()));
        fs::rename(&self.log, &older).unwrap();
        fs::rename(index_path(&self.log), index_path(&older)).unwrap();
        self.size = 0;
    }
}

fn of_task(task: u64) -> impl FnMut(&Extent) -> bool {
    move |extent| task_of(extent.owner) == Some(TaskId(task))
}

fn texts(lines: &[Line]) -> Vec<&str> {
    lines.iter().map(|line| line.text.as_str()).collect()
}

impl TaskLogs {
    /// Reads the lines that have come since the last time, by the time at which their beginning was read.
    fn read(&mut self, is_wanted: impl FnMut(&Extent) -> bool) -> io::Result<Vec<Line>> {
        let mut lines = Vec::new();
        self.each(is_wanted, |line| lines.push(line))?;
        lines.sort_by_key(|line| line.unix_nano);
        Ok(lines)
    }
}

#[test]
fn lines_of_one_task_are_found_in_all_logs_by_time() {
    let session = tempfile::tempdir().unwrap();
    let mut one = Worker::new(session.path(), "worker-1-70.log");
    let mut other = Worker::new(session.path(), "worker-2-71.log");
    one.write(7, Stream::Stdout, 30, "third\n");
    one.write(8, Stream::Stdout, 31, "of another\n");
    other.write(7, Stream::Stdout, 10, "first\nsec");
    other.write(8, Stream::Stderr, 20, "of another\n");
    other.write(7, Stream::Stdout, 21, "ond\n");
    let found = TaskLogs::of_session(session.path()).read(of_task(7)).unwrap();
    assert_eq!(texts(&found), ["first", "second", "third"]);
    assert_eq!([found[1].worker, found[2].worker], [(2, 71), (1, 70)]);
    assert_eq!(found[1].unix_nano, 10, "the time at which the line began");
}

#[test]
fn halves_of_lines_of_two_streams_are_not_mixed() {
    let session = tempfile::tempdir().unwrap();
    let mut worker = Worker::new(session.path(), "worker-1-70.log");
    worker.write(7, Stream::Stdout, 1, "out ");
    worker.write(7, Stream::Stderr, 2, "err ");
    worker.write(7, Stream::Stdout, 3, "put\n");
    worker.write(7, Stream::Stderr, 4, "or");
    let mut logs = TaskLogs::of_session(session.path());
    assert_eq!(texts(&logs.read(of_task(7)).unwrap()), ["out put"]);
    assert_eq!(texts(&logs.take_rest()), ["err or"]);
}

#[test]
fn a_log_is_followed_into_its_next_part() {
    let session = tempfile::tempdir().unwrap();
    let mut worker = Worker::new(session.path(), "worker-1-70.log");
    let mut logs = TaskLogs::of_session(session.path());
    worker.write(7, Stream::Stdout, 1, "one\n");
    assert_eq!(texts(&logs.read(of_task(7)).unwrap()), ["one"]);
    worker.write(7, Stream::Stdout, 2, "two\n");
    worker.begin_part();
    worker.write(7, Stream::Stdout, 3, "three\n");
    assert_eq!(texts(&logs.read(of_task(7)).unwrap()), ["two", "three"]);
    assert!(logs.read(of_task(7)).unwrap().is_empty());
}

#[test]
fn a_line_without_end_comes_in_pieces() {
    let session = tempfile::tempdir().unwrap();
    let mut worker = Worker::new(session.path(), "worker-1-70.log");
    let mut logs = TaskLogs::of_session(session.path());
    worker.write(7, Stream::Stdout, 1, &"x".repeat(3 * LINE_LIMIT));
    assert_eq!(logs.read(of_task(7)).unwrap().len(), 1);
    assert!(logs.take_rest().is_empty());
}
