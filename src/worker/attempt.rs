//! One attempt: claim, span, run, end.

use std::cell::Cell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use tracer_abi as abi;
use tracer_core::clock::now_unix_nano;
use tracer_core::lock::lock;
use tracer_core::names;
use tracer_core::propagation::{Carrier, Propagators, TraceContext, TraceParent};
use tracer_core::task::{
    ActorRole, Envelope, Failure, FunctionSpec, JobId, ModuleVersion, Outcome, SpanLink, SpanNameTable, SpanNames,
    StopReason, TaskSpec, TimeLimit, WorkerId,
};
use tracer_core::value::{self, ValueError};
use tracer_host::attempt_span::{AttemptSpan, actor_of, code_attributes};
use tracer_host::hook::{
    ActiveSpan, ActorState, Attribute, AttributePrefix, CallArguments, LoadedActor, LoadedTask, Located, Module,
    Recorder, RunningTask, SearchPath, SpanRequest, TaskContext,
};
use tracer_host::module_store::{CopyError, ModuleStore, Taken};
use tracer_host::recorded_arguments;
use tracer_host::runtime_spans::{Phases, RuntimeParent};
use tracer_ipc::protocol::frame::PAYLOAD_LIMIT;
use tracer_ipc::protocol::wire::{Take, WireError};
use tracer_ipc::protocol::{ActorMethods, AttemptResult, CommandUsage, LEASED_FILE, LEASED_VALUE, Lease, Period};
use tracer_ipc::spool::{INLINE_LIMIT, Spool};
use tracer_ipc::stored::{self, Stored, Value, ValueWriter, WriteError, Written};
use tracer_ipc::task_output::Owner;
use tracer_ipc::{fault, fork};

use super::actor::Living;
use super::command::{self, CommandAttempt, CommandRun, Inherited, Receiver, Surroundings};
use super::nested::{Nested, Submitter, thread_number};
use super::output_marks::{FunctionMarks, OutputMarks};
use super::usage::SharedMeter;

mod of_queue;

use of_queue::KnownDigests;

/// Runs attempts, and keeps what they share.
pub(super) struct Attempts {
    spool: &'static Spool,
    recorder: Option<&'static Recorder>,
    nested: &'static Nested,
    /// Folder of large values.
    values: PathBuf,
    search: SearchPath,
    /// Store with the copies of modules' libraries.
    store: ModuleStore,
    worker: WorkerId,
    /// Kept for good: the recorder, which is, hands it to hooks.
    node_id: &'static str,
    /// Parts of the context that commands get in their environment,
    propagators: Propagators,
    /// and of this process.
    inherited: Inherited,
    /// Receiver of OTLP from commands; looked for when the first of them begins.
    receiver: OnceLock<Option<Receiver>>,
    /// True if arguments are put on spans.
    records_arguments: bool,
    /// Asking for it takes a system call each time.
    pid: u32,
    names: Mutex<SpanNameTable>,
    loaded: Mutex<Loaded>,
    digests: KnownDigests,
    /// The actor that was made here.
    actor: Mutex<Option<Living>>,
    /// True if there was one: most workers never have any.
    has_actor: AtomicBool,
    meter: SharedMeter,
    marks: OutputMarks,
}

/// Modules that were loaded so far. They are kept for good, as modules are.
#[derive(Default)]
struct Loaded {
    /// By version, which is none for what has none, and name.
    modules: FxHashMap<Option<ModuleVersion>, HashMap<String, LoadedModule>>,
    /// By version, module and function, so that a look-up needs no text of its own.
    functions: FxHashMap<Option<ModuleVersion>, Functions>,
    /// The versions that tasks run whose submitter did not say, by module, with the job that they are for.
    unsaid: HashMap<String, Unsaid>,
}

/// The version that a job runs of a module whose submitter did not say.
struct Unsaid {
    job: JobId,
    /// None where there is no copy.
    taken: Option<Taken>,
    /// Time at which the library was looked at.
    looked: Instant,
}

impl Unsaid {
    /// Returns the version, if it is that of this job.
    fn version(&self, job: JobId) -> Option<ModuleVersion> {
        self.taken.as_ref().filter(|_| self.job == job).map(|taken| taken.version)
    }
}

type Functions = HashMap<&'static str, HashMap<&'static str, &'static Function>>;

/// A module that was loaded, with its version if there are any of it.
#[derive(Clone, Copy)]
struct LoadedModule {
    module: Module,
    version: Option<Version>,
}

/// A version of a module, with what spans call it.
#[derive(Clone, Copy)]
pub(super) struct Version {
    number: ModuleVersion,
    name: &'static str,
}

/// A function that was called before, with what its spans have in common.
pub(super) struct Function {
    task: LoadedTask,
    /// Name that its caller gives: module and function, or method.
    name: (&'static str, &'static str),
    /// Its module, with the version that was loaded.
    module: (&'static str, Option<Version>),
    code: (String, String, u32),
    /// Marks of its attempts in the output.
    marks: &'static FunctionMarks,
    /// From the first span on.
    span_names: OnceLock<Arc<SpanNames>>,
}

thread_local! {
    /// The function that this thread has called last: mostly it is called again.
    static LAST: Cell<Option<&'static Function>> = const { Cell::new(None) };
}

impl Attempts {
    pub(super) fn new(
        spool: &'static Spool,
        recorder: Option<&'static Recorder>,
        nested: &'static Nested,
        (search, store): (SearchPath, ModuleStore),
        worker: WorkerId,
        node_id: String,
        propagators: Propagators,
    ) -> Attempts {
        Attempts {
            spool,
            recorder,
            nested,
            values: nested.values(),
            search,
            store,
            worker,
            node_id: node_id.leak(),
            propagators,
            inherited: Inherited::now(),
            receiver: OnceLock::new(),
            records_arguments: false,
            pid: std::process::id(),
            names: Mutex::new(SpanNameTable::new(names::REMOTE_WORKER_SUFFIX)),
            loaded: Mutex::default(),
            digests: KnownDigests::default(),
            actor: Mutex::default(),
            has_actor: AtomicBool::new(false),
            meter: SharedMeter::default(),
            marks: OutputMarks::default(),
        }
    }

    /// Marks the output of attempts. It is not marked, unless this was called.
    pub(super) fn mark_output(&mut self, marks: OutputMarks) {
        self.marks = marks;
    }

    /// Returns the marks in the output.
    pub(super) const fn output_marks(&self) -> &OutputMarks {
        &self.marks
    }

    /// Says whether the arguments of tasks are put on their spans. They are not, unless this was said.
    pub(super) fn record_arguments(&mut self, record_arguments: bool) {
        self.records_arguments = record_arguments;
    }

    /// Notes that the worker has waited for a lease.
    pub(super) fn waited(&self) {
        self.meter.wait();
    }

    /// Resets the usage baseline after unmetered work, so that it is not charged to the next attempt.
    pub(super) fn reset_usage_baseline(&self) {
        self.meter.interrupt();
    }

    /// Claims a lease, and returns when. None when the head has taken it back.
    pub(super) fn claim(&self, lease: &Lease<'_>) -> Option<Began> {
        let began = Began::now();
        let is_claimed = self.spool.claim(lease.number, began.unix_nano);
        fault::point("after_claim");
        is_claimed.then_some(began)
    }

    /// Runs the task of a lease. None when the head has taken the lease back.
    pub(super) fn run(&self, lease: &Lease<'_>) -> Option<AttemptResult> {
        let began = self.claim(lease)?;
        let result = self.run_claimed(lease, began, None);
        self.spool.attempt_ended();
        Some(result)
    }

    /// Runs a call that was claimed, on a thread of its own, beside other calls.
    /// `on_wait` is told when it waits for the first time.
    pub(super) fn run_beside(&self, lease: &Lease<'_>, began: Began, on_wait: &dyn Fn()) -> AttemptResult {
        self.run_claimed(lease, began, Some(on_wait))
    }

    fn run_claimed(&self, lease: &Lease<'_>, began: Began, beside: Beside<'_>) -> AttemptResult {
        // It stays where it was put.
        let (ran, is_creation) = match &Envelope::decode(lease.envelope) {
            Ok(envelope) => {
                let ran = self.run_traced(lease, envelope, began, beside);
                (ran, matches!(envelope.spec.actor(), ActorRole::Create(_)))
            }
            Err(error) => (Ran::not_at_all(Failure::Module { message: unreadable(error) }), false),
        };
        ran.result(lease, began, is_creation)
    }

    /// Returns whether an actor was made here.
    pub(super) fn is_actor(&self) -> bool {
        self.has_actor.load(Relaxed)
    }

    /// Describes to the head the actor that was made here.
    pub(super) fn actor_methods(&self) -> Option<ActorMethods> {
        if !self.is_actor() {
            return None;
        }
        let actor = lock(&self.actor);
        let living = actor.as_ref()?;
        let max_concurrency = u32::try_from(living.loaded.max_concurrency()).unwrap_or(u32::MAX);
        Some(ActorMethods { actor: living.id, concurrent: living.loaded.concurrent_methods(), max_concurrency })
    }

    /// Count of calls that may run at a time, if this one may run beside others. None for those that run alone.
    pub(super) fn runs_beside_others(&self, lease: &Lease<'_>) -> Option<usize> {
        // The thread that asks is the one that makes it.
        if !self.is_actor() {
            return None;
        }
        let mut actor = lock(&self.actor);
        let living = actor.as_mut()?;
        let envelope = Envelope::decode(lease.envelope).ok()?;
        let TaskSpec::Function(function) = &envelope.spec else { return None };
        let method = living.method(function.function, &self.marks).ok()?;
        (function.actor == ActorRole::Call(living.id) && method.task.is_concurrent())
            .then(|| living.loaded.max_concurrency())
    }

    /// Gives the state of an actor that ends back to its module.
    pub(super) fn release_actor(&self) {
        let living = lock(&self.actor).take();
        if let Some(living) = living {
            living.loaded.release(living.state);
        }
    }

    /// Runs the task of a lease while others of this process wait for it, or for what waits for it.
    pub(super) fn run_inline(&self, lease: &Lease<'_>) -> AttemptResult {
        let began = Began::now();
        let entry = self.spool.begin_inline(lease.task.0, lease.attempt);
        fault::point("after_inline_claim");
        let outer_task = self.recorder.and_then(Recorder::running_task);
        let outer_here = Recorder::running_here();
        let outer = self.meter.begin_inside();
        let outer_mark = self.marks.current();
        let ran = match (entry, Envelope::decode(lease.envelope)) {
            (Some(_), Ok(envelope)) => self.run_traced(lease, &envelope, began, None),
            (None, _) => {
                let message = format!("more than {INLINE_LIMIT} tasks run inside of one another in its worker");
                Ran::not_at_all(Failure::NoWorker { message })
            }
            (_, Err(error)) => Ran::not_at_all(Failure::Module { message: unreadable(&error) }),
        };
        // What this one has used, those inside of it included, is not the outer one's.
        self.meter.end_inside(outer);
        self.marks.restore(outer_mark);
        if let Some(recorder) = self.recorder {
            recorder.set_running_task(outer_task);
            recorder.set_running_here(outer_here);
        }
        if let Some(entry) = entry {
            self.spool.end_inline(entry);
        }
        ran.result(lease, began, false)
    }

    /// Runs the task in its span.
    fn run_traced(&self, lease: &Lease<'_>, envelope: &Envelope<'_>, began: Began, beside: Beside<'_>) -> Ran {
        let is_beside = beside.is_some();
        let parent = envelope.trace.map(|trace| TraceContext {
            parent: TraceParent { trace_id: trace.trace_id, span_id: trace.span_id, flags: trace.trace_flags },
            trace_state: trace.trace_state.into(),
        });
        let known = match &envelope.spec {
            TaskSpec::Function(function) => {
                self.look_again(lease.job, envelope, function.module);
                self.find_known(lease, envelope, function)
            }
            TaskSpec::Command(_) => None,
        };
        let span = self.recorder.map(|recorder| {
            let running = RunningTask {
                task: lease.task,
                attempt: lease.attempt,
                actor: actor_of(lease.task, &envelope.spec),
                job: lease.job,
                worker: self.worker,
                node_id: self.node_id,
            };
            self.set_running(recorder, Some(running), is_beside);
            let span =
                self.start_span(recorder, lease, envelope, parent.as_ref(), began, known.map(|known| known.function));
            if span.is_recording() && !is_beside {
                self.meter.begin(began.at);
            }
            span
        });
        let phases = span
            .as_ref()
            .filter(|span| envelope.traces_runtime && span.is_recording())
            .and_then(|span| self.trace_runtime(lease, span, parent.as_ref(), began.unix_nano));
        let begin = |name| {
            if let Some(phases) = &phases {
                phases.begin(name);
            }
        };
        let is_marked =
            self.marks.begin(known.map(|known| known.function.marks), || match actor_of(lease.task, &envelope.spec) {
                Some(actor) if is_beside => Owner::Actor(actor),
                _ => {
                    let context = span.as_ref().map(ActiveSpan::context).or(parent.as_ref());
                    let trace_id = context.map_or([0; 16], |context| context.parent.trace_id);
                    Owner::Attempt { task: lease.task, attempt: lease.attempt, trace_id }
                }
            });
        let (outcome, command) = match &envelope.spec {
            TaskSpec::Function(function) => {
                let traced = Traced { span: span.as_ref(), parent: parent.as_ref(), phases: phases.as_ref() };
                let span = traced.span;
                let outcome = self.run_function(lease, envelope, function, known, traced, beside);
                (self.as_of_queue(outcome, lease, envelope, function, span), None)
            }
            TaskSpec::Command(spec) => {
                if let Some(span) = span.as_ref().filter(|_| self.records_arguments) {
                    recorded_arguments::record(span, &envelope.spec, 0, Vec::new);
                }
                let carrier = self.propagators.pass_on(Carrier {
                    trace_context: span.as_ref().map(|span| span.context().clone()).or(parent),
                    baggage: envelope.baggage.into(),
                });
                begin(Some(names::RUN_SPAN));
                let receiver = self.receiver.get_or_init(|| Receiver::of(self.nested.session_dir())).as_ref();
                let context = span.as_ref().map(|span| span.context().parent);
                let of = CommandAttempt { task: lease.task, attempt: lease.attempt, context };
                let around = Surroundings { carrier: &carrier, inherited: &self.inherited, receiver, of };
                let run = command::run(spec, &around, self.spool);
                (run.outcome.clone(), Some(run))
            }
        };
        // A child that the function has forked goes no further.
        fork::end_copy();
        if is_marked {
            self.marks.flush();
        }
        begin(None);
        let ended = Instant::now();
        let run_ns = began.until(ended);
        let outcome = self.settle(lease, envelope, outcome);
        let was_ended =
            |failure: &Failure| matches!(failure, Failure::TimedOut { .. } | Failure::Cancelled | Failure::Superseded);
        if let (Outcome::Failed(failure), None, false) = (&outcome, &command, is_beside)
            && was_ended(failure)
        {
            command::end_children_of_function(&envelope.spec.target(), Duration::from_nanos(run_ns));
        }
        fault::point("function_returned");
        let link = span.as_ref().filter(|span| span.is_recording()).map(|span| {
            let TraceParent { trace_id, span_id, flags } = span.context().parent;
            SpanLink { trace_id, span_id, trace_flags: flags }
        });
        if let Some(span) = span {
            self.finish_span(&span, &outcome, command.as_ref(), (began.at, ended), is_beside);
            fault::point("before_span_end");
            span.end_at(began.unix_nano.saturating_add(run_ns));
            fault::point("after_span_end");
        }
        if let Some(recorder) = self.recorder {
            self.set_running(recorder, None, is_beside);
        }
        let has_run = |run: &CommandRun| !matches!(run.outcome, Outcome::Failed(Failure::NotStarted { .. }));
        let usage = command.filter(|run| envelope.wants_output && has_run(run)).map(|run| run.usage.into());
        Ran { outcome, span: link, run_ns, usage }
    }

    fn set_running(&self, recorder: &Recorder, task: Option<RunningTask>, is_beside: bool) {
        if is_beside { recorder.set_running_here(task) } else { recorder.set_running_task(task) }
    }

    /// Returns what an outcome counts for when the head has said that the attempt is to end. A limit counts, whatever came after it; a function
    /// that was cancelled and had not asked whether it was has simply ended.
    fn settle(&self, lease: &Lease<'_>, envelope: &Envelope<'_>, outcome: Outcome) -> Outcome {
        let Some(why) = self.spool.stop_reason(lease.task.0, lease.attempt) else { return outcome };
        let timed_out = |limit, after: Option<Duration>| {
            let after_ns = after.map_or(0, |after| u64::try_from(after.as_nanos()).unwrap_or(u64::MAX));
            Outcome::Failed(Failure::TimedOut { limit, after_ns })
        };
        let is_command = matches!(envelope.spec, TaskSpec::Command(_));
        match why {
            StopReason::RunTimeout => timed_out(TimeLimit::Run, envelope.run_limit),
            StopReason::IdleTimeout => timed_out(TimeLimit::Idle, envelope.policy.idle_limit),
            StopReason::Cancelled | StopReason::Superseded
                if !is_command && !self.spool.was_stop_seen(lease.task.0) =>
            {
                outcome
            }
            StopReason::Cancelled => Outcome::Failed(Failure::Cancelled),
            StopReason::Superseded => Outcome::Failed(Failure::Superseded),
        }
    }

    /// Makes the spans of what came before the attempt, and begins those of its parts.
    fn trace_runtime(
        &self,
        lease: &Lease<'_>,
        span: &ActiveSpan,
        parent: Option<&TraceContext>,
        started_unix_nano: u64,
    ) -> Option<Phases> {
        let of_attempt = RuntimeParent {
            recorder: self.recorder?,
            context: span.context().clone(),
            is_remote: false,
            task: lease.task,
            attempt: lease.attempt,
        };
        // Without a submission that is traced there is nothing that they could be children of.
        if let (Some(parent), Some(queued)) = (parent, lease.queued) {
            let before = RuntimeParent { context: parent.clone(), is_remote: true, ..of_attempt.clone() };
            before.record(names::QUEUE_SPAN, queued);
            let leased = Period { start_unix_nano: queued.end_unix_nano, end_unix_nano: started_unix_nano };
            before.record(names::LEASE_SPAN, leased);
        }
        Some(Phases::new(of_attempt))
    }

    fn run_function(
        &self,
        lease: &Lease<'_>,
        envelope: &Envelope<'_>,
        function: &FunctionSpec<'_>,
        known: Option<Known>,
        Traced { span, parent, phases }: Traced<'_>,
        beside: Beside<'_>,
    ) -> Outcome {
        if let Some(phases) = phases {
            phases.begin(Some(names::LOAD_SPAN));
        }
        let loaded = match known {
            Some(known) => Ok((known.function, known.state.map(|state| (None, state)))),
            None => self.load(lease, envelope, function),
        };
        if let Some(phases) = phases {
            if let Err(message) = &loaded {
                phases.fail(message);
            }
            phases.begin(None);
        }
        let (loaded, mut kept) = match loaded {
            Ok(loaded) => loaded,
            Err(message) => return Outcome::Failed(Failure::Module { message }),
        };
        let creation = loaded;
        if let Some(span) = span.filter(|span| span.is_recording()) {
            if known.is_none() {
                let (code, count) = code_attributes(loaded.code());
                span.set_attributes(&code[..count]);
                if let Some(version) = loaded.module.1 {
                    span.set_attributes(&[(names::MODULE_VERSION, Attribute::Str(version.name))]);
                }
            }
            if self.records_arguments {
                recorded_arguments::record(span, &envelope.spec, 0, || loaded.task.parameters());
            }
        }
        let inputs = match take_inputs(lease.inputs, &self.values) {
            Ok(inputs) => inputs,
            Err(message) => return Outcome::Failed(Failure::Arguments { message }),
        };
        let arguments = match fill_arguments(function.arguments, &inputs, loaded.task.takes_values()) {
            Ok(arguments) => arguments,
            Err(error) => return Outcome::Failed(Failure::Arguments { message: error.to_string() }),
        };
        self.nested.begin(Submitter {
            task: lease.task,
            attempt: lease.attempt,
            thread: thread_number(),
            is_beside: beside.is_some(),
            job: lease.job,
            module: loaded.module.1.map(|version| (loaded.module.0, version.number)),
            carrier: Carrier {
                trace_context: span.map(ActiveSpan::context).or(parent).cloned(),
                baggage: envelope.baggage.into(),
            },
        });
        let outcome = loaded.task.run(
            &arguments,
            TaskContext {
                task: lease.task,
                attempt: lease.attempt,
                actor: actor_of(lease.task, &envelope.spec),
                job: lease.job,
                worker: self.worker,
                node_id: self.node_id,
                span,
                trace_context: parent,
                baggage: envelope.baggage,
                phases,
                on_wait: beside,
                result: ValueWriter::new(&self.values, PAYLOAD_LIMIT),
                keep: &|result| self.keep(result),
            },
            kept.as_mut().map(|(_, state)| state),
        );
        self.nested.end(lease.task);
        if let (Some((Some(loaded), state)), false) = (kept, matches!(outcome, Outcome::Failed(_))) {
            self.has_actor.store(true, Relaxed);
            let (actor, module) = (loaded, creation.module);
            *lock(&self.actor) = Some(Living { id: lease.task, loaded: actor, state, module, methods: HashMap::new() });
        }
        outcome
    }

    /// Makes an outcome of what a function returned.
    fn keep(&self, result: ValueWriter<'_>) -> Outcome {
        let message = match result.finish() {
            Ok(Written::Small(value)) => return Outcome::Returned(value),
            Ok(Written::Large(stored)) => return Outcome::Stored(stored),
            Err(WriteError::TooLarge { bytes }) => format!(
                "the result has {bytes} bytes, but at most {PAYLOAD_LIMIT} are taken\n\
                 (hint: write large data to a file, and return its path)"
            ),
            Err(WriteError::Io { bytes, source }) => {
                let folder = self.values.display();
                format!("the result has {bytes} bytes, and cannot be written to `{folder}`: {source}")
            }
        };
        Outcome::Failed(Failure::Result { message })
    }

    /// Finds what is to be called: a function, what makes an actor, or a method of the one that was made here.
    fn load(
        &self,
        lease: &Lease<'_>,
        envelope: &Envelope<'_>,
        function: &FunctionSpec<'_>,
    ) -> Result<(&'static Function, Option<HeldActor>), String> {
        let version = envelope.module_version;
        match function.actor {
            ActorRole::None => Ok((self.load_function(function, version, lease.job)?, None)),
            ActorRole::Create(_) => {
                let LoadedModule { module, version } =
                    self.load_module(&mut lock(&self.loaded), function.module, version, lease.job)?;
                let type_name = function.function.strip_suffix(".new").unwrap_or(function.function);
                let loaded = LoadedActor::find(module, type_name, self.recorder).map_err(|error| error.to_string())?;
                let creation = loaded.creation().map_err(|error| error.to_string())?;
                Ok((
                    Function::kept(
                        creation,
                        function.module,
                        function.function,
                        (module.name(), version),
                        self.marks.register(),
                    ),
                    Some((Some(loaded), ActorState::NONE)),
                ))
            }
            ActorRole::Call(id) => {
                let mut actor = lock(&self.actor);
                let living = actor.as_mut().filter(|living| living.id == id);
                let living = living.ok_or_else(|| format!("actor {id} is not in its worker"))?;
                Ok((living.method(function.function, &self.marks)?, Some((None, living.state))))
            }
        }
    }

    fn load_module(
        &self,
        loaded: &mut Loaded,
        name: &str,
        version: Option<ModuleVersion>,
        job: JobId,
    ) -> Result<LoadedModule, String> {
        let version = match version {
            Some(version) => Some(version),
            None => self.version_now(loaded, name, job)?,
        };
        if let Some(&known) = loaded.modules.get(&version).and_then(|modules| modules.get(name)) {
            return Ok(known);
        }
        let stored = version.and_then(|version| Some((version, self.store.find(version)?)));
        if let (Some(version), None) = (version, &stored) {
            eprintln!(
                "tracer: warning: version {version} of module `{name}`, which the task was submitted with, is not kept any more, so the \
                 module is loaded as it is now"
            );
        }
        let found = match stored {
            Some((number, stored)) => {
                let version = Version { number, name: stored.name(number).leak() };
                let module = Module::load_copy(name, &stored, version.name).map_err(|error| error.to_string())?;
                LoadedModule { module, version: Some(version) }
            }
            None => {
                let module = Module::load(&self.search, name).map_err(|error| error.to_string())?;
                LoadedModule { module, version: None }
            }
        };
        loaded.modules.entry(version).or_default().insert(name.into(), found);
        Ok(found)
    }

    /// Returns the version that tasks of a job run whose submitter did not say, because it cannot see the library: the one that is there when the first
    /// of them begins here.
    fn version_now(&self, loaded: &mut Loaded, name: &str, job: JobId) -> Result<Option<ModuleVersion>, String> {
        if let Some(unsaid) = loaded.unsaid.get(name).filter(|unsaid| unsaid.job == job) {
            return Ok(unsaid.version(job));
        }
        let taken = match self.search.locate(name).map_err(|error| error.to_string())? {
            Located::BuiltIn(_) => return Ok(None),
            Located::Library(library) => match self.store.take(&library) {
                Ok(taken) => taken,
                Err(error @ CopyError::Incomplete { .. }) => return Err(error.to_string()),
                Err(error @ CopyError::Io { .. }) => {
                    eprintln!(
                        "tracer: warning: there is no copy of `{}`, so it must not be overwritten while workers run: {error}",
                        library.display()
                    );
                    None
                }
            },
        };
        let version = taken.as_ref().map(|taken| taken.version);
        loaded.unsaid.insert(name.into(), Unsaid { job, taken, looked: Instant::now() });
        Ok(version)
    }

    /// Finds what was called before: a function, or a method of the actor that was made here.
    fn find_known(&self, lease: &Lease<'_>, envelope: &Envelope<'_>, spec: &FunctionSpec<'_>) -> Option<Known> {
        match spec.actor {
            ActorRole::None => {
                let found = self.find_loaded(spec, envelope.module_version, lease.job);
                found.map(|function| Known { function, state: None })
            }
            ActorRole::Create(_) => None,
            ActorRole::Call(id) => {
                let actor = lock(&self.actor);
                let living = actor.as_ref().filter(|living| living.id == id)?;
                let function = *living.methods.get(spec.function)?;
                Some(Known { function, state: Some(living.state) })
            }
        }
    }

    /// Finds a function that was called before.
    fn find_loaded(
        &self,
        spec: &FunctionSpec<'_>,
        version: Option<ModuleVersion>,
        job: JobId,
    ) -> Option<&'static Function> {
        let is_it = |last: &&Function| last.name == (spec.module, spec.function) && last.version() == version;
        if let Some(last) = LAST.get().filter(is_it) {
            return Some(last);
        }
        let loaded = lock(&self.loaded);
        let version = version.or_else(|| loaded.unsaid.get(spec.module)?.version(job));
        let known = *loaded.functions.get(&version)?.get(spec.module)?.get(spec.function)?;
        LAST.set(Some(known));
        Some(known)
    }

    /// Finds a function that was not called before. What cannot be loaded is tried again the next time: it may have been built in between.
    fn load_function(
        &self,
        function: &FunctionSpec<'_>,
        version: Option<ModuleVersion>,
        job: JobId,
    ) -> Result<&'static Function, String> {
        let mut loaded = lock(&self.loaded);
        let LoadedModule { module, version } = self.load_module(&mut loaded, function.module, version, job)?;
        let number = version.map(|version| version.number);
        let functions = loaded.functions.entry(number).or_default();
        if let Some(&known) = functions.get(function.module).and_then(|functions| functions.get(function.function)) {
            return Ok(known);
        }
        let task = LoadedTask::find(module, function.function, self.recorder).map_err(|error| error.to_string())?;
        let marks = self.marks.register();
        let found = Function::kept(task, function.module, function.function, (module.name(), version), marks);
        let (module, name) = found.name;
        functions.entry(module).or_default().insert(name, found);
        Ok(found)
    }

    fn start_span(
        &self,
        recorder: &'static Recorder,
        lease: &Lease<'_>,
        envelope: &Envelope<'_>,
        parent: Option<&TraceContext>,
        began: Began,
        known: Option<&'static Function>,
    ) -> ActiveSpan {
        let make_names = || Arc::clone(lock(&self.names).of(&envelope.spec));
        let made;
        let span_names = match known {
            Some(known) => known.span_names.get_or_init(|| match known.module.1 {
                Some(_) => Arc::new(make_names().apart()),
                None => make_names(),
            }),
            None => {
                made = make_names();
                &made
            }
        };
        let span = AttemptSpan {
            envelope,
            target: &span_names.target,
            task: lease.task,
            attempt: lease.attempt,
            job: lease.job,
            worker: self.worker,
            pid: self.pid,
            node_id: self.node_id,
            queued_ns: began.unix_nano.saturating_sub(lease.submitted_unix_nano),
            code: known.map(Function::code),
            module_version: known.and_then(|known| known.module.1).map(|version| version.name),
        };
        let prefix = AttributePrefix {
            id: span_names.prefix_id(lease.job, known.is_some()),
            attributes: &|put| span.put_first(put),
        };
        span.with_further(|attributes| {
            recorder.start(&SpanRequest {
                name: &span_names.span,
                kind: abi::SPAN_KIND_CONSUMER,
                parent,
                is_parent_remote: true,
                baggage: envelope.baggage,
                start_time_unix_nano: began.unix_nano,
                prefix,
                attributes,
                link: lease.previous,
                is_attempt: true,
                request: None,
            })
        })
    }

    fn finish_span(
        &self,
        span: &ActiveSpan,
        outcome: &Outcome,
        command: Option<&CommandRun>,
        (began, ended): (Instant, Instant),
        is_beside: bool,
    ) {
        if !span.is_recording() {
            self.reset_usage_baseline();
            return;
        }
        // What the process uses while several run cannot be told apart.
        let own = if is_beside { None } else { self.meter.end(began, ended, command.is_some()) };
        if let Some(own) = own {
            let used = command.map_or(own, |command| own.with_command(command.usage));
            span.set_attributes(&[
                (names::CPU_TIME_NS, used.cpu_time_ns.into()),
                (names::PEAK_MEMORY_BYTES, used.peak_memory_bytes.into()),
                (names::MINOR_PAGE_FAULTS, used.minor_page_faults.into()),
                (names::MAJOR_PAGE_FAULTS, used.major_page_faults.into()),
                (names::VOLUNTARY_CONTEXT_SWITCHES, used.voluntary_context_switches.into()),
                (names::INVOLUNTARY_CONTEXT_SWITCHES, used.involuntary_context_switches.into()),
            ]);
        }
        if let Some(count) = command.map(|run| run.leaked as u64).filter(|&count| count > 0) {
            span.set_attributes(&[(names::LEAKED_PROCESSES, count.into())]);
        }
        if let Some(code) = command.and_then(|run| run.exit_code) {
            span.set_attributes(&[(names::PROCESS_EXIT_CODE, i64::from(code).into())]);
        }
        if let Outcome::Failed(failure) = outcome {
            let error_type = failure.error_type();
            span.add_exception(&error_type, failure);
            span.set_attributes(&[(names::ERROR_TYPE, Attribute::Str(&error_type))]);
        }
    }
}

impl Function {
    fn kept(
        task: LoadedTask,
        said_module: &str,
        name: &str,
        module: (&'static str, Option<Version>),
        marks: &'static FunctionMarks,
    ) -> &'static Function {
        let kept = |text: &str| -> &'static str { Box::leak(text.into()) };
        let name = (kept(said_module), kept(name));
        Box::leak(Box::new(Function { task, name, module, code: task.code(), marks, span_names: OnceLock::new() }))
    }

    /// Returns the version of its module; none for what has none.
    fn version(&self) -> Option<ModuleVersion> {
        self.module.1.map(|version| version.number)
    }

    /// Returns its qualified name, its file and its line.
    fn code(&self) -> (&str, &str, u32) {
        (&self.code.0, &self.code.1, self.code.2)
    }
}

impl Living {
    /// Returns a method by its name, `Type.method`.
    fn method(&mut self, name: &str, marks: &OutputMarks) -> Result<&'static Function, String> {
        if let Some(&known) = self.methods.get(name) {
            return Ok(known);
        }
        let method = self.loaded.method(name).map_err(|error| error.to_string())?;
        let found = Function::kept(method, "", name, self.module, marks.register());
        self.methods.insert(name.into(), found);
        Ok(found)
    }
}

/// Function that was called before.
#[derive(Clone, Copy)]
struct Known {
    function: &'static Function,
    /// The actor's, if it is a method.
    state: Option<ActorState>,
}

/// An actor's state where a call finds it, with the type if it is about to be made.
type HeldActor = (Option<LoadedActor>, ActorState);

/// Callback of a call that runs beside others, for when it waits for the first time.
type Beside<'a> = Option<&'a dyn Fn()>;

/// Beginning of an attempt, by both clocks at once: whatever happens in between, its end is not said to be earlier than it was.
#[derive(Clone, Copy)]
pub(super) struct Began {
    unix_nano: u64,
    at: Instant,
}

impl Began {
    fn now() -> Began {
        // In this order: what comes between the two makes it longer and never shorter.
        let at = Instant::now();
        Began { unix_nano: now_unix_nano(), at }
    }

    /// Nanoseconds from then on.
    fn until(self, end: Instant) -> u64 {
        u64::try_from(end.saturating_duration_since(self.at).as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Result of an attempt.
struct Ran {
    outcome: Outcome,
    /// Its span.
    span: Option<SpanLink>,
    /// Its run time.
    run_ns: u64,
    /// Resources that it used, if it was a command whose output is wanted.
    usage: Option<CommandUsage>,
}

impl Ran {
    fn not_at_all(failure: Failure) -> Ran {
        Ran { outcome: Outcome::Failed(failure), span: None, run_ns: 0, usage: None }
    }

    fn result(self, lease: &Lease<'_>, began: Began, is_creation: bool) -> AttemptResult {
        let Ran { outcome, span, run_ns, usage } = self;
        // Only who tries it again needs the span, or makes it again.
        let span = span.filter(|_| is_creation || matches!(outcome, Outcome::Failed(_)));
        AttemptResult { lease: lease.number, started_unix_nano: began.unix_nano, run_ns, span, outcome, usage }
    }
}

fn unreadable(error: &WireError) -> String {
    format!("the task cannot be read: {error}")
}

/// Tracing of an attempt.
#[derive(Clone, Copy)]
struct Traced<'a> {
    span: Option<&'a ActiveSpan>,
    /// The span of the submission.
    parent: Option<&'a TraceContext>,
    phases: Option<&'a Phases>,
}

/// An argument that does not come with the others.
enum LeasedInput<'a> {
    Value(&'a [u8]),
    Stored(Stored),
}

fn take_input<'a>(take: &mut Take<'a>) -> Result<(u32, LeasedInput<'a>), WireError> {
    let argument = take.u32()?;
    let input = match take.u8()? {
        LEASED_VALUE => LeasedInput::Value(take.bytes()?),
        LEASED_FILE => LeasedInput::Stored(Stored::take(take)?),
        _ => return Err(WireError::UnknownValue("input")),
    };
    Ok((argument, input))
}

/// Returns the arguments with the results of other tasks, and those that are in files, in their places.
fn fill_arguments<'a>(
    arguments: &'a [u8],
    inputs: &'a [(u32, Input<'a>)],
    takes_values: bool,
) -> Result<CallArguments<'a>, ValueError> {
    if inputs.is_empty() {
        return Ok(CallArguments::Array(arguments.into()));
    }
    let inputs = inputs.iter().map(|(argument, input)| match input {
        Input::Value(value) => (*argument, *value),
        Input::Stored(value) => (*argument, &**value),
    });
    if takes_values {
        value::replaced(arguments, inputs).map(CallArguments::Values)
    } else {
        value::fill(arguments, inputs).map(|filled| CallArguments::Array(filled.into()))
    }
}

/// An argument that did not come with the others.
enum Input<'a> {
    Value(&'a [u8]),
    Stored(Value),
}

/// Returns the results of other tasks, and what is in files, with the numbers of the arguments that they are.
fn take_inputs<'a>(inputs: &'a [u8], folder: &Path) -> Result<Vec<(u32, Input<'a>)>, String> {
    let mut take = Take::new(inputs);
    let mut values = Vec::new();
    while !take.is_empty() {
        let input = take_input(&mut take).map_err(|error| error.to_string())?;
        values.push(match input {
            (argument, LeasedInput::Value(value)) => (argument, Input::Value(value)),
            (argument, LeasedInput::Stored(stored)) => {
                let loaded = stored::load(folder, &stored);
                (argument, Input::Stored(loaded.map_err(|error| format!("argument {}: {error}", argument + 1))?))
            }
        });
    }
    Ok(values)
}
