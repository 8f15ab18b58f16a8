//! The default tracing hook as a module: `liblocal_tmp_tracing.so`, for `local_tmp_tracing:setup_tracing`, and [`module`] for a
//! program that links this crate instead.
//!
//! All of it is in `tracer-local-tmp-tracing`. The attribute is here and not there, because it makes the function a hook of
//! every library that links it, also of one that only wants the span processor.

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
