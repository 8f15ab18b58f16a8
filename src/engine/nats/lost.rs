//! Writes that the engine has lost, as one of the agents sees it: a write to the records gets a sequence that is not beyond one which was told before it was sent.
//! Heartbeats are such writes, so that is noticed within seconds of the engine's return. What an agent before this one was told it does not know.

use std::sync::atomic::Ordering;

use super::{FromEngine, Nats};

impl Nats {
    /// Returns the highest sequence of the records that this agent was told, which the next write gets one beyond.
    pub(super) fn told_sequence(&self) -> u64 {
        self.highest_told.load(Ordering::Relaxed)
    }

    /// Takes in the sequence of a write that was sent when `told` was the highest one.
    pub(super) fn note_sequence(&self, told: u64, sequence: u64) {
        if sequence > told {
            self.highest_told.fetch_max(sequence, Ordering::Relaxed);
        } else if self.highest_told.swap(sequence, Ordering::Relaxed) >= told {
            // The others that were on the way find a lower one.
            let _ = self.events.send(FromEngine::LostWrites { told, now: sequence });
        }
    }
}
