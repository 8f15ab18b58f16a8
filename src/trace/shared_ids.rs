//! Spans that have one id: records of the same span, of which one is shown, and two spans of one call.
//!
//! Some tracers give the two sides of a call one id, that of a client span and of the server's. A span of another kind is another span: it is shown with an
//! id of its own, made of the shared one, below the side that called. Children whose parent has the shared id are below the side that answers, unless the
//! process that called made them. Of records of one span, one that has ended replaces one that has not, else the first is kept. The files are left as
//! they are.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::by_id::ById;
use crate::span::{Kind, Span, SpanId};

/// Leaves one record of each span, and gives spans of one id and several kinds an id each. Returns how many records were left out.
pub(super) fn settle(spans: &mut Vec<Span>) -> usize {
    // More may have come since they got other ids.
    spans.iter_mut().for_each(Span::restore);
    let by_id = ById::new(spans);
    let shared: Vec<Vec<usize>> =
        by_id.shared(spans).map(|places| places.iter().map(|place| *place as usize).collect()).collect();
    let (mut left_out, mut others) = (BTreeSet::new(), HashMap::new());
    for places in shared {
        let mut kept: Vec<usize> = Vec::new();
        for place in places {
            match kept.iter().copied().find(|known| is_same(&spans[*known], &spans[place])) {
                Some(known) => {
                    left_out.insert(place);
                    if spans[known].end_unix_nano().is_none() && spans[place].end_unix_nano().is_some() {
                        spans.swap(known, place);
                    }
                }
                None => kept.push(place),
            }
        }
        if kept.len() > 1 {
            others.insert(spans[kept[0]].span_id, kept);
        }
    }
    if !others.is_empty() {
        separate(spans, others);
    }
    if !left_out.is_empty() {
        let mut place = 0..;
        spans.retain(|_| place.next().is_none_or(|place| !left_out.contains(&place)));
    }
    left_out.len()
}

/// Returns whether two records of one id are of one span. Some writers leave the kind out.
fn is_same(one: &Span, other: &Span) -> bool {
    let has_none = one.kind == Kind::Internal || other.kind == Kind::Internal;
    one.kind == other.kind || has_none && one.start_unix_nano == other.start_unix_nano
}

/// Side of a call that a span is, from outside to inside.
fn side(kind: Kind) -> u8 {
    match kind {
        Kind::Client | Kind::Producer => 0,
        Kind::Internal => 1,
        Kind::Server | Kind::Consumer => 2,
    }
}

/// Gives all but the outermost of spans with one id another one, and moves the children.
fn separate(spans: &mut [Span], others: HashMap<SpanId, Vec<usize>>) {
    let taken: HashSet<SpanId> = spans.iter().map(|span| span.span_id).collect();
    let mut shared: HashMap<SpanId, Vec<usize>> = HashMap::new();
    for (id, mut places) in others {
        places.sort_by_key(|place| (side(spans[*place].kind), spans[*place].start_unix_nano, *place));
        let mut outer = id;
        for place in &places[1..] {
            let own = id_beside(outer, |id| taken.contains(&id));
            spans[*place].rewrite(own, Some(outer));
            outer = own;
        }
        shared.insert(id, places);
    }
    for place in 0..spans.len() {
        let span = &spans[place];
        let Some(places) = span.parent_id().and_then(|parent| shared.get(&parent)) else { continue };
        let (Some(outermost), Some(innermost)) = (places.first(), places.last()) else { continue };
        // A span that was separated is below the one before it already.
        let is_one_of_them = span.is_rewritten() || places.contains(&place);
        let is_of_caller =
            || span.process() == spans[*outermost].process() && span.process() != spans[*innermost].process();
        if !is_one_of_them && !is_of_caller() {
            let (own, parent) = (span.span_id, spans[*innermost].span_id);
            spans[place].rewrite(own, Some(parent));
        }
    }
}

/// Returns an id that is always the same for an id, and that no other span has.
fn id_beside(SpanId(id): SpanId, is_taken: impl Fn(SpanId) -> bool) -> SpanId {
    let next = |id: u64| (id ^ id >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).max(1);
    let mut found = next(id);
    while is_taken(SpanId(found)) {
        found = next(found.wrapping_add(1));
    }
    SpanId(found)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::fixture::{loaded, span};
    use super::*;
    use crate::loaded::{Loaded, Trace};
    use crate::tree::Tree;

    /// Returns the names of the spans, each with that of its parent.
    fn shown(trace: &Trace) -> Vec<String> {
        let name = |id: SpanId| trace.span(id).map_or("?", |span| span.name());
        let with_parent = |span: &Span| match span.parent_id() {
            Some(parent) => format!("{}<{}", span.name(), name(parent)),
            None => span.name().to_string(),
        };
        let mut shown: Vec<_> = trace.spans.iter().map(with_parent).collect();
        shown.sort();
        shown
    }

    fn ids(trace: &Trace) -> BTreeSet<SpanId> {
        trace.spans.iter().map(|span| span.span_id).collect()
    }

    fn call(order: [usize; 4]) -> Loaded {
        let spans = [
            ("1.json", span("call", 2, 1, (1, 9)).kind("CLIENT")),
            ("2.json", span("answer", 2, 1, (2, 8)).kind("SERVER")),
            ("2.json", span("query", 3, 2, (3, 4))),
            ("1.json", span("look up", 4, 2, (1, 2))),
        ];
        let text = |name: &str| {
            order
                .iter()
                .map(|at| &spans[*at])
                .filter(|(file, _)| *file == name)
                .map(|(_, span)| span.line())
                .collect::<String>()
        };
        let root = span("root", 1, None, (0, 10)).line();
        loaded([("1.json", (root + &text("1.json")).into()), ("2.json", text("2.json").into())])
    }

    #[test]
    fn two_sides_of_a_call_with_one_id_are_two_spans_each_with_its_children() {
        let expected = ["answer<call", "call<root", "look up<call", "query<answer", "root"];
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
            let loaded = call(order);
            let trace = &loaded.traces[0];
            assert_eq!((shown(trace), trace.duplicates), (expected.map(str::to_owned).to_vec(), 0));
            assert_eq!(ids(trace), ids(&call([0, 1, 2, 3]).traces[0]), "an id is always the same");
            assert_eq!(Tree::new(trace).missing().count(), 0);
        }
        // More that comes later, and what is here already.
        let mut all = call([0, 1, 2, 3]);
        let more = [span("answer", 2, 1, (2, 8)).kind("SERVER"), span("late", 5, 2, (4, 5))];
        let more = loaded([("2.json", more.map(|span| span.line()).concat().into())]).traces.remove(0).spans;
        all.add(more);
        let mut expected = expected.map(str::to_owned).to_vec();
        expected.insert(2, "late<answer".into());
        assert_eq!(shown(&all.traces[0]), expected);
    }

    #[test]
    fn a_record_of_the_same_span_is_left_out_and_one_that_ended_replaces_one_that_did_not() {
        let begun = span("s", 1, None, (0, 0))
            .kind("SERVER")
            .line()
            .replace(r#""end_time": "2026-11-05T12:00:00.000000Z""#, r#""end_time": null"#);
        let ended = span("s", 1, None, (0, 5)).kind("SERVER").failed("it broke").line();
        for text in [begun.clone() + &ended, ended.clone() + &begun] {
            let loaded = loaded([("1.json", text.into())]);
            let [only] = loaded.traces[0].spans.as_slice() else { panic!("one span") };
            assert_eq!(
                (only.duration_ns(), only.status, loaded.traces[0].duplicates),
                (5000, super::super::Status::Error, 1)
            );
        }
        // A writer that leaves the kind out.
        let plain = span("s", 1, None, (0, 5)).line();
        let loaded = loaded([("1.json", (ended + &plain).into())]);
        assert_eq!((loaded.traces[0].spans.len(), loaded.traces[0].duplicates), (1, 1));
    }
}
