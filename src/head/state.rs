//! What the head knows: tasks, workers, and what they have to do with each other. Data and its invariants, no effects.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::table::TaskTable;
use crate::protocol::{self, TaskState as Phase};
use crate::scheduler::{Load, RunTime};
use crate::task::{Failure, JobId, Outcome, TaskId, WorkerId};

/// A connected driver, as the server numbers its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DriverId(pub u64);

/// A point in time, read once per wake-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Now {
    /// Nanoseconds of a clock that never jumps.
    pub monotonic_ns: u64,
    /// Nanoseconds since the Unix epoch.
    pub unix_nano: u64,
}

/// Everything.
#[derive(Debug)]
pub struct State {
    /// Every task that has not been forgotten, by id.
    pub tasks: TaskTable,
    /// Waiting tasks in the order of their submission.
    pub queue: VecDeque<TaskId>,
    /// Every worker process that has not been reaped, by id.
    pub workers: BTreeMap<WorkerId, Worker>,
    /// Workers that can be given tasks, the one used last at the end.
    pub available: Vec<WorkerId>,
    /// What was ever submitted, by name, with how long it takes.
    pub targets: Targets,
    /// Ended tasks, oldest first.
    pub ended: VecDeque<TaskId>,
    /// Bytes of results that ended tasks keep.
    pub ended_bytes: usize,
    /// The tasks by state, kept up with every change. [`check`](State::check) compares them with what is there.
    pub counts: protocol::TaskCounts,
    /// How many workers there should be; those that die are replaced.
    pub workers_wanted: usize,
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
    /// Why no worker is started any more.
    pub no_worker: Option<String>,
    /// Set when the head is to stop: nothing is accepted or leased any more.
    pub is_stopping: bool,
}

/// A worker that could not be started, and shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartAgain {
    /// What the system said.
    pub reason: String,
    /// When to try again, by the clock that never jumps.
    pub monotonic_ns: u64,
}

/// A task that the head has accepted.
#[derive(Debug)]
pub struct Task {
    /// Empty once the task has ended.
    pub envelope: Box<[u8]>,
    /// The name given with `--name`.
    pub name: Option<Box<str>>,
    /// What it runs, as people call it.
    pub target: TargetIndex,
    /// Who waits for it.
    pub driver: Option<DriverId>,
    /// The driver's own number for it.
    pub tag: u64,
    /// The driver's job that it belongs to.
    pub job: JobId,
    /// All zero when the submission was not traced.
    pub trace_id: [u8; 16],
    /// When it was taken in, in nanoseconds since the Unix epoch.
    pub submitted_unix_nano: u64,
    /// 0 for no limit.
    pub run_limit_ns: u64,
    /// The attempt that it is at, from 1; 0 while no worker was given it.
    pub attempt: u32,
    /// Whether no other task is leased to a worker beside it: a command, a task with a limit, or one whose output is
    /// wanted.
    pub must_be_alone: bool,
    /// Whether its driver is sent what it writes.
    pub wants_output: bool,
    /// Whether the runtime's own work for it is traced: its times are then in [`State::runtime_since`].
    pub traces_runtime: bool,
    /// Where it is.
    pub progress: Progress,
}

/// Where a task is.
#[derive(Debug)]
pub enum Progress {
    /// In [`State::queue`].
    Waiting,
    /// Among the [leases](Worker::leases) of a worker. Whether it has begun is in that worker's ring of claims.
    Leased {
        /// Which worker.
        worker: WorkerId,
    },
    /// In [`State::ended`], until it is forgotten.
    Ended(Box<Ended>),
}

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
    /// When the head learnt of the end, in nanoseconds since the Unix epoch.
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
    /// Granted and not resolved, in the order of their numbers.
    pub leases: VecDeque<Grant>,
    /// The number of its next lease, which is also the place in the ring of claims; from 0.
    pub next_lease: u64,
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
}

/// A lease that a worker has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The worker's how-manieth lease, from 0.
    pub number: u64,
    /// The task.
    pub task: TaskId,
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
            leases: VecDeque::new(),
            next_lease: 0,
            load: Load::default(),
            tasks_ended: 0,
            tracing: String::new(),
            hook_failure: None,
            ready_monotonic_ns: None,
            ending: None,
        }
    }

    /// Takes a lease off, which is usually the first.
    pub fn take_lease(&mut self, number: u64) -> Option<Grant> {
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
    all: Vec<Target>,
}

/// A place in [`Targets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetIndex(u32);

#[derive(Debug)]
struct Target {
    name: Box<str>,
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
        let name = if self.all.len() < TARGET_LIMIT { name } else { "(others)" };
        if let Some(&index) = self.by_name.get(name) {
            return index;
        }
        let index = TargetIndex(u32::try_from(self.all.len()).expect("targets are limited"));
        self.all.push(Target { name: name.into(), run_time: RunTime::default() });
        self.by_name.insert(name.into(), index);
        index
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
    /// A head that has just begun: no task, no worker.
    pub fn new(workers_wanted: usize, is_hook_required: bool) -> State {
        State {
            tasks: TaskTable::default(),
            queue: VecDeque::new(),
            workers: BTreeMap::new(),
            available: Vec::new(),
            targets: Targets::default(),
            ended: VecDeque::new(),
            ended_bytes: 0,
            counts: protocol::TaskCounts::default(),
            workers_wanted,
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
            is_stopping: false,
        }
    }

    /// The task's row for people; `phase` tells leased from running.
    pub fn report(&self, id: TaskId, task: &Task, phase: Phase) -> protocol::TaskReport {
        let mut report = protocol::TaskReport {
            id,
            name: task.name.as_deref().map(Into::into),
            target: self.targets.name(task.target).into(),
            state: phase,
            job_id: task.job,
            trace_id: (task.trace_id != [0; 16])
                .then(|| task.trace_id.iter().map(|byte| format!("{byte:02x}")).collect()),
            attempt: task.attempt,
            worker_id: None,
            worker_pid: None,
            submitted_unix_nano: task.submitted_unix_nano,
            started_unix_nano: None,
            ended_unix_nano: None,
            result: None,
            failure: None,
            message: None,
        };
        match &task.progress {
            Progress::Waiting => {}
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
            }
        }
        report
    }

    /// Fails with a sentence when the parts contradict each other. Tests call it after every step.
    pub fn check(&self) -> Result<(), String> {
        let ensure = |holds: bool, what: String| if holds { Ok(()) } else { Err(what) };
        for &id in &self.queue {
            let waits = self.tasks.get(id).is_some_and(|task| matches!(task.progress, Progress::Waiting));
            ensure(waits, format!("task {id} is queued but does not wait"))?;
        }
        let mut leased = 0;
        for (worker_id, worker) in &self.workers {
            ensure(worker.load.leases == worker.leases.len(), format!("worker {worker_id} miscounts its leases"))?;
            leased += worker.leases.len();
            for grant in &worker.leases {
                let holder = self.tasks.get(grant.task).map(|task| &task.progress);
                ensure(
                    matches!(holder, Some(Progress::Leased { worker }) if worker == worker_id),
                    format!("worker {worker_id} has task {}, which does not know", grant.task),
                )?;
            }
        }
        ensure(leased == self.counts.leased, format!("{leased} leases are held, {} counted", self.counts.leased))?;
        ensure(
            self.queue.len() == self.counts.waiting,
            format!("{} tasks are queued, {} counted", self.queue.len(), self.counts.waiting),
        )?;
        ensure(
            self.tasks.len() == self.queue.len() + leased + self.ended.len(),
            format!("{} tasks are neither queued, leased nor ended", self.tasks.len()),
        )
    }
}

impl Ended {
    /// Bytes that it keeps.
    pub fn size(&self) -> usize {
        match &self.outcome {
            Outcome::Returned(value) => value.len(),
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
            envelope: Box::default(),
            name: None,
            target: TargetIndex(0),
            driver: None,
            tag,
            job: JobId(1),
            trace_id: [0; 16],
            submitted_unix_nano: 0,
            run_limit_ns: 0,
            traces_runtime: false,
            attempt: 0,
            must_be_alone: false,
            wants_output: false,
            progress: Progress::Waiting,
        }
    }
}
