//! Pruning: ended tasks that are old, or too many, are forgotten before the history is full.
//!
//! What is chosen follows from the state and the time alone. A task stays whose result an open task has as an argument, or whose actor lives.

use crate::{
    effects::Effects,
    history,
    state::{State, now::Now, progress::Progress},
    values,
};
use tracer_core::task::{Outcome, TaskId};
use tracer_ipc::protocol::{PruneReport, PruneWhich};

/// Ended tasks as pruning sees them: which of them go, and a count of all.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PruneChoice {
    /// Tasks to forget, the one first that ended first.
    pub tasks: Vec<TaskId>,
    /// All of them, counted.
    pub report: PruneReport,
}

/// Forgets the tasks that are [chosen](choose_pruned), and notes it in the journal.
pub fn on_prune(state: &mut State, effects: &mut impl Effects, which: &PruneWhich, now: Now) -> PruneReport {
    let PruneChoice { tasks, report } = choose_pruned(state, which, now);
    if !which.dry_run && !tasks.is_empty() {
        effects.journal_pruned(&tasks);
        forget_all(state, &tasks);
    }
    report
}

/// Chooses the ended tasks that go: the old ones, and of the others the oldest until the rest is few enough and small enough.
pub fn choose_pruned(state: &State, which: &PruneWhich, now: Now) -> PruneChoice {
    let mut ended: Vec<_> = state
        .history
        .iter()
        .filter_map(|id| {
            let Progress::Ended(ended) = state.tasks.get(id)?.progress() else { return None };
            let stored = match &ended.outcome {
                Outcome::Stored(stored) if !stored.name.is_empty() => stored.bytes,
                _ => 0,
            };
            let is_in_use = values::is_pinned(state, id) || state.actors.is_living(id);
            Some((ended.ended_unix_nano, id, ended.size() as u64 + stored, is_in_use))
        })
        .collect();
    ended.sort_unstable();
    let mut choice = PruneChoice::default();
    let report = &mut choice.report;
    (report.kept, report.kept_bytes) = (ended.len() as u64, ended.iter().map(|&(_, _, bytes, _)| bytes).sum());
    for (ended_unix_nano, id, bytes, is_in_use) in ended {
        // One that ended in the future, as clocks go, is new.
        let age_ns = now.unix_nano.saturating_sub(ended_unix_nano);
        let is_old = which.older_than_ns.is_some_and(|limit| age_ns > limit);
        let is_one_too_many = which.max_tasks.is_some_and(|most| report.kept > most);
        let is_too_much = which.max_bytes.is_some_and(|most| report.kept_bytes > most);
        if is_in_use {
            report.in_use += 1;
        } else if is_old || is_one_too_many || is_too_much {
            report.removed += 1;
            report.removed_bytes += bytes;
            report.kept -= 1;
            report.kept_bytes -= bytes;
            choice.tasks.push(id);
        }
    }
    choice
}

/// Reads back tasks that were pruned under a head before this one.
pub fn on_restored_prune(state: &mut State, tasks: &[TaskId]) {
    let has_ended = |id: &TaskId| {
        let is_ended = state.tasks.get(*id).is_some_and(|task| matches!(task.progress(), Progress::Ended(_)));
        is_ended && !values::is_pinned(state, *id) && !state.actors.is_living(*id)
    };
    let tasks: Vec<_> = tasks.iter().copied().filter(has_ended).collect();
    forget_all(state, &tasks);
}

fn forget_all(state: &mut State, tasks: &[TaskId]) {
    tasks.iter().for_each(|&id| history::forget(state, id));
    // Once for all of them, however many they are.
    state.history.retain(|id| state.tasks.get(id).is_some());
}

#[cfg(test)]
#[path = "prune_tests.rs"]
mod tests;
