//! Problems in the form of RFC 9457: `application/problem+json` with type, title, status, detail, and a hint what to do.

use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use serde::Serialize;

use crate::task::{Refusal, RefusalCode};

/// The kinds of problems. Programs tell them apart by `type`, which is `urn:tracer:problem:` and the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    pub name: &'static str,
    pub status: StatusCode,
    pub title: &'static str,
}

macro_rules! kinds {
    ($($kind:ident = $status:ident, $name:literal, $title:literal;)*) => {
        $(pub const $kind: Kind = Kind { name: $name, status: StatusCode::$status, title: $title };)*
        /// All of them.
        pub const ALL: &[Kind] = &[$($kind),*];
    };
}

kinds! {
    INVALID = BAD_REQUEST, "invalid-request", "The request is not valid";
    UNAUTHORIZED = UNAUTHORIZED, "unauthorized", "The token is missing or wrong";
    FORBIDDEN_NAME = FORBIDDEN, "forbidden-host", "The request is not for this server";
    FORBIDDEN_ORIGIN = FORBIDDEN, "forbidden-origin", "Requests of other origins are not served";
    FORBIDDEN_ROLE = FORBIDDEN, "forbidden-by-token", "The token is not good for this";
    COMMANDS_OFF = FORBIDDEN, "commands-off", "Commands are not taken over HTTP";
    NO_ROUTE = NOT_FOUND, "no-such-path", "There is no such path";
    NO_TASK = NOT_FOUND, "no-such-task", "There is no such task";
    NO_TRACE = NOT_FOUND, "no-such-trace", "There is no such trace";
    NO_SPAN = NOT_FOUND, "no-such-span", "There is no such span";
    NO_OUTPUT = NOT_FOUND, "no-output-kept", "The output of the task is not kept here";
    WRONG_METHOD = METHOD_NOT_ALLOWED, "method-not-allowed", "The path does not take this method";
    TOO_SLOW = REQUEST_TIMEOUT, "body-too-slow", "The body did not arrive in time";
    TOO_LARGE = PAYLOAD_TOO_LARGE, "body-too-large", "The body is too large";
    WRONG_TYPE = UNSUPPORTED_MEDIA_TYPE, "not-json", "The body has to be JSON";
    WRONG_OTLP_TYPE = UNSUPPORTED_MEDIA_TYPE, "not-otlp", "The body has to be OTLP, in protobuf or JSON";
    NOT_A_QUESTION = UNPROCESSABLE_ENTITY, "not-a-question", "The question does not parse";
    KEY_TAKEN = UNPROCESSABLE_ENTITY, "idempotency-key-taken", "The idempotency key names another task";
    REFUSED = UNPROCESSABLE_ENTITY, "refused", "The head refuses the task";
    CONTRADICTORY = UNPROCESSABLE_ENTITY, "contradictory", "The submission contradicts itself";
    TOO_MANY = TOO_MANY_REQUESTS, "too-many-requests", "There are too many requests";
    UNREADABLE = INTERNAL_SERVER_ERROR, "result-unreadable", "The result cannot be read";
    UNKNOWN = BAD_GATEWAY, "outcome-unknown", "It is not known whether it was done";
    UNAVAILABLE = SERVICE_UNAVAILABLE, "unavailable", "The head does not take it now";
}

/// Tells which problem a refusal is.
fn kind_of_refusal(code: RefusalCode) -> Kind {
    match code {
        RefusalCode::Stopping
        | RefusalCode::JournalFailed
        | RefusalCode::QueueFull
        | RefusalCode::EngineUnreachable => UNAVAILABLE,
        RefusalCode::KeyTaken => KEY_TAKEN,
        // It would be refused the next time too.
        RefusalCode::ProtocolVersion
        | RefusalCode::UnknownWorker
        | RefusalCode::ImpossibleDemand
        | RefusalCode::UnknownSubmitter
        | RefusalCode::NameTaken
        | RefusalCode::NoEngine
        | RefusalCode::QueueRefused
        | RefusalCode::Other => REFUSED,
    }
}

/// Something that went wrong.
#[derive(Clone, Debug)]
pub struct Problem {
    pub kind: Kind,
    /// The head's reason, for programs, if it was the head that refused.
    code: Option<&'static str>,
    detail: Box<str>,
    hint: Option<Box<str>>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// Its form.
#[derive(Serialize)]
struct Document<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'a str>,
}

impl Problem {
    /// `text` may end in a hint, as the texts of errors do.
    pub fn new(kind: Kind, text: impl Into<String>) -> Problem {
        let text: String = text.into();
        let (detail, hint) = match text.split_once("\n(hint: ") {
            Some((detail, hint)) => (detail.into(), Some(hint.strip_suffix(')').unwrap_or(hint).into())),
            None => (text.into(), None),
        };
        Problem { kind, code: None, detail, hint, headers: Vec::new() }
    }

    /// Returns a refusal by the head. Where the same submission may be accepted later, the answer says so.
    pub fn of_refusal(Refusal { code, text }: Refusal) -> Problem {
        let kind = kind_of_refusal(code);
        let problem = Problem { code: Some(code.name()), ..Problem::new(kind, text) };
        if kind == UNAVAILABLE { problem.header(header::RETRY_AFTER, "1") } else { problem }
    }

    /// Returns its status, its name, the head's reason, and whether it says when to try again.
    pub fn face(&self) -> (u16, &'static str, Option<&'static str>, bool) {
        let says_when = self.headers.iter().any(|(name, _)| name == header::RETRY_AFTER);
        (self.kind.status.as_u16(), self.kind.name, self.code, says_when)
    }

    pub fn hint(mut self, hint: impl Into<Box<str>>) -> Problem {
        self.hint = Some(hint.into());
        self
    }

    pub fn header(mut self, name: HeaderName, value: impl TryInto<HeaderValue>) -> Problem {
        if let Ok(value) = value.try_into() {
            self.headers.push((name, value));
        }
        self
    }

    /// Reason, without the hint.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Returns the reason with the hint, as the texts of errors have it.
    pub fn text(&self) -> String {
        match &self.hint {
            Some(hint) => format!("{}\n(hint: {hint})", self.detail),
            None => self.detail.to_string(),
        }
    }

    /// Returns the `application/problem+json`.
    pub fn json(&self) -> Vec<u8> {
        let Kind { name, status, title } = self.kind;
        let document = Document {
            r#type: format!("urn:tracer:problem:{name}"),
            title,
            status: status.as_u16(),
            code: self.code,
            detail: &self.detail,
            hint: self.hint.as_deref(),
        };
        serde_json::to_vec(&document).expect("texts can be written")
    }

    /// Returns the answer, with a body that is made of the document.
    pub fn into_response<B>(self, body: impl FnOnce(Vec<u8>) -> B) -> Response<B> {
        let mut response = Response::new(body(self.json()));
        *response.status_mut() = self.kind.status;
        let json = HeaderValue::from_static("application/problem+json");
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, json);
        for (name, value) in self.headers {
            headers.append(name, value);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_says_what_is_wrong_and_what_to_do() {
        let problem = Problem::new(NO_TASK, "there is no task 7\n(hint: look at the list)");
        let json: serde_json::Value = serde_json::from_slice(&problem.json()).unwrap();
        let expected = serde_json::json!({
            "type": "urn:tracer:problem:no-such-task", "title": "There is no such task", "status": 404,
            "detail": "there is no task 7", "hint": "look at the list",
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn no_two_kinds_have_one_name() {
        let mut names: Vec<_> = ALL.iter().map(|kind| kind.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }
}
