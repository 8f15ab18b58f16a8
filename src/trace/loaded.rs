//! Traces as they were found in a folder: spans by trace, in the order of their starts.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use crate::by_id::ById;
use crate::read::Notice;
use crate::span::{Span, SpanId, Status, TraceId};
use crate::{graft, shared_ids, stand_ins};

/// Contents of a folder of span files.
#[derive(Debug)]
pub struct Loaded {
    /// The folder.
    pub folder: PathBuf,
    /// The traces, the one that started first at the front.
    pub traces: Vec<Trace>,
    /// Parts that could not be read, file by file. Everything else was.
    pub notices: Vec<Notice>,
    /// Traces of commands that are parts of the traces of their attempts.
    pub(crate) grafts: graft::Grafts,
}

/// One trace, as far as it was found.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Its id.
    pub id: TraceId,
    /// Its spans by start time. Never empty.
    pub spans: Vec<Span>,
    /// Number of further records of spans in `spans`. The first one read was kept, or the first that has ended.
    pub duplicates: usize,
}

/// Spans that are being read, trace by trace.
pub(crate) struct Gathering {
    pub(crate) loaded: Loaded,
    index_by_id: HashMap<TraceId, usize>,
}

impl Gathering {
    pub(crate) fn new(folder: &Path) -> Gathering {
        let grafts = graft::Grafts::default();
        let loaded = Loaded { folder: folder.into(), traces: Vec::new(), notices: Vec::new(), grafts };
        Gathering { loaded, index_by_id: HashMap::new() }
    }

    pub(crate) fn take(&mut self, mut span: Span) {
        let Loaded { traces, grafts, .. } = &mut self.loaded;
        grafts.take_in(&mut span);
        let id = span.trace_id();
        let index = *self.index_by_id.entry(id).or_insert_with(|| {
            traces.push(Trace { id, spans: Vec::new(), duplicates: 0 });
            traces.len() - 1
        });
        traces[index].spans.push(span);
    }

    pub(crate) fn finish(self, notices: Vec<Notice>) -> Loaded {
        let mut loaded = Loaded { notices, ..self.loaded };
        for trace in &mut loaded.traces {
            trace.duplicates = trace.settle();
        }
        loaded.graft();
        loaded.sort();
        loaded
    }
}

impl Loaded {
    /// Groups spans into traces.
    pub fn new(folder: &Path, spans: impl IntoIterator<Item = Span>, notices: Vec<Notice>) -> Loaded {
        let mut gathering = Gathering::new(folder);
        spans.into_iter().for_each(|span| gathering.take(span));
        gathering.finish(notices)
    }

    /// Returns a folder in which nothing is.
    pub fn empty(folder: &Path) -> Loaded {
        Loaded::new(folder, Vec::new(), Vec::new())
    }

    /// Adds spans that are in no file yet. A span that is here already is kept as it is: what was written is the last word, once it has ended.
    pub fn add(&mut self, spans: impl IntoIterator<Item = Span>) {
        let mut by_trace: HashMap<TraceId, Vec<Span>> = HashMap::new();
        for mut span in spans {
            self.grafts.take_in(&mut span);
            by_trace.entry(span.trace_id()).or_default().push(span);
        }
        if by_trace.is_empty() {
            return;
        }
        for trace in &mut self.traces {
            if let Some(spans) = by_trace.remove(&trace.id) {
                trace.add(spans);
            }
        }
        for (id, spans) in by_trace {
            let mut trace = Trace { id, spans: Vec::new(), duplicates: 0 };
            trace.add(spans);
            self.traces.push(trace);
        }
        self.graft();
        self.sort();
    }

    /// Returns the traces that are parts of others, each with the one that it is part of.
    pub fn parts(&self) -> impl Iterator<Item = (TraceId, TraceId)> {
        self.grafts.parts()
    }

    pub(crate) fn sort(&mut self) {
        self.traces.sort_by_key(|trace| (trace.start_unix_nano(), trace.id));
    }
}

impl Trace {
    /// Adds those of its spans that are not here yet. What is here is kept as it is, unless it had not ended and has now.
    pub fn add(&mut self, spans: impl IntoIterator<Item = Span>) {
        self.spans.extend(spans);
        self.settle();
    }

    /// Leaves one record of each span, in the order of their starts. Returns how many were left out.
    fn settle(&mut self) -> usize {
        let duplicates = shared_ids::settle(&mut self.spans);
        self.sort();
        stand_ins::remove_needless(self);
        duplicates
    }

    /// Sorts the spans by their starts, in little memory.
    pub(crate) fn sort(&mut self) {
        let mut order: Vec<u32> = (0..self.spans.len() as u32).collect();
        let start = |place: u32| self.spans[place as usize].start_unix_nano;
        if order.is_sorted_by_key(|place| start(*place)) {
            return;
        }
        order.sort_unstable_by_key(|place| (start(*place), *place));
        for at in 0..order.len() {
            let mut from = order[at] as usize;
            // What was there has been moved to where this one came from.
            while from < at {
                from = order[from] as usize;
            }
            order[at] = from as u32;
            self.spans.swap(at, from);
        }
    }

    /// Returns when its first span started.
    pub fn start_unix_nano(&self) -> u64 {
        self.spans.first().map_or(0, |span| span.start_unix_nano)
    }

    /// Returns when its last span ended, or was seen running. One that ended before it started ended as it did.
    pub fn end_unix_nano(&self) -> u64 {
        let end =
            |span: &Span| span.end_unix_nano().or(span.running_unix_nano()).unwrap_or(0).max(span.start_unix_nano);
        self.spans.iter().map(end).max().unwrap_or(0)
    }

    /// From the first start to the last end.
    pub fn duration_ns(&self) -> u64 {
        self.end_unix_nano() - self.start_unix_nano()
    }

    /// Returns the span the trace is named after: the first without a parent, else the first whose parent is not found, else
    /// the first.
    pub fn root(&self) -> &Span {
        if let Some(root) = self.spans.iter().find(|span| span.parent_id().is_none()) {
            return root;
        }
        let known = ById::new(&self.spans);
        let is_orphan = |span: &&Span| known.parent(&self.spans, span).is_none();
        self.spans.iter().find(is_orphan).unwrap_or(&self.spans[0])
    }

    /// Returns how many spans have the status ERROR.
    pub fn error_count(&self) -> usize {
        self.spans.iter().filter(|span| span.status == Status::Error).count()
    }

    /// Returns how many spans have an id of their own here, because another span has the one that was written.
    pub fn separated_count(&self) -> usize {
        self.spans.iter().filter(|span| span.is_separated()).count()
    }

    /// Returns how many spans were running when they were looked at.
    pub fn running_count(&self) -> usize {
        self.spans.iter().filter(|span| span.is_running()).count()
    }

    /// Returns how many processes the spans come from.
    pub fn process_count(&self) -> usize {
        self.spans.iter().map(Span::process).collect::<HashSet<_>>().len()
    }

    /// Returns the spans of this name, by start time.
    pub fn spans_named(&self, name: &str) -> impl Iterator<Item = &Span> {
        self.spans.iter().filter(move |span| span.name() == name)
    }

    /// Returns the span with this id.
    pub fn span(&self, span_id: SpanId) -> Option<&Span> {
        self.spans.iter().find(|span| span.span_id == span_id)
    }
}
