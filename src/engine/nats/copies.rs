//! Copied places: two heads with the id of one place would give two tasks one id. Each sees the other's heartbeats, which go under one name and have the lives
//! of both. The one that has begun later is the copy, and uses the engine no more until it is alone; the other one goes on, and says so.
//!
//! Heartbeats are also how a node finds out that an engine takes connections and stores nothing.

use std::sync::atomic::Ordering;
use std::time::Instant;

use async_nats::connection::State;
use tracer_core::causes::with_causes;
use tracer_core::clock::now_unix_nano;
use tracer_core::count::Elapsed;
use tracer_core::lock::lock;

use super::clock::Sent;
use super::{ACK_WAIT, FromEngine, Nats, node_subject, record_stream};
use crate::interface::Entry;
use crate::message::Heartbeat;
use crate::process::KEEP;

/// Heartbeats in a row that have to be another head's: one may be the last of a head before this one, which was still on its way.
const SEEN: u32 = 2;
/// Intervals of heartbeats in which the other one has to write none before this head goes on.
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
            return self.report_copied();
        }
        let mut copies = self.copies_seen.lock().await;
        let entry = self.own_entry().await;
        let other = copies.note(life, entry.as_ref());
        self.note_stamp(entry.as_ref());
        let written = self.write_beat(&beat).await;
        if self.clocks().own_ns().is_none() {
            self.note_stamp(self.own_entry().await.as_ref());
        }
        self.note_tried();
        if let Err(why) = written
            && self.is_connected()
            && self.heard_at().elapsed() >= ACK_WAIT
        {
            self.wait_until_heard(&beat, &why).await;
        }
        let Some(other) = other else { return };
        if other.life > life {
            // The copy sees this one, and uses the engine no more.
            return self.report_copy(&other);
        }
        self.is_copied.store(true, Ordering::Relaxed);
        *self.copied_by.lock().expect("nobody panics with it") = other.node_id;
        self.report_copied();
        // A heartbeat of this one would say that the other's life is over.
        let (mut alone, mut last) = (0, None);
        while alone < ALONE {
            tokio::time::sleep(KEEP).await;
            // An engine that cannot be asked shows nobody.
            let revision = self.own_entry().await.map(|entry| entry.revision);
            alone = if revision.is_some() && revision == last { alone + 1 } else { 0 };
            last = revision;
        }
        *copies = Copies::default();
        self.is_copied.store(false, Ordering::Relaxed);
        let version = self.client.server_info().version;
        let _ = self.events.send(FromEngine::Reachable(format!("nats-server {version}")));
    }

    async fn own_entry(&self) -> Option<Entry> {
        self.last(record_stream(), node_subject(self.place)).await.ok().flatten()
    }

    fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    fn heard_at(&self) -> Instant {
        *lock(&self.heard_at)
    }

    /// Says that the engine stores nothing although it is connected to, and goes on writing heartbeats until it takes one or the connection is another one.
    async fn wait_until_heard(&self, beat: &[u8], why: &str) {
        let after = Elapsed(ACK_WAIT);
        let text = format!(
            "it takes connections, and has stored nothing of this node for {after}: {why}\n\
             (hint: the log of nats-server says why. If its disk is full, make room and start it again, since it takes nothing until then; if most of the servers that keep copies are away, it goes on once they are back)"
        );
        let _ = self.events.send(FromEngine::Unreachable(text));
        let connection = self.connections.load(Ordering::Relaxed);
        while self.write_beat(beat).await.is_err() {
            tokio::time::sleep(KEEP).await;
            if self.connections.load(Ordering::Relaxed) != connection || !self.is_connected() {
                return;
            }
        }
        let version = self.client.server_info().version;
        let _ = self.events.send(FromEngine::Reachable(format!("nats-server {version}")));
    }

    /// Writes a heartbeat, and returns why it is not stored, if so.
    async fn write_beat(&self, beat: &[u8]) -> Result<(), String> {
        let (told, sent_unix_nano) = (self.told_sequence(), now_unix_nano());
        let sent = Instant::now();
        // The next one comes in some seconds.
        let published = self.context.publish(node_subject(self.place), beat.to_vec().into()).await;
        let acknowledged =
            async { published.map_err(|error| with_causes(&error))?.await.map_err(|error| with_causes(&error)) };
        let acknowledged = acknowledged.await.map(|acknowledged| acknowledged.sequence);
        if let Ok(revision) = acknowledged {
            *lock(&self.heard_at) = Instant::now();
            self.note_sequence(told, revision);
            // Of a copy, nothing else comes to the engine.
            if !self.is_copied.load(Ordering::Relaxed) {
                let _ = self.events.send(FromEngine::Heard(sent));
            }
        }
        let acknowledged_unix_nano = now_unix_nano();
        let sent = |revision| Sent { revision, sent_unix_nano, acknowledged_unix_nano };
        self.note_beat(acknowledged.as_ref().ok().copied().map(sent));
        acknowledged.map(drop)
    }

    /// Says that a copy of this place has begun after it.
    fn report_copy(&self, copy: &Heartbeat) {
        let (place, node_id) = (self.place, &copy.node_id);
        let text = format!(
            "another head, of the node `{node_id}`, has begun with the id {place} of this place: its place is a copy of this one, and it uses the engine no more\n\
             (hint: stop that head, remove `place.id` in its folder, and start it again: it gets an id of its own)"
        );
        let _ = self.events.send(FromEngine::Copied(text));
    }

    fn report_copied(&self) {
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
