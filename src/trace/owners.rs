//! The attempt that each span of a trace was made in.

use std::collections::HashMap;

use tracer_core::names;
use tracer_core::task::TaskId;

use crate::loaded::Trace;
use crate::span::{Kind, Span, SpanId};

/// The attempts of a trace and what was made in them.
#[derive(Debug, Default)]
pub struct Owners {
    /// Task and number of the attempt in which a span was made, for spans that were made in one.
    attempts: HashMap<SpanId, (TaskId, u32)>,
    spans: HashMap<(TaskId, u32), SpanId>,
    names: HashMap<SpanId, String>,
}

impl Owners {
    /// Finds the attempts of a trace.
    pub(crate) fn of(trace: &Trace) -> Owners {
        let mut owners = Owners::default();
        for span in &trace.spans {
            if let Some(attempt) = attempt_of(span) {
                owners.attempts.insert(span.span_id, attempt);
                owners.spans.insert(attempt, span.span_id);
            }
            owners.names.insert(span.span_id, span.name().to_string());
        }
        let parents: HashMap<SpanId, SpanId> =
            trace.spans.iter().filter_map(|span| Some((span.span_id, span.parent_id()?))).collect();
        for span in &trace.spans {
            owners.spread(span.span_id, &parents);
        }
        owners
    }

    /// Returns the attempt in which a span was made.
    pub(crate) fn attempt_of(&self, span_id: SpanId) -> Option<(TaskId, u32)> {
        self.attempts.get(&span_id).copied()
    }

    /// Returns the span of an attempt.
    pub(crate) fn span_of(&self, attempt: (TaskId, u32)) -> Option<SpanId> {
        self.spans.get(&attempt).copied()
    }

    /// Returns the name of a span.
    pub(crate) fn name_of(&self, span_id: SpanId) -> Option<&str> {
        self.names.get(&span_id).map(String::as_str)
    }

    /// Returns the tasks that have attempts here.
    pub(crate) fn tasks(&self) -> impl Iterator<Item = TaskId> {
        self.spans.keys().map(|(task, _)| *task)
    }

    /// Notes for a span, and for those on the way, the attempt that is nearest above it.
    fn spread(&mut self, span_id: SpanId, parents: &HashMap<SpanId, SpanId>) {
        let mut way = Vec::new();
        let mut at = span_id;
        let attempt = loop {
            if let Some(attempt) = self.attempts.get(&at) {
                break *attempt;
            }
            way.push(at);
            match parents.get(&at) {
                // Parents of hostile files may go in a circle.
                Some(parent) if way.len() <= parents.len() => at = *parent,
                _ => return,
            }
        };
        self.attempts.extend(way.into_iter().map(|span_id| (span_id, attempt)));
    }
}

/// Returns the attempt that a span is of.
pub(super) fn attempt_of(span: &Span) -> Option<(TaskId, u32)> {
    if span.kind != Kind::Consumer {
        return None;
    }
    let attributes = span.attributes();
    let number = |key| attributes.get(key)?.as_u64();
    let attempt = u32::try_from(number(names::ATTEMPT)?).ok()?;
    Some((TaskId(number(names::TASK_ID)?), attempt))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fixture::span;
    use super::*;
    use crate::index::last_trace_of;
    use crate::load::load;

    #[test]
    fn each_span_is_of_the_attempt_that_is_nearest_above_it() {
        let folder = tempfile::tempdir().unwrap();
        let attempt = |id: u64, parent, task: u64, number: u64| {
            span("a tracer.remote_worker", id, parent, (0, 9))
                .kind("CONSUMER")
                .attributes(&json!({"tracer.task_id": task, "tracer.attempt": number}).to_string())
                .line()
        };
        let text = [
            span("job", 1, None, (0, 9)).line(),
            attempt(2, Some(1), 7, 1),
            span("inner", 3, Some(2), (1, 2)).line(),
            span("innermost", 4, Some(3), (1, 2)).line(),
            attempt(5, Some(3), 8, 2),
            span("of the other", 6, Some(5), (1, 2)).line(),
            span("of a circle", 7, Some(8), (1, 2)).line(),
            span("of it too", 8, Some(7), (1, 2)).line(),
        ];
        std::fs::write(folder.path().join("1.json"), text.concat()).unwrap();
        let loaded = load(folder.path()).unwrap();
        let owners = Owners::of(&loaded.traces[0]);
        let found: Vec<_> =
            (1..=8).map(|id| owners.attempt_of(SpanId(id)).map(|(task, number)| (task.0, number))).collect();
        let (outer, inner) = (Some((7, 1)), Some((8, 2)));
        assert_eq!(found, [None, outer, outer, outer, inner, inner, None, None]);
        assert_eq!(owners.span_of((TaskId(8), 2)), Some(SpanId(5)));
        assert_eq!((owners.span_of((TaskId(8), 1)), owners.name_of(SpanId(6))), (None, Some("of the other")));
        assert_eq!(owners.tasks().collect::<std::collections::BTreeSet<_>>(), [TaskId(7), TaskId(8)].into());
        let last = |task| last_trace_of(folder.path(), &[TaskId(task)].into()).unwrap();
        assert_eq!((last(8), last(9)), (Some(loaded.traces[0].id), None));
    }
}
