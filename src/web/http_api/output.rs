//! Output of tasks that were submitted here, kept for those who follow it.
//!
//! Bounded in every direction: what is over a bound goes from the front, and whoever follows is told how much it missed. A follower
//! that is slow or dead holds nothing up, because nobody waits for it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;
use tracer_client::driver::TaskOutput;
use tracer_core::escape::whole_characters;
use tracer_core::lock::lock;
use tracer_core::task::TaskId;
use tracer_ipc::protocol::Stream;

/// Bytes of a task's output that are kept.
pub(super) const TASK_BYTES: usize = 1 << 20;
/// Bytes of output that are kept of all tasks.
const ALL_BYTES: usize = 64 << 20;
/// Tasks whose output is kept.
pub(super) const TASKS: usize = 1024;
/// Bytes of a line that are kept without waiting for its end.
const LINE_BYTES: usize = 8192;
/// Bytes that a line takes besides its text.
const LINE_COST: usize = 64;

/// A line that a task has written, or a piece of a long one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) stream: Stream,
    pub(super) worker_pid: u32,
    /// True if other calls of the same actor ran meanwhile, any of which may have written it.
    pub(super) is_shared: bool,
    /// The node that ran it, of a task of a queue.
    pub(super) node_id: Box<str>,
    pub(super) text: String,
}

/// An entry of what is kept, each with a number of its own.
enum Entry {
    Line(Line),
    /// Number of lines that did not arrive from another node.
    Lost(u64),
}

/// The output of one task.
#[derive(Default)]
pub(super) struct TaskLog {
    state: Mutex<LogState>,
    changed: Notify,
}

#[derive(Default)]
struct LogState {
    lines: VecDeque<Entry>,
    /// The number of the first line that is there. Lines are counted from 1.
    first: u64,
    bytes: usize,
    /// Beginnings of lines that have not ended, for each stream.
    pending: Vec<Pending>,
    has_ended: bool,
}

/// The beginning of a line that has not ended.
struct Pending {
    stream: Stream,
    worker_pid: u32,
    is_shared: bool,
    node_id: Box<str>,
    text: Vec<u8>,
}

/// The next item that a follower gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A line, with its number.
    Line(u64, Line),
    /// Number of lines that were there and are not kept any more.
    Missed(u64),
    /// Number of lines that did not arrive from another node, with the number that stands for all of them.
    Lost(u64, u64),
    /// The task has ended, and there is no more.
    End,
}

impl TaskLog {
    fn push(&self, output: &TaskOutput) -> usize {
        let mut state = lock(&self.state);
        state.push(output);
        let bytes = state.bytes;
        drop(state);
        self.changed.notify_waiters();
        bytes
    }

    fn end(&self) -> usize {
        let mut state = lock(&self.state);
        state.end_lines();
        state.has_ended = true;
        let bytes = state.bytes;
        drop(state);
        self.changed.notify_waiters();
        bytes
    }

    fn bytes(&self) -> usize {
        lock(&self.state).bytes
    }

    fn has_ended(&self) -> bool {
        lock(&self.state).has_ended
    }

    /// Returns what follows the line of that number; none if it has not come yet.
    pub(super) fn after(&self, number: u64) -> Option<Next> {
        let state = lock(&self.state);
        let wanted = number + 1;
        if wanted < state.first {
            return Some(Next::Missed(state.first - wanted));
        }
        let index = usize::try_from(wanted - state.first.max(1)).unwrap_or(usize::MAX);
        match state.lines.get(index) {
            Some(Entry::Line(line)) => Some(Next::Line(wanted, line.clone())),
            Some(Entry::Lost(lines)) => Some(Next::Lost(wanted, *lines)),
            None => state.has_ended.then_some(Next::End),
        }
    }

    /// Waits until there is something after the line of that number.
    pub(super) async fn next(&self, number: u64) -> Next {
        loop {
            // Before it is looked, so that nothing that comes in between is missed.
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(next) = self.after(number) {
                return next;
            }
            changed.await;
        }
    }
}

/// Returns the length of the first piece of a line, which ends with a whole character.
fn piece_length(text: &[u8]) -> usize {
    if text.len() <= LINE_BYTES { text.len() } else { whole_characters(&text[..LINE_BYTES]) }
}

impl LogState {
    fn push(&mut self, output: &TaskOutput) {
        let TaskOutput { stream, worker_pid, is_shared, lost, .. } = *output;
        if lost.bytes > 0 {
            // What was begun has its end among what is lost.
            self.end_lines();
            self.put(Entry::Lost(lost.lines.max(1)));
        }
        let node_id = output.node_id.clone();
        let nothing = || Pending { stream, worker_pid, is_shared: false, node_id: node_id.clone(), text: Vec::new() };
        let place = self.pending.iter().position(|pending| pending.stream == stream).unwrap_or_else(|| {
            self.pending.push(nothing());
            self.pending.len() - 1
        });
        let mut line = std::mem::replace(&mut self.pending[place], nothing());
        line.is_shared |= is_shared;
        let mut rest = output.bytes.as_slice();
        while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
            line.text.extend_from_slice(&rest[..end]);
            self.add(&line);
            line = Pending { is_shared, ..nothing() };
            rest = &rest[end + 1..];
        }
        line.text.extend_from_slice(rest);
        while line.text.len() > LINE_BYTES {
            let rest = line.text.split_off(piece_length(&line.text));
            self.add(&line);
            line.text = rest;
        }
        self.pending[place] = line;
    }

    /// Ends the lines that have no end yet.
    fn end_lines(&mut self) {
        for rest in std::mem::take(&mut self.pending) {
            if !rest.text.is_empty() {
                self.add(&rest);
            }
        }
    }

    fn add(&mut self, pending: &Pending) {
        let Pending { stream, worker_pid, is_shared, ref node_id, ref text } = *pending;
        let mut rest = &text[..];
        loop {
            let (piece, others) = rest.split_at(piece_length(rest));
            let text = String::from_utf8_lossy(piece).into_owned();
            self.put(Entry::Line(Line { stream, worker_pid, is_shared, node_id: node_id.clone(), text }));
            if others.is_empty() {
                return;
            }
            rest = others;
        }
    }

    fn put(&mut self, entry: Entry) {
        self.first = self.first.max(1);
        self.bytes += entry.cost();
        self.lines.push_back(entry);
        while self.bytes > TASK_BYTES {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        if let Some(entry) = self.lines.pop_front() {
            self.bytes -= entry.cost();
            self.first += 1;
        }
    }
}

impl Entry {
    /// Returns the bytes that it counts for.
    fn cost(&self) -> usize {
        match self {
            Entry::Line(line) => line.text.len() + LINE_COST,
            Entry::Lost(_) => LINE_COST,
        }
    }
}

/// The output of the tasks that were submitted here.
#[derive(Default)]
pub(super) struct Outputs {
    kept: Mutex<RetainedLogs>,
}

#[derive(Default)]
struct RetainedLogs {
    logs: HashMap<TaskId, Arc<TaskLog>>,
    /// In the order in which they were submitted.
    order: VecDeque<TaskId>,
    bytes: usize,
}

impl Outputs {
    /// Notes that the output of this task is to be kept.
    pub(super) fn begin(&self, task: TaskId) {
        let mut kept = lock(&self.kept);
        if kept.logs.insert(task, Arc::default()).is_none() {
            kept.order.push_back(task);
        }
        kept.make_room();
    }

    /// Notes that a task has written something.
    pub(super) fn push(&self, output: &TaskOutput) {
        let mut kept = lock(&self.kept);
        let Some(log) = kept.logs.get(&output.id).cloned() else { return };
        let before = log.bytes();
        kept.bytes = (kept.bytes + log.push(output)).saturating_sub(before);
        kept.make_room();
    }

    /// Notes that a task has ended, and with it its output.
    pub(super) fn end(&self, task: TaskId) {
        let mut kept = lock(&self.kept);
        let Some(log) = kept.logs.get(&task).cloned() else { return };
        let before = log.bytes();
        kept.bytes = (kept.bytes + log.end()).saturating_sub(before);
    }

    /// Returns the output of a task, if it is kept.
    pub(super) fn of(&self, task: TaskId) -> Option<Arc<TaskLog>> {
        lock(&self.kept).logs.get(&task).cloned()
    }
}

impl RetainedLogs {
    /// Drops output while there is too much: of the tasks that have ended, the oldest first; of those that run, the oldest too.
    fn make_room(&mut self) {
        while self.order.len() > TASKS || self.bytes > ALL_BYTES {
            let has_ended = |task: &TaskId| self.logs.get(task).is_none_or(|log| log.has_ended());
            let place = self.order.iter().position(has_ended).unwrap_or(0);
            let Some(task) = self.order.remove(place) else { return };
            if let Some(log) = self.logs.remove(&task) {
                self.bytes = self.bytes.saturating_sub(log.bytes());
                // Whoever follows it is told that there is no more.
                log.end();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tracer_ipc::protocol::OutputSize;

    use super::*;

    fn write(outputs: &Outputs, id: u64, stream: Stream, text: &str) {
        outputs.push(&TaskOutput {
            id: TaskId(id),
            worker_pid: 5,
            stream,
            is_shared: false,
            node_id: "b".into(),
            lost: OutputSize::default(),
            bytes: text.as_bytes().to_vec(),
        });
    }

    fn all(log: &TaskLog) -> Vec<String> {
        let (mut number, mut texts) = (0, Vec::new());
        while let Some(next) = log.after(number) {
            match next {
                Next::Line(at, line) => {
                    assert_eq!(at, number + 1);
                    number = at;
                    texts.push(line.text);
                }
                Next::Missed(count) => {
                    number += count;
                    texts.push(format!("<{count}>"));
                }
                Next::Lost(at, count) => {
                    assert_eq!(at, number + 1);
                    number = at;
                    texts.push(format!("<{count} lost>"));
                }
                Next::End => {
                    texts.push("<end>".into());
                    break;
                }
            }
        }
        texts
    }

    #[test]
    fn a_long_line_is_cut_between_characters() {
        let outputs = Outputs::default();
        outputs.begin(TaskId(1));
        let long = format!("a{}", "é".repeat(LINE_BYTES));
        write(&outputs, 1, Stream::Stdout, &format!("{long}\n{long}"));
        write(&outputs, 1, Stream::Stdout, "\n");
        let texts = all(&outputs.of(TaskId(1)).unwrap());
        assert!(texts.concat() == format!("{long}{long}") && texts.len() == 6, "{}", texts.len());
    }

    #[test]
    fn lines_are_put_together_from_pieces_for_each_stream() {
        let outputs = Outputs::default();
        outputs.begin(TaskId(1));
        let log = outputs.of(TaskId(1)).unwrap();
        write(&outputs, 1, Stream::Stdout, "on");
        write(&outputs, 1, Stream::Stderr, "oth");
        assert_eq!(all(&log), [""; 0]);
        write(&outputs, 1, Stream::Stdout, "e\n\ntwo\nthr");
        write(&outputs, 1, Stream::Stderr, "er\n");
        assert_eq!(all(&log), ["one", "", "two", "other"]);
        outputs.end(TaskId(1));
        assert_eq!(all(&log), ["one", "", "two", "other", "thr", "<end>"]);
        write(&outputs, 2, Stream::Stdout, "nobody asked\n");
        assert!(outputs.of(TaskId(2)).is_none());
    }

    #[test]
    fn what_did_not_arrive_from_another_node_is_said_where_it_is_missing() {
        let outputs = Outputs::default();
        outputs.begin(TaskId(1));
        write(&outputs, 1, Stream::Stdout, "one\ntw");
        let lost = |lines, text: &str| TaskOutput {
            id: TaskId(1),
            worker_pid: 5,
            stream: Stream::Stdout,
            is_shared: false,
            node_id: "b".into(),
            lost: OutputSize { bytes: 9, lines },
            bytes: text.into(),
        };
        outputs.push(&lost(2, "five\n"));
        outputs.push(&lost(0, ""));
        outputs.end(TaskId(1));
        let log = outputs.of(TaskId(1)).unwrap();
        assert_eq!(all(&log), ["one", "tw", "<2 lost>", "five", "<1 lost>", "<end>"]);
    }

    #[test]
    fn a_task_that_writes_much_keeps_what_it_wrote_last_and_says_how_much_is_missing() {
        let outputs = Outputs::default();
        outputs.begin(TaskId(1));
        let long = "x".repeat(LINE_BYTES);
        for _ in 0..1000 {
            write(&outputs, 1, Stream::Stdout, &format!("{long}\n"));
        }
        write(&outputs, 1, Stream::Stdout, "last\n");
        let log = outputs.of(TaskId(1)).unwrap();
        assert!(log.bytes() <= TASK_BYTES);
        let texts = all(&log);
        let missed: usize = texts[0].trim_matches(['<', '>']).parse().unwrap();
        assert_eq!((missed + texts.len() - 1, texts.last().unwrap().as_str()), (1001, "last"));
        // A line without an end comes in pieces.
        write(&outputs, 1, Stream::Stdout, &"y".repeat(3 * LINE_BYTES + 1));
        assert_eq!(all(&log).iter().filter(|text| text.starts_with('y')).count(), 3);
    }

    #[test]
    fn the_oldest_that_have_ended_make_room() {
        let outputs = Outputs::default();
        outputs.begin(TaskId(1));
        let running = outputs.of(TaskId(1)).unwrap();
        for id in 2..=TASKS as u64 + 10 {
            outputs.begin(TaskId(id));
            outputs.end(TaskId(id));
        }
        assert!(outputs.of(TaskId(1)).is_some() && !running.has_ended());
        assert!(outputs.of(TaskId(2)).is_none() && outputs.of(TaskId(TASKS as u64 + 10)).is_some());
        let full = "x".repeat(TASK_BYTES / 2);
        for id in 10_000..10_200 {
            outputs.begin(TaskId(id));
            write(&outputs, id, Stream::Stdout, &format!("{full}\n"));
            outputs.end(TaskId(id));
        }
        let kept = lock(&outputs.kept);
        assert!(kept.bytes <= ALL_BYTES, "{}", kept.bytes);
        assert_eq!(kept.bytes, kept.logs.values().map(|log| log.bytes()).sum::<usize>());
    }
}
