//! Overview of now: a track for each process that has something open, the queue by function with the reason why it waits, and the figures of the head.
//! Made of what the head says and of what is in the spools; plain functions.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;
use tracer_core::task::TaskId;
use tracer_ipc::protocol::{StatusReport, TaskReport, WorkerReport};
use tracer_trace::LiveSpan;
use tracer_trace::json::time_text;
use tracer_trace::task_summary::{self, EXPLAINED};

/// Functions of the queue that are listed.
const QUEUED: usize = 100;
/// Open spans of a process that are listed.
const SPANS: usize = 200;
/// Processes that are listed.
const TRACKS: usize = 500;

/// State of the head at one time.
pub(super) struct Sample {
    pub(super) status: StatusReport,
    pub(super) workers: Vec<WorkerReport>,
    /// Tasks that have not ended, newest first.
    pub(super) tasks: Vec<TaskReport>,
    /// Number of further ones.
    pub(super) tasks_left_out: usize,
    /// Reasons why tasks wait, for the oldest ones of functions.
    pub(super) reasons: Vec<(TaskId, String)>,
}

/// Answer to the question what runs now.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    revision: u64,
    time: String,
    /// None if no head writes to the folder.
    head: Option<StatusReport>,
    /// Workers first, by number; then other processes with open spans.
    tracks: Vec<Track>,
    tracks_left_out: usize,
    /// Functions whose tasks wait, those with the most first.
    queue: Vec<Queued>,
    functions_left_out: usize,
    /// Number of tasks that wait and are not among those of `queue`.
    tasks_left_out: usize,
}

/// A process and what is open in it.
#[derive(Debug, Serialize)]
struct Track {
    pid: u32,
    service: String,
    /// None for what is no worker.
    worker_id: Option<u64>,
    state: Option<String>,
    /// Its task's function, its actor or its replica.
    runs: Option<String>,
    task_id: Option<TaskId>,
    tasks_ended: Option<u64>,
    /// In the order of their tree, the oldest first.
    spans: Vec<Bar>,
    spans_left_out: usize,
}

/// An open span.
#[derive(Debug, Serialize)]
struct Bar {
    trace_id: String,
    span_id: String,
    name: String,
    age_ns: u64,
    task_id: Option<u64>,
    /// Number of its ancestors that are open in the same process.
    depth: usize,
}

/// Tasks of a function that wait.
#[derive(Debug, Serialize)]
struct Queued {
    pub target: String,
    pub tasks: usize,
    oldest_task_id: TaskId,
    oldest_ns: u64,
    trace_id: Option<String>,
    /// Reason why the oldest waits; none if it was not asked for.
    reason: Option<String>,
}

impl Sample {
    /// Returns the oldest waiting task of each function, of those with the most tasks.
    pub(super) fn oldest_of_each_function(&self) -> Vec<TaskId> {
        task_summary::queue(&self.tasks).iter().take(EXPLAINED).map(|queued| queued.oldest.id).collect()
    }

    fn queue(&self, now_unix_nano: u64) -> Vec<Queued> {
        let row = |queued: task_summary::Queued<'_>| {
            let oldest = queued.oldest;
            let reason = self.reasons.iter().find(|(id, _)| *id == oldest.id);
            Queued {
                target: queued.target.to_owned(),
                tasks: queued.tasks,
                oldest_task_id: oldest.id,
                oldest_ns: now_unix_nano.saturating_sub(oldest.submitted_unix_nano),
                trace_id: oldest.trace_id.clone(),
                reason: reason.map(|(_, reason)| reason.clone()),
            }
        };
        task_summary::queue(&self.tasks).into_iter().map(row).collect()
    }

    fn track(&self, worker: &WorkerReport) -> Track {
        let of_task = |id: TaskId| {
            let known = self.tasks.iter().find(|task| task.id == id);
            known.map_or_else(|| format!("task {id}"), |task| task.target.clone())
        };
        let of_actor = || worker.actor.map(|actor| format!("actor {actor}"));
        Track {
            pid: worker.pid,
            service: String::new(),
            worker_id: Some(worker.id.0),
            state: Some(worker.state.to_string()),
            runs: worker.replica.clone().or_else(|| worker.task.map(of_task)).or_else(of_actor),
            task_id: worker.task,
            tasks_ended: Some(worker.tasks_ended),
            spans: Vec::new(),
            spans_left_out: 0,
        }
    }
}

impl Summary {
    pub(super) fn new(sample: Option<Sample>, open: &[LiveSpan], revision: u64, now_unix_nano: u64) -> Summary {
        let mut tracks: Vec<Track> =
            sample.iter().flat_map(|sample| sample.workers.iter().map(|worker| sample.track(worker))).collect();
        let mut by_process: BTreeMap<u32, Vec<&LiveSpan>> = BTreeMap::new();
        for live in open {
            by_process.entry(live.pid).or_default().push(live);
        }
        for (pid, spans) in by_process {
            let at = tracks.iter().position(|track| track.pid == pid).unwrap_or_else(|| {
                tracks.push(Track::of_process(pid));
                tracks.len() - 1
            });
            tracks[at].open(&spans);
        }
        let tracks_left_out = tracks.len().saturating_sub(TRACKS);
        tracks.truncate(TRACKS);
        let mut queue = sample.as_ref().map(|sample| sample.queue(now_unix_nano)).unwrap_or_default();
        let functions_left_out = queue.len().saturating_sub(QUEUED);
        queue.truncate(QUEUED);
        Summary {
            revision,
            time: time_text(now_unix_nano),
            tracks,
            tracks_left_out,
            queue,
            functions_left_out,
            tasks_left_out: sample.as_ref().map_or(0, |sample| sample.tasks_left_out),
            head: sample.map(|sample| sample.status),
        }
    }
}

impl Track {
    fn of_process(pid: u32) -> Track {
        Track {
            pid,
            service: String::new(),
            worker_id: None,
            state: None,
            runs: None,
            task_id: None,
            tasks_ended: None,
            spans: Vec::new(),
            spans_left_out: 0,
        }
    }

    /// Takes in the open spans of the process, each after its parent.
    fn open(&mut self, spans: &[&LiveSpan]) {
        self.service = spans[0].span.resource().text("service.name").unwrap_or_default().to_owned();
        let ids: HashSet<_> = spans.iter().map(|live| live.span.span_id).collect();
        let mut children: HashMap<_, Vec<&LiveSpan>> = HashMap::new();
        for live in spans {
            let parent = live.span.parent_id().filter(|parent| ids.contains(parent) && *parent != live.span.span_id);
            children.entry(parent).or_default().push(live);
        }
        for siblings in children.values_mut() {
            siblings.sort_by_key(|live| std::cmp::Reverse(live.span.start_unix_nano));
        }
        let roots = children.remove(&None).unwrap_or_default();
        let mut next: Vec<(&LiveSpan, usize)> = roots.into_iter().map(|live| (live, 0)).collect();
        while let Some((live, depth)) = next.pop() {
            if self.spans.len() == SPANS {
                self.spans_left_out = spans.len() - SPANS;
                return;
            }
            self.spans.push(Bar {
                trace_id: live.span.trace_id().to_string(),
                span_id: live.span.span_id.to_string(),
                name: live.span.name().to_string(),
                age_ns: live.span.duration_ns(),
                task_id: live.task_id,
                depth,
            });
            let below = children.remove(&Some(live.span.span_id)).unwrap_or_default();
            next.extend(below.into_iter().map(|live| (live, depth + 1)));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tracer_ipc::protocol::TaskState;

    use super::*;

    const NOW: u64 = 1_793_880_000_000_000_000;

    /// Returns a head with two workers, of which the first runs task 1, and these tasks: target, state, age in seconds. Ids go up from 1.
    fn sample(tasks: &[(&str, TaskState, u64)]) -> Sample {
        let worker = |id: u64| {
            serde_json::from_value(json!({
                "id": id, "pid": 1000 + id, "state": if id == 1 { "busy" } else { "idle" }, "uptime_ns": 1,
                "task": (id == 1).then_some(1), "leases": 0, "cpus": 1, "resources": {}, "tasks_ended": 7 * id, "tracing": "",
                "hook_failure": null,
            }))
            .expect("it has all fields")
        };
        let task = |(index, (target, state, age)): (usize, &(&str, TaskState, u64))| {
            serde_json::from_value(json!({
                "id": index + 1, "name": null, "target": target, "state": state, "job_id": 1, "trace_id": null, "attempt": 1,
                "attempts": [], "worker_id": null, "worker_pid": null, "submitted_unix_nano": NOW - age * 1_000_000_000,
                "started_unix_nano": null, "ended_unix_nano": null, "result": null, "failure": null, "message": null,
            }))
            .expect("it has all fields")
        };
        let status = json!({
            "version": "1.2.3", "head_pid": 77, "node_id": "n", "session_dir": "/s", "spans_dir": "/t", "hook": null,
            "tracing_off": null, "metrics_version": 1, "uptime_ns": 3,
            "workers": {"wanted": 2, "starting": 0, "idle": 1, "busy": 1, "waiting": 0, "actors": 0, "lost": 0},
            "tasks": {"waiting": 4, "leased": 1, "ending": 0, "succeeded": 9, "failed": 2, "cancelled": 0, "forgotten": 0},
            "cpus": {"name": "cpus", "total": 2, "used": 1}, "resources": [], "spans": tracer_ipc::protocol::SpanCounts::default(),
            "http": null, "worker_memory": null, "warnings": ["the disk is full"],
        });
        Sample {
            status: serde_json::from_value(status).expect("it has all fields"),
            workers: vec![worker(1), worker(2)],
            tasks: tasks.iter().enumerate().map(task).rev().collect(),
            tasks_left_out: 3,
            reasons: vec![(TaskId(2), "it is behind 3 tasks".into())],
        }
    }

    fn report(summary: &Summary) -> Value {
        serde_json::to_value(summary).expect("it is plain data")
    }

    #[test]
    fn workers_are_tracks_and_what_waits_is_by_function() {
        let sample = sample(&[
            ("wordcount.count", TaskState::Running, 9),
            ("wordcount.count", TaskState::Waiting, 8),
            ("shop.pay", TaskState::Waiting, 7),
            ("wordcount.count", TaskState::Leased, 2),
        ]);
        assert_eq!(sample.oldest_of_each_function(), [TaskId(2), TaskId(3)]);
        let found = report(&Summary::new(Some(sample), &[], 5, NOW));
        assert_eq!(found["head"]["warnings"], json!(["the disk is full"]));
        assert_eq!(found["tracks"][0]["runs"], "wordcount.count");
        assert_eq!((&found["tracks"][1]["runs"], &found["tracks"][1]["tasks_ended"]), (&Value::Null, &json!(14)));
        let queue = &found["queue"];
        assert_eq!((&queue[0]["target"], &queue[0]["tasks"]), (&json!("wordcount.count"), &json!(2)));
        assert_eq!(
            (&queue[0]["oldest_ns"], &queue[0]["reason"]),
            (&json!(8_000_000_000_u64), &json!("it is behind 3 tasks"))
        );
        assert_eq!((&queue[1]["oldest_task_id"], &queue[1]["reason"]), (&json!(3), &Value::Null));
        assert_eq!(found["tasks_left_out"], 3);
    }

    #[test]
    fn without_a_head_there_are_no_workers() {
        let found = report(&Summary::new(None, &[], 5, NOW));
        assert_eq!((&found["head"], &found["tracks"], &found["queue"]), (&Value::Null, &json!([]), &json!([])));
    }
}
