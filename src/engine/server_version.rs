//! Versions of `nats-server`, and what changed with some of them.

use std::fmt;
use std::str::FromStr;

/// A version: major, minor, patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerVersion(u32, u32, u32);

impl ServerVersion {
    /// The oldest one that tracer works with.
    pub const OLDEST: ServerVersion = ServerVersion(2, 9, 0);
    /// The first one that can sync each write before it acknowledges: `sync_interval: always`.
    pub const SYNCS_ALWAYS: ServerVersion = ServerVersion(2, 10, 0);
    /// The first one whose replicated streams keep what they have acknowledged when servers die.
    pub const REPLICATES_SAFELY: ServerVersion = ServerVersion(2, 12, 3);
}

impl FromStr for ServerVersion {
    type Err = String;

    /// Takes `2.9.10`, `v2.9.10`, `2.15.0-RC.1`, and what `nats-server --version` prints.
    fn from_str(text: &str) -> Result<ServerVersion, String> {
        let last = text.trim().rsplit(' ').next().unwrap_or_default();
        let number = last.strip_prefix('v').unwrap_or(last);
        let number = number.split(['-', '+']).next().unwrap_or_default();
        let parts: Vec<Option<u32>> = number.split('.').map(|part| part.parse().ok()).collect();
        match parts[..] {
            [Some(major), Some(minor)] => Ok(ServerVersion(major, minor, 0)),
            [Some(major), Some(minor), Some(patch)] => Ok(ServerVersion(major, minor, patch)),
            _ => Err(format!("expected a version of nats-server such as `2.12.3`, found `{text}`")),
        }
    }
}

impl fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServerVersion(major, minor, patch) = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_in_every_form_and_ordered_by_number() {
        let read = |text: &str| text.parse::<ServerVersion>();
        for (text, version) in [
            ("2.9.10", "2.9.10"),
            ("v2.15.1", "2.15.1"),
            ("2.12", "2.12.0"),
            ("2.15.0-RC.1", "2.15.0"),
            ("nats-server: v2.9.10\n", "2.9.10"),
        ] {
            assert_eq!(read(text).map(|read| read.to_string()).as_deref(), Ok(version), "{text}");
        }
        for text in ["", "2", "two.three", "2.9.10.1", "nats-server"] {
            assert!(read(text).is_err(), "{text}");
        }
        assert!(read("2.9.10").unwrap() < ServerVersion::SYNCS_ALWAYS);
        assert!(read("2.12.3").unwrap() >= ServerVersion::REPLICATES_SAFELY);
    }
}
