//! From protobuf to a line of OTLP JSON, in one pass over the bytes and without the messages in between.
//!
//! Senders write the fields of a message in the order of their numbers, so that each list is in one piece. Where one does not, the body is read again, and the fields of
//! each message are sorted first, as the encoding's rules for merging have it: the last of a field holds, and parts of a message are put together.

use std::borrow::Cow;

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use super::line::{Decoded, Line, Malformed};
use super::schema::{Field, Kind, Message, Role};

/// Decodes a body.
pub(super) fn decode(message: &'static Message, body: &[u8]) -> Result<Decoded, Malformed> {
    let mut line = Line::default();
    // JSON takes about twice the bytes.
    line.out.reserve(2 * body.len());
    let mut written = write_message(&mut line, message, body);
    if line.is_out_of_order {
        line = Line::default();
        line.sorts = true;
        written = write_message(&mut line, message, body);
    }
    written?;
    Ok(line.finish())
}

/// The value of a field as it is encoded.
#[derive(Clone, Debug)]
enum Wire<'a> {
    /// A value of any wire type but the next one, as its bits.
    Bits(u64),
    /// With its length before it.
    Bytes(Cow<'a, [u8]>),
}

/// A field of a message by its index in the table, with its value.
type Entry<'a> = (usize, Wire<'a>);

/// The known fields of a message, in the order of its bytes.
struct Fields<'a> {
    message: &'static Message,
    rest: &'a [u8],
    /// Index of the last field that was read: the next one is mostly the same or the one after it.
    last: usize,
}

impl<'a> Fields<'a> {
    fn read_next(&mut self) -> Result<Option<Entry<'a>>, Malformed> {
        let message = self.message;
        let broken = |reason: &dyn std::fmt::Display| Malformed(format!("{}: {reason}", message.name));
        while !self.rest.is_empty() {
            let (number, wire_type) = decode_key(&mut self.rest).map_err(|error| broken(&error))?;
            let near = self.last..message.fields.len().min(self.last + 2);
            let mut near = near.filter(|&index| message.fields[index].number == number);
            let Some(index) = near.next().or_else(|| message.by_number(number)) else {
                skip_field(wire_type, number, &mut self.rest, DecodeContext::default())
                    .map_err(|error| broken(&error))?;
                continue;
            };
            self.last = index;
            let field = &message.fields[index];
            let is_packed = wire_type == WireType::LengthDelimited && field.is_repeated;
            if wire_type != field.kind.wire_type() && !is_packed {
                let expected = field.kind.wire_type();
                return Err(broken(&format_args!("`{}` is {wire_type:?}, expected {expected:?}", field.name)));
            }
            let cut = || broken(&format_args!("`{}` is cut off", field.name));
            let wire = match wire_type {
                WireType::Varint => Wire::Bits(decode_varint(&mut self.rest).map_err(|error| broken(&error))?),
                WireType::SixtyFourBit => Wire::Bits(u64::from_le_bytes(take(&mut self.rest).ok_or_else(cut)?)),
                WireType::ThirtyTwoBit => Wire::Bits(u32::from_le_bytes(take(&mut self.rest).ok_or_else(cut)?).into()),
                _ => {
                    let length = decode_varint(&mut self.rest).map_err(|error| broken(&error))?;
                    let length = usize::try_from(length).unwrap_or(usize::MAX);
                    let (bytes, rest) = self.rest.split_at_checked(length).ok_or_else(cut)?;
                    self.rest = rest;
                    Wire::Bytes(Cow::Borrowed(bytes))
                }
            };
            return Ok(Some((index, wire)));
        }
        Ok(None)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Entry<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read_next().transpose()
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (bytes, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*bytes)
}

impl Kind {
    pub(super) fn wire_type(self) -> WireType {
        match self {
            Kind::Message(_) | Kind::String | Kind::Bytes | Kind::Id(_) => WireType::LengthDelimited,
            Kind::Bool | Kind::Uint32 | Kind::Enumeration(_) | Kind::Sint32 | Kind::Int64 | Kind::Uint64 => {
                WireType::Varint
            }
            Kind::Fixed32 => WireType::ThirtyTwoBit,
            Kind::Double | Kind::Fixed64 | Kind::Sfixed64 => WireType::SixtyFourBit,
        }
    }
}

/// Writes a message as an object.
fn write_message(line: &mut Line, message: &'static Message, bytes: &[u8]) -> Result<(), Malformed> {
    let fields = || Fields { message, rest: bytes, last: 0 };
    if !line.sorts || is_in_order(fields())? {
        write_fields(line, message, fields())
    } else {
        let merged = merged(message, fields().collect::<Result<_, _>>()?);
        write_fields(line, message, merged.into_iter().map(Ok))
    }
}

/// Returns whether a field may follow another one: it has a higher number, or is of the same list. Of a choice there is one alone.
fn may_follow(message: &Message, last: Option<usize>, index: usize) -> bool {
    last.is_none_or(|last| match message.role {
        Role::Value => false,
        _ => last < index || last == index && message.fields[index].is_repeated,
    })
}

/// Returns whether the fields come by number, and those that are no lists once.
fn is_in_order(mut fields: Fields<'_>) -> Result<bool, Malformed> {
    let message = fields.message;
    let mut last = None;
    while let Some((index, _)) = fields.read_next()? {
        if !may_follow(message, last, index) {
            return Ok(false);
        }
        last = Some(index);
    }
    Ok(true)
}

/// Puts the fields in order, and each that is no list together as one.
fn merged<'a>(message: &Message, mut entries: Vec<Entry<'a>>) -> Vec<Entry<'a>> {
    if message.role == Role::Value {
        // Of a choice the last holds.
        return entries.pop().into_iter().collect();
    }
    entries.sort_by_key(|(index, _)| *index);
    let mut merged: Vec<Entry<'a>> = Vec::with_capacity(entries.len());
    for (index, wire) in entries {
        let field = &message.fields[index];
        match merged.last_mut().filter(|(last, _)| *last == index && !field.is_repeated) {
            None => merged.push((index, wire)),
            Some((_, before)) => match (&mut *before, &wire, field.kind) {
                (Wire::Bytes(before), Wire::Bytes(more), Kind::Message(_)) => before.to_mut().extend_from_slice(more),
                _ => *before = wire,
            },
        }
    }
    merged
}

fn write_fields<'a>(
    line: &mut Line,
    message: &'static Message,
    fields: impl Iterator<Item = Result<Entry<'a>, Malformed>>,
) -> Result<(), Malformed> {
    line.out.push(b'{');
    // The list that is being written.
    let mut list = None;
    let mut is_empty = true;
    let mut last = None;
    for entry in fields {
        let (index, wire) = entry?;
        if !may_follow(message, last, index) {
            line.is_out_of_order = true;
            return Err(Malformed(format!("{}: its fields are in another order than expected", message.name)));
        }
        last = Some(index);
        let field = &message.fields[index];
        let is_begun = list == Some(index);
        if !is_begun && list.take().is_some() {
            line.out.push(b']');
        }
        let before = line.out.len();
        if !is_begun {
            if !is_empty {
                line.out.push(b',');
            }
            line.key(field.name);
        }
        if field.is_repeated {
            if !is_begun {
                line.out.push(b'[');
                list = Some(index);
            }
            is_empty = false;
            write_items(line, message, field, &wire)?;
        } else if write_value(line, message, field, &wire, before)? {
            is_empty = false;
        } else {
            line.out.truncate(before);
        }
    }
    if list.is_some() {
        line.out.push(b']');
    }
    line.out.push(b'}');
    Ok(())
}

/// Writes one item of a list, or all those that are packed together.
fn write_items(line: &mut Line, of: &'static Message, field: &Field, wire: &Wire<'_>) -> Result<(), Malformed> {
    let packed = match wire {
        Wire::Bytes(bytes) if field.kind.wire_type() != WireType::LengthDelimited => bytes,
        wire => return write_item(line, of, field, wire),
    };
    let mut rest = &packed[..];
    let cut = || Malformed(format!("{}: `{}` is cut off", of.name, field.name));
    while !rest.is_empty() {
        let bits = match field.kind.wire_type() {
            WireType::Varint => decode_varint(&mut rest).map_err(|_| cut())?,
            WireType::ThirtyTwoBit => u32::from_le_bytes(take(&mut rest).ok_or_else(cut)?).into(),
            _ => u64::from_le_bytes(take(&mut rest).ok_or_else(cut)?),
        };
        write_item(line, of, field, &Wire::Bits(bits))?;
    }
    Ok(())
}

fn write_item(line: &mut Line, of: &'static Message, field: &Field, wire: &Wire<'_>) -> Result<(), Malformed> {
    let before = line.out.len();
    if line.out.last() != Some(&b'[') {
        line.out.push(b',');
    }
    write_value(line, of, field, wire, before).map(drop)
}

/// Writes a value. False if there is none to write; the line is as it was at `before`, or the caller makes it so.
fn write_value(
    line: &mut Line,
    of: &'static Message,
    field: &Field,
    wire: &Wire<'_>,
    before: usize,
) -> Result<bool, Malformed> {
    match (wire, field.kind) {
        (Wire::Bytes(bytes), Kind::Message(message)) => {
            let begun = line.begin(message, before);
            if line.is_too_deep()? {
                line.out.extend_from_slice(b"{}");
            } else {
                write_message(line, message, bytes)?;
            }
            return Ok(line.end(&begun));
        }
        (Wire::Bytes(bytes), Kind::Id(length)) => return line.id(bytes, length, of, field),
        (Wire::Bytes(bytes), Kind::Bytes) => line.base64(bytes),
        (Wire::Bytes(bytes), _) => {
            let not_text = |_| Malformed(format!("{}: `{}` is not UTF-8", of.name, field.name));
            line.text(std::str::from_utf8(bytes).map_err(not_text)?);
        }
        (&Wire::Bits(bits), kind) => match kind {
            Kind::Bool => line.boolean(bits != 0),
            Kind::Double => line.double(f64::from_bits(bits)),
            // Their upper half is cut off, as the encoding has it.
            Kind::Uint32 | Kind::Enumeration(_) | Kind::Fixed32 => line.number((bits as u32).into()),
            Kind::Sint32 => line.number((((bits as u32) >> 1) as i32 ^ -((bits & 1) as i32)).into()),
            Kind::Int64 | Kind::Sfixed64 => line.long(bits.cast_signed()),
            _ => line.unsigned_long(bits, of, field),
        },
    }
    Ok(true)
}
