//! The engine NATS JetStream: what is asked of it as streams, subjects and acknowledgements. No word of it leaves this file.
//!
//! | asset | kind | holds |
//! |---|---|---|
//! | `TRACER_default_Q_<queue>` | work queue stream with the durable pull consumer `w` | messages, each under the subject of its task |
//! | `TRACER_default_RECORD` | stream with one message for each subject | records under `task.<place>.<task>`, heartbeats under `node.<place>` |
//! | `TRACER_default_VALUE` | stream, read with direct gets | large values in pieces, under `<place>.<task>.<attempt>.<digest>` |
//! | `tracer.default.to.<place>` | subject without storage | what nodes tell each other |
//!
//! Compare-and-swap is a publication that expects the last sequence of its subject. A stream for each queue has one consumer without a filter: filters over
//! many subjects are slow. No message has a `Nats-Msg-Id`: its window would swallow a second publication of a message that was lost.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::{self, AckPolicy, DeliverPolicy, PullConsumer, PushConsumer};
use async_nats::jetstream::context::{
    Context, CreateStreamErrorKind, GetStreamErrorKind, PublishError, PublishErrorKind,
};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{
    Config as StreamConfig, DiscardPolicy, LastRawMessageErrorKind, RetentionPolicy, StorageType,
};
use async_nats::{Client, ClientError, ConnectOptions, Event, ServerError};
use futures_util::StreamExt;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch::{self, error::RecvError};
use tokio::task::JoinHandle;
use tracer_core::causes::with_causes;
use tracer_core::{ClusterTaskId, PlaceId};
use tracer_ipc::protocol::EngineAccess;

use crate::access::{self, Credentials, EngineError};
use crate::interface::{Answer, Delivery, Entry, Handle, PutError, Request};

mod values;

/// Time after which a message is delivered again that nobody acknowledges.
pub(crate) const ACK_WAIT: Duration = Duration::from_secs(10);
/// Time that a pull waits for messages.
const PULL_EXPIRES: Duration = Duration::from_secs(20);
/// Time within which a request is answered.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// Time that records are kept after their last change.
const RECORDS_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// The most bytes of a queue.
const QUEUE_BYTES: i64 = 1 << 30;
/// The most messages of a queue that are delivered and not acknowledged: more than all nodes have slots.
const UNACKNOWLEDGED: i64 = 100_000;
/// Pause before an engine that is there and not ready is tried again.
const AGAIN: Duration = Duration::from_secs(2);
/// The cluster, which keeps several apart in one account.
const CLUSTER: &str = "default";

/// An event of the engine.
#[derive(Debug)]
pub(crate) enum FromEngine {
    /// The answer to a request.
    Answer(u64, Answer),
    /// A message that a pull has brought.
    Delivered(Delivery),
    /// The record of a task of this node has changed.
    Record(ClusterTaskId, Vec<u8>),
    /// Another node has told this one something.
    Told(Vec<u8>),
    /// Start of a time in which the engine can be reached, with its name and version.
    Reachable(String),
    /// Start of a time in which the engine cannot be reached, with the reason.
    Unreachable(String),
}

fn queue_stream(queue: &str) -> String {
    format!("TRACER_{CLUSTER}_Q_{queue}")
}

fn queue_subject(queue: &str, id: ClusterTaskId) -> String {
    format!("tracer.{CLUSTER}.q.{queue}.{id}")
}

fn record_stream() -> String {
    format!("TRACER_{CLUSTER}_RECORD")
}

fn record_subject(id: ClusterTaskId) -> String {
    format!("tracer.{CLUSTER}.record.task.{}.{}", id.place, id.task)
}

fn node_subject(place: PlaceId) -> String {
    format!("tracer.{CLUSTER}.record.node.{place}")
}

fn told_subject(place: PlaceId) -> String {
    format!("tracer.{CLUSTER}.to.{place}")
}

/// Returns the task of the subject of a record.
fn task_of_record(subject: &str) -> Option<ClusterTaskId> {
    let mut tokens = subject.rsplit('.');
    let (task, place) = (tokens.next()?, tokens.next()?);
    format!("{place}-{task}").parse().ok()
}

/// A connection to the engine.
pub(crate) struct Nats {
    client: Client,
    context: Context,
    events: UnboundedSender<FromEngine>,
    place: PlaceId,
    /// Folder of the values of this place.
    values: PathBuf,
    /// Permits for copies of values that go on at a time.
    copies: Semaphore,
    /// True once nothing is to be pulled any more.
    is_stopping: watch::Sender<bool>,
}

impl Nats {
    /// Begins to connect, and goes on trying for ever. What becomes of it is told as events.
    pub(crate) async fn connect(
        access: &EngineAccess,
        place: PlaceId,
        queues: Vec<String>,
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
        let access = access.clone();
        tokio::spawn(async move {
            let (violated, violations) = watch::channel(String::new());
            let mut is_told = String::new();
            let mut set_up: Option<JoinHandle<()>> = None;
            while let Some(event) = states.recv().await {
                match event {
                    Event::Connected => {
                        is_told.clear();
                        let of_set_up = (made.clone(), queues.clone(), access.address.clone());
                        let work = set_up_and_watch(of_set_up, place, violations.clone(), made_events.clone());
                        set_up.replace(tokio::spawn(work)).into_iter().for_each(|before| before.abort());
                    }
                    Event::Disconnected | Event::Closed => {
                        set_up.take().into_iter().for_each(|before| before.abort());
                        let _ =
                            made_events.send(FromEngine::Unreachable(format!("the connection to `{address}` is lost")));
                    }
                    Event::ServerError(ServerError::Other(said)) => drop(violated.send(said)),
                    // The client goes on trying, whatever the reason is; it is told once.
                    Event::ClientError(ClientError::Other(said)) => {
                        let why = access::not_connected(&access, &said).to_string();
                        if set_up.is_none() && is_told != why {
                            is_told.clone_from(&why);
                            let _ = made_events.send(FromEngine::Unreachable(why));
                        }
                    }
                    _ => {}
                }
            }
        });
        let mut told = client
            .subscribe(told_subject(place))
            .await
            .map_err(|error| EngineError::Asset { name: told_subject(place), reason: error.to_string() })?;
        let of_told = events.clone();
        tokio::spawn(async move {
            while let Some(message) = told.next().await {
                let _ = of_told.send(FromEngine::Told(message.payload.to_vec()));
            }
        });
        Ok(Nats {
            client,
            context,
            events,
            place,
            values,
            copies: Semaphore::new(values::COPIES),
            is_stopping: watch::Sender::new(false),
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

    async fn answer(&self, request: Request) -> Option<Answer> {
        match request {
            Request::Put { queue, id, message } => Some(self.put(&queue, id, message).await),
            Request::Has { queue, id } => {
                let found = self.last(queue_stream(&queue), queue_subject(&queue, id)).await;
                Some(found.map_or(Answer::Unreachable, |entry| Answer::Has(entry.is_some())))
            }
            Request::Pull { queue, count } => Some(self.pull(&queue, count).await),
            Request::Keep(handle) => self.acknowledge(handle, "+WPI").await,
            Request::GiveBack(handle) => {
                self.acknowledge(handle, "-NAK").await;
                let _ = self.client.flush().await;
                None
            }
            Request::StopPulling => {
                self.is_stopping.send_replace(true);
                None
            }
            Request::Done(handle) => self.acknowledge(handle, "+ACK").await,
            Request::Read(id) => {
                let entry = self.last(record_stream(), record_subject(id)).await;
                Some(entry.map_or(Answer::Unreachable, Answer::Record))
            }
            Request::Swap { id, revision, record } => Some(self.swap(record_subject(id), revision, record).await),
            Request::Beat(beat) => {
                // The next one comes in some seconds.
                if let Ok(acknowledged) = self.context.publish(node_subject(self.place), beat.into()).await {
                    let _ = acknowledged.await;
                }
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
            Request::PutValue { id, attempt, source } => Some(self.put_value(id, attempt, source).await),
            Request::GetValue(key) => Some(self.get_value(&key).await),
            Request::FindMessage(id) => Some(self.find_message(id).await.map_or(Answer::Unreachable, Answer::InQueue)),
            Request::DropValues(id) => {
                self.drop_values(id).await;
                None
            }
        }
    }

    async fn acknowledge(&self, handle: Handle, what: &'static str) -> Option<Answer> {
        let _ = self.client.publish(handle.0, what.into()).await;
        None
    }

    async fn put(&self, queue: &str, id: ClusterTaskId, message: Vec<u8>) -> Answer {
        let publication = PublishMessage::build().payload(message.into()).expected_last_subject_sequence(0);
        let sent = self.context.send_publish(queue_subject(queue, id), publication).await;
        let acknowledged = match sent {
            Ok(acknowledged) => acknowledged.await,
            Err(error) => Err(error),
        };
        match acknowledged {
            Ok(_) => Answer::Put(Ok(())),
            // There is one of this task.
            Err(error) if error.kind() == PublishErrorKind::WrongLastSequence => Answer::Put(Ok(())),
            Err(error) => put_error(&error).map_or(Answer::Unreachable, |why| Answer::Put(Err(why))),
        }
    }

    async fn swap(&self, subject: String, revision: Option<u64>, record: Vec<u8>) -> Answer {
        let publication =
            PublishMessage::build().payload(record.into()).expected_last_subject_sequence(revision.unwrap_or(0));
        let Ok(sent) = self.context.send_publish(subject, publication).await else { return Answer::Unreachable };
        match sent.await {
            Ok(acknowledged) => Answer::Swapped(Some(acknowledged.sequence)),
            Err(error) if error.kind() == PublishErrorKind::WrongLastSequence => Answer::Swapped(None),
            Err(_) => Answer::Unreachable,
        }
    }

    /// Reads the last message of a subject, from whoever leads the stream.
    async fn last(&self, stream: String, subject: String) -> Result<Option<Entry>, ()> {
        let stream = self.context.get_stream_no_info(stream).await.map_err(drop)?;
        match stream.get_last_raw_message_by_subject(&subject).await {
            Ok(message) => Ok(Some(Entry {
                revision: message.sequence,
                stamp_ns: u64::try_from(message.time.unix_timestamp_nanos()).unwrap_or(0),
                value: message.payload.to_vec(),
            })),
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
            Err(_) => Err(()),
        }
    }

    /// Looks into every queue of the cluster.
    async fn find_message(&self, id: ClusterTaskId) -> Result<Option<String>, ()> {
        let mut streams = self.context.stream_names();
        while let Some(name) = streams.next().await {
            let name = name.map_err(drop)?;
            let Some(queue) = name.strip_prefix(&queue_stream("")) else { continue };
            if self.last(queue_stream(queue), queue_subject(queue, id)).await?.is_some() {
                return Ok(Some(queue.into()));
            }
        }
        Ok(None)
    }

    async fn pull(&self, queue: &str, count: usize) -> Answer {
        let batch = async {
            let stream = self.context.get_stream_no_info(queue_stream(queue)).await.ok()?;
            let consumer: PullConsumer = stream.get_consumer("w").await.ok()?;
            // Without heartbeats of the server: after one, this client's batch sleeps through the messages that come.
            consumer.batch().max_messages(count).expires(PULL_EXPIRES).messages().await.ok()
        };
        let Some(mut batch) = batch.await else { return Answer::Unreachable };
        let mut is_stopping = self.is_stopping.subscribe();
        loop {
            let message = tokio::select! {
                message = batch.next() => message,
                _ = is_stopping.wait_for(|is_stopping| *is_stopping) => None,
            };
            let Some(message) = message else { return Answer::Pulled };
            let Ok(message) = message else { return Answer::Unreachable };
            let is_again = message.info().map_or(true, |info| info.delivered > 1);
            let id = message.subject.rsplit('.').next().and_then(|id| id.parse().ok());
            let (Some(id), Some(reply)) = (id, message.reply.as_ref()) else { continue };
            let delivery = Delivery {
                queue: queue.into(),
                handle: Handle(reply.to_string()),
                id,
                message: message.payload.to_vec(),
                is_again,
            };
            let _ = self.events.send(FromEngine::Delivered(delivery));
        }
    }
}

/// Returns why a publication was refused; none if nobody knows what became of it.
fn put_error(error: &PublishError) -> Option<PutError> {
    match error.kind() {
        PublishErrorKind::StreamNotFound => Some(PutError::NoQueue),
        PublishErrorKind::TimedOut | PublishErrorKind::BrokenPipe | PublishErrorKind::MaxAckPending => None,
        _ => {
            let reason = with_causes(error);
            let is_full =
                ["maximum bytes", "maximum messages", "insufficient"].iter().any(|word| reason.contains(word));
            Some(if is_full { PutError::Full } else { PutError::Refused(reason) })
        }
    }
}

/// Sets up what a connection needs that has just been made, until that works; says that the engine can be reached; and watches the records of this place's
/// tasks for as long as the connection lasts.
async fn set_up_and_watch(
    (client, queues, address): (Client, Vec<String>, String),
    place: PlaceId,
    violations: watch::Receiver<String>,
    events: UnboundedSender<FromEngine>,
) {
    let mut is_told = String::new();
    loop {
        let work = set_up(&client, place, &queues, &address);
        match unless_violated(work, violations.clone(), &address).await {
            Ok(mut records) => {
                is_told.clear();
                let version = client.server_info().version;
                let _ = events.send(FromEngine::Reachable(format!("nats-server {version}")));
                while let Some(Ok(message)) = records.next().await {
                    if let Some(id) = task_of_record(&message.subject) {
                        let _ = events.send(FromEngine::Record(id, message.payload.to_vec()));
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
        Some(Credentials::Seed(seed)) => Ok(options.nkey(seed)),
        Some(Credentials::File(text)) => {
            options.credentials(&text).map_err(|error| access::bad_credentials(access, &error.to_string()))
        }
    }
}

async fn set_up(
    client: &Client,
    place: PlaceId,
    queues: &[String],
    address: &str,
) -> Result<consumer::push::Messages, EngineError> {
    let context = async_nats::jetstream::new(client.clone());
    make_assets(client, &context, queues, address).await?;
    watch(client, &context, place).await
}

/// Makes streams and consumers that are not there.
async fn make_assets(client: &Client, context: &Context, queues: &[String], address: &str) -> Result<(), EngineError> {
    let records = StreamConfig {
        name: record_stream(),
        subjects: vec![format!("tracer.{CLUSTER}.record.>")],
        max_messages_per_subject: 1,
        max_age: RECORDS_KEPT,
        storage: StorageType::File,
        discard: DiscardPolicy::Old,
        num_replicas: 1,
        ..StreamConfig::default()
    };
    make_stream(client, context, records, address).await?;
    make_stream(client, context, values::stream(), address).await?;
    for queue in queues {
        let of_queue = StreamConfig {
            name: queue_stream(queue),
            subjects: vec![format!("tracer.{CLUSTER}.q.{queue}.*")],
            retention: RetentionPolicy::WorkQueue,
            discard: DiscardPolicy::New,
            max_bytes: QUEUE_BYTES,
            max_messages_per_subject: 1,
            storage: StorageType::File,
            num_replicas: 1,
            ..StreamConfig::default()
        };
        make_stream(client, context, of_queue, address).await?;
        let asset = |reason: String| EngineError::Asset { name: format!("{}/w", queue_stream(queue)), reason };
        let stream = context.get_stream_no_info(queue_stream(queue)).await;
        let stream = stream.map_err(|error| asset(error.to_string()))?;
        let config = consumer::pull::Config {
            durable_name: Some("w".into()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: ACK_WAIT,
            max_deliver: -1,
            max_ack_pending: UNACKNOWLEDGED,
            ..consumer::pull::Config::default()
        };
        stream.get_or_create_consumer("w", config).await.map_err(|error| asset(with_causes(&error)))?;
    }
    Ok(())
}

async fn make_stream(
    client: &Client,
    context: &Context,
    config: StreamConfig,
    address: &str,
) -> Result<(), EngineError> {
    let name = config.name.clone();
    let no_jetstream = || EngineError::NoJetStream { address: address.into(), version: client.server_info().version };
    match context.get_stream(&name).await {
        Ok(_) => return Ok(()),
        Err(error) => match error.kind() {
            // It is not there, or the account has no JetStream, which the answer to the next request tells apart.
            GetStreamErrorKind::JetStream(error) if error.code() == 503 => return Err(no_jetstream()),
            GetStreamErrorKind::JetStream(_) => {}
            _ if with_causes(&error).contains("does not exist") || with_causes(&error).contains("no responders") => {
                return Err(no_jetstream());
            }
            _ => return Err(EngineError::Asset { name, reason: with_causes(&error) }),
        },
    }
    context.create_stream(config).await.map(drop).map_err(|error| match error.kind() {
        CreateStreamErrorKind::JetStreamUnavailable => no_jetstream(),
        _ => EngineError::Asset { name, reason: with_causes(&error) },
    })
}

/// Watches the records of a place's tasks from now on.
async fn watch(client: &Client, context: &Context, place: PlaceId) -> Result<consumer::push::Messages, EngineError> {
    let asset = |reason: String| EngineError::Asset { name: record_stream(), reason };
    let stream = context.get_stream_no_info(record_stream()).await.map_err(|error| asset(error.to_string()))?;
    let config = consumer::push::Config {
        deliver_subject: client.new_inbox(),
        deliver_policy: DeliverPolicy::New,
        ack_policy: AckPolicy::None,
        filter_subject: format!("tracer.{CLUSTER}.record.task.{place}.*"),
        ..consumer::push::Config::default()
    };
    let consumer: PushConsumer = stream.create_consumer(config).await.map_err(|error| asset(with_causes(&error)))?;
    consumer.messages().await.map_err(|error| asset(error.to_string()))
}

/// Tries an engine out, as `tracer start` does before it says that it has started: connects, and makes what is missing. Returns the name and version.
pub(crate) async fn try_out(access: &EngineAccess, queues: &[String]) -> Result<String, EngineError> {
    let (violated, violations) = watch::channel(String::new());
    let options = options(access)?.event_callback(move |event| {
        if let Event::ServerError(ServerError::Other(said)) = event {
            let _ = violated.send(said);
        }
        async {}
    });
    let address = &access.address;
    let connected = options.connect(address).await;
    let client = connected.map_err(|error| access::not_connected(access, &with_causes(&error)))?;
    let context = async_nats::jetstream::new(client.clone());
    unless_violated(make_assets(&client, &context, queues, address), violations, address).await?;
    Ok(format!("nats-server {}", client.server_info().version))
}

#[cfg(test)]
mod tests {
    use tracer_core::task::TaskId;

    use super::*;

    #[test]
    fn a_record_is_found_under_its_task() {
        let id = ClusterTaskId { place: PlaceId(0x1234_5678_9abc_def0), task: TaskId(1042) };
        assert_eq!(task_of_record(&record_subject(id)), Some(id));
        assert_eq!(task_of_record("tracer.default.record.node.x"), None);
        assert_eq!(queue_subject("q", id).rsplit('.').next().map(str::parse), Some(Ok(id)));
    }
}
