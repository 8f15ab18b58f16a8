//! Waiting for tasks that were submitted before, and choosing those that are listed.

use std::fs;
use std::sync::Mutex;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Cluster, in_a_terminal, wait_until};

/// Submits a task that waits for a file of the folder and returns its number.
#[track_caller]
fn submit_waiting(cluster: &Cluster, file: &str, flags: &[&str]) -> u64 {
    let arguments = [json!(cluster.file(file)).to_string(), "3".to_owned()];
    let mut command = cluster.command(&["submit", "task", "--no-wait"]);
    command.args(flags).arg("nested_tasks:after").args(arguments);
    cluster.run(command).success().json().as_u64().expect("an id")
}

#[track_caller]
fn submit_failing(cluster: &Cluster, code: u8) -> u64 {
    let script = format!("exit {code}");
    let run = cluster.tracer(&["submit", "command", "--no-wait", "--", "sh", "-c", &script]).success();
    run.json().as_u64().expect("an id")
}

#[test]
fn waiting_ends_with_the_last_of_the_tasks_and_with_the_worst_exit_code() {
    let cluster = Cluster::builder().workers(2).start();
    let [good, open] = ["a", "b"].map(|file| submit_waiting(&cluster, file, &[]).to_string());
    let bad = submit_failing(&cluster, 7).to_string();
    let worse = submit_failing(&cluster, 9).to_string();
    let mut waiting = cluster.tracer_in_background(&["wait", &good, &bad, &worse, &open, &good]);
    fs::write(cluster.file("a"), "").unwrap();
    waiting.wait_for_stderr(&format!("task {good} succeeded\n"));
    waiting.wait_for_stderr(&format!("task {bad} failed: `sh` exited with code 7\n"));
    assert!(waiting.is_running(), "one has not ended");
    fs::write(cluster.file("b"), "").unwrap();
    let run = waiting.wait().status(9).stdout("");
    assert_eq!(run.stderr_text().lines().count(), 4, "each once: {}", run.describe());
    // What has ended before ends the waiting at once.
    cluster.tracer(&["wait", &good, &open]).success();
    let run = cluster.tracer(&["wait", &good, &bad, "--format", "json"]).status(7).stderr("");
    let answer = run.json();
    assert_eq!((&answer["open"], &answer["timed_out"], &answer["exit_code"]), (&json!([]), &json!(false), &json!(7)));
    let rows = answer["tasks"].as_array().expect("a list");
    let states: Vec<_> = rows.iter().map(|row| (row["id"].to_string(), row["state"].clone())).collect();
    assert_eq!(states, [(good, json!("succeeded")), (bad, json!("failed"))]);
    assert_eq!((&rows[1]["exit_code"], &rows[1]["failure"]["reason"]), (&json!(7), &json!("exit_code")));
}

#[test]
fn waiting_for_any_ends_with_the_first_and_for_an_unknown_one_at_once() {
    let cluster = Cluster::builder().workers(2).start();
    let [first, second] = ["a", "b"].map(|file| submit_waiting(&cluster, file, &[]).to_string());
    let waiting = cluster.tracer_in_background(&["wait", "--any", &first, &second, "--format", "json"]);
    fs::write(cluster.file("b"), "").unwrap();
    let answer = waiting.wait().success().json();
    assert_eq!((answer["tasks"][0]["id"].to_string(), answer["open"].clone()), (second, json!([1])));
    let run = cluster.tracer(&["wait", &first, "99"]).status(1);
    run.stderr_contains("there is no task 99: it was never submitted to this head, or ended too long ago\n(hint: ");
    cluster
        .tracer(&["wait", &first, "--timeout", "20ms"])
        .status(124)
        .stderr_contains("1 task had not ended after 20 ms");
    let answer = cluster.tracer(&["wait", &first, "--timeout", "0s", "--format", "json"]).status(124).json();
    assert_eq!((&answer["timed_out"], &answer["tasks"], &answer["open"]), (&json!(true), &json!([]), &json!([1])));
    fs::write(cluster.file("a"), "").unwrap();
}

#[test]
fn ctrl_c_ends_the_waiting_and_leaves_the_tasks() {
    let cluster = Cluster::untraced();
    let id = submit_waiting(&cluster, "a", &[]).to_string();
    let ended = cluster.tracer(&["submit", "task", "--no-wait"]).success().json().to_string();
    cluster.tracer(&["cancel", &ended]).success();
    let waiting = cluster.tracer_in_background(&["wait", &ended, &id]);
    // Then it watches for signals.
    waiting.wait_for_stderr(&format!("task {ended} was cancelled\n"));
    waiting.signal(Signal::INT);
    waiting.wait().status(130).stderr_contains(&format!("interrupted; 1 task goes on: {id}\n"));
    fs::write(cluster.file("a"), "").unwrap();
    cluster.tracer(&["wait", &ended, &id]).status(1);
    assert_eq!(cluster.task(1)["state"], "succeeded");
}

#[test]
fn get_waits_for_the_end_if_it_is_asked_to() {
    let cluster = Cluster::untraced();
    let id = submit_waiting(&cluster, "a", &[]).to_string();
    let run = cluster.tracer(&["get", &id, "--wait", "--timeout", "10ms", "--format", "json"]).status(124);
    assert!(run.json()["ended_unix_ms"].is_null(), "it is shown as it is");
    cluster.tracer(&["get", &id, "--timeout", "10ms"]).status(2);
    let waiting = cluster.tracer_in_background(&["get", &id, "--wait", "--format", "json"]);
    fs::write(cluster.file("a"), "").unwrap();
    let task = waiting.wait().success().json();
    assert_eq!((&task["state"], &task["result"]), (&json!("succeeded"), &json!(3)));
    cluster.tracer(&["get", "99", "--wait"]).status(1).stderr_contains("there is no task 99");
}

#[test]
fn many_tasks_are_waited_for_at_once() {
    let cluster = Cluster::builder().workers(2).start();
    let ids: Vec<_> = (0..300).map(|number| (number + 1).to_string()).collect();
    fs::write(cluster.file("lines"), "1\n".repeat(300)).unwrap();
    let mapping = cluster.tracer_in_background(&["submit", "task", "actor_tasks:same", "--map", "lines"]);
    let submitted = || cluster.tasks().len() == 100;
    wait_until("some have been submitted", || submitted().then_some(()));
    mapping.wait().success();
    let arguments: Vec<&str> = ["wait"].into_iter().chain(ids.iter().map(String::as_str)).collect();
    let run = cluster.tracer(&arguments).success();
    assert_eq!(run.stderr_text().lines().count(), 300);
}

#[test]
fn tasks_are_listed_by_state_name_module_and_time_and_the_limit_counts_what_is_listed() {
    let cluster = Cluster::builder().workers(2).start();
    let waiting = submit_waiting(&cluster, "a", &["--name", "nightly-1"]);
    let failed = submit_failing(&cluster, 3);
    cluster.tracer(&["wait", &failed.to_string()]).status(3);
    let named: Vec<u64> = (2..5)
        .map(|number| {
            let name = format!("nightly-{number}");
            let run = cluster.tracer(&["submit", "task", "--no-wait", "demo:my_function", "--name", &name]).success();
            run.json().as_u64().unwrap()
        })
        .collect();
    let all = named.iter().map(u64::to_string);
    let arguments: Vec<String> = ["wait".to_owned()].into_iter().chain(all).collect();
    cluster.tracer(&arguments).success();
    let actor = cluster.tracer(&["submit", "actor", "counter:Counter", "0", "--name", "c"]).success().json();
    cluster.tracer(&["submit", "call", "c", "increment", "1"]).success();
    let list = |flags: &[&str]| -> Value {
        cluster.tracer(&[&["list", "tasks", "--format", "json"], flags].concat()).success().json()
    };
    let ids = |list: &Value| -> Vec<u64> {
        list["tasks"].as_array().unwrap().iter().map(|task| task["id"].as_u64().unwrap()).collect()
    };
    let state = list(&["--state", "failed", "--state", "running"]);
    assert_eq!(ids(&state), [failed, waiting]);
    assert_eq!((&state["left_out"], &state["filtered_out"]), (&json!(0), &json!(5)));
    let name = list(&["--name", "nightly-*", "--limit", "2"]);
    assert_eq!(ids(&name), [named[2], named[1]], "the newest of those that fit, and not of all");
    assert_eq!((&name["left_out"], &name["filtered_out"]), (&json!(2), &json!(3)));
    assert_eq!(ids(&list(&["--module", "demo"])), [named[2], named[1], named[0]]);
    let id = actor.as_u64().unwrap();
    assert_eq!(ids(&list(&["--module", "count*"])), [id + 1, id], "calls and creations are of their actor's module");
    assert_eq!(ids(&list(&["--module", "demo", "--name", "nightly-3", "--state", "succeeded"])), [named[1]]);
    assert_eq!(ids(&list(&["--since", "1h"])).len(), 7);
    let submitted = cluster.task(failed)["submitted_unix_ms"].as_u64().unwrap() * 1_000_000;
    // To the millisecond, as it is shown.
    let since = tracer::clock::utc(submitted).to_string();
    assert!(!ids(&list(&["--since", &since])).contains(&waiting));
    assert!(ids(&list(&["--since", &since])).contains(&failed));
    assert!(ids(&list(&["--since", "2200-01-01T00:00:00Z"])).is_empty());
    let text = cluster.tracer(&["list", "tasks", "--state", "failed"]).success().stdout_text();
    assert!(text.contains("6 other tasks left out by the filters\n"), "{text}");
    cluster.tracer(&["list", "tasks", "--state", "fialed"]).status(2).stderr_contains("failed");
    let wrong = cluster.tracer(&["list", "tasks", "--since", "yesterday"]).status(2);
    wrong.stderr_contains("expected a duration before now, such as `30s`");
    fs::write(cluster.file("a"), "").unwrap();
}

#[test]
fn a_terminal_shows_what_is_waited_for() {
    let cluster = Cluster::builder().workers(2).start();
    let ids = ["a", "b"].map(|file| submit_waiting(&cluster, file, &[]).to_string());
    let (mut several, seen_of_several) = in_a_terminal(&cluster, &["wait", &ids[0], &ids[1]]);
    let (mut one, seen_of_one) = in_a_terminal(&cluster, &["get", &ids[0], "--wait"]);
    let shows = |screen: &Mutex<String>, text: &str| {
        wait_until(text, || screen.lock().expect("no reader panics").contains(text).then_some(()));
    };
    shows(&seen_of_several, "0 of 2 tasks have ended, ");
    shows(&seen_of_one, &format!("task {} (nested_tasks.after) running ", ids[0]));
    fs::write(cluster.file("a"), "").unwrap();
    shows(&seen_of_several, "1 of 2 tasks have ended, ");
    fs::write(cluster.file("b"), "").unwrap();
    for child in [&mut several, &mut one] {
        assert!(wait_until("it ends", || child.try_wait().expect("it is ours")).success());
    }
}
