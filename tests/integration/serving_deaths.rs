//! Services whose processes are killed and changed while clients ask: no whole answer without its whole trace, no death without its spans, no
//! change that a client sees.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};

use rustix::process::Signal;

use crate::support::{Clients, Cluster, Exchange, Outcome, Random, Span, kill, wait_until};

/// Clients that ask at the same time.
const CLIENTS: usize = 8;
/// The variable that says how often processes are killed.
const KILLS: &str = "TRACER_SERVE_KILLS";

/// A service of one deployment on a port of its own.
struct Service {
    cluster: Cluster,
    address: SocketAddr,
}

impl Service {
    fn deploy(replicas: u32) -> Service {
        let cluster = Cluster::builder().workers(1).hook("local_tmp_tracing:setup_tracing").start();
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
        let service = Service { cluster, address: port };
        service.deploy_again(replicas, "");
        service
    }

    fn deploy_again(&self, replicas: u32, further: &str) {
        let text = format!(
            "name = \"shop\"\n[http]\naddress = \"{}\"\n[[applications]]\nimport_path = \"shop:hello\"\n\
             [[applications.deployments]]\nimport_path = \"shop:hello\"\nnum_replicas = {replicas}\n{further}\n",
            self.address
        );
        let file = self.cluster.file("service.toml");
        std::fs::write(&file, text).unwrap();
        self.cluster.tracer(&["serve", "deploy", file.to_str().unwrap()]).success();
    }

    /// Returns the processes of a role: `proxy` or `replica`.
    fn pids(&self, role: &str) -> Vec<u32> {
        let is_it = |command: &str| command.split(' ').nth(1) == Some(role);
        self.cluster.processes().iter().filter(|process| is_it(&process.command)).map(|process| process.pid).collect()
    }

    /// Kills a process of a role, and waits until another one is in its place.
    fn kill_one(&self, role: &str, random: &mut Random) {
        let before = self.pids(role);
        let victim = *random.choose(&before).expect("there is one");
        kill(victim, Signal::KILL);
        wait_until(&format!("another {role} is in place of {victim}"), || {
            let now = self.pids(role);
            (now.len() == before.len() && !now.contains(&victim)).then_some(())
        });
    }

    fn kills(&self) -> u64 {
        std::env::var(KILLS).map_or(4, |count| count.parse().expect("a number of kills"))
    }

    /// Returns the spans of each trace, once the head has finished those of the dead.
    fn traces(&self) -> HashMap<String, Vec<Span>> {
        self.cluster.stop().success();
        let spans = self.cluster.spans();
        assert!(spans.torn_lines.is_empty(), "lines that are no spans: {:?}", spans.torn_lines);
        let mut traces: HashMap<String, Vec<Span>> = HashMap::new();
        for span in spans.spans {
            traces.entry(span.trace_id().to_owned()).or_default().push(span);
        }
        traces
    }
}

fn named<'a>(trace: &'a [Span], name: &str) -> Vec<&'a Span> {
    trace.iter().filter(|span| span.name().starts_with(name)).collect()
}

/// Expects the spans of a request of which a client has the whole answer.
#[track_caller]
fn assert_whole(exchange: &Exchange, status: u16, traces: &HashMap<String, Vec<Span>>) {
    let trace = traces.get(&exchange.trace_id).unwrap_or_else(|| panic!("no spans of {exchange:?}"));
    let [proxy] = named(trace, "proxy_http_request")[..] else {
        panic!("not one proxy's span of {exchange:?}: {trace:?}")
    };
    assert_eq!(proxy.parent_id(), Some(&*exchange.span_id));
    assert_eq!(*proxy.attribute("http.response.status_code"), status);
    let routes = named(trace, "route_to_replica");
    assert!(!routes.is_empty(), "{trace:?}");
    assert!(routes.iter().all(|route| route.parent_id() == Some(proxy.span_id())), "{trace:?}");
    let handled = named(trace, "replica_handle_request");
    for span in &handled {
        assert!(routes.iter().any(|route| span.parent_id() == Some(route.span_id())), "{trace:?}");
    }
    let killed = |span: &&&Span| *span.attribute("error.type") == "signal:9";
    match status {
        200 => {
            assert_eq!(handled.iter().filter(|span| span.status_code() == "UNSET").count(), 1, "{trace:?}");
            assert_eq!(proxy.status_code(), "UNSET", "{trace:?}");
        }
        502 => {
            // It may have died between the end of the span and the last frame of the answer.
            let has_ended = |span: &&&Span| span.status_code() == "UNSET";
            let begun = handled.iter().filter(|span| killed(span) || has_ended(span)).count();
            assert_eq!((begun, handled.len()), (1, 1), "{trace:?}");
            assert_eq!(*proxy.attribute("error.type"), "replica_lost", "{trace:?}");
        }
        other => panic!("the answer has the status {other}: {exchange:?}"),
    }
    let mut ids: Vec<_> = trace.iter().map(Span::span_id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), trace.len(), "a span is there twice: {trace:?}");
}

#[test]
fn whole_answers_have_whole_traces_while_replicas_are_killed() {
    let service = Service::deploy(2);
    let mut random = Random::of_test(&service.cluster);
    let clients = Clients::start(service.address, CLIENTS, "/", 50);
    for _ in 0..service.kills() {
        clients.wait_for(100 + random.below(200));
        service.kill_one("replica", &mut random);
    }
    clients.wait_for(200);
    let exchanges = clients.stop();
    let traces = service.traces();
    for exchange in &exchanges {
        let Outcome::Whole(answer) = &exchange.outcome else {
            panic!("a replica's death broke a connection: {exchange:?}")
        };
        assert_whole(exchange, answer.status, &traces);
    }
    let lost = exchanges.iter().filter(|exchange| exchange.status() == Some(502)).count() as u64;
    assert!(lost <= service.kills() * CLIENTS as u64, "{lost} requests were lost");
}

#[test]
fn whole_answers_have_whole_traces_while_the_proxy_is_killed() {
    let service = Service::deploy(1);
    let mut random = Random::of_test(&service.cluster);
    let clients = Clients::start(service.address, CLIENTS, "/", 50);
    for _ in 0..service.kills() {
        clients.wait_for(100 + random.below(200));
        service.kill_one("proxy", &mut random);
    }
    clients.wait_for(200);
    let exchanges = clients.stop();
    let traces = service.traces();
    for exchange in &exchanges {
        match &exchange.outcome {
            Outcome::Whole(answer) => assert_whole(exchange, answer.status, &traces),
            Outcome::Refused => panic!("a connection was refused while the proxy was away"),
            Outcome::Broken(_) => {}
        }
    }
    let broken = exchanges.iter().filter(|exchange| exchange.status().is_none()).count() as u64;
    assert!(broken <= service.kills() * CLIENTS as u64, "{broken} connections broke");
    // The spans of requests that were in a killed proxy say so.
    let proxies = traces.values().flat_map(|trace| named(trace, "proxy_http_request"));
    for span in proxies.filter(|span| span.status_code() == "ERROR") {
        assert_eq!(*span.attribute("error.type"), "signal:9", "{span:?}");
    }
}

#[test]
fn clients_see_nothing_of_changes_of_counts_and_settings() {
    let service = Service::deploy(1);
    let clients = Clients::start(service.address, CLIENTS, "/", 20);
    for (replicas, further) in [
        (2, ""),
        (1, ""),
        (1, "env = { COLOUR = \"green\" }"),
        (2, "env = { COLOUR = \"blue\" }"),
        (1, "max_ongoing_requests = 50"),
    ] {
        clients.wait_for(100);
        service.deploy_again(replicas, further);
    }
    clients.wait_for(100);
    let exchanges = clients.stop();
    let failed: Vec<_> = exchanges.iter().filter(|exchange| exchange.status() != Some(200)).collect();
    assert!(failed.is_empty(), "{} of {} requests failed: {failed:?}", failed.len(), exchanges.len());
    let traces = service.traces();
    exchanges.iter().for_each(|exchange| assert_whole(exchange, 200, &traces));
}
