//! Builds of a module on the nodes of a queue: whoever has just built one is told that the task may run another.

use std::time::{Duration, Instant};

use tracer_client::driver::{Driver, DriverError};
use tracer_core::hex::hex;
use tracer_host::hook::builtin_names;
use tracer_ipc::protocol::{NodeReport, Query, Reply};

use crate::cli::report;

/// Time in which the engine has to say which nodes there are.
const LIMIT: Duration = Duration::from_millis(500);

/// Digits of a digest that are shown.
const SHORT: usize = 12;

/// Warns if living nodes of a queue have another build of the module of a task than the head here.
pub(super) fn warn_of_others(driver: &mut Driver, module: &str, queue: &str) -> Result<(), DriverError> {
    let Some(place) = driver.welcome().place_id.filter(|_| !queue.is_empty()).map(|place| place.to_string()) else {
        return Ok(());
    };
    // A built-in one is in nobody's folder, and one that cannot be read is told of by who runs it.
    let folders = driver.welcome().module_folders.iter();
    let library = folders.map(|folder| folder.join(format!("lib{module}.so"))).find(|library| library.is_file());
    let is_built_in = builtin_names().any(|built_in| built_in == module);
    let digest = library.filter(|_| !is_built_in).and_then(|library| tracer_engine::digest::of_file(&library).ok());
    let Some(own) = digest.map(|digest| hex(&digest)) else { return Ok(()) };
    // An engine that does not answer keeps no submission waiting.
    let reply = driver.query_until(&Query::Cluster, Instant::now() + LIMIT)?;
    let Some(Reply::Cluster(Ok(cluster))) = reply else { return Ok(()) };
    let serves = |node: &&NodeReport| {
        node.is_alive && node.place_id != place && node.queues.iter().any(|served| served == queue)
    };
    let others = cluster.nodes.iter().filter(serves).filter_map(|node| Some((node, node.digest_of(module)?)));
    let others = others.filter(|(_, digest)| *digest != own);
    let others: Vec<_> = others.map(|(node, digest)| format!("{} ({})", node.node_id, short(digest))).collect();
    if !others.is_empty() {
        report::warning(&format!(
            "living nodes of the queue `{queue}` have another build of the module `{module}` than this one ({}): {}. Each runs its own\n\
             (hint: put this library into a folder of each of them, by a rename: the next task runs it; `tracer doctor` compares all)",
            short(&own),
            others.join(", ")
        ));
    }
    Ok(())
}

fn short(digest: &str) -> &str {
    digest.get(..SHORT).unwrap_or(digest)
}
