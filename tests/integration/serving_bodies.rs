//! Bodies of requests and answers: as large as they come, both ways at once, through handlers in Rust and in C.

use std::fs;
use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Cluster, HOOK, compile_c, read_answer, read_chunk, read_head, wait_until};

/// Deadline of a piece of an answer. Generous: it is reached only by a test that fails.
const LIMIT: Duration = Duration::from_secs(60);
/// Bytes of a body that is larger than the memory of everybody on its way.
const LARGE: usize = 1 << 30;
/// Bytes that are written and compared at once.
const BLOCK: usize = 64 << 10;
/// Most memory that a process on the way ever has, in KiB. A build for tests takes half of it with nothing to do.
const MEMORY_KIB: u64 = 96 << 10;

struct Service {
    cluster: Cluster,
    address: SocketAddr,
}

impl Service {
    /// Serves a handler on a free port.
    #[track_caller]
    fn of(handler: &str, deployment: &str) -> Service {
        let cluster = Cluster::builder().workers(1).hook(HOOK).start();
        compile_c("examples/deployment_c/deployment_c.c", &cluster.file("libdeployment_c.so"));
        let file = cluster.file("service.toml");
        let text = format!(
            "name = \"bodies\"\n[http]\naddress = \"127.0.0.1:0\"\n[[applications]]\nimport_path = \"{handler}\"\n\
             [[applications.deployments]]\nimport_path = \"{handler}\"\n{deployment}\n"
        );
        fs::write(&file, text).expect("the folder is ours");
        cluster.tracer(&["serve", "deploy", file.to_str().expect("it is text")]).success();
        let mut service = Service { cluster, address: SocketAddr::from(([127, 0, 0, 1], 0)) };
        let url = service.report()["url"].as_str().expect("it has a URL").to_owned();
        service.address = url.trim_start_matches("http://").trim_end_matches('/').parse().expect("an address");
        service
    }

    fn report(&self) -> Value {
        self.cluster.tracer(&["serve", "status", "--format", "json"]).success().json()["services"][0].take()
    }

    fn connect(&self) -> BufReader<TcpStream> {
        let stream = TcpStream::connect(self.address).expect("it is served");
        stream.set_read_timeout(Some(LIMIT)).expect("it is a socket");
        BufReader::with_capacity(BLOCK, stream)
    }

    /// Asks with a whole request, and returns the answer's text.
    #[track_caller]
    fn ask(&self, request: &str, status: u16) -> String {
        let mut client = self.connect();
        client.get_mut().write_all(request.as_bytes()).expect("it is connected");
        read_answer(&mut client, false).expect("it answers").status(status).text()
    }

    /// Returns the most memory that the replica and the proxy ever had, in KiB, each with its role.
    fn memory(&self) -> Vec<(&'static str, u64)> {
        let report = self.report();
        let of = |role, list: &str| {
            let pid = report[list][0]["pid"].as_u64().expect("it runs");
            let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
            let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux says it");
            (role, peak.trim().trim_end_matches(" kB").parse().expect("a number"))
        };
        vec![of("replica", "replicas"), of("proxy", "proxies")]
    }
}

/// The block of a body at an index: so no block can be taken for another.
fn block(index: usize) -> Vec<u8> {
    (index as u64).to_le_bytes().repeat(BLOCK / 8)
}

/// Sends a large body and compares what comes back with it, as it comes.
#[track_caller]
fn assert_large_body_comes_back(service: &Service) {
    let mut client = service.connect();
    let mut writer = client.get_ref().try_clone().expect("it is a socket");
    let sender = thread::spawn(move || {
        let head = format!("POST /echo HTTP/1.1\r\nhost: bodies\r\ncontent-length: {LARGE}\r\n\r\n");
        writer.write_all(head.as_bytes())?;
        (0..LARGE / BLOCK).try_for_each(|index| writer.write_all(&block(index)))
    });
    let (status, headers) = read_head(&mut client).expect("it answers");
    assert_eq!(status, 200, "{headers:?}");
    let mut received = Vec::new();
    let mut index = 0;
    while let Some(chunk) = read_chunk(&mut client).expect("the body comes") {
        received.extend_from_slice(&chunk);
        let mut compared = 0;
        while received.len() - compared >= BLOCK {
            assert!(received[compared..compared + BLOCK] == block(index), "block {index} is another");
            (index, compared) = (index + 1, compared + BLOCK);
        }
        received.drain(..compared);
    }
    assert_eq!((index, received.len()), (LARGE / BLOCK, 0));
    sender.join().expect("it ends").expect("all is taken");
    for (role, peak) in service.memory() {
        assert!(peak < MEMORY_KIB, "the {role} had {peak} KiB at its peak, expected less than {MEMORY_KIB}");
    }
}

#[test]
fn a_gibibyte_each_way_at_once_takes_no_memory_to_speak_of() {
    assert_large_body_comes_back(&Service::of("shop:echo", ""));
}

#[test]
fn a_handler_in_c_gives_a_gibibyte_back_as_it_comes() {
    assert_large_body_comes_back(&Service::of("./libdeployment_c.so:echo", ""));
}

#[test]
fn a_deployment_in_c_answers_with_its_routes_and_says_that_it_is_well() {
    let service = Service::of("./libdeployment_c.so:echo", "health_check_period = \"100ms\"");
    let hello = service.ask("GET /hello/Ada HTTP/1.1\r\nhost: bodies\r\n\r\n", 200);
    assert_eq!(hello, "Hello, Ada, from replica echo#1.\n");
    // The body of a request that is answered without it is passed over.
    let elsewhere = service.ask("POST /nowhere HTTP/1.1\r\nhost: bodies\r\ncontent-length: 3\r\n\r\nabc", 404);
    assert_eq!(elsewhere, "GET /hello/NAME or POST /echo\n");
    let trailers = "POST /echo HTTP/1.1\r\nhost: bodies\r\nte: trailers\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n\
                    4\r\nbody\r\n0\r\nx-sum: 7\r\n\r\n";
    assert_eq!(service.ask(trailers, 200), "body");
    let spans = service.cluster.wait_for_spans("three requests are recorded", |spans| {
        let are_all = |name: &str| spans.iter().filter(|span| span.name().starts_with(name)).count() == 3;
        are_all("replica_handle_request") && are_all("route_to_replica") && are_all("proxy_http_request")
    });
    let routes: Vec<_> = spans
        .iter()
        .filter(|span| span.name().starts_with("replica_handle_request"))
        .map(|span| span.attribute("http.route").clone())
        .collect();
    assert!(routes.contains(&json!("/hello/{name}")) && routes.contains(&json!("/echo")), "{routes:?}");
    spans.assert_whole(&[]);
}

#[test]
fn a_client_that_leaves_amid_its_body_costs_a_handler_in_c_nothing() {
    let service = Service::of("./libdeployment_c.so:echo", "max_ongoing_requests = 2");
    for _ in 0..8 {
        let mut client = service.connect();
        let head = "POST /echo HTTP/1.1\r\nhost: bodies\r\ncontent-length: 100000000\r\n\r\nthe beginning";
        client.get_mut().write_all(head.as_bytes()).expect("it is connected");
        let (status, _) = read_head(&mut client).expect("it answers");
        assert_eq!(status, 200);
        client.get_ref().shutdown(Shutdown::Both).expect("it is connected");
    }
    // There is room again: each of those was ended.
    let hello = service.ask("GET /hello/Eve HTTP/1.1\r\nhost: bodies\r\n\r\n", 200);
    assert_eq!(hello, "Hello, Eve, from replica echo#1.\n");
    wait_until("nothing is in flight", || (service.report()["replicas"][0]["ongoing"] == 0).then_some(()));
    let spans = service.cluster.wait_for_spans("nine requests are recorded", |spans| {
        let are_all = |name: &str| spans.iter().filter(|span| span.name().starts_with(name)).count() == 9;
        are_all("replica_handle_request") && are_all("route_to_replica") && are_all("proxy_http_request")
    });
    spans.assert_whole(&[]);
    // Not one byte of what was not sent is waited for.
    let mut rest = Vec::new();
    let mut client = service.connect();
    client
        .get_mut()
        .write_all(b"GET /hello/x HTTP/1.1\r\nhost: bodies\r\nconnection: close\r\n\r\n")
        .expect("it is connected");
    client.read_to_end(&mut rest).expect("it is closed");
    assert!(rest.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&rest));
}

/// Clients that read slowly, and the most memory that each may take of the proxy: its window, and what a connection has besides.
const SLOW: usize = 40;
const SLOW_BYTES: u64 = 358 << 10;
/// Memory that they share: that which lanes are read into, and the window of a fast client.
const SHARED_BYTES: u64 = 6 << 20;

#[test]
fn a_client_that_reads_a_long_answer_slowly_takes_no_more_than_its_window_of_the_proxy() {
    let service = Service::of("handlers:app", "max_ongoing_requests = 100");
    let proxy = service.report()["proxies"][0]["pid"].as_u64().expect("it runs");
    let memory = || {
        let status = fs::read_to_string(format!("/proc/{proxy}/status")).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("the kernel says it");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    };
    let before = memory();
    let ask = |mebibytes: u64| {
        let mut client = service.connect();
        write!(client.get_mut(), "GET /long?{mebibytes} HTTP/1.1\r\nHost: test\r\n\r\n").expect("it is connected");
        client
    };
    let mut slow: Vec<_> = (0..SLOW).map(|_| ask(1000)).collect();
    // More than the kernel holds for each of them.
    let (rounds, mut most, mut part) = (24, 0, vec![0; 512 << 10]);
    for _ in 0..rounds {
        for client in &mut slow {
            client.read_exact(&mut part).expect("it goes on");
        }
        // Others are as quick as ever, and what comes for them shares memory with what waits for the slow ones.
        let mut fast = ask(16);
        read_head(&mut fast).expect("it answers");
        let mut bytes = 0;
        while let Some(piece) = read_chunk(&mut fast).expect("it is whole") {
            bytes += piece.len();
        }
        assert_eq!(bytes, 16 << 20);
        most = memory().max(most);
    }
    let each = most.saturating_sub(before + SHARED_BYTES) / SLOW as u64;
    assert!(each <= SLOW_BYTES, "{each} bytes for each slow client, expected {SLOW_BYTES} at most");
}
