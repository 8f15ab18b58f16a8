//! Pauses of an exporter's receiver, kept by all processes of a session.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use super::delivery::Delivery;
use super::lock::lock;

/// The pause of an exporter's receiver: whoever is told to wait, or fails, tells all processes of the session.
///
/// An exporter keeps one, a [`TracingBuilder`](super::TracingBuilder::with_shared_pause) connects it with the host. Where there is no host
/// that passes pauses on, it is this process's own.
#[derive(Clone, Debug, Default)]
pub struct SharedPause {
    delivery: Arc<OnceLock<Arc<Delivery>>>,
    own: Arc<Mutex<Option<(Instant, u32)>>>,
}

/// Pause for which a receiver is not to be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pause {
    /// From now on.
    pub left: Duration,
    /// Failures of the receiver in a row; 0 when it has asked for the pause.
    pub failures: u32,
}

impl SharedPause {
    pub(super) fn connect(&self, delivery: &Arc<Delivery>) {
        // Nobody else has set it: a builder is used once.
        let _ = self.delivery.set(Arc::clone(delivery));
    }

    /// Returns the pause as it is now.
    pub fn now(&self) -> Pause {
        let told = self.delivery.get().and_then(|delivery| delivery.pause());
        told.unwrap_or_else(|| match *lock(&self.own) {
            Some((until, failures)) => Pause { left: until.saturating_duration_since(Instant::now()), failures },
            None => Pause::default(),
        })
    }

    /// Begins a pause, for all processes.
    pub fn begin(&self, pause: Pause) {
        if !self.delivery.get().is_some_and(|delivery| delivery.begin_pause(pause)) {
            // One that never ends ends with the process.
            *lock(&self.own) = Instant::now().checked_add(pause.left).map(|until| (until, pause.failures));
        }
    }

    /// Ends the pause: the receiver has taken spans.
    pub fn end(&self) {
        self.begin(Pause::default());
    }
}
