//! A request on its way through the proxy: its spans, its line in the access log, and what becomes of it when its client goes.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, Version};
use tracer_abi as abi;
use tracer_core::clock::now_unix_nano;
use tracer_core::grpc::Status;
use tracer_core::hex::put_hex;
use tracer_core::http_field::{host_and_port, redacted_query};
use tracer_core::propagation::{Carrier, FLAG_RANDOM, FLAG_SAMPLED, TraceContext};
use tracer_core::request_names as names;
use tracer_core::task::SpanLink;
use tracer_host::hook::{
    ActiveSpan, Attribute, AttributeList, AttributePrefix, PutAttribute, SpanRequest, client_text,
};
use tracer_ipc::fault;
use tracer_ipc::lane::Reset;

use super::access_log::Line;
use super::connection::{HTTPS, Peer};
use super::exchange::Exchange;
use super::figures::Ended;
use super::headers::X_MODEL_ID;
use super::settings::{Route, Settings, SpanName};
use super::thread::ProxyThread;

/// A request. When it is dropped before it was finished, its client has gone.
pub(super) struct Progress {
    pub(super) thread: Rc<ProxyThread>,
    pub(super) settings: Rc<Settings>,
    pub(super) route: Option<Rc<Route>>,
    pub(super) peer: Rc<Peer>,
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) request_id: HeaderValue,
    pub(super) carrier: Carrier,
    /// The model that it is for, if it says one.
    model: Option<HeaderValue>,
    /// Its stage.
    pub(super) exchange: Option<Rc<Exchange>>,
    /// Bytes of the body that the client was given.
    pub(super) sent_bytes: u64,
    /// The code with which a WebSocket was closed.
    pub(super) close_code: Option<u16>,
    server: Option<ActiveSpan>,
    hop: Option<ActiveSpan>,
    /// The attempt before this one.
    link: Option<SpanLink>,
    attempt: u32,
    queued_ns: Option<u64>,
    begun_unix_nano: u64,
    first_byte_unix_nano: u64,
    status: u16,
    /// The handler's own route, from the head of its answer.
    handlers_route: Option<Bytes>,
    replica: Option<Rc<str>>,
    /// Limit of time.
    pub(super) timeout: Option<Duration>,
    /// True for a request of gRPC.
    pub(super) is_grpc: bool,
    /// Scheme of the URL that the client has asked for.
    pub(super) scheme: &'static str,
    /// Status with which one has ended, if its answer says so.
    pub(super) grpc_status: Option<Status>,
    is_finished: bool,
}

/// Facts about a request when it arrives.
pub(super) struct Arrived<'a> {
    pub(super) settings: &'a Rc<Settings>,
    pub(super) route: Option<Rc<Route>>,
    pub(super) peer: &'a Rc<Peer>,
    pub(super) client: &'a str,
    pub(super) method: &'a Method,
    pub(super) uri: &'a Uri,
    /// The host that it is for; empty for none.
    pub(super) authority: &'a str,
    pub(super) version: Version,
    pub(super) headers: &'a HeaderMap,
    pub(super) request_id: HeaderValue,
    pub(super) carrier: Carrier,
    pub(super) is_grpc: bool,
    /// Scheme of the URL that the client has asked for.
    pub(super) scheme: &'static str,
}

impl Progress {
    /// Begins a request, and its SERVER span.
    pub(super) fn begin(thread: &Rc<ProxyThread>, arrived: Arrived<'_>) -> Progress {
        let begun_unix_nano = now_unix_nano();
        let server = start_server(thread, &arrived, begun_unix_nano);
        Progress {
            thread: Rc::clone(thread),
            settings: Rc::clone(arrived.settings),
            route: arrived.route,
            peer: Rc::clone(arrived.peer),
            method: arrived.method.clone(),
            uri: arrived.uri.clone(),
            request_id: arrived.request_id,
            carrier: arrived.carrier,
            model: arrived.headers.get(X_MODEL_ID).cloned(),
            exchange: None,
            sent_bytes: 0,
            close_code: None,
            server,
            hop: None,
            link: None,
            attempt: 0,
            queued_ns: None,
            begun_unix_nano,
            first_byte_unix_nano: 0,
            status: 0,
            handlers_route: None,
            replica: None,
            timeout: None,
            is_grpc: arrived.is_grpc,
            scheme: arrived.scheme,
            grpc_status: None,
            is_finished: false,
        }
    }

    /// Returns the name of the request.
    pub(super) fn request_id(&self) -> &str {
        self.request_id.to_str().unwrap_or_default()
    }

    /// Returns the model that it is for; empty for none.
    pub(super) fn model(&self) -> &str {
        self.model.as_ref().and_then(|model| model.to_str().ok()).unwrap_or_default()
    }

    /// Returns when it began.
    pub(super) fn begun_unix_nano(&self) -> u64 {
        self.begun_unix_nano
    }

    /// Returns what the replica's span is a child of; none if the request is in no trace.
    pub(super) fn context(&self) -> Option<&TraceContext> {
        let own = self.hop.as_ref().or(self.server.as_ref()).map(ActiveSpan::context);
        own.or(self.carrier.trace_context.as_ref())
    }

    /// Returns what the answer says of the SERVER span: version, trace, span, flags.
    pub(super) fn trace_response(&self) -> Option<HeaderValue> {
        let parent = self.server.as_ref()?.context().parent;
        let mut text = *b"00-00000000000000000000000000000000-0000000000000000-00";
        put_hex(&mut text[3..35], &parent.trace_id);
        put_hex(&mut text[36..52], &parent.span_id);
        put_hex(&mut text[53..], &[parent.flags & (FLAG_SAMPLED | FLAG_RANDOM)]);
        HeaderValue::from_bytes(&text).ok()
    }

    /// Begins an attempt, and its CLIENT span.
    pub(super) fn begin_attempt(&mut self) {
        self.attempt += 1;
        (self.queued_ns, self.replica) = (None, None);
        let (Some(server), Some(route)) = (&self.server, &self.route) else { return };
        if !self.settings.has_hops() {
            return;
        }
        let Some(recorder) = self.thread.recorder else { return };
        let resends = self.attempt - 1;
        let mut attributes = AttributeList::<4>::new();
        attributes.put(names::ATTEMPT, self.attempt);
        attributes.put(names::REQUEST_ID, self.request_id());
        attributes.put_some(names::HTTP_REQUEST_RESEND_COUNT, (resends > 0).then_some(resends));
        let model = Some(client_text(self.model())).filter(|model| !model.is_empty());
        attributes.put_some(names::MULTIPLEXED_MODEL_ID, model);
        let span = recorder.start(&SpanRequest {
            name: &route.hop.name,
            kind: abi::SPAN_KIND_CLIENT,
            parent: Some(server.context()),
            is_parent_remote: false,
            baggage: &self.carrier.baggage,
            start_time_unix_nano: 0,
            prefix: AttributePrefix {
                id: route.hop.id,
                attributes: &|put| {
                    put(names::DEPLOYMENT, Attribute::Str(&route.of.deployment));
                    put(names::APP, Attribute::Str(&route.of.application));
                    put(names::ROUTE, Attribute::Str(&route.of.route_prefix));
                    put(names::CALL_METHOD, Attribute::Str(names::HTTP_CALL_METHOD));
                },
            },
            attributes: attributes.as_slice(),
            link: self.link,
            is_attempt: false,
            request: None,
        });
        self.hop = Some(span);
    }

    /// Says that it has its place, after it has waited for so long, if it had to; `is_cold` if that was because there was no replica.
    pub(super) fn placed(&mut self, waited_ns: Option<u64>, is_cold: bool) {
        self.queued_ns = waited_ns;
        if let Some(waited_ns) = waited_ns {
            self.thread.figures.count_wait(self.route.as_deref(), waited_ns);
        }
        let (Some(waited_ns), Some(recorder), Some(hop)) = (waited_ns, self.thread.recorder, &self.hop) else { return };
        for name in [names::QUEUE_SPAN].into_iter().chain(is_cold.then_some(names::COLD_START_SPAN)) {
            recorder.record_wait(name, hop.context(), waited_ns);
        }
    }

    /// Says where it is.
    pub(super) fn sent_to(&mut self, exchange: Rc<Exchange>) {
        self.replica = Some(Rc::clone(&exchange.lane.name));
        self.exchange = Some(exchange);
    }

    /// Says that the answer begins.
    pub(super) fn answered(&mut self, status: StatusCode, handlers_route: Option<Bytes>) {
        self.status = status.as_u16();
        self.handlers_route = handlers_route;
        self.first_byte_unix_nano = now_unix_nano();
    }

    /// Ends an attempt after which another one follows.
    pub(super) fn end_attempt(&mut self, outcome: &'static str) {
        self.link = self.hop.as_ref().map(|hop| {
            let parent = hop.context().parent;
            SpanLink { trace_id: parent.trace_id, span_id: parent.span_id, trace_flags: parent.flags }
        });
        self.exchange = None;
        self.thread.figures.count_retry(self.route.as_deref(), outcome);
        self.end_hop(outcome, true, now_unix_nano());
    }

    /// Ends the request after its answer, whole.
    pub(super) fn finish(&mut self) {
        self.end("", self.status >= 500 || self.grpc_status.is_some_and(Status::is_error));
    }

    /// Ends the request in another way than by its answer. `status` is what the client is told, if it is told anything.
    pub(super) fn finish_as(&mut self, outcome: &'static str, status: Option<StatusCode>) {
        if let Some(status) = status {
            self.status = status.as_u16();
        }
        if self.is_grpc && outcome == names::OUTCOME_CLIENT_GONE {
            self.grpc_status = Some(Status::CANCELLED);
        }
        let is_error = match outcome {
            names::OUTCOME_CLIENT_GONE => false,
            names::OUTCOME_SHED | names::OUTCOME_REFUSED | "" => match self.grpc_status {
                Some(status) => status.is_error(),
                None => self.status >= 500,
            },
            _ => true,
        };
        self.end(outcome, is_error);
    }

    /// Gives up what a replica has of it.
    pub(super) fn abandon(&mut self, reason: Reset) {
        if let Some(exchange) = &self.exchange {
            self.thread.abandon(exchange, reason);
        }
    }

    fn end(&mut self, outcome: &'static str, is_error: bool) {
        if std::mem::replace(&mut self.is_finished, true) {
            return;
        }
        fault::point("request_ending");
        let now = now_unix_nano();
        self.end_hop(outcome, is_error, now);
        self.log(now);
        self.count(outcome, is_error, now);
        let Some(span) = self.server.take() else { return };
        if span.is_recording() {
            let mut code = [0; 3];
            let error_type = self.error_type(outcome, &mut code);
            let old = self.thread.old_names;
            let received = self.exchange.as_ref().map_or(0, |exchange| exchange.received.get());
            let first_byte = self.first_byte_unix_nano.saturating_sub(self.begun_unix_nano);
            let status = (self.status != 0).then_some(u32::from(self.status));
            let mut attributes = AttributeList::<12>::new();
            attributes.put_some(names::HTTP_RESPONSE_STATUS_CODE, status);
            let prefix = self.route.as_ref().map(|route| &*route.of.route_prefix);
            attributes.put_some(names::HTTP_ROUTE, self.handlers_route().or(prefix));
            attributes.put_some(names::REPLICA_ID, self.replica.as_deref());
            attributes.put_some(names::TIME_TO_FIRST_BYTE_NS, (first_byte != 0).then_some(first_byte));
            attributes.put(names::REQUEST_BODY_BYTES, received);
            attributes.put(names::RESPONSE_BODY_BYTES, self.sent_bytes);
            attributes.put_some(names::OUTCOME, (!outcome.is_empty()).then_some(outcome));
            attributes.put_some(names::ERROR_TYPE, is_error.then_some(error_type));
            attributes.put_some(names::WEBSOCKET_CLOSE_CODE, self.close_code.map(u32::from));
            attributes.put_some(names::RPC_RESPONSE_STATUS_CODE, self.grpc_status.map(Status::name));
            attributes.put_some(names::OLD_HTTP_STATUS_CODE, status.filter(|_| old.http));
            let old_grpc_status = self.grpc_status.filter(|_| old.rpc).map(Status::number);
            attributes.put_some(names::OLD_RPC_GRPC_STATUS_CODE, old_grpc_status);
            if is_error {
                span.set_error("");
            }
            span.end_with(attributes.as_slice(), now);
        } else {
            span.end_at(now);
        }
        fault::point("request_ended");
    }

    fn end_hop(&mut self, outcome: &'static str, is_error: bool, now: u64) {
        let Some(span) = self.hop.take() else { return };
        if !span.is_recording() {
            return span.end_at(now);
        }
        let mut code = [0; 3];
        let error_type = self.error_type(outcome, &mut code);
        let mut attributes = AttributeList::<4>::new();
        attributes.put_some(names::REPLICA_ID, self.replica.as_deref());
        attributes.put_some(names::QUEUED_NS, self.queued_ns);
        attributes.put_some(names::OUTCOME, (!outcome.is_empty()).then_some(outcome));
        attributes.put_some(names::ERROR_TYPE, is_error.then_some(error_type));
        if is_error {
            span.set_error("");
        }
        span.end_with(attributes.as_slice(), now);
    }

    /// Returns the route of the handler itself, if it says one.
    fn handlers_route(&self) -> Option<&str> {
        self.handlers_route.as_deref().and_then(|route| std::str::from_utf8(route).ok())
    }

    /// Returns what an error is called: by what became of the request, else by its status.
    fn error_type<'a>(&self, outcome: &'static str, code: &'a mut [u8; 3]) -> &'a str {
        if !outcome.is_empty() {
            return outcome;
        }
        if let Some(status) = self.grpc_status.filter(|status| status.is_error()) {
            return status.name();
        }
        let digit = |by: u16| b'0' + (self.status / by % 10) as u8;
        *code = [digit(100), digit(10), digit(1)];
        std::str::from_utf8(code).unwrap_or_default()
    }

    fn count(&self, outcome: &'static str, is_error: bool, now: u64) {
        let mut code = [0; 3];
        self.thread.figures.count_end(&Ended {
            route: self.route.as_deref(),
            handlers_route: self.handlers_route(),
            method: self.settings.span_name(self.route.as_deref(), &self.method).method,
            status: self.status,
            rpc: self.is_grpc.then(|| (client_text(self.uri.path().trim_start_matches('/')), self.grpc_status)),
            outcome,
            error_type: is_error.then(|| self.error_type(outcome, &mut code)),
            duration_ns: now.saturating_sub(self.begun_unix_nano),
            unix_nano: now,
            received_bytes: self.exchange.as_ref().map_or(0, |exchange| exchange.received.get()),
            sent_bytes: self.sent_bytes,
            context: self.server.as_ref().map(ActiveSpan::context),
        });
    }

    fn log(&self, now: u64) {
        let trace_id = self.context().map(|context| {
            let mut digits = [0; 32];
            put_hex(&mut digits, &context.parent.trace_id);
            digits
        });
        let target = self.uri.path_and_query().map_or("*", |target| target.as_str());
        self.thread.ended(&Line {
            unix_nano: self.begun_unix_nano,
            client: &self.peer.text,
            method: self.method.as_str(),
            target,
            status: self.status,
            bytes: self.sent_bytes,
            duration_ns: now.saturating_sub(self.begun_unix_nano),
            request_id: self.request_id(),
            trace_id: trace_id.as_ref().map_or("", |digits| std::str::from_utf8(digits).unwrap_or_default()),
            replica: self.replica.as_deref().unwrap_or_default(),
        });
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if !self.is_finished {
            self.abandon(Reset::ClientGone);
            self.finish_as(names::OUTCOME_CLIENT_GONE, None);
        }
    }
}

fn version(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        _ => "1.1",
    }
}

fn start_server(thread: &Rc<ProxyThread>, arrived: &Arrived<'_>, now: u64) -> Option<ActiveSpan> {
    let recorder = thread.recorder.filter(|_| arrived.settings.tracing.is_enabled)?;
    let (settings, route) = (arrived.settings, arrived.route.as_deref());
    let known = settings.span_name(route, arrived.method);
    // The name of a call of gRPC has its path, so nothing of it is the same for all.
    let grpc_name = arrived.is_grpc.then(|| {
        let deployment = route.map_or("", |route| &route.of.deployment);
        format!("{} {deployment} {}", names::PROXY_GRPC_REQUEST_SPAN, client_text(arrived.uri.path()))
    });
    let path = client_text(arrived.uri.path());
    let agent = arrived.headers.get(http::header::USER_AGENT).and_then(|agent| agent.to_str().ok());
    let query = redacted_query(arrived.uri.query().unwrap_or_default());
    let model = arrived.headers.get(X_MODEL_ID).and_then(|model| model.to_str().ok());
    let (host, port) = match host_and_port(arrived.authority) {
        ("", _) => (&*settings.server_address, Some(settings.http.address.port())),
        said => said,
    };
    let mut attributes = AttributeList::<10>::new();
    attributes.put(names::REQUEST_ID, client_text(arrived.request_id.to_str().unwrap_or_default()));
    attributes.put(names::REQUEST_ROUTE_PATH, path);
    attributes.put(names::URL_PATH, path);
    attributes.put_some(names::URL_QUERY, Some(client_text(&query)).filter(|query| !query.is_empty()));
    attributes.put(names::SERVER_ADDRESS, client_text(host));
    attributes.put_some(names::SERVER_PORT, port.map(u32::from));
    attributes.put(names::CLIENT_ADDRESS, arrived.client);
    attributes.put(names::NETWORK_PROTOCOL_VERSION, version(arrived.version));
    attributes.put_some(names::USER_AGENT_ORIGINAL, agent.map(client_text));
    attributes.put_some(names::MULTIPLEXED_MODEL_ID, model.map(client_text).filter(|model| !model.is_empty()));
    Some(recorder.start(&SpanRequest {
        name: grpc_name.as_deref().unwrap_or(&known.name),
        kind: abi::SPAN_KIND_SERVER,
        parent: arrived.carrier.trace_context.as_ref(),
        is_parent_remote: true,
        baggage: &arrived.carrier.baggage,
        start_time_unix_nano: now,
        prefix: AttributePrefix {
            id: if arrived.is_grpc { 0 } else { known.id + u64::from(arrived.scheme == HTTPS) },
            attributes: &|put| put_first(thread, arrived, known, put),
        },
        attributes: attributes.as_slice(),
        link: None,
        is_attempt: false,
        request: None,
    }))
}

/// Puts what all spans of a route and a method begin with; of a call of gRPC, what it begins with.
fn put_first(thread: &ProxyThread, arrived: &Arrived<'_>, known: &SpanName, put: PutAttribute<'_>) {
    if let Some(route) = &arrived.route {
        put(names::DEPLOYMENT, Attribute::Str(&route.of.deployment));
        put(names::APP, Attribute::Str(&route.of.application));
        put(names::ROUTE, Attribute::Str(&route.of.route_prefix));
        let resource = format!("{} {}", known.method, route.of.route_prefix);
        put(names::RESOURCE_NAME, Attribute::Str(&resource));
        put(names::CALL_METHOD, Attribute::Str(names::HTTP_CALL_METHOD));
    }
    put(names::REQUEST_TYPE, Attribute::Str(if arrived.is_grpc { "grpc" } else { "http" }));
    put(names::IS_HTTP_REQUEST, Attribute::Bool(!arrived.is_grpc));
    put(names::IS_GRPC_REQUEST, Attribute::Bool(arrived.is_grpc));
    put(names::REQUEST_METHOD, Attribute::Str(known.method));
    put(names::HTTP_REQUEST_METHOD, Attribute::Str(known.method));
    put(names::URL_SCHEME, Attribute::Str(arrived.scheme));
    if thread.old_names.http {
        put(names::OLD_HTTP_METHOD, Attribute::Str(known.method));
    }
    if arrived.is_grpc {
        put(names::RPC_SYSTEM_NAME, Attribute::Str("grpc"));
        put(names::RPC_METHOD, Attribute::Str(client_text(arrived.uri.path().trim_start_matches('/'))));
        if thread.old_names.rpc {
            put(names::OLD_RPC_SYSTEM, Attribute::Str("grpc"));
        }
    }
}
