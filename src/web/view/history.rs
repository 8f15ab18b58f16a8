//! Tasks, from the spans of their attempts and from what the head remembers: so a task that the head has forgotten, or that an earlier head ran, is
//! listed as long as its spans are there.

use std::collections::{HashMap, HashSet};

use serde::Serialize;
use serde_json::Value;
use tracer_core::names;
use tracer_ipc::protocol::TaskReport;
use tracer_trace::json::time_text;
use tracer_trace::{Among, Attributes, Index, Kind, Span, Status, Trace};

/// Large traces whose tasks are listed.
const LARGE: usize = 10;

/// Conditions on the tasks that are listed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Wanted {
    /// In the name of the function, in any case of letters.
    pub(super) text: String,
    /// `waiting`, `running`, `succeeded` or `failed`; empty for all.
    pub(super) state: String,
    /// The most that are listed.
    pub(super) limit: usize,
}

/// Tasks, newest first.
#[derive(Debug, Serialize)]
pub(super) struct History {
    revision: u64,
    has_head: bool,
    tasks: Vec<Task>,
    /// Number of older traces, which were not looked at.
    traces_left_out: usize,
    /// Number of tasks that were found and not listed because of the limit.
    left_out: usize,
}

/// A task.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Task {
    task_id: Option<u64>,
    /// Set for a task of a queue, with the two that follow.
    queue: Option<String>,
    cluster_task_id: Option<String>,
    /// Node that ran its last attempt.
    node_id: Option<String>,
    target: String,
    state: String,
    /// Number of the last attempt; 0 if it was not begun.
    attempt: u64,
    worker_id: Option<u64>,
    pid: Option<u32>,
    /// Start of the first attempt, or the time of the submission where none was begun.
    start_time: String,
    /// From there to the end of the last attempt.
    duration_ns: u64,
    queued_ns: Option<u64>,
    cpu_time_ns: Option<u64>,
    peak_memory_bytes: Option<u64>,
    /// Error that it failed with.
    error: Option<String>,
    /// The beginning of its result, as JSON, if the head knows it.
    result: Option<String>,
    trace_id: Option<String>,
    /// Span of the last attempt.
    span_id: Option<String>,
    /// True if the head does not know it, and all that is said is from its spans.
    is_from_spans: bool,
    #[serde(skip)]
    start_unix_nano: u64,
    #[serde(skip)]
    end_unix_nano: u64,
}

/// Returns whether a span is an attempt at a task.
pub(super) fn is_attempt(span: &Span) -> bool {
    span.kind == Kind::Consumer && span.name().ends_with(names::REMOTE_WORKER_SUFFIX)
}

/// Returns an attribute that is a number.
pub(super) fn number(attributes: &Attributes, key: &str) -> Option<u64> {
    attributes.get(key).and_then(Value::as_u64)
}

/// Returns what an attempt failed with, in a few words.
pub(super) fn error_of(span: &Span, attributes: &Attributes) -> Option<String> {
    let is_error = span.status == Status::Error;
    is_error.then(|| span.status_description().or_else(|| attributes.text(names::ERROR_TYPE).map(str::to_owned)))?
}

/// Tasks that were found in spans.
pub(super) struct FromSpans {
    tasks: Vec<Task>,
    traces_left_out: usize,
    /// Number of attempts that were not looked at.
    left_out: usize,
}

impl History {
    /// Finds the tasks of the newest traces.
    pub(super) fn of_spans(index: &Index, wanted: &Wanted) -> FromSpans {
        // Some tasks are left out by their state.
        let most = wanted.limit * 2;
        let (mut tasks, mut left_out): (Vec<Task>, usize) = (Vec::new(), 0);
        let mut take = |trace: &Trace| {
            if tasks.len() < most {
                let is_meant = |span: &&Span| is_attempt(span) && wanted.is_named(names::target_of(span.name()));
                let mut attempts = trace.spans.iter().rev().filter(is_meant);
                // A trace may have a million.
                let newest: Vec<&Span> = attempts.by_ref().take(most).collect();
                left_out += attempts.count();
                tasks.extend(of_trace(trace, newest.into_iter().rev()));
            }
        };
        let mut large = Vec::new();
        let listed = index.list_each(&Among::default(), most, |row, trace| match trace {
            Some(trace) => take(&trace),
            None => large.push(row.trace_id),
        });
        large.truncate(LARGE);
        for id in large {
            if let Ok(trace) = index.find(&id.to_string()) {
                take(&trace);
            }
        }
        FromSpans { tasks, traces_left_out: listed.left_out, left_out }
    }
}

impl FromSpans {
    /// Completes the tasks by what the head knows, and takes those that are wanted, newest first.
    pub(super) fn complete(
        self,
        known: Vec<TaskReport>,
        has_head: bool,
        wanted: &Wanted,
        revision: u64,
        now_unix_nano: u64,
    ) -> History {
        let FromSpans { mut tasks, traces_left_out, left_out } = self;
        complete(&mut tasks, known.into_iter().filter(|task| wanted.is_named(&task.target)), now_unix_nano);
        tasks.retain(|task| wanted.state.is_empty() || task.is_in(&wanted.state));
        tasks.sort_by_key(|task| std::cmp::Reverse(task.start_unix_nano));
        let left_out = left_out + tasks.len().saturating_sub(wanted.limit);
        tasks.truncate(wanted.limit);
        History { revision, has_head, tasks, traces_left_out, left_out }
    }
}

impl Wanted {
    fn is_named(&self, target: &str) -> bool {
        self.text.is_empty() || target.to_lowercase().contains(&self.text.to_lowercase())
    }
}

impl Task {
    fn is_in(&self, state: &str) -> bool {
        match state {
            "waiting" => ["waiting", "retrying", "leased"].contains(&self.state.as_str()),
            "running" => ["running", "cancelling", "terminating", "killing"].contains(&self.state.as_str()),
            "failed" => ["failed", "cancelled"].contains(&self.state.as_str()),
            other => self.state == other,
        }
    }
}

/// Puts the attempts of a trace together to tasks.
fn of_trace<'a>(trace: &'a Trace, attempts: impl Iterator<Item = &'a Span>) -> Vec<Task> {
    let mut tasks: Vec<Task> = Vec::new();
    let mut places: HashMap<Key, usize> = HashMap::new();
    for span in attempts {
        let attributes = span.attributes();
        let task_id = number(&attributes, names::TASK_ID);
        let text = |name: &str| attributes.text(name).map(str::to_owned);
        let cluster_task_id = text(names::CLUSTER_TASK_ID);
        let found = Task {
            task_id,
            queue: text(names::QUEUE),
            node_id: cluster_task_id.as_ref().and_then(|_| text(names::NODE_ID)),
            cluster_task_id,
            target: names::target_of(span.name()).to_owned(),
            state: if span.is_running() {
                "running".into()
            } else if span.status == Status::Error {
                "failed".into()
            } else {
                "succeeded".into()
            },
            attempt: number(&attributes, names::ATTEMPT).unwrap_or(1),
            worker_id: number(&attributes, names::WORKER_ID),
            pid: span.pid(),
            start_time: time_text(span.start_unix_nano),
            duration_ns: span.duration_ns(),
            queued_ns: number(&attributes, names::QUEUED_NS),
            cpu_time_ns: number(&attributes, names::CPU_TIME_NS),
            peak_memory_bytes: number(&attributes, names::PEAK_MEMORY_BYTES),
            error: error_of(span, &attributes),
            result: None,
            trace_id: Some(trace.id.to_string()),
            span_id: Some(span.span_id.to_string()),
            is_from_spans: true,
            start_unix_nano: span.start_unix_nano,
            end_unix_nano: span.start_unix_nano + span.duration_ns(),
        };
        let key = Key::of(found.cluster_task_id.as_deref(), task_id);
        match key.as_ref().and_then(|key| places.get(key).copied()) {
            Some(at) => tasks[at].add(found),
            None => {
                if let Some(key) = key {
                    places.insert(key, tasks.len());
                }
                tasks.push(found);
            }
        }
    }
    tasks
}

/// Id of a task in its trace. One of a queue has another number on each node that has run it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Cluster(String),
    Local(u64),
}

impl Key {
    fn of(cluster_task_id: Option<&str>, task_id: Option<u64>) -> Option<Key> {
        let cluster = cluster_task_id.map(|id| Key::Cluster(id.to_owned()));
        cluster.or_else(|| task_id.map(Key::Local))
    }
}

impl Task {
    /// Takes in another attempt.
    fn add(&mut self, other: Task) {
        let (first, last) = if other.attempt >= self.attempt { (self.clone(), other) } else { (other, self.clone()) };
        let sum = |one: Option<u64>, other: Option<u64>| match (one, other) {
            (None, None) => None,
            (one, other) => Some(one.unwrap_or(0) + other.unwrap_or(0)),
        };
        *self = Task {
            start_time: first.start_time,
            start_unix_nano: first.start_unix_nano,
            duration_ns: last.end_unix_nano.saturating_sub(first.start_unix_nano),
            cpu_time_ns: sum(first.cpu_time_ns, last.cpu_time_ns),
            // Each attempt counts from the submission: what follows the first attempt's wait is in the duration.
            queued_ns: first.queued_ns,
            peak_memory_bytes: first.peak_memory_bytes.max(last.peak_memory_bytes),
            ..last
        };
    }
}

/// Corrects the tasks that the head knows, and adds those without spans.
fn complete(tasks: &mut Vec<Task>, known: impl Iterator<Item = TaskReport>, now_unix_nano: u64) {
    let key = |task: &Task| Some((Key::of(task.cluster_task_id.as_deref(), task.task_id)?, task.trace_id.clone()?));
    let places: HashMap<_, _> = tasks.iter().enumerate().filter_map(|(at, task)| Some((key(task)?, at))).collect();
    let mut seen = HashSet::new();
    for report in known {
        let key = Key::of(report.cluster_task_id.as_deref(), Some(report.id.0)).zip(report.trace_id.clone());
        let place = key.and_then(|key| places.get(&key));
        if !seen.insert(report.id) {
            continue;
        }
        match place {
            Some(&at) => {
                let task = &mut tasks[at];
                // The number by which it is known here.
                task.task_id = Some(report.id.0);
                task.state = report.state.to_string();
                task.attempt = u64::from(report.attempt).max(task.attempt);
                task.is_from_spans = false;
                task.error = task.error.take().or(report.message);
                task.result = report.result_beginning;
            }
            None => tasks.push(of_report(report, now_unix_nano)),
        }
    }
}

fn of_report(report: TaskReport, now_unix_nano: u64) -> Task {
    let start = report.started_unix_nano.unwrap_or(report.submitted_unix_nano);
    let end = report.ended_unix_nano.unwrap_or(now_unix_nano);
    Task {
        task_id: Some(report.id.0),
        queue: report.queue,
        cluster_task_id: report.cluster_task_id,
        node_id: report.node_id,
        target: report.target,
        state: report.state.to_string(),
        attempt: u64::from(report.attempt),
        worker_id: report.worker_id.map(|id| id.0),
        pid: report.worker_pid,
        start_time: time_text(start),
        duration_ns: end.saturating_sub(start),
        queued_ns: None,
        cpu_time_ns: None,
        peak_memory_bytes: None,
        error: report.message,
        result: report.result_beginning,
        trace_id: report.trace_id,
        span_id: None,
        is_from_spans: false,
        start_unix_nano: start,
        end_unix_nano: end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(id: u64, cluster_task_id: Option<&str>) -> TaskReport {
        let report = serde_json::json!({
            "id": id, "name": null, "target": "sh", "state": "succeeded", "job_id": 1, "trace_id": "t", "attempt": 1,
            "attempts": [], "worker_id": null, "worker_pid": null, "submitted_unix_nano": 5, "started_unix_nano": null,
            "ended_unix_nano": 9, "result": null, "failure": null, "message": null, "cluster_task_id": cluster_task_id,
        });
        serde_json::from_value(report).expect("it is a report")
    }

    #[test]
    fn a_task_of_a_queue_is_one_row_whatever_its_number_on_the_node_that_ran_it() {
        let of_spans = |id: u64, cluster_task_id: Option<&str>| Task {
            node_id: cluster_task_id.map(|_| "b".into()),
            is_from_spans: true,
            ..of_report(known(id, cluster_task_id), 9)
        };
        // The number of the second is that of the first where it has run.
        let mut tasks = vec![of_spans(2, Some("place-1")), of_spans(2, None)];
        complete(&mut tasks, [known(1, Some("place-1")), known(2, None)].into_iter(), 9);
        let rows: Vec<_> =
            tasks.iter().map(|task| (task.task_id, task.node_id.as_deref(), task.is_from_spans)).collect();
        assert_eq!(rows, [(Some(1), Some("b"), false), (Some(2), None, false)]);
    }

    #[test]
    fn a_task_that_was_tried_again_waited_for_its_first_attempt() {
        let attempt = |attempt: u64, start: u64, queued: u64| Task {
            task_id: Some(7),
            queue: None,
            cluster_task_id: None,
            node_id: None,
            target: "sh".into(),
            state: "failed".into(),
            attempt,
            worker_id: None,
            pid: None,
            start_time: String::new(),
            duration_ns: 10,
            queued_ns: Some(queued),
            cpu_time_ns: Some(1),
            peak_memory_bytes: None,
            error: None,
            result: None,
            trace_id: None,
            span_id: None,
            is_from_spans: true,
            start_unix_nano: start,
            end_unix_nano: start + 10,
        };
        for attempts in [[1, 2, 3], [3, 2, 1], [2, 3, 1]] {
            let mut all = attempts.map(|number| attempt(number, 100 * number, 100 * number - 50)).into_iter();
            let mut task = all.next().unwrap();
            all.for_each(|other| task.add(other));
            assert_eq!((task.attempt, task.queued_ns, task.duration_ns), (3, Some(50), 210), "{attempts:?}");
            assert_eq!(task.cpu_time_ns, Some(3));
        }
    }
}
