//! The cases of the proxy for OpenTelemetry 0.33.

use opentelemetry as otel;
use tracer_sdk::proxy::otel_0_33::TracerProvider;

// The other version loads the same file.
#[allow(clippy::duplicate_mod)]
#[path = "proxy.rs"]
mod cases;
