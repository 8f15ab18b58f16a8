//! `tracer explain`.

mod deployment;

use serde_json::{Value, json};

use super::connect::unexpected_reply;
use super::named::{self, NamedTask};
use super::{CommandResult, FormatArgs, PlaceArgs, hints, report};
use crate::clock::utc;
use crate::driver::{Driver, DriverError};
use crate::exit;
use crate::protocol::{Explanation, Query, Reason, Reply, SharedReport, TaskState};
use crate::task::TaskId;
use tracer_core::ClusterTaskId;

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
    let mut explanation = explanation.ok_or_else(|| named::no_task(id))?;
    ask_engine(&mut driver, id, &mut explanation.reasons)?;
    report::value(args.format.format, &crate::json::with_times(&with_texts(&explanation)), |_| {
        hints::with_place(&render(&explanation)).into_owned()
    });
    Ok(exit::OK)
}

/// Replaces or completes what the head knows of a task that is in a queue by what the engine says of it: the node that has it, or who would take it. An engine
/// that cannot be asked adds nothing.
fn ask_engine(driver: &mut Driver, id: TaskId, reasons: &mut Vec<Reason>) -> Result<(), DriverError> {
    let in_queue = |reason: &Reason| matches!(reason, Reason::InQueue { is_stored: true, .. });
    let (Some(at), Some(place)) = (reasons.iter().position(in_queue), driver.welcome().place_id) else {
        return Ok(());
    };
    let cluster_id = ClusterTaskId { place, task: id }.to_string();
    let found = match driver.query(&Query::Shared { id: cluster_id })? {
        Reply::Shared(found) => found.ok(),
        _ => None,
    };
    if let Some(SharedReport { node_id: Some(node_id), attempt, started_unix_nano: Some(since_unix_nano), .. }) =
        found.map(|found| *found).filter(|found| found.state == TaskState::Running)
    {
        reasons[at] = Reason::RunsElsewhere { node_id, attempt, since_unix_nano };
        return Ok(());
    }
    let (Reason::InQueue { queue, is_command, .. }, Reply::Cluster(Ok(cluster))) =
        (&reasons[at], driver.query(&Query::Cluster)?)
    else {
        return Ok(());
    };
    if let Some(found) = cluster.queues.into_iter().find(|found| found.name == *queue) {
        let (is_command, queue, nodes, waiting, address) =
            (*is_command, found.name, found.served_by, found.waiting, cluster.address);
        let reason = if nodes.is_empty() {
            Reason::UnservedQueue { queue, address }
        } else if is_command && found.commands_run_by.is_empty() {
            Reason::NoCommandsTaken { queue, nodes, address }
        } else {
            let nodes = if is_command { found.commands_run_by } else { nodes };
            Reason::ServedBy { queue, nodes, waiting }
        };
        reasons.insert(at + 1, reason);
    }
    Ok(())
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
