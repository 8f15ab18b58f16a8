//! Calls inside a handler, one after the other: of a deployment by its handle, beside those of an actor, and requests over a lane without spans.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use super::cpu_time::cpu_ns;
use super::load::{Load, Measured};
use super::service::{Service, one};
use super::{Failure, floors};

/// Calls in one request.
const CALLS: u32 = 5_000;

/// Measures and shows.
pub(crate) fn measure(seconds: u32, runs: usize) -> Result<(), Failure> {
    let further = "[[applications.deployments]]\nimport_path = \"handlers:Counter\"\n";
    let applications = one("handlers:times_calls") + further;
    let (service, floor) = (Service::start(&applications, true, &[])?, floors::frames()?);
    let mut found = [Vec::new(), Vec::new(), Vec::new()];
    for number in 0..=runs {
        for (path, found) in ["/handle", "/actor"].iter().zip(&mut found) {
            let calls = if number == 0 { CALLS / 10 } else { CALLS };
            let measured = ask(&service, path, calls)?;
            if number > 0 {
                found.push(measured);
            }
        }
        let lane = Load::get(1, "/");
        let Measured { p50_us, cpu, .. } = lane.run(&*floor, if number == 0 { 1 } else { seconds })?;
        if number > 0 {
            found[2].push((p50_us, cpu.iter().map(|(_, us)| us).sum()));
        }
    }
    println!("\ncall: {CALLS} calls inside a handler, traced, one after the other");
    println!("{:<26}{:>10}{:>10}", "", "p50 µs", "CPU µs");
    let names = ["by handle", "of an actor", "hyper, lane, no spans"];
    for (name, found) in names.iter().zip(&mut found) {
        let median = |of: fn(&(f64, f64)) -> f64| {
            let mut all: Vec<f64> = found.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        println!("{name:<26}{:>10.1}{:>10.1}", median(|(p50, _)| *p50), median(|(_, cpu)| *cpu));
    }
    Ok(())
}

/// Returns the median time of a call, and the CPU time of one, in microseconds.
fn ask(service: &Service, path: &str, calls: u32) -> Result<(f64, f64), Failure> {
    let processes = service.place_processes()?;
    let cpu = || processes.iter().map(|pid| cpu_ns(*pid)).sum::<Result<u64, _>>();
    let before = cpu()?;
    let mut stream = BufReader::new(TcpStream::connect(service.address())?);
    write!(stream.get_mut(), "GET {path}?{calls} HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n")?;
    let mut status = String::new();
    stream.read_line(&mut status)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let text = answer.split("\r\n\r\n").nth(1).unwrap_or_default();
    if !status.contains(" 200 ") {
        return Err(format!("{path} was answered {status}{text}").into());
    }
    let nanos: f64 = text.trim().parse()?;
    Ok((nanos / 1e3, (cpu()? - before) as f64 / 1e3 / f64::from(calls)))
}
