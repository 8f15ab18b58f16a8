//! Nodes that the engine does not hear: what they have claimed may be another node's soon, and they cannot know. With [`OnPartition::Stop`] they end it
//! when their claims have lapsed, which is before anybody takes it over.

use tracer_ipc::protocol::OnPartition;

use super::{Agent, Settings, ToHead};

/// Notes on when the engine has heard this node last, for one that is to end what it runs when it is not heard.
#[derive(Debug)]
pub(super) struct Hearing {
    /// Time at which the claims lapse, in nanoseconds of the monotonic clock; none where that changes nothing.
    lapse_ns: Option<u64>,
    is_cut_off: bool,
}

impl Hearing {
    /// Makes those of an agent that was not heard yet. When the one before it was heard, it does not know: its head has got half of an interval for that.
    pub(super) fn new(settings: &Settings, now_ns: u64) -> Hearing {
        let is_to_stop = settings.on_partition == OnPartition::Stop;
        Hearing { lapse_ns: is_to_stop.then_some(now_ns + settings.ack_wait_ns / 2), is_cut_off: false }
    }

    /// Returns when the claims lapse, if that is still to come and changes anything.
    pub(super) fn lapse_ns(&self) -> Option<u64> {
        self.lapse_ns.filter(|_| !self.is_cut_off)
    }

    /// Returns whether the claims have lapsed.
    pub(super) fn is_cut_off(&self) -> bool {
        self.is_cut_off
    }
}

impl Agent {
    /// Notes that the engine has heard this node: a heartbeat that it sent at this time, in nanoseconds of the monotonic clock, was acknowledged.
    pub fn on_heard(&mut self, sent_ns: u64) {
        let Some(lapse_ns) = &mut self.hearing.lapse_ns else { return };
        *lapse_ns = (*lapse_ns).max(sent_ns + self.settings.ack_wait_ns);
        // One that was acknowledged late says nothing of now.
        if self.hearing.is_cut_off && self.ticked_ns < *lapse_ns {
            self.hearing.is_cut_off = false;
            self.notify(ToHead::HeardAgain);
        }
    }

    /// Has all that the head runs of queues ended if the claims to it have lapsed, and lets go of what it does not run yet.
    pub(super) fn end_if_cut_off(&mut self, now_ns: u64) {
        if self.hearing.lapse_ns().is_none_or(|lapse_ns| now_ns < lapse_ns) {
            return;
        }
        self.hearing.is_cut_off = true;
        self.let_go_of_unimported();
        let running = self.held.iter().filter(|(_, held)| held.attempt.is_some()).map(|(id, _)| id);
        let running: Vec<_> = running.collect();
        if !running.is_empty() {
            self.notify(ToHead::CutOff(u32::try_from(running.len()).unwrap_or(u32::MAX)));
        }
        for id in running {
            self.hurry_bundle_of(id);
            self.notify(ToHead::Superseded(id));
        }
    }
}
