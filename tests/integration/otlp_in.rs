//! `tracer start --otlp`: what programs send arrives below the attempt that they are, and nobody else sends or reads anything.

use std::fs;
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Answer, Api, Cluster, HOOK, kill, node_clients, python_with, read_answer, skip, wait_until};

/// Returns a client with the token of senders.
fn sender(cluster: &Cluster) -> Api {
    let path = cluster.status()["http"]["otlp_token_path"].as_str().expect("a path").to_owned();
    let token = fs::read_to_string(path).expect("there is a token").trim_end().to_owned();
    Api { token, ..Api::of(cluster) }
}

fn receiving() -> Cluster {
    Cluster::builder().hook(HOOK).arg("--otlp=127.0.0.1:0").start()
}

/// Returns a request with one span of this name.
fn one_span(name: &str) -> Value {
    let span = json!({"traceId": "5b8efff798038103d269b633813fc60c", "spanId": "eee19b7ec3c1b174", "name": name, "kind": 2,
        "startTimeUnixNano": "1544712660000000000", "endTimeUnixNano": "1544712661000000000"});
    json!({"resourceSpans": [{"scopeSpans": [{"scope": {}, "spans": [span]}]}]})
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("it is in memory")
}

/// Returns the lines of all files with this extension, with the name of each file.
fn lines(cluster: &Cluster, extension: &str) -> Vec<Value> {
    let files = fs::read_dir(cluster.spans_dir()).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<PathBuf> =
        files.filter(|path| path.to_str().is_some_and(|path| path.ends_with(extension))).collect();
    files.sort();
    let texts = files.iter().map(|path| fs::read_to_string(path).expect("it is text"));
    let texts: Vec<_> = texts.collect();
    texts.iter().flat_map(|text| text.lines()).map(|line| serde_json::from_str(line).expect("it is JSON")).collect()
}

/// Returns the spans of the latest trace, as `trace show` reports them.
fn shown(cluster: &Cluster, which: &str) -> Vec<Value> {
    let report = cluster.tracer(&["trace", "show", which, "--format", "json"]).success().json();
    report["spans"].as_array().expect("spans").clone()
}

fn named<'a>(spans: &'a [Value], name: &str) -> &'a Value {
    let found: Vec<_> = spans.iter().filter(|span| span["name"] == name).collect();
    assert_eq!(found.len(), 1, "one span is named `{name}`: {spans:#?}");
    found[0]
}

/// Returns a file of the cluster's folder with this program.
fn program(cluster: &Cluster, text: &str) -> String {
    let path = cluster.file("program.py");
    fs::write(&path, text).expect("the test's folder is ours");
    path.to_str().expect("it is UTF-8").to_owned()
}

/// A program that makes its spans and the exporter itself, and goes on in the context of its environment.
const OWN_SETUP: &str = r#"
import os
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
context = TraceContextTextMapPropagator().extract({"traceparent": os.environ["TRACEPARENT"]})
with trace.get_tracer("app").start_as_current_span("outer", context, attributes={"n": 3, "list": ["a", "b"]}) as span:
    span.add_event("halfway", {"x": 1.5})
    with trace.get_tracer("app").start_as_current_span("inner"):
        pass
provider.shutdown()
"#;

#[test]
fn spans_of_a_python_program_are_below_its_attempt() {
    let Some(python) = python_with("opentelemetry.exporter.otlp.proto.http.trace_exporter") else { return };
    let cluster = receiving();
    let program = program(&cluster, OWN_SETUP);
    for compression in ["none", "gzip"] {
        let mut command = cluster.command(&["submit", "command", "--env"]);
        command.arg(format!("OTEL_EXPORTER_OTLP_COMPRESSION={compression}"));
        command.args(["--env", "OTEL_RESOURCE_ATTRIBUTES=service.name=app", "--"]).arg(&python).arg(&program);
        cluster.run(command).success();
        let spans = shown(&cluster, "last");
        let (outer, inner) = (named(&spans, "outer"), named(&spans, "inner"));
        let attempt =
            spans.iter().find(|span| span["context"]["span_id"] == outer["parent_id"]).expect("its parent is there");
        assert!(attempt["name"].as_str().is_some_and(|name| name.ends_with("tracer.remote_worker")), "{attempt}");
        assert_eq!(inner["parent_id"], outer["context"]["span_id"]);
        assert_eq!(outer["attributes"], json!({"n": 3, "list": ["a", "b"]}));
        let resource = &outer["resource"]["attributes"];
        assert_eq!(
            (&resource["tracer.attempt"], &resource["service.name"]),
            (&json!("1"), &json!("app")),
            "{resource}"
        );
    }
    assert_eq!(lines(&cluster, ".received.jsonl").len(), 2, "each request is a line");
    cluster.stop().success();
}

#[test]
fn commands_know_where_to_send_unless_they_say_otherwise() {
    let cluster = receiving();
    let variables = |options: &[&str]| {
        let arguments = [&["submit", "command"], options, &["--", "env"]].concat();
        let output = cluster.tracer(&arguments).success().stdout_text();
        let mut found: Vec<_> = output.lines().filter(|line| line.starts_with("OTEL_")).map(str::to_owned).collect();
        found.sort();
        found
    };
    let status = cluster.status();
    let url = status["http"]["url"].as_str().expect("a URL");
    let token = sender(&cluster).token;
    let own = variables(&[]);
    let expected = [
        "OTEL_BLRP_SCHEDULE_DELAY=200".to_owned(),
        "OTEL_BSP_SCHEDULE_DELAY=200".to_owned(),
        format!("OTEL_EXPORTER_OTLP_ENDPOINT={url}"),
        format!("OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20{token}"),
        "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf".to_owned(),
    ];
    assert_eq!(own[..5], expected);
    let context = |task: u64| {
        let spans = cluster.spans();
        let span = spans.attempt_of(task);
        format!(
            "tracer.task_id={task},tracer.attempt=1,tracer.traceparent=00-{}-{}-",
            &span.trace_id()[2..],
            &span.span_id()[2..]
        )
    };
    assert!(own[5].starts_with(&format!("OTEL_RESOURCE_ATTRIBUTES={}", context(1))), "{own:?}");
    let elsewhere = variables(&[
        "--env",
        "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1",
        "--env",
        "OTEL_RESOURCE_ATTRIBUTES=a=b",
    ]);
    assert_eq!((elsewhere.len(), elsewhere[0].as_str()), (2, "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"));
    assert!(elsewhere[1].starts_with(&format!("OTEL_RESOURCE_ATTRIBUTES=a=b,{}", context(2))), "{elsewhere:?}");
    let status = cluster.tracer(&["status"]).success().stdout_text();
    assert!(status.contains(&format!("{url}, token in ")) && status.contains("otlp.token"), "{status}");
}

#[test]
fn commands_of_attempts_that_are_not_sampled_are_told_to_record_nothing() {
    let cluster = Cluster::builder().hook(HOOK).arg("--otlp=127.0.0.1:0").arg("--tracing-sampling-ratio=0").start();
    let sampler = |options: &[&str]| {
        let arguments = [&["submit", "command"], options, &["--", "sh", "-c", "echo $OTEL_TRACES_SAMPLER"]].concat();
        cluster.tracer(&arguments).success().stdout_text().trim().to_owned()
    };
    assert_eq!(sampler(&[]), "always_off");
    assert_eq!(sampler(&["--env", "OTEL_TRACES_SAMPLER=always_on"]), "always_on");
}

#[test]
fn spans_of_one_id_and_two_kinds_are_both_shown_and_what_ends_later_has_its_end() {
    let cluster = receiving();
    let api = sender(&cluster);
    let send = |service: &str, span: Value| {
        let resource = json!({"attributes": [{"key": "service.name", "value": {"stringValue": service}}]});
        let body = json!({"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [span]}]}]});
        post(&api, "traces", &body).status(200).json()
    };
    let span = |id: &str, name: &str, kind: &str, times: [u64; 2]| {
        let [start, end] = times.map(|time| json!((1_700_000_000_000_000_000 + time).to_string()));
        json!({"traceId": "5b8efff798038103d269b633813fc60c", "spanId": id, "parentSpanId": "eee19b7ec3c1b173", "name": name, "kind": kind,
            "startTimeUnixNano": start, "endTimeUnixNano": end})
    };
    let id = "eee19b7ec3c1b174";
    send("gateway", span(id, "GET", "SPAN_KIND_CLIENT", [0, 9000]));
    send("back", span(id, "GET /", "SPAN_KIND_SERVER", [1000, 8000]));
    let mut begun = span("eee19b7ec3c1b175", "late", "SPAN_KIND_INTERNAL", [2000, 3000]);
    let mut ended = begun.clone();
    begun.as_object_mut().expect("a span").remove("endTimeUnixNano");
    ended["status"] = json!({"code": "STATUS_CODE_ERROR"});
    send("back", begun);
    send("back", ended);
    let mut timeless = span("eee19b7ec3c1b176", "timeless", "SPAN_KIND_INTERNAL", [0, 0]);
    timeless["startTimeUnixNano"] = "0".into();
    assert_eq!(
        send("back", timeless)["partialSuccess"],
        json!({"rejectedSpans": "1", "errorMessage": "a span has no time of its start (`startTimeUnixNano`)"})
    );
    let spans = shown(&cluster, "last");
    assert_eq!(spans.len(), 3, "{spans:?}");
    let (client, server, late) = (named(&spans, "GET"), named(&spans, "GET /"), named(&spans, "late"));
    assert_eq!(client["context"]["span_id"], format!("0x{id}"));
    assert_eq!(server["parent_id"], client["context"]["span_id"]);
    assert_ne!(server["context"]["span_id"], client["context"]["span_id"]);
    assert_eq!(late["status"]["status_code"], "ERROR");
    let show = cluster.tracer(&["trace", "show", "last"]).success();
    assert_eq!(show.stderr_text(), "", "nothing is skipped");
    assert!(show.stdout_text().contains("1 span has an id of its own here"), "{}", show.stdout_text());
    let names = |format: &str| cluster.tracer(&["trace", "export", "--format", format, "last"]).success().stdout_text();
    assert!(names("chrome").contains("\"GET /\""), "{}", names("chrome"));
    let stats = cluster.tracer(&["trace", "stats", "last"]).success().stdout_text();
    assert!(stats.contains("GET /"), "{stats}");
    api.ask("POST", "/v1/traces/").json(&one_span("with a slash")).send().status(200);
}

#[test]
fn without_the_receiver_commands_get_no_variables_and_nothing_is_taken() {
    let cluster = Cluster::builder().arg("--http=127.0.0.1:0").start();
    let output = cluster.tracer(&["submit", "command", "--", "env"]).success().stdout_text();
    assert!(!output.contains("OTEL_"), "{output}");
    let api = Api::of(&cluster);
    api.ask("POST", "/v1/traces").json(&one_span("a")).send().status(404);
    assert!(!api.get("/api/v1/openapi.json").text().contains("\"/v1/traces\""));
    assert!(!cluster.temp_dir().join("otlp.token").exists());
}

/// Sends a body as JSON.
fn post(api: &Api, signal: &str, body: &Value) -> Answer {
    api.ask("POST", &format!("/v1/{signal}")).json(body).send()
}

#[test]
fn json_is_in_the_file_before_it_is_acknowledged_and_what_cannot_be_taken_is_counted() {
    let cluster = receiving();
    let api = sender(&cluster);
    let answer = post(&api, "traces", &one_span("first")).status(200);
    assert_eq!((answer.header("content-type"), answer.text()), ("application/json", "{}".to_owned()));
    assert_eq!(lines(&cluster, ".received.jsonl"), [one_span("first")]);
    let mut two = one_span("good");
    let spans = two["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array_mut().unwrap();
    spans.push(json!({"name": "without ids"}));
    let packed =
        api.ask("POST", "/v1/traces").header("Content-Encoding", "gzip").header("Content-Type", "application/json");
    let answer = packed.body(gzip(two.to_string().as_bytes())).send().status(200).json();
    assert_eq!(answer, json!({"partialSuccess": {"rejectedSpans": "1", "errorMessage": "a span has no trace id"}}));
    assert_eq!(lines(&cluster, ".received.jsonl")[1], one_span("good"));
    let log = json!({"resourceLogs": [{"scopeLogs": [{"logRecords": [{"timeUnixNano": "1", "body": {"stringValue": "hello"}}]}]}]});
    post(&api, "logs", &log).status(200);
    let metric = json!({"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": "m", "gauge": {"dataPoints": [{"asInt": "5"}]}}]}]}]});
    post(&api, "metrics", &metric).status(200);
    assert_eq!((lines(&cluster, ".logs.jsonl"), lines(&cluster, ".metrics.jsonl")), (vec![log], vec![metric]));
    post(&api, "traces", &json!([])).status(400);
    let counts = cluster.status()["http"]["otlp"].clone();
    let bytes: usize = fs::read_dir(cluster.spans_dir())
        .expect("the folder")
        .map(|entry| entry.expect("a file").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "jsonl"))
        .map(|path| fs::metadata(path).expect("it is there").len() as usize)
        .sum();
    assert_eq!(
        counts,
        json!({"accepted_requests": 4, "refused_requests": 1, "spans": 2, "log_records": 1, "metric_points": 1, "rejected": 1, "written_bytes": bytes})
    );
    let text = cluster.tracer(&["status"]).success().stdout_text();
    let line = "received 2 spans, 1 log record, 1 metric point in 4 requests";
    assert!(text.contains(line) && text.contains(", 1 item rejected, 1 request refused"), "{text}");
    // Those beside the span files are no spans, and nobody is told that they are none.
    let list = cluster.tracer(&["trace", "list"]).success();
    assert_eq!(list.stderr_text(), "");
    assert!(list.stdout_text().contains("first"), "{}", list.stdout_text());
    cluster.stop().success();
    // The token stays the same.
    cluster.start_head(&[]).success();
    let again = Api { token: api.token, ..sender(&cluster) };
    post(&again, "traces", &one_span("later")).status(200);
}

#[test]
fn metrics_of_two_programs_are_in_the_scrape_each_with_its_labels() {
    let cluster = Cluster::builder().arg("--http=127.0.0.1:0").arg("--otlp").start();
    let (api, sender) = (Api::of(&cluster), sender(&cluster));
    let request = |instance: &str, value: &str| {
        let attribute = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
        let resource = json!({"attributes": [attribute("service.name", "shop"), attribute("service.instance.id", instance), attribute("os.type", "linux")]});
        let point = json!({"asInt": value, "attributes": [attribute("shop.region", "east")]});
        let sum = json!({"aggregationTemporality": 2, "isMonotonic": true, "dataPoints": [point]});
        let scope =
            json!({"scope": {"name": "shop"}, "metrics": [{"name": "shop.orders", "unit": "{order}", "sum": sum}]});
        json!({"resourceMetrics": [{"resource": resource, "scopeMetrics": [scope]}]})
    };
    for (instance, value) in [("one", "5"), ("one", "7"), ("other", "3")] {
        post(&sender, "metrics", &request(instance, value)).status(200);
    }
    let scrape = api.get("/metrics").status(200).text();
    let sample = |instance: &str| {
        let start = format!(
            "shop_orders_total{{job=\"shop\",instance=\"{instance}\",shop_region=\"east\",otel_scope_name=\"shop\"}} "
        );
        scrape
            .lines()
            .find_map(|line| line.strip_prefix(&start))
            .unwrap_or_else(|| panic!("{instance}: {scrape}"))
            .to_owned()
    };
    assert_eq!((sample("one"), sample("other")), ("7".into(), "3".into()));
    assert!(scrape.contains("target_info{job=\"shop\",instance=\"one\",os_type=\"linux\"} 1"), "{scrape}");
    assert!(
        scrape.contains("tracer_otlp_items_total{tracer_outcome=\"written\",tracer_signal=\"metrics\"} 3")
            || scrape.contains("tracer_otlp_items_total{tracer_signal=\"metrics\",tracer_outcome=\"written\"} 3"),
        "{scrape}"
    );
    assert!(scrape.contains("tracer_otlp_points_not_shown_total 0"), "{scrape}");
}

#[test]
fn more_series_than_there_is_room_for_are_counted_and_said_once() {
    let cluster = Cluster::builder().arg("--http=127.0.0.1:0").arg("--otlp").start();
    let (api, sender) = (Api::of(&cluster), sender(&cluster));
    for part in 0..10 {
        let point = |number: u64| {
            let attribute = json!({"key": "shop.item", "value": {"intValue": (part * 1000 + number).to_string()}});
            json!({"asInt": "1", "attributes": [attribute]})
        };
        let points: Vec<_> = (0..1000).map(point).collect();
        let sum = json!({"aggregationTemporality": 2, "isMonotonic": true, "dataPoints": points});
        let scope = json!({"scope": {"name": "shop"}, "metrics": [{"name": "shop.orders", "sum": sum}]});
        post(&sender, "metrics", &json!({"resourceMetrics": [{"scopeMetrics": [scope]}]})).status(200);
    }
    let scrape = api.get("/metrics").status(200).text();
    assert_eq!(scrape.lines().filter(|line| line.starts_with("shop_orders_total{")).count(), 2000);
    assert!(scrape.contains("tracer_otlp_points_not_shown_total 8000"), "{scrape}");
    let log = fs::read_to_string(cluster.session_dir().join("logs/http.log")).expect("it has a log");
    assert_eq!(log.matches("`GET /metrics` does not show all series that are received").count(), 1, "{log}");
}

#[test]
fn senders_may_send_and_do_nothing_else() {
    let cluster = Cluster::builder().arg("--http=127.0.0.1:0").arg("--otlp").start();
    let (api, sender) = (Api::of(&cluster), sender(&cluster));
    assert_ne!(api.token, sender.token);
    post(&sender, "traces", &one_span("a")).status(200);
    post(&api, "traces", &one_span("a")).status(200);
    for target in ["/api/v1", "/api/v1/tasks", "/api/v1/status", "/metrics", "/v1/traces", "/v1/trace"] {
        let problem = sender.get(target).problem(401, "unauthorized");
        assert_eq!(
            problem["detail"],
            "the token of senders is taken with POST at /v1/traces, /v1/logs and /v1/metrics only"
        );
    }
    let wrong = |ask: crate::support::Ask, status: u16, code: u64, text: &str| {
        let answer = ask.json(&one_span("b")).send().status(status);
        assert_eq!(answer.json()["code"], code, "{}", answer.text());
        assert!(answer.text().contains(text), "{}", answer.text());
        answer
    };
    let ask = || sender.ask("POST", "/v1/traces");
    let answer = wrong(ask().without("Authorization"), 401, 16, "the request has no `Authorization: Bearer`");
    assert!(answer.text().contains("otlp.token"), "{}", answer.text());
    assert_eq!(answer.header("www-authenticate"), "Bearer realm=\"tracer\"");
    wrong(
        ask().without("Authorization").header("Authorization", "Bearer 0"),
        401,
        16,
        "the token in `Authorization: Bearer`",
    );
    wrong(ask().header("Origin", "http://evil.example"), 403, 7, "evil.example");
    let described = api.get("/api/v1/openapi.json").json();
    assert!(described["paths"]["/v1/logs"]["post"].is_object());
    api.ask("GET", "/v1/traces").send().problem(405, "method-not-allowed");
    assert_eq!(lines(&cluster, ".received.jsonl").len(), 2, "of those who were not let in nothing is kept");
}

#[test]
fn hostile_bodies_are_refused_and_the_next_one_is_taken() {
    let cluster = receiving();
    let api = sender(&cluster);
    let ask = |kind: &str| api.ask("POST", "/v1/traces").header("Content-Type", kind);
    const PROTOBUF: &str = "application/x-protobuf";
    // Protobuf that is cut off, and what is none.
    for body in [&b"\x0a\x05\x12"[..], b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"\x0b\x0b\x0b"] {
        let answer = ask(PROTOBUF).body(body).send().status(400);
        assert_eq!((answer.header("content-type"), &answer.body[..3]), (PROTOBUF, &b"\x08\x03\x12"[..]));
    }
    // JSON that is deeper than any reader goes, and what is none.
    let deep = format!("{{\"resourceSpans\":{}", "[".repeat(1 << 20));
    for body in [deep.as_str(), "{\"a\":{\"b\":", "nonsense", ""] {
        ask("application/json").body(body).send().status(400);
    }
    // A bomb: 64 MiB of zeroes in 64 KiB, once packed and packed twice.
    let bomb = gzip(&vec![0; 64 << 20]);
    assert!(bomb.len() < 1 << 20);
    ask(PROTOBUF).header("Content-Encoding", "gzip").body(bomb).send().status(413);
    ask(PROTOBUF).header("Content-Encoding", "gzip").body("no gzip").send().status(400);
    // Bytes that nobody asked for.
    for (kind, encoding) in [("text/plain", ""), ("", ""), (PROTOBUF, "br"), (PROTOBUF, "gzip, gzip")] {
        let answer = ask(kind).header("Content-Encoding", encoding).body("x").send().status(415);
        assert!(
            answer.header("accept-encoding").is_empty() != answer.text().contains("Content-Encoding"),
            "{}",
            answer.text()
        );
    }
    // A GiB is announced: nobody waits for it.
    let mut stream = api.connect();
    let head = format!(
        "POST /v1/traces HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Type: {PROTOBUF}\r\nContent-Length: {}\r\n\r\n",
        api.address,
        api.token,
        1_u64 << 30
    );
    stream.write_all(head.as_bytes()).expect("it is taken");
    assert_eq!(read_answer(&mut BufReader::new(stream), false).expect("an answer").status, 413);
    post(&api, "traces", &one_span("after all that")).status(200);
    assert_eq!(cluster.status()["http"]["restarts"], 0);
    assert_eq!(lines(&cluster, ".received.jsonl").len(), 1);
}

/// Sends a head and zeroes after it, up to a GiB, for as long as they are taken. Returns the answer, after which the connection ends, and the number of
/// bytes that were taken.
fn send_gibibyte(api: &Api, request: &str, framing: &str) -> (Answer, usize) {
    let mut stream = api.connect();
    let head = format!(
        "{request} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n{framing}\r\n\r\n",
        api.address, api.token
    );
    stream.write_all(head.as_bytes()).expect("it is taken");
    let mut answers = BufReader::new(stream.try_clone().expect("a socket"));
    let reading = std::thread::spawn(move || {
        let answer = read_answer(&mut answers, false).expect("an answer");
        // Nothing, or that it was cut off.
        let rest = answers.read(&mut [0]).unwrap_or(0);
        assert_eq!(rest, 0, "the connection ends after the answer");
        answer
    });
    let zeroes = vec![b'0'; 1 << 16];
    let piece = match framing.starts_with("Content-Length") {
        true => zeroes,
        false => [&b"10000\r\n"[..], &zeroes, b"\r\n"].concat(),
    };
    let mut taken = 0;
    while taken < 1 << 30 && !reading.is_finished() && stream.write_all(&piece).is_ok() {
        taken += piece.len();
    }
    (reading.join().expect("the answer is read"), taken)
}

#[test]
fn a_gibibyte_is_refused_early_wherever_it_is_sent_and_takes_no_memory() {
    let cluster = Cluster::builder().hook(HOOK).arg("--http=127.0.0.1:0").arg("--otlp").start();
    let (api, sender) = (Api::of(&cluster), sender(&cluster));
    let stranger = Api { token: "nobody's".into(), ..Api::of(&cluster) };
    let pid = cluster.status()["http"]["pid"].as_u64().expect("it runs");
    let peak = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak").trim();
        peak.trim_end_matches(" kB").parse::<u64>().expect("a number")
    };
    let before = peak();
    for framing in ["Content-Length: 1073741824", "Transfer-Encoding: chunked"] {
        for (client, request, status) in [
            (&sender, "POST /v1/traces", 413),
            (&sender, "POST /v1/logs", 413),
            (&sender, "POST /v1/metrics", 413),
            (&api, "POST /api/v1/tasks", 413),
            (&api, "GET /metrics", 200),
            (&api, "POST /metrics", 405),
            (&stranger, "POST /v1/traces", 401),
        ] {
            let (answer, taken) = send_gibibyte(client, request, framing);
            assert_eq!(answer.status, status, "{request}, {framing}: {}", answer.text());
            assert!(taken < 64 << 20, "{request}, {framing}: {taken} bytes are taken");
        }
    }
    assert!(peak() < before + (48 << 10), "{before} KiB before, {} at the peak", peak());
    post(&sender, "traces", &one_span("after all that")).status(200);
    let http = cluster.status()["http"].clone();
    assert_eq!((&http["restarts"], &http["otlp"]["refused_requests"]), (&json!(0), &json!(8)));
}

#[test]
fn what_was_acknowledged_outlives_the_receiver_which_comes_back_with_port_and_token() {
    let cluster = receiving();
    let api = sender(&cluster);
    let pid = |cluster: &Cluster| cluster.status()["http"]["pid"].as_u64().map(|pid| pid as u32);
    let (mut sent, mut killed) = (Vec::new(), 0);
    for number in 0..40 {
        if number % 10 == 5 {
            let receiver = wait_until("there is a receiver", || pid(&cluster));
            kill(receiver, Signal::KILL);
            killed += 1;
        }
        let body = one_span(&format!("span {number}"));
        // As senders do it: again, until it is acknowledged.
        wait_until("it is acknowledged", || {
            let answer = api.ask("POST", "/v1/traces").json(&body).try_send().ok()?;
            (answer.status == 200).then_some(())
        });
        sent.push(body);
        let lines = lines(&cluster, ".received.jsonl");
        assert!(sent.iter().all(|body| lines.contains(body)), "{number}: what was acknowledged is there");
    }
    let restarts = cluster.status()["http"]["restarts"].as_u64();
    assert_eq!(restarts, Some(killed), "each is told");
}

#[test]
fn more_bodies_than_there_is_room_for_are_told_when_to_come_again() {
    let cluster = receiving();
    let api = sender(&cluster);
    let begin = || {
        let mut stream = api.connect();
        let head = format!(
            "POST /v1/traces HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{",
            api.address, api.token
        );
        stream.write_all(head.as_bytes()).expect("it is taken");
        stream
    };
    let slow: Vec<_> = (0..8).map(|_| begin()).collect();
    let refused = wait_until("there is no room", || {
        Some(post(&api, "traces", &one_span("a"))).filter(|answer| answer.status == 429)
    });
    assert_eq!((refused.header("retry-after"), &refused.json()["code"]), ("1", &json!(8)));
    drop(slow);
    wait_until("there is room", || Some(post(&api, "traces", &one_span("a"))).filter(|answer| answer.status == 200));
}

#[test]
fn one_address_serves_what_is_asked_for() {
    let cluster = Cluster::builder().arg("--metrics=127.0.0.1:0").arg("--otlp=auto").start();
    let api = sender(&cluster);
    post(&api, "traces", &one_span("a")).status(200);
    let problem = Api::of(&cluster).get("/api/v1/tasks").problem(404, "no-such-path");
    assert_eq!(problem["detail"], "`/api/v1/tasks` is not served here, only /metrics and OTLP are");
    let cluster = Cluster::builder().arg("--http=127.0.0.1:0").build();
    let refused = cluster.start_head(&["--otlp=127.0.0.1:1"]).status(2);
    refused.stderr_contains("--otlp").stderr_contains("found 127.0.0.1:1: one process serves all of them");
    cluster.start_head(&["--otlp=0.0.0.0:1"]).status(2).stderr_contains("expected an address of this machine alone");
}

/// A program that knows nothing of tracer, and whose spans and log records are made by its automatic instrumentation.
const AUTOMATIC: &str = r#"
import logging, os, sys, time
from opentelemetry import trace

with trace.get_tracer("app").start_as_current_span("request"):
    with trace.get_tracer("app").start_as_current_span("query"):
        logging.getLogger("shop").warning("the shelf is empty")
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"#;

#[test]
fn a_python_program_with_automatic_instrumentation_alone_is_below_its_attempt_while_it_runs() {
    let Some(python) =
        python_with("opentelemetry.instrumentation.auto_instrumentation, opentelemetry.instrumentation.logging")
    else {
        return;
    };
    let cluster = receiving();
    let program = program(&cluster, AUTOMATIC);
    let go = cluster.file("go");
    let run =
        "import sys; from opentelemetry.instrumentation.auto_instrumentation import run; sys.argv[0] = 'run'; run()";
    let mut command = cluster.command(&["submit", "command", "--"]);
    command.arg(&python).args(["-c", run]).arg(&python).arg(&program).arg(&go);
    let running = cluster.spawn(command);
    let spans = wait_until("its spans are there", || {
        let list = cluster.tracer(&["trace", "list", "--format", "json"]).success().json();
        let traces = list["traces"].as_array().expect("traces").len();
        (traces == 1)
            .then(|| shown(&cluster, "last"))
            .filter(|spans| spans.iter().any(|span| span["name"] == "request"))
    });
    let (request, query) = (named(&spans, "request"), named(&spans, "query"));
    let attempt =
        spans.iter().find(|span| span["context"]["span_id"] == request["parent_id"]).expect("its parent is there");
    assert!(attempt["name"].as_str().is_some_and(|name| name.ends_with("tracer.remote_worker")), "{attempt}");
    assert!(attempt["end_time"].is_null(), "it runs: {attempt}");
    assert_eq!(query["parent_id"], request["context"]["span_id"]);
    let record = wait_until("its log record is there", || {
        let records = lines(&cluster, ".logs.jsonl")
            .into_iter()
            .flat_map(|mut line| line["resourceLogs"][0]["scopeLogs"].take().as_array().cloned().unwrap_or_default());
        let records = records.flat_map(|scope| scope["logRecords"].as_array().cloned().unwrap_or_default());
        records.into_iter().find(|record| record["body"]["stringValue"] == "the shelf is empty")
    });
    assert_eq!((&record["severityText"], &record["severityNumber"]), (&json!("WARN"), &json!(13)));
    assert_eq!(format!("0x{}", record["spanId"].as_str().expect("an id")), query["context"]["span_id"]);
    fs::write(&go, "").expect("the test's folder is ours");
    running.wait().success();
    // The trace that the program began is found by its own id too.
    let own = record["traceId"].as_str().expect("an id");
    assert_eq!(shown(&cluster, own).len(), shown(&cluster, "last").len());
    assert_eq!(lines(&cluster, ".received.jsonl").len(), 1);
    let text = cluster.tracer(&["trace", "show", own, "--logs"]).success().stdout_text();
    let below: Vec<_> = text.lines().skip_while(|line| !line.contains("query")).take(2).collect();
    assert!(below[1].contains("▸ +") && below[1].ends_with("WARN the shelf is empty"), "{text}");
    let report = cluster.tracer(&["trace", "show", "last", "--logs", "--format", "json"]).success().json();
    let shelf: Vec<_> = report["logs"]
        .as_array()
        .expect("logs")
        .iter()
        .filter(|record| record["body"] == "the shelf is empty")
        .collect();
    assert_eq!((shelf.len(), &shelf[0]["span_id"]), (1, &query["context"]["span_id"]));
    assert!(cluster.tracer(&["trace", "show", "last", "--format", "json"]).success().json()["logs"].is_null());
}

#[test]
fn a_node_program_with_automatic_instrumentation_alone_is_below_its_attempt_while_it_runs() {
    const REGISTER: &str = "@opentelemetry/auto-instrumentations-node/build/src/register.js";
    let Some(tools) = node_clients() else { return };
    let register = tools.join(REGISTER);
    if !register.is_file() {
        return skip(
            "node clients",
            format_args!("`npm ci` in tests/fixtures/node installs them; there is no {}", register.display()),
        );
    }
    let cluster = receiving();
    let go = cluster.file("go");
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/node/automatic.js");
    let mut command = cluster.command(&["submit", "command", "--env"]);
    // Nothing of the machine's surroundings is asked for over a network.
    command.arg(format!("NODE_PATH={}", tools.display())).args(["--env", "OTEL_NODE_RESOURCE_DETECTORS=env"]);
    command.args(["--", "node", "--require"]).arg(&register).arg(&program).arg(&go);
    let running = cluster.spawn(command);
    let of_kind = |spans: &[Value], kind: &str| spans.iter().find(|span| span["kind"] == kind).cloned();
    let (spans, client, server) = wait_until("its spans are there", || {
        let list = cluster.tracer(&["trace", "list", "--format", "json"]).success().json();
        let is_one = list["traces"].as_array().expect("traces").len() == 1;
        let spans = is_one.then(|| shown(&cluster, "last"))?;
        let (client, server) = (of_kind(&spans, "SpanKind.CLIENT")?, of_kind(&spans, "SpanKind.SERVER")?);
        Some((spans, client, server))
    });
    let attempt =
        spans.iter().find(|span| span["context"]["span_id"] == client["parent_id"]).expect("its parent is there");
    assert!(attempt["name"].as_str().is_some_and(|name| name.ends_with("tracer.remote_worker")), "{attempt}");
    assert!(attempt["end_time"].is_null(), "it runs: {attempt}");
    assert_eq!(server["parent_id"], client["context"]["span_id"]);
    let logs = wait_until("its log record is there", || {
        let report = cluster.tracer(&["trace", "show", "last", "--logs", "--format", "json"]).success().json();
        Some(report["logs"].as_array().expect("logs").clone()).filter(|logs| !logs.is_empty())
    });
    assert_eq!(logs.len(), 1, "{logs:#?}");
    assert_eq!((&logs[0]["body"], &logs[0]["severity"]), (&json!("the shelf is empty"), &json!("WARN")));
    assert_eq!(logs[0]["span_id"], server["context"]["span_id"]);
    fs::write(&go, "").expect("the test's folder is ours");
    running.wait().success();
}
