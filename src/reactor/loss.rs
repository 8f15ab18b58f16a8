use tracer_core::task::{JobId, MemoryExceeded, SpanLink, TaskId};

/// The end of a worker process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerExit {
    /// Fits after "it": `was killed by SIGKILL (signal 9)`, `exited with code 3`.
    pub cause: String,
    /// The value of `error.type`: `signal:9`, `exit:3`.
    pub error_type: String,
    /// Set when it was for more memory than the worker may take.
    pub memory: Option<MemoryExceeded>,
}

/// The causes with which the spans of a lost worker are closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The cause for spans of tasks of which nothing else is known, and of none.
    pub why: Why,
    /// The causes for the spans of some tasks.
    pub of_tasks: Vec<(TaskId, Why)>,
    /// Attempts that had begun, with what is needed to make their span if they did not get that far.
    pub attempts: Vec<LostAttempt>,
}

/// The cause with which a span is closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    /// The value of `error.type`.
    pub error_type: String,
    /// The description of its status: a sentence on what happened.
    pub description: String,
}

impl Loss {
    /// Returns what the spans of this task are closed with; of task 0, those of none.
    pub fn why(&self, task: TaskId) -> &Why {
        self.of_tasks.iter().find(|(of, _)| *of == task).map_or(&self.why, |(_, why)| why)
    }
}

/// An attempt that a worker had claimed and not reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostAttempt {
    /// The task.
    pub task: TaskId,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// The driver's job that the task belongs to.
    pub job: JobId,
    /// Time at which the head accepted the task, in nanoseconds since the Unix epoch.
    pub submitted_unix_nano: u64,
    /// Time of the lease's grant, in nanoseconds since the Unix epoch; the nearest that the head knows to the
    /// beginning of the attempt.
    pub granted_unix_nano: u64,
    /// The span of the attempt before.
    pub previous: Option<SpanLink>,
    /// The task's encoded [`Envelope`](tracer_core::task::Envelope).
    pub envelope: Box<[u8]>,
}
