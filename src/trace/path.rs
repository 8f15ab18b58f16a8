//! Critical path: the spans that the end of a trace waited for, and the times in which nothing ran.
//!
//! The *critical path* is found backwards, from the end of the trace to its start. Of the spans below the one that it has come to, it takes the
//! one that was over last, with all that is below it; then, of those that were over before that one started, again the last; and so
//! on to the span's own start. What overlaps with what was taken is not on the path: it cannot have been waited for. The time in between is
//! the span's own, or that of nobody when it has ended: a task that waits to be run is below a PRODUCER span that has ended.
//!
//! A span is *waiting* while something below it goes on or is yet to come. Time in which every open span waits is *idle*.

use std::cell::OnceCell;

use crate::by_id::ById;
use crate::loaded::Trace;
use crate::span::Kind;
use crate::tree::{Item, Tree};

/// The critical path of a trace: stretches that follow one another from its start to its end. It takes twelve bytes for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CriticalPath {
    /// Start of each stretch, the last one at the front. It is the end of the one before it.
    starts: Vec<u64>,
    kinds: Vec<PackedKind>,
    end_unix_nano: u64,
    /// For each of [`Trace::spans`], whether the path passes through it.
    is_on: Vec<bool>,
}

/// A part of the critical path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Its start, in nanoseconds since the Unix epoch.
    pub start_unix_nano: u64,
    /// Its end.
    pub end_unix_nano: u64,
    /// State of the trace in it.
    pub kind: StretchKind,
}

/// Kind of a [`Stretch`]. Spans are indexes of [`Trace::spans`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StretchKind {
    /// A span's own time.
    Span(usize),
    /// A task waits to be run; the span is that of the attempt which then begins.
    Queued(usize),
    /// No span of the path is open.
    Between,
}

/// A [`StretchKind`] in four bytes: the index of a span, with what it is in the two highest bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PackedKind(u32);

impl PackedKind {
    const QUEUED: u32 = 1 << 31;
    const BETWEEN: u32 = 1 << 30;
}

impl From<StretchKind> for PackedKind {
    fn from(kind: StretchKind) -> PackedKind {
        match kind {
            StretchKind::Span(index) => PackedKind(index as u32),
            StretchKind::Queued(index) => PackedKind(index as u32 | PackedKind::QUEUED),
            StretchKind::Between => PackedKind(PackedKind::BETWEEN),
        }
    }
}

impl From<PackedKind> for StretchKind {
    fn from(PackedKind(bits): PackedKind) -> StretchKind {
        match bits {
            PackedKind::BETWEEN => StretchKind::Between,
            bits if bits & PackedKind::QUEUED != 0 => StretchKind::Queued((bits & !PackedKind::QUEUED) as usize),
            bits => StretchKind::Span(bits as usize),
        }
    }
}

/// A stretch in which nothing runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idle {
    /// Its start, in nanoseconds since the Unix epoch.
    pub start_unix_nano: u64,
    /// Its end.
    pub end_unix_nano: u64,
    /// The span that ends it by starting, an index of [`Trace::spans`].
    pub before: usize,
    /// True if that is an attempt at a task that was queued meanwhile.
    pub is_queued: bool,
}

impl Stretch {
    /// Returns its length.
    pub fn duration_ns(&self) -> u64 {
        self.end_unix_nano - self.start_unix_nano
    }
}

impl CriticalPath {
    /// Finds the path.
    pub fn new(trace: &Trace, tree: &Tree) -> CriticalPath {
        let mut path = CriticalPath {
            starts: Vec::new(),
            kinds: Vec::new(),
            end_unix_nano: trace.start_unix_nano(),
            is_on: Vec::new(),
        };
        path.is_on = walk_critical_path(trace, tree, |stretch| {
            if path.starts.is_empty() {
                path.end_unix_nano = stretch.end_unix_nano;
            }
            path.starts.push(stretch.start_unix_nano);
            path.kinds.push(stretch.kind.into());
        });
        path
    }

    /// Returns the stretches in the order of time, without a gap.
    pub fn stretches(&self) -> impl Iterator<Item = Stretch> {
        (0..self.starts.len()).rev().map(|at| Stretch {
            start_unix_nano: self.starts[at],
            end_unix_nano: at.checked_sub(1).map_or(self.end_unix_nano, |after| self.starts[after]),
            kind: self.kinds[at].into(),
        })
    }

    /// Returns whether the path passes through a span of the trace.
    pub fn contains(&self, span: usize) -> bool {
        self.is_on[span]
    }

    /// Returns the time on the path that is in spans.
    pub fn in_spans_ns(&self) -> u64 {
        self.sum(|kind| matches!(kind, StretchKind::Span(_)))
    }

    /// Returns the time on the path in which a task waits to be run.
    pub fn queued_ns(&self) -> u64 {
        self.sum(|kind| matches!(kind, StretchKind::Queued(_)))
    }

    /// Returns the time on the path in which none of its spans is open and no task is known to wait.
    pub fn between_ns(&self) -> u64 {
        self.sum(|kind| kind == StretchKind::Between)
    }

    fn sum(&self, is_meant: impl Fn(StretchKind) -> bool) -> u64 {
        self.stretches().filter(|stretch| is_meant(stretch.kind)).map(|stretch| stretch.duration_ns()).sum()
    }
}

/// Figures of a critical path, without its stretches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PathFigures {
    /// For each of [`Trace::spans`], whether the path passes through it.
    is_on: Vec<bool>,
    /// Time of the path in each of them, or while its task waits to be run.
    pub(super) of_spans_ns: Vec<u64>,
    pub(super) in_spans_ns: u64,
    pub(super) queued_ns: u64,
    pub(super) between_ns: u64,
}

impl PathFigures {
    /// Finds the path.
    pub(super) fn new(trace: &Trace, tree: &Tree) -> PathFigures {
        let mut figures = PathFigures { of_spans_ns: vec![0; trace.spans.len()], ..PathFigures::default() };
        figures.is_on = walk_critical_path(trace, tree, |stretch| {
            let nanos = stretch.duration_ns();
            let (sum, of_span) = match stretch.kind {
                StretchKind::Span(index) => (&mut figures.in_spans_ns, Some(index)),
                StretchKind::Queued(index) => (&mut figures.queued_ns, Some(index)),
                StretchKind::Between => (&mut figures.between_ns, None),
            };
            *sum += nanos;
            if let Some(index) = of_span {
                figures.of_spans_ns[index] += nanos;
            }
        });
        figures
    }

    /// Returns whether the path passes through a span of the trace.
    pub(super) fn contains(&self, span: usize) -> bool {
        self.is_on[span]
    }
}

/// Finds the critical path, and hands over its stretches from the last to the first. Returns, for each span, whether the path passes through it.
pub fn walk_critical_path(trace: &Trace, tree: &Tree, mut take: impl FnMut(Stretch)) -> Vec<bool> {
    let family = Family::new(trace, tree);
    let mut is_on = vec![false; trace.spans.len()];
    // A stack and no recursion: a chain may be as long as the file.
    let mut stack = vec![Step::new(&family, family.all())];
    while let Some(step) = stack.last_mut() {
        let node = step.node;
        let (at, next) = (step.at, step.next);
        // What was over later than this is over later than all that comes.
        let child = step.children.by_ref().map(|child| child as usize).find(|&child| family.over[child] <= at);
        if let Some(child) = child {
            pass(&family, node, (family.over[child], at), next, &mut take);
            stack.push(Step::new(&family, child));
            continue;
        }
        let reached = family.start(node).min(at);
        pass(&family, node, (reached, at), next, &mut take);
        if let Some(index) = family.span(node) {
            is_on[index] = true;
        }
        stack.pop();
        if let Some(above) = stack.last_mut() {
            (above.at, above.next) = (reached, Some(node));
        }
    }
    is_on
}

/// Hands over the time between two children of a node, before its first, or after its last one; `next` is the one after it. Backwards.
fn pass(family: &Family<'_>, node: usize, (from, to): (u64, u64), next: Option<usize>, take: &mut impl FnMut(Stretch)) {
    let mut push = |start_unix_nano: u64, end_unix_nano: u64, kind| {
        if start_unix_nano < end_unix_nano {
            take(Stretch { start_unix_nano, end_unix_nano, kind });
        }
    };
    let Some(index) = family.span(node) else { return push(from, to, StretchKind::Between) };
    let queued = next.and_then(|next| family.span(next)).filter(|&next| is_attempt_of(family.trace, next, index));
    let (start, end) = (family.start(node), family.end(node));
    push(from.max(end), to, queued.map_or(StretchKind::Between, StretchKind::Queued));
    push(from.max(start), to.min(end), StretchKind::Span(index));
    // A clock that is behind another's.
    push(from, to.min(start), StretchKind::Between);
}

/// Finds the times of at least `least_ns` in which nothing ran in a trace, in their order.
pub fn idle(trace: &Trace, tree: &Tree, least_ns: u64) -> Vec<Idle> {
    let family = Family::new(trace, tree);
    let mut busy: Vec<(u64, u64)> = Vec::new();
    let mut room = BUSY_ROOM;
    for node in 0..family.all() {
        if family.span(node).is_none() {
            continue;
        }
        let mut at = family.start(node);
        let end = family.end(node);
        // That a span starts is something that happens, also when it waits at once or takes no time.
        busy.push((at, at));
        for child in family.children(node) {
            let until = family.start(child).min(end);
            if at < until {
                busy.push((at, until));
            }
            at = at.max(family.over[child]);
            if busy.len() > room {
                put_together(&mut busy);
                room = 2 * busy.len() + BUSY_ROOM;
            }
        }
        if at < end {
            busy.push((at, end));
        }
    }
    put_together(&mut busy);
    // Nearly no trace is idle often.
    let by_id = OnceCell::new();
    let parent_of = |index: usize| {
        let span = &trace.spans[index];
        by_id.get_or_init(|| ById::new(&trace.spans)).parent(&trace.spans, span)
    };
    let mut idle = Vec::new();
    let mut at = trace.start_unix_nano();
    for (start, end) in busy {
        if at < start && start - at >= least_ns {
            let first = trace.spans.partition_point(|span| span.start_unix_nano < start);
            let starting = (first..trace.spans.len()).take_while(|&index| trace.spans[index].start_unix_nano == start);
            let is_queued = |index: usize| {
                trace.spans[index].kind == Kind::Consumer
                    && parent_of(index).is_some_and(|above| is_attempt_of(trace, index, above))
            };
            let queued = starting.clone().find(|&index| is_queued(index));
            if let Some(before) = queued.or(starting.clone().next()) {
                idle.push(Idle { start_unix_nano: at, end_unix_nano: start, before, is_queued: queued.is_some() });
            }
        }
        at = at.max(end);
    }
    idle
}

/// Returns whether a span is of an attempt at the task whose submission another one is of.
fn is_attempt_of(trace: &Trace, attempt: usize, submission: usize) -> bool {
    (trace.spans[attempt].kind, trace.spans[submission].kind) == (Kind::Consumer, Kind::Producer)
}

/// Stretches in which something runs that are kept apart, however many of them are one.
const BUSY_ROOM: usize = 1 << 16;

/// Puts stretches together that overlap or follow one another.
fn put_together(stretches: &mut Vec<(u64, u64)>) {
    stretches.sort_unstable();
    stretches.dedup_by(|next, last| {
        let is_one = next.0 <= last.1;
        if is_one {
            last.1 = last.1.max(next.1);
        }
        is_one
    });
}

/// The nodes of a tree and one more, [`all`](Family::all), which the roots are below.
struct Family<'a> {
    trace: &'a Trace,
    tree: &'a Tree,
    /// Number of nodes in the subtree of each.
    sizes: Vec<u32>,
    /// Time at which a node and all that is below it have ended.
    over: Vec<u64>,
}

impl<'a> Family<'a> {
    fn new(trace: &'a Trace, tree: &'a Tree) -> Family<'a> {
        let mut family = Family { trace, tree, sizes: tree.sizes(), over: vec![0; tree.len() + 1] };
        // A child comes after its parent, but for the node that all are below.
        for node in (0..tree.len()).rev().chain([tree.len()]) {
            let last = family.children(node).map(|child| family.over[child]).max().unwrap_or(0);
            family.over[node] = family.end(node).max(last);
        }
        family
    }

    fn all(&self) -> usize {
        self.tree.len()
    }

    /// Returns the span of a node, if it has one.
    fn span(&self, node: usize) -> Option<usize> {
        match (node < self.all()).then(|| self.tree.node(node).item)? {
            Item::Span(index) | Item::Circle(index) => Some(index),
            Item::Missing(_) => None,
        }
    }

    /// Returns the children of a node by their starts.
    fn children(&self, node: usize) -> impl Iterator<Item = usize> {
        let (first, after) = if node == self.all() { (0, node) } else { (node + 1, node + self.sizes[node] as usize) };
        let is_one = move |child: &usize| *child < after;
        std::iter::successors(Some(first).filter(is_one), move |child| {
            Some(child + self.sizes[*child] as usize).filter(is_one)
        })
    }

    /// Returns the start of a node. One that is not there starts with what is below it.
    fn start(&self, node: usize) -> u64 {
        match self.span(node) {
            Some(index) => self.trace.spans[index].start_unix_nano,
            None if node == self.all() => self.trace.start_unix_nano(),
            None => self.start(node + 1),
        }
    }

    fn end(&self, node: usize) -> u64 {
        match self.span(node) {
            Some(index) => self.trace.spans[index].start_unix_nano + self.trace.spans[index].duration_ns(),
            None if node == self.all() => self.trace.start_unix_nano(),
            None => 0,
        }
    }
}

/// State of the search for the path, in one node.
struct Step {
    node: usize,
    /// All that is later is known.
    at: u64,
    /// The child that starts at that time.
    next: Option<usize>,
    /// Children that were not looked at, the one that was over last at the front.
    children: std::vec::IntoIter<u32>,
}

impl Step {
    fn new(family: &Family<'_>, node: usize) -> Step {
        let mut children: Vec<u32> = family.children(node).map(|child| child as u32).collect();
        let key = |child: u32| std::cmp::Reverse((family.over[child as usize], family.start(child as usize)));
        children.sort_by_key(|&child| key(child));
        Step { node, at: family.over[node], next: None, children: children.into_iter() }
    }
}

#[cfg(test)]
mod tests;
