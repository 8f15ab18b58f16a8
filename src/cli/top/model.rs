//! The rows that are shown, made of what the head has said; and the place in them. Nothing here touches a terminal.

use std::collections::HashMap;
use std::time::Instant;

use tracer_core::count::{Count, Elapsed};
use tracer_core::task::TaskId;
use tracer_ipc::protocol::{StatusReport, TaskReport, WorkerReport};
use tracer_trace::{LiveSpan, task_summary};

use super::input::Key;

/// Functions of which the oldest waiting task is explained.
const EXPLAINED: usize = 12;

/// State of the head at one time.
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) unix_nano: u64,
    pub(super) status: StatusReport,
    pub(super) workers: Vec<WorkerReport>,
    /// Tasks that have not ended, newest first.
    pub(super) tasks: Vec<TaskReport>,
    /// Number of further ones.
    pub(super) tasks_left_out: usize,
    /// Open spans of all processes.
    pub(super) open: Vec<LiveSpan>,
    /// Reasons why tasks wait, for the oldest ones of functions.
    pub(super) reasons: Vec<(TaskId, String)>,
}

/// A worker, as it is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WorkerRow {
    pub(super) worker: String,
    pub(super) pid: String,
    pub(super) state: String,
    /// Its task, actor or replica.
    pub(super) runs: String,
    /// The innermost open span of the task, if that is not the attempt's own.
    pub(super) span: String,
    /// Age of the attempt; empty where nothing is traced.
    pub(super) elapsed: String,
    pub(super) ended: String,
}

/// Tasks of a function that wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct QueueRow {
    pub(super) target: String,
    pub(super) tasks: usize,
    /// Time for which the oldest has waited.
    pub(super) oldest: String,
    pub(super) reason: String,
}

/// Table that the keys scroll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Table {
    Workers,
    Queue,
}

/// All that is shown.
pub(super) struct Model {
    sample: Sample,
    /// Tasks that ended a second, between the last two looks.
    rate: Option<f64>,
    is_paused: bool,
    pub(super) table: Table,
    /// First rows that are shown, of workers and of the queue.
    pub(super) first: [usize; 2],
}

impl Sample {
    /// Returns the oldest waiting task of each function, of those with the most tasks.
    pub(super) fn oldest_of_each_function(&self) -> Vec<TaskId> {
        let mut functions: Vec<_> = self.waiting().into_iter().collect();
        functions.sort_by_key(|(target, tasks)| (std::cmp::Reverse(tasks.len()), *target));
        functions.into_iter().take(EXPLAINED).filter_map(|(_, tasks)| tasks.last().map(|task| task.id)).collect()
    }

    /// Tasks that no worker runs, by their functions, newest first.
    fn waiting(&self) -> HashMap<&str, Vec<&TaskReport>> {
        let mut waiting: HashMap<&str, Vec<&TaskReport>> = HashMap::new();
        for task in self.tasks.iter().filter(|task| task_summary::is_waiting(task)) {
            waiting.entry(&task.target).or_default().push(task);
        }
        waiting
    }

    fn ended(&self) -> u64 {
        let tasks = &self.status.metrics.tasks;
        tasks.succeeded + tasks.failed + tasks.cancelled + tasks.forgotten
    }

    /// Spans of an attempt at a task, and of no other, the longest first.
    fn spans_of(&self, pid: u32, task: TaskId) -> Vec<&LiveSpan> {
        let mut spans: Vec<&LiveSpan> =
            self.open.iter().filter(|live| live.pid == pid && live.task_id == Some(task.0)).collect();
        spans.sort_by_key(|live| live.span.start_unix_nano);
        spans
    }
}

impl Model {
    pub(super) fn new(sample: Sample) -> Model {
        Model { sample, rate: None, is_paused: false, table: Table::Workers, first: [0, 0] }
    }

    /// Takes the next sample.
    pub(super) fn add(&mut self, sample: Sample) {
        let seconds = sample.at.saturating_duration_since(self.sample.at).as_secs_f64();
        // A new head counts from 0.
        let ended = sample.ended().checked_sub(self.sample.ended());
        self.rate = ended.filter(|_| seconds > 0.0).map(|ended| ended as f64 / seconds);
        self.sample = sample;
    }

    pub(super) fn is_paused(&self) -> bool {
        self.is_paused
    }

    pub(super) fn on_key(&mut self, key: Key) {
        let first = &mut self.first[self.table as usize];
        match key {
            Key::Up => *first = first.saturating_sub(1),
            Key::Down => *first += 1,
            Key::Other => self.table = if self.table == Table::Workers { Table::Queue } else { Table::Workers },
            Key::Pause => self.is_paused = !self.is_paused,
            Key::Quit => {}
        }
    }

    /// Two lines about the head.
    pub(super) fn header(&self) -> [String; 2] {
        let StatusReport { version, head_pid, metrics, .. } = &self.sample.status;
        let (tasks, spans) = (&metrics.tasks, &metrics.spans);
        let rate = self.rate.map_or_else(String::new, |rate| format!("  {} tasks/s", rate_text(rate)));
        let paused = if self.is_paused { "  paused" } else { "" };
        let lost = if spans.lost > 0 { format!("  {} lost", Count(spans.lost, "span")) } else { String::new() };
        let up = Elapsed::from_nanos(metrics.uptime_ns);
        [
            format!("tracer {version}  head {head_pid}  up {up}{rate}{lost}{paused}"),
            format!(
                "tasks: {} waiting, {} with workers, {} succeeded, {} failed, {} cancelled",
                tasks.waiting, tasks.leased, tasks.succeeded, tasks.failed, tasks.cancelled
            ),
        ]
    }

    /// Numbers of workers by state, of those that there are.
    pub(super) fn of_workers(&self) -> String {
        let workers = &self.sample.status.metrics.workers;
        let states = [
            (workers.starting, "starting"),
            (workers.busy, "busy"),
            (workers.waiting, "waiting"),
            (workers.idle, "idle"),
        ];
        let states = states.iter().filter(|(count, _)| *count > 0).map(|(count, state)| format!("{count} {state}"));
        states.collect::<Vec<_>>().join(", ")
    }

    /// Returns the first lines of the head's warnings.
    pub(super) fn warnings(&self) -> impl Iterator<Item = &str> {
        self.sample.status.warnings.iter().filter_map(|warning| warning.lines().next())
    }

    pub(super) fn workers(&self) -> Vec<WorkerRow> {
        self.sample.workers.iter().map(|worker| self.worker_row(worker)).collect()
    }

    fn worker_row(&self, worker: &WorkerReport) -> WorkerRow {
        let mut row = WorkerRow {
            worker: worker.id.to_string(),
            pid: worker.pid.to_string(),
            state: worker.state.to_string(),
            runs: worker.replica.clone().unwrap_or_default(),
            // A replica answers requests, which are no tasks.
            ended: if worker.replica.is_some() { String::new() } else { worker.tasks_ended.to_string() },
            ..WorkerRow::default()
        };
        let Some(task) = worker.task else { return row };
        let known = self.sample.tasks.iter().find(|known| known.id == task);
        row.runs = known.map_or_else(|| format!("task {task}"), |known| format!("{} ({task})", known.target));
        let spans = self.sample.spans_of(worker.pid, task);
        if let Some(attempt) = spans.first() {
            row.elapsed = Elapsed::from_nanos(attempt.span.duration_ns()).to_string();
        }
        if let Some(inner) = spans.last().filter(|_| spans.len() > 1) {
            row.span = tracer_core::escape::line(inner.span.name()).into_owned();
        }
        row
    }

    /// Functions whose tasks wait, those with the most first.
    pub(super) fn queue(&self) -> Vec<QueueRow> {
        let row = |(target, tasks): (&str, Vec<&TaskReport>)| {
            let oldest = tasks.last().copied();
            let since = oldest.map_or(self.sample.unix_nano, |task| task.submitted_unix_nano);
            let reason = self.sample.reasons.iter().find(|(id, _)| oldest.is_some_and(|task| task.id == *id));
            QueueRow {
                target: target.to_owned(),
                tasks: tasks.len(),
                oldest: Elapsed::from_nanos(self.sample.unix_nano.saturating_sub(since)).to_string(),
                reason: reason.map(|(_, reason)| reason.clone()).unwrap_or_default(),
            }
        };
        let mut rows: Vec<QueueRow> = self.sample.waiting().into_iter().map(row).collect();
        rows.sort_by(|left, right| (right.tasks, &left.target).cmp(&(left.tasks, &right.target)));
        rows
    }

    /// Returns the number of tasks that are not among those of the queue.
    pub(super) fn queue_left_out(&self) -> usize {
        self.sample.tasks_left_out
    }
}

fn rate_text(rate: f64) -> String {
    if rate >= 100.0 { format!("{rate:.0}") } else { format!("{rate:.1}") }
}
