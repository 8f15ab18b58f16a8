//! gRPC, as far as proxies and replicas have to know it: which requests are of it, and how they have ended.

use crate::request_names::RPC_STATUSES;

/// Outcome of a call, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status(u32);

impl Status {
    /// The caller has taken the call back.
    pub const CANCELLED: Status = Status(1);
    /// Nothing is known of the outcome.
    pub const UNKNOWN: Status = Status(2);
    /// The time for the call was up.
    pub const DEADLINE_EXCEEDED: Status = Status(4);
    /// There is no such method.
    pub const UNIMPLEMENTED: Status = Status(12);
    /// The handler has failed.
    pub const INTERNAL: Status = Status(13);
    /// No process could handle the call, or the one that did has died.
    pub const UNAVAILABLE: Status = Status(14);

    /// Parses the value of `grpc-status`. What is no status counts as [`Status::UNKNOWN`].
    pub fn parse(value: &[u8]) -> Status {
        let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
        number.filter(|number| *number < RPC_STATUSES.len() as u32).map_or(Status::UNKNOWN, Status)
    }

    /// Returns the status that stands for one of HTTP when a proxy answers in the place of a handler.
    pub const fn for_http(status: u16) -> Status {
        Status(match status {
            400 | 408 | 431 => 3,
            404 | 405 | 421 | 501 => 12,
            413 | 429 => 8,
            500 => 13,
            504 => 4,
            _ => 14,
        })
    }

    /// Returns its number.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Returns its name, such as `UNAVAILABLE`.
    pub fn name(self) -> &'static str {
        RPC_STATUSES.get(self.0 as usize).copied().unwrap_or("UNKNOWN")
    }

    /// Returns whether it is the server's error, and not the caller's, by the conventions of OpenTelemetry.
    pub const fn is_error(self) -> bool {
        matches!(self.0, 2 | 4 | 12 | 13 | 14 | 15)
    }
}

/// Returns whether the value of a `content-type` is of gRPC. gRPC-Web is not.
pub fn is_content_type(value: &[u8]) -> bool {
    let rest = value.strip_prefix(b"application/grpc");
    rest.is_some_and(|rest| rest.is_empty() || matches!(rest[0], b'+' | b';'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_grpc_are_told_by_their_type() {
        for kind in ["application/grpc", "application/grpc+proto", "application/grpc;x=y"] {
            assert!(is_content_type(kind.as_bytes()), "{kind}");
        }
        for kind in ["application/grpc-web", "application/grpc-web+proto", "application/json", ""] {
            assert!(!is_content_type(kind.as_bytes()), "{kind}");
        }
    }

    #[test]
    fn a_status_has_its_name_and_some_are_the_servers_errors() {
        let names = ["0", "14", "99", "x"].map(|text| Status::parse(text.as_bytes()).name());
        assert_eq!(names, ["OK", "UNAVAILABLE", "UNKNOWN", "UNKNOWN"]);
        let errors: Vec<_> =
            (0..17).filter(|number| Status(*number).is_error()).map(|number| Status(number).name()).collect();
        let expected = ["UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"];
        assert_eq!(errors, expected);
        assert_eq!(Status::for_http(504), Status::DEADLINE_EXCEEDED);
        assert_eq!((Status::for_http(502), Status::for_http(503)), (Status::UNAVAILABLE, Status::UNAVAILABLE));
        assert_eq!(
            (Status::for_http(404).name(), Status::for_http(429).name()),
            ("UNIMPLEMENTED", "RESOURCE_EXHAUSTED")
        );
    }
}
