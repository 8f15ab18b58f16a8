//! The reactor's effects for measurements of the reactor alone.

use std::collections::VecDeque;

use tracer::head::reactor::{Effects, EndedAttempt, StandIn, Submission, Watchers};
use tracer::head::state::{Death, DriverId, Now, TaskEnd};
use tracer::protocol::{Accepted, Lease, OutputSize, Period, ToAgent};
use tracer::spool::ClaimState;
use tracer::task::{AttemptReport, ModuleVersion, Outcome, Refusal, SpanLink, StopReason, TaskId, WorkerId};

/// Effects of a head without processes, journal or clients: leases are remembered until they are reported, ends are counted.
#[derive(Default)]
pub(crate) struct IdleEffects {
    /// Leases that were granted and not reported, oldest first.
    pub(crate) leases: VecDeque<(WorkerId, u64)>,
    /// Number of tasks that have ended.
    pub(crate) finished: u64,
}

impl Effects for IdleEffects {
    fn module_digest(&mut self, _: ModuleVersion) -> Option<[u8; 32]> {
        None
    }

    fn drain_output(&mut self, _worker: WorkerId, _watchers: &Watchers) {}

    fn lease(&mut self, worker: WorkerId, lease: Lease<'_>) {
        self.leases.push_back((worker, lease.number));
    }

    fn lease_inline(&mut self, _worker: WorkerId, _lease: Lease<'_>) {}

    fn journal_submit(
        &mut self,
        _first: TaskId,
        _submissions: &[Submission<'_>],
        _now: Now,
    ) -> Result<Option<Period>, String> {
        Ok(None)
    }

    fn journal_end(&mut self, _task: TaskId, _attempt: u32, _ended: &TaskEnd) {}

    fn count_attempt(&mut self, _attempt: &EndedAttempt<'_>) {}

    fn journal_start(&mut self, _task: TaskId, _attempt: u32) -> bool {
        true
    }

    fn journal_bundle(&mut self, _first: TaskId, _count: u32) -> bool {
        true
    }

    fn journal_actor(&mut self, _actor: TaskId, _attempt: u32, _restarts: u32, _death: Option<&Death>) {}

    fn journal_pruned(&mut self, _tasks: &[TaskId]) {}

    fn journal_attempt(&mut self, _task: TaskId, _attempt: &AttemptReport, _span: Option<SpanLink>) {}

    fn finished(
        &mut self,
        _to: (DriverId, u64),
        _task: TaskId,
        _attempt: u32,
        _outcome: &Outcome,
        _ended_unix_nano: Option<u64>,
        _past: &[AttemptReport],
    ) {
        self.finished += 1;
    }

    fn claim_state(&self, _worker: WorkerId, _lease: u64) -> ClaimState {
        ClaimState::Claimed
    }

    fn has_begun_inline(&self, _worker: WorkerId, _task: TaskId, _attempt: u32) -> bool {
        true
    }

    fn running(&self, _worker: WorkerId) -> Option<(u64, u64)> {
        None
    }

    fn revoke(&mut self, _worker: WorkerId, _lease: u64) -> bool {
        false
    }

    fn start_worker(&mut self, _worker: WorkerId) {}

    fn ask_to_end(&mut self, _worker: WorkerId) {}

    fn ask_to_stop(&mut self, _worker: WorkerId, _task: TaskId, _attempt: u32, _why: StopReason) {}

    fn signal_command(&mut self, _worker: WorkerId, _kill: bool) -> bool {
        true
    }

    fn terminate(&mut self, _worker: WorkerId) {}

    fn bound_memory(&mut self, _worker: WorkerId, _limit_bytes: Option<u64>) {}

    fn kill(&mut self, _worker: WorkerId) {}

    fn give_up_value(&mut self, _name: String) {}

    fn answer_later(&mut self, _to: DriverId, _answer: Result<Accepted, (u64, Refusal)>) {}

    fn take_written(&mut self, _import: TaskId) -> OutputSize {
        OutputSize::default()
    }

    fn to_agent(&mut self, _message: &ToAgent) -> bool {
        false
    }

    fn stand_in(&mut self, _of: &StandIn<'_>) -> Option<SpanLink> {
        None
    }

    fn log(&mut self, _line: String) {}
}
