//! One request in a replica: its windows, what of its answer waits to be sent, and its span.

use std::sync::Arc;

use crate::hook::{ActiveSpan, Attribute, AttributePrefix, ModulePiece, Recorder, SpanRequest};
use crate::lane::{Headers, Incoming, Opening, Outgoing, Reset};
use crate::propagation::{TraceContext, TraceParent};
use crate::task::Failure;
use tracer_abi as abi;
use tracer_core::clock::now_unix_nano;
use tracer_core::request_names as names;
use tracer_ipc::serving::ReplicaBegin;

/// A request that the module has begun.
pub(super) struct Request {
    /// The lane that it came in, and its number there.
    pub(super) lane: u32,
    pub(super) number: u32,
    pub(super) incoming: Incoming,
    pub(super) outgoing: Outgoing,
    pub(super) span: Option<ActiveSpan>,
    began_unix_nano: u64,
    status: u16,
    first_byte_ns: Option<u64>,
    pub(super) received_bytes: u64,
    pub(super) sent_bytes: u64,
    route: Option<String>,
    /// The whole answer, if it is a head alone; sent at the end.
    pub(super) head_alone: Option<Vec<u8>>,
    pub(super) has_head: bool,
    /// The piece that is being sent, and how much of it was.
    pub(super) piece: Option<(Arc<ModulePiece>, usize)>,
    /// The trailers, once the module has ended the answer.
    pub(super) trailers: Option<Vec<(String, Vec<u8>)>>,
    /// True once the module was told to wait for room.
    pub(super) wants_room: bool,
    /// Why nobody wants the answer any more.
    pub(super) gone: Option<Reset>,
    /// Why the answer that the module gave cannot be sent.
    pub(super) unfit: Option<String>,
}

impl Request {
    pub(super) fn new(lane: u32, number: u32, is_last: bool, span: Option<ActiveSpan>) -> Request {
        Request {
            lane,
            number,
            incoming: Incoming::request(is_last),
            outgoing: Outgoing::default(),
            span,
            began_unix_nano: now_unix_nano(),
            status: 0,
            first_byte_ns: None,
            received_bytes: 0,
            sent_bytes: 0,
            route: None,
            head_alone: None,
            has_head: false,
            piece: None,
            trailers: None,
            wants_room: false,
            gone: None,
            unfit: None,
        }
    }

    /// The answer begins.
    pub(super) fn begin_answer(&mut self, status: u16) {
        self.has_head = true;
        self.status = status;
        self.first_byte_ns = Some(now_unix_nano().saturating_sub(self.began_unix_nano));
    }

    pub(super) fn set_route(&mut self, route: &str) {
        self.route = Some(route.to_owned());
    }

    /// Ends the span in good order.
    pub(super) fn end_span(&mut self) {
        let Some(span) = self.span.take() else { return };
        if span.is_recording() {
            self.describe(&span);
            if self.status >= 500 {
                span.set_attributes(&[(names::ERROR_TYPE, Attribute::Str(&self.status.to_string()))]);
                span.set_error("");
            }
        }
        span.end();
    }

    /// Ends the span of a request whose handler has failed, or was dropped because nobody wants its answer.
    pub(super) fn fail_span(&mut self, failure: &Failure) {
        let Some(span) = self.span.take() else { return };
        if span.is_recording() {
            self.describe(&span);
            match (self.gone, &self.unfit) {
                (Some(Reset::Timeout), _) => {
                    let outcome = Attribute::Str(names::OUTCOME_TIMEOUT);
                    span.set_attributes(&[(names::ERROR_TYPE, outcome), (names::OUTCOME, outcome)]);
                    span.set_error("its time was up");
                }
                (Some(_), _) => {
                    span.set_attributes(&[(names::OUTCOME, Attribute::Str(names::OUTCOME_CLIENT_GONE))]);
                }
                (None, Some(reason)) => {
                    span.set_attributes(&[(names::ERROR_TYPE, Attribute::Str("invalid_response"))]);
                    span.set_error(reason);
                }
                (None, None) => super::super::attempt::record_failure(&span, failure),
            }
        }
        span.end();
    }

    fn describe(&self, span: &ActiveSpan) {
        let said = [
            (self.status > 0).then(|| (names::HTTP_RESPONSE_STATUS_CODE, i64::from(self.status).into())),
            self.first_byte_ns.map(|ns| (names::TIME_TO_FIRST_BYTE_NS, ns.into())),
            (self.received_bytes > 0).then(|| (names::REQUEST_BODY_BYTES, self.received_bytes.into())),
            Some((names::RESPONSE_BODY_BYTES, self.sent_bytes.into())),
            self.route.as_deref().map(|route| (names::HTTP_ROUTE, Attribute::Str(route))),
        ];
        let mut all = [("", Attribute::Bool(false)); 5];
        let mut count = 0;
        for attribute in said.into_iter().flatten() {
            all[count] = attribute;
            count += 1;
        }
        span.set_attributes(&all[..count]);
    }
}

/// The spans of a replica's requests: what is the same on all of them.
pub(super) struct RequestSpans {
    recorder: &'static Recorder,
    name: String,
    deployment: String,
    app: String,
    route: String,
    replica: String,
    node_id: String,
}

impl RequestSpans {
    pub(super) fn new(recorder: &'static Recorder, begin: &ReplicaBegin) -> RequestSpans {
        let deployment = begin.deployment.name.clone();
        let name = format!("{} {deployment} {}", names::REPLICA_HANDLE_REQUEST_SPAN, names::HTTP_CALL_METHOD);
        RequestSpans {
            recorder,
            name,
            deployment,
            app: begin.application.clone(),
            route: begin.route_prefix.clone(),
            replica: begin.name.clone(),
            node_id: begin.node_id.clone(),
        }
    }

    /// Opens the span of a request.
    pub(super) fn start(&self, opening: &Opening<'_>, parent: Option<&TraceContext>, baggage: &str) -> ActiveSpan {
        let path = opening.target.split_once('?').map_or(opening.target, |(path, _)| path);
        let path = path.get(..256).unwrap_or(path);
        self.recorder.start(&SpanRequest {
            name: &self.name,
            kind: abi::SPAN_KIND_SERVER,
            parent,
            is_parent_remote: true,
            baggage,
            start_time_unix_nano: 0,
            prefix: AttributePrefix {
                id: 1,
                attributes: &|put| {
                    put(names::DEPLOYMENT, Attribute::Str(&self.deployment));
                    put(names::APP, Attribute::Str(&self.app));
                    put(names::ROUTE, Attribute::Str(&self.route));
                    put(names::CALL_METHOD, Attribute::Str(names::HTTP_CALL_METHOD));
                    put(names::REPLICA_ID, Attribute::Str(&self.replica));
                    put(names::REQUEST_TYPE, Attribute::Str("http"));
                    put(names::IS_HTTP_REQUEST, Attribute::Bool(true));
                    put(tracer_core::names::PID, std::process::id().into());
                    put(tracer_core::names::NODE_ID, Attribute::Str(&self.node_id));
                },
            },
            attributes: &[
                (names::REQUEST_ID, Attribute::Str(opening.request_id)),
                (names::REQUEST_METHOD, Attribute::Str(opening.method)),
                (names::REQUEST_ROUTE_PATH, Attribute::Str(path)),
                (names::HTTP_REQUEST_METHOD, Attribute::Str(opening.method)),
                (names::URL_PATH, Attribute::Str(path)),
            ],
            link: None,
            is_attempt: false,
        })
    }
}

/// The context that a request comes with; none if it is in no trace.
pub(super) fn context_of(opening: &Opening<'_>, headers: &Headers<'_>) -> Option<TraceContext> {
    if opening.trace_id == [0; 16] || opening.span_id == [0; 8] {
        return None;
    }
    let parent = TraceParent { trace_id: opening.trace_id, span_id: opening.span_id, flags: opening.trace_flags };
    Some(TraceContext { parent, trace_state: joined(headers, "tracestate") })
}

/// The values of a header that may be there several times, as one.
pub(super) fn joined(headers: &Headers<'_>, name: &str) -> String {
    let values =
        headers.iter().filter(|(own, _)| *own == name).filter_map(|(_, value)| std::str::from_utf8(value).ok());
    values.collect::<Vec<_>>().join(",")
}
