//! tracer.
