//! State of the head: tasks, workers, and their relations. Data and its invariants, no effects.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use actors::Actors;
use follow_ups::FollowUps;
use history::History;
use progress::Tally;
use ready_queue::ReadyQueues;
use shared::SharedTasks;
use starts::Starts;
use table::TaskTable;
use target::Targets;
use tracer_core::task::{TaskId, WorkerId};
use tracer_ipc::protocol::TaskCounts;
use version::ModuleVersions;

pub(crate) mod actor;
pub(crate) mod actors;
pub(crate) mod follow_ups;
pub(crate) mod history;
pub(crate) mod needs;
pub(crate) mod now;
pub(crate) mod progress;
pub(crate) mod ready_queue;
pub(crate) mod settings;
pub(crate) mod shared;
pub(crate) mod starts;
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
pub use settings::Settings;
pub use starts::StartAgain;
pub use task::{DriverId, TASK_BYTES, Task};
pub use worker::{Worker, WorkerPhase};
pub use workers::Workers;

/// State of the reactor.
#[derive(Debug)]
pub struct State {
    /// See [`settings`](Self::settings).
    pub(crate) settings: Settings,
    /// Every task that has not been forgotten, by id.
    pub(crate) tasks: TaskTable,
    /// Waiting tasks in the order of their turn.
    pub(crate) queue: ReadyQueues,
    /// Amounts of named resources that replicas hold, by name.
    pub(crate) occupied: BTreeMap<String, u64>,
    /// Processes of replicas, which count among those that there may be.
    pub(crate) replicas: usize,
    /// The tasks that tasks have submitted, of those that have not ended, by the one that has.
    pub(crate) children: HashMap<TaskId, BTreeSet<TaskId>>,
    /// Workers in which something waits for tasks that another task has submitted, by the task that is awaited: a thread that belongs to no
    /// task for certain submitted it.
    pub(crate) awaited_in: HashMap<TaskId, WorkerId>,
    /// Memory of tasks that have not ended: their descriptions, and [`TASK_BYTES`] each.
    pub(crate) open_bytes: u64,
    /// Consequences of ends, which the next turn handles.
    pub(crate) follow_ups: FollowUps,
    /// Tasks with a limit on how long they may wait that have not begun, by when it is reached.
    pub(crate) queue_limits: BTreeSet<(u64, TaskId)>,
    /// Tasks that were submitted with an idempotency key, by that key, as long as they are remembered.
    pub(crate) keys: HashMap<Box<str>, Keyed>,
    /// Drivers that wait for a task beside its submitter: they submitted it again under its key, with their own number for it.
    pub(crate) also_waiting: HashMap<TaskId, Vec<(DriverId, u64)>>,
    /// Actors, and what waits for them.
    pub(crate) actors: Actors,
    /// Every worker process that has not been reaped, by id.
    pub(crate) workers: Workers,
    /// The worker at which the next turn goes on among those whose tasks wait for others; none when all of them have been looked at.
    pub(crate) waiters_from: Option<WorkerId>,
    /// Targets of all submissions, by name, with their run times.
    pub(crate) targets: Targets,
    /// The versions of modules that tasks were submitted with.
    pub(crate) versions: ModuleVersions,
    /// Ended tasks.
    pub(crate) history: History,
    /// The tasks by progress.
    pub(crate) tally: Tally,
    /// Time since which there are more workers than needed, by the monotonic clock.
    pub(crate) surplus_since: Option<u64>,
    /// Starts of workers that have failed.
    pub(crate) starts: Starts,
    /// Workers that ended before the head was to stop, those included that it killed for a task's sake.
    pub(crate) workers_lost: u64,
    /// Ids of workers and replicas.
    pub(crate) processes: ProcessIds,
    /// For tasks that trace the runtime: since when they wait in the queue, or when their attempt ended, in nanoseconds since the
    /// Unix epoch.
    pub(crate) runtime_since: HashMap<TaskId, u64>,
    /// Tasks in queues of an engine, and tasks of other nodes.
    pub(crate) shared: SharedTasks,
    /// Set when the head is to stop: nothing is accepted or leased any more.
    pub(crate) stop: Option<Unfinished>,
    /// True if the head is to stop when all tasks have ended: nothing is accepted of drivers any more.
    pub(crate) is_draining: bool,
    /// Tasks that have come to an end of their own since.
    pub(crate) ended_while_stopping: usize,
}

/// Lot of the tasks that have not ended when the head stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfinished {
    /// They stay in the journal, and the next head in this place goes on with them.
    Kept,
    /// They end as stopped.
    Discarded,
}

/// Ids of processes, from 1. None is given out twice.
#[derive(Debug, Default)]
pub struct ProcessIds {
    last: u64,
}

impl ProcessIds {
    /// Gives out an id.
    pub fn give(&mut self) -> WorkerId {
        self.last += 1;
        WorkerId(self.last)
    }

    /// Gives out no id any more up to this one: a head before this one has.
    pub fn reserve(&mut self, last: WorkerId) {
        self.last = self.last.max(last.0);
    }
}

/// A task with an idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keyed {
    /// The task.
    pub task: TaskId,
    /// Stands for what the task runs.
    pub fingerprint: u64,
}

impl State {
    /// Takes out the files of values that nobody needs any more, where no head goes on with this state; in one that does, they are an effect.
    pub fn take_unused_values(&mut self) -> Vec<String> {
        self.follow_ups.take_unused_values()
    }

    /// Returns whether the hook may be why workers do not get ready.
    pub fn is_hook_to_blame(&self) -> bool {
        self.settings.hook.is_some() && !self.starts.was_refused()
    }

    /// Makes a head that has just begun: no task, no worker.
    pub fn new(settings: Settings) -> State {
        State {
            settings,
            tasks: TaskTable::default(),
            queue: ReadyQueues::default(),
            occupied: BTreeMap::new(),
            replicas: 0,
            children: HashMap::new(),
            awaited_in: HashMap::new(),
            open_bytes: 0,
            follow_ups: FollowUps::default(),
            queue_limits: BTreeSet::new(),
            keys: HashMap::new(),
            also_waiting: HashMap::new(),
            actors: Actors::default(),
            workers: Workers::default(),
            waiters_from: None,
            targets: Targets::default(),
            versions: ModuleVersions::default(),
            history: History::default(),
            tally: Tally::default(),
            surplus_since: None,
            starts: Starts::default(),
            workers_lost: 0,
            processes: ProcessIds::default(),
            runtime_since: HashMap::new(),
            shared: SharedTasks::default(),
            stop: None,
            is_draining: false,
            ended_while_stopping: 0,
        }
    }

    /// Returns the settings of the head.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns a task that is remembered.
    pub fn task(&self, id: TaskId) -> Option<&Task> {
        self.tasks.get(id)
    }

    /// Returns the tasks that are remembered, the newest first.
    pub fn tasks(&self) -> impl Iterator<Item = (TaskId, &Task)> {
        self.tasks.iter_newest_first()
    }

    /// Gives out no id before this one.
    pub fn reserve_ids(&mut self, next: TaskId) {
        self.tasks.reserve(next);
    }

    /// Returns the numbers of tasks by state. One that was submitted here and is here again over a queue is one task, and is what it is here.
    pub fn counts(&self) -> TaskCounts {
        let counts = self.tally.counts();
        let is_open =
            |id: &TaskId| !self.tasks.get(*id).is_some_and(|task| matches!(task.progress(), Progress::Ended(_)));
        let imports = self.shared.imports.iter().filter(|(_, import)| self.shared.is_own(import.id));
        let twice = imports.filter(|(id, _)| is_open(id)).count();
        TaskCounts { waiting: counts.waiting - twice, ..counts }
    }

    /// Returns what tasks take that have not ended: their descriptions, and [`TASK_BYTES`] each.
    pub fn open_bytes(&self) -> u64 {
        self.open_bytes
    }

    /// Returns the idempotency keys of the tasks that are remembered.
    pub fn keys(&self) -> impl Iterator<Item = (&str, TaskId)> {
        self.keys.iter().map(|(key, keyed)| (&**key, keyed.task))
    }

    /// Returns the worker processes that have not been reaped.
    pub fn workers(&self) -> &Workers {
        &self.workers
    }

    /// Returns the number of workers that ended before the head was to stop, those included that it killed for a task's sake.
    pub fn workers_lost(&self) -> u64 {
        self.workers_lost
    }

    /// Returns the ids of processes that are still to be given out.
    pub fn processes_mut(&mut self) -> &mut ProcessIds {
        &mut self.processes
    }

    /// Takes over what replicas occupy: named resources, and processes.
    pub fn occupy(&mut self, resources: BTreeMap<String, u64>, processes: usize) {
        (self.occupied, self.replicas) = (resources, processes);
    }

    /// Returns what tasks have of each named resource.
    pub fn held_by_tasks(&self) -> Vec<(String, u64)> {
        let resources = self.settings.resources.iter();
        resources.map(|resource| (resource.name.to_string(), self.workers.held(&resource.name))).collect()
    }

    /// Returns whether versions of modules have come since it was last asked.
    pub fn take_new_versions(&mut self) -> bool {
        self.versions.take_new()
    }

    /// Notes that the head has said that it has started. Until then a hook that is required and fails is the end of it.
    pub fn begin(&mut self) {
        self.starts.begin();
    }

    /// Returns whether the head has [said](Self::begin) that it has started.
    pub fn has_begun(&self) -> bool {
        self.starts.has_begun()
    }

    /// Returns why no worker is started for now.
    pub fn no_worker(&self) -> Option<&str> {
        self.starts.no_worker()
    }

    /// Returns which worker could not be started, while it is tried again.
    pub fn start_again(&self) -> Option<&StartAgain> {
        self.starts.again()
    }

    /// Returns the number of tasks that have come to an end of their own since the head was to stop.
    pub fn ended_while_stopping(&self) -> usize {
        self.ended_while_stopping
    }
}
