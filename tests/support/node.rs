//! Clients in Node.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Cluster, skip};

/// Returns the folder of the packages that clients in Node need, which the gate names. Where they are not, the test is skipped.
pub fn node_clients() -> Option<PathBuf> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/node");
    let tools = std::env::var_os("TRACER_NODE_CLIENTS").map_or(fixtures.join("node_modules"), PathBuf::from);
    if tools.join("ws").is_dir() {
        return Some(tools);
    }
    skip(
        "node clients",
        format_args!("`npm ci` in tests/fixtures/node installs them; there is no {}", tools.display()),
    );
    None
}

/// Returns a command that runs a script of `tests/fixtures/node` with these packages.
pub fn node_client(cluster: &Cluster, tools: &Path, script: &str, arguments: &[&str]) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/node").join(script);
    let mut node = cluster.program("node");
    node.env("NODE_PATH", tools).arg(script).args(arguments);
    node
}
