//! Output of a task while it runs: at its submitter, line by line, and in the logs.

use std::fs;

use rustix::process::Signal;
use serde_json::json;

use super::support::{Background, Cluster, wait_until};

/// Submits a task that prints two lines on each output and a last one without an end, and runs until the returned file exists.
#[track_caller]
fn submit_printing(cluster: &Cluster, text: &str) -> (Background, std::path::PathBuf) {
    let released = cluster.file(&format!("{text}-released"));
    let arguments = [json!(text).to_string(), "2".into(), json!(released).to_string()];
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    (cluster.submit_in_background("misbehaving_tasks:prints_and_waits", &arguments), released)
}

/// Returns the lines that begin like this, without the beginning.
fn lines_of(text: &str, prefix: &str) -> Vec<String> {
    text.lines().filter_map(|line| line.strip_prefix(prefix)).map(String::from).collect()
}

#[test]
fn lines_appear_while_the_task_runs_and_stay_in_the_logs() {
    let cluster = Cluster::untraced();
    let [pid] = cluster.worker_pids()[..] else { panic!("one worker") };
    let prefix = cluster.prefix("prints_and_waits", pid);
    let (mut submission, released) = submit_printing(&cluster, "a");
    for line in ["a out 1", "a out 2", "a err 1", "a err 2"] {
        submission.wait_for_stderr(&format!("{prefix}{line}\n"));
    }
    assert!(submission.is_running(), "the task was not released");
    fs::write(released, "").expect("the folder is ours");
    let run = submission.wait().success().stdout("null\n");
    let mut lines = lines_of(&run.stderr_text(), &prefix);
    lines.sort();
    assert_eq!(lines, ["a err 1", "a err 2", "a out 1", "a out 2", "a without an end"]);
    assert_eq!(run.stderr_text().lines().count(), 5, "nothing else is said: {run:?}");

    let log = cluster.runner().session_dir().join(format!("logs/worker-1-{pid}.log"));
    let log = fs::read_to_string(log).expect("the worker has a log");
    for line in ["a out 1\n", "a out 2\n", "a err 1\n", "a err 2\n", "a without an end"] {
        assert!(log.contains(line), "`{line}` in {log}");
    }
}

#[test]
fn each_submitter_sees_the_lines_of_its_own_task() {
    let cluster = Cluster::builder().workers(2).start();
    let (a, a_released) = submit_printing(&cluster, "a");
    let (b, b_released) = submit_printing(&cluster, "b");
    a.wait_for_stderr("a out 2\n");
    b.wait_for_stderr("b out 2\n");
    fs::write(a_released, "").and_then(|()| fs::write(b_released, "")).expect("the folder is ours");
    let (a, b) = (a.wait().success(), b.wait().success());
    for (run, own, other) in [(&a, "a ", "b "), (&b, "b ", "a ")] {
        let text = run.normalized(&run.stderr_text());
        let lines = lines_of(&text, &cluster.prefix("prints_and_waits", "<pid>"));
        assert_eq!(lines.len(), 5, "{run:?}");
        assert!(lines.iter().all(|line| line.starts_with(own) && !line.starts_with(other)), "{run:?}");
    }
    let pid =
        |text: &str| text.split_once("pid=").map(|(_, rest)| rest.split(')').next().unwrap_or_default().to_owned());
    assert_ne!(pid(&a.stderr_text()), pid(&b.stderr_text()), "two workers");
}

#[test]
fn tasks_one_after_the_other_on_one_worker_keep_their_lines_apart() {
    let cluster = Cluster::untraced();
    for text in ["a", "b", "c"] {
        let (submission, released) = submit_printing(&cluster, text);
        fs::write(released, "").expect("the folder is ours");
        let run = submission.wait().success();
        let said = run.normalized(&run.stderr_text());
        let lines = lines_of(&said, &cluster.prefix("prints_and_waits", "<pid>"));
        assert_eq!(lines.len(), 5, "{run:?}");
        assert!(lines.iter().all(|line| line.starts_with(text)), "{run:?}");
    }
}

#[test]
fn bytes_that_are_no_text_arrive_as_they_are() {
    let cluster = Cluster::untraced();
    let run = cluster.submit("misbehaving_tasks:prints_bytes", &["[104,105,255,254,0,10,192]"]).success();
    let said = &run.output.stderr;
    let place = said.windows(8).position(|bytes| bytes == b") hi\xff\xfe\0\n");
    assert!(place.is_some(), "{run:?}");
    assert!(said.ends_with(b") \xc0\n"), "{run:?}");
}

#[test]
fn without_waiting_the_output_is_in_the_logs_alone() {
    let cluster = Cluster::untraced();
    let run = cluster.submit("misbehaving_tasks:prints_bytes", &["[104,105,10]", "--no-wait"]).success().stdout("1\n");
    if differs!() {
        assert!(!run.stderr_text().contains("pid="), "{run:?}");
    } else {
        run.stderr("");
    }
    cluster.wait_for_task(1);
    let [pid] = cluster.worker_pids()[..] else { panic!("one worker") };
    let log = cluster.runner().session_dir().join(format!("logs/worker-1-{pid}.log"));
    assert_eq!(fs::read_to_string(log).expect("the worker has a log"), "hi\n");
}

#[test]
fn a_program_writes_its_standard_output_raw_and_its_standard_error_by_lines() {
    let cluster = Cluster::untraced();
    let [pid] = cluster.worker_pids()[..] else { panic!("one worker") };
    let script = r"printf 'a\nb\377'; printf 'c\nd' >&2";
    let run = cluster.tracer(&["submit", "command", "--", "sh", "-c", script]).success();
    assert_eq!(run.output.stdout, b"a\nb\xff");
    let prefix = cluster.prefix("sh", pid);
    assert_eq!(run.stderr_text(), format!("{prefix}c\n{prefix}d\n"));
}

#[test]
fn much_output_arrives_whole_and_in_order() {
    let cluster = Cluster::untraced();
    let run = cluster.tracer(&["submit", "command", "--", "seq", "1", "300000"]).success();
    let expected: String = (1..=300_000).map(|number| format!("{number}\n")).collect();
    let is_whole = run.stdout_text() == expected;
    if differs!() {
        assert!(is_whole || run.stderr_text().contains(" of output did not arrive"), "{}", run.stderr_text());
        return;
    }
    let run = run.stderr("");
    assert!(is_whole, "{} bytes came, {} were written", run.output.stdout.len(), expected.len());
}

#[test]
fn what_a_worker_wrote_before_it_died_is_shown() {
    let cluster = Cluster::untraced();
    let script = "echo last words; echo and more >&2; kill -KILL $PPID; sleep 1000";
    cluster
        .tracer(&["submit", "command", "--crash-limit=0", "--", "sh", "-c", script])
        .status(1)
        .stdout("last words\n")
        .stderr_contains(&format!("{}and more\n", cluster.prefix("sh", "<pid>")))
        .stderr_contains("its worker (pid <pid>) was killed by SIGKILL (signal 9)\n");
}

/// More than the head keeps for a driver that does not read.
const PLENTY: usize = 24 << 20;

#[test]
fn a_task_waits_for_a_submitter_that_takes_its_time_and_nothing_is_lost() {
    if differs!() {
        return;
    }
    let cluster = Cluster::untraced();
    let [pid] = cluster.worker_pids()[..] else { panic!("one worker") };
    let released = cluster.file("released");
    let script = r#"echo begun; while [ ! -e "$0" ]; do sleep 0.01; done; head -c "$1" /dev/zero"#;
    let (gate, length) = (released.display().to_string(), PLENTY.to_string());
    let submission = cluster.tracer_in_background(&["submit", "command", "--", "sh", "-c", script, &gate, &length]);
    submission.wait_for_stdout("begun\n");
    submission.signal(Signal::STOP);
    fs::write(released, "").expect("the folder is ours");

    let log = cluster.session_dir().join(format!("logs/worker-1-{pid}.log"));
    let (mut seen, mut unchanged) = (0, 0);
    wait_until("the task has ended, or its output is not read any more", || {
        // Each answer is a turn of the head, which would have read what there was.
        let has_ended = cluster.task(1)["state"] != "running";
        let size = fs::metadata(&log).map_or(0, |log| log.len());
        unchanged = if size == seen { unchanged + 1 } else { 0 };
        seen = size;
        (has_ended || (unchanged == 20 && size > 1 << 20)).then_some(())
    });
    assert_eq!(cluster.task(1)["state"], "running", "it waits to be read");
    // Nobody else does.
    cluster.tracer(&["status"]).success();

    submission.signal(Signal::CONT);
    let run = submission.wait();
    assert_eq!(run.stderr_text(), "");
    let run = run.success();
    assert_eq!(run.stdout_text().len(), "begun\n".len() + PLENTY);
}

#[test]
fn a_task_whose_submitter_is_killed_while_it_does_not_read_goes_on() {
    let cluster = Cluster::untraced();
    let script = r#"echo begun; head -c "$0" /dev/zero; echo done > done"#;
    let length = PLENTY.to_string();
    let submission = cluster.tracer_in_background(&["submit", "command", "--", "sh", "-c", script, &length]);
    submission.wait_for_stdout("begun\n");
    submission.signal(Signal::STOP);
    submission.signal(Signal::KILL);
    cluster.wait_for_file(&cluster.file("done"));
    assert_eq!(cluster.wait_for_task(1)["state"], "succeeded");
}
