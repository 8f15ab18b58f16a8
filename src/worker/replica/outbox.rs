//! The frames of a lane that are to be written. Pieces of bodies are not copied, unless they are short.

use std::io::{self, IoSlice, Write};
use std::ops::Range;
use std::sync::Arc;

use tracer_host::hook::ModulePiece;
use tracer_ipc::lane::{self, LAST};

/// Parts of one system call.
const PARTS: usize = 64;
/// Copying as many bytes costs less than a part of their own.
const SHORT: usize = 512;
/// Offset of the flags in a frame.
const FLAGS_AT: usize = 5;

/// Bytes of a module that are to be sent, perhaps a part of what it gave.
pub(super) enum Slice {
    Whole(ModulePiece),
    Part(Arc<ModulePiece>, Range<usize>),
}

impl Slice {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Slice::Whole(piece) => piece,
            Slice::Part(piece, range) => &piece[range.clone()],
        }
    }

    /// Splits so many bytes off, fewer than there are.
    pub(super) fn split(self, at: usize) -> (Slice, Slice) {
        let (piece, range) = match self {
            Slice::Whole(piece) => {
                let range = 0..piece.len();
                (Arc::new(piece), range)
            }
            Slice::Part(piece, range) => (piece, range),
        };
        let middle = range.start + at;
        (Slice::Part(Arc::clone(&piece), range.start..middle), Slice::Part(piece, middle..range.end))
    }
}

/// Frames, in order.
#[derive(Default)]
pub(super) struct Outbox {
    /// All bytes that are not in slices.
    bytes: Vec<u8>,
    frames: Vec<Queued>,
    /// The first frame that is not wholly written,
    next: usize,
    /// and how much of it was.
    written: usize,
    /// Counts how often all was written.
    round: u64,
    /// Bytes of slices that are not written.
    waiting: usize,
}

struct Queued {
    bytes: Range<usize>,
    slice: Option<Slice>,
}

impl Queued {
    fn len(&self) -> usize {
        self.bytes.len() + self.slice.as_ref().map_or(0, |slice| slice.bytes().len())
    }
}

/// Position of a frame.
#[derive(Clone, Copy)]
pub(super) struct FrameAt {
    round: u64,
    index: usize,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Bytes of bodies that are not written.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Adds the frame that `put` appends.
    pub(super) fn frame(&mut self, put: impl FnOnce(&mut Vec<u8>)) -> FrameAt {
        let start = self.bytes.len();
        put(&mut self.bytes);
        self.push(start, None)
    }

    /// Adds a frame of DATA. Returns the slice if it is not needed any more.
    pub(super) fn data(&mut self, request: u32, slice: Slice) -> (FrameAt, Option<Slice>) {
        let (start, length) = (self.bytes.len(), slice.bytes().len());
        self.bytes.extend_from_slice(&lane::data_header(request, false, length));
        if length <= SHORT {
            self.bytes.extend_from_slice(slice.bytes());
            return (self.push(start, None), Some(slice));
        }
        self.waiting += length;
        (self.push(start, Some(slice)), None)
    }

    fn push(&mut self, start: usize, slice: Option<Slice>) -> FrameAt {
        self.frames.push(Queued { bytes: start..self.bytes.len(), slice });
        FrameAt { round: self.round, index: self.frames.len() - 1 }
    }

    /// Says that nothing follows a frame in its direction. False when it is written already, or begun.
    pub(super) fn set_last(&mut self, frame: FrameAt) -> bool {
        let is_waiting = frame.index > self.next || (frame.index == self.next && self.written == 0);
        let found = self.frames.get(frame.index).filter(|_| frame.round == self.round && is_waiting);
        let Some(found) = found else { return false };
        self.bytes[found.bytes.start + FLAGS_AT] |= LAST;
        true
    }

    /// Writes what `to` takes. What is not needed any more goes to `done`, to be dropped where no lock is held. Returns whether all is written.
    pub(super) fn write(&mut self, to: &mut impl Write, done: &mut Vec<Slice>) -> io::Result<bool> {
        while self.next < self.frames.len() {
            let (offered, written) = {
                let mut parts = [IoSlice::new(&[]); PARTS];
                let (count, offered) = self.parts(&mut parts);
                match to.write_vectored(&parts[..count]) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(written) => (offered, written),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                    Err(error) => return Err(error),
                }
            };
            self.advance(written, done);
            if written < offered {
                return Ok(false);
            }
        }
        self.bytes.clear();
        self.frames.clear();
        (self.next, self.written) = (0, 0);
        self.round += 1;
        Ok(true)
    }

    /// Fills `parts` with what is next. Returns how many there are, and of how many bytes.
    fn parts<'a>(&'a self, parts: &mut [IoSlice<'a>; PARTS]) -> (usize, usize) {
        let (mut count, mut offered, mut skip) = (0, 0, self.written);
        // Frames without slices stand side by side, and are one part.
        let mut run: Range<usize> = 0..0;
        for frame in &self.frames[self.next..] {
            if count + 2 >= PARTS {
                break;
            }
            let start = frame.bytes.start + skip.min(frame.bytes.len());
            run = if run.is_empty() { start..frame.bytes.end } else { run.start..frame.bytes.end };
            if let Some(slice) = &frame.slice {
                if !run.is_empty() {
                    parts[count] = IoSlice::new(&self.bytes[run.clone()]);
                    count += 1;
                    offered += run.len();
                }
                run = 0..0;
                let rest = &slice.bytes()[skip.saturating_sub(frame.bytes.len())..];
                parts[count] = IoSlice::new(rest);
                count += 1;
                offered += rest.len();
            }
            skip = 0;
        }
        if !run.is_empty() {
            parts[count] = IoSlice::new(&self.bytes[run.clone()]);
            count += 1;
            offered += run.len();
        }
        (count, offered)
    }

    fn advance(&mut self, mut bytes: usize, done: &mut Vec<Slice>) {
        while let Some(frame) = self.frames.get_mut(self.next) {
            let rest = frame.len() - self.written;
            if bytes < rest {
                self.written += bytes;
                return;
            }
            bytes -= rest;
            self.written = 0;
            self.next += 1;
            if let Some(slice) = frame.slice.take() {
                self.waiting -= slice.bytes().len();
                done.push(slice);
            }
        }
    }

    /// Forgets everything: the lane is closed. Returns what is to be dropped where no lock is held.
    pub(super) fn clear(&mut self) -> Vec<Slice> {
        let slices = self.frames.drain(..).filter_map(|frame| frame.slice).collect();
        *self = Outbox { round: self.round + 1, ..Outbox::default() };
        slices
    }
}

#[cfg(test)]
mod tests {
    use tracer_ipc::lane::{Body, Frame, LANE_FRAME_LIMIT, Reset};
    use tracer_ipc::protocol::frame::FrameBuffer;

    use super::*;

    /// Takes so many bytes each time, and then none.
    struct Narrow<'a> {
        out: &'a mut Vec<u8>,
        takes: Vec<usize>,
    }

    impl Write for Narrow<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let Some(most) = self.takes.pop() else { return Err(io::ErrorKind::WouldBlock.into()) };
            let count = bytes.len().min(most);
            self.out.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn frames(mut bytes: &[u8]) -> Vec<(u32, bool, String)> {
        let mut buffer = FrameBuffer::new();
        let mut found = Vec::new();
        while buffer.read_from(&mut bytes).unwrap() > 0 {
            while let Some((kind, body)) = buffer.next_frame(LANE_FRAME_LIMIT).unwrap() {
                let frame = Frame::decode(kind, body).unwrap();
                let what = match frame.body {
                    Body::Head(status, _) => format!("head {status}"),
                    Body::Data(piece) => format!("data {}", piece.len()),
                    Body::Reset(reset) => format!("{reset:?}"),
                    other => format!("{other:?}"),
                };
                found.push((frame.request, frame.is_last, what));
            }
        }
        found
    }

    #[test]
    fn frames_arrive_in_order_however_little_the_socket_takes() {
        for step in [1, 3, 7, 1000] {
            let (mut outbox, mut out) = (Outbox::default(), Vec::new());
            let head = outbox.frame(|out| lane::put_head(out, 1, false, 200, []));
            let (data, _) = outbox.data(1, Slice::Part(Arc::new(ModulePiece::from(vec![7; 900])), 100..800));
            let (short, given_back) = outbox.data(2, Slice::Whole(ModulePiece::from(b"hello".to_vec())));
            assert!(given_back.is_some(), "what is short is copied");
            assert!(outbox.set_last(data) && outbox.waiting() == 700);
            let mut done = Vec::new();
            let mut narrow = Narrow { out: &mut out, takes: vec![step] };
            assert!(!outbox.write(&mut narrow, &mut done).unwrap());
            // One write takes one part at most: what comes before the long piece.
            assert!(!outbox.set_last(head) && outbox.set_last(short), "{step}");
            outbox.frame(|out| lane::put_reset(out, 3, Reset::Timeout));
            while !outbox.write(&mut Narrow { out: &mut out, takes: vec![step] }, &mut done).unwrap() {}
            assert_eq!((done.len(), outbox.waiting(), outbox.is_empty()), (1, 0, true));
            assert!(!outbox.set_last(short), "the place is another frame's by now");
            let expected = [(1, false, "head 200"), (1, true, "data 700"), (2, true, "data 5"), (3, true, "Timeout")];
            let found = frames(&out);
            assert_eq!(found.iter().map(|(of, is_last, what)| (*of, *is_last, &**what)).collect::<Vec<_>>(), expected);
        }
    }
}
