use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use crate::{
    scheduler::Load,
    state::{needs::Needs, now::Now, target::VersionIndex, task::Limits},
};
use tracer_core::task::{StopReason, TaskId, TimeLimit};
use tracer_ipc::protocol::INLINE_LEASE;

/// A worker process.
#[derive(Debug)]
pub struct Worker {
    /// The process.
    pub(crate) pid: u32,
    /// Stage of its life.
    phase: WorkerPhase,
    /// Time of its process's start.
    pub(crate) started: Now,
    /// The actor that it is for; none for those that take any task.
    pub(crate) actor: Option<TaskId>,
    /// Granted and not resolved, in the order of their numbers.
    pub(crate) leases: VecDeque<Grant>,
    /// The number of its next lease, which is also the place in the ring of claims; from 0.
    pub(crate) next_lease: u64,
    /// Tasks that it runs while others of its tasks wait, each inside of the one before it.
    pub(crate) inline: Vec<Grant>,
    /// Waits of its tasks for others.
    pub(crate) waits: Vec<Wait>,
    /// Sum of its leases, for the scheduler. Kept in step with [`leases`](Self::leases).
    pub(crate) load: Load,
    /// Number of attempts it has reported.
    pub(crate) tasks_ended: u64,
    /// Description of the way of its spans, for people; empty until it is ready.
    pub(crate) tracing: String,
    /// Reason why its hook failed, if it did.
    pub(crate) hook_failure: Option<String>,
    /// Time at which it got ready, by the monotonic clock.
    pub(crate) ready_monotonic_ns: Option<u64>,
    /// Reason why the head ends it.
    ending: Option<Ending>,
    /// Limit on its memory that its task has set, in bytes.
    pub(crate) memory_bytes: Option<u64>,
    /// Time at which its output was last read, by the monotonic clock.
    pub(crate) last_output_ns: u64,
    /// The attempt that it is to end.
    stopping: Option<Stopping>,
    /// Attempts that are to end too: a worker is told of one at a time.
    to_stop: Vec<ToStop>,
    /// Terms of those of its leases that have any.
    pub(crate) terms: Vec<Terms>,
    /// Leases whose output somebody wants.
    pub(crate) watched: Vec<u64>,
    /// The versions of modules that it was given tasks of.
    pub(crate) versions: Vec<VersionIndex>,
    /// True if it is to be replaced, because of those: it is given nothing more.
    pub(crate) is_outdated: bool,
}

/// Limits and resources of a lease; most have none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The lease.
    pub lease: u64,
    /// Time of the grant, by the monotonic clock.
    pub granted_ns: u64,
    /// Time that the attempt may run, in nanoseconds; 0 for no limit.
    pub run_ns: u64,
    /// Time that it may write nothing, in nanoseconds; 0 for no limit.
    pub idle_ns: u64,
    /// Resources that it takes, if that is not just a slot.
    pub needs: Option<Arc<Needs>>,
}

impl Terms {
    /// Returns when each limit is reached, by the monotonic clock, for a worker whose output was last read then.
    fn limits(&self, last_output_ns: u64) -> impl Iterator<Item = (u64, StopReason)> {
        let limits = [
            (self.granted_ns, self.run_ns, StopReason::RunTimeout),
            (self.granted_ns.max(last_output_ns), self.idle_ns, StopReason::IdleTimeout),
        ];
        let limits = limits.into_iter().filter(|&(_, limit, _)| limit > 0);
        limits.map(|(since, limit, why)| (since.saturating_add(limit), why))
    }

    /// Returns when the first limit is reached, by the monotonic clock; [`u64::MAX`] for never.
    pub(crate) fn until_ns(&self, last_output_ns: u64) -> u64 {
        self.limits(last_output_ns).map(|(until, _)| until).min().unwrap_or(u64::MAX)
    }

    /// Returns the limit that is reached, if one is.
    pub(crate) fn exceeded(&self, last_output_ns: u64, now: Now) -> Option<StopReason> {
        self.limits(last_output_ns).find(|&(until, _)| until <= now.monotonic_ns).map(|(_, why)| why)
    }
}

/// An attempt that is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stopping {
    /// The task.
    pub task: TaskId,
    /// The lease that it runs under.
    pub lease: u64,
    /// Time that it gets for each step.
    pub grace_ns: u64,
    /// The last step that was taken.
    pub step: StopStep,
    /// Time of the next step, by the monotonic clock.
    pub next_ns: u64,
    /// Time until which a command that has not quite started is waited for.
    pub give_up_ns: u64,
}

/// An attempt that is to end, when another one in the same worker has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ToStop {
    /// The lease that it runs under.
    pub lease: u64,
    /// Reason of the stop.
    pub why: StopReason,
    /// Time that it gets for each step, if whoever wants its end has said so.
    pub grace_ns: Option<u64>,
}

/// Steps that end an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopStep {
    /// It was asked.
    Asked,
    /// It got SIGTERM.
    Terminated,
    /// It got SIGKILL.
    Killed,
}

/// A task waits for others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    /// The worker's own number for it.
    pub number: u64,
    /// The task that waits.
    pub task: TaskId,
    /// Tasks that it waits for and that have not ended.
    pub open: BTreeSet<TaskId>,
    /// Number of them that have to end before it goes on.
    pub left: usize,
    /// The task whose attempt blocks its own thread until then, with no limit.
    pub blocked: Option<TaskId>,
}

/// A lease that a worker has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The worker's how-manieth lease, from 0.
    pub number: u64,
    /// The task.
    pub task: TaskId,
    /// Number of slots it takes.
    pub slots: u32,
    /// Its part of the worker's load: the expected run time, in nanoseconds.
    pub expected_ns: u64,
    /// Time of the grant.
    pub granted: Now,
}

/// Stage of a worker's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerPhase {
    /// Loading its hook.
    Starting,
    /// Its hook has run, and it takes leases.
    Ready,
    /// Told to end.
    Stopping,
}

/// Reason why the head ends a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// A task ran into its limit.
    TimedOut {
        /// The task, which gets this failure; others that the worker had claimed get [`Failure::WorkerLost`].
        task: TaskId,
        /// The limit.
        limit: TimeLimit,
        /// Time that it allows, in nanoseconds.
        after_ns: u64,
    },
    /// A running task was cancelled.
    Cancelled {
        /// The task, which gets this failure.
        task: TaskId,
    },
    /// A running task of a queue is another node's, or may be.
    Superseded {
        /// The task, which gets this failure.
        task: TaskId,
    },
    /// It did not get ready in time.
    StartTimedOut,
    /// Its hook failed, and tracing is required.
    HookFailed,
    /// There are enough others.
    NotNeeded,
    /// Its actor is to end.
    ActorEnded {
        /// The actor, which is dead from then on.
        actor: TaskId,
        /// Time that it may take, by the monotonic clock.
        until_ns: u64,
    },
    /// The head stops.
    Stopped,
}

impl Worker {
    /// Returns a worker that was just started.
    pub fn starting(pid: u32, now: Now) -> Worker {
        Worker {
            pid,
            phase: WorkerPhase::Starting,
            started: now,
            actor: None,
            leases: VecDeque::new(),
            inline: Vec::new(),
            waits: Vec::new(),
            next_lease: 0,
            load: Load::default(),
            tasks_ended: 0,
            tracing: String::new(),
            hook_failure: None,
            ready_monotonic_ns: None,
            ending: None,
            memory_bytes: None,
            last_output_ns: 0,
            stopping: None,
            to_stop: Vec::new(),
            terms: Vec::new(),
            watched: Vec::new(),
            versions: Vec::new(),
            is_outdated: false,
        }
    }

    /// Returns the id of the process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the stage of its life.
    pub fn phase(&self) -> WorkerPhase {
        self.phase
    }

    /// Returns why its hook failed, if it did.
    pub fn hook_failure(&self) -> Option<&str> {
        self.hook_failure.as_deref()
    }

    /// Returns whether it is for an actor, and takes nothing else.
    pub fn is_of_actor(&self) -> bool {
        self.actor.is_some()
    }

    /// Returns its leases, in the order of their numbers, without those that run inside of others.
    pub fn leases(&self) -> &VecDeque<Grant> {
        &self.leases
    }

    /// Returns whether it runs a task while others of its tasks wait.
    pub fn runs_inline(&self) -> bool {
        !self.inline.is_empty()
    }

    /// Returns those of its leases whose output somebody wants.
    pub fn watched(&self) -> &[u64] {
        &self.watched
    }

    /// Returns whether an attempt in it is being ended.
    pub fn ends_attempt(&self) -> bool {
        self.stopping.is_some()
    }

    /// Returns the tasks that it has been granted.
    pub(crate) fn granted(&self) -> impl Iterator<Item = TaskId> {
        self.leases.iter().chain(&self.inline).map(|grant| grant.task)
    }

    /// Returns the wait that nothing ends but the ends of tasks, in which a task blocks its thread.
    pub(crate) fn blocking_wait(&self, task: TaskId) -> Option<&Wait> {
        self.waits.iter().find(|wait| wait.blocked == Some(task))
    }

    /// Returns the attempt that is being ended.
    pub(crate) fn stopping(&self) -> Option<Stopping> {
        self.stopping
    }

    /// Returns the attempts that are to end after it.
    pub(crate) fn to_stop(&self) -> &[ToStop] {
        &self.to_stop
    }

    /// Returns why the head ends it.
    pub(crate) fn ending(&self) -> Option<&Ending> {
        self.ending.as_ref()
    }

    /// Notes that its hook has run, if it was being started.
    pub(crate) fn note_ready(&mut self, now: Now) {
        if self.phase == WorkerPhase::Starting {
            self.phase = WorkerPhase::Ready;
            self.ready_monotonic_ns = Some(now.monotonic_ns);
        }
    }

    /// Notes why the head ends it. The first reason counts.
    pub(crate) fn note_ending(&mut self, why: Ending) {
        self.ending.get_or_insert(why);
    }

    /// Notes that it is told to end, and why, if no reason is known.
    pub(crate) fn end(&mut self, why: Ending) {
        self.note_ending(why);
        self.phase = WorkerPhase::Stopping;
    }

    /// Returns once, when its time is over, that its actor has ended and it has not.
    pub(crate) fn outlives_actor(&mut self, now: Now) -> bool {
        match &mut self.ending {
            Some(Ending::ActorEnded { until_ns, .. }) if *until_ns <= now.monotonic_ns => {
                *until_ns = u64::MAX;
                true
            }
            _ => false,
        }
    }

    /// Begins to end an attempt, or enters how far its end has come.
    pub(crate) fn stop(&mut self, stopping: Stopping) {
        self.stopping = Some(stopping);
    }

    /// Notes that the attempt that is being ended will not end, and is killed with the worker.
    pub(crate) fn die_with_attempt(&mut self) {
        self.phase = WorkerPhase::Stopping;
    }

    /// Notes an attempt that is to end after the one that is being ended, once.
    pub(crate) fn stop_later(&mut self, next: ToStop) {
        if self.to_stop.iter().all(|known| known.lease != next.lease) {
            self.to_stop.push(next);
        }
    }

    /// Takes out the next attempt that is to end, unless one is being ended.
    pub(crate) fn take_to_stop(&mut self) -> Option<ToStop> {
        (self.stopping.is_none() && !self.to_stop.is_empty()).then(|| self.to_stop.remove(0))
    }

    /// Notes that an attempt has ended: if it was to, the worker goes on.
    pub(crate) fn note_attempt_ended(&mut self, lease: u64) {
        if self.stopping.is_some_and(|stopping| stopping.lease == lease) {
            self.stopping = None;
            self.ending.take_if(|why| {
                matches!(why, Ending::Cancelled { .. } | Ending::Superseded { .. } | Ending::TimedOut { .. })
            });
        }
        self.to_stop.retain(|next| next.lease != lease);
    }

    /// Returns whether the head has asked it to end, and not for a task's sake.
    pub fn was_asked_to_end(&self) -> bool {
        matches!(self.ending, Some(Ending::ActorEnded { .. } | Ending::Stopped | Ending::NotNeeded))
    }

    /// Returns whether nothing in it goes on before other tasks have ended, so that another may have its slot.
    pub fn is_waiting(&self) -> bool {
        match self.inline.last() {
            Some(running) => self.waits.iter().any(|wait| wait.task == running.task),
            None => !self.waits.is_empty(),
        }
    }

    /// Returns whether it holds the slots of a task, be they none: it runs something, or is about to. Actors are beside those.
    pub fn holds_slot(&self) -> bool {
        if self.actor.is_some() {
            return false;
        }
        match self.phase {
            WorkerPhase::Starting => false,
            WorkerPhase::Ready => {
                let has_tasks = !self.leases.is_empty() || !self.inline.is_empty();
                has_tasks && !self.is_waiting()
            }
            // It runs until it is gone.
            WorkerPhase::Stopping => self.ending != Some(Ending::NotNeeded),
        }
    }

    /// Returns the number of slots it holds.
    pub fn slots(&self) -> usize {
        let running = self.inline.last().or(self.leases.front());
        if self.holds_slot() { running.map_or(1, |grant| grant.slots as usize) } else { 0 }
    }

    /// Returns whether it can be sent any task: it is ready, no actor's and not to be replaced, nothing in it waits, and nothing in it is to end.
    pub fn takes_leases(&self) -> bool {
        let is_ready = self.phase == WorkerPhase::Ready && self.actor.is_none() && !self.is_outdated;
        is_ready && self.waits.is_empty() && self.inline.is_empty() && self.stopping.is_none()
    }

    /// Enters a lease, and returns its number.
    pub fn grant(&mut self, task: TaskId, slots: u32, expected_ns: u64, must_be_alone: bool, now: Now) -> u64 {
        let number = self.next_lease;
        self.next_lease += 1;
        self.leases.push_back(Grant { number, task, slots, expected_ns, granted: now });
        self.load.leases += 1;
        self.load.expected_ns += expected_ns;
        self.load.is_exclusive |= must_be_alone;
        number
    }

    /// Enters a lease that runs beside tasks that wait, and returns its number.
    pub fn grant_inline(&mut self, task: TaskId, slots: u32, now: Now) -> u64 {
        let number = INLINE_LEASE | task.0;
        self.inline.push(Grant { number, task, slots, expected_ns: 0, granted: now });
        number
    }

    /// Enters what is to be watched and held for a lease.
    pub fn bind(&mut self, lease: u64, limits: Option<&Limits>, needs: Option<&Arc<Needs>>, now: Now) {
        let (run_ns, idle_ns) = limits.map_or((0, 0), |limits| (limits.run_ns, limits.idle_ns));
        if run_ns > 0 || idle_ns > 0 || needs.is_some() {
            self.terms.push(Terms { lease, granted_ns: now.monotonic_ns, run_ns, idle_ns, needs: needs.cloned() });
        }
    }

    /// Returns what it holds named resources for: until its attempt has ended, also while that waits.
    pub fn needs(&self) -> impl Iterator<Item = &Arc<Needs>> {
        self.terms.iter().filter_map(|terms| terms.needs.as_ref())
    }

    /// Returns the task that runs inside of all others, or the only one; none while it has nothing to do.
    pub(crate) fn innermost(&self) -> Option<TaskId> {
        self.inline.last().or(self.leases.front()).map(|grant| grant.task)
    }

    /// Returns the number of the lease that a task has here.
    pub fn lease_of(&self, task: TaskId) -> Option<u64> {
        self.leases.iter().chain(&self.inline).find(|grant| grant.task == task).map(|grant| grant.number)
    }

    /// Takes a lease off, which is usually the first.
    pub fn take_lease(&mut self, number: u64) -> Option<Grant> {
        self.terms.retain(|terms| terms.lease != number);
        self.watched.retain(|&watched| watched != number);
        if number & INLINE_LEASE != 0 {
            let index = self.inline.iter().rposition(|grant| grant.number == number)?;
            return Some(self.inline.remove(index));
        }
        let index = self.leases.iter().position(|grant| grant.number == number)?;
        let grant = self.leases.remove(index)?;
        self.load.leases -= 1;
        self.load.expected_ns = self.load.expected_ns.saturating_sub(grant.expected_ns);
        if self.leases.is_empty() {
            self.load = Load::default();
        }
        Some(grant)
    }
}
