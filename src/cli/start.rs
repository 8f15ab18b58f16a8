//! `tracer start`, and the head process that it leaves in the background.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracer_core::address::{LoopbackAddress, OtlpAddress};
use tracer_core::clock::now_unix_nano;
use tracer_core::count::{Count, Size};
use tracer_core::duration::parse_duration;
use tracer_core::logs::{LogEvents, LogLevel};
use tracer_core::propagation::Propagators;
use tracer_core::queue::QueueBound;
use tracer_core::sampling_ratio::SamplingRatio;
use tracer_core::size::parse_size;
use tracer_core::{LogSettings, exit};
use tracer_engine::signed;
use tracer_head::guard;
use tracer_head::process::describe_exit;
use tracer_head::server::{self, HeadEnd, Program};
use tracer_head::settings::{Fresh, HeadSettings};
use tracer_host::hook::{HookCheck, HookContract, HookError, ImportString, changeable_by_others};
use tracer_host::static_tls;
use tracer_ipc::http_place::HttpSettings;
use tracer_ipc::place_file;
use tracer_ipc::protocol::order::StartLine;
use tracer_ipc::protocol::{FurtherHook, HookChoice, OnPartition, TracingSettings};
use tracer_ipc::session::{Session, SessionError, find_head};
use tracer_ipc::spin::is_readable;
use tracer_ipc::start_report::{Report, Started};
use tracer_settings::{OtelSettings, Overrides, Settings};
use tracer_span_file::{MAX_BYTES_VARIABLE, Rotation};
use tracer_web::http_api::metrics::export::ExportSettings;

use super::engine::TrustArgs;
use super::hooks::HookReport;
use super::modules::{others_can_change_it, split_paths, warn_of_missing};
use super::status::further_hook;
use super::{CommandError, CommandResult, Format, FormatArgs, PlaceArgs, hints, report};

/// Start a head with its workers
///
/// The head goes to the background once its workers are ready. It is reached through a socket in a folder that only you
/// can enter. Workers run in this folder and in this environment. Every flag can also be set in the environment and in a
/// file; a flag wins over the environment, and the environment over the file.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  tracer start --head --tracing-startup-hook=local_tmp_tracing:setup_tracing
  tracer start --head --num-workers 2 --tracing-startup-hook \\
    local_tmp_tracing:setup_tracing,otlp:setup_tracing
  OTEL_TRACES_EXPORTER=console OTEL_SERVICE_NAME=shop tracer start --head
  tracer start --head --http 127.0.0.1:8265
  tracer start --address nats://127.0.0.1:4222 --queue default=2
  tracer start --address tls://10.0.0.5 --engine-ca ca.pem \\
    --credentials node.nk --queue default")]
pub(super) struct Args {
    /// Start a head on this machine
    #[arg(long)]
    head: bool,
    /// Stay in the foreground until stopped
    #[arg(long, env = "TRACER_BLOCK", value_name = "BOOL", hide_possible_values = true, value_parser = clap::builder::BoolishValueParser::new(), num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    block: Option<bool>,
    /// Number of workers [default: the number of cpus]
    #[arg(long, value_name = "N", env = tracer_settings::NUM_WORKERS_VARIABLE)]
    num_workers: Option<u32>,
    /// Limit on worker processes, including those whose task waits for other tasks [default: 16 more than --num-workers]
    ///
    /// A task that waits for others gives its slot to another process. At the limit, the waiting process runs the tasks that it waits for itself.
    #[arg(long, value_name = "N", env = tracer_settings::MAX_PROCESSES_VARIABLE)]
    max_processes: Option<u32>,
    /// Memory limit for queued and running tasks in the head, such as 2GiB; further submissions are refused [default: a quarter of what the machine, control groups and ulimit allow]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, env = tracer_settings::QUEUE_MEMORY_VARIABLE)]
    queue_memory: Option<u64>,
    /// Disk limit for the logs of the session, such as 100MiB; beyond it the oldest output of workers is dropped [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, env = tracer_settings::MAX_LOG_SIZE_VARIABLE)]
    max_log_size: Option<u64>,
    /// Acknowledge tasks and report outcomes only once they are on the disk, so that they survive a loss of power too
    ///
    /// Tasks that arrive meanwhile are synced together. A submission that is waited for takes two disk syncs longer.
    #[arg(long, env = "TRACER_JOURNAL_SYNC", value_name = "BOOL", hide_possible_values = true, value_parser = clap::builder::BoolishValueParser::new(), num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    journal_sync: Option<bool>,
    /// Memory limit for each worker process with everything that it starts, such as 2GiB [default: none]
    ///
    /// A task that exceeds it fails with `oom`, and nothing else does. The kernel enforces the limit where the head may make control
    /// groups: as root, or in a group that was delegated to you. Elsewhere the head polls, and a task that takes memory fast may
    /// exceed it for some milliseconds.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, env = tracer_settings::WORKER_MEMORY_VARIABLE)]
    worker_memory: Option<u64>,
    /// Named resources that tasks can ask for with --resource, and their amounts, separated by commas
    ///
    /// Resources are counters: with `gpu=2` two tasks that ask for `gpu=1` run at a time; which device each uses is up to the task.
    #[arg(long, value_name = "NAME=AMOUNT,...", env = tracer_settings::RESOURCES_VARIABLE)]
    resources: Option<String>,
    /// Join the engine at this address, over which machines share the tasks of queues, such as nats://127.0.0.1:4222
    ///
    /// The engine is a nats-server with JetStream, which you run yourself: `nats-server -a 127.0.0.1 -p 4222 -js -sd DIR`. One on another machine needs
    /// `tls://` and --credentials. With an address, --num-workers may be 0, for a node that only submits.
    #[arg(long, value_name = "URL", env = tracer_settings::ADDRESS_VARIABLE)]
    address: Option<String>,
    #[command(flatten)]
    trust: TrustArgs,
    /// Run tasks of this queue, up to SLOTS at a time [default: as many as there are workers]; may be repeated
    ///
    /// Whoever may submit to a queue runs functions of this node's modules, as you.
    #[arg(long, value_name = "NAME[=SLOTS]", value_delimiter = ',', value_parser = tracer_settings::parse_queue, env = tracer_settings::QUEUE_VARIABLE)]
    queue: Vec<(String, u32)>,
    /// Time that a submission to a queue waits for an engine that cannot be reached, before it is refused [default: 5s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, env = tracer_settings::ENGINE_WAIT_VARIABLE)]
    engine_wait: Option<Duration>,
    /// The most that one argument or result of a task of a queue may take [default: 1GiB]
    ///
    /// Values of 256 KiB and more are copied through the engine's disk, and are removed there when the task has ended.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, env = tracer_settings::MAX_SHARED_VALUE_VARIABLE)]
    max_shared_value: Option<u64>,
    /// Run tasks of queues that this nkey has signed, and nothing else; may be repeated [default: everybody's tasks]
    ///
    /// KEY is the public key of a user of the engine, which begins with `U`. A head that is started with --credentials signs what it submits with the
    /// nkey that they have.
    #[arg(long, value_name = "KEY", value_delimiter = ',', value_parser = tracer_engine::signed::check_key, env = tracer_settings::TRUSTED_KEY_VARIABLE)]
    trusted_key: Vec<String>,
    /// Run commands from the node's queues too, not only functions [default: false]
    ///
    /// Whoever may submit to one of these queues can then run any program on this machine, as you.
    #[arg(long, env = tracer_settings::SHARED_COMMANDS_VARIABLE, value_name = "BOOL", hide_possible_values = true, value_parser = clap::builder::BoolishValueParser::new(), num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    shared_commands: Option<bool>,
    /// Fate of tasks of queues here when the engine has not heard this node for 10 s: continue or stop [default: continue]
    ///
    /// Another node takes them over ten seconds later at the earliest. With `continue` both run them, and one of the outcomes counts; with `stop` this
    /// node ends them as `tracer cancel` would. Tasks that are in no queue are not touched.
    #[arg(long, value_name = "WHAT", env = tracer_settings::ON_PARTITION_VARIABLE)]
    on_partition: Option<OnPartition>,
    /// Switch for all tracing; false overrides any hook [default: true]
    #[arg(long, env = tracer_settings::TRACING_ENABLED_VARIABLE, value_name = "BOOL", hide_possible_values = true, value_parser = clap::builder::BoolishValueParser::new(), num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    tracing_enabled: Option<bool>,
    /// The hook that sets up tracing in every process, as `module:attribute`; repeat it to send the spans to additional hooks too
    ///
    /// The first decides on ids, sampling and the resource. Each additional one gets every finished span, also those of processes
    /// that died; when it is slow or fails, the others are not affected. A hook that returns a finished provider, or is written in
    /// C without a span sink, can only be the first. In the variable, names are separated by commas.
    #[arg(long, value_name = "MODULE:ATTRIBUTE", value_delimiter = ',', env = tracer_settings::TRACING_STARTUP_HOOK_VARIABLE)]
    tracing_startup_hook: Vec<String>,
    /// The exporter that says where spans go, as `module:attribute`; instead of a startup hook, and repeated like it
    #[arg(long, value_name = "MODULE:ATTRIBUTE", value_delimiter = ',', env = tracer_settings::TRACING_EXPORTER_VARIABLE)]
    tracing_exporter: Vec<String>,
    /// Do not run tasks in a worker whose hook fails
    #[arg(long, env = "TRACER_TRACING_REQUIRED", value_name = "BOOL", hide_possible_values = true, value_parser = clap::builder::BoolishValueParser::new(), num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    tracing_required: Option<bool>,
    /// Time limit for the hook [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, env = "TRACER_HOOK_TIMEOUT")]
    hook_timeout: Option<Duration>,
    /// Share of new traces that are sampled, 0 to 1; a hook's own sampler and OTEL_TRACES_SAMPLER come first [default: 1]
    #[arg(long, value_name = "RATIO", env = tracer_settings::SAMPLING_RATIO_VARIABLE)]
    tracing_sampling_ratio: Option<SamplingRatio>,
    /// Context that submissions take from their environment and commands get in theirs: tracecontext, baggage or none, separated by commas [default: tracecontext,baggage]
    #[arg(long, value_name = "NAMES", env = tracer_settings::PROPAGATORS_VARIABLE)]
    tracing_propagators: Option<Propagators>,
    /// Trace the runtime's own work for every task too: its journal, its queue, the loading of modules, the results
    #[arg(long, env = tracer_settings::TRACE_RUNTIME_VARIABLE, value_name = "BOOL", hide_possible_values = true, value_parser = clap::builder::BoolishValueParser::new(), num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    trace_runtime: Option<bool>,
    /// Put the arguments of tasks on their spans, as `tracer.argument.NAME`; they may be private [default: false]
    #[arg(long, env = tracer_settings::RECORD_ARGUMENTS_VARIABLE, value_name = "BOOL", hide_possible_values = true, value_parser = clap::builder::BoolishValueParser::new(), num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    record_arguments: Option<bool>,
    /// Form that `tracing` events of modules take: log for log records, span for events of their span, or both [default: both]
    #[arg(long, value_name = "FORM", env = tracer_settings::LOG_EVENTS_VARIABLE)]
    log_events: Option<LogEvents>,
    /// Least level of the log records that are kept: trace, debug, info, warn, error or off [default: info]
    #[arg(long, value_name = "LEVEL", env = tracer_settings::LOG_LEVEL_VARIABLE)]
    log_level: Option<LogLevel>,
    /// Serve the HTTP API on this address of this machine, such as 127.0.0.1:8265; port 0 for one that is free [default: no HTTP API]
    ///
    /// Clients need the token that is in the session's folder, in the file `http.token`, new at each start; `tracer status` names both.
    /// `curl -H "Authorization: Bearer $(cat TOKEN_FILE)" http://127.0.0.1:8265/` lists the routes, and
    /// `-H 'Content-Type: application/json' -d '{"function": "demo:my_function"}' 'http://127.0.0.1:8265/api/v1/tasks?wait_ms=10000'`
    /// runs a function. All of it is described at /api/v1/openapi.json.
    #[arg(long, value_name = "ADDRESS", env = tracer_settings::HTTP_VARIABLE)]
    http: Option<LoopbackAddress>,
    /// Take commands over HTTP too, and not only functions of modules that are found by name [default: false]
    #[arg(long, env = tracer_settings::HTTP_COMMANDS_VARIABLE, value_name = "BOOL", hide_possible_values = true, value_parser = clap::builder::BoolishValueParser::new(), num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    http_commands: Option<bool>,
    /// Answer `GET /metrics` for Prometheus on this address of this machine; without ADDRESS on 127.0.0.1:9464 [default: where the HTTP API is]
    ///
    /// OpenMetrics with exemplars, or the text format. Scrapers need the token in the file `metrics.token` of the temporary folder, which stays
    /// the same, so it can be a `credentials_file` of Prometheus.
    #[arg(long, value_name = "ADDRESS", env = tracer_settings::METRICS_VARIABLE, num_args = 0..=1, require_equals = true, default_missing_value = "127.0.0.1:9464")]
    metrics: Option<LoopbackAddress>,
    /// Receive OTLP over HTTP from the commands that it runs, and from other programs of this machine that show the token, on this address;
    /// without ADDRESS where the HTTP API or the metrics are, else on 127.0.0.1:4318
    ///
    /// Spans, log records and metrics in protobuf or JSON are appended to files of the spans folder before they are acknowledged. Commands find the
    /// address and the token in their environment, so that `tracer submit command -- opentelemetry-instrument python3 app.py` needs no configuration.
    /// Others send the token of the file `otlp.token` of the temporary folder, which stays the same:
    /// `OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20$(cat TOKEN_FILE)"`.
    #[arg(long, value_name = "ADDRESS", env = tracer_settings::OTLP_VARIABLE, num_args = 0..=1, require_equals = true, default_missing_value = "auto")]
    otlp: Option<OtlpAddress>,
    /// The folder that span files are written to [default: /tmp/spans]
    #[arg(long, value_name = "DIR", env = tracer_settings::SPANS_DIR_VARIABLE, value_parser = super::path_parser())]
    spans_dir: Option<PathBuf>,
    /// Folders to look for modules in first, separated by colons
    #[arg(long, value_name = "DIRS", env = tracer_settings::MODULE_PATH_VARIABLE)]
    module_path: Option<OsString>,
    /// A file with settings, such as tracer.toml
    #[arg(long, value_name = "FILE", env = tracer_settings::CONFIG_VARIABLE, value_parser = super::path_parser())]
    config: Option<PathBuf>,
    /// Forget the tasks of earlier heads in this place: their journal is put aside under another name, and ids go on
    ///
    /// Refused while some of them have not ended, or an actor lives. Span files and traces stay.
    #[arg(long)]
    fresh: bool,
    /// With --fresh: give up tasks that have not ended and actors that live
    #[arg(long, requires = "fresh")]
    discard_unfinished: bool,
    /// For a program that has a head of its own: run until standard input is closed, and tell how it started as a line of JSON
    #[arg(long, hide = true)]
    embedded: bool,
    /// For `tracer restart`: try all of it, and print the settings as JSON
    #[arg(long, hide = true, conflicts_with = "embedded")]
    settings: bool,
    /// For a program whose head is in a place that others use too: nothing of the place is removed
    #[arg(long, hide = true, requires = "embedded")]
    keep_place: bool,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    format: FormatArgs,
}

/// Time that the process that tries the hook out may take beyond the hook's own limit.
const CHECK_ALLOWANCE: Duration = Duration::from_secs(10);

pub(super) fn run(args: Args) -> CommandResult {
    if !args.head && args.address.is_none() {
        let text = "`tracer start` starts a head, and needs --head to say so\n\
                    (hint: `tracer start --head`; or `tracer start --address nats://127.0.0.1:4222` for one that shares tasks with others)";
        return Err(CommandError::new(exit::USAGE, text));
    }
    if args.embedded {
        return run_embedded(args);
    }
    if args.settings {
        let mut settings = head_settings(settings(args)?)?;
        settings.start = StartLine::of_this_process().map(of_start);
        report::json(&serde_json::to_string(&settings).map_err(io::Error::other)?);
        return Ok(exit::OK);
    }
    let format = args.format.format;
    let fresh = args.fresh.then_some(Fresh { discards_unfinished: args.discard_unfinished });
    let settings = settings(args)?;
    for warning in &settings.warnings {
        report::warning(warning);
    }
    let is_foreground = settings.block;
    let mut head_settings = head_settings(settings)?;
    head_settings.fresh = fresh;
    head_settings.start = StartLine::of_this_process();
    if is_foreground { run_in_foreground(head_settings, format) } else { run_in_background(&head_settings, format) }
}

/// The flag with which the settings of another head are tried.
pub(super) const SETTINGS_FLAG: &str = "--settings";

/// Returns the command line of the start whose settings are tried.
fn of_start(tried: StartLine) -> StartLine {
    let arguments = tried.arguments.into_iter().filter(|argument| argument != SETTINGS_FLAG).collect();
    StartLine { arguments, ..tried }
}

/// Combines the settings of the flags, the environment and the file.
fn settings(args: Args) -> Result<Settings, CommandError> {
    check_span_file_size()?;
    // A shell's variable that is not set leaves nothing behind the `=`.
    if args.tracing_startup_hook.iter().chain(&args.tracing_exporter).any(String::is_empty) {
        return Err(CommandError::new(exit::HOOK_REFUSED, HookError::ImportString { given: String::new() }));
    }
    let is_path_given = split_paths(args.module_path.as_ref()).is_some();
    let settings = tracer_settings::load(Overrides {
        config: args.config,
        block: args.block,
        num_workers: args.num_workers,
        max_processes: args.max_processes,
        queue_memory: args.queue_memory,
        max_log_size: args.max_log_size,
        journal_sync: args.journal_sync,
        worker_memory: args.worker_memory,
        resources: tracer_settings::parse_resources(args.resources.as_deref().unwrap_or_default())
            .map_err(|error| CommandError::new(exit::USAGE, error))?,
        address: args.address,
        credentials: args.trust.credentials,
        engine_ca: args.trust.engine_ca,
        insecure_engine: args.trust.insecure_engine,
        queues: Some(args.queue),
        engine_wait: args.engine_wait,
        max_shared_value: args.max_shared_value,
        trusted_keys: Some(args.trusted_key),
        shared_commands: args.shared_commands,
        on_partition: args.on_partition,
        temp_dir: args.place.temp_dir,
        spans_dir: args.spans_dir,
        tracing_enabled: args.tracing_enabled,
        tracing_startup_hooks: args.tracing_startup_hook,
        tracing_exporters: args.tracing_exporter,
        tracing_required: args.tracing_required,
        hook_timeout: args.hook_timeout,
        sampling_ratio: args.tracing_sampling_ratio,
        propagators: args.tracing_propagators,
        trace_runtime: args.trace_runtime,
        record_arguments: args.record_arguments,
        log_events: args.log_events,
        log_level: args.log_level,
        http: args.http,
        http_commands: args.http_commands,
        metrics: args.metrics,
        otlp: args.otlp,
        module_path: split_paths(args.module_path.as_ref()),
        otel: OtelSettings::of_this_process(),
    })
    .map_err(|error| CommandError::new(exit::USAGE, named_as_given(&error)))?;
    let said_by = if is_path_given { "--module-path" } else { "`module_path` of the configuration file" };
    warn_of_missing(&settings.module_path, said_by);
    for folder in settings.module_path.iter().filter(|folder| folder.is_dir()) {
        if let Some(said) = changeable_by_others(folder) {
            report::warning(&format!(
                "modules run with your rights, and others can put some in `{}`: {said}",
                folder.display()
            ));
        }
    }
    warn_of_open_folder(&settings.spans_dir);
    // Said before the hook is tried out; the lock decides it in the end.
    if !args.settings
        && let Ok(holder) = find_head(&settings.temp_dir)
    {
        return Err(occupied(SessionError::Occupied { temp_dir: settings.temp_dir, holder: Some(holder) }));
    }
    Ok(settings)
}

/// Warns of a folder for spans that was there already and that others may write to. It is not changed: its owner may mean it.
fn warn_of_open_folder(spans_dir: &Path) {
    let Ok(metadata) = std::fs::metadata(spans_dir) else { return };
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & 0o022 != 0 {
        let folder = spans_dir.display();
        report::warning(&format!(
            "others may write to the span folder `{folder}` (its mode is {mode:04o}, expected 0700): they cannot read spans, and can put files \
             beside them\n(hint: `chmod 700 {folder}`)"
        ));
    }
}

/// Returns the error, with the variable of the environment in place of a flag that was not given.
fn named_as_given(error: &tracer_settings::Error) -> String {
    let text = error.to_string();
    let tracer_settings::Error::Invalid { flag, .. } = error else { return text };
    let variable = format!("TRACER_{}", flag.trim_start_matches('-').replace('-', "_").to_ascii_uppercase());
    let is_given =
        |given: std::ffi::OsString| given.to_str().is_some_and(|given| given.split('=').next() == Some(flag));
    match std::env::var_os(&variable) {
        Some(_) if !std::env::args_os().any(is_given) => {
            text.replacen(&format!("`{flag}`"), &format!("`{variable}`"), 1)
        }
        _ => text,
    }
}

/// Tries the hook out and settles everything that the head is given.
fn head_settings(settings: Settings) -> Result<HeadSettings, CommandError> {
    // What the user gave is relative to this folder, not to where a process that reads it may be.
    let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
    let contract =
        if settings.tracing_startup_hooks.is_empty() { HookContract::Exporter } else { HookContract::Startup };
    let names = settings.tracing_startup_hooks.into_iter().chain(settings.tracing_exporters);
    let mut names = names.filter(|_| settings.tracing_enabled);
    let first = names.next();
    let hook_reason = settings.hook_reason;
    let export = ExportSettings::of_environment().map_err(|error| CommandError::new(exit::USAGE, error))?;
    let warnings = settings.warnings.into_iter().chain(export.iter().flat_map(ExportSettings::warnings).cloned());
    // The process that exports answers `GET /metrics`, too, if only on some port.
    let exported = export.as_ref().map(|_| LoopbackAddress::any_port());
    let mut settings = HeadSettings {
        num_workers: settings.num_workers as usize,
        max_processes: settings.max_processes as usize,
        queue_memory: settings.queue_memory,
        queue_memory_source: settings.queue_memory_source,
        max_log_size: settings.max_log_size,
        journal_sync: settings.journal_sync,
        worker_memory: settings.worker_memory,
        resources: settings.resources,
        engine: settings.engine,
        temp_dir: absolute(settings.temp_dir),
        module_path: settings.module_path.into_iter().map(absolute).collect(),
        tracing_off: settings.tracing_off,
        warnings: warnings.collect(),
        http: settings.http.or(settings.metrics).or(settings.otlp.map(OtlpAddress::alone)).or(exported).map(
            |address| HttpSettings {
                address,
                receives_otlp: settings.otlp.is_some(),
                allows_commands: settings.http_commands,
                is_metrics_only: settings.http.is_none(),
            },
        ),
        tracing: TracingSettings {
            hook: first.map(|import_string| HookChoice {
                import_string,
                contract,
                library: None,
                timeout_ms: u64::try_from(settings.hook_timeout.as_millis()).unwrap_or(u64::MAX),
                is_required: settings.tracing_required,
                further: Vec::new(),
            }),
            sampling_ratio: settings.sampling_ratio,
            propagators: settings.propagators,
            trace_runtime: settings.trace_runtime,
            record_arguments: settings.record_arguments,
            logs: LogSettings { events: settings.log_events, level: settings.log_level },
            ..TracingSettings::untraced(absolute(settings.spans_dir))
        },
        hook_description: String::new(),
        fresh: None,
        start: None,
    };
    if let Some(engine) = &settings.engine {
        let of_trust = signed::warnings(&engine.access, !engine.queues.is_empty(), &engine.trusted_keys);
        of_trust.map_err(io::Error::other)?.iter().for_each(|warning| report::warning(warning));
        let num_cpus = u32::try_from(settings.num_workers).unwrap_or(u32::MAX);
        let has = QueueBound { num_cpus, resources: settings.resources.clone() };
        let warnings = try_engine(engine, &settings.temp_dir, &has)?;
        settings.warnings.extend(warnings);
    }
    if let Some(hook) = settings.tracing.hook.clone() {
        let check = try_hook(&hook.import_string, &hook, &settings)?;
        warn_of_others(&mut settings, &hook.import_string, &check);
        let mut further = Vec::new();
        for import_string in names {
            let check = try_hook(&import_string, &hook, &settings)?;
            if !check.takes_spans {
                let place = check.library.map_or_else(|| "built in".to_owned(), |path| path.display().to_string());
                return Err(CommandError::new(
                    exit::HOOK_REFUSED,
                    HookError::TakesNoSpans { hook: import_string, place },
                ));
            }
            warn_of_others(&mut settings, &import_string, &check);
            let HookCheck { library, description, .. } = check;
            further.push(FurtherHook { import_string, contract, library, description });
        }
        settings.tracing.hook = Some(HookChoice { library: check.library, further, ..hook });
        settings.hook_description = match hook_reason {
            Some(reason) => format!("{}\nbecause {reason}", check.description),
            None => check.description,
        };
    }
    Ok(settings)
}

/// Warns of a hook that others could change, now and in `tracer status`.
fn warn_of_others(settings: &mut HeadSettings, hook: &str, check: &HookCheck) {
    if let Some(said) = &check.changeable_by_others {
        let warning = format!("hook `{hook}`: {}", others_can_change_it(said));
        report::warning(&warning);
        settings.warnings.push(warning);
    }
}

/// Checks the variable early: the processes of the session read it too, when there is nobody left to be told of a mistake.
fn check_span_file_size() -> Result<(), CommandError> {
    let Some(said) = std::env::var_os(MAX_BYTES_VARIABLE) else { return Ok(()) };
    match said.to_str().and_then(|text| text.parse::<u64>().ok()) {
        Some(1..) => Ok(()),
        _ => {
            let said = said.to_string_lossy();
            let text = format!(
                "`{MAX_BYTES_VARIABLE}` is `{said}`, but takes a number of bytes from 1\n\
                 (hint: the default is {}; a span file that would become larger is put aside as `<pid>.1.json`)",
                Rotation::default().max_bytes
            );
            Err(CommandError::new(exit::USAGE, text))
        }
    }
}

/// Tries an engine out in a process of its own, so that this one, which may become the head, has no runtime. Warns of what is not as it should be, which may be
/// that the engine is away, and returns it. `has` is all that there is for tasks.
fn try_engine(engine: &tracer_settings::Engine, place: &Path, has: &QueueBound) -> Result<Vec<String>, CommandError> {
    let queues = engine.queues.iter().map(|(queue, _)| queue.as_str());
    let access = serde_json::to_string(&engine.access).map_err(io::Error::other)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["agent", "--try", &access, "--has", &has.encode()]);
    if let Some(id) = place_file::id(place) {
        let node_id = place_file::node_id(&server::host_name(), id);
        let last_life = place_file::last_life(place).unwrap_or_default().to_string();
        command.args(["--place", &id.to_string(), "--node-id", &node_id, "--last-life", &last_life]);
        if place_file::was_moved(place) {
            command.arg("--was-moved");
        }
    }
    if engine.shared_commands {
        command.arg("--shared-commands");
    }
    let tried = command.args(queues).env("NO_COLOR", "1").stdin(Stdio::null()).output()?;
    if tried.status.success() {
        let lines = String::from_utf8_lossy(&tried.stdout);
        let warnings: Vec<String> = lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        warnings.iter().for_each(|warning| report::warning(warning));
        return Ok(warnings);
    }
    let text = String::from_utf8_lossy(&tried.stderr);
    let text = match text.trim_end() {
        "" => format!("the process that was to try the engine out {}", describe_exit(tried.status).cause),
        text => text.strip_prefix("error: ").unwrap_or(text).to_owned(),
    };
    Err(CommandError::new(exit::FAILED, text))
}

/// Loads a hook once in a process of its own, so that one that crashes or hangs cannot hurt. It has the contract and the settings of
/// `hook`, the first.
fn try_hook(import_string: &str, hook: &HookChoice, settings: &HeadSettings) -> Result<HookCheck, CommandError> {
    let parsed: Result<ImportString, HookError> = import_string.parse();
    parsed.map_err(|error| CommandError::new(exit::HOOK_REFUSED, error))?;
    let mut check = check_in_process()?;
    check.args(["--no-head", "--as", hook.contract.flag().trim_start_matches("--tracing-")]);
    check.env(tracer_settings::MODULE_PATH_VARIABLE, std::env::join_paths(&settings.module_path).unwrap_or_default());
    check.envs(settings.tracing.variables());
    try_in_process(check, import_string, Duration::from_millis(hook.timeout_ms))
}

/// Begins the command line of `tracer hooks check` in a process of its own.
pub(super) fn check_in_process() -> io::Result<Command> {
    let mut check = Command::new(std::env::current_exe()?);
    static_tls::reserve(&mut check);
    check.args(["hooks", "check"]);
    Ok(check)
}

/// Runs `tracer hooks check`, which has all arguments but those of this function, in a process of its own, and returns what it says of the hook.
pub(super) fn try_in_process(
    mut check: Command,
    import_string: &str,
    limit: Duration,
) -> Result<HookCheck, CommandError> {
    let mut child = check
        .args(["--here", "--format", "json", "--hook-timeout", &format!("{}ns", limit.as_nanos()), "--", import_string])
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // What the hook itself has to say is for the user.
        .stderr(Stdio::inherit())
        .spawn()?;
    let pidfd =
        rustix::process::pidfd_open(rustix::process::Pid::from_child(&child), rustix::process::PidfdFlags::empty())
            .map_err(io::Error::from)?;
    let wait = limit + CHECK_ALLOWANCE;
    let (stdout, is_ended) = read_until_end(&mut child, &pidfd, Instant::now() + wait)?;
    if !is_ended {
        child.kill()?;
    }
    let status = child.wait()?;
    let error: Box<dyn std::error::Error> = match serde_json::from_slice(&stdout) {
        Ok(HookReport::Works(check)) => {
            // What it says holds for every process, but names the one that tried it out.
            let description = check.description.replace(&format!("/{}.", child.id()), "/<pid>.");
            return Ok(HookCheck { description, ..check });
        }
        Ok(HookReport::Refused { refused, .. }) => refused.into(),
        Err(_) if !is_ended => {
            HookError::TimedOut { hook: import_string.into(), place: "its process".into(), limit: wait }.into()
        }
        Err(_) => HookError::Died { hook: import_string.into(), cause: describe_exit(status).cause }.into(),
    };
    Err(CommandError::new(exit::HOOK_REFUSED, error))
}

/// Reads what a process prints until it has ended, and not until its output is closed: something that it left behind may hold
/// that open. False at the end if the deadline came first.
fn read_until_end(child: &mut Child, pidfd: &OwnedFd, deadline: Instant) -> Result<(Vec<u8>, bool), CommandError> {
    let mut stdout = child.stdout.take();
    if let Some(pipe) = &stdout {
        rustix::io::ioctl_fionbio(pipe, true).map_err(io::Error::from)?;
    }
    let mut said = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout =
            Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() };
        let mut fds = vec![PollFd::new(pidfd, PollFlags::IN)];
        fds.extend(stdout.as_ref().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        let is_timed_out = poll(&mut fds, Some(&timeout)) == Ok(0);
        let is_ended = !fds[0].revents().is_empty();
        drop(fds);
        // Until its end it is read again and again; the error then is that nothing more has come.
        if stdout.as_mut().is_some_and(|pipe| pipe.read_to_end(&mut said).is_ok()) {
            stdout = None;
        }
        if is_ended || is_timed_out {
            return Ok((said, is_ended));
        }
    }
}

fn run_in_foreground(settings: HeadSettings, format: Format) -> CommandResult {
    guard::split(guard::Attachment::Foreground)?;
    let settings = guard::inherited_settings().unwrap_or(settings);
    serve_in_foreground(settings, format)
}

fn serve_in_foreground(settings: HeadSettings, format: Format) -> CommandResult {
    let shown = settings.clone();
    let end = run_server(settings, None, &mut |started, _| {
        if started.no_worker.is_none() {
            announce(started, &shown, format, true);
        }
    })?;
    match end {
        HeadEnd::Stopped(stopped) => {
            let workers = stopped.stopped.len() + stopped.killed.len();
            let mut text = format!("stopped {}", Count(workers, "worker"));
            if stopped.kept > 0 {
                let tasks = Count(stopped.kept, "task");
                text.push_str(&format!("; {tasks} kept, which the next head in this place goes on with"));
            }
            report::talk(&text);
            Ok(exit::OK)
        }
        HeadEnd::NoWorker { reason, is_hook_to_blame, session_dir } => {
            Err(no_worker(&session_dir, is_hook_to_blame, &reason))
        }
    }
}

fn run_server(
    settings: HeadSettings,
    program: Option<Program>,
    on_started: &mut dyn FnMut(&Started, &Path),
) -> Result<HeadEnd, CommandError> {
    let inherited = guard::take_inherited();
    let session = match inherited.as_ref().map(|inherited| inherited.session(&settings)).transpose()?.flatten() {
        Some(session) => session,
        None => Session::open(&settings.temp_dir, &settings.tracing.spans_dir, guard::pid(), now_unix_nano())
            .map_err(occupied)?,
    };
    Ok(server::run(settings, session, inherited, program, on_started)?)
}

fn occupied(error: SessionError) -> CommandError {
    let exit_code = match error {
        SessionError::Occupied { .. } => exit::HEAD_RUNNING,
        SessionError::Unsafe { .. } => exit::USAGE,
        _ => exit::FAILED,
    };
    CommandError::new(exit_code, error)
}

fn no_worker(session_dir: &Path, is_hook_to_blame: bool, reason: &str) -> CommandError {
    let exit_code = if is_hook_to_blame { exit::HOOK_REFUSED } else { exit::FAILED };
    // What workers wrote before they died is in the logs, which outlive the session.
    let logs = session_dir.join("logs");
    let hint = if reason.contains("\n(hint:") {
        String::new()
    } else {
        format!("\n(hint: the logs of the head and of its workers are in `{}`)", logs.display())
    };
    CommandError::new(exit_code, format!("the head gives up: {reason}{hint}"))
}

fn run_in_background(settings: &HeadSettings, format: Format) -> CommandResult {
    let mut child = Command::new(std::env::current_exe()?)
        .arg("head")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()?;
    let input = serde_json::to_vec(settings).map_err(io::Error::other)?;
    child.stdin.take().expect("it is piped").write_all(&input)?;
    announce(&wait_until_started(&mut child)?, settings, format, false);
    Ok(exit::OK)
}

/// Waits for the report of a head that was started with its standard output piped. One that has not started has ended.
fn wait_until_started(child: &mut Child) -> Result<Started, CommandError> {
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line)?;
    match serde_json::from_str(&line) {
        Ok(Report::Started(started)) => match &started.no_worker {
            None => Ok(*started),
            Some(reason) => {
                child.wait()?;
                Err(no_worker(&started.session_dir, started.is_hook_to_blame, reason))
            }
        },
        Ok(Report::Refused { exit_code, message }) => {
            child.wait()?;
            Err(CommandError::new(exit_code, message))
        }
        Err(_) => Err(head_died(child)?),
    }
}

fn head_died(child: &mut Child) -> io::Result<CommandError> {
    let exit = describe_exit(child.wait()?);
    Ok(CommandError::new(exit::FAILED, format!("the head {} before it was ready", exit.cause)))
}

/// The head in the background: settings come in through standard input, one report goes out through standard output. With the number of a file, it goes on in
/// the place of a head of another version, as that was attached.
pub(super) fn run_head(state: Option<i32>) -> CommandResult {
    if let Some(state) = state {
        let place = guard::resume(state)?;
        let settings = guard::inherited_settings().ok_or_else(|| io::Error::other("there are no settings"))?;
        return match place {
            guard::Attachment::Foreground => serve_in_foreground(settings, Format::Text),
            guard::Attachment::Background => {
                let place = settings.temp_dir.clone();
                let end = serve(settings, None).map(drop);
                if let Err(failure) = &end {
                    note_failure(&place, failure);
                }
                report_outcome(end)
            }
        };
    }
    // A session of its own: no terminal, and no signals from the one it was started in. It fails only for the leader of a
    // group, which this process is not.
    let _ = rustix::process::setsid();
    guard::split(guard::Attachment::Background)?;
    let settings = match guard::inherited_settings() {
        Some(settings) => settings,
        None => {
            let mut input = Vec::new();
            io::stdin().read_to_end(&mut input)?;
            serde_json::from_slice(&input).map_err(|error| {
                CommandError::new(exit::USAGE, format!("`tracer head` is run by `tracer start`: {error}"))
            })?
        }
    };
    report_outcome(serve(settings, None).map(drop))
}

/// Writes into the log of the session why a head has not gone on with it: nobody reads what it prints.
fn note_failure(place: &Path, failure: &CommandError) {
    let log = find_head(place).ok().map(|head| head.session_dir.join("logs/head.log"));
    let log = log.and_then(|path| std::fs::OpenOptions::new().append(true).open(path).ok());
    if let Some(mut log) = log {
        let _ = writeln!(log, "{} {}", tracer_trace::rfc3339(now_unix_nano()), failure.error);
    }
}

/// The head of a program, as its child. It ends when the program does, however that ends: then its standard input is closed.
fn run_embedded(args: Args) -> CommandResult {
    // A Ctrl-C is for the program, which decides what becomes of its head.
    let _ = rustix::process::setsid();
    let keeps_place = args.keep_place;
    let serve = || {
        let settings = head_settings(settings(args)?)?;
        let (of_guard, program) = (settings.clone(), io::stdin());
        guard::split_and(guard::Attachment::Background, || {
            let program = rustix::io::fcntl_dupfd_cloexec(&program, 3);
            Box::new(move || {
                if keeps_place {
                    // The next head finishes what is left.
                    return;
                }
                if let Err(error) = finish_after(program, &of_guard) {
                    eprintln!("tracer: the place of a program's head cannot be finished: {error}");
                }
            })
        })?;
        let alive = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3).map_err(io::Error::from)?;
        serve(settings, Some(Program { alive, keeps_place })).map(drop)
    };
    report_outcome(serve())
}

/// Finishes what the dead head of a program has left in its place: at once what its workers left, and what is the program's own once that has ended or has let
/// go of its head, which is when `program` becomes readable. A program that is killed together with its head may be the later one to be gone.
fn finish_after(program: rustix::io::Result<OwnedFd>, settings: &HeadSettings) -> io::Result<()> {
    let program = program?;
    if !is_readable(&program, Duration::ZERO) {
        server::finish_place(settings.clone(), false)?;
        rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&program, PollFlags::IN)], None))?;
    }
    server::finish_place(settings.clone(), true)
}

/// Time within which a head must end whose guard was killed.
const UNGUARDED_LIMIT: Duration = Duration::from_secs(10);

/// Finishes what the dead head of a program has left in its place, for the program, which is about to end. A head whose guard was killed may still be at its
/// end; it removes the place itself.
pub(super) fn run_finish(temp_dir: &Path, spans_dir: Option<PathBuf>) -> CommandResult {
    let record = tracer_ipc::session::find_dead_head(temp_dir);
    let spans_dir = record.map(|record| record.spans_dir).or(spans_dir).unwrap_or_else(|| temp_dir.into());
    let settings = HeadSettings::of_dead_head(temp_dir.into(), spans_dir);
    let deadline = Instant::now() + UNGUARDED_LIMIT;
    loop {
        match server::finish_place(settings.clone(), true) {
            Ok(()) => return Ok(exit::OK),
            Err(_) if !temp_dir.exists() => return Ok(exit::OK),
            // The refusal has taken a tenth of a second.
            Err(error) if is_occupied(&error) && Instant::now() < deadline => {}
            Err(error) => return Err(CommandError::new(exit::FAILED, error)),
        }
    }
}

/// Returns true for the refusal of a place that another head has.
fn is_occupied(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<SessionError>());
    matches!(cause, Some(SessionError::Occupied { .. }))
}

/// A head in a place that others use too, for the life of this command.
pub(super) struct OwnHead {
    /// The guard above the head. Its standard input is what keeps it.
    child: Child,
}

impl OwnHead {
    /// Starts it, with one worker unless the environment says how many, and waits until it takes orders.
    pub(super) fn start(place: &Path) -> Result<OwnHead, CommandError> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["start", "--head", "--embedded", "--keep-place", "--temp-dir"]).arg(place);
        if std::env::var_os(tracer_settings::NUM_WORKERS_VARIABLE).is_none() {
            command.args(["--num-workers", "1"]);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn()?;
        wait_until_started(&mut child)?;
        Ok(OwnHead { child })
    }

    /// Lets go of it, and waits until nothing of it runs.
    pub(super) fn end(mut self) -> io::Result<()> {
        drop(self.child.stdin.take());
        self.child.wait().map(drop)
    }
}

/// Runs the head, and tells when it has started.
fn serve(settings: HeadSettings, program: Option<Program>) -> Result<HeadEnd, CommandError> {
    let end = run_server(settings, program, &mut |started, session_dir| {
        print(&Report::Started(Box::new(started.clone())));
        // From here on the command that started this process is gone, and with it where its output went.
        if let Err(error) = detach(session_dir) {
            eprintln!("tracer: the head stays attached: {error}");
        }
    })?;
    match end {
        HeadEnd::NoWorker { reason, is_hook_to_blame, session_dir } => {
            Err(no_worker(&session_dir, is_hook_to_blame, &reason))
        }
        end => Ok(end),
    }
}

fn report_outcome(end: Result<(), CommandError>) -> CommandResult {
    let Err(failure) = end else { return Ok(exit::OK) };
    let mut message = failure.error.to_string();
    if let Some(source) = failure.error.source() {
        message.push_str(&format!(": {source}"));
    }
    print(&Report::Refused { exit_code: failure.exit_code, message });
    Ok(failure.exit_code)
}

fn print(report: &Report) {
    if let Ok(line) = serde_json::to_string(report) {
        report::json(&line);
    }
}

/// Lets go of the outputs of the command that started this process.
fn detach(session_dir: &Path) -> io::Result<()> {
    let log = std::fs::OpenOptions::new().append(true).open(session_dir.join("logs/head.log"))?;
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&log)?;
    Ok(())
}

fn announce(started: &Started, settings: &HeadSettings, format: Format, is_foreground: bool) {
    if format == Format::Json {
        report::value(format, started, |_| String::new());
        return;
    }
    hints::note_place(&settings.temp_dir);
    report::talk(banner(started, settings, is_foreground).trim_end());
    for warning in &started.warnings {
        report::warning(warning);
    }
    for failure in &started.hook_failures {
        report::warning(&format!(
            "the hook failed in worker {} (pid {}), whose spans tracer writes itself: {}",
            failure.worker_id, failure.pid, failure.reason
        ));
    }
}

fn banner(started: &Started, settings: &HeadSettings, is_foreground: bool) -> String {
    let mut text = format!(
        "tracer {} is running: head (pid {}) and {}\n\n",
        tracer_ipc::VERSION,
        started.head_pid,
        Count(started.workers_ready, "worker")
    );
    let mut fields = vec![("  session", started.session_dir.display().to_string())];
    match &settings.tracing.hook {
        Some(hook) => {
            let place =
                hook.library.as_ref().map_or_else(|| "built in".to_owned(), |path| format!("from {}", path.display()));
            let sampling = tracer_settings::otel::sampling_line(settings.tracing.sampling_ratio);
            let further: String = hook.further.iter().map(further_hook).collect();
            let text = format!("{}, {place}\n{}\n{sampling}{further}", hook.import_string, settings.hook_description);
            fields.push(("  tracing", text));
        }
        None => fields.push(("  tracing", off(settings.tracing_off.as_deref()))),
    }
    if let Some(http) = started.http.as_ref().filter(|http| http.is_metrics_only) {
        let text = format!("{}/metrics, token in {}", http.url, http.metrics_token_path.display());
        fields.push(("  metrics", text));
    } else if let Some(http) = &started.http {
        let taken = if http.allows_commands { "functions and commands" } else { "functions, no commands" };
        let text = format!("{}, token in {}\ntakes {taken}", http.url, http.token_path.display());
        fields.push(("  http", text));
    }
    if let Some(http) = started.http.as_ref().filter(|http| http.receives_otlp) {
        fields.push(("  otlp", format!("{}, token in {}", http.url, http.otlp_token_path.display())));
    }
    if let Some(engine) = &settings.engine {
        let queues = super::status::served_queues(engine.queues.iter().map(|(name, slots)| (name, slots)));
        fields.push(("  engine", engine.access.address.clone()));
        fields.push(("  queues", queues));
        if engine.shared_commands {
            let who = match engine.access.credentials {
                Some(_) => "whoever may submit to them",
                None => "whoever reaches the engine, which asks for no credentials,",
            };
            fields.push(("  commands", format!("{who} runs any program here, as you (--shared-commands)")));
        }
    }
    let queue = format!("takes up to {} of memory, {}", Size(settings.queue_memory), settings.queue_memory_source);
    fields.push(("  queue", queue));
    let recovered = started.recovered.recovered + started.recovered.closed;
    if recovered > 0 {
        fields.push(("  recovered", format!("{} that a dead head's processes left", Count(recovered, "span"))));
    }
    if started.recovered.waiting > 0 {
        let spans = Count(started.recovered.waiting, "span");
        fields.push((
            "  undelivered",
            format!(
                "{spans} of an earlier session, waiting for an exporter that accepts them (see `{}`)",
                super::hooks::undelivered::command(&settings.temp_dir)
            ),
        ));
    }
    if started.recovered.waiting_for_other_hooks > 0 {
        let spans = Count(started.recovered.waiting_for_other_hooks, "span");
        let command = super::hooks::undelivered::command(&settings.temp_dir);
        fields.push(("  undelivered", format!("{spans} of hooks that this head does not have (see `{command}`)")));
    }
    if let Some(aside) = &started.put_aside {
        let unfinished = match aside.unfinished {
            0 => String::new(),
            unfinished => format!(", {unfinished} of them not ended"),
        };
        let tasks = Count(aside.tasks, "task");
        let text = format!(
            "{tasks} of earlier heads are forgotten{unfinished}\ntheir journal is now `{}`",
            aside.journal.display()
        );
        fields.push(("  fresh", text));
    }
    if started.tasks_restored > 0 {
        let tasks = Count(started.tasks_restored, "task");
        fields.push(("  restored", format!("{tasks} that an earlier head had accepted")));
    }
    if started.tasks_again > 0 {
        let tasks = Count(started.tasks_again, "task");
        fields.push(("  again", format!("{tasks} of them ran when their head died and will be started again")));
    }
    if started.tasks_lost > 0 {
        let tasks = Count(started.tasks_lost, "task");
        fields.push(("  lost", format!("{tasks} that ran when their head died; `tracer list tasks` shows them")));
    }
    text.push_str(&report::fields(&fields));
    let place = PlaceArgs::flag(&settings.temp_dir);
    text.push_str("\nNext\n");
    // A head without workers takes nothing but tasks of queues.
    let queue = match &settings.engine {
        Some(engine) if settings.num_workers == 0 || !engine.queues.is_empty() => {
            format!(" --queue {}", engine.queues.first().map_or("NAME", |(name, _)| name.as_str()))
        }
        _ => String::new(),
    };
    let mut next = vec![("  submit a task", format!("tracer submit task{place}{queue} demo:my_function"))];
    if settings.tracing.hook.is_some() {
        next.push(("  see its trace", format!("tracer trace show{place} last")));
    }
    next.push(("  see its state", format!("tracer status{place}")));
    next.push(("  stop it", if is_foreground { "Ctrl-C".to_owned() } else { format!("tracer stop{place}") }));
    text.push_str(&report::fields(&next));
    text
}

/// Returns the text that nothing is traced, with the reason.
fn off(reason: Option<&str>) -> String {
    match reason {
        Some(reason) => format!("off: {reason}"),
        None => "off (--tracing-startup-hook=local_tmp_tracing:setup_tracing turns it on)".to_owned(),
    }
}
