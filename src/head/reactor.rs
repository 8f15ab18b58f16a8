//! What the head does about what happens: plain functions over [`State`], with every effect going out through [`Effects`].
//!
//! Nothing here reads a clock, touches a socket or knows a process. Inputs come in through the `on_` functions; after a batch of
//! them the server calls [`schedule`] once.

use std::collections::HashSet;

use crate::protocol::wire::WireError;
use crate::protocol::{
    AttemptResult, CancelReport, Explanation, INLINE_LEASE, Lease, Period, TaskList, TaskReport, TaskState,
    WorkerReady, WorkerReport, WorkerState,
};
use crate::scheduler::{self, Candidate};
use crate::spool::{CLAIM_COUNT, ClaimState};
use crate::task::{Envelope, Failure, JobId, Outcome, TaskId, TaskSpec, TimeLimit, WorkerId};

use super::state::{
    DriverId, Ended, Ending, Grant, Links, Now, Progress, StartAgain, State, TargetIndex, Task, Worker, WorkerPhase,
};
use super::{explain, inputs, nesting};

/// Everything the reactor may cause. The server does it; tests remember it.
pub trait Effects {
    /// Enters a lease in the worker's ring of claims and sends it.
    fn lease(&mut self, worker: WorkerId, lease: Lease<'_>);
    /// Notes in the journal how a task ended, before anyone is told.
    fn journal_end(&mut self, task: TaskId, attempt: u32, ended: &Ended);
    /// Tells a driver how its task ended, and when, if the task traces the runtime.
    fn finished(
        &mut self,
        driver: DriverId,
        tag: u64,
        task: TaskId,
        attempt: u32,
        outcome: &Outcome,
        ended_unix_nano: Option<u64>,
    );
    /// Sends a worker a task to run while others of its tasks wait. It has no place in the ring of claims.
    fn lease_inline(&mut self, worker: WorkerId, lease: Lease<'_>);
    /// What became of a lease, as the spool of the worker has it.
    fn claim_state(&self, worker: WorkerId, lease: u64) -> ClaimState;
    /// The lease that a worker is running, and since when in nanoseconds since the Unix epoch. A claimed lease that is not
    /// running has ended, and its result is on the way.
    fn running(&self, worker: WorkerId) -> Option<(u64, u64)>;
    /// Takes an unclaimed lease back. False when the worker was faster.
    fn revoke(&mut self, worker: WorkerId, lease: u64) -> bool;
    /// Starts a worker; it will be heard of.
    fn start_worker(&mut self, worker: WorkerId);
    /// Asks a worker to end when its task has ended.
    fn ask_to_end(&mut self, worker: WorkerId);
    /// Kills a worker and what it runs.
    fn kill(&mut self, worker: WorkerId);
    /// Writes a line to the head's log.
    fn log(&mut self, line: String);
}

/// Ended tasks that are remembered.
pub const HISTORY_LIMIT: usize = 10_000;
/// Bytes of results that are remembered.
pub const HISTORY_BYTES_LIMIT: usize = 64 << 20;
/// Workers in a row that may die before they are ready.
pub const FAILED_STARTS_LIMIT: u32 = 3;
/// Workers in a row that may die soon after they were ready, without having run anything. More than of the others: some may have been
/// killed by somebody who is at it.
pub const BRIEF_LIVES_LIMIT: u32 = 12;
/// How long tasks wait behind others before they are moved to a worker that has nothing to do.
const BEHIND_NS: u64 = scheduler::LEASE_TIME_NS / 4;
/// How long to wait after a worker could not be started.
const START_AGAIN_NS: u64 = 1_000_000_000;
/// How long a worker has to live after it got ready, if it runs no task, to show that workers can.
const LIVED_NS: u64 = 1_000_000_000;
/// What a command gets beyond its limit, because its worker ends it with a grace period of its own.
const COMMAND_GRACE_NS: u64 = 5_000_000_000;

/// Starts the workers that are missing.
pub fn start_missing_workers(state: &mut State, effects: &mut impl Effects, now: Now) {
    let must_wait = state.start_again.as_ref().is_some_and(|again| again.monotonic_ns > now.monotonic_ns);
    if state.is_stopping || state.no_worker.is_some() || must_wait {
        return;
    }
    for _ in 0..nesting::missing_workers(state) {
        let worker = WorkerId(state.next_worker);
        state.next_worker += 1;
        effects.start_worker(worker);
    }
}

/// A worker process was started.
pub fn on_worker_started(state: &mut State, worker: WorkerId, pid: u32, now: Now) {
    state.start_again = None;
    state.workers.insert(worker, Worker::starting(pid, now));
}

/// A worker process could not be started at all. A head that has started goes on without it and tries again, because a full disk or a
/// limit that was reached says nothing about workers; one that has not, gives up soon.
pub fn on_worker_start_failed(state: &mut State, effects: &mut impl Effects, reason: &str, now: Now) {
    if state.has_started {
        if state.start_again.is_none() {
            effects.log(format!("a worker could not be started, which is tried again and again: {reason}"));
        }
        let monotonic_ns = now.monotonic_ns.saturating_add(START_AGAIN_NS);
        state.start_again = Some(StartAgain { reason: reason.into(), monotonic_ns });
        return;
    }
    state.failed_starts += 1;
    effects.log(format!("a worker could not be started: {reason}"));
    give_up_if_hopeless(state, effects, reason, now);
}

/// A worker's hook has run and it takes leases.
pub fn on_worker_ready(
    state: &mut State,
    effects: &mut impl Effects,
    worker_id: WorkerId,
    ready: WorkerReady,
    now: Now,
) {
    let Some(worker) = state.workers.get_mut(&worker_id) else { return };
    if let Some(reason) = &ready.hook_failure {
        let pid = worker.pid;
        effects.log(format!("the hook failed in worker {worker_id} (pid {pid}): {reason}"));
    }
    worker.tracing = ready.tracing;
    worker.hook_failure = ready.hook_failure;
    if state.is_hook_required && worker.hook_failure.is_some() {
        worker.ending = Some(Ending::HookFailed);
        effects.kill(worker_id);
        return;
    }
    if worker.phase == WorkerPhase::Starting {
        worker.phase = WorkerPhase::Ready;
        worker.ready_monotonic_ns = Some(now.monotonic_ns);
        // At the front: workers that are warm already come first.
        state.available.insert(0, worker_id);
    }
}

/// A submission.
pub struct Submission<'a> {
    /// Who is told how it ends; none when nobody waits.
    pub driver: Option<DriverId>,
    /// The driver's own number for it, given back in every message about it.
    pub tag: u64,
    /// The driver's job that it belongs to.
    pub job: JobId,
    /// The encoded [`Envelope`]. It is copied.
    pub envelope: &'a [u8],
    /// Since when it waits, in nanoseconds since the Unix epoch; asked for only if the task traces the runtime.
    pub queued_unix_nano: u64,
}

/// Takes a task in and queues it.
pub fn on_submission(state: &mut State, submission: &Submission<'_>, now: Now) -> Result<TaskId, WireError> {
    let task = new_task(state, submission, now.unix_nano)?;
    let traces_runtime = task.traces_runtime;
    let id = state.tasks.insert(task);
    if traces_runtime {
        state.runtime_since.insert(id, submission.queued_unix_nano);
    }
    inputs::pin(state, id);
    nesting::note_child(state, id);
    inputs::queue_or_hold(state, id);
    Ok(id)
}

fn new_task(state: &mut State, submission: &Submission<'_>, submitted_unix_nano: u64) -> Result<Task, WireError> {
    let envelope = Envelope::decode(submission.envelope)?;
    let is_command = matches!(envelope.spec, TaskSpec::Command(_));
    let run_limit_ns = envelope.run_limit.map_or(0, |limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
    let target = target(state, &envelope.spec);
    Ok(Task {
        envelope: submission.envelope.into(),
        name: (!envelope.name.is_empty()).then(|| envelope.name.into()),
        target,
        submitter: envelope.submitter,
        links: (!envelope.inputs.is_empty()).then(|| Box::new(Links { inputs: envelope.inputs, ..Links::default() })),
        driver: submission.driver,
        tag: submission.tag,
        job: submission.job,
        trace_id: envelope.trace.map_or([0; 16], |trace| trace.trace_id),
        submitted_unix_nano,
        run_limit_ns: if is_command && run_limit_ns > 0 {
            run_limit_ns.saturating_add(COMMAND_GRACE_NS)
        } else {
            run_limit_ns
        },
        attempt: 0,
        must_be_alone: is_command || run_limit_ns > 0 || envelope.wants_output,
        wants_output: envelope.wants_output,
        traces_runtime: envelope.traces_runtime,
        progress: Progress::Waiting,
    })
}

/// A task that a head before this one had accepted is read back. Nobody waits for it any more.
pub fn on_restored_submission(
    state: &mut State,
    id: TaskId,
    job: JobId,
    submitted_unix_nano: u64,
    envelope: &[u8],
) -> Result<(), WireError> {
    let queued_unix_nano = submitted_unix_nano;
    let submission = Submission { driver: None, tag: 0, job, envelope, queued_unix_nano };
    let task = new_task(state, &submission, submitted_unix_nano)?;
    if task.traces_runtime {
        state.runtime_since.insert(id, queued_unix_nano);
    }
    state.tasks.restore(id, task);
    inputs::pin(state, id);
    nesting::note_child(state, id);
    Ok(())
}

/// A task that has ended under a head before this one is read back, as far as it is remembered.
pub fn on_restored_memory(state: &mut State, id: TaskId, task: Remembered<'_>) {
    let target = state.targets.index(task.target);
    state.tasks.restore(
        id,
        Task {
            envelope: Box::default(),
            name: (!task.name.is_empty()).then(|| task.name.into()),
            target,
            submitter: None,
            links: None,
            driver: None,
            tag: 0,
            job: task.job,
            trace_id: task.trace_id,
            submitted_unix_nano: task.submitted_unix_nano,
            run_limit_ns: 0,
            attempt: 0,
            must_be_alone: false,
            wants_output: false,
            traces_runtime: false,
            progress: Progress::Waiting,
        },
    );
}

/// What is left of an ended task's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remembered<'a> {
    /// See [`Task::job`].
    pub job: JobId,
    /// See [`Task::submitted_unix_nano`].
    pub submitted_unix_nano: u64,
    /// See [`Task::trace_id`].
    pub trace_id: [u8; 16],
    /// Its target's name.
    pub target: &'a str,
    /// The name given with `--name`; empty for none.
    pub name: &'a str,
}

/// The end of a task under a head before this one is read back.
pub fn on_restored_end(state: &mut State, id: TaskId, attempt: u32, ended: Ended) {
    if let Some(task) = state.tasks.get_mut(id) {
        task.attempt = attempt;
        inputs::unpin(state, id);
        nesting::forget_children(state, id);
        // Written again it would be told twice.
        remember_end(state, id, ended);
    }
}

/// Everything is read back. What had been claimed by a worker of the dead head, and has not ended, is lost; what had not, waits
/// again. Returns the lost attempts.
pub fn on_restored(
    state: &mut State,
    effects: &mut impl Effects,
    claimed: &HashSet<TaskId>,
    now: Now,
) -> Vec<LostAttempt> {
    let mut open: Vec<_> = state
        .tasks
        .iter_newest_first()
        .filter(|(_, task)| !matches!(task.progress, Progress::Ended(_)))
        .map(|(id, _)| id)
        .collect();
    open.reverse();
    let mut lost = Vec::new();
    for id in open {
        let Some(task) = state.tasks.get_mut(id) else { continue };
        if !claimed.contains(&id) {
            inputs::queue_or_hold(state, id);
            continue;
        }
        task.attempt = 1;
        lost.push(LostAttempt {
            task: id,
            attempt: task.attempt,
            job: task.job,
            submitted_unix_nano: task.submitted_unix_nano,
            granted_unix_nano: task.submitted_unix_nano,
            envelope: task.envelope.clone(),
        });
        end_task(state, effects, id, unstarted(Failure::HeadLost, now));
    }
    lost
}

fn target(state: &mut State, spec: &TaskSpec<'_>) -> TargetIndex {
    match spec {
        // The common case without an allocation: a function of a module given by name.
        TaskSpec::Function(function) if !crate::hook::is_path(function.module) => {
            let mut name = [0; 256];
            let (module, function) = (function.module.as_bytes(), function.function.as_bytes());
            let length = module.len() + 1 + function.len();
            if let Some(name) = name.get_mut(..length) {
                name[..module.len()].copy_from_slice(module);
                name[module.len()] = b'.';
                name[module.len() + 1..].copy_from_slice(function);
                let name = std::str::from_utf8(name).expect("made of two strings and a dot");
                return state.targets.index(name);
            }
            state.targets.index(&spec.target())
        }
        _ => state.targets.index(&spec.target()),
    }
}

/// An attempt has ended.
pub fn on_result(state: &mut State, effects: &mut impl Effects, worker_id: WorkerId, result: AttemptResult, now: Now) {
    let Some(worker) = state.workers.get_mut(&worker_id) else { return };
    let Some(grant) = worker.take_lease(result.lease) else {
        effects.log(format!("worker {worker_id} reported lease {}, which it does not have", result.lease));
        return;
    };
    worker.tasks_ended += 1;
    state.failed_starts = 0;
    state.brief_lives = 0;
    let pid = worker.pid;
    state.counts.leased -= 1;
    if let Some(task) = state.tasks.get(grant.task) {
        state.targets.run_time(task.target).observe(result.run_ns);
        if task.traces_runtime {
            state.runtime_since.insert(grant.task, result.started_unix_nano.saturating_add(result.run_ns));
        }
    }
    let ended = Ended {
        outcome: result.outcome,
        worker: Some(worker_id),
        worker_pid: Some(pid),
        started_unix_nano: Some(result.started_unix_nano),
        ended_unix_nano: now.unix_nano,
    };
    end_task(state, effects, grant.task, ended);
    nesting::on_attempt_ended(state, effects, worker_id, grant.task);
}

/// The [`WorkerExit::error_type`] of a process that ended without an error.
const EXITED_WELL: &str = "exit:0";

/// How a worker process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerExit {
    /// Fits after "it": `was killed by SIGKILL (signal 9)`, `exited with code 3`.
    pub cause: String,
    /// The value of `error.type`: `signal:9`, `exit:3`.
    pub error_type: String,
}

/// What a lost worker's spans are closed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The value of `error.type` on every span that is closed for the worker.
    pub error_type: String,
    /// What happened, as the description of their status.
    pub description: String,
    /// Attempts that had begun, with what is needed to make their span if they did not get that far.
    pub attempts: Vec<LostAttempt>,
}

/// An attempt that a worker had claimed and not reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostAttempt {
    /// The task.
    pub task: TaskId,
    /// Which attempt at it this was, from 1.
    pub attempt: u32,
    /// The driver's job that the task belongs to.
    pub job: JobId,
    /// When the head accepted the task, in nanoseconds since the Unix epoch.
    pub submitted_unix_nano: u64,
    /// When the lease was granted, in nanoseconds since the Unix epoch; the nearest that the head knows to the
    /// beginning of the attempt.
    pub granted_unix_nano: u64,
    /// The task's encoded [`Envelope`].
    pub envelope: Box<[u8]>,
}

/// A worker process has ended. Its claimed tasks fail; the others go back to the front of the queue, free of charge.
pub fn on_worker_exited(
    state: &mut State,
    effects: &mut impl Effects,
    worker_id: WorkerId,
    exit: &WorkerExit,
    now: Now,
) -> Option<Loss> {
    let worker = state.workers.remove(&worker_id)?;
    state.available.retain(|&available| available != worker_id);
    let was_asked = matches!(worker.ending, Some(Ending::Stopped | Ending::NotNeeded));
    if !was_asked {
        state.workers_lost += 1;
        effects.log(format!("worker {worker_id} (pid {}) {}", worker.pid, exit.cause));
    }
    let description = match &worker.ending {
        Some(Ending::TimedOut { after_ns, .. }) => {
            Failure::TimedOut { limit: TimeLimit::Run, after_ns: *after_ns }.to_string()
        }
        Some(Ending::Cancelled { .. }) => Failure::Cancelled.to_string(),
        // It ended in good order, and what it had not ended itself is what task code forgot.
        Some(Ending::Stopped | Ending::NotNeeded) if exit.error_type == EXITED_WELL => {
            "it was still open when the worker ended".to_owned()
        }
        _ => format!("the worker {}", exit.cause),
    };
    let error_type = match &worker.ending {
        Some(Ending::TimedOut { .. }) => "timeout".to_owned(),
        Some(Ending::Cancelled { .. }) => "cancelled".to_owned(),
        Some(Ending::Stopped | Ending::NotNeeded) if exit.error_type == EXITED_WELL => "unfinished".to_owned(),
        _ => exit.error_type.clone(),
    };
    let mut loss = Loss { error_type, description, attempts: Vec::new() };
    let running = effects.running(worker_id);
    state.counts.leased -= worker.leases.len() + worker.inline.len();
    let mut unclaimed = Vec::new();
    for grant in worker.leases.iter().chain(&worker.inline) {
        if effects.claim_state(worker_id, grant.number) != ClaimState::Claimed {
            unclaimed.push(grant.task);
            continue;
        }
        let Some(task) = state.tasks.get(grant.task) else { continue };
        loss.attempts.push(LostAttempt {
            task: grant.task,
            attempt: task.attempt,
            job: task.job,
            submitted_unix_nano: task.submitted_unix_nano,
            granted_unix_nano: grant.granted.unix_nano,
            envelope: task.envelope.clone(),
        });
        let failure = match &worker.ending {
            Some(Ending::TimedOut { task, after_ns }) if *task == grant.task => {
                Failure::TimedOut { limit: TimeLimit::Run, after_ns: *after_ns }
            }
            Some(Ending::Cancelled { task }) if *task == grant.task => nesting::why_cancelled(state, *task),
            Some(Ending::Stopped) => Failure::HeadStopped,
            _ if is_running(running, grant) => Failure::WorkerLost {
                worker_pid: worker.pid,
                cause: exit.cause.clone(),
                error_type: exit.error_type.clone(),
            },
            _ => Failure::WorkerLost {
                worker_pid: worker.pid,
                cause: format!("{} after the task had ended and before its result was sent", exit.cause),
                error_type: exit.error_type.clone(),
            },
        };
        let since = running.filter(|&(lease, _)| lease == grant.number).map(|(_, since)| since);
        let ended = Ended {
            outcome: Outcome::Failed(failure),
            worker: Some(worker_id),
            worker_pid: Some(worker.pid),
            started_unix_nano: Some(since.unwrap_or(grant.granted.unix_nano)),
            ended_unix_nano: now.unix_nano,
        };
        end_task(state, effects, grant.task, ended);
    }
    for task in unclaimed.into_iter().rev() {
        put_back(state, task);
    }
    // A worker that ends as soon as it is ready is no better than one that never gets ready.
    let has_lived = |worker: &Worker| {
        worker.ready_monotonic_ns.is_some_and(|ready| now.monotonic_ns.saturating_sub(ready) >= LIVED_NS)
    };
    if worker.tasks_ended > 0 || has_lived(&worker) || state.workers.values().any(has_lived) {
        state.failed_starts = 0;
        state.brief_lives = 0;
    } else if !was_asked && loss.attempts.is_empty() {
        match worker.phase {
            WorkerPhase::Starting => state.failed_starts += 1,
            WorkerPhase::Ready | WorkerPhase::Stopping => state.brief_lives += 1,
        }
        let reason = match worker.ending {
            Some(Ending::StartTimedOut) => "did not get ready in time".to_owned(),
            Some(Ending::HookFailed) => worker.hook_failure.clone().unwrap_or_default(),
            _ => exit.cause.clone(),
        };
        if state.is_hook_required && !state.has_started && worker.ending == Some(Ending::HookFailed) {
            let message = format!("tracing is required, but the hook failed in a worker: {reason}");
            give_up(state, effects, message, now);
        }
        give_up_if_hopeless(state, effects, &reason, now);
    }
    Some(loss)
}

/// Whether a claimed lease is being run, by what the worker says of those in its ring.
fn is_running(in_ring: Option<(u64, u64)>, grant: &Grant) -> bool {
    grant.number & INLINE_LEASE != 0 || in_ring.is_some_and(|(lease, _)| lease == grant.number)
}

/// Ends the respawning when worker after worker dies before it is ready, and fails what waits for one.
fn give_up_if_hopeless(state: &mut State, effects: &mut impl Effects, reason: &str, now: Now) {
    let what = if state.failed_starts >= FAILED_STARTS_LIMIT {
        format!("{} workers in a row did not get ready", state.failed_starts)
    } else if state.brief_lives >= BRIEF_LIVES_LIMIT {
        format!("{} workers in a row ended as soon as they were ready", state.brief_lives)
    } else {
        return;
    };
    if state.no_worker.is_some() {
        return;
    }
    let blame = state.hook.as_ref().map(|hook| format!(" (hook `{hook}` runs in each)")).unwrap_or_default();
    let message = format!("{what}{blame}; the last one: {reason}");
    give_up(state, effects, message, now);
}

/// Starts no worker from now on.
fn give_up(state: &mut State, effects: &mut impl Effects, message: String, now: Now) {
    effects.log(format!("no more workers are started: {message}"));
    state.no_worker = Some(message);
    fail_if_no_worker(state, effects, now);
}

/// Fails what waits when there is no worker and will be none.
pub fn fail_if_no_worker(state: &mut State, effects: &mut impl Effects, now: Now) {
    // Until the start has succeeded, what waits is what another head had accepted, and waits for a head that can start.
    let is_hopeless = state.has_started && state.workers.is_empty();
    let Some(message) = state.no_worker.clone().filter(|_| is_hopeless) else { return };
    for task in std::mem::take(&mut state.queue).iter() {
        state.counts.waiting -= 1;
        let failure = Failure::NoWorker { message: format!("no worker can run it: {message}") };
        end_task(state, effects, task, unstarted(failure, now));
    }
}

pub(super) fn unstarted(failure: Failure, now: Now) -> Ended {
    Ended {
        outcome: Outcome::Failed(failure),
        worker: None,
        worker_pid: None,
        started_unix_nano: None,
        ended_unix_nano: now.unix_nano,
    }
}

/// Ends a task whose lease was taken back from its worker before it was begun.
fn end_unbegun(
    state: &mut State,
    effects: &mut impl Effects,
    worker_id: WorkerId,
    lease: u64,
    failure: Failure,
    now: Now,
) {
    let Some(grant) = state.workers.get_mut(&worker_id).and_then(|worker| worker.take_lease(lease)) else { return };
    state.counts.leased -= 1;
    if let Some(task) = state.tasks.get_mut(grant.task) {
        task.attempt -= 1;
    }
    end_task(state, effects, grant.task, unstarted(failure, now));
}

/// Puts a task back at the front of the queue.
fn put_back(state: &mut State, id: TaskId) {
    if let Some(task) = state.tasks.get_mut(id) {
        task.progress = Progress::Waiting;
        task.attempt -= 1;
        state.queue.push_front(id, task.submitter, task.job);
        state.counts.waiting += 1;
    }
}

/// Records the one outcome of a task and tells who waits for it.
pub(super) fn end_task(state: &mut State, effects: &mut impl Effects, id: TaskId, ended: Ended) {
    let Some(task) = state.tasks.get_mut(id) else { return };
    effects.journal_end(id, task.attempt, &ended);
    // What an attempt did not report ended when the head learnt of it.
    let ended_unix_nano = task.traces_runtime.then(|| {
        let since = state.runtime_since.remove(&id);
        let is_reported = |since: &u64| ended.started_unix_nano.is_some_and(|started| *since > started);
        since.filter(is_reported).unwrap_or(ended.ended_unix_nano)
    });
    if let Some(driver) = task.driver {
        effects.finished(driver, task.tag, id, task.attempt, &ended.outcome, ended_unix_nano);
    }
    let submitter = task.submitter;
    inputs::on_task_ended(state, id, &ended.outcome);
    nesting::leave_children(state, id, &ended.outcome);
    remember_end(state, id, ended);
    nesting::on_task_ended(state, effects, id, submitter);
}

/// Keeps an outcome, as long as there is room for it.
fn remember_end(state: &mut State, id: TaskId, ended: Ended) {
    let Some(task) = state.tasks.get_mut(id) else { return };
    match ended.outcome {
        Outcome::Failed(_) => state.counts.failed += 1,
        Outcome::Returned(_) | Outcome::Stored(_) | Outcome::Completed => state.counts.succeeded += 1,
    }
    task.envelope = Box::default();
    if task.traces_runtime {
        state.runtime_since.remove(&id);
    }
    state.ended_bytes += ended.size();
    task.progress = Progress::Ended(Box::new(ended));
    state.ended.push_back(id);
    inputs::on_remembered(state, id);
    while state.ended.len() > HISTORY_LIMIT || (state.ended_bytes > HISTORY_BYTES_LIMIT && state.ended.len() > 1) {
        let is_pinned = |id: &TaskId| {
            let links = state.tasks.get(*id).and_then(|task| task.links.as_ref());
            links.is_some_and(|links| links.pins > 0)
        };
        // Those whose results are still to be arguments are kept, however many they are.
        let Some(place) = state.ended.iter().position(|id| !is_pinned(id)) else { break };
        let Some(oldest) = state.ended.remove(place).and_then(|id| state.tasks.remove(id)) else { continue };
        if let Progress::Ended(ended) = oldest.progress {
            state.ended_bytes -= ended.size();
            inputs::drop_outcome(state, &ended.outcome);
        }
        state.counts.forgotten += 1;
    }
}

/// Grants leases to workers that have room, and takes unclaimed ones back for workers that have nothing.
pub fn schedule(state: &mut State, effects: &mut impl Effects, now: Now) {
    inputs::fail_without_input(state, effects, now);
    nesting::cancel_abandoned(state, effects, now);
    if state.is_stopping {
        return;
    }
    // The worker used last comes first: its caches are warm, and with little to do the others can sleep.
    let mut index = state.available.len();
    let mut free_slots = nesting::free_slots(state);
    while index > 0 && !state.queue.is_empty() {
        index -= 1;
        let worker_id = state.available[index];
        let is_idle = |id: &WorkerId| state.workers.get(id).is_some_and(|worker| worker.leases.is_empty());
        let (idle, busy): (Vec<_>, Vec<_>) = state.available[..=index]
            .iter()
            .filter(|id| state.workers.get(id).is_some_and(|worker| scheduler::wants_more(worker.load)))
            .partition(|id| is_idle(id));
        let with_room = busy.len() + idle.len().min(free_slots);
        let was_idle = is_idle(&worker_id);
        if (was_idle && free_slots == 0) || !(idle.contains(&&worker_id) || busy.contains(&&worker_id)) {
            continue;
        }
        grant(state, effects, worker_id, scheduler::share(state.queue.len(), with_room), now);
        if was_idle && state.workers.get(&worker_id).is_some_and(|worker| !worker.leases.is_empty()) {
            free_slots -= 1;
        }
    }
    if state.queue.is_empty() {
        rebalance(state, effects, now);
    } else {
        nesting::run_in_waiters(state, effects, now);
    }
}

fn grant(state: &mut State, effects: &mut impl Effects, worker_id: WorkerId, share: usize, now: Now) {
    let Some(worker) = state.workers.get_mut(&worker_id) else { return };
    let mut granted = 0;
    while granted < share {
        let Some(&id) = state.queue.front() else { break };
        let task = state.tasks.get_mut(id).expect("a queued task is in the table");
        let candidate = Candidate {
            expected_ns: state.targets.run_time(task.target).expected_ns(),
            must_be_alone: task.must_be_alone,
        };
        if !scheduler::fits(worker.load, candidate) {
            break;
        }
        // The ring has room for this many numbers from the oldest lease on; those taken back in between have used some.
        if worker.leases.front().is_some_and(|oldest| worker.next_lease - oldest.number >= CLAIM_COUNT as u64) {
            break;
        }
        state.queue.pop_front();
        let inputs = inputs::values(&state.tasks, id);
        let task = state.tasks.get_mut(id).expect("a queued task is in the table");
        task.attempt += 1;
        task.progress = Progress::Leased { worker: worker_id };
        let number = worker.next_lease;
        worker.next_lease += 1;
        worker.leases.push_back(Grant { number, task: id, expected_ns: candidate.expected_ns, granted: now });
        worker.load.leases += 1;
        worker.load.expected_ns += candidate.expected_ns;
        worker.load.is_exclusive |= candidate.must_be_alone;
        effects.lease(
            worker_id,
            Lease {
                number,
                task: id,
                attempt: task.attempt,
                job: task.job,
                submitted_unix_nano: task.submitted_unix_nano,
                envelope: &task.envelope,
                queued: task.traces_runtime.then(|| {
                    let start_unix_nano = state.runtime_since.get(&id).copied().unwrap_or(now.unix_nano);
                    Period { start_unix_nano, end_unix_nano: now.unix_nano.max(start_unix_nano) }
                }),
                inputs: &inputs,
            },
        );
        granted += 1;
    }
    state.counts.waiting -= granted;
    state.counts.leased += granted;
    if granted > 0 {
        // Moved to the end: it is the one used last.
        state.available.retain(|&available| available != worker_id);
        state.available.push(worker_id);
    }
}

/// Takes unclaimed leases back from a worker that is behind, for one that has nothing to do.
fn rebalance(state: &mut State, effects: &mut impl Effects, now: Now) {
    if !has_idle(state) || nesting::free_slots(state) == 0 {
        return;
    }
    let behind = state.available.iter().copied().filter(|id| {
        state.workers.get(id).is_some_and(|worker| worker.leases.len() > 1 && is_behind(effects, *id, worker, now))
    });
    let Some(busiest) = behind.max_by_key(|id| state.workers[id].load.expected_ns) else { return };
    let worker = state.workers.get_mut(&busiest).expect("chosen among those that exist");
    // The first is being run, or about to be.
    let unclaimed: Vec<_> = worker.leases.iter().skip(1).copied().collect();
    let mut taken = Vec::new();
    for grant in unclaimed.iter().rev().take(scheduler::to_take_back(unclaimed.len())) {
        if !effects.revoke(busiest, grant.number) {
            break;
        }
        worker.take_lease(grant.number);
        taken.push(grant.task);
    }
    if taken.is_empty() {
        return;
    }
    state.counts.leased -= taken.len();
    for task in taken {
        put_back(state, task);
    }
    for index in (0..state.available.len()).rev() {
        let id = state.available[index];
        if state.workers.get(&id).is_some_and(|worker| worker.leases.is_empty()) {
            grant(state, effects, id, state.queue.len(), now);
            break;
        }
    }
}

/// Whether a worker has nothing to do.
fn has_idle(state: &State) -> bool {
    state.available.iter().any(|id| state.workers.get(id).is_some_and(|worker| worker.leases.is_empty()))
}

/// Whether what a worker has not begun would wait so long that it is worth moving: a few short tasks are done before they could
/// be moved. How long tasks take is a guess; how long this one has been running is not.
fn is_behind(effects: &impl Effects, id: WorkerId, worker: &Worker, now: Now) -> bool {
    let has_run = |(_, since)| now.unix_nano.saturating_sub(since) >= BEHIND_NS;
    worker.load.expected_ns >= BEHIND_NS || effects.running(id).is_some_and(has_run)
}

/// Ends what has run too long, and workers that do not get ready. Returns when to call again, in nanoseconds of the
/// monotonic clock.
pub fn on_tick(state: &mut State, effects: &mut impl Effects, start_limit_ns: u64, now: Now) -> Option<u64> {
    let mut next: Option<u64> = None;
    for (&worker_id, worker) in &mut state.workers {
        if worker.ending.is_some() {
            continue;
        }
        let (since, limit, ending) = if worker.phase == WorkerPhase::Starting {
            (worker.started, start_limit_ns, Ending::StartTimedOut)
        } else {
            let Some(grant) = worker.leases.front() else { continue };
            let limit = state.tasks.get(grant.task).map_or(0, |task| task.run_limit_ns);
            if limit == 0 {
                continue;
            }
            (grant.granted, limit, Ending::TimedOut { task: grant.task, after_ns: limit })
        };
        let deadline = since.monotonic_ns.saturating_add(limit);
        if deadline <= now.monotonic_ns {
            worker.ending = Some(ending);
            worker.phase = match worker.phase {
                WorkerPhase::Starting => WorkerPhase::Starting,
                _ => WorkerPhase::Stopping,
            };
            effects.kill(worker_id);
        } else {
            next = Some(next.map_or(deadline, |next| next.min(deadline)));
        }
    }
    let is_missing = nesting::missing_workers(state) > 0 && state.no_worker.is_none() && !state.is_stopping;
    if let Some(again) = state.start_again.as_ref().filter(|_| is_missing) {
        next = Some(next.map_or(again.monotonic_ns, |next| next.min(again.monotonic_ns)));
    }
    if let Some(surplus) = nesting::end_surplus(state, effects, now) {
        next = Some(next.map_or(surplus, |next| next.min(surplus)));
    }
    let workers = &state.workers;
    state.available.retain(|id| workers.get(id).is_some_and(|worker| worker.phase == WorkerPhase::Ready));
    // A task may turn out to be long while another worker has nothing to do; nobody would say so.
    let may_fall_behind = has_idle(state) && state.workers.values().any(|worker| worker.leases.len() > 1);
    let look_again = may_fall_behind.then(|| now.monotonic_ns + BEHIND_NS);
    next.into_iter().chain(look_again).min()
}

/// Puts every lease that a worker has not begun back at the front of the queue.
pub(super) fn take_back_unclaimed(state: &mut State, effects: &mut impl Effects, worker_id: WorkerId) {
    let Some(worker) = state.workers.get_mut(&worker_id) else { return };
    let mut taken = Vec::new();
    for grant in worker.leases.iter().copied().collect::<Vec<_>>() {
        if effects.revoke(worker_id, grant.number) {
            worker.take_lease(grant.number);
            taken.push(grant.task);
        }
    }
    state.counts.leased -= taken.len();
    for task in taken.into_iter().rev() {
        put_back(state, task);
    }
}

/// Someone wants a task to end.
pub fn on_cancel(state: &mut State, effects: &mut impl Effects, id: TaskId, now: Now) -> CancelReport {
    let Some(task) = state.tasks.get(id) else { return CancelReport::Unknown };
    let worker_id = match task.progress {
        Progress::Ended(_) => return CancelReport::Ended,
        Progress::Waiting | Progress::Held => {
            inputs::take_out(state, id);
            let failure = nesting::why_cancelled(state, id);
            end_task(state, effects, id, unstarted(failure, now));
            return CancelReport::Cancelled;
        }
        Progress::Leased { worker } => worker,
    };
    let Some(worker) = state.workers.get_mut(&worker_id) else { return CancelReport::Unknown };
    let mut grants = worker.leases.iter().chain(&worker.inline);
    let Some(number) = grants.find(|grant| grant.task == id).map(|grant| grant.number) else {
        return CancelReport::Unknown;
    };
    if number & INLINE_LEASE == 0 && effects.revoke(worker_id, number) {
        let failure = nesting::why_cancelled(state, id);
        end_unbegun(state, effects, worker_id, number, failure, now);
        return CancelReport::Cancelled;
    }
    // Native code cannot be asked to end, so the worker goes; but it must not take another task with it. What it has not begun
    // is taken back first, so that afterwards it runs this task or none.
    take_back_unclaimed(state, effects, worker_id);
    if number & INLINE_LEASE == 0 && effects.running(worker_id).is_none_or(|(lease, _)| lease != number) {
        // It has ended, and its result is on the way.
        return CancelReport::Ended;
    }
    let Some(worker) = state.workers.get_mut(&worker_id) else { return CancelReport::Unknown };
    worker.ending.get_or_insert(Ending::Cancelled { task: id });
    worker.phase = WorkerPhase::Stopping;
    state.available.retain(|&available| available != worker_id);
    effects.kill(worker_id);
    CancelReport::Cancelled
}

/// The head is to stop: what waits fails, workers are asked to end, or killed.
pub fn on_stop(state: &mut State, effects: &mut impl Effects, force: bool, now: Now) {
    state.is_stopping = true;
    state.available.clear();
    for task in inputs::take_all(state) {
        end_task(state, effects, task, unstarted(Failure::HeadStopped, now));
    }
    let workers: Vec<_> = state.workers.keys().copied().collect();
    for worker_id in workers {
        let worker = state.workers.get_mut(&worker_id).expect("its id was just read");
        worker.ending.get_or_insert(Ending::Stopped);
        worker.phase = WorkerPhase::Stopping;
        // What it has not begun, it shall not begin.
        let unclaimed: Vec<_> =
            worker.leases.iter().map(|grant| grant.number).filter(|&lease| effects.revoke(worker_id, lease)).collect();
        for lease in unclaimed {
            end_unbegun(state, effects, worker_id, lease, Failure::HeadStopped, now);
        }
        if force {
            effects.kill(worker_id);
        } else {
            effects.ask_to_end(worker_id);
        }
    }
}

/// The grace period is over.
pub fn on_stop_overdue(state: &mut State, effects: &mut impl Effects) {
    state.workers.keys().copied().collect::<Vec<_>>().into_iter().for_each(|worker| effects.kill(worker));
}

/// The newest tasks.
pub fn list_tasks(state: &State, effects: &impl Effects, limit: usize) -> TaskList {
    let tasks: Vec<_> =
        state.tasks.iter_newest_first().take(limit).map(|(id, task)| report(state, effects, id, task)).collect();
    TaskList { left_out: state.tasks.len() - tasks.len(), forgotten: state.counts.forgotten, tasks }
}

/// One task with its result.
pub fn get_task(state: &State, effects: &impl Effects, id: TaskId) -> Option<TaskReport> {
    let task = state.tasks.get(id)?;
    let mut report = report(state, effects, id, task);
    if let Progress::Ended(ended) = &task.progress {
        match &ended.outcome {
            Outcome::Returned(value) => report.result = crate::value::to_json(value).ok(),
            Outcome::Stored(stored) => report.stored = Some(stored.clone()),
            Outcome::Completed | Outcome::Failed(_) => {}
        }
    }
    Some(report)
}

/// Why a task waits, what it is at, or why it ended as it did.
pub fn explain_task(state: &State, effects: &impl Effects, id: TaskId) -> Option<Explanation> {
    explain::explain(state, effects, id)
}

/// Every worker.
pub fn list_workers(state: &State, effects: &impl Effects, now: Now) -> Vec<WorkerReport> {
    state
        .workers
        .iter()
        .map(|(&id, worker)| {
            let running = effects.running(id).map(|(lease, _)| lease);
            let running = worker.leases.iter().find(|grant| Some(grant.number) == running);
            let running = worker.inline.last().or(running);
            WorkerReport {
                id,
                pid: worker.pid,
                state: match worker.phase {
                    WorkerPhase::Starting => WorkerState::Starting,
                    WorkerPhase::Stopping => WorkerState::Stopping,
                    WorkerPhase::Ready if worker.leases.is_empty() => WorkerState::Idle,
                    WorkerPhase::Ready if worker.is_waiting() => WorkerState::Waiting,
                    WorkerPhase::Ready => WorkerState::Busy,
                },
                uptime_ns: now.monotonic_ns.saturating_sub(worker.started.monotonic_ns),
                task: running.map(|grant| grant.task),
                leases: worker.leases.len(),
                tasks_ended: worker.tasks_ended,
                tracing: worker.tracing.clone(),
                hook_failure: worker.hook_failure.clone(),
            }
        })
        .collect()
}

/// A task's row for people.
pub(super) fn report(state: &State, effects: &impl Effects, id: TaskId, task: &Task) -> TaskReport {
    let running = match &task.progress {
        Progress::Leased { worker: worker_id } => state.workers.get(worker_id).and_then(|worker| {
            if let Some(grant) = worker.inline.iter().find(|grant| grant.task == id) {
                return Some(grant.granted.unix_nano);
            }
            let lease = worker.leases.iter().find(|grant| grant.task == id)?.number;
            (effects.claim_state(*worker_id, lease) == ClaimState::Claimed).then_some(())?;
            let (running, since) = effects.running(*worker_id)?;
            (running == lease).then_some(since)
        }),
        Progress::Waiting | Progress::Held | Progress::Ended(_) => None,
    };
    let phase = match &task.progress {
        Progress::Waiting | Progress::Held => TaskState::Waiting,
        Progress::Leased { .. } if running.is_some() => TaskState::Running,
        Progress::Leased { .. } => TaskState::Leased,
        Progress::Ended(ended) => match ended.outcome {
            Outcome::Failed(_) => TaskState::Failed,
            Outcome::Returned(_) | Outcome::Stored(_) | Outcome::Completed => TaskState::Succeeded,
        },
    };
    let mut report = state.report(id, task, phase);
    report.started_unix_nano = report.started_unix_nano.or(running);
    report
}

#[cfg(test)]
#[path = "reactor_tests.rs"]
mod tests;
