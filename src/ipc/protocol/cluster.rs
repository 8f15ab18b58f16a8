//! Report of a head about the engine that it has joined: the nodes that share it, and their queues.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// An engine, with all that share it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterReport {
    /// Its address: `nats://127.0.0.1:4222`.
    pub address: String,
    /// Its name: `nats-server`.
    pub engine: String,
    /// Its version: `2.9.10`.
    pub version: String,
    /// Number of its servers that have a copy of each record; 0 while there are no records.
    pub replicas: usize,
    /// Every node whose heartbeat is kept, those that are heard first, by name.
    pub nodes: Vec<NodeReport>,
    /// Every queue, by name.
    pub queues: Vec<QueueReport>,
    /// Number of nodes whose heartbeats cannot be read here: they are of another version.
    pub unread_nodes: usize,
    /// Streams whose servers do not answer, so that nothing is known of what is in them.
    pub unanswered: Vec<String>,
}

/// A node, as its heartbeats tell of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Its name, as spans have it.
    pub node_id: String,
    /// The id of its place.
    pub place_id: String,
    /// Its version of tracer.
    pub version: String,
    /// True if it was heard lately.
    pub is_alive: bool,
    /// Time since its last heartbeat, in nanoseconds of the engine's clock.
    pub heard_ns: u64,
    /// The queues that it serves.
    pub queues: Vec<String>,
    /// Slots for tasks of queues.
    pub slots: u32,
    /// Slots that are free.
    pub free: u32,
    /// True if it runs commands of its queues too.
    pub shared_commands: bool,
    /// Modules that it finds by name, of which no more than fit into its heartbeat.
    pub modules: Vec<ModuleReport>,
    /// Number of modules that do not.
    pub modules_left_out: u32,
    /// Time that its clock is ahead of the engine's, in nanoseconds, negative if it is behind; none while it has not said so.
    pub clock_offset_ns: Option<i64>,
    /// The most by which that is wrong, in nanoseconds.
    pub clock_error_ns: Option<u64>,
}

/// A module of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleReport {
    /// Its name.
    pub name: String,
    /// SHA-256 of its library in hexadecimal digits; none of a large one that no task of a queue has named yet.
    pub digest: Option<String>,
}

impl NodeReport {
    /// Returns whether it is known to lack a module.
    pub fn lacks(&self, module: &str) -> bool {
        self.modules_left_out == 0 && self.modules.iter().all(|known| known.name != module)
    }

    /// Returns the digest of one of its modules, if it is known.
    pub fn digest_of(&self, module: &str) -> Option<&str> {
        self.modules.iter().find(|known| known.name == module)?.digest.as_deref()
    }
}

/// A queue, as the engine has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueReport {
    /// Its name.
    pub name: String,
    /// Number of messages that no node has.
    pub waiting: u64,
    /// Number of messages that nodes have.
    pub held: u64,
    /// Bytes of both together.
    pub bytes: u64,
    /// The most bytes that it takes; none if nothing but the disk bounds it.
    pub max_bytes: Option<u64>,
    /// Number of servers that have a copy of it.
    pub replicas: usize,
    /// The nodes that are alive and serve it, by name.
    pub served_by: Vec<String>,
    /// Slots that one of its tasks may ask for.
    pub num_cpus: u32,
    /// Amounts of named resources that one of its tasks may ask for.
    pub resources: BTreeMap<String, u64>,
    /// Number of commands among the messages that no node has.
    pub waiting_commands: u64,
    /// The nodes among these that run commands too, by name.
    pub commands_run_by: Vec<String>,
    /// Reason why nobody is given its tasks, if so, as a clause.
    #[serde(default)]
    pub problem: Option<String>,
}
