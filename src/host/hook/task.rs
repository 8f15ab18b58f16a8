//! Calls a task of a module.

use std::borrow::Cow;
use std::ffi::c_void;
use std::sync::OnceLock;

use tracer_abi as abi;
use tracer_core::propagation::TraceContext;
use tracer_core::task::{Failure, JobId, Outcome, TaskId, WorkerId};
use tracer_ipc::spool::Spool;
use tracer_ipc::stored::ValueWriter;

use super::module::Record;
use super::records::text;
use crate::hook::error::ModuleError;
use crate::hook::module::Module;
use crate::hook::recorder::{ActiveSpan, Recorder};
use crate::runtime_spans::{Phases, name_of_phase};

/// A task that can be called.
#[derive(Clone, Copy, Debug)]
pub struct LoadedTask {
    task: Record<abi::Task>,
    /// Minor version of the ABI of the module that it is in.
    abi_minor: u32,
}

/// A type of actors, got ready to be made and called.
#[derive(Clone, Copy, Debug)]
pub struct LoadedActor {
    actor: Record<abi::Actor>,
    /// Minor version of the ABI of the module that it is in.
    abi_minor: u32,
}

/// The arguments of a call.
#[derive(Clone, Debug)]
pub enum CallArguments<'a> {
    /// A MessagePack array of them.
    Array(Cow<'a, [u8]>),
    /// Each of them, encoded, wherever it is.
    Values(Vec<&'a [u8]>),
}

impl<'a> From<&'a [u8]> for CallArguments<'a> {
    fn from(array: &'a [u8]) -> CallArguments<'a> {
        CallArguments::Array(array.into())
    }
}

impl LoadedActor {
    /// Finds a type of actors in a module, and gets the module ready.
    pub fn find(
        module: Module,
        type_name: &str,
        tracing: Option<&'static Recorder>,
    ) -> Result<LoadedActor, ModuleError> {
        let actor = module.actor(type_name)?;
        module.get_ready(tracing)?;
        Ok(LoadedActor { actor, abi_minor: module.abi_minor() })
    }

    /// Returns what makes one.
    pub fn creation(&self) -> Result<LoadedTask, ModuleError> {
        let type_name = text(self.actor.name);
        let creation = super::module::creation(&self.actor);
        creation.map(|task| LoadedTask { task, abi_minor: self.abi_minor }).ok_or_else(|| ModuleError::NoSuchMethod {
            method: format!("{type_name}.new"),
            actor: type_name,
            methods: Vec::new(),
        })
    }

    /// Returns the method of that name, which is `Type.method`.
    pub fn method(&self, name: &str) -> Result<LoadedTask, ModuleError> {
        let methods = super::module::methods(&self.actor);
        let found = methods.iter().find(|method| text(method.name) == name);
        found.map(|&task| LoadedTask { task, abi_minor: self.abi_minor }).ok_or_else(|| {
            let short = |name: &str| name.rsplit('.').next().unwrap_or(name).to_owned();
            ModuleError::NoSuchMethod {
                actor: text(self.actor.name),
                method: short(name),
                methods: methods.iter().map(|method| short(&text(method.name))).collect(),
            }
        })
    }

    /// Returns the names, which are `Type.method`, of the methods whose calls may run beside each other.
    pub fn concurrent_methods(&self) -> Vec<String> {
        let methods = super::module::methods(&self.actor);
        let concurrent = methods.iter().filter(|method| method.flags & abi::TASK_CONCURRENT != 0);
        concurrent.map(|method| text(method.name)).collect()
    }

    /// Count of calls of concurrent methods that may run at a time.
    pub fn max_concurrency(&self) -> usize {
        (self.actor.max_concurrency as usize).max(1)
    }

    /// Releases an actor's state.
    pub fn release(&self, state: ActorState) {
        if let Some(on_drop) = self.actor.on_drop.filter(|_| !state.0.is_null()) {
            // SAFETY: the module passed the staircase; the state is its own, and nobody uses it from here on.
            unsafe { on_drop(self.actor.original(), state.0) };
        }
    }
}

/// State of an actor between its calls: the module's, which alone knows what it points to.
#[derive(Clone, Copy, Debug)]
pub struct ActorState(*mut c_void);

impl ActorState {
    /// State of an actor that is about to be made.
    pub const NONE: ActorState = ActorState(std::ptr::null_mut());
}

// SAFETY: by contract of the ABI, methods that say so may be called from any thread; the others are called on one.
unsafe impl Send for ActorState {}
// SAFETY: as above.
unsafe impl Sync for ActorState {}

/// Since then modules take arguments one by one.
const ABI_MINOR_OF_VALUES: u32 = 3;

/// Facts that a task is told about itself.
pub struct TaskContext<'a> {
    /// The task's id.
    pub task: TaskId,
    /// Number of the attempt at the task, from 1.
    pub attempt: u32,
    /// The actor that it makes, or is a method of.
    pub actor: Option<TaskId>,
    /// The driver's job that the task belongs to.
    pub job: JobId,
    /// The worker that runs it.
    pub worker: WorkerId,
    /// The machine, as spans name it.
    pub node_id: &'a str,
    /// The attempt's span; none when the process is not traced.
    pub span: Option<&'a ActiveSpan>,
    /// Context to propagate when there is no span.
    pub trace_context: Option<&'a TraceContext>,
    /// The W3C baggage of the submission; empty for none.
    pub baggage: &'a str,
    /// Told of the parts of the call; none when nobody asks.
    pub phases: Option<&'a Phases>,
    /// Told when the task waits for the first time; none when nobody asks.
    pub on_wait: Option<&'a dyn Fn()>,
    /// Takes the value that the task returns, as it comes.
    pub result: ValueWriter<'a>,
    /// Makes an outcome of that value.
    pub keep: &'a dyn Fn(ValueWriter<'_>) -> Outcome,
}

/// Target of the `data` that the callbacks of a call get.
struct CallData<'a> {
    outcome: Option<Outcome>,
    phases: Option<&'a Phases>,
    on_wait: Option<&'a dyn Fn()>,
    /// Writer of the result, until it is an outcome.
    result: Option<ValueWriter<'a>>,
    keep: &'a dyn Fn(ValueWriter<'_>) -> Outcome,
}

impl LoadedTask {
    /// Finds a task in a module, and gets the module ready to run it.
    pub fn find(module: Module, function: &str, tracing: Option<&'static Recorder>) -> Result<LoadedTask, ModuleError> {
        let task = module.task(function)?;
        module.get_ready(tracing)?;
        Ok(LoadedTask { task, abi_minor: module.abi_minor() })
    }

    /// Returns the qualified name of the function, its file and its line.
    pub fn code(&self) -> (String, String, u32) {
        (text(self.task.code_function_name), text(self.task.code_file_path), self.task.code_line_number)
    }

    /// Returns the names of its parameters, in order.
    pub fn parameters(&self) -> Vec<String> {
        super::module::describe_task(&self.task).parameters.into_iter().map(|parameter| parameter.name).collect()
    }

    /// Returns whether calls of it may run beside each other.
    pub fn is_concurrent(&self) -> bool {
        self.task.flags & abi::TASK_CONCURRENT != 0
    }

    /// Returns whether it takes [`CallArguments::Values`].
    pub fn takes_values(&self) -> bool {
        self.abi_minor >= ABI_MINOR_OF_VALUES
    }

    /// Calls the task on this thread. `state` is that of the actor whose method it is, or where its creation puts it.
    pub fn run(
        &self,
        arguments: &CallArguments<'_>,
        context: TaskContext<'_>,
        state: Option<&mut ActorState>,
    ) -> Outcome {
        let Some(on_run) = self.task.on_run else {
            return Outcome::Failed(Failure::Module { message: "the task has no function to call".into() });
        };
        let trace_context = context.span.map(ActiveSpan::context).or(context.trace_context);
        let span_context = trace_context.map(|trace_context| abi::SpanContext {
            size: size_of::<abi::SpanContext>(),
            trace_id: trace_context.parent.trace_id,
            span_id: trace_context.parent.span_id,
            trace_flags: trace_context.parent.flags,
            is_remote: u8::from(context.span.is_none()),
            trace_state: abi::Str::new(&trace_context.trace_state),
        });
        let mut data = CallData {
            outcome: None,
            phases: context.phases,
            on_wait: context.on_wait,
            result: Some(context.result),
            keep: context.keep,
        };
        let (array, values) = match arguments {
            CallArguments::Array(array) => (&**array, Vec::new()),
            CallArguments::Values(values) => (&[][..], values.iter().map(|value| abi::Bytes::new(value)).collect()),
        };
        let call = abi::TaskCall {
            size: size_of::<abi::TaskCall>(),
            arguments: abi::Bytes::new(array),
            span: context.span.map_or(std::ptr::null_mut(), ActiveSpan::handle),
            span_context: span_context.as_ref().map_or(std::ptr::null(), std::ptr::from_ref),
            baggage: abi::Str::new(context.baggage),
            task_id: context.task.0,
            attempt: context.attempt,
            job_id: context.job.0,
            worker_id: context.worker.0,
            data: std::ptr::from_mut(&mut data).cast(),
            host_result: Some(host_result),
            host_error: Some(host_error),
            node_id: abi::Str::new(context.node_id),
            actor_id: context.actor.map_or(0, |actor| actor.0),
            state: state.map_or(std::ptr::null_mut(), |state| &raw mut state.0),
            host_phase: (context.phases.is_some() || context.on_wait.is_some()).then_some(host_phase as _),
            argument_values: if values.is_empty() { std::ptr::null() } else { values.as_ptr() },
            argument_value_count: values.len(),
            host_result_part: Some(host_result_part),
        };
        // SAFETY: the module passed the staircase and is ready; everything is lent for the call.
        let status = unsafe { on_run(self.task.original(), &call) };
        match data.outcome {
            Some(outcome) => outcome,
            None if status == abi::STATUS_PANICKED => Outcome::Failed(Failure::Panic {
                message: "the module could not say more".into(),
                location: String::new(),
                stacktrace: String::new(),
            }),
            None => {
                Outcome::Failed(Failure::Result { message: "the module gave neither a result nor an error".into() })
            }
        }
    }
}

/// The spool in which the head marks attempts that are to end.
static STOPS: OnceLock<&'static Spool> = OnceLock::new();

/// Lets tasks ask whether they are to end. For the process whose spool this is.
pub fn set_stops(spool: &'static Spool) {
    // A process has one spool.
    let _ = STOPS.set(spool);
}

/// Tells an attempt in this process that it is to end, if it is.
pub fn is_to_stop(task: TaskId, attempt: u32) -> bool {
    STOPS.get().is_some_and(|spool| spool.is_to_stop(task.0, attempt))
}

/// Returns whether an attempt in this process was told that it is to end.
pub fn was_told_to_stop(task: TaskId, attempt: u32) -> bool {
    STOPS.get().is_some_and(|spool| spool.stop_reason(task.0, attempt).is_some() && spool.was_stop_seen(task.0))
}

pub(super) unsafe extern "C" fn host_is_cancelled(task_id: u64, attempt: u32) -> u8 {
    STOPS.get().is_some_and(|spool| spool.is_to_stop(task_id, attempt)).into()
}

unsafe extern "C" fn host_result(data: *mut c_void, value: abi::Bytes) {
    // SAFETY: `data` is that of the call that is going on; the value is borrowed for this one.
    let (data, value) = unsafe { (&mut *data.cast::<CallData<'_>>(), value.as_bytes()) };
    if let Some(mut result) = data.result.take() {
        result.put(value);
        data.outcome.get_or_insert((data.keep)(result));
    }
}

unsafe extern "C" fn host_result_part(data: *mut c_void, part: abi::Bytes) {
    // SAFETY: as in `host_result`.
    let (data, part) = unsafe { (&mut *data.cast::<CallData<'_>>(), part.as_bytes()) };
    if let Some(result) = &mut data.result {
        result.put(part);
    }
}

unsafe extern "C" fn host_error(data: *mut c_void, error: *const abi::TaskError) {
    // SAFETY: as in `host_result`.
    let (data, failure) = unsafe { (&mut *data.cast::<CallData<'_>>(), failure_of(error)) };
    data.result = None;
    data.outcome.get_or_insert(Outcome::Failed(failure));
}

/// Copies an error of a module.
///
/// # Safety
///
/// It is lent for the call, with what it points to.
pub(super) unsafe fn failure_of(error: *const abi::TaskError) -> Failure {
    // SAFETY: promised by the caller.
    let error = unsafe { super::records::read_sized(error) };
    let message = text(error.message);
    let stacktrace = text(error.stacktrace);
    match error.kind {
        abi::TASK_ERROR_PANICKED => Failure::Panic { message, location: text(error.location), stacktrace },
        abi::TASK_ERROR_ARGUMENTS => Failure::Arguments { message },
        abi::TASK_ERROR_RESULT => Failure::Result { message },
        abi::TASK_ERROR_CANCELLED => Failure::Cancelled,
        _ => Failure::Error { type_name: text(error.type_name), message, stacktrace },
    }
}

unsafe extern "C" fn host_phase(data: *mut c_void, phase: u32) {
    // SAFETY: as in `host_result`; the host waits for the call, and the module calls from one thread at a time.
    let data = unsafe { &*data.cast::<CallData<'_>>() };
    if phase == abi::TASK_PHASE_WAIT {
        return data.on_wait.map_or((), |on_wait| on_wait());
    }
    if let Some(phases) = data.phases {
        phases.begin(name_of_phase(phase));
    }
}
