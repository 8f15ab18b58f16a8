//! The `traceparent` header: version, trace id, span id, flags.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The caller recorded this trace.
pub const FLAG_SAMPLED: u8 = 0b01;
/// At least the low seven bytes of the trace id are random. Whoever starts a trace with such an id sets it; it is copied
/// unchanged for as long as the trace id is.
pub const FLAG_RANDOM: u8 = 0b10;

/// A place in a trace, as the `traceparent` header carries it. It prints as that header, version 00.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TraceParent {
    /// Most significant byte first; not all zero.
    pub trace_id: [u8; 16],
    /// The span that is the parent of what follows. Most significant byte first; not all zero.
    pub span_id: [u8; 8],
    /// [`FLAG_SAMPLED`], [`FLAG_RANDOM`], and bits that have no meaning yet. Those are kept here as they came and sent as zero.
    pub flags: u8,
}

/// Defect of a `traceparent`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TraceParentError {
    /// The length is wrong.
    Length {
        /// Number of bytes found.
        found: usize,
        /// True if more than the expected 55 would do: not so in version 00.
        is_minimum: bool,
    },
    /// There is no `-` where one belongs.
    Separator {
        /// The offset in bytes.
        offset: usize,
    },
    /// A part has other characters than the digits 0-9 and a-f.
    NotHex {
        /// The part's name.
        part: &'static str,
    },
    /// An id is all zeros.
    Zero {
        /// The id's name.
        part: &'static str,
    },
    /// The version is ff, which is forbidden.
    Version,
}

impl fmt::Display for TraceParentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceParentError::Length { found, is_minimum: false } => write!(f, "expected 55 characters, found {found}"),
            TraceParentError::Length { found, is_minimum: true } => {
                write!(f, "expected at least 55 characters, found {found}")
            }
            TraceParentError::Separator { offset } => write!(f, "expected `-` at offset {offset}"),
            TraceParentError::NotHex { part } => {
                write!(f, "its {part} has a character other than the digits 0-9 and a-f")
            }
            TraceParentError::Zero { part } => write!(f, "the {part} is all zeros"),
            TraceParentError::Version => write!(f, "version `ff` is forbidden"),
        }
    }
}

impl std::error::Error for TraceParentError {}

const LENGTH: usize = 55;

impl TraceParent {
    /// Reads a header's value. A version above 00 is read as far as it is known.
    pub fn parse(text: &str) -> Result<TraceParent, TraceParentError> {
        let bytes = text.as_bytes();
        let [version] = bytes
            .first_chunk::<2>()
            .map_or(Err(TraceParentError::Length { found: bytes.len(), is_minimum: true }), |digits| {
                decode(digits, "version")
            })?;
        if version == 0xff {
            return Err(TraceParentError::Version);
        }
        let is_known_version = version == 0;
        if bytes.len() < LENGTH || (is_known_version && bytes.len() > LENGTH) {
            return Err(TraceParentError::Length { found: bytes.len(), is_minimum: !is_known_version });
        }
        for offset in [2, 35, 52, 55] {
            // Only a later version has anything at offset 55.
            if bytes.get(offset).is_some_and(|byte| *byte != b'-') {
                return Err(TraceParentError::Separator { offset });
            }
        }
        let trace_id = decode(&bytes[3..35], "trace id")?;
        let span_id = decode(&bytes[36..52], "span id")?;
        let [flags] = decode(&bytes[53..55], "flags")?;
        if trace_id == [0; 16] {
            return Err(TraceParentError::Zero { part: "trace id" });
        }
        if span_id == [0; 8] {
            return Err(TraceParentError::Zero { part: "span id" });
        }
        Ok(TraceParent { trace_id, span_id, flags })
    }

    /// Returns whether the caller recorded this trace.
    pub const fn is_sampled(&self) -> bool {
        self.flags & FLAG_SAMPLED != 0
    }

    /// Returns whether the trace id is random.
    pub const fn is_random(&self) -> bool {
        self.flags & FLAG_RANDOM != 0
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let trace_id = u128::from_be_bytes(self.trace_id);
        let span_id = u64::from_be_bytes(self.span_id);
        let flags = self.flags & (FLAG_SAMPLED | FLAG_RANDOM);
        write!(f, "00-{trace_id:032x}-{span_id:016x}-{flags:02x}")
    }
}

/// Decodes `2 * N` digits.
fn decode<const N: usize>(digits: &[u8], part: &'static str) -> Result<[u8; N], TraceParentError> {
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        for digit in pair {
            let value = match digit {
                b'0'..=b'9' => digit - b'0',
                b'a'..=b'f' => digit - b'a' + 10,
                _ => return Err(TraceParentError::NotHex { part }),
            };
            *byte = *byte << 4 | value;
        }
    }
    Ok(bytes)
}
