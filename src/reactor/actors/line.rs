use std::rc::Rc;

use crate::{
    effects::Effects,
    state::{State, actor::Life, progress::Progress, task::Task},
};
use tracer_core::task::{JobId, TaskId, WorkerId};
use tracer_ipc::spool::ClaimState;

/// Returns whether a call that runs waits for others, so that tasks may wait for each other in a cycle.
pub(crate) fn may_block(state: &State) -> bool {
    state.workers.of_actors() > 0 && state.workers.waiting_from(WorkerId(0)).any(|(_, worker)| worker.actor.is_some())
}

/// Returns the worker in which an actor, whose creation had ended, is being made again.
pub(crate) fn worker_that_makes_again(state: &State, id: TaskId) -> Option<WorkerId> {
    state.actors.get(id).filter(|actor| *actor.life() == Life::Restarting)?.worker()
}

/// The calls of an actor that come before one that has not begun.
pub(crate) struct Line {
    /// The creation, until it has ended.
    creation: Option<Rc<[TaskId]>>,
    /// Calls that run in the actor's worker.
    running: Rc<[TaskId]>,
    /// True if that runs alone.
    runs_alone: bool,
    /// The first that has not begun of those that run alone.
    first_alone: Option<LinePlace>,
    /// Number of the others that run at a time.
    max_concurrency: usize,
    /// Calls that are held, with their submitters.
    held: Vec<(TaskId, (Option<TaskId>, JobId))>,
}

/// A place in the order in which calls begin: what is leased comes before what is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LinePlace {
    Leased(u64),
    InLine(TaskId),
}

/// Returns the line of an actor; none if it is dead.
pub(crate) fn line(state: &State, effects: &impl Effects, id: TaskId) -> Option<Line> {
    let actor = state.actors.get(id).filter(|actor| !actor.is_dead())?;
    let runs_alone =
        |id: &TaskId| state.tasks.get(*id).is_some_and(|task| task.must_be_alone || !actor.is_concurrent(task.target));
    let worker = actor.worker().and_then(|worker_id| Some((worker_id, state.workers.get(&worker_id)?)));
    let leases =
        worker.into_iter().flat_map(|(worker_id, worker)| worker.leases.iter().map(move |grant| (worker_id, grant)));
    let (running, leased): (Vec<_>, Vec<_>) =
        leases.partition(|&(worker_id, grant)| effects.claim_state(worker_id, grant.number) == ClaimState::Claimed);
    let running: Rc<[TaskId]> = running.into_iter().map(|(_, grant)| grant.task).collect();
    let first_leased = leased.iter().find(|(_, grant)| runs_alone(&grant.task));
    let first_leased = first_leased.map(|(_, grant)| LinePlace::Leased(grant.number));
    let is_held = |id: &TaskId| state.tasks.get(*id).is_some_and(|task| matches!(task.progress(), Progress::Held));
    let first_in_line = || {
        let first = actor.calls().iter().copied().find(|id| !is_held(id) && runs_alone(id));
        first.map(LinePlace::InLine)
    };
    let held = actor.calls().iter().filter(|id| is_held(id)).filter_map(|&id| {
        let task = state.tasks.get(id)?;
        Some((id, (task.submitter, task.job)))
    });
    Some(Line {
        creation: (*actor.life() == Life::Pending).then(|| Rc::from([id])),
        runs_alone: running.iter().any(runs_alone),
        running,
        first_alone: first_leased.or_else(first_in_line),
        max_concurrency: actor.max_concurrency(),
        held: held.collect(),
    })
}

impl Line {
    /// Returns what has to end before this call, which has not begun, can: of each of these sets, so many.
    pub(crate) fn blockers(&self, state: &State, id: TaskId, task: &Task) -> Vec<(usize, Rc<[TaskId]>)> {
        if let Some(creation) = &self.creation {
            return vec![(1, Rc::clone(creation))];
        }
        let place = match task.progress() {
            Progress::Leased { worker } => {
                let lease = state.workers.get(worker).and_then(|worker| worker.lease_of(id));
                LinePlace::Leased(lease.unwrap_or_default())
            }
            _ => LinePlace::InLine(id),
        };
        let running = self.running.len();
        // One that runs alone waits for all that run, and those behind it wait for it.
        let is_behind = self.first_alone.is_some_and(|first| first <= place);
        let wanted = match self.runs_alone || is_behind {
            true => running,
            false => (running + 1).saturating_sub(self.max_concurrency.max(1)),
        };
        let mut blockers = Vec::new();
        if wanted > 0 {
            blockers.push((wanted, Rc::clone(&self.running)));
        }
        let submitter = (task.submitter, task.job);
        let held = self.held.iter().take_while(|&&(held, _)| held < id).filter(|(_, of)| *of == submitter);
        let held: Vec<_> = held.map(|&(held, _)| held).collect();
        if place == LinePlace::InLine(id) && !held.is_empty() {
            blockers.push((held.len(), held.into()));
        }
        blockers
    }
}

#[cfg(test)]
#[path = "line_tests.rs"]
mod tests;
