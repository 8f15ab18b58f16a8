//! Several hooks in one session: the first makes the spans, and each further one gets all of them, whatever happens to processes and
//! to the other hooks.

use std::collections::BTreeSet;
use std::net::TcpListener;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Api, Builder, Cluster, HOOK, Receiver, Spans, compile_c, kill, wait_until};

const OTLP: &str = "otlp:setup_tracing";
const OTLP_FILE: &str = "otlp_file:setup_tracing";

/// Starts a cluster with the hooks in this order.
fn with_hooks(hooks: &[&str]) -> Builder {
    let builder = Cluster::builder().env("OTEL_BSP_SCHEDULE_DELAY", "20");
    hooks.iter().fold(builder, |builder, hook| builder.arg(format!("--tracing-startup-hook={hook}")))
}

/// Returns the spans in the OTLP files of the cluster, each with the attributes of its resource.
fn otlp_lines(cluster: &Cluster) -> Vec<(Value, Value)> {
    let entries = std::fs::read_dir(cluster.spans_dir()).into_iter().flatten().flatten();
    let files = entries.map(|entry| entry.path()).filter(|path| path.to_string_lossy().ends_with(".otlp.jsonl"));
    let mut spans = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(file).expect("it can be read");
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        for line in whole.lines() {
            let line: Value = serde_json::from_str(line).expect("a line is JSON");
            let of_resource = &line["resourceSpans"][0];
            spans.push((
                of_resource["scopeSpans"][0]["spans"][0].clone(),
                of_resource["resource"]["attributes"].clone(),
            ));
        }
    }
    spans
}

/// Returns the ids in lines of OTLP. None is there twice.
#[track_caller]
fn otlp_ids(spans: &[(Value, Value)]) -> BTreeSet<String> {
    let all: Vec<_> = spans.iter().map(|(span, _)| span["spanId"].as_str().expect("an id").to_owned()).collect();
    let ids: BTreeSet<_> = all.iter().cloned().collect();
    assert_eq!(ids.len(), all.len(), "a span is there twice: {spans:#?}");
    ids
}

fn ids(spans: &Spans) -> BTreeSet<String> {
    spans.iter().map(|span| span.span_id().trim_start_matches("0x").to_owned()).collect()
}

fn received_ids(spans: &[Value]) -> BTreeSet<String> {
    spans.iter().map(|span| span["span_id"].as_str().expect("an id").to_owned()).collect()
}

/// Returns the number of entries of a list or an object.
fn count(values: &Value) -> usize {
    values.as_array().map_or_else(|| values.as_object().map_or(0, serde_json::Map::len), Vec::len)
}

/// Returns the value of an attribute in OTLP.
fn value_of<'a>(attributes: &'a Value, key: &str) -> &'a Value {
    let attribute = attributes.as_array().into_iter().flatten().find(|attribute| attribute["key"] == key);
    attribute.and_then(|it| it["value"].as_object()?.values().next()).unwrap_or(&Value::Null)
}

#[test]
fn two_files_hold_the_same_spans() {
    let cluster = with_hooks(&[HOOK, OTLP_FILE]).start();
    cluster.submit("traced_tasks:rich", &[]).success().stderr("");
    cluster.submit("traced_tasks:nested", &[]).success().stderr("");
    cluster.stop().success();
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    assert_eq!(spans.len(), 4 + 5, "{}", spans.describe());
    let lines = otlp_lines(&cluster);
    assert_eq!(otlp_ids(&lines), ids(&spans));
    for (line, resource) in &lines {
        let id = format!("0x{}", line["spanId"].as_str().expect("an id"));
        let span = spans.only("has that id", |span| span.span_id() == id);
        assert_eq!(line["name"], span.name());
        assert_eq!(format!("0x{}", line["traceId"].as_str().expect("an id")), span.trace_id());
        assert_eq!(line["events"].as_array().map_or(0, Vec::len), count(&span.value["events"]), "{line}");
        assert_eq!(line["links"].as_array().map_or(0, Vec::len), span.links().len(), "{line}");
        assert_eq!(line["attributes"].as_array().map_or(0, Vec::len), count(&span.value["attributes"]), "{line}");
        assert_eq!(line["status"]["code"] == 2, span.status_code() == "ERROR");
        // The process that made the span, whichever wrote the line.
        let pid = span.resource_attribute("process.pid").as_i64().expect("a pid").to_string();
        assert_eq!(*value_of(resource, "process.pid"), *pid);
        assert_eq!(value_of(resource, "service.name"), span.resource_attribute("service.name"));
    }
}

#[test]
fn what_a_further_hook_does_not_get_of_a_span_is_counted_and_said() {
    let cluster = with_hooks(&[HOOK, OTLP_FILE]).start();
    cluster.submit("misbehaving_tasks:makes_a_span_of", &["10240"]).success();
    let spans = cluster.spans();
    assert_eq!(spans.named("large").attribute("large").as_str().map(str::len), Some(10_240), "the first has it all");
    wait_until("it is counted", || (cluster.status()["spans"]["cut"] == 1).then_some(()));
    // Also when its process has ended.
    let worker = cluster.worker_pids()[0];
    kill(worker, Signal::TERM);
    wait_until("the worker is replaced", || cluster.worker_pids().iter().all(|&pid| pid != worker).then_some(()));
    assert_eq!(cluster.status()["spans"]["cut"], 1);
    cluster.stop().success();
    let lines = otlp_lines(&cluster);
    let large = lines.iter().find(|(line, _)| line["name"] == "large").expect("it is there");
    let keys: Vec<_> =
        large.0["attributes"].as_array().expect("attributes are a list").iter().map(|it| &it["key"]).collect();
    assert_eq!(keys, ["before", "after", "tracer.cut"]);
}

#[test]
fn spans_of_a_killed_worker_are_whole_in_both_files() {
    let cluster = with_hooks(&[HOOK, OTLP_FILE]).workers(2).start();
    cluster.submit("traced_tasks:rich", &[]).success();
    let (started, released) = (cluster.file("started"), cluster.file("released"));
    let arguments = [started, released].map(|path| serde_json::to_string(&path).expect("a path is a text"));
    let waiting = cluster.submit_in_background(
        "misbehaving_tasks:waits_in_nested_spans",
        &[&arguments[0], &arguments[1], "--crash-limit=0"],
    );
    cluster.wait_for_file(&cluster.file("started"));
    let busy = cluster.workers().into_iter().find(|worker| worker["state"] == "busy").expect("one runs the task");
    let pid = u32::try_from(busy["pid"].as_u64().expect("a pid")).expect("a pid");
    kill(pid, Signal::KILL);
    waiting.wait().stderr_contains("SIGKILL");
    let lines = wait_until("both have the same spans, and all", || {
        let (spans, lines) = (cluster.spans(), otlp_lines(&cluster));
        let has_driver = spans.all_named("tracer job").len() == 2;
        (has_driver && lines.len() >= 8 && otlp_ids(&lines) == ids(&spans)).then_some(lines)
    });
    cluster.stop().success();
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    assert_eq!(otlp_ids(&otlp_lines(&cluster)), ids(&spans));
    let closed: Vec<_> =
        lines.iter().filter(|(span, _)| *value_of(&span["attributes"], "error.type") == "signal:9").collect();
    assert!(closed.len() >= 2, "the attempt and the spans that were open in it: {lines:#?}");
    for (span, resource) in closed.iter().filter(|(span, _)| span["kind"] != 4 && span["name"] != "tracer job") {
        assert_eq!(*value_of(resource, "process.pid"), *pid.to_string(), "{span}");
    }
}

#[test]
fn a_further_hook_that_cannot_deliver_disturbs_nobody_and_is_counted() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let endpoint = format!("http://{}", listener.local_addr().expect("it has one"));
    // Connections wait in its queue and nobody takes them; later nobody has the port.
    let mut listener = Some(listener);
    for _ in 0..2 {
        let cluster = with_hooks(&[HOOK, OTLP, OTLP_FILE])
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)
            .env("OTEL_EXPORTER_OTLP_TIMEOUT", "300")
            .start();
        for _ in 0..3 {
            cluster.submit("demo:my_function", &[]).success().stdout("1\n");
        }
        wait_until("what it did not take is counted", || {
            (cluster.status()["spans"]["waiting"].as_u64() >= Some(3)).then_some(())
        });
        wait_until("the other has all", || (otlp_lines(&cluster).len() == 9).then_some(()));
        cluster.tracer(&["status"]).success().stdout_contains("waiting for an exporter that accepts them");
        cluster.stop().success();
        let spans = cluster.spans();
        spans.assert_whole(&[]);
        assert_eq!(spans.len(), 9, "{}", spans.describe());
        assert_eq!(otlp_ids(&otlp_lines(&cluster)), ids(&spans));
        listener.take();
    }
}

#[test]
fn more_spans_than_the_spool_has_room_for_reach_both() {
    let cluster = with_hooks(&[HOOK, OTLP_FILE]).start();
    cluster.submit("misbehaving_tasks:makes_spans", &["6000"]).success();
    wait_until("all are in both, but for the open one", || (otlp_lines(&cluster).len() >= 6003).then_some(()));
    let spans = cluster.status()["spans"].clone();
    assert_eq!((&spans["missed"], &spans["lost"]), (&0.into(), &0.into()), "{spans}");
    cluster.stop().success();
    assert_eq!(otlp_ids(&otlp_lines(&cluster)).len(), 6003);
}

#[test]
fn a_further_hook_that_fails_in_a_process_gets_its_spans_through_another() {
    let cluster = with_hooks(&[OTLP_FILE, "bad_hooks:fails_in_drivers"]).start();
    cluster.submit("demo:my_function", &[]).success().stdout("1\n").stderr_contains(
        "an additional hook failed here; it gets this command's spans through another process: hook `bad_hooks:",
    );
    let spans = cluster.wait_for_spans("it has all three", |spans| spans.len() >= 3);
    cluster.stop().success();
    spans.assert_whole(&[]);
    assert_eq!(otlp_ids(&otlp_lines(&cluster)), ids(&spans));
}

#[test]
fn a_further_hook_is_required_too_where_tracing_is() {
    let (_, run) =
        with_hooks(&[HOOK, "bad_hooks:fails_in_the_second_worker"]).workers(2).arg("--tracing-required").try_start();
    run.status(4).stderr_contains(
        "tracing is required, but the hook failed in a worker: hook `bad_hooks:fails_in_the_second_worker`",
    );
}

#[test]
fn spans_that_the_receiver_of_a_further_hook_refuses_are_given_up_and_counted() {
    let Some(receiver) = Receiver::start(&["400"]) else { return };
    let cluster = with_hooks(&[HOOK, OTLP]).env("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint()).start();
    cluster.submit("demo:my_function", &[]).success().stdout("1\n");
    wait_until("all three are counted", || (cluster.status()["spans"]["given_up"] == 3).then_some(()));
    cluster.tracer(&["status"]).success().stdout_contains("3 spans given up: no exporter took them");
    cluster.stop().success();
    cluster.spans().assert_whole(&[]);
    assert_eq!(cluster.spans().len(), 3);
}

#[test]
fn the_first_may_send_over_the_network_and_a_further_one_write_files() {
    let Some(receiver) = Receiver::start(&["200"]) else { return };
    let cluster = with_hooks(&[OTLP, HOOK]).env("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint()).start();
    cluster.submit("traced_tasks:rich", &[]).success().stderr("");
    let received = receiver.wait_for_spans(4);
    cluster.stop().success();
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    assert_eq!(received_ids(&received), ids(&spans));
    assert_eq!(receiver.accepted().len(), 4, "each once");
}

#[test]
fn a_killed_worker_loses_nothing_to_the_receiver_and_the_file() {
    let Some(receiver) = Receiver::start(&["200"]) else { return };
    let cluster = with_hooks(&[OTLP, HOOK]).env("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint()).start();
    cluster.submit("misbehaving_tasks:makes_spans", &["3"]).success();
    kill(cluster.worker_pids()[0], Signal::KILL);
    // Job, PRODUCER, attempt, three that ended, one that was open. What was under way may arrive twice over the network.
    let spans = cluster.wait_for_spans("seven are in the files", |spans| spans.len() >= 7);
    wait_until("all have arrived", || (received_ids(&receiver.accepted()) == ids(&spans)).then_some(()));
    cluster.stop().success();
    cluster.spans().assert_whole(&[]);
    assert_eq!(cluster.spans().len(), 7);
    let open = cluster.spans().named("left open").attribute("error.type").clone();
    assert_eq!(open, "signal:9");
}

#[test]
fn several_exporters_of_the_environment_are_several_hooks() {
    let Some(receiver) = Receiver::start(&["200"]) else { return };
    let cluster = Cluster::builder()
        .env("OTEL_TRACES_EXPORTER", "console,otlp")
        .env("OTEL_BSP_SCHEDULE_DELAY", "20")
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint())
        .build();
    cluster
        .start_head(&[])
        .success()
        .stderr_contains("  tracing  console:setup_tracing, ")
        .stderr_contains("because OTEL_TRACES_EXPORTER is console,otlp\n")
        .stderr_contains("and to otlp:setup_tracing, ");
    cluster
        .submit("demo:my_function", &[])
        .success()
        .stdout("1\n")
        .stderr_contains("demo.my_function tracer.remote_worker")
        .stderr_contains("tracer job");
    receiver.wait_for_spans(3);
    cluster.stop().success();
    assert_eq!(receiver.accepted().len(), 3, "each once");
}

#[test]
fn a_list_in_the_environment_or_the_file_names_several_and_status_shows_each() {
    let list = format!("{HOOK},{OTLP_FILE}");
    let by_variable = Cluster::builder().env("TRACER_TRACING_STARTUP_HOOK", &list).start();
    let by_file = Cluster::builder().arg("--config=tracer.toml").build();
    let text = format!("[tracing]\nstartup_hook = [\"{HOOK}\", \"{OTLP_FILE}\"]\n");
    std::fs::write(by_file.file("tracer.toml"), text).expect("it can be written");
    by_file.start_head(&[]).success();
    for cluster in [by_variable, by_file] {
        let hook = cluster.status()["hook"].clone();
        assert_eq!((&hook["import_string"], &hook["further"][0]["import_string"]), (&HOOK.into(), &OTLP_FILE.into()));
        let said = cluster.tracer(&["status"]).success();
        said.stdout_contains(&format!("{HOOK}, "))
            .stdout_contains(&format!("and to {OTLP_FILE}, "))
            .stdout_contains("spans in OTLP JSON to `");
        cluster.submit("demo:my_function", &[]).success();
        cluster.stop().success();
        assert_eq!((cluster.spans().len(), otlp_lines(&cluster).len()), (3, 3));
    }
}

#[test]
fn several_exporters_are_several_sinks() {
    let exporters = ["hook_forms:exporter", "hook_forms:stamping_exporter"];
    let flags = exporters.map(|exporter| format!("--tracing-exporter={exporter}"));
    let cluster = flags.iter().fold(Cluster::builder(), Builder::arg).start();
    cluster.submit("demo:my_function", &[]).success();
    cluster.stop().success();
    // Both append to the same files.
    let spans = Spans::read(&cluster.file("exported"));
    assert_eq!((spans.len(), ids(&spans).len()), (6, 3), "{}", spans.describe());
    // The stamps are for a processor that sees spans begin: a further one does not.
    assert!(spans.iter().all(|span| span.attribute("fixture.task").is_null()), "{}", spans.describe());
}

#[test]
fn a_hook_that_takes_no_spans_can_only_be_the_first() {
    let cluster = Cluster::builder().build();
    compile_c("examples/hook_c/hook_c.c", &cluster.file("libhook_c.so"));
    for hook in ["hook_forms:own_provider", "./libhook_c.so:setup_tracing"] {
        let flags = [HOOK, hook].map(|hook| format!("--tracing-startup-hook={hook}"));
        cluster
            .start_head(&[&flags[0], &flags[1]])
            .status(4)
            .stderr_contains(&format!("hook `{hook}` ("))
            .stderr_contains(
                ") does not accept finished spans of other hooks, so it can only be the first\n(hint: name it first",
            )
            .stdout("");
        cluster.tracer(&["hooks", "check", hook]).success().stdout_contains("can only be the first hook");
        // As the first it works, and the others get its spans.
        cluster.start_head(&[&flags[1], &format!("--tracing-startup-hook={OTLP_FILE}")]).success();
        cluster.submit("demo:my_function", &[]).success();
        cluster.stop().success();
    }
    assert_eq!(otlp_lines(&cluster).len(), 6, "{:#?}", otlp_lines(&cluster));
    cluster
        .tracer(&["hooks", "check", OTLP_FILE])
        .success()
        .stdout_contains("can be the only hook, the first, or an additional one");
    let flags = [HOOK, HOOK].map(|hook| format!("--tracing-startup-hook={hook}"));
    cluster
        .start_head(&[&flags[0], &flags[1]])
        .status(2)
        .stderr_contains(&format!("`--tracing-startup-hook`: expected each hook once, found `{HOOK}` twice\n(hint: "));
    let missing = "--tracing-startup-hook=missing_hook:setup";
    cluster.start_head(&[&flags[0], missing]).status(4).stderr_contains("module `missing_hook` was not found");
}

#[test]
fn spans_that_are_received_go_to_the_exporters_of_the_session_too() {
    let Some(receiver) = Receiver::start(&["200"]) else { return };
    let cluster = with_hooks(&[HOOK, OTLP])
        .arg("--otlp=127.0.0.1:0")
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint())
        .start();
    let path = cluster.status()["http"]["otlp_token_path"].as_str().expect("a path").to_owned();
    let token = std::fs::read_to_string(path).expect("there is a token").trim_end().to_owned();
    let api = Api { token, ..Api::of(&cluster) };
    let span = |id: u8| {
        serde_json::json!({"traceId": "ab".repeat(16), "spanId": format!("{id:02x}").repeat(8), "name": format!("sent {id}"), "kind": 1,
            "startTimeUnixNano": "1", "endTimeUnixNano": "2", "attributes": [{"key": "n", "value": {"intValue": "7"}}]})
    };
    let body =
        serde_json::json!({"resourceSpans": [{"scopeSpans": [{"spans": [span(1), {"name": "no ids"}, span(2)]}]}]});
    api.ask("POST", "/v1/traces").json(&body).send().status(200);
    let spans = receiver.wait_for_spans(2);
    assert_eq!(received_ids(&spans), BTreeSet::from(["01".repeat(8), "02".repeat(8)]));
    cluster.stop().success();
    assert_eq!(receiver.accepted().iter().filter(|span| span["name"] == "sent 1").count(), 1, "each once");
}
