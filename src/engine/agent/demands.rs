//! Tasks that ask for more than one slot. A queue says what its tasks may ask for, and this node takes one from it only when that much is free, whatever the
//! task itself asks for: so what it has taken can begin.

use std::collections::{BTreeMap, VecDeque};

use tracer_core::queue::QueueBound;

use super::{Agent, Handle, ToHead};
use crate::agent::holder::Held;
use crate::interface::Request;

/// Heartbeats after which what tasks of queues may ask for is read again, and what is gone of queues is made again.
const READ_AGAIN: u32 = 5;

/// Resources of this node, and what tasks of its queues may ask for.
#[derive(Debug, Default)]
pub(super) struct Demands {
    /// Bounds of the queues whose tasks may ask for more than one slot.
    bounds: BTreeMap<String, QueueBound>,
    /// Named resources of the head: how much there is, and how much is free.
    resources: BTreeMap<String, (u64, u64)>,
    /// Slots of the imports that the head was told of after it had last said what is free; and all of them together.
    on_the_way: VecDeque<usize>,
    slots_on_the_way: usize,
    /// Heartbeats since the bounds were read.
    beats: u32,
}

impl Demands {
    /// Notes that the head is told of an import that takes so many slots.
    pub(super) fn note_told(&mut self, slots: usize) {
        self.on_the_way.push_back(slots);
        self.slots_on_the_way += slots;
    }

    /// Forgets the imports that the head has seen: all but so many.
    pub(super) fn forget_seen(&mut self, unseen: u64) {
        while self.on_the_way.len() as u64 > unseen {
            self.slots_on_the_way -= self.on_the_way.pop_front().unwrap_or(0);
        }
    }

    /// Returns how much there is of each named resource.
    pub(super) fn amounts(&self) -> Vec<(String, u64)> {
        self.resources.iter().map(|(name, (total, _))| (name.clone(), *total)).collect()
    }

    /// Returns the slots that imports take of which the head has not said so.
    pub(super) fn slots_on_the_way(&self) -> usize {
        self.slots_on_the_way
    }
}

impl Agent {
    /// Takes the named resources of the head: of each how much there is and how much is free.
    pub fn on_resources(&mut self, resources: Vec<(String, u64, u64)>) {
        self.demands.resources = resources.into_iter().map(|(name, total, free)| (name, (total, free))).collect();
    }

    /// Takes what tasks of this node's queues may ask for.
    pub fn on_bounds(&mut self, bounds: Vec<(String, QueueBound)>) {
        self.demands.beats = 0;
        for (queue, bound) in &bounds {
            let is_new = self.demands.bounds.get(queue).is_none_or(|known| known != bound);
            if is_new && !self.has_in_all(bound) {
                self.notify(ToHead::Log(format!(
                    "nothing is taken from the queue `{queue}`: a task of it may ask for {bound}, and this node does not have that much"
                )));
            }
        }
        let is_plain = |bound: &QueueBound| *bound == QueueBound::default();
        self.demands.bounds = bounds.into_iter().filter(|(_, bound)| !is_plain(bound)).collect();
        self.pull();
    }

    /// Has the bounds read again at some heartbeats.
    pub(super) fn read_bounds_now_and_then(&mut self) {
        self.demands.beats += 1;
        if self.demands.beats >= READ_AGAIN {
            self.read_bounds();
        }
    }

    fn read_bounds(&mut self) {
        self.demands.beats = 0;
        if !self.settings.queues.is_empty() {
            self.say(Request::ReadBounds);
        }
    }

    /// Returns for how many messages of a queue there is room by what its tasks may ask for. Where that is more than a slot they are taken one after another:
    /// what is free is known only when the head has seen the one before.
    pub(super) fn room_by_bound(&self, queue: &str) -> usize {
        let Some(bound) = self.demands.bounds.get(queue) else { return usize::MAX };
        let is_claiming = |held: &Held| held.attempt.is_none();
        let is_quiet = self.demands.on_the_way.is_empty()
            && self.bundles_being_claimed() == 0
            && !self.held.alone().any(is_claiming);
        usize::from(is_quiet && self.has_free(bound))
    }

    /// Returns whether so much is free.
    pub(super) fn has_free(&self, bound: &QueueBound) -> bool {
        let free = |name: &str| self.demands.resources.get(name).map_or(0, |(_, free)| *free);
        self.free_room() >= bound.num_cpus as usize
            && bound.resources.iter().all(|(name, amount)| free(name) >= *amount)
    }

    /// Returns whether this node has so much, free or not. One that has not heard of its head yet may have.
    fn has_in_all(&self, bound: &QueueBound) -> bool {
        let total = |name: &str| self.demands.resources.get(name).map_or(0, |(total, _)| *total);
        self.slots == 0
            || (self.slots >= bound.num_cpus as usize
                && bound.resources.iter().all(|(name, amount)| total(name) >= *amount))
    }

    /// Returns the queues that this node takes tasks from.
    pub(super) fn queues_that_fit(&self) -> Vec<String> {
        let fits = |queue: &&String| self.demands.bounds.get(*queue).is_none_or(|bound| self.has_in_all(bound));
        self.settings.queues.iter().map(|(queue, _)| queue).filter(fits).cloned().collect()
    }

    /// Returns the queues that this node was started for and takes nothing from.
    pub(super) fn queues_too_large(&self) -> Vec<String> {
        let fits = |queue: &&String| self.demands.bounds.get(*queue).is_none_or(|bound| self.has_in_all(bound));
        self.settings.queues.iter().map(|(queue, _)| queue).filter(|queue| !fits(queue)).cloned().collect()
    }

    /// Leaves a message to others whose task asks for more than is free here: its queue may have got another bound meanwhile.
    pub(super) fn give_back_later(&mut self, handle: Handle) {
        self.say(Request::GiveBackLater(handle));
        self.read_bounds();
    }
}
