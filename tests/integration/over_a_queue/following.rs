//! Output of tasks of a queue, at those who follow it: what only a queue does.

use std::fs;

use rustix::process::Signal;
use serde_json::json;

use super::support::{Cluster, wait_until};

/// Lines on each output, together more than the head keeps for a driver that does not read.
const LINES: u64 = 60_000;

#[test]
fn what_a_submitter_that_takes_its_time_misses_is_counted_and_is_in_the_log_of_the_node() {
    let cluster = Cluster::untraced();
    if cluster.runner().folder() == cluster.folder() {
        return;
    }
    let [pid] = cluster.worker_pids()[..] else { panic!("one worker") };
    let (text, released) = ("x".repeat(100), cluster.file("released"));
    let arguments = [json!(text), json!(LINES), json!(released)].map(|argument| argument.to_string());
    let submission =
        cluster.submit_in_background("misbehaving_tasks:prints_and_waits", &arguments.each_ref().map(String::as_str));
    let prefix = cluster.prefix("prints_and_waits", pid);
    submission.wait_for_stderr(&format!("{prefix}{text} out 1\n"));
    submission.signal(Signal::STOP);
    let log = cluster.runner().session_dir().join(format!("logs/worker-1-{pid}.log"));
    let has_written = |log: String| log.matches('\n').count() as u64 == 2 * LINES && log.contains(" without an end");
    wait_until("it has written all, and waits for nobody who reads", || {
        fs::read_to_string(&log).is_ok_and(has_written).then_some(())
    });
    fs::write(released, "").expect("the folder is ours");
    cluster.wait_for_task(1);
    submission.signal(Signal::CONT);
    let run = submission.wait().success().stdout("null\n");
    let said = run.stderr_text();
    let node = cluster.runner().status()["node_id"].as_str().expect("it has a name").to_owned();
    let behind = format!(" of output did not arrive; they are in the log of node `{node}`");
    let lost = said.lines().filter_map(|line| line.strip_prefix("note: ")?.strip_suffix(&behind)?.split_once(' '));
    let lost: u64 = lost.map(|(count, _)| count.parse::<u64>().expect("a count")).sum();
    let is_whole = |line: &str| {
        let number =
            line.strip_prefix(&prefix).and_then(|line| line.strip_prefix(&text)).and_then(|rest| rest.get(5..));
        number.is_some_and(|number| number.parse::<u64>().is_ok())
    };
    let arrived = said.lines().filter(|line| is_whole(line)).count() as u64;
    assert!(lost > 0 && arrived > 0, "{lost} lines are missing, {arrived} arrived");
    // A line is cut where something is missing, and its rest counted.
    assert!(
        (2 * LINES - 100..=2 * LINES + 100).contains(&(lost + arrived)),
        "{lost} lines are missing, {arrived} arrived"
    );
}

#[test]
fn a_task_whose_submitter_is_gone_goes_on_and_its_next_driver_hears_of_its_end() {
    let cluster = Cluster::untraced();
    if cluster.runner().folder() == cluster.folder() {
        return;
    }
    let [pid] = cluster.worker_pids()[..] else { panic!("one worker") };
    let released = cluster.file("released");
    let arguments = [json!("a"), json!(2), json!(released)].map(|argument| argument.to_string());
    let submission =
        cluster.submit_in_background("misbehaving_tasks:prints_and_waits", &arguments.each_ref().map(String::as_str));
    submission.wait_for_stderr(&format!("{}a err 2\n", cluster.prefix("prints_and_waits", pid)));
    submission.signal(Signal::KILL);
    fs::write(released, "").expect("the folder is ours");
    assert_eq!(cluster.wait_for_task(1)["state"], "succeeded");
}
