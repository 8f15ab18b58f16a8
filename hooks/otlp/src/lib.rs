//! A tracing hook: sampled spans go over OTLP to a collector or a backend, in batches.
//!
//! [`setup_tracing`] is the hook. It speaks OTLP/HTTP with protobuf; the hook `otlp_grpc` speaks gRPC and shares what is not HTTP.
//! Where spans go is said by OpenTelemetry's own variables. They are needed where `tracer start` runs; a submission takes them over,
//! unless its own environment has an `OTEL_EXPORTER_…`.
//!
//! | variable | what it says | without it |
//! | --- | --- | --- |
//! | `OTEL_EXPORTER_OTLP_ENDPOINT` | the URL of the server; `/v1/traces` is appended | `http://localhost:4318` |
//! | `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` | the URL for traces, taken as it is | |
//! | `OTEL_EXPORTER_OTLP_HEADERS` | headers of every request: `key=value,key=value`, values percent-encoded | none |
//! | `OTEL_EXPORTER_OTLP_COMPRESSION` | `gzip` or `none` | `none` |
//! | `OTEL_EXPORTER_OTLP_TIMEOUT` | what a batch may take with all its tries, in milliseconds | 10000 |
//! | `OTEL_EXPORTER_OTLP_PROTOCOL` | `http/protobuf`; another is an error that says what to do | `http/protobuf` |
//! | `OTEL_EXPORTER_OTLP_CERTIFICATE` | a PEM file with the authorities to trust | Mozilla's |
//! | `OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE`, `OTEL_EXPORTER_OTLP_CLIENT_KEY` | PEM files with which to introduce oneself | |
//! | `OTEL_LOGS_EXPORTER` | `otlp`: log records of modules are sent too, to `/v1/logs` | spans alone are sent |
//! | `OTEL_BSP_SCHEDULE_DELAY` | the longest that a span waits for its batch, in milliseconds | 5000 |
//! | `OTEL_BSP_MAX_QUEUE_SIZE` | how many spans may wait; a further one is dropped | 2048 |
//! | `OTEL_BSP_MAX_EXPORT_BATCH_SIZE` | how many are sent at once | 512 |
//! | `OTEL_BSP_EXPORT_TIMEOUT` | as `OTEL_EXPORTER_OTLP_TIMEOUT`; the shorter counts | 30000 |
//!
//! Each `OTEL_EXPORTER_OTLP_…` exists as `OTEL_EXPORTER_OTLP_TRACES_…` too, which comes first, and for log records as
//! `OTEL_EXPORTER_OTLP_LOGS_…`. Log records are sent in batches by `OTEL_BLRP_…`, as spans are by `OTEL_BSP_…`.
//!
//! No task waits for the network. The SDK's batch processor queues ended spans and hands them to a thread of its own. A batch
//! that the receiver answers with 429, 502, 503 or 504, or that does not reach it, is tried again until the timeout, in growing
//! intervals or after the time that the receiver names; what is not delivered then waits, and tracer offers it again. What the
//! receiver refuses for good, whole batches or a part of one, is counted by `tracer status`. The first failure of a process is said on
//! its standard error. Spans of a short submission are exported by a worker: what the receiver says of them is in that worker's log, and what
//! becomes of them in the head's.
//!
#![doc = include_str!("backends.md")]

pub mod delivery;
mod http;
mod settings;

pub use http::{HttpTransport, authorities_pem, client_pem};
pub use settings::{Compression, Protocol, Settings, SettingsError};
use tracer_sdk::hook::Tracing;

/// Spans over OTLP/HTTP to where the variables say.
///
/// On failure: a variable says something with which spans would not go where they should, or a file that one names cannot be
/// used. Whether anyone listens there is not tried.
pub fn setup_tracing() -> Result<Tracing, SettingsError> {
    let settings = Settings::from_env(Protocol::Http)?;
    settings.warn();
    let transport = HttpTransport::new(&settings)?;
    let receiver = format!("`{}`", settings.shown_endpoint());
    let description = format!("spans over OTLP/HTTP to {receiver}");
    let mut builder = delivery::builder(transport, receiver, settings.timeout, description);
    if let Some(settings) = Settings::of_logs(Protocol::Http, |name| std::env::var(name).ok())? {
        settings.warn();
        let receiver = format!("`{}`", settings.shown_endpoint());
        builder = delivery::with_logs(builder, HttpTransport::new(&settings)?, receiver, settings.timeout);
    }
    Ok(builder.build())
}
