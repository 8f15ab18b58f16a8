//! The span file: one JSON object a line, with the keys of the OpenTelemetry Python console exporter.
//!
//! [`write_line`] turns one [`Span`] into one line; [`SpanFile`] appends whole lines to `<folder>/<pid>.json`, rotates the
//! file and counts what it could not write. Two parties use it: the default tracing hook, for the spans of its own
//! process, and the host, for the spans of a process that died or whose hook failed.
//!
//! It knows neither the OpenTelemetry crates nor the contract with modules: whoever calls it brings plain borrowed data.
//! [`LineQueue`] is what a process of many threads has before its file: it collects lines, writes them together, and makes whoever
//! has too many of them wait.
//!
//! Nothing here prints, and no thread is started, save one that closes old files when a large file is [rotated](Rotation).

mod file;
pub mod json;
mod line;
mod queue;
mod retire;
mod space;

pub use file::{
    AppendError, Counts, MAX_BYTES_VARIABLE, Rotation, SPANS_DIR_VARIABLE, SpanDirError, SpanFile, dir_from_env,
    prepare_dir,
};
pub use line::{
    Attributes, Event, Head, Link, Rendered, ResourceJson, Span, SpanKind, Status, Value, push_event, push_key,
    push_link, push_name, python_trace_state, write_line, write_rendered_line, write_value,
};
pub use queue::{CommitError, LineQueue, LineSink, Refusal};
pub use retire::{LARGE_FILE, retire};
pub use space::SpaceAhead;
