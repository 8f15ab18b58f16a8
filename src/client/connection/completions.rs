//! Ids of submissions, and their ends until somebody takes them.

use std::collections::HashMap;

use rustc_hash::FxHashSet;
use tracer_core::task::TaskId;
use tracer_ipc::protocol::{Accepted, CommandUsage, Finished};

use super::by_tag::ByTag;

/// Set in the number for a task that is watched, and may not have been submitted here.
const WATCHED: u64 = 1 << 63;

/// Returns the number under which the end of a task comes that is watched.
pub fn watched_tag(task: TaskId) -> u64 {
    WATCHED | task.0
}

/// Ids and ends, by tag.
#[derive(Default)]
pub(super) struct Completions {
    /// Tasks that were submitted here and have not ended.
    open: u64,
    /// Ids that submissions got, as ranges in the order of their tags; adjacent ones are joined.
    accepted: Vec<Accepted>,
    /// Ends of tasks that nobody has asked for yet.
    finished: ByTag<Finished>,
    /// Tasks whose end nobody wants to hear of.
    forgotten: FxHashSet<u64>,
    /// Resources that commands that have not ended have used so far.
    usages: HashMap<TaskId, CommandUsage>,
}

impl Completions {
    /// Notes that a task was submitted.
    pub(super) fn submitted(&mut self) {
        self.open += 1;
    }

    /// Returns whether a task that was submitted here has not ended.
    pub(super) fn has_open(&self) -> bool {
        self.open > 0
    }

    /// Submissions have got their ids.
    pub(super) fn accepted(&mut self, accepted: Accepted) {
        match self.accepted.last_mut() {
            Some(last) if last.is_followed_by(&accepted) => last.count += accepted.count,
            _ => self.accepted.push(accepted),
        }
    }

    /// Returns the id that the submission with this tag got; none while it is not accepted, or when it was refused.
    pub(super) fn id_of_tag(&self, tag: u64) -> Option<TaskId> {
        let after = self.accepted.partition_point(|range| range.first_tag <= tag);
        let range = &self.accepted[after.checked_sub(1)?];
        let offset = tag - range.first_tag;
        (offset < range.count.into()).then(|| TaskId(range.first_task.0 + offset))
    }

    /// Notes that nobody will ask for the ids of submissions before this one.
    pub(super) fn forget_ids_before(&mut self, tag: u64) {
        self.accepted.retain(|range| range.first_tag + u64::from(range.count) > tag);
    }

    /// Notes that a command that runs has used so much.
    pub(super) fn used(&mut self, task: TaskId, usage: CommandUsage) {
        self.usages.insert(task, usage);
    }

    /// Notes that a task has ended: adds what came before its end.
    pub(super) fn complete(&mut self, finished: &mut Finished) {
        if !self.usages.is_empty() {
            finished.usage = self.usages.remove(&finished.task);
        }
        if finished.tag & WATCHED == 0 {
            self.open = self.open.saturating_sub(1);
        }
    }

    /// Keeps an end until somebody asks for it; or gives it back, because nobody will.
    pub(super) fn keep(&mut self, finished: Finished) -> Option<Finished> {
        if !self.forgotten.is_empty() && self.forgotten.remove(&finished.tag) {
            return Some(finished);
        }
        self.finished.insert(finished.tag, finished);
        None
    }

    /// Notes that nobody will ask for this end. Returns it if it has come.
    pub(super) fn forget(&mut self, tag: u64) -> Option<Finished> {
        let finished = self.finished.remove(tag);
        if finished.is_none() {
            self.forgotten.insert(tag);
        }
        finished
    }

    pub(super) fn finished(&self) -> &ByTag<Finished> {
        &self.finished
    }

    pub(super) fn finished_mut(&mut self) -> &mut ByTag<Finished> {
        &mut self.finished
    }
}
