use std::fs::OpenOptions;
use std::io::Write;

use tracer_ipc::task_output::HEADER;

use super::*;

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
        self.write_bytes(task, stream, unix_nano, text.as_bytes());
    }

    fn write_bytes(&mut self, task: u64, stream: Stream, unix_nano: u64, text: &[u8]) {
        let owner = Owner::Attempt { task: TaskId(task), attempt: 1, trace_id: [0; 16] };
        let length = u32::try_from(text.len()).unwrap();
        let extent = Extent { offset: self.size, length, stream, owner, is_approximate: false, unix_nano };
        if self.size == 0 {
            Worker::append(&index_path(&self.log), &HEADER);
        }
        Worker::append(&self.log, text);
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
    /// Reads the lines that have come since the last time.
    fn read_all(&mut self, is_last: bool, mut is_wanted: impl FnMut(&Extent) -> bool) -> io::Result<Vec<Line>> {
        let mut lines = Vec::new();
        self.begin(is_last, None, &mut is_wanted)?;
        while let Some(line) = self.take(&mut is_wanted)? {
            lines.push(line);
        }
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
    let found = TaskLogs::of_session(session.path()).read_all(false, of_task(7)).unwrap();
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
    assert_eq!(texts(&logs.read_all(false, of_task(7)).unwrap()), ["out put"]);
    let rest = logs.read_all(true, of_task(7)).unwrap();
    assert_eq!((texts(&rest), rest[0].is_partial), (vec!["err or"], true));
}

#[test]
fn a_log_is_followed_into_its_next_part() {
    let session = tempfile::tempdir().unwrap();
    let mut worker = Worker::new(session.path(), "worker-1-70.log");
    let mut logs = TaskLogs::of_session(session.path());
    worker.write(7, Stream::Stdout, 1, "one\n");
    assert_eq!(texts(&logs.read_all(false, of_task(7)).unwrap()), ["one"]);
    worker.write(7, Stream::Stdout, 2, "two\n");
    worker.begin_part();
    worker.write(7, Stream::Stdout, 3, "three\n");
    assert_eq!(texts(&logs.read_all(false, of_task(7)).unwrap()), ["two", "three"]);
    assert!(logs.read_all(false, of_task(7)).unwrap().is_empty());
}

#[test]
fn a_line_without_end_comes_in_pieces() {
    let session = tempfile::tempdir().unwrap();
    let mut worker = Worker::new(session.path(), "worker-1-70.log");
    let mut logs = TaskLogs::of_session(session.path());
    worker.write(7, Stream::Stdout, 1, &format!("{}\n{}", "x".repeat(3 * LINE_LIMIT), "y".repeat(LINE_LIMIT)));
    worker.write(7, Stream::Stdout, 2, "\n");
    let found = logs.read_all(false, of_task(7)).unwrap();
    assert_eq!(found.iter().map(|line| line.text.len()).collect::<Vec<_>>(), [LINE_LIMIT; 4]);
    assert_eq!(found.iter().map(|line| line.is_partial).collect::<Vec<_>>(), [true, true, false, false]);
    assert_eq!(found[1].place.1, LINE_LIMIT as u64);
    assert!(logs.read_all(true, of_task(7)).unwrap().is_empty());
}

#[test]
fn a_character_may_come_in_pieces() {
    let text = "ab é€😀\n";
    for size in 1..text.len() {
        let session = tempfile::tempdir().unwrap();
        let mut worker = Worker::new(session.path(), "worker-1-70.log");
        let pieces = text.as_bytes().chunks(size);
        pieces.for_each(|piece| worker.write_bytes(7, Stream::Stdout, 1, piece));
        let found = TaskLogs::of_session(session.path()).read_all(false, of_task(7)).unwrap();
        assert_eq!(texts(&found), [text.trim_end()], "{size}");
    }
    let session = tempfile::tempdir().unwrap();
    let mut worker = Worker::new(session.path(), "worker-1-70.log");
    let long = "€".repeat(LINE_LIMIT);
    worker.write(7, Stream::Stdout, 1, &format!("{long}\n"));
    worker.write_bytes(7, Stream::Stdout, 2, b"\xe2\x82");
    let found = TaskLogs::of_session(session.path()).read_all(true, of_task(7)).unwrap();
    let (rest, pieces) = found.split_last().unwrap();
    assert!(texts(pieces).concat() == long && rest.text == "\u{fffd}", "{rest:?}");
}

#[test]
fn a_line_that_does_not_end_holds_back_no_more_than_a_line() {
    let session = tempfile::tempdir().unwrap();
    let mut worker = Worker::new(session.path(), "worker-1-70.log");
    worker.write_bytes(7, Stream::Stdout, 1, b"begun \xc3");
    for number in 0..3 * LINE_LIMIT / 64 {
        worker.write(8, Stream::Stdout, 2, &format!("{number:063}\n"));
    }
    worker.write_bytes(7, Stream::Stdout, 3, b"\xa9 ended\n");
    let mut logs = TaskLogs::of_session(session.path());
    let mut found = logs.read_all(true, |_| true).unwrap();
    let own: Vec<_> = found.extract_if(.., |line| task_of(line.owner) == Some(TaskId(7))).collect();
    assert_eq!((texts(&own), own[0].is_partial, own[1].is_partial), (vec!["begun ", "é ended"], true, false));
    assert_eq!(found.len(), 3 * LINE_LIMIT / 64);
    let alone = TaskLogs::of_session(session.path()).read_all(true, of_task(7)).unwrap();
    assert_eq!(alone, own, "the pieces are the same, whatever else is wanted");
    let followed = TaskLogs::of_session(session.path()).read_all(false, of_task(7)).unwrap();
    assert_eq!(followed, own);
}

#[test]
fn lines_of_many_workers_are_merged_by_time() {
    let session = tempfile::tempdir().unwrap();
    let count = 3 * u64::try_from(OPEN_FILES).unwrap();
    for number in 0..count {
        let mut worker = Worker::new(session.path(), &format!("worker-{number}-70.log"));
        for line in 0..40 {
            worker.write(7, Stream::Stdout, line * count + number, &format!("{}\n", line * count + number));
        }
        worker.begin_part();
        worker.write(7, Stream::Stdout, 40 * count + number, &format!("{}\n", 40 * count + number));
    }
    let found = TaskLogs::of_session(session.path()).read_all(true, of_task(7)).unwrap();
    let expected: Vec<_> = (0..41 * count).map(|number| number.to_string()).collect();
    assert!(texts(&found) == expected, "{}", found.len());
}

#[test]
fn the_newest_lines_are_whole_and_what_is_before_them_is_not_read() {
    let session = tempfile::tempdir().unwrap();
    let mut worker = Worker::new(session.path(), "worker-1-70.log");
    let lines = 32 * LINE_LIMIT / 64;
    for number in 0..lines {
        let stream = if number % 3 == 0 { Stream::Stderr } else { Stream::Stdout };
        worker.write(7, stream, number as u64, &format!("{number:063}\n"));
        worker.write(8, Stream::Stdout, number as u64, &format!("{:063}\n", "another's"));
        if number == lines / 2 {
            worker.begin_part();
        }
    }
    let mut logs = TaskLogs::of_session(session.path());
    logs.begin(true, Some(2), of_task(7)).unwrap();
    let mut found = Vec::new();
    while let Some(line) = logs.take(of_task(7)).unwrap() {
        found.push(line.text);
    }
    assert!(found.len() < lines / 2, "{} of {lines}", found.len());
    let first = lines - found.len();
    let expected = (first..lines).map(|number| format!("{number:063}"));
    assert!(expected.eq(found.iter().cloned()), "from {first}: {:?}", &found[..2]);
    // What comes after is read as ever.
    worker.write(7, Stream::Stdout, lines as u64, "next\n");
    assert_eq!(texts(&logs.read_all(true, of_task(7)).unwrap()), ["next"]);
}

#[test]
fn a_part_that_is_renamed_or_removed_while_it_is_read_is_read_to_its_end() {
    let session = tempfile::tempdir().unwrap();
    let mut worker = Worker::new(session.path(), "worker-1-70.log");
    let lines = 4 * LINE_LIMIT / 64;
    (0..lines).for_each(|number| worker.write(7, Stream::Stdout, 1, &format!("{number:063}\n")));
    let mut logs = TaskLogs::of_session(session.path());
    logs.begin(true, None, of_task(7)).unwrap();
    assert!(logs.take(of_task(7)).unwrap().is_some());
    worker.begin_part();
    worker.write(7, Stream::Stdout, 2, "next\n");
    let mut count = 1;
    while logs.take(of_task(7)).unwrap().is_some() {
        count += 1;
    }
    assert_eq!(count, lines);
    assert_eq!(texts(&logs.read_all(true, of_task(7)).unwrap()), ["next"]);
}

impl TaskLogs {
    /// Returns how many bytes of logs are in memory.
    fn bytes_in_memory(&self) -> usize {
        self.workers.iter().map(WorkerLog::bytes_in_memory).sum()
    }
}

/// Of each log the line that is next was in memory: of ten thousand, 600 MiB.
#[test]
fn lines_of_many_logs_are_not_in_memory_before_their_turn() {
    const LOGS: u64 = 2000;
    let session = tempfile::tempdir().unwrap();
    let text = "x".repeat(20_000);
    for number in 0..LOGS {
        let mut worker = Worker::new(session.path(), &format!("worker-{number}-70.log"));
        worker.write(7, Stream::Stdout, LOGS - number, &format!("{number} {text}\n"));
        worker.write(7, Stream::Stdout, 2 * LOGS - number, &format!("{number} {text}\n"));
    }
    let mut logs = TaskLogs::of_session(session.path());
    logs.begin(false, None, |_| true).unwrap();
    for number in (0..LOGS).rev().chain((0..LOGS).rev()) {
        let line = logs.take(|_| true).unwrap().unwrap();
        assert!(line.text.len() > text.len() && line.text.starts_with(&format!("{number} ")), "{:.20}", line.text);
        assert!(logs.bytes_in_memory() <= WINDOWS + LINE_LIMIT, "{} bytes", logs.bytes_in_memory());
    }
    assert_eq!(logs.take(|_| true).unwrap(), None);
}

#[test]
fn a_line_behind_one_that_has_not_ended_waits_for_its_turn() {
    let session = tempfile::tempdir().unwrap();
    let mut one = Worker::new(session.path(), "worker-1-70.log");
    let mut other = Worker::new(session.path(), "worker-2-71.log");
    one.write(7, Stream::Stdout, 10, "begun");
    one.write(7, Stream::Stderr, 30, "third\n");
    other.write(7, Stream::Stdout, 20, "second\n");
    other.write(7, Stream::Stdout, 40, "fourth\n");
    let mut logs = TaskLogs::of_session(session.path());
    assert_eq!(texts(&logs.read_all(false, of_task(7)).unwrap()), ["second", "third", "fourth"]);
    one.write(7, Stream::Stdout, 50, " and ended\n");
    assert_eq!(texts(&logs.read_all(false, of_task(7)).unwrap()), ["begun and ended"]);
}

#[test]
fn where_much_waits_for_ends_of_lines_they_come_in_pieces() {
    const LOGS: u64 = 400;
    const LENGTH: usize = 60_000;
    let session = tempfile::tempdir().unwrap();
    for number in 0..LOGS {
        let mut worker = Worker::new(session.path(), &format!("worker-{number}-70.log"));
        worker.write(7, Stream::Stdout, number, "begun");
        worker.write(7, Stream::Stderr, LOGS + number, &format!("{}\n", "x".repeat(LENGTH)));
    }
    let mut logs = TaskLogs::of_session(session.path());
    logs.begin(true, None, |_| true).unwrap();
    let (mut begun, mut rest) = (0, 0);
    while let Some(line) = logs.take(|_| true).unwrap() {
        match line.stream {
            Stream::Stdout => begun += line.text.len(),
            Stream::Stderr => rest += line.text.len(),
        }
        let most = WINDOWS + WAITING + 2 * LINE_LIMIT;
        assert!(logs.bytes_in_memory() <= most, "{} bytes", logs.bytes_in_memory());
    }
    assert_eq!((begun, rest), (LOGS as usize * "begun".len(), LOGS as usize * LENGTH), "nothing is lost");
}
