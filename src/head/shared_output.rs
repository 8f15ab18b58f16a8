//! Output over queues: what imports write goes to their origins, and what arrives of tasks in queues goes to the drivers that follow them.
//!
//! Delivery is best effort, without backpressure: a piece for which agent, engine or driver has no room is dropped. Each piece says how much was written before
//! it, and the end says how much there was in all, so a driver is told what is missing. The worker's log has the whole.

mod passing;

use rustc_hash::FxHashMap;
use tracer_core::PlaceId;
use tracer_core::task::TaskId;
use tracer_ipc::protocol::{OutputSize, SharedOutput, Written};

/// The most bytes of a piece.
const PIECE: usize = 64 << 10;
/// Bytes on the way to the agent beyond which output is left out.
const AGENT_BACKLOG_LIMIT: usize = 4 << 20;

/// Output that goes over queues, as far as it was seen.
#[derive(Debug, Default)]
pub(super) struct SharedOutputs {
    /// All that imports have written, by their ids here.
    written: FxHashMap<TaskId, OutputSize>,
    /// All that has come of tasks in queues that are followed, or were.
    arrived: FxHashMap<TaskId, Arrived>,
}

impl SharedOutputs {
    /// Returns how much an import has written, and forgets it.
    pub(super) fn take_written(&mut self, import: TaskId) -> OutputSize {
        self.written.remove(&import).unwrap_or_default()
    }
}

/// Output that has come of a task in a queue.
#[derive(Debug)]
struct Arrived {
    /// Its end: what comes next begins there.
    until: Written,
    /// The place of the node that was told that nobody follows it any more.
    told: Option<PlaceId>,
}

impl Arrived {
    fn nothing() -> Arrived {
        Arrived { until: Written { from_attempt: 0, size: OutputSize::default() }, told: None }
    }

    /// Takes in a piece, and returns how much is missing before it; none if it is of a node that had the task before, or came already.
    fn take_in(&mut self, output: &SharedOutput) -> Option<OutputSize> {
        let before = output.before;
        if before.from_attempt < self.until.from_attempt {
            return None;
        }
        let lost = self.missing(before);
        if lost.is_none() && before.from_attempt == self.until.from_attempt && before.size != self.until.size {
            return None;
        }
        self.until = Written { size: before.size.plus(OutputSize::of(&output.bytes)), ..before };
        Some(lost.unwrap_or_default())
    }

    /// Returns how much has not come of what was written at a node up to here; none if nothing is missing.
    fn missing(&self, until: Written) -> Option<OutputSize> {
        let size = match until.from_attempt == self.until.from_attempt {
            true => until.size.since(self.until.size),
            false => until.size,
        };
        (size.bytes > 0).then_some(size)
    }
}

/// Returns pieces of what was written, which end with a line where that can be.
fn pieces(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let most = bytes.len().min(PIECE);
        let end = match most < bytes.len() {
            true => bytes[..most].iter().rposition(|&byte| byte == b'\n').map_or(most, |at| at + 1),
            false => most,
        };
        let (piece, rest) = bytes.split_at(end);
        bytes = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use tracer_ipc::protocol::Stream;

    use super::*;

    fn at(from_attempt: u32, bytes: u64, lines: u64) -> Written {
        Written { from_attempt, size: OutputSize { bytes, lines } }
    }

    fn piece(before: Written, text: &str) -> SharedOutput {
        SharedOutput { before, worker_pid: 7, stream: Stream::Stdout, bytes: text.into() }
    }

    #[test]
    fn what_is_missing_between_two_pieces_and_at_the_end_is_known() {
        let mut arrived = Arrived::nothing();
        assert_eq!(arrived.take_in(&piece(at(1, 0, 0), "a\n")), Some(OutputSize::default()));
        assert_eq!(arrived.missing(at(1, 2, 1)), None);
        assert_eq!(arrived.take_in(&piece(at(1, 8, 4), "e\nf")), Some(OutputSize { bytes: 6, lines: 3 }));
        assert_eq!(arrived.take_in(&piece(at(1, 11, 5), "\n")), Some(OutputSize::default()));
        assert_eq!(arrived.missing(at(1, 12, 6)), None);
        assert_eq!(arrived.missing(at(1, 15, 7)), Some(OutputSize { bytes: 3, lines: 1 }));
    }

    #[test]
    fn a_piece_that_comes_twice_or_of_a_node_that_lost_the_task_is_not_shown() {
        let mut arrived = Arrived::nothing();
        arrived.take_in(&piece(at(1, 0, 0), "a\nb\n"));
        assert_eq!(arrived.take_in(&piece(at(1, 0, 0), "a\n")), None);
        assert_eq!(arrived.take_in(&piece(at(3, 2, 1), "of the next node\n")), Some(OutputSize { bytes: 2, lines: 1 }));
        assert_eq!(arrived.take_in(&piece(at(1, 4, 2), "c\n")), None);
        assert_eq!(arrived.missing(at(3, 19, 2)), None);
    }

    #[test]
    fn long_output_is_cut_behind_lines() {
        let line = [vec![b'x'; 40 << 10], b"\n".to_vec()].concat();
        let text = line.repeat(3);
        assert_eq!(pieces(&text).map(<[u8]>::len).collect::<Vec<_>>(), [line.len(); 3]);
        let without_end = vec![b'x'; PIECE + 1];
        assert_eq!(pieces(&without_end).map(<[u8]>::len).collect::<Vec<_>>(), [PIECE, 1]);
        assert_eq!(pieces(b"").count(), 0);
    }
}
