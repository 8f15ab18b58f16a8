//! tracer.

pub mod count;
pub mod exit;
pub mod suggestion;
