//! Ended spans in the formats of other tools: OTLP in JSON, the trace event format that Chrome's tools and Perfetto read, and profiles for
//! speedscope and flame graphs.
//!
//! OTLP and trace events are written span by span; nothing is kept but what tells processes apart.

mod chrome;
mod folded;
mod otlp;
mod processes;
mod speedscope;

pub use chrome::chrome;
pub use folded::{Folded, folded};
pub use otlp::{Otlp, otlp};
pub use speedscope::speedscope;
