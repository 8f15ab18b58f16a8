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
        .stderr_contains("tasks.journal` has version 9, but this tracer reads up to 4\n")
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

#[test]
fn with_journal_sync_nothing_is_acknowledged_before_it_is_on_the_disk() {
    let cluster = Cluster::builder().build();
    let (held, synced) = (format!("sync:{}", cluster.file("synced").display()), cluster.file("synced"));
    let mut start = cluster.start_command(&["--journal-sync"]);
    start.env("TRACER_TEST_HOLD", held);
    cluster.run(start).success();
    let journal = cluster.temp_dir().join("tasks.journal");
    let empty = fs::metadata(&journal).unwrap().len();
    let started = cluster.file("started");
    let (started_argument, go) = (json!(started).to_string(), json!(cluster.file("go")).to_string());
    let arguments = [started_argument.as_str(), go.as_str(), "--no-wait"];
    let mut submission = cluster.submit_in_background("misbehaving_tasks:waits", &arguments);
    // It is written, and even runs; but nobody is told.
    cluster.wait_for_file(&started);
    assert!(fs::metadata(&journal).unwrap().len() > empty);
    let mut second = cluster.submit_in_background("demo:my_function", &["--num-cpus=0"]);
    assert!(submission.is_running() && second.is_running());
    assert_eq!(submission.stdout_text(), "");
    fs::write(&synced, "").unwrap();
    submission.wait().success().stdout("1\n");
    second.wait().success().stdout("1\n");
    fs::write(cluster.file("go"), "").unwrap();
    cluster.wait_for_task(1);
    cluster.stop().success();
}

/// Heads die at each step of a turn-over of the journal, which is turned over every few kilobytes here.
#[test]
fn a_head_that_dies_while_its_journal_is_turned_over_loses_nothing() {
    for (number, point) in ["compacted", "committing", "committed"].into_iter().enumerate() {
        let sync = if number == 1 { "--journal-sync=true" } else { "--journal-sync=false" };
        let cluster = Cluster::builder().workers(2).arg(sync).build();
        let mut start = cluster.start_command(&[]);
        start.env("TRACER_TEST_SETTING", "turn_over_bytes=4000").env("TRACER_TEST_KILL_AT", format!("{point}:2"));
        cluster.run(start).success();
        let head = cluster.head_pid();
        let mut driver = Driver::connect(&cluster.temp_dir()).unwrap();
        let mut accepted = BTreeSet::new();
        for number in 0_u64.. {
            assert!(number < 200_000, "{point} is never reached");
            let task = driver.remote("misbehaving_tasks:makes_one_span").arg(number).and_then(|task| task.submit());
            let Ok(task) = task else { break };
            match driver.accepted(&task) {
                Ok(id) => accepted.insert(id.0),
                Err(_) => break,
            };
        }
        wait_until("the head is gone", || (!crate::support::is_alive(head)).then_some(()));
        cluster.start_head(&[]).success();
        assert!(!cluster.head_log().contains("were cut off"), "{}", cluster.head_log());
        let listed = wait_until("all have ended", || {
            let list = cluster.tracer(&["list", "tasks", "--limit", "20000", "--format", "json"]).success().json();
            let tasks = list["tasks"].as_array().unwrap();
            tasks.iter().all(|task| !task["ended_unix_nano"].is_null()).then_some(list)
        });
        let known: BTreeSet<_> =
            listed["tasks"].as_array().unwrap().iter().map(|task| task["id"].as_u64().unwrap()).collect();
        let left_out = listed["forgotten"].as_u64().unwrap();
        let missing: Vec<_> = accepted.difference(&known).collect();
        assert!(missing.is_empty() && left_out == 0, "{point}: {missing:?} of {} are not known", accepted.len());
        let files: Vec<_> = fs::read_dir(cluster.temp_dir()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(!files.iter().any(|name| name.to_string_lossy().ends_with(".new")), "{files:?}");
        cluster.stop().success();
    }
}

/// Torn, short and with flipped bits: what is left of a real journal is what a real head goes on with, and it says what it has cut off.
#[test]
fn a_journal_that_is_cut_or_damaged_is_recovered_up_to_its_last_good_record() {
    let cluster = busy();
    for _ in 0..6 {
        cluster.submit("demo:my_function", &["--no-wait"]).success();
    }
    cluster.kill_head();
    let path = cluster.temp_dir().join("tasks.journal");
    let whole = fs::read(&path).unwrap();
    // Where each record ends: a length, a checksum, and as many bytes.
    let mut ends = vec![16];
    while let Some(length) = whole.get(ends[ends.len() - 1]..ends[ends.len() - 1] + 4) {
        ends.push(ends[ends.len() - 1] + 8 + u32::from_le_bytes(length.try_into().unwrap()) as usize);
    }
    assert_eq!((ends.len(), ends[ends.len() - 1]), (8, whole.len()), "seven submissions");
    fs::write(cluster.file("released"), "").unwrap();
    let short = |bytes: usize| whole[..bytes].to_vec();
    let flipped = |place: usize| {
        let mut bytes = whole.clone();
        bytes[place] ^= 4;
        bytes
    };
    for (damaged, left) in [
        (short(ends[7] - 1), 6),
        (short(ends[5] + 3), 5),
        (short(ends[4]), 4),
        (flipped(ends[6] + 1), 6),
        (flipped(ends[3] + 5), 3),
        (flipped(ends[2] + 20), 2),
        (short(20), 0),
        (short(7), 0),
    ] {
        fs::write(&path, &damaged).unwrap();
        cluster.start_head(&[]).success();
        let cut = damaged.len().saturating_sub(ends[left].max(damaged.len().min(16)));
        let said = cluster.head_log().contains(&format!("the journal ended in {cut} byte"));
        assert_eq!(said, cut > 0, "{left}: {}", cluster.head_log());
        assert_eq!(cluster.tasks().len(), left);
        let next = cluster.submit("demo:my_function", &["--no-wait"]).success().stdout_text();
        assert_eq!(next, format!("{}\n", left + 1), "it goes on from there");
        for id in 1..=left as u64 + 1 {
            cluster.wait_for_task(id);
        }
        cluster.kill_head();
    }
    cluster.start_head(&[]).success();
}
