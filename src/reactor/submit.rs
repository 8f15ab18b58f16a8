//! Acceptance: a part of the [reactor](crate).
//!
//! A batch is checked as a whole: whether the head stops, what its tasks ask for, who has submitted them, how much room is left. Then it is
//! journaled, and only then acknowledged: all of it or nothing. Where a task has an idempotency key, is for a queue, or asks for an actor
//! that may be there already, the tasks of the batch are accepted one by one, because some may be known or answered later; the first that is refused ends it.

use crate::{
    actors::life,
    children,
    effects::{Effects, Submission},
    exports, lifecycle, resources,
    state::{
        Keyed, State,
        actor::Part,
        needs::Needs,
        now::Now,
        progress::{Progress, Stage},
        target::TargetIndex,
        task::{Description, DriverId, Limits, Links, Sharing, TASK_BYTES, Task},
    },
    values, versions, waiting,
};
use tracer_core::count::{Count, Size};
use tracer_core::size::check_memory;
use tracer_core::task::{ActorRole, Demand, Envelope, JobId, Refusal, RefusalCode, TaskId, TaskSpec};
use tracer_ipc::protocol::{Accepted, Submissions, frame::PAYLOAD_LIMIT};

/// The answer to a batch, or to a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// These are accepted, and in the journal.
    Accepted(Accepted),
    /// Nothing more of the batch is accepted, and why.
    Refused(Refusal),
    /// Tasks whose tags follow one another are in the journal, and each is answered when the engine has it: with [`Effects::answer_later`].
    Later {
        /// The driver's number for the first of them.
        first_tag: u64,
        /// Their number.
        count: u32,
    },
}

fn refused(code: RefusalCode, reason: impl Into<String>) -> Answer {
    Answer::Refused(Refusal::new(code, reason))
}

/// Takes a batch in. `job` is the driver's; tasks that were submitted by tasks belong to the job of those. Answers go out in their order, each
/// before anything else is told of its tasks. Fails when the batch is not what it says; then nothing more is read of its connection.
pub fn on_submit(
    state: &mut State,
    effects: &mut impl Effects,
    (driver, job): (DriverId, Option<JobId>),
    batch: Submissions<'_>,
    answer: &mut dyn FnMut(Answer),
    now: Now,
) -> Result<(), String> {
    let tags = batch.first_tag..;
    // What runs to its end in a drain may need more.
    if state.stop.is_some() || (state.is_draining && job.is_some()) {
        answer(refused(RefusalCode::Stopping, "the head is stopping and takes no more tasks"));
        return Ok(());
    }
    let envelopes = batch.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
    let mut submissions = Vec::with_capacity(envelopes.len());
    let mut may_be_known = false;
    for (tag, &bytes) in tags.zip(&envelopes) {
        let envelope = Envelope::decode(bytes).map_err(|error| error.to_string())?;
        may_be_known |= !envelope.policy.idempotency_key.is_empty();
        may_be_known |= matches!(envelope.spec.actor(), ActorRole::Create(options) if options.or_existing);
        if !envelope.policy.queue.is_empty() {
            if let Err(refusal) = exports::check(state, &envelope) {
                answer(Answer::Refused(refusal));
                return Ok(());
            }
        } else if state.settings.workers_wanted == 0 {
            let text = "this head has no workers, and only submits to queues\n(hint: say which with --queue)";
            answer(refused(RefusalCode::ImpossibleDemand, text));
            return Ok(());
        }
        if envelope.demand != Demand::default()
            && let Err(reason) = check_demand(state, &envelope)
        {
            answer(refused(RefusalCode::ImpossibleDemand, reason));
            return Ok(());
        }
        let Some(job) = job.or_else(|| Some(state.tasks.get(envelope.submitter?)?.job)) else {
            let reason = "the task that submitted it is not known any more, so nothing was accepted";
            answer(refused(RefusalCode::UnknownSubmitter, reason));
            return Ok(());
        };
        let (driver, queued_unix_nano) = (Some(driver), now.unix_nano);
        submissions.push(Submission { driver, tag, job, bytes, envelope, queued_unix_nano });
    }
    if let Err(reason) = check_room(state, job.is_none(), &envelopes) {
        answer(refused(RefusalCode::QueueFull, reason));
        return Ok(());
    }
    // No lease could carry it.
    if let Some(envelope) = envelopes.iter().find(|envelope| envelope.len() > PAYLOAD_LIMIT) {
        let length = envelope.len();
        return Err(format!("a task of {length} bytes arrived, but at most {PAYLOAD_LIMIT} are taken"));
    }
    if !may_be_known {
        return accept(state, effects, submissions, answer, now).map(drop);
    }
    for submission in submissions {
        let (tag, envelope) = (submission.tag, &submission.envelope);
        let existing = life::find_existing(state, envelope).map(|actor| Ok(Some(actor)));
        match existing.unwrap_or_else(|| find_by_key(state, envelope)) {
            Ok(Some(known)) => {
                values::drop_files(state, envelope);
                answer(Answer::Accepted(Accepted { first_tag: tag, first_task: known, count: 1, journaled: None }));
                on_submitted_again(state, effects, known, driver, tag);
            }
            Ok(None) => {
                if !accept(state, effects, vec![submission], answer, now)? {
                    return Ok(());
                }
            }
            Err(taken) => {
                values::drop_files(state, envelope);
                let reason = format!(
                    "the idempotency key `{}` names task {} already, which runs `{}` and is another one",
                    taken.key, taken.task, taken.target
                );
                answer(refused(RefusalCode::KeyTaken, reason));
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Says that there are as many tasks as the head has memory for, if so. Those that tasks submit may take twice as much: what has begun shall
/// end.
fn check_room(state: &State, is_of_task: bool, envelopes: &[&[u8]]) -> Result<(), String> {
    let limit = state.settings.open_bytes_limit.saturating_mul(if is_of_task { 2 } else { 1 });
    let more: u64 = envelopes.iter().map(|envelope| envelope.len() as u64 + TASK_BYTES).sum();
    if state.open_bytes + more <= limit {
        return Ok(());
    }
    let counts = state.tally.counts();
    Err(format!(
        "the queue is full: {} that have not ended take {} of memory, and may take {}; nothing was accepted\n\
         (hint: submit more when some have ended, or start the head with a higher --queue-memory)",
        Count(counts.waiting + counts.leased, "task"),
        Size(state.open_bytes),
        Size(limit)
    ))
}

/// Says why a task with this demand can never run here, if so; of one for a queue, why it can run nowhere.
fn check_demand(state: &State, envelope: &Envelope<'_>) -> Result<(), String> {
    let demand = &envelope.demand;
    if let Some(bytes) = demand.memory_bytes {
        check_memory(bytes).map_err(|problem| format!("the memory of an attempt: {problem}"))?;
    }
    match envelope.policy.queue {
        "" => resources::check(state, demand.num_cpus, &demand.resources),
        _ => Ok(()),
    }
}

/// Journals tasks with tags in a row, takes them in and acknowledges them, all or none. False when they were refused.
fn accept(
    state: &mut State,
    effects: &mut impl Effects,
    mut submissions: Vec<Submission<'_>>,
    answer: &mut dyn FnMut(Answer),
    now: Now,
) -> Result<bool, String> {
    let journaled = match effects.journal_submit(state.tasks.next_id(), &submissions, now) {
        Ok(journaled) => journaled,
        Err(error) => {
            let reason = format!("the journal cannot be written, so nothing was accepted: {error}");
            answer(refused(RefusalCode::JournalFailed, reason));
            return Ok(false);
        }
    };
    if let Some(journaled) = journaled {
        submissions.iter_mut().for_each(|submission| submission.queued_unix_nano = journaled.end_unix_nano);
    }
    let mut run: Option<(Accepted, bool)> = None;
    let mut tell = |(accepted, waits_for_engine): (Accepted, bool)| {
        let Accepted { first_tag, count, .. } = accepted;
        answer(if waits_for_engine { Answer::Later { first_tag, count } } else { Answer::Accepted(accepted) });
    };
    for submission in submissions {
        let (driver, tag) = (submission.driver, submission.tag);
        let task = on_submission(state, submission, now);
        let open = state.shared.open.get_mut(&task);
        let waits_for_engine = match driver.zip(open) {
            Some((driver, open)) => {
                open.unanswered = Some((driver, tag));
                true
            }
            None => false,
        };
        match &mut run {
            Some((accepted, is_like_it)) if *is_like_it == waits_for_engine => accepted.count += 1,
            _ => {
                let next = Accepted { first_tag: tag, first_task: task, count: 1, journaled };
                run.replace((next, waits_for_engine)).into_iter().for_each(&mut tell);
            }
        }
    }
    run.into_iter().for_each(tell);
    Ok(true)
}

/// Takes a task in and queues it.
pub fn on_submission(state: &mut State, submission: Submission<'_>, now: Now) -> TaskId {
    let queued_unix_nano = submission.queued_unix_nano;
    let (task, keyed) = new_task(state, submission, now.unix_nano);
    let traces_runtime = task.traces_runtime;
    state.open_bytes += task.open_bytes();
    let id = state.tasks.insert(task);
    if traces_runtime {
        state.runtime_since.insert(id, queued_unix_nano);
    }
    values::pin(state, id);
    children::note_child(state, id);
    life::on_task(state, id);
    versions::on_task(state, id);
    waiting::queue_or_hold(state, id);
    remember_key(state, id, keyed);
    lifecycle::watch_queue_limit(state, id, now.monotonic_ns);
    id
}

/// A key that a submission named, which names another task already.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KeyTaken {
    /// The key.
    pub key: String,
    /// The task that it names.
    pub task: TaskId,
    /// The target of that task.
    pub target: String,
}

/// Returns the task that was submitted before under the key of this submission, if it has one and it is known.
fn find_by_key(state: &State, envelope: &Envelope<'_>) -> Result<Option<TaskId>, KeyTaken> {
    let key = envelope.policy.idempotency_key;
    let Some(known) = (!key.is_empty()).then(|| state.keys.get(key)).flatten() else { return Ok(None) };
    if known.fingerprint == envelope.spec.fingerprint() {
        return Ok(Some(known.task));
    }
    let target = state.tasks.get(known.task).map(|task| state.targets.name(task.target).to_owned());
    Err(KeyTaken { key: key.into(), task: known.task, target: target.unwrap_or_default() })
}

/// Notes that a driver has submitted a task again under its key: it waits for it too.
pub fn on_submitted_again(state: &mut State, effects: &mut impl Effects, id: TaskId, driver: DriverId, tag: u64) {
    let Some(task) = state.tasks.get(id) else { return };
    match task.progress() {
        Progress::Ended(ended) => {
            effects.finished((driver, tag), id, task.attempt, &ended.outcome, None, lifecycle::past_attempts(task));
        }
        _ => state.also_waiting.entry(id).or_default().push((driver, tag)),
    }
}

/// Enters a task's key, with what stands for what it runs.
pub(crate) fn remember_key(state: &mut State, id: TaskId, fingerprint: u64) {
    if let Some(key) = state.tasks.get(id).and_then(|task| task.key.clone()) {
        state.keys.insert(*key, Keyed { task: id, fingerprint });
    }
}

/// Forgets the key of a task that was refused: the next submission with it is another one.
pub(crate) fn forget_key(state: &mut State, id: TaskId) {
    if let Some(key) = state.tasks.get_mut(id).and_then(|task| task.key.take())
        && state.keys.get(&*key).is_some_and(|keyed| keyed.task == id)
    {
        state.keys.remove(&*key);
    }
}

/// Makes a task from its envelope, and what stands for what it runs if it has a key.
pub(crate) fn new_task(state: &mut State, submission: Submission<'_>, submitted_unix_nano: u64) -> (Task, u64) {
    let envelope = submission.envelope;
    let is_command = matches!(envelope.spec, TaskSpec::Command(_));
    let nanos = |limit: Option<std::time::Duration>| {
        limit.map_or(0, |limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX))
    };
    let limits = Limits {
        run_ns: nanos(envelope.run_limit),
        // Only a command's output is told from its worker's.
        idle_ns: if is_command { nanos(envelope.policy.idle_limit) } else { 0 },
        queue_ns: nanos(envelope.policy.queue_limit),
        queue_until: 0,
        memory_bytes: envelope.demand.memory_bytes.unwrap_or(0),
    };
    let target = target(state, &envelope);
    let key = envelope.policy.idempotency_key;
    let fingerprint = if key.is_empty() { 0 } else { envelope.spec.fingerprint() };
    let actor = Part::of(envelope.spec.actor());
    // A call whose output is wanted runs beside others if its method does: `actors::serve` decides that.
    let is_watched_alone = envelope.wants_output && !matches!(actor, Part::Call(_));
    let task = Task {
        description: Description::Envelope(submission.bytes.into()),
        target,
        submitter: envelope.submitter,
        links: (!envelope.inputs.is_empty()).then(|| Box::new(Links { inputs: envelope.inputs, ..Links::default() })),
        driver: submission.driver,
        tag: submission.tag,
        job: submission.job,
        submitted_unix_nano,
        limits: (limits != Limits::default()).then(|| Box::new(limits)),
        needs: Needs::of(&envelope.demand).map(|needs| state.queue.share(needs)),
        is_command,
        extra: envelope.policy.extra,
        actor,
        attempt: 0,
        must_be_alone: limits.run_ns > 0
            || limits.idle_ns > 0
            || is_watched_alone
            || envelope.policy.at_most_once
            || envelope.demand != Demand::default(),
        wants_output: envelope.wants_output,
        traces_runtime: envelope.traces_runtime,
        at_most_once: envelope.policy.at_most_once,
        sharing: if envelope.policy.queue.is_empty() { Sharing::Local } else { Sharing::Submitted },
        key: (!key.is_empty()).then(|| Box::new(key.into())),
        past: None,
        stage: Stage::default(),
    };
    (task, fingerprint)
}

pub(crate) fn target(state: &mut State, envelope: &Envelope<'_>) -> TargetIndex {
    let name = target_name(state, &envelope.spec);
    match (&envelope.spec, envelope.module_version) {
        (TaskSpec::Function(function), Some(version)) => {
            let version = state.versions.index(version, function.module);
            state.targets.of_version(name, version)
        }
        _ => name,
    }
}

fn target_name(state: &mut State, spec: &TaskSpec<'_>) -> TargetIndex {
    match spec {
        // The common case without an allocation: a function of a module given by name.
        TaskSpec::Function(function)
            if function.actor == ActorRole::None && !tracer_core::module_name::is_path(function.module) =>
        {
            let mut name = [0; 256];
            let (module, function) = (function.module.as_bytes(), function.function.as_bytes());
            let length = module.len() + 1 + function.len();
            if let Some(name) = name.get_mut(..length) {
                name[..module.len()].copy_from_slice(module);
                name[module.len()] = b'.';
                name[module.len() + 1..].copy_from_slice(function);
                let name = std::str::from_utf8(name).expect("made of two strings and a dot");
                return state.targets.index(name);
            }
            state.targets.index(&spec.target())
        }
        _ => state.targets.index(&spec.target()),
    }
}

#[cfg(test)]
#[path = "submit_tests.rs"]
mod tests;
