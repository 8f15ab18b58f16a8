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
//!
//! **For** the program, which runs it as a process. **Uses** what decides (`tracer-reactor`), `tracer-ipc`, `tracer-settings`, and the host's lists of modules.
//!
//! **Never** decides what a task does next, or speaks HTTP. `unsafe` code is here for processes: what a child does before it becomes another program.

pub use tracer_reactor::{self as reactor, state};

mod agent;
mod clients;
mod connection;
pub mod figures;
mod front;
pub mod guard;
mod handover;
mod heap;
mod io;
mod journal;
mod keeper;
mod logs;
mod memory;
mod oom;
mod output;
mod place;
pub mod process;
pub mod recovery;
pub mod restore;
pub mod server;
mod services;
pub mod settings;
mod shared_output;
mod source;
mod status;
mod watch;
