//! Span files made by hand, for the tests of this folder.

use std::fmt::Write as _;
use std::path::Path;

use super::read::{Scanner, pid_of};
use super::span::{Bytes, SpanFile};
use super::time;
use crate::loaded::{Loaded, Trace};
use crate::read::{Notice, Problem};
use crate::span::Span;

pub(super) const TRACE_ID: u128 = 0x4bf92f3577b34da6a3ce929d0e0e4736;
/// 2026-11-05T12:00:00Z.
pub(super) const EPOCH: u64 = 1_793_880_000_000_000_000;

/// A span to be written to a file.
#[derive(Clone)]
pub(super) struct SpanText {
    name: String,
    trace_id: u128,
    span_id: u64,
    parent_id: Option<u64>,
    kind: &'static str,
    micros: (u64, u64),
    status: String,
    attributes: String,
    events: String,
}

/// Returns a span that starts and ends so many microseconds after [`EPOCH`].
pub(super) fn span(name: &str, span_id: u64, parent_id: impl Into<Option<u64>>, micros: (u64, u64)) -> SpanText {
    SpanText {
        name: name.into(),
        trace_id: TRACE_ID,
        span_id,
        parent_id: parent_id.into(),
        kind: "INTERNAL",
        micros,
        status: r#"{"status_code": "UNSET"}"#.into(),
        attributes: "{}".into(),
        events: "[]".into(),
    }
}

impl SpanText {
    pub(super) fn trace(mut self, trace_id: u128) -> SpanText {
        self.trace_id = trace_id;
        self
    }

    pub(super) fn kind(mut self, kind: &'static str) -> SpanText {
        self.kind = kind;
        self
    }

    pub(super) fn attributes(mut self, json: &str) -> SpanText {
        self.attributes = json.into();
        self
    }

    pub(super) fn failed(mut self, description: &str) -> SpanText {
        let description = serde_json::Value::from(description);
        self.status = format!(r#"{{"status_code": "ERROR", "description": {description}}}"#);
        self
    }

    pub(super) fn exception(mut self, type_name: &str, message: &str) -> SpanText {
        let timestamp = time::format(EPOCH + self.micros.1 * 1000);
        let (type_name, message) = (serde_json::Value::from(type_name), serde_json::Value::from(message));
        self.events = format!(
            r#"[{{"name": "exception", "timestamp": "{timestamp}", "attributes": {{"exception.type": {type_name}, "exception.message": {message}}}}}]"#
        );
        self
    }

    /// Returns one line, as the shipped hook writes it.
    pub(super) fn line(&self) -> String {
        let (start, end) = (time::format(EPOCH + self.micros.0 * 1000), time::format(EPOCH + self.micros.1 * 1000));
        let parent_id = self.parent_id.map_or("null".to_string(), |parent_id| format!("\"0x{parent_id:016x}\""));
        let mut line = String::new();
        write!(
            line,
            r#"{{"name": {name}, "context": {{"trace_id": "0x{trace_id:032x}", "span_id": "0x{span_id:016x}", "trace_state": "[]"}}, "kind": "SpanKind.{kind}", "parent_id": {parent_id}, "start_time": "{start}", "end_time": "{end}", "status": {status}, "attributes": {attributes}, "events": {events}, "links": [], "resource": {{"attributes": {{"service.name": "tracer"}}, "schema_url": ""}}}}"#,
            name = serde_json::Value::from(self.name.as_str()),
            trace_id = self.trace_id,
            span_id = self.span_id,
            kind = self.kind,
            status = self.status,
            attributes = self.attributes,
            events = self.events,
        )
        .expect("a string takes everything");
        line.push('\n');
        line
    }
}

/// Appends the spans of a file that has these bytes.
pub(super) fn scan(path: &Path, bytes: Vec<u8>, spans: &mut Vec<Span>) -> Vec<Problem> {
    let file = SpanFile { path: path.into(), pid: pid_of(path), bytes: Bytes::Here(bytes.clone()) };
    Scanner::new(file).scan(&bytes, 0, |_, found| spans.append(found))
}

/// Returns what a folder with these files holds: their names with their contents.
pub(super) fn loaded<'a>(files: impl IntoIterator<Item = (&'a str, Vec<u8>)>) -> Loaded {
    let folder = Path::new("/tmp/spans");
    let (mut spans, mut notices) = (Vec::new(), Vec::new());
    for (name, bytes) in files {
        let path = folder.join(name);
        let problems = scan(&path, bytes, &mut spans);
        notices.extend(problems.into_iter().map(|problem| Notice { path: path.clone(), problem }));
    }
    Loaded::new(folder, spans, notices)
}

/// Returns the one trace that these spans are, each with the pid of the file that it is in.
pub(super) fn trace(spans: &[(u32, SpanText)]) -> Trace {
    let names: Vec<String> = spans.iter().map(|(pid, _)| format!("{pid}.json")).collect();
    let files = names.iter().zip(spans).map(|(name, (_, span))| (name.as_str(), span.line().into_bytes()));
    let loaded = loaded(files);
    assert_eq!(loaded.notices, []);
    let [trace] = <[Trace; 1]>::try_from(loaded.traces).expect("there is one trace");
    trace
}
