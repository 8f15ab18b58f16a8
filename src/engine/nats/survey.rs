//! A survey of the cluster: its streams and heartbeats, as this server tells of them. Nothing is made or changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_nats::Client;
use async_nats::connection::State;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::Context;
use async_nats::jetstream::response::Response;
use futures_util::StreamExt;
use futures_util::stream::iter;
use serde::Deserialize;
use serde_json::json;
use tracer_core::PlaceId;
use tracer_core::causes::with_causes;
use tracer_core::clock::now_unix_nano;

use super::{
    CLUSTER, FromEngine, Nats, REQUEST_LIMIT, bounds, cluster_version, dead, is_of_cluster, is_without_jetstream, keys,
    last, part_of_stream, record_stream, unless_violated, values,
};
use crate::access::{self, EngineError};
use crate::interface::Tier;
use crate::message::Heartbeat;
use crate::survey::{Beat, ServerSeen, StreamSeen, Survey};

/// Heartbeats that are read at a time.
const READS: usize = 32;
/// Silence after which a server with a copy counts as away, in nanoseconds. Servers that lead hear from the others each second.
const AWAY_NS: u64 = 10_000_000_000;
/// Amount by which clocks of machines may differ where the server does not tell its own.
const CLOCK_DIFFERENCE_NS: u64 = 60_000_000_000;

#[derive(Deserialize)]
struct StreamList {
    total: usize,
    #[serde(default)]
    streams: Option<Vec<StreamInfo>>,
    /// Names of those whose servers do not answer.
    #[serde(default)]
    missing: Option<Vec<String>>,
    /// Time of the server's clock; since 2.10.
    ts: Option<Stamp>,
}

#[derive(Deserialize)]
struct StreamInfo {
    config: StreamConfig,
    state: StreamState,
    /// Servers that have a copy, where there are several.
    #[serde(default)]
    cluster: Option<StreamCluster>,
}

#[derive(Deserialize)]
struct StreamCluster {
    #[serde(default)]
    replicas: Option<Vec<Replica>>,
}

/// A server with a copy, as the one that leads the stream sees it.
#[derive(Deserialize)]
struct Replica {
    name: String,
    #[serde(default)]
    current: bool,
    #[serde(default)]
    offline: bool,
    /// Time since it was heard, in nanoseconds.
    #[serde(default)]
    active: u64,
}

impl Replica {
    fn is_away(&self) -> bool {
        self.offline || (!self.current && self.active > AWAY_NS)
    }
}

#[derive(Deserialize)]
struct StreamConfig {
    name: String,
    #[serde(default)]
    description: Option<String>,
    num_replicas: usize,
    max_bytes: i64,
    #[serde(default)]
    retention: String,
}

#[derive(Deserialize)]
struct StreamState {
    messages: u64,
    bytes: u64,
    last_ts: Option<Stamp>,
    #[serde(default)]
    subjects: Option<BTreeMap<String, u64>>,
}

/// State of the consumer of a part of a queue.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(super) struct ConsumerInfo {
    /// Number of messages that were delivered and not acknowledged.
    num_ack_pending: u64,
    /// The last message that was delivered.
    pub(super) delivered: Sequences,
    /// The last one up to which all count as acknowledged.
    pub(super) ack_floor: Sequences,
}

/// Sequences of a message.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(super) struct Sequences {
    /// The one in the stream.
    pub(super) stream_seq: u64,
}

/// A time as RFC 3339 has it.
#[derive(Deserialize)]
#[serde(transparent)]
struct Stamp(String);

impl Stamp {
    fn unix_nano(&self) -> Option<u64> {
        tracer_core::clock::parse_rfc3339(&self.0)
    }
}

impl Nats {
    /// Surveys the cluster beside other requests, and tells what it finds as an event with this number.
    pub(crate) fn survey_for(self: &Arc<Nats>, number: u64) {
        let nats = Arc::clone(self);
        tokio::spawn(async move {
            let survey = nats.survey().await;
            let _ = nats.events.send(FromEngine::Surveyed(number, survey));
        });
    }

    pub(super) async fn survey(&self) -> Result<Survey, String> {
        if self.client.connection_state() != State::Connected {
            return Err("the connection to it is lost".into());
        }
        let work = survey(&self.client, &self.context, &self.address);
        unless_violated(work, self.violations.clone(), &self.address).await.map_err(|error| error.to_string())
    }
}

/// Surveys the cluster.
pub(super) async fn survey(client: &Client, context: &Context, address: &str) -> Result<Survey, EngineError> {
    let info = client.server_info();
    let server = ServerSeen {
        address: address.into(),
        version: info.version,
        is_clustered: info.cluster.is_some(),
        max_payload: info.max_payload,
    };
    let (mut streams, mut unanswered, mut told_ns, mut last_ns) = (Vec::new(), Vec::new(), None, None);
    let mut offset = 0;
    loop {
        let question = json!({ "offset": offset, "subject": format!("tracer.{CLUSTER}.>") });
        let list: StreamList = ask(context, "STREAM.LIST", &question, address, &server.version).await?;
        told_ns = list.ts.as_ref().and_then(Stamp::unix_nano).or(told_ns);
        let page = list.streams.unwrap_or_default();
        // Of every account's and subject's.
        unanswered.extend(list.missing.unwrap_or_default().into_iter().filter(|name| is_of_cluster(name)));
        offset += page.len();
        let is_last = page.is_empty() || offset >= list.total;
        for StreamInfo { config, state, cluster } in page {
            if config.name == record_stream() {
                last_ns = state.last_ts.as_ref().and_then(Stamp::unix_nano);
            }
            let part = part_of_stream(&config.name);
            let is_no_work_queue = part.is_some() && config.retention != "workqueue";
            streams.push(StreamSeen {
                is_dead: config.name == dead::stream_name(),
                queue: part.map(|(queue, _)| queue.to_owned()),
                is_of_commands: part.is_some_and(|(_, tier)| tier == Tier::Commands),
                bound: config.description.as_deref().and_then(bounds::of_description),
                cluster_version: config.description.as_deref().and_then(cluster_version),
                name: config.name,
                replicas: config.num_replicas,
                messages: state.messages,
                bytes: state.bytes,
                max_bytes: u64::try_from(config.max_bytes).ok(),
                held: 0,
                is_no_work_queue,
                lacks_consumer: false,
                away: {
                    let copies = cluster.and_then(|cluster| cluster.replicas).unwrap_or_default();
                    copies.into_iter().filter(Replica::is_away).map(|copy| copy.name).collect()
                },
            });
        }
        if is_last {
            break;
        }
    }
    // Records and values first.
    streams.sort_by(|a, b| (&a.queue, &a.name).cmp(&(&b.queue, &b.name)));
    for stream in streams.iter_mut().filter(|stream| stream.queue.is_some()) {
        match consumer_if_there(context, &stream.name, address, &server.version).await {
            Ok(Some(consumer)) => stream.held = consumer.num_ack_pending,
            Ok(None) => stream.lacks_consumer = true,
            // Servers that choose who leads it have delivered nothing meanwhile.
            Err(_) => {}
        }
    }
    let is_seen = |name: &String| streams.iter().any(|stream| stream.name == *name) || unanswered.contains(name);
    let missing = match streams.is_empty() {
        true => Vec::new(),
        false => common_streams().into_iter().filter(|name| !is_seen(name)).collect(),
    };
    let (mut beats, mut unread_beats) = (Vec::new(), 0);
    if streams.iter().any(|stream| stream.name == record_stream()) {
        let subject = format!("STREAM.INFO.{}", record_stream());
        let question = json!({ "subjects_filter": format!("tracer.{CLUSTER}.record.node.*") });
        let info: StreamInfo = ask(context, &subject, &question, address, &server.version).await?;
        let places = info.state.subjects.unwrap_or_default().into_keys().map(|subject| async move {
            let place: Option<PlaceId> = subject.rsplit('.').next().and_then(|place| place.parse().ok());
            (place, last(context, record_stream(), subject).await)
        });
        let mut read = iter(places).buffer_unordered(READS);
        while let Some((place, entry)) = read.next().await {
            // One that has gone meanwhile is too old.
            let Ok(Some(entry)) = entry else { continue };
            match (place, Heartbeat::decode(&entry.value)) {
                (Some(place), Ok(heartbeat)) => beats.push(Beat { place, stamp_ns: entry.stamp_ns, heartbeat }),
                _ => unread_beats += 1,
            }
        }
    }
    let own_ns = now_unix_nano();
    let now_ns = match told_ns {
        Some(told_ns) => told_ns,
        // It is the clock of this machine.
        None if access::is_on_loopback(address) => own_ns,
        None => last_ns.unwrap_or(0).max(own_ns.saturating_sub(CLOCK_DIFFERENCE_NS)),
    };
    Ok(Survey { server, streams, unanswered, missing, beats, unread_beats, now_ns })
}

/// Returns the names of the streams that every cluster has beside its queues.
fn common_streams() -> [String; 4] {
    [record_stream(), values::stream_name(), keys::stream().name, dead::stream_name()]
}

/// Asks for the state of the consumer of a part of a queue, by the name of its stream; none if there is no such consumer.
pub(super) async fn consumer_if_there(
    context: &Context,
    stream: &str,
    address: &str,
    version: &str,
) -> Result<Option<ConsumerInfo>, EngineError> {
    let subject = format!("CONSUMER.INFO.{stream}.w");
    match answer_of(context, &subject, &json!({}), address, version).await? {
        Response::Ok(consumer) => Ok(Some(consumer)),
        Response::Err { error } if error.error_code() == ErrorCode::CONSUMER_NOT_FOUND => Ok(None),
        Response::Err { error } => {
            Err(EngineError::Answer { address: address.into(), question: subject, reason: error.to_string() })
        }
    }
}

/// Asks for the state of the consumer of a part of a queue, by the name of its stream.
pub(super) async fn consumer_info(
    context: &Context,
    stream: &str,
    address: &str,
    version: &str,
) -> Result<ConsumerInfo, EngineError> {
    // nats-server 2.9.10 takes no other body here than an empty object.
    ask(context, &format!("CONSUMER.INFO.{stream}.w"), &json!({}), address, version).await
}

/// Asks JetStream's interface something.
pub(super) async fn ask<T: serde::de::DeserializeOwned>(
    context: &Context,
    subject: &str,
    question: &serde_json::Value,
    address: &str,
    version: &str,
) -> Result<T, EngineError> {
    match answer_of(context, subject, question, address, version).await? {
        Response::Ok(answer) => Ok(answer),
        Response::Err { error } => {
            Err(EngineError::Answer { address: address.into(), question: subject.into(), reason: error.to_string() })
        }
    }
}

/// Asks it something, and returns what it says of that.
async fn answer_of<T: serde::de::DeserializeOwned>(
    context: &Context,
    subject: &str,
    question: &serde_json::Value,
    address: &str,
    version: &str,
) -> Result<Response<T>, EngineError> {
    let asked = tokio::time::timeout(REQUEST_LIMIT, context.request(subject.to_owned(), question)).await;
    let failed = |reason: String| EngineError::Answer { address: address.into(), question: subject.into(), reason };
    match asked {
        Err(_) => Err(failed("it does not answer".into())),
        Ok(Err(error)) if is_without_jetstream(&with_causes(&error)) => {
            Err(EngineError::NoJetStream { address: address.into(), version: version.into() })
        }
        Ok(Err(error)) => Err(failed(with_causes(&error))),
        Ok(Ok(Response::Err { error }))
            if error.code() == 503 && error.error_code() != ErrorCode::CLUSTER_NOT_AVAILABLE =>
        {
            Err(EngineError::NoJetStream { address: address.into(), version: version.into() })
        }
        Ok(Ok(answer)) => Ok(answer),
    }
}
