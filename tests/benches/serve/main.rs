//! Cost of serving: requests per second, latency and CPU of a service, beside floors that are measured in the same run.
//!
//! ```text
//! cargo bench --bench serve                     # everything, a quarter of an hour
//! cargo bench --bench serve -- --quick          # does it work at all
//! cargo bench --bench serve -- --only hello     # one of the names below
//! ```
//!
//! | name | |
//! |---|---|
//! | `hello`, `one` | hello over 32 connections, and over one |
//! | `h2` | hello over HTTP/2 |
//! | `bodies`, `uploads` | answers, and bodies of requests, of 1 MiB |
//! | `paced` | a request each millisecond, beside the same build that never looks before it sleeps |
//! | `streams` | 1,000 event streams |
//! | `replicas`, `routes` | many of them, beside one |
//! | `deploy` | `tracer serve deploy` until new code answers |
//! | `memory`, `idle` | what a service takes that does nothing |
//! | `system_calls` | calls of a request in proxy and replica; it fails when there are more than is said |
//! | `hostile` | latency of a well-behaved client with hostile ones beside it, and without |
//! | `grpc`, `websocket` | calls and streams of gRPC, and an echo over WebSocket, beside the same servers without anything before them |
//! | `program` | FastAPI under uvicorn as a program, beside the same behind nginx, and alone |
//! | `tls` | hello over TLS, beside nginx with TLS |
//! | `batch` | batches of a handler of fixed cost, beside the ideal |
//! | `metrics` | hello with metrics and without |
//! | `call` | calls of a deployment inside a handler, beside those of an actor |
//! | `head` | the second in which the head is killed, beside the second before |
//!
//! The load is wrk's (one thread) and h2load's, on the same cores as everything else; h2load's where HTTP/2 is spoken, and where percentiles are to be those
//! of the requests as they were sent: over one connection, and beside hostile clients. Floors: one hyper process; hyper with a pool of
//! connections to a second hyper process, over a Unix socket; hyper with one lane to a second process, without spans. Peers, where they are
//! installed: nginx and haproxy before the same second hyper process. Each figure is the median of its runs, and what is compared takes turns.
//!
//! Nothing is asserted about time. It fails when requests fail, or make more system calls than they may.

#[path = "../end_to_end/cpu_time.rs"]
mod cpu_time;
#[path = "../end_to_end/strace.rs"]
mod strace;

mod batches;
mod calls;
mod client;
mod counting;
mod deploy;
mod floors;
mod footprint;
mod hostile;
mod load;
mod paced;
mod peers;
mod protocols;
mod scale;
mod service;
mod streams;
mod system_calls;
mod without_head;

use std::error::Error;
use std::process::ExitCode;

use load::{Body, Load, Measured};

/// Error of a measurement. It names what was being done.
type Failure = Box<dyn Error>;

/// Something that answers requests, for as long as it is there.
trait Server {
    /// Returns the address at which it answers, as `http://address/path`.
    fn url(&self) -> String;
    /// Returns its processes, by name.
    fn processes(&self) -> Vec<(String, u32)>;
    /// True if it can be put under this load.
    fn takes(&self, _load: &Load) -> bool {
        true
    }
}

/// Starts a server.
type Start = fn() -> Result<Box<dyn Server>, Failure>;

/// Servers that are compared, by their names.
const SERVERS: [(&str, Start); 7] = [
    ("bare hyper", floors::bare),
    ("hyper to hyper", floors::relay),
    ("hyper, lane, no spans", floors::frames),
    ("nginx to hyper", peers::nginx),
    ("haproxy to hyper", peers::haproxy),
    ("tracer serve, untraced", service::untraced),
    ("tracer serve, traced", service::traced),
];

/// The loads, by the names that `--only` takes.
const LOADS: [(&str, Load); 5] = [
    ("hello", Load::get(32, "/")),
    ("one", Load::get_as_sent(1, "/")),
    ("h2", Load { streams: 8, ..Load::get(4, "/") }),
    ("bodies", Load::get(4, "/mebibyte")),
    ("uploads", Load { body: Body::Mebibyte, ..Load::get(4, "/sink") }),
];

/// A measurement of its own, for so many seconds and runs, which shows what it finds.
type Measurement = fn(u32, usize) -> Result<(), Failure>;

/// The others, by the names that `--only` takes.
const OTHERS: [(&str, Measurement); 17] = [
    ("grpc", protocols::grpc),
    ("websocket", protocols::websocket),
    ("program", protocols::program),
    ("tls", protocols::tls),
    ("batch", batches::measure),
    ("metrics", counting::measure),
    ("call", calls::measure),
    ("head", without_head::measure),
    ("paced", paced::measure),
    ("streams", streams::measure),
    ("replicas", scale::replicas),
    ("routes", scale::routes),
    ("deploy", deploy::measure),
    ("memory", footprint::memory),
    ("idle", footprint::idle),
    ("hostile", hostile::measure),
    ("system_calls", system_calls::measure),
];

struct Options {
    seconds: u32,
    runs: usize,
    only: Option<String>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.split_first() {
        Some((role, rest)) if role == "role" => floors::run_role(rest),
        _ => parse(&arguments).map_err(Failure::from).and_then(|options| measure(&options)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parse(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options { seconds: 5, runs: 3, only: None };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            // Cargo passes it to every benchmark.
            "--bench" => {}
            "--quick" => (options.seconds, options.runs) = (1, 1),
            "--only" => {
                let known: Vec<_> =
                    LOADS.iter().map(|(known, _)| *known).chain(OTHERS.map(|(known, _)| known)).collect();
                let name = arguments.next().filter(|name| known.contains(&name.as_str()));
                options.only = Some(name.ok_or(format!("--only needs one of {}", known.join(", ")))?.clone());
            }
            other => return Err(format!("unknown argument `{other}`; known are --quick and --only NAME")),
        }
    }
    Ok(options)
}

fn measure(options: &Options) -> Result<(), Failure> {
    let is_wanted = |name: &str| options.only.as_deref().is_none_or(|only| only == name);
    for (_, measure) in OTHERS.iter().filter(|(name, _)| is_wanted(name)) {
        measure(options.seconds, options.runs)?;
    }
    if !LOADS.iter().any(|(name, _)| is_wanted(name)) {
        return Ok(());
    }
    let mut servers = Vec::new();
    for (name, start) in SERVERS {
        match start() {
            Ok(server) => servers.push((name, server)),
            Err(error) => eprintln!("skipped: {name}: {error}"),
        }
    }
    for (name, load) in LOADS.iter().filter(|(name, _)| is_wanted(name)) {
        compare(name, load, &servers, options.seconds, options.runs)?;
    }
    Ok(())
}

/// Puts servers under the same load in turns, and shows what is found.
fn compare(
    name: &str,
    load: &Load,
    servers: &[(&str, Box<dyn Server>)],
    seconds: u32,
    runs: usize,
) -> Result<(), Failure> {
    let mut found: Vec<Vec<Measured>> = servers.iter().map(|_| Vec::new()).collect();
    // One run that does not count, so that everything is warm.
    for number in 0..=runs {
        let all = servers.iter().zip(&mut found);
        for ((server_name, server), found) in all.filter(|((_, server), _)| server.takes(load)) {
            let seconds = if number == 0 { 1 } else { seconds };
            let measured = load.run(&**server, seconds).map_err(|error| format!("{server_name}: {error}"))?;
            if number > 0 {
                found.push(measured);
            }
        }
    }
    show(name, load, servers, &found);
    Ok(())
}

fn show(name: &str, load: &Load, servers: &[(&str, Box<dyn Server>)], found: &[Vec<Measured>]) {
    println!("\n{name}: {load}");
    println!("{:<26}{:>10}{:>10}{:>10}{:>10}  CPU OF EACH PROCESS (µs)", "", "req/s", "p50 µs", "p99 µs", "CPU µs");
    for ((server, _), runs) in servers.iter().zip(found).filter(|(_, runs)| !runs.is_empty()) {
        let median = Measured::median(runs);
        let each: Vec<String> = median.cpu.iter().map(|(name, us)| format!("{name} {us:.1}")).collect();
        let all: f64 = median.cpu.iter().map(|(_, us)| us).sum();
        let Measured { per_second, p50_us, p99_us, .. } = median;
        println!("{server:<26}{per_second:>10.0}{p50_us:>10.0}{p99_us:>10.0}{all:>10.1}  {}", each.join(", "));
    }
}
