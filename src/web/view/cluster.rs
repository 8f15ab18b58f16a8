//! Questions that the head of a session answers beside the spans: what runs now, why tasks wait, which tasks it remembers.

use std::path::Path;

use tracer_client::driver::{Driver, DriverError};
use tracer_core::task::TaskId;
use tracer_ipc::protocol::wire::WireError;
use tracer_ipc::protocol::{Query, Reply, TaskFilter, TaskList, TaskReport, TaskState};
use tracer_trace::LiveSpan;

use super::inside::Waiting;
use super::summary::{Sample, Summary};

/// Tasks of the queue that are looked at; the others are counted.
const TASKS: usize = 2000;
/// Tasks of the head that complete the history.
const REMEMBERED: usize = 5000;

/// Asks the head of a session for what it does now, beside the open spans of its processes.
pub(super) fn now(
    session_dir: Option<&Path>,
    open: &[LiveSpan],
    revision: u64,
    now_unix_nano: u64,
) -> Result<Summary, DriverError> {
    let asked = session_dir.map(|session_dir| sample(&mut Driver::connect_to_session(session_dir)?)).transpose();
    let sample = match asked {
        // It has just ended.
        Err(DriverError::Session(_) | DriverError::Disconnected(_)) => None,
        asked => asked?,
    };
    Ok(Summary::new(sample, open, revision, now_unix_nano))
}

fn sample(driver: &mut Driver) -> Result<Sample, DriverError> {
    let Reply::Status(status) = driver.query(&Query::Status)? else { return Err(unexpected()) };
    let Reply::Workers(workers) = driver.query(&Query::Workers)? else { return Err(unexpected()) };
    let which = TaskFilter { states: TaskState::without_outcome(), ..TaskFilter::default() };
    let TaskList { tasks, left_out: tasks_left_out, .. } = driver.tasks(TASKS, which)?;
    let mut sample = Sample { status: *status, workers, tasks, tasks_left_out, reasons: Vec::new() };
    for id in sample.oldest_of_each_function() {
        if let Some(reason) = reason(driver, id)? {
            sample.reasons.push((id, reason));
        }
    }
    Ok(sample)
}

/// Asks the head of a session why tasks wait.
pub(super) fn explain(session_dir: &Path, waiting: &mut [Waiting]) -> Result<(), DriverError> {
    let mut driver = Driver::connect_to_session(session_dir)?;
    for task in waiting {
        task.why = reason(&mut driver, TaskId(task.task_id))?;
    }
    Ok(())
}

/// Returns the nearest reason why a task waits, in words.
fn reason(driver: &mut Driver, id: TaskId) -> Result<Option<String>, DriverError> {
    let Reply::Explanation(explanation) = driver.query(&Query::Explain { id })? else { return Err(unexpected()) };
    Ok(explanation.and_then(|explanation| explanation.reasons.first().map(ToString::to_string)))
}

/// Returns the newest tasks that the head of a session remembers; none without a head.
pub(super) fn tasks(session_dir: Option<&Path>) -> Result<Vec<TaskReport>, DriverError> {
    let Some(session_dir) = session_dir else { return Ok(Vec::new()) };
    Ok(Driver::connect_to_session(session_dir)?.tasks(REMEMBERED, TaskFilter::default())?.tasks)
}

fn unexpected() -> DriverError {
    DriverError::Protocol(WireError::UnknownValue("reply"))
}
