//! Questions about services and their answers: deploying, looking at, and shutting them down.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tracer_core::task::WorkerId;

use crate::serving::{Autoscaling, Service};

/// A question about services.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ServiceQuery {
    /// Check a service, and unless it is a dry run, roll it out. Answered at once by [`ServiceReply::Accepted`]; how it goes on is
    /// [followed](Self::Follow).
    Deploy {
        /// Service to be deployed.
        service: Box<Service>,
        /// True to say what would be done, and do nothing.
        is_dry_run: bool,
        /// True if it is shut down when the connection that deploys it ends.
        is_bound: bool,
    },
    /// Go back to a version that was served before. Answered as [`Deploy`](Self::Deploy).
    Rollback {
        /// Name of the service.
        service: String,
        /// The version; none for the one before that which is served.
        version: Option<u64>,
    },
    /// Events of a service since then. Answered by [`ServiceReply::Events`] as soon as there is something.
    Follow {
        /// Name of the service.
        service: String,
        /// The number of the last event that is known; 0 for none.
        after: u64,
    },
    /// Every service, or one. Answered by [`ServiceReply::Services`].
    List,
    /// The versions of a service. Answered by [`ServiceReply::Versions`].
    Versions {
        /// Name of the service.
        service: String,
    },
    /// End a service: take no more requests, end those that there are. Answered as [`Deploy`](Self::Deploy).
    ShutDown {
        /// Name of the service.
        service: String,
    },
}

/// The answer to a [`ServiceQuery`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ServiceReply {
    /// It is being done.
    Accepted(ServiceAccepted),
    /// To [`ServiceQuery::Follow`], oldest first.
    Events(Vec<ServiceEvent>),
    /// To [`ServiceQuery::List`], by name.
    Services(Vec<ServiceReport>),
    /// To [`ServiceQuery::Versions`], oldest first.
    Versions(Vec<ServiceVersion>),
    /// It is not done.
    Refused(ServiceRefusal),
}

/// State of an operation on a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceAccepted {
    /// The name of the service.
    pub service: String,
    /// The version that is rolled out, or ends.
    pub version: u64,
    /// The number of the last event before it.
    pub after: u64,
    /// Steps that are done, or would be, in words.
    pub steps: Vec<String>,
}

/// Refusal about a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceRefusal {
    /// The reason, for programs.
    pub code: ServiceRefusalCode,
    /// The reason with what to do next, for people.
    pub message: String,
}

/// Code of a refusal about a service, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceRefusalCode {
    /// The head is stopping.
    Stopping,
    /// There is no such service.
    UnknownService,
    /// There is no such version.
    UnknownVersion,
    /// A rollout of the service is going on, or it is being shut down.
    Busy,
    /// Nobody can listen on its address.
    Address,
    /// It wants more replicas or deployments than a service may have.
    TooLarge,
    /// It wants a resource that the head does not have, or not as much of.
    Resources,
    /// The system does not give what a service needs.
    System,
}

impl ServiceRefusalCode {
    /// Every code.
    pub const ALL: [ServiceRefusalCode; 8] = [
        ServiceRefusalCode::Stopping,
        ServiceRefusalCode::UnknownService,
        ServiceRefusalCode::UnknownVersion,
        ServiceRefusalCode::Busy,
        ServiceRefusalCode::Address,
        ServiceRefusalCode::TooLarge,
        ServiceRefusalCode::Resources,
        ServiceRefusalCode::System,
    ];

    /// Returns the name that programs read.
    pub fn name(self) -> &'static str {
        match self {
            ServiceRefusalCode::Stopping => "stopping",
            ServiceRefusalCode::UnknownService => "unknown_service",
            ServiceRefusalCode::UnknownVersion => "unknown_version",
            ServiceRefusalCode::Busy => "busy",
            ServiceRefusalCode::Address => "address",
            ServiceRefusalCode::TooLarge => "too_large",
            ServiceRefusalCode::Resources => "resources",
            ServiceRefusalCode::System => "system",
        }
    }
}

/// Something that has happened to a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceEvent {
    /// Counts the events of a service, from 1.
    pub number: u64,
    /// Time, in nanoseconds since the Unix epoch.
    pub time_unix_nano: u64,
    /// Event itself.
    #[serde(flatten)]
    pub what: ServiceNews,
}

/// Event of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum ServiceNews {
    /// The process of a replica was started.
    ReplicaStarted {
        /// Its name.
        replica: String,
        /// Its process.
        pid: u32,
    },
    /// A replica has made its handler.
    ReplicaReady {
        /// Its name.
        replica: String,
        /// Its process.
        pid: Option<u32>,
    },
    /// A replica has ended that was not asked to, or could not be started.
    ReplicaLost {
        /// Its name.
        replica: String,
        /// Its process; none when it could not be started.
        pid: Option<u32>,
        /// Outcome and its reason.
        reason: String,
    },
    /// A replica has ended that was to end.
    ReplicaEnded {
        /// Its name.
        replica: String,
        /// Its process.
        pid: Option<u32>,
    },
    /// A deployment is to have another number of replicas, because of how many requests it has.
    Scaled {
        /// Its application.
        application: String,
        /// Its name.
        deployment: String,
        /// Number of replicas that it was to have.
        from: u32,
        /// Number of replicas that it is to have.
        to: u32,
    },
    /// The process of a proxy was started.
    ProxyStarted {
        /// Its process.
        pid: u32,
    },
    /// A proxy has ended that was not asked to, or could not be started.
    ProxyLost {
        /// Its process; none when it could not be started.
        pid: Option<u32>,
        /// Outcome and its reason.
        reason: String,
    },
    /// A version is served.
    RolledOut {
        /// The version.
        version: u64,
    },
    /// A version could not be rolled out; what was served before still is.
    RolloutFailed {
        /// The version.
        version: u64,
        /// Reason why.
        reason: String,
    },
    /// The service has ended.
    ShutDown,
}

impl ServiceNews {
    /// Returns whether what was asked for has come to its end with this.
    pub fn is_final(&self) -> bool {
        matches!(self, ServiceNews::RolledOut { .. } | ServiceNews::RolloutFailed { .. } | ServiceNews::ShutDown)
    }
}

/// A version of a service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServiceVersion {
    /// Its number, from 1.
    pub version: u64,
    /// Time of the deploy, in nanoseconds since the Unix epoch.
    pub deployed_unix_nano: u64,
    /// True if it is served now.
    pub is_served: bool,
    /// Reason why it could not be rolled out, if it could not.
    pub failure: Option<String>,
    /// Declaration of the service.
    pub service: Service,
}

/// One service, as `tracer serve status` shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServiceReport {
    /// Its name.
    pub name: String,
    /// The version that is served; none before the first is.
    pub version: Option<u64>,
    /// The version that is being rolled out.
    pub rolling_out: Option<u64>,
    /// State.
    pub state: ServiceState,
    /// URL for clients.
    pub url: String,
    /// Its deployments.
    pub deployments: Vec<DeploymentReport>,
    /// Its replicas, oldest first.
    pub replicas: Vec<ReplicaReportRow>,
    /// Its proxies, oldest first.
    pub proxies: Vec<ProxyReportRow>,
    /// Reason why the last rollout failed, if it did.
    pub last_failure: Option<String>,
    /// Warnings for people, most important first.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// One service, as the status of a head has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceSummary {
    /// Its name.
    pub name: String,
    /// State.
    pub state: ServiceState,
    /// The version that is served; none before the first is.
    pub version: Option<u64>,
    /// URL for clients.
    pub url: String,
    /// Number of its deployments.
    pub deployments: u64,
    /// Replicas that it should have.
    pub num_replicas: u64,
    /// Replicas that take requests.
    pub ready: u64,
    /// Requests that are in flight at its replicas.
    pub ongoing: u64,
    /// Requests that wait for one of them.
    pub waiting: u64,
    /// Replicas that have died.
    pub lost: u64,
}

impl From<&ServiceReport> for ServiceSummary {
    fn from(report: &ServiceReport) -> ServiceSummary {
        let sum = |of: fn(&DeploymentReport) -> u64| report.deployments.iter().map(of).sum();
        ServiceSummary {
            name: report.name.clone(),
            state: report.state,
            version: report.version,
            url: report.url.clone(),
            deployments: report.deployments.len() as u64,
            num_replicas: sum(|deployment| deployment.num_replicas.into()),
            ready: sum(|deployment| deployment.ready.into()),
            ongoing: sum(|deployment| deployment.ongoing),
            waiting: sum(|deployment| deployment.waiting),
            lost: sum(|deployment| deployment.lost),
        }
    }
}

/// State of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceState {
    /// Every deployment has the replicas that it should have.
    Running,
    /// Some replicas or the proxy are missing.
    Degraded,
    /// Its first version is being rolled out.
    Starting,
    /// A further version is being rolled out.
    RollingOut,
    /// It is being shut down.
    ShuttingDown,
    /// No version of it could be rolled out.
    Failed,
}

impl ServiceState {
    /// Every state.
    pub const ALL: [ServiceState; 6] = [
        ServiceState::Running,
        ServiceState::Degraded,
        ServiceState::Starting,
        ServiceState::RollingOut,
        ServiceState::ShuttingDown,
        ServiceState::Failed,
    ];

    /// Returns the name that people and programs read.
    pub fn name(self) -> &'static str {
        match self {
            ServiceState::Running => "running",
            ServiceState::Degraded => "degraded",
            ServiceState::Starting => "starting",
            ServiceState::RollingOut => "rolling_out",
            ServiceState::ShuttingDown => "shutting_down",
            ServiceState::Failed => "failed",
        }
    }
}

/// One deployment of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeploymentReport {
    /// Its service.
    pub service: String,
    /// Its application.
    pub application: String,
    /// Its name.
    pub name: String,
    /// Route prefix of the application.
    pub route_prefix: String,
    /// Hosts that the application answers for; all, if there is none.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// True if it answers the application's requests.
    pub is_ingress: bool,
    /// Its handler.
    pub import_path: String,
    /// Replicas that it should have.
    pub num_replicas: u32,
    /// Bounds of that number, if it follows the load.
    #[serde(default)]
    pub autoscaling: Option<Autoscaling>,
    /// Lack of room for those that are missing, in words.
    #[serde(default)]
    pub short: Option<String>,
    /// Requests that one of them has at a time.
    pub max_ongoing_requests: u32,
    /// Replicas that take requests.
    pub ready: u32,
    /// Requests that are in flight at its replicas.
    pub ongoing: u64,
    /// Requests that wait for one of them.
    pub waiting: u64,
    /// Replicas that have died.
    pub lost: u64,
}

/// One replica of a deployment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaReportRow {
    /// Its name.
    pub name: String,
    /// Its service.
    pub service: String,
    /// Its application.
    pub application: String,
    /// Its deployment.
    pub deployment: String,
    /// Stage of its life.
    pub state: String,
    /// Its process.
    pub pid: Option<u32>,
    /// The number of its process among those of the head.
    pub worker_id: WorkerId,
    /// The version of the service that it was started for.
    pub version: u64,
    /// Time since its process was started, in nanoseconds.
    pub uptime_ns: u64,
    /// Requests that are in flight there.
    pub ongoing: u64,
    /// Description of the way of its spans, for people.
    pub tracing: String,
    /// Reason why its hook failed, if it did.
    pub hook_failure: Option<String>,
    /// Name of the version of its module.
    pub module_version: Option<String>,
    /// Path of its log.
    pub log: Option<PathBuf>,
}

/// One proxy of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyReportRow {
    /// Its number, from 1.
    pub number: u64,
    /// Stage of its life.
    pub state: String,
    /// Its process.
    pub pid: Option<u32>,
    /// Time since its process was started, in nanoseconds.
    pub uptime_ns: u64,
    /// Description of the way of its spans, for people.
    pub tracing: String,
    /// Reason why its hook failed, if it did.
    pub hook_failure: Option<String>,
}
