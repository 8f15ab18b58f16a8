//! `tracer list tasks`: page by page, so that no more of them are in memory than one answer of the head has.

use std::cell::RefCell;

use serde::ser::{Error as _, SerializeSeq as _, SerializeStruct as _};
use serde::{Serialize, Serializer};
use tracer_client::driver::{Driver, DriverError};
use tracer_core::clock::now_unix_nano;
use tracer_core::count::{Count, Elapsed};
use tracer_ipc::protocol::{TaskFilter, TaskList, TaskPages, TaskReport};
use tracer_trace::json;
use tracer_trace::task_summary::{FunctionSummary, Functions, LOOKED_AT, Summary};

use super::super::{CommandError, Format, report};

/// Tasks that a filter and a question let through, newest first.
pub(super) struct Chosen {
    driver: Driver,
    pages: TaskPages,
    question: tracer_trace::Query,
    /// Number of tasks that may still be shown; none for all.
    room: Option<usize>,
    /// Number of those that the question chose and that had no room, and of those that it did not choose.
    left_out: usize,
    filtered_out: usize,
}

impl Chosen {
    pub(super) fn new(driver: Driver, which: TaskFilter, question: tracer_trace::Query, room: Option<usize>) -> Chosen {
        let looked_at = room.filter(|_| question.is_empty()).unwrap_or(LOOKED_AT);
        let pages = TaskPages::new(looked_at, which);
        Chosen { driver, pages, question, room, left_out: 0, filtered_out: 0 }
    }

    /// Returns the tasks of the next page, which may be none; none at all behind the last one.
    fn next(&mut self) -> Result<Option<Vec<TaskReport>>, DriverError> {
        let Some(mut tasks) = self.driver.next_tasks(&mut self.pages)? else { return Ok(None) };
        let all = tasks.len();
        tasks.retain(|task| self.question.matches_task(task));
        self.filtered_out += all - tasks.len();
        if let Some(room) = &mut self.room {
            self.left_out += tasks.len().saturating_sub(*room);
            tasks.truncate(*room);
            *room -= tasks.len();
        }
        Ok(Some(tasks))
    }

    /// Returns what is left out of all pages until now.
    fn rest(&self) -> TaskList {
        let mut rest = self.pages.rest().clone();
        rest.left_out += self.left_out;
        rest.filtered_out += self.filtered_out;
        rest
    }
}

/// Puts tasks together by function.
pub(super) fn summary(mut chosen: Chosen) -> Result<Summary, CommandError> {
    let mut functions = Functions::default();
    while let Some(tasks) = chosen.next()? {
        tasks.iter().for_each(|task| functions.add(task));
    }
    Ok(functions.summary(&chosen.rest()))
}

/// Shows tasks.
pub(super) fn list(mut chosen: Chosen, format: Format) -> Result<(), CommandError> {
    // Before anything is written: whatever fails then can be told in the form that was asked for.
    let first = chosen.next()?.unwrap_or_default();
    match format {
        Format::Text => write_table(first, &mut chosen)?,
        Format::Json => {
            let list =
                WholeList { first: RefCell::new(first), chosen: RefCell::new(chosen), error: RefCell::new(None) };
            report::object_while_made(&list, || list.error.borrow().is_some());
            if let Some(error) = list.error.into_inner() {
                return Err(error.into());
            }
        }
    }
    Ok(())
}

/// A list in JSON, of which one page after the other is asked for while it is written.
struct WholeList {
    first: RefCell<Vec<TaskReport>>,
    chosen: RefCell<Chosen>,
    error: RefCell<Option<DriverError>>,
}

impl Serialize for WholeList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("TaskList", 4)?;
        object.serialize_field("tasks", &Rows(self))?;
        let rest = self.chosen.borrow().rest();
        object.serialize_field("left_out", &rest.left_out)?;
        object.serialize_field("filtered_out", &rest.filtered_out)?;
        object.serialize_field("forgotten", &rest.forgotten)?;
        object.end()
    }
}

struct Rows<'a>(&'a WholeList);

impl Serialize for Rows<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let WholeList { first, chosen, error } = self.0;
        let (mut rows, mut page) = (serializer.serialize_seq(None)?, first.take());
        loop {
            for task in &page {
                rows.serialize_element(&json::with_times(task))?;
            }
            page = match chosen.borrow_mut().next() {
                Ok(Some(page)) => page,
                Ok(None) => return rows.end(),
                Err(failure) => {
                    let text = failure.to_string();
                    error.replace(Some(failure));
                    return Err(S::Error::custom(text));
                }
            };
        }
    }
}

const HEADER: [&str; 8] = ["ID", "TARGET", "NAME", "STATE", "TRY", "AGE", "RAN", "TRACE"];

/// A table of tasks, with columns for queues or without.
enum Rendered {
    Plain(report::LongTable<8>),
    OfQueues(report::LongTable<10>),
}

impl Rendered {
    fn new(has_queues: bool) -> Rendered {
        if !has_queues {
            return Rendered::Plain(report::LongTable::new(HEADER));
        }
        let [id, target, name, state, attempt, age, ran, trace] = HEADER;
        Rendered::OfQueues(report::LongTable::new([id, target, name, state, "QUEUE", "NODE", attempt, age, ran, trace]))
    }

    fn has_queues(&self) -> bool {
        matches!(self, Rendered::OfQueues(_))
    }

    fn rows(&mut self, tasks: &[TaskReport], now_unix_nano: u64) -> String {
        let cells = |task| cells(task, now_unix_nano);
        match self {
            Rendered::Plain(table) => table.rows(tasks.iter().map(cells)),
            Rendered::OfQueues(table) => table.rows(tasks.iter().map(|task| {
                let [id, target, name, state, attempt, age, ran, trace] = cells(task);
                let [queue, node] = [&task.queue, &task.node_id].map(|cell| cell.clone().unwrap_or_default());
                [id, target, name, state, queue, node, attempt, age, ran, trace]
            })),
        }
    }
}

fn write_table(first: Vec<TaskReport>, chosen: &mut Chosen) -> Result<(), CommandError> {
    let now = now_unix_nano();
    let mut table = None::<Rendered>;
    let mut page = Some(first);
    while let Some(tasks) = page {
        let has_queues = tasks.iter().any(|task| task.queue.is_some());
        // The header is shown again where tasks of queues begin.
        let shown = table.take().filter(|table| table.has_queues() || !has_queues);
        let table = table.insert(shown.unwrap_or_else(|| Rendered::new(has_queues)));
        report::part(&table.rows(&tasks, now));
        page = chosen.next()?;
    }
    let list = chosen.rest();
    let mut text = String::new();
    if list.left_out > 0 {
        text.push_str(&format!("and {} (--limit shows more)\n", Count(list.left_out, "older task")));
    }
    text += &others(list.filtered_out, list.forgotten);
    report::part(&text);
    Ok(())
}

/// Renders how many tasks are not meant, and how many the head has forgotten.
fn others(filtered_out: usize, forgotten: u64) -> String {
    let mut text = String::new();
    if filtered_out > 0 {
        text.push_str(&format!("{} left out by the filters\n", Count(filtered_out, "other task")));
    }
    if forgotten > 0 {
        text.push_str(&format!("{} ended too long ago to be remembered\n", Count(forgotten, "task")));
    }
    text
}

fn cells(task: &TaskReport, now_unix_nano: u64) -> [String; 8] {
    [
        task.id.to_string(),
        task.target.clone(),
        task.name.clone().unwrap_or_default(),
        with_options(task),
        task.attempt.to_string(),
        Elapsed::from_nanos(now_unix_nano.saturating_sub(task.submitted_unix_nano)).to_string(),
        ran(task),
        // As many digits as `tracer trace list` shows; any command takes the beginning of an id.
        task.trace_id.as_deref().map(|id| id.get(..12).unwrap_or(id)).unwrap_or_default().to_owned(),
    ]
}

/// Renders functions as a table.
pub(super) fn render_summary(summary: &Summary, now_unix_nano: u64) -> String {
    let number = |count: usize| if count == 0 { String::new() } else { count.to_string() };
    let time = |ns: Option<u64>| ns.map(|ns| Elapsed::from_nanos(ns).to_string()).unwrap_or_default();
    let row = |function: &FunctionSummary| {
        [
            function.target.clone(),
            number(function.waiting),
            number(function.running),
            number(function.succeeded),
            number(function.failed),
            number(function.cancelled),
            time(function.p50_ns),
            time(function.p95_ns),
            time(function.max_ns),
            time(function.oldest_waiting_unix_nano.map(|since| now_unix_nano.saturating_sub(since))),
        ]
    };
    let header = ["TARGET", "WAIT", "RUN", "OK", "FAILED", "CANCELLED", "P50", "P95", "MAX", "WAITS FOR"];
    let mut text = report::table(header, summary.functions.iter().map(row));
    if summary.left_out > 0 {
        text.push_str(&format!("{} not looked at\n", Count(summary.left_out, "older task")));
    }
    text += &others(summary.filtered_out, summary.forgotten);
    text
}

/// Returns the state of a task, with what it was told beyond what most are.
fn with_options(task: &TaskReport) -> String {
    match report::options(task) {
        Some(options) => format!("{} ({options})", task.state),
        None => task.state.to_string(),
    }
}

fn ran(task: &TaskReport) -> String {
    match (task.started_unix_nano, task.ended_unix_nano) {
        (Some(started), Some(ended)) => Elapsed::from_nanos(ended.saturating_sub(started)).to_string(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_says_what_is_not_in_it() {
        let succeeded = FunctionSummary {
            target: "a.f".into(),
            succeeded: 100,
            p50_ns: Some(50_000_000),
            p95_ns: Some(95_000_000),
            max_ns: Some(100_000_000),
            ..FunctionSummary::default()
        };
        let waiting = FunctionSummary {
            target: "b.g".into(),
            waiting: 2,
            running: 1,
            failed: 1,
            oldest_waiting_unix_nano: Some(102_000_000_000),
            ..FunctionSummary::default()
        };
        let summary = Summary { functions: vec![succeeded, waiting], left_out: 0, filtered_out: 2, forgotten: 1 };
        let text = render_summary(&summary, 110_000_000_000);
        let lines: Vec<_> = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(lines[0], "TARGET WAIT RUN OK FAILED CANCELLED P50 P95 MAX WAITS FOR");
        assert_eq!(lines[1], "a.f 100 50 ms 95 ms 100 ms");
        assert!(lines[2].starts_with("b.g 2 1 1 ") && lines[2].ends_with(" 8 s"), "{text}");
        assert_eq!(lines[3..], ["2 other tasks left out by the filters", "1 task ended too long ago to be remembered"]);
    }
}
