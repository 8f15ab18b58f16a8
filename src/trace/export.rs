//! Ended spans in the formats of other tools: OTLP in JSON, and the trace event format that Chrome's tools and Perfetto read.
//!
//! Both are written span by span; nothing is kept but what tells processes apart.

mod chrome;
mod otlp;

pub use chrome::chrome;
pub use otlp::otlp;
