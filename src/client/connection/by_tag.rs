//! Things by the number of their submission.
//!
//! A driver counts its submissions, and most of what it keeps is about numbers that are near to each other: these are in a row, where finding one
//! is an addition. A tree has the others, such as an end that nobody has asked for since long ago.

use std::collections::{BTreeMap, VecDeque};

/// Length that the row may have however little is in it. It may be longer if a quarter of it is filled.
const ROW_LIMIT: u64 = 4096;

/// A map from numbers that lie close together, mostly.
#[derive(Debug)]
pub struct ByTag<T> {
    /// The number of the first in the row.
    first: u64,
    /// It begins and ends with something, unless it is empty.
    row: VecDeque<Option<T>>,
    in_row: usize,
    others: BTreeMap<u64, T>,
}

impl<T> Default for ByTag<T> {
    fn default() -> ByTag<T> {
        ByTag { first: 0, row: VecDeque::new(), in_row: 0, others: BTreeMap::new() }
    }
}

impl<T> ByTag<T> {
    /// Enters one. What had the number before is dropped.
    pub fn insert(&mut self, tag: u64, value: T) {
        if !self.others.is_empty() {
            self.others.remove(&tag);
        }
        if self.row.is_empty() {
            self.first = tag;
        }
        let end = self.first + self.row.len() as u64;
        if tag >= end && self.may_have(tag - self.first + 1) {
            self.row.extend((end..tag).map(|_| None));
            self.row.push_back(Some(value));
            self.in_row += 1;
        } else if tag < self.first && self.may_have(end - tag) {
            (tag + 1..self.first).for_each(|_| self.row.push_front(None));
            self.row.push_front(Some(value));
            self.first = tag;
            self.in_row += 1;
        } else if let Some(place) = self.place(tag) {
            self.in_row += usize::from(self.row[place].replace(value).is_none());
        } else {
            self.others.insert(tag, value);
        }
    }

    /// Takes one out.
    pub fn remove(&mut self, tag: u64) -> Option<T> {
        let Some(place) = self.place(tag) else {
            return if self.others.is_empty() { None } else { self.others.remove(&tag) };
        };
        let Some(value) = self.row[place].take() else {
            return if self.others.is_empty() { None } else { self.others.remove(&tag) };
        };
        self.in_row -= 1;
        while let Some(None) = self.row.front() {
            self.row.pop_front();
            self.first += 1;
        }
        while let Some(None) = self.row.back() {
            self.row.pop_back();
        }
        Some(value)
    }

    /// Takes out the one with the lowest number.
    pub fn pop_first(&mut self) -> Option<T> {
        let in_row = (!self.row.is_empty()).then_some(self.first);
        let other = self.others.first_key_value().map(|(&tag, _)| tag);
        self.remove(in_row.into_iter().chain(other).min()?)
    }

    /// Returns the one with this number.
    pub fn get(&self, tag: u64) -> Option<&T> {
        let in_row = self.place(tag).and_then(|place| self.row[place].as_ref());
        in_row.or_else(|| if self.others.is_empty() { None } else { self.others.get(&tag) })
    }

    /// Returns whether there is one with this number.
    pub fn contains(&self, tag: u64) -> bool {
        self.get(tag).is_some()
    }

    /// Returns how many there are.
    pub fn len(&self) -> usize {
        self.in_row + self.others.len()
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the row may be as long.
    fn may_have(&self, len: u64) -> bool {
        len <= ROW_LIMIT.max(4 * self.in_row as u64)
    }

    /// Returns where in the row this number is, or would be.
    fn place(&self, tag: u64) -> Option<usize> {
        let place = tag.checked_sub(self.first)?;
        usize::try_from(place).ok().filter(|&place| place < self.row.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64),
        Remove(u64),
        PopFirst,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        // In the row, beside it, and far away.
        let tag = || prop_oneof![8 => 0..40_u64, 2 => 4_080..4_120_u64, 1 => (u64::MAX / 2)..(u64::MAX / 2 + 3)];
        let step = prop_oneof![4 => tag().prop_map(Step::Insert), 3 => tag().prop_map(Step::Remove), 1 => Just(Step::PopFirst)];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        #[test]
        fn it_is_the_map_that_a_tree_is(steps in steps()) {
            let (mut by_tag, mut tree) = (ByTag::default(), BTreeMap::new());
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Insert(tag) => {
                        by_tag.insert(tag, number);
                        tree.insert(tag, number);
                        prop_assert!(by_tag.contains(tag));
                    }
                    Step::Remove(tag) => {
                        prop_assert_eq!(by_tag.contains(tag), tree.contains_key(&tag));
                        prop_assert_eq!(by_tag.remove(tag), tree.remove(&tag));
                    }
                    Step::PopFirst => prop_assert_eq!(by_tag.pop_first(), tree.pop_first().map(|(_, value)| value)),
                }
                prop_assert_eq!((by_tag.len(), by_tag.is_empty()), (tree.len(), tree.is_empty()));
                prop_assert!(by_tag.row.len() as u64 <= ROW_LIMIT, "no more than a thousand are in it");
            }
        }
    }

    #[test]
    fn however_many_are_there_they_are_in_the_row() {
        let mut ends = ByTag::default();
        // Two workers, a lease each.
        for pair in (0..100_000).step_by(512) {
            (pair + 256..pair + 512).chain(pair..pair + 256).for_each(|tag| ends.insert(tag, tag));
        }
        assert!(ends.others.is_empty() && ends.len() > 99_000);
        assert_eq!((0..ends.len() as u64).find(|&tag| ends.remove(tag) != Some(tag)), None);
    }

    #[test]
    fn what_nobody_asks_for_does_not_make_the_row_long() {
        let mut ends = ByTag::default();
        ends.insert(0, 0);
        for tag in 1..100_000 {
            ends.insert(tag, tag);
            assert_eq!(ends.remove(tag), Some(tag));
        }
        assert_eq!((ends.row.len(), ends.len(), ends.pop_first()), (1, 1, Some(0)));
    }
}
