//! Services that change again and again under constant load: no client sees anything of it.

use std::net::{SocketAddr, TcpListener};

use serde_json::Value;

use crate::support::{Clients, Cluster, Exchange, module_folder};

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
        let cluster = Cluster::builder().workers(1).hook("local_tmp_tracing:setup_tracing").start();
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
