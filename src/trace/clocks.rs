//! A trace of several nodes on one clock.
//!
//! Spans have the times of the clocks of their machines. The span of an attempt at a task of a queue says how far the clocks of its two nodes were ahead of the
//! engine's, if that was worth saying ([`names::CLOCK_OFFSET_NS`], [`names::ORIGIN_CLOCK_OFFSET_NS`]). So it, with all that is below it, can be moved to
//! the clock of the span that has submitted it, and in the end to that of the root. An offset was measured with an error, so an attempt that would still begin
//! before its submission is moved to that. What says nothing of clocks stays where it is below its parent, and nothing is moved whose parent is not there.
//!
//! Only what is shown is moved: files, exports and the objects of spans in reports have the times as they were stored.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::Serialize;
use serde_json::Value;
use tracer_core::names;

use super::span::Replaced;
use crate::by_id::ById;
use crate::loaded::Trace;
use crate::span::{Span, SpanId};
use crate::tree::{Item, Tree};

/// Spans that are shown at other times than they are stored with, because their clock was another one: that of an attempt, and those below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClockShift {
    /// The span of the attempt.
    #[serde(serialize_with = "as_in_objects")]
    pub span_id: SpanId,
    /// The node whose clock that was; none of a span that stands in for another, which names the node that was lost.
    pub node_id: Option<String>,
    /// Time by which they are shown later than they are stored with, in nanoseconds; negative if they are shown earlier.
    pub shift_ns: i64,
    /// Number of the spans.
    pub spans: usize,
}

fn as_in_objects<S: serde::Serializer>(id: &SpanId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("0x{id}"))
}

/// Returns the time by which a span and those below it are behind its parent, as far as they say so.
fn behind_parent(span: &Span) -> Option<i64> {
    // Nearly no span has any, so the attributes of the others are not read.
    if !span.has_clock() {
        return None;
    }
    let attributes = span.attributes();
    let offset = |key| attributes.get(key).and_then(Value::as_i64);
    offset(names::ORIGIN_CLOCK_OFFSET_NS)?.checked_sub(offset(names::CLOCK_OFFSET_NS)?)
}

impl Trace {
    /// Returns the trace with all spans on the clock of its root, as far as they say how far theirs was from it.
    pub fn on_one_clock(&self) -> Cow<'_, Trace> {
        if self.spans.iter().all(|span| behind_parent(span).is_none()) {
            return Cow::Borrowed(self);
        }
        let mut trace = self.clone();
        trace.put_on_one_clock();
        Cow::Owned(trace)
    }

    /// Puts all spans on the clock of the root, as [`Trace::on_one_clock`] does.
    pub fn put_on_one_clock(&mut self) {
        let behind: HashMap<usize, i64> =
            self.spans.iter().enumerate().filter_map(|(index, span)| Some((index, behind_parent(span)?))).collect();
        if behind.is_empty() {
            return;
        }
        let by_id = ById::new(&self.spans);
        let tree = Tree::new(self);
        let mut replaced = Replaced::default();
        let spans = &mut self.spans;
        // A parent comes before its children.
        for node in tree.nodes() {
            let Item::Span(index) = node.item else { continue };
            let parent = by_id.parent(spans, &spans[index]).map(|parent| &spans[parent]);
            let Some((of_parent_ns, parent_start)) = parent.map(|span| (span.clock_shift_ns(), span.start_unix_nano))
            else {
                continue;
            };
            let span = &mut spans[index];
            let shift_ns = match behind.get(&index) {
                None => of_parent_ns,
                Some(behind_ns) => {
                    let stored = i128::from(span.start_unix_nano) - i128::from(span.clock_shift_ns());
                    let too_early_ns = i128::from(parent_start) - stored;
                    let too_early_ns = i64::try_from(too_early_ns).unwrap_or(i64::MAX);
                    of_parent_ns.saturating_add(*behind_ns).max(too_early_ns)
                }
            };
            span.shift(shift_ns, &mut replaced);
        }
        self.sort();
    }

    /// Returns what is shown at other times than it is stored with, in the order of the tree.
    pub fn clock_shifts(&self) -> Vec<ClockShift> {
        if self.spans.iter().all(|span| span.clock_shift_ns() == 0) {
            return Vec::new();
        }
        let mut shifts: Vec<ClockShift> = Vec::new();
        // The shifts that spans belong to, by the spans.
        let mut belongs: HashMap<SpanId, (i64, Option<usize>)> = HashMap::new();
        for node in Tree::new(self).nodes() {
            let Item::Span(index) = node.item else { continue };
            let span = &self.spans[index];
            let of_parent = span.parent_id().and_then(|id| belongs.get(&id).copied());
            let shift = match of_parent {
                Some((shift_ns, shift)) if shift_ns == span.clock_shift_ns() => shift,
                _ if span.clock_shift_ns() == 0 => None,
                _ => {
                    let node_id = span.attribute(names::NODE_ID).filter(|_| !span.may_stand_in());
                    let node_id = node_id.and_then(|node| Some(node.as_str()?.to_owned()));
                    let (span_id, shift_ns) = (span.span_id, span.clock_shift_ns());
                    shifts.push(ClockShift { span_id, node_id, shift_ns, spans: 0 });
                    Some(shifts.len() - 1)
                }
            };
            if let Some(shift) = shift {
                shifts[shift].spans += 1;
            }
            belongs.insert(span.span_id, (span.clock_shift_ns(), shift));
        }
        shifts
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{EPOCH, SpanText, span, trace};
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn attempt(span_id: u64, parent: u64, micros: (u64, u64), clocks: Option<(i64, i64)>) -> SpanText {
        let clocks = clocks.map_or(String::new(), |(origin, holder)| {
            format!(r#", "tracer.origin_clock_offset_ns": {origin}, "tracer.clock_offset_ns": {holder}"#)
        });
        let attributes = format!(r#"{{"tracer.node_id": "node-{span_id}"{clocks}}}"#);
        span("count tracer.remote_worker", span_id, parent, micros).kind("CONSUMER").attributes(&attributes)
    }

    /// Returns the starts in microseconds, and by how much they are shifted, by span.
    fn starts(trace: &Trace) -> Vec<(u64, u64, i64)> {
        let start = |span: &Span| (span.span_id.0, (span.start_unix_nano - EPOCH) / 1000, span.clock_shift_ns() / 1000);
        let mut starts: Vec<_> = trace.spans.iter().map(start).collect();
        starts.sort_unstable();
        starts
    }

    #[test]
    fn what_runs_on_a_node_is_shown_on_the_clock_of_the_submission() {
        // The first node is right, the second one five seconds behind it, and the third one three ahead of the first.
        let spans = [
            (1, span("submit", 1, None, (10 * SECOND, 11 * SECOND)).kind("PRODUCER")),
            (2, attempt(2, 1, (5 * SECOND + 7, 8 * SECOND), Some((200_000, -4_999_800_000)))),
            (2, span("inner", 3, 2, (6 * SECOND, 7 * SECOND)).kind("PRODUCER")),
            (3, attempt(4, 3, (14 * SECOND + 9, 15 * SECOND), Some((-5_000_000_000, 3_000_000_000)))),
            (3, span("innermost", 5, 4, (14 * SECOND + 20, 15 * SECOND))),
        ];
        let stored = trace(&spans);
        let shown = stored.on_one_clock();
        let second = SECOND as i64;
        assert_eq!(
            starts(&shown),
            [
                (1, 10 * SECOND, 0),
                (2, 10 * SECOND + 7, 5 * second),
                (3, 11 * SECOND, 5 * second),
                (4, 11 * SECOND + 9, -3 * second),
                (5, 11 * SECOND + 20, -3 * second),
            ]
        );
        assert!(shown.spans.is_sorted_by_key(|span| span.start_unix_nano));
        assert_eq!(shown.duration_ns(), 3_000_000_000, "and ends are moved with the starts");
        let shift = |span_id, shift_ns| ClockShift {
            span_id: SpanId(span_id),
            node_id: Some(format!("node-{span_id}")),
            shift_ns,
            spans: 2,
        };
        assert_eq!(shown.clock_shifts(), [shift(2, 5_000_000_000), shift(4, -3_000_000_000)]);
        assert_eq!(starts(&shown.on_one_clock()), starts(&shown), "what is shifted is not shifted again");
        assert_eq!(starts(&stored).iter().map(|start| start.2).max(), Some(0), "the trace itself is as it was");
    }

    #[test]
    fn an_attempt_never_begins_before_its_submission_and_the_error_is_made_up_for() {
        let spans = [
            (1, span("submit", 1, None, (10 * SECOND, 11 * SECOND)).kind("PRODUCER")),
            (2, attempt(2, 1, (5 * SECOND, 6 * SECOND), Some((0, -4_999_000_000)))),
        ];
        assert_eq!(starts(&trace(&spans).on_one_clock())[1], (2, 10 * SECOND, 5 * SECOND as i64));
    }

    #[test]
    fn nothing_is_shifted_that_says_nothing_of_its_clock_or_has_no_parent() {
        let early = (5 * SECOND, 6 * SECOND);
        let spans = [
            (1, span("submit", 1, None, (10 * SECOND, 11 * SECOND)).kind("PRODUCER")),
            (2, attempt(2, 1, early, None)),
            (3, attempt(3, 9, early, Some((0, -5_000_000_000)))),
        ];
        let stored = trace(&spans);
        let shown = stored.on_one_clock();
        assert_eq!((starts(&shown), shown.clock_shifts()), (starts(&stored), Vec::new()));
        let far = attempt(2, 1, early, Some((i64::MAX, i64::MIN)));
        assert!(matches!(trace(&[(1, spans[0].1.clone()), (2, far)]).on_one_clock(), Cow::Borrowed(_)), "nonsense");
    }
}
