//! gRPC, as far as a proxy has to know it: which requests are of it, how they have ended, and how one is refused.

use std::time::Duration;

use http::header::{self, HeaderMap, HeaderValue};
use tracer_core::request_names::RPC_STATUSES;

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Status(u32);

impl Status {
    /// Returns what an answer says, in its trailers, or in its head when it has nothing else. None when it says nothing.
    pub(super) fn of(headers: &HeaderMap) -> Option<Status> {
        let text = headers.get("grpc-status")?.to_str().ok()?;
        Some(Status(text.parse().ok().filter(|number| *number < RPC_STATUSES.len() as u32).unwrap_or(2)))
    }

    /// Returns what a client is told in the place of a status of HTTP.
    pub(super) fn for_http(status: u16) -> Status {
        Status(match status {
            400 | 408 | 431 => 3,
            404 | 405 | 421 | 501 => 12,
            413 | 429 => 8,
            500 => 13,
            504 => 4,
            _ => 14,
        })
    }

    pub(super) fn number(self) -> u32 {
        self.0
    }

    pub(super) fn name(self) -> &'static str {
        RPC_STATUSES.get(self.0 as usize).copied().unwrap_or("UNKNOWN")
    }

    /// Returns whether it is the server's error, and not the caller's.
    pub(super) fn is_error(self) -> bool {
        matches!(self.0, 2 | 4 | 12 | 13 | 14 | 15)
    }
}

/// Returns whether a request or an answer is of gRPC.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let rest = kind.strip_prefix(b"application/grpc");
    rest.is_some_and(|rest| rest.is_empty() || matches!(rest[0], b'+' | b';'))
}

/// Parses the limit of time in `grpc-timeout`: up to eight digits and a unit.
pub(super) fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let is_number = (1..=8).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = digits.parse().ok().filter(|_| is_number)?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

/// The head of an answer that has nothing else: status and message in its headers.
pub(super) fn refuse(headers: &mut HeaderMap, status: Status, message: &str) {
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", HeaderValue::from(status.number()));
    // What is no visible character is written as in a URL.
    let mut text = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => text.push(byte.into()),
            _ => text += &format!("%{byte:02X}"),
        }
    }
    if let Ok(text) = HeaderValue::try_from(text) {
        headers.insert("grpc-message", text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(name: &'static str, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(http::HeaderName::from_static(name), HeaderValue::from_static(value))])
    }

    #[test]
    fn requests_of_grpc_are_told_by_their_type() {
        for (kind, expected) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc;x=y", true),
            ("application/grpc-web", false),
            ("application/json", false),
            ("", false),
        ] {
            assert_eq!(is_grpc(&map("content-type", kind)), expected, "{kind}");
        }
        assert!(!is_grpc(&HeaderMap::new()));
    }

    #[test]
    fn a_status_has_its_name_and_some_are_the_servers_errors() {
        let of = |text| Status::of(&map("grpc-status", text)).unwrap();
        assert_eq!(
            (of("0").name(), of("14").name(), of("99").name(), of("x").name()),
            ("OK", "UNAVAILABLE", "UNKNOWN", "UNKNOWN")
        );
        let errors: Vec<_> =
            (0..17).filter(|number| Status(*number).is_error()).map(|number| Status(number).name()).collect();
        let expected = ["UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"];
        assert_eq!(errors, expected);
        assert_eq!(Status::of(&HeaderMap::new()), None);
    }

    #[test]
    fn a_timeout_is_digits_and_a_unit() {
        for (text, expected) in [
            ("5S", Some(Duration::from_secs(5))),
            ("100m", Some(Duration::from_millis(100))),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3600))),
            ("7n", Some(Duration::from_nanos(7))),
            ("123456789S", None),
            ("S", None),
            ("5", None),
            ("+5S", None),
            ("5x", None),
            ("", None),
        ] {
            assert_eq!(timeout(&map("grpc-timeout", text)), expected, "{text:?}");
        }
    }

    #[test]
    fn a_refusal_is_written_in_visible_characters() {
        let mut headers = HeaderMap::new();
        refuse(&mut headers, Status::for_http(503), "100 % caf\u{e9}\n");
        assert_eq!(
            (&headers["grpc-status"], &headers["grpc-message"]),
            (&"14".parse().unwrap(), &"100 %25 caf%C3%A9%0A".parse().unwrap())
        );
    }
}
