//! The messages, and which frame kind each has.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tracer_core::task::{AttemptReport, Envelope, JobId, Outcome, Refusal, SpanLink, TaskId, WorkerId};
use tracer_core::value::{self, JsonText};
use tracer_core::{HookContract, PlaceId, SamplingRatio};

use super::cancel::{CancelReport, CancelWhich};
use super::frame::put_frame;
use super::spoken_version;
use super::wire::{Put, Take, WireError};
use crate::protocol::explanation::Explanation;
use crate::protocol::metrics::Metrics;
use crate::protocol::service::{ServiceQuery, ServiceReply};
use crate::protocol::tracing_settings::{FurtherHook, TracingSettings};
use crate::task_output::Nonce;

/// Frame kinds. From clients they are below 32, from the head above.
pub mod kind {
    /// Client: who it is ([`Hello`](super::Hello)); the first frame of a connection, and only that.
    pub const HELLO: u8 = 1;
    /// Driver: a batch of tasks ([`Submissions`](super::Submissions)).
    pub const SUBMIT: u8 = 2;
    /// Driver: a numbered question ([`Query`](super::Query)).
    pub const QUERY: u8 = 3;
    /// Worker: its hook has run and it takes leases ([`WorkerReady`](super::WorkerReady)).
    pub const WORKER_READY: u8 = 4;
    /// Worker: attempts that have ended ([`AttemptResult`](super::AttemptResult)), one or more.
    pub const RESULTS: u8 = 5;
    /// Worker, on its sink's connection: what became of spans that it was offered ([`SpansDone`](super::SpansDone)).
    pub const SPANS_DONE: u8 = 6;
    /// Driver of a worker's tasks: one of them waits for others ([`Wait`](super::Wait)).
    pub const WAIT: u8 = 7;
    /// Driver of a worker's tasks: it waits no longer, although not all has come that it waited for. The number of the wait.
    pub const GO_ON: u8 = 8;
    /// Driver: nobody can ask for the results of these tasks any more, whose ids follow one another.
    pub const FORGET: u8 = 9;
    /// Driver: it wants to hear how a task ends that it may not have submitted. The driver's own number for it and the task's
    /// id; it hears of it as of its own tasks, at once if the task has ended, and never if it is not known.
    pub const WATCH: u8 = 10;
    /// Driver or worker: it wants rings beside the socket. What it sends from here on has a position in the stream. Head: here they
    /// are, in a file that comes with this; the same holds for what it sends. A head that has none to give does not answer. No body.
    pub const RINGS: u8 = 11;
    /// Worker: which methods of the actor that it has made run beside each other ([`ActorMethods`](super::ActorMethods)). It comes before the
    /// result of the creation.
    pub const ACTOR_METHODS: u8 = 12;
    /// Agent: something about tasks that are shared with other nodes ([`FromAgent`](super::super::FromAgent)).
    pub const SHARED: u8 = 13;

    /// Head: the hello is accepted ([`Welcome`](super::Welcome)).
    pub const WELCOME: u8 = 32;
    /// Head: the hello or the submissions are not accepted, and why ([`Refusal`](tracer_core::task::Refusal)). After a hello the connection is closed.
    pub const REFUSED: u8 = 33;
    /// Head, to a driver: a batch was taken in ([`Accepted`](super::Accepted)).
    pub const ACCEPTED: u8 = 34;
    /// Head, to a driver: a piece of what a running task wrote ([`Output`](super::Output)).
    pub const OUTPUT: u8 = 35;
    /// Head, to a driver: tasks that have ended ([`Finished`](super::Finished)), one or more.
    pub const FINISHED: u8 = 36;
    /// Head, to a driver: the numbered answer to a question ([`Reply`](super::Reply)).
    pub const REPLY: u8 = 37;
    /// Head, to a worker: tasks to run ([`Lease`](super::Lease)), one or more, in the order in which to run them.
    pub const LEASES: u8 = 38;
    /// Head, to a worker: end when the leases that came before this are done. To its sink: nothing more is offered. No body.
    pub const SHUTDOWN: u8 = 39;
    /// Head, to a worker's sink: finished spans that another process did not deliver ([`SpansOffer`](super::SpansOffer)).
    pub const SPANS: u8 = 40;
    /// Head, to the driver of a worker's tasks: a task to run while those that wait do ([`Lease`](super::Lease)).
    pub const RUN: u8 = 41;
    /// Head, to the driver of a worker's tasks: the spool says of an attempt that it is to end, and it may be waiting. No body.
    pub const LOOK: u8 = 42;
    /// Head, to a driver: what an attempt of a command has used ([`CommandUsage`](super::CommandUsage)), behind the task's id. It comes before the
    /// task's end, to whoever wants its output.
    pub const USAGE: u8 = 43;
    /// Head, to a worker: whether it marks its output ([`Marking`](crate::task_output::Marking)), one or more.
    pub const MARKING: u8 = 44;
    /// Head, to its agent: something about tasks that are shared with other nodes ([`ToAgent`](super::super::ToAgent)).
    pub const SHARING: u8 = 45;
    /// Head, to a driver: one task of a batch is not accepted ([`Refusal`](tracer_core::task::Refusal)), behind the driver's own number for it. Answers to
    /// the others go on.
    pub const TASK_REFUSED: u8 = 46;
}

/// Appends a frame of kind [`kind::REFUSED`].
pub fn put_refusal(out: &mut Vec<u8>, refusal: &Refusal) {
    put_frame(out, kind::REFUSED, |out| refusal.put(out));
}

/// Appends a frame of kind [`kind::TASK_REFUSED`].
pub fn put_task_refusal(out: &mut Vec<u8>, tag: u64, refusal: &Refusal) {
    put_frame(out, kind::TASK_REFUSED, |out| {
        out.put_u64(tag);
        refusal.put(out);
    });
}

/// Takes the body of a frame of kind [`kind::TASK_REFUSED`] apart: the driver's own number for the task, and why it is not accepted.
pub fn take_task_refusal(body: &[u8]) -> Result<(u64, Refusal), WireError> {
    let (tag, refusal) = body.split_first_chunk().ok_or(WireError::Truncated)?;
    Ok((u64::from_le_bytes(*tag), Refusal::decode(refusal)?))
}

const HELLO_MARK: [u8; 4] = *b"TRCR";

/// The first frame of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello<'a> {
    /// The [`PROTOCOL_VERSION`](super::PROTOCOL_VERSION) that the client speaks.
    pub protocol_version: u32,
    /// Role that the client asks for. 0 on the wire is a driver, because workers count from 1; of a worker's further connections, each has a bit of
    /// its own.
    pub role: Role,
    /// The client's own process id. The head checks a worker's against the process that it started.
    pub pid: u32,
    /// The client's own version, for messages to people.
    pub version: &'a str,
}

/// Role of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Submits tasks and asks questions.
    Driver,
    /// Runs attempts: the process that the head started under this id.
    Worker(WorkerId),
    /// Submits for the tasks that this worker runs, on a second connection of its process.
    Tasks(WorkerId),
    /// Takes spans over, for the worker with this id.
    Sink(WorkerId),
    /// Shares tasks with other nodes: the process that the head has started for that.
    Agent,
}

/// Set in the role of a [`Role::Tasks`].
const OF_TASKS: u64 = 1 << 63;
/// Set in the role of a [`Role::Sink`].
const OF_SINK: u64 = 1 << 62;
/// A [`Role::Agent`].
const AGENT: u64 = 1 << 61;

impl<'a> Hello<'a> {
    /// Returns what this program says of itself.
    pub fn of_this_process(role: Role) -> Hello<'static> {
        Hello { protocol_version: spoken_version(), role, pid: std::process::id(), version: crate::VERSION }
    }

    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_frame(out, kind::HELLO, |out| {
            out.put_exact(&HELLO_MARK);
            out.put_u32(self.protocol_version);
            out.put_u64(match self.role {
                Role::Driver => 0,
                Role::Worker(worker) => worker.0,
                Role::Tasks(worker) => worker.0 | OF_TASKS,
                Role::Sink(worker) => worker.0 | OF_SINK,
                Role::Agent => AGENT,
            });
            out.put_u32(self.pid);
            out.put_str(self.version);
        });
    }

    /// Takes a body apart. The mark and the version come first and stay there in every version; when the version is not
    /// ours, nothing after it is read.
    pub fn decode(body: &'a [u8]) -> Result<Hello<'a>, WireError> {
        let mut take = Take::new(body);
        if take.array()? != HELLO_MARK {
            return Err(WireError::UnknownValue("mark of tracer"));
        }
        let protocol_version = take.u32()?;
        if protocol_version != spoken_version() {
            return Ok(Hello { protocol_version, role: Role::Driver, pid: 0, version: "" });
        }
        let role = match take.u64()? {
            0 => Role::Driver,
            AGENT => Role::Agent,
            worker if worker & OF_TASKS != 0 => Role::Tasks(WorkerId(worker & !OF_TASKS)),
            worker if worker & OF_SINK != 0 => Role::Sink(WorkerId(worker & !OF_SINK)),
            worker => Role::Worker(WorkerId(worker)),
        };
        let hello = Hello { protocol_version, role, pid: take.u32()?, version: take.str()? };
        take.finish()?;
        Ok(hello)
    }
}

/// The head's answer to a hello.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The head's own version, for messages to people.
    pub version: String,
    /// The process of the head.
    pub head_pid: u32,
    /// The machine, as spans name it: the host name.
    pub node_id: String,
    /// The id of the head's place in its cluster; none if it has joined no engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place_id: Option<PlaceId>,
    /// The id of what this driver will submit.
    pub job_id: JobId,
    /// The folder of the session: socket, spools, logs. Absolute.
    pub session_dir: PathBuf,
    /// Folders in which modules are looked for first, in order.
    pub module_path: Vec<PathBuf>,
    /// Every folder in which the head's workers look for modules, in order. Absolute.
    pub module_folders: Vec<PathBuf>,
    /// Settings of the session's tracing.
    pub tracing: TracingSettings,
    /// The nonce of the marks in a worker's output; none for who is no worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_nonce: Option<Nonce>,
}

/// A request that is answered by a [`Reply`] with the same number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Query {
    /// Status of the head. Answered by [`Reply::Status`].
    Status,
    /// The tasks that the head remembers, newest first. Answered by [`Reply::Tasks`].
    /// Many come in several answers: see [`TaskPages`](super::TaskPages).
    Tasks {
        /// The most to list.
        limit: usize,
        /// Filter of the tasks.
        #[serde(default)]
        which: TaskFilter,
        /// Only tasks that were submitted before this one, if it is given.
        #[serde(default)]
        before: Option<TaskId>,
    },
    /// One task with its result. Answered by [`Reply::Task`].
    Task {
        /// Id of the task.
        id: TaskId,
    },
    /// One task of a queue, of any node of the engine that the head has joined. Answered by [`Reply::Shared`].
    Shared {
        /// Its id in the cluster.
        id: String,
    },
    /// The task that runs or ran here for another node, or for this very one, by its id in the cluster. Answered by [`Reply::Task`].
    Import {
        /// Its id in the cluster.
        id: String,
    },
    /// The engine that the head has joined, with all nodes and queues. Answered by [`Reply::Cluster`].
    Cluster,
    /// Explanation of why a task waits, what it is at, or why it ended as it did. Answered by [`Reply::Explanation`].
    Explain {
        /// Id of the task.
        id: TaskId,
    },
    /// Every worker process. Answered by [`Reply::Workers`].
    Workers,
    /// Number of tasks of a job that run. Answered by [`Reply::Running`].
    Running {
        /// Id of the job.
        job: JobId,
    },
    /// Every actor that is remembered. Answered by [`Reply::Actors`].
    Actors,
    /// One actor. Answered by [`Reply::Actor`].
    Actor {
        /// Its name, or its id.
        wanted: String,
    },
    /// End tasks that have not ended: those that no worker has begun will not run, those that run are asked to end, then get SIGTERM,
    /// then SIGKILL. Answered by [`Reply::Cancelled`].
    Cancel {
        /// Selection of the tasks.
        which: CancelWhich,
        /// Time that each step may take, in milliseconds; none for what the task's submission said.
        grace_ms: Option<u64>,
    },
    /// End a task that another node has put into a queue. Answered by [`Reply::CancelledElsewhere`].
    CancelElsewhere {
        /// Its id in the cluster.
        id: String,
        /// See [`Query::Cancel`].
        grace_ms: Option<u64>,
    },
    /// Forget ended tasks, with their results. Answered by [`Reply::Pruned`].
    Prune(PruneWhich),
    /// Said by the process of the HTTP API: hooks have failed in it. Answered by [`Reply::Noted`].
    HttpTracing {
        /// Process id of the sender; one before it is not heard any more.
        pid: u32,
        /// In words, for `tracer status`.
        failures: Vec<String>,
    },
    /// Make a code for a link to the page that the HTTP API serves. Answered by [`Reply::PageCode`].
    MakePageCode {
        /// True if the page may cancel tasks; otherwise it only reads.
        may_cancel: bool,
    },
    /// Said by the process of the HTTP API: a page shows this code. It is taken once. Answered by [`Reply::PageAccess`].
    TakePageCode {
        /// The code.
        code: String,
    },
    /// Something about services. Answered by [`Reply::Service`].
    Service(ServiceQuery),
    /// End the head and its workers. Answered by [`Reply::Stopped`], once that is done.
    Stop {
        /// Time that running tasks may take to end before their workers are killed, in milliseconds.
        grace_ms: u64,
        /// True if workers are killed at once.
        force: bool,
        /// Lot of the tasks that have not ended.
        mode: StopMode,
    },
}

/// Lot of the tasks that a head has when it is told to stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopMode {
    /// They are kept for the next head in this place.
    #[default]
    Keep,
    /// They end as stopped.
    Discard,
    /// They are waited for, and nothing new is accepted. Those in queues of an engine are kept.
    Drain,
}

impl Query {
    /// Returns whether the answer comes when something has happened, however long that takes.
    pub fn waits_for_an_event(&self) -> bool {
        matches!(self, Query::Stop { .. } | Query::Service(ServiceQuery::Follow { .. }))
    }
}

/// The answer to a [`Query`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// To [`Query::Status`].
    Status(Box<StatusReport>),
    /// To [`Query::Tasks`].
    Tasks(TaskList),
    /// To [`Query::Task`]; none for a task that was never submitted here or was forgotten.
    Task(Option<Box<TaskReport>>),
    /// To [`Query::Shared`]; or why nothing can be said of it, with the next step.
    Shared(Result<Box<SharedReport>, String>),
    /// To [`Query::Cluster`]; or why the engine cannot be asked, with the next step.
    Cluster(Result<Box<super::ClusterReport>, String>),
    /// To [`Query::Explain`]; none for a task that was never submitted here or was forgotten.
    Explanation(Option<Box<Explanation>>),
    /// To [`Query::Workers`], in the order in which they were started.
    Workers(Vec<WorkerReport>),
    /// To [`Query::Running`].
    Running(usize),
    /// To [`Query::Actors`], newest first.
    Actors(Vec<ActorReport>),
    /// To [`Query::Actor`]; or why there is none.
    Actor(Result<Box<ActorReport>, String>),
    /// To [`Query::Cancel`]: the tasks that were named, or those that the choice has met and that had not ended.
    Cancelled(Vec<(TaskId, CancelReport)>),
    /// To [`Query::CancelElsewhere`]; or why it could not be, with the next step.
    CancelledElsewhere(Result<CancelReport, String>),
    /// To [`Query::Prune`].
    Pruned(PruneReport),
    /// To [`Query::HttpTracing`].
    Noted,
    /// To [`Query::MakePageCode`]; none if the head serves no page.
    PageCode(Option<PageCode>),
    /// To [`Query::TakePageCode`]: whether the page may cancel tasks; none if the code was used, is too old, or was never made.
    PageAccess(Option<bool>),
    /// To [`Query::Service`].
    Service(ServiceReply),
    /// Sent when everything has stopped; the head exits after it.
    Stopped(StopReport),
}

/// Code of a link to the page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageCode {
    /// URL of the HTTP API: `http://127.0.0.1:8265`.
    pub url: String,
    /// The code, for one use within a minute.
    pub code: String,
}

/// Selection of ended tasks to forget: those that one of the limits does not leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PruneWhich {
    /// Least time since the end, in nanoseconds.
    pub older_than_ns: Option<u64>,
    /// The oldest, until so many are left.
    pub max_tasks: Option<u64>,
    /// The oldest, until their results take so many bytes.
    pub max_bytes: Option<u64>,
    /// True to forget none, and say which would be.
    pub dry_run: bool,
}

/// Things that were removed, and things that stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PruneReport {
    /// Number that was removed, or would be.
    pub removed: u64,
    /// Bytes of those.
    pub removed_bytes: u64,
    /// Number that is left.
    pub kept: u64,
    /// Bytes of those.
    pub kept_bytes: u64,
    /// Number of kept ones that are in use.
    pub in_use: u64,
}

/// `tracer status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// The head's version.
    pub version: String,
    /// The process of the head.
    pub head_pid: u32,
    /// Heads that died before this one while processes of services lived, since `tracer start`; each was followed by another at once.
    #[serde(default)]
    pub head_restarts: u64,
    /// The machine, as spans name it: the host name.
    pub node_id: String,
    /// The folder of the session: socket, spools, logs.
    pub session_dir: PathBuf,
    /// The folder of the span files.
    pub spans_dir: PathBuf,
    /// The session's hook; none when it is not traced.
    pub hook: Option<HookReport>,
    /// Reason why it is not traced, if it is not for want of a hook.
    pub tracing_off: Option<String>,
    /// Its figures. In reports they stand among the other fields.
    #[serde(flatten)]
    pub metrics: Metrics,
    /// The HTTP API; none when the head was started without.
    #[serde(default)]
    pub http: Option<HttpReport>,
    /// The engine that the head has joined; none for a head that is alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineReport>,
    /// The bound on the memory of each worker, if there is one.
    pub worker_memory: Option<MemoryReport>,
    /// The services, by name.
    #[serde(default)]
    pub services: Vec<super::ServiceSummary>,
    /// Warnings for people, most important first.
    pub warnings: Vec<String>,
}

/// Something that tasks take while they run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceReport {
    /// Its name.
    pub name: String,
    /// Total amount.
    pub total: u64,
    /// Amount of it that tasks have now. More than there is, of slots, while a task that had waited for others goes on.
    pub used: u64,
}

/// The engine that a head shares tasks over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineReport {
    /// Its address: `nats://127.0.0.1:4222`.
    pub address: String,
    /// True if it can be reached.
    pub is_reachable: bool,
    /// Its name and version; or why it cannot be reached.
    pub text: String,
    /// The id of the head's place, with which ids of its tasks begin in the cluster.
    pub place_id: String,
    /// The queues whose tasks the head runs, each with the most at a time; 0 for as many as it has slots.
    pub queues: BTreeMap<String, u32>,
    /// True if it runs commands of these queues too.
    #[serde(default)]
    pub shared_commands: bool,
    /// Number of tasks of this head that are in queues, or run elsewhere.
    pub shared: usize,
    /// Number of tasks of queues that this head runs.
    pub imports: usize,
    /// The process that speaks to it; none while it is started again.
    pub pid: Option<u32>,
    /// Number of times that it has ended and was started again.
    pub restarts: u64,
    /// File with the credentials that the head shows, if it has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<PathBuf>,
    /// File with the authorities that may have signed the certificate of the engine, if one was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority: Option<PathBuf>,
    /// True if the engine may be on another machine without TLS.
    #[serde(default)]
    pub is_insecure: bool,
    /// Fate of the tasks of queues that it runs when the engine does not hear it.
    #[serde(default)]
    pub on_partition: super::OnPartition,
    /// Number of tasks of queues that this head was told to end for that.
    #[serde(default)]
    pub ended_on_partition: u64,
    /// Number of messages of queues that this head's agents have put aside, because nobody can run them or this node must not.
    #[serde(default)]
    pub put_aside: u64,
    /// All nodes and queues of the engine. `tracer status` adds them; none if the engine cannot be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Box<super::ClusterReport>>,
}

impl EngineReport {
    /// Text of one that the agent has not tried to reach.
    pub const NOT_YET: &str = "it was not reached yet";
}

/// Counts of what came by OTLP, under this head and those before it in its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtlpCounts {
    /// Requests that were taken, whole or in part.
    pub accepted_requests: u64,
    /// Requests of which nothing was taken.
    pub refused_requests: u64,
    /// Spans that were written.
    pub spans: u64,
    /// Log records that were written.
    pub log_records: u64,
    /// Points of metrics that were written.
    pub metric_points: u64,
    /// Spans, records and points that were refused, of requests that were taken.
    pub rejected: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
}

/// The HTTP API of a head.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpReport {
    /// URL that requests begin with: `http://127.0.0.1:8265`.
    pub url: String,
    /// The file with the token that clients have to show.
    pub token_path: PathBuf,
    /// The file with the token that is enough to read.
    #[serde(default)]
    pub viewer_token_path: PathBuf,
    /// True if it does not serve the API itself, but `GET /metrics`, and OTLP if that is received.
    #[serde(default)]
    pub is_metrics_only: bool,
    /// The file with the token that is enough for `GET /metrics`; the same under every head of the place.
    #[serde(default)]
    pub metrics_token_path: PathBuf,
    /// True if it receives OTLP, at `v1/traces`, `v1/logs` and `v1/metrics` below the URL.
    #[serde(default)]
    pub receives_otlp: bool,
    /// The file with the token that senders of OTLP show; the same under every head of the place.
    #[serde(default)]
    pub otlp_token_path: PathBuf,
    /// Counts of what was received. The head leaves them out; whoever reports adds them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub otlp: Option<OtlpCounts>,
    /// True if commands are taken, and not only functions.
    pub allows_commands: bool,
    /// The process that serves it; none while it is started again.
    pub pid: Option<u32>,
    /// Number of times that it has ended and was started again.
    pub restarts: u64,
}

/// The bound on the memory that tasks take in the head which have not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueMemoryReport {
    /// In bytes.
    pub bytes: u64,
    /// Bytes of it that they take now.
    pub used: u64,
    /// Source of the bound: a limit of the system, or a setting.
    pub source: String,
}

/// The bound on the memory of each worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// In bytes, with everything that the worker starts.
    pub bytes: u64,
    /// True if control groups of the kernel hold it; otherwise the head looks.
    pub is_held_by_kernel: bool,
}

/// The hook of the session and how it does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookReport {
    /// The hook, as given: `module:attribute`.
    pub import_string: String,
    /// Contract that it was named for.
    pub contract: HookContract,
    /// The library it was found in; none for a hook built into tracer.
    pub library: Option<PathBuf>,
    /// Description of its work with spans, as the hook gave it when `tracer start` tried it out.
    pub description: String,
    /// The share of new traces that are sampled, if neither the hook nor `OTEL_TRACES_SAMPLER` says otherwise.
    pub sampling_ratio: SamplingRatio,
    /// Sampling of traces unless the hook decides, as the head's environment has it, for people.
    pub sampling: String,
    /// The hooks that get the finished spans of this one, in their order.
    pub further: Vec<FurtherHook>,
    /// Workers in which a hook failed; if the first, tracer writes their spans itself.
    pub failed_workers: Vec<HookFailure>,
}

/// A hook that failed in one worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookFailure {
    /// The worker in which it failed.
    pub worker_id: WorkerId,
    /// Process id of that worker.
    pub pid: u32,
    /// Error of the hook, or event that ended it.
    pub reason: String,
}

/// Number of workers there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerCounts {
    /// Number that the head was started with and keeps alive.
    pub wanted: usize,
    /// Started and not ready: their hook is running.
    pub starting: usize,
    /// Ready, with nothing to do.
    pub idle: usize,
    /// Ready, with at least one lease that does not wait for other tasks.
    pub busy: usize,
    /// Ready, with a task that waits for others.
    pub waiting: usize,
    /// Ready, each with an actor.
    #[serde(default)]
    pub actors: usize,
    /// Died since the head was started.
    pub lost: u64,
}

/// Number of tasks there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskCounts {
    /// Queued in the head, or waiting to be tried again; no worker has them.
    pub waiting: usize,
    /// Leased to a worker, running or about to run.
    pub leased: usize,
    /// Number of those that were asked to end, or are being made to.
    pub ending: usize,
    /// Ended well since the head was started, the forgotten ones included.
    pub succeeded: u64,
    /// Failed since the head was started, the forgotten ones included and the cancelled ones not.
    pub failed: u64,
    /// Cancelled since the head was started, the forgotten ones included.
    pub cancelled: u64,
    /// Ended so long ago that only these counts remember them.
    pub forgotten: u64,
}

/// Spans that needed tracer's help, or were lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpanCounts {
    /// Ended spans of dead processes, written from their spools.
    pub recovered: u64,
    /// Open spans of dead processes, closed with what happened.
    pub closed: u64,
    /// Attributes, events and links that did not fit the spool and were lost with their process.
    pub cut: u64,
    /// Spans that are lost for good: the sum of `dropped`, `lost_with_process`, `given_up` and `forked`.
    #[serde(default)]
    pub lost: u64,
    /// Ended spans that a hook could not write, and gave up when its memory was full.
    #[serde(default)]
    pub dropped: u64,
    /// Spans that were in the memory of a process alone when it died. On a full disk a few of them may have been written.
    #[serde(default)]
    pub lost_with_process: u64,
    /// Spans that are in the memory of living processes alone, and would be lost if these died now: they found no room in the spool, or
    /// left it before their hook had delivered them. It goes down when they are delivered.
    #[serde(default)]
    pub at_risk: u64,
    /// The same of hooks that do not tell what they deliver, in living and dead processes: nobody knows what became of these spans.
    #[serde(default)]
    pub untold: u64,
    /// Spans that additional hooks have not got, because they found no room in the spool.
    #[serde(default)]
    pub missed: u64,
    /// Spans that were begun in processes which tasks had forked.
    #[serde(default)]
    pub forked: u64,
    /// Spans of dead processes that could not be written to the span file. They stay in the spool, for the next head.
    pub unwritten: u64,
    /// Spans that another process than their own has delivered to an exporter.
    #[serde(default)]
    pub handed_over: u64,
    /// Spans that wait for a process that delivers them to an exporter.
    #[serde(default)]
    pub waiting: u64,
    /// Spans that no exporter took, until there was no room for them any more.
    #[serde(default)]
    pub given_up: u64,
    /// Spans of earlier sessions that wait for hooks which this head has not.
    #[serde(default)]
    pub waiting_for_other_hooks: u64,
    /// Log records that no exporter took, until there was no room for them any more. They are in the files of log records.
    #[serde(default)]
    pub log_records_given_up: u64,
}

/// Filter of the tasks that are listed: those that meet all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskFilter {
    /// In one of these states; in any, if none is named.
    pub states: Vec<TaskState>,
    /// With a name that fits this pattern, in which `*` stands for any text and `?` for any character.
    pub name: Option<String>,
    /// Pattern of the module of their function or actor.
    pub module: Option<String>,
    /// Submitted at this time or later, in nanoseconds since the Unix epoch.
    pub since_unix_nano: Option<u64>,
    /// Of this trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
}

/// `tracer list tasks`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TaskList {
    /// Newest first.
    pub tasks: Vec<TaskReport>,
    /// Number of further ones that were asked for. They are counted where the list begins with the newest, as are the others.
    pub left_out: usize,
    /// Number of others.
    #[serde(default)]
    pub filtered_out: usize,
    /// Number of further ones that there once were.
    pub forgotten: u64,
}

/// One task, as `tracer list tasks` and `tracer get` show it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskReport {
    /// The task's number in this session.
    pub id: TaskId,
    /// `--name`, or none.
    pub name: Option<String>,
    /// `module.function`, or the program.
    pub target: String,
    /// Stage of its life, as the claims of its worker had it at that moment.
    pub state: TaskState,
    /// Job that it belongs to: the submissions of one driver.
    pub job_id: JobId,
    /// Hexadecimal; none for an untraced submission.
    pub trace_id: Option<String>,
    /// The attempt that it is at, from 1; 0 when no worker was given it.
    pub attempt: u32,
    /// Demand beyond a slot; none for most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub demand: Option<DemandReport>,
    /// Further options that it was submitted with, such as `priority`; none for most.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, i64>,
    /// The attempts that have ended, oldest first. When there were very many, the newest of them.
    pub attempts: Vec<AttemptReport>,
    /// The worker that has it, or in which it ended; none for a task that waits or ended without one.
    pub worker_id: Option<WorkerId>,
    /// Process id of that worker.
    pub worker_pid: Option<u32>,
    /// Time at which the head took it in, in nanoseconds since the Unix epoch.
    pub submitted_unix_nano: u64,
    /// Time at which its last attempt began, in nanoseconds since the Unix epoch. None until the task has ended, and when it never began.
    pub started_unix_nano: Option<u64>,
    /// None until the task has ended.
    pub ended_unix_nano: Option<u64>,
    /// The result, in `tracer get` of a function that returned.
    pub result: Option<JsonText>,
    /// Losses: parts of the result that JSON cannot represent, with their places; none if it represents all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_loss: Option<String>,
    /// The beginning of the result as JSON, in a list; of a large one its size, in brackets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_beginning: Option<String>,
    /// Reference to its result when it is large; `tracer get` reads it from there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<crate::stored::Stored>,
    /// Failure of the task, for programs; none unless it failed.
    pub failure: Option<tracer_core::task::Failure>,
    /// The failure in words.
    pub message: Option<String>,
    /// The actor that it makes, or is a method of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor_id: Option<TaskId>,
    /// The queue that it is for, or has come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Its id in the cluster, if it is of a queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_task_id: Option<String>,
    /// The node that runs it or ran it last, as spans name it, if it is of a queue and was submitted here. Its worker is that node's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_id: Option<String>,
}

impl TaskReport {
    /// Enters the result, and what JSON cannot say of it.
    pub fn set_result(&mut self, result: Option<JsonText>) {
        self.result_loss = result.as_ref().and_then(JsonText::loss);
        self.result = result;
    }
}

/// One task of a queue, as its record in the engine has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedReport {
    /// Its id in the cluster.
    pub cluster_task_id: String,
    /// Stage of its life: `waiting`, `running`, or how it has ended.
    pub state: TaskState,
    /// The queue that it waits in, if it does and that is known.
    pub queue: Option<String>,
    /// The node that runs it or ran it last, as spans name it; none if none did.
    pub node_id: Option<String>,
    /// The attempt that it is at, from 1; 0 when none was begun.
    pub attempt: u32,
    /// The attempts that have ended before the last one, oldest first.
    pub attempts: Vec<AttemptReport>,
    /// Time at which its last attempt began, in nanoseconds since the Unix epoch by the clock of its node.
    pub started_unix_nano: Option<u64>,
    /// Time of its end, by the same clock; none until then.
    pub ended_unix_nano: Option<u64>,
    /// The result of a function that returned.
    pub result: Option<JsonText>,
    /// Losses: parts of the result that JSON cannot represent, or why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_loss: Option<String>,
    /// Reference to its result when it is large; `tracer get` reads it from there, and removes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<crate::stored::Stored>,
    /// Failure of the task, for programs; none unless it failed.
    pub failure: Option<tracer_core::task::Failure>,
    /// The failure in words.
    pub message: Option<String>,
}

/// One actor, as `tracer list actors` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActorReport {
    /// Its number, which is that of the task that creates it.
    pub id: TaskId,
    /// The name by which it is found, or none.
    pub name: Option<String>,
    /// The module that its type is in: a name, or the path of the library.
    pub module: String,
    /// Its type.
    pub type_name: String,
    /// Stage of its life.
    pub state: ActorState,
    /// Reason why it is dead; none while it is not.
    pub reason: Option<String>,
    /// Time at which it died, in nanoseconds since the Unix epoch; none while it is not dead, and for what died under an earlier head.
    #[serde(default)]
    pub died_unix_nano: Option<u64>,
    /// The job that has created it.
    pub job_id: JobId,
    /// True if it outlives that job.
    pub is_detached: bool,
    /// The worker that it has for itself; none while it waits for one, and after its end.
    pub worker_id: Option<WorkerId>,
    /// Process id of that worker.
    pub worker_pid: Option<u32>,
    /// Number of times that it was created again after its worker was lost.
    pub restarts: u32,
    /// Most times that it is created again.
    pub max_restarts: u32,
    /// Number of times that a call is run again that was going on when the worker was lost.
    pub max_call_retries: u32,
    /// Calls that wait in the head.
    pub calls_waiting: usize,
    /// Calls that its worker has, those that run included.
    pub calls_leased: usize,
    /// Time at which it was submitted, in nanoseconds since the Unix epoch.
    pub created_unix_nano: u64,
    /// The build of its module, as spans name it; none for what is built into tracer.
    #[serde(default)]
    pub module_version: Option<String>,
    /// True if the module has been built anew since. The actor keeps its build until it is made again.
    #[serde(default)]
    pub is_outdated: bool,
}

/// Stage of an actor's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActorState {
    /// Its creation has not ended.
    Pending,
    /// It takes calls.
    Alive,
    /// Its worker was lost, and it is created again.
    Restarting,
    /// It takes no calls any more.
    Dead,
}

impl std::fmt::Display for ActorState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            ActorState::Pending => "pending",
            ActorState::Alive => "alive",
            ActorState::Restarting => "restarting",
            ActorState::Dead => "dead",
        })
    }
}

/// Demand of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DemandReport {
    /// Number of slots.
    pub num_cpus: u32,
    /// Amounts of named resources, by name.
    pub resources: BTreeMap<String, u64>,
    /// The most memory of an attempt, in bytes; none for what every worker may take.
    pub memory_bytes: Option<u64>,
}

/// Stage of a task's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// No worker has it.
    Waiting,
    /// Its last attempt failed, and it waits to be tried again.
    Retrying,
    /// A worker has it and has not begun it.
    Leased,
    /// A worker runs it.
    Running,
    /// It runs and was asked to end, because it was cancelled or has run into a limit.
    Cancelling,
    /// It runs, and got SIGTERM.
    Terminating,
    /// It got SIGKILL.
    Killing,
    /// It ended well: the function returned, or the command exited with 0.
    Succeeded,
    /// It ended in any other way.
    Failed,
    /// It ended because it was cancelled: by somebody, or because the task that had submitted it did not get to its end.
    Cancelled,
}

impl TaskState {
    /// Every state, in the order of a task's life.
    pub const ALL: [TaskState; 10] = [
        TaskState::Waiting,
        TaskState::Retrying,
        TaskState::Leased,
        TaskState::Running,
        TaskState::Cancelling,
        TaskState::Terminating,
        TaskState::Killing,
        TaskState::Succeeded,
        TaskState::Failed,
        TaskState::Cancelled,
    ];

    /// Returns its name, for people and programs.
    pub const fn name(self) -> &'static str {
        match self {
            TaskState::Waiting => "waiting",
            TaskState::Retrying => "retrying",
            TaskState::Leased => "leased",
            TaskState::Running => "running",
            TaskState::Cancelling => "cancelling",
            TaskState::Terminating => "terminating",
            TaskState::Killing => "killing",
            TaskState::Succeeded => "succeeded",
            TaskState::Failed => "failed",
            TaskState::Cancelled => "cancelled",
        }
    }

    /// Returns the states of tasks that have no outcome yet.
    pub fn without_outcome() -> Vec<TaskState> {
        TaskState::ALL.into_iter().filter(|state| !state.has_ended()).collect()
    }

    /// Returns whether a task in this state has its outcome.
    pub fn has_ended(self) -> bool {
        matches!(self, TaskState::Succeeded | TaskState::Failed | TaskState::Cancelled)
    }

    /// Returns where a task is that has ended like this.
    pub fn of_outcome(outcome: &Outcome) -> TaskState {
        match outcome {
            Outcome::Failed(failure) if failure.is_cancellation() => TaskState::Cancelled,
            Outcome::Failed(_) => TaskState::Failed,
            Outcome::Returned(_) | Outcome::Stored(_) | Outcome::Completed => TaskState::Succeeded,
        }
    }
}

impl std::fmt::Display for TaskState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// One worker, as `tracer list workers` shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerReport {
    /// The worker's number in this session.
    pub id: WorkerId,
    /// Its process.
    pub pid: u32,
    /// Stage of its life.
    pub state: WorkerState,
    /// Time since its process was started, in nanoseconds.
    pub uptime_ns: u64,
    /// Task that it runs now.
    pub task: Option<TaskId>,
    /// The actor that it is for; none for those that run tasks.
    #[serde(default)]
    pub actor: Option<TaskId>,
    /// The name of the replica that it is, if it is one.
    #[serde(default)]
    pub replica: Option<String>,
    /// Leases it has, the running one included.
    pub leases: usize,
    /// Number of slots it holds now.
    pub cpus: u64,
    /// Amounts of named resources that its tasks have, by name.
    pub resources: BTreeMap<String, u64>,
    /// Number of attempts it has reported.
    pub tasks_ended: u64,
    /// Destination of its spans.
    pub tracing: String,
    /// Reason why the hook failed in it, if it did.
    pub hook_failure: Option<String>,
}

/// Stage of a worker's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    /// Its process runs its hook, and takes no leases yet.
    Starting,
    /// It is ready and has nothing to do.
    Idle,
    /// It has at least one lease.
    Busy,
    /// Wait of the task that it runs for other tasks; its slot is given back.
    Waiting,
    /// It was told to end, or is being killed.
    Stopping,
}

impl std::fmt::Display for WorkerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            WorkerState::Starting => "starting",
            WorkerState::Idle => "idle",
            WorkerState::Busy => "busy",
            WorkerState::Waiting => "waiting",
            WorkerState::Stopping => "stopping",
        })
    }
}

/// `tracer stop`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StopReport {
    /// The head that stopped.
    pub head_pid: u32,
    /// Workers that ended when asked.
    pub stopped: Vec<u32>,
    /// Workers that had to be killed.
    pub killed: Vec<u32>,
    /// Tasks that had not ended.
    pub unfinished: usize,
    /// Number of these that are kept for the next head in this place.
    pub kept: usize,
    /// Spans that no exporter has taken yet; the next head in this place goes on with them.
    pub spans_waiting: u64,
    /// Spans that wait for hooks which the head did not have, and for a head that has them.
    pub spans_of_other_hooks: u64,
}

/// Finished spans that a worker is to deliver for another process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpansOffer {
    /// The head's number for it, which the answer has too.
    pub number: u64,
    /// The hooks that want them, as [bits](crate::spool::hooks).
    pub hooks: u32,
    /// Mark that tells those hooks from the ones of another session.
    pub mark: u32,
    /// The file that they are in, an OTLP `ExportTraceServiceRequest`.
    pub path: PathBuf,
}

/// Outcome of an offer of spans to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpansDone {
    /// The offer's.
    pub number: u64,
    /// The hooks that do not have them, as bits.
    pub failed_hooks: u32,
    /// One of `tracer_abi::STATUS_*`; none when everyone has them.
    pub failure: Option<u32>,
    /// Number of the spans that were refused for good by whoever took the others.
    pub refused: u64,
}

/// A worker's state once its hook has run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerReady {
    /// Description of its tracing, for people to read.
    pub tracing: String,
    /// Reason why the hook failed; tracer then writes the spans itself.
    pub hook_failure: Option<String>,
}

/// Appends a frame whose body is a MessagePack value.
pub fn put_value(out: &mut Vec<u8>, kind: u8, value: &impl Serialize) {
    put_frame(out, kind, |out| {
        rmp_serde::encode::write_named(out, value).expect("messages are plain data, and memory does not fail");
    });
}

/// Takes a MessagePack value.
pub fn take_value<T: DeserializeOwned>(body: &[u8]) -> Result<T, WireError> {
    value::plain_from_bytes(body).ok_or(WireError::UnknownValue("message"))
}

/// Appends a numbered query.
pub fn put_query(out: &mut Vec<u8>, number: u64, query: &Query) {
    put_value(out, kind::QUERY, &(number, query));
}

/// Appends the reply to a numbered query.
pub fn put_reply(out: &mut Vec<u8>, number: u64, reply: &Reply) {
    put_value(out, kind::REPLY, &(number, reply));
}

/// A batch of submissions: consecutive tags from `first_tag`, an envelope each.
pub struct Submissions<'a> {
    /// The driver's number for the first of them. A driver counts its submissions from 0.
    pub first_tag: u64,
    take: Take<'a>,
}

impl<'a> Submissions<'a> {
    /// Appends a frame; `envelopes` are encoded already, each with its length before it.
    pub fn encode(out: &mut Vec<u8>, first_tag: u64, envelopes: &[u8]) {
        put_frame(out, kind::SUBMIT, |out| {
            out.put_u64(first_tag);
            out.put_exact(envelopes);
        });
    }

    /// Reads the first tag; the envelopes are taken apart by iterating. Fails when the body is shorter than a tag.
    pub fn decode(body: &'a [u8]) -> Result<Submissions<'a>, WireError> {
        let mut take = Take::new(body);
        Ok(Submissions { first_tag: take.u64()?, take })
    }
}

impl<'a> Iterator for Submissions<'a> {
    type Item = Result<&'a [u8], WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.take.is_empty() {
            return None;
        }
        let envelope = self.take.bytes();
        if envelope.is_err() {
            self.take = Take::new(&[]);
        }
        Some(envelope)
    }
}

/// `count` submissions from `first_tag` are accepted, as consecutive tasks from `first_task`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The driver's number for the first of them.
    pub first_tag: u64,
    /// The id of the first of them; the others follow without a gap.
    pub first_task: TaskId,
    /// Their number.
    pub count: u32,
    /// Period in which they were written to the journal; only if one of them traces the runtime.
    pub journaled: Option<Period>,
}

/// A piece of time, in nanoseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// Time of its beginning.
    pub start_unix_nano: u64,
    /// Time of its end.
    pub end_unix_nano: u64,
}

impl Period {
    fn put(self, out: &mut Vec<u8>) {
        out.put_u64(self.start_unix_nano);
        out.put_u64(self.end_unix_nano);
    }

    fn take(take: &mut Take<'_>) -> Result<Period, WireError> {
        Ok(Period { start_unix_nano: take.u64()?, end_unix_nano: take.u64()? })
    }
}

impl Accepted {
    /// Returns whether `next` goes on where this ends, in tags and in ids.
    pub fn is_followed_by(&self, next: &Accepted) -> bool {
        let count = u64::from(self.count);
        self.first_tag + count == next.first_tag
            && self.first_task.0 + count == next.first_task.0
            && self.count.checked_add(next.count).is_some()
    }

    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_frame(out, kind::ACCEPTED, |out| {
            out.put_u64(self.first_tag);
            out.put_u64(self.first_task.0);
            out.put_u32(self.count);
            if let Some(journaled) = self.journaled {
                journaled.put(out);
            }
        });
    }

    /// Takes a body apart.
    pub fn decode(body: &[u8]) -> Result<Accepted, WireError> {
        let mut take = Take::new(body);
        let (first_tag, first_task, count) = (take.u64()?, TaskId(take.u64()?), take.u32()?);
        let journaled = if take.is_empty() { None } else { Some(Period::take(&mut take)?) };
        let accepted = Accepted { first_tag, first_task, count, journaled };
        take.finish()?;
        Ok(accepted)
    }
}

/// Concurrency of an actor's methods, as its module says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActorMethods {
    /// The actor.
    pub actor: TaskId,
    /// The methods, as `Type.method`, whose calls may run beside each other.
    pub concurrent: Vec<String>,
    /// Number of those calls that run at a time.
    pub max_concurrency: u32,
}

/// A piece of a task's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output<'a> {
    /// The task that ran while it was written. Output has no other mark: what a task leaves to a thread of its own
    /// may come under a later one.
    pub task: TaskId,
    /// The worker that ran it.
    pub worker_pid: u32,
    /// Output that it was written to.
    pub stream: Stream,
    /// True if other calls of the same actor ran in the process meanwhile, any of which may have written it.
    pub is_shared: bool,
    /// The node that it comes from, as spans name it; empty for the one of the head.
    pub node_id: &'a str,
    /// Output before this piece that did not arrive from there.
    pub lost: OutputSize,
    /// The bytes as they were written: of any encoding, and cut at any place. There may be none behind what was lost last.
    pub bytes: &'a [u8],
}

/// An amount of output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputSize {
    /// Number of bytes.
    pub bytes: u64,
    /// Number of ends of lines among them.
    pub lines: u64,
}

impl OutputSize {
    /// Returns the size of these bytes.
    pub fn of(bytes: &[u8]) -> OutputSize {
        let lines = bytes.iter().filter(|&&byte| byte == b'\n').count();
        OutputSize { bytes: bytes.len() as u64, lines: lines as u64 }
    }

    /// Returns the size of two pieces together.
    pub fn plus(self, other: OutputSize) -> OutputSize {
        let OutputSize { bytes, lines } = other;
        OutputSize { bytes: self.bytes.saturating_add(bytes), lines: self.lines.saturating_add(lines) }
    }

    /// Returns what this one has more than its beginning.
    pub fn since(self, beginning: OutputSize) -> OutputSize {
        let OutputSize { bytes, lines } = beginning;
        OutputSize { bytes: self.bytes.saturating_sub(bytes), lines: self.lines.saturating_sub(lines) }
    }

    /// Appends it.
    pub fn put(self, out: &mut Vec<u8>) {
        out.put_u64(self.bytes);
        out.put_u64(self.lines);
    }

    /// Takes it from what follows.
    pub fn take(take: &mut Take<'_>) -> Result<OutputSize, WireError> {
        Ok(OutputSize { bytes: take.u64()?, lines: take.u64()? })
    }
}

/// Output that a task wrote to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    /// Appends it.
    pub fn put(self, out: &mut Vec<u8>) {
        out.put_u8(match self {
            Stream::Stdout => 1,
            Stream::Stderr => 2,
        });
    }

    /// Takes it from what follows.
    pub fn take(take: &mut Take<'_>) -> Result<Stream, WireError> {
        match take.u8()? {
            1 => Ok(Stream::Stdout),
            2 => Ok(Stream::Stderr),
            _ => Err(WireError::UnknownValue("stream")),
        }
    }
}

/// Added to the number of the stream when other calls may have written it.
const OF_OTHERS: u8 = 2;
/// Added to the number of the stream when the node and what was lost follow it.
const FROM_ELSEWHERE: u8 = 4;

impl<'a> Output<'a> {
    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let stream = match self.stream {
            Stream::Stdout => 1,
            Stream::Stderr => 2,
        };
        let of_others = if self.is_shared { OF_OTHERS } else { 0 };
        let is_from_elsewhere = !self.node_id.is_empty();
        put_frame(out, kind::OUTPUT, |out| {
            out.put_u64(self.task.0);
            out.put_u32(self.worker_pid);
            out.put_u8(stream + of_others + if is_from_elsewhere { FROM_ELSEWHERE } else { 0 });
            if is_from_elsewhere {
                out.put_str(self.node_id);
                self.lost.put(out);
            }
            out.put_exact(self.bytes);
        });
    }

    /// Takes a body apart; the bytes are what is left of it.
    pub fn decode(body: &'a [u8]) -> Result<Output<'a>, WireError> {
        let mut take = Take::new(body);
        let task = TaskId(take.u64()?);
        let worker_pid = take.u32()?;
        let flags = take.u8()?;
        let is_from_elsewhere = flags > FROM_ELSEWHERE;
        let (stream, is_shared) = match flags - if is_from_elsewhere { FROM_ELSEWHERE } else { 0 } {
            1 => (Stream::Stdout, false),
            2 => (Stream::Stderr, false),
            3 => (Stream::Stdout, true),
            4 => (Stream::Stderr, true),
            _ => return Err(WireError::UnknownValue("stream")),
        };
        let (node_id, lost) = match is_from_elsewhere {
            true => (take.str()?, OutputSize::take(&mut take)?),
            false => ("", OutputSize::default()),
        };
        Ok(Output { task, worker_pid, stream, is_shared, node_id, lost, bytes: &body[body.len() - take.len()..] })
    }
}

/// A task has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// The driver's own number for the task.
    pub tag: u64,
    /// The task's id.
    pub task: TaskId,
    /// The last attempt that a worker was given, from 1; 0 when none was.
    pub attempt: u32,
    /// Outcome of the task. Final: there is one for each task.
    pub outcome: Outcome,
    /// Time at which the last attempt ended, in nanoseconds since the Unix epoch; only for a task that traces the runtime.
    pub ended_unix_nano: Option<u64>,
    /// The attempts before the one that ended it, oldest first.
    pub past: Vec<AttemptReport>,
    /// Resource usage of the last attempt of a command, for the driver that wants its output. Not in the frame; it comes before it, in one of its
    /// own.
    pub usage: Option<CommandUsage>,
}

/// Set in the number of the attempt when the time of the end follows the outcome.
const HAS_END_TIME: u32 = 1 << 31;

impl Finished {
    /// Appends to the body of a frame of kind [`kind::FINISHED`], which may hold many.
    pub fn put(&self, out: &mut Vec<u8>) {
        Finished::put_parts(out, self.tag, self.task, self.attempt, &self.outcome, self.ended_unix_nano, &self.past);
    }

    /// Appends the frame as [`put`](Self::put) does, borrowing the outcome.
    pub fn put_parts(
        out: &mut Vec<u8>,
        tag: u64,
        task: TaskId,
        attempt: u32,
        outcome: &Outcome,
        ended_unix_nano: Option<u64>,
        past: &[AttemptReport],
    ) {
        out.put_u64(tag);
        out.put_u64(task.0);
        out.put_u32(attempt & !HAS_END_TIME | if ended_unix_nano.is_some() { HAS_END_TIME } else { 0 });
        outcome.encode(out);
        if let Some(ended) = ended_unix_nano {
            out.put_u64(ended);
        }
        put_attempts(out, past);
    }

    /// Takes the next of a body.
    pub fn take(take: &mut Take<'_>) -> Result<Finished, WireError> {
        let (tag, task, attempt) = (take.u64()?, TaskId(take.u64()?), take.u32()?);
        let outcome = Outcome::take(take)?;
        let ended_unix_nano = (attempt & HAS_END_TIME != 0).then(|| take.u64()).transpose()?;
        let past = take_attempts(take)?;
        Ok(Finished { tag, task, attempt: attempt & !HAS_END_TIME, outcome, ended_unix_nano, past, usage: None })
    }
}

/// Resource usage of a command, with those of its children that it waited for, as the kernel counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CommandUsage {
    /// User and system time.
    pub cpu_time_ns: u64,
    /// The largest resident size of one of the processes.
    pub peak_memory_bytes: u64,
    /// Page faults without input or output.
    pub minor_page_faults: u64,
    /// Page faults for which something was read.
    pub major_page_faults: u64,
    /// Context switches because a process waited.
    pub voluntary_context_switches: u64,
    /// Context switches because a process had used up its time.
    pub involuntary_context_switches: u64,
}

impl CommandUsage {
    /// Appends a frame of kind [`kind::USAGE`].
    pub fn put_frame(&self, task: TaskId, out: &mut Vec<u8>) {
        put_frame(out, kind::USAGE, |out| {
            out.put_u64(task.0);
            self.put(out);
        });
    }

    /// Reads the body of such a frame.
    pub fn decode(body: &[u8]) -> Result<(TaskId, CommandUsage), WireError> {
        let mut take = Take::new(body);
        let decoded = (TaskId(take.u64()?), CommandUsage::take(&mut take)?);
        take.finish()?;
        Ok(decoded)
    }

    fn put(&self, out: &mut Vec<u8>) {
        for figure in [
            self.cpu_time_ns,
            self.peak_memory_bytes,
            self.minor_page_faults,
            self.major_page_faults,
            self.voluntary_context_switches,
            self.involuntary_context_switches,
        ] {
            out.put_u64(figure);
        }
    }

    fn take(take: &mut Take<'_>) -> Result<CommandUsage, WireError> {
        Ok(CommandUsage {
            cpu_time_ns: take.u64()?,
            peak_memory_bytes: take.u64()?,
            minor_page_faults: take.u64()?,
            major_page_faults: take.u64()?,
            voluntary_context_switches: take.u64()?,
            involuntary_context_switches: take.u64()?,
        })
    }
}

/// Appends attempts: nothing but a length for the many tasks that had one only.
pub(super) fn put_attempts(out: &mut Vec<u8>, attempts: &[AttemptReport]) {
    if attempts.is_empty() {
        return out.put_bytes(&[]);
    }
    out.put_bytes(&rmp_serde::to_vec_named(attempts).expect("attempts are plain data"));
}

pub(super) fn take_attempts(take: &mut Take<'_>) -> Result<Vec<AttemptReport>, WireError> {
    match take.bytes()? {
        [] => Ok(Vec::new()),
        bytes => value::plain_from_bytes(bytes).ok_or(WireError::UnknownValue("attempts")),
    }
}

/// A task waits for tasks that it has submitted, and gives its slot back meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The worker's own number for it.
    pub number: u64,
    /// Number of the tasks that have to end before it goes on.
    pub wanted: u32,
    /// The task whose attempt blocks its own thread until then, with no limit; none for a wait in a future, on another thread, or with a
    /// limit, beside which the attempt may go on.
    pub blocked: Option<TaskId>,
    /// The tasks that it waits for.
    pub tasks: Vec<TaskId>,
}

impl Wait {
    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_frame(out, kind::WAIT, |out| {
            out.put_u64(self.number);
            out.put_u32(self.wanted);
            // Ids count from 1.
            out.put_u64(self.blocked.map_or(0, |task| task.0));
            self.tasks.iter().for_each(|task| out.put_u64(task.0));
        });
    }

    /// Takes a body apart.
    pub fn decode(body: &[u8]) -> Result<Wait, WireError> {
        let mut take = Take::new(body);
        let (number, wanted) = (take.u64()?, take.u32()?);
        let blocked = Some(take.u64()?).filter(|&task| task != 0).map(TaskId);
        let mut tasks = Vec::with_capacity(body.len() / 8);
        while !take.is_empty() {
            tasks.push(TaskId(take.u64()?));
        }
        Ok(Wait { number, wanted, blocked, tasks })
    }
}

/// Set in the [`Lease::number`] of a task that a worker runs while others of its tasks wait. The rest of the number is the task's id, and the
/// lease has no place in the ring of claims.
pub const INLINE_LEASE: u64 = 1 << 63;

/// In [`Lease::inputs`]: the value follows.
pub const LEASED_VALUE: u8 = 0;
/// In [`Lease::inputs`]: the value is in a [stored](crate::stored) file.
pub const LEASED_FILE: u8 = 1;

/// A task granted to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease<'a> {
    /// The worker's how-manieth lease, and its place in the ring of claims.
    pub number: u64,
    /// The task to run.
    pub task: TaskId,
    /// Number of the attempt at the task, from 1.
    pub attempt: u32,
    /// The driver's job that the task belongs to.
    pub job: JobId,
    /// Time at which the head took the task in, in nanoseconds since the Unix epoch.
    pub submitted_unix_nano: u64,
    /// The span of the attempt before, which that of this one is linked to.
    pub previous: Option<SpanLink>,
    /// The task's [`Envelope`](tracer_core::task::Envelope), as the driver encoded it.
    pub envelope: &'a [u8],
    /// Period in which the task waited in the queue, until it was leased; only for a task that traces the runtime.
    pub queued: Option<Period>,
    /// The values of the envelope's [inputs](tracer_core::task::Input): for each its argument, one of [`LEASED_VALUE`] and [`LEASED_FILE`], and what
    /// follows that.
    pub inputs: &'a [u8],
}

impl<'a> Lease<'a> {
    /// Appends to the body of a frame of kind [`kind::LEASES`], which may hold many.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.put_u64(self.number);
        out.put_u64(self.task.0);
        out.put_u32(self.attempt);
        out.put_u64(self.job.0);
        out.put_u64(self.submitted_unix_nano);
        SpanLink::put_option(self.previous.as_ref(), out);
        out.put_bytes(self.envelope);
        out.put_bytes(self.inputs);
        // The envelope says whether it is there.
        if Envelope::traces_runtime_of(self.envelope) {
            let nothing = Period { start_unix_nano: 0, end_unix_nano: 0 };
            self.queued.unwrap_or(nothing).put(out);
        }
    }

    /// Takes the next of a body, borrowing the envelope from it.
    pub fn take(take: &mut Take<'a>) -> Result<Lease<'a>, WireError> {
        let mut lease = Lease {
            number: take.u64()?,
            task: TaskId(take.u64()?),
            attempt: take.u32()?,
            job: JobId(take.u64()?),
            submitted_unix_nano: take.u64()?,
            previous: SpanLink::take_option(take)?,
            envelope: take.bytes()?,
            inputs: take.bytes()?,
            queued: None,
        };
        if Envelope::traces_runtime_of(lease.envelope) {
            lease.queued = Some(Period::take(take)?).filter(|queued| queued.start_unix_nano != 0);
        }
        Ok(lease)
    }
}

/// Report of a worker about an attempt that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct AttemptResult {
    /// The number of the lease that it was run under.
    pub lease: u64,
    /// Time at which the worker claimed the lease, in nanoseconds since the Unix epoch.
    pub started_unix_nano: u64,
    /// From the claim to the end of the attempt's span, in nanoseconds of the monotonic clock.
    pub run_ns: u64,
    /// Its span, when it failed and was traced: that of a further attempt is linked to it.
    pub span: Option<SpanLink>,
    /// Outcome of the attempt.
    pub outcome: Outcome,
    /// Resource usage, if it was a command whose output is wanted.
    pub usage: Option<CommandUsage>,
}

/// Set in the time that an attempt ran when what it used follows the outcome.
const HAS_USAGE: u64 = 1 << 63;

impl AttemptResult {
    /// Appends to the body of a frame of kind [`kind::RESULTS`], which may hold many.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.put_u64(self.lease);
        out.put_u64(self.started_unix_nano);
        out.put_u64(self.run_ns & !HAS_USAGE | if self.usage.is_some() { HAS_USAGE } else { 0 });
        SpanLink::put_option(self.span.as_ref(), out);
        self.outcome.encode(out);
        if let Some(usage) = &self.usage {
            usage.put(out);
        }
    }

    /// Takes the next of a body.
    pub fn take(take: &mut Take<'_>) -> Result<AttemptResult, WireError> {
        let (lease, started_unix_nano, run_ns) = (take.u64()?, take.u64()?, take.u64()?);
        let (span, outcome) = (SpanLink::take_option(take)?, Outcome::take(take)?);
        let usage = (run_ns & HAS_USAGE != 0).then(|| CommandUsage::take(take)).transpose()?;
        Ok(AttemptResult { lease, started_unix_nano, run_ns: run_ns & !HAS_USAGE, span, outcome, usage })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tracer_core::hex::hex;
    use tracer_core::task::RefusalCode;

    use super::super::frame::{FRAME_LIMIT, FrameBuffer};
    use super::*;

    fn one_frame(bytes: &[u8]) -> (u8, Vec<u8>) {
        let mut buffer = FrameBuffer::new();
        buffer.read_from(&mut &*bytes).unwrap();
        let (kind, body) = buffer.next_frame(FRAME_LIMIT).unwrap().unwrap();
        (kind, body.to_vec())
    }

    #[test]
    fn a_hello_of_another_version_is_understood_as_far_as_its_version() {
        let mut bytes = Vec::new();
        put_frame(&mut bytes, kind::HELLO, |out| {
            out.put_exact(b"TRCR");
            out.put_u32(super::super::PROTOCOL_VERSION + 1);
            out.put_exact(b"whatever that version says next");
        });
        let (_, body) = one_frame(&bytes);
        assert_eq!(Hello::decode(&body).unwrap().protocol_version, super::super::PROTOCOL_VERSION + 1);
    }

    #[test]
    fn a_welcome_has_golden_bytes() {
        let welcome = Welcome {
            version: "1".into(),
            head_pid: 2,
            node_id: "n".into(),
            place_id: None,
            job_id: JobId(3),
            session_dir: "/s".into(),
            module_path: vec!["/p".into()],
            module_folders: vec!["/p".into(), "/q".into()],
            tracing: TracingSettings::untraced("/f".into()),
            output_nonce: None,
        };
        let mut bytes = Vec::new();
        put_value(&mut bytes, kind::WELCOME, &welcome);
        let expected = b"\x0b\x01\x00\x00\x20\x88\xa7version\xa11\xa8head_pid\x02\xa7node_id\xa1n\xa6job_id\x03\xabsession_dir\xa2/s\
            \xabmodule_path\x91\xa2/p\xaemodule_folders\x92\xa2/p\xa2/q\xa7tracing\x89\xa8revision\x01\xa9spans_dir\xa2/f\
            \xa4hook\xc0\xaesampling_ratio\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00\xabpropagators\x82\xadtrace_context\xc3\
            \xa7baggage\xc3\xadtrace_runtime\xc2\xb0record_arguments\xc2\xabenvironment\x90\
            \xa4logs\x82\xa6events\xa4both\xa5level\xa4info";
        assert_eq!(bytes.escape_ascii().to_string(), expected.escape_ascii().to_string());
        assert_eq!(take_value::<Welcome>(&expected[5..]).unwrap(), welcome);
    }

    #[test]
    fn a_refusal_has_golden_bytes_which_begin_as_those_without_a_code() {
        let mut bytes = Vec::new();
        put_refusal(&mut bytes, &Refusal::new(RefusalCode::QueueFull, "full"));
        assert_eq!(hex(&bytes), "0a000000 21 04000000 66756c6c 05".replace(' ', ""));
    }

    #[test]
    fn bytes_that_are_not_of_tracer_are_no_hello() {
        assert_eq!(Hello::decode(b"GET / HTTP/1.1").unwrap_err(), WireError::UnknownValue("mark of tracer"));
    }

    proptest! {
        #[test]
        fn leases_results_and_outputs_survive_the_wire(
            number: u64, task: u64, attempt in 0..u32::MAX / 2, job: u64, time in 1_u64.., envelope: Vec<u8>, value: Vec<u8>,
            end: Option<u64>,
        ) {
            let traces_runtime = Envelope::traces_runtime_of(&envelope);
            let queued = traces_runtime.then_some(Period { start_unix_nano: time, end_unix_nano: job });
            let link = SpanLink { trace_id: [1; 16], span_id: [2; 8], trace_flags: 1 };
            let lease = Lease {
                number, task: TaskId(task), attempt, job: JobId(job), submitted_unix_nano: time, envelope: &envelope,
                inputs: &envelope, queued, previous: (task % 2 == 0).then_some(link),
            };
            let usage = CommandUsage { cpu_time_ns: number, peak_memory_bytes: task, ..CommandUsage::default() };
            let result = AttemptResult {
                lease: number, started_unix_nano: time, run_ns: task >> 1, span: (task % 2 == 1).then_some(link),
                outcome: Outcome::Returned(value.clone()), usage: (task % 3 == 1).then_some(usage),
            };
            let mut bytes = Vec::new();
            usage.put_frame(TaskId(task), &mut bytes);
            prop_assert_eq!(CommandUsage::decode(&one_frame(&bytes).1).unwrap(), (TaskId(task), usage));
            let past = AttemptReport {
                number: 1, worker_id: Some(WorkerId(job)), worker_pid: None, started_unix_nano: Some(time),
                ended_unix_nano: time, failure: Some(tracer_core::task::Failure::HeadLost), message: Some("lost".into()),
            };
            let finished = Finished {
                tag: number, task: TaskId(task), attempt, outcome: Outcome::Returned(value),
                ended_unix_nano: end, past: vec![past; usize::from(task % 3 == 0)], usage: None,
            };
            for journaled in [None, queued] {
                let accepted = Accepted { first_tag: number, first_task: TaskId(task), count: attempt, journaled };
                let mut bytes = Vec::new();
                accepted.encode(&mut bytes);
                let (_, body) = one_frame(&bytes);
                prop_assert_eq!(Accepted::decode(&body).unwrap(), accepted);
            }
            let mut bytes = Vec::new();
            lease.put(&mut bytes);
            result.put(&mut bytes);
            finished.put(&mut bytes);
            let mut take = Take::new(&bytes);
            prop_assert_eq!(Lease::take(&mut take).unwrap(), lease);
            prop_assert_eq!(AttemptResult::take(&mut take).unwrap(), result);
            prop_assert_eq!(Finished::take(&mut take).unwrap(), finished);
            take.finish().unwrap();

            let output = Output {
                task: TaskId(task),
                worker_pid: attempt,
                stream: Stream::Stderr,
                is_shared: attempt % 2 == 0,
                node_id: if task % 2 == 0 { "" } else { "b" },
                lost: OutputSize { bytes: 9, lines: 1 },
                bytes: &envelope,
            };
            let output = if output.node_id.is_empty() { Output { lost: OutputSize::default(), ..output } } else { output };
            let mut bytes = Vec::new();
            output.encode(&mut bytes);
            let (_, body) = one_frame(&bytes);
            prop_assert_eq!(Output::decode(&body).unwrap(), output);
        }

        #[test]
        fn hostile_bodies_are_refused_without_a_panic(bytes: Vec<u8>) {
            let _ = Hello::decode(&bytes);
            let _ = Refusal::decode(&bytes);
            let _ = Accepted::decode(&bytes);
            let _ = Wait::decode(&bytes);
            let _ = Output::decode(&bytes);
            let _ = CommandUsage::decode(&bytes);
            let _ = Lease::take(&mut Take::new(&bytes));
            let _ = AttemptResult::take(&mut Take::new(&bytes));
            let _ = Finished::take(&mut Take::new(&bytes));
            let _ = Submissions::decode(&bytes).map(|submissions| submissions.count());
            let _ = take_value::<(u64, Query)>(&bytes);
            let _ = take_value::<(u64, Reply)>(&bytes);
            let _ = take_value::<Welcome>(&bytes);
        }
    }
}
