//! tracer.

pub mod config;
pub mod count;
pub mod exit;
pub mod propagation;
pub mod suggestion;
