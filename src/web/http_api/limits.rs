//! Limits of the HTTP API. All of them are in the OpenAPI description too, which a test compares.

use std::time::{Duration, Instant};

/// The longest body of a request, in bytes.
pub(crate) const BODY_BYTES: usize = 8 << 20;
/// The longest body of OTLP when it is unpacked, in bytes.
pub(crate) const UNPACKED_BYTES: usize = 16 << 20;
/// Bodies of OTLP that are received at one time; further ones wait for their turn.
pub(crate) const BODIES: usize = 8;
/// The longest head of a request, in bytes.
pub(crate) const HEAD_BYTES: usize = 32 << 10;
/// The most headers of a request.
pub(crate) const HEADERS: usize = 64;
/// Time limit for the head of a request, and for the wait of a connection for the next request.
pub(crate) const HEAD_TIME: Duration = Duration::from_secs(10);
/// Time limit for a body.
pub(crate) const BODY_TIME: Duration = Duration::from_secs(30);
/// Time limit for a client that takes nothing of what it is sent.
pub(crate) const WRITE_TIME: Duration = Duration::from_secs(30);
/// Connections at one time. For a further one, the one goes that has waited longest without a request that was let in.
pub(crate) const CONNECTIONS: usize = 256;
/// Requests that wait for the end of a task, at one time.
pub(crate) const WAITS: usize = 96;
/// Requests that follow the output of a task, at one time.
pub(crate) const STREAMS: usize = 96;
/// Answers with large results that are in memory at one time; further ones wait for their turn.
pub(crate) const LARGE_ANSWERS: usize = 2;
/// The longest wait for the end of a task.
pub(crate) const WAIT_TIME: Duration = Duration::from_secs(60);
/// The wait of a request that does not say how long.
pub(crate) const DEFAULT_WAIT_TIME: Duration = Duration::from_secs(30);
/// Requests a second, over all clients, once those that were saved up are used; further ones wait for their turn.
pub(crate) const REQUESTS_PER_SECOND: u32 = 1000;
/// The same for requests that are not let in.
pub(crate) const STRANGERS_PER_SECOND: u32 = 50;
/// The most tasks that one request lists.
pub(crate) const LIST: usize = 1000;
/// The tasks that are listed if the request does not say how many.
pub(crate) const DEFAULT_LIST: usize = 100;
/// Number of listed tasks that count as one more request.
pub(crate) const LISTED_PER_REQUEST: usize = 10;

/// The longest that a request is held back because of the rate.
pub(crate) const HELD_TIME: Duration = Duration::from_secs(1);

/// A rate: so many a second, and as many at once as one second has. Who comes too early is held back, for as long as it takes, so that a
/// client that asks without pause gets slow answers and costs nothing.
pub(crate) struct Rate {
    per_second: f64,
    /// Requests that may be answered at once; less than 0 when requests are held back.
    saved: f64,
    looked_at: Instant,
}

impl Rate {
    pub(crate) fn new(per_second: u32, now: Instant) -> Rate {
        Rate { per_second: per_second.into(), saved: per_second.into(), looked_at: now }
    }

    /// Takes `count`, and says how long to wait for that; none when it is longer than a request is held back, and nothing is taken.
    pub(crate) fn take(&mut self, count: u32, now: Instant) -> Option<Duration> {
        let passed = now.saturating_duration_since(self.looked_at).as_secs_f64();
        self.saved = (self.saved + passed * self.per_second).min(self.per_second);
        self.looked_at = now;
        let left = self.saved - f64::from(count).min(self.per_second);
        let wait = Duration::from_secs_f64((-left).max(0.0) / self.per_second);
        (wait <= HELD_TIME).then(|| {
            self.saved = left;
            wait
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_gives_what_a_second_has_at_once_and_then_each_its_turn() {
        let start = Instant::now();
        let mut rate = Rate::new(100, start);
        let millis = |rate: &mut Rate, count, after| {
            rate.take(count, start + Duration::from_millis(after)).map(|wait| wait.as_millis())
        };
        assert!((0..100).all(|_| millis(&mut rate, 1, 0) == Some(0)));
        for turn in 1..=100 {
            assert_eq!(millis(&mut rate, 1, 0), Some(turn * 10));
        }
        assert_eq!(millis(&mut rate, 1, 0), None, "it would be too long");
        assert_eq!(millis(&mut rate, 1, 10), Some(1000), "what is not taken costs nothing");
        assert_eq!(millis(&mut rate, 1, 2010), Some(0));
        // No more is saved up than a second has, and what is larger counts as much.
        assert_eq!(millis(&mut rate, 1000, 3_600_000), Some(0));
        assert_eq!(millis(&mut rate, 1000, 3_600_000), Some(1000));
        assert_eq!(millis(&mut rate, 1, 3_600_000), None);
    }
}
