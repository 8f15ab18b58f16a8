//! Tasks of other nodes that this head runs: what becomes of their attempts is told to the agent, and not to the journal.

use tracer_core::count::Size;
use tracer_core::task::{AttemptReport, Charge, Failure, Outcome, TaskId};
use tracer_ipc::protocol::{BorrowedEnd, ToAgent, Written, encode_report};

use crate::{
    effects::Effects,
    state::{
        progress::TaskEnd,
        shared::{ImportEnd, Imported, SharedTasks},
    },
};

/// State of the head that the end of an import depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Here<'a> {
    /// The name of the node on spans.
    pub node_id: &'a str,
    /// The most bytes of a result.
    pub max_shared_value: u64,
    /// True if the output of the import is followed.
    pub is_followed: bool,
}

/// Tells the agent the end of an import, if it has ended.
pub(crate) fn report_end(import: &mut Imported, effects: &mut impl Effects) {
    let id = import.id;
    // Lent to the message rather than copied.
    let message = match import.end.take() {
        Some(ImportEnd::Outcome { attempt, end }) => ToAgent::Ended { id, attempt, end },
        Some(ImportEnd::GivenBack { attempt, has_begun }) => ToAgent::GivenBack { id, attempt, has_begun },
        None => return,
    };
    effects.to_agent(&message);
    import.end = match message {
        ToAgent::Ended { attempt, end, .. } => Some(ImportEnd::Outcome { attempt, end }),
        ToAgent::GivenBack { attempt, has_begun, .. } => Some(ImportEnd::GivenBack { attempt, has_begun }),
        _ => None,
    };
}

/// Notes how an import has ended here: it has its outcome; or the head stops, has no process for it or may have lost it, and it is given back to whoever takes it.
pub(crate) fn note_end(
    shared: &mut SharedTasks,
    effects: &mut impl Effects,
    id: TaskId,
    (attempt, ended, past): (u32, &TaskEnd, &[AttemptReport]),
    here: Here<'_>,
) {
    let Some(import) = shared.imports.get_mut(&id) else { return };
    let written = here.is_followed.then(|| effects.take_written(id));
    let is_let_go = match &ended.outcome {
        Outcome::Failed(Failure::HeadStopped) => true,
        Outcome::Failed(Failure::Superseded | Failure::WorkerLost { .. } | Failure::Lost { .. }) => {
            import.is_superseded
        }
        _ => false,
    };
    let end = if import.is_given_back || is_let_go {
        let has_begun = ended.worker.is_some();
        // An attempt that had not begun is not counted, and the claim is for the next one.
        ImportEnd::GivenBack { attempt: if has_begun { attempt } else { attempt + 1 }, has_begun }
    } else {
        let refused = match &ended.outcome {
            Outcome::Stored(stored) if stored.bytes > here.max_shared_value => Some(Outcome::Failed(Failure::Result {
                message: format!(
                    "the result takes {}, but at most {} are shared over a queue\n\
                     (hint: start the node with a larger --max-shared-value, or write it to a place that all nodes reach, and return its name)",
                    Size(stored.bytes),
                    Size(here.max_shared_value)
                ),
            })),
            _ => None,
        };
        let end = BorrowedEnd {
            attempt,
            outcome: refused.as_ref().unwrap_or(&ended.outcome),
            digest: None,
            started_unix_nano: ended.started_unix_nano,
            ended_unix_nano: ended.ended_unix_nano,
            past,
            node_id: here.node_id,
            worker: ended.worker.zip(ended.worker_pid),
            written: written.map(|size| Written { from_attempt: import.first_attempt, size }),
        };
        // The claim is for an attempt, whether or not it has begun.
        ImportEnd::Outcome { attempt: attempt.max(import.first_attempt), end: end.encode() }
    };
    import.end = Some(end);
    report_end(import, effects);
}

/// Notes that an attempt at an import has failed, and that the next one follows here.
pub(crate) fn note_failed(
    shared: &mut SharedTasks,
    effects: &mut impl Effects,
    id: TaskId,
    report: &AttemptReport,
    charge: Charge,
) {
    let Some(import) = shared.imports.get_mut(&id) else { return };
    let report_bytes = encode_report(report);
    let message =
        ToAgent::AttemptFailed { id: import.id, attempt: report.number, charge, report: report_bytes.clone() };
    import.failed.push((report.number, charge, report_bytes));
    effects.to_agent(&message);
}
