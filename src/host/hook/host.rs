//! Services of a worker for the tasks that it runs, beside tracing: to submit further tasks and wait for them.
//!
//! The functions here translate between the ABI and a [`TaskHost`], and let no panic out. A process that runs no tasks has no such
//! host, and says so.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::time::Duration;

use tracer_abi as abi;
use tracer_core::count::Count;
use tracer_core::propagation::{TraceContext, TraceParent};
use tracer_core::size::check_memory;
use tracer_core::task::{
    ActorOptions, ActorRole, Failure, Outcome, Refusal, RefusalCode, TaskId, TaskOptions, check_resource,
    check_retry_on, sort_resources,
};
use tracer_ipc::protocol::ActorReport;
use tracer_ipc::spool::record::slice;

use super::records::{guard, read_sized, text, utf8};

/// Takes submissions of tasks. Tasks are named by tickets, which mean something in this process only.
pub trait TaskHost: Sync {
    /// Submits a task and returns its ticket.
    fn submit(&self, submission: &TaskSubmission<'_>) -> Result<u64, String>;
    /// Waits until `wanted` of the tasks have ended. Returns which have; fewer when time was up.
    fn wait(&self, tickets: &[u64], wanted: usize, timeout: Option<Duration>) -> Result<Waited, String>;
    /// Returns the outcome of a task that has ended, once.
    fn take(&self, ticket: u64) -> Result<Option<Outcome>, String>;
    /// Calls `on_ended` when the task has ended or is forgotten, from any thread.
    fn watch(&self, ticket: u64, on_ended: Box<dyn FnOnce() + Send>) -> Result<(), String>;
    /// Returns the id of a task, once it is accepted; none when it was refused.
    fn task_id(&self, ticket: u64) -> Option<TaskId>;
    /// Notes that nobody will ask for this task any more.
    fn forget(&self, ticket: u64);
    /// Returns an actor, by its name or its id.
    fn find_actor(&self, wanted: &str) -> Result<ActorReport, String>;
    /// Ends an actor.
    fn end_actor(&self, actor: TaskId, grace: Duration) -> Result<(), String>;
}

/// Outcome of a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waited {
    /// Enough tasks have ended, or time was up. Which have.
    Ended(Vec<bool>),
    /// The attempt that waits is to end, and knows it now.
    Cancelled,
}

/// A task to submit for the one that runs.
#[derive(Clone, Debug)]
pub struct TaskSubmission<'a> {
    /// The task that submits; none for the one that the process runs.
    pub submitter: Option<TaskId>,
    /// Name or path of the module.
    pub module: &'a str,
    /// Name of the function in it.
    pub function: &'a str,
    /// A MessagePack array.
    pub arguments: &'a [u8],
    /// Arguments that are the results of other tasks: which one, and that task's ticket.
    pub references: Vec<(u32, u64)>,
    /// The options; resources are sorted.
    pub options: TaskOptions,
    /// Its relation to an actor.
    pub actor: ActorRole<'a>,
    /// The span that is current where it is submitted, and its baggage; none for the attempt's.
    pub parent: Option<(TraceContext, &'a str)>,
}

static TASK_HOST: OnceLock<&'static dyn TaskHost> = OnceLock::new();

/// Offers a host to every module of this process. The first one stays.
pub fn offer_tasks(host: &'static dyn TaskHost) {
    let _ = TASK_HOST.set(host);
}

/// Returns the entries of the host's table; those for tracing, the log, log records and metrics are left empty.
pub(super) fn entries() -> abi::Host {
    abi::Host {
        size: size_of::<abi::Host>(),
        abi_major: abi::ABI_MAJOR,
        abi_minor: abi::ABI_MINOR,
        tracing: std::ptr::null(),
        host_log: None,
        host_submit: Some(host_submit),
        host_wait: Some(host_wait),
        host_take: Some(host_take),
        host_watch: Some(host_watch),
        host_task_id: Some(host_task_id),
        host_forget: Some(host_forget),
        host_is_cancelled: Some(super::task::host_is_cancelled),
        host_find_actor: Some(host_find_actor),
        host_end_actor: Some(host_end_actor),
        host_log_record: None,
        log_severity: 0,
        log_events: 0,
        host_call: Some(super::calls::host_call),
        host_call_consumed: Some(super::calls::host_call_consumed),
        host_call_cancel: Some(super::calls::host_call_cancel),
        host_instrument: None,
        host_measure: None,
        host_exemplar: None,
        host_observe: None,
    }
}

fn host() -> Result<&'static dyn TaskHost, String> {
    TASK_HOST.get().copied().ok_or_else(|| {
        "tasks can be submitted while a worker of tracer runs a task, but this process is none\n\
         (hint: submit in a function with `#[task]`)"
            .into()
    })
}

/// Returns what a submission has to do with an actor.
///
/// # Safety
///
/// Everything is borrowed for the call.
unsafe fn actor_role<'a>(submission: &abi::Submission) -> Result<ActorRole<'a>, String> {
    if submission.actor_id != 0 {
        return Ok(ActorRole::Call(TaskId(submission.actor_id)));
    }
    if submission.actor_options.is_null() {
        return Ok(ActorRole::None);
    }
    // SAFETY: promised by the caller.
    let options = unsafe { read_sized(submission.actor_options) };
    Ok(ActorRole::Create(ActorOptions {
        // SAFETY: as above.
        name: unsafe { utf8(options.name, "name of the actor") }?,
        max_restarts: options.max_restarts,
        max_call_retries: options.max_call_retries,
        is_detached: options.flags & abi::ACTOR_DETACHED != 0,
        or_existing: options.flags & abi::ACTOR_OR_EXISTING != 0,
    }))
}

/// Returns the options of a submission: what its structs say, and over it what is encoded.
///
/// # Safety
///
/// Everything is borrowed for the call.
unsafe fn options(submission: &abi::Submission) -> Result<TaskOptions, String> {
    let mut options = TaskOptions { timeout: limit(submission.run_limit_ms), ..TaskOptions::default() };
    // SAFETY: promised by the caller, for this and what follows.
    unsafe { utf8(submission.name, "name of the task") }?.clone_into(&mut options.name);
    if !submission.policy.is_null() {
        // SAFETY: as above.
        let (policy, retry_on, key) = unsafe {
            let policy = read_sized(submission.policy);
            (policy, utf8(policy.retry_on, "kinds to try again")?, utf8(policy.idempotency_key, "idempotency key")?)
        };
        if !retry_on.is_empty() {
            check_retry_on(retry_on)?;
        }
        options.retries = policy.retries;
        options.retry_backoff = Duration::from_millis(policy.retry_backoff_ms);
        retry_on.clone_into(&mut options.retry_on);
        options.crash_limit = policy.crash_limit;
        options.at_most_once = policy.at_most_once != 0;
        key.clone_into(&mut options.idempotency_key);
        options.queue_timeout = limit(policy.queue_limit_ms);
    }
    if !submission.demand.is_null() {
        // SAFETY: as above.
        let (demand, resources) = unsafe {
            let demand = read_sized(submission.demand);
            (demand, slice(demand.resources, demand.resource_count))
        };
        let resource = |resource: &abi::Resource| {
            // SAFETY: as above.
            let name = unsafe { utf8(resource.name, "name of a resource") }?;
            check_resource(name, i64::try_from(resource.amount).unwrap_or(i64::MAX))
        };
        options.num_cpus = demand.num_cpus;
        options.resource = sort_resources(resources.iter().map(resource).collect::<Result<_, _>>()?)?;
        options.memory = Some(demand.memory_bytes).filter(|&bytes| bytes != 0);
    }
    // SAFETY: as above.
    let encoded = unsafe { submission.options.as_bytes() };
    if !encoded.is_empty() {
        let mut rest = encoded;
        options
            .read(&mut rmp_serde::Deserializer::new(&mut rest))
            .map_err(|error| format!("the options of the task: {error}"))?;
        if !rest.is_empty() {
            let follows = if rest.len() == 1 { "follows" } else { "follow" };
            return Err(format!("the options of the task: {} {follows} their map", Count(rest.len(), "byte")));
        }
    }
    if let Some(bytes) = options.memory {
        check_memory(bytes).map_err(|problem| format!("the bound on its memory: {problem}"))?;
    }
    Ok(options)
}

/// Returns a limit in milliseconds; 0 for none.
fn limit(ms: u64) -> Option<Duration> {
    Some(ms).filter(|&ms| ms != 0).map(Duration::from_millis)
}

unsafe extern "C" fn host_submit(
    submission: *const abi::Submission,
    ticket: *mut u64,
    error: *mut abi::TextBuffer,
) -> u32 {
    // SAFETY: everything is lent for the call, by contract of the ABI.
    unsafe {
        guard(error, || {
            let submission = read_sized(submission);
            let parent = submission.parent.as_ref().map(|_| {
                let parent = read_sized(submission.parent);
                let context = TraceContext {
                    parent: TraceParent {
                        trace_id: parent.trace_id,
                        span_id: parent.span_id,
                        flags: parent.trace_flags,
                    },
                    trace_state: text(parent.trace_state),
                };
                utf8(submission.baggage, "baggage").map(|baggage| (context, baggage))
            });
            let reference = |reference: &abi::Reference| {
                let argument = u32::try_from(reference.argument).map_err(|_| "there are too many arguments")?;
                Ok::<_, String>((argument, reference.ticket))
            };
            let references = slice(submission.references, submission.reference_count);
            *ticket = host()?.submit(&TaskSubmission {
                submitter: Some(submission.submitter).filter(|&task| task != 0).map(TaskId),
                module: utf8(submission.module, "name of the module")?,
                function: utf8(submission.function, "name of the function")?,
                arguments: submission.arguments.as_bytes(),
                references: references.iter().map(reference).collect::<Result<_, _>>()?,
                options: options(&submission)?,
                actor: actor_role(&submission)?,
                parent: parent.transpose()?,
            })?;
            Ok(abi::STATUS_OK)
        })
    }
}

unsafe extern "C" fn host_wait(
    tickets: *const u64,
    count: usize,
    wanted: usize,
    timeout_ms: u64,
    ended: *mut u8,
    error: *mut abi::TextBuffer,
) -> u32 {
    // SAFETY: everything is lent for the call, by contract of the ABI.
    unsafe {
        guard(error, || {
            let timeout = (timeout_ms != u64::MAX).then(|| Duration::from_millis(timeout_ms));
            let found = match host()?.wait(slice(tickets, count), wanted, timeout)? {
                Waited::Ended(found) => found,
                // The text is for modules that do not know the status.
                Waited::Cancelled => {
                    if let Some(error) = error.as_mut() {
                        error.write("the task that waits is to end: it was cancelled, or has run for too long");
                    }
                    return Ok(abi::STATUS_CANCELLED);
                }
            };
            if !ended.is_null() {
                found.iter().enumerate().for_each(|(index, &has_ended)| ended.add(index).write(has_ended.into()));
            }
            let is_enough = found.iter().filter(|&&has_ended| has_ended).count() >= wanted.min(count);
            Ok(if is_enough { abi::STATUS_OK } else { abi::STATUS_TIMED_OUT })
        })
    }
}

unsafe extern "C" fn host_take(
    ticket: u64,
    data: *mut c_void,
    on_value: Option<unsafe extern "C" fn(data: *mut c_void, value: abi::Bytes)>,
    on_error: Option<unsafe extern "C" fn(data: *mut c_void, error: *const abi::TaskError)>,
) -> u32 {
    let body = || {
        let outcome = match host().and_then(|host| host.take(ticket)) {
            Ok(Some(outcome)) => outcome,
            Ok(None) => return Ok(abi::STATUS_TIMED_OUT),
            Err(reason) => Outcome::Failed(Refusal::new(RefusalCode::Other, reason).into()),
        };
        match (outcome, on_value, on_error) {
            // SAFETY: the module's function with its own data; the value outlives the call.
            (Outcome::Returned(value), Some(on_value), _) => unsafe { on_value(data, abi::Bytes::new(&value)) },
            // A command has no value; its result is the unit.
            // SAFETY: as above.
            (Outcome::Completed, Some(on_value), _) => unsafe { on_value(data, abi::Bytes::new(&[0xc0])) },
            (Outcome::Failed(failure), _, Some(on_error)) => report_failure(&failure, |error| {
                // SAFETY: as above.
                unsafe { on_error(data, error) }
            }),
            _ => {}
        }
        Ok(abi::STATUS_OK)
    };
    // SAFETY: there is no buffer for a text.
    unsafe { guard(std::ptr::null_mut(), body) }
}

/// Puts a failure into the words of the ABI.
fn report_failure(failure: &Failure, tell: impl FnOnce(&abi::TaskError)) {
    let (kind, location) = match failure {
        Failure::Error { .. } => (abi::TASK_ERROR_RETURNED, ""),
        Failure::Panic { location, .. } => (abi::TASK_ERROR_PANICKED, location.as_str()),
        Failure::Arguments { .. } => (abi::TASK_ERROR_ARGUMENTS, ""),
        Failure::Result { .. } => (abi::TASK_ERROR_RESULT, ""),
        failure if failure.is_cancellation() => (abi::TASK_ERROR_CANCELLED, ""),
        _ => (abi::TASK_ERROR_RUNTIME, ""),
    };
    let (type_name, message) = (failure.error_type(), failure.to_string());
    tell(&abi::TaskError {
        size: size_of::<abi::TaskError>(),
        kind,
        type_name: abi::Str::new(&type_name),
        message: abi::Str::new(&message),
        location: abi::Str::new(location),
        stacktrace: abi::Str::new(failure.stacktrace()),
    });
}

/// Callback data of a module that waits for the end of its task.
struct Watcher {
    data: *mut c_void,
    on_ended: unsafe extern "C" fn(data: *mut c_void),
}
// SAFETY: by contract of the ABI, it is called from any thread.
unsafe impl Send for Watcher {}

impl Watcher {
    fn call(self) {
        // SAFETY: the module's function with its own data, called once.
        unsafe { (self.on_ended)(self.data) };
    }
}

unsafe extern "C" fn host_watch(
    ticket: u64,
    data: *mut c_void,
    on_ended: Option<unsafe extern "C" fn(data: *mut c_void)>,
    error: *mut abi::TextBuffer,
) -> u32 {
    let body = || {
        let Some(on_ended) = on_ended else { return Err("there is nothing to call".into()) };
        let watcher = Watcher { data, on_ended };
        host()?.watch(ticket, Box::new(move || watcher.call()))?;
        Ok(abi::STATUS_OK)
    };
    // SAFETY: `error` is lent for the call.
    unsafe { guard(error, body) }
}

unsafe extern "C" fn host_task_id(ticket: u64) -> u64 {
    let id = || host().ok().and_then(|host| host.task_id(ticket)).map_or(0, |id| id.0);
    catch_unwind(AssertUnwindSafe(id)).unwrap_or(0)
}

unsafe extern "C" fn host_find_actor(
    wanted: abi::Str,
    data: *mut c_void,
    on_found: Option<unsafe extern "C" fn(data: *mut c_void, actor: *const abi::ActorIdentity)>,
    error: *mut abi::TextBuffer,
) -> u32 {
    let body = || {
        // SAFETY: the name is borrowed for the call.
        let found = host()?.find_actor(unsafe { utf8(wanted, "name of the actor") }?)?;
        let identity = abi::ActorIdentity {
            size: size_of::<abi::ActorIdentity>(),
            actor_id: found.id.0,
            module: abi::Str::new(&found.module),
            type_name: abi::Str::new(&found.type_name),
            death: abi::Str::new(found.reason.as_deref().unwrap_or_default()),
        };
        if let Some(on_found) = on_found {
            // SAFETY: the module's function with its own data; the identity outlives the call.
            unsafe { on_found(data, &identity) };
        }
        Ok(abi::STATUS_OK)
    };
    // SAFETY: `error` is lent for the call.
    unsafe { guard(error, body) }
}

unsafe extern "C" fn host_end_actor(actor_id: u64, grace_ms: u64, error: *mut abi::TextBuffer) -> u32 {
    let body = || {
        host()?.end_actor(TaskId(actor_id), Duration::from_millis(grace_ms))?;
        Ok(abi::STATUS_OK)
    };
    // SAFETY: `error` is lent for the call.
    unsafe { guard(error, body) }
}

unsafe extern "C" fn host_forget(ticket: u64) {
    let _ = catch_unwind(AssertUnwindSafe(|| host().map(|host| host.forget(ticket))));
}
