//! Refusals: `application/problem+json`, as of the HTTP API.

use http::{StatusCode, header};
use tracer_core::grpc::Status;
use tracer_core::problem::{Kind, Problem};
use tracer_core::request_names as names;

use crate::request_head;

macro_rules! kinds {
    ($($kind:ident = $status:ident, $name:literal, $title:literal;)*) => {
        $(pub(super) const $kind: Kind = Kind { name: $name, status: StatusCode::$status, title: $title };)*
    };
}

kinds! {
    MALFORMED = BAD_REQUEST, "malformed-request", "The request is malformed";
    NO_APPLICATION = NOT_FOUND, "no-such-application", "No application has this path";
    METHOD = METHOD_NOT_ALLOWED, "method-not-allowed", "The method is not served";
    TOO_SLOW = REQUEST_TIMEOUT, "request-too-slow", "The request did not arrive in time";
    BODY_TOO_LARGE = PAYLOAD_TOO_LARGE, "body-too-large", "The body is too large";
    OTHER_HOST = MISDIRECTED_REQUEST, "other-host", "The host is not served here";
    HEAD_TOO_LARGE = REQUEST_HEADER_FIELDS_TOO_LARGE, "head-too-large", "The head of the request is too large";
    TOO_MANY = TOO_MANY_REQUESTS, "queue-full", "Too many requests wait";
    FAILED = INTERNAL_SERVER_ERROR, "handler-failed", "The handler has failed";
    ENCODING = NOT_IMPLEMENTED, "unknown-encoding", "The encoding of the body is not known";
    LOST = BAD_GATEWAY, "replica-lost", "The replica that had the request is lost";
    FULL = SERVICE_UNAVAILABLE, "queue-full", "Too many requests wait";
    UNAVAILABLE = SERVICE_UNAVAILABLE, "unavailable", "No replica has a place for the request";
    PROGRAM_FAILED = BAD_GATEWAY, "program-failed", "The program has not answered";
    DRAINED = GATEWAY_TIMEOUT, "drained", "The replica that had the request was to end";
    TIMEOUT = GATEWAY_TIMEOUT, "timeout", "The time for the request was up";
}

/// A request that gets no answer of a handler: what its client is told, and what its spans say.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) problem: Box<Problem>,
    pub(super) outcome: &'static str,
}

impl Refused {
    fn new(kind: Kind, outcome: &'static str, text: impl Into<String>) -> Refused {
        Refused { problem: Box::new(Problem::new(kind, text)), outcome }
    }

    /// Returns what is refused whatever the service does.
    pub(super) fn bad(kind: Kind, text: impl Into<String>) -> Refused {
        Refused::new(kind, names::OUTCOME_REFUSED, text)
    }

    /// Returns the refusal for a full queue.
    pub(super) fn full(status: u16, retry_after_s: u64, deployment: &str) -> Refused {
        let kind = if status == TOO_MANY.status.as_u16() { TOO_MANY } else { FULL };
        let text = format!("the queue of `{deployment}` is full");
        let mut refused = Refused::new(kind, names::OUTCOME_SHED, text);
        refused.problem = Box::new(refused.problem.header(header::RETRY_AFTER, retry_after_s.to_string()));
        refused
    }

    pub(super) fn unavailable(deployment: &str) -> Refused {
        let text = format!("no replica of `{deployment}` had a place for the request in time");
        let mut refused = Refused::new(UNAVAILABLE, names::OUTCOME_UNAVAILABLE, text);
        refused.problem = Box::new(refused.problem.header(header::RETRY_AFTER, "1"));
        refused
    }

    pub(super) fn too_slow() -> Refused {
        Refused::bad(TOO_SLOW, "the body of the request has stopped to arrive")
    }

    pub(super) fn timeout() -> Refused {
        Refused::new(TIMEOUT, names::OUTCOME_TIMEOUT, "the request was not answered in the time that it may take")
    }

    pub(super) fn lost() -> Refused {
        let text = "the replica has died, or has broken off, after it had begun the request";
        Refused::new(LOST, names::OUTCOME_REPLICA_LOST, text)
    }

    pub(super) fn program_failed() -> Refused {
        let text = "the program has closed its connection, or could not be connected to, before it answered";
        Refused::new(PROGRAM_FAILED, names::OUTCOME_PROGRAM_FAILED, text)
    }

    pub(super) fn drained() -> Refused {
        let text = "the replica that had the request was to end, and its `drain_timeout` was up before it had answered";
        Refused::new(DRAINED, names::OUTCOME_DRAINED, text)
    }

    /// Answers a failure, of whose inside nothing is told but the name of the request, by which it is found.
    pub(super) fn failed(request_id: &str) -> Refused {
        let text = format!("the handler has failed; the request is `{request_id}`");
        Refused::new(FAILED, "", text)
    }

    /// Returns the status that a call of gRPC gets in the place of that of HTTP.
    pub(super) fn grpc_status(&self) -> Status {
        match self.outcome {
            names::OUTCOME_CLIENT_GONE => Status::CANCELLED,
            _ => Status::for_http(self.problem.kind.status.as_u16()),
        }
    }

    pub(super) fn client_gone() -> Refused {
        Refused::new(MALFORMED, names::OUTCOME_CLIENT_GONE, "the body of the request broke off")
    }
}

/// Returns the answer to a client whose bytes are no request.
pub(super) fn of_head(refusal: request_head::Refusal) -> Problem {
    let kind = match refusal {
        request_head::Refusal::Malformed(_) => MALFORMED,
        request_head::Refusal::Method => METHOD,
        request_head::Refusal::Encoding => ENCODING,
        request_head::Refusal::TooLarge => HEAD_TOO_LARGE,
    };
    Problem::new(kind, refusal.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_request_get_the_status_that_the_scanner_says() {
        use request_head::Refusal;
        for refusal in [Refusal::Malformed("x"), Refusal::Method, Refusal::Encoding, Refusal::TooLarge] {
            assert_eq!(of_head(refusal).kind.status.as_u16(), refusal.status());
        }
        assert_eq!(Refused::full(429, 7, "a").problem.kind.status.as_u16(), 429);
        assert_eq!(Refused::full(503, 7, "a").problem.kind.status.as_u16(), 503);
    }
}
