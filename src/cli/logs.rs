//! `tracer logs`.

mod replica;
mod task;

use std::time::Duration;

use tracer_core::clock::now_unix_nano;
use tracer_core::exit;
use tracer_trace::log_entries::Origin;

use super::trace::SourceArgs;
use super::{CommandError, CommandResult, FormatArgs};

/// Show what a task, the tasks of a trace, or a replica has written and logged
///
/// Of a task: the lines that its attempts wrote to standard output and standard error, and the log records that were made in them (`tracing`, `log`, and
/// what its programs send by OTLP), in the order of their times; also after its end and without a head, for as long as the logs of its session and the
/// span files are kept (`--max-log-size`, `tracer prune`). A record is shown as its severity, the span that it is in, its message and its attributes.
/// Of an actor: what its creation and its methods wrote. Calls of an actor that run beside each other share their output, which counts for the actor.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  tracer logs last\n  tracer logs 7 --follow\n  tracer logs 7 --tail 20\n  tracer logs --trace last --grep error\n  tracer logs 7 --level warn\n  tracer logs app#1 --follow"
)]
pub(super) struct Args {
    /// The task's id, `last`, the name of an actor, or a replica as `tracer list replicas` names it (`SERVICE/REPLICA` where several services have
    /// one of that name)
    #[arg(required_unless_present = "trace")]
    id: Option<String>,
    /// The tasks of a trace: the beginning of its id, or `last`
    #[arg(long, value_name = "ID", conflicts_with = "id")]
    trace: Option<String>,
    /// Go on with what comes, until the task or the replica has ended; of a trace, until Ctrl-C
    #[arg(short, long)]
    follow: bool,
    /// Only lines and messages that contain this text
    #[arg(long, value_name = "TEXT")]
    grep: Option<String>,
    /// Only what was written to this output, or only log records
    #[arg(long, value_name = "OUTPUT")]
    stream: Option<StreamName>,
    /// Only log records of at least this severity
    #[arg(long, value_name = "LEVEL")]
    level: Option<Level>,
    /// Only the newest lines and log records, so many; with --follow, these and what comes
    #[arg(short = 'n', long, value_name = "N")]
    tail: Option<usize>,
    /// Only what is as old as this or newer: a duration before now, such as `10m`, or a time, such as `2026-11-20T19:00:00Z`
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    since: Option<Time>,
    /// Only what is older than this: a duration before now, or a time
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    until: Option<Time>,
    /// Put the time before each line
    #[arg(long)]
    times: bool,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    format: FormatArgs,
}

/// A time, in nanoseconds since the Unix epoch.
#[derive(Clone, Copy)]
struct Time(u64);

fn parse_time(text: &str) -> Result<Time, String> {
    tracer_trace::parse_time(text, now_unix_nano()).map(Time).ok_or_else(|| {
        "expected a duration before now, such as `10m`, or a time, such as `2026-11-20T19:00:00Z`".to_owned()
    })
}

/// An output of a process.
#[derive(Clone, Copy, clap::ValueEnum)]
enum StreamName {
    /// Standard output
    Stdout,
    /// Standard error
    Stderr,
    /// Log records
    Record,
}

/// Severity of a log record.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Level {
    Trace,
    Debug,
    Info,
    Warn,
    Error,
    Fatal,
}

impl Level {
    /// Returns the least number that it has in OpenTelemetry.
    fn severity(self) -> u8 {
        self as u8 * 4 + 1
    }
}

impl StreamName {
    fn origin(self) -> Origin {
        match self {
            StreamName::Stdout => Origin::Stdout,
            StreamName::Stderr => Origin::Stderr,
            StreamName::Record => Origin::Record,
        }
    }
}

/// Interval between two reads of new lines.
const INTERVAL: Duration = Duration::from_millis(100);

pub(super) fn run(args: &Args) -> CommandResult {
    match &args.id {
        Some(name) if name.contains('#') => {
            refuse_for_replica(args)?;
            replica::run(args, name)
        }
        _ => task::run(args),
    }
}

/// Refuses what a replica's log cannot tell.
fn refuse_for_replica(args: &Args) -> Result<(), CommandError> {
    let given = [
        (args.stream.is_some(), "--stream"),
        (args.times, "--times"),
        (args.grep.is_some(), "--grep"),
        (args.level.is_some(), "--level"),
        (args.since.is_some(), "--since"),
        (args.until.is_some(), "--until"),
        (args.format.format == super::Format::Json, "--format json"),
    ];
    match given.iter().find(|(is_given, _)| *is_given) {
        Some((_, flag)) => Err(CommandError::new(
            exit::USAGE,
            format!("`{flag}` is for the output of tasks; a replica's is shown as it was written"),
        )),
        None => Ok(()),
    }
}
