//! `tracer cancel`.

use std::fmt;
use std::time::Duration;

use tracer_client::driver::Driver;
use tracer_core::duration::parse_duration;
use tracer_core::exit;
use tracer_core::task::TaskId;
use tracer_ipc::protocol::{CancelReport, CancelWhich, Query, Reply};

use super::connect::unexpected_reply;
use super::named::NamedTask;
use super::{CommandError, CommandResult, FormatArgs, PlaceArgs, report};

/// End tasks that wait or run
///
/// A task that waits will not run, also when a worker has it already and has not begun it. One that runs is ended in steps, each of
/// which `tracer list tasks` shows: a function is asked (cancelling: the future of an async function is dropped, others ask
/// `runtime_context().is_cancelled()`), then gets SIGTERM (terminating), then SIGKILL (killing) with its worker, which is
/// replaced, and everything that it started. A command gets SIGTERM at once, then SIGKILL. No other task is touched.
///
/// A task that another node has put into a queue has an id in the cluster, such as c3f9a2m4q7cxw-1042, and is ended by that from any node.
///
/// The id or name of an actor ends the actor: calls that wait fail, those that run may take --grace, then its worker gets SIGKILL.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  tracer cancel 7\n  tracer cancel c3f9a2m4q7cxw-1042\n  tracer cancel hits\n  tracer cancel --name 'nightly-*' --grace 10s"
)]
#[command(group(clap::ArgGroup::new("which").required(true)))]
pub(super) struct Args {
    /// The ids of tasks, here or in the cluster, or of actors, or the names of actors
    #[arg(value_name = "ID", group = "which")]
    ids: Vec<NamedTask>,
    /// Every task that has not ended
    #[arg(long, group = "which")]
    all: bool,
    /// Every task that has not ended and whose --name fits; `*` stands for any text, `?` for any character
    #[arg(long, value_name = "PATTERN", group = "which")]
    name: Option<String>,
    /// Time for each step; 0s kills at once [default: the --grace of the submission]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    grace: Option<Duration>,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    format: FormatArgs,
}

/// A task that was to be cancelled.
#[derive(serde::Serialize)]
struct Row {
    #[serde(flatten)]
    id: Id,
    state: CancelReport,
}

/// A task of this head by its id, or one of another node by its id in the cluster.
#[derive(serde::Serialize)]
enum Id {
    #[serde(rename = "id")]
    Here(TaskId),
    #[serde(rename = "cluster_task_id")]
    Elsewhere(String),
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Id::Here(id) => id.fmt(f),
            Id::Elsewhere(id) => f.write_str(id),
        }
    }
}

pub(super) fn run(args: &Args) -> CommandResult {
    let mut driver = Driver::connect(&args.place.temp_dir())?;
    let place = driver.welcome().place_id;
    let (elsewhere, here): (Vec<_>, Vec<_>) = args.ids.iter().partition(|named| named.elsewhere(place).is_some());
    let which = match &args.name {
        Some(pattern) => CancelWhich::Named(pattern.clone()),
        None if args.all => CancelWhich::All,
        None => CancelWhich::Ids(NamedTask::ids(here, &mut driver)?),
    };
    let grace_ms = args.grace.map(|grace| u64::try_from(grace.as_millis()).unwrap_or(u64::MAX));
    let Reply::Cancelled(cancelled) = driver.query(&Query::Cancel { which, grace_ms })? else {
        return Err(unexpected_reply());
    };
    let mut rows: Vec<_> = cancelled.into_iter().map(|(id, state)| Row { id: Id::Here(id), state }).collect();
    let mut problems = Vec::new();
    for id in elsewhere.into_iter().filter_map(|named| named.elsewhere(place)) {
        let id = id.to_string();
        let Reply::CancelledElsewhere(cancelled) =
            driver.query(&Query::CancelElsewhere { id: id.clone(), grace_ms })?
        else {
            return Err(unexpected_reply());
        };
        match cancelled {
            Ok(state) => rows.push(Row { id: Id::Elsewhere(id), state }),
            Err(problem) => problems.push(problem),
        }
    }
    let (unknown, known): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.state == CancelReport::Unknown);
    if !unknown.is_empty() {
        let ids: Vec<_> = unknown.iter().map(|row| row.id.to_string()).collect();
        let ids = ids.join(" and no task ");
        problems.push(format!("there is no task {ids}\n(hint: `tracer list tasks` shows those that are known)"));
    }
    let failed = (!problems.is_empty()).then(|| CommandError::new(exit::FAILED, problems.join("\n")));
    match args.format.format {
        super::Format::Json => {
            if let Some(failed) = failed {
                let report = serde_json::json!({ "tasks": rows, "error": failed.report().error });
                report::value(args.format.format, &report, |_| String::new());
                return Ok(failed.exit_code);
            }
            report::value(args.format.format, &serde_json::json!({ "tasks": rows }), |_| String::new());
        }
        super::Format::Text if rows.is_empty() && failed.is_none() => report::talk("there is no such task to cancel"),
        super::Format::Text => known.iter().for_each(|row| report::talk(&describe(row))),
    }
    failed.map_or(Ok(exit::OK), Err)
}

fn describe(Row { id, state }: &Row) -> String {
    match state {
        CancelReport::Ended => format!("task {id} had ended before; `tracer get {id}` shows how"),
        CancelReport::Cancelling => format!("task {id} is being cancelled; `tracer get {id}` shows how far that is"),
        CancelReport::Cancelled | CancelReport::Unknown => format!("task {id} is cancelled"),
    }
}
