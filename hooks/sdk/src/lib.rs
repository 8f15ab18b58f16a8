//! Safe Rust for the authors of task modules and tracing hooks.

#[cfg(feature = "hooks")]
pub mod hook;
#[cfg(feature = "hooks")]
pub use hook::{DurableProcessor, IntoTracing, Tracing};
