//! Changes of traces, numbered, so that a page which connects again learns what it has missed, and how much of that cannot be named any more.

use std::collections::{HashSet, VecDeque};

use serde::Serialize;
use tracer_trace::{Changed, TraceId};

/// Changes that are kept.
const KEPT: usize = 4096;
/// The most traces that one event names.
const NAMED: usize = 20;

/// The last changes.
#[derive(Debug)]
pub(super) struct Changes {
    /// Number of the newest change.
    revision: u64,
    kept: VecDeque<TraceId>,
}

/// Changes after a revision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Since {
    /// Number of the newest change; answers have it too.
    pub(super) revision: u64,
    /// Traces that have changed, the newest change first.
    pub(super) traces: Vec<TraceId>,
    /// Number of changes of traces that are not named here.
    pub(super) left_out: u64,
}

impl Changes {
    /// Makes a list without changes. Numbers begin with the time, so that they are greater than those of a server that was there before.
    pub(super) fn new(now_unix_nano: u64) -> Changes {
        // Microseconds: less than 2^53 until the year 2255, and faster than changes come.
        Changes { revision: now_unix_nano / 1000, kept: VecDeque::new() }
    }

    pub(super) const fn revision(&self) -> u64 {
        self.revision
    }

    /// Adds changes.
    pub(super) fn add(&mut self, changed: Changed) {
        match changed {
            Changed::All => {
                self.kept.clear();
                self.revision += 1;
            }
            Changed::Traces(traces) => {
                self.revision += traces.len() as u64;
                let surplus = (self.kept.len() + traces.len()).saturating_sub(KEPT);
                self.kept.extend(traces);
                self.kept.drain(..surplus);
            }
        }
    }

    /// Returns what has changed after a revision, or that nothing is known to have.
    pub(super) fn since(&self, revision: Option<u64>) -> Since {
        let missed = self.revision.saturating_sub(revision.unwrap_or(self.revision));
        let known = usize::try_from(missed).unwrap_or(usize::MAX).min(self.kept.len());
        let (mut named, mut seen, mut left_out) = (Vec::new(), HashSet::new(), missed - known as u64);
        for id in self.kept.iter().rev().take(known) {
            if seen.contains(id) {
                continue;
            }
            if named.len() < NAMED {
                named.push(*id);
                seen.insert(*id);
            } else {
                left_out += 1;
            }
        }
        Since { revision: self.revision, traces: named, left_out }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traces(ids: impl IntoIterator<Item = u128>) -> Changed {
        Changed::Traces(ids.into_iter().map(TraceId).collect())
    }

    #[test]
    fn one_who_comes_again_learns_what_it_missed_and_how_much_is_not_named() {
        let mut changes = Changes::new(5_000);
        assert_eq!(changes.since(None), Since { revision: 5, traces: Vec::new(), left_out: 0 });
        changes.add(traces([1, 2]));
        changes.add(traces([1]));
        assert_eq!(changes.since(Some(5)), Since { revision: 8, traces: vec![TraceId(1), TraceId(2)], left_out: 0 });
        assert_eq!(changes.since(Some(7)).traces, [TraceId(1)]);
        assert_eq!(changes.since(Some(8)), Since { revision: 8, traces: Vec::new(), left_out: 0 });
        assert_eq!(changes.since(Some(99)).left_out, 0, "of a time to come nothing is missed");
        changes.add(traces(10..35));
        let since = changes.since(Some(8));
        assert_eq!((since.traces.len(), since.traces[0], since.left_out), (NAMED, TraceId(34), 5));
        changes.add(traces(100..100 + KEPT as u128));
        let since = changes.since(Some(5));
        assert_eq!((since.traces.len(), since.left_out), (NAMED, 28 + (KEPT - NAMED) as u64));
        changes.add(Changed::All);
        let since = changes.since(Some(changes.revision() - 1));
        assert_eq!((since.traces.len(), since.left_out), (0, 1));
    }
}
