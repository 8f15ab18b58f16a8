//! Messages between a head and its agent, the process that speaks to an engine of many machines. Each is the body of a frame: of kind
//! [`SHARING`](super::kind::SHARING) from the head, of kind [`SHARED`](super::kind::SHARED) from the agent.

use std::borrow::Cow;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tracer_core::codec::{Put, Take, WireError};
use tracer_core::task::{AttemptReport, Charge, Failure, Outcome, Refusal, TaskId, WorkerId};
use tracer_core::{ClusterTaskId, PlaceId};

use super::cancel::{CancelAnswer, CancelReport};
use super::cluster::ClusterReport;
use super::message::{OutputSize, Stream, put_attempts, take_attempts, take_value};

/// The SHA-256 of a value.
pub type Digest = [u8; 32];

/// The most tasks of a bundle: several short ones of one job in one message of a queue.
pub const BUNDLE_LIMIT: u32 = 1024;

/// The end of a task as it travels from node to node.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedEnd {
    /// The last attempt, from 1; 0 when none had begun.
    pub attempt: u32,
    /// Outcome of the task. Between a head and its agent a large value is in a file of theirs; between nodes it is in the engine, and there is no name.
    pub outcome: Outcome,
    /// Digest of a value that is in the engine.
    pub digest: Option<Digest>,
    /// Time at which the last attempt began, in nanoseconds since the Unix epoch by the clock of its node; none if none had begun.
    pub started_unix_nano: Option<u64>,
    /// Time of the end, by the same clock.
    pub ended_unix_nano: u64,
    /// Attempts before the last one, the oldest first.
    pub past: Vec<AttemptReport>,
    /// The node that ran it; empty if none did.
    pub node_id: String,
    /// The worker of that node that ran the last attempt, with its process id.
    pub worker: Option<(WorkerId, u32)>,
    /// Output that it has written at that node; none if it was not followed.
    pub written: Option<Written>,
}

/// Output that a task has written at one node, in all its attempts there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// The attempt that it began with there: a later node has a higher one.
    pub from_attempt: u32,
    /// All of it.
    pub size: OutputSize,
}

/// A piece of output on its way to the origin of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedOutput {
    /// All that the task had written at its node before, whether it arrived or not.
    pub before: Written,
    /// The worker that runs it.
    pub worker_pid: u32,
    /// Output that it was written to.
    pub stream: Stream,
    /// The bytes.
    pub bytes: Vec<u8>,
}

impl Written {
    fn put(self, out: &mut Vec<u8>) {
        out.put_u32(self.from_attempt);
        self.size.put(out);
    }

    fn take(take: &mut Take<'_>) -> Result<Written, WireError> {
        Ok(Written { from_attempt: take.u32()?, size: OutputSize::take(take)? })
    }
}

impl SharedOutput {
    /// Appends it.
    pub fn put(&self, out: &mut Vec<u8>) {
        self.before.put(out);
        out.put_u32(self.worker_pid);
        self.stream.put(out);
        out.put_bytes(&self.bytes);
    }

    /// Takes it from what follows.
    pub fn take(take: &mut Take<'_>) -> Result<SharedOutput, WireError> {
        let (before, worker_pid, stream) = (Written::take(take)?, take.u32()?, Stream::take(take)?);
        Ok(SharedOutput { before, worker_pid, stream, bytes: take.bytes()?.into() })
    }
}

/// Bytes of nearly every encoded end.
const ENCODED_BYTES: usize = 128;

impl SharedEnd {
    /// Makes the end of a task that no node has begun. The time is in nanoseconds since the Unix epoch.
    pub fn unbegun(failure: Failure, ended_unix_nano: u64) -> SharedEnd {
        SharedEnd {
            attempt: 0,
            outcome: Outcome::Failed(failure),
            digest: None,
            started_unix_nano: None,
            ended_unix_nano,
            past: Vec::new(),
            node_id: String::new(),
            worker: None,
            written: None,
        }
    }

    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let SharedEnd { attempt, outcome, digest, started_unix_nano, ended_unix_nano, past, node_id, worker, written } =
            self;
        let borrowed = BorrowedEnd {
            attempt: *attempt,
            outcome,
            digest: *digest,
            started_unix_nano: *started_unix_nano,
            ended_unix_nano: *ended_unix_nano,
            past,
            node_id,
            worker: *worker,
            written: *written,
        };
        borrowed.encode()
    }

    /// Returns whether its outcome is a value that it has with it.
    pub fn has_returned(&self) -> bool {
        matches!(self.outcome, Outcome::Returned(_))
    }

    /// Returns whether an encoded end has a large value, in a file or in the engine. Looks no further, so the rest of it may be anything.
    pub fn has_stored(bytes: &[u8]) -> bool {
        let mut take = Take::new(bytes);
        let mut skip = || {
            Times::take(&mut take)?;
            take.str()?;
            take.u64()?;
            take.u32()?;
            Outcome::is_stored(&mut take)
        };
        skip().unwrap_or(false)
    }

    /// Returns the time that the last attempt of an encoded end took, in nanoseconds; none if none had begun, or if it cannot be read.
    pub fn run_ns(bytes: &[u8]) -> Option<u64> {
        let times = Times::take(&mut Take::new(bytes)).ok()?;
        Some(times.ended_unix_nano.saturating_sub(times.started_unix_nano?))
    }

    /// Takes it apart. Another node has written it.
    pub fn decode(bytes: &[u8]) -> Result<SharedEnd, WireError> {
        let mut take = Take::new(bytes);
        let Times { attempt, started_unix_nano, ended_unix_nano } = Times::take(&mut take)?;
        let node_id = take.str()?.to_owned();
        // No process has the id 0.
        let worker = Some((WorkerId(take.u64()?), take.u32()?)).filter(|(_, pid)| *pid != 0);
        let outcome = Outcome::take(&mut take)?;
        let past = take_attempts(&mut take)?;
        let written = if flag(&mut take)? { Some(Written::take(&mut take)?) } else { None };
        let digest = match &outcome {
            Outcome::Stored(stored) if stored.name.is_empty() => Some(take.array()?),
            _ => None,
        };
        take.finish()?;
        Ok(SharedEnd { attempt, outcome, digest, started_unix_nano, ended_unix_nano, past, node_id, worker, written })
    }
}

/// A [`SharedEnd`] whose parts are somebody else's, to be encoded. See its fields of these names.
#[derive(Clone, Copy, Debug)]
pub struct BorrowedEnd<'a> {
    /// The last attempt.
    pub attempt: u32,
    /// Outcome of the task.
    pub outcome: &'a Outcome,
    /// Digest of a value that is in the engine.
    pub digest: Option<Digest>,
    /// Time at which the last attempt began.
    pub started_unix_nano: Option<u64>,
    /// Time of the end.
    pub ended_unix_nano: u64,
    /// Attempts before the last one.
    pub past: &'a [AttemptReport],
    /// The node that ran it.
    pub node_id: &'a str,
    /// The worker that ran the last attempt.
    pub worker: Option<(WorkerId, u32)>,
    /// Output that it has written there.
    pub written: Option<Written>,
}

impl BorrowedEnd<'_> {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(ENCODED_BYTES);
        out.put_u32(self.attempt);
        out.put_u8(self.started_unix_nano.is_some().into());
        out.put_u64(self.started_unix_nano.unwrap_or(0));
        out.put_u64(self.ended_unix_nano);
        out.put_str(self.node_id);
        let (worker, pid) = self.worker.map_or((0, 0), |(worker, pid)| (worker.0, pid));
        out.put_u64(worker);
        out.put_u32(pid);
        self.outcome.encode(&mut out);
        put_attempts(&mut out, self.past);
        out.put_u8(self.written.is_some().into());
        self.written.iter().for_each(|written| written.put(&mut out));
        self.digest.iter().for_each(|digest| out.extend_from_slice(digest));
        out
    }
}

/// The first part of an encoded end.
struct Times {
    attempt: u32,
    started_unix_nano: Option<u64>,
    ended_unix_nano: u64,
}

impl Times {
    fn take(take: &mut Take<'_>) -> Result<Times, WireError> {
        let attempt = take.u32()?;
        let has_started = flag(take)?;
        let started_unix_nano = Some(take.u64()?).filter(|_| has_started);
        Ok(Times { attempt, started_unix_nano, ended_unix_nano: take.u64()? })
    }
}

fn flag(take: &mut Take<'_>) -> Result<bool, WireError> {
    match take.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(WireError::UnknownValue("flag")),
    }
}

/// Encodes the report of an attempt, for records that other nodes read.
pub fn encode_report(report: &AttemptReport) -> Vec<u8> {
    let mut out = Vec::new();
    put_attempts(&mut out, std::slice::from_ref(report));
    out
}

/// An attempt that was lost with its node, and whose span nobody else has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostElsewhere {
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// The node, as spans name it.
    pub node_id: String,
    /// Time at which that node took it, in nanoseconds since the Unix epoch by the clock of the head that is told, as far as its agent knows that.
    pub since_unix_nano: u64,
    /// Time of the next attempt, by the same clock. If a measurement was wrong it may be before the other.
    pub until_unix_nano: u64,
}

/// The way to an engine: where it is, and how both sides know each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineAccess {
    /// Its address: `tls://host:port`, or `nats://` and a loopback address; the port may be left out if it is 4222.
    pub address: String,
    /// File with the credentials that it asks for: a NATS creds file, or the seed of an nkey.
    pub credentials: Option<PathBuf>,
    /// File with the authorities that may have signed its certificate; those of the machine if there is none.
    pub authority: Option<PathBuf>,
    /// True if `nats://` may be used beyond loopback, where everybody on the way can read and change what goes there.
    pub is_insecure: bool,
}

impl EngineAccess {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_str(&self.address);
        for path in [&self.credentials, &self.authority] {
            out.put_bytes(path.as_ref().map_or(&[][..], |path| path.as_os_str().as_bytes()));
        }
        out.put_u8(self.is_insecure.into());
    }

    fn take(take: &mut Take<'_>) -> Result<EngineAccess, WireError> {
        let address = take.str()?.to_owned();
        let mut path = || -> Result<Option<PathBuf>, WireError> {
            let bytes = take.bytes()?;
            Ok((!bytes.is_empty()).then(|| OsString::from_vec(bytes.to_vec()).into()))
        };
        let (credentials, authority) = (path()?, path()?);
        Ok(EngineAccess { address, credentials, authority, is_insecure: flag(take)? })
    }
}

/// Fate of the tasks of queues that a node runs, when the engine has not heard it for as long as its claims last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnPartition {
    /// They go on. Another node may run them too by then, and one of the outcomes counts.
    #[default]
    Continue,
    /// They are ended.
    Stop,
}

impl FromStr for OnPartition {
    type Err = String;

    fn from_str(text: &str) -> Result<OnPartition, String> {
        match text {
            "continue" => Ok(OnPartition::Continue),
            "stop" => Ok(OnPartition::Stop),
            _ => Err(format!("expected `continue` or `stop`, found `{text}`")),
        }
    }
}

/// A node, as its agent has to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentNode {
    /// The id of the head's place.
    pub place: PlaceId,
    /// Number of the start of the head; a later one is higher.
    pub life: u64,
    /// The name of the node on spans.
    pub node_id: String,
    /// The way to the engine.
    pub access: EngineAccess,
    /// The queues that it serves, each with the most tasks of it that run at a time; 0 for as many as there are slots.
    pub queues: Vec<(String, u32)>,
    /// Time that a submission waits for an engine that cannot be reached, in milliseconds.
    pub engine_wait_ms: u64,
    /// The most bytes of one argument or result.
    pub max_shared_value: u64,
    /// Public keys of those whose tasks it runs; empty where everybody's are run.
    pub trusted_keys: Vec<String>,
    /// True if it runs commands of these queues too.
    pub shared_commands: bool,
    /// Fate of what it runs when the engine does not hear it.
    pub on_partition: OnPartition,
    /// Folders in which the head's workers look for modules, in their order.
    pub module_folders: Vec<PathBuf>,
    /// Names of the modules that are built in.
    pub built_in_modules: Vec<String>,
}

impl AgentNode {
    fn put(&self, out: &mut Vec<u8>) {
        let numbers = [self.place.0, self.life, self.engine_wait_ms, self.max_shared_value];
        numbers.into_iter().for_each(|number| out.put_u64(number));
        out.put_str(&self.node_id);
        self.access.put(out);
        out.put_u32(self.queues.len() as u32);
        for (queue, slots) in &self.queues {
            out.put_str(queue);
            out.put_u32(*slots);
        }
        out.put_u32(self.trusted_keys.len() as u32);
        self.trusted_keys.iter().for_each(|key| out.put_str(key));
        out.put_u8(self.shared_commands.into());
        out.put_u8((self.on_partition == OnPartition::Stop).into());
        out.put_u32(self.module_folders.len() as u32);
        self.module_folders.iter().for_each(|folder| out.put_bytes(folder.as_os_str().as_bytes()));
        out.put_u32(self.built_in_modules.len() as u32);
        self.built_in_modules.iter().for_each(|module| out.put_str(module));
    }

    fn take(take: &mut Take<'_>) -> Result<AgentNode, WireError> {
        Ok(AgentNode {
            place: PlaceId(take.u64()?),
            life: take.u64()?,
            engine_wait_ms: take.u64()?,
            max_shared_value: take.u64()?,
            node_id: take.str()?.to_owned(),
            access: EngineAccess::take(take)?,
            queues: (0..take.u32()?)
                .map(|_| Ok((take.str()?.to_owned(), take.u32()?)))
                .collect::<Result<_, WireError>>()?,
            trusted_keys: (0..take.u32()?).map(|_| Ok(take.str()?.to_owned())).collect::<Result<_, WireError>>()?,
            shared_commands: flag(take)?,
            on_partition: if flag(take)? { OnPartition::Stop } else { OnPartition::Continue },
            module_folders: (0..take.u32()?)
                .map(|_| Ok(OsString::from_vec(take.bytes()?.into()).into()))
                .collect::<Result<_, WireError>>()?,
            built_in_modules: (0..take.u32()?).map(|_| Ok(take.str()?.to_owned())).collect::<Result<_, WireError>>()?,
        })
    }
}

/// A task of a bundle that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenTask<'a> {
    /// The task.
    pub id: TaskId,
    /// Time at which it was accepted, in nanoseconds since the Unix epoch.
    pub submitted_unix_nano: u64,
    /// Its envelope, as in [`ToAgent::Share`].
    pub envelope: &'a [u8],
}

/// Tasks of a bundle, in the order of their ids, with their envelopes in one buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenTasks {
    envelopes: Vec<u8>,
    /// Each with the time of its acceptance and the end of its envelope.
    tasks: Vec<(TaskId, u64, usize)>,
}

impl OpenTasks {
    /// Adds a task behind the others.
    pub fn push(&mut self, OpenTask { id, submitted_unix_nano, envelope }: OpenTask<'_>) {
        self.push_with(id, submitted_unix_nano, |out| out.extend_from_slice(envelope));
    }

    /// Adds a task behind the others, whose envelope is what `encode` appends.
    pub fn push_with(&mut self, id: TaskId, submitted_unix_nano: u64, encode: impl FnOnce(&mut Vec<u8>)) {
        encode(&mut self.envelopes);
        self.tasks.push((id, submitted_unix_nano, self.envelopes.len()));
    }

    /// Returns the number of tasks.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Returns the tasks in their order.
    pub fn iter(&self) -> impl Iterator<Item = OpenTask<'_>> {
        (0..self.tasks.len()).map(|at| self.at(at))
    }

    /// Returns a task by its id.
    pub fn get(&self, id: TaskId) -> Option<OpenTask<'_>> {
        self.tasks.binary_search_by_key(&id, |(id, ..)| *id).ok().map(|at| self.at(at))
    }

    fn at(&self, at: usize) -> OpenTask<'_> {
        let begin = at.checked_sub(1).map_or(0, |before| self.tasks[before].2);
        let (id, submitted_unix_nano, end) = self.tasks[at];
        OpenTask { id, submitted_unix_nano, envelope: &self.envelopes[begin..end] }
    }
}

impl<'a> FromIterator<OpenTask<'a>> for OpenTasks {
    fn from_iter<I: IntoIterator<Item = OpenTask<'a>>>(tasks: I) -> OpenTasks {
        let mut all = OpenTasks::default();
        tasks.into_iter().for_each(|task| all.push(task));
        all
    }
}

/// A message of a head to its agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToAgent {
    /// First of all: who it is.
    Node(Box<AgentNode>),
    /// A task to put into a queue.
    Share {
        /// The task.
        task: TaskId,
        /// The queue.
        queue: String,
        /// True if it is a command, and goes to nodes alone that take some.
        is_command: bool,
        /// True if its job has many tasks in queues: others come before it.
        is_of_many: bool,
        /// Time at which it was accepted, in nanoseconds since the Unix epoch.
        submitted_unix_nano: u64,
        /// True if it must not be started twice.
        at_most_once: bool,
        /// Limit of how often it is started again after its node or worker was lost.
        crash_limit: u32,
        /// Its envelope, free of what only this head and its agent know: arguments in files are named.
        envelope: Vec<u8>,
        /// Arguments that are too many bytes together for a message of a queue, with their places.
        large: Vec<(u32, Vec<u8>)>,
        /// Its idempotency key, if it has one, with a number that stands for what it runs.
        key: Option<(String, u64)>,
        /// True if no agent was told of it before.
        is_new: bool,
        /// True if an agent has said that the engine has it.
        is_stored: bool,
    },
    /// Short tasks to put into a queue together: a bundle, whose tasks have ids in a row.
    ShareBundle {
        /// The first of its tasks.
        first: TaskId,
        /// Number of tasks that it was made of.
        count: u32,
        /// The queue.
        queue: String,
        /// Limit of how often each is started again after its node or worker was lost.
        crash_limit: u32,
        /// Time that one of them is expected to run, in nanoseconds.
        run_ns: u64,
        /// True if no agent was told of it before.
        is_new: bool,
        /// True if an agent has said that the engine has it.
        is_stored: bool,
        /// The tasks that have not ended.
        tasks: OpenTasks,
    },
    /// Somebody wants a shared task to end.
    Withdraw {
        /// The task.
        task: TaskId,
        /// Set if it is to end also where it runs.
        stops: Option<Stop>,
        /// End that it has if nobody has begun it: an encoded [`SharedEnd`].
        end: Vec<u8>,
    },
    /// Slots for tasks of queues.
    Free {
        /// Number of slots.
        slots: u32,
        /// Number of free ones.
        free: u32,
        /// Named resources: of each the amount that there is, and the amount that is free.
        resources: Vec<(String, u64, u64)>,
        /// Number of imports that had come from this agent by then.
        imports: u64,
    },
    /// A task of another node that this head runs since before this agent.
    Open {
        /// The task.
        id: ClusterTaskId,
        /// Token that the agent gave with it.
        token: Vec<u8>,
        /// The attempt that it began with here.
        attempt: u32,
    },
    /// An attempt at an import failed, and the next one follows here.
    AttemptFailed {
        /// The task.
        id: ClusterTaskId,
        /// Number of the attempt.
        attempt: u32,
        /// Budget that it is charged to.
        charge: Charge,
        /// An encoded [`AttemptReport`].
        report: Vec<u8>,
    },
    /// An import has ended.
    Ended {
        /// The task.
        id: ClusterTaskId,
        /// Number of the last attempt.
        attempt: u32,
        /// An encoded [`SharedEnd`].
        end: Vec<u8>,
    },
    /// This head lets go of an import, which another node is to run.
    GivenBack {
        /// The task.
        id: ClusterTaskId,
        /// Number of the attempt that is given up.
        attempt: u32,
        /// True if it had begun.
        has_begun: bool,
    },
    /// The head stops: nothing is taken from queues any more.
    Stopping,
    /// Spans stand in for those of the lost attempts that an import came with.
    StoodIn {
        /// The task.
        id: ClusterTaskId,
        /// The attempt that it began with here.
        attempt: u32,
    },
    /// The end of a task of this head is in its journal: what the engine keeps for it is not needed any more.
    Taken(TaskId),
    /// A worker waits for a task that no process is free for: it is to run here, unless somebody has begun it.
    TakeBack(TaskId),
    /// Somebody asks for a task of any node.
    Find {
        /// Number of the question, which comes back.
        number: u64,
        /// The task.
        id: ClusterTaskId,
    },
    /// Somebody here wants a task of another node to end.
    CancelElsewhere {
        /// Number of the question, which comes back.
        number: u64,
        /// The task.
        id: ClusterTaskId,
        /// The way in which it is to end where it runs.
        stop: Stop,
        /// End that it has if nobody has begun it and its own node is not heard: an encoded [`SharedEnd`].
        end: Vec<u8>,
    },
    /// The answer to [`FromAgent::Cancel`].
    Cancelled {
        /// The task.
        task: TaskId,
        /// Outcome of the request.
        report: CancelReport,
        /// Place of the node that has asked.
        by: PlaceId,
    },
    /// Somebody asks for the nodes and queues of the engine: the number of the question, which comes back.
    Survey(u64),
    /// An import that is followed has written something.
    Output {
        /// The task.
        id: ClusterTaskId,
        /// The piece.
        output: SharedOutput,
    },
    /// Notice that nobody follows the output of a task of this head any more, of which the node of this place has sent some.
    NotFollowed(TaskId, PlaceId),
}

/// The way in which an attempt is to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stop {
    /// Time for each step, in nanoseconds; none for that of the task.
    pub grace_ns: Option<u64>,
}

impl Stop {
    /// Returns a way that is no slower than either of two.
    pub fn sooner(self, other: Stop) -> Stop {
        Stop { grace_ns: self.grace_ns.into_iter().chain(other.grace_ns).min() }
    }

    /// Appends it.
    pub fn put(self, out: &mut Vec<u8>) {
        out.put_u8(self.grace_ns.is_some().into());
        out.put_u64(self.grace_ns.unwrap_or(0));
    }

    /// Takes it from what follows.
    pub fn take(take: &mut Take<'_>) -> Result<Stop, WireError> {
        let has_grace = flag(take)?;
        Ok(Stop { grace_ns: Some(take.u64()?).filter(|_| has_grace) })
    }
}

/// The claim of a node to a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedBy {
    /// The node, as spans name it.
    pub node_id: String,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Time at which that node took it, in nanoseconds since the Unix epoch by that node's clock.
    pub since_unix_nano: u64,
}

/// Knowledge that the engine has of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// No answer: the engine cannot be asked.
    Unreachable,
    /// No record and no message in the engine.
    Unknown,
    /// A message in a queue, which nobody has begun.
    Waiting {
        /// The queue; empty if it is not known.
        queue: String,
        /// Number of attempts that were begun before.
        attempts: u32,
    },
    /// The claim of a node.
    Claimed(ClaimedBy),
    /// The end, an encoded [`SharedEnd`]. A large value is in a file of this place, for whoever asked.
    Ended {
        /// The end.
        end: Vec<u8>,
        /// Reason why its value cannot be had, if so.
        loss: Option<String>,
    },
    /// The end without an outcome: the nodes that ran it were lost.
    Lost {
        /// Number of the attempt that was lost last.
        attempt: u32,
        /// Reason why that is its end, as a clause.
        why: String,
    },
}

impl ClaimedBy {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_u32(self.attempt);
        out.put_u64(self.since_unix_nano);
        out.put_str(&self.node_id);
    }

    fn take(take: &mut Take<'_>) -> Result<ClaimedBy, WireError> {
        Ok(ClaimedBy { attempt: take.u32()?, since_unix_nano: take.u64()?, node_id: take.str()?.into() })
    }
}

impl Found {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Found::Unreachable => out.put_u8(0),
            Found::Unknown => out.put_u8(1),
            Found::Waiting { queue, attempts } => {
                out.put_u8(2);
                out.put_u32(*attempts);
                out.put_str(queue);
            }
            Found::Claimed(claim) => {
                out.put_u8(3);
                claim.put(out);
            }
            Found::Ended { end, loss } => {
                out.put_u8(4);
                out.put_bytes(end);
                put_option(out, loss.as_deref());
            }
            Found::Lost { attempt, why } => {
                out.put_u8(5);
                out.put_u32(*attempt);
                out.put_str(why);
            }
        }
    }

    fn take(take: &mut Take<'_>) -> Result<Found, WireError> {
        Ok(match take.u8()? {
            0 => Found::Unreachable,
            1 => Found::Unknown,
            2 => Found::Waiting { attempts: take.u32()?, queue: take.str()?.into() },
            3 => Found::Claimed(ClaimedBy::take(take)?),
            4 => Found::Ended { end: take.bytes()?.into(), loss: take_option(take)? },
            5 => Found::Lost { attempt: take.u32()?, why: take.str()?.into() },
            _ => return Err(WireError::UnknownValue("what was found")),
        })
    }
}

fn put_option(out: &mut Vec<u8>, text: Option<&str>) {
    out.put_u8(text.is_some().into());
    out.put_str(text.unwrap_or_default());
}

fn take_option(take: &mut Take<'_>) -> Result<Option<String>, WireError> {
    let is_there = flag(take)?;
    Ok(Some(take.str()?.to_owned()).filter(|_| is_there))
}

/// Tasks of another node, or of this very one, that the head is to run: one, or several of one bundle, which have one claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import<'a> {
    /// Id in the cluster, of the task or of the first one of its bundle.
    pub id: ClusterTaskId,
    /// Everything that the agent has to know of them, but for their ids; it comes back in [`ToAgent::Open`].
    pub token: Cow<'a, [u8]>,
    /// The attempt to begin with, from 1.
    pub attempt: u32,
    /// Number of attempts that failed by themselves.
    pub failures: u32,
    /// Number of attempts that were lost.
    pub crashes: u32,
    /// Lost attempts whose spans are missing.
    pub lost: Vec<LostElsewhere>,
    /// The tasks, in the order of their places.
    pub tasks: Vec<ImportedTask<'a>>,
    /// Reason why none of them can be run, if so: an argument cannot be had.
    pub problem: Option<String>,
}

/// A task of an [`Import`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedTask<'a> {
    /// Number of its id behind that of the import.
    pub place: u32,
    /// Time at which its origin accepted it, by the clock of that machine.
    pub submitted_unix_nano: u64,
    /// Envelope of the task. Arguments in files are in the values of the head's place.
    pub envelope: Cow<'a, [u8]>,
}

impl Import<'_> {
    /// Returns the id of one of its tasks.
    pub fn id_of(&self, task: &ImportedTask<'_>) -> ClusterTaskId {
        ClusterTaskId { task: TaskId(self.id.task.0.saturating_add(task.place.into())), ..self.id }
    }
}

/// A message of an agent to its head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromAgent<'a> {
    /// The engine has this task; of a bundle, by its first one: all of it.
    Stored(TaskId),
    /// The engine does not have this task, or this bundle, and never will.
    NotStored(TaskId, Refusal),
    /// A task of this head has ended: an encoded [`SharedEnd`].
    Ended(TaskId, Cow<'a, [u8]>),
    /// A task of this head has lost the nodes that ran it: how many attempts there were, and whether that is because it must not be started twice.
    Lost {
        /// The task.
        task: TaskId,
        /// Number of the attempt that was lost last; 0 if nobody knows.
        attempt: u32,
        /// Attempts whose spans are missing.
        lost: Vec<LostElsewhere>,
        /// Reason why that is its end, as a clause.
        why: String,
        /// A [`SharedEnd`] that it has all the same, encoded: somebody had cancelled it before.
        end: Option<Vec<u8>>,
    },
    /// A node has a task of this head.
    Claimed(TaskId, ClaimedBy),
    /// A node has all of the bundle that begins with this task; none if its tasks go on by themselves from now on.
    BundleClaimed(TaskId, Option<ClaimedBy>),
    /// The node that had a task of this head has let go of it.
    LetGo(TaskId),
    /// Tasks to run.
    Import(Import<'a>),
    /// The origin of an import wants it to end.
    Stop(ClusterTaskId, Stop),
    /// An import is another node's by now, or may be: it is to end here, and counts for nothing.
    Superseded(ClusterTaskId),
    /// The engine has not heard this node for as long as its claims last, and so many imports are to end for that.
    CutOff {
        /// Number of those that the head has.
        ended: u32,
        /// Time for which claims last, in milliseconds.
        after_ms: u64,
    },
    /// The engine hears this node again.
    HeardAgain,
    /// The head stops, and this node has nothing of any queue any more: the agent may end.
    HasLetGo,
    /// An import that has not begun is to be given back: other nodes may begin it at once.
    GiveBack(ClusterTaskId),
    /// The ends of this many imports, which have ids in a row from this one on, need not be remembered any more.
    Settled(ClusterTaskId, u32),
    /// State of the engine, for people.
    Engine {
        /// True if it can be reached.
        is_reachable: bool,
        /// Its name and version, if it was ever reached; or why it cannot be.
        text: String,
    },
    /// The engine has lost writes.
    LostWrites {
        /// Highest sequence of its records that the agent was told.
        told: u64,
        /// Sequence of the write after that.
        now: u64,
    },
    /// The engine was asked to store these tasks, or the bundles that begin with them, and has not answered for as long as a submission waits.
    Unanswered(Vec<TaskId>),
    /// A copy of this place has begun, and yields; what people are told of it.
    Copied(String),
    /// A message of a queue is put aside, where people find it with the reason; or could not be.
    PutAside {
        /// The queue.
        queue: String,
        /// The id of its task, or what stood in its place.
        name: String,
        /// Reason for it, as a clause.
        reason: String,
        /// Reason why it is still in its queue, if it is, as a clause.
        problem: Option<String>,
    },
    /// A line for the log.
    Log(String),
    /// The answer to [`ToAgent::Find`].
    Found {
        /// Number of the question.
        number: u64,
        /// State of the task.
        found: Found,
    },
    /// Somebody at another node wants a task of this head to end. Answered by [`ToAgent::Cancelled`].
    Cancel {
        /// The task.
        task: TaskId,
        /// The way in which it is to end where it runs.
        stop: Stop,
        /// Place of the node that asks.
        by: PlaceId,
    },
    /// The answer to [`ToAgent::CancelElsewhere`].
    CancelAnswered {
        /// Number of the question.
        number: u64,
        /// Outcome of the request.
        answer: CancelAnswer,
    },
    /// The answer to [`ToAgent::Survey`].
    Surveyed {
        /// Number of the question.
        number: u64,
        /// The engine with all that share it; or why it cannot be asked, as a clause.
        cluster: Result<Box<ClusterReport>, String>,
    },
    /// A task of this head has written something at another node, or here for the queue.
    Output {
        /// The task.
        task: TaskId,
        /// Place of the node.
        place: PlaceId,
        /// The node, as spans name it.
        node_id: String,
        /// The piece.
        output: SharedOutput,
    },
}

fn put_id(out: &mut Vec<u8>, id: ClusterTaskId) {
    out.put_u64(id.place.0);
    out.put_u64(id.task.0);
}

fn take_id(take: &mut Take<'_>) -> Result<ClusterTaskId, WireError> {
    Ok(ClusterTaskId { place: PlaceId(take.u64()?), task: TaskId(take.u64()?) })
}

fn put_lost(out: &mut Vec<u8>, lost: &[LostElsewhere]) {
    out.put_u32(lost.len() as u32);
    for lost in lost {
        out.put_u32(lost.attempt);
        out.put_str(&lost.node_id);
        out.put_u64(lost.since_unix_nano);
        out.put_u64(lost.until_unix_nano);
    }
}

fn take_lost(take: &mut Take<'_>) -> Result<Vec<LostElsewhere>, WireError> {
    let lost = (0..take.u32()?).map(|_| {
        let (attempt, node_id) = (take.u32()?, take.str()?.to_owned());
        let (since_unix_nano, until_unix_nano) = (take.u64()?, take.u64()?);
        Ok(LostElsewhere { attempt, node_id, since_unix_nano, until_unix_nano })
    });
    lost.collect()
}

impl ToAgent {
    /// Appends the body of its frame.
    pub fn put(&self, out: &mut Vec<u8>) {
        match self {
            ToAgent::Node(node) => {
                out.put_u8(1);
                node.put(out);
            }
            ToAgent::Share {
                task,
                queue,
                is_command,
                is_of_many,
                submitted_unix_nano,
                at_most_once,
                crash_limit,
                envelope,
                large,
                key,
                is_new,
                is_stored,
            } => {
                out.put_u8(2);
                [task.0, *submitted_unix_nano].into_iter().for_each(|number| out.put_u64(number));
                let flags = [*is_command, *is_of_many, *at_most_once, *is_new, *is_stored];
                flags.into_iter().for_each(|flag| out.put_u8(flag.into()));
                out.put_u32(*crash_limit);
                out.put_str(queue);
                out.put_bytes(envelope);
                out.put_u32(large.len() as u32);
                for (argument, value) in large {
                    out.put_u32(*argument);
                    out.put_bytes(value);
                }
                put_option(out, key.as_ref().map(|(key, _)| &**key));
                out.put_u64(key.as_ref().map_or(0, |(_, fingerprint)| *fingerprint));
            }
            ToAgent::ShareBundle { first, count, queue, crash_limit, run_ns, is_new, is_stored, tasks } => {
                out.put_u8(14);
                [first.0, *run_ns].into_iter().for_each(|number| out.put_u64(number));
                [*count, *crash_limit, tasks.len() as u32].into_iter().for_each(|number| out.put_u32(number));
                [*is_new, *is_stored].into_iter().for_each(|flag| out.put_u8(flag.into()));
                out.put_str(queue);
                for OpenTask { id, submitted_unix_nano, envelope } in tasks.iter() {
                    [id.0, submitted_unix_nano].into_iter().for_each(|number| out.put_u64(number));
                    out.put_bytes(envelope);
                }
            }
            ToAgent::Withdraw { task, stops, end } => {
                out.put_u8(3);
                out.put_u64(task.0);
                out.put_u8(stops.is_some().into());
                stops.unwrap_or_default().put(out);
                out.put_bytes(end);
            }
            ToAgent::Free { slots, free, resources, imports } => {
                out.put_u8(4);
                out.put_u32(*slots);
                out.put_u32(*free);
                out.put_u64(*imports);
                out.put_u32(resources.len() as u32);
                for (name, total, free) in resources {
                    out.put_str(name);
                    out.put_u64(*total);
                    out.put_u64(*free);
                }
            }
            ToAgent::Open { id, token, attempt } => {
                out.put_u8(5);
                put_id(out, *id);
                out.put_u32(*attempt);
                out.put_bytes(token);
            }
            ToAgent::AttemptFailed { id, attempt, charge, report } => {
                out.put_u8(6);
                put_id(out, *id);
                out.put_u32(*attempt);
                charge.put(out);
                out.put_bytes(report);
            }
            ToAgent::Ended { id, attempt, end } => {
                out.put_u8(7);
                put_id(out, *id);
                out.put_u32(*attempt);
                out.put_bytes(end);
            }
            ToAgent::GivenBack { id, attempt, has_begun } => {
                out.put_u8(8);
                put_id(out, *id);
                out.put_u32(*attempt);
                out.put_u8((*has_begun).into());
            }
            ToAgent::Stopping => out.put_u8(9),
            ToAgent::StoodIn { id, attempt } => {
                out.put_u8(10);
                put_id(out, *id);
                out.put_u32(*attempt);
            }
            ToAgent::Taken(task) => {
                out.put_u8(11);
                out.put_u64(task.0);
            }
            ToAgent::TakeBack(task) => {
                out.put_u8(15);
                out.put_u64(task.0);
            }
            ToAgent::Find { number, id } => {
                out.put_u8(12);
                out.put_u64(*number);
                put_id(out, *id);
            }
            ToAgent::CancelElsewhere { number, id, stop, end } => {
                out.put_u8(18);
                out.put_u64(*number);
                put_id(out, *id);
                stop.put(out);
                out.put_bytes(end);
            }
            ToAgent::Cancelled { task, report, by } => {
                out.put_u8(19);
                out.put_u64(task.0);
                report.put(out);
                out.put_u64(by.0);
            }
            ToAgent::Survey(number) => {
                out.put_u8(13);
                out.put_u64(*number);
            }
            ToAgent::Output { id, output } => {
                out.put_u8(16);
                put_id(out, *id);
                output.put(out);
            }
            ToAgent::NotFollowed(task, place) => {
                out.put_u8(17);
                out.put_u64(task.0);
                out.put_u64(place.0);
            }
        }
    }

    /// Takes the body of a frame apart.
    pub fn decode(body: &[u8]) -> Result<ToAgent, WireError> {
        let mut take = Take::new(body);
        let message = match take.u8()? {
            1 => ToAgent::Node(Box::new(AgentNode::take(&mut take)?)),
            2 => {
                let (task, submitted_unix_nano) = (TaskId(take.u64()?), take.u64()?);
                let (is_command, is_of_many, at_most_once) = (flag(&mut take)?, flag(&mut take)?, flag(&mut take)?);
                let (is_new, is_stored) = (flag(&mut take)?, flag(&mut take)?);
                let (crash_limit, queue) = (take.u32()?, take.str()?.to_owned());
                let envelope = take.bytes()?.into();
                let large = (0..take.u32()?).map(|_| Ok((take.u32()?, take.bytes()?.into())));
                let large = large.collect::<Result<_, WireError>>()?;
                let (key, fingerprint) = (take_option(&mut take)?, take.u64()?);
                let key = key.map(|key| (key, fingerprint));
                ToAgent::Share {
                    task,
                    queue,
                    is_command,
                    is_of_many,
                    submitted_unix_nano,
                    at_most_once,
                    crash_limit,
                    envelope,
                    large,
                    key,
                    is_new,
                    is_stored,
                }
            }
            3 => {
                let (task, is_to_stop) = (TaskId(take.u64()?), flag(&mut take)?);
                let stops = Some(Stop::take(&mut take)?).filter(|_| is_to_stop);
                ToAgent::Withdraw { task, stops, end: take.bytes()?.into() }
            }
            4 => {
                let (slots, free, imports) = (take.u32()?, take.u32()?, take.u64()?);
                let resources = (0..take.u32()?).map(|_| Ok((take.str()?.to_owned(), take.u64()?, take.u64()?)));
                ToAgent::Free { slots, free, resources: resources.collect::<Result<_, WireError>>()?, imports }
            }
            5 => ToAgent::Open { id: take_id(&mut take)?, attempt: take.u32()?, token: take.bytes()?.into() },
            6 => ToAgent::AttemptFailed {
                id: take_id(&mut take)?,
                attempt: take.u32()?,
                charge: Charge::take(&mut take)?,
                report: take.bytes()?.into(),
            },
            7 => ToAgent::Ended { id: take_id(&mut take)?, attempt: take.u32()?, end: take.bytes()?.into() },
            8 => ToAgent::GivenBack { id: take_id(&mut take)?, attempt: take.u32()?, has_begun: flag(&mut take)? },
            9 => ToAgent::Stopping,
            10 => ToAgent::StoodIn { id: take_id(&mut take)?, attempt: take.u32()? },
            11 => ToAgent::Taken(TaskId(take.u64()?)),
            12 => ToAgent::Find { number: take.u64()?, id: take_id(&mut take)? },
            13 => ToAgent::Survey(take.u64()?),
            14 => {
                let (first, run_ns) = (TaskId(take.u64()?), take.u64()?);
                let (count, crash_limit, present) = (take.u32()?, take.u32()?, take.u32()?);
                let (is_new, is_stored, queue) = (flag(&mut take)?, flag(&mut take)?, take.str()?.to_owned());
                let mut tasks = OpenTasks::default();
                for _ in 0..present {
                    let (id, submitted_unix_nano, envelope) = (TaskId(take.u64()?), take.u64()?, take.bytes()?);
                    tasks.push(OpenTask { id, submitted_unix_nano, envelope });
                }
                ToAgent::ShareBundle { first, count, queue, crash_limit, run_ns, is_new, is_stored, tasks }
            }
            15 => ToAgent::TakeBack(TaskId(take.u64()?)),
            16 => ToAgent::Output { id: take_id(&mut take)?, output: SharedOutput::take(&mut take)? },
            17 => ToAgent::NotFollowed(TaskId(take.u64()?), PlaceId(take.u64()?)),
            18 => {
                let (number, id, stop) = (take.u64()?, take_id(&mut take)?, Stop::take(&mut take)?);
                ToAgent::CancelElsewhere { number, id, stop, end: take.bytes()?.into() }
            }
            19 => {
                let (task, report) = (TaskId(take.u64()?), CancelReport::take(&mut take)?);
                ToAgent::Cancelled { task, report, by: PlaceId(take.u64()?) }
            }
            _ => return Err(WireError::UnknownValue("message to an agent")),
        };
        take.finish()?;
        Ok(message)
    }
}

impl FromAgent<'_> {
    /// Appends the body of its frame.
    pub fn put(&self, out: &mut Vec<u8>) {
        match self {
            FromAgent::Stored(task) => {
                out.put_u8(1);
                out.put_u64(task.0);
            }
            FromAgent::NotStored(task, refusal) => {
                out.put_u8(2);
                out.put_u64(task.0);
                refusal.put(out);
            }
            FromAgent::Ended(task, end) => {
                out.put_u8(3);
                out.put_u64(task.0);
                out.put_bytes(end);
            }
            FromAgent::Lost { task, attempt, lost, why, end } => {
                out.put_u8(4);
                out.put_u64(task.0);
                out.put_u32(*attempt);
                out.put_str(why);
                put_lost(out, lost);
                out.put_bytes(end.as_deref().unwrap_or_default());
            }
            FromAgent::Import(import) => {
                let Import { id, token, attempt, failures, crashes, lost, tasks, problem } = import;
                out.put_u8(5);
                put_id(out, *id);
                [*attempt, *failures, *crashes].into_iter().for_each(|number| out.put_u32(number));
                out.put_bytes(token);
                put_lost(out, lost);
                put_option(out, problem.as_deref());
                out.put_u32(tasks.len() as u32);
                for ImportedTask { place, submitted_unix_nano, envelope } in tasks {
                    out.put_u32(*place);
                    out.put_u64(*submitted_unix_nano);
                    out.put_bytes(envelope);
                }
            }
            FromAgent::Stop(id, stop) => {
                out.put_u8(6);
                put_id(out, *id);
                stop.put(out);
            }
            FromAgent::Superseded(id) => {
                out.put_u8(17);
                put_id(out, *id);
            }
            FromAgent::CutOff { ended, after_ms } => {
                out.put_u8(18);
                out.put_u32(*ended);
                out.put_u64(*after_ms);
            }
            FromAgent::HeardAgain => out.put_u8(19),
            FromAgent::HasLetGo => out.put_u8(26),
            FromAgent::Settled(id, count) => {
                out.put_u8(7);
                put_id(out, *id);
                out.put_u32(*count);
            }
            FromAgent::GiveBack(id) => {
                out.put_u8(21);
                put_id(out, *id);
            }
            FromAgent::Engine { is_reachable, text } => {
                out.put_u8(8);
                out.put_u8((*is_reachable).into());
                out.put_str(text);
            }
            FromAgent::Log(line) => {
                out.put_u8(9);
                out.put_str(line);
            }
            FromAgent::Found { number, found } => {
                out.put_u8(10);
                out.put_u64(*number);
                found.put(out);
            }
            FromAgent::Cancel { task, stop, by } => {
                out.put_u8(22);
                out.put_u64(task.0);
                stop.put(out);
                out.put_u64(by.0);
            }
            FromAgent::CancelAnswered { number, answer } => {
                out.put_u8(23);
                out.put_u64(*number);
                answer.put(out);
            }
            FromAgent::Surveyed { number, cluster } => {
                out.put_u8(11);
                out.put_u64(*number);
                out.put_bytes(&rmp_serde::to_vec_named(cluster).expect("a report is plain data"));
            }
            FromAgent::Claimed(task, claim) => {
                out.put_u8(12);
                out.put_u64(task.0);
                claim.put(out);
            }
            FromAgent::LetGo(task) => {
                out.put_u8(13);
                out.put_u64(task.0);
            }
            FromAgent::PutAside { queue, name, reason, problem } => {
                out.put_u8(20);
                [queue, name, reason].into_iter().for_each(|text| out.put_str(text));
                put_option(out, problem.as_deref());
            }
            FromAgent::Unanswered(tasks) => {
                out.put_u8(24);
                out.put_u32(tasks.len() as u32);
                tasks.iter().for_each(|task| out.put_u64(task.0));
            }
            FromAgent::Copied(text) => {
                out.put_u8(25);
                out.put_str(text);
            }
            FromAgent::LostWrites { told, now } => {
                out.put_u8(16);
                out.put_u64(*told);
                out.put_u64(*now);
            }
            FromAgent::BundleClaimed(first, claim) => {
                out.put_u8(15);
                out.put_u64(first.0);
                out.put_u8(claim.is_some().into());
                claim.iter().for_each(|claim| claim.put(out));
            }
            FromAgent::Output { task, place, node_id, output } => {
                out.put_u8(14);
                out.put_u64(task.0);
                out.put_u64(place.0);
                out.put_str(node_id);
                output.put(out);
            }
        }
    }

    /// Takes the body of a frame apart.
    pub fn decode(body: &[u8]) -> Result<FromAgent<'_>, WireError> {
        let mut take = Take::new(body);
        let message = match take.u8()? {
            1 => FromAgent::Stored(TaskId(take.u64()?)),
            2 => {
                let task = TaskId(take.u64()?);
                let rest = take.exact(body.len() - 9)?;
                FromAgent::NotStored(task, Refusal::decode(rest)?)
            }
            3 => FromAgent::Ended(TaskId(take.u64()?), take.bytes()?.into()),
            4 => {
                let (task, attempt, why) = (TaskId(take.u64()?), take.u32()?, take.str()?.into());
                let (lost, end) = (take_lost(&mut take)?, take.bytes()?);
                FromAgent::Lost { task, attempt, lost, why, end: (!end.is_empty()).then(|| end.into()) }
            }
            5 => {
                let id = take_id(&mut take)?;
                let (attempt, failures, crashes) = (take.u32()?, take.u32()?, take.u32()?);
                let token = take.bytes()?.into();
                let lost = take_lost(&mut take)?;
                let problem = take_option(&mut take)?;
                let count = take.u32()?;
                let mut tasks = Vec::with_capacity(count.min(BUNDLE_LIMIT) as usize);
                for _ in 0..count {
                    let (place, submitted_unix_nano) = (take.u32()?, take.u64()?);
                    tasks.push(ImportedTask { place, submitted_unix_nano, envelope: take.bytes()?.into() });
                }
                FromAgent::Import(Import { id, token, attempt, failures, crashes, lost, tasks, problem })
            }
            6 => FromAgent::Stop(take_id(&mut take)?, Stop::take(&mut take)?),
            7 => FromAgent::Settled(take_id(&mut take)?, take.u32()?),
            8 => FromAgent::Engine { is_reachable: flag(&mut take)?, text: take.str()?.into() },
            9 => FromAgent::Log(take.str()?.into()),
            10 => FromAgent::Found { number: take.u64()?, found: Found::take(&mut take)? },
            11 => FromAgent::Surveyed { number: take.u64()?, cluster: take_value(take.bytes()?)? },
            12 => FromAgent::Claimed(TaskId(take.u64()?), ClaimedBy::take(&mut take)?),
            13 => FromAgent::LetGo(TaskId(take.u64()?)),
            21 => FromAgent::GiveBack(take_id(&mut take)?),
            22 => {
                let (task, stop) = (TaskId(take.u64()?), Stop::take(&mut take)?);
                FromAgent::Cancel { task, stop, by: PlaceId(take.u64()?) }
            }
            23 => FromAgent::CancelAnswered { number: take.u64()?, answer: CancelAnswer::take(&mut take)? },
            20 => {
                let (queue, name, reason) = (take.str()?.into(), take.str()?.into(), take.str()?.into());
                FromAgent::PutAside { queue, name, reason, problem: take_option(&mut take)? }
            }
            15 => {
                let first = TaskId(take.u64()?);
                let claim = if flag(&mut take)? { Some(ClaimedBy::take(&mut take)?) } else { None };
                FromAgent::BundleClaimed(first, claim)
            }
            24 => {
                let count = take.u32()?;
                FromAgent::Unanswered((0..count).map(|_| Ok(TaskId(take.u64()?))).collect::<Result<_, WireError>>()?)
            }
            25 => FromAgent::Copied(take.str()?.into()),
            16 => FromAgent::LostWrites { told: take.u64()?, now: take.u64()? },
            17 => FromAgent::Superseded(take_id(&mut take)?),
            18 => FromAgent::CutOff { ended: take.u32()?, after_ms: take.u64()? },
            19 => FromAgent::HeardAgain,
            26 => FromAgent::HasLetGo,
            14 => {
                let (task, place, node_id) = (TaskId(take.u64()?), PlaceId(take.u64()?), take.str()?.into());
                FromAgent::Output { task, place, node_id, output: SharedOutput::take(&mut take)? }
            }
            _ => return Err(WireError::UnknownValue("message of an agent")),
        };
        take.finish()?;
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tracer_core::task::{Failure, RefusalCode};

    use super::*;

    const ID: ClusterTaskId = ClusterTaskId { place: PlaceId(1), task: TaskId(2) };

    fn output() -> SharedOutput {
        let before = Written { from_attempt: 2, size: OutputSize { bytes: 7, lines: 1 } };
        SharedOutput { before, worker_pid: 4, stream: Stream::Stderr, bytes: b"a line\n".to_vec() }
    }

    fn cluster() -> ClusterReport {
        ClusterReport {
            address: "nats://127.0.0.1".into(),
            engine: "nats-server".into(),
            version: "2.9.10".into(),
            replicas: 1,
            nodes: Vec::new(),
            queues: Vec::new(),
            unread_nodes: 2,
            unanswered: Vec::new(),
        }
    }

    #[test]
    fn what_is_told_either_way_survives_the_wire() {
        let task = |(id, envelope)| OpenTask { id: TaskId(id), submitted_unix_nano: 5, envelope };
        let tasks: OpenTasks = [(1, &b"one"[..]), (3, b"three")].into_iter().map(task).collect();
        assert_eq!((tasks.get(TaskId(3)), tasks.get(TaskId(2))), (Some(task((3, b"three"))), None));
        let to_agent = [
            ToAgent::Node(Box::new(AgentNode {
                place: PlaceId(1),
                life: 2,
                node_id: "n".into(),
                access: EngineAccess {
                    address: "tls://broker".into(),
                    credentials: Some("node.nk".into()),
                    authority: None,
                    is_insecure: true,
                },
                queues: vec![("default".into(), 2), ("gpu".into(), 0)],
                engine_wait_ms: 5000,
                max_shared_value: 1 << 30,
                trusted_keys: vec!["U".into()],
                shared_commands: true,
                on_partition: OnPartition::Stop,
                module_folders: vec!["/opt/modules".into()],
                built_in_modules: vec!["demo".into()],
            })),
            ToAgent::Share {
                task: TaskId(1),
                queue: "default".into(),
                is_command: true,
                is_of_many: true,
                submitted_unix_nano: 2,
                at_most_once: true,
                crash_limit: 3,
                envelope: b"envelope".to_vec(),
                large: vec![(1, b"one".to_vec()), (0, Vec::new())],
                key: Some(("key".into(), u64::MAX)),
                is_new: true,
                is_stored: false,
            },
            ToAgent::Withdraw { task: TaskId(1), stops: Some(Stop { grace_ns: Some(0) }), end: b"end".to_vec() },
            ToAgent::Withdraw { task: TaskId(1), stops: Some(Stop { grace_ns: None }), end: b"end".to_vec() },
            ToAgent::Withdraw { task: TaskId(1), stops: None, end: b"end".to_vec() },
            ToAgent::ShareBundle {
                first: TaskId(1),
                count: 3,
                queue: "default".into(),
                crash_limit: 3,
                run_ns: 1000,
                is_new: false,
                is_stored: true,
                tasks,
            },
            ToAgent::Free { slots: 2, free: 1, resources: vec![("gpu".into(), 2, 1)], imports: 7 },
            ToAgent::Open { id: ID, token: b"token".to_vec(), attempt: 2 },
            ToAgent::AttemptFailed { id: ID, attempt: 1, charge: Charge::Crash, report: b"r".to_vec() },
            ToAgent::Ended { id: ID, attempt: 1, end: b"end".to_vec() },
            ToAgent::GivenBack { id: ID, attempt: 1, has_begun: false },
            ToAgent::Stopping,
            ToAgent::StoodIn { id: ID, attempt: 3 },
            ToAgent::Taken(TaskId(4)),
            ToAgent::TakeBack(TaskId(4)),
            ToAgent::Find { number: 8, id: ID },
            ToAgent::CancelElsewhere { number: 8, id: ID, stop: Stop { grace_ns: Some(7) }, end: vec![1, 2] },
            ToAgent::Cancelled { task: TaskId(4), report: CancelReport::Ended, by: PlaceId(5) },
            ToAgent::Survey(9),
            ToAgent::Output { id: ID, output: output() },
            ToAgent::NotFollowed(TaskId(4), PlaceId(5)),
        ];
        for message in to_agent {
            let mut body = Vec::new();
            message.put(&mut body);
            assert_eq!(ToAgent::decode(&body), Ok(message.clone()));
            assert!(ToAgent::decode(&body[..body.len() - 1]).is_err(), "{message:?}");
        }
        let claim = ClaimedBy { node_id: "b".into(), attempt: 2, since_unix_nano: 3 };
        let from_agent = [
            FromAgent::Stored(TaskId(1)),
            FromAgent::NotStored(TaskId(1), Refusal::new(RefusalCode::QueueRefused, "no\n(hint: yes)")),
            FromAgent::Ended(TaskId(1), b"end".into()),
            FromAgent::Lost { task: TaskId(1), attempt: 2, lost: Vec::new(), why: "gone".into(), end: None },
            FromAgent::Lost { task: TaskId(1), attempt: 2, lost: Vec::new(), why: "".into(), end: Some(vec![1]) },
            FromAgent::Claimed(TaskId(3), claim.clone()),
            FromAgent::LetGo(TaskId(3)),
            FromAgent::BundleClaimed(TaskId(3), Some(claim.clone())),
            FromAgent::BundleClaimed(TaskId(3), None),
            FromAgent::Import(Import {
                id: ID,
                token: b"token".into(),
                attempt: 2,
                failures: 1,
                crashes: 0,
                lost: vec![LostElsewhere { attempt: 1, node_id: "b".into(), since_unix_nano: 3, until_unix_nano: 4 }],
                tasks: vec![
                    ImportedTask { place: 0, submitted_unix_nano: 9, envelope: b"e".into() },
                    ImportedTask { place: 2, submitted_unix_nano: 8, envelope: b"f".into() },
                ],
                problem: Some("gone".into()),
            }),
            FromAgent::Output { task: TaskId(3), place: PlaceId(1), node_id: "b".into(), output: output() },
            FromAgent::Stop(ID, Stop { grace_ns: None }),
            FromAgent::Superseded(ID),
            FromAgent::CutOff { ended: 2, after_ms: 10_000 },
            FromAgent::HeardAgain,
            FromAgent::HasLetGo,
            FromAgent::Settled(ID, 3),
            FromAgent::GiveBack(ID),
            FromAgent::Engine { is_reachable: true, text: "nats-server 2.9.10".into() },
            FromAgent::Unanswered(vec![TaskId(1), TaskId(3)]),
            FromAgent::Copied("a".into()),
            FromAgent::LostWrites { told: 9, now: 1 },
            FromAgent::Cancel { task: TaskId(4), stop: Stop::default(), by: PlaceId(5) },
            FromAgent::Log("line".into()),
            FromAgent::PutAside {
                queue: "q".into(),
                name: "-".into(),
                reason: "its subject has no id of a task".into(),
                problem: Some("it is full".into()),
            },
            FromAgent::Surveyed { number: 9, cluster: Err("it is away".into()) },
            FromAgent::Surveyed { number: 9, cluster: Ok(Box::new(cluster())) },
        ];
        let found = [
            Found::Unreachable,
            Found::Unknown,
            Found::Waiting { queue: "q".into(), attempts: 1 },
            Found::Claimed(claim.clone()),
            Found::Ended { end: b"end".to_vec(), loss: Some("gone".into()) },
            Found::Ended { end: b"end".to_vec(), loss: None },
            Found::Lost { attempt: 1, why: "gone".into() },
        ];
        let found = found.map(|found| FromAgent::Found { number: 8, found });
        let reports = CancelReport::ALL.map(CancelAnswer::Report);
        let answers = reports.into_iter().chain([CancelAnswer::Unreachable, CancelAnswer::InBundle]);
        let answers = answers.map(|answer| FromAgent::CancelAnswered { number: 8, answer });
        for message in from_agent.into_iter().chain(found).chain(answers) {
            let mut body = Vec::new();
            message.put(&mut body);
            assert_eq!(FromAgent::decode(&body), Ok(message));
        }
    }

    #[test]
    fn an_end_survives_the_way_to_another_node() {
        let end = SharedEnd {
            attempt: 2,
            outcome: Outcome::Failed(Failure::Cancelled),
            digest: None,
            started_unix_nano: Some(5),
            ended_unix_nano: 6,
            past: Vec::new(),
            node_id: "b".into(),
            worker: Some((WorkerId(3), 77)),
            written: Some(Written { from_attempt: 2, size: OutputSize { bytes: 7, lines: 1 } }),
        };
        for end in [SharedEnd { outcome: Outcome::Returned(vec![1]), started_unix_nano: None, ..end.clone() }, end] {
            assert_eq!(SharedEnd::decode(&end.encode()), Ok(end));
        }
    }

    #[test]
    fn an_end_names_a_file_for_its_own_head_and_a_digest_for_other_nodes() {
        let stored = |name: &str| Outcome::Stored(tracer_core::Stored { name: name.into(), bytes: 1 });
        let end = SharedEnd {
            attempt: 1,
            outcome: stored("7-1"),
            digest: None,
            started_unix_nano: None,
            ended_unix_nano: 6,
            past: Vec::new(),
            node_id: String::new(),
            worker: None,
            written: None,
        };
        assert_eq!(SharedEnd::decode(&end.encode()), Ok(end.clone()));
        let without = SharedEnd { outcome: stored(""), ..end };
        assert!(SharedEnd::decode(&without.encode()).is_err(), "nobody could find it");
        let travelling = SharedEnd { digest: Some([7; 32]), ..without };
        assert_eq!(SharedEnd::decode(&travelling.encode()), Ok(travelling));
    }

    proptest! {
        #[test]
        fn bytes_of_nobody_are_refused_and_never_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = (ToAgent::decode(&bytes), FromAgent::decode(&bytes), SharedEnd::decode(&bytes));
        }
    }
}
