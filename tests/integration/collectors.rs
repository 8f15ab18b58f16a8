//! The shipped hooks that send spans over the network: to a receiver made of what OTLP's authors wrote, and to receivers that
//! misbehave. No task may notice.

use std::net::TcpListener;

use serde_json::{Value, json};

use crate::backends::{assert_rich_trace, submit_rich};
use crate::support::{Builder, Cluster, Receiver, wait_until};

const OTLP: &str = "otlp:setup_tracing";

/// A cluster whose spans go to `endpoint` soon after they ended.
fn exporting_to(endpoint: &str) -> Builder {
    Cluster::builder().hook(OTLP).env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint).env("OTEL_BSP_SCHEDULE_DELAY", "20")
}

/// What the processes of the session have written to their logs.
fn logs(cluster: &Cluster) -> String {
    let logs = std::fs::read_dir(cluster.session_dir().join("logs")).expect("a session has logs");
    logs.filter_map(|log| std::fs::read_to_string(log.ok()?.path()).ok()).collect()
}

fn names(spans: &[Value]) -> Vec<&str> {
    let mut names: Vec<_> = spans.iter().map(|span| span["name"].as_str().expect("a span has a name")).collect();
    names.sort_unstable();
    names
}

#[test]
fn spans_arrive_over_http_with_every_field() {
    let Some(receiver) = Receiver::start(&["200"]) else { return };
    let cluster = exporting_to(&receiver.endpoint()).start();
    submit_rich(&cluster);
    assert_rich_trace(&receiver.wait_for_spans(4));
    for request in receiver.requests() {
        assert_eq!(request["path"], "/v1/traces");
        assert_eq!(request["headers"]["content-type"], "application/x-protobuf");
        assert_eq!(request["headers"]["content-encoding"], Value::Null);
        let user_agent = request["headers"]["user-agent"].as_str().expect("the exporter says who it is");
        assert!(user_agent.starts_with("OTel-OTLP-Exporter-Rust/"), "{user_agent}");
    }
    // Each once, also after the worker has ended.
    cluster.stop().success();
    assert_eq!(receiver.accepted().len(), 4, "{:#?}", names(&receiver.accepted()));
}

#[test]
fn headers_compression_and_a_path_of_its_own_are_honoured() {
    let Some(receiver) = Receiver::start(&["200"]) else { return };
    let cluster = exporting_to("http://localhost:1/not/there")
        .env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", format!("{}/some/where?dataset=one", receiver.endpoint()))
        .env("OTEL_EXPORTER_OTLP_HEADERS", "x-team=unused")
        .env("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "authorization=Basic%20dXNlcjpwYXNz,x-team=a%2Cb")
        .env("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        .start();
    submit_rich(&cluster);
    assert_rich_trace(&receiver.wait_for_spans(4));
    for request in receiver.requests() {
        assert_eq!(request["path"], "/some/where?dataset=one");
        assert_eq!(request["headers"]["authorization"], "Basic dXNlcjpwYXNz");
        assert_eq!(request["headers"]["x-team"], "a,b");
        assert_eq!(request["headers"]["content-encoding"], "gzip");
    }
}

#[test]
fn a_receiver_that_is_busy_gets_the_batch_again_after_the_pause_that_it_asks_for() {
    let Some(receiver) = Receiver::start(&["503", "429:1", "502", "504", "200"]) else { return };
    let cluster = exporting_to(&receiver.endpoint()).start();
    // A task without a trace of the submitter's: the one batch is the worker's.
    let mut submit = cluster.command(&["submit", "task", "demo:my_function", "--no-wait"]);
    submit.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1");
    cluster.run(submit).success();
    let spans = receiver.wait_for_spans(1);
    assert_eq!(names(&spans), ["demo.my_function tracer.remote_worker"]);
    let requests = receiver.requests();
    let replies: Vec<_> = requests.iter().map(|request| &request["reply"]).collect();
    assert_eq!(replies, ["503", "429:1", "502", "504", "200"]);
    assert!(requests.iter().all(|request| request["spans"] == json!(spans)), "the same batch each time");
    assert!(!logs(&cluster).contains("not delivered"), "{}", logs(&cluster));
}

/// Tasks run, their results come, and each process says once what is wrong.
#[track_caller]
fn assert_no_task_is_harmed(cluster: &Cluster, reason: &str) {
    for _ in 0..3 {
        let run = cluster.submit("traced_tasks:rich", &[]).success();
        assert_eq!(run.stderr_text().matches("spans are not delivered to").count(), 1, "{run:?}");
        run.stderr_contains(reason);
    }
    wait_until("the worker says it", || logs(cluster).contains("spans are not delivered to").then_some(()));
    cluster.submit("demo:my_function", &[]).success();
    cluster.stop().success();
}

#[test]
fn a_receiver_that_refuses_connections_slows_no_task_and_is_said_once() {
    // A port that nobody has: that of a listener which is closed again.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let endpoint = format!("http://{}", listener.local_addr().expect("it has one"));
    drop(listener);
    let cluster = exporting_to(&endpoint).start();
    let session = cluster.session_dir();
    assert_no_task_is_harmed(&cluster, &format!("spans are not delivered to `{endpoint}/v1/traces`: "));
    let log = std::fs::read_dir(session.join("logs")).expect("a session has logs");
    let said: usize = log
        .filter_map(|log| std::fs::read_to_string(log.ok()?.path()).ok())
        .map(|text| text.matches("spans are not delivered to").count())
        .sum();
    assert_eq!(said, 1, "the one worker says it once");
}

#[test]
fn a_receiver_that_never_answers_slows_no_task() {
    // Connections wait in its queue and nobody takes them.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let endpoint = format!("http://{}", listener.local_addr().expect("it has one"));
    let cluster = exporting_to(&endpoint).env("OTEL_EXPORTER_OTLP_TIMEOUT", "300").start();
    assert_no_task_is_harmed(&cluster, "it did not answer in time");
}

#[test]
fn a_process_ends_although_its_receiver_never_answers() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let endpoint = format!("http://{}", listener.local_addr().expect("it has one"));
    // Longer than any process would wait for its spans.
    let cluster = exporting_to(&endpoint).env("OTEL_EXPORTER_OTLP_TIMEOUT", "3600000").start();
    let run = cluster.submit("demo:my_function", &[]).success().stdout("1\n");
    run.stderr_contains("this command's spans could not be delivered");
    cluster.stop().success();
}

#[test]
fn what_a_receiver_cannot_take_is_not_sent_again() {
    let Some(receiver) = Receiver::start(&["400"]) else { return };
    let cluster = exporting_to(&receiver.endpoint()).start();
    let run = cluster.submit("demo:my_function", &[]).success().stdout("1\n");
    run.stderr_contains(": HTTP 400 Bad Request: said by the receiver (tasks run on; this is said once)");
    cluster.stop().success();
    let requests = receiver.requests();
    let sent: Vec<_> = requests.iter().flat_map(|it| it["spans"].as_array().expect("a list")).cloned().collect();
    let sent = names(&sent);
    assert_eq!(
        sent,
        ["demo.my_function tracer.remote", "demo.my_function tracer.remote_worker", "tracer job"],
        "each once"
    );
}

#[test]
fn tasks_do_not_wait_for_a_slow_receiver_and_nothing_is_lost() {
    let Some(mut receiver) = Receiver::start(&["held"]) else { return };
    let cluster = exporting_to(&receiver.endpoint()).start();
    let mut submits: Vec<_> = (0..3).map(|_| cluster.submit_in_background("demo:my_function", &[])).collect();
    // All have run while no request is answered; only then do the submitters deliver their own spans.
    wait_until("all tasks have ended", || (cluster.status()["tasks"]["succeeded"] == 3).then_some(()));
    receiver.release();
    for submit in submits.drain(..) {
        submit.wait().success().stdout("1\n").stderr("");
    }
    let spans = receiver.wait_for_spans(9);
    cluster.stop().success();
    let mut ids: Vec<_> = spans.iter().map(|span| span["span_id"].to_string()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 9, "{:#?}", names(&spans));
}

#[test]
fn the_hook_is_built_in_and_refuses_what_it_cannot_do() {
    let cluster = Cluster::builder().build();
    let check = |variable: &str, value: &str| {
        let mut check = cluster.command(&["hooks", "check", OTLP]);
        check.env(variable, value);
        cluster.run(check)
    };
    check("OTEL_EXPORTER_OTLP_ENDPOINT", "https://me:secret@host/base?key=secret")
        .success()
        .stdout_contains("spans over OTLP/HTTP to `https://host/base/v1/traces`");
    check("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc").status(4).stderr_contains(
        "`OTEL_EXPORTER_OTLP_PROTOCOL` is `grpc`, but this hook speaks HTTP; use the hook `otlp_grpc:setup_tracing`, or \
         `http/protobuf`",
    );
    check("OTEL_EXPORTER_OTLP_CERTIFICATE", "/missing.pem").status(4).stderr_contains(
        "the file `/missing.pem` of `OTEL_EXPORTER_OTLP_CERTIFICATE` cannot be read: No such file or directory",
    );
    check("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4318")
        .status(4)
        .stderr_contains("`OTEL_EXPORTER_OTLP_ENDPOINT` is `localhost:4318`, expected a URL such as");
    check("OTEL_EXPORTER_OTLP_COMPRESSION", "lzma").success().stderr_contains(
        "tracer: `OTEL_EXPORTER_OTLP_COMPRESSION` is `lzma` and is ignored: expected `gzip` or `none`\n",
    );
}
