//! Context hygiene: what a review of Ray's tracing found, numbered R1 to R9 as there, turned into properties of ours. Nothing of one
//! task, thread or future is seen by another, and what is recorded has the type and the place that it should have.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use tracer::Driver;

use crate::support::{Cluster, HOOK, Run, Span, Spans};

const TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";
const SHELL_SPAN: &str = "b7ad6b7169203331";

/// `tracer submit` from a shell that is in a trace of those flags, with tracestate and baggage.
#[track_caller]
fn submit_from_a_trace(cluster: &Cluster, flags: &str, arguments: &[&str]) -> Run {
    let mut command = cluster.command(&["submit"]);
    command.args(arguments);
    command.env("TRACEPARENT", format!("00-{TRACE_ID}-{SHELL_SPAN}-{flags}"));
    command.envs([("TRACESTATE", "rojo=1,congo=2"), ("BAGGAGE", "customer=ada")]);
    cluster.run(command)
}

fn id(span: &Span) -> &str {
    span.span_id().trim_start_matches("0x")
}

/// Expects that the next task, which is submitted from no trace, sees nothing of the one before it.
#[track_caller]
fn assert_clean(cluster: &Cluster, is_traced: bool, after: &str) {
    let run = cluster.submit("traced_tasks:headers", &[]).success();
    let spans = cluster.spans();
    let Value::Array(seen) = run.json() else { panic!("{}", run.describe()) };
    if !is_traced {
        assert_eq!(seen, [Value::Null, Value::Null, Value::Null, Value::Null], "after {after}");
        return;
    }
    let of_task = spans.iter().rfind(|span| span.name() == "traced_tasks.headers tracer.remote_worker");
    let of_task = of_task.unwrap_or_else(|| panic!("no attempt after {after} among {}", spans.describe()));
    assert_ne!(of_task.trace_id(), format!("0x{TRACE_ID}"), "after {after}");
    assert_eq!(spans.parent_of(spans.parent_of(of_task)).parent_id(), None, "after {after}");
    let header = format!("00-{}-{}-0", of_task.trace_id().trim_start_matches("0x"), id(of_task));
    for (place, headers) in [("before", &seen[0]), ("after", &seen[2])] {
        let text = headers[0].as_str().unwrap_or_default();
        assert!(text.starts_with(&header), "{place} a span of its own, after {after}: {headers}, expected {header}…");
        assert_eq!((&headers[1], &headers[2]), (&json!(""), &json!("")), "after {after}");
    }
    assert_eq!(seen[3], Value::Null, "a thread without a context, after {after}");
    for span in spans.iter().filter(|span| span.trace_id() == of_task.trace_id()) {
        assert_eq!(span.value["context"]["trace_state"], "[]", "after {after}");
    }
}

#[test]
fn r1_the_context_after_a_task_is_the_one_before_it_however_the_task_ends() {
    for hook in [Some(HOOK), None] {
        let builder = Cluster::builder();
        let cluster = if let Some(hook) = hook { builder.hook(hook) } else { builder }.start();
        let pids = cluster.worker_pids();
        for (how, status) in [("returns", 0), ("errs", 1), ("panics", 1), ("leaks", 0)] {
            submit_from_a_trace(&cluster, "01", &["task", "traced_tasks:ends_attached", &format!("\"{how}\"")])
                .status(status);
            assert_clean(&cluster, hook.is_some(), how);
        }
        // Arguments that do not fit: the function is not called.
        submit_from_a_trace(&cluster, "01", &["task", "traced_tasks:ends_attached", "7"]).status(1);
        assert_clean(&cluster, hook.is_some(), "wrong arguments");
        submit_from_a_trace(&cluster, "01", &["command", "--", "sh", "-c", "exit 3"]).status(3);
        assert_clean(&cluster, hook.is_some(), "a command");
        assert_eq!(cluster.worker_pids(), pids, "it was one worker all the time");
        if hook.is_some() {
            // The span that leaked ended with its process, if not before.
            cluster.stop().success();
            let spans = cluster.spans();
            spans.assert_whole(&[&format!("0x{SHELL_SPAN}")]);
            assert_eq!(spans.all_named("attached").len(), 4, "{}", spans.describe());
        }
    }
}

#[test]
fn r1_the_context_after_a_cancelled_task_is_the_one_before_it() {
    let cluster = Cluster::traced();
    let started = cluster.file("started");
    let mut submit = cluster.command(&["submit", "task", "traced_tasks:never_ends_attached"]);
    submit.arg(format!("\"{}\"", started.display()));
    submit.env("TRACEPARENT", format!("00-{TRACE_ID}-{SHELL_SPAN}-01"));
    submit.envs([("TRACESTATE", "rojo=1"), ("BAGGAGE", "customer=ada")]);
    let submission = cluster.spawn(submit);
    cluster.wait_for_file(&started);
    cluster.tracer(&["cancel", "1"]).success();
    submission.wait().status(1);
    assert_clean(&cluster, true, "a cancelled task");
    let spans = cluster.spans();
    spans.assert_whole(&[&format!("0x{SHELL_SPAN}")]);
    assert_eq!(*spans.named("attached").attribute("error.type"), "cancelled");
}

#[test]
fn r1_submissions_of_one_driver_are_siblings() {
    let cluster = Cluster::traced();
    let mut driver = Driver::connect(&cluster.temp_dir()).expect("the head runs");
    // Without tracing of its own and without a parent: each task is the root of a trace.
    for target in ["traced_tasks:nested", "misbehaving_tasks:panics_in_span", "traced_tasks:nested"] {
        let task = driver.remote(target).submit().expect("the head takes it");
        driver.wait(task).expect("the head answers");
    }
    let spans = cluster.spans();
    let attempts: Vec<_> = spans.iter().filter(|span| span.kind() == "SpanKind.CONSUMER").collect();
    let traces: BTreeSet<_> = attempts.iter().map(|span| span.trace_id()).collect();
    assert_eq!((attempts.len(), traces.len()), (3, 3), "{}", spans.describe());
    assert!(attempts.iter().all(|span| span.parent_id().is_none()), "{}", spans.describe());
}

#[test]
fn r2_a_span_that_is_not_sampled_takes_nothing_off_the_one_around_it() {
    for hook in ["own_description", "own_provider"] {
        let cluster = Cluster::builder().hook(&format!("hook_forms:{hook}")).start();
        cluster.submit("traced_tasks:quiet_child", &[]).success();
        cluster.stop().success();
        let spans = Spans::read(&cluster.file("exported"));
        spans.assert_whole(&[]);
        assert_eq!(spans.len(), 4, "{}", spans.describe());
        let around = spans.named("around");
        assert_eq!(*around.attribute("fixture.after"), 1, "{}", around.value);
        assert_eq!(around.events("still here").len(), 1, "{}", around.value);
        let attempt = spans.parent_of(around);
        assert_eq!(attempt.name(), "traced_tasks.quiet_child tracer.remote_worker");
        assert_eq!(*attempt.attribute("fixture.after"), 2, "{}", attempt.value);
    }
}

#[test]
fn r3_threads_and_futures_see_their_own_spans_only() {
    let cluster = Cluster::traced();
    let current = cluster.submit("traced_tasks:crowd", &[]).success().json();
    cluster.stop().success();
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let attempt = spans.named("traced_tasks.crowd tracer.remote_worker");
    assert_eq!(current, id(attempt), "what is current in the task has not changed");
    let mut children = 0;
    for child in spans.iter() {
        let Some(who) = child.name().strip_prefix("child: ") else { continue };
        let parent = spans.parent_of(child);
        assert_eq!(parent.name(), format!("parent: {who}"));
        assert_eq!(spans.parent_of(parent), attempt);
        children += 1;
    }
    assert_eq!((children, spans.len()), (110, 2 * 110 + 3), "{}", spans.describe());
}

#[test]
fn r3_work_that_outlives_its_task_is_not_in_the_next_ones_trace() {
    let cluster = Cluster::traced();
    let released = format!("\"{}\"", cluster.file("released").display());
    submit_from_a_trace(&cluster, "01", &["task", "traced_tasks:leaves_work_behind", &released]).success();
    let seen = cluster.submit("traced_tasks:sees_work_through", &[&released]).success().json();
    assert_eq!(seen, json!([["left in a future", "None None"], ["left in a thread", "None None"]]));
    cluster.stop().success();
    let spans = cluster.spans();
    spans.assert_whole(&[&format!("0x{SHELL_SPAN}")]);
    for name in ["left in a future", "left in a thread"] {
        assert_eq!(spans.named(name).parent_id(), None, "{}", spans.describe());
    }
}

#[test]
fn r4_an_end_without_an_exit_code_is_an_error_without_one_and_no_trouble() {
    let cluster = Cluster::traced();
    let pids = cluster.worker_pids();
    for (words, status, error_type) in [
        (&["sh", "-c", "kill -9 $$"][..], 137, "signal:9"),
        (&["no-such-program"][..], 127, "not_started"),
        // Beyond every signal with a name.
        (&["sh", "-c", "kill -40 $$"][..], 168, "signal:40"),
    ] {
        let words: Vec<&str> = ["submit", "command", "--"].iter().chain(words).copied().collect();
        cluster.tracer(&words).status(status);
        let spans = cluster.spans();
        let attempts = spans.iter().filter(|span| span.kind() == "SpanKind.CONSUMER");
        let attempt = attempts.max_by_key(|span| span.attribute("tracer.task_id").as_u64()).expect("there is one");
        assert_eq!((attempt.status_code(), attempt.attribute("error.type")), ("ERROR", &json!(error_type)));
        assert_eq!(*attempt.attribute("process.exit.code"), Value::Null, "{}", attempt.value);
    }
    cluster.submit("demo:my_function", &[]).success().stdout("1\n");
    assert_eq!(cluster.worker_pids(), pids);
}

/// The attributes that are numbers, of spans, events and resources.
const INTEGERS: [&str; 16] = [
    "tracer.job_id",
    "tracer.task_id",
    "tracer.pid",
    "tracer.worker_id",
    "tracer.attempt",
    "tracer.queued_ns",
    "tracer.cpu_time_ns",
    "tracer.peak_memory_bytes",
    "tracer.minor_page_faults",
    "tracer.major_page_faults",
    "tracer.voluntary_context_switches",
    "tracer.involuntary_context_switches",
    "process.exit.code",
    "process.pid",
    "code.line.number",
    "int",
];

#[test]
fn r5_integers_are_integers_in_every_span_and_every_format() {
    let otlp = "otlp_file:setup_tracing";
    for hook in [HOOK, otlp] {
        let cluster = Cluster::builder().hook(hook).start();
        cluster.submit("traced_tasks:rich", &[]).success();
        cluster.tracer(&["submit", "command", "--", "sh", "-c", "exit 3"]).status(3);
        // Completed by the head.
        cluster.submit("misbehaving_tasks:aborts", &[]).status(1);
        cluster.stop().success();
        let mut seen = BTreeSet::new();
        let mut files = fs::read_dir(cluster.spans_dir()).expect("there are spans");
        while let Some(Ok(file)) = files.next() {
            let text = fs::read_to_string(file.path()).expect("it is text");
            for line in text.lines() {
                let value = serde_json::from_str(line).expect("each line is an object");
                assert_integers(&value, &mut seen);
            }
        }
        assert_eq!(seen, INTEGERS.into_iter().collect(), "{hook}");
        if hook == HOOK {
            let rich = cluster.spans().named("rich and renamed").clone();
            assert_eq!((rich.attribute("int"), rich.attribute("ints")), (&json!(8), &json!([1, i64::MIN])));
            let exported = cluster.tracer(&["trace", "export", "--all", "--format", "otlp"]).success().stdout_text();
            let mut seen = BTreeSet::new();
            for line in exported.lines() {
                assert_integers(&serde_json::from_str(line).expect("each line is an object"), &mut seen);
            }
            assert_eq!(seen, INTEGERS.into_iter().collect(), "the export");
        }
    }
}

/// Looks for the attributes in both forms: `"key": value`, and OTLP's `{"key": …, "value": {"intValue": "…"}}`.
fn assert_integers(value: &Value, seen: &mut BTreeSet<&'static str>) {
    let known = |name: &str| INTEGERS.into_iter().find(|known| *known == name);
    match value {
        Value::Array(items) => items.iter().for_each(|item| assert_integers(item, seen)),
        Value::Object(object) => {
            if let Some(name) = object.get("key").and_then(Value::as_str).and_then(known) {
                let number = object["value"]["intValue"].as_str().and_then(|text| text.parse::<i64>().ok());
                assert!(number.is_some(), "`{name}` is {value}");
                seen.insert(name);
            }
            for (key, value) in object {
                if let Some(name) = known(key) {
                    assert!(value.is_i64() || value.is_u64(), "`{name}` is {value}");
                    seen.insert(name);
                }
                assert_integers(value, seen);
            }
        }
        _ => {}
    }
}

/// Returns the files of the span folder that a process has open.
fn open_span_files(cluster: &Cluster, pid: u32) -> Vec<PathBuf> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("the process is there");
    let targets = descriptors.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    targets.filter(|target| target.parent() == Some(&*cluster.spans_dir())).collect()
}

#[test]
fn r6_a_process_has_one_span_file_open_which_is_complete_when_it_has_ended() {
    for (hook, extension) in [(HOOK, "json"), ("otlp_file:setup_tracing", "otlp.jsonl")] {
        let cluster = Cluster::builder().hook(hook).start();
        let [pid] = cluster.worker_pids()[..] else { panic!("one worker") };
        let file = cluster.spans_dir().join(format!("{pid}.{extension}"));
        for _ in 0..10 {
            cluster.submit("traced_tasks:nested", &[]).success();
            assert_eq!(open_span_files(&cluster, pid), std::slice::from_ref(&file), "{hook}");
            assert_eq!(open_span_files(&cluster, cluster.head_pid()), [""; 0].map(PathBuf::from), "{hook}");
        }
        cluster.stop().success();
        let text = fs::read_to_string(&file).expect("it is text");
        assert!(text.ends_with('\n'));
        let spans = text.matches("\"inner\"").count() + text.matches("\"outer\"").count();
        assert_eq!(spans, 20, "{text}");
        for line in text.lines() {
            serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        }
    }
}

#[test]
fn r7_tracestate_baggage_and_flags_survive_every_hop_and_come_back_out() {
    for hook in [Some(HOOK), None] {
        let builder = Cluster::builder().workers(2);
        let cluster = if let Some(hook) = hook { builder.hook(hook) } else { builder }.start();
        // shell → submission → command → its submission → task, and what that would send back out.
        let tracer = env!("CARGO_BIN_EXE_tracer");
        let run =
            submit_from_a_trace(&cluster, "03", &["command", "--", tracer, "submit", "task", "traced_tasks:headers"])
                .success();
        let seen = run.json();
        for at in [0, 1, 2] {
            let trace_parent = seen[at][0].as_str().unwrap_or_default();
            assert!(trace_parent.starts_with(&format!("00-{TRACE_ID}-")) && trace_parent.ends_with("-03"), "{seen}");
            assert_eq!((&seen[at][1], &seen[at][2]), (&json!("rojo=1,congo=2"), &json!("customer=ada")), "{seen}");
        }
        cluster.stop().success();
        let spans = cluster.spans();
        spans.assert_whole(&[&format!("0x{SHELL_SPAN}")]);
        assert_eq!(spans.len(), if hook.is_some() { 7 } else { 0 }, "{}", spans.describe());
        for span in spans.iter() {
            let expected = "['{key=rojo, value=1}', '{key=congo, value=2}']";
            assert_eq!(span.value["context"]["trace_state"], expected, "{}", span.name());
        }
        if hook.is_some() {
            let inner = spans.named("traced_tasks.headers tracer.remote_worker");
            let job = spans.parent_of(spans.parent_of(inner));
            assert_eq!(job.name(), "tracer job");
            assert_eq!(spans.parent_of(job).name(), "tracer tracer.remote_worker");
        }
    }
}

#[test]
fn r8_the_decision_and_the_ids_of_one_task_are_never_seen_by_the_next() {
    let cluster = Cluster::traced();
    let mut sampled = BTreeMap::new();
    for number in 0_u128..12 {
        let (trace_id, flags) = (format!("{:032x}", 0xfeed + number), if number % 3 == 0 { "00" } else { "01" });
        let mut submit = cluster.command(&["submit", "task", "traced_tasks:nested"]);
        submit.env("TRACEPARENT", format!("00-{trace_id}-{SHELL_SPAN}-{flags}"));
        let ids = cluster.run(submit).success().json();
        assert_eq!(ids[0], *trace_id, "what the task sees");
        if flags == "01" {
            sampled.insert(format!("0x{trace_id}"), ids[1].as_str().expect("an id is a text").to_owned());
        }
    }
    for task in [13_u64, 14, 15] {
        let numbers = cluster.submit("traced_tasks:numbers", &[]).success().json();
        assert_eq!(numbers, json!([task, task, 1, 1]));
    }
    cluster.stop().success();
    let spans = cluster.spans();
    spans.assert_whole(&[&format!("0x{SHELL_SPAN}")]);
    let mut traces = HashMap::<&str, usize>::new();
    for span in spans.iter() {
        *traces.entry(span.trace_id()).or_default() += 1;
    }
    assert_eq!(traces.len(), sampled.len() + 3, "{}", spans.describe());
    for (trace_id, inner) in &sampled {
        assert_eq!(traces[&**trace_id], 5, "{trace_id} is not complete: {}", spans.describe());
        let span = spans.only("is the inner one", |span| span.name() == "inner" && span.trace_id() == trace_id);
        assert_eq!(id(span), inner);
    }
}

#[test]
fn r9_a_malformed_traceparent_is_a_new_trace_and_fails_nothing() {
    let cluster = Cluster::traced();
    let cases = [
        format!("00-{TRACE_ID}-{SHELL_SPAN}-1"),
        format!("00-{TRACE_ID}-{SHELL_SPAN}-01-"),
        format!("00-{}-{SHELL_SPAN}-01", "0".repeat(32)),
        format!("00-{TRACE_ID}-{}-01", "0".repeat(16)),
        format!("ff-{TRACE_ID}-{SHELL_SPAN}-01"),
        format!("00-{}-{SHELL_SPAN}-01", TRACE_ID.to_uppercase()),
        format!("00-+{}-{SHELL_SPAN}-01", &TRACE_ID[1..]),
        "00-42-1-01".to_owned(),
        "é".repeat(28),
    ];
    for case in &cases {
        let mut submit = cluster.command(&["submit", "task"]);
        submit.env("TRACEPARENT", case).env("TRACESTATE", "rojo=1");
        let run = cluster.run(submit).success().stdout("1\n");
        run.stderr_contains("`TRACEPARENT` is ignored: ");
    }
    cluster.stop().success();
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let jobs = spans.all_named("tracer job");
    let traces: BTreeSet<_> = jobs.iter().map(|job| job.trace_id()).collect();
    assert_eq!((jobs.len(), traces.len(), spans.len()), (cases.len(), cases.len(), 3 * cases.len()));
    for span in spans.iter() {
        assert_ne!(span.trace_id(), format!("0x{TRACE_ID}"));
        assert_eq!(span.value["context"]["trace_state"], "[]", "{}", span.value);
    }
}
