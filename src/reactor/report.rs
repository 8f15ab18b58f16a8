use crate::{
    effects::Effects,
    resources,
    state::{
        State,
        actor::Part,
        now::Now,
        progress::Progress,
        task::Task,
        worker::{StopStep, WorkerPhase},
    },
};
use tracer_core::ClusterTaskId;
use tracer_core::count::Size;
use tracer_core::task::{Failure, JobId, Outcome, TaskId};
use tracer_core::value::JsonText;
use tracer_ipc::protocol::{TaskFilter, TaskList, TaskReport, TaskState, WorkerReport, WorkerState};
use tracer_ipc::spool::ClaimState;

/// Returns the newest tasks, or the newest before one, of those that are asked for: as many as one answer may have. One that was submitted here and
/// runs here over a queue is one task.
pub fn list_tasks(
    state: &State,
    effects: &impl Effects,
    limit: usize,
    before: Option<TaskId>,
    which: &TaskFilter,
) -> TaskList {
    // No task has what is no id.
    let trace_id = which.trace_id.as_ref().map(|id| u128::from_str_radix(id, 16).unwrap_or(u128::MAX).to_be_bytes());
    let is_meant = |&(id, task): &(TaskId, &Task)| {
        trace_id.is_none_or(|trace_id| task.shown().trace_id == trace_id)
            && which.since_unix_nano.is_none_or(|since| task.submitted_unix_nano >= since)
            && (which.states.is_empty() || which.states.contains(&phase(state, effects, id, task).0))
            && which.name.as_ref().is_none_or(|name| tracer_core::pattern::fits(name, task.shown().name))
            && which.module.as_ref().is_none_or(|module| {
                module_of(state, id, task).is_some_and(|own| tracer_core::pattern::fits(module, own))
            })
    };
    let takes_all = *which == TaskFilter::default();
    let all = state.tasks.iter_before(before.unwrap_or(TaskId(u64::MAX)));
    let mut meant = all.filter(|(_, task)| !task.is_own_import()).filter(|row| takes_all || is_meant(row));
    let (mut tasks, mut bytes) = (Vec::new(), 0);
    while tasks.len() < limit.min(TaskList::LIMIT) && bytes < TaskList::BYTES {
        let Some((id, task)) = meant.next() else { break };
        let mut report = report(state, effects, id, task);
        report.result_beginning = result_beginning(task);
        bytes += text_bytes(&report);
        tasks.push(report);
    }
    let count = state.tasks.len() - state.shared.own_imports;
    let (left_out, filtered_out) = match before {
        // They were counted when the first ones were listed.
        Some(_) => (0, 0),
        None if takes_all => (count - tasks.len(), 0),
        None => {
            let left_out = meant.count();
            (left_out, count - tasks.len() - left_out)
        }
    };
    TaskList { left_out, filtered_out, forgotten: state.tally.counts().forgotten, tasks }
}

/// Characters of a result that a list has.
const BEGINNING: usize = 80;

fn result_beginning(task: &Task) -> Option<String> {
    let Progress::Ended(ended) = task.progress() else { return None };
    match &ended.outcome {
        Outcome::Returned(value) => JsonText::beginning(value, BEGINNING),
        Outcome::Stored(stored) => Some(format!("({})", Size(stored.bytes))),
        Outcome::Completed | Outcome::Failed(_) => None,
    }
}

/// Returns about how many bytes the texts of a report take that may be long.
fn text_bytes(report: &TaskReport) -> usize {
    let failures = report.attempts.iter().map(|attempt| (&attempt.failure, &attempt.message));
    let of_failure = |(failure, message): (&Option<Failure>, &Option<String>)| {
        let stacktrace = match failure {
            Some(Failure::Error { stacktrace, .. } | Failure::Panic { stacktrace, .. }) => stacktrace.len(),
            _ => 0,
        };
        // The failure has the message too.
        stacktrace + 2 * message.as_ref().map_or(0, String::len)
    };
    let failures: usize = failures.chain([(&report.failure, &report.message)]).map(of_failure).sum();
    failures + report.name.as_ref().map_or(0, String::len) + report.target.len()
}

fn trace_id_of(bytes: [u8; 16]) -> Option<String> {
    (bytes != [0; 16]).then(|| format!("{:032x}", u128::from_be_bytes(bytes)))
}

/// Returns the module that a task's function or actor is of; none for commands.
pub(crate) fn module_of<'a>(state: &'a State, id: TaskId, task: &Task) -> Option<&'a str> {
    match task.actor {
        Part::None if task.is_command => None,
        Part::None => state.targets.name(task.target).split_once('.').map(|(module, _)| module),
        Part::Creation => state.actors.module_of(id),
        Part::Call(actor) => state.actors.module_of(actor),
    }
}

/// Returns the task that runs or ran here under an id in the cluster, for another node or for this one.
pub fn get_import(state: &State, effects: &impl Effects, id: ClusterTaskId) -> Option<TaskReport> {
    let is_it = |task: &Task| task.is_import() && task.of_queue().is_some_and(|of_queue| of_queue.origin == Some(id));
    let (local, _) = state.tasks.iter_newest_first().find(|(_, task)| is_it(task))?;
    get_task(state, effects, local)
}

/// Returns one task with its result.
pub fn get_task(state: &State, effects: &impl Effects, id: TaskId) -> Option<TaskReport> {
    let task = state.tasks.get(id)?;
    let mut report = report(state, effects, id, task);
    if let Progress::Ended(ended) = task.progress() {
        match &ended.outcome {
            Outcome::Returned(value) => report.set_result(JsonText::of(value).ok()),
            Outcome::Stored(stored) => report.stored = Some(stored.clone()),
            Outcome::Completed | Outcome::Failed(_) => {}
        }
    }
    Some(report)
}

/// Returns every worker.
pub fn list_workers(state: &State, effects: &impl Effects, now: Now) -> Vec<WorkerReport> {
    state
        .workers
        .iter()
        .map(|(id, worker)| {
            let running = effects.running(id).map(|(lease, _)| lease);
            let running = worker.leases.iter().find(|grant| Some(grant.number) == running);
            let running = worker.inline.last().or(running);
            WorkerReport {
                id,
                pid: worker.pid,
                state: match worker.phase() {
                    WorkerPhase::Starting => WorkerState::Starting,
                    WorkerPhase::Stopping => WorkerState::Stopping,
                    WorkerPhase::Ready if worker.leases.is_empty() => WorkerState::Idle,
                    WorkerPhase::Ready if worker.is_waiting() => WorkerState::Waiting,
                    WorkerPhase::Ready => WorkerState::Busy,
                },
                uptime_ns: now.monotonic_ns.saturating_sub(worker.started.monotonic_ns),
                task: running.map(|grant| state.shared.submission_of(grant.task)),
                actor: worker.actor,
                replica: None,
                leases: worker.leases.len(),
                cpus: worker.slots() as u64,
                resources: resources::held_resources(worker),
                tasks_ended: worker.tasks_ended,
                tracing: worker.tracing.clone(),
                hook_failure: worker.hook_failure.clone(),
            }
        })
        .collect()
}

/// Returns the number of tasks of a job run.
pub fn count_running(state: &State, effects: &impl Effects, job: JobId) -> usize {
    let is_of_job = |task: TaskId| state.tasks.get(task).is_some_and(|task| task.job == job);
    let running = state.workers.iter().map(|(id, worker)| {
        let lease = effects.running(id).map(|(lease, _)| lease);
        let own = worker.leases.iter().find(|grant| Some(grant.number) == lease);
        own.into_iter().chain(&worker.inline).filter(|grant| is_of_job(grant.task)).count()
    });
    running.sum()
}

/// Returns where a task is in its life, and since when it runs, if it does, in nanoseconds since the Unix epoch.
pub(crate) fn phase(state: &State, effects: &impl Effects, id: TaskId, task: &Task) -> (TaskState, Option<u64>) {
    let running = match task.progress() {
        Progress::Leased { worker: worker_id } => state.workers.get(worker_id).and_then(|worker| {
            if let Some(grant) = worker.inline.iter().find(|grant| grant.task == id) {
                return Some(grant.granted.unix_nano);
            }
            let lease = worker.leases.iter().find(|grant| grant.task == id)?.number;
            (effects.claim_state(*worker_id, lease) == ClaimState::Claimed).then_some(())?;
            if worker.actor.is_some() {
                // Of several at once, the worker does not say since when.
                return worker.leases.iter().find(|grant| grant.task == id).map(|grant| grant.granted.unix_nano);
            }
            let (running, since) = effects.running(*worker_id)?;
            (running == lease).then_some(since)
        }),
        Progress::Shared => state.shared.claim_of(id).map(|claim| claim.since_unix_nano),
        Progress::Between | Progress::Waiting | Progress::Held | Progress::Retrying { .. } | Progress::Ended(_) => None,
    };
    let phase = match task.progress() {
        Progress::Shared if running.is_some() => {
            let withdrawn = state.shared.open.get(&id).and_then(|open| open.withdrawn.as_ref());
            if withdrawn.is_some_and(|withdrawn| withdrawn.stops.is_some()) {
                TaskState::Cancelling
            } else {
                TaskState::Running
            }
        }
        Progress::Between | Progress::Waiting | Progress::Held | Progress::Shared => TaskState::Waiting,
        Progress::Retrying { .. } => TaskState::Retrying,
        Progress::Leased { worker } if running.is_some() => {
            let stopping = state.workers.get(worker).and_then(|worker| worker.stopping());
            match stopping.filter(|stopping| stopping.task == id).map(|stopping| stopping.step) {
                None => TaskState::Running,
                Some(StopStep::Asked) => TaskState::Cancelling,
                Some(StopStep::Terminated) => TaskState::Terminating,
                Some(StopStep::Killed) => TaskState::Killing,
            }
        }
        Progress::Leased { .. } => TaskState::Leased,
        Progress::Ended(ended) => TaskState::of_outcome(&ended.outcome),
    };
    (phase, running)
}

/// Returns a task's row for people.
pub(crate) fn report(state: &State, effects: &impl Effects, id: TaskId, task: &Task) -> TaskReport {
    let (phase, running) = phase(state, effects, id, task);
    let mut report = row(state, id, task, phase);
    report.started_unix_nano = report.started_unix_nano.or(running);
    report
}

/// Returns the task's row for people; `phase` tells leased from running.
fn row(state: &State, id: TaskId, task: &Task, phase: TaskState) -> TaskReport {
    let shown = task.shown();
    let mut report = TaskReport {
        id,
        name: Some(shown.name).filter(|name| !name.is_empty()).map(Into::into),
        target: state.targets.name(task.target).into(),
        state: phase,
        job_id: task.job,
        trace_id: trace_id_of(shown.trace_id),
        attempt: task.attempt,
        demand: task.demand_report(),
        options: task.extra.said().map(|said| (said.name.to_owned(), said.value)).collect(),
        attempts: task.past.as_ref().map(|past| past.attempts.clone()).unwrap_or_default(),
        worker_id: None,
        worker_pid: None,
        submitted_unix_nano: task.submitted_unix_nano,
        started_unix_nano: None,
        ended_unix_nano: None,
        result: None,
        result_loss: None,
        result_beginning: None,
        stored: None,
        failure: None,
        message: None,
        actor_id: match task.actor {
            Part::None => None,
            Part::Creation => Some(id),
            Part::Call(actor) => Some(actor),
        },
        queue: None,
        cluster_task_id: None,
        node_id: None,
    };
    if let Some(of_queue) = task.of_queue() {
        let own = || state.shared.place.map(|place| ClusterTaskId { place, task: id });
        report.cluster_task_id = of_queue.origin.or_else(own).map(|id| id.to_string());
        report.queue = Some((*of_queue.queue).into()).filter(|queue: &String| !queue.is_empty());
        report.node_id = Some((*of_queue.node_id).into()).filter(|node: &String| !node.is_empty());
    }
    match task.progress() {
        Progress::Between | Progress::Waiting | Progress::Held | Progress::Retrying { .. } => {}
        Progress::Shared => {
            if let Some(claim) = state.shared.claim_of(id) {
                report.attempt = claim.attempt;
                report.node_id = Some(claim.node_id.clone());
            }
        }
        Progress::Leased { worker } => {
            report.worker_id = Some(*worker);
            report.worker_pid = state.workers.get(worker).map(|worker| worker.pid);
        }
        Progress::Ended(ended) => {
            report.worker_id = ended.worker;
            report.worker_pid = ended.worker_pid;
            report.started_unix_nano = ended.started_unix_nano;
            report.ended_unix_nano = Some(ended.ended_unix_nano);
            if let Outcome::Failed(failure) = &ended.outcome {
                report.failure = Some(failure.clone());
                report.message = Some(failure.to_string());
            }
            report.attempts.extend(ended.attempt_report(task.attempt));
        }
    }
    report
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
