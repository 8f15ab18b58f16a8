//! Followers of single submissions, which hear of acceptance, output and end, in this order.

use std::task::Waker;

use rustc_hash::FxHashMap;
use tracer_core::task::TaskId;
use tracer_ipc::protocol::{Accepted, Finished, OutputSize, Stream};

/// A piece of what a task has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskOutput {
    /// The task.
    pub id: TaskId,
    /// The worker that runs it.
    pub worker_pid: u32,
    /// The stream that it was written to.
    pub stream: Stream,
    /// True if other calls of the same actor ran in the process meanwhile, any of which may have written it.
    pub is_shared: bool,
    /// The node that runs it, as spans name it; empty for the one of the head.
    pub node_id: Box<str>,
    /// Output before this piece that did not arrive from that node.
    pub lost: OutputSize,
    /// The bytes: of any encoding, and cut at any place. There may be none behind what was lost last.
    pub bytes: Vec<u8>,
}

/// Hears what becomes of one submission.
///
/// It is called by whichever thread has read it from the head, while the connection is locked. So the calls come in order; and they must
/// neither block nor use the connection. A connection that breaks drops its followers.
pub trait Follower: Send {
    /// Notes that the submission is accepted as this task.
    fn accepted(&mut self, task: TaskId) {
        let _ = task;
    }

    /// Notes that the task has written something. Returns who waits for it.
    fn output(&mut self, output: &TaskOutput) -> Option<Waker> {
        let _ = output;
        None
    }

    /// Notes that the task has ended, or was refused. An end that is given back is kept until somebody asks for it.
    fn ended(self: Box<Self>, finished: Finished) -> Option<Finished> {
        Some(finished)
    }
}

/// The followers of a connection's submissions, by tag.
#[derive(Default)]
pub(super) struct Following {
    followers: FxHashMap<u64, Box<dyn Follower>>,
    /// The tags of followed tasks. A key of idempotency makes one task of several submissions.
    tags: FxHashMap<TaskId, Vec<u64>>,
}

impl Following {
    /// Returns whether nobody follows anything.
    pub(super) fn is_empty(&self) -> bool {
        self.followers.is_empty()
    }

    pub(super) fn begin(&mut self, tag: u64, follower: Box<dyn Follower>) {
        self.followers.insert(tag, follower);
    }

    pub(super) fn accepted(&mut self, accepted: &Accepted) {
        if self.followers.is_empty() {
            return;
        }
        for offset in 0..u64::from(accepted.count) {
            let (tag, task) = (accepted.first_tag + offset, TaskId(accepted.first_task.0 + offset));
            if let Some(follower) = self.followers.get_mut(&tag) {
                self.tags.entry(task).or_default().push(tag);
                follower.accepted(task);
            }
        }
    }

    /// Hands out what a task has written. Nobody may want it any more.
    pub(super) fn output(&mut self, output: &TaskOutput, woken: &mut Vec<Waker>) {
        for tag in self.tags.get(&output.id).into_iter().flatten() {
            if let Some(follower) = self.followers.get_mut(tag) {
                woken.extend(follower.output(output));
            }
        }
    }

    /// Tells the follower of the end, and returns the end if it is to be kept.
    pub(super) fn ended(&mut self, finished: Finished) -> Option<Finished> {
        match self.remove(finished.tag, finished.task) {
            Some(follower) => follower.ended(finished),
            None => Some(finished),
        }
    }

    /// Notes that nobody follows this submission any more, which got this id if it has one.
    pub(super) fn stop(&mut self, tag: u64, task: Option<TaskId>) {
        if !self.followers.is_empty() {
            self.remove(tag, task.unwrap_or(TaskId(0)));
        }
    }

    fn remove(&mut self, tag: u64, task: TaskId) -> Option<Box<dyn Follower>> {
        let follower = self.followers.remove(&tag)?;
        if let Some(tags) = self.tags.get_mut(&task) {
            tags.retain(|other| *other != tag);
            if tags.is_empty() {
                self.tags.remove(&task);
            }
        }
        Some(follower)
    }

    /// Notes that nothing comes any more.
    pub(super) fn clear(&mut self) {
        self.followers.clear();
        self.tags.clear();
    }
}
