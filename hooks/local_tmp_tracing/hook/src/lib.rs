//! The default tracing hook as an item to export: for the module `local_tmp_tracing`, and for the binary, which has it built in.
//!
//! All of it is in `tracer-local-tmp-tracing`. The attribute is here and not there, because it makes the function a hook of
//! every library that links it, also of one that only wants the span processor. It is not in the module either: the file of
//! a library that is both a module and linked has no hash in its name, so two builds of it overwrite each other.

use tracer_local_tmp_tracing::SpanDirError;
use tracer_sdk::hook::Tracing;

/// Writes every sampled span to `/tmp/spans/<pid>.json`.
///
/// `TRACER_SPANS_DIR` names another folder. One JSON object per line, with the keys of the OpenTelemetry Python console
/// exporter. The spans of a task are in the file before anybody sees its result.
#[tracer_sdk::startup_hook]
pub fn setup_tracing() -> Result<Tracing, SpanDirError> {
    tracer_local_tmp_tracing::setup_tracing()
}

tracer_sdk::builtin_module! {
    /// The record of this module, for the binary: one copied `tracer` traces without a library beside it.
    pub fn module, hooks = [setup_tracing]
}
