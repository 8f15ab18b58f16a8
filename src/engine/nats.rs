//! The engine NATS JetStream: what is asked of it as streams, subjects and acknowledgements. No word of it leaves this file.
//!
//! | asset | kind | holds |
//! |---|---|---|
//! | `TRACER_default_Q_<queue>`, `TRACER_default_Q2_<queue>`, `TRACER_default_QC_<queue>` | work queue stream for each tier, with the durable pull consumer `w`; the last one for commands, if a node runs some | messages, each under the subject of its task |
//! | `TRACER_default_RECORD` | stream with one message for each subject | records under `task.<place>.<task>` and `bundle.<place>.<task>`, heartbeats under `node.<place>` |
//! | `TRACER_default_KEY` | stream with one message for each subject | idempotency keys, under their digests |
//! | `TRACER_default_VALUE` | stream, read with direct gets | large values in pieces, under `<place>.<task>.<attempt>.<digest>` |
//! | `TRACER_default_DEAD` | stream | messages of queues that nobody can run, with the reason, under their queues |
//! | `tracer.default.to.<place>` | subject without storage | what nodes tell each other |
//!
//! Compare-and-swap is a publication that expects the last sequence of its subject. A stream for each queue has one consumer without a filter: filters over
//! many subjects are slow. No message has a `Nats-Msg-Id`: its window would swallow a second publication of a message that was lost.

use std::collections::HashMap;
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::consumer::pull::Batch;
use async_nats::jetstream::consumer::{self, AckPolicy, DeliverPolicy, PullConsumer, PushConsumer};
use async_nats::jetstream::context::{
    Context, CreateStreamErrorKind, GetStreamError, GetStreamErrorKind, PublishError, PublishErrorKind,
};
use async_nats::jetstream::message::{PublishMessage, StreamMessage};
use async_nats::jetstream::publish::PublishAck;
use async_nats::jetstream::stream::{
    Config as StreamConfig, DiscardPolicy, LastRawMessageErrorKind, RetentionPolicy, StorageType, Stream,
};
use async_nats::{Client, ClientError, ConnectOptions, Event, ServerError};
use futures_util::StreamExt;
use nkeys::KeyPair;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch::{self, error::RecvError};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tracer_core::causes::with_causes;
use tracer_core::clock::now_unix_nano;
use tracer_core::count::Size;
use tracer_core::lock::lock;
use tracer_core::queue::QueueBound;
use tracer_core::task::TaskId;
use tracer_core::{ClusterTaskId, PlaceId};
use tracer_ipc::fault;
use tracer_ipc::protocol::EngineAccess;

use crate::access::{self, Credentials, EngineError};
use crate::bundle::BUNDLE_LIMIT;
use crate::clock::ClockOffset;
use crate::doctor::{self, Finding};
use crate::interface::{Answer, Dead, Delivery, Entry, Handle, InQueue, PutError, Queues, RecordKey, Request, Tier};
use crate::message::{BundleMessage, Heartbeat, Told};
use crate::process::KEEP;
use crate::signed::{self, Address, Signer, Unusable};
use crate::survey::Survey;
use copies::Copies;
use output::Turn;
use roles::Role;
use undelivered::{DeliveredBefore, FILLER, Passed};

mod bounds;
mod clock;
pub mod config;
mod copies;
mod dead;
mod examine;
mod keys;
mod lost;
mod output;
pub mod roles;
mod survey;
mod undelivered;
mod values;

pub(crate) use bounds::bound;
pub(crate) use examine::examine;

/// Time after which a message is delivered again that nobody acknowledges.
pub(crate) const ACK_WAIT: Duration = Duration::from_secs(10);
/// Messages that are looked at together where one is searched for.
const LOOKED_AT_TOGETHER: usize = 32;
/// Time that a pull waits for messages.
const PULL_EXPIRES: Duration = Duration::from_secs(20);
/// Interval at which the server that watches records says that it does.
const WATCH_HEARTBEAT: Duration = Duration::from_secs(5);
/// Time within which a request is answered.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// Time that records are kept after their last change.
const RECORDS_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// The most bytes of a queue.
const QUEUE_BYTES: i64 = 1 << 30;
/// The most messages of a queue that are delivered and not acknowledged: more than all nodes have slots.
const UNACKNOWLEDGED: i64 = 100_000;
/// Tries to make a consumer, each as long as a request may take.
const LEADER_TRIES: usize = 4;
/// Time for an answer about a stream, and how often it is asked for. Servers that choose who leads a stream, as they do when one of them is gone, drop the question.
const LEADER_ANSWERS: Duration = Duration::from_secs(2);
const LEADER_QUESTIONS: usize = 5;
/// Refusal of a message that is delivered again after a second.
const GIVE_BACK_LATER: &str = "-NAK {\"delay\": 1000000000}";
/// The most bytes of the headers of a message.
const HEADERS_BYTES: usize = 512;
/// Pause before an engine that is there and not ready is tried again.
const AGAIN: Duration = Duration::from_secs(2);
/// Interval at which a heartbeat of a copied place is looked for.
const LOOK_FOR_COPY: Duration = Duration::from_millis(250);
/// The cluster, which keeps several apart in one account.
const CLUSTER: &str = "default";
/// Version of all that is kept in the engine. Nodes of another one do not join.
const CLUSTER_VERSION: u32 = 1;
/// Beginning of the description of a stream, before its version.
const CLUSTER_VERSION_IS: &str = "tracer, cluster version ";

/// An event of the engine.
#[derive(Debug)]
pub(crate) enum FromEngine {
    /// The answer to a request.
    Answer(u64, Answer),
    /// A message that a pull has brought.
    Delivered(Delivery),
    /// A record of tasks of this node has changed.
    Record(RecordKey, Vec<u8>),
    /// A pull has brought a message that is of no task, or that this node must not run.
    Dead(Dead),
    /// A message of a queue is put aside; or could not be, and comes again.
    PutAside {
        /// The queue.
        queue: String,
        /// See [`Dead::name`].
        name: String,
        /// Reason for it, as a clause.
        reason: String,
        /// Reason why it is still in its queue, if it is.
        problem: Option<PutError>,
    },
    /// Another node has told this one something; with the room that it takes until it is looked at, if it is output.
    Told(Vec<u8>, Option<OwnedSemaphorePermit>),
    /// The most that tasks of this node's queues may ask for.
    Bounds(Vec<(String, QueueBound)>),
    /// The engine has lost writes: it had told a sequence of the records, and the next one is this.
    LostWrites {
        /// The highest that was told.
        told: u64,
        /// The sequence after that.
        now: u64,
    },
    /// The heartbeats of the living nodes.
    Nodes(Vec<(PlaceId, Heartbeat)>),
    /// A heartbeat was acknowledged, which was sent at this time.
    Heard(Instant),
    /// The offset of this node's clock, measured anew.
    Clock(ClockOffset),
    /// The answer to a question for the cluster, under its number.
    Surveyed(u64, Result<Survey, String>),
    /// A copy of this place has begun, and yields; what people are told of it.
    Copied(String),
    /// Something that was gone is there again, for the log.
    Mended(String),
    /// Start of a time in which the engine can be reached, with its name and version.
    Reachable(String),
    /// Start of a time in which the engine cannot be reached, with the reason.
    Unreachable(String),
}

/// The parts of a queue, each of which is a stream.
const TIERS: [Tier; 3] = [Tier::First, Tier::Second, Tier::Commands];

fn queue_stream(queue: &str, tier: Tier) -> String {
    match tier {
        Tier::First => format!("TRACER_{CLUSTER}_Q_{queue}"),
        Tier::Second => format!("TRACER_{CLUSTER}_Q2_{queue}"),
        Tier::Commands => format!("TRACER_{CLUSTER}_QC_{queue}"),
    }
}

/// True for a stream of this cluster, by its name.
fn is_of_cluster(stream: &str) -> bool {
    stream.starts_with(&format!("TRACER_{CLUSTER}_"))
}

/// Returns the queue that a stream is of, and the part of it.
fn part_of_stream(stream: &str) -> Option<(&str, Tier)> {
    TIERS.into_iter().find_map(|tier| Some((stream.strip_prefix(&queue_stream("", tier))?, tier)))
}

/// Returns the version that the description of a stream tells.
fn cluster_version(description: &str) -> Option<u32> {
    let version = description.strip_prefix(CLUSTER_VERSION_IS)?;
    version.split_once(bounds::BOUND_IS).map_or(version, |(version, _)| version).parse().ok()
}

fn queue_subjects(queue: &str, tier: Tier) -> String {
    match tier {
        Tier::First => format!("tracer.{CLUSTER}.q.{queue}."),
        Tier::Second => format!("tracer.{CLUSTER}.q2.{queue}."),
        Tier::Commands => format!("tracer.{CLUSTER}.qc.{queue}."),
    }
}

fn queue_subject(queue: &str, tier: Tier, id: ClusterTaskId) -> String {
    format!("{}{id}", queue_subjects(queue, tier))
}

fn record_stream() -> String {
    format!("TRACER_{CLUSTER}_RECORD")
}

fn record_subject(key: RecordKey) -> String {
    let (kind, id) = match key {
        RecordKey::Task(id) => ("task", id),
        RecordKey::Bundle(id) => ("bundle", id),
    };
    format!("tracer.{CLUSTER}.record.{kind}.{}.{}", id.place, id.task)
}

fn node_subject(place: PlaceId) -> String {
    format!("tracer.{CLUSTER}.record.node.{place}")
}

fn told_subject(place: PlaceId) -> String {
    format!("tracer.{CLUSTER}.to.{place}")
}

/// Returns the key of the subject of a record.
fn key_of_record(subject: &str) -> Option<RecordKey> {
    let mut tokens = subject.rsplit('.');
    let (task, place, kind) = (tokens.next()?, tokens.next()?, tokens.next()?);
    let id = format!("{place}-{task}").parse().ok()?;
    match kind {
        "task" => Some(RecordKey::Task(id)),
        "bundle" => Some(RecordKey::Bundle(id)),
        _ => None,
    }
}

/// A connection to the engine.
pub(crate) struct Nats {
    client: Client,
    context: Context,
    events: UnboundedSender<FromEngine>,
    place: PlaceId,
    /// The queues that it serves.
    queues: Queues,
    address: String,
    /// The last thing that the server has said of a missing permission.
    violations: watch::Receiver<String>,
    /// The key that what is published is signed with, if there is one.
    signer: Option<Signer>,
    /// Keys that have signed whatever is run here; empty where everything is.
    trusted: Vec<String>,
    /// Heartbeats of other heads with this place's id, and the node of the last one; true while there are some.
    copies_seen: Mutex<Copies>,
    copied_by: std::sync::Mutex<String>,
    is_copied: AtomicBool,
    /// Highest sequence of the records that was told.
    highest_told: AtomicU64,
    /// Time at which a heartbeat was acknowledged last.
    heard_at: std::sync::Mutex<Instant>,
    measuring: clock::Measuring,
    /// Folder of the values of this place.
    values: PathBuf,
    /// Permits for copies of values that go on at a time.
    copies: Semaphore,
    /// Permits for bytes of output that are on the way.
    output_room: Arc<Semaphore>,
    /// Number of connections that were made.
    connections: Arc<AtomicU64>,
    delivered_before: Mutex<DeliveredBefore>,
    /// Held while the sequence of a queue is filled.
    filling: Mutex<()>,
    /// True once nothing is to be pulled any more.
    is_stopping: watch::Sender<bool>,
    /// Consumers that were pulled from, by the names of their streams.
    consumers: Mutex<HashMap<String, PullConsumer>>,
}

impl Nats {
    /// Begins to connect, and goes on trying for ever. What becomes of it is told as events.
    pub(crate) async fn connect(
        access: &EngineAccess,
        place: PlaceId,
        queues: Queues,
        (signer, trusted): (Option<Signer>, Vec<String>),
        values: PathBuf,
        events: UnboundedSender<FromEngine>,
    ) -> Result<Nats, EngineError> {
        let (state_tx, mut states) = tokio::sync::mpsc::unbounded_channel();
        let options = options(access)?
            .retry_on_initial_connect()
            .ping_interval(Duration::from_secs(5))
            .reconnect_delay_callback(|attempts| Duration::from_millis(100 * attempts.min(10) as u64))
            .event_callback(move |event| {
                let told = state_tx.send(event);
                async move { drop(told) }
            });
        let address = access.address.clone();
        let client = options.connect(&address).await;
        let client = client.map_err(|error| access::not_connected(access, &with_causes(&error)))?;
        let context = async_nats::jetstream::new(client.clone());
        let (made, made_events) = (client.clone(), events.clone());
        let connections = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&connections);
        let access = access.clone();
        let (own_address, own_queues) = (address.clone(), queues.clone());
        let (violated, violations) = watch::channel(String::new());
        let told_of = violations.clone();
        let (turns, wanted_turns) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            let is_told = Arc::new(std::sync::Mutex::new(String::new()));
            let (mut set_up, mut finding): (Option<JoinHandle<()>>, Option<JoinHandle<()>>) = (None, None);
            while let Some(event) = states.recv().await {
                match event {
                    Event::Connected => {
                        counted.fetch_add(1, Ordering::Relaxed);
                        finding.take().into_iter().for_each(|finding| finding.abort());
                        lock(&is_told).clear();
                        let of_set_up = (made.clone(), queues.clone(), access.address.clone());
                        let told = (made_events.clone(), turns.clone());
                        let work = set_up_and_watch(of_set_up, place, told_of.clone(), told);
                        set_up.replace(tokio::spawn(work)).into_iter().for_each(|before| before.abort());
                    }
                    Event::Disconnected | Event::Closed => {
                        set_up.take().into_iter().for_each(|before| before.abort());
                        let _ =
                            made_events.send(FromEngine::Unreachable(format!("the connection to `{address}` is lost")));
                    }
                    Event::ServerError(ServerError::Other(said)) => drop(violated.send(said)),
                    // The client goes on trying, whatever the reason is, and does not say all of it: another connection does. It is told once.
                    Event::ClientError(ClientError::Other(_))
                        if set_up.is_none() && finding.as_ref().is_none_or(JoinHandle::is_finished) =>
                    {
                        let (access, is_told, events) = (access.clone(), Arc::clone(&is_told), made_events.clone());
                        finding = Some(tokio::spawn(find_reason(access, is_told, events)));
                    }
                    _ => {}
                }
            }
        });
        let told = client
            .subscribe(told_subject(place))
            .await
            .map_err(|error| EngineError::Asset { name: told_subject(place), reason: error.to_string() })?;
        tokio::spawn(output::hand_on(told, wanted_turns, events.clone()));
        Ok(Nats {
            client,
            context,
            events,
            place,
            queues: own_queues,
            address: own_address,
            violations,
            signer,
            trusted,
            copies_seen: Mutex::default(),
            copied_by: std::sync::Mutex::default(),
            is_copied: AtomicBool::new(false),
            highest_told: AtomicU64::new(0),
            heard_at: std::sync::Mutex::new(Instant::now()),
            measuring: clock::Measuring::new(place),
            values,
            copies: Semaphore::new(values::COPIES),
            output_room: output::room(),
            connections,
            delivered_before: Mutex::default(),
            filling: Mutex::default(),
            is_stopping: watch::Sender::new(false),
            consumers: Mutex::default(),
        })
    }

    /// Carries a request out, beside others. Returns its task.
    pub(crate) fn carry_out(self: &Arc<Nats>, number: u64, request: Request) -> JoinHandle<()> {
        let nats = Arc::clone(self);
        tokio::spawn(async move {
            if let Some(answer) = nats.answer(request).await {
                let _ = nats.events.send(FromEngine::Answer(number, answer));
            }
        })
    }

    /// Carries a request out. Futures that few tasks need are boxed: this one is moved for each request, and is as large as its largest branch.
    async fn answer(&self, request: Request) -> Option<Answer> {
        match request {
            Request::EnterKey { key, entry } => Some(Box::pin(self.enter_key(&key, entry)).await),
            Request::Put { queue, tier, id, message, asks_for, is_overdue } => {
                match self.refuses(&queue, asks_for.as_ref()).await {
                    Some(answer) => Some(answer),
                    None => Some(self.put((&queue, tier), id, message, is_overdue).await),
                }
            }
            Request::Has { queue, id, is_overdue } => {
                Some(Box::pin(self.has(&queue, id, is_overdue)).await.map_or(Answer::Unreachable, Answer::Has))
            }
            Request::Pull { queue, tier, count, waits } => {
                Some(Box::pin(self.pull((&queue, tier), count, waits)).await)
            }
            Request::Keep(handle) => self.acknowledge(handle, "+WPI").await,
            Request::GiveBack(handle) => {
                self.acknowledge(handle, "-NAK").await;
                let _ = self.client.flush().await;
                None
            }
            Request::GiveBackLater(handle) => self.acknowledge(handle, GIVE_BACK_LATER).await,
            Request::ReadNodes => {
                if let Ok(survey) = Box::pin(self.survey()).await {
                    let nodes = survey.living().map(|beat| (beat.place, beat.heartbeat.clone())).collect();
                    let _ = self.events.send(FromEngine::Nodes(nodes));
                }
                None
            }
            Request::ReadBounds => {
                if let Ok(bounds) = Box::pin(bounds::read_all(&self.context, &self.queues.names)).await {
                    let _ = self.events.send(FromEngine::Bounds(bounds));
                }
                Box::pin(self.mend_queues()).await;
                None
            }
            Request::StopPulling => {
                self.is_stopping.send_replace(true);
                None
            }
            Request::Done(handle) => self.acknowledge(handle, "+ACK").await,
            Request::PutAside(dead) => {
                self.put_aside(dead).await;
                None
            }
            Request::Read(key) => {
                let entry = self.last(record_stream(), record_subject(key)).await;
                Some(entry.map_or(Answer::Unreachable, Answer::Record))
            }
            Request::Swap { key, revision, record } => Some(self.swap(record_subject(key), revision, record).await),
            Request::Beat(beat) => {
                Box::pin(self.beat(beat)).await;
                None
            }
            Request::ReadHeartbeats(place) => {
                let of_other = self.last(record_stream(), node_subject(place)).await;
                let own = self.last(record_stream(), node_subject(self.place)).await;
                Some(match (of_other, own) {
                    (Ok(of_other), Ok(own)) => Answer::Heartbeats { of_other, own },
                    _ => Answer::Unreachable,
                })
            }
            Request::Tell(place, told) => {
                let _ = self.client.publish(told_subject(place), told.into()).await;
                None
            }
            Request::PutValue { id, attempt, source } => Some(Box::pin(self.put_value(id, attempt, source)).await),
            Request::GetValue(key) => Some(Box::pin(self.get_value(&key)).await),
            Request::FindMessage(id) => {
                Some(Box::pin(self.find_message(id)).await.map_or(Answer::Unreachable, Answer::InQueue))
            }
            Request::DropValues(id) => {
                self.drop_values(id).await;
                None
            }
        }
    }

    async fn acknowledge(&self, handle: Handle, what: &'static str) -> Option<Answer> {
        let _ = self.client.publish(handle.0.to_string(), what.into()).await;
        None
    }

    /// Makes again what is gone of the queues that it serves, if it may.
    async fn mend_queues(&self) {
        let version = self.client.server_info().version;
        for (queue, tier) in self.queues.parts() {
            let name = queue_stream(queue, tier);
            let is_gone = match self.context.get_stream(&name).await {
                Err(error) => is_not_there(&error),
                Ok(_) => {
                    let consumer = survey::consumer_if_there(&self.context, &name, &self.address, &version).await;
                    matches!(consumer, Ok(None))
                }
            };
            if !is_gone {
                continue;
            }
            let queues = Queues { names: vec![queue.to_owned()], shared_commands: self.queues.shared_commands };
            let work = make_assets(&self.client, &self.context, &queues, &self.address, None);
            let made = Box::pin(unless_violated(work, self.violations.clone(), &self.address)).await;
            let text = match made {
                Ok(_) => format!(
                    "the queue `{queue}` lacked its stream `{name}` or the consumer of that, which is made again"
                ),
                Err(error) => format!(
                    "the queue `{queue}` lacks its stream `{name}` or the consumer of that, and it cannot be made again: {error}"
                ),
            };
            let _ = self.events.send(FromEngine::Mended(text));
        }
    }

    /// Returns why a message of so many bytes cannot be sent, if so.
    fn refuses_size(&self, what: &str, bytes: usize) -> Option<String> {
        let limit = self.client.server_info().max_payload;
        (bytes + HEADERS_BYTES > limit).then(|| {
            format!(
                "{what} takes {}, but the engine takes messages of at most {}\n(hint: a larger `max_payload` in the configuration of nats-server; 1 MB is its default)",
                Size(bytes as u64),
                Size(limit as u64)
            )
        })
    }

    async fn put(&self, (queue, tier): (&str, Tier), id: ClusterTaskId, message: Vec<u8>, is_overdue: bool) -> Answer {
        let delivered = self.delivered_before(&queue_stream(queue, tier)).await;
        let message = match &self.signer {
            None => message,
            Some(signer) => signer.sign(Address { cluster: CLUSTER, queue, id }, &message),
        };
        if let Some(why) = self.refuses_size("its message", message.len()) {
            return Answer::Put(Err(PutError::Refused(why)));
        }
        let mut publication = PublishMessage::build().payload(message.into()).expected_last_subject_sequence(0);
        if let Some(offset_ns) = self.own_offset_ns().await {
            publication = publication.header(clock::HEADER, offset_ns.to_string());
        }
        let sent = self.context.send_publish(queue_subject(queue, tier, id), publication).await;
        let acknowledged = match sent {
            Ok(acknowledged) => {
                fault::point("task_published");
                acknowledged.await
            }
            Err(error) => Err(error),
        };
        match acknowledged {
            Ok(acknowledged) if acknowledged.sequence > delivered => Answer::Put(Ok(())),
            Ok(_) => Box::pin(self.renew((queue, tier, id), Passed::Delivered)).await,
            // There is one of this task.
            Err(error) if is_other_sequence(&error) => {
                Box::pin(self.renew((queue, tier, id), Passed::of(is_overdue))).await
            }
            // Nobody takes it either while servers choose who leads the stream.
            Err(error) if error.kind() == PublishErrorKind::StreamNotFound => {
                let name = queue_stream(queue, tier);
                match Box::pin(tokio::time::timeout(LEADER_ANSWERS, self.context.get_stream(&name))).await {
                    Ok(Err(error)) if !is_not_there(&error) => Answer::Unreachable,
                    // Its part for commands is made by the first node that runs some.
                    Ok(Err(_)) if tier == Tier::Commands => Answer::Put(Err(PutError::NoCommands(queue.into()))),
                    Ok(Err(_)) => Answer::Put(Err(PutError::NoQueue)),
                    Ok(Ok(_)) | Err(_) => Answer::Unreachable,
                }
            }
            Err(error) => match put_error(&error) {
                Some(why) => Answer::Put(Err(why)),
                None => Answer::Unreachable,
            },
        }
    }

    /// Publishes something, and waits for the acknowledgement.
    async fn publish_and_wait(&self, subject: String, publication: PublishMessage) -> Result<PublishAck, PublishError> {
        self.context.send_publish(subject, publication).await?.await
    }

    async fn swap(&self, subject: String, revision: Option<u64>, record: Vec<u8>) -> Answer {
        if let Some(why) = self.refuses_size("its record", record.len()) {
            return Answer::TooLarge(why);
        }
        let publication =
            PublishMessage::build().payload(record.into()).expected_last_subject_sequence(revision.unwrap_or(0));
        let told = self.told_sequence();
        match self.publish_and_wait(subject, publication).await {
            Ok(acknowledged) => {
                self.note_sequence(told, acknowledged.sequence);
                Answer::Swapped(Some(acknowledged.sequence))
            }
            Err(error) if is_other_sequence(&error) => Answer::Swapped(None),
            Err(_) => Answer::Unreachable,
        }
    }

    async fn last(&self, stream: String, subject: String) -> Result<Option<Entry>, ()> {
        Box::pin(last(&self.context, stream, subject)).await
    }

    /// Looks into every queue of the cluster.
    async fn find_message(&self, id: ClusterTaskId) -> Result<Option<InQueue>, ()> {
        let mut streams = self.context.stream_names();
        while let Some(name) = streams.next().await {
            let name = name.map_err(drop)?;
            let Some(queue) = name.strip_prefix(&queue_stream("", Tier::First)) else { continue };
            let is_bundle = match self.find_in_queue(queue, id).await? {
                Some((_, entry)) => BundleMessage::is_one(signed::message_of(&entry.value)),
                None if self.find_in_bundle(queue, id).await? => true,
                None => continue,
            };
            return Ok(Some(InQueue { queue: queue.into(), is_bundle }));
        }
        Ok(None)
    }

    /// Returns whether a queue has the message of a bundle with this task.
    async fn find_in_bundle(&self, queue: &str, id: ClusterTaskId) -> Result<bool, ()> {
        let (stream, tier) = (queue_stream(queue, Tier::Second), Tier::Second);
        let is_in = |place: u64| {
            let first = ClusterTaskId { task: TaskId(id.task.0 - place), ..id };
            let message = self.last(stream.clone(), queue_subject(queue, tier, first));
            async move {
                let found = message.await?;
                Ok(found.is_some_and(|entry| BundleMessage::has(signed::message_of(&entry.value), place as u32)))
            }
        };
        let places = 1..u64::from(BUNDLE_LIMIT).min(id.task.0);
        let mut found = futures_util::stream::iter(places).map(is_in).buffered(LOOKED_AT_TOGETHER);
        while let Some(is_in) = found.next().await {
            if is_in? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads the message of a task, whichever part of a queue has it, and returns which that is.
    async fn find_in_queue(&self, queue: &str, id: ClusterTaskId) -> Result<Option<(Tier, Entry)>, ()> {
        for tier in TIERS {
            let found = last_or_why(&self.context, queue_stream(queue, tier), queue_subject(queue, tier, id)).await;
            match found {
                Ok(Some(entry)) => return Ok(Some((tier, entry))),
                Ok(None) => {}
                // Many queues have no part for commands.
                Err(LastRawMessageErrorKind::JetStream(error))
                    if tier == Tier::Commands && error.error_code() == ErrorCode::STREAM_NOT_FOUND => {}
                Err(_) => return Err(()),
            }
        }
        Ok(None)
    }

    async fn pull(&self, of: (&str, Tier), count: usize, waits: bool) -> Answer {
        let batch = async {
            let consumer = self.consumer(of).await?;
            Some(if waits {
                // Without heartbeats of the server: after one, this client's batch sleeps through the messages that come.
                consumer.batch().max_messages(count).expires(PULL_EXPIRES).messages().await.ok()?
            } else {
                consumer.fetch().max_messages(count).messages().await.ok()?
            })
        };
        let Some(batch) = batch.await else { return Answer::Unreachable };
        if waits {
            return self.deliver(of.0, batch).await;
        }
        tokio::time::timeout(REQUEST_LIMIT, self.deliver(of.0, batch)).await.unwrap_or(Answer::Unreachable)
    }

    /// Hands on what a pull brings.
    async fn deliver(&self, queue: &str, mut batch: Batch) -> Answer {
        let mut is_stopping = self.is_stopping.subscribe();
        loop {
            let message = tokio::select! {
                message = batch.next() => message,
                _ = is_stopping.wait_for(|is_stopping| *is_stopping) => None,
            };
            let Some(message) = message else { return Answer::Pulled };
            let Ok(message) = message else { return Answer::Unreachable };
            let is_again = message.info().map_or(true, |info| info.delivered > 1);
            let Some(handle) = message.reply.as_ref().map(|reply| Handle(reply.as_str().into())) else { continue };
            let name = message.subject.rsplit('.').next().unwrap_or_default();
            if name == FILLER {
                self.acknowledge(handle, "+ACK").await;
                continue;
            }
            let opened = match name.parse() {
                Ok(id) => self.open(queue, id, &message.payload).await.map(|message| (id, message.to_vec())),
                Err(error) => Err(format!("its subject has no id of a task: {error}")),
            };
            if let Ok((id, _)) = &opened {
                self.note_clock_of(id.place, message.headers.as_ref()).await;
            }
            let queue = queue.to_owned();
            let event = match opened {
                Ok((id, message)) => FromEngine::Delivered(Delivery { queue, handle, id, message, is_again }),
                Err(reason) => {
                    let (name, message) = (name.to_owned(), message.payload.to_vec());
                    FromEngine::Dead(Dead { queue, handle, name, message, reason })
                }
            };
            let _ = self.events.send(event);
        }
    }

    /// Returns a message without its signature; or why this node must not run it, which its origin is told too.
    async fn open<'m>(&self, queue: &str, id: ClusterTaskId, bytes: &'m [u8]) -> Result<&'m [u8], String> {
        let opened = signed::open(&self.trusted, Address { cluster: CLUSTER, queue, id }, bytes);
        if let Err(Unusable::Distrusted(why, _)) = &opened {
            let told = Told::Refused(id, *why, self.place).encode();
            let _ = self.client.publish(told_subject(id.place), told.into()).await;
        }
        opened.map_err(|why| why.to_string())
    }

    /// Returns the consumer of a part of a queue, which is looked up once.
    async fn consumer(&self, (queue, tier): (&str, Tier)) -> Option<PullConsumer> {
        let name = queue_stream(queue, tier);
        let mut consumers = self.consumers.lock().await;
        if let Some(consumer) = consumers.get(&name) {
            return Some(consumer.clone());
        }
        let stream = self.context.get_stream_no_info(&name).await.ok()?;
        let consumer: PullConsumer = stream.get_consumer("w").await.ok()?;
        consumers.insert(name, consumer.clone());
        Some(consumer)
    }
}

/// Reads the last message of a subject, from whoever leads the stream.
async fn last(context: &Context, stream: String, subject: String) -> Result<Option<Entry>, ()> {
    last_or_why(context, stream, subject).await.map_err(drop)
}

/// Does the same, and returns why it cannot.
async fn last_or_why(
    context: &Context,
    stream: String,
    subject: String,
) -> Result<Option<Entry>, LastRawMessageErrorKind> {
    let message = last_message(context, &stream, &subject).await?;
    Ok(message.map(|message| Entry {
        revision: message.sequence,
        stamp_ns: u64::try_from(message.time.unix_timestamp_nanos()).unwrap_or(0),
        value: message.payload.to_vec(),
    }))
}

/// Reads it as the server has it, with its headers.
async fn last_message(
    context: &Context,
    stream: &str,
    subject: &str,
) -> Result<Option<StreamMessage>, LastRawMessageErrorKind> {
    let stream = context.get_stream_no_info(stream).await.map_err(|_| LastRawMessageErrorKind::Other)?;
    let read = tokio::time::timeout(LEADER_ANSWERS, stream.get_last_raw_message_by_subject(subject)).await;
    match read.map_err(|_| LastRawMessageErrorKind::Other)? {
        Ok(message) => Ok(Some(message)),
        Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
        Err(error) => Err(error.kind()),
    }
}

/// True if a publication was refused because its subject is at another sequence, or gets another one at the moment, for which servers of a cluster have a code of
/// its own.
fn is_other_sequence(error: &PublishError) -> bool {
    error.kind() == PublishErrorKind::WrongLastSequence
        || said(error).is_some_and(|said| said.error_code() == ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT)
}

/// Returns what the server has said of a publication, if that is why it failed.
fn said(error: &PublishError) -> Option<&async_nats::jetstream::Error> {
    error.source()?.downcast_ref()
}

/// Returns why a publication was refused; none if nobody knows what became of it.
fn put_error(error: &PublishError) -> Option<PutError> {
    match error.kind() {
        PublishErrorKind::StreamNotFound
        | PublishErrorKind::TimedOut
        | PublishErrorKind::BrokenPipe
        | PublishErrorKind::MaxAckPending => None,
        _ => {
            let reason = with_causes(error);
            let is_full =
                ["maximum bytes", "maximum messages", "insufficient"].iter().any(|word| reason.contains(word));
            match is_full {
                true => Some(PutError::Full),
                // Servers that choose who leads, or have just chosen another one.
                false if said(error).is_some_and(|said| said.code() == 503) => None,
                false => Some(PutError::Refused(reason)),
            }
        }
    }
}

/// Finds out why no connection can be had, and tells it unless it was told.
async fn find_reason(
    access: EngineAccess,
    is_told: Arc<std::sync::Mutex<String>>,
    events: UnboundedSender<FromEngine>,
) {
    if let Err(error) = Connected::to(&access).await {
        let why = error.to_string();
        if std::mem::replace(&mut *lock(&is_told), why.clone()) != why {
            let _ = events.send(FromEngine::Unreachable(why));
        }
    }
    tokio::time::sleep(AGAIN).await;
}

/// Sets up what a connection needs that has just been made, until that works; says that the engine can be reached; and watches the records of this place's
/// tasks for as long as the connection lasts.
async fn set_up_and_watch(
    (client, queues, address): (Client, Queues, String),
    place: PlaceId,
    violations: watch::Receiver<String>,
    (events, turns): (UnboundedSender<FromEngine>, UnboundedSender<Turn>),
) {
    let mut is_told = String::new();
    loop {
        let work = set_up(&client, place, &queues, &address);
        match unless_violated(work, violations.clone(), &address).await {
            Ok((bounds, mut records)) => {
                is_told.clear();
                let _ = events.send(FromEngine::Bounds(bounds));
                let version = client.server_info().version;
                let _ = events.send(FromEngine::Reachable(format!("nats-server {version}")));
                while let Some(Ok(message)) = records.next().await {
                    if let Some(key) = key_of_record(&message.subject) {
                        // Output that has come before an end is shown before it.
                        output::wait_for_turn(&turns).await;
                        let _ = events.send(FromEngine::Record(key, message.payload.to_vec()));
                    }
                }
                let _ = events.send(FromEngine::Unreachable("its records cannot be watched any more".into()));
            }
            Err(error) => {
                let why = error.to_string();
                if is_told != why {
                    is_told.clone_from(&why);
                    let _ = events.send(FromEngine::Unreachable(why));
                }
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Carries set-up out, and does not wait for the answer to a request for which a permission is missing: there is none.
async fn unless_violated<T>(
    work: impl Future<Output = Result<T, EngineError>>,
    mut violations: watch::Receiver<String>,
    address: &str,
) -> Result<T, EngineError> {
    violations.mark_unchanged();
    let violated = async {
        loop {
            violations.changed().await?;
            let said = violations.borrow_and_update().clone();
            if access::is_missing_permission(&said) {
                return Ok::<_, RecvError>(said);
            }
        }
    };
    tokio::select! {
        biased;
        done = work => done,
        Ok(said) = violated => Err(access::missing_permission(address, &said)),
    }
}

/// Returns the options of every connection to an engine.
fn options(access: &EngineAccess) -> Result<ConnectOptions, EngineError> {
    let mut options = ConnectOptions::new().name("tracer").connection_timeout(REQUEST_LIMIT);
    if access::is_tls(&access.address) {
        // Other servers of the cluster, of which the first one tells, have addresses without a scheme.
        options = options.require_tls(true);
    } else if !access.is_insecure {
        options = options.ignore_discovered_servers();
    }
    if let Some(authority) = &access.authority {
        options = options.add_root_certificates(authority.clone());
    }
    match access::read(access)? {
        None => Ok(options),
        Some(Credentials::Seed(seed)) => {
            let key = KeyPair::from_seed(&seed).map_err(|error| access::bad_credentials(access, &error.to_string()))?;
            // No other user is permitted to hear what this one is answered.
            Ok(options.custom_inbox_prefix(roles::inbox_prefix(&key.public_key())).nkey(seed))
        }
        Some(Credentials::File(text)) => {
            options.credentials(&text).map_err(|error| access::bad_credentials(access, &error.to_string()))
        }
    }
}

async fn set_up(
    client: &Client,
    place: PlaceId,
    queues: &Queues,
    address: &str,
) -> Result<(Vec<(String, QueueBound)>, consumer::push::Messages), EngineError> {
    let context = async_nats::jetstream::new(client.clone());
    make_assets(client, &context, queues, address, None).await?;
    let bounds = bounds::read_all(&context, &queues.names).await?;
    Ok((bounds, watch(client, &context, place).await?))
}

/// Outcome of making a stream that is to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// A new stream.
    New,
    /// A stream that was there, with another number of copies now.
    Changed,
    /// A stream that was there as it is to be.
    Kept,
}

/// Makes streams and consumers that are not there, and returns the streams. With a number of copies, all of them have it from now on; without, new ones have
/// as many as the records.
async fn make_assets(
    client: &Client,
    context: &Context,
    queues: &Queues,
    address: &str,
    copies: Option<usize>,
) -> Result<Vec<(String, Made)>, EngineError> {
    let records = StreamConfig {
        name: record_stream(),
        subjects: vec![format!("tracer.{CLUSTER}.record.>")],
        max_messages_per_subject: 1,
        max_age: RECORDS_KEPT,
        storage: StorageType::File,
        discard: DiscardPolicy::Old,
        ..StreamConfig::default()
    };
    let name = records.name.clone();
    let (made, of_records) = make_stream(client, context, records, address, (copies, 1)).await?;
    let mut all = vec![(name, made)];
    let (made, _) = make_stream(client, context, values::stream(), address, (copies, of_records)).await?;
    all.push((values::stream_name(), made));
    for stream in [keys::stream(), dead::stream()] {
        let name = stream.name.clone();
        let (made, _) = make_stream(client, context, stream, address, (copies, of_records)).await?;
        all.push((name, made));
    }
    for (queue, tier) in queues.parts() {
        let name = queue_stream(queue, tier);
        let of_queue = StreamConfig {
            name: name.clone(),
            subjects: vec![format!("{}*", queue_subjects(queue, tier))],
            retention: RetentionPolicy::WorkQueue,
            discard: DiscardPolicy::New,
            max_bytes: QUEUE_BYTES,
            max_messages_per_subject: 1,
            storage: StorageType::File,
            ..StreamConfig::default()
        };
        let (made, _) = make_stream(client, context, of_queue, address, (copies, of_records)).await?;
        let asset = |reason: String| EngineError::Asset { name: format!("{name}/w"), reason };
        let stream = context.get_stream_no_info(&name).await;
        all.push((name.clone(), made));
        let stream = stream.map_err(|error| asset(error.to_string()))?;
        let config = consumer::pull::Config {
            durable_name: Some("w".into()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: ACK_WAIT,
            max_deliver: -1,
            max_ack_pending: UNACKNOWLEDGED,
            ..consumer::pull::Config::default()
        };
        let mut tries = 0;
        while let Err(error) = stream.get_or_create_consumer("w", config.clone()).await {
            tries += 1;
            let reason = with_causes(&error);
            // Servers that have got copies of the stream choose first who leads.
            if tries == LEADER_TRIES || !reason.contains("timed out") {
                return Err(asset(reason));
            }
        }
    }
    Ok(all)
}

/// Makes a stream unless it is there and of this version, and returns the number of its copies: the wanted one, or of a new one the other.
async fn make_stream(
    client: &Client,
    context: &Context,
    config: StreamConfig,
    address: &str,
    (wanted, of_new): (Option<usize>, usize),
) -> Result<(Made, usize), EngineError> {
    let num_replicas = wanted.unwrap_or(of_new);
    let config = StreamConfig { description: Some(bounds::description(None)), num_replicas, ..config };
    let name = config.name.clone();
    let no_jetstream = || EngineError::NoJetStream { address: address.into(), version: client.server_info().version };
    match get_stream(context, &name, address).await? {
        Ok(stream) => {
            let there = &stream.cached_info().config;
            let found = there.description.as_deref().and_then(cluster_version);
            if found != Some(CLUSTER_VERSION) {
                return Err(EngineError::ClusterVersion { stream: name, found, own: CLUSTER_VERSION });
            }
            if wanted.is_none_or(|wanted| wanted == there.num_replicas) {
                return Ok((Made::Kept, there.num_replicas));
            }
            let changed =
                context.update_stream(StreamConfig { description: there.description.clone(), ..config }).await;
            return match changed {
                Ok(_) => Ok((Made::Changed, num_replicas)),
                Err(error) => Err(EngineError::Asset { name, reason: with_causes(&error) }),
            };
        }
        Err(error) => match error.kind() {
            // It is not there, or the account has no JetStream, which the answer to the next request tells apart.
            GetStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::CLUSTER_NOT_AVAILABLE => {
                let (question, reason) = (format!("STREAM.INFO.{name}"), error.to_string());
                return Err(EngineError::Answer { address: address.into(), question, reason });
            }
            GetStreamErrorKind::JetStream(error) if error.code() == 503 => return Err(no_jetstream()),
            GetStreamErrorKind::JetStream(_) => {}
            _ if is_without_jetstream(&with_causes(&error)) => return Err(no_jetstream()),
            _ => return Err(EngineError::Asset { name, reason: with_causes(&error) }),
        },
    }
    context.create_stream(config).await.map(|_| (Made::New, num_replicas)).map_err(|error| match error.kind() {
        CreateStreamErrorKind::JetStreamUnavailable => no_jetstream(),
        _ => EngineError::Asset { name, reason: with_causes(&error) },
    })
}

/// Asks about a stream, again when nobody answers.
async fn get_stream(
    context: &Context,
    name: &str,
    address: &str,
) -> Result<Result<Stream, GetStreamError>, EngineError> {
    for _ in 0..LEADER_QUESTIONS {
        if let Ok(answer) = tokio::time::timeout(LEADER_ANSWERS, context.get_stream(name)).await {
            return Ok(answer);
        }
    }
    let (question, reason) = (format!("STREAM.INFO.{name}"), "no server leads the stream".into());
    Err(EngineError::Answer { address: address.into(), question, reason })
}

/// True if the engine says that there is no such stream.
fn is_not_there(error: &GetStreamError) -> bool {
    matches!(error.kind(), GetStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND)
}

/// True for what the client says of a question to JetStream that nobody takes.
fn is_without_jetstream(said: &str) -> bool {
    said.contains("does not exist") || said.contains("no responders")
}

/// Watches the records of a place's tasks from now on.
async fn watch(client: &Client, context: &Context, place: PlaceId) -> Result<consumer::push::Messages, EngineError> {
    let asset = |reason: String| EngineError::Asset { name: record_stream(), reason };
    let stream = context.get_stream_no_info(record_stream()).await.map_err(|error| asset(error.to_string()))?;
    let config = consumer::push::Config {
        // With a name the question has the filter in its subject, where a permission can be about it.
        name: Some(format!("{place}-{}", now_unix_nano())),
        deliver_subject: client.new_inbox(),
        deliver_policy: DeliverPolicy::New,
        ack_policy: AckPolicy::None,
        filter_subject: format!("tracer.{CLUSTER}.record.*.{place}.*"),
        // It ends with the server that has it, which may be another one than this connection's.
        idle_heartbeat: WATCH_HEARTBEAT,
        ..consumer::push::Config::default()
    };
    let consumer: PushConsumer = stream.create_consumer(config).await.map_err(|error| asset(with_causes(&error)))?;
    consumer.messages().await.map_err(|error| asset(error.to_string()))
}

/// A node as its place knows it before its head starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnNode<'a> {
    /// The id of its place.
    pub place: PlaceId,
    /// The name that it will have.
    pub node_id: &'a str,
    /// The number of the life of the last head in this place.
    pub last_life: u64,
    /// True if the folder of the place is another one than that of its last head: it may be a copy.
    pub was_moved: bool,
}

/// Tries an engine out, as `tracer start` does before it says that it has started: connects, and makes what is missing. Returns what is not as it should be.
pub(crate) async fn try_out(
    access: &EngineAccess,
    queues: &Queues,
    node: Option<OwnNode<'_>>,
    has: &QueueBound,
) -> Result<Vec<Finding>, EngineError> {
    match try_out_reached(access, queues, node, has).await {
        // The head goes on trying, and what is of no queue needs none.
        Err(error) if error.is_away() => Ok(vec![Finding::of_absence(&error)]),
        tried => tried,
    }
}

async fn try_out_reached(
    access: &EngineAccess,
    queues: &Queues,
    node: Option<OwnNode<'_>>,
    has: &QueueBound,
) -> Result<Vec<Finding>, EngineError> {
    let connected = Connected::to(access).await?;
    let Connected { client, context, address, .. } = &connected;
    connected.unless_violated(make_assets(client, context, queues, address, None)).await?;
    let bounds = connected.unless_violated(bounds::read_all(context, &queues.names)).await?;
    if let Some((queue, bound)) = bounds.into_iter().find(|(_, bound)| !has.has(bound)) {
        return Err(EngineError::TooSmall { queue, bound, has: has.clone() });
    }
    let role = if queues.names.is_empty() { Role::Submitter } else { Role::Node };
    if let Some(missing) = connected.missing(role).await?.into_iter().next() {
        return Err(EngineError::Permission { address: address.clone(), missing });
    }
    // Credentials that permit no survey are enough for a node.
    let Ok(survey) = connected.unless_violated(survey::survey(client, context, address)).await else {
        return Ok(Vec::new());
    };
    if let Some(OwnNode { place, node_id, last_life, was_moved }) = node {
        let mut taken_by = survey.other_of_place(place, node_id, last_life).map(|beat| beat.heartbeat.node_id.clone());
        if taken_by.is_none() && was_moved && survey.living().any(|beat| beat.place == place) {
            taken_by = is_still_heard(context, place).await.then(|| node_id.to_owned());
        }
        if let Some(node_id) = taken_by {
            return Err(EngineError::PlaceTaken { address: address.clone(), node_id, place: place.to_string() });
        }
    }
    match node.and_then(|node| survey.other_of_name(node.place, node.node_id)) {
        Some(other) => {
            let (node_id, place) = (other.heartbeat.node_id.clone(), other.place.to_string());
            Err(EngineError::NameTaken { address: address.clone(), node_id, place })
        }
        None => Ok(doctor::of_servers(&survey)),
    }
}

/// Returns whether the node of a place goes on writing heartbeats.
async fn is_still_heard(context: &Context, place: PlaceId) -> bool {
    let (first, until) = (last(context, record_stream(), node_subject(place)).await, Instant::now() + 2 * KEEP);
    let revision = |entry: Result<Option<Entry>, ()>| entry.ok().flatten().map(|entry| entry.revision);
    let first = revision(first);
    while Instant::now() < until {
        tokio::time::sleep(LOOK_FOR_COPY).await;
        if revision(last(context, record_stream(), node_subject(place)).await) > first {
            return true;
        }
    }
    false
}

/// Makes the streams of a cluster and of these queues, each with so many copies: three where there are several servers unless said.
pub(crate) async fn init(
    access: &EngineAccess,
    queues: &Queues,
    copies: Option<usize>,
) -> Result<(usize, Vec<(String, Made)>), EngineError> {
    let connected = Connected::to(access).await?;
    let Connected { client, context, address, .. } = &connected;
    let copies = copies.unwrap_or(if client.server_info().cluster.is_some() { 3 } else { 1 });
    let made = connected.unless_violated(make_assets(client, context, queues, address, Some(copies))).await?;
    Ok((copies, made))
}

/// A connection of a command, which ends when it cannot be had.
struct Connected {
    client: Client,
    context: Context,
    address: String,
    /// All that the server has said of missing permissions.
    violations: watch::Receiver<Vec<String>>,
}

impl Connected {
    async fn to(access: &EngineAccess) -> Result<Connected, EngineError> {
        let (violated, violations) = watch::channel(Vec::new());
        let options = options(access)?.event_callback(move |event| {
            if let Event::ServerError(ServerError::Other(said)) = event
                && access::is_missing_permission(&said)
            {
                violated.send_modify(|all: &mut Vec<String>| all.push(said));
            }
            async {}
        });
        let address = access.address.clone();
        let connected = options.connect(&address).await;
        let client = connected.map_err(|error| access::not_connected(access, &with_causes(&error)))?;
        let context = async_nats::jetstream::new(client.clone());
        Ok(Connected { client, context, address, violations })
    }

    /// Carries something out, and does not wait for the answer to a request for which a permission is missing: there is none.
    async fn unless_violated<T>(&self, work: impl Future<Output = Result<T, EngineError>>) -> Result<T, EngineError> {
        let mut violations = self.violations.clone();
        violations.mark_unchanged();
        let first = async {
            violations.changed().await?;
            Ok::<_, RecvError>(violations.borrow().last().cloned().unwrap_or_default())
        };
        tokio::select! {
            biased;
            done = work => done,
            Ok(said) = first => Err(access::missing_permission(&self.address, &said)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_found_under_its_task() {
        let id = ClusterTaskId { place: PlaceId(0x1234_5678_9abc_def0), task: TaskId(1042) };
        for key in [RecordKey::Task(id), RecordKey::Bundle(id)] {
            assert_eq!(key_of_record(&record_subject(key)), Some(key));
        }
        assert_eq!(key_of_record("tracer.default.record.node.x"), None);
        for tier in TIERS {
            assert_eq!(queue_subject("q", tier, id).rsplit('.').next().map(str::parse), Some(Ok(id)));
        }
    }
}
