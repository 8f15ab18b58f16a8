//! The ids of a request to a service, on every span below that of its handler.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use opentelemetry::trace::{Span as _, SpanId, TraceId};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanProcessor};

use super::lock::lock;

/// The attributes that are handed down: the request, then what serves it.
const STAMPS: [&str; 4] = ["request_id", "app", "deployment", "replica_id"];
/// The one that makes a span a request's: the host puts it on the span of a replica.
const REPLICA: &str = "replica_id";

/// Stamps of the spans that are open.
type Open = HashMap<(TraceId, SpanId), Arc<[KeyValue]>>;

/// A span processor that puts `request_id`, `app`, `deployment` and `replica_id` of a request on every span that its handler begins in the replica,
/// so that a backend can filter the handler's own spans by them.
///
/// A span takes them from its parent, by span id, on whichever thread and in whichever future it begins; the first are those of the span that the host
/// opens for the handler. A span whose parent has already ended gets none, nor does one of another process: that of a task which the handler submits, or
/// of a program. Attributes that a span has by itself stay as they are. The processor exports nothing: add it beside one that does.
///
/// ```
/// use tracer_sdk::hook::{RequestStamps, Tracing};
///
/// let tracing = Tracing::builder().with_span_processor(RequestStamps::default()).build();
/// # drop(tracing);
/// ```
///
/// Memory: an entry for each span of a request that is open. Threads: any; one lock is held while an entry is looked up.
#[derive(Debug, Default)]
pub struct RequestStamps {
    open: Mutex<Open>,
}

impl SpanProcessor for RequestStamps {
    fn on_start(&self, span: &mut Span, _context: &Context) {
        let Some(started) = span.exported_data() else { return };
        let of = |id: SpanId| (started.span_context.trace_id(), id);
        let has = |name: &str| started.attributes.iter().find(|attribute| attribute.key.as_str() == name);
        let inherited = lock(&self.open).get(&of(started.parent_span_id)).map(Arc::clone);
        let stamps: Arc<[KeyValue]> = match inherited {
            _ if has(REPLICA).is_some() => STAMPS.iter().filter_map(|name| has(name).cloned()).collect(),
            Some(stamps) => {
                let missing = stamps.iter().filter(|stamp| has(stamp.key.as_str()).is_none()).cloned();
                missing.for_each(|stamp| span.set_attribute(stamp));
                stamps
            }
            None => return,
        };
        lock(&self.open).insert(of(started.span_context.span_id()), stamps);
    }

    fn on_end(&self, span: SpanData) {
        lock(&self.open).remove(&(span.span_context.trace_id(), span.span_context.span_id()));
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        lock(&self.open).clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{TraceContextExt, Tracer, TracerProvider};
    use opentelemetry_sdk::trace::SdkTracerProvider;

    use super::*;

    fn attribute(spans: &[SpanData], name: &str, key: &str) -> Option<String> {
        let span = spans.iter().find(|span| span.name == name).expect("it was exported");
        span.attributes.iter().find(|one| one.key.as_str() == key).map(|one| one.value.to_string())
    }

    #[test]
    fn a_span_has_the_ids_of_the_request_above_it_and_of_no_other() {
        let collected = Collected::default();
        let provider = SdkTracerProvider::builder().with_span_processor(collected.clone()).build();
        let tracer = provider.tracer("test");
        let handled = |id: &'static str| {
            let ids = [KeyValue::new("request_id", id), KeyValue::new("replica_id", "shop#1"), KeyValue::new("x", 1)];
            Context::new().with_span(tracer.span_builder("handled").with_attributes(ids).start(&tracer))
        };
        let (first, second) = (handled("1"), handled("2"));
        let child = first.with_span(tracer.start_with_context("child", &first));
        let own = tracer.span_builder("own").with_attributes([KeyValue::new("request_id", "mine")]);
        drop(own.start_with_context(&tracer, &child));
        drop(std::thread::scope(|scope| {
            scope.spawn(|| tracer.start_with_context("grandchild", &child)).join().unwrap()
        }));
        drop(tracer.start_with_context("of the second", &second));
        drop(tracer.start_with_context("of nobody", &Context::new()));
        first.span().end();
        drop((child, first));
        second.span().end();
        let spans = lock(&collected.ended).clone();
        let id = |name: &str| attribute(&spans, name, "request_id");
        assert_eq!(
            [id("child"), id("grandchild"), id("own")],
            [Some("1".into()), Some("1".into()), Some("mine".into())]
        );
        assert_eq!([id("of the second"), id("of nobody")], [Some("2".into()), None]);
        assert_eq!(attribute(&spans, "grandchild", "replica_id").as_deref(), Some("shop#1"));
        assert_eq!(attribute(&spans, "grandchild", "x"), None);
        assert!(lock(&collected.stamps.open).is_empty(), "entries of spans that have ended are kept");
    }

    /// The processor, and what it has made of spans.
    #[derive(Clone, Debug, Default)]
    struct Collected {
        stamps: Arc<RequestStamps>,
        ended: Arc<Mutex<Vec<SpanData>>>,
    }

    impl SpanProcessor for Collected {
        fn on_start(&self, span: &mut Span, context: &Context) {
            self.stamps.on_start(span, context);
        }
        fn on_end(&self, span: SpanData) {
            lock(&self.ended).push(span.clone());
            self.stamps.on_end(span);
        }
        fn force_flush(&self) -> OTelSdkResult {
            self.stamps.force_flush()
        }
        fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
            self.stamps.shutdown_with_timeout(timeout)
        }
    }
}
