//! `tracer logs ID`: every line is its own task's, also after the end of the task, of its worker and of the head.

use std::collections::BTreeMap;
use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Cluster, HOOK, compile_c, kill_if_there, wait_until};

/// Returns the lines of `tracer logs`, as JSON.
#[track_caller]
fn logs(cluster: &Cluster, arguments: &[&str]) -> Vec<Value> {
    let arguments: Vec<&str> = ["logs", "--format", "json"].into_iter().chain(arguments.iter().copied()).collect();
    let run = cluster.tracer(&arguments).success();
    run.stdout_text().lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

/// Returns the texts of a task's lines, sorted.
#[track_caller]
fn texts(cluster: &Cluster, id: &str) -> Vec<String> {
    let mut texts: Vec<String> =
        logs(cluster, &[id]).iter().map(|line| line["text"].as_str().expect("a text").into()).collect();
    texts.sort();
    texts
}

#[test]
fn the_lines_of_a_task_are_shown_without_a_head_too() {
    let cluster = Cluster::traced();
    for number in 1..=3 {
        let script = format!("echo out {number}; echo err {number} >&2");
        cluster.tracer(&["submit", "command", "--", "sh", "-c", &script]).success();
    }
    assert_eq!(texts(&cluster, "2"), ["err 2", "out 2"]);
    cluster.tracer(&["logs", "last", "--stream", "stderr"]).success().stdout("err 3\n");
    cluster.tracer(&["logs", "1", "--grep", "out"]).success().stdout("out 1\n");
    let trace = logs(&cluster, &["2"])[0]["trace_id"].as_str().expect("it is traced").to_owned();
    assert_eq!(cluster.task(2)["trace_id"], json!(trace));
    let of_trace = cluster.tracer(&["logs", "--trace", &trace[..12]]).success();
    assert_eq!(of_trace.stdout_text().lines().filter(|line| line.starts_with("(task 2 pid=")).count(), 2);
    cluster.tracer(&["logs", "77"]).status(1).stderr_contains("there is no task 77");
    cluster.kill_head();
    assert_eq!(texts(&cluster, "2"), ["err 2", "out 2"]);
    cluster.start_head(&[]).success();
    assert_eq!(texts(&cluster, "2"), ["err 2", "out 2"], "the next head knows the task, and not its output");
    cluster.stop().success();
    assert_eq!(texts(&cluster, "3"), ["err 3", "out 3"]);
    assert_eq!(texts(&cluster, "last"), ["err 3", "out 3"]);
}

#[test]
fn the_lines_of_an_attempt_stand_below_its_span() {
    let cluster = Cluster::traced();
    cluster.submit("nested_tasks:prints_around", &["1"]).success();
    let shown = cluster.tracer(&["trace", "show", "last", "--logs"]).success().stdout_text();
    let at = |part: &str| shown.find(part).unwrap_or_else(|| panic!("`{part}` in {shown}"));
    assert!(at("stdout 1 begins") < at("stdout 0 begins"), "{shown}");
    let trace = cluster.tracer(&["trace", "show", "last", "--logs", "--format", "json"]).success().json();
    let span_of = |text: &str| {
        let records = trace["logs"].as_array().expect("records").iter();
        let found: Vec<_> = records.filter(|record| record["body"] == text).collect();
        assert_eq!((found.len(), &found[0]["severity"]), (1, &json!("stdout")), "{trace}");
        found[0]["span_id"].as_str().expect("it has a span").to_owned()
    };
    assert_eq!(span_of("1 begins"), span_of("1 ends"));
    assert_ne!(span_of("1 begins"), span_of("0 begins"));
}

#[test]
fn every_line_of_ten_thousand_tasks_is_its_own_while_workers_are_killed() {
    let count = std::env::var("TRACER_LOG_TASKS").ok().and_then(|count| count.parse().ok()).unwrap_or(10_000_u64);
    let cluster = Cluster::builder().workers(3).hook(HOOK).start();
    let lines: String = (0..count).map(|number| format!("{number}\n")).collect();
    fs::write(cluster.file("lines"), lines).expect("the folder is ours");
    let flags = ["0", "--map", "lines", "--keep-order", "--format", "json", "--crash-limit", "20"];
    let mut running = cluster.submit_in_background("misbehaving_tasks:says_from", &flags);
    let mut kills = 0;
    while running.is_running() && kills < 8 {
        let said = running.stdout_text().lines().count();
        wait_until("more tasks end", || {
            (running.stdout_text().lines().count() > said + 50 || !running.is_running()).then_some(())
        });
        if let Some(&pid) = cluster.worker_pids().get(kills % 3).filter(|_| running.is_running()) {
            kills += usize::from(kill_if_there(pid, Signal::KILL));
        }
    }
    let run = running.wait().success();
    let tasks: BTreeMap<u64, u64> = run
        .stdout_text()
        .lines()
        .map(|line| {
            let line: Value = serde_json::from_str(line).expect("a line is JSON");
            (line["id"].as_u64().expect("an id"), line["line"].as_u64().expect("a number") - 1)
        })
        .collect();
    assert_eq!(tasks.len() as u64, count);
    let trace = cluster.task(*tasks.keys().next().expect("a task"))["trace_id"].as_str().expect("traced").to_owned();
    let found = logs(&cluster, &["--trace", &trace]);
    let mut per_task: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for line in &found {
        assert_eq!(line["is_approximate"], json!(false), "{line}");
        let task = line["task_id"].as_u64().expect("an id");
        per_task.entry(task).or_default().push(line["text"].as_str().expect("a text").into());
    }
    for (task, number) in &tasks {
        let lines = per_task.get_mut(task).unwrap_or_else(|| panic!("task {task} has no lines"));
        lines.sort();
        // An attempt that was killed may have written before.
        lines.dedup();
        assert_eq!(*lines, [format!("err {number}"), format!("out {number}")], "task {task}");
    }
    assert!(kills > 0, "no worker was killed");
}

#[test]
fn what_a_silent_function_writes_at_last_is_approximate_once() {
    let cluster = Cluster::traced();
    let quiet = |number: u64| cluster.submit("misbehaving_tasks:says_from", &["50", &number.to_string()]).success();
    (0..20).for_each(|number| drop(quiet(number)));
    assert_eq!(logs(&cluster, &["1"]), [] as [Value; 0]);
    cluster.tracer(&["logs", "1"]).success().stdout("").stderr("task 1 has written nothing\n");
    quiet(50);
    let found = logs(&cluster, &["21"]);
    assert!(found.iter().all(|line| line["is_approximate"] == true && line["task_id"] == 21), "{found:?}");
    assert_eq!(found.len(), 2);
    cluster.tracer(&["logs", "21"]).success().stdout_contains("~ out 50\n").stderr_contains("2 lines came while");
    quiet(51);
    let found = logs(&cluster, &["22"]);
    assert_eq!(found.len(), 2);
    assert!(found.iter().all(|line| line["is_approximate"] == false), "{found:?}");
}

#[test]
fn bytes_that_look_like_a_mark_are_a_tasks_own() {
    let cluster = Cluster::traced();
    // The first byte of every mark, in all places.
    let bytes = json!([255, 10, 255, 255, 97, 255]).to_string();
    let run = cluster.submit("misbehaving_tasks:prints_bytes", &[&bytes]).success();
    assert!(run.stderr_text().lines().count() >= 2, "{run:?}");
    assert_eq!(texts(&cluster, "1"), ["\u{fffd}", "\u{fffd}\u{fffd}a\u{fffd}"]);
    let log = fs::read(cluster.session_dir().join(format!("logs/worker-1-{}.log", cluster.worker_pids()[0])));
    assert_eq!(log.expect("the worker has a log"), [255, 10, 255, 255, 97, 255], "no mark is in the log");
}

#[test]
fn what_the_c_library_holds_back_is_the_tasks_that_printed_it() {
    let cluster = Cluster::builder().hook(HOOK).build();
    compile_c("tests/fixtures/c/prints.c", &cluster.file("libprints.so"));
    cluster.start_head(&[]).success();
    for number in 1..=20 {
        cluster.submit("./libprints.so:prints", &[&number.to_string()]).success();
    }
    for task in [1, 2, 19, 20] {
        assert_eq!(texts(&cluster, &task.to_string()), [format!("number {task}")]);
    }
}

#[test]
fn a_task_that_runs_inside_of_another_keeps_its_lines() {
    let cluster = Cluster::traced();
    cluster.submit("nested_tasks:prints_around", &["2"]).success();
    for (task, depth) in [("1", 2), ("2", 1), ("3", 0)] {
        assert_eq!(texts(&cluster, task), [format!("{depth} begins"), format!("{depth} ends")]);
    }
}

#[test]
fn the_output_of_a_running_task_is_followed_to_its_end() {
    let cluster = Cluster::traced();
    let released = cluster.file("released");
    let arguments = [json!("a").to_string(), "2".into(), json!(released).to_string(), "--no-wait".into()];
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    cluster.submit("misbehaving_tasks:prints_and_waits", &arguments).success();
    let following = cluster.tracer_in_background(&["logs", "1", "--follow", "--stream", "stdout"]);
    following.wait_for_stdout("a out 2\n");
    fs::write(released, "").expect("the folder is ours");
    following.wait().success().stdout("a out 1\na out 2\na without an end\n");
}

#[test]
fn calls_that_run_beside_each_other_share_the_output_of_their_actor() {
    let cluster = Cluster::builder().workers(2).hook(HOOK).start();
    cluster.tracer(&["submit", "actor", "actor_tasks:Beside", "--name", "gate"]).success();
    let until = cluster.file("until");
    let call = |name: &str| {
        let arguments = [json!(name).to_string(), json!(until).to_string()];
        cluster.tracer_in_background(&["submit", "call", "gate", "say", &arguments[0], &arguments[1]])
    };
    let (a, b) = (call("a"), call("b"));
    wait_until("both have begun", || (texts(&cluster, "gate").len() == 2).then_some(()));
    fs::write(&until, "").expect("the folder is ours");
    a.wait().success();
    b.wait().success();
    assert_eq!(texts(&cluster, "gate"), ["a begins", "a ends", "b begins", "b ends"]);
    let said = cluster.tracer(&["logs", "2"]).success();
    said.stderr_contains("what calls of an actor write beside each other is the actor's: `tracer logs 1`");
}
