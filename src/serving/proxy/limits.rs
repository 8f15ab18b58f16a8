//! Limits of the proxy for clients, besides those of the service file.

use std::cell::Cell;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tracer_ipc::fault;

/// Returns the interval between two looks at the connections: the precision of the times below. It is a second, but for tests.
pub(super) fn look() -> Duration {
    Duration::from_millis(fault::setting("proxy_look_ms").unwrap_or(1_000))
}

/// Looks in which the head of a request may come.
pub(super) const HEAD_LOOKS: u32 = 10;
/// Looks between bytes of a body, or of an answer that nobody takes.
pub(super) const STALL_LOOKS: u32 = 30;
/// Looks in which a connection may have nothing to do.
pub(super) const IDLE_LOOKS: u32 = 75;
/// Connections of a proxy, at most.
pub(super) const CONNECTIONS: usize = 20_000;

/// HTTP/2: requests on one connection at one time.
pub(super) const STREAMS: u32 = 128;
/// HTTP/2: requests that a client has reset and the proxy has not taken notice of.
pub(super) const PENDING_RESETS: usize = 20;
/// HTTP/2: what a client may send of one body before it is taken.
pub(super) const STREAM_WINDOW: u32 = 256 << 10;
/// HTTP/2: the same of all bodies on a connection.
pub(super) const CONNECTION_WINDOW: u32 = 4 << 20;

/// Time for a client to see that it was refused before the connection is closed.
pub(super) const LINGER: Duration = Duration::from_secs(1);
/// Bytes that are taken at a time of what such a client still sends, and the pause after them: whoever sends much of what is refused takes little of the thread
/// from those whose requests are served.
pub(super) const LINGER_BYTES: usize = 64 << 10;
pub(super) const LINGER_PAUSE: Duration = Duration::from_millis(2);
/// Clients of which a thread takes more than that at one time. Others may lose their answer.
pub(super) const LINGERING: usize = 8;
/// Interval between two refused clients that a thread answers, and how many it answers at once after a time with fewer. A client that comes back at once waits
/// so long that what its refusals cost is a small share of the thread.
pub(super) const REFUSAL_INTERVAL: Duration = Duration::from_millis(2);
pub(super) const REFUSALS_AT_ONCE: u32 = 64;
/// Bytes of a head that are read before other connections have their turn.
pub(super) const HEAD_TURN: usize = 16 << 10;
/// Limit of time that requests of a lost replica wait for its spans to be complete.
pub(super) const GONE: Duration = Duration::from_secs(2);
/// Interval between two writes of collected spans and log lines.
pub(super) const WRITE: Duration = Duration::from_millis(100);

/// Room for connections, which the threads of a proxy share: the kernel does not give all of them the same number.
#[derive(Debug)]
pub(super) struct Room {
    limit: usize,
    taken: AtomicUsize,
}

impl Room {
    /// Returns that of a process that may have `files` open.
    pub(super) fn of(files: u64) -> Room {
        let files = usize::try_from(files).unwrap_or(usize::MAX);
        Room { limit: CONNECTIONS.min(files / 4 * 3).max(1), taken: AtomicUsize::new(0) }
    }

    pub(super) fn is_left(&self) -> bool {
        self.taken.load(Relaxed) < self.limit
    }

    /// Takes the room of a connection, whether it is left or not.
    pub(super) fn take(&self) {
        self.taken.fetch_add(1, Relaxed);
    }

    /// Gives the room of a connection back.
    pub(super) fn give_back(&self) {
        self.taken.fetch_sub(1, Relaxed);
    }
}

/// Times at which refused clients are answered, by the generic cell rate algorithm (ITU-T I.371): some at once, others one after the other.
#[derive(Debug, Default)]
pub(super) struct RefusalTurns {
    /// Time from which on one client alone would have to wait for nobody.
    free: Cell<Option<Instant>>,
}

impl RefusalTurns {
    /// Returns how long the next client waits for its turn. None if that is too long for it to be answered at all.
    pub(super) fn take(&self, now: Instant) -> Option<Duration> {
        let free = self.free.get().map_or(now, |free| free.max(now));
        let wait = (free - now).saturating_sub(REFUSAL_INTERVAL * (REFUSALS_AT_ONCE - 1));
        (wait <= LINGER).then(|| {
            self.free.set(Some(free + REFUSAL_INTERVAL));
            wait
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_clients_are_answered_at_once_until_they_are_many() {
        let (turns, start) = (RefusalTurns::default(), Instant::now());
        let at = |now| turns.take(now);
        assert!((0..REFUSALS_AT_ONCE).all(|_| at(start) == Some(Duration::ZERO)));
        assert_eq!([at(start), at(start)], [1, 2].map(|count| Some(REFUSAL_INTERVAL * count)));
        // Each interval is room for one more.
        assert_eq!(at(start + REFUSAL_INTERVAL), Some(REFUSAL_INTERVAL * 2));
        let waiting = std::iter::from_fn(|| at(start)).count();
        assert_eq!(waiting as u128, (LINGER.as_nanos() / REFUSAL_INTERVAL.as_nanos()) - 3);
        assert_eq!(at(start), None, "whoever waits for longer is not answered");
        // Nobody pays for what was long ago.
        let later = start + LINGER * 2;
        assert!((0..REFUSALS_AT_ONCE).all(|_| at(later) == Some(Duration::ZERO)));
        assert_eq!(at(later), Some(REFUSAL_INTERVAL));
    }

    #[test]
    fn connections_leave_a_quarter_of_the_files_for_all_else() {
        assert_eq!([1024, 1 << 20, 0].map(|files| Room::of(files).limit), [768, 20_000, 1]);
        let room = Room::of(4);
        (0..2).for_each(|_| room.take());
        assert!(room.is_left());
        room.take();
        assert!(!room.is_left());
        room.give_back();
        assert!(room.is_left());
    }
}
