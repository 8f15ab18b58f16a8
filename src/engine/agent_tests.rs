//! The agent over a simulated engine that does all that real ones were measured to do: answers that come late or never, deliveries again, acknowledgements
//! that are undone, writes that are lost, partitions, and restarts of everything.

use std::collections::{BTreeMap, BTreeSet};

use tracer_core::Stored;
use tracer_core::task::{Charge, Demand, Envelope, FunctionSpec, Input, InputSource, Outcome, TaskSpec};
use tracer_ipc::protocol::{CancelReport, Digest, OpenTask, OutputSize, Stream, Written};

use super::*;
use crate::bundle;
use crate::interface::{Dead, Delivery, InQueue, ValueError};
use crate::message::{BundleMessage, BundledTask, ListedModules, Prepared, TaskMessage, prepare, value_of};
use crate::output::OutputMessage;

const QUEUE: &str = "default";
const SECOND: u64 = 1_000_000_000;
const ACK_WAIT: u64 = 10 * SECOND;
const SLOTS: usize = 2;

/// Random numbers from a seed (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }
}

/// A message of a queue.
#[derive(Clone, Debug)]
struct Message {
    id: ClusterTaskId,
    tier: Tier,
    bytes: Vec<u8>,
    /// Time at which it is delivered again, if it was delivered.
    again_ns: Option<u64>,
    deliveries: u32,
    is_done: bool,
    /// True if the engine keeps it and delivers it no more.
    is_passed: bool,
}

impl Message {
    fn new(id: ClusterTaskId, tier: Tier, bytes: Vec<u8>) -> Message {
        Message { id, tier, bytes, again_ns: None, deliveries: 0, is_done: false, is_passed: false }
    }
}

/// Contents of the engine.
#[derive(Clone, Debug, Default)]
struct Kept {
    messages: Vec<Message>,
    records: BTreeMap<RecordKey, Entry>,
    beats: BTreeMap<PlaceId, Entry>,
    values: BTreeMap<ValueKey, Vec<u8>>,
    keys: BTreeMap<String, Vec<u8>>,
    revision: u64,
}

#[derive(Default)]
struct Engine {
    kept: Kept,
    /// Contents of its disk: a restart may fall back to that.
    synced: Kept,
    /// Tasks that have ended in a record: never twice.
    ends: BTreeSet<ClusterTaskId>,
    has_lost_writes: bool,
}

/// Returns the tasks that have ended by what is written into a record.
fn ended(key: RecordKey, record: &[u8]) -> Vec<ClusterTaskId> {
    match key {
        RecordKey::Task(id) => match Record::decode(record) {
            Ok(Record::Ended(_)) => vec![id],
            _ => Vec::new(),
        },
        RecordKey::Bundle(first) => {
            let record = BundleRecord::decode(record).unwrap();
            let is_ended = |place: &u32| matches!(record.of(*place), Some(Record::Ended(_)));
            (0..record.count()).filter(is_ended).map(|place| bundle::member(first, place)).collect()
        }
    }
}

/// Returns the digest of a value: its first bytes.
fn digest_of(value: &[u8]) -> Digest {
    let mut digest = [0; 32];
    digest.iter_mut().zip(value).for_each(|(to, from)| *to = *from);
    digest
}

fn argument_of(id: ClusterTaskId) -> Vec<u8> {
    format!("{id} is given").into_bytes()
}

fn result_of(id: ClusterTaskId, attempt: u32) -> Vec<u8> {
    format!("{attempt} {id}").into_bytes()
}

fn end_with(name: &str, bytes: u64, attempt: u32) -> Vec<u8> {
    SharedEnd {
        attempt,
        outcome: Outcome::Stored(Stored { name: name.into(), bytes }),
        digest: None,
        started_unix_nano: None,
        ended_unix_nano: 0,
        past: Vec::new(),
        node_id: String::new(),
        worker: None,
        written: None,
    }
    .encode()
}

/// Files of a node, by their names.
#[derive(Debug, Default)]
struct Files {
    files: BTreeMap<String, Vec<u8>>,
    next: u64,
}

impl Files {
    fn write(&mut self, value: Vec<u8>) -> String {
        self.next += 1;
        let name = self.next.to_string();
        self.files.insert(name.clone(), value);
        name
    }

    fn take(&mut self, name: &str) -> Vec<u8> {
        self.files.remove(name).unwrap_or_else(|| panic!("there is no file {name}: {:?}", self.files))
    }
}

impl Kept {
    /// Returns whether there is such a message. One that is delivered no more, or was delivered and is overdue, gives its place to a new one.
    fn renew(&mut self, is_one: impl Fn(&Message) -> bool, is_overdue: bool) -> bool {
        let Some(there) = self.messages.iter_mut().find(|there| is_one(there) && !there.is_done) else { return false };
        if there.is_passed || (is_overdue && there.deliveries > 0) {
            there.is_done = true;
            let renewed = Message::new(there.id, there.tier, there.bytes.clone());
            self.messages.push(renewed);
        }
        true
    }
}

impl Engine {
    /// Returns the record of a task, its own or as that of its bundle says.
    fn record_of(&self, id: ClusterTaskId, bundle: Option<(TaskId, u32)>) -> Option<Record> {
        if let Some(own) = self.kept.records.get(&RecordKey::Task(id)) {
            return Some(Record::decode(&own.value).unwrap());
        }
        let first = ClusterTaskId { task: bundle?.0, ..id };
        let record = BundleRecord::decode(&self.kept.records.get(&RecordKey::Bundle(first))?.value).unwrap();
        record.of(bundle::place_of(first, id))
    }

    fn carry_out(
        &mut self,
        (place, files): (PlaceId, &mut Files),
        request: Request,
        now_ns: u64,
    ) -> (Option<Answer>, Vec<Delivery>) {
        let kept = &mut self.kept;
        let mut delivered = Vec::new();
        let answer = match request {
            Request::Put { id, tier, message, is_overdue, .. } => {
                if !kept.renew(|there| (there.id, there.tier) == (id, tier), is_overdue) {
                    kept.messages.push(Message::new(id, tier, message));
                }
                Some(Answer::Put(Ok(())))
            }
            Request::Has { id, is_overdue, .. } => {
                Some(Answer::Has(kept.renew(|message| message.id == id, is_overdue)))
            }
            Request::Pull { queue, tier, count, .. } => {
                let due = |message: &Message| {
                    !message.is_done
                        && !message.is_passed
                        && message.tier == tier
                        && message.again_ns.is_none_or(|again| again <= now_ns)
                };
                for (number, message) in
                    kept.messages.iter_mut().enumerate().filter(|(_, message)| due(message)).take(count)
                {
                    message.deliveries += 1;
                    message.again_ns = Some(now_ns + ACK_WAIT);
                    delivered.push(Delivery {
                        queue: queue.clone(),
                        handle: Handle(number.to_string().into()),
                        id: message.id,
                        message: message.bytes.clone(),
                        is_again: message.deliveries > 1,
                    });
                }
                Some(Answer::Pulled)
            }
            Request::Keep(handle) => {
                let kept = handle.0.parse::<usize>().ok().and_then(|number| self.kept.messages.get_mut(number));
                if let Some(message) = kept.filter(|message| message.again_ns.is_some()) {
                    message.again_ns = Some(now_ns + ACK_WAIT);
                }
                None
            }
            Request::GiveBack(handle) => {
                let kept = handle.0.parse::<usize>().ok().and_then(|number| self.kept.messages.get_mut(number));
                kept.into_iter().for_each(|message| message.again_ns = Some(now_ns));
                None
            }
            Request::GiveBackLater(handle) => {
                let kept = handle.0.parse::<usize>().ok().and_then(|number| self.kept.messages.get_mut(number));
                kept.into_iter().for_each(|message| message.again_ns = Some(now_ns + SECOND));
                None
            }
            Request::StopPulling | Request::ReadBounds | Request::ReadNodes => None,
            Request::Done(handle) | Request::PutAside(Dead { handle, .. }) => {
                let kept = handle.0.parse::<usize>().ok().and_then(|number| self.kept.messages.get_mut(number));
                kept.into_iter().for_each(|message| message.is_done = true);
                None
            }
            Request::EnterKey { key, entry } => {
                let there = kept.keys.entry(key).or_insert(entry);
                Some(Answer::Key(Ok(there.clone())))
            }
            Request::Read(key) => Some(Answer::Record(kept.records.get(&key).cloned())),
            Request::Swap { key, revision, record } => {
                let standing = kept.records.get(&key).map(|entry| entry.revision);
                if standing == revision {
                    kept.revision += 1;
                    for id in ended(key, &record) {
                        let is_first = self.ends.insert(id);
                        assert!(is_first || self.has_lost_writes, "task {id} has ended twice");
                    }
                    let entry = Entry { revision: kept.revision, stamp_ns: now_ns, value: record };
                    kept.records.insert(key, entry);
                    Some(Answer::Swapped(Some(kept.revision)))
                } else {
                    Some(Answer::Swapped(None))
                }
            }
            Request::Beat(value) => {
                kept.revision += 1;
                kept.beats.insert(place, Entry { revision: kept.revision, stamp_ns: now_ns, value });
                None
            }
            Request::ReadHeartbeats(other) => Some(Answer::Heartbeats {
                of_other: kept.beats.get(&other).cloned(),
                own: kept.beats.get(&place).cloned(),
            }),
            Request::Tell(..) => None,
            Request::PutValue { id, attempt, source } => {
                let value = match source {
                    ValueSource::Bytes(value) => Some(value),
                    // Its head may have died since.
                    ValueSource::File(stored) => files.files.get(&stored.name).cloned(),
                };
                Some(Answer::ValuePut(match value {
                    Some(value) => {
                        let (digest, bytes) = (digest_of(&value), value.len() as u64);
                        kept.values.insert(ValueKey { id, attempt, digest, bytes }, value);
                        Ok(digest)
                    }
                    None => Err(PutError::Refused("it is gone".into())),
                }))
            }
            Request::GetValue(key) => {
                let value = kept.values.get(&key).cloned();
                Some(Answer::ValueGot(value.map(|value| files.write(value)).ok_or(ValueError::Missing)))
            }
            Request::FindMessage(id) => {
                let has = |message: &&Message| match BundleMessage::decode(&message.bytes) {
                    Err(_) => message.id == id,
                    Ok(bundle) => bundle.tasks.iter().any(|task| bundle::member(message.id, task.place) == id),
                };
                let found = kept.messages.iter().filter(|message| !message.is_done).find(has);
                let found = found.map(|message| BundleMessage::is_one(&message.bytes));
                Some(Answer::InQueue(found.map(|is_bundle| InQueue { queue: QUEUE.into(), is_bundle })))
            }
            Request::DropValues(id) => {
                kept.values.retain(|key, _| key.id != id);
                None
            }
        };
        (answer, delivered)
    }
}

/// An attempt that a head runs, or an outcome that it remembers until that is settled.
#[derive(Clone, Debug)]
struct Running {
    token: Token,
    /// The attempt that it began with.
    first: u32,
    attempt: u32,
    outcome: Option<Vec<u8>>,
    is_to_stop: bool,
}

/// Memory of the head of a node. It outlives agents; `runs` does not outlive the head.
struct Head {
    life: u64,
    /// Tasks that it has accepted, and whether they are known to be stored, each with its end.
    accepted: BTreeMap<TaskId, Accepted>,
    runs: BTreeMap<ClusterTaskId, Running>,
    imports_seen: u64,
}

impl Head {
    /// Returns a task that goes by itself, or the tasks of the bundle that begins with it.
    fn all_of(&mut self, first: TaskId) -> impl Iterator<Item = &mut Accepted> {
        let count = self.accepted[&first].bundle.map_or(1, |(_, count)| count);
        self.accepted.range_mut(first..TaskId(first.0 + u64::from(count))).map(|(_, accepted)| accepted)
    }
}

/// Returns a task as the message of its bundle has it.
fn bundled(message: &[u8]) -> (u64, Vec<u8>) {
    let message = TaskMessage::decode(message).unwrap();
    (message.submitted_unix_nano, message.envelope.into())
}

fn sharing_bundle(
    count: u32,
    tasks: &BTreeMap<TaskId, (u64, Vec<u8>)>,
    (is_new, is_stored): (bool, bool),
) -> SharingBundle {
    let tasks = tasks.iter().map(|(id, (submitted_unix_nano, envelope))| OpenTask {
        id: *id,
        submitted_unix_nano: *submitted_unix_nano,
        envelope,
    });
    let tasks = tasks.collect();
    SharingBundle { queue: QUEUE.into(), crash_limit: 2, count, run_ns: 1_000, tasks, is_new, is_stored }
}

#[derive(Clone, Debug)]
struct Accepted {
    tier: Tier,
    message: Vec<u8>,
    values: Vec<ValueSource>,
    /// The first task of its bundle, and the number of tasks of that. The journal has it before anybody is told.
    bundle: Option<(TaskId, u32)>,
    is_stored: bool,
    is_withdrawn: bool,
    end: Option<End>,
    was_refused: bool,
    is_lost: bool,
}

struct Node {
    place: PlaceId,
    head: Head,
    agent: Option<Agent>,
    /// True while it cannot reach the engine.
    is_cut_off: bool,
    files: Files,
    /// Number of the agent, so that answers to the one before it are not heard.
    generation: u64,
    /// Time at which the agent was started.
    since_ns: u64,
}

/// Something on its way.
#[derive(Debug)]
enum Travelling {
    Request(usize, u64, u64, Request),
    Answer(usize, u64, u64, Answer),
    Delivery(usize, u64, Delivery),
    Told(PlaceId, Vec<u8>),
    Record(RecordKey, Vec<u8>),
}

/// Faults that a run has.
#[derive(Clone, Copy)]
struct Faults {
    /// True if the engine may fall back to what it had synced.
    loses_writes: bool,
}

struct World {
    now_ns: u64,
    random: Random,
    engine: Engine,
    is_engine_up: bool,
    nodes: Vec<Node>,
    travelling: Vec<Travelling>,
    starts: BTreeMap<ClusterTaskId, u32>,
    at_most_once: BTreeSet<ClusterTaskId>,
    /// Attempts whose spans were written in the stead of a lost node, or by a node that has let go of them in order.
    written: BTreeSet<(ClusterTaskId, u32)>,
    /// Large arguments and results that have come to heads.
    arguments: u32,
    /// Tasks of bundles that their origins have taken back.
    bundled_taken_back: u32,
    given_back: u32,
    ended_when_cut_off: u32,
    heard_again: u32,
    results: u32,
    next_task: u64,
    /// Requests to end tasks of other nodes that are not answered: by node, number of its agent, and number of the question.
    cancels: BTreeMap<(usize, u64, u64), ClusterTaskId>,
    next_cancel: u64,
    /// Such tasks that have ended by their record, and those whose origin or holder was told.
    cancelled_by_record: u32,
    cancelling_elsewhere: u32,
}

/// The node that ends what it runs when the engine does not hear it.
const STOPS: PlaceId = PlaceId(2);

fn settings(place: PlaceId, life: u64) -> Settings {
    // One of the nodes gives the queue less than all of its slots.
    let most = if place == PlaceId(3) { 1 } else { 100 };
    Settings {
        own: Holder { place, life },
        node_id: place.to_string(),
        queues: vec![(QUEUE.into(), most)],
        shared_commands: false,
        ack_wait_ns: ACK_WAIT,
        keep_ns: 3 * SECOND,
        engine_wait_ns: 5 * SECOND,
        max_value: 1000,
        signs_as: None,
        on_partition: if place == STOPS { OnPartition::Stop } else { OnPartition::Continue },
    }
}

impl World {
    fn new(seed: u64) -> World {
        let node = |place| Node {
            place: PlaceId(place),
            head: Head { life: 1, accepted: BTreeMap::new(), runs: BTreeMap::new(), imports_seen: 0 },
            agent: None,
            is_cut_off: false,
            files: Files::default(),
            generation: 0,
            since_ns: 0,
        };
        World {
            now_ns: SECOND,
            random: Random(seed),
            engine: Engine::default(),
            is_engine_up: true,
            nodes: (1..=3).map(node).collect(),
            travelling: Vec::new(),
            starts: BTreeMap::new(),
            at_most_once: BTreeSet::new(),
            written: BTreeSet::new(),
            arguments: 0,
            bundled_taken_back: 0,
            given_back: 0,
            ended_when_cut_off: 0,
            heard_again: 0,
            results: 0,
            next_task: 1,
            cancels: BTreeMap::new(),
            next_cancel: 1,
            cancelled_by_record: 0,
            cancelling_elsewhere: 0,
        }
    }

    fn reaches(&self, node: usize) -> bool {
        self.is_engine_up && !self.nodes[node].is_cut_off
    }

    /// Starts an agent, which its head tells all that is open.
    fn start_agent(&mut self, at: usize) {
        let now_ns = self.now_ns;
        let reaches = self.reaches(at);
        let node = &mut self.nodes[at];
        node.generation += 1;
        node.since_ns = now_ns;
        let mut agent = Agent::new(settings(node.place, node.head.life), now_ns);
        node.head.imports_seen = 0;
        let is_open = |accepted: &Accepted| accepted.end.is_none() && !accepted.was_refused && !accepted.is_lost;
        let open: Vec<_> = node.head.accepted.iter().filter(|(_, accepted)| is_open(accepted)).collect();
        for (task, accepted) in &open {
            let Accepted { tier, message, values, is_stored, bundle, .. } = (*accepted).clone();
            match bundle {
                None => {
                    let sharing = Sharing { tier, message, values, is_new: false, is_stored, ..sharing() };
                    agent.on_share(**task, sharing, now_ns);
                }
                Some((first, count)) => {
                    let of_bundle = open.iter().filter(|(_, other)| other.bundle == bundle);
                    let tasks: BTreeMap<_, _> =
                        of_bundle.map(|(task, other)| (**task, bundled(&other.message))).collect();
                    if tasks.keys().next() == Some(task) {
                        agent.on_share_bundle(first, sharing_bundle(count, &tasks, (false, is_stored)), now_ns);
                    }
                }
            }
        }
        for (task, _) in open.iter().filter(|(_, accepted)| accepted.is_withdrawn) {
            agent.on_withdraw(**task, b"cancelled".to_vec(), Some(Stop::default()));
        }
        for run in node.head.runs.values() {
            agent.on_import_open(run.token.clone(), run.first);
        }
        for run in node.head.runs.values() {
            // Those that are in the record already are refused by it.
            for failed in run.first..run.attempt {
                agent.on_attempt_failed(run.token.id, failed, (Charge::Own, b"why".to_vec()), 0);
            }
            if let Some(outcome) = &run.outcome {
                agent.on_import_ended(run.token.id, run.attempt, outcome.clone());
            }
        }
        if reaches {
            agent.on_reachable(now_ns);
        }
        node.agent = Some(agent);
        self.report_free(at);
    }

    fn report_free(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let busy = node.head.runs.values().filter(|run| run.outcome.is_none()).count();
        let (free, seen) = (SLOTS.saturating_sub(busy), node.head.imports_seen);
        if let Some(agent) = &mut node.agent {
            agent.on_free(SLOTS, free, seen);
        }
        self.take_effects(at);
    }

    fn take_effects(&mut self, at: usize) {
        let Some(agent) = &mut self.nodes[at].agent else { return };
        let (effects, generation) = (agent.take_effects(), self.nodes[at].generation);
        for effect in effects {
            match effect {
                Effect::Ask(number, request) => {
                    self.travelling.push(Travelling::Request(at, generation, number, request));
                }
                Effect::Tell(what) => self.on_told_head(at, what),
                Effect::RemoveFile(name) => drop(self.nodes[at].files.take(&name)),
                Effect::SendOutput(..) => unreachable!("nothing is written here"),
            }
        }
    }

    fn on_told_head(&mut self, at: usize, what: ToHead) {
        let node = &mut self.nodes[at];
        let place = node.place;
        match what {
            ToHead::Stored(first) => {
                for accepted in node.head.all_of(first) {
                    assert!(!accepted.was_refused, "task {first} of {place} is stored after it was refused");
                    accepted.is_stored = true;
                }
            }
            ToHead::NotStored(first, _) => {
                for accepted in node.head.all_of(first).filter(|accepted| accepted.end.is_none()) {
                    assert!(!accepted.is_stored, "task {first} of {place} is refused after it was stored");
                    accepted.was_refused = true;
                }
            }
            ToHead::LostWrites(task) => {
                assert!(self.engine.has_lost_writes, "nothing was lost");
                node.head.accepted.get_mut(&task).unwrap().is_lost = true;
            }
            ToHead::Claimed(task, _) | ToHead::LetGo(task) => {
                assert!(node.head.accepted[&task].end.is_none(), "task {task} of {place} has ended for its head");
            }
            ToHead::Ended(task, end) => self.on_ended_for_head(at, task, end),
            ToHead::EndedTogether(ended) => {
                for (task, outcome) in ended.outcomes() {
                    let end = End::Outcome { attempt: 1, holder: None, outcome: outcome.into() };
                    self.on_ended_for_head(at, task, end);
                }
            }
            ToHead::Import(import) => {
                self.on_import(at, import);
                self.report_free(at);
            }
            ToHead::ImportBundle(bundle) => {
                bundle.imports().for_each(|import| self.on_import(at, import));
                self.report_free(at);
            }
            ToHead::BundleClaimed(first, _) => {
                let is_open = node.head.all_of(first).any(|accepted| accepted.end.is_none());
                assert!(is_open, "bundle {first} of {place} has ended for its head");
            }
            ToHead::Output { .. } => unreachable!("nothing is written here"),
            ToHead::Stop(id, _) => {
                if let Some(run) = node.head.runs.get_mut(&id) {
                    run.is_to_stop = true;
                }
            }
            ToHead::Superseded(id) => {
                if let Some(run) = node.head.runs.get_mut(&id).filter(|run| run.outcome.is_none()) {
                    run.outcome = Some(b"superseded".to_vec());
                    self.written.insert((id, run.attempt));
                    let attempt = run.attempt;
                    if let Some(agent) = &mut node.agent {
                        agent.on_import_given_back(id, attempt, true);
                    }
                    self.report_free(at);
                }
            }
            ToHead::CutOff(ended) => {
                assert_eq!(place, STOPS);
                self.ended_when_cut_off += ended;
            }
            ToHead::HeardAgain => self.heard_again += 1,
            ToHead::HasLetGo => {}
            ToHead::GiveBack(id) => {
                // Whatever it has not begun; here that is a matter of chance, as long as nobody has seen it run.
                let has_not_begun = |run: &&mut Running| run.outcome.is_none() && run.attempt == run.first;
                if let Some(run) = node.head.runs.get_mut(&id).filter(has_not_begun)
                    && self.random.chance(50)
                {
                    let attempt = run.attempt;
                    node.head.runs.remove(&id);
                    *self.starts.entry(id).or_default() -= 1;
                    self.given_back += 1;
                    if let Some(agent) = &mut node.agent {
                        agent.on_import_given_back(id, attempt, false);
                    }
                    self.report_free(at);
                }
            }
            ToHead::Settled(first, count) => {
                (0..count).for_each(|place| drop(node.head.runs.remove(&member(first, place))));
                self.report_free(at);
            }
            ToHead::Found(..) => panic!("nobody has asked"),
            ToHead::Cancel(task, stop, by) => {
                let is_open =
                    |accepted: &&mut Accepted| accepted.end.is_none() && !accepted.was_refused && !accepted.is_lost;
                let report = match node.head.accepted.get_mut(&task) {
                    None => CancelReport::Unknown,
                    Some(accepted) => match Some(accepted).filter(is_open) {
                        None => CancelReport::Ended,
                        Some(accepted) => {
                            accepted.is_withdrawn = true;
                            CancelReport::Cancelling
                        }
                    },
                };
                if let Some(agent) = &mut node.agent {
                    if report == CancelReport::Cancelling {
                        agent.on_withdraw(task, b"cancelled".to_vec(), Some(stop));
                    }
                    agent.on_cancelled_for(by, task, report);
                }
            }
            ToHead::CancelAnswered(number, answer) => {
                let is_open = self.cancels.remove(&(at, node.generation, number)).is_some();
                assert!(is_open, "a request to end a task is answered twice: {answer:?}");
                match answer {
                    CancelAnswer::Report(CancelReport::Cancelled) => self.cancelled_by_record += 1,
                    CancelAnswer::Report(CancelReport::Cancelling) => self.cancelling_elsewhere += 1,
                    _ => {}
                }
            }
            ToHead::Log(line) => assert!(line.contains("ended here: another node has taken"), "{line}"),
            // Its submitter is answered; nothing else changes.
            ToHead::Unanswered(_) => {}
        }
    }

    fn on_ended_for_head(&mut self, at: usize, task: TaskId, end: End) {
        let node = &mut self.nodes[at];
        let place = node.place;
        let accepted = node.head.accepted.get_mut(&task).unwrap();
        assert!(accepted.end.is_none(), "task {task} of {place} has ended twice for its head");
        accepted.end = Some(end.clone());
        if let End::Outcome { attempt, outcome, .. } = &end
            && let Ok(end) = SharedEnd::decode(outcome)
        {
            match end.outcome {
                Outcome::Stored(stored) => {
                    let id = ClusterTaskId { place, task };
                    assert_eq!(node.files.take(&stored.name), result_of(id, *attempt));
                    self.results += 1;
                }
                other => assert!(self.engine.has_lost_writes, "{other:?}"),
            }
        }
        if let Some(agent) = &mut node.agent {
            agent.on_taken(task);
        }
    }

    fn on_import(&mut self, at: usize, import: Import) {
        let id = import.token.id;
        self.assert_ended_where_cut_off(at, id);
        let node = &mut self.nodes[at];
        let place = node.place;
        node.head.imports_seen += 1;
        if import.token.handle.0.is_empty() && node.head.accepted.get(&id.task).is_some_and(|it| it.bundle.is_some()) {
            self.bundled_taken_back += 1;
        }
        let first = import.claim.attempt;
        if let Some(problem) = &import.problem {
            assert!(self.engine.has_lost_writes, "{problem}");
        } else if let Ok(envelope) = Envelope::decode(&import.envelope) {
            for input in &envelope.inputs {
                let InputSource::Stored(stored) = &input.source else { panic!("{input:?}") };
                assert_eq!(node.files.take(&stored.name), argument_of(id));
                self.arguments += 1;
            }
        }
        let past = &import.claim.past;
        let unknown = past.iter().find(|past| past.has_span && !self.written.contains(&(id, past.number)));
        assert_eq!(unknown, None, "nobody has written the span of an attempt at {id}");
        let missing: Vec<_> = import.claim.without_span().map(|past| (id, past.number)).collect();
        if let Some(agent) = node.agent.as_mut().filter(|_| !missing.is_empty()) {
            self.written.extend(missing);
            agent.on_stood_in(id, first);
        }
        let run = Running { token: import.token, first, attempt: first, outcome: None, is_to_stop: false };
        let before = node.head.runs.insert(id, run);
        assert!(before.is_none(), "{id} runs twice on {place}");
        // What a head has taken back runs in a worker that waits for it.
        let has_slot = |run: &&Running| run.outcome.is_none() && !run.token.handle.0.is_empty();
        let running = node.head.runs.values().filter(has_slot).count();
        let is_limited = place == PlaceId(3) && node.agent.is_some();
        assert!(running <= 1 || !is_limited, "{running} tasks run, but the queue may have one slot");
        let starts = self.starts.entry(id).or_default();
        *starts += 1;
        let is_once = self.at_most_once.contains(&id) && !self.engine.has_lost_writes;
        assert!(*starts == 1 || !is_once, "{id} was started {starts} times");
    }

    /// Asserts that a task which is about to begin on one node does not run on the one that ends what it may have lost.
    fn assert_ended_where_cut_off(&self, at: usize, id: ClusterTaskId) {
        let is_other = |(other, node): &(usize, &Node)| *other != at && node.place == STOPS && node.agent.is_some();
        // When the agent before it was heard, an agent does not know.
        let is_sure = |node: &Node| self.now_ns - node.since_ns >= ACK_WAIT && !self.engine.has_lost_writes;
        for (_, node) in self.nodes.iter().enumerate().filter(is_other).filter(|(_, node)| is_sure(node)) {
            let runs = node.head.runs.get(&id).is_some_and(|run| run.outcome.is_none());
            assert!(!runs, "{id} begins on node {at}, and goes on where the engine was not heard");
        }
    }

    fn submit_bundle(&mut self, at: usize) {
        let count = 2 + self.random.below(4) as u32;
        let first = TaskId(self.next_task);
        self.next_task += u64::from(count);
        let (now_ns, node) = (self.now_ns, &mut self.nodes[at]);
        let terms = Terms { at_most_once: false, crash_limit: 2 };
        let (envelope, _) = shared(None, Vec::new());
        let message = TaskMessage { submitted_unix_nano: now_ns, terms, envelope: &envelope, digests: &[] }.encode();
        let accepted = Accepted {
            tier: Tier::Second,
            message: message.clone(),
            values: Vec::new(),
            bundle: Some((first, count)),
            is_stored: false,
            is_withdrawn: false,
            end: None,
            was_refused: false,
            is_lost: false,
        };
        let tasks: BTreeMap<_, _> =
            (first.0..first.0 + u64::from(count)).map(|task| (TaskId(task), bundled(&message))).collect();
        node.head.accepted.extend(tasks.keys().map(|task| (*task, accepted.clone())));
        if let Some(agent) = &mut node.agent {
            agent.on_share_bundle(first, sharing_bundle(count, &tasks, (true, false)), now_ns);
        }
        self.take_effects(at);
    }

    fn submit(&mut self, at: usize) {
        let at_most_once = self.random.chance(30);
        let terms = Terms { at_most_once, crash_limit: 2 };
        let task = TaskId(self.next_task);
        self.next_task += 1;
        let has_values = self.random.chance(30);
        let (now_ns, node) = (self.now_ns, &mut self.nodes[at]);
        let mut envelope = b"envelope".to_vec();
        let mut values = Vec::new();
        if has_values {
            let argument = argument_of(ClusterTaskId { place: node.place, task });
            let stored = Stored { bytes: argument.len() as u64, name: node.files.write(argument.clone()) };
            (envelope, values) = shared(Some(stored), vec![(1, argument)]);
        }
        let message = TaskMessage { submitted_unix_nano: now_ns, terms, envelope: &envelope, digests: &[] }.encode();
        if at_most_once {
            self.at_most_once.insert(ClusterTaskId { place: node.place, task });
        }
        let tier = if self.random.chance(50) { Tier::First } else { Tier::Second };
        let accepted = Accepted {
            tier,
            message: message.clone(),
            values: values.clone(),
            bundle: None,
            is_stored: false,
            is_withdrawn: false,
            end: None,
            was_refused: false,
            is_lost: false,
        };
        node.head.accepted.insert(task, accepted);
        if let Some(agent) = &mut node.agent {
            let sharing = Sharing { tier, message, values, ..sharing() };
            agent.on_share(task, sharing, now_ns);
        }
        self.take_effects(at);
    }

    fn withdraw(&mut self, at: usize) {
        let open = |(task, accepted): (&TaskId, &Accepted)| {
            (accepted.end.is_none() && !accepted.was_refused && !accepted.is_lost).then_some(*task)
        };
        let open: Vec<_> = self.nodes[at].head.accepted.iter().filter_map(open).collect();
        if open.is_empty() {
            return;
        }
        let task = open[self.random.below(open.len())];
        let node = &mut self.nodes[at];
        node.head.accepted.get_mut(&task).unwrap().is_withdrawn = true;
        if let Some(agent) = &mut node.agent {
            agent.on_withdraw(task, b"cancelled".to_vec(), Some(Stop::default()));
        }
        self.take_effects(at);
    }

    /// Has somebody at a node want to end a task of another one.
    fn cancel_elsewhere(&mut self, at: usize) {
        let is_of_silent = self.random.chance(50);
        let others = self.nodes.iter().enumerate().filter(|(other, _)| *other != at);
        let others = others.filter(|(_, node)| !is_of_silent || node.agent.is_none());
        let of_node = |node: &Node| node.head.accepted.keys().map(|task| (node.place, *task)).collect::<Vec<_>>();
        let all: Vec<_> = others.flat_map(|(_, node)| of_node(node)).collect();
        let node = &mut self.nodes[at];
        if let (Some(agent), false) = (&mut node.agent, all.is_empty()) {
            let (place, task) = all[self.random.below(all.len())];
            let (id, number) = (ClusterTaskId { place, task }, self.next_cancel);
            self.next_cancel += 1;
            self.cancels.insert((at, node.generation, number), id);
            agent.on_cancel_elsewhere(number, id, Stop::default(), b"cancelled".to_vec(), self.now_ns);
        }
        self.take_effects(at);
    }

    /// Has a head want to run one of its own tasks.
    fn take_back(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let open = |(task, accepted): (&TaskId, &Accepted)| accepted.end.is_none().then_some(*task);
        let open: Vec<_> = node.head.accepted.iter().filter_map(open).collect();
        if let (Some(agent), false) = (&mut node.agent, open.is_empty()) {
            agent.on_take_back(open[self.random.below(open.len())], self.now_ns);
        }
        self.take_effects(at);
    }

    /// Lets a running attempt end, fail, or be given back.
    fn end_run(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let running: Vec<_> =
            node.head.runs.iter().filter(|(_, run)| run.outcome.is_none()).map(|(id, _)| *id).collect();
        if running.is_empty() {
            return;
        }
        let id = running[self.random.below(running.len())];
        let run = node.head.runs.get_mut(&id).unwrap();
        match self.random.below(8) {
            0 if !self.at_most_once.contains(&id) => {
                if let Some(agent) = &mut node.agent {
                    agent.on_attempt_failed(id, run.attempt, (Charge::Own, b"why".to_vec()), 0);
                }
                run.attempt += 1;
            }
            1 => {
                if let Some(agent) = &mut node.agent {
                    self.written.insert((id, run.attempt));
                    agent.on_import_given_back(id, run.attempt, true);
                    // It is remembered until that is settled; whatever comes of it, it does not run.
                    run.outcome = Some(b"given back".to_vec());
                }
            }
            _ => {
                let mut outcome = if run.is_to_stop { b"stopped".to_vec() } else { b"done".to_vec() };
                if self.random.chance(30) {
                    let result = result_of(id, run.attempt);
                    let bytes = result.len() as u64;
                    outcome = end_with(&node.files.write(result), bytes, run.attempt);
                }
                run.outcome = Some(outcome.clone());
                if let Some(agent) = &mut node.agent {
                    agent.on_import_ended(id, run.attempt, outcome);
                }
            }
        }
        self.report_free(at);
    }

    /// Has something arrive that is on its way, in whatever order.
    fn arrive(&mut self, loses: bool) {
        if self.travelling.is_empty() {
            return;
        }
        let which = self.random.below(self.travelling.len().min(8));
        match self.travelling.remove(which) {
            Travelling::Request(at, generation, number, request) => {
                let is_lost = !self.reaches(at) || (loses && self.random.chance(3));
                let answer = if is_lost {
                    Some(Answer::Unreachable)
                } else {
                    if let Request::Tell(place, told) = &request {
                        self.travelling.push(Travelling::Told(*place, told.clone()));
                    }
                    let written = match &request {
                        Request::Swap { key, record, .. } => Some((*key, record.clone())),
                        _ => None,
                    };
                    let node = &mut self.nodes[at];
                    if let (Request::Beat(_), Some(agent)) = (&request, &mut node.agent)
                        && node.generation == generation
                    {
                        agent.on_heard(self.now_ns);
                    }
                    let (answer, delivered) =
                        self.engine.carry_out((node.place, &mut node.files), request, self.now_ns);
                    if let (Some((key, record)), Some(Answer::Swapped(Some(_)))) = (written, &answer) {
                        self.travelling.push(Travelling::Record(key, record));
                    }
                    let delivered = delivered.into_iter();
                    self.travelling.extend(delivered.map(|delivery| Travelling::Delivery(at, generation, delivery)));
                    // It was done, and nobody is told.
                    if loses && self.random.chance(3) { answer.map(|_| Answer::Unreachable) } else { answer }
                };
                if let Some(answer) = answer {
                    self.travelling.push(Travelling::Answer(at, generation, number, answer));
                }
            }
            Travelling::Answer(at, generation, number, answer) => {
                let node = &mut self.nodes[at];
                if let Some(agent) = node.agent.as_mut().filter(|_| node.generation == generation) {
                    agent.on_answer(number, answer);
                }
                self.take_effects(at);
            }
            Travelling::Delivery(at, generation, delivery) => {
                let reaches = self.reaches(at);
                let node = &mut self.nodes[at];
                if let Some(agent) = node.agent.as_mut().filter(|_| node.generation == generation && reaches) {
                    agent.on_delivered(delivery, self.now_ns);
                }
                self.take_effects(at);
            }
            Travelling::Told(place, told) => {
                let at = self.nodes.iter().position(|node| node.place == place).unwrap();
                let reaches = self.reaches(at);
                if let Some(agent) = self.nodes[at].agent.as_mut().filter(|_| reaches) {
                    agent.on_told(&told, 0);
                }
                self.take_effects(at);
            }
            Travelling::Record(key, record) => {
                let (RecordKey::Task(id) | RecordKey::Bundle(id)) = key;
                let at = self.nodes.iter().position(|node| node.place == id.place).unwrap();
                let reaches = self.reaches(at);
                if let Some(agent) = self.nodes[at].agent.as_mut().filter(|_| reaches) {
                    agent.on_record(key, &record);
                }
                self.take_effects(at);
            }
        }
    }

    fn tick(&mut self, by_ns: u64) {
        self.now_ns += by_ns;
        for at in 0..self.nodes.len() {
            if let Some(agent) = &mut self.nodes[at].agent {
                agent.on_tick(self.now_ns);
            }
            self.take_effects(at);
        }
    }

    fn note_reach(&mut self) {
        for at in 0..self.nodes.len() {
            let (reaches, now_ns) = (self.reaches(at), self.now_ns);
            let Some(agent) = &mut self.nodes[at].agent else { continue };
            match (reaches, agent.is_reachable) {
                (true, false) => agent.on_reachable(now_ns),
                (false, true) => agent.on_unreachable(now_ns),
                _ => {}
            }
            self.take_effects(at);
        }
    }

    fn kill_agent(&mut self, at: usize) {
        self.nodes[at].agent = None;
        self.nodes[at].generation += 1;
    }

    fn fault(&mut self, faults: Faults) {
        let at = self.random.below(self.nodes.len());
        match self.random.below(6) {
            // The agent dies.
            0 => self.kill_agent(at),
            // The head dies, and its agent with it; what it runs is gone.
            1 => {
                let node = &mut self.nodes[at];
                node.agent = None;
                node.generation += 1;
                node.head.life += 1;
                node.head.runs.clear();
                // It does not know what its agent was told.
                node.head.accepted.values_mut().for_each(|accepted| accepted.is_stored &= !self.engine.has_lost_writes);
            }
            2 => self.nodes[at].is_cut_off ^= true,
            3 => self.is_engine_up ^= true,
            // The engine comes back with what it had on its disk, or with acknowledgements undone.
            4 if faults.loses_writes && self.random.chance(30) => {
                self.engine.kept = self.engine.synced.clone();
                self.engine.has_lost_writes = true;
                self.is_engine_up = false;
            }
            4 => {
                let undone = self.engine.kept.messages.iter_mut().filter(|message| message.is_done);
                undone.for_each(|message| (message.is_done, message.again_ns) = (false, None));
                for message in &mut self.engine.kept.messages {
                    message.is_passed |= self.random.chance(10);
                }
                self.is_engine_up = false;
            }
            _ => self.engine.synced = self.engine.kept.clone(),
        }
        self.note_reach();
    }

    fn heal(&mut self) {
        self.is_engine_up = true;
        for at in 0..self.nodes.len() {
            self.nodes[at].is_cut_off = false;
            if self.nodes[at].agent.is_none() {
                self.start_agent(at);
            }
        }
        self.note_reach();
    }

    fn are_all_ended(&self) -> bool {
        let has_ended = |accepted: &Accepted| accepted.end.is_some() || accepted.was_refused || accepted.is_lost;
        let is_answered = |(at, generation, _): &(usize, u64, u64)| self.nodes[*at].generation != *generation;
        self.nodes.iter().all(|node| node.head.accepted.values().all(has_ended) && node.head.runs.is_empty())
            && self.cancels.keys().all(is_answered)
    }

    fn describe(&self) -> String {
        let mut text = String::new();
        for node in &self.nodes {
            for (task, accepted) in &node.head.accepted {
                if accepted.end.is_none() && !accepted.was_refused && !accepted.is_lost {
                    let id = ClusterTaskId { place: node.place, task: *task };
                    let record = self.engine.kept.records.get(&RecordKey::Task(id));
                    let record = record.map(|entry| Record::decode(&entry.value));
                    let of_message = accepted.bundle.map_or(*task, |(first, _)| first);
                    let of_message = ClusterTaskId { task: of_message, ..id };
                    let bundle = self.engine.kept.records.get(&RecordKey::Bundle(of_message));
                    let bundle = bundle.map(|entry| BundleRecord::decode(&entry.value));
                    let message = self.engine.kept.messages.iter().rfind(|message| message.id == of_message);
                    text += &format!("{id}: {accepted:?}\n  {record:?}\n  {bundle:?}\n  {message:?}\n");
                }
            }
            text += &format!("{} runs {:?}\n  {:?}\n", node.place, node.head.runs, node.agent);
        }
        text + &format!("to be ended: {:?}\n", self.cancels)
    }
}

/// Counts of what a run has come to, so that a test can say that the interesting things happen at all.
#[derive(Debug, Default)]
struct Seen {
    succeeded: u32,
    cancelled: u32,
    lost: u32,
    nodes_lost: u32,
    again: u32,
    refused: u32,
    lost_by_engine: u32,
    arguments: u32,
    results: u32,
    /// Tasks of bundles that have ended in the record of their bundle, in their own, and after they were begun again; and those that nobody had begun.
    whole: u32,
    apart: u32,
    bundled_again: u32,
    bundled_cancelled: u32,
    bundled_taken_back: u32,
    given_back: u32,
    ended_when_cut_off: u32,
    heard_again: u32,
    cancelled_by_record: u32,
    cancelling_elsewhere: u32,
}

impl Seen {
    fn add(&mut self, world: &World) {
        self.arguments += world.arguments;
        self.bundled_taken_back += world.bundled_taken_back;
        self.given_back += world.given_back;
        self.ended_when_cut_off += world.ended_when_cut_off;
        self.heard_again += world.heard_again;
        self.cancelled_by_record += world.cancelled_by_record;
        self.cancelling_elsewhere += world.cancelling_elsewhere;
        self.results += world.results;
        self.again += world.starts.values().filter(|starts| **starts > 1).count() as u32;
        for node in &world.nodes {
            for (task, accepted) in node.head.accepted.iter().filter(|(_, accepted)| accepted.bundle.is_some()) {
                let id = ClusterTaskId { place: node.place, task: *task };
                let is_cancelled = matches!(accepted.end, Some(End::Outcome { attempt: 0, .. }));
                let is_apart = world.engine.kept.records.contains_key(&RecordKey::Task(id));
                self.bundled_cancelled += u32::from(is_cancelled);
                self.apart += u32::from(is_apart && !is_cancelled);
                self.whole += u32::from(accepted.end.is_some() && !is_apart && !is_cancelled);
                self.bundled_again += u32::from(world.starts.get(&id).is_some_and(|starts| *starts > 1));
            }
        }
        for accepted in world.nodes.iter().flat_map(|node| node.head.accepted.values()) {
            self.refused += u32::from(accepted.was_refused);
            self.lost_by_engine += u32::from(accepted.is_lost);
            match &accepted.end {
                Some(End::Outcome { attempt: 0, .. }) => self.cancelled += 1,
                Some(End::Outcome { .. }) => self.succeeded += 1,
                Some(End::Lost(_)) => self.lost += 1,
                Some(End::NodesLost(_)) => self.nodes_lost += 1,
                None => {}
            }
        }
    }
}

/// Says which seed it was, if what follows panics.
struct Saying(u64);

impl Drop for Saying {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}; TRACER_FIRST_SEED begins with it", self.0);
        }
    }
}

fn run(seed: u64, faults: Faults, seen: &mut Seen) {
    let _saying = Saying(seed);
    let mut world = World::new(seed);
    for at in 0..world.nodes.len() {
        world.start_agent(at);
    }
    for _ in 0..300 {
        let at = world.random.below(world.nodes.len());
        match world.random.below(100) {
            0..6 => world.submit(at),
            6..8 => world.submit_bundle(at),
            8..10 => world.withdraw(at),
            10..20 => world.end_run(at),
            20..30 => {
                let by_ns = world.random.next() % (4 * SECOND);
                world.tick(by_ns);
            }
            30..33 => world.fault(faults),
            33..36 => world.heal(),
            36..38 if world.nodes[at].agent.is_none() => {
                world.start_agent(at);
                world.note_reach();
            }
            38..40 => world.take_back(at),
            40..42 => world.cancel_elsewhere(at),
            _ => world.arrive(true),
        }
    }
    if seed.is_multiple_of(4) {
        // One of them is away for longer than anybody waits for it.
        world.heal();
        world.kill_agent(0);
        for _ in 0..6 {
            (1..3).for_each(|at| world.cancel_elsewhere(at));
            (0..100).for_each(|_| world.arrive(true));
            world.tick(SECOND);
        }
    }
    // From here on nothing goes wrong, and everything comes to its end.
    world.heal();
    for round in 0.. {
        for _ in 0..40 {
            world.arrive(false);
        }
        for at in 0..world.nodes.len() {
            world.end_run(at);
        }
        world.tick(SECOND);
        if world.are_all_ended() {
            break;
        }
        assert!(round < 2_000, "seed {seed}: these do not end:\n{}", world.describe());
    }
    for node in &world.nodes {
        for (task, accepted) in &node.head.accepted {
            let id = ClusterTaskId { place: node.place, task: *task };
            let starts = world.starts.get(&id).copied().unwrap_or(0);
            assert!(!accepted.was_refused || starts == 0, "seed {seed}: {id} was refused and started");
            if let (Some(End::Outcome { outcome, .. }), false) = (&accepted.end, world.engine.has_lost_writes) {
                let recorded = world.engine.record_of(id, accepted.bundle);
                if let Some(Record::Ended(End::Outcome { outcome: recorded, .. })) = recorded
                    && value_of(&recorded).is_none()
                {
                    assert_eq!(recorded, *outcome, "seed {seed}: {id}");
                }
            }
        }
    }
    seen.add(&world);
}

/// Seeds of a run of the gate; `TRACER_SEEDS` has another number.
fn seeds() -> u64 {
    number_from("TRACER_SEEDS").unwrap_or(3_000)
}

fn first_seed() -> u64 {
    number_from("TRACER_FIRST_SEED").unwrap_or(0)
}

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|number| number.parse().ok())
}

#[test]
fn every_accepted_task_ends_once_whatever_dies_and_none_starts_twice_that_must_not() {
    let mut seen = Seen::default();
    (first_seed()..first_seed() + seeds()).for_each(|seed| run(seed, Faults { loses_writes: false }, &mut seen));
    let of_tasks = [seen.succeeded, seen.cancelled, seen.lost, seen.nodes_lost, seen.again, seen.refused];
    let of_bundles = [seen.whole, seen.apart, seen.bundled_again, seen.bundled_cancelled, seen.bundled_taken_back];
    let of_partitions = [seen.ended_when_cut_off, seen.heard_again];
    let of_cancels = [seen.cancelled_by_record, seen.cancelling_elsewhere];
    let counts = of_tasks.iter().chain(&of_bundles).chain(&of_partitions).chain(&of_cancels);
    let counts = counts.chain([&seen.arguments, &seen.results, &seen.given_back]);
    assert!(counts.into_iter().all(|count| *count > 10), "{seen:?}");
    assert_eq!(seen.lost_by_engine, 0);
}

#[test]
fn every_accepted_task_ends_for_its_head_once_although_the_engine_loses_writes() {
    let mut seen = Seen::default();
    (first_seed()..first_seed() + seeds() / 3).for_each(|seed| run(seed, Faults { loses_writes: true }, &mut seen));
    assert!(seen.lost_by_engine > 0, "{seen:?}");
}

/// Time that passes until another node has what a dead one held, in nanoseconds; none if the origin itself had it.
fn take_over_ns(seed: u64, submit: fn(&mut World, usize)) -> Option<u64> {
    const STEP: u64 = SECOND / 4;
    let mut world = World::new(seed);
    for at in 0..world.nodes.len() {
        world.start_agent(at);
    }
    submit(&mut world, 0);
    let go_on = |world: &mut World| {
        (0..200).for_each(|_| world.arrive(false));
        world.tick(STEP);
    };
    let runs = |world: &World, at: usize| !world.nodes[at].head.runs.is_empty();
    while !(0..3).any(|at| runs(&world, at)) {
        go_on(&mut world);
    }
    // It dies at any time between two heartbeats.
    for _ in 0..world.random.below(12) {
        go_on(&mut world);
    }
    let dead = (1..3).find(|at| runs(&world, *at))?;
    let node = &mut world.nodes[dead];
    (node.agent, node.generation) = (None, node.generation + 1);
    let (died_ns, ran) = (world.now_ns, node.head.runs.keys().copied().collect::<Vec<_>>());
    let is_over = |world: &World| {
        ran.iter().any(|id| {
            let accepted = &world.nodes[0].head.accepted[&id.task];
            let record = world.engine.record_of(*id, accepted.bundle);
            let holder = record.as_ref().and_then(Record::claim).map(|claim| claim.holder.place);
            accepted.end.is_some() || holder.is_some_and(|place| place != world.nodes[dead].place)
        })
    };
    while !is_over(&world) {
        assert!(world.now_ns - died_ns < 4 * ACK_WAIT, "seed {seed}: {}", world.describe());
        go_on(&mut world);
    }
    Some(world.now_ns - died_ns)
}

#[test]
fn what_a_dead_node_held_is_taken_over_after_two_intervals_and_a_moment() {
    let least_and_most = |submit: fn(&mut World, usize)| {
        let taken: Vec<_> = (0..100).filter_map(|seed| take_over_ns(seed, submit)).collect();
        assert!(taken.len() > 30, "{taken:?}");
        (*taken.iter().min().unwrap(), *taken.iter().max().unwrap())
    };
    let limit = 2 * ACK_WAIT + 3 * SECOND;
    let (least, most) = least_and_most(World::submit);
    assert!(least > ACK_WAIT && most < limit, "{least} to {most} ns");
    // Of a bundle it may have given back what it had not begun.
    let (_, most) = least_and_most(World::submit_bundle);
    assert!(most < limit, "{most} ns");
}

#[test]
fn a_token_is_read_as_it_was_written() {
    let id = ClusterTaskId { place: PlaceId(7), task: TaskId(8) };
    let terms = Terms { at_most_once: true, crash_limit: 2 };
    for bundle in [None, Some((TaskId(7), 3))] {
        let token = Token { id, queue: "q".into(), handle: Handle("$JS.ACK.x".into()), terms, bundle };
        assert_eq!(Token::decode(id, &token.encode()), Ok(token));
    }
    assert!(Token::decode(id, b"short").is_err());
}

fn agent() -> Agent {
    let mut agent = Agent::new(settings(PlaceId(1), 1), 0);
    agent.on_reachable(0);
    agent.take_effects();
    agent
}

fn message() -> Vec<u8> {
    let terms = Terms { at_most_once: false, crash_limit: 2 };
    TaskMessage { submitted_unix_nano: 0, terms, envelope: b"e", digests: &[] }.encode()
}

fn sharing() -> Sharing {
    Sharing {
        queue: QUEUE.into(),
        tier: Tier::First,
        message: message(),
        values: Vec::new(),
        key: None,
        asks_for: None,
        is_new: true,
        is_stored: false,
    }
}

/// Returns an envelope as it travels, with an argument in a file and others that were set aside.
fn shared(file: Option<Stored>, large: Vec<(u32, Vec<u8>)>) -> (Vec<u8>, Vec<ValueSource>) {
    let spec = TaskSpec::Function(FunctionSpec::of_task("demo", "f", &[0x92, 0xc0, 0xc0]));
    let inputs = file.into_iter().map(|stored| Input { argument: 0, source: InputSource::Stored(stored) }).collect();
    let mut bytes = Vec::new();
    Envelope { inputs, ..Envelope::of(spec) }.encode(&mut bytes);
    let Prepared { envelope, values, .. } = prepare(&bytes, large).unwrap();
    (envelope, values)
}

/// Returns a task with one large argument.
fn sharing_a_value() -> Sharing {
    let (envelope, values) = shared(None, vec![(0, b"value".to_vec())]);
    let terms = Terms { at_most_once: false, crash_limit: 2 };
    let message = TaskMessage { submitted_unix_nano: 0, terms, envelope: &envelope, digests: &[] }.encode();
    Sharing { message, values, ..sharing() }
}

/// Returns the only thing that the engine is asked.
#[track_caller]
fn only_asked(agent: &mut Agent) -> (u64, Request) {
    match <[_; 1]>::try_from(agent.take_effects()) {
        Ok([Effect::Ask(number, request)]) => (number, request),
        other => panic!("{other:?}"),
    }
}

const DIGEST: Digest = [7; 32];

#[test]
fn an_argument_is_in_the_engine_before_the_task_and_goes_when_its_end_is_written_down() {
    let mut agent = agent();
    agent.on_share(TaskId(1), sharing_a_value(), 0);
    let id = ClusterTaskId { place: PlaceId(1), task: TaskId(1) };
    let (number, request) = only_asked(&mut agent);
    let source = ValueSource::Bytes(b"value".to_vec());
    assert_eq!(request, Request::PutValue { id, attempt: 0, source });
    agent.on_answer(number, Answer::Unreachable);
    assert_eq!(agent.take_effects(), [], "it is tried again with the next heartbeat");
    agent.on_tick(3 * SECOND);
    let put = agent.take_effects().into_iter().find_map(|effect| match effect {
        Effect::Ask(number, Request::PutValue { .. }) => Some(number),
        _ => None,
    });
    agent.on_answer(put.unwrap(), Answer::ValuePut(Ok(DIGEST)));
    let (number, request) = only_asked(&mut agent);
    let Request::Put { message, .. } = request else { panic!("{request:?}") };
    let values = TaskMessage::decode(&message).unwrap().values(id).unwrap();
    assert_eq!(values, [ValueKey { id, attempt: 0, digest: DIGEST, bytes: 5 }]);
    agent.on_answer(number, Answer::Put(Ok(())));
    agent.on_taken(TaskId(1));
    assert_eq!(agent.take_effects(), [Effect::Tell(ToHead::Stored(TaskId(1)))], "it has not ended");
    let end = End::Outcome { attempt: 1, holder: None, outcome: b"done".to_vec() };
    agent.on_record(RecordKey::Task(id), &Record::Ended(end.clone()).encode());
    assert_eq!(agent.take_effects(), [Effect::Tell(ToHead::Ended(TaskId(1), end))]);
    agent.on_taken(TaskId(1));
    assert_eq!(only_asked(&mut agent).1, Request::DropValues(id));
}

#[test]
fn what_is_refused_after_an_argument_was_put_leaves_no_value() {
    let mut agent = agent();
    agent.on_share(TaskId(1), sharing_a_value(), 0);
    let (number, _) = only_asked(&mut agent);
    agent.on_answer(number, Answer::ValuePut(Err(PutError::Full)));
    let id = ClusterTaskId { place: PlaceId(1), task: TaskId(1) };
    let effects = agent.take_effects();
    let refused = Effect::Tell(ToHead::NotStored(TaskId(1), NotStored::Put(PutError::Full)));
    assert!(effects.contains(&refused), "{effects:?}");
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Ask(_, Request::DropValues(of)) if *of == id)));
}

/// Has a task with a large argument delivered, and answers until its argument is asked for.
fn claim_with_a_value(agent: &mut Agent, id: ClusterTaskId) -> (u64, ValueKey) {
    let (envelope, _) = shared(None, vec![(0, b"value".to_vec())]);
    let terms = Terms { at_most_once: false, crash_limit: 2 };
    let message = TaskMessage { submitted_unix_nano: 0, terms, envelope: &envelope, digests: &DIGEST }.encode();
    agent.on_free(2, 2, 0);
    agent.take_effects();
    let handle = Handle("1".into());
    agent.on_delivered(Delivery { queue: QUEUE.into(), handle, id, message, is_again: false }, 0);
    let (number, _) = only_asked(agent);
    agent.on_answer(number, Answer::Swapped(Some(1)));
    match only_asked(agent) {
        (number, Request::GetValue(key)) => (number, key),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_damaged_argument_is_a_problem_by_name_and_one_that_is_missing_is_asked_of_its_origin() {
    let id = ClusterTaskId { place: PlaceId(2), task: TaskId(1) };
    for (why, is_told) in [(ValueError::Damaged("it has other bytes".into()), false), (ValueError::Missing, true)] {
        let mut agent = agent();
        let (mut number, key) = claim_with_a_value(&mut agent, id);
        assert_eq!(key, ValueKey { id, attempt: 0, digest: DIGEST, bytes: 5 });
        let mut asked = 0;
        let problem = (1..).find_map(|round| {
            agent.on_answer(number, Answer::ValueGot(Err(why.clone())));
            agent.on_tick(3 * SECOND * round);
            let mut problem = None;
            for effect in agent.take_effects() {
                match effect {
                    Effect::Ask(next, Request::GetValue(_)) => number = next,
                    Effect::Ask(_, Request::Tell(PlaceId(2), told)) => {
                        assert_eq!(Told::decode(&told), Ok(Told::NeedsValues(id)));
                        asked += 1;
                    }
                    Effect::Tell(ToHead::Import(import)) => problem = import.problem,
                    _ => {}
                }
            }
            problem
        });
        let problem = problem.unwrap();
        assert!(
            problem.contains("an argument of 5 B cannot be had") && problem.contains(&why.to_string()),
            "{problem}"
        );
        assert_eq!(asked > 0, is_told);
    }
}

#[test]
fn an_argument_of_a_delivery_that_was_let_go_of_is_removed_and_taken_for_no_other() {
    let id = ClusterTaskId { place: PlaceId(2), task: TaskId(1) };
    let mut agent = agent();
    let (number, _) = claim_with_a_value(&mut agent, id);
    agent.on_stopping();
    let effects = agent.take_effects();
    let [Effect::Ask(_, Request::StopPulling), Effect::Ask(swap, Request::Swap { .. })] = effects[..] else {
        panic!("{effects:?}")
    };
    agent.on_answer(swap, Answer::Swapped(Some(2)));
    let effects = agent.take_effects();
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Ask(_, Request::GiveBack(_)))), "{effects:?}");
    agent.on_answer(number, Answer::ValueGot(Ok("9".into())));
    assert_eq!(agent.take_effects(), [Effect::RemoveFile("9".into())]);
}

#[test]
fn what_is_about_to_be_given_back_is_not_handed_over_when_its_arguments_come() {
    let id = ClusterTaskId { place: PlaceId(2), task: TaskId(1) };
    let mut agent = agent();
    let (number, _) = claim_with_a_value(&mut agent, id);
    agent.on_stopping();
    let effects = agent.take_effects();
    let [_, Effect::Ask(swap, Request::Swap { .. })] = effects[..] else { panic!("{effects:?}") };
    // Nobody knows whether it is given back; until that is known others may have it.
    agent.on_answer(swap, Answer::Unreachable);
    agent.take_effects();
    agent.on_answer(number, Answer::ValueGot(Ok("9".into())));
    assert_eq!(agent.take_effects(), [Effect::RemoveFile("9".into())]);
}

#[test]
fn what_is_asked_of_any_task_is_answered_from_its_record_and_its_queue() {
    let id = ClusterTaskId { place: PlaceId(9), task: TaskId(4) };
    let holder = Holder { place: PlaceId(2), life: 1 };
    let mark = Mark { node_id: "b".into(), unix_nano: 7 };
    let claim = Claim { holder, mark, attempt: 2, failures: 0, crashes: 1, past: Vec::new(), wish: None };
    let entry = |record: &Record| Some(Entry { revision: 1, stamp_ns: 1, value: record.encode() });
    let ended = |outcome: Vec<u8>| Record::Ended(End::Outcome { attempt: 2, holder: Some(holder), outcome });
    let claimed = Found::Claimed(ClaimedBy { node_id: "b".into(), attempt: 2, since_unix_nano: 7 });
    let given_back = Record::GivenBack { claim: claim.clone(), has_begun: false };
    let waits = |attempts| Found::Waiting { queue: QUEUE.into(), attempts };
    let done = Found::Ended { end: b"done".to_vec(), loss: None };
    let cases = [
        (None, Some(None), Found::Unknown),
        (None, Some(Some(QUEUE.to_owned())), waits(0)),
        (entry(&given_back), Some(Some(QUEUE.to_owned())), waits(1)),
        (entry(&Record::Claimed(claim)), None, claimed),
        (entry(&ended(b"done".to_vec())), None, done),
    ];
    for (record, queue, expected) in cases {
        let mut agent = agent();
        let is_unknown = record.is_none();
        agent.on_find(5, id, 0);
        let (number, request) = only_asked(&mut agent);
        assert_eq!(request, Request::Read(RecordKey::Task(id)));
        agent.on_answer(number, Answer::Record(record));
        if let Some(queue) = queue {
            if is_unknown {
                for first in (1..=id.task.0).rev() {
                    let (number, request) = only_asked(&mut agent);
                    let first = ClusterTaskId { task: TaskId(first), ..id };
                    assert_eq!(request, Request::Read(RecordKey::Bundle(first)));
                    agent.on_answer(number, Answer::Record(None));
                }
            }
            let (number, request) = only_asked(&mut agent);
            assert_eq!(request, Request::FindMessage(id));
            let queue = queue.map(|queue| InQueue { queue, is_bundle: false });
            agent.on_answer(number, Answer::InQueue(queue));
        }
        assert_eq!(agent.take_effects(), [Effect::Tell(ToHead::Found(5, expected))]);
    }
    let shared = SharedEnd {
        outcome: Outcome::Stored(Stored { name: String::new(), bytes: 5 }),
        digest: Some(DIGEST),
        ..SharedEnd::decode(&end_with("7", 5, 2)).unwrap()
    };
    for (got, is_there) in [(Ok("12".to_owned()), true), (Err(ValueError::Missing), false)] {
        let mut agent = agent();
        agent.on_find(5, id, 0);
        let (number, _) = only_asked(&mut agent);
        agent.on_answer(number, Answer::Record(entry(&ended(shared.encode()))));
        let (number, request) = only_asked(&mut agent);
        assert_eq!(request, Request::GetValue(ValueKey { id, attempt: 2, digest: DIGEST, bytes: 5 }));
        agent.on_answer(number, Answer::ValueGot(got));
        let effects = agent.take_effects();
        let [Effect::Tell(ToHead::Found(5, Found::Ended { end, loss }))] = &effects[..] else { panic!("{effects:?}") };
        assert_eq!(loss.is_none(), is_there, "{loss:?}");
        let name = if is_there { "12" } else { "" };
        let outcome = SharedEnd::decode(end).unwrap().outcome;
        assert_eq!(outcome, Outcome::Stored(Stored { name: name.into(), bytes: 5 }));
    }
    let mut named = agent();
    named.on_find(5, id, 0);
    let (number, _) = only_asked(&mut named);
    named.on_answer(number, Answer::Record(entry(&ended(end_with("7", 5, 2)))));
    let effects = named.take_effects();
    let [Effect::Tell(ToHead::Found(5, Found::Ended { end, loss: Some(_) }))] = &effects[..] else {
        panic!("{effects:?}")
    };
    let outcome = SharedEnd::decode(end).unwrap().outcome;
    assert_eq!(outcome, Outcome::Stored(Stored { name: String::new(), bytes: 5 }), "no file of this node is named");
    let mut away = Agent::new(settings(PlaceId(1), 1), 0);
    away.on_find(6, id, 0);
    assert_eq!(away.take_effects(), [], "it may be there in a moment");
    let long_away_ns = away.settings.engine_wait_ns;
    away.on_tick(long_away_ns);
    assert_eq!(away.take_effects(), [Effect::Tell(ToHead::Found(6, Found::Unreachable))]);
    away.on_find(7, id, long_away_ns);
    assert_eq!(away.take_effects(), [Effect::Tell(ToHead::Found(7, Found::Unreachable))]);
}

/// Returns the number of a request for a record among what is to be done, if there is one.
fn reads_a_record(effects: &[Effect]) -> Option<u64> {
    effects.iter().find_map(|effect| match effect {
        Effect::Ask(number, Request::Read(_)) => Some(*number),
        _ => None,
    })
}

#[test]
fn a_question_that_the_engine_does_not_answer_is_asked_again_for_as_long_as_a_submission_would_wait() {
    let id = ClusterTaskId { place: PlaceId(9), task: TaskId(4) };
    let mut agent = agent();
    let since_ns = agent.ticked_ns;
    let limit_ns = since_ns + agent.settings.engine_wait_ns;
    agent.on_find(5, id, since_ns);
    let (mut now_ns, mut times) = (since_ns, 0);
    let unanswered = Effect::Tell(ToHead::Found(5, Found::Unreachable));
    loop {
        let effects = agent.take_effects();
        if effects.contains(&unanswered) {
            break;
        }
        if let Some(number) = reads_a_record(&effects) {
            times += 1;
            agent.on_answer(number, Answer::Unreachable);
        } else {
            now_ns += SECOND / 10;
            agent.on_tick(now_ns);
        }
        assert!(now_ns < 2 * limit_ns, "it is answered at last");
    }
    assert!(now_ns + SECOND > limit_ns && now_ns <= limit_ns && times > 10, "{now_ns} of {limit_ns}, {times}");
    // An answer that comes in time is one.
    agent.on_find(6, id, now_ns);
    let number = reads_a_record(&agent.take_effects()).expect("it asks at once");
    agent.on_answer(number, Answer::Unreachable);
    assert_eq!(reads_a_record(&agent.take_effects()), None);
    agent.on_tick(now_ns + SECOND);
    let number = reads_a_record(&agent.take_effects()).expect("it asks again");
    let record = Record::Ended(End::Outcome { attempt: 1, holder: None, outcome: b"done".to_vec() }).encode();
    agent.on_answer(number, Answer::Record(Some(Entry { revision: 1, stamp_ns: 1, value: record })));
    let done = Found::Ended { end: b"done".to_vec(), loss: None };
    assert_eq!(agent.take_effects(), [Effect::Tell(ToHead::Found(6, done))]);
}

#[test]
fn a_task_that_nobody_has_begun_is_taken_back_and_one_that_somebody_has_is_not() {
    let id = ClusterTaskId { place: PlaceId(1), task: TaskId(1) };
    let (own, other) = (Holder { place: PlaceId(1), life: 1 }, Holder { place: PlaceId(2), life: 1 });
    let mark = Mark { node_id: PlaceId(1).to_string(), unix_nano: 7 };
    let claim = |holder| Claim {
        holder,
        mark: mark.clone(),
        attempt: 1,
        failures: 0,
        crashes: 0,
        past: Vec::new(),
        wish: None,
    };
    let entry = |record: Record| Answer::Record(Some(Entry { revision: 1, stamp_ns: 1, value: record.encode() }));
    let asking = || {
        let mut agent = agent();
        agent.on_share(TaskId(1), sharing(), 0);
        let (number, _) = only_asked(&mut agent);
        agent.on_take_back(TaskId(1), 7);
        assert_eq!(only_asked(&mut agent).1, Request::Read(RecordKey::Task(id)));
        agent.on_answer(number, Answer::Put(Ok(())));
        assert_eq!(agent.take_effects(), [Effect::Tell(ToHead::Stored(TaskId(1)))]);
        agent
    };
    let is_import =
        |effect: &Effect| matches!(effect, Effect::Tell(ToHead::Import(import)) if import.claim == claim(own));
    // Nobody has it.
    let mut agent = asking();
    let number = *agent.asked.keys().last().unwrap();
    agent.on_answer(number, Answer::Record(None));
    let (number, swap) = only_asked(&mut agent);
    assert_eq!(
        swap,
        Request::Swap { key: RecordKey::Task(id), revision: None, record: Record::Claimed(claim(own)).encode() }
    );
    agent.on_answer(number, Answer::Swapped(Some(1)));
    assert!(matches!(&agent.take_effects()[..], [effect] if is_import(effect)));
    // Its end needs no message.
    agent.on_import_ended(id, 1, b"done".to_vec());
    let (number, _) = only_asked(&mut agent);
    agent.on_answer(number, Answer::Swapped(Some(2)));
    let effects = agent.take_effects();
    assert!(effects.iter().all(|effect| matches!(effect, Effect::Tell(_))) && effects.len() == 2, "{effects:?}");
    // This node has it already, and nobody told.
    let mut agent = asking();
    let number = *agent.asked.keys().last().unwrap();
    agent.on_answer(number, entry(Record::Claimed(claim(own))));
    assert!(matches!(&agent.take_effects()[..], [effect] if is_import(effect)));
    // Another one has it.
    let mut agent = asking();
    let number = *agent.asked.keys().last().unwrap();
    agent.on_answer(number, entry(Record::Claimed(claim(other))));
    assert_eq!(agent.take_effects(), []);
    agent.on_tick(10 * SECOND);
    let is_about_it = |effect: &Effect| matches!(effect, Effect::Ask(_, Request::Read(_) | Request::Swap { .. }));
    assert!(!agent.take_effects().iter().any(is_about_it), "it is not asked for again");
}

#[test]
fn the_head_hears_which_node_has_its_task_and_that_it_has_let_go_of_it() {
    let id = ClusterTaskId { place: PlaceId(1), task: TaskId(1) };
    let holder = Holder { place: PlaceId(2), life: 1 };
    let mark = Mark { node_id: "b".into(), unix_nano: 7 };
    let claim = Claim { holder, mark, attempt: 2, failures: 1, crashes: 0, past: Vec::new(), wish: None };
    let claimed = ClaimedBy { node_id: "b".into(), attempt: 2, since_unix_nano: 7 };
    let mut agent = agent();
    agent.on_share(TaskId(1), sharing(), 0);
    let (number, _) = only_asked(&mut agent);
    agent.on_answer(number, Answer::Put(Ok(())));
    agent.take_effects();
    for (record, expected) in [
        (Record::Claimed(claim.clone()), ToHead::Claimed(TaskId(1), claimed.clone())),
        (Record::Suspected { claim: claim.clone(), by: holder }, ToHead::Claimed(TaskId(1), claimed)),
        (Record::GivenBack { claim: claim.clone(), has_begun: true }, ToHead::LetGo(TaskId(1))),
    ] {
        agent.on_record(RecordKey::Task(id), &record.encode());
        assert_eq!(agent.take_effects(), [Effect::Tell(expected)]);
    }
    let end = End::Outcome { attempt: 2, holder: Some(holder), outcome: b"done".to_vec() };
    agent.on_record(RecordKey::Task(id), &Record::Ended(end).encode());
    agent.take_effects();
    agent.on_record(RecordKey::Task(id), &Record::Claimed(claim).encode());
    assert_eq!(agent.take_effects(), [], "it has ended");
}

#[test]
fn a_value_above_the_bound_is_not_got_and_a_file_of_another_node_is_no_result() {
    let id = ClusterTaskId { place: PlaceId(1), task: TaskId(1) };
    for (bytes, digest, expected) in
        [(5_000, Some(DIGEST), "--max-shared-value"), (5, None, "in a file of another node")]
    {
        let mut agent = agent();
        agent.on_share(TaskId(1), sharing(), 0);
        agent.take_effects();
        let name = if digest.is_none() { "7" } else { "" };
        let end = SharedEnd { digest, ..SharedEnd::decode(&end_with("7", bytes, 1)).unwrap() };
        let end = SharedEnd { outcome: Outcome::Stored(Stored { name: name.into(), bytes }), ..end };
        let end = End::Outcome { attempt: 1, holder: None, outcome: end.encode() };
        agent.on_record(RecordKey::Task(id), &Record::Ended(end).encode());
        let effects = agent.take_effects();
        let [Effect::Tell(ToHead::Ended(_, End::Outcome { outcome, .. }))] = &effects[..] else {
            panic!("{effects:?}")
        };
        let outcome = SharedEnd::decode(outcome).unwrap().outcome;
        let text = format!("{outcome:?}");
        assert!(text.contains("the result cannot be had") && text.contains(expected), "{text}");
    }
}

#[test]
fn what_never_left_is_refused_when_the_engine_is_away_for_too_long_and_what_may_have_left_is_not() {
    let mut agent = agent();
    agent.on_share(TaskId(1), sharing(), 0);
    let effects = agent.take_effects();
    let [Effect::Ask(number, Request::Put { .. })] = effects[..] else { panic!("{effects:?}") };
    agent.on_unreachable(0);
    agent.on_answer(number, Answer::Unreachable);
    agent.on_share(TaskId(2), sharing(), SECOND);
    agent.on_tick(5 * SECOND);
    let unanswered = Effect::Tell(ToHead::Unanswered(vec![TaskId(1)]));
    assert_eq!(agent.take_effects(), [unanswered], "the other is waited for");
    agent.on_tick(6 * SECOND);
    let refused = Effect::Tell(ToHead::NotStored(TaskId(2), NotStored::Unreachable));
    assert_eq!(agent.take_effects(), [refused]);
}

/// Returns the pulls that are asked for: number, queue, part, count, and whether it waits.
fn pulls(agent: &mut Agent) -> Vec<(u64, String, Tier, usize, bool)> {
    let of_pull = |effect| match effect {
        Effect::Ask(number, Request::Pull { queue, tier, count, waits }) => Some((number, queue, tier, count, waits)),
        _ => None,
    };
    agent.take_effects().into_iter().filter_map(of_pull).collect()
}

#[test]
fn a_node_asks_for_as_many_tasks_as_it_has_free_slots() {
    let mut agent = agent();
    agent.on_free(4, 3, 0);
    let asked = pulls(&mut agent);
    let [(number, _, Tier::First, 3, false)] = asked[..] else { panic!("{asked:?}") };
    agent.on_free(4, 2, 0);
    assert_eq!(pulls(&mut agent), [], "one after another");
    agent.on_answer(number, Answer::Pulled);
    let asked = pulls(&mut agent);
    assert!(matches!(asked[..], [(_, _, Tier::First, 2, true), (_, _, Tier::Second, 2, true)]), "{asked:?}");
    agent.on_stopping();
    assert_eq!(only_asked(&mut agent).1, Request::StopPulling);
    agent.on_free(4, 4, 0);
    assert_eq!(agent.take_effects(), []);
}

/// Has tasks of all parts wait without end, and returns from which of them a node takes with one slot.
fn taken_in_turn(takes: usize, shared_commands: bool) -> String {
    let mut agent = agent();
    agent.settings.shared_commands = shared_commands;
    let (mut taken, mut told) = (String::new(), 0);
    while taken.len() < takes {
        agent.on_free(1, 1, told);
        for (number, queue, tier, count, _) in pulls(&mut agent) {
            assert_eq!(count, 1);
            told += 1;
            let id = ClusterTaskId { place: PlaceId(2), task: TaskId(told) };
            let handle = Handle(told.to_string().into());
            agent.on_delivered(Delivery { queue, handle, id, message: message(), is_again: false }, 0);
            let claim = agent.take_effects().into_iter().find_map(|effect| match effect {
                Effect::Ask(number, Request::Swap { .. }) => Some(number),
                _ => None,
            });
            agent.on_answer(claim.expect("there is room for it"), Answer::Swapped(Some(told)));
            agent.on_answer(number, Answer::Pulled);
            taken.push(match tier {
                Tier::First => '1',
                Tier::Second => '2',
                Tier::Commands => 'c',
            });
        }
        agent.take_effects();
    }
    taken
}

#[test]
fn single_tasks_are_taken_before_those_of_large_jobs_which_get_every_fourth_turn() {
    assert_eq!(taken_in_turn(12, false), "111211121112");
    assert_eq!(taken_in_turn(12, true), "1c121c121c12");
}

#[test]
fn a_part_that_had_less_than_there_was_room_for_does_not_keep_the_other_waiting() {
    let mut agent = agent();
    agent.on_free(2, 2, 0);
    let asked = pulls(&mut agent);
    let [(number, ref queue, Tier::First, 2, false)] = asked[..] else { panic!("{asked:?}") };
    let id = ClusterTaskId { place: PlaceId(2), task: TaskId(1) };
    let handle = Handle("1".into());
    agent.on_delivered(Delivery { queue: queue.clone(), handle, id, message: message(), is_again: false }, 0);
    agent.on_answer(number, Answer::Pulled);
    let asked = pulls(&mut agent);
    assert!(matches!(asked[..], [(_, _, Tier::First, 1, true), (_, _, Tier::Second, 1, true)]), "{asked:?}");
    // The second part is empty too after a while; the first one is still pulled from.
    agent.on_answer(asked[1].0, Answer::Pulled);
    let asked = pulls(&mut agent);
    assert!(matches!(asked[..], [(_, _, Tier::Second, 1, true)]), "{asked:?}");
}

#[test]
fn a_queue_that_does_not_exist_is_a_refusal() {
    let mut agent = agent();
    agent.on_share(TaskId(1), Sharing { queue: "nowhere".into(), ..sharing() }, 0);
    let effects = agent.take_effects();
    let [Effect::Ask(number, _)] = effects[..] else { panic!("{effects:?}") };
    agent.on_answer(number, Answer::Put(Err(PutError::NoQueue)));
    let refused = ToHead::NotStored(TaskId(1), NotStored::Put(PutError::NoQueue));
    assert_eq!(agent.take_effects(), [Effect::Tell(refused)]);
    assert_eq!(agent.counts(), (0, 0));
}

#[test]
fn of_a_queue_no_more_tasks_run_at_a_time_than_the_node_was_told() {
    let settings = Settings { queues: vec![("a".into(), 1), ("b".into(), 9)], ..settings(PlaceId(1), 1) };
    let mut agent = Agent::new(settings, 0);
    agent.on_reachable(0);
    agent.take_effects();
    agent.on_free(4, 4, 0);
    let counts: Vec<_> = pulls(&mut agent).into_iter().map(|(_, queue, _, count, _)| (queue, count)).collect();
    assert_eq!(counts, [("a".to_owned(), 1), ("b".to_owned(), 4)]);
    let id = ClusterTaskId { place: PlaceId(2), task: TaskId(1) };
    let delivery = |number: &str, id| Delivery {
        queue: "a".into(),
        handle: Handle(number.into()),
        id,
        message: message(),
        is_again: false,
    };
    agent.on_delivered(delivery("1", id), 0);
    let effects = agent.take_effects();
    assert!(matches!(effects[..], [Effect::Ask(_, Request::Swap { revision: None, .. })]), "{effects:?}");
    agent.on_delivered(delivery("2", ClusterTaskId { task: TaskId(2), ..id }), 0);
    assert!(matches!(agent.take_effects()[..], [Effect::Ask(_, Request::GiveBack(_))]), "there is no room for it");
}

/// Makes a node of four slots with two gpus, whose queue lets a task ask for two slots and a gpu.
fn agent_of_large_tasks(resources: &[(&str, u64, u64)]) -> Agent {
    let mut agent = agent();
    let bound = QueueBound { num_cpus: 2, resources: vec![("gpu".into(), 1)] };
    agent.on_resources(resources.iter().map(|(name, total, free)| ((*name).to_owned(), *total, *free)).collect());
    agent.on_bounds(vec![(QUEUE.into(), bound)]);
    agent.take_effects();
    agent
}

/// Returns the delivery of a task that asks for so many slots.
fn delivery_of(task: u64, num_cpus: u32) -> Delivery {
    let spec = TaskSpec::Function(FunctionSpec::of_task("m", "f", &[0x90]));
    let mut envelope = Vec::new();
    let demand = Demand { num_cpus, ..Demand::default() };
    Envelope { demand, ..Envelope::of(spec) }.encode(&mut envelope);
    let terms = Terms { at_most_once: false, crash_limit: 2 };
    let message = TaskMessage { submitted_unix_nano: 0, terms, envelope: &envelope, digests: &[] }.encode();
    let id = ClusterTaskId { place: PlaceId(2), task: TaskId(task) };
    Delivery { queue: QUEUE.into(), handle: Handle(task.to_string().into()), id, message, is_again: false }
}

/// Returns the end of a task that ran for so long.
fn end_after(run_ns: u64) -> Vec<u8> {
    SharedEnd {
        attempt: 1,
        outcome: Outcome::Returned(vec![1]),
        digest: None,
        started_unix_nano: Some(1000),
        ended_unix_nano: 1000 + run_ns,
        past: Vec::new(),
        node_id: "n".into(),
        worker: None,
        written: None,
    }
    .encode()
}

/// Delivers a task, and returns whether it is taken; one that is, is claimed and handed to the head.
fn takes(agent: &mut Agent, delivery: Delivery) -> bool {
    agent.on_delivered(delivery, 0);
    let claim = agent.take_effects().into_iter().find_map(|effect| match effect {
        Effect::Ask(number, Request::Swap { .. }) => Some(number),
        _ => None,
    });
    if let Some(number) = claim {
        agent.on_answer(number, Answer::Swapped(Some(1)));
        agent.take_effects();
    }
    claim.is_some()
}

#[test]
fn short_tasks_are_taken_ahead_of_free_slots_and_others_are_not() {
    let mut agent = agent();
    agent.on_free(1, 1, 0);
    assert!(takes(&mut agent, delivery_of(1, 1)), "a slot is free");
    agent.on_free(1, 0, 1);
    assert!(!takes(&mut agent, delivery_of(2, 1)), "nobody knows how long it runs");
    let id = |task| ClusterTaskId { place: PlaceId(2), task: TaskId(task) };
    agent.on_import_ended(id(1), 1, end_after(10_000));
    agent.take_effects();
    agent.on_free(1, 1, 1);
    assert!(takes(&mut agent, delivery_of(3, 1)));
    agent.on_free(1, 0, 2);
    assert!((4..20).all(|task| takes(&mut agent, delivery_of(task, 1))), "each is known to be short");
    assert!(!takes(&mut agent, delivery_of(20, 2)), "it asks for more than a slot");
    // The head is asked for what has not begun, and by and by for that again.
    agent.on_tick(SECOND);
    agent.take_effects();
    agent.on_tick(SECOND + BUNDLE_WAIT_NS);
    let asked = agent.take_effects().into_iter().filter(|effect| matches!(effect, Effect::Tell(ToHead::GiveBack(_))));
    assert_eq!(asked.count(), 17);
    // Once it is known to be long, it waits for a slot like others.
    agent.on_import_ended(id(3), 1, end_after(1_000_000_000));
    agent.take_effects();
    assert!(!takes(&mut agent, delivery_of(21, 1)));
}

#[test]
fn few_messages_are_asked_for_ahead_until_it_is_seen_that_they_are_short() {
    let mut agent = agent();
    agent.on_free(1, 1, 0);
    assert!(takes(&mut agent, delivery_of(1, 1)));
    let id = |task| ClusterTaskId { place: PlaceId(2), task: TaskId(task) };
    agent.on_import_ended(id(1), 1, end_after(10_000));
    agent.take_effects();
    agent.on_free(1, 1, 1);
    let sizes: Vec<_> = (2..9)
        .map(|task| {
            assert!(takes(&mut agent, delivery_of(task, 1)));
            agent.on_free(1, 0, task);
            agent.room_ahead()
        })
        .collect();
    assert_eq!(sizes, [2, 4, 8, 16, 26, 25, 24], "32 in all, with the one whose end is not recorded yet");
    assert!(!takes(&mut agent, delivery_of(9, 2)));
    agent.on_free(1, 1, 9);
    agent.on_free(1, 0, 9);
    assert_eq!(agent.room_ahead(), 1);
}

#[test]
fn a_task_that_may_ask_for_more_is_taken_when_that_much_is_free_and_one_after_another() {
    let mut agent = agent_of_large_tasks(&[("gpu", 2, 0)]);
    agent.on_free(4, 4, 0);
    assert_eq!(pulls(&mut agent), [], "no gpu is free");
    agent.on_resources(vec![("gpu".into(), 2, 2)]);
    agent.on_free(4, 1, 0);
    assert_eq!(pulls(&mut agent), [], "too few slots are free");
    agent.on_free(4, 4, 0);
    let [(pull, _, Tier::First, 1, false)] = pulls(&mut agent)[..] else { panic!("one of them") };
    agent.on_delivered(delivery_of(1, 2), 0);
    let (claim, _) = only_asked(&mut agent);
    agent.on_answer(pull, Answer::Pulled);
    assert_eq!(pulls(&mut agent), [], "nobody knows yet what is left");
    agent.on_answer(claim, Answer::Swapped(Some(1)));
    assert!(matches!(agent.take_effects()[..], [Effect::Tell(ToHead::Import(_))]));
    agent.on_resources(vec![("gpu".into(), 2, 1)]);
    agent.on_free(4, 2, 1);
    assert!(matches!(pulls(&mut agent)[..], [(_, _, _, 1, false)]), "the next one");
}

#[test]
fn slots_that_a_large_task_takes_are_not_taken_for_others_before_its_head_has_seen_it() {
    let mut agent = agent();
    agent.on_free(4, 4, 0);
    agent.take_effects();
    agent.on_delivered(delivery_of(1, 3), 0);
    let (claim, _) = only_asked(&mut agent);
    assert_eq!(agent.room(), 1);
    agent.on_answer(claim, Answer::Swapped(Some(1)));
    assert_eq!(agent.room(), 1, "it is on the way to its head");
    agent.on_free(4, 1, 1);
    assert_eq!(agent.room(), 1);
}

#[test]
fn a_task_that_asks_for_more_than_is_free_goes_to_others_and_bounds_are_read_again() {
    let mut agent = agent();
    agent.on_free(4, 4, 0);
    agent.take_effects();
    agent.on_delivered(delivery_of(1, 5), 0);
    let effects = agent.take_effects();
    let [Effect::Ask(_, Request::GiveBackLater(_)), Effect::Ask(_, Request::ReadBounds)] = &effects[..] else {
        panic!("{effects:?}")
    };
    let bound = QueueBound { num_cpus: 5, resources: Vec::new() };
    agent.on_bounds(vec![(QUEUE.into(), bound)]);
    let effects = agent.take_effects();
    assert!(matches!(&effects[..], [Effect::Tell(ToHead::Log(line))] if line.contains("5 cpus")), "{effects:?}");
    assert_eq!((agent.room_of(QUEUE), agent.queues_that_fit()), (0, Vec::new()));
}

#[test]
fn a_task_is_compared_with_what_its_queue_permits_until_it_was_accepted() {
    let mut agent = agent();
    let asks_for = Some(QueueBound { num_cpus: 2, resources: Vec::new() });
    agent.on_share(TaskId(1), Sharing { asks_for: asks_for.clone(), ..sharing() }, 0);
    let (number, request) = only_asked(&mut agent);
    assert!(matches!(request, Request::Put { asks_for: asked, .. } if asked == asks_for));
    agent.on_answer(number, Answer::Put(Err(PutError::AsksForTooMuch("no".into()))));
    let refused = ToHead::NotStored(TaskId(1), NotStored::Put(PutError::AsksForTooMuch("no".into())));
    assert_eq!(agent.take_effects(), [Effect::Tell(refused)]);
    agent.on_share(TaskId(2), Sharing { asks_for, is_new: false, is_stored: true, ..sharing() }, 0);
    let (number, _) = only_asked(&mut agent);
    agent.on_answer(number, Answer::Record(None));
    assert!(matches!(only_asked(&mut agent).1, Request::Put { asks_for: None, .. }), "it is put there again");
}

#[test]
fn a_task_that_has_waited_too_long_is_not_ended_where_it_has_begun_in_time() {
    let mut agent = agent();
    agent.on_share(TaskId(1), sharing(), 0);
    let [Effect::Ask(number, _)] = agent.take_effects()[..] else { panic!() };
    agent.on_answer(number, Answer::Put(Ok(())));
    for (stops, expected) in [(None, 0), (Some(Stop::default()), 1)] {
        agent.take_effects();
        agent.on_withdraw(TaskId(1), b"late".to_vec(), stops);
        let effects = agent.take_effects();
        let [Effect::Ask(number, Request::Read(_))] = effects[..] else { panic!("{effects:?}") };
        let holder = Holder { place: PlaceId(2), life: 1 };
        let mark = Mark::default();
        let claim = Claim { holder, mark, attempt: 1, failures: 0, crashes: 0, past: Vec::new(), wish: None };
        let entry = Entry { revision: 3, stamp_ns: 5, value: Record::Claimed(claim).encode() };
        agent.on_answer(number, Answer::Record(Some(entry)));
        let mut told = agent.take_effects();
        if let [Effect::Ask(number, Request::Swap { .. })] = told[..] {
            agent.on_answer(number, Answer::Swapped(Some(4)));
            told = agent.take_effects();
        }
        let is_told = |effect: &&Effect| matches!(effect, Effect::Ask(_, Request::Tell(PlaceId(2), _)));
        assert_eq!(told.iter().filter(is_told).count(), expected, "{told:?}");
    }
}

#[test]
fn output_of_an_import_goes_to_its_origin_for_as_long_as_somebody_follows_it() {
    let (own, other) = (PlaceId(1), PlaceId(2));
    let output = |bytes: &[u8]| {
        let before = Written { from_attempt: 1, size: OutputSize::default() };
        SharedOutput { before, worker_pid: 7, stream: Stream::Stdout, bytes: bytes.into() }
    };
    let mut agent = agent();
    let import = |agent: &mut Agent, place: PlaceId| {
        let id = ClusterTaskId { place, task: TaskId(1) };
        let terms = Terms { at_most_once: false, crash_limit: 3 };
        let token = Token { id, queue: "q".into(), handle: Handle("h".into()), terms, bundle: None };
        agent.on_import_open(token, 1);
        agent.take_effects();
        id
    };
    let id = import(&mut agent, other);
    agent.on_output(id, output(b"a\n"));
    let [Effect::SendOutput(place, message)] = &agent.take_effects()[..] else { panic!("it is sent") };
    assert_eq!(*place, other);
    let sent = OutputMessage::decode(message).unwrap();
    assert_eq!((sent.id, sent.place, &sent.output), (id, own, &output(b"a\n")));
    agent.on_told(&Told::NotFollowed(id).encode(), 1);
    agent.on_output(id, output(b"b\n"));
    agent.on_output(ClusterTaskId { task: TaskId(9), ..id }, output(b"of none that runs here\n"));
    assert_eq!(agent.take_effects(), []);

    // Output of tasks of this node, which another one runs or this one.
    agent.on_share(TaskId(1), sharing(), 0);
    agent.take_effects();
    let id = ClusterTaskId { place: own, task: TaskId(1) };
    let of_other = OutputMessage { id, place: other, node_id: "b".into(), output: output(b"c\n") };
    agent.on_told(&of_other.encode(), 1);
    let is_shown = |effects: Vec<Effect>, from: PlaceId| match &effects[..] {
        [Effect::Tell(ToHead::Output { task: TaskId(1), place, .. })] => *place == from,
        _ => false,
    };
    assert!(is_shown(agent.take_effects(), other));
    agent.on_not_followed(TaskId(1), other);
    let [Effect::Ask(_, Request::Tell(place, told))] = &agent.take_effects()[..] else { panic!("it is told") };
    assert_eq!((*place, Told::decode(told)), (other, Ok(Told::NotFollowed(id))));
    import(&mut agent, own);
    agent.on_output(id, output(b"d\n"));
    assert!(is_shown(agent.take_effects(), own));
    agent.on_not_followed(TaskId(1), own);
    agent.on_output(id, output(b"e\n"));
    let of_nobody = OutputMessage { id: ClusterTaskId { task: TaskId(9), ..id }, ..of_other };
    agent.on_told(&of_nobody.encode(), 1);
    assert_eq!(agent.take_effects(), []);
}

#[test]
fn a_task_of_a_bundle_is_taken_back_if_nobody_has_the_bundle_and_the_others_go_on_by_themselves() {
    let of = |task| ClusterTaskId { place: PlaceId(1), task: TaskId(task) };
    let first = RecordKey::Bundle(of(1));
    let other = Holder { place: PlaceId(2), life: 1 };
    let claim = |holder, unix_nano| Claim::first(holder, Mark { node_id: PlaceId(1).to_string(), unix_nano });
    let asking = || {
        let mut agent = agent();
        let tasks = (1..=3).map(|task| (TaskId(task), bundled(&message()))).collect();
        agent.on_share_bundle(TaskId(1), sharing_bundle(3, &tasks, (true, false)), 0);
        let (number, _) = only_asked(&mut agent);
        agent.on_answer(number, Answer::Put(Ok(())));
        assert_eq!(agent.take_effects(), [Effect::Tell(ToHead::Stored(TaskId(1)))]);
        agent.on_take_back(TaskId(2), 7);
        let (number, request) = only_asked(&mut agent);
        assert_eq!(request, Request::Read(first));
        (agent, number)
    };
    // Nobody has it.
    let (mut agent, number) = asking();
    agent.on_answer(number, Answer::Record(None));
    let settled = BundleRecord::Settled { claim: None, members: vec![bundle::Member::Unbegun; 3] };
    let (number, request) = only_asked(&mut agent);
    assert_eq!(request, Request::Swap { key: first, revision: None, record: settled.encode() });
    agent.on_answer(number, Answer::Swapped(Some(1)));
    let [Effect::Tell(ToHead::BundleClaimed(TaskId(1), None)), Effect::Ask(number, Request::Read(key))] =
        agent.take_effects()[..]
    else {
        panic!("it goes on by itself");
    };
    assert_eq!(key, RecordKey::Task(of(2)));
    agent.on_answer(number, Answer::Record(None));
    let (number, request) = only_asked(&mut agent);
    let own = claim(Holder { place: PlaceId(1), life: 1 }, 7);
    let record = Record::Claimed(own.clone()).encode();
    assert_eq!(request, Request::Swap { key: RecordKey::Task(of(2)), revision: None, record });
    agent.on_answer(number, Answer::Swapped(Some(2)));
    let effects = agent.take_effects();
    let [Effect::Tell(ToHead::Import(import))] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!((import.token.id, &import.claim, &import.envelope[..]), (of(2), &own, &b"e"[..]));
    // The message comes to this node too: that task is left to whoever finds that this node is gone.
    let tasks = (0..3).map(|place| BundledTask { place, submitted_unix_nano: 0, envelope: b"e" }).collect();
    let message = BundleMessage { crash_limit: 2, count: 3, run_ns: 1_000, tasks }.encode();
    agent.on_free(2, 2, 1);
    agent.take_effects();
    let handle = Handle("h".into());
    agent.on_delivered(Delivery { queue: QUEUE.into(), handle, id: of(1), message, is_again: true }, 8);
    let (number, _) = only_asked(&mut agent);
    agent.on_answer(number, Answer::Record(Some(Entry { revision: 1, stamp_ns: 1, value: settled.encode() })));
    let read = agent.take_effects().into_iter().filter_map(|effect| match effect {
        Effect::Ask(_, Request::Read(RecordKey::Task(id)) | Request::Swap { key: RecordKey::Task(id), .. }) => {
            Some(id.task.0)
        }
        _ => None,
    });
    let read: Vec<_> = read.collect();
    assert_eq!(read, [1, 3]);
    // Another node has it.
    let (mut agent, number) = asking();
    let claimed = BundleRecord::Claimed { claim: claim(other, 5), count: 3 };
    agent.on_answer(number, Answer::Record(Some(Entry { revision: 1, stamp_ns: 1, value: claimed.encode() })));
    let told = claimed_by(claim(other, 5));
    assert_eq!(agent.take_effects(), [Effect::Tell(ToHead::BundleClaimed(TaskId(1), Some(told)))]);
    agent.on_tick(10 * SECOND);
    let is_about_it = |effect: &Effect| matches!(effect, Effect::Ask(_, Request::Read(_) | Request::Swap { .. }));
    assert!(!agent.take_effects().iter().any(is_about_it), "it is not asked for again");
}

#[test]
fn a_task_whose_module_is_lacking_is_left_to_a_node_that_has_it_and_taken_where_none_has() {
    let lacking = |others: Option<&[(&str, &str)]>| {
        let mut agent = agent();
        agent.on_free(4, 4, 0);
        let node = |(queue, module): &(&str, &str)| {
            let modules = ListedModules { modules: [((*module).to_owned(), None)].into(), left_out: 0 };
            (PlaceId(99), Heartbeat { queues: vec![(*queue).to_owned()], modules, ..Heartbeat::default() })
        };
        others.into_iter().for_each(|others| agent.on_nodes(others.iter().map(node).collect()));
        agent.take_effects();
        agent.on_delivered_lacking(delivery_of(1, 1), "m", 0);
        let effects = agent.take_effects();
        (agent, effects)
    };
    let is_given_back = |effect: &Effect| matches!(effect, Effect::Ask(_, Request::GiveBackLater(_)));
    let (_, effects) = lacking(None);
    assert!(matches!(&effects[..], [Effect::Ask(_, Request::ReadNodes), back] if is_given_back(back)), "{effects:?}");
    let (mut agent, effects) = lacking(Some(&[(QUEUE, "m")]));
    assert!(matches!(&effects[..], [back] if is_given_back(back)), "{effects:?}");
    assert!(agent.modules.leaves(QUEUE), "it does not come to this node again and again");
    for beat in 1..=5 {
        agent.on_tick(beat * 3 * SECOND);
        assert!(!agent.modules.leaves(QUEUE));
    }
    agent.take_effects();
    agent.on_delivered_lacking(delivery_of(1, 1), "m", 0);
    let effects = agent.take_effects();
    assert!(matches!(&effects[..], [Effect::Ask(_, Request::ReadNodes), _]), "that is long ago: {effects:?}");
    for others in [&[][..], &[(QUEUE, "n")], &[("other", "m")]] {
        let (_, effects) = lacking(Some(others));
        assert!(matches!(&effects[..], [Effect::Ask(_, Request::Swap { .. })]), "nobody has it: {effects:?}");
    }
}

/// Returns what the head is told of all that there is to do.
fn told(agent: &mut Agent) -> Vec<ToHead> {
    let told = |effect| match effect {
        Effect::Tell(told) => Some(told),
        _ => None,
    };
    agent.take_effects().into_iter().filter_map(told).collect()
}

/// Returns an agent that ends what the engine has not heard of, and whose last heartbeat was sent at 0.
fn agent_that_stops() -> Agent {
    let mut agent = Agent::new(settings(STOPS, 1), 0);
    agent.on_reachable(0);
    agent.on_heard(0);
    agent.on_free(3, 3, 0);
    agent.take_effects();
    agent
}

#[test]
fn a_node_that_is_not_heard_ends_what_it_runs_when_its_claims_have_lapsed_if_it_was_told_to() {
    let id = |task: u64| ClusterTaskId { place: PlaceId(2), task: TaskId(task) };
    let mut goes_on = agent();
    goes_on.on_free(3, 3, 0);
    assert!(takes(&mut goes_on, delivery_of(1, 1)));
    goes_on.on_tick(100 * ACK_WAIT);
    assert_eq!(told(&mut goes_on), [], "it was not told to");
    let mut idle = agent_that_stops();
    idle.on_tick(2 * ACK_WAIT);
    assert_eq!(told(&mut idle), [], "there is nothing to end");

    let mut agent = agent_that_stops();
    assert!(takes(&mut agent, delivery_of(1, 1)));
    let (number, _) = claim_with_a_value(&mut agent, id(2));
    agent.on_heard(2 * SECOND);
    let before_ns = 2 * SECOND + ACK_WAIT - 1;
    for is_reachable in [true, false] {
        if !is_reachable {
            agent.on_unreachable(3 * SECOND);
        }
        assert_eq!(agent.on_tick(before_ns), before_ns + 1, "it comes in time");
    }
    assert_eq!(told(&mut agent), []);
    agent.on_tick(before_ns + 1);
    assert_eq!(told(&mut agent), [ToHead::CutOff(1), ToHead::Superseded(id(1))]);
    agent.on_tick(before_ns + 5 * SECOND);
    assert_eq!(told(&mut agent), [], "once");
    // An argument that comes late is of a task that is let go of.
    agent.on_answer(number, Answer::ValueGot(Ok("file".into())));
    let effects = agent.take_effects();
    assert!(effects.contains(&Effect::RemoveFile("file".into())), "{effects:?}");
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Tell(ToHead::Import(_)))), "{effects:?}");

    // What was acknowledged late says nothing of now.
    agent.on_heard(3 * SECOND);
    assert_eq!(told(&mut agent), []);
    agent.on_heard(before_ns + 4 * SECOND);
    assert_eq!(told(&mut agent), [ToHead::HeardAgain]);
    // It takes others, and those count from the last heartbeat too.
    agent.on_reachable(before_ns + 6 * SECOND);
    agent.on_tick(before_ns + 4 * SECOND + ACK_WAIT);
    assert!(told(&mut agent).iter().any(|told| matches!(told, ToHead::CutOff(_))));
}

#[test]
fn a_bundle_that_a_node_has_claimed_without_being_heard_does_not_begin_there() {
    let first = ClusterTaskId { place: PlaceId(9), task: TaskId(1) };
    for is_cut_off in [false, true] {
        let mut agent = agent_that_stops();
        let tasks = (0..2).map(|place| BundledTask { place, submitted_unix_nano: 0, envelope: b"e" }).collect();
        let message = BundleMessage { crash_limit: 2, count: 2, run_ns: 1_000, tasks }.encode();
        let handle = Handle("h".into());
        agent.on_delivered(Delivery { queue: QUEUE.into(), handle, id: first, message, is_again: false }, 1);
        let swap = agent.take_effects().into_iter().find_map(|effect| match effect {
            Effect::Ask(number, Request::Swap { key: RecordKey::Bundle(_), .. }) => Some(number),
            _ => None,
        });
        if is_cut_off {
            agent.on_tick(2 * ACK_WAIT);
        }
        agent.on_answer(swap.expect("it claims the bundle"), Answer::Swapped(Some(1)));
        let begun = told(&mut agent).into_iter().map(|told| match told {
            ToHead::Import(_) => 1,
            ToHead::ImportBundle(bundle) => bundle.imports().count(),
            _ => 0,
        });
        assert_eq!(begun.sum::<usize>(), if is_cut_off { 0 } else { 2 });
    }
}

#[test]
fn an_attempt_that_another_node_has_taken_over_is_ended_and_its_message_is_left_alone() {
    let mut agent = agent_that_stops();
    assert!(takes(&mut agent, delivery_of(1, 1)));
    let id = ClusterTaskId { place: PlaceId(2), task: TaskId(1) };
    agent.on_reachable(SECOND);
    let asked = agent.take_effects().into_iter().find_map(|effect| match effect {
        Effect::Ask(number, Request::Read(RecordKey::Task(read))) if read == id => Some(number),
        _ => None,
    });
    let other = Holder { place: PlaceId(3), life: 1 };
    let claim = Claim { attempt: 2, ..Claim::first(other, Mark { node_id: "c".into(), unix_nano: 1 }) };
    let entry = |revision| Entry { revision, stamp_ns: 0, value: Record::Claimed(claim.clone()).encode() };
    agent.on_answer(asked.expect("its record is read"), Answer::Record(Some(entry(5))));
    let told = told(&mut agent);
    assert!(told.contains(&ToHead::Superseded(id)), "{told:?}");
    // Its head has ended it.
    agent.on_import_given_back(id, 1, true);
    let mut effects = agent.take_effects();
    while let Some(number) = effects.iter().find_map(|effect| match effect {
        Effect::Ask(number, Request::Swap { .. }) => Some((*number, Answer::Swapped(None))),
        Effect::Ask(number, Request::Read(_)) => Some((*number, Answer::Record(Some(entry(5))))),
        _ => None,
    }) {
        agent.on_answer(number.0, number.1);
        effects = agent.take_effects();
    }
    assert!(effects.contains(&Effect::Tell(ToHead::Settled(id, 1))), "{effects:?}");
    let is_of_message = |effect: &Effect| matches!(effect, Effect::Ask(_, Request::GiveBack(_) | Request::Done(_)));
    assert!(!effects.iter().any(is_of_message), "{effects:?}");
}
