//! What the head knows: tasks, workers, and what they have to do with each other. Data and its invariants, no effects.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use actor::Actors;
use follow_ups::FollowUps;
use progress::Tally;
use ready_queue::ReadyQueues;
use table::TaskTable;
use target::Targets;
use tracer_core::task::{TaskId, WorkerId};
use version::ModuleVersions;
use workers::Workers;

pub(crate) mod actor;
pub(crate) mod follow_ups;
pub(crate) mod needs;
pub(crate) mod now;
pub(crate) mod progress;
pub(crate) mod ready_queue;
pub(crate) mod table;
pub(crate) mod target;
pub(crate) mod task;
pub(crate) mod version;
pub(crate) mod worker;
pub(crate) mod workers;

pub use actor::Death;
pub use needs::{Needs, Resource};
pub use now::Now;
pub use progress::{Progress, TaskEnd};
pub use task::{DriverId, TASK_BYTES};
pub use worker::{Worker, WorkerPhase};

/// Bytes of results that are remembered.
pub const HISTORY_BYTES_LIMIT: usize = 64 << 20;

/// Everything.
#[derive(Debug)]
pub struct State {
    /// Every task that has not been forgotten, by id.
    pub tasks: TaskTable,
    /// Waiting tasks in the order of their turn.
    pub queue: ReadyQueues,
    /// The named resources, in the order of their names.
    pub resources: Vec<Resource>,
    /// What is occupied of them by others than tasks, by name: by replicas.
    pub occupied: BTreeMap<String, u64>,
    /// Processes of replicas, which count among those that there may be.
    pub replicas: usize,
    /// The tasks that tasks have submitted, of those that have not ended, by the one that has.
    pub children: HashMap<TaskId, BTreeSet<TaskId>>,
    /// Ended tasks whose results are in files, oldest first; some may have no file any more.
    pub stored: VecDeque<TaskId>,
    /// Bytes of those files.
    pub stored_bytes: u64,
    /// The most bytes of those files.
    pub stored_limit: u64,
    /// Number of bytes that are kept of the results of ended tasks.
    pub history_bytes_limit: usize,
    /// What tasks take that have not ended: their descriptions, and [`TASK_BYTES`] each.
    pub open_bytes: u64,
    /// The most of it; beyond that, drivers' submissions are refused.
    pub open_bytes_limit: u64,
    /// What follows from ends and is done with the next turn.
    pub(crate) follow_ups: FollowUps,
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
    /// Number of workers that there should be, those aside whose tasks wait for others; those that die are replaced. It is also how many run
    /// tasks at a time.
    pub workers_wanted: usize,
    /// Number of workers that keep the machine busy.
    pub cores: usize,
    /// The most worker processes there may be.
    pub max_processes: usize,
    /// Since when there are more workers than needed, by the clock that never jumps.
    pub surplus_since: Option<u64>,
    /// The hook that runs in every worker, as `module:attribute`, so that it can be named when workers do not get ready.
    pub hook: Option<String>,
    /// True if a worker whose hook failed must not run tasks.
    pub is_hook_required: bool,
    /// True if the head has said that it has started. Until then a hook that is required and fails is the end of it.
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
    /// True if the last worker that was wanted could not be started by the system: no hook has run in it.
    pub was_start_refused: bool,
    /// When workers are started again after that, by the clock that never jumps; none when they are not.
    pub resumes_ns: Option<u64>,
    /// Number of times in a row that no more workers were started.
    pub give_ups: u32,
    /// Set when the head is to stop: nothing is accepted or leased any more.
    pub is_stopping: bool,
    /// Tasks that have come to an end of their own since.
    pub ended_while_stopping: usize,
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

/// Bytes of results in files that are kept for tasks that have ended.
const STORED_LIMIT: u64 = 4 << 30;

impl State {
    /// Takes out the files of values that nobody needs any more, where no head goes on with this state; in one that does, they are an effect.
    pub fn take_unused_values(&mut self) -> Vec<String> {
        self.follow_ups.take_unused_values()
    }

    /// Returns whether the hook may be why workers do not get ready.
    pub fn is_hook_to_blame(&self) -> bool {
        self.hook.is_some() && !self.was_start_refused
    }

    /// A head that has just begun: no task, no worker.
    pub fn new(workers_wanted: usize, is_hook_required: bool) -> State {
        State {
            tasks: TaskTable::default(),
            queue: ReadyQueues::default(),
            resources: Vec::new(),
            occupied: BTreeMap::new(),
            replicas: 0,
            stored: VecDeque::new(),
            stored_bytes: 0,
            stored_limit: STORED_LIMIT,
            history_bytes_limit: HISTORY_BYTES_LIMIT,
            children: HashMap::new(),
            open_bytes: 0,
            open_bytes_limit: u64::MAX,
            follow_ups: FollowUps::default(),
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
            ended_while_stopping: 0,
        }
    }

    /// An ended task may not be needed any more: if it was only kept for that, it is among the oldest again.
    pub(crate) fn keep_no_longer(&mut self, id: TaskId) {
        if self.kept.remove(&id) {
            self.ended.push_front(id);
        }
    }
}
