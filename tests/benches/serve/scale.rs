//! Many replicas, and many routes: requests per second beside those of a service with one.

use std::fmt::Write as _;

use super::Failure;
use super::client::median;
use super::load::Load;
use super::service::{Service, one};

/// Replicas of one deployment.
const REPLICAS: usize = 64;
/// Applications, each with a route and a replica of its own.
const ROUTES: usize = 1_000;
/// Processes that the head may have, as its variable says it.
const ROOM: &[(&str, &str)] = &[("TRACER_MAX_PROCESSES", "1100")];

/// Measures replicas and shows.
pub(crate) fn replicas(seconds: u32, runs: usize) -> Result<(), Failure> {
    let deployment = format!("import_path = \"handlers:app\"\nnum_replicas = {REPLICAS}\n");
    let many = format!("{}[[applications.deployments]]\n{deployment}", one("handlers:app"));
    compare("replicas", &format!("{REPLICAS} replicas"), "1 replica", &many, &one("handlers:app"), "/", (seconds, runs))
}

/// Measures routes and shows.
pub(crate) fn routes(seconds: u32, runs: usize) -> Result<(), Failure> {
    let mut many = String::new();
    for number in 0..ROUTES {
        let application = format!("name = \"app-{number}\"\nroute_prefix = \"/of/{number}\"\n");
        write!(many, "{}{application}", one("handlers:app"))?;
    }
    let path: &'static str = format!("/of/{}", ROUTES - 1).leak();
    let single = format!("{}route_prefix = \"{path}\"\n", one("handlers:app"));
    compare("routes", &format!("{ROUTES} routes"), "1 route", &many, &single, path, (seconds, runs))
}

fn compare(
    name: &str,
    many_name: &str,
    one_name: &str,
    many: &str,
    one: &str,
    path: &'static str,
    (seconds, runs): (u32, usize),
) -> Result<(), Failure> {
    let services = [Service::start(one, true, ROOM)?, Service::start(many, true, ROOM)?];
    let load = Load::get(32, path);
    let mut found = [Vec::new(), Vec::new()];
    for number in 0..=runs {
        for (service, found) in services.iter().zip(&mut found) {
            let measured = load.run(service, if number == 0 { 1 } else { seconds })?;
            if number > 0 {
                found.push(measured.per_second);
            }
        }
    }
    let [one, many] = found.map(median);
    println!("\n{name}: traced, {load}");
    println!("{one_name:<26}{one:>10.0} req/s");
    println!("{many_name:<26}{many:>10.0} req/s  {:.2} of it", many / one);
    Ok(())
}
