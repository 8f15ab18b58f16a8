//! gRPC through the proxy: the cases of its interoperability tests, with its own client in Python, and their spans.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::metrics::{OPENMETRICS, samples, scrape, text};
use crate::support::{
    Background, Cluster, HOOK, Random, Span, Spans, kill, node_client, node_clients, python_with, wait_until,
};

const IMPORT_PATH: &str = "interop:test_service";
/// Calls that a storm has under way at a time, as the client has them.
const STORM_CALLS: usize = 6;

/// The deployment on a port of its own, and gRPC's client.
struct Service {
    cluster: Cluster,
    address: SocketAddr,
    python: std::path::PathBuf,
    import_path: &'static str,
}

impl Service {
    /// None, which skips the test, without a Python that has gRPC.
    fn deploy(http: &str, application: &str, deployment: &str) -> Option<Service> {
        Service::deploy_of(IMPORT_PATH, (http, application, deployment))
    }

    fn deploy_of(import_path: &'static str, (http, application, deployment): (&str, &str, &str)) -> Option<Service> {
        let python = python_with("grpc, google.protobuf")?;
        let cluster = Cluster::builder().workers(1).hook(HOOK).arg("--metrics=127.0.0.1:0").start();
        let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
        let address = port.expect("there is a free port");
        let service = Service { cluster, address, python, import_path };
        service.deploy_again(http, application, deployment);
        Some(service)
    }

    fn deploy_again(&self, http: &str, application: &str, deployment: &str) {
        let text = format!(
            "name = \"interop\"\n[http]\naddress = \"{}\"\n{http}\n\
             [[applications]]\nimport_path = \"{}\"\n{application}\n\
             [[applications.deployments]]\nimport_path = \"{}\"\n{deployment}\n",
            self.address, self.import_path, self.import_path
        );
        let file = self.cluster.file("service.toml");
        std::fs::write(&file, text).expect("the folder is ours");
        self.cluster.tracer(&["serve", "deploy", file.to_str().expect("a plain name")]).success();
    }

    fn client(&self, cases: &[&str]) -> Command {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let mut client = self.cluster.program(&self.python);
        client.arg(fixtures.join("python/grpc_client.py")).arg(self.address.to_string());
        client.arg(fixtures.join("interop/test.proto")).args(cases);
        client
    }

    /// Runs cases one after the other. Returns what the client says of each.
    #[track_caller]
    fn run(&self, cases: &[&str]) -> Vec<Value> {
        let text = self.cluster.run(self.client(cases)).success().stdout_text();
        let said = lines(&text);
        assert_eq!(said.len(), cases.len(), "{text}");
        said
    }

    /// Starts calls of all kinds, several at a time, again and again.
    fn storm(&self) -> Storm {
        let mut client = self.client(&["storm"]);
        client.stdin(Stdio::piped());
        Storm { client: self.cluster.spawn(client) }
    }

    /// Returns the processes of a role: `proxy` or `replica`.
    fn pids(&self, role: &str) -> Vec<u32> {
        let is_it = |command: &str| command.split(' ').nth(1) == Some(role);
        let processes = self.cluster.processes();
        processes.iter().filter(|process| is_it(&process.command)).map(|process| process.pid).collect()
    }

    /// Returns the spans, once those of the case have ended: the proxy's, the router's and the replica's.
    fn spans_of(&self, case: &Value, count: usize) -> Spans {
        let trace = format!("0x{}", case["trace"].as_str().expect("a case has a trace"));
        wait_until(&format!("{count} spans of {case} have ended"), || {
            let mut spans = self.cluster.spans();
            spans.spans.retain(|span| span.trace_id() == trace);
            (spans.len() >= count).then_some(spans)
        })
    }
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("a line is an object")).collect()
}

/// A client that calls until it is stopped.
struct Storm {
    client: Background,
}

impl Storm {
    /// Waits until so many more calls have ended.
    fn wait_for(&self, further: usize) {
        let ended = || self.client.stdout_text().lines().count();
        let enough = ended() + further;
        wait_until(&format!("{further} more calls have ended"), || (ended() >= enough).then_some(()));
    }

    /// Lets what has begun end. Returns what the client says of each call.
    #[track_caller]
    fn stop(mut self) -> Vec<Value> {
        drop(self.client.take_stdin());
        lines(&self.client.wait().success().stdout_text())
    }
}

/// Expects that each call of a storm has its spans, and the proxy's the status that the client has seen.
#[track_caller]
fn assert_recorded(cluster: &Cluster, calls: &[Value]) {
    cluster.stop().success();
    let mut traces: HashMap<String, Vec<Span>> = HashMap::new();
    for span in cluster.spans().spans {
        traces.entry(span.trace_id().to_owned()).or_default().push(span);
    }
    for call in calls {
        let trace = format!("0x{}", call["trace"].as_str().expect("a call has a trace"));
        let spans = traces.remove(&trace).unwrap_or_else(|| panic!("no spans of {call}"));
        let spans = Spans { spans, torn_lines: Vec::new() };
        proxy_span(&spans, call, "test_service");
        assert!(!spans.all_named("replica_handle_request test_service handle").is_empty(), "{call}");
    }
}

/// Expects the span of the proxy that a call of gRPC has.
#[track_caller]
fn proxy_span<'a>(spans: &'a Spans, case: &Value, deployment: &str) -> &'a Span {
    let method = case["method"].as_str().expect("a case has a method");
    let span = spans.named(&format!("proxy_grpc_request {deployment} /{method}"));
    assert_eq!(span.kind(), "SpanKind.SERVER");
    for (key, expected) in [
        ("rpc.system.name", "grpc"),
        ("rpc.method", method),
        ("rpc.response.status_code", case["status"].as_str().expect("a case has a status")),
        ("request_type", "grpc"),
    ] {
        assert_eq!(*span.attribute(key), expected, "{key} of {case}: {}", span.value);
    }
    assert_eq!((span.attribute("is_grpc_request"), span.attribute("is_http_request")), (&true.into(), &false.into()));
    span
}

/// The statuses that are the server's errors, by the conventions.
fn is_error(status: &Value) -> bool {
    let errors = ["UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"];
    errors.iter().any(|error| status == error)
}

#[test]
fn a_tonic_server_is_a_deployment_and_calls_of_all_kinds_have_their_spans() {
    let Some(service) = Service::deploy("", "", "") else { return };
    let cases = [
        "empty_unary",
        "large_unary",
        "client_streaming",
        "server_streaming",
        "ping_pong",
        "empty_stream",
        "custom_metadata",
        "status_code_and_message",
        "special_status_message",
        "unimplemented_method",
        "unimplemented_service",
        "deadline_and_context",
    ];
    for case in service.run(&cases) {
        let spans = service.spans_of(&case, 3);
        let proxy = proxy_span(&spans, &case, "test_service");
        let expected = if is_error(&case["status"]) { "ERROR" } else { "UNSET" };
        assert_eq!(proxy.status_code(), expected, "{case}: {}", proxy.value);
        let route = spans.named("route_to_replica test_service handle");
        let replica = spans.named("replica_handle_request test_service handle");
        assert_eq!(route.parent_id(), Some(proxy.span_id()));
        assert_eq!(replica.parent_id(), Some(route.span_id()));
        assert_eq!(replica.attribute("rpc.method"), &case["method"]);
        assert_eq!(spans.len(), 3, "{case}");
    }
}

#[test]
fn health_and_reflection_are_services_like_others() {
    if python_with("grpc_health.v1.health_pb2, grpc_reflection.v1alpha.reflection_pb2").is_none() {
        return;
    }
    let Some(service) = Service::deploy_of("interop:whole_server", ("", "", "")) else { return };
    let case = &service.run(&["health_and_reflection"])[0];
    let spans = service.spans_of(case, 3);
    assert_eq!(proxy_span(&spans, case, "whole_server").status_code(), "UNSET");
    service.run(&["empty_unary", "ping_pong"]);
}

#[test]
fn the_client_in_node_passes_the_cases_too() {
    let Some(tools) = node_clients() else { return };
    let Some(service) = Service::deploy("", "", "") else { return };
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/interop/test.proto");
    let address = service.address.to_string();
    let cases = [
        "empty_unary",
        "large_unary",
        "client_streaming",
        "server_streaming",
        "ping_pong",
        "empty_stream",
        "custom_metadata",
        "status_code_and_message",
        "special_status_message",
        "unimplemented_method",
        "cancel_after_first_response",
        "timeout_on_sleeping_server",
    ];
    let arguments: Vec<&str> = [&address, proto.to_str().expect("a plain path")].into_iter().chain(cases).collect();
    let node = node_client(&service.cluster, &tools, "grpc_client.js", &arguments);
    let said = lines(&service.cluster.run(node).success().stdout_text());
    assert_eq!(said.len(), cases.len());
    for case in said.iter().filter(|case| {
        !["cancel_after_first_response", "timeout_on_sleeping_server"]
            .contains(&case["case"].as_str().unwrap_or_default())
    }) {
        let spans = service.spans_of(case, 3);
        proxy_span(&spans, case, "test_service");
    }
}

#[test]
fn calls_that_are_given_up_are_cancelled_in_the_handler_and_in_their_spans() {
    let Some(service) = Service::deploy("", "", "") else { return };
    for case in service.run(&["cancel_after_first_response", "timeout_on_sleeping_server"]) {
        let spans = service.spans_of(&case, 3);
        let replica = spans.named("replica_handle_request test_service handle");
        let proxy = spans.named("proxy_grpc_request test_service /grpc.testing.TestService/FullDuplexCall");
        let found = replica.attribute("rpc.response.status_code");
        // At its deadline a client may take the call back before the proxy has seen that the time is up.
        let is_expected = *found == case["status"] || *found == "CANCELLED";
        assert!(is_expected, "{case}: {}", replica.value);
        let outcome = if *found == "CANCELLED" { "client_gone" } else { "timeout" };
        assert_eq!(*replica.attribute("tracer.outcome"), outcome, "{}", replica.value);
        let outcome = proxy.attribute("tracer.outcome");
        assert!(*outcome == "client_gone" || *outcome == "timeout", "{}", proxy.value);
        assert_eq!(proxy.status_code() == "ERROR", *outcome == "timeout", "{}", proxy.value);
    }
    // Nothing of the call may have reached the proxy; what has, has ended.
    service.run(&["cancel_after_begin", "empty_unary"]);
}

#[test]
fn a_call_whose_time_is_up_by_the_service_gets_a_status_before_and_after_its_head() {
    let Some(service) = Service::deploy("request_timeout = \"500ms\"", "", "") else { return };
    let case = &service.run(&["time_is_up"])[0];
    let spans = service.spans_of(case, 3);
    let proxy = proxy_span(&spans, case, "test_service");
    assert_eq!((proxy.status_code(), proxy.attribute("error.type")), ("ERROR", &"timeout".into()));
    let replica = spans.named("replica_handle_request test_service handle");
    assert_eq!(*replica.attribute("rpc.response.status_code"), "DEADLINE_EXCEEDED", "{}", replica.value);
}

#[test]
fn what_no_replica_handles_gets_a_status() {
    let full = "max_ongoing_requests = 1\nmax_queued_requests = 1\nqueue_full = 429";
    for (application, deployment, case, outcome) in [
        ("route_prefix = \"/elsewhere\"", "", "no_route", "refused"),
        ("", full, "queue_full", "shed"),
        ("", "max_ongoing_requests = 1\nqueue_timeout = \"200ms\"", "no_place", "unavailable"),
    ] {
        let Some(service) = Service::deploy("", application, deployment) else { return };
        let case = &service.run(&[case])[0];
        if outcome == "shed" {
            // The trace of the last call is of one of several that were tried.
            continue;
        }
        let deployment = if outcome == "refused" { "" } else { "test_service" };
        let spans = service.spans_of(case, 1);
        let proxy = proxy_span(&spans, case, deployment);
        assert_eq!(*proxy.attribute("tracer.outcome"), outcome, "{}", proxy.value);
        assert_eq!(proxy.status_code(), "ERROR", "{}", proxy.value);
    }
}

#[test]
fn a_call_whose_replica_is_killed_ends_with_a_status_and_all_its_spans() {
    let Some(service) = Service::deploy("", "", "") else { return };
    for case in ["lost_before_the_head", "lost_after_the_head"] {
        let replica = wait_until("there is a replica", || service.pids("replica").first().copied());
        let case = &service.run(&[&format!("{case}:{replica}")])[0];
        let spans = service.spans_of(case, 3);
        let proxy = proxy_span(&spans, case, "test_service");
        assert_eq!((proxy.status_code(), proxy.attribute("error.type")), ("ERROR", &"replica_lost".into()));
        let killed = spans.named("replica_handle_request test_service handle");
        assert_eq!(*killed.attribute("error.type"), "signal:9", "{}", killed.value);
        service.run(&["empty_unary"]);
    }
}

#[test]
fn calls_of_all_kinds_succeed_while_replicas_are_rolled() {
    let Some(service) = Service::deploy("", "", "num_replicas = 2") else { return };
    let storm = service.storm();
    for version in 1..=4 {
        storm.wait_for(40);
        let before = service.pids("replica");
        service.deploy_again("", "", &format!("num_replicas = 2\nenv = {{ VERSION = \"{version}\" }}"));
        wait_until("the replicas of the version before have ended", || {
            let now = service.pids("replica");
            before.iter().all(|pid| !now.contains(pid)).then_some(())
        });
    }
    storm.wait_for(40);
    let calls = storm.stop();
    if let Some(call) = calls.iter().find(|call| call["status"] != "OK") {
        panic!("{call} failed: {}", service.spans_of(call, 2).describe());
    }
    assert_recorded(&service.cluster, &calls);
}

#[test]
fn calls_of_all_kinds_succeed_or_are_unavailable_while_replicas_are_killed() {
    let Some(service) = Service::deploy("", "", "num_replicas = 2") else { return };
    let mut random = Random::of_test(&service.cluster);
    let storm = service.storm();
    for _ in 0..4 {
        storm.wait_for(40);
        let before = service.pids("replica");
        let victim = *random.choose(&before).expect("there is one");
        kill(victim, Signal::KILL);
        wait_until(&format!("another replica is in place of {victim}"), || {
            let now = service.pids("replica");
            (now.len() == before.len() && !now.contains(&victim)).then_some(())
        });
    }
    storm.wait_for(40);
    let calls = storm.stop();
    for call in calls.iter().filter(|call| call["status"] != "OK") {
        let said = "the replica has died, or has broken off, after it had begun the request";
        assert_eq!((&call["status"], &call["message"]), (&"UNAVAILABLE".into(), &said.into()), "{call}");
    }
    let lost = calls.iter().filter(|call| call["status"] != "OK").count();
    assert!(lost <= 4 * STORM_CALLS, "{lost} of {} calls were lost", calls.len());
    assert_recorded(&service.cluster, &calls);
}

#[test]
fn calls_of_all_kinds_succeed_or_are_unavailable_while_the_proxy_is_killed() {
    let Some(service) = Service::deploy("", "", "num_replicas = 2") else { return };
    let storm = service.storm();
    let kills = 3;
    for _ in 0..kills {
        storm.wait_for(40);
        let before = service.pids("proxy");
        kill(before[0], Signal::KILL);
        wait_until("another proxy is in its place", || {
            let now = service.pids("proxy");
            (now.len() == 1 && now != before).then_some(())
        });
    }
    storm.wait_for(40);
    let calls = storm.stop();
    let (ended, lost): (Vec<_>, Vec<_>) = calls.into_iter().partition(|call| call["status"] == "OK");
    // Those that were under way, and one that each client has put on the connection before it has seen its end.
    assert!(lost.len() <= 2 * kills * STORM_CALLS, "{} calls were lost: {lost:?}", lost.len());
    for call in &lost {
        // What the client says of a connection that has ended.
        assert_eq!(call["status"], "UNAVAILABLE", "{call}");
    }
    assert_recorded(&service.cluster, &ended);
}

#[test]
fn calls_are_counted_by_method_and_status() {
    let Some(service) = Service::deploy("", "", "") else { return };
    service.run(&["empty_unary", "empty_unary", "unimplemented_method"]);
    let samples = samples(&text(&scrape(&service.cluster, OPENMETRICS)));
    let counted = |part: &str| -> f64 {
        let of = samples
            .iter()
            .filter(|(name, _)| name.starts_with("rpc_server_call_duration_seconds_count{") && name.contains(part));
        of.map(|(_, count)| count).sum()
    };
    let app = "app=\"test_service\",deployment=\"test_service\",rpc_system_name=\"grpc\"";
    let of_method = |method: &str, status: &str| {
        counted(&format!("{app},rpc_method=\"{method}\",rpc_response_status_code=\"{status}\""))
    };
    assert_eq!(of_method("grpc.testing.TestService/EmptyCall", "OK"), 2.0, "{samples:?}");
    assert_eq!(of_method("_OTHER", "UNIMPLEMENTED"), 1.0, "{samples:?}");
}
