use std::collections::HashSet;

use crate::state::follow_ups::FollowUp;
use crate::state::{State, progress::Progress, table::TaskTable, task::Links};
use tracer_core::codec::Put;
use tracer_core::task::{Envelope, Input, InputSource, Outcome, TaskId};
use tracer_ipc::protocol::{LEASED_FILE, LEASED_VALUE};
use tracer_ipc::stored::Stored;

pub(crate) fn inputs_of(state: &State, id: TaskId) -> Vec<Input> {
    let links = state.tasks.get(id).and_then(|task| task.links.as_ref());
    links.map(|links| links.inputs.clone()).unwrap_or_default()
}

pub(crate) fn links_mut(state: &mut State, id: TaskId) -> Option<&mut Links> {
    state.tasks.get_mut(id).map(|task| &mut **task.links.get_or_insert_default())
}

/// Results that are arguments of this task are remembered until it has ended.
pub(crate) fn pin(state: &mut State, id: TaskId) {
    for input in inputs_of(state, id).iter().filter_map(Input::task).filter(|&input| input < id) {
        if let Some(links) = links_mut(state, input) {
            links.pins += 1;
        }
    }
}

/// Notes that the task has ended.
pub(crate) fn unpin(state: &mut State, id: TaskId) {
    // An actor that is made again is given the same again.
    if state.actors.keeps_inputs(id) {
        return;
    }
    for input in inputs_of(state, id).iter().filter_map(Input::task).filter(|&input| input < id) {
        if let Some(links) = links_mut(state, input) {
            links.pins = links.pins.saturating_sub(1);
        }
        state.history.keep_no_longer(input);
        drop_if_forgotten(state, input);
    }
}

/// Notes that an actor is dead: what its creation was given is not needed any more.
pub(crate) fn release(state: &mut State, id: TaskId) {
    unpin(state, id);
    remove_stored(state, id);
}

/// Keeps the result of an import, which the agent is to put into the engine.
pub(crate) fn keep_for_agent(state: &mut State, id: TaskId) {
    if let Some(links) = links_mut(state, id) {
        links.pins += 1;
    }
}

/// Notes that the agent does not need the result of an import any more.
pub(crate) fn on_settled(state: &mut State, id: TaskId) {
    let task = state.tasks.get(id).map(|task| task.progress());
    let is_kept = matches!(task, Some(Progress::Ended(ended)) if matches!(ended.outcome, Outcome::Stored(_)));
    if let Some(links) = is_kept.then(|| links_mut(state, id)).flatten() {
        links.pins = links.pins.saturating_sub(1);
        state.history.keep_no_longer(id);
        drop_if_forgotten(state, id);
    }
}

/// Removes the files of its arguments.
fn remove_stored(state: &mut State, id: TaskId) {
    for input in inputs_of(state, id) {
        if let InputSource::Stored(stored) = input.source {
            state.follow_ups.push(FollowUp::ValueUnused(stored.name));
        }
    }
}

/// Removes the files of the arguments of a submission that makes no task.
pub(crate) fn drop_files(state: &mut State, envelope: &Envelope<'_>) {
    for input in &envelope.inputs {
        if let InputSource::Stored(stored) = &input.source {
            state.follow_ups.push(FollowUp::ValueUnused(stored.name.clone()));
        }
    }
}

/// Returns what a lease says of the arguments that are results: for each its place and its value.
pub(crate) fn values(tasks: &TaskTable, id: TaskId) -> Vec<u8> {
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

/// Notes that a task has ended and is remembered: the files of its arguments go, and if its result has one, the oldest of those do that are too many.
pub(crate) fn on_remembered(state: &mut State, id: TaskId) {
    if !state.actors.keeps_inputs(id) {
        remove_stored(state, id);
    }
    let Some(Progress::Ended(ended)) = state.tasks.get(id).map(|task| task.progress()) else { return };
    if let Outcome::Stored(stored) = &ended.outcome {
        state.history.push_stored(id, stored.bytes);
    }
    drop_if_forgotten(state, id);
    for _ in 0..state.history.stored_len() {
        if state.history.stored_bytes() <= state.settings.stored_bytes_limit {
            break;
        }
        // The newest is not among the oldest that are too many, however large it is.
        let Some(oldest) = state.history.pop_stored().filter(|&oldest| oldest != id) else { break };
        if is_pinned(state, oldest) {
            state.history.put_back_stored(oldest);
        } else {
            drop_value(state, oldest);
        }
    }
}

/// Returns whether this task's result is to be an argument.
pub(crate) fn is_pinned(state: &State, id: TaskId) -> bool {
    state.tasks.get(id).and_then(|task| task.links.as_ref()).is_some_and(|links| links.pins > 0)
}

/// Notes that nobody can ask for this task's result any more, save for tasks that have it as an argument.
pub fn on_result_forgotten(state: &mut State, id: TaskId) {
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
    if let Some(ended) = state.tasks.get_mut(id).and_then(|task| task.end_mut())
        && let Outcome::Stored(stored) = &mut ended.outcome
    {
        let name = std::mem::take(&mut stored.name);
        let bytes = stored.bytes;
        state.history.subtract(name.len());
        note_removed(state, name, bytes);
    }
}

/// Notes that a task is forgotten, and with it its result.
pub(crate) fn drop_outcome(state: &mut State, outcome: &Outcome) {
    if let Outcome::Stored(stored) = outcome {
        note_removed(state, stored.name.clone(), stored.bytes);
    }
}

fn note_removed(state: &mut State, name: String, bytes: u64) {
    if !name.is_empty() {
        state.history.subtract_stored(bytes);
        state.follow_ups.push(FollowUp::ValueUnused(name));
    }
}

/// Returns the files that a task knows.
pub fn value_files(state: &State) -> HashSet<String> {
    let mut files = HashSet::new();
    for (id, task) in state.tasks.iter_newest_first() {
        if let Progress::Ended(ended) = task.progress() {
            if let Outcome::Stored(stored) = &ended.outcome {
                files.insert(stored.name.clone());
            }
            if !state.actors.keeps_inputs(id) {
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

#[cfg(test)]
#[path = "values_tests.rs"]
mod tests;
