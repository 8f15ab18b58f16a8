//! Large arguments and results: they go by file, and the files go when nobody needs them.

use std::fs;

use rustix::process::Signal;
use serde_json::json;

use super::support::{Cluster, Driver, kill, wait_until};

const MIB: usize = 1 << 20;

/// Returns the number of files of values.
fn files(cluster: &Cluster) -> usize {
    fs::read_dir(cluster.temp_dir().join("values")).map_or(0, Iterator::count)
}

#[track_caller]
fn wait_for_files(cluster: &Cluster, count: usize) {
    wait_until(&format!("there are {count} files of values"), || (files(cluster) == count).then_some(()));
}

/// Returns the number of spare files for the next values.
fn spare_files(cluster: &Cluster) -> usize {
    fs::read_dir(cluster.temp_dir().join("spare_values")).map_or(0, Iterator::count)
}

/// Returns the most memory that the head has used, in bytes.
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
fn what_is_decoded_from_a_large_result_may_stay_in_its_file() {
    let cluster = Cluster::builder().start();
    let mut driver = Driver::connect(&cluster.temp_dir()).unwrap();
    let task = driver.remote("nested_tasks:bytes_of").arg(3 * MIB).unwrap().submit().unwrap();
    let value = driver.get_value(task).unwrap();
    let bytes: &[u8] = value.decode().unwrap();
    assert_eq!(bytes, vec![0; 3 * MIB]);
    let range = value.as_ptr_range();
    assert!(range.contains(&bytes.as_ptr()), "it is not copied");
    wait_for_files(&cluster, 0);
    for number in 0..3 {
        let other = "y".repeat(3 * MIB + number);
        let echoed = driver.remote("nested_tasks:echo").arg(&other).unwrap().submit().unwrap();
        assert_eq!(driver.get_value(echoed).unwrap().decode::<&str>().unwrap(), other);
    }
    assert_eq!(bytes, vec![0; 3 * MIB], "no other value is written to its file");
    let small = driver.remote("nested_tasks:bytes_of").arg(3).unwrap().submit().unwrap();
    assert_eq!(driver.get_value(small).unwrap().decode::<&[u8]>().unwrap(), [0; 3]);
}

#[test]
fn what_is_large_only_together_goes_by_file_too() {
    let cluster = Cluster::builder().start();
    let mut driver = Driver::connect(&cluster.temp_dir()).unwrap();
    let count = 300_000_u64;
    let task = driver.remote("nested_tasks:numbers").arg(count).unwrap().submit().unwrap();
    let value = driver.get_value(task).unwrap();
    let (numbers, texts): (Vec<u64>, Vec<&str>) = value.decode().unwrap();
    assert!(numbers.iter().copied().eq(0..count));
    assert!(
        texts.iter().zip(0..count).all(|(text, number)| text.parse() == Ok(number)) && texts.len() == numbers.len()
    );
}

#[test]
fn an_argument_that_is_not_submitted_leaves_no_file() {
    let cluster = Cluster::builder().start();
    let mut driver = Driver::connect(&cluster.temp_dir()).unwrap();
    let text = "y".repeat(MIB);
    let submission = driver.remote("nested_tasks:echo").arg(&text).unwrap();
    assert_eq!(files(&cluster), 1);
    drop(submission);
    assert_eq!(files(&cluster), 0);
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
fn a_large_result_is_kept_for_get_also_over_a_stop() {
    let cluster = Cluster::builder().start();
    let run = cluster.submit("nested_tasks:text_of", &[&MIB.to_string()]).success();
    assert_eq!(run.json().as_str().unwrap().len(), MIB);
    assert_eq!(cluster.task(1)["result"].as_str().unwrap().len(), MIB);
    assert_eq!(files(&cluster), 1);
    let mut driver = Driver::connect(&cluster.temp_dir()).unwrap();
    let echoed = driver.remote("nested_tasks:echo").arg("y".repeat(MIB)).unwrap().submit().unwrap();
    drop(driver.get_value(echoed).unwrap());
    wait_until("files are kept for the next values", || (spare_files(&cluster) > 0).then_some(()));
    drop(driver);
    cluster.stop().success();
    assert_eq!((files(&cluster), spare_files(&cluster)), (1, 0));
    cluster.start_head(&[]).success();
    assert_eq!(cluster.task(1)["result"].as_str().map(str::len), Some(MIB));
}

#[test]
fn after_a_head_that_was_killed_what_is_needed_is_kept_and_the_rest_goes() {
    let cluster = Cluster::builder().start();
    let mut driver = Driver::connect(&cluster.temp_dir()).unwrap();
    let go = cluster.file("go");
    let text = "z".repeat(MIB);
    let running = driver.remote("nested_tasks:length_after").arg(&go).unwrap().arg(&text).unwrap().submit().unwrap();
    let running = driver.accepted(&running).unwrap().0;
    wait_until("one runs", || (cluster.task(running)["state"] == "running").then_some(()));
    let queued = driver.remote("nested_tasks:length_of").arg(&text).unwrap().submit().unwrap();
    let queued = driver.accepted(&queued).unwrap().0;
    let arguments: Vec<_> =
        fs::read_dir(cluster.temp_dir().join("values")).unwrap().map(|file| file.unwrap().path()).collect();
    fs::write(cluster.temp_dir().join("values/1-2-3"), "left by a process that was killed").unwrap();
    if !differs!() {
        kill(cluster.worker_pids()[0], Signal::STOP);
    }
    cluster.kill_head();
    assert!(arguments.len() == 2 && arguments.iter().all(|file| file.exists()), "{arguments:?}");
    fs::write(go, "").unwrap();
    cluster.start_head(&[]).success();
    let task = cluster.wait_for_task(queued);
    assert_eq!((&task["state"], &task["result"]), (&json!("succeeded"), &json!(MIB)), "{task}");
    cluster.wait_for_task(running);
    wait_for_files(&cluster, 0);
}

#[test]
fn a_folder_that_cannot_be_written_to_is_said() {
    let cluster = Cluster::builder().start();
    let values = [cluster.runner(), &cluster].map(|head| head.temp_dir().join("values"));
    fs::remove_dir(&values[0]).unwrap();
    let run = cluster.submit("nested_tasks:text_of", &[&MIB.to_string()]).status(1);
    run.stderr_contains("the result has 1048581 bytes, and cannot be written to `");
    // It may be the same one.
    let _ = fs::remove_dir(&values[1]);
    let mut driver = Driver::connect(&cluster.temp_dir()).unwrap();
    let error = driver.remote("nested_tasks:echo").arg("y".repeat(MIB)).err().unwrap();
    assert!(error.to_string().starts_with("a large argument cannot be written to a file in `"), "{error}");
}
