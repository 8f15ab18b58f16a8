//! A whole trace for programs.

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::list::Row;
use super::path::{CriticalPath, Stretch, StretchKind};
use crate::loaded::Trace;
use crate::log_records::LogRecord;
use crate::span::Span;
use crate::tree::Tree;

/// A trace with the objects of its spans as they were written. It serialises as an object: the figures of [`Row`], then
/// `processes`, `running`, `duplicates`, `missing_parents`, `clock_shifts`, `queued_ns`, `critical_path` and `spans`, whose number is `spans.len()`.
///
/// `clock_shifts` has an object for each attempt whose node's clock was not that of the root, with what is below it: `span_id`, `node_id`, `shift_ns`, by which
/// it is later in the figures than in its object in `spans`, which has the stored times, and the number of `spans`.
///
/// `critical_path` has the stretches of the [`CriticalPath`] from the start of the trace to its end, without a gap. Each has `kind`, which is `span`,
/// `queued` or `between`, the `span_id` of the span, or of the attempt that was queued, and `start_ns`, since the start of the trace, and
/// `duration_ns`. `queued_ns` is what is queued of it in all.
#[derive(Clone, Debug)]
pub struct Report<'a> {
    trace: &'a Trace,
    /// Log records, if they were asked for.
    logs: Option<&'a [LogRecord]>,
    /// Number of log records that are not there.
    logs_left_out: u64,
}

impl<'a> Report<'a> {
    /// Adds the fields `logs` and `logs_left_out`, if there are records.
    #[must_use]
    pub fn with_log_records(self, logs: Option<&'a [LogRecord]>, logs_left_out: u64) -> Report<'a> {
        Report { logs, logs_left_out, ..self }
    }
}

impl Trace {
    /// Returns the report on this trace.
    pub fn report(&self) -> Report<'_> {
        Report { trace: self, logs: None, logs_left_out: 0 }
    }
}

impl Serialize for Report<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;

        let row = Row::new(self.trace);
        let tree = Tree::new(self.trace);
        let missing: Vec<String> = tree.missing().map(|span_id| span_id.to_string()).collect();
        let path = CriticalPath::new(self.trace, &tree);
        let mut object = serializer.serialize_struct("Report", 14 + 2 * usize::from(self.logs.is_some()))?;
        object.serialize_field("trace_id", &row.trace_id)?;
        object.serialize_field("root", &row.root)?;
        object.serialize_field("start_time", &super::time::format(row.start_unix_nano))?;
        object.serialize_field("end_time", &super::time::format(row.end_unix_nano))?;
        object.serialize_field("duration_ns", &row.duration_ns)?;
        object.serialize_field("errors", &row.errors)?;
        object.serialize_field("processes", &self.trace.process_count())?;
        object.serialize_field("running", &self.trace.running_count())?;
        object.serialize_field("duplicates", &self.trace.duplicates)?;
        object.serialize_field("missing_parents", &missing)?;
        object.serialize_field("clock_shifts", &self.trace.clock_shifts())?;
        object.serialize_field("queued_ns", &path.queued_ns())?;
        object.serialize_field("critical_path", &PathParts(self.trace, &path))?;
        object.serialize_field("spans", &RawSpans(&self.trace.spans))?;
        if let Some(logs) = self.logs {
            object.serialize_field("logs", logs)?;
            object.serialize_field("logs_left_out", &self.logs_left_out)?;
        }
        object.end()
    }
}

struct PathParts<'a>(&'a Trace, &'a CriticalPath);

impl Serialize for PathParts<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.1.stretches().map(|stretch| PathPart::new(self.0, &stretch)))
    }
}

/// A stretch of the critical path.
#[derive(Serialize)]
struct PathPart {
    kind: &'static str,
    span_id: Option<String>,
    start_ns: u64,
    duration_ns: u64,
}

impl PathPart {
    fn new(trace: &Trace, stretch: &Stretch) -> PathPart {
        let (kind, index) = match stretch.kind {
            StretchKind::Span(index) => ("span", Some(index)),
            StretchKind::Queued(index) => ("queued", Some(index)),
            StretchKind::Between => ("between", None),
        };
        PathPart {
            kind,
            span_id: index.map(|index| format!("0x{}", trace.spans[index].span_id)),
            start_ns: stretch.start_unix_nano - trace.start_unix_nano(),
            duration_ns: stretch.duration_ns(),
        }
    }
}

struct RawSpans<'a>(&'a [Span]);

impl Serialize for RawSpans<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(RawSpan))
    }
}

struct RawSpan<'a>(&'a Span);

impl Serialize for RawSpan<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = self.0.text();
        let raw: &RawValue = serde_json::from_str(&text).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{loaded, span};

    #[test]
    fn a_report_has_every_span_as_it_was_written() {
        let parent = span("job", 1, None, (0, 30)).line();
        // A key that no format has, a number that no float holds, a key twice, and an indentation.
        let child = span("child", 2, 1, (5, 40)).attributes(r#"{"n": 12345678901234567890123, "k": 1, "k": 2}"#).line();
        let child = child.replace("\"kind\"", "\n    \"extra\": [1.10],\n    \"kind\"");
        let orphan = span("orphan", 3, 9, (6, 7)).failed("no").line();
        let loaded = loaded([("1.json", [&parent, &child, &orphan, &orphan].map(String::as_str).concat().into())]);
        let spans = [&parent, &child, &orphan].map(|line| line.trim_end()).join(",");
        assert_eq!(
            serde_json::to_string(&loaded.traces[0].report()).expect("spans are JSON"),
            format!(
                r#"{{"trace_id":"4bf92f3577b34da6a3ce929d0e0e4736","root":"job","start_time":"2026-11-05T12:00:00.000000Z","end_time":"2026-11-05T12:00:00.000040Z","duration_ns":40000,"errors":1,"processes":1,"running":0,"duplicates":1,"missing_parents":["0000000000000009"],"clock_shifts":[],"queued_ns":0,"critical_path":[{{"kind":"span","span_id":"0x0000000000000001","start_ns":0,"duration_ns":5000}},{{"kind":"span","span_id":"0x0000000000000002","start_ns":5000,"duration_ns":35000}}],"spans":[{spans}]}}"#
            )
        );
    }
}
