//! `tracer submit task --map`: one task for each line.

use std::io::{PipeWriter, Write};
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::support::{Background, Cluster, in_a_terminal, kill, wait_until};

fn write_lines(cluster: &Cluster, lines: &[impl AsRef<str>]) {
    let text: String = lines.iter().map(|line| format!("{}\n", line.as_ref())).collect();
    std::fs::write(cluster.file("lines"), text).expect("the folder is ours");
}

/// Starts `tracer submit task TARGET --map -` with an open end of a pipe for its input.
#[track_caller]
fn map_of_pipe(cluster: &Cluster, target: &str, flags: &[&str]) -> (Background, PipeWriter) {
    let (input, pipe) = std::io::pipe().expect("a pipe");
    let mut command = cluster.command(&["submit", "task", target, "--map", "-"]);
    command.args(flags).stdin(Stdio::from(input));
    let running = cluster.spawn(command);
    (running, pipe)
}

/// Returns the arguments of `misbehaving_tasks:waits`, as a line.
fn waiting_line(cluster: &Cluster, name: &str) -> String {
    let (started, released) = (cluster.file(&format!("{name}-started")), cluster.file(&format!("{name}-released")));
    format!("{} {}", json!(started), json!(released))
}

fn release(cluster: &Cluster, name: &str) {
    std::fs::write(cluster.file(&format!("{name}-released")), "").expect("the folder is ours");
}

#[test]
fn each_line_is_a_task_and_each_result_a_line() {
    let cluster = Cluster::traced();
    write_lines(&cluster, &[r#""a b""#, "", r#""c""#, "\t", r#""d e f""#]);
    cluster
        .submit("wordcount:count", &["--map", "lines", "--keep-order"])
        .success()
        .stdout("2\n1\n3\n")
        .stderr_contains("3 tasks: 3 succeeded, 0 failed in ");
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let job = spans.named("tracer job");
    assert_eq!(job.attribute("tracer.task_count"), 3);
    for task in 1..=3 {
        let producer = spans.parent_of(spans.attempt_of(task));
        assert_eq!(spans.parent_of(producer).span_id(), job.span_id());
    }
}

#[test]
fn arguments_of_a_line_follow_those_of_the_command_line() {
    let cluster = Cluster::untraced();
    write_lines(&cluster, &["1.5", "-2"]);
    cluster
        .submit("misbehaving_tasks:moves", &[r#"{"name":"a","x":1,"y":null}"#, "--map", "lines", "--keep-order"])
        .success()
        .stdout("{\"name\":\"a\",\"x\":2.5,\"y\":null}\n{\"name\":\"a\",\"x\":-1.0,\"y\":null}\n");
}

#[test]
fn texts_need_no_quotes() {
    let cluster = Cluster::untraced();
    std::fs::write(cluster.file("lines"), "the quick fox\n\n\"a\" 'b\nno end").expect("the folder is ours");
    cluster
        .submit("wordcount:count", &["--map", "lines", "--map-text", "--keep-order"])
        .success()
        .stdout("3\n0\n2\n2\n");
}

#[test]
fn a_line_that_fails_is_named_and_the_others_go_on() {
    let cluster = Cluster::untraced();
    write_lines(&cluster, &["1", "fox", "\"x\"", "3"]);
    cluster
        .submit("misbehaving_tasks:big_result", &["--map", "lines", "--keep-order"])
        .status(1)
        .stdout("\"x\"\n\"xxx\"\n")
        .stderr_contains("line 2 failed: it is not JSON: `fox`\n(hint: with --map-text each line is taken as a text)\n")
        .stderr_contains("line 3 (task 2) failed: ")
        .stderr_contains("4 tasks: 2 succeeded, 2 failed in ");
    let run = cluster.submit("misbehaving_tasks:returns_error", &["\"no luck\"", "--map", "-"]);
    run.success().stdout("").stderr_contains("0 tasks: 0 succeeded, 0 failed in ");
}

#[test]
fn json_lines_tell_the_line_the_task_and_the_outcome() {
    let cluster = Cluster::traced();
    write_lines(&cluster, &["\"no luck\"", "}"]);
    let run = cluster
        .submit("misbehaving_tasks:returns_error", &["--map", "lines", "--keep-order", "--format", "json"])
        .status(1);
    let lines: Vec<Value> =
        run.stdout_text().lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
    let trace_id = cluster.spans().named("tracer job").trace_id().to_owned();
    assert_eq!(lines.len(), 2, "{run:?}");
    assert_eq!((&lines[0]["line"], &lines[0]["id"]), (&json!(1), &json!(1)));
    assert_eq!(lines[0]["trace_id"], json!(trace_id.trim_start_matches("0x")));
    assert_eq!(lines[0]["message"], "no luck");
    assert!(lines[0]["failure"].is_object(), "{}", lines[0]);
    assert_eq!((&lines[1]["line"], &lines[1]["id"]), (&json!(2), &Value::Null));
    assert!(lines[1]["message"].as_str().expect("a text").starts_with("it is not JSON"), "{}", lines[1]);
    let job = cluster.spans().named("tracer job").clone();
    assert_eq!((job.status_code(), job.status_description()), ("ERROR", "2 tasks: 0 succeeded, 2 failed"));
}

#[test]
fn results_come_as_they_are_ready_while_the_input_is_open() {
    let cluster = Cluster::builder().workers(2).start();
    let (running, mut pipe) = map_of_pipe(&cluster, "misbehaving_tasks:waits", &["--format", "json"]);
    let line = |name: &str| waiting_line(&cluster, name) + "\n";
    pipe.write_all((line("first") + &line("second")).as_bytes()).expect("it reads");
    release(&cluster, "second");
    running.wait_for_stdout("\"line\":2,");
    assert!(!running.stdout_text().contains("\"line\":1,"), "the first waits: {}", running.stdout_text());
    release(&cluster, "first");
    running.wait_for_stdout("\"line\":1,");
    drop(pipe);
    running.wait().success().stderr_contains("2 tasks: 2 succeeded");
}

#[test]
fn an_order_that_is_kept_holds_results_back() {
    let cluster = Cluster::builder().workers(2).start();
    let (running, mut pipe) = map_of_pipe(&cluster, "misbehaving_tasks:waits", &["--keep-order", "--format", "json"]);
    let line = |name: &str| waiting_line(&cluster, name) + "\n";
    pipe.write_all((line("first") + &line("second")).as_bytes()).expect("it reads");
    release(&cluster, "second");
    cluster.wait_for_file(&cluster.file("second-started"));
    assert_eq!(cluster.wait_for_task(2)["state"], "succeeded");
    assert_eq!(running.stdout_text(), "");
    release(&cluster, "first");
    drop(pipe);
    let run = running.wait().success();
    let lines: Vec<u64> = run
        .stdout_text()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("a line is JSON")["line"].as_u64().expect("a number"))
        .collect();
    assert_eq!(lines, [1, 2]);
}

#[test]
fn no_more_are_in_flight_than_asked_for() {
    let cluster = Cluster::untraced();
    write_lines(&cluster, &[waiting_line(&cluster, "first"), waiting_line(&cluster, "second"), "0 0".into()]);
    let running = cluster.submit_in_background("misbehaving_tasks:waits", &["--map", "lines", "--max-in-flight", "2"]);
    cluster.wait_for_file(&cluster.file("first-started"));
    assert_eq!(cluster.tasks().len(), 2);
    release(&cluster, "first");
    cluster.wait_for_file(&cluster.file("second-started"));
    release(&cluster, "second");
    running.wait().status(1).stderr_contains("3 tasks: 2 succeeded, 1 failed");
}

#[test]
fn thousands_of_lines_go_through_a_small_window() {
    let cluster = Cluster::builder().workers(2).start();
    let lines: Vec<_> = (0..5000).map(|number| "x ".repeat(number % 7)).collect();
    write_lines(&cluster, &lines);
    let flags = ["--map", "lines", "--map-text", "--keep-order", "--max-in-flight", "50"];
    let run = cluster.submit("wordcount:count", &flags).success();
    let expected: String = (0..5000).map(|number| format!("{}\n", number % 7)).collect();
    assert_eq!(run.stdout_text(), expected);
}

#[test]
fn halt_soon_takes_no_more_lines_and_waits_for_the_others() {
    let cluster = Cluster::untraced();
    let (running, mut pipe) = map_of_pipe(&cluster, "misbehaving_tasks:waits", &["--halt", "soon"]);
    pipe.write_all((waiting_line(&cluster, "first") + "\nnonsense\n").as_bytes()).expect("it reads");
    running.wait_for_stderr("line 2 failed");
    // It need not be read any more, and the reader may be gone.
    let _ = pipe.write_all((waiting_line(&cluster, "second") + "\n").as_bytes());
    release(&cluster, "first");
    running.wait().status(1).stderr_contains("2 tasks: 1 succeeded, 1 failed");
    assert_eq!(cluster.tasks().len(), 1);
}

#[test]
fn halt_now_cancels_the_others() {
    let cluster = Cluster::builder().workers(2).start();
    let (running, mut pipe) = map_of_pipe(&cluster, "misbehaving_tasks:waits", &["--halt", "now,fail=2"]);
    pipe.write_all((waiting_line(&cluster, "first") + "\nnonsense\n").as_bytes()).expect("it reads");
    running.wait_for_stderr("line 2 failed");
    cluster.wait_for_file(&cluster.file("first-started"));
    pipe.write_all(b"nonsense\n").expect("it reads");
    running.wait().status(1).stderr_contains("3 tasks: 0 succeeded, 2 failed, 1 cancelled");
    assert_eq!(cluster.task(1)["failure"]["reason"], "cancelled");
}

#[test]
fn ctrl_c_cancels_all_of_them() {
    let cluster = Cluster::traced();
    write_lines(&cluster, &[waiting_line(&cluster, "first"), waiting_line(&cluster, "second")]);
    let running = cluster.submit_in_background("misbehaving_tasks:waits", &["--map", "lines"]);
    cluster.wait_for_file(&cluster.file("first-started"));
    running.signal(Signal::INT);
    let run = running
        .wait()
        .status(130)
        .stdout("")
        .stderr_contains("cancelling 2 tasks (Ctrl-C again leaves them)\n")
        .stderr_contains("2 tasks: 0 succeeded, 0 failed, 2 cancelled");
    assert!(!run.stderr_text().contains("line "), "one line has the count: {}", run.describe());
    cluster.spans().assert_whole(&[]);
}

#[test]
fn what_is_wrong_with_every_line_stops_it_and_equal_failures_are_counted() {
    let cluster = Cluster::untraced();
    write_lines(&cluster, &vec!["\"x\""; 3000]);
    let map = |target: &str, flags: &[&str]| {
        cluster.submit(target, &[&["--map", "lines"], flags].concat()).status(1).stdout("")
    };
    for (target, message) in [
        ("wordcount:cuont", "Did you mean `count`?"),
        ("wordcoun:count", "Did you mean `wordcount`?"),
        ("misbehaving_tasks:listens", "argument 2 (`cleaned`) of `listens` is missing"),
        ("demo:my_function", "but got 1"),
    ] {
        let known = cluster.tasks().len();
        let run = map(target, &[]).stderr_contains(message).stderr_contains("stopping, because each line would fail");
        // Once, and once with a count.
        assert!(run.stderr_text().matches(message).count() <= 2, "{}", run.describe());
        assert!(cluster.tasks().len() - known <= 64, "{target}: what else is remembered is forgotten for them");
    }
    // Where the user wants to go on, each failure counts and one is shown.
    let run = map("misbehaving_tasks:returns_error", &[]).stderr_contains("3000 tasks: 0 succeeded, 3000 failed");
    assert_eq!(run.stderr_text().lines().count(), 3, "{}", run.describe());
    run.stderr_contains("2999 further lines failed as line ");
    map("wordcount:cuont", &["--halt", "never"]).stderr_contains("3000 tasks: 0 succeeded, 3000 failed");
}

#[test]
fn a_second_ctrl_c_leaves_at_once() {
    let cluster = Cluster::untraced();
    let (running, mut pipe) = map_of_pipe(&cluster, "misbehaving_tasks:waits", &[]);
    pipe.write_all((waiting_line(&cluster, "first") + "\n").as_bytes()).expect("it reads");
    cluster.wait_for_file(&cluster.file("first-started"));
    // A stopped head answers nothing.
    kill(cluster.head_pid(), Signal::STOP);
    running.signal(Signal::INT);
    running.wait_for_stderr("cancelling 1 task (Ctrl-C again leaves them)");
    running.signal(Signal::INT);
    running.wait().status(130);
    kill(cluster.head_pid(), Signal::CONT);
}

#[test]
fn an_input_that_cannot_be_read_is_refused_before_anything_runs() {
    let cluster = Cluster::untraced();
    cluster
        .submit("wordcount:count", &["--map", "absent"])
        .status(2)
        .stderr_contains("error: the lines for `--map` cannot be read from absent: No such file or directory");
    cluster
        .submit("wordcount:count", &["--map", "."])
        .status(2)
        .stderr_contains("cannot be read from .: is a directory");
    cluster
        .submit("wordcount:count", &["--map", "lines", "--no-wait"])
        .status(2)
        .stderr_contains("cannot be used with");
    cluster.submit("wordcount:count", &["--keep-order"]).status(2).stderr_contains("--map <FILE>");
    cluster
        .submit("wordcount:count", &["--map", "lines", "--halt", "later"])
        .status(2)
        .stderr_contains("expected `never`, `soon`, `now`, `soon,fail=N` or `now,fail=N`, with N from 1");
    assert_eq!(cluster.tasks().len(), 0);
}

#[test]
fn the_rate_and_the_time_left_are_shown_on_a_terminal() {
    let cluster = Cluster::untraced();
    write_lines(&cluster, &[waiting_line(&cluster, "first"), waiting_line(&cluster, "second")]);
    let (mut child, screen) = in_a_terminal(&cluster, &["submit", "task", "misbehaving_tasks:waits", "--map", "lines"]);
    let text = || screen.lock().expect("the reader is well").clone();
    release(&cluster, "first");
    wait_until("it shows one of two tasks", || {
        let shown = text();
        (shown.contains("1/2 tasks") && shown.contains("0 failed") && shown.contains(" left")).then_some(())
    });
    release(&cluster, "second");
    assert!(wait_until("it ends", || child.try_wait().expect("it is ours")).success());
    wait_until("it tells the end", || text().contains("2 tasks: 2 succeeded, 0 failed").then_some(()));
}
