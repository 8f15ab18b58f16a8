//! Start report: the line by which a head in the background tells its starter how the start went.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::protocol::{HookFailure, HttpReport, SpanCounts};

/// Report of a head in the background to its starter, as a line of JSON.
#[derive(Debug, Serialize, Deserialize)]
pub enum Report {
    /// It takes tasks.
    Started(Box<Started>),
    /// It could not start.
    Refused {
        /// The exit code that says why.
        exit_code: u8,
        /// Reason why, for people.
        message: String,
    },
}

/// Description of a head that has started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// This process.
    pub head_pid: u32,
    /// The folder of the session.
    pub session_dir: PathBuf,
    /// Number of workers that take leases.
    pub workers_ready: usize,
    /// Workers that run without the hook, and why.
    pub hook_failures: Vec<HookFailure>,
    /// Spans of a dead head's processes that were completed.
    pub recovered: SpanCounts,
    /// Tasks that an earlier head had accepted, and that wait again.
    pub tasks_restored: usize,
    /// Restored tasks that were running when their head died, and are started again.
    pub tasks_again: usize,
    /// Tasks that were running when their head died and are not started again; they have failed.
    pub tasks_lost: usize,
    /// Address of the HTTP API, if there is one.
    #[serde(default)]
    pub http: Option<HttpReport>,
    /// Reason why no worker can be started, if that is so.
    pub no_worker: Option<String>,
    /// True if the hook may be why.
    #[serde(default)]
    pub is_hook_to_blame: bool,
    /// Warnings about the state of the place, for people.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Tasks of earlier heads that were forgotten, if that was wanted and there were some.
    #[serde(default)]
    pub put_aside: Option<PutAside>,
}

/// The tasks of earlier heads, which are forgotten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutAside {
    /// Number of tasks that there were.
    pub tasks: usize,
    /// Tasks among them that had not ended, and actors that lived.
    pub unfinished: usize,
    /// Path of the journal now.
    pub journal: PathBuf,
}
