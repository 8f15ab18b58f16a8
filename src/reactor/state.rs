//! What the head knows: tasks, workers, and what they have to do with each other. Data and its invariants, no effects.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::actors::{self, Actors, Part};
use super::lanes::{Needs, Queues, Resource};
pub use super::progress::{Progress, Stage, Tally};
use super::table::TaskTable;
use super::versions::{ModuleVersions, VersionIndex};
use super::workers::Workers;
use crate::scheduler::{Load, RunTime};
use tracer_core::task::{
    AttemptReport, Envelope, EnvelopeHead, Failure, Input, JobId, Outcome, SpanLink, StopReason, TaskId, TimeLimit,
    WorkerId,
};
use tracer_ipc::protocol::{self, INLINE_LEASE, Lease, Period, TaskState as Phase};

/// A connected driver, as the server numbers its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DriverId(pub u64);

/// A point in time, read once per wake-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Now {
    /// Monotonic time in nanoseconds (`CLOCK_MONOTONIC`).
    pub monotonic_ns: u64,
    /// Nanoseconds since the Unix epoch.
    pub unix_nano: u64,
}

/// Everything.
#[derive(Debug)]
pub struct State {
    /// Every task that has not been forgotten, by id.
    pub tasks: TaskTable,
    /// Waiting tasks in the order of their turn.
    pub queue: Queues,
    /// The named resources, in the order of their names.
    pub resources: Vec<Resource>,
    /// The tasks that tasks have submitted, of those that have not ended, by the one that has.
    pub children: HashMap<TaskId, BTreeSet<TaskId>>,
    /// Tasks that are to be cancelled because the one that has submitted them did not get to its end.
    pub abandoned: Vec<TaskId>,
    /// Ended tasks whose results are in files, oldest first; some may have no file any more.
    pub stored: VecDeque<TaskId>,
    /// Bytes of those files.
    pub stored_bytes: u64,
    /// The most bytes of those files.
    pub stored_limit: u64,
    /// How many bytes of results of ended tasks are kept.
    pub history_bytes_limit: usize,
    /// Files of values that nobody needs any more.
    pub values_to_remove: Vec<String>,
    /// What tasks take that have not ended: their descriptions, and [`TASK_BYTES`] each.
    pub open_bytes: u64,
    /// The most of it; beyond that, drivers' submissions are refused.
    pub open_bytes_limit: u64,
    /// Tasks that are to fail because an argument will not come.
    pub without_input: Vec<(TaskId, Failure)>,
    /// Tasks with a limit on how long they may wait that have not begun, by when it is reached.
    pub queue_limits: BTreeSet<(u64, TaskId)>,
    /// Tasks that were submitted with an idempotency key, by that key, as long as they are remembered.
    pub keys: HashMap<Box<str>, Keyed>,
    /// Who else waits for a task: drivers that submitted it again under its key, with their own number for it.
    pub also_waiting: HashMap<TaskId, Vec<(DriverId, u64)>>,
    /// Actors, and what waits for them.
    pub actors: Actors,
    /// Every worker process that has not been reaped, by id.
    pub workers: Workers,
    /// Where to go on among the workers whose tasks wait for others; none when all of them have been looked at.
    pub waiters_from: Option<WorkerId>,
    /// What was ever submitted, by name, with how long it takes.
    pub targets: Targets,
    /// The versions of modules that tasks were submitted with.
    pub versions: ModuleVersions,
    /// Ended tasks, oldest first.
    pub ended: VecDeque<TaskId>,
    /// Those that were the oldest and are kept, because their results are to be arguments or their actors live.
    pub kept: HashSet<TaskId>,
    /// Bytes of results that ended tasks keep.
    pub ended_bytes: usize,
    /// The tasks by progress.
    pub tally: Tally,
    /// How many workers there should be, those aside whose tasks wait for others; those that die are replaced. It is also how many run
    /// tasks at a time.
    pub workers_wanted: usize,
    /// How many workers keep the machine busy.
    pub cores: usize,
    /// The most worker processes there may be.
    pub max_processes: usize,
    /// Since when there are more workers than needed, by the clock that never jumps.
    pub surplus_since: Option<u64>,
    /// The hook that runs in every worker, as `module:attribute`, so that it can be named when workers do not get ready.
    pub hook: Option<String>,
    /// Whether a worker whose hook failed must not run tasks.
    pub is_hook_required: bool,
    /// Whether the head has said that it has started. Until then a hook that is required and fails is the end of it.
    pub has_started: bool,
    /// Workers that ended before the head was to stop, those included that it killed for a task's sake.
    pub workers_lost: u64,
    /// The id of the next worker. Ids are not used again.
    pub next_worker: u64,
    /// Workers in a row that died before they were ready.
    pub failed_starts: u32,
    /// Workers in a row that died soon after they were ready, without having run anything.
    pub brief_lives: u32,
    /// While the system has no room for a further worker: why, and when it is asked again.
    pub start_again: Option<StartAgain>,
    /// For tasks that trace the runtime: since when they wait in the queue, or when their attempt ended, in nanoseconds since the
    /// Unix epoch.
    pub runtime_since: HashMap<TaskId, u64>,
    /// Why no worker is started for now.
    pub no_worker: Option<String>,
    /// Whether the last worker that was wanted could not be started by the system: no hook has run in it.
    pub was_start_refused: bool,
    /// When workers are started again after that, by the clock that never jumps; none when they are not.
    pub resumes_ns: Option<u64>,
    /// How often in a row no more workers were started.
    pub give_ups: u32,
    /// Set when the head is to stop: nothing is accepted or leased any more.
    pub is_stopping: bool,
}

/// Tasks of equal needs that wait for their turn. Those that tasks have submitted come before those of drivers: what has begun shall end
/// before more is begun. Otherwise jobs take turns, a task each, and within a job the order is that of submission.
#[derive(Debug, Default)]
pub struct Queue {
    of_tasks: Turns,
    of_drivers: Turns,
}

impl Queue {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.of_tasks.len + self.of_drivers.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whose turn it is.
    pub fn front(&self) -> Option<&TaskId> {
        self.of_tasks.front().or_else(|| self.of_drivers.front())
    }

    /// Takes out whose turn it is.
    pub fn pop_front(&mut self) -> Option<TaskId> {
        self.of_tasks.pop_front().or_else(|| self.of_drivers.pop_front())
    }

    /// Adds a task behind all of its kind and job.
    pub fn push_back(&mut self, id: TaskId, submitter: Option<TaskId>, job: JobId) {
        self.lane(submitter).push_back(id, job);
    }

    /// Adds a task before all of its kind and job.
    pub fn push_front(&mut self, id: TaskId, submitter: Option<TaskId>, job: JobId) {
        self.lane(submitter).push_front(id, job);
    }

    /// Takes a task out, wherever it is.
    pub fn remove(&mut self, id: TaskId, submitter: Option<TaskId>, job: JobId) {
        self.lane(submitter).remove(id, job);
    }

    /// All of them, in the order of their turn.
    pub fn iter(&self) -> impl Iterator<Item = TaskId> {
        self.of_tasks.iter().chain(self.of_drivers.iter())
    }

    fn lane(&mut self, submitter: Option<TaskId>) -> &mut Turns {
        if submitter.is_some() { &mut self.of_tasks } else { &mut self.of_drivers }
    }
}

/// Jobs that take turns. What is done for a turn costs the same however many jobs and tasks there are.
#[derive(Debug, Default)]
struct Turns {
    /// Jobs that have tasks here, in the order of their turn.
    jobs: VecDeque<JobId>,
    /// Their tasks; never empty.
    tasks: FxHashMap<JobId, VecDeque<TaskId>>,
    len: usize,
    /// Room for the tasks of the next job, left by one that has none any more.
    spare: VecDeque<TaskId>,
}

/// Tasks for which room is kept.
const SPARE_LIMIT: usize = 1024;

impl Turns {
    fn front(&self) -> Option<&TaskId> {
        self.tasks.get(self.jobs.front()?)?.front()
    }

    fn pop_front(&mut self) -> Option<TaskId> {
        let job = *self.jobs.front()?;
        let tasks = self.tasks.get_mut(&job)?;
        let id = tasks.pop_front()?;
        self.len -= 1;
        if tasks.is_empty() {
            self.jobs.pop_front();
            self.forget(job);
        } else {
            self.jobs.rotate_left(1);
        }
        Some(id)
    }

    fn push_back(&mut self, id: TaskId, job: JobId) {
        self.len += 1;
        if let Some(tasks) = self.tasks.get_mut(&job) {
            return tasks.push_back(id);
        }
        self.jobs.push_back(job);
        self.begin(id, job);
    }

    fn push_front(&mut self, id: TaskId, job: JobId) {
        self.len += 1;
        if let Some(tasks) = self.tasks.get_mut(&job) {
            return tasks.push_front(id);
        }
        self.jobs.push_front(job);
        self.begin(id, job);
    }

    fn begin(&mut self, id: TaskId, job: JobId) {
        let mut tasks = std::mem::take(&mut self.spare);
        tasks.push_back(id);
        self.tasks.insert(job, tasks);
    }

    fn forget(&mut self, job: JobId) {
        if let Some(tasks) = self.tasks.remove(&job).filter(|tasks| tasks.capacity() <= SPARE_LIMIT) {
            self.spare = tasks;
        }
    }

    fn remove(&mut self, id: TaskId, job: JobId) {
        let Some(tasks) = self.tasks.get_mut(&job) else { return };
        // From both ends: whoever takes many out takes the oldest or the newest.
        let last = tasks.len().saturating_sub(1);
        let near = |distance| [distance, last - distance].into_iter().find(|&place| tasks[place] == id);
        let Some(place) = (0..=last / 2).find_map(near) else { return };
        tasks.remove(place);
        self.len -= 1;
        if tasks.is_empty() {
            self.jobs.retain(|&other| other != job);
            self.forget(job);
        }
    }

    fn iter(&self) -> impl Iterator<Item = TaskId> {
        let mut left: VecDeque<_> =
            self.jobs.iter().filter_map(|job| self.tasks.get(job)).map(VecDeque::iter).collect();
        std::iter::from_fn(move || {
            loop {
                let mut tasks = left.pop_front()?;
                if let Some(&id) = tasks.next() {
                    left.push_back(tasks);
                    return Some(id);
                }
            }
        })
    }
}

/// A worker that could not be started, and shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartAgain {
    /// What the system said.
    pub reason: String,
    /// When to try again, by the clock that never jumps.
    pub monotonic_ns: u64,
}

/// A task with an idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keyed {
    /// The task.
    pub task: TaskId,
    /// Stands for what the task runs.
    pub fingerprint: u64,
}

/// What bounds a task. Times are in nanoseconds, and 0 is for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// How long an attempt may run.
    pub run_ns: u64,
    /// How long a command may write nothing.
    pub idle_ns: u64,
    /// How long the first attempt may be waited for.
    pub queue_ns: u64,
    /// When that is reached, by the clock that never jumps: its entry in [`State::queue_limits`].
    pub queue_until: u64,
    /// The most memory of an attempt, in bytes; 0 for what every worker may take.
    pub memory_bytes: u64,
}

/// What a task's ended attempts have left, once one of them has failed and the task was tried again.
#[derive(Debug, Default)]
pub struct Past {
    /// Attempts that failed of their own.
    pub failures: u32,
    /// Attempts whose worker was lost.
    pub crashes: u32,
    /// The attempts, oldest first; the newest of them when there are very many.
    pub attempts: Vec<AttemptReport>,
    /// The span of the newest of them, if it was traced.
    pub span: Option<SpanLink>,
}

/// What is known of what a task is to do.
#[derive(Debug)]
pub enum Description {
    /// Everything, until it has ended.
    Envelope(Box<[u8]>),
    /// What is shown of it afterwards; none for a task without a name that was not traced.
    Shown(Option<Box<Shown>>),
}

/// What is shown of a task's description when it has ended.
#[derive(Debug)]
pub struct Shown {
    /// The name given with `--name`; empty for none.
    pub name: Box<str>,
    /// All zero when the submission was not traced.
    pub trace_id: [u8; 16],
}

/// A task that the head has accepted. There may be very many, so what few have is behind a pointer, and what the envelope says is not said twice.
#[derive(Debug)]
pub struct Task {
    /// What it is to do.
    pub description: Description,
    /// What it runs, as people call it.
    pub target: TargetIndex,
    /// The task that has submitted it; none for a driver's.
    pub submitter: Option<TaskId>,
    /// What it has to do with other tasks' results; none for most.
    pub links: Option<Box<Links>>,
    /// Who waits for it.
    pub driver: Option<DriverId>,
    /// The driver's own number for it.
    pub tag: u64,
    /// The driver's job that it belongs to.
    pub job: JobId,
    /// When it was taken in, in nanoseconds since the Unix epoch.
    pub submitted_unix_nano: u64,
    /// What bounds it; none for the many that nothing does.
    pub limits: Option<Box<Limits>>,
    /// What it needs; none for the many that need a slot and nothing else.
    pub needs: Option<Arc<Needs>>,
    /// Whether it is a command.
    pub is_command: bool,
    /// What it has to do with an actor.
    pub actor: Part,
    /// The attempt that it is at, from 1; 0 while no worker was given it.
    pub attempt: u32,
    /// Whether no other task is leased to a worker beside it: a task with a limit, or one whose output is wanted, so that it is
    /// told from that of others.
    pub must_be_alone: bool,
    /// Whether its driver is sent what it writes.
    pub wants_output: bool,
    /// Whether the runtime's own work for it is traced: its times are then in [`State::runtime_since`].
    pub traces_runtime: bool,
    /// Whether its start is journaled first, and it is never started again.
    pub at_most_once: bool,
    /// Its key among [`State::keys`].
    pub key: Option<Box<Box<str>>>,
    /// What its ended attempts have left; none for the many that have had none.
    pub past: Option<Box<Past>>,
    /// Where it is: see [`Task::progress`].
    pub stage: Stage,
}

/// Results that are arguments.
#[derive(Debug, Default)]
pub struct Links {
    /// The tasks whose results are arguments of this one.
    pub inputs: Vec<Input>,
    /// How many of them have not ended; only while this one is [held](Progress::Held).
    pub open_inputs: usize,
    /// Tasks that are held until this one has ended.
    pub dependants: Vec<TaskId>,
    /// Tasks that have not ended and of which this one's result is an argument. It is remembered as long as there are any.
    pub pins: usize,
    /// Whether nobody can ask for its result any more, save for those.
    pub is_forgotten: bool,
}

/// What a task that waits takes of the head's memory beyond its description, about.
pub const TASK_BYTES: u64 = 192;

/// Bytes of results in files that are kept for tasks that have ended.
const STORED_LIMIT: u64 = 4 << 30;

/// How a task ended.
#[derive(Debug)]
pub struct Ended {
    /// The one outcome, as it was told to its driver.
    pub outcome: Outcome,
    /// The worker in which it ended; none when it never began.
    pub worker: Option<WorkerId>,
    /// That worker's process.
    pub worker_pid: Option<u32>,
    /// When the attempt began, in nanoseconds since the Unix epoch: as the worker says, or, for a worker that was
    /// lost, when the lease was granted. None when it never began.
    pub started_unix_nano: Option<u64>,
    /// When the attempt ended, in nanoseconds since the Unix epoch: [`started_unix_nano`](Self::started_unix_nano) and how long it ran by the
    /// monotonic clock. For a worker that was lost, or a task that never began, when the head learnt of the end.
    pub ended_unix_nano: u64,
}

/// A worker process.
#[derive(Debug)]
pub struct Worker {
    /// The process.
    pub pid: u32,
    /// Where it is in its life.
    pub phase: WorkerPhase,
    /// When its process was started.
    pub started: Now,
    /// The actor that it is for; none for those that take any task.
    pub actor: Option<TaskId>,
    /// Granted and not resolved, in the order of their numbers.
    pub leases: VecDeque<Grant>,
    /// The number of its next lease, which is also the place in the ring of claims; from 0.
    pub next_lease: u64,
    /// Tasks that it runs while others of its tasks wait, each inside of the one before it.
    pub inline: Vec<Grant>,
    /// For what its tasks wait.
    pub waits: Vec<Wait>,
    /// What its leases amount to, for the scheduler. Kept up with [`leases`](Self::leases).
    pub load: Load,
    /// How many attempts it has reported.
    pub tasks_ended: u64,
    /// What happens to its spans, for people; empty until it is ready.
    pub tracing: String,
    /// Why its hook failed, if it did.
    pub hook_failure: Option<String>,
    /// When it got ready, by the clock that never jumps.
    pub ready_monotonic_ns: Option<u64>,
    /// Set when the head ends it on purpose.
    pub ending: Option<Ending>,
    /// What its task has bounded its memory to, in bytes.
    pub memory_bytes: Option<u64>,
    /// When its output was last read, by the clock that never jumps.
    pub last_output_ns: u64,
    /// The attempt that it is to end.
    pub stopping: Option<Stopping>,
    /// Attempts that are to end too: a worker is told of one at a time.
    pub to_stop: Vec<ToStop>,
    /// Those of its leases that have any.
    pub terms: Vec<Terms>,
    /// Those of its leases whose output somebody wants.
    pub watched: Vec<u64>,
    /// The versions of modules that it was given tasks of.
    pub versions: Vec<VersionIndex>,
    /// Whether it is to be replaced, because of those: it is given nothing more.
    pub is_outdated: bool,
}

/// What is watched and held for a lease; most have nothing of the kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The lease.
    pub lease: u64,
    /// When it was granted, by the clock that never jumps.
    pub granted_ns: u64,
    /// How long the attempt may run, in nanoseconds; 0 for no limit.
    pub run_ns: u64,
    /// How long it may write nothing, in nanoseconds; 0 for no limit.
    pub idle_ns: u64,
    /// What it takes, if that is not just a slot.
    pub needs: Option<Arc<Needs>>,
}

impl Terms {
    /// When each limit is reached, by the clock that never jumps, for a worker whose output was last read then.
    fn limits(&self, last_output_ns: u64) -> impl Iterator<Item = (u64, StopReason)> {
        let limits = [
            (self.granted_ns, self.run_ns, StopReason::RunTimeout),
            (self.granted_ns.max(last_output_ns), self.idle_ns, StopReason::IdleTimeout),
        ];
        let limits = limits.into_iter().filter(|&(_, limit, _)| limit > 0);
        limits.map(|(since, limit, why)| (since.saturating_add(limit), why))
    }

    /// When the first limit is reached, by the clock that never jumps; [`u64::MAX`] for never.
    pub fn until_ns(&self, last_output_ns: u64) -> u64 {
        self.limits(last_output_ns).map(|(until, _)| until).min().unwrap_or(u64::MAX)
    }

    /// The limit that is reached, if one is.
    pub fn exceeded(&self, last_output_ns: u64, now: Now) -> Option<StopReason> {
        self.limits(last_output_ns).find(|&(until, _)| until <= now.monotonic_ns).map(|(_, why)| why)
    }
}

/// An attempt that is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopping {
    /// The task.
    pub task: TaskId,
    /// The lease that it runs under.
    pub lease: u64,
    /// How long it gets for each step.
    pub grace_ns: u64,
    /// How far it has come.
    pub step: StopStep,
    /// When the next step is taken, by the clock that never jumps.
    pub next_ns: u64,
    /// Until when a command that has not quite started is waited for.
    pub give_up_ns: u64,
}

/// An attempt that is to end, when another one in the same worker has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToStop {
    /// The lease that it runs under.
    pub lease: u64,
    /// Why.
    pub why: StopReason,
    /// How long it gets for each step, if whoever wants its end has said so.
    pub grace_ns: Option<u64>,
}

/// How far the end of an attempt has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopStep {
    /// It was asked.
    Asked,
    /// It got SIGTERM.
    Terminated,
    /// It got SIGKILL.
    Killed,
}

/// A task waits for others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The worker's own number for it.
    pub number: u64,
    /// The task that waits.
    pub task: TaskId,
    /// For which tasks, of those that have not ended.
    pub open: BTreeSet<TaskId>,
    /// How many of them have to end before it goes on.
    pub left: usize,
    /// The task whose attempt blocks its own thread until then, with no limit.
    pub blocked: Option<TaskId>,
}

/// A lease that a worker has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The worker's how-manieth lease, from 0.
    pub number: u64,
    /// The task.
    pub task: TaskId,
    /// How many slots it takes.
    pub slots: u32,
    /// What it counts for in the worker's load, in nanoseconds.
    pub expected_ns: u64,
    /// When it was granted.
    pub granted: Now,
}

/// Where a worker is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerPhase {
    /// Loading its hook.
    Starting,
    /// Its hook has run, and it takes leases.
    Ready,
    /// Told to end.
    Stopping,
}

/// Why the head ends a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// A task ran into its limit.
    TimedOut {
        /// The task, which gets this failure; others that the worker had claimed get [`Failure::WorkerLost`].
        task: TaskId,
        /// Which limit it was.
        limit: TimeLimit,
        /// What it was given, in nanoseconds.
        after_ns: u64,
    },
    /// A running task was cancelled.
    Cancelled {
        /// The task, which gets this failure.
        task: TaskId,
    },
    /// It did not get ready in time.
    StartTimedOut,
    /// Its hook failed, and tracing is required.
    HookFailed,
    /// There are enough others.
    NotNeeded,
    /// Its actor is to end.
    ActorEnded {
        /// The actor, which is dead from then on.
        actor: TaskId,
        /// How long it may take, by the clock that never jumps.
        until_ns: u64,
    },
    /// The head stops.
    Stopped,
}

impl Worker {
    /// A worker that was just started.
    pub fn starting(pid: u32, now: Now) -> Worker {
        Worker {
            pid,
            phase: WorkerPhase::Starting,
            started: now,
            actor: None,
            leases: VecDeque::new(),
            inline: Vec::new(),
            waits: Vec::new(),
            next_lease: 0,
            load: Load::default(),
            tasks_ended: 0,
            tracing: String::new(),
            hook_failure: None,
            ready_monotonic_ns: None,
            ending: None,
            memory_bytes: None,
            last_output_ns: 0,
            stopping: None,
            to_stop: Vec::new(),
            terms: Vec::new(),
            watched: Vec::new(),
            versions: Vec::new(),
            is_outdated: false,
        }
    }

    /// Whether the head has asked it to end, and not for a task's sake.
    pub fn was_asked_to_end(&self) -> bool {
        matches!(self.ending, Some(Ending::ActorEnded { .. } | Ending::Stopped | Ending::NotNeeded))
    }

    /// Whether nothing in it goes on before other tasks have ended, so that another may have its slot.
    pub fn is_waiting(&self) -> bool {
        match self.inline.last() {
            Some(running) => self.waits.iter().any(|wait| wait.task == running.task),
            None => !self.waits.is_empty(),
        }
    }

    /// Whether it holds the slots of a task, be they none: it runs something, or is about to. Actors are beside those.
    pub fn holds_slot(&self) -> bool {
        if self.actor.is_some() {
            return false;
        }
        match self.phase {
            WorkerPhase::Starting => false,
            WorkerPhase::Ready => {
                let has_tasks = !self.leases.is_empty() || !self.inline.is_empty();
                has_tasks && !self.is_waiting()
            }
            // It runs until it is gone.
            WorkerPhase::Stopping => self.ending != Some(Ending::NotNeeded),
        }
    }

    /// How many slots it holds.
    pub fn slots(&self) -> usize {
        let running = self.inline.last().or(self.leases.front());
        if self.holds_slot() { running.map_or(1, |grant| grant.slots as usize) } else { 0 }
    }

    /// Whether it can be sent any task: it is ready, no actor's and not to be replaced, nothing in it waits, and nothing in it is to end.
    pub fn takes_leases(&self) -> bool {
        let is_ready = self.phase == WorkerPhase::Ready && self.actor.is_none() && !self.is_outdated;
        is_ready && self.waits.is_empty() && self.inline.is_empty() && self.stopping.is_none()
    }

    /// Enters a lease, and returns its number.
    pub fn grant(&mut self, task: TaskId, slots: u32, expected_ns: u64, must_be_alone: bool, now: Now) -> u64 {
        let number = self.next_lease;
        self.next_lease += 1;
        self.leases.push_back(Grant { number, task, slots, expected_ns, granted: now });
        self.load.leases += 1;
        self.load.expected_ns += expected_ns;
        self.load.is_exclusive |= must_be_alone;
        number
    }

    /// Enters what is to be watched and held for a lease.
    pub fn bind(&mut self, lease: u64, limits: Option<&Limits>, needs: Option<&Arc<Needs>>, now: Now) {
        let (run_ns, idle_ns) = limits.map_or((0, 0), |limits| (limits.run_ns, limits.idle_ns));
        if run_ns > 0 || idle_ns > 0 || needs.is_some() {
            self.terms.push(Terms { lease, granted_ns: now.monotonic_ns, run_ns, idle_ns, needs: needs.cloned() });
        }
    }

    /// What it holds named resources for: until its attempt has ended, also while that waits.
    pub fn needs(&self) -> impl Iterator<Item = &Arc<Needs>> {
        self.terms.iter().filter_map(|terms| terms.needs.as_ref())
    }

    /// The number of the lease that a task has here.
    pub fn lease_of(&self, task: TaskId) -> Option<u64> {
        self.leases.iter().chain(&self.inline).find(|grant| grant.task == task).map(|grant| grant.number)
    }

    /// Takes a lease off, which is usually the first.
    pub fn take_lease(&mut self, number: u64) -> Option<Grant> {
        self.terms.retain(|terms| terms.lease != number);
        self.watched.retain(|&watched| watched != number);
        if number & INLINE_LEASE != 0 {
            let index = self.inline.iter().rposition(|grant| grant.number == number)?;
            return Some(self.inline.remove(index));
        }
        let index = self.leases.iter().position(|grant| grant.number == number)?;
        let grant = self.leases.remove(index)?;
        self.load.leases -= 1;
        self.load.expected_ns = self.load.expected_ns.saturating_sub(grant.expected_ns);
        if self.leases.is_empty() {
            self.load = Load::default();
        }
        Some(grant)
    }
}

/// The functions and programs that were submitted, by name, with how long they take.
#[derive(Debug, Default)]
pub struct Targets {
    by_name: HashMap<Box<str>, TargetIndex>,
    /// Those of a version of their module, by the place of their name.
    of_version: FxHashMap<(TargetIndex, VersionIndex), TargetIndex>,
    all: Vec<Target>,
}

/// A place in [`Targets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetIndex(u32);

#[derive(Debug)]
struct Target {
    name: Box<str>,
    version: Option<VersionIndex>,
    run_time: RunTime,
}

/// The most targets that are told apart. Beyond it they share one entry, so that a driver that submits ever new programs
/// does not fill the memory.
const TARGET_LIMIT: usize = 65_536;

impl Targets {
    /// The place of a name, which is made if there is none.
    pub fn index(&mut self, name: &str) -> TargetIndex {
        if let Some(&index) = self.by_name.get(name) {
            return index;
        }
        let name = if !self.is_full() { name } else { "(others)" };
        if let Some(&index) = self.by_name.get(name) {
            return index;
        }
        let index = TargetIndex(u32::try_from(self.all.len()).expect("targets are limited"));
        self.all.push(Target { name: name.into(), version: None, run_time: RunTime::default() });
        self.by_name.insert(name.into(), index);
        index
    }

    /// The place of a target in a version of its module; `name` is where its name is.
    pub fn of_version(&mut self, name: TargetIndex, version: VersionIndex) -> TargetIndex {
        if let Some(&index) = self.of_version.get(&(name, version)) {
            return index;
        }
        if self.is_full() {
            return name;
        }
        let index = TargetIndex(u32::try_from(self.all.len()).expect("targets are limited"));
        let name_there = self.all[name.0 as usize].name.clone();
        self.all.push(Target { name: name_there, version: Some(version), run_time: RunTime::default() });
        self.of_version.insert((name, version), index);
        index
    }

    /// The version of the module at a place; none for what has none.
    pub fn version(&self, index: TargetIndex) -> Option<VersionIndex> {
        self.all.get(index.0 as usize)?.version
    }

    /// Whether further ones are not told apart.
    pub fn is_full(&self) -> bool {
        self.all.len() >= TARGET_LIMIT
    }

    /// The name at a place that [`index`](Self::index) of this value returned.
    pub fn name(&self, index: TargetIndex) -> &str {
        &self.all[index.0 as usize].name
    }

    /// What is known of how long its tasks take, at a place that [`index`](Self::index) of this value returned.
    pub fn run_time(&mut self, index: TargetIndex) -> &mut RunTime {
        &mut self.all[index.0 as usize].run_time
    }
}

impl State {
    /// Whether the hook may be why workers do not get ready.
    pub fn is_hook_to_blame(&self) -> bool {
        self.hook.is_some() && !self.was_start_refused
    }

    /// A head that has just begun: no task, no worker.
    pub fn new(workers_wanted: usize, is_hook_required: bool) -> State {
        State {
            tasks: TaskTable::default(),
            queue: Queues::default(),
            resources: Vec::new(),
            stored: VecDeque::new(),
            stored_bytes: 0,
            stored_limit: STORED_LIMIT,
            history_bytes_limit: super::reactor::HISTORY_BYTES_LIMIT,
            values_to_remove: Vec::new(),
            children: HashMap::new(),
            abandoned: Vec::new(),
            open_bytes: 0,
            open_bytes_limit: u64::MAX,
            without_input: Vec::new(),
            queue_limits: BTreeSet::new(),
            keys: HashMap::new(),
            also_waiting: HashMap::new(),
            actors: Actors::default(),
            workers: Workers::default(),
            waiters_from: None,
            targets: Targets::default(),
            versions: ModuleVersions::default(),
            ended: VecDeque::new(),
            kept: HashSet::new(),
            ended_bytes: 0,
            tally: Tally::default(),
            workers_wanted,
            cores: usize::MAX,
            max_processes: workers_wanted,
            surplus_since: None,
            hook: None,
            is_hook_required,
            has_started: false,
            workers_lost: 0,
            next_worker: 1,
            failed_starts: 0,
            start_again: None,
            brief_lives: 0,
            runtime_since: HashMap::new(),
            no_worker: None,
            was_start_refused: false,
            resumes_ns: None,
            give_ups: 0,
            is_stopping: false,
        }
    }

    /// The task's row for people; `phase` tells leased from running.
    pub fn report(&self, id: TaskId, task: &Task, phase: Phase) -> protocol::TaskReport {
        let shown = task.shown();
        let mut report = protocol::TaskReport {
            id,
            name: Some(shown.name).filter(|name| !name.is_empty()).map(Into::into),
            target: self.targets.name(task.target).into(),
            state: phase,
            job_id: task.job,
            trace_id: (shown.trace_id != [0; 16])
                .then(|| shown.trace_id.iter().map(|byte| format!("{byte:02x}")).collect()),
            attempt: task.attempt,
            demand: task.demand_report(),
            attempts: task.past.as_ref().map(|past| past.attempts.clone()).unwrap_or_default(),
            worker_id: None,
            worker_pid: None,
            submitted_unix_nano: task.submitted_unix_nano,
            started_unix_nano: None,
            ended_unix_nano: None,
            result: None,
            result_loss: None,
            stored: None,
            failure: None,
            message: None,
            actor_id: match task.actor {
                Part::None => None,
                Part::Creation => Some(id),
                Part::Call(actor) => Some(actor),
            },
        };
        match task.progress() {
            Progress::Between | Progress::Waiting | Progress::Held | Progress::Retrying { .. } => {}
            Progress::Leased { worker } => {
                report.worker_id = Some(*worker);
                report.worker_pid = self.workers.get(worker).map(|worker| worker.pid);
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

    /// Fails with a sentence when the parts contradict each other. Tests call it after every step.
    pub fn check(&self) -> Result<(), String> {
        let ensure = |holds: bool, what: String| if holds { Ok(()) } else { Err(what) };
        for id in self.queue.iter() {
            let waits = self.tasks.get(id).is_some_and(|task| matches!(task.progress(), Progress::Waiting));
            ensure(waits, format!("task {id} is queued but does not wait"))?;
        }
        self.queue.check()?;
        let open: u64 = self.tasks.iter_newest_first().map(|(_, task)| task.open_bytes()).sum();
        ensure(
            open == self.open_bytes,
            format!("{open} bytes are of tasks that have not ended, {} counted", self.open_bytes),
        )?;
        let mut leased = 0;
        self.workers.check()?;
        for (worker_id, worker) in self.workers.iter() {
            ensure(worker.load.leases == worker.leases.len(), format!("worker {worker_id} miscounts its leases"))?;
            for grant in worker.leases.iter().chain(&worker.inline) {
                if worker.actor == Some(grant.task) && actors::is_restart(self, grant.task) {
                    continue;
                }
                leased += 1;
                let holder = self.tasks.get(grant.task).map(|task| task.progress());
                ensure(
                    matches!(holder, Some(Progress::Leased { worker }) if *worker == worker_id),
                    format!("worker {worker_id} has task {}, which does not know", grant.task),
                )?;
                let task = self.tasks.get(grant.task);
                let limits =
                    task.and_then(|task| task.limits.as_ref()).map_or((0, 0), |limits| (limits.run_ns, limits.idle_ns));
                let needs = task.and_then(|task| task.needs.as_ref());
                let terms = worker.terms.iter().find(|terms| terms.lease == grant.number);
                ensure(
                    terms.map_or((0, 0), |terms| (terms.run_ns, terms.idle_ns)) == limits
                        && terms.and_then(|terms| terms.needs.as_ref()) == needs,
                    format!("worker {worker_id} does not know the terms of task {}", grant.task),
                )?;
            }
            let has_lease = |terms: &Terms| {
                let mut grants = worker.leases.iter().chain(&worker.inline);
                grants.any(|grant| grant.number == terms.lease)
            };
            ensure(worker.terms.iter().all(has_lease), format!("worker {worker_id} has terms of no lease"))?;
        }
        for resource in &self.resources {
            let held: u64 = super::lanes::holders(self, &resource.name).iter().map(|&(_, amount)| amount).sum();
            let (name, total) = (&resource.name, resource.total);
            ensure(held <= total, format!("{held} of the resource `{name}` are held, of {total}"))?;
            ensure(
                held == self.workers.held(name),
                format!("{held} of the resource `{name}` are held, others counted"),
            )?;
        }
        ensure(
            leased == self.tally.counts().leased,
            format!("{leased} leases are held, {} counted", self.tally.counts().leased),
        )?;
        let waiting = self.queue.len() + self.tally.held() + self.tally.retrying().len() + actors::waiting(self);
        ensure(
            waiting == self.tally.counts().waiting,
            format!("{waiting} tasks are queued, held or to be tried again, {} counted", self.tally.counts().waiting),
        )?;
        for &(until, id) in self.tally.retrying() {
            let progress = self.tasks.get(id).map(|task| task.progress());
            ensure(
                matches!(progress, Some(Progress::Retrying { until: known }) if *known == until),
                format!("task {id} is to be tried again, but does not know"),
            )?;
        }
        for &(until, id) in &self.queue_limits {
            let limits = self.tasks.get(id).and_then(|task| task.limits.as_ref());
            let is_known = limits.is_some_and(|limits| limits.queue_until == until);
            ensure(is_known, format!("task {id} has a limit to its waiting, but does not know"))?;
        }
        for (key, keyed) in &self.keys {
            let known = self.tasks.get(keyed.task).and_then(|task| task.key.as_deref());
            ensure(known == Some(key), format!("key `{key}` names task {}, which does not know", keyed.task))?;
        }
        for id in self.also_waiting.keys() {
            let has_ended = self.tasks.get(*id).is_none_or(|task| matches!(task.progress(), Progress::Ended(_)));
            ensure(!has_ended, format!("somebody waits for task {id}, which has ended"))?;
        }
        actors::check(self)?;
        ensure(
            self.tasks.len() == waiting + leased + self.ended.len() + self.kept.len(),
            format!("{} tasks are neither queued, held, to be tried again, leased nor ended", self.tasks.len()),
        )
    }
}

impl Task {
    /// The attempt that it is at, as it is leased.
    pub fn lease<'a>(&'a self, id: TaskId, number: u64, queued: Option<Period>, inputs: &'a [u8]) -> Lease<'a> {
        Lease {
            number,
            task: id,
            attempt: self.attempt,
            job: self.job,
            submitted_unix_nano: self.submitted_unix_nano,
            previous: self.past.as_ref().and_then(|past| past.span),
            envelope: self.envelope(),
            queued,
            inputs,
        }
    }

    /// Its envelope; empty once it has ended.
    pub fn envelope(&self) -> &[u8] {
        match &self.description {
            Description::Envelope(envelope) => envelope,
            Description::Shown(_) => &[],
        }
    }

    /// What is shown of its description.
    pub fn shown(&self) -> EnvelopeHead<'_> {
        match &self.description {
            Description::Envelope(envelope) => Envelope::head_of(envelope).unwrap_or_default(),
            Description::Shown(shown) => shown.as_ref().map_or_else(EnvelopeHead::default, |shown| EnvelopeHead {
                name: &shown.name,
                trace_id: shown.trace_id,
            }),
        }
    }

    /// What it counts for in [`State::open_bytes`] while it has not ended.
    pub fn open_bytes(&self) -> u64 {
        match &self.description {
            Description::Envelope(envelope) => envelope.len() as u64 + TASK_BYTES,
            Description::Shown(_) => 0,
        }
    }

    /// Forgets the description, but for what is shown of it.
    pub fn forget_envelope(&mut self) {
        let shown = self.shown();
        let is_shown = shown != EnvelopeHead::default();
        let shown = is_shown.then(|| Box::new(Shown { name: shown.name.into(), trace_id: shown.trace_id }));
        self.description = Description::Shown(shown);
    }

    /// What it asked for, if that is more than a slot.
    fn demand_report(&self) -> Option<protocol::DemandReport> {
        let memory_bytes = self.limits.as_ref().map(|limits| limits.memory_bytes).filter(|&bytes| bytes > 0);
        match &self.needs {
            Some(needs) => Some(protocol::DemandReport { memory_bytes, ..needs.report() }),
            None => memory_bytes.map(|_| protocol::DemandReport { num_cpus: 1, memory_bytes, ..Default::default() }),
        }
    }
}

impl Ended {
    /// The attempt that ended the task; none when it never began.
    pub fn attempt_report(&self, number: u32) -> Option<AttemptReport> {
        self.worker?;
        let failure = match &self.outcome {
            Outcome::Failed(failure) => Some(failure),
            Outcome::Returned(_) | Outcome::Stored(_) | Outcome::Completed => None,
        };
        Some(AttemptReport {
            number,
            worker_id: self.worker,
            worker_pid: self.worker_pid,
            started_unix_nano: self.started_unix_nano,
            ended_unix_nano: self.ended_unix_nano,
            failure: failure.cloned(),
            message: failure.map(ToString::to_string),
        })
    }

    /// Bytes that it keeps.
    pub fn size(&self) -> usize {
        match &self.outcome {
            Outcome::Returned(value) => value.len(),
            Outcome::Stored(stored) => stored.name.len(),
            Outcome::Completed => 0,
            Outcome::Failed(
                Failure::Error { message, stacktrace, .. } | Failure::Panic { message, stacktrace, .. },
            ) => message.len() + stacktrace.len(),
            Outcome::Failed(_) => 64,
        }
    }
}

#[cfg(test)]
impl Task {
    /// A task with nothing special about it.
    pub(super) fn sample(tag: u64) -> Task {
        Task {
            description: Description::Shown(None),
            target: TargetIndex(0),
            submitter: None,
            links: None,
            driver: None,
            tag,
            job: JobId(1),
            submitted_unix_nano: 0,
            traces_runtime: false,
            limits: None,
            needs: None,
            is_command: false,
            actor: Part::None,
            attempt: 0,
            must_be_alone: false,
            wants_output: false,
            at_most_once: false,
            key: None,
            past: None,
            stage: Stage::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn jobs_take_turns_and_tasks_of_tasks_come_first() {
        let mut queue = Queue::default();
        for id in 1..=3 {
            queue.push_back(TaskId(id), None, JobId(1));
        }
        queue.push_back(TaskId(4), None, JobId(2));
        queue.push_back(TaskId(5), Some(TaskId(1)), JobId(1));
        queue.push_back(TaskId(6), None, JobId(3));
        let order = [5, 1, 4, 6, 2, 3].map(TaskId);
        assert!(queue.iter().eq(order));
        assert_eq!(queue.len(), order.len());
        let popped: Vec<_> = std::iter::from_fn(|| queue.pop_front()).collect();
        assert_eq!(popped, order);
        assert!(queue.is_empty() && queue.of_drivers.tasks.is_empty() && queue.of_drivers.jobs.is_empty());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Submit { job: u64 },
        Turn,
        PutBack,
        Remove { place: usize },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..JOBS).prop_map(|job| Step::Submit { job }),
            3 => Just(Step::Turn),
            1 => Just(Step::PutBack),
            1 => any::<usize>().prop_map(|place| Step::Remove { place }),
        ]
    }

    const JOBS: u64 = 5;

    proptest! {
        #[test]
        fn a_job_is_first_in_first_out_and_none_starves(steps in prop::collection::vec(step(), 0..300)) {
            let mut queue = Queue::default();
            let mut model: BTreeMap<u64, VecDeque<TaskId>> = BTreeMap::new();
            // How many turns of others each job with tasks has seen since its own.
            let mut waited: BTreeMap<u64, u64> = BTreeMap::new();
            let mut last = None;
            for (number, step) in (1..).zip(steps) {
                match step {
                    Step::Submit { job } => {
                        queue.push_back(TaskId(number), None, JobId(job));
                        model.entry(job).or_default().push_back(TaskId(number));
                    }
                    Step::Turn => {
                        let announced = queue.iter().next();
                        prop_assert_eq!(queue.front().copied(), announced);
                        let id = queue.pop_front();
                        prop_assert_eq!(id, announced);
                        let Some(id) = id else { continue };
                        let job = model.iter().find(|(_, tasks)| tasks.contains(&id)).map(|(&job, _)| job).unwrap();
                        let tasks = model.get_mut(&job).unwrap();
                        prop_assert_eq!(tasks.pop_front(), Some(id), "first in, first out");
                        last = Some((id, job));
                        waited.remove(&job);
                        for (&other, _) in model.iter().filter(|&(&other, tasks)| other != job && !tasks.is_empty()) {
                            let waited = waited.entry(other).or_default();
                            *waited += 1;
                            prop_assert!(*waited < JOBS, "job {} starves", other);
                        }
                    }
                    Step::PutBack => {
                        let Some((id, job)) = last.take() else { continue };
                        queue.push_front(id, None, JobId(job));
                        model.entry(job).or_default().push_front(id);
                        // Its turn does not count: it was given back.
                        waited.values_mut().for_each(|waited| *waited = waited.saturating_sub(1));
                    }
                    Step::Remove { place } => {
                        let all: Vec<_> = queue.iter().collect();
                        let Some(&id) = all.get(place % all.len().max(1)) else { continue };
                        let (&job, tasks) = model.iter_mut().find(|(_, tasks)| tasks.contains(&id)).unwrap();
                        queue.remove(id, None, JobId(job));
                        tasks.retain(|&known| known != id);
                        if tasks.is_empty() {
                            waited.remove(&job);
                        }
                    }
                }
                let mut all: Vec<_> = queue.iter().collect();
                all.sort();
                let mut expected: Vec<_> = model.values().flatten().copied().collect();
                expected.sort();
                prop_assert_eq!(queue.len(), all.len());
                prop_assert_eq!(all, expected);
            }
        }
    }
}
