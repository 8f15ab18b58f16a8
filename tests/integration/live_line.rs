//! The line on a terminal that says what a single task is at while its submitter waits.

use std::fs;

use serde_json::{Value, json};

use crate::support::{Cluster, in_a_terminal, run_in_a_terminal, wait_until};

/// Returns the lines that a terminal shows in the end, for what such commands write: text, line ends, and lines that are cleared.
fn lines_shown(written: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    let written = written.replace("\r\n", "\n");
    for part in written.split_inclusive('\n') {
        for (index, piece) in part.trim_end_matches('\n').split("\r\u{1b}[2K").enumerate() {
            let line = lines.last_mut().expect("there is one");
            if index > 0 {
                line.clear();
            }
            line.push_str(piece);
        }
        if part.ends_with('\n') {
            lines.push(String::new());
        }
    }
    lines
}

/// Submits a task that runs until `released` is there.
fn waiting_task(cluster: &Cluster, started: &str, released: &str, more: &[&str]) -> std::process::Command {
    let argument = |name: &str| json!(cluster.file(name)).to_string();
    let mut command = cluster.command(&["submit", "task", "misbehaving_tasks:waits_in_nested_spans"]);
    command.args([argument(started), argument(released)]).args(more);
    command
}

#[test]
fn a_task_that_runs_or_waits_says_so_on_a_terminal_and_nowhere_else() {
    let cluster = Cluster::untraced();
    let release = |name: &str| fs::write(cluster.file(name), "").expect("the test's folder can be written to");
    // Begun before the others, so that there would be something on it by the time that there is on theirs.
    let (mut json, json_screen) =
        run_in_a_terminal(waiting_task(&cluster, "started", "released", &["--format", "json"]));
    cluster.wait_for_file(&cluster.file("started"));
    let piped = cluster.spawn(waiting_task(&cluster, "never", "released", &[]));
    wait_until("the second task waits", || (cluster.tasks().len() == 2).then_some(()));
    let (mut shown, screen) = run_in_a_terminal(waiting_task(&cluster, "never", "released", &[]));
    let text = || screen.lock().expect("the reader is well").clone();
    let line = "task 3 (misbehaving_tasks.waits_in_nested_spans) waiting ";
    wait_until("it is said that the third waits", || text().contains(line).then_some(()));
    wait_until("it is said why", || text().contains("before it in the queue").then_some(()));
    assert_eq!(*json_screen.lock().expect("the reader is well"), "");
    assert_eq!(piped.stderr_text(), "");
    release("released");
    wait_until("all end", || {
        let is_over = |child: &mut std::process::Child| child.try_wait().expect("it can be waited for");
        is_over(&mut json).and(is_over(&mut shown))
    });
    assert_eq!(piped.wait().success().stderr_text(), "");
    wait_until("only the result is left", || {
        let lines = lines_shown(&text());
        (lines.len() == 2 && lines[0].parse::<u32>().is_ok() && lines[1].is_empty()).then_some(())
    });
    let json = wait_until("the other's is whole", || {
        serde_json::from_str::<Value>(&json_screen.lock().expect("the reader is well")).ok()
    });
    assert_eq!(json["id"], 1);
}

#[test]
fn the_line_leaves_what_a_command_writes_as_it_is() {
    let cluster = Cluster::untraced();
    let script = "echo whole; echo error >&2; while [ ! -e one ]; do sleep 0.01; done; printf 'half '; \
                  while [ ! -e two ]; do sleep 0.01; done; echo line";
    let (mut child, screen) = in_a_terminal(&cluster, &["submit", "command", "--", "sh", "-c", script]);
    let text = || screen.lock().expect("the reader is well").clone();
    let line = "task 1 (sh) running";
    wait_until("the line is there", || text().contains(line).then_some(()));
    let release = |name: &str| fs::write(cluster.file(name), "").expect("the test's folder can be written to");
    release("one");
    wait_until("half a line is there", || text().contains("half ").then_some(()));
    // Another submission's line says that there was time for one behind the half.
    let (mut other, other_screen) = in_a_terminal(
        &cluster,
        &["submit", "command", "--num-cpus=0", "--", "sh", "-c", "while [ ! -e two ]; do sleep 0.01; done"],
    );
    wait_until("another line is there", || {
        other_screen.lock().expect("the reader is well").contains("task 2 (sh)").then_some(())
    });
    assert!(text().ends_with("half "), "{:?}", text());
    release("two");
    for child in [&mut child, &mut other] {
        assert!(wait_until("it ends", || child.try_wait().expect("it can be waited for")).success());
    }
    wait_until("only what it wrote is left", || {
        let lines = lines_shown(&text());
        let is_error = |line: &String| line.starts_with("(sh pid=") && line.ends_with(") error");
        let others: Vec<&String> = lines.iter().filter(|line| !is_error(line)).collect();
        (others == ["whole", "half line", ""] && lines.len() == 4).then_some(())
    });
}

#[test]
fn a_ctrl_c_is_answered_above_the_line() {
    let cluster = Cluster::untraced();
    let (mut child, screen) = in_a_terminal(&cluster, &["submit", "command", "--", "sleep", "100"]);
    let text = || screen.lock().expect("the reader is well").clone();
    wait_until("the line is there", || text().contains("task 1 (sleep) running").then_some(()));
    crate::support::kill(child.id(), rustix::process::Signal::INT);
    let status = wait_until("it ends", || child.try_wait().expect("it can be waited for"));
    assert_eq!(status.code(), Some(130));
    wait_until("no line is left", || {
        let lines = lines_shown(&text());
        let is_clean = lines[0].starts_with("cancelling task 1") && !lines.iter().any(|line| line.contains("running"));
        is_clean.then_some(())
    });
}
