//! Headers on their way through the proxy: what goes on, what does not, and what is said in place of it.

use std::net::IpAddr;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Version};
use tracer_core::request_names::MODEL_HEADER;
use tracer_ipc::lane::HEADER_LIMIT;

use crate::request_head::HEADERS;

/// The longest `x-request-id` of a client that is taken.
const REQUEST_ID_BYTES: usize = 128;

/// The name of a request, in requests and answers.
pub(super) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Name of the header with the model that a request is for.
pub(super) const X_MODEL_ID: HeaderName = HeaderName::from_static(MODEL_HEADER);
/// The span that has answered, in answers.
pub(super) const TRACE_RESPONSE: HeaderName = HeaderName::from_static("traceresponse");

/// Returns whether a header is of one connection and goes no further, whatever `Connection` names.
pub(super) fn is_hop_by_hop(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// Returns whether a header of a request is said in another way, or in another place.
fn is_said_elsewhere(name: &str) -> bool {
    matches!(name, "expect" | "host" | "traceparent" | "tracestate" | "baggage" | "x-request-id")
}

/// Returns whether a header says where a request comes from, or where it was sent to.
fn is_forwarding(name: &str) -> bool {
    matches!(name, "forwarded" | "x-real-ip") || name.starts_with("x-forwarded-")
}

/// Returns whether a server that makes variables of headers, as CGI does (RFC 3875, section 4.1.18), takes a name with `_` for that of a header which is
/// said in another way, or replaced, or of the body's length.
fn is_mistaken(name: &str) -> bool {
    if !name.contains('_') {
        return false;
    }
    let name = name.replace('_', "-");
    is_forwarding(&name)
        || is_said_elsewhere(&name)
        || is_hop_by_hop(&name)
        || matches!(&*name, "content-length" | "te" | MODEL_HEADER)
}

const FORWARDED_FOR: &str = "x-forwarded-for";

/// Returns whether one of these values of `Connection` names a header.
pub(super) fn names<'v>(values: impl Iterator<Item = &'v [u8]>, name: &str) -> bool {
    let mut named = values.flat_map(|value| value.split(|byte| *byte == b','));
    named.any(|named| named.trim_ascii().eq_ignore_ascii_case(name.as_bytes()))
}

/// The most headers that a replica is told besides those of the client.
const TOLD: usize = 9;
// Every request fits into a frame.
const _: () = assert!(HEADERS + TOLD <= HEADER_LIMIT);

/// Headers that a replica gets besides the client's.
pub(super) struct Told<'a> {
    /// Value of `tracestate`; empty for none.
    pub(super) trace_state: &'a str,
    /// Value of `baggage`; empty for none.
    pub(super) baggage: &'a str,
    /// Id by which people tell the request from others.
    pub(super) request_id: &'a str,
    /// The host that it is for; empty for none.
    pub(super) authority: &'a str,
    /// The address of whoever has sent it to this proxy.
    pub(super) peer: &'a str,
    /// True if what that one says of others is believed.
    pub(super) is_peer_trusted: bool,
    /// Value of `x-forwarded-for`, with the peer at its end; empty for the peer alone.
    pub(super) forwarded_for: &'a str,
    /// The protocol that the client asks for in place of HTTP; empty for none.
    pub(super) upgrade: &'a str,
    /// `https` if the peer speaks TLS, else `http`.
    pub(super) scheme: &'a str,
}

/// Returns the protocol that a request asks for in place of HTTP, if it is one that is passed on: a WebSocket over HTTP/1.1 (RFC 6455, section 4.1).
pub(super) fn upgrade(method: &Method, version: Version, headers: &HeaderMap) -> Option<&'static str> {
    let asked = headers.get_all(header::UPGRADE).into_iter().map(HeaderValue::as_bytes);
    let connection = headers.get_all(header::CONNECTION).into_iter().map(HeaderValue::as_bytes);
    let is_asked =
        method == Method::GET && version == Version::HTTP_11 && !headers.contains_key(header::CONTENT_LENGTH);
    (is_asked && names(asked, WEBSOCKET) && names(connection, "upgrade")).then_some(WEBSOCKET)
}

const WEBSOCKET: &str = "websocket";

/// Returns the headers that a replica gets with a request.
pub(super) fn to_replica<'a>(headers: &'a HeaderMap, told: &'a Told<'a>) -> impl Iterator<Item = (&'a str, &'a [u8])> {
    let names_some = headers.contains_key(header::CONNECTION);
    let is_named = move |name: &HeaderName| {
        let values = headers.get_all(header::CONNECTION).into_iter().map(HeaderValue::as_bytes);
        names_some && names(values, name.as_str())
    };
    let is_passed_on = move |&(name, value): &(&HeaderName, &HeaderValue)| {
        let text = name.as_str();
        let is_replaced = is_forwarding(text) && (!told.is_peer_trusted || text == FORWARDED_FOR);
        // What gRPC asks for is the one value that goes on.
        let is_other_te = text == "te" && !value.as_bytes().eq_ignore_ascii_case(b"trailers");
        !is_replaced
            && !is_other_te
            && !is_said_elsewhere(text)
            && !is_hop_by_hop(text)
            && !is_named(name)
            && !is_mistaken(text)
    };
    let is_said = |name: &'static str| !told.is_peer_trusted || !headers.contains_key(name);
    let forwarded_for = if told.forwarded_for.is_empty() { told.peer } else { told.forwarded_for };
    let own: [_; TOLD] = [
        ("host", told.authority),
        ("x-request-id", told.request_id),
        ("tracestate", told.trace_state),
        ("baggage", told.baggage),
        ("x-forwarded-for", forwarded_for),
        ("x-forwarded-proto", if is_said("x-forwarded-proto") { told.scheme } else { "" }),
        ("x-forwarded-host", if is_said("x-forwarded-host") { told.authority } else { "" }),
        ("connection", if told.upgrade.is_empty() { "" } else { "upgrade" }),
        ("upgrade", told.upgrade),
    ];
    let own = own.into_iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| (name, value.as_bytes()));
    own.chain(headers.iter().filter(is_passed_on).map(|(name, value)| (name.as_str(), value.as_bytes())))
}

/// Returns whether trailers fit into a frame.
pub(super) fn are_few(trailers: &HeaderMap) -> bool {
    trailers.len() <= HEADER_LIMIT
}

/// Trailers as a replica gets them.
pub(super) fn trailers(trailers: &HeaderMap) -> impl Iterator<Item = (&str, &[u8])> {
    let is_trailer = |&(name, _): &(&HeaderName, &HeaderValue)| {
        !is_hop_by_hop(name.as_str()) && !matches!(name.as_str(), "content-length" | "host" | "te")
    };
    trailers.iter().filter(is_trailer).map(|(name, value)| (name.as_str(), value.as_bytes()))
}

/// Returns the client's name for a request, if it is one that can be passed on and printed.
pub(super) fn request_id(headers: &HeaderMap) -> Option<&HeaderValue> {
    let value = headers.get(X_REQUEST_ID)?;
    // Lines of logs have it as it is.
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
    let is_name = (1..=REQUEST_ID_BYTES).contains(&value.len()) && value.as_bytes().iter().all(is_plain);
    is_name.then_some(value)
}

/// Returns the client that a trusted peer speaks for: the last address of `x-forwarded-for` that is not a trusted one.
pub(super) fn client_of(headers: &HeaderMap, is_trusted: impl Fn(&IpAddr) -> bool) -> Option<IpAddr> {
    let values = headers.get_all("x-forwarded-for").into_iter().filter_map(|value| value.to_str().ok());
    let addresses: Vec<_> = values.flat_map(|value| value.split(',')).map(str::trim).collect();
    let known = addresses.iter().rev().map_while(|text| text.parse::<IpAddr>().ok());
    let mut last = None;
    for address in known {
        last = Some(address);
        if !is_trusted(&address) {
            break;
        }
    }
    last
}

/// Returns all values of `x-forwarded-for` in one, with the peer at its end.
pub(super) fn forwarded_for(headers: &HeaderMap, peer: &str) -> String {
    let values = headers.get_all("x-forwarded-for").into_iter().filter_map(|value| value.to_str().ok());
    values.chain([peer]).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(headers: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        map
    }

    fn told() -> Told<'static> {
        Told {
            trace_state: "a=1",
            baggage: "",
            request_id: "r1",
            authority: "shop",
            peer: "10.0.0.9",
            is_peer_trusted: false,
            forwarded_for: "",
            upgrade: "",
            scheme: "http",
        }
    }

    fn shown(headers: &HeaderMap, told: &Told<'_>) -> Vec<String> {
        let shown = |(name, value): (&str, &[u8])| format!("{name}: {}", String::from_utf8_lossy(value));
        to_replica(headers, told).map(shown).collect()
    }

    #[test]
    fn a_replica_is_told_that_the_client_speaks_tls_unless_a_trusted_peer_says_otherwise() {
        let headers = map(&[("x-forwarded-proto", "http")]);
        let told = |is_peer_trusted| Told { scheme: "https", is_peer_trusted, ..told() };
        let of = |is_peer_trusted| {
            let shown = shown(&headers, &told(is_peer_trusted)).into_iter();
            shown.filter(|line| line.starts_with("x-forwarded-proto")).collect::<Vec<_>>()
        };
        assert_eq!(of(false), ["x-forwarded-proto: https"]);
        assert_eq!(of(true), ["x-forwarded-proto: http"]);
    }

    #[test]
    fn what_is_of_the_connection_goes_no_further_and_the_rest_does_in_order() {
        let headers = map(&[
            ("host", "evil"),
            ("connection", "close, x-secret"),
            ("keep-alive", "5"),
            ("x-secret", "1"),
            ("te", "trailers"),
            ("upgrade", "websocket"),
            ("transfer-encoding", "chunked"),
            ("expect", "100-continue"),
            ("traceparent", "00-1-1-00"),
            ("tracestate", "b=2"),
            ("x-request-id", "other"),
            ("accept", "a"),
            ("accept", "b"),
        ]);
        let expected = [
            "host: shop",
            "x-request-id: r1",
            "tracestate: a=1",
            "x-forwarded-for: 10.0.0.9",
            "x-forwarded-proto: http",
            "x-forwarded-host: shop",
            "te: trailers",
            "accept: a",
            "accept: b",
        ];
        assert_eq!(shown(&headers, &told()), expected);
        assert!(!shown(&map(&[("te", "gzip")]), &told()).iter().any(|header| header.starts_with("te:")));
    }

    #[test]
    fn a_name_with_underscores_is_not_taken_for_one_that_is_replaced() {
        let headers = map(&[
            ("x_forwarded_for", "6.6.6.6"),
            ("x-forwarded_proto", "https"),
            ("x_request_id", "spoofed"),
            ("transfer_encoding", "chunked"),
            ("content_length", "9"),
            ("x-forwarded-prefix", "/evil"),
            ("x_real_ip", "6.6.6.6"),
            ("api_key", "1"),
        ]);
        for is_peer_trusted in [false, true] {
            let shown = shown(&headers, &Told { is_peer_trusted, ..told() });
            assert_eq!(shown.iter().filter(|line| line.contains('_')).collect::<Vec<_>>(), ["api_key: 1"]);
            assert_eq!(shown.contains(&"x-forwarded-prefix: /evil".to_owned()), is_peer_trusted);
        }
    }

    #[test]
    fn what_is_said_of_others_is_believed_of_those_who_are_trusted_only() {
        let headers = map(&[
            ("x-forwarded-for", "1.2.3.4, 10.0.0.1"),
            ("x-forwarded-proto", "https"),
            ("forwarded", "for=1.2.3.4"),
            ("x-real-ip", "1.2.3.4"),
        ]);
        let untrusted = shown(&headers, &told());
        assert!(
            !untrusted.iter().any(|header| header.contains("1.2.3.4") || header.contains("https")),
            "{untrusted:?}"
        );
        let list = forwarded_for(&headers, "10.0.0.9");
        let trusted = shown(&headers, &Told { is_peer_trusted: true, forwarded_for: &list, ..told() });
        for expected in
            ["x-forwarded-for: 1.2.3.4, 10.0.0.1, 10.0.0.9", "x-forwarded-proto: https", "forwarded: for=1.2.3.4"]
        {
            assert_eq!(trusted.iter().filter(|header| *header == expected).count(), 1, "{trusted:?}");
        }
        let is_trusted = |address: &IpAddr| address.to_string().starts_with("10.");
        assert_eq!(client_of(&headers, is_trusted), Some([1, 2, 3, 4].into()));
        assert_eq!(client_of(&map(&[("x-forwarded-for", "1.2.3.4, no")]), is_trusted), None);
    }

    #[test]
    fn a_name_of_a_request_is_a_short_printable_token() {
        for (value, is_taken) in [("abc-1", true), ("", false), ("a b", false), ("caf\u{e9}", false)] {
            let mut headers = HeaderMap::new();
            headers.insert(X_REQUEST_ID, HeaderValue::from_bytes(value.as_bytes()).unwrap());
            assert_eq!(request_id(&headers).is_some(), is_taken, "{value:?}");
        }
        let long = HeaderValue::from_str(&"x".repeat(REQUEST_ID_BYTES + 1)).unwrap();
        assert!(request_id(&HeaderMap::from_iter([(X_REQUEST_ID, long)])).is_none());
    }
}
