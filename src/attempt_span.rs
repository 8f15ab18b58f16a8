//! What the span of an attempt begins with: the worker that runs the attempt says so, and the head, when the worker died before it could.

use crate::hook::Attribute;
use crate::names;
use crate::task::{ActorRole, Envelope, JobId, TaskId, TaskSpec, WorkerId};

/// Everything about an attempt that its span says from the start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttemptSpan<'a> {
    pub(crate) envelope: &'a Envelope<'a>,
    /// [`TaskSpec::target`] of the envelope.
    pub(crate) target: &'a str,
    pub(crate) task: TaskId,
    pub(crate) attempt: u32,
    pub(crate) job: JobId,
    pub(crate) worker: WorkerId,
    /// The worker's process.
    pub(crate) pid: u32,
    pub(crate) node_id: &'a str,
    /// From the submission's acceptance to the beginning.
    pub(crate) queued_ns: u64,
    /// [`Demand::resources_text`](crate::task::Demand::resources_text) of the envelope.
    pub(crate) resources: &'a str,
    /// Where the function is, if that is known before it is loaded: its qualified name, its file and its line.
    pub(crate) code: Option<(&'a str, &'a str, u32)>,
}

/// How many attributes there are at the most.
const COUNT: usize = 17;
/// How many of them are the same for all attempts of one worker at one function, in one job, but for where the function is.
const OF_FUNCTION: usize = 6;

impl<'a> AttemptSpan<'a> {
    /// The attributes. The second value says how many of the array there are, the third how many of these come again with every
    /// attempt at the same function, of which the same is known, by the same worker and for the same job.
    pub(crate) fn attributes(&self) -> ([(&'static str, Attribute<'a>); COUNT], usize, usize) {
        let none = ("", Attribute::Str(""));
        let mut attributes = [
            (names::REMOTE, Attribute::Str(remote(&self.envelope.spec))),
            (names::FUNCTION, Attribute::Str(self.target)),
            (names::PID, self.pid.into()),
            (names::JOB_ID, self.job.0.into()),
            (names::WORKER_ID, self.worker.0.into()),
            (names::NODE_ID, Attribute::Str(self.node_id)),
            none,
            none,
            none,
            none,
            none,
            none,
            none,
            none,
            none,
            none,
            none,
        ];
        let (code, code_count) = self.code.map_or(([none; 3], 0), code_attributes);
        let prefix = OF_FUNCTION + code_count;
        attributes[OF_FUNCTION..prefix].copy_from_slice(&code[..code_count]);
        attributes[prefix] = (names::TASK_ID, self.task.0.into());
        attributes[prefix + 1] = (names::ATTEMPT, self.attempt.into());
        attributes[prefix + 2] = (names::QUEUED_NS, self.queued_ns.into());
        let mut count = prefix + 3;
        let demand = &self.envelope.demand;
        let actor = actor_of(self.task, &self.envelope.spec);
        let said = [
            // Most tasks have no name of their own, ask for nothing, and have to do with no actor.
            (!self.envelope.name.is_empty(), (names::TASK_NAME, Attribute::Str(self.envelope.name))),
            (demand.num_cpus != 1, (names::NUM_CPUS, demand.num_cpus.into())),
            (!demand.resources.is_empty(), (names::RESOURCES, Attribute::Str(self.resources))),
            (
                demand.memory_bytes.is_some(),
                (names::MEMORY_LIMIT_BYTES, demand.memory_bytes.unwrap_or_default().into()),
            ),
            (actor.is_some(), (names::ACTOR_ID, actor.map_or(0, |actor| actor.0).into())),
        ];
        for (_, attribute) in said.into_iter().filter(|&(is_said, _)| is_said) {
            attributes[count] = attribute;
            count += 1;
        }
        (attributes, count, prefix)
    }
}

/// What a span says of where a function is. The second value says how many of the array there are.
pub(crate) fn code_attributes<'a>(
    (name, file, line): (&'a str, &'a str, u32),
) -> ([(&'static str, Attribute<'a>); 3], usize) {
    let attributes = [
        (names::CODE_FUNCTION_NAME, Attribute::Str(name)),
        (names::CODE_FILE_PATH, Attribute::Str(file)),
        (names::CODE_LINE_NUMBER, line.into()),
    ];
    (attributes, if file.is_empty() { 1 } else { 3 })
}

/// The value of [`names::REMOTE`].
pub(crate) fn remote(spec: &TaskSpec<'_>) -> &'static str {
    match spec {
        TaskSpec::Function(function) if function.actor == ActorRole::None => names::REMOTE_FUNCTION,
        TaskSpec::Function(_) => names::REMOTE_ACTOR,
        TaskSpec::Command(_) => names::REMOTE_COMMAND,
    }
}

/// The actor that a task makes or is a method of.
pub(crate) fn actor_of(task: TaskId, spec: &TaskSpec<'_>) -> Option<TaskId> {
    match spec.actor() {
        ActorRole::None => None,
        ActorRole::Create(_) => Some(task),
        ActorRole::Call(actor) => Some(actor),
    }
}
