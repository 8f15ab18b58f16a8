//! `tracer get`.

use std::path::Path;
use std::time::Duration;

use tracer_client::driver::Driver;
use tracer_core::clock::utc;
use tracer_core::count::Elapsed;
use tracer_core::duration::parse_duration;
use tracer_core::task::AttemptReport;
use tracer_core::value::JsonText;
use tracer_core::{ClusterTaskId, exit};
use tracer_ipc::protocol::{Query, Reply, SharedReport, TaskReport};
use tracer_ipc::stored::{self, Pending};

use super::connect::unexpected_reply;
use super::named::{self, NamedTask};
use super::wait::{self, End};
use super::{CommandError, CommandResult, Format, FormatArgs, PlaceArgs, report};

/// Show one task with its result
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  tracer get 7 --format json | jq .result\n  tracer get 7 --wait\n  tracer get c3f9a2m4q7cxw-1042"
)]
pub(super) struct Args {
    /// The task's id, here or in the cluster, or the name of an actor, for the task that creates it
    id: NamedTask,
    /// Wait until it has ended, however it ends; Ctrl-C leaves it running
    #[arg(long)]
    wait: bool,
    /// Maximum wait; exit code 124 when it has not ended by then
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, requires = "wait")]
    timeout: Option<Duration>,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    format: FormatArgs,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let mut driver = Driver::connect(&args.place.temp_dir())?;
    if let NamedTask::Cluster(id) = &args.id {
        let is_own = driver.welcome().place_id == Some(id.place);
        let is_known = is_own && matches!(driver.query(&Query::Task { id: id.task })?, Reply::Task(Some(_)));
        if !is_known && !args.wait {
            return show_shared(&mut driver, *id, &args.place.temp_dir(), args.format.format);
        }
    }
    let id = args.id.id(&mut driver)?;
    let mut code = exit::OK;
    if args.wait {
        let place = args.place.temp_dir();
        let line_of = (args.format.format == Format::Text).then_some(&place);
        let awaited = wait::Awaited { ids: &[id], any: false, timeout: args.timeout, line_of };
        let waited = wait::wait(&mut driver, &awaited, |_, _| ())?;
        if waited.end != End::Ended {
            waited.say_end(args.timeout);
            code = waited.exit_code();
        }
        if waited.end == End::Interrupted {
            return Ok(code);
        }
    }
    let mut task = named::task(&mut driver, id)?;
    if let Some(stored) = &task.stored {
        match driver.load(stored).map(|bytes| JsonText::of(&bytes).ok()) {
            Ok(result) => task.set_result(result),
            Err(error) => report::warning(&format!("its result cannot be shown: {error}")),
        }
    }
    if let Some(loss) = &task.result_loss {
        report::warning(loss);
    }
    match args.format.format {
        Format::Text => report::value(Format::Text, &task, render),
        Format::Json => report::value(Format::Json, &tracer_trace::json::task(task), |_| String::new()),
    }
    Ok(code)
}

/// Shows a task of another node, as its record in the engine has it.
fn show_shared(driver: &mut Driver, id: ClusterTaskId, temp_dir: &Path, format: Format) -> CommandResult {
    let Reply::Shared(found) = driver.query(&Query::Shared { id: id.to_string() })? else {
        return Err(unexpected_reply());
    };
    let mut task = *found.map_err(|text| CommandError::new(exit::FAILED, text))?;
    if let Some(stored) = task.stored.take() {
        // It was brought here for this alone.
        let _removed = Pending::new(&stored::folder_of_place(temp_dir), &stored);
        match driver.load(&stored).map(|bytes| JsonText::of(&bytes).ok()) {
            Ok(result) => {
                task.result_loss = result.as_ref().and_then(JsonText::loss);
                task.result = result;
            }
            Err(error) => task.result_loss = Some(format!("its result cannot be shown: {error}")),
        }
    }
    if let Some(loss) = &task.result_loss {
        report::warning(loss);
    }
    match format {
        Format::Text => report::value(Format::Text, &task, render_shared),
        Format::Json => report::value(Format::Json, &tracer_trace::json::shared_task(task), |_| String::new()),
    }
    Ok(exit::OK)
}

fn render_shared(task: &SharedReport) -> String {
    let mut fields = vec![("task", task.cluster_task_id.clone()), ("state", task.state.to_string())];
    fields.extend(task.queue.as_deref().map(|queue| ("queue", report::name(queue))));
    fields.extend(task.node_id.as_deref().map(|node| ("node", report::name(node))));
    if let (Some(started), Some(ended)) = (task.started_unix_nano, task.ended_unix_nano) {
        fields.push(("ran", Elapsed::from_nanos(ended.saturating_sub(started)).to_string()));
    }
    fields.extend(task.result.as_ref().map(|result| ("result", result.to_string())));
    fields.extend(task.message.clone().map(|message| ("failure", message)));
    fields.extend(task.attempts.iter().map(|attempt| ("attempt", describe(attempt))));
    report::fields(&fields)
}

fn describe(attempt: &AttemptReport) -> String {
    let mut text = attempt.number.to_string();
    if let (Some(worker), Some(pid)) = (attempt.worker_id, attempt.worker_pid) {
        text.push_str(&format!(" on worker {worker} (pid {pid})"));
    }
    if let Some(started) = attempt.started_unix_nano {
        text.push_str(&format!(" for {}", Elapsed::from_nanos(attempt.ended_unix_nano.saturating_sub(started))));
    }
    text.push_str(": ");
    text.push_str(attempt.message.as_deref().unwrap_or("succeeded"));
    text
}

fn render(task: &TaskReport) -> String {
    let mut fields = vec![("task", task.id.to_string()), ("target", report::name(&task.target))];
    fields.extend(task.name.as_deref().map(|name| ("name", report::name(name))));
    fields.push(("state", task.state.to_string()));
    fields.extend(report::of_queue(task));
    fields.push(("submitted", utc(task.submitted_unix_nano).to_string()));
    if let Some(started) = task.started_unix_nano {
        fields.push(("queued", Elapsed::from_nanos(started.saturating_sub(task.submitted_unix_nano)).to_string()));
        if let Some(ended) = task.ended_unix_nano {
            fields.push(("ran", Elapsed::from_nanos(ended.saturating_sub(started)).to_string()));
        }
    }
    if let (Some(worker), Some(pid)) = (task.worker_id, task.worker_pid) {
        fields.push(("worker", format!("{worker} (pid {pid})")));
    }
    fields.extend(task.trace_id.clone().map(|id| ("trace", id)));
    fields.extend(task.result.as_ref().map(|result| ("result", result.to_string())));
    fields.extend(task.message.clone().map(|message| ("failure", message)));
    // One attempt is what the other lines tell.
    if task.attempts.len() > 1 || (task.attempts.len() == 1 && task.ended_unix_nano.is_none()) {
        fields.extend(task.attempts.iter().map(|attempt| ("attempt", describe(attempt))));
    }
    report::fields(&fields)
}
