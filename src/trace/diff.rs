//! Two traces beside each other: what runs in one place of both, by the path of names from the root.

use std::cmp::Reverse;

use serde::Serialize;

use super::list::Row;
use super::paths::{PathNode, Paths};
use crate::loaded::Trace;

/// Two traces aligned by path of names, the largest change of own time first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diff {
    /// The trace that is compared with.
    pub before: Row,
    /// The trace that is compared.
    pub after: Row,
    /// The paths that differ in count, errors or time.
    #[serde(rename = "paths")]
    pub rows: Vec<DiffRow>,
    /// Number of paths that were left out because of the limit.
    pub left_out: usize,
}

/// The spans of one path of names in both traces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DiffRow {
    /// The names from the root to these spans.
    pub path: Vec<String>,
    /// Figures of the first trace; none if it has no such span.
    pub before: Option<Side>,
    /// Figures of the second trace; none if it has no such span.
    pub after: Option<Side>,
    /// Own time in the second trace less that in the first, in nanoseconds.
    pub self_change_ns: i64,
}

/// Spans of one path in one trace. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Side {
    /// Number of spans.
    pub count: usize,
    /// Number of them with the status ERROR.
    pub errors: usize,
    /// Their durations together.
    pub total_ns: u64,
    /// The time in which they ran and none of their children did, together.
    pub self_ns: u64,
}

impl Side {
    fn of(node: &PathNode) -> Option<Side> {
        // A parent that was not found stands for no span.
        let PathNode { count, errors, total_ns, self_ns, .. } = *node;
        (count > 0).then_some(Side { count, errors, total_ns, self_ns })
    }
}

impl Diff {
    /// Compares `after` with `before`, and keeps the first `limit` paths or all.
    pub fn new(before: &Trace, after: &Trace, limit: Option<usize>) -> Diff {
        let mut rows = align(&[before], &[after]);
        rows.retain(|row| row.before != row.after);
        rows.sort_by_key(|row| Reverse(row.self_change_ns.unsigned_abs()));
        let paths = rows.len();
        rows.truncate(limit.unwrap_or(usize::MAX));
        Diff { before: Row::new(before), after: Row::new(after), left_out: paths - rows.len(), rows }
    }
}

/// Puts two groups of traces beside each other by path of names, parents before their children. Paths without a span are left out.
pub fn align(before: &[&Trace], after: &[&Trace]) -> Vec<DiffRow> {
    let (left, right) = (Paths::of(before.iter().copied()), Paths::of(after.iter().copied()));
    // Where each node of the first tree is in the second.
    let mut places: Vec<Option<usize>> = Vec::new();
    let mut rows = Vec::new();
    for (at, node) in left.iter() {
        let parent = node.parent().map(|parent| places[parent]);
        let place = match parent {
            None => right.find(None, node.name()),
            Some(None) => None,
            Some(parent) => right.find(parent, node.name()),
        };
        places.push(place);
        rows.extend(DiffRow::new(left.names(at), Side::of(node), place.and_then(|at| Side::of(right.get(at)))));
    }
    let is_in_left: std::collections::HashSet<usize> = places.into_iter().flatten().collect();
    for (at, node) in right.iter().filter(|(at, _)| !is_in_left.contains(at)) {
        rows.extend(DiffRow::new(right.names(at), None, Side::of(node)));
    }
    rows
}

impl DiffRow {
    /// None where neither has a span.
    fn new(path: Vec<&str>, before: Option<Side>, after: Option<Side>) -> Option<DiffRow> {
        if before.is_none() && after.is_none() {
            return None;
        }
        let own = |side: Option<Side>| i64::try_from(side.map_or(0, |side| side.self_ns)).unwrap_or(i64::MAX);
        let path = path.into_iter().map(Into::into).collect();
        Some(DiffRow { path, before, after, self_change_ns: own(after) - own(before) })
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{loaded, span};
    use super::*;

    #[test]
    fn what_runs_in_the_same_place_of_both_is_one_row() {
        let lines = [
            span("job", 1, None, (0, 100)).trace(1),
            span("read", 2, 1, (10, 30)).trace(1),
            span("read", 3, 1, (30, 50)).trace(1),
            span("same", 4, 1, (60, 61)).trace(1),
            span("gone", 5, 1, (70, 75)).trace(1),
            span("job", 11, None, (200, 300)).trace(2),
            span("read", 12, 11, (210, 220)).trace(2).failed("no"),
            span("same", 14, 11, (260, 261)).trace(2),
            span("read", 15, 14, (260, 260)).trace(2),
            span("new", 16, 11, (270, 299)).trace(2),
        ];
        let text: String = lines.iter().map(|line| line.line()).collect();
        let loaded = loaded([("1.json", text.into_bytes())]);
        let diff = Diff::new(&loaded.traces[0], &loaded.traces[1], None);
        let rows: Vec<_> = diff
            .rows
            .iter()
            .map(|row| {
                let counts = [row.before, row.after].map(|side| side.map_or(0, |side| side.count));
                (row.path.join("/"), counts, row.self_change_ns)
            })
            .collect();
        let expected = [
            ("job/read", [2, 1], -30_000),
            ("job/new", [0, 1], 29_000),
            ("job", [1, 1], 6_000),
            ("job/gone", [1, 0], -5_000),
            ("job/same/read", [0, 1], 0),
        ];
        assert_eq!(rows, expected.map(|(path, counts, change)| (path.to_owned(), counts, change)));
        assert_eq!(diff.rows[0].after.map(|side| side.errors), Some(1));
        let first = Diff::new(&loaded.traces[0], &loaded.traces[1], Some(2));
        assert_eq!((first.rows.len(), first.left_out), (2, 3));
        assert_eq!(Diff::new(&loaded.traces[0], &loaded.traces[0], None).rows, []);
    }
}
