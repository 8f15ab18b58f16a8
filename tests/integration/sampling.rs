//! Sampling is whole: a trace is complete or absent, whoever decides.

use std::collections::BTreeMap;

use tracer::Driver;
use tracer::propagation::Carrier;

use crate::support::{Cluster, HOOK, Spans};

const TRACE_ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// Returns the spans by trace, as many as there are of each name in it.
fn traces(spans: &Spans) -> BTreeMap<String, Vec<String>> {
    spans.assert_whole(&[]);
    let mut traces = BTreeMap::<String, Vec<String>>::new();
    for span in spans.iter() {
        traces.entry(span.trace_id().to_owned()).or_default().push(span.name().to_owned());
    }
    traces.values_mut().for_each(|names| names.sort());
    traces
}

/// Spans of each submission of `traced_tasks:nested` from the command line.
const NESTED: [&str; 5] =
    ["inner", "outer", "traced_tasks.nested tracer.remote", "traced_tasks.nested tracer.remote_worker", "tracer job"];

#[test]
fn of_a_thousand_tasks_half_leave_a_whole_trace_and_half_leave_none() {
    let cluster = Cluster::builder().workers(2).hook(HOOK).arg("--tracing-sampling-ratio=0.5").start();
    // A driver without tracing of its own: each attempt is the root of a trace, with two spans of the task in it.
    let mut driver = Driver::connect(&cluster.temp_dir()).expect("the head runs");
    for _ in 0..1000 {
        driver.remote("traced_tasks:nested").submit().expect("the head takes it");
    }
    for _ in 0..1000 {
        driver.next_finished().expect("the head answers");
    }
    drop(driver);
    cluster.stop().success();
    let traces = traces(&cluster.spans());
    for (id, names) in &traces {
        assert_eq!(names, &["inner", "outer", "traced_tasks.nested tracer.remote_worker"], "trace {id}");
    }
    // Six standard deviations on each side.
    assert!((400..=600).contains(&traces.len()), "{} of 1000 traces are there", traces.len());
}

#[test]
fn of_a_thousand_tasks_that_submit_each_other_half_the_traces_are_whole_and_half_are_absent() {
    let cluster = Cluster::builder().workers(2).hook(HOOK).arg("--tracing-sampling-ratio=0.5").start();
    let mut driver = Driver::connect(&cluster.temp_dir()).expect("the head runs");
    // One after the other, so that there is a worker for what they submit. Each is the root of a trace, with four tasks in it.
    for _ in 0..200 {
        let task =
            driver.remote("nested_tasks:sum_of_squares").arg(4).expect("a number").submit().expect("it is taken");
        assert_eq!(driver.get::<u64>(task).expect("it runs"), 14);
    }
    drop(driver);
    cluster.stop().success();
    let traces = traces(&cluster.spans());
    let mut expected = vec!["nested_tasks.square tracer.remote"; 4];
    expected.extend(["nested_tasks.square tracer.remote_worker"; 4]);
    expected.push("nested_tasks.sum_of_squares tracer.remote_worker");
    for (id, names) in &traces {
        assert_eq!(names, &expected, "trace {id}");
    }
    // Six standard deviations on each side.
    assert!((58..=142).contains(&traces.len()), "{} of 200 traces are there", traces.len());
}

#[test]
fn a_thousand_tasks_of_one_trace_are_all_there_or_none_is() {
    for (flags, expected) in [("01", 1000), ("00", 0)] {
        // The ratio would have it the other way round.
        let ratio = if expected == 0 { "1" } else { "0" };
        let cluster = Cluster::builder().workers(2).hook(HOOK).arg(format!("--tracing-sampling-ratio={ratio}")).start();
        let mut driver = Driver::connect(&cluster.temp_dir()).expect("the head runs");
        let header = format!("00-{TRACE_ID}-00f067aa0ba902b7-{flags}");
        let (carrier, _) = Carrier::from_env(|name| (name == "TRACEPARENT").then(|| header.clone().into()));
        driver.set_parent(carrier, true);
        for _ in 0..1000 {
            driver.remote("traced_tasks:nested").submit().expect("the head takes it");
        }
        for _ in 0..1000 {
            driver.next_finished().expect("the head answers");
        }
        drop(driver);
        cluster.stop().success();
        let spans = cluster.spans();
        spans.assert_whole(&["0x00f067aa0ba902b7"]);
        for name in ["traced_tasks.nested tracer.remote_worker", "outer", "inner"] {
            assert_eq!(spans.all_named(name).len(), expected, "{name}");
        }
        assert_eq!(spans.len(), 3 * expected);
        assert!(spans.iter().all(|span| span.trace_id() == format!("0x{TRACE_ID}")));
    }
}

#[test]
fn a_submission_samples_as_the_head_was_told_and_leaves_all_spans_or_none() {
    let cluster = Cluster::builder().workers(2).hook(HOOK).arg("--tracing-sampling-ratio=0.5").start();
    for number in 0..40 {
        // The head's ratio counts, whatever the environment of the submission says.
        let mut submit = cluster.command(&["submit", "task", "traced_tasks:nested"]);
        submit.env("TRACER_TRACING_SAMPLING_RATIO", if number % 2 == 0 { "0" } else { "1" });
        cluster.run(submit).success();
    }
    cluster.stop().success();
    let traces = traces(&cluster.spans());
    for (id, names) in &traces {
        assert_eq!(names, &NESTED, "trace {id}");
    }
    // All or none of forty: once in 5e11 runs.
    assert!((1..40).contains(&traces.len()), "{} of 40 traces are there", traces.len());
}

#[test]
fn the_decision_of_a_traceparent_is_stronger_than_the_ratio() {
    for (ratio, flags, expected) in [("1", "00", 0), ("0", "01", 5), ("0.5", "00", 0), ("0.5", "01", 5)] {
        let cluster = Cluster::builder().hook(HOOK).env("TRACER_TRACING_SAMPLING_RATIO", ratio).start();
        let mut submit = cluster.command(&["submit", "task", "traced_tasks:nested"]);
        submit.env("TRACEPARENT", format!("00-{TRACE_ID}-00f067aa0ba902b7-{flags}"));
        cluster.run(submit).success();
        cluster.stop().success();
        let spans = cluster.spans();
        assert_eq!(spans.len(), expected, "ratio {ratio}, flags {flags}: {}", spans.describe());
        assert!(spans.iter().all(|span| span.trace_id() == format!("0x{TRACE_ID}")));
    }
}

#[test]
fn an_unsampled_trace_propagates_its_decision_to_commands() {
    let cluster = Cluster::builder().hook(HOOK).arg("--tracing-sampling-ratio=0").start();
    let run = cluster.tracer(&["submit", "command", "--", "printenv", "TRACEPARENT"]).success();
    let trace_parent = run.stdout_text().trim().to_owned();
    let [version, trace_id, _, flags] = trace_parent.split('-').collect::<Vec<_>>()[..] else {
        panic!("`{trace_parent}` is no traceparent");
    };
    assert_eq!((version, trace_id.len()), ("00", 32), "{trace_parent}");
    assert_eq!(u8::from_str_radix(flags, 16).expect("flags are hexadecimal") & 1, 0, "{trace_parent}");
    cluster.stop().success();
    assert_eq!(cluster.spans().len(), 0, "{}", cluster.spans().describe());
}

#[test]
fn the_sampler_of_the_environment_comes_before_the_ratio_and_that_of_the_hook_before_both() {
    let spans_of = |hook: &str, sampler: &str, ratio: &str| {
        let cluster = Cluster::builder()
            .hook(hook)
            .env("OTEL_TRACES_SAMPLER", sampler)
            .env("TRACER_TRACING_SAMPLING_RATIO", ratio)
            .start();
        cluster.submit("traced_tasks:nested", &[]).success();
        cluster.stop().success();
        cluster.spans().len()
    };
    assert_eq!(spans_of(HOOK, "parentbased_always_on", "0"), 5);
    assert_eq!(spans_of(HOOK, "parentbased_always_off", "1"), 0);
    assert_eq!(spans_of(HOOK, "", "0"), 0);
}

#[test]
fn a_hooks_own_sampler_is_not_replaced_by_the_ratio() {
    for hook in ["own_description", "own_provider"] {
        let cluster = Cluster::builder().hook(&format!("hook_forms:{hook}")).arg("--tracing-sampling-ratio=0").start();
        cluster.submit("traced_tasks:quiet_and_loud", &[]).success();
        cluster.stop().success();
        let spans = Spans::read(&cluster.file("exported"));
        assert_eq!(spans.all_named("loud").len(), 1, "{hook}: {}", spans.describe());
        assert_eq!(spans.len(), 4, "{hook}: {}", spans.describe());
    }
}

#[test]
fn spans_that_tracer_writes_itself_are_sampled_alike() {
    let cluster = Cluster::builder().hook("bad_hooks:panics_in_workers").arg("--tracing-sampling-ratio=0.5").start();
    let mut driver = Driver::connect(&cluster.temp_dir()).expect("the head runs");
    for _ in 0..100 {
        driver.remote("traced_tasks:nested").submit().expect("the head takes it");
    }
    for _ in 0..100 {
        driver.next_finished().expect("the head answers");
    }
    drop(driver);
    cluster.stop().success();
    let traces = traces(&cluster.spans());
    assert!((20..=80).contains(&traces.len()), "{} of 100 traces are there", traces.len());
    for (id, names) in &traces {
        assert_eq!(names, &["inner", "outer", "traced_tasks.nested tracer.remote_worker"], "trace {id}");
    }
    let cluster = Cluster::builder().hook("bad_hooks:fails_in_drivers").arg("--tracing-sampling-ratio=0").start();
    cluster.submit("traced_tasks:nested", &[]).success();
    cluster.stop().success();
    assert_eq!(cluster.spans().len(), 0, "{}", cluster.spans().describe());
}

#[test]
fn the_ratio_is_said_at_the_start_and_in_the_status() {
    let cluster = Cluster::builder().hook(HOOK).build();
    let line = "new traces are sampled at a ratio of 0.25, unless the hook decides\n";
    std::fs::write(cluster.file("tracer.toml"), "[tracing]\nsampling_ratio = 0.25\n").expect("the folder is ours");
    cluster.start_head(&["--config", "tracer.toml"]).success().stderr_contains(line);
    cluster.tracer(&["status"]).success().stdout_contains(line);
    assert_eq!(cluster.status()["hook"]["sampling_ratio"], 0.25);
    cluster.stop().success();
    let line = "all new traces are sampled, unless the hook decides\n";
    cluster.start_head(&[]).success().stderr_contains(line);
    cluster.tracer(&["status"]).success().stdout_contains(line);
    cluster.stop().success();
    // Whoever asks has another environment than the head.
    for (sampler, argument, what) in [
        ("always_on", "", "every span is sampled, whatever its parent is"),
        ("always_off", "", "no span is sampled"),
        ("traceidratio", "0.5", "spans are sampled by their trace ids at a ratio of 0.5, whatever their parents are"),
        ("parentbased_always_on", "", "all new traces are sampled"),
        ("parentbased_always_off", "", "no new trace is sampled"),
        ("parentbased_traceidratio", "0.5", "new traces are sampled at a ratio of 0.5"),
    ] {
        let line = format!("{what}, as OTEL_TRACES_SAMPLER says, unless the hook decides\n");
        let mut start = cluster.start_command(&[]);
        start.env("OTEL_TRACES_SAMPLER", sampler).env("OTEL_TRACES_SAMPLER_ARG", argument);
        cluster.run(start).success().stderr_contains(&line);
        cluster.tracer(&["status"]).success().stdout_contains(&line);
        cluster.stop().success();
    }
}
