//! Output of tasks, for a program that follows it: lines, kept for the holder of the handle until they are read.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;

use super::{RemoteError, TaskHandle};
use crate::connection::{Exchange, Follower, TaskOutput};
use tracer_ipc::protocol::Stream;

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
    /// Number of bytes of lines before this one that were dropped, because more than 16 MiB waited to be read.
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
    /// Let go since the last line that was read.
    lost: u64,
    /// Lines without an end yet, who writes them, and whether others may have.
    begun: Vec<(Stream, u32, bool, Vec<u8>)>,
    waker: Option<Waker>,
}

impl Followed {
    fn lock(&self) -> MutexGuard<'_, Unread> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what was written, and returns who waits for it.
    fn push(&self, output: &TaskOutput) -> Option<Waker> {
        let mut unread = self.lock();
        let (stream, pid) = (output.stream, output.worker_pid);
        let place = unread.begun.iter().position(|&(of, by, ..)| (of, by) == (stream, pid));
        let begun = place.map(|place| unread.begun.swap_remove(place));
        let (was_shared, mut text) = begun.map(|(.., was_shared, text)| (was_shared, text)).unwrap_or_default();
        let mut is_shared = was_shared || output.is_shared;
        for &byte in &output.bytes {
            let has_ended = byte == b'\n';
            if has_ended || text.len() == LINE_LIMIT {
                unread.push(stream, pid, is_shared, &text);
                is_shared = output.is_shared;
                text.clear();
            }
            if !has_ended {
                text.push(byte);
            }
        }
        if !text.is_empty() {
            unread.begun.push((stream, pid, is_shared, text));
        }
        unread.waker.take().filter(|_| !unread.lines.is_empty())
    }

    /// Returns the next line; when the task has ended, also one without an end. Inside of none: nothing will come any more.
    fn next(&self, has_ended: bool) -> Option<Option<OutputLine>> {
        let mut unread = self.lock();
        if has_ended && unread.lines.is_empty() && !unread.begun.is_empty() {
            let (stream, pid, is_shared, text) = unread.begun.remove(0);
            unread.push(stream, pid, is_shared, &text);
        }
        match unread.lines.pop_front() {
            Some(mut line) => {
                unread.bytes -= line.text.len();
                line.lost_before = std::mem::take(&mut unread.lost);
                Some(Some(line))
            }
            None => has_ended.then_some(None),
        }
    }
}

impl Unread {
    fn push(&mut self, stream: Stream, worker_pid: u32, is_shared: bool, text: &[u8]) {
        let text = String::from_utf8_lossy(text).into_owned();
        self.bytes += text.len();
        self.lines.push_back(OutputLine { stream, worker_pid, text, is_shared, lost_before: 0 });
        while self.bytes > UNREAD_LIMIT
            && let Some(old) = self.lines.pop_front()
        {
            self.bytes -= old.text.len();
            self.lost += old.text.len() as u64 + 1;
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

    use super::*;

    fn written(followed: &Followed, stream: Stream, bytes: &[u8]) {
        let output = TaskOutput { id: TaskId(1), worker_pid: 7, stream, is_shared: false, bytes: bytes.to_vec() };
        assert!(followed.push(&output).is_none());
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
