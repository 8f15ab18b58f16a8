//! The harness of the integration tests, with the product's verbs.
//!
//! A test starts a [`Cluster`] (a head with its workers, in a folder of its own), says what a user would type
//! ([`Cluster::tracer`], [`Cluster::submit`]) and looks at what a user would see: the [`Run`], the [`Spans`], the status. It waits for
//! facts with [`wait_until`] and never for time to pass. When the cluster is dropped everything is stopped, and the test fails if
//! a process is left. A failing test prints the logs of its head and workers.

#![allow(dead_code, unused_imports, reason = "each test uses the part of the harness that it needs")]
#![allow(unreachable_pub, reason = "the harness reads as the library that it is")]

mod broker;
mod cluster;
mod foreign;
mod http;
mod load;
mod modules;
mod network;
mod node;
mod processes;
mod python;
mod random;
mod receiver;
mod run;
mod skip;
mod spans;
mod terminal;
mod wait;

pub use broker::{Broker, base64_url, broker_program, free_port, free_ports_of_servers};
pub use cluster::{Builder, Cluster, Cluster as Head};
pub use foreign::{build_standalone, cargo_on_new_crate, compile_c, compile_c_with};
pub use http::{Answer, Api, Ask, read_answer, read_chunk, read_head};
pub use load::{Clients, Exchange, Idle, Outcome};
pub use modules::{build_modules, fixture_folder, module_folder, program_path};
pub use network::{Network, Relay, in_network_of};
pub use node::{node_client, node_clients};
pub use processes::{Process, is_alive, kill, kill_if_there};
pub use python::python_with;
pub use random::Random;
pub use receiver::{Certificates, Receiver};
pub use run::{Background, Run};
pub use skip::skip;
pub use spans::{Span, Spans};
pub use terminal::{in_a_terminal, run_in_a_terminal, type_in_a_terminal};
pub use tracer::Driver;
pub use wait::{wait_until, wait_until_within};

/// The hook that comes with tracer.
pub const HOOK: &str = "local_tmp_tracing:setup_tracing";
