//! Batches: a handler of fixed cost, which does 32 requests in the time of one, beside the same one by one and the ideal.

use super::load::{Load, Measured};
use super::{Failure, Server, service};

/// The cost of a batch of `handlers:batched`, and of a request of `handlers:unbatched`.
const COST_SECONDS: f64 = 0.005;
/// The most requests in one.
const SIZE: f64 = 32.0;

/// Cases: the handler, the connections, and the requests that a batch can have.
const CASES: [(&str, &str, u32, f64); 3] = [
    ("one by one", "handlers:unbatched", 64, 1.0),
    ("batches of 32, 64 connections", "handlers:batched", 64, SIZE),
    ("batches of 32, 32 connections", "handlers:batched_after_a_wait", 32, SIZE),
];

/// Measures and shows.
pub(crate) fn measure(seconds: u32, runs: usize) -> Result<(), Failure> {
    let servers = CASES.map(|(_, handler, _, _)| service::of(handler, true));
    let servers: Vec<Box<dyn Server>> = servers.into_iter().collect::<Result<_, _>>()?;
    let mut found = CASES.map(|_| Vec::new());
    for number in 0..=runs {
        for (((_, _, connections, _), server), found) in CASES.iter().zip(&servers).zip(&mut found) {
            let load = Load::get(*connections, "/");
            let measured = load.run(&**server, if number == 0 { 1 } else { seconds })?;
            if number > 0 {
                found.push(measured);
            }
        }
    }
    println!("\nbatch: traced, a handler of {} ms", COST_SECONDS * 1e3);
    println!("{:<32}{:>10}{:>10}{:>10}{:>10}{:>10}", "", "req/s", "ideal", "of it", "p50 µs", "p99 µs");
    for ((name, _, _, size), found) in CASES.iter().zip(&found) {
        let Measured { per_second, p50_us, p99_us, .. } = Measured::median(found);
        let ideal = size / COST_SECONDS;
        let part = per_second / ideal;
        println!("{name:<32}{per_second:>10.0}{ideal:>10.0}{part:>10.3}{p50_us:>10.0}{p99_us:>10.0}");
    }
    Ok(())
}
