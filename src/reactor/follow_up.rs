use crate::{
    cancel,
    effects::Effects,
    lifecycle,
    state::{State, now::Now, progress::Progress},
    waiting,
};

/// Fails the tasks whose arguments will not come, and those that hang on them.
pub(crate) fn fail_without_input(state: &mut State, effects: &mut impl Effects, now: Now) {
    while let Some((id, failure)) = state.without_input.pop() {
        // It may have been cancelled, or have two arguments that will not come.
        if state.tasks.get(id).is_some_and(|task| matches!(task.progress(), Progress::Held)) {
            waiting::take_out(state, id);
            lifecycle::end_task(state, effects, id, lifecycle::unstarted(failure, now));
        }
    }
}

/// Cancels what was submitted by tasks that did not get to their end.
pub(crate) fn cancel_abandoned(state: &mut State, effects: &mut impl Effects, now: Now) {
    while let Some(id) = state.abandoned.pop() {
        cancel::on_cancel(state, effects, id, None, now);
    }
}

/// Ends the actors of jobs that have ended.
pub(crate) fn end_with_jobs(state: &mut State, effects: &mut impl Effects, now: Now) {
    for job in std::mem::take(&mut state.actors.ended_jobs) {
        let goes_on = state.actors.open.contains_key(&job) || state.actors.connected.contains(&job);
        let bound = state.actors.bound.get(&job).filter(|_| !goes_on);
        for id in bound.cloned().unwrap_or_default() {
            cancel::end_actor(state, effects, id, "the job that had created it has ended", None, now);
        }
    }
}
