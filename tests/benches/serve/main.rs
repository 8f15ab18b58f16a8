//! Cost of serving: requests per second, latency and CPU of a service, beside floors that are measured in the same run.
//!
//! ```text
//! cargo bench --bench serve                     # everything, some minutes
//! cargo bench --bench serve -- --quick          # does it work at all
//! cargo bench --bench serve -- --only hello
//! cargo bench --bench serve -- --only otlp     # what `tracer start --otlp` takes
//! cargo bench --bench serve -- --only batch    # batches of a handler of fixed cost, beside the ideal
//! cargo bench --bench serve -- --only head     # the second in which the head is killed, beside the second before
//! ```
//!
//! The load is wrk's (one thread) and h2load's, on the same cores as everything else. Floors: one hyper process; hyper with a pool of
//! connections to a second hyper process, over a Unix socket; hyper with one lane to a second process, without spans. Peers, where they are
//! installed: nginx and haproxy before the same second hyper process. Each figure is the median of its runs, and what is compared takes turns.
//!
//! Nothing is asserted about time. It fails when requests fail.

#[path = "../end_to_end/cpu_time.rs"]
mod cpu_time;

mod batches;
mod floors;
mod load;
mod otlp;
mod peers;
mod service;
mod without_head;

use std::error::Error;
use std::process::ExitCode;

use load::{Load, Measured};

/// Error of a measurement. It names what was being done.
type Failure = Box<dyn Error>;

/// Something that answers requests, for as long as it is there.
trait Server {
    /// Returns the address at which it answers, as `http://address/path`.
    fn url(&self) -> String;
    /// Returns its processes, by name.
    fn processes(&self) -> Vec<(String, u32)>;
    /// True if it takes HTTP/2 on a connection that begins with it.
    fn has_h2(&self) -> bool {
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
const LOADS: [(&str, Load); 4] = [
    ("hello", Load { connections: 32, streams: 0, path: "/" }),
    ("one", Load { connections: 1, streams: 0, path: "/" }),
    ("h2", Load { connections: 4, streams: 8, path: "/" }),
    ("bodies", Load { connections: 4, streams: 0, path: "/mebibyte" }),
];

/// The name of the measurement of OTLP in.
const OTLP: &str = "otlp";
/// The name of the measurement of batches.
const BATCH: &str = "batch";
/// The name of the measurement of a head that is killed.
const HEAD: &str = "head";

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
                let mut known = LOADS.iter().map(|(known, _)| *known).chain([OTLP, BATCH, HEAD]);
                let name = arguments.next().filter(|name| known.any(|known| known == **name));
                options.only =
                    Some(name.ok_or("--only needs one of hello, one, h2, bodies, otlp, batch, head")?.clone());
            }
            other => return Err(format!("unknown argument `{other}`; known are --quick and --only NAME")),
        }
    }
    Ok(options)
}

fn measure(options: &Options) -> Result<(), Failure> {
    if options.only.as_deref().is_none_or(|only| only == OTLP) {
        otlp::measure(options.seconds, options.runs)?;
    }
    if options.only.as_deref().is_none_or(|only| only == BATCH) {
        batches::measure(options.seconds, options.runs)?;
    }
    if options.only.as_deref().is_none_or(|only| only == HEAD) {
        without_head::measure(options.runs)?;
    }
    if options.only.as_deref().is_some_and(|only| [OTLP, BATCH, HEAD].contains(&only)) {
        return Ok(());
    }
    let mut servers = Vec::new();
    for (name, start) in SERVERS {
        match start() {
            Ok(server) => servers.push((name, server)),
            Err(error) => eprintln!("skipped: {name}: {error}"),
        }
    }
    for (name, load) in LOADS.iter().filter(|(name, _)| options.only.as_deref().is_none_or(|only| only == *name)) {
        let mut found: Vec<Vec<Measured>> = servers.iter().map(|_| Vec::new()).collect();
        // One run that does not count, so that everything is warm.
        for number in 0..=options.runs {
            let all = servers.iter().zip(&mut found);
            for ((server_name, server), found) in all.filter(|((_, server), _)| load.streams == 0 || server.has_h2()) {
                let seconds = if number == 0 { 1 } else { options.seconds };
                let measured = load.run(&**server, seconds).map_err(|error| format!("{server_name}: {error}"))?;
                if number > 0 {
                    found.push(measured);
                }
            }
        }
        show(name, load, &servers, &found);
    }
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
