//! The `OTEL_*` variables hold in every process of a session, also those that the Rust crates ignore.

use serde_json::{Value, json};

use crate::support::{Cluster, HOOK, Receiver, Run, Span, Spans};

const TRACE_ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// Starts a head with these variables in the environment of `tracer start`, and of nothing else.
#[track_caller]
fn start_with(hook: Option<&str>, variables: &[(&str, &str)]) -> (Cluster, Run) {
    let builder = Cluster::builder();
    let cluster = match hook {
        Some(hook) => builder.hook(hook).build(),
        None => builder.build(),
    };
    let mut start = cluster.start_command(&[]);
    start.envs(variables.iter().copied());
    let run = cluster.run(start);
    (cluster, run)
}

/// The names of the submission's spans and of its task's.
fn is_of_the_driver(span: &Span) -> bool {
    span.name() == "tracer job" || span.kind() == "SpanKind.PRODUCER"
}

#[test]
fn a_disabled_sdk_means_no_tracing_whatever_the_hook_and_it_is_said() {
    for value in ["true", "TRUE"] {
        let (cluster, run) = start_with(Some(HOOK), &[("OTEL_SDK_DISABLED", value)]);
        run.success().stderr_contains("  tracing  off: OTEL_SDK_DISABLED is true\n");
        cluster.tracer(&["status"]).success().stdout_contains("off: OTEL_SDK_DISABLED is true\n");
        assert_eq!(cluster.status()["tracing_off"], "OTEL_SDK_DISABLED is true");
        // What came in is passed on all the same.
        let mut submit = cluster.command(&["submit", "command", "--", "printenv", "TRACEPARENT"]);
        submit.env("TRACEPARENT", format!("00-{TRACE_ID}-00f067aa0ba902b7-01"));
        cluster.run(submit).success().stdout_contains(TRACE_ID);
        cluster.stop().success();
        assert_eq!(cluster.spans().len(), 0, "{}", cluster.spans().describe());
    }
    let (cluster, run) = start_with(Some(HOOK), &[("OTEL_SDK_DISABLED", "1")]);
    run.success()
        .stderr_contains("warning: `OTEL_SDK_DISABLED` is `1`, expected `true` or `false`; it counts as `false`\n");
    cluster.submit("traced_tasks:nested", &[]).success();
    cluster.stop().success();
    assert_eq!(cluster.spans().len(), 5);
}

#[test]
fn a_driver_with_a_disabled_sdk_has_no_spans_and_its_tasks_have_theirs() {
    let cluster = Cluster::traced();
    let mut submit = cluster.command(&["submit", "task", "traced_tasks:nested"]);
    submit.env("OTEL_SDK_DISABLED", "true").env("TRACEPARENT", format!("00-{TRACE_ID}-00f067aa0ba902b7-01"));
    cluster.run(submit).success();
    cluster.stop().success();
    let spans = cluster.spans();
    assert!(!spans.iter().any(is_of_the_driver), "{}", spans.describe());
    assert_eq!(spans.len(), 3, "{}", spans.describe());
    spans.assert_whole(&["0x00f067aa0ba902b7"]);
    assert!(spans.iter().all(|span| span.trace_id() == format!("0x{TRACE_ID}")), "{}", spans.describe());
}

#[test]
fn the_resource_of_every_process_is_decoded_and_named() {
    // The second hook fails in workers, and tracer writes their spans itself.
    for hook in [HOOK, "bad_hooks:panics_in_workers"] {
        let variables = [
            ("OTEL_RESOURCE_ATTRIBUTES", "place=K%C3%B6ln,team=a%2Cb,service.name=listed"),
            ("OTEL_SERVICE_NAME", "named"),
        ];
        let (cluster, run) = start_with(Some(hook), &variables);
        run.success();
        cluster.submit("traced_tasks:nested", &[]).success();
        let mut own = cluster.command(&["submit", "task", "traced_tasks:nested"]);
        own.env("OTEL_SERVICE_NAME", "mine");
        cluster.run(own).success();
        cluster.stop().success();
        let spans = cluster.spans();
        assert_eq!(spans.len(), 10, "{}", spans.describe());
        for span in spans.iter() {
            let name = span.resource_attribute("service.name");
            let is_own = name == "mine";
            assert!(name == "named" || is_own && is_of_the_driver(span), "{hook}: {}: {name}", span.name());
            // What the submission says of itself replaces all that the session says.
            let expected = if is_own { [Value::Null, Value::Null] } else { [json!("Köln"), json!("a,b")] };
            let found = ["place", "team"].map(|key| span.resource_attribute(key).clone());
            assert_eq!(found, expected, "{hook}: {}", span.name());
        }
        assert_eq!(spans.iter().filter(|span| span.resource_attribute("service.name") == "mine").count(), 2);
    }
}

/// Returns the number of attributes, of events and of links of a span.
fn counts(span: &Span) -> [usize; 3] {
    let attributes = span.value["attributes"].as_object().map_or(0, serde_json::Map::len);
    [attributes, span.value["events"].as_array().map_or(0, Vec::len), span.links().len()]
}

#[test]
fn limits_hold_in_every_process() {
    for hook in [HOOK, "bad_hooks:panics_in_workers"] {
        let variables = [
            ("OTEL_ATTRIBUTE_COUNT_LIMIT", "0"),
            ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "4"),
            ("OTEL_SPAN_EVENT_COUNT_LIMIT", "1"),
            ("OTEL_SPAN_LINK_COUNT_LIMIT", "1"),
            ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "2"),
            ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "3"),
        ];
        let (cluster, run) = start_with(Some(hook), &variables);
        run.success();
        cluster.submit("traced_tasks:rich", &[]).success();
        cluster.stop().success();
        let spans = cluster.spans();
        for span in spans.iter().filter(|span| is_of_the_driver(span)) {
            assert!(counts(span)[0] <= 4, "{hook}: {}", span.value);
        }
        let rich = spans.named("rich and renamed");
        assert_eq!(counts(rich), [4, 1, 1], "{hook}: {}", rich.value);
        assert_eq!(*rich.attribute("text"), "é\n\"", "{hook}");
        assert_eq!(rich.events("moment")[0]["attributes"], json!({}), "{hook}");
        assert_eq!(rich.links()[0]["attributes"], json!({}), "{hook}");
        // Of each thing there may be none.
        let variables = [
            ("OTEL_SPAN_EVENT_COUNT_LIMIT", "0"),
            ("OTEL_SPAN_LINK_COUNT_LIMIT", "0"),
            ("OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", "1"),
        ];
        let (cluster, run) = start_with(Some(hook), &variables);
        run.success();
        cluster.submit("traced_tasks:rich", &[]).success();
        cluster.stop().success();
        assert_eq!(counts(cluster.spans().named("rich and renamed")), [8, 0, 0], "{hook}");
        // The length of all values holds for events and links.
        let (cluster, run) = start_with(Some(hook), &[("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "2")]);
        run.success();
        cluster.submit("traced_tasks:rich", &[]).success();
        cluster.stop().success();
        let spans = cluster.spans();
        let rich = spans.named("rich and renamed");
        assert_eq!(*rich.attribute("text"), "é\n", "{hook}");
        assert_eq!(rich.events("moment")[0]["attributes"], json!({"at": "no"}), "{hook}");
        assert_eq!(rich.links()[0]["attributes"], json!({"why": "be"}), "{hook}");
    }
}

#[test]
fn a_hooks_own_sampler_ids_resource_and_limits_are_not_replaced_by_variables() {
    let variables = [
        ("OTEL_TRACES_SAMPLER", "always_off"),
        ("OTEL_SERVICE_NAME", "of the environment"),
        ("OTEL_RESOURCE_ATTRIBUTES", "fixture.stage=production"),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "1"),
        ("OTEL_SPAN_EVENT_COUNT_LIMIT", "0"),
    ];
    for hook in ["own_description", "own_provider"] {
        let (cluster, run) = start_with(Some(&format!("hook_forms:{hook}")), &variables);
        run.success();
        cluster.submit("traced_tasks:quiet_and_loud", &[]).success();
        cluster.stop().success();
        let spans = Spans::read(&cluster.file("exported"));
        assert_eq!(spans.len(), 4, "{hook}: {}", spans.describe());
        for span in spans.iter() {
            assert!(span.trace_id().starts_with("0xfeed"), "{hook}: {}", span.trace_id());
            assert!(span.span_id().starts_with("0xbeef"), "{hook}: {}", span.span_id());
            assert_eq!(*span.resource_attribute("service.name"), "hook_forms", "{hook}");
            assert_eq!(*span.resource_attribute("fixture.stage"), "trial", "{hook}");
        }
    }
    let (cluster, run) = start_with(Some("hook_forms:own_limits"), &variables[3..]);
    run.success();
    cluster.submit("traced_tasks:rich", &[]).success();
    cluster.stop().success();
    let spans = Spans::read(&cluster.file("exported"));
    assert_eq!(counts(spans.named("rich and renamed")), [5, 1, 1], "{}", spans.describe());
}

#[test]
fn the_sessions_sampler_is_that_of_its_submissions() {
    let (cluster, run) = start_with(Some(HOOK), &[("OTEL_TRACES_SAMPLER", "parentbased_always_off")]);
    run.success();
    cluster.submit("traced_tasks:nested", &[]).success();
    assert_eq!(cluster.spans().len(), 0);
    // Unless they have one of their own, which decides for the whole trace.
    let mut own = cluster.command(&["submit", "task", "traced_tasks:nested"]);
    own.env("OTEL_TRACES_SAMPLER", "always_on");
    cluster.run(own).success();
    cluster.stop().success();
    assert_eq!(cluster.spans().len(), 5, "{}", cluster.spans().describe());
}

#[test]
fn propagators_that_opentelemetry_names_hold_for_the_session() {
    let (cluster, run) = start_with(Some(HOOK), &[("OTEL_PROPAGATORS", "baggage,b3")]);
    let said = "warning: `OTEL_PROPAGATORS` names `b3`, expected `tracecontext`, `baggage`, both or `none`; \
                that name is ignored\n";
    run.success().stderr_contains(said);
    let environment = |cluster: &Cluster| {
        let mut submit = cluster.command(&["submit", "command", "--", "env"]);
        submit.env("TRACEPARENT", format!("00-{TRACE_ID}-00f067aa0ba902b7-01")).env("BAGGAGE", "key=value");
        cluster.run(submit).success().stdout_text()
    };
    let shown = environment(&cluster);
    assert!(!shown.contains("TRACEPARENT=") && shown.contains("BAGGAGE=key=value"), "{shown}");
    cluster.stop().success();
    let (cluster, run) = start_with(Some(HOOK), &[("OTEL_PROPAGATORS", "none")]);
    run.success();
    let shown = environment(&cluster);
    assert!(!shown.contains("TRACEPARENT=") && !shown.contains("BAGGAGE="), "{shown}");
    cluster.stop().success();
}

#[test]
fn what_is_wrong_with_a_variable_is_said_at_the_start_and_in_the_status_and_ignored() {
    let wrong = [
        ("OTEL_SPAN_LINK_COUNT_LIMIT", "few"),
        ("OTEL_RESOURCE_ATTRIBUTES", "a=1,broken"),
        ("OTEL_TRACES_SAMPLER", "xray"),
        ("OTEL_CONFIG_FILE", "/etc/otel.yaml"),
    ];
    let (cluster, run) = start_with(Some(HOOK), &wrong);
    let run = run.success();
    let warnings = cluster.status()["warnings"].as_array().expect("a list").clone();
    assert_eq!(warnings.len(), wrong.len(), "{warnings:?}");
    for (warning, variable) in warnings.iter().zip([
        "`OTEL_TRACES_SAMPLER` is `xray`",
        "`OTEL_SPAN_LINK_COUNT_LIMIT` is `few`",
        "`OTEL_RESOURCE_ATTRIBUTES` has `broken`",
        "`OTEL_CONFIG_FILE` is not supported",
    ]) {
        let warning = warning.as_str().expect("a text");
        assert!(warning.starts_with(variable), "{warning}");
        assert_eq!(run.stderr_text().matches(&format!("warning: {warning}\n")).count(), 1, "{}", run.stderr_text());
    }
    cluster.submit("traced_tasks:rich", &[]).success();
    cluster.stop().success();
    assert_eq!(counts(cluster.spans().named("rich and renamed")), [8, 1, 1]);
    // Who does not want to hear of it does not.
    let mut quiet = wrong.to_vec();
    quiet.push(("OTEL_LOG_LEVEL", "error"));
    let (cluster, run) = start_with(Some(HOOK), &quiet);
    assert!(!run.success().stderr_text().contains("warning"));
    assert_eq!(cluster.status()["warnings"], json!([]));
    cluster.stop().success();
}

#[test]
fn without_a_hook_the_exporter_of_the_environment_is_used() {
    let (cluster, run) = start_with(None, &[("OTEL_TRACES_EXPORTER", "console")]);
    run.success()
        .stderr_contains("  tracing  console:setup_tracing, ")
        .stderr_contains("\n           because OTEL_TRACES_EXPORTER is console\n");
    cluster
        .tracer(&["status"])
        .success()
        .stdout_contains("console:setup_tracing, ")
        .stdout_contains("because OTEL_TRACES_EXPORTER is console\n");
    // The submission and the worker agree, although the variable is not in the submission's environment.
    let said = cluster.submit("traced_tasks:nested", &[]).success().stderr_text();
    for name in ["tracer job", "traced_tasks.nested tracer.remote", "traced_tasks.nested tracer.remote_worker", "inner"]
    {
        assert!(said.contains(name), "{name}: {said}");
    }
    cluster.stop().success();

    let (cluster, run) = start_with(None, &[("OTEL_TRACES_EXPORTER", "otlp_file")]);
    run.success();
    // Nor does it matter what it says there.
    let mut submit = cluster.command(&["submit", "task", "traced_tasks:nested"]);
    submit.env("OTEL_TRACES_EXPORTER", "none");
    cluster.run(submit).success();
    cluster.stop().success();
    let lines = std::fs::read_dir(cluster.spans_dir()).expect("it is there").flatten().filter_map(|file| {
        let path = file.path();
        path.to_str()?.ends_with(".otlp.jsonl").then(|| std::fs::read_to_string(&path).unwrap_or_default())
    });
    let written = lines.collect::<String>();
    for name in ["\"tracer job\"", "\"traced_tasks.nested tracer.remote_worker\"", "\"inner\""] {
        assert!(written.contains(name), "{name}: {written}");
    }
}

#[test]
fn the_exporter_for_a_collector_has_the_sessions_variables_in_every_process() {
    let Some(receiver) = Receiver::start(&["200"]) else { return };
    let variables = [
        ("OTEL_TRACES_EXPORTER", "otlp"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*receiver.endpoint()),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-team=ours"),
        ("OTEL_BSP_SCHEDULE_DELAY", "20"),
    ];
    let (cluster, run) = start_with(None, &variables);
    run.success().stderr_contains("\n           because OTEL_TRACES_EXPORTER is otlp\n");
    cluster.submit("traced_tasks:nested", &[]).success();
    cluster.stop().success();
    let mut names: Vec<_> =
        receiver.wait_for_spans(5).iter().map(|span| span["name"].as_str().expect("a text").to_owned()).collect();
    names.sort_unstable();
    let expected = [
        "inner",
        "outer",
        "traced_tasks.nested tracer.remote",
        "traced_tasks.nested tracer.remote_worker",
        "tracer job",
    ];
    assert_eq!(names, expected);
    for request in receiver.requests() {
        assert_eq!(request["headers"]["x-team"], "ours");
    }
    // The protocol chooses the hook; nothing needs to listen for that.
    let variables = [
        ("OTEL_TRACES_EXPORTER", "otlp"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"),
    ];
    let (cluster, run) = start_with(None, &variables);
    run.success().stderr_contains("  tracing  otlp_grpc:setup_tracing, ");
    cluster.stop().success();
}

#[test]
fn an_exporter_of_the_environment_may_be_none_or_unknown_and_a_hook_is_stronger() {
    let (cluster, run) = start_with(None, &[("OTEL_TRACES_EXPORTER", "none")]);
    run.success().stderr_contains("  tracing  off: OTEL_TRACES_EXPORTER is none\n");
    cluster.tracer(&["status"]).success().stdout_contains("off: OTEL_TRACES_EXPORTER is none\n");
    cluster.stop().success();

    let (_, run) = start_with(None, &[("OTEL_TRACES_EXPORTER", "zipkin")]);
    run.status(2)
        .stderr_contains("`OTEL_TRACES_EXPORTER`: expected `console`, `otlp`, `otlp_file` or `none`, found `zipkin`\n");

    for exporter in ["none", "zipkin", "console"] {
        let (cluster, run) = start_with(Some(HOOK), &[("OTEL_TRACES_EXPORTER", exporter)]);
        let said = run.success().stderr_text();
        assert!(said.contains(HOOK) && !said.contains("OTEL_TRACES_EXPORTER"), "{exporter}: {said}");
        cluster.submit("traced_tasks:nested", &[]).success();
        cluster.stop().success();
        assert_eq!(cluster.spans().len(), 5, "{exporter}");
    }
}
