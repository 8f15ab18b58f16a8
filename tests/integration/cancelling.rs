//! The end of a task that somebody wants to end, or that has run, waited or been silent for too long: asked, signalled, killed.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::support::{Background, Cluster, Driver, HOOK, is_alive, kill, wait_until};

/// Submits a function of the fixtures with the names of files as arguments, and waits until the first of them exists.
#[track_caller]
fn submit_and_see_it_run(cluster: &Cluster, function: &str, files: &[&str], flags: &[&str]) -> Background {
    let files: Vec<String> = files.iter().map(|file| json!(cluster.file(file)).to_string()).collect();
    let arguments: Vec<&str> = files.iter().map(String::as_str).chain(flags.iter().copied()).collect();
    let submission = cluster.submit_in_background(&format!("misbehaving_tasks:{function}"), &arguments);
    let started: String = serde_json::from_str(&files[0]).unwrap();
    cluster.wait_for_file(started.as_ref());
    submission
}

/// Returns a command that ignores every signal that can be ignored, and its process id.
#[track_caller]
fn submit_stubborn(cluster: &Cluster, flags: &[&str]) -> (Background, u32) {
    let script = "trap '' TERM INT; echo $$ > own; while :; do sleep 1000; done";
    let all = [&["submit", "command"], flags, &["--", "sh", "-c", script]].concat();
    let submission = cluster.tracer_in_background(&all);
    let pid = wait_until("it runs", || fs::read_to_string(cluster.file("own")).ok()?.trim().parse().ok());
    (submission, pid)
}

#[track_caller]
fn wait_for_state(cluster: &Cluster, id: u64, state: &str) -> Value {
    wait_until(&format!("task {id} is {state}"), || Some(cluster.task(id)).filter(|task| task["state"] == state))
}

/// Waits for a state that is seen on the node alone that runs the task.
#[track_caller]
fn wait_for_state_where_it_runs(cluster: &Cluster, id: u64, state: &str) {
    let node = cluster.runner();
    wait_until(&format!("task {id} is {state}"), || (node.task(id)["state"] == state).then_some(()));
}

#[test]
fn a_function_that_asks_ends_by_itself_and_its_worker_goes_on() {
    let cluster = Cluster::traced();
    let worker = cluster.worker_pids();
    let submission = submit_and_see_it_run(&cluster, "listens", &["started", "cleaned up"], &["--grace=1h"]);
    cluster.tracer(&["cancel", "1"]).success();
    submission.wait().status(1).stderr_contains("failed: it was cancelled\n");
    assert!(cluster.file("cleaned up").exists());
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    assert_eq!(spans.attempt_of(1).attribute("error.type"), "cancelled");
    // A limit on how long it may run is told in the same way, and is another failure.
    let flags = ["--timeout=100ms", "--grace=1h"];
    let submission = submit_and_see_it_run(&cluster, "listens", &["started again", "cleaned up again"], &flags);
    submission.wait().status(124).stderr_contains("failed: timed out: it was still running after 100 ms\n");
    assert!(cluster.file("cleaned up again").exists());
    assert_eq!(cluster.spans().attempt_of(2).attribute("error.type"), "timeout");
    assert_eq!((cluster.worker_pids(), &cluster.runner().status()["workers"]["lost"]), (worker, &json!(0)));
}

#[test]
fn the_future_of_an_async_function_is_dropped() {
    let cluster = Cluster::traced();
    let worker = cluster.worker_pids();
    let submission = submit_and_see_it_run(&cluster, "sleeps_for_ever", &["started", "dropped"], &["--grace=1h"]);
    cluster.tracer(&["cancel", "1"]).success();
    submission.wait().status(1).stderr_contains("failed: it was cancelled\n");
    // What it cleans up is still in the trace.
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    assert_eq!(spans.parent_of(spans.named("clean up")).span_id(), spans.attempt_of(1).span_id());
    assert!(cluster.file("dropped").exists());
    cluster.submit("demo:my_function", &[]).success();
    assert_eq!(cluster.worker_pids(), worker);
}

#[test]
fn a_function_that_waits_for_others_is_told_in_its_wait_and_may_clean_up() {
    let cluster = Cluster::builder().hook(HOOK).workers(2).start();
    let workers = cluster.worker_pids();
    for (round, flags) in [&["--grace=1h"][..], &["--grace=1h", "--timeout=100ms"]].into_iter().enumerate() {
        let [started, never, cleaned] =
            ["started", "never", "cleaned"].map(|name| cluster.file(&format!("{name} {round}")));
        let arguments = [&started, &never, &cleaned].map(|path| json!(path).to_string());
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(flags.iter().copied()).collect();
        let submission = cluster.submit_in_background("nested_tasks:cleans_up", &arguments);
        cluster.wait_for_file(&started);
        if flags.len() == 1 {
            let task = cluster.tasks().into_iter().find(|task| task["target"] == "nested_tasks.cleans_up");
            let id = task.expect("it runs")["id"].to_string();
            // It waits, or is about to.
            cluster.tracer(&["cancel", &id]).success();
            submission.wait().status(1).stderr_contains("failed: it was cancelled\n");
        } else {
            submission.wait().status(124).stderr_contains("failed: timed out: it was still running after 100 ms\n");
        }
        assert_eq!(fs::read_to_string(&cleaned).expect("it cleans up"), "Some(Cancelled) true 49");
        let of_child = |task: &Value| task["target"] == "nested_tasks.after" && task["state"] != "cancelled";
        wait_until("the child has ended too", || (!cluster.runner().tasks().iter().any(of_child)).then_some(()));
    }
    cluster.spans().assert_whole(&[]);
    assert!(cluster.worker_pids().iter().any(|pid| workers.contains(pid)), "the worker that waited goes on");
}

#[test]
fn a_function_that_does_not_ask_is_ended_with_its_worker_when_its_time_is_up() {
    let cluster = Cluster::traced();
    let workers = cluster.worker_pids();
    let submission = submit_and_see_it_run(&cluster, "waits", &["started", "never"], &["--grace=1h"]);
    cluster.tracer(&["cancel", "1"]).success();
    let task = wait_for_state(&cluster, 1, "cancelling");
    assert_eq!(task["ended_unix_ms"], Value::Null);
    cluster.runner().tracer(&["status"]).success().stdout_contains("1 running (1 of them being ended)");
    assert!(is_alive(workers[0]));
    cluster.tracer(&["cancel", "1", "--grace=50ms"]).success();
    submission.wait().status(1).stderr_contains("failed: it was cancelled\n");
    assert!(!is_alive(workers[0]));
    assert_eq!(cluster.spans().attempt_of(1).attribute("error.type"), "cancelled");
    let tasks = cluster.status()["tasks"].clone();
    assert_eq!((&tasks["cancelled"], &tasks["failed"]), (&json!(1), &json!(0)));
    assert_eq!((&cluster.task(1)["state"], &cluster.tasks()[0]["state"]), (&json!("cancelled"), &json!("cancelled")));
    cluster.tracer(&["explain", "1"]).success().stdout_contains("was cancelled after");
    cluster.submit("demo:my_function", &[]).success();
    assert_eq!(cluster.task(1)["attempt"], 1, "what was cancelled is not tried again");
}

#[test]
fn a_command_gets_sigterm_then_sigkill_and_each_step_is_seen() {
    let cluster = Cluster::traced();
    let worker = cluster.worker_pids();
    let (submission, pid) = submit_stubborn(&cluster, &["--name=stubborn", "--grace=1h"]);
    cluster.tracer(&["cancel", "--name", "stub*"]).success().stderr_contains("task 1 is being cancelled");
    wait_for_state_where_it_runs(&cluster, 1, "terminating");
    let table = cluster.runner().tracer(&["list", "tasks"]).success().stdout_text();
    assert!(table.contains("terminating"), "{table}");
    assert!(is_alive(pid));
    cluster.tracer(&["cancel", "--all", "--grace=0s"]).success();
    submission.wait().status(1).stderr_contains("failed: it was cancelled\n");
    assert!(!is_alive(pid));
    assert_eq!(cluster.worker_pids(), worker, "the worker goes on");
    assert_eq!(cluster.spans().attempt_of(1).attribute("error.type"), "cancelled");
    cluster.tracer(&["cancel", "--all"]).success().stderr("there is no such task to cancel\n");
    cluster.tracer(&["cancel"]).status(2);
    cluster.tracer(&["cancel", "1", "--all"]).status(2);
}

#[test]
fn ctrl_c_twice_ends_it_at_once() {
    let cluster = Cluster::traced();
    let (submission, pid) = submit_stubborn(&cluster, &["--grace=1h"]);
    submission.signal(Signal::INT);
    submission.wait_for_stderr("cancelling task 1 (Ctrl-C again ends it at once)\n");
    wait_for_state_where_it_runs(&cluster, 1, "terminating");
    submission.signal(Signal::INT);
    submission.wait().status(130).stderr_contains("ending task 1 at once\n");
    wait_until("it is gone", || (!is_alive(pid)).then_some(()));
    assert_eq!(cluster.wait_for_task(1)["failure"]["reason"], "cancelled");
    // What the submission had open, the head has closed.
    let spans = cluster.wait_for_spans("the job is closed", |spans| spans.all_named("tracer job").len() == 1);
    spans.assert_whole(&[]);
}

/// A lease is revoked in the ring of claims, which does not need the worker.
#[test]
fn a_task_in_the_lease_of_a_busy_worker_is_cancelled_without_waiting_for_that_worker() {
    if differs!() {
        return;
    }
    let cluster = Cluster::untraced();
    let mut driver = Driver::connect(&cluster.temp_dir()).unwrap();
    let released = cluster.file("released");
    fs::write(&released, "").unwrap();
    let waits = |driver: &mut Driver, released: &std::path::Path| {
        driver.remote("misbehaving_tasks:waits_for").arg(released).unwrap().submit().unwrap()
    };
    let mut round = 0;
    // As soon as the function is known to be short, others are leased behind one that is not.
    let (running, behind, running_id, behind_id) = wait_until("a task is leased behind a running one", || {
        let short: Vec<_> = (0..50).map(|_| waits(&mut driver, &released)).collect();
        short.into_iter().for_each(|task| driver.get::<()>(task).unwrap());
        round += 1;
        let never = cluster.file(&format!("never {round}"));
        let running = waits(&mut driver, &never);
        let behind = waits(&mut driver, &released);
        let (running_id, behind_id) = (driver.accepted(&running).unwrap().0, driver.accepted(&behind).unwrap().0);
        wait_for_state(&cluster, running_id, "running");
        if cluster.task(behind_id)["state"] == "leased" {
            return Some((running, behind, running_id, behind_id));
        }
        fs::write(never, "").unwrap();
        for task in [running, behind] {
            driver.get::<()>(task).unwrap();
        }
        None
    });
    let both = [running_id.to_string(), behind_id.to_string()];
    cluster.tracer(&["cancel", &both[1]]).success().stderr(&format!("task {behind_id} is cancelled\n"));
    assert!(driver.get::<()>(behind).unwrap_err().to_string().ends_with("failed: it was cancelled"));
    assert_eq!(cluster.task(running_id)["state"], "running");
    assert_eq!(cluster.task(behind_id)["attempt"], 0);
    cluster.tracer(&["cancel", &both[0], &both[1], "--grace=0s"]).success();
    assert!(driver.get::<()>(running).is_err());
}

#[test]
fn a_task_that_waits_for_too_long_and_a_command_that_is_silent_for_too_long_are_told_apart() {
    let cluster = Cluster::traced();
    let running = submit_and_see_it_run(&cluster, "waits", &["started", "released"], &[]);
    cluster.submit("demo:my_function", &["--queue-timeout=100ms"]).status(124).stderr_contains(
        "error: task 2 (demo.my_function) failed: timed out: it was still waiting for a worker after 100 ms\n",
    );
    assert_eq!((&cluster.task(2)["failure"]["limit"], &cluster.task(2)["attempt"]), (&json!("queue"), &json!(0)));
    fs::write(cluster.file("released"), "").unwrap();
    running.wait().success();
    cluster.submit("demo:my_function", &["--queue-timeout=1h"]).success();

    let worker = cluster.worker_pids();
    let idle = ["submit", "command", "--idle-timeout=400ms", "--", "sh", "-c"];
    // It takes longer than that, and is never silent for that long.
    let busy = "for i in 1 2 3 4 5 6; do echo $i; sleep 0.1; done";
    cluster.tracer(&[&idle[..], &[busy]].concat()).success().stdout("1\n2\n3\n4\n5\n6\n");
    cluster
        .tracer(&[&idle[..], &["echo begun; echo $$ > own; exec sleep 1000"]].concat())
        .status(124)
        .stdout("begun\n")
        .stderr_contains("failed: timed out: it had written nothing for 400 ms\n");
    let pid = fs::read_to_string(cluster.file("own")).unwrap().trim().parse().unwrap();
    assert!(!is_alive(pid));
    assert_eq!(cluster.worker_pids(), worker);
    let spans = cluster.spans();
    let number = if differs!() { 4 } else { 5 };
    assert_eq!(spans.attempt_of(number).attribute("error.type"), "timeout");
    assert_eq!(cluster.task(5)["failure"]["limit"], "idle");
}

/// A cancelled task whose worker is killed meanwhile is cancelled, and not tried again.
#[test]
fn a_worker_that_dies_while_its_task_is_being_cancelled_does_not_bring_it_back() {
    let cluster = Cluster::untraced();
    let submission = submit_and_see_it_run(&cluster, "waits", &["started", "never"], &["--grace=1h"]);
    cluster.tracer(&["cancel", "1"]).success();
    wait_for_state(&cluster, 1, "cancelling");
    kill(cluster.worker_pids()[0], Signal::KILL);
    submission.wait().status(1).stderr_contains("failed: it was cancelled\n");
    assert_eq!(cluster.task(1)["attempt"], 1);
}
