//! Acceptance: a part of the [reactor](super::reactor).
//!
//! A batch is checked as a whole: whether the head stops, what its tasks ask for, who has submitted them, how much room is left. Then it is
//! journaled, and only then acknowledged: all of it or nothing. Where a task has an idempotency key, or asks for an actor that may be there
//! already, the tasks of the batch are accepted one by one, because some may be known; the first that is refused ends it.

use super::reactor::{Effects, Submission, find_by_key, on_submission, on_submitted_again};
use super::state::{DriverId, Now, State, TASK_BYTES};
use super::{actors, inputs, lanes};
use tracer_core::count::{Count, Size};
use tracer_core::size::check_memory;
use tracer_core::task::{ActorRole, Demand, Envelope, JobId};
use tracer_ipc::protocol::frame::PAYLOAD_LIMIT;
use tracer_ipc::protocol::{Accepted, Submissions, refusal};

/// What a driver is told of a batch, or of a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// These are accepted, and in the journal.
    Accepted(Accepted),
    /// Nothing more of the batch is accepted, and why. It begins with one of [`refusal`]'s texts where those apply.
    Refused(String),
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
    if state.is_stopping {
        answer(Answer::Refused(format!("{} and takes no more tasks", refusal::STOPPING)));
        return Ok(());
    }
    let envelopes = batch.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
    let mut submissions = Vec::with_capacity(envelopes.len());
    let mut may_be_known = false;
    for (tag, &bytes) in tags.zip(&envelopes) {
        let envelope = Envelope::decode(bytes).map_err(|error| error.to_string())?;
        may_be_known |= !envelope.policy.idempotency_key.is_empty();
        may_be_known |= matches!(envelope.spec.actor(), ActorRole::Create(options) if options.or_existing);
        if envelope.demand != Demand::default()
            && let Err(reason) = check_demand(state, &envelope.demand)
        {
            answer(Answer::Refused(reason));
            return Ok(());
        }
        let Some(job) = job.or_else(|| Some(state.tasks.get(envelope.submitter?)?.job)) else {
            let reason = "the task that submitted it is not known any more, so nothing was accepted";
            answer(Answer::Refused(reason.into()));
            return Ok(());
        };
        let (driver, queued_unix_nano) = (Some(driver), now.unix_nano);
        submissions.push(Submission { driver, tag, job, bytes, envelope, queued_unix_nano });
    }
    if let Err(reason) = check_room(state, job.is_none(), &envelopes) {
        answer(Answer::Refused(reason));
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
        let existing = actors::find_existing(state, envelope).map(|actor| Ok(Some(actor)));
        match existing.unwrap_or_else(|| find_by_key(state, envelope)) {
            Ok(Some(known)) => {
                inputs::drop_files(state, envelope);
                answer(Answer::Accepted(Accepted { first_tag: tag, first_task: known, count: 1, journaled: None }));
                on_submitted_again(state, effects, known, driver, tag);
            }
            Ok(None) => {
                if !accept(state, effects, vec![submission], answer, now)? {
                    return Ok(());
                }
            }
            Err(taken) => {
                inputs::drop_files(state, envelope);
                answer(Answer::Refused(format!(
                    "{}`{}` names task {} already, which runs `{}` and is another one",
                    refusal::KEY_TAKEN,
                    taken.key,
                    taken.task,
                    taken.target
                )));
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Says that there are as many tasks as the head has memory for, if so. Those that tasks submit may take twice as much: what has begun shall
/// end.
fn check_room(state: &State, is_of_task: bool, envelopes: &[&[u8]]) -> Result<(), String> {
    let limit = state.open_bytes_limit.saturating_mul(if is_of_task { 2 } else { 1 });
    let more: u64 = envelopes.iter().map(|envelope| envelope.len() as u64 + TASK_BYTES).sum();
    if state.open_bytes + more <= limit {
        return Ok(());
    }
    let counts = state.tally.counts();
    Err(format!(
        "{}: {} that have not ended take {} of memory, and may take {}; nothing was accepted\n\
         (hint: submit more when some have ended, or start the head with a higher --queue-memory)",
        refusal::FULL,
        Count(counts.waiting + counts.leased, "task"),
        Size(state.open_bytes),
        Size(limit)
    ))
}

/// Says why a task with this demand can never run here, if so.
fn check_demand(state: &State, demand: &Demand<'_>) -> Result<(), String> {
    if let Some(bytes) = demand.memory_bytes {
        check_memory(bytes).map_err(|problem| format!("the memory of an attempt: {problem}"))?;
    }
    lanes::check(state, demand.num_cpus, &demand.resources)
}

/// Journals tasks with tags in a row, takes them in and acknowledges them, all or none. False when they were refused.
fn accept(
    state: &mut State,
    effects: &mut impl Effects,
    mut submissions: Vec<Submission<'_>>,
    answer: &mut dyn FnMut(Answer),
    now: Now,
) -> Result<bool, String> {
    let Some(first_tag) = submissions.first().map(|submission| submission.tag) else { return Ok(true) };
    let count = u32::try_from(submissions.len()).map_err(|error| error.to_string())?;
    let first_task = state.tasks.next_id();
    let journaled = match effects.journal_submit(first_task, &submissions, now) {
        Ok(journaled) => journaled,
        Err(error) => {
            answer(Answer::Refused(format!("{}, so nothing was accepted: {error}", refusal::JOURNAL)));
            return Ok(false);
        }
    };
    if let Some(journaled) = journaled {
        submissions.iter_mut().for_each(|submission| submission.queued_unix_nano = journaled.end_unix_nano);
    }
    for submission in submissions {
        on_submission(state, submission, now);
    }
    answer(Answer::Accepted(Accepted { first_tag, first_task, count, journaled }));
    Ok(true)
}
