//! `tracer submit command`: programs as tasks.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use rustix::process::Signal;
use serde_json::json;

use crate::support::{Cluster, Run, is_alive, kill, wait_until};

/// `tracer submit command -- ARGUMENTS`.
#[track_caller]
fn command(cluster: &Cluster, arguments: &[&str]) -> Run {
    let all: Vec<&str> = ["submit", "command", "--"].iter().chain(arguments).copied().collect();
    cluster.tracer(&all)
}

/// The variables that a run of `env` printed.
fn variables(run: &Run) -> HashMap<String, String> {
    let pairs = run.stdout_text();
    pairs.lines().filter_map(|line| line.split_once('=')).map(|(name, value)| (name.into(), value.into())).collect()
}

#[track_caller]
fn pid_in(path: &Path) -> u32 {
    wait_until(&format!("`{}` holds a process id", path.display()), || {
        fs::read_to_string(path).ok()?.strip_suffix('\n')?.parse().ok()
    })
}

#[test]
fn arguments_reach_the_program_untouched_by_any_shell() {
    let cluster = Cluster::untraced();
    let arguments = ["printf", "%s|", "$HOME", "*", ";", "a b", "", "--no-wait", "'", "\\n"];
    command(&cluster, &arguments).success().stdout("$HOME|*|;|a b||--no-wait|'|\\n|").stderr("");
}

#[test]
fn its_exit_code_becomes_ours_and_is_on_its_span() {
    let cluster = Cluster::traced();
    command(&cluster, &["true"]).success().stdout("").stderr("");
    // The program has said what it has to say; nothing is added.
    command(&cluster, &["sh", "-c", "exit 7"]).status(7).stdout("").stderr("");
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let (good, bad) = (spans.attempt_of(1), spans.attempt_of(2));
    assert_eq!((good.name(), good.status_code()), ("true tracer.remote_worker", "UNSET"));
    assert_eq!(good.attribute("process.exit.code"), 0);
    assert_eq!((bad.name(), bad.status_code()), ("sh tracer.remote_worker", "ERROR"));
    assert_eq!((bad.attribute("process.exit.code"), bad.attribute("error.type")), (&json!(7), &json!("exit:7")));
    assert_eq!(bad.events("exception").len(), 1);
    assert_eq!(cluster.task(2)["message"], "`sh` exited with code 7");
}

#[test]
fn a_program_that_is_killed_gives_128_and_the_signal() {
    let cluster = Cluster::traced();
    for (task, signal, name, code) in [(1, "KILL", "SIGKILL (signal 9)", 137), (2, "TERM", "SIGTERM (signal 15)", 143)]
    {
        command(&cluster, &["sh", "-c", &format!("kill -{signal} $$")])
            .status(code)
            .stderr_contains(&format!("error: task {task} (sh) failed: `sh` was killed by {name}\n"));
        assert_eq!(cluster.spans().attempt_of(task).attribute("error.type"), &json!(format!("signal:{}", code - 128)));
    }
}

#[test]
fn a_program_that_cannot_be_started_is_told_apart_like_in_a_shell() {
    let cluster = Cluster::traced();
    fs::write(cluster.file("plain"), "no program").expect("the folder is ours");
    let cases: [(&[&str], i32, &str); 5] = [
        (&["--", "no-such-program"], 127, "`no-such-program` could not be started: there is no such program in PATH"),
        (&["--", "./missing"], 127, "`./missing` could not be started: there is no such file"),
        (&["--", "./plain"], 126, "`./plain` could not be started: it is not executable"),
        (&["--", "/"], 126, "`/` could not be started: it is a folder"),
        (
            &["--cwd", "nowhere", "--", "true"],
            126,
            "`true` could not be started: its working directory `<folder>/nowhere` does not exist",
        ),
    ];
    for (task, (arguments, code, message)) in (1..).zip(cases) {
        let all: Vec<&str> = ["submit", "command"].iter().chain(arguments).copied().collect();
        cluster.tracer(&all).status(code).stdout("").stderr_contains(&format!(") failed: {message}\n"));
        let spans = cluster.spans();
        let attempt = spans.attempt_of(task);
        assert_eq!((attempt.status_code(), attempt.attribute("error.type")), ("ERROR", &json!("not_started")));
    }
}

#[test]
fn it_gets_the_trace_context_of_its_own_span() {
    let cluster = Cluster::traced();
    let mut submit = cluster.command(&["submit", "command", "--", "env"]);
    submit
        .env("TRACEPARENT", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        .env("TRACESTATE", "vendor=value")
        .env("BAGGAGE", "user=me");
    let run = cluster.run(submit).success().stderr("");
    let variables = variables(&run);
    let spans = cluster.spans();
    spans.assert_whole(&["0xb7ad6b7169203331"]);
    let attempt = spans.attempt_of(1);
    assert_eq!(attempt.trace_id(), "0x0af7651916cd43dd8448eb211c80319c");
    let span_id = attempt.span_id().trim_start_matches("0x");
    assert_eq!(variables["TRACEPARENT"], format!("00-0af7651916cd43dd8448eb211c80319c-{span_id}-01"));
    assert_eq!(variables["TRACESTATE"], "vendor=value");
    assert_eq!(variables["BAGGAGE"], "user=me");
}

#[test]
fn it_gets_no_stale_context_of_the_head() {
    let cluster = Cluster::builder()
        .hook(crate::support::HOOK)
        .env("TRACEPARENT", "00-00000000000000000000000000000001-0000000000000001-01")
        .env("TRACESTATE", "stale=1")
        .env("BAGGAGE", "stale=1")
        .start();
    let mut submit = cluster.command(&["submit", "command", "--", "env"]);
    submit.env_remove("TRACEPARENT").env_remove("TRACESTATE").env_remove("BAGGAGE");
    let variables = variables(&cluster.run(submit).success());
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let attempt = spans.attempt_of(1);
    let (trace_id, span_id) = (attempt.trace_id().trim_start_matches("0x"), attempt.span_id().trim_start_matches("0x"));
    assert_eq!(variables["TRACEPARENT"], format!("00-{trace_id}-{span_id}-01"));
    assert!(!variables.contains_key("TRACESTATE") && !variables.contains_key("BAGGAGE"), "{variables:?}");
}

#[test]
fn without_a_hook_the_context_of_the_submitter_is_passed_on() {
    let cluster = Cluster::untraced();
    let mut submit = cluster.command(&["submit", "command", "--", "env"]);
    submit.env("TRACEPARENT", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").env("BAGGAGE", "user=me");
    let passed = variables(&cluster.run(submit).success());
    assert_eq!(passed["TRACEPARENT"], "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    assert_eq!(passed["BAGGAGE"], "user=me");
    let none = variables(&command(&cluster, &["env"]).success());
    assert!(!none.contains_key("TRACEPARENT"), "{none:?}");
}

#[test]
fn a_context_that_is_broken_is_said_and_not_passed_on() {
    let cluster = Cluster::traced();
    let mut submit = cluster.command(&["submit", "command", "--", "env"]);
    submit.env("TRACEPARENT", "broken").env("TRACESTATE", "a=b").env("BAGGAGE", "k=v");
    let run = cluster
        .run(submit)
        .success()
        .stderr_contains("warning: `TRACEPARENT` is ignored: ")
        .stderr_contains("warning: `TRACESTATE` is ignored: there is no valid traceparent with it\n");
    let variables = variables(&run);
    assert!(variables["TRACEPARENT"].starts_with("00-") && !variables.contains_key("TRACESTATE"), "{variables:?}");
    assert_eq!(variables["BAGGAGE"], "k=v");
}

#[test]
fn variables_are_set_on_top_of_the_environment_of_the_head() {
    let cluster = Cluster::builder().env("FROM_HEAD", "yes").start();
    let run =
        cluster.tracer(&["submit", "command", "--env", "A=b=c", "--env", "FROM_HEAD=", "--env", "E=", "--", "env"]);
    let variables = variables(&run.success());
    assert_eq!((&*variables["A"], &*variables["FROM_HEAD"], &*variables["E"]), ("b=c", "", ""));
    cluster
        .tracer(&["submit", "command", "--env", "A", "--", "env"])
        .status(2)
        .stderr("error: `--env` got `A`, but takes NAME=VALUE\n");
    cluster.tracer(&["submit", "command"]).status(2).stderr_contains("<PROGRAM>");
}

#[test]
fn variables_do_not_depend_on_what_its_worker_ran_before() {
    let cluster = Cluster::builder().env("FROM_HEAD", "yes").start();
    for name in ["FROM_HEAD", "FROM_TASK"] {
        cluster.submit("misbehaving_tasks:leaves_variable", &[&format!("\"{name}\""), "\"other\""]).success();
    }
    let variables = variables(&cluster.tracer(&["submit", "command", "--", "env"]).success());
    assert_eq!((&*variables["FROM_HEAD"], variables.get("FROM_TASK")), ("yes", None));
}

#[test]
fn it_runs_in_the_folder_of_the_submitter_unless_told_otherwise() {
    let cluster = Cluster::untraced();
    fs::create_dir_all(cluster.file("here/below")).expect("the folder is ours");
    let run_in = |flags: &[&str]| {
        let mut submit = cluster.command(&["submit", "command"]);
        submit.args(flags).args(["--", "pwd"]).current_dir(cluster.file("here"));
        cluster.run(submit).success().stderr("")
    };
    run_in(&[]).stdout("<folder>/here\n");
    run_in(&["--cwd", "below"]).stdout("<folder>/here/below\n");
    run_in(&["--cwd", "/"]).stdout("/\n");
    // A program with a path is looked for from there too.
    fs::write(cluster.file("here/below/script"), "#!/bin/sh\necho found\n").expect("the folder is ours");
    fs::set_permissions(cluster.file("here/below/script"), std::os::unix::fs::PermissionsExt::from_mode(0o700))
        .expect("the folder is ours");
    cluster.tracer(&["submit", "command", "--cwd", "here/below", "--", "./script"]).success().stdout("found\n");
}

#[test]
fn its_standard_input_is_empty() {
    let cluster = Cluster::untraced();
    command(&cluster, &["cat"]).success().stdout("").stderr("");
}

#[test]
fn a_program_that_takes_too_long_is_ended_with_its_children() {
    let cluster = Cluster::traced();
    let script = "sleep 1000 & echo $! > child; echo $$ > own; wait";
    cluster
        .tracer(&["submit", "command", "--timeout", "300ms", "--", "sh", "-c", script])
        .status(124)
        .stderr_contains("error: task 1 (sh) failed: timed out: it was still running after 300 ms\n");
    for file in ["own", "child"] {
        let pid = pid_in(&cluster.file(file));
        wait_until(&format!("{file} is gone"), || (!is_alive(pid)).then_some(()));
    }
    let spans = cluster.spans();
    assert_eq!(spans.attempt_of(1).attribute("error.type"), "timeout");
    assert_eq!(cluster.status()["workers"]["lost"], 0, "the worker goes on");
}

#[test]
fn a_program_that_does_not_listen_is_killed() {
    let cluster = Cluster::untraced();
    let script = "trap '' TERM; echo $$ > own; while :; do sleep 1000; done";
    cluster.tracer(&["submit", "command", "--timeout", "100ms", "--", "sh", "-c", script]).status(124);
    let pid = pid_in(&cluster.file("own"));
    wait_until("it is gone", || (!is_alive(pid)).then_some(()));
}

#[test]
fn what_it_leaves_behind_is_ended_when_it_ends() {
    let cluster = Cluster::untraced();
    command(&cluster, &["sh", "-c", "sleep 1000 & echo $! > child"]).success();
    let child = pid_in(&cluster.file("child"));
    wait_until("its child is gone", || (!is_alive(child)).then_some(()));
}

#[test]
fn it_ends_with_its_children_when_its_worker_is_killed() {
    let cluster = Cluster::traced();
    let script = "sleep 1000 & echo $! > child; echo $$ > own; wait";
    let submission = cluster.tracer_in_background(&["submit", "command", "--crash-limit=0", "--", "sh", "-c", script]);
    let (child, own) = (pid_in(&cluster.file("child")), pid_in(&cluster.file("own")));
    let [worker] = cluster.worker_pids()[..] else { panic!("one worker") };
    kill(worker, Signal::KILL);
    submission.wait().status(1).stderr_contains("its worker (pid <pid>) was killed by SIGKILL (signal 9)\n");
    for pid in [own, child] {
        wait_until("it is gone", || (!is_alive(pid)).then_some(()));
    }
    assert_eq!(cluster.spans().attempt_of(1).attribute("error.type"), "signal:9");
}

#[test]
fn ctrl_c_ends_it_with_its_children() {
    let cluster = Cluster::traced();
    let script = "sleep 1000 & echo $! > child; echo $$ > own; wait";
    let submission = cluster.tracer_in_background(&["submit", "command", "--", "sh", "-c", script]);
    let (child, own) = (pid_in(&cluster.file("child")), pid_in(&cluster.file("own")));
    submission.signal(Signal::INT);
    submission.wait().status(130).stderr_contains("error: task 1 (sh) failed: it was cancelled\n");
    for pid in [own, child] {
        wait_until("it is gone", || (!is_alive(pid)).then_some(()));
    }
    assert_eq!(cluster.spans().attempt_of(1).attribute("error.type"), "cancelled");
}

#[test]
fn without_waiting_its_id_is_printed_and_it_goes_on() {
    let cluster = Cluster::traced();
    let script = "while [ ! -e released ]; do sleep 0.01; done";
    cluster
        .tracer(&["submit", "command", "--no-wait", "--name", "patient", "--", "sh", "-c", script])
        .success()
        .stdout("1\n")
        .stderr("");
    wait_until("it runs", || (cluster.task(1)["state"] == "running").then_some(()));
    fs::write(cluster.file("released"), "").expect("the folder is ours");
    let task = cluster.wait_for_task(1);
    assert_eq!(
        (&task["state"], &task["name"], &task["target"]),
        (&json!("succeeded"), &json!("patient"), &json!("sh"))
    );
}
