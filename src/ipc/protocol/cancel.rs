//! Requests to end tasks, and their outcomes.

use serde::{Deserialize, Serialize};
use tracer_core::codec::{Put, Take, WireError};
use tracer_core::task::{JobId, TaskId};

/// Selection of tasks to cancel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CancelWhich {
    /// These.
    Ids(Vec<TaskId>),
    /// Every one that has not ended.
    All,
    /// Every one of this job that has not ended.
    Job(JobId),
    /// Every one that has not ended and whose name fits a pattern, in which `*` stands for any text and `?` for any character.
    Named(String),
}

/// Outcome of a request to cancel a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelReport {
    /// No such task, or one that was forgotten.
    Unknown,
    /// End before the request: nothing is changed.
    Ended,
    /// End without a further attempt: nobody had begun it.
    Cancelled,
    /// Request to whoever runs it, which has it end by itself or makes it.
    Cancelling,
}

impl CancelReport {
    /// All of them. A byte on the wire is a place in here.
    pub const ALL: [CancelReport; 4] =
        [CancelReport::Unknown, CancelReport::Ended, CancelReport::Cancelled, CancelReport::Cancelling];

    /// Appends it.
    pub fn put(self, out: &mut Vec<u8>) {
        out.put_u8(self as u8);
    }

    /// Takes it from what follows.
    pub fn take(take: &mut Take<'_>) -> Result<CancelReport, WireError> {
        let report = CancelReport::ALL.get(usize::from(take.u8()?));
        report.copied().ok_or(WireError::UnknownValue("outcome of a cancellation"))
    }
}

/// Outcome of a request to end a task of another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelAnswer {
    /// No answer in time: the engine cannot be asked.
    Unreachable,
    /// Message of the task in a bundle that nobody has begun, of a node that does not answer: only that one can take it out.
    InBundle,
    /// Outcome as its own node says, or its record.
    Report(CancelReport),
}

impl CancelAnswer {
    pub(super) fn put(self, out: &mut Vec<u8>) {
        match self {
            CancelAnswer::Unreachable => out.put_u8(0),
            CancelAnswer::InBundle => out.put_u8(1),
            CancelAnswer::Report(report) => {
                out.put_u8(2);
                report.put(out);
            }
        }
    }

    pub(super) fn take(take: &mut Take<'_>) -> Result<CancelAnswer, WireError> {
        Ok(match take.u8()? {
            0 => CancelAnswer::Unreachable,
            1 => CancelAnswer::InBundle,
            2 => CancelAnswer::Report(CancelReport::take(take)?),
            _ => return Err(WireError::UnknownValue("answer to a cancellation")),
        })
    }
}
