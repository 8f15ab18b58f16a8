//! The HTTP API: what it takes, what it refuses, and that nobody is hurt by those who use it.

mod access;
mod clients;
mod description;
mod tasks;
mod w3c;

use crate::support::{Api, Builder, Cluster, HOOK};

/// Starts a cluster with an HTTP API.
fn builder() -> Builder {
    Cluster::builder().arg("--http").arg("127.0.0.1:0")
}

/// Returns a traced one, with one worker.
#[track_caller]
fn traced() -> (Cluster, Api) {
    let cluster = builder().hook(HOOK).start();
    let api = Api::of(&cluster);
    (cluster, api)
}

/// Returns one without a hook.
#[track_caller]
fn untraced() -> (Cluster, Api) {
    let cluster = builder().start();
    let api = Api::of(&cluster);
    (cluster, api)
}
