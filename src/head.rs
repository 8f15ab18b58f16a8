//! The head: the one process that holds tasks and workers, decides, and supervises.
//!
//! ```text
//!            sockets, pipes, pidfds, signals, the clock
//!                            │ inputs                     ┌────────────────┐
//!   server ──────────────────┴──────────────────────────▶ │ reactor        │  on_submissions, on_results,
//!     ▲                                                   │  over state    │  on_worker_exited, schedule ...
//!     └─────────────── effects: lease, finish, start ◀─── └────────────────┘
//! ```
//!
//! [`state`] is data with its invariants, [`reactor`] is plain functions over it, `server` is the loop around them: one
//! thread that, each time it wakes up, reads all there is, decides, and writes once to each peer. `recovery` finishes the
//! story of processes that died; `handover` brings what they had not delivered to the exporters of others; `process` starts and ends workers, `memory` bounds what they take;
//! `clients` is the connections and what is on its way to them; `output` finds out which attempt wrote what in a worker; `journal` is the record from which a head recovers, which `restore` reads back; `place` hears of what happens to its files; `front` keeps the process of the HTTP API; `guard` is the head's parent, and sees to it that nothing outlives it.
//! The head makes no spans of its own, so it loads no hook.

pub use tracer_reactor::{self as reactor, state};

mod agent;
mod clients;
mod connection;
pub mod figures;
mod front;
pub(crate) mod guard;
mod handover;
pub(crate) mod heap;
mod io;
mod journal;
mod keeper;
mod logs;
mod memory;
mod oom;
mod output;
mod place;
pub(crate) mod process;
pub(crate) mod recovery;
pub(crate) mod restore;
pub(crate) mod server;
mod services;
pub(crate) mod settings;
mod shared_output;
mod status;
mod watch;
