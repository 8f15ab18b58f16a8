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
use tracer_core::task::TaskId;
use tracer_core::{ClusterTaskId, PlaceId};
use tracer_ipc::protocol::{CancelAnswer, ClaimedBy, Found, OnPartition, OpenTasks, SharedEnd, SharedOutput, Stop};

use crate::bundle::BundleRecord;
#[cfg(test)]
use crate::bundle::member;
use crate::clock::ClockOffset;
use crate::interface::{Answer, Entry, Handle, Key, PutError, RecordKey, Request, Tier, ValueKey, ValueSource};
use crate::message::{BundleMessage, BundledTask, Heartbeat, Told};
use crate::record::{Claim, End, Event, Holder, Mark, Record, Refusal, Sight, Terms, change};

mod bundles;
mod cancels;
mod cut_off;
mod demands;
mod held;
mod holder;
mod keys;
mod modules;
mod origin;
mod output;
mod places;
mod questions;
mod quiet;
mod records;
mod run_times;
mod superseded;
mod todo;
mod trust;
mod unanswered;

pub(crate) use bundles::BUNDLE_WAIT_NS;
use bundles::{BundleChange, HeldBundle, OUTCOMES_BYTES, SharedBundle};
use cancels::Cancel;
use cut_off::Hearing;
use demands::Demands;
use held::HeldTasks;
use holder::{Giving, Pulling};
use modules::ModulesKnown;
use origin::Share;
use places::Places;
use questions::{Asker, Question};
use records::{Change, Known};
use run_times::{RunTimes, Window};

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
    /// Its [message](crate::message::TaskMessage), without the digests of its values.
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
    /// The claim: the attempt that is to begin, and what was before it.
    pub claim: Claim,
    /// Time at which its origin accepted it, by that machine's clock.
    pub submitted_unix_nano: u64,
    /// Its envelope, with the names of the files that its large arguments are in.
    pub envelope: Vec<u8>,
    /// Reason why it cannot be run, if so.
    pub problem: Option<String>,
}

/// Tasks of a bundle that this node's head runs, all under one claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportBundle {
    /// Token of each of them, with the id of the first task of the bundle.
    pub token: Token,
    /// See [`Import::claim`].
    pub claim: Claim,
    message: Arc<Vec<u8>>,
    places: Places,
}

impl ImportBundle {
    /// Returns the tasks, in their order.
    pub fn tasks(&self) -> Vec<BundledTask<'_>> {
        let message = BundleMessage::decode(&self.message).ok();
        let all = message.into_iter().flat_map(|message| message.tasks);
        all.filter(|task| self.places.contains(task.place)).collect()
    }

    /// Returns the same, each by itself.
    #[cfg(test)]
    pub(crate) fn imports(&self) -> impl Iterator<Item = Import> {
        self.tasks().into_iter().map(|BundledTask { place, submitted_unix_nano, envelope }| Import {
            token: Token { id: member(self.token.id, place), ..self.token.clone() },
            claim: self.claim.clone(),
            submitted_unix_nano,
            envelope: envelope.to_vec(),
            problem: None,
        })
    }
}

/// Tasks of a bundle of this node's head that have ended, each with an outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedTogether {
    /// The first task of the bundle.
    first: TaskId,
    /// The record of the bundle, in which all of its tasks have ended.
    record: Vec<u8>,
    /// Tasks that are meant.
    places: Places,
}

impl EndedTogether {
    /// Returns the tasks in their order, each with its outcome, encoded as the head does.
    pub fn outcomes(&self) -> impl Iterator<Item = (TaskId, &[u8])> {
        let all = BundleRecord::all_ended(&self.record).unwrap_or_default();
        let task = |place: u32| TaskId(self.first.0.saturating_add(place.into()));
        self.places.iter().filter_map(move |place| Some((task(place), all.get(place as usize)?.1)))
    }
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
    /// Encodes it, but for the id.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + self.queue.len() + self.handle.0.len());
        out.put_str(&self.queue);
        out.put_str(&self.handle.0);
        self.terms.put(&mut out);
        let (first, count) = self.bundle.unwrap_or((TaskId(0), 0));
        out.put_u64(first.0);
        out.put_u32(count);
        out
    }

    /// Takes the token of this task apart.
    pub fn decode(id: ClusterTaskId, bytes: &[u8]) -> Result<Token, WireError> {
        let mut take = Take::new(bytes);
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
    /// The engine was asked to store these tasks, or the bundles that begin with them, and has not answered for as long as a submission waits.
    Unanswered(Vec<TaskId>),
    /// The engine does not have this task, or the bundle that begins with it, and never will.
    NotStored(TaskId, NotStored),
    /// A task of this head has ended.
    Ended(TaskId, End),
    /// Tasks of one bundle of this head have ended.
    EndedTogether(EndedTogether),
    /// The engine has lost a task of this head that it had acknowledged. Nobody knows whether it was begun, and it must not be started twice.
    LostWrites(TaskId),
    /// A node has a task of this head.
    Claimed(TaskId, ClaimedBy),
    /// A node has all of the bundle that begins with this task; none if its tasks go on by themselves from now on.
    BundleClaimed(TaskId, Option<ClaimedBy>),
    /// The node that had a task of this head has let go of it.
    LetGo(TaskId),
    /// The head stops, and this node has nothing of any queue any more.
    HasLetGo,
    /// Run this.
    Import(Import),
    /// Run these.
    ImportBundle(ImportBundle),
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
    /// The ends of this many imports, which have ids in a row from this one on, are in their records, or count for nothing: they need not be remembered any more.
    Settled(ClusterTaskId, u32),
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
    /// The most bytes of outcomes in the record of a bundle, as far as the engine takes them.
    outcomes_bytes: usize,
    /// Time at which a submission is to be answered that the engine has not answered, in nanoseconds of the monotonic clock; the highest if there is none.
    unanswered_ns: u64,
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
    /// True once the head was told that this node has let go of everything.
    has_told_let_go: bool,
    /// Questions of people, by their numbers.
    questions: BTreeMap<u64, Question>,
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
            outcomes_bytes: OUTCOMES_BYTES,
            unanswered_ns: u64::MAX,
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
            has_told_let_go: false,
            questions: BTreeMap::new(),
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
        if self.is_stopping && !self.has_told_let_go && self.has_let_go() {
            self.has_told_let_go = true;
            self.notify(ToHead::HasLetGo);
        }
        std::mem::take(&mut self.effects)
    }

    /// Returns how many tasks of this node are open in the engine, and how many messages this node has.
    pub fn counts(&self) -> (usize, usize) {
        let alone = self.shares.values().filter(|share| share.bundle.is_none()).count();
        (alone + self.open_in_bundles(), self.held.len())
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

    fn notify(&mut self, what: ToHead) {
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
        let next_ns = self.resume(now_ns);
        let others = [self.resume_cancelling(now_ns), self.resume_asking(now_ns), self.resume_unanswered(now_ns)];
        let next_ns = others.into_iter().flatten().fold(next_ns, u64::min);
        self.hearing.lapse_ns().map_or(next_ns, |lapse_ns| next_ns.min(lapse_ns))
    }

    /// Does the rest of what is due, and returns when to come again for that.
    fn resume(&mut self, now_ns: u64) -> u64 {
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
                share.bundle.is_none() && !share.is_sent && !share.is_unanswered && waited_ns >= limit_ns
            };
            let over: Vec<_> = self.shares.iter().filter(|(_, share)| is_over(share)).map(|(task, _)| task).collect();
            for task in over {
                self.remove_share(task);
                self.drop_values(task);
                self.notify(ToHead::NotStored(task, NotStored::Unreachable));
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
                self.resume_sharing_bundle(first);
            }
            for task in self.shares.keys().collect::<Vec<_>>() {
                self.resume_sharing(task);
                self.resume_withdrawing(task);
                self.resume_taking_back(task);
                self.resume_ending(task);
            }
            for id in self.giving.keys().copied().collect::<Vec<_>>() {
                self.resume_giving(id);
            }
            for id in self.held.keys().collect::<Vec<_>>() {
                self.resume_fetching(id);
            }
            for id in self.changes.keys().collect::<Vec<_>>() {
                self.resume_changing(id);
            }
            for id in self.bundle_changes.keys().copied().collect::<Vec<_>>() {
                self.resume_changing_bundle(id);
            }
        }
        let is_soon = self.hurry_bundles(now_ns) | self.ask_slow_back(now_ns);
        self.pull();
        if is_soon { self.next_beat_ns.min(now_ns + BUNDLE_WAIT_NS) } else { self.next_beat_ns }
    }

    /// Takes what another node has told. The time is that of this node's clock, in nanoseconds since the Unix epoch.
    pub fn on_told(&mut self, told: &[u8], now_unix_nano: u64) {
        match Told::decode(told) {
            Ok(Told::Stop(id, stop)) if self.held.get(&id).is_some_and(|held| held.attempt.is_some()) => {
                self.hurry_bundle_of(id);
                self.notify(ToHead::Stop(id, stop));
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
                self.notify(ToHead::Cancel(id.task, stop, by));
            }
            Ok(Told::CancelAnswered(id, report)) => self.on_cancel_answered(id, report),
            Err(_) => self.on_output_told(told),
            Ok(_) => {}
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
