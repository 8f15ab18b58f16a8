//! Services whose processes are killed and changed while clients ask: no whole answer without its whole trace, no death without its spans, no
//! change that a client sees.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::net::{SocketAddr, TcpListener};

use rustix::process::Signal;

use crate::support::{Clients, Cluster, Exchange, HOOK, Outcome, Random, Span, kill, wait_until};

/// Clients that ask at the same time.
pub(super) const CLIENTS: usize = 8;
/// The variable that says how often processes are killed.
const KILLS: &str = "TRACER_SERVE_KILLS";
/// The variable that says how many requests are asked while memory is watched.
const REQUESTS: &str = "TRACER_SERVE_REQUESTS";

/// Points in a replica at which one is killed, and what the client of that request hears then.
const REPLICA_POINTS: [(&str, &[u16]); 5] = [
    ("handling_span_begun", &[200]),
    ("handling_claimed", &[502]),
    ("handler_answered", &[502]),
    ("handling_span_ended", &[502]),
    ("handling_written", &[200, 502]),
];
/// Points in the proxy at which it is killed: each breaks the connection, or comes after the last byte.
const PROXY_POINTS: [&str; 6] =
    ["request_begun", "request_placed", "request_sent", "request_ending", "request_ended", "answer_written"];

/// A service of one deployment on a port of its own.
pub(super) struct Service {
    pub(super) cluster: Cluster,
    pub(super) address: SocketAddr,
    import_path: &'static str,
}

impl Service {
    pub(super) fn deploy(replicas: u32) -> Service {
        Service::deploy_to(Cluster::builder().workers(1).hook(HOOK).start(), "shop:hello", replicas)
    }

    /// Deploys it to a head of whose processes the first to come to `point` for the `time`th time kills itself.
    fn deploy_with_a_kill_at(point: &str, time: u64, replicas: u32) -> Service {
        let cluster = Cluster::builder().workers(1).hook(HOOK).build();
        cluster.note(format!("a process dies at {point}, the time {time}"));
        let mut start = cluster.start_command(&[]);
        start.env("TRACER_TEST_KILL_AT", format!("{point}:{time}"));
        start.env("TRACER_TEST_KILL_ONCE", cluster.file("killed"));
        cluster.run(start).success();
        Service::deploy_to(cluster, "handlers:spanned", replicas)
    }

    pub(super) fn deploy_to(cluster: Cluster, import_path: &'static str, replicas: u32) -> Service {
        let address = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
        Service::deploy_at(cluster, address, import_path, replicas)
    }

    pub(super) fn deploy_at(
        cluster: Cluster,
        address: SocketAddr,
        import_path: &'static str,
        replicas: u32,
    ) -> Service {
        let service = Service { cluster, address, import_path };
        service.deploy_again(replicas, "");
        service
    }

    fn deploy_again(&self, replicas: u32, further: &str) {
        let file = self.write(replicas, further);
        self.cluster.tracer(&["serve", "deploy", &file]).success();
    }

    /// Writes its file, and returns the path.
    pub(super) fn write(&self, replicas: u32, further: &str) -> String {
        let text = format!(
            "name = \"shop\"\n[http]\naddress = \"{}\"\n[[applications]]\nimport_path = \"{path}\"\n\
             [[applications.deployments]]\nimport_path = \"{path}\"\nnum_replicas = {replicas}\n{further}\n",
            self.address,
            path = self.import_path,
        );
        let file = self.cluster.file("service.toml");
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    }

    /// Returns the processes of a role: `proxy` or `replica`.
    pub(super) fn pids(&self, role: &str) -> Vec<u32> {
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

    /// Waits until the process that was to kill itself has, and another one is in its place.
    fn wait_for_the_kill(&self, role: &str, count: usize) {
        wait_until(&format!("a {role} has come to its point"), || self.cluster.file("killed").exists().then_some(()));
        wait_until(&format!("another {role} is in its place"), || (self.pids(role).len() == count).then_some(()));
    }

    /// Returns the spans of each trace, once the head has finished those of the dead.
    pub(super) fn traces(&self) -> HashMap<String, Vec<Span>> {
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

/// Expects that each span has ended, is there once, and has a parent that is there or the client's.
#[track_caller]
pub(crate) fn assert_closed(exchanges: &[Exchange], traces: &HashMap<String, Vec<Span>>) {
    let clients: HashMap<_, _> = exchanges.iter().map(|exchange| (&exchange.trace_id, &*exchange.span_id)).collect();
    for (id, trace) in traces.iter().filter(|(id, _)| clients.contains_key(id)) {
        let ids: HashSet<_> = trace.iter().map(Span::span_id).collect();
        assert_eq!(ids.len(), trace.len(), "a span is there twice: {trace:?}");
        for span in trace {
            assert!(!span.value["end_time"].is_null(), "{span:?} has not ended");
            let parent = span.parent_id().unwrap_or_default();
            assert!(parent == clients[id] || ids.contains(parent), "{span:?} has no parent in {trace:?}");
        }
    }
}

fn named<'a>(trace: &'a [Span], name: &str) -> Vec<&'a Span> {
    trace.iter().filter(|span| span.name().starts_with(name)).collect()
}

/// Expects the spans of a request of which a client has the whole answer.
#[track_caller]
pub(crate) fn assert_whole(exchange: &Exchange, status: u16, traces: &HashMap<String, Vec<Span>>) {
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
fn a_replica_that_is_killed_at_any_step_of_a_request_leaves_its_spans_and_loses_no_other() {
    for (point, answers) in REPLICA_POINTS {
        let mut random = Random::of_test_alone();
        let service = Service::deploy_with_a_kill_at(point, 1 + random.below(60), 2);
        let clients = Clients::start(service.address, CLIENTS, "/", 50);
        service.wait_for_the_kill("replica", 2);
        clients.wait_for(50);
        let exchanges = clients.stop();
        let traces = service.traces();
        assert_closed(&exchanges, &traces);
        for exchange in &exchanges {
            let Outcome::Whole(answer) = &exchange.outcome else { panic!("{point} broke a connection: {exchange:?}") };
            assert_whole(exchange, answer.status, &traces);
            let trace = &traces[&exchange.trace_id];
            let handled = named(trace, "replica_handle_request");
            // What was claimed is never begun again; what was not, is.
            assert!(handled.len() == 1 || point == "handling_span_begun", "{point}: {trace:?}");
            for work in named(trace, "work") {
                assert!(handled.iter().any(|span| work.parent_id() == Some(span.span_id())), "{point}: {trace:?}");
            }
        }
        let lost = exchanges.iter().filter(|exchange| exchange.status() == Some(502)).count();
        assert!(lost <= CLIENTS, "{point}: {lost} requests were lost");
        assert!(lost > 0 || answers.contains(&200), "{point}: no client heard of it");
    }
}

#[test]
fn a_proxy_that_is_killed_at_any_step_of_a_request_leaves_its_spans_and_refuses_nobody() {
    for point in PROXY_POINTS {
        let mut random = Random::of_test_alone();
        let service = Service::deploy_with_a_kill_at(point, 1 + random.below(200), 1);
        let clients = Clients::start(service.address, CLIENTS, "/", 50);
        service.wait_for_the_kill("proxy", 1);
        clients.wait_for(50);
        let exchanges = clients.stop();
        let traces = service.traces();
        assert_closed(&exchanges, &traces);
        let mut broken = 0;
        for exchange in &exchanges {
            match &exchange.outcome {
                Outcome::Whole(answer) => {
                    assert_eq!(answer.status, 200, "{point}: {exchange:?}");
                    assert_whole(exchange, 200, &traces);
                }
                Outcome::Refused => panic!("{point}: a connection was refused"),
                Outcome::Broken(_) => broken += 1,
            }
        }
        assert!(broken <= CLIENTS, "{point}: {broken} connections broke");
    }
}

#[test]
fn ten_thousand_requests_of_32_clients_are_whole_while_replicas_and_proxy_are_killed() {
    let cluster = Cluster::builder().workers(1).hook(HOOK).start();
    let service = Service::deploy_to(cluster, "handlers:spanned", 2);
    let mut random = Random::of_test(&service.cluster);
    let clients = Clients::start(service.address, 32, "/", 100);
    for colour in ["green", "blue"] {
        for role in ["replica", "proxy"].repeat(3) {
            clients.wait_for(300 + random.below(400));
            service.kill_one(role, &mut random);
        }
        // Replicas that die one after the other are started later and later. A deploy forgives that.
        service.deploy_again(2, &format!("env = {{ COLOUR = \"{colour}\" }}"));
    }
    while clients.answered() < 10_000 {
        clients.wait_for(100);
    }
    let exchanges = clients.stop();
    let traces = service.traces();
    assert_closed(&exchanges, &traces);
    let (mut lost, mut broken) = (0, 0);
    for exchange in &exchanges {
        match &exchange.outcome {
            Outcome::Whole(answer) => {
                lost += u64::from(answer.status == 502);
                assert_whole(exchange, answer.status, &traces);
            }
            Outcome::Refused => panic!("a connection was refused"),
            Outcome::Broken(_) => broken += 1,
        }
    }
    assert!(lost <= 6 * 32 && broken <= 6 * 32, "{lost} answers were lost, {broken} connections broke");
    // Handlers were in their spans when they were killed: those are closed too.
    let works: Vec<_> = traces.values().flat_map(|trace| named(trace, "work")).collect();
    assert!(works.iter().any(|work| work.status_code() == "ERROR"), "no handler was killed in its span");
    for work in works.iter().filter(|work| work.status_code() == "ERROR") {
        assert_eq!(*work.attribute("error.type"), "signal:9", "{work:?}");
    }
}

/// Returns the anonymous memory of a process, in KiB, and its descriptors.
fn held(pid: u32) -> (u64, usize) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let memory = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("the kernel says it");
    let memory = memory.trim().trim_end_matches(" kB").parse().expect("a number");
    (memory, fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").count())
}

#[test]
fn sampled_and_unsampled_requests_do_not_mix_and_leave_memory_and_descriptors_flat() {
    let requests: u64 = std::env::var(REQUESTS).map_or(10_000, |count| count.parse().expect("a number of requests"));
    let cluster = Cluster::builder().workers(1).hook(HOOK).start();
    let service = Service::deploy_to(cluster, "handlers:spanned", 1);
    let [proxy, replica] = ["proxy", "replica"].map(|role| service.pids(role)[0]);
    let idle = [proxy, replica].map(|pid| held(pid).1);
    // The lane's, and what else is opened once.
    let room = 8;
    let clients = Clients::start_sampled(service.address, CLIENTS, "/", 100, |number| number % 3 == 0);
    let wait_for = |count| {
        while clients.answered() < count {
            clients.wait_for(100);
        }
    };
    wait_for(requests / 4);
    let before = [proxy, replica].map(|pid| held(pid).0);
    wait_for(requests);
    let after = [proxy, replica].map(|pid| held(pid).0);
    let exchanges = clients.stop();
    assert!(exchanges.iter().all(|exchange| exchange.status() == Some(200)));
    for (before, after) in before.into_iter().zip(after) {
        assert!(after <= before + 2048, "anonymous memory grew from {before} to {after} KiB");
    }
    wait_until("all connections are closed", || {
        let now = [proxy, replica].map(|pid| held(pid).1);
        now.iter().zip(idle).all(|(&now, idle)| now <= idle + room).then_some(())
    });
    let traces = service.traces();
    assert_closed(&exchanges, &traces);
    for exchange in &exchanges {
        if !exchange.is_sampled {
            assert!(!traces.contains_key(&exchange.trace_id), "{:?}", traces[&exchange.trace_id]);
            continue;
        }
        assert_whole(exchange, 200, &traces);
        let trace = &traces[&exchange.trace_id];
        let (handled, works) = (named(trace, "replica_handle_request"), named(trace, "work"));
        assert_eq!((works.len(), works[0].parent_id()), (1, Some(handled[0].span_id())), "{trace:?}");
    }
    let sampled: HashSet<_> = exchanges.iter().filter(|one| one.is_sampled).map(|one| &one.trace_id).collect();
    let works = traces.values().flat_map(|trace| named(trace, "work"));
    assert!(works.clone().count() == sampled.len(), "a span of a handler is in a trace of its own");
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
