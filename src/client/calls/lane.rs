//! The caller's end of a lane: frames in and out, and which call has which number.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use tracer_ipc::claims::SharedClaims;
use tracer_ipc::lane::Numbers;
use tracer_ipc::protocol::frame::FrameBuffer;
use tracer_ipc::replica_table::ReplicaIndex;

/// The most bytes that may wait to be written before bodies wait.
const WAITING_LIMIT: usize = 4 << 20;
/// Capacity that the memory for frames keeps when everything is written.
const KEPT: usize = 256 << 10;

/// A lane to one replica.
#[derive(Debug)]
pub(super) struct Lane {
    /// The service, by its place in the state.
    pub(super) service: usize,
    /// The replica's number in the table.
    pub(super) replica: ReplicaIndex,
    /// The replica's name.
    pub(super) name: Arc<str>,
    pub(super) stream: UnixStream,
    pub(super) claims: SharedClaims,
    pub(super) numbers: Numbers,
    /// Calls that are on it, by their numbers there.
    pub(super) calls: FxHashMap<u32, u64>,
    /// Calls that have a place at the replica and wait for a number.
    pub(super) waiting: VecDeque<u64>,
    pub(super) inbox: FrameBuffer,
    outbox: Vec<u8>,
    written: usize,
    /// True while the socket takes nothing.
    pub(super) is_blocked: bool,
    /// True once the replica takes no further request.
    pub(super) is_draining: bool,
}

impl Lane {
    pub(super) fn new(
        (service, replica): (usize, ReplicaIndex),
        name: &str,
        socket: OwnedFd,
        claims: OwnedFd,
    ) -> io::Result<Lane> {
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(true)?;
        Ok(Lane {
            service,
            replica,
            name: name.into(),
            stream,
            claims: SharedClaims::attach(claims)?,
            numbers: Numbers::default(),
            calls: FxHashMap::default(),
            waiting: VecDeque::new(),
            inbox: FrameBuffer::new(),
            outbox: Vec::new(),
            written: 0,
            is_blocked: false,
            is_draining: false,
        })
    }

    /// Queues a frame.
    pub(super) fn put(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        put(&mut self.outbox);
    }

    /// Returns whether bytes of bodies may be queued.
    pub(super) fn has_room(&self) -> bool {
        self.outbox.len() - self.written < WAITING_LIMIT
    }

    /// Writes what there is. Returns whether the socket began or ended to take nothing.
    pub(super) fn flush(&mut self) -> bool {
        let was_blocked = self.is_blocked;
        self.is_blocked = false;
        while self.written < self.outbox.len() {
            match (&self.stream).write(&self.outbox[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.is_blocked = true;
                    break;
                }
                // Whoever reads it sees the end, after what has come before it.
                Err(_) => self.written = self.outbox.len(),
            }
        }
        if self.written == self.outbox.len() {
            self.written = 0;
            self.outbox.clear();
            self.outbox.shrink_to(KEPT);
        }
        was_blocked != self.is_blocked
    }

    /// Forgets a call that has ended in both directions.
    pub(super) fn forget(&mut self, number: u32) {
        if self.calls.remove(&number).is_some() {
            self.numbers.give_back(number);
        }
    }
}

impl AsFd for Lane {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
