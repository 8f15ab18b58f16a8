//! System calls of a request in each process, as strace counts them: no clock is in it, so that a call too many is seen on any machine. It fails
//! when there are more than is said here.
//!
//! Nobody looks before sleeping here: how often somebody looks in vain depends on the machine.

use super::Failure;
use super::client::Client;
use super::service::{Service, one};
use super::strace::{Calls, Counter, obstacle};

/// Requests that are counted, after some that are not.
const REQUESTS: usize = 2_000;
const WARM_UP: usize = 200;

/// A workload: how many connections ask at the same time, and the calls of a request in proxy and replica, with the multiple of them that is let
/// pass. Batches are smaller where other work runs, but a call for each request is many times more.
type Case = (&'static str, usize, [(&'static str, f64); 2], f64);

const CASES: [Case; 2] = [
    ("one at a time", 1, [("proxy", 6.1), ("replica", 4.1)], 1.15),
    ("32 at a time", 32, [("proxy", 2.4), ("replica", 0.6)], 1.6),
];

/// Counts and shows.
pub(crate) fn measure(_seconds: u32, _runs: usize) -> Result<(), Failure> {
    if let Some(obstacle) = obstacle() {
        println!("system calls are not counted: {obstacle}");
        return Ok(());
    }
    let service = Service::start(&one("handlers:app"), true, &[("TRACER_TEST_SPINNING", "never")])?;
    let mut excesses = Vec::new();
    println!("\nsystem calls of a request, traced, nobody looks before sleeping");
    for (name, connections, said, tolerance) in CASES {
        for ((process, said), calls) in said.into_iter().zip(count(&service, connections)?) {
            let each = |count: u64| count as f64 / REQUESTS as f64;
            let sum = each(calls.values().sum());
            let kinds = calls.iter().filter(|(_, count)| each(**count) >= 0.01);
            let kinds: Vec<_> = kinds.map(|(call, count)| format!("{call} {:.2}", each(*count))).collect();
            println!("{name:<16}{process:<10}{sum:>8.2}, {said} are said: {}", kinds.join(", "));
            if sum > said * tolerance {
                excesses.push(format!("{name}, {process}: {sum:.2} system calls of a request, {said} are said"));
            }
        }
    }
    if excesses.is_empty() { Ok(()) } else { Err(excesses.join("; ").into()) }
}

/// Returns the calls of proxy and replica while so many connections ask, all of them before the first answer is read.
fn count(service: &Service, connections: usize) -> Result<[Calls; 2], Failure> {
    let clients = (0..connections).map(|_| Client::connect(service.address()));
    let mut clients = clients.collect::<Result<Vec<_>, _>>()?;
    let mut ask = |count: usize| {
        (0..count / connections).try_for_each(|_| {
            clients.iter_mut().try_for_each(|client| client.ask("/"))?;
            clients.iter_mut().try_for_each(Client::answer)
        })
    };
    ask(WARM_UP)?;
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let processes = service.all_processes();
    let counters = ["proxy", "replica"].map(|wanted| {
        let (_, pid) = processes.iter().find(|(name, _)| name == wanted).ok_or(format!("there is no {wanted}"))?;
        Counter::attach(*pid, &folder.path().join(wanted))
    });
    let [proxy, replica] = counters;
    let (proxy, replica) = (proxy?, replica?);
    ask(REQUESTS)?;
    Ok([proxy.finish()?, replica.finish()?])
}
