//! `tracer explain`.

mod actor;
mod deployment;

use serde_json::{Value, json};
use tracer_client::driver::{Driver, DriverError};
use tracer_core::clock::utc;
use tracer_core::task::TaskId;
use tracer_core::{ClusterTaskId, PlaceId, exit};
use tracer_host::hook::builtin_names;
use tracer_ipc::protocol::{
    ActorState, ClusterReport, Explanation, NodeReport, Query, Reason, Reply, SharedReport, TaskState,
};

use super::connect::unexpected_reply;
use super::named::{self, NamedTask};
use super::{CommandError, CommandResult, FormatArgs, PlaceArgs, hints, report};

/// Say why a task waits, what it is doing, or why it ended as it did; of an actor or a deployment, why it is as it is
///
/// A task that waits has others before it, needs their results, lacks cpus or a resource, or finds no worker that is ready: the answer names them,
/// with their processes.
/// For a task that runs it is the worker and the tasks that it waits for in turn; for one that has ended, how and where.
/// For an actor, named by its name, it is its worker, its calls, how often it was made again, or when and why it died.
/// For a deployment it is what there is too little of for a further replica, which are starting, and why there is none.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  tracer explain 7\n  tracer explain Model\n  tracer explain 7 --format json | jq '.reasons[].text'"
)]
pub(super) struct Args {
    /// The task's id, or the name of an actor or of a deployment
    id: NamedTask,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    format: FormatArgs,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let mut driver = Driver::connect(&args.place.temp_dir())?;
    if let NamedTask::Actor(name) = &args.id
        && let Some(actor) = actor::find(&mut driver, name)?
    {
        // What is not there yet, or again, waits as its creation does.
        let mut creation = explanation(&mut driver, actor.id)?;
        if matches!(actor.state, ActorState::Alive | ActorState::Dead) {
            creation.iter_mut().for_each(|creation| creation.reasons.clear());
        }
        let reasons = creation.as_deref().map_or_else(Vec::new, texts);
        let explained = actor::Explained::new(actor, creation.map(|creation| creation.task), reasons);
        report::value(args.format.format, &tracer_trace::json::with_times(&explained.json()), |_| {
            hints::with_place(&explained.text()).into_owned()
        });
        return Ok(exit::OK);
    }
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
    let mut explanation = explanation(&mut driver, id)?.ok_or_else(|| named::no_task(id))?;
    let module = module_of(&explanation);
    ask_engine(&mut driver, id, module, &mut explanation.reasons)?;
    report::value(args.format.format, &tracer_trace::json::with_times(&with_texts(&explanation)), |_| {
        hints::with_place(&render(&explanation)).into_owned()
    });
    Ok(exit::OK)
}

fn explanation(driver: &mut Driver, id: TaskId) -> Result<Option<Box<Explanation>>, CommandError> {
    let Reply::Explanation(explanation) = driver.query(&Query::Explain { id })? else { return Err(unexpected_reply()) };
    Ok(explanation)
}

/// Replaces or completes what the head knows of a task that is in a queue by what the engine says of it: the node that has it, or who would take it. An engine
/// that cannot be asked adds nothing.
fn ask_engine(
    driver: &mut Driver,
    id: TaskId,
    module: Option<String>,
    reasons: &mut Vec<Reason>,
) -> Result<(), DriverError> {
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
    let of_modules = module.map_or_else(Vec::new, |module| of_modules(&module, &cluster, queue, place));
    if let Some(found) = cluster.queues.into_iter().find(|found| found.name == *queue) {
        let (is_command, queue, nodes, waiting, address) =
            (*is_command, found.name, found.served_by, found.waiting, cluster.address);
        let reason = if let Some(problem) = found.problem {
            Reason::StuckQueue { queue, problem, address }
        } else if nodes.is_empty() {
            Reason::UnservedQueue { queue, address }
        } else if is_command && found.commands_run_by.is_empty() {
            Reason::NoCommandsTaken { queue, nodes, address }
        } else {
            let nodes = if is_command { found.commands_run_by } else { nodes };
            Reason::ServedBy { queue, nodes, waiting }
        };
        reasons.splice(at + 1..at + 1, [reason].into_iter().chain(of_modules));
    }
    Ok(())
}

/// Returns the module of a task that may be in a queue; none of a command.
fn module_of(explanation: &Explanation) -> Option<String> {
    let in_queue = |reason: &Reason| matches!(reason, Reason::InQueue { is_command: false, .. });
    let (module, _) = explanation.task.target.split_once('.')?;
    explanation.reasons.iter().any(in_queue).then(|| module.to_owned())
}

/// Says which of the living nodes that serve a queue lack a module, or have another build of it than this place.
fn of_modules(module: &str, cluster: &ClusterReport, queue: &str, place: PlaceId) -> Vec<Reason> {
    // A built-in one is in nobody's folder.
    if builtin_names().any(|built_in| built_in == module) {
        return Vec::new();
    }
    let place = place.to_string();
    let serves = |node: &&NodeReport| node.is_alive && node.queues.iter().any(|served| served == queue);
    let serving: Vec<_> = cluster.nodes.iter().filter(serves).collect();
    let lacking = serving.iter().filter(|node| node.lacks(module)).map(|node| node.node_id.clone());
    let lacking: Vec<_> = lacking.collect();
    let mut reasons = Vec::new();
    if !lacking.is_empty() {
        let is_everywhere = lacking.len() == serving.len();
        reasons.push(Reason::ModuleLacking { module: module.into(), nodes: lacking, is_everywhere });
    }
    let own = cluster.nodes.iter().find(|node| node.place_id == place).and_then(|node| node.digest_of(module));
    if let Some(own) = own {
        let other = |node: &&NodeReport| Some((node.node_id.clone(), node.digest_of(module)?.to_owned()));
        let others: Vec<_> = serving.iter().filter_map(other).filter(|(_, digest)| digest != own).collect();
        if !others.is_empty() {
            reasons.push(Reason::OtherBuild { module: module.into(), digest: own.into(), others });
        }
    }
    reasons
}

/// For programs, with each reason's sentence beside its parts.
fn with_texts(explanation: &Explanation) -> Value {
    json!({ "task": explanation.task, "reasons": texts(explanation) })
}

fn texts(explanation: &Explanation) -> Vec<Value> {
    let with_text = |reason: &Reason| {
        let mut value = json!(reason);
        value["text"] = reason.to_string().into();
        value
    };
    explanation.reasons.iter().map(with_text).collect()
}

fn render(explanation: &Explanation) -> String {
    let task = &explanation.task;
    let mut fields = vec![("task", task.id.to_string()), ("target", report::name(&task.target))];
    fields.extend(task.name.as_deref().map(|name| ("name", report::name(name))));
    fields.push(("state", task.state.to_string()));
    fields.extend(report::of_queue(task));
    fields.extend(report::options(task).map(|options| ("options", options)));
    fields.push(("submitted", utc(task.submitted_unix_nano).to_string()));
    let why: Vec<_> = explanation.reasons.iter().map(ToString::to_string).collect();
    fields.push(("why", why.join("\n")));
    report::fields(&fields)
}
