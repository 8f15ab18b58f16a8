use crate::{
    actors::life,
    effects::Effects,
    lifecycle,
    state::{State, now::Now, worker::Ending},
    waiting,
};
use tracer_core::task::Failure;

/// Notes that the head is to stop: what waits fails, workers are asked to end, or killed.
pub fn on_stop(state: &mut State, effects: &mut impl Effects, force: bool, now: Now) {
    life::on_stop(state, effects);
    state.is_stopping = true;
    for task in waiting::take_all(state) {
        lifecycle::end_task(state, effects, task, lifecycle::unstarted(Failure::HeadStopped, now));
    }
    let workers: Vec<_> = state.workers.keys().collect();
    for worker_id in workers {
        let mut worker = state.workers.get_mut(&worker_id).expect("its id was just read");
        worker.end(Ending::Stopped);
        // What it has not begun, it shall not begin.
        let unclaimed: Vec<_> =
            worker.leases.iter().map(|grant| grant.number).filter(|&lease| effects.revoke(worker_id, lease)).collect();
        drop(worker);
        for lease in unclaimed {
            lifecycle::end_unbegun(state, effects, worker_id, lease, Failure::HeadStopped, now);
        }
        if force {
            effects.kill(worker_id);
        } else {
            effects.ask_to_end(worker_id);
        }
    }
}

/// Notes that the grace period is over.
pub fn on_stop_overdue(state: &mut State, effects: &mut impl Effects) {
    state.workers.keys().for_each(|worker| effects.kill(worker));
}

#[cfg(test)]
#[path = "shutdown_tests.rs"]
mod tests;
