//! Programs, virtual environment, pipes and exit codes of a shell around `tracer`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use rustix::process::Signal;

use crate::support::{Cluster, HOOK, Run};

/// Writes a program into a virtual environment of the folder.
fn write_program(cluster: &Cluster, name: &str, script: &str) {
    let path = cluster.file("venv/bin").join(name);
    fs::create_dir_all(path.parent().expect("it is in a folder")).expect("the folder is ours");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("the folder is ours");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("the file is ours");
}

/// Returns a command in a shell in which the virtual environment is active.
fn in_environment(cluster: &Cluster, arguments: &[&str]) -> Command {
    let own = std::env::var("PATH").expect("there is one");
    let mut command = cluster.command(arguments);
    command
        .env("PATH", format!("{}:{own}", cluster.file("venv/bin").display()))
        .env("VIRTUAL_ENV", cluster.file("venv"));
    command
}

#[test]
fn a_program_is_the_one_that_its_caller_would_run_with_the_virtual_environment_that_is_active() {
    let cluster = Cluster::untraced();
    write_program(&cluster, "here", "echo $VIRTUAL_ENV; inner");
    write_program(&cluster, "inner", "echo inner");
    let run = |arguments: &[&str]| cluster.run(in_environment(&cluster, arguments));
    run(&["submit", "command", "--", "here"]).success().stdout("<folder>/venv\ninner\n");
    run(&["submit", "command", "--env", "VIRTUAL_ENV=other", "--", "here"]).success().stdout("other\ninner\n");
    // What is said counts.
    let missing = "`here` could not be started: there is no such program in PATH";
    run(&["submit", "command", "--env", "PATH=/bin:/usr/bin", "--", "here"]).status(127).stderr_contains(missing);
    // The head's own environment is what it was.
    cluster.tracer(&["submit", "command", "--", "here"]).status(127).stderr_contains(missing);
    let same = "printf %s \"${VIRTUAL_ENV-none}\"";
    cluster.tracer(&["submit", "command", "--", "sh", "-c", same]).success().stdout("none");
}

#[test]
fn a_program_that_is_served_is_that_of_the_caller_and_exports_to_the_head() {
    let cluster = Cluster::builder().hook(HOOK).arg("--otlp=127.0.0.1:0").start();
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/python/http_program.py");
    let say = "echo \"$VIRTUAL_ENV|$GREETING|$OTEL_EXPORTER_OTLP_PROTOCOL|$OTEL_SERVICE_NAME|$OTEL_EXPORTER_OTLP_ENDPOINT\" >&2; \
               echo \"headers ${OTEL_EXPORTER_OTLP_HEADERS%%20*} $OTEL_RESOURCE_ATTRIBUTES\" >&2";
    write_program(&cluster, "server", &format!("{say}\nexec python3 {program} \"$1\""));
    let serve = |flags: &[&str]| {
        let all = [&["serve", "run", "--address", "127.0.0.1:0"], flags, &["--", "server", "{socket}"]].concat();
        let running = cluster.spawn(in_environment(&cluster, &all));
        running.wait_for_stdout("http://");
        running
    };
    let running = serve(&["--env", "GREETING=hello there"]);
    let place = cluster.file("venv").display().to_string();
    running.wait_for_stderr(&format!("{place}|hello there|http/protobuf|server|http://127.0.0.1:"));
    running.wait_for_stderr("headers authorization=Bearer% service.instance.id=server-");
    running.signal(Signal::INT);
    running.wait().success();
    // The user's own win.
    let running = serve(&["--env", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", "--env=OTEL_SERVICE_NAME=mine"]);
    running.wait_for_stderr(&format!("{place}|||mine|http://127.0.0.1:1\n"));
    running.wait_for_stderr("headers  service.instance.id=server-");
    running.signal(Signal::INT);
    running.wait().success();
    // All of it, and what the file would be.
    let mut command =
        in_environment(&cluster, &["serve", "build", "--inherit-env", "--env=A=b", "--", "server", "{port}"]);
    let built = cluster.run({
        command.env("GREETING", "inherited");
        command
    });
    built.success().stdout_contains("GREETING").stdout_contains("\"inherited\"").stdout_contains("\"b\"");
}

/// Runs a script of bash with `$0` for the built program.
#[track_caller]
fn bash(cluster: &Cluster, script: &str) -> Run {
    let mut bash = cluster.program("bash");
    bash.args(["-c", script, env!("CARGO_BIN_EXE_tracer")]);
    cluster.run(bash)
}

#[test]
fn the_exit_code_is_that_of_what_ran_also_into_a_pipe_that_is_closed() {
    let cluster = Cluster::untraced();
    // Whoever reads is gone before the program goes on.
    let program = "sh -c 'echo 1; while [ ! -e go ]; do sleep 0.01; done; echo 2; echo 3; exit 7'";
    let reader = "{ read line; echo got $line >&2; exec <&-; touch go; }";
    let run = bash(&cluster, &format!("$0 submit command -- {program} | {reader}; exit ${{PIPESTATUS[0]}}"));
    run.status(7).stderr_contains("got 1\n").stderr_contains("note: nobody reads standard output any more");
    assert_eq!(cluster.task(1)["message"], "`sh` exited with code 7");
    // Reports, errors and waits alike.
    for (command, code) in [
        ("submit command --format json -- sh -c 'sleep 0.1; exit 7'", 7),
        ("submit task misbehaving_tasks:returns_error '\"no\"'", 1),
        ("submit task misbehaving_tasks:returns_error '\"no\"' --format json", 1),
        ("wait 1", 7),
        ("wait 1 --format json", 7),
        ("get 99", 1),
        ("get 99 --format json", 1),
        ("submit command --map <(echo a) -- sh -c 'sleep 0.1; echo {}; exit 3'", 1),
    ] {
        bash(&cluster, &format!("$0 {command} 2>&1 | true; exit ${{PIPESTATUS[0]}}")).status(code);
    }
    // What only shows something ends as it did.
    bash(&cluster, "$0 list tasks | true; exit ${PIPESTATUS[0]}").success();
}

#[test]
fn a_result_that_has_nowhere_to_go_is_an_error() {
    let cluster = Cluster::untraced();
    for command in ["submit task", "submit task --format json", "status", "list tasks --format json"] {
        let run = bash(&cluster, &format!("$0 {command} >&-")).status(1);
        run.stderr_contains("error: standard output cannot be written to: Bad file descriptor");
    }
    bash(&cluster, "$0 submit task --no-wait > /dev/null").success();
}

#[test]
fn a_task_whose_head_dies_is_named_with_the_way_to_its_result() {
    let cluster = Cluster::untraced();
    let script = "[ -e again ] || { touch again; exec sleep 1000; }; echo done";
    let waiting = cluster.tracer_in_background(&["submit", "command", "--", "sh", "-c", script]);
    cluster.wait_for_file(&cluster.file("again"));
    cluster.kill_head();
    waiting
        .wait()
        .status(1)
        .stderr_contains(
            "the connection to the head broke while task 1 had not ended\n(hint: the task is accepted, and",
        )
        .stderr_contains("`tracer get 1 --wait`");
    cluster.start_head(&[]).success();
    cluster.tracer(&["wait", "1"]).success();
}
