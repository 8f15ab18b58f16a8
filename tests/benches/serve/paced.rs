//! A request each millisecond, over one connection: nothing that looks before it sleeps may cost processor time then, beside the same build that never looks.

use std::thread;
use std::time::{Duration, Instant};

use super::Failure;
use super::client::{Client, median, percentile};
use super::load::cpu_of;
use super::service::{Service, one};

const PACE: Duration = Duration::from_millis(1);

/// Measures both by turns, and shows the median of each figure.
pub(crate) fn measure(seconds: u32, runs: usize) -> Result<(), Failure> {
    let start = |variables: &[(&str, &str)]| Service::start(&one("handlers:app"), true, variables);
    let services = [start(&[])?, start(&[("TRACER_TEST_SPINNING", "never")])?];
    let mut found = [Vec::new(), Vec::new()];
    for number in 0..=runs {
        for (service, found) in services.iter().zip(&mut found) {
            let measured = run(service, if number == 0 { 1 } else { seconds })?;
            if number > 0 {
                found.push(measured);
            }
        }
    }
    let figures = found.map(|runs: Vec<[f64; 3]>| [0, 1, 2].map(|at| median(runs.iter().map(|run| run[at]).collect())));
    println!("\npaced: traced, a request each millisecond over one connection");
    println!("{:<26}{:>10}{:>10}{:>10}", "", "p50 µs", "p99 µs", "CPU µs");
    for (name, [p50, p99, cpu]) in ["as it is", "that never looks"].into_iter().zip(figures) {
        println!("{name:<26}{p50:>10.0}{p99:>10.0}{cpu:>10.1}");
    }
    let [own, never] = figures;
    println!("{:<26}{:>10.2}{:>10.2}{:>10.2}", "ratio", own[0] / never[0], own[1] / never[1], own[2] / never[2]);
    Ok(())
}

/// Returns p50, p99 and CPU time of proxy and replica for a request, in microseconds.
fn run(service: &Service, seconds: u32) -> Result<[f64; 3], Failure> {
    let mut client = Client::connect(service.address())?;
    let before = cpu_of(service)?;
    let count = seconds as usize * 1000;
    let mut times = Vec::with_capacity(count);
    let mut next = Instant::now();
    for _ in 0..count {
        next += PACE;
        thread::sleep(next.saturating_duration_since(Instant::now()));
        times.push(client.get("/")?.1);
    }
    let cpu: u64 = cpu_of(service)?.iter().zip(&before).map(|((_, after), (_, before))| after - before).sum();
    let us = |time: Duration| time.as_nanos() as f64 / 1e3;
    Ok([us(percentile(&mut times, 50)), us(percentile(&mut times, 99)), cpu as f64 / 1e3 / count as f64])
}
