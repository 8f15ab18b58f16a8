use std::collections::BTreeSet;

use crate::state::target::TargetIndex;
use tracer_core::task::{
    ActorOptions, ActorRole, Envelope, Failure, FunctionSpec, JobId, ModuleVersion, SpanLink, TaskId, TaskSpec,
    WorkerId,
};

/// A task's relation to an actor, in a form that fits a [task](Task).
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

/// An actor.
#[derive(Debug)]
pub(crate) struct Actor {
    pub(crate) module: Box<str>,
    pub(crate) type_name: Box<str>,
    pub(crate) name: Box<str>,
    pub(crate) job: JobId,
    pub(crate) submitted_unix_nano: u64,
    /// Time of its death under this head.
    pub(crate) died_unix_nano: Option<u64>,
    pub(crate) is_detached: bool,
    pub(crate) max_restarts: u32,
    pub(crate) max_call_retries: u32,
    restarts: u32,
    /// The creation's, for the next time.
    pub(crate) envelope: Box<[u8]>,
    /// The attempt at its creation that it is at.
    attempt: u32,
    /// The span of that attempt, or of the one before.
    span: Option<SpanLink>,
    /// Calls that wait or are held, in the order of their turn.
    calls: BTreeSet<TaskId>,
    /// True if a follow-up is noted that leases its calls.
    is_noted_ready: bool,
    life: Life,
    worker: Option<WorkerId>,
    /// The methods whose calls may run beside each other. None are known before it has been made once.
    concurrent: BTreeSet<TargetIndex>,
    /// Number of those calls that run at a time.
    max_concurrency: usize,
}

/// Stage of an actor's life.
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

/// Cause of an actor's death.
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
    /// Describes an actor whose creation was taken in.
    pub(crate) fn new(
        (function, options): (FunctionSpec<'_>, ActorOptions<'_>),
        job: JobId,
        submitted_unix_nano: u64,
        envelope: &[u8],
    ) -> Actor {
        Actor {
            module: function.module.into(),
            type_name: type_of(function.function).into(),
            name: options.name.into(),
            job,
            submitted_unix_nano,
            died_unix_nano: None,
            is_detached: options.is_detached,
            max_restarts: options.max_restarts,
            max_call_retries: options.max_call_retries,
            restarts: 0,
            envelope: envelope.into(),
            attempt: 0,
            span: None,
            calls: BTreeSet::new(),
            is_noted_ready: false,
            life: Life::Pending,
            worker: None,
            concurrent: BTreeSet::new(),
            max_concurrency: 1,
        }
    }

    /// Returns the stage of its life.
    pub(crate) fn life(&self) -> &Life {
        &self.life
    }

    /// Returns the worker that it has, or is to have.
    pub(crate) fn worker(&self) -> Option<WorkerId> {
        self.worker
    }

    /// Returns the attempt at its creation that it is at.
    pub(crate) fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns the number of times that it was made again.
    pub(crate) fn restarts(&self) -> u32 {
        self.restarts
    }

    /// Returns the span of the attempt that it is at, or of the one before.
    pub(crate) fn span(&self) -> Option<SpanLink> {
        self.span
    }

    /// Returns the calls that wait or are held, in the order of their turn.
    pub(crate) fn calls(&self) -> &BTreeSet<TaskId> {
        &self.calls
    }

    /// Returns whether calls of a method may run beside each other.
    pub(crate) fn is_concurrent(&self, method: TargetIndex) -> bool {
        self.concurrent.contains(&method)
    }

    /// Returns the number of those calls that run at a time.
    pub(crate) fn max_concurrency(&self) -> usize {
        self.max_concurrency
    }

    /// Returns whether it has lived, and is not dead.
    pub(crate) fn has_lived(&self) -> bool {
        matches!(self.life, Life::Alive | Life::Restarting)
    }

    /// Returns whether it may be made again once more.
    pub(crate) fn may_restart(&self) -> bool {
        self.has_lived() && self.restarts < self.max_restarts
    }

    /// Begins an attempt at its creation in a worker.
    pub(crate) fn begin_attempt(&mut self, worker: WorkerId) {
        self.attempt += 1;
        self.worker = Some(worker);
    }

    /// Notes that the attempt had not begun.
    pub(crate) fn give_back_attempt(&mut self) {
        self.attempt = self.attempt.saturating_sub(1);
    }

    /// Notes that there was such an attempt.
    pub(crate) fn count_attempt(&mut self, attempt: u32) {
        self.attempt = self.attempt.max(attempt);
    }

    /// Enters what another head has noted of it.
    pub(crate) fn restore(&mut self, attempt: u32, restarts: u32) {
        (self.attempt, self.restarts) = (attempt, restarts);
    }

    /// Enters the span of an attempt.
    pub(crate) fn set_span(&mut self, span: SpanLink) {
        self.span = Some(span);
    }

    /// Enters which calls run beside each other, and how many.
    pub(crate) fn set_methods(&mut self, concurrent: BTreeSet<TargetIndex>, max_concurrency: usize) {
        (self.concurrent, self.max_concurrency) = (concurrent, max_concurrency);
    }

    /// Takes its worker from it.
    pub(crate) fn take_worker(&mut self) -> Option<WorkerId> {
        self.worker.take()
    }

    /// Notes that it has been made, unless it is dead. True if it takes calls from now on.
    pub(crate) fn live(&mut self) -> bool {
        if !self.is_dead() {
            self.life = Life::Alive;
        }
        !self.is_dead()
    }

    /// Notes that it is to be made again. Returns how often it may be after that.
    pub(crate) fn begin_again(&mut self) -> u32 {
        self.restarts += 1;
        self.life = Life::Restarting;
        self.max_restarts.saturating_sub(self.restarts)
    }

    /// Notes that it is dead. Returns the calls that waited for it.
    pub(crate) fn die(&mut self, death: Death) -> BTreeSet<TaskId> {
        self.life = Life::Dead(death);
        std::mem::take(&mut self.calls)
    }

    /// Adds a call that waits or is held.
    pub(crate) fn add_call(&mut self, call: TaskId) {
        self.calls.insert(call);
    }

    /// Takes out a call.
    pub(crate) fn remove_call(&mut self, call: TaskId) {
        self.calls.remove(&call);
    }

    /// Takes out the calls that wait, and leaves those that are held.
    pub(crate) fn take_calls(&mut self, mut waits: impl FnMut(TaskId) -> bool) -> BTreeSet<TaskId> {
        let (waiting, held) = std::mem::take(&mut self.calls).into_iter().partition(|&call| waits(call));
        self.calls = held;
        waiting
    }

    /// Notes that a follow-up leases its calls. True if none was noted.
    pub(crate) fn note_ready(&mut self) -> bool {
        !std::mem::replace(&mut self.is_noted_ready, true)
    }

    /// Notes that the follow-up is done.
    pub(crate) fn note_served(&mut self) {
        self.is_noted_ready = false;
    }

    pub(crate) fn is_dead(&self) -> bool {
        matches!(self.life, Life::Dead(_))
    }

    /// Returns the version of its module that its creation said.
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

/// Returns the type in `Type.new`.
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
