//! Results as arguments: a part of the [reactor](super::reactor).
//!
//! A task whose arguments are results of other tasks is *held* until those have ended. If one of them fails, the task fails without having been
//! begun, and so do those that hang on it in turn. Ids are given out in order and a task can only name those that were given out
//! before its own, so there are no cycles.

use std::collections::HashSet;

use super::actors::{self, Part};
use super::progress::Event;
use super::reactor::{Effects, end_task, keep_no_longer, unstarted};
use super::state::{Links, Now, Progress, State};
use super::table::TaskTable;
use tracer_core::codec::Put;
use tracer_core::task::{Envelope, Failure, Input, InputSource, Outcome, TaskId};
use tracer_ipc::protocol::{LEASED_FILE, LEASED_VALUE};
use tracer_ipc::stored::Stored;

fn inputs_of(state: &State, id: TaskId) -> Vec<Input> {
    let links = state.tasks.get(id).and_then(|task| task.links.as_ref());
    links.map(|links| links.inputs.clone()).unwrap_or_default()
}

fn links_mut(state: &mut State, id: TaskId) -> Option<&mut Links> {
    state.tasks.get_mut(id).map(|task| &mut **task.links.get_or_insert_default())
}

/// Results that are arguments of this task are remembered until it has ended.
pub(super) fn pin(state: &mut State, id: TaskId) {
    for input in inputs_of(state, id).iter().filter_map(Input::task).filter(|&input| input < id) {
        if let Some(links) = links_mut(state, input) {
            links.pins += 1;
        }
    }
}

/// The task has ended.
pub(super) fn unpin(state: &mut State, id: TaskId) {
    // An actor that is made again is given the same again.
    if actors::keeps_inputs(state, id) {
        return;
    }
    for input in inputs_of(state, id).iter().filter_map(Input::task).filter(|&input| input < id) {
        if let Some(links) = links_mut(state, input) {
            links.pins = links.pins.saturating_sub(1);
        }
        keep_no_longer(state, input);
        drop_if_forgotten(state, input);
    }
}

/// An actor is dead: what its creation was given is not needed any more.
pub(super) fn release(state: &mut State, id: TaskId) {
    unpin(state, id);
    remove_stored(state, id);
}

/// The files of its arguments go.
fn remove_stored(state: &mut State, id: TaskId) {
    for input in inputs_of(state, id) {
        if let InputSource::Stored(stored) = input.source {
            state.values_to_remove.push(stored.name);
        }
    }
}

/// The files of the arguments of a submission go that makes no task.
pub(super) fn drop_files(state: &mut State, envelope: &Envelope<'_>) {
    for input in &envelope.inputs {
        if let InputSource::Stored(stored) = &input.source {
            state.values_to_remove.push(stored.name.clone());
        }
    }
}

/// Puts a task into the queue, or holds it until what it needs has ended. One whose arguments will not come fails with the next
/// [`fail_without_input`].
pub(super) fn queue_or_hold(state: &mut State, id: TaskId) {
    let mut open = 0;
    let mut failure = actors::line_up(state, id);
    for input in inputs_of(state, id).iter().filter_map(Input::task) {
        match state.tasks.get(input).filter(|_| input < id).map(|task| task.progress()) {
            None => failure = Some(Failure::InputForgotten { task: input }),
            Some(Progress::Ended(ended)) => {
                if let Outcome::Failed(cause) = &ended.outcome {
                    failure = Some(failed_input(state, input, cause));
                }
            }
            Some(_) => {
                open += 1;
                if let Some(links) = links_mut(state, input) {
                    links.dependants.push(id);
                }
            }
        }
    }
    let Some(task) = state.tasks.get_mut(id) else { return };
    if open == 0 && failure.is_none() {
        return actors::enqueue(state, id);
    }
    task.advance(id, Event::Held, &mut state.tally);
    if let Some(links) = &mut task.links {
        links.open_inputs = open;
    }
    state.without_input.extend(failure.map(|failure| (id, failure)));
}

fn failed_input(state: &State, id: TaskId, cause: &Failure) -> Failure {
    let target = state.tasks.get(id).map(|task| state.targets.name(task.target).to_owned()).unwrap_or_default();
    Failure::Input { task: id, target, cause: Box::new(cause.clone()) }
}

/// A task has ended: what was held for it may run, or will never.
pub(super) fn on_task_ended(state: &mut State, id: TaskId, outcome: &Outcome) {
    unpin(state, id);
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
            Some(failure) => state.without_input.push((dependant, failure)),
            None if links.open_inputs == 0 => actors::enqueue(state, dependant),
            None => {}
        }
    }
}

/// Fails the tasks whose arguments will not come, and those that hang on them.
pub(super) fn fail_without_input(state: &mut State, effects: &mut impl Effects, now: Now) {
    while let Some((id, failure)) = state.without_input.pop() {
        // It may have been cancelled, or have two arguments that will not come.
        if state.tasks.get(id).is_some_and(|task| matches!(task.progress(), Progress::Held)) {
            take_out(state, id);
            end_task(state, effects, id, unstarted(failure, now));
        }
    }
}

/// Takes a task out that no worker has, because it will end.
pub(super) fn take_out(state: &mut State, id: TaskId) {
    actors::dequeue(state, id);
    let Some(task) = state.tasks.get_mut(id) else { return };
    task.advance(id, Event::LetGo, &mut state.tally);
}

/// Takes all tasks out that no worker has.
pub(super) fn take_all(state: &mut State) -> Vec<TaskId> {
    let mut all: Vec<_> = std::mem::take(&mut state.queue).iter().collect();
    all.extend(actors::take_all(state));
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

/// What a lease says of the arguments that are results: for each its place and its value.
pub(super) fn values(tasks: &TaskTable, id: TaskId) -> Vec<u8> {
    let mut out = Vec::new();
    let links = tasks.get(id).and_then(|task| task.links.as_ref());
    for input in links.into_iter().flat_map(|links| &links.inputs) {
        let outcome = match &input.source {
            InputSource::Stored(stored) => {
                put_stored(&mut out, input.argument, stored);
                continue;
            }
            InputSource::Task(task) => tasks.get(*task).map(|task| task.progress()),
        };
        let Some(Progress::Ended(ended)) = outcome else { continue };
        match &ended.outcome {
            Outcome::Returned(value) => put_value(&mut out, input.argument, value),
            Outcome::Stored(stored) => put_stored(&mut out, input.argument, stored),
            // A command has no value; its result is the unit.
            Outcome::Completed | Outcome::Failed(_) => put_value(&mut out, input.argument, &[0xc0]),
        }
    }
    out
}

fn put_value(out: &mut Vec<u8>, argument: u32, value: &[u8]) {
    out.put_u32(argument);
    out.put_u8(LEASED_VALUE);
    out.put_bytes(value);
}

fn put_stored(out: &mut Vec<u8>, argument: u32, stored: &Stored) {
    out.put_u32(argument);
    out.put_u8(LEASED_FILE);
    stored.put(out);
}

/// A task has ended and is remembered: the files of its arguments go, and if its result has one, the oldest of those do that are too many.
pub(super) fn on_remembered(state: &mut State, id: TaskId) {
    if !actors::keeps_inputs(state, id) {
        remove_stored(state, id);
    }
    let Some(Progress::Ended(ended)) = state.tasks.get(id).map(|task| task.progress()) else { return };
    if let Outcome::Stored(stored) = &ended.outcome {
        state.stored_bytes += stored.bytes;
        state.stored.push_back(id);
    }
    drop_if_forgotten(state, id);
    for _ in 0..state.stored.len() {
        if state.stored_bytes <= state.stored_limit {
            break;
        }
        // The newest is not among the oldest that are too many, however large it is.
        let Some(oldest) = state.stored.pop_front().filter(|&oldest| oldest != id) else { break };
        if is_pinned(state, oldest) {
            state.stored.push_back(oldest);
        } else {
            drop_value(state, oldest);
        }
    }
}

/// Whether this task's result is to be an argument.
pub(super) fn is_pinned(state: &State, id: TaskId) -> bool {
    state.tasks.get(id).and_then(|task| task.links.as_ref()).is_some_and(|links| links.pins > 0)
}

/// Nobody can ask for this task's result any more, save for tasks that have it as an argument.
pub fn on_forget(state: &mut State, id: TaskId) {
    if let Some(links) = links_mut(state, id) {
        links.is_forgotten = true;
    }
    drop_if_forgotten(state, id);
}

fn drop_if_forgotten(state: &mut State, id: TaskId) {
    let links = state.tasks.get(id).and_then(|task| task.links.as_ref());
    if links.is_some_and(|links| links.is_forgotten && links.pins == 0) {
        drop_value(state, id);
    }
}

/// Removes the file of a result, and remembers how long it was.
fn drop_value(state: &mut State, id: TaskId) {
    if let Some(ended) = state.tasks.get_mut(id).and_then(|task| task.ended_mut())
        && let Outcome::Stored(stored) = &mut ended.outcome
    {
        let name = std::mem::take(&mut stored.name);
        let bytes = stored.bytes;
        state.ended_bytes -= name.len();
        note_removed(state, name, bytes);
    }
}

/// A task is forgotten, and with it its result.
pub(super) fn drop_outcome(state: &mut State, outcome: &Outcome) {
    if let Outcome::Stored(stored) = outcome {
        note_removed(state, stored.name.clone(), stored.bytes);
    }
}

fn note_removed(state: &mut State, name: String, bytes: u64) {
    if !name.is_empty() {
        state.stored_bytes -= bytes;
        state.values_to_remove.push(name);
    }
}

/// The files that a task knows.
pub fn files(state: &State) -> HashSet<String> {
    let mut files = HashSet::new();
    for (id, task) in state.tasks.iter_newest_first() {
        if let Progress::Ended(ended) = task.progress() {
            if let Outcome::Stored(stored) = &ended.outcome {
                files.insert(stored.name.clone());
            }
            if !actors::keeps_inputs(state, id) {
                continue;
            }
        }
        for input in task.links.iter().flat_map(|links| &links.inputs) {
            if let InputSource::Stored(stored) = &input.source {
                files.insert(stored.name.clone());
            }
        }
    }
    // What was removed.
    files.remove("");
    files
}

/// A task that can be begun now and that this one needs, itself included; none when all that it needs runs already.
pub(super) fn runnable(state: &State, id: TaskId) -> Option<TaskId> {
    /// So that a chain of whatever length holds up nobody.
    const LOOKS: usize = 4096;
    let mut to_look_at = vec![id];
    for _ in 0..LOOKS {
        let id = to_look_at.pop()?;
        let Some(task) = state.tasks.get(id) else { continue };
        match task.progress() {
            // Actors have processes of their own.
            Progress::Waiting if task.actor == Part::None => return Some(id),
            Progress::Waiting => {}
            Progress::Held => {
                let inputs = task.links.iter().flat_map(|links| &links.inputs);
                to_look_at.extend(inputs.filter_map(Input::task).filter(|&input| input < id));
            }
            Progress::Between | Progress::Retrying { .. } | Progress::Leased { .. } | Progress::Ended(_) => {}
        }
    }
    None
}
