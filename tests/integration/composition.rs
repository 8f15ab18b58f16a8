//! Deployments that call other deployments by their handles: one trace, the callee's limits, and what becomes of calls whose callee dies.

use std::collections::HashSet;
use std::fs;
use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tracer::{EmbeddedHead, Init};

use crate::support::{Answer, Cluster, HOOK, Span, kill, read_answer, wait_until};

/// Deadline of a request. Generous: it is reached only by a test that fails.
const LIMIT: Duration = Duration::from_secs(30);

/// Serves deployments of the fixture `handlers`, each with further lines of its table; the first is the ingress. Returns the address.
#[track_caller]
pub(crate) fn serve_handlers(cluster: &Cluster, deployments: &[(&str, &str)]) -> String {
    let mut text = String::from("name = \"shop\"\n[http]\naddress = \"127.0.0.1:0\"\n[[applications]]\n");
    text.push_str(&format!("name = \"main\"\nimport_path = \"handlers:{}\"\n", deployments[0].0));
    for (name, lines) in deployments {
        let table = "[[applications.deployments]]";
        text.push_str(&format!("{table}\nname = \"{name}\"\nimport_path = \"handlers:{name}\"\n{lines}\n"));
    }
    let file = cluster.file("service.toml");
    fs::write(&file, text).expect("the folder is ours");
    cluster.tracer(&["serve", "deploy", file.to_str().expect("it is text")]).success();
    let status = cluster.tracer(&["serve", "status", "--format", "json"]).success().json();
    let url = status["services"][0]["url"].as_str().expect("it has a URL");
    url.trim_start_matches("http://").trim_end_matches('/').to_owned()
}

/// A service whose ingress calls others.
struct Served {
    cluster: Cluster,
    address: String,
}

impl Served {
    /// Serves the deployments of the fixture `handlers`: each is a name and further lines of its table; the first is the ingress.
    #[track_caller]
    fn start(deployments: &[(&str, &str)]) -> Served {
        let cluster = Cluster::builder().hook(HOOK).start();
        let address = serve_handlers(&cluster, deployments);
        Served { cluster, address }
    }

    fn connect(&self) -> BufReader<TcpStream> {
        let stream = TcpStream::connect(&self.address).expect("it is served");
        stream.set_read_timeout(Some(LIMIT)).expect("it is a socket");
        BufReader::new(stream)
    }

    /// Sends a request on a connection of its own.
    fn ask(&self, path: &str, headers: &str, body: &str) -> BufReader<TcpStream> {
        let mut client = self.connect();
        let length = body.len();
        let request = format!("POST {path} HTTP/1.1\r\nhost: shop\r\ncontent-length: {length}\r\n{headers}\r\n{body}");
        client.get_mut().write_all(request.as_bytes()).expect("it is connected");
        client
    }

    #[track_caller]
    fn get(&self, path: &str) -> Answer {
        read_answer(&mut self.ask(path, "", ""), false).expect("it answers")
    }

    /// Returns the process of the replica whose name begins so.
    fn pid(&self, name: &str) -> u32 {
        let status = self.cluster.tracer(&["serve", "status", "--format", "json"]).success().json();
        let replicas = status["services"][0]["replicas"].as_array().expect("it has replicas").clone();
        let is_it = |row: &&Value| row["name"].as_str().is_some_and(|found| found.starts_with(name));
        let found = replicas.iter().find(is_it).unwrap_or_else(|| panic!("no replica {name} in {status}"));
        u32::try_from(found["pid"].as_u64().expect("it runs")).expect("it is a pid")
    }
}

/// The spans of a request that one deployment passes on to another, from the first to the last.
const CHAIN: [(&str, &str); 5] = [
    ("proxy_http_request outer POST /", "SpanKind.SERVER"),
    ("route_to_replica outer handle", "SpanKind.CLIENT"),
    ("replica_handle_request outer handle", "SpanKind.SERVER"),
    ("route_to_replica inner handle", "SpanKind.CLIENT"),
    ("replica_handle_request inner handle", "SpanKind.SERVER"),
];

/// Expects that these are the spans of one request, each the child of the one before it, and returns them in this order.
#[track_caller]
fn chain<'s>(spans: &[&'s Span]) -> Vec<&'s Span> {
    let mut found: Vec<&Span> = Vec::new();
    for (name, kind) in CHAIN {
        let all: Vec<_> = spans.iter().map(|span| span.name()).collect();
        let span = spans.iter().find(|span| span.name() == name).unwrap_or_else(|| panic!("no `{name}` among {all:?}"));
        assert_eq!(span.kind(), kind, "the kind of `{name}`");
        assert_eq!(span.parent_id(), found.last().map(|parent| parent.span_id()), "the parent of `{name}`");
        found.push(span);
    }
    assert_eq!(spans.len(), CHAIN.len());
    found
}

#[test]
fn a_call_of_a_handler_is_in_the_trace_of_its_request() {
    let served = Served::start(&[("outer", ""), ("inner", "")]);
    assert_eq!(served.get("/a?b=c").status(200).text(), "/a");
    let text = "x".repeat(1 << 20);
    assert_eq!(read_answer(&mut served.ask("/echo", "", &text), false).expect("it answers").text().len(), 1 << 20);
    let unsampled = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00\r\n";
    assert_eq!(read_answer(&mut served.ask("/b", unsampled, ""), false).expect("it answers").text(), "/b");
    served.cluster.stop().success();
    let spans = served.cluster.spans();
    spans.assert_whole(&[]);
    let roots = spans.all_named(CHAIN[0].0);
    assert_eq!(roots.len(), 2, "a request that is not sampled has no span anywhere: {}", spans.describe());
    for root in roots {
        let of_trace: Vec<_> = spans.iter().filter(|span| span.trace_id() == root.trace_id()).collect();
        let chain = chain(&of_trace);
        assert_eq!(chain[3].attribute("replica_id"), "inner#1");
        assert_eq!(chain[3].attribute("request_id"), chain[0].attribute("request_id"));
        assert_eq!(chain[3].attribute("app"), "main");
        chain.iter().for_each(|span| assert_eq!(span.status_code(), "UNSET", "{}", span.name()));
    }
}

#[test]
fn calls_between_replicas_go_on_with_and_without_a_head() {
    let served = Served::start(&[("outer", ""), ("inner", "")]);
    let record = served.cluster.head_record();
    let guard = record["guard_pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a head has a guard");
    assert_eq!(served.get("/before").status(200).text(), "/before");
    let (outer, inner) = (served.pid("outer"), served.pid("inner"));
    // A guard that stands starts no head.
    kill(guard, Signal::STOP);
    served.cluster.kill_head();
    assert_eq!(served.get("/without").status(200).text(), "/without");
    kill(guard, Signal::CONT);
    wait_until("another head has come", || served.cluster.tracer(&["status"]).output.status.success().then_some(()));
    assert_eq!(served.get("/after").status(200).text(), "/after");
    assert_eq!((served.pid("outer"), served.pid("inner")), (outer, inner));
    // The caller's lane to a replica that comes later is made by the next head.
    kill(inner, Signal::KILL);
    wait_until("another replica is in its place", || {
        let report = served.cluster.tracer(&["serve", "status", "--format", "json"]).success().json();
        let rows = report["services"][0]["replicas"].as_array()?.clone();
        let is_new = |row: &Value| row["name"] == "inner#2" && row["state"] == "serving";
        rows.iter().any(is_new).then_some(())
    });
    assert_eq!(served.get("/again").status(200).text(), "/again");
    served.cluster.stop().success();
    served.cluster.spans().assert_whole(&[]);
}

/// Asks four times for each of twelve models, and expects that each model has a replica of its own, and not all of them the same.
#[track_caller]
fn assert_models_keep_their_replicas(served: &Served, header: &str) {
    let models: Vec<_> = (0..12).map(|number| format!("llama-{number}")).collect();
    for model in models.iter().cycle().take(48) {
        assert_eq!(
            read_answer(&mut served.ask("/", &format!("{header}: {model}\r\n"), ""), false).unwrap().status,
            200
        );
    }
    served.cluster.stop().success();
    let spans = served.cluster.spans();
    let routes = spans.all_named("route_to_replica inner handle");
    let mut used = HashSet::new();
    for model in &models {
        let of: Vec<_> = routes.iter().filter(|span| *span.attribute("multiplexed_model_id") == **model).collect();
        assert_eq!(of.len(), 4, "{model}: {}", spans.describe());
        let replicas: HashSet<_> = of.iter().map(|span| span.attribute("replica_id").to_string()).collect();
        assert_eq!(replicas.len(), 1, "{model} is at {replicas:?}");
        used.extend(replicas);
    }
    assert!(used.len() > 1, "all models are at {used:?}");
}

#[test]
fn calls_and_requests_for_a_model_prefer_one_replica_for_each() {
    let by_handle = Served::start(&[("outer", ""), ("inner", "num_replicas = 3")]);
    assert_models_keep_their_replicas(&by_handle, "x-wanted");
    let by_header = Served::start(&[("inner", "num_replicas = 3")]);
    assert_models_keep_their_replicas(&by_header, "x-model-id");
}

#[test]
fn a_call_whose_callee_is_killed_fails_and_all_its_spans_end() {
    let served = Served::start(&[("outer", ""), ("inner", "")]);
    assert_eq!(served.get("/warm").status(200).text(), "/warm");
    let mut client = served.ask("/never", "", "");
    wait_until("the call to begin", || (in_flight(&served.cluster, "inner") == 1).then_some(()));
    kill(served.pid("inner"), Signal::KILL);
    assert_eq!(read_answer(&mut client, false).expect("it answers").status, 500);
    wait_until("the next replica", || (served.get("/again").status == 200).then_some(()));
    served.cluster.stop().success();
    let spans = served.cluster.spans();
    spans.assert_whole(&[]);
    let lost = spans.only("the call that was lost", |span| {
        span.name() == CHAIN[3].0 && span.attribute("error.type") == "replica_lost"
    });
    let of_trace: Vec<_> = spans.iter().filter(|span| span.trace_id() == lost.trace_id()).collect();
    let chain = chain(&of_trace);
    chain.iter().for_each(|span| assert_eq!(span.status_code(), "ERROR", "{}", span.name()));
    assert_eq!(chain[4].attribute("error.type"), "signal:9");
    assert!(chain[2].events("exception")[0].to_string().contains("replica inner#1 was lost"), "{:?}", chain[2]);
}

#[test]
fn methods_are_called_by_their_names_with_arguments_results_and_errors() {
    let served = Served::start(&[("caller", ""), ("Counter", "num_replicas = 2"), ("inner", "")]);
    assert_eq!(served.get("/add").status(200).text(), "42");
    assert_eq!(served.get("/count").status(200).text(), "500500");
    let failed = |path: &str| served.get(path).status(200).text();
    assert_eq!(failed("/fails"), "HandlerFailed core::num::error::ParseIntError: invalid digit found in string");
    assert!(failed("/panics").starts_with("HandlerFailed panic: ") && failed("/panics").contains("in the method"));
    let unknown = failed("/remove");
    assert!(unknown.starts_with("Refused NoSuchMethod: the deployment has no method `remove`; it has `add`, `count`"));
    served.get("/patience").status(500);
    served.cluster.stop().success();
    let spans = served.cluster.spans();
    spans.assert_whole(&[]);
    let handled = spans.named("replica_handle_request Counter add");
    assert_eq!((handled.attribute("call_method"), handled.attribute("request_type")), (&"add".into(), &"call".into()));
    assert_eq!(*handled.attribute("http.response.status_code"), Value::Null);
    let routed = spans.parent_of(handled);
    assert_eq!((routed.name(), routed.kind()), ("route_to_replica Counter add", "SpanKind.CLIENT"));
    assert_eq!(spans.parent_of(routed).name(), "replica_handle_request caller handle");
    let failed = spans.named("replica_handle_request Counter fails");
    assert_eq!((failed.status_code(), failed.events("exception").len()), ("ERROR", 1));
    assert_eq!(*spans.parent_of(failed).attribute("error.type"), "handler_failed");
    let late = spans.named("route_to_replica Counter never");
    assert_eq!(*late.attribute("error.type"), "timeout");
    assert!(spans.children_of(late).iter().all(|span| *span.attribute("error.type") == "timeout"));
}

#[test]
fn a_circle_whose_limits_are_all_taken_ends_by_its_queue_timeout_and_says_so() {
    let limits = "max_ongoing_requests = 3\nqueue_timeout = \"300ms\"";
    let served = Served::start(&[("circle", limits)]);
    assert!(served.get("/2").status(200).text().ends_with("the end"));
    served.get("/8").status(500);
    assert!(served.get("/2").status(200).text().ends_with("the end"), "no place was lost");
    served.cluster.stop().success();
    let spans = served.cluster.spans();
    spans.assert_whole(&[]);
    let waited = spans.only("the call without a place", |span| *span.attribute("error.type") == "unavailable");
    assert_eq!(waited.name(), "route_to_replica circle handle");
    let exception = spans.parent_of(waited).events("exception")[0].to_string();
    let reason = "no replica of deployment `circle` had a place within 300 ms (`queue_timeout`)";
    assert!(exception.contains(reason) && exception.contains("in a circle"), "{exception}");
}

#[test]
fn a_client_that_goes_cancels_the_calls_made_for_it() {
    let served = Served::start(&[("outer", ""), ("inner", "")]);
    let client = served.ask("/never", "", "");
    wait_until("the call to begin", || (in_flight(&served.cluster, "inner") == 1).then_some(()));
    drop(client);
    wait_until("the call to end", || (in_flight(&served.cluster, "inner") == 0).then_some(()));
    served.cluster.stop().success();
    let spans = served.cluster.spans();
    spans.assert_whole(&[]);
    for span in chain(&spans.iter().collect::<Vec<_>>()) {
        assert_eq!(
            (span.status_code(), span.attribute("tracer.outcome")),
            ("UNSET", &"client_gone".into()),
            "{}",
            span.name()
        );
    }
}

#[test]
fn a_task_calls_a_deployment_below_its_own_span() {
    let served = Served::start(&[("outer", ""), ("inner", "")]);
    served.cluster.submit("handlers:asks", &["\"/from/a/task\""]).success().stdout_contains("/from/a/task");
    served.cluster.stop().success();
    let spans = served.cluster.spans();
    spans.assert_whole(&[]);
    let handled = spans.named("replica_handle_request inner handle");
    assert_eq!(spans.parent_of(spans.parent_of(handled)).name(), "handlers.asks tracer.remote_worker");
}

#[test]
fn a_program_calls_deployments_and_the_calls_are_in_its_trace() {
    let served = Served::start(&[("Counter", ""), ("inner", "")]);
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let init = Init::new().temp_dir(served.cluster.temp_dir()).embedded(EmbeddedHead::Never).untraced();
    let program = init.parent(parent).init().expect("the head runs");
    let counter = program.deployment("main/Counter");
    assert_eq!(counter.call("add").arg(2).arg(40).send::<u64>(), Ok(42));
    let numbers: Result<Vec<u32>, _> = counter.call("count").arg(5).stream().expect("it answers").collect();
    assert_eq!(numbers, Ok(vec![1, 2, 3, 4, 5]));
    let error_type = |answer: Result<u64, tracer::DeploymentError>| answer.unwrap_err().error_type().to_owned();
    assert_eq!(error_type(counter.call("fails").send()), "core::num::error::ParseIntError");
    assert_eq!(error_type(counter.clone().timeout(Duration::from_millis(50)).call("never").send()), "timeout");
    let unknown = program.deployment("Conter").call("add").send::<u64>().unwrap_err();
    assert_eq!(unknown.to_string(), "there is no deployment `Conter`\n(hint: did you mean `Counter`?)");
    let answer = program.deployment("inner").request("POST", "/echo", &[], vec![b'x'; 1 << 20]).expect("it answers");
    assert_eq!((answer.status, answer.body.len()), (200, 1 << 20));
    drop((counter, program));
    served.cluster.stop().success();
    let spans = served.cluster.spans();
    spans.assert_whole(&["0x00f067aa0ba902b7"]);
    let handled = spans.named("replica_handle_request Counter add");
    assert_eq!(handled.trace_id(), format!("0x{}", &parent[3..35]));
    assert_eq!(handled.parent_id(), Some("0x00f067aa0ba902b7"));
}

/// Returns how many requests the replicas of a deployment have.
fn in_flight(cluster: &Cluster, deployment: &str) -> u64 {
    let status = cluster.tracer(&["serve", "status", "--format", "json"]).success().json();
    let replicas = status["services"][0]["replicas"].as_array().expect("it has replicas").clone();
    let of = replicas.iter().filter(|row| row["name"].as_str().is_some_and(|name| name.starts_with(deployment)));
    of.filter_map(|row| row["ongoing"].as_u64()).sum()
}

#[test]
fn an_application_that_asks_another_is_in_one_trace_with_it_by_handle_and_over_http() {
    let cluster = Cluster::builder().hook(HOOK).start();
    let example = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/storefront/service.toml");
    let example = fs::read_to_string(example).expect("the example has a service file");
    let file = cluster.file("service.toml");
    let deploy = |text: &str| {
        fs::write(&file, text).expect("the folder is ours");
        cluster.tracer(&["serve", "deploy", file.to_str().expect("it is text")]).success();
        let status = cluster.tracer(&["serve", "status", "--format", "json"]).success().json();
        status["services"][0]["url"].as_str().expect("it has a URL").trim_end_matches('/').to_owned()
    };
    let at_any_port = example.replacen("\n\n", "\n[http]\naddress = \"127.0.0.1:0\"\n\n", 1);
    let url = deploy(&at_any_port);
    // The port is kept, and the caller can be told of it.
    assert_eq!(deploy(&at_any_port.replace("http://127.0.0.1:8000", &url)), url);
    let served = Served { address: url.trim_start_matches("http://").to_owned(), cluster };
    for way in ["/by-handle", "/by-http"] {
        assert_eq!(served.get(&format!("{way}?item=tea")).status(200).text(), "tea costs 3.20\n", "{way}");
        assert_eq!(served.get(&format!("{way}?item=gold")).status(200).text(), "there is no gold\n", "{way}");
    }
    served.cluster.stop().success();
    let spans = served.cluster.spans();
    spans.assert_whole(&[]);
    let ways: [&[&str]; 2] = [
        &[
            "proxy_http_request by_handle POST /by-handle",
            "route_to_replica by_handle handle",
            "replica_handle_request by_handle handle",
            "route_to_replica Catalogue price",
            "replica_handle_request Catalogue price",
            "look up",
        ],
        &[
            "proxy_http_request by_http POST /by-http",
            "route_to_replica by_http handle",
            "replica_handle_request by_http handle",
            "GET",
            "proxy_http_request Catalogue GET /catalogue",
            "route_to_replica Catalogue handle",
            "replica_handle_request Catalogue handle",
            "look up",
        ],
    ];
    for way in ways {
        let roots = spans.all_named(way[0]);
        assert_eq!(roots.len(), 2, "{}", spans.describe());
        for root in roots {
            let of_trace: Vec<_> = spans.iter().filter(|span| span.trace_id() == root.trace_id()).collect();
            assert_eq!(of_trace.len(), way.len(), "{}", spans.describe());
            let mut parent = None;
            for name in way {
                let span = of_trace.iter().find(|span| span.name() == *name);
                let span = span.unwrap_or_else(|| panic!("no `{name}` in {}", spans.describe()));
                assert_eq!(span.parent_id(), parent, "the parent of `{name}`");
                parent = Some(span.span_id());
            }
        }
    }
}
