//! Idempotency keys: the first task that is entered under one stays there.

use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{Config as StreamConfig, DiscardPolicy, StorageType};
use ring::digest::{SHA256, digest};
use tracer_core::hex::hex;

use super::{CLUSTER, Nats, RECORDS_KEPT, is_other_sequence, put_error};
use crate::interface::Answer;

fn stream_name() -> String {
    format!("TRACER_{CLUSTER}_KEY")
}

/// Returns the settings of the stream.
pub(super) fn stream() -> StreamConfig {
    StreamConfig {
        name: stream_name(),
        subjects: vec![format!("tracer.{CLUSTER}.key.*")],
        max_messages_per_subject: 1,
        max_age: RECORDS_KEPT,
        storage: StorageType::File,
        discard: DiscardPolicy::Old,
        ..StreamConfig::default()
    }
}

/// Returns the subject of a key, which may have any characters.
fn subject(key: &str) -> String {
    format!("tracer.{CLUSTER}.key.{}", hex(digest(&SHA256, key.as_bytes()).as_ref()))
}

impl Nats {
    pub(super) async fn enter_key(&self, key: &str, entry: Vec<u8>) -> Answer {
        let publication = PublishMessage::build().payload(entry.clone().into()).expected_last_subject_sequence(0);
        match self.publish_and_wait(subject(key), publication).await {
            Ok(_) => Answer::Key(Ok(entry)),
            Err(error) if is_other_sequence(&error) => {
                // One that has just gone by its age is entered with the next try.
                let there = self.last(stream_name(), subject(key)).await.ok().flatten();
                there.map_or(Answer::Unreachable, |there| Answer::Key(Ok(there.value)))
            }
            Err(error) => put_error(&error).map_or(Answer::Unreachable, |why| Answer::Key(Err(why))),
        }
    }
}
