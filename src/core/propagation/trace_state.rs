//! The `tracestate` header: an ordered list of what vendors say about a trace.

use std::fmt;

use super::trim_ows;

/// The most members of a list. A longer one is refused when it is read, and loses its last member when one is added.
pub const TRACE_STATE_MEMBERS_LIMIT: usize = 32;
/// The longest list that is carried on, in characters. The recommendation asks for 512 at least; this is more, and bounds what
/// a task takes with it.
pub const TRACE_STATE_CHARACTERS_LIMIT: usize = 2048;

/// Length from which a member is the first to go when a list is too long.
const LONG_MEMBER: usize = 128;
const KEY_LIMIT: usize = 256;
const VALUE_LIMIT: usize = 256;

/// A valid `tracestate`: an ordered list of keys and values without duplicates. It prints as the header's value, which is empty
/// when the list is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceState {
    members: Vec<(String, String)>,
}

/// Defect of a `tracestate`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TraceStateError {
    /// There are more than [`TRACE_STATE_MEMBERS_LIMIT`] members.
    #[error("expected at most {} members, found {found}", TRACE_STATE_MEMBERS_LIMIT)]
    Members {
        /// Number of members found.
        found: usize,
    },
    /// A member has no `=`.
    #[error("expected `key=value`, found no `=` in member {position}")]
    NoValue {
        /// The member, from 1.
        position: usize,
    },
    /// A member's key is not one.
    #[error(
        "expected a key of at most {} characters a-z, 0-9, `_`, `-`, `*`, `/` and `@` that begins with \
                 a letter or digit, found another in member {position}",
        KEY_LIMIT
    )]
    Key {
        /// The member, from 1.
        position: usize,
    },
    /// A member's value is not one.
    #[error(
        "expected a value of 1 to {} printable ASCII characters without `,` and `=`, found another in \
                 member {position}",
        VALUE_LIMIT
    )]
    Value {
        /// The member, from 1.
        position: usize,
    },
}

impl TraceState {
    /// Reads the header's values, in order; several are one list. Empty members are skipped, and of several members with the same key
    /// the first, which is the newest, is kept: "only one entry per key is allowed because the entry represents that last position in the trace" (level 2,
    /// 3.3.1.4), and entries of other vendors are not to be deleted for it (3.5).
    ///
    /// One wrong member invalidates the list, as the recommendation has it.
    pub fn parse<'a>(values: impl IntoIterator<Item = &'a str>) -> Result<TraceState, TraceStateError> {
        let mut members: Vec<(String, String)> = Vec::new();
        let mut found = 0;
        for text in values.into_iter().flat_map(|value| value.split(',')).map(trim_ows) {
            if text.is_empty() {
                continue;
            }
            found += 1;
            if found > TRACE_STATE_MEMBERS_LIMIT {
                // Nothing more is kept; the rest is only counted for the message.
                continue;
            }
            let (key, value) = text.split_once('=').ok_or(TraceStateError::NoValue { position: found })?;
            if !is_key(key) {
                return Err(TraceStateError::Key { position: found });
            }
            if !is_value(value) {
                return Err(TraceStateError::Value { position: found });
            }
            if !members.iter().any(|(known, _)| known == key) {
                members.push((key.into(), value.into()));
            }
        }
        if found > TRACE_STATE_MEMBERS_LIMIT {
            return Err(TraceStateError::Members { found });
        }
        Ok(TraceState { members })
    }

    /// Returns the members, newest first.
    pub fn members(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.members.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Returns the value of `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.members().find(|(known, _)| *known == key).map(|(_, value)| value)
    }

    /// Puts a member at the front. An older one with the same key goes, and the last one when there would be too many.
    pub fn insert(&mut self, key: &str, value: &str) -> Result<(), TraceStateError> {
        if !is_key(key) {
            return Err(TraceStateError::Key { position: 1 });
        }
        if !is_value(value) {
            return Err(TraceStateError::Value { position: 1 });
        }
        self.members.retain(|(known, _)| known != key);
        self.members.truncate(TRACE_STATE_MEMBERS_LIMIT - 1);
        self.members.insert(0, (key.into(), value.into()));
        Ok(())
    }

    /// Takes out whole members until the list has at most `limit` characters, and returns how many: first those longer
    /// than 128 characters, then any, each time from the end.
    pub fn truncate(&mut self, limit: usize) -> usize {
        let before = self.members.len();
        let mut len = self.len();
        for is_spared in [(|len| len <= LONG_MEMBER) as fn(usize) -> bool, |_| false] {
            for index in (0..self.members.len()).rev() {
                if len <= limit {
                    break;
                }
                let member_len = member_len(&self.members[index]);
                if !is_spared(member_len) {
                    self.members.remove(index);
                    len = len.saturating_sub(member_len + 1);
                }
            }
        }
        before - self.members.len()
    }

    /// Returns the length of the header's value in characters.
    fn len(&self) -> usize {
        let commas = self.members.len().saturating_sub(1);
        self.members.iter().map(member_len).sum::<usize>() + commas
    }
}

impl fmt::Display for TraceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (key, value)) in self.members.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{key}={value}")?;
        }
        Ok(())
    }
}

fn member_len((key, value): &(String, String)) -> usize {
    key.len() + 1 + value.len()
}

fn is_key(key: &str) -> bool {
    let is_first = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_further = |byte: u8| is_first(&byte) || b"_-*/@".contains(&byte);
    key.len() <= KEY_LIMIT && key.as_bytes().first().is_some_and(is_first) && key.bytes().all(is_further)
}

fn is_value(value: &str) -> bool {
    let is_character = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b',' && byte != b'=';
    (1..=VALUE_LIMIT).contains(&value.len()) && !value.ends_with(' ') && value.bytes().all(is_character)
}
