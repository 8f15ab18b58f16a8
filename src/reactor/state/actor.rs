use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::state::target::TargetIndex;
use tracer_core::task::{
    ActorOptions, ActorRole, Envelope, Failure, FunctionSpec, JobId, ModuleVersion, SpanLink, TaskId, TaskSpec,
    WorkerId,
};
use tracer_ipc::protocol::Lease;

/// What a task has to do with an actor, in a form that fits a [task](Task).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Part {
    /// Nothing.
    #[default]
    None,
    /// It makes one.
    Creation,
    /// It is a method of this one.
    Call(TaskId),
}

impl Part {
    /// Returns what an envelope says.
    pub(crate) fn of(role: ActorRole<'_>) -> Part {
        match role {
            ActorRole::None => Part::None,
            ActorRole::Create(_) => Part::Creation,
            ActorRole::Call(actor) => Part::Call(actor),
        }
    }
}

/// Every actor that is remembered, and what waits because of them.
#[derive(Debug, Default)]
pub(crate) struct Actors {
    pub(crate) all: BTreeMap<TaskId, Actor>,
    /// Those that are not dead and have a name.
    pub(crate) names: HashMap<Box<str>, TaskId>,
    /// Those that wait for a worker of their own.
    pub(crate) to_place: BTreeSet<TaskId>,
    /// Number of tasks of each job that have not ended; none for jobs without.
    pub(crate) open: BTreeMap<JobId, usize>,
    /// Actors that are to end with their jobs and are not dead, by job.
    pub(crate) bound: HashMap<JobId, BTreeSet<TaskId>>,
    /// Jobs whose driver is connected.
    pub(crate) connected: HashSet<JobId>,
}

/// An actor.
#[derive(Debug)]
pub(crate) struct Actor {
    pub(crate) module: Box<str>,
    pub(crate) type_name: Box<str>,
    pub(crate) name: Box<str>,
    pub(crate) job: JobId,
    pub(crate) submitted_unix_nano: u64,
    pub(crate) is_detached: bool,
    pub(crate) max_restarts: u32,
    pub(crate) max_call_retries: u32,
    pub(crate) restarts: u32,
    /// The creation's, for the next time.
    pub(crate) envelope: Box<[u8]>,
    /// The attempt at its creation that it is at.
    pub(crate) attempt: u32,
    /// The span of that attempt, or of the one before.
    pub(crate) span: Option<SpanLink>,
    /// Calls that wait or are held, in the order of their turn.
    pub(crate) calls: BTreeSet<TaskId>,
    /// True if a follow-up is noted that leases its calls.
    pub(crate) is_noted_ready: bool,
    pub(crate) life: Life,
    pub(crate) worker: Option<WorkerId>,
    /// The methods whose calls may run beside each other. None are known before it has been made once.
    pub(crate) concurrent: BTreeSet<TargetIndex>,
    /// Number of those calls that run at a time.
    pub(crate) max_concurrency: usize,
}

/// Where an actor is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Its creation has not ended.
    Pending,
    /// It takes calls.
    Alive,
    /// Its creation runs again, or waits to.
    Restarting,
    /// It ends, or has ended.
    Dead(Death),
}

/// Why an actor is dead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Death {
    /// A clause that fits after a colon.
    pub cause: String,
    /// See [`Failure::ActorDied`].
    pub error_type: String,
}

impl Death {
    pub(crate) fn of(cause: impl Into<String>) -> Death {
        Death { cause: cause.into(), error_type: String::new() }
    }
}

impl Actor {
    pub(crate) fn is_dead(&self) -> bool {
        matches!(self.life, Life::Dead(_))
    }

    /// The version of its module that its creation said.
    pub(crate) fn version(&self) -> Option<ModuleVersion> {
        Envelope::decode(&self.envelope).ok()?.module_version
    }

    /// `counter.Counter`.
    pub(crate) fn target(&self) -> String {
        let target = TaskSpec::Function(FunctionSpec::of_task(&self.module, &self.type_name, &[])).target();
        if self.name.is_empty() { target } else { format!("{target} `{}`", self.name) }
    }

    pub(crate) fn died(&self, id: TaskId, death: &Death, has_begun: bool) -> Failure {
        let Death { cause, error_type } = death.clone();
        let (target, error_type) = (self.target().into(), error_type.into());
        Failure::ActorDied { actor: id, target, cause, error_type, has_begun }
    }
}

/// The type in `Type.new`.
pub(crate) fn type_of(function: &str) -> &str {
    function.rsplit_once('.').map_or(function, |(type_name, _)| type_name)
}

pub(crate) fn options_of<'a>(envelope: &Envelope<'a>) -> Option<(FunctionSpec<'a>, ActorOptions<'a>)> {
    match envelope.spec {
        TaskSpec::Function(function) => match function.actor {
            ActorRole::Create(options) => Some((function, options)),
            ActorRole::None | ActorRole::Call(_) => None,
        },
        TaskSpec::Command(_) => None,
    }
}

impl Actors {
    /// Lease to make an actor again, whose task remembers its envelope no more.
    pub(crate) fn lease_again<'a>(&'a self, id: TaskId, number: u64, inputs: &'a [u8]) -> Option<Lease<'a>> {
        self.all.get(&id).map(|actor| Lease {
            number,
            task: id,
            attempt: actor.attempt,
            job: actor.job,
            submitted_unix_nano: actor.submitted_unix_nano,
            previous: actor.span,
            envelope: &actor.envelope,
            queued: None,
            inputs,
        })
    }

    /// Returns whether what a creation was given is needed again.
    pub(crate) fn keeps_inputs(&self, id: TaskId) -> bool {
        self.all.get(&id).is_some_and(|actor| matches!(actor.life, Life::Alive | Life::Restarting))
    }

    /// Returns whether a task must be remembered because its actor lives.
    pub(crate) fn is_living(&self, id: TaskId) -> bool {
        self.all.get(&id).is_some_and(|actor| !actor.is_dead())
    }

    /// The module that an actor's type is of, without the folder and the ending of a library.
    pub(crate) fn module_of(&self, id: TaskId) -> Option<&str> {
        self.all.get(&id).map(|actor| tracer_core::task::module_stem(&actor.module))
    }

    /// Returns whether an actor outlives the job that has created it.
    pub(crate) fn is_detached(&self, id: TaskId) -> bool {
        self.all.get(&id).is_some_and(|actor| actor.is_detached)
    }

    /// The task of a dead actor is forgotten.
    pub(crate) fn forget(&mut self, id: TaskId) {
        self.all.remove(&id);
    }
}
