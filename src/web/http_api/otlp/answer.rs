//! Answers to those who send OTLP, in the form that they have sent: what was taken, or why nothing was.

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use hyper::body::Bytes;
use prost::encoding::{WireType, encode_key, encode_varint};
use serde_json::json;
use tracer_core::problem::{self, Problem};

use super::super::body::Body;
use super::Signal;
use super::line::Decoded;

/// The two encodings of OTLP over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http_api) enum Form {
    Protobuf,
    Json,
}

impl Form {
    /// The encoding that a request is in.
    pub(in crate::http_api) fn of(headers: &HeaderMap) -> Result<Form, Problem> {
        let type_of = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let essence = type_of.split(';').next().unwrap_or_default().trim();
        if essence.eq_ignore_ascii_case("application/x-protobuf") {
            return Ok(Form::Protobuf);
        }
        if essence.eq_ignore_ascii_case("application/json") {
            return Ok(Form::Json);
        }
        let text = match type_of {
            "" => "the request has no `Content-Type`".to_owned(),
            found => format!("`Content-Type` is `{}`", found.escape_debug()),
        };
        let text = format!("{text}, expected `application/x-protobuf` or `application/json`");
        Err(Problem::new(problem::WRONG_OTLP_TYPE, text))
    }

    fn content_type(self) -> &'static str {
        match self {
            Form::Protobuf => "application/x-protobuf",
            Form::Json => "application/json",
        }
    }

    fn response(self, status: StatusCode, body: Vec<u8>) -> Response<Body> {
        let mut response = Response::new(Body::whole(Bytes::from(body)));
        *response.status_mut() = status;
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(self.content_type()));
        response
    }

    /// Returns `Export…ServiceResponse`: empty when all was taken, else with how many records were rejected and why.
    pub(in crate::http_api) fn success(self, signal: Signal, decoded: &Decoded) -> Response<Body> {
        let Decoded { rejected, reason, .. } = decoded;
        let reason = reason.as_deref().unwrap_or_default();
        let body = match (self, rejected) {
            (Form::Protobuf, 0) => Vec::new(),
            (Form::Json, 0) => b"{}".to_vec(),
            (Form::Protobuf, _) => {
                let mut partial = Vec::new();
                encode_key(1, WireType::Varint, &mut partial);
                encode_varint(*rejected, &mut partial);
                put_bytes(2, reason.as_bytes(), &mut partial);
                let mut body = Vec::new();
                put_bytes(1, &partial, &mut body);
                body
            }
            (Form::Json, _) => {
                let count = match signal {
                    Signal::Traces => "rejectedSpans",
                    Signal::Logs => "rejectedLogRecords",
                    Signal::Metrics => "rejectedDataPoints",
                };
                json!({ "partialSuccess": { count: rejected.to_string(), "errorMessage": reason } })
                    .to_string()
                    .into_bytes()
            }
        };
        self.response(StatusCode::OK, body)
    }

    /// The problem as a `google.rpc.Status`, with its status and headers.
    pub(in crate::http_api) fn failure(self, problem: Problem) -> Response<Body> {
        let message = problem.text();
        let code = rpc_code(problem.kind.status);
        let body = match self {
            Form::Protobuf => {
                let mut body = Vec::new();
                encode_key(1, WireType::Varint, &mut body);
                encode_varint(code, &mut body);
                put_bytes(2, message.as_bytes(), &mut body);
                body
            }
            Form::Json => json!({ "code": code, "message": message }).to_string().into_bytes(),
        };
        let mut response = problem.into_response(|_| Body::whole(Bytes::from(body)));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(self.content_type()));
        response
    }
}

pub(super) fn put_bytes(number: u32, bytes: &[u8], buffer: &mut Vec<u8>) {
    encode_key(number, WireType::LengthDelimited, buffer);
    encode_varint(bytes.len() as u64, buffer);
    buffer.extend_from_slice(bytes);
}

/// Returns the code of gRPC that is nearest to a status of HTTP.
fn rpc_code(status: StatusCode) -> u64 {
    match status {
        StatusCode::UNAUTHORIZED => 16,
        StatusCode::FORBIDDEN => 7,
        StatusCode::NOT_FOUND => 5,
        StatusCode::METHOD_NOT_ALLOWED => 12,
        StatusCode::REQUEST_TIMEOUT => 4,
        StatusCode::PAYLOAD_TOO_LARGE | StatusCode::TOO_MANY_REQUESTS => 8,
        StatusCode::SERVICE_UNAVAILABLE => 14,
        _ => 3,
    }
}
