//! Short tasks on their way into a queue together: a bundle, which the engine, the agents and the holder handle as one as long as all goes well. See
//! `tracer_engine::bundle`.
//!
//! A bundle has the ids of its tasks in a row, and is in the journal before anybody hears of it: it is the same one for every agent and every later head.

use tracer_core::task::{Envelope, TaskId, TaskSpec};
use tracer_ipc::protocol::{BUNDLE_LIMIT, OpenTask, OpenTasks, ToAgent};

use crate::{
    effects::Effects,
    exports,
    state::{State, shared::Gathered, task::Task},
};

/// Limit on the expected run time of a bundle, in nanoseconds.
const RUN_NS: u64 = 20_000_000;
/// Limit on the bytes of its tasks.
const BYTES: usize = 256 << 10;

/// Returns whether more tasks would go with those that are to be handed over next, of which this is the first. Looks at those alone that have come since it was
/// asked last.
pub(crate) fn takes_more(state: &mut State, first: TaskId) -> bool {
    let before = state.shared.gathered.take().filter(|gathered| gathered.first == first);
    let (gathered, takes_more) = gather(state, first, before);
    state.shared.gathered = Some(gathered);
    takes_more
}

/// Returns how many of the tasks that are to be handed over next may go together, of which this is the first; 1 if it goes by itself. Looks again only at those
/// that have come since: whoever is cancelled has all of them looked at.
fn count_from(state: &mut State, first: TaskId) -> u32 {
    let before = state.shared.gathered.take().filter(|gathered| gathered.first == first);
    gather(state, first, before).0.count
}

fn gather(state: &mut State, first: TaskId, before: Option<Gathered>) -> (Gathered, bool) {
    let alone = (Gathered { first, count: 1, bytes: 0 }, false);
    let Some(task) = state.tasks.get(first) else { return alone };
    let target = task.target;
    let Some(run_ns) = state.targets.run_time(target).average_ns() else { return alone };
    let most = u32::try_from(RUN_NS / run_ns.max(1)).map_or(BUNDLE_LIMIT, |count| count.min(BUNDLE_LIMIT));
    let may_begin = |task: &&Task| {
        let has_terms = || Envelope::decode(task.envelope()).is_ok_and(|envelope| terms_of(&envelope).is_some());
        is_plain(state, first, task) && has_terms()
    };
    let Some(task) = state.tasks.get(first).filter(may_begin) else { return alone };
    let is_like_it = |other: &Task| (other.job, other.driver, other.target) == (task.job, task.driver, task.target);
    let Gathered { mut count, mut bytes, .. } =
        before.unwrap_or(Gathered { first, count: 1, bytes: task.envelope().len() });
    let rest = (first.0 + 1..).map(TaskId).zip(&state.shared.to_share);
    for (id, waiting) in rest.take(most.saturating_sub(1) as usize).skip(count as usize - 1) {
        let Some(other) = state.tasks.get(id).filter(|other| id == *waiting && is_like_it(other)) else { break };
        bytes += other.envelope().len();
        if bytes > BYTES || !is_plain(state, id, other) {
            break;
        }
        count += 1;
    }
    (Gathered { first, count, bytes }, count < most && state.shared.to_share.len() < count as usize)
}

/// Returns whether a task may be in a bundle, as far as that is known without its envelope.
fn is_plain(state: &State, id: TaskId, task: &Task) -> bool {
    let Some(open) = state.shared.open.get(&id) else { return false };
    // What an agent may have put into a queue by itself stays by itself.
    let is_new = !open.is_told && state.shared.new_from.is_none_or(|from| id >= from);
    is_new
        && open.withdrawn.is_none()
        && !task.at_most_once
        && task.key.is_none()
        && task.limits.is_none()
        && task.needs.is_none()
        && task.links.is_none()
        && !task.wants_output
}

/// Returns what all tasks of a bundle have in common, of one that may be in one, and its arguments: the queue, and how often it is started again when it is lost.
fn terms_of<'a>(envelope: &Envelope<'a>) -> Option<((&'a str, u32), &'a [u8])> {
    let TaskSpec::Function(function) = &envelope.spec else { return None };
    let is_limited = envelope.policy.queue_limit.is_some() || envelope.policy.idle_limit.is_some();
    let is_small = function.arguments.len() <= exports::ARGUMENTS_LIMIT;
    let terms = (envelope.policy.queue, envelope.policy.crash_limit);
    (is_small && !is_limited).then_some((terms, function.arguments))
}

/// Returns what the agent is told of a new bundle of those that are to be handed over next, of which this is the first, and the number of its tasks. None if that
/// one goes by itself.
pub(crate) fn begin(state: &mut State, effects: &mut impl Effects, first: TaskId) -> Option<(u32, ToAgent)> {
    let most = count_from(state, first);
    if most < 2 {
        return None;
    }
    let is_stored = state.shared.open.get(&first)?.is_stored;
    let (mut tasks, mut common) = (OpenTasks::default(), None);
    for id in (first.0..first.0 + u64::from(most)).map(TaskId) {
        let Some(task) = state.tasks.get(id) else { break };
        let Ok(envelope) = Envelope::decode(task.envelope()) else { break };
        let Some((terms, arguments)) = terms_of(&envelope) else { break };
        if common.get_or_insert(terms) != &terms {
            break;
        }
        let exported = exports::exported(state, effects, (id, task), &envelope, arguments, Vec::new());
        tasks.push_with(id, task.submitted_unix_nano, |out| exported.encode(out));
    }
    let (queue, crash_limit) = common.filter(|_| tasks.len() > 1)?;
    let (count, queue, target) = (tasks.len() as u32, queue.into(), state.tasks.get(first)?.target);
    let run_ns = state.targets.run_time(target).average_ns().unwrap_or(RUN_NS);
    Some((count, ToAgent::ShareBundle { first, count, queue, crash_limit, run_ns, is_new: true, is_stored, tasks }))
}

/// Returns what an agent is told of a bundle that one before it was told of, or may have been.
pub(crate) fn message(state: &mut State, effects: &mut impl Effects, first: TaskId, count: u32) -> Option<ToAgent> {
    let mut common = None;
    let mut tasks = OpenTasks::default();
    for id in (first.0..first.0 + u64::from(count)).map(TaskId) {
        if let Some(Ok(ToAgent::Share {
            queue, submitted_unix_nano, crash_limit, envelope, is_new, is_stored, ..
        })) = exports::message(state, effects, id)
        {
            common.get_or_insert((queue, crash_limit, is_new, is_stored, id));
            tasks.push(OpenTask { id, submitted_unix_nano, envelope: &envelope });
        }
    }
    let (queue, crash_limit, is_new, is_stored, id) = common?;
    let target = state.tasks.get(id)?.target;
    let run_ns = state.targets.run_time(target).average_ns().unwrap_or(RUN_NS);
    Some(ToAgent::ShareBundle { first, count, queue, crash_limit, run_ns, is_new, is_stored, tasks })
}
