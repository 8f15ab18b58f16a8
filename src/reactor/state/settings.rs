//! Settings of a head that decide, and limits that it keeps.

use crate::state::needs::Resource;

/// Bytes of results that are remembered.
const HISTORY_BYTES_LIMIT: usize = 64 << 20;

/// Bytes of results in files that are kept for tasks that have ended.
const STORED_BYTES_LIMIT: u64 = 4 << 30;

/// Settings of a head. They do not change while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Number of workers that there should be, those aside whose tasks wait for others; those that die are replaced. It is also how many run
    /// tasks at a time.
    pub workers_wanted: usize,
    /// Number of workers that keep the machine busy.
    pub cores: usize,
    /// The most worker processes there may be.
    pub max_processes: usize,
    /// The named resources, in the order of their names.
    pub resources: Vec<Resource>,
    /// The hook that runs in every worker, as `module:attribute`, so that it can be named when workers do not get ready.
    pub hook: Option<String>,
    /// True if a worker whose hook failed must not run tasks.
    pub is_hook_required: bool,
    /// The most bytes of tasks that have not ended; beyond that, drivers' submissions are refused.
    pub open_bytes_limit: u64,
    /// The most bytes that are kept of the results of ended tasks.
    pub history_bytes_limit: usize,
    /// The most bytes of their files.
    pub stored_bytes_limit: u64,
    /// The name of the node on spans.
    pub node_id: String,
    /// The most bytes of an argument or a result of a task of a queue.
    pub max_shared_value: u64,
    /// True if commands of queues are run here too.
    pub shared_commands: bool,
}

impl Settings {
    /// Settings with so many workers and no limit but that of the history.
    pub fn of_workers(workers_wanted: usize) -> Settings {
        Settings {
            workers_wanted,
            cores: usize::MAX,
            max_processes: workers_wanted,
            resources: Vec::new(),
            hook: None,
            is_hook_required: false,
            open_bytes_limit: u64::MAX,
            history_bytes_limit: HISTORY_BYTES_LIMIT,
            stored_bytes_limit: STORED_BYTES_LIMIT,
            node_id: String::new(),
            max_shared_value: u64::MAX,
            shared_commands: false,
        }
    }
}
