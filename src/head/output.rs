//! Attribution of one worker's output: marks come out of what its pipes give, and functions that write nothing are marked no more.

use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use tracer_core::task::TaskId;
use tracer_ipc::protocol::Stream;
use tracer_ipc::task_output::{Extent, Mark, MarkReader, Marking, Nonce, Owner, Read};

/// Marked attempts of a function that wrote nothing, after which it is not marked any more.
const SILENT_ATTEMPTS: u32 = 16;
/// The least time between two orders to mark all functions again.
const ALL_INTERVAL: Duration = Duration::from_secs(1);

/// The output of one worker, as far as it was read.
#[derive(Debug)]
pub(super) struct WorkerOutput {
    nonce: Nonce,
    stdout: Pipe,
    stderr: Pipe,
    functions: FxHashMap<u32, Silence>,
    /// True if some function is not marked.
    has_unmarked: bool,
    /// Time of the last order to mark all functions.
    marked_all: Option<Instant>,
    orders: Vec<Marking>,
}

/// One of the two pipes.
#[derive(Debug)]
struct Pipe {
    reader: MarkReader,
    mark: Mark,
}

/// Marks of a function that have come from each pipe. Empty for one that has written, which is always marked.
#[derive(Debug)]
struct Silence {
    has_written: bool,
    marks: [u32; 2],
}

/// The attempt that the worker has begun last, which bytes of an attempt without a mark count for: task and number of the attempt.
pub(super) type LastAttempt = Option<(TaskId, u32)>;

impl WorkerOutput {
    /// Makes the output of a worker whose marks begin with this nonce.
    pub(super) fn new(nonce: Nonce) -> WorkerOutput {
        let pipe = || Pipe { reader: MarkReader::new(nonce), mark: Mark::NONE };
        WorkerOutput {
            nonce,
            stdout: pipe(),
            stderr: pipe(),
            functions: FxHashMap::default(),
            has_unmarked: false,
            marked_all: None,
            orders: Vec::new(),
        }
    }

    /// Returns the nonce of its marks.
    pub(super) const fn nonce(&self) -> Nonce {
        self.nonce
    }

    /// Takes what was read from a pipe apart: appends the bytes without marks to `text`, and the extents in it to `extents`. `is_empty` says that
    /// the pipe had no more, so that nothing is held back; `last` is asked for the owner of what an attempt without a mark wrote.
    pub(super) fn take(
        &mut self,
        (stream, bytes, is_empty): (Stream, &[u8], bool),
        last: impl Fn() -> LastAttempt,
        unix_nano: u64,
        text: &mut Vec<u8>,
        extents: &mut Vec<Extent>,
    ) {
        let WorkerOutput { stdout, stderr, functions, has_unmarked, orders, .. } = self;
        let (pipe, number) = match stream {
            Stream::Stdout => (stdout, 0),
            Stream::Stderr => (stderr, 1),
        };
        let Pipe { reader, mark } = pipe;
        let mut take = |read: Read<'_>| match read {
            Read::Mark(next) => {
                *mark = next;
                if let Some(silence) = silence_of(functions, next)
                    && silence.count(number)
                {
                    *has_unmarked = true;
                    orders.push(Marking::Stop(next.function));
                }
            }
            Read::Bytes(bytes) => {
                if let Some(silence) = silence_of(functions, *mark) {
                    silence.has_written = true;
                }
                let (owner, is_approximate) = match mark.owner {
                    Owner::Unmarked => match last() {
                        Some((task, attempt)) => (Owner::Attempt { task, attempt, trace_id: [0; 16] }, true),
                        None => (Owner::None, false),
                    },
                    owner => (owner, false),
                };
                put_extent(
                    extents,
                    Extent { offset: text.len() as u64, length: 0, stream, owner, is_approximate, unix_nano },
                    bytes.len(),
                );
                text.extend_from_slice(bytes);
            }
        };
        reader.read(bytes, &mut take);
        if is_empty {
            reader.flush(&mut take);
        }
    }

    /// Takes the orders to the worker that follow from what was read. Bytes that no mark owns have all functions marked again, if any is not.
    pub(super) fn orders(&mut self, extents: &[Extent], now: Instant) -> Vec<Marking> {
        let is_due = || self.marked_all.is_none_or(|last| now.saturating_duration_since(last) >= ALL_INTERVAL);
        if self.has_unmarked && extents.iter().any(|extent| extent.is_approximate) && is_due() {
            self.functions.clear();
            self.orders.push(Marking::All);
            (self.has_unmarked, self.marked_all) = (false, Some(now));
        }
        std::mem::take(&mut self.orders)
    }
}

/// Returns the silence of the function that a mark names, if it can be unmarked.
fn silence_of(functions: &mut FxHashMap<u32, Silence>, mark: Mark) -> Option<&mut Silence> {
    (mark.function > 0).then(|| functions.entry(mark.function).or_insert(Silence { has_written: false, marks: [0; 2] }))
}

impl Silence {
    /// Counts a mark in one of the pipes. True if the function has just been silent for long enough: a mark tells that the attempt before it wrote
    /// nothing to its pipe.
    fn count(&mut self, pipe: usize) -> bool {
        let least = |marks: [u32; 2]| marks[0].min(marks[1]);
        let before = least(self.marks);
        self.marks[pipe] = self.marks[pipe].saturating_add(1);
        !self.has_written && before <= SILENT_ATTEMPTS && least(self.marks) > SILENT_ATTEMPTS
    }
}

/// Appends an extent, or makes the last one longer, if it is of the same owner.
fn put_extent(extents: &mut Vec<Extent>, extent: Extent, length: usize) {
    if matches!(extent.owner, Owner::None | Owner::Unmarked) {
        return;
    }
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    if let Some(last) = extents.last_mut()
        && (last.owner, last.stream, last.is_approximate) == (extent.owner, extent.stream, extent.is_approximate)
        && last.offset + u64::from(last.length) == extent.offset
    {
        last.length = last.length.saturating_add(length);
        return;
    }
    extents.push(Extent { length, ..extent });
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;

    const NONCE: Nonce = Nonce::of([4; 16]);

    fn mark(function: u32, task: u64) -> Mark {
        Mark { function, owner: Owner::Attempt { task: TaskId(task), attempt: 1, trace_id: [9; 16] } }
    }

    /// Reads marks and text from a pipe, and returns the owners of the text and the orders.
    fn read(
        output: &mut WorkerOutput,
        stream: Stream,
        parts: &[(Mark, &str)],
        last: LastAttempt,
    ) -> (Vec<Extent>, Vec<Marking>) {
        static NOW: LazyLock<Instant> = LazyLock::new(Instant::now);
        let now = *NOW;
        let (mut text, mut extents) = (Vec::new(), Vec::new());
        for (mark, written) in parts {
            let mut bytes = mark.encode(&NONCE).to_vec();
            bytes.extend(written.as_bytes());
            output.take((stream, &bytes, true), || last, 5, &mut text, &mut extents);
        }
        let orders = output.orders(&extents, now);
        (extents, orders)
    }

    fn run_silently(output: &mut WorkerOutput, attempts: u64) -> Vec<Marking> {
        (0..attempts)
            .flat_map(|task| {
                [Stream::Stdout, Stream::Stderr]
                    .into_iter()
                    .flat_map(|stream| read(output, stream, &[(mark(1, task), "")], None).1)
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    #[test]
    fn bytes_are_of_the_attempt_whose_mark_came_last_in_their_pipe() {
        let mut output = WorkerOutput::new(NONCE);
        let (found, _) =
            read(&mut output, Stream::Stdout, &[(mark(1, 7), "a"), (mark(1, 8), "bb"), (Mark::NONE, "c")], None);
        let tasks: Vec<_> = found.iter().map(|extent| (extent.owner, extent.offset, extent.length)).collect();
        assert_eq!(tasks, [(mark(1, 7).owner, 0, 1), (mark(1, 8).owner, 1, 2)]);
        let (other, _) = read(&mut output, Stream::Stderr, &[(mark(1, 9), "d")], None);
        assert_eq!(other[0].owner, mark(1, 9).owner);
    }

    #[test]
    fn a_function_that_writes_nothing_is_marked_no_more_after_its_first_attempts() {
        let mut output = WorkerOutput::new(NONCE);
        assert_eq!(run_silently(&mut output, 16), []);
        assert_eq!(run_silently(&mut output, 40), [Marking::Stop(1)], "once");
    }

    #[test]
    fn a_function_that_has_written_once_is_always_marked() {
        let mut output = WorkerOutput::new(NONCE);
        read(&mut output, Stream::Stderr, &[(mark(1, 1), "a line\n")], None);
        assert_eq!(run_silently(&mut output, 100), []);
    }

    #[test]
    fn what_an_unmarked_attempt_writes_counts_for_the_last_one_and_has_all_functions_marked_again() {
        let mut output = WorkerOutput::new(NONCE);
        let last = Some((TaskId(5), 2));
        let unmarked = [(Mark::UNMARKED, "x")];
        let (found, orders) = read(&mut output, Stream::Stdout, &unmarked, last);
        assert!(found[0].is_approximate && orders.is_empty(), "all functions are marked");
        assert_eq!(found[0].owner, Owner::Attempt { task: TaskId(5), attempt: 2, trace_id: [0; 16] });
        run_silently(&mut output, 20);
        assert_eq!(read(&mut output, Stream::Stdout, &unmarked, None), (vec![], vec![]), "none has begun");
        assert_eq!(read(&mut output, Stream::Stdout, &[(Mark::NONE, "x")], last), (vec![], vec![]), "the worker's own");
        assert_eq!(read(&mut output, Stream::Stdout, &unmarked, last).1, [Marking::All]);
        run_silently(&mut output, 20);
        assert_eq!(read(&mut output, Stream::Stdout, &unmarked, last).1, [], "not twice within a second");
    }
}
