//! Submitting, reading, waiting, cancelling, listing, following.

use std::fs;
use std::io::BufRead;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{builder, traced, untraced};
use crate::support::{Api, Cluster, wait_until};

const TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";
/// Well before the time of those who wait is up, which is a minute.
const WELL_BEFORE: Duration = Duration::from_secs(40);

#[test]
fn a_submission_is_waited_for_and_its_result_is_json() {
    let (_cluster, api) = untraced();
    let text = json!({"function": "wordcount:frequencies", "arguments": ["to be or not to be", 2], "name": "words"});
    let answer = api.submission("?wait_ms=60000", &text).send().status(200);
    let task = answer.json();
    assert_eq!(task["result"], json!([{"word": "be", "count": 2}, {"word": "to", "count": 2}]));
    assert_eq!((&task["state"], &task["name"], &task["id"]), (&json!("succeeded"), &json!("words"), &json!(1)));
    assert_eq!(answer.header("location"), "/api/v1/tasks/1");
    assert_eq!((answer.header("content-type"), answer.header("cache-control")), ("application/json", "no-store"));
    assert_eq!(answer.header("x-trace-id"), "", "nothing is traced");
    assert_eq!(api.get(answer.header("location")).status(200).json(), task);
}

#[test]
fn what_is_not_waited_for_is_accepted_and_waited_for_later() {
    let (cluster, api) = untraced();
    let (started, released) = (cluster.file("started"), cluster.file("released"));
    let body = json!({"function": "misbehaving_tasks:waits", "arguments": [started, released]});
    let accepted = api.submission("", &body).send().status(202).json();
    assert_eq!(accepted["id"], 1);
    cluster.wait_for_file(&started);
    let running = api.get("/api/v1/tasks/1/wait?timeout_ms=1").status(200).json();
    assert_eq!((&running["state"], &running["result"]), (&json!("running"), &Value::Null));
    // Two wait for it; both hear of its end.
    let waiting = [(); 2].map(|()| api.ask("GET", "/api/v1/tasks/1/wait?timeout_ms=60000").open().expect("it listens"));
    fs::write(&released, "").expect("the folder is ours");
    let start = Instant::now();
    for mut waiting in waiting {
        let task = crate::support::read_answer(&mut waiting, false).expect("it is answered").json();
        assert_eq!(task["state"], "succeeded");
    }
    assert!(start.elapsed() < WELL_BEFORE, "they were told when it had ended, and not when the time was up");
    assert_eq!(api.get("/api/v1/tasks/1/wait").json()["state"], "succeeded", "that it has ended is told at once");
}

#[test]
fn a_task_of_another_driver_is_read_and_waited_for_too() {
    let (cluster, api) = untraced();
    let (started, released) = (cluster.file("started"), cluster.file("released"));
    let arguments = [&started, &released].map(|path| json!(path).to_string());
    let submitted = cluster.submit_in_background("misbehaving_tasks:waits", &[&arguments[0], &arguments[1]]);
    cluster.wait_for_file(&started);
    let mut waiting = api.ask("GET", "/api/v1/tasks/1/wait?timeout_ms=60000").open().expect("it listens");
    wait_until("it is waited for", || (api.get("/api/v1/tasks/1").json()["state"] == "running").then_some(()));
    fs::write(&released, "").expect("the folder is ours");
    let start = Instant::now();
    let task = crate::support::read_answer(&mut waiting, false).expect("it is answered").json();
    assert_eq!(task["state"], "succeeded");
    assert!(start.elapsed() < WELL_BEFORE, "it was told when it had ended, and not when the time was up");
    submitted.wait().success();
    api.get("/api/v1/tasks/1/logs").problem(404, "no-output-kept");
}

#[test]
fn the_trace_goes_on_from_the_callers_header_to_the_workers_spans() {
    let (cluster, api) = traced();
    let body = json!({"function": "traced_tasks:nested"});
    let answer = api
        .submission("?wait_ms=60000", &body)
        .header("traceparent", &format!("00-{TRACE_ID}-{PARENT}-01"))
        .header("tracestate", "rojo=1,congo=2")
        .header("User-Agent", "a test")
        .send()
        .status(200);
    assert_eq!(answer.header("x-trace-id"), TRACE_ID);
    assert_eq!(answer.json()["trace_id"], TRACE_ID);
    cluster.stop().success();
    let spans = cluster.spans();
    let outside = format!("0x{PARENT}");
    spans.assert_whole(&[&outside]);
    let server = spans.named("POST /api/v1/tasks");
    assert_eq!(
        (server.kind(), server.parent_id(), server.status_code()),
        ("SpanKind.SERVER", Some(&*outside), "UNSET")
    );
    let expected = json!({
        "http.request.method": "POST", "http.route": "/api/v1/tasks", "url.path": "/api/v1/tasks", "url.scheme": "http",
        "url.query": "wait_ms=60000",
        "server.address": "127.0.0.1", "server.port": api.address.port(), "user_agent.original": "a test",
        "http.response.status_code": 200,
    });
    assert_eq!(server.value["attributes"], expected);
    let producer = spans.named("traced_tasks.nested tracer.remote");
    assert_eq!(spans.parent_of(producer).span_id(), server.span_id());
    let consumer = spans.named("traced_tasks.nested tracer.remote_worker");
    assert_eq!(spans.parent_of(consumer).span_id(), producer.span_id());
    assert!(!spans.children_of(consumer).is_empty(), "{}", spans.describe());
    assert!(spans.iter().all(|span| span.trace_id() == format!("0x{TRACE_ID}")));
    let state = &consumer.value["context"]["trace_state"];
    assert!(state.to_string().contains("congo"), "{state}");
}

#[test]
fn without_a_header_a_submission_is_a_trace_of_its_own_and_looking_is_none() {
    let (cluster, api) = traced();
    let body = json!({"function": "demo:my_function"});
    let first = api.submission("?wait_ms=60000", &body).send().status(200);
    let second = api.submission("?wait_ms=60000", &body).send().status(200);
    let traces = [&first, &second].map(|answer| answer.header("x-trace-id").to_owned());
    assert_ne!(traces[0], traces[1]);
    for target in ["/api/v1/tasks/1", "/api/v1/tasks/1/wait", "/api/v1/tasks/1/logs"] {
        assert_eq!(api.get(target).status(200).header("x-trace-id"), traces[0], "{target}");
    }
    // Somebody who traces the looking gets a span in the own trace.
    let seen = api.ask("GET", "/api/v1/tasks/2").header("traceparent", &format!("00-{TRACE_ID}-{PARENT}-01")).send();
    assert_eq!(seen.status(200).header("x-trace-id"), traces[1]);
    let malformed = api.submission("", &body).header("traceparent", "00-zz-1-01").send().status(202);
    assert_eq!(malformed.header("x-trace-id").len(), 32);
    cluster.wait_for_task(3);
    cluster.stop().success();
    let spans = cluster.spans();
    spans.assert_whole(&[&format!("0x{PARENT}")]);
    assert_eq!(spans.all_named("POST /api/v1/tasks").len(), 3);
    let looked = spans.only("is a look", |span| span.name().starts_with("GET "));
    assert_eq!((looked.name(), looked.trace_id()), ("GET /api/v1/tasks/{id}", &*format!("0x{TRACE_ID}")));
    let root = spans.only("is the first request", |span| {
        span.trace_id() == format!("0x{}", traces[0]) && span.parent_id().is_none()
    });
    assert_eq!(root.name(), "POST /api/v1/tasks");
}

#[test]
fn failures_say_what_happened() {
    let (cluster, api) = untraced();
    let failed = api.run(&json!({"function": "misbehaving_tasks:returns_error", "arguments": ["no luck"]}));
    assert_eq!((&failed["state"], &failed["message"]), (&json!("failed"), &json!("no luck")));
    assert_eq!(failed["failure"]["reason"], "error");
    let unknown = api.run(&json!({"function": "nowhere:nothing"}));
    assert_eq!(unknown["failure"]["reason"], "module");
    let never = cluster.file("never");
    let late =
        json!({"function": "misbehaving_tasks:waits_for", "arguments": [never], "timeout_ms": 50, "grace_ms": 50});
    assert_eq!(api.run(&late)["failure"]["reason"], "timed_out");
    let path = api.run(&json!({"function": "misbehaving_tasks:length", "arguments": [7]}));
    assert_eq!(path["failure"]["reason"], "arguments");
}

#[test]
fn retries_and_limits_are_as_on_the_command_line() {
    let (cluster, api) = untraced();
    let task = api.run(&json!({
        "function": "misbehaving_tasks:fails_at_first", "arguments": [cluster.file("count"), 2], "retries": 2,
        "retry_backoff_ms": 1, "retry_on": ["error"],
    }));
    assert_eq!((&task["state"], &task["attempt"]), (&json!("succeeded"), &json!(3)));
    assert_eq!(task["attempts"].as_array().map(Vec::len), Some(3));
}

#[test]
fn a_key_names_one_task_however_often_it_is_sent() {
    let (_cluster, api) = untraced();
    let body = json!({"function": "demo:my_function"});
    let first = api.submission("", &body).header("Idempotency-Key", "\"a-key\"").send().status(202).json();
    let again = api.submission("?wait_ms=60000", &body).header("Idempotency-Key", "a-key").send().status(200).json();
    assert_eq!((&first["id"], &again["id"], &again["state"]), (&json!(1), &json!(1), &json!("succeeded")));
    let other = json!({"function": "demo:my_function", "arguments": [1]});
    let taken = api.submission("", &other).header("Idempotency-Key", "\"a-key\"").send();
    let problem = taken.problem(422, "idempotency-key-taken");
    assert!(problem["detail"].as_str().is_some_and(|text| text.contains("names task 1 already")), "{problem}");
    assert_eq!(problem["code"], "key_taken");
    // One that is refused spoils nothing for the next.
    assert_eq!(api.run(&body)["id"], 2);
    for wrong in ["\"\"", "\"a", "\"a\"b\""] {
        api.submission("", &body).header("Idempotency-Key", wrong).send().problem(400, "invalid-request");
    }
    let twice = api.submission("", &body).header("Idempotency-Key", "a").header("Idempotency-Key", "a");
    twice.send().problem(400, "invalid-request");
}

#[test]
fn a_task_is_cancelled() {
    let (cluster, api) = untraced();
    let started = cluster.file("started");
    let body = json!({"function": "misbehaving_tasks:waits", "arguments": [started, cluster.file("never")]});
    api.submission("", &body).send().status(202);
    cluster.wait_for_file(&started);
    let waiting = api.submission("", &json!({"function": "demo:my_function"})).send().status(202).json();
    assert_eq!(waiting["state"], "waiting");
    let answer = api.ask("POST", "/api/v1/tasks/2/cancel").send().status(200).json();
    assert_eq!(answer, json!({"schema_version": 1, "id": 2, "state": "cancelled"}));
    let answer = api.ask("POST", "/api/v1/tasks/1/cancel?grace_ms=10").send().status(202).json();
    assert_eq!(answer, json!({"schema_version": 1, "id": 1, "state": "cancelling"}));
    let ended = api.get("/api/v1/tasks/1/wait?timeout_ms=60000").status(200).json();
    assert_eq!((&ended["state"], &ended["failure"]["reason"]), (&json!("cancelled"), &json!("cancelled")));
    let answer = api.ask("POST", "/api/v1/tasks/1/cancel").send().status(200).json();
    assert_eq!(answer, json!({"schema_version": 1, "id": 1, "state": "ended"}));
    api.ask("POST", "/api/v1/tasks/3/cancel").send().problem(404, "no-such-task");
}

#[test]
fn lists_say_what_they_leave_out() {
    let (_cluster, api) = untraced();
    for (name, function) in [("a1", "demo:my_function"), ("a2", "nowhere:nothing"), ("b", "demo:my_function")] {
        api.run(&json!({"function": function, "name": name}));
    }
    let list = |query: &str| {
        let list = api.get(&format!("/api/v1/tasks{query}")).status(200).json();
        let names: Vec<_> = list["tasks"].as_array().expect("a list").iter().map(|task| task["name"].clone()).collect();
        (json!(names), list["left_out"].clone(), list["filtered_out"].clone())
    };
    assert_eq!(list(""), (json!(["b", "a2", "a1"]), json!(0), json!(0)));
    assert_eq!(list("?limit=1"), (json!(["b"]), json!(2), json!(0)));
    assert_eq!(list("?name=a*"), (json!(["a2", "a1"]), json!(0), json!(1)));
    assert_eq!(list("?name=a%2A&limit=1"), (json!(["a2"]), json!(1), json!(1)));
    assert_eq!(list("?state=failed"), (json!(["a2"]), json!(0), json!(2)));
    for query in ["?limit=0", "?limit=1001", "?state=done", "?other=1", "?limit=1&limit=2"] {
        api.get(&format!("/api/v1/tasks{query}")).problem(400, "invalid-request");
    }
}

#[test]
fn workers_status_index_and_description_are_told() {
    let (cluster, api) = untraced();
    let workers = api.get("/api/v1/workers").status(200).json();
    assert_eq!(workers["workers"][0]["pid"], cluster.worker_pids()[0]);
    let status = api.get("/api/v1/status").status(200).json();
    assert_eq!((&status["head_pid"], &status["workers"]["wanted"]), (&json!(cluster.head_pid()), &json!(1)));
    assert_eq!(status["http"]["url"], json!(format!("http://{}", api.address)));
    let index = api.get("/api/v1").status(200).json();
    assert_eq!(index["description"], "/api/v1/openapi.json");
    let description = api.get("/api/v1/openapi.json").status(200).json();
    assert_eq!(description["info"]["version"], index["version"]);
    let head = api.ask("HEAD", "/api/v1/status").send().status(200);
    assert!(head.header("content-length").parse::<usize>().is_ok_and(|length| length > 100) && head.body.is_empty());
}

/// Returns the lines of a task's output, as `(name of the event, text)`.
fn lines(events: &[(String, String, Value)]) -> Vec<(&str, &str)> {
    events.iter().filter_map(|(name, _, data)| Some((name.as_str(), data["line"].as_str()?))).collect()
}

#[test]
fn output_comes_as_events_while_the_task_runs_and_ends_with_it() {
    let (cluster, api) = untraced();
    let released = cluster.file("released");
    let body = json!({"function": "misbehaving_tasks:prints_and_waits", "arguments": ["hello", 3, released]});
    api.submission("", &body).send().status(202);
    let mut stream = api.ask("GET", "/api/v1/tasks/1/logs").open().expect("it listens");
    let (status, headers) = crate::support::read_head(&mut stream).expect("it is answered");
    assert_eq!(status, 200);
    assert!(headers.contains(&("content-type".into(), "text/event-stream".into())), "{headers:?}");
    // The lines come before the task has ended.
    let mut text = String::new();
    // Those of the two pipes come in any order.
    while text.matches("\"line\"").count() < 3 || !text.contains("\"line\":\"hello out 1\"") {
        stream.read_line(&mut text).expect("there is more");
    }
    assert!(!released.exists() && text.contains("\"line\":\"hello out 1\""), "{text}");
    fs::write(&released, "").expect("the folder is ours");
    while !text.contains("event: end") {
        stream.read_line(&mut text).expect("there is more");
    }
    // Whoever comes later gets all of it, or what follows what was seen.
    let whole = api.get("/api/v1/tasks/1/logs").status(200).events();
    let (last, printed) = whole.split_last().expect("there are events");
    assert_eq!((&*last.0, &last.2), ("end", &json!({"id": 1, "state": "succeeded"})));
    let mut all = lines(printed);
    all.sort_unstable();
    let expected = [
        ("stderr", "hello err 1"),
        ("stderr", "hello err 2"),
        ("stderr", "hello err 3"),
        ("stdout", "hello out 1"),
        ("stdout", "hello out 2"),
        ("stdout", "hello out 3"),
        ("stdout", "hello without an end"),
    ];
    assert_eq!(all, expected);
    assert!(printed.iter().all(|(_, _, data)| data["pid"] == cluster.worker_pids()[0]));
    let rest = api.ask("GET", "/api/v1/tasks/1/logs").header("Last-Event-ID", "2").send().status(200).events();
    assert_eq!(rest[..], whole[2..]);
    assert_eq!(api.get("/api/v1/tasks/1/logs?after=2").events(), rest);
    let quiet = json!({"function": "demo:my_function", "output": false});
    let id = api.run(&quiet)["id"].clone();
    api.get(&format!("/api/v1/tasks/{id}/logs")).problem(404, "no-output-kept");
}

#[test]
fn both_outputs_of_a_command_are_told_apart() {
    let cluster = builder().arg("--http-commands").start();
    let api = Api::of(&cluster);
    let script = "echo out $LEVEL; echo err >&2; pwd; printf 'no end'; exit 3";
    let command = json!({"command": ["sh", "-c", script], "env": {"LEVEL": "7"}, "cwd": cluster.folder()});
    let task = api.run(&command);
    assert_eq!((&task["state"], &task["failure"]["code"]), (&json!("failed"), &json!(3)));
    let events = api.get("/api/v1/tasks/1/logs").events();
    let mut all = lines(&events);
    all.sort_unstable();
    let folder = cluster.folder().display().to_string();
    let mut expected = vec![("stderr", "err"), ("stdout", &*folder), ("stdout", "no end"), ("stdout", "out 7")];
    expected.sort_unstable();
    assert_eq!(all, expected);
    assert_eq!(events.last().map(|(name, ..)| name.as_str()), Some("end"));
}

#[test]
fn large_results_and_arguments_go_through_too() {
    let (_cluster, api) = untraced();
    let big = api.run(&json!({"function": "misbehaving_tasks:big_result", "arguments": [3 << 20]}));
    assert_eq!(big["result"].as_str().map(str::len), Some(3 << 20));
    let length = json!({"function": "misbehaving_tasks:length", "arguments": ["x".repeat(2 << 20)]});
    assert_eq!(api.run(&length)["result"], 2 << 20);
    // More of them at once than are in memory at one time: each has its turn, also behind a client that takes nothing.
    let deaf: Vec<_> = (0..2).map(|_| api.ask("GET", "/api/v1/tasks/1").open().expect("it listens")).collect();
    let answers: Vec<_> = (0..4).map(|_| api.ask("GET", "/api/v1/tasks/1").open().expect("it listens")).collect();
    api.get("/api/v1/status").status(200);
    drop(deaf);
    for mut answer in answers {
        let answer = crate::support::read_answer(&mut answer, false).expect("it is answered");
        assert_eq!((answer.status, answer.body.len() > 3 << 20), (200, true));
    }
}

#[test]
fn an_untraced_head_passes_the_callers_trace_on() {
    let (_cluster, api) = untraced();
    let body = json!({"function": "traced_tasks:headers"});
    let traced = api
        .submission("?wait_ms=60000", &body)
        .header("traceparent", &format!("00-{TRACE_ID}-{PARENT}-01"))
        .header("baggage", "customer=ada")
        .send()
        .status(200);
    assert_eq!(traced.header("x-trace-id"), TRACE_ID);
    let result = traced.json()["result"].to_string();
    assert!(result.contains(TRACE_ID) && result.contains("customer=ada"), "{result}");
}

#[test]
fn the_api_is_started_by_the_environment_and_by_a_file() {
    let cluster = Cluster::builder().env("TRACER_HTTP", "[::1]:0").build();
    let run = cluster.start_head(&[]).success();
    run.stderr_contains("http     http://[::1]:");
    cluster.stop().success();
    let cluster = Cluster::builder().build();
    fs::write(cluster.file("tracer.toml"), "[http]\naddress = 'localhost:0'\ncommands = true\n").expect("it is ours");
    cluster.start_head(&["--config", "tracer.toml"]).success().stderr_contains("takes functions and commands");
    let api = Api::of(&cluster);
    assert_eq!(api.run(&json!({"command": ["true"]}))["state"], "succeeded");
    let status = cluster.tracer(&["status"]).success().stdout_text();
    assert!(status.contains(&format!("http://{}, token in ", api.address)), "{status}");
}
