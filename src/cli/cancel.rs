//! `tracer cancel`.

use super::connect::{ask, unexpected_reply};
use super::{CommandError, CommandResult, FormatArgs, PlaceArgs, report};
use crate::exit;
use crate::protocol::{CancelReport, Query, Reply};
use crate::task::TaskId;

/// End a task that waits or runs
///
/// A task that waits will not run. One that runs is ended with its worker, because native code cannot be asked; the worker is
/// replaced, and its other tasks are not touched. A command is ended with everything that it started.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tracer cancel 7")]
pub(super) struct Args {
    /// The task's id
    id: TaskId,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    format: FormatArgs,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let id = args.id;
    let Reply::Cancelled(cancelled) = ask(&args.place, &Query::Cancel { id })? else { return Err(unexpected_reply()) };
    if cancelled == CancelReport::Unknown {
        let text = format!("there is no task {id}\n(hint: `tracer list tasks` shows those that are known)");
        return Err(CommandError::new(exit::FAILED, text));
    }
    let answer = serde_json::json!({ "id": id, "state": cancelled });
    match args.format.format {
        super::Format::Json => report::value(args.format.format, &answer, |_| String::new()),
        super::Format::Text => report::talk(&match cancelled {
            CancelReport::Ended => format!("task {id} had ended before; `tracer get {id}` shows how"),
            CancelReport::Cancelled | CancelReport::Unknown => format!("task {id} is cancelled"),
        }),
    }
    Ok(exit::OK)
}
