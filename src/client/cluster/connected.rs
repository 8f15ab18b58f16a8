//! The cluster that a program is connected with, until its last clone is dropped.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tracer_core::propagation::Carrier;
use tracer_core::task::JobId;
use tracer_host::hook::{ActiveSpan, Recorder};
use tracer_ipc::protocol::{CancelWhich, Query, Reply, StatusReport, StopMode, Welcome};

use super::embedded::{END_LIMIT, Embedded};
use super::error::RemoteError;
use super::interrupts;
use crate::calls::Calls;
use crate::connection::{Connection, Exchange};

/// Time within which the last submissions must be accepted when nobody will ask for them any more.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);
/// Time within which the spans of this process must be delivered when the cluster is dropped.
const DELIVER_LIMIT: Duration = Duration::from_secs(2);

/// A head with its workers, as a program sees them: what [`init`](super::init()) gives.
///
/// Clones are the same cluster. It may be used from any number of threads.
///
/// When the last clone and the last [`TaskHandle`](super::TaskHandle) are dropped, what was submitted is sent and accepted, this process's spans are delivered or in
/// the hands of those who deliver them, and a head of this program's own is stopped: tasks that have not begun fail, and those that run
/// are cancelled. It is the same when a panic unwinds. Other heads, and what was submitted to them, go on.
#[derive(Clone)]
pub struct Cluster(pub(super) Arc<Inner>);

/// State that a cluster shares with the handles of its tasks.
pub(super) struct Inner {
    pub(super) connection: Arc<Connection>,
    /// Default parent of submissions.
    pub(super) parent: Carrier,
    pub(super) is_parent_remote: bool,
    /// Variables by which programs of this process are found, once a command was submitted.
    pub(super) search_path: OnceLock<Vec<(&'static str, OsString)>>,
    /// Target of the last submission: there is one text however often the same is submitted.
    pub(super) last_target: Mutex<Arc<str>>,
    pub(super) session_dir: PathBuf,
    /// Folder of large values.
    pub(super) values: PathBuf,
    pub(super) job_id: JobId,
    pub(super) welcome: Welcome,
    pub(super) recorder: Option<&'static Recorder>,
    /// The span around all of it, if it is wanted.
    pub(super) job: Mutex<Option<ActiveSpan>>,
    pub(super) warnings: Vec<String>,
    /// Grace of running tasks when the head is stopped.
    pub(super) grace: Duration,
    /// The head, if it is this program's own.
    pub(super) embedded: Mutex<Option<Embedded>>,
    /// The side that calls deployments, once one was called.
    pub(super) calls: Mutex<Option<Arc<Calls>>>,
    pub(super) _watched: Option<interrupts::Watched>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("session_dir", &self.session_dir).finish_non_exhaustive()
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("session_dir", &self.0.session_dir).finish_non_exhaustive()
    }
}

impl Cluster {
    /// Sends what was submitted and waits in this process for more of it. Whoever waits for something does so anyway.
    pub fn flush(&self) -> Result<(), RemoteError> {
        Ok(self.0.connection.send()?)
    }

    /// Cancels all that was submitted through this cluster here and has not ended, and what those tasks have submitted. Returns how many
    /// tasks it were.
    pub fn cancel_all(&self) -> Result<usize, RemoteError> {
        let query = Query::Cancel { which: CancelWhich::Job(self.0.job_id), grace_ms: None };
        match self.0.connection.query(&query, None)? {
            Some(Reply::Cancelled(tasks)) => Ok(tasks.len()),
            _ => Err(RemoteError::submission("the head gave no answer to the request to cancel")),
        }
    }

    /// Returns how the head is doing, as `tracer status` shows it.
    pub fn status(&self) -> Result<StatusReport, RemoteError> {
        match self.0.connection.query(&Query::Status, None)? {
            Some(Reply::Status(status)) => Ok(*status),
            _ => Err(RemoteError::submission("the head gave no answer to the request for its status")),
        }
    }

    /// Returns what the head said of itself when it took this program: versions, folders, the hook.
    pub fn welcome(&self) -> &Welcome {
        &self.0.welcome
    }

    /// Returns whether the head is this program's own.
    pub fn is_embedded(&self) -> bool {
        self.0.lock_embedded().is_some()
    }

    /// Returns the place of the head, if it is this program's own: what `--temp-dir` takes, for commands that look at it while it runs.
    pub fn embedded_temp_dir(&self) -> Option<PathBuf> {
        self.0.lock_embedded().as_ref().map(|embedded| embedded.place().to_owned())
    }

    /// Returns the folder of the session: logs of the head and of the workers are in `logs`.
    pub fn session_dir(&self) -> &Path {
        &self.0.session_dir
    }

    /// Returns what a person should know of how [`init`](super::init()) went: a hook that failed here, settings that could not be taken over.
    pub fn warnings(&self) -> &[String] {
        &self.0.warnings
    }
}

impl Inner {
    /// Returns what the task is called that is submitted, as one text however often the same is submitted.
    pub(super) fn target(&self, target: &str) -> Arc<str> {
        let mut last = self.last_target.lock().unwrap_or_else(PoisonError::into_inner);
        if **last != *target {
            *last = target.into();
        }
        Arc::clone(&last)
    }

    pub(super) fn lock_embedded(&self) -> std::sync::MutexGuard<'_, Option<Embedded>> {
        self.embedded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the span around all of it.
    fn end_job(&mut self) {
        let job = self.job.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some(job) = job else { return };
        if std::thread::panicking() {
            job.set_error("the program panicked");
        }
        job.end();
    }

    /// Stops a head of this program's own.
    fn stop_embedded(&mut self) {
        let Some(mut embedded) = self.embedded.get_mut().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let deadline = Instant::now() + self.grace + END_LIMIT;
        let cancel = Query::Cancel { which: CancelWhich::All, grace_ms: None };
        let grace_ms = u64::try_from(self.grace.as_millis()).unwrap_or(u64::MAX);
        let stop = Query::Stop { grace_ms, force: false, mode: StopMode::Discard };
        // A head that is gone, or does not answer, is ended all the same.
        let _ = self.connection.query(&cancel, Some(deadline));
        let stopped = self.connection.query(&stop, Some(deadline));
        let has_waiting = matches!(stopped, Ok(Some(Reply::Stopped(report))) if report.spans_waiting + report.spans_of_other_hooks > 0);
        self.connection.close();
        embedded.end(END_LIMIT, has_waiting);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let settled = |exchange: &mut Exchange| exchange.is_settled().then_some(());
        // What the head has not taken in by then it takes in later, if it lives.
        let _ = self.connection.wait_for(Some(Instant::now() + SETTLE_LIMIT), settled);
        if let Some(calls) = self.calls.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            calls.close();
        }
        self.end_job();
        if let Some(recorder) = self.recorder {
            let _ = recorder.flush(DELIVER_LIMIT);
        }
        self.stop_embedded();
        self.connection.close();
    }
}
