//! `tracer explain`.

mod deployment;

use serde_json::{Value, json};

use super::connect::unexpected_reply;
use super::named::{self, NamedTask};
use super::{CommandResult, FormatArgs, PlaceArgs, hints, report};
use crate::clock::utc;
use crate::driver::Driver;
use crate::exit;
use crate::protocol::{Explanation, Query, Reply};

/// Say why a task waits, what it is doing, or why it ended as it did; of a deployment, why it has not the replicas that it should have
///
/// A task that waits has others before it, needs their results, lacks cpus or a resource, or finds no worker that is ready: the answer names them,
/// with their processes.
/// For a task that runs it is the worker and the tasks that it waits for in turn; for one that has ended, how and where.
/// For a deployment it is what there is too little of for a further replica, which are starting, and why there is none.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  tracer explain 7\n  tracer explain Model\n  tracer explain 7 --format json | jq '.reasons[].text'"
)]
pub(super) struct Args {
    /// The task's id, or the name of an actor, for the task that creates it, or of a deployment
    id: NamedTask,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    format: FormatArgs,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let mut driver = Driver::connect(&args.place.temp_dir())?;
    let id = match args.id.id(&mut driver) {
        Ok(id) => id,
        Err(no_actor) => {
            let NamedTask::Actor(name) = &args.id else { return Err(no_actor) };
            return match deployment::find(&mut driver, name)? {
                Some(explained) => {
                    report::value(args.format.format, &explained.json(), |_| explained.text());
                    Ok(exit::OK)
                }
                None => Err(no_actor),
            };
        }
    };
    let Reply::Explanation(explanation) = driver.query(&Query::Explain { id })? else { return Err(unexpected_reply()) };
    let explanation = explanation.ok_or_else(|| named::no_task(id))?;
    report::value(args.format.format, &crate::json::with_times(&with_texts(&explanation)), |_| {
        hints::with_place(&render(&explanation)).into_owned()
    });
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
    fields.extend(report::options(task).map(|options| ("options", options)));
    fields.push(("submitted", utc(task.submitted_unix_nano).to_string()));
    let why: Vec<_> = explanation.reasons.iter().map(ToString::to_string).collect();
    fields.push(("why", why.join("\n")));
    report::fields(&fields)
}
