use crate::{
    actors::life,
    effects::Effects,
    lifecycle, nesting,
    state::{
        State,
        now::Now,
        progress::Event,
        worker::{Ending, Worker},
    },
    versions, waiting,
};
use tracer_core::task::{Failure, WorkerId};
use tracer_ipc::protocol::WorkerReady;

/// Starts the workers that are missing. Those that are to be replaced and have nothing to do end before.
pub fn start_missing_workers(state: &mut State, effects: &mut impl Effects, now: Now) {
    versions::end_outdated(state, effects);
    if state.stop.is_some() {
        return;
    }
    if state.starts.resume_if_due(now) {
        effects.log("workers are started again".into());
    }
    if !state.starts.may_be_tried(now) {
        return;
    }
    for _ in 0..nesting::missing_workers(state) {
        effects.start_worker(state.processes.give());
    }
}

/// Notes that a worker process was started.
pub fn on_worker_started(state: &mut State, worker: WorkerId, pid: u32, now: Now) {
    state.starts.note_started();
    state.workers.insert(worker, Worker::starting(pid, now));
}

/// Notes that a worker process could not be started at all. A head that has started goes on without it and tries again, because a full disk or a
/// limit that was reached says nothing about workers; one that has not, gives up soon.
pub fn on_worker_start_failed(state: &mut State, effects: &mut impl Effects, reason: &str, now: Now) {
    if state.starts.has_begun() {
        if state.starts.postpone(reason, now) {
            effects.log(format!("failed to start a worker, retrying every second: {reason}"));
        }
        return;
    }
    state.starts.note_refused();
    effects.log(format!("a worker could not be started: {reason}"));
    give_up_if_hopeless(state, effects, reason, now);
}

/// Notes that a worker's hook has run and it takes leases.
pub fn on_worker_ready(
    state: &mut State,
    effects: &mut impl Effects,
    worker_id: WorkerId,
    ready: WorkerReady,
    now: Now,
) {
    let Some(mut worker) = state.workers.get_mut(&worker_id) else { return };
    if let Some(reason) = &ready.hook_failure {
        let pid = worker.pid;
        effects.log(format!("the hook failed in worker {worker_id} (pid {pid}): {reason}"));
    }
    worker.tracing = ready.tracing;
    worker.hook_failure = ready.hook_failure;
    if state.settings.is_hook_required && worker.hook_failure.is_some() {
        worker.note_ending(Ending::HookFailed);
        effects.kill(worker_id);
        return;
    }
    worker.note_ready(now);
}

/// Ends the respawning when worker after worker dies before it is ready, and fails what waits for one.
pub(crate) fn give_up_if_hopeless(state: &mut State, effects: &mut impl Effects, reason: &str, now: Now) {
    let Some(what) = state.starts.hopeless() else { return };
    let hook = state.settings.hook.as_ref().filter(|_| state.is_hook_to_blame());
    let blame = hook.map(|hook| format!(" (hook `{hook}` runs in each)")).unwrap_or_default();
    let message = format!("{what}{blame}; the last one: {reason}");
    give_up(state, effects, message, now);
}

/// Starts no worker from now on: for good in a head that has not started, else for a while, which is longer each time.
pub(crate) fn give_up(state: &mut State, effects: &mut impl Effects, message: String, now: Now) {
    let pause_ns = state.starts.give_up(message.clone(), now);
    let until = pause_ns.map_or(String::new(), |pause_ns| format!(" for {} s", pause_ns / 1_000_000_000));
    effects.log(format!("no more workers are started{until}: {message}"));
    fail_if_no_worker(state, effects, now);
}

/// Fails what waits when there is no worker and will be none.
pub fn fail_if_no_worker(state: &mut State, effects: &mut impl Effects, now: Now) {
    // Until the start has succeeded, what waits is what another head had accepted, and waits for a head that can start.
    let is_hopeless = state.starts.has_begun() && state.workers.is_empty();
    let Some(message) = state.no_worker().filter(|_| is_hopeless).map(str::to_owned) else { return };
    life::fail_all(state, effects, &message);
    let queued = std::mem::take(&mut state.queue);
    let retrying: Vec<_> = state.tally.retrying().iter().map(|&(_, id)| id).collect();
    let of_actors = waiting::take_all_of_actors(state);
    // What is held fails with what it is held for.
    for task in queued.iter().chain(retrying).chain(of_actors) {
        if let Some(waiting) = state.tasks.get_mut(task) {
            waiting.advance(task, Event::LetGo, &mut state.tally);
        }
        let failure =
            Failure::NoWorker { message: format!("no worker can run it: {message}{}", when_again(state, now)) };
        lifecycle::end_task(state, effects, task, lifecycle::unstarted(failure, now));
    }
}

/// Returns when workers are started again, for the end of a message.
pub fn when_again(state: &State, now: Now) -> String {
    let Some(resumes_ns) = state.starts.resumes_ns() else { return String::new() };
    let seconds = resumes_ns.saturating_sub(now.monotonic_ns).div_ceil(1_000_000_000);
    format!("; workers are started again in {seconds} s")
}

#[cfg(test)]
#[path = "starts_tests.rs"]
mod tests;
