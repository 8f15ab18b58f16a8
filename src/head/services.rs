//! Services on the head's side: the processes of replicas and proxies, their control sockets, the table of replicas, listeners and lanes.
//!
//! What is to be done is decided in the reactor's `deployments`; this does it, and tells it what the processes say and how they end. No request
//! passes here.

mod callers;
mod control;
mod effects;
mod listeners;
mod takeover;
mod turns;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use tracer_core::task::WorkerId;
use tracer_ipc::replica_table::ReplicaTable;
use tracer_ipc::serving::{ProxyReport, ReplicaReport};
use tracer_ipc::spool::SpoolCounts;
use tracer_reactor::deployments::{self};

use self::callers::Callers;
use self::control::Control;
use self::listeners::Listeners;
use super::memory::Bound;
use super::process::WorkerProcess;

/// Bytes and lines of output that are told of a process that has died.
const LAST_OUTPUT: usize = 2 << 10;
const LAST_LINES: usize = 6;

/// Files, sockets and processes of services, outside of the state.
#[derive(Default)]
pub(super) struct ServicesIo {
    tables: HashMap<String, ServiceTable>,
    /// Listeners of services that the head before this one served, until the services begin anew.
    spare_listeners: Vec<(String, Listeners)>,
    processes: BTreeMap<WorkerId, ServiceProcess>,
    /// Callers of deployments that are no proxies.
    callers: Callers,
    /// State of each service as the guard keeps it, and whether what is of the head as a whole is to be kept, and is.
    kept: HashMap<String, Vec<u8>>,
    wants_head_kept: bool,
    is_head_kept: bool,
    /// Connections that wait for events of a service.
    followers: Vec<Follower>,
}

/// Table and listeners of a service.
struct ServiceTable {
    table: ReplicaTable,
    file: OwnedFd,
    listeners: Vec<Listeners>,
    /// Event descriptor of each caller, which wakes it.
    wakers: BTreeMap<u32, OwnedFd>,
}

/// A process of a service, from its start until it is reaped.
struct ServiceProcess {
    worker: WorkerProcess,
    control: Control,
    service: String,
    spool: PathBuf,
    kind: ProcessKind,
    /// Log that its output goes to.
    log: Option<PathBuf>,
    /// The end of its output.
    last_output: Vec<u8>,
    was_killed: bool,
    is_watched_for_room: bool,
    bound: Bound,
}

/// Role of a process of a service.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
enum ProcessKind {
    Replica { name: String },
    Proxy { callers: Vec<u32> },
}

/// A connection that waits for what happens to a service.
struct Follower {
    connection: u64,
    /// The number of its question.
    number: u64,
    service: String,
    after: u64,
}

/// Report of a process of a service.
enum Said {
    Replica(ReplicaReport),
    Proxy(ProxyReport),
    /// A client's connection that another proxy may have.
    Connection(OwnedFd),
}

impl Said {
    fn of_proxy((report, files): (ProxyReport, Vec<OwnedFd>)) -> Said {
        match (report, files.into_iter().next()) {
            (ProxyReport::Connection, Some(socket)) => Said::Connection(socket),
            (report, _) => Said::Proxy(report),
        }
    }
}

impl ServicesIo {
    /// Returns the processes that run, by pid.
    pub(super) fn pids(&self) -> impl Iterator<Item = u32> {
        self.processes.values().map(|process| process.worker.pid())
    }

    /// Returns the bound on a process's memory, and the process.
    pub(super) fn bound_of(&mut self, process: WorkerId) -> Option<(&mut Bound, u32)> {
        self.processes.get_mut(&process).map(|process| (&mut process.bound, process.worker.pid()))
    }

    /// Returns the counts of spans of the processes that run.
    pub(super) fn span_counts(&self) -> impl Iterator<Item = SpoolCounts> {
        self.processes.values().map(|process| process.worker.claims.counts())
    }
}

/// Returns the last lines that a process wrote, for people.
fn said_last(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let lines: Vec<_> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let last = lines.iter().skip(lines.len().saturating_sub(LAST_LINES)).map(|line| format!("\n    {line}"));
    let last: String = last.collect();
    if last.is_empty() { last } else { format!("; it wrote last:{last}") }
}

/// Returns the events of a service since a follower heard of it last; none while there are none.
fn events_for(
    services: &deployments::Services,
    follower: &Follower,
) -> Option<Vec<tracer_ipc::protocol::ServiceEvent>> {
    Some(services.events_after(&follower.service, follower.after)).filter(|events| !events.is_empty())
}
