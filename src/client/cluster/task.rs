//! Tasks that were submitted, and what comes of them.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use tracer_core::task::{Outcome, TaskId};
use tracer_core::value;
use tracer_ipc::protocol::{CancelReport, CancelWhich, Finished, Query, Reply};
use tracer_ipc::stored::{self, Value};

use super::connected::Inner;
use super::error::RemoteError;
use super::output::Followed;
use crate::connection::{Exchange, Ticket};
use crate::error::DriverError;

/// Characters of a result that are shown when it is of another type than was expected.
const SHOWN: usize = 100;

/// A task that was submitted.
///
/// It can be waited for from any thread, or as a future, and be the argument of another task. Dropped, it lets the task run on, and nobody
/// can get its result here any more; [`cancel`](Self::cancel) ends the task.
pub struct TaskHandle {
    pub(super) inner: Arc<Inner>,
    ticket: Ticket,
    /// Target that was submitted: `module:function`, or a program.
    target: Arc<str>,
    /// Lines of its output, if it is followed.
    followed: Option<Arc<Followed>>,
    /// True if the outcome was taken, so that there is nothing to forget.
    is_taken: bool,
}

impl fmt::Debug for TaskHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskHandle").field("target", &self.target).finish_non_exhaustive()
    }
}

impl Drop for TaskHandle {
    fn drop(&mut self) {
        if !self.is_taken {
            self.inner.connection.with(|exchange| exchange.forget(self.tag()));
        }
    }
}

impl TaskHandle {
    pub(super) fn new(
        inner: Arc<Inner>,
        ticket: Ticket,
        target: Arc<str>,
        followed: Option<Arc<Followed>>,
    ) -> TaskHandle {
        TaskHandle { inner, ticket, target, followed, is_taken: false }
    }

    pub(super) fn followed(&self) -> Result<&Followed, RemoteError> {
        self.followed.as_deref().ok_or_else(|| {
            let text = "its output is not sent here\n(hint: submit it with `follow`)";
            self.name(RemoteError::submission(text))
        })
    }

    pub(super) fn tag(&self) -> u64 {
        self.ticket.tag()
    }

    /// Returns the task's id, for people and other programs. Waits until the task is accepted; none when it was refused.
    pub fn id(&self) -> Option<u64> {
        self.task_id().ok().map(|id| id.0)
    }

    /// Returns the trace that the submission is in, in hexadecimal; none for one that is in no trace.
    pub fn trace_id(&self) -> Option<String> {
        Some(self.ticket.trace_id()?.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    pub(super) fn task_id(&self) -> Result<TaskId, RemoteError> {
        let tag = self.tag();
        let look = |exchange: &mut Exchange| match exchange.id_of_tag(tag) {
            Some(id) => Some(Some(id)),
            // Refused: it has ended without an id.
            None if exchange.has_finished(tag) => Some(None),
            None => None,
        };
        match self.inner.connection.wait_for(None, look) {
            Ok(Some(Some(id))) => Ok(id),
            Ok(_) => Err(self.name(RemoteError::submission("the head refused it"))),
            Err(error) => Err(self.name(error.into())),
        }
    }

    /// Waits for the task to end and returns its result. That of a command is `()`.
    ///
    /// In a future this blocks the thread; [`get_async`](Self::get_async) does not.
    pub fn get<T: DeserializeOwned>(mut self) -> Result<T, RemoteError> {
        let finished = self.end(None)?.expect("without a limit it is waited until the end");
        self.result(finished)
    }

    /// Returns the result as it came, after waiting as [`get`](Self::get) does: a large one stays in its file, and what is
    /// [decoded](Value::decode) from it may borrow from there.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cluster = tracer::init()?;
    /// let value = cluster.remote("maps:render").submit()?.get_value()?;
    /// let picture: &[u8] = value.decode()?;
    /// # Ok(()) }
    /// ```
    pub fn get_value(mut self) -> Result<Value, RemoteError> {
        let finished = self.end(None)?.expect("without a limit it is waited until the end");
        self.value(finished)
    }

    /// Returns what [`get`](Self::get) does if the task ends within `limit`; else gives the handle back.
    pub fn get_within<T: DeserializeOwned>(mut self, limit: Duration) -> Result<Result<T, RemoteError>, TaskHandle> {
        match self.end(Some(limit)) {
            Ok(Some(finished)) => Ok(self.result(finished)),
            Ok(None) => Err(self),
            Err(error) => Ok(Err(error)),
        }
    }

    /// Returns whether the task has ended, however it ended.
    pub fn has_ended(&self) -> Result<bool, RemoteError> {
        let tag = self.tag();
        let looked = self.inner.connection.look_now(|exchange| exchange.has_finished(tag).then_some(()));
        looked.map(|ended| ended.is_some()).map_err(|error| self.unknown(error))
    }

    /// Waits for the task to end without blocking the thread, in any executor. The first such wait of a program starts a thread that
    /// reads from the head. The future may be dropped at any time, as a handle may.
    pub async fn get_async<T: DeserializeOwned>(mut self) -> Result<T, RemoteError> {
        let tag = self.tag();
        let ended = std::future::poll_fn(|context| {
            self.inner.connection.poll_for(tag, context.waker(), |exchange| exchange.take_finished(tag))
        });
        match ended.await {
            Ok(finished) => self.result(finished),
            Err(error) => Err(self.unknown(error)),
        }
    }

    /// Ends the task, as `tracer cancel` does it: if it waits, it will not run; if it runs it is asked to end, then made to. Its
    /// outcome says that it was cancelled, unless it ends otherwise first.
    ///
    /// Blocks until the head has answered, which it does at once.
    pub fn cancel(&self) -> Result<CancelReport, RemoteError> {
        let id = self.task_id()?;
        let query = Query::Cancel { which: CancelWhich::Ids(vec![id]), grace_ms: None };
        match self.inner.connection.query(&query, None) {
            Ok(Some(Reply::Cancelled(reports))) => {
                Ok(reports.first().map_or(CancelReport::Unknown, |(_, report)| *report))
            }
            Ok(_) => Err(self.name(RemoteError::submission("the head gave no answer to the request to cancel it"))),
            Err(error) => Err(self.unknown(error)),
        }
    }

    /// Waits for its end, and takes it.
    fn end(&mut self, limit: Option<Duration>) -> Result<Option<Finished>, RemoteError> {
        let tag = self.tag();
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        self.inner
            .connection
            .wait_for(deadline, |exchange| exchange.take_finished(tag))
            .map_err(|error| self.unknown(error))
    }

    /// Returns what its end means for whoever asks for its result.
    pub(super) fn result<T: DeserializeOwned>(&mut self, finished: Finished) -> Result<T, RemoteError> {
        let task = finished.task;
        let value = self.value(finished)?;
        let decoded = value.decode();
        decoded.map_err(|error| self.name(RemoteError::other_type(task, format!("{error}; it is {}", shown(&value)))))
    }

    fn value(&mut self, finished: Finished) -> Result<Value, RemoteError> {
        self.is_taken = true;
        let task = finished.task;
        let value = match finished.outcome {
            Outcome::Returned(bytes) => Ok(bytes.into()),
            Outcome::Stored(stored) => {
                let loaded = stored::load(&self.inner.values, &stored);
                self.inner.connection.with(|exchange| exchange.forget_result(task));
                loaded.map_err(|error| RemoteError::from(DriverError::Stored(error)).about(Some(task)))
            }
            Outcome::Completed => Ok(vec![0xc0].into()),
            Outcome::Failed(failure) => Err(RemoteError::failed(task, failure, finished.past)),
        };
        value.map_err(|error| self.name(error))
    }

    /// Makes the error of an outcome that cannot be had.
    pub(super) fn unknown(&self, error: DriverError) -> RemoteError {
        let task = self.inner.connection.with(|exchange| exchange.id_of_tag(self.tag()));
        self.name(RemoteError::from(error).about(task))
    }

    fn name(&self, error: RemoteError) -> RemoteError {
        error.of(&super::remote::target_name(&self.target), self.ticket.trace_id())
    }
}

/// Returns a value for people, as JSON and not all of it if it is long.
fn shown(bytes: &[u8]) -> String {
    let Ok(json) = value::to_json(bytes) else { return "no value".into() };
    let json = json.to_string();
    match json.char_indices().nth(SHOWN) {
        None => format!("`{json}`"),
        Some((end, _)) => format!("`{}…`", &json[..end]),
    }
}

/// Waits for all of the tasks, and returns their results in the order of the handles. If some have failed, the error is that of the first
/// of them; the others are waited for all the same.
pub fn get_all<T: DeserializeOwned>(tasks: impl IntoIterator<Item = TaskHandle>) -> Result<Vec<T>, RemoteError> {
    let mut results = Vec::new();
    let mut failure = None;
    for task in tasks.into_iter().collect::<Vec<_>>() {
        match task.get() {
            Ok(result) if failure.is_none() => results.push(result),
            Ok(_) => {}
            Err(error) => drop(failure.get_or_insert(error)),
        }
    }
    failure.map_or(Ok(results), Err)
}

/// Waits until one of the tasks has ended, however it ended, and takes it out: of several the first in the list. None when the list is
/// empty. It looks through the list each time; for many tasks, [`as_completed`](super::as_completed) does not.
pub fn wait_any(tasks: &mut Vec<TaskHandle>) -> Result<Option<TaskHandle>, RemoteError> {
    let Some(first) = tasks.first() else { return Ok(None) };
    of_one_cluster(tasks)?;
    let look = |exchange: &mut Exchange| tasks.iter().position(|task| exchange.has_finished(task.tag()));
    let found = first.inner.connection.wait_for(None, look).map_err(|error| first.unknown(error))?;
    Ok(found.map(|index| tasks.remove(index)))
}

/// Expects that the tasks were submitted through the same [`Cluster`](super::Cluster).
pub(super) fn of_one_cluster(tasks: &[TaskHandle]) -> Result<(), RemoteError> {
    match tasks.iter().all(|task| Arc::ptr_eq(&task.inner, &tasks[0].inner)) {
        true => Ok(()),
        false => {
            let text = "the tasks were submitted through several clusters, and cannot be waited for together\n\
                        (hint: clones of one `Cluster` are one cluster)";
            Err(RemoteError::submission(text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_shown_as_json_and_cut_when_it_is_long() {
        let bytes = |value: &serde_json::Value| value::to_bytes(value).expect("it is plain data");
        assert_eq!(shown(&bytes(&serde_json::json!({ "a": [1, "b"] }))), r#"`{"a":[1,"b"]}`"#);
        let long = shown(&bytes(&"ä".repeat(200).into()));
        assert_eq!(long.chars().count(), SHOWN + 3, "{long}");
        assert!(long.ends_with("…`"), "{long}");
        assert_eq!(shown(&[]), "no value");
    }
}
