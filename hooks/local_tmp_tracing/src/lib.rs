//! The default tracing hook: every sampled span of a process becomes a line of `/tmp/spans/<pid>.json`.
//!
//! [`setup_tracing`] is the hook. [`FileProcessor`] is its span processor, for hooks that write the file and do something
//! else besides; [`write_span`] turns one span of the SDK into its line, for those that write elsewhere.
//!
//! The format, the care for the folder, rotation and torn lines are those of `tracer-span-file`. This crate adds the
//! buffer between a span's end, which must be fast, and the file.

mod processor;
mod span_data;

use std::path::Path;

pub use processor::FileProcessor;
pub use span_data::{resource_json, write_span};
pub use tracer_span_file::SpanDirError;

use tracer_sdk::hook::Tracing;
use tracer_span_file::{Rotation, dir_from_env};

/// Spans to `<folder>/<pid>.json`, where the folder is what `TRACER_SPANS_DIR` says, else `/tmp/spans`.
///
/// On failure: the folder cannot be created, is a symbolic link, belongs to another user or cannot be written to. No file
/// is created before the process has a span to write.
#[tracer_sdk::startup_hook]
pub fn setup_tracing() -> Result<Tracing, SpanDirError> {
    setup_tracing_in(&dir_from_env())
}

/// [`setup_tracing`] for a folder that the caller names.
pub fn setup_tracing_in(dir: &Path) -> Result<Tracing, SpanDirError> {
    let processor = FileProcessor::try_new(dir, Rotation::default())?;
    let description = format!("spans to `{}`", processor.path().display());
    Ok(Tracing::builder().with_durable_processor(processor).with_description(description).build())
}

tracer_sdk::builtin_module! {
    /// The record of the module `local_tmp_tracing`, as it is built into tracer.
    pub fn module, hooks = [setup_tracing]
}
