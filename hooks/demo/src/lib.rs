//! The module built into tracer, so that there is something to submit.
