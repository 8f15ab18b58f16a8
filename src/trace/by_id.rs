//! The spans of a trace by their ids, in four bytes for each.

use crate::span::{Span, SpanId};

/// Places of spans in the order of their ids; those of one id in the order in which they are.
pub(super) struct ById(Vec<u32>);

impl ById {
    pub(super) fn new(spans: &[Span]) -> ById {
        let mut places: Vec<u32> = (0..spans.len() as u32).collect();
        places.sort_unstable_by_key(|place| (spans[*place as usize].span_id, *place));
        ById(places)
    }

    /// Returns the place of the last span with this id.
    pub(super) fn find(&self, spans: &[Span], id: SpanId) -> Option<usize> {
        let after = self.0.partition_point(|place| spans[*place as usize].span_id <= id);
        let place = self.0[after.checked_sub(1)?] as usize;
        (spans[place].span_id == id).then_some(place)
    }

    /// Returns the place of a span's parent.
    pub(super) fn parent(&self, spans: &[Span], span: &Span) -> Option<usize> {
        self.find(spans, span.parent_id()?)
    }

    /// Returns the places of the spans that share their id, id by id.
    pub(super) fn shared<'a>(&'a self, spans: &'a [Span]) -> impl Iterator<Item = &'a [u32]> {
        let id = |place: &u32| spans[*place as usize].span_id;
        self.0.chunk_by(move |one, next| id(one) == id(next)).filter(|places| places.len() > 1)
    }
}
