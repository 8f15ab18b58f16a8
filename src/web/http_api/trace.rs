//! The trace of a request: its caller's, from the headers, and the request's own SERVER span in it.

use http::{HeaderMap, StatusCode};
use tracer_abi as abi;
use tracer_core::address::LoopbackAddress;
use tracer_core::http_field::redacted_query;
use tracer_core::names;
use tracer_core::propagation::{Carrier, Propagators};
use tracer_host::hook::{ActiveSpan, Attribute, AttributePrefix, Recorder, SpanRequest};

/// Returns the context in the headers of a request. What is malformed counts as absent, as everywhere.
pub(super) fn carrier(headers: &HeaderMap, propagators: Propagators) -> Carrier {
    let values = |name: &'static str| headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    let (carrier, _) = Carrier::from_headers(values("traceparent"), values("tracestate"), values("baggage"));
    propagators.pass_on(carrier)
}

/// A request, for its span.
pub(super) struct Asked<'a> {
    pub(super) method: &'a str,
    pub(super) route: &'a str,
    pub(super) path: &'a str,
    pub(super) query: Option<&'a str>,
    pub(super) user_agent: Option<&'a str>,
    pub(super) address: LoopbackAddress,
}

/// The span of a request while it is served. If it is dropped before it was finished, the client has gone.
pub(super) struct ServerSpan {
    recorder: &'static Recorder,
    span: Option<ActiveSpan>,
}

impl ServerSpan {
    pub(super) fn start(recorder: &'static Recorder, asked: &Asked<'_>, carrier: &Carrier) -> ServerSpan {
        let address = asked.address.get();
        let host = address.ip().to_string();
        let mut attributes = vec![
            (names::HTTP_REQUEST_METHOD, Attribute::Str(asked.method)),
            (names::HTTP_ROUTE, Attribute::Str(asked.route)),
            (names::URL_PATH, Attribute::Str(asked.path)),
            (names::URL_SCHEME, Attribute::Str("http")),
            (names::SERVER_ADDRESS, Attribute::Str(&host)),
            (names::SERVER_PORT, u32::from(address.port()).into()),
        ];
        let query = asked.query.filter(|query| !query.is_empty()).map(redacted_query);
        attributes.extend(query.as_deref().map(|query| (names::URL_QUERY, Attribute::Str(query))));
        attributes.extend(asked.user_agent.map(|agent| (names::USER_AGENT_ORIGINAL, Attribute::Str(agent))));
        let span = recorder.start(&SpanRequest {
            name: &format!("{} {}", asked.method, asked.route),
            kind: abi::SPAN_KIND_SERVER,
            parent: carrier.trace_context.as_ref(),
            is_parent_remote: true,
            baggage: &carrier.baggage,
            start_time_unix_nano: 0,
            attributes: &attributes,
            prefix: AttributePrefix::NONE,
            link: None,
            is_attempt: false,
            request: None,
        });
        ServerSpan { recorder, span: Some(span) }
    }

    /// Returns what is a child of it.
    pub(super) fn carrier(&self, baggage: String) -> Carrier {
        Carrier { trace_context: self.span.as_ref().map(|span| span.context().clone()), baggage }
    }

    /// Notes that the request is answered.
    pub(super) fn finish(mut self, status: StatusCode) {
        let Some(span) = self.span.take() else { return };
        span.set_attributes(&[(names::HTTP_RESPONSE_STATUS_CODE, u32::from(status.as_u16()).into())]);
        // The client's own mistakes are no errors of the server's, by the conventions.
        if status.is_server_error() {
            span.set_attributes(&[(names::ERROR_TYPE, Attribute::Str(status.as_str()))]);
            span.set_error("");
        }
        self.end(span);
    }

    fn end(&self, span: ActiveSpan) {
        span.end();
        // What cannot be written now stays in the spool, and is counted.
        let _ = self.recorder.commit();
    }
}

impl Drop for ServerSpan {
    fn drop(&mut self) {
        if let Some(span) = self.span.take() {
            span.set_attributes(&[(names::ERROR_TYPE, Attribute::Str("client_gone"))]);
            span.set_error("the client went away before it was answered");
            self.end(span);
        }
    }
}
