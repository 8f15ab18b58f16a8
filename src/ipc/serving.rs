//! Description of a service, and the messages between the head and its processes: the proxy, which speaks to clients, and the replicas, which handle
//! requests.
//!
//! Head and process have a [control socket](crate::control). The head sends orders, the process reports. No request passes there: requests
//! travel in [lanes](crate::lane), between the proxy and the replicas, and who may be called is in the
//! [table](crate::replica_table), which all of them have mapped.
//!
//! They are started as `tracer proxy <session-folder> <guard-pid>` and `tracer replica <session-folder> <guard-pid>`, with the control socket as
//! standard input, and end with the process of that pid: the guard above the head, which starts them for it. When the head dies, the next one has
//! the same control sockets. What is in their orders is in no argument.
//!
//! ```text
//!   head → proxy     Begin ─▶ Lanes (for each replica) ─▶ Configure ─▶ Lanes, Refresh, ReplicaGone, … ─▶ Drain
//!   head → replica   Begin ─▶ Lane (for each caller) ─▶ Health, Configure ─▶ Drain
//! ```
//!
//! A replica gets requests when the head has set it ready in the table, which it does when the replica has said [`ReplicaReport::Ready`] and
//! every proxy [`ProxyReport::LanesTaken`]. So a new proxy has its lanes before it is configured and accepts. A replica that is to go is set draining first; it is gone when it has ended what it had.
//!
//! When a replica dies, its lanes end. What it had not claimed goes to others at once. What it had claimed is answered when the head has said
//! [`ProxyOrder::ReplicaGone`]: then its spans are complete, *seen means recorded*.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracer_core::SamplingRatio;
use tracer_core::clock::utc;
use tracer_core::count::Count;
use tracer_core::task::WorkerId;

use crate::protocol::tracing_settings::TracingSettings;

/// A service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Service {
    /// Name, unique among the services of the head.
    pub name: String,
    /// Address and limits for clients.
    pub http: Http,
    /// Tracing settings.
    pub tracing: ServiceTracing,
    /// Applications, in the order of the file; no two with one prefix at one host.
    pub applications: Vec<Application>,
}

/// Address of a service, and its limits for clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Http {
    /// Address that it listens on.
    pub address: SocketAddr,
    /// True if other machines may reach it.
    pub is_public: bool,
    /// Peers whose `X-Forwarded-*` and `Forwarded` are taken.
    pub trusted_proxies: Vec<std::net::IpAddr>,
    /// The hosts that it answers for; all, if there is none.
    pub hosts: Vec<String>,
    /// The longest that a whole request may take.
    pub request_timeout: Option<Duration>,
    /// The longest body of a request, in bytes.
    pub max_body: Option<u64>,
    /// Certificates, if clients speak TLS.
    #[serde(default)]
    pub tls: Option<Tls>,
}

/// Certificates of a service, as files in PEM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tls {
    /// The certificate for every name that no other one is for, followed by those that have signed it.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Certificates for names that clients ask for.
    pub names: Vec<TlsName>,
}

/// A certificate for some names of hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsName {
    /// The hosts, each a name or `*.` and a name.
    pub hosts: Vec<String>,
    /// The certificate, followed by those that have signed it.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl Http {
    /// Returns a note for people on an address that other machines reach; none on another.
    pub fn public_note(&self) -> Option<String> {
        let Http { address, tls, .. } = self;
        let is_public = !address.ip().is_loopback();
        let on_the_way = match tls {
            Some(_) => "",
            None => {
                ", without TLS: whoever is on the way reads and changes every request and answer, passwords and cookies too\n\
                 (hint: `[http.tls]` with `certificate` and `key`, or a server in front that speaks TLS)"
            }
        };
        is_public.then(|| {
            format!(
                "whoever reaches this machine reaches it at {address}, since its file says `public = true`{on_the_way}"
            )
        })
    }

    /// Returns the scheme of its URLs.
    pub fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }
}

/// Tracing of a service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServiceTracing {
    /// True if it is.
    pub is_enabled: bool,
    /// The share of the traces that begin here. A caller's decision is kept.
    pub sampling_ratio: Option<SamplingRatio>,
    /// Exporters besides the session's hook, each `module:attribute`.
    pub exporters: Vec<String>,
    /// Level of detail of its requests' spans.
    pub detail: Detail,
}

/// Level of detail of a request's spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Detail {
    /// One for each hop.
    Hops,
    /// One alone, for busy backends.
    Request,
}

/// A route prefix and its deployments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Application {
    /// Name, unique in the service.
    pub name: String,
    /// Route prefix: the beginning of the paths of its requests.
    pub route_prefix: String,
    /// Hosts of its requests, each a name or `*.` and a name; every host, if there is none.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// Index of the deployment that answers requests.
    pub ingress: usize,
    /// Its deployments, no two of one name.
    pub deployments: Vec<Deployment>,
}

/// A handler with settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Deployment {
    /// Name, unique in the application.
    pub name: String,
    /// The handler: `module:attribute`.
    pub import_path: String,
    /// The version of the module, by its number, if there are versions of it. It is set when the service is deployed.
    #[serde(default)]
    pub module_version: Option<u64>,
    /// Arguments of `new`.
    pub arguments: Vec<serde_json::Value>,
    /// Number of its processes; of one that is scaled, how many it has now.
    pub num_replicas: u32,
    /// Bounds within which that number follows the load, if it does.
    #[serde(default)]
    pub autoscaling: Option<Autoscaling>,
    /// Number of requests that one of them has at a time, as the file says; see [`ongoing_limit`](Self::ongoing_limit).
    pub max_ongoing_requests: Option<u32>,
    /// The same as its author says. It is set when the service is deployed.
    #[serde(default)]
    pub authors_max_ongoing_requests: Option<u32>,
    /// Number of requests that may wait for a replica.
    pub max_queued_requests: u32,
    /// For how long.
    pub queue_timeout: Option<Duration>,
    /// The status of the answer to one that is not let in.
    pub queue_full: u16,
    /// Retry policy of requests that have begun when their replica dies.
    pub retry: Retry,
    /// Threads of the runtime of a replica.
    pub threads: u32,
    /// Argument of `reconfigure`.
    pub user_config: Option<serde_json::Value>,
    /// Time that a replica may take until its handler is made and says that it is well.
    #[serde(default = "start_timeout")]
    pub start_timeout: Duration,
    /// Time between two questions to a replica whether it is well.
    pub health_check_period: Duration,
    /// Time that a replica may take to end what it has.
    pub drain_timeout: Duration,
    /// Named resources that a replica occupies.
    pub resources: Vec<(String, u64)>,
    /// Variables of the environment of its replicas, besides those of the session.
    pub env: BTreeMap<String, String>,
    /// The folder that its replicas run in.
    pub cwd: Option<PathBuf>,
}

/// Bounds within which the number of a deployment's replicas follows its load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Autoscaling {
    /// The fewest replicas. With 0 there is none while there are no requests, and the first one waits for its replica.
    pub min: u32,
    /// The most replicas.
    pub max: u32,
    /// Requests, in flight or waiting, for which there should be one replica.
    pub target_ongoing_requests: u32,
    /// Time for which more replicas must be wanted before they are started.
    pub upscale_delay: Duration,
    /// Time for which fewer replicas must be wanted before some end.
    pub downscale_delay: Duration,
}

impl Autoscaling {
    /// Scaling from one replica to so many, with what there is unless a file says otherwise.
    pub fn up_to(max: u32) -> Autoscaling {
        Autoscaling {
            min: 1,
            max,
            target_ongoing_requests: 2,
            upscale_delay: Duration::from_secs(2),
            downscale_delay: Duration::from_secs(60),
        }
    }
}

/// The import path of deployments that are programs: the handler that is built in, which runs one.
pub const PROGRAM: &str = "program:Program";
/// Placeholder in a program's command for the path of the Unix socket at which it is to listen.
pub const SOCKET: &str = "{socket}";
/// Placeholder in a program's command for the port of loopback at which it is to listen.
pub const PORT: &str = "{port}";

/// Retry policy of requests that have begun when their replica dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Retry {
    /// They fail.
    Never,
    /// Requests with a safe method, a short body and no answer yet begin again at another one.
    Idempotent,
}

impl Deployment {
    /// Makes a deployment of this handler, with what there is unless a file says otherwise.
    pub fn new(import_path: &str) -> Deployment {
        Deployment {
            name: attribute_of(import_path).to_owned(),
            import_path: import_path.to_owned(),
            module_version: None,
            arguments: Vec::new(),
            num_replicas: 1,
            autoscaling: None,
            max_ongoing_requests: None,
            authors_max_ongoing_requests: None,
            max_queued_requests: 1000,
            queue_timeout: None,
            queue_full: 503,
            retry: Retry::Never,
            threads: 1,
            user_config: None,
            start_timeout: start_timeout(),
            health_check_period: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(30),
            resources: Vec::new(),
            env: BTreeMap::new(),
            cwd: None,
        }
    }

    /// Returns the command of a deployment that is a program, and the path that answers for its health.
    pub fn program(&self) -> Option<(Vec<&str>, Option<&str>)> {
        let [command, _, health, _, ..] = self.arguments.as_slice() else { return None };
        let command = command.as_array().filter(|_| self.import_path == PROGRAM)?;
        Some((command.iter().filter_map(|word| word.as_str()).collect(), health.as_str()))
    }

    /// Makes the deployment run a program, with `start_timeout` as it is now.
    pub fn run_program(&mut self, command: Vec<String>, address: &str, health: Option<String>) {
        let limit = u64::try_from(self.start_timeout.as_millis()).unwrap_or(u64::MAX);
        self.import_path = PROGRAM.into();
        // The variables of a replica's program are its own.
        self.arguments = vec![command.into(), address.into(), health.into(), limit.into(), serde_json::Value::Null];
    }

    /// Returns the number of requests that one replica has at a time: what the file says counts more than what the author says.
    pub fn ongoing_limit(&self) -> u32 {
        self.max_ongoing_requests.or(self.authors_max_ongoing_requests).unwrap_or(ONGOING_LIMIT)
    }
}

/// Time that a replica may take to start, if nobody says.
fn start_timeout() -> Duration {
    Duration::from_secs(300)
}

/// Number of requests that one replica has at a time, if nobody says.
const ONGOING_LIMIT: u32 = 100;

/// Returns the part after the `:` of `module:attribute`.
pub fn attribute_of(import_path: &str) -> &str {
    import_path.rsplit_once(':').map_or(import_path, |(_, attribute)| attribute)
}

/// First order of a proxy; the table's file goes along, then a listener for each thread, then an event descriptor for each caller
/// in `callers`, which wakes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProxyBegin {
    /// The name of the service.
    pub service: String,
    /// Number of this proxy, from 1; a new process has a new one.
    pub number: u64,
    /// Its spool, in the session's folder.
    pub spool: PathBuf,
    /// The machine, as spans name it.
    pub node_id: String,
    /// Tracing settings: its hook, and the folder of its span files.
    pub tracing: TracingSettings,
    /// The numbers of its threads in the table, one for each.
    pub callers: Vec<u32>,
    /// The most bytes that its access log may take.
    pub log_limit: u64,
}

/// The routes and settings of a service, as its proxy needs them. Replaced as a whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProxySettings {
    /// Counts the settings of a service; reported back by [`ProxyReport::Configured`].
    pub revision: u64,
    /// Address and limits for clients.
    pub http: Http,
    /// Tracing settings.
    pub tracing: ServiceTracing,
    /// Its applications.
    pub routes: Vec<ProxyRoute>,
}

/// One application, as the proxy needs it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProxyRoute {
    /// Route prefix: the beginning of the paths of its requests.
    pub route_prefix: String,
    /// Hosts of its requests; every host, if there is none.
    pub hosts: Vec<String>,
    /// Its name.
    pub application: String,
    /// The deployment that answers its requests.
    pub deployment: String,
    /// Index of that deployment in the table.
    pub index: u32,
    /// For how long a request may wait for a replica.
    pub queue_timeout: Option<Duration>,
    /// The status of the answer to one that is not let in.
    pub queue_full: u16,
    /// Retry policy of requests that have begun when their replica dies.
    pub retry: Retry,
}

/// Order of the head to a proxy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ProxyOrder {
    /// The first order. Answered by [`ProxyReport::Ready`].
    Begin(Box<ProxyBegin>),
    /// New [`ProxySettings`], in a [file](crate::control::send_long). Answered by [`ProxyReport::Configured`].
    Configure,
    /// Lanes to a replica: for each thread a socket and a file of [claims](crate::claims::SharedClaims), in the order of the threads.
    /// Answered by [`ProxyReport::LanesTaken`].
    Lanes {
        /// The replica's number in the table.
        replica: u32,
        /// The replica's name, as spans have it.
        name: String,
    },
    /// Another caller of the same table, with the event descriptor that wakes it.
    Caller {
        /// Its number in the table.
        caller: u32,
    },
    /// The table has changed: replicas that are ready now or draining, or limits.
    Refresh,
    /// A replica has ended and its spans are complete. Its number may be another one's after this.
    ReplicaGone {
        /// The replica's number in the table.
        replica: u32,
    },
    /// A client's connection that another proxy [hands over](ProxyReport::Connection), as a file.
    Connection,
    /// Say how it is: the head that knew is gone. Answered by [`ProxyReport::Told`].
    Tell,
    /// Accept nothing more, hand over what has nothing to do, end what there is, then end.
    Drain {
        /// Limit of time.
        timeout: Duration,
        /// True if another proxy is in its place, so that connections that cannot be handed over are kept until they are asked once more.
        has_heir: bool,
    },
}

/// Report of a proxy to the head.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProxyReport {
    /// It is up. It accepts once it has settings.
    Ready {
        /// Description of its tracing, for people to read.
        tracing: String,
        /// Reason why its hook failed, if it did.
        hook_failure: Option<String>,
    },
    /// It is up, as after [`Ready`](Self::Ready), and has this.
    Told {
        /// Description of its tracing, for people to read.
        tracing: String,
        /// Reason why its hook failed, if it did.
        hook_failure: Option<String>,
        /// The revision of the settings that it uses; 0 without any.
        revision: u64,
        /// Replicas to which all its threads have lanes that are open, by their numbers in the table.
        lanes: Vec<u32>,
    },
    /// It uses the settings of this revision.
    Configured {
        /// The revision.
        revision: u64,
        /// Reason why not, if it cannot.
        failure: Option<String>,
    },
    /// A request has come to a deployment of whose next request the head [wants to know](crate::replica_table::ReplicaTable::watch).
    Wanted {
        /// The deployment's number in the table.
        deployment: u32,
    },
    /// All its threads have their lanes to a replica.
    LanesTaken {
        /// The replica's number in the table.
        replica: u32,
    },
    /// A replica has sent what none may send; its lane is closed.
    LaneBroken {
        /// The replica's number in the table.
        replica: u32,
        /// Violation, in words.
        reason: String,
    },
    /// Its certificates were read, or have changed and cannot be.
    Certificates(CertificateReport),
    /// It drains, and this connection of a client has nothing to do: another proxy may have it. The connection is a file.
    Connection,
    /// It has no connection any more, and ends.
    Drained,
    /// End of accepting while it drains: none of its threads accepts connections any more. Comes in any order with `Connection`.
    AcceptsNoMore,
}

/// Report of a proxy's certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateReport {
    /// Reason why those that it uses are older than the files, if they are.
    pub failure: Option<String>,
    /// Path of each, and the times from which and until which it is valid, in nanoseconds since the Unix epoch.
    pub validity: Vec<(String, (u64, u64))>,
    /// Further notes for people.
    pub warnings: Vec<String>,
}

/// Days before the end of a certificate from which people are told of it.
const EXPIRY_DAYS: u64 = 14;
const DAY_NS: u64 = 86_400_000_000_000;

impl CertificateReport {
    /// Returns notes for people at this time.
    pub fn notes(&self, now_unix_nano: u64) -> Vec<String> {
        let failure = self.failure.as_ref().map(|reason| {
            format!(
                "its certificates have changed and cannot be used, so that it goes on with those that it had: {reason}"
            )
        });
        let validity = self.validity.iter().filter_map(|(path, times)| validity_note(path, *times, now_unix_nano));
        failure.into_iter().chain(validity).chain(self.warnings.iter().cloned()).collect()
    }
}

/// Returns a note on the time in which a certificate is valid; none while all is well.
fn validity_note(path: &str, (from, until): (u64, u64), now_unix_nano: u64) -> Option<String> {
    if until <= now_unix_nano {
        return Some(format!("the certificate `{path}` has expired at {}: clients refuse it", utc(until)));
    }
    if from > now_unix_nano {
        return Some(format!("the certificate `{path}` is valid from {} on: clients refuse it until then", utc(from)));
    }
    let days = (until - now_unix_nano) / DAY_NS;
    let is_soon = days < EXPIRY_DAYS;
    is_soon.then(|| format!("the certificate `{path}` expires in {}, at {}", Count(days, "day"), utc(until)))
}

/// First order of a replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplicaBegin {
    /// The name of the service.
    pub service: String,
    /// The name of the application.
    pub application: String,
    /// Route prefix: the beginning of the paths of its requests.
    pub route_prefix: String,
    /// The deployment, whose settings count from this order on.
    pub deployment: Deployment,
    /// The replica's name: `<deployment>#<number>`.
    pub name: String,
    /// The number of its process among those of the head.
    pub worker: WorkerId,
    /// Its spool, in the session's folder.
    pub spool: PathBuf,
    /// The machine, as spans name it.
    pub node_id: String,
    /// Folders in which modules are looked for, in order. Absolute.
    pub module_folders: Vec<PathBuf>,
    /// Tracing settings: its hook, and the folder of its span files.
    pub tracing: TracingSettings,
}

/// Order of the head to a replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ReplicaOrder {
    /// The first order: [`ReplicaBegin`], in a [file](crate::control::send_long). Answered by [`ReplicaReport::Ready`] or
    /// [`ReplicaReport::Failed`].
    Begin,
    /// A lane from a caller: a socket, and a file of [claims](crate::claims::SharedClaims).
    Lane {
        /// The caller's number in the table.
        caller: u32,
    },
    /// Asks whether it is well. Answered by [`ReplicaReport::Answered`].
    Health {
        /// Number of the question.
        order: u64,
    },
    /// Gives it settings: a `user_config` in a [file](crate::control::send_long). Answered by [`ReplicaReport::Answered`].
    Configure {
        /// Number of the order.
        order: u64,
    },
    /// Say [`ReplicaReport::Ready`] again, if it was said: the head that has heard it is gone.
    Tell,
    /// Take no more requests, end those that there are, drop the handler, and end.
    Drain {
        /// Limit of time for requests to end; then they are cancelled.
        timeout: Duration,
    },
}

/// Report of a replica to the head.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplicaReport {
    /// Its handler is made.
    Ready {
        /// Description of its tracing, for people to read.
        tracing: String,
        /// Reason why its hook failed, if it did.
        hook_failure: Option<String>,
        /// Name of the version of its module.
        module_version: Option<String>,
        /// True if it can be [configured](ReplicaOrder::Configure).
        is_configurable: bool,
    },
    /// Its handler could not be made; it ends.
    Failed {
        /// Reason, with a hint if there is one.
        reason: String,
    },
    /// The answer to an order.
    Answered {
        /// Number of the order that is answered.
        order: u64,
        /// Reason why it is not well or has not taken the settings, if so.
        failure: Option<String>,
    },
    /// It has no request any more, and ends.
    Drained,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_are_told_in_time_that_a_certificate_expires() {
        let now = 1_800_000_000_000_000_000;
        let note = |from, until| validity_note("a.pem", (from, until), now);
        assert_eq!((note(0, now + 15 * DAY_NS), note(0, u64::MAX)), (None, None));
        let soon = note(0, now + 3 * DAY_NS + 1).unwrap();
        assert!(soon.starts_with("the certificate `a.pem` expires in 3 days, at 2027-01-18T"), "{soon}");
        assert!(note(0, now).unwrap().contains("has expired at 2027-01-15T08:00:00.000Z"));
        assert!(note(now + 1, u64::MAX).unwrap().contains("is valid from 2027-01-15T"));
    }

    #[test]
    fn an_address_that_others_reach_is_told_of_and_what_it_means_without_tls() {
        let tls = Tls { certificate: "a".into(), key: "b".into(), names: Vec::new() };
        let note = |address: &str, tls: Option<&Tls>| {
            let http = Http {
                address: address.parse().unwrap(),
                is_public: true,
                trusted_proxies: Vec::new(),
                hosts: Vec::new(),
                request_timeout: None,
                max_body: None,
                tls: tls.cloned(),
            };
            http.public_note()
        };
        assert_eq!((note("127.0.0.1:1", None), note("[::1]:1", None)), (None, None));
        assert!(note("0.0.0.0:1", None).unwrap().contains("without TLS: whoever is on the way reads"));
        let with = note("0.0.0.0:1", Some(&tls)).unwrap();
        assert!(
            with.contains("whoever reaches this machine reaches it at 0.0.0.0:1") && !with.contains("TLS"),
            "{with}"
        );
    }
}
