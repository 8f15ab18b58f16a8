//! Places of tasks in a bundle, as a set of bits.

use crate::bundle::BUNDLE_LIMIT;

const WORDS: usize = BUNDLE_LIMIT.div_ceil(64) as usize;

/// A set of places. Those that no bundle has are never in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Places([u64; WORDS]);

/// Returns the word and the bit of a place.
fn bit(place: u32) -> Option<(usize, u64)> {
    (place < BUNDLE_LIMIT).then(|| ((place / 64) as usize, 1 << (place % 64)))
}

impl Places {
    pub(super) fn contains(&self, place: u32) -> bool {
        bit(place).is_some_and(|(word, bit)| self.0[word] & bit != 0)
    }

    pub(super) fn insert(&mut self, place: u32) {
        if let Some((word, bit)) = bit(place) {
            self.0[word] |= bit;
        }
    }

    pub(super) fn remove(&mut self, place: u32) {
        if let Some((word, bit)) = bit(place) {
            self.0[word] &= !bit;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Returns the last place.
    pub(super) fn last(&self) -> Option<u32> {
        let (number, word) = self.0.iter().enumerate().rfind(|(_, word)| **word != 0)?;
        Some(number as u32 * 64 + word.ilog2())
    }

    /// Returns the places in their order.
    pub(super) fn iter(self) -> impl Iterator<Item = u32> {
        let of_word = |(number, mut word): (u32, u64)| {
            std::iter::from_fn(move || {
                let bit = (word != 0).then(|| word.trailing_zeros())?;
                word &= word - 1;
                Some(number * 64 + bit)
            })
        };
        (0..).zip(self.0).flat_map(of_word)
    }

    /// Returns the places in their order, as first ones and numbers of those in a row.
    pub(super) fn runs(self) -> impl Iterator<Item = (u32, u32)> {
        let mut places = self.iter().peekable();
        std::iter::from_fn(move || {
            let first = places.next()?;
            let mut count = 1;
            while places.next_if_eq(&(first + count)).is_some() {
                count += 1;
            }
            Some((first, count))
        })
    }
}

impl FromIterator<u32> for Places {
    fn from_iter<I: IntoIterator<Item = u32>>(places: I) -> Places {
        let mut all = Places::default();
        places.into_iter().for_each(|place| all.insert(place));
        all
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn they_are_a_set_of_what_a_bundle_may_have(steps in prop::collection::vec((any::<bool>(), 0..BUNDLE_LIMIT + 9), 0..900)) {
            let (mut places, mut expected) = (Places::default(), BTreeSet::new());
            for (is_in, place) in steps {
                match is_in {
                    true if place < BUNDLE_LIMIT => (places.insert(place), expected.insert(place)).0,
                    true => places.insert(place),
                    false => (places.remove(place), expected.remove(&place)).0,
                }
                prop_assert_eq!(places.contains(place), expected.contains(&place));
                prop_assert_eq!((places.len(), places.is_empty()), (expected.len(), expected.is_empty()));
            }
            prop_assert!(places.iter().eq(expected.iter().copied()));
            prop_assert_eq!(places.last(), expected.last().copied());
            let runs: Vec<_> = places.runs().collect();
            prop_assert!(runs.iter().flat_map(|(first, count)| *first..first + count).eq(expected.iter().copied()));
            prop_assert!(runs.windows(2).all(|two| two[0].0 + two[0].1 < two[1].0), "{runs:?}");
            prop_assert_eq!(expected.into_iter().collect::<Places>(), places);
        }
    }
}
