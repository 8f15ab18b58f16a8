//! Tasks of this head on their way into a queue: which may go there, and what of them travels. Large arguments go into the engine by themselves: those that
//! are in files, and of the others the largest, until the rest fits into the message.

use std::borrow::Cow;

use tracer_core::count::Size;
use tracer_core::queue::check_queue_name;
use tracer_core::task::{
    ActorRole, CommandSpec, Envelope, Failure, FunctionSpec, Input, InputSource, Outcome, Policy, Refusal, RefusalCode,
    TaskId, TaskSpec,
};
use tracer_core::{ClusterTaskId, Stored, value};
use tracer_ipc::protocol::{CancelReport, SharedEnd, Stop, ToAgent};

use crate::{
    effects::Effects,
    state::{State, now::Now, progress::Progress, shared::Withdrawn, task::Task},
};

/// Limit on the arguments in the message of a task, encoded, in bytes.
pub(crate) const ARGUMENTS_LIMIT: usize = 256 << 10;
/// Limit on a command in the message of a task, with its arguments and variables, in bytes.
const COMMAND_LIMIT: usize = 512 << 10;

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
    match &envelope.spec {
        TaskSpec::Function(FunctionSpec { actor: ActorRole::None, module, .. }) => {
            if tracer_core::module_name::is_path(module) {
                return refused(format!(
                    "the module `{module}` is a path of this machine; a task of a queue names its module\n\
                     (hint: put the library into a folder of each node's --module-path, and say its name)"
                ));
            }
        }
        TaskSpec::Function(_) => return refused("an actor cannot be shared over a queue yet".into()),
        TaskSpec::Command(command) => {
            if !command.input.is_empty() {
                return refused(
                    "a command of a queue may run on another machine, where it cannot read the standard input of its submitter (--stdin)\n\
                     (hint: write the input to a file that all nodes reach, or leave --queue out)"
                        .into(),
                );
            }
            let bytes = bytes_of(command);
            if bytes > COMMAND_LIMIT {
                return refused(format!(
                    "a command of a queue, with its arguments and variables, takes {}, but at most {} are taken\n\
                     (hint: write what is large to a file that all nodes reach, and pass its name)",
                    Size(bytes as u64),
                    Size(COMMAND_LIMIT as u64)
                ));
            }
        }
    }
    for input in &envelope.inputs {
        if let InputSource::Stored(stored) = &input.source {
            check_size(state, stored.bytes)?;
        }
    }
    Ok(())
}

/// Returns the bytes of a command with everything that it is given.
fn bytes_of(command: &CommandSpec<'_>) -> usize {
    let variables = command.environment.iter().map(|(name, value)| name.len() + value.len());
    let arguments = command.arguments.iter().map(|argument| argument.len());
    command.program.len() + command.directory.len() + arguments.chain(variables).sum::<usize>()
}

/// Says that an argument of a task of a queue is too large, if so.
fn check_size(state: &State, bytes: u64) -> Result<(), Refusal> {
    let limit = state.settings.max_shared_value;
    if bytes <= limit {
        return Ok(());
    }
    let text = format!(
        "an argument takes {}, but at most {} are shared over a queue\n\
         (hint: start the head with a larger --max-shared-value, or put the data into a place that all nodes reach, and pass its name)",
        Size(bytes),
        Size(limit)
    );
    Err(Refusal::new(RefusalCode::QueueRefused, text))
}

/// Number of tasks that a job has in queues, beyond which others come before them.
const MANY: usize = 16;

/// Returns whether a task is of a job that has many tasks in queues.
pub(crate) fn is_of_many(state: &State, id: TaskId) -> bool {
    let count = state.tasks.get(id).and_then(|task| state.shared.of_job.get(&task.job));
    count.is_some_and(|count| *count > MANY)
}

/// Returns what the agent is told of a task that is to go into its queue; or why it cannot go there after all.
pub(crate) fn message(state: &State, effects: &mut impl Effects, id: TaskId) -> Option<Result<ToAgent, Refusal>> {
    let task = state.tasks.get(id)?;
    let open = state.shared.open.get(&id)?;
    let envelope = Envelope::decode(task.envelope()).ok()?;
    let arguments = match &envelope.spec {
        TaskSpec::Function(function) => arguments_of(state, function.arguments, &envelope.inputs),
        TaskSpec::Command(_) => Ok(Arguments::default()),
    };
    let Arguments { inline, files, large } = match arguments {
        Ok(arguments) => arguments,
        Err(refusal) => return Some(Err(refusal)),
    };
    // With room for what it has more than the one that was submitted: where it comes from, and the digest of its module.
    let mut bytes = Vec::with_capacity(task.envelope().len() + 64);
    exported(state, effects, (id, task), &envelope, &inline, files).encode(&mut bytes);
    let policy = &envelope.policy;
    let key = envelope.policy.idempotency_key;
    Some(Ok(ToAgent::Share {
        task: id,
        queue: envelope.policy.queue.into(),
        is_command: task.is_command,
        is_of_many: is_of_many(state, id),
        submitted_unix_nano: task.submitted_unix_nano,
        at_most_once: policy.at_most_once,
        crash_limit: policy.crash_limit,
        envelope: bytes,
        large,
        key: (!key.is_empty()).then(|| (key.to_owned(), envelope.spec.fingerprint())),
        is_new: !open.is_told && state.shared.new_from.is_none_or(|from| id >= from),
        is_stored: open.is_stored,
    }))
}

/// Returns the envelope of a task as it travels, with these arguments in it and those in files.
pub(crate) fn exported<'a>(
    state: &State,
    effects: &mut impl Effects,
    (id, task): (TaskId, &Task),
    envelope: &Envelope<'a>,
    inline: &'a [u8],
    files: Vec<Input>,
) -> Envelope<'a> {
    let spec = match &envelope.spec {
        TaskSpec::Function(function) => TaskSpec::Function(FunctionSpec { arguments: inline, ..*function }),
        command => command.clone(),
    };
    Envelope {
        spec,
        policy: Policy { idempotency_key: "", queue_limit: None, ..envelope.policy },
        module_version: None,
        module_digest: envelope.module_version.and_then(|version| effects.module_digest(version)),
        // A driver that is gone does not come again.
        wants_output: task.wants_output && task.driver.is_some(),
        traces_runtime: false,
        submitter: None,
        inputs: files,
        origin: state.shared.place.map(|place| ClusterTaskId { place, task: id }),
        ..envelope.clone()
    }
}

/// Arguments of a task as they travel.
#[derive(Default)]
struct Arguments<'a> {
    /// In the message, with a unit in the place of each that is not.
    inline: Cow<'a, [u8]>,
    /// In files.
    files: Vec<Input>,
    /// Set aside, because they are too many bytes together.
    large: Vec<(u32, Vec<u8>)>,
}

/// A unit, which stands in the place of an argument that travels by itself.
const UNIT: [u8; 1] = [0xc0];

/// Returns the arguments as they travel, with results in their places; or why one of them cannot.
fn arguments_of<'a>(state: &State, arguments: &'a [u8], inputs: &[Input]) -> Result<Arguments<'a>, Refusal> {
    let refused = |text: &str| Refusal::new(RefusalCode::QueueRefused, text.to_owned());
    if inputs.is_empty() && arguments.len() <= ARGUMENTS_LIMIT {
        return Ok(Arguments { inline: arguments.into(), files: Vec::new(), large: Vec::new() });
    }
    let elements = value::elements(arguments).ok_or_else(|| refused("its arguments cannot be read"))?;
    let mut values: Vec<Vec<u8>> = elements.into_iter().map(<[u8]>::to_vec).collect();
    let (mut files, mut large) = (Vec::new(), Vec::new());
    for input in inputs {
        let argument = input.argument;
        let place =
            values.get_mut(argument as usize).ok_or_else(|| refused("it has an input and no argument for it"))?;
        match input_of(state, input)
            .ok_or_else(|| refused("a result that is an argument of it is not kept any more"))?
        {
            Found::Value(value) => *place = value,
            Found::File(stored) => {
                check_size(state, stored.bytes)?;
                *place = UNIT.into();
                files.push(Input { argument, source: InputSource::Stored(stored) });
            }
        }
    }
    let mut left: usize = values.iter().map(Vec::len).sum();
    let mut by_length: Vec<usize> = (0..values.len()).collect();
    by_length.sort_by_key(|&at| std::cmp::Reverse(values[at].len()));
    for at in by_length {
        if left <= ARGUMENTS_LIMIT || values[at].len() <= UNIT.len() {
            break;
        }
        let value = std::mem::replace(&mut values[at], UNIT.into());
        left -= value.len() - UNIT.len();
        large.push((at as u32, value));
    }
    if left > ARGUMENTS_LIMIT {
        let text = format!(
            "a task of a queue has too many arguments: their units alone take {}, but at most {} are taken\n\
             (hint: put them into a list)",
            Size(left as u64),
            Size(ARGUMENTS_LIMIT as u64)
        );
        return Err(Refusal::new(RefusalCode::QueueRefused, text));
    }
    Ok(Arguments { inline: value::array(&values).into(), files, large })
}

/// The value of an argument.
enum Found {
    Value(Vec<u8>),
    File(Stored),
}

fn input_of(state: &State, input: &Input) -> Option<Found> {
    let task = match &input.source {
        InputSource::Stored(stored) => return Some(Found::File(stored.clone())),
        InputSource::Task(task) => *task,
    };
    let Some(Progress::Ended(ended)) = state.tasks.get(task).map(|task| task.progress()) else { return None };
    match &ended.outcome {
        Outcome::Returned(value) => Some(Found::Value(value.clone())),
        // A command has no value; its result is the unit.
        Outcome::Completed => Some(Found::Value(UNIT.into())),
        Outcome::Stored(stored) if !stored.name.is_empty() => Some(Found::File(stored.clone())),
        Outcome::Stored(_) | Outcome::Failed(_) => None,
    }
}

/// Begins to end a task that is in a queue: unless somebody has begun it, it fails with this; else it is ended where it runs, if it `stops` there.
pub(crate) fn withdraw(
    state: &mut State,
    effects: &mut impl Effects,
    id: TaskId,
    failure: Failure,
    stops: Option<Stop>,
    now: Now,
) -> CancelReport {
    let Some(open) = state.shared.open.get_mut(&id) else { return CancelReport::Unknown };
    let before = open.withdrawn.as_ref().and_then(|withdrawn| withdrawn.stops);
    let stops = stops.into_iter().chain(before).reduce(Stop::sooner);
    open.withdrawn = Some(Box::new(Withdrawn { failure, stops, unix_nano: now.unix_nano }));
    state.shared.gathered = None;
    report_withdrawn(state, effects, id);
    CancelReport::Cancelling
}

/// Tells the agent that somebody wants a shared task to end, if so.
pub(crate) fn report_withdrawn(state: &State, effects: &mut impl Effects, id: TaskId) {
    let Some(withdrawn) = state.shared.open.get(&id).and_then(|open| open.withdrawn.as_deref()).cloned() else {
        return;
    };
    let end = SharedEnd::unbegun(withdrawn.failure, withdrawn.unix_nano);
    effects.to_agent(&ToAgent::Withdraw { task: id, stops: withdrawn.stops, end: end.encode() });
}
