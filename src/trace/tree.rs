//! Tree of a trace's spans, by their parents.

use std::collections::HashMap;

use crate::by_id::ById;
use crate::loaded::Trace;
use crate::span::{Span, SpanId};

/// The spans of a trace, every parent before its children, siblings by start time. Every span of the trace is in it once. It takes eight bytes for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    nodes: Vec<PackedNode>,
    /// Parents that are not among the spans.
    missing: Vec<SpanId>,
}

/// A [`Node`] in eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PackedNode {
    /// The depth, and in the lowest bit whether it is the last of its siblings.
    depth: u32,
    /// The index of a span, or of a missing parent, with what it is in the two highest bits.
    item: u32,
}

const MISSING: u32 = 1 << 31;
const CIRCLE: u32 = 1 << 30;
/// Stands for no span.
const NONE: u32 = u32::MAX;

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
        let parents = parents(spans);
        let mut tree = Tree { nodes: Vec::with_capacity(spans.len()), missing: Vec::new() };
        let mut missing: HashMap<SpanId, usize> = HashMap::new();
        // The first child of each span and of each missing parent, and the next sibling of each span. Spans are sorted by start time, so every list of
        // children is as well, and so are the roots.
        let mut roots: Vec<u32> = Vec::new();
        for (index, span) in spans.iter().enumerate() {
            match span.parent_id() {
                None => roots.push(index as u32),
                Some(id) if parents[index] == NONE => {
                    missing.entry(id).or_insert_with(|| {
                        roots.push(tree.missing.len() as u32 | MISSING);
                        tree.missing.push(id);
                        tree.missing.len() - 1
                    });
                }
                Some(_) => {}
            }
        }
        let (mut below, mut below_missing) = (vec![NONE; spans.len()], vec![NONE; tree.missing.len()]);
        let mut next = vec![NONE; spans.len()];
        for (index, span) in spans.iter().enumerate().rev() {
            let Some(id) = span.parent_id() else { continue };
            let first = match parents[index] {
                NONE => &mut below_missing[missing[&id]],
                parent => &mut below[parent as usize],
            };
            next[index] = std::mem::replace(first, index as u32);
        }
        let mut is_placed = vec![false; spans.len()];
        let place = |root: u32, tree: &mut Tree, is_placed: &mut Vec<bool>| {
            // Only the start of a circle is met again.
            let unplaced = |mut index: u32, is_placed: &[bool]| {
                while index != NONE && is_placed[index as usize] {
                    index = next[index as usize];
                }
                index
            };
            tree.nodes.push(PackedNode { depth: 1, item: root });
            let first = if root & MISSING != 0 {
                below_missing[(root & !MISSING) as usize]
            } else {
                is_placed[(root & !CIRCLE) as usize] = true;
                below[(root & !CIRCLE) as usize]
            };
            // The next node at each depth. A stack and no recursion: a chain may be as long as the file.
            let mut stack = vec![unplaced(first, is_placed)];
            while let Some(at) = stack.last_mut() {
                if *at == NONE {
                    stack.pop();
                    continue;
                }
                let index = *at as usize;
                *at = unplaced(next[index], is_placed);
                let is_last = u32::from(*at == NONE);
                is_placed[index] = true;
                tree.nodes.push(PackedNode { depth: (stack.len() as u32) << 1 | is_last, item: index as u32 });
                stack.push(unplaced(below[index], is_placed));
            }
        };
        for root in roots {
            place(root, &mut tree, &mut is_placed);
        }
        // What no root leads to is a circle or hangs on one.
        let mut visited_from = Vec::new();
        for index in 0..spans.len() {
            if !is_placed[index] {
                visited_from.resize(spans.len(), NONE);
                let start = circle_above(index as u32, &parents, &mut visited_from);
                place(start | CIRCLE, &mut tree, &mut is_placed);
            }
        }
        tree
    }

    /// Returns the number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns whether there is no node.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns a node, in the order in which they are shown.
    pub fn node(&self, at: usize) -> Node {
        let PackedNode { depth, item } = self.nodes[at];
        let item = match item {
            item if item & MISSING != 0 => Item::Missing(self.missing[(item & !MISSING) as usize]),
            item if item & CIRCLE != 0 => Item::Circle((item & !CIRCLE) as usize),
            item => Item::Span(item as usize),
        };
        Node { depth: (depth >> 1) as usize, is_last: depth & 1 != 0, item }
    }

    /// Returns the nodes in the order in which they are shown.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = Node> + ExactSizeIterator {
        (0..self.nodes.len()).map(|at| self.node(at))
    }

    /// Returns the parents that are not among the spans.
    pub fn missing(&self) -> impl Iterator<Item = SpanId> {
        self.missing.iter().copied()
    }

    /// Returns how many nodes the subtree of each has.
    pub(super) fn sizes(&self) -> Vec<u32> {
        let mut sizes = vec![1; self.nodes.len()];
        let mut above: Vec<u32> = Vec::new();
        for at in 0..=self.nodes.len() {
            let depth = self.nodes.get(at).map_or(0, |node| (node.depth >> 1) as usize);
            while above.len() > depth {
                let done = above.pop().unwrap_or_default() as usize;
                sizes[done] = (at - done) as u32;
            }
            above.push(at as u32);
        }
        sizes
    }
}

/// Returns the place of each span's parent.
fn parents(spans: &[Span]) -> Vec<u32> {
    let by_id = ById::new(spans);
    spans.iter().map(|span| by_id.parent(spans, span).map_or(NONE, |parent| parent as u32)).collect()
}

/// Walks up from `index` to the circle that it is in or hangs on, and returns the member of it that started first.
fn circle_above(index: u32, parents: &[u32], visited_from: &mut [u32]) -> u32 {
    let mut at = index;
    while visited_from[at as usize] != index {
        visited_from[at as usize] = index;
        match parents[at as usize] {
            NONE => return at,
            parent => at = parent,
        }
    }
    let mut earliest = at;
    let mut next = parents[at as usize];
    while next != at && next != NONE {
        earliest = earliest.min(next);
        next = parents[next as usize];
    }
    earliest
}

#[cfg(test)]
mod tests;
