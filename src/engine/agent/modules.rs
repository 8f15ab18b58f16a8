//! Modules that this node lacks. Such a task is left to another node that has its module, if a living one that serves the queue has; else it is taken all the
//! same, and fails with what is missing: it is not to come back for ever.

use std::collections::BTreeSet;

use tracer_core::PlaceId;

use super::Agent;
use crate::interface::{Delivery, Request};
use crate::message::{Heartbeat, ListedModules};

/// Heartbeats for which those of the other nodes count after they were read.
const KNOWN_FOR: u32 = 4;

/// Modules of this node and of others.
#[derive(Debug, Default)]
pub(super) struct ModulesKnown {
    own: ListedModules,
    /// Heartbeats of the living nodes, and how many of this node's own have gone since they were read.
    others: Option<(Vec<(PlaceId, Heartbeat)>, u32)>,
    /// Queues that are not pulled from before the next heartbeat: a task of theirs was left to others.
    left: BTreeSet<String>,
}

impl ModulesKnown {
    /// Returns those that this node says it has.
    pub(super) fn own(&self) -> &ListedModules {
        &self.own
    }

    /// Returns whether a queue is left to others for now.
    pub(super) fn leaves(&self, queue: &str) -> bool {
        self.left.contains(queue)
    }

    /// Goes on with a heartbeat. Returns whether queues were left to others, and are not any more.
    pub(super) fn beat(&mut self) -> bool {
        if let Some((_, beats)) = &mut self.others {
            *beats += 1;
        }
        self.others.take_if(|(_, beats)| *beats > KNOWN_FOR);
        !std::mem::take(&mut self.left).is_empty()
    }
}

impl Agent {
    /// Takes the modules that this node has.
    pub fn on_modules(&mut self, modules: ListedModules) {
        self.modules.own = modules;
    }

    /// Takes the heartbeats of the living nodes.
    pub fn on_nodes(&mut self, nodes: Vec<(PlaceId, Heartbeat)>) {
        self.modules.others = Some((nodes, 0));
    }

    /// Takes a message whose module this node lacks. The time is in nanoseconds since the Unix epoch.
    pub fn on_delivered_lacking(&mut self, delivery: Delivery, module: &str, now_unix_nano: u64) {
        // What is claimed already is brought to its end.
        if self.held.contains_key(&delivery.id) || self.bundles.contains_key(&delivery.id) {
            return self.on_delivered(delivery, now_unix_nano);
        }
        let Delivery { queue, handle, .. } = &delivery;
        let own = self.settings.own.place;
        let may_run = |(place, beat): &(PlaceId, Heartbeat)| {
            *place != own && beat.queues.contains(queue) && beat.modules.may_have(module)
        };
        let is_for_others = match &self.modules.others {
            Some((nodes, _)) => nodes.iter().any(may_run),
            None => {
                self.say(Request::ReadNodes);
                true
            }
        };
        if !is_for_others {
            return self.on_delivered(delivery, now_unix_nano);
        }
        self.modules.left.insert(queue.clone());
        self.say(Request::GiveBackLater(handle.clone()));
    }
}
