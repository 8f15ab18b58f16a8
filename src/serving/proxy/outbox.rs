//! Output buffer of a lane: frames one after the other, and pieces of bodies, which are not copied when they are long.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};

use bytes::{Buf, Bytes};

/// A piece of a body from this length on is written from where it is.
const LONG: usize = 8 << 10;
/// The most slices of one write.
const SLICES: usize = 32;
/// Capacity that the memory for frames keeps when everything is written.
const KEPT: usize = 256 << 10;

/// Bytes on their way into a lane.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Bytes that come before the frames in `tail`.
    pieces: VecDeque<Bytes>,
    tail: Vec<u8>,
    /// Number of bytes of `tail` that are written. 0 while there are pieces before it.
    written: usize,
    length: usize,
}

impl Outbox {
    /// Appends what `put` appends to the bytes.
    pub(super) fn put(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        let before = self.tail.len();
        put(&mut self.tail);
        self.length += self.tail.len() - before;
    }

    /// Appends a piece of a body.
    pub(super) fn put_piece(&mut self, piece: Bytes) {
        if piece.len() < LONG {
            return self.put(|tail| tail.extend_from_slice(&piece));
        }
        self.length += piece.len();
        let mut tail = Bytes::from(std::mem::take(&mut self.tail));
        tail.advance(std::mem::take(&mut self.written));
        self.pieces.push_back(tail);
        self.pieces.push_back(piece);
    }

    /// Bytes that are not written yet.
    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// Writes what there is. False when not all of it could be written now.
    pub(super) fn write(&mut self, mut write: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>) -> io::Result<bool> {
        while self.length > 0 {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let parts = self.pieces.iter().map(|piece| &piece[..]).chain([&self.tail[self.written..]]);
            let parts = parts.filter(|part| !part.is_empty());
            let count = slices.iter_mut().zip(parts).map(|(slice, part)| *slice = IoSlice::new(part)).count();
            match write(&slices[..count]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => self.advance(written),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn advance(&mut self, mut written: usize) {
        self.length -= written;
        while let Some(first) = self.pieces.front_mut() {
            let count = written.min(first.len());
            first.advance(count);
            written -= count;
            if !first.is_empty() {
                return;
            }
            self.pieces.pop_front();
        }
        self.written += written;
        if self.length == 0 {
            self.written = 0;
            self.tail.clear();
            self.tail.shrink_to(KEPT);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_what_was_put_in_its_order_however_little_is_taken(
            lengths in prop::collection::vec((any::<bool>(), 0..3 * LONG), 0..40),
            taken in prop::collection::vec(0..2 * LONG, 1..20),
        ) {
            let (mut outbox, mut expected, mut found) = (Outbox::default(), Vec::new(), Vec::new());
            let mut taken = taken.into_iter().cycle();
            for (number, (is_piece, length)) in lengths.into_iter().enumerate() {
                let bytes = vec![number as u8; length];
                expected.extend_from_slice(&bytes);
                match is_piece {
                    true => outbox.put_piece(bytes.into()),
                    false => outbox.put(|out| out.extend_from_slice(&bytes)),
                }
                let count = taken.next().unwrap();
                let mut is_first = true;
                let is_all = outbox.write(|slices| {
                    if count == 0 || !std::mem::take(&mut is_first) {
                        return Err(ErrorKind::WouldBlock.into());
                    }
                    let all: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).take(count).collect();
                    found.extend_from_slice(&all);
                    Ok(all.len())
                }).unwrap();
                prop_assert_eq!(outbox.len(), expected.len() - found.len());
                prop_assert_eq!(is_all, outbox.len() == 0);
            }
            outbox.write(|slices| {
                slices.iter().for_each(|slice| found.extend_from_slice(slice));
                Ok(slices.iter().map(|slice| slice.len()).sum())
            }).unwrap();
            prop_assert!(found == expected);
        }
    }
}
