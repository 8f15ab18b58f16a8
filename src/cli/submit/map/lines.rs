//! Lines of an input that comes in pieces.

use std::io::{self, Read};

use tracer_ipc::protocol::frame::PAYLOAD_LIMIT;

/// Bytes that are read at once.
const PIECE: usize = 64 << 10;

/// A line without its line feed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    Whole {
        /// From 1.
        number: u64,
        text: Vec<u8>,
    },
    /// It has more bytes than a task may have.
    TooLong { number: u64, limit: usize },
}

impl Line {
    /// Returns its number in the input, from 1.
    pub(super) fn number(&self) -> u64 {
        match self {
            Line::Whole { number, .. } | Line::TooLong { number, .. } => *number,
        }
    }
}

/// Cuts bytes into lines. It keeps no more than one line that is too long and one piece.
pub(super) struct Lines {
    limit: usize,
    bytes: Vec<u8>,
    /// Offset of the next line.
    start: usize,
    /// Offset up to which there is no line feed.
    searched: usize,
    taken: u64,
    /// The line was too long and its end has not come yet.
    is_skipping: bool,
}

impl Default for Lines {
    fn default() -> Lines {
        Lines::with_limit(PAYLOAD_LIMIT)
    }
}

impl Lines {
    fn with_limit(limit: usize) -> Lines {
        Lines { limit, bytes: Vec::new(), start: 0, searched: 0, taken: 0, is_skipping: false }
    }

    /// Reads once. Returns how many bytes came; 0 at the end.
    pub(super) fn read_from(&mut self, input: &mut impl Read) -> io::Result<usize> {
        self.bytes.drain(..self.start);
        self.searched -= self.start;
        self.start = 0;
        let length = self.bytes.len();
        self.bytes.resize(length + PIECE, 0);
        let read = input.read(&mut self.bytes[length..]);
        self.bytes.truncate(length + read.as_ref().map_or(0, |&count| count));
        read
    }

    /// Returns the next line that is there. The last one of an input that has ended may lack its line feed.
    pub(super) fn next(&mut self, has_ended: bool) -> Option<Line> {
        loop {
            let feed = memchr::memchr(b'\n', &self.bytes[self.searched..]).map(|offset| self.searched + offset);
            let (end, next) = match feed {
                Some(feed) => (feed, feed + 1),
                None if has_ended && self.start < self.bytes.len() => (self.bytes.len(), self.bytes.len()),
                None => {
                    self.searched = self.bytes.len();
                    if self.is_skipping || self.bytes.len() - self.start > self.limit {
                        self.start = self.searched;
                        return self.skip();
                    }
                    return None;
                }
            };
            let text = self.start..end;
            (self.start, self.searched) = (next, next);
            if std::mem::take(&mut self.is_skipping) {
                continue;
            }
            self.taken += 1;
            return Some(if text.len() > self.limit {
                Line::TooLong { number: self.taken, limit: self.limit }
            } else {
                Line::Whole { number: self.taken, text: self.bytes[text].to_vec() }
            });
        }
    }

    /// Notes that the line is too long, and goes on. It is told once.
    fn skip(&mut self) -> Option<Line> {
        if std::mem::replace(&mut self.is_skipping, true) {
            return None;
        }
        self.taken += 1;
        Some(Line::TooLong { number: self.taken, limit: self.limit })
    }

    /// Returns whether all that has come was taken.
    pub(super) fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    /// Returns how many lines were taken.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }
}

/// Counts the lines of an input.
pub(super) fn count(mut input: impl Read) -> io::Result<u64> {
    let mut piece = vec![0; PIECE];
    let (mut lines, mut last) = (0, b'\n');
    loop {
        match input.read(&mut piece) {
            Ok(0) => return Ok(lines + u64::from(last != b'\n')),
            Ok(length) => {
                lines += memchr::memchr_iter(b'\n', &piece[..length]).count() as u64;
                last = piece[length - 1];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Gives its bytes in pieces of the lengths given, over and over.
    struct Pieces<'a>(&'a [u8], Vec<usize>, usize);

    impl Read for Pieces<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let wanted = self.1[self.2 % self.1.len()].min(buffer.len()).min(self.0.len());
            self.2 += 1;
            let (piece, rest) = self.0.split_at(wanted);
            buffer[..wanted].copy_from_slice(piece);
            self.0 = rest;
            Ok(wanted)
        }
    }

    fn cut(bytes: &[u8], pieces: Vec<usize>, limit: usize) -> Vec<Line> {
        let mut input = Pieces(bytes, pieces, 0);
        let (mut lines, mut cut) = (Lines::with_limit(limit), Vec::new());
        loop {
            let has_ended = lines.read_from(&mut input).expect("it cannot fail") == 0;
            while let Some(line) = lines.next(has_ended) {
                cut.push(line);
            }
            if has_ended {
                assert!(lines.is_empty());
                return cut;
            }
        }
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_pieces(
            text in "[ab\n]{0,60}",
            pieces in prop::collection::vec(1_usize..9, 1..5),
            limit in 1_usize..12,
        ) {
            let expected: Vec<Line> = text
                .split_inclusive('\n')
                .map(|line| line.strip_suffix('\n').unwrap_or(line))
                .zip(1..)
                .map(|(line, number)| match line.len() <= limit {
                    true => Line::Whole { number, text: line.into() },
                    false => Line::TooLong { number, limit },
                })
                .collect();
            prop_assert_eq!(count(text.as_bytes()).expect("it cannot fail"), expected.len() as u64);
            prop_assert_eq!(cut(text.as_bytes(), pieces, limit), expected);
        }
    }

    #[test]
    fn a_line_without_end_is_not_kept() {
        let mut lines = Lines::with_limit(10);
        let mut endless = io::repeat(b'x');
        let mut told = 0;
        for _ in 0..100 {
            lines.read_from(&mut endless).expect("it cannot fail");
            told += std::iter::from_fn(|| lines.next(false)).count();
            assert!(lines.bytes.len() <= 2 * PIECE);
        }
        assert_eq!(told, 1);
    }
}
