//! Tasks that are in an engine's queues, and tasks of other nodes that this head runs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use tracer_core::paged_map::PagedMap;
use tracer_core::task::{Charge, Failure, JobId, TaskId};
use tracer_core::{ClusterTaskId, PlaceId};
use tracer_ipc::protocol::{ClaimedBy, Stop};

use crate::state::task::DriverId;

/// Tasks of this head that the engine has or is to have, and imports. All of it is empty in a head that has joined no engine.
#[derive(Debug, Default)]
pub(crate) struct SharedTasks {
    /// The id of this head's place; none in a head that has joined no engine.
    pub place: Option<PlaceId>,
    /// The job of imports; none in a head that has joined no engine.
    pub job: Option<JobId>,
    /// Tasks that are to be handed to the agent with the next turn.
    pub to_share: VecDeque<TaskId>,
    /// A bundle of some of them, while others are on the way and more tasks may come.
    pub gathered: Option<Gathered>,
    /// The first of the tasks that wait for others to go with them, and the time since which it does, in nanoseconds of the monotonic clock.
    pub waiting: Option<(TaskId, u64)>,
    /// Tasks that the agent was told of and that the engine is not known to have; of bundles the first.
    pub on_the_way: BTreeSet<TaskId>,
    /// True if the agent has said that the engine can be reached.
    pub is_reachable: bool,
    /// Bundles that have tasks that have not ended, by their first tasks.
    pub bundles: BTreeMap<TaskId, Bundle>,
    /// Tasks that are [shared](crate::state::Progress::Shared), those included that are to be handed over.
    pub open: PagedMap<TaskId, Open>,
    /// Number of those, by their jobs.
    pub of_job: BTreeMap<JobId, usize>,
    /// Tasks with ids below this one may have been put into a queue by an agent of a head before this one; none if there was no such head.
    pub new_from: Option<TaskId>,
    /// Tasks of other nodes that this head runs, or whose end the agent has not settled.
    pub imports: PagedMap<TaskId, Imported>,
    /// The same, by their ids in the cluster.
    pub imports_by_id: PagedMap<ClusterTaskId, TaskId>,
    /// Number of the tasks, those included that have ended, that are imports of what was submitted here.
    pub own_imports: usize,
    /// Number of imports that have come from the agent that there is.
    pub imports_seen: u64,
}

impl SharedTasks {
    /// Returns whether a task is one of another node that this one has lost, or may have.
    pub(crate) fn is_superseded(&self, id: TaskId) -> bool {
        self.imports.get(&id).is_some_and(|import| import.is_superseded)
    }

    /// Returns whether a task in the cluster is one of this head that has not ended.
    pub(crate) fn is_own(&self, id: ClusterTaskId) -> bool {
        self.place == Some(id.place) && self.open.contains_key(&id.task)
    }

    /// Returns the task of this head that an import is, if it is one; the import itself if not.
    pub(crate) fn submission_of(&self, import: TaskId) -> TaskId {
        let submission = self.imports.get(&import).map(|import| import.id).filter(|id| self.is_own(*id));
        submission.map_or(import, |id| id.task)
    }

    /// Notes that a task of a job is for a queue.
    pub(crate) fn open(&mut self, id: TaskId, job: JobId) {
        self.open.insert(id, Open::default());
        *self.of_job.entry(job).or_default() += 1;
        self.to_share.push_back(id);
        if let Some((first, _)) = self.bundle_of(id)
            && let Some(bundle) = self.bundles.get_mut(&first)
        {
            bundle.open += 1;
        }
    }

    /// Forgets a task of a job, and returns whether it was in a bundle. None if it is not known.
    pub(crate) fn close(&mut self, id: TaskId, job: JobId) -> Option<bool> {
        self.open.remove(&id)?;
        let has = |Gathered { first, count, .. }: &Gathered| (first.0..first.0 + u64::from(*count)).contains(&id.0);
        self.gathered = self.gathered.take().filter(|gathered| !has(gathered));
        let bundle = self.bundle_of(id);
        match bundle {
            None => drop(self.on_the_way.remove(&id)),
            Some((first, _)) => {
                let bundle = self.bundles.get_mut(&first);
                if bundle.is_some_and(|bundle| {
                    bundle.open -= 1;
                    bundle.open == 0
                }) {
                    self.bundles.remove(&first);
                    self.on_the_way.remove(&first);
                }
            }
        }
        if let Some(count) = self.of_job.get_mut(&job) {
            *count -= 1;
            if *count == 0 {
                self.of_job.remove(&job);
            }
        }
        Some(bundle.is_some())
    }

    /// Returns the bundle that a task is in: its first task, and the number of tasks that it was made of.
    pub(crate) fn bundle_of(&self, id: TaskId) -> Option<(TaskId, u32)> {
        let (first, bundle) = self.bundles.range(..=id).next_back()?;
        (id.0 < first.0 + u64::from(bundle.count)).then_some((*first, bundle.count))
    }

    /// Returns the claim of the node that has a task, by itself or with all of its bundle, if one has.
    pub(crate) fn claim_of(&self, id: TaskId) -> Option<&ClaimedBy> {
        let of_bundle = || {
            let (first, _) = self.bundle_of(id)?;
            self.bundles.get(&first)?.claim.as_ref()
        };
        self.open.get(&id)?.claim.as_deref().or_else(of_bundle)
    }

    /// Returns the tasks that are meant where the agent names a task: it alone, or all of the bundle that begins with it.
    pub(crate) fn named(&self, first: TaskId) -> Vec<TaskId> {
        let count = self.bundle_of(first).filter(|(begin, _)| *begin == first).map_or(1, |(_, count)| count);
        let end = first.0 + u64::from(count);
        self.open.range_from(first).map(|(id, _)| id).take_while(|id| id.0 < end).collect()
    }
}

/// Tasks that are known to go together, while more may come that go with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gathered {
    /// The first of them.
    pub first: TaskId,
    /// Number of them.
    pub count: u32,
    /// Bytes of their envelopes.
    pub bytes: usize,
}

/// Short tasks that are in a queue together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bundle {
    /// Number of tasks that it was made of.
    pub count: u32,
    /// Number of those that have not ended.
    pub open: u32,
    /// The node that has all of it, if one has.
    pub claim: Option<ClaimedBy>,
}

/// A task of this head that the engine has or is to have.
#[derive(Debug, Default)]
pub(crate) struct Open {
    /// Driver that waits for its acceptance, with its own number for it.
    pub unanswered: Option<(DriverId, u64)>,
    /// True once an agent was told of it, or it was accepted without: it is not refused for an engine that is away.
    pub is_told: bool,
    /// True once the engine is known to have it.
    pub is_stored: bool,
    /// The node that has it by itself, if one has: see [`SharedTasks::claim_of`].
    pub claim: Option<Box<ClaimedBy>>,
    /// True once the agent was asked to take it back for a worker that waits for it, until a node has it or has let go of it.
    pub is_taken_back: bool,
    /// Set once somebody wants it to end.
    pub withdrawn: Option<Box<Withdrawn>>,
}

/// The wish to have a shared task end.
#[derive(Clone, Debug)]
pub(crate) struct Withdrawn {
    /// Failure that it ends with if nobody has begun it.
    pub failure: Failure,
    /// Set if it is to end also where it runs.
    pub stops: Option<Stop>,
    /// Time at which it was said, in nanoseconds since the Unix epoch.
    pub unix_nano: u64,
}

/// A task of another node.
#[derive(Debug)]
pub(crate) struct Imported {
    /// Its id in the cluster.
    pub id: ClusterTaskId,
    /// Everything that the agent has to know of it but for the id; of a bundle, that of all its tasks.
    pub token: Arc<[u8]>,
    /// The attempt that it began with here.
    pub first_attempt: u32,
    /// End of it, once it has ended, until that is settled.
    pub end: Option<ImportEnd>,
    /// True once the head lets go of it before it has begun.
    pub is_given_back: bool,
    /// True once it is another node's, or may be: unless it has an outcome by then, it is given back.
    pub is_superseded: bool,
    /// Reports of attempts that failed here, encoded, with their numbers and what they are charged to.
    pub failed: Vec<(u32, Charge, Vec<u8>)>,
}

/// The end of an import at this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ImportEnd {
    /// It has an outcome.
    Outcome {
        /// The attempt that it counts for.
        attempt: u32,
        /// The end as it travels.
        end: Vec<u8>,
    },
    /// The head stops, and another node is to run it.
    GivenBack {
        /// The attempt that is given up.
        attempt: u32,
        /// True if it had begun.
        has_begun: bool,
    },
}
