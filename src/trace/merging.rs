//! Merging of sources by the places of their items, with no more than the first item of each in memory.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Place of an item among all: its time in nanoseconds since the Unix epoch, the inode of its file, and offset and number there.
pub(crate) type Key = (u64, u64, u64, u32);

/// Items in the order of their places, each with the number of its source.
#[derive(Debug)]
pub(crate) struct Merged<T> {
    items: BinaryHeap<Item<T>>,
}

#[derive(Debug)]
struct Item<T> {
    key: Key,
    source: usize,
    item: T,
}

impl<T> Default for Merged<T> {
    fn default() -> Merged<T> {
        Merged { items: BinaryHeap::new() }
    }
}

impl<T> Merged<T> {
    pub(crate) fn push(&mut self, key: Key, source: usize, item: T) {
        self.items.push(Item { key, source, item });
    }

    /// Takes the first one, and the number of its source.
    pub(crate) fn pop(&mut self) -> Option<(usize, T)> {
        self.items.pop().map(|first| (first.source, first.item))
    }

    /// Returns the place of the first one.
    pub(crate) fn first(&self) -> Option<Key> {
        self.items.peek().map(|first| first.key)
    }

    pub(crate) fn clear(&mut self) {
        self.items.clear();
    }
}

impl<T> Ord for Item<T> {
    /// Compares in reverse: the heap has the greatest on top.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.key, other.source).cmp(&(self.key, self.source))
    }
}

impl<T> PartialOrd for Item<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Item<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Item<T> {}
