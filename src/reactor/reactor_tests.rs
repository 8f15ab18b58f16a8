//! Whole stories without a process: what the reactor makes of what happens, and that it does nothing else.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use tracer_core::codec::Put;
use tracer_core::task::{FunctionSpec, Input, InputSource, Policy};
use tracer_ipc::stored::Stored;

/// Remembers every effect, and plays the workers' side of the ring of claims.
#[derive(Default)]
struct Remember {
    claims: HashMap<(WorkerId, u64), ClaimState>,
    /// The lease that each worker runs, and since when.
    running: HashMap<WorkerId, (u64, u64)>,
    /// Worker, lease, task, attempt.
    leases: Vec<(u64, u64, u64, u32)>,
    /// How often each task was begun.
    claimed: HashMap<u64, u32>,
    /// Task and attempt of starts that were journaled.
    starts: Vec<(u64, u32)>,
    is_disk_full: bool,
    /// How many submissions fit the disk, if that is bounded.
    room: Option<usize>,
    /// The first task and the number of submissions that were journaled together.
    submitted: Vec<(u64, usize)>,
    /// Task, number and failure of attempts that were journaled.
    attempts: Vec<(u64, u32, String)>,
    /// What was journaled of actors.
    actors: Vec<String>,
    /// Tasks whose end is in the journal.
    journaled: Vec<TaskId>,
    /// Driver's tag, and the outcome in a word.
    finished: Vec<(u64, String)>,
    /// Of the leases, in their order: from when to when the task waited.
    queued: Vec<Option<(u64, u64)>>,
    /// Of the ends of tasks, in their order: when the attempt ended.
    ended: Vec<Option<u64>>,
    started: Vec<WorkerId>,
    /// Those of them that do not run yet.
    to_start: Vec<WorkerId>,
    asked: Vec<WorkerId>,
    killed: Vec<WorkerId>,
    /// What was done to end attempts, in order.
    steps: Vec<String>,
    has_no_command: bool,
    log: Vec<String>,
    /// Of which worker the output was handed out before a lease, and to whom.
    drained: Vec<(WorkerId, Watchers)>,
}

impl Effects for Remember {
    fn drain_output(&mut self, worker: WorkerId, watchers: &Watchers) {
        self.drained.push((worker, watchers.clone()));
    }

    fn lease(&mut self, worker: WorkerId, lease: Lease<'_>) {
        self.claims.insert((worker, lease.number), ClaimState::Granted);
        self.leases.push((worker.0, lease.number, lease.task.0, lease.attempt));
        self.queued.push(lease.queued.map(|queued| (queued.start_unix_nano, queued.end_unix_nano)));
    }

    fn lease_inline(&mut self, worker: WorkerId, lease: Lease<'_>) {
        self.claims.insert((worker, lease.number), ClaimState::Claimed);
        self.leases.push((worker.0, lease.number, lease.task.0, lease.attempt));
    }

    fn journal_submit(
        &mut self,
        first: TaskId,
        submissions: &[Submission<'_>],
        _now: Now,
    ) -> Result<Option<Period>, String> {
        if self.is_disk_full || self.room.is_some_and(|room| room < submissions.len()) {
            return Err("no space left".into());
        }
        self.room = self.room.map(|room| room - submissions.len());
        self.submitted.push((first.0, submissions.len()));
        Ok(None)
    }

    fn journal_end(&mut self, task: TaskId, _attempt: u32, _ended: &Ended) {
        self.journaled.push(task);
    }

    fn journal_start(&mut self, task: TaskId, attempt: u32) -> bool {
        self.starts.push((task.0, attempt));
        !self.is_disk_full
    }

    fn journal_actor(&mut self, actor: TaskId, attempt: u32, restarts: u32, death: Option<&Death>) {
        let what = death.map_or_else(|| "begins again".to_owned(), |death| format!("is dead: {}", death.cause));
        self.actors.push(format!("{actor} after {restarts} restarts, attempt {attempt}, {what}"));
    }

    fn journal_attempt(&mut self, task: TaskId, attempt: &AttemptReport, _span: Option<SpanLink>) {
        self.attempts.push((task.0, attempt.number, attempt.failure.as_ref().unwrap().error_type()));
    }

    fn finished(
        &mut self,
        (_, tag): (DriverId, u64),
        _task: TaskId,
        _attempt: u32,
        outcome: &Outcome,
        ended_unix_nano: Option<u64>,
        _past: &[AttemptReport],
    ) {
        self.ended.push(ended_unix_nano);
        let word = match outcome {
            Outcome::Returned(_) | Outcome::Stored(_) | Outcome::Completed => "ok".to_owned(),
            Outcome::Failed(failure) => failure.error_type(),
        };
        self.finished.push((tag, word));
    }

    fn claim_state(&self, worker: WorkerId, lease: u64) -> ClaimState {
        self.claims.get(&(worker, lease)).copied().unwrap_or(ClaimState::Unknown)
    }

    fn has_begun_inline(&self, worker: WorkerId, task: TaskId, _attempt: u32) -> bool {
        self.claim_state(worker, INLINE_LEASE | task.0) == ClaimState::Claimed
    }

    fn running(&self, worker: WorkerId) -> Option<(u64, u64)> {
        self.running.get(&worker).copied()
    }

    fn revoke(&mut self, worker: WorkerId, lease: u64) -> bool {
        match self.claims.get_mut(&(worker, lease)) {
            Some(state @ ClaimState::Granted) => {
                *state = ClaimState::Revoked;
                true
            }
            _ => false,
        }
    }

    fn start_worker(&mut self, worker: WorkerId) {
        self.started.push(worker);
        self.to_start.push(worker);
    }

    fn ask_to_end(&mut self, worker: WorkerId) {
        self.asked.push(worker);
    }

    fn ask_to_stop(&mut self, worker: WorkerId, task: TaskId, _attempt: u32, why: StopReason) {
        self.steps.push(format!("ask {worker} to end {task}: {why:?}"));
    }

    fn signal_command(&mut self, worker: WorkerId, kill: bool) -> bool {
        self.steps.push(format!("{} for the command of {worker}", if kill { "KILL" } else { "TERM" }));
        !self.has_no_command
    }

    fn terminate(&mut self, worker: WorkerId) {
        self.steps.push(format!("TERM for {worker}"));
    }

    fn bound_memory(&mut self, worker: WorkerId, limit_bytes: Option<u64>) {
        self.steps.push(format!("bound {worker} to {limit_bytes:?}"));
    }

    fn kill(&mut self, worker: WorkerId) {
        self.killed.push(worker);
    }

    fn log(&mut self, line: String) {
        self.log.push(line);
    }
}

/// Nothing is tried again: what most stories here are not about.
const NEVER_AGAIN: Policy<'static> = Policy {
    retries: 0,
    retry_backoff: Duration::from_secs(1),
    retry_on: "",
    crash_limit: 0,
    at_most_once: false,
    idempotency_key: "",
    queue_limit: None,
    idle_limit: None,
    grace: Duration::from_secs(2),
};

fn plain(policy: Policy<'static>) -> Envelope<'static> {
    let spec = TaskSpec::Function(FunctionSpec::of_task("demo", "my_function", &[0x90]));
    Envelope {
        spec,
        name: "",
        run_limit: None,
        policy,
        demand: Demand::default(),
        module_version: None,
        wants_output: false,
        traces_runtime: false,
        trace: None,
        baggage: "",
        submitter: None,
        inputs: Vec::new(),
    }
}

/// A head with its effects and a clock that is held.
struct Story {
    state: State,
    effects: Remember,
    now: Now,
    next_tag: u64,
    /// Whether what is submitted traces the runtime.
    traces_runtime: bool,
    next_wait: u64,
    next_inputs: Vec<Input>,
    /// Whether it has so many workers that it is not checked after every step.
    is_large: bool,
}

const START_LIMIT_NS: u64 = 30_000_000_000;

impl Story {
    /// A head whose workers are ready.
    fn with_workers(count: usize) -> Story {
        let mut story = Story::starting(count, false);
        for worker in std::mem::take(&mut story.effects.started) {
            story.ready(worker, None);
        }
        story
    }

    /// A head whose workers are being started.
    fn starting(count: usize, is_hook_required: bool) -> Story {
        let mut story = Story::new(count, is_hook_required);
        story.start_missing();
        story
    }

    /// A head that has started nothing yet.
    fn new(count: usize, is_hook_required: bool) -> Story {
        Story {
            state: State::new(count, is_hook_required),
            effects: Remember::default(),
            now: Now { monotonic_ns: 1, unix_nano: 1_000 },
            next_tag: 0,
            traces_runtime: false,
            next_wait: 0,
            next_inputs: Vec::new(),
            is_large: false,
        }
    }

    fn start_missing(&mut self) {
        start_missing_workers(&mut self.state, &mut self.effects, self.now);
        for worker in std::mem::take(&mut self.effects.to_start) {
            on_worker_started(&mut self.state, worker, 100 + worker.0 as u32, self.now);
        }
        self.check();
    }

    fn ready(&mut self, worker: WorkerId, hook_failure: Option<&str>) {
        let ready = WorkerReady { tracing: "none".into(), hook_failure: hook_failure.map(Into::into) };
        on_worker_ready(&mut self.state, &mut self.effects, worker, ready, self.now);
        self.check();
    }

    fn submit(&mut self, count: u64) {
        for _ in 0..count {
            self.submit_with(None, false);
        }
    }

    fn submit_with(&mut self, run_limit: Option<Duration>, wants_output: bool) -> TaskId {
        self.submit_from(None, run_limit, wants_output)
    }

    /// A task submits another.
    fn submit_nested(&mut self, submitter: TaskId) -> TaskId {
        self.submit_from(Some(submitter), None, false)
    }

    /// Tasks that run in this worker wait for others.
    fn wait(&mut self, worker: u64, number: u64, wanted: u32, tasks: &[TaskId]) {
        self.wait_as(None, worker, number, wanted, tasks);
    }

    /// As [`wait`](Self::wait), on the own thread of a task and with no limit.
    fn block(&mut self, task: TaskId, worker: u64, wanted: u32, tasks: &[TaskId]) {
        self.wait_as(Some(task), worker, 1_000_000 + task.0, wanted, tasks);
    }

    fn wait_as(&mut self, blocked: Option<TaskId>, worker: u64, number: u64, wanted: u32, tasks: &[TaskId]) {
        let wait = tracer_ipc::protocol::Wait { number, wanted, blocked, tasks: tasks.to_vec() };
        nesting::on_wait(&mut self.state, &mut self.effects, WorkerId(worker), &wait, self.now);
        self.check();
    }

    /// A task that has results of others as its arguments.
    fn submit_after(&mut self, inputs: &[TaskId]) -> TaskId {
        self.next_inputs =
            (0..).zip(inputs).map(|(argument, &task)| Input { argument, source: InputSource::Task(task) }).collect();
        self.submit_from(None, None, false)
    }

    fn submit_from(&mut self, submitter: Option<TaskId>, run_limit: Option<Duration>, wants_output: bool) -> TaskId {
        let (traces_runtime, inputs) = (self.traces_runtime, std::mem::take(&mut self.next_inputs));
        let envelope = Envelope { run_limit, wants_output, traces_runtime, submitter, inputs, ..plain(NEVER_AGAIN) };
        self.submit_envelope(&envelope)
    }

    fn submit_demand(&mut self, submitter: Option<TaskId>, demand: Demand<'_>) -> TaskId {
        self.submit_envelope(&Envelope { submitter, demand, ..plain(NEVER_AGAIN) })
    }

    /// Gives the head named resources.
    fn resources(&mut self, resources: &[(&str, u64)]) {
        let resource = |&(name, total): &(&str, u64)| lanes::Resource { name: name.into(), total };
        self.state.resources = resources.iter().map(resource).collect();
    }

    fn submit_policy(&mut self, policy: Policy<'static>) -> TaskId {
        self.submit_envelope(&plain(policy))
    }

    fn submit_envelope(&mut self, envelope: &Envelope<'_>) -> TaskId {
        let mut bytes = Vec::new();
        envelope.encode(&mut bytes);
        let submission = Submission {
            driver: Some(DriverId(1)),
            tag: self.next_tag,
            job: JobId(1),
            bytes: &bytes,
            envelope: envelope.clone(),
            // It took a while to write it to the journal.
            queued_unix_nano: self.now.unix_nano + 5,
        };
        self.next_tag += 1;
        let id = on_submission(&mut self.state, submission, self.now);
        self.check();
        id
    }

    /// Lets the head place what waits, and returns what it leased: worker, lease, task, attempt.
    fn schedule(&mut self) -> Vec<(u64, u64, u64, u32)> {
        self.effects.leases.clear();
        schedule(&mut self.state, &mut self.effects, self.now);
        self.check();
        self.effects.leases.clone()
    }

    fn claim(&mut self, worker: u64, lease: u64) {
        let state = self.effects.claims.get_mut(&(WorkerId(worker), lease)).unwrap();
        assert_eq!(*state, ClaimState::Granted);
        *state = ClaimState::Claimed;
        self.effects.running.insert(WorkerId(worker), (lease, self.now.unix_nano));
        let grants = &self.state.workers[&WorkerId(worker)].leases;
        if let Some(grant) = grants.iter().find(|grant| grant.number == lease) {
            *self.effects.claimed.entry(grant.task.0).or_default() += 1;
        }
    }

    fn result(&mut self, worker: u64, lease: u64, run_ns: u64) {
        self.end(worker, lease, run_ns, Outcome::Returned(vec![1]));
    }

    /// The attempt under a lease ends with an error of its own.
    fn fail(&mut self, worker: u64, lease: u64) {
        let failure = Failure::Error { type_name: "E".into(), message: "no".into(), stacktrace: String::new() };
        self.end(worker, lease, 1_000, Outcome::Failed(failure));
    }

    fn end(&mut self, worker: u64, lease: u64, run_ns: u64, outcome: Outcome) {
        let result =
            AttemptResult { lease, started_unix_nano: self.now.unix_nano, run_ns, span: None, outcome, usage: None };
        on_result(&mut self.state, &mut self.effects, WorkerId(worker), result, self.now);
        self.check();
    }

    fn exit(&mut self, worker: u64) -> Loss {
        let exit = WorkerExit {
            cause: "was killed by SIGKILL (signal 9)".into(),
            error_type: "signal:9".into(),
            memory: None,
        };
        let loss = on_worker_exited(&mut self.state, &mut self.effects, WorkerId(worker), &exit, self.now).unwrap();
        self.check();
        loss
    }

    /// Makes the head know how long the demo task takes.
    fn measure(&mut self, run_ns: u64) {
        let index = self.state.targets.index("demo.my_function");
        self.state.targets.run_time(index).observe(run_ns);
    }

    #[track_caller]
    fn check(&self) {
        if !self.is_large {
            self.state.check().unwrap();
        }
    }

    fn finished(&mut self) -> Vec<(u64, String)> {
        std::mem::take(&mut self.effects.finished)
    }
}

fn ended(tags: impl IntoIterator<Item = u64>, word: &str) -> Vec<(u64, String)> {
    tags.into_iter().map(|tag| (tag, word.to_owned())).collect()
}

#[test]
fn a_task_is_leased_once_and_its_driver_is_told_once() {
    let mut story = Story::with_workers(2);
    story.submit(1);
    let leases = story.schedule();
    assert_eq!(leases.len(), 1);
    let (worker, lease, task, attempt) = leases[0];
    assert_eq!((lease, task, attempt), (0, 1, 1));
    assert_eq!(story.schedule(), [], "nothing is left to lease");
    story.claim(worker, lease);
    story.result(worker, lease, 1_000);
    assert_eq!(story.finished(), ended([0], "ok"));
    story.result(worker, lease, 1_000);
    assert_eq!(story.finished(), [], "a result that comes twice is told once");
    assert_eq!(story.state.tally.counts().succeeded, 1);
    assert!(story.effects.log[0].contains("reported lease 0, which it does not have"));
}

#[test]
fn a_function_that_was_not_measured_is_leased_singly() {
    let mut story = Story::with_workers(2);
    story.submit(10);
    assert_eq!(story.schedule().len(), 2, "one for each worker");
}

#[test]
fn short_tasks_are_leased_in_batches_and_shared_between_workers() {
    let mut story = Story::with_workers(2);
    story.measure(1_000);
    story.submit(100);
    let leases = story.schedule();
    let of_worker = |worker| leases.iter().filter(|lease| lease.0 == worker).count();
    assert_eq!((of_worker(1), of_worker(2)), (50, 50));
}

#[test]
fn a_worker_is_topped_up_when_half_of_its_leases_are_done() {
    let mut story = Story::with_workers(1);
    story.measure(1);
    story.submit(400);
    assert_eq!(story.schedule().len(), scheduler::LEASE_LIMIT);
    for lease in 0..128 {
        story.claim(1, lease);
        story.result(1, lease, 1);
    }
    assert_eq!(story.schedule(), [], "half is still there");
    story.claim(1, 128);
    story.result(1, 128, 1);
    assert_eq!(story.schedule().len(), 129);
}

#[test]
fn a_worker_behind_is_never_granted_a_lease_whose_place_in_the_ring_is_taken() {
    let mut story = Story::with_workers(2);
    story.measure(3_000);
    story.submit(2);
    let (behind, ahead) = match story.schedule()[0].0 {
        1 => (1, 2),
        _ => (2, 1),
    };
    // One worker stays in its first task; the other does its own work, and what is taken back from the first for it.
    story.claim(behind, 0);
    for _ in 0..30 {
        story.submit(200);
        story.schedule();
        while let Some(lease) = story.state.workers[&WorkerId(ahead)].leases.front().map(|grant| grant.number) {
            story.claim(ahead, lease);
            story.result(ahead, lease, 3_000);
            story.schedule();
        }
        let worker = &story.state.workers[&WorkerId(behind)];
        assert_eq!(worker.leases[0].number, 0);
        assert!(worker.next_lease <= CLAIM_COUNT as u64, "lease {} is in the place of 0", worker.next_lease - 1);
    }
}

#[test]
fn the_worker_used_last_is_used_next() {
    let mut story = Story::with_workers(3);
    story.submit(1);
    let first = story.schedule()[0];
    story.claim(first.0, first.1);
    story.result(first.0, first.1, 5_000_000);
    story.submit(1);
    assert_eq!(story.schedule()[0].0, first.0);
}

#[test]
fn a_task_whose_output_is_watched_has_its_worker_for_itself() {
    let mut story = Story::with_workers(1);
    story.measure(1);
    story.submit_with(None, true);
    story.submit(2);
    assert_eq!(story.schedule().len(), 1);
    story.claim(1, 0);
    assert_eq!(story.schedule(), []);
    story.result(1, 0, 1);
    assert_eq!(story.schedule().len(), 2);
    story.submit_with(None, true);
    assert_eq!(story.schedule(), [], "nor is it leased beside others");
}

#[test]
fn a_lost_worker_fails_what_it_had_begun_and_gives_the_rest_back_free_of_charge() {
    let mut story = Story::with_workers(1);
    story.measure(1_000);
    story.submit(5);
    assert_eq!(story.schedule().len(), 5);
    story.claim(1, 0);
    story.result(1, 0, 1_000);
    story.claim(1, 1);
    story.claim(1, 2);
    story.finished();
    let loss = story.exit(1);
    assert_eq!(story.finished(), ended([1, 2], "signal:9"));
    assert_eq!(loss.why.error_type, "signal:9");
    assert_eq!(loss.why.description, "the worker was killed by SIGKILL (signal 9)");
    assert_eq!(loss.attempts.iter().map(|lost| lost.task.0).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(story.state.workers_lost, 1);

    story.start_missing();
    assert_eq!(story.effects.started, [WorkerId(2)], "it is replaced");
    story.ready(WorkerId(2), None);
    let leases = story.schedule();
    assert_eq!(leases, [(2, 0, 4, 1), (2, 1, 5, 1)], "in their order, and still the first attempt");
}

#[test]
fn an_idle_worker_gets_what_a_busy_one_has_not_begun() {
    let mut story = Story::with_workers(1);
    story.measure(400_000);
    story.submit(5);
    assert_eq!(story.schedule().len(), 5);
    story.claim(1, 0);
    story.state.workers_wanted = 2;
    story.start_missing();
    story.ready(WorkerId(2), None);
    let leases = story.schedule();
    assert_eq!(leases.iter().map(|lease| (lease.0, lease.2, lease.3)).collect::<Vec<_>>(), [(2, 4, 1), (2, 5, 1)]);
    assert_eq!(story.effects.claim_state(WorkerId(1), 4), ClaimState::Revoked);
    assert_eq!(story.schedule(), [], "and no more than that");
}

/// Tasks of a function that used to be short were leased together, and one of them is not short: those behind it used to wait for it
/// while another worker had nothing to do.
#[test]
fn tasks_do_not_wait_behind_one_that_turns_out_to_be_long() {
    let mut story = Story::with_workers(2);
    story.measure(1_000);
    story.submit(6);
    assert_eq!(story.schedule().len(), 6);
    story.claim(1, 0);
    for lease in 0..3 {
        story.claim(2, lease);
        story.result(2, lease, 1_000);
    }
    assert_eq!(story.schedule(), [], "it may still be as short as the others");
    let next = on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
    assert_eq!(next, Some(story.now.monotonic_ns + BEHIND_NS), "the head looks again by itself");
    story.now.monotonic_ns += BEHIND_NS;
    story.now.unix_nano += BEHIND_NS;
    let moved: Vec<_> = story.schedule().iter().map(|lease| (lease.0, lease.3)).collect();
    assert_eq!(moved, [(2, 1)]);
    story.claim(2, 3);
    story.result(2, 3, 1_000);
    assert_eq!(story.schedule().len(), 1, "and the last one too");
    assert_eq!(on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now), None);
}

#[test]
fn a_function_that_runs_into_its_limit_is_asked_then_gets_a_signal_then_costs_its_worker_and_nobody_else() {
    let mut story = Story::with_workers(2);
    story.submit_with(Some(Duration::from_secs(2)), false);
    let (worker, lease, ..) = story.schedule()[0];
    story.claim(worker, lease);
    let next = on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
    assert_eq!(next, Some(2_000_000_001), "the head wakes up when the limit is reached");
    story.now.monotonic_ns = 2_000_000_001;
    let state = |story: &Story| get_task(&story.state, &story.effects, TaskId(1)).unwrap().state;
    let tick = |story: &mut Story| on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
    assert_eq!(tick(&mut story), Some(4_000_000_001), "its grace period");
    assert_eq!(state(&story), TaskState::Cancelling);
    story.submit(1);
    assert_ne!(story.schedule()[0].0, worker, "a worker whose task is being ended gets nothing");
    story.now.monotonic_ns = 4_000_000_001;
    assert_eq!(tick(&mut story), Some(6_000_000_001));
    assert_eq!((state(&story), story.effects.killed.len()), (TaskState::Terminating, 0));
    assert_eq!(story.effects.steps, [format!("ask {worker} to end 1: RunTimeout"), format!("TERM for {worker}")]);
    story.now.monotonic_ns = 6_000_000_001;
    assert_eq!(tick(&mut story), None, "nothing but its end is waited for");
    assert_eq!((state(&story), &*story.effects.killed), (TaskState::Killing, &[WorkerId(worker)][..]));
    let loss = story.exit(worker);
    assert_eq!((loss.why.error_type.as_str(), story.finished()), ("timeout", ended([0], "timeout")));
}

#[test]
fn a_task_is_cancelled_wherever_it_is() {
    let mut story = Story::with_workers(1);
    story.measure(1_000_000);
    story.submit(3);
    assert_eq!(story.schedule().len(), 2);
    story.claim(1, 0);
    let cancel = |story: &mut Story, id| {
        let report = on_cancel(&mut story.state, &mut story.effects, TaskId(id), Some(0), story.now);
        story.check();
        report
    };
    assert_eq!(cancel(&mut story, 3), CancelReport::Cancelled, "waiting");
    assert_eq!(cancel(&mut story, 2), CancelReport::Cancelled, "leased and not begun");
    assert_eq!((story.finished(), story.effects.killed.len()), (ended([2, 1], "cancelled"), 0));
    assert_eq!(cancel(&mut story, 1), CancelReport::Cancelling, "running");
    assert_eq!(story.effects.killed, [WorkerId(1)]);
    assert_eq!(story.finished(), [], "it has not ended yet");
    story.exit(1);
    assert_eq!(story.finished(), ended([0], "cancelled"));
    assert_eq!(cancel(&mut story, 1), CancelReport::Ended);
    assert_eq!(cancel(&mut story, 9), CancelReport::Unknown);
}

/// The result of an ended task may wait in its worker for more; cancelling the task in that moment used to kill the worker, and with it
/// the task that it was running by then.
#[test]
fn cancelling_a_task_whose_result_is_on_the_way_harms_nobody() {
    let mut story = Story::with_workers(1);
    story.measure(1_000);
    story.submit(3);
    assert_eq!(story.schedule().len(), 3);
    story.claim(1, 0);
    story.claim(1, 1);
    let report = on_cancel(&mut story.state, &mut story.effects, TaskId(1), Some(0), story.now);
    assert_eq!((report, story.effects.killed.len()), (CancelReport::Ended, 0));
    story.check();
    story.result(1, 0, 1_000);
    assert_eq!(story.finished(), ended([0], "ok"));
    assert_eq!(story.schedule(), [(1, 3, 3, 1)], "what was taken back for a moment is leased again");
}

#[test]
fn a_task_that_had_ended_when_its_worker_died_is_told_apart_from_the_one_that_ran() {
    let mut story = Story::with_workers(1);
    story.measure(1_000);
    story.submit(2);
    story.schedule();
    story.claim(1, 0);
    story.claim(1, 1);
    story.exit(1);
    let message = |id| get_task(&story.state, &story.effects, TaskId(id)).unwrap().message.unwrap();
    assert_eq!(
        message(1),
        "its worker (pid 101) was killed by SIGKILL (signal 9) after the task had ended and before its result was sent"
    );
    assert_eq!(message(2), "its worker (pid 101) was killed by SIGKILL (signal 9)");
}

#[test]
fn workers_that_die_as_soon_as_they_are_ready_are_not_replaced_for_ever() {
    let mut story = Story::with_workers(1);
    for worker in 1..=BRIEF_LIVES_LIMIT {
        assert_eq!(story.state.no_worker, None);
        story.exit(worker.into());
        story.start_missing();
        for worker in std::mem::take(&mut story.effects.started) {
            story.ready(worker, None);
        }
    }
    let reason = story.state.no_worker.unwrap();
    assert!(reason.starts_with("12 workers in a row ended as soon as they were ready"), "{reason}");

    let mut story = Story::with_workers(1);
    for worker in 1..=10 {
        story.now.monotonic_ns += LIVED_NS;
        story.exit(worker);
        story.start_missing();
        for worker in std::mem::take(&mut story.effects.started) {
            story.ready(worker, None);
        }
    }
    assert_eq!(story.state.no_worker, None, "one that has lived is replaced whatever ends it");
}

#[test]
fn a_running_task_says_since_when() {
    let mut story = Story::with_workers(1);
    story.submit(1);
    story.schedule();
    let task = |story: &Story| get_task(&story.state, &story.effects, TaskId(1)).unwrap();
    assert_eq!((task(&story).state, task(&story).started_unix_nano), (TaskState::Leased, None));
    story.claim(1, 0);
    assert_eq!((task(&story).state, task(&story).started_unix_nano), (TaskState::Running, Some(1_000)));
}

#[test]
fn an_attempt_lasts_as_long_as_it_ran_whatever_the_wall_clock_is_set_to() {
    const DAY: u64 = 86_400_000_000_000;
    let times = |story: &Story| {
        let task = get_task(&story.state, &story.effects, TaskId(1)).unwrap();
        (task.started_unix_nano, task.ended_unix_nano)
    };
    let began = Now { monotonic_ns: 7_000, unix_nano: 10 * DAY };
    let later = |unix_nano| Now { monotonic_ns: began.monotonic_ns + 900, unix_nano };
    // The clock, when the end is learnt of, and how long an attempt ran by it that nobody reported.
    for (now, lost_ns) in [
        (later(9 * DAY), 900),
        (later(0), 900),
        (later(10 * DAY), 0),
        (later(10 * DAY + 850), 850),
        (later(11 * DAY), 900),
        (later(u64::MAX), 900),
    ] {
        let begin = || {
            let mut story = Story::with_workers(1);
            story.now = began;
            story.submit(1);
            story.schedule();
            story.claim(1, 0);
            story
        };
        let mut story = begin();
        story.now = now;
        let outcome = Outcome::Returned(vec![1]);
        let started_unix_nano = began.unix_nano;
        let result = AttemptResult { lease: 0, started_unix_nano, run_ns: 700, span: None, outcome, usage: None };
        on_result(&mut story.state, &mut story.effects, WorkerId(1), result, now);
        story.check();
        assert_eq!(times(&story), (Some(10 * DAY), Some(10 * DAY + 700)), "{now:?}");

        let mut story = begin();
        story.now = now;
        story.exit(1);
        assert_eq!(times(&story), (Some(10 * DAY), Some(10 * DAY + lost_ns)), "{now:?}");
    }
}

#[test]
fn a_stop_lets_running_tasks_end_and_fails_the_others() {
    let mut story = Story::with_workers(1);
    story.measure(1_000_000);
    story.submit(3);
    story.schedule();
    story.claim(1, 0);
    on_stop(&mut story.state, &mut story.effects, false, story.now);
    story.check();
    assert_eq!(story.finished(), ended([2, 1], "stopped"));
    assert_eq!((story.effects.asked.as_slice(), story.effects.killed.len()), ([WorkerId(1)].as_slice(), 0));
    story.result(1, 0, 1);
    assert_eq!(story.finished(), ended([0], "ok"));
    assert_eq!(story.schedule(), []);
    story.effects.started.clear();
    story.exit(1);
    story.start_missing();
    assert_eq!(story.effects.started, [], "nothing is started again");
    assert_eq!(story.state.workers_lost, 0, "it was asked to go");
}

#[test]
fn a_stop_that_is_overdue_kills() {
    let mut story = Story::with_workers(1);
    story.submit(1);
    story.schedule();
    story.claim(1, 0);
    on_stop(&mut story.state, &mut story.effects, false, story.now);
    on_stop_overdue(&mut story.state, &mut story.effects);
    assert_eq!(story.effects.killed, [WorkerId(1)]);
    story.exit(1);
    assert_eq!(story.finished(), ended([0], "stopped"));
}

#[test]
fn workers_that_die_before_they_are_ready_are_replaced_a_few_times_only() {
    let mut story = Story::starting(1, false);
    story.state.has_started = true;
    story.submit(2);
    for worker in 1..=FAILED_STARTS_LIMIT {
        assert_eq!(std::mem::take(&mut story.effects.started), [WorkerId(worker.into())]);
        assert_eq!(story.finished(), []);
        story.exit(worker.into());
        story.start_missing();
    }
    assert_eq!(story.effects.started, []);
    assert_eq!(story.finished(), ended([0, 1], "no_worker"), "nothing waits for what will not come");
    let reason = story.state.no_worker.clone().unwrap();
    assert_eq!(reason, "3 workers in a row did not get ready; the last one: was killed by SIGKILL (signal 9)");
}

#[test]
fn a_worker_for_which_there_is_no_room_is_started_when_there_is() {
    let mut story = Story::with_workers(1);
    story.state.has_started = true;
    story.exit(1);
    story.submit(1);
    story.effects.log.clear();
    for _ in 0..10 {
        start_missing_workers(&mut story.state, &mut story.effects, story.now);
        assert_eq!(std::mem::take(&mut story.effects.to_start).len(), 1);
        on_worker_start_failed(&mut story.state, &mut story.effects, "no space left", story.now);
        start_missing_workers(&mut story.state, &mut story.effects, story.now);
        assert_eq!(story.effects.to_start, [], "not at once");
        let next = on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
        story.now.monotonic_ns = next.expect("it is tried again");
    }
    assert_eq!(story.state.no_worker, None);
    assert_eq!(story.effects.log.len(), 1, "it is said once: {:?}", story.effects.log);
    story.effects.started.clear();
    story.start_missing();
    let [worker] = story.effects.started[..] else { panic!("one worker") };
    story.ready(worker, None);
    assert_eq!(story.state.start_again, None);
    assert_eq!(story.schedule().len(), 1, "the task has waited");
}

#[test]
fn one_worker_that_lives_makes_up_for_those_that_did_not() {
    let mut story = Story::starting(1, false);
    for worker in 1..=10 {
        if worker % 3 == 0 {
            story.ready(WorkerId(worker), None);
            story.now.monotonic_ns += LIVED_NS;
        }
        story.exit(worker);
        story.start_missing();
    }
    assert_eq!(story.state.no_worker, None);
}

#[test]
fn a_worker_that_does_not_get_ready_in_time_is_killed() {
    let mut story = Story::starting(1, false);
    story.now.monotonic_ns += START_LIMIT_NS;
    on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
    assert_eq!(story.effects.killed, [WorkerId(1)]);
    story.exit(1);
    assert_eq!(story.state.failed_starts, 1);
}

#[test]
fn a_hook_that_fails_in_a_worker_is_said_and_the_worker_works() {
    let mut story = Story::starting(1, false);
    story.ready(WorkerId(1), Some("no such host"));
    assert_eq!(story.effects.log, ["the hook failed in worker 1 (pid 101): no such host"]);
    story.submit(1);
    assert_eq!(story.schedule().len(), 1);
}

#[test]
fn a_hook_that_is_required_and_fails_makes_its_worker_useless() {
    let mut story = Story::starting(1, true);
    story.state.has_started = true;
    for worker in 1..=3 {
        story.ready(WorkerId(worker), Some("no such host"));
        story.submit(1);
        assert_eq!(story.schedule(), []);
        story.exit(worker);
        story.start_missing();
    }
    assert_eq!(story.effects.killed, [1, 2, 3].map(WorkerId));
    assert!(story.state.no_worker.as_ref().unwrap().ends_with("the last one: no such host"));
}

#[test]
fn a_hook_that_is_required_and_fails_in_one_worker_ends_the_start() {
    let mut story = Story::starting(2, true);
    story.ready(WorkerId(1), None);
    story.ready(WorkerId(2), Some("no such host"));
    story.exit(2);
    let reason = "tracing is required, but the hook failed in a worker: no such host";
    assert_eq!(story.state.no_worker.as_deref(), Some(reason));
    story.start_missing();
    assert_eq!(story.state.workers.len(), 1, "it is not tried again");
}

#[test]
fn workers_that_do_not_get_ready_are_blamed_on_the_hook_that_each_runs() {
    let mut story = Story::starting(1, false);
    story.state.hook = Some("collector:setup".into());
    for worker in 1..=3 {
        story.exit(worker);
        story.start_missing();
    }
    let reason = story.state.no_worker.as_deref().unwrap();
    let expected = "3 workers in a row did not get ready (hook `collector:setup` runs in each); the last one: ";
    assert!(reason.starts_with(expected), "{reason}");
}

#[test]
fn only_the_newest_ended_tasks_are_remembered_and_the_others_counted() {
    let mut story = Story::with_workers(1);
    story.measure(1);
    let tasks = HISTORY_LIMIT as u64 + 100;
    let mut done = 0;
    for tag in 0..tasks {
        story.submit(1);
        if tag % 100 == 99 {
            story.schedule();
            for lease in done..=tag {
                story.claim(1, lease);
                story.result(1, lease, 1);
            }
            done = tag + 1;
        }
    }
    assert_eq!((story.state.tasks.len(), story.state.tally.counts().forgotten), (HISTORY_LIMIT, 100));
    let list = list_tasks(&story.state, &story.effects, 10, &TaskFilter::default());
    assert_eq!((list.tasks.len(), list.left_out, list.forgotten), (10, HISTORY_LIMIT - 10, 100));
    assert_eq!(list.tasks[0].id, TaskId(tasks));
    assert!(get_task(&story.state, &story.effects, TaskId(1)).is_none());
    assert_eq!(get_task(&story.state, &story.effects, TaskId(tasks)).unwrap().result.unwrap().text(), "1");
}

#[test]
fn what_a_dead_head_had_accepted_waits_again_and_what_its_workers_had_begun_is_lost() {
    let mut story = Story::with_workers(1);
    let mut envelope = Vec::new();
    Envelope { name: "mine", wants_output: true, ..plain(NEVER_AGAIN) }.encode(&mut envelope);
    for id in [40, 41, 42] {
        on_restored_submission(&mut story.state, TaskId(id), JobId(5), 77, &envelope).unwrap();
    }
    let remembered =
        Remembered { job: JobId(2), submitted_unix_nano: 8, trace_id: [1; 16], target: "wordcount.count", name: "old" };
    on_restored_memory(&mut story.state, TaskId(43), remembered);
    let ended = Ended {
        outcome: Outcome::Returned(vec![4]),
        worker: Some(WorkerId(9)),
        worker_pid: Some(900),
        started_unix_nano: Some(9),
        ended_unix_nano: 10,
    };
    on_restored_end(&mut story.state, TaskId(43), 1, ended);
    assert_eq!(story.effects.journaled, [], "what was read back is not written again");
    let claim = LeftClaim { attempt: 1, worker: WorkerId(8), worker_pid: 800 };
    let claims = HashMap::from([(TaskId(41), claim), (TaskId(43), claim)]);
    let lost = on_restored(&mut story.state, &mut story.effects, &claims, &HashMap::new(), story.now);
    story.check();
    assert_eq!(lost.iter().map(|lost| lost.task.0).collect::<Vec<_>>(), [41]);
    assert_eq!(story.effects.journaled, [TaskId(41)]);
    assert_eq!(story.schedule(), [(1, 0, 40, 1)], "its output is no longer watched, but it was to be alone");
    let task = |id| get_task(&story.state, &story.effects, TaskId(id)).unwrap();
    assert_eq!(task(41).message.unwrap(), "the head died while it ran, and its worker with it");
    assert_eq!((task(41).worker_id, task(41).worker_pid), (Some(WorkerId(8)), Some(800)));
    assert_eq!((task(43).target.as_str(), task(43).name.as_deref()), ("wordcount.count", Some("old")));
    assert_eq!((task(43).result.unwrap().to_string(), task(43).trace_id), ("4".into(), Some("01".repeat(16))));
    assert_eq!((task(42).submitted_unix_nano, task(42).job_id), (77, JobId(5)));
    assert_eq!(story.submit_with(None, false), TaskId(44), "ids go on");
}

#[test]
fn short_commands_are_leased_ahead_unless_something_of_them_is_watched_and_a_cancel_reaches_the_one_that_runs() {
    let mut story = Story::with_workers(1);
    let submit = |story: &mut Story, envelope: Envelope<'static>| {
        let spec = TaskSpec::command(b"true", vec![], vec![], b"/");
        story.submit_envelope(&Envelope { spec, ..envelope });
    };
    submit(&mut story, plain(NEVER_AGAIN));
    story.schedule();
    story.claim(1, 0);
    story.result(1, 0, 500_000);
    (0..6).for_each(|_| submit(&mut story, plain(NEVER_AGAIN)));
    assert_eq!(story.schedule().iter().map(|lease| lease.1).collect::<Vec<_>>(), [1, 2, 3, 4]);
    // Those behind it are taken back first, so that none of them can begin and get the signal.
    story.claim(1, 1);
    let running = CancelWhich::Ids(vec![TaskId(2)]);
    on_cancel_many(&mut story.state, &mut story.effects, &running, None, story.now);
    assert_eq!(story.state.workers[&WorkerId(1)].leases.len(), 1);
    assert_eq!(story.effects.steps, ["ask 1 to end 2: Cancelled", "TERM for the command of 1"]);
    assert_eq!(story.schedule(), []);
    story.end(1, 1, 500_000, Outcome::Failed(Failure::Cancelled));
    let watched = [
        Envelope { wants_output: true, ..plain(NEVER_AGAIN) },
        Envelope { run_limit: Some(Duration::from_secs(1)), ..plain(NEVER_AGAIN) },
        plain(Policy { idle_limit: Some(Duration::from_secs(1)), ..NEVER_AGAIN }),
    ];
    for envelope in watched {
        let mut story = Story::with_workers(1);
        submit(&mut story, plain(NEVER_AGAIN));
        story.schedule();
        story.claim(1, 0);
        story.result(1, 0, 500_000);
        (0..2).for_each(|_| submit(&mut story, envelope.clone()));
        assert_eq!(story.schedule().len(), 1, "alone");
    }
}

/// A command on worker 1 that was begun.
fn with_command(policy: Policy<'static>, run_limit: Option<Duration>) -> Story {
    let mut story = Story::with_workers(1);
    let spec = TaskSpec::command(b"sleep", vec![b"9"], vec![], b"/");
    story.submit_envelope(&Envelope { spec, run_limit, ..plain(policy) });
    story.schedule();
    story.claim(1, 0);
    story
}

#[test]
fn a_cancelled_command_gets_its_signals_and_its_worker_goes_on() {
    let mut story = with_command(NEVER_AGAIN, None);
    let tick = |story: &mut Story| on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
    let cancel = |story: &mut Story, grace_ns| {
        on_cancel_many(&mut story.state, &mut story.effects, &CancelWhich::All, grace_ns, story.now)
    };
    // It has been claimed, and its process is about to start.
    story.effects.has_no_command = true;
    assert_eq!(cancel(&mut story, None), [(TaskId(1), CancelReport::Cancelling)]);
    assert_eq!(story.effects.steps, ["ask 1 to end 1: Cancelled", "TERM for the command of 1"]);
    story.effects.has_no_command = false;
    story.now.monotonic_ns = tick(&mut story).unwrap();
    story.effects.steps.clear();
    assert_eq!(tick(&mut story), Some(story.now.monotonic_ns + 2_000_000_000));
    assert_eq!(story.effects.steps, ["TERM for the command of 1"]);
    // A second time, and at once.
    assert_eq!(cancel(&mut story, Some(0)), [(TaskId(1), CancelReport::Cancelling)]);
    assert_eq!(story.effects.steps, ["TERM for the command of 1", "KILL for the command of 1"]);
    assert_eq!(story.effects.killed, []);
    story.submit(1);
    assert_eq!(story.schedule(), []);
    story.end(1, 0, 1_000, Outcome::Failed(Failure::Cancelled));
    assert_eq!(story.finished(), ended([0], "cancelled"));
    assert_eq!(story.schedule().len(), 1, "the worker takes the next");
    assert_eq!((tick(&mut story), story.effects.killed.len()), (None, 0));
}

#[test]
fn a_command_that_does_not_end_costs_its_worker_at_last() {
    let mut story = with_command(NEVER_AGAIN, Some(Duration::from_secs(1)));
    for steps in [1, 2, 3] {
        story.now.monotonic_ns += 2_000_000_001;
        on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
        story.check();
        assert_eq!(story.effects.steps.len(), 3.min(steps + 1));
    }
    assert_eq!(story.effects.killed, [WorkerId(1)]);
    story.exit(1);
    assert_eq!(story.finished(), ended([0], "timeout"));
}

#[test]
fn a_command_is_idle_when_it_writes_nothing_and_only_then() {
    let mut story = with_command(Policy { idle_limit: Some(Duration::from_secs(3)), ..NEVER_AGAIN }, None);
    let tick = |story: &mut Story| on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
    assert_eq!(tick(&mut story), Some(3_000_000_001));
    for second in 1..=9 {
        story.now.monotonic_ns = second * 1_000_000_000;
        on_output(&mut story.state, WorkerId(1), story.now);
        assert_eq!(tick(&mut story), Some(story.now.monotonic_ns + 3_000_000_000));
    }
    story.now.monotonic_ns = 12_000_000_000;
    tick(&mut story);
    assert_eq!(story.effects.steps, ["ask 1 to end 1: IdleTimeout", "TERM for the command of 1"]);
}

#[test]
fn a_task_that_waits_for_too_long_fails_and_one_that_has_begun_does_not() {
    let mut story = Story::with_workers(1);
    story.measure(1_000);
    let patient = Policy { queue_limit: Some(Duration::from_secs(5)), retries: 1, ..NEVER_AGAIN };
    story.submit_policy(patient);
    story.submit_policy(patient);
    story.schedule();
    story.claim(1, 0);
    story.submit_with(None, true);
    story.submit_policy(patient);
    let tick = |story: &mut Story| on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
    story.now.monotonic_ns = 5_000_000_000;
    tick(&mut story);
    assert_eq!(story.finished(), []);
    story.now.monotonic_ns += 1;
    tick(&mut story);
    story.check();
    assert_eq!(story.finished(), ended([1, 3], "timeout"), "leased and not begun, and queued");
    let message = get_task(&story.state, &story.effects, TaskId(2)).unwrap().message.unwrap();
    assert_eq!(message, "timed out: it was still waiting for a worker after 5 s");
    // The wait between attempts is another one.
    story.fail(1, 0);
    story.now.monotonic_ns += 10_000_000_000;
    tick(&mut story);
    assert_eq!(story.finished(), []);
}

#[test]
fn tasks_are_cancelled_by_name_and_all_together() {
    let mut story = Story::with_workers(1);
    for name in ["nightly-1", "nightly-2", "hourly"] {
        story.submit_envelope(&Envelope { name, ..plain(NEVER_AGAIN) });
    }
    let cancel = |story: &mut Story, which: CancelWhich| {
        let reports = on_cancel_many(&mut story.state, &mut story.effects, &which, None, story.now);
        story.check();
        reports.into_iter().map(|(id, report)| (id.0, report)).collect::<Vec<_>>()
    };
    use CancelReport::{Cancelled, Ended, Unknown};
    assert_eq!(cancel(&mut story, CancelWhich::Named("nightly-*".into())), [(1, Cancelled), (2, Cancelled)]);
    assert_eq!(cancel(&mut story, CancelWhich::Ids(vec![TaskId(9), TaskId(2)])), [(2, Ended), (9, Unknown)]);
    assert_eq!(cancel(&mut story, CancelWhich::All), [(3, Cancelled)]);
    assert_eq!(cancel(&mut story, CancelWhich::All), []);
}

const TWICE: Policy<'static> = Policy { retries: 2, crash_limit: 2, ..NEVER_AGAIN };

#[test]
fn an_error_is_tried_again_after_a_while_and_charged() {
    let mut story = Story::with_workers(1);
    story.submit_policy(Policy { retries: 1, ..NEVER_AGAIN });
    assert_eq!(story.schedule(), [(1, 0, 1, 1)]);
    story.claim(1, 0);
    story.fail(1, 0);
    assert_eq!(story.effects.attempts, [(1, 1, "E".to_owned())]);
    assert_eq!(story.finished(), [], "nobody is told of an attempt");
    assert_eq!(story.schedule(), [], "it waits");
    let report = |story: &Story| get_task(&story.state, &story.effects, TaskId(1)).unwrap();
    assert_eq!((report(&story).state, report(&story).attempts.len()), (TaskState::Retrying, 1));
    let message = report(&story).attempts[0].message.clone().unwrap();
    let expected = format!("attempt 1 failed, and it waits to be tried again: {message}");
    assert_eq!(explained(&story, TaskId(1)), [expected]);
    let again = on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now).unwrap();
    assert!(
        (500_000_000..=1_000_000_001).contains(&again),
        "half of the wait at least, and all of it at most: {again}"
    );
    story.now.monotonic_ns = again - 1;
    assert_eq!(story.schedule(), []);
    story.now.monotonic_ns = again;
    assert_eq!(story.schedule(), [(1, 1, 1, 2)]);
    story.claim(1, 1);
    story.fail(1, 1);
    assert_eq!(story.finished(), ended([0], "E"), "once was granted");
    let attempts = report(&story).attempts;
    assert_eq!(attempts.iter().map(|attempt| attempt.number).collect::<Vec<_>>(), [1, 2]);
    assert!(attempts.iter().all(|attempt| attempt.message.as_deref() == Some("no")));
}

#[test]
fn a_lost_worker_is_charged_for_what_was_claimed_and_not_for_what_was_only_leased() {
    let mut story = Story::with_workers(1);
    story.measure(1_000);
    (0..5).for_each(|_| _ = story.submit_policy(TWICE));
    assert_eq!(story.schedule().len(), 5);
    // The first two have ended, and their results were on the way.
    (0..3).for_each(|lease| story.claim(1, lease));
    story.exit(1);
    assert_eq!(story.effects.attempts.iter().map(|attempt| attempt.0).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(story.finished(), []);
    story.start_missing();
    story.ready(WorkerId(2), None);
    let mut leases = story.schedule();
    leases.sort_unstable_by_key(|lease| lease.2);
    let attempts: Vec<_> = leases.iter().map(|&(_, _, task, attempt)| (task, attempt)).collect();
    assert_eq!(attempts, [(1, 2), (2, 2), (3, 2), (4, 1), (5, 1)]);
}

#[test]
fn crashes_and_errors_have_budgets_of_their_own() {
    let mut story = Story::with_workers(1);
    story.submit_policy(Policy { retry_backoff: Duration::ZERO, ..TWICE });
    let mut worker = 1;
    for _ in 0..2 {
        let (_, lease, ..) = story.schedule()[0];
        story.claim(worker, lease);
        story.fail(worker, lease);
        let (_, lease, ..) = story.schedule()[0];
        story.claim(worker, lease);
        story.exit(worker);
        worker += 1;
        story.start_missing();
        story.ready(WorkerId(worker), None);
    }
    assert_eq!(story.finished(), []);
    assert_eq!(story.schedule()[0].3, 5);
    story.claim(worker, 0);
    story.exit(worker);
    assert_eq!(story.finished(), ended([0], "signal:9"));
    let kinds: Vec<_> = story.effects.attempts.iter().map(|attempt| attempt.2.as_str()).collect();
    assert_eq!(kinds, ["E", "signal:9", "E", "signal:9"]);
}

#[test]
fn what_is_to_start_once_is_journaled_first_and_lost_with_its_worker() {
    let mut story = Story::with_workers(1);
    story.measure(1_000);
    let once = Policy { at_most_once: true, ..TWICE };
    story.submit_policy(once);
    story.submit_policy(once);
    story.effects.is_disk_full = true;
    assert_eq!(story.schedule(), [], "its start cannot be journaled");
    story.effects.is_disk_full = false;
    assert_eq!(story.schedule(), [(1, 0, 1, 1)], "leased singly");
    assert_eq!(story.effects.starts, [(1, 1), (1, 1)]);
    story.exit(1);
    story.start_missing();
    story.ready(WorkerId(2), None);
    assert_eq!(story.schedule(), [(2, 0, 1, 1)], "it had not been begun");
    story.claim(2, 0);
    story.exit(2);
    assert_eq!(story.finished(), ended([0], "lost"));
    story.start_missing();
    story.ready(WorkerId(3), None);
    assert_eq!(story.schedule(), [(3, 0, 2, 1)]);
}

#[test]
fn what_a_dead_heads_workers_had_begun_is_charged_once_and_tried_again() {
    let mut story = Story::with_workers(1);
    let (mut again, mut once) = (Vec::new(), Vec::new());
    plain(Policy { crash_limit: 1, ..NEVER_AGAIN }).encode(&mut again);
    plain(Policy { at_most_once: true, ..NEVER_AGAIN }).encode(&mut once);
    for (id, envelope) in [(1, &again), (2, &again), (3, &again), (4, &once), (5, &once)] {
        on_restored_submission(&mut story.state, TaskId(id), JobId(5), 77, envelope).unwrap();
    }
    let lost_with = |worker| AttemptReport {
        number: 1,
        worker_id: Some(WorkerId(worker)),
        worker_pid: Some(800),
        started_unix_nano: None,
        ended_unix_nano: 9,
        failure: Some(Failure::HeadLost),
        message: Some("gone".into()),
    };
    on_restored_attempt(&mut story.state, TaskId(2), lost_with(8), None);
    on_restored_attempt(&mut story.state, TaskId(3), lost_with(8), None);
    let claim = |attempt| LeftClaim { attempt, worker: WorkerId(8), worker_pid: 800 };
    // The journal knows of the claim of 2, and not of the second one of 3.
    let claims = HashMap::from([(TaskId(1), claim(1)), (TaskId(2), claim(1)), (TaskId(3), claim(2))]);
    let started = HashMap::from([(TaskId(5), 1)]);
    let lost = on_restored(&mut story.state, &mut story.effects, &claims, &started, story.now);
    story.check();
    assert_eq!(lost.iter().map(|lost| (lost.task.0, lost.attempt)).collect::<Vec<_>>(), [(1, 1), (3, 2), (5, 1)]);
    assert_eq!(story.effects.attempts, [(1, 1, "lost".to_owned())], "2 is in the journal already, 3 and 5 have ended");
    assert_eq!(story.effects.journaled, [TaskId(3), TaskId(5)]);
    let task = |id| get_task(&story.state, &story.effects, TaskId(id)).unwrap();
    let states: Vec<_> = (1..=5).map(|id| (task(id).state, task(id).attempt)).collect();
    use TaskState::{Failed, Waiting};
    assert_eq!(states, [(Waiting, 1), (Waiting, 1), (Failed, 2), (Waiting, 0), (Failed, 1)]);
    assert!(task(5).message.unwrap().starts_with("lost: the head died while it ran"));
}

#[test]
fn a_key_names_one_task_as_long_as_that_is_remembered() {
    let mut story = Story::with_workers(1);
    let nightly = plain(Policy { idempotency_key: "nightly", ..NEVER_AGAIN });
    assert_eq!(find_by_key(&story.state, &nightly), Ok(None));
    let id = story.submit_envelope(&nightly);
    assert_eq!(find_by_key(&story.state, &nightly), Ok(Some(id)));
    assert_eq!(find_by_key(&story.state, &plain(NEVER_AGAIN)), Ok(None), "no key is no key");
    let other = TaskSpec::Function(FunctionSpec::of_task("demo", "my_function", &[0x91, 1]));
    let taken = find_by_key(&story.state, &Envelope { spec: other, ..nightly.clone() }).unwrap_err();
    assert_eq!((taken.key.as_str(), taken.task, taken.target.as_str()), ("nightly", id, "demo.my_function"));

    on_submitted_again(&mut story.state, &mut story.effects, id, DriverId(2), 70);
    let (worker, lease, ..) = story.schedule()[0];
    story.claim(worker, lease);
    story.result(worker, lease, 1);
    assert_eq!(story.finished(), ended([0, 70], "ok"), "who submitted it again is told too");
    on_submitted_again(&mut story.state, &mut story.effects, id, DriverId(2), 71);
    assert_eq!(story.finished(), ended([71], "ok"), "at once when it has ended");
}

#[test]
fn nothing_is_tried_again_while_the_head_stops() {
    let mut story = Story::with_workers(1);
    story.submit_policy(Policy { retry_backoff: Duration::from_secs(9), ..TWICE });
    story.submit_policy(TWICE);
    let (_, lease, ..) = story.schedule()[0];
    story.claim(1, lease);
    story.fail(1, lease);
    let (_, lease, ..) = story.schedule()[0];
    story.claim(1, lease);
    on_stop(&mut story.state, &mut story.effects, false, story.now);
    assert_eq!(story.finished(), ended([0], "stopped"), "it waited to be tried again");
    story.fail(1, lease);
    assert_eq!(story.finished(), ended([1], "E"));
}

#[test]
fn a_task_that_waits_gives_its_slot_to_a_further_worker_which_ends_when_it_is_not_needed_any_more() {
    let mut story = Story::with_workers(1);
    story.state.max_processes = 3;
    story.submit(3);
    assert_eq!(story.schedule(), [(1, 0, 1, 1)]);
    story.claim(1, 0);
    let children = [story.submit_nested(TaskId(1)), story.submit_nested(TaskId(1))];
    story.start_missing();
    assert_eq!(story.effects.started.len(), 0, "nothing waits for others yet");
    story.wait(1, 1, 2, &children);
    story.start_missing();
    assert_eq!(story.effects.started, [WorkerId(2)], "one slot, one worker");
    story.ready(WorkerId(2), None);
    assert_eq!(list_workers(&story.state, &story.effects, story.now)[0].state, WorkerState::Waiting);
    assert_eq!(story.schedule(), [(2, 0, 4, 1)], "what a task waits for comes before what nobody waits for");
    for (lease, next) in [(0, Some((2, 1, 5, 1))), (1, None)] {
        story.claim(2, lease);
        story.result(2, lease, 5_000_000);
        let leases = story.schedule();
        // The waiter goes on with the last result, and has the only slot again.
        assert_eq!(leases, next.into_iter().collect::<Vec<_>>());
    }
    assert!(story.state.workers[&WorkerId(1)].waits.is_empty());
    story.result(1, 0, 5_000_000);
    assert_eq!(story.schedule().len(), 1);
    on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
    story.now.monotonic_ns += 10_000_000_000;
    on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
    assert_eq!(story.effects.asked.len(), 1);
    let (ended, lost) = (story.effects.asked[0], story.state.workers_lost);
    story.exit(ended.0);
    assert_eq!(story.state.workers_lost, lost, "it was told to");
    story.start_missing();
    assert_eq!(story.state.workers.len(), 1);
}

#[test]
fn where_no_further_worker_may_be_what_is_waited_for_runs_in_the_worker_that_waits() {
    let mut story = Story::with_workers(1);
    story.submit(2);
    story.schedule();
    story.claim(1, 0);
    let (first, second) = (story.submit_nested(TaskId(1)), story.submit_nested(TaskId(1)));
    story.wait(1, 1, 1, &[first, second]);
    let inline = |task: TaskId| INLINE_LEASE | task.0;
    assert_eq!(story.schedule(), [(1, inline(first), first.0, 1)]);
    assert_eq!(story.schedule(), [], "one at a time");
    let grandchild = story.submit_nested(first);
    story.wait(1, 2, 1, &[grandchild]);
    assert_eq!(story.schedule(), [(1, inline(grandchild), grandchild.0, 1)]);
    let loss = |story: &mut Story| story.exit(1).attempts.iter().map(|lost| lost.task.0).collect::<Vec<_>>();
    story.result(1, inline(grandchild), 1_000);
    assert_eq!(story.schedule(), [], "the child has gone on");
    story.result(1, inline(first), 1_000);
    assert_eq!(story.schedule(), [], "one was enough");
    story.wait(1, 3, 1, &[second]);
    assert_eq!(story.schedule(), [(1, inline(second), second.0, 1)]);
    assert_eq!(loss(&mut story), [1, second.0], "both die with their worker");
}

#[test]
fn a_task_with_a_bound_on_its_memory_has_a_process_of_its_own_or_fails_and_names_the_limit() {
    let bounded = Demand { memory_bytes: Some(64 << 20), ..Demand::default() };
    let mut story = Story::with_workers(1);
    story.submit(1);
    story.schedule();
    story.claim(1, 0);
    let (first, plain) = (story.submit_demand(Some(TaskId(1)), bounded.clone()), story.submit_nested(TaskId(1)));
    story.wait(1, 1, 2, &[first, plain]);
    assert_eq!(story.schedule(), [(1, INLINE_LEASE | plain.0, plain.0, 1)], "the other one needs no process");
    assert_eq!(story.schedule(), [], "something goes on");
    story.result(1, INLINE_LEASE | plain.0, 1_000);
    assert_eq!(story.schedule(), []);
    let message = "it may take 64 MiB of memory (--memory), so it needs a process of its own, but all 1 worker process that \
                   there may be wait for other tasks\n(hint: start the head with a higher --max-processes)";
    assert!(
        matches!(story.state.tasks.get(first).map(|task| task.progress()), Some(Progress::Ended(ended))
            if matches!(&ended.outcome, Outcome::Failed(Failure::NoWorker { message: said }) if said == message)),
        "{:?}",
        story.state.tasks.get(first)
    );
    assert!(!story.state.workers.values().any(|worker| worker.is_waiting()), "whoever waited goes on");

    // One with room for another process gets it.
    let mut story = Story::with_workers(1);
    story.state.max_processes = 2;
    story.submit(1);
    story.schedule();
    story.claim(1, 0);
    let first = story.submit_demand(Some(TaskId(1)), bounded);
    story.wait(1, 1, 1, &[first]);
    assert_eq!(story.schedule(), []);
    assert_eq!(nesting::missing_workers(&story.state), 1);
}

#[test]
fn a_task_inside_of_another_is_asked_to_end_and_one_of_a_worker_at_a_time() {
    let inside = || {
        let mut story = Story::with_workers(1);
        story.submit_policy(TWICE);
        story.schedule();
        story.claim(1, 0);
        let inner = story.submit_nested(TaskId(1));
        story.wait(1, 1, 1, &[inner]);
        assert_eq!(story.schedule(), [(1, INLINE_LEASE | inner.0, inner.0, 1)]);
        (story, inner)
    };
    let cancel = |story: &mut Story, id: TaskId| {
        let report = on_cancel(&mut story.state, &mut story.effects, id, None, story.now);
        story.check();
        report
    };
    let (mut story, inner) = inside();
    assert_eq!(cancel(&mut story, inner), CancelReport::Cancelling);
    assert_eq!(std::mem::take(&mut story.effects.steps), ["ask 1 to end 2: Cancelled"]);
    assert_eq!(cancel(&mut story, TaskId(1)), CancelReport::Cancelling);
    assert_eq!(std::mem::take(&mut story.effects.steps), [""; 0], "the worker is told of one at a time");
    story.result(1, INLINE_LEASE | inner.0, 1_000);
    assert_eq!(std::mem::take(&mut story.effects.steps), ["ask 1 to end 1: Cancelled"]);
    story.result(1, 0, 1_000);
    assert_eq!(story.effects.killed, [], "both have ended");
    story.submit(1);
    assert_eq!(story.schedule().len(), 1, "the worker goes on");

    let (mut story, inner) = inside();
    cancel(&mut story, inner);
    cancel(&mut story, TaskId(1));
    for _ in 0..2 {
        story.now.monotonic_ns += 2_000_000_000;
        on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
    }
    assert_eq!(story.effects.killed, [WorkerId(1)]);
    story.exit(1);
    story.schedule();
    let error_types: Vec<_> = story.finished().into_iter().map(|(_, error_type)| error_type).collect();
    assert_eq!(error_types, ["cancelled", "abandoned"], "neither is tried again");
}

#[test]
fn a_task_that_is_tried_again_leaves_nothing_running_that_it_submits_again() {
    let mut story = Story::with_workers(2);
    story.submit_policy(TWICE);
    let leases = story.schedule();
    let worker = leases[0].0;
    story.claim(worker, leases[0].1);
    let child = story.submit_nested(TaskId(1));
    let held = {
        story.next_inputs = vec![Input { argument: 0, source: InputSource::Task(child) }];
        story.submit_from(Some(TaskId(1)), None, false)
    };
    story.wait(worker, 1, 2, &[child, held]);
    let leases = story.schedule();
    assert_eq!(leases.len(), 1);
    story.exit(worker);
    assert_eq!(story.finished(), [], "the task is tried again");
    let again: Vec<_> = story.schedule().into_iter().map(|(_, _, task, attempt)| (task, attempt)).collect();
    assert_eq!(again, [(1, 2)]);
    let ended: Vec<_> = story.finished().into_iter().map(|(_, error_type)| error_type).collect();
    assert_eq!(ended, ["abandoned", "abandoned"]);
    let message = get_task(&story.state, &story.effects, child).unwrap().message.unwrap();
    assert!(message.contains("because task 1, which had submitted it"), "{message}");
}

#[test]
fn what_a_task_has_submitted_ends_with_it_unless_it_came_to_an_end_of_its_own() {
    let mut story = Story::with_workers(2);
    story.submit(2);
    for (worker, lease, _, _) in story.schedule() {
        story.claim(worker, lease);
    }
    let left = story.submit_nested(TaskId(1));
    let (child, held) = (story.submit_nested(TaskId(2)), story.submit_nested(TaskId(2)));
    story.result(1, 0, 5_000_000);
    let leases = story.schedule();
    assert_eq!(leases.iter().map(|lease| lease.2).collect::<Vec<_>>(), [left.0], "it runs on");
    let grandchild = {
        story.claim(1, leases[0].1);
        story.result(1, leases[0].1, 5_000_000);
        let leases = story.schedule();
        assert_eq!(leases[0].2, child.0);
        story.claim(1, leases[0].1);
        story.submit_nested(child)
    };
    story.finished();
    on_cancel(&mut story.state, &mut story.effects, TaskId(2), Some(0), story.now);
    assert_eq!(std::mem::take(&mut story.effects.killed), [WorkerId(2)]);
    story.exit(2);
    story.schedule();
    assert_eq!(
        story.effects.steps.last().map(String::as_str),
        Some("ask 1 to end 4: Cancelled"),
        "its child runs there"
    );
    for _ in 0..2 {
        story.now.monotonic_ns += 2_000_000_000;
        on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
    }
    assert_eq!(std::mem::take(&mut story.effects.killed), [WorkerId(1)]);
    story.exit(1);
    story.schedule();
    let ended = [(1, "cancelled".into()), (4, "abandoned".into()), (3, "abandoned".into()), (5, "abandoned".into())];
    assert_eq!(story.finished(), ended);
    let message = |id| get_task(&story.state, &story.effects, id).unwrap().message.unwrap();
    assert!(message(held).contains("because task 2, which had submitted it"), "{}", message(held));
    assert!(message(grandchild).contains(&format!("because task {child},")), "{}", message(grandchild));
    assert!(story.state.children.is_empty());
}

#[test]
fn a_wait_may_end_before_what_it_waits_for_and_one_for_what_has_ended_is_none() {
    let mut story = Story::with_workers(2);
    story.submit(1);
    let leases = story.schedule();
    let parent = leases[0].0;
    story.claim(parent, 0);
    let child = story.submit_nested(TaskId(1));
    story.wait(parent, 7, 1, &[child]);
    assert!(story.state.workers[&WorkerId(parent)].is_waiting());
    nesting::on_go_on(&mut story.state, WorkerId(parent), 7);
    assert!(!story.state.workers[&WorkerId(parent)].is_waiting());
    let leases = story.schedule();
    story.claim(leases[0].0, leases[0].1);
    story.result(leases[0].0, leases[0].1, 1_000);
    story.wait(parent, 8, 1, &[child]);
    assert!(!story.state.workers[&WorkerId(parent)].is_waiting());
}

#[test]
fn tasks_beyond_the_depth_that_fits_one_process_fail_and_name_the_limit() {
    let mut story = Story::with_workers(1);
    story.submit(1);
    story.schedule();
    story.claim(1, 0);
    let mut parent = TaskId(1);
    for depth in 0..tracer_ipc::spool::INLINE_LIMIT as u64 {
        let child = story.submit_nested(parent);
        story.wait(1, depth, 1, &[child]);
        assert_eq!(story.schedule().len(), 1);
        parent = child;
    }
    let child = story.submit_nested(parent);
    story.wait(1, 1000, 1, &[child]);
    story.finished();
    assert_eq!(story.schedule(), []);
    let report = get_task(&story.state, &story.effects, child).unwrap();
    assert!(report.message.unwrap().contains("--max-processes"));
    assert!(!story.state.workers[&WorkerId(1)].is_waiting(), "its parent goes on");
}

#[test]
fn a_task_is_held_until_the_results_that_are_its_arguments_are_there() {
    let mut story = Story::with_workers(2);
    story.submit(2);
    let sum = story.submit_after(&[TaskId(1), TaskId(2), TaskId(1)]);
    let of_sum = story.submit_after(&[sum]);
    assert_eq!(story.state.tally.counts().waiting, 4);
    for (worker, lease, task, _) in story.schedule() {
        assert!(task <= 2);
        story.claim(worker, lease);
        story.result(worker, lease, 5_000_000);
    }
    let leases = story.schedule();
    assert_eq!(leases.iter().map(|lease| lease.2).collect::<Vec<_>>(), [sum.0]);
    let mut values = Vec::new();
    for argument in 0..3 {
        values.put_u32(argument);
        values.put_u8(0);
        values.put_bytes(&[1]);
    }
    assert_eq!(inputs::values(&story.state.tasks, sum), values);
    assert_eq!(get_task(&story.state, &story.effects, of_sum).unwrap().state, TaskState::Waiting);
    story.claim(leases[0].0, leases[0].1);
    story.result(leases[0].0, leases[0].1, 5_000_000);
    assert_eq!(story.schedule()[0].2, of_sum.0);
}

#[test]
fn a_task_fails_with_what_it_needs_and_so_do_those_that_need_it() {
    let mut story = Story::with_workers(1);
    story.submit(1);
    let second = story.submit_after(&[TaskId(1)]);
    let third = story.submit_after(&[second]);
    on_cancel(&mut story.state, &mut story.effects, TaskId(1), None, story.now);
    story.schedule();
    assert_eq!(story.finished(), [(0, "cancelled".into()), (1, "input".into()), (2, "input".into())]);
    let message = get_task(&story.state, &story.effects, third).unwrap().message.unwrap();
    let cause = "task 1 (demo.my_function), whose result is an argument of it, failed: it was cancelled";
    assert_eq!(message, format!("task 2 (demo.my_function), whose result is an argument of it, failed: {cause}"));
    let later = story.submit_after(&[third]);
    let unknown = story.submit_after(&[TaskId(99)]);
    story.schedule();
    let error_type = |id| get_task(&story.state, &story.effects, id).unwrap().failure.unwrap().error_type();
    assert_eq!((error_type(later), error_type(unknown)), ("input".into(), "input".into()));
}

#[test]
fn a_held_task_can_be_cancelled_and_is_held_again_by_the_next_head() {
    let mut story = Story::with_workers(1);
    story.submit(1);
    let held = story.submit_after(&[TaskId(1)]);
    let report = on_cancel(&mut story.state, &mut story.effects, held, None, story.now);
    assert_eq!((report, story.state.tally.held()), (CancelReport::Cancelled, 0));
    story.check();

    let mut next = Story::with_workers(1);
    for (id, inputs) in [(5, vec![]), (6, vec![Input { argument: 0, source: InputSource::Task(TaskId(5)) }])] {
        let spec = TaskSpec::Function(FunctionSpec::of_task("demo", "my_function", &[0x91, 0xc0]));
        let envelope = Envelope { spec, inputs, ..plain(NEVER_AGAIN) };
        let mut bytes = Vec::new();
        envelope.encode(&mut bytes);
        on_restored_submission(&mut next.state, TaskId(id), JobId(1), 1, &bytes).unwrap();
    }
    on_restored(&mut next.state, &mut next.effects, &HashMap::new(), &HashMap::new(), next.now);
    next.check();
    assert_eq!(next.schedule().iter().map(|lease| lease.2).collect::<Vec<_>>(), [5]);
    next.claim(1, 0);
    next.result(1, 0, 1_000);
    assert_eq!(next.schedule().iter().map(|lease| lease.2).collect::<Vec<_>>(), [6]);
}

#[test]
fn results_that_are_still_to_be_arguments_are_remembered_beyond_the_bound() {
    let mut story = Story::with_workers(2);
    story.measure(1);
    let never = story.submit_with(None, true);
    let leases = story.schedule();
    let (its_worker, its_lease) = (leases[0].0, leases[0].1);
    story.claim(its_worker, its_lease);
    let run = |story: &mut Story| {
        for (worker, lease, _, _) in story.schedule() {
            story.claim(worker, lease);
            story.result(worker, lease, 1);
        }
    };
    let first = story.submit_with(None, false);
    run(&mut story);
    let held = story.submit_after(&[first, never]);
    for _ in 0..=HISTORY_LIMIT / 100 {
        story.submit(100);
        run(&mut story);
    }
    assert!(story.state.tasks.get(first).is_some() && story.state.tally.counts().forgotten > 0);
    assert!(story.state.kept.contains(&first), "it is not looked at with every end");
    story.result(its_worker, its_lease, 1);
    run(&mut story);
    assert_eq!(get_task(&story.state, &story.effects, held).unwrap().state, TaskState::Succeeded);
    story.submit(2);
    run(&mut story);
    assert!(story.state.tasks.get(first).is_none(), "nobody needs it any more");
}

#[test]
fn files_of_values_go_when_nobody_needs_them_any_more() {
    let mut story = Story::with_workers(1);
    let stored = |name: &str| Stored { name: name.into(), bytes: 1_000_000 };
    let removed = |story: &mut Story| std::mem::take(&mut story.state.values_to_remove);
    let end_with = |story: &mut Story, name: &str| {
        let (worker, lease, _, _) = story.schedule()[0];
        story.claim(worker, lease);
        let outcome = Outcome::Stored(stored(name));
        let result = AttemptResult { lease, started_unix_nano: 1, run_ns: 5_000_000, span: None, outcome, usage: None };
        on_result(&mut story.state, &mut story.effects, WorkerId(worker), result, story.now);
        story.check();
    };
    story.next_inputs = vec![Input { argument: 0, source: InputSource::Stored(stored("1")) }];
    let first = story.submit_from(None, None, false);
    let needs_it = story.submit_after(&[first]);
    end_with(&mut story, "2");
    assert_eq!(removed(&mut story), ["1"], "an argument goes with its task");
    inputs::on_forget(&mut story.state, first);
    assert_eq!(removed(&mut story), [""; 0], "another task is to get it");
    let mut expected = Vec::new();
    expected.put_u32(0);
    expected.put_u8(1);
    expected.put_str("2");
    expected.put_u64(1_000_000);
    assert_eq!(inputs::values(&story.state.tasks, needs_it), expected);
    end_with(&mut story, "3");
    assert_eq!(removed(&mut story), ["2"]);
    assert_eq!(inputs::files(&story.state), HashSet::from(["3".to_owned()]));
    inputs::on_forget(&mut story.state, needs_it);
    assert_eq!(removed(&mut story), ["3"]);
    story.submit(2);
    end_with(&mut story, "4");
    story.state.stored_limit = 1_500_000;
    end_with(&mut story, "5");
    assert_eq!(removed(&mut story), ["4"], "the oldest goes when there are too many");
    let task = |id| get_task(&story.state, &story.effects, TaskId(id)).unwrap();
    assert_eq!(task(3).stored.unwrap().name, "");
    assert_eq!(task(4).stored.unwrap().name, "5");
}

/// Something that may happen.
#[derive(Clone, Debug)]
enum Step {
    Submit(u8),
    Watched,
    Limited,
    /// A task needs the results of two others.
    After(u8, u8),
    /// A task that runs submits another.
    Nested(u8),
    /// A task that runs waits for one, or all, of those that it has submitted.
    Wait(u8, bool),
    Stubborn(u8),
    /// A task that needs so many cpus, gpus and licenses.
    Demand(u8, u8, u8),
    /// A task that runs submits one that needs so many cpus.
    NestedDemand(u8, u8),
    Fail(u8),
    Schedule,
    Claim(u8),
    Result(u8, u32),
    Exit(u8),
    Ready,
    Cancel(u8),
    Tick,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => (1u8..40).prop_map(Step::Submit),
        1 => Just(Step::Watched),
        1 => Just(Step::Limited),
        2 => (any::<u8>(), any::<u8>()).prop_map(|(first, second)| Step::After(first, second)),
        3 => any::<u8>().prop_map(Step::Nested),
        2 => (any::<u8>(), any::<bool>()).prop_map(|(which, for_all)| Step::Wait(which, for_all)),
        1 => (0u8..3).prop_map(Step::Stubborn),
        2 => (0u8..4, 0u8..3, 0u8..2).prop_map(|(cpus, gpus, licenses)| Step::Demand(cpus, gpus, licenses)),
        1 => (any::<u8>(), 0u8..4).prop_map(|(which, cpus)| Step::NestedDemand(which, cpus)),
        2 => any::<u8>().prop_map(Step::Fail),
        3 => Just(Step::Schedule),
        4 => any::<u8>().prop_map(Step::Claim),
        4 => (any::<u8>(), 0u32..4_000_000).prop_map(|(which, run_ns)| Step::Result(which, run_ns)),
        1 => any::<u8>().prop_map(Step::Exit),
        2 => Just(Step::Ready),
        1 => any::<u8>().prop_map(Step::Cancel),
        1 => Just(Step::Tick),
    ]
}

/// One of the things that may be chosen, if there are any.
fn pick<T: Copy>(from: &[T], which: u8) -> Option<T> {
    (!from.is_empty()).then(|| from[usize::from(which) % from.len()])
}

impl Story {
    fn leases(&self, wanted: ClaimState) -> Vec<(u64, u64)> {
        let workers = self.state.workers.iter();
        workers
            .flat_map(|(id, worker)| {
                let waits = |task| worker.waits.iter().any(move |wait| wait.task == task);
                let grants = worker.leases.iter().chain(&worker.inline);
                // What waits for others does not end.
                grants.filter(move |grant| !waits(grant.task)).map(move |grant| (id, grant.number))
            })
            .filter(|&(worker, lease)| self.effects.claim_state(worker, lease) == wanted)
            .map(|(worker, lease)| (worker.0, lease))
            .collect()
    }

    /// The task that each worker runs, the innermost, unless it waits.
    fn running(&self) -> Vec<(u64, TaskId)> {
        let running = |(id, worker): (WorkerId, &Worker)| {
            let in_ring = worker.leases.front();
            let in_ring = in_ring.filter(|grant| self.effects.claim_state(id, grant.number) == ClaimState::Claimed);
            let task = worker.inline.last().or(in_ring)?.task;
            (!worker.is_waiting()).then_some((id.0, task))
        };
        self.state.workers.iter().filter_map(running).collect()
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Submit(count) => self.submit((*count).into()),
            Step::Watched => drop(self.submit_with(None, true)),
            Step::Limited => drop(self.submit_with(Some(Duration::from_millis(1)), false)),
            Step::After(first, second) => {
                let id = |which: u8| TaskId(u64::from(which) % self.state.tasks.next_id().0);
                self.submit_after(&[id(*first), id(*second)]);
            }
            Step::Nested(which) => {
                if let Some((_, task)) = pick(&self.running(), *which) {
                    self.submit_nested(task);
                }
            }
            Step::Wait(which, for_all) => {
                if let Some((worker, task)) = pick(&self.running(), *which) {
                    let children = self.state.tasks.iter_newest_first();
                    let children: Vec<_> = children
                        .filter(|(_, child)| child.submitter == Some(task))
                        .filter(|(_, child)| !matches!(child.progress(), Progress::Ended(_)))
                        .map(|(id, _)| id)
                        .collect();
                    let wanted = if *for_all { children.len() as u32 } else { 1 };
                    self.next_wait += 1;
                    self.wait(worker, self.next_wait, wanted, &children);
                }
            }
            Step::Stubborn(0) => drop(self.submit_policy(Policy { at_most_once: true, ..NEVER_AGAIN })),
            Step::Stubborn(times) => {
                let times = u32::from(*times);
                let again = Policy {
                    retries: times,
                    crash_limit: times,
                    retry_backoff: Duration::from_millis(2),
                    ..NEVER_AGAIN
                };
                self.submit_policy(again);
            }
            Step::Demand(cpus, gpus, licenses) => {
                let amounts = [("gpu", u64::from(*gpus)), ("license", u64::from(*licenses))];
                let resources = amounts.into_iter().filter(|&(_, amount)| amount > 0).collect();
                self.submit_demand(None, Demand { num_cpus: (*cpus).into(), resources, memory_bytes: None });
            }
            Step::NestedDemand(which, cpus) => {
                if let Some((_, task)) = pick(&self.running(), *which) {
                    self.submit_demand(Some(task), Demand { num_cpus: (*cpus).into(), ..Demand::default() });
                }
            }
            Step::Fail(which) => {
                if let Some((worker, lease)) = pick(&self.leases(ClaimState::Claimed), *which) {
                    self.fail(worker, lease);
                }
            }
            Step::Schedule => drop(self.schedule()),
            Step::Claim(which) => {
                if let Some((worker, lease)) = pick(&self.leases(ClaimState::Granted), *which) {
                    self.claim(worker, lease);
                }
            }
            Step::Result(which, run_ns) => {
                if let Some((worker, lease)) = pick(&self.leases(ClaimState::Claimed), *which) {
                    self.result(worker, lease, (*run_ns).into());
                }
            }
            Step::Exit(which) => {
                let workers: Vec<_> = self.state.workers.keys().collect();
                if let Some(worker) = pick(&workers, *which) {
                    self.exit(worker.0);
                }
            }
            Step::Ready => {
                self.start_missing();
                for worker in std::mem::take(&mut self.effects.started) {
                    if self.state.workers.contains_key(&worker) {
                        self.ready(worker, None);
                    }
                }
            }
            Step::Cancel(which) => {
                let id = TaskId(u64::from(*which) + 1);
                let grace_ns = [None, Some(0)][usize::from(*which) % 2];
                on_cancel(&mut self.state, &mut self.effects, id, grace_ns, self.now);
            }
            Step::Tick => {
                self.now.monotonic_ns += 1_000_000;
                on_tick(&mut self.state, &mut self.effects, START_LIMIT_NS, self.now);
            }
        }
        // A worker that was killed ends.
        for worker in std::mem::take(&mut self.effects.killed) {
            if self.state.workers.contains_key(&worker) {
                self.exit(worker.0);
            }
        }
        self.check();
    }
}

proptest! {
    #[test]
    fn whatever_happens_every_task_ends_once(steps in prop::collection::vec(step(), 0..200), more_processes in 0u8..3) {
        let mut story = Story::with_workers(3);
        story.resources(&[("gpu", 2), ("license", 1)]);
        story.state.max_processes = 3 + usize::from(more_processes);
        for step in &steps {
            story.take(step);
        }
        // Then nothing more goes wrong.
        story.state.no_worker = None;
        story.state.failed_starts = 0;
        story.state.brief_lives = 0;
        let mut rounds = 0;
        while story.state.tally.counts().waiting + story.state.tally.counts().leased > 0 {
            rounds += 1;
            prop_assert!(rounds < 100_000, "nothing goes on");
            story.take(&Step::Ready);
            story.take(&Step::Tick);
            story.take(&Step::Schedule);
            for (worker, lease) in story.leases(ClaimState::Granted) {
                story.claim(worker, lease);
            }
            for (worker, lease) in story.leases(ClaimState::Claimed) {
                story.result(worker, lease, 1_000);
            }
        }
        let starts: HashSet<_> = story.effects.starts.iter().map(|(task, _)| task).collect();
        let claimed_twice = story.effects.claimed.iter().filter(|(task, count)| starts.contains(task) && **count > 1);
        prop_assert_eq!(claimed_twice.count(), 0, "what is to start once was started twice");
        let mut tags: Vec<_> = story.finished().into_iter().map(|(tag, _)| tag).collect();
        tags.sort_unstable();
        prop_assert_eq!(tags, (0..story.next_tag).collect::<Vec<_>>());
    }
}

#[test]
fn the_times_of_a_task_are_told_only_if_it_traces_the_runtime() {
    let mut story = Story::with_workers(1);
    for (traces_runtime, is_reported) in [(false, true), (true, true), (true, false)] {
        story.traces_runtime = traces_runtime;
        story.submit(1);
        let submitted = story.now.unix_nano;
        story.now.unix_nano += 2;
        let (worker, lease, ..) = story.schedule()[0];
        // It was written to the journal in the same turn: it is not leased before that.
        let queued = story.effects.queued.pop().expect("it is leased");
        assert_eq!(queued, traces_runtime.then_some((submitted + 5, submitted + 5)));
        assert_eq!(story.state.runtime_since.len(), usize::from(traces_runtime));
        story.now.unix_nano += 100;
        story.claim(worker, lease);
        let claimed = story.now.unix_nano;
        if is_reported {
            story.result(worker, lease, 20);
        } else {
            (story.now.unix_nano, story.now.monotonic_ns) = (claimed + 1_000, story.now.monotonic_ns + 1_100);
            story.exit(worker);
        }
        // As the worker says, and when it does not, when the head heard of it.
        let ended = if is_reported { claimed + 20 } else { story.now.unix_nano };
        assert_eq!(story.effects.ended.pop(), Some(traces_runtime.then_some(ended)));
        assert!(story.state.runtime_since.is_empty());
    }
    // One that has waited is leased when it is leased.
    story.start_missing();
    story.submit(1);
    let submitted = story.now.unix_nano;
    story.now.unix_nano += 700;
    story.ready(WorkerId(2), None);
    story.schedule();
    assert_eq!(story.effects.queued.pop(), Some(Some((submitted + 5, submitted + 700))));
}

/// The sentences that explain a task.
fn explained(story: &Story, id: TaskId) -> Vec<String> {
    let explanation = explain_task(&story.state, &story.effects, id).unwrap();
    explanation.reasons.iter().map(ToString::to_string).collect()
}

#[test]
fn a_leased_task_is_explained_until_its_result_is_there() {
    let mut story = Story::with_workers(1);
    story.measure(1_000);
    story.submit(3);
    story.schedule();
    let has_it = "worker 1 (pid 101) has it and has not begun it";
    assert_eq!(explained(&story, TaskId(1)), [has_it]);
    assert_eq!(explained(&story, TaskId(3)), [format!("{has_it}; it has 2 tasks before it")]);
    story.claim(1, 0);
    assert!(explained(&story, TaskId(1))[0].starts_with("worker 1 (pid 101) has run it for "));
    story.claim(1, 1);
    assert_eq!(explained(&story, TaskId(1)), ["it has ended in its worker, and its result is on the way"]);
    on_cancel(&mut story.state, &mut story.effects, TaskId(2), None, story.now);
    assert_eq!(explained(&story, TaskId(2))[1], "its worker is being ended, because task 2 was cancelled");
    assert!(explain_task(&story.state, &story.effects, TaskId(9)).is_none());
}

#[test]
fn a_task_without_a_worker_is_told_what_the_workers_are_at() {
    let mut story = Story::starting(2, false);
    story.state.hook = Some("a_hook:setup".into());
    story.submit(2);
    let starting =
        "no worker is ready; 2 workers are being started: the hook `a_hook:setup` runs in each before it takes tasks";
    assert_eq!(explained(&story, TaskId(1)), [starting]);
    assert_eq!(explained(&story, TaskId(2)), ["1 task is before it in the queue", starting]);
    story.ready(WorkerId(1), None);
    assert_eq!(explained(&story, TaskId(1)), ["it is about to be given to a worker"]);
    story.schedule();
    let starting = starting.replace("2 workers are", "1 worker is");
    assert_eq!(explained(&story, TaskId(2)), [starting]);
}

fn demand<'a>(num_cpus: u32, resources: &[(&'a str, u64)]) -> Demand<'a> {
    Demand { num_cpus, resources: resources.to_vec(), memory_bytes: None }
}

#[test]
fn slots_and_resources_are_taken_by_the_lease_and_given_back_with_the_end_however_it_comes() {
    let mut story = Story::with_workers(3);
    story.resources(&[("gpu", 2)]);
    let first = story.submit_demand(None, demand(2, &[("gpu", 2)]));
    let second = story.submit_demand(None, demand(1, &[("gpu", 1)]));
    story.submit(2);
    let leased = story.schedule();
    let tasks = |leased: &[(u64, u64, u64, u32)]| leased.iter().map(|lease| lease.2).collect::<HashSet<_>>();
    assert_eq!(tasks(&leased), HashSet::from([first.0, 3]), "two slots and one");
    assert_eq!(Free::of(&story.state), Free { cpus: 0, resources: vec![0], without_slot: 1 });
    let (worker, lease, ..) = *leased.iter().find(|lease| lease.2 == first.0).unwrap();
    story.claim(worker, lease);
    story.exit(worker);
    assert_eq!(Free::of(&story.state).resources, [2]);
    let leased = story.schedule();
    assert_eq!(tasks(&leased), HashSet::from([second.0]), "one process is left");
    let lacks = story.submit_demand(None, demand(1, &[("gpu", 2)]));
    story.schedule();
    assert_eq!(
        explained(&story, lacks),
        ["it asks for 2 of the resource `gpu`, and 1 of 2 are free; task 2 (demo.my_function) has 1"]
    );
    story.claim(leased[0].0, leased[0].1);
    story.fail(leased[0].0, leased[0].1);
    let (worker, lease, task, _) = story.schedule()[0];
    assert_eq!(task, 4, "it has been first for longer");
    story.claim(worker, lease);
    story.result(worker, lease, 1_000);
    assert_eq!(story.schedule()[0].2, lacks.0);
}

#[test]
fn a_task_without_a_slot_runs_beside_others_up_to_the_processes_there_may_be() {
    let mut story = Story::with_workers(1);
    story.state.max_processes = 3;
    for _ in 0..4 {
        story.submit_demand(None, demand(0, &[]));
    }
    story.submit(1);
    let mut begun = Vec::new();
    for worker in 1..=3 {
        begun.extend(story.schedule().into_iter().map(|lease| lease.2));
        story.start_missing();
        if worker < 3 {
            story.ready(WorkerId(worker + 1), None);
        }
    }
    // Two processes are beyond the one that the slot needs.
    begun.sort_unstable();
    assert_eq!((begun, story.state.workers.len()), (vec![1, 2, 5], 3));
    assert_eq!(Free::of(&story.state), Free { cpus: 0, resources: vec![], without_slot: 0 });
}

#[test]
fn what_can_never_run_here_is_refused_by_name() {
    let mut story = Story::with_workers(2);
    story.resources(&[("gpu", 2), ("license", 1)]);
    let check = |cpus, resources: &[(&str, u64)]| lanes::check(&story.state, cpus, resources);
    assert_eq!(check(2, &[("gpu", 2)]), Ok(()));
    for (cpus, resources, expected) in [
        (3, &[][..], "the task asks for 3 cpus (--num-cpus), but this head has 2, one for each of its workers"),
        (1, &[("gpu", 3)], "the task asks for `gpu=3`, but this head has 2 of it in all"),
        (
            1,
            &[("gup", 1)],
            "the task asks for the resource `gup`, which this head does not have; it has `gpu=2,license=1`\n\
             (hint: did you mean `gpu`?)",
        ),
        (1, &[("tape_drive", 1)], "(hint: start the head with --resources gpu=2,license=1,tape_drive=1)"),
    ] {
        let refused = check(cpus, resources).unwrap_err();
        assert!(refused.contains(expected), "{refused}");
    }
}

#[test]
fn a_waiting_task_keeps_its_resources_and_who_waits_for_whom_is_told() {
    let mut story = Story::with_workers(2);
    story.resources(&[("gpu", 1)]);
    let parent = story.submit_demand(None, demand(2, &[("gpu", 1)]));
    let (worker, lease, ..) = story.schedule()[0];
    story.claim(worker, lease);
    let child = story.submit_demand(Some(parent), demand(1, &[("gpu", 1)]));
    story.wait(worker, 1, 1, &[child]);
    assert_eq!(story.schedule(), []);
    assert_eq!(Free::of(&story.state), Free { cpus: 2, resources: vec![0], without_slot: 1 });
    assert_eq!(
        explained(&story, child),
        [
            "it asks for 1 of the resource `gpu`, and 0 of 1 are free; task 1 (demo.my_function) has 1 and waits for this task; \
          so neither can go on until one of them is cancelled"
        ]
    );
    on_cancel(&mut story.state, &mut story.effects, child, None, story.now);
    assert!(story.state.workers[&WorkerId(worker)].waits.is_empty(), "the parent goes on");
}

#[test]
fn a_large_task_is_passed_for_a_while_and_then_gets_what_it_lacks() {
    let mut story = Story::with_workers(2);
    story.measure(1_000_000);
    story.submit(1);
    let (mut worker, mut lease, ..) = story.schedule()[0];
    let large = story.submit_demand(None, demand(2, &[]));
    story.submit(100);
    let mut passed = 0;
    for _ in 0..100 {
        let leased = story.schedule();
        passed += leased.len();
        if leased.iter().any(|lease| lease.2 == large.0) {
            assert!(story.now.monotonic_ns > lanes::PASSED_FOR_NS, "nothing was idle before");
            assert!(passed > 2, "the slots were used meanwhile");
            return;
        }
        if let Some(other) = story.state.queue.kept_for {
            assert_eq!(other, large);
            let plain = story.state.queue.plain.front().copied().unwrap();
            assert_eq!(
                explained(&story, plain).last().unwrap(),
                "what is free is kept for task 2, which needs more and has waited longer"
            );
        }
        story.now.monotonic_ns += lanes::PASSED_FOR_NS / 4;
        story.claim(worker, lease);
        story.result(worker, lease, 1_000_000);
        let Some((next, number)) = story.leases(ClaimState::Granted).first().copied() else { continue };
        (worker, lease) = (next, number);
    }
    panic!("it never began");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Tasks of several needs, with always more of each than can run.
    #[test]
    fn no_needs_starve_and_nothing_is_idle_that_is_not_kept(
        kinds in prop::collection::vec((0u32..=4, 0u64..=3, 0u64..=2), 1..6),
        lengths in prop::collection::vec(1u64..8, 16),
    ) {
        const STEP_NS: u64 = 50_000_000;
        let mut story = Story::with_workers(4);
        story.state.max_processes = 8;
        story.resources(&[("gpu", 3), ("license", 2)]);
        let needs = |&(cpus, gpus, licenses): &(u32, u64, u64)| {
            let amounts = [("gpu", gpus), ("license", licenses)];
            demand(cpus, &amounts.into_iter().filter(|&(_, amount)| amount > 0).collect::<Vec<_>>())
        };
        // One kind is plain.
        let mut kinds: Vec<_> = kinds.iter().map(needs).chain([Demand::default()]).collect();
        kinds.sort_by_key(|kind| (kind.num_cpus, kind.resources.clone()));
        kinds.dedup();
        let mut kind_of: HashMap<u64, usize> = HashMap::new();
        let mut last_begun = vec![0_u64; kinds.len()];
        let mut ends: HashMap<(u64, u64), u64> = HashMap::new();
        // Each kind may wait for the others to have had their turn, each of them after it was passed and what ran has ended.
        let limit = (PASSED_STEPS + 3 * 8) * (kinds.len() as u64 + 1);
        const PASSED_STEPS: u64 = lanes::PASSED_FOR_NS / STEP_NS;
        for round in 1..=3 * limit {
            let has_ended = |id| matches!(story.state.tasks.get(id).map(|task| task.progress()), None | Some(Progress::Ended(_)));
            kind_of.retain(|&id, _| !has_ended(TaskId(id)));
            for (index, kind) in kinds.iter().enumerate() {
                let waiting = kind_of.iter().filter(|&(id, &of)| {
                    let task = story.state.tasks.get(TaskId(*id));
                    of == index && task.is_some_and(|task| matches!(task.progress(), Progress::Waiting))
                });
                for _ in waiting.count()..8 {
                    let id = story.submit_demand(None, kind.clone());
                    kind_of.insert(id.0, index);
                }
            }
            for _ in 0..2 {
                story.start_missing();
                for worker in std::mem::take(&mut story.effects.started) {
                    story.ready(worker, None);
                }
                for (worker, lease, task, _) in story.schedule() {
                    last_begun[kind_of[&task]] = round;
                    ends.insert((worker, lease), round + lengths[task as usize % lengths.len()]);
                }
            }
            let free = Free::of(&story.state);
            let idle = story.state.workers.idle() > 0;
            if story.state.queue.kept_for.is_none() && idle {
                for kind in &kinds {
                    let needs = Needs::of(kind);
                    prop_assert!(!free.fits(&story.state, needs.as_ref()), "{:?} is idle for {:?}", free, kind);
                }
            }
            let taken: usize = story.state.workers.values().map(Worker::slots).sum();
            prop_assert!(taken <= 4, "{} slots are taken of 4", taken);
            for (index, &begun) in last_begun.iter().enumerate() {
                prop_assert!(round - begun <= limit, "{:?} starves: begun in {} and not by {}", kinds[index], begun, round);
            }
            for worker in story.state.workers.values().map(|worker| worker.pid - 100).collect::<Vec<_>>() {
                let id = WorkerId(u64::from(worker));
                while let Some(grant) = story.state.workers[&id].leases.front().copied() {
                    if story.effects.claim_state(id, grant.number) == ClaimState::Granted {
                        story.claim(id.0, grant.number);
                    }
                    if ends[&(id.0, grant.number)] > round {
                        break;
                    }
                    story.result(id.0, grant.number, STEP_NS);
                }
            }
            story.now.monotonic_ns += STEP_NS;
            on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
            let asked = std::mem::take(&mut story.effects.asked);
            asked.iter().for_each(|worker| drop(story.exit(worker.0)));
        }
    }
}
#[path = "actor_tests.rs"]
mod actor_stories;

#[path = "deadlock_tests.rs"]
mod deadlock_stories;

#[path = "submit_tests.rs"]
mod submit_stories;

#[path = "scale_tests.rs"]
mod scale_stories;

#[path = "machine_tests.rs"]
mod machine_stories;
