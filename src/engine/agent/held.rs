//! Messages that this node has, with those that came by themselves counted apart from the tasks of bundles: where bundles are held there are thousands of
//! the latter, and how many of the former there are is asked for with every message.

use std::collections::BTreeSet;

use tracer_core::ClusterTaskId;
use tracer_core::paged_map::PagedMap;

use super::Held;

/// Messages by the tasks that they are of.
#[derive(Debug, Default)]
pub(super) struct HeldTasks {
    all: PagedMap<ClusterTaskId, Box<Held>>,
    /// Tasks that came in no bundle.
    alone: BTreeSet<ClusterTaskId>,
}

impl HeldTasks {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn contains_key(&self, id: &ClusterTaskId) -> bool {
        self.all.contains_key(id)
    }

    pub(super) fn get(&self, id: &ClusterTaskId) -> Option<&Held> {
        self.all.get(id).map(|held| &**held)
    }

    pub(super) fn get_mut(&mut self, id: &ClusterTaskId) -> Option<&mut Held> {
        self.all.get_mut(id).map(|held| &mut **held)
    }

    /// Puts a message in place of what is held of its task.
    pub(super) fn insert(&mut self, id: ClusterTaskId, held: Held) {
        match held.bundle {
            None => self.alone.insert(id),
            Some(_) => self.alone.remove(&id),
        };
        self.all.insert(id, Box::new(held));
    }

    /// Returns what is held of a task; if nothing is, this.
    pub(super) fn get_or_insert_with(&mut self, id: ClusterTaskId, held: impl FnOnce() -> Held) -> &mut Held {
        let HeldTasks { all, alone } = self;
        all.get_or_insert_with(id, || {
            let held = held();
            if held.bundle.is_none() {
                alone.insert(id);
            }
            Box::new(held)
        })
    }

    pub(super) fn remove(&mut self, id: &ClusterTaskId) -> Option<Held> {
        self.alone.remove(id);
        self.all.remove(id).map(|held| *held)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = ClusterTaskId> {
        self.all.keys()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ClusterTaskId, &Held)> {
        self.all.iter().map(|(id, held)| (id, &**held))
    }

    /// Returns the same, to be changed, with their tasks.
    pub(super) fn alone_mut(&mut self) -> impl Iterator<Item = (ClusterTaskId, &mut Held)> {
        let HeldTasks { all, alone } = self;
        all.iter_mut().filter(|(id, _)| alone.contains(id)).map(|(id, held)| (id, &mut **held))
    }

    /// Returns the messages that came by themselves, in no bundle.
    pub(super) fn alone(&self) -> impl Iterator<Item = &Held> {
        self.alone.iter().filter_map(|id| self.get(id))
    }
}
