//! Parts of requests of HTTP: names and values of headers (RFC 9110, section 5), hosts, and queries as spans have them.

use std::borrow::Cow;

/// Returns whether a byte may stand in a token: a method, the name of a header.
#[inline]
pub fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Returns whether bytes are a token, which is never empty.
#[inline]
pub fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().copied().all(is_token_byte)
}

/// Returns whether bytes may be the value of a header: no control characters but tabs.
#[inline]
pub fn is_value(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == b'\t' || (byte >= b' ' && byte != 0x7f))
}

/// Returns whether bytes are a host with or without a port, as `Host` and `:authority` have it (RFC 9110, section 7.2; RFC 3986, section 3.2): a name, an
/// address, or an address of IPv6 in brackets. Of what a registered name might have, only what names of hosts do: neither user information, nor
/// `%`, nor `,`, which another reader takes for something else. Empty is right where the target has no host.
pub fn is_authority(bytes: &[u8]) -> bool {
    let is_port = |port: &[u8]| port.len() <= 5 && port.iter().all(u8::is_ascii_digit);
    if let Some(rest) = bytes.strip_prefix(b"[") {
        let Some(end) = rest.iter().position(|&byte| byte == b']') else { return false };
        let address = std::str::from_utf8(&rest[..end]).ok().and_then(|text| text.parse::<std::net::Ipv6Addr>().ok());
        let port = &rest[end + 1..];
        return address.is_some() && (port.is_empty() || port.strip_prefix(b":").is_some_and(is_port));
    }
    let name_end = bytes.iter().position(|&byte| byte == b':').unwrap_or(bytes.len());
    let (name, port) = bytes.split_at(name_end);
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
    name.iter().all(is_name) && port.strip_prefix(b":").is_none_or(|port| !name.is_empty() && is_port(port))
}

/// Returns host and port of `host:port`, `[address]:port` or either without a port.
pub fn host_and_port(text: &str) -> (&str, Option<u16>) {
    let bare = |host: &'_ str| host.trim_start_matches('[').trim_end_matches(']').len();
    match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            let start = usize::from(host.starts_with('['));
            (&host[start..start + bare(host)], port.parse().ok())
        }
        _ => {
            let start = usize::from(text.starts_with('['));
            (&text[start..start + bare(text)], None)
        }
    }
}

/// Parameters whose values the semantic conventions take for secrets: signatures of cloud storage.
const SECRET_PARAMETERS: [&str; 4] = ["AWSAccessKeyId", "Signature", "sig", "X-Goog-Signature"];

/// Returns a query with `REDACTED` in the place of what must not be on a span.
pub fn redacted_query(query: &str) -> Cow<'_, str> {
    let is_secret =
        |parameter: &str| parameter.split_once('=').is_some_and(|(key, _)| SECRET_PARAMETERS.contains(&key));
    if !query.split('&').any(is_secret) {
        return query.into();
    }
    let parameters = query.split('&').map(|parameter| match parameter.split_once('=') {
        Some((key, _)) if is_secret(parameter) => format!("{key}=REDACTED"),
        _ => parameter.to_owned(),
    });
    parameters.collect::<Vec<_>>().join("&").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9112, section 3.2, and RFC 9113, section 8.3.1: what is no host is answered with 400.
    #[test]
    fn hosts_are_told_from_what_is_read_in_another_way() {
        for host in
            ["", "a", "shop.test", "shop.test.", "Shop.TEST:80", "a_b-c", "127.0.0.1:8000", "[::1]", "[::1]:1", "a:"]
        {
            assert!(is_authority(host.as_bytes()), "{host:?}");
        }
        for other in [
            "a/b",
            "u@shop.test",
            "shop.test/x",
            "shop.test?x",
            "shop.test#x",
            "shop.test:abc",
            "[::1",
            "[x]",
            "[::1]a",
            "[::1]:x",
            "a,b",
            "%70rivate.test",
            "a b",
            "a:1:2",
            "::1",
            ":80",
            "a:123456",
            "http://a",
            "a;b",
            "a\\b",
            "[::1%25eth0]",
        ] {
            assert!(!is_authority(other.as_bytes()), "{other:?}");
        }
    }

    #[test]
    fn tokens_are_told_from_other_bytes() {
        for token in ["x", "GET", "x-request-id", "!#$%&'*+-.^_`|~09azAZ"] {
            assert!(is_token(token.as_bytes()), "{token}");
        }
        for other in ["", "a b", "a:", "a/b", "é", "a\n", "\"a\"", "(a)"] {
            assert!(!is_token(other.as_bytes()), "{other:?}");
        }
    }

    #[test]
    fn values_have_no_control_characters_but_tabs() {
        for value in ["", "a b", "a\tb", "é", "~"] {
            assert!(is_value(value.as_bytes()), "{value:?}");
        }
        for other in ["\r", "a\nb", "\0", "\u{7f}", "\u{1b}[0m"] {
            assert!(!is_value(other.as_bytes()), "{other:?}");
        }
    }

    #[test]
    fn hosts_and_ports_are_told_apart() {
        for (text, expected) in [
            ("", ("", None)),
            ("shop.example", ("shop.example", None)),
            ("shop.example:8000", ("shop.example", Some(8000))),
            ("127.0.0.1:80", ("127.0.0.1", Some(80))),
            ("[::1]:80", ("::1", Some(80))),
            ("[::1]", ("::1", None)),
            ("::1", ("::1", None)),
            ("shop:x", ("shop", None)),
        ] {
            assert_eq!(host_and_port(text), expected, "{text}");
        }
    }

    #[test]
    fn secrets_of_a_query_are_not_on_the_span() {
        for (query, expected) in [
            ("wait_ms=5", "wait_ms=5"),
            ("sig=abc", "sig=REDACTED"),
            ("a=1&X-Goog-Signature=x%3D&Signature=&b", "a=1&X-Goog-Signature=REDACTED&Signature=REDACTED&b"),
            ("SIG=abc&signature=1&sig", "SIG=abc&signature=1&sig"),
        ] {
            assert_eq!(redacted_query(query), expected);
        }
    }
}
