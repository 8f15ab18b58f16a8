//! Services that change again and again under constant load: no client sees anything of it.

use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use serde_json::Value;

use crate::support::{Clients, Cluster, Exchange, Span, module_folder, read_answer, wait_until};

/// The variable that says how many changes there are.
const CHANGES: &str = "TRACER_SERVE_CHANGES";
/// Changes in a run of all tests: each kind once.
const FEW: u64 = 7;

/// A service with a deployment that answers at once and one that streams for a second, from a library of its own.
struct Changing {
    cluster: Cluster,
    address: SocketAddr,
    /// Builds of the library so far.
    builds: u64,
}

impl Changing {
    fn start() -> Changing {
        Changing::start_in(Cluster::builder().workers(1).hook("local_tmp_tracing:setup_tracing").start())
    }

    fn start_in(cluster: Cluster) -> Changing {
        let address = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
        let mut changing = Changing { cluster, address, builds: 0 };
        changing.build();
        changing.deploy("", 1, "");
        changing
    }

    /// Puts another build of the library in the place of the last one.
    fn build(&mut self) {
        self.builds += 1;
        let mut library = std::fs::read(module_folder().join("libshop.so")).unwrap();
        // Behind its end nobody looks, save for what tells builds apart.
        library.extend_from_slice(&self.builds.to_ne_bytes());
        let next = self.cluster.file("libown_shop.so.next");
        std::fs::write(&next, library).unwrap();
        std::fs::rename(next, self.cluster.file("libown_shop.so")).unwrap();
    }

    fn deploy(&self, tracing: &str, replicas: u32, further: &str) {
        let text = format!(
            "name = \"shop\"\n[http]\naddress = \"{}\"\n[tracing]\n{tracing}\n\
             [[applications]]\nimport_path = \"./libown_shop.so:hello\"\n\
             [[applications.deployments]]\nimport_path = \"./libown_shop.so:hello\"\nnum_replicas = {replicas}\n{further}\n\
             [[applications]]\nroute_prefix = \"/count\"\nimport_path = \"./libown_shop.so:count\"\n",
            self.address
        );
        let file = self.cluster.file("service.toml");
        std::fs::write(&file, text).unwrap();
        self.cluster.tracer(&["serve", "deploy", file.to_str().unwrap()]).success();
    }

    fn change(&mut self, number: u64) {
        match number % FEW {
            0 => {
                self.build();
                self.deploy("", 1, "");
            }
            1 => self.deploy("", 3, ""),
            2 => self.deploy("", 1, "max_ongoing_requests = 20"),
            3 => drop(self.cluster.tracer(&["serve", "rollback"]).success()),
            // Processes that trace no more are other ones, the proxy too.
            4 => self.deploy("enabled = false", 1, "max_ongoing_requests = 50"),
            5 => self.deploy("", 2, "env = { COLOUR = \"blue\" }"),
            _ => self.deploy("sampling_ratio = 0.5", 1, "max_queued_requests = 500"),
        }
    }

    fn proxies(&self) -> Value {
        self.cluster.tracer(&["serve", "status", "--format", "json"]).success().json()["services"][0]["proxies"].take()
    }
}

fn failed(exchanges: &[Exchange]) -> Vec<&Exchange> {
    exchanges.iter().filter(|exchange| exchange.status() != Some(200)).collect()
}

#[test]
fn changes_of_every_kind_in_a_row_under_constant_load_fail_no_request() {
    let mut service = Changing::start();
    let changes = std::env::var(CHANGES).map_or(FEW, |count| count.parse().expect("a number of changes"));
    let kept = Clients::start(service.address, 4, "/", usize::MAX);
    let renewed = Clients::start(service.address, 2, "/", 5);
    let streams = Clients::start(service.address, 3, "/count?events=12", 3);
    // It asks once after each change, on a connection that has had nothing to do meanwhile.
    let mut idle = Clients::at_rest(service.address, "/");
    let first = service.proxies();
    for number in 0..changes {
        assert_eq!(idle.ask().status(), Some(200), "before change {number}");
        let before = service.proxies();
        kept.wait_for(50);
        service.change(number);
        let exchange = idle.ask();
        let proxies = service.proxies();
        assert_eq!(exchange.status(), Some(200), "after change {number}: {exchange:?}, {before} and then {proxies}");
    }
    let last = service.proxies().as_array().and_then(|proxies| Some(proxies.last()?["pid"].clone()));
    assert_ne!(last.as_ref(), Some(&first[0]["pid"]), "there was another proxy");
    streams.wait_for(3);
    for (kind, clients) in [("kept", kept), ("renewed", renewed), ("streams", streams)] {
        let exchanges = clients.stop();
        let failed = failed(&exchanges);
        assert!(failed.is_empty(), "{kind}: {} of {} requests failed: {failed:?}", failed.len(), exchanges.len());
        eprintln!("{kind}: {} requests, none failed", exchanges.len());
    }
}

/// Asks once for a trace that begins at the service, and returns whether it is sampled.
fn is_sampled(address: SocketAddr) -> bool {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(format!("GET / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
    let answer = read_answer(&mut BufReader::new(stream), false).unwrap();
    assert_eq!(answer.status, 200);
    let flags = answer.header("traceresponse").rsplit('-').next().and_then(|flags| u8::from_str_radix(flags, 16).ok());
    flags.is_some_and(|flags| flags & 1 == 1)
}

#[test]
fn tracing_settings_that_change_under_load_reach_the_processes_and_fail_no_request() {
    let cluster = Cluster::builder().workers(1).hook("local_tmp_tracing:setup_tracing");
    let cluster = cluster.env("EXPORTED_DIR", "arrived").env("OTEL_BSP_SCHEDULE_DELAY", "20").start();
    let service = Changing::start_in(cluster);
    let clients = Clients::start(service.address, 4, "/", 20);
    assert!(is_sampled(service.address));
    service.deploy("sampling_ratio = 0.0", 1, "");
    assert!(!is_sampled(service.address), "the ratio counts from the end of the deploy on");
    service.deploy("sampling_ratio = 1.0", 1, "");
    assert!(is_sampled(service.address));
    service.deploy("exporter = \"exporters:processors\"", 1, "");
    let arrived = service.cluster.file("arrived");
    wait_until("spans of proxy and replica arrive at the exporter", || {
        clients.wait_for(1);
        let files = std::fs::read_dir(&arrived).into_iter().flatten().flatten();
        let text: String = files.filter_map(|file| std::fs::read_to_string(file.path()).ok()).collect();
        (text.contains("proxy_http_request") && text.contains("replica_handle_request")).then_some(())
    });
    service.deploy("enabled = false", 1, "");
    let tracing = service.proxies().as_array().and_then(|proxies| Some(proxies.last()?["tracing"].clone()));
    assert_eq!(tracing, Some("none".into()));
    clients.wait_for(50);
    let exchanges = clients.stop();
    let failed = failed(&exchanges);
    assert!(failed.is_empty(), "{} of {} requests failed: {failed:?}", failed.len(), exchanges.len());
    // Each process has its file under its name.
    let links = std::fs::read_dir(service.cluster.session_dir().join("logs/serve/spans")).unwrap().flatten();
    let names: Vec<_> = links.filter_map(|link| link.file_name().into_string().ok()).collect();
    for name in ["proxy-shop-1.json", "proxy-shop-4.json", "replica-shop-hello-1.json"] {
        assert!(names.iter().any(|found| found == name), "{name} is not among {names:?}");
    }
    service.cluster.stop().success();
    let spans = service.cluster.spans();
    let of_service = |span: &&Span| span.name().starts_with("replica_") || span.name().starts_with("proxy_");
    assert!(spans.iter().filter(of_service).count() > 50);
    let named = |span: &Span| *span.resource_attribute("service.name") == "shop";
    assert!(spans.iter().filter(of_service).all(named), "the service's name is that of its file");
}
