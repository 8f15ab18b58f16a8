//! The settings of `tracer start`: each as a flag, in the environment and in `tracer.toml`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::support::{Cluster, HOOK, Span, Spans, module_folder};

/// Copies a library under another name, so that it is found in one place only.
fn copy_wordcount(folder: &std::path::Path, name: &str) {
    std::fs::create_dir_all(folder).expect("the folder is ours");
    std::fs::copy(module_folder().join("libwordcount.so"), folder.join(format!("lib{name}.so"))).expect("it was built");
}

#[test]
fn a_file_settles_everything_with_paths_relative_to_itself() {
    let cluster = Cluster::builder().build();
    copy_wordcount(&cluster.file("etc/modules"), "renamed");
    std::fs::write(
        cluster.file("etc/tracer.toml"),
        "num_workers = 2\n\
         temp_dir = '../place'\n\
         module_path = ['modules']\n\
         [tracing]\n\
         startup_hook = 'local_tmp_tracing:setup_tracing'\n\
         spans_dir = '../spans in a file'\n\
         required = true\n\
         hook_timeout = '20s'\n",
    )
    .expect("the folder is ours");
    let mut start = cluster.command(&["start", "--head", "--config", "etc/tracer.toml"]);
    start.env_remove("TRACER_TEMP_DIR").env_remove("TRACER_SPANS_DIR").env_remove("TRACER_MODULE_PATH");
    cluster.run(start).success();
    let status = cluster.status();
    assert_eq!(status["workers"]["wanted"], 2);
    assert_eq!(status["hook"]["import_string"], HOOK);
    cluster.submit("renamed:count", &["\"a b\""]).success().stdout("2\n");
    let spans = crate::support::Spans::read(&cluster.file("spans in a file"));
    spans.assert_whole(&[]);
    assert_eq!(spans.len(), 3);
}

#[test]
fn the_environment_settles_everything() {
    let cluster = Cluster::builder().build();
    copy_wordcount(&cluster.file("modules"), "renamed");
    let mut start = cluster.command(&["start", "--head"]);
    start
        .env("TRACER_NUM_WORKERS", "2")
        .env("TRACER_TRACING_STARTUP_HOOK", HOOK)
        .env("TRACER_TRACING_REQUIRED", "true")
        .env("TRACER_HOOK_TIMEOUT", "20s")
        .env("TRACER_MODULE_PATH", "modules");
    cluster.run(start).success();
    let status = cluster.status();
    assert_eq!((&status["workers"]["wanted"], &status["hook"]["import_string"]), (&json!(2), &json!(HOOK)));
    assert_eq!(status["spans_dir"], json!(cluster.spans_dir()));
    cluster.submit("renamed:count", &["\"a b\""]).success().stdout("2\n");
    let mut list = cluster.command(&["list", "modules", "--format", "json"]);
    list.env("TRACER_MODULE_PATH", "modules");
    assert!(cluster.run(list).success().stdout_text().contains("librenamed.so"));
}

#[test]
fn the_environment_may_keep_a_head_in_the_foreground() {
    let cluster = Cluster::builder().build();
    let mut start = cluster.start_command(&[]);
    start.env("TRACER_BLOCK", "1");
    let mut head = cluster.spawn(start);
    head.wait_for_stderr("Ctrl-C");
    assert!(head.is_running());
    head.signal(rustix::process::Signal::TERM);
    head.wait().success();
}

#[test]
fn a_flag_is_stronger_than_the_environment_and_that_is_stronger_than_the_file() {
    let cluster = Cluster::builder().build();
    std::fs::write(cluster.file("tracer.toml"), "num_workers = 1\n[tracing]\nspans_dir = 'from-file'\n")
        .expect("the folder is ours");
    let start = |flags: &[&str], environment: &[(&str, &str)]| {
        let mut start = cluster.command(&["start", "--head"]);
        start.env("TRACER_CONFIG", "tracer.toml").env_remove("TRACER_SPANS_DIR").args(flags);
        start.envs(environment.iter().copied());
        cluster.run(start).success();
        let status = cluster.status();
        cluster.stop().success();
        let spans_dir = status["spans_dir"].as_str().expect("a path").rsplit('/').next().expect("a name").to_owned();
        (status["workers"]["wanted"].as_u64().expect("a number"), spans_dir)
    };
    let environment = [("TRACER_NUM_WORKERS", "2"), ("TRACER_SPANS_DIR", "from-environment")];
    assert_eq!(start(&[], &[]), (1, "from-file".into()));
    assert_eq!(start(&[], &environment), (2, "from-environment".into()));
    assert_eq!(start(&["--num-workers", "3", "--spans-dir", "from-flag"], &environment), (3, "from-flag".into()));
    std::fs::write(cluster.file("other.toml"), "num_workers = 4\n").expect("the folder is ours");
    assert_eq!(start(&["--config", "other.toml"], &[("TRACER_SPANS_DIR", "s")]), (4, "s".into()));
}

#[test]
fn variables_that_are_set_to_nothing_are_not_set() {
    let cluster = Cluster::builder().build();
    let mut start = cluster.command(&["start", "--head"]);
    for name in [
        "TRACER_BLOCK",
        "TRACER_CONFIG",
        "TRACER_HOOK_TIMEOUT",
        "TRACER_MODULE_PATH",
        "TRACER_NUM_WORKERS",
        "TRACER_RECORD_ARGUMENTS",
        "TRACER_TRACING_ENABLED",
        "TRACER_TRACING_EXPORTER_IMPORT_PATH",
        "TRACER_TRACING_PROPAGATORS",
        "TRACER_TRACING_REQUIRED",
        "TRACER_TRACING_SAMPLING_RATIO",
        "TRACER_TRACING_STARTUP_HOOK",
    ] {
        start.env(name, "");
    }
    cluster.run(start).success();
    assert_eq!(cluster.status()["hook"], json!(null));
    let mut stop = cluster.command(&["stop"]);
    stop.env("TRACER_GRACE_PERIOD", "");
    cluster.run(stop).success();
}

#[test]
fn mistakes_in_the_file_are_told_with_line_and_key_and_the_nearest_known_one() {
    let cluster = Cluster::builder().build();
    let cases = [
        ("num_worker = 2\n", "tracer.toml:1: unknown key `num_worker`\n(hint: did you mean `num_workers`?)"),
        (
            "\n[tracing]\nhook = 'a:b'\n",
            "tracer.toml:3: unknown key `tracing.hook`; known are `enabled`, `startup_hook`, `exporter`, `required`, \
             `spans_dir`, `hook_timeout`, `sampling_ratio`, `propagators`, `runtime`, `record_arguments`",
        ),
        ("num_workers = 'two'\n", "tracer.toml:1: `num_workers`: expected an integer, found a string"),
        ("num_workers = 0\n", "tracer.toml:1: `num_workers`: expected a number from 1 to 1024, found 0"),
    ];
    for (text, message) in cases {
        std::fs::write(cluster.file("tracer.toml"), text).expect("the folder is ours");
        let run = cluster.start_head(&["--config", "tracer.toml"]).status(2).stdout("");
        assert_eq!(run.stderr_text(), format!("error: {message}\n"));
    }
    cluster
        .start_head(&["--config", "missing.toml"])
        .status(2)
        .stderr("error: cannot read the configuration file `missing.toml`: No such file or directory (os error 2)\n");
}

#[test]
fn values_that_make_no_sense_are_refused_before_anything_starts() {
    let cluster = Cluster::builder().build();
    let cases: [(&[&str], &str); 13] = [
        (&["--num-workers", "0"], "error: `--num-workers`: expected a number from 1 to 1024, found 0\n"),
        (&["--num-workers", "1025"], "error: `--num-workers`: expected a number from 1 to 1024, found 1025\n"),
        (&["--num-workers", "two"], "error: wrong value for `--num-workers <N>`: "),
        (&["--num-workers=-1"], "error: wrong value for `--num-workers <N>`: "),
        (&["--hook-timeout", "0"], "error: `--hook-timeout`: expected a duration above zero, found 0\n"),
        (&["--hook-timeout", "soon"], "expected a duration such as `500ms`, `10s` or `2m`, found `soon`\n"),
        (&["--tracing-sampling-ratio", "1.5"], "expected a number from 0 to 1, found `1.5`\n"),
        (&["--tracing-sampling-ratio", "half"], "expected a number from 0 to 1, found `half`\n"),
        (&["--tracing-propagators=b3"], "expected `tracecontext`, `baggage`, both or `none`, found `b3`\n"),
        (&["--tracing-propagators=none,baggage"], "expected `none` alone, found another name beside it\n"),
        (&["--tracing-enabled=maybe"], "error: wrong value for `--tracing-enabled"),
        (&["--tracing-required=maybe"], "error: wrong value for `--tracing-required"),
        (&["--num-worker", "2"], "error: unexpected argument '--num-worker' found\n"),
    ];
    for (arguments, message) in cases {
        let mut start = cluster.command(&["start", "--head"]);
        start.args(arguments);
        cluster.run(start).status(2).stdout("").stderr_contains(message);
    }
    for (name, value) in [
        ("TRACER_NUM_WORKERS", "two"),
        ("TRACER_HOOK_TIMEOUT", "0"),
        ("TRACER_TRACING_REQUIRED", "maybe"),
        ("TRACER_TRACING_SAMPLING_RATIO", "-1"),
    ] {
        let mut start = cluster.command(&["start", "--head"]);
        start.env(name, value);
        cluster.run(start).status(2).stdout("");
    }
    assert!(!cluster.temp_dir().exists(), "nothing was begun");
}

#[test]
fn a_hook_that_cannot_be_used_is_refused_before_anything_starts() {
    let cluster = Cluster::builder().build();
    cluster.start_head(&["--tracing-startup-hook", "nope"]).status(4).stdout("").stderr(
        "error: a tracing hook is named `module:attribute`, but got `nope`\n\
         (hint: for example `local_tmp_tracing:setup_tracing`)\n",
    );
    cluster
        .start_head(&["--tracing-startup-hook", "local_tmp_tracing:setup_tracin"])
        .status(4)
        .stderr_contains("has no hook `setup_tracin`; it has `setup_tracing`\nDid you mean `setup_tracing`?\n");
    assert!(!cluster.temp_dir().exists(), "nothing was begun");
}

#[test]
fn tracing_can_be_switched_off_whatever_the_hook() {
    let cluster = Cluster::builder().build();
    std::fs::write(cluster.file("tracer.toml"), "[tracing]\nenabled = false\nstartup_hook = 'bad_hooks:panics'\n")
        .expect("the folder is ours");
    let start = |arguments: &[&str], environment: &[(&str, &str)]| {
        let mut start = cluster.command(&["start", "--head", "--num-workers=1"]);
        start.args(arguments).envs(environment.iter().copied());
        let run = cluster.run(start);
        if run.stderr_text().contains("panicked") {
            return (run.stderr_text(), "hook ran".into());
        }
        let hook = cluster.status()["hook"].to_string();
        cluster.submit("traced_tasks:nested", &[]).success();
        cluster.stop().success();
        (run.stderr_text(), hook)
    };
    let hook = ["--tracing-startup-hook", "bad_hooks:panics"];
    for (arguments, environment) in [
        (&["--config", "tracer.toml"][..], &[][..]),
        (&hook, &[("TRACER_TRACING_ENABLED", "false")]),
        (&["--tracing-enabled=false", hook[0], hook[1]], &[("TRACER_TRACING_ENABLED", "true")]),
    ] {
        let (stderr, hook) = start(arguments, environment);
        assert!(stderr.contains("  tracing  off: --tracing-enabled is false\n"), "{arguments:?}: {stderr}");
        assert_eq!(hook, "null", "{arguments:?}");
    }
    assert_eq!(cluster.spans().len(), 0);
    // And on again, by what is stronger.
    let (_, hook) = start(&["--config", "tracer.toml", "--tracing-enabled"], &[]);
    assert_eq!(hook, "hook ran");
}

#[test]
fn only_what_the_propagators_name_comes_in_and_goes_out() {
    const TRACE_ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    for hook in [Some(HOOK), None] {
        for (names, takes_trace, takes_baggage) in [
            ("tracecontext,baggage", true, true),
            ("tracecontext", true, false),
            ("baggage", false, true),
            ("none", false, false),
        ] {
            let mut builder = Cluster::builder().env("TRACER_TRACING_PROPAGATORS", names);
            if let Some(hook) = hook {
                builder = builder.hook(hook);
            }
            let cluster = builder.start();
            let with_context = |arguments: &[&str]| {
                let mut submit = cluster.command(&["submit"]);
                submit
                    .args(arguments)
                    .env("TRACEPARENT", format!("00-{TRACE_ID}-00f067aa0ba902b7-01"))
                    .env("TRACESTATE", "vendor=1")
                    .env("BAGGAGE", "key=value");
                let run = cluster.run(submit).success();
                assert!(!run.stderr_text().contains("ignored"), "{names}: {}", run.stderr_text());
                run.stdout_text()
            };
            let task = with_context(&["task", "traced_tasks:baggage"]);
            assert_eq!(task, if takes_baggage { "{\"key\":\"value\"}\n" } else { "{}\n" }, "{names}, {hook:?}");
            let environment = with_context(&["command", "--", "env"]);
            let value = |name: &str| environment.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            assert_eq!(value("TRACEPARENT").is_some(), takes_trace, "{names}, {hook:?}: {environment}");
            assert!(value("TRACEPARENT").is_none_or(|value| value.contains(TRACE_ID)), "{names}: {environment}");
            assert_eq!(value("TRACESTATE"), takes_trace.then_some("vendor=1"), "{names}, {hook:?}: {environment}");
            assert_eq!(value("BAGGAGE"), takes_baggage.then_some("key=value"), "{names}, {hook:?}: {environment}");
            cluster.stop().success();
            // Inside of the session the traces are whole all the same.
            let spans = cluster.spans();
            spans.assert_whole(if takes_trace { &["0x00f067aa0ba902b7"] } else { &[] });
            assert_eq!(spans.len(), if hook.is_some() { 6 } else { 0 }, "{names}: {}", spans.describe());
        }
    }
}

#[test]
fn arguments_are_on_the_spans_only_if_asked_for() {
    let large = format!("\"{}\"", "x".repeat(70_000));
    let spans_with = |variable: &str, arguments: &[&str], file: &str| {
        let cluster = Cluster::builder().hook(HOOK).build();
        std::fs::write(cluster.file("tracer.toml"), file).expect("the folder is ours");
        let mut start = cluster.start_command(&["--config", "tracer.toml"]);
        start.args(arguments);
        if !variable.is_empty() {
            start.env("TRACER_RECORD_ARGUMENTS", variable);
        }
        cluster.run(start).success();
        cluster.submit("wordcount:frequencies", &["\"to be\"", "1"]).success();
        let long = format!("\"{}\"", "é".repeat(300));
        cluster.submit("wordcount:frequencies", &[&long]).success();
        cluster.submit("misbehaving_tasks:length", &[&large]).success();
        cluster.tracer(&["submit", "command", "--", "echo", "a b", "--secret"]).success();
        cluster.stop().success();
        cluster.spans()
    };
    let of = |spans: &Spans, span: &Span| -> BTreeMap<String, Value> {
        assert!(!spans.is_empty());
        let attributes = span.value["attributes"].as_object().expect("attributes are an object").clone();
        attributes.into_iter().filter(|(key, _)| key.starts_with("tracer.argument")).collect()
    };
    let expect = |found: BTreeMap<String, Value>, expected: &[(&str, Value)]| {
        let expected: BTreeMap<_, _> = expected.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        assert_eq!(found, expected);
    };
    for (variable, arguments, file) in [
        ("", &["--record-arguments"][..], ""),
        ("true", &[], "[tracing]\nrecord_arguments = false\n"),
        ("", &[], "[tracing]\nrecord_arguments = true\n"),
    ] {
        let spans = spans_with(variable, arguments, file);
        let attempt = |task: u64| spans.attempt_of(task);
        let [first, second, third, fourth] = [1, 2, 3, 4].map(attempt);
        expect(
            of(&spans, first),
            &[("tracer.argument.text", json!("\"to be\"")), ("tracer.argument.limit", json!("1"))],
        );
        let producer = spans.parent_of(first);
        expect(of(&spans, producer), &[("tracer.argument.1", json!("\"to be\"")), ("tracer.argument.2", json!("1"))]);
        // With its quote, 256 characters.
        let cut = json!(format!("\"{}…", "é".repeat(255)));
        expect(of(&spans, second), &[("tracer.argument.text", cut)]);
        for span in [third, spans.parent_of(third)] {
            expect(of(&spans, span), &[("tracer.arguments_size", json!(70_006))]);
        }
        for span in [fourth, spans.parent_of(fourth)] {
            expect(of(&spans, span), &[("tracer.argument.1", json!("a b")), ("tracer.argument.2", json!("--secret"))]);
        }
    }
    for (variable, arguments, file) in
        [("", &[][..], ""), ("true", &["--record-arguments=false"], "[tracing]\nrecord_arguments = true\n")]
    {
        let spans = spans_with(variable, arguments, file);
        for span in spans.iter() {
            expect(of(&spans, span), &[]);
            assert!(!span.value.to_string().contains("secret"), "{}", span.value);
        }
    }
}
