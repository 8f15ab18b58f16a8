//! The default tracing hook: every sampled span of a process becomes a line of `/tmp/spans/<pid>.json`.
//!
//! [`setup_tracing`] is the hook. [`FileProcessor`] is its span processor, for hooks that write the file and do something
//! else besides; [`write_span`] turns one span of the SDK into its line, for those that write elsewhere, and a [`LineFormat`] is
//! how the file is written in another format.
//!
//! The format, the care for the folder, rotation and torn lines are those of `tracer-span-file`. This crate adds the
//! buffer between a span's end, which must be fast, and the file.

mod processor;
mod span_data;

use std::path::Path;

pub use processor::{ConsoleFormat, FileProcessor, LineFormat};
pub use span_data::{resource_json, write_span};
pub use tracer_span_file::{Counts, Rotation, SpanDirError, dir_from_env};

use tracer_sdk::hook::Tracing;

/// Spans to `<folder>/<pid>.json`, where the folder is what `TRACER_SPANS_DIR` says, else `/tmp/spans`.
///
/// On failure: the folder cannot be created, is a symbolic link, belongs to another user or cannot be written to. No file
/// is created before the process has a span to write.
pub fn setup_tracing() -> Result<Tracing, SpanDirError> {
    FileProcessor::in_env_dir().map(tracing)
}

/// [`setup_tracing`] for a folder that the caller names.
pub fn setup_tracing_in(dir: &Path) -> Result<Tracing, SpanDirError> {
    FileProcessor::try_new(dir, Rotation::from_env()).map(tracing)
}

fn tracing(processor: FileProcessor) -> Tracing {
    let description = format!("spans to `{}`", processor.path().display());
    Tracing::builder().with_durable_processor(processor).with_description(description).build()
}
