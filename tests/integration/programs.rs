//! Programs as deployments: their requests continue the trace, and a program and its replica live and die together.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Answer, Api, Ask, Cluster, HOOK, Run, kill, python_with, skip, wait_until};

/// A service of one program on a port of its own.
struct Service {
    cluster: Cluster,
    api: Api,
}

impl Service {
    fn start() -> Service {
        let cluster = Cluster::builder().workers(1).hook(HOOK).start();
        let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
        let address: SocketAddr = port.expect("there is a free port");
        Service { cluster, api: Api { address, token: String::new() } }
    }

    /// Deploys a command, with further keys of its deployment.
    fn deploy(&self, command: &[&str], further: &str) -> Run {
        let text = format!(
            "name = \"shop\"\n[http]\naddress = \"{}\"\n[[applications]]\n[[applications.deployments]]\n\
             name = \"Shop\"\ncommand = {}\n{further}\n",
            self.api.address,
            json!(command)
        );
        let file = self.cluster.file("service.toml");
        fs::write(&file, text).expect("the folder is ours");
        self.cluster.tracer(&["serve", "deploy", file.to_str().expect("a plain name")])
    }

    fn python(how: &[&str], place: &str, further: &str) -> Service {
        let service = Service::start();
        service.deploy(&[&["python3", &fixture("python/http_program.py"), place], how].concat(), further).success();
        service
    }

    fn ask(&self, method: &str, target: &str) -> Ask {
        self.api.bare(method, target).header("Host", "shop")
    }

    fn get(&self, target: &str) -> Answer {
        self.ask("GET", target).send()
    }

    fn log(&self) -> String {
        let folder = self.cluster.session_dir().join("logs/serve");
        let files = fs::read_dir(folder).expect("there is a folder of logs").flatten();
        let replicas = files.filter(|file| file.file_name().to_string_lossy().starts_with("replica-"));
        replicas.map(|file| fs::read_to_string(file.path()).expect("it is text")).collect()
    }
}

fn fixture(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name).display().to_string()
}

#[track_caller]
fn told(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{answer:?}");
    serde_json::from_slice(&answer.body).expect("the program answers in JSON")
}

#[test]
fn a_program_gets_requests_as_they_are_with_the_span_that_it_continues() {
    let own_sampler = "\nenv = { OTEL_TRACES_SAMPLER = \"parentbased_always_off\" }";
    for (place, env, sampler) in
        [("{socket}", "", "parentbased_always_on"), ("{port}", own_sampler, "parentbased_always_off")]
    {
        let service = Service::python(&[], place, &format!("health = \"/well\"{env}"));
        let asked = told(&service.get("/cart?of=me"));
        assert_eq!(asked["sampler"], sampler, "of what its environment says nothing, a request's trace decides");
        assert_eq!((&asked["method"], &asked["path"]), (&json!("GET"), &json!("/cart?of=me")));
        assert_eq!(asked["headers"]["host"], "shop");
        let parent = asked["headers"]["traceparent"].as_str().expect("there is a traceparent").to_owned();
        assert_eq!(service.get("/missing").status, 404);
        let head = service.ask("HEAD", "/cart").send();
        assert_eq!((head.status, head.body.len()), (200, 0));
        let body = "x".repeat(1 << 20);
        assert_eq!(service.ask("POST", "/cart").body(body.as_bytes()).send().body, body.as_bytes());
        assert!(service.get("/pieces").body.ends_with(b"999,"));
        // Replica and proxy write theirs each in their own time.
        let spans = service.cluster.wait_for_spans("the spans of the request", |spans| {
            let has_span = |id: &str| spans.iter().any(|span| span.span_id().ends_with(id));
            let replica = spans.iter().find(|span| span.span_id().ends_with(&parent[36..52]));
            replica.and_then(|span| span.parent_id()).is_some_and(has_span)
        });
        let span = spans.only("the innermost span", |span| span.span_id().ends_with(&parent[36..52]));
        assert_eq!(span.name(), "replica_handle_request Shop handle");
        assert_eq!(spans.parent_of(span).name(), "route_to_replica Shop handle");
        assert!(service.log().contains("begins"), "{}", service.log());
        service.cluster.tracer(&["serve", "shutdown"]).success();
        assert!(service.log().contains("asked to end"), "{}", service.log());
        service.cluster.stop().success();
        service.cluster.assert_nothing_runs();
    }
}

#[test]
fn a_program_that_dies_takes_its_requests_and_is_started_again() {
    let service = Service::python(&[], "{socket}", "");
    let before = told(&service.get("/"))["pid"].as_u64().expect("a pid");
    assert_eq!(service.get("/die").status, 502);
    let after = wait_until("another program answers", || {
        let answer = service.get("/");
        (answer.status == 200).then(|| told(&answer)["pid"].as_u64().expect("a pid"))
    });
    assert_ne!(before, after);
    kill(u32::try_from(after).expect("a pid"), Signal::KILL);
    wait_until("a third program answers", || {
        let answer = service.get("/");
        (answer.status == 200 && told(&answer)["pid"] != after).then_some(())
    });
    service.cluster.stop().success();
    let spans = service.cluster.spans();
    let asked = spans.only("the request that killed it", |span| {
        span.name().starts_with("proxy_http_request") && *span.attribute("url.path") == "/die"
    });
    let lost = spans.only("its span at the replica", |span| {
        span.trace_id() == asked.trace_id() && span.name().starts_with("replica_handle_request")
    });
    assert_eq!((lost.status_code(), lost.attribute("error.type")), ("ERROR", &json!("signal:9")));
    service.cluster.assert_nothing_runs();
}

#[test]
fn a_program_that_closes_the_connection_of_a_request_is_told_of_as_a_problem() {
    for place in ["{socket}", "{port}"] {
        let service = Service::python(&[], place, "");
        let before = told(&service.get("/"))["pid"].clone();
        let answer = service.get("/close");
        assert_eq!((answer.status, answer.header("content-type")), (502, "application/problem+json"), "{answer:?}");
        let problem: Value = serde_json::from_slice(&answer.body).expect("a problem is JSON");
        assert_eq!(problem["type"], "urn:tracer:problem:program-failed", "{problem}");
        assert_eq!(answer.header("tracer-outcome"), "", "{answer:?}");
        assert_eq!(told(&service.get("/"))["pid"], before, "the program itself goes on");
        let spans = service.cluster.wait_for_spans("both sides have recorded it", |spans| {
            let failed = spans.iter().filter(|span| *span.attribute("url.path") == "/close");
            failed.count() == 2
        });
        let kind = json!("program_failed");
        for span in spans.iter().filter(|span| *span.attribute("url.path") == "/close") {
            let said = ["error.type", "tracer.outcome"].map(|key| span.attribute(key));
            assert_eq!((span.status_code(), said), ("ERROR", [&kind, &kind]), "{span:?}");
        }
    }
}

#[test]
fn a_replica_that_is_killed_takes_its_program_along() {
    let service = Service::python(&[], "{socket}", "");
    let is_replica = |command: &str| command.split(' ').nth(1) == Some("replica");
    let processes = service.cluster.processes();
    let replica = processes.iter().find(|process| is_replica(&process.command)).expect("there is a replica");
    let before = told(&service.get("/"))["pid"].clone();
    kill(replica.pid, Signal::KILL);
    wait_until("another program answers", || {
        let answer = service.get("/");
        (answer.status == 200 && told(&answer)["pid"] != before).then_some(())
    });
    let is_program = |command: &str| command.contains("http_program.py");
    let programs = service.cluster.processes().iter().filter(|process| is_program(&process.command)).count();
    assert_eq!(programs, 1, "the first has gone with its replica");
    service.cluster.stop().success();
    service.cluster.assert_nothing_runs();
}

#[test]
fn a_program_that_does_not_start_is_refused_with_what_it_said() {
    let service = Service::start();
    let program = fixture("python/http_program.py");
    for (command, expected) in [
        (&["python3", &program, "{socket}", "broken"][..], "`python3` ended with exit code 3"),
        (&["python3", &program, "{socket}", "broken"], "no such thing as a shop"),
        (&["no-such-program", "{socket}"], "`no-such-program` could not be started"),
        (
            &["python3", &program, "{port}", "deaf"],
            "was not ready within `start_timeout`: waited for a connection to 127.0.0.1:",
        ),
    ] {
        service.deploy(command, "start_timeout = \"3s\"").status(1).stderr_contains(expected);
    }
    service.cluster.stop().success();
    service.cluster.assert_nothing_runs();
}

#[test]
fn one_line_serves_a_program() {
    let cluster = Cluster::traced();
    let program = fixture("python/http_program.py");
    let running = cluster.tracer_in_background(&[
        "serve",
        "run",
        "--address",
        "127.0.0.1:0",
        "--name",
        "greeter",
        "--",
        "python3",
        &program,
        "{socket}",
    ]);
    running.wait_for_stdout("http://");
    let url = running.stdout_text();
    let address = url.trim().strip_prefix("http://").and_then(|url| url.strip_suffix('/')).expect("a URL");
    let api = Api { address: address.parse().expect("an address"), token: String::new() };
    assert_eq!(told(&api.bare("GET", "/a").header("Host", "here").send())["path"], "/a");
    // The program's own name may be that of a wrapper.
    running.wait_for_stderr("(replica greeter#1");
    let service = cluster.tracer(&["serve", "status", "--format", "json"]).success().json()["services"][0].take();
    assert_eq!((&service["name"], &service["deployments"][0]["name"]), (&json!("greeter"), &json!("greeter")));
    running.signal(Signal::INT);
    running.wait().success();
}

#[test]
fn a_program_in_node_is_served() {
    let service = Service::start();
    if service.cluster.program("node").arg("--version").status().is_err() {
        return skip("node clients", "there is no node");
    }
    for place in ["{socket}", "{port}"] {
        service.deploy(&["node", &fixture("node/http_program.js"), place], "num_replicas = 2").success();
        let body = vec![7; 300_000];
        let asked = told(&service.ask("POST", "/cart").body(body).send());
        assert_eq!((&asked["method"], &asked["bytes"]), (&json!("POST"), &json!(300_000)));
        assert!(asked["headers"]["traceparent"].is_string(), "{asked}");
    }
    service.cluster.tracer(&["serve", "shutdown"]).success();
}

#[test]
fn a_program_that_knows_nothing_of_tracer_is_served_from_a_port() {
    let service = Service::start();
    fs::write(service.cluster.file("page.html"), "<p>hello").expect("the folder is ours");
    let folder = service.cluster.folder().display().to_string();
    let command = ["python3", "-m", "http.server", "--bind", "127.0.0.1", "--directory", &folder, "{port}"];
    service.deploy(&command, "health = \"/page.html\"\nnum_replicas = 2").success();
    for _ in 0..20 {
        // It closes each connection after its answer.
        let answer = service.get("/page.html");
        assert_eq!((answer.status, answer.text().as_str()), (200, "<p>hello"));
    }
    assert_eq!(service.get("/none").status, 404);
    assert_eq!(service.ask("DELETE", "/page.html").send().status, 501, "the program's own answer");
    service.cluster.stop().success();
    service.cluster.assert_nothing_runs();
}

#[test]
fn what_a_program_has_started_ends_with_its_replica_and_counts_for_its_memory() {
    let cluster = Cluster::builder().workers(1).hook(HOOK).arg("--worker-memory=256MiB").start();
    let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    let service = Service { cluster, api: Api { address: port.expect("there is a free port"), token: String::new() } };
    // A shell between the replica and the server, and a child beside it that has a session of its own.
    let program = fixture("python/http_program.py");
    let script = "setsid sleep 100000 & python3 \"$0\" \"$1\" & wait $!";
    let command = ["sh", "-c", script, &program, "{socket}"];
    service.deploy(&command, "").success();
    let sleeps =
        || service.cluster.processes().iter().filter(|process| process.command.starts_with("sleep 100000")).count();
    assert_eq!(sleeps(), 1);
    let before = told(&service.get("/"))["pid"].clone();
    let replicas = service.cluster.tracer(&["list", "replicas", "--format", "json"]).success().json();
    let replica = replicas["replicas"][0]["pid"].as_u64().expect("it has a pid");
    kill(u32::try_from(replica).expect("a pid"), Signal::KILL);
    wait_until("another program answers, and what the first has started is gone", || {
        let answer = service.get("/");
        (answer.status == 200 && told(&answer)["pid"] != before && sleeps() == 1).then_some(())
    });
    // The server takes more memory than the replica and all of its processes may have.
    let answer = service.get("/eat");
    assert_eq!(answer.status, 502);
    wait_until("another program answers", || (service.get("/").status == 200).then_some(()));
    let log = service.cluster.head_log();
    assert!(log.contains("replica Shop#2") && log.contains("256 MiB"), "{log}");
    service.cluster.stop().success();
    service.cluster.assert_nothing_runs();
}

#[test]
fn a_fastapi_application_continues_the_trace_with_no_change() {
    let modules = "fastapi, uvicorn, opentelemetry.instrumentation.fastapi, opentelemetry.exporter.otlp.proto.http";
    let Some(python) = python_with(modules) else { return };
    let cluster = Cluster::builder().workers(1).hook(HOOK).arg("--otlp=127.0.0.1:0").start();
    let status = cluster.status();
    let token = fs::read_to_string(status["http"]["otlp_token_path"].as_str().expect("a path")).expect("a token");
    let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    let service = Service { api: Api { address: port.expect("there is a free port"), token: String::new() }, cluster };
    let run =
        "import sys; from opentelemetry.instrumentation.auto_instrumentation import run; sys.argv[0] = 'run'; run()";
    let python = python.display().to_string();
    let command = [&python, "-c", run, &python, "-m", "uvicorn", "shop:app", "--uds", "{socket}"];
    let receiver = Api::of(&service.cluster).address;
    let further = format!(
        "health = \"/items/lamp\"\ncwd = {}\n[applications.deployments.env]\nOTEL_SERVICE_NAME = \"shop\"\n\
         OTEL_EXPORTER_OTLP_PROTOCOL = \"http/protobuf\"\nOTEL_EXPORTER_OTLP_ENDPOINT = \"http://{receiver}\"\n\
         OTEL_EXPORTER_OTLP_HEADERS = \"authorization=Bearer%20{}\"\nOTEL_BSP_SCHEDULE_DELAY = \"100\"\n\
         OTEL_METRICS_EXPORTER = \"none\"\nOTEL_LOGS_EXPORTER = \"none\"\n",
        json!(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/fastapi_shop")),
        token.trim_end()
    );
    service.deploy(&command, &further).success();
    let answer = service.get("/items/chair");
    assert_eq!(told(&answer), json!({"name": "chair", "stock": 4}));
    assert_eq!(service.get("/lines?count=4").text(), "0\n1\n2\n3\n");
    assert_eq!(service.get("/items/sofa").status, 404);
    let trace = answer.header("traceresponse").split('-').nth(1).expect("it has a trace").to_owned();
    let spans = wait_until("the application's spans are there", || {
        let shown = service.cluster.tracer(&["trace", "show", &trace, "--format", "json"]).success().json();
        let spans = shown["spans"].as_array().expect("spans").clone();
        spans.iter().any(|span| span["name"] == "GET /items/{name}").then_some(spans)
    });
    let named =
        |name: &str| spans.iter().find(|span| span["name"] == name).unwrap_or_else(|| panic!("{name}: {spans:?}"));
    let (own, replica) = (named("GET /items/{name}"), named("replica_handle_request Shop handle"));
    assert_eq!(own["parent_id"], replica["context"]["span_id"], "{spans:?}");
    assert_eq!(own["resource"]["attributes"]["service.name"], "shop");
}
