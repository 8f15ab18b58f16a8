//! Results as they come.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use tracer_ipc::protocol::{Finished, Query, Reply};

use super::connected::Inner;
use super::error::{RemoteError, RemoteErrorKind};
use super::task::{TaskHandle, of_one_cluster};
use crate::connection::{EndedTasks, Exchange};
use crate::error::DriverError;

/// Gives the results of tasks as they come, in the order in which the tasks end.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/support/documentation.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use_built_executable();
/// use tracer::as_completed;
///
/// let cluster = tracer::init()?;
/// let tasks = (0..10).map(|_| cluster.remote("demo:my_function").submit());
/// let tasks = tasks.collect::<Result<Vec<_>, _>>()?;
/// let mut sum = 0;
/// let mut results = as_completed::<u64>(tasks)?;
/// while let Some(completed) = results.next() {
///     sum += completed.result?;
///     let progress = results.progress();
///     eprintln!("{} of {} done, {:.0} a second", progress.done(), progress.total, progress.rate());
/// }
/// assert_eq!(sum, 10);
/// # Ok(()) }
/// ```
///
/// All of the tasks are of one [`Cluster`](super::Cluster).
pub fn as_completed<T: DeserializeOwned>(
    tasks: impl IntoIterator<Item = TaskHandle>,
) -> Result<AsCompleted<T>, RemoteError> {
    let tasks: Vec<_> = tasks.into_iter().collect();
    of_one_cluster(&tasks)?;
    let inner = tasks.first().map(|task| Arc::clone(&task.inner));
    let ended = Arc::new(EndedTasks::default());
    if let Some(inner) = &inner {
        inner.connection.watch_set(tasks.iter().map(TaskHandle::tag), &ended);
    }
    let begun = Instant::now();
    let (total, results) = (tasks.len(), PhantomData);
    let tasks = tasks.into_iter().enumerate().map(|(index, task)| (task.tag(), (index, task))).collect();
    Ok(AsCompleted { inner, ended, tasks, total, succeeded: 0, failed: 0, cancelled: 0, begun, results })
}

/// The results of tasks, as they come; see [`as_completed`]. Dropped, it lets those tasks run on that have not ended.
#[derive(Debug)]
pub struct AsCompleted<T> {
    /// None without any task.
    inner: Option<Arc<Inner>>,
    ended: Arc<EndedTasks>,
    /// Tasks that were not given yet, by their tags.
    tasks: HashMap<u64, (usize, TaskHandle)>,
    total: usize,
    succeeded: usize,
    failed: usize,
    cancelled: usize,
    begun: Instant,
    results: PhantomData<fn() -> T>,
}

/// A task that has ended.
#[derive(Debug)]
pub struct Completed<T> {
    /// The how-manieth it was among the tasks, from 0.
    pub index: usize,
    /// The task's id; none when it got none, or that is not known any more.
    pub task_id: Option<u64>,
    /// Its result, or the error for which it has none.
    pub result: Result<T, RemoteError>,
}

/// Counts of many tasks: all of them, and those that have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Number of tasks.
    pub total: usize,
    /// Number of tasks that ended well and were given.
    pub succeeded: usize,
    /// Number of tasks that failed and were given.
    pub failed: usize,
    /// Number of tasks that were cancelled and were given.
    pub cancelled: usize,
    /// Number of tasks that workers are running now.
    pub running: usize,
    /// Since it was begun to wait for them.
    pub elapsed: Duration,
}

impl Progress {
    /// Returns how many have ended.
    pub fn done(&self) -> usize {
        self.succeeded + self.failed + self.cancelled
    }

    /// Returns how many have not ended and do not run. Among them are those that have ended and were not given yet.
    pub fn waiting(&self) -> usize {
        (self.total - self.done()).saturating_sub(self.running)
    }

    /// Returns how many have ended in a second, so far.
    pub fn rate(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { self.done() as f64 / seconds } else { 0.0 }
    }

    /// Returns how long the others will take if they end at the same rate; none while none has ended.
    pub fn left(&self) -> Option<Duration> {
        let left = self.total - self.done();
        (self.done() > 0).then(|| self.elapsed.div_f64(self.done() as f64).mul_f64(left as f64))
    }
}

impl<T: DeserializeOwned> AsCompleted<T> {
    /// Returns how far they are. Asks the head which of this program's tasks run.
    pub fn progress(&self) -> Progress {
        let AsCompleted { total, succeeded, failed, cancelled, .. } = *self;
        let left = total - succeeded - failed - cancelled;
        let running = self.inner.as_ref().map_or(0, |inner| inner.running()).min(left);
        Progress { total, succeeded, failed, cancelled, running, elapsed: self.begun.elapsed() }
    }

    /// Waits until a task has ended that was not given yet, for no longer than `limit`. False when the limit was reached; so a program can
    /// show its progress meanwhile. True when [`next`](Iterator::next) will not wait.
    pub fn wait(&self, limit: Duration) -> bool {
        let (Some(inner), false) = (&self.inner, self.tasks.is_empty()) else { return true };
        let deadline = Instant::now().checked_add(limit);
        let look = |_: &mut Exchange| (!self.ended.is_empty()).then_some(());
        !matches!(inner.connection.wait_for(deadline, look), Ok(None))
    }

    /// Returns the next one as [`next`](Iterator::next) does, without blocking the thread.
    pub async fn next_async(&mut self) -> Option<Completed<T>> {
        let inner = Arc::clone(self.inner.as_ref().filter(|_| !self.tasks.is_empty())?);
        let ended = Arc::clone(&self.ended);
        let next = std::future::poll_fn(|context| {
            // Before it is looked, so that nothing that comes in between is missed.
            ended.wake(context.waker());
            let taken = inner.connection.look_now(|exchange| exchange.take_finished(ended.pop()?));
            match taken.and_then(|taken| inner.connection.read_in_thread(|_| {}).map(|()| taken)) {
                Ok(None) => Poll::Pending,
                Ok(Some(finished)) => Poll::Ready(Ok(finished)),
                Err(error) => Poll::Ready(Err(error)),
            }
        });
        let next = next.await;
        self.completed(next)
    }

    fn completed(&mut self, finished: Result<Finished, DriverError>) -> Option<Completed<T>> {
        let tag = match &finished {
            Ok(finished) => finished.tag,
            // Nothing comes any more; each task is told so.
            Err(_) => *self.tasks.keys().min()?,
        };
        let (index, mut task) = self.tasks.remove(&tag)?;
        let completed = match finished {
            Ok(finished) => {
                let task_id = Some(finished.task.0).filter(|id| *id != 0);
                Completed { index, task_id, result: task.result(finished) }
            }
            Err(error) => {
                let error = task.unknown(error);
                Completed { index, task_id: error.task_id(), result: Err(error) }
            }
        };
        match &completed.result {
            Ok(_) => self.succeeded += 1,
            Err(error) if error.kind() == RemoteErrorKind::Cancelled => self.cancelled += 1,
            Err(_) => self.failed += 1,
        }
        Some(completed)
    }
}

impl<T: DeserializeOwned> Iterator for AsCompleted<T> {
    type Item = Completed<T>;

    /// Waits until a task has ended that was not given yet. None when all were given.
    fn next(&mut self) -> Option<Completed<T>> {
        let inner = self.inner.as_ref().filter(|_| !self.tasks.is_empty())?;
        let finished = inner.connection.wait_for(None, |exchange| exchange.take_finished(self.ended.pop()?));
        self.completed(finished.map(|finished| finished.expect("without a limit it is waited until there is one")))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.tasks.len(), Some(self.tasks.len()))
    }
}

impl Inner {
    /// Returns the variables by which programs of this process are found, where the head has others.
    pub(super) fn search_path(&self) -> &[(&'static str, std::ffi::OsString)] {
        self.search_path.get_or_init(|| crate::search_path::differing(self.welcome.head_pid))
    }

    /// Returns how many of this program's tasks run.
    fn running(&self) -> usize {
        match self.connection.query(&Query::Running { job: self.job_id }, None) {
            Ok(Some(Reply::Running(running))) => running,
            // A broken connection is told by whoever waits.
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_tells_the_rate_and_what_is_left() {
        let elapsed = Duration::from_secs(4);
        let progress = Progress { total: 100, succeeded: 18, failed: 1, cancelled: 1, running: 8, elapsed };
        assert_eq!((progress.done(), progress.waiting()), (20, 72));
        assert!((progress.rate() - 5.0).abs() < 1e-9, "{}", progress.rate());
        assert_eq!(progress.left(), Some(Duration::from_secs(16)));
        let begun = Progress { succeeded: 0, failed: 0, cancelled: 0, elapsed: Duration::ZERO, ..progress };
        assert_eq!((begun.rate(), begun.left()), (0.0, None));
    }
}
