//! The span of `traced_tasks:many`, made as a program without tracer makes it: by the OpenTelemetry SDK, with the processor of the default hook.

use opentelemetry::trace::{Span as _, SpanBuilder, Tracer as _};
use opentelemetry::{KeyValue, global};
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracer_local_tmp_tracing::FileProcessor;
use tracer_sdk::hook::DurableProcessor;
use tracer_span_file::Rotation;

use super::{Failure, process};

/// Spans of one task, which are committed together. The spool holds as many.
pub(crate) const TOGETHER: usize = 2_000;

/// Nanoseconds of cpu time of each of `tasks` times as many spans.
pub(crate) fn directly(tasks: usize) -> Result<f64, Failure> {
    let folder = tempfile::Builder::new().prefix("spans-").tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let processor = FileProcessor::try_new(folder.path(), Rotation::default())?;
    let provider = SdkTracerProvider::builder().with_span_processor(processor.clone()).build();
    global::set_tracer_provider(provider);
    let tracer = global::tracer("traced_tasks");
    let before = process::cpu_ns(std::process::id())?;
    for _ in 0..tasks {
        tracer.in_span("the task", |_| {
            for number in 0..TOGETHER {
                let attributes = [
                    KeyValue::new("fixture.kind", "one of many"),
                    KeyValue::new("fixture.function", "traced_tasks.many"),
                    KeyValue::new("fixture.number", number as i64),
                    KeyValue::new("fixture.count", TOGETHER as i64),
                    KeyValue::new("fixture.place", "machine"),
                ];
                tracer.build(SpanBuilder::from_name("one of many").with_attributes(attributes)).end();
            }
        });
        processor.commit()?;
    }
    Ok((process::cpu_ns(std::process::id())? - before) as f64 / (tasks * TOGETHER) as f64)
}
