//! A client's socket on the head's side: never blocks, reads frames, keeps what could not be written yet.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use tracer_core::task::{JobId, WorkerId};
use tracer_ipc::channel::{Receiver, Sender};
use tracer_ipc::protocol::frame::{FRAME_LIMIT, FrameBuffer, HELLO_LIMIT};

use super::watch::Seen;

/// Bytes of output kept for a driver that reads slowly. From there on the output of its task stays in the pipe, and the task waits
/// as it would for any reader.
pub(super) const OUTPUT_BACKLOG_LIMIT: usize = 4 << 20;

/// Bytes kept for a client that does not read. Beyond it the connection is closed: a client that has died inside must not
/// fill the head's memory. The longest frame is far from being too much.
const BACKLOG_LIMIT: usize = FRAME_LIMIT + (64 << 20);
/// Bytes that are written already and may stay in the outbox in front of the others.
const WRITTEN_LIMIT: usize = 1 << 20;
/// Reads per wake-up and connection, so that one client that sends without pause does not starve the others.
const READS_PER_WAKE_UP: usize = 16;

/// Process at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// Has not said hello.
    Unknown,
    Driver(JobId),
    Worker(WorkerId),
    /// Submits for the tasks that a worker runs.
    Tasks(WorkerId),
    /// The connection of a worker on which it takes spans over.
    Sink(WorkerId),
    /// Speaks to the engine that other machines share.
    Agent,
    /// Has given an order, whatever its version is, and waits for the answer.
    Commander,
}

impl Peer {
    /// Returns the longest frame taken from it.
    pub(super) fn frame_limit(self) -> usize {
        if matches!(self, Peer::Unknown | Peer::Commander) { HELLO_LIMIT } else { FRAME_LIMIT }
    }
}

/// A part of an outbox that waits for the journal.
struct Held {
    from: usize,
    position: u64,
}

/// A place in an outbox for answers that come later. Nothing behind it is written before.
struct Gap {
    from: usize,
    /// The client's own numbers for what is answered.
    tags: Range<u64>,
}

/// A client's socket, and rings beside it if the client has asked for them.
pub(super) struct Connection {
    stream: UnixStream,
    sender: Sender,
    pub(super) receiver: Receiver,
    pub(super) inbox: FrameBuffer,
    /// Frames to write; the first `written` bytes are written.
    pub(super) outbox: Vec<u8>,
    written: usize,
    /// Parts of the outbox that may be written only when the journal is on the disk up to a position: the start of each, in the order of both.
    held: VecDeque<Held>,
    /// Places for answers that come later, in their order.
    gaps: VecDeque<Gap>,
    /// Bytes at the end of the outbox that were looked at by [`hold`](Self::hold).
    looked_at: usize,
    pub(super) peer: Peer,
    /// The process at the other end, as it said; 0 before that.
    pub(super) pid: u32,
    /// Last observation of it while it said nothing.
    pub(super) seen: Seen,
    /// True if epoll watches for room to write.
    pub(super) is_watched_for_room: bool,
    /// True if it has asked for rings and has not got an answer.
    pub(super) wants_rings: bool,
    /// True if it is closed once everything is written.
    pub(super) is_closing: bool,
    /// True if all that waits to be written are answers that may wait a moment for what comes next.
    pub(super) may_wait: bool,
}

/// Result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadState {
    /// Nothing more has arrived.
    Open,
    /// There may be more to read.
    More,
    /// The other end is closed, perhaps amid a frame.
    Closed,
}

impl Connection {
    pub(super) fn new(stream: UnixStream) -> io::Result<Connection> {
        stream.set_nonblocking(true)?;
        Ok(Connection {
            stream,
            sender: Sender::default(),
            receiver: Receiver::default(),
            inbox: FrameBuffer::new(),
            outbox: Vec::new(),
            written: 0,
            held: VecDeque::new(),
            gaps: VecDeque::new(),
            looked_at: 0,
            peer: Peer::Unknown,
            pid: 0,
            seen: Seen::default(),
            is_watched_for_room: false,
            wants_rings: false,
            is_closing: false,
            may_wait: false,
        })
    }

    /// Reads what there is.
    pub(super) fn read(&mut self) -> io::Result<ReadState> {
        for _ in 0..READS_PER_WAKE_UP {
            match self.receiver.read(&self.stream, &mut self.inbox) {
                Ok(0) => return Ok(ReadState::Closed),
                // What comes later, its end included, is heard of: a read that finds nothing need not be tried.
                Ok(_) if !self.inbox.is_full() && !self.receiver.has_more() => return Ok(ReadState::Open),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(ReadState::Open),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(ReadState::More)
    }

    /// Gives the client rings, which has asked for them. Fails when there are none, or when something is half sent.
    pub(super) fn give_rings(&mut self) -> io::Result<()> {
        if self.is_watched_for_room {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.sender.give_rings(&self.stream, &mut self.receiver)
    }

    /// Holds what has come since the last time until the journal is on the disk up to there.
    pub(super) fn hold(&mut self, position: u64) {
        if self.looked_at < self.outbox.len() && self.held.back().is_none_or(|held| held.position < position) {
            self.held.push_back(Held { from: self.looked_at.max(self.written), position });
        }
        self.looked_at = self.outbox.len();
    }

    /// Lets the frames that were put since the last time wait for nothing.
    pub(super) fn skip_hold(&mut self) {
        self.looked_at = self.outbox.len();
    }

    /// Notes that the journal is on the disk up to there. True when there may be something to write.
    pub(super) fn release(&mut self, position: u64) -> bool {
        let before = self.held.len();
        while self.held.front().is_some_and(|held| held.position <= position) {
            self.held.pop_front();
        }
        self.held.len() < before
    }

    /// Returns whether something waits for the journal, or for an answer that comes later.
    pub(super) fn is_held(&self) -> bool {
        !self.held.is_empty() || !self.gaps.is_empty()
    }

    /// Leaves a place at an offset of the outbox for answers that come later.
    pub(super) fn leave_gap(&mut self, from: usize, tags: Range<u64>) {
        match self.gaps.back_mut() {
            Some(gap) if gap.from == from && gap.tags.end == tags.start => gap.tags.end = tags.end,
            _ => self.gaps.push_back(Gap { from, tags }),
        }
    }

    /// Puts answers to these tags into the places that were left for them, of which each has some of the tags, to be written when the journal is on the disk
    /// up to a position, if there is one.
    pub(super) fn fill_gaps(
        &mut self,
        mut tags: Range<u64>,
        position: Option<u64>,
        answer: impl Fn(Range<u64>) -> Vec<u8>,
    ) {
        while let Some(at) = self.gaps.iter().position(|gap| gap.tags.contains(&tags.start)) {
            let end = tags.end.min(self.gaps[at].tags.end);
            let of_gap = tags.start..end;
            self.fill_gap(at, of_gap.clone(), &answer(of_gap), position);
            tags.start = end;
            if tags.is_empty() {
                return;
            }
        }
    }

    fn fill_gap(&mut self, at: usize, tags: Range<u64>, answer: &[u8], position: Option<u64>) {
        let Some(Gap { from, tags: of_gap }) = self.gaps.remove(at) else { return };
        self.outbox.splice(from..from, answer.iter().copied());
        self.gaps.iter_mut().skip(at).for_each(|gap| gap.from += answer.len());
        // Answers on either side of it are still to come.
        let (before, behind) = (of_gap.start..tags.start, tags.end..of_gap.end);
        for (from, tags) in [(from + answer.len(), behind), (from, before)] {
            if !tags.is_empty() {
                self.gaps.insert(at, Gap { from, tags });
            }
        }
        self.held.iter_mut().filter(|held| held.from >= from).for_each(|held| held.from += answer.len());
        if self.looked_at >= from {
            self.looked_at += answer.len();
        }
        if let Some(position) = position {
            let at = self.held.iter().position(|held| held.from > from).unwrap_or(self.held.len());
            self.held.insert(at, Held { from, position });
        }
    }

    /// Writes as much as there is room for and is not held. True when that is everything, but for what is held.
    pub(super) fn write(&mut self) -> io::Result<bool> {
        let held = self.held.front().map(|held| held.from);
        let gap = self.gaps.front().map(|gap| gap.from);
        let end = held.into_iter().chain(gap).min().unwrap_or(self.outbox.len());
        while self.written < end {
            match self.sender.write(&self.stream, &self.outbox[self.written..end]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if self.backlog() > BACKLOG_LIMIT {
                        return Err(io::Error::other("the client does not read its answers"));
                    }
                    // A client that never catches up must not make the outbox grow with all that it was ever sent.
                    self.drop_written(WRITTEN_LIMIT.max(self.outbox.len() / 2));
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        self.drop_written(if self.is_held() { WRITTEN_LIMIT } else { 0 });
        if self.outbox.is_empty() && self.outbox.capacity() > 1 << 20 {
            self.outbox.shrink_to(64 << 10);
        }
        Ok(true)
    }

    /// Forgets what is written, if that is more than so many bytes.
    fn drop_written(&mut self, limit: usize) {
        if self.written > limit {
            self.outbox.drain(..self.written);
            self.held.iter_mut().for_each(|held| held.from -= self.written);
            self.gaps.iter_mut().for_each(|gap| gap.from -= self.written);
            self.looked_at -= self.looked_at.min(self.written);
            self.written = 0;
        }
    }

    /// Bytes that are not written yet.
    pub(super) fn backlog(&self) -> usize {
        self.outbox.len() - self.written
    }

    /// Returns whether there is something to write.
    pub(super) fn has_backlog(&self) -> bool {
        self.backlog() > 0
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Bytes read from a pipe at a time: as much as the largest pipe holds, so that what was written before a result is read before
/// the result is told, and no more, so that a task that writes without pause does not hold the head.
const DRAIN_LIMIT: usize = 1 << 20;

/// Reads what a pipe holds, in pieces; when it holds no more, `take` gets an empty one and true. Returns false at its end.
pub(super) fn drain(pipe: &mut impl Read, buffer: &mut [u8], mut take: impl FnMut(&[u8], bool)) -> bool {
    let mut total = 0;
    while total < DRAIN_LIMIT {
        match pipe.read(buffer) {
            Ok(0) => {
                take(&[], true);
                return false;
            }
            Ok(count) => {
                take(&buffer[..count], false);
                total += count;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => {
                take(&[], true);
                return error.kind() == ErrorKind::WouldBlock;
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_reads_and_never_catches_up_costs_no_more_than_its_backlog() {
        let (stream, mut client) = UnixStream::pair().unwrap();
        let mut connection = Connection::new(stream).unwrap();
        let piece = vec![7; 64 << 10];
        // So that there always is a backlog.
        connection.outbox.extend_from_slice(&vec![7; 1 << 20]);
        let mut read = vec![0; piece.len()];
        for _ in 0..512 {
            connection.outbox.extend_from_slice(&piece);
            assert!(!connection.write().unwrap(), "it has not caught up");
            client.read_exact(&mut read).unwrap();
        }
        let kept = connection.outbox.len();
        assert!(kept < 8 << 20, "{kept} bytes are kept for a backlog of {}", connection.backlog());
    }

    /// Returns a connection, and what reads all that its client has by now.
    fn read_as_text() -> (Connection, impl FnMut() -> String) {
        let (stream, mut client) = UnixStream::pair().unwrap();
        client.set_nonblocking(true).unwrap();
        let read = move || {
            let mut bytes = [0; 64];
            client.read(&mut bytes).map_or(String::new(), |count| String::from_utf8_lossy(&bytes[..count]).into())
        };
        (Connection::new(stream).unwrap(), read)
    }

    #[test]
    fn what_is_held_is_written_when_the_journal_has_come_so_far_and_in_its_order() {
        let (mut connection, mut read) = read_as_text();
        connection.outbox.extend_from_slice(b"free");
        assert!(connection.write().unwrap());
        assert_eq!(read(), "free");
        for (text, position) in [("one", 1), ("two", 1), ("three", 5)] {
            connection.outbox.extend_from_slice(text.as_bytes());
            connection.hold(position);
            assert!(connection.write().unwrap() && connection.is_held());
        }
        assert_eq!(read(), "");
        assert!(connection.release(1) && connection.write().unwrap());
        assert_eq!(read(), "onetwo");
        connection.outbox.extend_from_slice(b"four");
        connection.hold(5);
        assert!(!connection.release(4) && connection.write().unwrap());
        assert_eq!((read(), connection.has_backlog()), (String::new(), true));
        assert!(connection.release(9) && connection.write().unwrap());
        assert_eq!((read(), connection.has_backlog(), connection.is_held()), ("threefour".into(), false, false));
    }

    #[test]
    fn an_answer_that_comes_later_has_its_place_before_what_was_put_behind_it() {
        let (mut connection, mut read) = read_as_text();
        connection.outbox.extend_from_slice(b"one ");
        connection.leave_gap(connection.outbox.len(), 7..8);
        connection.outbox.extend_from_slice(b"three ");
        connection.leave_gap(connection.outbox.len(), 8..9);
        connection.outbox.extend_from_slice(b"five");
        assert!(connection.write().unwrap() && connection.is_held());
        assert_eq!(read(), "one ");
        connection.fill_gaps(8..9, None, |_| b"four ".into());
        assert!(connection.write().unwrap());
        assert_eq!(read(), "", "the first is still to come");
        connection.fill_gaps(9..10, None, |_| b"nobody's".into());
        connection.fill_gaps(7..8, Some(3), |_| b"two ".into());
        assert!(connection.write().unwrap() && connection.is_held());
        assert_eq!(read(), "", "the journal is not on the disk");
        assert!(connection.release(3) && connection.write().unwrap());
        assert_eq!((read(), connection.is_held()), ("two three four five".into(), false));
    }

    #[test]
    fn answers_to_some_of_what_follows_one_another_leave_the_places_of_the_others() {
        let (mut connection, mut read) = read_as_text();
        connection.leave_gap(0, 1..3);
        connection.leave_gap(0, 3..6);
        assert_eq!(connection.gaps.len(), 1, "they follow one another");
        connection.outbox.extend_from_slice(b"between ");
        connection.leave_gap(connection.outbox.len(), 6..9);
        let mut fill = |tags: Range<u64>, connection: &mut Connection| {
            connection.fill_gaps(tags, None, |tags| format!("{}-{} ", tags.start, tags.end - 1).into_bytes());
            assert!(connection.write().unwrap());
            read()
        };
        assert_eq!(fill(4..7, &mut connection), "", "those before it are still to come");
        assert_eq!(fill(1..2, &mut connection), "1-1 ");
        assert_eq!(fill(8..9, &mut connection), "");
        assert_eq!(fill(3..4, &mut connection), "");
        assert_eq!(fill(2..3, &mut connection), "2-2 3-3 4-5 between 6-6 ");
        assert_eq!(fill(7..8, &mut connection), "7-7 8-8 ");
        assert!(!connection.is_held());
    }

    #[test]
    fn a_client_is_sent_the_longest_frame_even_if_it_takes_its_time() {
        let (stream, _client) = UnixStream::pair().unwrap();
        let mut connection = Connection::new(stream).unwrap();
        connection.outbox = vec![0; FRAME_LIMIT + 5];
        assert!(!connection.write().unwrap(), "it is waited for");
        connection.outbox.resize(FRAME_LIMIT + (65 << 20), 0);
        assert!(connection.write().is_err(), "not for ever");
    }
}
