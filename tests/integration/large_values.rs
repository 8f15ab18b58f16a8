//! Large arguments and results: they go by file, and the files go when nobody needs them.

use std::fs;

use rustix::process::Signal;
use serde_json::json;
use tracer::Driver;

use crate::support::{Cluster, kill, wait_until};

const MIB: usize = 1 << 20;

/// How many files of values there are.
fn files(cluster: &Cluster) -> usize {
    fs::read_dir(cluster.temp_dir().join("values")).map_or(0, Iterator::count)
}

#[track_caller]
fn wait_for_files(cluster: &Cluster, count: usize) {
    wait_until(&format!("there are {count} files of values"), || (files(cluster) == count).then_some(()));
}

/// The most memory that the head has used, in bytes.
fn peak_memory_of_head(cluster: &Cluster) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", cluster.head_pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

#[test]
fn large_values_go_both_ways_and_not_through_the_head() {
    let cluster = Cluster::builder().start();
    let mut driver = Driver::connect(&cluster.temp_dir()).unwrap();
    let text = "y".repeat(MIB);
    let echoed = driver.remote("nested_tasks:echo").arg(&text).unwrap().submit().unwrap();
    assert_eq!(driver.get::<String>(echoed).unwrap(), text);
    let before = peak_memory_of_head(&cluster);
    let large = driver.remote("nested_tasks:text_of").arg(100 * MIB).unwrap().submit().unwrap();
    let length = driver.remote("nested_tasks:length_of").arg(&large).unwrap().submit().unwrap();
    assert_eq!(driver.get::<usize>(length).unwrap(), 100 * MIB);
    assert_eq!(driver.get::<String>(large).unwrap().len(), 100 * MIB);
    let grown = peak_memory_of_head(&cluster) - before;
    assert!(grown < 8 * MIB, "the head has grown by {grown} bytes");
    wait_for_files(&cluster, 0);
}

#[test]
fn small_values_need_no_file() {
    let cluster = Cluster::builder().start();
    let mut driver = Driver::connect(&cluster.temp_dir()).unwrap();
    let text = "y".repeat(MIB / 8);
    let echoed = driver.remote("nested_tasks:echo").arg(&text).unwrap().submit().unwrap();
    driver.wait(echoed).unwrap();
    assert_eq!(files(&cluster), 0);
}

#[test]
fn tasks_pass_large_values_to_tasks() {
    for arguments in [["--max-processes=1"], ["--max-processes=3"]] {
        let cluster = Cluster::builder().arg(arguments[0]).start();
        let run = cluster.submit("nested_tasks:passes_large_texts", &[&(3 * MIB).to_string()]).success();
        assert_eq!(run.json(), json!([3 * MIB, 3 * MIB, 3 * MIB]));
        wait_for_files(&cluster, 0);
    }
}

#[test]
fn a_large_result_is_kept_for_get_until_the_head_ends() {
    let cluster = Cluster::builder().start();
    let run = cluster.submit("nested_tasks:text_of", &[&MIB.to_string()]).success();
    assert_eq!(run.json().as_str().unwrap().len(), MIB);
    assert_eq!(cluster.task(1)["result"].as_str().unwrap().len(), MIB);
    assert_eq!(files(&cluster), 1);
    cluster.stop().success();
    assert_eq!(files(&cluster), 0);
    cluster.start_head(&[]).success();
    let get = cluster.tracer(&["get", "1"]).success();
    get.stderr_contains("its result cannot be shown: the value, of 1048581 bytes, is not kept any more");
}

#[test]
fn after_a_head_that_was_killed_what_is_needed_is_kept_and_the_rest_goes() {
    let cluster = Cluster::builder().start();
    let mut driver = Driver::connect(&cluster.temp_dir()).unwrap();
    let go = cluster.file("go");
    let text = "z".repeat(MIB);
    let running = driver.remote("nested_tasks:length_after").arg(&go).unwrap().arg(&text).unwrap().submit().unwrap();
    let queued = driver.remote("nested_tasks:length_of").arg(&text).unwrap().submit().unwrap();
    let [running, queued] = [&running, &queued].map(|task| driver.accepted(task).unwrap().0);
    wait_until("one runs", || (cluster.task(running)["state"] == "running").then_some(()));
    fs::write(cluster.temp_dir().join("values/1-2-3"), "left by a process that was killed").unwrap();
    kill(cluster.worker_pids()[0], Signal::STOP);
    cluster.kill_head();
    fs::write(go, "").unwrap();
    assert_eq!(files(&cluster), 3);
    cluster.start_head(&[]).success();
    let task = cluster.wait_for_task(queued);
    assert_eq!((&task["state"], &task["result"]), (&json!("succeeded"), &json!(MIB)), "{task}");
    cluster.wait_for_task(running);
    wait_for_files(&cluster, 0);
}

#[test]
fn a_folder_that_cannot_be_written_to_is_said() {
    let cluster = Cluster::builder().start();
    let values = cluster.temp_dir().join("values");
    fs::remove_dir(&values).unwrap();
    let run = cluster.submit("nested_tasks:text_of", &[&MIB.to_string()]).status(1);
    run.stderr_contains("the result has 1048581 bytes, and cannot be written to `");
    let mut driver = Driver::connect(&cluster.temp_dir()).unwrap();
    let error = driver.remote("nested_tasks:echo").arg("y".repeat(MIB)).unwrap().submit().unwrap_err();
    assert!(error.to_string().starts_with("a large argument cannot be written to a file in `"), "{error}");
}
