//! Outgoing frames: submissions, collected into batches, and smaller ones. Unacknowledged batches are kept, for backpressure.

use std::collections::VecDeque;
use std::ops::Range;

use tracer_core::codec::Put;
use tracer_core::task::{Demand, Envelope, Input, Policy, TaskOptions, TaskSpec};
use tracer_ipc::protocol::frame::PAYLOAD_LIMIT;
use tracer_ipc::protocol::{BUNDLE_LIMIT, Submissions};

/// Submissions that are sent together.
pub const BATCH: usize = 128;
/// Bytes of submissions that are sent together.
const BATCH_BYTES: usize = 256 << 10;
/// Submissions of one connection that may be unacknowledged: enough that neither it nor the head waits for the other, and few enough that
/// what is kept of each stays in the processor's cache. There is a slot in the spool for each one's span.
pub(super) const UNANSWERED: u64 = 512;
/// The same of submissions for queues, which an engine has to answer: with the batch that goes beyond it two whole bundles, so that none goes with what is
/// left of a window.
pub(super) const UNANSWERED_OF_QUEUES: u64 = 2 * BUNDLE_LIMIT as u64 - BATCH as u64;
/// Bytes of buffer that are kept for the next frames.
const KEPT_BYTES: usize = 2 * BATCH_BYTES;

/// A task to submit.
#[derive(Clone, Debug)]
pub struct SubmitRequest<'a> {
    /// Its function or command.
    pub spec: TaskSpec<'a>,
    /// Empty for none.
    pub name: &'a str,
    /// The longest an attempt may run; none for no limit.
    pub run_limit: Option<std::time::Duration>,
    /// Policy for failed attempts.
    pub policy: Policy<'a>,
    /// Resources that it needs while it runs.
    pub demand: Demand<'a>,
    /// True if a [`Follower`](super::Follower) gets what it writes. Such a task has its worker for itself.
    pub wants_output: bool,
    /// True if the runtime's own work for the task is traced too. A session may be told to do so for every task.
    pub trace_runtime: bool,
    /// Arguments that are the results of other tasks; nil stands in their place.
    pub inputs: &'a [Input],
}

impl<'a> SubmitRequest<'a> {
    /// Makes a request with these options, whose resources are [sorted](tracer_core::task::sort_resources). It has no inputs, and nobody
    /// follows its output.
    pub fn new(spec: TaskSpec<'a>, options: &'a TaskOptions) -> SubmitRequest<'a> {
        SubmitRequest {
            spec,
            name: &options.name,
            run_limit: options.timeout,
            policy: Policy::of(options),
            demand: Demand::of(options),
            wants_output: false,
            trace_runtime: options.trace_runtime,
            inputs: &[],
        }
    }
}

/// Frames and submissions on their way out.
#[derive(Default)]
pub(super) struct Outbox {
    next_tag: u64,
    /// Envelopes that are not in a frame yet, each with its length before it.
    batch: Vec<u8>,
    batch_first_tag: u64,
    /// Batches that the head has not answered: the first tag of each, and how many it has.
    unanswered: VecDeque<(u64, u64)>,
    /// True if the last submission was for a queue.
    is_of_queue: bool,
    /// Frames that are not written yet.
    frames: Vec<u8>,
}

impl Outbox {
    /// Adds a submission to the batch, and returns its tag; or how many bytes it has, if these are too many.
    pub(super) fn push(&mut self, envelope: &Envelope<'_>) -> Result<u64, usize> {
        let start = self.batch.len();
        self.batch.put_u32(0);
        envelope.encode(&mut self.batch);
        let bytes = self.batch.len() - start - 4;
        if bytes > PAYLOAD_LIMIT {
            self.batch.truncate(start);
            return Err(bytes);
        }
        let length = u32::try_from(bytes).expect("the limit is less than 4 GiB");
        self.batch[start..start + 4].copy_from_slice(&length.to_le_bytes());
        self.next_tag += 1;
        self.is_of_queue = !envelope.policy.queue.is_empty();
        Ok(self.next_tag - 1)
    }

    /// Returns whether so much has come together that it is sent.
    pub(super) fn is_batch_full(&self) -> bool {
        self.next_tag - self.batch_first_tag >= BATCH as u64 || self.batch.len() >= BATCH_BYTES
    }

    /// Makes a frame of the batch. Returns how many submissions it has.
    pub(super) fn close_batch(&mut self) -> u64 {
        let count = self.next_tag - self.batch_first_tag;
        if count > 0 {
            Submissions::encode(&mut self.frames, self.batch_first_tag, &self.batch);
            self.batch.clear();
            self.batch.shrink_to(KEPT_BYTES);
            self.unanswered.push_back((self.batch_first_tag, count));
            self.batch_first_tag = self.next_tag;
        }
        count
    }

    /// Returns the buffer of frames to write.
    pub(super) fn frames(&mut self) -> &mut Vec<u8> {
        &mut self.frames
    }

    /// Notes that the frames are written.
    pub(super) fn frames_written(&mut self) {
        self.frames.clear();
        self.frames.shrink_to(KEPT_BYTES);
    }

    /// Notes that the oldest submissions that were not answered are: a part of a batch, or several. False when they were not sent like that.
    pub(super) fn answered(&mut self, mut tags: Range<u64>) -> bool {
        while !tags.is_empty() {
            let Some((first_tag, left)) = self.unanswered.front_mut().filter(|(first, _)| *first == tags.start) else {
                return false;
            };
            let count = (tags.end - tags.start).min(*left);
            (*first_tag, *left) = (*first_tag + count, *left - count);
            tags.start += count;
            if *left == 0 {
                self.unanswered.pop_front();
            }
        }
        true
    }

    /// Takes out the oldest batch that is not answered: its first tag, and how many it has.
    pub(super) fn take_oldest(&mut self) -> Option<(u64, u64)> {
        self.unanswered.pop_front()
    }

    /// Returns whether more submissions are unacknowledged than may be: [`UNANSWERED`], or [`UNANSWERED_OF_QUEUES`].
    pub(super) fn is_behind(&self) -> bool {
        let limit = if self.is_of_queue { UNANSWERED_OF_QUEUES } else { UNANSWERED };
        self.unanswered.front().is_some_and(|(first_tag, _)| self.next_tag - first_tag > limit)
    }

    /// Returns whether a batch that was sent is not answered.
    pub(super) fn is_anything_unanswered(&self) -> bool {
        !self.unanswered.is_empty()
    }

    /// Returns whether all that was submitted is answered.
    pub(super) fn is_settled(&self) -> bool {
        self.batch.is_empty() && self.unanswered.is_empty()
    }

    /// Returns the lowest tag that may still be answered.
    pub(super) fn first_unanswered(&self) -> u64 {
        self.unanswered.front().map_or(self.batch_first_tag, |(first_tag, _)| *first_tag)
    }
}
