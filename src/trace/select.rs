//! Selection of the trace that a text means.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;

use tracer_core::count::Count;
use tracer_core::{names, request_names, suggestion};

use super::span::Process;
use crate::list::Row;
use crate::loaded::{Loaded, Trace};
use crate::span::{Kind, Span, TraceId};

/// The word for the trace of the last submission or request of a service.
pub const LAST: &str = "last";
/// Limit on the candidates that an error names.
const CANDIDATES_SHOWN: usize = 10;

/// Reason why a text means no trace, or not one alone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FindError {
    /// The text is neither `last` nor the beginning of an id.
    NotAnId {
        /// The text.
        text: String,
    },
    /// There is no trace at all.
    Empty {
        /// The folder that was searched.
        folder: PathBuf,
    },
    /// No id begins so.
    Unknown {
        /// The text.
        text: String,
        /// The folder that was searched.
        folder: PathBuf,
        /// Number of traces that there are.
        traces: usize,
    },
    /// Several ids begin so.
    Ambiguous {
        /// The text.
        text: String,
        /// The traces, the newest first, each with its title.
        candidates: Vec<(TraceId, String)>,
    },
}

impl fmt::Display for FindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FindError::NotAnId { text } => {
                let hint = suggestion::hint(text, [LAST]);
                write!(f, "expected a trace id (up to 32 hex digits), or `last`, found `{text}`{hint}")?;
                f.write_str("\n(hint: `tracer trace list` shows the ids)")
            }
            FindError::Empty { folder } => {
                write!(f, "there are no traces in `{}`", folder.display())?;
                f.write_str("\n(hint: `tracer status` says whether the head traces and where; --spans-dir names another folder)")
            }
            FindError::Unknown { text, folder, traces } => {
                let traces = Count(*traces, "trace");
                write!(f, "no trace begins with `{text}`: looked at {traces} in `{}`", folder.display())?;
                f.write_str("\n(hint: `tracer trace list` shows the ids)")
            }
            FindError::Ambiguous { text, candidates } => {
                write!(f, "{} begin with `{text}`:", Count(candidates.len(), "trace"))?;
                for (id, root) in candidates.iter().take(CANDIDATES_SHOWN) {
                    write!(f, "\n  {id}  {}", tracer_core::escape::line(root))?;
                }
                match candidates.len().saturating_sub(CANDIDATES_SHOWN) {
                    0 => Ok(()),
                    more => write!(f, "\n  and {more} more"),
                }
            }
        }
    }
}

impl std::error::Error for FindError {}

/// Returns whether a span is the start of a submission (a job's span, or the PRODUCER span of a driver without one), or of a request that a
/// service took.
pub(super) fn is_submission(span: &Span) -> bool {
    let is_remote = || span.kind == Kind::Producer && span.name().ends_with(names::REMOTE_SUFFIX);
    let of_proxy = |name: &str| span.name().strip_prefix(name).is_some_and(|rest| rest.starts_with(' '));
    let is_request = || {
        let names = [request_names::PROXY_HTTP_REQUEST_SPAN, request_names::PROXY_GRPC_REQUEST_SPAN];
        span.kind == Kind::Server && names.into_iter().any(of_proxy)
    };
    span.name() == names::JOB_SPAN || is_remote() || is_request()
}

impl Loaded {
    /// Returns the trace of the last submission or request of a service, or, where there was neither, the one that started last.
    ///
    /// A task may begin a trace of its own, and may submit tasks in it. So submissions of workers count only if there is no other.
    pub fn last(&self) -> Option<&Trace> {
        let mut submissions: Vec<(&Trace, &Span)> = self
            .traces
            .iter()
            .flat_map(|trace| trace.spans.iter().map(move |span| (trace, span)))
            .filter(|(_, span)| is_submission(span))
            .collect();
        submissions.sort_by_key(|(_, span)| Reverse(span.start_unix_nano));
        // A resource is dear to read, so it is read only of spans in files with the same pid in their names.
        let mut workers: HashMap<Option<u32>, HashSet<Process>> = HashMap::new();
        let mut is_worker = |span: &Span| {
            let pid = span.pid_of_file();
            workers.entry(pid).or_insert_with(|| self.workers_with(pid)).contains(span.process())
        };
        let outside = submissions.iter().find(|(_, span)| !is_worker(span));
        outside.or(submissions.first()).map(|(trace, _)| *trace).or(self.traces.last())
    }

    /// Returns the processes that have a span of an attempt in a file named by this pid.
    fn workers_with(&self, pid_of_file: Option<u32>) -> HashSet<Process> {
        let spans = self.traces.iter().flat_map(|trace| &trace.spans);
        let is_attempt =
            |span: &&Span| span.kind == Kind::Consumer && span.name().ends_with(names::REMOTE_WORKER_SUFFIX);
        spans.filter(|span| span.pid_of_file() == pid_of_file).filter(is_attempt).map(Span::process).cloned().collect()
    }

    /// Finds a trace by its id, by the beginning of its id if no other begins so, or by the word `last`: see [`Loaded::last`]. Upper
    /// case and a leading `0x` do not matter.
    pub fn find(&self, text: &str) -> Result<&Trace, FindError> {
        let folder = || self.folder.clone();
        if text == LAST {
            return self.last().ok_or_else(|| FindError::Empty { folder: folder() });
        }
        let digits = text.strip_prefix("0x").unwrap_or(text);
        let is_id = (1..=32).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_id {
            return Err(FindError::NotAnId { text: text.into() });
        }
        let digits = digits.to_ascii_lowercase();
        let candidates: Vec<&Trace> =
            self.traces.iter().rev().filter(|trace| trace.id.to_string().starts_with(&digits)).collect();
        match candidates.as_slice() {
            [trace] => Ok(trace),
            [] if self.traces.is_empty() => Err(FindError::Empty { folder: folder() }),
            [] => {
                let unknown = || FindError::Unknown { text: text.into(), folder: folder(), traces: self.traces.len() };
                // A trace that is part of another one.
                let whole = self.grafts.find(&digits);
                self.traces.iter().find(|trace| Some(trace.id) == whole).ok_or_else(unknown)
            }
            several => {
                let candidates = several.iter().map(|trace| (trace.id, Row::new(trace).title())).collect();
                Err(FindError::Ambiguous { text: text.into(), candidates })
            }
        }
    }
}

#[cfg(test)]
mod tests;
