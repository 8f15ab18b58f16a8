use crate::{
    actors::life,
    effects::Effects,
    lifecycle, nesting,
    state::{
        StartAgain, State,
        now::Now,
        progress::Event,
        worker::{Ending, Worker, WorkerPhase},
    },
    versions, waiting,
};
use tracer_core::task::{Failure, WorkerId};
use tracer_ipc::protocol::WorkerReady;

/// Workers in a row that may die before they are ready.
const FAILED_STARTS_LIMIT: u32 = 3;

/// Workers in a row that may die soon after they were ready, without having run anything. More than of the others: some may have been
/// killed by somebody who is at it.
const BRIEF_LIVES_LIMIT: u32 = 12;

/// Time that to wait after a worker could not be started.
const START_AGAIN_NS: u64 = 1_000_000_000;

/// Time that no worker is started after so many have failed in a row; twice as long each further time, up to a limit.
const RESUME_NS: u64 = 2_000_000_000;

const RESUME_LIMIT_NS: u64 = 64_000_000_000;

/// Starts the workers that are missing. Those that are to be replaced and have nothing to do end before.
pub fn start_missing_workers(state: &mut State, effects: &mut impl Effects, now: Now) {
    versions::end_outdated(state, effects);
    if state.resumes_ns.is_some_and(|resumes| resumes <= now.monotonic_ns) && !state.is_stopping {
        effects.log("workers are started again".into());
        (state.no_worker, state.resumes_ns) = (None, None);
        // One that fails is enough to wait again, and longer.
        (state.failed_starts, state.brief_lives) = (FAILED_STARTS_LIMIT - 1, BRIEF_LIVES_LIMIT - 1);
    }
    let must_wait = state.start_again.as_ref().is_some_and(|again| again.monotonic_ns > now.monotonic_ns);
    if state.is_stopping || state.no_worker.is_some() || must_wait {
        return;
    }
    for _ in 0..nesting::missing_workers(state) {
        effects.start_worker(state.processes.give());
    }
}

/// A worker process was started.
pub fn on_worker_started(state: &mut State, worker: WorkerId, pid: u32, now: Now) {
    state.start_again = None;
    state.workers.insert(worker, Worker::starting(pid, now));
}

/// A worker process could not be started at all. A head that has started goes on without it and tries again, because a full disk or a
/// limit that was reached says nothing about workers; one that has not, gives up soon.
pub fn on_worker_start_failed(state: &mut State, effects: &mut impl Effects, reason: &str, now: Now) {
    if state.has_started {
        if state.start_again.is_none() {
            effects.log(format!("failed to start a worker, retrying every second: {reason}"));
        }
        let monotonic_ns = now.monotonic_ns.saturating_add(START_AGAIN_NS);
        state.start_again = Some(StartAgain { reason: reason.into(), monotonic_ns });
        return;
    }
    state.failed_starts += 1;
    state.was_start_refused = true;
    effects.log(format!("a worker could not be started: {reason}"));
    give_up_if_hopeless(state, effects, reason, now);
}

/// A worker's hook has run and it takes leases.
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
        worker.ending = Some(Ending::HookFailed);
        effects.kill(worker_id);
        return;
    }
    if worker.phase == WorkerPhase::Starting {
        worker.phase = WorkerPhase::Ready;
        worker.ready_monotonic_ns = Some(now.monotonic_ns);
    }
}

/// Ends the respawning when worker after worker dies before it is ready, and fails what waits for one.
pub(crate) fn give_up_if_hopeless(state: &mut State, effects: &mut impl Effects, reason: &str, now: Now) {
    let what = if state.failed_starts >= FAILED_STARTS_LIMIT {
        format!("{} workers in a row did not get ready", state.failed_starts)
    } else if state.brief_lives >= BRIEF_LIVES_LIMIT {
        format!("{} workers in a row ended as soon as they were ready", state.brief_lives)
    } else {
        return;
    };
    if state.no_worker.is_some() {
        return;
    }
    let hook = state.settings.hook.as_ref().filter(|_| state.is_hook_to_blame());
    let blame = hook.map(|hook| format!(" (hook `{hook}` runs in each)")).unwrap_or_default();
    let message = format!("{what}{blame}; the last one: {reason}");
    give_up(state, effects, message, now);
}

/// Starts no worker from now on: for good in a head that has not started, else for a while, which is longer each time.
pub(crate) fn give_up(state: &mut State, effects: &mut impl Effects, message: String, now: Now) {
    let pause_ns = RESUME_NS.saturating_mul(1 << state.give_ups.min(10)).min(RESUME_LIMIT_NS);
    let until = if state.has_started {
        state.give_ups += 1;
        state.resumes_ns = Some(now.monotonic_ns.saturating_add(pause_ns));
        format!(" for {} s", pause_ns / 1_000_000_000)
    } else {
        String::new()
    };
    effects.log(format!("no more workers are started{until}: {message}"));
    state.no_worker = Some(message);
    fail_if_no_worker(state, effects, now);
}

/// Fails what waits when there is no worker and will be none.
pub fn fail_if_no_worker(state: &mut State, effects: &mut impl Effects, now: Now) {
    // Until the start has succeeded, what waits is what another head had accepted, and waits for a head that can start.
    let is_hopeless = state.has_started && state.workers.is_empty();
    let Some(message) = state.no_worker.clone().filter(|_| is_hopeless) else { return };
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
    let Some(resumes_ns) = state.resumes_ns else { return String::new() };
    let seconds = resumes_ns.saturating_sub(now.monotonic_ns).div_ceil(1_000_000_000);
    format!("; workers are started again in {seconds} s")
}

#[cfg(test)]
#[path = "starts_tests.rs"]
mod tests;
