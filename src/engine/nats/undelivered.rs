//! Messages that a queue has and delivers no more.
//!
//! nats-server 2.9.10 may forget how far the sequence of a stream had come when it is killed while the stream is empty, and counts on from a lower one. The consumer
//! of that stream still knows how far it had delivered, so a message with a sequence below is never delivered, though it stays in the stream. Fillers, empty
//! messages under a subject of their own, take the sequences up to there, each in place of the one before; the last one is delivered, and removed by whoever gets
//! it. Then the message is published again in its own place, unless somebody has taken it or put it anew meanwhile. A second delivery of what was only slow does
//! no harm, because it is claimed once.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use async_nats::jetstream::message::PublishMessage;
use tracer_core::ClusterTaskId;

use super::survey::{self, ConsumerInfo};
use super::{
    LEADER_ANSWERS, Nats, clock, is_other_sequence, last_message, queue_stream, queue_subject, queue_subjects,
};
use crate::interface::{Answer, Tier};

/// The last token of the subject of fillers, which is no id of a task.
pub(super) const FILLER: &str = "filler";
/// The most fillers that are published before the server is asked how far the sequence has come.
const FILLERS: u64 = 10_000;

/// Sequence up to which a message that is still in its stream has been passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passed {
    /// All up to this one count as acknowledged, and acknowledged ones are removed.
    Acknowledged,
    /// All up to this one were delivered: for a message that is new, or that nobody has begun for long.
    Delivered,
}

impl Passed {
    pub(super) fn of(is_overdue: bool) -> Passed {
        if is_overdue { Passed::Delivered } else { Passed::Acknowledged }
    }
}

/// Last sequences that had been delivered of queues when something was first put into them over a connection: by the names of their streams, each with the number
/// of the connection.
pub(super) type DeliveredBefore = HashMap<String, (u64, u64)>;

impl Nats {
    /// Returns the sequence that what is put into a queue now gets one beyond, unless the server has forgotten it. Asked once for each connection; 0 if the
    /// server does not say.
    pub(super) async fn delivered_before(&self, stream: &str) -> u64 {
        let mut known = self.delivered_before.lock().await;
        let connection = self.connections.load(Ordering::Relaxed);
        if let Some((of_connection, delivered)) = known.get(stream)
            && *of_connection == connection
        {
            return *delivered;
        }
        let delivered = Box::pin(self.consumer_info(stream)).await.unwrap_or_default().delivered.stream_seq;
        known.insert(stream.to_owned(), (connection, delivered));
        delivered
    }

    async fn consumer_info(&self, stream: &str) -> Result<ConsumerInfo, ()> {
        let version = self.client.server_info().version;
        let asked = survey::consumer_info(&self.context, stream, &self.address, &version);
        tokio::time::timeout(LEADER_ANSWERS, asked).await.map_err(drop)?.map_err(drop)
    }

    /// Fills the sequence of a part of a queue up to what its consumer has delivered, and one beyond.
    async fn fill(&self, (queue, tier): (&str, Tier), delivered: u64) -> Result<(), ()> {
        let _alone = self.filling.lock().await;
        let subject = format!("{}{FILLER}", queue_subjects(queue, tier));
        loop {
            let filled = self.publish_and_wait(subject.clone(), PublishMessage::build()).await;
            let sequence = filled.map_err(drop)?.sequence;
            if sequence > delivered {
                return Ok(());
            }
            for _ in 0..(delivered - sequence).min(FILLERS) {
                self.client.publish(subject.clone(), Vec::new().into()).await.map_err(drop)?;
            }
        }
    }

    /// Returns whether any part of a queue has the message of a task, which is put there anew if it is not delivered any more.
    pub(super) async fn has(&self, queue: &str, id: ClusterTaskId, is_overdue: bool) -> Result<bool, ()> {
        match self.find_in_queue(queue, id).await? {
            Some((tier, _)) => self.renewed((queue, tier, id), Passed::of(is_overdue)).await,
            None => Ok(false),
        }
    }

    /// Puts a message anew that was passed over, and answers the request to put it.
    pub(super) async fn renew(&self, of: (&str, Tier, ClusterTaskId), passed: Passed) -> Answer {
        match self.renewed(of, passed).await {
            Ok(true) => Answer::Put(Ok(())),
            // It was taken just now and is done, or is still on its way into the stream: its record says which, or the next try.
            Ok(false) | Err(_) => Answer::Unreachable,
        }
    }

    /// Puts a message anew that was passed over. Returns whether there is one.
    async fn renewed(&self, (queue, tier, id): (&str, Tier, ClusterTaskId), passed: Passed) -> Result<bool, ()> {
        let (stream, subject) = (queue_stream(queue, tier), queue_subject(queue, tier, id));
        let Some(message) = last_message(&self.context, &stream, &subject).await.map_err(drop)? else {
            return Ok(false);
        };
        let ConsumerInfo { delivered, ack_floor, .. } = self.consumer_info(&stream).await?;
        let passed = if passed == Passed::Delivered { delivered } else { ack_floor };
        if message.sequence > passed.stream_seq {
            return Ok(true);
        }
        self.fill((queue, tier), delivered.stream_seq).await?;
        let mut publication =
            PublishMessage::build().payload(message.payload).expected_last_subject_sequence(message.sequence);
        if let Some(offset) = message.headers.get(clock::HEADER) {
            publication = publication.header(clock::HEADER, offset.clone());
        }
        match self.publish_and_wait(subject, publication).await {
            Ok(_) => Ok(true),
            // Somebody has taken it, or put it anew.
            Err(error) if is_other_sequence(&error) => Ok(true),
            Err(_) => Err(()),
        }
    }
}
