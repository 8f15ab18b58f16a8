//! Bounds that traces have to keep, for continuous integration: durations, errors, numbers of spans, and figures of an earlier run.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use tracer_core::duration::parse_duration;
use tracer_core::pattern;

use super::stats::{GatheredStats, Stats};
use crate::list::Row;
use crate::loaded::Trace;
use crate::span::{Span, SpanId, Status, TraceId};

/// Bounds of each trace and of all together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bounds {
    /// No span may have the status ERROR.
    pub no_errors: bool,
    /// The longest that spans of a name may take.
    pub max_durations: Vec<MaxDuration>,
    /// The most spans that a trace may have.
    pub max_spans: Option<usize>,
    /// Figures of an earlier run that must not be exceeded.
    pub baseline: Option<Baseline>,
}

/// The longest that spans may take, as `count<100ms`; without a name, the longest that a trace may take, as `2s`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaxDuration {
    /// The name of the spans, in which `*` and `?` stand for any text and any character; none for whole traces.
    pub name: Option<String>,
    /// The duration that they must stay below.
    pub below_ns: u64,
}

/// Figures by name, and by how much they may be exceeded.
#[derive(Clone, Debug, PartialEq)]
pub struct Baseline {
    /// Figures that `tracer trace stats --format json` wrote.
    pub stats: Stats,
    /// A share: 0.2 allows a fifth more.
    pub tolerance: f64,
}

impl FromStr for MaxDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<MaxDuration, String> {
        let (name, duration) = match text.rsplit_once('<') {
            Some(("", duration)) => (None, duration),
            Some((name, duration)) => (Some(name.trim().to_owned()), duration),
            None => (None, text),
        };
        let below = parse_duration(duration.trim()).map_err(|_| {
            format!("expected a duration, such as `2s`, or a name with one, such as `count<100ms`, found `{text}`")
        })?;
        Ok(MaxDuration { name, below_ns: u64::try_from(below.as_nanos()).unwrap_or(u64::MAX) })
    }
}

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// True if there was something to check, and all of it kept the bounds.
    pub passed: bool,
    /// Number of traces that were checked.
    pub traces: usize,
    /// Number of their spans.
    pub spans: usize,
    /// The rules, in the order in which they were given.
    pub rules: Vec<Rule>,
}

/// One bound, with all that exceeds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rule {
    /// The bound in words, such as `count below 100ms`.
    pub rule: String,
    /// Spans and traces that exceed it, in the order of the traces.
    pub offenders: Vec<Offender>,
}

/// A span, a trace or a name that exceeds a bound.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Offender {
    /// Its trace; none for a figure of all traces.
    pub trace_id: Option<TraceId>,
    /// The span; none if the whole trace is meant.
    pub span_id: Option<SpanId>,
    /// The name of the span, or the title of the trace: what it does, and its root.
    pub name: String,
    /// The figure that exceeds the bound, in words.
    pub found: String,
}

impl Bounds {
    /// Returns whether nothing is bounded.
    pub fn is_empty(&self) -> bool {
        *self == Bounds::default()
    }

    /// Checks the traces. None at all do not pass.
    #[cfg(test)]
    fn check(&self, traces: &[&Trace]) -> Report {
        let mut checked = Checked::new(self);
        traces.iter().for_each(|trace| checked.add(trace));
        checked.finish()
    }
}

/// Traces that were added, held against bounds.
pub struct Checked<'a> {
    bounds: &'a Bounds,
    traces: usize,
    spans: usize,
    /// In the order of the rules.
    no_errors: Vec<Offender>,
    max_durations: Vec<Vec<Offender>>,
    max_spans: Vec<Offender>,
    /// Figures for the baseline.
    stats: GatheredStats,
}

impl Checked<'_> {
    /// Begins a check of bounds.
    pub fn new(bounds: &Bounds) -> Checked<'_> {
        Checked {
            bounds,
            traces: 0,
            spans: 0,
            no_errors: Vec::new(),
            max_durations: bounds.max_durations.iter().map(|_| Vec::new()).collect(),
            max_spans: Vec::new(),
            stats: GatheredStats::default(),
        }
    }

    /// Checks a trace.
    pub fn add(&mut self, trace: &Trace) {
        self.traces += 1;
        self.spans += trace.spans.len();
        if self.bounds.no_errors {
            let failed = trace.spans.iter().filter(|span| span.status == Status::Error);
            self.no_errors.extend(
                failed.map(|span| {
                    Offender::span(trace, span, span.status_description().unwrap_or_else(|| "ERROR".into()))
                }),
            );
        }
        for (bound, offenders) in self.bounds.max_durations.iter().zip(&mut self.max_durations) {
            bound.check(trace, offenders);
        }
        if self.bounds.max_spans.is_some_and(|most| trace.spans.len() > most) {
            self.max_spans.push(Offender::trace(trace, format!("{} spans", trace.spans.len())));
        }
        if self.bounds.baseline.is_some() {
            self.stats.add(trace);
        }
    }

    /// Returns the result. No trace at all does not pass.
    pub fn finish(self) -> Report {
        let mut rules = Vec::new();
        if self.bounds.no_errors {
            rules.push(Rule { rule: "no errors".into(), offenders: self.no_errors });
        }
        let max_durations = self.bounds.max_durations.iter().zip(self.max_durations);
        rules.extend(max_durations.map(|(bound, offenders)| Rule { rule: bound.to_string(), offenders }));
        if let Some(most) = self.bounds.max_spans {
            rules.push(Rule { rule: format!("at most {most} spans"), offenders: self.max_spans });
        }
        if let Some(baseline) = &self.bounds.baseline {
            rules.push(baseline.check(&self.stats.finish(None)));
        }
        Report {
            passed: self.traces > 0 && rules.iter().all(|rule| rule.offenders.is_empty()),
            traces: self.traces,
            spans: self.spans,
            rules,
        }
    }
}

impl fmt::Display for MaxDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} below {}", self.name.as_deref().unwrap_or("traces"), elapsed(self.below_ns))
    }
}

impl MaxDuration {
    fn check(&self, trace: &Trace, offenders: &mut Vec<Offender>) {
        match &self.name {
            None if trace.duration_ns() >= self.below_ns => {
                offenders.push(Offender::trace(trace, elapsed(trace.duration_ns())));
            }
            None => {}
            Some(name) => {
                let is_meant = |span: &&Span| span.duration_ns() >= self.below_ns && fits(name, span.name());
                let slow = trace.spans.iter().filter(is_meant);
                offenders.extend(slow.map(|span| Offender::span(trace, span, elapsed(span.duration_ns()))));
            }
        }
    }
}

impl Baseline {
    fn check(&self, now: &Stats) -> Rule {
        let exceeds = |found: u64, before: u64| found as f64 > before as f64 * (1.0 + self.tolerance);
        let mut offenders = Vec::new();
        for row in &now.rows {
            let Some(before) = self.stats.rows.iter().find(|before| before.name == row.name) else { continue };
            for (label, found, before) in [("p50", row.p50_ns, before.p50_ns), ("p95", row.p95_ns, before.p95_ns)] {
                if exceeds(found, before) {
                    let found = format!("{label} {}, was {}", elapsed(found), elapsed(before));
                    offenders.push(Offender { trace_id: None, span_id: None, name: row.name.clone(), found });
                }
            }
        }
        Rule {
            rule: format!("p50 and p95 of each name at most {} % above the baseline", self.tolerance * 100.0),
            offenders,
        }
    }
}

impl Offender {
    fn span(trace: &Trace, span: &Span, found: String) -> Offender {
        Offender { trace_id: Some(trace.id), span_id: Some(span.span_id), name: span.name().to_string(), found }
    }

    fn trace(trace: &Trace, found: String) -> Offender {
        Offender { trace_id: Some(trace.id), span_id: None, name: Row::new(trace).title(), found }
    }
}

/// Returns whether a name of a span is meant: it is the name, or fits it as a pattern.
fn fits(wanted: &str, name: &str) -> bool {
    wanted == name || pattern::fits(wanted, name)
}

fn elapsed(nanos: u64) -> String {
    tracer_core::count::Elapsed::from_nanos(nanos).to_string()
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{loaded, span};
    use super::*;

    fn two_traces() -> super::super::Loaded {
        let lines = [
            span("job", 1, None, (0, 100)).trace(1),
            span("count", 2, 1, (10, 30)).trace(1),
            span("job", 3, None, (200, 260)).trace(2),
            span("count", 4, 3, (210, 250)).trace(2).failed("no such file"),
        ];
        let text: String = lines.iter().map(|line| line.line()).collect();
        loaded([("1.json", text.into_bytes())])
    }

    /// Each offender as `name: found`, by rule.
    fn offenders(bounds: &Bounds) -> Vec<(String, Vec<String>)> {
        let loaded = two_traces();
        let traces: Vec<&Trace> = loaded.traces.iter().collect();
        let report = bounds.check(&traces);
        assert_eq!(report.passed, report.rules.iter().all(|rule| rule.offenders.is_empty()));
        let words = |offender: Offender| format!("{}: {}", offender.name, offender.found);
        report.rules.into_iter().map(|rule| (rule.rule, rule.offenders.into_iter().map(words).collect())).collect()
    }

    fn max(text: &str) -> Bounds {
        Bounds { max_durations: vec![text.parse().expect(text)], ..Bounds::default() }
    }

    #[test]
    fn each_bound_names_what_exceeds_it() {
        for (bounds, rule, expected) in [
            (Bounds { no_errors: true, ..Bounds::default() }, "no errors", vec!["count: no such file"]),
            (max("count<30us"), "count below 30 µs", vec!["count: 40 µs"]),
            (max("count < 20us"), "count below 20 µs", vec!["count: 20 µs", "count: 40 µs"]),
            (max("c*t<41us"), "c*t below 41 µs", vec![]),
            (max("100us"), "traces below 100 µs", vec!["job: 100 µs"]),
            (max("<101us"), "traces below 101 µs", vec![]),
            (
                Bounds { max_spans: Some(1), ..Bounds::default() },
                "at most 1 spans",
                vec!["job: 2 spans", "job: 2 spans"],
            ),
            (Bounds { max_spans: Some(2), ..Bounds::default() }, "at most 2 spans", vec![]),
        ] {
            let expected: Vec<String> = expected.into_iter().map(Into::into).collect();
            assert_eq!(offenders(&bounds), [(rule.to_owned(), expected)]);
        }
    }

    #[test]
    fn a_name_may_be_slower_than_before_by_the_tolerance() {
        let mut stats = two_traces().stats(None);
        for row in &mut stats.rows {
            (row.p50_ns, row.p95_ns) = (row.p50_ns * 5 / 6, row.p95_ns * 2);
        }
        let with =
            |tolerance| Bounds { baseline: Some(Baseline { stats: stats.clone(), tolerance }), ..Bounds::default() };
        assert_eq!(offenders(&with(0.21))[0].1, Vec::<String>::new());
        assert_eq!(offenders(&with(0.1))[0].1, ["job: p50 60 µs, was 50 µs", "count: p50 20 µs, was 16.7 µs"]);
    }

    #[test]
    fn nothing_to_check_does_not_pass() {
        assert!(!Bounds { no_errors: true, ..Bounds::default() }.check(&[]).passed);
    }

    #[test]
    fn a_bound_of_a_duration_says_what_it_expects() {
        for text in ["", "count<", "count<soon", "count>5ms"] {
            let error = text.parse::<MaxDuration>().expect_err(text);
            assert!(error.ends_with(&format!("such as `count<100ms`, found `{text}`")), "{error}");
        }
    }
}
