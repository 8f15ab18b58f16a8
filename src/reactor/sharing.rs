//! Tasks that are shared with other nodes: inputs from the agent, and what it is told. This head is the *origin* of the tasks that it has put into queues, and
//! the *holder* of those that it runs for others.

use std::sync::Arc;

use tracer_core::count::Count;
use tracer_core::task::{
    ActorRole, Envelope, Failure, FunctionSpec, JobId, Outcome, Refusal, RefusalCode, SpanLink, TaskId, TaskSpec,
};
use tracer_core::{ClusterTaskId, PlaceId};
use tracer_ipc::protocol::{Accepted, ClaimedBy, Import, ImportedTask, LostElsewhere, SharedEnd, Stop, ToAgent};

use crate::{
    actors::life,
    bundling, cancel,
    effects::{Effects, StandIn, Submission},
    exports, imports, lifecycle, resources,
    state::{
        State,
        follow_ups::FollowUp,
        now::Now,
        progress::{Event, Progress, TaskEnd},
        shared::{Bundle, Imported, Open},
        task::{DriverId, Past, Sharing},
    },
    submit, values, waiting,
};

/// Notes that this head has joined an engine, with the id of its place. `job` is that of the tasks that it runs for other nodes.
pub fn on_joined(state: &mut State, place: PlaceId, job: JobId) {
    (state.shared.place, state.shared.job) = (Some(place), Some(job));
}

/// Number of messages that the agent is told of before it says that the engine has them. What waits meanwhile goes together, once it is known how short it is.
const ON_THE_WAY: usize = 64;

/// Number of messages on the way beyond which short tasks wait until there are enough for a whole bundle, or one of those is there.
const BEFORE_FULL: usize = 2;

/// Bundles of this head in queues beyond which short tasks wait for a moment until there are enough for a whole bundle: those before them take longer.
const BEFORE_WAITING: usize = 4;

/// Longest time that a task waits so, in nanoseconds.
pub(crate) const WAIT_NS: u64 = 2_000_000;

/// Notes whether the engine can be reached.
pub fn on_reach(state: &mut State, is_reachable: bool) {
    state.shared.is_reachable = is_reachable;
}

/// Tells an agent that has just come all that is open both ways.
pub fn on_agent(state: &mut State, effects: &mut impl Effects) {
    let shared = &mut state.shared;
    (shared.imports_seen, shared.is_reachable) = (0, false);
    shared.on_the_way.clear();
    // What is known of one task of a bundle counts once it is known which of them there are.
    for import in shared.imports.values() {
        let (id, token) = (import.id, import.token.to_vec());
        effects.to_agent(&ToAgent::Open { id, token, attempt: import.first_attempt });
    }
    for import in shared.imports.values_mut() {
        for (attempt, charge, report) in &import.failed {
            let (attempt, charge, report) = (*attempt, *charge, report.clone());
            effects.to_agent(&ToAgent::AttemptFailed { id: import.id, attempt, charge, report });
        }
        imports::report_end(import, effects);
    }
    shared.to_share = shared.open.keys().collect();
    (shared.gathered, shared.waiting) = (None, None);
    shared.open.values_mut().for_each(|open| open.is_taken_back = false);
    if state.stop.is_some() || state.is_draining {
        effects.to_agent(&ToAgent::Stopping);
    }
}

/// Hands tasks to the agent that are to go into queues, short ones together. Where there is no agent, the next one is told of them.
pub(crate) fn hand_over(state: &mut State, effects: &mut impl Effects, now: Now) {
    // What an engine that is away keeps waiting is for the agent to refuse in time.
    while state.shared.on_the_way.len() < ON_THE_WAY || !state.shared.is_reachable {
        let Some(id) = state.shared.to_share.pop_front() else { return };
        if !state.shared.open.contains_key(&id) {
            continue;
        }
        if state.shared.bundle_of(id).is_none() {
            let before = state.shared.waiting.filter(|(waiting, _)| *waiting == id);
            let since_ns = before.map_or(now.monotonic_ns, |(_, since_ns)| since_ns);
            if may_wait(state, (id, since_ns), now) && bundling::takes_more(state, id) {
                state.shared.waiting = Some((id, since_ns));
                return state.shared.to_share.push_front(id);
            }
            state.shared.waiting = None;
            if let Some((count, message)) = bundling::begin(state, effects, id)
                && effects.journal_bundle(id, count)
            {
                state.shared.bundles.insert(id, Bundle { count, open: count, claim: None });
                drop_from_front(state, id, count);
                notify(state, effects, id, &message);
                continue;
            }
        }
        match state.shared.bundle_of(id) {
            Some((first, count)) => {
                drop_from_front(state, first, count);
                if let Some(message) = bundling::message(state, effects, first, count) {
                    notify(state, effects, first, &message);
                }
            }
            None => match exports::message(state, effects, id) {
                Some(Ok(message)) => notify(state, effects, id, &message),
                Some(Err(refusal)) => on_not_stored(state, effects, id, refusal, now),
                None => {}
            },
        }
    }
}

/// Returns whether a task that is to be handed over next, and has been since then, may wait until there are enough others for a whole bundle. One of a job with few
/// tasks in queues does not wait for a moment: perhaps the next one is submitted when it has ended.
fn may_wait(state: &State, (first, since_ns): (TaskId, u64), now: Now) -> bool {
    let shared = &state.shared;
    let has_moment = now.monotonic_ns < since_ns.saturating_add(WAIT_NS);
    let is_behind = shared.bundles.len() >= BEFORE_WAITING && exports::is_of_many(state, first);
    shared.is_reachable && (shared.on_the_way.len() >= BEFORE_FULL || (has_moment && is_behind))
}

/// Takes the tasks of a bundle off the front of those that are to be handed over.
fn drop_from_front(state: &mut State, first: TaskId, count: u32) {
    let rest = |waiting: &TaskId| (first.0..first.0 + u64::from(count)).contains(&waiting.0);
    while state.shared.to_share.front().is_some_and(rest) {
        state.shared.to_share.pop_front();
    }
}

/// Tells the agent of a task, or of the bundle that begins with it.
fn notify(state: &mut State, effects: &mut impl Effects, first: TaskId, message: &ToAgent) {
    let is_told = effects.to_agent(message);
    let mut is_stored = true;
    for id in state.shared.named(first) {
        let Some(open) = state.shared.open.get_mut(&id) else { continue };
        open.is_told |= is_told;
        is_stored &= open.is_stored;
        if open.withdrawn.is_some() {
            exports::report_withdrawn(state, effects, id);
        }
    }
    if is_told && !is_stored {
        state.shared.on_the_way.insert(first);
    }
}

/// Notes that the engine has a task, or the bundle that begins with it: it is accepted.
pub fn on_stored(state: &mut State, effects: &mut impl Effects, first: TaskId) {
    state.shared.on_the_way.remove(&first);
    let stored = state.shared.named(first);
    for id in &stored {
        state.shared.open.get_mut(id).into_iter().for_each(|open| open.is_stored = true);
    }
    acknowledge(state, effects, &stored);
}

/// Answers the submissions that are not answered yet: their tasks are in the journal, and the next head goes on with them.
pub(crate) fn acknowledge_all(state: &mut State, effects: &mut impl Effects) {
    let open: Vec<_> = state.shared.open.keys().collect();
    acknowledge(state, effects, &open);
}

/// Notes that the engine has not answered the submissions of these tasks, and of the bundles that begin with them, for so long that nobody waits any longer:
/// they are in the journal, and go into their queues when the engine answers. Those behind them in line are answered too, and others take their places there.
pub fn on_unanswered(state: &mut State, effects: &mut impl Effects, firsts: &[TaskId]) {
    for first in firsts {
        state.shared.on_the_way.remove(first);
    }
    let waits = |(id, open): (TaskId, &Open)| open.unanswered.is_some().then_some(id);
    let unanswered: Vec<_> = state.shared.open.iter().filter_map(waits).collect();
    if let (Some(first), Some(last)) = (unanswered.first(), unanswered.last()) {
        let (tasks, which) = match unanswered.len() {
            1 => (format!("task {first}"), "which is accepted: it goes into its queue"),
            count => (format!("{count} tasks ({first} to {last})"), "which are accepted: they go into their queues"),
        };
        effects.log(format!("the engine has not answered the submission of {tasks}, {which} when it answers"));
    }
    acknowledge(state, effects, &unanswered);
    // Whatever becomes of the engine, none of them is refused any more.
    for id in &unanswered {
        state.shared.open.get_mut(id).into_iter().for_each(|open| open.is_told = true);
    }
}

/// Answers the submissions of these tasks that are not answered yet, in one go where the drivers' own numbers follow one another too.
fn acknowledge(state: &mut State, effects: &mut impl Effects, tasks: &[TaskId]) {
    let mut run: Option<(DriverId, Accepted)> = None;
    let mut tell = |(driver, accepted): (DriverId, Accepted)| effects.answer_later(driver, Ok(accepted));
    for &id in tasks {
        let unanswered = state.shared.open.get_mut(&id).and_then(|open| open.unanswered.take());
        let Some((driver, tag)) = unanswered else { continue };
        let follows = |accepted: &Accepted| {
            let count = u64::from(accepted.count);
            (accepted.first_tag + count, TaskId(accepted.first_task.0 + count)) == (tag, id)
        };
        match &mut run {
            Some((of, accepted)) if *of == driver && follows(accepted) => accepted.count += 1,
            _ => {
                let next = Accepted { first_tag: tag, first_task: id, count: 1, journaled: None };
                run.replace((driver, next)).into_iter().for_each(&mut tell);
            }
        }
    }
    run.into_iter().for_each(tell);
}

/// Notes which node has a task; none if it has let go of it.
pub fn on_claimed(state: &mut State, id: TaskId, claim: Option<ClaimedBy>) {
    if let Some(open) = state.shared.open.get_mut(&id) {
        (open.claim, open.is_taken_back) = (claim.map(Box::new), false);
    }
}

/// Notes which node has all of a bundle; none if its tasks go on by themselves from now on.
pub fn on_bundle_claimed(state: &mut State, first: TaskId, claim: Option<ClaimedBy>) {
    let shared = &mut state.shared;
    let Some(bundle) = shared.bundles.get_mut(&first) else { return };
    // What goes on by itself may be on its way back.
    if claim.is_some() {
        for id in (first.0..first.0 + u64::from(bundle.count)).map(TaskId) {
            shared.open.get_mut(&id).into_iter().for_each(|open| open.is_taken_back = false);
        }
    }
    bundle.claim = claim;
}

/// Returns who follows the output of a task that is in a queue and accepted: none inside if nobody does any more; none for every other task.
pub fn follower_in_queue(state: &State, id: TaskId) -> Option<Option<DriverId>> {
    let open = state.shared.open.get(&id)?;
    // Before it is accepted its driver knows it by no id.
    let task = state.tasks.get(id).filter(|_| open.unanswered.is_none())?;
    Some(task.driver.filter(|_| task.wants_output))
}

/// Notes that the engine has not taken a task, or the bundle that begins with it, and never will: it is refused, or if it was accepted with what it needs it
/// fails.
pub fn on_not_stored(state: &mut State, effects: &mut impl Effects, first: TaskId, refusal: Refusal, now: Now) {
    for id in state.shared.named(first) {
        let Some(open) = state.shared.open.get_mut(&id) else { continue };
        if refusal.code == RefusalCode::EngineUnreachable && open.unanswered.is_none() {
            // It was accepted while the engine was there and said nothing, and goes into its queue when it is back.
            state.shared.on_the_way.remove(&first);
            state.shared.to_share.push_back(id);
            continue;
        }
        if let Some((driver, tag)) = open.unanswered.take() {
            effects.answer_later(driver, Err((tag, refusal.clone())));
            if let Some(task) = state.tasks.get_mut(id) {
                task.driver = None;
            }
            submit::forget_key(state, id);
        }
        end(state, effects, id, 0, lifecycle::unstarted(refusal.clone().into(), now));
    }
}

/// Takes the end of a task that was in a queue.
pub fn on_shared_ended(state: &mut State, effects: &mut impl Effects, id: TaskId, end_bytes: &[u8], now: Now) {
    let decoded = SharedEnd::decode(end_bytes);
    if !state.shared.open.contains_key(&id) {
        if let Ok(SharedEnd { outcome: Outcome::Stored(stored), .. }) = decoded {
            state.follow_ups.push(FollowUp::ValueUnused(stored.name));
        }
        return;
    }
    acknowledge(state, effects, &[id]);
    let shared = decoded.unwrap_or_else(|error| {
        let failure = Failure::Result { message: format!("its end cannot be read: {error}") };
        SharedEnd::unbegun(failure, now.unix_nano)
    });
    if let (Some(task), Outcome::Returned(_) | Outcome::Stored(_), Some(started_unix_nano)) =
        (state.tasks.get(id), &shared.outcome, shared.started_unix_nano)
    {
        state.targets.run_time(task.target).observe(shared.ended_unix_nano.saturating_sub(started_unix_nano));
    }
    if let Some(task) = state.tasks.get_mut(id)
        && !shared.past.is_empty()
    {
        let past: &mut Past = task.past.get_or_insert_default();
        past.attempts = shared.past;
    }
    let ended = TaskEnd {
        outcome: shared.outcome,
        // Of the node that ran it.
        worker: shared.worker.map(|(worker, _)| worker),
        worker_pid: shared.worker.map(|(_, pid)| pid),
        started_unix_nano: shared.started_unix_nano,
        ended_unix_nano: shared.ended_unix_nano,
    };
    end(state, effects, id, shared.attempt, ended);
    if let Some(task) = state.tasks.get_mut(id).filter(|_| !shared.node_id.is_empty()) {
        task.note_node(&shared.node_id);
    }
}

/// Notes that a task in a queue has lost the nodes that ran it, which is its end with this outcome.
pub fn on_shared_lost(
    state: &mut State,
    effects: &mut impl Effects,
    id: TaskId,
    (attempt, lost): (u32, &[LostElsewhere]),
    outcome: Outcome,
    now: Now,
) {
    acknowledge(state, effects, &[id]);
    if state.shared.open.contains_key(&id)
        && let Some(task) = state.tasks.get(id)
    {
        let shared = state.shared.place.map(|place| ClusterTaskId { place, task: id });
        stand_in(effects, (id, task.job, shared), (lost, task.submitted_unix_nano), task.envelope());
    }
    let ended =
        TaskEnd { outcome, worker: None, worker_pid: None, started_unix_nano: None, ended_unix_nano: now.unix_nano };
    end(state, effects, id, attempt, ended);
}

fn end(state: &mut State, effects: &mut impl Effects, id: TaskId, attempt: u32, ended: TaskEnd) {
    let Some(task) = state.tasks.get_mut(id) else { return };
    let Some(was_in_bundle) = state.shared.close(id, task.job) else { return };
    // The engine has no argument of a task that went in a bundle.
    let has_values = !was_in_bundle || matches!(ended.outcome, Outcome::Stored(_) | Outcome::Failed(_));
    task.attempt = attempt;
    task.advance(id, Event::LetGo, &mut state.tally);
    lifecycle::end_task(state, effects, id, ended);
    if has_values {
        // What the agent is told follows what is in the journal.
        effects.to_agent(&ToAgent::Taken(id));
    }
}

/// Takes tasks of another node in. What cannot be run here fails at once.
pub fn on_import(state: &mut State, effects: &mut impl Effects, import: Import<'_>, now: Now) {
    state.shared.imports_seen += import.tasks.len() as u64;
    let Some(job) = state.shared.job else { return };
    let token: Arc<[u8]> = (&*import.token).into();
    import.tasks.iter().for_each(|task| take_in(state, effects, (&import, task), (&token, job), now));
}

fn take_in(
    state: &mut State,
    effects: &mut impl Effects,
    (import, imported): (&Import<'_>, &ImportedTask<'_>),
    (token, job): (&Arc<[u8]>, JobId),
    now: Now,
) {
    let shared_id = import.id_of(imported);
    if state.shared.imports_by_id.contains_key(&shared_id) {
        effects.log(format!("task {shared_id} came twice from the agent"));
        return drop_files(state, import, imported);
    }
    let of_arguments = import.problem.clone().map(|message| Failure::Arguments { message });
    let decoded = Envelope::decode(&imported.envelope);
    let of_envelope = || match &decoded {
        Ok(envelope) => check(state, envelope),
        Err(error) => Some(format!("this node cannot read the task: {error}")),
    };
    let problem = of_arguments.or_else(|| Some(Failure::Module { message: of_envelope()? }));
    // Of what cannot be read nothing is kept but that it failed.
    let placeholder = if problem.is_some() { placeholder() } else { Vec::new() };
    let (bytes, envelope) = match decoded {
        Ok(envelope) if problem.is_none() => (&*imported.envelope, envelope),
        _ => {
            drop_files(state, import, imported);
            let Ok(envelope) = Envelope::decode(&placeholder) else { return };
            (&*placeholder, envelope)
        }
    };
    let submitted_unix_nano = imported.submitted_unix_nano;
    let submission = Submission { driver: None, tag: 0, job, bytes, envelope, queued_unix_nano: submitted_unix_nano };
    let (mut task, _) = submit::new_task(state, submission, submitted_unix_nano);
    task.sharing = if state.shared.is_own(shared_id) { Sharing::OwnImport } else { Sharing::Import };
    state.shared.own_imports += usize::from(task.is_own_import());
    task.key = None;
    task.attempt = import.attempt.saturating_sub(1);
    if import.failures > 0 || import.crashes > 0 {
        task.past = Some(Box::new(Past { failures: import.failures, crashes: import.crashes, ..Past::default() }));
    }
    state.open_bytes += task.open_bytes();
    let id = state.tasks.insert(task);
    life::on_task(state, id);
    if problem.is_none() && !import.lost.is_empty() {
        let lost = (&*import.lost, submitted_unix_nano);
        let (last, are_written) = stand_in(effects, (id, job, Some(shared_id)), lost, &imported.envelope);
        // The attempt that follows has a link to it.
        if let Some(task) = state.tasks.get_mut(id) {
            task.past.get_or_insert_default().span = last;
        }
        if are_written {
            effects.to_agent(&ToAgent::StoodIn { id: shared_id, attempt: import.attempt });
        }
    }
    let imported = Imported {
        id: shared_id,
        token: token.clone(),
        first_attempt: import.attempt,
        end: None,
        is_given_back: false,
        is_superseded: false,
        failed: Vec::new(),
    };
    state.shared.imports.insert(id, imported);
    state.shared.imports_by_id.insert(shared_id, id);
    match problem {
        Some(failure) => lifecycle::end_task(state, effects, id, lifecycle::unstarted(failure, now)),
        // It was on its way when the stop began.
        None if state.stop.is_some() => {
            lifecycle::end_task(state, effects, id, lifecycle::unstarted(Failure::HeadStopped, now));
        }
        None => waiting::queue_or_hold(state, id),
    }
}

/// Writes the spans of attempts that were lost with their nodes, each with a link to the one before. None begins before the task was submitted, or ends before
/// it begins: their times come from the clocks of others. Returns the last, and whether all are written.
fn stand_in(
    effects: &mut impl Effects,
    (task, job, shared): (TaskId, JobId, Option<ClusterTaskId>),
    (lost, submitted_unix_nano): (&[LostElsewhere], u64),
    envelope: &[u8],
) -> (Option<SpanLink>, bool) {
    let (mut previous, mut are_written) = (None, true);
    for lost in lost {
        let since_unix_nano = lost.since_unix_nano.max(submitted_unix_nano);
        let until_unix_nano = lost.until_unix_nano.max(since_unix_nano);
        let lost = &LostElsewhere { since_unix_nano, until_unix_nano, ..lost.clone() };
        let span = effects.stand_in(&StandIn { task, job, shared, lost, previous, envelope });
        are_written &= span.is_some();
        previous = span.or(previous);
    }
    (previous, are_written)
}

/// Says what keeps the envelope of another node from being run here, if anything does. The agent takes no commands where none are run, but who has put this
/// one into the queue is not known; and it takes none that asks for what this head does not have.
fn check(state: &State, envelope: &Envelope<'_>) -> Option<String> {
    let takes_commands = state.settings.shared_commands;
    match &envelope.spec {
        TaskSpec::Function(FunctionSpec { actor: ActorRole::None, module, .. }) => {
            if tracer_core::module_name::is_path(module) {
                return Some(format!("this node takes no path of a library from a queue, such as `{module}`"));
            }
        }
        TaskSpec::Function(_) => return Some("this node takes no actors from queues".into()),
        TaskSpec::Command(_) if !takes_commands => {
            return Some("this node takes functions from queues, and no commands (--shared-commands)".into());
        }
        TaskSpec::Command(command) if !command.input.is_empty() => {
            return Some("the input of the command is a socket of its own node".into());
        }
        TaskSpec::Command(_) => {}
    }
    let has_local = envelope.submitter.is_some()
        || envelope.inputs.iter().any(|input| input.task().is_some())
        || envelope.module_version.is_some();
    if has_local || !envelope.policy.idempotency_key.is_empty() {
        return Some("the task refers to what only its own node knows".into());
    }
    resources::check(state, envelope.demand.num_cpus, &envelope.demand.resources).err()
}

/// Removes the files of the arguments of an import that makes no task. Where the agent knows a problem there are none, and whatever is named is another node's.
fn drop_files(state: &mut State, import: &Import<'_>, task: &ImportedTask<'_>) {
    if let (None, Ok(envelope)) = (&import.problem, Envelope::decode(&task.envelope)) {
        values::drop_files(state, &envelope);
    }
}

/// Returns the envelope of a task that could not be read.
fn placeholder() -> Vec<u8> {
    let spec = TaskSpec::Function(FunctionSpec::of_task("unknown", "unknown", &[0x90]));
    let envelope = Envelope::of(spec);
    let mut bytes = Vec::new();
    envelope.encode(&mut bytes);
    bytes
}

/// Ends an import, because its origin wants that.
pub fn on_stop_import(state: &mut State, effects: &mut impl Effects, id: ClusterTaskId, stop: Stop, now: Now) {
    if let Some(&task) = state.shared.imports_by_id.get(&id) {
        cancel::on_cancel(state, effects, task, stop.grace_ns, now);
    }
}

/// Ends an import that is another node's by now, or may be, as one that is cancelled.
pub fn on_superseded(state: &mut State, effects: &mut impl Effects, id: ClusterTaskId, now: Now) {
    let Some(&task) = state.shared.imports_by_id.get(&id) else { return };
    let Some(import) = state.shared.imports.get_mut(&task).filter(|import| import.end.is_none()) else { return };
    import.is_superseded = true;
    cancel::on_cancel(state, effects, task, None, now);
}

/// Notes that the ends of this many imports, which have ids in a row, are in their records, or count for nothing.
pub fn on_settled(state: &mut State, first: ClusterTaskId, count: u32) {
    for task in (first.task.0..first.task.0.saturating_add(count.into())).map(TaskId) {
        if let Some(task) = state.shared.imports_by_id.remove(&ClusterTaskId { task, ..first }) {
            state.shared.imports.remove(&task);
            values::on_settled(state, task);
        }
    }
}

/// Returns whether an end of an import is still to be settled, or a task waits for its acceptance.
pub fn has_unsettled(state: &State) -> bool {
    state.shared.imports.values().any(|import| import.end.is_some())
}

/// Gives tasks of queues back that wait here for a process that none will give them. Returns whether there were any.
pub(crate) fn give_back_waiting(state: &mut State, effects: &mut impl Effects, now: Now) -> bool {
    let is_import = |id: &TaskId| state.shared.imports.get(id).is_some_and(|import| import.end.is_none());
    let waiting: Vec<_> = state.queue.iter().filter(is_import).collect();
    let processes = Count(state.settings.max_processes, "worker process");
    let why = format!("all {processes} that there may be wait for other tasks");
    waiting.iter().for_each(|id| give_back(state, effects, *id, &why, now));
    !waiting.is_empty()
}

/// Gives an import back that no worker has, because those before it take longer than was expected.
pub fn on_give_back(state: &mut State, effects: &mut impl Effects, id: ClusterTaskId, now: Now) {
    let waits = |task: &TaskId| {
        let is_open = state.shared.imports.get(task).is_some_and(|import| import.end.is_none());
        is_open && state.tasks.get(*task).is_some_and(|task| matches!(task.progress(), Progress::Waiting))
    };
    if let Some(task) = state.shared.imports_by_id.get(&id).copied().filter(waits) {
        give_back(state, effects, task, "what is before it takes longer than was expected", now);
    }
}

fn give_back(state: &mut State, effects: &mut impl Effects, id: TaskId, why: &str, now: Now) {
    if let Some(import) = state.shared.imports.get_mut(&id) {
        import.is_given_back = true;
    }
    waiting::take_out(state, id);
    let message = format!("it is given back to its queue: {why}");
    lifecycle::end_task(state, effects, id, lifecycle::unstarted(Failure::NoWorker { message }, now));
}

/// Returns how many tasks of this head are in queues, and how many of other nodes it runs.
pub fn shared_counts(state: &State) -> (usize, usize) {
    let running = |id: &TaskId| {
        let task = state.tasks.get(*id);
        task.is_some_and(|task| !matches!(task.progress(), Progress::Ended(_)))
    };
    (state.shared.open.len(), state.shared.imports.keys().filter(running).count())
}

#[cfg(test)]
#[path = "sharing_tests.rs"]
mod tests;
