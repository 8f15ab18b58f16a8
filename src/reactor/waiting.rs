use crate::{
    state::{
        State,
        actor::{Actor, Life, Part},
        follow_ups::FollowUp,
        progress::{Event, Progress},
        task::{Sharing, Task},
    },
    values,
};
use tracer_core::ClusterTaskId;
use tracer_core::task::{Failure, Input, Outcome, RefusalCode, TaskId};

/// Puts a task into the queue, or holds it until what it needs has ended. One whose arguments will not come fails as a
/// [follow-up](FollowUp::InputFailed).
pub(crate) fn queue_or_hold(state: &mut State, id: TaskId) {
    let mut open = 0;
    let mut failure = line_up(state, id);
    for input in values::inputs_of(state, id).iter().filter_map(Input::task) {
        match state.tasks.get(input).filter(|_| input < id).map(|task| task.progress()) {
            None => failure = Some(Failure::InputForgotten { task: input }),
            Some(Progress::Ended(ended)) => {
                if let Outcome::Failed(cause) = &ended.outcome {
                    failure = Some(failed_input(state, input, cause));
                }
            }
            Some(_) => {
                open += 1;
                if let Some(links) = values::links_mut(state, input) {
                    links.dependants.push(id);
                }
            }
        }
    }
    let Some(task) = state.tasks.get_mut(id) else { return };
    if open == 0 && failure.is_none() {
        return enqueue(state, id);
    }
    task.advance(id, Event::Held, &mut state.tally);
    if let Some(links) = &mut task.links {
        links.open_inputs = open;
    }
    if let Some(failure) = failure {
        state.follow_ups.push(FollowUp::InputFailed(id, failure));
    }
}

fn failed_input(state: &State, id: TaskId, cause: &Failure) -> Failure {
    let target = state.tasks.get(id).map(|task| state.targets.name(task.target).to_owned()).unwrap_or_default();
    Failure::Input { task: id, target, cause: Box::new(cause.clone()) }
}

/// Notes that a task has ended: what was held for it may run, or will never.
pub(crate) fn release_dependants(state: &mut State, id: TaskId, outcome: &Outcome) {
    values::unpin(state, id);
    let dependants = state.tasks.get_mut(id).and_then(|task| task.links.as_mut());
    for dependant in dependants.map(|links| std::mem::take(&mut links.dependants)).unwrap_or_default() {
        let failure = match outcome {
            Outcome::Failed(cause) => Some(failed_input(state, id, cause)),
            Outcome::Returned(_) | Outcome::Stored(_) | Outcome::Completed => None,
        };
        let Some(task) = state.tasks.get_mut(dependant).filter(|task| matches!(task.progress(), Progress::Held)) else {
            continue;
        };
        let Some(links) = &mut task.links else { continue };
        links.open_inputs -= 1;
        match failure {
            Some(failure) => state.follow_ups.push(FollowUp::InputFailed(dependant, failure)),
            None if links.open_inputs == 0 => enqueue(state, dependant),
            None => {}
        }
    }
}

/// Takes a task out that no worker has, because it will end.
pub(crate) fn take_out(state: &mut State, id: TaskId) {
    dequeue(state, id);
    let Some(task) = state.tasks.get_mut(id) else { return };
    task.advance(id, Event::LetGo, &mut state.tally);
}

/// Takes all tasks out that no worker has.
pub(crate) fn take_all(state: &mut State) -> Vec<TaskId> {
    let mut all: Vec<_> = std::mem::take(&mut state.queue).iter().collect();
    all.extend(take_all_of_actors(state));
    all.extend(state.tally.retrying().iter().map(|&(_, id)| id));
    for &id in &all {
        if let Some(task) = state.tasks.get_mut(id) {
            task.advance(id, Event::LetGo, &mut state.tally);
        }
    }
    if state.tally.held() > 0 {
        let is_held = |progress: &Progress| matches!(progress, Progress::Held);
        let held = state.tasks.iter_newest_first().filter(|(_, task)| is_held(task.progress())).map(|(id, _)| id);
        let held: Vec<_> = held.collect();
        held.iter().for_each(|&id| take_out(state, id));
        all.extend(held);
    }
    all
}

/// Returns a task that can be begun now and that this one needs, itself included; none when all that it needs runs already. A task of a queue that this node
/// has taken can be begun under the id that it has here.
pub(crate) fn runnable(state: &State, id: TaskId) -> Option<TaskId> {
    needed(state, id, |id, task| match task.progress() {
        // Actors have processes of their own.
        Progress::Waiting => (task.actor == Part::None).then_some(id),
        Progress::Shared => {
            let id = ClusterTaskId { place: state.shared.place?, task: id };
            let import = *state.shared.imports_by_id.get(&id)?;
            matches!(state.tasks.get(import)?.progress(), Progress::Waiting).then_some(import)
        }
        _ => None,
    })
}

/// Returns the first of the tasks that this one needs, itself included, for which `look` returns something.
pub(crate) fn needed<T>(state: &State, id: TaskId, look: impl Fn(TaskId, &Task) -> Option<T>) -> Option<T> {
    /// So that a chain of whatever length holds up nobody.
    const LOOKS: usize = 4096;
    let mut to_look_at = vec![id];
    for _ in 0..LOOKS {
        let id = to_look_at.pop()?;
        let Some(task) = state.tasks.get(id) else { continue };
        if let Some(found) = look(id, task) {
            return Some(found);
        }
        if matches!(task.progress(), Progress::Held) {
            let inputs = task.links.iter().flat_map(|links| &links.inputs);
            to_look_at.extend(inputs.filter_map(Input::task).filter(|&input| input < id));
        }
    }
    None
}

/// Returns why a task cannot run, if its actor is dead or there is none. Else it gets its place in the line behind its actor, if it is a call.
pub(crate) fn line_up(state: &mut State, id: TaskId) -> Option<Failure> {
    let task = state.tasks.get(id)?;
    let has_priority = task.extra.priority != 0;
    match task.actor {
        Part::None => None,
        Part::Creation => match state.actors.get(id).map(Actor::life) {
            Some(Life::Dead(death)) => {
                Some(Failure::Refused { code: RefusalCode::NameTaken, message: death.cause.clone() })
            }
            _ => None,
        },
        Part::Call(actor_id) => match state.actors.get_mut(actor_id) {
            None => Some(Failure::ActorDied {
                actor: actor_id,
                target: Box::default(),
                cause: "there is none with this id, or it has been dead for so long that it is forgotten".into(),
                error_type: Box::default(),
                has_begun: false,
            }),
            Some(actor) => match actor.life() {
                Life::Dead(death) => Some(actor.died(actor_id, death, false)),
                Life::Pending | Life::Alive | Life::Restarting => {
                    actor.add_call(id);
                    if has_priority {
                        state.queue.note_priority_call(actor_id);
                    }
                    None
                }
            },
        },
    }
}

/// Notes that a task can be begun: it goes where it waits for that, or to the agent.
pub(crate) fn enqueue(state: &mut State, id: TaskId) {
    let Some(task) = state.tasks.get_mut(id) else { return };
    if task.sharing == Sharing::Submitted {
        task.advance(id, Event::Shared, &mut state.tally);
        return state.shared.open(id, task.job);
    }
    task.advance(id, Event::Queued, &mut state.tally);
    match task.actor {
        Part::None => state.queue.push_back(id, task),
        Part::Creation => state.actors.wait_for_worker(id),
        Part::Call(actor) => line_up_again(state, actor, id),
    }
}

/// Queues a task before all others of its kind, as [`enqueue`] otherwise.
pub(crate) fn enqueue_first(state: &mut State, id: TaskId) {
    let Some(task) = state.tasks.get_mut(id) else { return };
    match task.actor {
        Part::None => {
            task.advance(id, Event::Queued, &mut state.tally);
            state.queue.push_front(id, task);
        }
        Part::Creation | Part::Call(_) => enqueue(state, id),
    }
}

/// Notes that an actor may be leased calls: some wait, or there is room for more. Once is enough for a turn.
pub(crate) fn note_ready(state: &mut State, id: TaskId) {
    if state.actors.get_mut(id).is_some_and(Actor::note_ready) {
        state.follow_ups.push(FollowUp::ActorReady(id));
    }
}

fn line_up_again(state: &mut State, actor_id: TaskId, id: TaskId) {
    let Some(failure) = line_up(state, id) else {
        return note_ready(state, actor_id);
    };
    // It died while the call was in its worker's hands.
    if let Some(task) = state.tasks.get_mut(id) {
        task.advance(id, Event::Held, &mut state.tally);
        state.follow_ups.push(FollowUp::InputFailed(id, failure));
    }
}

/// Takes out a task that waits or is held, and will end.
fn dequeue(state: &mut State, id: TaskId) {
    let Some(task) = state.tasks.get(id) else { return };
    match task.actor {
        Part::None => {
            if !matches!(task.progress(), Progress::Held) {
                state.queue.remove(id, task);
            }
        }
        Part::Creation => state.actors.end_wait_for_worker(id),
        Part::Call(actor) => {
            if let Some(actor) = state.actors.get_mut(actor) {
                actor.remove_call(id);
            }
        }
    }
}

/// Takes out every creation and every call that can be begun and that no worker has.
pub(crate) fn take_all_of_actors(state: &mut State) -> Vec<TaskId> {
    let waiting = state.actors.take_waiting_for_worker();
    let is_pending = |id: &TaskId| state.actors.get(*id).is_some_and(|actor| *actor.life() == Life::Pending);
    let mut all: Vec<_> = waiting.into_iter().filter(is_pending).collect();
    let waits = |id| state.tasks.get(id).is_some_and(|task| matches!(task.progress(), Progress::Waiting));
    for actor in state.actors.values_mut() {
        all.extend(actor.take_calls(waits));
    }
    all
}

#[cfg(test)]
#[path = "waiting_tests.rs"]
mod tests;
