//! Safe Rust for the authors of task modules and tracing hooks.
