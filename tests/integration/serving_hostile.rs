//! Hostile clients of a service, with frames that others' libraries made: each has its documented answer, takes no memory to speak of, and
//! disturbs nobody else.

use std::fs;
use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::net::sockopt;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};

use crate::support::{Clients, Cluster, python_with, read_answer, skip};

/// Most memory that the proxy ever has, in KiB. A build for tests takes half of it with nothing to do.
const MEMORY_KIB: u64 = 96 << 10;

/// A service with a short answer at `/`, an echo at `/echo`, and at `/add` what reads a body before it answers.
struct Service {
    cluster: Cluster,
    address: SocketAddr,
    python: PathBuf,
}

impl Service {
    /// None, which skips the test, without a Python that has these modules. Time passes for clients as if a look took so many milliseconds.
    fn deploy(modules: &str, look_ms: u32) -> Option<Service> {
        Some(Service::deploy_with(python_with(modules)?, look_ms))
    }

    fn deploy_with(python: PathBuf, look_ms: u32) -> Service {
        let setting = format!("proxy_look_ms={look_ms}");
        let cluster = Cluster::builder().workers(1).env("TRACER_TEST_SETTING", setting).start();
        let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
        let address = port.expect("there is a free port");
        let file = cluster.file("service.toml");
        let text = format!(
            "name = \"shop\"\n[http]\naddress = \"{address}\"\n\
             [[applications]]\nroute_prefix = \"/\"\nimport_path = \"shop:hello\"\n\
             [[applications]]\nroute_prefix = \"/echo\"\nimport_path = \"shop:echo\"\n\
             [[applications]]\nroute_prefix = \"/add\"\nimport_path = \"shop:add\"\n"
        );
        fs::write(&file, text).expect("the folder is ours");
        cluster.tracer(&["serve", "deploy", file.to_str().expect("a plain name")]).success();
        Service { cluster, address, python }
    }

    /// Runs a hostile client to its end, and returns what it says.
    #[track_caller]
    fn run(&self, script: &str, what: &str) -> Vec<Value> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/python").join(script);
        let mut client: Command = self.cluster.program(&self.python);
        client.arg(script).arg(self.address.to_string()).arg(what);
        let text = self.cluster.spawn(client).wait_within(Duration::from_secs(120)).success().stdout_text();
        text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
    }

    fn proxy(&self) -> u64 {
        let status = self.cluster.tracer(&["serve", "status", "--format", "json"]).success().json();
        status["services"][0]["proxies"][0]["pid"].as_u64().expect("it runs")
    }

    /// Expects that the proxy is the one that it was, and never had more memory than it may.
    #[track_caller]
    fn assert_bounded(&self, proxy: u64) {
        assert_eq!(self.proxy(), proxy, "the proxy is another one");
        let status = fs::read_to_string(format!("/proc/{proxy}/status")).expect("it runs");
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux says it");
        let peak: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
        assert!(peak < MEMORY_KIB, "the proxy had {peak} KiB at its peak, expected less than {MEMORY_KIB}");
    }
}

#[test]
fn frames_of_http_2_that_are_wrong_have_the_answer_of_rfc_9113() {
    let Some(service) = Service::deploy("h2, hyperframe, hpack", 1000) else { return };
    let proxy = service.proxy();
    let cases = service.run("hostile_http2.py", "cases");
    let wrong: Vec<_> = cases.iter().filter(|case| case["is_right"] != json!(true)).collect();
    assert!(wrong.is_empty() && cases.len() > 60, "{} cases, of which are wrong: {wrong:#?}", cases.len());
    service.assert_bounded(proxy);
}

#[test]
fn floods_of_http_2_end_their_connection_take_no_memory_and_disturb_nobody() {
    let Some(service) = Service::deploy("h2, hyperframe, hpack", 100) else { return };
    let proxy = service.proxy();
    let others = Clients::start(service.address, 2, "/", 50);
    others.wait_for(20);
    let floods = service.run("hostile_http2.py", "floods");
    others.wait_for(20);
    let failed: Vec<_> = others.stop().into_iter().filter(|exchange| exchange.status() != Some(200)).collect();
    assert!(failed.is_empty(), "{failed:?}");
    service.assert_bounded(proxy);
    let answer = |name: &str| {
        let found = floods.iter().find(|flood| flood["case"] == name);
        found.unwrap_or_else(|| panic!("{name}: {floods:?}"))["answer"].clone()
    };
    let calm = json!(["goaway", "ENHANCE_YOUR_CALM"]);
    for (name, expected) in [
        ("rapid reset", [calm.clone(), json!(["closed"])]),
        ("CONTINUATION", [calm.clone(), json!(["closed"])]),
        ("empty CONTINUATION", [calm.clone(), json!(["closed"])]),
        ("empty DATA", [calm.clone(), json!(["closed"])]),
        ("HPACK bomb", [json!(["goes on", "431"]), calm.clone()]),
        ("PING", [json!(["closed"]), calm.clone()]),
        ("SETTINGS", [json!(["closed"]), calm.clone()]),
        ("requests whose answers nobody takes", [json!(["closed"]), calm]),
        ("PRIORITY", [json!(["goes on"]), json!(["goes on"])]),
        ("WINDOW_UPDATE", [json!(["goes on"]), json!(["goes on"])]),
        ("unknown frames", [json!(["goes on"]), json!(["goes on"])]),
    ] {
        assert!(expected.contains(&answer(name)), "{name}: {floods:#?}");
    }
}

/// Thirty looks are the time for a body, and for an answer that nobody takes; the connection goes on in both cases.
#[test]
fn clients_of_http_2_that_stop_are_told_and_what_else_they_ask_is_answered() {
    let Some(service) = Service::deploy("h2, hyperframe, hpack", 50) else { return };
    let ends = service.run("hostile_http2.py", "stalls");
    let found: Vec<_> = ends.iter().map(|end| [&end["case"], &end["end"], &end["status"], &end["error"]]).collect();
    let next = json!(["the next request of its connection", "whole", 200, null]);
    let expected = json!([
        ["a body that stops", "whole", 408, null],
        next,
        ["a body that stops after its answer has begun", "reset", 200, "INTERNAL_ERROR"],
        next,
        ["answers without a window", "reset", 200, "CANCEL"],
        ["a head that stops", "goaway", null, null],
        ["a connection with nothing to do", ["goaway", "NO_ERROR"], null, null],
        ["a preface that stops", "closed", null, null],
    ]);
    assert_eq!(json!(found), expected, "{ends:#?}");
}

#[test]
fn bytes_of_http_1_that_are_no_request_have_their_documented_answer() {
    let Some(service) = Service::deploy("h11", 1000) else { return };
    let proxy = service.proxy();
    let others = Clients::start(service.address, 1, "/", 50);
    let cases = service.run("hostile_http1.py", "cases");
    let wrong: Vec<_> = cases.iter().filter(|case| case["is_right"] != json!(true)).collect();
    assert!(wrong.is_empty() && cases.len() > 35, "{} cases, of which are wrong: {wrong:#?}", cases.len());
    others.wait_for(20);
    assert!(others.stop().iter().all(|exchange| exchange.status() == Some(200)));
    service.assert_bounded(proxy);
}

#[test]
fn clients_of_http_1_that_are_slow_have_the_time_that_is_documented() {
    let Some(service) = Service::deploy("h11", 50) else { return };
    let ends = service.run("hostile_http1.py", "stalls");
    let found: Vec<_> = ends.iter().map(|end| [&end["case"], &end["end"], &end["statuses"], &end["answer"]]).collect();
    let expected = json!([
        ["a head that stops", "closed", [408], null],
        ["a head of which a header comes now and then", null, null, "408"],
        ["a body that stops", "closed", [408], null],
        ["a chunk that stops", "closed", [408], null],
        ["an answer that nobody takes", "closed", null, null],
        ["a connection that says nothing", "closed", null, null],
        ["a connection with nothing more to do", "closed", [200], null],
    ]);
    assert_eq!(json!(found), expected, "{ends:#?}");
}

/// Connections that have nothing to do.
const IDLE: usize = 15_000;
/// Most memory of one of them, in bytes.
const IDLE_BYTES: u64 = 5 << 10;

/// Raises the limit on open files as far as it goes. False when it is not enough for so many.
fn may_open(files: u64) -> bool {
    let allowed = getrlimit(Resource::Nofile);
    for limit in [allowed.maximum.map(|maximum| maximum.max(files)), allowed.maximum] {
        if setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).is_ok() {
            break;
        }
    }
    getrlimit(Resource::Nofile).current.is_none_or(|current| current >= files)
}

/// Proportional memory of a process, in bytes.
fn memory(pid: u64) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("it runs");
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:")).expect("Linux says it");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// Half of them have said nothing yet, half have had an answer and get another one.
#[test]
fn thousands_of_connections_with_nothing_to_do_take_little_and_others_are_answered() {
    // A proxy leaves a quarter of its files for all else.
    if !may_open(IDLE as u64 * 4 / 3) {
        return skip("open files", format_args!("this process may not open {IDLE}"));
    }
    let service = Service::deploy_with(PathBuf::new(), 1000);
    let proxy = service.proxy();
    let connect = || {
        let stream = TcpStream::connect(service.address).expect("it is accepted");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("it is a socket");
        // The port is free at once when the test has ended.
        sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).expect("it is a socket");
        stream
    };
    let ask = |stream: &TcpStream| {
        let mut client = BufReader::new(stream);
        client.get_mut().write_all(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n").expect("it is connected");
        assert_eq!(read_answer(&mut client, false).expect("it answers").status(200).text(), "hello");
    };
    // What the first ones take is taken once.
    let first: Vec<_> = (0..64).map(|_| connect()).collect();
    first.iter().for_each(ask);
    let before = memory(proxy);
    let connections: Vec<_> = (0..IDLE - first.len()).map(|_| connect()).collect();
    connections.iter().step_by(2).for_each(ask);
    // The last one that said nothing is served, so all of them are there.
    ask(&connections[connections.len() - 1]);
    let each = memory(proxy).saturating_sub(before) / connections.len() as u64;
    assert!(each <= IDLE_BYTES, "{each} bytes for each connection, expected {IDLE_BYTES} at most");
    let open = fs::read_dir(format!("/proc/{proxy}/fd")).expect("it runs").count();
    assert!(open > IDLE, "{open} files are open for {IDLE} connections");
    first.iter().chain(connections.iter().step_by(2)).for_each(ask);
    assert_eq!(service.proxy(), proxy, "the proxy is another one");
}
