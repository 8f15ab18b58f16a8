//! A map by ids that come in runs, as those of tasks do.
//!
//! Ids that follow one another share a page, so that finding one is a search among few pages and an index, rather than a search among all. Iteration is in
//! the order of the ids. An id far from all others takes a page by itself.

use std::collections::BTreeMap;
use std::fmt;

use crate::place_id::ClusterTaskId;
use crate::task::TaskId;

/// Entries of a page.
const PAGE: u64 = 32;

/// An id that ends in a number.
pub trait Paged: Copy + Ord {
    /// The part of it before its number.
    type Of: Copy + Ord + fmt::Debug;

    /// Takes it apart.
    fn split(self) -> (Self::Of, u64);

    /// Puts it together again.
    fn join(of: Self::Of, number: u64) -> Self;
}

impl Paged for TaskId {
    type Of = ();

    fn split(self) -> ((), u64) {
        ((), self.0)
    }

    fn join((): (), number: u64) -> TaskId {
        TaskId(number)
    }
}

impl Paged for ClusterTaskId {
    type Of = crate::PlaceId;

    fn split(self) -> (crate::PlaceId, u64) {
        (self.place, self.task.0)
    }

    fn join(place: crate::PlaceId, number: u64) -> ClusterTaskId {
        ClusterTaskId { place, task: TaskId(number) }
    }
}

struct Page<V> {
    pub entries: Box<[Option<V>]>,
    count: u32,
}

impl<V> Page<V> {
    fn new() -> Page<V> {
        Page { entries: std::iter::repeat_with(|| None).take(PAGE as usize).collect(), count: 0 }
    }
}

/// A map by such ids.
pub struct PagedMap<K: Paged, V> {
    pages: BTreeMap<(K::Of, u64), Page<V>>,
    len: usize,
}

impl<K: Paged, V> Default for PagedMap<K, V> {
    fn default() -> PagedMap<K, V> {
        PagedMap { pages: BTreeMap::new(), len: 0 }
    }
}

impl<K: Paged + fmt::Debug, V: fmt::Debug> fmt::Debug for PagedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// Returns the page of an id, and its place in it.
fn place_of<K: Paged>(id: K) -> ((K::Of, u64), usize) {
    let (of, number) = id.split();
    ((of, number / PAGE), (number % PAGE) as usize)
}

fn id_of<K: Paged>((of, page): (K::Of, u64), at: usize) -> K {
    K::join(of, page * PAGE + at as u64)
}

impl<K: Paged, V> PagedMap<K, V> {
    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the value of an id.
    pub fn get(&self, id: &K) -> Option<&V> {
        let (page, at) = place_of(*id);
        self.pages.get(&page)?.entries[at].as_ref()
    }

    /// Returns the value of an id, to be changed.
    pub fn get_mut(&mut self, id: &K) -> Option<&mut V> {
        let (page, at) = place_of(*id);
        self.pages.get_mut(&page)?.entries[at].as_mut()
    }

    /// Returns whether an id has a value.
    pub fn contains_key(&self, id: &K) -> bool {
        self.get(id).is_some()
    }

    /// Gives an id a value, and returns the one before.
    pub fn insert(&mut self, id: K, value: V) -> Option<V> {
        let (page, at) = place_of(id);
        let page = self.pages.entry(page).or_insert_with(Page::new);
        let before = page.entries[at].replace(value);
        if before.is_none() {
            page.count += 1;
            self.len += 1;
        }
        before
    }

    /// Returns the value of an id; where it has none, it is given this one.
    pub fn get_or_insert_with(&mut self, id: K, value: impl FnOnce() -> V) -> &mut V {
        let (page, at) = place_of(id);
        let Page { entries, count } = self.pages.entry(page).or_insert_with(Page::new);
        let entry = &mut entries[at];
        if entry.is_none() {
            *count += 1;
            self.len += 1;
        }
        entry.get_or_insert_with(value)
    }

    /// Takes the value of an id away.
    pub fn remove(&mut self, id: &K) -> Option<V> {
        let (key, at) = place_of(*id);
        let page = self.pages.get_mut(&key)?;
        let value = page.entries[at].take()?;
        page.count -= 1;
        self.len -= 1;
        if page.count == 0 {
            self.pages.remove(&key);
        }
        Some(value)
    }

    /// Returns all entries in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.pages.iter().flat_map(|(page, of)| entries_of(*page, of, 0))
    }

    /// Returns the entries from this id on.
    pub fn range_from(&self, id: K) -> impl Iterator<Item = (K, &V)> {
        let (first, from) = place_of(id);
        self.pages.range(first..).flat_map(move |(page, of)| {
            let from = if *page == first { from } else { 0 };
            entries_of(*page, of, from)
        })
    }

    /// Returns the ids in their order.
    pub fn keys(&self) -> impl Iterator<Item = K> {
        self.iter().map(|(id, _)| id)
    }

    /// Returns the values in the order of their ids.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// Returns all entries, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (K, &mut V)> {
        self.pages.iter_mut().flat_map(|(page, of)| {
            let entries = of.entries.iter_mut().enumerate();
            entries.filter_map(|(at, entry)| Some((id_of(*page, at), entry.as_mut()?)))
        })
    }

    /// Returns all values, to be changed.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.iter_mut().map(|(_, value)| value)
    }
}

impl<K: Paged, V: Default> PagedMap<K, V> {
    /// Returns the value of an id; where it has none, it is given the default.
    pub fn get_or_default(&mut self, id: K) -> &mut V {
        self.get_or_insert_with(id, V::default)
    }
}

fn entries_of<K: Paged, V>(key: (K::Of, u64), page: &Page<V>, from: usize) -> impl Iterator<Item = (K, &V)> {
    let entries = page.entries.iter().enumerate().skip(from);
    entries.filter_map(move |(at, entry)| Some((id_of(key, at), entry.as_ref()?)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::place_id::PlaceId;

    fn id((place, task): (u64, u64)) -> ClusterTaskId {
        ClusterTaskId { place: PlaceId(place), task: TaskId(task) }
    }

    fn numbers() -> impl Strategy<Value = u64> {
        prop_oneof![6 => 0..200_u64, 1 => (u64::MAX - 100)..=u64::MAX, 1 => any::<u64>()]
    }

    proptest! {
        #[test]
        fn it_says_what_an_ordinary_map_says(
            steps in prop::collection::vec((0..5_u8, (0..3_u64, numbers()), any::<u32>()), 0..400),
        ) {
            let (mut map, mut expected) = (PagedMap::default(), BTreeMap::new());
            for (step, key, value) in steps {
                let key = id(key);
                match step {
                    0 | 1 => prop_assert_eq!(map.insert(key, value), expected.insert(key, value)),
                    2 => prop_assert_eq!(map.remove(&key), expected.remove(&key)),
                    3 => prop_assert_eq!(map.get_or_insert_with(key, || value), expected.entry(key).or_insert(value)),
                    _ => {
                        map.get_mut(&key).into_iter().for_each(|there| *there = value);
                        expected.get_mut(&key).into_iter().for_each(|there| *there = value);
                    }
                }
                prop_assert_eq!((map.get(&key), map.contains_key(&key)), (expected.get(&key), expected.contains_key(&key)));
                prop_assert_eq!((map.len(), map.is_empty()), (expected.len(), expected.is_empty()));
                let rest: Vec<_> = map.range_from(key).map(|(id, value)| (id, *value)).collect();
                prop_assert_eq!(rest, expected.range(key..).map(|(id, value)| (*id, *value)).collect::<Vec<_>>());
            }
            prop_assert!(map.iter().eq(expected.iter().map(|(id, value)| (*id, value))));
            prop_assert!(map.keys().eq(expected.keys().copied()) && map.values().eq(expected.values()));
            prop_assert!(map.iter_mut().map(|(id, value)| (id, *value)).eq(expected.iter().map(|(id, value)| (*id, *value))));
            let keys: Vec<_> = map.keys().collect();
            prop_assert!(keys.iter().all(|key| map.remove(key).is_some()));
            prop_assert!(map.is_empty() && map.pages.is_empty(), "no page is left of what was taken away");
        }
    }
}
