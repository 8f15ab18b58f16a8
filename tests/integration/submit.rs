//! `tracer submit task` and `tracer get`: results, every way to fail, and what the attempt's span says of it.

use std::fs;

use rustix::process::Signal;
use serde_json::json;

use super::support::{Background, Cluster, Driver, is_alive, kill, wait_until};

/// A task that has started and waits for a file.
struct Waiting {
    submission: Background,
    worker_pid: u32,
    released: std::path::PathBuf,
}

/// Submits a task that waits, and waits until it runs.
#[track_caller]
fn submit_waiting(cluster: &Cluster, name: &str, flags: &[&str]) -> Waiting {
    let (started, released) = (cluster.file(&format!("{name}-started")), cluster.file(&format!("{name}-released")));
    let arguments = [json!(started).to_string(), json!(released).to_string()];
    let mut all: Vec<&str> = arguments.iter().map(String::as_str).collect();
    all.extend(flags);
    let submission = cluster.submit_in_background("misbehaving_tasks:waits", &all);
    cluster.wait_for_file(&started);
    let pid = std::fs::read_to_string(&started).expect("the file is whole");
    Waiting { submission, worker_pid: pid.parse().expect("a process id"), released }
}

impl Waiting {
    fn release(&self) {
        std::fs::write(&self.released, "").expect("the folder is ours");
    }
}

/// Expects that the last attempt of a task ended with that error, on its span and on those above it.
#[track_caller]
fn assert_failed_span(cluster: &Cluster, task: u64, error_type: &str, message: &str) {
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let attempt = spans.attempt_of(task);
    assert_eq!(attempt.status_code(), "ERROR");
    assert!(attempt.status_description().contains(message), "{}", attempt.status_description());
    assert_eq!(attempt.attribute("error.type"), error_type);
    let exceptions = attempt.events("exception");
    assert_eq!(exceptions.len(), 1, "one exception: {}", attempt.value);
    assert_eq!(exceptions[0]["attributes"]["exception.type"], error_type);
    let text = exceptions[0]["attributes"]["exception.message"].as_str().expect("a message");
    assert!(text.contains(message), "{text}");
    let producer = spans.parent_of(attempt);
    assert_eq!(producer.kind(), "SpanKind.PRODUCER");
    let job = spans.parent_of(producer);
    assert_eq!((job.name(), job.status_code()), ("tracer job", "ERROR"));
    assert_eq!(job.attribute("error.type"), error_type);
}

#[test]
fn without_a_target_the_built_in_task_runs_and_prints_1() {
    let cluster = Cluster::untraced();
    cluster.tracer(&["submit", "task"]).success().stdout("1\n").stderr("");
    cluster.submit("demo:my_function", &[]).success().stdout("1\n").stderr("");
}

#[test]
fn results_are_json_on_standard_output() {
    let cluster = Cluster::untraced();
    cluster.submit("wordcount:count", &["\"the quick brown fox\""]).success().stdout("4\n").stderr("");
    cluster
        .submit("misbehaving_tasks:moves", &[r#"{"name":"a","x":1,"y":null}"#, "-2.5"])
        .success()
        .stdout("{\"name\":\"a\",\"x\":-1.5,\"y\":null}\n")
        .stderr("");
    cluster
        .submit("misbehaving_tasks:shapes", &[])
        .success()
        .stdout("{\"empty\":[],\"full\":[null,[true,18446744073709551615,-9223372036854775808]]}\n");
    let mut report = cluster.submit("wordcount:count", &["\"a b\"", "--format", "json"]).success().json();
    if differs!() {
        let id = report.as_object_mut().and_then(|report| report.remove("cluster_task_id"));
        assert!(id.is_some_and(|id| id.to_string().ends_with("-4\"")));
    }
    assert_eq!(report, json!({ "schema_version": 1, "id": 4, "trace_id": null, "result": 2 }));
}

#[test]
fn the_largest_arguments_and_results_arrive_whole() {
    let cluster = Cluster::untraced();
    let size = 20 << 20;
    let run = cluster.submit("misbehaving_tasks:big_result", &[&size.to_string()]).success();
    assert_eq!(run.output.stdout.len(), size + "\"\"\n".len());
    // The kernel takes 128 KiB in one argument.
    let text = "x".repeat(100_000);
    cluster.submit("misbehaving_tasks:length", &[&format!("\"{text}\"")]).success().stdout("100000\n");
}

#[test]
fn an_error_is_told_and_recorded() {
    let cluster = Cluster::traced();
    cluster.submit("misbehaving_tasks:returns_error", &["\"no luck\""]).status(1).stdout("").stderr(
        "error: task 1 (misbehaving_tasks.returns_error) failed: no luck\n\
             (hint: its trace: `tracer trace show <trace>`)\n",
    );
    assert_failed_span(&cluster, 1, "alloc::string::String", "no luck");
}

#[test]
fn an_error_of_its_own_type_is_told_with_its_causes() {
    let cluster = Cluster::traced();
    cluster
        .submit("misbehaving_tasks:returns_typed_error", &[])
        .status(1)
        .stderr_contains("failed: the cork is stuck: invalid digit found in string\n");
    assert_failed_span(&cluster, 1, "misbehaving_tasks::OpenError", "the cork is stuck");
}

#[test]
fn a_panic_is_told_with_its_place_and_leaves_the_worker_at_work() {
    let cluster = Cluster::builder().hook(super::support::HOOK).env("RUST_BACKTRACE", "1").start();
    let before = cluster.worker_pids();
    let place = "panicked at tests/fixtures/misbehaving_tasks/src/lib.rs:";
    cluster
        .submit("misbehaving_tasks:panics", &["\"boom\""])
        .status(1)
        .stdout("")
        .stderr_contains(&format!("error: task 1 (misbehaving_tasks.panics) failed: {place}"))
        .stderr_contains(": boom\n(hint: ");
    assert_failed_span(&cluster, 1, "panic", place);
    let spans = cluster.spans();
    let exception = spans.attempt_of(1).events("exception")[0].clone();
    let stack = exception["attributes"]["exception.stacktrace"].as_str().expect("a panic has a stack");
    assert!(stack.contains("misbehaving_tasks::panics"), "{stack}");
    cluster.tracer(&["submit", "task"]).success().stdout("1\n");
    assert_eq!(cluster.worker_pids(), before);
}

#[test]
fn a_panic_ends_the_spans_that_were_open_in_it() {
    let cluster = Cluster::traced();
    cluster.submit("misbehaving_tasks:panics_in_span", &[]).status(1);
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let inner = spans.named("inner");
    assert_eq!(spans.parent_of(inner).span_id(), spans.attempt_of(1).span_id());
}

#[test]
fn arguments_that_do_not_fit_are_named_with_both_types_and_the_function_is_not_called() {
    let cluster = Cluster::traced();
    let cases: [(&str, &[&str], &str); 6] = [
        ("wordcount:count", &["3"], "argument 1 (`text`) of `count` takes &str, but got an integer"),
        ("wordcount:count", &[], "argument 1 (`text`) of `count` is missing; it takes &str"),
        ("wordcount:count", &["\"a\"", "3"], "`count` takes 1 argument (text: &str), but got 2"),
        ("misbehaving_tasks:moves", &["1", "2"], "argument 1 (`point`) of `moves` takes Point, but got an integer"),
        (
            "misbehaving_tasks:moves",
            &[r#"{"name":"a"}"#, "2"],
            "argument 1 (`point`) of `moves` does not fit Point: missing field `x`",
        ),
        (
            "misbehaving_tasks:exits",
            &["\"3\""],
            "argument 1 (`code`) of `exits` takes i32, a whole number from -2147483648 to 2147483647, but got a string",
        ),
    ];
    for (task, (target, arguments, message)) in (1..).zip(cases) {
        let name = target.replace(':', ".");
        cluster.submit(target, arguments).status(1).stdout("").stderr(&format!(
            "error: task {task} ({name}) failed: {message}\n\
             (hint: its trace: `tracer trace show <trace>`)\n"
        ));
        assert_failed_span(&cluster, task, "arguments", message);
    }
}

#[test]
fn unknown_modules_and_functions_are_named_and_the_nearest_is_offered() {
    let cluster = Cluster::traced();
    cluster
        .submit("wordcuont:count", &["\"a\""])
        .status(1)
        .stderr_contains(
            "module `wordcuont` was not found: there is no `libwordcuont.so` in `<fixtures>`, `<bin>` and ",
        )
        .stderr_contains("\nDid you mean `wordcount`?\n");
    assert_failed_span(&cluster, 1, "module", "module `wordcuont` was not found");
    cluster
        .submit("wordcount:conut", &["\"a\""])
        .status(1)
        .stderr_contains("module `wordcount` (<bin>/libwordcount.so, build ")
        .stderr_contains(") has no task `conut`; it has `count`, `frequencies`")
        .stderr_contains("\nDid you mean `count`?\n");
    assert_failed_span(&cluster, 2, "module", "has no task `conut`");
    if differs!() {
        return;
    }
    cluster
        .submit("./libnone.so:count", &["\"a\""])
        .status(1)
        .stderr_contains("module `<folder>/libnone.so` was not found: there is no such file\n");
}

#[test]
fn a_module_is_also_named_by_the_path_of_its_library() {
    if differs!() {
        return;
    }
    let cluster = Cluster::untraced();
    std::os::unix::fs::symlink(super::support::module_folder().join("libwordcount.so"), cluster.file("here.so"))
        .expect("the folder is ours");
    cluster.submit("./here.so:count", &["\"a b\""]).success().stdout("2\n");
    cluster.submit("here.so:count", &["\"a b c\""]).success().stdout("3\n");
}

#[test]
fn what_is_no_task_and_what_is_no_json_is_a_wrong_command_line() {
    let cluster = Cluster::untraced();
    cluster.submit("wordcount", &[]).status(2).stdout("").stderr(
        "error: a task is named `module:function`, but got `wordcount`\n(hint: for example `demo:my_function`)\n",
    );
    cluster.submit("wordcount:count", &["the quick brown fox"]).status(2).stdout("").stderr(
        "error: argument 1 is not JSON: `the quick brown fox`\n\
         (hint: a text is written with quotes inside quotes: '\"the quick brown fox\"')\n",
    );
    assert!(cluster.tasks().is_empty(), "nothing was submitted");
}

#[test]
fn a_failure_as_json_has_the_reason_and_the_same_exit_code() {
    let cluster = Cluster::untraced();
    let run = cluster.submit("misbehaving_tasks:returns_error", &["\"no\"", "--format", "json"]).status(1).stderr("");
    let report = run.json();
    assert_eq!(
        (&report["id"], &report["message"], &report["failure"]["reason"]),
        (&json!(1), &json!("no"), &json!("error"))
    );
}

#[test]
fn without_waiting_the_id_is_printed_and_get_gives_the_result_later() {
    let cluster = Cluster::traced();
    let run = cluster.submit("wordcount:count", &["\"a b c\"", "--no-wait", "--name", "short"]).success().stdout("1\n");
    if differs!() {
        run.stderr_contains("in the cluster it is task ");
    } else {
        run.stderr("");
    }
    let task = cluster.wait_for_task(1);
    assert_eq!((&task["state"], &task["result"], &task["name"]), (&json!("succeeded"), &json!(3), &json!("short")));
    let shown = cluster.tracer(&["get", "1"]).success().stdout_text();
    let has = |field: &str| shown.lines().any(|line| line.split_whitespace().eq(field.split(' ')));
    assert!(has("result 3") && has("name short"), "{shown}");

    let report =
        cluster.submit("misbehaving_tasks:panics", &["\"x\"", "--no-wait", "--format", "json"]).success().json();
    assert_eq!(report["id"], 2);
    let task = cluster.wait_for_task(2);
    assert_eq!((&task["state"], &task["trace_id"]), (&json!("failed"), &report["trace_id"]));
    assert_eq!(task["failure"]["reason"], "panic");
    cluster.tracer(&["get", "2"]).success().stdout_contains(" panicked at ");
    let spans = cluster.wait_for_spans("of both attempts", |spans| spans.len() == 6);
    spans.assert_whole(&[]);
    assert_eq!(spans.attempt_of(1).attribute("tracer.task_name"), "short");
}

#[test]
fn get_of_a_task_that_never_was_says_so() {
    let cluster = Cluster::untraced();
    cluster.tracer(&["get", "7"]).status(1).stdout("").stderr(
        "error: there is no task 7: it was never submitted to this head, or ended too long ago\n\
         (hint: `tracer list tasks` shows those that are known)\n",
    );
    cluster.tracer(&["get", "x"]).status(1).stdout("").stderr_contains("error: there is no actor `x`\n");
}

#[test]
fn a_function_that_takes_too_long_is_ended_with_its_worker() {
    let cluster = Cluster::traced();
    let waiting = submit_waiting(&cluster, "slow", &["--timeout", "300ms"]);
    waiting.submission.wait().status(124).stdout("").stderr_contains(
        "error: task 1 (misbehaving_tasks.waits) failed: timed out: it was still running after 300 ms\n",
    );
    assert!(!is_alive(waiting.worker_pid), "the worker that ran it is gone");
    assert_failed_span(&cluster, 1, "timeout", "still running after 300 ms");
    cluster.tracer(&["submit", "task"]).success().stdout("1\n");
}

#[test]
fn a_task_within_its_timeout_is_left_alone() {
    let cluster = Cluster::untraced();
    cluster.submit("wordcount:count", &["\"a\"", "--timeout", "1h"]).success().stdout("1\n");
    cluster.submit("wordcount:count", &["\"a\"", "--timeout", "soon"]).status(2).stderr_contains("found `soon`");
}

#[test]
fn a_task_that_ends_its_process_is_told_with_the_exit_code_and_the_worker_is_replaced() {
    let cluster = Cluster::traced();
    let before = cluster.worker_pids();
    cluster.submit("misbehaving_tasks:exits", &["3", "--crash-limit=0"]).status(1).stdout("").stderr(
        "error: task 1 (misbehaving_tasks.exits) failed: its worker (pid <pid>) exited with code 3\n\
         (hint: its trace: `tracer trace show <trace>`)\n",
    );
    assert_failed_span(&cluster, 1, "exit:3", "exited with code 3");
    // Also when it claims that all is well.
    cluster
        .submit("misbehaving_tasks:exits", &["0", "--crash-limit=0"])
        .status(1)
        .stderr_contains("exited with code 0\n");
    cluster.tracer(&["submit", "task"]).success().stdout("1\n");
    let after = cluster.worker_pids();
    assert_eq!(after.len(), 1);
    assert_ne!(after, before);
    assert_eq!(cluster.runner().status()["workers"]["lost"], 2);
}

#[test]
fn a_task_that_aborts_is_told_with_the_signal() {
    let cluster = Cluster::traced();
    cluster
        .submit("misbehaving_tasks:aborts", &["--crash-limit=0"])
        .status(1)
        .stderr_contains("failed: its worker (pid <pid>) was killed by SIGABRT (signal 6)\n");
    assert_failed_span(&cluster, 1, "signal:6", "SIGABRT");
}

#[test]
fn a_worker_that_is_killed_takes_only_its_own_task_with_it() {
    let cluster = Cluster::builder().workers(2).hook(super::support::HOOK).start();
    let doomed = submit_waiting(&cluster, "doomed", &["--crash-limit=0"]);
    let other = submit_waiting(&cluster, "other", &[]);
    assert_ne!(doomed.worker_pid, other.worker_pid);
    kill(doomed.worker_pid, Signal::KILL);
    doomed
        .submission
        .wait()
        .status(1)
        .stderr_contains(&format!("its worker (pid {}) was killed by SIGKILL (signal 9)\n", doomed.worker_pid));
    assert_failed_span(&cluster, 1, "signal:9", "SIGKILL");
    assert!(is_alive(other.worker_pid));
    other.release();
    other.submission.wait().success().stdout(&format!("{}\n", other.worker_pid));
    wait_until("the worker is replaced", || {
        let pids = cluster.worker_pids();
        (pids.len() == 2 && !pids.contains(&doomed.worker_pid)).then_some(())
    });
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    assert_eq!(spans.attempt_of(2).status_code(), "UNSET");
}

#[test]
fn spans_that_were_open_in_a_killed_worker_are_closed_with_what_happened() {
    let cluster = Cluster::traced();
    let (started, released) = (cluster.file("started"), cluster.file("released"));
    let submission = cluster.submit_in_background(
        "misbehaving_tasks:waits_in_span",
        &[&json!(started).to_string(), &json!(released).to_string(), "--crash-limit=0"],
    );
    cluster.wait_for_file(&started);
    let [worker] = cluster.worker_pids()[..] else { panic!("one worker") };
    kill(worker, Signal::KILL);
    submission.wait().status(1);
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let inner = spans.named("inner");
    assert_eq!(inner.status_code(), "ERROR");
    assert_eq!(inner.attribute("error.type"), "signal:9");
    assert_eq!(spans.parent_of(inner).span_id(), spans.attempt_of(1).span_id());
}

#[test]
fn ctrl_c_cancels_the_task() {
    let cluster = Cluster::traced();
    let waiting = submit_waiting(&cluster, "long", &[]);
    waiting.submission.signal(Signal::INT);
    waiting
        .submission
        .wait()
        .status(130)
        .stdout("")
        .stderr_contains("cancelling task 1 (Ctrl-C again ends it at once)\n")
        .stderr_contains("error: task 1 (misbehaving_tasks.waits) failed: it was cancelled\n");
    assert!(!is_alive(waiting.worker_pid), "nothing of the task runs on");
    assert_eq!(cluster.task(1)["failure"]["reason"], "cancelled");
    assert_failed_span(&cluster, 1, "cancelled", "it was cancelled");
    cluster.tracer(&["submit", "task"]).success().stdout("1\n");
}

#[test]
fn cancel_ends_a_task_that_runs_and_one_that_waits_and_says_when_there_is_nothing_to_end() {
    let cluster = Cluster::builder().workers(1).hook("local_tmp_tracing:setup_tracing").start();
    let running = submit_waiting(&cluster, "running", &[]);
    let waiting = cluster.submit("demo:my_function", &["--no-wait"]).success();
    waiting.stdout("2\n");
    let said = if differs!() {
        "task 2 is being cancelled; `tracer get 2` shows how far that is\n"
    } else {
        "task 2 is cancelled\n"
    };
    cluster.tracer(&["cancel", "2"]).success().stdout("").stderr(said);
    cluster.wait_for_task(2);
    cluster
        .tracer(&["cancel", "1"])
        .success()
        .stdout("")
        .stderr("task 1 is being cancelled; `tracer get 1` shows how far that is\n");
    running.submission.wait().status(1).stderr_contains("failed: it was cancelled\n");
    assert!(!is_alive(running.worker_pid));
    assert_failed_span(&cluster, 1, "cancelled", "it was cancelled");
    assert_eq!((&cluster.task(2)["failure"]["reason"], &cluster.task(2)["attempt"]), (&json!("cancelled"), &json!(0)));
    // The worker is replaced.
    cluster.submit("demo:my_function", &[]).success().stdout("1\n");
    cluster.tracer(&["cancel", "3"]).success().stderr("task 3 had ended before; `tracer get 3` shows how\n");
    assert_eq!(
        cluster.tracer(&["cancel", "3", "--format", "json"]).success().json(),
        json!({"schema_version": 1, "tasks": [{"id": 3, "state": "ended"}]})
    );
    cluster
        .tracer(&["cancel", "99"])
        .status(1)
        .stdout("")
        .stderr("error: there is no task 99\n(hint: `tracer list tasks` shows those that are known)\n");
}

#[test]
fn ctrl_c_also_cancels_a_task_that_waits_for_a_worker() {
    let cluster = Cluster::traced();
    let running = submit_waiting(&cluster, "running", &[]);
    let waiting = cluster.submit_in_background("misbehaving_tasks:returns_error", &["\"never\""]);
    wait_until("the second task is known", || (cluster.tasks().len() == 2).then_some(()));
    waiting.signal(Signal::INT);
    waiting.wait().status(130).stderr_contains("failed: it was cancelled\n");
    assert!(is_alive(running.worker_pid), "the task before it is left alone");
    running.release();
    running.submission.wait().success();
}

#[test]
fn a_submitter_that_is_killed_leaves_its_task_running_and_its_span_is_closed() {
    let cluster = Cluster::traced();
    let mut waiting = submit_waiting(&cluster, "orphan", &[]);
    waiting.submission.signal(Signal::KILL);
    wait_until("the submitter has ended", || (!waiting.submission.is_running()).then_some(()));
    waiting.release();
    assert_eq!(cluster.wait_for_task(1)["state"], "succeeded");
    assert_eq!(cluster.task(1)["result"], waiting.worker_pid);
}

#[test]
fn a_result_that_is_too_large_fails_its_task_and_nothing_else() {
    let cluster = Cluster::untraced();
    let [pid] = cluster.worker_pids()[..] else { panic!("one worker") };
    let run = cluster.submit("misbehaving_tasks:big_result", &["300000000"]).status(1).stdout("");
    let run = run.stderr_contains("the result has 300000005 bytes, but at most 266338304 are taken");
    run.stderr_contains("(hint: write large data to a file, and return its path)");
    assert_eq!(cluster.worker_pids(), [pid], "its worker lives");
}

#[test]
fn a_task_that_is_too_large_is_refused_by_the_driver_and_the_next_one_is_not() {
    let cluster = Cluster::untraced();
    let mut driver = Driver::connect(&cluster.temp_dir()).expect("the head runs");
    let text = "x".repeat(300_000_000);
    let error = driver.remote("misbehaving_tasks:length").arg(text).err().expect("it is too large").to_string();
    assert!(error.starts_with("the task with its arguments has 300000"), "{error}");
    assert!(error.contains("at most 266338304 are taken\n(hint: "), "{error}");
    let task = driver
        .remote("misbehaving_tasks:length")
        .arg("x".repeat(20_000_000))
        .expect("a text")
        .submit()
        .expect("it is accepted");
    assert_eq!(driver.get::<usize>(task).expect("it runs"), 20_000_000);
}

#[test]
fn integers_of_128_bits_go_in_and_out_as_numbers() {
    let cluster = Cluster::untraced();
    let (largest, smallest) = (u128::MAX.to_string(), i128::MIN.to_string());
    let nested = format!("[{smallest},-1,{}]", i128::MAX);
    let expected = format!("[{largest},{nested}]");
    cluster.submit("misbehaving_tasks:wide", &[&largest, &nested]).success().stdout(&format!("{expected}\n"));
    cluster.submit("misbehaving_tasks:wide", &["12"]).success().stdout("[12,null]\n");
    cluster.tracer(&["get", "1"]).success().stdout_contains(&expected);
    cluster.tracer(&["get", "1", "--format", "json"]).success().stdout_contains(&expected);
    fs::write(cluster.file("lines"), format!("{largest} {nested}\n")).unwrap();
    let mapped = cluster.tracer(&["submit", "task", "misbehaving_tasks:wide", "--map", "lines"]).success();
    mapped.stdout(&format!("{expected}\n"));
    cluster
        .submit("misbehaving_tasks:wide", &["-1"])
        .status(1)
        .stderr_contains("takes u128, a whole number, but got a negative integer");
}

#[test]
fn what_json_cannot_say_of_a_result_is_said_with_its_place() {
    let cluster = Cluster::untraced();
    let said =
        "warning: JSON cannot say all of the result: `[1].x` is NaN, which is written as null; `[2].x` is infinite";
    let printed = "[{\"x\":0.5},{\"x\":null},{\"x\":null}]\n";
    cluster.submit("misbehaving_tasks:not_finite", &[]).success().stdout(printed).stderr_contains(said);
    cluster.tracer(&["get", "1"]).success().stderr_contains(said);
    let task = cluster.task(1);
    assert_eq!(task["result"], serde_json::json!([{"x": 0.5}, {"x": null}, {"x": null}]));
    assert!(task["result_loss"].as_str().unwrap().contains("`[1].x` is NaN"), "{task}");
    assert_eq!(cluster.submit("demo:my_function", &[]).success().stderr_text(), "");
}

#[test]
fn a_target_as_lists_write_it_gets_the_one_that_is_meant() {
    let cluster = Cluster::untraced();
    cluster.submit("wordcount.count", &["\"a\""]).status(2).stderr_contains("did you mean `wordcount:count`?");
    let actor = cluster.tracer(&["submit", "actor", "counter.Counter"]);
    actor.status(2).stderr_contains("did you mean `counter:Counter`?");
}
