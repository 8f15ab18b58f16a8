//! The hook that writes OTLP JSON lines as an item to export: for the module `otlp_file`, and for the binary, which has it built in.
//!
//! All of it is in `tracer-otlp-file`. Why the attribute is neither there nor in the module is told in
//! `tracer-local-tmp-tracing-hook`.

use tracer_otlp_file::SpanDirError;
use tracer_sdk::hook::Tracing;

/// Writes every sampled span to `/tmp/spans/<pid>.otlp.jsonl`.
///
/// `TRACER_SPANS_DIR` names another folder. One OTLP `TracesData` object per line, as the OpenTelemetry specification describes
/// the file exporter. The spans of a task are in the file before anybody sees its result.
#[tracer_sdk::startup_hook]
pub fn setup_tracing() -> Result<Tracing, SpanDirError> {
    tracer_otlp_file::setup_tracing()
}

tracer_sdk::builtin_module! {
    /// The record of this module, for the binary.
    pub fn module, hooks = [setup_tracing]
}
