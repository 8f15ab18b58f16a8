//! The life of a replica as one table.
//!
//! | | made | published | drained | exited |
//! |---|---|---|---|---|
//! | **starting** | ready | not made | draining | gone |
//! | **ready** | made already | serving | draining | gone |
//! | **serving** | made already | published already | draining | gone |
//! | **draining** | is to end | is to end | is to end | gone |
//! | **gone** | has ended | has ended | has ended | has ended |
//!
//! A row is where a replica [is](Stage), a column what happens ([`Event`]). [`Replica::advance`] is the only function that changes the stage;
//! what it refuses has a name ([`Refusal`]).

use std::collections::BTreeSet;

use tracer_core::task::WorkerId;
use tracer_ipc::replica_table::ReplicaState;
use tracer_ipc::serving::{Application, Deployment, ServiceTracing};

/// Stage of a replica's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum Stage {
    /// Its process runs, and makes the handler.
    Starting,
    /// Its handler is made. Nobody calls it yet.
    Ready,
    /// It is in the table, and takes requests.
    Serving,
    /// It ends what it has, or is being killed.
    Draining,
    /// Its process has ended.
    Gone,
}

impl Stage {
    /// Every stage, in the order of a life.
    pub const ALL: [Stage; 5] = [Stage::Starting, Stage::Ready, Stage::Serving, Stage::Draining, Stage::Gone];

    /// Returns the stage as people and programs read it.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Starting => "starting",
            Stage::Ready => "ready",
            Stage::Serving => "serving",
            Stage::Draining => "draining",
            Stage::Gone => "gone",
        }
    }
}

/// Event of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// It has made its handler.
    Made,
    /// It is entered in the table.
    Published,
    /// It is to end.
    Drained,
    /// Its process has ended.
    Exited,
}

/// Refusal of an event in the stage that a replica is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It has ended.
    HasEnded,
    /// It is to end already.
    IsToEnd,
    /// It makes its handler once.
    MadeAlready,
    /// Its handler is not made.
    NotMade,
    /// It is in the table already.
    PublishedAlready,
}

/// The table.
pub(super) fn check(stage: Stage, event: Event) -> Result<Stage, Refusal> {
    match (stage, event) {
        (Stage::Starting, Event::Made) => Ok(Stage::Ready),
        (Stage::Starting, Event::Published) => Err(Refusal::NotMade),
        (Stage::Ready | Stage::Serving, Event::Made) => Err(Refusal::MadeAlready),
        (Stage::Ready, Event::Published) => Ok(Stage::Serving),
        (Stage::Serving, Event::Published) => Err(Refusal::PublishedAlready),
        (Stage::Starting | Stage::Ready | Stage::Serving, Event::Drained) => Ok(Stage::Draining),
        (Stage::Draining, Event::Made | Event::Published | Event::Drained) => Err(Refusal::IsToEnd),
        (Stage::Gone, _) => Err(Refusal::HasEnded),
        (_, Event::Exited) => Ok(Stage::Gone),
    }
}

/// A replica, from the start of its process to the end of it.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Replica {
    stage: Stage,
    /// Its name: `<deployment>#<number>`.
    pub(super) name: String,
    /// Its application.
    pub(super) application: String,
    /// The settings that it has.
    pub(super) deployment: Deployment,
    /// Tracing settings that it was given.
    pub(super) tracing: ServiceTracing,
    /// Its number in the table.
    pub(super) place: u32,
    /// Its deployment's number in the table.
    pub(super) index: u32,
    /// The version of the service that it was started for.
    pub(super) version: u64,
    /// Its process.
    pub(super) pid: Option<u32>,
    /// Time of its process's start, by the monotonic clock.
    pub(super) started_ns: u64,
    /// Time from which it was in the table, by the monotonic clock.
    pub(super) served_since_ns: Option<u64>,
    /// Requests that were in flight there when the load of its deployment was looked at last.
    pub(super) ongoing: u64,
    /// The proxies that were given lanes to it.
    pub(super) joined: BTreeSet<WorkerId>,
    /// The proxies that have lanes to it.
    pub(super) lanes: BTreeSet<WorkerId>,
    /// True if its settings can be changed while it runs.
    pub(super) is_configurable: bool,
    /// Its own report, of when its handler was made.
    pub(super) said: Said,
    #[serde(skip)]
    pub(super) health: Health,
    /// True if nobody knows whether it has the settings that it was given: their order was a head's that is gone.
    pub(super) is_config_uncertain: bool,
    /// Its settings that are being tried.
    pub(super) trial: Option<Trial>,
    /// Reason why another one is to take its place. Until that serves, this one does.
    pub(super) unfit: Option<String>,
    /// Time at which it is killed, if it is still there.
    pub(super) kill_at_ns: Option<u64>,
    /// Reason of its end, as far as it was heard before its process ended.
    pub(super) reason: Option<String>,
}

/// Facts about a replica when its handler is made.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Said {
    /// Description of the way of its spans, for people.
    pub tracing: String,
    /// Reason why its hook failed, if it did.
    pub hook_failure: Option<String>,
    /// Name of the version of its module.
    pub module_version: Option<String>,
}

/// Settings on trial: a replica is asked to take them, and those of a version on its way also whether it is well with them.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Trial {
    /// The order that is not answered, with when it is late.
    pub(super) order: u64,
    pub(super) late_ns: u64,
    /// True once it has taken them, and is asked whether it is well.
    pub(super) asks_health: bool,
}

/// Questions to a replica whether it is well.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Health {
    /// The question that is not answered, with when it is late.
    pub(super) asked: Option<(u64, u64)>,
    /// Time of the next question, by the monotonic clock.
    pub(super) next_ns: u64,
    /// Times in a row that it said that it is not well.
    pub(super) unwell: u32,
}

impl Replica {
    /// Makes a replica whose process is about to be started.
    pub(super) fn new(
        application: &str,
        deployment: Deployment,
        tracing: &ServiceTracing,
        (number, version): (u64, u64),
        now_ns: u64,
    ) -> Replica {
        Replica {
            stage: Stage::Starting,
            name: format!("{}#{number}", deployment.name),
            application: application.into(),
            deployment,
            tracing: tracing.clone(),
            place: 0,
            index: 0,
            version,
            pid: None,
            started_ns: now_ns,
            served_since_ns: None,
            ongoing: 0,
            joined: BTreeSet::new(),
            lanes: BTreeSet::new(),
            is_configurable: false,
            said: Said::default(),
            health: Health::default(),
            is_config_uncertain: false,
            trial: None,
            unfit: None,
            kill_at_ns: None,
            reason: None,
        }
    }

    /// Stage of its life.
    pub(super) fn stage(&self) -> Stage {
        self.stage
    }

    /// Goes on with a replica that a head before this one had, and that is so far in the table: another one's word for its stage may be older.
    pub(super) fn take_over(&mut self, in_table: ReplicaState, now_ns: u64) {
        self.stage = match (self.stage, in_table) {
            (Stage::Starting | Stage::Ready, ReplicaState::Ready) => Stage::Serving,
            (Stage::Serving, ReplicaState::Draining) => Stage::Draining,
            (stage, _) => stage,
        };
        self.is_config_uncertain |= self.trial.take().is_some();
        let period = u64::try_from(self.deployment.health_check_period.as_nanos()).unwrap_or(u64::MAX);
        self.health = Health { next_ns: now_ns.saturating_add(period), ..Health::default() };
    }

    /// Returns whether it is there to stay, as far as is known.
    pub(super) fn is_live(&self) -> bool {
        matches!(self.stage, Stage::Starting | Stage::Ready | Stage::Serving)
    }

    /// Returns whether it is one of a deployment.
    pub(super) fn is_of(&self, application: &Application, deployment: &Deployment) -> bool {
        self.application == application.name && self.deployment.name == deployment.name
    }

    /// Returns whether it is there to stay and no other one is to take its place.
    pub(super) fn is_fit(&self) -> bool {
        self.is_live() && self.unfit.is_none()
    }

    /// Returns whether lanes lead to it, or are to.
    pub(super) fn has_handler(&self) -> bool {
        matches!(self.stage, Stage::Ready | Stage::Serving)
    }

    /// Returns when its handler is to be made, by the monotonic clock.
    pub(super) fn ready_until_ns(&self) -> u64 {
        let limit = u64::try_from(self.deployment.start_timeout.as_nanos()).unwrap_or(u64::MAX);
        self.started_ns.saturating_add(limit)
    }

    /// Applies an event to the stage of its life. Returns whether it can happen; what cannot, changes nothing.
    pub(super) fn advance(&mut self, event: Event) -> bool {
        let next = check(self.stage, event);
        if let Ok(next) = next {
            self.stage = next;
        }
        next.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_of_stage_and_event_is_taken_or_refused_by_name() {
        use Refusal::*;
        let events = [Event::Made, Event::Published, Event::Drained, Event::Exited];
        let table = [
            [Ok(Stage::Ready), Err(NotMade), Ok(Stage::Draining), Ok(Stage::Gone)],
            [Err(MadeAlready), Ok(Stage::Serving), Ok(Stage::Draining), Ok(Stage::Gone)],
            [Err(MadeAlready), Err(PublishedAlready), Ok(Stage::Draining), Ok(Stage::Gone)],
            [Err(IsToEnd), Err(IsToEnd), Err(IsToEnd), Ok(Stage::Gone)],
            [Err(HasEnded); 4],
        ];
        for (stage, row) in Stage::ALL.into_iter().zip(table) {
            for (event, expected) in events.into_iter().zip(row) {
                assert_eq!(check(stage, event), expected, "{stage:?}, {event:?}");
            }
        }
    }
}
