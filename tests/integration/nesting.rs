//! Tasks that submit tasks: results, failures, waiting, and the one trace that it all is.

use rustix::process::Signal;
use serde_json::{Value, json};
use tracer::driver::DriverError;
use tracer::task::Failure;

use super::support::{Cluster, Driver, HOOK, Span, Spans, is_alive, kill, wait_until};

const SUBMITTED: &str = "nested_tasks.square tracer.remote";
const RUN: &str = "nested_tasks.square tracer.remote_worker";

/// Returns the names of the spans from this one up to the root.
fn way_up(spans: &Spans, span: &Span) -> Vec<String> {
    let mut names = vec![span.name().to_owned()];
    let mut current = span;
    while current.parent_id().is_some() {
        current = spans.parent_of(current);
        names.push(current.name().to_owned());
    }
    names
}

#[test]
fn a_task_submits_tasks_and_gets_their_results() {
    let cluster = Cluster::builder().hook(HOOK).workers(2).start();
    let run = cluster.submit("nested_tasks:sum_of_squares", &["300"]).success();
    assert_eq!(run.json(), json!(299 * 300 * 599 / 6));

    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let parent = spans.named("nested_tasks.sum_of_squares tracer.remote_worker");
    let (submitted, run) = (spans.all_named(SUBMITTED), spans.all_named(RUN));
    assert_eq!((submitted.len(), run.len()), (300, 300));
    let expected = [
        RUN,
        SUBMITTED,
        "nested_tasks.sum_of_squares tracer.remote_worker",
        "nested_tasks.sum_of_squares tracer.remote",
        "tracer job",
    ];
    for span in run {
        assert_eq!(way_up(&spans, span), expected);
        assert_eq!(span.attribute("tracer.job_id"), parent.attribute("tracer.job_id"));
        let producer = spans.parent_of(span);
        assert_eq!(producer.kind(), "SpanKind.PRODUCER");
        assert_eq!(producer.file, parent.file, "it is made in the process that submits");
        assert_eq!(producer.attribute("tracer.task_id"), span.attribute("tracer.task_id"));
        assert_eq!(producer.attribute("tracer.job_id"), parent.attribute("tracer.job_id"));
    }
}

#[test]
fn the_example_fans_out_and_sums() {
    let cluster = Cluster::builder().hook(HOOK).workers(2).start();
    let lines = r#"["to be or", "not to be", "that"]"#;
    assert_eq!(cluster.submit("fan_out:count_lines", &[lines]).success().json(), json!(7));
    assert_eq!(cluster.submit("fan_out:find_line", &[lines, "2"]).success().json(), json!(3));
    assert_eq!(cluster.submit("fan_out:find_line", &[lines, "3"]).success().json(), json!(null));
    cluster.spans().assert_whole(&[]);
}

#[test]
fn a_submission_is_a_child_of_the_span_around_it_and_takes_baggage_along() {
    let cluster = Cluster::builder().hook(HOOK).workers(2).start();
    let mut submit = cluster.command(&["submit", "task", "nested_tasks:in_span"]);
    submit.env("TRACEPARENT", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").env("TRACESTATE", "vendor=1");
    assert_eq!(cluster.run(submit).success().json(), json!("outer=1"));
    let spans = cluster.spans();
    spans.assert_whole(&["0xb7ad6b7169203331"]);
    let inner = spans.named("nested_tasks.baggage tracer.remote_worker");
    assert_eq!(*inner.attribute("tracer.task_name"), "inner one");
    assert_eq!(spans.parent_of(spans.parent_of(inner)).name(), "around");
    assert!(inner.value["context"]["trace_state"].to_string().contains("vendor"), "{}", inner.value);
}

#[test]
fn futures_and_threads_of_a_task_submit_too() {
    let cluster = Cluster::builder().hook(HOOK).workers(2).start();
    assert_eq!(cluster.submit("nested_tasks:in_futures", &[]).success().json(), json!(25));
    assert_eq!(cluster.submit("nested_tasks:on_threads", &[]).success().json(), json!(4 * 30));
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    for (parent, count) in [("in_futures", 2), ("on_threads", 20)] {
        let parent = spans.named(&format!("nested_tasks.{parent} tracer.remote_worker"));
        let children = spans.children_of(parent);
        assert_eq!(children.iter().filter(|span| span.name() == SUBMITTED).count(), count, "{}", spans.describe());
    }
}

#[test]
fn an_untraced_task_submits_too() {
    let cluster = Cluster::builder().workers(2).start();
    assert_eq!(cluster.submit("nested_tasks:sum_of_squares", &["5"]).success().json(), json!(30));
    assert!(cluster.spans().is_empty());
}

#[test]
fn results_come_as_their_tasks_end_and_a_wait_may_have_an_end() {
    let cluster = Cluster::builder().workers(4).start();
    let folder = cluster.file("numbers");
    std::fs::create_dir(&folder).unwrap();
    let arguments = [json!(folder).to_string(), "[1, 2, 3]".to_owned()];
    let run = cluster.submit_in_background("nested_tasks:as_they_end", &[&arguments[0], &arguments[1]]);
    for number in [3, 1, 2] {
        std::fs::write(folder.join(number.to_string()), "").unwrap();
        cluster.wait_for_file(&folder.join(format!("seen-{number}")));
    }
    assert_eq!(run.wait().success().json(), json!([3, 1, 2]));
    let path = json!(cluster.file("go")).to_string();
    assert_eq!(cluster.submit("nested_tasks:impatient", &[&path]).success().json(), json!(5));
}

#[test]
fn a_failure_of_a_child_is_told_with_its_causes() {
    let cluster = Cluster::builder().hook(HOOK).workers(2).start();
    let of_a_failure = |target: &str, message: &str| {
        let (target, message) = (json!(target).to_string(), json!(message).to_string());
        cluster.submit("nested_tasks:of_a_failure", &[&target, &message]).status(1).stderr_text()
    };
    let text = of_a_failure("misbehaving_tasks:returns_error", "no such bottle");
    assert!(text.contains(") failed: task 2 (misbehaving_tasks.returns_error) failed: no such bottle\n"), "{text}");
    let text = of_a_failure("nested_tasks:nothing", "");
    assert!(text.contains("task 4 (nested_tasks.nothing) failed: "), "{text}");
    let text = of_a_failure("nested_tasks", "");
    assert!(text.contains("a task is named `module:function`, but got `nested_tasks`"), "{text}");

    let explains = |target: &str| cluster.submit("nested_tasks:explains", &[target, "\"boom\""]).success().json();
    let error = explains("\"misbehaving_tasks:panics\"");
    assert_eq!((&error[0], &error[1]), (&json!("Panicked"), &json!("panic")), "{error}");
    let error = explains("\"misbehaving_tasks:returns_error\"");
    assert_eq!((&error[0], &error[2]), (&json!("Returned"), &json!("boom")), "{error}");
    let error = explains("\"nested_tasks:square\"");
    assert_eq!((&error[0], &error[1]), (&json!("Arguments"), &json!("arguments")), "{error}");
    cluster.spans().assert_whole(&[]);
}

#[test]
fn a_child_that_nobody_waits_for_runs_on() {
    let cluster = Cluster::builder().hook(HOOK).workers(2).start();
    let path = cluster.file("go");
    let child = cluster.submit("nested_tasks:leaves_one_behind", &[&json!(path).to_string()]).success().json();
    std::fs::write(path, "").unwrap();
    let child = cluster.runner().wait_for_task(child.as_u64().unwrap());
    assert_eq!((&child["state"], &child["result"]), (&json!("succeeded"), &json!(1)));
    cluster.spans().assert_whole(&[]);
}

#[test]
fn recursion_deeper_than_there_are_workers_does_not_deadlock() {
    for max_processes in ["2", "5", "60"] {
        let cluster = Cluster::builder().hook(HOOK).workers(2).arg("--max-processes").arg(max_processes).start();
        assert_eq!(cluster.submit("nested_tasks:descend", &["50"]).success().json(), json!(50));
        let spans = cluster.spans();
        spans.assert_whole(&[]);
        let runs = spans.all_named("nested_tasks.descend tracer.remote_worker");
        assert_eq!(runs.len(), 51);
        let innermost = runs.iter().max_by_key(|span| way_up(&spans, span).len()).unwrap();
        assert_eq!(way_up(&spans, innermost).len(), 2 * 51 + 1, "one in the other");
        assert_eq!(cluster.status()["workers"]["lost"], 0);
        let processes = runs.iter().map(|span| &span.file).collect::<std::collections::HashSet<_>>().len();
        assert!(processes <= max_processes.parse().unwrap(), "{processes} processes ran them");
    }
}

#[test]
fn a_process_that_may_be_the_only_one_runs_what_it_waits_for() {
    let cluster = Cluster::builder().hook(HOOK).arg("--max-processes=1").start();
    assert_eq!(cluster.submit("nested_tasks:sum_of_squares", &["300"]).success().json(), json!(299 * 300 * 599 / 6));
    assert_eq!(cluster.submit("nested_tasks:in_futures", &[]).success().json(), json!(25));
    assert_eq!(cluster.submit("nested_tasks:on_threads", &[]).success().json(), json!(120));
    assert_eq!(cluster.submit("nested_tasks:in_span", &[]).success().json(), json!("outer=1"));
    let explained =
        cluster.submit("nested_tasks:explains", &["\"misbehaving_tasks:panics\"", "\"boom\""]).success().json();
    assert_eq!(explained[0], "Panicked", "{explained}");
    let said = explained[2].as_str().unwrap();
    assert!(said.starts_with("panicked at tests/fixtures/") && said.ends_with(": boom"), "{said}");
    // The inner task has a current span, a running task and `tracing` spans of its own.
    let seen = cluster.submit("nested_tasks:looks_around", &["true"]).success().json();
    assert_eq!(seen["outer_before"], seen["outer_after"]);
    assert_ne!(seen["outer_before"], seen["inner"]["task"]);
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let inner = spans.only("is the inner attempt", |span| {
        span.name() == "nested_tasks.looks_around tracer.remote_worker"
            && *span.attribute("tracer.task_id") == seen["inner"]["task"]
    });
    for name in ["seen by tracing", "seen by opentelemetry"] {
        let below: Vec<_> = spans.children_of(inner).into_iter().filter(|span| span.name() == name).collect();
        assert_eq!(below.len(), 1, "`{name}`: {}", spans.describe());
    }
    assert_eq!(cluster.worker_pids().len(), 1);
}

#[test]
fn many_parents_that_wait_neither_take_all_processes_nor_starve() {
    let cluster = Cluster::builder().workers(2).arg("--max-processes=6").start();
    let mut driver = Driver::connect(&cluster.temp_dir()).unwrap();
    let tasks: Vec<_> =
        (0..1000).map(|_| driver.remote("nested_tasks:sum_of_squares").arg(3).unwrap().submit().unwrap()).collect();
    let mut most = 0;
    for task in tasks {
        assert_eq!(driver.get::<u64>(task).unwrap(), 5);
        if most < 6 {
            most = most.max(cluster.worker_pids().len());
        }
    }
    assert!((3..=6).contains(&most), "{most} processes at once");
    assert_eq!(cluster.status()["workers"]["lost"], 0);
    wait_until("those that are not needed have ended", || (cluster.worker_pids().len() == 2).then_some(()));
    assert_eq!(cluster.status()["workers"]["lost"], 0, "they were told to");
}

#[test]
fn a_task_whose_wait_is_over_goes_on_although_others_are_in_the_queue() {
    let cluster = Cluster::builder().arg("--max-processes=2").start();
    let quoted = |name: &str| json!(cluster.file(name)).to_string();
    let (said, go, never) = (quoted("said"), quoted("go"), quoted("end"));
    let parent = cluster.submit_in_background("nested_tasks:waits_for_children", &["1", &said, &go]);
    cluster.wait_for_file(&cluster.file("said"));
    wait_until("a worker waits", || (cluster.runner().status()["workers"]["waiting"] == 1).then_some(()));
    assert!(cluster.workers().iter().any(|worker| worker["state"] == "waiting"));
    let queued: Vec<_> = (0..5).map(|_| cluster.submit_in_background("nested_tasks:after", &[&never, "1"])).collect();
    let waiting = || cluster.tasks().iter().filter(|task| task["state"] == "waiting").count();
    wait_until("they are queued", || (waiting() == 5).then_some(()));
    std::fs::write(cluster.file("go"), "").unwrap();
    assert_eq!(parent.wait().success().json(), json!(0));
    std::fs::write(cluster.file("end"), "").unwrap();
    queued.into_iter().for_each(|run| drop(run.wait().success()));
}

#[test]
fn the_number_of_processes_is_checked() {
    let (_cluster, run) = Cluster::builder().workers(3).arg("--max-processes=2").try_start();
    run.status(2).stderr_contains("expected no less than the 3 of --num-workers, found 2");
}

#[test]
fn a_handle_is_an_argument_and_its_result_comes_in_its_place() {
    let cluster = Cluster::builder().hook(HOOK).workers(2).start();
    assert_eq!(cluster.submit("nested_tasks:diamond", &["3"]).success().json(), json!(18 * 18));
    cluster.spans().assert_whole(&[]);

    let mut driver = Driver::connect(&cluster.temp_dir()).unwrap();
    let path = cluster.file("go");
    let slow = driver.remote("nested_tasks:after").arg(&path).unwrap().arg(4).unwrap().submit().unwrap();
    let sum = driver.remote("nested_tasks:add").arg(&slow).unwrap().arg(2).unwrap().submit().unwrap();
    let square = driver.remote("nested_tasks:square").arg(&sum).unwrap().submit().unwrap();
    let id = driver.accepted(&square).unwrap();
    assert_eq!(cluster.task(id.0)["state"], "waiting");
    std::fs::write(path, "").unwrap();
    assert_eq!(driver.get::<u64>(square).unwrap(), 36);
    assert_eq!(driver.get::<u64>(slow).unwrap(), 4);
}

#[test]
fn a_task_runs_what_its_children_need_where_there_is_one_process() {
    let cluster = Cluster::builder().arg("--max-processes=1").start();
    assert_eq!(cluster.submit("nested_tasks:diamond", &["2"]).success().json(), json!(64));
}

#[test]
fn a_task_fails_with_the_one_whose_result_it_was_to_get() {
    let cluster = Cluster::builder().start();
    let mut driver = Driver::connect(&cluster.temp_dir()).unwrap();
    let fails = driver.remote("misbehaving_tasks:returns_error").arg("no bottle").unwrap().submit().unwrap();
    let sum = driver.remote("nested_tasks:add").arg(&fails).unwrap().arg(2).unwrap().submit().unwrap();
    let square = driver.remote("nested_tasks:square").arg(&sum).unwrap().submit().unwrap();
    let error = driver.get::<u64>(square).unwrap_err();
    let cause = "task 1 (misbehaving_tasks.returns_error), whose result is an argument of it, failed: no bottle";
    let expected =
        format!("task 3 failed: task 2 (nested_tasks.add), whose result is an argument of it, failed: {cause}");
    assert_eq!(error.to_string(), expected);
    let DriverError::Failed { failure: Failure::Input { cause, .. }, .. } = error else { panic!("{error:?}") };
    assert!(matches!(*cause, Failure::Input { .. }), "{cause:?}");
}

#[test]
fn what_waits_for_results_outlives_the_head() {
    let cluster = Cluster::builder().start();
    let mut driver = Driver::connect(&cluster.temp_dir()).unwrap();
    let (said, go) = (cluster.file("said"), cluster.file("go"));
    let busy = driver.remote("nested_tasks:says_and_waits").arg(&said).unwrap().arg(&go).unwrap().submit().unwrap();
    let square = driver.remote("nested_tasks:square").arg(3).unwrap().submit().unwrap();
    let sum = driver.remote("nested_tasks:add").arg(&square).unwrap().arg(&square).unwrap().submit().unwrap();
    let lost = driver.remote("nested_tasks:square").arg(&busy).unwrap().submit().unwrap();
    let [sum, lost] = [&sum, &lost].map(|task| driver.accepted(task).unwrap().0);
    cluster.wait_for_file(&said);
    cluster.kill_head();
    std::fs::write(go, "").unwrap();
    cluster.start_head(&[]).success();
    let task = cluster.wait_for_task(sum);
    assert_eq!((&task["state"], &task["result"]), (&json!("succeeded"), &json!(18)));
    cluster.wait_for_task(lost);
}

/// Returns a parent that waits for two children, which wait for a file. Returns its run in the background, its id, and theirs.
fn family(cluster: &Cluster) -> (super::support::Background, u64, Vec<u64>) {
    let [said, go] = ["said", "go"].map(|name| json!(cluster.file(name)).to_string());
    let parent = cluster.submit_in_background("nested_tasks:waits_for_children", &["2", &said, &go, "--crash-limit=0"]);
    cluster.wait_for_file(&cluster.file("said"));
    let text = std::fs::read_to_string(cluster.file("said")).unwrap();
    let children: Vec<u64> = text.split(' ').map(|id| id.parse().unwrap()).collect();
    let is_running = |id: &u64| cluster.runner().task(*id)["state"] == "running";
    wait_until("the children run", || children.iter().all(is_running).then_some(()));
    let id = cluster.tasks().iter().filter_map(|task| task["id"].as_u64()).min().unwrap();
    (parent, id, children)
}

#[track_caller]
fn assert_abandoned(cluster: &Cluster, parent: u64, children: &[u64]) {
    for &child in children {
        let child = cluster.runner().wait_for_task(child);
        assert_eq!(child["failure"], json!({ "reason": "abandoned", "submitter": parent }), "{child}");
    }
    let spans = cluster.wait_for_spans("the attempts are closed", |spans| {
        children.iter().all(|child| {
            spans.iter().any(|span| span.kind() == "SpanKind.CONSUMER" && *span.attribute("tracer.task_id") == *child)
        })
    });
    spans.assert_whole(&[]);
    for &child in children {
        let attempt = spans.attempt_of(child);
        assert_eq!((attempt.status_code(), attempt.attribute("error.type")), ("ERROR", &json!("cancelled")));
        let way = way_up(&spans, attempt);
        assert_eq!(way.last().map(String::as_str), Some("tracer job"), "{way:?}");
    }
}

#[test]
fn a_parent_that_is_killed_while_it_waits_takes_its_children_with_it_in_one_whole_trace() {
    let cluster = Cluster::builder().hook(HOOK).workers(2).start();
    let (run, parent, children) = family(&cluster);
    let workers = cluster.workers();
    let of_parent = workers.iter().find(|worker| worker["state"] == "waiting").expect("it waits");
    let others: Vec<u32> = cluster.worker_pids();
    kill(u32::try_from(of_parent["pid"].as_u64().unwrap()).unwrap(), Signal::KILL);
    run.wait().status(1).stderr_contains("was killed by SIGKILL (signal 9)");
    assert_abandoned(&cluster, parent, &children);
    wait_until("their workers have ended", || others.iter().all(|&pid| !is_alive(pid)).then_some(()));
}

#[test]
fn cancelling_a_parent_cancels_its_children() {
    let cluster = Cluster::builder().hook(HOOK).workers(2).start();
    let (run, parent, children) = family(&cluster);
    cluster.tracer(&["cancel", &parent.to_string()]).success();
    run.wait().status(1).stderr_contains("it was cancelled");
    assert_abandoned(&cluster, parent, &children);
}

#[test]
fn a_trace_of_nested_tasks_is_shown_as_a_tree() {
    let cluster = Cluster::builder().hook(HOOK).workers(2).start();
    cluster.submit("nested_tasks:descend", &["2"]).success();
    let mut show = cluster.command(&["trace", "show", "last"]);
    show.env("COLUMNS", "200");
    let shown = cluster.run(show).success().stdout_text();
    let lines: Vec<_> = shown.lines().filter(|line| line.contains("nested_tasks.descend")).collect();
    assert_eq!(lines.len(), 6, "each submission and each run: {shown}");
    let depth = |line: &&str| line.find("nested_tasks").unwrap();
    assert!(lines.iter().map(depth).collect::<Vec<_>>().is_sorted_by(|a, b| a < b), "{shown}");
    let json: Value = cluster.tracer(&["trace", "show", "last", "--format", "json"]).success().json();
    assert!(json.to_string().matches("nested_tasks.descend tracer.remote_worker").count() >= 3);
}

#[test]
fn a_task_says_what_is_done_when_those_that_it_submits_fail() {
    let cluster = Cluster::builder().workers(2).start();
    let folder = json!(cluster.folder()).to_string();
    let ends = cluster.submit("nested_tasks:with_policies", &[&folder]).success().json();
    let ends: Vec<_> = ends.as_array().expect("a list").iter().map(|end| end.as_str().expect("a text")).collect();
    assert_eq!(ends[0], "3", "two failures, tried again");
    assert_eq!(ends[1], "alloc::string::String", "another kind than is tried again");
    assert_eq!(ends[2], "alloc::string::String", "nothing is tried again unless it is said");
    assert_eq!(ends[3], "2", "a lost worker, as it is unless something is said");
    assert_eq!(ends[4..6], ["lost", "signal:6"]);
    assert_eq!(ends[6], "true", "one task for one key");
    assert!(ends[7].contains("exit:many"), "{}", ends[7]);
    let starts = |name: &str| std::fs::read_to_string(cluster.file(name)).unwrap_or_default().lines().count();
    assert_eq!(["again", "other_kind", "never", "dies", "once", "no_crash"].map(starts), [3, 1, 1, 2, 1, 1]);
}
