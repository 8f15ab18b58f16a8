//! Cost of metrics: a traced service beside the same one that counts nothing, because the folder of its counts cannot be made.

use super::load::{Load, Measured};
use super::{Failure, Server, service};

const LOAD: Load = Load::get(32, "/");

/// Measures and shows.
pub(crate) fn measure(seconds: u32, runs: usize) -> Result<(), Failure> {
    let servers: [(&str, Box<dyn Server>); 2] = [("off", service::uncounted()?), ("on", service::traced()?)];
    let mut found = [Vec::new(), Vec::new()];
    for number in 0..=runs {
        for ((_, server), found) in servers.iter().zip(&mut found) {
            let measured = LOAD.run(&**server, if number == 0 { 1 } else { seconds })?;
            if number > 0 {
                found.push(measured);
            }
        }
    }
    println!("\nmetrics: traced, {LOAD}");
    println!("{:<26}{:>10}{:>10}{:>10}{:>10}{:>10}", "", "req/s", "to off", "p50 µs", "p99 µs", "CPU µs");
    let off = Measured::median(&found[0]).per_second;
    for ((name, _), found) in servers.iter().zip(&found) {
        let Measured { per_second, p50_us, p99_us, cpu } = Measured::median(found);
        let all: f64 = cpu.iter().map(|(_, us)| us).sum();
        println!("{name:<26}{per_second:>10.0}{:>10.3}{p50_us:>10.0}{p99_us:>10.0}{all:>10.1}", per_second / off);
    }
    Ok(())
}
