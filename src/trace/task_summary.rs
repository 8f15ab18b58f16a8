//! Tasks by function: how many are in which state, how long they ran, and how long the oldest waits.

use std::collections::BTreeMap;

use serde::Serialize;
use tracer_ipc::protocol::{TaskList, TaskReport, TaskState};

use crate::stats::nearest_rank;

/// The most tasks that are looked at, newest first. A million take minutes to send.
pub const LOOKED_AT: usize = 100_000;

/// Functions of which the head is asked why the oldest task waits.
pub const EXPLAINED: usize = 12;

/// Tasks of one function that no worker has begun.
#[derive(Clone, Copy, Debug)]
pub struct Queued<'a> {
    pub target: &'a str,
    pub tasks: usize,
    /// The one that was submitted first.
    pub oldest: &'a TaskReport,
}

/// Returns the functions of the tasks that wait, that with the most first.
pub fn queue(tasks: &[TaskReport]) -> Vec<Queued<'_>> {
    let mut by_target: BTreeMap<&str, Queued<'_>> = BTreeMap::new();
    for task in tasks.iter().filter(|task| is_waiting(task)) {
        let row = by_target.entry(&task.target).or_insert(Queued { target: &task.target, tasks: 0, oldest: task });
        row.tasks += 1;
        if (task.submitted_unix_nano, task.id) < (row.oldest.submitted_unix_nano, row.oldest.id) {
            row.oldest = task;
        }
    }
    let mut queue: Vec<_> = by_target.into_values().collect();
    // Stable: equally many stay in the order of their names.
    queue.sort_by_key(|row| std::cmp::Reverse(row.tasks));
    queue
}

/// Returns whether no worker has begun a task.
pub fn is_waiting(task: &TaskReport) -> bool {
    matches!(task.state, TaskState::Waiting | TaskState::Retrying | TaskState::Leased)
}

/// Tasks of one function, actor method or command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FunctionSummary {
    /// The function.
    pub target: String,
    /// Tasks that no worker has begun.
    pub waiting: usize,
    /// Tasks that a worker runs or ends.
    pub running: usize,
    pub succeeded: usize,
    pub failed: usize,
    pub cancelled: usize,
    /// Median of the run times of ended tasks, in nanoseconds; of an even number the lower one. None before any has run.
    pub p50_ns: Option<u64>,
    /// 95th percentile of them.
    pub p95_ns: Option<u64>,
    pub max_ns: Option<u64>,
    /// Time at which the oldest that waits was submitted.
    pub oldest_waiting_unix_nano: Option<u64>,
}

/// All functions, with what the list leaves out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// The functions, that with the most tasks first.
    pub functions: Vec<FunctionSummary>,
    /// Number of tasks that were not looked at.
    pub left_out: usize,
    /// Number of tasks that the filters leave out.
    pub filtered_out: usize,
    /// Number of tasks that ended too long ago to be remembered.
    pub forgotten: u64,
}

/// Functions whose tasks come one after the other. Of an ended task, its run time is kept.
#[derive(Debug, Default)]
pub struct Functions(BTreeMap<String, (FunctionSummary, Vec<u64>)>);

impl Functions {
    pub fn add(&mut self, task: &TaskReport) {
        if !self.0.contains_key(&task.target) {
            let function = FunctionSummary { target: task.target.clone(), ..FunctionSummary::default() };
            self.0.insert(task.target.clone(), (function, Vec::new()));
        }
        if let Some((function, ran)) = self.0.get_mut(&task.target) {
            function.add(task);
            if let (Some(started), Some(ended)) = (task.started_unix_nano, task.ended_unix_nano) {
                ran.push(ended.saturating_sub(started));
            }
        }
    }

    /// Returns all of them, with what a list leaves out.
    pub fn summary(self, rest: &TaskList) -> Summary {
        let end = |(function, ran): (FunctionSummary, Vec<u64>)| function.with_run_times(ran);
        let mut functions: Vec<_> = self.0.into_values().map(end).collect();
        // Stable: equally many stay in the order of their names.
        functions.sort_by_key(|function| std::cmp::Reverse(function.tasks()));
        let TaskList { left_out, filtered_out, forgotten, .. } = *rest;
        Summary { functions, left_out, filtered_out, forgotten }
    }
}

impl Summary {
    pub fn of(list: &TaskList) -> Summary {
        let mut functions = Functions::default();
        list.tasks.iter().for_each(|task| functions.add(task));
        functions.summary(list)
    }
}

impl FunctionSummary {
    fn tasks(&self) -> usize {
        self.waiting + self.running + self.succeeded + self.failed + self.cancelled
    }

    fn add(&mut self, task: &TaskReport) {
        *match task.state {
            TaskState::Waiting | TaskState::Retrying | TaskState::Leased => &mut self.waiting,
            TaskState::Running | TaskState::Cancelling | TaskState::Terminating | TaskState::Killing => {
                &mut self.running
            }
            TaskState::Succeeded => &mut self.succeeded,
            TaskState::Failed => &mut self.failed,
            TaskState::Cancelled => &mut self.cancelled,
        } += 1;
        if is_waiting(task) {
            let since = task.submitted_unix_nano;
            self.oldest_waiting_unix_nano =
                Some(self.oldest_waiting_unix_nano.map_or(since, |oldest| oldest.min(since)));
        }
    }

    fn with_run_times(self, mut ran: Vec<u64>) -> FunctionSummary {
        ran.sort_unstable();
        let (p50_ns, p95_ns) = (nearest_rank(&ran, 50), nearest_rank(&ran, 95));
        FunctionSummary { p50_ns, p95_ns, max_ns: ran.last().copied(), ..self }
    }
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
        let [queued] = queue(&list.tasks)[..] else { panic!("{:?}", queue(&list.tasks)) };
        assert_eq!((queued.target, queued.tasks, queued.oldest.id.0), ("b.g", 2, 102));
        assert_eq!(Summary::of(&TaskList { tasks: Vec::new(), ..list }).functions, []);
    }
}
