//! A module with two tracing hooks, which shows how an exporter of the OpenTelemetry world is added to a hook of ours.
//!
//! ```text
//! cargo build -p hook_stdout
//! tracer start --head --tracing-startup-hook=./target/debug/libhook_stdout.so:setup_tracing
//! tracer submit task
//! ```
//!
//! `opentelemetry-stdout` prints an indented text to standard output, and nowhere else. In a worker, standard output is
//! what a task prints, and the head takes it for that: the spans come out of `tracer submit` and the worker's log among the
//! task's own lines. That is fine for trying things out, and is why the hook for every day writes a file.
//!
//! The same three lines add any other exporter: one to a collector goes where `opentelemetry_stdout` is named below.

use opentelemetry_sdk::Resource;
use opentelemetry_stdout::SpanExporter;
use tracer_local_tmp_tracing::FileProcessor;
use tracer_sdk::hook::{Error, Tracing};

/// Spans to the span file, and to standard output as each ends.
///
/// The file comes first and makes the spans durable: when the result of a task is seen, they are on disk. What the other
/// exporter makes of them does not delay that.
#[tracer_sdk::startup_hook]
fn setup_tracing() -> Result<Tracing, Error> {
    let file = FileProcessor::in_env_dir()?;
    let description = format!("spans to `{}` and to standard output", file.path().display());
    Ok(Tracing::builder()
        .with_durable_processor(file)
        .with_simple_exporter(SpanExporter::default())
        .with_description(description)
        .build())
}

/// Spans to standard output alone, in batches: a hook that cannot fail returns its description as it is.
///
/// Nothing keeps these spans on disk, so the host does: those that were not printed when a worker is killed are in the
/// span file nevertheless.
#[tracer_sdk::startup_hook]
fn stdout_alone() -> Tracing {
    Tracing::builder()
        .with_batch_exporter(SpanExporter::default())
        .with_resource(Resource::builder().with_service_name("hook_stdout").build())
        .build()
}
