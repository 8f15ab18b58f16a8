//! A service of everything under load, for as long as one likes, while its processes are killed at random and it is deployed again and again: no
//! request fails that may not, each has its spans, and nothing grows.
//!
//! `TRACER_SERVE_SOAK_SECONDS` says how long; without it, not long. `TRACER_TEST_SEED` repeats the choices of a run, which says its seed when it fails.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use super::serving_deaths::{assert_closed, assert_whole};
use crate::support::{
    Background, Clients, Cluster, Exchange, HOOK, Outcome, Random, Span, Spans, kill, python_with, wait_until,
};

/// The variable that says how many seconds it takes.
const SECONDS: &str = "TRACER_SERVE_SOAK_SECONDS";
/// Seconds in a run of all tests.
const FEW: u64 = 6;
/// Clients of HTTP for each path, and calls and connections that the storms have under way at a time.
const CLIENTS: usize = 3;
const STORM: usize = 6;

/// Everything that is served, on one port.
struct Soak {
    cluster: Cluster,
    address: SocketAddr,
    python: PathBuf,
    deploys: u64,
    killed_replicas: u64,
    killed_proxies: u64,
    killed_heads: u64,
}

/// Clients that others wrote, until their standard input is closed.
struct Storm(Background);

impl Storm {
    fn start(soak: &Soak, mut client: Command) -> Storm {
        client.stdin(Stdio::piped());
        Storm(soak.cluster.spawn(client))
    }

    fn ended(&self) -> usize {
        self.0.stdout_text().lines().count()
    }

    #[track_caller]
    fn stop(mut self) -> Vec<Value> {
        drop(self.0.take_stdin());
        let text = self.0.wait().success().stdout_text();
        text.lines().map(|line| serde_json::from_str(line).expect("a line is an object")).collect()
    }
}

/// Files, threads and memory of a process.
#[derive(Clone, Copy, Debug)]
struct Size {
    files: usize,
    threads: usize,
    memory_kib: u64,
}

/// Sizes by role.
type Sizes = [(&'static str, Size); 4];

/// Returns the first that has grown: further files than another number of replicas and connections under way account for, threads, or memory.
fn grown(before: &Sizes, after: &Sizes) -> Option<String> {
    let mut pairs = before.iter().zip(after);
    let found = pairs.find(|((_, before), (_, after))| {
        after.files > before.files + 40
            || after.threads > before.threads
            || after.memory_kib > before.memory_kib + (32 << 10)
    });
    found.map(|((role, before), (_, after))| format!("the {role} has grown: {before:?}, {after:?}"))
}

fn size_of(pid: u32) -> Size {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let number = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("it is there");
        line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().expect("a number")
    };
    let files = fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").count();
    Size { files, threads: number("Threads") as usize, memory_kib: number("VmRSS") }
}

impl Soak {
    /// None, which skips the test, without a Python that has the clients.
    fn start() -> Option<Soak> {
        let python = python_with("grpc, google.protobuf, websockets")?;
        let cluster = Cluster::builder().workers(1).hook(HOOK).start();
        let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
        let address = port.expect("there is a free port");
        let mut soak =
            Soak { cluster, address, python, deploys: 0, killed_replicas: 0, killed_proxies: 0, killed_heads: 0 };
        soak.deploy();
        Some(soak)
    }

    /// Deploys it with other settings than before: another environment, other counts, other limits, or another proxy.
    fn deploy(&mut self) {
        let number = self.deploys;
        self.deploys += 1;
        let replicas = 2 + number % 2;
        // All of them sample everything. A ratio that is said makes another proxy than one that is not.
        let tracing = if number % 4 == 3 { "[tracing]\nsampling_ratio = 1.0\n" } else { "" };
        let deployment = |path: &str, further: &str| {
            format!("[[applications.deployments]]\nimport_path = \"{path}\"\nnum_replicas = {replicas}\n{further}\n")
        };
        let colour = format!("env = {{ COLOUR = \"{}\" }}", number / 2);
        let gate = self.cluster.file("gate");
        let text = format!(
            "name = \"soak\"\n[http]\naddress = \"{}\"\n{tracing}\
             [[applications]]\nimport_path = \"shop:hello\"\n{}\
             [[applications]]\nroute_prefix = \"/timed\"\nimport_path = \"handlers:Batches\"\n{}\
             [[applications]]\nroute_prefix = \"/grpc.testing.TestService\"\nimport_path = \"interop:test_service\"\n{}\
             [[applications]]\nroute_prefix = \"/rooms\"\nimport_path = \"axum_chat:chat\"\n{}",
            self.address,
            deployment("shop:hello", &colour),
            deployment("handlers:Batches", &format!("arguments = [{:?}]", gate.display().to_string())),
            deployment("interop:test_service", &format!("max_ongoing_requests = {}", 50 + number % 3)),
            deployment("axum_chat:chat", &colour),
        );
        let file = self.cluster.file("service.toml");
        fs::write(&file, text).expect("the folder is ours");
        self.cluster.tracer(&["serve", "deploy", file.to_str().expect("a plain name")]).success();
    }

    fn pids(&self, role: &str) -> Vec<u32> {
        let is_it = |command: &str| command.split(' ').nth(1) == Some(role);
        self.cluster.processes().iter().filter(|process| is_it(&process.command)).map(|process| process.pid).collect()
    }

    /// Kills a process of a role. Another one comes in its place by itself.
    fn kill_one(&mut self, role: &str, random: &mut Random) {
        let Some(victim) = random.choose(&self.pids(role)).copied() else { return };
        kill(victim, Signal::KILL);
        let count = if role == "proxy" { &mut self.killed_proxies } else { &mut self.killed_replicas };
        *count += 1;
        self.wait_until_whole();
    }

    /// Kills the head. Its guard starts another one.
    fn kill_head(&mut self) {
        self.cluster.kill_head_and_wait_for_the_next();
        self.killed_heads += 1;
        self.wait_until_whole();
    }

    /// Returns the head, its guard, the proxy and the replicas, and the most that one of them has.
    fn sizes(&self) -> Sizes {
        let record = self.cluster.head_record();
        let guard = record["guard_pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a head has a guard");
        let greatest = |role: &str| {
            let sizes: Vec<_> = self.pids(role).into_iter().map(size_of).collect();
            let most = |of: fn(&Size) -> u64| sizes.iter().map(of).max().unwrap_or(0);
            let (files, threads) = (most(|size| size.files as u64), most(|size| size.threads as u64));
            Size { files: files as usize, threads: threads as usize, memory_kib: most(|size| size.memory_kib) }
        };
        let (head, guard) = (size_of(self.cluster.head_pid()), size_of(guard));
        [("head", head), ("guard", guard), ("proxy", greatest("proxy")), ("replica", greatest("replica"))]
    }

    /// Waits until every process that is wanted is there and serves.
    fn wait_until_whole(&self) {
        wait_until("the service is whole", || {
            let status = self.cluster.tracer(&["serve", "status", "--format", "json"]).success().json();
            let service = &status["services"][0];
            let proxies = service["proxies"].as_array().map_or(0, Vec::len);
            (service["state"] == "running" && proxies == 1).then_some(())
        });
    }

    fn script(&self, name: &str) -> Command {
        let mut client = self.cluster.program(&self.python);
        client.arg(fixture(&format!("python/{name}"))).arg(self.address.to_string());
        client
    }
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Spans of an hour, in parts for which there is memory: all of a trace are in one part.
struct Parts {
    folder: PathBuf,
    count: usize,
}

impl Parts {
    /// Bytes of a part, about.
    const BYTES: u64 = 64 << 20;

    /// Copies the spans of a stopped cluster into parts.
    #[track_caller]
    fn of(cluster: &Cluster) -> Parts {
        let files: Vec<_> = fs::read_dir(cluster.spans_dir()).unwrap().map(|entry| entry.unwrap().path()).collect();
        let bytes: u64 = files.iter().map(|file| file.metadata().unwrap().len()).sum();
        let parts = Parts { folder: cluster.file("parts"), count: (bytes / Parts::BYTES + 1) as usize };
        let mut written: Vec<_> = (0..parts.count).map(|part| parts.create(part)).collect();
        for file in files {
            for line in BufReader::new(File::open(file).unwrap()).lines().map(Result::unwrap) {
                let (_, id) =
                    line.split_once("\"trace_id\"").unwrap_or_else(|| panic!("a line that is no span: {line}"));
                let id = id.split('"').nth(1).expect("a trace has its id");
                writeln!(written[parts.of_trace(id)], "{line}").unwrap();
            }
        }
        written.into_iter().for_each(|mut part| part.flush().unwrap());
        parts
    }

    fn create(&self, part: usize) -> BufWriter<File> {
        let folder = self.folder.join(part.to_string());
        fs::create_dir_all(&folder).unwrap();
        BufWriter::new(File::create(folder.join("spans.json")).unwrap())
    }

    /// Returns the part that has the spans of a trace.
    fn of_trace(&self, id: &str) -> usize {
        // Ids are random.
        let number = u64::from_str_radix(&id[id.len() - 8..], 16).expect("an id has hexadecimal digits");
        number as usize % self.count
    }

    /// Reads the traces of a part.
    #[track_caller]
    fn read(&self, part: usize) -> HashMap<String, Vec<Span>> {
        let spans = Spans::read(&self.folder.join(part.to_string()));
        assert!(spans.torn_lines.is_empty(), "lines that are no spans: {:?}", spans.torn_lines);
        let mut traces: HashMap<String, Vec<Span>> = HashMap::new();
        for span in spans.spans {
            traces.entry(span.trace_id().to_owned()).or_default().push(span);
        }
        traces
    }

    /// Divides what has traces as the spans are.
    fn divide<T>(&self, all: Vec<T>, trace_of: impl Fn(&T) -> &str) -> Vec<Vec<T>> {
        let mut parts: Vec<Vec<T>> = (0..self.count).map(|_| Vec::new()).collect();
        all.into_iter().for_each(|one| parts[self.of_trace(trace_of(&one))].push(one));
        parts
    }
}

/// Requests of one kind of clients, as far as they were looked at.
#[derive(Default)]
struct Checked {
    requests: usize,
    lost: u64,
    broken: u64,
}

impl Checked {
    /// Expects the spans of requests of HTTP, and that they failed in no other way than with the process that had them.
    #[track_caller]
    fn check(&mut self, kind: &str, exchanges: &[Exchange], traces: &HashMap<String, Vec<Span>>) {
        self.requests += exchanges.len();
        for exchange in exchanges {
            match &exchange.outcome {
                Outcome::Whole(answer) if matches!(answer.status, 200 | 502) => {
                    self.lost += u64::from(answer.status == 502);
                    if kind == "hello" {
                        assert_whole(exchange, answer.status, traces);
                    } else {
                        assert!(traces.contains_key(&exchange.trace_id), "{kind}: no spans of {exchange:?}");
                    }
                }
                Outcome::Broken(_) => self.broken += 1,
                other => panic!("{kind}: {other:?}"),
            }
        }
        assert_closed(exchanges, traces);
    }

    /// Expects that no more have failed than processes were killed for.
    #[track_caller]
    fn end(&self, kind: &str, soak: &Soak) {
        let Checked { requests, lost, broken } = *self;
        assert!(lost <= soak.killed_replicas * CLIENTS as u64, "{kind}: {lost} requests of killed replicas");
        assert!(broken <= soak.killed_proxies * CLIENTS as u64, "{kind}: {broken} requests of killed proxies");
        eprintln!("{kind}: {requests} requests, {lost} lost with their replica, {broken} broken with their proxy");
    }
}

#[test]
fn everything_at_once_under_kills_and_deploys_fails_nothing_that_it_may_not_and_grows_in_nothing() {
    let Some(mut soak) = Soak::start() else { return };
    let mut random = Random::of_test(&soak.cluster);
    let seconds = std::env::var(SECONDS).map_or(FEW, |seconds| seconds.parse().expect("a number of seconds"));
    let hello = Clients::start(soak.address, CLIENTS, "/", 50);
    let batches = Clients::start(soak.address, CLIENTS, "/timed?1", 50);
    let mut grpc = soak.script("grpc_client.py");
    grpc.arg(fixture("interop/test.proto")).arg("storm");
    let grpc = Storm::start(&soak, grpc);
    let mut websockets = soak.script("websocket_client.py");
    websockets.arg("storm");
    let websockets = Storm::start(&soak, websockets);
    // Everything has begun before anything is killed, and what grows only once has.
    wait_until("all clients have their first answers", || (grpc.ended() > 10 && websockets.ended() > 2).then_some(()));
    hello.wait_for(100);
    soak.deploy();
    soak.kill_one("replica", &mut random);
    soak.kill_head();
    let before = soak.sizes();
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut round = 0;
    while Instant::now() < end {
        hello.wait_for(50 + random.below(100));
        batches.wait_for(10);
        // The first rounds have one of each kind; later ones are what comes.
        let choice = if round < 4 { round } else { random.below(4) };
        match choice {
            0 => soak.deploy(),
            1 => soak.kill_one("replica", &mut random),
            2 => soak.kill_head(),
            _ => soak.kill_one("proxy", &mut random),
        }
        round += 1;
    }
    let calls_before = (grpc.ended(), websockets.ended());
    wait_until("all clients go on", || {
        (grpc.ended() > calls_before.0 + STORM && websockets.ended() > calls_before.1 + 3).then_some(())
    });
    hello.wait_for(100);
    let (hello, batches) = (hello.stop(), batches.stop());
    let (calls, talks) = (grpc.stop(), websockets.stop());
    soak.deploy();
    soak.wait_until_whole();
    let grown = || grown(&before, &soak.sizes());
    wait_until(&format!("no process has grown ({:?})", grown()), || grown().is_none().then_some(()));
    let after = soak.sizes();
    let processes = soak.cluster.processes().len();
    soak.cluster.stop().success();
    soak.cluster.assert_nothing_runs();
    for call in calls.iter().filter(|call| call["status"] != "OK") {
        assert_eq!(call["status"], "UNAVAILABLE", "{call}");
    }
    let (made, failed) = (calls.len(), calls.iter().filter(|call| call["status"] != "OK").count());
    let most = (soak.killed_replicas + soak.killed_proxies) as usize * STORM;
    assert!(failed <= most, "{failed} of {made} calls have failed");
    let parts = Parts::of(&soak.cluster);
    let (hello, batches) = (parts.divide(hello, |it| &it.trace_id), parts.divide(batches, |it| &it.trace_id));
    let calls = parts.divide(calls, |call| call["trace"].as_str().expect("it has a trace"));
    let (mut of_hello, mut of_batches) = (Checked::default(), Checked::default());
    for (part, ((hello, batches), calls)) in hello.iter().zip(&batches).zip(&calls).enumerate() {
        let traces = parts.read(part);
        of_hello.check("hello", hello, &traces);
        of_batches.check("batches", batches, &traces);
        for call in calls.iter().filter(|call| call["status"] == "OK") {
            let trace = traces.get(&format!("0x{}", call["trace"].as_str().expect("it has a trace")));
            let names = |name: &str| trace.is_some_and(|trace| trace.iter().any(|span| span.name().starts_with(name)));
            assert!(names("proxy_grpc_request") && names("replica_handle_request"), "{call}: {trace:?}");
        }
    }
    of_hello.end("hello", &soak);
    of_batches.end("batches", &soak);
    // Its own close, that of a version that ends, that of a replica or a proxy that was killed.
    let broken = talks.iter().filter(|talk| talk["outcome"] == "broken").count();
    for talk in &talks {
        let code = talk["code"].as_u64();
        let is_expected = matches!(code, Some(1000 | 1001 | 1011)) || (talk["outcome"] == "broken" && code.is_none());
        let is_lost = talk["outcome"].as_str().is_some_and(|outcome| outcome.contains("HTTP 502"));
        assert!(is_expected || (is_lost && soak.killed_replicas > 0), "{talk}");
    }
    assert!(broken <= soak.killed_proxies as usize * 3, "{broken} of {} connections broke", talks.len());
    eprintln!(
        "{round} rounds, {} deploys, {} replicas, {} proxies and {} heads killed; {} calls of which {} have failed, {} connections of which \
         {broken} broke; {processes} processes, {before:?} and then {after:?}",
        soak.deploys,
        soak.killed_replicas,
        soak.killed_proxies,
        soak.killed_heads,
        made,
        failed,
        talks.len(),
    );
}
