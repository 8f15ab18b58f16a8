//! Messages that are put aside: a stream keeps them with the reason, where people find them, and their queues go on without them.

use async_nats::HeaderMap;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{Config as StreamConfig, DiscardPolicy, StorageType};

use super::{CLUSTER, FromEngine, Nats, RECORDS_KEPT};
use crate::interface::{Dead, PutError};

/// The most bytes of the stream; beyond it the oldest go.
const STREAM_BYTES: i64 = 64 << 20;
/// The most bytes of a message that are kept: more than tracer ever sends, and less than a server takes.
const MESSAGE_BYTES: usize = 640 << 10;
/// The most characters of a reason, and of a name.
const TEXT_LIMIT: usize = 300;
/// Header with the reason.
const REASON: &str = "Tracer-Reason";
/// Header with the id of the task, or with what stood in its place.
const NAME: &str = "Tracer-Name";
/// Header with the length of the whole message, in bytes.
const BYTES: &str = "Tracer-Bytes";

pub(super) fn stream_name() -> String {
    format!("TRACER_{CLUSTER}_DEAD")
}

pub(super) fn subjects() -> String {
    format!("tracer.{CLUSTER}.dead.")
}

/// Returns the settings of the stream.
pub(super) fn stream() -> StreamConfig {
    StreamConfig {
        name: stream_name(),
        subjects: vec![format!("{}*", subjects())],
        max_age: RECORDS_KEPT,
        max_bytes: STREAM_BYTES,
        storage: StorageType::File,
        discard: DiscardPolicy::Old,
        ..StreamConfig::default()
    }
}

impl Nats {
    /// Puts a message aside, and only then removes it from its queue. What cannot be put aside now comes again.
    pub(super) async fn put_aside(&self, dead: Dead) {
        let Dead { queue, handle, name, mut message, reason } = dead;
        let (name, reason) = (line(&name), line(&reason));
        let mut headers = HeaderMap::new();
        headers.insert(REASON, &*reason);
        headers.insert(NAME, &*name);
        headers.insert(BYTES, message.len().to_string());
        message.truncate(MESSAGE_BYTES);
        let publication = PublishMessage::build().payload(message.into()).headers(headers);
        let problem = match self.publish_and_wait(format!("{}{queue}", subjects()), publication).await {
            Ok(_) => {
                self.acknowledge(handle, "+ACK").await;
                None
            }
            Err(error) => Some(super::put_error(&error).unwrap_or(PutError::Refused("it does not answer".into()))),
        };
        let _ = self.events.send(FromEngine::PutAside { queue, name, reason, problem });
    }
}

/// Returns the beginning of a text as a header, a log and a terminal may have it, whoever has written it.
fn line(text: &str) -> String {
    let harmless = |character: char| if character.is_ascii() && !character.is_control() { character } else { '?' };
    text.chars().take(TEXT_LIMIT).map(harmless).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_nobodys_are_one_harmless_line() {
        assert_eq!(line("a\x1b[2J\r\nX: ü"), "a?[2J??X: ?");
        assert_eq!(line(&"a".repeat(1 << 20)).len(), TEXT_LIMIT);
    }
}
