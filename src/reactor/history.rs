use crate::{
    state::{
        State,
        actor::Part,
        progress::{Event, TaskEnd},
        task::Task,
    },
    values,
};
use tracer_core::task::{Outcome, TaskId};

/// Ended tasks that are remembered.
pub const HISTORY_LIMIT: usize = 10_000;

/// Keeps an outcome, as long as there is room for it.
pub(crate) fn remember_end(state: &mut State, id: TaskId, ended: TaskEnd) {
    let Some(task) = state.tasks.get_mut(id) else { return };
    state.open_bytes -= task.open_bytes();
    task.forget_envelope();
    if task.traces_runtime {
        state.runtime_since.remove(&id);
    }
    state.history.push(id, ended.size());
    task.advance(id, Event::Ended(Box::new(ended)), &mut state.tally);
    values::on_remembered(state, id);
    while state.history.exceeds(HISTORY_LIMIT, state.settings.history_bytes_limit) {
        let Some(oldest_id) = state.history.pop_oldest() else { break };
        // Those whose results are still to be arguments are kept, however many they are.
        if values::is_pinned(state, oldest_id) || state.actors.is_living(oldest_id) {
            state.history.keep(oldest_id);
            continue;
        }
        forget(state, oldest_id);
    }
}

/// Forgets an ended task, with its key and the file of its result. The caller takes it out of the order of the ended.
pub(crate) fn forget(state: &mut State, id: TaskId) {
    let last_look = |task: &mut Task| {
        let end = task.end_mut().map(|end| (end.size(), std::mem::replace(&mut end.outcome, Outcome::Completed)));
        (task.key.take(), task.actor, end, task.is_own_import())
    };
    let Some((key, actor, end, is_own_import)) = state.tasks.remove(id, last_look) else { return };
    if let Some(key) = key {
        state.keys.remove(&*key);
    }
    if actor == Part::Creation {
        state.actors.forget(id);
    }
    if let Some((bytes, outcome)) = end {
        state.history.subtract(bytes);
        values::drop_outcome(state, &outcome);
    }
    match is_own_import {
        true => state.shared.own_imports -= 1,
        false => state.tally.forget(),
    }
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
