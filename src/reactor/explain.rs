//! Explanations of tasks: the reason why one waits, the state of its attempt, or the reason of its end. Reads the state of the [reactor](crate)
//! and changes nothing.

use crate::{
    actors::listing,
    deadlock,
    effects::Effects,
    nesting, report,
    resources::{self, Free},
    state::{
        State,
        actor::Part,
        progress::Progress,
        task::Task,
        worker::{Ending, Worker, WorkerPhase},
    },
};
use tracer_core::task::{Envelope, Failure, Input, Outcome, TaskId, WorkerId};
use tracer_ipc::protocol::{ClaimedBy, Explanation, Holder, INLINE_LEASE, OtherTask, Reason, RunningTask, TaskReport};
use tracer_ipc::spool::ClaimState;

/// Limit on the workers and tasks that are named. The rest is counted.
const NAMED_LIMIT: usize = 100;

/// Explains one task; none when it is not remembered.
pub fn explain_task(state: &State, effects: &impl Effects, id: TaskId) -> Option<Explanation> {
    let task = state.tasks.get(id)?;
    let row = report::report(state, effects, id, task);
    let reasons = match task.progress() {
        Progress::Held => vec![needs_results(state, effects, id, task)],
        Progress::Waiting if task.actor != Part::None => listing::why_it_waits(state, id).into_iter().collect(),
        Progress::Waiting => why_it_waits(state, effects, id, task),
        Progress::Between => Vec::new(),
        Progress::Shared => of_queue(state, id, task).into_iter().collect(),
        Progress::Retrying { .. } => {
            let last = task.past.as_ref().and_then(|past| past.attempts.last());
            let failure = last.and_then(|attempt| attempt.message.clone()).unwrap_or_default();
            vec![Reason::TriedAgain { attempt: task.attempt, failure }]
        }
        Progress::Leased { worker } => of_worker(state, effects, id, *worker, &row),
        Progress::Ended(ended) => {
            let failure = match &ended.outcome {
                Outcome::Failed(failure) => Some(failure.to_string()),
                Outcome::Returned(_) | Outcome::Stored(_) | Outcome::Completed => None,
            };
            let ran_ns = ended.started_unix_nano.map(|started| ended.ended_unix_nano.saturating_sub(started));
            let (worker_id, worker_pid) = (ended.worker, ended.worker_pid);
            let (attempt, node_id) = (task.attempt, row.node_id.clone());
            vec![Reason::Ended { attempt, node_id, worker_id, worker_pid, ran_ns, state: row.state, failure }]
        }
    };
    let mut reasons = reasons;
    if !matches!(task.progress(), Progress::Ended(_)) {
        reasons.extend(deadlock::find(state, effects, id).map(Reason::Deadlock));
    }
    Some(Explanation { task: row, reasons })
}

/// Returns what is known of a task that is in a queue.
fn of_queue(state: &State, id: TaskId, task: &Task) -> Option<Reason> {
    let open = state.shared.open.get(&id)?;
    if let Some(ClaimedBy { node_id, attempt, since_unix_nano }) = state.shared.claim_of(id).cloned() {
        return Some(Reason::RunsElsewhere { node_id, attempt, since_unix_nano });
    }
    let queue = Envelope::decode(task.envelope()).ok()?.policy.queue.to_owned();
    Some(Reason::InQueue { queue, is_stored: open.is_stored, is_command: task.is_command })
}

fn needs_results(state: &State, effects: &impl Effects, id: TaskId, task: &Task) -> Reason {
    let inputs = task.links.iter().flat_map(|links| &links.inputs).filter_map(Input::task);
    Reason::NeedsResults { tasks: open_tasks(state, effects, inputs.filter(|&input| input < id)) }
}

/// Returns the tasks among these that have not ended, each once.
fn open_tasks(state: &State, effects: &impl Effects, ids: impl Iterator<Item = TaskId>) -> Vec<OtherTask> {
    let mut tasks: Vec<OtherTask> = Vec::new();
    for id in ids {
        let Some(task) = state.tasks.get(id) else { continue };
        if tasks.len() == NAMED_LIMIT || tasks.iter().any(|known| known.id == id) {
            continue;
        }
        let row = report::report(state, effects, id, task);
        if !row.state.has_ended() {
            tasks.push(OtherTask { id, target: row.target, state: row.state });
        }
    }
    tasks
}

fn why_it_waits(state: &State, effects: &impl Effects, id: TaskId, task: &Task) -> Vec<Reason> {
    let mut reasons = Vec::new();
    if let Some(needs) = &task.needs
        && let Err(why) = resources::check(state, needs.cpus, &needs.resources)
    {
        return vec![Reason::NeverHere { why: why.lines().next().unwrap_or_default().to_owned() }];
    }
    let before = state.queue.alike(task).take_while(|&queued| queued != id).count();
    if before > 0 {
        reasons.push(match task.needs {
            None => Reason::Behind { tasks: before },
            Some(_) => Reason::BehindAlike { tasks: before },
        });
    }
    let lacks = what_it_lacks(state, effects, id, task);
    let lacks_resources = !lacks.is_empty();
    reasons.extend(lacks);
    if lacks_resources {
        return reasons;
    }
    if let Some(other) = state.queue.reserved_for().filter(|&other| other != id && before == 0) {
        reasons.push(Reason::KeptFor { task: other });
        return reasons;
    }
    let starting = state.workers.starting();
    let ready = state.workers.values().filter(|worker| worker.phase() == WorkerPhase::Ready).count();
    // Slots of waiting tasks are for others, once a process is there to take them.
    let has_slots = nesting::free_slots(state) > 0;
    let has_room = state.workers.idle() > 0;
    if ready == 0 || (has_slots && !has_room) {
        reasons.push(Reason::NoWorkerReady { starting, why: why_no_worker(state) });
    } else if has_slots {
        reasons.push(Reason::NextTurn);
    } else {
        let mut running: Vec<_> =
            state.workers.iter().filter_map(|(id, worker)| what_runs(state, effects, id, worker)).collect();
        let left_out = running.len().saturating_sub(NAMED_LIMIT);
        running.truncate(NAMED_LIMIT);
        reasons.push(Reason::WorkersBusy { running, left_out });
    }
    reasons
}

/// Returns the resources and slots of which too little is free.
fn what_it_lacks(state: &State, effects: &impl Effects, id: TaskId, task: &Task) -> Vec<Reason> {
    let Some(needs) = &task.needs else { return Vec::new() };
    let free = Free::of(state);
    let mut lacks = Vec::new();
    for (name, asked, free) in free.short(state, needs) {
        let mut holders: Vec<_> = resources::holders(state, name)
            .into_iter()
            .filter_map(|(holder, amount)| {
                let target = state.targets.name(state.tasks.get(holder)?.target).into();
                Some(Holder { task: holder, target, amount, waits_for_this: resources::waits_for(state, holder, id) })
            })
            .collect();
        let left_out = holders.len().saturating_sub(NAMED_LIMIT);
        holders.truncate(NAMED_LIMIT);
        let total = state
            .settings
            .resources
            .iter()
            .find(|resource| &*resource.name == name)
            .map_or(0, |resource| resource.total);
        let of_replicas = state.occupied.get(name).copied().unwrap_or(0);
        lacks.push(Reason::LacksResource { name: name.into(), asked, free, total, of_replicas, holders, left_out });
    }
    if needs.cpus > 1 && free.cpus < needs.cpus as usize {
        let mut running: Vec<_> =
            state.workers.iter().filter_map(|(id, worker)| what_runs(state, effects, id, worker)).collect();
        let left_out = running.len().saturating_sub(NAMED_LIMIT);
        running.truncate(NAMED_LIMIT);
        lacks.push(Reason::LacksCpus { asked: needs.cpus, free: free.cpus, running, left_out });
    }
    lacks
}

fn why_no_worker(state: &State) -> Option<String> {
    if let Some(reason) = state.starts.no_worker() {
        return Some(format!("none is started now: {reason}"));
    }
    if let Some(again) = state.starts.again() {
        return Some(format!("one {}; it is tried again every second", again.reason));
    }
    let is_starting = state.workers.starting() > 0;
    let hook = state.settings.hook.as_ref().filter(|_| is_starting)?;
    Some(format!("the hook `{hook}` runs in each before it takes tasks"))
}

/// Returns what a worker that holds a slot runs.
fn what_runs(state: &State, effects: &impl Effects, worker_id: WorkerId, worker: &Worker) -> Option<RunningTask> {
    if !worker.holds_slot() {
        return None;
    }
    let grant = worker.inline.last().or(worker.leases.front())?;
    let since = effects.running(worker_id).filter(|&(lease, _)| lease == grant.number).map(|(_, since)| since);
    Some(RunningTask {
        task: state.shared.submission_of(grant.task),
        worker_id,
        worker_pid: worker.pid,
        since_unix_nano: since.unwrap_or(grant.granted.unix_nano),
    })
}

fn of_worker(state: &State, effects: &impl Effects, id: TaskId, worker_id: WorkerId, row: &TaskReport) -> Vec<Reason> {
    let Some(worker) = state.workers.get(&worker_id) else { return Vec::new() };
    let worker_pid = worker.pid;
    let mut reasons = Vec::new();
    if let Some(since_unix_nano) = row.started_unix_nano {
        reasons.push(Reason::Running(RunningTask { task: id, worker_id, worker_pid, since_unix_nano }));
        let awaited = worker.waits.iter().filter(|wait| wait.task == id).flat_map(|wait| &wait.open).copied();
        let tasks = open_tasks(state, effects, awaited);
        if !tasks.is_empty() {
            reasons.push(Reason::AwaitsTasks { tasks });
        }
    } else {
        let place = worker.leases.iter().position(|grant| grant.task == id);
        let grant = place.and_then(|place| worker.leases.get(place));
        let is_claimed =
            |lease| lease & INLINE_LEASE == 0 && effects.claim_state(worker_id, lease) == ClaimState::Claimed;
        if grant.is_some_and(|grant| is_claimed(grant.number)) {
            reasons.push(Reason::ResultOnTheWay);
        } else {
            reasons.push(Reason::Leased { worker_id, worker_pid, tasks_before: place.unwrap_or(0) });
        }
    }
    reasons.extend(why_worker_ends(worker).map(|why| Reason::WorkerEnding { why }));
    reasons
}

fn why_worker_ends(worker: &Worker) -> Option<String> {
    Some(match worker.ending()? {
        Ending::TimedOut { task, limit, after_ns } => {
            let failure = Failure::TimedOut { limit: *limit, after_ns: *after_ns };
            format!("task {task} {failure}")
        }
        Ending::Cancelled { task } => format!("task {task} was cancelled"),
        Ending::Superseded { task } => format!("another node has task {task} by now, or may have"),
        Ending::StartTimedOut => "it did not get ready in time".into(),
        Ending::HookFailed => "its hook failed, and tracing is required".into(),
        Ending::ActorEnded { actor, .. } => format!("actor {actor} is to end"),
        Ending::NotNeeded => "there are enough others".into(),
        Ending::Stopped => "the head is stopping".into(),
    })
}

#[cfg(test)]
#[path = "explain_tests.rs"]
mod tests;
