//! Folding of equal siblings: many spans of one name below one parent take one line, with their count and figures.

use std::collections::HashMap;

use super::super::{CriticalPath, Item, Kind, Span, Status, StretchKind, Trace, Tree};

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
    Many(Vec<usize>),
}

/// Returns a line for each node of the tree.
pub(super) fn unfolded(tree: &Tree) -> Vec<Row> {
    let row = |node: &super::super::Node| Row {
        depth: node.depth,
        is_last: node.is_last,
        has_children: false,
        content: Content::One(node.item),
    };
    with_children(tree.nodes.iter().map(row).collect())
}

/// Returns the lines of the tree in which siblings of the same name are folded into one line, with what is below them.
///
/// A sibling keeps its line if a span in its subtree failed, runs or has no end, or if a considerable part of the critical path is there.
pub(super) fn folded(trace: &Trace, tree: &Tree, path: Option<&CriticalPath>) -> Vec<Row> {
    let nodes = &tree.nodes;
    let (children, keeps_line) = (children(tree), keepers(trace, tree, path));
    let span_of = |node: usize| match nodes[node].item {
        Item::Span(index) | Item::Circle(index) => Some(index),
        Item::Missing(_) => None,
    };
    let mut rows = Vec::new();
    let mut stack: Vec<(usize, bool, Work)> = Vec::new();
    let roots: Vec<usize> = (0..nodes.len()).filter(|node| nodes[*node].depth == 0).collect();
    stack.extend(roots.into_iter().rev().map(|node| (0, true, Work::One(node))));
    while let Some((depth, is_last, work)) = stack.pop() {
        let (content, below, fold_from) = match work {
            Work::One(node) => (Content::One(nodes[node].item), children[node].clone(), FOLD_FROM),
            Work::Many(members) => {
                let below = members.iter().flat_map(|node| children[*node].iter().copied()).collect();
                (Content::Many(members.into_iter().filter_map(span_of).collect()), below, 2)
            }
        };
        rows.push(Row { depth, is_last, has_children: false, content });
        let mut foldable: HashMap<(&str, Kind), Vec<usize>> = HashMap::new();
        let key = |node: usize| {
            let span = &trace.spans[span_of(node)?];
            (!keeps_line[node]).then_some((span.name.as_str(), span.kind))
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
    One(usize),
    Many(Vec<usize>),
}

fn with_children(mut rows: Vec<Row>) -> Vec<Row> {
    for at in 1..rows.len() {
        rows[at - 1].has_children = rows[at].depth > rows[at - 1].depth;
    }
    rows
}

/// Returns the children of each node.
fn children(tree: &Tree) -> Vec<Vec<usize>> {
    let mut children = vec![Vec::new(); tree.nodes.len()];
    let mut above: Vec<usize> = Vec::new();
    for (at, node) in tree.nodes.iter().enumerate() {
        above.truncate(node.depth);
        if let Some(&parent) = above.last() {
            children[parent].push(at);
        }
        above.push(at);
    }
    children
}

/// Says for each node whether it has to keep its own line.
fn keepers(trace: &Trace, tree: &Tree, path: Option<&CriticalPath>) -> Vec<bool> {
    let mut on_path_ns = vec![0; trace.spans.len()];
    for stretch in path.iter().flat_map(|path| &path.stretches) {
        if let StretchKind::Span(index) | StretchKind::Queued(index) = stretch.kind {
            on_path_ns[index] += stretch.duration_ns();
        }
    }
    let considerable_ns = (trace.duration_ns() / PATH_PART).max(1);
    let is_special = |span: &Span| span.status == Status::Error || span.end_unix_nano.is_none();
    let own = |item: &Item| match item {
        Item::Span(index) => (is_special(&trace.spans[*index]), on_path_ns[*index]),
        Item::Circle(index) => (true, on_path_ns[*index]),
        Item::Missing(_) => (true, 0_u64),
    };
    let mut figures: Vec<(bool, u64)> = tree.nodes.iter().map(|node| own(&node.item)).collect();
    let mut parents: Vec<Option<usize>> = Vec::with_capacity(tree.nodes.len());
    let mut above: Vec<usize> = Vec::new();
    for (at, node) in tree.nodes.iter().enumerate() {
        above.truncate(node.depth);
        parents.push(above.last().copied());
        above.push(at);
    }
    // A child comes after its parent.
    for at in (0..figures.len()).rev() {
        let (is_kept, path_ns) = figures[at];
        if let Some(parent) = parents[at] {
            figures[parent].0 |= is_kept;
            figures[parent].1 += path_ns;
        }
    }
    figures.into_iter().map(|(is_kept, path_ns)| is_kept || path_ns >= considerable_ns).collect()
}

/// Returns the median (nearest rank) and the longest of the durations.
pub(super) fn p50_and_max(trace: &Trace, spans: &[usize]) -> (u64, u64) {
    let mut durations: Vec<u64> = spans.iter().map(|index| trace.spans[*index].duration_ns()).collect();
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
        let path = CriticalPath::new(trace, &tree);
        let row = |row: Row| match row.content {
            Content::Many(spans) => (row.depth, spans.len(), trace.spans[spans[0]].name.clone()),
            Content::One(Item::Span(index)) => (row.depth, 1, trace.spans[index].name.clone()),
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
