//! First attributes of an attempt's span: the worker that runs the attempt says so, and the head, when the worker died before it could.

use crate::hook::{Attribute, PutAttribute};
use tracer_core::task::{ActorRole, Demand, Envelope, ExtraOptions, JobId, TaskId, TaskSpec, WorkerId, module_stem};
use tracer_core::{ClusterTaskId, names};

/// Room for the attributes of most spans that have more than the usual.
const MANY: usize = 16;

/// Facts about an attempt that its span has from the start.
#[derive(Clone, Copy, Debug)]
pub struct AttemptSpan<'a> {
    /// The task's description.
    pub envelope: &'a Envelope<'a>,
    /// [`TaskSpec::target`] of the envelope.
    pub target: &'a str,
    /// The task.
    pub task: TaskId,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// The job that the task belongs to.
    pub job: JobId,
    /// The worker that runs it.
    pub worker: WorkerId,
    /// The worker's process.
    pub pid: u32,
    /// The machine, as spans name it.
    pub node_id: &'a str,
    /// From the submission's acceptance to the beginning.
    pub queued_ns: u64,
    /// Place of the function, if that is known before it is loaded: its qualified name, its file and its line.
    pub code: Option<(&'a str, &'a str, u32)>,
    /// Name of the module's version, if that is known before it is loaded.
    pub module_version: Option<&'a str>,
}

impl AttemptSpan<'_> {
    /// The attributes that come again with every attempt at the same function, of which the same is known, by the same worker and for the
    /// same job.
    pub fn put_first(&self, put: PutAttribute<'_>) {
        put(names::REMOTE, Attribute::Str(remote(&self.envelope.spec)));
        put(names::FUNCTION, Attribute::Str(self.target));
        put_actor(&self.envelope.spec, put);
        put(names::PID, self.pid.into());
        put(names::JOB_ID, self.job.0.into());
        put(names::WORKER_ID, self.worker.0.into());
        put(names::NODE_ID, Attribute::Str(self.node_id));
        let (code, count) = self.code.map_or(([("", Attribute::Str("")); 3], 0), code_attributes);
        code[..count].iter().for_each(|&(key, value)| put(key, value));
        if let Some(version) = self.module_version {
            put(names::MODULE_VERSION, Attribute::Str(version));
        }
    }

    /// Lends the attributes that come after those.
    pub fn with_further<R>(&self, work: impl FnOnce(&[(&'static str, Attribute<'_>)]) -> R) -> R {
        let own: [(&str, Attribute<'_>); 3] = [
            (names::TASK_ID, self.task.0.into()),
            (names::ATTEMPT, self.attempt.into()),
            (names::QUEUED_NS, self.queued_ns.into()),
        ];
        let (name, demand) = (self.envelope.name, &self.envelope.demand);
        let actor = actor_of(self.task, &self.envelope.spec);
        // Most tasks have no name of their own, ask for nothing, and have to do with no actor.
        let extra = self.envelope.policy.extra;
        let (origin, clocks) = (self.envelope.origin, self.envelope.clocks);
        let is_plain = name.is_empty() && *demand == Demand::default() && actor.is_none() && origin.is_none();
        if is_plain && extra == ExtraOptions::NONE {
            return work(&own);
        }
        let resources = demand.resources_text();
        let id = origin.map(ClusterTaskId::text);
        let said = [
            (!name.is_empty()).then_some((names::TASK_NAME, Attribute::Str(name))),
            (demand.num_cpus != 1).then_some((names::NUM_CPUS, demand.num_cpus.into())),
            (!resources.is_empty()).then_some((names::RESOURCES, Attribute::Str(&resources))),
            demand.memory_bytes.map(|bytes| (names::MEMORY_LIMIT_BYTES, bytes.into())),
            actor.map(|actor| (names::ACTOR_ID, actor.0.into())),
            id.as_ref().map(|id| (names::CLUSTER_TASK_ID, Attribute::Str(id.as_str()))),
            id.is_some().then_some((names::QUEUE, Attribute::Str(self.envelope.policy.queue))),
            clocks.map(|clocks| (names::CLOCK_OFFSET_NS, clocks.holder_ns.into())),
            clocks.map(|clocks| (names::ORIGIN_CLOCK_OFFSET_NS, clocks.origin_ns.into())),
        ];
        let extra = extra.said().map(|said| (said.attribute, said.value.into()));
        let mut all = Vec::with_capacity(MANY);
        all.extend(own.into_iter().chain(said.into_iter().flatten()).chain(extra));
        work(&all)
    }
}

/// Builds the attributes of a function's place in the source. The second value says how many of the array there are.
pub fn code_attributes<'a>((name, file, line): (&'a str, &'a str, u32)) -> ([(&'static str, Attribute<'a>); 3], usize) {
    let attributes = [
        (names::CODE_FUNCTION_NAME, Attribute::Str(name)),
        (names::CODE_FILE_PATH, Attribute::Str(file)),
        (names::CODE_LINE_NUMBER, line.into()),
    ];
    (attributes, if file.is_empty() { 1 } else { 3 })
}

/// Puts the attributes that both spans of an actor's method, or of its creation, have.
pub fn put_actor(spec: &TaskSpec<'_>, put: PutAttribute<'_>) {
    if let TaskSpec::Function(function) = spec
        && function.actor != ActorRole::None
        && let Some((type_name, method)) = function.function.rsplit_once('.')
    {
        put(names::ACTOR_CLASS, Attribute::Str(&format!("{}.{type_name}", module_stem(function.module))));
        put(names::ACTOR_METHOD, Attribute::Str(method));
    }
}

/// Returns the value of [`names::REMOTE`].
pub fn remote(spec: &TaskSpec<'_>) -> &'static str {
    match spec {
        TaskSpec::Function(function) if function.actor == ActorRole::None => names::REMOTE_FUNCTION,
        TaskSpec::Function(_) => names::REMOTE_ACTOR,
        TaskSpec::Command(_) => names::REMOTE_COMMAND,
    }
}

/// Returns the actor that a task makes or is a method of.
pub fn actor_of(task: TaskId, spec: &TaskSpec<'_>) -> Option<TaskId> {
    match spec.actor() {
        ActorRole::None => None,
        ActorRole::Create(_) => Some(task),
        ActorRole::Call(actor) => Some(actor),
    }
}
