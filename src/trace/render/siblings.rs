//! Folding of equal siblings: many spans of one name below one parent take one line, with their count and figures.

use std::collections::HashMap;

use super::super::path::PathFigures;
use crate::loaded::Trace;
use crate::span::{Kind, Span, Status};
use crate::tree::{Item, Tree};

/// From so many siblings of one name on, they are folded.
const FOLD_FROM: usize = 10;
/// A sibling with this part of the trace on the critical path keeps its line: one of so many.
const PATH_PART: u64 = 10;

/// A line of the tree as it is shown.
pub(super) struct Row {
    /// Depth below a root; 0 for a root.
    pub(super) depth: usize,
    /// True if it is the last of its siblings.
    pub(super) is_last: bool,
    /// True if the next line is below it.
    pub(super) has_children: bool,
    pub(super) content: Content,
}

/// Content of a [`Row`].
pub(super) enum Content {
    One(Item),
    /// Indexes of spans with the same name, by start time.
    Many(Vec<u32>),
}

/// Returns a line for each node of the tree.
pub(super) fn unfolded(tree: &Tree) -> Vec<Row> {
    let row = |node: crate::tree::Node| Row {
        depth: node.depth,
        is_last: node.is_last,
        has_children: false,
        content: Content::One(node.item),
    };
    with_children(tree.nodes().map(row).collect())
}

/// Returns the lines of the tree in which siblings of the same name are folded into one line, with what is below them.
///
/// A sibling keeps its line if a span in its subtree failed, runs or has no end, or if a considerable part of the critical path is there.
pub(super) fn folded(trace: &Trace, tree: &Tree, path: Option<&PathFigures>) -> Vec<Row> {
    let (sizes, keeps_line) = (tree.sizes(), keepers(trace, tree, path));
    let after = |node: u32| node + sizes[node as usize];
    let children = |node: u32| {
        let is_one = move |child: &u32| *child < after(node);
        std::iter::successors(Some(node + 1).filter(is_one), move |child| Some(after(*child)).filter(is_one))
    };
    let span_of = |node: u32| match tree.node(node as usize).item {
        Item::Span(index) | Item::Circle(index) => Some(index),
        Item::Missing(_) => None,
    };
    let mut rows = Vec::new();
    let mut stack: Vec<(usize, bool, Work)> = Vec::new();
    let is_root = |root: &u32| (*root as usize) < tree.len();
    let roots = std::iter::successors(Some(0).filter(is_root), |root| Some(after(*root)).filter(is_root));
    stack.extend(roots.map(|node| (0, true, Work::One(node))));
    stack.reverse();
    while let Some((depth, is_last, work)) = stack.pop() {
        let (content, below, fold_from) = match work {
            Work::One(node) => {
                (Content::One(tree.node(node as usize).item), children(node).collect::<Vec<u32>>(), FOLD_FROM)
            }
            Work::Many(members) => {
                let below = members.iter().flat_map(|node| children(*node)).collect();
                (Content::Many(members.into_iter().filter_map(span_of).map(|span| span as u32).collect()), below, 2)
            }
        };
        rows.push(Row { depth, is_last, has_children: false, content });
        let mut foldable: HashMap<(&str, Kind), Vec<u32>> = HashMap::new();
        let key = |node: u32| {
            let span = &trace.spans[span_of(node)?];
            (!keeps_line[node as usize]).then_some((span.name(), span.kind))
        };
        for &node in &below {
            if let Some(key) = key(node) {
                foldable.entry(key).or_default().push(node);
            }
        }
        let mut lines = Vec::new();
        for node in below {
            let Some(members) = key(node).and_then(|key| foldable.get_mut(&key)) else {
                lines.push(Work::One(node));
                continue;
            };
            match members.len() {
                // They are in the line of the first of them.
                0 => {}
                count if count < fold_from => lines.push(Work::One(node)),
                _ => lines.push(Work::Many(std::mem::take(members))),
            }
        }
        let last = lines.len().saturating_sub(1);
        stack.extend(lines.into_iter().enumerate().rev().map(|(at, work)| (depth + 1, at == last, work)));
    }
    with_children(rows)
}

/// Work that is left: nodes of the tree to be shown.
enum Work {
    One(u32),
    Many(Vec<u32>),
}

fn with_children(mut rows: Vec<Row>) -> Vec<Row> {
    for at in 1..rows.len() {
        rows[at - 1].has_children = rows[at].depth > rows[at - 1].depth;
    }
    rows
}

/// Says for each node whether it has to keep its own line.
fn keepers(trace: &Trace, tree: &Tree, path: Option<&PathFigures>) -> Vec<bool> {
    let considerable_ns = (trace.duration_ns() / PATH_PART).max(1);
    let is_special = |span: &Span| span.status == Status::Error || span.end_unix_nano().is_none();
    let own = |item: Item| match item {
        Item::Span(index) => (is_special(&trace.spans[index]), path.map_or(0, |path| path.of_spans_ns[index])),
        Item::Circle(_) | Item::Missing(_) => (true, 0),
    };
    let mut is_kept = vec![false; tree.len()];
    let mut above: Vec<(usize, bool, u64)> = Vec::new();
    for at in 0..=tree.len() {
        let node = (at < tree.len()).then(|| tree.node(at));
        while above.len() > node.map_or(0, |node| node.depth) {
            let Some((done, is_special, path_ns)) = above.pop() else { break };
            is_kept[done] = is_special || path_ns >= considerable_ns;
            if let Some((_, of_parent, path_ns_of_parent)) = above.last_mut() {
                *of_parent |= is_special;
                *path_ns_of_parent += path_ns;
            }
        }
        if let Some(node) = node {
            let (is_special, path_ns) = own(node.item);
            above.push((at, is_special, path_ns));
        }
    }
    is_kept
}

/// Returns the median (nearest rank) and the longest of the durations.
pub(super) fn p50_and_max(trace: &Trace, spans: &[u32]) -> (u64, u64) {
    let mut durations: Vec<u64> = spans.iter().map(|index| trace.spans[*index as usize].duration_ns()).collect();
    durations.sort_unstable();
    let median = durations.get(durations.len().div_ceil(2).saturating_sub(1)).copied().unwrap_or(0);
    (median, durations.last().copied().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::super::super::fixture::{SpanText, span, trace};
    use super::*;

    /// Returns a map with `tasks` tasks, each with a submission, an attempt and a step; `fail` fails, `slow` lasts as long as all others.
    fn map(tasks: u64, fail: Option<u64>, slow: Option<u64>) -> Trace {
        let mut spans = vec![(1, span("tracer job", 1, None, (0, 1000 * tasks)))];
        for task in 0..tasks {
            let (id, start) = (10 + 10 * task, task * 10);
            let end = if slow == Some(task) { 1000 * tasks - 10 } else { start + 9 };
            let attempt = span("m.f tracer.remote_worker", id + 1, id, (start + 2, end)).kind("CONSUMER");
            let attempt = if fail == Some(task) { attempt.failed("no") } else { attempt };
            spans.push((1, span("m.f tracer.remote", id, 1, (start, start + 1)).kind("PRODUCER")));
            spans.push((2, attempt));
            spans.push((2, span("step", id + 2, id + 1, (start + 3, start + 4))));
        }
        trace(&spans)
    }

    fn shape(trace: &Trace) -> Vec<(usize, usize, String)> {
        let tree = Tree::new(trace);
        let path = PathFigures::new(trace, &tree);
        let row = |row: Row| match row.content {
            Content::Many(spans) => (row.depth, spans.len(), trace.spans[spans[0] as usize].name().to_string()),
            Content::One(Item::Span(index)) => (row.depth, 1, trace.spans[index].name().to_string()),
            Content::One(_) => (row.depth, 1, "?".into()),
        };
        folded(trace, &tree, Some(&path)).into_iter().map(row).collect()
    }

    fn lines(expected: &[(usize, usize, &str)]) -> Vec<(usize, usize, String)> {
        expected.iter().map(|(depth, count, name)| (*depth, *count, (*name).to_owned())).collect()
    }

    #[test]
    fn a_map_takes_a_line_for_each_name_and_what_failed_or_was_waited_for_keeps_its_own() {
        let (job, remote, worker) = ("tracer job", "m.f tracer.remote", "m.f tracer.remote_worker");
        assert_eq!(
            shape(&map(100, None, None)),
            lines(&[(0, 1, job), (1, 100, remote), (2, 100, worker), (3, 100, "step")])
        );
        assert_eq!(
            shape(&map(100, Some(50), None)),
            lines(&[
                (0, 1, job),
                (1, 99, remote),
                (2, 99, worker),
                (3, 99, "step"),
                (1, 1, remote),
                (2, 1, worker),
                (3, 1, "step")
            ])
        );
        assert_eq!(
            shape(&map(100, None, Some(0))),
            lines(&[
                (0, 1, job),
                (1, 1, remote),
                (2, 1, worker),
                (3, 1, "step"),
                (1, 99, remote),
                (2, 99, worker),
                (3, 99, "step")
            ])
        );
        // Few are not folded.
        assert_eq!(shape(&map(9, None, None)).len(), 1 + 9 * 3);
    }

    #[test]
    fn every_span_is_in_one_line() {
        for tasks in [1, 9, 10, 11, 60] {
            for fail in [None, Some(0), Some(tasks - 1)] {
                let trace = map(tasks, fail, Some(tasks / 2));
                let shown: usize = shape(&trace).iter().map(|(_, count, _)| count).sum();
                assert_eq!(shown, trace.spans.len());
            }
        }
    }

    #[test]
    fn a_long_chain_is_folded_without_recursion() {
        let chain: Vec<(u32, SpanText)> =
            (1..5_000).map(|id| (1, span("level", id, id.checked_sub(1).filter(|id| *id > 0), (id, 9_000)))).collect();
        assert_eq!(shape(&trace(&chain)).len(), 4_999);
    }

    #[test]
    fn the_median_is_a_duration_that_there_was() {
        let spans: Vec<(u32, SpanText)> =
            [4, 1, 3, 2].into_iter().map(|id: u64| (1, span("s", id, None, (0, id)))).collect();
        let trace = trace(&spans);
        assert_eq!(p50_and_max(&trace, &[0, 1, 2, 3]), (2_000, 4_000));
        assert_eq!(p50_and_max(&trace, &[]), (0, 0));
    }
}
