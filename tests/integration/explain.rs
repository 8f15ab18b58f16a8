//! `tracer explain`: why a task waits, what it is at, or why it ended as it did.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::support::{Cluster, Driver, Head, kill, wait_until};

/// Returns the reasons as JSON.
#[track_caller]
fn reasons(head: &Head, id: u64) -> Vec<Value> {
    let answer = head.tracer(&["explain", &id.to_string(), "--format", "json"]).success().stderr("").json();
    assert_eq!(answer["task"]["id"], id);
    answer["reasons"].as_array().expect("reasons are a list").clone()
}

/// Submits a task that says its process and runs until the file `go` exists. Returns the process.
fn occupy(cluster: &Cluster) -> u32 {
    let (started, go) = (json!(cluster.file("started")).to_string(), json!(cluster.file("go")).to_string());
    cluster
        .tracer(&["submit", "task", "--no-wait", "misbehaving_tasks:waits", &started, &go, "--crash-limit=0"])
        .success();
    cluster.wait_for_file(&cluster.file("started"));
    std::fs::read_to_string(cluster.file("started")).unwrap().parse().unwrap()
}

/// Returns the reason of the first task, once a node has it.
fn running_elsewhere(cluster: &Cluster) -> Option<Value> {
    reasons(cluster, 1).into_iter().find(|reason| reason["reason"] == "runs_elsewhere")
}

#[test]
fn a_running_task_has_its_worker_named_and_those_behind_it_what_they_wait_for() {
    let cluster = Cluster::untraced();
    let pid = occupy(&cluster);
    for _ in 0..3 {
        cluster.tracer(&["submit", "task", "--no-wait", "demo:my_function"]).success();
    }
    let running = &reasons(cluster.runner(), 1)[0];
    assert_eq!((&running["reason"], &running["worker_pid"]), (&json!("running"), &json!(pid)));
    assert!(running["since_unix_ms"].as_u64() > Some(0), "{running}");
    cluster.runner().tracer(&["explain", "1"]).success().stdout_contains(&format!("(pid {pid}) has run it for "));
    if differs!() {
        let (running, last) = (wait_until("the claim is known", || running_elsewhere(&cluster)), reasons(&cluster, 4));
        assert_eq!(running["node_id"], cluster.runner().status()["node_id"]);
        assert_eq!((&running["attempt"], running["since_unix_ms"].as_u64() > Some(0)), (&json!(1), true), "{running}");
        cluster
            .tracer(&["explain", "1"])
            .success()
            .stdout_contains("state       running\n")
            .stdout_contains(" has had it for ");
        let of_queue = |reason: &Value| (reason["reason"].clone(), reason["queue"].clone());
        let expected = ["in_queue", "served_by"].map(|reason| (json!(reason), json!("default")));
        assert_eq!(last.iter().map(of_queue).collect::<Vec<_>>(), expected, "{last:?}");
        assert_eq!(last[1]["nodes"], json!([cluster.runner().status()["node_id"]]));
        std::fs::write(cluster.file("go"), "").unwrap();
        cluster.wait_for_task(4);
        return;
    }

    let first = reasons(&cluster, 2);
    let last = reasons(&cluster, 4);
    assert_eq!((first.len(), &first[0]["reason"]), (1, &json!("workers_busy")), "{first:?}");
    assert_eq!(first[0]["running"][0]["task"], 1);
    assert_eq!((&last[0]["reason"], &last[0]["tasks"]), (&json!("behind"), &json!(2)));
    assert_eq!(last[0]["text"], "2 tasks are before it in the queue");
    assert_eq!(last[1]["running"], first[0]["running"]);
    cluster
        .tracer(&["explain", "4"])
        .success()
        .stdout_contains("state      waiting\n")
        .stdout_contains(
            "why        2 tasks are before it in the queue\n           every worker is busy: worker 1 (pid ",
        )
        .stdout_contains(" has run task 1 for ");

    std::fs::write(cluster.file("go"), "").unwrap();
    cluster.wait_for_task(4);
    assert_eq!(reasons(&cluster, 4)[0]["reason"], "ended");
    assert_eq!(reasons(&cluster, 4)[0]["failure"], Value::Null);
    cluster.tracer(&["explain", "4"]).success().stdout_contains(" succeeded after ");
}

#[test]
fn a_failed_task_has_its_failure_and_where_it_ran() {
    let cluster = Cluster::untraced();
    let pid = cluster.worker_pids()[0];
    cluster.submit("misbehaving_tasks:returns_error", &["\"no such luck\""]).status(1);
    let ended = &reasons(&cluster, 1)[0];
    assert_eq!((&ended["reason"], &ended["worker_pid"], &ended["attempt"]), (&json!("ended"), &json!(pid), &json!(1)));
    let sentence = format!(" in worker 1 (pid {pid}) failed after ");
    cluster.tracer(&["explain", "1"]).success().stdout_contains(&sentence).stdout_contains(": no such luck\n");
    cluster
        .tracer(&["explain", "77"])
        .status(1)
        .stderr_contains("error: there is no task 77: it was never submitted to this head, or ended too long ago\n");
}

#[test]
fn a_task_that_needs_results_has_those_named_that_are_missing() {
    let cluster = Cluster::builder().workers(2).start();
    let mut driver = Driver::connect(&cluster.temp_dir()).unwrap();
    let go = cluster.file("go");
    let slow = driver.remote("nested_tasks:after").arg(&go).unwrap().arg(4).unwrap().submit().unwrap();
    let sum = driver.remote("nested_tasks:add").arg(&slow).unwrap().arg(2).unwrap().submit().unwrap();
    let square = driver.remote("nested_tasks:square").arg(&sum).unwrap().submit().unwrap();
    driver.accepted(&square).unwrap();
    wait_until("the first runs", || (cluster.task(1)["state"] == "running").then_some(()));
    let needs = |id| reasons(&cluster, id)[0].clone();
    assert_eq!((&needs(2)["reason"], &needs(3)["reason"]), (&json!("needs_results"), &json!("needs_results")));
    assert_eq!(needs(2)["tasks"], json!([{ "id": 1, "target": "nested_tasks.after", "state": "running" }]));
    assert_eq!(needs(3)["tasks"], json!([{ "id": 2, "target": "nested_tasks.add", "state": "waiting" }]));
    let sentence = "its arguments are results of tasks that have not ended: 1 (nested_tasks.after, running)\n";
    cluster.tracer(&["explain", "2"]).success().stdout_contains(sentence);
    std::fs::write(&go, "").unwrap();
    cluster.wait_for_task(3);
}

#[test]
fn a_task_that_waits_for_tasks_of_its_own_has_those_named() {
    let cluster = Cluster::builder().workers(2).start();
    let [said, go] = ["said", "go"].map(|name| json!(cluster.file(name)).to_string());
    let run = cluster.submit_in_background("nested_tasks:waits_for_children", &["3", &said, &go]);
    cluster.wait_for_file(&cluster.file("said"));
    let awaits = wait_until("it waits", || reasons(cluster.runner(), 1).get(1).cloned());
    assert_eq!(awaits["reason"], "awaits_tasks");
    let ids: Vec<_> = awaits["tasks"].as_array().unwrap().iter().map(|task| task["id"].clone()).collect();
    assert_eq!(ids, [2, 3, 4]);
    std::fs::write(cluster.file("go"), "").unwrap();
    run.wait().success();
}

#[test]
fn a_task_in_a_head_that_stops_is_told_so() {
    let cluster = Cluster::untraced();
    occupy(&cluster);
    let stop = cluster.runner().tracer_in_background(&["stop", "--grace-period", "60s"]);
    let ending = wait_until("it stops", || reasons(cluster.runner(), 1).get(1).cloned());
    assert_eq!(ending["reason"], "worker_ending");
    assert_eq!(ending["text"], "its worker is being ended, because the head is stopping");
    std::fs::write(cluster.file("go"), "").unwrap();
    stop.wait().success();
}

#[test]
fn a_task_that_finds_no_worker_is_told_why_there_is_none() {
    let cluster = Cluster::untraced();
    let pid = occupy(&cluster);
    cluster.tracer(&["submit", "task", "--no-wait", "demo:my_function"]).success();
    // Where a further worker would keep its spans.
    let session_dir = cluster.runner().session_dir();
    let (spools, elsewhere) = (session_dir.join("spool"), session_dir.join("elsewhere"));
    std::fs::rename(&spools, &elsewhere).unwrap();
    kill(pid, Signal::KILL);
    wait_until("the other one is there", || (cluster.runner().tasks().len() == 2).then_some(()));
    let text = wait_until("another cannot be started", || {
        let reasons = reasons(cluster.runner(), 2);
        let reason =
            reasons.iter().find(|reason| reason["reason"] == "no_worker_ready" && reason["why"].is_string())?;
        Some(reason["text"].as_str()?.to_owned())
    });
    assert!(text.starts_with("no worker is ready: one could not be started"), "{text}");
    assert!(text.contains("No such file") && text.ends_with("; it is tried again every second"), "{text}");
    std::fs::rename(&elsewhere, &spools).unwrap();
    assert_eq!(cluster.wait_for_task(2)["state"], "succeeded");
    cluster.stop().success();
}
