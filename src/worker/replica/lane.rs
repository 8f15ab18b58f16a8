//! The replica's end of a lane: its socket, its claims, and what waits to be written.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use crate::claims::SharedClaims;
use crate::hook::ModulePiece;
use crate::lane::{DATA_LIMIT, data_header};
use crate::protocol::frame::FrameBuffer;

/// Bytes that wait to be written; from there on the bodies of answers wait.
const OUT_LIMIT: usize = 16 << 20;
/// A piece that is shorter is copied beside the frames around it: that costs less than a part of a write of its own.
const COPIED: usize = 4 << 10;
/// Parts of one write.
const PARTS: usize = 64;

/// A lane.
pub(super) struct Lane {
    stream: UnixStream,
    pub(super) claims: SharedClaims,
    pub(super) inbox: FrameBuffer,
    out: VecDeque<Part>,
    /// Bytes of the first part that were written already.
    written: usize,
    out_bytes: usize,
    /// True while it waits until the socket takes more.
    pub(super) waits_to_write: bool,
}

/// Bytes to write.
enum Part {
    Own(Vec<u8>),
    /// A part of a piece of the module's.
    Lent(Arc<ModulePiece>, std::ops::Range<usize>),
}

impl Part {
    fn bytes(&self) -> &[u8] {
        match self {
            Part::Own(bytes) => bytes,
            Part::Lent(piece, range) => &piece[range.clone()],
        }
    }
}

impl Lane {
    pub(super) fn new(socket: OwnedFd, claims: SharedClaims) -> io::Result<Lane> {
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(true)?;
        Ok(Lane {
            stream,
            claims,
            inbox: FrameBuffer::new(),
            out: VecDeque::new(),
            written: 0,
            out_bytes: 0,
            waits_to_write: false,
        })
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Reads what has come. False at the end.
    pub(super) fn read(&mut self) -> io::Result<bool> {
        match self.inbox.read_from(&mut &self.stream) {
            Ok(count) => Ok(count > 0),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// True if more waits to be written than may.
    pub(super) fn is_full(&self) -> bool {
        self.out_bytes >= OUT_LIMIT
    }

    /// True if nothing waits to be written.
    #[cfg(test)]
    fn is_written(&self) -> bool {
        self.out.is_empty()
    }

    /// Appends frames.
    pub(super) fn put(&mut self, frame: impl FnOnce(&mut Vec<u8>)) {
        if !matches!(self.out.back(), Some(Part::Own(_))) {
            self.out.push_back(Part::Own(Vec::new()));
        }
        let Some(Part::Own(bytes)) = self.out.back_mut() else { return };
        let before = bytes.len();
        frame(bytes);
        self.out_bytes += bytes.len() - before;
    }

    /// Appends a frame with a part of a piece.
    pub(super) fn put_data(
        &mut self,
        request: u32,
        is_last: bool,
        piece: &Arc<ModulePiece>,
        range: std::ops::Range<usize>,
    ) {
        debug_assert!(range.len() <= DATA_LIMIT);
        self.put(|out| out.extend_from_slice(&data_header(request, is_last, range.len())));
        if range.len() <= COPIED {
            self.put(|out| out.extend_from_slice(&piece[range]));
        } else {
            self.out_bytes += range.len();
            self.out.push_back(Part::Lent(Arc::clone(piece), range));
        }
    }

    /// Writes as much as the socket takes. Pieces that were written are added to `done`: they are the module's, and dropped without a lock.
    pub(super) fn write(&mut self, done: &mut Vec<Arc<ModulePiece>>) -> io::Result<()> {
        while !self.out.is_empty() {
            let mut parts = [IoSlice::new(&[]); PARTS];
            let mut count = 0;
            for (part, slot) in self.out.iter().zip(&mut parts) {
                let skipped = if count == 0 { self.written } else { 0 };
                *slot = IoSlice::new(&part.bytes()[skipped..]);
                count += 1;
            }
            match sendmsg(&self.stream, &parts[..count], &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL) {
                Ok(written) => self.advance(written, done),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => {
                    self.waits_to_write = true;
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.waits_to_write = false;
        Ok(())
    }

    fn advance(&mut self, written: usize, done: &mut Vec<Arc<ModulePiece>>) {
        self.out_bytes -= written;
        self.written += written;
        while let Some(part) = self.out.front() {
            let length = part.bytes().len();
            if self.written < length {
                return;
            }
            self.written -= length;
            if let Some(Part::Lent(piece, _)) = self.out.pop_front() {
                done.push(piece);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn what_the_socket_does_not_take_waits_and_nothing_is_lost_or_sent_twice() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let (claims, _file) = SharedClaims::create().unwrap();
        let mut lane = Lane::new(theirs.into(), claims).unwrap();
        let mut expected = Vec::new();
        for number in 0..2000_u32 {
            let bytes = vec![number as u8; (number % 700) as usize];
            expected.extend_from_slice(&bytes);
            lane.put(|out| out.extend_from_slice(&bytes));
        }
        let (mut done, mut found) = (Vec::new(), Vec::new());
        lane.write(&mut done).unwrap();
        assert!(lane.waits_to_write && !lane.is_written());
        ours.set_nonblocking(true).unwrap();
        while found.len() < expected.len() {
            let mut bytes = [0; 4096];
            if let Ok(count) = ours.read(&mut bytes) {
                found.extend_from_slice(&bytes[..count]);
            }
            lane.write(&mut done).unwrap();
        }
        assert!(lane.is_written() && lane.out_bytes == 0 && !lane.waits_to_write);
        assert!(found == expected);
    }
}
