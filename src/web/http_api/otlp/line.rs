//! A line of OTLP JSON in the making: what both decoders write to, and what they count.
//!
//! Ids are in hexadecimal digits, enumerations are numbers, and numbers of 64 bits are texts, whatever the sender wrote. A span, a log record or
//! a data point that cannot be taken leaves no trace in the line, and is counted with the reason for the first.

use std::fmt;

use tracer_span_file::json;

use super::schema::{Field, Message, Role};

/// Name of the field with the time of a span's start.
const START_TIME: &str = "startTimeUnixNano";

/// Limit of values inside of one another. With the levels around them they stay below the 128 that readers of JSON take.
pub(super) const VALUE_DEPTH: usize = 24;

/// Fault that makes a whole body unusable. The same body would be refused again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) String);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Result of decoding a body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::http_api) struct Decoded {
    /// One line of JSON with all that is accepted; empty if nothing is.
    pub(in crate::http_api) line: Vec<u8>,
    /// Records in it.
    pub(in crate::http_api) accepted: u64,
    /// Records that are not.
    pub(in crate::http_api) rejected: u64,
    /// Reason why the first of these was rejected.
    pub(in crate::http_api) reason: Option<String>,
}

/// The state of a decoder.
#[derive(Default)]
pub(super) struct Line {
    pub(super) out: Vec<u8>,
    accepted: u64,
    rejected: u64,
    reason: Option<String>,
    /// Fault of the record that is being read.
    fault: Option<String>,
    is_in_record: bool,
    /// Values around the one that is being read.
    value_depth: usize,
    /// True if fields in another order than that of their numbers are sorted, which takes a look at each message first.
    pub(super) sorts: bool,
    /// True if fields came in another order and are not sorted: all has to be written again.
    pub(super) is_out_of_order: bool,
    /// True for each that the span has: the id of its trace, its own, and the time of its start.
    has: [bool; 3],
}

/// A place in the line to come back to.
pub(super) struct Begun {
    at: usize,
    role: Role,
}

impl Line {
    /// Ends the line.
    pub(super) fn finish(mut self) -> Decoded {
        if self.accepted == 0 {
            self.out.clear();
        } else {
            self.out.push(b'\n');
        }
        Decoded { line: self.out, accepted: self.accepted, rejected: self.rejected, reason: self.reason }
    }

    /// Notes what is wrong with a record; what is wrong outside of records is wrong with the body.
    pub(super) fn fault(&mut self, text: String) -> Result<(), Malformed> {
        if !self.is_in_record {
            return Err(Malformed(text));
        }
        self.fault.get_or_insert(text);
        Ok(())
    }

    /// Begins an element of a list, or the value of a field. `before` is where the line is cut if the record is rejected.
    pub(super) fn begin(&mut self, message: &Message, before: usize) -> Begun {
        match message.role {
            Role::Record | Role::Span => {
                self.is_in_record = true;
                self.has = [false; 3];
            }
            Role::Value => self.value_depth += 1,
            Role::Part => {}
        }
        Begun { at: before, role: message.role }
    }

    /// Returns whether the value that was begun is nested too deeply to be read; it is to be stepped over.
    pub(super) fn is_too_deep(&mut self) -> Result<bool, Malformed> {
        if self.value_depth <= VALUE_DEPTH {
            return Ok(false);
        }
        self.fault(format!("a value is nested more than {VALUE_DEPTH} levels deep"))?;
        Ok(true)
    }

    /// Ends what was begun, and takes it back if it is a record that cannot be taken. True if it stays.
    pub(super) fn end(&mut self, begun: &Begun) -> bool {
        match begun.role {
            Role::Part => return true,
            Role::Value => {
                self.value_depth -= 1;
                return true;
            }
            Role::Record => {}
            Role::Span => {
                let missing = match self.has {
                    [false, ..] => Some("a span has no trace id"),
                    [_, false, _] => Some("a span has no span id"),
                    [.., false] => Some("a span has no time of its start (`startTimeUnixNano`)"),
                    _ => None,
                };
                self.fault = self.fault.take().or(missing.map(str::to_owned));
            }
        }
        self.is_in_record = false;
        match self.fault.take() {
            None => {
                self.accepted += 1;
                true
            }
            Some(fault) => {
                self.out.truncate(begun.at);
                self.rejected += 1;
                self.reason.get_or_insert(fault);
                false
            }
        }
    }

    pub(super) fn key(&mut self, name: &str) {
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    pub(super) fn text(&mut self, text: &str) {
        json::write_string(&mut self.out, text);
    }

    pub(super) fn boolean(&mut self, value: bool) {
        json::write_bool(&mut self.out, value);
    }

    pub(super) fn double(&mut self, value: f64) {
        json::write_f64(&mut self.out, value);
    }

    pub(super) fn number(&mut self, value: i64) {
        json::write_i64(&mut self.out, value);
    }

    pub(super) fn long(&mut self, value: i64) {
        self.out.push(b'"');
        json::write_i64(&mut self.out, value);
        self.out.push(b'"');
    }

    pub(super) fn unsigned_long(&mut self, value: u64, of: &Message, field: &Field) {
        if of.role == Role::Span && field.name == START_TIME {
            self.has[2] = value > 0;
        }
        match i64::try_from(value) {
            Ok(value) => self.long(value),
            Err(_) => self.out.extend_from_slice(format!("\"{value}\"").as_bytes()),
        }
    }

    /// Writes an id, or nothing and false if it is none: empty, or all zeroes.
    pub(super) fn id(&mut self, id: &[u8], length: usize, of: &Message, field: &Field) -> Result<bool, Malformed> {
        if !id.is_empty() && id.len() != length {
            self.fault(format!("an id has {} bytes, expected {length}", id.len()))?;
            return Ok(false);
        }
        if id.iter().all(|&byte| byte == 0) {
            return Ok(false);
        }
        match field.number {
            1 if of.role == Role::Span => self.has[0] = true,
            2 if of.role == Role::Span => self.has[1] = true,
            _ => {}
        }
        self.out.push(b'"');
        let start = self.out.len();
        self.out.resize(start + 2 * id.len(), 0);
        tracer_core::hex::put_hex(&mut self.out[start..], id);
        self.out.push(b'"');
        Ok(true)
    }

    /// Writes bytes in base64, with padding.
    pub(super) fn base64(&mut self, bytes: &[u8]) {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        self.out.push(b'"');
        for chunk in bytes.chunks(3) {
            let bits = chunk.iter().fold(0_u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - chunk.len()));
            for digit in 0..4 {
                let value = bits >> (18 - 6 * digit) & 0x3f;
                self.out.push(if digit <= chunk.len() { DIGITS[value as usize] } else { b'=' });
            }
        }
        self.out.push(b'"');
    }
}
