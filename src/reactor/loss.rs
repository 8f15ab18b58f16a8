use tracer_core::task::{JobId, MemoryExceeded, SpanLink, TaskId};

/// How a worker process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerExit {
    /// Fits after "it": `was killed by SIGKILL (signal 9)`, `exited with code 3`.
    pub cause: String,
    /// The value of `error.type`: `signal:9`, `exit:3`.
    pub error_type: String,
    /// Set when it was for more memory than the worker may take.
    pub memory: Option<MemoryExceeded>,
}

/// What a lost worker's spans are closed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// What those are closed with of which nothing else is known.
    pub why: Why,
    /// What those of some tasks are closed with.
    pub of_tasks: Vec<(TaskId, Why)>,
    /// Attempts that had begun, with what is needed to make their span if they did not get that far.
    pub attempts: Vec<LostAttempt>,
}

/// What a span is closed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    /// The value of `error.type`.
    pub error_type: String,
    /// What happened, as the description of its status.
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
    /// Which attempt at it this was, from 1.
    pub attempt: u32,
    /// The driver's job that the task belongs to.
    pub job: JobId,
    /// When the head accepted the task, in nanoseconds since the Unix epoch.
    pub submitted_unix_nano: u64,
    /// When the lease was granted, in nanoseconds since the Unix epoch; the nearest that the head knows to the
    /// beginning of the attempt.
    pub granted_unix_nano: u64,
    /// The span of the attempt before.
    pub previous: Option<SpanLink>,
    /// The task's encoded [`Envelope`](tracer_core::task::Envelope).
    pub envelope: Box<[u8]>,
}
