//! Errors of tasks that have no result.

use std::error::Error;
use std::fmt;

use crate::driver::DriverError;
use tracer_core::causes::{self, with_causes};
use tracer_core::task::{AttemptReport, Failure, PastAttempts, TaskId};
pub use tracer_options::RemoteErrorKind;

/// The error of a task that was submitted here and has no result.
///
/// It has the words of `tracer_sdk::RemoteError`, which is what a task gets of a task that it has submitted, and further ones.
#[derive(Clone, PartialEq, Eq)]
pub struct RemoteError(Box<Inner>);

#[derive(Clone, PartialEq, Eq)]
struct Inner {
    task_id: Option<TaskId>,
    trace_id: Option<[u8; 16]>,
    /// Empty when it is about no task.
    target: String,
    kind: RemoteErrorKind,
    error_type: String,
    message: String,
    failure: Option<Failure>,
    past: Vec<AttemptReport>,
}

impl RemoteError {
    pub(super) fn submission(message: impl Into<String>) -> RemoteError {
        RemoteError(Box::new(Inner {
            task_id: None,
            trace_id: None,
            target: String::new(),
            kind: RemoteErrorKind::Submission,
            error_type: "submission".into(),
            message: message.into(),
            failure: None,
            past: Vec::new(),
        }))
    }

    pub(super) fn failed(task: TaskId, failure: Failure, past: Vec<AttemptReport>) -> RemoteError {
        let kind = match failure {
            Failure::Error { .. } => RemoteErrorKind::Returned,
            Failure::Panic { .. } => RemoteErrorKind::Panicked,
            Failure::Arguments { .. } => RemoteErrorKind::Arguments,
            Failure::Result { .. } => RemoteErrorKind::Result,
            Failure::Refused { .. } => RemoteErrorKind::Submission,
            _ if failure.is_cancellation() => RemoteErrorKind::Cancelled,
            _ => RemoteErrorKind::Runtime,
        };
        RemoteError(Box::new(Inner {
            // What was refused got no id.
            task_id: Some(task).filter(|task| task.0 != 0),
            trace_id: None,
            target: String::new(),
            kind,
            error_type: failure.error_type(),
            message: failure.to_string(),
            failure: Some(failure),
            past,
        }))
    }

    /// Makes the error of a result that came and is of another type.
    pub(super) fn other_type(task: TaskId, message: String) -> RemoteError {
        let mut error = RemoteError::submission(message).about(Some(task));
        error.0.kind = RemoteErrorKind::Result;
        error.0.error_type = "result".into();
        error
    }

    /// Says which task it is about, if it has an id.
    pub(super) fn about(mut self, task: Option<TaskId>) -> RemoteError {
        self.0.task_id = task;
        self
    }

    /// Says what the task is.
    pub(super) fn of(mut self, target: &str, trace_id: Option<[u8; 16]>) -> RemoteError {
        self.0.target = target.into();
        self.0.trace_id = trace_id;
        self
    }

    /// Returns which task it is about; none when it got no id.
    pub fn task_id(&self) -> Option<u64> {
        self.0.task_id.map(|id| id.0)
    }

    /// Returns the trace that the task is in, in hexadecimal; none for a task that is in no trace.
    pub fn trace_id(&self) -> Option<String> {
        let id = self.0.trace_id?;
        Some(id.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Returns what kind of failure it is.
    pub fn kind(&self) -> RemoteErrorKind {
        self.0.kind
    }

    /// Returns the type of the error in few words, as it is on the task's span: a type of the task's language, `panic`, `timeout`, `signal:9`.
    pub fn error_type(&self) -> &str {
        &self.0.error_type
    }

    /// Returns what the task said, with all its causes.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the stack where the task failed; empty when it was not captured.
    pub fn stacktrace(&self) -> &str {
        self.0.failure.as_ref().map_or("", Failure::stacktrace)
    }

    /// Returns the failure itself, with all that is known of it; none when the task did not fail, but could not be submitted, or its outcome not
    /// be had.
    pub fn failure(&self) -> Option<&Failure> {
        self.0.failure.as_ref()
    }

    /// Returns the attempts before the one that the task failed with, oldest first.
    pub fn past_attempts(&self) -> &[AttemptReport] {
        &self.0.past
    }
}

impl From<DriverError> for RemoteError {
    fn from(error: DriverError) -> RemoteError {
        RemoteError::submission(with_causes(&error))
    }
}

impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { task_id, target, message, past, failure, .. } = &*self.0;
        // Of a task whose outcome cannot be had, nobody knows that.
        let failed = if failure.is_some() { " failed" } else { "" };
        match task_id {
            Some(id) if target.is_empty() => write!(f, "task {id}{failed}: {message}")?,
            Some(id) => write!(f, "task {id} ({target}){failed}: {message}")?,
            None if target.is_empty() => f.write_str(message)?,
            None => write!(f, "`{target}`{failed}: {message}")?,
        }
        PastAttempts(past).fmt(f)
    }
}

impl fmt::Debug for RemoteError {
    /// The same as the `Display` form, because `main` prints this one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        causes::debug(self, f)
    }
}

impl Error for RemoteError {}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_core::task::{Refusal, RefusalCode};

    #[test]
    fn an_error_says_which_task_and_what_became_of_it() {
        let cancelled = RemoteError::failed(TaskId(7), Failure::Cancelled, Vec::new()).of("demo.f", Some([0xab; 16]));
        assert_eq!(cancelled.to_string(), "task 7 (demo.f) failed: it was cancelled");
        assert_eq!((cancelled.kind(), cancelled.error_type()), (RemoteErrorKind::Cancelled, "cancelled"));
        assert_eq!(cancelled.trace_id(), Some("ab".repeat(16)));

        let refused = Failure::from(Refusal::new(RefusalCode::JournalFailed, "the journal is full"));
        let refused = RemoteError::failed(TaskId(0), refused, Vec::new()).of("demo.f", None);
        assert_eq!(refused.to_string(), "`demo.f` failed: the head refused it: the journal is full");
        assert_eq!((refused.kind(), refused.task_id()), (RemoteErrorKind::Submission, None));
        assert_eq!(refused.error_type(), "refused:journal_failed");

        let other = RemoteError::other_type(TaskId(7), "the result is not a bool".into()).of("demo.f", None);
        assert_eq!(other.to_string(), "task 7 (demo.f): the result is not a bool");
    }

    #[test]
    fn an_error_of_the_connection_is_told_with_its_cause() {
        let error = DriverError::Disconnected(std::io::Error::other("the end"));
        let error = RemoteError::from(error);
        assert!(error.to_string().starts_with("the connection to the head broke: the end\n(hint: "), "{error}");
        let error = error.about(Some(TaskId(7))).of("demo.f", None);
        assert!(error.to_string().starts_with("task 7 (demo.f): the connection to the head broke"), "{error}");
    }
}
