//! gRPC, as far as a proxy has to know it: which requests are of it, how they have ended, and how one is refused.

use std::time::Duration;

use http::Version;
use http::header::{self, HeaderMap, HeaderValue};
use tracer_core::grpc::{Status, is_content_type};

const STATUS: &str = "grpc-status";

/// Returns what an answer says of its outcome, in its trailers, or in its head when it has nothing else. None when it says nothing.
pub(super) fn status(headers: &HeaderMap) -> Option<Status> {
    headers.get(STATUS).map(|value| Status::parse(value.as_bytes()))
}

/// Returns whether a request is of gRPC, which is spoken over HTTP/2 alone.
pub(super) fn is_grpc(version: Version, headers: &HeaderMap) -> bool {
    version == Version::HTTP_2
        && headers.get(header::CONTENT_TYPE).is_some_and(|value| is_content_type(value.as_bytes()))
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

/// Writes the head of an answer that has nothing else: status and message in its headers.
pub(super) fn refuse(headers: &mut HeaderMap, status: Status, message: &str) {
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    end(headers, status, message);
}

/// Returns the trailers of an answer that the proxy ends in the place of the handler.
pub(super) fn trailers(status: Status, message: &str) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    end(&mut trailers, status, message);
    trailers
}

fn end(headers: &mut HeaderMap, status: Status, message: &str) {
    headers.insert(STATUS, HeaderValue::from(status.number()));
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
