//! What the head does about what happens: plain functions over [`State`], with every effect going out through [`Effects`].
//!
//! Nothing here reads a clock, touches a socket or knows a process. Inputs come in through the `on_` functions; after a batch of
//! them the server calls [`schedule`] once.

use std::collections::HashMap;
use std::sync::Arc;

use tracer_core::codec::WireError;
use tracer_core::task::{
    ActorRole, AttemptReport, Charge, DEFAULT_GRACE, Demand, Envelope, Failure, JobId, MemoryExceeded, Outcome, Policy,
    SpanLink, StopReason, TaskId, TaskSpec, TimeLimit, Verdict, WorkerId, charge,
};
use tracer_core::value::JsonText;
use tracer_ipc::protocol::{
    AttemptResult, CancelReport, CancelWhich, Explanation, INLINE_LEASE, Lease, Period, TaskFilter, TaskList,
    TaskReport, TaskState, WorkerReady, WorkerReport, WorkerState,
};
use tracer_ipc::spool::{CLAIM_COUNT, ClaimState};

pub use super::actors::Death;
use super::actors::{self, Part};
use super::lanes::{self, Free, LaneKey, Needs};
use super::progress::Event;
use super::state::{
    Description, DriverId, Ended, Ending, Grant, Keyed, Limits, Links, Now, Past, Progress, Shown, Stage, StartAgain,
    State, StopStep, Stopping, TargetIndex, Task, Terms, ToStop, Worker, WorkerPhase,
};
use super::{explain, inputs, nesting, versions};
use crate::scheduler::{self, Candidate};

/// Everything the reactor may cause. The server does it; tests remember it.
pub trait Effects {
    /// Hands out what a worker has written so far.
    fn drain_output(&mut self, worker: WorkerId, watchers: &Watchers);
    /// Enters a lease in the worker's ring of claims and sends it.
    fn lease(&mut self, worker: WorkerId, lease: Lease<'_>);
    /// Writes submissions to the journal, as the tasks with consecutive ids from `first` on, before they are acknowledged. When it fails, none of
    /// them is in it. Returns how long it took, if one of them traces the runtime.
    fn journal_submit(
        &mut self,
        first: TaskId,
        submissions: &[Submission<'_>],
        now: Now,
    ) -> Result<Option<Period>, String>;
    /// Notes in the journal how a task ended, before anyone is told.
    fn journal_end(&mut self, task: TaskId, attempt: u32, ended: &Ended);
    /// Notes in the journal that an attempt is about to start, of a task that must not be started twice. It is there when this
    /// returns true; when it returns false, it could not be written.
    fn journal_start(&mut self, task: TaskId, attempt: u32) -> bool;
    /// Notes in the journal that an actor whose creation had ended is made again, or why it is dead.
    fn journal_actor(&mut self, actor: TaskId, attempt: u32, restarts: u32, death: Option<&Death>);
    /// Notes in the journal that an attempt failed after which the task is tried again.
    fn journal_attempt(&mut self, task: TaskId, attempt: &AttemptReport, span: Option<SpanLink>);
    /// Tells a driver how its task ended, by the driver's own number for it, and when, if the task traces the runtime.
    fn finished(
        &mut self,
        to: (DriverId, u64),
        task: TaskId,
        attempt: u32,
        outcome: &Outcome,
        ended_unix_nano: Option<u64>,
        past: &[AttemptReport],
    );
    /// Sends a worker a task to run while others of its tasks wait. It has no place in the ring of claims.
    fn lease_inline(&mut self, worker: WorkerId, lease: Lease<'_>);
    /// What became of a lease, as the spool of the worker has it.
    fn claim_state(&self, worker: WorkerId, lease: u64) -> ClaimState;
    /// Whether a worker has begun this attempt at a task while others of its tasks waited.
    fn has_begun_inline(&self, worker: WorkerId, task: TaskId, attempt: u32) -> bool;
    /// The lease that a worker is running, and since when in nanoseconds since the Unix epoch. A claimed lease that is not
    /// running has ended, and its result is on the way.
    fn running(&self, worker: WorkerId) -> Option<(u64, u64)>;
    /// Takes an unclaimed lease back. False when the worker was faster.
    fn revoke(&mut self, worker: WorkerId, lease: u64) -> bool;
    /// Starts a worker; it will be heard of.
    fn start_worker(&mut self, worker: WorkerId);
    /// Asks a worker to end when its task has ended.
    fn ask_to_end(&mut self, worker: WorkerId);
    /// Tells a worker that an attempt is to end, and why: the task may ask, and the worker says so in its result.
    fn ask_to_stop(&mut self, worker: WorkerId, task: TaskId, attempt: u32, why: StopReason);
    /// Sends SIGTERM, or SIGKILL, to the command that a worker runs, with its group. False when there is none yet.
    fn signal_command(&mut self, worker: WorkerId, kill: bool) -> bool;
    /// Sends SIGTERM to a worker and its group.
    fn terminate(&mut self, worker: WorkerId);
    /// Bounds the memory of a worker and of what it starts, as its next task asks; none for what every worker may take.
    fn bound_memory(&mut self, worker: WorkerId, limit_bytes: Option<u64>);
    /// Kills a worker and what it runs.
    fn kill(&mut self, worker: WorkerId);
    /// Writes a line to the head's log.
    fn log(&mut self, line: String);
}

/// Who is shown what a worker writes at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watchers {
    /// The tasks that run and whose output somebody wants, each with who that is.
    pub tasks: Vec<(TaskId, DriverId)>,
    /// Whether any of several calls of an actor may be writing.
    pub is_shared: bool,
}

/// Who is shown what this worker writes now. `claim_state` is what its ring of claims says of a lease.
pub fn watchers(state: &State, worker_id: WorkerId, claim_state: impl Fn(u64) -> ClaimState) -> Watchers {
    let worker = state.workers.get(&worker_id);
    let Some(worker) = worker.filter(|worker| !worker.watched.is_empty() && worker.inline.is_empty()) else {
        return Watchers::default();
    };
    let running = || worker.leases.iter().filter(|grant| claim_state(grant.number) == ClaimState::Claimed);
    let watched = running().filter(|grant| worker.watched.contains(&grant.number)).filter_map(|grant| {
        let task = state.tasks.get(grant.task).filter(|task| !matches!(task.progress(), Progress::Ended(_)))?;
        Some((grant.task, task.driver?))
    });
    Watchers { tasks: watched.collect(), is_shared: running().nth(1).is_some() }
}

/// Failed attempts of a task that are remembered one by one; of more than that, the newest.
const PAST_LIMIT: usize = 100;
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
/// Workers with several tasks that are looked at in one turn for some to take back: of those used last, and of those that were not for longest.
const FILLED_PER_TURN: usize = 16;
/// Workers in one turn for which what is next in the queue may be too long.
const FULL_PER_TURN: usize = 32;
/// How long to wait after a worker could not be started.
const START_AGAIN_NS: u64 = 1_000_000_000;
/// How long a worker has to live after it got ready, if it runs no task, to show that workers can.
const LIVED_NS: u64 = 1_000_000_000;
/// How long no worker is started after so many have failed in a row; twice as long each further time, up to a limit.
const RESUME_NS: u64 = 2_000_000_000;
const RESUME_LIMIT_NS: u64 = 64_000_000_000;
/// How soon a command that has not quite started is looked for again, to be ended.
const COMMAND_START_NS: u64 = 10_000_000;
/// How long a worker may take to report a command that got SIGKILL, before it is killed itself.
const COMMAND_END_NS: u64 = 2_000_000_000;

/// Starts the workers that are missing. Those that are to be replaced and have nothing to do end before.
pub fn start_missing_workers(state: &mut State, effects: &mut impl Effects, now: Now) {
    versions::end_outdated(state, effects);
    if state.resumes_ns.is_some_and(|resumes| resumes <= now.monotonic_ns) && !state.is_stopping {
        effects.log("workers are started again".into());
        (state.no_worker, state.resumes_ns) = (None, None);
        // One that fails is enough to wait again, and longer.
        (state.failed_starts, state.brief_lives) = (FAILED_STARTS_LIMIT - 1, BRIEF_LIVES_LIMIT - 1);
    }
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
            effects.log(format!("failed to start a worker, retrying every second: {reason}"));
        }
        let monotonic_ns = now.monotonic_ns.saturating_add(START_AGAIN_NS);
        state.start_again = Some(StartAgain { reason: reason.into(), monotonic_ns });
        return;
    }
    state.failed_starts += 1;
    state.was_start_refused = true;
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
    let Some(mut worker) = state.workers.get_mut(&worker_id) else { return };
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
    /// The encoded envelope. It is copied.
    pub bytes: &'a [u8],
    /// What it says.
    pub envelope: Envelope<'a>,
    /// Since when it waits, in nanoseconds since the Unix epoch; asked for only if the task traces the runtime.
    pub queued_unix_nano: u64,
}

/// Takes a task in and queues it.
pub fn on_submission(state: &mut State, submission: Submission<'_>, now: Now) -> TaskId {
    let queued_unix_nano = submission.queued_unix_nano;
    let (task, keyed) = new_task(state, submission, now.unix_nano);
    let traces_runtime = task.traces_runtime;
    state.open_bytes += task.open_bytes();
    let id = state.tasks.insert(task);
    if traces_runtime {
        state.runtime_since.insert(id, queued_unix_nano);
    }
    inputs::pin(state, id);
    nesting::note_child(state, id);
    actors::on_task(state, id);
    versions::on_task(state, id);
    inputs::queue_or_hold(state, id);
    remember_key(state, id, keyed);
    watch_queue_limit(state, id, now.monotonic_ns);
    id
}

/// A key that a submission named, which names another task already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyTaken {
    /// The key.
    pub key: String,
    /// The task that it names.
    pub task: TaskId,
    /// What that task runs.
    pub target: String,
}

/// The task that was submitted before under the key of this submission, if it has one and it is known.
pub fn find_by_key(state: &State, envelope: &Envelope<'_>) -> Result<Option<TaskId>, KeyTaken> {
    let key = envelope.policy.idempotency_key;
    let Some(known) = (!key.is_empty()).then(|| state.keys.get(key)).flatten() else { return Ok(None) };
    if known.fingerprint == envelope.spec.fingerprint() {
        return Ok(Some(known.task));
    }
    let target = state.tasks.get(known.task).map(|task| state.targets.name(task.target).to_owned());
    Err(KeyTaken { key: key.into(), task: known.task, target: target.unwrap_or_default() })
}

/// A driver has submitted a task again under its key: it waits for it too.
pub fn on_submitted_again(state: &mut State, effects: &mut impl Effects, id: TaskId, driver: DriverId, tag: u64) {
    let Some(task) = state.tasks.get(id) else { return };
    match task.progress() {
        Progress::Ended(ended) => {
            effects.finished((driver, tag), id, task.attempt, &ended.outcome, None, past_attempts(task));
        }
        _ => state.also_waiting.entry(id).or_default().push((driver, tag)),
    }
}

/// Enters when a task that has not begun has waited for too long.
fn watch_queue_limit(state: &mut State, id: TaskId, since_ns: u64) {
    let limits = state.tasks.get_mut(id).and_then(|task| task.limits.as_mut());
    if let Some(limits) = limits.filter(|limits| limits.queue_ns > 0) {
        limits.queue_until = since_ns.saturating_add(limits.queue_ns);
        state.queue_limits.insert((limits.queue_until, id));
    }
}

/// Forgets the limit on a task's waiting.
fn unwatch_queue_limit(state: &mut State, id: TaskId) {
    if let Some(limits) = state.tasks.get(id).and_then(|task| task.limits.as_ref()) {
        state.queue_limits.remove(&(limits.queue_until, id));
    }
}

/// Ends tasks that have waited for too long and have not begun.
fn end_waited_too_long(state: &mut State, effects: &mut impl Effects, now: Now) {
    while let Some(&(until, id)) = state.queue_limits.first().filter(|(until, _)| *until <= now.monotonic_ns) {
        state.queue_limits.remove(&(until, id));
        let Some(task) = state.tasks.get(id) else { continue };
        let after_ns = task.limits.as_ref().map_or(0, |limits| limits.queue_ns);
        let failure = Failure::TimedOut { limit: TimeLimit::Queue, after_ns };
        match task.progress() {
            Progress::Waiting | Progress::Held if task.past.is_none() => {
                inputs::take_out(state, id);
                end_task(state, effects, id, unstarted(failure, now));
            }
            &Progress::Leased { worker } if task.past.is_none() => {
                let lease = state.workers.get(&worker).and_then(|worker| worker.lease_of(id));
                let is_in_ring = |lease: &u64| lease & INLINE_LEASE == 0;
                if let Some(lease) = lease.filter(|lease| is_in_ring(lease) && effects.revoke(worker, *lease)) {
                    end_unbegun(state, effects, worker, lease, failure, now);
                }
            }
            // It has begun.
            Progress::Between
            | Progress::Waiting
            | Progress::Held
            | Progress::Leased { .. }
            | Progress::Retrying { .. }
            | Progress::Ended(_) => {}
        }
    }
}

fn past_attempts(task: &Task) -> &[AttemptReport] {
    task.past.as_ref().map_or(&[], |past| &past.attempts)
}

/// Enters a task's key, with what stands for what it runs.
fn remember_key(state: &mut State, id: TaskId, fingerprint: u64) {
    if let Some(key) = state.tasks.get(id).and_then(|task| task.key.clone()) {
        state.keys.insert(*key, Keyed { task: id, fingerprint });
    }
}

/// A task from its envelope, and what stands for what it runs if it has a key.
fn new_task(state: &mut State, submission: Submission<'_>, submitted_unix_nano: u64) -> (Task, u64) {
    let envelope = submission.envelope;
    let is_command = matches!(envelope.spec, TaskSpec::Command(_));
    let nanos = |limit: Option<std::time::Duration>| {
        limit.map_or(0, |limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX))
    };
    let limits = Limits {
        run_ns: nanos(envelope.run_limit),
        // Only a command's output is told from its worker's.
        idle_ns: if is_command { nanos(envelope.policy.idle_limit) } else { 0 },
        queue_ns: nanos(envelope.policy.queue_limit),
        queue_until: 0,
        memory_bytes: envelope.demand.memory_bytes.unwrap_or(0),
    };
    let target = target(state, &envelope);
    let key = envelope.policy.idempotency_key;
    let fingerprint = if key.is_empty() { 0 } else { envelope.spec.fingerprint() };
    let actor = Part::of(envelope.spec.actor());
    // A call whose output is wanted runs beside others if its method does: `actors::serve` decides that.
    let is_watched_alone = envelope.wants_output && !matches!(actor, Part::Call(_));
    let task = Task {
        description: Description::Envelope(submission.bytes.into()),
        target,
        submitter: envelope.submitter,
        links: (!envelope.inputs.is_empty()).then(|| Box::new(Links { inputs: envelope.inputs, ..Links::default() })),
        driver: submission.driver,
        tag: submission.tag,
        job: submission.job,
        submitted_unix_nano,
        limits: (limits != Limits::default()).then(|| Box::new(limits)),
        needs: Needs::of(&envelope.demand).map(|needs| state.queue.share(needs)),
        is_command,
        actor,
        attempt: 0,
        must_be_alone: limits.run_ns > 0
            || limits.idle_ns > 0
            || is_watched_alone
            || envelope.policy.at_most_once
            || envelope.demand != Demand::default(),
        wants_output: envelope.wants_output,
        traces_runtime: envelope.traces_runtime,
        at_most_once: envelope.policy.at_most_once,
        key: (!key.is_empty()).then(|| Box::new(key.into())),
        past: None,
        stage: Stage::default(),
    };
    (task, fingerprint)
}

/// A task that a head before this one had accepted is read back. Nobody waits for it any more.
pub fn on_restored_submission(
    state: &mut State,
    id: TaskId,
    job: JobId,
    submitted_unix_nano: u64,
    envelope: impl AsRef<[u8]>,
) -> Result<(), WireError> {
    if is_known(state, id) {
        return Ok(());
    }
    let queued_unix_nano = submitted_unix_nano;
    let bytes = envelope.as_ref();
    let envelope = Envelope::decode(bytes)?;
    let submission = Submission { driver: None, tag: 0, job, bytes, envelope, queued_unix_nano };
    let (task, fingerprint) = new_task(state, submission, submitted_unix_nano);
    if task.traces_runtime {
        state.runtime_since.insert(id, queued_unix_nano);
    }
    state.open_bytes += task.open_bytes();
    state.tasks.restore(id, task);
    inputs::pin(state, id);
    nesting::note_child(state, id);
    actors::on_task(state, id);
    versions::on_task(state, id);
    remember_key(state, id, fingerprint);
    Ok(())
}

/// Whether a task that is read back has been read before. Ids come in their order, each once, unless records are there twice.
fn is_known(state: &State, id: TaskId) -> bool {
    id < state.tasks.next_id()
}

/// A task that has ended under a head before this one is read back, as far as it is remembered.
pub fn on_restored_memory(state: &mut State, id: TaskId, task: Remembered<'_>) {
    if is_known(state, id) {
        return;
    }
    let target = state.targets.index(task.target);
    state.tasks.restore(
        id,
        Task {
            description: Description::Shown(Some(Box::new(Shown { name: task.name.into(), trace_id: task.trace_id }))),
            target,
            submitter: None,
            links: None,
            driver: None,
            tag: 0,
            job: task.job,
            submitted_unix_nano: task.submitted_unix_nano,
            limits: None,
            needs: None,
            is_command: false,
            actor: Part::None,
            attempt: 0,
            must_be_alone: false,
            wants_output: false,
            traces_runtime: false,
            at_most_once: false,
            key: None,
            past: None,
            stage: Stage::default(),
        },
    );
}

/// The key of a task under a head before this one is read back.
pub fn on_restored_key(state: &mut State, id: TaskId, key: &str, fingerprint: u64) {
    if let Some(task) = state.tasks.get_mut(id) {
        task.key = Some(Box::new(key.into()));
        remember_key(state, id, fingerprint);
    }
}

/// An attempt under a head before this one, after which the task was to be tried again, is read back.
pub fn on_restored_attempt(state: &mut State, id: TaskId, attempt: AttemptReport, span: Option<SpanLink>) {
    let is_new = |task: &&mut Task| attempt.number > task.attempt && !matches!(task.progress(), Progress::Ended(_));
    if let Some(task) = state.tasks.get_mut(id).filter(is_new) {
        task.attempt = attempt.number;
        let charge = attempt.failure.as_ref().and_then(charge).unwrap_or(Charge::Own);
        charge_attempt(task, charge, attempt, span);
    }
}

/// What is left of an ended task's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remembered<'a> {
    /// See [`Task::job`].
    pub job: JobId,
    /// See [`Task::submitted_unix_nano`].
    pub submitted_unix_nano: u64,
    /// See [`Shown::trace_id`].
    pub trace_id: [u8; 16],
    /// Its target's name.
    pub target: &'a str,
    /// The name given with `--name`; empty for none.
    pub name: &'a str,
}

/// The end of a task under a head before this one is read back.
pub fn on_restored_end(state: &mut State, id: TaskId, attempt: u32, ended: Ended) {
    // The first end counts.
    if let Some(task) = state.tasks.get_mut(id).filter(|task| !matches!(task.progress(), Progress::Ended(_))) {
        task.attempt = attempt;
        actors::on_restored_end(state, id, attempt, &ended);
        inputs::unpin(state, id);
        nesting::forget_children(state, id);
        // Written again it would be told twice.
        remember_end(state, id, ended);
    }
}

/// A claim that was found in what a worker of a dead head has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftClaim {
    /// Which attempt at its task it was.
    pub attempt: u32,
    /// The worker.
    pub worker: WorkerId,
    /// That worker's process.
    pub worker_pid: u32,
}

/// Everything is read back. What had been claimed by a worker of the dead head, and has not ended, was lost with it, which is charged
/// like any lost worker; what had not, waits again. A task in `started` must not be started again. Returns the lost attempts.
pub fn on_restored(
    state: &mut State,
    effects: &mut impl Effects,
    claimed: &HashMap<TaskId, LeftClaim>,
    started: &HashMap<TaskId, u32>,
    now: Now,
) -> Vec<LostAttempt> {
    actors::on_restored(state, effects, |id| claimed.get(&id).map(|claim| claim.attempt));
    let mut open: Vec<_> = state
        .tasks
        .iter_newest_first()
        .filter(|(_, task)| !matches!(task.progress(), Progress::Ended(_)))
        .map(|(id, _)| id)
        .collect();
    open.reverse();
    let mut lost = Vec::new();
    for id in open {
        let Some(task) = state.tasks.get_mut(id) else { continue };
        // A claim of an attempt that is in the journal has been charged already.
        let claim = claimed.get(&id).filter(|claim| claim.attempt > task.attempt);
        let start = started.get(&id).filter(|_| task.at_most_once);
        let Some(attempt) = claim.map(|claim| claim.attempt).or(start.copied()) else {
            let waited_ns = now.unix_nano.saturating_sub(task.submitted_unix_nano);
            let has_begun = task.past.is_some();
            inputs::queue_or_hold(state, id);
            if !has_begun {
                watch_queue_limit(state, id, now.monotonic_ns.saturating_sub(waited_ns));
            }
            continue;
        };
        task.attempt = attempt;
        lost.push(LostAttempt {
            task: id,
            attempt,
            job: task.job,
            submitted_unix_nano: task.submitted_unix_nano,
            granted_unix_nano: task.submitted_unix_nano,
            previous: task.past.as_ref().and_then(|past| past.span),
            envelope: task.envelope().into(),
        });
        let ended = Ended {
            worker: claim.map(|claim| claim.worker),
            worker_pid: claim.map(|claim| claim.worker_pid),
            ..unstarted(
                actors::why_lost(state, id, "the head died, and its worker with it", "lost")
                    .unwrap_or(Failure::HeadLost),
                now,
            )
        };
        end_attempt(state, effects, id, ended, None, now);
    }
    lost
}

fn target(state: &mut State, envelope: &Envelope<'_>) -> TargetIndex {
    let name = target_name(state, &envelope.spec);
    match (&envelope.spec, envelope.module_version) {
        (TaskSpec::Function(function), Some(version)) => {
            let version = state.versions.index(version, function.module);
            state.targets.of_version(name, version)
        }
        _ => name,
    }
}

fn target_name(state: &mut State, spec: &TaskSpec<'_>) -> TargetIndex {
    match spec {
        // The common case without an allocation: a function of a module given by name.
        TaskSpec::Function(function)
            if function.actor == ActorRole::None && !tracer_core::module_name::is_path(function.module) =>
        {
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
    let Some(mut worker) = state.workers.get_mut(&worker_id) else { return };
    let Some(grant) = worker.take_lease(result.lease) else {
        effects.log(format!("worker {worker_id} reported lease {}, which it does not have", result.lease));
        return;
    };
    worker.tasks_ended += 1;
    if worker.stopping.is_some_and(|stopping| stopping.lease == result.lease) {
        // It has ended, and its worker goes on.
        worker.stopping = None;
        if matches!(worker.ending, Some(Ending::Cancelled { .. } | Ending::TimedOut { .. })) {
            worker.ending = None;
        }
    }
    worker.to_stop.retain(|next| next.lease != result.lease);
    (state.failed_starts, state.brief_lives, state.give_ups) = (0, 0, 0);
    let (pid, actor) = (worker.pid, worker.actor);
    drop(worker);
    if let Some(actor) = actor {
        actors::on_lease_ended(state, actor);
        if let Some(span) = result.span.filter(|_| grant.task == actor) {
            actors::on_span(state, actor, span);
        }
        if grant.task == actor && actors::is_restart(state, actor) {
            actors::on_restart_result(state, effects, actor, &result.outcome);
            nesting::on_attempt_ended(state, worker_id, actor);
            return stop_next(state, effects, worker_id, now);
        }
    }
    if let Some(task) = state.tasks.get_mut(grant.task) {
        task.advance(grant.task, Event::LetGo, &mut state.tally);
        state.targets.run_time(task.target).observe(result.run_ns);
        if task.traces_runtime {
            state.runtime_since.insert(grant.task, result.started_unix_nano.saturating_add(result.run_ns));
        }
    }
    let outcome = match result.outcome {
        Outcome::Failed(Failure::Cancelled) => Outcome::Failed(nesting::why_cancelled(state, grant.task)),
        outcome => outcome,
    };
    let ended = Ended {
        outcome,
        worker: Some(worker_id),
        worker_pid: Some(pid),
        started_unix_nano: Some(result.started_unix_nano),
        // Not the time now: the wall clock may have been set since it began.
        ended_unix_nano: result.started_unix_nano.saturating_add(result.run_ns),
    };
    end_attempt(state, effects, grant.task, ended, result.span, now);
    nesting::on_attempt_ended(state, worker_id, grant.task);
    stop_next(state, effects, worker_id, now);
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
    /// Set when it was for more memory than the worker may take.
    pub memory: Option<MemoryExceeded>,
}

/// What a lost worker's spans are closed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// What those are closed with of which nothing else is known.
    pub why: Why,
    /// What those of some tasks are closed with.
    pub of_tasks: Vec<(TaskId, Why)>,
    /// Attempts that had begun, with what is needed to make their span if they did not get that far.
    pub attempts: Vec<LostAttempt>,
}

/// What a span is closed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    /// The value of `error.type`.
    pub error_type: String,
    /// What happened, as the description of its status.
    pub description: String,
}

impl Loss {
    /// What the spans of this task are closed with; of task 0, those of none.
    pub fn why(&self, task: TaskId) -> &Why {
        self.of_tasks.iter().find(|(of, _)| *of == task).map_or(&self.why, |(_, why)| why)
    }
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
    /// The span of the attempt before.
    pub previous: Option<SpanLink>,
    /// The task's encoded [`Envelope`].
    pub envelope: Box<[u8]>,
}

/// When an attempt ended that its worker did not report: now, but never before it began, and not later than if it had begun when it was
/// granted. So a wall clock that was set meanwhile makes neither a negative duration nor one of days.
fn lost_unix_nano(started_unix_nano: u64, granted: Now, now: Now) -> u64 {
    let longest_ns = now.monotonic_ns.saturating_sub(granted.monotonic_ns);
    let ran_ns = now.unix_nano.checked_sub(started_unix_nano).map_or(longest_ns, |ns| ns.min(longest_ns));
    started_unix_nano.saturating_add(ran_ns)
}

/// A worker process has ended. Its claimed tasks are charged and tried again, or fail; the others go back to the front of the queue,
/// free of charge. [`on_attempt_spans`] follows before anything is leased.
pub fn on_worker_exited(
    state: &mut State,
    effects: &mut impl Effects,
    worker_id: WorkerId,
    exit: &WorkerExit,
    now: Now,
) -> Option<Loss> {
    let worker = state.workers.remove(&worker_id)?;
    let was_asked = worker.was_asked_to_end();
    if !was_asked {
        state.workers_lost += 1;
        effects.log(format!("worker {worker_id} (pid {}) {}", worker.pid, exit.cause));
    }
    let description = match &worker.ending {
        Some(Ending::TimedOut { limit, after_ns, .. }) => {
            Failure::TimedOut { limit: *limit, after_ns: *after_ns }.to_string()
        }
        Some(Ending::Cancelled { .. }) => Failure::Cancelled.to_string(),
        Some(Ending::ActorEnded { actor, .. }) => format!("actor {actor} was ended"),
        // It ended in good order, and what it had not ended itself is what task code forgot.
        Some(Ending::Stopped | Ending::NotNeeded) if exit.error_type == EXITED_WELL => {
            "it was still open when the worker ended".to_owned()
        }
        _ => format!("the worker {}", exit.cause),
    };
    let error_type = match &worker.ending {
        Some(Ending::TimedOut { .. }) => "timeout".to_owned(),
        Some(Ending::Cancelled { .. } | Ending::ActorEnded { .. }) => "cancelled".to_owned(),
        Some(Ending::Stopped | Ending::NotNeeded) if exit.error_type == EXITED_WELL => "unfinished".to_owned(),
        _ => exit.error_type.clone(),
    };
    let mut loss = Loss { why: Why { error_type, description }, of_tasks: Vec::new(), attempts: Vec::new() };
    let running = effects.running(worker_id);
    let mut unclaimed = Vec::new();
    let mut had_begun_actor = true;
    for grant in worker.leases.iter().chain(&worker.inline) {
        if !has_begun(state, effects, worker_id, grant) {
            had_begun_actor &= worker.actor != Some(grant.task);
            unclaimed.push(grant.task);
            continue;
        }
        if worker.actor == Some(grant.task) && actors::is_restart(state, grant.task) {
            loss.attempts.extend(actors::lost_restart(state, grant));
            continue;
        }
        if let Some(task) = state.tasks.get_mut(grant.task) {
            task.advance(grant.task, Event::LetGo, &mut state.tally);
        }
        let Some(task) = state.tasks.get(grant.task) else { continue };
        loss.attempts.push(LostAttempt {
            task: grant.task,
            attempt: task.attempt,
            job: task.job,
            submitted_unix_nano: task.submitted_unix_nano,
            granted_unix_nano: grant.granted.unix_nano,
            previous: task.past.as_ref().and_then(|past| past.span),
            envelope: task.envelope().into(),
        });
        let failure = match &worker.ending {
            Some(Ending::TimedOut { task, limit, after_ns }) if *task == grant.task => {
                Failure::TimedOut { limit: *limit, after_ns: *after_ns }
            }
            Some(Ending::Cancelled { task }) if *task == grant.task => nesting::why_cancelled(state, *task),
            Some(Ending::Stopped) => Failure::HeadStopped,
            _ if worker.to_stop.iter().any(|next| next.lease == grant.number) => {
                let failure = why_to_stop(state, &worker, grant);
                let why = Why { error_type: failure.error_type(), description: failure.to_string() };
                loss.of_tasks.push((grant.task, why));
                failure
            }
            _ if task.actor != Part::None && worker.actor != Some(grant.task) => {
                let (cause, error_type) = why_actor_died(&worker, exit);
                actors::why_lost(state, grant.task, &cause, &error_type).unwrap_or(Failure::HeadLost)
            }
            _ if worker.actor.is_some() || is_running(running, grant) => match exit.memory {
                Some(MemoryExceeded { limit_bytes, peak_bytes }) => Failure::OutOfMemory { limit_bytes, peak_bytes },
                None => Failure::WorkerLost {
                    worker_pid: worker.pid,
                    cause: exit.cause.clone(),
                    error_type: exit.error_type.clone(),
                },
            },
            _ => Failure::WorkerLost {
                worker_pid: worker.pid,
                cause: format!("{} after the task had ended and before its result was sent", exit.cause),
                error_type: exit.error_type.clone(),
            },
        };
        let since = running.filter(|&(lease, _)| lease == grant.number).map(|(_, since)| since);
        let started_unix_nano = since.unwrap_or(grant.granted.unix_nano);
        let ended = Ended {
            outcome: Outcome::Failed(failure),
            worker: Some(worker_id),
            worker_pid: Some(worker.pid),
            started_unix_nano: Some(started_unix_nano),
            ended_unix_nano: lost_unix_nano(started_unix_nano, grant.granted, now),
        };
        end_attempt(state, effects, grant.task, ended, None, now);
    }
    if let Some((task, what)) = killed_for(&worker)
        && loss.attempts.iter().any(|lost| lost.task != task)
    {
        let others =
            Why { error_type: exit.error_type.clone(), description: format!("{what}, so the worker {}", exit.cause) };
        loss.of_tasks.push((task, std::mem::replace(&mut loss.why, others)));
    }
    for task in unclaimed.into_iter().rev() {
        put_back(state, task);
    }
    if let Some(actor) = worker.actor {
        let cause = why_actor_died(&worker, exit);
        actors::on_worker_lost(state, effects, actor, cause, had_begun_actor);
    }
    // A worker that ends as soon as it is ready is no better than one that never gets ready.
    let first_ready_ns = worker.ready_monotonic_ns.into_iter().chain(state.workers.first_ready_ns()).min();
    let has_any_lived = first_ready_ns.is_some_and(|ready| now.monotonic_ns.saturating_sub(ready) >= LIVED_NS);
    if worker.tasks_ended > 0 || has_any_lived {
        (state.failed_starts, state.brief_lives, state.give_ups) = (0, 0, 0);
    } else if !was_asked && loss.attempts.is_empty() {
        state.was_start_refused = false;
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

/// Why the actor of a worker that is gone has died: in words, and as a value of `error.type`.
fn why_actor_died(worker: &Worker, exit: &WorkerExit) -> (String, String) {
    let pid = worker.pid;
    let what = killed_for(worker).map_or_else(String::new, |(_, what)| format!("{what}, so "));
    (format!("{what}its worker (pid {pid}) {}", exit.cause), exit.error_type.clone())
}

/// The task for whose end its worker was killed, and why in words.
fn killed_for(worker: &Worker) -> Option<(TaskId, String)> {
    let noun = if worker.actor.is_some() { "call" } else { "task" };
    match &worker.ending {
        Some(Ending::TimedOut { task, .. }) => Some((*task, format!("{noun} {task} ran for too long and did not end"))),
        Some(Ending::Cancelled { task }) => Some((*task, format!("{noun} {task} was cancelled and did not end"))),
        _ => None,
    }
}

/// Whether a claimed lease is being run, by what the worker says of those in its ring.
fn is_running(in_ring: Option<(u64, u64)>, grant: &Grant) -> bool {
    grant.number & INLINE_LEASE != 0 || in_ring.is_some_and(|(lease, _)| lease == grant.number)
}

/// Whether a worker has begun what it was given.
fn has_begun(state: &State, effects: &impl Effects, worker_id: WorkerId, grant: &Grant) -> bool {
    if grant.number & INLINE_LEASE == 0 {
        return effects.claim_state(worker_id, grant.number) == ClaimState::Claimed;
    }
    let attempt = state.tasks.get(grant.task).map_or(0, |task| task.attempt);
    effects.has_begun_inline(worker_id, grant.task, attempt)
}

/// What a task fails with whose end was wanted and that its worker was not told of any more.
fn why_to_stop(state: &State, worker: &Worker, grant: &Grant) -> Failure {
    let limits = state.tasks.get(grant.task).and_then(|task| task.limits.as_deref().copied()).unwrap_or_default();
    match worker.to_stop.iter().find(|next| next.lease == grant.number).map(|next| next.why) {
        Some(StopReason::RunTimeout) => Failure::TimedOut { limit: TimeLimit::Run, after_ns: limits.run_ns },
        Some(StopReason::IdleTimeout) => Failure::TimedOut { limit: TimeLimit::Idle, after_ns: limits.idle_ns },
        Some(StopReason::Cancelled) | None => nesting::why_cancelled(state, grant.task),
    }
}

/// The spans of attempts that were lost are known: those of the next attempts are linked to them.
pub fn on_attempt_spans(state: &mut State, spans: impl IntoIterator<Item = (TaskId, SpanLink)>) {
    for (id, span) in spans {
        if let Some(past) = state.tasks.get_mut(id).and_then(|task| task.past.as_mut()) {
            past.span = Some(span);
        }
    }
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
    let hook = state.hook.as_ref().filter(|_| state.is_hook_to_blame());
    let blame = hook.map(|hook| format!(" (hook `{hook}` runs in each)")).unwrap_or_default();
    let message = format!("{what}{blame}; the last one: {reason}");
    give_up(state, effects, message, now);
}

/// Starts no worker from now on: for good in a head that has not started, else for a while, which is longer each time.
fn give_up(state: &mut State, effects: &mut impl Effects, message: String, now: Now) {
    let pause_ns = RESUME_NS.saturating_mul(1 << state.give_ups.min(10)).min(RESUME_LIMIT_NS);
    let until = if state.has_started {
        state.give_ups += 1;
        state.resumes_ns = Some(now.monotonic_ns.saturating_add(pause_ns));
        format!(" for {} s", pause_ns / 1_000_000_000)
    } else {
        String::new()
    };
    effects.log(format!("no more workers are started{until}: {message}"));
    state.no_worker = Some(message);
    fail_if_no_worker(state, effects, now);
}

/// Fails what waits when there is no worker and will be none.
pub fn fail_if_no_worker(state: &mut State, effects: &mut impl Effects, now: Now) {
    // Until the start has succeeded, what waits is what another head had accepted, and waits for a head that can start.
    let is_hopeless = state.has_started && state.workers.is_empty();
    let Some(message) = state.no_worker.clone().filter(|_| is_hopeless) else { return };
    actors::fail_all(state, effects, &message);
    let queued = std::mem::take(&mut state.queue);
    let retrying: Vec<_> = state.tally.retrying().iter().map(|&(_, id)| id).collect();
    let of_actors = actors::take_all(state);
    // What is held fails with what it is held for.
    for task in queued.iter().chain(retrying).chain(of_actors) {
        if let Some(waiting) = state.tasks.get_mut(task) {
            waiting.advance(task, Event::LetGo, &mut state.tally);
        }
        let failure =
            Failure::NoWorker { message: format!("no worker can run it: {message}{}", when_again(state, now)) };
        end_task(state, effects, task, unstarted(failure, now));
    }
}

/// When workers are started again, for the end of a message.
pub fn when_again(state: &State, now: Now) -> String {
    let Some(resumes_ns) = state.resumes_ns else { return String::new() };
    let seconds = resumes_ns.saturating_sub(now.monotonic_ns).div_ceil(1_000_000_000);
    format!("; workers are started again in {seconds} s")
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
pub(super) fn end_unbegun(
    state: &mut State,
    effects: &mut impl Effects,
    worker_id: WorkerId,
    lease: u64,
    failure: Failure,
    now: Now,
) {
    let Some(mut worker) = state.workers.get_mut(&worker_id) else { return };
    let Some(grant) = worker.take_lease(lease) else { return };
    let actor = worker.actor;
    drop(worker);
    if actor == Some(grant.task) && actors::is_restart(state, grant.task) {
        return;
    }
    if let Some(task) = state.tasks.get_mut(grant.task) {
        task.advance(grant.task, Event::LetGo, &mut state.tally);
        task.attempt -= 1;
    }
    end_task(state, effects, grant.task, unstarted(failure, now));
}

/// Puts a task whose lease was taken back to where it waits, before all others.
fn put_back(state: &mut State, id: TaskId) {
    let is_restart = actors::is_restart(state, id);
    let Some(task) = state.tasks.get_mut(id) else { return };
    let is_creation = task.actor == Part::Creation;
    if !is_restart {
        task.advance(id, Event::LetGo, &mut state.tally);
        task.attempt -= 1;
        actors::enqueue_first(state, id);
    }
    if is_creation {
        actors::put_back(state, id);
    }
}

/// An attempt that had begun has ended. When it failed and the task may be tried again, it is charged and the task waits; else this is
/// the end of the task.
fn end_attempt(
    state: &mut State,
    effects: &mut impl Effects,
    id: TaskId,
    mut ended: Ended,
    span: Option<SpanLink>,
    now: Now,
) {
    let Some(task) = state.tasks.get_mut(id) else { return };
    let Outcome::Failed(failure) = &ended.outcome else { return end_task(state, effects, id, ended) };
    let Some(charge) = charge(failure).filter(|_| !state.is_stopping) else {
        return end_task(state, effects, id, ended);
    };
    if task.at_most_once && charge == Charge::Crash {
        let message = failure.to_string();
        ended.outcome = Outcome::Failed(Failure::Lost { message });
        return end_task(state, effects, id, ended);
    }
    let (failures, crashes) = task.past.as_ref().map_or((0, 0), |past| (past.failures, past.crashes));
    let seed = now.unix_nano ^ id.0.rotate_left(32) ^ u64::from(task.attempt);
    let crash_limit = actors::crash_limit(state, id);
    let Some(task) = state.tasks.get_mut(id) else { return };
    let verdict = match Envelope::decode(task.envelope()) {
        Ok(Envelope { policy, .. }) => {
            let crash_limit = crash_limit.unwrap_or(policy.crash_limit);
            Policy { crash_limit, ..policy }.judge(failure, failures, crashes, seed)
        }
        Err(_) => Verdict::Final,
    };
    let Verdict::Again { after_ns } = verdict else { return end_task(state, effects, id, ended) };
    let report = AttemptReport {
        number: task.attempt,
        worker_id: ended.worker,
        worker_pid: ended.worker_pid,
        started_unix_nano: ended.started_unix_nano,
        ended_unix_nano: ended.ended_unix_nano,
        message: Some(failure.to_string()),
        failure: Some(failure.clone()),
    };
    let report = report.shortened();
    effects.journal_attempt(id, &report, span);
    charge_attempt(task, charge, report, span);
    if task.traces_runtime && charge == Charge::Crash {
        // What a lost attempt did not report ended when the head learnt of it; from then on the task waits.
        state.runtime_since.insert(id, now.unix_nano);
    }
    if after_ns == 0 {
        actors::enqueue_first(state, id);
    } else {
        let until = now.monotonic_ns.saturating_add(after_ns);
        task.advance(id, Event::PutOff { until }, &mut state.tally);
    }
    nesting::leave_children_of_attempt(state, id, &ended.outcome);
}

fn charge_attempt(task: &mut Task, charge: Charge, report: AttemptReport, span: Option<SpanLink>) {
    let past: &mut Past = task.past.get_or_insert_default();
    match charge {
        Charge::Own => past.failures += 1,
        Charge::Crash => past.crashes += 1,
    }
    if past.attempts.len() == PAST_LIMIT {
        past.attempts.remove(0);
    }
    past.attempts.push(report);
    past.span = span;
}

/// Queues what has waited for long enough to be tried again.
fn queue_retries(state: &mut State, now: Now) {
    let due = state.tally.retrying().iter().take_while(|&&(until, _)| until <= now.monotonic_ns);
    for id in due.map(|&(_, id)| id).collect::<Vec<_>>() {
        actors::enqueue(state, id);
    }
}

/// Records the one outcome of a task and tells who waits for it.
pub(super) fn end_task(state: &mut State, effects: &mut impl Effects, id: TaskId, ended: Ended) {
    unwatch_queue_limit(state, id);
    let Some(task) = state.tasks.get_mut(id) else { return };
    effects.journal_end(id, task.attempt, &ended);
    // What an attempt did not report ended when the head learnt of it.
    let ended_unix_nano = task.traces_runtime.then(|| {
        let since = state.runtime_since.remove(&id);
        let is_reported = |since: &u64| ended.started_unix_nano.is_some_and(|started| *since > started);
        since.filter(is_reported).unwrap_or(ended.ended_unix_nano)
    });
    let first = task.driver.map(|driver| (driver, task.tag));
    let others = state.also_waiting.remove(&id).unwrap_or_default();
    for to in first.into_iter().chain(others) {
        effects.finished(to, id, task.attempt, &ended.outcome, ended_unix_nano, past_attempts(task));
    }
    let submitter = task.submitter;
    actors::on_task_ended(state, effects, id, &ended.outcome);
    inputs::on_task_ended(state, id, &ended.outcome);
    nesting::leave_children(state, id, &ended.outcome);
    remember_end(state, id, ended);
    nesting::on_task_ended(state, id, submitter);
}

/// Keeps an outcome, as long as there is room for it.
fn remember_end(state: &mut State, id: TaskId, ended: Ended) {
    let Some(task) = state.tasks.get_mut(id) else { return };
    state.open_bytes -= task.open_bytes();
    task.forget_envelope();
    if task.traces_runtime {
        state.runtime_since.remove(&id);
    }
    state.ended_bytes += ended.size();
    task.advance(id, Event::Ended(Box::new(ended)), &mut state.tally);
    state.ended.push_back(id);
    inputs::on_remembered(state, id);
    loop {
        let count = state.ended.len() + state.kept.len();
        if count <= HISTORY_LIMIT && (state.ended_bytes <= state.history_bytes_limit || count <= 1) {
            break;
        }
        let Some(oldest_id) = state.ended.pop_front() else { break };
        // Those whose results are still to be arguments are kept, however many they are.
        if inputs::is_pinned(state, oldest_id) || actors::is_living(state, oldest_id) {
            state.kept.insert(oldest_id);
            continue;
        }
        let Some(mut oldest) = state.tasks.remove(oldest_id) else { continue };
        if let Some(key) = oldest.key.take() {
            state.keys.remove(&*key);
        }
        if oldest.actor == Part::Creation {
            actors::forget(state, oldest_id);
        }
        if let Some(ended) = oldest.into_ended() {
            state.ended_bytes -= ended.size();
            inputs::drop_outcome(state, &ended.outcome);
        }
        state.tally.forget();
    }
}

/// An ended task may not be needed any more: if it was only kept for that, it is among the oldest again.
pub(super) fn keep_no_longer(state: &mut State, id: TaskId) {
    if state.kept.remove(&id) {
        state.ended.push_front(id);
    }
}

/// Grants leases to workers that have room, and takes unclaimed ones back for workers that have nothing.
pub fn schedule(state: &mut State, effects: &mut impl Effects, now: Now) {
    actors::end_with_jobs(state, effects, now);
    inputs::fail_without_input(state, effects, now);
    nesting::cancel_abandoned(state, effects, now);
    if state.is_stopping {
        return;
    }
    queue_retries(state, now);
    actors::place(state, effects, now);
    actors::serve(state, effects, now);
    let may_rebalance = if state.queue.has_lanes() {
        begin_in_turn(state, effects, now)
    } else {
        state.queue.kept_for = None;
        let free_slots = nesting::free_slots(state);
        share_out(state, effects, free_slots, now);
        true
    };
    if may_rebalance {
        relieve_stuck(state, effects, now);
    }
    if state.queue.plain.is_empty() && may_rebalance {
        rebalance(state, effects, now);
    }
    nesting::run_in_waiters(state, effects, now);
}

/// Begins what may begin of tasks that need different things. False when slots are kept for one of them.
fn begin_in_turn(state: &mut State, effects: &mut impl Effects, now: Now) -> bool {
    loop {
        let free = Free::of(state);
        let turn = lanes::turn(state, &free, now);
        state.queue.kept_for = turn.kept.as_ref().and_then(|kept| state.queue.front(&Some(Arc::clone(&kept.lane))));
        let is_kept = turn.kept.as_ref().is_some_and(|kept| kept.cpus && kept.lane.cpus > 0);
        let has_begun = turn.may_begin.iter().any(|lane| begin_first(state, effects, lane, now));
        if has_begun {
            continue;
        }
        if is_kept {
            // Otherwise its slots would come only when workers have run all that they have.
            let filled: Vec<_> = state.workers.filled(FILLED_PER_TURN).map(|(place, _)| place.worker).collect();
            for worker_id in filled {
                take_back_unclaimed(state, effects, worker_id);
            }
        } else if !turn.wants_slots {
            // A worker that is given more before it has nothing left never gives its slot to a lane.
            share_out(state, effects, 0, now);
        }
        return !is_kept;
    }
}

/// Gives the first task of a lane to a worker that has nothing to do; of the plain lane, as many as are its share. False when there is no
/// such worker.
fn begin_first(state: &mut State, effects: &mut impl Effects, lane: &LaneKey, now: Now) -> bool {
    let Some(worker_id) = state.workers.last_idle() else { return false };
    let share = match lane {
        None => scheduler::share(state.queue.plain.len(), state.workers.idle()),
        Some(_) => 1,
    };
    let has_begun = grant(state, effects, worker_id, lane, share, now) > 0;
    if has_begun {
        state.queue.end_turn(lane);
    }
    has_begun
}

/// Shares plain tasks out among workers that have room, of which so many may have nothing to do yet.
fn share_out(state: &mut State, effects: &mut impl Effects, mut free_slots: usize, now: Now) {
    // Of those that are left: how many have nothing to do, and how many have something and room for more.
    let (mut idle, mut busy) = (state.workers.idle(), state.workers.with_room());
    let had_idle = idle > 0 && free_slots > 0;
    let (mut last, mut too_full) = (None, 0);
    while let Some(&front) = state.queue.plain.front() {
        let are_short = is_short(state, front);
        let free_slots_now = scheduler::may_wake(free_slots, state.workers.filled_count(), state.cores, are_short);
        // The worker used last comes first: its caches are warm, and with little to do the others can sleep.
        let next_idle = state.workers.idle_before(last).filter(|_| free_slots_now > 0);
        let next_busy = state.workers.with_room_before(last).filter(|_| too_full < FULL_PER_TURN);
        let Some(place) = next_idle.max(next_busy) else { break };
        last = Some(place);
        let was_idle = next_idle == last;
        if !was_idle && had_idle && runs_long(effects, place.worker, now) {
            // What it got would be taken back at once.
            (busy, too_full) = (busy - 1, too_full + 1);
            continue;
        }
        let share = scheduler::share(state.queue.plain.len(), busy + free_slots_now.min(idle));
        let has_begun = grant(state, effects, place.worker, &None, share, now) > 0;
        match (was_idle, has_begun) {
            (true, true) => (idle, free_slots) = (idle - 1, free_slots - 1),
            // A full disk: it is tried again with the next turn.
            (true, false) => break,
            (false, true) => busy -= 1,
            (false, false) => (busy, too_full) = (busy - 1, too_full + 1),
        }
    }
}

/// Leases tasks of a lane to a worker, up to its share, and returns how many.
fn grant(
    state: &mut State,
    effects: &mut impl Effects,
    worker_id: WorkerId,
    lane: &LaneKey,
    share: usize,
    now: Now,
) -> usize {
    let mut granted = 0;
    while granted < share {
        let (Some(worker), Some(id)) = (state.workers.get(&worker_id), state.queue.front(lane)) else { break };
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
        if !lease_to(state, effects, worker_id, id, now) {
            break;
        }
        state.queue.pop_front(lane);
        granted += 1;
    }
    if granted > 0 {
        state.workers.note_use(worker_id);
    }
    granted
}

/// Leases a task that waits to a worker. False when that cannot be done now: with the next turn it is tried again. The caller takes it out of
/// where it waited.
pub(super) fn lease_to(
    state: &mut State,
    effects: &mut impl Effects,
    worker_id: WorkerId,
    id: TaskId,
    now: Now,
) -> bool {
    if state.tasks.get(id).is_some_and(|task| task.wants_output) {
        // What was written before it began is not this one's.
        let watchers = watchers(state, worker_id, |lease| effects.claim_state(worker_id, lease));
        effects.drain_output(worker_id, &watchers);
    }
    let inputs = inputs::values(&state.tasks, id);
    let (Some(task), Some(mut worker)) = (state.tasks.get_mut(id), state.workers.get_mut(&worker_id)) else {
        return false;
    };
    if task.at_most_once && !effects.journal_start(id, task.attempt + 1) {
        // A full disk.
        return false;
    }
    task.attempt += 1;
    task.advance(id, Event::Leased(worker_id), &mut state.tally);
    // An actor's bound is that of its creation.
    if !matches!(task.actor, Part::Call(_)) {
        worker.bound_memory(effects, worker_id, task.limits.as_ref().map_or(0, |limits| limits.memory_bytes));
    }
    if let Some(version) = state.targets.version(task.target) {
        state.versions.on_lease(worker_id, &mut worker, version);
    }
    let expected_ns = state.targets.run_time(task.target).expected_ns();
    let slots = task.needs.as_ref().map_or(1, |needs| needs.cpus);
    let number = worker.grant(id, slots, expected_ns, task.must_be_alone, now);
    worker.bind(number, task.limits.as_deref(), task.needs.as_ref(), now);
    if task.wants_output {
        worker.watched.push(number);
    }
    let queued = time_in_queue(task, &state.runtime_since, id, now);
    effects.lease(worker_id, task.lease(id, number, queued, &inputs));
    true
}

impl Worker {
    /// Bounds its memory for what it is about to be given; 0 for what every worker may take.
    pub(super) fn bound_memory(&mut self, effects: &mut impl Effects, id: WorkerId, bytes: u64) {
        let bound = Some(bytes).filter(|&bytes| bytes > 0);
        if bound != self.memory_bytes {
            self.memory_bytes = bound;
            effects.bound_memory(id, bound);
        }
    }
}

/// How long a task that is leased now has waited, for the worker that traces it; none unless it traces the runtime.
pub(super) fn time_in_queue(task: &Task, since: &HashMap<TaskId, u64>, id: TaskId, now: Now) -> Option<Period> {
    task.traces_runtime.then(|| {
        let start_unix_nano = since.get(&id).copied().unwrap_or(now.unix_nano);
        Period { start_unix_nano, end_unix_nano: now.unix_nano.max(start_unix_nano) }
    })
}

/// Whether a task is one of those that are done sooner than a sleeping worker is awake.
fn is_short(state: &mut State, id: TaskId) -> bool {
    let target = state.tasks.get(id).map(|task| task.target);
    target.is_some_and(|target| state.targets.run_time(target).is_short())
}

/// Takes everything that they have not begun from workers whose task sleeps or turns out to be long, while others have nothing to do.
fn relieve_stuck(state: &mut State, effects: &mut impl Effects, now: Now) {
    if state.workers.idle() == 0 || nesting::free_slots(state) == 0 {
        return;
    }
    let stuck = state.workers.filled(FILLED_PER_TURN).filter_map(|(place, worker)| {
        let (lease, since) = effects.running(place.worker)?;
        let ns = now.unix_nano.saturating_sub(since);
        let running = worker.leases.iter().find(|grant| grant.number == lease)?;
        (ns >= BEHIND_NS).then_some((place.worker, running.task, ns))
    });
    let mut stuck: Vec<_> = stuck.collect();
    // Of few, each was looked at from both ends.
    stuck.sort_unstable_by_key(|&(worker, ..)| worker);
    stuck.dedup();
    for &(worker, task, ns) in &stuck {
        if let Some(target) = state.tasks.get(task).map(|task| task.target) {
            state.targets.run_time(target).observe_running(ns);
        }
        take_back_unclaimed(state, effects, worker);
    }
    if !stuck.is_empty() && !state.queue.has_lanes() {
        let free_slots = nesting::free_slots(state);
        share_out(state, effects, free_slots, now);
    }
}

/// Takes unclaimed leases back from a worker that is behind, for one that has nothing to do.
fn rebalance(state: &mut State, effects: &mut impl Effects, now: Now) {
    if state.workers.idle() == 0 || nesting::free_slots(state) == 0 {
        return;
    }
    let filled = state.workers.filled(FILLED_PER_TURN);
    let behind = filled.filter(|(place, worker)| is_behind(effects, place.worker, worker, now));
    let Some((place, _)) = behind.max_by_key(|&(place, worker)| (worker.load.expected_ns, place)) else { return };
    let busiest = place.worker;
    let next = state.workers.get(&busiest).and_then(|worker| Some(worker.leases.back()?.task));
    // Short ones are done sooner by those that are awake, as long as they keep the cores busy.
    let are_short = next.is_some_and(|next| is_short(state, next));
    if scheduler::may_wake(1, state.workers.filled_count(), state.cores, are_short) == 0 {
        return;
    }
    let mut worker = state.workers.get_mut(&busiest).expect("chosen among those that exist");
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
    drop(worker);
    if taken.is_empty() {
        return;
    }
    for task in taken {
        put_back(state, task);
    }
    if let Some(idle) = state.workers.last_idle() {
        grant(state, effects, idle, &None, state.queue.plain.len(), now);
    }
}

/// Whether what a worker has not begun would wait so long that it is worth moving: a few short tasks are done before they could
/// be moved. How long tasks take is a guess; how long this one has been running is not.
fn is_behind(effects: &impl Effects, id: WorkerId, worker: &Worker, now: Now) -> bool {
    worker.load.expected_ns >= BEHIND_NS || runs_long(effects, id, now)
}

/// Whether a worker has been at its task for so long that others should not wait behind it.
fn runs_long(effects: &impl Effects, id: WorkerId, now: Now) -> bool {
    effects.running(id).is_some_and(|(_, since)| now.unix_nano.saturating_sub(since) >= BEHIND_NS)
}

/// Ends what has run, waited or written nothing for too long, goes on with what is being ended, and ends workers that do not get
/// ready. Returns when to call again, in nanoseconds of the
/// monotonic clock.
pub fn on_tick(state: &mut State, effects: &mut impl Effects, start_limit_ns: u64, now: Now) -> Option<u64> {
    end_waited_too_long(state, effects, now);
    let mut next = state.queue_limits.first().map(|&(until, _)| until);
    let mut wake_at = |deadline: u64| next = Some(next.map_or(deadline, |next: u64| next.min(deadline)));
    while let Some((since, worker_id)) = state.workers.first_start() {
        let deadline = since.saturating_add(start_limit_ns);
        if deadline > now.monotonic_ns {
            wake_at(deadline);
            break;
        }
        if let Some(mut worker) = state.workers.get_mut(&worker_id) {
            worker.ending = Some(Ending::StartTimedOut);
        }
        effects.kill(worker_id);
    }
    for worker_id in state.workers.due(now.monotonic_ns) {
        if !on_deadline(state, effects, worker_id, now) {
            // It has not begun, or has ended just now: it is looked at again soon.
            wake_at(now.monotonic_ns + COMMAND_START_NS);
        }
    }
    state.workers.next_deadline(now.monotonic_ns).into_iter().for_each(&mut wake_at);
    if let Some(again) = &state.start_again
        && state.no_worker.is_none()
        && !state.is_stopping
        && nesting::missing_workers(state) > 0
    {
        wake_at(again.monotonic_ns);
    }
    state.resumes_ns.filter(|_| !state.is_stopping).into_iter().for_each(&mut wake_at);
    nesting::end_surplus(state, effects, now).into_iter().for_each(&mut wake_at);
    nesting::next_waiters_ns(state, now).into_iter().for_each(&mut wake_at);
    // A task may turn out to be long while another worker has nothing to do; nobody would say so.
    let may_fall_behind = state.workers.idle() > 0 && state.workers.has_filled();
    let look_again = may_fall_behind.then(|| now.monotonic_ns + BEHIND_NS);
    let retry = state.tally.retrying().first().map(|&(until, _)| until);
    next.into_iter().chain(look_again).chain(retry).min()
}

/// A worker has reached a deadline: what has run or written nothing for too long is ended, and what is being ended goes on. False when the
/// worker does not run what is to end.
fn on_deadline(state: &mut State, effects: &mut impl Effects, worker_id: WorkerId, now: Now) -> bool {
    let Some(mut worker) = state.workers.get_mut(&worker_id) else { return true };
    if let Some(Ending::ActorEnded { until_ns, .. }) = &mut worker.ending
        && *until_ns <= now.monotonic_ns
    {
        *until_ns = u64::MAX;
        effects.kill(worker_id);
    }
    let mut too_long = Vec::new();
    if worker.ending.is_none() {
        let exceeded = |terms: &Terms| Some((terms.lease, terms.exceeded(worker.last_output_ns, now)?));
        too_long.extend(worker.terms.iter().filter_map(exceeded));
    }
    drop(worker);
    let mut runs_all = true;
    for (lease, why) in too_long {
        runs_all &= stop_attempt(state, effects, worker_id, lease, why, None, now);
    }
    go_on_stopping(state, effects, worker_id, now);
    runs_all
}

/// Puts every lease that a worker has not begun back at the front of the queue.
pub(super) fn take_back_unclaimed(state: &mut State, effects: &mut impl Effects, worker_id: WorkerId) {
    let Some(mut worker) = state.workers.get_mut(&worker_id) else { return };
    let mut taken = Vec::new();
    for grant in worker.leases.iter().copied().collect::<Vec<_>>() {
        if effects.revoke(worker_id, grant.number) {
            worker.take_lease(grant.number);
            taken.push(grant.task);
        }
    }
    drop(worker);
    for task in taken.into_iter().rev() {
        put_back(state, task);
    }
}

/// A worker's output was read, or could not be because nobody takes it.
pub fn on_output(state: &mut State, worker_id: WorkerId, now: Now) {
    if let Some(mut worker) = state.workers.get_mut(&worker_id) {
        worker.last_output_ns = now.monotonic_ns;
    }
}

/// Begins to end the attempt that a worker runs: it is asked, then gets SIGTERM, then SIGKILL. What the worker has not begun is taken
/// back first, so that no other task is harmed. An attempt that is being ended already is given no more time than this. False when
/// the worker does not run it: it has ended, and its result is on the way, or it has not begun.
fn stop_attempt(
    state: &mut State,
    effects: &mut impl Effects,
    worker_id: WorkerId,
    lease: u64,
    why: StopReason,
    grace_ns: Option<u64>,
    now: Now,
) -> bool {
    let Some(mut worker) = state.workers.get_mut(&worker_id) else { return false };
    let Worker { stopping, to_stop, .. } = &mut *worker;
    if let Some(stopping) = stopping {
        if stopping.lease != lease && to_stop.iter().all(|next| next.lease != lease) {
            to_stop.push(ToStop { lease, why, grace_ns });
        }
        // Whichever of them it is for, the last step is the end of both.
        if let Some(grace_ns) = grace_ns {
            stopping.grace_ns = stopping.grace_ns.min(grace_ns);
            stopping.next_ns = stopping.next_ns.min(now.monotonic_ns.saturating_add(grace_ns));
            drop(worker);
            go_on_stopping(state, effects, worker_id, now);
        }
        return true;
    }
    drop(worker);
    take_back_unclaimed(state, effects, worker_id);
    let is_inline = lease & INLINE_LEASE != 0;
    if !is_inline && !runs(state, effects, worker_id, lease) {
        return false;
    }
    let Some(mut worker) = state.workers.get_mut(&worker_id) else { return false };
    let mut grants = worker.leases.iter().chain(&worker.inline);
    let Some(id) = grants.find(|grant| grant.number == lease).map(|grant| grant.task) else { return false };
    let Some(task) = state.tasks.get(id) else { return false };
    let grace_ns = grace_ns.unwrap_or_else(|| {
        let grace = Envelope::decode(task.envelope()).map_or(DEFAULT_GRACE, |envelope| envelope.policy.grace);
        u64::try_from(grace.as_nanos()).unwrap_or(u64::MAX)
    });
    let limits = task.limits.as_deref().copied().unwrap_or_default();
    worker.ending.get_or_insert(match why {
        StopReason::Cancelled => Ending::Cancelled { task: id },
        StopReason::RunTimeout => Ending::TimedOut { task: id, limit: TimeLimit::Run, after_ns: limits.run_ns },
        StopReason::IdleTimeout => Ending::TimedOut { task: id, limit: TimeLimit::Idle, after_ns: limits.idle_ns },
    });
    let give_up_ns = now.monotonic_ns.saturating_add(grace_ns);
    // A program cannot be asked otherwise than by SIGTERM.
    let next_ns = if task.is_command { now.monotonic_ns } else { give_up_ns };
    worker.stopping = Some(Stopping { task: id, lease, grace_ns, step: StopStep::Asked, next_ns, give_up_ns });
    drop(worker);
    effects.ask_to_stop(worker_id, id, task.attempt, why);
    go_on_stopping(state, effects, worker_id, now);
    true
}

/// Whether a worker runs what it was leased. An actor's may run several, and then it says of each that it has begun; the end is on the way.
pub(super) fn runs(state: &State, effects: &impl Effects, worker_id: WorkerId, lease: u64) -> bool {
    if state.workers.get(&worker_id).is_some_and(|worker| worker.actor.is_some()) {
        return effects.claim_state(worker_id, lease) == ClaimState::Claimed;
    }
    effects.running(worker_id).is_some_and(|(running, _)| running == lease)
}

/// An attempt has ended: the next one in its worker that is to end is told.
fn stop_next(state: &mut State, effects: &mut impl Effects, worker_id: WorkerId, now: Now) {
    let may_stop = |worker: &Worker| worker.stopping.is_none() && !worker.to_stop.is_empty();
    while state.workers.get(&worker_id).is_some_and(may_stop) {
        let Some(mut worker) = state.workers.get_mut(&worker_id) else { return };
        let next = worker.to_stop.remove(0);
        drop(worker);
        stop_attempt(state, effects, worker_id, next.lease, next.why, next.grace_ns, now);
    }
}

/// Takes the steps that are due, and returns when the next one is.
fn go_on_stopping(state: &mut State, effects: &mut impl Effects, worker_id: WorkerId, now: Now) -> Option<u64> {
    let mut worker = state.workers.get_mut(&worker_id)?;
    let Worker { stopping, phase, .. } = &mut *worker;
    let stopping = stopping.as_mut()?;
    let is_command = state.tasks.get(stopping.task).is_some_and(|task| task.is_command);
    while stopping.next_ns <= now.monotonic_ns {
        let after = |ns: u64| now.monotonic_ns.saturating_add(ns);
        match stopping.step {
            // Without any grace there is nothing to ask.
            StopStep::Asked if is_command && stopping.grace_ns > 0 => {
                if effects.signal_command(worker_id, false) {
                    stopping.step = StopStep::Terminated;
                    stopping.next_ns = after(stopping.grace_ns);
                } else if stopping.give_up_ns <= now.monotonic_ns {
                    stopping.step = StopStep::Killed;
                } else {
                    stopping.next_ns = after(COMMAND_START_NS);
                }
            }
            StopStep::Asked if stopping.grace_ns > 0 => {
                effects.terminate(worker_id);
                stopping.step = StopStep::Terminated;
                stopping.next_ns = after(stopping.grace_ns);
            }
            StopStep::Asked | StopStep::Terminated if is_command => {
                if effects.signal_command(worker_id, true) {
                    stopping.next_ns = after(COMMAND_END_NS);
                }
                stopping.step = StopStep::Killed;
            }
            StopStep::Asked | StopStep::Terminated | StopStep::Killed => {
                stopping.step = StopStep::Killed;
                stopping.next_ns = u64::MAX;
                *phase = WorkerPhase::Stopping;
                effects.kill(worker_id);
            }
        }
    }
    // After the last step nothing but the end of the worker is waited for.
    Some(stopping.next_ns).filter(|&next| next < u64::MAX)
}

/// Someone wants tasks to end.
pub fn on_cancel_many(
    state: &mut State,
    effects: &mut impl Effects,
    which: &CancelWhich,
    grace_ns: Option<u64>,
    now: Now,
) -> Vec<(TaskId, CancelReport)> {
    // What a job has created for longer than itself, it leaves.
    let takes_detached = !matches!(which, CancelWhich::Job(_));
    let is_open = |id, task: &Task| {
        let has_ended = matches!(task.progress(), Progress::Ended(_));
        !has_ended || (actors::is_living(state, id) && (takes_detached || !actors::is_detached(state, id)))
    };
    let open = |fits: &dyn Fn(&Task) -> bool| {
        let open = state.tasks.iter_newest_first().filter(|&(id, task)| is_open(id, task) && fits(task));
        open.map(|(id, _)| id).collect()
    };
    let ids: Vec<TaskId> = match which {
        CancelWhich::Ids(ids) => ids.clone(),
        CancelWhich::All => open(&|_| true),
        CancelWhich::Job(job) => open(&|task| task.job == *job),
        CancelWhich::Named(pattern) => open(&|task| {
            let name = task.shown().name;
            !name.is_empty() && tracer_core::pattern::fits(pattern, name)
        }),
    };
    // Those that wait first and the newest first: what is ended makes room, which nothing of this shall take.
    let mut reports: Vec<_> = ids.into_iter().map(|id| (id, on_cancel(state, effects, id, grace_ns, now))).collect();
    reports.sort_by_key(|&(id, _)| id);
    reports
}

/// Someone wants a task to end.
pub fn on_cancel(
    state: &mut State,
    effects: &mut impl Effects,
    id: TaskId,
    grace_ns: Option<u64>,
    now: Now,
) -> CancelReport {
    let Some(task) = state.tasks.get(id) else { return CancelReport::Unknown };
    let worker_id = match task.progress() {
        Progress::Ended(_) => {
            let is_ended = actors::end(state, effects, id, "it was cancelled", grace_ns, now);
            return if is_ended { CancelReport::Cancelling } else { CancelReport::Ended };
        }
        Progress::Waiting | Progress::Held | Progress::Retrying { .. } => {
            inputs::take_out(state, id);
            let failure = nesting::why_cancelled(state, id);
            end_task(state, effects, id, unstarted(failure, now));
            return CancelReport::Cancelled;
        }
        &Progress::Leased { worker } => worker,
        // Whoever has let go of it goes on with it at once.
        Progress::Between => return CancelReport::Unknown,
    };
    let Some(worker) = state.workers.get(&worker_id) else { return CancelReport::Unknown };
    let Some(number) = worker.lease_of(id) else { return CancelReport::Unknown };
    if number & INLINE_LEASE == 0 && effects.revoke(worker_id, number) {
        let failure = nesting::why_cancelled(state, id);
        end_unbegun(state, effects, worker_id, number, failure, now);
        return CancelReport::Cancelled;
    }
    // Afterwards the worker runs this task or none.
    if stop_attempt(state, effects, worker_id, number, StopReason::Cancelled, grace_ns, now) {
        CancelReport::Cancelling
    } else {
        // It has ended, and its result is on the way.
        CancelReport::Ended
    }
}

/// The head is to stop: what waits fails, workers are asked to end, or killed.
pub fn on_stop(state: &mut State, effects: &mut impl Effects, force: bool, now: Now) {
    actors::on_stop(state, effects);
    state.is_stopping = true;
    for task in inputs::take_all(state) {
        end_task(state, effects, task, unstarted(Failure::HeadStopped, now));
    }
    let workers: Vec<_> = state.workers.keys().collect();
    for worker_id in workers {
        let mut worker = state.workers.get_mut(&worker_id).expect("its id was just read");
        worker.ending.get_or_insert(Ending::Stopped);
        worker.phase = WorkerPhase::Stopping;
        // What it has not begun, it shall not begin.
        let unclaimed: Vec<_> =
            worker.leases.iter().map(|grant| grant.number).filter(|&lease| effects.revoke(worker_id, lease)).collect();
        drop(worker);
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
    state.workers.keys().for_each(|worker| effects.kill(worker));
}

/// The newest tasks, of those that are asked for.
pub fn list_tasks(state: &State, effects: &impl Effects, limit: usize, which: &TaskFilter) -> TaskList {
    let forgotten = state.tally.counts().forgotten;
    let row = |(id, task)| report(state, effects, id, task);
    if *which == TaskFilter::default() {
        let tasks: Vec<_> = state.tasks.iter_newest_first().take(limit).map(row).collect();
        return TaskList { left_out: state.tasks.len() - tasks.len(), filtered_out: 0, forgotten, tasks };
    }
    let is_meant = |&(id, task): &(TaskId, &Task)| {
        which.since_unix_nano.is_none_or(|since| task.submitted_unix_nano >= since)
            && (which.states.is_empty() || which.states.contains(&phase(state, effects, id, task).0))
            && which.name.as_ref().is_none_or(|name| tracer_core::pattern::fits(name, task.shown().name))
            && which.module.as_ref().is_none_or(|module| {
                module_of(state, id, task).is_some_and(|own| tracer_core::pattern::fits(module, own))
            })
    };
    let mut meant = state.tasks.iter_newest_first().filter(is_meant);
    let tasks: Vec<_> = meant.by_ref().take(limit).map(row).collect();
    let left_out = meant.count();
    TaskList { left_out, filtered_out: state.tasks.len() - tasks.len() - left_out, forgotten, tasks }
}

/// The module that a task's function or actor is of; none for commands.
fn module_of<'a>(state: &'a State, id: TaskId, task: &Task) -> Option<&'a str> {
    match task.actor {
        Part::None if task.is_command => None,
        Part::None => state.targets.name(task.target).split_once('.').map(|(module, _)| module),
        Part::Creation => actors::module_of(state, id),
        Part::Call(actor) => actors::module_of(state, actor),
    }
}

/// One task with its result.
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

/// Why a task waits, what it is at, or why it ended as it did.
pub fn explain_task(state: &State, effects: &impl Effects, id: TaskId) -> Option<Explanation> {
    explain::explain(state, effects, id)
}

/// Every worker.
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
                state: match worker.phase {
                    WorkerPhase::Starting => WorkerState::Starting,
                    WorkerPhase::Stopping => WorkerState::Stopping,
                    WorkerPhase::Ready if worker.leases.is_empty() => WorkerState::Idle,
                    WorkerPhase::Ready if worker.is_waiting() => WorkerState::Waiting,
                    WorkerPhase::Ready => WorkerState::Busy,
                },
                uptime_ns: now.monotonic_ns.saturating_sub(worker.started.monotonic_ns),
                task: running.map(|grant| grant.task),
                actor: worker.actor,
                leases: worker.leases.len(),
                cpus: worker.slots() as u64,
                resources: lanes::held_resources(worker),
                tasks_ended: worker.tasks_ended,
                tracing: worker.tracing.clone(),
                hook_failure: worker.hook_failure.clone(),
            }
        })
        .collect()
}

/// How many tasks of a job run.
pub fn count_running(state: &State, effects: &impl Effects, job: JobId) -> usize {
    let is_of_job = |task: TaskId| state.tasks.get(task).is_some_and(|task| task.job == job);
    let running = state.workers.iter().map(|(id, worker)| {
        let lease = effects.running(id).map(|(lease, _)| lease);
        let own = worker.leases.iter().find(|grant| Some(grant.number) == lease);
        own.into_iter().chain(&worker.inline).filter(|grant| is_of_job(grant.task)).count()
    });
    running.sum()
}

/// Where a task is in its life, and since when it runs, if it does, in nanoseconds since the Unix epoch.
fn phase(state: &State, effects: &impl Effects, id: TaskId, task: &Task) -> (TaskState, Option<u64>) {
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
        Progress::Between | Progress::Waiting | Progress::Held | Progress::Retrying { .. } | Progress::Ended(_) => None,
    };
    let phase = match task.progress() {
        Progress::Between | Progress::Waiting | Progress::Held => TaskState::Waiting,
        Progress::Retrying { .. } => TaskState::Retrying,
        Progress::Leased { worker } if running.is_some() => {
            let stopping = state.workers.get(worker).and_then(|worker| worker.stopping);
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

/// A task's row for people.
pub(super) fn report(state: &State, effects: &impl Effects, id: TaskId, task: &Task) -> TaskReport {
    let (phase, running) = phase(state, effects, id, task);
    let mut report = state.report(id, task, phase);
    report.started_unix_nano = report.started_unix_nano.or(running);
    report
}

#[cfg(test)]
#[path = "reactor_tests.rs"]
mod tests;
