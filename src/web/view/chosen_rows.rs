//! Rows of a large trace that one answer has: of many equal siblings the first ones, with all that failed or runs, and with what is asked for.

use std::collections::{HashMap, HashSet};

use serde::Serialize;
use tracer_trace::{Item, Kind, SpanId, Status, Trace, Tree};

/// Rows from which on some are left out, if the request does not say how many.
pub(super) const DEFAULT_ROWS: usize = 20_000;
/// The most rows of an answer.
pub(super) const MOST_ROWS: usize = 100_000;
/// Spans that a text finds which have their rows.
const FOUND: usize = 1000;

/// Rows that are wanted.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shown {
    /// About the most that there may be.
    pub(super) rows: usize,
    /// Spans that have their rows, with all that is above them.
    pub(super) spans: Vec<SpanId>,
}

/// Siblings of one name and kind of which only the first have rows.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Cut {
    /// Row of the first of them.
    row: usize,
    count: usize,
    median_ns: u64,
    longest_ns: u64,
}

/// Choice of the nodes of a tree.
pub(super) struct Choice {
    /// Says of each node whether it has a row.
    pub(super) has_row: Vec<bool>,
    pub(super) cuts: Vec<Cut>,
}

/// A parent, and a name and a kind of children of it.
type Siblings<'a> = (u32, &'a str, Kind);

/// Chooses the rows of a trace; all where they are not too many.
pub(super) fn choose(trace: &Trace, tree: &Tree, shown: &Shown) -> Choice {
    if tree.len() <= shown.rows {
        return Choice { has_row: vec![true; tree.len()], cuts: Vec::new() };
    }
    let wanted: HashSet<SpanId> = shown.spans.iter().take(FOUND).copied().collect();
    let members = (shown.rows / 100).max(1);
    let mut choice = Choice { has_row: vec![false; tree.len()], cuts: Vec::new() };
    let is_wanted = with_what_is_above(tree, |item| wanted.contains(&span_id(trace, item)));
    let is_special = with_what_is_above(tree, |item| match item {
        Item::Span(index) => trace.spans[index].status == Status::Error || trace.spans[index].is_running(),
        Item::Missing(_) | Item::Circle(_) => true,
    });
    let mut siblings: HashMap<Siblings<'_>, Vec<u32>> = HashMap::new();
    let (mut above, mut rows): (Vec<u32>, usize) = (Vec::new(), 0);
    for (at, node) in tree.nodes().enumerate() {
        above.truncate(node.depth);
        let parent = above.last().copied();
        above.push(at as u32);
        let is_below_row = parent.is_none_or(|parent| choice.has_row[parent as usize]);
        let is_first = match (parent, node.item) {
            (Some(parent), Item::Span(index)) if is_below_row => {
                let span = &trace.spans[index];
                let all = siblings.entry((parent, span.name(), span.kind)).or_default();
                all.push(at as u32);
                all.len() <= members
            }
            _ => is_below_row,
        };
        let has_room = rows < shown.rows && is_below_row && (is_first || is_special[at]);
        choice.has_row[at] = has_room || is_wanted[at];
        rows += usize::from(choice.has_row[at]);
    }
    choice.cuts = cuts(trace, tree, &choice.has_row, siblings);
    choice
}

/// Returns the siblings of whom some have no row, and some have.
fn cuts(trace: &Trace, tree: &Tree, has_row: &[bool], siblings: HashMap<Siblings<'_>, Vec<u32>>) -> Vec<Cut> {
    let mut row_of_first: HashMap<u32, Vec<u64>> = HashMap::new();
    for all in siblings.into_values().filter(|all| all.iter().any(|&at| !has_row[at as usize])) {
        let Some(first) = all.iter().copied().find(|&at| has_row[at as usize]) else { continue };
        let duration = |at: u32| match tree.node(at as usize).item {
            Item::Span(index) => trace.spans[index].duration_ns(),
            Item::Missing(_) | Item::Circle(_) => 0,
        };
        row_of_first.insert(first, all.into_iter().map(duration).collect());
    }
    let mut cuts = Vec::new();
    for (row, (at, _)) in has_row.iter().enumerate().filter(|(_, has_row)| **has_row).enumerate() {
        if let Some(mut durations) = row_of_first.remove(&(at as u32)) {
            durations.sort_unstable();
            let (count, longest_ns) = (durations.len(), durations.last().copied().unwrap_or(0));
            cuts.push(Cut { row, count, median_ns: durations[count.div_ceil(2) - 1], longest_ns });
        }
    }
    cuts
}

/// Marks the nodes that are meant, with all that is above them.
fn with_what_is_above(tree: &Tree, is_meant: impl Fn(Item) -> bool) -> Vec<bool> {
    let mut marked = vec![false; tree.len()];
    // How many of the nodes above the present one are marked, from the root on.
    let (mut above, mut known): (Vec<u32>, usize) = (Vec::new(), 0);
    for (at, node) in tree.nodes().enumerate() {
        above.truncate(node.depth);
        known = known.min(node.depth);
        above.push(at as u32);
        if is_meant(node.item) {
            above[known..].iter().for_each(|&at| marked[at as usize] = true);
            known = above.len();
        }
    }
    marked
}

fn span_id(trace: &Trace, item: Item) -> SpanId {
    match item {
        Item::Span(index) | Item::Circle(index) => trace.spans[index].span_id,
        Item::Missing(id) => id,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A span: its name, its id, its parent, and whether it failed. It takes as many seconds as its id says.
    type Line<'a> = (&'a str, u64, Option<u64>, bool);

    fn trace(lines: &[Line<'_>]) -> Trace {
        let folder = tempfile::tempdir().unwrap();
        let line = |&(name, id, parent, has_failed): &Line<'_>| {
            let span = json!({
                "name": name,
                "context": {"trace_id": "0x4bf92f3577b34da6a3ce929d0e0e4736", "span_id": format!("0x{id:016x}"), "trace_state": "[]"},
                "kind": "SpanKind.INTERNAL",
                "parent_id": parent.map(|id| format!("0x{id:016x}")),
                "start_time": "2026-11-05T12:00:00.000000Z",
                "end_time": format!("2026-11-05T12:{:02}:{:02}.000000Z", id / 60, id % 60),
                "status": {"status_code": if has_failed { "ERROR" } else { "UNSET" }},
                "attributes": {}, "events": [], "links": [],
                "resource": {"attributes": {}, "schema_url": ""},
            });
            format!("{span}\n")
        };
        std::fs::write(folder.path().join("7.json"), lines.iter().map(line).collect::<String>()).unwrap();
        tracer_trace::load(folder.path()).unwrap().traces.remove(0)
    }

    /// Returns the ids of the spans that have rows, sorted, and the siblings of which some have none.
    fn rows(trace: &Trace, rows: usize, spans: &[u64]) -> (Vec<u64>, Vec<Cut>) {
        let tree = Tree::new(trace);
        let spans = spans.iter().map(|id| format!("{id:016x}").parse().unwrap()).collect();
        let Choice { has_row, cuts } = choose(trace, &tree, &Shown { rows, spans });
        let ids = tree.nodes().zip(has_row).filter(|(_, has_row)| *has_row);
        let id = |item| u64::from_str_radix(&span_id(trace, item).to_string(), 16).unwrap();
        let mut ids: Vec<u64> = ids.map(|(node, _)| id(node.item)).collect();
        ids.sort_unstable();
        (ids, cuts)
    }

    #[test]
    fn of_many_equal_spans_the_first_have_rows_with_those_that_matter() {
        let mut lines = vec![("job", 1, None, false), ("other", 2, Some(1), false)];
        lines.extend((100..400).map(|id| ("read", id, Some(1), id == 390)));
        // One has something below it that failed.
        lines.push(("wait", 400, Some(380), true));
        let trace = trace(&lines);
        let (all, cuts) = rows(&trace, 303, &[]);
        assert_eq!((all.len(), cuts), (303, Vec::new()));
        let (some, cuts) = rows(&trace, 300, &[]);
        assert_eq!(some, [1, 2, 100, 101, 102, 380, 390, 400]);
        let [Cut { row, count, median_ns, longest_ns }] = cuts[..] else { panic!("{cuts:?}") };
        assert_eq!((row, count, median_ns, longest_ns), (2, 300, 249_000_000_000, 399_000_000_000));
        let (some, _) = rows(&trace, 300, &[333]);
        assert_eq!(some, [1, 2, 100, 101, 102, 333, 380, 390, 400]);
    }

    #[test]
    fn a_trace_of_different_spans_ends_where_there_is_no_more_room() {
        let names: Vec<String> = (2..100).map(|id| format!("step {id}")).collect();
        let mut lines = vec![("job", 1, None, false)];
        lines.extend((2..).zip(&names).map(|(id, name)| (name.as_str(), id, Some(id - 1), true)));
        let trace = trace(&lines);
        assert_eq!(rows(&trace, 10, &[]).0, (1..=10).collect::<Vec<_>>());
        assert_eq!(rows(&trace, 10, &[50]).0, (1..=50).collect::<Vec<_>>(), "with all that is above it");
    }
}
