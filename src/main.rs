//! The tracer command.
fn main() {}
