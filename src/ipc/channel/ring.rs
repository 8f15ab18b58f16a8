//! The ring of one direction of a connection: pieces of a stream of bytes in words of shared memory, with one sender and one receiver.
//!
//! `tests/ring_model.rs` includes this file with loom's atomics and runs it in all orders in which its steps can happen.

use std::io::{self, ErrorKind, Read};
use std::sync::Arc;

use super::sync::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use super::sync::{AtomicU64, fence};

// Words of a header. Those of the sender and those of the receiver are two cache lines apart, because processors fetch them in pairs.
/// Number of words were put into the ring, ever.
pub(super) const TAIL: usize = 0;
/// Position up to which the stream is committed to the socket, in bytes.
pub(super) const COMMITTED: usize = 1;
/// The core that the sender ran on when it sent last, from 1 on; 0 when it does not say.
pub(super) const SENDER_CORE: usize = 2;
/// Number of words were taken out of the ring, ever.
const HEAD: usize = 16;
/// True if the receiver looks into the ring.
const IS_AWAKE: usize = 17;

/// The client has not mapped the rings yet, and says nothing of what it sends.
pub(super) const UNMAPPED: u64 = u64::MAX;

// A piece: its place in the stream, its length with its state, its bytes.
const PIECE_HEADER: usize = 2;
const STATE_BITS: u32 = 2;
const READY: u64 = 1;
const TAKEN: u64 = 2;
const TAKEN_BACK: u64 = 3;
const STATE: u64 = (1 << STATE_BITS) - 1;

/// The directions of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    ToHead,
    ToClient,
}

/// Memory with a ring for each direction.
pub(super) trait Memory {
    /// Words of a ring.
    const RING_WORDS: usize;

    /// Returns a word of the ring's header.
    fn header(&self, way: Way, word: usize) -> &AtomicU64;

    /// Returns a word of the ring itself, by an index below [`RING_WORDS`](Self::RING_WORDS).
    fn word(&self, way: Way, index: usize) -> &AtomicU64;
}

/// The ring of one direction.
#[derive(Debug)]
pub(super) struct Ring<M> {
    pub(super) memory: Arc<M>,
    pub(super) way: Way,
}

impl<M: Memory> Ring<M> {
    pub(super) fn header(&self, word: usize) -> &AtomicU64 {
        self.memory.header(self.way, word)
    }

    /// Returns the word that is so many words after the first one ever.
    fn word(&self, index: u64) -> &AtomicU64 {
        self.memory.word(self.way, index as usize % M::RING_WORDS)
    }

    fn is_receiver_awake(&self) -> bool {
        self.header(IS_AWAKE).load(Relaxed) != 0
    }
}

fn words_of_piece(length: usize) -> usize {
    PIECE_HEADER + length.div_ceil(size_of::<u64>())
}

pub(super) fn nonsense() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "the other end's ring has invalid contents")
}

/// The sending end of a ring.
#[derive(Debug)]
pub(super) struct RingSender<M> {
    pub(super) ring: Ring<M>,
    tail: u64,
}

impl<M: Memory> RingSender<M> {
    pub(super) fn new(ring: Ring<M>) -> RingSender<M> {
        RingSender { ring, tail: 0 }
    }

    /// Says up to where the stream is committed to the socket, before bytes go there.
    pub(super) fn commit(&self, committed: u64) {
        self.ring.header(COMMITTED).store(committed, Release);
    }

    /// Puts a piece into the ring, at its place in the stream. False when it has to go through the socket.
    pub(super) fn put(&mut self, position: u64, bytes: &[u8]) -> bool {
        let ring = &self.ring;
        if !ring.is_receiver_awake() {
            return false;
        }
        let words = words_of_piece(bytes.len());
        let used = self.tail.wrapping_sub(ring.header(HEAD).load(Acquire));
        if used.saturating_add(words as u64) > M::RING_WORDS as u64 {
            return false;
        }
        let (whole, rest) = bytes.as_chunks();
        let mut last = [0; size_of::<u64>()];
        last[..rest.len()].copy_from_slice(rest);
        let last = (!rest.is_empty()).then_some(&last);
        let state = ring.word(self.tail + 1);
        let ready = (bytes.len() as u64) << STATE_BITS | READY;
        ring.word(self.tail).store(position, Relaxed);
        state.store(ready, Relaxed);
        for (index, word) in (self.tail + PIECE_HEADER as u64..).zip(whole.iter().chain(last)) {
            ring.word(index).store(u64::from_le_bytes(*word), Relaxed);
        }
        self.tail += words as u64;
        ring.header(TAIL).store(self.tail, Release);
        // With the one in `fall_asleep`: either the receiver sees the piece or this sees that it sleeps.
        fence(SeqCst);
        self.ring.is_receiver_awake() || !self.take_back(self.tail - words as u64)
    }

    /// Takes the piece back that begins at this word. False when the receiver was quicker.
    pub(super) fn take_back(&self, first: u64) -> bool {
        let state = self.ring.word(first + 1);
        let ready = state.load(Relaxed);
        ready & STATE == READY && state.compare_exchange(ready, ready - READY + TAKEN_BACK, AcqRel, Relaxed).is_ok()
    }
}

/// Source of the next bytes of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A piece in the ring.
    Piece,
    /// At most so many bytes from the socket.
    Socket(u64),
    Nothing,
}

/// The receiving end of a ring.
#[derive(Debug)]
pub(super) struct RingReceiver<M> {
    pub(super) ring: Ring<M>,
    head: u64,
    is_awake: bool,
}

impl<M: Memory> RingReceiver<M> {
    pub(super) fn new(ring: Ring<M>) -> RingReceiver<M> {
        RingReceiver { ring, head: 0, is_awake: false }
    }

    /// Returns the position up to which the stream is committed to the socket, as the other end says; none when it says nothing.
    pub(super) fn committed(&self) -> Option<u64> {
        Some(self.ring.header(COMMITTED).load(Acquire)).filter(|committed| *committed != UNMAPPED)
    }

    /// Finds the source of the bytes at this place of the stream, as far as the other end has said it.
    pub(super) fn next(&mut self, position: u64) -> io::Result<Next> {
        // First: the pieces that are put before this is said are seen below.
        let Some(committed) = self.committed() else { return Ok(Next::Socket(u64::MAX)) };
        let end = match self.front()? {
            Some(place) if place == position => return Ok(Next::Piece),
            Some(place) if place < position => return Err(nonsense()),
            Some(place) => place.min(committed),
            None => committed,
        };
        Ok(if end > position { Next::Socket(end - position) } else { Next::Nothing })
    }

    /// Returns the place in the stream of the first piece in the ring.
    pub(super) fn front(&mut self) -> io::Result<Option<u64>> {
        let ring = &self.ring;
        loop {
            let filled = ring.header(TAIL).load(Acquire).wrapping_sub(self.head);
            if filled == 0 {
                return Ok(None);
            }
            let state = ring.word(self.head + 1).load(Acquire);
            let words = words_of_piece((state >> STATE_BITS) as usize) as u64;
            if words > filled || filled > M::RING_WORDS as u64 {
                return Err(nonsense());
            }
            match state & STATE {
                READY => return Ok(Some(ring.word(self.head).load(Relaxed))),
                TAKEN_BACK => {
                    self.head += words;
                    ring.header(HEAD).store(self.head, Release);
                }
                _ => return Err(nonsense()),
            }
        }
    }

    /// Lets `read` take the bytes of the first piece. Returns their count; 0 when the piece was taken back meanwhile.
    pub(super) fn take(&mut self, read: impl FnOnce(&mut Piece<'_, M>) -> io::Result<usize>) -> io::Result<usize> {
        let ring = &self.ring;
        let state = ring.word(self.head + 1);
        let ready = state.load(Relaxed);
        // The other end may have written anything since `front` has checked it.
        let length = usize::try_from(ready >> STATE_BITS).map_err(|_| nonsense())?;
        if ready & STATE != READY || words_of_piece(length) > M::RING_WORDS {
            return if ready & STATE == TAKEN_BACK { Ok(0) } else { Err(nonsense()) };
        }
        if state.compare_exchange(ready, ready - READY + TAKEN, AcqRel, Relaxed).is_err() {
            return Ok(0);
        }
        let count = read(&mut Piece { ring, first: self.head + PIECE_HEADER as u64, length })?;
        self.head += words_of_piece(length) as u64;
        ring.header(HEAD).store(self.head, Release);
        Ok(count)
    }

    /// From now on it looks into the ring, if the other end has mapped it.
    pub(super) fn wake_up(&mut self) {
        if !self.is_awake && self.committed().is_some() {
            self.is_awake = true;
            self.ring.header(IS_AWAKE).store(1, Relaxed);
        }
    }

    /// Stops looking into the ring, once it has taken what is there now.
    pub(super) fn fall_asleep(&mut self) {
        if self.is_awake {
            self.is_awake = false;
            self.ring.header(IS_AWAKE).store(0, Relaxed);
            fence(SeqCst);
        }
    }
}

/// The bytes of a piece in a ring.
pub(super) struct Piece<'a, M> {
    ring: &'a Ring<M>,
    first: u64,
    length: usize,
}

impl<M: Memory> Read for Piece<'_, M> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = buffer.get_mut(..self.length).ok_or(ErrorKind::WriteZero)?;
        let (whole, rest) = bytes.as_chunks_mut();
        for (index, bytes) in (self.first..).zip(whole.iter_mut()) {
            *bytes = self.ring.word(index).load(Relaxed).to_le_bytes();
        }
        let last = self.ring.word(self.first + whole.len() as u64).load(Relaxed).to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
        Ok(self.length)
    }
}
