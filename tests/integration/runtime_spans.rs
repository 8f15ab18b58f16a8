//! `--trace-runtime`: where the time of a task went that was not its own.

use serde_json::Value;
use tracer::Driver;

use crate::support::{Cluster, HOOK, Span, Spans, kill};

/// The runtime's spans under the PRODUCER span.
const OUTSIDE: [&str; 5] = ["tracer.accept", "tracer.journal", "tracer.queue", "tracer.lease", "tracer.deliver"];
/// Spans under the CONSUMER span, for a function.
const INSIDE: [&str; 4] = ["tracer.load", "tracer.decode", "tracer.run", "tracer.encode"];
/// Spans that begin where the one before ends, the first of all where the submission begins: no span speaks of less than there is.
const WITHOUT_GAP: [&str; 6] =
    ["tracer.accept", "tracer.journal", "tracer.queue", "tracer.lease", "tracer.run", "tracer.encode"];

/// Start and end, as texts that compare as times do.
fn times(span: &Span) -> (&str, &str) {
    (span.value["start_time"].as_str().expect("a text"), span.value["end_time"].as_str().expect("a text"))
}

#[track_caller]
fn assert_within(inner: &Span, outer: &Span) {
    let ((start, end), (from, to)) = (times(inner), times(outer));
    assert!(from <= start && start <= end && end <= to, "{}: {from} {start} {end} {to}", inner.name());
}

/// Returns the spans of tracer's runtime.
fn of_runtime(spans: &Spans) -> Vec<&Span> {
    spans.iter().filter(|span| OUTSIDE.contains(&span.name()) || INSIDE.contains(&span.name())).collect()
}

/// Expects all spans of the runtime around one task, each under its parent and each after the one before.
#[track_caller]
fn assert_complete(spans: &Spans, target: &str, inside: &[&str]) {
    spans.assert_whole(&[]);
    let producer = spans.named(&format!("{target} tracer.remote"));
    let consumer = spans.named(&format!("{target} tracer.remote_worker"));
    let job = spans.named("tracer job");
    let mut last = times(producer).0;
    let order = OUTSIDE[..4].iter().chain(inside).chain(&OUTSIDE[4..]);
    for name in order {
        let span = spans.named(name);
        let parent = if inside.contains(name) { consumer } else { producer };
        assert_eq!(spans.parent_of(span).span_id(), parent.span_id(), "{name}");
        assert_eq!(span.kind(), "SpanKind.INTERNAL", "{name}");
        assert_eq!(span.status_code(), "UNSET", "{name}");
        assert_eq!(*span.attribute("tracer.task_id"), *consumer.attribute("tracer.task_id"), "{name}");
        let (start, end) = times(span);
        assert!(last <= start && start <= end, "{name} begins before the one before has ended: {}", spans.describe());
        // What comes first in the worker comes after the way there.
        if WITHOUT_GAP.contains(name) && inside.first() != Some(name) {
            assert_eq!(last, start, "{name} begins where the one before ends: {}", spans.describe());
        }
        last = end;
        if inside.contains(name) {
            assert_within(span, consumer);
        } else {
            assert_within(span, job);
        }
    }
    for name in ["tracer.accept", "tracer.journal"] {
        assert_within(spans.named(name), producer);
    }
    assert_eq!(of_runtime(spans).len(), OUTSIDE.len() + inside.len(), "{}", spans.describe());
}

#[test]
fn a_session_may_trace_the_runtime_for_every_task() {
    for (arguments, variable, file) in
        [(&["--trace-runtime"][..], "false", ""), (&[], "true", "runtime = false"), (&[], "", "runtime = true")]
    {
        let cluster = Cluster::builder().hook(HOOK).build();
        std::fs::write(cluster.file("tracer.toml"), format!("[tracing]\n{file}\n")).expect("the folder is ours");
        let mut start = cluster.start_command(&["--config", "tracer.toml"]);
        start.args(arguments);
        if !variable.is_empty() {
            start.env("TRACER_TRACE_RUNTIME", variable);
        }
        cluster.run(start).success();
        cluster.submit("wordcount:count", &["\"the quick brown fox\""]).success();
        cluster.stop().success();
        assert_complete(&cluster.spans(), "wordcount.count", &INSIDE);
    }
}

#[test]
fn a_submission_may_ask_for_it_and_others_have_none() {
    let cluster = Cluster::traced();
    cluster.submit("traced_tasks:nested", &[]).success();
    assert_eq!(cluster.spans().len(), 5);
    cluster.tracer(&["submit", "task", "traced_tasks:nested", "--trace-runtime"]).success();
    cluster.tracer(&["submit", "command", "--trace-runtime", "--", "true"]).success();
    cluster.tracer(&["trace", "show", "last"]).success().stdout_contains("tracer.run");
    cluster.stop().success();
    let spans = cluster.spans();
    let of_trace = |root: &Span| Spans {
        spans: spans.iter().filter(|span| span.trace_id() == root.trace_id()).cloned().collect(),
        torn_lines: Vec::new(),
    };
    let traces: Vec<_> = spans.all_named("tracer job").into_iter().map(of_trace).collect();
    assert_eq!(traces.len(), 3);
    for trace in traces {
        if trace.all_named("true tracer.remote").len() == 1 {
            assert_complete(&trace, "true", &["tracer.run"]);
        } else if trace.len() > 5 {
            assert_complete(&trace, "traced_tasks.nested", &INSIDE);
            // The user's own spans stay where they were.
            assert_eq!(trace.parent_of(trace.named("outer")).kind(), "SpanKind.CONSUMER");
        } else {
            assert_eq!(of_runtime(&trace).len(), 0);
        }
    }
}

#[test]
fn what_is_not_sampled_has_none_and_a_driver_that_is_not_traced_has_those_of_its_attempts() {
    let cluster = Cluster::builder().hook(HOOK).arg("--trace-runtime").arg("--tracing-sampling-ratio=0").start();
    cluster.submit("traced_tasks:nested", &[]).success();
    cluster.stop().success();
    assert_eq!(cluster.spans().len(), 0, "{}", cluster.spans().describe());

    let cluster = Cluster::builder().hook(HOOK).start();
    let mut driver = Driver::connect(&cluster.temp_dir()).expect("the head runs");
    let task = driver.remote("demo:my_function").trace_runtime().submit().expect("it is taken");
    assert_eq!(driver.get::<u64>(task).expect("it runs"), 1);
    drop(driver);
    cluster.stop().success();
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let names: Vec<_> = of_runtime(&spans).iter().map(|span| span.name().to_owned()).collect();
    assert_eq!(names, INSIDE, "{}", spans.describe());

    let cluster = Cluster::builder().arg("--trace-runtime").start();
    cluster.submit("demo:my_function", &[]).success();
    cluster.stop().success();
    assert_eq!(cluster.spans().len(), 0);
}

#[test]
fn a_module_that_cannot_be_loaded_and_arguments_that_do_not_fit_are_seen() {
    let cluster = Cluster::builder().hook(HOOK).arg("--trace-runtime").start();
    cluster.submit("no_such_module:f", &[]).status(1);
    cluster.submit("wordcount:count", &["1"]).status(1);
    cluster.submit("misbehaving_tasks:panics", &["\"on purpose\""]).status(1);
    cluster.stop().success();
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let inside = |target: &str| {
        let consumer = spans.named(&format!("{target} tracer.remote_worker"));
        let mut inside: Vec<_> =
            spans.children_of(consumer).into_iter().filter(|span| INSIDE.contains(&span.name())).collect();
        inside.sort_by_key(|span| INSIDE.iter().position(|name| *name == span.name()));
        inside.iter().for_each(|span| assert_within(span, consumer));
        inside.iter().map(|span| (span.name().to_owned(), span.status_code().to_owned())).collect::<Vec<_>>()
    };
    let said = |names: &[&str], status: &str| {
        names.iter().map(|name| ((*name).to_owned(), status.to_owned())).collect::<Vec<_>>()
    };
    assert_eq!(inside("no_such_module.f"), said(&["tracer.load"], "ERROR"));
    assert_eq!(inside("wordcount.count"), said(&["tracer.load", "tracer.decode"], "UNSET"));
    assert_eq!(inside("misbehaving_tasks.panics"), said(&["tracer.load", "tracer.decode", "tracer.run"], "UNSET"));
}

#[test]
fn a_worker_that_is_killed_leaves_them_consistent() {
    let cluster = Cluster::builder().hook(HOOK).arg("--trace-runtime").start();
    let arguments = ["\"started\"", "\"released\"", "--crash-limit=0"];
    let submit = cluster.submit_in_background("misbehaving_tasks:waits", &arguments);
    cluster.wait_for_file(&cluster.file("started"));
    // While it lasts it is seen.
    cluster.tracer(&["trace", "open"]).success().stdout_contains("tracer.run");
    kill(cluster.worker_pids()[0], rustix::process::Signal::KILL);
    submit.wait().status(1);
    cluster.stop().success();
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let consumer = spans.named("misbehaving_tasks.waits tracer.remote_worker");
    for name in ["tracer.load", "tracer.decode", "tracer.run"] {
        let span = spans.named(name);
        assert_within(span, consumer);
        let is_cut = name == "tracer.run";
        assert_eq!(span.status_code(), if is_cut { "ERROR" } else { "UNSET" }, "{name}");
        let expected = if is_cut { Value::from("signal:9") } else { Value::Null };
        assert_eq!(*span.attribute("error.type"), expected, "{name}");
    }
    for name in OUTSIDE {
        assert_eq!(spans.parent_of(spans.named(name)).kind(), "SpanKind.PRODUCER", "{name}");
    }
    assert_eq!(spans.all_named("tracer.encode").len(), 0);
    // It tells of the end when the head has heard of it, which is after the end that the head gave the attempt or with it.
    let delivered = spans.named("tracer.deliver");
    assert!(times(delivered).0 <= times(delivered).1);
}

#[test]
fn each_of_many_tasks_has_its_own_or_none() {
    const COUNT: usize = 300;
    let cluster = Cluster::builder().workers(2).hook(HOOK).start();
    let mut driver = Driver::connect(&cluster.temp_dir()).expect("the head runs");
    for number in 0..COUNT {
        let task = driver.remote("demo:my_function");
        let task = if number % 3 == 0 { task.trace_runtime() } else { task };
        task.submit().expect("it is taken");
    }
    for _ in 0..COUNT {
        driver.next_finished().expect("the head answers");
    }
    drop(driver);
    cluster.stop().success();
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let attempts = spans.all_named("demo.my_function tracer.remote_worker");
    assert_eq!(attempts.len(), COUNT);
    for attempt in attempts {
        let number = attempt.attribute("tracer.task_id").as_u64().expect("a number") - 1;
        let inside = spans.children_of(attempt);
        assert_eq!(inside.len(), if number % 3 == 0 { INSIDE.len() } else { 0 }, "task {number}");
        inside.iter().for_each(|span| assert_within(span, attempt));
    }
}
