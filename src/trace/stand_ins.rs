//! Spans that stand in for those of attempts that were lost with their node.
//!
//! Nobody but the lost node knows the id of its attempt's span, so the node that goes on writes one of its own, with
//! [`names::STAND_IN`](tracer_core::names::STAND_IN). When the lost node comes back, its next head completes the real one. Where both are there, or two nodes have
//! stood in for one that was lost before them, one of them is shown: the real one if it is there. The files are left as they are.

use std::collections::HashSet;

use serde_json::Value;
use tracer_core::names;

use crate::loaded::Trace;
use crate::span::{Kind, Span, SpanId, Status};

/// Removes the spans of a trace that stand in for what is there.
pub(super) fn remove_needless(trace: &mut Trace) {
    let is_stand_in = |span: &&Span| {
        // Nearly no trace has any, so the attributes of the others are not read.
        span.kind == Kind::Consumer && span.status == Status::Error && span.may_stand_in()
    };
    let stand_ins: HashSet<SpanId> = trace.spans.iter().filter(is_stand_in).map(|span| span.span_id).collect();
    if stand_ins.is_empty() {
        return;
    }
    let parents: HashSet<Option<SpanId>> =
        trace.spans.iter().filter(|span| stand_ins.contains(&span.span_id)).map(|span| span.parent_id()).collect();
    let attempt =
        |span: &Span| -> (Option<SpanId>, Option<Value>) { (span.parent_id(), span.attribute(names::ATTEMPT)) };
    let is_real = |span: &&Span| {
        span.kind == Kind::Consumer && parents.contains(&span.parent_id()) && !stand_ins.contains(&span.span_id)
    };
    let mut there: HashSet<_> = trace.spans.iter().filter(is_real).map(attempt).collect();
    trace.spans.retain(|span| !stand_ins.contains(&span.span_id) || there.insert(attempt(span)));
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{SpanText, loaded, span};

    fn attempt(span_id: u64, number: u32, further: &str) -> SpanText {
        let attributes = format!("{{\"tracer.attempt\": {number}{further}}}");
        let attempt = span("count remote", span_id, 1, (span_id, span_id + 1)).kind("CONSUMER").attributes(&attributes);
        if further.is_empty() { attempt } else { attempt.failed("its node was lost") }
    }

    #[test]
    fn what_stands_in_for_a_span_that_is_there_is_not_shown() {
        let stand_in = ", \"tracer.stand_in\": true";
        let spans = [
            span("submit", 1, None, (0, 9)),
            attempt(2, 1, stand_in),
            attempt(3, 2, stand_in),
            attempt(4, 2, stand_in),
            attempt(5, 3, ""),
        ];
        let lines = |spans: &[SpanText]| spans.iter().map(SpanText::line).collect::<String>().into_bytes();
        let ids = |files: Vec<(&'static str, Vec<u8>)>| -> Vec<String> {
            loaded(files).traces[0].spans.iter().map(|span| span.span_id.to_string()).collect()
        };
        let id = |id: u64| format!("{id:016x}");
        assert_eq!(ids(vec![("1.json", lines(&spans))]), [1, 2, 3, 5].map(id), "of two for one attempt one is shown");
        // The node of the first attempt has come back.
        let real = attempt(6, 1, "");
        assert_eq!(ids(vec![("1.json", lines(&spans)), ("2.json", lines(&[real]))]), [1, 3, 5, 6].map(id));
    }
}
