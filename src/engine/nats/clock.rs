//! The clock of this node by that of the server: measured with each heartbeat, and told with each message of a queue.
//!
//! The entry of the heartbeat before is read at each heartbeat anyway, and has its stamp; only the first is read at once. The offset goes in a header beside the
//! message, a bundle's too, unsigned: nothing but times on spans depends on it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use tokio::sync::Notify;
use tracer_core::PlaceId;

use super::{FromEngine, Nats};
use crate::clock::{ClockOffset, Clocks, Samples};
use crate::interface::Entry;

/// Header of a message of a queue: the offset of the clock of its origin, in nanoseconds.
pub(super) const HEADER: &str = "Tracer-Clock-Offset-Ns";
/// Time that messages wait for the first measurement, which takes three round trips, before they go and come without.
const FIRST_LIMIT: Duration = Duration::from_millis(100);

/// Measurement of this node's clock.
pub(super) struct Measuring {
    since: Instant,
    samples: Mutex<Samples>,
    /// The last heartbeat that was acknowledged and whose stamp is not known.
    unstamped: Mutex<Option<Sent>>,
    clocks: Mutex<Clocks>,
    /// True once a heartbeat was measured, or could not be in time.
    is_tried: AtomicBool,
    /// Wakes those that wait for that, in the order in which they came: messages keep theirs.
    tried: Notify,
}

/// A heartbeat that the server has.
#[derive(Clone, Copy)]
pub(super) struct Sent {
    /// Number of the write.
    pub(super) revision: u64,
    /// This node's time before it was sent, in nanoseconds since the Unix epoch.
    pub(super) sent_unix_nano: u64,
    /// This node's time after it was acknowledged.
    pub(super) acknowledged_unix_nano: u64,
}

impl Measuring {
    pub(super) fn new(place: PlaceId) -> Measuring {
        Measuring {
            since: Instant::now(),
            samples: Mutex::default(),
            unstamped: Mutex::default(),
            clocks: Mutex::new(Clocks::new(place)),
            is_tried: AtomicBool::new(false),
            tried: Notify::new(),
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().expect("nobody panics with it")
}

impl Nats {
    /// Returns what is known of the clocks of this node and of others.
    pub(crate) fn clocks(&self) -> MutexGuard<'_, Clocks> {
        lock(&self.measuring.clocks)
    }

    /// Notes a heartbeat that the server has, if it has one.
    pub(super) fn note_beat(&self, sent: Option<Sent>) {
        *lock(&self.measuring.unstamped) = sent;
    }

    /// Takes the stamp of the last heartbeat, if the entry is that.
    pub(super) fn note_stamp(&self, entry: Option<&Entry>) {
        let sent = *lock(&self.measuring.unstamped);
        let stamped = sent.zip(entry).filter(|(sent, entry)| sent.revision == entry.revision);
        let sample = stamped.and_then(|(sent, entry)| {
            ClockOffset::of_stamp(sent.sent_unix_nano, entry.stamp_ns, sent.acknowledged_unix_nano)
        });
        let Some(sample) = sample else { return };
        self.note_beat(None);
        let now_ns = u64::try_from(self.measuring.since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let best = lock(&self.measuring.samples).take(sample, now_ns);
        self.clocks().set_own(best.offset_ns);
        let _ = self.events.send(FromEngine::Clock(best));
    }

    /// Notes that a heartbeat was measured, or could not be.
    pub(super) fn note_tried(&self) {
        self.measuring.is_tried.store(true, Ordering::Relaxed);
        self.measuring.tried.notify_waiters();
    }

    /// Returns the offset of this node's clock. Messages that go or come while a node starts wait a moment for the first measurement, at most once.
    pub(super) async fn own_offset_ns(&self) -> Option<i64> {
        if !self.measuring.is_tried.load(Ordering::Relaxed) {
            let _ = tokio::time::timeout(FIRST_LIMIT, self.measuring.tried.notified()).await;
            self.note_tried();
        }
        self.clocks().own_ns()
    }

    /// Notes what a message says of the clock of its origin, once this node's own is known as well as it can be.
    pub(super) async fn note_clock_of(&self, origin: PlaceId, headers: Option<&HeaderMap>) {
        self.own_offset_ns().await;
        let said = headers.and_then(|headers| headers.get(HEADER)?.as_str().parse().ok());
        if let Some(offset_ns) = said {
            self.clocks().note_origin(origin, offset_ns);
        }
    }
}
