//! The journal, seen from outside: tasks that a head has accepted survive it.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};
use tracer::Driver;

use crate::support::{Cluster, compile_c, wait_until};

/// Starts a cluster with one worker, which is busy until the file `released` exists.
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
        .stderr_contains("restored   3 tasks that an earlier head had accepted\n")
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
fn a_head_whose_tasks_were_discarded_leaves_its_history_and_nothing_to_run() {
    let cluster = busy();
    cluster.submit("demo:my_function", &["--no-wait"]).success().stdout("2\n");
    cluster.tracer(&["stop", "--force", "--discard"]).success().stderr_contains("2 tasks had not ended\n");
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
        .stderr_contains("tasks.journal` has version 9, but this tracer reads up to 5\n")
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
    cluster.start_head(&[]).success().stderr_contains("restored  1 task that an earlier head had accepted\n");
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
        tasks.iter().all(|task| !task["ended_unix_ms"].is_null()).then_some(tasks)
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

/// Heads die at each step of a compaction of the journal, which is compacted every few kilobytes here.
#[test]
fn a_head_that_dies_while_its_journal_is_compacted_loses_nothing() {
    for (number, point) in ["compacted", "committing", "committed"].into_iter().enumerate() {
        let sync = if number == 1 { "--journal-sync=true" } else { "--journal-sync=false" };
        let cluster = Cluster::builder().workers(2).arg(sync).build();
        let mut start = cluster.start_command(&[]);
        start.env("TRACER_TEST_SETTING", "compaction_bytes=4000").env("TRACER_TEST_KILL_AT", format!("{point}:2"));
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
            tasks.iter().all(|task| !task["ended_unix_ms"].is_null()).then_some(list)
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

/// Torn, short and with flipped bits: a real head goes on with what is whole of a real journal, and says what was not.
#[test]
fn of_a_journal_that_is_cut_or_damaged_all_is_recovered_that_is_whole() {
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
    let record = |index: usize| ends[index + 1] - ends[index];
    // With how many bytes are torn, how many are damaged, and which tasks are left.
    for (found, torn, damaged, left) in [
        (short(ends[7] - 1), record(6) - 1, 0, vec![1, 2, 3, 4, 5, 6]),
        (short(ends[5] + 3), 3, 0, vec![1, 2, 3, 4, 5]),
        (short(ends[4]), 0, 0, vec![1, 2, 3, 4]),
        (flipped(ends[6] + 1), record(6), 0, vec![1, 2, 3, 4, 5, 6]),
        (flipped(ends[3] + 5), 0, record(3), vec![1, 2, 3, 5, 6, 7]),
        (flipped(ends[2] + 20), 0, record(2), vec![1, 2, 4, 5, 6, 7]),
        (short(20), 4, 0, vec![]),
        (short(7), 0, 0, vec![]),
    ] {
        fs::write(&path, &found).unwrap();
        cluster.start_head(&[]).success();
        let log = cluster.head_log();
        assert_eq!(log.contains(&format!("the journal ended in {torn} byte")), torn > 0, "{left:?}: {log}");
        let said = log.contains(&format!("the journal was damaged: {damaged} bytes in 1 place could not be read"));
        assert_eq!(said, damaged > 0, "{left:?}: {log}");
        let mut ids: Vec<_> = cluster.tasks().iter().map(|task| task["id"].as_u64().unwrap()).collect();
        ids.reverse();
        assert_eq!(ids, left);
        // As many ids are left out as the lost bytes may have held.
        let next = left.last().unwrap_or(&0) + 1 + (torn + damaged) as u64 / 33;
        let said = cluster.submit("demo:my_function", &["--no-wait"]).success().stdout_text();
        assert_eq!(said, format!("{next}\n"), "it goes on from there");
        for id in left.into_iter().chain([next]) {
            cluster.wait_for_task(id);
        }
        cluster.kill_head();
    }
    cluster.start_head(&[]).success();
}

/// One bit of the first record is wrong, as after a fault of the disk.
#[test]
fn damage_in_the_middle_of_the_journal_is_said_and_costs_only_what_it_meets() {
    let cluster = busy();
    for id in 2..=5 {
        cluster.submit("demo:my_function", &["--no-wait"]).success().stdout(&format!("{id}\n"));
    }
    cluster.kill_head();
    let path = cluster.temp_dir().join("tasks.journal");
    let mut journal = fs::read(&path).unwrap();
    journal[16 + 40] ^= 4;
    fs::write(&path, &journal).unwrap();
    let warning = "the journal was damaged: ";
    let start = cluster.start_head(&[]).success();
    start.stderr_contains(&format!("warning: {warning}")).stderr_contains("4 tasks that an earlier head had accepted");
    let warnings = cluster.status()["warnings"].clone();
    assert!(warnings[0].as_str().is_some_and(|text| text.starts_with(warning)), "{warnings}");
    let names = fs::read_dir(cluster.temp_dir()).unwrap().map(|entry| entry.unwrap().path());
    let kept: Vec<_> = names.filter(|path| path.to_string_lossy().contains("tasks.journal.damaged-")).collect();
    assert_eq!(kept.len(), 1);
    assert!(warnings[0].as_str().unwrap().contains(kept[0].to_str().unwrap()), "{warnings}");
    assert_eq!(fs::read(&kept[0]).unwrap(), journal);
    for id in 2..=5 {
        assert_eq!(cluster.wait_for_task(id)["result"], 1);
    }
    let next = cluster.submit("demo:my_function", &["--no-wait"]).success().stdout_text();
    let next: u64 = next.trim().parse().unwrap();
    assert!((6..100).contains(&next), "{next}");
    cluster.wait_for_task(next);
    cluster.stop().success();
    // It stays until the next start.
    let start = cluster.start_head(&[]).success();
    assert!(!start.stderr_text().contains(warning), "{start:?}");
    assert_eq!(cluster.status()["warnings"], json!([]));
    cluster.stop().success();
}

#[test]
fn records_that_are_there_twice_count_once() {
    let cluster = busy();
    cluster.submit("demo:my_function", &["--no-wait"]).success().stdout("2\n");
    fs::write(cluster.file("released"), "").unwrap();
    cluster.wait_for_task(2);
    fs::remove_file(cluster.file("released")).unwrap();
    fs::remove_file(cluster.file("started")).unwrap();
    let (started, released) = (json!(cluster.file("started")).to_string(), json!(cluster.file("released")).to_string());
    cluster.submit("misbehaving_tasks:waits", &[&started, &released, "--no-wait"]).success().stdout("3\n");
    cluster.wait_for_file(&cluster.file("started"));
    cluster.submit("demo:my_function", &["--no-wait"]).success().stdout("4\n");
    cluster.kill_head();
    let path = cluster.temp_dir().join("tasks.journal");
    let journal = fs::read(&path).unwrap();
    fs::write(&path, [&journal, &journal[16..]].concat()).unwrap();
    fs::write(cluster.file("released"), "").unwrap();
    cluster.start_head(&[]).success().stderr_contains("2 tasks that an earlier head had accepted");
    cluster.wait_for_task(3);
    cluster.wait_for_task(4);
    let tasks = cluster.status()["tasks"].clone();
    assert_eq!(
        (&tasks["succeeded"], &tasks["failed"], &tasks["waiting"]),
        (&json!(4), &json!(0), &json!(0)),
        "{tasks}"
    );
    let ids: Vec<_> = cluster.tasks().iter().map(|task| task["id"].as_u64().unwrap()).collect();
    assert_eq!(ids, [4, 3, 2, 1]);
    cluster.submit("demo:my_function", &["--no-wait"]).success().stdout("5\n");
    cluster.stop().success();
}

/// Starts a cluster whose journal is on a disk that fails as the file `disk` says.
fn on_a_failing_disk(sync: &str) -> Cluster {
    let cluster = Cluster::builder().workers(1).arg(sync).build();
    let shim = cluster.file("failing_disk.so");
    compile_c("tests/fixtures/c/failing_disk.c", &shim);
    let mut start = cluster.start_command(&[]);
    start.env("LD_PRELOAD", &shim).env("FAILING_DISK", cluster.file("disk"));
    cluster.run(start).success();
    cluster
}

#[test]
fn after_a_write_that_failed_in_the_middle_nothing_is_accepted_that_would_be_lost() {
    for sync in ["--journal-sync=false", "--journal-sync=true"] {
        let cluster = on_a_failing_disk(sync);
        let started = [json!(cluster.file("started")).to_string(), json!(cluster.file("go")).to_string()];
        cluster.submit("misbehaving_tasks:waits", &[&started[0], &started[1], "--no-wait"]).success();
        cluster.wait_for_file(&cluster.file("started"));
        let mut accepted = vec![1];
        let submit = |accepted: &mut Vec<u64>| {
            let run = cluster.submit("demo:my_function", &["--no-wait"]);
            let is_accepted = run.output.status.success();
            if is_accepted {
                accepted.push(run.stdout_text().trim().parse().unwrap());
            } else {
                run.stderr_contains("the journal cannot be written, so nothing was accepted: ");
            }
            is_accepted
        };
        // Each with what goes on failing after it.
        for (first, then) in [("wt", "t"), ("w", ""), ("wt", ""), ("t", "t")] {
            fs::write(cluster.file("disk"), first).unwrap();
            assert_eq!(submit(&mut accepted), !first.contains('w'), "{sync}, {first}");
            fs::write(cluster.file("disk"), then).unwrap();
            // In the end the torn part is cut off, or there is another file.
            wait_until("something is accepted again", || submit(&mut accepted).then_some(()));
        }
        fs::remove_file(cluster.file("disk")).unwrap();
        assert!(accepted.len() >= 6);
        cluster.kill_head();
        fs::write(cluster.file("go"), "").unwrap();
        let start = cluster.start_head(&[]).success();
        assert!(!start.stderr_text().contains("damaged"), "{start:?}");
        for id in &accepted {
            assert_eq!(cluster.wait_for_task(*id)["state"], "succeeded", "{sync}: {id} of {accepted:?}");
        }
        assert_eq!(cluster.tasks().len(), accepted.len(), "what was refused is not there");
        cluster.stop().success();
    }
}

#[test]
fn what_could_not_be_synced_is_not_acknowledged_until_it_is() {
    let cluster = on_a_failing_disk("--journal-sync=true");
    cluster.submit("demo:my_function", &[]).success().stdout("1\n");
    fs::write(cluster.file("disk"), "s").unwrap();
    let mut submission = cluster.submit_in_background("demo:my_function", &["--no-wait"]);
    wait_until("the failure is known", || cluster.head_log().contains("the journal cannot be synced").then_some(()));
    assert!(submission.is_running());
    assert_eq!(submission.stdout_text(), "");
    fs::remove_file(cluster.file("disk")).unwrap();
    submission.wait().success().stdout("2\n");
    cluster.kill_head();
    cluster.start_head(&[]).success();
    assert_eq!(cluster.wait_for_task(2)["state"], "succeeded");
    cluster.stop().success();
}
