//! The proxy, for every version of OpenTelemetry that is switched on: what task code does with the ordinary API arrives
//! at the host's table, field by field.

#![cfg(any(feature = "otel-0-31", feature = "otel-0-33"))]

mod support;

#[cfg(feature = "otel-0-31")]
#[path = "cases/otel_0_31.rs"]
mod otel_0_31;
#[cfg(feature = "otel-0-33")]
#[path = "cases/otel_0_33.rs"]
mod otel_0_33;
