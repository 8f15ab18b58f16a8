//! Lines of one log that come in pieces, put together in the order in which they began.

use std::collections::{BTreeMap, HashMap, VecDeque};

use tracer_core::escape::whole_characters;
use tracer_ipc::protocol::Stream;
use tracer_ipc::task_output::{Extent, Owner};

use super::Line;
use crate::merging::Key;

/// The most beginnings of characters that are kept for what comes after a piece.
const CUT_CHARACTERS: usize = 64;

/// The writer of a line: stream, owner, and whether it is known.
type Writer = (bool, u64, u32, bool);

/// Lines that have not been handed on.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// By the positions of their beginnings.
    waiting: BTreeMap<u64, Unended>,
    /// The beginnings of the lines that have not come to their end.
    open: HashMap<Writer, u64>,
    /// Beginnings of characters whose rest comes with the next piece.
    cut: HashMap<Writer, Unended>,
    ready: VecDeque<Line>,
    /// Bytes of all of these.
    bytes: usize,
}

#[derive(Debug)]
struct Unended {
    /// Without its text.
    line: Line,
    bytes: Vec<u8>,
    writer: Writer,
    has_ended: bool,
}

impl Unended {
    fn into_line(self) -> Line {
        let text = String::from_utf8(self.bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        Line { text, ..self.line }
    }
}

impl Lines {
    pub(super) fn take(&mut self) -> Option<Line> {
        let line = self.ready.pop_front()?;
        self.bytes -= line.text.len();
        Some(line)
    }

    /// Makes a line that was taken the first again.
    pub(super) fn put_back(&mut self, line: Line) {
        self.bytes += line.text.len();
        self.ready.push_front(line);
    }

    /// Returns the place of the line that is next.
    pub(super) fn first_ready(&self) -> Option<Key> {
        self.ready.front().map(Line::key)
    }

    /// Returns the place of the line that has begun first, of those that are not ready.
    pub(super) fn first_begun(&self) -> Option<Key> {
        self.waiting.first_key_value().map(|(_, waiting)| waiting.line.key())
    }

    /// Returns how many bytes of text there are.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn make_ready(&mut self, unended: Unended) {
        self.bytes -= unended.bytes.len();
        let line = unended.into_line();
        self.bytes += line.text.len();
        self.ready.push_back(line);
    }

    /// Puts a piece with at most one line feed, at its end, behind what its writer wrote before. `position` counts from the beginning of the log,
    /// which may be in an older part of it. What is longer than `limit` comes in pieces.
    pub(super) fn put(
        &mut self,
        extent: &Extent,
        worker: (u64, u32),
        inode: u64,
        position: u64,
        bytes: &[u8],
        limit: usize,
    ) {
        let (task, attempt) = match extent.owner {
            Owner::None | Owner::Unmarked => return,
            Owner::Attempt { task, attempt, .. } => (task.0, attempt),
            Owner::Actor(actor) => (actor.0, 0),
        };
        let writer = (extent.stream == Stream::Stderr, task, attempt, extent.is_approximate);
        let (mut text, has_ended) = bytes.strip_suffix(b"\n").map_or((bytes, false), |text| (text, true));
        let mut from = 0;
        loop {
            let begin = *self.open.entry(writer).or_insert(position + from);
            let length = &mut self.bytes;
            let waiting = self.waiting.entry(begin).or_insert_with(|| Unended {
                line: Line {
                    owner: extent.owner,
                    is_approximate: extent.is_approximate,
                    stream: extent.stream,
                    worker,
                    unix_nano: extent.unix_nano,
                    text: String::new(),
                    is_partial: true,
                    place: (inode, extent.offset + from),
                },
                bytes: self.cut.remove(&writer).map_or_else(Vec::new, |cut| {
                    *length += cut.bytes.len();
                    cut.bytes
                }),
                writer,
                has_ended: false,
            });
            let room = limit.saturating_sub(waiting.bytes.len());
            let (piece, rest) = text.split_at(room.min(text.len()));
            waiting.bytes.extend_from_slice(piece);
            *length += piece.len();
            if rest.is_empty() {
                waiting.has_ended = has_ended;
                waiting.line.is_partial = !has_ended;
                if has_ended {
                    self.open.remove(&writer);
                }
                return;
            }
            self.end_piece(begin);
            (text, from) = (rest, from + piece.len() as u64);
        }
    }

    /// Makes what there is of a line a piece.
    fn end_piece(&mut self, begin: u64) {
        let Some(waiting) = self.waiting.get_mut(&begin) else { return };
        waiting.has_ended = true;
        let (writer, length) = (waiting.writer, whole_characters(&waiting.bytes));
        self.open.remove(&writer);
        if length < waiting.bytes.len() && self.cut.len() < CUT_CHARACTERS {
            let bytes = waiting.bytes.split_off(length);
            self.bytes -= bytes.len();
            self.cut.insert(writer, Unended { line: waiting.line.clone(), bytes, writer, has_ended: false });
        }
    }

    /// Makes ready what no line that is not at its end stands before, if the log has been read up to a position.
    pub(super) fn release(&mut self, position: u64, limit: usize) {
        while let Some((&begin, first)) = self.waiting.first_key_value() {
            if !first.has_ended {
                if position.saturating_sub(begin) <= limit as u64 {
                    return;
                }
                self.end_piece(begin);
            }
            if let Some((_, line)) = self.waiting.pop_first() {
                self.make_ready(line);
            }
        }
    }

    /// Makes ready every line that is at its end, as no more is there to be read, and if no more will ever come, the others too.
    pub(super) fn release_all(&mut self, is_last: bool) {
        let waiting = std::mem::take(&mut self.waiting);
        for (begin, line) in waiting {
            if line.has_ended || is_last {
                self.make_ready(line);
            } else {
                self.waiting.insert(begin, line);
            }
        }
        if is_last {
            self.open.clear();
            for cut in std::mem::take(&mut self.cut).into_values() {
                self.bytes += cut.bytes.len();
                self.make_ready(cut);
            }
        }
    }
}
