//! Messages that this node has, with those that came by themselves counted apart from the tasks of bundles: where bundles are held there are thousands of
//! the latter, and how many of the former there are is asked for with every message. Tasks of a bundle to which nothing has happened but to all of them are
//! held together.

use std::collections::{BTreeMap, BTreeSet};

use tracer_core::ClusterTaskId;
use tracer_core::paged_map::PagedMap;

use super::places::Places;
use crate::agent::holder::Held;
use crate::bundle::{member, place_of};

/// Messages by the tasks that they are of.
#[derive(Debug, Default)]
pub(super) struct HeldTasks {
    /// Messages that are held by themselves.
    each: PagedMap<ClusterTaskId, Box<Held>>,
    /// Tasks that came in no bundle.
    alone: BTreeSet<ClusterTaskId>,
    /// Tasks of bundles that are held together, by the first ones of their bundles.
    together: BTreeMap<ClusterTaskId, Together>,
}

/// Tasks of a bundle that are all held in the same way.
#[derive(Debug)]
struct Together {
    places: Places,
    held: Box<Held>,
}

impl HeldTasks {
    pub(super) fn len(&self) -> usize {
        self.each.len() + self.together.values().map(|together| together.places.len()).sum::<usize>()
    }

    pub(super) fn contains_key(&self, id: &ClusterTaskId) -> bool {
        self.get(id).is_some()
    }

    pub(super) fn get(&self, id: &ClusterTaskId) -> Option<&Held> {
        let with_others = || {
            let (first, together) = self.together.range(..=id).next_back()?;
            let is_there = first.place == id.place && together.places.contains(place_of(*first, *id));
            is_there.then_some(&*together.held)
        };
        self.each.get(id).map(|held| &**held).or_else(with_others)
    }

    /// Returns what is held of a task, to be changed: it is held by itself from now on.
    pub(super) fn get_mut(&mut self, id: &ClusterTaskId) -> Option<&mut Held> {
        if let Some(held) = self.take_from_others(id) {
            self.each.insert(*id, held);
        }
        self.each.get_mut(id).map(|held| &mut **held)
    }

    /// Puts a message in place of what is held of its task.
    pub(super) fn insert(&mut self, id: ClusterTaskId, held: Held) {
        self.take_from_others(&id);
        match held.bundle {
            None => self.alone.insert(id),
            Some(_) => self.alone.remove(&id),
        };
        self.each.insert(id, Box::new(held));
    }

    /// Holds tasks of a bundle of which nothing is held.
    pub(super) fn insert_together(&mut self, first: ClusterTaskId, places: Places, held: Held) {
        let Some(last) = places.last().map(|place| member(first, place)) else { return };
        // Which bundle a task is in is found by the first task before it: bundles that lie across each other, as somebody may forge, are held one by one.
        let before = self.together.range(..=last).next_back();
        let is_apart = before.is_none_or(|(other, together)| {
            together.places.last().is_none_or(|place| member(*other, place) < first) && *other < first
        });
        if is_apart {
            self.together.insert(first, Together { places, held: Box::new(held) });
        } else {
            places.iter().for_each(|place| self.insert(member(first, place), held.clone()));
        }
    }

    /// Returns what is held of a task; if nothing is, this.
    pub(super) fn get_or_insert_with(&mut self, id: ClusterTaskId, held: impl FnOnce() -> Held) -> &mut Held {
        let own = self.take_from_others(&id);
        let HeldTasks { each, alone, .. } = self;
        each.get_or_insert_with(id, || {
            own.unwrap_or_else(|| {
                let held = held();
                if held.bundle.is_none() {
                    alone.insert(id);
                }
                Box::new(held)
            })
        })
    }

    pub(super) fn remove(&mut self, id: &ClusterTaskId) -> Option<Held> {
        self.alone.remove(id);
        self.each.remove(id).or_else(|| self.take_from_others(id)).map(|held| *held)
    }

    /// Forgets tasks of a bundle.
    pub(super) fn forget_together(&mut self, first: ClusterTaskId, places: Places) {
        let mut left = places;
        if let Some(together) = self.together.get_mut(&first) {
            for place in places.iter() {
                if together.places.contains(place) {
                    together.places.remove(place);
                    left.remove(place);
                }
            }
            if together.places.is_empty() {
                self.together.remove(&first);
            }
        }
        left.iter().for_each(|place| drop(self.remove(&member(first, place))));
    }

    /// Takes a task out of those that are held together, and returns what is held of it.
    fn take_from_others(&mut self, id: &ClusterTaskId) -> Option<Box<Held>> {
        let (&first, together) = self.together.range_mut(..=id).next_back()?;
        let place = place_of(first, *id);
        if first.place != id.place || !together.places.contains(place) {
            return None;
        }
        together.places.remove(place);
        match together.places.is_empty() {
            true => self.together.remove(&first).map(|together| together.held),
            false => Some(together.held.clone()),
        }
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = ClusterTaskId> {
        self.iter().map(|(id, _)| id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ClusterTaskId, &Held)> {
        let of_bundle = |(first, together): (&ClusterTaskId, &Together)| {
            let (first, places) = (*first, together.places);
            places.iter().map(move |place| member(first, place))
        };
        let together = self.together.iter();
        let together = together.flat_map(move |of| of_bundle(of).map(|id| (id, &*of.1.held)));
        self.each.iter().map(|(id, held)| (id, &**held)).chain(together)
    }

    /// Returns the messages that came by themselves, to be changed, with their tasks.
    pub(super) fn alone_mut(&mut self) -> impl Iterator<Item = (ClusterTaskId, &mut Held)> {
        let HeldTasks { each, alone, .. } = self;
        each.iter_mut().filter(|(id, _)| alone.contains(id)).map(|(id, held)| (id, &mut **held))
    }

    /// Returns the messages that came by themselves, in no bundle.
    pub(super) fn alone(&self) -> impl Iterator<Item = &Held> {
        self.alone.iter().filter_map(|id| self.get(id))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use tracer_core::PlaceId;
    use tracer_core::task::TaskId;

    use super::*;
    use crate::interface::Handle;
    use crate::record::Terms;

    fn id(task: u64) -> ClusterTaskId {
        ClusterTaskId { place: PlaceId(task % 2), task: TaskId(task / 2) }
    }

    /// A message that is told from others by its slots.
    fn held(bundle: Option<ClusterTaskId>, slots: usize) -> Held {
        let queue: Arc<str> = "q".into();
        let terms = Terms { at_most_once: false, crash_limit: 3 };
        Held { bundle, slots, ..Held::new(&queue, &Handle("h".into()), terms) }
    }

    proptest! {
        #[test]
        fn tasks_that_are_held_together_are_held_as_those_that_are_not(
            steps in prop::collection::vec((0..7_u8, 0..40_u64, prop::collection::vec(0..12_u32, 0..12), 1..9_usize), 0..80),
        ) {
            let (mut tasks, mut expected) = (HeldTasks::default(), BTreeMap::<ClusterTaskId, (bool, usize)>::new());
            for (step, task, places, slots) in steps {
                let id = id(task);
                match step {
                    0 => {
                        tasks.insert(id, held(None, slots));
                        expected.insert(id, (true, slots));
                    }
                    1 => {
                        let free = places.into_iter().filter(|place| !expected.contains_key(&member(id, *place)));
                        let places: Places = free.collect();
                        tasks.insert_together(id, places, held(Some(id), slots));
                        expected.extend(places.iter().map(|place| (member(id, place), (false, slots))));
                    }
                    2 => {
                        let (found, known) = (tasks.get_mut(&id), expected.get_mut(&id));
                        prop_assert_eq!(found.is_some(), known.is_some());
                        if let Some((held, known)) = found.zip(known) {
                            (held.slots, known.1) = (slots, slots);
                        }
                    }
                    3 => {
                        tasks.get_or_insert_with(id, || held(None, slots));
                        expected.entry(id).or_insert((true, slots));
                    }
                    4 => {
                        let removed = tasks.remove(&id).map(|held| (held.bundle.is_none(), held.slots));
                        prop_assert_eq!(removed, expected.remove(&id));
                    }
                    5 => {
                        let places: Places = places.into_iter().collect();
                        tasks.forget_together(id, places);
                        expected.retain(|known, _| !places.iter().any(|place| member(id, place) == *known));
                    }
                    _ => prop_assert_eq!(tasks.contains_key(&id), expected.contains_key(&id)),
                }
                let found: BTreeMap<_, _> =
                    tasks.iter().map(|(id, held)| (id, (held.bundle.is_none(), held.slots))).collect();
                prop_assert_eq!(&found, &expected);
                prop_assert_eq!(tasks.len(), expected.len());
                prop_assert_eq!(tasks.alone().count(), expected.values().filter(|(is_alone, _)| *is_alone).count());
                let gotten = (0..40).map(id_of).filter_map(|id| Some((id, tasks.get(&id)?.slots)));
                prop_assert!(gotten.eq(expected.iter().filter(|(id, _)| id.task.0 < 20).map(|(id, of)| (*id, of.1))));
            }
        }
    }

    /// The ids of the first tasks in their order.
    fn id_of(number: u64) -> ClusterTaskId {
        ClusterTaskId { place: PlaceId(number / 20), task: TaskId(number % 20) }
    }
}
