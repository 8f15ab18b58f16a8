//! From OTLP JSON, as senders write it, to a line of it, without a value in between.
//!
//! Fields that are not known are stepped over, `null` is a field that is not there, ids are hexadecimal digits in either case, enumerations are
//! numbers or names, and numbers of 64 bits are numbers or texts, also such as `1.7e18`, as the JSON of protobuf has it.

use std::fmt;

use serde::Deserializer;
use serde::de::{self, DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::line::{Decoded, Line, Malformed};
use super::schema::{Field, Kind, Message, Role};

/// Decodes a body.
pub(super) fn decode(message: &'static Message, body: &[u8]) -> Result<Decoded, Malformed> {
    let mut line = Line::default();
    line.out.reserve(body.len());
    let mut source = serde_json::Deserializer::from_slice(body);
    let read = Object { line: &mut line, message }.deserialize(&mut source).and_then(|()| source.end());
    read.map_err(|error| Malformed(error.to_string()))?;
    Ok(line.finish())
}

fn refused<E: de::Error>(malformed: Malformed) -> E {
    E::custom(malformed.0)
}

/// An object, which is written as it is read.
struct Object<'l> {
    line: &'l mut Line,
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
        write!(f, "an object, {}", self.message.name)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Object { line, message } = self;
        line.out.push(b'{');
        let mut is_empty = true;
        let mut seen = 0_u32;
        while let Some(known) = map.next_key_seed(Key(message))? {
            let Some(index) = known else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let field = &message.fields[index];
            let before = line.out.len();
            if !is_empty {
                line.out.push(b',');
            }
            line.key(field.name);
            if !map.next_value_seed(Content { line, of: message, field, before })? {
                line.out.truncate(before);
                continue;
            }
            is_empty = false;
            if seen & 1 << index != 0 {
                return Err(de::Error::custom(format_args!("{}: `{}` is there twice", message.name, field.name)));
            }
            if message.role == Role::Value && seen != 0 {
                return Err(de::Error::custom(format_args!("{}: it has more than one value", message.name)));
            }
            seen |= 1 << index;
        }
        line.out.push(b'}');
        Ok(())
    }
}

/// The name of a field; none for one that is not known.
struct Key(&'static Message);

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Option<usize>, D::Error> {
        source.deserialize_identifier(self)
    }
}

impl Visitor<'_> for Key {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E>(self, name: &str) -> Result<Option<usize>, E> {
        Ok(self.0.by_name(name))
    }
}

/// The value of a field, or an item of a list. False if there is none.
struct Content<'l> {
    line: &'l mut Line,
    of: &'static Message,
    field: &'static Field,
    /// Length to which the line is cut if there is none.
    before: usize,
}

impl<'de> DeserializeSeed<'de> for Content<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<bool, D::Error> {
        source.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for Content<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.field.name)
    }

    fn visit_none<E>(self) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_unit<E>(self) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_some<D: Deserializer<'de>>(self, source: D) -> Result<bool, D::Error> {
        let Content { line, of, field, before } = self;
        if field.is_repeated {
            source.deserialize_seq(List { line, of, field })?;
            return Ok(true);
        }
        Item { line, of, field, before }.deserialize(source)
    }
}

/// A list, which is written as it is read.
struct List<'l> {
    line: &'l mut Line,
    of: &'static Message,
    field: &'static Field,
}

impl<'de> Visitor<'de> for List<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list, `{}` of {}", self.field.name, self.of.name)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let List { line, of, field } = self;
        line.out.push(b'[');
        loop {
            let before = line.out.len();
            if line.out.last() != Some(&b'[') {
                line.out.push(b',');
            }
            match items.next_element_seed(Item { line, of, field, before })? {
                Some(true) => {}
                Some(false) => line.out.truncate(before),
                None => {
                    line.out.truncate(before);
                    break;
                }
            }
        }
        line.out.push(b']');
        Ok(())
    }
}

/// One value.
struct Item<'l> {
    line: &'l mut Line,
    of: &'static Message,
    field: &'static Field,
    before: usize,
}

impl<'de> DeserializeSeed<'de> for Item<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<bool, D::Error> {
        let Item { line, of, field, before } = self;
        let Kind::Message(message) = field.kind else {
            return source.deserialize_any(Scalar { line, of, field });
        };
        let begun = line.begin(message, before);
        if line.is_too_deep().map_err(refused)? {
            source.deserialize_ignored_any(IgnoredAny)?;
            line.out.extend_from_slice(b"{}");
        } else {
            Object { line, message }.deserialize(source)?;
        }
        Ok(line.end(&begun))
    }
}

/// A text, a number or a truth value.
struct Scalar<'l> {
    line: &'l mut Line,
    of: &'static Message,
    field: &'static Field,
}

impl Scalar<'_> {
    fn integer<E: de::Error>(self, number: i128) -> Result<bool, E> {
        let (least, most) = match self.field.kind {
            Kind::Uint32 | Kind::Enumeration(_) | Kind::Fixed32 => (0, u32::MAX.into()),
            Kind::Sint32 => (i32::MIN.into(), i32::MAX.into()),
            Kind::Int64 | Kind::Sfixed64 => (i64::MIN.into(), i64::MAX.into()),
            Kind::Uint64 | Kind::Fixed64 => (0, u64::MAX.into()),
            Kind::Double => {
                self.line.double(number as f64);
                return Ok(true);
            }
            _ => return Err(E::invalid_type(de::Unexpected::Other("a number"), &self)),
        };
        if !(least..=most).contains(&number) {
            return Err(E::custom(format_args!(
                "{}: `{}` is {number}, expected {least} to {most}",
                self.of.name, self.field.name
            )));
        }
        match self.field.kind {
            Kind::Uint32 | Kind::Enumeration(_) | Kind::Fixed32 | Kind::Sint32 => self.line.number(number as i64),
            Kind::Uint64 | Kind::Fixed64 => self.line.unsigned_long(number as u64, self.of, self.field),
            _ => self.line.long(number as i64),
        }
        Ok(true)
    }
}

impl Visitor<'_> for Scalar<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.field.kind {
            Kind::String => "a text",
            Kind::Bytes => "bytes in base64",
            Kind::Id(_) => "an id in hexadecimal digits",
            Kind::Bool => "true or false",
            Kind::Double => "a number",
            Kind::Uint32 | Kind::Fixed32 | Kind::Sint32 => "an integer",
            Kind::Enumeration(_) => "an integer, or the name of a value",
            _ => "an integer, as a text or a number",
        };
        write!(f, "{what}, `{}` of {}", self.field.name, self.of.name)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<bool, E> {
        match self.field.kind {
            Kind::Bool => {
                self.line.boolean(value);
                Ok(true)
            }
            _ => Err(E::invalid_type(de::Unexpected::Bool(value), &self)),
        }
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<bool, E> {
        self.integer(value.into())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<bool, E> {
        self.integer(value.into())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<bool, E> {
        match self.field.kind {
            Kind::Double => {
                self.line.double(value);
                Ok(true)
            }
            // What is too great for any integer is out of range as the greatest of these too.
            _ if value.fract() == 0.0 => self.integer(value as i128),
            _ => Err(E::invalid_type(de::Unexpected::Float(value), &self)),
        }
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<bool, E> {
        let invalid = |scalar: &Self| E::invalid_value(de::Unexpected::Str(text), scalar);
        match self.field.kind {
            Kind::String => self.line.text(text),
            Kind::Bytes => {
                let standard = standard_base64(text).ok_or_else(|| invalid(&self))?;
                self.line.text(&standard);
            }
            Kind::Id(length) => {
                let bytes = from_hex(text).ok_or_else(|| invalid(&self))?;
                return self.line.id(&bytes, length, self.of, self.field).map_err(refused);
            }
            Kind::Double => self.line.double(match text {
                "NaN" => f64::NAN,
                "Infinity" => f64::INFINITY,
                "-Infinity" => f64::NEG_INFINITY,
                number => number.parse().map_err(|_| invalid(&self))?,
            }),
            Kind::Enumeration(names) => {
                let named = names.iter().position(|name| *name == text).ok_or_else(|| invalid(&self))?;
                return self.integer(named as i128);
            }
            Kind::Bool | Kind::Uint32 | Kind::Fixed32 | Kind::Sint32 => {
                return Err(E::invalid_type(de::Unexpected::Str(text), &self));
            }
            Kind::Message(_) | Kind::Int64 | Kind::Uint64 | Kind::Fixed64 | Kind::Sfixed64 => {
                let whole = || text.parse::<f64>().ok().filter(|number| number.fract() == 0.0);
                let number = text.parse().ok().or_else(|| Some(whole()? as i128)).ok_or_else(|| invalid(&self))?;
                return self.integer(number);
            }
        }
        Ok(true)
    }
}

/// Returns the bytes of hexadecimal digits.
pub(super) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let pairs = text.as_bytes().chunks(2).map(|pair| match pair {
        [high, low] => Some((digit(high)? << 4 | digit(low)?) as u8),
        _ => None,
    });
    pairs.collect()
}

/// Returns base64 in the standard alphabet with padding, from what may be that of URLs or without; none if it is no base64.
fn standard_base64(text: &str) -> Option<String> {
    let digits = text.trim_end_matches('=');
    if digits.len() % 4 == 1 || text.len() - digits.len() > 2 {
        return None;
    }
    let standard = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'+' | b'/' => Some(byte.into()),
        b'-' => Some('+'),
        b'_' => Some('/'),
        _ => None,
    };
    let mut found: String = digits.bytes().map(standard).collect::<Option<_>>()?;
    while !found.len().is_multiple_of(4) {
        found.push('=');
    }
    Some(found)
}
