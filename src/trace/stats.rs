//! Figures of time for each name of a span.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::by_id::ById;
use crate::loaded::{Loaded, Trace};
use crate::span::{Status, TraceId};

/// Figures for each name, that with the most time of its own first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// The one trace that was counted; none for all of a folder.
    #[serde(skip_serializing_if = "Option::is_none", skip_deserializing)]
    pub trace_id: Option<TraceId>,
    /// The rows.
    #[serde(rename = "names")]
    pub rows: Vec<StatsRow>,
    /// Number of names.
    #[serde(skip)]
    pub names: usize,
    /// Number of names that were left out because of the limit.
    pub left_out: usize,
    /// Number of spans that were counted.
    pub spans: usize,
    /// Number of spans that were not counted, because nobody knows when they ended.
    pub without_end: usize,
}

/// The spans of one name. Durations are in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatsRow {
    /// The name.
    pub name: String,
    /// Number of spans.
    pub count: usize,
    /// Number of them with the status ERROR.
    pub errors: usize,
    /// The duration that half of them do not exceed. Like every quantile here it is one of the durations (nearest rank).
    pub p50_ns: u64,
    /// The duration that 95 of 100 do not exceed.
    pub p95_ns: u64,
    /// The longest duration.
    pub max_ns: u64,
    /// The time in which they ran and none of their children did, all together.
    pub self_ns: u64,
}

/// Durations and counts of the spans of one name.
#[derive(Default)]
struct Gathered {
    durations: Vec<u64>,
    errors: usize,
    self_ns: u64,
}

impl Loaded {
    /// Counts all spans by their names, and returns the first `limit` names or all.
    pub fn stats(&self, limit: Option<usize>) -> Stats {
        Stats::of(&self.traces, limit)
    }
}

impl Trace {
    /// Counts the spans of this trace by their names, and returns the first `limit` names or all.
    pub fn stats(&self, limit: Option<usize>) -> Stats {
        Stats { trace_id: Some(self.id), ..Stats::of([self], limit) }
    }
}

impl Stats {
    fn of<'a>(traces: impl IntoIterator<Item = &'a Trace>, limit: Option<usize>) -> Stats {
        let mut gathered = GatheredStats::default();
        traces.into_iter().for_each(|trace| gathered.add(trace));
        gathered.finish(limit)
    }
}

/// Figures of the traces that were added.
#[derive(Default)]
pub struct GatheredStats {
    by_name: HashMap<String, Gathered>,
    spans: usize,
    without_end: usize,
}

impl GatheredStats {
    /// Adds the spans of a trace.
    pub fn add(&mut self, trace: &Trace) {
        for (span, self_ns) in trace.spans.iter().zip(self_times(trace)) {
            if span.end_unix_nano().is_none() {
                self.without_end += 1;
                continue;
            }
            self.spans += 1;
            let gathered = match self.by_name.get_mut(span.name()) {
                Some(gathered) => gathered,
                None => self.by_name.entry(span.name().to_owned()).or_default(),
            };
            gathered.durations.push(span.duration_ns());
            gathered.errors += usize::from(span.status == Status::Error);
            gathered.self_ns = gathered.self_ns.saturating_add(self_ns);
        }
    }

    /// Returns the first `limit` names or all.
    pub fn finish(self, limit: Option<usize>) -> Stats {
        let mut rows: Vec<StatsRow> =
            self.by_name.into_iter().map(|(name, gathered)| StatsRow::new(name, gathered)).collect();
        rows.sort_by(|left, right| right.self_ns.cmp(&left.self_ns).then_with(|| left.name.cmp(&right.name)));
        let names = rows.len();
        rows.truncate(limit.unwrap_or(usize::MAX));
        let left_out = names - rows.len();
        Stats { trace_id: None, left_out, rows, names, spans: self.spans, without_end: self.without_end }
    }
}

/// Returns the nearest-rank percentile of sorted values, one that there is; none of no values.
pub fn nearest_rank(sorted: &[u64], percent: usize) -> Option<u64> {
    sorted.get((sorted.len() * percent).div_ceil(100).saturating_sub(1)).copied()
}

impl StatsRow {
    fn new(name: String, mut gathered: Gathered) -> StatsRow {
        gathered.durations.sort_unstable();
        // There is a row only for a name that was met.
        let at_rank = |percent| nearest_rank(&gathered.durations, percent).unwrap_or_default();
        StatsRow {
            name,
            count: gathered.durations.len(),
            errors: gathered.errors,
            p50_ns: at_rank(50),
            p95_ns: at_rank(95),
            max_ns: at_rank(100),
            self_ns: gathered.self_ns,
        }
    }
}

/// For each span of the trace, how long it ran while none of its children did. Children at the same time count once, and
/// only for as long as their parent runs.
pub(super) fn self_times(trace: &Trace) -> Vec<u64> {
    let by_id = ById::new(&trace.spans);
    let mut self_times: Vec<u64> = trace.spans.iter().map(|span| span.duration_ns()).collect();
    // Up to where the children seen so far cover each span.
    let mut covered_until: Vec<u64> = trace.spans.iter().map(|span| span.start_unix_nano).collect();
    // Spans are sorted by start, so the children of each come in the order in which they started.
    for (index, child) in trace.spans.iter().enumerate() {
        let parent = by_id.parent(&trace.spans, child);
        let Some(parent) = parent.filter(|parent| *parent != index) else { continue };
        let parent_end = trace.spans[parent].start_unix_nano + trace.spans[parent].duration_ns();
        let start = child.start_unix_nano.max(covered_until[parent]);
        let end = (child.start_unix_nano + child.duration_ns()).min(parent_end);
        if end > start {
            self_times[parent] -= end - start;
            covered_until[parent] = end;
        }
    }
    self_times
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{loaded, span};
    use super::*;

    fn stats_of(spans: &[super::super::fixture::SpanText]) -> Stats {
        let lines: String = spans.iter().map(|span| span.line()).collect();
        loaded([("1.json", lines.into_bytes())]).stats(None)
    }

    fn self_ns(stats: &Stats, name: &str) -> u64 {
        stats.rows.iter().find(|row| row.name == name).map(|row| row.self_ns).expect("the name is there")
    }

    #[test]
    fn time_of_ones_own_is_what_no_child_covers() {
        let stats = stats_of(&[
            span("job", 1, None, (0, 100)),
            // Two at a time, one that outlives its parent, one after it, one with a child of its own.
            span("a", 2, 1, (10, 30)),
            span("b", 3, 1, (20, 40)),
            span("late", 4, 1, (90, 130)),
            span("after", 5, 1, (200, 210)),
            span("inner", 6, 2, (12, 13)),
            span("orphan", 7, 99, (0, 5)),
        ]);
        assert_eq!(self_ns(&stats, "job"), 60_000);
        assert_eq!(self_ns(&stats, "a"), 19_000);
        assert_eq!(self_ns(&stats, "late"), 40_000);
        assert_eq!(self_ns(&stats, "orphan"), 5_000);
        let order: Vec<&str> = stats.rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(order, ["job", "late", "b", "a", "after", "orphan", "inner"]);
    }

    #[test]
    fn quantiles_are_durations_that_there_were() {
        let spans: Vec<_> = (1..=20).map(|number| span("step", number, None, (0, number))).collect();
        let failed = span("step", 21, None, (0, 1000)).failed("no");
        let stats = stats_of(&[spans, vec![failed]].concat());
        let row = &stats.rows[0];
        assert_eq!((row.count, row.errors), (21, 1));
        assert_eq!((row.p50_ns, row.p95_ns, row.max_ns), (11_000, 20_000, 1_000_000));
        let one = stats_of(&[span("one", 1, None, (0, 7))]);
        assert_eq!((one.rows[0].p50_ns, one.rows[0].p95_ns, one.rows[0].max_ns), (7_000, 7_000, 7_000));
    }

    #[test]
    fn one_trace_is_counted_alone() {
        let lines = [span("a", 1, None, (0, 9)).trace(1), span("a", 2, None, (0, 5)).trace(2)].map(|span| span.line());
        let loaded = loaded([("1.json", lines.concat().into_bytes())]);
        let stats = loaded.traces[1].stats(None);
        assert_eq!((stats.spans, stats.rows.len(), stats.rows[0].count), (1, 1, 1));
        let json = serde_json::to_value(&stats).expect("rows have nothing that JSON lacks");
        assert_eq!(json["trace_id"], format!("{:032x}", stats.trace_id.expect("it is one trace").0));
        assert_eq!(loaded.stats(None).rows[0].count, 2);
    }

    #[test]
    fn spans_without_an_end_and_names_beyond_the_limit_are_counted() {
        let open = span("open", 1, None, (0, 1))
            .line()
            .replace(r#""end_time": "2026-11-05T12:00:00.000001Z""#, r#""end_time": null"#);
        let lines = [open, span("a", 2, None, (0, 9)).line(), span("b", 3, None, (0, 1)).line()].concat();
        let stats = loaded([("1.json", lines.into_bytes())]).stats(Some(1));
        assert_eq!((stats.rows.len(), stats.left_out, stats.spans, stats.without_end), (1, 1, 2, 1));
        let json = serde_json::to_value(&stats).expect("rows have nothing that JSON lacks");
        assert_eq!(json["names"][0]["name"], "a");
        assert_eq!(json["names"][0]["self_ns"], 9_000);
        assert_eq!(json["left_out"], 1);
    }

    #[test]
    fn spans_that_are_their_own_ancestors_do_no_harm() {
        let stats = stats_of(&[span("self", 1, 1, (0, 9)), span("x", 2, 3, (0, 9)), span("y", 3, 2, (0, 9))]);
        assert_eq!((self_ns(&stats, "self"), self_ns(&stats, "x"), self_ns(&stats, "y")), (9_000, 0, 0));
    }
}
