//! The traces of a folder, one row each.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use tracer_core::names;

use super::time;
use crate::loaded::{Loaded, Trace};
use crate::query::Query;
use crate::region::Region;
use crate::span::{Span, TraceId};

/// One row for each trace, the newest first. It serialises as an object, which says what it left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct List {
    /// The rows.
    #[serde(rename = "traces")]
    pub rows: Vec<Row>,
    /// Number of older traces that were left out because of the limit.
    pub left_out: usize,
    /// Number of traces that the filter did not let through.
    pub filtered_out: usize,
    /// Number of digits that tell every trace in the folder from the others, 12 at least.
    #[serde(skip)]
    pub id_digits: usize,
}

/// Conditions on the traces that are listed: all that are set have to hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    /// Only those that a question finds.
    pub query: Query,
    /// Only those with a span whose status is ERROR.
    pub errors: bool,
    /// Only those with a span whose name has this text in it, in any case.
    pub name: Option<String>,
    /// Only those that took at least so long.
    pub min_duration_ns: u64,
    /// Only those in a region of start and duration.
    pub region: Region,
}

impl Filter {
    /// Returns whether the filter lets a trace through.
    pub fn matches(&self, trace: &Trace) -> bool {
        let name = self.name.as_ref().map(|name| name.to_lowercase());
        trace.duration_ns() >= self.min_duration_ns
            && self.region.contains(trace)
            && (!self.errors || trace.error_count() > 0)
            && name.is_none_or(|name| trace.spans.iter().any(|span| span.name().to_lowercase().contains(&name)))
            && (self.query.is_empty() || self.query.matches(trace))
    }
}

/// A trace in a few figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Its id.
    pub trace_id: TraceId,
    /// The name of the span that it began with.
    pub root: String,
    /// The first thing that was submitted, and how many more, of a trace whose root is the job; none where the root says it itself, and of a trace with very
    /// many spans.
    pub does: Option<String>,
    /// Time at which its first span started.
    #[serde(rename = "start_time", serialize_with = "serialize_time")]
    pub start_unix_nano: u64,
    /// Time at which its last span ended.
    #[serde(rename = "end_time", serialize_with = "serialize_time")]
    pub end_unix_nano: u64,
    /// From the first start to the last end.
    pub duration_ns: u64,
    /// Number of its spans.
    pub spans: usize,
    /// Number of them with the status ERROR.
    pub errors: usize,
}

fn serialize_time<S: Serializer>(unix_nano: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&time::format(*unix_nano))
}

impl Row {
    /// Makes the row of a trace.
    pub fn new(trace: &Trace) -> Row {
        Row {
            trace_id: trace.id,
            root: trace.root().name().to_string(),
            does: trace.does(),
            start_unix_nano: trace.start_unix_nano(),
            end_unix_nano: trace.end_unix_nano(),
            duration_ns: trace.duration_ns(),
            spans: trace.spans.len(),
            errors: trace.error_count(),
        }
    }
}

impl Row {
    /// Returns a name by which people tell the trace from others: what it does, and its root.
    pub fn title(&self) -> String {
        match &self.does {
            Some(does) => format!("{does}  {}", self.root),
            None => self.root.clone(),
        }
    }
}

impl Trace {
    /// Returns what a job does: its first submission, and how many more there are. None of a trace that begins with anything else.
    pub fn does(&self) -> Option<String> {
        let root = self.root();
        if root.name() != names::JOB_SPAN {
            return None;
        }
        let below = |span: &&Span| span.parent_id() == Some(root.span_id);
        let mut below = self.spans.iter().filter(below).map(|span| names::target_of(span.name()));
        let first = below.next()?;
        let more = below.count();
        Some(if more > 0 { format!("{first} and {more} more") } else { first.to_owned() })
    }
}

impl Loaded {
    /// Lists the newest `limit` traces that the filter lets through, or all of these.
    pub fn list(&self, filter: &Filter, limit: Option<usize>) -> List {
        let mut gathered = GatheredList::new(filter, limit);
        self.traces.iter().for_each(|trace| gathered.add(trace));
        gathered.finish()
    }
}

/// Rows of the traces that were added and that a filter finds, the newest at most.
pub struct GatheredList<'a> {
    filter: &'a Filter,
    limit: usize,
    rows: BTreeMap<(u64, TraceId), Row>,
    matching: usize,
    ids: Vec<TraceId>,
}

impl GatheredList<'_> {
    /// Begins a list of at most `limit` rows.
    pub fn new(filter: &Filter, limit: Option<usize>) -> GatheredList<'_> {
        let limit = limit.unwrap_or(usize::MAX);
        GatheredList { filter, limit, rows: BTreeMap::new(), matching: 0, ids: Vec::new() }
    }

    /// Adds a trace.
    pub fn add(&mut self, trace: &Trace) {
        self.ids.push(trace.id);
        if !self.filter.matches(trace) {
            return;
        }
        self.matching += 1;
        let key = (trace.start_unix_nano(), trace.id);
        let is_full = self.rows.len() >= self.limit;
        if is_full && self.rows.first_key_value().is_none_or(|(oldest, _)| *oldest > key) {
            return;
        }
        self.rows.insert(key, Row::new(trace));
        if is_full {
            self.rows.pop_first();
        }
    }

    /// Returns the list, the newest at the front.
    pub fn finish(self) -> List {
        List {
            left_out: self.matching - self.rows.len(),
            rows: self.rows.into_values().rev().collect(),
            filtered_out: self.ids.len() - self.matching,
            id_digits: id_digits(self.ids),
        }
    }
}

fn id_digits(mut ids: Vec<TraceId>) -> usize {
    ids.sort();
    let common = ids.windows(2).map(|pair| (pair[0].0 ^ pair[1].0).leading_zeros() as usize / 4 + 1);
    common.max().unwrap_or(0).clamp(12, 32)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{loaded, span};
    use super::*;

    fn two_traces() -> Loaded {
        let spans = [
            span("old", 1, None, (0, 1)).trace(1).line(),
            span("job", 2, None, (10, 30)).trace(2).line(),
            span("child", 3, 2, (5, 40)).trace(2).failed("no").line(),
        ];
        loaded([("1.json", spans.concat().into())])
    }

    #[test]
    fn a_list_for_programs_has_rows_and_says_what_it_left_out() {
        assert_eq!(
            serde_json::to_value(two_traces().list(&Filter::default(), Some(1)))
                .expect("rows have nothing that JSON lacks"),
            serde_json::json!({
                "traces": [{
                    "trace_id": "00000000000000000000000000000002",
                    "root": "job",
                    "does": null,
                    "start_time": "2026-11-05T12:00:00.000005Z",
                    "end_time": "2026-11-05T12:00:00.000040Z",
                    "duration_ns": 35_000,
                    "spans": 2,
                    "errors": 1,
                }],
                "left_out": 1,
                "filtered_out": 0,
            })
        );
    }

    #[test]
    fn traces_of_jobs_are_told_apart_by_what_they_do() {
        let job = |trace: u128, targets: &[&str]| {
            let mut spans = vec![span("tracer job", 1, None, (0, 9)).trace(trace)];
            spans.extend(targets.iter().zip(2..).map(|(target, id)| span(target, id, 1, (id, 8)).trace(trace)));
            spans.iter().map(|span| span.line()).collect::<String>()
        };
        let text = job(1, &["wordcount.count tracer.remote", "shop.charge tracer.remote"])
            + &job(2, &["sh tracer.remote"])
            + &job(3, &[]);
        let loaded = loaded([("1.json", text.into())]);
        let titles: Vec<_> = loaded.list(&Filter::default(), None).rows.iter().map(Row::title).collect();
        assert_eq!(titles, ["tracer job", "sh  tracer job", "wordcount.count and 1 more  tracer job"]);
        let error = loaded.find("0").unwrap_err().to_string();
        assert!(error.contains("0002  sh  tracer job\n") && error.contains("count and 1 more  tracer job"), "{error}");
    }

    #[test]
    fn a_filter_counts_what_it_holds_back() {
        let loaded = two_traces();
        let listed = |filter: Filter| {
            let list = loaded.list(&filter, None);
            let ids: Vec<u128> = list.rows.iter().map(|row| row.trace_id.0).collect();
            (ids, list.filtered_out)
        };
        assert_eq!(listed(Filter::default()), (vec![2, 1], 0));
        assert_eq!(listed(Filter { errors: true, ..Filter::default() }), (vec![2], 1));
        assert_eq!(listed(Filter { name: Some("CHIL".into()), ..Filter::default() }), (vec![2], 1));
        assert_eq!(listed(Filter { name: Some("x".into()), ..Filter::default() }), (vec![], 2));
        assert_eq!(listed(Filter { min_duration_ns: 35_000, ..Filter::default() }), (vec![2], 1));
        assert_eq!(listed(Filter { min_duration_ns: 35_001, ..Filter::default() }), (vec![], 2));
        assert_eq!(listed(Filter { errors: true, name: Some("old".into()), ..Filter::default() }), (vec![], 2));
    }

    #[test]
    fn as_many_digits_are_shown_as_tell_traces_apart() {
        let ids = |ids: &[u128]| id_digits(ids.iter().copied().map(TraceId).collect());
        assert_eq!(ids(&[]), 12);
        assert_eq!(ids(&[1]), 12);
        assert_eq!(ids(&[1 << 124, 2 << 124]), 12);
        assert_eq!(ids(&[0x10_0001 << 64, 0x10_0002 << 64]), 16);
        assert_eq!(ids(&[0x13, 1 << 127, 0x12]), 32);
    }
}
