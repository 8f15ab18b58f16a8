//! `tracer explain`.

use serde_json::{Value, json};

use super::connect::{ask, unexpected_reply};
use super::{CommandError, CommandResult, FormatArgs, PlaceArgs, report};
use crate::clock::utc;
use crate::exit;
use crate::protocol::{Explanation, Query, Reply};
use crate::task::TaskId;

/// Say why a task waits, what it is at, or why it ended as it did
///
/// A task that waits has others before it, needs their results, lacks cpus or a resource, or finds no worker that is ready: the answer names them,
/// with their processes.
/// For a task that runs it is the worker and the tasks that it waits for in turn; for one that has ended, how and where.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tracer explain 7\n  tracer explain 7 --format json | jq '.reasons[].text'")]
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
    let Reply::Explanation(explanation) = ask(&args.place, &Query::Explain { id })? else {
        return Err(unexpected_reply());
    };
    let Some(explanation) = explanation else {
        let text = format!(
            "there is no task {id}: it was never submitted to this head, or ended too long ago\n\
             (hint: `tracer list tasks` shows those that are known)"
        );
        return Err(CommandError::new(exit::FAILED, text));
    };
    report::value(args.format.format, &report::schema::with_times(&with_texts(&explanation)), |_| render(&explanation));
    Ok(exit::OK)
}

/// For programs, with each reason's sentence beside its parts.
fn with_texts(explanation: &Explanation) -> Value {
    let reasons: Vec<_> = explanation
        .reasons
        .iter()
        .map(|reason| {
            let mut value = json!(reason);
            value["text"] = reason.to_string().into();
            value
        })
        .collect();
    json!({ "task": explanation.task, "reasons": reasons })
}

fn render(explanation: &Explanation) -> String {
    let task = &explanation.task;
    let mut fields = vec![("task", task.id.to_string()), ("target", report::name(&task.target))];
    fields.extend(task.name.as_deref().map(|name| ("name", report::name(name))));
    fields.push(("state", task.state.to_string()));
    fields.push(("submitted", utc(task.submitted_unix_nano).to_string()));
    let why: Vec<_> = explanation.reasons.iter().map(ToString::to_string).collect();
    fields.push(("why", why.join("\n")));
    report::fields(&fields)
}
