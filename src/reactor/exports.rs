//! Tasks of this head on their way into a queue: which may go there, and what of them travels.

use tracer_core::queue::check_queue_name;
use tracer_core::task::{
    ActorRole, Demand, Envelope, Failure, FunctionSpec, Input, InputSource, Outcome, Policy, Refusal, RefusalCode,
    TaskId, TaskSpec,
};
use tracer_core::value;
use tracer_ipc::protocol::{CancelReport, SharedEnd, ToAgent};

use crate::{
    effects::Effects,
    state::{State, now::Now, progress::Progress, shared::Withdrawn},
};

/// Limit on the arguments of a task of a queue, encoded, in bytes.
const ARGUMENTS_LIMIT: usize = 256 << 10;

/// Says why a task cannot go into the queue that it names, if so.
pub(crate) fn check(state: &State, envelope: &Envelope<'_>) -> Result<(), Refusal> {
    let queue = envelope.policy.queue;
    let refused = |text: String| Err(Refusal::new(RefusalCode::QueueRefused, text));
    if let Err(problem) = check_queue_name(queue) {
        return refused(format!("the queue `{queue}` {problem}"));
    }
    if state.shared.job.is_none() {
        let text = format!(
            "the task is for the queue `{queue}`, but this head has joined no engine\n\
             (hint: start it with `tracer start --address nats://127.0.0.1:4222`, or submit without --queue)"
        );
        return Err(Refusal::new(RefusalCode::NoEngine, text));
    }
    let TaskSpec::Function(function) = &envelope.spec else {
        return refused("a command cannot go into a queue yet, only a function can".into());
    };
    if function.actor != ActorRole::None {
        return refused("an actor cannot be shared over a queue yet".into());
    }
    if tracer_core::module_name::is_path(function.module) {
        let module = function.module;
        return refused(format!(
            "the module `{module}` is a path of this machine; a task of a queue names its module\n\
             (hint: put the library into a folder of each node's --module-path, and say its name)"
        ));
    }
    if envelope.demand != Demand::default() {
        return refused("a task of a queue takes one slot, and cannot ask for cpus, resources or memory yet".into());
    }
    let is_large = envelope.inputs.iter().any(|input| matches!(input.source, InputSource::Stored(_)));
    if is_large || function.arguments.len() > ARGUMENTS_LIMIT {
        return refused(format!(
            "the arguments of a task of a queue may take {ARGUMENTS_LIMIT} bytes\n\
             (hint: put the data into a place that all nodes reach, and pass its name)"
        ));
    }
    Ok(())
}

/// Returns what the agent is told of a task that is to go into its queue; or why it cannot go there after all.
pub(crate) fn message(state: &State, id: TaskId) -> Option<Result<ToAgent, Refusal>> {
    let task = state.tasks.get(id)?;
    let open = state.shared.open.get(&id)?;
    let envelope = Envelope::decode(task.envelope()).ok()?;
    let TaskSpec::Function(function) = &envelope.spec else { return None };
    let with_values = with_values(state, function.arguments, &envelope.inputs);
    let arguments = match &with_values {
        None => function.arguments,
        Some(Some(arguments)) if arguments.len() <= ARGUMENTS_LIMIT => arguments,
        Some(_) => {
            let text = format!(
                "the arguments of a task of a queue may take {ARGUMENTS_LIMIT} bytes, with the results among them"
            );
            return Some(Err(Refusal::new(RefusalCode::QueueRefused, text)));
        }
    };
    let policy = Policy { queue: "", idempotency_key: "", queue_limit: None, ..envelope.policy };
    let exported = Envelope {
        spec: TaskSpec::Function(FunctionSpec { arguments, ..*function }),
        policy,
        module_version: None,
        wants_output: false,
        traces_runtime: false,
        submitter: None,
        inputs: Vec::new(),
        ..envelope.clone()
    };
    let mut bytes = Vec::new();
    exported.encode(&mut bytes);
    Some(Ok(ToAgent::Share {
        task: id,
        queue: envelope.policy.queue.into(),
        submitted_unix_nano: task.submitted_unix_nano,
        at_most_once: policy.at_most_once,
        crash_limit: policy.crash_limit,
        envelope: bytes,
        is_new: !open.is_told && state.shared.new_from.is_none_or(|from| id >= from),
        is_stored: open.is_stored,
    }))
}

/// Returns the arguments with the results in their places that are among them. None if there are no such; none inside if one of them cannot be had, or is in
/// a file.
fn with_values(state: &State, arguments: &[u8], inputs: &[Input]) -> Option<Option<Vec<u8>>> {
    if inputs.is_empty() {
        return None;
    }
    let fill = || {
        let mut values: Vec<Vec<u8>> = value::elements(arguments)?.into_iter().map(<[u8]>::to_vec).collect();
        for input in inputs {
            let Some(Progress::Ended(ended)) =
                input.task().and_then(|id| state.tasks.get(id)).map(|task| task.progress())
            else {
                return None;
            };
            let place = values.get_mut(input.argument as usize)?;
            *place = match &ended.outcome {
                Outcome::Returned(value) => value.clone(),
                // A command has no value; its result is the unit.
                Outcome::Completed => vec![0xc0],
                Outcome::Stored(_) | Outcome::Failed(_) => return None,
            };
        }
        Some(value::array(&values))
    };
    Some(fill())
}

/// Begins to end a task that is in a queue: unless somebody has begun it, it fails with this; else it is ended where it runs, if it `stops` there.
pub(crate) fn withdraw(
    state: &mut State,
    effects: &mut impl Effects,
    id: TaskId,
    failure: Failure,
    stops: bool,
    now: Now,
) -> CancelReport {
    let Some(open) = state.shared.open.get_mut(&id) else { return CancelReport::Unknown };
    open.withdrawn = Some(Withdrawn { failure, stops, unix_nano: now.unix_nano });
    tell_withdrawn(state, effects, id);
    CancelReport::Cancelling
}

/// Tells the agent that somebody wants a shared task to end, if so.
pub(crate) fn tell_withdrawn(state: &State, effects: &mut impl Effects, id: TaskId) {
    let Some(withdrawn) = state.shared.open.get(&id).and_then(|open| open.withdrawn.clone()) else { return };
    let end = SharedEnd {
        attempt: 0,
        outcome: Outcome::Failed(withdrawn.failure),
        started_unix_nano: None,
        ended_unix_nano: withdrawn.unix_nano,
        past: Vec::new(),
        node_id: String::new(),
    };
    effects.to_agent(&ToAgent::Withdraw { task: id, stops: withdrawn.stops, end: end.encode() });
}
