use proptest::prelude::*;

use super::super::fixture::{span, trace};
use super::*;

/// Returns one line a node: depth, whether it is the last of its siblings, what it is.
fn outline(spans: &[(u64, Option<u64>, u64)]) -> Vec<String> {
    let spans: Vec<_> = spans
        .iter()
        .map(|(id, parent_id, start)| (1, span(&format!("s{id}"), *id, *parent_id, (*start, *start + 1))))
        .collect();
    let trace = trace(&spans);
    let describe = |node: Node| {
        let last = if node.is_last { "└" } else { "├" };
        let item = match node.item {
            Item::Span(index) => trace.spans[index].name().to_string(),
            Item::Circle(index) => format!("circle {}", trace.spans[index].name()),
            Item::Missing(span_id) => format!("missing {}", span_id.0),
        };
        format!("{}{last}{item}", " ".repeat(node.depth))
    };
    Tree::new(&trace).nodes().map(describe).collect()
}

#[test]
fn siblings_are_in_order_of_their_start() {
    assert_eq!(
        outline(&[(4, Some(2), 9), (3, Some(1), 1), (2, Some(1), 5), (1, None, 0), (5, Some(2), 7)]),
        ["└s1", " ├s3", " └s2", "  ├s5", "  └s4"]
    );
}

#[test]
fn a_trace_may_have_several_roots() {
    assert_eq!(outline(&[(1, None, 5), (2, None, 0), (3, Some(1), 6)]), ["└s2", "└s1", " └s3"]);
}

#[test]
fn orphans_of_one_parent_share_its_place() {
    assert_eq!(
        outline(&[(1, Some(9), 3), (2, Some(8), 2), (3, Some(9), 1), (4, None, 0)]),
        ["└s4", "└missing 9", " ├s3", " └s1", "└missing 8", " └s2"]
    );
}

#[test]
fn circles_are_cut_at_their_first_span() {
    assert_eq!(outline(&[(1, Some(1), 0)]), ["└circle s1"]);
    assert_eq!(
        outline(&[(1, Some(2), 5), (2, Some(3), 3), (3, Some(1), 4), (4, Some(1), 0), (5, None, 9)]),
        ["└s5", "└circle s2", " └s1", "  ├s4", "  └s3"]
    );
}

#[test]
fn a_long_chain_needs_no_stack() {
    let spans: Vec<_> = (1..=20_000_u64).map(|id| (id, id.checked_sub(1).filter(|parent| *parent > 0), id)).collect();
    let outline = outline(&spans);
    assert_eq!(outline.len(), 20_000);
    assert!(outline[19_999].ends_with("└s20000"));
}

proptest! {
    #[test]
    fn every_span_is_placed_once_and_below_its_parent(parents in prop::collection::vec(0_u64..12, 1..10)) {
        // 0 is no parent, ids beyond the last are not found.
        let spans: Vec<_> = parents
            .iter()
            .enumerate()
            .map(|(index, parent)| (1, span("s", index as u64 + 1, Some(*parent).filter(|parent| *parent > 0), (0, 1))))
            .collect();
        let trace = trace(&spans);
        let tree = Tree::new(&trace);
        let mut seen = Vec::new();
        let mut above: Vec<Option<SpanId>> = Vec::new();
        for node in tree.nodes() {
            prop_assert!(node.depth <= above.len());
            above.truncate(node.depth);
            let parent = above.last().copied().flatten();
            match node.item {
                Item::Missing(span_id) => above.push(Some(span_id)),
                Item::Circle(index) => {
                    prop_assert_eq!(node.depth, 0);
                    seen.push(index);
                    above.push(Some(trace.spans[index].span_id));
                }
                Item::Span(index) => {
                    prop_assert_eq!(trace.spans[index].parent_id(), parent);
                    seen.push(index);
                    above.push(Some(trace.spans[index].span_id));
                }
            }
        }
        seen.sort();
        prop_assert_eq!(seen, (0..trace.spans.len()).collect::<Vec<_>>());
    }
}
