//! The command line: one file for each subcommand, which holds its arguments, and `report`, which alone prints.

mod cancel;
mod cluster;
mod completions;
mod connect;
mod doctor;
#[cfg(test)]
mod documentation;
mod elsewhere;
mod engine;
mod explain;
mod get;
mod hints;
mod hooks;
mod list;
mod live_line;
mod logs;
mod man;
mod modules;
mod named;
mod new;
mod parse;
mod prune;
mod report;
mod restart;
mod serve;
mod start;
mod status;
mod stop;
mod submit;
mod top;
mod trace;
mod view;
mod wait;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use clap::{Args as _, Parser, Subcommand, ValueEnum};
use tracer_client::driver::DriverError;
use tracer_core::exit;
use tracer_core::suggestion::shell_word;
use tracer_core::task::WorkerId;
use tracer_engine::process::OwnNode;
use tracer_host::static_tls;

/// Launches tasks, and every task is a trace.
#[derive(Parser)]
#[command(
    name = "tracer",
    version,
    about = "Launches tasks, and every task is a trace",
    long_about = "Launches tasks, and every task is a trace.\n\n\
        A head runs in the background and keeps worker processes. Tasks are functions of shared libraries, or programs. \
        Every submission and execution is an OpenTelemetry span, set up by a hook of your own.",
    after_help = EXAMPLES,
    after_long_help = LONG_EXAMPLES,
    subcommand_required = true,
    arg_required_else_help = true,
    max_term_width = 100
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Example:
  tracer start --head --tracing-startup-hook=local_tmp_tracing:setup_tracing
  tracer submit task demo:my_function
  tracer trace show last
  tracer stop";

const LONG_EXAMPLES: &str = concat!(
    "Example:\n",
    "  tracer start --head --tracing-startup-hook=local_tmp_tracing:setup_tracing\n",
    "  tracer submit task demo:my_function\n",
    "  tracer trace show last\n",
    "  tracer stop\n\n",
    "Results alone go to standard output, all else to standard error.\n\n",
    "A DURATION is a number and its unit: 500ms, 10s, 2m, 1h. A number alone is in\n",
    "seconds, and refused where something would be removed. A SIZE has a unit too:\n",
    "500MiB, 2GiB.\n\n",
    "Exit codes:\n",
    "    0  it went well\n",
    "    1  the task failed, or the command could not do what it was asked\n",
    "    2  the command line or the configuration is wrong\n",
    "    3  no head is running\n",
    "    4  the tracing hook was refused\n",
    "    5  a head is already running in this place\n",
    "    6  `doctor` found something to mend, and no error\n",
    "  124  it timed out\n",
    "  126  the program cannot be executed\n",
    "  127  the program was not found\n",
    "128+n  the program was killed by signal n\n",
    "  130  interrupted with Ctrl-C"
);

#[derive(Subcommand)]
enum Command {
    Start(start::Args),
    Stop(stop::Args),
    Restart(restart::Args),
    Status(status::Args),
    Submit(submit::Args),
    List(list::Args),
    Get(get::Args),
    Wait(wait::Args),
    Explain(explain::Args),
    Cancel(cancel::Args),
    Trace(trace::Args),
    View(view::Args),
    Top(top::Args),
    Serve(serve::Args),
    Logs(logs::Args),
    Modules(modules::Args),
    Hooks(hooks::Args),
    New(new::Args),
    Prune(prune::Args),
    Doctor(doctor::Args),
    Engine(engine::Args),
    Completions(completions::Args),
    Man(man::Args),
    /// Print the version
    Version(FormatArgs),
    #[command(hide = true)]
    Complete(completions::CompleteArgs),
    #[command(hide = true)]
    Agent(AgentArgs),
    #[command(hide = true)]
    Head(HeadArgs),
    #[command(hide = true)]
    FinishPlace(FinishPlaceArgs),
    #[command(hide = true)]
    Http(HttpArgs),
    #[command(hide = true)]
    Proxy(ProxyArgs),
    #[command(hide = true)]
    Replica(ReplicaArgs),
    #[command(hide = true)]
    Worker(WorkerArgs),
}

/// The agent, as the head runs it; or an engine tried out, as `start` does
#[derive(clap::Args)]
struct AgentArgs {
    #[arg(long, requires = "head_pid", required_unless_present = "try_out")]
    session: Option<PathBuf>,
    #[arg(long)]
    head_pid: Option<u32>,
    #[arg(long = "try", value_name = "ACCESS", conflicts_with = "session")]
    try_out: Option<String>,
    /// The place whose node it is to be
    #[arg(long, requires = "node_id")]
    place: Option<tracer_core::PlaceId>,
    #[arg(long)]
    node_id: Option<String>,
    /// The number of the life of the last head of that place
    #[arg(long, requires = "place", default_value_t = 0)]
    last_life: u64,
    /// The folder of the place is another one than that of its last head
    #[arg(long, requires = "place")]
    was_moved: bool,
    #[arg(long)]
    shared_commands: bool,
    /// Everything that the node has for tasks
    #[arg(long, value_name = "BOUND", value_parser = parse_bound)]
    has: Option<tracer_core::queue::QueueBound>,
    queues: Vec<String>,
}

fn parse_bound(text: &str) -> Result<tracer_core::queue::QueueBound, String> {
    tracer_core::queue::QueueBound::decode(text).ok_or_else(|| format!("`{text}` is no bound"))
}

impl AgentArgs {
    fn run(&self) -> CommandResult {
        let failed = |error: Box<dyn std::error::Error>| CommandError::new(exit::FAILED, error);
        if let Some(access) = &self.try_out {
            let access = serde_json::from_str(access).map_err(|error| failed(error.into()))?;
            let node = self.place.zip(self.node_id.as_deref());
            let node = node.map(|(place, node_id)| OwnNode {
                place,
                node_id,
                last_life: self.last_life,
                was_moved: self.was_moved,
            });
            let queues =
                tracer_engine::interface::Queues { names: self.queues.clone(), shared_commands: self.shared_commands };
            let findings =
                tracer_engine::process::try_out(&access, &queues, node, &self.has.clone().unwrap_or_default());
            for finding in findings.map_err(|error| failed(error.into()))? {
                report::text(&format!(
                    "{}\n",
                    serde_json::json!(format!("{}\n(hint: {})", finding.text, finding.hint))
                ));
            }
            return Ok(exit::OK);
        }
        let (Some(session), Some(head_pid)) = (&self.session, self.head_pid) else {
            return Err(failed("the agent is started by a head only".into()));
        };
        if !tracer_process::parent::die_with(head_pid)? {
            return Err(failed("the agent is started by a head only, which is not this one's parent".into()));
        }
        tracer_engine::process::run(session).map(|()| exit::OK).map_err(|error| failed(error.into()))
    }
}

/// The head itself, as `start` runs it in the background
#[derive(clap::Args)]
struct HeadArgs {
    /// The number of a file with the state of a head of another version, in whose place it goes on
    #[arg(long)]
    go_on: Option<i32>,
}

/// Finish the place of a head whose program has died
#[derive(clap::Args)]
struct FinishPlaceArgs {
    temp_dir: PathBuf,
    spans_dir: Option<PathBuf>,
}

/// The HTTP API, as the head runs it
#[derive(clap::Args)]
struct HttpArgs {
    session_dir: PathBuf,
    head_pid: u32,
    log_limit: u64,
}

/// The proxy of a service, as the head runs it
#[derive(clap::Args)]
struct ProxyArgs {
    session_dir: PathBuf,
    head_pid: u32,
}

/// A replica of a service, as the head runs it
#[derive(clap::Args)]
struct ReplicaArgs {
    session_dir: PathBuf,
    head_pid: u32,
}

/// A worker, as the head runs it
#[derive(clap::Args)]
struct WorkerArgs {
    session_dir: PathBuf,
    worker: WorkerId,
    head_pid: u32,
}

/// Returns the command line with this subcommand alone, for a line that names it: what the others take is not built, which would be most of
/// the time that a short command needs.
fn command_with_only(name: &str) -> Option<clap::Command> {
    type Augment = fn(clap::Command) -> clap::Command;
    const SUBCOMMANDS: [(&str, Augment); 31] = [
        ("start", start::Args::augment_args),
        ("stop", stop::Args::augment_args),
        ("restart", restart::Args::augment_args),
        ("status", status::Args::augment_args),
        ("submit", submit::Args::augment_args),
        ("list", list::Args::augment_args),
        ("get", get::Args::augment_args),
        ("wait", wait::Args::augment_args),
        ("explain", explain::Args::augment_args),
        ("cancel", cancel::Args::augment_args),
        ("trace", trace::Args::augment_args),
        ("view", view::Args::augment_args),
        ("top", top::Args::augment_args),
        ("serve", serve::Args::augment_args),
        ("logs", logs::Args::augment_args),
        ("modules", modules::Args::augment_args),
        ("hooks", hooks::Args::augment_args),
        ("new", new::Args::augment_args),
        ("prune", prune::Args::augment_args),
        ("doctor", doctor::Args::augment_args),
        ("engine", engine::Args::augment_args),
        ("completions", completions::Args::augment_args),
        ("man", man::Args::augment_args),
        ("complete", completions::CompleteArgs::augment_args),
        ("agent", AgentArgs::augment_args),
        ("head", HeadArgs::augment_args),
        ("finish-place", FinishPlaceArgs::augment_args),
        ("http", HttpArgs::augment_args),
        ("proxy", ProxyArgs::augment_args),
        ("replica", ReplicaArgs::augment_args),
        ("worker", WorkerArgs::augment_args),
    ];
    let (name, augment) = SUBCOMMANDS.iter().find(|(known, _)| *known == name)?;
    Some(clap::Command::new("tracer").subcommand_required(true).subcommand(augment(clap::Command::new(*name))))
}

/// Takes a path that may be empty: a variable that is set to nothing counts as not set.
fn path_parser() -> impl clap::builder::TypedValueParser<Value = PathBuf> {
    use clap::builder::TypedValueParser;
    clap::builder::OsStringValueParser::new().map(PathBuf::from)
}

/// Place in which the head is looked for.
#[derive(Clone, Debug, clap::Args)]
struct PlaceArgs {
    /// The folder of the head's sessions [default: /tmp/tracer-<uid>]
    #[arg(long, value_name = "DIR", env = tracer_ipc::environment::TEMP_DIR_VARIABLE, value_parser = path_parser())]
    temp_dir: Option<PathBuf>,
}

impl PlaceArgs {
    /// ` --temp-dir DIR` for a command that is to find the same head; nothing where the default or the environment finds it.
    fn flag(temp_dir: &std::path::Path) -> String {
        let of_environment = std::env::var_os(tracer_ipc::environment::TEMP_DIR_VARIABLE).map(PathBuf::from);
        let found = of_environment
            .filter(|path| !path.as_os_str().is_empty())
            .unwrap_or_else(tracer_ipc::environment::default_temp_dir);
        match found == temp_dir || std::path::absolute(&found).is_ok_and(|found| found == temp_dir) {
            true => String::new(),
            false => format!(" --temp-dir {}", shell_word(&temp_dir.display().to_string())),
        }
    }

    fn temp_dir(&self) -> PathBuf {
        self.temp_dir
            .clone()
            .filter(|path| !path.as_os_str().is_empty())
            .unwrap_or_else(tracer_ipc::environment::default_temp_dir)
    }
}

/// Form of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// Chooses the format.
#[derive(Clone, Copy, Debug, clap::Args)]
struct FormatArgs {
    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: Format,
}

/// Result of a subcommand: the exit code, or an error to print and its exit code.
type CommandResult = Result<u8, CommandError>;

impl Command {
    /// Returns whether the exit code says how something has ended, which a closed output does not change.
    fn is_about_an_end(&self) -> bool {
        match self {
            Command::Submit(_) | Command::Wait(_) | Command::Get(_) | Command::Cancel(_) => true,
            Command::Start(_) | Command::Stop(_) | Command::Restart(_) | Command::Serve(_) => true,
            Command::Doctor(_) | Command::Hooks(_) | Command::Engine(_) => true,
            Command::Trace(args) => args.is_check(),
            _ => false,
        }
    }

    /// Returns whether this process may load several modules.
    fn loads_modules(&self) -> bool {
        match self {
            Command::Hooks(_) | Command::Modules(_) | Command::Serve(_) => true,
            Command::List(args) => args.loads_modules(),
            _ => false,
        }
    }
}

/// An error as `--format json` writes it.
#[derive(serde::Serialize)]
struct ErrorReport {
    error: ErrorFields,
}

#[derive(serde::Serialize)]
struct ErrorFields {
    /// Kind of the error, one for each exit code.
    kind: &'static str,
    /// The head's reason, if it was the head that refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    message: String,
    /// The next step.
    hint: Option<String>,
    exit_code: u8,
}

/// An error for the user, with the exit code it leads to.
#[derive(Debug)]
struct CommandError {
    error: Box<dyn std::error::Error>,
    exit_code: u8,
}

impl CommandError {
    fn new(exit_code: u8, error: impl Into<Box<dyn std::error::Error>>) -> CommandError {
        CommandError { error: error.into(), exit_code }
    }

    /// Returns the error for programs.
    fn report(&self) -> ErrorReport {
        let kind = match self.exit_code {
            exit::USAGE => "usage",
            exit::NO_HEAD => "no_head",
            exit::HOOK_REFUSED => "hook_refused",
            exit::HEAD_RUNNING => "head_running",
            exit::TIMED_OUT => "timed_out",
            exit::INTERRUPTED => "interrupted",
            _ => "failed",
        };
        let (message, hints) = match self.error.downcast_ref::<parse::Mistake>() {
            Some(mistake) => (mistake.message.clone(), mistake.tips.clone()),
            None => parse::split_hints(&hints::with_place(&tracer_core::causes::with_causes(self.error.as_ref()))),
        };
        let hint = (!hints.is_empty()).then(|| hints.join("\n"));
        let code = match self.error.downcast_ref() {
            Some(DriverError::Refused(refusal)) => Some(refusal.code.name()),
            _ => self.error.downcast_ref().map(|refused: &serve::Refused| refused.0.code.name()),
        };
        ErrorReport { error: ErrorFields { kind, code, message, hint, exit_code: self.exit_code } }
    }
}

impl From<DriverError> for CommandError {
    fn from(error: DriverError) -> CommandError {
        use tracer_ipc::session::SessionError;
        let exit_code = match &error {
            DriverError::Session(SessionError::NoHead { .. }) => exit::NO_HEAD,
            DriverError::Target { .. } => exit::USAGE,
            _ => exit::FAILED,
        };
        CommandError::new(exit_code, error)
    }
}

impl From<tracer_trace::FindError> for CommandError {
    fn from(error: tracer_trace::FindError) -> CommandError {
        use tracer_trace::FindError;
        let exit_code = if matches!(error, FindError::NotAnId { .. }) { exit::USAGE } else { exit::FAILED };
        CommandError::new(exit_code, error)
    }
}

impl From<std::io::Error> for CommandError {
    fn from(error: std::io::Error) -> CommandError {
        CommandError::new(exit::FAILED, error)
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let has_room = restore_tunables();
    forget_empty_variables();
    tracer_host::hook::log_to_standard_error();
    let arguments: Vec<_> = std::env::args_os().collect();
    let format = parse::wanted_format(&arguments);
    let cli = match parse::parse(&arguments) {
        Ok(cli) => cli,
        Err(parse::NotParsed::Answered(answer)) => answer.exit(),
        Err(parse::NotParsed::Mistake(mistake)) => {
            return ExitCode::from(report::failure(format, &CommandError::new(exit::USAGE, mistake)));
        }
    };
    if cli.command.is_about_an_end() {
        report::outlive_outputs();
    }
    if !has_room && cli.command.loads_modules() {
        execute_with_room(&arguments);
    }
    let result = match cli.command {
        Command::Start(args) => start::run(args),
        Command::Stop(args) => stop::run(&args),
        Command::Restart(args) => restart::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Submit(args) => submit::run(args),
        Command::List(args) => list::run(&args),
        Command::Get(args) => get::run(&args),
        Command::Wait(args) => wait::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Cancel(args) => cancel::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::View(args) => view::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Hooks(args) => hooks::run(&args),
        Command::Serve(args) => serve::run(args),
        Command::Logs(args) => logs::run(&args),
        Command::Modules(args) => modules::run(&args),
        Command::Version(_) => {
            report::value(format, &serde_json::json!({ "version": tracer_ipc::VERSION }), |_| {
                format!("tracer {}", tracer_ipc::VERSION)
            });
            Ok(exit::OK)
        }
        Command::New(args) => new::run(&args),
        Command::Prune(args) => prune::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Engine(args) => engine::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
        Command::Complete(args) => completions::run_complete(&args),
        Command::Agent(args) => args.run(),
        Command::Head(HeadArgs { go_on }) => start::run_head(go_on),
        Command::FinishPlace(args) => start::run_finish(&args.temp_dir, args.spans_dir),
        Command::Http(args) => tracer_web::http_api::run(&args.session_dir, args.head_pid, args.log_limit)
            .map(|()| exit::OK)
            .map_err(|error| CommandError::new(exit::FAILED, error)),
        Command::Proxy(args) => tracer_serving::proxy::run(&args.session_dir, args.head_pid)
            .map(|()| exit::OK)
            .map_err(|error| CommandError::new(exit::FAILED, error)),
        Command::Replica(args) => tracer_worker::replica::run(&args.session_dir, args.head_pid)
            .map(|()| exit::OK)
            .map_err(|error| CommandError::new(exit::FAILED, error)),
        Command::Worker(args) => tracer_worker::run(&args.session_dir, args.worker, args.head_pid)
            .map(|()| exit::OK)
            .map_err(|error| CommandError::new(exit::FAILED, error)),
    };
    ExitCode::from(result.unwrap_or_else(|failure| report::failure(format, &failure)))
}

/// True if this process was started without a standard output.
static HAD_NO_STDOUT: AtomicBool = AtomicBool::new(false);

/// Returns whether this process was started without a standard output. The library of Rust then opens `/dev/null` in its place, before `main`.
fn had_no_stdout() -> bool {
    HAD_NO_STDOUT.load(Relaxed)
}

/// Looks for the standard output. It runs before the library of Rust has done anything.
extern "C" fn check_stdout() {
    // SAFETY: it only asks the kernel about a number.
    HAD_NO_STDOUT.store(unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) } < 0, Relaxed);
}

// SAFETY: the loader calls what is in this section once, with one thread, before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static CHECK_STDOUT: extern "C" fn() = check_stdout;

/// Puts back what the tunables were before this process was executed with room for libraries, and returns whether it was.
fn restore_tunables() -> bool {
    let Some(before) = std::env::var_os(static_tls::BEFORE_VARIABLE) else { return false };
    // SAFETY: this process has one thread yet.
    unsafe {
        std::env::remove_var(static_tls::BEFORE_VARIABLE);
        if before.is_empty() {
            std::env::remove_var(static_tls::TUNABLES_VARIABLE);
        } else {
            std::env::set_var(static_tls::TUNABLES_VARIABLE, before);
        }
    }
    true
}

/// Executes this command once more, in this process, with room for libraries. Where that cannot be done it goes on without.
fn execute_with_room(arguments: &[std::ffi::OsString]) {
    use std::os::unix::process::CommandExt;
    let Ok(program) = std::env::current_exe() else { return };
    let mut command = std::process::Command::new(program);
    command.args(arguments.iter().skip(1));
    static_tls::reserve(&mut command);
    // Without a standard output it would seem to have one: that of the first life.
    if command.get_envs().len() > 0 && !had_no_stdout() {
        if let Some(name) = arguments.first() {
            command.arg0(name);
        }
        let _ = command.exec();
    }
}

/// Removes variables that are set to nothing, which count as not set; the parser would take them for values.
fn forget_empty_variables() {
    let is_ours = |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(b"TRACER_");
    let variables: Vec<_> = std::env::vars_os().filter(|(name, value)| value.is_empty() && is_ours(name)).collect();
    for (name, _) in variables {
        // SAFETY: this process has one thread yet.
        unsafe { std::env::remove_var(name) };
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use tracer_core::problem::Problem;
    use tracer_core::task::{Failure, Refusal, RefusalCode};

    use super::*;

    const GUIDE: &str = include_str!("guide/json.md");

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_subcommand_is_the_same_when_it_is_built_alone() {
        let all = Cli::command();
        for subcommand in all.get_subcommands().filter(|subcommand| subcommand.get_name() != "version") {
            let name = subcommand.get_name();
            let mut alone = command_with_only(name).unwrap_or_else(|| panic!("`{name}` is not built alone"));
            let alone = alone.find_subcommand_mut(name).expect("it has the one");
            let text = |command: &mut clap::Command| command.render_long_help().to_string();
            assert_eq!(text(alone), text(&mut subcommand.clone()), "{name}");
        }
        assert!(command_with_only("version").is_none() && command_with_only("strat").is_none());
    }

    #[test]
    fn every_interface_tells_refusals_by_their_code() {
        let (plain, later) = ((422, "refused", exit::FAILED), (503, "unavailable", exit::FAILED));
        for code in RefusalCode::ALL {
            let (status, problem, exit_code) = match code {
                RefusalCode::Stopping
                | RefusalCode::JournalFailed
                | RefusalCode::QueueFull
                | RefusalCode::EngineUnreachable => later,
                RefusalCode::KeyTaken => (422, "idempotency-key-taken", exit::FAILED),
                RefusalCode::ProtocolVersion
                | RefusalCode::UnknownWorker
                | RefusalCode::ImpossibleDemand
                | RefusalCode::UnknownSubmitter
                | RefusalCode::NameTaken
                | RefusalCode::NoEngine
                | RefusalCode::QueueRefused
                | RefusalCode::Other => plain,
            };
            let name = code.name();
            // A text that begins as that of another code.
            let refusal = Refusal::new(code, "the queue is full\n(hint: wait)");
            let over_http = Problem::of_refusal(refusal.clone()).face();
            assert_eq!(over_http, (status, problem, Some(name), status == 503));
            let row = format!("| `{name}` | {status} `{problem}` |");
            assert!(GUIDE.lines().any(|line| line.starts_with(&row)), "the guide has no {row}");
            let error_type = if code == RefusalCode::Other { "refused".to_owned() } else { format!("refused:{name}") };
            assert_eq!(Failure::from(refusal.clone()).error_type(), error_type);
            let report = CommandError::from(DriverError::Refused(refusal)).report().error;
            let told = (report.kind, report.code, report.exit_code, &*report.message);
            assert_eq!(told, ("failed", Some(name), exit_code, "the head refused: the queue is full"));
        }
        let report = CommandError::new(exit::USAGE, "no").report().error;
        assert_eq!((report.code, report.exit_code), (None, exit::USAGE));
    }

    #[test]
    fn the_exit_codes_in_the_help_are_those_of_the_code() {
        assert!(LONG_EXAMPLES.ends_with(exit::HELP));
    }
}
