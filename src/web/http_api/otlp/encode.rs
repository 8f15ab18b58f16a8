//! From a line of OTLP JSON to the request in protobuf that a span sink takes: what was accepted and nothing else, whatever it was sent as.
//!
//! Spans get the flag that says that they are sampled, which many senders leave out and exporters look at: who sends a span has sampled it.

use std::fmt;

use prost::encoding::{WireType, encode_key, encode_varint};
use serde::Deserializer;
use serde::de::{self, DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use tracer_core::propagation::FLAG_SAMPLED;

use super::answer::put_bytes;
use super::json::from_hex;
use super::schema::{Field, Kind, Message, Role};

/// Name of the flags of a span.
const FLAGS: &str = "flags";
const SAMPLED: u64 = FLAG_SAMPLED as u64;

/// Encodes a line that a decoder has made.
pub(super) fn encode(message: &'static Message, line: &[u8]) -> Result<Vec<u8>, serde_json::Error> {
    let mut out = Vec::with_capacity(line.len() / 2);
    let mut source = serde_json::Deserializer::from_slice(line);
    Object { out: &mut out, message }.deserialize(&mut source)?;
    Ok(out)
}

struct Object<'o> {
    out: &'o mut Vec<u8>,
    message: &'static Message,
}

impl<'de> DeserializeSeed<'de> for Object<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<(), D::Error> {
        source.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message.name)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        if self.message.role == Role::Span {
            // Of a field that is there twice, the last holds.
            let flags = self.message.by_name(FLAGS).map(|index| &self.message.fields[index]);
            flags.into_iter().for_each(|field| Content { out: self.out, field, sets: 0, is_item: true }.bits(SAMPLED));
        }
        while let Some(name) = map.next_key::<&str>()? {
            match self.message.by_name(name) {
                Some(index) => {
                    let field = &self.message.fields[index];
                    let is_flags = self.message.role == Role::Span && field.name == FLAGS;
                    let sets = if is_flags { SAMPLED } else { 0 };
                    map.next_value_seed(Content { out: self.out, field, sets, is_item: !field.is_repeated })?;
                }
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// The value of a field, or an item of a list.
struct Content<'o> {
    out: &'o mut Vec<u8>,
    field: &'static Field,
    /// Bits that are set in the value.
    sets: u64,
    is_item: bool,
}

impl<'de> DeserializeSeed<'de> for Content<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<(), D::Error> {
        if !self.is_item {
            return source.deserialize_seq(self);
        }
        let Kind::Message(message) = self.field.kind else { return source.deserialize_any(self) };
        let mut part = Vec::new();
        Object { out: &mut part, message }.deserialize(source)?;
        put_bytes(self.field.number, &part, self.out);
        Ok(())
    }
}

impl Content<'_> {
    fn bytes(self, bytes: &[u8]) {
        put_bytes(self.field.number, bytes, self.out);
    }

    fn bits(self, bits: u64) {
        let bits = bits | self.sets;
        let wire_type = self.field.kind.wire_type();
        encode_key(self.field.number, wire_type, self.out);
        match wire_type {
            WireType::SixtyFourBit => self.out.extend_from_slice(&bits.to_le_bytes()),
            WireType::ThirtyTwoBit => self.out.extend_from_slice(&(bits as u32).to_le_bytes()),
            _ => encode_varint(bits, self.out),
        }
    }

    /// Writes a number, as a double where the field is one.
    fn number(self, value: i64) {
        match self.field.kind {
            Kind::Double => self.bits((value as f64).to_bits()),
            Kind::Sint32 => self.bits(((value << 1) ^ (value >> 63)).cast_unsigned() & u64::from(u32::MAX)),
            _ => self.bits(value.cast_unsigned()),
        }
    }
}

impl<'de> Visitor<'de> for Content<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.field.name)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Content { out, field, sets, .. } = self;
        while items.next_element_seed(Content { out, field, sets, is_item: true })?.is_some() {}
        Ok(())
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        self.bits(value.into());
        Ok(())
    }

    fn visit_i64<E>(self, value: i64) -> Result<(), E> {
        self.number(value);
        Ok(())
    }

    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        self.number(value.cast_signed());
        Ok(())
    }

    fn visit_f64<E>(self, value: f64) -> Result<(), E> {
        self.bits(value.to_bits());
        Ok(())
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<(), E> {
        let invalid = || E::invalid_value(de::Unexpected::Str(text), &"a value of the field");
        match self.field.kind {
            Kind::Bytes => self.bytes(&from_base64(text).ok_or_else(invalid)?),
            Kind::Id(_) => self.bytes(&from_hex(text).ok_or_else(invalid)?),
            Kind::Double => self.bits(text.replace("Infinity", "inf").parse::<f64>().map_err(|_| invalid())?.to_bits()),
            Kind::Uint64 | Kind::Fixed64 => self.bits(text.parse().map_err(|_| invalid())?),
            Kind::Int64 | Kind::Sfixed64 => self.bits(text.parse::<i64>().map_err(|_| invalid())?.cast_unsigned()),
            _ => self.bytes(text.as_bytes()),
        }
        Ok(())
    }
}

/// Returns the bytes of base64 in the standard alphabet.
fn from_base64(text: &str) -> Option<Vec<u8>> {
    let (mut bits, mut count, mut bytes) = (0_u32, 0, Vec::with_capacity(text.len() / 4 * 3));
    for digit in text.trim_end_matches('=').bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        (bits, count) = (bits << 6 | u32::from(value), count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    Some(bytes)
}
