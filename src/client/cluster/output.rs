//! Output of tasks, for a program that follows it: lines, kept for the holder of the handle until they are read.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;

use tracer_core::escape::whole_characters;
use tracer_ipc::protocol::Stream;

use super::error::RemoteError;
use super::task::TaskHandle;
use crate::connection::{Exchange, Follower, TaskOutput};

/// Bytes of a line that is handed out in pieces if it is longer.
const LINE_LIMIT: usize = 64 << 10;
/// Bytes that wait to be read, of one task. What is older is let go.
const UNREAD_LIMIT: usize = 16 << 20;

/// A line that a task has written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutputLine {
    /// The stream that it was written to.
    pub stream: Stream,
    /// The process of the worker that runs it.
    pub worker_pid: u32,
    /// The line, without its end. What is no UTF-8 is replaced. One of more than 64 KiB comes in pieces.
    pub text: String,
    /// True if other calls of the same actor ran in that process meanwhile, any of which may have written it.
    pub is_shared: bool,
    /// The node that runs it, of a task of a queue; none where it runs here.
    pub node_id: Option<String>,
    /// Number of bytes of lines before this one that were dropped, because more than 16 MiB waited to be read, or that did not arrive from another node.
    pub lost_before: u64,
}

/// Lines of a task that nobody has read.
#[derive(Debug, Default)]
pub(super) struct Followed(Mutex<Unread>);

#[derive(Debug, Default)]
struct Unread {
    lines: VecDeque<OutputLine>,
    /// The bytes of these lines.
    bytes: usize,
    /// Bytes that were let go before the first of the lines, since the last one that was read.
    lost: u64,
    /// Bytes that did not arrive after the last of the lines.
    lost_behind: u64,
    /// All that was let go or did not arrive.
    lost_in_all: u64,
    /// Lines without an end yet.
    begun: Vec<Begun>,
    waker: Option<Waker>,
}

/// A line without an end yet.
#[derive(Debug)]
struct Begun {
    stream: Stream,
    worker_pid: u32,
    is_shared: bool,
    node_id: Box<str>,
    text: Vec<u8>,
}

impl Followed {
    fn lock(&self) -> MutexGuard<'_, Unread> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what was written, and returns who waits for it.
    fn push(&self, output: &TaskOutput) -> Option<Waker> {
        let mut unread = self.lock();
        let TaskOutput { stream, worker_pid, is_shared, ref node_id, lost, ref bytes, .. } = *output;
        if lost.bytes > 0 {
            // What was begun has its end among what is lost.
            for begun in std::mem::take(&mut unread.begun) {
                unread.push(&begun);
            }
            unread.lost_behind += lost.bytes;
            unread.lost_in_all += lost.bytes;
        }
        let is_it = |begun: &Begun| (begun.stream, begun.worker_pid, &begun.node_id) == (stream, worker_pid, node_id);
        let place = unread.begun.iter().position(is_it);
        let begun = place.map(|place| unread.begun.swap_remove(place));
        let of_nobody = || Begun { stream, worker_pid, is_shared: false, node_id: node_id.clone(), text: Vec::new() };
        let mut begun = begun.unwrap_or_else(of_nobody);
        begun.is_shared |= is_shared;
        for &byte in bytes {
            let has_ended = byte == b'\n';
            if has_ended || begun.text.len() == LINE_LIMIT {
                // Behind the end of a line nothing goes on, so nothing is cut there.
                let length = if has_ended { begun.text.len() } else { whole_characters(&begun.text) };
                let rest = begun.text.split_off(length);
                unread.push(&begun);
                begun.is_shared = is_shared;
                begun.text = rest;
            }
            if !has_ended {
                begun.text.push(byte);
            }
        }
        if !begun.text.is_empty() {
            unread.begun.push(begun);
        }
        unread.waker.take().filter(|_| !unread.lines.is_empty())
    }

    /// Returns the next line; when the task has ended, also one without an end. Inside of none: nothing will come any more.
    fn next(&self, has_ended: bool) -> Option<Option<OutputLine>> {
        let mut unread = self.lock();
        if has_ended && unread.lines.is_empty() && !unread.begun.is_empty() {
            let begun = unread.begun.remove(0);
            unread.push(&begun);
        }
        match unread.lines.pop_front() {
            Some(mut line) => {
                unread.bytes -= line.text.len();
                line.lost_before += std::mem::take(&mut unread.lost);
                Some(Some(line))
            }
            None => has_ended.then_some(None),
        }
    }
}

impl Unread {
    fn push(&mut self, begun: &Begun) {
        let Begun { stream, worker_pid, is_shared, ref node_id, ref text } = *begun;
        let text = String::from_utf8_lossy(text).into_owned();
        self.bytes += text.len();
        let node_id = (!node_id.is_empty()).then(|| node_id.to_string());
        let lost_before = std::mem::take(&mut self.lost_behind);
        self.lines.push_back(OutputLine { stream, worker_pid, text, is_shared, node_id, lost_before });
        while self.bytes > UNREAD_LIMIT
            && let Some(old) = self.lines.pop_front()
        {
            self.bytes -= old.text.len();
            let bytes = old.text.len() as u64 + 1;
            self.lost += bytes + old.lost_before;
            self.lost_in_all += bytes;
        }
    }
}

/// Nobody may want it for long: then it is let go.
impl Follower for Weak<Followed> {
    fn output(&mut self, output: &TaskOutput) -> Option<Waker> {
        self.upgrade()?.push(output)
    }
}

impl TaskHandle {
    /// Waits for the next line that the task writes; none when it has ended and everything is read. The task was submitted with
    /// [`follow`](super::Remote::follow).
    ///
    /// In a future this blocks the thread; [`next_line_async`](Self::next_line_async) does not.
    pub fn next_line(&self) -> Result<Option<OutputLine>, RemoteError> {
        let (followed, tag) = (self.followed()?, self.tag());
        let look = |exchange: &mut Exchange| followed.next(exchange.has_finished(tag));
        let line = self.inner.connection.wait_for(None, look).map_err(|error| self.unknown(error))?;
        Ok(line.flatten())
    }

    /// Returns the next line as [`next_line`](Self::next_line) does, without blocking the thread.
    pub async fn next_line_async(&self) -> Result<Option<OutputLine>, RemoteError> {
        let (followed, tag) = (self.followed()?, self.tag());
        let line = std::future::poll_fn(|context| {
            let look = |exchange: &mut Exchange| {
                let next = followed.next(exchange.has_finished(tag));
                if next.is_none() {
                    followed.lock().waker = Some(context.waker().clone());
                }
                next
            };
            self.inner.connection.poll_for(tag, context.waker(), look)
        });
        line.await.map_err(|error| self.unknown(error))
    }

    /// Returns how many bytes of its output are missing from the lines that were handed out or wait to be: see [`OutputLine::lost_before`]. Once all lines are
    /// read, that is all that is missing, also behind the last one.
    pub fn lost_bytes(&self) -> Result<u64, RemoteError> {
        Ok(self.followed()?.lock().lost_in_all)
    }

    /// Returns the lines that the task writes, as they come, until it has ended.
    pub fn lines(&self) -> impl Iterator<Item = Result<OutputLine, RemoteError>> {
        let mut has_failed = false;
        std::iter::from_fn(move || {
            let line = if has_failed { None } else { self.next_line().transpose() };
            has_failed = matches!(line, Some(Err(_)));
            line
        })
    }
}

#[cfg(test)]
mod tests {
    use tracer_core::task::TaskId;
    use tracer_ipc::protocol::OutputSize;

    use super::*;

    fn written(followed: &Followed, stream: Stream, bytes: &[u8]) {
        written_elsewhere(followed, stream, ("", 0), bytes);
    }

    fn written_elsewhere(followed: &Followed, stream: Stream, (node_id, lost): (&str, u64), bytes: &[u8]) {
        let (node_id, lost, bytes) = (node_id.into(), OutputSize { bytes: lost, lines: 1 }, bytes.to_vec());
        let output = TaskOutput { id: TaskId(1), worker_pid: 7, stream, is_shared: false, node_id, lost, bytes };
        assert!(followed.push(&output).is_none());
    }

    #[test]
    fn what_did_not_arrive_from_another_node_is_counted_where_it_is_missing() {
        let followed = Followed::default();
        written_elsewhere(&followed, Stream::Stdout, ("b", 0), b"one\ntw");
        written_elsewhere(&followed, Stream::Stdout, ("b", 9), b"four\n");
        written_elsewhere(&followed, Stream::Stderr, ("b", 3), b"");
        let mut lines = Vec::new();
        while let Some(Some(line)) = followed.next(true) {
            assert_eq!(line.node_id.as_deref(), Some("b"));
            lines.push((line.text, line.lost_before));
        }
        assert_eq!(lines, [("one", 0), ("tw", 0), ("four", 9)].map(|(text, lost)| (text.to_owned(), lost)));
        assert_eq!(followed.lock().lost_in_all, 12);
    }

    #[test]
    fn a_long_line_is_cut_between_characters() {
        let followed = Followed::default();
        let long = format!("a{}", "é".repeat(LINE_LIMIT));
        written(&followed, Stream::Stdout, format!("{long}\n").as_bytes());
        let mut pieces = Vec::new();
        while let Some(Some(line)) = followed.next(true) {
            pieces.push(line.text);
        }
        assert!(pieces.concat() == long && pieces.len() == 3, "{}", pieces.len());
    }

    #[test]
    fn lines_come_whole_wherever_they_were_cut_and_the_last_one_needs_no_end() {
        let followed = Followed::default();
        written(&followed, Stream::Stdout, b"on");
        written(&followed, Stream::Stderr, b"warning\nano");
        written(&followed, Stream::Stdout, b"e\n\nrest \xff");
        let mut lines = Vec::new();
        while let Some(Some(line)) = followed.next(false) {
            lines.push((line.stream, line.text));
        }
        assert_eq!(followed.next(false), None, "more may come");
        while let Some(Some(line)) = followed.next(true) {
            lines.push((line.stream, line.text));
        }
        let expected = [
            (Stream::Stderr, "warning"),
            (Stream::Stdout, "one"),
            (Stream::Stdout, ""),
            (Stream::Stderr, "ano"),
            (Stream::Stdout, "rest \u{fffd}"),
        ];
        assert_eq!(lines, expected.map(|(stream, text)| (stream, text.to_owned())));
        assert_eq!(followed.next(true), Some(None));
    }

    #[test]
    fn what_nobody_reads_is_bounded_and_counted() {
        let followed = Followed::default();
        let mut line = vec![b'x'; 1 << 20];
        line.push(b'\n');
        for _ in 0..20 {
            written(&followed, Stream::Stdout, &line);
        }
        let first = followed.next(false).flatten().expect("there are lines");
        assert_eq!((first.text.len(), first.lost_before), (LINE_LIMIT, 4 << 20 | 64));
        let mut bytes = first.text.len();
        while let Some(Some(line)) = followed.next(false) {
            assert_eq!(line.lost_before, 0);
            bytes += line.text.len();
        }
        assert_eq!(bytes, UNREAD_LIMIT);
    }
}
