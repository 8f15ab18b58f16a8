use std::collections::{BTreeMap, BTreeSet};

use crate::{
    effects::Effects,
    loss::LostAttempt,
    state::{
        State, Unfinished,
        actor::{self, Actor, Death, Life, Part},
        follow_ups::FollowUp,
        progress::{Event, Progress, TaskEnd},
        worker::Grant,
    },
    values, waiting,
};
use tracer_core::task::{Envelope, Failure, FunctionSpec, JobId, Outcome, SpanLink, TaskId, TaskSpec, WorkerId};
use tracer_ipc::protocol::ActorMethods;

/// Returns the living actor that a creation asks for by name, if it takes one that is there.
pub(crate) fn find_existing(state: &State, envelope: &Envelope<'_>) -> Option<TaskId> {
    let (function, options) = actor::options_of(envelope).filter(|(_, options)| options.or_existing)?;
    let id = state.actors.named(options.name)?;
    let actor = state.actors.get(id)?;
    (*actor.module == *function.module && *actor.type_name == *actor::type_of(function.function)).then_some(id)
}

/// Notes that a task was taken in: if it makes an actor, that begins here.
pub(crate) fn on_task(state: &mut State, id: TaskId) {
    let Some(task) = state.tasks.get(id) else { return };
    let job = task.job;
    state.actors.begin_task(job);
    if task.actor != Part::Creation {
        return;
    }
    let Ok(envelope) = Envelope::decode(task.envelope()) else { return };
    let Some((function, options)) = actor::options_of(&envelope) else { return };
    let mut actor = Actor::new((function, options), job, task.submitted_unix_nano, task.envelope());
    if let Some(first) = state.actors.named(options.name) {
        let other = state
            .actors
            .get(first)
            .map(|first| TaskSpec::Function(FunctionSpec::of_task(&first.module, &first.type_name, &[])).target());
        let other = other.unwrap_or_default();
        // It never had the name.
        actor.name = Box::default();
        actor.die(Death::of(format!("actor {first} ({other}) has the name `{}`", options.name)));
    }
    state.actors.insert(id, actor);
}

/// Returns whether a lease of this task is to make an actor again: its creation has ended.
pub(crate) fn is_restart(state: &State, id: TaskId) -> bool {
    state.tasks.get(id).is_some_and(|task| matches!(task.progress(), Progress::Ended(_)))
}

/// Returns the number of times that an attempt of a call or a creation may follow one that was lost; none for what is as its policy says.
pub(crate) fn crash_limit(state: &State, id: TaskId) -> Option<u32> {
    match state.tasks.get(id)?.actor {
        Part::None => None,
        Part::Creation => {
            let ends = state.stop.is_some() && ends_with_head(state, id);
            state.actors.get(id).filter(|actor| ends || actor.is_dead()).map(|_| 0)
        }
        Part::Call(actor) => Some(match state.actors.get(actor) {
            Some(actor) if *actor.life() == Life::Alive && !may_restart(state, actor) => 0,
            Some(actor) if !actor.is_dead() => actor.max_call_retries,
            Some(_) | None => 0,
        }),
    }
}

fn may_restart(state: &State, actor: &Actor) -> bool {
    let is_left = match state.stop {
        None => true,
        Some(Unfinished::Kept) => actor.is_detached,
        Some(Unfinished::Discarded) => false,
    };
    actor.may_restart() && is_left
}

/// Returns whether a task makes an actor that is not there under the next head: its job is this head's.
pub(crate) fn ends_with_head(state: &State, id: TaskId) -> bool {
    state.actors.get(id).is_some_and(|actor| *actor.life() == Life::Pending && !actor.is_detached)
}

/// Notes that the worker of an actor has made it, and says which of its methods run beside each other.
pub fn on_methods(state: &mut State, worker: WorkerId, methods: &ActorMethods) {
    let Some(actor) = state.actors.get_mut(methods.actor).filter(|actor| actor.worker() == Some(worker)) else {
        return;
    };
    let concurrent = methods.concurrent.iter().map(|method| state.targets.index(method)).collect();
    actor.set_methods(concurrent, methods.max_concurrency as usize);
}

/// Notes that a task has ended, and nobody was told yet.
pub(crate) fn on_task_ended(state: &mut State, effects: &mut impl Effects, id: TaskId, outcome: &Outcome) {
    let Some(task) = state.tasks.get(id) else { return };
    let job = task.job;
    let is_creation = task.actor == Part::Creation;
    if state.actors.end_task(job) {
        state.follow_ups.push(FollowUp::JobGone(job));
    }
    if !is_creation {
        return;
    }
    match outcome {
        Outcome::Failed(failure) => {
            let death = Death::of(failed_to_begin(failure));
            set_free(state, id);
            die(state, effects, id, death);
        }
        Outcome::Returned(_) | Outcome::Stored(_) | Outcome::Completed => begin_life(state, id),
    }
}

fn failed_to_begin(failure: &Failure) -> String {
    match failure {
        Failure::Refused { message, .. } => message.clone(),
        failure => format!("its `new` failed: {failure}"),
    }
}

fn begin_life(state: &mut State, id: TaskId) {
    if state.actors.get_mut(id).is_some_and(Actor::live) {
        waiting::note_ready(state, id);
    }
}

/// Notes the span of the attempt that has made an actor.
pub(crate) fn on_span(state: &mut State, id: TaskId, span: SpanLink) {
    if let Some(actor) = state.actors.get_mut(id) {
        actor.set_span(span);
    }
}

/// Takes its worker from an actor; it goes back to the others if it lives.
fn set_free(state: &mut State, id: TaskId) {
    let Some(worker_id) = state.actors.get_mut(id).and_then(Actor::take_worker) else { return };
    if let Some(mut worker) = state.workers.get_mut(&worker_id).filter(|worker| worker.actor == Some(id)) {
        worker.actor = None;
    }
}

/// Puts a creation that was leased back to those that wait: the first one, or, when that has ended, one that is to make the actor again.
pub(crate) fn put_back(state: &mut State, id: TaskId) {
    set_free(state, id);
    let Some(actor) = state.actors.get_mut(id) else { return };
    actor.give_back_attempt();
    if *actor.life() == Life::Restarting {
        state.actors.wait_for_worker(id);
    }
}

/// Notes that an actor was to be made again, and that has ended.
pub(crate) fn on_restart_result(state: &mut State, effects: &mut impl Effects, id: TaskId, outcome: &Outcome) {
    match outcome {
        Outcome::Failed(failure) => {
            let death = Death::of(format!("it was to begin again, and {}", failed_to_begin(failure)));
            set_free(state, id);
            die(state, effects, id, death);
        }
        Outcome::Returned(_) | Outcome::Stored(_) | Outcome::Completed => begin_life(state, id),
    }
}

/// Returns what is needed to make the span of a further creation that was lost before it had one.
pub(crate) fn lost_restart(state: &State, grant: &Grant) -> Option<LostAttempt> {
    let actor = state.actors.get(grant.task)?;
    Some(LostAttempt {
        task: grant.task,
        attempt: actor.attempt(),
        job: actor.job,
        submitted_unix_nano: actor.submitted_unix_nano,
        granted_unix_nano: grant.granted.unix_nano,
        previous: actor.span(),
        envelope: actor.envelope.clone(),
    })
}

/// Returns what a call fails with that was going on when its actor's worker was lost.
pub(crate) fn why_lost(state: &State, call: TaskId, cause: &str, error_type: &str) -> Option<Failure> {
    let Part::Call(id) = state.tasks.get(call)?.actor else { return None };
    let death = Death { cause: cause.into(), error_type: error_type.into() };
    let actor = state.actors.get(id)?;
    Some(match actor.life() {
        Life::Dead(death) => actor.died(id, death, true),
        Life::Pending | Life::Alive | Life::Restarting => actor.died(id, &death, true),
    })
}

/// Notes that the worker of an actor is gone, and what it ran is charged. `had_begun` says whether its creation had begun in it.
pub(crate) fn on_worker_lost(
    state: &mut State,
    effects: &mut impl Effects,
    id: TaskId,
    (cause, error_type): (String, String),
    had_begun: bool,
) {
    let Some(actor) = state.actors.get_mut(id) else { return };
    actor.take_worker();
    match actor.life() {
        // The creation has gone back or is charged like any task.
        Life::Pending | Life::Dead(_) => return,
        Life::Restarting if !had_begun => return,
        Life::Alive | Life::Restarting => {}
    }
    let death = Death { cause, error_type };
    match state.actors.get(id).filter(|actor| may_restart(state, actor)) {
        // The next head makes it again.
        Some(_) if state.stop.is_some() => {}
        Some(_) => begin_again(state, effects, id, &death),
        None => die(state, effects, id, death),
    }
}

fn begin_again(state: &mut State, effects: &mut impl Effects, id: TaskId, death: &Death) {
    let Some(actor) = state.actors.get_mut(id) else { return };
    let left = actor.begin_again();
    effects.journal_actor(id, actor.attempt(), actor.restarts(), None);
    effects.log(format!("actor {id} ({}) is made again, {left} more times at most: {}", actor.target(), death.cause));
    state.actors.wait_for_worker(id);
}

/// Notes that an actor is dead from now on: its name is free, and what waits for it fails with the next turn.
pub(crate) fn die(state: &mut State, effects: &mut impl Effects, id: TaskId, death: Death) {
    let Some(actor) = state.actors.get_mut(id).filter(|actor| !actor.is_dead()) else { return };
    let kept_inputs = actor.has_lived();
    effects.log(format!("actor {id} ({}) is dead: {}", actor.target(), death.cause));
    if kept_inputs {
        effects.journal_actor(id, actor.attempt(), actor.restarts(), Some(&death));
    }
    let calls = end_life(state, id, death);
    state.follow_ups.push(FollowUp::ActorDied(id));
    for call in calls {
        let failure = waiting::line_up(state, call);
        let Some(task) = state.tasks.get_mut(call) else { continue };
        if matches!(task.progress(), Progress::Waiting) {
            task.advance(call, Event::Held, &mut state.tally);
        }
        if let Some(failure) = failure {
            state.follow_ups.push(FollowUp::InputFailed(call, failure));
        }
    }
    if kept_inputs {
        values::release(state, id);
    }
}

fn end_life(state: &mut State, id: TaskId, death: Death) -> BTreeSet<TaskId> {
    let Some(actor) = state.actors.get_mut(id) else { return BTreeSet::new() };
    let calls = actor.die(death);
    state.actors.bury(id);
    state.history.keep_no_longer(id);
    calls
}

/// Notes that a driver has connected, and this is its job.
pub fn on_driver(state: &mut State, job: JobId) {
    state.actors.connect(job);
}

/// Notes that the driver of a job is gone.
pub fn on_driver_gone(state: &mut State, job: JobId) {
    if state.actors.disconnect(job) {
        state.follow_ups.push(FollowUp::JobGone(job));
    }
}

/// Fails what waits: no worker is left, and none will be started.
pub(crate) fn fail_all(state: &mut State, effects: &mut impl Effects, message: &str) {
    for id in state.actors.take_waiting_for_worker() {
        if is_restart(state, id) {
            die(state, effects, id, Death::of(format!("no worker can run it: {message}")));
        } else {
            state.actors.wait_for_worker(id);
        }
    }
}

/// Notes that the head stops: no actor is there afterwards but those that the next head makes again.
pub(crate) fn on_stop(state: &mut State, effects: &mut impl Effects) {
    for id in state.actors.ids() {
        if state.actors.get(id).is_some_and(|actor| actor.has_lived() && !may_restart(state, actor)) {
            die(state, effects, id, Death::of("the head was stopped"));
        }
    }
}

/// Reads back an actor's record in the journal.
pub fn on_restored_actor(state: &mut State, id: TaskId, attempt: u32, restarts: u32, death: Option<Death>) {
    let Some(actor) = state.actors.get_mut(id) else { return };
    actor.restore(attempt, restarts);
    if let Some(death) = death {
        end_life(state, id, death);
    }
}

/// Reads back the end of a creation.
pub(crate) fn on_restored_end(state: &mut State, id: TaskId, attempt: u32, ended: &TaskEnd) {
    let Some(actor) = state.actors.get_mut(id) else { return };
    match &ended.outcome {
        Outcome::Failed(failure) => {
            let death = Death::of(failed_to_begin(failure));
            end_life(state, id, death);
        }
        Outcome::Returned(_) | Outcome::Stored(_) | Outcome::Completed => {
            if actor.live() {
                actor.count_attempt(attempt);
            }
        }
    }
}

const JOB_GONE: &str = "the head died, and the job that had created it is gone";

/// Ends the restore. Actors that lived have lost their worker with the head; the detached ones begin again as often as they may.
pub(crate) fn on_restored(state: &mut State, effects: &mut impl Effects, claimed: impl Fn(TaskId) -> Option<u32>) {
    state.actors.set_open_tasks(open_tasks(state));
    for id in state.actors.ids() {
        let Some(actor) = state.actors.get_mut(id) else { continue };
        // What the dead head's workers had claimed of further creations counts.
        actor.count_attempt(claimed(id).unwrap_or(0));
        let death = Death::of("the head died, and its worker with it");
        let may_restart = actor.may_restart();
        match (actor.life(), actor.is_detached) {
            (Life::Dead(_), _) | (Life::Pending, true) => {}
            // It fails with the next turn.
            (Life::Pending, false) => drop(end_life(state, id, Death::of(JOB_GONE))),
            (Life::Alive | Life::Restarting, true) if may_restart => {
                begin_again(state, effects, id, &death);
            }
            (Life::Alive | Life::Restarting, true) => die(state, effects, id, death),
            (Life::Alive | Life::Restarting, false) => {
                die(state, effects, id, Death::of(JOB_GONE));
            }
        }
    }
}

/// Returns the number of tasks of each job have not ended.
pub(crate) fn open_tasks(state: &State) -> BTreeMap<JobId, usize> {
    let mut open = BTreeMap::new();
    for (_, task) in state.tasks.iter_newest_first().filter(|(_, task)| !matches!(task.progress(), Progress::Ended(_)))
    {
        *open.entry(task.job).or_default() += 1;
    }
    open
}

#[cfg(test)]
#[path = "life_tests.rs"]
mod tests;
