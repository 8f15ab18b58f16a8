//! Many machines: nodes share the tasks of a queue over an engine that they all reach.
//!
//! **For** the process `agent`, which a head starts that has joined an engine. **Uses** `tracer-core`, and of `tracer-ipc` the messages between agent and
//! head. Without its feature `nats` it knows no engine, no socket, no clock and no runtime.
//!
//! | | |
//! |---|---|
//! | [`record`] | who has a task, and how it ended: the table by which that changes |
//! | [`bundle`] | several short tasks with one message and one record, and how that becomes a record for each |
//! | [`message`], [`output`] | bytes that other nodes read: messages of queues and between nodes, heartbeats |
//! | [`interface`] | what is asked of an engine |
//! | [`digest`], `modules` | libraries of modules, by which nodes tell whether they run the same |
//! | [`agent`] | what the agent decides |
//! | [`clock`] | how far the clocks of nodes are apart, and what follows from it |
//! | [`survey`] | what an engine tells of a cluster: nodes, queues, and who serves them |
//! | `signed` | what submitters sign, and what nodes trust |
//! | `access` | which ways to an engine are taken, and the files that they need |
//! | `process`, `nats` | the process, and the engine NATS JetStream, with the feature of that name |
//!
//! # Which outcome counts
//!
//! Every task has one record, its own or that of its bundle, changed by compare-and-swap only, and it ends once. Messages of queues say that there is something to do; that they are
//! delivered again, late, or after they were acknowledged changes nothing, because whoever gets one looks into the record.

#![forbid(unsafe_code)]

#[cfg(feature = "nats")]
pub mod access;
pub mod agent;
pub mod bundle;
pub mod clock;
pub mod digest;
#[cfg(feature = "nats")]
pub mod doctor;
pub mod interface;
pub mod message;
#[cfg(feature = "nats")]
mod modules;
#[cfg(feature = "nats")]
mod nats;
pub mod output;
#[cfg(feature = "nats")]
pub mod process;
#[cfg(feature = "nats")]
pub use nats::{config, roles};
pub mod record;
pub mod server_version;
#[cfg(feature = "nats")]
pub mod signed;
pub mod survey;
