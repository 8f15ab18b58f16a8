use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use super::replica::{Replica, Said};
use super::scale::Scale;
use crate::state::{Now, task::DriverId};
use tracer_core::task::WorkerId;
use tracer_ipc::protocol::{ServiceEvent, ServiceNews};
use tracer_ipc::serving::{Application, CertificateReport, Deployment, Service, ServiceTracing};

/// Replicas that a service may have at a time, those of a version on its way included: so many have room in its table.
pub const PLACES: u32 = 4096;
/// Deployments that a service may have at a time, those of a version on its way included.
pub const INDICES: u32 = 2048;
/// Versions of a service that are remembered.
pub const VERSION_LIMIT: usize = 100;
/// Events of a service that are remembered.
const EVENT_LIMIT: usize = 1000;
/// Pause before a process is started again that has died more than once: at first and at most, in nanoseconds.
const PAUSE_NS: u64 = 250_000_000;
const PAUSE_LIMIT_NS: u64 = 30_000_000_000;
/// The longest pause after a replica that has served: what ended it was not its start.
const SERVED_PAUSE_LIMIT_NS: u64 = 2_000_000_000;
/// A process that has lived for so long has not died of its start; one that has served, which has done so for that long.
const LONG_LIFE_NS: u64 = 60_000_000_000;
const SERVED_LONG_NS: u64 = 1_000_000_000;

/// Every service of a head.
#[derive(Debug, Default)]
pub struct Services {
    /// By name.
    pub(super) all: BTreeMap<String, Served>,
    /// True if none is begun any more.
    pub(super) is_stopping: bool,
    /// The named resources of the head, with how much there is of each.
    pub(super) resources: Vec<(String, u64)>,
    /// Number of processes that there may be of replicas and actors, beside the workers of the pool; none for any.
    pub(super) room: Option<usize>,
    /// Number of processes of actors and of tasks that wait, as far as there are more of these than workers are wanted.
    pub(super) others: usize,
    /// Amounts of named resources that tasks have.
    pub(super) held: Vec<(String, u64)>,
    /// True if something has happened since the last turn.
    pub(super) has_news: bool,
    /// Time of the next deadline, by the monotonic clock.
    pub(super) next_ns: Option<u64>,
    /// The service of each process of a replica or proxy.
    pub(super) by_process: BTreeMap<WorkerId, String>,
    /// The number of the last order that is answered by its number.
    pub(super) last_order: u64,
}

impl Services {
    /// None yet, of a head with these named resources and room for so many processes beside its workers.
    pub fn new(resources: Vec<(String, u64)>, room: usize) -> Services {
        Services { resources, room: Some(room), ..Services::default() }
    }

    /// Returns the service of a process.
    pub fn service_of(&self, process: WorkerId) -> Option<&str> {
        self.by_process.get(&process).map(String::as_str)
    }

    /// Returns the service of a process, with its name.
    pub(super) fn served_of(&mut self, process: WorkerId) -> Option<(String, &mut Served)> {
        let name = self.by_process.get(&process)?;
        Some((name.clone(), self.all.get_mut(name)?))
    }

    /// Sets the number of processes of actors and of tasks that wait, which take of the same room as replicas.
    pub fn set_others(&mut self, others: usize) {
        self.others = others;
    }

    /// Sets what tasks have of named resources.
    pub fn set_held(&mut self, held: Vec<(String, u64)>) {
        self.held = held;
    }

    /// Returns whether something is to be done in the next turn.
    pub fn is_due(&self, now: Now) -> bool {
        self.has_news || self.next_ns.is_some_and(|next| next <= now.monotonic_ns)
    }

    /// Returns whether a service of this name was ever deployed and is remembered.
    pub fn knows(&self, service: &str) -> bool {
        self.all.contains_key(service)
    }

    /// Returns what has happened to a service since, none of it if it is not known.
    pub fn events_after(&self, service: &str, number: u64) -> Vec<ServiceEvent> {
        self.all.get(service).map(|served| served.events_after(number)).unwrap_or_default()
    }

    /// Returns what is to be said of the services that other machines reach, by their names.
    pub fn public_notes(&self) -> impl Iterator<Item = (&str, String)> {
        let served = self.all.iter().filter_map(|(name, served)| Some((name.as_str(), served.serving.as_ref()?)));
        served.filter_map(|(name, serving)| Some((name, serving.service.http.public_note()?)))
    }

    /// Returns each service, for the next head.
    pub fn all(&self) -> impl Iterator<Item = (&str, &Served)> {
        self.all.iter().map(|(name, served)| (name.as_str(), served))
    }

    /// Returns whether something has happened since the last turn.
    pub fn has_news(&self) -> bool {
        self.has_news
    }

    /// Returns whether nothing runs of any service.
    pub fn are_at_rest(&self) -> bool {
        self.by_process.is_empty()
    }

    /// Returns the number of processes of replicas.
    pub fn replicas(&self) -> usize {
        self.all.values().map(|served| served.replicas.len()).sum()
    }

    /// Returns what all replicas occupy of named resources.
    pub fn occupied(&self) -> BTreeMap<String, u64> {
        let replicas = self.all.values().flat_map(|served| served.replicas.values());
        let mut occupied = BTreeMap::new();
        for (name, amount) in replicas.flat_map(|replica| &replica.deployment.resources) {
            *occupied.entry(name.clone()).or_default() += amount;
        }
        occupied
    }

    /// Returns the versions of modules that are served, or may be served again.
    pub fn module_versions(&self) -> BTreeSet<u64> {
        let versions = self.all.values().flat_map(|served| {
            let coming = served.rollout.as_ref().map(|rollout| &rollout.version);
            served.versions.iter().chain(&served.serving).chain(coming)
        });
        versions.flat_map(|version| deployments(&version.service)).filter_map(|(_, of)| of.module_version).collect()
    }
}

/// A version of a service.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Version {
    /// From 1.
    pub number: u64,
    /// Time of the deploy, in nanoseconds since the Unix epoch.
    pub deployed_unix_nano: u64,
    /// Its settings.
    pub service: Service,
    /// Reason why it could not be rolled out, if it could not.
    pub failure: Option<String>,
}

/// One service: what it should be, and what there is of it.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Served {
    /// The versions that were deployed, oldest first.
    pub(super) versions: VecDeque<Version>,
    /// The version that is served; none before the first is.
    pub(super) serving: Option<Version>,
    /// The version that is being rolled out.
    pub(super) rollout: Option<Rollout>,
    /// The number of the version that is served, until it is told that it is rolled out.
    #[serde(skip)]
    pub(super) untold: Option<u64>,
    /// Its replicas that have a process.
    pub(super) replicas: BTreeMap<WorkerId, Replica>,
    /// Its proxies that have a process.
    pub(super) proxies: BTreeMap<WorkerId, Proxy>,
    /// Number in the table from which a free one is searched.
    next_place: u32,
    /// The numbers of deployments in the table, by application and name.
    pub(super) indices: BTreeMap<(String, String), u32>,
    /// The number of the last replica, by the name of its deployment.
    pub(super) numbers: BTreeMap<String, u64>,
    /// The recent load of deployments that are scaled, by application and name. The next head begins to look anew, with the replicas that there are.
    #[serde(skip)]
    pub(super) scales: BTreeMap<(String, String), Scale>,
    /// Replicas that have died, by their deployment's number in the table.
    pub(super) deaths: BTreeMap<u32, Deaths>,
    /// Proxies that have died.
    pub(super) proxy_deaths: Deaths,
    /// The number of the last proxy.
    pub(super) last_proxy: u64,
    /// The number of the settings that proxies were given last.
    pub(super) revision: u64,
    /// Events, oldest first.
    #[serde(skip)]
    pub(super) events: VecDeque<ServiceEvent>,
    /// The number of the last event.
    pub(super) last_event: u64,
    /// Manner of its end, once it is asked to end.
    pub(super) ending: Option<Ending>,
    /// The driver with whose connection it ends.
    pub(super) owner: Option<DriverId>,
    /// Reason why its address has no listener, while that is so: then it has no processes either.
    pub(super) unheard: Option<Unheard>,
}

/// Failure to listen for a service that was served before.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Unheard {
    pub(super) reason: String,
    /// Time of the next try, by the monotonic clock.
    pub(super) again_ns: u64,
}

/// A proxy, from the start of its process to the end of it.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Proxy {
    /// Its number, from 1.
    pub(super) number: u64,
    /// Address that it listens on.
    pub(super) address: SocketAddr,
    /// Tracing settings that it was given.
    pub(super) tracing: ServiceTracing,
    /// Stage of its life.
    pub(super) stage: ProxyStage,
    /// Its process.
    pub(super) pid: u32,
    /// Time of its process's start, by the monotonic clock.
    pub(super) started_ns: u64,
    /// Its own report.
    pub(super) said: Said,
    /// The settings that it was given last, and those that it uses.
    pub(super) given: u64,
    pub(super) uses: u64,
    /// True for one that a head before this one had, until it has said how it is.
    #[serde(skip)]
    pub(super) is_silent: bool,
    /// Reason why it does not use those that it was given.
    pub(super) failure: Option<String>,
    /// Report of its certificates.
    pub(super) certificates: CertificateReport,
    /// True once it drains and accepts no more connections.
    pub(super) accepts_no_more: bool,
    /// Time at which it is killed, if it is still there.
    pub(super) kill_at_ns: Option<u64>,
}

/// Stage of a proxy's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) enum ProxyStage {
    /// Its process runs, and has not said that it is up.
    Starting,
    /// It is up.
    Up,
    /// It ends what it has, or is being killed.
    Draining,
}

impl Proxy {
    /// Returns whether it can be the proxy of a version: it listens there, and traces so. It decides which traces are sampled, by the ratio that
    /// it began with.
    pub(super) fn fits(&self, service: &Service) -> bool {
        let wanted = &service.tracing;
        self.address == service.http.address
            && traces_alike(&self.tracing, wanted)
            && self.tracing.sampling_ratio == wanted.sampling_ratio
    }

    /// Returns the stage as people and programs read it.
    pub(super) fn state(&self) -> &'static str {
        match self.stage {
            ProxyStage::Starting => "starting",
            ProxyStage::Up if self.uses == 0 => "ready",
            ProxyStage::Up => "serving",
            ProxyStage::Draining => "draining",
        }
    }
}

/// A version on its way.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Rollout {
    /// The version.
    pub(super) version: Version,
    /// Current phase.
    pub(super) phase: Phase,
    /// Its replicas: none of these is in the table before all are ready.
    pub(super) replicas: BTreeSet<WorkerId>,
    /// Time at which it fails if it is still in this phase, by the monotonic clock.
    pub(super) until_ns: u64,
    /// The number of the settings that proxies were given for it.
    pub(super) revision: u64,
    /// Reason of the failure.
    pub(super) failure: Option<String>,
}

/// Phase of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub(super) enum Phase {
    /// New replicas make their handlers, new proxies come up.
    Starting,
    /// Replicas that stay take new settings.
    Configuring,
    /// Proxies take the new routes.
    Switching,
}

/// Manner in which a service ends.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Ending {
    /// Time at which the processes that are left are killed, by the monotonic clock.
    pub(super) until_ns: u64,
    /// True once replicas were told, which is when no proxy is left.
    pub(super) are_replicas_told: bool,
    /// True if it is forgotten then.
    pub(super) is_shut_down: bool,
}

/// Deaths of processes of one kind, and the backoff before the next start.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Deaths {
    /// All of them.
    pub(super) total: u64,
    in_a_row: u32,
    /// The last pause, in nanoseconds.
    pause_ns: u64,
    /// Time from which the next may be started, by the monotonic clock.
    pub(super) again_ns: u64,
}

impl Deaths {
    /// Counts a death. One that has served for longer than the last pause is forgiven, and so are those before it.
    pub(super) fn add(&mut self, started_ns: u64, served_since_ns: Option<u64>, now: Now) {
        self.total += 1;
        let since = |then: u64| now.monotonic_ns.saturating_sub(then);
        let served_long = |then: u64| since(then) >= self.pause_ns.max(SERVED_LONG_NS);
        if since(started_ns) >= LONG_LIFE_NS || served_since_ns.is_some_and(served_long) {
            self.in_a_row = 0;
        }
        let limit = if served_since_ns.is_some() { SERVED_PAUSE_LIMIT_NS } else { PAUSE_LIMIT_NS };
        self.pause_ns = match self.in_a_row {
            0 => 0,
            times => (PAUSE_NS << times.min(16)).min(limit),
        };
        self.in_a_row += 1;
        self.again_ns = now.monotonic_ns + self.pause_ns;
    }

    /// Lets the next one be started at once.
    pub(super) fn forgive(&mut self) {
        self.in_a_row = 0;
        self.again_ns = 0;
    }
}

impl Served {
    /// Returns whether it is more than a memory: also if all that there is of it is the failure of its last version.
    pub fn is_there(&self) -> bool {
        let has_failed = || self.versions.back().is_some_and(|version| version.failure.is_some());
        self.serving.is_some() || self.rollout.is_some() || self.ending.is_some() || has_failed()
    }

    /// Notes that something has happened.
    pub(super) fn notify(&mut self, what: ServiceNews, now: Now) {
        self.last_event += 1;
        self.events.push_back(ServiceEvent { number: self.last_event, time_unix_nano: now.unix_nano, what });
        if self.events.len() > EVENT_LIMIT {
            self.events.pop_front();
        }
    }

    /// Tells that a version is rolled out once no proxy of another one accepts connections, so that whoever connects after that is served by it. The next version
    /// does not wait for that, nor does the end.
    pub(super) fn report_version(&mut self, now: Now) {
        let is_left = |proxy: &Proxy| proxy.stage != ProxyStage::Draining || proxy.accepts_no_more;
        let is_replaced = self.rollout.is_some() || self.ending.is_some();
        if let Some(version) = self.untold.filter(|_| is_replaced || self.proxies.values().all(is_left)) {
            self.untold = None;
            self.notify(ServiceNews::RolledOut { version }, now);
        }
    }

    /// Returns what has happened since.
    pub(super) fn events_after(&self, number: u64) -> Vec<ServiceEvent> {
        self.events.iter().filter(|event| event.number > number).cloned().collect()
    }

    /// Returns the time of its last event, in nanoseconds since the Unix epoch.
    pub(super) fn last_told(&self) -> u64 {
        self.events.back().map_or(0, |event| event.time_unix_nano)
    }

    /// Returns whether a replica is one of the version on its way.
    pub(super) fn is_new(&self, replica: WorkerId) -> bool {
        self.rollout.as_ref().is_some_and(|rollout| rollout.replicas.contains(&replica))
    }

    /// Returns the number of a deployment in the table, which it gets if it has none.
    pub(super) fn index(&mut self, application: &str, deployment: &str) -> u32 {
        let key = (application.to_owned(), deployment.to_owned());
        if let Some(index) = self.indices.get(&key) {
            return *index;
        }
        let used: BTreeSet<u32> = self.indices.values().copied().collect();
        let index = (0..).find(|index| !used.contains(index)).expect("there are more");
        self.indices.insert(key, index);
        self.deaths.remove(&index);
        index
    }

    /// Returns the number of a deployment in the table, if it has one.
    pub fn index_of(&self, application: &str, deployment: &str) -> Option<u32> {
        self.indices.get(&(application.to_owned(), deployment.to_owned())).copied()
    }

    /// Returns a number in the table that no replica has: the next one, so that what is said of the last that had it is not taken for this one's.
    pub(super) fn take_place(&mut self) -> u32 {
        let used: BTreeSet<u32> = self.replicas.values().map(|replica| replica.place).collect();
        let (before, after) = (0..self.next_place, self.next_place..PLACES);
        let place = after.chain(before).find(|place| !used.contains(place)).unwrap_or(0);
        self.next_place = (place + 1) % PLACES;
        place
    }

    /// Keeps a version for those who ask.
    pub(super) fn remember(&mut self, version: Version) {
        self.versions.retain(|other| other.number != version.number);
        self.versions.push_back(version);
        if self.versions.len() > VERSION_LIMIT {
            self.versions.pop_front();
        }
    }

    /// Returns the number of the version that was deployed last.
    pub fn last_version(&self) -> u64 {
        self.versions.back().map_or(0, |version| version.number)
    }

    /// Returns the proxies that lanes lead from.
    pub(super) fn live_proxies(&self) -> impl Iterator<Item = (WorkerId, &Proxy)> {
        let live = self.proxies.iter().filter(|(_, proxy)| proxy.stage == ProxyStage::Up);
        live.map(|(id, proxy)| (*id, proxy))
    }

    /// Returns whether every proxy that is up has lanes to a replica, and one is.
    pub(super) fn has_lanes(&self, replica: &Replica) -> bool {
        let mut proxies = self.live_proxies().peekable();
        proxies.peek().is_some() && proxies.all(|(proxy, _)| replica.lanes.contains(&proxy))
    }
}

/// Returns whether processes that trace as one of these says can trace as the other says: their exporters are those that they began with.
pub(super) fn traces_alike(one: &ServiceTracing, other: &ServiceTracing) -> bool {
    one.is_enabled == other.is_enabled && one.exporters == other.exporters
}

/// Returns the deployments of a service with their applications.
pub(super) fn deployments(service: &Service) -> impl Iterator<Item = (&Application, &Deployment)> {
    service
        .applications
        .iter()
        .flat_map(|application| application.deployments.iter().map(move |deployment| (application, deployment)))
}

/// Returns the time that is so long from now, by the monotonic clock.
pub(super) fn after(now: Now, time: Duration) -> u64 {
    now.monotonic_ns.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Returns a deployment of a service, by application and name.
pub(super) fn find<'s>(
    service: &'s Service,
    application: &str,
    name: &str,
) -> Option<(&'s Application, &'s Deployment)> {
    deployments(service).find(|(of, deployment)| of.name == application && deployment.name == name)
}
