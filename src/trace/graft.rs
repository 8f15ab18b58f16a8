//! Traces that begin in a command, as parts of the trace of the attempt that the command is.
//!
//! Automatic instrumentation begins a trace of its own where no request brings a context; few of its kind read `TRACEPARENT`. The resource of what a
//! command sends where the head receives OTLP names the context of its attempt, in [`names::TRACEPARENT`](tracer_core::names::TRACEPARENT). A trace becomes part of the attempt's if all of its
//! topmost spans say the same: those without a parent become children of the attempt's span, and those whose parent has not arrived yet keep it, as
//! long as they say that it is of their own process. A trace that came from elsewhere with a request stays a trace.
//!
//! The files are left as they are; an id of a trace that was joined finds the trace that it is part of.

use std::collections::{HashMap, HashSet};

use super::span::Replaced;
use crate::loaded::{Loaded, Trace};
use crate::span::{Span, SpanId, TraceId};

/// Context that a trace which begins in a command is part of.
pub(super) type Stem = (TraceId, SpanId);

/// Traces that are parts of others.
#[derive(Debug, Default)]
pub(super) struct Grafts {
    stems: HashMap<TraceId, Stem>,
    /// Traces that others are parts of.
    trunks: HashSet<TraceId>,
    /// Traces with spans of commands that are not part of another one, so far.
    undecided: HashSet<TraceId>,
    /// Undecided traces that have new spans.
    changed: HashSet<TraceId>,
    joined: Replaced,
}

impl Grafts {
    /// Notes the traces of commands among spans that were read, and makes those parts of another whose trace is one.
    pub(super) fn take_in(&mut self, span: &mut Span) {
        if let Some(stem) = self.stems.get(&span.trace_id()) {
            span.join(*stem, &mut self.joined);
        } else if span.stem().is_some_and(|(trace_id, _)| trace_id != span.trace_id()) {
            self.undecided.insert(span.trace_id());
        }
        if self.undecided.contains(&span.trace_id()) {
            self.changed.insert(span.trace_id());
        }
    }

    /// Notes that a trace is part of another one, and returns whether it is. No trace becomes part of one that is part of another: whoever says so
    /// names a context that no attempt has.
    fn note(&mut self, id: TraceId, stem: Stem) -> bool {
        if self.stems.contains_key(&stem.0) || self.trunks.contains(&id) {
            return false;
        }
        self.undecided.remove(&id);
        self.trunks.insert(stem.0);
        self.stems.insert(id, stem);
        true
    }

    /// Returns the traces that are parts of others, each with the one that it is part of.
    pub(super) fn parts(&self) -> impl Iterator<Item = (TraceId, TraceId)> {
        self.stems.iter().map(|(part, (trunk, _))| (*part, *trunk))
    }

    /// Returns the trace that another one, whose id begins so, has become part of.
    pub(super) fn find(&self, digits: &str) -> Option<TraceId> {
        let mut found = self.stems.iter().filter(|(id, _)| id.to_string().starts_with(digits));
        let (_, (trace_id, _)) = found.next()?;
        found.next().is_none().then_some(*trace_id)
    }
}

/// Returns the context that a trace is part of, if it is part of another trace.
fn stem_of(trace: &Trace) -> Option<Stem> {
    let ids: HashSet<SpanId> = trace.spans.iter().map(|span| span.span_id).collect();
    let is_top = |span: &&Span| span.parent_id().is_none_or(|parent| !ids.contains(&parent));
    let mut stem = None;
    for span in trace.spans.iter().filter(is_top) {
        if span.parent_id().is_some() && !span.has_local_parent() {
            return None;
        }
        let own = span.stem()?;
        if stem.is_some_and(|stem| stem != own) {
            return None;
        }
        stem = Some(own);
    }
    stem.filter(|(trace_id, _)| *trace_id != trace.id)
}

impl Loaded {
    /// Moves the spans of traces that have turned out to be parts of others.
    pub(super) fn graft(&mut self) {
        let changed = std::mem::take(&mut self.grafts.changed);
        let mut found: HashMap<TraceId, Stem> = HashMap::new();
        for trace in self.traces.iter().filter(|trace| changed.contains(&trace.id)) {
            if let Some(stem) = stem_of(trace).filter(|stem| self.grafts.note(trace.id, *stem)) {
                found.insert(trace.id, stem);
            }
        }
        if found.is_empty() {
            return;
        }
        let mut replaced = Replaced::default();
        let mut moved: HashMap<TraceId, Trace> = HashMap::new();
        self.traces.retain_mut(|part| {
            let Some(stem) = found.get(&part.id) else { return true };
            let whole = moved.entry(stem.0).or_insert_with(|| Trace { id: stem.0, spans: Vec::new(), duplicates: 0 });
            part.spans.iter_mut().for_each(|span| span.join(*stem, &mut replaced));
            whole.spans.append(&mut part.spans);
            whole.duplicates += part.duplicates;
            false
        });
        for trace in &mut self.traces {
            if let Some(part) = moved.remove(&trace.id) {
                trace.duplicates += part.duplicates;
                trace.add(part.spans);
            }
        }
        self.traces.extend(moved.into_values().map(|mut trace| {
            let spans = std::mem::take(&mut trace.spans);
            trace.add(spans);
            trace
        }));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fixture::loaded;
    use super::*;

    const ATTEMPT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    /// Returns a line with one span of a trace: its number, its parent's, and its flags.
    fn line(trace: u8, (id, parent, flags): (u8, u8, u32), context: &str) -> String {
        let attributes = json!([{"key": "tracer.traceparent", "value": {"stringValue": context}}]);
        let resource = if context.is_empty() { json!({}) } else { json!({ "attributes": attributes }) };
        let mut span = json!({"traceId": format!("{trace:032x}"), "spanId": format!("{id:016x}"), "name": format!("{id}"),
            "startTimeUnixNano": format!("{id}"), "endTimeUnixNano": "300", "flags": flags});
        if parent > 0 {
            span["parentSpanId"] = format!("{parent:016x}").into();
        }
        format!("{}\n", json!({"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [span]}]}]}))
    }

    /// Returns the spans of each trace, with the parents that they have.
    fn read(lines: &[String]) -> Vec<String> {
        let folder = tempfile::tempdir().expect("there is room");
        std::fs::write(folder.path().join("7.received.jsonl"), lines.concat()).expect("there is room");
        let loaded = super::super::load(folder.path()).expect("it is there");
        assert_eq!(loaded.notices, []);
        let parent = |span: &Span| span.parent_id().map_or(String::new(), |id| format!("<{:x}", id.0));
        let spans = |trace: &Trace| {
            trace.spans.iter().map(|span| format!("{}{}", span.name(), parent(span))).collect::<Vec<_>>()
        };
        let text = |trace: &Trace| format!("{:x}: {}", trace.id.0, spans(trace).join(" "));
        let mut index = super::super::Index::new(folder.path(), 1 << 20);
        index.look(None, 0).expect("it is there");
        let mut handed_over = Vec::new();
        index.each_trace(|trace| handed_over.push(text(trace)));
        let texts: Vec<String> = loaded.traces.iter().map(text).collect();
        assert_eq!(handed_over, texts);
        texts
    }

    #[test]
    fn a_trace_that_begins_in_a_command_is_part_of_its_attempt() {
        let trunk = "4bf92f3577b34da6a3ce929d0e0e4736";
        let top = format!("{trunk}: 1<f067aa0ba902b7 2<1 3<2");
        // Whole; with a span of another process below; and in the order in which spans end.
        let whole = [(1, 0, 0x100), (2, 1, 0x100), (3, 2, 0x100)].map(|span| line(9, span, ATTEMPT));
        assert_eq!(read(&whole), [top.as_str()]);
        let other = [whole[0].clone(), whole[1].clone(), line(9, (3, 2, 0x300), "")];
        assert_eq!(read(&other), [top.as_str()]);
        // The root has not ended yet.
        assert_eq!(read(&[whole[2].clone()]), [format!("{trunk}: 3<2")]);
        // Two traces of one command.
        let two = [line(8, (1, 0, 0), ATTEMPT), line(9, (2, 0, 0), ATTEMPT)];
        assert_eq!(read(&two), [format!("{trunk}: 1<f067aa0ba902b7 2<f067aa0ba902b7")]);
    }

    #[test]
    fn a_trace_that_came_from_elsewhere_stays_a_trace() {
        let other = "00-00000000000000000000000000000002-0000000000000002-01";
        for lines in [
            vec![line(9, (1, 7, 0x300), ATTEMPT)],
            vec![line(9, (1, 7, 0), ATTEMPT)],
            vec![line(9, (1, 0, 0), ""), line(9, (2, 1, 0x300), ATTEMPT)],
            vec![line(9, (1, 0, 0), ATTEMPT), line(9, (2, 0, 0), other)],
            vec![line(9, (1, 0, 0), "nonsense")],
            vec![line(9, (1, 0, 0), "00-00000000000000000000000000000009-0000000000000001-01")],
        ] {
            let read = read(&lines);
            assert!(read.len() == 1 && read[0].starts_with("9: "), "{read:?}");
        }
    }

    #[test]
    fn contexts_that_name_each_other_move_nothing_in_a_circle() {
        let context = |trace: u8| format!("00-{trace:032x}-0000000000000001-01");
        let circle = [line(8, (1, 0, 0), &context(9)), line(9, (2, 0, 0), &context(8))];
        let read = read(&circle);
        assert_eq!(read.len(), 1, "{read:?}");
    }

    #[test]
    fn spans_that_come_later_join_and_the_id_of_the_part_finds_the_whole() {
        let part = |id, parent| {
            let text = line(9, (id, parent, 0x100), ATTEMPT);
            loaded([("7.received.jsonl", text.into_bytes())])
        };
        let mut all = part(3, 2);
        for (id, parent) in [(2, 1), (1, 0)] {
            let raw = line(9, (id, parent, 0x100), ATTEMPT);
            let mut spans = Vec::new();
            let path = std::path::Path::new("7.received.jsonl");
            super::super::fixture::scan(path, raw.into_bytes(), &mut spans);
            all.add(spans);
            assert_eq!(all.traces.len(), 1);
        }
        assert_eq!(all.traces[0].spans.len(), 3);
        let found = all.find("00000000000000000000000000000009").expect("it is part of one");
        assert_eq!(found.id.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
    }

    #[test]
    fn a_span_of_nobody_that_comes_later_decides_too() {
        let add = |all: &mut Loaded, text: String| {
            let mut spans = Vec::new();
            let path = std::path::Path::new("7.received.jsonl");
            super::super::fixture::scan(path, text.into_bytes(), &mut spans);
            all.add(spans);
            all.traces.len()
        };
        let mut all = loaded([("7.received.jsonl", line(9, (1, 0, 0x100), "").into_bytes())]);
        // The root is a command's; one of its spans has a parent in a process of which nothing is known yet.
        let mut all_of_command = Loaded::empty(std::path::Path::new("/tmp/spans"));
        assert_eq!(add(&mut all_of_command, line(9, (1, 0, 0x100), ATTEMPT) + &line(9, (3, 2, 0x300), ATTEMPT)), 1);
        assert_eq!(all_of_command.traces[0].id.0, 9);
        assert_eq!(add(&mut all_of_command, line(9, (2, 1, 0x300), "")), 1);
        assert_eq!(all_of_command.traces[0].id.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        // A trace whose root is nobody's stays.
        assert_eq!(add(&mut all, line(9, (2, 1, 0x300), ATTEMPT)), 1);
        assert_eq!(all.traces[0].id.0, 9);
    }

    #[test]
    fn a_command_that_begins_many_traces_takes_time_for_each_and_no_more() {
        let many: String = (1..=20_000_u32)
            .map(|number| {
                let text = line(9, (1, 0, 0x100), ATTEMPT);
                text.replace(&format!("{:032x}", 9), &format!("{number:032x}"))
                    .replace(&format!("{:016x}", 1), &format!("{number:016x}"))
            })
            .collect();
        let loaded = loaded([("7.received.jsonl", many.into_bytes())]);
        assert_eq!((loaded.traces.len(), loaded.traces[0].spans.len()), (1, 20_000));
    }
}
