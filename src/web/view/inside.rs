//! Questions about one trace beyond its columns: which spans a text finds, links both ways, attempts with what they used, why nothing ran, and everything
//! that was written meanwhile in one list.

use std::collections::{HashMap, HashSet};
use std::io;
use std::num::NonZero;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Map, Value};
use tracer_core::names;
use tracer_core::names::target_of;
use tracer_trace::log_entries::{self, OfTrace};
use tracer_trace::{Among, Attributes, Idle, Index, Kind, Query, Span, SpanId, Trace, TraceId, Tree, idle};

use super::history::{error_of, is_attempt, number};

/// The most entries of a trace's log that are listed.
const ENTRIES: usize = 10_000;
/// The most spans that a text finds which are listed.
const FOUND: usize = 100_000;
/// The most attempts of a trace that are listed: the first.
const ATTEMPTS: usize = 10_000;
/// The most submissions that wait which are listed.
const WAITING: usize = 1000;
/// The most links of a trace that are listed.
const LINKS: usize = 2000;
/// The most other traces that are read for the names of linked spans.
const LINKED: usize = 50;
/// Other traces that are looked at, for links to a trace and for what ran beside it: the newest.
const NEWEST: usize = 200;
/// Stretches in which nothing runs are listed if they take at least this part of the trace.
const IDLE_SHARE: u64 = 100;
/// The most of them.
const IDLE: usize = 200;

/// Spans of a trace that a text finds.
#[derive(Debug, Serialize)]
pub(super) struct Found {
    revision: u64,
    /// The first of them.
    pub(super) span_ids: Vec<SpanId>,
    left_out: usize,
    /// Reason why the text is no query, if it looks like one.
    problem: Option<String>,
}

impl Found {
    /// Looks for a query in the spans, or for a text in their names, attributes and events.
    pub(super) fn new(trace: &Trace, text: &str, revision: u64, now_unix_nano: u64) -> Found {
        let plain = || {
            let quoted: String =
                text.chars().flat_map(|c| [(c == '"' || c == '\\').then_some('\\'), Some(c)]).flatten().collect();
            Query::parse(&format!("\"{quoted}\""), now_unix_nano)
        };
        let is_query = text.contains([':', '=', '<', '>', '"']) || ["error", "running", "root"].contains(&text);
        let parsed = if is_query { Query::parse(text, now_unix_nano) } else { plain() };
        let (query, problem) = match parsed {
            Ok(query) => (query, None),
            Err(error) => (plain().unwrap_or_default(), Some(error.to_string())),
        };
        let mut spans = trace.spans.iter().filter(|span| query.matches_span(span));
        let span_ids = spans.by_ref().take(FOUND).map(|span| span.span_id).collect();
        Found { revision, span_ids, left_out: spans.count(), problem }
    }
}

/// Links of the spans of a trace, and links to them.
#[derive(Debug, Serialize)]
pub(super) struct Links {
    revision: u64,
    links: Vec<Link>,
    left_out: usize,
}

/// A link.
#[derive(Debug, Serialize)]
struct Link {
    /// The span of this trace.
    span_id: SpanId,
    /// True if the other span has the link.
    is_from_other: bool,
    other_trace_id: TraceId,
    other_span_id: SpanId,
    /// Name of the other span; none if it is not in the folder.
    other_name: Option<String>,
}

impl Links {
    /// Finds the links of the trace's spans, and of the newest other traces those that lead to it.
    pub(super) fn new(index: &Index, trace: &Trace, revision: u64) -> Links {
        let id = trace.id.to_string();
        let mut links = Vec::new();
        let mut linked = HashSet::new();
        for span in trace.spans.iter().filter(|span| may_link(span, None)) {
            for link in span.links() {
                links.push(Link::of(span.span_id, false, (link.trace_id, link.span_id), None));
                if link.trace_id == trace.id {
                    links.push(Link::of(link.span_id, true, (trace.id, span.span_id), Some(span.name())));
                } else {
                    linked.insert(link.trace_id);
                }
            }
        }
        let mut from = |other: &Trace| {
            for span in other.spans.iter().filter(|span| may_link(span, Some(&id))) {
                for link in span.links().into_iter().filter(|link| link.trace_id == trace.id) {
                    links.push(Link::of(link.span_id, true, (other.id, span.span_id), Some(span.name())));
                }
            }
        };
        for other in newest(index).iter().filter(|other| other.id != trace.id) {
            from(other);
            linked.remove(&other.id);
        }
        // What one of them leads back from may be older.
        linked.iter().take(LINKED).filter_map(|id| index.find(&id.to_string()).ok()).for_each(|other| from(&other));
        let left_out = links.len().saturating_sub(LINKS);
        links.truncate(LINKS);
        let mut traces: HashMap<TraceId, Option<Trace>> = HashMap::new();
        for link in links.iter_mut().filter(|link| link.other_name.is_none()) {
            let name = |other: &Trace| other.span(link.other_span_id).map(|span| span.name().to_string());
            link.other_name = if link.other_trace_id == trace.id {
                name(trace)
            } else if traces.len() < LINKED || traces.contains_key(&link.other_trace_id) {
                let id = link.other_trace_id;
                let other = traces.entry(id).or_insert_with(|| index.find(&id.to_string()).ok());
                other.as_ref().and_then(name)
            } else {
                None
            };
        }
        Links { revision, links, left_out }
    }
}

impl Link {
    fn of(span_id: SpanId, is_from_other: bool, other: (TraceId, SpanId), name: Option<&str>) -> Link {
        let (other_trace_id, other_span_id) = other;
        Link { span_id, is_from_other, other_trace_id, other_span_id, other_name: name.map(str::to_owned) }
    }
}

/// Returns the newest traces that are not large.
fn newest(index: &Index) -> Vec<Trace> {
    let mut traces = Vec::new();
    index.list_each(&Among::default(), NEWEST, |_, trace| traces.extend(trace));
    traces
}

/// Returns whether a span may have a link, to the trace with this id if one is named; without parsing it.
fn may_link(span: &Span, id: Option<&str>) -> bool {
    let text = span.text();
    let has = |part: &str| memchr::memmem::find(text.as_bytes(), part.as_bytes()).is_some();
    !has("\"links\":[]") && !has("\"links\": []") && id.is_none_or(has)
}

/// Attempts at the tasks of a trace, and the times in which nothing ran.
#[derive(Debug, Serialize)]
pub(super) struct Attempts {
    revision: u64,
    /// The first of them.
    attempts: Vec<Attempt>,
    attempts_left_out: usize,
    /// In the order of time.
    gaps: Vec<Gap>,
    /// Submissions that no attempt has followed yet; the first of them.
    waiting: Vec<Waiting>,
    waiting_left_out: usize,
}

/// Figures of an attempt that are kept of each, however many there are.
struct Figures {
    task_id: Option<NonZero<u64>>,
    /// Index of its span.
    at: u32,
    attempt: u32,
    worker_id: Option<u32>,
}

/// An attempt at a task.
#[derive(Debug, Serialize)]
struct Attempt {
    span_id: SpanId,
    task_id: Option<u64>,
    attempt: u64,
    worker_id: Option<u64>,
    queued_ns: Option<u64>,
    cpu_time_ns: Option<u64>,
    peak_memory_bytes: Option<u64>,
    error: Option<String>,
    /// Writer of the span, if it was not its process.
    completed_by: Option<String>,
}

/// A time in which no span of the trace did anything but wait.
#[derive(Debug, Serialize)]
struct Gap {
    /// Since the start of the trace.
    start_ns: u64,
    duration_ns: u64,
    /// The span that ends it.
    span_id: SpanId,
    is_queued: bool,
    /// Known part of the reason.
    why: String,
}

/// A task that waits.
#[derive(Debug, Serialize)]
pub(super) struct Waiting {
    /// Its submission.
    span_id: SpanId,
    pub(super) task_id: u64,
    /// Reason as the head says it; filled in when the head is asked.
    pub(super) why: Option<String>,
}

impl Attempts {
    pub(super) fn new(index: &Index, trace: &Trace, revision: u64) -> Attempts {
        let idle = longest_idle(trace);
        let count = trace.spans.iter().filter(|span| is_attempt(span)).count();
        let (mut attempts, mut details) = (Vec::with_capacity(count.min(ATTEMPTS)), Vec::with_capacity(count));
        for (at, span) in trace.spans.iter().enumerate().filter(|(_, span)| is_attempt(span)) {
            let attributes = span.attributes();
            let attempt = Attempt::new(span, &attributes);
            details.push(Figures {
                task_id: attempt.task_id.and_then(NonZero::new),
                at: at as u32,
                attempt: u32::try_from(attempt.attempt).unwrap_or(u32::MAX),
                worker_id: attempt.worker_id.and_then(|id| u32::try_from(id).ok()),
            });
            if attempts.len() < ATTEMPTS {
                attempts.push(attempt);
            }
        }
        let attempts_left_out = details.len() - attempts.len();
        let others = if idle.iter().any(|idle| idle.is_queued) { newest(index) } else { Vec::new() };
        let gaps = idle.iter().map(|idle| gap(&others, trace, idle, &details)).collect();
        let mut waiting = waiting(trace, &details);
        let waiting_left_out = waiting.len().saturating_sub(WAITING);
        waiting.truncate(WAITING);
        Attempts { revision, attempts, attempts_left_out, gaps, waiting, waiting_left_out }
    }

    /// The tasks that wait, for the head to say why.
    pub(super) fn waiting(&mut self) -> &mut [Waiting] {
        &mut self.waiting
    }
}

/// Finds the times in which nothing of a trace ran that are shown.
fn longest_idle(trace: &Trace) -> Vec<Idle> {
    let least = (trace.duration_ns() / IDLE_SHARE).max(1);
    let mut idle = idle(trace, &Tree::new(trace), least);
    idle.truncate(IDLE);
    idle
}

/// Finds the submissions that have ended without an attempt.
fn waiting(trace: &Trace, details: &[Figures]) -> Vec<Waiting> {
    let mut begun: Vec<u64> = details.iter().filter_map(|figures| figures.task_id).map(NonZero::get).collect();
    begun.sort_unstable();
    begun.dedup();
    let is_submission = |span: &&Span| span.kind == Kind::Producer && span.name().ends_with(names::REMOTE_SUFFIX);
    // Each attempt has its submission: where there are as many, nothing waits.
    let submissions: Vec<&Span> = trace.spans.iter().filter(is_submission).collect();
    if submissions.len() <= begun.len() {
        return Vec::new();
    }
    let of = |span: &Span| {
        let task_id = number(&span.attributes(), names::TASK_ID).filter(|id| begun.binary_search(id).is_err())?;
        Some(Waiting { span_id: span.span_id, task_id, why: None })
    };
    submissions.into_iter().filter_map(of).collect()
}

impl Attempt {
    fn new(span: &Span, attributes: &Attributes) -> Attempt {
        Attempt {
            span_id: span.span_id,
            task_id: number(attributes, names::TASK_ID),
            attempt: number(attributes, names::ATTEMPT).unwrap_or(1),
            worker_id: number(attributes, names::WORKER_ID),
            queued_ns: number(attributes, names::QUEUED_NS),
            cpu_time_ns: number(attributes, names::CPU_TIME_NS),
            peak_memory_bytes: number(attributes, names::PEAK_MEMORY_BYTES),
            error: error_of(span, attributes),
            completed_by: attributes.text(names::COMPLETED_BY).map(str::to_owned),
        }
    }
}

fn gap(others: &[Trace], trace: &Trace, idle: &Idle, details: &[Figures]) -> Gap {
    let next = &trace.spans[idle.before];
    Gap {
        start_ns: idle.start_unix_nano.saturating_sub(trace.start_unix_nano()),
        duration_ns: idle.end_unix_nano - idle.start_unix_nano,
        span_id: next.span_id,
        is_queued: idle.is_queued,
        why: if idle.is_queued {
            why_queued(others, trace, idle, details)
        } else {
            format!("nothing of this trace was open until {} started", next.name())
        },
    }
}

/// Says what an attempt waited for, as far as the spans tell.
fn why_queued(others: &[Trace], trace: &Trace, idle: &Idle, details: &[Figures]) -> String {
    let next = &trace.spans[idle.before];
    let target = target_of(next.name());
    let of_next = details.iter().find(|figures| figures.at as usize == idle.before);
    let task_id = of_next.and_then(|figures| figures.task_id);
    let before = details.iter().rev().find(|figures| {
        figures.at as usize != idle.before
            && task_id.is_some()
            && figures.task_id == task_id
            && trace.spans[figures.at as usize].start_unix_nano < next.start_unix_nano
    });
    if let Some(Figures { at, attempt, .. }) = before {
        let span = &trace.spans[*at as usize];
        let error = error_of(span, &span.attributes()).map(|error| format!(": {error}")).unwrap_or_default();
        return format!("{target} was tried again, attempt {attempt} had failed{error}");
    }
    let worker = of_next.and_then(|figures| figures.worker_id);
    let worker = worker.map_or_else(|| "its worker".to_owned(), |worker| format!("worker {worker}"));
    let pid = next.pid();
    let overlaps = |span: &&Span| {
        span.start_unix_nano < idle.end_unix_nano
            && span.start_unix_nano + span.duration_ns() > idle.start_unix_nano
            && is_attempt(span)
    };
    let others = others.iter().filter(|other| other.id != trace.id);
    let spans = std::iter::once(trace).chain(others).flat_map(|trace| &trace.spans).filter(overlaps);
    let others: Vec<&str> = spans
        .filter(|span| span.span_id != next.span_id && span.pid() == pid)
        .map(|span| target_of(span.name()))
        .collect();
    match others.as_slice() {
        [] => format!(
            "{target} waited for {worker}, where no other traced task ran: it was starting, or the task was on its way"
        ),
        [other] => format!("{target} waited: {worker} ran {other}"),
        [other, rest @ ..] => {
            let rest = tracer_core::count::Count(rest.len() as u64, "other task");
            format!("{target} waited: {worker} ran {other} and {rest}")
        }
    }
}

/// Everything that was written during a trace.
#[derive(Debug, Serialize)]
pub(super) struct Written {
    revision: u64,
    /// In the order of time.
    entries: Vec<Entry>,
    left_out: u64,
    /// Sources that could not be read.
    notices: Vec<String>,
}

/// An event of a span, a log record, or a line of output.
#[derive(Debug, Serialize)]
struct Entry {
    /// Since the start of the trace; less than 0 for what was written before.
    at_ns: i64,
    /// `event`, `record`, `stdout` or `stderr`.
    kind: &'static str,
    pub span_id: Option<SpanId>,
    pub severity: String,
    pub text: String,
    pub attributes: Map<String, Value>,
    /// True of a line that the next entry of its writer goes on with.
    pub is_partial: bool,
    /// True if it may be another task's.
    pub is_approximate: bool,
}

impl Written {
    /// Reads events from the spans, log records from beside the span files, and lines from the logs of sessions.
    pub(super) fn new(index: &Index, trace: &Trace, sessions: &[PathBuf], revision: u64) -> io::Result<Written> {
        let start = trace.start_unix_nano();
        let at = |time: u64| i64::try_from(i128::from(time) - i128::from(start)).unwrap_or(i64::MAX);
        let mut entries = Vec::new();
        let mut left_out = 0;
        let mut cut = |entries: &mut Vec<Entry>, bound: usize| {
            if entries.len() > bound {
                entries.sort_by_key(|entry| entry.at_ns);
                left_out += (entries.len() - ENTRIES) as u64;
                entries.truncate(ENTRIES);
            }
        };
        for span in trace.spans.iter().filter(|span| may_have_events(span)) {
            entries.extend(span.events().into_iter().map(|event| Entry::of_event(span, event, at)));
            cut(&mut entries, 2 * ENTRIES);
        }
        let OfTrace { entries: written, left_out: unread, notices } =
            log_entries::of_trace(index.folder(), sessions, trace, index.parts_of(trace.id), ENTRIES)?;
        // What was written behind the last that was read may be before an event.
        let last = written.last().map(|entry| at(entry.unix_nano)).filter(|_| unread > 0);
        entries.extend(written.into_iter().map(|entry| Entry {
            at_ns: at(entry.unix_nano),
            kind: entry.origin.name(),
            span_id: entry.span_id,
            severity: entry.severity,
            text: entry.text,
            attributes: entry.attributes.0.into_iter().collect(),
            is_partial: entry.is_partial,
            is_approximate: entry.is_approximate,
        }));
        cut(&mut entries, ENTRIES);
        entries.sort_by_key(|entry| entry.at_ns);
        let count = entries.len();
        entries.retain(|entry| last.is_none_or(|last| entry.at_ns <= last));
        left_out += unread + (count - entries.len()) as u64;
        Ok(Written { revision, entries, left_out, notices })
    }
}

impl Entry {
    fn of_event(span: &Span, event: tracer_trace::SpanEvent, at: impl Fn(u64) -> i64) -> Entry {
        let message = [names::EXCEPTION_TYPE, names::EXCEPTION_MESSAGE].map(|key| event.attributes.text(key));
        let text = match message {
            [Some(kind), Some(message)] => format!("{kind}: {message}"),
            [None, Some(message)] => message.to_owned(),
            _ => event.name.clone(),
        };
        Entry {
            at_ns: at(event.time_unix_nano.unwrap_or(span.start_unix_nano)),
            kind: "event",
            span_id: Some(span.span_id),
            severity: if event.name == names::EXCEPTION_EVENT { "ERROR".into() } else { String::new() },
            text,
            attributes: event.attributes.0.into_iter().collect(),
            is_partial: false,
            is_approximate: false,
        }
    }
}

fn may_have_events(span: &Span) -> bool {
    let text = span.text();
    let has = |part: &str| memchr::memmem::find(text.as_bytes(), part.as_bytes()).is_some();
    !has("\"events\":[]") && !has("\"events\": []")
}
