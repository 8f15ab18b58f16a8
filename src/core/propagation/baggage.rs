//! The `baggage` header: keys and values that an application sends along.

use std::borrow::Cow;
use std::fmt;

use super::trim_ows;
use crate::http_field::is_token;

/// The most members that are carried on.
pub const BAGGAGE_MEMBERS_LIMIT: usize = 64;
/// The longest list that is carried on, in bytes, commas included.
pub const BAGGAGE_BYTES_LIMIT: usize = 8192;

/// Valid `baggage`: members as they were received, byte for byte. It prints as the header's value, which is empty when there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Baggage {
    members: Vec<String>,
}

/// One member of [`Baggage`], decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaggageEntry<'a> {
    /// An HTTP token.
    pub key: &'a str,
    /// Percent-decoded; what is not UTF-8 then is replaced by U+FFFD.
    pub value: Cow<'a, str>,
    /// Properties after the value's `;`, as they were received; empty for none.
    pub properties: &'a str,
}

/// Error for which something in `baggage` is not carried on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BaggageError {
    /// A member is malformed.
    Member {
        /// The member, from 1.
        position: usize,
        /// Error in it.
        reason: BaggageMemberError,
    },
    /// Valid members were left out to stay within [`BAGGAGE_MEMBERS_LIMIT`] and [`BAGGAGE_BYTES_LIMIT`].
    Limit {
        /// Number of members.
        members: usize,
    },
}

/// Defect of a baggage member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BaggageMemberError {
    /// There is no `=`.
    NoValue,
    /// The key is not an HTTP token.
    Key,
    /// The value has a character that must be percent-encoded.
    Value,
    /// A property after `;` is malformed.
    Property,
}

impl fmt::Display for BaggageMemberError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BaggageMemberError::NoValue => "expected `key=value`, found no `=`",
            BaggageMemberError::Key => "its key is not an HTTP token, which has letters, digits and !#$%&'*+-.^_`|~",
            BaggageMemberError::Value => "its value has a character that must be percent-encoded",
            BaggageMemberError::Property => "a property of it is not of the form `;name` or `;name=value`",
        })
    }
}

impl std::error::Error for BaggageMemberError {}

impl fmt::Display for BaggageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BaggageError::Member { position, reason } => write!(f, "member {position} left out: {reason}"),
            BaggageError::Limit { members } => write!(
                f,
                "{} left out to stay within {BAGGAGE_MEMBERS_LIMIT} members and {BAGGAGE_BYTES_LIMIT} bytes",
                crate::count::Count(*members, "member")
            ),
        }
    }
}

impl std::error::Error for BaggageError {}

impl Baggage {
    /// Reads the header's values, in order; several are one list. Empty members are skipped, malformed ones and those beyond the
    /// limits are left out whole and reported.
    pub fn parse<'a>(values: impl IntoIterator<Item = &'a str>) -> (Baggage, Vec<BaggageError>) {
        let mut baggage = Baggage::default();
        let mut errors = Vec::new();
        let mut over_limit = 0;
        let members = values.into_iter().flat_map(|value| value.split(',')).map(trim_ows);
        for (index, text) in members.filter(|text| !text.is_empty()).enumerate() {
            match check(text) {
                Ok(()) if baggage.try_push(text) => {}
                Ok(()) => over_limit += 1,
                // A hostile header must not become a flood of reports.
                Err(_) if errors.len() >= BAGGAGE_MEMBERS_LIMIT => {}
                Err(reason) => errors.push(BaggageError::Member { position: index + 1, reason }),
            }
        }
        if over_limit > 0 {
            errors.push(BaggageError::Limit { members: over_limit });
        }
        (baggage, errors)
    }

    /// Returns the members in order, decoded. A key that is there more than once comes more than once; the last one is meant.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = BaggageEntry<'_>> {
        self.members.iter().map(|member| {
            let (pair, properties) = member.split_once(';').unwrap_or((member, ""));
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            BaggageEntry {
                key: trim_ows(key),
                value: percent_decode(trim_ows(value)),
                properties: trim_ows(properties),
            }
        })
    }

    /// Returns the value of `key`, decoded.
    pub fn get(&self, key: &str) -> Option<Cow<'_, str>> {
        self.entries().filter(|entry| entry.key == key).last().map(|entry| entry.value)
    }

    /// Adds a member, in the place of those with the same key. The value may be any text; it is encoded.
    ///
    /// Fails without a change when the key is not an HTTP token or there is no room.
    pub fn insert(&mut self, key: &str, value: &str) -> Result<(), BaggageError> {
        if !is_token(key.as_bytes()) {
            let position = self.members.len() + 1;
            return Err(BaggageError::Member { position, reason: BaggageMemberError::Key });
        }
        let others = self.entries().zip(&self.members).filter(|(entry, _)| entry.key != key);
        let mut changed = Baggage { members: others.map(|(_, member)| member.clone()).collect() };
        if !changed.try_push(&format!("{key}={}", percent_encode(value))) {
            return Err(BaggageError::Limit { members: 1 });
        }
        *self = changed;
        Ok(())
    }

    /// Adds a valid member if there is room for it.
    fn try_push(&mut self, member: &str) -> bool {
        let bytes: usize = self.members.iter().map(|member| member.len() + 1).sum();
        let has_room = self.members.len() < BAGGAGE_MEMBERS_LIMIT && bytes + member.len() <= BAGGAGE_BYTES_LIMIT;
        if has_room {
            self.members.push(member.into());
        }
        has_room
    }
}

impl fmt::Display for Baggage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.members.join(","))
    }
}

fn check(member: &str) -> Result<(), BaggageMemberError> {
    let mut parts = member.split(';');
    let pair = parts.next().unwrap_or_default();
    let (key, value) = pair.split_once('=').ok_or(BaggageMemberError::NoValue)?;
    if !is_token(trim_ows(key).as_bytes()) {
        return Err(BaggageMemberError::Key);
    }
    if !trim_ows(value).bytes().all(is_octet) {
        return Err(BaggageMemberError::Value);
    }
    for property in parts {
        let (key, value) = property.split_once('=').unwrap_or((property, ""));
        if !is_token(trim_ows(key).as_bytes()) || !trim_ows(value).bytes().all(is_octet) {
            return Err(BaggageMemberError::Property);
        }
    }
    Ok(())
}

/// Returns whether `byte` may stand in a value as it is.
fn is_octet(byte: u8) -> bool {
    (b'!'..=b'~').contains(&byte) && !b"\",;\\".contains(&byte)
}

fn percent_encode(value: &str) -> String {
    let mut encoded = String::with_capacity(value.len());
    for byte in value.bytes() {
        if is_octet(byte) && byte != b'%' {
            encoded.push(byte.into());
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// Decodes `%` with two digits; any other `%` stands for itself.
fn percent_decode(value: &str) -> Cow<'_, str> {
    if !value.contains('%') {
        return value.into();
    }
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16)).map(|digit| digit as u8);
    let bytes = value.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut index = 0;
    while let Some(byte) = bytes.get(index) {
        match (byte, digit(bytes.get(index + 1)), digit(bytes.get(index + 2))) {
            (b'%', Some(high), Some(low)) => {
                decoded.push(high << 4 | low);
                index += 3;
            }
            _ => {
                decoded.push(*byte);
                index += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned().into()
}
