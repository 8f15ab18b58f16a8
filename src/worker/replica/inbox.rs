//! Bytes that have come over a lane. Long pieces of bodies stay in the memory that they were read into, which is read into again once nobody has any of them:
//! memory that was given back to the system costs a page fault for each of its pages when it is had again.

use std::io;
use std::os::fd::AsFd;

use bytes::Bytes;
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use tracer_ipc::lane::{BLOCKS, LEAST_ROOM, LaneError, MOST_ROOM, SHORT_READ, SHORT_READS, missing, whole_frames};

/// A piece of a body from this length on stays where it is: a shorter one would keep memory that is much larger.
const LONG: usize = 16 << 10;
/// Bytes that have come, and are not taken.
#[derive(Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    /// Start of those that were not taken.
    start: usize,
    /// Room of the next read; 0 before the first.
    room: usize,
    is_full: bool,
    /// Number of the last reads that were short.
    short: u32,
    /// Blocks that pieces of bodies may still be in, the oldest first.
    used: Vec<Bytes>,
    /// Number of blocks that were made while bodies came.
    #[cfg(test)]
    made: usize,
}

/// Whole frames, one after the other.
pub(super) enum Frames<'a> {
    Borrowed(&'a [u8]),
    /// Some are long, and may be kept.
    Shared(Bytes),
}

impl std::ops::Deref for Frames<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Frames::Borrowed(bytes) => bytes,
            Frames::Shared(bytes) => bytes,
        }
    }
}

impl Frames<'_> {
    /// Returns a piece of these without a copy, if it is long.
    pub(super) fn share(&self, piece: &[u8]) -> Option<Bytes> {
        match self {
            Frames::Shared(bytes) if piece.len() >= LONG => Some(bytes.slice_ref(piece)),
            Frames::Borrowed(_) | Frames::Shared(_) => None,
        }
    }
}

impl Inbox {
    /// Reads once. Returns how many bytes came; 0 at the end.
    pub(super) fn read_from(&mut self, stream: impl AsFd) -> io::Result<usize> {
        self.make_room();
        let count = loop {
            match rustix::io::read(&stream, spare_capacity(&mut self.bytes)) {
                Err(Errno::INTR) => {}
                read => break read?,
            }
        };
        self.is_full = self.bytes.len() == self.bytes.capacity();
        self.room =
            if self.is_full { (self.room * 2).min(MOST_ROOM) } else { self.room.min((count * 2).max(LEAST_ROOM)) };
        self.short = if count < SHORT_READ { self.short.saturating_add(1) } else { 0 };
        if self.short == SHORT_READS {
            self.used.clear();
        }
        Ok(count)
    }

    /// Returns whether the last read has filled all the room there was, so that more may be there to read.
    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Takes all whole frames. None if there is none.
    pub(super) fn take_whole(&mut self) -> Result<Option<Frames<'_>>, LaneError> {
        let start = self.start;
        let whole = whole_frames(&self.bytes[start..])?;
        if whole == 0 {
            return Ok(None);
        }
        self.start += whole;
        // Frames that come together are short, but for those with bodies.
        if whole < LONG {
            return Ok(Some(Frames::Borrowed(&self.bytes[start..self.start])));
        }
        let all = Bytes::from(std::mem::take(&mut self.bytes));
        let rest = &all[self.start..];
        self.start = 0;
        self.bytes = self.unused_block();
        if self.used.len() == BLOCKS {
            self.used.remove(0);
        }
        self.used.push(all.clone());
        if !rest.is_empty() {
            // The frame that it begins is read to its end at once.
            self.bytes.reserve_exact(rest.len() + missing(rest).max(self.room));
            self.bytes.extend_from_slice(rest);
        }
        Ok(Some(Frames::Shared(all.slice(start..start + whole))))
    }

    /// Returns a block of which nobody has anything any more; a new one, without memory yet, if there is none.
    fn unused_block(&mut self) -> Vec<u8> {
        let unused = self.used.iter().position(Bytes::is_unique).map(|at| self.used.remove(at));
        let block = unused.and_then(|block| block.try_into_mut().ok());
        #[cfg(test)]
        {
            self.made += usize::from(block.is_none());
        }
        block.map_or_else(Vec::new, |mut block| {
            block.clear();
            block.into()
        })
    }

    /// Makes room for the frame that is arriving, or for a good read. Memory grows with what has arrived, not with what a frame announces.
    fn make_room(&mut self) {
        self.room = self.room.max(LEAST_ROOM);
        if self.start == self.bytes.len() {
            self.bytes.clear();
            self.start = 0;
            if self.bytes.capacity() > 2 * self.room {
                self.bytes = Vec::new();
            }
        }
        if self.bytes.capacity() - self.bytes.len() < LEAST_ROOM {
            self.bytes.drain(..self.start);
            self.start = 0;
            self.bytes.reserve_exact(self.room);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use tracer_ipc::lane::{self, Body, Frame, frames};

    use super::*;

    /// Reads all that was written, and returns the bodies' pieces with whether each may be kept.
    fn take_all(inbox: &mut Inbox, stream: &UnixStream) -> Vec<(Vec<u8>, bool)> {
        let mut found = Vec::new();
        while inbox.read_from(stream).is_ok_and(|count| count > 0) {
            let Some(whole) = inbox.take_whole().unwrap() else { continue };
            for frame in frames(&whole) {
                let Frame { body: Body::Data(piece), .. } = frame.unwrap() else { panic!("another frame") };
                found.push((piece.to_vec(), matches!(whole, Frames::Shared(_))));
            }
        }
        found
    }

    #[test]
    fn long_pieces_stay_where_they_are_and_short_ones_share_memory_that_is_used_again() {
        let (mut own, other) = UnixStream::pair().unwrap();
        other.set_nonblocking(true).unwrap();
        let mut inbox = Inbox::default();
        let put = |own: &mut UnixStream, length: usize| {
            let piece = vec![length as u8; length];
            own.write_all(&lane::data_header(7, false, length)).unwrap();
            own.write_all(&piece).unwrap();
            piece
        };
        let mut expected = Vec::new();
        for length in [1, 100, LONG, lane::DATA_LIMIT, 3, lane::DATA_LIMIT] {
            expected.push(put(&mut own, length));
        }
        let found = take_all(&mut inbox, &other);
        assert_eq!(found.iter().map(|(piece, _)| piece).collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>());
        let long = found.iter().filter(|(piece, _)| piece.len() >= LONG);
        assert!(long.clone().count() == 3 && long.clone().all(|(_, is_shared)| *is_shared));
        assert!((0..1000).all(|_| {
            put(&mut own, 5);
            take_all(&mut inbox, &other) == [(vec![5; 5], false)]
        }));
        assert!(inbox.bytes.capacity() <= 2 * LEAST_ROOM, "{} bytes are kept", inbox.bytes.capacity());
    }

    #[test]
    fn long_bodies_are_read_into_a_few_blocks_again_and_again() {
        let (mut own, other) = UnixStream::pair().unwrap();
        let writer = std::thread::spawn(move || {
            for at in 0..2_000_u32 {
                let piece = vec![at as u8; lane::DATA_LIMIT - at as usize % 7];
                own.write_all(&[&lane::data_header(7, false, piece.len())[..], &piece].concat()).unwrap();
            }
        });
        let (mut inbox, mut kept, mut at) = (Inbox::default(), VecDeque::new(), 0);
        let is_whole = |(piece, at): &(Bytes, u32)| {
            piece.len() == lane::DATA_LIMIT - *at as usize % 7 && piece.iter().all(|byte| *byte == *at as u8)
        };
        while inbox.read_from(&other).unwrap() > 0 {
            let Some(whole) = inbox.take_whole().unwrap() else { continue };
            for frame in frames(&whole) {
                let Frame { body: Body::Data(piece), .. } = frame.unwrap() else { panic!("another frame") };
                kept.push_back((whole.share(piece).unwrap(), at));
                at += 1;
            }
            // A handler takes a little later what has come.
            while kept.len() > 4 {
                assert!(kept.pop_front().is_some_and(|piece| is_whole(&piece)), "what somebody has is not read into");
            }
        }
        writer.join().unwrap();
        assert!(at == 2_000 && kept.iter().all(is_whole));
        assert!(inbox.used.len() <= BLOCKS && inbox.made <= 3 * BLOCKS, "{} blocks were made", inbox.made);
    }

    #[test]
    fn a_frame_that_comes_byte_by_byte_is_taken_when_it_is_whole_and_one_that_is_too_long_is_refused() {
        let (mut own, other) = UnixStream::pair().unwrap();
        other.set_nonblocking(true).unwrap();
        let mut inbox = Inbox::default();
        let frame = [&lane::data_header(7, true, 3)[..], b"abc"].concat();
        for byte in &frame[..frame.len() - 1] {
            own.write_all(&[*byte]).unwrap();
            assert_eq!(take_all(&mut inbox, &other), []);
        }
        own.write_all(&frame[frame.len() - 1..]).unwrap();
        assert_eq!(take_all(&mut inbox, &other), [(b"abc".to_vec(), false)]);
        own.write_all(&u32::MAX.to_le_bytes()).unwrap();
        inbox.read_from(&other).unwrap();
        assert!(inbox.take_whole().is_err());
    }
}
