//! The SERVER span of a request: what it says from the start, and at its end.

use std::borrow::Cow;

use tracer_abi as abi;
use tracer_core::clock::now_unix_nano;
use tracer_core::http_field::{host_and_port, redacted_query};
use tracer_core::propagation::{TraceContext, TraceParent};
use tracer_core::task::Failure;
use tracer_core::{grpc, names, request_names};
use tracer_host::hook::{
    ActiveSpan, Attribute, AttributeList, AttributePrefix, PutAttribute, Recorder, SpanRequest, client_text,
};
use tracer_ipc::lane::{Headers, Opening};

use super::request::Gone;

/// Numbers of the prefixes of attributes, which no task's span has.
const PREFIX_HTTP: u64 = u64::MAX;
const PREFIX_GRPC: u64 = u64::MAX - 1;
/// The methods that conventions name.
const KNOWN_METHODS: [&str; 9] = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "TRACE"];

/// Attributes that all spans of a replica have.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) span: String,
    pub(super) application: &'static str,
    pub(super) deployment: &'static str,
    pub(super) replica: &'static str,
    pub(super) route_prefix: &'static str,
    pub(super) node_id: String,
    pub(super) module_version: Option<String>,
    pub(super) pid: u32,
    pub(super) worker: u64,
    pub(super) code: (String, String, u32),
}

impl Names {
    pub(super) fn span_of(deployment: &str) -> String {
        let (span, method) = (request_names::REPLICA_HANDLE_REQUEST_SPAN, request_names::HTTP_CALL_METHOD);
        format!("{span} {deployment} {method}")
    }

    fn span_of_call(&self, method: &str) -> String {
        format!("{} {} {method}", request_names::REPLICA_HANDLE_REQUEST_SPAN, self.deployment)
    }

    fn put(&self, is_grpc: bool, method: Option<&str>, put: PutAttribute<'_>) {
        put(request_names::DEPLOYMENT, self.deployment.into());
        put(request_names::APP, self.application.into());
        put(request_names::ROUTE, self.route_prefix.into());
        put(request_names::CALL_METHOD, method.unwrap_or(request_names::HTTP_CALL_METHOD).into());
        put(request_names::REPLICA_ID, self.replica.into());
        let request_type = match (method, is_grpc) {
            (Some(_), _) => "call",
            (None, true) => "grpc",
            (None, false) => "http",
        };
        put(request_names::REQUEST_TYPE, request_type.into());
        put(request_names::IS_HTTP_REQUEST, Attribute::Bool(!is_grpc && method.is_none()));
        put(request_names::IS_GRPC_REQUEST, Attribute::Bool(is_grpc));
        put(names::PID, self.pid.into());
        put(names::WORKER_ID, self.worker.into());
        put(names::NODE_ID, (&*self.node_id).into());
        let (name, file, line) = &self.code;
        if !name.is_empty() {
            put(names::CODE_FUNCTION_NAME, (&**name).into());
        }
        if !file.is_empty() {
            put(names::CODE_FILE_PATH, (&**file).into());
            put(names::CODE_LINE_NUMBER, (*line).into());
        }
        if let Some(version) = &self.module_version {
            put(names::MODULE_VERSION, (&**version).into());
        }
        if is_grpc {
            put(request_names::RPC_SYSTEM_NAME, "grpc".into());
        }
    }
}

/// Trace context of a request.
pub(super) struct Context<'a> {
    pub(super) parent: Option<TraceContext>,
    pub(super) baggage: Cow<'a, str>,
    pub(super) is_grpc: bool,
    pub(super) has_length: bool,
    /// True for a call of a method.
    pub(super) is_call: bool,
    /// Model that it is for; empty for none.
    pub(super) model: &'a str,
}

impl<'a> Context<'a> {
    pub(super) fn of(opening: &Opening<'_>, headers: &Headers<'a>) -> Context<'a> {
        let is_call = opening.version == 0;
        let (is_grpc, has_length, model) = (false, false, "");
        let mut context = Context { parent: None, baggage: "".into(), is_grpc, has_length, is_call, model };
        let mut trace_state = String::new();
        for (name, value) in headers.iter() {
            match name {
                "tracestate" => join(&mut trace_state, value),
                "baggage" if context.baggage.is_empty() => {
                    context.baggage = std::str::from_utf8(value).unwrap_or_default().into();
                }
                "baggage" => join(context.baggage.to_mut(), value),
                "content-type" => context.is_grpc = opening.version == 20 && grpc::is_content_type(value),
                "content-length" => context.has_length = true,
                request_names::MODEL_HEADER => context.model = std::str::from_utf8(value).unwrap_or_default(),
                _ => {}
            }
        }
        if opening.trace_id != [0; 16] && opening.span_id != [0; 8] {
            let Opening { trace_id, span_id, trace_flags: flags, .. } = *opening;
            context.parent = Some(TraceContext { parent: TraceParent { trace_id, span_id, flags }, trace_state });
        }
        context
    }
}

/// Joins several headers of one name into one list.
fn join(list: &mut String, value: &[u8]) {
    let Ok(value) = std::str::from_utf8(value) else { return };
    if !list.is_empty() {
        list.push(',');
    }
    list.push_str(value);
}

/// Starts the span of a request.
pub(super) fn start(
    recorder: &'static Recorder,
    names: &Names,
    opening: &Opening<'_>,
    context: &Context<'_>,
    began_unix_nano: u64,
) -> ActiveSpan {
    let is_known = KNOWN_METHODS.contains(&opening.method);
    let (path, query) = opening.target.split_once('?').unwrap_or((opening.target, ""));
    let query = redacted_query(query);
    let (host, port) = host_and_port(opening.authority);
    let (client, _) = host_and_port(opening.client);
    let mut attributes = AttributeList::<13>::new();
    attributes.put(request_names::REQUEST_ID, client_text(opening.request_id));
    if !context.model.is_empty() {
        attributes.put(request_names::MULTIPLEXED_MODEL_ID, client_text(context.model));
    }
    if !context.is_call {
        attributes.put(request_names::HTTP_REQUEST_METHOD, if is_known { opening.method } else { "_OTHER" });
        attributes.put(request_names::URL_PATH, client_text(path));
        attributes.put_some(request_names::URL_QUERY, Some(client_text(&query)).filter(|query| !query.is_empty()));
        attributes.put(request_names::URL_SCHEME, if opening.is_secure { "https" } else { "http" });
    }
    if !host.is_empty() {
        attributes.put(request_names::SERVER_ADDRESS, client_text(host));
    }
    attributes.put_some(request_names::SERVER_PORT, port.map(u32::from));
    if !client.is_empty() {
        attributes.put(request_names::CLIENT_ADDRESS, client);
    }
    attributes.put_some(request_names::NETWORK_PROTOCOL_VERSION, protocol_version(opening.version));
    if context.is_grpc {
        attributes.put(request_names::RPC_METHOD, client_text(path.trim_start_matches('/')));
    }
    let is_grpc = context.is_grpc;
    let method = context.is_call.then(|| client_text(opening.target));
    let of_call = method.map(|method| names.span_of_call(method));
    let text = abi::Str::new;
    let request = abi::RunningRequest {
        size: size_of::<abi::RunningRequest>(),
        request_id: text(opening.request_id),
        application: text(names.application),
        deployment: text(names.deployment),
        replica: text(names.replica),
        route_prefix: text(names.route_prefix),
        client: text(opening.client),
        deadline_unix_nano: opening.deadline_unix_nano,
        model: text(context.model),
    };
    recorder.start(&SpanRequest {
        name: of_call.as_deref().unwrap_or(&names.span),
        kind: abi::SPAN_KIND_SERVER,
        parent: context.parent.as_ref(),
        is_parent_remote: true,
        baggage: &context.baggage,
        start_time_unix_nano: began_unix_nano,
        prefix: AttributePrefix {
            id: match (method, is_grpc) {
                (Some(_), _) => 0,
                (None, true) => PREFIX_GRPC,
                (None, false) => PREFIX_HTTP,
            },
            attributes: &|put| names.put(is_grpc, method, put),
        },
        attributes: attributes.as_slice(),
        link: None,
        is_attempt: false,
        request: Some(&request),
    })
}

fn protocol_version(version: u8) -> Option<&'static str> {
    match version {
        10 => Some("1.0"),
        11 => Some("1.1"),
        20 => Some("2"),
        _ => None,
    }
}

/// Facts about a request at its end.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// Time of its span's start.
    pub(super) began_unix_nano: u64,
    /// From then to the head of the response.
    pub(super) first_byte_ns: Option<u64>,
    /// The status of the response; 0 before.
    pub(super) status: u16,
    /// The handler's route.
    pub(super) route: Option<String>,
    /// True if there is no answer of the program that is served.
    pub(super) has_program_failed: bool,
    /// Bytes of the request's body that have come.
    pub(super) request_bytes: u64,
    /// Bytes of the response's body that were queued.
    pub(super) response_bytes: u64,
    /// Pieces of it.
    pub(super) pieces: u32,
    /// True for a call of gRPC.
    pub(super) is_grpc: bool,
    /// True for a call of a method.
    pub(super) is_call: bool,
    /// Its status, from the trailers, or from the head when the answer has nothing else.
    pub(super) grpc_status: Option<grpc::Status>,
}

impl Facts {
    pub(super) fn new(began_unix_nano: u64, context: &Context<'_>) -> Facts {
        let Context { is_grpc, is_call, .. } = *context;
        Facts { began_unix_nano, is_grpc, is_call, ..Facts::default() }
    }

    /// Notes the status of gRPC, if these headers or trailers have it.
    pub(super) fn grpc_status<'a>(&mut self, headers: impl IntoIterator<Item = (&'a str, &'a [u8])>) {
        if self.is_grpc {
            let found = headers.into_iter().find(|(name, _)| *name == "grpc-status");
            self.grpc_status = found.map(|(_, value)| grpc::Status::parse(value)).or(self.grpc_status);
        }
    }

    /// Notes the head of a response, and returns the time of it.
    pub(super) fn head(&mut self, status: u16) -> u64 {
        let now = now_unix_nano();
        self.status = status;
        self.first_byte_ns = Some(now.saturating_sub(self.began_unix_nano));
        now
    }
}

/// Outcome of a request.
pub(super) enum Ending<'a> {
    /// With a whole response.
    Whole,
    /// The handler has failed.
    Failed(&'a Failure),
    /// Nobody wanted the answer any more.
    Gone(Gone),
    /// The caller took it back in the last moment.
    NotBegun,
}

/// Ends the span of a request.
pub(super) fn end(span: ActiveSpan, facts: &Facts, ending: &Ending<'_>) {
    if !span.is_recording() {
        return span.end();
    }
    let status_text;
    let error_type;
    let mut attributes = AttributeList::<10>::new();
    let status = match ending {
        Ending::Failed(_) if facts.status == 0 => 500,
        _ => facts.status,
    };
    if status != 0 && !facts.is_call {
        attributes.put(request_names::HTTP_RESPONSE_STATUS_CODE, i64::from(status));
    }
    attributes.put_some(request_names::TIME_TO_FIRST_BYTE_NS, facts.first_byte_ns);
    attributes.put_some(request_names::HTTP_ROUTE, facts.route.as_deref());
    attributes.put(request_names::REQUEST_BODY_BYTES, facts.request_bytes);
    attributes.put(request_names::RESPONSE_BODY_BYTES, facts.response_bytes);
    attributes.put(request_names::IS_STREAMING, Attribute::Bool(facts.pieces > 1));
    let grpc_status = match ending {
        _ if !facts.is_grpc => None,
        Ending::Whole => facts.grpc_status,
        Ending::Failed(_) => Some(grpc::Status::INTERNAL),
        Ending::Gone(Gone::Client) => Some(grpc::Status::CANCELLED),
        Ending::Gone(Gone::Timeout) => Some(grpc::Status::DEADLINE_EXCEEDED),
        Ending::NotBegun => None,
    };
    attributes.put_some(request_names::RPC_RESPONSE_STATUS_CODE, grpc_status.map(grpc::Status::name));
    let grpc_error = grpc_status.filter(|status| status.is_error());
    match ending {
        Ending::Whole if facts.has_program_failed => {
            attributes.put(request_names::OUTCOME, request_names::OUTCOME_PROGRAM_FAILED);
            attributes.put(request_names::ERROR_TYPE, request_names::OUTCOME_PROGRAM_FAILED);
            span.set_error("");
        }
        Ending::Whole if status >= 500 => {
            status_text = status.to_string();
            attributes.put(request_names::ERROR_TYPE, &*status_text);
            span.set_error("");
        }
        Ending::Whole if grpc_error.is_some() => {
            attributes.put_some(request_names::ERROR_TYPE, grpc_error.map(grpc::Status::name));
            span.set_error("");
        }
        Ending::Whole => {}
        Ending::Failed(failure) => {
            let outcome = (status != 0 && facts.status != 0).then_some(request_names::OUTCOME_STREAM_ABORTED);
            attributes.put_some(request_names::OUTCOME, outcome);
            error_type = failure.error_type();
            attributes.put(request_names::ERROR_TYPE, &*error_type);
            span.add_exception(&error_type, failure);
        }
        Ending::Gone(Gone::Client) => attributes.put(request_names::OUTCOME, request_names::OUTCOME_CLIENT_GONE),
        Ending::Gone(Gone::Timeout) => {
            attributes.put(request_names::OUTCOME, request_names::OUTCOME_TIMEOUT);
            attributes.put(request_names::ERROR_TYPE, request_names::OUTCOME_TIMEOUT);
            span.set_error("its time was up");
        }
        Ending::NotBegun => attributes.put(request_names::OUTCOME, request_names::OUTCOME_NOT_BEGUN),
    }
    span.end_with(attributes.as_slice(), 0);
}
