//! Reports of `status`, `list`, `get`, `trace`, `hooks` and `modules`, for people and as JSON.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::{Cluster, HOOK, Run};

/// Runs a command with `--format json`, and returns what it says.
#[track_caller]
fn json_of(cluster: &Cluster, arguments: &[&str]) -> Value {
    let arguments: Vec<&str> = arguments.iter().copied().chain(["--format", "json"]).collect();
    cluster.tracer(&arguments).success().stderr("").json()
}

#[track_caller]
fn assert_keys(value: &Value, expected: &[&str]) {
    let keys: Vec<_> =
        value.as_object().unwrap_or_else(|| panic!("expected an object, found {value}")).keys().collect();
    for key in expected {
        assert!(keys.iter().any(|known| known == key), "`{key}` is missing in {value}");
    }
}

/// A trace is named by twelve of its digits, so that a line fits into a terminal; any command takes the beginning of an id.
#[test]
fn the_lines_of_list_tasks_fit_into_80_columns() {
    let cluster = Cluster::traced();
    cluster.submit("wordcount:count", &["\"a b\""]).success();
    let text = cluster.tracer(&["list", "tasks"]).success().stdout_text();
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let id = text.lines().nth(1).and_then(|line| line.split_whitespace().last()).expect("a row ends with its trace");
    assert_eq!(id.len(), 12, "{text}");
    cluster.tracer(&["trace", "show", id]).success();
}

/// Returns the first words of the lines.
fn first_words(run: &Run) -> Vec<String> {
    let text = run.stdout_text();
    text.lines().filter_map(|line| line.split_whitespace().next()).map(String::from).collect()
}

#[test]
fn status_shows_head_tracing_workers_and_tasks() {
    let cluster = Cluster::builder().workers(2).hook(HOOK).start();
    cluster.tracer(&["submit", "task"]).success();
    cluster.submit("misbehaving_tasks:returns_error", &["\"no\""]).status(1);
    let run = cluster.tracer(&["status"]).success().stderr("");
    assert_eq!(first_words(&run)[..4], ["head", "node", "session", "tracing"].map(String::from));
    run.stdout_contains("\ntracing  local_tmp_tracing:setup_tracing, from <bin>/liblocal_tmp_tracing.so\n")
        .stdout_contains("\nworkers  2 running (2 idle, 0 busy)\n")
        .stdout_contains("\ntasks    0 queued, 0 running, 1 succeeded, 1 failed\n");
    let status = json_of(&cluster, &["status"]);
    assert_keys(&status, &["version", "head_pid", "node_id", "session_dir", "spans_dir", "uptime_ns", "warnings"]);
    assert_eq!(status["hook"]["import_string"], HOOK);
    assert_eq!(
        status["workers"],
        json!({ "wanted": 2, "starting": 0, "idle": 2, "busy": 0, "waiting": 0, "actors": 0, "lost": 0 })
    );
    assert_eq!((&status["tasks"]["succeeded"], &status["tasks"]["failed"]), (&json!(1), &json!(1)));
}

#[test]
fn tasks_are_listed_newest_first_with_their_traces_and_what_is_left_out() {
    let cluster = Cluster::traced();
    cluster.tracer(&["submit", "task", "demo:my_function", "--name", "first"]).success();
    cluster.submit("misbehaving_tasks:returns_error", &["\"no\""]).status(1);
    cluster.tracer(&["submit", "command", "true"]).success();
    let run = cluster.tracer(&["list", "tasks"]).success().stderr("");
    assert_eq!(first_words(&run), ["ID", "3", "2", "1"]);
    let list = json_of(&cluster, &["list", "tasks"]);
    assert_eq!((&list["left_out"], &list["forgotten"]), (&json!(0), &json!(0)));
    let states: Vec<_> = cluster.tasks().iter().map(|task| (task["target"].clone(), task["state"].clone())).collect();
    let expected =
        [("true", "succeeded"), ("misbehaving_tasks.returns_error", "failed"), ("demo.my_function", "succeeded")];
    assert_eq!(states, expected.map(|(target, state)| (json!(target), json!(state))));
    let spans = cluster.spans();
    for task in cluster.tasks() {
        assert_keys(
            &task,
            &["id", "name", "job_id", "attempt", "worker_id", "worker_pid", "submitted_time", "submitted_unix_ms"],
        );
        let attempt = spans.attempt_of(task["id"].as_u64().expect("an id"));
        let trace_id = task["trace_id"].as_str().expect("it was traced");
        assert_eq!(attempt.trace_id().trim_start_matches("0x"), trace_id);
    }
    let run = cluster
        .tracer(&["list", "tasks", "--limit", "1"])
        .success()
        .stdout_contains("and 2 older tasks (--limit shows more)\n");
    assert_eq!(first_words(&run), ["ID", "3", "and"]);
    assert_eq!(json_of(&cluster, &["list", "tasks", "--limit", "1"])["left_out"], 2);
}

#[test]
fn workers_are_listed_with_what_they_do() {
    let cluster = Cluster::builder().workers(2).hook(HOOK).start();
    let run = cluster.tracer(&["list", "workers"]).success().stderr("");
    assert_eq!(first_words(&run), ["ID", "1", "2"]);
    for worker in cluster.workers() {
        assert_keys(
            &worker,
            &["id", "pid", "state", "uptime_ns", "task", "leases", "tasks_ended", "tracing", "hook_failure"],
        );
        assert_eq!((&worker["state"], &worker["task"]), (&json!("idle"), &json!(null)));
        assert!(
            worker["tracing"].as_str().is_some_and(|text| text.contains(&format!("{}.json", worker["pid"]))),
            "{worker}"
        );
    }
}

#[test]
fn modules_and_hooks_are_listed_without_a_head() {
    let cluster = Cluster::builder().build();
    let run = cluster.tracer(&["list", "modules"]).success().stderr("");
    for module in ["async_task", "demo", "hook_stdout", "http_task", "local_tmp_tracing", "tracing_task", "wordcount"] {
        assert!(first_words(&run).contains(&module.to_owned()), "{module}: {run:?}");
    }
    let modules = json_of(&cluster, &["list", "modules"]);
    let wordcount =
        modules["modules"].as_array().and_then(|all| all.iter().find(|module| module["name"] == "wordcount"));
    let wordcount = wordcount.expect("wordcount is listed");
    assert_keys(wordcount, &["name", "version", "library", "producer", "abi", "tasks", "hooks"]);
    assert_eq!(wordcount["tasks"][0]["name"], "count");

    let run = cluster.tracer(&["list", "hooks"]).success().stderr("");
    assert!(first_words(&run).contains(&HOOK.to_owned()), "{run:?}");
    let hooks = json_of(&cluster, &["list", "hooks"]);
    let shipped =
        hooks["hooks"].as_array().and_then(|all| all.iter().find(|hook| hook["hook"] == HOOK)).expect("it is listed");
    assert_keys(shipped, &["hook", "contract", "summary", "library"]);
    assert_eq!(shipped["contract"], "startup");
}

#[test]
fn a_module_is_shown_with_the_signatures_of_its_tasks() {
    let cluster = Cluster::builder().build();
    cluster
        .tracer(&["modules", "show", "wordcount"])
        .success()
        .stderr("")
        .stdout_contains("module    wordcount\nlibrary   <bin>/libwordcount.so\n")
        .stdout_contains("\ntask count(text: &str) -> u64\n    Counts the words of a text.\n");
    let module = json_of(&cluster, &["modules", "show", "wordcount"]);
    assert_eq!(
        module["tasks"][0]["parameters"],
        json!([{ "name": "text", "type_name": "&str", "is_optional": false }])
    );
    cluster
        .tracer(&["modules", "show", "wordcont"])
        .status(1)
        .stdout("")
        .stderr_contains("Did you mean `wordcount`?\n");
}

#[test]
fn a_hook_is_tried_out() {
    let cluster = Cluster::builder().build();
    cluster
        .tracer(&["hooks", "check", HOOK])
        .success()
        .stdout_contains("hook      local_tmp_tracing:setup_tracing works\n")
        .stdout_contains("\ndoes      spans to `<folder>/spans/<pid>.json`");
    assert_keys(&json_of(&cluster, &["hooks", "check", HOOK]), &["library", "producer", "description"]);
    cluster
        .tracer(&["hooks", "check", "local_tmp_tracin:setup_tracing"])
        .status(4)
        .stdout("")
        .stderr_contains("\nDid you mean `local_tmp_tracing`?\n");
}

#[test]
fn traces_are_listed_and_shown_also_after_the_head_is_gone() {
    let cluster = Cluster::builder().hook(HOOK).env("COLUMNS", "160").start();
    cluster.submit("wordcount:frequencies", &["\"a b a\""]).success();
    cluster.submit("misbehaving_tasks:panics", &["\"boom\""]).status(1);
    cluster.stop().success();
    let run = cluster.tracer(&["trace", "list"]).success().stderr("");
    assert_eq!(run.stdout_text().lines().count(), 3, "{run:?}");
    let list = json_of(&cluster, &["trace", "list"]);
    assert_eq!(list["traces"].as_array().map(Vec::len), Some(2), "{list}");
    cluster
        .tracer(&["trace", "show", "last"])
        .success()
        .stdout_contains("misbehaving_tasks.panics tracer.remote_worker")
        .stdout_contains("boom");
    let spans = cluster.spans();
    let id = spans.named("wordcount.frequencies tracer.remote_worker").trace_id().trim_start_matches("0x");
    let run = cluster.tracer(&["trace", "show", &id[..8]]).success();
    for name in ["tracer job", "wordcount.frequencies tracer.remote", "count", "sort"] {
        assert!(run.stdout_text().contains(name), "{name}: {run:?}");
    }
    let shown = json_of(&cluster, &["trace", "show", id]);
    assert!(shown.to_string().contains("wordcount.distinct"), "{shown}");
    cluster.tracer(&["trace", "show", "ffffffff"]).status(1).stdout("").stderr_contains("ffffffff");
}

#[test]
fn help_and_version_are_for_standard_output() {
    let cluster = Cluster::builder().build();
    cluster.tracer(&["--version"]).success().stdout(concat!("tracer ", env!("CARGO_PKG_VERSION"), "\n")).stderr("");
    cluster.tracer(&["--help"]).success().stderr("").stdout_contains("Exit codes:\n");
    for command in ["start", "stop", "status", "submit", "list", "get", "cancel", "trace", "hooks", "modules"] {
        cluster.tracer(&[command, "--help"]).success().stderr("").stdout_contains("Example:\n");
    }
    cluster.tracer(&["frobnicate"]).status(2).stdout("").stderr_contains("unrecognized subcommand 'frobnicate'");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let cluster = Cluster::untraced();
    let mut shell = cluster.program("sh");
    let path = std::env::var("PATH").unwrap_or_default();
    shell.env("PATH", format!("{}:{path}", crate::support::module_folder().display()));
    shell.args(["-c", "tracer submit task misbehaving_tasks:big_result 1000000 | head -c 3"]);
    cluster.run(shell).success().stdout("\"xx").stderr("");
}

#[test]
fn a_result_that_cannot_be_written_is_an_error() {
    let cluster = Cluster::untraced();
    for arguments in [&["submit", "task"][..], &["status"], &["submit", "command", "--", "echo", "hello"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a device that is always full");
        let mut command = cluster.command(arguments);
        command.stdout(full).stderr(std::process::Stdio::piped());
        let output = command.output().expect("it can be started");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.starts_with("error: standard output cannot be written to: No space left on device"), "{text}");
    }
}

#[test]
fn commands_that_share_an_output_do_not_mix_their_lines() {
    let cluster = Cluster::untraced();
    // One write is one datagram.
    let written_by = |arguments: &[&str], is_error: bool| {
        let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().expect("a pair of sockets");
        let theirs = std::os::fd::OwnedFd::from(theirs);
        let mut command = cluster.command(arguments);
        if is_error {
            command.stderr(theirs)
        } else {
            command.stdout(theirs)
        };
        command.output().expect("it can be started");
        ours.set_nonblocking(true).expect("it is a socket");
        let mut buffer = [0; 4096];
        let mut writes = Vec::new();
        while let Ok(length @ 1..) = ours.recv(&mut buffer) {
            writes.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
        }
        writes
    };
    assert_eq!(written_by(&["submit", "task"], false), ["1\n"]);
    assert_eq!(written_by(&["list", "tasks"], false).len(), 1);
    let errors = written_by(&["submit", "task", "demo:my_functio"], true);
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].starts_with("error: ") && errors[0].ends_with('\n'), "{errors:?}");
}

#[test]
fn every_test_that_a_promise_names_exists() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration");
    let page = include_str!("../../src/guide/promises.rs");
    let (mut promises, mut named) = (0, 0);
    for promise in page.split("//! **").skip(1) {
        promises += 1;
        let (title, text) = promise.split_once("**").expect("a promise has a title");
        let kept = text.split_once("- Kept by ").unwrap_or_else(|| panic!("no test keeps `{title}`")).1;
        let tests = kept.split('`').skip(1).step_by(2).filter(|word| word.contains("::"));
        let before = named;
        for test in tests {
            let (file, function) = test.rsplit_once("::").expect("it was looked for");
            let source = fs::read_to_string(folder.join(format!("{}.rs", file.replace("::", "/"))));
            let source = source.unwrap_or_else(|error| panic!("`{test}` of `{title}`: {error}"));
            let is_there = source.contains(&format!("#[test]\nfn {function}()"));
            assert!(is_there, "`{test}`, which keeps `{title}`, does not exist");
            named += 1;
        }
        assert!(named > before, "no test keeps `{title}`");
    }
    assert!(promises >= 12 && named >= 40, "{promises} promises with {named} tests");
}
