//! Address of the HTTP API: on this machine only.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An address of this machine that no other machine can reach, with a port; 0 for one that the system picks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "SocketAddr", into = "SocketAddr")]
pub struct LoopbackAddress(SocketAddr);

/// A text that is no such address. Its message says what was expected and found, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressError {
    /// It is not an address with a port.
    Malformed {
        /// The text that was given.
        found: String,
    },
    /// Other machines can reach it.
    NotLoopback {
        /// The text that was given.
        found: String,
        /// Its port.
        port: u16,
    },
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AddressError::Malformed { found } => {
                write!(
                    f,
                    "expected an address such as `127.0.0.1:8265`, `[::1]:8265` or `localhost:0`, found `{found}`"
                )
            }
            AddressError::NotLoopback { found, port } => {
                write!(f, "expected an address of this machine alone, such as `127.0.0.1:{port}`, found `{found}`")?;
                f.write_str("\n(hint: whoever reaches the HTTP API can run code as you. From another machine it is reached safely through ")?;
                let port = if *port == 0 { "PORT".to_owned() } else { port.to_string() };
                write!(f, "`ssh -N -L {port}:127.0.0.1:{port} THIS_MACHINE`)")
            }
        }
    }
}

impl std::error::Error for AddressError {}

impl LoopbackAddress {
    /// Returns 127.0.0.1 with a port that the system chooses.
    pub fn any_port() -> LoopbackAddress {
        LoopbackAddress((Ipv4Addr::LOCALHOST, 0).into())
    }

    /// Returns the address.
    pub fn get(self) -> SocketAddr {
        self.0
    }

    /// Returns what requests begin with: `http://127.0.0.1:8265`.
    pub fn url(self) -> String {
        format!("http://{}", self.0)
    }
}

impl FromStr for LoopbackAddress {
    type Err = AddressError;

    /// Reads an address with a port; `localhost` is 127.0.0.1. Fit for use as a value parser of a flag.
    fn from_str(text: &str) -> Result<LoopbackAddress, AddressError> {
        let malformed = || AddressError::Malformed { found: text.to_owned() };
        if let Ok(address) = text.parse::<SocketAddr>() {
            return LoopbackAddress::try_from(address);
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(malformed)?;
        // No more than digits: `+80` is a number, and no port.
        let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port: u16 = Some(port).filter(|_| is_port).and_then(|port| port.parse().ok()).ok_or_else(malformed)?;
        if host.eq_ignore_ascii_case("localhost") {
            return Ok(LoopbackAddress((Ipv4Addr::LOCALHOST, port).into()));
        }
        let is_name =
            !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_*".contains(&byte));
        if is_name { Err(AddressError::NotLoopback { found: text.to_owned(), port }) } else { Err(malformed()) }
    }
}

impl TryFrom<SocketAddr> for LoopbackAddress {
    type Error = AddressError;

    fn try_from(address: SocketAddr) -> Result<LoopbackAddress, AddressError> {
        match address.ip() {
            IpAddr::V4(ip) if ip.is_loopback() => Ok(LoopbackAddress(address)),
            IpAddr::V6(ip) if ip.is_loopback() => Ok(LoopbackAddress(address)),
            _ => Err(AddressError::NotLoopback { found: address.to_string(), port: address.port() }),
        }
    }
}

impl From<LoopbackAddress> for SocketAddr {
    fn from(address: LoopbackAddress) -> SocketAddr {
        address.0
    }
}

impl fmt::Display for LoopbackAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Address of the receiver of OTLP: one that is named, or `auto`, which is that of the HTTP API or of `GET /metrics` if the head has one of them,
/// else 127.0.0.1:4318, where exporters send if nothing else is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtlpAddress(pub Option<LoopbackAddress>);

/// The port that OTLP over HTTP has by its specification.
const OTLP_PORT: u16 = 4318;

impl OtlpAddress {
    /// Returns the address, if nothing else listens.
    pub fn alone(self) -> LoopbackAddress {
        self.0.unwrap_or(LoopbackAddress((Ipv4Addr::LOCALHOST, OTLP_PORT).into()))
    }
}

impl FromStr for OtlpAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<OtlpAddress, AddressError> {
        if text == "auto" { Ok(OtlpAddress(None)) } else { text.parse().map(Some).map(OtlpAddress) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_machine_are_taken() {
        for (text, expected) in [
            ("127.0.0.1:8265", "http://127.0.0.1:8265"),
            ("127.9.9.9:1", "http://127.9.9.9:1"),
            ("localhost:0", "http://127.0.0.1:0"),
            ("LocalHost:80", "http://127.0.0.1:80"),
            ("[::1]:65535", "http://[::1]:65535"),
        ] {
            assert_eq!(text.parse::<LoopbackAddress>().map(LoopbackAddress::url).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn addresses_that_others_can_reach_are_refused_with_a_way_that_is_safe() {
        for text in
            ["0.0.0.0:8265", "[::]:8265", "192.168.1.2:8265", "[::ffff:127.0.0.1]:8265", "example.com:8265", "*:8265"]
        {
            let error = text.parse::<LoopbackAddress>().unwrap_err().to_string();
            let expected =
                format!("expected an address of this machine alone, such as `127.0.0.1:8265`, found `{text}`\n");
            assert!(error.starts_with(&expected), "{error}");
            assert!(error.ends_with("through `ssh -N -L 8265:127.0.0.1:8265 THIS_MACHINE`)"), "{error}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in
            ["", "8265", ":8265", "localhost", "localhost:", "localhost:+80", "127.0.0.1:65536", "::1:80", "a b:80"]
        {
            let error = text.parse::<LoopbackAddress>().unwrap_err();
            assert_eq!(error, AddressError::Malformed { found: text.into() }, "{text}");
        }
    }
}
