//! Task modules: whatever they trace with, it becomes part of their tasks' traces.

use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{
    Cluster, HOOK, Span, Spans, build_standalone, compile_c, compile_c_with, fixture_folder, kill, wait_until,
};

/// Returns the spans of the one task that was submitted, and its attempt among them. Nothing is torn, double or without its parent.
#[track_caller]
fn attempt(spans: &Spans) -> &Span {
    spans.assert_whole(&[]);
    let consumer = spans.only("is a CONSUMER", |span| span.kind() == "SpanKind.CONSUMER");
    let producer = spans.parent_of(consumer);
    assert_eq!(producer.kind(), "SpanKind.PRODUCER");
    assert_eq!(producer.name().strip_suffix("remote"), consumer.name().strip_suffix("remote_worker"));
    let job = spans.parent_of(producer);
    assert_eq!((job.name(), job.parent_id()), ("tracer job", None));
    consumer
}

/// Submits a task that succeeds. Returns its result and all spans, which are in the span files when the result is seen.
#[track_caller]
fn traced(cluster: &Cluster, target: &str, arguments: &[&str]) -> (Value, Spans) {
    let result = cluster.submit(target, arguments).success().json();
    (result, cluster.spans())
}

#[track_caller]
fn assert_child(spans: &Spans, name: &str, parent: &Span) {
    let span = spans.named(name);
    assert_eq!(span.trace_id(), parent.trace_id(), "of `{name}`");
    assert_eq!(span.parent_id(), Some(parent.span_id()), "of `{name}`, in {}", spans.describe());
    assert_eq!(span.file, parent.file, "of `{name}`");
}

fn without_prefix(id: &str) -> &str {
    id.trim_start_matches("0x")
}

// ---- OpenTelemetry --------------------------------------------------------------------------------------------------

#[test]
fn spans_of_ordinary_opentelemetry_code_are_children_of_the_task() {
    let cluster = Cluster::traced();
    let (result, spans) = traced(&cluster, "traced_tasks:nested", &[]);
    let attempt = attempt(&spans);
    assert_child(&spans, "outer", attempt);
    let outer = spans.named("outer");
    assert_child(&spans, "inner", outer);
    let inner = spans.named("inner");
    assert_eq!(outer.kind(), "SpanKind.INTERNAL");
    // What task code injects into a request is what the span file says.
    assert_eq!(result, json!([without_prefix(inner.trace_id()), without_prefix(inner.span_id())]));
    let pid = cluster.worker_pids()[0];
    assert_eq!(inner.resource_attribute("process.pid"), pid);
    assert_eq!(attempt.attribute("tracer.pid"), pid);
}

#[test]
fn active_span_is_the_span_of_the_task() {
    let cluster = Cluster::traced();
    let (result, spans) = traced(&cluster, "traced_tasks:active_span", &[]);
    let attempt = attempt(&spans);
    assert_eq!(spans.len(), 3, "{}", spans.describe());
    assert_eq!(result, without_prefix(attempt.span_id()));
    assert_eq!(attempt.attribute("fixture.mark"), "set by the task");
    let events = attempt.events("marked");
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["attributes"], json!({"step": 1}));
    // It was lent: the task could not end it, so what tracer sets at its end is on it too.
    assert!(attempt.attribute("tracer.cpu_time_ns").is_u64(), "{}", attempt.value);
}

#[test]
fn thread_that_takes_the_context_along_stays_in_the_trace() {
    let cluster = Cluster::traced();
    let (_, spans) = traced(&cluster, "traced_tasks:on_a_thread", &[]);
    assert_child(&spans, "on the thread", attempt(&spans));
    let (_, spans) = traced(&cluster, "traced_tasks:on_a_forgetful_thread", &[]);
    let forgotten = spans.named("on its own");
    assert_eq!(forgotten.parent_id(), None, "OpenTelemetry's context belongs to a thread");
}

#[test]
fn concurrent_futures_keep_their_spans_apart() {
    let cluster = Cluster::traced();
    let (_, spans) = traced(&cluster, "traced_tasks:concurrent", &[]);
    let attempt = attempt(&spans);
    for (child, inner) in [("left", "in left"), ("right", "in right")] {
        assert_child(&spans, child, attempt);
        assert_child(&spans, inner, spans.named(child));
    }
    assert_eq!(spans.children_of(attempt).len(), 2);
}

#[test]
fn everything_that_a_span_can_have_crosses_the_boundary() {
    let cluster = Cluster::traced();
    let (_, spans) = traced(&cluster, "traced_tasks:rich", &[]);
    assert_child(&spans, "rich and renamed", attempt(&spans));
    let rich = spans.named("rich and renamed");
    assert_eq!(rich.kind(), "SpanKind.CLIENT");
    assert_eq!(rich.value["status"], json!({"status_code": "ERROR", "description": "it did not go well"}));
    assert_eq!(
        rich.value["attributes"],
        json!({
            "bool": true, "int": 8, "float": 2.5, "text": "é\n\"quoted\"", "bools": [true, false], "ints": [1, i64::MIN],
            "floats": [0.5], "texts": ["a", "b"],
        })
    );
    let events = rich.events("moment");
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["attributes"], json!({"at": "noon"}));
    let [link] = rich.links() else { panic!("one link: {}", rich.value) };
    assert_eq!(link["context"]["trace_id"], "0x00000000000000000000000000000abc");
    assert_eq!(link["context"]["span_id"], "0x0000000000000def");
    assert!(link["context"]["trace_state"].to_string().contains("vendor"), "{link}");
    assert_eq!(link["attributes"], json!({"why": "because"}));
}

#[test]
fn baggage_of_the_shell_is_read_in_the_task() {
    let cluster = Cluster::traced();
    let mut command = cluster.command(&["submit", "task", "traced_tasks:baggage"]);
    command.env("BAGGAGE", "user=ada,city=S%C3%A3o%20Paulo");
    cluster.run(command).success().stdout("{\"city\":\"São Paulo\",\"user\":\"ada\"}\n");
    // It belongs to that submission and to no later one.
    cluster.submit("traced_tasks:baggage", &[]).success().stdout("{}\n");
}

#[test]
fn span_that_was_left_open_is_closed_when_the_worker_dies() {
    let cluster = Cluster::traced();
    let (_, spans) = traced(&cluster, "traced_tasks:leaves_a_span_open", &[]);
    let parent = attempt(&spans).clone();
    assert_eq!(spans.all_named("left open").len(), 0, "it is open");
    kill(cluster.worker_pids()[0], Signal::KILL);
    let spans = cluster.wait_for_spans("the open one", |spans| !spans.all_named("left open").is_empty());
    attempt(&spans);
    assert_child(&spans, "left open", &parent);
    let open = spans.named("left open");
    assert_eq!(
        (open.status_code(), open.status_description()),
        ("ERROR", "the worker was killed by SIGKILL (signal 9)")
    );
    assert_eq!(open.attribute("error.type"), "signal:9");
    assert_eq!(open.attribute("fixture.mark"), "before the end");
}

#[test]
fn span_that_was_left_open_is_not_lost_when_the_head_stops() {
    let cluster = Cluster::traced();
    let (_, spans) = traced(&cluster, "traced_tasks:leaves_a_span_open", &[]);
    let parent = attempt(&spans).clone();
    cluster.stop().success();
    let spans = cluster.spans();
    attempt(&spans);
    assert_child(&spans, "left open", &parent);
    let open = spans.named("left open");
    assert_eq!((open.status_code(), open.status_description()), ("ERROR", "it was still open when the worker ended"));
    assert_eq!(open.attribute("error.type"), "unfinished");
    assert_eq!(open.attribute("fixture.mark"), "before the end");
}

// ---- tracing --------------------------------------------------------------------------------------------------------

#[test]
fn spans_of_ordinary_tracing_code_are_children_of_the_task() {
    let cluster = Cluster::traced();
    let (result, spans) = traced(&cluster, "traced_tasks:add", &[r#"["1","x","2"]"#]);
    assert_eq!(result, 3);
    let attempt = attempt(&spans);
    assert_child(&spans, "sum", attempt);
    let sum = spans.named("sum");
    let parsed = spans.all_named("parse");
    assert_eq!(parsed.len(), 3, "{}", spans.describe());
    for span in &parsed {
        assert_eq!((span.trace_id(), span.parent_id()), (sum.trace_id(), Some(sum.span_id())));
    }
    let texts: Vec<_> = parsed.iter().map(|span| span.attribute("text").as_str().unwrap()).collect();
    assert_eq!(texts, ["1", "x", "2"]);
    let failed: Vec<_> = parsed.iter().filter(|span| span.status_code() == "ERROR").collect();
    assert_eq!(failed.len(), 1, "{}", spans.describe());
    assert_eq!(failed[0].attribute("text"), "x");
}

#[test]
fn futures_instrumented_with_tracing_keep_their_spans_apart() {
    let cluster = Cluster::traced();
    let (_, spans) = traced(&cluster, "traced_tasks:add_async", &[]);
    let attempt = attempt(&spans);
    assert_child(&spans, "first", attempt);
    assert_child(&spans, "second", attempt);
    // OpenTelemetry code below a span of `tracing` is in the right place too.
    let inner = spans.all_named("in the future");
    let mut parents: Vec<_> = inner.iter().map(|span| spans.parent_of(span).name()).collect();
    parents.sort_unstable();
    assert_eq!(parents, ["first", "second"]);
}

#[test]
fn module_may_have_a_subscriber_of_its_own() {
    let cluster = Cluster::traced();
    let (_, spans) = traced(&cluster, "own_subscriber:detailed", &[]);
    assert_child(&spans, "step", attempt(&spans));
    let step = spans.named("step");
    assert_eq!(step.attribute("number"), 1);
    // Of level `debug`, which the subscriber that a module gets by default would have dropped.
    assert_eq!(step.events("taken").len(), 1, "{}", step.value);
}

#[test]
fn module_with_a_provider_of_its_own_is_reported() {
    let cluster = Cluster::traced();
    let run = cluster.submit("own_provider:trace", &[]).success();
    let spans = cluster.spans();
    attempt(&spans);
    assert_eq!(spans.all_named("lost").len(), 0, "it went to the module's own provider");
    let warning = "module `own_provider` has replaced its global tracer provider (OpenTelemetry 0.33)";
    run.stderr_contains(warning);
    let logs = std::fs::read_dir(cluster.session_dir().join("logs")).unwrap().map(|log| log.unwrap().path());
    // Beside the logs are their indexes, which are no text.
    let log = |path: &Path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned();
    assert!(logs.into_iter().any(|path| log(&path).contains(warning)), "the log of the worker says so");
}

// ---- other versions, other compilers, no hook -----------------------------------------------------------------------

#[track_caller]
fn assert_older_otel_is_traced(folder: &Path, module: &str, version: &str) {
    let named = |name: &str| format!("{name} {version}");
    let folders = std::env::join_paths([folder, &fixture_folder()]).expect("plain names");
    let cluster = Cluster::builder().hook(HOOK).arg("--module-path").arg(folders).start();
    let (result, spans) = traced(&cluster, &format!("{module}:nested"), &[]);
    {
        let attempt = attempt(&spans);
        assert_child(&spans, &named("outer"), attempt);
        assert_child(&spans, &named("inner"), spans.named(&named("outer")));
        assert_child(&spans, &named("failed"), attempt);
        let inner = spans.named(&named("inner"));
        assert_eq!(result, json!([without_prefix(inner.trace_id()), without_prefix(inner.span_id())]));
        let failed = spans.named(&named("failed"));
        assert_eq!((failed.status_code(), failed.status_description()), ("ERROR", "as it should"));
        assert_eq!(attempt.attribute("fixture.otel"), version);
    }
    // `tracing`, in an async task, beside a module on OpenTelemetry 0.33 in the same worker.
    cluster.submit("traced_tasks:nested", &[]).success();
    cluster.submit(&format!("{module}:instrumented"), &[]).success();
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let step = spans.named("step");
    assert_eq!(spans.parent_of(step).name(), format!("{module}.instrumented tracer.remote_worker"));
    assert_eq!(step.attribute("number"), 3);
    assert_eq!(spans.parent_of(spans.named("outer")).name(), "traced_tasks.nested tracer.remote_worker");
}

#[test]
fn module_on_opentelemetry_0_32_is_traced_like_any_other() {
    if let Some(folder) = build_standalone("otel_0_32", "") {
        assert_older_otel_is_traced(&folder, "otel_0_32", "0.32");
        let module = folder.join("libotel_0_32.so").display().to_string();
        let shown = Cluster::builder().build().tracer(&["modules", "show", &module]).success();
        let shown = shown.stdout_contains("opentelemetry 0.32");
        assert!(!shown.stdout_text().contains("are lost"), "{shown:?}");
    }
}

#[test]
fn module_on_opentelemetry_0_31_is_traced_like_any_other() {
    if let Some(folder) = build_standalone("otel_0_31", "") {
        assert_older_otel_is_traced(&folder, "otel_0_31", "0.31");
    }
}

#[test]
fn module_of_a_nightly_compiler_is_traced_like_any_other() {
    if let Some(folder) = build_standalone("otel_0_31", "nightly") {
        assert_older_otel_is_traced(&folder, "otel_0_31", "0.31");
    }
}

#[test]
fn a_module_is_told_of_an_opentelemetry_that_the_sdk_does_not_serve() {
    const SAID: &str =
        "it holds `opentelemetry` 0.31, and its `tracer-sdk` serves 0.33 only: spans made with 0.31 are lost";
    const HINT: &str = "(hint: build with the feature `otel-0-31` of `tracer-sdk`, or depend on `opentelemetry` 0.33)";
    let Some(folder) = build_standalone("otel_beside", "") else { return };
    let cluster = Cluster::builder().workers(2).hook(HOOK).env("TRACER_MODULE_PATH", &folder).start();
    let shown = cluster.tracer(&["modules", "show", "otel_beside"]).success();
    shown.stdout_contains(SAID).stdout_contains(HINT);
    let shown = cluster.tracer(&["modules", "show", "otel_beside", "--format", "json"]).success().json();
    assert_eq!(shown["unserved_opentelemetry"], json!(["0.31"]));
    // Once in a session, whichever workers load it.
    let submitted: Vec<_> = (0..8).map(|_| cluster.submit_in_background("otel_beside:lost", &[])).collect();
    for submitted in submitted {
        submitted.wait().success().stdout("1\n");
    }
    let logs = std::fs::read_dir(cluster.session_dir().join("logs")).expect("a session has logs");
    let logs: String = logs.filter_map(|log| std::fs::read_to_string(log.ok()?.path()).ok()).collect();
    assert_eq!(logs.matches(SAID).count(), 1, "{logs}");
    cluster.stop().success();
    // One whose versions agree is not told anything.
    let cluster = Cluster::traced();
    let shown = cluster.tracer(&["modules", "show", "traced_tasks", "--format", "json"]).success().json();
    assert_eq!(shown["unserved_opentelemetry"], json!([]));
    let run = cluster.tracer(&["hooks", "check", HOOK]).success();
    assert!(!run.stdout_text().contains("warning"), "{run:?}");
    if let Some(folder) = build_standalone("otel_0_31", "") {
        let module = folder.join("libotel_0_31.so").display().to_string();
        let shown = cluster.tracer(&["modules", "show", &module, "--format", "json"]).success().json();
        assert_eq!(shown["unserved_opentelemetry"], json!([]));
    }
}

#[test]
fn traced_code_runs_in_an_untraced_cluster() {
    let cluster = Cluster::untraced();
    let zero = json!(["0".repeat(32), "0".repeat(16)]);
    assert_eq!(cluster.submit("traced_tasks:nested", &[]).success().json(), zero);
    cluster.submit("traced_tasks:concurrent", &[]).success();
    assert_eq!(cluster.submit("traced_tasks:add", &[r#"["1"]"#]).success().json(), 1);
    assert_eq!(cluster.spans().len(), 0);
    // What the shell is part of goes on through it.
    let mut command = cluster.command(&["submit", "task", "traced_tasks:nested"]);
    command.env("TRACEPARENT", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    let result = cluster.run(command).success().json();
    assert_eq!(result, json!(["0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"]));
}

// ---- modules that cannot be used ------------------------------------------------------------------------------------

#[test]
fn misspelt_module_and_function_get_the_nearest_as_a_suggestion() {
    let cluster = Cluster::untraced();
    for (target, said) in [
        ("wordcuont:count", "Did you mean `wordcount`?"),
        ("traced_tasks:nestd", "Did you mean `nested`?"),
        ("traced_tasks:nestd", ") has no task `nestd`; it has `nested`, `active_span`"),
        ("traced_tasks:nestd", "module `traced_tasks` (<fixtures>/libtraced_tasks.so, build "),
        ("bad_hooks:panics", ") has no task `panics`; it has no tasks at all"),
        ("./libnone.so:task", "module `<folder>/libnone.so` was not found: there is no such file"),
    ] {
        cluster.submit(target, &[]).status(1).stdout("").stderr_contains(said);
    }
}

#[test]
fn module_that_cannot_be_loaded_fails_its_tasks_and_no_others() {
    let cluster = Cluster::traced();
    std::fs::write(cluster.file("libtext.so"), "no library").unwrap();
    let run = cluster.submit("./libtext.so:task", &[]).status(1);
    run.stderr_contains("`<folder>/libtext.so` cannot be loaded as a shared library: file too short");
    let spans = cluster.spans();
    let failed = attempt(&spans);
    assert_eq!(failed.status_code(), "ERROR");
    assert!(failed.status_description().contains("cannot be loaded as a shared library"), "{}", failed.value);
    assert_eq!(failed.events("exception").len(), 1);
    let pid = cluster.worker_pids();
    cluster.submit("wordcount:count", &["\"a b c\""]).success().stdout("3\n");
    assert_eq!(cluster.worker_pids(), pid, "the worker lives on");
}

#[test]
fn module_whose_preparation_fails_runs_no_task() {
    let cluster = Cluster::traced();
    compile_c("tests/fixtures/c/refuses_to_load.c", &cluster.file("librefuses_to_load.so"));
    let reason = " could not get ready to run tasks: table `prices` is missing";
    for _ in 0..2 {
        cluster.submit("./librefuses_to_load.so:price", &[]).status(1).stderr_contains(reason);
    }
    cluster.submit("wordcount:count", &["\"a\""]).success();
    assert_eq!(cluster.status()["workers"]["lost"], 0, "the task was not called");
}

#[test]
fn modules_of_an_older_and_of_a_newer_minor_version_run_tasks_and_submit_others() {
    let cluster = Cluster::traced();
    let source = "tests/fixtures/c/other_minor.c";
    compile_c(source, &cluster.file("libolder.so"));
    compile_c_with(source, &cluster.file("libnewer.so"), &["-DNEWER"]);
    for (library, abi) in [("./libolder.so", "1.1"), ("./libnewer.so", "1.99")] {
        let shown = cluster.tracer(&["modules", "show", library, "--format", "json"]).success().json();
        assert_eq!(shown["abi"], abi);
        cluster.submit(&format!("{library}:answer"), &[]).success().stdout("42\n");
        cluster.submit(&format!("{library}:asks"), &[]).success().stdout("3\n");
    }
    assert_eq!(cluster.status()["workers"]["lost"], 0);
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    for module in ["older", "newer"] {
        let asks = spans.named(&format!("{module}.asks tracer.remote_worker"));
        let submitted = spans.children_of(asks);
        assert_eq!(submitted.iter().map(|span| span.name()).collect::<Vec<_>>(), ["wordcount.count tracer.remote"]);
    }
}

/// Compiles a file in C with the header of the first commit of ABI 1.5, which takes the place of today's.
#[track_caller]
fn compile_c_of_1_5(source: &str, library: &Path) {
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/hooks/abi/tests/headers/abi_1_5.h");
    // The header includes those of libc, so what a source defines before them must be there before it.
    compile_c_with(source, library, &["-D_GNU_SOURCE=", "-include", header]);
}

#[test]
fn a_module_and_a_hook_that_were_built_with_the_header_of_1_5_run() {
    let cluster = Cluster::builder().workers(2).hook("./libhook_of_then.so:setup_tracing").build();
    compile_c_of_1_5("tests/fixtures/c/of_1_5.c", &cluster.file("libof_then.so"));
    compile_c_of_1_5("examples/hook_c/hook_c.c", &cluster.file("libhook_of_then.so"));
    cluster.start_head(&[]).success();
    for library in ["./libof_then.so", "./libhook_of_then.so"] {
        let shown = cluster.tracer(&["modules", "show", library, "--format", "json"]).success().json();
        assert_eq!(shown["abi"], "1.5");
    }
    cluster.submit("./libof_then.so:asks", &[]).success().stdout("3\n");
    cluster.submit("./libof_then.so:makes_a_span", &[]).success().stdout("1\n");
    cluster.tracer(&["submit", "actor", "./libof_then.so:Tally", "--name", "tally"]).success();
    for count in 1..=2 {
        cluster.tracer(&["submit", "call", "tally", "add"]).success().stdout(&format!("{count}\n"));
    }
    cluster.tracer(&["cancel", "tally"]).success();
    assert_eq!(cluster.status()["workers"]["lost"], 0);
    let asked =
        cluster.tasks().into_iter().find(|task| task["name"] == "of then").expect("the task of the task is listed");
    assert_eq!((&asked["demand"]["memory_bytes"], &asked["options"]), (&json!(1 << 30), &json!(null)));
    cluster.stop().success();
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let submitted = spans.named("wordcount.count tracer.remote");
    assert_eq!(spans.parent_of(submitted).name(), "of_then.asks tracer.remote_worker");
    let span = spans.named("a span of then");
    assert_eq!(spans.parent_of(span).name(), "of_then.makes_a_span tracer.remote_worker");
    assert_eq!((span.kind(), span.status_description()), ("SpanKind.CLIENT", "it broke then"));
    assert_eq!((span.attribute("answer"), span.events("moment").len()), (&json!(42), 1));
}

#[test]
fn a_module_in_c_sends_options_over_the_abi() {
    let cluster = Cluster::builder().workers(2).hook(HOOK).build();
    compile_c("tests/fixtures/c/options.c", &cluster.file("liboptions.so"));
    cluster.start_head(&[]).success();
    let sends = |options: &str| cluster.submit("./liboptions.so:sends", &[options]);
    sends(r#"{"priority": 7}"#).success().stdout("3\n");
    sends(r#"{"priority": -100, "trace_runtime": true, "grace_ms": 9}"#).success().stdout("3\n");
    sends("{}").success().stdout("3\n");
    let mut priorities: Vec<_> = cluster
        .spans()
        .all_named("wordcount.count tracer.remote_worker")
        .iter()
        .map(|span| span.attribute("tracer.priority").as_i64())
        .collect();
    priorities.sort();
    assert_eq!(priorities, [None, Some(-100), Some(7)]);
    for (options, reason) in [
        (r#"{"priority": 101}"#, "the options of the task: `priority` is 101, but takes -100 to 100"),
        (r#"{"priority": 1.5}"#, "the options of the task: expected a whole number, found 1.5"),
        (
            r#"{"urgency": 7}"#,
            "the options of the task: unknown option `urgency`, expected one of `trace_runtime`, `grace_ms`, `priority`, `queue`",
        ),
        // An option that has a field of its own.
        (r#"{"retries": 7}"#, "the options of the task: unknown option `retries`"),
        (r#"["priority", 7]"#, "the options of the task: invalid type: sequence, expected a map of options"),
    ] {
        sends(options).status(1).stderr_contains(reason);
    }
    let two = cluster.submit("./liboptions.so:sends", &[r#"{"priority": 7}"#, "7"]).status(1);
    two.stderr_contains("the options of the task: 1 byte follows their map");
    cluster
        .submit("./liboptions.so:sends_cut", &[r#"{"priority": 7}"#])
        .status(1)
        .stderr_contains("the options of the task: ");
    let status = cluster.status();
    assert_eq!(status["workers"]["lost"], 0);
    assert_eq!(status["tasks"]["succeeded"], 6, "what was refused has made no task");
}

#[test]
fn module_that_was_built_in_between_is_found() {
    let cluster = Cluster::builder().arg("--module-path").arg("mine").build();
    std::fs::create_dir(cluster.file("mine")).unwrap();
    cluster.start_head(&[]).success();
    cluster.submit("made_later:nested", &[]).status(1).stderr_contains("module `made_later` was not found");
    let built = fixture_folder().join("libtraced_tasks.so");
    std::fs::copy(built, cluster.file("mine/libmade_later.so")).unwrap();
    wait_until("the module is found", || {
        (cluster.submit("made_later:active_span", &[]).output.status.code() == Some(0)).then_some(())
    });
}

#[test]
fn a_module_that_only_the_shell_knows_is_told_from_one_that_is_nowhere() {
    let cluster = Cluster::untraced();
    let folder = cluster.file("mine");
    std::fs::create_dir(&folder).expect("the folder is ours");
    let library = folder.join("libnewer.so");
    std::fs::copy(crate::support::module_folder().join("libwordcount.so"), &library).expect("it was built");
    let mut submit = cluster.command(&["submit", "task", "newer:count", "\"a b\""]);
    submit.env("TRACER_MODULE_PATH", &folder);
    cluster.run(submit).status(1).stderr_contains(
        "\n(hint: `<folder>/mine/libnewer.so` is in TRACER_MODULE_PATH here, and the head was started without that folder: \
         submit it as `<folder>/mine/libnewer.so:…`, or start the head again)\n",
    );
    let run = cluster.submit(&format!("{}:nothing", library.display()), &[]).status(1);
    assert_eq!(run.stderr_text().matches("libnewer.so").count(), 1, "{run:?}");
    // One that the head finds too, though both name its folder from where they are.
    let cluster = Cluster::builder().env("TRACER_MODULE_PATH", "mine").build();
    std::fs::create_dir(cluster.file("mine")).expect("the folder is ours");
    std::fs::copy(&library, cluster.file("mine/libnewer.so")).expect("it was built");
    cluster.start_head(&[]).success();
    let run = cluster.submit("newer:nothing", &[]).status(1);
    assert!(
        run.stderr_text().contains("has no task `nothing`") && !run.stderr_text().contains("submit it as"),
        "{run:?}"
    );
}
