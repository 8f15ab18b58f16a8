//! Tasks that submit tasks.
//!
//! Submissions and results go through the host, which knows a task in this process by a *ticket*. Everything about a
//! submission that can be wrong is said by [`Remote::submit`], so that calls can be written one after another.

use std::ffi::c_void;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tracer_abi::{
    self as abi, Bytes, STATUS_CANCELLED, STATUS_OK, STATUS_TIMED_OUT, Str, TASK_ERROR_ARGUMENTS, TASK_ERROR_CANCELLED,
    TASK_ERROR_PANICKED, TASK_ERROR_RESULT, TASK_ERROR_RETURNED, TextBuffer,
};

pub use tracer_options::RemoteErrorKind;
use tracer_options::{HasOptions, NotesProblems, TaskOptions};

use crate::proxy::words::PlainContext;
use crate::{blocking, host, messagepack, runtime, task};

/// Begins the submission of another task from the one that runs: `module:function`.
///
/// The task goes to the head like any other, and runs where there is room. Its span is a child of the span that is current
/// here, and it belongs to the job of the task that submits it. A task that waits for others gives its slot back meanwhile, so
/// that tasks may be nested as deep as they need to be.
///
/// ```no_run
/// use tracer_sdk::{RemoteError, get_all, remote, task};
///
/// /// Counts the words of many texts, each in a task of its own.
/// #[task]
/// fn count_all(texts: Vec<String>) -> Result<u64, RemoteError> {
///     let tasks = texts.iter().map(|text| remote("wordcount:count").arg(text).submit());
///     let tasks = tasks.collect::<Result<Vec<_>, _>>()?;
///     Ok(get_all::<u64>(tasks)?.iter().sum())
/// }
/// ```
///
/// Threads: a thread that the task has started may submit too, while the task runs. Unless it took the context of
/// OpenTelemetry along, its submissions are children of the task's own span.
pub fn remote(target: impl Into<String>) -> Remote {
    Remote(Parts::new(target))
}

/// A submission that is being put together; see [`remote`].
#[derive(Debug)]
#[must_use = "nothing is submitted before `submit`"]
pub struct Remote(Parts);

/// Parts that all submissions have: of a task, of an actor and of a call.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) target: String,
    arguments: Vec<Encoded>,
    /// The first thing that is wrong.
    failure: Option<RemoteError>,
    pub(crate) options: TaskOptions,
}

/// Returns what a task needs, as it is handed to the host, which reads it while it takes the submission.
fn raw_demand(options: &TaskOptions, resources: &[abi::Resource]) -> abi::Demand {
    abi::Demand {
        size: size_of::<abi::Demand>(),
        num_cpus: options.num_cpus,
        resources: resources.as_ptr(),
        resource_count: resources.len(),
        memory_bytes: options.memory.unwrap_or(0),
    }
}

/// Returns what is done when an attempt fails, as it is handed to the host, which reads it while it takes the submission.
fn raw_policy(options: &TaskOptions) -> abi::Policy {
    abi::Policy {
        size: size_of::<abi::Policy>(),
        retries: options.retries,
        crash_limit: options.crash_limit,
        retry_backoff_ms: milliseconds(options.retry_backoff),
        retry_on: Str::new(&options.retry_on),
        idempotency_key: Str::new(&options.idempotency_key),
        queue_limit_ms: limit_ms(options.queue_timeout),
        at_most_once: options.at_most_once.into(),
    }
}

/// Returns whether anything is said of what is done when an attempt fails, or of how long it may wait.
fn says_policy(options: &TaskOptions) -> bool {
    let silent = TaskOptions::default();
    options.retries != silent.retries
        || options.crash_limit != silent.crash_limit
        || options.retry_backoff != silent.retry_backoff
        || options.retry_on != silent.retry_on
        || options.idempotency_key != silent.idempotency_key
        || options.queue_timeout != silent.queue_timeout
        || options.at_most_once != silent.at_most_once
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns a limit in milliseconds, at least 1; 0 for none.
fn limit_ms(limit: Option<Duration>) -> u64 {
    limit.map_or(0, |limit| milliseconds(limit).max(1))
}

impl Parts {
    pub(crate) fn new(target: impl Into<String>) -> Parts {
        Parts { target: target.into(), arguments: Vec::new(), failure: None, options: TaskOptions::default() }
    }

    pub(crate) fn add(&mut self, argument: &impl Argument) {
        match argument.encode() {
            Ok(encoded) => self.arguments.push(encoded),
            Err(reason) => {
                let text = format!("argument {} of `{}`: {reason}", self.arguments.len() + 1, self.target);
                self.failure.get_or_insert(RemoteError::submission(text));
            }
        }
    }

    /// Remembers the first thing that is wrong.
    pub(crate) fn note(&mut self, problem: String) {
        self.failure.get_or_insert_with(|| RemoteError::submission(problem));
    }

    /// Returns the two halves of the target, or what is wrong with the submission. `what` is named `form`.
    pub(crate) fn target(&self, what: &str, form: &str) -> Result<(&str, &str), RemoteError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        match self.target.rsplit_once(':') {
            Some((module, function)) if !module.is_empty() && !function.is_empty() => Ok((module, function)),
            _ => {
                let text = format!("{what} is named `{form}`, but got `{}`", self.target);
                Err(RemoteError::submission(text))
            }
        }
    }
}

/// An argument on its way.
#[derive(Clone, Debug)]
pub enum Encoded {
    /// A MessagePack value.
    #[doc(hidden)]
    Value(Vec<u8>),
    /// The result of the task with this ticket.
    #[doc(hidden)]
    Result(u64),
}

/// Argument of a task: a value that can be serialized, or a `&TaskHandle`, for the result of that task.
pub trait Argument {
    /// Returns the argument as it travels.
    #[doc(hidden)]
    fn encode(&self) -> Result<Encoded, String>;
}

impl<T: Serialize + ?Sized> Argument for T {
    fn encode(&self) -> Result<Encoded, String> {
        task::encode(self).map(Encoded::Value).map_err(|failure| failure.message)
    }
}

impl Argument for &TaskHandle {
    fn encode(&self) -> Result<Encoded, String> {
        Ok(Encoded::Result(self.ticket))
    }
}

impl HasOptions for Remote {
    type Options = TaskOptions;

    fn options(&mut self) -> &mut TaskOptions {
        &mut self.0.options
    }
}

impl NotesProblems for Remote {
    fn note(&mut self, problem: String) {
        self.0.note(problem);
    }
}

impl Remote {
    /// Adds the next argument: a value, or a handle, for the result of another task. A task with a handle among its arguments
    /// starts when that task has ended, and fails if that fails. The handle can still be waited for.
    ///
    /// ```no_run
    /// # fn square() -> Result<u64, tracer_sdk::RemoteError> {
    /// # use tracer_sdk::remote;
    /// let words = remote("wordcount:count").arg("the quick brown fox").submit()?;
    /// remote("maths:square").arg(&words).submit()?.get()
    /// # }
    /// ```
    pub fn arg(mut self, argument: impl Argument) -> Remote {
        self.0.add(&argument);
        self
    }

    tracer_options::task_builder_methods!([later]);

    /// Submits the task. It is on its way when this returns, with the next batch of submissions at the latest when something is
    /// waited for or the task that submits returns.
    pub fn submit(self) -> Result<TaskHandle, RemoteError> {
        let (module, function) = self.0.target("a task", "module:function")?;
        let called = format!("{}.{function}", stem(module));
        submit(&self.0, module, function, called, 0, std::ptr::null())
    }
}

/// Hands a submission to the host. `called` is what people call it; `actor` and `actor_options` are for actors.
pub(crate) fn submit(
    parts: &Parts,
    module: &str,
    function: &str,
    called: String,
    actor: u64,
    actor_options: *const abi::ActorOptions,
) -> Result<TaskHandle, RemoteError> {
    let host_submit = host::entry(|host| host.host_submit).map_err(RemoteError::submission)?;
    let arguments = array(&parts.arguments);
    let references: Vec<_> = parts.arguments.iter().enumerate().filter_map(reference).collect();
    let current = current_context();
    let (context, baggage) = current.as_ref().map_or((None, ""), |(context, baggage)| (Some(context.raw()), baggage));
    let options = &parts.options;
    let needs_more = options.num_cpus != 1 || !options.resource.is_empty() || options.memory.is_some();
    if needs_more {
        host::since(3, "tasks cannot set the resources of tasks that they submit").map_err(RemoteError::submission)?;
    }
    let encoded = match options.encoded() {
        None => Vec::new(),
        Some(said) => {
            let names: Vec<_> = said.names().map(|name| format!("`{name}`")).collect();
            let lack = format!("a submission cannot say {}", names.join(" and "));
            host::since(6, &lack).map_err(RemoteError::submission)?;
            rmp_serde::to_vec(&said).map_err(|error| RemoteError::submission(error.to_string()))?
        }
    };
    let policy = says_policy(options).then(|| raw_policy(options));
    if policy.is_some() {
        host::since(2, "tasks cannot set the retries of tasks that they submit").map_err(RemoteError::submission)?;
    }
    let resource = |(name, amount): &(String, u64)| abi::Resource { name: Str::new(name), amount: *amount };
    let resources: Vec<_> = options.resource.iter().map(resource).collect();
    let demand = raw_demand(options, &resources);
    let submission = abi::Submission {
        size: size_of::<abi::Submission>(),
        submitter: runtime::current().map_or(0, |current| current.task_id),
        module: Str::new(module),
        function: Str::new(function),
        arguments: Bytes::new(&arguments),
        references: references.as_ptr(),
        reference_count: references.len(),
        name: Str::new(&options.name),
        run_limit_ms: limit_ms(options.timeout),
        parent: context.as_ref().map_or(std::ptr::null(), std::ptr::from_ref),
        baggage: Str::new(baggage),
        actor_id: actor,
        actor_options,
        policy: policy.as_ref().map_or(std::ptr::null(), std::ptr::from_ref),
        demand: if needs_more { &demand } else { std::ptr::null() },
        options: Bytes::new(&encoded),
    };
    let mut ticket = 0;
    // SAFETY: everything is borrowed from locals and arguments that outlive the call.
    with_reason(|error| unsafe { host_submit(&submission, &mut ticket, error) }).map_err(RemoteError::submission)?;
    Ok(TaskHandle { ticket, target: called })
}

/// Returns the name of a module that may be given as the path of its library.
fn stem(module: &str) -> &str {
    let file = module.rsplit('/').next().unwrap_or(module);
    let stem = file.strip_suffix(".so").map(|stem| stem.strip_prefix("lib").unwrap_or(stem));
    stem.unwrap_or(file)
}

/// Returns the context that is current on this thread, as it is handed to the host; none without a span.
pub(crate) fn current_context() -> Option<(PlainContext, String)> {
    #[cfg(any(feature = "otel-0-31", feature = "otel-0-32", feature = "otel-0-33"))]
    return crate::proxy::current_plain();
    #[cfg(not(any(feature = "otel-0-31", feature = "otel-0-32", feature = "otel-0-33")))]
    None
}

/// Calls a function of the host, and returns its status, or what it says went wrong.
pub(crate) fn with_reason(call: impl FnOnce(&mut TextBuffer) -> u32) -> Result<u32, String> {
    let mut buffer = [0; 4096];
    let mut error = TextBuffer::new(&mut buffer);
    let status = call(&mut error);
    let filled = error.filled();
    match status {
        STATUS_OK | STATUS_TIMED_OUT | STATUS_CANCELLED => Ok(status),
        _ if filled > 0 => Err(String::from_utf8_lossy(&buffer[..filled]).into_owned()),
        _ => Err("the host has failed and cannot say why".to_owned()),
    }
}

fn reference((argument, encoded): (usize, &Encoded)) -> Option<abi::Reference> {
    match encoded {
        Encoded::Value(_) => None,
        Encoded::Result(ticket) => Some(abi::Reference { argument, ticket: *ticket }),
    }
}

/// Returns a MessagePack array, with nil for what is a reference.
pub(crate) fn array(arguments: &[Encoded]) -> Vec<u8> {
    let values = arguments.iter().map(|argument| match argument {
        Encoded::Value(value) => value.as_slice(),
        Encoded::Result(_) => &[0xc0],
    });
    let values: Vec<&[u8]> = values.collect();
    let mut out = Vec::with_capacity(5 + values.iter().map(|value| value.len()).sum::<usize>());
    match values.len() {
        count @ 0..=15 => out.push(0x90 | count as u8),
        count => {
            out.push(0xdd);
            out.extend_from_slice(&(count as u32).to_be_bytes());
        }
    }
    values.iter().for_each(|value| out.extend_from_slice(value));
    out
}

/// A task that was submitted by this one.
///
/// Dropped, it lets the task run on, and nobody can get its result here any more.
#[derive(Debug)]
pub struct TaskHandle {
    ticket: u64,
    /// `module.function`, for messages.
    target: String,
}

impl Drop for TaskHandle {
    fn drop(&mut self) {
        if let Ok(host_forget) = host::entry(|host| host.host_forget) {
            // SAFETY: a ticket of this host, given back once.
            unsafe { host_forget(self.ticket) };
        }
    }
}

impl TaskHandle {
    /// Returns the task's id, for people and other programs. Waits until the task is accepted; none when it was refused.
    pub fn id(&self) -> Option<u64> {
        let host_task_id = host::entry(|host| host.host_task_id).ok()?;
        // SAFETY: a ticket of this host that was not given back.
        Some(unsafe { host_task_id(self.ticket) }).filter(|&id| id != 0)
    }

    /// Waits for the task to end and returns its result. When the task that waits is itself to end, it returns at once with an error of the
    /// kind [`Cancelled`](RemoteErrorKind::Cancelled); so do all that wait.
    ///
    /// In an `async` task this blocks the thread, and with it every future on it; [`get_async`](Self::get_async) does not.
    pub fn get<T: DeserializeOwned>(self) -> Result<T, RemoteError> {
        wait(&[self.ticket], 1, None)?;
        self.take()
    }

    /// Returns what [`get`](Self::get) does if the task ends within `limit`; else gives the handle back.
    pub fn get_within<T: DeserializeOwned>(self, limit: Duration) -> Result<Result<T, RemoteError>, TaskHandle> {
        match wait(&[self.ticket], 1, Some(limit)) {
            Ok(ended) if !ended[0] => Err(self),
            Ok(_) => Ok(self.take()),
            Err(error) => Ok(Err(error)),
        }
    }

    /// Returns whether the task has ended, however it ended.
    pub fn has_ended(&self) -> Result<bool, RemoteError> {
        Ok(wait(&[self.ticket], 1, Some(Duration::ZERO))?[0])
    }

    /// Waits for the task to end, and lets other futures of this thread run meanwhile.
    pub async fn get_async<T: DeserializeOwned>(self) -> Result<T, RemoteError> {
        TaskEndFuture { ticket: self.ticket, watch: None }.await?;
        self.take()
    }

    /// Returns the outcome of a task that has ended.
    fn take<T: DeserializeOwned>(self) -> Result<T, RemoteError> {
        let host_take = host::entry(|host| host.host_take).map_err(RemoteError::submission)?;
        let mut taken: Option<Result<Result<T, String>, RemoteError>> = None;
        let data = std::ptr::from_mut(&mut taken).cast();
        // SAFETY: a ticket of this host; the callbacks get `taken` and fill it in before the call returns.
        let status = unsafe { host_take(self.ticket, data, Some(on_value::<T>), Some(on_error::<T>)) };
        match taken {
            Some(Ok(Ok(value))) => Ok(value),
            Some(Ok(Err(reason))) => {
                let type_name = std::any::type_name::<T>();
                let text = format!("the result of {} is not a {type_name}: {reason}", self.describe());
                Err(RemoteError::submission(text))
            }
            Some(Err(error)) => Err(RemoteError { task_id: self.id(), target: self.target.clone(), ..error }),
            None => {
                let text = format!("the host gave no result of {} (status {status})", self.describe());
                Err(RemoteError::submission(text))
            }
        }
    }

    fn describe(&self) -> String {
        self.id().map_or_else(|| format!("`{}`", self.target), |id| format!("task {id} ({})", self.target))
    }
}

/// Outcome as the host puts it down; none before.
type Taken<T> = Option<Result<Result<T, String>, RemoteError>>;

unsafe extern "C" fn on_value<T: DeserializeOwned>(data: *mut c_void, value: Bytes) {
    // SAFETY: `data` is what `take` passed; the value is borrowed for the call.
    let (taken, value) = unsafe { (&mut *data.cast::<Taken<T>>(), value.as_bytes()) };
    // A `Deserialize` of the author's may panic, and a panic must not leave this function.
    let decoded = crate::panics::catch(|| messagepack::decode(value).map_err(|error| error.to_string()));
    *taken = Some(Ok(decoded.unwrap_or_else(|panic| Err(panic.text()))));
}

unsafe extern "C" fn on_error<T>(data: *mut c_void, error: *const abi::TaskError) {
    // SAFETY: as in `on_value`; the texts of the error are borrowed for the call.
    unsafe {
        let error = host::read_sized(error);
        let text = |text: Str| String::from_utf8_lossy(text.as_bytes()).into_owned();
        *data.cast::<Taken<T>>() = Some(Err(RemoteError {
            task_id: None,
            target: String::new(),
            kind: match error.kind {
                TASK_ERROR_RETURNED => RemoteErrorKind::Returned,
                TASK_ERROR_PANICKED => RemoteErrorKind::Panicked,
                TASK_ERROR_ARGUMENTS => RemoteErrorKind::Arguments,
                TASK_ERROR_RESULT => RemoteErrorKind::Result,
                TASK_ERROR_CANCELLED => RemoteErrorKind::Cancelled,
                _ => RemoteErrorKind::Runtime,
            },
            error_type: text(error.type_name),
            message: text(error.message),
            stacktrace: text(error.stacktrace),
        }));
    }
}

/// Waits until some of the tasks have ended. Returns which have.
fn wait(tickets: &[u64], wanted: usize, limit: Option<Duration>) -> Result<Vec<bool>, RemoteError> {
    let host_wait = host::entry(|host| host.host_wait).map_err(RemoteError::submission)?;
    blocking::note_wait();
    let limit_ms = limit.map_or(u64::MAX, |limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX - 1));
    let mut ended = vec![0_u8; tickets.len()];
    let status = with_reason(|error| {
        // SAFETY: the tickets and the room for the answer are this function's own, and as long as it says.
        unsafe { host_wait(tickets.as_ptr(), tickets.len(), wanted, limit_ms, ended.as_mut_ptr(), error) }
    });
    if status.map_err(RemoteError::submission)? == STATUS_CANCELLED {
        return Err(RemoteError::cancelled());
    }
    Ok(ended.iter().map(|&has_ended| has_ended != 0).collect())
}

/// Waits for all of the tasks, and returns their results in the order of the handles. If some have failed, the error is that of the first
/// of them; the others are waited for all the same.
pub fn get_all<T: DeserializeOwned>(tasks: impl IntoIterator<Item = TaskHandle>) -> Result<Vec<T>, RemoteError> {
    let tasks: Vec<_> = tasks.into_iter().collect();
    let tickets: Vec<_> = tasks.iter().map(|task| task.ticket).collect();
    if !tickets.is_empty() {
        wait(&tickets, tickets.len(), None)?;
    }
    tasks.into_iter().map(TaskHandle::take).collect()
}

/// Waits until one of the tasks has ended, however it ended, and takes it out: of several the first in the list. None when the list is empty.
///
/// ```no_run
/// # fn get() -> Result<(), tracer_sdk::RemoteError> {
/// # let mut tasks = vec![tracer_sdk::remote("wordcount:count").arg("a b").submit()?];
/// while let Some(task) = tracer_sdk::wait_any(&mut tasks)? {
///     let words: u64 = task.get()?;
///     println!("{words} words, {} left", tasks.len());
/// }
/// # Ok(()) }
/// ```
pub fn wait_any(tasks: &mut Vec<TaskHandle>) -> Result<Option<TaskHandle>, RemoteError> {
    if tasks.is_empty() {
        return Ok(None);
    }
    let tickets: Vec<_> = tasks.iter().map(|task| task.ticket).collect();
    let ended = wait(&tickets, 1, None)?;
    Ok(ended.iter().position(|&has_ended| has_ended).map(|index| tasks.remove(index)))
}

/// Ready when a task has ended.
struct TaskEndFuture {
    ticket: u64,
    watch: Option<Arc<Watch>>,
}

#[derive(Default)]
struct Watch(Mutex<WatchState>);

#[derive(Default)]
struct WatchState {
    has_ended: bool,
    waker: Option<Waker>,
}

impl Future for TaskEndFuture {
    type Output = Result<(), RemoteError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.watch.is_none() {
            let host_watch = match host::entry(|host| host.host_watch) {
                Ok(host_watch) => host_watch,
                Err(reason) => return Poll::Ready(Err(RemoteError::submission(reason))),
            };
            let watch = Arc::new(Watch::default());
            let data = Arc::into_raw(Arc::clone(&watch));
            let ticket = self.ticket;
            // SAFETY: a ticket of this host; `on_ended` gives the reference back, and is called once.
            let watched =
                with_reason(|error| unsafe { host_watch(ticket, data.cast_mut().cast(), Some(on_ended), error) });
            if let Err(reason) = watched {
                // SAFETY: the host has not taken it.
                drop(unsafe { Arc::from_raw(data) });
                return Poll::Ready(Err(RemoteError::submission(reason)));
            }
            self.watch = Some(watch);
        }
        let watch = self.watch.as_ref().expect("it was made if there was none");
        let mut state = watch.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.has_ended {
            return Poll::Ready(Ok(()));
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

unsafe extern "C" fn on_ended(data: *mut c_void) {
    // SAFETY: what was handed to the host, which calls this once.
    let watch = unsafe { Arc::from_raw(data.cast::<Watch>()) };
    let waker = {
        let mut state = watch.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.has_ended = true;
        state.waker.take()
    };
    let _ = crate::panics::catch(|| waker.map(Waker::wake));
}

/// Error of a task that was submitted here and has no result.
#[derive(Clone, PartialEq, Eq)]
pub struct RemoteError {
    task_id: Option<u64>,
    /// Empty when it is about no task that was submitted.
    target: String,
    kind: RemoteErrorKind,
    error_type: String,
    message: String,
    stacktrace: String,
}

impl RemoteError {
    pub(crate) fn submission(message: impl Into<String>) -> RemoteError {
        RemoteError {
            task_id: None,
            target: String::new(),
            kind: RemoteErrorKind::Submission,
            error_type: "submission".to_owned(),
            message: message.into(),
            stacktrace: String::new(),
        }
    }

    fn cancelled() -> RemoteError {
        RemoteError {
            kind: RemoteErrorKind::Cancelled,
            error_type: "cancelled".to_owned(),
            ..RemoteError::submission("the task that waits is to end: it was cancelled, or has run for too long")
        }
    }

    /// Returns which task it is about; none when it got no id.
    pub fn task_id(&self) -> Option<u64> {
        self.task_id
    }

    /// Returns what kind of failure it is.
    pub fn kind(&self) -> RemoteErrorKind {
        self.kind
    }

    /// Returns the type of the error in few words, as it is on the task's span: a type of the task's language, `panic`, `timeout`, `signal:9`.
    pub fn error_type(&self) -> &str {
        &self.error_type
    }

    /// Returns what the task said, with all its causes.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the stack where the task failed; empty when it was not captured.
    pub fn stacktrace(&self) -> &str {
        &self.stacktrace
    }
}

impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.task_id {
            Some(id) => write!(f, "task {id} ({}) failed: {}", self.target, self.message),
            None if self.target.is_empty() => f.write_str(&self.message),
            None => write!(f, "`{}` failed: {}", self.target, self.message),
        }
    }
}

impl fmt::Debug for RemoteError {
    /// The same as the `Display` form, which is what somebody is shown whose code unwraps it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for RemoteError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_host_nothing_can_be_submitted_and_it_is_said_why() {
        let error = remote("wordcount:count").arg("a b").submit().expect_err("there is no host");
        assert_eq!(error.kind(), RemoteErrorKind::Submission);
        assert!(error.to_string().starts_with("tasks can be submitted in a task only"), "{error}");
    }

    #[test]
    fn what_is_wrong_with_a_submission_is_said_by_submit() {
        let error = remote("wordcount").submit().expect_err("no function");
        assert_eq!(error.to_string(), "a task is named `module:function`, but got `wordcount`");
        let lock = std::sync::Mutex::new(());
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _held = lock.lock();
            panic!("so that it is poisoned");
        }));
        let error = remote("a:b").arg(1).arg(&lock).submit().expect_err("a poisoned lock is no value");
        assert!(error.to_string().starts_with("argument 2 of `a:b`: "), "{error}");
    }

    #[test]
    fn a_module_is_called_by_its_name_however_it_was_given() {
        assert_eq!(["wordcount", "/opt/lib/libwordcount.so", "./odd.so"].map(stem), ["wordcount", "wordcount", "odd"]);
    }
}
