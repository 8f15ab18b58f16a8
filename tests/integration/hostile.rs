//! A task can hurt itself only: whatever it does to what its worker shares with the head, it ends no head, is not started again for nothing, is
//! not taken for a fault of the hook, and the tasks of others go on.

use std::fs;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Cluster, HOOK, is_alive, kill, wait_until};

/// Misdeeds of a task at its spool, its rings, its descriptors and its sockets.
const MISDEEDS: &[&str] = &[
    "cuts the spool",
    "cuts the spool in half",
    "punches holes into the spool",
    "removes the spool",
    "removes the spool and the grants",
    "fills the spool with zeroes",
    "fills the spool with ones",
    "fills the spool with bits",
    "fills the rings",
    "empties the rings",
    "writes to the sockets",
    "writes a lot to the sockets",
    "shuts the sockets down",
    "closes all descriptors",
    "opens other files in their place",
    "reads from the sockets",
    "removes the spool and the grants+fills the spool with ones",
    "cuts the spool+closes all descriptors",
];

const ENDS: &[&str] = &["returns", "crashes"];

fn lines(path: &std::path::Path) -> usize {
    fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

/// Submits a task that may be started once only, and returns its id.
#[track_caller]
fn submit_once(cluster: &Cluster, target: &str, arguments: &[&str]) -> u64 {
    let arguments: Vec<_> = arguments.iter().map(|argument| json!(argument).to_string()).collect();
    let mut all: Vec<_> = arguments.iter().map(String::as_str).collect();
    all.extend(["--crash-limit=0", "--no-wait", "--format=json"]);
    cluster.submit(target, &all).success().json()["id"].as_u64().expect("a task has an id")
}

/// Nobody but the task itself feels what it does.
#[track_caller]
fn misbehave(cluster: &Cluster, round: usize, misdeed: &str, end: &str) {
    let head = cluster.head_pid();
    let [own, others] = ["own", "others"].map(|name| cluster.file(&format!("{name}-{round}")));
    let own_text = own.display().to_string();
    let task = submit_once(cluster, "hostile_tasks:misbehaves", &[misdeed, end, &own_text]);
    let others_text = others.display().to_string();
    let innocent: Vec<_> = (0..4).map(|_| submit_once(cluster, "hostile_tasks:behaves", &[&others_text])).collect();
    let what = format!("a task that {misdeed} and {end}");
    for &id in &innocent {
        let ended = cluster.wait_for_task(id);
        assert_eq!(ended["state"], "succeeded", "beside {what}: {ended}");
    }
    let ended = cluster.wait_for_task(task);
    assert_eq!((lines(&own), lines(&others)), (1, innocent.len()), "{what}: {ended}");
    assert!(ended["state"] == "failed" || end == "returns", "{what}: {ended}");
    assert_eq!(cluster.head_pid(), head, "{what} has ended the head");
    assert!(is_alive(head), "{what} has ended the head");
    let status = cluster.status();
    let warnings = status["warnings"].to_string();
    assert!(!warnings.contains("hook") && !warnings.contains("no worker"), "{what}: {warnings}");
}

#[test]
fn whatever_a_task_does_to_what_its_worker_shares_it_hurts_itself_only() {
    let cluster = Cluster::builder().hook(HOOK).env("TRACER_TEST_SETTING", "look_ms=50").start();
    let all = MISDEEDS.iter().flat_map(|misdeed| ENDS.iter().map(move |end| (*misdeed, *end)));
    for (round, (misdeed, end)) in all.enumerate() {
        misbehave(&cluster, round, misdeed, end);
    }
    let status = cluster.status();
    let warnings = status["warnings"].to_string();
    assert!(warnings.contains("a worker was replaced, because"), "{warnings}");
    assert!(warnings.contains("a task wrote over the spool of its worker"), "{warnings}");
    cluster.spans().assert_whole(&[]);
}

#[test]
fn without_a_hook_it_is_the_same() {
    let cluster = Cluster::builder().workers(2).env("TRACER_TEST_SETTING", "look_ms=50").start();
    for (round, misdeed) in ["cuts the spool", "fills the spool with bits", "removes the spool"].iter().enumerate() {
        misbehave(&cluster, round, misdeed, "crashes");
    }
}

/// The attempt was given to a worker, so the next head charges it, whatever is left of the spool.
#[test]
fn a_task_that_wipes_its_claims_and_takes_the_head_along_is_not_started_for_ever() {
    for misdeed in ["cuts the spool", "fills the spool with ones", "removes the spool", "punches holes into the spool"]
    {
        let cluster = Cluster::traced();
        let own = cluster.file("own");
        let arguments = [misdeed, &own.display().to_string()];
        let task = submit_once(&cluster, "hostile_tasks:misbehaves_and_waits", &arguments);
        wait_until("it has done it", || (lines(&own) == 2).then_some(()));
        cluster.kill_head();
        cluster.start_head(&[]).success();
        let ended = cluster.wait_for_task(task);
        assert_eq!((&ended["state"], lines(&own)), (&json!("failed"), 2), "{misdeed}: {ended}");
    }
}

#[test]
fn a_child_of_fork_that_returns_takes_no_task() {
    let cluster = Cluster::traced();
    let worker = cluster.worker_pids()[0];
    for round in 1..=3 {
        let path = json!(cluster.file("own")).to_string();
        let ran_in = cluster.submit("hostile_tasks:forks", &[&path]).success().json();
        assert_eq!((ran_in.as_u64(), lines(&cluster.file("own"))), (Some(worker.into()), round));
        for _ in 0..10 {
            assert_eq!(cluster.submit("hostile_tasks:runs_in", &[]).success().json(), json!(worker));
        }
    }
    let status = cluster.status();
    assert_eq!(status["spans"]["forked"], 3, "{status}");
    let text = cluster.tracer(&["status"]).success().stdout_text();
    assert!(text.contains("3 spans begun in processes that tasks had forked"), "{text}");
    let logs = fs::read_dir(cluster.session_dir().join("logs")).expect("there are logs").flatten();
    let said = logs.filter_map(|log| fs::read_to_string(log.path()).ok()).collect::<String>();
    assert!(said.contains("was forked by a task and came back from the task's function"), "{said}");
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    assert_eq!((spans.all_named("of the parent").len(), spans.all_named("of the child").len()), (3, 0));
    assert_eq!(cluster.worker_pids(), [worker]);
}

/// Nobody waits for ever for a head that cannot answer.
#[test]
fn a_head_that_was_stopped_is_not_waited_for() {
    let cluster = Cluster::untraced();
    let head = cluster.head_pid();
    kill(head, Signal::STOP);
    let commands: [&[&str]; 3] = [&["status"], &["list", "tasks"], &["stop", "--force"]];
    for command in commands {
        let run = cluster.tracer(command).status(1);
        run.stderr_contains(&format!("the head (pid {head}) was stopped by a signal")).stderr_contains("kill -CONT");
    }
    kill(head, Signal::CONT);
    cluster.tracer(&["status"]).success();
}

/// It is counted in looks, and a head that is asked nothing looks no more.
#[test]
fn a_connection_that_says_nothing_is_closed() {
    let cluster = Cluster::builder().env("TRACER_TEST_SETTING", "look_ms=20").start();
    let mut silent = UnixStream::connect(cluster.session_dir().join("head.sock")).expect("the head accepts");
    silent.set_read_timeout(Some(Duration::from_secs(30))).expect("it is a socket");
    assert_eq!(silent.read(&mut [0; 1]).expect("it is closed and not waited for"), 0);
    assert!(cluster.head_log().contains("it sent no hello"));
}

/// A worker that ends its task when its head is gone already leaves its claims to the next head.
#[test]
fn a_worker_that_outlives_its_head_for_a_moment_leaves_its_claims() {
    for _ in 0..6 {
        let cluster = Cluster::traced();
        let own = cluster.file("own");
        let task = submit_once(&cluster, "hostile_tasks:notes_and_sleeps", &[&own.display().to_string()]);
        let head = cluster.head_pid();
        wait_until("it has begun", || (lines(&own) == 1).then_some(()));
        kill(head, Signal::KILL);
        wait_until("the head is gone", || (!is_alive(head)).then_some(()));
        cluster.start_head(&[]).success();
        let ended: Value = cluster.wait_for_task(task);
        assert_eq!(lines(&own), 1, "it may be started once only: {ended}");
    }
}

/// The same, with all the time that it needs: its guard, which would end it, is stopped.
#[test]
fn a_worker_that_ends_in_good_order_without_its_head_leaves_its_claims() {
    let cluster = Cluster::builder().hook(HOOK).workers(1).start();
    let (own, released) = (cluster.file("own"), cluster.file("released"));
    let arguments = [own.display().to_string(), released.display().to_string()];
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let task = submit_once(&cluster, "hostile_tasks:notes_and_outlives_its_head", &arguments);
    wait_until("it has begun", || (lines(&own) == 1).then_some(()));
    let (worker, guard) = (cluster.worker_pids()[0], parent_of(cluster.head_pid()));
    kill(guard, Signal::STOP);
    cluster.kill_head();
    assert!(is_alive(worker), "the task is at it");
    fs::write(&released, "").expect("the folder is ours");
    wait_until("the worker has ended by itself", || (!is_alive(worker)).then_some(()));
    kill(guard, Signal::CONT);
    wait_until("the guard has ended", || (!is_alive(guard)).then_some(()));
    cluster.start_head(&[]).success();
    let ended: Value = cluster.wait_for_task(task);
    assert_eq!(lines(&own), 1, "it may be started once only: {ended}");
}

fn parent_of(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).expect("a process has a parent");
    parent.trim().parse().expect("the parent is a number")
}

/// Output that nobody reads fills no disk, and keeps no task waiting.
#[test]
fn the_logs_of_a_session_are_bounded() {
    let cluster = Cluster::builder().workers(2).arg("--max-log-size=1MiB").start();
    let script = "yes 'a line of a log' | head -c 8M";
    for _ in 0..3 {
        let submit = ["submit", "command", "--no-wait", "--", "sh", "-c", script];
        cluster.tracer(&submit).success();
    }
    (1..=3).for_each(|id| assert_eq!(cluster.wait_for_task(id)["state"], "succeeded"));
    let logs = || fs::read_dir(cluster.session_dir().join("logs")).expect("there are logs").flatten();
    let size: u64 = logs().map(|log| log.metadata().map_or(0, |metadata| metadata.len())).sum();
    assert!((256 << 10..=(1 << 20) + 4096).contains(&size), "{size} bytes of logs");
    let texts: Vec<_> = logs().filter_map(|log| fs::read_to_string(log.path()).ok()).collect();
    assert!(texts.iter().any(|text| text.contains("of older output were dropped here")), "it says so");
    let warnings = cluster.status()["warnings"].to_string();
    assert!(
        warnings.contains("of output of workers were dropped") && warnings.contains("--max-log-size"),
        "{warnings}"
    );
    cluster.stop().success();
}

#[test]
fn a_bound_on_logs_that_holds_nothing_is_refused() {
    let (_cluster, run) = Cluster::builder().arg("--max-log-size=1KiB").try_start();
    run.status(2).stderr_contains("--max-log-size").stderr_contains("expected at least 1 MiB, found 1 KiB");
}
