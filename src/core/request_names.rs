//! Every name on the spans of requests to services, with its type and meaning.
//!
//! Three kinds of names: those of Ray Serve, which its users filter by and which stay as they are; those of OpenTelemetry's semantic conventions,
//! where they are stable or the convention is the only one; and, with the prefix `tracer.`, what neither has. Spans of tasks have
//! [`names`](crate::names).

// Names of spans: each of these, and after it what is named in the comment, with spaces between.

/// The SERVER span of the proxy: the deployment, the method of HTTP, the route.
pub const PROXY_HTTP_REQUEST_SPAN: &str = "proxy_http_request";
/// The same of a gRPC request: the deployment, `/package.Service/Method`.
pub const PROXY_GRPC_REQUEST_SPAN: &str = "proxy_grpc_request";
/// The CLIENT span of a caller, one for each attempt: the deployment, the method that is called.
pub const ROUTE_TO_REPLICA_SPAN: &str = "route_to_replica";
/// The INTERNAL span of the time that a request waits for a place at a replica; child of the CLIENT span.
pub const QUEUE_SPAN: &str = "tracer.queue";
/// The span of the wait for the first replica of a deployment that had none.
pub const COLD_START_SPAN: &str = "tracer.cold_start";
/// The SERVER span of a replica: the deployment, the method that is called.
pub const REPLICA_HANDLE_REQUEST_SPAN: &str = "replica_handle_request";
/// The INTERNAL span of a batch: the deployment, a dot, the method.
pub const BATCH_SPAN: &str = "batch";

// Ray's names.

/// String: the request, as the header `x-request-id` has it.
pub const REQUEST_ID: &str = "request_id";
/// String: the deployment.
pub const DEPLOYMENT: &str = "deployment";
/// String: the application.
pub const APP: &str = "app";
/// String: the route prefix of the application.
pub const ROUTE: &str = "route";
/// String: the method that is called; [`HTTP_CALL_METHOD`] for a request over HTTP.
pub const CALL_METHOD: &str = "call_method";
/// A value of [`CALL_METHOD`]: the handler of requests over HTTP.
pub const HTTP_CALL_METHOD: &str = "handle";
/// String: the replica, `<deployment>#<number>`.
pub const REPLICA_ID: &str = "replica_id";
/// String: how the request has come, `http`, `grpc`, or `call` for a call of a method by a handle.
pub const REQUEST_TYPE: &str = "request_type";
/// String: the method of HTTP.
pub const REQUEST_METHOD: &str = "request_method";
/// String: the path of the request.
pub const REQUEST_ROUTE_PATH: &str = "request_route_path";
/// Boolean: true if the answer is no single message.
pub const IS_STREAMING: &str = "is_streaming";
/// Boolean: true if the request came over HTTP.
pub const IS_HTTP_REQUEST: &str = "is_http_request";
/// Boolean: true if the request came over gRPC.
pub const IS_GRPC_REQUEST: &str = "is_grpc_request";
/// String: the model that the request asks for, if it asks for one.
pub const MULTIPLEXED_MODEL_ID: &str = "multiplexed_model_id";
/// String: what the span is about, for tools that group by it: method and route.
pub const RESOURCE_NAME: &str = "resource.name";

// OpenTelemetry's names. Those of the HTTP API are in `names`.

pub use crate::names::{
    ERROR_TYPE, HTTP_REQUEST_METHOD, HTTP_RESPONSE_STATUS_CODE, HTTP_ROUTE, SERVER_ADDRESS, SERVER_PORT, URL_PATH,
    URL_QUERY, URL_SCHEME, USER_AGENT_ORIGINAL,
};

/// Integer: which attempt after the first this is (`http.request.resend_count`); on those only.
pub const HTTP_REQUEST_RESEND_COUNT: &str = "http.request.resend_count";
/// String: the client's address (`client.address`).
pub const CLIENT_ADDRESS: &str = "client.address";
/// String: the version of HTTP (`network.protocol.version`), such as `1.1` or `2`.
pub const NETWORK_PROTOCOL_VERSION: &str = "network.protocol.version";
/// String: always `grpc`, on spans of gRPC requests (`rpc.system.name`).
pub const RPC_SYSTEM_NAME: &str = "rpc.system.name";
/// String: the whole method, `package.Service/Method` (`rpc.method`).
pub const RPC_METHOD: &str = "rpc.method";
/// String: the status of gRPC, such as `OK` or `UNAVAILABLE` (`rpc.response.status_code`).
pub const RPC_RESPONSE_STATUS_CODE: &str = "rpc.response.status_code";

/// Values of [`RPC_RESPONSE_STATUS_CODE`], by the number of the status of gRPC.
pub const RPC_STATUSES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

// The names of older conventions, which `OTEL_SEMCONV_STABILITY_OPT_IN` asks for with `http/dup` or `rpc/dup`.

/// String: the method of HTTP (`http.method`).
pub const OLD_HTTP_METHOD: &str = "http.method";
/// Integer: the status of the answer (`http.status_code`).
pub const OLD_HTTP_STATUS_CODE: &str = "http.status_code";
/// String: always `grpc` (`rpc.system`).
pub const OLD_RPC_SYSTEM: &str = "rpc.system";
/// Integer: the status of gRPC (`rpc.grpc.status_code`).
pub const OLD_RPC_GRPC_STATUS_CODE: &str = "rpc.grpc.status_code";

// tracer's names.

/// Integer, nanoseconds: how long the request has waited for a place at a replica, on the CLIENT span, if it had to.
pub const QUEUED_NS: &str = "tracer.queued_ns";
/// Integer: which attempt this is, from 1.
pub const ATTEMPT: &str = "tracer.attempt";
/// Integer, nanoseconds: from the beginning of the span to the head of the answer.
pub const TIME_TO_FIRST_BYTE_NS: &str = "tracer.time_to_first_byte_ns";
/// Integer, bytes: the body of the request, as far as it was read.
pub const REQUEST_BODY_BYTES: &str = "tracer.request_body_bytes";
/// Integer, bytes: the body of the answer, as far as it was sent.
pub const RESPONSE_BODY_BYTES: &str = "tracer.response_body_bytes";
/// Integer: how many inputs a batch has, those of requests that are not sampled too.
pub const BATCH_SIZE: &str = "tracer.batch.size";
/// Integer, nanoseconds: how long the oldest input of a batch has waited until the batch began.
pub const BATCH_WAITED_NS: &str = "tracer.batch.waited_ns";
/// Integer: the code with which a WebSocket was closed, by whoever closed it first (RFC 6455, section 7.4); 1005 if there was none.
pub const WEBSOCKET_CLOSE_CODE: &str = "tracer.websocket.close_code";
/// String: what became of a request that was not answered as its handler meant, one of those that follow.
pub const OUTCOME: &str = "tracer.outcome";

/// The header with which a request says the model that it is for.
pub const MODEL_HEADER: &str = "x-model-id";

/// Header in which a replica tells its caller the handler's own route, and nobody else.
pub const ROUTE_HEADER: &str = "tracer-route";
/// Header in which a replica tells its caller that there is no answer of a handler: one of the outcomes below.
pub const OUTCOME_HEADER: &str = "tracer-outcome";

// Values of `tracer.outcome`, which are those of `error.type` where the span has an error.

/// The request was refused because the queue was full.
pub const OUTCOME_SHED: &str = "shed";
/// No replica had a place in time.
pub const OUTCOME_UNAVAILABLE: &str = "unavailable";
/// Its time was up.
pub const OUTCOME_TIMEOUT: &str = "timeout";
/// The replica died or broke off after it had begun.
pub const OUTCOME_REPLICA_LOST: &str = "replica_lost";
/// The handler that was called has failed before it answered.
pub const OUTCOME_HANDLER_FAILED: &str = "handler_failed";
/// The answer broke off half-way.
pub const OUTCOME_STREAM_ABORTED: &str = "stream_aborted";
/// The program that is served has closed its connection, or could not be connected to, before it answered.
pub const OUTCOME_PROGRAM_FAILED: &str = "program_failed";
/// The replica was to end, and the time for what it had was up.
pub const OUTCOME_DRAINED: &str = "drained";
/// The client went away.
pub const OUTCOME_CLIENT_GONE: &str = "client_gone";
/// The request is not taken: its body is too long, too slow or malformed, or there is no such application.
pub const OUTCOME_REFUSED: &str = "refused";
/// Not begun at that replica, so that another one gets it.
pub const OUTCOME_NOT_BEGUN: &str = "not_begun";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn no_two_attributes_have_one_name() {
        let lines = include_str!("request_names.rs").lines();
        let constants = lines.filter_map(|line| line.strip_prefix("pub const ")?.split_once(": &str = \""));
        let names: Vec<_> = constants.map(|(_, rest)| rest.trim_end_matches("\";")).collect();
        assert!(names.len() > 40, "{names:?}");
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
    }
}
