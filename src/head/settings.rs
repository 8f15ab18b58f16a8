//! Settings of a head, which its starter sends it.

use std::path::PathBuf;

use tracer_ipc::http_place::HttpSettings;
use tracer_ipc::protocol::TracingSettings;
use tracer_ipc::protocol::order::StartLine;
use tracer_reactor::state::{self, Settings};

/// Settings of a head.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct HeadSettings {
    /// Number of workers to keep running; at least 1.
    pub num_workers: usize,
    /// The most worker processes there may be; at least `num_workers`.
    pub max_processes: usize,
    /// The most memory of a worker with what it starts, in bytes; none for no bound.
    pub worker_memory: Option<u64>,
    /// The most memory of tasks that have not ended, in bytes.
    pub queue_memory: u64,
    /// Origin of `queue_memory`.
    #[serde(default)]
    pub queue_memory_source: String,
    /// The most that the logs of the session may take, in bytes.
    pub max_log_size: u64,
    /// True if nothing is acknowledged before it is on the disk.
    pub journal_sync: bool,
    /// Named resources that tasks may ask for, with their amounts, in the order of the names.
    pub resources: Vec<(String, u64)>,
    /// The engine that the head joins; none for one that is alone.
    #[serde(default)]
    pub engine: Option<tracer_settings::Engine>,
    /// The place of the head: its lock, and the folder of each session. Absolute, as are all paths here.
    pub temp_dir: PathBuf,
    /// Folders in which modules are looked for first, in order.
    pub module_path: Vec<PathBuf>,
    /// Reason why nothing is traced, if it is not for want of a hook.
    pub tracing_off: Option<String>,
    /// Warnings about the settings, for people.
    pub warnings: Vec<String>,
    /// Tracing settings of the session's processes. The hook was tried out already.
    pub tracing: TracingSettings,
    /// The HTTP API; none for a head without.
    pub http: Option<HttpSettings>,
    /// The hook's description of what it does with spans, from when it was tried out.
    pub hook_description: String,
    /// True if the tasks of earlier heads are forgotten.
    #[serde(default)]
    pub fresh: Option<Fresh>,
    /// Command line of the start; none for the head of a program.
    #[serde(default)]
    pub start: Option<StartLine>,
}

/// Manner in which the tasks of earlier heads are forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Fresh {
    /// True if those that have not ended are given up.
    pub discards_unfinished: bool,
}

impl HeadSettings {
    /// Returns the settings for [`finish_place`](crate::server::finish_place) where nobody knows the dead head's own.
    pub fn of_dead_head(temp_dir: PathBuf, spans_dir: PathBuf) -> HeadSettings {
        HeadSettings {
            num_workers: 1,
            max_processes: 1,
            worker_memory: None,
            queue_memory: u64::MAX,
            queue_memory_source: String::new(),
            max_log_size: tracer_settings::LOG_SIZE_LEAST,
            journal_sync: false,
            resources: Vec::new(),
            engine: None,
            temp_dir,
            module_path: Vec::new(),
            tracing_off: None,
            warnings: Vec::new(),
            tracing: TracingSettings::untraced(spans_dir),
            http: None,
            hook_description: String::new(),
            fresh: None,
            start: None,
        }
    }
}

/// Returns the settings of a head that decide.
pub(super) fn settings_of(settings: &HeadSettings) -> Settings {
    let hook = settings.tracing.hook.as_ref();
    let history_bytes_limit = usize::try_from(settings.queue_memory).unwrap_or(usize::MAX);
    let resource = |(name, total): &(String, u64)| state::Resource { name: name.as_str().into(), total: *total };
    let plain = Settings::of_workers(settings.num_workers);
    Settings {
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        max_processes: settings.max_processes,
        resources: settings.resources.iter().map(resource).collect(),
        hook: hook.map(|hook| hook.import_string.clone()),
        is_hook_required: hook.is_some_and(|hook| hook.is_required),
        open_bytes_limit: settings.queue_memory,
        history_bytes_limit: plain.history_bytes_limit.min(history_bytes_limit),
        max_shared_value: settings.engine.as_ref().map_or(u64::MAX, |engine| engine.max_shared_value),
        shared_commands: settings.engine.as_ref().is_some_and(|engine| engine.shared_commands),
        ..plain
    }
}
