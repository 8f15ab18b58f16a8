//! A trace in columns, as the page wants it: an array for each field and not an object for each span, so that 100,000 spans take 3 MB.

use std::collections::{HashMap, VecDeque};

use serde::Serialize;
use tracer_trace::{Item, Kind, Span, SpanId, Status, StretchKind, Trace, TraceId, Tree, walk_critical_path};

use super::chosen_rows::{self, Choice, Cut, Shown};

/// Stretches in which a task was queued that are told of a trace with fewer rows.
const QUEUED: usize = 1000;

/// Bits of [`Columns::flags`].
mod flag {
    /// The status is ERROR.
    pub(super) const ERROR: u8 = 1;
    /// It is open; its duration is its age.
    pub(super) const RUNNING: u8 = 2;
    /// The end of the trace waited for it.
    pub(super) const CRITICAL: u8 = 4;
    /// A line for a parent that was not found, or that is its own ancestor.
    pub(super) const MISSING: u8 = 8;
    /// Shift of the kind, which has three bits: INTERNAL, SERVER, CLIENT, PRODUCER, CONSUMER.
    pub(super) const KIND_SHIFT: u8 = 4;
}

/// A trace. Rows are in the order of the tree: each is followed by all that is below it. Times are in nanoseconds.
#[derive(Debug, Serialize)]
pub(super) struct Columns {
    trace_id: TraceId,
    /// Grows whenever something has changed but the time.
    revision: u64,
    /// Start of the first span, as text of RFC 3339.
    start_time: String,
    /// From there to the last end, or to now if something is open.
    duration_ns: u64,
    /// Different names of spans.
    names: Vec<String>,
    /// Different processes.
    processes: Vec<Process>,
    /// Ids of spans in hexadecimal.
    span_id: Vec<SpanId>,
    /// Depth below a root; 0 for a root.
    depth: Vec<u32>,
    /// An index of `names`.
    name: Vec<u32>,
    /// An index of `processes`.
    process: Vec<u32>,
    /// Since the start of the trace.
    start: Vec<u64>,
    duration: Vec<u64>,
    flags: Vec<u8>,
    /// Stretches of the critical path in which a task was queued, as start and duration.
    queued: Vec<(u64, u64)>,
    /// Number of records that had the id of another one.
    duplicates: usize,
    /// Number of spans without a row, with how many of them failed or run, and the siblings that they are of, as far as those are equal.
    left_out: usize,
    errors_left_out: usize,
    running_left_out: usize,
    cuts: Vec<Cut>,
}

#[derive(Debug, Serialize)]
struct Process {
    pid: Option<u32>,
    service: String,
}

impl Columns {
    pub(super) fn new(trace: &Trace, shown: &Shown, revision: u64) -> Columns {
        let tree = Tree::new(trace);
        let start = trace.start_unix_nano();
        let Choice { has_row, cuts } = chosen_rows::choose(trace, &tree, shown);
        let rows = has_row.iter().filter(|has_row| **has_row).count();
        let (is_critical, queued) = critical_path(trace, &tree, rows.max(QUEUED));
        let mut columns = Columns {
            trace_id: trace.id,
            revision,
            start_time: tracer_trace::rfc3339(start),
            duration_ns: trace.duration_ns(),
            names: Vec::new(),
            processes: Vec::new(),
            span_id: Vec::with_capacity(rows),
            depth: Vec::with_capacity(rows),
            name: Vec::with_capacity(rows),
            process: Vec::with_capacity(rows),
            start: Vec::with_capacity(rows),
            duration: Vec::with_capacity(rows),
            flags: Vec::with_capacity(rows),
            queued,
            duplicates: trace.duplicates,
            left_out: 0,
            errors_left_out: 0,
            running_left_out: 0,
            cuts,
        };
        let (mut names, mut processes) = (HashMap::new(), HashMap::new());
        for (node, has_row) in tree.nodes().zip(has_row) {
            if !has_row {
                columns.leave_out(trace, node.item);
                continue;
            }
            columns.depth.push(u32::try_from(node.depth).unwrap_or(u32::MAX));
            match node.item {
                Item::Span(at) => {
                    let span = &trace.spans[at];
                    let critical = if is_critical[at] { flag::CRITICAL } else { 0 };
                    columns.push(span, start, flags(span) | critical, &mut names, &mut processes);
                }
                Item::Circle(at) => {
                    columns.push(&trace.spans[at], start, flag::MISSING, &mut names, &mut processes);
                }
                Item::Missing(span_id) => columns.push_missing(span_id, &mut names),
            }
        }
        columns
    }

    fn leave_out(&mut self, trace: &Trace, item: Item) {
        self.left_out += 1;
        if let Item::Span(at) = item {
            let flags = flags(&trace.spans[at]);
            self.errors_left_out += usize::from(flags & flag::ERROR != 0);
            self.running_left_out += usize::from(flags & flag::RUNNING != 0);
        }
    }

    fn push<'a>(
        &mut self,
        span: &'a Span,
        start: u64,
        flags: u8,
        names: &mut HashMap<&'a str, u32>,
        processes: &mut HashMap<(Option<u32>, String), u32>,
    ) {
        self.span_id.push(span.span_id);
        let name = number(names, span.name(), || self.names.push(span.name().to_string()));
        self.name.push(name);
        let (pid, service) = span.pid_and_service();
        let all = &mut self.processes;
        let process = number(processes, (pid, service.clone()), || all.push(Process { pid, service }));
        self.process.push(process);
        self.start.push(span.start_unix_nano - start);
        self.duration.push(span.duration_ns());
        self.flags.push(flags);
    }

    fn push_missing(&mut self, span_id: SpanId, names: &mut HashMap<&str, u32>) {
        self.span_id.push(span_id);
        self.name.push(number(names, "(missing)", || self.names.push("(missing)".into())));
        self.process.push(u32::MAX);
        self.start.push(0);
        self.duration.push(0);
        self.flags.push(flag::MISSING);
    }
}

/// Says of each span whether the critical path passes through it, and returns the first stretches of it, so many at most, in which a task was queued.
fn critical_path(trace: &Trace, tree: &Tree, most: usize) -> (Vec<bool>, Vec<(u64, u64)>) {
    let mut queued = VecDeque::new();
    // It comes from its end.
    let is_critical = walk_critical_path(trace, tree, |stretch| {
        if matches!(stretch.kind, StretchKind::Queued(_)) {
            queued.push_front((stretch.start_unix_nano - trace.start_unix_nano(), stretch.duration_ns()));
            queued.truncate(most);
        }
    });
    (is_critical, queued.into())
}

/// Returns the number of a value; `add` is called for a new one.
fn number<K: std::hash::Hash + Eq>(known: &mut HashMap<K, u32>, key: K, add: impl FnOnce()) -> u32 {
    let next = u32::try_from(known.len()).unwrap_or(u32::MAX);
    *known.entry(key).or_insert_with(|| {
        add();
        next
    })
}

fn flags(span: &Span) -> u8 {
    let kind = match span.kind {
        Kind::Internal => 0,
        Kind::Server => 1,
        Kind::Client => 2,
        Kind::Producer => 3,
        Kind::Consumer => 4,
    };
    let error = if span.status == Status::Error { flag::ERROR } else { 0 };
    let running = if span.is_running() { flag::RUNNING } else { 0 };
    error | running | kind << flag::KIND_SHIFT
}
