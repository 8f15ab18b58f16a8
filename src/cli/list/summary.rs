//! Tasks by function: how many are in which state, how long they ran, and how long the oldest waits.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::cli::report;
use crate::count::{Count, Elapsed};
use crate::protocol::{TaskList, TaskReport, TaskState};
use crate::trace::nearest_rank;

/// The most tasks that are looked at, newest first. A million take minutes to send.
pub(super) const LOOKED_AT: usize = 100_000;

/// Tasks of one function, actor method or command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct FunctionSummary {
    /// The function.
    pub(super) target: String,
    /// Tasks that no worker has begun.
    pub(super) waiting: usize,
    /// Tasks that a worker runs or ends.
    pub(super) running: usize,
    pub(super) succeeded: usize,
    pub(super) failed: usize,
    pub(super) cancelled: usize,
    /// Median of the run times of ended tasks, in nanoseconds; of an even number the lower one. None before any has run.
    pub(super) p50_ns: Option<u64>,
    /// 95th percentile of them.
    pub(super) p95_ns: Option<u64>,
    pub(super) max_ns: Option<u64>,
    /// Time at which the oldest that waits was submitted.
    pub(super) oldest_waiting_unix_nano: Option<u64>,
}

/// All functions, with what the list leaves out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Summary {
    /// The functions, that with the most tasks first.
    pub(super) functions: Vec<FunctionSummary>,
    /// Number of tasks that were not looked at.
    pub(super) left_out: usize,
    /// Number of tasks that the filters leave out.
    pub(super) filtered_out: usize,
    /// Number of tasks that ended too long ago to be remembered.
    pub(super) forgotten: u64,
}

impl Summary {
    pub(super) fn of(list: &TaskList) -> Summary {
        let mut by_target: BTreeMap<&str, Vec<&TaskReport>> = BTreeMap::new();
        for task in &list.tasks {
            by_target.entry(&task.target).or_default().push(task);
        }
        let mut functions: Vec<_> = by_target.into_iter().map(|(target, tasks)| summary(target, &tasks)).collect();
        // Stable: equally many stay in the order of their names.
        functions.sort_by_key(|function| std::cmp::Reverse(function.tasks()));
        let TaskList { left_out, filtered_out, forgotten, .. } = *list;
        Summary { functions, left_out, filtered_out, forgotten }
    }

    pub(super) fn render(&self, now_unix_nano: u64) -> String {
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
        let mut text = report::table(header, self.functions.iter().map(row));
        if self.left_out > 0 {
            text.push_str(&format!("{} not looked at\n", Count(self.left_out, "older task")));
        }
        if self.filtered_out > 0 {
            text.push_str(&format!("{} left out by the filters\n", Count(self.filtered_out, "other task")));
        }
        if self.forgotten > 0 {
            text.push_str(&format!("{} ended too long ago to be remembered\n", Count(self.forgotten, "task")));
        }
        text
    }
}

impl FunctionSummary {
    fn tasks(&self) -> usize {
        self.waiting + self.running + self.succeeded + self.failed + self.cancelled
    }
}

fn summary(target: &str, tasks: &[&TaskReport]) -> FunctionSummary {
    let mut all = FunctionSummary { target: target.to_owned(), ..FunctionSummary::default() };
    let mut ran = Vec::new();
    for task in tasks {
        *match task.state {
            TaskState::Waiting | TaskState::Retrying | TaskState::Leased => &mut all.waiting,
            TaskState::Running | TaskState::Cancelling | TaskState::Terminating | TaskState::Killing => {
                &mut all.running
            }
            TaskState::Succeeded => &mut all.succeeded,
            TaskState::Failed => &mut all.failed,
            TaskState::Cancelled => &mut all.cancelled,
        } += 1;
        if let (Some(started), Some(ended)) = (task.started_unix_nano, task.ended_unix_nano) {
            ran.push(ended.saturating_sub(started));
        }
        if matches!(task.state, TaskState::Waiting | TaskState::Retrying | TaskState::Leased) {
            let since = task.submitted_unix_nano;
            all.oldest_waiting_unix_nano = Some(all.oldest_waiting_unix_nano.map_or(since, |oldest| oldest.min(since)));
        }
    }
    ran.sort_unstable();
    all.p50_ns = nearest_rank(&ran, 50);
    all.p95_ns = nearest_rank(&ran, 95);
    all.max_ns = ran.last().copied();
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn task(id: u64, target: &str, state: TaskState, times: Option<(u64, u64)>) -> TaskReport {
        let report = json!({
            "id": id, "name": null, "target": target, "state": state, "job_id": 1, "trace_id": null, "attempt": 1, "attempts": [],
            "worker_id": null, "worker_pid": null, "submitted_unix_nano": id * 1_000_000_000, "started_unix_nano": times.map(|times| times.0),
            "ended_unix_nano": times.map(|times| times.1), "result": null, "failure": null, "message": null,
        });
        serde_json::from_value(report).expect("it has all fields")
    }

    #[test]
    fn functions_are_in_the_order_of_their_tasks_with_states_and_run_times() {
        let mut tasks: Vec<_> =
            (1..=100).map(|ms| task(ms, "a.f", TaskState::Succeeded, Some((0, ms * 1_000_000)))).collect();
        tasks.push(task(101, "b.g", TaskState::Failed, None));
        tasks.push(task(103, "b.g", TaskState::Retrying, None));
        tasks.push(task(102, "b.g", TaskState::Waiting, None));
        tasks.push(task(104, "b.g", TaskState::Running, Some((7, 7))));
        let list = TaskList { tasks, left_out: 0, filtered_out: 2, forgotten: 1 };
        let summary = Summary::of(&list);
        let [first, second] = summary.functions.as_slice() else { panic!("{summary:?}") };
        assert_eq!((first.target.as_str(), first.succeeded), ("a.f", 100));
        assert_eq!((first.p50_ns, first.p95_ns, first.max_ns), (Some(50_000_000), Some(95_000_000), Some(100_000_000)));
        assert_eq!((second.waiting, second.running, second.failed, second.cancelled), (2, 1, 1, 0));
        assert_eq!(second.oldest_waiting_unix_nano, Some(102_000_000_000));
        let text = summary.render(110_000_000_000);
        let lines: Vec<_> = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(lines[0], "TARGET WAIT RUN OK FAILED CANCELLED P50 P95 MAX WAITS FOR");
        assert_eq!(lines[1], "a.f 100 50 ms 95 ms 100 ms");
        assert!(lines[2].starts_with("b.g 2 1 1 ") && lines[2].ends_with(" 8 s"), "{text}");
        assert_eq!(lines[3..], ["2 other tasks left out by the filters", "1 task ended too long ago to be remembered"]);
        assert_eq!(Summary::of(&TaskList { tasks: Vec::new(), ..list }).functions, []);
    }
}
