//! One call: its stage, its spans, and its end.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracer_abi as abi;
use tracer_core::clock::now_unix_nano;
use tracer_core::propagation::TraceContext;
use tracer_core::request_names as names;
use tracer_core::task::SpanLink;
use tracer_host::hook::{
    ActiveSpan, AttributeList, AttributePrefix, CallEvent, CallRequest, CallSink, Recorder, SpanRequest, client_text,
};
use tracer_ipc::calling::CallRoute;
use tracer_ipc::lane::{Incoming, Opening, Outgoing};
use tracer_ipc::replica_table::{DeploymentIndex, ReplicaIndex};
use tracer_ipc::serving::Detail;

use super::figures::Remembered;
use crate::router::Ticket;

/// Headers that the calling side says itself, or that belong to a connection.
const OWN_HEADERS: [&str; 10] = [
    "traceparent",
    "tracestate",
    "baggage",
    "x-request-id",
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// A deployment that was found.
pub(super) struct Target {
    /// Its service, by its place in the state.
    pub(super) service: usize,
    pub(super) index: DeploymentIndex,
    pub(super) route: CallRoute,
    /// Series of metrics that its calls have counted in.
    pub(super) series: Mutex<Vec<Remembered>>,
}

/// Stage of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The head was asked for the deployment.
    Finding,
    /// It tries again a moment later.
    Paused,
    /// It waits for a place.
    Waiting(Ticket),
    /// It has a place, and waits for a lane or a number there.
    Placed(ReplicaIndex),
    /// It is on a lane, under this number.
    Sent { lane: u64, number: u32 },
    /// Its replica had begun it and is lost: it ends when its spans are complete.
    Lost(ReplicaIndex),
}

/// A call.
pub(super) struct Call {
    pub(super) request: CallRequest,
    pub(super) sink: Arc<CallSink>,
    pub(super) stage: Stage,
    pub(super) target: Option<Arc<Target>>,
    hop: Option<ActiveSpan>,
    link: Option<SpanLink>,
    pub(super) attempts: u32,
    queued_ns: Option<u64>,
    /// True if it waits because there was no replica.
    pub(super) is_cold: bool,
    pub(super) begun_unix_nano: u64,
    pub(super) replica: Option<Arc<str>>,
    pub(super) incoming: Incoming,
    pub(super) outgoing: Outgoing,
    /// Bytes of the request's body that are on the lane.
    pub(super) sent_bytes: usize,
    /// True if all of the request is.
    pub(super) is_sent: bool,
    /// True if the replica has said anything.
    pub(super) has_begun: bool,
    /// Status of the answer; 0 before it begins.
    pub(super) status: u16,
    /// Time at which something is due, by the monotonic clock.
    pub(super) due_ns: Option<u64>,
    /// Time after which the answer is not wanted, by the monotonic clock.
    pub(super) deadline_ns: Option<u64>,
}

/// End of a call, or of an attempt at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// Value of `tracer.outcome`; empty for an answer.
    pub(super) outcome: &'static str,
    /// Reason for people; empty for an answer.
    pub(super) message: String,
}

impl End {
    pub(super) fn new(outcome: &'static str, message: impl Into<String>) -> End {
        End { outcome, message: message.into() }
    }
}

/// A span that is to end, with what is known of its attempt.
pub(super) struct EndingHop {
    span: ActiveSpan,
    outcome: &'static str,
    status: u16,
    replica: Option<Arc<str>>,
    queued_ns: Option<u64>,
}

impl EndingHop {
    pub(super) fn end(self) {
        let EndingHop { span, outcome, status, replica, queued_ns } = self;
        if !span.is_recording() {
            return span.end();
        }
        let is_error = match outcome {
            "" => status >= 500,
            outcome => outcome != names::OUTCOME_CLIENT_GONE,
        };
        let code = status.to_string();
        let error_type = if outcome.is_empty() { code.as_str() } else { outcome };
        let mut attributes = AttributeList::<5>::new();
        attributes.put_some(names::REPLICA_ID, replica.as_deref());
        attributes.put_some(names::QUEUED_NS, queued_ns);
        attributes.put_some(names::OUTCOME, (!outcome.is_empty()).then_some(outcome));
        attributes.put_some(names::ERROR_TYPE, is_error.then_some(error_type));
        if is_error {
            span.set_error("");
        }
        span.end_with(attributes.as_slice(), now_unix_nano());
    }
}

impl Call {
    pub(super) fn new(request: CallRequest, sink: CallSink, now_ns: u64) -> Call {
        let begun_unix_nano = now_unix_nano();
        let left = |deadline: u64| now_ns.saturating_add(deadline.saturating_sub(begun_unix_nano));
        let deadline_ns = Some(request.deadline_unix_nano).filter(|deadline| *deadline != 0).map(left);
        Call {
            request,
            sink: Arc::new(sink),
            stage: Stage::Finding,
            target: None,
            hop: None,
            link: None,
            attempts: 0,
            queued_ns: None,
            is_cold: false,
            begun_unix_nano,
            replica: None,
            incoming: Incoming::answer(),
            outgoing: Outgoing::default(),
            sent_bytes: 0,
            is_sent: false,
            has_begun: false,
            status: 0,
            due_ns: deadline_ns,
            deadline_ns,
        }
    }

    /// Begins an attempt, and its CLIENT span.
    pub(super) fn begin_attempt(&mut self, recorder: Option<&'static Recorder>, target: &Arc<Target>) {
        self.target = Some(Arc::clone(target));
        self.attempts += 1;
        (self.queued_ns, self.replica) = (None, None);
        let route = &target.route;
        let Some(recorder) = recorder.filter(|_| route.is_traced && route.detail == Detail::Hops) else { return };
        let method = self.method();
        let name = format!("{} {} {method}", names::ROUTE_TO_REPLICA_SPAN, route.deployment);
        let resends = self.attempts - 1;
        let mut attributes = AttributeList::<9>::new();
        attributes.put(names::DEPLOYMENT, route.deployment.as_str());
        attributes.put(names::APP, route.application.as_str());
        attributes.put(names::ROUTE, route.route_prefix.as_str());
        attributes.put(names::CALL_METHOD, method);
        attributes.put(names::REQUEST_ID, self.request.request_id.as_str());
        attributes.put(names::ATTEMPT, self.attempts);
        let model = Some(client_text(&self.request.model)).filter(|model| !model.is_empty());
        attributes.put_some(names::MULTIPLEXED_MODEL_ID, model);
        attributes.put_some(names::HTTP_REQUEST_RESEND_COUNT, (resends > 0).then_some(resends));
        self.hop = Some(recorder.start(&SpanRequest {
            name: &name,
            kind: abi::SPAN_KIND_CLIENT,
            parent: self.parent(),
            is_parent_remote: false,
            baggage: &self.request.baggage,
            start_time_unix_nano: if resends == 0 { self.begun_unix_nano } else { 0 },
            prefix: AttributePrefix::NONE,
            attributes: attributes.as_slice(),
            link: self.link,
            is_attempt: false,
            request: None,
        }));
    }

    /// Returns the method that is called, as spans name it.
    pub(super) fn method(&self) -> &str {
        if self.request.method.is_empty() { &self.request.target } else { names::HTTP_CALL_METHOD }
    }

    /// Returns the context of its span, or of the one that it is below.
    pub(super) fn span_context(&self) -> Option<&TraceContext> {
        self.hop.as_ref().map(ActiveSpan::context).or(self.parent())
    }

    fn parent(&self) -> Option<&TraceContext> {
        self.request.parent.as_ref()
    }

    /// Notes that it has waited for its place.
    pub(super) fn waited(&mut self, recorder: Option<&'static Recorder>, waited_ns: u64) {
        self.queued_ns = Some(waited_ns);
        let is_cold = std::mem::take(&mut self.is_cold);
        let (Some(recorder), Some(hop)) = (recorder, &self.hop) else { return };
        for name in [names::QUEUE_SPAN].into_iter().chain(is_cold.then_some(names::COLD_START_SPAN)) {
            recorder.record_wait(name, hop.context(), waited_ns);
        }
    }

    /// Ends the attempt. What is returned is to be ended without the lock.
    pub(super) fn end_attempt(&mut self, outcome: &'static str) -> Option<EndingHop> {
        let span = self.hop.take()?;
        let parent = span.context().parent;
        self.link = Some(SpanLink { trace_id: parent.trace_id, span_id: parent.span_id, trace_flags: parent.flags });
        let (replica, queued_ns) = (self.replica.clone(), self.queued_ns);
        Some(EndingHop { span, outcome, status: self.status, replica, queued_ns })
    }

    /// Begins again, at another replica.
    pub(super) fn begin_again(&mut self) {
        (self.incoming, self.outgoing) = (Incoming::answer(), Outgoing::default());
        (self.sent_bytes, self.is_sent, self.has_begun) = (0, false, false);
    }

    /// Appends the frame that opens it. False when it has more headers than a frame may have.
    pub(super) fn open(&mut self, out: &mut Vec<u8>, number: u32) {
        self.is_sent = self.request.body.is_empty();
        let context = self.span_context();
        let opening = Opening {
            trace_id: context.map_or([0; 16], |context| context.parent.trace_id),
            span_id: context.map_or([0; 8], |context| context.parent.span_id),
            trace_flags: context.map_or(0, |context| context.parent.flags),
            deadline_unix_nano: self.request.deadline_unix_nano,
            is_secure: false,
            version: if self.request.method.is_empty() { 0 } else { 11 },
            method: &self.request.method,
            authority: &self.request.authority,
            target: &self.request.target,
            request_id: &self.request.request_id,
            client: "",
        };
        let said = |name: &'static str, value: &'_ str| (!value.is_empty()).then(|| (name, value.to_owned()));
        let length = if self.is_sent { String::new() } else { self.request.body.len().to_string() };
        let own = [
            said("tracestate", context.map_or("", |context| &context.trace_state)),
            said("baggage", &self.request.baggage),
            said("x-request-id", &self.request.request_id),
            said("content-length", &length),
            said(names::MODEL_HEADER, &self.request.model),
        ];
        let own = own.iter().flatten().map(|(name, value)| (*name, value.as_bytes()));
        let others = self.request.headers.iter().filter(|(name, _)| is_passed_on(name));
        let others = others.map(|(name, value)| (name.as_str(), value.as_slice()));
        tracer_ipc::lane::put_open(out, number, self.is_sent, &opening, others.chain(own));
    }

    /// Returns the event that tells of an end.
    pub(super) fn event(end: End) -> CallEvent {
        match end.message.is_empty() {
            true => CallEvent::Ended,
            false => CallEvent::Failed { outcome: end.outcome, message: end.message },
        }
    }
}

/// Returns whether a header of the caller's goes to the replica.
pub(super) fn is_passed_on(name: &str) -> bool {
    !OWN_HEADERS.contains(&name) && name != "content-length" && name != names::MODEL_HEADER
}

/// Returns a time for people.
pub(super) fn in_words(time: Duration) -> String {
    match time.as_millis() {
        ms if ms % 1000 == 0 => format!("{} s", ms / 1000),
        ms => format!("{ms} ms"),
    }
}
