//! Tasks that submit tasks: results, failures, waiting, and the one trace that it all is.

use serde_json::json;

use crate::support::{Cluster, HOOK, Span, Spans};

const SUBMITTED: &str = "nested_tasks.square tracer.remote";
const RUN: &str = "nested_tasks.square tracer.remote_worker";

/// The names of the spans from this one up to the root.
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
    let child = cluster.wait_for_task(child.as_u64().unwrap());
    assert_eq!((&child["state"], &child["result"]), (&json!("succeeded"), &json!(1)));
    cluster.spans().assert_whole(&[]);
}
