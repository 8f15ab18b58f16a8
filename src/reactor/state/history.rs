//! Ended tasks that are remembered: the order in which they go, and the bytes of their results. Data, no effects.

use std::collections::{HashSet, VecDeque};

use tracer_core::task::TaskId;

/// Ended tasks that are remembered.
///
/// The bytes are those that its callers have entered: they know the tasks.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Oldest first.
    order: VecDeque<TaskId>,
    /// Tasks that were the oldest and are kept, because their results are to be arguments or their actors live.
    kept: HashSet<TaskId>,
    /// Bytes of results that are kept in memory.
    bytes: usize,
    /// Tasks whose results are in files, oldest first; some may have no file any more.
    stored: VecDeque<TaskId>,
    /// Bytes of those files.
    stored_bytes: u64,
}

impl History {
    /// Returns the number of tasks.
    pub(crate) fn len(&self) -> usize {
        self.order.len() + self.kept.len()
    }

    /// Returns the tasks, those that are kept last.
    pub(crate) fn iter(&self) -> impl Iterator<Item = TaskId> {
        self.order.iter().chain(&self.kept).copied()
    }

    /// Returns whether there are more tasks, or more bytes of results, than these. One task may take any number of bytes.
    pub(crate) fn exceeds(&self, tasks: usize, bytes: usize) -> bool {
        self.len() > tasks || (self.bytes > bytes && self.len() > 1)
    }

    /// Adds a task that has just ended, with a result of so many bytes.
    pub(crate) fn push(&mut self, id: TaskId, bytes: usize) {
        self.order.push_back(id);
        self.bytes += bytes;
    }

    /// Takes the oldest task out of the order, save for those that are kept.
    pub(crate) fn pop_oldest(&mut self) -> Option<TaskId> {
        self.order.pop_front()
    }

    /// Keeps a task that was [taken out](Self::pop_oldest), because it is still needed.
    pub(crate) fn keep(&mut self, id: TaskId) {
        self.kept.insert(id);
    }

    /// Returns whether a task is only kept because it is needed.
    #[cfg(test)]
    pub(crate) fn is_kept(&self, id: TaskId) -> bool {
        self.kept.contains(&id)
    }

    /// Notes that a task may not be needed any more: if it was only kept for that, it is the oldest again.
    pub(crate) fn keep_no_longer(&mut self, id: TaskId) {
        if self.kept.remove(&id) {
            self.order.push_front(id);
        }
    }

    /// Takes out all tasks but those that are remembered.
    pub(crate) fn retain(&mut self, is_remembered: impl Fn(TaskId) -> bool) {
        self.order.retain(|&id| is_remembered(id));
        self.kept.retain(|&id| is_remembered(id));
    }

    /// Notes that so many bytes of results are kept no longer.
    pub(crate) fn subtract(&mut self, bytes: usize) {
        self.bytes -= bytes;
    }

    /// Adds the file of a result.
    pub(crate) fn push_stored(&mut self, id: TaskId, bytes: u64) {
        self.stored.push_back(id);
        self.stored_bytes += bytes;
    }

    /// Returns the number of results in files, of which some may have none any more.
    pub(crate) fn stored_len(&self) -> usize {
        self.stored.len()
    }

    /// Returns the bytes of results in files.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    /// Takes out the task with the oldest file.
    pub(crate) fn pop_stored(&mut self) -> Option<TaskId> {
        self.stored.pop_front()
    }

    /// Puts a task back whose file is still needed, as if it were the newest.
    pub(crate) fn put_back_stored(&mut self, id: TaskId) {
        self.stored.push_back(id);
    }

    /// Notes that a file of so many bytes goes.
    pub(crate) fn subtract_stored(&mut self, bytes: u64) {
        self.stored_bytes -= bytes;
    }
}
