//! A task that calls a service over HTTP. Each request is a CLIENT span of the task's trace, and carries the trace on in its headers, so that spans of the
//! service become children of it.
//!
//! What one patches in Python is a middleware here: whatever uses `agent` is traced, and none of it has to know. The propagators are
//! those of the OpenTelemetry SDK; a module sets them once, when it is loaded.
//!
//! ```text
//! $ cargo build -p http_task
//! $ export TRACER_MODULE_PATH=$PWD/target/debug
//! $ tracer submit task http_task:fetch '"http://localhost:8000/"'
//! ```

use opentelemetry::propagation::TextMapCompositePropagator;
use opentelemetry::trace::{SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue, global};
use opentelemetry_http::HeaderInjector;
use opentelemetry_sdk::propagation::{BaggagePropagator, TraceContextPropagator};
use serde::Serialize;
use tracer_sdk::task;
use ureq::http::{Request, Response};
use ureq::middleware::MiddlewareNext;
use ureq::{Agent, Body, SendBody};

/// Answer of a service.
#[derive(Debug, Serialize)]
struct Fetched {
    status: u16,
    text: String,
}

/// Fetches a page.
#[task]
fn fetch(url: &str) -> Result<Fetched, ureq::Error> {
    let mut response = agent().get(url).call()?;
    let status = response.status().as_u16();
    Ok(Fetched { status, text: response.body_mut().read_to_string()? })
}

#[tracer_sdk::on_load]
fn set_propagators() {
    global::set_text_map_propagator(TextMapCompositePropagator::new(vec![
        Box::new(TraceContextPropagator::new()),
        Box::new(BaggagePropagator::new()),
    ]));
}

/// A client whose requests are traced.
fn agent() -> Agent {
    Agent::config_builder().middleware(trace_request).build().into()
}

/// A CLIENT span around a request, by the semantic conventions of OpenTelemetry.
fn trace_request(mut request: Request<SendBody<'_>>, next: MiddlewareNext<'_>) -> Result<Response<Body>, ureq::Error> {
    let tracer = global::tracer("http_task");
    let (method, uri) = (request.method().to_string(), request.uri());
    let default_port = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    let attributes = [
        KeyValue::new("http.request.method", method.clone()),
        KeyValue::new("url.full", uri.to_string()),
        KeyValue::new("server.address", uri.host().unwrap_or_default().to_owned()),
        KeyValue::new("server.port", i64::from(uri.port_u16().unwrap_or(default_port))),
    ];
    let span = tracer.span_builder(method).with_kind(SpanKind::Client).with_attributes(attributes).start(&tracer);
    let context = Context::current_with_span(span);
    global::get_text_map_propagator(|propagator| {
        propagator.inject_context(&context, &mut HeaderInjector(request.headers_mut()));
    });
    let answer = {
        let _attached = context.clone().attach();
        next.handle(request)
    };
    let span = context.span();
    let status = match &answer {
        Ok(response) => Some(response.status().as_u16()),
        Err(ureq::Error::StatusCode(status)) => Some(*status),
        Err(_) => None,
    };
    if let Some(status) = status {
        span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
    }
    match (status, &answer) {
        (Some(status @ 400..), _) => {
            span.set_attribute(KeyValue::new("error.type", status.to_string()));
            span.set_status(Status::error(""));
        }
        (None, Err(error)) => {
            span.set_attribute(KeyValue::new("error.type", "no_response"));
            span.set_status(Status::error(error.to_string()));
        }
        _ => {}
    }
    span.end();
    answer
}
