//! What a head has accepted survives it: the journal, seen from outside.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};
use tracer::Driver;

use crate::support::{Cluster, wait_until};

/// One worker, which is busy until the file `released` exists.
fn busy() -> Cluster {
    let cluster = Cluster::builder().workers(1).start();
    let (started, released) = (cluster.file("started"), cluster.file("released"));
    let arguments = [json!(started).to_string(), json!(released).to_string()];
    let arguments = [&*arguments[0], &*arguments[1], "--no-wait", "--crash-limit=0"];
    cluster.submit("misbehaving_tasks:waits", &arguments).success().stdout("1\n");
    cluster.wait_for_file(&started);
    cluster
}

#[test]
fn tasks_that_wait_survive_a_killed_head_and_run_under_the_next_with_their_ids_and_traces() {
    let cluster = Cluster::builder().workers(1).hook("local_tmp_tracing:setup_tracing").start();
    cluster.submit("demo:my_function", &["--name", "before"]).success().stdout("1\n");
    let (started, released) = (cluster.file("started"), cluster.file("released"));
    let arguments = [json!(started).to_string(), json!(released).to_string()];
    let arguments = [&*arguments[0], &*arguments[1], "--no-wait", "--crash-limit=0"];
    cluster.submit("misbehaving_tasks:waits", &arguments).success().stdout("2\n");
    cluster.wait_for_file(&started);
    for id in 3..=5 {
        let text = json!("x ".repeat(id)).to_string();
        cluster.submit("wordcount:count", &[&text, "--no-wait"]).success().stdout(&format!("{id}\n"));
    }
    let traces: Vec<Value> = (1..=5).map(|id| cluster.task(id)["trace_id"].clone()).collect();
    cluster.kill_head();

    cluster
        .start_head(&[])
        .success()
        .stderr_contains("restored   3 tasks that a dead head had accepted\n")
        .stderr_contains("lost       1 task that ran when their head died; `tracer list tasks` shows them\n");
    for id in 3..=5u64 {
        let task = cluster.wait_for_task(id);
        assert_eq!((&task["state"], &task["result"]), (&json!("succeeded"), &json!(id)), "{task}");
    }
    assert_eq!((1..=5).map(|id| cluster.task(id)["trace_id"].clone()).collect::<Vec<_>>(), traces);
    let lost = cluster.task(2);
    assert_eq!((&lost["failure"]["reason"], &lost["attempt"]), (&json!("head_lost"), &json!(1)), "{lost}");
    assert_eq!(lost["message"], "the head died while it ran, and its worker with it");
    let before = cluster.task(1);
    assert_eq!(
        (&before["result"], &before["name"], &before["state"]),
        (&json!(1), &json!("before"), &json!("succeeded"))
    );

    let spans = cluster.spans();
    spans.assert_whole(&[]);
    for id in 2..=5 {
        let attempt = spans.attempt_of(id);
        assert_eq!(spans.parent_of(attempt).kind(), "SpanKind.PRODUCER");
    }
    assert_eq!(spans.attempt_of(2).attribute("error.type"), "lost");
    cluster.submit("demo:my_function", &["--no-wait"]).success().stdout("6\n");
}

#[test]
fn a_head_that_was_stopped_leaves_its_history_and_nothing_to_run() {
    let cluster = busy();
    cluster.submit("demo:my_function", &["--no-wait"]).success().stdout("2\n");
    cluster.tracer(&["stop", "--force"]).success();
    let start = cluster.start_head(&[]).success();
    assert!(!start.stderr_text().contains("restored"), "{start:?}");
    for id in [1, 2] {
        assert_eq!(cluster.task(id)["failure"]["reason"], "head_stopped");
    }
    cluster.submit("demo:my_function", &["--no-wait"]).success().stdout("3\n");
}

#[test]
fn a_torn_journal_is_mended_and_said_and_a_newer_one_is_refused_by_name() {
    let cluster = Cluster::builder().workers(1).start();
    cluster.submit("demo:my_function", &["--no-wait"]).success().stdout("1\n");
    cluster.wait_for_task(1);
    cluster.kill_head();
    let path = cluster.temp_dir().join("tasks.journal");
    let mut journal = fs::read(&path).unwrap();
    journal.extend_from_slice(&[40, 0, 0, 0, 1, 2]);
    fs::write(&path, &journal).unwrap();
    cluster.start_head(&[]).success();
    assert!(cluster.head_log().contains("the journal ended in 6 bytes that were no whole record; they were cut off"));
    assert_eq!(cluster.task(1)["result"], 1);
    cluster.stop().success();

    let mut newer = fs::read(&path).unwrap();
    newer[8] = 9;
    fs::write(&path, &newer).unwrap();
    cluster
        .start_head(&[])
        .status(1)
        .stderr_contains("tasks.journal` has version 9, but this tracer reads up to 2\n")
        .stderr_contains("(hint: start the newer tracer again, or name another --temp-dir)\n");
    assert_eq!(fs::read(&path).unwrap(), newer, "it is left alone");
    cluster.assert_nothing_runs();
}

#[test]
fn a_start_that_fails_costs_no_task_that_another_head_had_accepted() {
    let cluster = busy();
    cluster.submit("demo:my_function", &["--no-wait"]).success().stdout("2\n");
    cluster.kill_head();
    cluster
        .start_head(&["--tracing-startup-hook=bad_hooks:kills_workers"])
        .status(4)
        .stderr_contains("workers in a row did not get ready");
    cluster.start_head(&[]).success().stderr_contains("restored  1 task that a dead head had accepted\n");
    assert_eq!(cluster.wait_for_task(2)["result"], 1);
}

/// Heads are killed again and again while tasks flow. Whatever was accepted ends once, and nothing runs a second time after it ended.
#[test]
fn whatever_was_accepted_ends_once_however_often_heads_are_killed() {
    const ROUNDS: usize = 8;
    const WAVE: u64 = 40;
    let cluster = Cluster::builder().workers(2).start();
    let mut accepted = BTreeSet::new();
    for round in 0..ROUNDS {
        let mut driver = Driver::connect(&cluster.temp_dir()).expect("the head runs");
        let tasks: Vec<_> = (0..WAVE)
            .map(|number| driver.remote("misbehaving_tasks:makes_one_span").arg(number).unwrap().submit().unwrap())
            .collect();
        for task in &tasks {
            accepted.insert(driver.accepted(task).expect("the head takes it").0);
        }
        // Somewhere amid the work: after none of them, after some, after all.
        for task in tasks.into_iter().take(round * WAVE as usize / ROUNDS) {
            driver.wait(task).expect("the head lives yet");
        }
        cluster.kill_head();
        cluster.start_head(&[]).success();
    }
    assert_eq!(accepted, (1..=ROUNDS as u64 * WAVE).collect(), "ids are given out once");
    let tasks = wait_until("all have ended", || {
        let tasks = cluster.tracer(&["list", "tasks", "--limit", "1000", "--format", "json"]).success().json();
        let tasks = tasks["tasks"].as_array().expect("a list").clone();
        tasks.iter().all(|task| !task["ended_unix_nano"].is_null()).then_some(tasks)
    });
    let ids: Vec<u64> = tasks.iter().map(|task| task["id"].as_u64().expect("a number")).rev().collect();
    assert_eq!(ids, accepted.into_iter().collect::<Vec<_>>());
    for task in &tasks {
        let is_lost = task["failure"]["reason"] == "head_lost";
        assert!(task["state"] == "succeeded" || is_lost, "{task}");
    }
}
