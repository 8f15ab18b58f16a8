//! A driver: whoever submits tasks. The command line stands on this, and so does [`cluster`](crate::cluster), which is what programs use.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut driver = tracer::Driver::connect(&tracer::environment::default_temp_dir())?;
//! driver.start_tracing();
//! let task = driver.remote("wordcount:count").arg("the quick brown fox")?.submit()?;
//! let words: u64 = driver.get(task)?;
//! # assert_eq!(words, 4); Ok(()) }
//! ```
//!
//! Submissions are collected and sent in batches: when [`BATCH`] have come together, and whenever the driver waits for
//! something. Everything blocks; there is no runtime between the socket and the caller. A driver is used from one thread; open
//! one for each thread that submits.

mod actors;
mod session_environment;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use serde::{Serialize, de::DeserializeOwned};
use tracer_abi as abi;
use tracer_options::HasOptions;

use tracer_core::names;
use tracer_core::propagation::Carrier;
use tracer_core::task::{
    ActorRole, Failure, FunctionSpec, Input, InputSource, Outcome, Refusal, RefusalCode, TaskId, TaskOptions, TaskSpec,
    sort_resources,
};
use tracer_core::value;
use tracer_host::hook::{ActiveSpan, Attribute, AttributePrefix, HookError, Recorder, SpanRequest};
use tracer_ipc::protocol::frame::PAYLOAD_LIMIT;
use tracer_ipc::protocol::wire::WireError;
use tracer_ipc::protocol::{Finished, Query, Reply, Role, TaskFilter, TaskList, TaskPages, TaskReport, Welcome};
use tracer_ipc::session;
use tracer_ipc::stored::{self, Pending, Stored, Value, ValueWriter, WriteError, Written};

use crate::connection::{Connection, Exchange, Follower, Origin, watched_tag};
use crate::tracing;

pub use crate::connection::{BATCH, SubmitRequest, TaskOutput, Ticket};
pub use crate::error::DriverError;
pub use crate::tracing::hook_names;
pub use actors::{Actor, ActorHandle, Call};

/// A connection to the head of this machine, for one thread.
pub struct Driver {
    connection: Arc<Connection>,
    /// Parent of submissions.
    carrier: Carrier,
    is_carrier_remote: bool,
    /// Time of the connection.
    since: Instant,
    further_failures: Vec<HookError>,
    outputs: Outputs,
}

/// Connection and context of a driver that is to be shared.
pub struct DriverParts {
    /// The connection.
    pub connection: Arc<Connection>,
    /// Parent of submissions.
    pub carrier: Carrier,
    /// True if that is a span of another process.
    pub is_carrier_remote: bool,
}

/// Output of the driver's tasks that want it, until they are followed.
#[derive(Clone, Default)]
struct Outputs(Arc<Mutex<VecDeque<TaskOutput>>>);

impl Outputs {
    fn lock(&self) -> MutexGuard<'_, VecDeque<TaskOutput>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what a task has written since this was asked last.
    fn take(&self, id: impl FnOnce() -> Option<TaskId>) -> VecDeque<TaskOutput> {
        let mut outputs = self.lock();
        if outputs.is_empty() {
            return VecDeque::new();
        }
        let id = id();
        let (own, others) = std::mem::take(&mut *outputs).into_iter().partition(|output| Some(output.id) == id);
        *outputs = others;
        own
    }
}

impl Follower for Outputs {
    fn output(&mut self, output: &TaskOutput) -> Option<Waker> {
        self.lock().push_back(output.clone());
        None
    }
}

impl AsFd for Driver {
    /// Readable when something has arrived from the head, for callers that wait for other things too. Nothing is read from it but by
    /// the driver itself; see [`Driver::try_next_finished`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

/// A submission that is being put together.
pub struct Remote<'a> {
    driver: &'a mut Driver,
    target: String,
    arguments: Vec<Vec<u8>>,
    options: TaskOptions,
    inputs: Vec<Input>,
    /// Arguments that are in files.
    pending: Vec<Pending>,
}

impl HasOptions for Remote<'_> {
    type Options = TaskOptions;

    fn options(&mut self) -> &mut TaskOptions {
        &mut self.options
    }
}

/// A type whose values can be arguments of a task: one that can be serialized, or `&Ticket`, the result of another task.
pub trait Argument {
    /// Adds it behind those that are there.
    #[doc(hidden)]
    fn add_to(&self, remote: &mut Remote<'_>) -> Result<(), DriverError>;
}

impl<T: Serialize> Argument for T {
    fn add_to(&self, remote: &mut Remote<'_>) -> Result<(), DriverError> {
        match encode_argument(self, &remote.driver.values())? {
            Written::Small(value) => remote.arguments.push(value),
            Written::Large(stored) => {
                remote.pending.push(Pending::new(&remote.driver.values(), &stored));
                remote.add_input(InputSource::Stored(stored));
            }
        }
        Ok(())
    }
}

impl Argument for &Ticket {
    fn add_to(&self, remote: &mut Remote<'_>) -> Result<(), DriverError> {
        let task = remote.driver.accepted(self)?;
        remote.add_input(InputSource::Task(task));
        Ok(())
    }
}

/// Encodes an argument; a large one into a file.
pub fn encode_argument<T: Serialize>(argument: &T, folder: &Path) -> Result<Written, DriverError> {
    let mut writer = ValueWriter::new(folder, PAYLOAD_LIMIT);
    value::write(argument, &mut writer)?;
    writer.finish().map_err(|error| match error {
        WriteError::TooLarge { bytes } => DriverError::TooLarge { bytes },
        WriteError::Io { source, .. } => DriverError::Store { folder: folder.into(), source },
    })
}

impl Remote<'_> {
    /// Adds an argument that does not come with the others; nil stands in its place.
    fn add_input(&mut self, source: InputSource) {
        let argument = u32::try_from(self.arguments.len()).expect("arguments fit memory");
        self.inputs.push(Input { argument, source });
        self.arguments.push(vec![0xc0]);
    }

    /// Adds the next argument: a value, or a handle, for the result of another task. A task with a handle among its arguments starts when
    /// that task has ended, and fails if that fails. The handle can still be waited for.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let mut driver = tracer::Driver::connect(&tracer::environment::default_temp_dir())?;
    /// let words = driver.remote("wordcount:count").arg("the quick brown fox")?.submit()?;
    /// let square = driver.remote("maths:square").arg(&words)?.submit()?;
    /// let square: u64 = driver.get(square)?;
    /// # Ok(()) }
    /// ```
    pub fn arg(mut self, argument: impl Argument) -> Result<Self, DriverError> {
        argument.add_to(&mut self)?;
        Ok(self)
    }

    tracer_options::task_builder_methods!([at once DriverError]);

    /// Submits the task.
    pub fn submit(self) -> Result<Ticket, DriverError> {
        self.submit_as(ActorRole::None).map(|(task, _)| task)
    }
}

impl<'a> Remote<'a> {
    /// Submits it as what it has to do with an actor, and gives the driver back.
    fn submit_as(self, actor: ActorRole<'_>) -> Result<(Ticket, &'a mut Driver), DriverError> {
        let (module, function) = split_target(&self.target)?;
        let arguments = value::array(&self.arguments);
        let function = FunctionSpec { actor, ..FunctionSpec::of_task(module, function, &arguments) };
        let spec = TaskSpec::Function(function);
        let mut options = self.options;
        options.resource = sort_resources(options.resource).map_err(DriverError::Resource)?;
        let task = self.driver.submit(&SubmitRequest { inputs: &self.inputs, ..SubmitRequest::new(spec, &options) })?;
        self.pending.into_iter().for_each(Pending::keep);
        Ok((task, self.driver))
    }
}

/// `module:function` for `module.function`, which is how lists and spans write it.
pub fn meant_target(given: &str) -> Option<String> {
    let (module, function) =
        given.rsplit_once('.').filter(|_| !given.contains(':') && !tracer_core::module_name::is_path(given))?;
    (!module.is_empty() && !function.is_empty()).then(|| format!("{module}:{function}"))
}

/// Splits `module:function`. A path may hold colons, so the last one counts.
pub fn split_target(target: &str) -> Result<(&str, &str), DriverError> {
    // A name is short, and looking at its bytes is quicker than a search for long texts.
    let colon = target.bytes().rposition(|byte| byte == b':').map(|colon| (&target[..colon], &target[colon + 1..]));
    match colon {
        Some((module, function)) if !module.is_empty() && !function.is_empty() => Ok((module, function)),
        _ => Err(DriverError::Target { given: target.into() }),
    }
}

impl Driver {
    /// Connects to the head whose place is `temp_dir`.
    pub fn connect(temp_dir: &Path) -> Result<Driver, DriverError> {
        let head = session::find_head(temp_dir).map_err(DriverError::Session)?;
        Driver::connect_to_session(&head.session_dir)
    }

    /// Connects to the head of a session.
    pub fn connect_to_session(session_dir: &Path) -> Result<Driver, DriverError> {
        Ok(Driver {
            connection: Arc::new(Connection::connect(session_dir, Role::Driver)?),
            carrier: Carrier::default(),
            is_carrier_remote: false,
            since: Instant::now(),
            further_failures: Vec::new(),
            outputs: Outputs::default(),
        })
    }

    /// Gives the connection to others, who share it.
    pub fn into_parts(self) -> DriverParts {
        let Driver { connection, carrier, is_carrier_remote, .. } = self;
        DriverParts { connection, carrier, is_carrier_remote }
    }

    /// Returns what the head says of itself and of this driver.
    pub fn welcome(&self) -> &Welcome {
        self.connection.welcome()
    }

    /// Returns where large values are.
    fn values(&self) -> std::path::PathBuf {
        stored::folder(&self.welcome().session_dir)
    }

    /// Runs the session's hook in this process, so that submissions are spans. Returns why it failed, if it did; tracer then
    /// writes this process's spans itself. Without a hook in the session, nothing happens.
    ///
    /// The hook reads this process's environment, so one that writes files writes them where `TRACER_SPANS_DIR` says here;
    /// [`take_over_environment`](Self::take_over_environment) comes before it, to have all spans in one place.
    ///
    /// A hook runs once in a process: a further driver shares the tracing of the first, whatever its own session's hook is.
    ///
    /// With `OTEL_SDK_DISABLED=true` in this process's environment it has no spans; what it was given to propagate goes to its tasks
    /// all the same.
    pub fn start_tracing(&mut self) -> Option<HookError> {
        self.start_tracing_quietly(Duration::ZERO)
    }

    /// Starts tracing as [`start_tracing`](Self::start_tracing) does, for a process that may be short-lived: during `quiet`, spans for a
    /// network go to the head, which has workers deliver them, so that this process can exit without waiting for an answer.
    pub fn start_tracing_quietly(&mut self, quiet: Duration) -> Option<HookError> {
        let started = tracing::start(self.welcome(), quiet);
        self.connection.with(|exchange| exchange.set_recorder(started.recorder));
        self.further_failures = started.further_failures;
        started.failure
    }

    /// Returns the hooks that made the tracing of this process, if a driver has started it.
    pub fn hooks_of_this_process() -> Option<Vec<String>> {
        tracing::hooks_of_this_process()
    }

    /// Returns why further hooks of the session failed in [`start_tracing`](Self::start_tracing). They get this process's spans through another one.
    pub fn further_failures(&self) -> &[HookError] {
        &self.further_failures
    }

    /// Returns how long this driver has been there.
    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// This process's tracing.
    pub fn recorder(&self) -> Option<&'static Recorder> {
        self.connection.with(|exchange| exchange.recorder())
    }

    /// Sets what submissions are children of: a context of this process, or, if `is_remote`, of another.
    pub fn set_parent(&mut self, carrier: Carrier, is_remote: bool) {
        self.carrier = carrier;
        self.is_carrier_remote = is_remote;
    }

    /// Keeps for every module the version that it has when a task of it is first submitted, whatever is built meanwhile. Otherwise a
    /// library that has changed is used when none of this driver's tasks is open.
    pub fn keep_module_versions(&mut self) {
        self.connection.with(Exchange::keep_module_versions);
    }

    /// Starts a span around what this driver submits from now on: its job. The caller ends it.
    pub fn start_job(&mut self) -> Option<ActiveSpan> {
        let recorder = self.recorder()?;
        let welcome = self.connection.welcome();
        let attributes = [
            (names::JOB_ID, welcome.job_id.0.into()),
            (names::PID, std::process::id().into()),
            (names::NODE_ID, Attribute::Str(&welcome.node_id)),
        ];
        let span = recorder.start(&SpanRequest {
            name: names::JOB_SPAN,
            kind: abi::SPAN_KIND_INTERNAL,
            parent: self.carrier.trace_context.as_ref(),
            is_parent_remote: self.is_carrier_remote,
            baggage: &self.carrier.baggage,
            start_time_unix_nano: 0,
            attributes: &attributes,
            prefix: AttributePrefix::NONE,
            link: None,
            is_attempt: false,
            request: None,
        });
        self.carrier.trace_context = Some(span.context().clone());
        self.is_carrier_remote = false;
        Some(span)
    }

    /// Begins a submission of `module:function`.
    pub fn remote(&mut self, target: &str) -> Remote<'_> {
        Remote {
            driver: self,
            target: target.into(),
            arguments: Vec::new(),
            options: TaskOptions::default(),
            inputs: Vec::new(),
            pending: Vec::new(),
        }
    }

    /// Submits a task. It is sent with the next batch.
    pub fn submit(&mut self, request: &SubmitRequest<'_>) -> Result<Ticket, DriverError> {
        let origin = Origin { parent: &self.carrier, is_parent_remote: self.is_carrier_remote, task: None };
        let follower = request.wants_output.then(|| Box::new(self.outputs.clone()) as Box<dyn Follower>);
        let ticket = self.connection.submit(request, &origin, follower)?;
        // Once in a batch is soon enough, and costs nothing.
        if ticket.tag() % BATCH as u64 == 0
            && let Some(refusal) = self.connection.with(Exchange::take_refusal)
        {
            return Err(DriverError::Refused(refusal));
        }
        Ok(ticket)
    }

    /// Reads a large result, which a task that has ended left in a file.
    pub fn load(&self, stored: &Stored) -> Result<Value, DriverError> {
        self.connection.load(stored)
    }

    /// Tells the head that nobody here asks for a task's result any more. It keeps it only as long as others need it.
    pub fn forget_result(&mut self, task: TaskId) {
        self.connection.with(|exchange| exchange.forget_result(task));
    }

    /// Sends what was submitted and not sent.
    pub fn send(&mut self) -> Result<(), DriverError> {
        self.connection.send()
    }

    /// Waits until `look` finds something, or the head refuses what was submitted here.
    fn wait_for<R>(&self, mut look: impl FnMut(&mut Exchange) -> Option<R>) -> Result<R, DriverError> {
        let found = self.connection.wait_for(None, |exchange| or_refusal(exchange, &mut look));
        found?.expect("without a limit it is waited until there is something")
    }

    /// Waits for a task and returns its result.
    pub fn get<T: DeserializeOwned>(&mut self, task: Ticket) -> Result<T, DriverError> {
        Ok(self.get_value(task)?.decode()?)
    }

    /// Waits for a task and returns its result as it came: a large one stays in its file, and what is [decoded](Value::decode) from it may
    /// borrow from there.
    pub fn get_value(&mut self, task: Ticket) -> Result<Value, DriverError> {
        let finished = self.wait(task)?;
        match finished.outcome {
            Outcome::Returned(bytes) => Ok(bytes.into()),
            Outcome::Stored(stored) => {
                let value = self.load(&stored)?;
                self.forget_result(finished.task);
                Ok(value)
            }
            // A command has no value; its result is the unit.
            Outcome::Completed => Ok(vec![0xc0].into()),
            Outcome::Failed(failure) => Err(DriverError::Failed { id: finished.task, failure, past: finished.past }),
        }
    }

    /// Waits for a task to end, however it ends.
    pub fn wait(&mut self, task: Ticket) -> Result<Finished, DriverError> {
        self.follow(task, |_| ())
    }

    /// Waits for a task to end, and hands over what it writes until then, if its submission
    /// [wanted that](SubmitRequest::wants_output).
    pub fn follow(&mut self, task: Ticket, mut take: impl FnMut(TaskOutput)) -> Result<Finished, DriverError> {
        let tag = task.tag();
        loop {
            let outputs = &self.outputs;
            let (written, finished) = self.wait_for(|exchange| {
                let written = outputs.take(|| exchange.id_of_tag(tag));
                let finished = exchange.take_finished(tag);
                (!written.is_empty() || finished.is_some()).then_some((written, finished))
            })?;
            written.into_iter().for_each(&mut take);
            if let Some(finished) = finished {
                return Ok(finished);
            }
        }
    }

    /// Returns what all tasks have written since this was asked last, if their submissions [wanted that](SubmitRequest::wants_output). What a task has written
    /// is there before its end.
    pub fn take_outputs(&mut self) -> impl Iterator<Item = TaskOutput> + use<> {
        std::mem::take(&mut *self.outputs.lock()).into_iter()
    }

    /// Waits until some task has ended that nobody has waited for yet. Of several, the one that was submitted first is told first.
    ///
    /// It is for drivers that take results as they come. With no task left to wait for, it waits for ever.
    pub fn next_finished(&mut self) -> Result<Finished, DriverError> {
        self.wait_for(Exchange::pop_finished)
    }

    /// Returns the next end that has arrived, as [`next_finished`](Self::next_finished) does, without waiting.
    pub fn try_next_finished(&mut self) -> Result<Option<Finished>, DriverError> {
        self.connection.look_now(|exchange| or_refusal(exchange, Exchange::pop_finished))?.transpose()
    }

    /// Waits until a task is accepted, and returns its id.
    pub fn accepted(&mut self, task: &Ticket) -> Result<TaskId, DriverError> {
        self.accepted_tag(task.tag())
    }

    /// Waits as [`accepted`](Self::accepted) does, for the task of that number.
    pub fn accepted_tag(&mut self, tag: u64) -> Result<TaskId, DriverError> {
        self.wait_for(|exchange| {
            let id = exchange.id_of_tag(tag).map(Ok);
            // Refused, and that was told before.
            id.or_else(|| exchange.take_finished(tag).map(|finished| Err(refusal(finished))))
        })?
    }

    /// Asks to hear of the end of a task that another driver may have submitted.
    pub fn watch(&mut self, task: TaskId) -> Result<(), DriverError> {
        self.connection.with(|exchange| exchange.watch_task(task));
        Ok(())
    }

    /// Returns the end of a task that is [watched](Self::watch), once.
    pub fn take_watched(&mut self, task: TaskId) -> Option<Finished> {
        self.connection.with(|exchange| exchange.take_finished(watched_tag(task)))
    }

    /// Asks the head something.
    pub fn query(&mut self, query: &Query) -> Result<Reply, DriverError> {
        let reply = self.connection.query(query, None)?;
        Ok(reply.expect("without a limit it is waited until there is one"))
    }

    /// Asks the head something, and waits for the answer until then; none if it has not come.
    pub fn query_until(&mut self, query: &Query, deadline: Instant) -> Result<Option<Reply>, DriverError> {
        self.connection.query(query, Some(deadline))
    }

    /// Asks the head for the next page of a list of tasks; none behind the last one.
    pub fn next_tasks(&mut self, pages: &mut TaskPages) -> Result<Option<Vec<TaskReport>>, DriverError> {
        let Some(query) = pages.next_query() else { return Ok(None) };
        match self.query(&query)? {
            Reply::Tasks(page) => Ok(Some(pages.take(page))),
            _ => Err(DriverError::Protocol(WireError::UnknownValue("reply"))),
        }
    }

    /// Asks the head for the newest tasks, and returns so many of them at most, all in memory.
    pub fn tasks(&mut self, limit: usize, which: TaskFilter) -> Result<TaskList, DriverError> {
        let (mut pages, mut tasks) = (TaskPages::new(limit, which), Vec::new());
        while let Some(page) = self.next_tasks(&mut pages)? {
            tasks.extend(page);
        }
        Ok(TaskList { tasks, ..pages.rest().clone() })
    }

    /// Takes in what has arrived, without waiting.
    pub fn receive_available(&mut self) -> Result<(), DriverError> {
        self.connection.receive_available()
    }
}

/// Looks for something, unless the head has refused what was submitted.
fn or_refusal<R>(
    exchange: &mut Exchange,
    look: impl FnOnce(&mut Exchange) -> Option<R>,
) -> Option<Result<R, DriverError>> {
    match exchange.take_refusal() {
        Some(refusal) => Some(Err(DriverError::Refused(refusal))),
        None => look(exchange).map(Ok),
    }
}

/// Makes an error of the end of a submission that has no id.
fn refusal(finished: Finished) -> DriverError {
    match finished.outcome {
        Outcome::Failed(Failure::Refused { code, message }) => DriverError::Refused(Refusal::new(code, message)),
        _ => DriverError::Refused(Refusal::new(RefusalCode::Other, "it was not accepted")),
    }
}
