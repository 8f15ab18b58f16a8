//! Versions of modules: a part of the [reactor](crate).
//!
//! A task says which version of its module it runs, and its worker loads that one. A library is never unloaded, so a worker that has loaded one
//! version keeps it, with its static data and its threads. Therefore workers are replaced: when a module is submitted in another version, those
//! that have the one before are given nothing more and end when they have run what they have. So is a worker that had to load two versions,
//! while tasks of both were open. Actors keep theirs.

use std::collections::HashSet;

use crate::{
    actors::listing,
    effects::Effects,
    state::{
        State,
        progress::Progress,
        worker::{Ending, WorkerPhase},
    },
};
use tracer_core::task::{ModuleVersion, TaskId};

/// Notes that a task was taken in. If it is of another version of its module than those before, workers that have one of those take no more tasks.
pub(crate) fn on_task(state: &mut State, id: TaskId) {
    let Some((index, job)) = state.tasks.get(id).and_then(|task| Some((state.targets.version(task.target)?, task.job)))
    else {
        return;
    };
    if !state.versions.on_task(index, job) {
        return;
    }
    let ids: Vec<_> = state.workers.keys().collect();
    for id in ids {
        if state.workers.get(&id).is_some_and(|worker| state.versions.has_other(worker, index))
            && let Some(mut worker) = state.workers.get_mut(&id)
        {
            state.versions.replace(id, &mut worker);
        }
    }
}

/// Ends workers that are to be replaced and have nothing to do.
pub(crate) fn end_outdated(state: &mut State, effects: &mut impl Effects) {
    if !state.versions.has_outdated() || state.stop.is_some() {
        return;
    }
    for id in state.versions.take_outdated() {
        let Some(mut worker) = state.workers.get_mut(&id) else { continue };
        if worker.actor.is_some() || worker.phase() == WorkerPhase::Stopping {
            continue;
        }
        let has_tasks = !(worker.leases.is_empty() && worker.inline.is_empty() && worker.waits.is_empty());
        if has_tasks || worker.ends_attempt() || worker.ending().is_some() {
            state.versions.put_back_outdated(id);
            continue;
        }
        worker.end(Ending::NotNeeded);
        drop(worker);
        effects.log(format!("worker {id} is replaced: a module that it has loaded is submitted in another version"));
        effects.ask_to_end(id);
    }
}

/// Returns the versions whose copies are to be kept: those of open tasks and living actors, and those that are submitted now. None when that is not
/// known of all tasks.
pub fn needed_versions(state: &State) -> Option<HashSet<ModuleVersion>> {
    if state.targets.is_full() {
        return None;
    }
    let open = state.tasks.iter_newest_first().filter(|(_, task)| !matches!(task.progress(), Progress::Ended(_)));
    let of_tasks = open.filter_map(|(_, task)| state.targets.version(task.target));
    let newest = state.versions.newest();
    let known = of_tasks.chain(newest).map(|index| state.versions.version(index));
    Some(known.chain(listing::versions(state)).collect())
}

#[cfg(test)]
#[path = "versions_tests.rs"]
mod tests;
