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
pub mod by_tag;
mod session_environment;
mod versions;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Serialize, de::DeserializeOwned};
use tracer_abi as abi;
use tracer_core::clock::now_unix_nano;
use tracer_options::HasOptions;
use tracer_otel_env::Reader;

use tracer_core::causes;
use tracer_core::codec::{Put, Take, WireError};
use tracer_core::names;
use tracer_core::propagation::{Carrier, TraceContext};
use tracer_core::task::{
    ActorRole, AttemptReport, Demand, Envelope, Failure, FunctionSpec, Input, InputSource, JobId, ModuleVersion,
    Outcome, PastAttempts, Policy, Refusal, SpanNameTable, TaskId, TaskOptions, TaskSpec, TraceLink, WorkerId,
    sort_resources,
};
use tracer_core::value::{self, ValueError};
use tracer_host::attempt_span::{put_actor, remote};
use tracer_host::hook::{
    ActiveSpan, Attribute, AttributePrefix, HookError, OwnSettings, PutAttribute, Recorder, SpanRequest, run_hook,
};
use tracer_host::module_store::ModuleStore;
use tracer_host::recorded_arguments;
use tracer_host::runtime_spans::RuntimeParent;
use tracer_ipc::channel::{Receiver, Sender};
use tracer_ipc::fault;
use tracer_ipc::identity;
use tracer_ipc::protocol::frame::{FRAME_LIMIT, FrameBuffer, PAYLOAD_LIMIT, put_frame};
use tracer_ipc::protocol::{
    Accepted, CommandUsage, Finished, Hello, HookChoice, Output, Period, Query, Reply, Role, Stream, Submissions, Wait,
    Welcome, kind, put_query, take_value,
};
use tracer_ipc::session::{self, SessionError};
use tracer_ipc::spin::{Spin, is_readable};
use tracer_ipc::spool::{SLOT_COUNT, Spool};
use tracer_ipc::stored::{self, Pending, STORED_FROM, Stored, StoredError, Value, ValueWriter, WriteError, Written};

pub use actors::{Actor, ActorHandle, Call};
use by_tag::ByTag;
use versions::Versions;

/// Submissions that are sent together.
pub const BATCH: usize = 128;
/// Submissions of one driver that may be unacknowledged: enough that neither it nor the head waits for the other, and few enough that
/// what it keeps of each stays in the processor's cache. There is a slot in the spool for each one's span.
const UNANSWERED: u64 = 512;
/// Ended spans that trigger a commit under load: the kernel takes a large write for half of what it takes for small ones.
const COMMIT_THRESHOLD_BUSY: usize = 192;
/// Ended spans that trigger a commit when nothing is in flight, so that few are left when the driver does something else.
const COMMIT_THRESHOLD_IDLE: usize = 64;
/// Ended spans that trigger a commit right after a single submission, while its answer is awaited.
const COMMIT_THRESHOLD_SINGLE: usize = 16;
/// Bytes of submissions that are sent together.
const BATCH_BYTES: usize = 256 << 10;

/// Set in the driver's number for a task that it watches and may not have submitted.
const WATCHED: u64 = 1 << 63;

/// The W3C trace flag.
const SAMPLED: u8 = 1;

/// A connection to the head of this machine.
pub struct Driver {
    stream: UnixStream,
    sender: Sender,
    read_half: ReadHalf,
    /// Whether it may have rings: whoever waits for it waits here, or for the socket to be readable between two waits.
    may_have_rings: bool,
    welcome: Welcome,
    /// Where large values are.
    values: PathBuf,
    /// Which versions of modules its submissions run.
    versions: Versions,
    tracing: DriverTracing,
    next_tag: u64,
    /// How many of its tasks have not ended.
    open: u64,
    next_query: u64,
    /// Envelopes that were not sent yet, each with its length before it.
    batch: Vec<u8>,
    batch_first_tag: u64,
    /// PRODUCER spans of submissions that are not acknowledged, in the order of their tags, and whether they make an actor.
    producers: VecDeque<(ActiveSpan, bool)>,
    /// For tasks that trace the runtime and have not ended, by tag: what its spans are children of, and when it was submitted.
    runtime: HashMap<u64, (RuntimeParent, u64)>,
    /// Ends of tasks that nobody has asked for yet.
    finished: ByTag<Finished>,
    /// Which ids submissions got, as ranges in the order of their tags; adjacent ones are joined.
    accepted: Vec<Accepted>,
    replies: FxHashMap<u64, Reply>,
    /// Output of tasks whose output is wanted, until they are followed.
    outputs: VecDeque<TaskOutput>,
    /// What commands that have not ended used so far.
    usages: HashMap<TaskId, CommandUsage>,
    /// Batches that the head has not answered: the first tag of each, and how many it has.
    unanswered: VecDeque<(u64, u64)>,
    /// Tasks whose end nobody wants to hear of.
    forgotten: FxHashSet<u64>,
    /// Whether what the head refuses is an outcome of its tasks, and not the end of this driver.
    keeps_on_when_refused: bool,
    /// Leases that the head wants run while tasks wait.
    runs: Vec<Vec<u8>>,
    /// The task on whose behalf it submits.
    submitter: Option<TaskId>,
    /// Whether someone else has the inbox, and reads from the connection.
    is_read_elsewhere: bool,
    /// The tags of the ends that have come, if someone wants to know them as they come.
    newly_finished: Option<Vec<u64>>,
    /// Whether something was taken in amid submissions.
    received_during_submit: bool,
}

/// The tracing of this process, and the context that submissions belong to.
struct DriverTracing {
    recorder: Option<&'static Recorder>,
    further_failures: Vec<HookError>,
    /// When it began.
    since: Instant,
    carrier: Carrier,
    is_carrier_remote: bool,
    names: SpanNameTable,
    /// How many spans of this driver have ended since the last commit.
    uncommitted: usize,
    /// Asking for it takes a system call each time.
    pid: u32,
}

/// A task that was submitted. It names the task for its driver only, and is given up for the outcome, which there is once.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The number of the submission among those of its driver.
    pub tag: u64,
    /// All zero for a submission that is in no trace.
    trace_id: [u8; 16],
}

/// What the hooks of a session are called, the first one first.
pub fn hook_names(hook: &HookChoice) -> Vec<String> {
    let further = hook.further.iter().map(|further| further.import_string.clone());
    std::iter::once(hook.import_string.clone()).chain(further).collect()
}

/// The hooks that made it.
static HOOKS: std::sync::OnceLock<Vec<String>> = std::sync::OnceLock::new();
/// The tracing of this process, once a driver has started it.
static TRACING: std::sync::Mutex<Option<&'static Recorder>> = std::sync::Mutex::new(None);

impl Ticket {
    /// The driver's own number for the task, which [`Finished::tag`] repeats.
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// The trace that the submission is in; none for none.
    pub fn trace_id(&self) -> Option<[u8; 16]> {
        Some(self.trace_id).filter(|id| *id != [0; 16])
    }
}

impl AsFd for Driver {
    /// Readable when something has arrived from the head, for callers that wait for other things too. Nothing is read from it but by
    /// the driver itself; see [`Driver::try_next_finished`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Drop for Driver {
    /// Sends what was submitted, and commits the spans that have ended. What it waited for goes on without it.
    fn drop(&mut self) {
        // Nobody is left to tell of an error; what was not sent is not accepted, and the spans are in the spool.
        let _ = self.send();
        self.producers.clear();
        if let Some(recorder) = self.tracing.recorder {
            let _ = recorder.commit();
        }
    }
}

/// Something that a task has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskOutput {
    /// Which task.
    pub id: TaskId,
    /// The worker that runs it.
    pub worker_pid: u32,
    /// Where it wrote it to.
    pub stream: Stream,
    /// Whether other calls of the same actor ran in the process meanwhile, any of which may have written it.
    pub is_shared: bool,
    /// What it wrote: of any encoding, and cut at any place.
    pub bytes: Vec<u8>,
}

/// Why a driver cannot go on.
pub enum DriverError {
    /// There is no head, or it cannot be reached.
    Session(SessionError),
    /// The connection broke. The head has died or closed it; what it had accepted is in its hands.
    Disconnected(io::Error),
    /// The head is there and does not answer.
    NoAnswer {
        /// Its process; none if even that is not known.
        head_pid: Option<u32>,
        /// Whether it was stopped by a signal.
        is_stopped: bool,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The head does not take this driver or its tasks; it says why.
    Refused(Refusal),
    /// The head said something that this version does not understand.
    Protocol(WireError),
    /// The task failed.
    Failed {
        /// Which task.
        id: TaskId,
        /// Why.
        failure: Failure,
        /// The attempts before the last one, oldest first.
        past: Vec<AttemptReport>,
    },
    /// An argument or a result cannot be carried over.
    Value(ValueError),
    /// A task with its arguments has more bytes than can be sent.
    TooLarge {
        /// How many it has, encoded.
        bytes: usize,
    },
    /// A large argument could not be written to a file.
    Store {
        /// Where it was to be.
        folder: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A large result cannot be read.
    Stored(StoredError),
    /// What to try again is not a list of kinds; the text says why.
    RetryOn(String),
    /// What is asked for is no resource, or is asked for twice; the text says why.
    Resource(String),
    /// There is no such actor, or it is dead; the text says which.
    Actor(String),
    /// The module's library cannot be used; the text says why.
    Module(String),
    /// The name is not `module:function`.
    Target {
        /// What was given instead.
        given: String,
    },
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DriverError::Session(error) => error.fmt(f),
            DriverError::Disconnected(_) => {
                f.write_str("the connection to the head broke\n(hint: see whether it still runs with `tracer status`)")
            }
            DriverError::NoAnswer { head_pid, is_stopped, waited } => {
                let process = head_pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
                let pid = head_pid.map_or_else(|| "PID".to_owned(), |pid| pid.to_string());
                if *is_stopped {
                    write!(f, "the head{process} was stopped by a signal, so it answers nobody")?;
                    return write!(
                        f,
                        "\n(hint: let it go on with `kill -CONT {pid}`, or end it with `kill -KILL {pid}`)"
                    );
                }
                write!(f, "the head{process} has not answered for {} s", waited.as_secs())?;
                f.write_str("\n(hint: it may be busy, or have no file descriptors left: its log is `logs/head.log` in the folder of its session")?;
                write!(f, "; try again, or end it with `kill {pid}`)")
            }
            DriverError::Refused(refusal) => write!(f, "the head refused: {refusal}"),
            DriverError::Protocol(_) => {
                write!(f, "the head sent a message that this version ({}) cannot decode", tracer_ipc::VERSION)?;
                f.write_str("\n(hint: compare `tracer --version` with `tracer status`)")
            }
            DriverError::Failed { id, failure, past } => {
                write!(f, "task {id} failed: {failure}{}", PastAttempts(past))
            }
            DriverError::Value(error) => error.fmt(f),
            DriverError::TooLarge { bytes } => {
                write!(f, "the task with its arguments has {bytes} bytes, but at most {PAYLOAD_LIMIT} are taken")?;
                f.write_str("\n(hint: pass large data in a file, and its path as the argument)")
            }
            DriverError::Store { folder, .. } => {
                write!(f, "a large argument cannot be written to a file in `{}`", folder.display())?;
                f.write_str(
                    "
(hint: make room there, or start the head with another --temp-dir)",
                )
            }
            DriverError::Stored(error) => error.fmt(f),
            DriverError::RetryOn(problem)
            | DriverError::Resource(problem)
            | DriverError::Actor(problem)
            | DriverError::Module(problem) => f.write_str(problem),
            DriverError::Target { given } => {
                write!(f, "a task is named `module:function`, but got `{given}`")?;
                // As lists and spans print it.
                match meant_target(given) {
                    Some(meant) => write!(f, "\n(hint: did you mean `{meant}`?)"),
                    None => f.write_str("\n(hint: for example `demo:my_function`)"),
                }
            }
        }
    }
}

impl fmt::Debug for DriverError {
    /// The text with its causes and its hint, because `main` prints this form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        causes::debug(self, f)
    }
}

impl std::error::Error for DriverError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            DriverError::Session(error) => error.source(),
            DriverError::Disconnected(error) => Some(error),
            DriverError::Protocol(error) => Some(error),
            DriverError::Store { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<WireError> for DriverError {
    fn from(error: WireError) -> DriverError {
        DriverError::Protocol(error)
    }
}

impl From<ValueError> for DriverError {
    fn from(error: ValueError) -> DriverError {
        DriverError::Value(error)
    }
}

/// A submission that is being put together.
pub struct Remote<'a> {
    driver: &'a mut Driver,
    target: String,
    arguments: Vec<Vec<u8>>,
    options: TaskOptions,
    inputs: Vec<Input>,
    /// Those of them that are in files.
    pending: Vec<Pending>,
}

impl HasOptions for Remote<'_> {
    type Options = TaskOptions;

    fn options(&mut self) -> &mut TaskOptions {
        &mut self.options
    }
}

/// What can be an argument of a task: a value that can be serialized, or `&Ticket`, the result of another task.
pub trait Argument {
    /// Adds it behind those that are there.
    #[doc(hidden)]
    fn add_to(&self, remote: &mut Remote<'_>) -> Result<(), DriverError>;
}

impl<T: Serialize> Argument for T {
    fn add_to(&self, remote: &mut Remote<'_>) -> Result<(), DriverError> {
        match encode_argument(self, &remote.driver.values)? {
            Written::Small(value) => remote.arguments.push(value),
            Written::Large(stored) => {
                remote.pending.push(Pending::new(&remote.driver.values, &stored));
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

/// A task to submit.
#[derive(Clone, Debug)]
pub struct SubmitRequest<'a> {
    /// What to run.
    pub spec: TaskSpec<'a>,
    /// Empty for none.
    pub name: &'a str,
    /// The longest an attempt may run; none for no limit.
    pub run_limit: Option<Duration>,
    /// What is done when an attempt fails.
    pub policy: Policy<'a>,
    /// What it needs while it runs.
    pub demand: Demand<'a>,
    /// Whether [`Driver::follow`] gets what it writes. Such a task has its worker for itself.
    pub wants_output: bool,
    /// Whether the runtime's own work for the task is traced too. A session may be told to do so for every task.
    pub trace_runtime: bool,
    /// Arguments that are the results of other tasks; nil stands in their place.
    pub inputs: &'a [Input],
}

impl<'a> SubmitRequest<'a> {
    /// A request with these options, whose resources are [sorted](sort_resources), without inputs and for nobody who follows its output.
    pub fn new(spec: TaskSpec<'a>, options: &'a TaskOptions) -> SubmitRequest<'a> {
        SubmitRequest {
            spec,
            name: &options.name,
            run_limit: options.timeout,
            policy: Policy::of(options),
            demand: Demand::of(options),
            wants_output: false,
            trace_runtime: options.trace_runtime,
            inputs: &[],
        }
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
        Driver::connect_to_session(&head.session_dir, Role::Driver)
    }

    /// Connects for the tasks that this process, a worker, runs. What they submit is traced with `recorder`.
    pub fn of_tasks(
        session_dir: &Path,
        worker: WorkerId,
        recorder: Option<&'static Recorder>,
    ) -> Result<Driver, DriverError> {
        let mut driver = Driver::connect_to_session(session_dir, Role::Tasks(worker))?;
        driver.tracing.recorder = recorder;
        driver.keep_on_when_refused();
        Ok(driver)
    }

    /// Connects for a service that submits on behalf of others: what the head refuses ends one submission, and not the service.
    pub fn of_service(session_dir: &Path) -> Result<Driver, DriverError> {
        let mut driver = Driver::connect_to_session(session_dir, Role::Driver)?;
        driver.keeps_on_when_refused = true;
        Ok(driver)
    }

    /// Connects to the head of a session, in this role.
    pub fn connect_to_session(session_dir: &Path, role: Role) -> Result<Driver, DriverError> {
        let mut stream = connect_in_time(session_dir)?;
        let mut hello = Vec::new();
        Hello::of_this_process(role).encode(&mut hello);
        stream.write_all(&hello).map_err(DriverError::Disconnected)?;
        let mut read_half = ReadHalf::default();
        let welcome = loop {
            match read_half.inbox.next_frame(FRAME_LIMIT).map_err(|error| DriverError::Disconnected(error.into()))? {
                Some((kind::WELCOME, body)) => break take_value::<Welcome>(body)?,
                Some((kind::REFUSED, body)) => return Err(DriverError::Refused(Refusal::decode(body)?)),
                Some(_) => return Err(DriverError::Protocol(WireError::UnknownValue("answer to hello"))),
                None => {
                    await_answer(&stream)?;
                    read_half.read(&stream)?;
                }
            }
        };
        Ok(Driver {
            stream,
            sender: Sender::default(),
            read_half,
            may_have_rings: false,
            values: stored::folder(&welcome.session_dir),
            versions: Versions::new(ModuleStore::of_session(&welcome.session_dir), welcome.module_folders.clone()),
            welcome,
            tracing: DriverTracing {
                recorder: None,
                further_failures: Vec::new(),
                since: Instant::now(),
                carrier: Carrier::default(),
                is_carrier_remote: false,
                names: SpanNameTable::new(names::REMOTE_SUFFIX),
                uncommitted: 0,
                pid: std::process::id(),
            },
            next_tag: 0,
            open: 0,
            next_query: 0,
            batch: Vec::new(),
            batch_first_tag: 0,
            producers: VecDeque::new(),
            runtime: HashMap::new(),
            finished: ByTag::default(),
            accepted: Vec::new(),
            replies: FxHashMap::default(),
            outputs: VecDeque::new(),
            usages: HashMap::new(),
            unanswered: VecDeque::new(),
            forgotten: FxHashSet::default(),
            keeps_on_when_refused: false,
            runs: Vec::new(),
            submitter: None,
            is_read_elsewhere: false,
            newly_finished: None,
            received_during_submit: false,
        })
    }

    /// What the head says of itself and of this driver.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
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

    /// As [`start_tracing`](Self::start_tracing), for a process that may be short-lived: during `quiet`, what is for a network goes to the
    /// head, which has workers deliver it, so that this process can exit without waiting for an answer.
    pub fn start_tracing_quietly(&mut self, quiet: Duration) -> Option<HookError> {
        let hook = self.welcome.tracing.hook.clone()?;
        if Reader::of_this_process().is_sdk_disabled() {
            return None;
        }
        let mut of_process = TRACING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(recorder) = *of_process {
            self.tracing.recorder = Some(recorder);
            return None;
        }
        tracer_host::hook::log_in(&self.welcome.session_dir);
        let path = session::driver_spool(&self.welcome.session_dir, std::process::id(), now_unix_nano());
        // Without a spool the spans are recorded all the same; they only do not survive this process.
        let spool: Option<&'static Spool> =
            Spool::create(&path, SLOT_COUNT).ok().map(|spool| &*Box::leak(Box::new(spool)));
        let own = OwnSettings::of_session(&self.welcome.tracing);
        let run = run_hook(&hook, own, spool, quiet);
        *of_process = run.recorder;
        let _ = HOOKS.set(hook_names(&hook));
        self.tracing.recorder = run.recorder;
        self.tracing.further_failures = run.further_failures;
        run.failure
    }

    /// The hooks that made the tracing of this process, if a driver has started it.
    pub fn hooks_of_this_process() -> Option<Vec<String>> {
        Some(HOOKS.get()?.clone())
    }

    /// Why further hooks of the session failed in [`start_tracing`](Self::start_tracing). They get this process's spans through another one.
    pub fn further_failures(&self) -> &[HookError] {
        &self.tracing.further_failures
    }

    /// How long this driver has been there.
    pub fn age(&self) -> Duration {
        self.tracing.since.elapsed()
    }

    /// This process's tracing.
    pub fn recorder(&self) -> Option<&'static Recorder> {
        self.tracing.recorder
    }

    /// Sets what submissions are children of: a context of this process, or, if `is_remote`, of another.
    pub fn set_parent(&mut self, carrier: Carrier, is_remote: bool) {
        self.tracing.carrier = carrier;
        self.tracing.is_carrier_remote = is_remote;
    }

    /// Sets on whose behalf it submits from now on: a task, its job, and the module that the task is in, with its version if that is known.
    pub fn set_submitter(&mut self, task: TaskId, job: JobId, module: Option<(&'static str, ModuleVersion)>) {
        self.submitter = Some(task);
        self.welcome.job_id = job;
        self.versions.set_job(job);
        self.versions.own = module;
    }

    /// From now on every module has the version that it has when a task of it is first submitted, whatever is built meanwhile. Otherwise a
    /// library that has changed is used when none of this driver's tasks is open.
    pub fn keep_module_versions(&mut self) {
        self.versions.is_pinned = true;
    }

    /// Starts a span around what this driver submits from now on: its job. The caller ends it.
    pub fn start_job(&mut self) -> Option<ActiveSpan> {
        let recorder = self.tracing.recorder?;
        let attributes = [
            (names::JOB_ID, self.welcome.job_id.0.into()),
            (names::PID, std::process::id().into()),
            (names::NODE_ID, Attribute::Str(&self.welcome.node_id)),
        ];
        let span = recorder.start(&SpanRequest {
            name: names::JOB_SPAN,
            kind: abi::SPAN_KIND_INTERNAL,
            parent: self.tracing.carrier.trace_context.as_ref(),
            is_parent_remote: self.tracing.is_carrier_remote,
            baggage: &self.tracing.carrier.baggage,
            start_time_unix_nano: 0,
            attributes: &attributes,
            prefix: AttributePrefix::NONE,
            link: None,
            is_attempt: false,
        });
        self.tracing.carrier.trace_context = Some(span.context().clone());
        self.tracing.is_carrier_remote = false;
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

    /// As [`submit`](Self::submit), as the child of something else than all the others.
    pub fn submit_under(
        &mut self,
        parent: Carrier,
        is_remote: bool,
        request: &SubmitRequest<'_>,
    ) -> Result<Ticket, DriverError> {
        let carrier = std::mem::replace(&mut self.tracing.carrier, parent);
        let is_remote = std::mem::replace(&mut self.tracing.is_carrier_remote, is_remote);
        let submitted = self.submit(request);
        (self.tracing.carrier, self.tracing.is_carrier_remote) = (carrier, is_remote);
        submitted
    }

    /// Submits a task. It is sent with the next batch.
    pub fn submit(&mut self, request: &SubmitRequest<'_>) -> Result<Ticket, DriverError> {
        let module_version = self.versions.of(&request.spec, self.open > 0)?;
        let mut inputs = request.inputs.to_vec();
        let in_files = inputs.iter().map(|input| match &input.source {
            InputSource::Stored(stored) => usize::try_from(stored.bytes).unwrap_or(usize::MAX),
            InputSource::Task(_) => 0,
        });
        let in_files = in_files.fold(0, usize::saturating_add);
        let stored = match &request.spec {
            TaskSpec::Function(function) if function.arguments.len().saturating_add(in_files) > PAYLOAD_LIMIT => {
                Err(DriverError::TooLarge { bytes: function.arguments.len().saturating_add(in_files) })
            }
            TaskSpec::Function(function) if function.arguments.len() >= STORED_FROM => {
                self.store_large(function.arguments, &mut inputs).map(Some)
            }
            TaskSpec::Function(_) | TaskSpec::Command(_) => Ok(None),
        };
        let wants_runtime =
            (request.trace_runtime || self.welcome.tracing.trace_runtime) && self.welcome.tracing.hook.is_some();
        // The PRODUCER span begins when the first of the runtime's spans in it does.
        let start_unix_nano = if wants_runtime { now_unix_nano() } else { 0 };
        let producer = self.tracing.start_producer(&request.spec, request.name, &self.welcome, start_unix_nano);
        if let Some(producer) = producer.as_ref().filter(|_| self.welcome.tracing.record_arguments) {
            recorded_arguments::record(producer, &request.spec, in_files, Vec::new);
        }
        let small = match stored {
            Ok(small) => small,
            Err(error) => {
                if let Some(producer) = producer {
                    producer.set_error(&error.to_string());
                }
                return Err(error);
            }
        };
        let mut spec = request.spec.clone();
        if let (TaskSpec::Function(function), Some(small)) = (&mut spec, &small) {
            function.arguments = small;
        }
        let context: Option<&TraceContext> =
            producer.as_ref().map(ActiveSpan::context).or(self.tracing.carrier.trace_context.as_ref());
        // Where nothing is sampled, nobody needs to be asked for times.
        let traces_runtime = wants_runtime && context.is_none_or(|context| context.parent.flags & SAMPLED != 0);
        if let (true, Some(context), Some(recorder)) = (traces_runtime, context, self.tracing.recorder) {
            let parent =
                RuntimeParent { recorder, context: context.clone(), is_remote: false, task: TaskId(0), attempt: 0 };
            self.runtime.insert(self.next_tag, (parent, start_unix_nano));
        }
        let envelope = Envelope {
            spec,
            name: request.name,
            run_limit: request.run_limit,
            policy: request.policy,
            demand: request.demand.clone(),
            module_version,
            wants_output: request.wants_output,
            traces_runtime,
            trace: context.map(|context| TraceLink {
                trace_id: context.parent.trace_id,
                span_id: context.parent.span_id,
                trace_flags: context.parent.flags,
                trace_state: &context.trace_state,
            }),
            baggage: &self.tracing.carrier.baggage,
            submitter: self.submitter,
            inputs,
        };
        let trace_id = context.map_or([0; 16], |context| context.parent.trace_id);
        let start = self.batch.len();
        self.batch.put_u32(0);
        envelope.encode(&mut self.batch);
        let bytes = self.batch.len() - start - 4;
        if bytes > PAYLOAD_LIMIT {
            self.batch.truncate(start);
            self.runtime.remove(&self.next_tag);
            let error = DriverError::TooLarge { bytes };
            if let Some(producer) = producer {
                producer.set_error(&error.to_string());
            }
            return Err(error);
        }
        let length = u32::try_from(bytes).expect("the limit is less than 4 GiB");
        self.batch[start..start + 4].copy_from_slice(&length.to_le_bytes());
        if let Some(producer) = producer {
            let is_creation = matches!(request.spec.actor(), ActorRole::Create(_));
            self.producers.push_back((producer, is_creation));
        }
        let task = Ticket { tag: self.next_tag, trace_id };
        self.next_tag += 1;
        self.open += 1;
        let is_full = self.next_tag - self.batch_first_tag >= BATCH as u64 || self.batch.len() >= BATCH_BYTES;
        if is_full {
            self.send()?;
            self.apply_backpressure()?;
        }
        Ok(task)
    }

    /// Writes large arguments to files. Returns the arguments with nil in their places.
    fn store_large(&self, arguments: &[u8], inputs: &mut Vec<Input>) -> Result<Vec<u8>, DriverError> {
        let Some(elements) = value::elements(arguments) else { return Ok(arguments.to_vec()) };
        let mut small = Vec::with_capacity(elements.len());
        for (argument, element) in (0..).zip(elements) {
            if element.len() < STORED_FROM {
                small.push(element.to_vec());
                continue;
            }
            let stored = stored::store(&self.values, element);
            let stored = stored.map_err(|source| DriverError::Store { folder: self.values.clone(), source })?;
            inputs.push(Input { argument, source: InputSource::Stored(stored) });
            small.push(vec![0xc0]);
        }
        Ok(value::array(&small))
    }

    /// Reads a large result, which a task that has ended left in a file.
    pub fn load(&self, stored: &Stored) -> Result<Value, DriverError> {
        stored::load(&self.values, stored).map_err(DriverError::Stored)
    }

    /// Tells the head that nobody here asks for a task's result any more. It keeps it only as long as others need it.
    pub fn forget_result(&mut self, task: TaskId) -> Result<(), DriverError> {
        let mut frame = Vec::new();
        put_frame(&mut frame, kind::FORGET, |out| out.put_u64(task.0));
        self.write(&frame)
    }

    fn write(&mut self, frame: &[u8]) -> Result<(), DriverError> {
        self.sender.write_all(&self.stream, frame).map_err(DriverError::Disconnected)
    }

    /// Sends what was submitted and not sent.
    pub fn send(&mut self) -> Result<(), DriverError> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let mut frame = Vec::with_capacity(self.batch.len() + 16);
        Submissions::encode(&mut frame, self.batch_first_tag, &self.batch);
        self.batch.clear();
        let count = self.next_tag - self.batch_first_tag;
        self.unanswered.push_back((self.batch_first_tag, count));
        self.batch_first_tag = self.next_tag;
        self.read_half.spin.request_began();
        fault::point("before_submit");
        if self.may_have_rings && !self.is_read_elsewhere && self.read_half.receiver.begins_to_ask(&self.read_half.spin)
        {
            self.sender.ask_for_rings(&self.stream).map_err(DriverError::Disconnected)?;
        }
        self.write(&frame)?;
        if count == 1 {
            self.tracing.commit_from(COMMIT_THRESHOLD_SINGLE);
        }
        Ok(())
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
                self.forget_result(finished.task)?;
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
        self.send()?;
        loop {
            if !self.outputs.is_empty()
                && let Some(id) = self.id_of_tag(task.tag)
            {
                let (own, others) = std::mem::take(&mut self.outputs).into_iter().partition(|output| output.id == id);
                self.outputs = others;
                let own: VecDeque<TaskOutput> = own;
                own.into_iter().for_each(&mut take);
            }
            if let Some(finished) = self.finished.remove(task.tag) {
                return Ok(finished);
            }
            self.receive()?;
        }
    }

    /// Waits until some task has ended that nobody has waited for yet. Of several, the one that was submitted first is told first.
    ///
    /// It is for drivers that take results as they come. With no task left to wait for, it waits for ever.
    pub fn next_finished(&mut self) -> Result<Finished, DriverError> {
        self.send()?;
        loop {
            if let Some(finished) = self.finished.pop_first() {
                return Ok(finished);
            }
            self.receive()?;
        }
    }

    /// As [`next_finished`](Self::next_finished), of what has arrived, without waiting.
    pub fn try_next_finished(&mut self) -> Result<Option<Finished>, DriverError> {
        self.send()?;
        if self.finished.is_empty() {
            self.receive_what_is_there()?;
        }
        Ok(self.finished.pop_first())
    }

    /// Waits until a task is accepted, and returns its id.
    pub fn accepted(&mut self, task: &Ticket) -> Result<TaskId, DriverError> {
        self.accepted_tag(task.tag)
    }

    /// As [`accepted`](Self::accepted), for the task of that number.
    pub fn accepted_tag(&mut self, tag: u64) -> Result<TaskId, DriverError> {
        self.send()?;
        loop {
            if let Some(id) = self.id_of_tag(tag) {
                return Ok(id);
            }
            self.receive()?;
        }
    }

    /// The id that the submission with this tag got; none while it is not accepted, or when it was refused.
    pub fn id_of_tag(&self, tag: u64) -> Option<TaskId> {
        let after = self.accepted.partition_point(|range| range.first_tag <= tag);
        let range = &self.accepted[after.checked_sub(1)?];
        let offset = tag - range.first_tag;
        (offset < range.count.into()).then(|| TaskId(range.first_task.0 + offset))
    }

    /// Whether everything that was submitted is accepted or refused.
    pub fn is_settled(&self) -> bool {
        self.batch.is_empty() && self.unanswered.is_empty()
    }

    /// How many ends are there that nobody has asked for.
    pub fn finished_count(&self) -> usize {
        self.finished.len()
    }

    /// Whether the task with this tag has ended, and its outcome was not taken.
    pub fn has_finished(&self, tag: u64) -> bool {
        self.finished.contains(tag)
    }

    /// The end of the task with this tag, once.
    pub fn take_finished(&mut self, tag: u64) -> Option<Finished> {
        self.finished.remove(tag)
    }

    /// Leases that have come, to be run while tasks wait.
    pub fn take_runs(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.runs)
    }

    /// An end that has arrived, if there is one; of several, that of the task that was submitted first.
    pub fn pop_finished(&mut self) -> Option<Finished> {
        self.finished.pop_first()
    }

    /// What tasks have written since this was asked last.
    pub fn take_outputs(&mut self) -> VecDeque<TaskOutput> {
        std::mem::take(&mut self.outputs)
    }

    /// Asks to hear of the end of a task that another driver may have submitted. It comes under a number of its own.
    pub fn watch(&mut self, task: TaskId) -> Result<(), DriverError> {
        let mut frame = Vec::new();
        put_frame(&mut frame, kind::WATCH, |out| {
            out.put_u64(WATCHED | task.0);
            out.put_u64(task.0);
        });
        self.write(&frame)
    }

    /// The end of a task that is [watched](Self::watch), once.
    pub fn take_watched(&mut self, task: TaskId) -> Option<Finished> {
        self.take_finished(WATCHED | task.0)
    }

    /// Nobody will ask for the ids of submissions before this one; none for all that there are.
    pub fn forget_ids_before(&mut self, tag: Option<u64>) {
        let tag = tag.unwrap_or(self.next_tag);
        self.accepted.retain(|range| range.first_tag + u64::from(range.count) > tag);
    }

    /// Tells the head that a task waits.
    pub fn wait_begins(&mut self, wait: &Wait) -> Result<(), DriverError> {
        let mut frame = Vec::new();
        wait.encode(&mut frame);
        self.write(&frame)
    }

    /// Tells the head that a task waits no longer, although not all has come that it waited for.
    pub fn wait_ends(&mut self, number: u64) -> Result<(), DriverError> {
        let mut frame = Vec::new();
        put_frame(&mut frame, kind::GO_ON, |out| out.put_u64(number));
        self.write(&frame)
    }

    /// Nobody will ask for the end of this task.
    pub fn forget(&mut self, tag: u64) {
        match self.finished.remove(tag) {
            Some(finished) => self.drop_result(&finished),
            None => drop(self.forgotten.insert(tag)),
        }
    }

    /// Asks the head something.
    pub fn query(&mut self, query: &Query) -> Result<Reply, DriverError> {
        let number = self.ask(query)?;
        loop {
            if let Some(reply) = self.take_reply(number) {
                return Ok(reply);
            }
            // A stop is answered when it is done.
            if !matches!(query, Query::Stop { .. }) {
                await_answer(&self.stream)?;
            }
            self.receive()?;
        }
    }

    /// Asks the head something, and returns the number of the question.
    pub fn ask(&mut self, query: &Query) -> Result<u64, DriverError> {
        self.send()?;
        let number = self.next_query;
        self.next_query += 1;
        let mut frame = Vec::new();
        put_query(&mut frame, number, query);
        self.write(&frame)?;
        Ok(number)
    }

    /// The answer to the question of this number, once it has come.
    pub fn take_reply(&mut self, number: u64) -> Option<Reply> {
        self.replies.remove(&number)
    }

    /// From now on it asks for rings if they would pay.
    pub fn allow_rings(&mut self) {
        self.may_have_rings = true;
    }

    /// From now on what the head refuses is an outcome of its tasks, and not the end of this driver.
    pub fn keep_on_when_refused(&mut self) {
        self.keeps_on_when_refused = true;
    }

    /// Makes the spans of how a submission was accepted, if it traces the runtime.
    fn trace_acceptance(&mut self, accepted: &Accepted, offset: u64, journaled: Period) {
        let Some((parent, submitted)) = self.runtime.get_mut(&(accepted.first_tag + offset)) else { return };
        parent.task = TaskId(accepted.first_task.0 + offset);
        let accept = Period { start_unix_nano: *submitted, end_unix_nano: journaled.start_unix_nano };
        parent.record(names::ACCEPT_SPAN, accept);
        parent.record(names::JOURNAL_SPAN, journaled);
    }

    /// A second handle to the connection's socket, so that another thread may shut it down.
    pub fn stream(&self) -> io::Result<UnixStream> {
        self.stream.try_clone()
    }

    /// Takes in what has arrived, without waiting.
    pub fn receive_what_is_there(&mut self) -> Result<(), DriverError> {
        if self.is_read_elsewhere {
            return Ok(());
        }
        if is_readable(&self.stream, Duration::ZERO) {
            self.received_during_submit = true;
            self.receive()?;
        }
        Ok(())
    }

    /// Blocks while more than [`UNANSWERED`] submissions are unacknowledged, and handles what has arrived. So spans of accepted
    /// submissions end, and their slots in the spool are free again, however many a driver submits in a row.
    fn apply_backpressure(&mut self) -> Result<(), DriverError> {
        self.receive_what_is_there()?;
        let is_behind = |driver: &Driver| {
            driver.unanswered.front().is_some_and(|(first_tag, _)| driver.next_tag - first_tag > UNANSWERED)
        };
        while is_behind(self) && !self.is_read_elsewhere {
            self.received_during_submit = true;
            self.receive()?;
        }
        Ok(())
    }

    /// Whether submitting has taken something in since this was asked.
    pub fn received_during_submit(&mut self) -> bool {
        std::mem::take(&mut self.received_during_submit)
    }

    /// Reads once from the head and takes in what has arrived.
    fn receive(&mut self) -> Result<(), DriverError> {
        self.read_half.read(&self.stream)?;
        self.take_in()
    }

    /// Gives away what it reads with, so that someone can wait for the head without this driver. Until it is given back nothing is
    /// read here.
    pub fn take_read_half(&mut self) -> ReadHalf {
        self.is_read_elsewhere = true;
        std::mem::take(&mut self.read_half)
    }

    /// Takes it back, with what has come meanwhile.
    pub fn restore_read_half(&mut self, read_half: ReadHalf) -> Result<(), DriverError> {
        self.is_read_elsewhere = false;
        self.read_half = read_half;
        self.take_in()
    }

    /// From now on, or no more: notes which tasks have ended.
    pub fn track_completions(&mut self, is_wanted: bool) {
        if is_wanted != self.newly_finished.is_some() {
            self.newly_finished = is_wanted.then(Vec::new);
        }
    }

    /// Which tasks have ended since this was asked.
    pub fn take_newly_finished(&mut self) -> Vec<u64> {
        self.newly_finished.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn add_finished(&mut self, finished: Finished) {
        if let Some(tags) = &mut self.newly_finished {
            tags.push(finished.tag);
        }
        self.finished.insert(finished.tag, finished);
    }

    /// Takes in the frames that have come.
    fn take_in(&mut self) -> Result<(), DriverError> {
        loop {
            let frame = self
                .read_half
                .inbox
                .next_frame(FRAME_LIMIT)
                .map_err(|error| DriverError::Disconnected(error.into()))?;
            let Some((frame_kind, body)) = frame else { return Ok(()) };
            match frame_kind {
                kind::ACCEPTED => {
                    let accepted = Accepted::decode(body)?;
                    // A batch with idempotency keys is answered in parts.
                    if let Some((first_tag, count)) = self.unanswered.front_mut() {
                        let answered = u64::from(accepted.count).min(*count);
                        (*first_tag, *count) = (*first_tag + answered, *count - answered);
                        if *count == 0 {
                            self.unanswered.pop_front();
                        }
                    }
                    // All of them are known to be accepted from now on.
                    let now = if self.producers.is_empty() { 0 } else { now_unix_nano() };
                    for offset in 0..u64::from(accepted.count) {
                        if let Some(journaled) = accepted.journaled {
                            self.trace_acceptance(&accepted, offset, journaled);
                        }
                        if let Some(producer) = self.producers.pop_front() {
                            finish_producer(producer, TaskId(accepted.first_task.0 + offset), now);
                            self.tracing.uncommitted += 1;
                        }
                    }
                    self.tracing.commit_from(if self.unanswered.is_empty() {
                        COMMIT_THRESHOLD_IDLE
                    } else {
                        COMMIT_THRESHOLD_BUSY
                    });
                    match self.accepted.last_mut() {
                        Some(last) if last.is_followed_by(&accepted) => last.count += accepted.count,
                        _ => self.accepted.push(accepted),
                    }
                }
                kind::FINISHED => {
                    let mut take = Take::new(body);
                    let mut dropped = Vec::new();
                    while !take.is_empty() {
                        let mut finished = Finished::take(&mut take)?;
                        if !self.usages.is_empty() {
                            finished.usage = self.usages.remove(&finished.task);
                        }
                        if finished.tag & WATCHED == 0 {
                            self.open = self.open.saturating_sub(1);
                        }
                        if let Some(ended) = finished.ended_unix_nano
                            && let Some((parent, _)) = self.runtime.remove(&finished.tag)
                        {
                            let delivery = Period { start_unix_nano: ended, end_unix_nano: now_unix_nano() };
                            parent.record(names::DELIVER_SPAN, delivery);
                        }
                        if !self.forgotten.is_empty() && self.forgotten.remove(&finished.tag) {
                            dropped.push(finished);
                        } else {
                            if let Some(tags) = &mut self.newly_finished {
                                tags.push(finished.tag);
                            }
                            self.finished.insert(finished.tag, finished);
                        }
                    }
                    dropped.iter().for_each(|finished| self.drop_result(finished));
                    self.read_half.spin.request_ended();
                }
                kind::OUTPUT => {
                    let output = Output::decode(body)?;
                    self.outputs.push_back(TaskOutput {
                        id: output.task,
                        worker_pid: output.worker_pid,
                        stream: output.stream,
                        is_shared: output.is_shared,
                        bytes: output.bytes.to_vec(),
                    });
                }
                kind::USAGE => {
                    let (task, usage) = CommandUsage::decode(body)?;
                    self.usages.insert(task, usage);
                }
                kind::REPLY => {
                    let (number, reply) = take_value(body)?;
                    self.replies.insert(number, reply);
                }
                kind::RUN => self.runs.push(body.to_vec()),
                // Whoever waits looks, because something has come.
                kind::LOOK => {}
                kind::RINGS => {
                    let ReadHalf { inbox, receiver, .. } = &mut self.read_half;
                    self.sender.attach(receiver.attach(inbox));
                }
                kind::REFUSED if self.keeps_on_when_refused => {
                    let refusal = Refusal::decode(body)?;
                    self.refused(&refusal);
                }
                kind::REFUSED => return Err(DriverError::Refused(Refusal::decode(body)?)),
                _ => return Err(DriverError::Protocol(WireError::UnknownValue("frame kind"))),
            }
        }
    }
}

impl Driver {
    /// Nobody asks for this result; its file, if it has one, need not be kept.
    fn drop_result(&mut self, finished: &Finished) {
        if let Outcome::Stored(_) = finished.outcome {
            // A broken connection is found by whoever reads.
            let _ = self.forget_result(finished.task);
        }
    }

    /// The head has not taken the oldest batch in that it had not answered.
    fn refused(&mut self, refusal: &Refusal) {
        let Some((first_tag, count)) = self.unanswered.pop_front() else { return };
        self.open = self.open.saturating_sub(count);
        for tag in first_tag..first_tag + count {
            let failure = Failure::from(refusal.clone());
            if let Some((producer, _)) = self.producers.pop_front() {
                producer.set_attributes(&[(names::ERROR_TYPE, Attribute::Str(&failure.error_type()))]);
                producer.set_error(&failure.to_string());
            }
            if !self.forgotten.remove(&tag) {
                let outcome = Outcome::Failed(failure);
                self.add_finished(Finished {
                    tag,
                    task: TaskId(0),
                    attempt: 0,
                    outcome,
                    ended_unix_nano: None,
                    past: Vec::new(),
                    usage: None,
                });
            }
        }
    }
}

/// What a driver reads with.
pub struct ReadHalf {
    inbox: FrameBuffer,
    spin: Spin,
    receiver: Receiver,
}

impl Default for ReadHalf {
    fn default() -> ReadHalf {
        ReadHalf { inbox: FrameBuffer::default(), spin: Spin::default().for_answers(), receiver: Receiver::default() }
    }
}

impl ReadHalf {
    /// Reads once.
    pub fn read(&mut self, stream: &UnixStream) -> Result<(), DriverError> {
        let ReadHalf { inbox, spin, receiver } = self;
        loop {
            match receiver.wait(stream, inbox, spin) {
                Ok(0) => return Err(DriverError::Disconnected(io::ErrorKind::UnexpectedEof.into())),
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(DriverError::Disconnected(error)),
            }
        }
    }
}

/// How long a head may take to answer. Longer than any of its turns, on a machine that is busy.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// How often it is looked whether the head was stopped, which nobody waits out.
const ANSWER_LOOKS: Duration = Duration::from_secs(1);

/// Connects to a session's head. The kernel makes callers wait when many have come whom the head has not accepted.
fn connect_in_time(session_dir: &Path) -> Result<UnixStream, DriverError> {
    let since = Instant::now();
    loop {
        match session::connect_at_once(session_dir) {
            Err(SessionError::Io { source, .. }) if source.kind() == io::ErrorKind::WouldBlock => {
                let waited = since.elapsed();
                if waited >= answer_limit() {
                    return Err(DriverError::NoAnswer { head_pid: None, is_stopped: false, waited });
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            other => return other.map_err(DriverError::Session),
        }
    }
}

/// Waits until the head has sent something, as long as it may take.
fn await_answer(stream: &UnixStream) -> Result<(), DriverError> {
    let since = Instant::now();
    let mut looks_stopped = 0;
    loop {
        let waited = since.elapsed();
        let left = answer_limit().saturating_sub(waited).min(ANSWER_LOOKS);
        if is_readable(stream, left) {
            return Ok(());
        }
        let head_pid = rustix::net::sockopt::socket_peercred(stream).ok();
        let head_pid = head_pid.map(|peer| peer.pid.as_raw_nonzero().get().unsigned_abs());
        looks_stopped = if head_pid.is_some_and(identity::is_stopped) { looks_stopped + 1 } else { 0 };
        let waited = since.elapsed();
        // Twice, because a debugger stops a process for moments only.
        if looks_stopped >= 2 || waited >= answer_limit() {
            return Err(DriverError::NoAnswer { head_pid, is_stopped: looks_stopped >= 2, waited });
        }
    }
}

fn answer_limit() -> Duration {
    fault::setting("answer_ms").map_or(ANSWER_LIMIT, Duration::from_millis)
}

impl DriverTracing {
    /// Commits when so many spans have ended, so that a few slots of the spool serve all of them, and stay in the processor's cache.
    fn commit_from(&mut self, count: usize) {
        if self.uncommitted >= count
            && let Some(recorder) = self.recorder
        {
            self.uncommitted = 0;
            // What could not be written stays in the spool, and the hook counts what it had to drop.
            let _ = recorder.commit();
        }
    }

    fn start_producer(
        &mut self,
        spec: &TaskSpec<'_>,
        task_name: &str,
        welcome: &Welcome,
        start_time_unix_nano: u64,
    ) -> Option<ActiveSpan> {
        let recorder = self.recorder?;
        let span_names = self.names.of(spec);
        let of_function = |put: PutAttribute<'_>| {
            put(names::REMOTE, Attribute::Str(remote(spec)));
            put(names::FUNCTION, Attribute::Str(&span_names.target));
            put_actor(spec, put);
            put(names::PID, self.pid.into());
            put(names::JOB_ID, welcome.job_id.0.into());
            put(names::NODE_ID, Attribute::Str(&welcome.node_id));
        };
        let mut attributes = [(names::TASK_NAME, Attribute::Str(task_name)); 2];
        let mut count = usize::from(!task_name.is_empty());
        if let ActorRole::Call(actor) = spec.actor() {
            attributes[count] = (names::ACTOR_ID, actor.0.into());
            count += 1;
        }
        Some(recorder.start(&SpanRequest {
            name: &span_names.span,
            kind: abi::SPAN_KIND_PRODUCER,
            parent: self.carrier.trace_context.as_ref(),
            is_parent_remote: self.is_carrier_remote,
            baggage: &self.carrier.baggage,
            start_time_unix_nano,
            prefix: AttributePrefix { id: span_names.prefix_id(welcome.job_id, false), attributes: &of_function },
            attributes: &attributes[..count],
            link: None,
            is_attempt: false,
        }))
    }
}

/// The submission is accepted: its span gets the task's id, and ends.
fn finish_producer((producer, is_creation): (ActiveSpan, bool), id: TaskId, now_unix_nano: u64) {
    let attributes = [(names::TASK_ID, id.0.into()), (names::ACTOR_ID, id.0.into())];
    producer.end_with(&attributes[..if is_creation { 2 } else { 1 }], now_unix_nano);
}
