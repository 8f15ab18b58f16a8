//! Frames: `length: u32` (of what follows), `kind: u8`, body.

use std::io::{self, Read};

/// The longest frame taken from a peer that has said hello.
pub const FRAME_LIMIT: usize = 256 << 20;
/// The longest task and the longest result, encoded. Less than [`FRAME_LIMIT`], because other things travel in the same frame.
pub const PAYLOAD_LIMIT: usize = FRAME_LIMIT - (2 << 20);
/// Bytes in a frame with many messages from which on the next message begins another. It does not bound a single message.
pub const FRAME_TARGET: usize = 1 << 20;
/// The longest frame taken before that.
pub const HELLO_LIMIT: usize = 4096;

const HEADER: usize = 4;
const READ_AT_LEAST: usize = 64 << 10;

/// A frame that cannot be taken. Its connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The frame says it has more bytes than are allowed.
    #[error("a frame of {length} bytes arrived, but at most {limit} are taken")]
    TooLong {
        /// Length that the frame announces, in bytes.
        length: usize,
        /// Length that is allowed, in bytes.
        limit: usize,
    },
    /// The frame has no kind.
    #[error("a frame without a kind arrived")]
    Empty,
}

impl From<FrameError> for io::Error {
    fn from(error: FrameError) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }
}

/// Appends a frame of `kind` to `out`, with the body that `body` appends.
pub fn put_frame(out: &mut Vec<u8>, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER]);
    out.push(kind);
    body(out);
    let length = u32::try_from(out.len() - start - HEADER).expect("frames are limited to less than 4 GiB");
    out[start..start + HEADER].copy_from_slice(&length.to_le_bytes());
}

/// Collects bytes from a stream and gives them back frame by frame.
#[derive(Debug, Default)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    /// Start of the bytes that were not given back yet.
    start: usize,
    /// End of the bytes that were read; the rest of `bytes` is room.
    end: usize,
}

impl FrameBuffer {
    /// Makes a buffer without memory of its own until something is read.
    pub fn new() -> FrameBuffer {
        FrameBuffer::default()
    }

    /// Reads once from `stream`. Returns how many bytes came; 0 at its end.
    pub fn read_from(&mut self, stream: &mut impl Read) -> io::Result<usize> {
        self.make_room();
        let count = stream.read(&mut self.bytes[self.end..])?;
        self.end += count;
        Ok(count)
    }

    /// Returns whether the last read has filled all the room there was, so that more may be there to read.
    pub fn is_full(&self) -> bool {
        self.end == self.bytes.len()
    }

    /// Takes the next whole frame, if there is one. `limit` bounds its length.
    pub fn next_frame(&mut self, limit: usize) -> Result<Option<(u8, &[u8])>, FrameError> {
        let Some(length) = self.next_length() else { return Ok(None) };
        if length > limit {
            return Err(FrameError::TooLong { length, limit });
        }
        if length == 0 {
            return Err(FrameError::Empty);
        }
        let start = self.start + HEADER;
        if self.end - start < length {
            return Ok(None);
        }
        self.start = start + length;
        Ok(Some((self.bytes[start], &self.bytes[start + 1..start + length])))
    }

    /// Returns the kind of the next frame, as soon as it has arrived, whether or not the frame is whole.
    pub fn next_kind(&self) -> Option<u8> {
        self.bytes[self.start..self.end].get(HEADER).copied()
    }

    /// Bytes that have arrived and were not given back yet.
    pub fn unread(&self) -> usize {
        self.end - self.start
    }

    /// Returns whether a frame has begun to arrive but is not whole.
    pub fn is_torn(&self) -> bool {
        self.start != self.end
    }

    fn next_length(&self) -> Option<usize> {
        let header = self.bytes[self.start..self.end].first_chunk::<HEADER>()?;
        Some(u32::from_le_bytes(*header) as usize)
    }

    /// Moves what is left to the front and makes room for the frame that is arriving, or for a good read. Memory grows
    /// with what has arrived, not with what a frame announces.
    fn make_room(&mut self) {
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
            if self.bytes.len() > 16 * READ_AT_LEAST {
                self.bytes.truncate(READ_AT_LEAST);
                self.bytes.shrink_to_fit();
            }
        } else if self.start > 0 && self.bytes.len() - self.end < READ_AT_LEAST {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.bytes.len() - self.end < READ_AT_LEAST {
            let grown = (self.bytes.len() * 2).max(self.end + READ_AT_LEAST);
            self.bytes.resize(grown, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Gives its bytes in pieces of the sizes asked for.
    struct Pieces<'a> {
        rest: &'a [u8],
        sizes: Vec<usize>,
    }

    impl Read for Pieces<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let size = self.sizes.pop().unwrap_or(usize::MAX).max(1).min(self.rest.len()).min(buffer.len());
            buffer[..size].copy_from_slice(&self.rest[..size]);
            self.rest = &self.rest[size..];
            Ok(size)
        }
    }

    proptest! {
        #[test]
        fn frames_survive_any_way_of_being_cut(
            frames in prop::collection::vec((any::<u8>(), prop::collection::vec(any::<u8>(), 0..300)), 0..20),
            sizes in prop::collection::vec(1usize..200, 0..200),
        ) {
            let mut bytes = Vec::new();
            for (kind, body) in &frames {
                put_frame(&mut bytes, *kind, |out| out.extend_from_slice(body));
            }
            let mut stream = Pieces { rest: &bytes, sizes };
            let mut buffer = FrameBuffer::new();
            let mut found = Vec::new();
            while buffer.read_from(&mut stream).unwrap() > 0 {
                while let Some((kind, body)) = buffer.next_frame(FRAME_LIMIT).unwrap() {
                    found.push((kind, body.to_vec()));
                }
            }
            prop_assert_eq!(found, frames);
            prop_assert!(!buffer.is_torn());
        }

        #[test]
        fn hostile_bytes_are_refused_or_wait_for_more_but_never_panic(bytes: Vec<u8>) {
            let mut buffer = FrameBuffer::new();
            buffer.read_from(&mut bytes.as_slice()).unwrap();
            while let Ok(Some(_)) = buffer.next_frame(HELLO_LIMIT) {}
        }
    }

    #[test]
    fn a_frame_that_announces_too_much_is_refused_before_it_has_arrived() {
        let mut buffer = FrameBuffer::new();
        buffer.read_from(&mut [0xff, 0xff, 0xff, 0x7f, 1].as_slice()).unwrap();
        let error = buffer.next_frame(HELLO_LIMIT).unwrap_err();
        assert_eq!(error.to_string(), "a frame of 2147483647 bytes arrived, but at most 4096 are taken");
        assert!(buffer.bytes.len() < 1 << 20, "no memory was set aside for it");
    }
}
