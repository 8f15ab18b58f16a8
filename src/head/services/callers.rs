//! Callers of deployments that are no proxies: replicas, workers and programs whose code calls deployments.
//!
//! Each has a connection of its own, over which it asks for deployments and lanes. The head makes it a caller of the table of each service that it asks
//! for, and tells all callers of one table of each other. What a caller held is taken back when its connection ends.

mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

use tracer_ipc::calling::CallRoute;

use super::control::Control;

/// Callers that a table has room for: the threads of proxies that live, end and begin, and processes whose code calls deployments.
pub(super) const CALLERS: usize = 512;
/// Callers that there may be at one time; each has a number in the table of every service that it calls.
const CALLER_LIMIT: usize = CALLERS / 2;

/// The socket for callers, and those that are connected.
#[derive(Default)]
pub(crate) struct Callers {
    listener: Option<OwnedFd>,
    all: BTreeMap<u64, Caller>,
    /// The number of the last one.
    last: u64,
    /// Services whose tables have changed since callers were told.
    changed: BTreeSet<String>,
}

/// A caller that is connected.
struct Caller {
    control: Control,
    /// Its numbers, by service.
    numbers: BTreeMap<String, u32>,
    /// Replicas to which it has lanes.
    lanes: BTreeSet<(String, u32)>,
    /// Deployments that it has asked for, with what it was answered.
    known: BTreeMap<String, Known>,
    is_watched_for_room: bool,
}

/// Question of a caller for a deployment: its name, the application and deployment that ask, and the last answer.
type Asked = (String, Option<(String, String)>, CallRoute);

/// Facts about a caller that the guard keeps.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct CallerFacts {
    numbers: BTreeMap<String, u32>,
    lanes: BTreeSet<(String, u32)>,
    known: Vec<Asked>,
}

/// A question for a deployment, and the last answer.
struct Known {
    home: Option<(String, String)>,
    route: CallRoute,
}

impl Callers {
    /// Notes that the table of a service has changed.
    pub(super) fn note_change(&mut self, service: &str) {
        if !self.all.is_empty() && !self.changed.contains(service) {
            self.changed.insert(service.to_owned());
        }
    }

    /// Returns those that call deployments of a service, with their numbers there.
    fn of_service<'s>(&'s self, service: &'s str) -> impl Iterator<Item = (u64, u32)> + 's {
        self.all.iter().filter_map(move |(id, caller)| Some((*id, *caller.numbers.get(service)?)))
    }
}
