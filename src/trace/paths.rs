//! Figures of spans by the path of names from the root: what runs in the same place of several traces is one.

use std::collections::HashMap;

use super::stats::self_times;
use crate::loaded::Trace;
use crate::span::Status;
use crate::tree::{Item, Tree};

/// Stands in a path for a parent that was not found.
const MISSING: &str = "(missing)";

/// A tree of names. Each node stands for all spans whose ancestors have the names above it.
#[derive(Debug, Default)]
pub(super) struct Paths {
    nodes: Vec<PathNode>,
    index: HashMap<(Option<usize>, String), usize>,
}

/// The spans of one path.
#[derive(Debug)]
pub(super) struct PathNode {
    parent: Option<usize>,
    name: String,
    /// Number of spans.
    pub(super) count: usize,
    /// Number of them with the status ERROR.
    pub(super) errors: usize,
    /// Their durations together.
    pub(super) total_ns: u64,
    /// The time in which they ran and none of their children did, together.
    pub(super) self_ns: u64,
}

impl Paths {
    /// Puts the spans of the traces together.
    pub(super) fn of<'a>(traces: impl IntoIterator<Item = &'a Trace>) -> Paths {
        let mut paths = Paths::default();
        traces.into_iter().for_each(|trace| paths.add(trace));
        paths
    }

    /// Adds the spans of a trace.
    pub(super) fn add(&mut self, trace: &Trace) {
        let self_times = self_times(trace);
        // The node of each ancestor, by depth.
        let mut above: Vec<usize> = Vec::new();
        for node in Tree::new(trace).nodes() {
            above.truncate(node.depth);
            let parent = above.last().copied();
            let at = match node.item {
                Item::Missing(_) => self.node(parent, MISSING),
                Item::Span(index) | Item::Circle(index) => {
                    let span = &trace.spans[index];
                    let at = self.node(parent, span.name());
                    let figures = &mut self.nodes[at];
                    figures.count += 1;
                    figures.errors += usize::from(span.status == Status::Error);
                    figures.total_ns = figures.total_ns.saturating_add(span.duration_ns());
                    figures.self_ns = figures.self_ns.saturating_add(self_times[index]);
                    at
                }
            };
            above.push(at);
        }
    }

    fn node(&mut self, parent: Option<usize>, name: &str) -> usize {
        let next = self.nodes.len();
        let at = *self.index.entry((parent, name.to_owned())).or_insert(next);
        if at == next {
            self.nodes.push(PathNode { parent, name: name.to_owned(), count: 0, errors: 0, total_ns: 0, self_ns: 0 });
        }
        at
    }

    /// Returns all nodes with their places; parents before their children.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &PathNode)> {
        self.nodes.iter().enumerate()
    }

    /// Returns the node below `parent` that has this name.
    pub(super) fn find(&self, parent: Option<usize>, name: &str) -> Option<usize> {
        self.index.get(&(parent, name.to_owned())).copied()
    }

    pub(super) fn get(&self, at: usize) -> &PathNode {
        &self.nodes[at]
    }

    /// Returns the names from the root to the node.
    pub(super) fn names(&self, at: usize) -> Vec<&str> {
        let mut names: Vec<&str> = std::iter::successors(Some(at), |at| self.nodes[*at].parent)
            .map(|at| self.nodes[at].name.as_str())
            .collect();
        names.reverse();
        names
    }
}

impl PathNode {
    pub(super) fn parent(&self) -> Option<usize> {
        self.parent
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }
}
