//! A head for tests of the reactor: played through step by step, with every effect remembered.

pub(crate) use std::collections::{HashMap, HashSet};
pub(crate) use std::time::Duration;

pub(crate) use proptest::prelude::*;

pub(crate) use crate::resources::PASSED_FOR_NS;
pub(crate) use crate::schedule::BEHIND_NS;
pub(crate) use crate::state::{
    Death, DriverId, Needs, Now, Progress, Resource, Settings, State, TaskEnd, Unfinished, Worker,
};
pub(crate) use crate::*;
pub(crate) use tracer_core::codec::Put;
pub(crate) use tracer_core::task::*;
pub(crate) use tracer_ipc::protocol::*;
pub(crate) use tracer_ipc::spool::{CLAIM_COUNT, ClaimState};
pub(crate) use tracer_ipc::stored::Stored;

/// Remembers every effect, and plays the workers' side of the ring of claims.
#[derive(Default)]
pub(crate) struct Remember {
    pub(crate) claims: HashMap<(WorkerId, u64), ClaimState>,
    /// The lease that each worker runs, and since when.
    pub(crate) running: HashMap<WorkerId, (u64, u64)>,
    /// Worker, lease, task, attempt.
    pub(crate) leases: Vec<(u64, u64, u64, u32)>,
    /// Number of times that each task was begun.
    pub(crate) claimed: HashMap<u64, u32>,
    /// Task and attempt of starts that were journaled.
    pub(crate) starts: Vec<(u64, u32)>,
    /// First task and number of tasks of bundles that were journaled.
    pub(crate) bundles: Vec<(u64, u32)>,
    pub(crate) is_disk_full: bool,
    /// Number of submissions that fit the disk, if that is bounded.
    pub(crate) room: Option<usize>,
    /// The first task and the number of submissions that were journaled together.
    pub(crate) submitted: Vec<(u64, usize)>,
    /// Task, number and failure of attempts that were journaled.
    pub(crate) attempts: Vec<(u64, u32, String)>,
    /// Name, error type, run time and time in the queue of attempts that were counted.
    pub(crate) counted: Vec<(String, String, Option<u64>, Option<u64>)>,
    /// Records of actors in the journal.
    pub(crate) actors: Vec<String>,
    /// Tasks whose end is in the journal.
    pub(crate) journaled: Vec<TaskId>,
    /// Tasks that were forgotten on request.
    pub(crate) pruned: Vec<TaskId>,
    /// Driver's tag, and the outcome in a word.
    pub(crate) finished: Vec<(u64, String)>,
    /// Time for which the task of each lease waited, in the order of the leases.
    pub(crate) queued: Vec<Option<(u64, u64)>>,
    /// End of the attempt of each ended task, in their order.
    pub(crate) ended: Vec<Option<u64>>,
    pub(crate) started: Vec<WorkerId>,
    /// Started workers that do not run yet.
    pub(crate) to_start: Vec<WorkerId>,
    pub(crate) asked: Vec<WorkerId>,
    pub(crate) killed: Vec<WorkerId>,
    /// Steps to end attempts, in order.
    pub(crate) steps: Vec<String>,
    pub(crate) has_no_command: bool,
    pub(crate) log: Vec<String>,
    /// Answers that came later: the driver's tag, and the task or the code of the refusal.
    pub(crate) later: Vec<(u64, Result<u64, RefusalCode>)>,
    /// Messages that the agent was told.
    pub(crate) to_agent: Vec<ToAgent>,
    /// Task, attempt and node of spans that were written in the stead of lost nodes, each with the span it links to.
    pub(crate) stand_ins: Vec<(u64, u32, String, Option<SpanLink>)>,
    /// Time of each of those spans: the beginning and the end.
    pub(crate) stand_in_times: Vec<(u64, u64)>,
    /// Attempt whose span cannot be written in the stead of a lost node.
    pub(crate) unwritable: Option<u32>,
    /// True if there is no agent.
    pub(crate) has_no_agent: bool,
    /// Files of values that were given up.
    pub(crate) unused_values: Vec<String>,
    /// Workers whose output was handed out before a lease, with those whom it was handed to.
    pub(crate) drained: Vec<(WorkerId, Watchers)>,
}

impl Effects for Remember {
    fn module_digest(&mut self, version: ModuleVersion) -> Option<[u8; 32]> {
        Some([version.number() as u8; 32])
    }

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

    fn journal_end(&mut self, task: TaskId, _attempt: u32, _ended: &TaskEnd) {
        self.journaled.push(task);
    }

    fn journal_start(&mut self, task: TaskId, attempt: u32) -> bool {
        self.starts.push((task.0, attempt));
        !self.is_disk_full
    }

    fn journal_bundle(&mut self, first: TaskId, count: u32) -> bool {
        self.bundles.push((first.0, count));
        !self.is_disk_full
    }

    fn journal_actor(&mut self, actor: TaskId, attempt: u32, restarts: u32, death: Option<&Death>) {
        let what = death.map_or_else(|| "begins again".to_owned(), |death| format!("is dead: {}", death.cause));
        self.actors.push(format!("{actor} after {restarts} restarts, attempt {attempt}, {what}"));
    }

    fn journal_pruned(&mut self, tasks: &[TaskId]) {
        self.pruned.extend(tasks);
    }

    fn count_attempt(&mut self, attempt: &EndedAttempt<'_>) {
        let error_type = attempt.failure.map_or_else(String::new, tracer_core::task::Failure::error_type);
        self.counted.push((attempt.name.to_owned(), error_type, attempt.run_ns, attempt.queued_ns));
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

    fn give_up_value(&mut self, name: String) {
        self.unused_values.push(name);
    }

    fn answer_later(&mut self, _: DriverId, answer: Result<Accepted, (u64, Refusal)>) {
        match answer {
            Ok(Accepted { first_tag, first_task, count, .. }) => {
                self.later.extend((0..u64::from(count)).map(|at| (first_tag + at, Ok(first_task.0 + at))));
            }
            Err((tag, refusal)) => self.later.push((tag, Err(refusal.code))),
        }
    }

    fn stand_in(&mut self, of: &StandIn<'_>) -> Option<SpanLink> {
        self.stand_ins.push((of.task.0, of.lost.attempt, of.lost.node_id.clone(), of.previous));
        self.stand_in_times.push((of.lost.since_unix_nano, of.lost.until_unix_nano));
        let link = SpanLink { trace_id: [1; 16], span_id: [self.stand_ins.len() as u8; 8], trace_flags: 1 };
        Some(link).filter(|_| self.unwritable != Some(of.lost.attempt))
    }

    fn take_written(&mut self, _: TaskId) -> OutputSize {
        OutputSize { bytes: 7, lines: 1 }
    }

    fn to_agent(&mut self, message: &ToAgent) -> bool {
        if !self.has_no_agent {
            self.to_agent.push(message.clone());
        }
        !self.has_no_agent
    }

    fn log(&mut self, line: String) {
        self.log.push(line);
    }
}

/// Nothing is tried again: what most stories here are not about.
pub(crate) const NEVER_AGAIN: Policy<'static> = Policy {
    retries: 0,
    retry_backoff: Duration::from_secs(1),
    retry_on: "",
    crash_limit: 0,
    at_most_once: false,
    idempotency_key: "",
    queue_limit: None,
    idle_limit: None,
    grace: Duration::from_secs(2),
    extra: ExtraOptions::NONE,
    queue: "",
};

pub(crate) fn plain(policy: Policy<'static>) -> Envelope<'static> {
    let spec = TaskSpec::Function(FunctionSpec::of_task("demo", "my_function", &[0x90]));
    Envelope { policy, ..Envelope::of(spec) }
}

/// A head with its effects and a clock that is held.
pub(crate) struct Story {
    pub(crate) state: State,
    pub(crate) effects: Remember,
    pub(crate) now: Now,
    pub(crate) next_tag: u64,
    /// True if what is submitted traces the runtime.
    pub(crate) traces_runtime: bool,
    pub(crate) next_wait: u64,
    pub(crate) next_inputs: Vec<Input>,
    /// True if it has so many workers that it is not checked after every step.
    pub(crate) is_large: bool,
}

pub(crate) const START_LIMIT_NS: u64 = 30_000_000_000;

impl Story {
    /// Returns a head whose workers are ready.
    pub(crate) fn with_workers(count: usize) -> Story {
        let mut story = Story::starting(count, false);
        for worker in std::mem::take(&mut story.effects.started) {
            story.ready(worker, None);
        }
        story
    }

    /// Returns a head whose workers are being started.
    pub(crate) fn starting(count: usize, is_hook_required: bool) -> Story {
        let mut story = Story::new(count, is_hook_required);
        story.start_missing();
        story
    }

    /// Makes a head that has started nothing yet.
    pub(crate) fn new(count: usize, is_hook_required: bool) -> Story {
        Story {
            state: State::new(Settings { is_hook_required, ..Settings::of_workers(count) }),
            effects: Remember::default(),
            now: Now { monotonic_ns: 1, unix_nano: 1_000 },
            next_tag: 0,
            traces_runtime: false,
            next_wait: 0,
            next_inputs: Vec::new(),
            is_large: false,
        }
    }

    pub(crate) fn start_missing(&mut self) {
        start_missing_workers(&mut self.state, &mut self.effects, self.now);
        for worker in std::mem::take(&mut self.effects.to_start) {
            on_worker_started(&mut self.state, worker, 100 + worker.0 as u32, self.now);
        }
        self.check();
    }

    pub(crate) fn ready(&mut self, worker: WorkerId, hook_failure: Option<&str>) {
        let ready = WorkerReady { tracing: "none".into(), hook_failure: hook_failure.map(Into::into) };
        on_worker_ready(&mut self.state, &mut self.effects, worker, ready, self.now);
        self.check();
    }

    pub(crate) fn submit(&mut self, count: u64) {
        for _ in 0..count {
            self.submit_with(None, false);
        }
    }

    pub(crate) fn submit_with(&mut self, run_limit: Option<Duration>, wants_output: bool) -> TaskId {
        self.submit_from(None, run_limit, wants_output)
    }

    /// Submits a task from within another.
    pub(crate) fn submit_nested(&mut self, submitter: TaskId) -> TaskId {
        self.submit_from(Some(submitter), None, false)
    }

    /// Lets tasks that run in this worker wait for others.
    pub(crate) fn wait(&mut self, worker: u64, number: u64, wanted: u32, tasks: &[TaskId]) {
        self.wait_as(None, worker, number, wanted, tasks);
    }

    /// Lets a task block its own thread on others, with no limit: as [`wait`](Self::wait).
    pub(crate) fn block(&mut self, task: TaskId, worker: u64, wanted: u32, tasks: &[TaskId]) {
        self.wait_as(Some(task), worker, 1_000_000 + task.0, wanted, tasks);
    }

    pub(crate) fn wait_as(&mut self, blocked: Option<TaskId>, worker: u64, number: u64, wanted: u32, tasks: &[TaskId]) {
        let wait = tracer_ipc::protocol::Wait { number, wanted, blocked, tasks: tasks.to_vec() };
        on_wait(&mut self.state, &mut self.effects, WorkerId(worker), &wait, self.now);
        self.check();
    }

    /// Returns a task that has results of others as its arguments.
    pub(crate) fn submit_after(&mut self, inputs: &[TaskId]) -> TaskId {
        self.next_inputs =
            (0..).zip(inputs).map(|(argument, &task)| Input { argument, source: InputSource::Task(task) }).collect();
        self.submit_from(None, None, false)
    }

    pub(crate) fn submit_from(
        &mut self,
        submitter: Option<TaskId>,
        run_limit: Option<Duration>,
        wants_output: bool,
    ) -> TaskId {
        let (traces_runtime, inputs) = (self.traces_runtime, std::mem::take(&mut self.next_inputs));
        let envelope = Envelope { run_limit, wants_output, traces_runtime, submitter, inputs, ..plain(NEVER_AGAIN) };
        self.submit_envelope(&envelope)
    }

    pub(crate) fn submit_demand(&mut self, submitter: Option<TaskId>, demand: Demand<'_>) -> TaskId {
        self.submit_envelope(&Envelope { submitter, demand, ..plain(NEVER_AGAIN) })
    }

    /// Gives the head named resources.
    pub(crate) fn resources(&mut self, resources: &[(&str, u64)]) {
        let resource = |&(name, total): &(&str, u64)| Resource { name: name.into(), total };
        self.state.settings.resources = resources.iter().map(resource).collect();
    }

    pub(crate) fn submit_policy(&mut self, policy: Policy<'static>) -> TaskId {
        self.submit_envelope(&plain(policy))
    }

    pub(crate) fn submit_envelope(&mut self, envelope: &Envelope<'_>) -> TaskId {
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
    pub(crate) fn schedule(&mut self) -> Vec<(u64, u64, u64, u32)> {
        self.effects.leases.clear();
        schedule(&mut self.state, &mut self.effects, self.now);
        self.check();
        self.effects.leases.clone()
    }

    pub(crate) fn claim(&mut self, worker: u64, lease: u64) {
        let state = self.effects.claims.get_mut(&(WorkerId(worker), lease)).unwrap();
        assert_eq!(*state, ClaimState::Granted);
        *state = ClaimState::Claimed;
        self.effects.running.insert(WorkerId(worker), (lease, self.now.unix_nano));
        let grants = &self.state.workers[&WorkerId(worker)].leases;
        if let Some(grant) = grants.iter().find(|grant| grant.number == lease) {
            *self.effects.claimed.entry(grant.task.0).or_default() += 1;
        }
    }

    pub(crate) fn result(&mut self, worker: u64, lease: u64, run_ns: u64) {
        self.end(worker, lease, run_ns, Outcome::Returned(vec![1]));
    }

    /// Ends the attempt under a lease with an error of its own.
    pub(crate) fn fail(&mut self, worker: u64, lease: u64) {
        let failure = Failure::Error { type_name: "E".into(), message: "no".into(), stacktrace: String::new() };
        self.end(worker, lease, 1_000, Outcome::Failed(failure));
    }

    pub(crate) fn end(&mut self, worker: u64, lease: u64, run_ns: u64, outcome: Outcome) {
        let result =
            AttemptResult { lease, started_unix_nano: self.now.unix_nano, run_ns, span: None, outcome, usage: None };
        on_result(&mut self.state, &mut self.effects, WorkerId(worker), result, self.now);
        self.check();
    }

    pub(crate) fn exit(&mut self, worker: u64) -> Loss {
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
    pub(crate) fn measure(&mut self, run_ns: u64) {
        let index = self.state.targets.index("demo.my_function");
        self.state.targets.run_time(index).observe(run_ns);
    }

    #[track_caller]
    pub(crate) fn check(&self) {
        if !self.is_large {
            self.state.check().unwrap();
        }
    }

    pub(crate) fn finished(&mut self) -> Vec<(u64, String)> {
        std::mem::take(&mut self.effects.finished)
    }
}

pub(crate) fn ended(tags: impl IntoIterator<Item = u64>, word: &str) -> Vec<(u64, String)> {
    tags.into_iter().map(|tag| (tag, word.to_owned())).collect()
}

pub(crate) const TWICE: Policy<'static> = Policy { retries: 2, crash_limit: 2, ..NEVER_AGAIN };

/// Returns the sentences that explain a task.
pub(crate) fn explained(story: &Story, id: TaskId) -> Vec<String> {
    let explanation = explain_task(&story.state, &story.effects, id).unwrap();
    explanation.reasons.iter().map(ToString::to_string).collect()
}

pub(crate) fn demand<'a>(num_cpus: u32, resources: &[(&'a str, u64)]) -> Demand<'a> {
    Demand { num_cpus, resources: resources.to_vec(), memory_bytes: None }
}

pub(crate) const NAMED: ActorOptions<'static> =
    ActorOptions { name: "hits", is_detached: true, or_existing: false, max_restarts: 0, max_call_retries: 0 };

impl Story {
    /// Room for so many actors beside one worker.
    pub(crate) fn with_room(actors: usize) -> Story {
        let mut story = Story::with_workers(1);
        story.state.settings.max_processes = 1 + actors;
        story
    }

    pub(crate) fn create(&mut self, options: ActorOptions<'static>) -> TaskId {
        let actor = ActorRole::Create(options);
        let function = FunctionSpec { actor, ..FunctionSpec::of_task("counter", "Counter.new", &[0x90]) };
        self.submit_envelope(&Envelope { spec: TaskSpec::Function(function), ..plain(NEVER_AGAIN) })
    }

    pub(crate) fn call(&mut self, actor: TaskId) -> TaskId {
        self.call_with(actor, None, &[], Duration::ZERO)
    }

    pub(crate) fn call_with(
        &mut self,
        actor: TaskId,
        submitter: Option<TaskId>,
        inputs: &[TaskId],
        run_limit: Duration,
    ) -> TaskId {
        let role = ActorRole::Call(actor);
        let function = FunctionSpec { actor: role, ..FunctionSpec::of_task("counter", "Counter.get", &[0x90]) };
        let input = |(argument, &task)| Input { argument, source: InputSource::Task(task) };
        let inputs = (0..).zip(inputs).map(input).collect();
        let run_limit = Some(run_limit).filter(|limit| !limit.is_zero());
        let spec = TaskSpec::Function(function);
        self.submit_envelope(&Envelope { spec, submitter, inputs, run_limit, ..plain(NEVER_AGAIN) })
    }

    /// Starts what is missing and gets it ready.
    pub(crate) fn get_ready(&mut self) {
        self.effects.started.clear();
        self.start_missing();
        for worker in std::mem::take(&mut self.effects.started) {
            self.ready(worker, None);
        }
    }

    /// Returns an actor that lives, alone in its worker, which is returned too; the tasks' worker is another.
    pub(crate) fn living(&mut self, options: ActorOptions<'static>) -> (TaskId, u64) {
        let actor = self.create(options);
        let leases = self.schedule();
        let [(worker, lease, task, 1)] = leases[..] else { panic!("{leases:?}") };
        assert_eq!(task, actor.0);
        self.claim(worker, lease);
        self.result(worker, lease, 1_000);
        self.get_ready();
        (actor, worker)
    }

    pub(crate) fn actor(&self, actor: TaskId) -> tracer_ipc::protocol::ActorReport {
        find_actor(&self.state, &actor.to_string()).unwrap()
    }

    pub(crate) fn outcome(&self, tag: u64) -> &str {
        &self.effects.finished.iter().find(|(finished, _)| *finished == tag).unwrap().1
    }
}
