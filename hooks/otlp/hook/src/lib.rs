//! The hook that sends spans over OTLP/HTTP as an item to export: for the module `otlp`, and for the binary, which has it built in.
//!
//! All of it is in `tracer-otlp`. Why the attribute is neither there nor in the module is told in
//! `tracer-local-tmp-tracing-hook`.

use tracer_otlp::SettingsError;
use tracer_sdk::hook::Tracing;

/// Sends every sampled span over OTLP/HTTP to a collector or a backend, in batches.
///
/// Where and how is said by the standard variables `OTEL_EXPORTER_OTLP_*` and `OTEL_BSP_*`; without any, to
/// `http://localhost:4318/v1/traces`. A collector that is not there slows no task.
#[tracer_sdk::startup_hook]
pub fn setup_tracing() -> Result<Tracing, SettingsError> {
    tracer_otlp::setup_tracing()
}

tracer_sdk::builtin_module! {
    /// The record of this module, for the binary.
    pub fn module, hooks = [setup_tracing]
}
