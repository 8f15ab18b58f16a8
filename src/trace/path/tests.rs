use proptest::prelude::*;

use super::super::fixture::{EPOCH, SpanText, span, trace};
use super::*;

fn path_of(spans: &[SpanText]) -> (Trace, CriticalPath, Vec<Idle>) {
    let spans: Vec<_> = spans.iter().map(|span| (1, span.clone())).collect();
    let trace = trace(&spans);
    let tree = Tree::new(&trace);
    let (path, idle) = (CriticalPath::new(&trace, &tree), idle(&trace, &tree, 1));
    (trace, path, idle)
}

fn micros(unix_nano: u64) -> u64 {
    (unix_nano - EPOCH) / 1000
}

/// Returns the stretches of the path, as `name from-to`.
fn outline(spans: &[SpanText]) -> Vec<String> {
    let (trace, path, _) = path_of(spans);
    let kind = |kind| match kind {
        StretchKind::Span(index) => trace.spans[index].name().to_string(),
        StretchKind::Queued(index) => format!("queued {}", trace.spans[index].name()),
        StretchKind::Between => "between".into(),
    };
    let text = |stretch: &Stretch| {
        format!("{} {}-{}", kind(stretch.kind), micros(stretch.start_unix_nano), micros(stretch.end_unix_nano))
    };
    path.stretches().map(|stretch| text(&stretch)).collect()
}

fn idle_of(spans: &[SpanText]) -> Vec<(u64, u64, String, bool)> {
    let (trace, _, idle) = path_of(spans);
    let name = |index: usize| trace.spans[index].name().to_string();
    idle.iter()
        .map(|idle| (micros(idle.start_unix_nano), micros(idle.end_unix_nano), name(idle.before), idle.is_queued))
        .collect()
}

/// Returns a submission that is over at once and a task that is run later, in a job.
fn queued() -> Vec<SpanText> {
    vec![
        span("job", 1, None, (0, 100)),
        span("submit", 2, 1, (5, 10)).kind("PRODUCER"),
        span("run", 3, 2, (80, 95)).kind("CONSUMER"),
    ]
}

#[test]
fn the_path_leads_through_what_was_over_last() {
    let cases: [(&[SpanText], &[&str]); 8] = [
        (&[span("a", 1, None, (0, 10))], &["a 0-10"]),
        // One after the other: both.
        (
            &[span("a", 1, None, (0, 10)), span("b", 2, 1, (1, 4)), span("c", 3, 1, (5, 9))],
            &["a 0-1", "b 1-4", "a 4-5", "c 5-9", "a 9-10"],
        ),
        // At once: the one that took longer, and not what overlaps with it.
        (
            &[
                span("a", 1, None, (0, 10)),
                span("short", 2, 1, (1, 4)),
                span("long", 3, 1, (2, 9)),
                span("inner", 4, 3, (3, 8)),
            ],
            &["a 0-2", "long 2-3", "inner 3-8", "long 8-9", "a 9-10"],
        ),
        // A child that outlives its parent, for which nobody waits; and one for which somebody does.
        (&[span("a", 1, None, (0, 3)), span("b", 2, 1, (2, 10))], &["a 0-2", "b 2-10"]),
        (&queued(), &["job 0-5", "submit 5-10", "queued run 10-80", "run 80-95", "job 95-100"]),
        // Two roots, one after the other.
        (&[span("a", 1, 9, (0, 3)), span("b", 2, 8, (5, 6))], &["a 0-3", "between 3-5", "b 5-6"]),
        // A clock that is behind.
        (&[span("a", 1, None, (5, 10)), span("b", 2, 1, (3, 8))], &["b 3-8", "a 8-10"]),
        // A clock that was set back while the last span was open: the path is as long as the trace all the same.
        (&[span("a", 1, None, (0, 10)), span("b", 2, 1, (60, 4))], &["a 0-10", "between 10-60"]),
    ];
    for (spans, expected) in cases {
        assert_eq!(outline(spans), expected);
        let (trace, path, _) = path_of(spans);
        assert_eq!(path.stretches().map(|stretch| stretch.duration_ns()).sum::<u64>(), trace.duration_ns());
    }
}

#[test]
fn a_second_attempt_was_queued_since_the_end_of_the_first() {
    let spans = [
        span("submit", 1, None, (0, 2)).kind("PRODUCER"),
        span("first", 2, 1, (5, 20)).kind("CONSUMER"),
        span("second", 3, 1, (50, 60)).kind("CONSUMER"),
    ];
    let expected = ["submit 0-2", "queued first 2-5", "first 5-20", "queued second 20-50", "second 50-60"];
    assert_eq!(outline(&spans), expected);
    let (_, path, _) = path_of(&spans);
    assert_eq!((path.queued_ns(), path.in_spans_ns(), path.between_ns()), (33_000, 27_000, 0));
}

#[test]
fn nothing_runs_while_all_that_is_open_waits_for_what_is_to_come() {
    let queue = (10, 80, "run".to_string(), true);
    assert_eq!(idle_of(&queued()), [queue]);
    // Something else runs meanwhile; something happens meanwhile.
    let with = |other: SpanText| [queued(), vec![other]].concat();
    let name = |name: &str| name.to_string();
    assert_eq!(idle_of(&with(span("other", 4, 1, (0, 70)))), [(70, 80, name("run"), true)]);
    assert_eq!(
        idle_of(&with(span("tick", 4, 1, (40, 40)))),
        [(10, 40, name("tick"), false), (40, 80, name("run"), true)]
    );
    assert_eq!(idle_of(&[span("a", 1, 9, (0, 3)), span("b", 2, 8, (5, 6))]), [(3, 5, name("b"), false)]);
    assert_eq!(idle_of(&[span("a", 1, None, (0, 10)), span("b", 2, 1, (3, 5))]), []);
}

#[test]
fn a_long_chain_needs_no_stack_and_many_siblings_no_square() {
    let chain: Vec<_> = (1..=20_000_u64)
        .map(|id| span("s", id, id.checked_sub(1).filter(|parent| *parent > 0), (id, 50_000 - id)))
        .collect();
    assert_eq!(path_of(&chain).1.stretches().count(), 2 * 20_000 - 1);
    let siblings: Vec<_> = std::iter::once(span("job", 1, None, (0, 100_000)))
        .chain((2..20_000).map(|id| span("s", id, 1, (id, 40_000))))
        .collect();
    let (_, path, idle) = path_of(&siblings);
    assert_eq!((path.stretches().count(), idle), (3, vec![]));
}

proptest! {
    #[test]
    fn the_path_has_no_gap_and_ends_with_the_last_span(
        spans in prop::collection::vec((0_u64..12, 0_u64..50, 0_u64..50, 0_usize..3), 1..12),
    ) {
        const KINDS: [&str; 3] = ["INTERNAL", "PRODUCER", "CONSUMER"];
        // 0 is no parent, ids beyond the last are not found.
        let spans: Vec<_> = spans
            .iter()
            .enumerate()
            .map(|(index, &(parent, start, length, kind))| {
                let parent = Some(parent).filter(|parent| *parent > 0);
                (1, span("s", index as u64 + 1, parent, (start, start + length)).kind(KINDS[kind]))
            })
            .collect();
        let trace = trace(&spans);
        let tree = Tree::new(&trace);
        let path = CriticalPath::new(&trace, &tree);
        let mut at = trace.start_unix_nano();
        for stretch in path.stretches() {
            prop_assert_eq!(stretch.start_unix_nano, at);
            prop_assert!(stretch.end_unix_nano > at);
            at = stretch.end_unix_nano;
            if let StretchKind::Span(index) = stretch.kind {
                let span = &trace.spans[index];
                prop_assert!(path.contains(index));
                prop_assert!(span.start_unix_nano <= stretch.start_unix_nano);
                prop_assert!(Some(stretch.end_unix_nano) <= span.end_unix_nano());
            }
        }
        prop_assert_eq!(at, trace.end_unix_nano());
        prop_assert_eq!(path.in_spans_ns() + path.queued_ns() + path.between_ns(), trace.duration_ns());
        let is_last = |index: &usize| trace.spans[*index].end_unix_nano() == Some(trace.end_unix_nano());
        prop_assert!((0..trace.spans.len()).filter(is_last).any(|index| path.contains(index)));
        // Whatever is on the path has its parent on it.
        let mut above: Vec<bool> = Vec::new();
        for node in tree.nodes() {
            above.truncate(node.depth);
            let is_on = match node.item {
                Item::Missing(_) => true,
                Item::Span(index) | Item::Circle(index) => path.contains(index),
            };
            prop_assert!(!is_on || above.last().copied().unwrap_or(true));
            above.push(is_on);
        }
        // Nothing ends, and nothing starts, within an idle stretch.
        for idle in idle(&trace, &tree, 1) {
            prop_assert!(idle.start_unix_nano < idle.end_unix_nano);
            prop_assert_eq!(trace.spans[idle.before].start_unix_nano, idle.end_unix_nano);
            for span in &trace.spans {
                let is_within = |at: u64| idle.start_unix_nano < at && at < idle.end_unix_nano;
                prop_assert!(!is_within(span.start_unix_nano));
            }
        }
    }
}
