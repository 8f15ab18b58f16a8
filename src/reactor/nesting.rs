//! Tasks that wait for tasks: a part of the [reactor](crate).
//!
//! As many tasks run at a time as there are to be workers; that many *slots* there are. A task that waits for others gives its slot
//! back, and a further worker process may take it, up to a limit. Named resources it keeps. When all processes there may be exist, and slots are free
//! because tasks wait, an awaited task that no worker has begun runs *inline*: in a process that waits for it, on a thread of its own,
//! beside the task that waits. One that is in a queue of an engine is taken back for that, if no node has it yet; and one of a queue that waits here while
//! every process waits for others is given back, for it may be what they wait for in the end. A task with a bound on its
//! memory never does: the bound is that of a whole process. Where nothing else goes
//! on and no process can be had for it, it fails and names the limit.
//!
//! So nothing waits for ever. A task waits only for tasks that it has submitted itself, and a task that is held for results only for
//! those that the same submitter had submitted before: there is no cycle, but through the calls of an actor, of which one waits until
//! another has ended. Those are found when a wait begins, and broken (`deadlock`). What runs inline is what the task beside it
//! needs, so the processes add no wait to those.
//!
//! A task that is cancelled, runs too long or loses its worker takes what it has submitted with it, as far as that has not ended: nobody could get
//! the results. A task that returns, with a value or an error, leaves it running.

use std::collections::BTreeSet;

use crate::{
    actors::place,
    attempt::{self, Way},
    deadlock,
    effects::Effects,
    lifecycle,
    resources::{self, Free},
    sharing,
    state::{
        State,
        now::Now,
        progress::Progress,
        task::Task,
        worker::{Ending, Wait, Worker},
    },
    waiting,
};
use tracer_core::count::{Count, Size};
use tracer_core::task::{Failure, TaskId, WorkerId};
use tracer_ipc::protocol::{ToAgent, Wait as WaitMessage};
use tracer_ipc::spool::INLINE_LIMIT;

/// Time for which workers live that are not needed any more. They may be again: what waits once often waits again.
const SURPLUS_LIVES_NS: u64 = 2_000_000_000;

/// Workers whose tasks wait for others that are looked at in one turn, while anything goes on elsewhere.
const WAITERS_PER_TURN: usize = 64;

/// Time until the next turn looks at the others.
const NEXT_WAITERS_NS: u64 = 1_000_000;

/// Returns how many more tasks may be begun now.
pub(crate) fn free_slots(state: &State) -> usize {
    state.settings.workers_wanted.saturating_sub(state.workers.slots())
}

/// Returns how many workers are to be started: those that died, those that take the slots of tasks that wait, and those of actors.
pub(crate) fn missing_workers(state: &State) -> usize {
    let missing = state.settings.workers_wanted.saturating_sub(state.workers.of_pool());
    let coming = state.workers.starting() + state.workers.idle();
    let for_tasks = match state.queue.has_demanding() {
        true => resources::may_begin(state),
        false => free_slots(state).min(state.queue.len()),
    };
    let wanted = for_tasks + place::placeable(state);
    let most = state.settings.max_processes.saturating_sub(state.replicas).max(state.settings.workers_wanted);
    missing.max(wanted.saturating_sub(coming)).min(most.saturating_sub(state.workers.len()))
}

/// Returns how many processes there are with nothing to do, or may be started.
pub(crate) fn processes_to_come(state: &State) -> usize {
    let most = state.settings.max_processes.max(state.settings.workers_wanted);
    state.workers.starting() + state.workers.idle() + most.saturating_sub(state.workers.len() + state.replicas)
}

/// Notes that a task that runs in this worker waits for others.
pub fn on_wait(state: &mut State, effects: &mut impl Effects, worker_id: WorkerId, message: &WaitMessage, now: Now) {
    let has_ended = |id: TaskId| state.tasks.get(id).is_none_or(|task| matches!(task.progress(), Progress::Ended(_)));
    let open: BTreeSet<_> = message.tasks.iter().copied().filter(|&id| !has_ended(id)).collect();
    let ended = message.tasks.len() - open.len();
    let left = (message.wanted as usize).saturating_sub(ended);
    let submitter_of = |id: TaskId| state.tasks.get(id).and_then(|task| task.submitter);
    // What has ended is on its way to the worker.
    let Some(submitter) = open.first().copied().and_then(submitter_of).filter(|_| left > 0) else {
        return;
    };
    // A thread may wait that belongs to no task for certain; the one that was taken for its own may have ended since.
    let Some(worker) = state.workers.get(&worker_id) else { return };
    let Some(submitter) = worker.lease_of(submitter).map(|_| submitter).or(worker.innermost()) else { return };
    let of_others: Vec<_> = open.iter().copied().filter(|&id| submitter_of(id) != Some(submitter)).collect();
    state.awaited_in.extend(of_others.into_iter().map(|id| (id, worker_id)));
    let Some(mut worker) = state.workers.get_mut(&worker_id) else { return };
    let took_leases = worker.takes_leases();
    worker.waits.push(Wait { number: message.number, task: submitter, open, left, blocked: message.blocked });
    drop(worker);
    if took_leases {
        // They would wait behind that task.
        lifecycle::take_back_unclaimed(state, effects, worker_id);
    }
    if let Some(waiter) = message.blocked {
        deadlock::break_cycles(state, effects, waiter, now);
    }
}

/// Notes that a task waits no longer, although not all has ended that it waited for.
pub fn on_go_on(state: &mut State, worker_id: WorkerId, number: u64) {
    if let Some(mut worker) = state.workers.get_mut(&worker_id) {
        worker.waits.retain(|wait| wait.number != number);
    }
}

/// Runs awaited tasks in processes that wait for them, if slots are free, and no process is there to take them nor may be started.
pub(crate) fn run_in_waiters(state: &mut State, effects: &mut impl Effects, now: Now) {
    let from = state.waiters_from.take();
    let may_start = state.workers.len() + state.replicas < state.settings.max_processes && state.starts.are_possible();
    // A worker that has nothing to do, or will have when it is ready, is there for them.
    let has_process = state.workers.starting() + state.workers.idle() > 0;
    let is_nothing_open = state.queue.is_empty() && state.shared.open.is_empty();
    if is_nothing_open || !state.workers.has_waiting() || may_start || has_process {
        return;
    }
    let mut free = Free::of(state);
    // Where nothing else goes on, nobody else will find what may.
    let (from, most) = if state.workers.resumes() { (from, WAITERS_PER_TURN) } else { (None, usize::MAX) };
    let waiting: Vec<_> = state.workers.waiting_from(from.unwrap_or(WorkerId(0))).take(most).collect();
    let last = waiting.last().filter(|_| waiting.len() == most).map(|&(last, _)| last);
    let (mut chosen, mut to_take_back) = (Vec::new(), Vec::new());
    let (mut beyond, mut bounded) = (None, None);
    let is_bounded = |id: &TaskId| {
        state.tasks.get(*id).and_then(|task| task.limits.as_ref()).is_some_and(|limits| limits.memory_bytes > 0)
    };
    // What comes back is an import like others.
    let is_run_here =
        |id: &TaskId| state.settings.shared_commands || state.tasks.get(*id).is_some_and(|task| !task.is_command);
    let fits = |free: &Free, id: &TaskId| {
        let needs = state.tasks.get(*id).and_then(|task| task.needs.as_deref());
        free.fits(state, needs)
    };
    for (worker_id, worker) in waiting {
        let may_begin = |id: &TaskId| !is_bounded(id) && fits(&free, id) && chosen.iter().all(|(_, other)| other != id);
        if worker.inline.len() >= INLINE_LIMIT {
            beyond = beyond.or_else(|| awaited(state, worker, |_| true));
        } else if let Some(task) = awaited(state, worker, may_begin) {
            free.take(state, state.tasks.get(task).and_then(|task| task.needs.as_deref()));
            chosen.push((worker_id, task));
        } else if let Some(task) = in_a_queue(state, worker)
            .filter(|id| is_run_here(id) && !is_bounded(id) && fits(&free, id) && !to_take_back.contains(id))
        {
            free.take(state, state.tasks.get(task).and_then(|task| task.needs.as_deref()));
            to_take_back.push(task);
        } else {
            bounded = bounded.or_else(|| awaited(state, worker, is_bounded));
        }
    }
    for id in to_take_back {
        let is_told = effects.to_agent(&ToAgent::TakeBack(id));
        if let Some(open) = state.shared.open.get_mut(&id) {
            open.is_taken_back = is_told;
        }
    }
    for &(worker_id, id) in &chosen {
        // When the disk is full, it is tried again with the next turn.
        if attempt::begin_attempt(state, effects, worker_id, id, Way::Inline, now)
            && let Some(task) = state.tasks.get(id)
        {
            state.queue.remove(id, task);
        }
    }
    state.waiters_from = last.map(|last| WorkerId(last.0 + 1));
    if state.workers.resumes() || !state.tally.retrying().is_empty() {
        return;
    }
    // What a task here waits for may wait, at another node, for what waits here.
    let is_none_needed_here = chosen.is_empty() && beyond.is_none() && bounded.is_none();
    if is_none_needed_here && sharing::give_back_waiting(state, effects, now) {
        return;
    }
    if let (true, Some(task)) = (free.cpus > 0, beyond) {
        fail_beyond_limit(state, effects, task, now);
    } else if let Some(task) = bounded {
        fail_without_process(state, effects, task, now);
    }
}

/// Returns a task that this worker waits for, or that such a one needs, and that nobody has begun; one that may begin.
pub(crate) fn awaited(state: &State, worker: &Worker, may_begin: impl Fn(&TaskId) -> bool) -> Option<TaskId> {
    open_waits(worker).filter_map(|id| waiting::runnable(state, id)).find(may_begin)
}

/// Returns a task in a queue that this worker waits for, or that such a one needs, and that no node is known to have; none while one is being taken back.
fn in_a_queue(state: &State, worker: &Worker) -> Option<TaskId> {
    let unclaimed = |id: TaskId, _: &Task| {
        let open = state.shared.open.get(&id)?;
        let is_free = open.is_stored && open.withdrawn.is_none() && state.shared.claim_of(id).is_none();
        is_free.then_some((id, open.is_taken_back))
    };
    let (id, is_taken_back) = open_waits(worker).find_map(|id| waiting::needed(state, id, unclaimed))?;
    (!is_taken_back).then_some(id)
}

/// Returns what the task on top of a worker waits for.
fn open_waits(worker: &Worker) -> impl Iterator<Item = TaskId> {
    let top = worker.inline.last().map(|running| running.task);
    let waits = worker.waits.iter().filter(move |wait| top.is_none_or(|top| wait.task == top));
    waits.flat_map(|wait| &wait.open).copied()
}

fn fail_beyond_limit(state: &mut State, effects: &mut impl Effects, id: TaskId, now: Now) {
    waiting::take_out(state, id);
    let processes = Count(state.settings.max_processes, "worker process");
    let message = format!(
        "all {processes} that there may be wait for other tasks, and {INLINE_LIMIT} tasks run inside of one another in the one \
         that waits for this\n(hint: start the head with a higher --max-processes)"
    );
    lifecycle::end_task(state, effects, id, lifecycle::unstarted(Failure::NoWorker { message }, now));
}

fn fail_without_process(state: &mut State, effects: &mut impl Effects, id: TaskId, now: Now) {
    let bytes = state.tasks.get(id).and_then(|task| task.limits.as_ref()).map_or(0, |limits| limits.memory_bytes);
    waiting::take_out(state, id);
    let (size, processes) = (Size(bytes), Count(state.settings.max_processes, "worker process"));
    let message = format!(
        "it may take {size} of memory (--memory), so it needs a process of its own, but all {processes} that there may be \
         wait for other tasks\n(hint: start the head with a higher --max-processes)"
    );
    lifecycle::end_task(state, effects, id, lifecycle::unstarted(Failure::NoWorker { message }, now));
}

/// Returns when the next of the workers are to be looked at whose tasks wait for others, if not all have been.
pub(crate) fn next_waiters_ns(state: &State, now: Now) -> Option<u64> {
    state.waiters_from.filter(|_| state.stop.is_none()).map(|_| now.monotonic_ns + NEXT_WAITERS_NS)
}

/// Ends workers that were started in the place of others, when they have had nothing to do for a while. Returns when to look again.
pub(crate) fn end_surplus(state: &mut State, effects: &mut impl Effects, now: Now) -> Option<u64> {
    let needed = state.settings.workers_wanted + state.workers.beside();
    let surplus = state.workers.staying_in_pool().saturating_sub(needed).min(state.workers.idle());
    if surplus == 0 || state.stop.is_some() {
        state.surplus_since = None;
        return None;
    }
    let since = *state.surplus_since.get_or_insert(now.monotonic_ns);
    let ends = since.saturating_add(SURPLUS_LIVES_NS);
    if now.monotonic_ns < ends {
        return Some(ends);
    }
    state.surplus_since = None;
    for _ in 0..surplus {
        // Those first that were used least.
        let Some(worker_id) = state.workers.first_idle() else { break };
        if let Some(mut worker) = state.workers.get_mut(&worker_id) {
            worker.end(Ending::NotNeeded);
        }
        effects.ask_to_end(worker_id);
    }
    None
}

#[cfg(test)]
#[path = "nesting_tests.rs"]
mod tests;
