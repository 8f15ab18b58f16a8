//! Copied places: two heads with the id of one place would give two tasks one id. Each sees the other's heartbeats, which go under one name and have the lives
//! of both, and uses the engine no more until it is alone.

use std::sync::atomic::Ordering;
use std::time::Instant;

use tracer_core::clock::now_unix_nano;

use super::clock::Sent;
use super::{FromEngine, Nats, node_subject, record_stream};
use crate::interface::Entry;
use crate::message::Heartbeat;
use crate::process::KEEP;

/// Heartbeats in a row that have to be another head's: one may be the last of a head before this one, which was still on its way.
const SEEN: u32 = 2;
/// Heartbeats in a row that have to be this head's own before it goes on.
const ALONE: u32 = 4;

/// Heartbeats of other heads with this place's id.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// Number of them that were seen in a row.
    seen: u32,
}

impl Copies {
    /// Takes in the entry that stands where a head of this life is about to write its own, and returns another head's heartbeat that is there for the second time.
    fn note(&mut self, life: u64, entry: Option<&Entry>) -> Option<Heartbeat> {
        // That of the head before stands there until this one has written its first.
        let other = entry.and_then(|entry| other_of(life, entry));
        self.seen = if other.is_some() { self.seen + 1 } else { 0 };
        other.filter(|_| self.seen >= SEEN)
    }
}

/// Returns the heartbeat of an entry, if it is another head's. What cannot be read is nobody's.
fn other_of(life: u64, entry: &Entry) -> Option<Heartbeat> {
    Heartbeat::decode(&entry.value).ok().filter(|beat| beat.life != life)
}

impl Nats {
    /// Writes a heartbeat. Where another head has written one in between, nothing can be reached any more, until that one is silent.
    pub(super) async fn beat(&self, beat: Vec<u8>) {
        let Ok(Heartbeat { life, .. }) = Heartbeat::decode(&beat) else { return };
        if self.is_copied.load(Ordering::Relaxed) {
            // A connection that was made anew says that the engine is there.
            return self.tell_copied();
        }
        let mut copies = self.copies_seen.lock().await;
        let entry = self.own_entry().await;
        let other = copies.note(life, entry.as_ref());
        self.note_stamp(entry.as_ref());
        self.write_beat(&beat).await;
        if self.clocks().own_ns().is_none() {
            self.note_stamp(self.own_entry().await.as_ref());
        }
        self.note_tried();
        let Some(other) = other else { return };
        self.is_copied.store(true, Ordering::Relaxed);
        *self.copied_by.lock().expect("nobody panics with it") = other.node_id;
        self.tell_copied();
        let mut alone = 0;
        while alone < ALONE {
            tokio::time::sleep(KEEP).await;
            // An engine that cannot be asked shows nobody.
            alone = match self.own_entry().await {
                Some(entry) if other_of(life, &entry).is_none() => alone + 1,
                _ => 0,
            };
            self.write_beat(&beat).await;
        }
        *copies = Copies::default();
        self.is_copied.store(false, Ordering::Relaxed);
        let version = self.client.server_info().version;
        let _ = self.events.send(FromEngine::Reachable(format!("nats-server {version}")));
    }

    async fn own_entry(&self) -> Option<Entry> {
        self.last(record_stream(), node_subject(self.place)).await.ok().flatten()
    }

    async fn write_beat(&self, beat: &[u8]) {
        let (told, sent_unix_nano) = (self.told_sequence(), now_unix_nano());
        let sent = Instant::now();
        // The next one comes in some seconds.
        let published = self.context.publish(node_subject(self.place), beat.to_vec().into()).await;
        let Ok(acknowledgement) = published else { return };
        let acknowledged = acknowledgement.await.ok().map(|acknowledged| acknowledged.sequence);
        if let Some(revision) = acknowledged {
            self.note_sequence(told, revision);
            // Of a copy, nothing else comes to the engine.
            if !self.is_copied.load(Ordering::Relaxed) {
                let _ = self.events.send(FromEngine::Heard(sent));
            }
        }
        let acknowledged_unix_nano = now_unix_nano();
        self.note_beat(acknowledged.map(|revision| Sent { revision, sent_unix_nano, acknowledged_unix_nano }));
    }

    fn tell_copied(&self) {
        let place = self.place;
        let node_id = self.copied_by.lock().expect("nobody panics with it").clone();
        let why = format!(
            "another head, of the node `{node_id}`, has the id {place} of this place too: one of the two places is a copy of the other, and both would give their tasks the same ids\n\
             (hint: stop the head of the copy, remove `place.id` in the copy's folder, and start it again: it gets an id of its own)"
        );
        let _ = self.events.send(FromEngine::Unreachable(why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(life: u64) -> Entry {
        let value = Heartbeat { life, node_id: "node".into(), ..Heartbeat::default() }.encode();
        Entry { revision: 1, stamp_ns: 0, value }
    }

    #[test]
    fn one_heartbeat_of_another_life_is_that_of_the_head_before_and_two_are_of_a_copy() {
        let mut copies = Copies::default();
        assert_eq!(copies.note(7, None), None);
        assert_eq!(copies.note(7, Some(&entry(6))), None, "it stood there");
        for other in [6, 8] {
            assert_eq!(copies.note(7, Some(&entry(7))), None);
            assert_eq!(copies.note(7, Some(&entry(other))), None);
            assert!(copies.note(7, Some(&entry(other))).is_some_and(|beat| beat.life == other));
        }
        assert_eq!(copies.note(7, Some(&entry(7))), None, "it is silent");
        let rubbish = Entry { value: b"rubbish".to_vec(), ..entry(8) };
        assert_eq!(copies.note(7, Some(&rubbish)), None, "which anybody may have written");
    }
}
