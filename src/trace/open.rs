//! Open spans, trace by trace.

use std::collections::{HashMap, HashSet};

use serde::Serialize;
use serde_json::{Map, Value};

use super::time;
use crate::live::LiveSpan;
use crate::loaded::{Loaded, Trace};
use crate::span::{Kind, Span, SpanId, TraceId};

/// Open spans of all processes of a session. It serialises without the ended spans, which only hold the tree together.
#[derive(Debug, Serialize)]
pub struct Open {
    /// Time of the look, in nanoseconds since the Unix epoch.
    #[serde(rename = "time", serialize_with = "serialize_time")]
    pub now_unix_nano: u64,
    /// Number of open spans.
    pub open: usize,
    /// The traces with an open span, the one that started first at the front.
    pub traces: Vec<OpenTrace>,
}

/// The open spans of one trace.
#[derive(Debug, Serialize)]
pub struct OpenTrace {
    /// Its id.
    pub trace_id: TraceId,
    /// Its open spans by their start.
    pub spans: Vec<OpenSpan>,
    /// The open spans and those of their ancestors that have ended, as far as these are known.
    #[serde(skip)]
    pub(super) trace: Trace,
}

/// One open span.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpenSpan {
    /// Its name.
    pub name: String,
    /// Its id.
    pub span_id: SpanId,
    /// The id of its parent.
    pub parent_id: Option<SpanId>,
    /// Its kind, in OpenTelemetry's words: `CONSUMER` and so on.
    pub kind: &'static str,
    /// Time of its start, in nanoseconds since the Unix epoch.
    #[serde(rename = "start_time", serialize_with = "serialize_time")]
    pub start_unix_nano: u64,
    /// Time that it has been running.
    pub age_ns: u64,
    /// The process that it is in.
    pub pid: u32,
    /// The task in whose attempt it was started.
    pub task_id: Option<u64>,
    /// Its attributes so far.
    pub attributes: Map<String, Value>,
}

fn serialize_time<S: serde::Serializer>(unix_nano: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&time::format(*unix_nano))
}

impl Open {
    /// Puts together what was seen in the spools. `files` is read only when a parent is missing there, which then has ended.
    pub fn new(live: Vec<LiveSpan>, now_unix_nano: u64, files: impl FnOnce() -> Option<Loaded>) -> Open {
        let mut by_trace: HashMap<TraceId, Vec<LiveSpan>> = HashMap::new();
        for span in live {
            by_trace.entry(span.span.trace_id()).or_default().push(span);
        }
        by_trace.retain(|_, spans| spans.iter().any(|span| span.span.is_running()));
        let is_incomplete = |spans: &Vec<LiveSpan>| {
            let known: HashSet<SpanId> = spans.iter().map(|span| span.span.span_id).collect();
            spans.iter().filter_map(|span| span.span.parent_id()).any(|parent_id| !known.contains(&parent_id))
        };
        let mut ended_by_trace: HashMap<TraceId, Vec<Span>> = HashMap::new();
        if by_trace.values().any(is_incomplete)
            && let Some(files) = files()
        {
            let wanted = files.traces.into_iter().filter(|trace| by_trace.contains_key(&trace.id));
            ended_by_trace.extend(wanted.map(|trace| (trace.id, trace.spans)));
        }
        let mut traces: Vec<OpenTrace> = by_trace
            .into_iter()
            .filter_map(|(id, live)| OpenTrace::new(id, live, ended_by_trace.remove(&id).unwrap_or_default()))
            .collect();
        traces.sort_by_key(|trace| (trace.trace.start_unix_nano(), trace.trace_id));
        Open { now_unix_nano, open: traces.iter().map(|trace| trace.spans.len()).sum(), traces }
    }
}

impl OpenTrace {
    /// None when nothing is left of it: every span has ended since it was seen.
    fn new(id: TraceId, live: Vec<LiveSpan>, written: Vec<Span>) -> Option<OpenTrace> {
        let mut by_id: HashMap<SpanId, Span> = written.into_iter().map(|span| (span.span_id, span)).collect();
        let mut spans = Vec::new();
        let mut kept: Vec<Span> = Vec::new();
        for live in live {
            if live.span.is_running() && !by_id.contains_key(&live.span.span_id) {
                spans.push(OpenSpan::new(&live));
                kept.push(live.span);
            } else {
                by_id.entry(live.span.span_id).or_insert(live.span);
            }
        }
        let mut at = 0;
        while let Some(span) = kept.get(at) {
            // What is taken out cannot be met again, so a circle ends.
            kept.extend(span.parent_id().and_then(|parent_id| by_id.remove(&parent_id)));
            at += 1;
        }
        spans.sort_by_key(|span| span.start_unix_nano);
        kept.sort_by_key(|span| span.start_unix_nano);
        let trace = Trace { id, spans: kept, duplicates: 0 };
        (!spans.is_empty()).then_some(OpenTrace { trace_id: id, spans, trace })
    }
}

impl OpenSpan {
    fn new(live: &LiveSpan) -> OpenSpan {
        let span = &live.span;
        OpenSpan {
            name: span.name().to_string(),
            span_id: span.span_id,
            parent_id: span.parent_id(),
            kind: match span.kind {
                Kind::Internal => "INTERNAL",
                Kind::Server => "SERVER",
                Kind::Client => "CLIENT",
                Kind::Producer => "PRODUCER",
                Kind::Consumer => "CONSUMER",
            },
            start_unix_nano: span.start_unix_nano,
            age_ns: span.duration_ns(),
            pid: live.pid,
            task_id: live.task_id,
            attributes: span.attributes().0.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{EPOCH, TRACE_ID, loaded, span};
    use super::super::render;
    use super::*;
    use crate::loaded::Loaded;

    /// Returns a span that is read from a line, and made running or not.
    fn live(text: super::super::fixture::SpanText, is_running: bool) -> LiveSpan {
        let mut loaded = loaded([("7.json", text.line().into_bytes())]);
        let mut span = loaded.traces.remove(0).spans.remove(0);
        if is_running {
            span.run(EPOCH + 3_000_000_000);
        }
        LiveSpan { span, pid: 7, task_id: Some(1) }
    }

    fn files() -> Loaded {
        let lines = [span("producer", 2, 1, (10, 20)).line(), span("other child", 9, 1, (10, 20)).line()];
        loaded([("6.json", lines.concat().into_bytes())])
    }

    #[test]
    fn ended_parents_hold_the_tree_together() {
        let spans = vec![
            live(span("job", 1, None, (0, 0)), true),
            live(span("consumer", 3, 2, (1_000, 1_000)).attributes(r#"{"n": 1}"#), true),
            live(span("ended and not written", 4, 3, (2_000, 2_001)), false),
            live(span("inner", 5, 4, (2_000, 2_000)), true),
        ];
        let open = Open::new(spans, EPOCH + 3_000_000_000, || Some(files()));
        assert_eq!((open.open, open.traces.len()), (3, 1));
        assert_eq!(
            render::open(&open, 80, false),
            "\
trace 4bf92f3577b34da6a3ce929d0e0e4736  3 open
  job                               3 s  pid 7
  └─ producer                     ended
     └─ consumer                    3 s  pid 7
        └─ ended and not written  ended
           └─ inner                 3 s  pid 7
"
        );
        let json = serde_json::to_value(&open).expect("reports are plain data");
        assert_eq!(json["traces"][0]["trace_id"], format!("{TRACE_ID:032x}"));
        assert_eq!(json["traces"][0]["spans"].as_array().map(Vec::len), Some(3));
        assert_eq!(
            json["traces"][0]["spans"][1],
            serde_json::json!({
                "name": "consumer",
                "span_id": "0000000000000003",
                "parent_id": "0000000000000002",
                "kind": "INTERNAL",
                "start_time": "2026-11-05T12:00:00.001000Z",
                "age_ns": 2_999_000_000_u64,
                "pid": 7,
                "task_id": 1,
                "attributes": {"n": 1},
            })
        );
    }

    #[test]
    fn files_are_read_only_for_a_parent_that_is_missing() {
        let spans = vec![live(span("job", 1, None, (0, 0)), true)];
        let open = Open::new(spans, EPOCH, || panic!("nothing is missing"));
        assert_eq!(open.open, 1);
    }

    #[test]
    fn what_was_written_since_is_not_open() {
        let spans = vec![live(span("producer", 2, 1, (10, 10)), true)];
        let open = Open::new(spans, EPOCH, || Some(files()));
        assert_eq!((open.open, open.traces.len()), (0, 0));
        assert_eq!(render::open(&open, 80, false), "nothing is open\n");
    }
}
