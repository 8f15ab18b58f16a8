use crate::state::{
    State,
    actor::Death,
    now::Now,
    progress::{Progress, TaskEnd},
    task::DriverId,
};
use tracer_core::ClusterTaskId;
use tracer_core::task::{
    AttemptReport, Envelope, Failure, JobId, ModuleVersion, Outcome, Refusal, SpanLink, StopReason, TaskId, WorkerId,
};
use tracer_ipc::protocol::{Accepted, Lease, LostElsewhere, OutputSize, Period, ToAgent};
use tracer_ipc::spool::ClaimState;

/// Effects that the reactor may cause. The server carries them out; tests remember them.
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
    fn journal_end(&mut self, task: TaskId, attempt: u32, ended: &TaskEnd);
    /// Notes in the journal that an attempt is about to start, of a task that must not be started twice. It is there when this
    /// returns true; when it returns false, it could not be written.
    fn journal_start(&mut self, task: TaskId, attempt: u32) -> bool;
    /// Notes in the journal that so many tasks from `first` on go into their queue together. It is there when this returns true; when it returns false, it
    /// could not be written.
    fn journal_bundle(&mut self, first: TaskId, count: u32) -> bool;
    /// Notes in the journal that an actor whose creation had ended is made again, or why it is dead.
    fn journal_actor(&mut self, actor: TaskId, attempt: u32, restarts: u32, death: Option<&Death>);
    /// Notes in the journal that these ended tasks are forgotten.
    fn journal_pruned(&mut self, tasks: &[TaskId]);
    /// Notes in the journal that an attempt failed after which the task is tried again.
    fn journal_attempt(&mut self, task: TaskId, attempt: &AttemptReport, span: Option<SpanLink>);
    /// Counts an attempt that has ended.
    fn count_attempt(&mut self, attempt: &EndedAttempt<'_>);
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
    /// Returns what became of a lease, as the spool of the worker has it.
    fn claim_state(&self, worker: WorkerId, lease: u64) -> ClaimState;
    /// Returns whether a worker has begun this attempt at a task while others of its tasks waited.
    fn has_begun_inline(&self, worker: WorkerId, task: TaskId, attempt: u32) -> bool;
    /// Returns the lease that a worker is running, and since when in nanoseconds since the Unix epoch. A claimed lease that is not
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
    /// Gives up the file of a value that nobody needs any more, once the journal has what was noted before.
    fn give_up_value(&mut self, name: String);
    /// Answers submissions of a driver of which it was said that they are answered later: several that are accepted, or the driver's own number for one that is
    /// not, and why.
    fn answer_later(&mut self, to: DriverId, answer: Result<Accepted, (u64, Refusal)>);
    /// Returns the size of the output of an import that was followed, as far as it was read, and forgets it.
    fn take_written(&mut self, import: TaskId) -> OutputSize;
    /// Returns the SHA-256 of the library of a version of a module, if there is a copy of it.
    fn module_digest(&mut self, version: ModuleVersion) -> Option<[u8; 32]>;
    /// Tells the agent something. False if there is none: the next one is told all that is open.
    fn to_agent(&mut self, message: &ToAgent) -> bool;
    /// Writes the span of an attempt that was lost with another node. None if it is not traced, or cannot be written.
    fn stand_in(&mut self, of: &StandIn<'_>) -> Option<SpanLink>;
    /// Writes a line to the head's log.
    fn log(&mut self, line: String);
}

/// An attempt that was lost with another node, and whose span this node writes in its stead.
#[derive(Clone, Copy, Debug)]
pub struct StandIn<'a> {
    /// The task, as this head knows it.
    pub task: TaskId,
    /// Its job here.
    pub job: JobId,
    /// Its id in the cluster.
    pub shared: Option<ClusterTaskId>,
    /// The attempt.
    pub lost: &'a LostElsewhere,
    /// The span of the attempt before.
    pub previous: Option<SpanLink>,
    /// The encoded envelope of the task.
    pub envelope: &'a [u8],
}

/// An attempt that has ended, as metrics count it.
#[derive(Clone, Copy, Debug)]
pub struct EndedAttempt<'a> {
    /// Number of the target, which it keeps as long as the head lives.
    pub target: usize,
    /// The target as people call it.
    pub name: &'a str,
    /// Reason why it failed; none when it succeeded.
    pub failure: Option<&'a Failure>,
    /// Time that it ran, in nanoseconds; none when nobody knows when it began.
    pub run_ns: Option<u64>,
    /// Time that its task waited from its submission on, in nanoseconds, if this was the first attempt.
    pub queued_ns: Option<u64>,
    /// Its span, when it failed and was traced.
    pub span: Option<SpanLink>,
    /// The encoded envelope of its task, which has the span of the submission; empty when that is not kept.
    pub envelope: &'a [u8],
    /// Time of its end, in nanoseconds since the Unix epoch.
    pub ended_unix_nano: u64,
}

/// The receiver of a task's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watcher {
    /// A driver of this head.
    Driver(DriverId),
    /// The origin of an import: its id there, and the attempt that it began with here.
    Origin(ClusterTaskId, u32),
}

/// The receivers of what a worker writes now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watchers {
    /// The tasks that run and whose output somebody wants, each with who that is.
    pub tasks: Vec<(TaskId, Watcher)>,
    /// True if any of several calls of an actor may be writing.
    pub is_shared: bool,
}

/// Returns who is shown what this worker writes now. `claim_state` is what its ring of claims says of a lease.
pub fn watchers(state: &State, worker_id: WorkerId, claim_state: impl Fn(u64) -> ClaimState) -> Watchers {
    let worker = state.workers.get(&worker_id);
    let Some(worker) = worker.filter(|worker| !worker.watched.is_empty() && worker.inline.is_empty()) else {
        return Watchers::default();
    };
    let running = || worker.leases.iter().filter(|grant| claim_state(grant.number) == ClaimState::Claimed);
    let watched = running().filter(|grant| worker.watched.contains(&grant.number)).filter_map(|grant| {
        let task = state.tasks.get(grant.task).filter(|task| !matches!(task.progress(), Progress::Ended(_)))?;
        let watcher = match state.shared.imports.get(&grant.task) {
            Some(import) => Watcher::Origin(import.id, import.first_attempt),
            None => Watcher::Driver(task.driver?),
        };
        Some((grant.task, watcher))
    });
    Watchers { tasks: watched.collect(), is_shared: running().nth(1).is_some() }
}

/// A submission.
pub struct Submission<'a> {
    /// The driver that is told of its end; none when nobody waits.
    pub driver: Option<DriverId>,
    /// The driver's own number for it, given back in every message about it.
    pub tag: u64,
    /// The driver's job that it belongs to.
    pub job: JobId,
    /// The encoded envelope. It is copied.
    pub bytes: &'a [u8],
    /// The decoded envelope.
    pub envelope: Envelope<'a>,
    /// Start of its wait, in nanoseconds since the Unix epoch; asked for only if the task traces the runtime.
    pub queued_unix_nano: u64,
}
