//! `tracer submit command`: programs as tasks.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use rustix::process::Signal;
use serde_json::json;

use super::support::{Cluster, HOOK, Run, is_alive, kill, wait_until};

/// `tracer submit command -- ARGUMENTS`.
#[track_caller]
fn command(cluster: &Cluster, arguments: &[&str]) -> Run {
    let all: Vec<&str> = ["submit", "command", "--"].iter().chain(arguments).copied().collect();
    cluster.tracer(&all)
}

/// Returns the variables that a run of `env` printed.
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
    let arguments = ["printf", "%s|\\n", "$HOME", "*", ";", "a b", "", "--no-wait", "'", "\\n"];
    command(&cluster, &arguments).success().stdout("$HOME|\n*|\n;|\na b|\n|\n--no-wait|\n'|\n\\n|\n").stderr("");
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
        .hook(HOOK)
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
    assert_eq!(variables["TRACEPARENT"], format!("00-{trace_id}-{span_id}-03"));
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
        .tracer(&["submit", "command", "--env", "=A", "--", "env"])
        .status(2)
        .stderr("error: `--env` got `=A`, but takes NAME=VALUE, or NAME for the value that it has here\n");
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
fn variables_of_the_submitter_are_passed_on_when_that_is_asked_for() {
    let cluster = Cluster::builder().hook(HOOK).env("OF_BOTH", "both").start();
    let run = |arguments: &[&str]| {
        let mut command = cluster.command(&["submit", "command"]);
        command.args(arguments).env("OF_SUBMITTER", "here").env_remove("OF_BOTH");
        command.env("TRACEPARENT", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").env("BAGGAGE", "k=v");
        cluster.run(command)
    };
    let without = variables(&run(&["--", "env"]).success());
    assert_eq!((without.get("OF_SUBMITTER"), &*without["OF_BOTH"]), (None, "both"));
    let one = variables(&run(&["--env", "OF_SUBMITTER", "--", "env"]).success());
    assert_eq!((&*one["OF_SUBMITTER"], &*one["OF_BOTH"]), ("here", "both"));
    let all = variables(&run(&["--inherit-env", "--env", "MORE=1", "--", "env"]).success());
    assert_eq!((&*all["OF_SUBMITTER"], all.get("OF_BOTH"), &*all["MORE"]), ("here", None, "1"));
    // What continues the trace is the attempt's own, not the submitter's.
    assert!(all["TRACEPARENT"].starts_with("00-0af7651916cd43dd8448eb211c80319c-"), "{all:?}");
    assert!(!all["TRACEPARENT"].contains("b7ad6b7169203331") && all["BAGGAGE"] == "k=v", "{all:?}");
    run(&["--env", "NOT_SET", "--", "env"]).status(2).stderr(
        "error: `--env` got `NOT_SET`, but no variable of that name is set here\n(hint: --env NAME=VALUE sets one)\n",
    );
}

#[test]
fn its_standard_input_is_empty() {
    let cluster = Cluster::untraced();
    command(&cluster, &["cat"]).success().stdout("").stderr("");
    // So a loop keeps its lines.
    let looped = shell(&cluster, "printf 'a\\nb\\n' | while read line; do $TRACER -- cat; echo $line; done");
    looped.success().stdout("a\nb\n");
}

/// Returns a line for a shell, in which `$TRACER` is `tracer submit command`.
#[track_caller]
fn shell(cluster: &Cluster, line: &str) -> Run {
    let mut shell = cluster.program("sh");
    let submit = cluster.command(&["submit", "command"]);
    let words = std::iter::once(submit.get_program()).chain(submit.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    shell.args(["-c", line]).env("TRACER", words.join(" "));
    cluster.run(shell)
}

#[test]
fn it_reads_the_input_of_its_submitter_in_order_and_to_the_end_when_told_to() {
    let cluster = Cluster::traced();
    if differs!() {
        let run = shell(&cluster, "echo line | $TRACER --stdin -- cat").status(1).stdout("");
        run.stderr_contains("it cannot read the standard input of its submitter (--stdin)\n(hint: ");
        assert_eq!(cluster.tasks().len(), 0);
        return;
    }
    // 39 MB through a pipe, much more than it holds.
    let line = "seq 5000000 | $TRACER --stdin -- cksum; seq 5000000 | cksum";
    let run = shell(&cluster, line).success().stdout_text();
    let sums: Vec<&str> = run.lines().collect();
    assert!(sums.len() == 2 && sums[0] == sums[1], "{run}");
    // From a file it goes on where it is, and what it does not read is for the next.
    fs::write(cluster.file("lines"), "one\ntwo\nthree\n").expect("the folder is ours");
    let line = "{ read first; $TRACER -i -- sh -c 'read second; echo got $second'; cat; } < lines";
    shell(&cluster, line).success().stdout("got two\nthree\n");
    shell(&cluster, "$TRACER -i -- cat < /dev/null").success().stdout("");
    let left = fs::read_dir(cluster.session_dir()).expect("it is there").flatten();
    assert_eq!(left.filter(|entry| entry.file_name().to_string_lossy().starts_with("input")).count(), 0);
}

#[test]
fn input_that_a_command_does_not_read_holds_nobody_up() {
    if differs!() {
        return;
    }
    let cluster = Cluster::untraced();
    shell(&cluster, "yes | $TRACER -i -- head -n 1").success().stdout("y\n").stderr("");
    shell(&cluster, "head -c 10000000 /dev/zero | $TRACER -i -- true").success();
    shell(&cluster, "yes | $TRACER -i -- sh -c 'kill -9 $$'").status(137);
    shell(&cluster, "yes | $TRACER -i --timeout 200ms --grace 100ms -- sleep 100").status(124);
    // It closes its input and goes on: the writer ends meanwhile, as below a shell.
    let line = "{ yes; touch over; } | $TRACER -i -- sh -c 'exec <&-; while [ ! -e over ]; do sleep 0.01; done'";
    shell(&cluster, line).success();
}

#[test]
fn input_is_given_once() {
    let cluster = Cluster::untraced();
    for option in ["--retries=1", "--crash-limit=1", "--no-wait", "--idempotency-key=k"] {
        cluster.tracer(&["submit", "command", "-i", option, "--", "cat"]).status(2).stderr_contains("--stdin");
    }
    if differs!() {
        return;
    }
    // Its worker is lost, and it is not tried again.
    let line = "yes | $TRACER -i -- sh -c 'read line; kill -9 $PPID; sleep 100'";
    shell(&cluster, line).status(1).stderr_contains("SIGKILL");
    assert_eq!(cluster.task(1)["attempts"].as_array().map(Vec::len), Some(1), "{}", cluster.task(1));
    // The submitter is gone before its command begins.
    let blocker = cluster.tracer_in_background(&["submit", "command", "--", "sleep", "100"]);
    wait_until("the worker is busy", || {
        cluster.tasks().iter().any(|task| task["id"] == 2 && task["state"] == "running").then_some(())
    });
    let submitter = cluster.tracer_in_background(&["submit", "command", "-i", "--", "cat"]);
    wait_until("the next one waits", || (cluster.tasks().len() == 3).then_some(()));
    submitter.signal(Signal::KILL);
    submitter.wait();
    cluster.tracer(&["cancel", "2"]).success();
    blocker.wait();
    let task = cluster.wait_for_task(3);
    let message = task["message"].as_str().unwrap_or_default();
    assert!(message.contains("its standard input could not be had from its submitter"), "{task}");
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
    assert_eq!(cluster.runner().status()["workers"]["lost"], 0, "the worker goes on");
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
    let submission = cluster.tracer(&["submit", "command", "--no-wait", "--name", "patient", "--", "sh", "-c", script]);
    let submission = submission.success().stdout("1\n");
    if differs!() {
        submission.stderr_contains("in the cluster it is task ");
    } else {
        submission.stderr("");
    }
    wait_until("it runs", || (cluster.task(1)["state"] == "running").then_some(()));
    fs::write(cluster.file("released"), "").expect("the folder is ours");
    let task = cluster.wait_for_task(1);
    assert_eq!(
        (&task["state"], &task["name"], &task["target"]),
        (&json!("succeeded"), &json!("patient"), &json!("sh"))
    );
}
