//! Tree of a trace's spans, by their parents.

use std::collections::HashMap;

use super::{SpanId, Trace};

/// The spans of a trace, every parent before its children, siblings by start time. Every span of the trace is in it once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// In the order in which they are shown.
    pub nodes: Vec<Node>,
}

/// One line of a [`Tree`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Depth below a root; 0 for a root.
    pub depth: usize,
    /// True if it is the last of its siblings.
    pub is_last: bool,
    /// The span or the missing parent that it stands for.
    pub item: Item,
}

/// Content of a [`Node`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// The index of a span in [`Trace::spans`].
    Span(usize),
    /// A parent that is not among the spans. It is a root.
    Missing(SpanId),
    /// The index of a span that is its own ancestor; the circle is cut above it. It is a root.
    Circle(usize),
}

impl Tree {
    /// Builds the tree of a trace.
    pub fn new(trace: &Trace) -> Tree {
        let spans = &trace.spans;
        let index_by_id: HashMap<SpanId, usize> =
            spans.iter().enumerate().map(|(index, span)| (span.span_id, index)).collect();
        // Spans are sorted by start time, so every list of children is as well, and so are the roots.
        let mut roots: Vec<Item> = Vec::new();
        let mut children: Vec<Vec<usize>> = vec![Vec::new(); spans.len()];
        let mut children_of_missing: HashMap<SpanId, Vec<usize>> = HashMap::new();
        for (index, span) in spans.iter().enumerate() {
            match span.parent_id.map(|parent_id| (parent_id, index_by_id.get(&parent_id))) {
                None => roots.push(Item::Span(index)),
                Some((_, Some(parent))) => children[*parent].push(index),
                Some((parent_id, None)) => {
                    let siblings = children_of_missing.entry(parent_id).or_default();
                    if siblings.is_empty() {
                        roots.push(Item::Missing(parent_id));
                    }
                    siblings.push(index);
                }
            }
        }
        let mut tree = Tree { nodes: Vec::with_capacity(spans.len() + children_of_missing.len()) };
        let mut is_placed = vec![false; spans.len()];
        let place = |root: Item, tree: &mut Tree, is_placed: &mut Vec<bool>| {
            // A stack and no recursion: a chain may be as long as the file.
            let mut stack = vec![Node { depth: 0, is_last: true, item: root }];
            while let Some(node) = stack.pop() {
                let below = match node.item {
                    Item::Missing(parent_id) => children_of_missing[&parent_id].as_slice(),
                    Item::Span(index) | Item::Circle(index) => {
                        // Only the start of a circle is met again.
                        is_placed[index] = true;
                        children[index].as_slice()
                    }
                };
                tree.nodes.push(node);
                let below: Vec<usize> = below.iter().copied().filter(|index| !is_placed[*index]).collect();
                for (position, index) in below.iter().enumerate().rev() {
                    let is_last = position + 1 == below.len();
                    stack.push(Node { depth: node.depth + 1, is_last, item: Item::Span(*index) });
                }
            }
        };
        for root in roots {
            place(root, &mut tree, &mut is_placed);
        }
        // What no root leads to is a circle or hangs on one.
        let mut visited_from = vec![usize::MAX; spans.len()];
        for index in 0..spans.len() {
            if !is_placed[index] {
                let parent_of = |index: usize| spans[index].parent_id.map(|parent_id| index_by_id[&parent_id]);
                let start = circle_above(index, parent_of, &mut visited_from);
                place(Item::Circle(start), &mut tree, &mut is_placed);
            }
        }
        tree
    }

    /// Returns the parents that are not among the spans.
    pub fn missing(&self) -> impl Iterator<Item = SpanId> {
        self.nodes.iter().filter_map(|node| match node.item {
            Item::Missing(span_id) => Some(span_id),
            Item::Span(_) | Item::Circle(_) => None,
        })
    }
}

/// Walks up from `index` to the circle that it is in or hangs on, and returns the member of it that started first.
fn circle_above(index: usize, parent_of: impl Fn(usize) -> Option<usize>, visited_from: &mut [usize]) -> usize {
    let mut at = index;
    while visited_from[at] != index {
        visited_from[at] = index;
        match parent_of(at) {
            Some(parent) => at = parent,
            None => return at,
        }
    }
    let mut earliest = at;
    let mut next = parent_of(at);
    while let Some(member) = next.filter(|member| *member != at) {
        earliest = earliest.min(member);
        next = parent_of(member);
    }
    earliest
}

#[cfg(test)]
mod tests;
