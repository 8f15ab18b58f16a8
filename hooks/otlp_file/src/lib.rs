//! A tracing hook: every sampled span of a process becomes a line of `/tmp/spans/<pid>.otlp.jsonl`.
//!
//! [`setup_tracing`] is the hook; [`OtlpFormat`] is the format, for a
//! [`FileProcessor`] of a hook of one's own. Buffer, folder, rotation and torn lines are those
//! of the default hook. A line is a whole OTLP `TracesData` message, which collectors, Jaeger and others take as it is.
//!
//! The spans of a process that died are completed by the host, in the same file.

mod line;

use std::path::Path;

pub use line::OtlpFormat;
pub use tracer_local_tmp_tracing::SpanDirError;
use tracer_local_tmp_tracing::{FileProcessor, LineFormat, Rotation, dir_from_env};
use tracer_sdk::hook::{Tracing, decode_otlp};

/// Extension of the names of the files. The specification of the OTLP file exporter prefers `jsonl`.
pub const EXTENSION: &str = "otlp.jsonl";

/// Spans to `<folder>/<pid>.otlp.jsonl`, where the folder is what `TRACER_SPANS_DIR` says, else `/tmp/spans`.
///
/// On failure: the folder cannot be created, is a symbolic link, belongs to another user or cannot be written to. No file
/// is created before the process has a span to write.
pub fn setup_tracing() -> Result<Tracing, SpanDirError> {
    setup_tracing_in(&dir_from_env())
}

/// [`setup_tracing`] for a folder that the caller names.
pub fn setup_tracing_in(dir: &Path) -> Result<Tracing, SpanDirError> {
    let processor = FileProcessor::try_with_format(dir, EXTENSION, Rotation::from_env(), OtlpFormat::default())?;
    let description = format!("spans in OTLP JSON to `{}`", processor.path().display());
    Ok(Tracing::builder().with_durable_processor(processor).with_description(description).build())
}

/// Returns the lines that the hook writes for the spans of an encoded `ExportTraceServiceRequest`. On failure: what is wrong with it, for people
/// to read.
pub fn lines(request: &[u8]) -> Result<Vec<u8>, String> {
    let mut lines = Vec::new();
    for (resource, spans) in decode_otlp(request)? {
        let format = OtlpFormat::default().of_resource(&resource);
        spans.iter().for_each(|span| format.write_line(&mut lines, span));
    }
    Ok(lines)
}
