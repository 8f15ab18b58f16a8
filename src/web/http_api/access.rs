//! Access checks: the names a request may use for this server, the origin it may come from, and the token it has to show.
//!
//! A web page that somebody of this machine looks at can send requests to loopback addresses. It cannot set `Host` or `Origin` to what it
//! likes, so both are checked on every method. A name that an attacker lets point at 127.0.0.1 (DNS rebinding) is no
//! name of this machine, and its pages have that name as their origin.

use std::net::{IpAddr, SocketAddr};

/// Reason why a request is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// It names no host, or several.
    HostMissing,
    /// It names another host than this one.
    Host(String),
    /// It comes from a page of another origin.
    Origin(String),
    /// It shows no token.
    TokenMissing,
    /// It shows another token.
    TokenWrong,
}

/// Role of whoever shows a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Everything: the session's own token.
    Full,
    /// Read everything, and cancel tasks.
    Control,
    /// Read everything.
    Viewer,
    /// Read metrics.
    Scraper,
    /// Send OTLP.
    Sender,
}

impl Role {
    /// Returns the role of a page that may cancel tasks, or of one that only reads.
    pub(crate) const fn of_page(may_cancel: bool) -> Role {
        if may_cancel { Role::Control } else { Role::Viewer }
    }
}

/// Parts of a request that are checked; of each header all the values that there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claims<'a> {
    /// The authority of the request's target, if it is in absolute form.
    pub(crate) authority: Option<&'a str>,
    pub(crate) hosts: &'a [&'a [u8]],
    pub(crate) origins: &'a [&'a [u8]],
    pub(crate) authorizations: &'a [&'a [u8]],
}

/// Checks that a request names this server, and comes from no page of another one. Called before the token is looked at: who is not meant here
/// learns nothing about tokens.
pub(crate) fn check_names(claims: &Claims<'_>, listening: SocketAddr) -> Result<(), Denied> {
    let [host] = claims.hosts else { return Err(Denied::HostMissing) };
    for name in [Some(*host), claims.authority.map(str::as_bytes)].into_iter().flatten() {
        if !is_own_name(name, listening) {
            return Err(Denied::Host(shown(name)));
        }
    }
    for origin in claims.origins {
        if !origin.strip_prefix(b"http://").is_some_and(|name| is_own_name(name, listening)) {
            return Err(Denied::Origin(shown(origin)));
        }
    }
    Ok(())
}

/// Checks that a request shows one token, and returns what that is good for; `role_of` knows the tokens.
pub(crate) fn check_token(claims: &Claims<'_>, role_of: impl FnOnce(&[u8]) -> Option<Role>) -> Result<Role, Denied> {
    match claims.authorizations {
        [] => Err(Denied::TokenMissing),
        [shown] => match bearer(shown) {
            Some(shown) => role_of(shown).ok_or(Denied::TokenWrong),
            None => Err(Denied::TokenMissing),
        },
        _ => Err(Denied::TokenWrong),
    }
}

/// Returns whether a host with its port names this server: `localhost` or a loopback address, with the port that is listened on.
fn is_own_name(name: &[u8], listening: SocketAddr) -> bool {
    let Ok(name) = std::str::from_utf8(name) else { return false };
    if let Ok(address) = name.parse::<SocketAddr>() {
        return address.port() == listening.port() && is_loopback(address.ip());
    }
    let (host, port) = match name.rsplit_once(':') {
        // The colons of an address in brackets are its own.
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (name, None),
    };
    let is_port = match port {
        Some(port) => port == listening.port().to_string(),
        None => listening.port() == 80,
    };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    is_port && (host.eq_ignore_ascii_case("localhost") || bare.parse().is_ok_and(is_loopback))
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.is_loopback()
}

/// Returns the token of an `Authorization` header; its scheme is written in any case.
fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = header.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// Returns what somebody sent, fit for a message.
fn shown(bytes: &[u8]) -> String {
    const LIMIT: usize = 200;
    let text: String = String::from_utf8_lossy(bytes).chars().take(LIMIT).collect();
    text.escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123abcd";

    /// Checks names and origin first, as a server does: who is not meant here learns nothing about tokens.
    fn check(claims: &Claims<'_>, listening: SocketAddr, token: &str) -> Result<(), Denied> {
        check_names(claims, listening)?;
        check_token(claims, |shown| tracer_ipc::http_codes::is_same(shown, token.as_bytes()).then_some(Role::Full))
            .map(drop)
    }

    fn ask(port: u16, hosts: &[&str], origins: &[&str], authorizations: &[&str]) -> Result<(), Denied> {
        let bytes = |texts: &[&str]| texts.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>();
        let all = [hosts, origins, authorizations].map(bytes);
        let [hosts, origins, authorizations] =
            all.each_ref().map(|all| all.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let claims = Claims { authority: None, hosts: &hosts, origins: &origins, authorizations: &authorizations };
        check(&claims, SocketAddr::from(([127, 0, 0, 1], port)), TOKEN)
    }

    #[test]
    fn names_of_this_machine_with_the_port_are_its_own() {
        for host in ["127.0.0.1:8265", "localhost:8265", "LOCALHOST:8265", "[::1]:8265", "127.1.2.3:8265"] {
            assert_eq!(ask(8265, &[host], &[], &["Bearer 0123abcd"]), Ok(()), "{host}");
            assert_eq!(ask(8265, &[host], &[&format!("http://{host}")], &["bearer 0123abcd"]), Ok(()), "{host}");
        }
        for host in ["localhost", "127.0.0.1", "[::1]", "localhost:80"] {
            assert_eq!(ask(80, &[host], &[], &["Bearer 0123abcd"]), Ok(()), "{host}");
        }
    }

    #[test]
    fn other_names_are_refused_whatever_they_point_at() {
        for host in [
            "evil.example:8265",
            "localhost.evil.example:8265",
            "127.0.0.1.nip.io:8265",
            "localhost",
            "127.0.0.1",
            "localhost:8266",
            "127.0.0.1:80",
            "[::1]",
            "0.0.0.0:8265",
            "192.168.0.1:8265",
            "[::ffff:127.0.0.1]:8265",
            "",
            ":8265",
            "localhost:",
            "localhost:8265:8265",
            "localhost:08265",
            "user@localhost:8265",
            "localhost:8265/",
            "2130706433:8265",
            "0x7f.1:8265",
            "127.1:8265",
            "\u{ff}:8265",
        ] {
            let denied = ask(8265, &[host], &[], &["Bearer 0123abcd"]);
            assert_eq!(denied, Err(Denied::Host(shown(host.as_bytes()))), "{host}");
        }
        assert_eq!(ask(8265, &[], &[], &["Bearer 0123abcd"]), Err(Denied::HostMissing));
        assert_eq!(ask(8265, &["localhost:8265"; 2], &[], &["Bearer 0123abcd"]), Err(Denied::HostMissing));
        let claims = Claims {
            authority: Some("evil.example"),
            hosts: &[b"localhost:8265"],
            origins: &[],
            authorizations: &[b"Bearer 0123abcd"],
        };
        let denied = check(&claims, SocketAddr::from(([127, 0, 0, 1], 8265)), TOKEN);
        assert_eq!(denied, Err(Denied::Host("evil.example".into())));
    }

    #[test]
    fn pages_of_other_origins_are_refused() {
        for origin in [
            "null",
            "http://evil.example",
            "http://evil.example:8265",
            "https://localhost:8265",
            "http://localhost",
            "http://localhost:8266",
            "localhost:8265",
            "file://",
            "HTTP://localhost:8265",
            "",
        ] {
            let denied = ask(8265, &["localhost:8265"], &[origin], &["Bearer 0123abcd"]);
            assert_eq!(denied, Err(Denied::Origin(shown(origin.as_bytes()))), "{origin}");
        }
        let both = ["http://localhost:8265", "http://evil.example"];
        assert!(ask(8265, &["localhost:8265"], &both, &["Bearer 0123abcd"]).is_err());
    }

    #[test]
    fn only_the_token_itself_is_taken() {
        for authorization in [
            "Bearer",
            "Bearer ",
            "Bearer 0123abc",
            "Bearer 0123abcde",
            "Bearer 0123ABCD",
            "Bearer x123abcd",
            "Bearer 0123abcx",
            "Basic 0123abcd",
            "0123abcd",
            "Bearer 0123abcd, Bearer 0123abcd",
        ] {
            let denied = ask(8265, &["localhost:8265"], &[], &[authorization]);
            assert!(matches!(denied, Err(Denied::TokenMissing | Denied::TokenWrong)), "{authorization}: {denied:?}");
        }
        assert_eq!(ask(8265, &["localhost:8265"], &[], &[]), Err(Denied::TokenMissing));
        let twice = ["Bearer 0123abcd", "Bearer 0123abcd"];
        assert_eq!(ask(8265, &["localhost:8265"], &[], &twice), Err(Denied::TokenWrong));
    }
}
