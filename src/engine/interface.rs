//! Needs of the agent, as an interface that says nothing of any particular engine.
//!
//! The agent's core returns [`Request`]s; whoever runs it carries them out, in any order and several at a time, and hands the [`Answer`] back under the
//! number of the request. Each may be answered with [`Answer::Unreachable`], after which nothing is known: it may have been done, it may still be done,
//! or never. Deliveries and changes of records come as inputs of their own.

use std::sync::Arc;

use std::fmt;

use tracer_core::queue::QueueBound;
use tracer_core::{ClusterTaskId, PlaceId, Stored};
use tracer_ipc::protocol::Digest;

/// A message that was delivered, for whoever acknowledges it. It means the same in every process of the node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Handle(pub Arc<str>);

/// A part of a queue. Nodes take from the first before the second, so that a single task does not wait for all of a large job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Single tasks.
    First,
    /// Tasks of jobs that have many.
    Second,
    /// Commands. Nodes that do not run any never take from it.
    Commands,
}

impl Tier {
    /// Returns the parts that a node serves, which runs commands or does not.
    pub fn served(shared_commands: bool) -> &'static [Tier] {
        if shared_commands { &[Tier::First, Tier::Second, Tier::Commands] } else { &[Tier::First, Tier::Second] }
    }
}

/// Queues that are served, or are to be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queues {
    /// Their names.
    pub names: Vec<String>,
    /// True if their parts for commands are meant too.
    pub shared_commands: bool,
}

impl Queues {
    /// Returns all parts of all of them.
    pub fn parts(&self) -> impl Iterator<Item = (&str, Tier)> {
        let parts = Tier::served(self.shared_commands);
        self.names.iter().flat_map(move |queue| parts.iter().map(move |tier| (&**queue, *tier)))
    }
}

/// The key of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordKey {
    /// The record of a task.
    Task(ClusterTaskId),
    /// The record of the bundle that begins with a task.
    Bundle(ClusterTaskId),
}

/// The message of a task, or of a bundle, as a queue has delivered it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The queue that it came from.
    pub queue: String,
    /// For acknowledgements. Every delivery of a message has one of its own.
    pub handle: Handle,
    /// The task, or the first one of the bundle.
    pub id: ClusterTaskId,
    /// The message.
    pub message: Vec<u8>,
    /// True if it was delivered before, perhaps to somebody else.
    pub is_again: bool,
}

/// A message of a queue that nobody can run, or that this node is not to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dead {
    /// The queue that it came from.
    pub queue: String,
    /// For its acknowledgement.
    pub handle: Handle,
    /// Name of it: the id of its task or of the first of its bundle; or the end of its subject, if that is no id.
    pub name: String,
    /// The message.
    pub message: Vec<u8>,
    /// Reason for it, as a clause.
    pub reason: String,
}

/// A value of a task in the engine, under its digest. Each attempt has values of its own, and those of the submission are of attempt 0: who was thought dead
/// and comes back does not write over what another one has written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ValueKey {
    /// The task.
    pub id: ClusterTaskId,
    /// The attempt whose result it is; 0 for an argument.
    pub attempt: u32,
    /// Its SHA-256.
    pub digest: Digest,
    /// Length in bytes.
    pub bytes: u64,
}

/// Source of a value that is to be put into the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueSource {
    /// A file among the values of this place.
    File(Stored),
    /// The value itself.
    Bytes(Vec<u8>),
}

/// Reason why a value could not be got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueError {
    /// The engine does not have it.
    Missing,
    /// Another one is in the engine under its name, as a clause.
    Damaged(String),
    /// This machine cannot write it, as a clause.
    Unwritable(String),
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueError::Missing => f.write_str("the engine does not have it any more"),
            ValueError::Damaged(how) => write!(f, "it is damaged in the engine: {how}"),
            ValueError::Unwritable(why) => write!(f, "this node cannot write it: {why}"),
        }
    }
}

/// An idempotency key of a task, which holds for the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// The key.
    pub name: String,
    /// Number that stands for what the task runs: another one is another task.
    pub fingerprint: u64,
}

/// A request to the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Put the message of a task or a bundle into a queue, unless there is one of it already. One that the engine has and delivers no more is put there anew.
    /// Answered by [`Answer::Put`].
    Put {
        /// The queue.
        queue: String,
        /// The part of it.
        tier: Tier,
        /// The task, or the first one of the bundle.
        id: ClusterTaskId,
        /// Its message.
        message: Vec<u8>,
        /// Slots and resources that it asks for, if they are to be compared with what tasks of the queue may ask for.
        asks_for: Option<QueueBound>,
        /// True if nobody has begun it for long, so that a message which was delivered has got lost on its way, or is never delivered again.
        is_overdue: bool,
    },
    /// Enter an idempotency key, unless it is there. Answered by [`Answer::Key`].
    EnterKey {
        /// The key.
        key: String,
        /// Its entry.
        entry: Vec<u8>,
    },
    /// Say whether a queue, in any part of it, has the message of a task. One that the engine delivers no more is put there anew. Answered by
    /// [`Answer::Has`].
    Has {
        /// The queue.
        queue: String,
        /// The task.
        id: ClusterTaskId,
        /// True if nobody has begun it for long, as in [`Request::Put`].
        is_overdue: bool,
    },
    /// Deliver up to so many messages of a queue. Answered by [`Answer::Pulled`] when no more will come of it.
    Pull {
        /// The queue.
        queue: String,
        /// The part of it.
        tier: Tier,
        /// The most messages.
        count: usize,
        /// True if those count too that come within a while; else only those that are there.
        waits: bool,
    },
    /// Say that the holder of a message goes on with it. Not answered.
    Keep(Handle),
    /// End the pulls that go on, and begin no other: what comes from now on is for other nodes. Not answered.
    StopPulling,
    /// Have a message delivered again, at once. Not answered.
    GiveBack(Handle),
    /// Have a message delivered again, after a second. Not answered.
    GiveBackLater(Handle),
    /// Read what tasks of this node's queues may ask for. Not answered: it comes as an input of its own.
    ReadBounds,
    /// Read the heartbeats of all nodes. Not answered: they come as an input of their own.
    ReadNodes,
    /// Remove a message. Not answered: it may come again.
    Done(Handle),
    /// Keep a message with the reason where people find it, and remove it from its queue. Not answered: it may come again.
    PutAside(Dead),
    /// Read a record. Answered by [`Answer::Record`].
    Read(RecordKey),
    /// Write a record, if its revision is still this one; none if there is to be no record yet. Answered by [`Answer::Swapped`].
    Swap {
        /// Its key.
        key: RecordKey,
        /// The revision that was read.
        revision: Option<u64>,
        /// The new record.
        record: Vec<u8>,
    },
    /// Write this node's heartbeat. Not answered.
    Beat(Vec<u8>),
    /// Read the heartbeats of another node and of this one. Answered by [`Answer::Heartbeats`].
    ReadHeartbeats(PlaceId),
    /// Tell another node something, which may be lost. Not answered.
    Tell(PlaceId, Vec<u8>),
    /// Put a value into the engine, unless it is there. Answered by [`Answer::ValuePut`].
    PutValue {
        /// The task.
        id: ClusterTaskId,
        /// The attempt whose result it is; 0 for an argument.
        attempt: u32,
        /// The value.
        source: ValueSource,
    },
    /// Get a value out of the engine, into a file among the values of this place. Answered by [`Answer::ValueGot`].
    GetValue(ValueKey),
    /// Say which queue has the message of a task, by itself or in a bundle, if any has. Answered by [`Answer::InQueue`].
    FindMessage(ClusterTaskId),
    /// Remove all values of a task. Not answered: what is left goes by age.
    DropValues(ClusterTaskId),
}

/// Reason why a message is not in its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutError {
    /// A queue that does not exist.
    NoQueue,
    /// The queue of this name takes no commands: no node that runs some has ever served it.
    NoCommands(String),
    /// The queue takes no more.
    Full,
    /// A task of the queue may not ask for so much, in words.
    AsksForTooMuch(String),
    /// Anything else that will not change by itself, in words.
    Refused(String),
}

impl fmt::Display for PutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PutError::NoQueue => f.write_str("there is no such queue"),
            PutError::NoCommands(queue) => write!(f, "the queue `{queue}` takes no commands"),
            PutError::Full => f.write_str("it is full"),
            PutError::AsksForTooMuch(reason) | PutError::Refused(reason) => f.write_str(reason),
        }
    }
}

/// Something that is kept under a key, with its stamps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Number of the write that it is from.
    pub revision: u64,
    /// Time of that write, in nanoseconds of the engine's clock.
    pub stamp_ns: u64,
    /// Bytes that were written.
    pub value: Vec<u8>,
}

/// Place of a task's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InQueue {
    /// The queue.
    pub queue: String,
    /// True if the message is that of a bundle.
    pub is_bundle: bool,
}

/// An answer of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing is known.
    Unreachable,
    /// The message is in the queue, or was there already; or it is not.
    Put(Result<(), PutError>),
    /// The entry that an idempotency key has now; or why it has none.
    Key(Result<Vec<u8>, PutError>),
    /// True if the message is in the queue.
    Has(bool),
    /// No more will come of a pull.
    Pulled,
    /// The record, if there is one.
    Record(Option<Entry>),
    /// The revision of the new record; none if another one was there.
    Swapped(Option<u64>),
    /// Reason why the new record is more than the engine takes, with what mends it.
    TooLarge(String),
    /// The heartbeats of the node that was asked for, and of this one.
    Heartbeats {
        /// Of the other one, if it has any.
        of_other: Option<Entry>,
        /// This node's own.
        own: Option<Entry>,
    },
    /// Place of the message, if any queue has it.
    InQueue(Option<InQueue>),
    /// The digest of a value that is in the engine now; or why it is not.
    ValuePut(Result<Digest, PutError>),
    /// The name of the file that a value is in now; or why there is none.
    ValueGot(Result<String, ValueError>),
}
