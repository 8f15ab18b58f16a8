//! Bytes that have come over a lane and are no whole frames yet. Long pieces of bodies stay in the memory that they were read into, which is read into again
//! once nobody has any of them: memory that was given back to the system costs a page fault for each of its pages when it is had again.

use bytes::{Bytes, BytesMut};
use tracer_ipc::lane::{BLOCKS, LEAST_ROOM, LaneError, MOST_ROOM, SHORT_READ, SHORT_READS, missing, whole_frames};

/// Bytes that have come, and are not taken.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    bytes: BytesMut,
    /// Room of the next block; 0 before the first.
    room: usize,
    /// Size of the block that is read into.
    size: usize,
    /// Number of the last reads that were short.
    short: u32,
    /// Blocks of the largest size that pieces of bodies may still be in, the oldest first.
    used: Vec<BytesMut>,
    /// Number of blocks that were made.
    #[cfg(test)]
    made: usize,
}

impl Inbox {
    /// Returns where the next bytes are to be read to, behind those that have come. Has room for the rest of the frame that has begun, or for a good read.
    pub(super) fn room(&mut self) -> &mut BytesMut {
        let wanted = missing(&self.bytes).max(LEAST_ROOM / 2);
        if self.bytes.capacity() - self.bytes.len() < wanted && !self.bytes.try_reclaim(wanted) {
            self.change_block(wanted);
        }
        &mut self.bytes
    }

    /// Notes that this many bytes were read into what [`room`](Self::room) has returned.
    pub(super) fn note_read(&mut self, count: usize) {
        if self.bytes.len() == self.bytes.capacity() {
            self.room = MOST_ROOM.min(self.room * 2);
        }
        self.short = if count < SHORT_READ { self.short.saturating_add(1) } else { 0 };
        if self.short == SHORT_READS {
            self.room = LEAST_ROOM;
            self.used.clear();
        }
    }

    /// Takes all whole frames; empty if there is none.
    pub(super) fn take_whole(&mut self) -> Result<Bytes, LaneError> {
        match whole_frames(&self.bytes)? {
            0 => Ok(Bytes::new()),
            whole => Ok(self.bytes.split_to(whole).freeze()),
        }
    }

    /// Goes on in another block, with what has come of a frame.
    fn change_block(&mut self, wanted: usize) {
        self.room = self.room.max(LEAST_ROOM);
        let needed = self.bytes.len() + wanted;
        let is_free = |block: &mut BytesMut| block.try_reclaim(needed);
        let free = (self.room == MOST_ROOM).then(|| self.used.iter_mut().position(is_free)).flatten();
        #[cfg(test)]
        {
            self.made += usize::from(free.is_none());
        }
        let size = self.room.max(needed);
        let next = free.map_or_else(|| BytesMut::with_capacity(size), |at| self.used.remove(at));
        let mut before = std::mem::replace(&mut self.bytes, next);
        self.bytes.extend_from_slice(&before);
        let before_size = std::mem::replace(&mut self.size, self.bytes.capacity());
        if before_size == MOST_ROOM {
            before.clear();
            if self.used.len() == BLOCKS {
                self.used.remove(0);
            }
            self.used.push(before);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tracer_ipc::lane::{self, DATA_LIMIT};

    use super::*;

    /// Lets the inbox have as many of these bytes as a read brings. Returns how many.
    fn read(inbox: &mut Inbox, bytes: &[u8]) -> usize {
        let room = inbox.room();
        let count = bytes.len().min(room.capacity() - room.len());
        room.extend_from_slice(&bytes[..count]);
        inbox.note_read(count);
        count
    }

    fn frame(length: usize) -> Vec<u8> {
        [&lane::data_header(7, false, length)[..], &vec![length as u8; length]].concat()
    }

    #[test]
    fn long_bodies_are_read_into_a_few_blocks_again_and_again() {
        let mut inbox = Inbox::default();
        let all: Vec<u8> = (0..2_000).flat_map(|at| frame(DATA_LIMIT - at % 7)).collect();
        let (mut at, mut taken) = (0, 0);
        let mut kept = VecDeque::new();
        while at < all.len() {
            at += read(&mut inbox, &all[at..]);
            let whole = inbox.take_whole().unwrap();
            let end = taken + whole.len();
            kept.push_back((whole, std::mem::replace(&mut taken, end)));
            // A client takes a little later what has come.
            if kept.len() > 4 {
                let (bytes, from) = kept.pop_front().unwrap();
                assert!(bytes == all[from..from + bytes.len()], "what somebody still has is not read into");
            }
        }
        assert_eq!(taken, all.len());
        assert!(inbox.used.len() <= BLOCKS && inbox.made <= 2 * BLOCKS, "{} blocks were made", inbox.made);
    }

    #[test]
    fn memory_of_long_bodies_is_given_back_when_short_ones_come() {
        let mut inbox = Inbox::default();
        let long: Vec<u8> = (0..64).flat_map(|_| frame(DATA_LIMIT)).collect();
        let mut at = 0;
        while at < long.len() {
            at += read(&mut inbox, &long[at..]);
            inbox.take_whole().unwrap();
        }
        assert_eq!(inbox.room, MOST_ROOM);
        for _ in 0..1_000 {
            assert_eq!(read(&mut inbox, &frame(5)), frame(5).len());
            assert_eq!(inbox.take_whole().unwrap(), frame(5));
        }
        assert!(inbox.room == LEAST_ROOM && inbox.used.is_empty());
    }

    #[test]
    fn a_frame_that_comes_byte_by_byte_is_taken_when_it_is_whole_and_one_that_is_too_long_is_refused() {
        let (mut inbox, frame) = (Inbox::default(), frame(3));
        for byte in &frame[..frame.len() - 1] {
            assert_eq!(read(&mut inbox, &[*byte]), 1);
            assert_eq!(inbox.take_whole().unwrap(), "");
        }
        read(&mut inbox, &frame[frame.len() - 1..]);
        assert_eq!(inbox.take_whole().unwrap(), frame);
        read(&mut inbox, &u32::MAX.to_le_bytes());
        assert!(inbox.take_whole().is_err());
    }
}
