//! The hook that sends spans over OTLP/gRPC as a module: `libotlp_grpc.so`, for `otlp_grpc:setup_tracing`.
//!
//! All of it is in `tracer-otlp-grpc`. It is not built into tracer, which would carry an HTTP/2 stack and a runtime for it.

use tracer_otlp::SettingsError;
use tracer_sdk::hook::Tracing;

/// Sends every sampled span over OTLP/gRPC to a collector or a backend, in batches.
///
/// Where and how is said by the standard variables `OTEL_EXPORTER_OTLP_*` and `OTEL_BSP_*`; without any, to
/// `http://localhost:4317`. A collector that is not there slows no task.
#[tracer_sdk::startup_hook]
fn setup_tracing() -> Result<Tracing, SettingsError> {
    tracer_otlp_grpc::setup_tracing()
}

tracer_sdk::export!(hooks = [setup_tracing]);
