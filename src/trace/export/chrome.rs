//! The trace event format of Chrome's tools (its JSON object form), as Perfetto's importer reads it.
//!
//! Each process is one, with its threads where spans say `thread.id` and else with one thread. A span that lies within its
//! parent on its thread is a slice (`X`). One that overlaps another span is asynchronous (`b`, `e`), on a track of its own, because slices
//! of a thread must nest. An arrow leads from each PRODUCER to its CONSUMER; only slices can have arrows.
//! Times are in microseconds since the first span, whose time is in `otherData`: a double has no room for nanoseconds since 1970.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{self, Write};

use serde::{Serialize, Serializer};

use super::processes::Processes;
use crate::loaded::Trace;
use crate::span::{Attributes, Kind, Span, SpanId, Status, TraceId};
use crate::tree::{Item, Tree};

/// Writes the spans of the traces.
pub fn chrome(traces: &[&Trace], out: &mut dyn Write) -> io::Result<()> {
    let start = traces.iter().map(|trace| trace.start_unix_nano()).min().unwrap_or(0);
    let mut processes = Processes::default();
    let mut slices = Vec::new();
    for trace in traces {
        // Parents before children.
        for node in Tree::new(trace).nodes() {
            if let Item::Span(index) | Item::Circle(index) = node.item
                && !trace.spans[index].is_running()
            {
                let span = &trace.spans[index];
                let details = span.details();
                let (pid, tid) = processes.thread(span, &details);
                slices.push(Slice { span, pid, tid, is_async: false });
            }
        }
    }
    place(&mut slices);
    let mut events = Events { out, is_first: true };
    events.begin()?;
    for (pid, name) in &processes.names {
        events.write(&Metadata { name: "process_name", ph: "M", pid: *pid, tid: None, args: Name { name } })?;
    }
    for ((pid, tid), name) in &processes.threads {
        events.write(&Metadata { name: "thread_name", ph: "M", pid: *pid, tid: Some(*tid), args: Name { name } })?;
    }
    for slice in &slices {
        slice.write(start, &mut events)?;
    }
    let flows_left_out = write_flows(&slices, start, &mut events)?;
    let other = OtherData { start_unix_nano: start.to_string(), spans: slices.len(), flows_left_out };
    events.end(&other)
}

struct Slice<'a> {
    span: &'a Span,
    pid: u32,
    tid: u64,
    is_async: bool,
}

/// Decides which spans are slices of their thread, and sorts all by thread and time.
fn place(slices: &mut [Slice<'_>]) {
    // The sort is stable, so of spans at the same time the parent stays before its child.
    slices.sort_by_key(|slice| (slice.pid, slice.tid, slice.span.start_unix_nano, Reverse(slice.span.duration_ns())));
    let mut stack: Vec<&Span> = Vec::new();
    let mut thread = None;
    for slice in slices {
        if thread.replace((slice.pid, slice.tid)) != Some((slice.pid, slice.tid)) {
            stack.clear();
        }
        let span = slice.span;
        while stack.last().is_some_and(|above| end(above) <= span.start_unix_nano && !is_parent(above, span)) {
            stack.pop();
        }
        slice.is_async = stack.last().is_some_and(|above| !is_parent(above, span) || end(above) < end(span));
        if !slice.is_async {
            stack.push(span);
        }
    }
}

fn end(span: &Span) -> u64 {
    span.start_unix_nano + span.duration_ns()
}

fn is_parent(parent: &Span, child: &Span) -> bool {
    parent.trace_id() == child.trace_id() && child.parent_id() == Some(parent.span_id)
}

/// Writes the arrows, and returns how many could not be: one of their ends is no slice.
fn write_flows(slices: &[Slice<'_>], start: u64, events: &mut Events<'_>) -> io::Result<usize> {
    let producers: HashMap<(TraceId, SpanId), &Slice<'_>> = slices
        .iter()
        .filter(|slice| slice.span.kind == Kind::Producer)
        .map(|slice| ((slice.span.trace_id(), slice.span.span_id), slice))
        .collect();
    let mut left_out = 0;
    for consumer in slices.iter().filter(|slice| slice.span.kind == Kind::Consumer) {
        let parent =
            consumer.span.parent_id().and_then(|parent_id| producers.get(&(consumer.span.trace_id(), parent_id)));
        let Some(producer) = parent else { continue };
        if producer.is_async || consumer.is_async {
            left_out += 1;
            continue;
        }
        let flow = |slice: &Slice<'_>, ph| Flow {
            name: "task",
            cat: "task",
            ph,
            id: id(consumer.span),
            ts: micros(slice.span.start_unix_nano - start),
            pid: slice.pid,
            tid: slice.tid,
            // Ends at the slice that encloses it, not at the next one.
            bp: (ph == "f").then_some("e"),
        };
        events.write(&flow(producer, "s"))?;
        events.write(&flow(consumer, "f"))?;
    }
    Ok(left_out)
}

impl Slice<'_> {
    fn write(&self, start: u64, events: &mut Events<'_>) -> io::Result<()> {
        let span = self.span;
        let details = span.details();
        let args = Args {
            trace_id: span.trace_id(),
            span_id: span.span_id,
            parent_id: span.parent_id(),
            kind: span.kind,
            status: span.status,
            status_description: details.status_description.as_deref(),
            attributes: &details.attributes,
        };
        let event = |ph, at: u64, dur, args| Event {
            name: span.name(),
            cat: "span",
            ph,
            ts: micros(at - start),
            dur,
            pid: self.pid,
            tid: self.tid,
            id: self.is_async.then(|| id(span)),
            args,
        };
        if !self.is_async {
            let duration = Some(micros(span.duration_ns()));
            return events.write(&event("X", span.start_unix_nano, duration, Some(args)));
        }
        events.write(&event("b", span.start_unix_nano, None, Some(args)))?;
        events.write(&event("e", end(span), None, None))
    }
}

/// Mixes the trace into the id of an event, which is one among all traces.
fn id(span: &Span) -> String {
    format!("0x{:016x}", span.trace_id().0 as u64 ^ (span.trace_id().0 >> 64) as u64 ^ span.span_id.0)
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1000.0
}

#[derive(Serialize)]
struct Event<'a> {
    name: &'a str,
    cat: &'static str,
    ph: &'static str,
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    pid: u32,
    tid: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Args<'a>>,
}

struct Args<'a> {
    trace_id: TraceId,
    span_id: SpanId,
    parent_id: Option<SpanId>,
    kind: Kind,
    status: Status,
    status_description: Option<&'a str>,
    attributes: &'a Attributes,
}

impl Serialize for Args<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap as _;

        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("trace_id", &self.trace_id)?;
        map.serialize_entry("span_id", &self.span_id)?;
        if let Some(parent_id) = &self.parent_id {
            map.serialize_entry("parent_id", parent_id)?;
        }
        map.serialize_entry("kind", &format!("{:?}", self.kind).to_uppercase())?;
        if self.status != Status::Unset {
            map.serialize_entry("status", &format!("{:?}", self.status).to_uppercase())?;
        }
        if let Some(description) = self.status_description {
            map.serialize_entry("status_description", description)?;
        }
        for (index, (key, value)) in self.attributes.0.iter().enumerate() {
            // Of several values of one key the last one holds.
            if self.attributes.0[index + 1..].iter().all(|(later, _)| later != key) {
                map.serialize_entry(key, value)?;
            }
        }
        map.end()
    }
}

#[derive(Serialize)]
struct Flow {
    name: &'static str,
    cat: &'static str,
    ph: &'static str,
    id: String,
    ts: f64,
    pid: u32,
    tid: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    bp: Option<&'static str>,
}

#[derive(Serialize)]
struct Metadata<'a> {
    name: &'static str,
    ph: &'static str,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<u64>,
    args: Name<'a>,
}

#[derive(Serialize)]
struct Name<'a> {
    name: &'a str,
}

#[derive(Serialize)]
struct OtherData {
    start_unix_nano: String,
    spans: usize,
    flows_left_out: usize,
}

/// The object around the events, each on a line of its own.
struct Events<'a> {
    out: &'a mut dyn Write,
    is_first: bool,
}

impl Events<'_> {
    fn begin(&mut self) -> io::Result<()> {
        self.out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")
    }

    fn write(&mut self, event: &impl Serialize) -> io::Result<()> {
        self.out.write_all(if std::mem::replace(&mut self.is_first, false) { b"\n" } else { b",\n" })?;
        Ok(serde_json::to_writer(&mut *self.out, event)?)
    }

    fn end(&mut self, other: &OtherData) -> io::Result<()> {
        self.out.write_all(b"\n],\"otherData\":")?;
        serde_json::to_writer(&mut *self.out, other)?;
        self.out.write_all(b"}\n")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use serde_json::Value;

    use super::super::processes::PID_MAX;
    use super::*;
    use crate::fixture::{SpanText, loaded, span};

    fn exported(files: &[(&str, &[SpanText])]) -> Value {
        let texts = files.iter().map(|(name, spans)| {
            let lines: String = spans.iter().map(SpanText::line).collect();
            (*name, lines.into_bytes())
        });
        let loaded = loaded(texts);
        let mut out = Vec::new();
        chrome(&loaded.traces.iter().collect::<Vec<_>>(), &mut out).expect("a vector takes everything");
        serde_json::from_slice(&out).expect("it is JSON")
    }

    fn events<'a>(exported: &'a Value, ph: &str) -> Vec<&'a Value> {
        exported["traceEvents"].as_array().into_iter().flatten().filter(|event| event["ph"] == ph).collect()
    }

    fn names<'a>(exported: &'a Value, ph: &str) -> Vec<&'a str> {
        events(exported, ph).iter().filter_map(|event| event["name"].as_str()).collect()
    }

    #[test]
    fn nested_spans_are_slices_and_arrows_lead_to_consumers() {
        let exported = exported(&[
            ("10.json", &[span("job", 1, None, (0, 100)), span("send", 2, 1, (10, 20)).kind("PRODUCER")]),
            (
                "11.json",
                &[
                    span("run", 3, 2, (30, 90)).kind("CONSUMER").failed("no").attributes(r#"{"n": 1, "n": 2}"#),
                    // At the same time as its parent, and written before it would be.
                    span("inner", 4, 3, (30, 90)),
                ],
            ),
        ]);
        assert_eq!(names(&exported, "X"), ["job", "send", "run", "inner"]);
        assert_eq!(names(&exported, "b"), Vec::<&str>::new());
        let run = events(&exported, "X")[2];
        assert_eq!((&run["ts"], &run["dur"], &run["pid"]), (&30.0.into(), &60.0.into(), &11.into()));
        assert_eq!(
            run["args"],
            serde_json::json!({
                "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
                "span_id": "0000000000000003",
                "parent_id": "0000000000000002",
                "kind": "CONSUMER",
                "status": "ERROR",
                "status_description": "no",
                "n": 2,
            })
        );
        let (starts, finishes) = (events(&exported, "s"), events(&exported, "f"));
        assert_eq!((starts.len(), finishes.len()), (1, 1));
        assert_eq!((&starts[0]["pid"], &starts[0]["ts"]), (&10.into(), &10.0.into()));
        assert_eq!(
            (&finishes[0]["pid"], &finishes[0]["ts"], &finishes[0]["bp"]),
            (&11.into(), &30.0.into(), &"e".into())
        );
        assert_eq!(starts[0]["id"], finishes[0]["id"]);
        assert_eq!(
            exported["otherData"],
            serde_json::json!({"start_unix_nano": "1793880000000000000", "spans": 4, "flows_left_out": 0})
        );
        assert_eq!(names(&exported, "M"), ["process_name", "process_name"]);
        assert_eq!(events(&exported, "M")[1]["args"]["name"], "tracer (pid 11)");
    }

    #[test]
    fn what_overlaps_is_asynchronous() {
        let exported = exported(&[(
            "10.json",
            &[
                span("job", 1, None, (0, 100)),
                span("left", 2, 1, (10, 50)),
                span("right", 3, 1, (20, 60)),
                span("in right", 4, 3, (30, 40)),
                span("outlives", 5, 1, (70, 130)),
                span("after", 6, None, (200, 210)),
                span("sent", 7, 3, (41, 42)).kind("PRODUCER"),
                span("got", 8, 7, (220, 230)).kind("CONSUMER"),
            ],
        )]);
        assert_eq!(names(&exported, "X"), ["job", "left", "after", "got"]);
        assert_eq!(names(&exported, "b"), ["right", "in right", "sent", "outlives"]);
        let (begins, ends) = (events(&exported, "b"), events(&exported, "e"));
        for (begin, end) in begins.iter().zip(&ends) {
            assert_eq!((&begin["id"], &begin["cat"], &begin["pid"]), (&end["id"], &end["cat"], &end["pid"]));
        }
        let ids: HashSet<&str> = begins.iter().filter_map(|begin| begin["id"].as_str()).collect();
        assert_eq!((ids.len(), begins.len(), ends.len()), (4, 4, 4));
        assert_eq!(exported["otherData"]["flows_left_out"], 1);
    }

    #[test]
    fn threads_that_spans_name_are_told_apart_and_so_are_processes_of_one_pid() {
        let on = |id: u64| format!(r#"{{"thread.id": {id}, "thread.name": "t{id}"}}"#);
        let threads = exported(&[(
            "10.json",
            &[span("a", 1, None, (0, 10)).attributes(&on(1)), span("b", 2, None, (5, 15)).attributes(&on(2))],
        )]);
        assert_eq!(names(&threads, "X"), ["a", "b"]);
        let lines = |instance: &str, name: &str, id| {
            span(name, id, None, (0, 10))
                .line()
                .replace("{\"service.name\"", &format!("{{\"service.instance.id\": \"{instance}\", \"service.name\""))
        };
        let loaded = loaded([("10.json", (lines("x", "a", 1) + &lines("y", "b", 2)).into_bytes())]);
        let mut out = Vec::new();
        chrome(&loaded.traces.iter().collect::<Vec<_>>(), &mut out).expect("a vector takes everything");
        let two: Value = serde_json::from_slice(&out).expect("it is JSON");
        let pids: HashSet<Option<u64>> = events(&two, "X").iter().map(|event| event["pid"].as_u64()).collect();
        assert_eq!(pids, HashSet::from([Some(10), Some(u64::from(PID_MAX) + 1)]));
        assert!(events(&two, "M").iter().all(|event| event["args"]["name"] == "tracer (pid 10)"));
    }
}
