//! Async tasks, and how a span follows work that leaves the function. OpenTelemetry's current span belongs to a thread,
//! so a future that runs in between others, and a thread that is started, have to be given theirs: with
//! `with_context` for a future, with `attach` for a thread. That is OpenTelemetry's way in every program; the
//! task's own span is simply what is current when the task begins.
//!
//! ```text
//! $ cargo build -p async_task
//! $ export TRACER_MODULE_PATH=$PWD/target/debug
//! $ tracer submit task async_task:probe '["localhost:22","localhost:1"]' 2.5
//! $ tracer submit task async_task:checksums '["one","two"]'
//! ```

use std::thread;
use std::time::{Duration, Instant};

use opentelemetry::trace::{FutureExt, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue, global};
use serde::Serialize;
use tokio::net::TcpStream;
use tokio::task::JoinError;
use tokio::time::timeout;
use tracer_sdk::task;

/// Result of an attempt to connect to an address.
#[derive(Debug, Serialize)]
struct Probe {
    address: String,
    seconds: f64,
    /// Reason why there was no connection; absent if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Tries to connect to all addresses (`host:port`) at once, and says which answer.
///
/// Gives up after `seconds`, by default 1. An address that does not answer is no error of the task.
#[task]
async fn probe(addresses: Vec<String>, seconds: Option<f64>) -> Result<Vec<Probe>, Box<dyn std::error::Error>> {
    let limit = Duration::try_from_secs_f64(seconds.unwrap_or(1.0))?;
    // Each future has a span of its own, which is current whenever that future runs and at no other time.
    let probes: Vec<_> = addresses.into_iter().map(|address| tokio::spawn(probe_one(address, limit))).collect();
    let mut results = Vec::with_capacity(probes.len());
    for probe in probes {
        results.push(probe.await?);
    }
    Ok(results)
}

/// Not an `async fn`: the span is to begin now, while the task's span is current, and not when the future first runs.
fn probe_one(address: String, limit: Duration) -> impl Future<Output = Probe> {
    let tracer = global::tracer("async_task");
    let attributes = [KeyValue::new("server.address", address.clone())];
    let span = tracer.span_builder("connect").with_kind(SpanKind::Client).with_attributes(attributes).start(&tracer);
    let context = Context::current_with_span(span);
    let future = async move {
        let start = Instant::now();
        let error = match timeout(limit, TcpStream::connect(&address)).await {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {limit:?}")),
        };
        Context::map_current(|context| {
            if let Some(error) = &error {
                context.span().set_status(Status::error(error.clone()));
            }
            context.span().end();
        });
        Probe { address, seconds: start.elapsed().as_secs_f64(), error }
    };
    future.with_context(context)
}

/// The Fletcher-16 checksum of every text, computed on threads of their own.
#[task]
async fn checksums(texts: Vec<String>) -> Result<Vec<u16>, JoinError> {
    let threads: Vec<_> = texts
        .into_iter()
        .map(|text| {
            // What is current here is current nowhere else: the thread takes it along.
            let context = Context::current();
            tokio::task::spawn_blocking(move || {
                let _attached = context.attach();
                global::tracer("async_task").in_span("checksum", |context| {
                    let thread = thread::current();
                    let name = thread.name().unwrap_or("unnamed").to_owned();
                    context.span().set_attribute(KeyValue::new("thread.name", name));
                    fletcher16(text.as_bytes())
                })
            })
        })
        .collect();
    let mut checksums = Vec::with_capacity(threads.len());
    for thread in threads {
        checksums.push(thread.await?);
    }
    Ok(checksums)
}

fn fletcher16(bytes: &[u8]) -> u16 {
    let (low, high) = bytes.iter().fold((0_u16, 0_u16), |(low, high), byte| {
        let low = (low + u16::from(*byte)) % 255;
        (low, (high + low) % 255)
    });
    high << 8 | low
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<F: Future>(future: F) -> F::Output {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime can be built").block_on(future)
    }

    #[test]
    fn checksums_are_in_the_order_of_the_texts() {
        let checksums = run(checksums(vec!["abcde".to_owned(), "abcdef".to_owned()]));
        assert_eq!(checksums.expect("no thread panics"), [0xc8f0, 0x2057]);
    }

    #[test]
    fn address_that_answers_and_one_that_does_not() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let open = listener.local_addr().expect("it is bound").to_string();
        let probes = run(probe(vec![open.clone(), "not an address".to_owned()], Some(60.0))).expect("no future panics");
        assert_eq!(probes[0].address, open);
        assert_eq!(probes[0].error, None);
        assert!(probes[1].error.is_some());
    }

    #[test]
    fn limit_that_is_no_duration_is_an_error() {
        assert!(run(probe(vec![], Some(-1.0))).is_err());
    }
}
