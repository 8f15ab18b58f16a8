//! What a task may know about the call that it is.

use std::cell::Cell;

/// The call that runs on a thread: which task, which attempt, where.
///
/// Spans carry all of this already; it is for code that needs the numbers, such as one that names a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuntimeContext {
    /// The id of the task. It stays the same across attempts.
    pub task_id: u64,
    /// The id of the job that the task belongs to.
    pub job_id: u64,
    /// Which attempt at the task this is, from 1.
    pub attempt: u32,
    /// The id of the worker that runs it.
    pub worker_id: u64,
}

thread_local! {
    static CURRENT: Cell<Option<RuntimeContext>> = const { Cell::new(None) };
}

/// The call that runs on this thread, or none outside of a task.
///
/// Threads: a thread that a task starts is outside; take the value along. Futures on the module's runtime run on
/// the task's thread and are inside, as long as the task is.
pub fn current() -> Option<RuntimeContext> {
    CURRENT.try_with(Cell::get).ok().flatten()
}

/// Makes `context` current until the guard is dropped. Calls may nest, when a task waits for another one and the
/// host runs that on the same thread.
pub(crate) fn enter(context: RuntimeContext) -> Entered {
    Entered(CURRENT.replace(Some(context)))
}

pub(crate) struct Entered(Option<RuntimeContext>);

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}
