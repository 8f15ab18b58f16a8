//! Marks in a pipe: their bytes, and the reader that takes them out.

use serde::{Deserialize, Serialize};
use tracer_core::codec::{Put, Take, WireError};
use tracer_core::task::TaskId;

/// Bytes of a mark: below `PIPE_BUF`, so that one write puts it into a pipe whole.
pub const MARK_SIZE: usize = NONCE_SIZE + 1 + 4 + 8 + 4 + 16;
const NONCE_SIZE: usize = 16;

/// The random bytes with which all marks of a worker begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nonce([u8; NONCE_SIZE]);

impl Nonce {
    /// Returns a nonce of these random bytes, the first of which is replaced by one that occurs in no UTF-8 text.
    #[must_use]
    pub const fn of(mut random: [u8; NONCE_SIZE]) -> Nonce {
        random[0] = 0xff;
        Nonce(random)
    }

    /// Returns a nonce of bytes of the system.
    pub fn random() -> std::io::Result<Nonce> {
        let mut bytes = [0; NONCE_SIZE];
        let mut filled = 0;
        while filled < bytes.len() {
            filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
        }
        Ok(Nonce::of(bytes))
    }
}

/// The owner of the bytes that follow a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// No attempt: what the worker itself writes.
    None,
    /// An attempt that is not marked, whichever.
    Unmarked,
    /// One attempt of a task.
    Attempt {
        /// Id of the task.
        task: TaskId,
        /// Number of the attempt, from 1.
        attempt: u32,
        /// The trace of the attempt's span; all zero for none.
        trace_id: [u8; 16],
    },
    /// Calls of an actor that run beside each other, any of which may write.
    Actor(TaskId),
}

/// A mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The number that the worker has given the function; 0 for what is always marked.
    pub function: u32,
    /// The owner of what follows.
    pub owner: Owner,
}

impl Mark {
    /// The mark behind the last attempt.
    pub const NONE: Mark = Mark { function: 0, owner: Owner::None };
    /// The mark before attempts that are not marked.
    pub const UNMARKED: Mark = Mark { function: 0, owner: Owner::Unmarked };

    /// Returns the bytes of the mark.
    #[must_use]
    pub fn encode(&self, nonce: &Nonce) -> [u8; MARK_SIZE] {
        let (kind, TaskId(task), attempt, trace_id) = match self.owner {
            Owner::None => (0, TaskId(0), 0, [0; 16]),
            Owner::Attempt { task, attempt, trace_id } => (1, task, attempt, trace_id),
            Owner::Actor(actor) => (2, actor, 0, [0; 16]),
            Owner::Unmarked => (3, TaskId(0), 0, [0; 16]),
        };
        let mut bytes = [0; MARK_SIZE];
        let (start, body) = bytes.split_at_mut(NONCE_SIZE);
        start.copy_from_slice(&nonce.0);
        body[0] = kind;
        body[1..5].copy_from_slice(&self.function.to_le_bytes());
        body[5..13].copy_from_slice(&task.to_le_bytes());
        body[13..17].copy_from_slice(&attempt.to_le_bytes());
        body[17..].copy_from_slice(&trace_id);
        bytes
    }

    /// Returns the mark with these bytes behind the nonce. None for a kind that there is not.
    fn decode(body: &[u8; MARK_SIZE - NONCE_SIZE]) -> Option<Mark> {
        let number = |from: usize| u32::from_le_bytes([body[from], body[from + 1], body[from + 2], body[from + 3]]);
        let (task, rest) = body[5..].split_first_chunk::<8>()?;
        let task = TaskId(u64::from_le_bytes(*task));
        let trace_id = *rest[4..].first_chunk::<16>()?;
        let owner = match body[0] {
            0 => Owner::None,
            1 => Owner::Attempt { task, attempt: number(13), trace_id },
            2 => Owner::Actor(task),
            3 => Owner::Unmarked,
            _ => return None,
        };
        Some(Mark { function: number(1), owner })
    }
}

/// A piece of what was read from a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read<'a> {
    /// The mark that comes next.
    Mark(Mark),
    /// Bytes that were written.
    Bytes(&'a [u8]),
}

/// A reader that takes the marks of one worker out of what comes from one of its pipes.
///
/// Bytes at the end of a read that may be the beginning of a mark are held back until the next read, or until [`MarkReader::flush`].
#[derive(Debug)]
pub struct MarkReader {
    nonce: Nonce,
    held: Vec<u8>,
}

impl MarkReader {
    /// Makes a reader of marks that begin with this nonce.
    #[must_use]
    pub const fn new(nonce: Nonce) -> MarkReader {
        MarkReader { nonce, held: Vec::new() }
    }

    /// Takes bytes apart, in their order.
    pub fn read(&mut self, bytes: &[u8], mut take: impl FnMut(Read<'_>)) {
        if self.held.is_empty() {
            let kept = self.split(bytes, &mut take);
            self.held.extend_from_slice(&bytes[kept..]);
            return;
        }
        let mut joined = std::mem::take(&mut self.held);
        joined.extend_from_slice(bytes);
        let kept = self.split(&joined, &mut take);
        joined.drain(..kept);
        self.held = joined;
    }

    /// Gives out what is held back: the pipe is empty, and a mark comes whole or not at all.
    pub fn flush(&mut self, mut take: impl FnMut(Read<'_>)) {
        if !self.held.is_empty() {
            take(Read::Bytes(&std::mem::take(&mut self.held)));
        }
    }

    /// Takes bytes apart, and returns from where on they may be the beginning of a mark.
    fn split(&self, bytes: &[u8], take: &mut impl FnMut(Read<'_>)) -> usize {
        let Nonce(nonce) = &self.nonce;
        let (mut taken, mut from) = (0, 0);
        while let Some(found) = memchr::memchr(nonce[0], &bytes[from..]) {
            let start = from + found;
            let rest = &bytes[start..];
            let length = rest.len().min(NONCE_SIZE);
            let body = rest.get(NONCE_SIZE..).and_then(|rest| rest.first_chunk());
            if rest[..length] != nonce[..length] {
                from = start + 1;
                continue;
            }
            let Some(body) = body else {
                put_bytes(&bytes[taken..start], take);
                return start;
            };
            let Some(mark) = Mark::decode(body) else {
                from = start + 1;
                continue;
            };
            put_bytes(&bytes[taken..start], take);
            take(Read::Mark(mark));
            from = start + MARK_SIZE;
            taken = from;
        }
        put_bytes(&bytes[taken..], take);
        bytes.len()
    }
}

fn put_bytes(bytes: &[u8], take: &mut impl FnMut(Read<'_>)) {
    if !bytes.is_empty() {
        take(Read::Bytes(bytes));
    }
}

/// An order to a worker: whether it marks the attempts of a function.
///
/// A worker marks every function from the start. The head tells it to stop for one whose first attempts wrote nothing, and to begin again for all
/// of them when bytes come that no mark owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marking {
    /// Attempts of this function are not marked any more.
    Stop(u32),
    /// Attempts of all functions are marked.
    All,
}

impl Marking {
    /// Appends the order.
    pub fn put(self, out: &mut Vec<u8>) {
        out.put_u32(match self {
            Marking::Stop(function) => function,
            Marking::All => 0,
        });
    }

    /// Takes an order off.
    pub fn take(take: &mut Take<'_>) -> Result<Marking, WireError> {
        Ok(match take.u32()? {
            0 => Marking::All,
            function => Marking::Stop(function),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NONCE: Nonce = Nonce::of([0x5a; 16]);

    fn owned(task: u64) -> Mark {
        Mark { function: 3, owner: Owner::Attempt { task: TaskId(task), attempt: 1, trace_id: [7; 16] } }
    }

    /// Everything that a reader gives, with the owner of each byte.
    fn owners(reads: &[&[u8]]) -> Vec<(Option<u64>, u8)> {
        let mut reader = MarkReader::new(NONCE);
        let (mut owner, mut found) = (None, Vec::new());
        let mut take = |read: Read<'_>| match read {
            Read::Mark(Mark { owner: Owner::Attempt { task, .. }, .. }) => owner = Some(task.0),
            Read::Mark(_) => owner = None,
            Read::Bytes(bytes) => found.extend(bytes.iter().map(|&byte| (owner, byte))),
        };
        reads.iter().for_each(|bytes| reader.read(bytes, &mut take));
        reader.flush(&mut take);
        found
    }

    #[test]
    fn each_mark_is_read_as_it_was_written() {
        for mark in [Mark::NONE, Mark::UNMARKED, owned(9), Mark { function: 7, owner: Owner::Actor(TaskId(4)) }] {
            let mut found = Vec::new();
            MarkReader::new(NONCE).read(&mark.encode(&NONCE), |read| match read {
                Read::Mark(mark) => found.push(mark),
                Read::Bytes(bytes) => panic!("{bytes:?} are left"),
            });
            assert_eq!(found, [mark]);
        }
    }

    #[test]
    fn a_mark_with_another_nonce_is_what_a_task_wrote() {
        let forged = owned(9).encode(&Nonce::of([1; 16]));
        assert!(owners(&[&forged]).iter().all(|(owner, _)| owner.is_none()));
        assert_eq!(owners(&[&forged]).len(), MARK_SIZE);
    }

    #[test]
    fn text_is_given_at_once() {
        let mut given = Vec::new();
        let mut reader = MarkReader::new(NONCE);
        reader.read("größer".as_bytes(), |read| {
            if let Read::Bytes(bytes) = read {
                given.extend_from_slice(bytes);
            }
        });
        assert_eq!(given, "größer".as_bytes());
    }

    #[test]
    fn orders_are_taken_as_they_were_put() {
        let mut bytes = Vec::new();
        let orders = [Marking::Stop(4), Marking::All, Marking::Stop(u32::MAX)];
        orders.iter().for_each(|order| order.put(&mut bytes));
        let mut take = Take::new(&bytes);
        assert_eq!(orders.map(|_| Marking::take(&mut take).unwrap()), orders);
        assert!(take.is_empty() && Marking::take(&mut take).is_err());
    }

    proptest! {
        #[test]
        fn every_byte_keeps_its_owner_however_reads_are_cut(
            pieces in prop::collection::vec((0_u64..4, prop::collection::vec(prop_oneof![Just(0xff_u8), Just(0x5a), any::<u8>()], 0..40)), 0..12),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let (mut written, mut expected) = (Vec::new(), Vec::new());
            for (task, bytes) in &pieces {
                let (mark, owner) = if *task == 0 { (Mark::NONE, None) } else { (owned(*task), Some(*task)) };
                written.extend_from_slice(&mark.encode(&NONCE));
                written.extend_from_slice(bytes);
                expected.extend(bytes.iter().map(|&byte| (owner, byte)));
            }
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(written.len() + 1)).collect();
            cuts.extend([0, written.len()]);
            cuts.sort_unstable();
            let reads: Vec<&[u8]> = cuts.windows(2).map(|cut| &written[cut[0]..cut[1]]).collect();
            prop_assert_eq!(owners(&reads), expected);
        }

        #[test]
        fn what_has_no_mark_comes_as_it_was_written(reads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..8)) {
            let reads: Vec<&[u8]> = reads.iter().map(Vec::as_slice).collect();
            let found: Vec<u8> = owners(&reads).into_iter().map(|(_, byte)| byte).collect();
            prop_assert_eq!(found, reads.concat());
        }
    }
}
