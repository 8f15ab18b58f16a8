//! `tracer top`, on a terminal.

use std::fs;
use std::io::Write;

use rustix::process::Signal;
use serde_json::json;

use crate::support::{Cluster, type_in_a_terminal, wait_until};

/// The escape sequences that give a terminal back: its first screen, and the cursor.
const GIVEN_BACK: [&str; 2] = ["\u{1b}[?1049l", "\u{1b}[?25h"];

#[test]
fn it_shows_what_runs_and_what_waits_and_gives_the_terminal_back() {
    let cluster = Cluster::traced();
    let (started, release) = (cluster.file("started"), cluster.file("release"));
    let arguments = [&started, &release].map(|path| json!(path).to_string());
    let arguments = arguments.each_ref().map(String::as_str);
    let submission = cluster.submit_in_background("misbehaving_tasks:waits_in_nested_spans", &arguments);
    cluster.wait_for_file(&started);
    let waits = cluster.submit_in_background("wordcount:count", &["\"a b\""]);
    let mut command = cluster.command(&["top", "--interval", "50ms"]);
    command.env("TERM", "xterm-256color").env("COLUMNS", "100");
    let (mut running, screen, mut keyboard) = type_in_a_terminal(command);
    let shows = |text: &str| {
        wait_until(text, || screen.lock().expect("no reader panics").contains(text).then_some(()));
    };
    // Words alone: what stays as it was on the screen is not written again.
    ["waits_in_nested_spans", "inner", "busy", "wordcount.count", "quit"].into_iter().for_each(shows);
    keyboard.write_all(b"\tp").expect("it can be typed");
    shows("paused");
    keyboard.write_all(b"q").expect("it can be typed");
    let status = wait_until("it ends", || running.try_wait().expect("it can be waited for"));
    assert!(status.success(), "{status}");
    GIVEN_BACK.into_iter().for_each(shows);
    fs::write(release, "").expect("it can be written");
    submission.wait().success();
    waits.wait().success();
}

#[test]
fn a_head_that_ends_and_ctrl_c_end_it_and_the_terminal_is_given_back() {
    let cluster = Cluster::untraced();
    let start = || {
        let mut command = cluster.command(&["top", "--interval", "50ms"]);
        command.env("TERM", "xterm-256color");
        let (running, screen, keyboard) = type_in_a_terminal(command);
        let seen = || screen.lock().expect("no reader panics").contains("idle").then_some(());
        wait_until("it shows the worker", seen);
        (running, screen, keyboard)
    };
    let (mut running, screen, mut keyboard) = start();
    keyboard.write_all(b"\x03").expect("it can be typed");
    let status = wait_until("it ends", || running.try_wait().expect("it can be waited for"));
    assert!(status.success(), "{status}");
    wait_until("the terminal is given back", || {
        screen.lock().expect("no reader panics").contains(GIVEN_BACK[0]).then_some(())
    });

    let (mut running, screen, _keyboard) = start();
    rustix::process::kill_process(rustix::process::Pid::from_child(&running), Signal::TERM).expect("it is ours");
    wait_until("it ends", || running.try_wait().expect("it can be waited for"));
    wait_until("the terminal is given back", || {
        screen.lock().expect("no reader panics").contains(GIVEN_BACK[0]).then_some(())
    });

    let (mut running, screen, _keyboard) = start();
    cluster.stop().success();
    let status = wait_until("it ends", || running.try_wait().expect("it can be waited for"));
    assert_eq!(status.code(), Some(1), "the head has ended");
    let screen = screen.lock().expect("no reader panics").clone();
    let (_, after) = screen.split_once(GIVEN_BACK[0]).expect("the terminal is given back");
    assert!(after.contains("error: "), "the error is on the first screen: {after:?}");
}

#[test]
fn without_a_terminal_it_says_what_to_use() {
    let cluster = Cluster::untraced();
    cluster.tracer(&["top"]).status(1).stderr_contains("needs a terminal").stderr_contains("`tracer status`");
    cluster.stop().success();
    cluster.tracer(&["top"]).status(3).stderr_contains("tracer start --head");
}
