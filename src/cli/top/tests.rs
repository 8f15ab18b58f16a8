//! The picture of samples made by hand, as it is on a screen of 80 columns and 24 rows.

use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::json;
use tracer_core::task::TaskId;
use tracer_ipc::protocol::{SpanCounts, TaskState, WorkerReport};

use super::draw;
use super::input::Key;
use super::model::{Model, Sample};

const NOW: u64 = 1_793_880_000_000_000_000;

/// Returns a head with so many workers, of which the first runs task 1, and these tasks: target, state, age in seconds. Ids go up from 1.
fn sample(workers: u64, tasks: &[(&str, TaskState, u64)]) -> Sample {
    let worker = |id: u64| {
        let is_busy = id == 1 && !tasks.is_empty();
        let report = json!({
            "id": id, "pid": 1000 + id, "state": if is_busy { "busy" } else { "idle" }, "uptime_ns": 1, "task": is_busy.then_some(1),
            "leases": 0, "cpus": 1, "resources": {}, "tasks_ended": 7 * id, "tracing": "", "hook_failure": null,
        });
        serde_json::from_value::<WorkerReport>(report).expect("it has all fields")
    };
    let task = |(index, (target, state, age)): (usize, &(&str, TaskState, u64))| {
        let report = json!({
            "id": index + 1, "name": null, "target": target, "state": state, "job_id": 1, "trace_id": null, "attempt": 1, "attempts": [],
            "worker_id": null, "worker_pid": null, "submitted_unix_nano": NOW - age * 1_000_000_000, "started_unix_nano": null,
            "ended_unix_nano": null, "result": null, "failure": null, "message": null,
        });
        serde_json::from_value(report).expect("it has all fields")
    };
    let status = json!({
        "version": "1.2.3", "head_pid": 77, "node_id": "n", "session_dir": "/s", "spans_dir": "/t", "hook": null, "tracing_off": null,
        "metrics_version": 1, "uptime_ns": 3_000_000_000_u64, "workers": {"wanted": workers, "starting": 0, "idle": workers, "busy": 0, "waiting": 0, "actors": 0, "lost": 0},
        "tasks": {"waiting": 4, "leased": 1, "ending": 0, "succeeded": 100, "failed": 2, "cancelled": 0, "forgotten": 0},
        "cpus": {"name": "cpus", "total": 2, "used": 1}, "resources": [], "spans": SpanCounts::default(),
        "http": null, "worker_memory": null, "warnings": [],
    });
    Sample {
        at: Instant::now(),
        unix_nano: NOW,
        status: serde_json::from_value(status).expect("it has all fields"),
        workers: (1..=workers).map(worker).collect(),
        tasks: tasks.iter().enumerate().map(task).rev().collect(),
        tasks_left_out: 0,
        open: Vec::new(),
        reasons: Vec::new(),
    }
}

/// Returns the text on the screen, without blanks at the ends of lines.
fn screen(model: &mut Model, columns: u16, rows: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("memory is a terminal");
    terminal.draw(|frame| draw::draw(frame, model)).expect("it can be drawn on");
    let buffer = terminal.backend().buffer();
    let line =
        |row| (0..columns).map(|column| buffer[(column, row)].symbol()).collect::<String>().trim_end().to_owned();
    (0..rows).map(line).collect()
}

const TASKS: [(&str, TaskState, u64); 5] = [
    ("wordcount.count", TaskState::Running, 9),
    ("wordcount.count", TaskState::Waiting, 8),
    ("shop.pay", TaskState::Waiting, 7),
    ("wordcount.count", TaskState::Leased, 2),
    ("wordcount.count", TaskState::Waiting, 1),
];

#[test]
fn a_task_that_is_being_cancelled_does_not_wait() {
    for state in TaskState::without_outcome() {
        let waits =
            !matches!(state, TaskState::Running | TaskState::Cancelling | TaskState::Terminating | TaskState::Killing);
        let sample = sample(1, &[("wordcount.count", state, 9)]);
        assert_eq!(sample.oldest_of_each_function().len(), usize::from(waits), "{state}");
        let lines = screen(&mut Model::new(sample), 80, 24);
        assert!(lines.iter().any(|line| line.contains("wordcount.count (1)")), "{state}: {lines:#?}");
    }
}

#[test]
fn all_of_it_fits_into_80_columns_and_24_rows() {
    let mut sample = sample(2, &TASKS);
    assert_eq!(sample.oldest_of_each_function(), [TaskId(2), TaskId(3)]);
    sample.reasons = vec![(TaskId(2), "it is behind 3 tasks".into()), (TaskId(3), "too few slots are free".into())];
    sample.status.warnings = vec!["the disk is full\nof spans".into(), "another".into()];
    let lines = screen(&mut Model::new(sample), 80, 24);
    assert_eq!(lines[0], "tracer 1.2.3  head 77  up 3 s");
    assert_eq!(lines[1], "tasks: 4 waiting, 1 with workers, 100 succeeded, 2 failed, 0 cancelled");
    assert_eq!(lines[2], "warning: the disk is full (and 1 more: `tracer status`)");
    assert!(lines[3].starts_with("> workers (2): 2 idle─"), "{}", lines[3]);
    assert_eq!(lines[4], "worker pid      state    runs                                for        ended");
    assert_eq!(lines[5], "1      1001     busy     wordcount.count (1)                            7");
    assert_eq!(lines[6], "2      1002     idle                                                    14");
    let queue = lines.iter().position(|line| line.starts_with("waiting, by function (2)")).expect("the queue's title");
    assert_eq!(lines[queue + 2], "wordcount.count          3        8 s        it is behind 3 tasks");
    assert_eq!(lines[queue + 3], "shop.pay                 1        7 s        too few slots are free");
    assert_eq!(lines[23], "q quit  j k scroll  Tab other table  p pause");
}

#[test]
fn small_and_large_screens_show_what_fits() {
    let mut model = Model::new(sample(100, &TASKS));
    for (columns, rows) in [(1, 1), (10, 3), (20, 8), (80, 10), (300, 100)] {
        screen(&mut model, columns, rows);
    }
}

#[test]
fn keys_scroll_to_the_last_row_and_no_further() {
    let mut model = Model::new(sample(50, &TASKS));
    let shown = |model: &mut Model| screen(model, 80, 24).iter().any(|line| line.starts_with("50 "));
    assert!(!shown(&mut model));
    for _ in 0..100 {
        model.on_key(Key::Down);
        screen(&mut model, 80, 24);
    }
    assert!(shown(&mut model));
    let first = model.first[0];
    assert!(first > 20 && first < 50, "{first}");
    model.on_key(Key::Up);
    assert_eq!(model.first[0], first - 1);
    model.on_key(Key::Other);
    model.on_key(Key::Down);
    screen(&mut model, 80, 24);
    assert_eq!(model.first, [first - 1, 0], "all rows of the queue are shown");
}

#[test]
fn a_rate_is_what_ended_between_two_looks() {
    let first = sample(1, &[]);
    let (later, mut fresh) = (first.at + Duration::from_secs(2), sample(1, &[]));
    let mut model = Model::new(first);
    let mut next = sample(1, &[]);
    next.at = later;
    next.status.metrics.tasks.succeeded += 30;
    next.status.metrics.tasks.failed += 1;
    model.add(next);
    assert_eq!(model.header()[0], "tracer 1.2.3  head 77  up 3 s  15.5 tasks/s");
    model.on_key(Key::Pause);
    assert!(model.is_paused() && model.header()[0].ends_with("  paused"));
    // Another head has counted less.
    fresh.at = later + Duration::from_secs(1);
    fresh.status.metrics.tasks.succeeded = 0;
    model.add(fresh);
    assert_eq!(model.header()[0], "tracer 1.2.3  head 77  up 3 s  paused");
}
