//! Which trace is meant.

use std::fmt;
use std::path::PathBuf;

use super::{Loaded, Trace, TraceId};
use crate::count::Count;
use crate::suggestion;

/// The word for the trace that started last.
const LAST: &str = "last";
/// How many candidates an error names.
const CANDIDATES_SHOWN: usize = 10;

/// Why no trace is meant.
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
        /// Where it was looked for.
        folder: PathBuf,
    },
    /// No id begins so.
    Unknown {
        /// The text.
        text: String,
        /// Where it was looked for.
        folder: PathBuf,
        /// How many traces there are.
        traces: usize,
    },
    /// Several ids begin so.
    Ambiguous {
        /// The text.
        text: String,
        /// The traces, the newest first, each with the name of its root.
        candidates: Vec<(TraceId, String)>,
    },
}

impl fmt::Display for FindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FindError::NotAnId { text } => {
                let hint = suggestion::hint(text, [LAST]);
                write!(f, "expected a trace id, the beginning of one, or `last`, found `{text}`{hint}")
            }
            FindError::Empty { folder } => write!(f, "there are no traces in `{}`", folder.display()),
            FindError::Unknown { text, folder, traces } => {
                let traces = Count(*traces, "trace");
                write!(f, "no trace begins with `{text}`: looked at {traces} in `{}`", folder.display())
            }
            FindError::Ambiguous { text, candidates } => {
                write!(f, "{} begin with `{text}`:", Count(candidates.len(), "trace"))?;
                for (id, root) in candidates.iter().take(CANDIDATES_SHOWN) {
                    write!(f, "\n  {id}  {}", super::render::clean(root))?;
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

impl Loaded {
    /// Finds a trace by its id, by the beginning of its id if no other begins so, or by the word `last`: the one that started
    /// last. Upper case and a leading `0x` do not matter.
    pub fn find(&self, text: &str) -> Result<&Trace, FindError> {
        let folder = || self.folder.clone();
        if text == LAST {
            return self.traces.last().ok_or_else(|| FindError::Empty { folder: folder() });
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
            [] => Err(FindError::Unknown { text: text.into(), folder: folder(), traces: self.traces.len() }),
            several => {
                let candidates = several.iter().map(|trace| (trace.id, trace.root().name.clone())).collect();
                Err(FindError::Ambiguous { text: text.into(), candidates })
            }
        }
    }
}

#[cfg(test)]
mod tests;
