//! `tracer` launches tasks, and every task is a trace.

pub mod cli;
pub mod clock;
pub mod config;
pub mod count;
pub mod driver;
pub mod exit;
mod fault;
pub mod head;
pub mod hook;
pub mod names;
pub mod propagation;
pub mod protocol;
pub mod scheduler;
pub mod session;
pub mod spool;
pub mod suggestion;
pub mod task;
pub mod trace;
pub mod value;
pub mod worker;

pub use driver::Driver;

/// The version of tracer.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
