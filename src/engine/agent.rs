//! Decisions of the agent: functions over its state that return effects. It reads no clock and knows no socket.
//!
//! The agent has two sides. As *origin* it puts tasks of its head into queues, and tells the head how they ended. As *holder* it pulls tasks for the head's free
//! slots, claims them, and brings their outcomes into their records. Both change records in one way: an [`Event`] is brought about by reading the record
//! unless it is known, asking [`change`] what it becomes, and swapping; who loses a race reads again, and what was unreachable is tried again once
//! the engine is there. For each record one event is brought about at a time.
//!
//! Large values travel beside messages and records. An argument is in the engine before its message is, and in a file of the holder before the head hears of the
//! task; a result is in the engine before the record names it, and in a file of the origin before its head hears of the end. The origin has them removed
//! when its head has noted the end.
//!
//! Nothing in here has to outlive the process. An agent that was started again is told by its head which tasks are open both ways, and goes on: a
//! [token](Import::token) says all that is needed of an import.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tracer_core::codec::{Put, Take, WireError};
use tracer_core::count::Size;
use tracer_core::paged_map::PagedMap;
use tracer_core::queue::QueueBound;
use tracer_core::task::{Outcome, TaskId};
use tracer_core::{ClusterTaskId, PlaceId, Stored};
use tracer_ipc::protocol::{
    CancelAnswer, CancelReport, ClaimedBy, Digest, Found, OnPartition, OpenTasks, SharedEnd, SharedOutput, Stop,
};

use crate::bundle::BundleRecord;
use crate::clock::ClockOffset;
use crate::interface::{
    Answer, Dead, Delivery, Entry, Handle, Key, PutError, RecordKey, Request, Tier, ValueError, ValueKey, ValueSource,
};
use crate::message::{BundleMessage, Heartbeat, TaskMessage, Told, value_of, with_files, without_value};
use crate::record::{Claim, End, Event, Holder, Mark, Record, Refusal, Sight, Terms, change};

mod bundles;
mod cancels;
mod cut_off;
mod demands;
mod held;
mod keys;
mod modules;
mod output;
mod places;
mod questions;
mod quiet;
mod run_times;
mod superseded;
mod todo;
mod trust;

pub(crate) use bundles::BUNDLE_WAIT_NS;
use bundles::{BundleChange, HeldBundle, SharedBundle};
use cancels::Cancel;
use cut_off::Hearing;
use demands::Demands;
use held::HeldTasks;
use keys::SharedKey;
use modules::ModulesKnown;
use questions::Asker;
use run_times::{Function, RunTimes, Window};
use todo::Todo;

/// Intervals of redelivery after which a task that nothing was heard of is looked at.
const LOOK_AGAIN: u64 = 4;
/// Tasks that are looked at in one interval of heartbeats.
const LOOKS: usize = 64;
/// Parts of a queue in the order of its turns: the one that is taken from first in each. A node that runs no commands takes from the first part then.
const TURNS: [Tier; 4] = [Tier::First, Tier::Commands, Tier::First, Tier::Second];
/// Tries to get a value, one in each interval of heartbeats, before it counts as lost.
const TRIES: u32 = 10;
/// The most records of which it is said that they cannot be read.
const UNREAD: usize = 1000;
/// Records that are being changed beyond which no other node's question is looked into. It asks again.
const QUESTIONS: usize = 10_000;

/// Settings of an agent, which do not change while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// This node, and the life of its head.
    pub own: Holder,
    /// Its name, as spans have it.
    pub node_id: String,
    /// Queues that it pulls from, each with the most tasks of it at a time; empty for a node that only submits.
    pub queues: Vec<(String, usize)>,
    /// True if its head runs commands of these queues too.
    pub shared_commands: bool,
    /// Interval after which the engine delivers again what nobody acknowledges, in nanoseconds.
    pub ack_wait_ns: u64,
    /// Interval at which what is held is said to be, and heartbeats are written, in nanoseconds.
    pub keep_ns: u64,
    /// Time that a submission may wait for an engine that cannot be reached, in nanoseconds.
    pub engine_wait_ns: u64,
    /// The most bytes of a value that is got from the engine.
    pub max_value: u64,
    /// Public part of the key that what it publishes is signed with; none if that is not signed.
    pub signs_as: Option<String>,
    /// Fate of what its head runs of queues when the engine does not hear this node.
    pub on_partition: OnPartition,
}

/// A task that the head has accepted for a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// The queue.
    pub queue: String,
    /// The part of it.
    pub tier: Tier,
    /// Its [message](TaskMessage), without the digests of its values.
    pub message: Vec<u8>,
    /// Arguments that are to go into the engine, in the order of the envelope's inputs.
    pub values: Vec<ValueSource>,
    /// Its idempotency key, if it has one.
    pub key: Option<Key>,
    /// Slots and resources that it asks for, if that is more than one slot.
    pub asks_for: Option<QueueBound>,
    /// True if no agent before this one was told of it.
    pub is_new: bool,
    /// True if an agent has said that the engine has it.
    pub is_stored: bool,
}

/// Short tasks that the head has accepted for a queue, and that go there as one bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharingBundle {
    /// The queue.
    pub queue: String,
    /// See [`Terms`].
    pub crash_limit: u32,
    /// Number of tasks that it was made of.
    pub count: u32,
    /// Time that one of them is expected to run, in nanoseconds.
    pub run_ns: u64,
    /// The tasks that have not ended.
    pub tasks: OpenTasks,
    /// True if no agent before this one was told of it.
    pub is_new: bool,
    /// True if an agent has said that the engine has it.
    pub is_stored: bool,
}

/// A task of another node that this one's head runs, or of this very node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// Everything that an agent has to know to bring its end about. The head gives it back as it is.
    pub token: Token,
    /// The claim: the attempt that is to begin, and what was before it. That of a bundle is of all its tasks.
    pub claim: Arc<Claim>,
    /// Time at which its origin accepted it, by that machine's clock.
    pub submitted_unix_nano: u64,
    /// Its envelope, with the names of the files that its large arguments are in.
    pub envelope: Vec<u8>,
    /// Reason why it cannot be run, if so.
    pub problem: Option<String>,
}

/// Everything that an agent has to know of a task that its head runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The task.
    pub id: ClusterTaskId,
    /// The queue that it came from.
    pub queue: Arc<str>,
    /// The delivery that is acknowledged at its end; empty for a task that this node has taken back.
    pub handle: Handle,
    /// See [`Terms`].
    pub terms: Terms,
    /// The first task of its bundle, and the number of tasks of that; none if it came by itself.
    pub bundle: Option<(TaskId, u32)>,
}

impl Token {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + self.queue.len() + self.handle.0.len());
        out.put_u64(self.id.place.0);
        out.put_u64(self.id.task.0);
        out.put_str(&self.queue);
        out.put_str(&self.handle.0);
        self.terms.put(&mut out);
        let (first, count) = self.bundle.unwrap_or((TaskId(0), 0));
        out.put_u64(first.0);
        out.put_u32(count);
        out
    }

    /// Takes a token apart.
    pub fn decode(bytes: &[u8]) -> Result<Token, WireError> {
        let mut take = Take::new(bytes);
        let id = ClusterTaskId { place: PlaceId(take.u64()?), task: TaskId(take.u64()?) };
        let (queue, handle) = (take.str()?.into(), Handle(take.str()?.into()));
        let terms = Terms::take(&mut take)?;
        let bundle = Some((TaskId(take.u64()?), take.u32()?)).filter(|(_, count)| *count > 0);
        take.finish()?;
        Ok(Token { id, queue, handle, terms, bundle })
    }
}

/// An effect of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Ask the engine, under a number.
    Ask(u64, Request),
    /// Tell the head something.
    Tell(ToHead),
    /// Remove a file from the values of this place: its value came too late.
    RemoveFile(String),
    /// Send an [`OutputMessage`](crate::output::OutputMessage) to the node of a place, before what is asked later; or drop it, if too much is on the way.
    SendOutput(PlaceId, Vec<u8>),
}

/// A message of the agent to its head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToHead {
    /// The engine has this task, or the bundle that begins with it: it is accepted.
    Stored(TaskId),
    /// The engine does not have this task, or the bundle that begins with it, and never will.
    NotStored(TaskId, NotStored),
    /// A task of this head has ended.
    Ended(TaskId, End),
    /// The engine has lost a task of this head that it had acknowledged. Nobody knows whether it was begun, and it must not be started twice.
    LostWrites(TaskId),
    /// A node has a task of this head.
    Claimed(TaskId, ClaimedBy),
    /// A node has all of the bundle that begins with this task; none if its tasks go on by themselves from now on.
    BundleClaimed(TaskId, Option<ClaimedBy>),
    /// The node that had a task of this head has let go of it.
    LetGo(TaskId),
    /// Run this.
    Import(Import),
    /// An attempt of a task that the head runs is to end, because its origin wants that.
    Stop(ClusterTaskId, Stop),
    /// An attempt of a task that the head runs is another node's by now, or may be: it is to end.
    Superseded(ClusterTaskId),
    /// The engine has not heard this node for as long as its claims last; the number of tasks that the head is told to end for that.
    CutOff(u32),
    /// The engine hears this node again.
    HeardAgain,
    /// Give an import back that has not begun: other nodes may begin it at once.
    GiveBack(ClusterTaskId),
    /// The end of an import is in its record, or counts for nothing: it need not be remembered any more.
    Settled(ClusterTaskId),
    /// The answer to a question of somebody.
    Found(u64, Found),
    /// Somebody at the node of this place wants a task of this head to end.
    Cancel(TaskId, Stop, PlaceId),
    /// The answer to somebody here who wants a task of another node to end.
    CancelAnswered(u64, CancelAnswer),
    /// A task of this head has written something.
    Output {
        /// The task.
        task: TaskId,
        /// Place of the node that runs it.
        place: PlaceId,
        /// Its name, as spans have it.
        node_id: String,
        /// The piece.
        output: SharedOutput,
    },
    /// Something for the log.
    Log(String),
}

/// Reason why a task is in no queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotStored {
    /// The engine says so.
    Put(PutError),
    /// The engine could not be reached for too long.
    Unreachable,
    /// Its idempotency key names this other task.
    KeyTaken(String, ClusterTaskId),
}

/// A task that this node's head has accepted for a queue.
#[derive(Debug)]
struct Share {
    queue: Arc<str>,
    tier: Tier,
    message: Vec<u8>,
    terms: Terms,
    /// Its large arguments, each with its digest once the engine has it.
    values: Vec<(ValueSource, Option<Digest>)>,
    asks_for: Option<Box<QueueBound>>,
    /// Its end, while the result is on the way.
    ending: Option<Box<Ending>>,
    /// Time at which it came, in nanoseconds of the monotonic clock.
    since_ns: u64,
    /// True once a request to put it may have reached the engine.
    is_sent: bool,
    /// True once the engine is known to have it.
    is_stored: bool,
    /// True if the engine may have it since before this agent, so that its record is looked at first.
    is_old: bool,
    /// True if it was put before without an answer, so that the engine may have it whatever it says now.
    was_tried: bool,
    /// True while a request to put it, or to read its record, is on the way.
    is_asked: bool,
    /// Time at which it was looked at last, in nanoseconds of the monotonic clock.
    looked_ns: u64,
    /// The outcome that it is to have if nobody has begun it, and how it is to end where it runs if it is, once its origin wants to end it.
    withdrawn: Option<(Vec<u8>, Option<Stop>)>,
    /// Set while the head wants to run it itself if nobody has begun it: since when, in nanoseconds since the Unix epoch.
    taken_back: Option<u64>,
    key: Option<Box<SharedKey>>,
    /// The first task of the bundle that it is in; none if it goes by itself.
    bundle: Option<TaskId>,
    /// True once the record of its bundle is settled, and what that says of it: it goes on by itself.
    is_apart: bool,
    base: Option<Box<Record>>,
}

impl Share {
    fn new(queue: Arc<str>, tier: Tier, terms: Terms, now_ns: u64) -> Share {
        Share {
            queue,
            tier,
            message: Vec::new(),
            terms,
            values: Vec::new(),
            asks_for: None,
            ending: None,
            since_ns: now_ns,
            is_sent: false,
            is_stored: false,
            is_old: false,
            was_tried: false,
            is_asked: false,
            looked_ns: now_ns,
            withdrawn: None,
            taken_back: None,
            key: None,
            bundle: None,
            is_apart: false,
            base: None,
        }
    }
}

/// The end of a task of this node whose result is to be got.
#[derive(Debug)]
struct Ending {
    end: End,
    shared: SharedEnd,
    key: ValueKey,
    tries: u32,
    is_asked: bool,
}

/// A claim whose arguments are to be got.
#[derive(Debug)]
struct Fetch {
    claim: Claim,
    values: Vec<ValueKey>,
    /// Files of those that are there, in the same order.
    files: Vec<String>,
    tries: u32,
    is_asked: bool,
}

/// A result that is to go into the engine before the record names it.
#[derive(Debug)]
struct Giving {
    attempt: u32,
    shared: SharedEnd,
    stored: Stored,
    is_asked: bool,
}

/// A message that this node has, whose task it claims or runs.
#[derive(Debug)]
struct Held {
    queue: Arc<str>,
    handle: Handle,
    terms: Terms,
    /// Its message, until the head has it.
    message: Option<Vec<u8>>,
    /// The attempt that this node is at, once the head has it.
    attempt: Option<u32>,
    /// Slots that it takes.
    slots: usize,
    /// Its function, if its run time is measured here.
    function: Option<Function>,
    /// True if the head has it because it is short, whether or not a slot was free.
    is_short: bool,
    /// Time at which that was looked at last, in nanoseconds of the monotonic clock.
    seen_ns: Option<u64>,
    /// The claim, while its arguments are on the way.
    fetch: Option<Box<Fetch>>,
    /// True if it is one of this node that was taken back: it runs in a worker that waits for it, and takes no slot of its queue.
    is_taken_back: bool,
    /// The bundle that it came in, by its first task.
    bundle: Option<ClusterTaskId>,
    /// State of it as its bundle says, as long as there is no record of its own.
    base: Option<Box<Record>>,
    /// True once its origin has said that nobody follows its output.
    is_not_followed: bool,
}

impl Held {
    fn new(queue: &Arc<str>, handle: &Handle, terms: Terms) -> Held {
        Held {
            queue: queue.clone(),
            handle: handle.clone(),
            terms,
            message: None,
            attempt: None,
            slots: 1,
            function: None,
            is_short: false,
            seen_ns: None,
            fetch: None,
            // What is taken back came with no delivery.
            is_taken_back: handle.0.is_empty(),
            bundle: None,
            base: None,
            is_not_followed: false,
        }
    }
}

/// A record, and what is to be brought about in it.
#[derive(Debug, Default)]
struct Change {
    todo: Todo<Event>,
    /// The record as it was read or written last, with its revision and its stamp; none if it is not known.
    known: Option<Known>,
    /// True while a request is on the way.
    is_asked: bool,
    /// True if the heartbeats of its holder were looked at since it was read.
    sight: Option<Sight>,
}

/// Pulls from a queue.
#[derive(Debug, Default)]
struct Pulling {
    /// The pulls that go on, each with whether it waits.
    going: Vec<(Tier, bool)>,
    /// True if one part was looked into, and had less than there was room for.
    has_looked: bool,
    /// Number of the next turn among [`TURNS`].
    turn: usize,
}

#[derive(Clone, Debug)]
struct Known {
    revision: Option<u64>,
    record: Option<Record>,
    stamp_ns: u64,
}

/// Returns a claim as the head is told of it.
fn claimed_by(claim: Claim) -> ClaimedBy {
    let Mark { node_id, unix_nano } = claim.mark;
    ClaimedBy { node_id, attempt: claim.attempt, since_unix_nano: unix_nano }
}

/// Returns the queue of a share.
fn share_queue(shares: &PagedMap<TaskId, Box<Share>>, task: TaskId) -> String {
    shares.get(&task).map(|share| share.queue.to_string()).unwrap_or_default()
}

/// Purpose of a request.
#[derive(Debug)]
enum Asked {
    Put(TaskId),
    /// The task that the idempotency key of a share names.
    Key(TaskId),
    /// The record of a share that may be in the engine.
    Look(TaskId),
    /// Presence of the message of a share that must not be started twice and has no record.
    Has(TaskId),
    /// The record once more, of one that has no message either.
    LookAgain(TaskId),
    Read(ClusterTaskId),
    Swap(ClusterTaskId, Option<Record>),
    Sight(ClusterTaskId),
    PutBundle(TaskId),
    LookAtBundle(TaskId),
    ReadBundle(ClusterTaskId),
    SwapBundle(ClusterTaskId, Box<BundleRecord>),
    BundleSight(ClusterTaskId),
    /// The record of what the head runs, which may be another node's by now.
    IsSuperseded(RecordKey),
    Pull(String, Tier, bool),
    /// A large argument of a share, by its place among them.
    PutArgument(TaskId, usize),
    /// A large argument of a claim.
    GetArgument(ClusterTaskId, ValueKey),
    /// The result of this attempt.
    PutResult(ClusterTaskId, u32),
    GetResult(TaskId, ValueKey),
    /// The record of a task that somebody asks for.
    Find(Asker, ClusterTaskId),
    /// The record of the bundle in which the task that somebody asks for would have this place.
    FindInBundle(Asker, ClusterTaskId, u32),
    /// The queue of a task that somebody asks for, with the attempts that were begun.
    FindMessage(Asker, u32),
    /// The result that somebody asks for.
    FindValue(Asker, Box<SharedEnd>, u64),
}

/// The state of an agent.
#[derive(Debug)]
pub struct Agent {
    settings: Settings,
    shares: PagedMap<TaskId, Box<Share>>,
    /// Tasks of this node that are others, by their idempotency keys; and the other way round.
    follows: BTreeMap<TaskId, ClusterTaskId>,
    followed: BTreeMap<ClusterTaskId, TaskId>,
    held: HeldTasks,
    run_times: RunTimes,
    ahead: Window,
    changes: PagedMap<ClusterTaskId, Box<Change>>,
    /// Bundles of this node that have tasks that have not ended, by their first tasks.
    shared_bundles: BTreeMap<TaskId, SharedBundle>,
    /// Bundles whose messages this node has, by their first tasks. Their tasks are held too.
    bundles: BTreeMap<ClusterTaskId, HeldBundle>,
    bundle_changes: BTreeMap<ClusterTaskId, BundleChange>,
    /// True if the next tick is to come soon, and was not said to: a bundle or a short task has come, of which it is to be seen whether it is as short as was
    /// measured, or a holder is about to count as silent.
    is_due_soon: bool,
    /// True if what was taken ahead of free slots was neither a bundle nor known to be short, or was given back: nothing is until a slot is free.
    is_full_of_singles: bool,
    /// Results of imports that are on their way into the engine.
    giving: BTreeMap<ClusterTaskId, Giving>,
    /// Tasks of this node that the engine may have values of.
    with_values: BTreeSet<TaskId>,
    /// Requests on the way.
    asked: BTreeMap<u64, Asked>,
    next_request: u64,
    /// Pulls that go on, by queue.
    pulling: BTreeMap<String, Pulling>,
    /// Free slots of the head, and imports that it had been told of when it said so.
    free: usize,
    slots: usize,
    told_then: u64,
    /// Imports that the head was told of.
    told: u64,
    demands: Demands,
    modules: ModulesKnown,
    is_reachable: bool,
    hearing: Hearing,
    /// Since when the engine cannot be reached, by the monotonic clock.
    unreachable_since_ns: u64,
    next_beat_ns: u64,
    /// Time of the last tick, in nanoseconds of the monotonic clock.
    ticked_ns: u64,
    /// Offset of this node's clock, once it is measured.
    clock: Option<ClockOffset>,
    /// The task at which [`look_again`](Self::look_again) goes on; none to begin anew.
    looked_at_last: Option<TaskId>,
    is_stopping: bool,
    /// Requests to end tasks of other nodes, by the numbers of their questions.
    cancels: BTreeMap<u64, Cancel>,
    /// Records of which it was said that they cannot be read.
    unread: BTreeSet<RecordKey>,
    effects: Vec<Effect>,
}

impl Agent {
    /// Makes an agent that has not reached the engine yet.
    pub fn new(settings: Settings, now_ns: u64) -> Agent {
        Agent {
            hearing: Hearing::new(&settings, now_ns),
            settings,
            shares: PagedMap::default(),
            follows: BTreeMap::new(),
            followed: BTreeMap::new(),
            held: HeldTasks::default(),
            run_times: RunTimes::default(),
            ahead: Window::default(),
            changes: PagedMap::default(),
            shared_bundles: BTreeMap::new(),
            bundles: BTreeMap::new(),
            bundle_changes: BTreeMap::new(),
            is_due_soon: false,
            is_full_of_singles: false,
            giving: BTreeMap::new(),
            with_values: BTreeSet::new(),
            asked: BTreeMap::new(),
            next_request: 0,
            pulling: BTreeMap::new(),
            free: 0,
            slots: 0,
            told_then: 0,
            told: 0,
            demands: Demands::default(),
            modules: ModulesKnown::default(),
            is_reachable: false,
            unreachable_since_ns: now_ns,
            next_beat_ns: now_ns,
            ticked_ns: now_ns,
            clock: None,
            looked_at_last: None,
            is_stopping: false,
            cancels: BTreeMap::new(),
            unread: BTreeSet::new(),
            effects: Vec::new(),
        }
    }

    /// Notes the offset of this node's clock, which the next heartbeat says.
    pub fn on_clock(&mut self, clock: ClockOffset) {
        self.clock = Some(clock);
    }

    /// Takes the effects of what was told since the last time, in their order.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Returns how many tasks of this node are open in the engine, and how many messages this node has.
    pub fn counts(&self) -> (usize, usize) {
        (self.shares.len(), self.held.len())
    }

    /// Returns whether nothing is left to be brought about.
    pub fn is_settled(&self) -> bool {
        self.giving.is_empty()
            && self.changes.values().all(|change| change.todo.is_empty())
            && self.bundle_changes.values().all(BundleChange::is_settled)
    }

    /// Returns whether the next tick is to come within [`BUNDLE_WAIT_NS`], although it was not said so; once.
    #[cfg(feature = "nats")]
    pub(crate) fn take_due_soon(&mut self) -> bool {
        std::mem::take(&mut self.is_due_soon)
    }

    fn ask(&mut self, asked: Asked, request: Request) {
        let number = self.next_request;
        self.next_request += 1;
        self.asked.insert(number, asked);
        self.effects.push(Effect::Ask(number, request));
    }

    fn say(&mut self, request: Request) {
        if let Request::Keep(handle) | Request::GiveBack(handle) | Request::Done(handle) = &request
            && handle.0.is_empty()
        {
            // What this node has taken back was not delivered to it.
            return;
        }
        let number = self.next_request;
        self.next_request += 1;
        self.effects.push(Effect::Ask(number, request));
    }

    fn tell(&mut self, what: ToHead) {
        self.effects.push(Effect::Tell(what));
    }

    // ---- the engine comes and goes ------------------------------------------------------------------------------------

    /// Notes that the engine can be reached, from now on or again. Changes of records are watched already.
    pub fn on_reachable(&mut self, now_ns: u64) {
        self.is_reachable = true;
        self.next_beat_ns = now_ns;
        self.pulling.values_mut().for_each(|pulling| pulling.going.clear());
        self.asked.retain(|_, asked| !matches!(asked, Asked::Pull(..)));
        // What has happened meanwhile was told to nobody.
        self.look_at_all();
        self.look_for_superseded();
        self.on_tick(now_ns);
    }

    /// Notes that the engine has lost writes: it may have none of the tasks of this node.
    pub fn on_lost_writes(&mut self) {
        self.look_at_all();
    }

    /// Has every task looked at that may be in the engine.
    fn look_at_all(&mut self) {
        self.shares.values_mut().filter(|share| share.bundle.is_none()).for_each(|share| share.is_old |= share.is_sent);
        self.look_at_bundles();
    }

    /// Notes that the engine cannot be reached. Requests that are on the way are answered all the same.
    pub fn on_unreachable(&mut self, now_ns: u64) {
        if self.is_reachable {
            self.is_reachable = false;
            self.unreachable_since_ns = now_ns;
        }
    }

    /// Does what is due, and returns when to come again, in nanoseconds of the monotonic clock.
    pub fn on_tick(&mut self, now_ns: u64) -> u64 {
        self.end_if_cut_off(now_ns);
        let next_ns = self.go_on(now_ns);
        let next_ns = self.go_on_cancelling(now_ns).map_or(next_ns, |due_ns| next_ns.min(due_ns));
        self.hearing.lapse_ns().map_or(next_ns, |lapse_ns| next_ns.min(lapse_ns))
    }

    /// Does the rest of what is due, and returns when to come again for that.
    fn go_on(&mut self, now_ns: u64) -> u64 {
        let since_last_ns = now_ns.saturating_sub(std::mem::replace(&mut self.ticked_ns, now_ns));
        if self.is_reachable && since_last_ns >= self.settings.ack_wait_ns {
            // This process was stopped.
            self.look_for_superseded();
        }
        if !self.is_reachable {
            let since_ns = self.unreachable_since_ns;
            let limit_ns = self.settings.engine_wait_ns;
            let is_over = |share: &Share| {
                let waited_ns = now_ns.saturating_sub(since_ns.max(share.since_ns));
                share.bundle.is_none() && !share.is_sent && waited_ns >= limit_ns
            };
            let over: Vec<_> = self.shares.iter().filter(|(_, share)| is_over(share)).map(|(task, _)| task).collect();
            for task in over {
                self.remove_share(task);
                self.drop_values(task);
                self.tell(ToHead::NotStored(task, NotStored::Unreachable));
            }
            self.refuse_waiting_bundles(now_ns);
            return now_ns + self.settings.keep_ns.min(limit_ns.max(1));
        }
        if now_ns >= self.next_beat_ns {
            self.next_beat_ns = now_ns + self.settings.keep_ns;
            let alone = self.held.alone().map(|held| held.handle.clone());
            let handles: Vec<_> = alone.chain(self.kept_bundles()).collect();
            handles.into_iter().for_each(|handle| self.say(Request::Keep(handle)));
            let beat = Heartbeat {
                life: self.settings.own.life,
                node_id: self.settings.node_id.clone(),
                version: tracer_ipc::VERSION.into(),
                free: u32::try_from(self.room()).unwrap_or(u32::MAX),
                slots: u32::try_from(self.slots).unwrap_or(u32::MAX),
                queues: self.queues_that_fit(),
                shared_commands: self.settings.shared_commands,
                too_large: self.queues_too_large(),
                resources: self.demands.amounts(),
                modules: self.modules.own().clone(),
                clock: self.clock,
            };
            if self.modules.beat() {
                self.pull();
            }
            self.say(Request::Beat(beat.encode()));
            self.read_bounds_now_and_then();
            self.look_again(now_ns);
            self.look_at_followed();
            // What was not answered is asked again, and who has not heard is told again.
            for first in self.shared_bundles.keys().copied().collect::<Vec<_>>() {
                self.go_on_sharing_bundle(first);
            }
            for task in self.shares.keys().collect::<Vec<_>>() {
                self.go_on_sharing(task);
                self.go_on_withdrawing(task);
                self.go_on_taking_back(task);
                self.go_on_ending(task);
            }
            for id in self.giving.keys().copied().collect::<Vec<_>>() {
                self.go_on_giving(id);
            }
            for id in self.held.keys().collect::<Vec<_>>() {
                self.go_on_fetching(id);
            }
            for id in self.changes.keys().collect::<Vec<_>>() {
                self.go_on_changing(id);
            }
            for id in self.bundle_changes.keys().copied().collect::<Vec<_>>() {
                self.go_on_changing_bundle(id);
            }
        }
        let is_soon = self.hurry_bundles(now_ns) | self.ask_slow_back(now_ns);
        self.pull();
        if is_soon { self.next_beat_ns.min(now_ns + BUNDLE_WAIT_NS) } else { self.next_beat_ns }
    }

    // ---- the origin ---------------------------------------------------------------------------------------------------

    /// Takes a task that the head has accepted for a queue.
    pub fn on_share(&mut self, task: TaskId, sharing: Sharing, now_ns: u64) {
        let Sharing { queue, tier, message, values, key, asks_for, is_new, is_stored } = sharing;
        let Ok(TaskMessage { terms, .. }) = TaskMessage::decode(&message) else {
            let reason = "its message cannot be read".into();
            return self.tell(ToHead::NotStored(task, NotStored::Put(PutError::Refused(reason))));
        };
        let share = Share {
            message,
            values: values.into_iter().map(|value| (value, None)).collect(),
            asks_for: asks_for.map(Box::new),
            is_sent: !is_new,
            is_stored,
            is_old: !is_new,
            was_tried: !is_new,
            key: key.map(|key| Box::new(SharedKey::from(key))),
            ..Share::new(queue.into(), tier, terms, now_ns)
        };
        let has_values = !share.values.is_empty();
        self.shares.insert(task, Box::new(share));
        if has_values {
            self.note_values(task);
        }
        self.go_on_sharing(task);
    }

    /// Notes that the head has written down the end of a task: nobody needs its values any more.
    pub fn on_taken(&mut self, task: TaskId) {
        if !self.shares.contains_key(&task) {
            self.drop_values(task);
        }
    }

    /// Notes that the engine may have values of a task, which this node removes. Where a key names it others may want them later: they go by age.
    fn note_values(&mut self, task: TaskId) {
        if self.shares.get(&task).is_none_or(|share| share.key.is_none()) {
            self.with_values.insert(task);
        }
    }

    /// Has the values of a task removed, if there may be any.
    fn drop_values(&mut self, task: TaskId) {
        if self.with_values.remove(&task) {
            self.say(Request::DropValues(self.id(task)));
        }
    }

    /// Has tasks looked at that nothing was heard of for long, in turn: an engine that has lost writes may have lost a message, or take the
    /// acknowledgement of one for that of another.
    fn look_again(&mut self, now_ns: u64) {
        let interval_ns = LOOK_AGAIN * self.settings.ack_wait_ns;
        let next = self.looked_at_last.map_or(TaskId(0), |last| TaskId(last.0.saturating_add(1)));
        let due: Vec<_> = self.shares.range_from(next).map(|(task, _)| task).take(LOOKS).collect();
        self.looked_at_last = due.last().copied();
        for task in due {
            let Some(share) = self.shares.get_mut(&task) else { continue };
            if let Some(first) = share.bundle {
                self.look_at_bundle_again(first, now_ns, interval_ns);
            } else if now_ns.saturating_sub(share.looked_ns) >= interval_ns {
                (share.looked_ns, share.is_old) = (now_ns, true);
                self.puts_again(task);
            }
        }
    }

    /// Takes the next step of a task that the engine may not have.
    fn go_on_sharing(&mut self, task: TaskId) {
        let is_due = |share: &&mut Box<Share>| !share.is_asked && share.ending.is_none();
        if self.shares.get_mut(&task).filter(is_due).is_none() || !self.is_reachable || self.asks_for_key(task) {
            return;
        }
        let id = self.id(task);
        let Some(share) = self.shares.get_mut(&task) else { return };
        if share.is_old {
            share.is_asked = true;
            self.ask(Asked::Look(task), Request::Read(RecordKey::Task(id)));
        } else if !share.is_stored && share.bundle.is_none() {
            self.put(task);
        }
    }

    /// Puts a task into its queue, after its large arguments: where its message is there already, that changes nothing.
    fn put(&mut self, task: TaskId) {
        let id = self.id(task);
        let Some(share) = self.shares.get_mut(&task) else { return };
        share.is_asked = true;
        if let Some(at) = share.values.iter().position(|(_, digest)| digest.is_none()) {
            let source = share.values[at].0.clone();
            return self.ask(Asked::PutArgument(task, at), Request::PutValue { id, attempt: 0, source });
        }
        share.is_sent = true;
        let digests: Vec<u8> = share.values.iter().flat_map(|(_, digest)| digest.unwrap_or_default()).collect();
        // Nothing stands behind the envelope yet.
        let message = [&share.message[..], &digests].concat();
        let (queue, tier) = (share.queue.to_string(), share.tier);
        // What was accepted stays so.
        let asks_for = share.asks_for.as_deref().filter(|_| !share.was_tried && !share.is_stored).cloned();
        self.ask(Asked::Put(task), Request::Put { queue, tier, id, message, asks_for });
    }

    fn on_argument_put(&mut self, task: TaskId, at: usize, answer: Answer) {
        let Some(share) = self.shares.get_mut(&task) else {
            // It was refused or has ended meanwhile.
            self.with_values.insert(task);
            return self.drop_values(task);
        };
        share.is_asked = false;
        match answer {
            Answer::ValuePut(Ok(digest)) => {
                if let Some((_, known)) = share.values.get_mut(at) {
                    *known = Some(digest);
                }
                if share.ending.is_none() {
                    self.put(task);
                }
            }
            Answer::ValuePut(Err(why)) if !share.was_tried && !share.is_stored => self.refuse(task, why),
            // It is tried again.
            _ => {}
        }
    }

    /// Forgets a task of this node.
    fn remove_share(&mut self, task: TaskId) -> Option<Share> {
        let share = self.shares.remove(&task)?;
        self.follow_no_more(task);
        if let Some(first) = share.bundle {
            self.forget_shared(first, task);
        }
        Some(*share)
    }

    fn refuse(&mut self, task: TaskId, why: PutError) {
        self.remove_share(task);
        self.drop_values(task);
        self.tell(ToHead::NotStored(task, NotStored::Put(why)));
    }

    /// Ends a task of this head with an outcome, if nobody has begun it; else its holder is told to end it, if it `stops` there.
    pub fn on_withdraw(&mut self, task: TaskId, outcome: Vec<u8>, stops: Option<Stop>) {
        let Some(share) = self.shares.get(&task) else { return };
        let is_sent = share.bundle.map_or(share.is_sent, |first| self.is_bundle_sent(first));
        if !is_sent {
            self.remove_share(task);
            let end = End::Outcome { attempt: 0, holder: None, outcome };
            return self.tell(ToHead::Ended(task, end));
        }
        let Some(share) = self.shares.get_mut(&task).filter(|share| share.ending.is_none()) else { return };
        let before = share.withdrawn.as_ref().and_then(|(_, stops)| *stops);
        let stops = stops.into_iter().chain(before).reduce(Stop::sooner);
        share.withdrawn = Some((outcome, stops));
        self.go_on_withdrawing(task);
    }

    fn go_on_withdrawing(&mut self, task: TaskId) {
        let id = self.id(task);
        let share = self.shares.get(&task).filter(|share| share.ending.is_none());
        let Some(share) = share.filter(|share| share.withdrawn.is_some()) else { return };
        if let (Some(first), false) = (share.bundle, share.is_apart) {
            return self.withdraw_from_bundle(first);
        }
        let Some((outcome, _)) = share.withdrawn.clone() else { return };
        let change = self.changes.get_or_default(id);
        if !change.todo.iter().any(|event| matches!(event, Event::EndedUnbegun { .. })) {
            change.todo.push_back(Event::EndedUnbegun { outcome });
            change.known = change.known.take().filter(|_| change.is_asked);
        }
        self.go_on_changing(id);
    }

    /// Takes a task of this node back, unless somebody has begun it: the head is to run it in a worker that waits for it. The time is in nanoseconds since the
    /// Unix epoch.
    pub fn on_take_back(&mut self, task: TaskId, now_unix_nano: u64) {
        // One that is another node's is in its place in the queue.
        if let Some(share) = self.shares.get_mut(&task).filter(|_| !self.follows.contains_key(&task)) {
            share.taken_back = Some(now_unix_nano);
            self.go_on_taking_back(task);
        }
    }

    fn go_on_taking_back(&mut self, task: TaskId) {
        let id = self.id(task);
        let is_wanted = |share: &&Share| share.taken_back.is_some() && share.ending.is_none() && !self.is_stopping;
        let Some(share) = self.shares.get(&task).map(|share| &**share).filter(is_wanted) else { return };
        match share.bundle {
            // It goes on by itself once its bundle is settled, unless somebody has begun that.
            Some(first) if !share.is_apart => return self.withdraw_from_bundle(first),
            None if !share.is_sent => return,
            _ => {}
        }
        let terms = share.terms;
        // Its message is known once the engine has its arguments.
        let has_message = share.values.iter().all(|(_, digest)| digest.is_some());
        let Some(unix_nano) = share.taken_back.filter(|_| has_message) else { return };
        let change = self.changes.get_or_default(id);
        if !change.todo.iter().any(|event| matches!(event, Event::Withdrawn { .. })) {
            let mark = Mark { node_id: self.settings.node_id.clone(), unix_nano };
            change.todo.push_back(Event::Withdrawn { by: self.settings.own, mark, terms });
            change.known = change.known.take().filter(|_| change.is_asked);
        }
        self.go_on_changing(id);
    }

    /// Hands a task to the head that this node has taken back. Its message stays in the queue, and whoever it comes to finds the record.
    fn hold_own(&mut self, id: ClusterTaskId, claim: Claim) {
        let Some(share) = self.shares.get_mut(&id.task) else {
            let by = self.settings.own;
            return self.bring_about(id, Event::NotRun { by });
        };
        share.taken_back = None;
        let digests = share.values.iter().flat_map(|(_, digest)| digest.unwrap_or_default());
        let message = share.message.iter().copied().chain(digests).collect();
        let (queue, terms, bundle) = (share.queue.clone(), share.terms, share.bundle);
        let message = bundle.and_then(|first| self.message_from_bundle(first, id.task)).unwrap_or(message);
        let of_no_delivery = Handle("".into());
        let held = Held { message: Some(message), ..Held::new(&queue, &of_no_delivery, terms) };
        self.held.get_or_insert_with(id, || held);
        self.import(id, claim);
    }

    /// Notes that the record of a task or a bundle of this node has changed.
    pub fn on_record(&mut self, key: RecordKey, record: &[u8]) {
        let id = match key {
            RecordKey::Task(id) => id,
            RecordKey::Bundle(id) => return self.on_bundle_record(id, record),
        };
        let Some(task) = self.task_of(id) else { return };
        match Record::decode(record) {
            Ok(Record::Ended(end)) => self.on_ended(task, end),
            Ok(record) => {
                if self.shares.get(&task).is_none_or(|share| share.ending.is_some()) {
                    return;
                }
                self.note_stored(task);
                self.tell(match record {
                    Record::Claimed(claim) | Record::Suspected { claim, .. } => {
                        ToHead::Claimed(task, claimed_by(claim))
                    }
                    Record::GivenBack { .. } | Record::Ended(_) => ToHead::LetGo(task),
                });
            }
            Err(error) => self.note_unread(key, &error),
        }
    }

    /// Notes that the engine has a task.
    fn note_stored(&mut self, task: TaskId) {
        let share = self.shares.get_mut(&task).filter(|share| share.bundle.is_none());
        if share.is_some_and(|share| !std::mem::replace(&mut share.is_stored, true)) {
            self.tell(ToHead::Stored(task));
        }
    }

    fn on_ended(&mut self, task: TaskId, end: End) {
        let id = self.id(task);
        let Some(share) = self.shares.get_mut(&task).filter(|share| share.ending.is_none()) else { return };
        if let End::Outcome { attempt, outcome, .. } = &end
            && let Some((shared, stored)) = value_of(outcome)
        {
            let max = self.settings.max_value;
            let problem = match shared.digest {
                None => Some("it is said to be in a file of another node".to_owned()),
                Some(_) if stored.bytes > max => Some(too_large("the result", stored.bytes, max)),
                Some(digest) => {
                    let key = ValueKey { id, attempt: *attempt, digest, bytes: stored.bytes };
                    share.ending = Some(Box::new(Ending { end, shared, key, tries: 0, is_asked: false }));
                    self.note_values(task);
                    return self.go_on_ending(task);
                }
            };
            let message = format!("the result cannot be had: {}", problem.unwrap_or_default());
            let outcome = without_value(&shared, message);
            self.note_values(task);
            return self.tell_ended(task, end, outcome);
        }
        self.remove_share(task);
        self.tell(ToHead::Ended(task, end));
    }

    /// Tells the head of an end with another outcome than the one that travelled.
    fn tell_ended(&mut self, task: TaskId, end: End, outcome: Vec<u8>) {
        let End::Outcome { attempt, holder, .. } = end else { return };
        self.remove_share(task);
        self.tell(ToHead::Ended(task, End::Outcome { attempt, holder, outcome }));
    }

    /// Gets the result of a task of this node that has ended.
    fn go_on_ending(&mut self, task: TaskId) {
        let Some(ending) = self.shares.get_mut(&task).and_then(|share| share.ending.as_mut()) else { return };
        if self.is_reachable && !ending.is_asked {
            ending.is_asked = true;
            let key = ending.key.clone();
            self.ask(Asked::GetResult(task, key.clone()), Request::GetValue(key));
        }
    }

    fn on_result_got(&mut self, task: TaskId, key: &ValueKey, answer: Answer) {
        let share = self.shares.get_mut(&task);
        let ending = share.and_then(|share| share.ending.take_if(|ending| ending.key == *key));
        let Some(mut ending) = ending else { return self.remove_file(answer) };
        ending.is_asked = false;
        let why = match answer {
            Answer::ValueGot(Ok(name)) => {
                let mut shared = ending.shared;
                (shared.outcome, shared.digest) = (Outcome::Stored(Stored { name, bytes: ending.key.bytes }), None);
                let outcome = shared.encode();
                return self.tell_ended(task, ending.end, outcome);
            }
            Answer::ValueGot(Err(why)) => {
                ending.tries += 1;
                Some(why).filter(|why| matches!(why, ValueError::Damaged(_)) || ending.tries >= TRIES)
            }
            _ => None,
        };
        match why {
            Some(why) => {
                let bytes = Size(ending.key.bytes);
                let message = format!(
                    "the task has returned {bytes}, but its node's value cannot be had: {why}\n(hint: submit it again)"
                );
                let outcome = without_value(&ending.shared, message);
                self.tell_ended(task, ending.end, outcome);
            }
            None => {
                if let Some(share) = self.shares.get_mut(&task) {
                    share.ending = Some(ending);
                }
            }
        }
    }

    /// Removes the file of a value that nobody waits for any more.
    fn remove_file(&mut self, answer: Answer) {
        if let Answer::ValueGot(Ok(name)) = answer {
            self.effects.push(Effect::RemoveFile(name));
        }
    }

    fn on_put(&mut self, task: TaskId, answer: Answer) {
        let Some(share) = self.shares.get_mut(&task) else { return };
        share.is_asked = false;
        match answer {
            Answer::Put(Ok(())) => {
                self.note_stored(task);
                self.go_on_withdrawing(task);
                self.go_on_taking_back(task);
            }
            // What the engine may have had before is not refused: it is tried again.
            Answer::Put(Err(why)) if !share.was_tried && !share.is_stored => self.refuse(task, why),
            _ => (share.is_old, share.was_tried) = (true, true),
        }
    }

    fn on_looked_at(&mut self, task: TaskId, answer: Answer) {
        let Some(share) = self.shares.get_mut(&task) else { return };
        share.is_asked = false;
        let Answer::Record(entry) = answer else { return };
        share.is_old = false;
        match entry {
            Some(entry) => {
                self.note_stored(task);
                self.on_record(RecordKey::Task(self.id(task)), &entry.value);
                if self.shares.get(&task).is_some_and(|share| share.bundle.is_none()) && self.takes_put(task) {
                    self.put(task);
                }
            }
            // Its bundle is in the engine, or is put there again.
            None if share.bundle.is_some() => {}
            None if share.terms.at_most_once && share.is_stored => {
                share.is_asked = true;
                let (id, queue) = (self.id(task), share_queue(&self.shares, task));
                self.ask(Asked::Has(task), Request::Has { queue, id });
            }
            None if self.takes_put(task) => self.put(task),
            None => {}
        }
    }

    /// Takes in whether the engine has the message of a task that must not be started twice and that had no record.
    fn on_has(&mut self, task: TaskId, answer: Answer) {
        let Some(share) = self.shares.get_mut(&task) else { return };
        share.is_asked = false;
        match answer {
            Answer::Has(true) => {}
            // Or it was claimed, ended and acknowledged just now.
            Answer::Has(false) => {
                share.is_asked = true;
                let key = RecordKey::Task(self.id(task));
                self.ask(Asked::LookAgain(task), Request::Read(key));
            }
            _ => share.is_old = true,
        }
    }

    fn on_looked_again(&mut self, task: TaskId, answer: Answer) {
        let Some(share) = self.shares.get_mut(&task) else { return };
        share.is_asked = false;
        match answer {
            Answer::Record(None) => {
                self.remove_share(task);
                self.drop_values(task);
                self.tell(ToHead::LostWrites(task));
            }
            Answer::Record(Some(entry)) => self.on_record(RecordKey::Task(self.id(task)), &entry.value),
            _ => share.is_old = true,
        }
    }

    // ---- the holder ---------------------------------------------------------------------------------------------------

    /// Takes what the head says of its slots: how many there are and how many are free, and the number of imports that it had been told of by then.
    pub fn on_free(&mut self, slots: usize, free: usize, told: u64) {
        (self.slots, self.free, self.told_then) = (slots, free, told);
        self.demands.forget_seen(self.told - told.min(self.told));
        self.is_full_of_singles &= free == 0;
        self.pull();
    }

    /// Returns for how many messages there is room.
    fn room(&self) -> usize {
        self.free_room().max(self.room_ahead())
    }

    /// Returns for how many messages there are free slots.
    fn free_room(&self) -> usize {
        let on_the_way = self.demands.slots_on_the_way();
        let is_claiming = |held: &&Held| held.attempt.is_none();
        let claiming = self.held.alone().filter(is_claiming).map(|held| held.slots).sum::<usize>();
        let claiming = claiming + self.bundles_being_claimed();
        self.free.saturating_sub(on_the_way).saturating_sub(claiming)
    }

    fn pull(&mut self) {
        if self.room() == 0 || !self.is_reachable || self.is_stopping {
            return;
        }
        for at in 0..self.settings.queues.len() {
            let queue = &self.settings.queues[at].0;
            let count = self.room_of(queue);
            if count > 0 && !self.modules.leaves(queue) {
                self.pull_from(queue.clone(), count);
            }
        }
    }

    /// Goes on with the turn of a queue: what is there in one part and then in the others, and where there was less than there is room for, what comes within
    /// a while. A part that is pulled from since before has nothing that waits.
    fn pull_from(&mut self, queue: String, count: usize) {
        let pulling = self.pulling.entry(queue.clone()).or_default();
        if pulling.going.iter().any(|(_, waits)| !waits) {
            return;
        }
        let parts = Tier::served(self.settings.shared_commands);
        let asked: Vec<_> = if pulling.has_looked || !pulling.going.is_empty() {
            let is_asked = |tier: &Tier| pulling.going.iter().any(|(going, _)| going == tier);
            parts.iter().filter(|tier| !is_asked(tier)).map(|tier| (*tier, true)).collect()
        } else {
            let first = TURNS[pulling.turn];
            pulling.turn = (pulling.turn + 1) % TURNS.len();
            vec![(if parts.contains(&first) { first } else { Tier::First }, false)]
        };
        pulling.has_looked = false;
        pulling.going.extend(&asked);
        for (tier, waits) in asked {
            self.ask(
                Asked::Pull(queue.clone(), tier, waits),
                Request::Pull { queue: queue.clone(), tier, count, waits },
            );
        }
    }

    fn on_pulled(&mut self, queue: String, tier: Tier, waits: bool, answer: &Answer) {
        let pulling = self.pulling.entry(queue).or_default();
        pulling.going.retain(|going| *going != (tier, waits));
        // What cannot be reached is not asked again at once.
        if *answer != Answer::Unreachable {
            pulling.has_looked = !waits;
            self.pull();
            // If there is no room left, the next turn begins anew.
            self.pulling.values_mut().for_each(|pulling| pulling.has_looked = false);
        }
    }

    /// Returns for how many messages of a queue there is room.
    fn room_of(&self, queue: &str) -> usize {
        self.room_by_slots(queue).min(self.room_by_bound(queue))
    }

    /// Returns the same, as far as it depends on slots.
    fn room_by_slots(&self, queue: &str) -> usize {
        let most = self.most_of(queue);
        if most >= self.slots {
            return self.room();
        }
        // The tasks of one bundle take as many slots as the queue may.
        match self.bundles.values().any(|bundle| *bundle.queue == *queue) {
            true => 0,
            false => self.room().min(most.saturating_sub(self.alone(queue))),
        }
    }

    /// Returns the most slots that tasks of a queue take.
    fn most_of(&self, queue: &str) -> usize {
        self.settings.queues.iter().find(|(name, _)| name == queue).map_or(0, |(_, slots)| *slots)
    }

    /// Returns whether a queue may have all slots of this node, and its tasks ask for one each.
    fn is_unlimited(&self, queue: &str) -> bool {
        self.most_of(queue) >= self.slots && self.room_by_bound(queue) == usize::MAX
    }

    /// Returns the number of tasks of a queue that this node has, that came by themselves, and that take slots.
    fn alone(&self, queue: &str) -> usize {
        let is_of_queue = |held: &&Held| !held.is_taken_back && *held.queue == *queue;
        self.held.alone().filter(is_of_queue).count()
    }

    /// Takes a message that a pull has brought. The time is in nanoseconds since the Unix epoch.
    pub fn on_delivered(&mut self, delivery: Delivery, now_unix_nano: u64) {
        if BundleMessage::is_one(&delivery.message) {
            return self.on_bundle_delivered(delivery, now_unix_nano);
        }
        let Delivery { queue, handle, id, message, is_again } = delivery;
        let (terms, (asks_for, function)) = match TaskMessage::decode(&message) {
            Ok(message) => (message.terms, self.look_into(&message)),
            Err(error) => return self.put_aside(Delivery { queue, handle, id, message, is_again }, &error),
        };
        let is_held = self.held.contains_key(&id);
        // One of which nobody knows that it is short takes a free slot.
        let is_short = self.run_times.short_ns(function).is_some();
        let is_ahead = self.free_room() == 0 && !is_short;
        // Parts of a queue are asked side by side: of what is short a little too much may come, and giving it back would only change the order.
        let has_room = self.room_of(&queue) > 0 || (is_short && self.is_unlimited(&queue));
        if self.is_stopping || (!is_held && (is_ahead || !has_room)) {
            self.is_full_of_singles |= is_ahead;
            self.ahead.narrow();
            return self.say(Request::GiveBack(handle));
        }
        if is_short {
            self.ahead.widen();
        }
        if !is_held && !is_short && !self.has_free(&asks_for) {
            return self.give_back_later(handle);
        }
        let held = self.held.get_or_insert_with(id, || Held::new(&queue.into(), &handle, terms));
        // The delivery before it is over.
        held.handle = handle;
        held.slots = (asks_for.num_cpus as usize).max(1);
        held.function = function;
        if held.attempt.is_none() {
            held.message = Some(message);
        }
        let to = self.settings.own;
        let change = self.changes.get_or_default(id);
        if change.todo.iter().any(|event| matches!(event, Event::Delivered { .. })) {
            return;
        }
        if !change.is_asked && (is_again || change.known.is_some()) {
            change.known = None;
        }
        if !is_again && !change.is_asked && change.todo.is_empty() {
            // Nearly always nobody has it; if somebody does, that is found out by trying.
            change.known = Some(Known { revision: None, record: None, stamp_ns: 0 });
        }
        let mark = Mark { node_id: self.settings.node_id.clone(), unix_nano: now_unix_nano };
        change.todo.push_back(Event::Delivered { to, mark, sight: Sight::MayLive, terms });
        self.go_on_changing(id);
    }

    /// Has a message put aside that a pull has brought, and that is of no task or is not to be run here.
    pub fn on_dead(&mut self, dead: Dead) {
        self.say(Request::PutAside(dead));
    }

    /// Has a message put aside that cannot be read: its queue is not to wait for it. Its origin, if it has one, puts another one in its place.
    fn put_aside(&mut self, Delivery { queue, handle, id, message, .. }: Delivery, error: &WireError) {
        let reason = format!("it cannot be read: {error}");
        self.on_dead(Dead { queue, handle, name: id.to_string(), message, reason });
    }

    /// Says of a record that it cannot be read; once.
    fn note_unread(&mut self, key: RecordKey, error: &WireError) {
        if self.unread.len() < UNREAD && self.unread.insert(key) {
            let (kind, id) = match key {
                RecordKey::Task(id) => ("task", id),
                RecordKey::Bundle(id) => ("bundle", id),
            };
            self.tell(ToHead::Log(format!("the record of {kind} {id} cannot be read: {error}")));
        }
    }

    /// Takes a task that the head runs since before this agent: its token, and the attempt that it is at.
    pub fn on_import_open(&mut self, token: Token, attempt: u32) {
        if let Some(bundle) = token.bundle {
            self.on_bundled_import_open(bundle, &token);
        }
        let Token { id, queue, handle, terms, bundle } = token;
        let bundle = bundle.map(|(first, _)| ClusterTaskId { task: first, ..id });
        let held = Held { attempt: Some(attempt), bundle, ..Held::new(&queue, &handle, terms) };
        self.held.insert(id, held);
    }

    /// Notes that an attempt of an import has failed and the head goes on with the next one. The time is in nanoseconds since the Unix epoch.
    pub fn on_attempt_failed(
        &mut self,
        id: ClusterTaskId,
        attempt: u32,
        (is_crash, report): (bool, Vec<u8>),
        unix_nano: u64,
    ) {
        if let Some(held) = self.held.get_mut(&id) {
            held.attempt = Some(attempt + 1);
        }
        let by = self.settings.own;
        self.bring_about(id, Event::AttemptFailed { by, attempt, is_crash, report, unix_nano });
    }

    /// Notes that the head has written spans that stand in for those of the lost attempts before this one.
    pub fn on_stood_in(&mut self, id: ClusterTaskId, attempt: u32) {
        let by = self.settings.own;
        self.bring_about(id, Event::StoodIn { by, attempt });
    }

    /// Notes that an import has an outcome.
    pub fn on_import_ended(&mut self, id: ClusterTaskId, attempt: u32, outcome: Vec<u8>) {
        if let Some((shared, stored)) = value_of(&outcome) {
            self.giving.insert(id, Giving { attempt, shared, stored, is_asked: false });
            return self.go_on_giving(id);
        }
        self.note_run_time(self.held.get(&id).and_then(|held| held.function), SharedEnd::run_ns(&outcome));
        let by = self.settings.own;
        self.bring_about(id, Event::Outcome { by, attempt, outcome });
    }

    /// Puts a result into the engine.
    fn go_on_giving(&mut self, id: ClusterTaskId) {
        let Some(giving) = self.giving.get_mut(&id).filter(|giving| self.is_reachable && !giving.is_asked) else {
            return;
        };
        giving.is_asked = true;
        let (attempt, source) = (giving.attempt, ValueSource::File(giving.stored.clone()));
        self.ask(Asked::PutResult(id, attempt), Request::PutValue { id, attempt, source });
    }

    fn on_result_put(&mut self, id: ClusterTaskId, attempt: u32, answer: Answer) {
        if self.giving.get(&id).is_none_or(|giving| giving.attempt != attempt) {
            return;
        }
        let Some(mut giving) = self.giving.remove(&id) else { return };
        let bytes = giving.stored.bytes;
        let outcome = match answer {
            Answer::ValuePut(Ok(digest)) => {
                let mut shared = giving.shared;
                (shared.outcome, shared.digest) =
                    (Outcome::Stored(Stored { name: String::new(), bytes }), Some(digest));
                shared.encode()
            }
            Answer::ValuePut(Err(why)) => {
                let message = format!("the result, of {}, is not taken by the engine: {why}", Size(bytes));
                without_value(&giving.shared, message)
            }
            // It is tried again.
            _ => {
                giving.is_asked = false;
                self.giving.insert(id, giving);
                return;
            }
        };
        let by = self.settings.own;
        self.bring_about(id, Event::Outcome { by, attempt, outcome });
    }

    /// Notes that the head lets go of an import, which another node is to run.
    pub fn on_import_given_back(&mut self, id: ClusterTaskId, attempt: u32, has_begun: bool) {
        // Ahead of free slots nothing is taken that this head would give back too.
        self.is_full_of_singles |= !has_begun && !self.is_stopping;
        let by = self.settings.own;
        self.bring_about(id, Event::GivenBack { by, attempt, has_begun });
    }

    /// Notes that the head ends: nothing is pulled any more.
    pub fn on_stopping(&mut self) {
        self.is_stopping = true;
        self.say(Request::StopPulling);
        self.let_go_of_unimported();
    }

    /// Gives back what this node has claimed and the head was not told of yet.
    fn let_go_of_unimported(&mut self) {
        let fetching = self.held.iter().filter_map(|(id, held)| Some((id, held.fetch.as_ref()?.claim.attempt)));
        let fetching: Vec<_> = fetching.collect();
        for (id, attempt) in fetching.into_iter().chain(self.waiting_in_bundles()) {
            self.on_import_given_back(id, attempt, false);
        }
    }

    /// Takes what another node has told. The time is that of this node's clock, in nanoseconds since the Unix epoch.
    pub fn on_told(&mut self, told: &[u8], now_unix_nano: u64) {
        match Told::decode(told) {
            Ok(Told::Stop(id, stop)) if self.held.get(&id).is_some_and(|held| held.attempt.is_some()) => {
                self.hurry_bundle_of(id);
                self.tell(ToHead::Stop(id, stop));
            }
            Ok(Told::DoYouRun(id)) if !self.held.contains_key(&id) && self.changes.len() < QUESTIONS => {
                let event = Event::NotRun { by: self.settings.own };
                if self.changes.get(&id).is_none_or(|change| !change.todo.iter().any(|other| *other == event)) {
                    self.bring_about(id, event);
                }
            }
            Ok(Told::Refused(id, why, by)) => self.on_message_refused(id, why, by, now_unix_nano),
            Ok(Told::DoYouRunBundle(id)) => self.on_asked_for_bundle(id),
            Ok(Told::NeedsValues(id)) if id.place == self.settings.own.place => self.put_values_again(id.task),
            Ok(Told::NotFollowed(id)) => self.on_told_not_followed(id),
            Ok(Told::Cancel(id, stop, by)) if id.place == self.settings.own.place => {
                self.tell(ToHead::Cancel(id.task, stop, by));
            }
            Ok(Told::CancelAnswered(id, report)) => self.on_cancel_answered(id, report),
            Err(_) => self.on_output_told(told),
            Ok(_) => {}
        }
    }

    /// Puts the arguments of a task into the engine once more, which seems to have lost them.
    fn put_values_again(&mut self, task: TaskId) {
        let Some(share) = self.shares.get_mut(&task).filter(|share| !share.is_asked && share.ending.is_none()) else {
            return;
        };
        if self.is_reachable && !share.values.is_empty() {
            share.values.iter_mut().for_each(|(_, digest)| *digest = None);
            self.put(task);
        }
    }

    // ---- records ------------------------------------------------------------------------------------------------------

    fn bring_about(&mut self, id: ClusterTaskId, event: Event) {
        let bundle = self.whole_bundle_of(id);
        if let Some(first) = bundle {
            self.note_in_bundle(first, &event);
        }
        self.changes.get_or_default(id).todo.push_back(event);
        match bundle {
            Some(first) => self.go_on_with_bundle(first),
            None => self.go_on_changing(id),
        }
    }

    /// Takes the next step towards what is to be brought about in a record.
    fn go_on_changing(&mut self, id: ClusterTaskId) {
        if self.whole_bundle_of(id).is_some() {
            return;
        }
        while let Some(change) = self.changes.get_mut(&id) {
            if change.is_asked || !self.is_reachable {
                return;
            }
            let Some(event) = change.todo.front() else {
                // What is known of a record that this node does not hold grows old.
                if !self.held.contains_key(&id) {
                    self.changes.remove(&id);
                }
                return;
            };
            let Some(known) = &change.known else {
                change.is_asked = true;
                change.sight = None;
                return self.ask(Asked::Read(id), Request::Read(RecordKey::Task(id)));
            };
            let event = match event {
                // It has come to this node since that was asked, and goes on under the same claim.
                Event::NotRun { .. } if self.held.contains_key(&id) => {
                    change.todo.pop_front();
                    continue;
                }
                Event::Delivered { to, mark, terms, .. } => {
                    let standing = known.record.as_ref().and_then(Record::claim).filter(|claim| claim.holder != *to);
                    match (standing, change.sight) {
                        (Some(claim), None) => {
                            let holder = claim.holder.place;
                            change.is_asked = true;
                            return self.ask(Asked::Sight(id), Request::ReadHeartbeats(holder));
                        }
                        (Some(_), Some(sight)) => {
                            Event::Delivered { to: *to, mark: mark.clone(), sight, terms: *terms }
                        }
                        (None, _) => event.clone(),
                    }
                }
                _ => event.clone(),
            };
            match change_of(known, &event) {
                Ok(next) => {
                    let (revision, record) = (known.revision, next.encode());
                    change.is_asked = true;
                    let key = RecordKey::Task(id);
                    return self.ask(Asked::Swap(id, Some(next)), Request::Swap { key, revision, record });
                }
                Err(refusal) => {
                    let record = known.record.clone();
                    change.todo.pop_front();
                    self.on_refused(id, &event, refusal, record);
                }
            }
        }
    }

    /// Returns what the bundle of a task says of it, if that is known here.
    fn base_of(&self, id: ClusterTaskId) -> Option<Record> {
        let of_share = || self.shares.get(&id.task).filter(|_| id.place == self.settings.own.place)?.base.as_deref();
        self.held.get(&id).and_then(|held| held.base.as_deref()).or_else(of_share).cloned()
    }

    fn on_read(&mut self, id: ClusterTaskId, answer: Answer) {
        let base = self.base_of(id);
        let Some(change) = self.changes.get_mut(&id) else { return };
        change.is_asked = false;
        let Answer::Record(entry) = answer else { return };
        let known = match entry {
            None => Ok(Known { revision: None, record: base, stamp_ns: 0 }),
            Some(entry) => Record::decode(&entry.value).map(|record| Known {
                revision: Some(entry.revision),
                record: Some(record),
                stamp_ns: entry.stamp_ns,
            }),
        };
        match known {
            Ok(known) => change.known = Some(known),
            Err(error) => {
                // A node of a later version has it. What is to be brought about here waits for the next delivery.
                change.todo.retain(|event| !matches!(event, Event::Delivered { .. }));
                self.note_unread(RecordKey::Task(id), &error);
                return self.let_go_of(id);
            }
        }
        self.go_on_changing(id);
    }

    fn on_heartbeats(&mut self, id: ClusterTaskId, answer: Answer) {
        let Some(change) = self.changes.get_mut(&id) else { return };
        change.is_asked = false;
        let Answer::Heartbeats { of_other, own } = answer else {
            change.known = None;
            return;
        };
        let Some(known) = &change.known else { return };
        let Some(claim) = known.record.as_ref().and_then(Record::claim) else { return };
        let is_suspected = matches!(known.record, Some(Record::Suspected { .. }));
        let stamp_ns = is_suspected.then_some(known.stamp_ns);
        change.sight = Some(sight_of(&self.settings, claim.holder, stamp_ns, (of_other, own)));
        self.go_on_changing(id);
    }

    fn on_swapped(&mut self, id: ClusterTaskId, next: Option<Record>, answer: Answer) {
        let Some(change) = self.changes.get_mut(&id) else { return };
        change.is_asked = false;
        change.sight = None;
        let (Answer::Swapped(Some(revision)), Some(next)) = (answer, next) else {
            // Somebody else was faster, or nobody knows who was.
            change.known = None;
            return self.go_on_changing(id);
        };
        change.known = Some(Known { revision: Some(revision), record: Some(next.clone()), stamp_ns: 0 });
        if let Some(event) = change.todo.pop_front() {
            self.on_brought_about(id, &event, next);
        }
        self.go_on_changing(id);
    }

    /// Notes that the record is now what an event makes of it.
    fn on_brought_about(&mut self, id: ClusterTaskId, event: &Event, record: Record) {
        match (event, record) {
            (Event::Delivered { to, .. }, Record::Claimed(claim)) if claim.holder == *to => self.import(id, claim),
            (Event::Delivered { .. }, Record::Ended(end)) => {
                self.acknowledge(id);
                self.on_own_ended(id, end);
            }
            // Its holder is heard of, or not, until it is delivered again.
            (Event::Delivered { .. }, record) => {
                self.ask_holder(id, record.claim());
                self.let_go_of(id);
            }
            (Event::EndedUnbegun { .. } | Event::Withdrawn { .. }, Record::Ended(end)) => {
                self.on_ended_elsewhere(id, CancelReport::Cancelled);
                self.on_own_ended(id, end);
            }
            (Event::Withdrawn { .. }, Record::Claimed(claim)) => self.hold_own(id, claim),
            (Event::Outcome { .. }, Record::Ended(end)) => {
                self.tell(ToHead::Settled(id));
                self.acknowledge(id);
                self.on_own_ended(id, end);
            }
            (Event::GivenBack { .. }, _) => self.on_given_back(id),
            (
                Event::AttemptFailed { .. }
                | Event::Withdrawn { .. }
                | Event::EndedUnbegun { .. }
                | Event::Outcome { .. }
                | Event::StoodIn { .. }
                | Event::NotRun { .. },
                _,
            ) => {}
        }
    }

    fn on_own_ended(&mut self, id: ClusterTaskId, end: End) {
        if let Some(task) = self.task_of(id) {
            self.on_ended(task, end);
        }
    }

    fn on_given_back(&mut self, id: ClusterTaskId) {
        self.tell(ToHead::Settled(id));
        let bundle = self.held.get(&id).and_then(|held| held.bundle);
        let of_bundle = bundle.and_then(|first| self.return_bundle(first));
        let is_let_go = of_bundle.is_some();
        let alone = self.remove_held(id, is_let_go).filter(|held| held.bundle.is_none()).map(|held| held.handle);
        if let Some(handle) = of_bundle.or(alone) {
            self.say(Request::GiveBack(handle));
        }
    }

    /// Lets go of a task, and of arguments that have come for it. Of one in a bundle it is said whether other nodes may have it.
    fn remove_held(&mut self, id: ClusterTaskId, is_let_go: bool) -> Option<Held> {
        let mut held = self.held.remove(&id)?;
        let files = held.fetch.take().map(|fetch| fetch.files).unwrap_or_default();
        self.effects.extend(files.into_iter().map(Effect::RemoveFile));
        match held.bundle {
            Some(first) => self.remove_from_bundle(first, id, is_let_go),
            // The queue may have had no room beside it.
            None => self.pull(),
        }
        Some(held)
    }

    /// Notes that the record refuses an event: perhaps because it was brought about already, and the answer was lost.
    fn on_refused(&mut self, id: ClusterTaskId, event: &Event, refusal: Refusal, record: Option<Record>) {
        let claim = record.as_ref().and_then(Record::claim);
        match (event, refusal) {
            (Event::Delivered { .. }, Refusal::HasEnded) => {
                // What this node's head may still run of it counts for nothing; its end says so.
                if self.held.get(&id).is_some_and(|held| held.attempt.is_none()) {
                    self.acknowledge(id);
                }
            }
            (Event::Delivered { .. }, Refusal::HasIt) => {
                if let Some(claim) = claim.cloned()
                    && self.held.get(&id).is_some_and(|held| held.attempt.is_none())
                {
                    self.import(id, claim);
                }
            }
            (Event::Delivered { sight, .. }, _) => {
                self.ask_holder(id, claim);
                self.leave_to_be_delivered(id, *sight);
            }
            (Event::EndedUnbegun { .. }, Refusal::Begun) => {
                self.stop_elsewhere(id, claim);
                let task = self.task_of(id);
                let share = task.and_then(|task| self.shares.get_mut(&task));
                let withdrawn = share.as_ref().and_then(|share| share.withdrawn.as_ref());
                if let (Some(claim), Some(stop)) = (claim, withdrawn.and_then(|(_, stops)| *stops)) {
                    let (place, told) = (claim.holder.place, Told::Stop(id, stop).encode());
                    self.say(Request::Tell(place, told));
                } else if let Some(share) = share {
                    // It has begun in time.
                    share.withdrawn = None;
                }
            }
            (Event::EndedUnbegun { .. }, _) => self.on_ended_elsewhere(id, CancelReport::Ended),
            // It was brought about, and the answer was lost.
            (Event::Withdrawn { by, .. }, Refusal::Begun)
                if claim.is_some_and(|claim| claim.holder == *by) && !self.held.contains_key(&id) =>
            {
                if let Some(claim) = claim.cloned() {
                    self.hold_own(id, claim);
                }
            }
            (Event::Withdrawn { .. }, _) => {
                if let Some(share) = self.shares.get_mut(&id.task) {
                    share.taken_back = None;
                }
            }
            (Event::Outcome { .. }, Refusal::HasEnded) => {
                self.tell(ToHead::Settled(id));
                self.acknowledge(id);
            }
            // Another node has it now, whose message is not acknowledged by this one.
            (Event::Outcome { .. }, _) => {
                self.tell(ToHead::Settled(id));
                self.remove_held(id, true);
            }
            // The same, if this node was to end it for that.
            (Event::GivenBack { by, .. }, _) if claim.is_some_and(|claim| claim.holder != *by) => {
                self.tell(ToHead::Settled(id));
                self.remove_held(id, true);
            }
            (Event::GivenBack { .. }, _) => self.on_given_back(id),
            (Event::AttemptFailed { .. } | Event::StoodIn { .. } | Event::NotRun { .. }, _) => {}
        }
        if let Some(Record::Ended(end)) = record {
            self.on_own_ended(id, end);
        }
    }

    /// Asks who has claimed a task whether it runs it.
    fn ask_holder(&mut self, id: ClusterTaskId, claim: Option<&Claim>) {
        if let Some(claim) = claim {
            self.say(Request::Tell(claim.holder.place, Told::DoYouRun(id).encode()));
        }
    }

    /// Hands a task to the head that this node has claimed, once its large arguments are here.
    fn import(&mut self, id: ClusterTaskId, claim: Claim) {
        let max = self.settings.max_value;
        if self.held.get(&id).is_none_or(|held| held.attempt.is_some()) || self.puts_off(id, &claim) {
            return;
        }
        let Some(held) = self.held.get_mut(&id) else { return };
        if let Some(fetch) = &mut held.fetch {
            fetch.claim = claim;
            return;
        }
        let values = held.message.as_deref().map(|message| TaskMessage::decode(message)?.values(id));
        let problem = match values {
            Some(Ok(values)) => match values.iter().find(|value| value.bytes > max) {
                Some(value) => Some(too_large("an argument", value.bytes, max)),
                None if values.is_empty() => None,
                None => {
                    held.fetch = Some(Box::new(Fetch { claim, values, files: Vec::new(), tries: 0, is_asked: false }));
                    return self.go_on_fetching(id);
                }
            },
            Some(Err(error)) => Some(format!("this node cannot read which arguments it has: {error}")),
            None => return,
        };
        self.hand_over(id, claim, Vec::new(), problem);
    }

    fn hand_over(&mut self, id: ClusterTaskId, claim: Claim, files: Vec<String>, problem: Option<String>) {
        if self.hearing.is_cut_off() {
            self.effects.extend(files.into_iter().map(Effect::RemoveFile));
            return self.on_import_given_back(id, claim.attempt, false);
        }
        let Some(held) = self.held.get_mut(&id) else { return };
        let Some(message) = held.message.take() else { return };
        let Ok(TaskMessage { submitted_unix_nano, envelope, .. }) = TaskMessage::decode(&message) else { return };
        let envelope = match files.is_empty() {
            true => envelope.into(),
            false => with_files(envelope, files).unwrap_or_default(),
        };
        held.attempt = Some(claim.attempt);
        // What was taken back stays so for the next agent, also if its message has come meanwhile.
        let handle = if held.is_taken_back { Handle("".into()) } else { held.handle.clone() };
        let (queue, terms) = (held.queue.clone(), held.terms);
        let of_bundle = held.bundle.and_then(|first| Some((first.task, self.bundles.get(&first)?.count())));
        self.told += 1;
        self.demands.note_told(held.slots);
        held.is_short = self.run_times.short_ns(held.function).is_some();
        self.is_due_soon |= held.is_short;
        let token = Token { id, queue, handle, terms, bundle: of_bundle };
        self.tell(ToHead::Import(Import { token, claim: claim.into(), submitted_unix_nano, envelope, problem }));
    }

    /// Gets the next large argument of a task that this node has claimed.
    fn go_on_fetching(&mut self, id: ClusterTaskId) {
        let fetch = self.held.get_mut(&id).and_then(|held| held.fetch.as_mut());
        let Some(fetch) = fetch.filter(|fetch| self.is_reachable && !fetch.is_asked) else { return };
        let Some(key) = fetch.values.get(fetch.files.len()) else { return };
        fetch.is_asked = true;
        let key = key.clone();
        self.ask(Asked::GetArgument(id, key.clone()), Request::GetValue(key));
    }

    fn on_argument_got(&mut self, id: ClusterTaskId, key: &ValueKey, answer: Answer) {
        let fetch = self.held.get_mut(&id).and_then(|held| held.fetch.as_mut());
        // It may be that of a delivery before, which was let go of.
        let fetch = fetch.filter(|fetch| fetch.values.get(fetch.files.len()) == Some(key));
        let Some(fetch) = fetch else { return self.remove_file(answer) };
        fetch.is_asked = false;
        let why = match answer {
            Answer::ValueGot(Ok(name)) => {
                fetch.files.push(name);
                if fetch.files.len() < fetch.values.len() {
                    return self.go_on_fetching(id);
                }
                None
            }
            Answer::ValueGot(Err(why)) => {
                fetch.tries += 1;
                if !matches!(why, ValueError::Damaged(_)) && fetch.tries < TRIES {
                    if why == ValueError::Missing {
                        self.say(Request::Tell(id.place, Told::NeedsValues(id).encode()));
                    }
                    return;
                }
                Some(why)
            }
            _ => return,
        };
        let fetch = self.held.get_mut(&id).and_then(|held| held.fetch.take());
        let Some(Fetch { claim, values, mut files, .. }) = fetch.map(|fetch| *fetch) else { return };
        let problem = why.map(|why| {
            let bytes = Size(values.get(files.len()).map_or(0, |value| value.bytes));
            self.effects.extend(files.drain(..).map(Effect::RemoveFile));
            format!("an argument of {bytes} cannot be had: {why}\n(hint: submit the task again)")
        });
        self.hand_over(id, claim, files, problem);
    }

    /// Removes the message of a task that has ended.
    fn acknowledge(&mut self, id: ClusterTaskId) {
        if let Some(held) = self.remove_held(id, false).filter(|held| held.bundle.is_none()) {
            self.say(Request::Done(held.handle));
        }
    }

    /// Leaves a message to be delivered again, unless the head runs its task.
    fn let_go_of(&mut self, id: ClusterTaskId) {
        if self.held.get(&id).is_some_and(|held| held.attempt.is_none()) {
            self.remove_held(id, true);
        }
    }

    /// Takes an answer.
    pub fn on_answer(&mut self, number: u64, answer: Answer) {
        let Some(asked) = self.asked.remove(&number) else { return };
        match asked {
            Asked::Put(task) => self.on_put(task, answer),
            Asked::Key(task) => self.on_key(task, answer),
            Asked::Look(task) => self.on_looked_at(task, answer),
            Asked::Has(task) => self.on_has(task, answer),
            Asked::LookAgain(task) => self.on_looked_again(task, answer),
            Asked::Read(id) => self.on_read(id, answer),
            Asked::Swap(id, next) => self.on_swapped(id, next, answer),
            Asked::Sight(id) => self.on_heartbeats(id, answer),
            Asked::PutBundle(first) => self.on_bundle_put(first, answer),
            Asked::LookAtBundle(first) => self.on_bundle_looked_at(first, answer),
            Asked::ReadBundle(id) => self.on_bundle_read(id, answer),
            Asked::SwapBundle(id, next) => self.on_bundle_swapped(id, *next, &answer),
            Asked::BundleSight(id) => self.on_bundle_heartbeats(id, answer),
            Asked::FindInBundle(asker, id, place) => self.on_bundle_found(asker, id, place, answer),
            Asked::IsSuperseded(key) => self.on_standing_read(key, answer),
            Asked::PutArgument(task, at) => self.on_argument_put(task, at, answer),
            Asked::GetArgument(id, key) => self.on_argument_got(id, &key, answer),
            Asked::PutResult(id, attempt) => self.on_result_put(id, attempt, answer),
            Asked::Find(asker, id) => self.on_record_found(asker, id, answer),
            Asked::FindMessage(asker, attempts) => self.on_message_found(asker, attempts, answer),
            Asked::FindValue(asker, end, bytes) => self.on_value_found(asker, *end, bytes, answer),
            Asked::GetResult(task, key) => self.on_result_got(task, &key, answer),
            Asked::Pull(queue, tier, waits) => self.on_pulled(queue, tier, waits, &answer),
        }
    }
}

fn too_large(what: &str, bytes: u64, max: u64) -> String {
    format!(
        "{what} takes {}, but this node takes values of at most {} from the engine\n\
         (hint: start it with a larger --max-shared-value)",
        Size(bytes),
        Size(max)
    )
}

/// Returns the view that this node has of a holder, by both their heartbeats; the record was suspected at the stamp, if it is.
fn sight_of(
    settings: &Settings,
    holder: Holder,
    suspected_ns: Option<u64>,
    (of_other, own): (Option<Entry>, Option<Entry>),
) -> Sight {
    let beat = of_other.as_ref().and_then(|entry| Heartbeat::decode(&entry.value).ok());
    let is_new_life = beat.is_some_and(|beat| beat.life > holder.life);
    let is_older = holder.place == settings.own.place && holder.life < settings.own.life;
    if is_new_life || is_older {
        return Sight::NewLife;
    }
    let Some(suspected_ns) = suspected_ns else { return Sight::MayLive };
    if of_other.is_some_and(|entry| entry.stamp_ns >= suspected_ns) {
        return Sight::MayLive;
    }
    let was_heard = own.is_some_and(|entry| entry.stamp_ns >= suspected_ns.saturating_add(settings.ack_wait_ns));
    if was_heard { Sight::Silent } else { Sight::Quiet }
}

fn change_of(known: &Known, event: &Event) -> Result<Record, Refusal> {
    change(known.record.as_ref(), event)
}

#[cfg(test)]
#[path = "agent_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "hostile_tests.rs"]
mod hostile_tests;

#[cfg(test)]
#[path = "keys_tests.rs"]
mod keys_tests;
