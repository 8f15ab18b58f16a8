//! Questions of the page about traces, and their answers.

use http::StatusCode;
use serde::Serialize;

use super::answers::{Answer, json_answer, json_text, nothing_at};
use super::columns::Columns;
use super::source::Watched;
use crate::http_api::parameters;
use crate::http_api::problem::{self, Kind, Problem};
use crate::log_entries::{Page, PageRequest, Reader, Spans};
use crate::trace::{
    Differences, Filter, FindError, HeatMap, List, LiveSpan, Query, Region, Row, SpanId, Trace, rfc3339,
};
use tracer_core::clock::parse_rfc3339;

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
/// The most traces that one request lists.
const LIST: usize = 5000;
/// There is no such trace.
const NO_TRACE: Kind = Kind { name: "no-such-trace", status: StatusCode::NOT_FOUND, title: "There is no such trace" };
/// There is no such span.
const NO_SPAN: Kind = Kind { name: "no-such-span", status: StatusCode::NOT_FOUND, title: "There is no such span" };

/// The traces that were found.
#[derive(Serialize)]
struct Traces<'a> {
    revision: u64,
    time: String,
    folder: String,
    notices: &'a [String],
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
    /// None if there are no traces.
    map: Option<HeatMap>,
}

/// Differences between the traces of a region and the others.
#[derive(Serialize)]
struct Answered {
    revision: u64,
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
    Traces { among: Among, limit: usize },
    Heat { among: Among, columns: usize, rows: usize },
    Differences { among: Among, limit: usize },
    Trace(String),
    Span(String, SpanId),
    Open,
    Logs(PageRequest),
    Events,
}

impl Question {
    pub(super) fn new(segments: &[&str], path: &str, query: &str) -> Result<Question, Problem> {
        let known: &[&str] = match segments {
            ["traces"] | ["differences"] => &["query", "since", "until", "min_ns", "max_ns", "limit"],
            ["heat"] => &["query", "since", "until", "min_ns", "max_ns", "columns", "rows"],
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
            ["traces", id] => Question::Trace((*id).into()),
            ["traces", id, "spans", span_id] => {
                let span_id = span_id.parse().map_err(|_| {
                    let text = format!("expected a span id of 16 hex digits, found `{}`", span_id.escape_debug());
                    Problem::new(problem::INVALID, text)
                })?;
                Question::Span((*id).into(), span_id)
            }
            ["open"] => Question::Open,
            ["logs"] => Question::Logs(PageRequest::new(&parameters)?),
            ["events"] => Question::Events,
            _ => return Err(nothing_at(path)),
        })
    }

    pub(super) fn answer(&self, watched: &Watched) -> Answer {
        match self {
            Question::Traces { among, limit } => traces(watched, among, *limit),
            Question::Heat { among, columns, rows } => {
                let filter = among.filter(watched)?;
                let matching = watched.watch.loaded().traces.iter().filter(|trace| filter.matches(trace));
                json_answer(&Heat { revision: watched.revision, map: HeatMap::new(matching, *columns, *rows) })
            }
            Question::Differences { among, limit } => {
                let filter = Filter { region: Region::default(), ..among.filter(watched)? };
                let matching = watched.watch.loaded().traces.iter().filter(|trace| filter.matches(trace));
                let sides = matching.map(|trace| (trace, among.region.contains(trace)));
                let differences = Differences::new(sides, *limit);
                json_answer(&Answered { revision: watched.revision, differences })
            }
            Question::Trace(id) => json_answer(&Columns::new(find(watched, id)?, watched.revision)),
            Question::Span(id, span_id) => {
                let span = find(watched, id)?.span(*span_id);
                let span = span.ok_or_else(|| {
                    let text = format!("there is no span {span_id} in the trace");
                    Problem::new(NO_SPAN, text)
                })?;
                Ok(json_text(span.compact_text()))
            }
            Question::Open => json_answer(&open(watched)),
            Question::Logs(request) => logs(watched, request),
            Question::Events => unreachable!("events are answered by the loop"),
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
        let duration = |name: &str| parameters::number(parameters, name, 0, u64::MAX);
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

    fn filter(&self, watched: &Watched) -> Result<Filter, Problem> {
        let query = Query::parse(&self.query, watched.now_unix_nano)
            .map_err(|error| Problem::new(problem::INVALID, error.to_string()))?;
        Ok(Filter { query, region: self.region, ..Filter::default() })
    }
}

fn traces(watched: &Watched, among: &Among, limit: usize) -> Answer {
    let filter = among.filter(watched)?;
    let loaded = watched.watch.loaded();
    let List { rows, left_out, filtered_out, .. } = loaded.list(&filter, Some(limit));
    let mut running: std::collections::HashMap<_, usize> = std::collections::HashMap::new();
    for live in watched.watch.open() {
        *running.entry(live.span.trace_id).or_default() += 1;
    }
    let row = |row: Row| TraceRow { running: running.get(&row.trace_id).copied().unwrap_or(0), row };
    json_answer(&Traces {
        revision: watched.revision,
        time: rfc3339(watched.now_unix_nano),
        folder: loaded.folder.display().to_string(),
        notices: &watched.notices,
        traces: rows.into_iter().map(row).collect(),
        left_out,
        filtered_out,
    })
}

/// Lines of output of the head's session, if there is a head, and the log records of the folder.
fn logs(watched: &Watched, request: &PageRequest) -> Answer {
    let spans = Spans::Read(watched.watch.loaded());
    let reader = Reader::new(request.selection.clone(), watched.watch.folder(), watched.session(), spans);
    let page = reader
        .page(request.part, request.limit)
        .map_err(|error| Problem::new(problem::UNREADABLE, format!("the logs cannot be read: {error}")))?;
    json_answer(&Logs { revision: watched.revision, page })
}

fn open(watched: &Watched) -> Open {
    let mut processes: Vec<OpenProcess> = Vec::new();
    for live in watched.watch.open() {
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
        trace_id: live.span.trace_id.to_string(),
        span_id: live.span.span_id.to_string(),
        name: live.span.name.clone(),
        age_ns: live.span.duration_ns(),
        task_id: live.task_id,
    }
}

fn find<'a>(watched: &'a Watched, id: &str) -> Result<&'a Trace, Problem> {
    watched.watch.loaded().find(id).map_err(|error| {
        let kind = if matches!(error, FindError::NotAnId { .. }) { problem::INVALID } else { NO_TRACE };
        Problem::new(kind, error.to_string())
    })
}
