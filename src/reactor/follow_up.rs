//! Follow-ups of ends: the one loop that does what was noted, and what follows from that in turn.

use crate::actors::place;
use crate::cancel;
use crate::effects::Effects;
use crate::lifecycle;
use crate::state::State;
use crate::state::follow_ups::FollowUp;
use crate::state::now::Now;
use crate::state::progress::Progress;
use crate::waiting;
use tracer_core::task::{Failure, JobId, TaskId};

/// Does everything that follows from what has happened since the turn before.
pub(crate) fn follow_up(state: &mut State, effects: &mut impl Effects, now: Now) {
    let mut put_off = Vec::new();
    while let Some(next) = state.follow_ups.pop() {
        match next {
            FollowUp::InputFailed(task, failure) => fail_held(state, effects, task, failure, now),
            FollowUp::Abandoned(task) => drop(cancel::on_cancel(state, effects, task, None, now)),
            FollowUp::JobGone(job) => end_actors(state, effects, job, now),
            FollowUp::ValueUnused(name) => effects.give_up_value(name),
            FollowUp::ActorDied(actor) => {
                if let Some(actor) = state.actors.get_mut(actor) {
                    actor.died_unix_nano = Some(now.unix_nano);
                }
            }
            FollowUp::ActorReady(_) if state.stop.is_some() => {}
            FollowUp::ActorReady(actor) => {
                if !place::serve(state, effects, actor, now) {
                    put_off.push(actor);
                }
            }
        }
    }
    put_off.into_iter().for_each(|actor| waiting::note_ready(state, actor));
}

/// Fails a task that is held, if it still is: it may have been cancelled, or have two arguments that will not come.
fn fail_held(state: &mut State, effects: &mut impl Effects, id: TaskId, failure: Failure, now: Now) {
    if state.tasks.get(id).is_some_and(|task| matches!(task.progress(), Progress::Held)) {
        waiting::take_out(state, id);
        lifecycle::end_task(state, effects, id, lifecycle::unstarted(failure, now));
    }
}

/// Ends the actors of a job, unless it goes on.
fn end_actors(state: &mut State, effects: &mut impl Effects, job: JobId, now: Now) {
    for id in state.actors.left_by(job) {
        cancel::end_actor(state, effects, id, "the job that had created it has ended", None, now);
    }
}

#[cfg(test)]
#[path = "follow_up_tests.rs"]
mod tests;
