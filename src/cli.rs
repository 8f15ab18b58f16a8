//! The command line: one file for each subcommand, which holds its arguments, and `report`, which alone prints.

mod cancel;
mod connect;
mod explain;
mod get;
mod hooks;
mod list;
mod live_line;
mod modules;
mod report;
mod start;
mod status;
mod stop;
mod submit;
mod trace;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

use crate::exit;
use crate::task::WorkerId;

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
    disable_help_subcommand = true,
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
    "Exit codes:\n",
    "    0  it went well\n",
    "    1  the task failed, or something else did\n",
    "    2  the command line or the configuration is wrong\n",
    "    3  no head is running\n",
    "    4  the tracing hook was refused\n",
    "    5  a head is already running in this place\n",
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
    Status(status::Args),
    Submit(submit::Args),
    List(list::Args),
    Get(get::Args),
    Explain(explain::Args),
    Cancel(cancel::Args),
    Trace(trace::Args),
    Hooks(hooks::Args),
    Modules(modules::Args),
    /// The head itself, as `start` runs it in the background
    #[command(hide = true)]
    Head,
    /// The HTTP API, as the head runs it
    #[command(hide = true)]
    Http {
        session_dir: PathBuf,
        head_pid: u32,
    },
    /// A worker, as the head runs it
    #[command(hide = true)]
    Worker {
        session_dir: PathBuf,
        worker: WorkerId,
        head_pid: u32,
    },
}

/// Takes a path that may be empty: a variable that is set to nothing counts as not set.
fn path_parser() -> impl clap::builder::TypedValueParser<Value = PathBuf> {
    use clap::builder::TypedValueParser;
    clap::builder::OsStringValueParser::new().map(PathBuf::from)
}

/// Where the head is looked for.
#[derive(Clone, Debug, clap::Args)]
struct PlaceArgs {
    /// The folder of the head's sessions [default: /tmp/tracer-<uid>]
    #[arg(long, value_name = "DIR", env = crate::config::TEMP_DIR_VARIABLE, value_parser = path_parser())]
    temp_dir: Option<PathBuf>,
}

impl PlaceArgs {
    fn temp_dir(&self) -> PathBuf {
        self.temp_dir
            .clone()
            .filter(|path| !path.as_os_str().is_empty())
            .unwrap_or_else(crate::config::default_temp_dir)
    }
}

/// How a report is written.
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
    /// How to write the answer
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: Format,
}

/// What a subcommand ends with: the exit code, or an error to print and its exit code.
type CommandResult = Result<u8, CommandError>;

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
}

impl From<crate::driver::DriverError> for CommandError {
    fn from(error: crate::driver::DriverError) -> CommandError {
        use crate::driver::DriverError;
        use crate::session::SessionError;
        let exit_code = match &error {
            DriverError::Session(SessionError::NoHead { .. }) => exit::NO_HEAD,
            DriverError::Target { .. } => exit::USAGE,
            _ => exit::FAILED,
        };
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
    forget_empty_variables();
    let result = match Cli::parse().command {
        Command::Start(args) => start::run(args),
        Command::Stop(args) => stop::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Submit(args) => submit::run(args),
        Command::List(args) => list::run(&args),
        Command::Get(args) => get::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Cancel(args) => cancel::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Hooks(args) => hooks::run(&args),
        Command::Modules(args) => modules::run(&args),
        Command::Head => start::run_head(),
        Command::Http { session_dir, head_pid } => crate::serve::run(&session_dir, head_pid)
            .map(|()| exit::OK)
            .map_err(|error| CommandError::new(exit::FAILED, error)),
        Command::Worker { session_dir, worker, head_pid } => crate::worker::run(&session_dir, worker, head_pid)
            .map(|()| exit::OK)
            .map_err(|error| CommandError::new(exit::FAILED, error)),
    };
    ExitCode::from(result.unwrap_or_else(|failure| {
        report::error(failure.error.as_ref());
        failure.exit_code
    }))
}

/// A variable that is set to nothing counts as not set; the parser would take it for a value.
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

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_exit_codes_in_the_help_are_those_of_the_code() {
        assert!(LONG_EXAMPLES.ends_with(exit::HELP));
    }
}
