//! The engine alone, by the client that the agent has: what a shared task needs of it, between two connections with a thread each. A message is published into
//! a work queue and acknowledged, delivered to a pull that waits, claimed and ended in a record by compare-and-swap, and the end is seen by a watch.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer, PushConsumer, pull, push};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy};
use async_nats::jetstream::{self, Context, Message};
use futures_util::StreamExt;
use tokio::task::JoinSet;

use super::super::Failure;
use super::super::report::nanos;
use super::{OUTCOME_BYTES, TASK_BYTES};

const QUEUE: &str = "BENCH_QUEUE";
const RECORDS: &str = "BENCH_RECORDS";
const VALUES: &str = "BENCH_VALUES";
/// Bytes of a piece of a large value, as in the object store.
const PIECE: usize = 128 << 10;
const PULL: Duration = Duration::from_secs(20);
/// Interval in which a server says that a consumer is there.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Time without the end of any message, or without a piece of a value, after which it is given up.
const LIMIT: Duration = Duration::from_secs(60);
/// Tries to write a record: servers refuse one while the write before is on its way to their copies.
const TRIES: usize = 100;
/// First byte of a record that has ended.
const ENDED: u8 = b'e';

/// Messages that are sent.
pub(super) struct Alone {
    pub(super) messages: usize,
    /// The most on the way at a time.
    pub(super) in_flight: usize,
    /// Tasks in each.
    pub(super) tasks: usize,
    /// Copies that the servers keep.
    pub(super) copies: usize,
}

impl Alone {
    pub(super) fn of_one(messages: usize, in_flight: usize) -> Alone {
        Alone { messages, in_flight, tasks: 1, copies: 1 }
    }
}

pub(super) struct Found {
    /// From the first publication until the last end is seen.
    pub(super) seconds: f64,
    /// Nanoseconds of each message.
    pub(super) times: Vec<f64>,
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// Makes what is needed anew, and measures.
pub(super) fn measure(address: &str, alone: &Alone) -> Result<Found, Failure> {
    runtime()?.block_on(async {
        let context = jetstream::new(async_nats::connect(address).await?);
        make(&context, alone.copies).await
    })?;
    let (holder, messages, in_flight, tasks) = (address.to_owned(), alone.messages, alone.in_flight, alone.tasks);
    let holder = std::thread::spawn(move || {
        let held = runtime().and_then(|runtime| runtime.block_on(hold(&holder, messages, in_flight, tasks)));
        held.map_err(|error| error.to_string())
    });
    let found = runtime()?.block_on(submit(address, alone))?;
    holder.join().map_err(|_| "the holder has panicked")??;
    Ok(found)
}

async fn make(context: &Context, copies: usize) -> Result<(), Failure> {
    for name in [QUEUE, RECORDS] {
        let _ = context.delete_stream(name).await;
    }
    let queue = Config {
        name: QUEUE.into(),
        subjects: vec!["bench.queue.*".into()],
        retention: RetentionPolicy::WorkQueue,
        discard: DiscardPolicy::New,
        max_messages_per_subject: 1,
        num_replicas: copies,
        ..Config::default()
    };
    let consumer = pull::Config {
        durable_name: Some("w".into()),
        ack_policy: AckPolicy::Explicit,
        max_ack_pending: 100_000,
        ..pull::Config::default()
    };
    context.create_stream(queue).await?.create_consumer(consumer).await?;
    let subjects = vec!["bench.record.*".into()];
    let records = Config {
        name: RECORDS.into(),
        subjects,
        max_messages_per_subject: 1,
        num_replicas: copies,
        ..Config::default()
    };
    context.create_stream(records).await?;
    Ok(())
}

/// Publishes the messages, so many at a time, and waits for the end of each.
async fn submit(address: &str, alone: &Alone) -> Result<Found, Failure> {
    let client = async_nats::connect(address).await?;
    let context = jetstream::new(client.clone());
    let watch = push::Config {
        deliver_subject: client.new_inbox(),
        deliver_policy: DeliverPolicy::New,
        ack_policy: AckPolicy::None,
        ..push::Config::default()
    };
    let consumer: PushConsumer = context.get_stream(RECORDS).await?.create_consumer(watch).await?;
    let mut records = consumer.messages().await?;
    let payload: Vec<u8> = vec![7; alone.tasks * TASK_BYTES];
    let begun = Instant::now();
    let (mut sent, mut open, mut times) = (0, HashMap::new(), Vec::new());
    while times.len() < alone.messages {
        while sent < alone.messages && open.len() < alone.in_flight {
            open.insert(sent, Instant::now());
            let message = PublishMessage::build().payload(payload.clone().into()).expected_last_subject_sequence(0);
            let publication = context.send_publish(format!("bench.queue.{sent}"), message).await?;
            tokio::spawn(async move { drop(publication.await) });
            sent += 1;
        }
        let record = tokio::time::timeout(LIMIT, records.next()).await.map_err(|_| "no end of a message is seen")?;
        let record = record.ok_or("the watch has ended")??;
        if record.payload.first() == Some(&ENDED) {
            let number: usize = record.subject.rsplit('.').next().unwrap_or_default().parse()?;
            let since = open.remove(&number).ok_or("a message has ended twice")?;
            times.push(nanos(since.elapsed()));
        }
    }
    Ok(Found { seconds: begun.elapsed().as_secs_f64(), times })
}

/// Returns the nanoseconds that a large value takes into the engine and out of it, twice: in pieces as large as those of its object store, each acknowledged
/// before the next, and out by a consumer that acknowledges nothing.
pub(super) fn values(address: &str, bytes: usize) -> Result<f64, Failure> {
    runtime()?.block_on(async {
        let client = async_nats::connect(address).await?;
        let context = jetstream::new(client.clone());
        let mut nanoseconds = 0.0;
        for _ in 0..2 {
            let _ = context.delete_stream(VALUES).await;
            let subjects = vec!["bench.value".into()];
            let values = Config { name: VALUES.into(), subjects, ..Config::default() };
            let stream = context.create_stream(values).await?;
            let piece: Vec<u8> = vec![7; PIECE];
            let begun = Instant::now();
            for _ in 0..bytes.div_ceil(PIECE) {
                context.publish("bench.value", piece.clone().into()).await?.await?;
            }
            let config = push::Config {
                deliver_subject: client.new_inbox(),
                ack_policy: AckPolicy::None,
                // Without it a server closes a connection that falls 64 MiB behind.
                flow_control: true,
                idle_heartbeat: HEARTBEAT,
                ..push::Config::default()
            };
            let consumer: PushConsumer = stream.create_consumer(config).await?;
            let mut pieces = consumer.messages().await?;
            for _ in 0..bytes.div_ceil(PIECE) {
                let piece = tokio::time::timeout(LIMIT, pieces.next()).await;
                piece.map_err(|_| "no piece of a value comes")?.ok_or("the consumer has ended")??;
            }
            nanoseconds += nanos(begun.elapsed());
        }
        context.delete_stream(VALUES).await?;
        Ok(nanoseconds)
    })
}

/// Claims and ends what is delivered.
async fn hold(address: &str, messages: usize, in_flight: usize, tasks: usize) -> Result<(), Failure> {
    let context = jetstream::new(async_nats::connect(address).await?);
    let consumer = context.get_stream(QUEUE).await?.get_consumer("w").await;
    let consumer: PullConsumer = consumer.map_err(|error| error.to_string())?;
    let mut ended = vec![0; tasks * OUTCOME_BYTES];
    ended[0] = ENDED;
    let (mut taken, mut works) = (0, JoinSet::new());
    while taken < messages {
        let mut batch = consumer.batch().max_messages(in_flight).expires(PULL).messages().await?;
        while let Some(message) = batch.next().await {
            let message = message.map_err(|error| error.to_string())?;
            taken += 1;
            works.spawn(run(context.clone(), message, ended.clone()));
        }
        while let Some(work) = works.try_join_next() {
            work??;
        }
    }
    while let Some(work) = works.join_next().await {
        work??;
    }
    Ok(())
}

/// Claims a message and ends it.
async fn run(context: Context, message: Message, ended: Vec<u8>) -> Result<(), String> {
    let number = message.subject.rsplit('.').next().unwrap_or_default();
    let record = format!("bench.record.{number}");
    let mut revision = 0;
    for payload in [b"claimed".to_vec(), ended] {
        let mut outcome = Err("a record was not tried to be written".to_owned());
        for _ in 0..TRIES {
            let write = PublishMessage::build().payload(payload.clone().into());
            let write = write.expected_last_subject_sequence(revision);
            let sent = context.send_publish(record.clone(), write).await.map_err(|error| error.to_string())?;
            outcome = sent.await.map(|written| written.sequence).map_err(|error| error.to_string());
            if outcome.is_ok() {
                break;
            }
        }
        revision = outcome?;
    }
    message.ack().await.map_err(|error| error.to_string())
}
