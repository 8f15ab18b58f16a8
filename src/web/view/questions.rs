//! Questions of the page about traces, and their answers.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io;
use std::path::Path;

use http::Response;
use hyper::body::Bytes;
use serde::Serialize;
use tracer_core::clock::parse_rfc3339;
use tracer_core::parameters;
use tracer_core::problem::{self, Problem};
use tracer_trace::log_entries::{Page, PageRequest, Reader, Spans};
use tracer_trace::{
    self, DiffRow, Differences, FindError, HeatMap, Index, Listed, Live, LiveSpan, Older, Query, Reach, Region, Row,
    Sample, SpanId, Trace, align, rfc3339,
};

use super::answers::{Answer, LAST_REVISION, json_answer, json_text, nothing_at};
use super::chosen_rows::{DEFAULT_ROWS, MOST_ROWS, Shown};
use super::cluster;
use super::columns::Columns;
use super::history::{History, Wanted};
use super::inside::{Attempts, Found, Links, Written};
use super::source::Watched;
use crate::http_api::body::Body;

/// The traces that are listed if the request does not say how many.
const DEFAULT_LIST: usize = 200;
/// The most columns of a heat map.
const COLUMNS: usize = 500;
/// The most rows of a heat map.
const ROWS: usize = 100;
/// The values with differences that are listed if the request does not say how many.
const DEFAULT_DIFFERENCES: usize = 40;
/// The most values with differences that one request lists.
const DIFFERENCES: usize = 1000;
/// The longest duration that is taken, in nanoseconds: the greatest number that every reader of JSON has, 104 days.
const LONGEST_NS: u64 = (1 << 53) - 1;
/// The most traces that one request lists.
const LIST: usize = 5000;
/// The most traces of a side of a comparison: the newest that its query finds.
const COMPARED: usize = 1000;
/// The most paths of a comparison.
const PATHS: usize = 5000;
/// Tasks that wait of which the head is asked why.
const EXPLAINED: usize = 20;

/// The traces that were found.
#[derive(Serialize)]
struct Traces {
    revision: u64,
    time: String,
    folder: String,
    #[serde(rename = "index")]
    reach: Reach,
    notices: Vec<String>,
    traces: Vec<TraceRow>,
    left_out: usize,
    filtered_out: usize,
}

#[derive(Serialize)]
struct TraceRow {
    #[serde(flatten)]
    row: Row,
    running: usize,
}

/// Two traces, or two groups of traces, aligned by path of names.
#[derive(Serialize)]
struct Comparison {
    revision: u64,
    before: Side,
    after: Side,
    /// All paths, parents before their children.
    paths: Vec<DiffRow>,
    left_out: usize,
}

/// A side of a comparison.
#[derive(Serialize)]
struct Side {
    /// Number of traces.
    traces: usize,
    /// Number of further ones that the query finds.
    left_out: usize,
    duration_ns: u64,
    errors: usize,
    /// The trace, if it is one.
    trace: Option<Row>,
}

/// Answer to a question for open spans.
#[derive(Serialize)]
struct Open {
    revision: u64,
    time: String,
    open: usize,
    processes: Vec<OpenProcess>,
}

#[derive(Serialize)]
struct OpenProcess {
    pid: u32,
    service: String,
    spans: Vec<OpenSpan>,
}

#[derive(Serialize)]
struct OpenSpan {
    trace_id: String,
    span_id: String,
    name: String,
    age_ns: u64,
    task_id: Option<u64>,
}

/// Lines of output and log records.
#[derive(Serialize)]
struct Logs {
    revision: u64,
    #[serde(flatten)]
    page: Page,
}

/// A heat map.
#[derive(Serialize)]
struct Heat {
    revision: u64,
    #[serde(rename = "index")]
    reach: Reach,
    /// None if there are no traces.
    map: Option<HeatMap>,
}

/// Differences between the traces of a region and the others.
#[derive(Serialize)]
struct Answered {
    revision: u64,
    #[serde(rename = "index")]
    reach: Reach,
    #[serde(flatten)]
    differences: Differences,
}

/// The traces that a question is about: those that a query finds, and of them those in a region.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Among {
    query: String,
    region: Region,
}

/// A request for data, with its parameters parsed.
pub(super) enum Question {
    Traces {
        among: Among,
        limit: usize,
    },
    Heat {
        among: Among,
        columns: usize,
        rows: usize,
    },
    Differences {
        among: Among,
        limit: usize,
    },
    Trace {
        id: String,
        /// The most rows.
        rows: usize,
        /// A span that has a row, and a text whose spans have rows, also where others are left out.
        span: Option<SpanId>,
        text: String,
    },
    Span(String, SpanId),
    /// The spans of a trace that a text finds.
    Find(String, String),
    /// Links of a trace's spans, and to them.
    Links(String),
    /// Events, log records and lines that were written during a trace.
    Written(String),
    /// Two sides, each a trace or a query.
    Compare([String; 2]),
    Open,
    /// A question that the head completes.
    OfHead(OfHead),
    Events {
        after: Option<u64>,
    },
    /// None: only that somebody has looked.
    Looked,
}

/// A question that the head completes, if there is one.
pub(super) enum OfHead {
    /// Overview of what runs now.
    Now,
    /// Tasks, completed from spans.
    History(Wanted),
    /// Attempts of a trace, why nothing ran, and why tasks wait.
    Attempts(String),
    /// Lines of output of the head's session, if there is a head, and the log records of the folder.
    Logs(PageRequest),
}

impl Question {
    pub(super) fn new(segments: &[&str], path: &str, query: &str) -> Result<Question, Problem> {
        let known: &[&str] = match segments {
            ["traces"] | ["differences"] => &["query", "since", "until", "min_ns", "max_ns", "limit"],
            ["heat"] => &["query", "since", "until", "min_ns", "max_ns", "columns", "rows"],
            ["events"] => &["after"],
            ["traces", _] => &["rows", "span", "text"],
            ["traces", _, "find"] => &["text"],
            ["compare"] => &["before", "after"],
            ["history"] => &["text", "state", "limit"],
            ["logs"] => PageRequest::PARAMETERS,
            _ => &[],
        };
        let parameters = parameters::parse(query, known)?;
        let number = |name: &str, most: usize, default: usize| {
            let number = parameters::number(&parameters, name, 1, most as u64)?;
            Ok::<_, Problem>(number.map_or(default, |number| usize::try_from(number).unwrap_or(most)))
        };
        Ok(match segments {
            ["traces"] => {
                Question::Traces { among: Among::new(&parameters)?, limit: number("limit", LIST, DEFAULT_LIST)? }
            }
            ["heat"] => Question::Heat {
                among: Among::new(&parameters)?,
                columns: number("columns", COLUMNS, 100)?,
                rows: number("rows", ROWS, 20)?,
            },
            ["differences"] => Question::Differences {
                among: Among::new(&parameters)?,
                limit: number("limit", DIFFERENCES, DEFAULT_DIFFERENCES)?,
            },
            ["traces", id] => {
                let span = parameters::text(&parameters, "span").filter(|id| !is_of_no_span(id));
                let span = span.map(parse_span_id).transpose()?;
                Question::Trace {
                    id: (*id).into(),
                    rows: number("rows", MOST_ROWS, DEFAULT_ROWS)?,
                    span,
                    text: parameters::text(&parameters, "text").unwrap_or_default().into(),
                }
            }
            ["traces", id, "spans", span_id] => {
                if is_of_no_span(span_id) {
                    return Err(Problem::new(problem::NO_SPAN, "no span has an id of zeros"));
                }
                Question::Span((*id).into(), parse_span_id(span_id)?)
            }
            ["traces", id, "find"] => {
                Question::Find((*id).into(), parameters::text(&parameters, "text").unwrap_or_default().into())
            }
            ["traces", id, "links"] => Question::Links((*id).into()),
            ["traces", id, "written"] => Question::Written((*id).into()),
            ["traces", id, "attempts"] => Question::OfHead(OfHead::Attempts((*id).into())),
            ["compare"] => {
                let side = |name| parameters::text(&parameters, name).unwrap_or_default().to_owned();
                Question::Compare(["before", "after"].map(side))
            }
            ["history"] => Question::OfHead(OfHead::History(Wanted {
                text: parameters::text(&parameters, "text").unwrap_or_default().into(),
                state: state(&parameters)?,
                limit: number("limit", LIST, DEFAULT_LIST)?,
            })),
            ["now"] => Question::OfHead(OfHead::Now),
            ["open"] => Question::Open,
            ["events"] => Question::Events { after: parameters::number(&parameters, "after", 0, LAST_REVISION)? },
            ["logs"] => Question::OfHead(OfHead::Logs(PageRequest::new(&parameters)?)),
            _ => return Err(nothing_at(path)),
        })
    }

    /// Takes what is needed of the last look. The rest, which may ask the head or read old files, is done without the lock.
    pub(super) fn prepare(self, watched: &Watched) -> Result<Next, Problem> {
        match self {
            Question::Traces { among, limit } => traces(watched, among.parse(watched)?, limit),
            Question::Heat { among, columns, rows } => heat(watched, among.parse(watched)?, columns, rows),
            Question::Differences { among, limit } => differences(watched, among.parse(watched)?, limit),
            Question::Compare(sides) => compare(watched, &sides),
            Question::OfHead(question) => question.prepare(watched),
            question => {
                let answer = question.answer(watched);
                Ok(Box::new(move || answer))
            }
        }
    }

    /// Answers at once.
    fn answer(&self, watched: &Watched) -> Answer {
        match self {
            Question::Trace { id, rows, span, text } => {
                let trace = find(watched, id)?;
                let found = match trace.spans.len() > *rows && !text.trim().is_empty() {
                    true => Found::new(&trace, text.trim(), watched.revision, watched.now_unix_nano).span_ids,
                    false => Vec::new(),
                };
                let shown = Shown { rows: *rows, spans: span.iter().copied().chain(found).collect() };
                json_answer(&Columns::new(&trace, &shown, watched.revision))
            }
            Question::Span(id, span_id) => {
                let trace = find(watched, id)?;
                let span = trace.span(*span_id).ok_or_else(|| {
                    let text = format!("there is no span {span_id} in the trace");
                    Problem::new(problem::NO_SPAN, text)
                })?;
                Ok(json_text(span.compact_text()))
            }
            Question::Find(id, text) => {
                json_answer(&Found::new(&find(watched, id)?, text, watched.revision, watched.now_unix_nano))
            }
            Question::Links(id) => json_answer(&Links::new(&watched.index, &find(watched, id)?, watched.revision)),
            Question::Written(id) => {
                let (index, sessions) = (&watched.index, watched.sessions());
                let written = Written::new(index, &find(watched, id)?, &sessions, watched.revision);
                json_answer(&written.map_err(unreadable_logs)?)
            }
            Question::Open => json_answer(&open(watched)),
            Question::Traces { .. }
            | Question::Heat { .. }
            | Question::Differences { .. }
            | Question::Compare(_)
            | Question::OfHead(_) => unreachable!("they are answered without the lock"),
            Question::Looked => Ok(Response::new(Body::whole(Bytes::new()))),
            Question::Events { .. } => unreachable!("events are answered by the loop"),
        }
    }
}

impl Among {
    fn new(parameters: &[(String, String)]) -> Result<Among, Problem> {
        let time = |name: &str| match parameters::text(parameters, name) {
            None => Ok(None),
            Some(text) => parse_rfc3339(text).map(Some).ok_or_else(|| {
                let text = format!("`{name}` is `{}`, expected a time as `2026-11-23T17:00:00Z`", text.escape_debug());
                Problem::new(problem::INVALID, text)
            }),
        };
        let duration = |name: &str| parameters::number(parameters, name, 0, LONGEST_NS);
        let all = Region::default();
        Ok(Among {
            query: parameters::text(parameters, "query").unwrap_or_default().into(),
            region: Region {
                since_unix_nano: time("since")?.unwrap_or(all.since_unix_nano),
                until_unix_nano: time("until")?.unwrap_or(all.until_unix_nano),
                min_ns: duration("min_ns")?.unwrap_or(all.min_ns),
                max_ns: duration("max_ns")?.unwrap_or(all.max_ns),
            },
        })
    }

    fn parse(&self, watched: &Watched) -> Result<tracer_trace::Among, Problem> {
        let query = Query::parse(&self.query, watched.now_unix_nano)
            .map_err(|error| Problem::new(problem::NOT_A_QUESTION, error.to_string()))?;
        Ok(tracer_trace::Among { query, region: self.region })
    }
}

fn traces(watched: &Watched, among: tracer_trace::Among, limit: usize) -> Result<Next, Problem> {
    let index = &watched.index;
    let mut running: HashMap<_, usize> = HashMap::new();
    for live in watched.index.open() {
        *running.entry(live.span.trace_id()).or_default() += 1;
    }
    let row = |row: Row| {
        let running = running.get(&row.trace_id).copied().unwrap_or(0);
        TraceRow { row, running }
    };
    let mut traces = Vec::new();
    let Listed { left_out, filtered_out, older } = index.list_each(&among, limit, |found, _| traces.push(row(found)));
    let mut answer = Traces {
        revision: watched.revision,
        time: rfc3339(watched.now_unix_nano),
        folder: index.folder().display().to_string(),
        reach: index.reach(),
        notices: watched.notices.clone(),
        traces,
        left_out,
        filtered_out,
    };
    Ok(Box::new(move || {
        if let Some(older) = older {
            answer.reach.scanned = Some(older.scan(|index| {
                let found = &mut answer.traces;
                let listed = index.list_each(&among, limit, |row, _| found.push(TraceRow { row, running: 0 }));
                found.sort_by_key(|found| Reverse((found.row.start_unix_nano, found.row.trace_id)));
                answer.left_out += listed.left_out + found.len().saturating_sub(limit);
                answer.filtered_out += listed.filtered_out;
                found.truncate(limit);
            }));
        }
        json_answer(&answer)
    }))
}

fn heat(watched: &Watched, among: tracer_trace::Among, columns: usize, rows: usize) -> Result<Next, Problem> {
    let (revision, mut reach) = (watched.revision, watched.index.reach());
    let mut points = Vec::new();
    let older = watched.index.points(&among, &mut points);
    Ok(Box::new(move || {
        reach.scanned = older.map(|older| older.scan(|index| drop(index.points(&among, &mut points))));
        json_answer(&Heat { revision, reach, map: HeatMap::of_points(points, columns, rows) })
    }))
}

fn differences(watched: &Watched, among: tracer_trace::Among, limit: usize) -> Result<Next, Problem> {
    let (revision, mut reach) = (watched.revision, watched.index.reach());
    let mut sample = Sample::default();
    let older = watched.index.sample(&among, &mut sample);
    Ok(Box::new(move || {
        reach.scanned = older.map(|older| older.scan(|index| drop(index.sample(&among, &mut sample))));
        json_answer(&Answered { revision, reach, differences: sample.differences(limit) })
    }))
}

fn compare(watched: &Watched, sides: &[String; 2]) -> Result<Next, Problem> {
    let revision = watched.revision;
    let [before, after] = sides.each_ref().map(|side| group(watched, side));
    let (before, after) = (before?, after?);
    Ok(Box::new(move || {
        let ((before, before_left_out), (after, after_left_out)) = (before.complete(), after.complete());
        let (before, after) = (before.iter().collect::<Vec<_>>(), after.iter().collect::<Vec<_>>());
        let mut paths = align(&before, &after);
        let left_out = paths.len().saturating_sub(PATHS);
        paths.truncate(PATHS);
        json_answer(&Comparison {
            revision,
            before: Side::new(&before, before_left_out),
            after: Side::new(&after, after_left_out),
            paths,
            left_out,
        })
    }))
}

/// Traces of a side of a comparison.
#[derive(Default)]
struct Group {
    traces: Vec<Trace>,
    left_out: usize,
    /// Traces that are not in the index, and which of them are wanted.
    older: Option<(Older, tracer_trace::Among)>,
}

impl Group {
    /// Reads what was not in the index. Returns the traces, and how many more there are.
    fn complete(self) -> (Vec<Trace>, usize) {
        let Group { mut traces, mut left_out, older } = self;
        if let Some((older, among)) = older {
            older.scan(|index| {
                left_out += take_group(index, &among, &mut traces).left_out;
                traces.sort_by_key(|trace| Reverse((trace.start_unix_nano(), trace.id)));
                left_out += traces.len().saturating_sub(COMPARED);
                traces.truncate(COMPARED);
            });
        }
        (traces, left_out)
    }
}

/// Adds the newest traces of an index that are asked for, large ones too.
fn take_group(index: &Index, among: &tracer_trace::Among, traces: &mut Vec<Trace>) -> Listed {
    let mut large = Vec::new();
    let listed = index.list_each(among, COMPARED, |row, trace| match trace {
        Some(trace) => traces.push(trace),
        None => large.push(row.trace_id),
    });
    traces.extend(large.iter().filter_map(|id| index.find(&id.to_string()).ok()));
    listed
}

impl Side {
    fn new(traces: &[&Trace], left_out: usize) -> Side {
        Side {
            traces: traces.len(),
            left_out,
            duration_ns: traces.iter().map(|trace| trace.duration_ns()).sum(),
            errors: traces.iter().map(|trace| trace.error_count()).sum(),
            trace: if let [trace] = traces { Some(Row::new(trace)) } else { None },
        }
    }
}

/// Returns the trace that a text names, or the newest ones that it finds as a query.
fn group(watched: &Watched, text: &str) -> Result<Group, Problem> {
    let is_id = text == "last" || ((4..=32).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit()));
    if is_id {
        return Ok(Group { traces: vec![find(watched, text)?], ..Group::default() });
    }
    let query = Query::parse(text, watched.now_unix_nano)
        .map_err(|error| Problem::new(problem::NOT_A_QUESTION, error.to_string()))?;
    let among = tracer_trace::Among { query, ..tracer_trace::Among::default() };
    let mut traces = Vec::new();
    let Listed { left_out, older, .. } = take_group(&watched.index, &among, &mut traces);
    Ok(Group { traces, left_out, older: older.map(|older| (older, among)) })
}

/// Returns whether an id is the one that no span has.
fn is_of_no_span(id: &str) -> bool {
    id.strip_prefix("0x").unwrap_or(id) == "0".repeat(16)
}

fn parse_span_id(text: &str) -> Result<SpanId, Problem> {
    text.parse().map_err(|_| {
        let text = format!("expected a span id of 16 hex digits, found `{}`", text.escape_debug());
        Problem::new(problem::INVALID, text)
    })
}

/// Returns the state that tasks are to be in; empty for all.
fn state(parameters: &[(String, String)]) -> Result<String, Problem> {
    let Some(state) = parameters::text(parameters, "state") else { return Ok(String::new()) };
    let known = ["waiting", "running", "succeeded", "failed"];
    if known.contains(&state) {
        return Ok(state.into());
    }
    let text = format!("expected `state` to be one of {}, found `{}`", known.join(", "), state.escape_debug());
    Err(Problem::new(problem::INVALID, text))
}

/// Rest of a question, without the lock on what was looked at.
pub(super) type Next = Box<dyn FnOnce() -> Answer + Send>;

impl OfHead {
    /// Takes what is needed of the last look; the head is then asked without the lock.
    fn prepare(self, watched: &Watched) -> Result<Next, Problem> {
        let session = watched.session().map(Path::to_path_buf);
        let (revision, now) = (watched.revision, watched.now_unix_nano);
        Ok(match self {
            OfHead::Now => {
                let open = watched.index.open().to_vec();
                Box::new(move || match cluster::now(session.as_deref(), &open, revision, now) {
                    Ok(report) => json_answer(&report),
                    Err(error) => Err(of_head(error)),
                })
            }
            OfHead::History(wanted) => {
                let found = History::of_spans(&watched.index, &wanted);
                Box::new(move || {
                    let known = cluster::tasks(session.as_deref()).map_err(of_head)?;
                    json_answer(&found.complete(known, session.is_some(), &wanted, revision, now))
                })
            }
            OfHead::Attempts(id) => {
                let mut found = Attempts::new(&watched.index, &find(watched, &id)?, revision);
                Box::new(move || {
                    let waiting = found.waiting();
                    if let Some(session) = session.as_deref().filter(|_| !waiting.is_empty()) {
                        let most = waiting.len().min(EXPLAINED);
                        cluster::explain(session, &mut waiting[..most]).map_err(of_head)?;
                    }
                    json_answer(&found)
                })
            }
            OfHead::Logs(request) => {
                let folder = watched.index.folder().to_path_buf();
                Box::new(move || {
                    let spans = Spans::Stored(session.as_deref().map(Live::new));
                    let reader = Reader::new(request.selection, &folder, session.as_deref(), spans);
                    let page = reader.page(request.part, request.limit);
                    json_answer(&Logs { revision, page: page.map_err(unreadable_logs)? })
                })
            }
        })
    }
}

fn unreadable_logs(error: io::Error) -> Problem {
    Problem::new(problem::UNREADABLE, format!("the logs cannot be read: {error}"))
}

fn of_head(error: tracer_client::driver::DriverError) -> Problem {
    Problem::new(problem::UNAVAILABLE, format!("the head cannot be asked: {error}"))
}

fn open(watched: &Watched) -> Open {
    let mut processes: Vec<OpenProcess> = Vec::new();
    for live in watched.index.open() {
        let at = processes.iter().position(|process| process.pid == live.pid).unwrap_or_else(|| {
            let service = live.span.resource().text("service.name").unwrap_or_default().to_owned();
            processes.push(OpenProcess { pid: live.pid, service, spans: Vec::new() });
            processes.len() - 1
        });
        processes[at].spans.push(open_span(live));
    }
    for process in &mut processes {
        process.spans.sort_by_key(|span| std::cmp::Reverse(span.age_ns));
    }
    processes.sort_by_key(|process| process.pid);
    let open = processes.iter().map(|process| process.spans.len()).sum();
    Open { revision: watched.revision, time: rfc3339(watched.now_unix_nano), open, processes }
}

fn open_span(live: &LiveSpan) -> OpenSpan {
    OpenSpan {
        trace_id: live.span.trace_id().to_string(),
        span_id: live.span.span_id.to_string(),
        name: live.span.name().to_string(),
        age_ns: live.span.duration_ns(),
        task_id: live.task_id,
    }
}

fn find(watched: &Watched, id: &str) -> Result<Trace, Problem> {
    watched.index.find(id).map_err(|error| {
        let kind = if matches!(error, FindError::NotAnId { .. }) { problem::INVALID } else { problem::NO_TRACE };
        Problem::new(kind, error.to_string())
    })
}
