//! Tasks that are in an engine's queues, and tasks of other nodes that this head runs.

use std::collections::BTreeMap;

use tracer_core::task::{Failure, JobId, TaskId};
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
    pub to_share: Vec<TaskId>,
    /// Tasks that are [shared](crate::state::Progress::Shared), those included that are to be handed over.
    pub open: BTreeMap<TaskId, Open>,
    /// Tasks with ids below this one may have been put into a queue by an agent of a head before this one; none if there was no such head.
    pub new_from: Option<TaskId>,
    /// Tasks of other nodes that this head runs, or whose end the agent has not settled.
    pub imports: BTreeMap<TaskId, Imported>,
    /// The same, by their ids in the cluster.
    pub imports_by_id: BTreeMap<ClusterTaskId, TaskId>,
    /// Number of imports that have come from the agent that there is.
    pub imports_seen: u64,
}

/// A task of this head that the engine has or is to have.
#[derive(Debug, Default)]
pub(crate) struct Open {
    /// Driver that waits for its acceptance, with its own number for it.
    pub unanswered: Option<(DriverId, u64)>,
    /// True once an agent was told of it.
    pub is_told: bool,
    /// True once the engine is known to have it.
    pub is_stored: bool,
    /// The node that has it, if one has.
    pub claim: Option<ClaimedBy>,
    /// True once the agent was asked to take it back for a worker that waits for it, until a node has it or has let go of it.
    pub is_taken_back: bool,
    /// Set once somebody wants it to end.
    pub withdrawn: Option<Withdrawn>,
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
    /// Everything that the agent has to know of it.
    pub token: Box<[u8]>,
    /// The attempt that it began with here.
    pub first_attempt: u32,
    /// End of it, once it has ended, until that is settled.
    pub end: Option<ImportEnd>,
    /// Reports of attempts that failed here, encoded, with their numbers and whether they were crashes.
    pub failed: Vec<(u32, bool, Vec<u8>)>,
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
