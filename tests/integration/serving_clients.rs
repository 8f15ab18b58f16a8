//! Clients of services that others wrote: `httpx` with OpenTelemetry's own instrumentation, a browser, and schemathesis, which tests an application
//! against its own description.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Cluster, HOOK, Spans, python_with, skip, wait_until};

/// Applications of a service, each with its prefix.
type Applications<'a> = &'a [(&'a str, &'a str)];

const SHOP: Applications<'_> = &[("/", "shop:hello"), ("/echo", "shop:echo"), ("/count", "shop:count")];

/// A service of these applications.
struct Service {
    cluster: Cluster,
    address: SocketAddr,
}

impl Service {
    #[track_caller]
    fn deploy(applications: Applications<'_>) -> Service {
        let cluster = Cluster::builder().workers(1).hook(HOOK).start();
        let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
        let address = port.expect("there is a free port");
        let mut text = format!("name = \"shop\"\n[http]\naddress = \"{address}\"\n");
        for (prefix, import_path) in applications {
            text += &format!("[[applications]]\nroute_prefix = \"{prefix}\"\nimport_path = \"{import_path}\"\n");
        }
        let file = cluster.file("service.toml");
        fs::write(&file, text).expect("the folder is ours");
        cluster.tracer(&["serve", "deploy", file.to_str().expect("a plain name")]).success();
        Service { cluster, address }
    }

    /// Runs a client to its end, and returns what it says.
    #[track_caller]
    fn run(&self, client: Command) -> Vec<Value> {
        let run = self.cluster.spawn(client).wait_within(Duration::from_secs(120)).success();
        run.stdout_text().lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
    }

    /// Returns the spans of a trace, once there are as many.
    fn spans_of(&self, trace: &str, count: usize) -> Spans {
        wait_until(&format!("{count} spans of the trace {trace} have ended"), || {
            let mut spans = self.cluster.spans();
            spans.spans.retain(|span| span.trace_id() == format!("0x{trace}"));
            (spans.len() >= count).then_some(spans)
        })
    }
}

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(path)
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("`{key}` of {value} is text"))
}

fn httpx(service: &Service, python: &Path, sampling: &str) -> Vec<Value> {
    let mut client = service.cluster.program(python);
    client.arg(fixture("python/httpx_client.py")).arg(service.address.to_string()).arg(sampling);
    let said = service.run(client);
    assert_eq!(said.len(), 12, "{said:?}");
    said
}

const HTTPX: &str = "httpx, h2, opentelemetry.sdk, opentelemetry.instrumentation.httpx";

#[test]
fn a_trace_of_httpx_goes_on_from_its_span_over_both_versions_of_http() {
    let Some(python) = python_with(HTTPX) else { return };
    let service = Service::deploy(SHOP);
    for case in httpx(&service, &python, "sampled") {
        let [parent] = case["spans"].as_array().expect("a list").as_slice() else { panic!("one span: {case}") };
        let spans = service.spans_of(text(&case, "trace"), 3);
        let find = |begin: &str| spans.only(begin, |span| span.name().starts_with(begin));
        let (server, hop) = (find("proxy_http_request"), find("route_to_replica"));
        let handler = find("replica_handle_request");
        assert_eq!(server.parent_id(), Some(format!("0x{}", parent.as_str().expect("text")).as_str()), "{case}");
        assert_eq!((hop.parent_id(), handler.parent_id()), (Some(server.span_id()), Some(hop.span_id())), "{case}");
        let version = if text(&case, "version") == "HTTP/2" { "2" } else { "1.1" };
        assert_eq!(*server.attribute("network.protocol.version"), version, "{case}");
        assert_eq!(*server.attribute("http.response.status_code"), case["status"], "{case}");
        let response = format!("00-{}-{}-", text(&case, "trace"), server.span_id().trim_start_matches("0x"));
        assert!(text(&case, "traceresponse").starts_with(&response), "{case}");
        if text(&case, "case").starts_with("stream") {
            let name = text(&case, "case");
            assert_eq!(text(&case, "body"), (0..5).map(|number| format!("{name} {number}\n")).collect::<String>());
        }
    }
}

#[test]
fn what_httpx_does_not_sample_has_no_span() {
    let Some(python) = python_with(HTTPX) else { return };
    let service = Service::deploy(SHOP);
    let said = httpx(&service, &python, "unsampled");
    assert!(said.iter().all(|case| case["status"] == 200), "{said:?}");
    service.cluster.stop().success();
    let spans = service.cluster.spans();
    assert!(spans.iter().all(|span| !span.name().contains("request")), "{}", spans.describe());
}

#[test]
fn a_browser_takes_events_as_they_come_and_may_leave() {
    let Some(tools) = crate::view::page_tools() else { return };
    let Some(chromium) = ["chromium", "chromium-browser"].into_iter().find_map(crate::view::program) else {
        return skip("chromium", "it is not installed");
    };
    let service = Service::deploy(SHOP);
    let mut browser = service.cluster.program("node");
    browser.env("NODE_PATH", tools).env("CHROMIUM", chromium).env("HOME", service.cluster.folder());
    browser.arg(fixture("node/event_source.js")).arg(format!("http://{}/", service.address));
    let said = service.run(browser);
    let [page, whole, left, again] = said.as_slice() else { panic!("{said:?}") };
    assert_eq!(*page, json!({"case": "page", "status": 200, "text": "hello"}));
    assert_eq!(whole["data"], json!(["1", "2", "3", "4", "5"]));
    // The handler makes one each 100 ms: they did not come all at once.
    assert!(whole["took"].as_f64() > Some(300.0), "{whole}");
    assert_eq!((&left["beside"], &left["data"]), (&json!("hello"), &json!(vec![["1", "2", "3"]; 3])));
    assert_eq!(again["data"], json!(["1", "1"]));
    // The handlers of those that have left have ended.
    let spans = service.cluster.wait_for_spans("all requests of the page are recorded", |spans| {
        let ended = spans.all_named("proxy_http_request count GET /count");
        ended.len() >= 6 && spans.all_named("replica_handle_request count handle").len() >= 6
    });
    let servers = spans.all_named("proxy_http_request count GET /count");
    let gone = servers.iter().filter(|span| *span.attribute("tracer.outcome") == "client_gone").count();
    assert!(gone >= 3, "{gone} of {} have left", servers.len());
    assert!(servers.iter().all(|span| span.status_code() == "UNSET"), "{}", spans.describe());
}

/// Settings of the checks: a room in which nobody has said anything is not found.
const CHECKS: &str = "[checks.positive_data_acceptance]\nexpected-statuses = [\"2xx\", 404]\n";

#[test]
fn schemathesis_finds_an_axum_application_as_it_describes_itself() {
    let Some(python) = python_with("schemathesis") else { return };
    let service = Service::deploy(&[("/", "axum_chat:chat")]);
    let cluster = &service.cluster;
    fs::write(cluster.file("schemathesis.toml"), CHECKS).expect("the folder is ours");
    let url = format!("http://{}", service.address);
    let mut command = cluster.program(python);
    command.args(["-m", "schemathesis.cli", "--config-file", "schemathesis.toml", "run", "--url", &url]);
    command.args(["--checks", "all", "--max-examples", "50", "--generation-deterministic", "--no-color"]);
    command.env("HOME", cluster.folder()).env("HYPOTHESIS_STORAGE_DIRECTORY", cluster.file("hypothesis"));
    command.arg(format!("{url}/openapi.json"));
    let run = cluster.spawn(command).wait_within(Duration::from_secs(180));
    let text = run.stdout_text();
    assert!(run.output.status.success(), "{text}\n{}", run.stderr_text());
    assert!(text.contains("Operations:       2 selected / 2 total") && text.contains("Tested: 2"), "{text}");
    let status = cluster.tracer(&["serve", "status", "--format", "json"]).success().json();
    assert_eq!(status["services"][0]["replicas"][0]["name"], "chat#1", "the replica has died: {status}");
}

/// Returns the path of one of the clients of nghttp2; none, which skips the test, where it is not installed.
fn nghttp2(name: &str) -> Option<PathBuf> {
    let found = crate::view::program(name);
    if found.is_none() {
        // They come in one package.
        skip("h2load", format_args!("`{name}` is not installed"));
    }
    found
}

#[test]
fn clients_of_nghttp2_are_answered_over_http_2() {
    let (Some(nghttp), Some(h2load)) = (nghttp2("nghttp"), nghttp2("h2load")) else { return };
    let service = Service::deploy(SHOP);
    let url = format!("http://{}/", service.address);
    let mut client = service.cluster.program(nghttp);
    client.args(["--null-out", "--verbose", "--no-dep", &url]);
    let said = service.cluster.spawn(client).wait_within(Duration::from_secs(60)).success().stdout_text();
    assert!(said.contains(":status: 200") && said.contains("traceresponse: 00-"), "{said}");
    let mut load = service.cluster.program(h2load);
    load.args(["-n", "2000", "-c", "4", "-m", "8", &url]);
    let said = service.cluster.spawn(load).wait_within(Duration::from_secs(120)).success().stdout_text();
    assert!(said.contains("2000 succeeded, 0 failed, 0 errored, 0 timeout"), "{said}");
}

#[test]
fn every_answer_that_wrk_counts_has_its_spans() {
    let Some(wrk) = crate::view::program("wrk") else {
        return skip("wrk", "`wrk` is not installed");
    };
    let service = Service::deploy(SHOP);
    let mut load = service.cluster.program(wrk);
    load.args(["-t1", "-c32", "-d1s", &format!("http://{}/", service.address)]);
    let said = service.cluster.spawn(load).wait_within(Duration::from_secs(60)).success().stdout_text();
    // wrk also reports an answer that took longer than two seconds as a timeout, and counts it: no request has failed by that.
    let has_errors = said.contains("Socket errors") && !said.contains("connect 0, read 0, write 0");
    assert!(!has_errors && !said.contains("Non-2xx"), "{said}");
    let counted = said.lines().find_map(|line| line.trim().split_once(" requests in ")).expect("wrk counts them").0;
    let counted: usize = counted.parse().expect("a number");
    service.cluster.stop().success();
    let spans = service.cluster.spans();
    for name in ["proxy_http_request", "route_to_replica", "replica_handle_request"] {
        let ended = spans.iter().filter(|span| span.name().starts_with(name) && span.status_code() != "ERROR").count();
        // wrk leaves without the answers of its last requests, at most one for each connection; their spans are there too.
        assert!((counted..=counted + 32).contains(&ended), "{ended} of `{name}` for {counted} answers");
    }
}
