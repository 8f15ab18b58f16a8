//! `tracer submit`.

mod actor;
mod builds;
mod map;
mod options;

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::Subcommand;
use tracer_client::driver::{Driver, DriverError, SubmitRequest, TaskOutput, Ticket, split_target};
use tracer_client::search_path;
use tracer_core::count::Count;
use tracer_core::hex::hex;
use tracer_core::lock::lock;
use tracer_core::propagation::{self, Carrier};
use tracer_core::suggestion::shell_word;
use tracer_core::task::{
    ActorRole, AttemptReport, CommandSpec, Failure, FunctionSpec, Outcome, PastAttempts, TaskId, TaskOptions, TaskSpec,
    sort_resources,
};
use tracer_core::value::{self, JsonText};
use tracer_core::{ClusterTaskId, escape, exit, names};
use tracer_host::hook::{ActiveSpan, Attribute};
use tracer_ipc::protocol::{CancelWhich, CommandUsage, Finished, Query, Stream};
use tracer_process::standard_input::Offer;

use self::options::{Flags, OfCommand, OfFunction, Submits};
use super::live_line::LiveLine;
use super::{CommandError, CommandResult, Format, FormatArgs, PlaceArgs, live_line, report};

/// Run a function or a program, create or call an actor, and wait for the result
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  tracer submit task wordcount:count '\"the quick brown fox\"'
  tracer submit command -- python3 train.py")]
pub(super) struct Args {
    #[command(subcommand)]
    kind: SubmittedKind,
}

#[derive(Subcommand)]
enum SubmittedKind {
    /// Run a function of a module
    ///
    /// Prints its result as JSON. Its output while it runs appears on standard error. Exits with 1 if it fails, with
    /// 124 if it runs into --timeout.
    #[command(after_help = "\
Example:
  tracer submit task wordcount:count '\"the quick brown fox\"'
  tracer submit task demo:my_function --no-wait
  tracer submit task wordcount:count --map lines.txt --map-text
  tracer submit task demo:my_function --trace-runtime && tracer trace show last")]
    Task {
        /// The function, as `module:function`; the module is a name, or the path of its library
        #[arg(value_name = "MODULE:FUNCTION", default_value = "demo:my_function")]
        target: String,
        /// Its arguments, each as JSON
        #[arg(value_name = "ARG", allow_negative_numbers = true)]
        arguments: Vec<String>,
        #[command(flatten)]
        map: map::MapArgs,
        #[command(flatten)]
        common: CommonArgs<OfFunction>,
    },
    /// Create an actor: state in a worker of its own, with methods to call
    ///
    /// Prints its id when its `new` has returned. It lives on after that, until it is ended with `tracer cancel ID`, its worker is lost more
    /// often than --max-restarts allows, or the head stops: it is detached, as those of tasks and drivers are when they say so.
    #[command(after_help = "\
Example:
  tracer submit actor counter:Counter 0 --name hits --max-restarts 3
  tracer submit call hits increment 1
  tracer list actors")]
    Actor(actor::CreateArgs),
    /// Call a method of an actor
    ///
    /// Prints its result as JSON. Calls run in the order in which they were submitted, one at a time, save for those of `async` methods that
    /// take `&self`, which run beside each other.
    #[command(after_help = "\
Example:
  tracer submit call hits increment 1
  tracer submit call 7 get")]
    Call(actor::CallArgs),
    /// Run a program, without a shell
    ///
    /// Its standard output goes to standard output as it is, its standard error to standard error line by line. Its exit code becomes
    /// this command's; 124 if it runs into --timeout, 126 or 127 if it cannot be started, 128+n if signal n killed it. It runs in
    /// this folder, with TRACEPARENT, TRACESTATE and BAGGAGE of its own span.
    ///
    /// Its standard input is empty unless --stdin is given, so that a loop around it keeps its own. It is looked for in the PATH of this command. Its
    /// environment is that of the head, as it was when the head was started, with PATH and an active virtual environment from here, unless --inherit-env or --env
    /// is given. A command of a queue has those of the node that runs it.
    #[command(after_help = "\
Example:
  tracer submit command --env LEVEL=3 -- python3 train.py --epochs 10
  sort -u names | tracer submit command --stdin -- wc -l
  ls *.csv | tracer submit command --map - --keep-order -- wc -l {}")]
    Command {
        /// The program and its arguments
        #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
        /// Give it the standard input of this command: the pipe, file or terminal itself
        ///
        /// It reads as it would below a shell, and what it does not read stays there. It is started once: an attempt whose worker is lost is not
        /// tried again, because the beginning of the input is gone.
        #[arg(long, short = 'i',
              conflicts_with_all = ["no_wait", "retries", "retry_on", "crash_limit", "idempotency_key"])]
        stdin: bool,
        /// Set a variable in its environment, or with NAME alone take its value from here; may be repeated
        #[arg(long, value_name = "NAME[=VALUE]")]
        env: Vec<OsString>,
        /// Give it the whole environment of this command, in place of the head's; it is kept in the head's journal with the task
        #[arg(long)]
        inherit_env: bool,
        /// The folder it runs in [default: this one]
        #[arg(long, value_name = "DIR")]
        cwd: Option<PathBuf>,
        #[command(flatten)]
        map: map::CommandMapArgs,
        #[command(flatten)]
        common: CommonArgs<OfCommand>,
    },
}

/// Flags of all submissions.
#[derive(clap::Args)]
struct CommonArgs<Of: Submits> {
    /// Print the id as soon as it is accepted, and do not wait for it
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    flags: Flags<TaskOptions, Of>,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    format: FormatArgs,
}

/// The same, whatever is submitted, with options that were checked.
struct Common {
    no_wait: bool,
    options: TaskOptions,
    place: PlaceArgs,
    format: FormatArgs,
}

impl<Of: Submits> CommonArgs<Of> {
    fn checked(self) -> Result<Common, CommandError> {
        let CommonArgs { no_wait, flags, place, format } = self;
        let mut options = flags.options;
        let usage = |text: String| CommandError::new(exit::USAGE, text);
        if !options.retry_on.is_empty() && options.retries == 0 {
            let text = "`--retry-on` says which failures are tried again, but `--retries` says how often, and is 0\n(hint: add `--retries 3`)";
            return Err(usage(text.into()));
        }
        if let Some(problem) = options.memory.and_then(|bytes| tracer_settings::check_memory(bytes).err()) {
            return Err(usage(format!("`--memory`: {problem}")));
        }
        options.resource =
            sort_resources(options.resource).map_err(|problem| usage(format!("`--resource`: {problem}")))?;
        Ok(Common { no_wait, options, place, format })
    }
}

/// Bytes of a line that are shown without waiting for its end.
const LINE_LIMIT: usize = 8192;
/// Time that a second Ctrl-C waits for the head's answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// Time that a hook may take to deliver what it has queued when this process ends.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);
/// The same, when the head brings on what is left, for a hook that delivers in ways of which it does not tell.
const HANDOVER_AFTER: Duration = Duration::from_secs(2);
/// Age of this process up to which its spans are left to the head. Most submissions have ended by then, and exit without waiting for a collector.
const QUIET: Duration = Duration::from_secs(1);
/// Limits of the wait at the exit for answers that are due: a share of the life of this process, one of so many, and a time.
const PATIENCE_SHARE: u32 = 20;
const PATIENCE_MAX: Duration = Duration::from_millis(500);

pub(super) fn run(args: Args) -> CommandResult {
    match args.kind {
        SubmittedKind::Task { target, arguments, map, common } => {
            let (module, function) = split_target(&target)
                .map_err(|error| program_meant(&target, &arguments).unwrap_or_else(|| error.into()))?;
            let arguments = encode_arguments(&arguments)?;
            let module = absolute(module);
            if let Some(mapping) = map.mapping() {
                let spec = TaskSpec::Function(FunctionSpec::of_task(&module, function, &[]));
                let common = common.checked()?;
                let template = map::Template {
                    body: map::Body::Function { module: &module, function, arguments },
                    request: SubmitRequest::new(spec, &common.options),
                    temp_dir: &common.place.temp_dir(),
                    format: common.format.format,
                };
                return map::run(&template, &mapping);
            }
            let arguments = value::array(&arguments);
            let spec = TaskSpec::Function(FunctionSpec::of_task(&module, function, &arguments));
            submit(spec, false, &common.checked()?)
        }
        SubmittedKind::Actor(args) => actor::create(args),
        SubmittedKind::Call(args) => actor::call(args),
        SubmittedKind::Command { command, stdin, env, inherit_env, cwd, map, common } => {
            let mut common = common.checked()?;
            let mut environment = environment(&env, inherit_env)?;
            // One of a queue runs on any machine.
            if !inherit_env && common.options.queue.is_empty() {
                let head = tracer_ipc::session::find_head(&common.place.temp_dir());
                for (name, value) in head.map(|head| search_path::differing(head.pid)).unwrap_or_default() {
                    environment.entry(name.into()).or_insert(value);
                }
            }
            let variables = environment.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
            let here = std::env::current_dir()?;
            let directory = cwd.map_or_else(|| here.clone(), |cwd| here.join(cwd));
            let (program, arguments) = command.split_first().expect("clap asks for at least one");
            // All that follows the program is its own, so a flag that is not known is taken for it.
            if let Some(flag) = program.to_str().filter(|program| program.starts_with('-')) {
                let tip = super::parse::tip_for_flag("tracer submit command", flag).unwrap_or_else(|| {
                    "`tracer submit command --help` lists them; a program of that name is given by its path".into()
                });
                let text = format!("`{flag}` is no flag of `tracer submit command`\n(hint: {tip})");
                return Err(CommandError::new(exit::USAGE, text));
            }
            let arguments = arguments.iter().map(|argument| argument.as_bytes()).collect();
            let spec = CommandSpec {
                program: program.as_bytes(),
                arguments,
                environment: variables,
                replaces_environment: inherit_env,
                input: b"",
                directory: directory.as_os_str().as_bytes(),
            };
            if stdin {
                common.options.crash_limit = 0;
            }
            if let Some(mapping) = map.mapping() {
                let request = SubmitRequest::new(TaskSpec::Command(spec.clone()), &common.options);
                let template = map::Template {
                    body: map::Body::Command(spec),
                    request: SubmitRequest { wants_output: true, ..request },
                    temp_dir: &common.place.temp_dir(),
                    format: common.format.format,
                };
                return map::run(&template, &mapping);
            }
            submit(TaskSpec::Command(spec), stdin, &common)
        }
    }
}

/// Returns a module as the worker is to find it: a path is relative to this folder, not to the worker's.
fn absolute(module: &str) -> String {
    if !tracer_host::hook::is_path(module) {
        return module.to_owned();
    }
    let path = Path::new(module);
    std::path::absolute(path).unwrap_or_else(|_| path.into()).display().to_string()
}

/// Arguments are JSON, one each; they become MessagePack.
fn encode_arguments(arguments: &[String]) -> Result<Vec<Vec<u8>>, CommandError> {
    let mut values = Vec::with_capacity(arguments.len());
    for (index, text) in arguments.iter().enumerate() {
        let json: &serde_json::value::RawValue = serde_json::from_str(text).map_err(|_| {
            let quoted = serde_json::Value::from(text.as_str());
            let hint = format!("(hint: a text is written with quotes inside quotes: '{quoted}')");
            CommandError::new(exit::USAGE, format!("argument {} is not JSON: `{text}`\n{hint}", index + 1))
        })?;
        values.push(value::from_json(json).map_err(|error| CommandError::new(exit::USAGE, error))?);
    }
    Ok(values)
}

/// Returns the variables that a command gets from here, each once.
pub(super) fn environment(set: &[OsString], inherits: bool) -> Result<BTreeMap<OsString, OsString>, CommandError> {
    let mut variables = BTreeMap::new();
    if inherits {
        // Those of a trace are the command's own.
        let is_of_trace = |name: &OsString| propagation::VARIABLES.iter().any(|of_trace| name == of_trace);
        variables.extend(std::env::vars_os().filter(|(name, _)| !is_of_trace(name)));
    }
    for text in set {
        let refused = |problem: &str| {
            let text = text.to_string_lossy();
            Err(CommandError::new(exit::USAGE, format!("`--env` got `{text}`, {problem}")))
        };
        let bytes = text.as_bytes();
        let name = bytes.split(|&byte| byte == b'=').next().unwrap_or_default();
        if name.is_empty() {
            return refused("but takes NAME=VALUE, or NAME for the value that it has here");
        }
        let value = match bytes.get(name.len() + 1..) {
            Some(value) => OsStr::from_bytes(value).to_owned(),
            None => match std::env::var_os(text) {
                Some(value) => value,
                None => return refused("but no variable of that name is set here\n(hint: --env NAME=VALUE sets one)"),
            },
        };
        variables.insert(OsStr::from_bytes(name).to_owned(), value);
    }
    Ok(variables)
}

/// Submits, and waits for the end if that is asked for. A command gets the standard input of this process if `hands_input_over`.
fn submit(spec: TaskSpec<'_>, hands_input_over: bool, common: &Common) -> CommandResult {
    report::reserve_stdout()?;
    let mut driver = Driver::connect(&common.place.temp_dir())?;
    driver.keep_module_versions();
    start_tracing(&mut driver);
    let offer = match hands_input_over {
        true => Some(Offer::new(&driver.welcome().session_dir).map_err(|error| {
            CommandError::new(exit::FAILED, format!("the standard input cannot be offered to the command: {error}"))
        })?),
        false => None,
    };
    let mut spec = spec;
    if let (TaskSpec::Command(command), Some(offer)) = (&mut spec, &offer) {
        command.input = offer.path().as_os_str().as_bytes();
    }
    if let TaskSpec::Function(function) = &spec {
        builds::warn_of_others(&mut driver, function.module, &common.options.queue)?;
    }
    let job = driver.start_job();
    let trace_id = job.as_ref().filter(|job| job.is_recording()).map(|job| hex(&job.context().parent.trace_id));
    let target = spec.target();
    let is_command = matches!(spec, TaskSpec::Command(_));
    // A command that has the terminal as its input may draw there as it likes.
    let is_interactive = hands_input_over && std::io::stdin().is_terminal();
    let shows_line = common.format.format == Format::Text && !is_interactive && live_line::is_possible();
    let is_creation = matches!(spec.actor(), ActorRole::Create(_));
    // Before the task is accepted: from then on a Ctrl-C must not leave it running.
    let interrupts = if common.no_wait { None } else { Some(Interrupts::watch(common.place.temp_dir())?) };
    let request = SubmitRequest::new(spec.clone(), &common.options);
    let submitted = driver.submit(&SubmitRequest { wants_output: !common.no_wait, ..request });
    let mut accepted = None;
    let outcome = submitted.and_then(|task| {
        let id = driver.accepted(&task)?;
        accepted = Some(id);
        let Some(interrupts) = interrupts else { return Ok((id, None)) };
        interrupts.accepted(id);
        let line = shows_line.then(|| LiveLine::start(&common.place.temp_dir(), id, &target)).flatten();
        let finished =
            follow(&mut driver, task, &spec.short_name(), is_command && common.format.format == Format::Text)?;
        drop(line);
        Ok((id, Some((finished, interrupts.were_any()))))
    });
    end_job(job, &driver, &outcome);
    let (id, ended) = outcome.map_err(|error| match (accepted, error) {
        (Some(id), DriverError::Disconnected(_)) => CommandError::new(
            exit::FAILED,
            format!(
                "the connection to the head broke while task {id} had not ended\n(hint: the task is accepted, and a head that has died goes on with it when it is started again: \
                 see `tracer status`, then `tracer get {id} --wait`)"
            ),
        ),
        (_, error) => error.into(),
    })?;
    // What is printed of it any node understands.
    let place = driver.welcome().place_id.filter(|_| !common.options.queue.is_empty());
    let cluster_task_id = place.map(|place| ClusterTaskId { place, task: id }.to_string());
    let format = common.format.format;
    match ended {
        None => {
            if let Some(id) = cluster_task_id.as_ref().filter(|_| format == Format::Text) {
                report::talk(&format!("in the cluster it is task {id}: `get` and `cancel` take this id on any node"));
            }
            let accepted = Submitted { id, cluster_task_id, trace_id };
            report::value(format, &accepted, |accepted| accepted.id.to_string());
            Ok(exit::OK)
        }
        Some((Finished { outcome, past, usage, .. }, was_interrupted)) => {
            let finished = FinishedTask {
                id,
                cluster_task_id,
                target,
                trace_id,
                outcome,
                past,
                usage,
                was_interrupted,
                is_command,
                is_creation,
            };
            finished.report(format, common)
        }
    }
}

/// The answer of `--no-wait`.
#[derive(serde::Serialize)]
struct Submitted {
    id: TaskId,
    /// Its id in the cluster, if it is of a queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster_task_id: Option<String>,
    trace_id: Option<String>,
}

/// The answer of a function that was waited for.
#[derive(serde::Serialize)]
struct Returned {
    id: TaskId,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster_task_id: Option<String>,
    trace_id: Option<String>,
    result: JsonText,
    #[serde(skip_serializing_if = "Option::is_none")]
    result_loss: Option<String>,
}

/// Runs the session's hook here, and takes the trace of the shell over.
fn start_tracing(driver: &mut Driver) {
    // The hook writes where the head's processes write, and samples as they do, whatever the environment of this one says.
    for (name, value) in driver.take_over_environment() {
        let value = value.display();
        report::warning(&format!(
            "this command's spans may differ from the session's: `{name}` is `{value}` there, and could not be set here"
        ));
    }
    if let Some(failure) = driver.start_tracing_quietly(QUIET) {
        report::warning(&format!("the hook failed here, so tracer writes this command's spans itself: {failure}"));
    }
    for failure in driver.further_failures() {
        report::warning(&format!(
            "an additional hook failed here; it gets this command's spans through another process: {failure}"
        ));
    }
    let propagators = driver.welcome().tracing.propagators;
    let (carrier, rejections) = Carrier::from_env(|name| propagators.lookup(name, |name| std::env::var_os(name)));
    for rejection in rejections {
        report::warning(&rejection.to_string());
    }
    driver.set_parent(carrier, true);
}

/// Shows what the task writes, until it ends.
fn follow(driver: &mut Driver, task: Ticket, short_name: &str, passes_stdout: bool) -> Result<Finished, DriverError> {
    let mut pending: HashMap<Stream, (String, Vec<u8>)> = HashMap::new();
    let short_name = report::name(short_name);
    let prefix_of = |output: &TaskOutput| match (output.worker_pid, &*output.node_id) {
        (pid, "") => format!("({short_name} pid={pid}) "),
        // On another machine the process id alone says nothing.
        (pid, node) => format!("({short_name} pid={pid} node={}) ", report::name(node)),
    };
    let mut was_shared = false;
    let mut finished = driver.follow(task, |output| {
        if output.is_shared && !std::mem::replace(&mut was_shared, true) {
            report::talk(
                "note: other calls of this actor run beside this one, in one process; from here on what any of them writes \
                 meanwhile is shown",
            );
        }
        if output.lost.bytes > 0 {
            // What was begun has its end among what is lost.
            show_rest(&mut pending);
            report::talk(&format!(
                "note: {} of output did not arrive; they are in the log of node `{}`",
                Count(output.lost.lines.max(1), "line"),
                report::name(&output.node_id)
            ));
        }
        if passes_stdout && output.stream == Stream::Stdout {
            return report::raw(&output.bytes);
        }
        let (prefix, text) = pending.entry(output.stream).or_default();
        *prefix = prefix_of(&output);
        text.extend_from_slice(&output.bytes);
        let lines = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        if lines > 0 {
            report::task_lines(prefix, &text[..lines]);
            text.drain(..lines);
        }
        // A line without an end, such as a progress bar's, is shown in pieces.
        if text.len() > LINE_LIMIT {
            report::task_lines(prefix, &std::mem::take(text));
        }
    })?;
    show_rest(&mut pending);
    // It stays where it is, for `tracer get`.
    if let Outcome::Stored(stored) = &finished.outcome {
        finished.outcome = Outcome::Returned(driver.load(stored)?.into_bytes());
    }
    Ok(finished)
}

/// Shows what was written and has no end of line yet.
fn show_rest(pending: &mut HashMap<Stream, (String, Vec<u8>)>) {
    for (prefix, rest) in std::mem::take(pending).into_values().filter(|(_, rest)| !rest.is_empty()) {
        report::task_lines(&prefix, &rest);
    }
}

/// The id of what was submitted and, when it was waited for, how it ended and whether the wait was interrupted.
type Followed = Result<(TaskId, Option<(Finished, bool)>), DriverError>;

/// Ends the job's span with the outcome, and records it before this process ends.
fn end_job(job: Option<ActiveSpan>, driver: &Driver, outcome: &Followed) {
    let failure = match outcome {
        Ok((_, Some((Finished { outcome: Outcome::Failed(failure), .. }, _)))) => {
            Some((failure.error_type().to_string(), failure.to_string()))
        }
        Ok(_) => None,
        Err(error) => Some(("submission".to_owned(), error.to_string())),
    };
    let id = outcome.as_ref().ok().map(|(id, _)| (names::TASK_ID, Attribute::from(id.0)));
    close_job(job, driver, id.as_slice(), failure);
}

/// Ends the job's span, with the `error.type` and the message of a failure, and delivers this process's spans.
fn close_job(
    job: Option<ActiveSpan>,
    driver: &Driver,
    attributes: &[(&str, Attribute<'_>)],
    failure: Option<(String, String)>,
) {
    let Some(job) = job else { return };
    job.set_attributes(attributes);
    if let Some((error_type, message)) = failure {
        job.set_attributes(&[(names::ERROR_TYPE, Attribute::Str(&error_type))]);
        job.set_error(&message);
    }
    job.end();
    let Some(recorder) = driver.recorder() else { return };
    // What its exporters have not delivered by then, a worker's will.
    let ended = if recorder.hands_over() {
        let patience = (driver.age() / PATIENCE_SHARE).min(PATIENCE_MAX);
        recorder.hand_over_and_end(patience, HANDOVER_AFTER)
    } else {
        recorder.shutdown(SHUTDOWN_LIMIT)
    };
    if let Err(reason) = ended
        && !recorder.hands_over()
    {
        report::warning(&format!("this command's spans could not be delivered: {reason}"));
    }
}

/// A task that has ended.
struct FinishedTask {
    id: TaskId,
    cluster_task_id: Option<String>,
    target: String,
    trace_id: Option<String>,
    outcome: Outcome,
    past: Vec<AttemptReport>,
    /// Resources that a command used, if it ran.
    usage: Option<CommandUsage>,
    was_interrupted: bool,
    is_command: bool,
    is_creation: bool,
}

impl FinishedTask {
    fn report(self, format: Format, common: &Common) -> CommandResult {
        let failure = match &self.outcome {
            // What is stored was read when it was waited for.
            Outcome::Completed | Outcome::Stored(_) => {
                if format == Format::Json {
                    let report = serde_json::json!({
                        "id": self.id, "trace_id": self.trace_id, "exit_code": exit::OK, "usage": self.usage,
                    });
                    report::value(format, &report, |_| String::new());
                }
                return Ok(exit::OK);
            }
            Outcome::Returned(_) if self.is_creation => {
                let created = Submitted { id: self.id, cluster_task_id: None, trace_id: self.trace_id };
                report::value(format, &created, |created| created.id.to_string());
                return Ok(exit::OK);
            }
            Outcome::Returned(bytes) => {
                let result = JsonText::of(bytes).map_err(|error| CommandError::new(exit::FAILED, error))?;
                let result_loss = result.loss();
                if let Some(loss) = &result_loss {
                    report::warning(loss);
                }
                let Self { id, cluster_task_id, trace_id, .. } = self;
                let returned = Returned { id, cluster_task_id, trace_id, result, result_loss };
                match format {
                    Format::Text => report::json(returned.result.text()),
                    Format::Json => report::value(format, &returned, |_| String::new()),
                }
                return Ok(exit::OK);
            }
            Outcome::Failed(failure) => failure,
        };
        let exit_code = if self.was_interrupted { exit::INTERRUPTED } else { exit_code(failure) };
        // A program that says by its exit code that something is so has said it to the caller; there is nothing to add.
        let is_own_code = self.is_command && matches!(failure, Failure::ExitCode { .. });
        if format == Format::Json {
            let mut report = serde_json::json!({
                "id": self.id, "trace_id": self.trace_id, "failure": failure, "message": failure.to_string(),
                "past_attempts": self.past, "exit_code": exit_code,
            });
            if let Some(id) = &self.cluster_task_id {
                report["cluster_task_id"] = serde_json::json!(id);
            }
            if self.is_command {
                report["usage"] = serde_json::json!(self.usage);
            }
            report::value(format, &tracer_trace::json::with_times(&report), |_| String::new());
        } else if !is_own_code || !self.past.is_empty() {
            let place = PlaceArgs::flag(&common.place.temp_dir());
            let hint = match &self.trace_id {
                _ if *failure == Failure::Kept => {
                    let id = self.id;
                    format!(
                        "\n(hint: `tracer start --head{place}` goes on with it, and `tracer get{place} {id} --wait` waits for it)"
                    )
                }
                Some(trace_id) => {
                    format!("\n(hint: its trace: `tracer trace show{} {trace_id}`)", place)
                }
                None => String::new(),
            };
            let elsewhere = match failure {
                // A path of this machine is for its own head.
                Failure::Module { message } if self.cluster_task_id.is_none() => {
                    library_of_this_shell(&self.target, message).unwrap_or_default()
                }
                _ => String::new(),
            };
            let past = PastAttempts(&self.past);
            return Err(CommandError::new(
                exit_code,
                format!("task {} ({}) {}: {failure}{past}{elsewhere}{hint}", self.id, self.target, failure.predicate()),
            ));
        }
        Ok(exit_code)
    }
}

/// Returns what is said of a target that is no function but a script, or a program of the `PATH`, with the command line that is meant.
fn program_meant(target: &str, arguments: &[String]) -> Option<CommandError> {
    let interpreter = match Path::new(target).extension().and_then(OsStr::to_str) {
        Some("py") => Some("python3"),
        Some("sh") => Some("sh"),
        Some("js" | "mjs") => Some("node"),
        Some("rb") => Some("ruby"),
        Some("pl") => Some("perl"),
        _ => None,
    };
    let is_program = || {
        let path = std::env::var_os("PATH").unwrap_or_default();
        target.contains('/') && !target.ends_with(".so") && Path::new(target).is_file()
            || std::env::split_paths(&path).any(|folder| folder.join(target).is_file())
    };
    if target.is_empty() || interpreter.is_none() && !is_program() {
        return None;
    }
    let words = interpreter.into_iter().chain([target]).chain(arguments.iter().map(String::as_str));
    let words: Vec<_> = words.map(|word| escape::line(&shell_word(word)).into_owned()).collect();
    let text = format!(
        "a task is named `module:function`, but got `{target}`, which is a program\n(hint: `tracer submit command -- {}` runs it)",
        words.join(" ")
    );
    Some(CommandError::new(exit::USAGE, text))
}

/// Returns a hint for a module that was not found by the head's workers and is in `TRACER_MODULE_PATH` of this command. `target` is `module.function`,
/// and `message` names the folders that they have looked in, or the library that they have found there.
fn library_of_this_shell(target: &str, message: &str) -> Option<String> {
    let (module, _) = target.split_once('.')?;
    let path = std::env::var_os(tracer_settings::MODULE_PATH_VARIABLE)?;
    let library = std::env::split_paths(&path).map(|folder| folder.join(format!("lib{module}.so")));
    let library = library.into_iter().find(|library| library.is_file())?;
    let folder = std::path::absolute(library.parent()?).ok()?;
    if message.contains(&*folder.to_string_lossy()) {
        return None;
    }
    let library = library.display();
    Some(format!(
        "\n(hint: `{library}` is in TRACER_MODULE_PATH here, and the head was started without that folder: submit it as \
         `{library}:…`, or start the head again)"
    ))
}

/// Returns what `tracer` ends with when a task has failed like this.
pub(super) fn exit_code(failure: &Failure) -> u8 {
    match failure {
        Failure::ExitCode { code, .. } => u8::try_from(*code).unwrap_or(exit::FAILED),
        Failure::Signal { signal, .. } => exit::from_signal(*signal),
        Failure::TimedOut { .. } => exit::TIMED_OUT,
        Failure::NotStarted { is_missing: true, .. } => exit::NOT_FOUND,
        Failure::NotStarted { is_missing: false, .. } => exit::NOT_EXECUTABLE,
        _ => exit::FAILED,
    }
}

/// Ctrl-C while waiting: the first cancels the task, as soon as it is accepted; the second has it killed, and leaves at once.
struct Interrupts {
    temp_dir: PathBuf,
    state: Arc<Mutex<InterruptState>>,
}

#[derive(Default)]
struct InterruptState {
    count: u32,
    accepted: Option<TaskId>,
}

impl Interrupts {
    fn watch(temp_dir: PathBuf) -> std::io::Result<Interrupts> {
        let (mut signals, signal_tx) = UnixStream::pair()?;
        signal_hook::low_level::pipe::register(signal_hook::consts::SIGINT, signal_tx.try_clone()?)?;
        signal_hook::low_level::pipe::register(signal_hook::consts::SIGTERM, signal_tx)?;
        let interrupts = Interrupts { temp_dir: temp_dir.clone(), state: Arc::default() };
        let state = Arc::clone(&interrupts.state);
        std::thread::Builder::new().name("interrupts".into()).spawn(move || {
            let mut byte = [0];
            while signals.read_exact(&mut byte).is_ok() {
                let (count, accepted) = {
                    let mut state = lock(&state);
                    state.count += 1;
                    (state.count, state.accepted)
                };
                match accepted {
                    Some(id) if count == 1 => cancel(&temp_dir, id),
                    Some(id) if count == 2 => kill_and_leave(temp_dir.clone(), id),
                    None if count == 1 => {}
                    // What this process has not finished of its trace, the head finishes.
                    _ => leave(),
                }
            }
        })?;
        Ok(interrupts)
    }

    /// Notes that the task exists from now on. It is cancelled if that was asked for before.
    fn accepted(&self, id: TaskId) {
        let was_interrupted = {
            let mut state = lock(&self.state);
            state.accepted = Some(id);
            state.count > 0
        };
        if was_interrupted {
            cancel(&self.temp_dir, id);
        }
    }

    fn were_any(&self) -> bool {
        lock(&self.state).count > 0
    }
}

fn cancel(temp_dir: &Path, id: TaskId) {
    report::talk(&format!("cancelling task {id} (Ctrl-C again ends it at once)"));
    if let Err(error) = ask_to_cancel(temp_dir, id, None) {
        report::warning(&format!("task {id} could not be cancelled: {error}"));
    }
}

fn ask_to_cancel(temp_dir: &Path, id: TaskId, grace_ms: Option<u64>) -> Result<(), DriverError> {
    let query = Query::Cancel { which: CancelWhich::Ids(vec![id]), grace_ms };
    Driver::connect(temp_dir).and_then(|mut driver| driver.query(&query)).map(drop)
}

/// Ends this process with a terminal that shows no line of it.
fn leave() -> ! {
    live_line::end();
    std::process::exit(exit::INTERRUPTED.into())
}

/// Has the task killed, and ends this process, which does not wait for a head that does not answer. What is not finished of this
/// process's trace, the head finishes.
fn kill_and_leave(temp_dir: PathBuf, id: TaskId) {
    report::talk(&format!("ending task {id} at once"));
    let (asked_tx, asked) = std::sync::mpsc::channel();
    std::thread::spawn(move || asked_tx.send(ask_to_cancel(&temp_dir, id, Some(0))));
    match asked.recv_timeout(ANSWER_LIMIT) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => report::warning(&format!("task {id} could not be ended: {error}")),
        Err(_) => report::warning(&format!("the head does not answer, so task {id} may run on")),
    }
    leave();
}
