//! The settings of `tracer start`: flags, environment and `tracer.toml` become one value, once.
//!
//! Precedence, from the strongest: flag, environment variable, file, default. The command line fills in [`Overrides`] (its
//! parser already puts flags before the environment); this module reads the file, puts it below them, and checks the result.
//! The settings of a service are here too ([`service_file`], [`render`]).
//!
//! **For** the program, the head and the web side. **Uses** `tracer-core`, `tracer-ipc`, and `tracer-engine` for the words of an engine's address.
//!
//! **Never** starts anything or changes a file.
//!
//! Whether a hook's name has the form `module:attribute` is checked where the hook is loaded.

#![forbid(unsafe_code)]

mod file;
pub mod otel;
pub mod render;
pub mod service_file;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use file::FileError;
pub use otel::{Exporters, OtelSettings};
use tracer_core::address::{LoopbackAddress, OtlpAddress};
use tracer_core::count::Size;
pub use tracer_core::duration::{DurationError, parse_duration};
pub use tracer_core::logs::{LogEvents, LogLevel};
use tracer_core::propagation::Propagators;
use tracer_core::queue::check_queue_name;
pub use tracer_core::sampling_ratio::{SamplingRatio, SamplingRatioError};
pub use tracer_core::size::{MEMORY_LEAST, SizeError, check_memory, parse_size};
use tracer_core::task::{parse_resource, sort_resources};
use tracer_engine::access::{self, EngineError};
pub use tracer_ipc::environment::{
    DEFAULT_SPANS_DIR, SAMPLING_RATIO_VARIABLE, SPANS_DIR_VARIABLE, TEMP_DIR_VARIABLE, default_temp_dir,
};
use tracer_ipc::protocol::{EngineAccess, OnPartition};
use tracer_ipc::spool::hooks::FURTHER_LIMIT;
use tracer_process::memory_limit::{self, MemoryLimit};

/// The environment variable that names the configuration file.
pub const CONFIG_VARIABLE: &str = "TRACER_CONFIG";
/// The environment variable for [`Settings::num_workers`].
pub const NUM_WORKERS_VARIABLE: &str = "TRACER_NUM_WORKERS";
/// The environment variable for [`Settings::max_processes`].
pub const MAX_PROCESSES_VARIABLE: &str = "TRACER_MAX_PROCESSES";
/// The environment variable for [`Settings::queue_memory`]: a size such as `2GiB`.
pub const QUEUE_MEMORY_VARIABLE: &str = "TRACER_QUEUE_MEMORY";
/// The environment variable for [`Settings::max_log_size`]: a size such as `100MiB`.
pub const MAX_LOG_SIZE_VARIABLE: &str = "TRACER_MAX_LOG_SIZE";
/// The environment variable for [`Settings::worker_memory`]: a size such as `2GiB`.
pub const WORKER_MEMORY_VARIABLE: &str = "TRACER_WORKER_MEMORY";
/// The environment variable for [`Settings::resources`]: `name=amount`, separated by commas.
pub const RESOURCES_VARIABLE: &str = "TRACER_RESOURCES";
/// The environment variable for the address of [`Settings::engine`].
pub const ADDRESS_VARIABLE: &str = "TRACER_ADDRESS";
/// The environment variable for the queues of [`Settings::engine`]: `name` or `name=slots`, separated by commas.
pub const QUEUE_VARIABLE: &str = "TRACER_QUEUE";
/// The environment variable for the credentials of [`Settings::engine`]: a file.
pub const CREDENTIALS_VARIABLE: &str = "TRACER_CREDENTIALS";
/// The environment variable for the authorities of [`Settings::engine`]: a file.
pub const ENGINE_CA_VARIABLE: &str = "TRACER_ENGINE_CA";
/// The environment variable that permits [`Settings::engine`] to be on another machine without TLS.
pub const INSECURE_ENGINE_VARIABLE: &str = "TRACER_INSECURE_ENGINE";
/// The environment variable for the trusted keys of [`Settings::engine`], separated by commas.
pub const TRUSTED_KEY_VARIABLE: &str = "TRACER_TRUSTED_KEY";
/// The environment variable for the wait of [`Settings::engine`].
pub const ENGINE_WAIT_VARIABLE: &str = "TRACER_ENGINE_WAIT";
/// The environment variable that permits commands in the queues of [`Settings::engine`].
pub const SHARED_COMMANDS_VARIABLE: &str = "TRACER_SHARED_COMMANDS";
/// The environment variable for the fate of tasks when [`Settings::engine`] does not hear the head.
pub const ON_PARTITION_VARIABLE: &str = "TRACER_ON_PARTITION";
/// Time that a submission to a queue waits for an engine that cannot be reached, if nothing is said.
pub const DEFAULT_ENGINE_WAIT: Duration = Duration::from_secs(5);
/// The environment variable for the bound on values of [`Settings::engine`].
pub const MAX_SHARED_VALUE_VARIABLE: &str = "TRACER_MAX_SHARED_VALUE";
/// The most bytes of an argument or a result of a task of a queue, if nothing is said.
pub const DEFAULT_MAX_SHARED_VALUE: u64 = 1 << 30;
/// The environment variable for [`Settings::tracing_startup_hooks`]: separated by commas.
pub const TRACING_STARTUP_HOOK_VARIABLE: &str = "TRACER_TRACING_STARTUP_HOOK";
/// The environment variable for [`Settings::tracing_exporters`]: separated by commas.
pub const TRACING_EXPORTER_VARIABLE: &str = "TRACER_TRACING_EXPORTER_IMPORT_PATH";
/// The environment variable for [`Settings::tracing_enabled`].
pub const TRACING_ENABLED_VARIABLE: &str = "TRACER_TRACING_ENABLED";
/// The environment variable for [`Settings::propagators`]: names separated by commas.
pub const PROPAGATORS_VARIABLE: &str = "TRACER_TRACING_PROPAGATORS";
/// The environment variable for [`Settings::trace_runtime`].
pub const TRACE_RUNTIME_VARIABLE: &str = "TRACER_TRACE_RUNTIME";
/// The environment variable for [`Settings::record_arguments`].
pub const RECORD_ARGUMENTS_VARIABLE: &str = "TRACER_RECORD_ARGUMENTS";
/// The environment variable for [`Settings::log_events`].
pub const LOG_EVENTS_VARIABLE: &str = "TRACER_LOG_EVENTS";
/// The environment variable for [`Settings::log_level`].
pub const LOG_LEVEL_VARIABLE: &str = "TRACER_LOG_LEVEL";
/// The environment variable for [`Settings::http`].
pub const HTTP_VARIABLE: &str = "TRACER_HTTP";
/// The environment variable for [`Settings::http_commands`].
pub const HTTP_COMMANDS_VARIABLE: &str = "TRACER_HTTP_COMMANDS";
/// The environment variable for [`Settings::metrics`].
pub const METRICS_VARIABLE: &str = "TRACER_METRICS";
/// The environment variable for [`Settings::otlp`].
pub const OTLP_VARIABLE: &str = "TRACER_OTLP";
/// The environment variable for [`Settings::module_path`]: folders separated by colons.
pub const MODULE_PATH_VARIABLE: &str = "TRACER_MODULE_PATH";

/// Default of the time that a hook may take to set up tracing.
pub const DEFAULT_HOOK_TIMEOUT: Duration = Duration::from_secs(10);
/// The most workers that a head may be asked to start.
pub const NUM_WORKERS_LIMIT: u32 = 1024;
/// The largest [`Settings::max_processes`].
pub const MAX_PROCESSES_LIMIT: u32 = 4096;
/// The least that the logs of a session may be bounded to.
pub const LOG_SIZE_LEAST: u64 = 1 << 20;
const DEFAULT_LOG_SIZE: u64 = 1 << 30;
/// Default number of processes beyond the workers.
const MORE_PROCESSES: u32 = 16;

/// Settings of the command line and the environment; `None` where they say nothing.
///
/// Empty texts and paths count as nothing, because an environment variable that is set to nothing means that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// The configuration file (`--config`, `TRACER_CONFIG`). Without one, no file is read.
    pub config: Option<PathBuf>,
    /// See [`Settings::block`].
    pub block: Option<bool>,
    /// See [`Settings::num_workers`].
    pub num_workers: Option<u32>,
    /// See [`Settings::max_processes`].
    pub max_processes: Option<u32>,
    /// See [`Settings::queue_memory`].
    pub queue_memory: Option<u64>,
    /// See [`Settings::max_log_size`].
    pub max_log_size: Option<u64>,
    /// See [`Settings::journal_sync`].
    pub journal_sync: Option<bool>,
    /// See [`Settings::worker_memory`].
    pub worker_memory: Option<u64>,
    /// See [`Settings::resources`].
    pub resources: Option<Vec<(String, u64)>>,
    /// The address of [`Engine::access`].
    pub address: Option<String>,
    /// The credentials of [`Engine::access`].
    pub credentials: Option<PathBuf>,
    /// The authorities of [`Engine::access`].
    pub engine_ca: Option<PathBuf>,
    /// See [`EngineAccess::is_insecure`].
    pub insecure_engine: Option<bool>,
    /// See [`Engine::queues`].
    pub queues: Option<Vec<(String, u32)>>,
    /// See [`Engine::wait`].
    pub engine_wait: Option<Duration>,
    /// See [`Engine::max_shared_value`].
    pub max_shared_value: Option<u64>,
    /// See [`Engine::trusted_keys`].
    pub trusted_keys: Option<Vec<String>>,
    /// See [`Engine::shared_commands`].
    pub shared_commands: Option<bool>,
    /// See [`Engine::on_partition`].
    pub on_partition: Option<OnPartition>,
    /// See [`Settings::temp_dir`].
    pub temp_dir: Option<PathBuf>,
    /// See [`Settings::spans_dir`].
    pub spans_dir: Option<PathBuf>,
    /// See [`Settings::tracing_enabled`].
    pub tracing_enabled: Option<bool>,
    /// See [`Settings::tracing_startup_hooks`].
    pub tracing_startup_hooks: Vec<String>,
    /// See [`Settings::tracing_exporters`].
    pub tracing_exporters: Vec<String>,
    /// See [`Settings::tracing_required`].
    pub tracing_required: Option<bool>,
    /// See [`Settings::hook_timeout`].
    pub hook_timeout: Option<Duration>,
    /// See [`Settings::sampling_ratio`].
    pub sampling_ratio: Option<SamplingRatio>,
    /// See [`Settings::propagators`].
    pub propagators: Option<Propagators>,
    /// See [`Settings::trace_runtime`].
    pub trace_runtime: Option<bool>,
    /// See [`Settings::record_arguments`].
    pub record_arguments: Option<bool>,
    /// See [`Settings::log_events`].
    pub log_events: Option<LogEvents>,
    /// See [`Settings::log_level`].
    pub log_level: Option<LogLevel>,
    /// See [`Settings::http`].
    pub http: Option<LoopbackAddress>,
    /// See [`Settings::http_commands`].
    pub http_commands: Option<bool>,
    /// See [`Settings::metrics`].
    pub metrics: Option<LoopbackAddress>,
    /// See [`Settings::otlp`].
    pub otlp: Option<OtlpAddress>,
    /// See [`Settings::module_path`].
    pub module_path: Option<Vec<PathBuf>>,
    /// Settings of the `OTEL_*` variables. Tracer's own variables and flags are stronger, the file is weaker.
    pub otel: OtelSettings,
}

/// The settings of a head, final and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// True if `tracer start` stays in the foreground.
    pub block: bool,
    /// Number of workers: 1 to [`NUM_WORKERS_LIMIT`]; by default as many as there are cpus.
    pub num_workers: u32,
    /// The most worker processes there may be, those included that wait for tasks of their tasks: `num_workers` to
    /// [`MAX_PROCESSES_LIMIT`]; by default 16 more than `num_workers`.
    pub max_processes: u32,
    /// The most memory that tasks which have not ended may take in the head, in bytes: at least [`MEMORY_LEAST`]. Beyond it no more are accepted. By
    /// default a quarter of the smallest of the machine's memory, the bounds of the control groups above this process, and its own limits.
    pub queue_memory: u64,
    /// Origin of `queue_memory`.
    pub queue_memory_source: String,
    /// The most that the logs of a session may take, in bytes: at least [`LOG_SIZE_LEAST`]. By default 1 GiB.
    pub max_log_size: u64,
    /// True if no task is acknowledged, and no outcome told, before it is on the disk, so that it survives a loss of power.
    pub journal_sync: bool,
    /// The most memory of a worker process with everything that it starts, in bytes: at least [`MEMORY_LEAST`]. By default no bound.
    pub worker_memory: Option<u64>,
    /// Named resources that tasks may ask for, with their amounts, in the order of the names. By default none.
    pub resources: Vec<(String, u64)>,
    /// The engine that it shares tasks over; none for a head that is alone.
    pub engine: Option<Engine>,
    /// The place of the head: its lock, and the folder of each session with socket, spools and logs. By default [`default_temp_dir`].
    pub temp_dir: PathBuf,
    /// The folder of the span files. By default [`DEFAULT_SPANS_DIR`].
    pub spans_dir: PathBuf,
    /// True if anything is traced; false is stronger than any hook.
    pub tracing_enabled: bool,
    /// The hooks, as `module:attribute`; none for no tracing. The first sets up tracing, the others get its finished spans.
    pub tracing_startup_hooks: Vec<String>,
    /// The exporters, as `module:attribute`. Tracing is set up around the span processors of the first; the others get its finished
    /// spans. There are these or hooks, not both: of the two, those that are said with more strength.
    pub tracing_exporters: Vec<String>,
    /// True if a worker whose hook fails must not run tasks.
    pub tracing_required: bool,
    /// Time that a hook may take to set up tracing; more than 0. By default [`DEFAULT_HOOK_TIMEOUT`].
    pub hook_timeout: Duration,
    /// The share of new traces that are sampled. By default all.
    pub sampling_ratio: SamplingRatio,
    /// Parts of the context that submissions take from their environment, and that commands get in theirs. By default all.
    pub propagators: Propagators,
    /// True if the runtime's own work is traced for every task, and not only for those whose submission asks for it.
    pub trace_runtime: bool,
    /// True if the arguments of tasks are put on their spans.
    pub record_arguments: bool,
    /// Form that `tracing` events of modules take. By default both.
    pub log_events: LogEvents,
    /// Least level of the log records that are kept. By default info.
    pub log_level: LogLevel,
    /// Address of the HTTP API; none for no HTTP API.
    pub http: Option<LoopbackAddress>,
    /// True if commands are taken over HTTP, and not only functions of modules.
    pub http_commands: bool,
    /// Address that answers `GET /metrics`; none for that of the HTTP API.
    pub metrics: Option<LoopbackAddress>,
    /// Address at which OTLP is received; none if it is not.
    pub otlp: Option<OtlpAddress>,
    /// Folders in which modules are looked for before all others, in order.
    pub module_path: Vec<PathBuf>,
    /// Reason why nothing is traced, if something says that nothing shall be; fits after "off: ".
    pub tracing_off: Option<String>,
    /// Clause on what named the hook, if nobody named it as such; fits after "because ".
    pub hook_reason: Option<String>,
    /// Warnings about the settings, for people.
    pub warnings: Vec<String>,
}

/// An engine that a head joins.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Engine {
    /// The way to it. Its paths are absolute.
    pub access: EngineAccess,
    /// The queues whose tasks the head runs, each with the most at a time; 0 for as many as it has slots. None for a head that only submits.
    pub queues: Vec<(String, u32)>,
    /// Time that a submission to a queue waits for an engine that cannot be reached. By default [`DEFAULT_ENGINE_WAIT`].
    pub wait: Duration,
    /// The most bytes of an argument or a result of a task of a queue. By default [`DEFAULT_MAX_SHARED_VALUE`].
    pub max_shared_value: u64,
    /// Public keys of those whose tasks the head runs from queues, as NATS writes them. Empty for a head that runs everybody's.
    pub trusted_keys: Vec<String>,
    /// True if commands of these queues are run too, and not functions alone. By default false.
    #[serde(default)]
    pub shared_commands: bool,
    /// Fate of the tasks of queues that the head runs when the engine has not heard it for as long as its claims last.
    #[serde(default)]
    pub on_partition: OnPartition,
}

/// Failure to make the settings.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The configuration file could not be read.
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The configuration file says something wrong.
    File {
        /// The file.
        path: PathBuf,
        /// The mistake, with its line.
        source: FileError,
    },
    /// A value from the command line or the environment is out of range.
    Invalid {
        /// The setting, as a flag.
        flag: &'static str,
        /// Sentence on what was expected and found.
        reason: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Read { path, source } => {
                write!(f, "cannot read the configuration file `{}`: {source}", path.display())
            }
            Error::File { path, source } => write!(f, "{}:{source}", path.display()),
            Error::Invalid { flag, reason } => write!(f, "`{flag}`: {reason}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // The text of the cause is part of this error's own.
            Error::Read { source, .. } => source.source(),
            Error::File { source, .. } => source.source(),
            Error::Invalid { .. } => None,
        }
    }
}

/// Reads `name=amount,...`, as `--resources` takes it; none for an empty text.
pub fn parse_resources(text: &str) -> Result<Option<Vec<(String, u64)>>, Error> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let resources = parts.map(parse_resource).collect::<Result<Vec<_>, _>>();
    let resources = resources.map_err(|reason| Error::Invalid { flag: "--resources", reason })?;
    Ok((!resources.is_empty()).then_some(resources))
}

/// Reads `name` or `name=slots`, as `--queue` takes it.
pub fn parse_queue(text: &str) -> Result<(String, u32), String> {
    let (name, slots) = match text.split_once('=') {
        None => (text, 0),
        Some((name, slots)) => {
            let expected = || format!("expected a number of tasks at a time, from 1, found `{slots}` in `{text}`");
            (name, slots.parse().ok().filter(|&slots| slots > 0).ok_or_else(expected)?)
        }
    };
    check_queue_name(name).map_err(|problem| format!("the queue `{name}` {problem}"))?;
    Ok((name.into(), slots))
}

/// Returns a file that one of two sources names, as an absolute path. An empty one counts as not named.
fn file_of(stronger: Option<PathBuf>, weaker: Option<PathBuf>) -> Option<PathBuf> {
    let named = |path: &PathBuf| !path.as_os_str().is_empty();
    let path = stronger.filter(named).or(weaker.filter(named))?;
    Some(std::path::absolute(&path).unwrap_or(path))
}

/// Returns the engine that both sources name together.
fn engine_of(
    access: EngineAccess,
    queues: Option<Vec<(String, u32)>>,
    wait: Option<Duration>,
    max_shared_value: Option<u64>,
    trusted_keys: Vec<String>,
    shared_commands: Option<bool>,
    on_partition: Option<OnPartition>,
) -> Result<Option<Engine>, Error> {
    let queues = queues.unwrap_or_default();
    if access.address.is_empty() {
        let unneeded = [
            (!queues.is_empty(), "--queue"),
            (wait.is_some(), "--engine-wait"),
            (max_shared_value.is_some(), "--max-shared-value"),
            (!trusted_keys.is_empty(), "--trusted-key"),
            (shared_commands == Some(true), "--shared-commands"),
            (on_partition == Some(OnPartition::Stop), "--on-partition"),
            (access.credentials.is_some(), "--credentials"),
            (access.authority.is_some(), "--engine-ca"),
        ];
        let unneeded = unneeded.into_iter().find_map(|(is_given, flag)| is_given.then_some(flag));
        let reason = "needs an engine that shares the tasks, and --address names none\n(hint: `--address nats://127.0.0.1:4222`)".to_owned();
        return unneeded.map_or(Ok(None), |flag| Err(Error::Invalid { flag, reason }));
    }
    access::check(&access).map_err(|error| match error {
        EngineError::File { flag, .. } => Error::Invalid { flag, reason: error.to_string() },
        _ => Error::Invalid { flag: "--address", reason: error.to_string() },
    })?;
    if let Some((name, _)) = queues
        .iter()
        .enumerate()
        .find_map(|(at, queue)| queues[..at].iter().any(|(name, _)| *name == queue.0).then_some(queue))
    {
        return Err(Error::Invalid { flag: "--queue", reason: format!("the queue `{name}` is named twice") });
    }
    let shared_commands = shared_commands.unwrap_or(false);
    if shared_commands && queues.is_empty() {
        let reason = "takes commands from the queues of this node, and it serves none\n(hint: `--queue default`)";
        return Err(Error::Invalid { flag: "--shared-commands", reason: reason.into() });
    }
    let wait = wait.unwrap_or(DEFAULT_ENGINE_WAIT);
    let max_shared_value = max_shared_value.unwrap_or(DEFAULT_MAX_SHARED_VALUE);
    let on_partition = on_partition.unwrap_or_default();
    Ok(Some(Engine { access, queues, wait, max_shared_value, trusted_keys, shared_commands, on_partition }))
}

/// Reads the configuration file that `overrides` names, if any, and merges both over the defaults.
pub fn load(overrides: Overrides) -> Result<Settings, Error> {
    let config = overrides.config.as_deref().filter(|path| !path.as_os_str().is_empty());
    let file = match config {
        None => Overrides::default(),
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.into(), source })?;
            parse_file(path, &text)?
        }
    };
    merge(overrides, file)
}

/// Reads the text of a configuration file. Relative paths in it are relative to the folder that the file is in.
fn parse_file(path: &Path, text: &str) -> Result<Overrides, Error> {
    let folder = path.parent().unwrap_or(Path::new(""));
    file::parse(text, folder).map_err(|source| Error::File { path: path.into(), source })
}

fn merge(stronger: Overrides, weaker: Overrides) -> Result<Settings, Error> {
    let path = |stronger: Option<PathBuf>, weaker: Option<PathBuf>, default: &dyn Fn() -> PathBuf| {
        let is_said = |path: &PathBuf| !path.as_os_str().is_empty();
        stronger.filter(is_said).or(weaker.filter(is_said)).unwrap_or_else(default)
    };
    let (mut tracing_startup_hooks, tracing_exporters) = match hooks_of(&stronger)? {
        (hooks, exporters) if hooks.is_empty() && exporters.is_empty() => hooks_of(&weaker)?,
        said => said,
    };
    let otel = stronger.otel;
    let (mut tracing_off, mut hook_reason) = (None, None);
    let by_otel = otel.is_disabled.then_some(false);
    let tracing_enabled = stronger.tracing_enabled.or(by_otel).or(weaker.tracing_enabled).unwrap_or(true);
    if !tracing_enabled {
        let is_by_otel = stronger.tracing_enabled.is_none() && otel.is_disabled;
        let reason = if is_by_otel { "OTEL_SDK_DISABLED is true" } else { "--tracing-enabled is false" };
        tracing_off = Some(reason.to_owned());
    } else if tracing_startup_hooks.is_empty() && tracing_exporters.is_empty() {
        match otel.exporters {
            None => {}
            Some(Exporters::None) => tracing_off = Some("OTEL_TRACES_EXPORTER is none".to_owned()),
            Some(Exporters::Refused(reason)) => return Err(Error::Invalid { flag: "OTEL_TRACES_EXPORTER", reason }),
            Some(Exporters::Hooks { named, hooks }) => {
                check_hooks(&hooks).map_err(|reason| Error::Invalid { flag: "OTEL_TRACES_EXPORTER", reason })?;
                tracing_startup_hooks = hooks;
                hook_reason = Some(format!("OTEL_TRACES_EXPORTER is {named}"));
            }
        }
    }
    let folders = |folders: Option<Vec<PathBuf>>| {
        let folders = folders?.into_iter().filter(|folder| !folder.as_os_str().is_empty()).collect::<Vec<_>>();
        (!folders.is_empty()).then_some(folders)
    };
    let num_workers = stronger.num_workers.or(weaker.num_workers).unwrap_or_else(default_num_workers);
    let limit = memory_limit::of_this_process();
    let given_queue_memory = stronger.queue_memory.or(weaker.queue_memory);
    let mut warnings = otel.warnings;
    if let Some(bytes) = given_queue_memory.filter(|bytes| *bytes > limit.bytes) {
        let (given, least) = (Size(bytes), Size(limit.bytes));
        warnings.push(format!(
            "--queue-memory is {given}, but {} allows {least} in all: the head may be killed for its memory\n\
             (hint: leave it out for a quarter of that)",
            limit.source
        ));
    }
    let settings = Settings {
        block: stronger.block.or(weaker.block).unwrap_or(false),
        num_workers,
        max_processes: stronger
            .max_processes
            .or(weaker.max_processes)
            .unwrap_or(num_workers.saturating_add(MORE_PROCESSES).min(MAX_PROCESSES_LIMIT)),
        queue_memory: given_queue_memory.unwrap_or_else(|| default_queue_memory(&limit)),
        queue_memory_source: match given_queue_memory {
            Some(_) => "as --queue-memory says".into(),
            None => format!("a quarter of {}", limit.source),
        },
        max_log_size: stronger.max_log_size.or(weaker.max_log_size).unwrap_or(DEFAULT_LOG_SIZE),
        journal_sync: stronger.journal_sync.or(weaker.journal_sync).unwrap_or(false),
        worker_memory: stronger.worker_memory.or(weaker.worker_memory),
        resources: sort_resources(stronger.resources.or(weaker.resources).unwrap_or_default())
            .map_err(|reason| Error::Invalid { flag: "--resources", reason })?,
        engine: engine_of(
            EngineAccess {
                address: stronger.address.filter(|address| !address.is_empty()).or(weaker.address).unwrap_or_default(),
                credentials: file_of(stronger.credentials, weaker.credentials),
                authority: file_of(stronger.engine_ca, weaker.engine_ca),
                is_insecure: stronger.insecure_engine.or(weaker.insecure_engine).unwrap_or(false),
            },
            stronger.queues.filter(|queues| !queues.is_empty()).or(weaker.queues),
            stronger.engine_wait.or(weaker.engine_wait),
            stronger.max_shared_value.or(weaker.max_shared_value),
            stronger.trusted_keys.filter(|keys| !keys.is_empty()).or(weaker.trusted_keys).unwrap_or_default(),
            stronger.shared_commands.or(weaker.shared_commands),
            stronger.on_partition.or(weaker.on_partition),
        )?,
        temp_dir: path(stronger.temp_dir, weaker.temp_dir, &default_temp_dir),
        spans_dir: path(stronger.spans_dir, weaker.spans_dir, &|| DEFAULT_SPANS_DIR.into()),
        tracing_enabled,
        tracing_startup_hooks,
        tracing_exporters,
        tracing_required: stronger.tracing_required.or(weaker.tracing_required).unwrap_or(false),
        hook_timeout: stronger.hook_timeout.or(weaker.hook_timeout).unwrap_or(DEFAULT_HOOK_TIMEOUT),
        sampling_ratio: stronger.sampling_ratio.or(weaker.sampling_ratio).unwrap_or_default(),
        propagators: stronger.propagators.or(otel.propagators).or(weaker.propagators).unwrap_or_default(),
        trace_runtime: stronger.trace_runtime.or(weaker.trace_runtime).unwrap_or(false),
        record_arguments: stronger.record_arguments.or(weaker.record_arguments).unwrap_or(false),
        log_events: stronger.log_events.or(weaker.log_events).unwrap_or_default(),
        log_level: stronger.log_level.or(weaker.log_level).unwrap_or_default(),
        http: stronger.http.or(weaker.http),
        metrics: stronger.metrics.or(weaker.metrics),
        otlp: stronger.otlp.or(weaker.otlp),
        http_commands: stronger.http_commands.or(weaker.http_commands).unwrap_or(false),
        module_path: folders(stronger.module_path).or(folders(weaker.module_path)).unwrap_or_default(),
        tracing_off,
        hook_reason,
        warnings,
    };
    if let (Some(http), Some(metrics)) = (settings.http, settings.metrics)
        && http != metrics
    {
        let reason = format!(
            "expected the address of the HTTP API, {http}, found {metrics}: `GET /metrics` is answered there\n(hint: leave --metrics out, or --http)",
            http = http.get(),
            metrics = metrics.get()
        );
        return Err(Error::Invalid { flag: "--metrics", reason });
    }
    if let (Some(shared), Some(otlp)) = (settings.http.or(settings.metrics), settings.otlp.and_then(|otlp| otlp.0))
        && shared != otlp
    {
        let reason = format!(
            "expected {shared}, where the HTTP API or the metrics are, found {otlp}: one process serves all of them\n(hint: leave the address out)",
            shared = shared.get(),
            otlp = otlp.get()
        );
        return Err(Error::Invalid { flag: "--otlp", reason });
    }
    // What the file says was checked where its line number was at hand.
    // A head that has joined an engine may only submit.
    let only_submits = settings.num_workers == 0 && settings.engine.is_some();
    check_num_workers(if only_submits { 1 } else { settings.num_workers.into() })
        .map_err(|reason| Error::Invalid { flag: "--num-workers", reason })?;
    check_max_processes(settings.max_processes.into())
        .and_then(|max_processes| {
            let num_workers = settings.num_workers;
            let expected =
                || format!("expected no less than the {num_workers} of --num-workers, found {max_processes}");
            if max_processes < num_workers { Err(expected()) } else { Ok(()) }
        })
        .map_err(|reason| Error::Invalid { flag: "--max-processes", reason })?;
    if let Some(bytes) = settings.worker_memory {
        check_memory(bytes).map_err(|reason| Error::Invalid { flag: "--worker-memory", reason })?;
    }
    if let Some(bytes) = given_queue_memory {
        check_memory(bytes).map_err(|reason| Error::Invalid { flag: "--queue-memory", reason })?;
    }
    check_log_size(settings.max_log_size).map_err(|reason| Error::Invalid { flag: "--max-log-size", reason })?;
    check_hook_timeout(settings.hook_timeout).map_err(|reason| Error::Invalid { flag: "--hook-timeout", reason })?;
    Ok(settings)
}

/// Returns the startup hooks and the exporters of one source, of which it may say one kind.
fn hooks_of(source: &Overrides) -> Result<(Vec<String>, Vec<String>), Error> {
    let said = |names: &[String]| names.iter().filter(|name| !name.is_empty()).cloned().collect::<Vec<_>>();
    let (hooks, exporters) = (said(&source.tracing_startup_hooks), said(&source.tracing_exporters));
    if let (Some(hook), Some(exporter)) = (hooks.first(), exporters.first()) {
        return Err(Error::Invalid {
            flag: "--tracing-exporter",
            reason: format!(
                "expected an exporter or a startup hook, found both: `{exporter}` and `{hook}`\n\
                 (hint: an exporter says where spans go, a startup hook says everything; name one of them)"
            ),
        });
    }
    let invalid = |flag| move |reason| Error::Invalid { flag, reason };
    check_hooks(&hooks).map_err(invalid("--tracing-startup-hook"))?;
    check_hooks(&exporters).map_err(invalid("--tracing-exporter"))?;
    Ok((hooks, exporters))
}

fn check_hooks(names: &[String]) -> Result<(), String> {
    if let Some((_, twice)) = names.iter().enumerate().find(|&(index, name)| names[..index].contains(name)) {
        let hint = "(hint: every span would come out twice; leave one of them out)";
        return Err(format!("expected each hook once, found `{twice}` twice\n{hint}"));
    }
    let limit = FURTHER_LIMIT + 1;
    if names.len() > limit {
        return Err(format!("expected up to {limit} hooks, found {}", names.len()));
    }
    Ok(())
}

/// Fails, with a clause, when logs could not even hold one write.
fn check_log_size(bytes: u64) -> Result<u64, String> {
    if bytes < LOG_SIZE_LEAST {
        return Err(format!("expected at least {}, found {}", Size(LOG_SIZE_LEAST), Size(bytes)));
    }
    Ok(bytes)
}

fn default_queue_memory(limit: &MemoryLimit) -> u64 {
    limit.bytes / 4
}

fn default_num_workers() -> u32 {
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
    u32::try_from(cpus).unwrap_or(u32::MAX).min(NUM_WORKERS_LIMIT)
}

fn check_num_workers(num_workers: i64) -> Result<u32, String> {
    u32::try_from(num_workers)
        .ok()
        .filter(|num_workers| (1..=NUM_WORKERS_LIMIT).contains(num_workers))
        .ok_or_else(|| format!("expected a number from 1 to {NUM_WORKERS_LIMIT}, found {num_workers}"))
}

fn check_max_processes(max_processes: i64) -> Result<u32, String> {
    u32::try_from(max_processes)
        .ok()
        .filter(|max_processes| (1..=MAX_PROCESSES_LIMIT).contains(max_processes))
        .ok_or_else(|| format!("expected a number from 1 to {MAX_PROCESSES_LIMIT}, found {max_processes}"))
}

fn check_hook_timeout(hook_timeout: Duration) -> Result<Duration, String> {
    if hook_timeout.is_zero() {
        return Err("expected a duration above zero, found 0".into());
    }
    Ok(hook_timeout)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Overrides, String> {
        parse_file(Path::new("/etc/tracer/tracer.toml"), text).map_err(|error| error.to_string())
    }

    fn ratio(number: f64) -> SamplingRatio {
        SamplingRatio::try_from(number).expect("a ratio")
    }

    #[test]
    fn without_anything_the_defaults_hold() {
        let settings = load(Overrides::default()).expect("the defaults are valid");
        assert_eq!(
            settings,
            Settings {
                block: false,
                num_workers: default_num_workers(),
                max_processes: default_num_workers() + 16,
                queue_memory: default_queue_memory(&memory_limit::of_this_process()),
                queue_memory_source: format!("a quarter of {}", memory_limit::of_this_process().source),
                max_log_size: DEFAULT_LOG_SIZE,
                journal_sync: false,
                worker_memory: None,
                resources: Vec::new(),
                engine: None,
                temp_dir: format!("/tmp/tracer-{}", rustix::process::getuid().as_raw()).into(),
                spans_dir: "/tmp/spans".into(),
                tracing_enabled: true,
                tracing_startup_hooks: Vec::new(),
                tracing_exporters: Vec::new(),
                tracing_required: false,
                hook_timeout: Duration::from_secs(10),
                sampling_ratio: SamplingRatio::ALL,
                propagators: Propagators::default(),
                trace_runtime: false,
                record_arguments: false,
                log_events: LogEvents::Both,
                log_level: LogLevel::Info,
                http: None,
                http_commands: false,
                metrics: None,
                otlp: None,
                module_path: Vec::new(),
                tracing_off: None,
                hook_reason: None,
                warnings: Vec::new(),
            }
        );
        assert!((1..=NUM_WORKERS_LIMIT).contains(&settings.num_workers));
    }

    const WHOLE_FILE: &str = r#"
block = true
num_workers = 3
max_processes = 5
queue_memory = "1GiB"
max_log_size = "100MiB"
journal_sync = true
worker_memory = "2GiB"
resources = { license = 5, gpu = 2 }
temp_dir = "/var/tmp/tracer"
module_path = ["/opt/modules", "modules"]

[tracing]
enabled = false
startup_hook = "local_tmp_tracing:setup_tracing"
required = true
spans_dir = "spans"
hook_timeout = "500ms"
sampling_ratio = 0.25
propagators = ["baggage"]
runtime = true
record_arguments = true

[logs]
events = "log"
level = "debug"

[http]
address = "localhost:8265"
commands = true

[engine]
address = "nats://127.0.0.1:4222"
insecure = true
queues = ["default=2"]
wait = "7s"
max_shared_value = "2MiB"
trusted_keys = ["UD6MZTGLCZZD4U5BZZVLM73LKHQ5Q3TSF4RXD5PZS6PVVHD65XNUKIK4"]
shared_commands = true
on_partition = "stop"
"#;

    #[test]
    fn a_file_sets_everything_and_its_paths_start_at_its_folder() {
        let file = parse(WHOLE_FILE).expect("the file is valid");
        assert_eq!(
            merge(Overrides::default(), file).expect("the settings are valid"),
            Settings {
                block: true,
                num_workers: 3,
                max_processes: 5,
                queue_memory: 1 << 30,
                queue_memory_source: "as --queue-memory says".into(),
                max_log_size: 100 << 20,
                journal_sync: true,
                worker_memory: Some(2 << 30),
                resources: vec![("gpu".into(), 2), ("license".into(), 5)],
                engine: Some(Engine {
                    access: EngineAccess {
                        address: "nats://127.0.0.1:4222".into(),
                        is_insecure: true,
                        ..EngineAccess::default()
                    },
                    queues: vec![("default".into(), 2)],
                    wait: Duration::from_secs(7),
                    max_shared_value: 2 << 20,
                    trusted_keys: vec!["UD6MZTGLCZZD4U5BZZVLM73LKHQ5Q3TSF4RXD5PZS6PVVHD65XNUKIK4".into()],
                    shared_commands: true,
                    on_partition: OnPartition::Stop,
                }),
                temp_dir: "/var/tmp/tracer".into(),
                spans_dir: "/etc/tracer/spans".into(),
                tracing_enabled: false,
                tracing_startup_hooks: vec!["local_tmp_tracing:setup_tracing".into()],
                tracing_exporters: Vec::new(),
                tracing_required: true,
                hook_timeout: Duration::from_millis(500),
                sampling_ratio: ratio(0.25),
                propagators: Propagators { trace_context: false, baggage: true },
                trace_runtime: true,
                record_arguments: true,
                log_events: LogEvents::Log,
                log_level: LogLevel::Debug,
                http: Some("127.0.0.1:8265".parse().expect("an address")),
                http_commands: true,
                metrics: None,
                otlp: None,
                module_path: vec!["/opt/modules".into(), "/etc/tracer/modules".into()],
                tracing_off: Some("--tracing-enabled is false".into()),
                hook_reason: None,
                warnings: Vec::new(),
            }
        );
    }

    #[test]
    fn flags_and_environment_win_over_the_file() {
        let overrides = Overrides {
            config: None,
            block: Some(false),
            num_workers: Some(8),
            max_processes: Some(9),
            queue_memory: Some(1 << 29),
            max_log_size: Some(1 << 28),
            journal_sync: Some(false),
            worker_memory: Some(64 << 20),
            resources: Some(vec![("tpu".into(), 1)]),
            address: Some("nats://localhost:1".into()),
            credentials: Some(PathBuf::new()),
            engine_ca: None,
            insecure_engine: Some(false),
            queues: Some(vec![("gpu".into(), 0)]),
            engine_wait: Some(Duration::from_secs(1)),
            max_shared_value: Some(1 << 20),
            trusted_keys: Some(vec!["UCXZ6WRXDMKL5AYPD6FU5EGBNSDCWTOYYPSDORT74OXZVAEPGVZ54UFK".into()]),
            shared_commands: Some(false),
            on_partition: Some(OnPartition::Continue),
            temp_dir: Some("run".into()),
            spans_dir: Some("/spans".into()),
            tracing_enabled: Some(true),
            tracing_startup_hooks: Vec::new(),
            tracing_exporters: vec!["otlp:exporter".into()],
            tracing_required: Some(false),
            hook_timeout: Some(Duration::from_secs(2)),
            sampling_ratio: Some(ratio(0.0)),
            propagators: Some(Propagators::NONE),
            trace_runtime: Some(false),
            record_arguments: Some(false),
            log_events: Some(LogEvents::Span),
            log_level: Some(LogLevel::Off),
            http: Some("[::1]:1".parse().expect("an address")),
            http_commands: Some(false),
            metrics: Some("[::1]:1".parse().expect("an address")),
            otlp: Some("auto".parse().expect("an address")),
            module_path: Some(vec!["here".into()]),
            otel: OtelSettings {
                is_disabled: true,
                propagators: Some(Propagators::default()),
                exporters: Some(Exporters::None),
                warnings: vec!["a warning".into()],
            },
        };
        assert_eq!(
            merge(overrides, parse(WHOLE_FILE).expect("the file is valid")).expect("the settings are valid"),
            Settings {
                block: false,
                num_workers: 8,
                max_processes: 9,
                queue_memory: 1 << 29,
                queue_memory_source: "as --queue-memory says".into(),
                max_log_size: 1 << 28,
                journal_sync: false,
                worker_memory: Some(64 << 20),
                resources: vec![("tpu".into(), 1)],
                engine: Some(Engine {
                    access: EngineAccess { address: "nats://localhost:1".into(), ..EngineAccess::default() },
                    queues: vec![("gpu".into(), 0)],
                    wait: Duration::from_secs(1),
                    max_shared_value: 1 << 20,
                    trusted_keys: vec!["UCXZ6WRXDMKL5AYPD6FU5EGBNSDCWTOYYPSDORT74OXZVAEPGVZ54UFK".into()],
                    shared_commands: false,
                    on_partition: OnPartition::Continue,
                }),
                temp_dir: "run".into(),
                spans_dir: "/spans".into(),
                tracing_enabled: true,
                tracing_startup_hooks: Vec::new(),
                tracing_exporters: vec!["otlp:exporter".into()],
                tracing_required: false,
                hook_timeout: Duration::from_secs(2),
                sampling_ratio: ratio(0.0),
                propagators: Propagators::NONE,
                trace_runtime: false,
                record_arguments: false,
                log_events: LogEvents::Span,
                log_level: LogLevel::Off,
                http: Some("[::1]:1".parse().expect("an address")),
                http_commands: false,
                metrics: Some("[::1]:1".parse().expect("an address")),
                otlp: Some("auto".parse().expect("an address")),
                module_path: vec!["here".into()],
                tracing_off: None,
                hook_reason: None,
                warnings: vec!["a warning".into()],
            }
        );
    }

    #[test]
    fn what_otel_variables_say_is_weaker_than_tracers_own_and_stronger_than_the_file() {
        let disabled = OtelSettings { is_disabled: true, ..OtelSettings::default() };
        let overrides = Overrides { otel: disabled.clone(), ..Overrides::default() };
        let settings = merge(overrides, parse("[tracing]\nenabled = true").expect("valid")).expect("valid");
        assert_eq!(settings.tracing_off.as_deref(), Some("OTEL_SDK_DISABLED is true"));
        assert!(!settings.tracing_enabled);
        let flag = Overrides { tracing_enabled: Some(true), otel: disabled, ..Overrides::default() };
        assert_eq!(load(flag).expect("valid").tracing_off, None);

        let none = OtelSettings { propagators: Some(Propagators::NONE), ..OtelSettings::default() };
        let overrides = Overrides { otel: none.clone(), ..Overrides::default() };
        let file = || parse("[tracing]\npropagators = 'baggage'").expect("valid");
        assert_eq!(merge(overrides, file()).expect("valid").propagators, Propagators::NONE);
        let flag = Overrides { propagators: Some(Propagators::default()), otel: none, ..Overrides::default() };
        assert_eq!(merge(flag, file()).expect("valid").propagators, Propagators::default());

        let exporters = |exporters: Exporters| OtelSettings { exporters: Some(exporters), ..OtelSettings::default() };
        let console = exporters(Exporters::Hooks { named: "console".into(), hooks: vec!["console:hook".into()] });
        let settings = load(Overrides { otel: console.clone(), ..Overrides::default() }).expect("valid");
        assert_eq!(settings.tracing_startup_hooks, ["console:hook"]);
        assert_eq!(settings.hook_reason.as_deref(), Some("OTEL_TRACES_EXPORTER is console"));
        for otel in [console, exporters(Exporters::None), exporters(Exporters::Refused("no".into()))] {
            let file = parse("[tracing]\nexporter = 'file:hook'").expect("valid");
            let settings = merge(Overrides { otel, ..Overrides::default() }, file).expect("valid");
            assert_eq!((settings.hook_reason, settings.tracing_off), (None, None));
            assert!(settings.tracing_startup_hooks.is_empty());
            assert_eq!(settings.tracing_exporters, ["file:hook"]);
        }
        let settings = load(Overrides { otel: exporters(Exporters::None), ..Overrides::default() }).expect("valid");
        assert_eq!(settings.tracing_off.as_deref(), Some("OTEL_TRACES_EXPORTER is none"));
        let refused = Overrides { otel: exporters(Exporters::Refused("no".into())), ..Overrides::default() };
        assert_eq!(load(refused).expect_err("refused").to_string(), "`OTEL_TRACES_EXPORTER`: no");
        let several = Exporters::Hooks { named: "console,otlp".into(), hooks: vec!["a:b".into(), "c:d".into()] };
        let several = Overrides { otel: exporters(several), ..Overrides::default() };
        let settings = load(several).expect("valid");
        assert_eq!(settings.tracing_startup_hooks, ["a:b", "c:d"]);
        assert_eq!(settings.hook_reason.as_deref(), Some("OTEL_TRACES_EXPORTER is console,otlp"));
    }

    #[test]
    fn hooks_are_named_each_once_and_several_of_one_kind() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        for text in ["startup_hook = ['a:b', 'c:d']", "exporter = ['a:b', 'c:d']"] {
            let settings =
                merge(Overrides::default(), parse(&format!("[tracing]\n{text}")).expect("valid")).expect("valid");
            let (hooks, exporters) = (&settings.tracing_startup_hooks, &settings.tracing_exporters);
            assert_eq!([hooks.as_slice(), exporters.as_slice()].concat(), ["a:b", "c:d"]);
            assert_eq!(hooks.is_empty(), text.starts_with("exporter"));
        }
        // A stronger source replaces the list; it does not add to it.
        let flag = Overrides { tracing_startup_hooks: names(&["e:f"]), ..Overrides::default() };
        let settings = merge(flag, parse("[tracing]\nstartup_hook = ['a:b', 'c:d']").expect("valid")).expect("valid");
        assert_eq!(settings.tracing_startup_hooks, ["e:f"]);
        let twice = Overrides { tracing_startup_hooks: names(&["a:b", "c:d", "a:b"]), ..Overrides::default() };
        let error = load(twice).expect_err("it is there twice").to_string();
        assert!(
            error.starts_with("`--tracing-startup-hook`: expected each hook once, found `a:b` twice\n(hint: "),
            "{error}"
        );
        let error = parse("[tracing]\nstartup_hook = ['a:b', 'a:b']").expect_err("it is there twice");
        assert!(
            error.contains("2: `tracing`: expected each hook once")
                || error.contains(":1: `tracing`: expected each hook once"),
            "{error}"
        );
        let many = (0..18).map(|number| format!("a:b{number}")).collect();
        let error = load(Overrides { tracing_exporters: many, ..Overrides::default() }).expect_err("too many");
        assert_eq!(error.to_string(), "`--tracing-exporter`: expected up to 17 hooks, found 18");
    }

    #[test]
    fn a_variable_set_to_nothing_says_nothing() {
        let overrides = Overrides {
            config: Some("".into()),
            temp_dir: Some("".into()),
            spans_dir: Some("".into()),
            tracing_startup_hooks: vec!["".into()],
            module_path: Some(vec!["".into()]),
            ..Overrides::default()
        };
        assert_eq!(load(overrides).unwrap(), load(Overrides::default()).unwrap());
    }

    #[test]
    fn a_wrong_file_is_refused_with_key_and_line() {
        for (text, expected) in [
            (
                "num_worker = 3",
                "/etc/tracer/tracer.toml:1: unknown key `num_worker`\n(hint: did you mean `num_workers`?)",
            ),
            (
                "\n[tracing]\nstartup-hook = 'a:b'",
                "/etc/tracer/tracer.toml:3: unknown key `tracing.startup-hook`\n(hint: did you mean `startup_hook`?)",
            ),
            (
                "[tracing]\nport = 1",
                "/etc/tracer/tracer.toml:2: unknown key `tracing.port`; \
                 known are `enabled`, `startup_hook`, `exporter`, `required`, `spans_dir`, `hook_timeout`, `sampling_ratio`, `propagators`, `runtime`, `record_arguments`",
            ),
            (
                "port = 1",
                "/etc/tracer/tracer.toml:1: unknown key `port`; \
                 known are `block`, `num_workers`, `max_processes`, `queue_memory`, `max_log_size`, `journal_sync`, `worker_memory`, `resources`, `temp_dir`, `module_path`, `tracing`, `logs`, `http`, `metrics`, `otlp`, `engine`",
            ),
            (
                "startup_hook = 'a:b'",
                "/etc/tracer/tracer.toml:1: unknown key `startup_hook`\n(hint: it belongs in the table `[tracing]`)",
            ),
            (
                "[http]\nnum_workers = 1",
                "/etc/tracer/tracer.toml:2: unknown key `http.num_workers`\n\
                 (hint: it belongs at the top of the file, above every table)",
            ),
            (
                "address = 'localhost:0'",
                "/etc/tracer/tracer.toml:1: unknown key `address`\n(hint: it belongs in the table `[http]`)",
            ),
            ("http = 'localhost:0'", "/etc/tracer/tracer.toml:1: `http`: expected a table, found a string"),
            (
                "[http]\naddress = 'localhost'",
                "/etc/tracer/tracer.toml:2: `http.address`: expected an address such as `127.0.0.1:8265`, `[::1]:8265` or \
                 `localhost:0`, found `localhost`",
            ),
            (
                "[tracing]\nnum_workers = 1",
                "/etc/tracer/tracer.toml:2: unknown key `tracing.num_workers`\n\
                 (hint: it belongs at the top of the file, above every table)",
            ),
            ("num_workers = '3'", "/etc/tracer/tracer.toml:1: `num_workers`: expected an integer, found a string"),
            (
                "max_processes = 4097",
                "/etc/tracer/tracer.toml:1: `max_processes`: expected a number from 1 to 4096, found 4097",
            ),
            ("num_workers = 1.5", "/etc/tracer/tracer.toml:1: `num_workers`: expected an integer, found a float"),
            ("num_workers = 0", "/etc/tracer/tracer.toml:1: `num_workers`: expected a number from 1 to 1024, found 0"),
            (
                "num_workers = 1025",
                "/etc/tracer/tracer.toml:1: `num_workers`: expected a number from 1 to 1024, found 1025",
            ),
            (
                "num_workers = -1",
                "/etc/tracer/tracer.toml:1: `num_workers`: expected a number from 1 to 1024, found -1",
            ),
            ("temp_dir = ['/tmp']", "/etc/tracer/tracer.toml:1: `temp_dir`: expected a string, found an array"),
            (
                "module_path = '/opt'",
                "/etc/tracer/tracer.toml:1: `module_path`: expected an array of strings, found a string",
            ),
            (
                "module_path = [\n'/opt',\n2]",
                "/etc/tracer/tracer.toml:3: `module_path`: expected a string, found an integer",
            ),
            ("tracing = true", "/etc/tracer/tracer.toml:1: `tracing`: expected a table, found a boolean"),
            (
                "[tracing]\nrequired = 'yes'",
                "/etc/tracer/tracer.toml:2: `tracing.required`: expected a boolean, found a string",
            ),
            (
                "[tracing]\nhook_timeout = 'soon'",
                "/etc/tracer/tracer.toml:2: `tracing.hook_timeout`: \
                 expected a duration such as `500ms`, `10s` or `2m`, found `soon`",
            ),
            (
                "[tracing]\nhook_timeout = 0",
                "/etc/tracer/tracer.toml:2: `tracing.hook_timeout`: expected a duration above zero, found 0",
            ),
            (
                "[tracing]\nsampling_ratio = 1.5",
                "/etc/tracer/tracer.toml:2: `tracing.sampling_ratio`: expected a number from 0 to 1, found `1.5`",
            ),
            (
                "[logs]\nevents = 'all'",
                "/etc/tracer/tracer.toml:2: `logs.events`: expected `log`, `span` or `both`, found `all`",
            ),
            (
                "[tracing]\nsampling_ratio = 'half'",
                "/etc/tracer/tracer.toml:2: `tracing.sampling_ratio`: expected a number from 0 to 1, found a string",
            ),
            (
                "[tracing]\nenabled = 'off'",
                "/etc/tracer/tracer.toml:2: `tracing.enabled`: expected a boolean, found a string",
            ),
            (
                "[tracing]\npropagators = ['b3']",
                "/etc/tracer/tracer.toml:2: `tracing.propagators`: \
                 expected `tracecontext`, `baggage`, both or `none`, found `b3`",
            ),
            (
                "[tracing]\npropagators = ['none', 'baggage']",
                "/etc/tracer/tracer.toml:2: `tracing.propagators`: expected `none` alone, found another name beside it",
            ),
            (
                "[tracing]\npropagators = true",
                "/etc/tracer/tracer.toml:2: `tracing.propagators`: expected an array of strings, found a boolean",
            ),
            (
                "[tracing]\nhook_timeout = true",
                "/etc/tracer/tracer.toml:2: `tracing.hook_timeout`: \
                 expected a duration such as `500ms`, `10s` or `2m`, found a boolean",
            ),
        ] {
            assert_eq!(parse(text).expect_err(text), expected, "{text}");
        }
    }

    #[test]
    fn broken_toml_names_its_line() {
        let error = parse("num_workers = 3\ntemp_dir = \n").expect_err("a value is missing");
        assert!(error.starts_with("/etc/tracer/tracer.toml:2: "), "{error}");
        let error = parse("num_workers = 3\nnum_workers = 4\n").expect_err("a key is there twice");
        assert!(error.starts_with("/etc/tracer/tracer.toml:2: "), "{error}");
    }

    #[test]
    fn durations_in_a_file_are_texts_or_seconds() {
        for (value, expected) in
            [("'2m'", Duration::from_secs(120)), ("3", Duration::from_secs(3)), ("0.25", Duration::from_millis(250))]
        {
            let file = parse(&format!("[tracing]\nhook_timeout = {value}")).expect(value);
            assert_eq!(file.hook_timeout, Some(expected), "{value}");
        }
    }

    #[test]
    fn propagators_in_a_file_are_an_array_or_a_text() {
        for (value, expected) in [
            ("'none'", "none"),
            ("'baggage,tracecontext'", "tracecontext,baggage"),
            ("['tracecontext']", "tracecontext"),
        ] {
            let file = parse(&format!("[tracing]\npropagators = {value}")).expect(value);
            assert_eq!(
                file.propagators.map(|propagators| propagators.to_string()).as_deref(),
                Some(expected),
                "{value}"
            );
        }
    }

    #[test]
    fn there_is_one_hook_or_one_exporter() {
        let both = Overrides {
            tracing_startup_hooks: vec!["a:b".into()],
            tracing_exporters: vec!["c:d".into()],
            ..Overrides::default()
        };
        let message = "expected an exporter or a startup hook, found both: `c:d` and `a:b`";
        let error = load(both.clone()).expect_err("both are said").to_string();
        assert!(error.starts_with(&format!("`--tracing-exporter`: {message}\n(hint: ")), "{error}");
        // What is weaker does not matter when what is stronger has said one.
        let hook = Overrides { tracing_exporters: Vec::new(), ..both.clone() };
        assert!(merge(hook, both).expect("one is said").tracing_exporters.is_empty());
        let error = parse("[tracing]\nstartup_hook = 'a:b'\nexporter = 'c:d'").expect_err("both are said");
        assert!(error.starts_with(&format!("/etc/tracer/tracer.toml:1: `tracing`: {message}\n(hint: ")), "{error}");
    }

    #[test]
    fn a_missing_file_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tracer.toml");
        let error =
            load(Overrides { config: Some(path.clone()), ..Overrides::default() }).expect_err("there is no file");
        assert_eq!(
            error.to_string(),
            format!("cannot read the configuration file `{}`: No such file or directory (os error 2)", path.display())
        );
    }

    #[test]
    fn a_file_is_read_from_disk() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tracer.toml");
        std::fs::write(&path, "num_workers = 7\n[tracing]\nspans_dir = 's'\n").expect("the file is written");
        let settings = load(Overrides { config: Some(path), ..Overrides::default() }).expect("the file is valid");
        assert_eq!((settings.num_workers, settings.spans_dir), (7, folder.path().join("s")));
    }

    #[test]
    fn values_from_the_command_line_are_checked_too() {
        let too_few = Overrides { num_workers: Some(4), max_processes: Some(3), ..Overrides::default() };
        let error = load(too_few).expect_err("fewer than workers");
        assert_eq!(error.to_string(), "`--max-processes`: expected no less than the 4 of --num-workers, found 3");
        let error = load(Overrides { num_workers: Some(0), ..Overrides::default() }).expect_err("no workers");
        assert_eq!(error.to_string(), "`--num-workers`: expected a number from 1 to 1024, found 0");
        let error =
            load(Overrides { hook_timeout: Some(Duration::ZERO), ..Overrides::default() }).expect_err("no time");
        assert_eq!(error.to_string(), "`--hook-timeout`: expected a duration above zero, found 0");
    }
}
