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

/// Returns how many of the tasks that are to be handed over next go together, of which this is the first; 1 if it goes by itself. Looks again only at those that
/// have come since: whoever is cancelled has all of them looked at.
pub(crate) fn count_from(state: &mut State, first: TaskId) -> u32 {
    let before = state.shared.gathered.take().filter(|gathered| gathered.first == first);
    gather(state, first, before).0.count
}

fn gather(state: &mut State, first: TaskId, before: Option<Gathered>) -> (Gathered, bool) {
    let alone = (Gathered { first, count: 1, bytes: 0 }, false);
    let Some(task) = state.tasks.get(first) else { return alone };
    let target = task.target;
    let Some(run_ns) = state.targets.run_time(target).measured_ns() else { return alone };
    let most = u32::try_from(RUN_NS / run_ns.max(1)).map_or(BUNDLE_LIMIT, |count| count.min(BUNDLE_LIMIT));
    let (Some(task), Some(terms)) = (state.tasks.get(first), terms_of(state, first)) else { return alone };
    let is_like_it = |other: &Task| (other.job, other.driver, other.target) == (task.job, task.driver, task.target);
    let Gathered { mut count, mut bytes, .. } =
        before.unwrap_or(Gathered { first, count: 1, bytes: task.envelope().len() });
    let rest = (first.0 + 1..).map(TaskId).zip(&state.shared.to_share);
    for (id, waiting) in rest.take(most.saturating_sub(1) as usize).skip(count as usize - 1) {
        let Some(other) = state.tasks.get(id).filter(|other| id == *waiting && is_like_it(other)) else { break };
        bytes += other.envelope().len();
        if bytes > BYTES || terms_of(state, id) != Some(terms) {
            break;
        }
        count += 1;
    }
    (Gathered { first, count, bytes }, count < most && state.shared.to_share.len() < count as usize)
}

/// Returns what all tasks of a bundle have in common, of a task that may be in one: the queue, and how often it is started again when it is lost.
fn terms_of(state: &State, id: TaskId) -> Option<(&str, u32)> {
    let (task, open) = (state.tasks.get(id)?, state.shared.open.get(&id)?);
    // What an agent may have put into a queue by itself stays by itself.
    let is_new = !open.is_told && state.shared.new_from.is_none_or(|from| id >= from);
    let is_plain = !task.at_most_once
        && task.key.is_none()
        && task.limits.is_none()
        && task.needs.is_none()
        && task.links.is_none()
        && !task.wants_output;
    if !is_new || !is_plain || open.withdrawn.is_some() {
        return None;
    }
    let envelope = Envelope::decode(task.envelope()).ok()?;
    let TaskSpec::Function(function) = &envelope.spec else { return None };
    let is_limited = envelope.policy.queue_limit.is_some() || envelope.policy.idle_limit.is_some();
    let is_small = function.arguments.len() <= exports::ARGUMENTS_LIMIT;
    (is_small && !is_limited).then_some((envelope.policy.queue, envelope.policy.crash_limit))
}

/// Returns what the agent is told of a bundle.
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
    let run_ns = state.targets.run_time(target).measured_ns().unwrap_or(RUN_NS);
    Some(ToAgent::ShareBundle { first, count, queue, crash_limit, run_ns, is_new, is_stored, tasks })
}
