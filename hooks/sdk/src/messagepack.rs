//! Reads arguments: MessagePack into the author's types, with errors that people understand.
//!
//! A reader of its own, because arguments begin as JSON on a command line and the message must say which field of
//! which argument is wrong. It accepts what JSON can express (objects for structs, strings as the keys of any
//! map, an integer for a float, an array of integers for bytes) and what a Rust driver sends besides (bytes, arrays
//! for structs, 128-bit integers as an extension or as 16 bytes, most significant first).
//!
//! It writes nothing; results are encoded by `rmp-serde`, by way of `wide`.

use std::fmt;

use serde::de::{self, DeserializeSeed, IntoDeserializer, Unexpected, Visitor};
use serde::forward_to_deserialize_any;

use crate::wide;

/// Deeper values are refused, so that a hostile one cannot exhaust the stack.
const DEPTH_LIMIT: u32 = 128;

/// One step through encoded bytes: a whole scalar, or the head of an array or map.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Token<'a> {
    Nil,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(&'a str),
    Bytes(&'a [u8]),
    /// An integer beyond those of 64 bits, 128 bits wide.
    Wide(i128),
    /// One beyond those of 128 bits with a sign.
    UnsignedWide(u128),
    Extension,
    Array(usize),
    Map(usize),
}

/// Bytes that are being read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or_else(|| malformed("it ends in the middle"))?;
        self.rest = rest;
        Ok(taken)
    }

    /// `N` bytes as a big-endian integer.
    fn integer<const N: usize>(&mut self) -> Result<u64, DecodeError> {
        Ok(self.take(N)?.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn length<const N: usize>(&mut self) -> Result<usize, DecodeError> {
        Ok(self.integer::<N>()? as usize)
    }

    fn text(&mut self, length: usize) -> Result<Token<'a>, DecodeError> {
        std::str::from_utf8(self.take(length)?).map(Token::Text).map_err(|_| malformed("a string in it is not UTF-8"))
    }

    fn bytes(&mut self, length: usize) -> Result<Token<'a>, DecodeError> {
        Ok(Token::Bytes(self.take(length)?))
    }

    fn extension(&mut self, length: usize) -> Result<Token<'a>, DecodeError> {
        let (kind, body) = self.take(length + 1)?.split_at(1);
        Ok(match (kind[0] as i8, <[u8; 16]>::try_from(body)) {
            (wide::SIGNED, Ok(bytes)) => Token::Wide(i128::from_be_bytes(bytes)),
            (wide::UNSIGNED, Ok(bytes)) => Token::UnsignedWide(u128::from_be_bytes(bytes)),
            _ => Token::Extension,
        })
    }

    fn token(&mut self) -> Result<Token<'a>, DecodeError> {
        let signed = |value: i64| if value < 0 { Token::Signed(value) } else { Token::Unsigned(value as u64) };
        Ok(match self.take(1)?[0] {
            marker @ 0x00..=0x7f => Token::Unsigned(marker.into()),
            marker @ 0x80..=0x8f => Token::Map((marker & 0x0f).into()),
            marker @ 0x90..=0x9f => Token::Array((marker & 0x0f).into()),
            marker @ 0xa0..=0xbf => self.text((marker & 0x1f).into())?,
            0xc0 => Token::Nil,
            0xc1 => return Err(malformed("the byte 0xc1 is not used in MessagePack")),
            0xc2 => Token::Bool(false),
            0xc3 => Token::Bool(true),
            0xc4 => self.length::<1>().and_then(|length| self.bytes(length))?,
            0xc5 => self.length::<2>().and_then(|length| self.bytes(length))?,
            0xc6 => self.length::<4>().and_then(|length| self.bytes(length))?,
            0xc7 => self.length::<1>().and_then(|length| self.extension(length))?,
            0xc8 => self.length::<2>().and_then(|length| self.extension(length))?,
            0xc9 => self.length::<4>().and_then(|length| self.extension(length))?,
            0xca => Token::Float(f32::from_bits(self.integer::<4>()? as u32).into()),
            0xcb => Token::Float(f64::from_bits(self.integer::<8>()?)),
            0xcc => Token::Unsigned(self.integer::<1>()?),
            0xcd => Token::Unsigned(self.integer::<2>()?),
            0xce => Token::Unsigned(self.integer::<4>()?),
            0xcf => Token::Unsigned(self.integer::<8>()?),
            0xd0 => signed((self.integer::<1>()? as i8).into()),
            0xd1 => signed((self.integer::<2>()? as i16).into()),
            0xd2 => signed((self.integer::<4>()? as i32).into()),
            0xd3 => signed(self.integer::<8>()? as i64),
            marker @ 0xd4..=0xd8 => self.extension(1 << (marker - 0xd4))?,
            0xd9 => self.length::<1>().and_then(|length| self.text(length))?,
            0xda => self.length::<2>().and_then(|length| self.text(length))?,
            0xdb => self.length::<4>().and_then(|length| self.text(length))?,
            0xdc => Token::Array(self.length::<2>()?),
            0xdd => Token::Array(self.length::<4>()?),
            0xde => Token::Map(self.length::<2>()?),
            0xdf => Token::Map(self.length::<4>()?),
            marker @ 0xe0..=0xff => Token::Signed((marker as i8).into()),
        })
    }

    /// Steps over one value and returns its bytes.
    fn value(&mut self) -> Result<&'a [u8], DecodeError> {
        let start = self.rest;
        let mut left = 1_usize;
        while left > 0 {
            left -= 1;
            left += match self.token()? {
                Token::Array(count) => count,
                Token::Map(count) => count.saturating_mul(2),
                _ => 0,
            };
        }
        Ok(&start[..start.len() - self.rest.len()])
    }

    /// Returns the elements of the array that is all there is to read, each as its bytes.
    pub(crate) fn elements(mut self) -> Result<Vec<&'a [u8]>, DecodeError> {
        if self.rest.is_empty() {
            return Ok(Vec::new());
        }
        let Token::Array(count) = self.token()? else { return Err(malformed("it is not an array")) };
        // A count says nothing about how much there is: every element takes a byte at least.
        let mut elements = Vec::with_capacity(count.min(self.rest.len()));
        for _ in 0..count {
            elements.push(self.value()?);
        }
        if self.rest.is_empty() { Ok(elements) } else { Err(malformed("something follows the array")) }
    }
}

/// Says what a value is, for an error message: `an integer`.
pub(crate) fn describe(value: &[u8]) -> String {
    let mut reader = Reader::new(value);
    match reader.token() {
        Ok(Token::Nil) => "`null`".to_owned(),
        Ok(Token::Bool(value)) => unexpected(Unexpected::Bool(value)),
        Ok(Token::Unsigned(value)) => unexpected(Unexpected::Unsigned(value)),
        Ok(Token::Signed(value)) => unexpected(Unexpected::Signed(value)),
        Ok(Token::Float(value)) => unexpected(Unexpected::Float(value)),
        Ok(Token::Text(value)) => unexpected(Unexpected::Str(value)),
        Ok(Token::Bytes(value)) => counted(value.len(), "byte"),
        Ok(Token::Wide(_) | Token::UnsignedWide(_)) => "an integer".to_owned(),
        Ok(Token::Extension) => "a MessagePack extension".to_owned(),
        Ok(Token::Array(count)) => format!("an array of {}", counted(count, "element")),
        Ok(Token::Map(count)) => format!("an object with {}", counted(count, "field")),
        Err(error) => error.to_string(),
    }
}

/// `1 argument`, `2 arguments`.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// Returns what was found, by its kind alone: the text of an error goes onto a span, and arguments do not.
fn unexpected(value: Unexpected<'_>) -> String {
    match value {
        Unexpected::Bool(_) => "a boolean".to_owned(),
        Unexpected::Unsigned(_) | Unexpected::Signed(_) => "an integer".to_owned(),
        Unexpected::Float(_) => "a number".to_owned(),
        Unexpected::Char(_) | Unexpected::Str(_) => "a string".to_owned(),
        Unexpected::Bytes(value) => counted(value.len(), "byte"),
        Unexpected::Unit | Unexpected::Option => "`null`".to_owned(),
        Unexpected::Seq => "an array".to_owned(),
        Unexpected::Map => "an object".to_owned(),
        other => other.to_string(),
    }
}

/// `, a whole number from 0 to 255` for `u8`; none for what is no integer type.
fn integer_range(type_name: &str) -> Option<String> {
    let (first, last) = match type_name {
        "u8" => (0, u8::MAX.into()),
        "u16" => (0, u16::MAX.into()),
        "u32" => (0, u32::MAX.into()),
        "u64" | "usize" => (0, u64::MAX.into()),
        "i8" => (i8::MIN.into(), i8::MAX.into()),
        "i16" => (i16::MIN.into(), i16::MAX.into()),
        "i32" => (i32::MIN.into(), i32::MAX.into()),
        "i64" | "isize" => (i64::MIN.into(), i64::MAX.into()),
        "u128" | "i128" => return Some(", a whole number".to_owned()),
        _ => return None::<String>,
    };
    let (first, last): (i128, i128) = (first, last);
    Some(format!(", a whole number from {first} to {last}"))
}

/// Error of a value that is not of the type it should be, with the place in it.
#[derive(Debug)]
pub(crate) struct DecodeError {
    /// From the innermost outwards.
    path: Vec<Step>,
    cause: Cause,
}

#[derive(Debug)]
enum Step {
    Field(String),
    Index(usize),
}

#[derive(Debug)]
enum Cause {
    Mismatch { expected: String, found: String },
    Malformed(&'static str),
    Other(String),
}

impl DecodeError {
    fn new(cause: Cause) -> DecodeError {
        DecodeError { path: Vec::new(), cause }
    }

    fn within(mut self, step: Step) -> DecodeError {
        self.path.push(step);
        self
    }

    /// Returns what was found in place of the whole value, and what values the expected type has (empty where its name says it all), if the whole value is
    /// of the wrong type.
    pub(crate) fn plain_mismatch(&self) -> Option<(String, String)> {
        match &self.cause {
            Cause::Mismatch { expected, found } if self.path.is_empty() => {
                Some((found.clone(), integer_range(expected).unwrap_or_default()))
            }
            _ => None,
        }
    }
}

fn malformed(what: &'static str) -> DecodeError {
    DecodeError::new(Cause::Malformed(what))
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            f.write_str("`")?;
            for (nth, step) in self.path.iter().rev().enumerate() {
                match step {
                    Step::Field(name) if nth == 0 => write!(f, "{name}")?,
                    Step::Field(name) => write!(f, ".{name}")?,
                    Step::Index(index) => write!(f, "[{index}]")?,
                }
            }
            f.write_str("`: ")?;
        }
        match &self.cause {
            Cause::Mismatch { expected, found } => {
                let range = integer_range(expected).unwrap_or_default();
                write!(f, "expected {expected}{range}, got {found}")
            }
            Cause::Malformed(what) => write!(f, "not MessagePack: {what}"),
            Cause::Other(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for DecodeError {}

impl de::Error for DecodeError {
    fn custom<T: fmt::Display>(text: T) -> DecodeError {
        DecodeError::new(Cause::Other(text.to_string()))
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn de::Expected) -> DecodeError {
        let expected = expected.to_string();
        let found = match (integer_range(&expected), found) {
            (Some(_), Unexpected::Signed(..0)) if expected.starts_with('u') => "a negative integer".to_owned(),
            (Some(_), Unexpected::Unsigned(_) | Unexpected::Signed(_)) => "an integer outside of its range".to_owned(),
            (Some(_), Unexpected::Float(_)) => "a number with a decimal point".to_owned(),
            (_, found) => unexpected(found),
        };
        DecodeError::new(Cause::Mismatch { expected, found })
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn de::Expected) -> DecodeError {
        Self::invalid_type(found, expected)
    }

    fn invalid_length(length: usize, expected: &dyn de::Expected) -> DecodeError {
        let found = counted(length, "element");
        DecodeError::new(Cause::Mismatch { expected: expected.to_string(), found })
    }
}

/// Decodes one whole value.
pub(crate) fn decode<T: de::DeserializeOwned>(value: &[u8]) -> Result<T, DecodeError> {
    let mut decoder = Decoder { reader: Reader::new(value), depth: 0 };
    T::deserialize(&mut decoder)
}

/// The deserializer over encoded bytes.
struct Decoder<'a> {
    reader: Reader<'a>,
    depth: u32,
}

impl<'a> Decoder<'a> {
    fn peek(&self) -> Result<Token<'a>, DecodeError> {
        self.reader.clone().token()
    }

    fn nested<R>(&mut self, visit: impl FnOnce(&mut Self) -> Result<R, DecodeError>) -> Result<R, DecodeError> {
        if self.depth == DEPTH_LIMIT {
            return Err(DecodeError::new(Cause::Other(format!("it is nested deeper than {DEPTH_LIMIT} levels"))));
        }
        self.depth += 1;
        let result = visit(self);
        self.depth -= 1;
        result
    }

    /// Takes a 128-bit integer, if that is what comes next: as an extension, or as `rmp-serde` writes it alone.
    fn wide(&mut self) -> Result<Option<WideInteger>, DecodeError> {
        let wide = match self.peek()? {
            Token::Wide(value) => WideInteger::Signed(value),
            Token::UnsignedWide(value) => WideInteger::Unsigned(value),
            Token::Bytes(bytes) => match bytes.try_into() {
                Ok(bytes) => WideInteger::Bytes(bytes),
                Err(_) => return Ok(None),
            },
            _ => return Ok(None),
        };
        self.reader.value()?;
        Ok(Some(wide))
    }

    /// Refuses an integer beyond those of 64 bits for a type that cannot hold it.
    fn refuse_wide(&self, type_name: &str) -> Result<(), DecodeError> {
        match self.peek()? {
            Token::Wide(_) | Token::UnsignedWide(_) => Err(out_of_range(type_name)),
            _ => Ok(()),
        }
    }
}

/// An integer of 128 bits as it was found.
enum WideInteger {
    Signed(i128),
    Unsigned(u128),
    /// Bytes of an integer whose type knows whether it has a sign.
    Bytes([u8; 16]),
}

fn out_of_range(type_name: &str) -> DecodeError {
    let found = "an integer outside of its range".into();
    DecodeError::new(Cause::Mismatch { expected: type_name.into(), found })
}

macro_rules! integers {
    ($($method:ident $type_name:literal),* $(,)?) => {$(
        fn $method<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, DecodeError> {
            self.refuse_wide($type_name)?;
            self.deserialize_any(visitor)
        }
    )*};
}

impl<'a> de::Deserializer<'a> for &mut Decoder<'a> {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.reader.token()? {
            Token::Nil => visitor.visit_unit(),
            Token::Bool(value) => visitor.visit_bool(value),
            Token::Unsigned(value) => visitor.visit_u64(value),
            Token::Signed(value) => visitor.visit_i64(value),
            Token::Float(value) => visitor.visit_f64(value),
            Token::Text(value) => visitor.visit_borrowed_str(value),
            Token::Bytes(value) => visitor.visit_borrowed_bytes(value),
            // Who does not ask for such an integer gets what JSON makes of it elsewhere.
            Token::Wide(value) => visitor.visit_f64(value as f64),
            Token::UnsignedWide(value) => visitor.visit_f64(value as f64),
            Token::Extension => Err(de::Error::invalid_type(Unexpected::Other("a MessagePack extension"), &visitor)),
            Token::Array(count) => self.nested(|decoder| {
                let mut elements = Elements { decoder, count, next: 0 };
                let value = visitor.visit_seq(&mut elements)?;
                let taken = elements.next;
                if taken == count {
                    return Ok(value);
                }
                let expected = format!("an array of {}", counted(taken, "element"));
                Err(de::Error::invalid_length(count, &expected.as_str()))
            }),
            Token::Map(count) => self.nested(|decoder| visitor.visit_map(Entries { decoder, left: count, key: &[] })),
        }
    }

    fn deserialize_option<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        if self.peek()? == Token::Nil {
            self.reader.token()?;
            return visitor.visit_none();
        }
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'a>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.nested(|decoder| visitor.visit_newtype_struct(decoder))
    }

    fn deserialize_enum<V: Visitor<'a>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match self.peek()? {
            Token::Text(_) => visitor.visit_enum(Variant { decoder: self, has_content: false }),
            Token::Map(1) => {
                self.reader.token()?;
                self.nested(|decoder| visitor.visit_enum(Variant { decoder, has_content: true }))
            }
            _ => {
                let names: Vec<_> = variants.iter().map(|name| format!("`{name}`")).collect();
                let expected = format!("the name of a variant (one of {})", names.join(", "));
                let found = describe(self.reader.value()?);
                Err(DecodeError::new(Cause::Mismatch { expected, found }))
            }
        }
    }

    fn deserialize_u128<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.wide()? {
            Some(WideInteger::Unsigned(value)) => visitor.visit_u128(value),
            Some(WideInteger::Bytes(bytes)) => visitor.visit_u128(u128::from_be_bytes(bytes)),
            Some(WideInteger::Signed(value)) => match u128::try_from(value) {
                Ok(value) => visitor.visit_u128(value),
                Err(_) => Err(out_of_range("u128")),
            },
            None => self.deserialize_any(visitor),
        }
    }

    fn deserialize_i128<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.wide()? {
            Some(WideInteger::Signed(value)) => visitor.visit_i128(value),
            Some(WideInteger::Bytes(bytes)) => visitor.visit_i128(i128::from_be_bytes(bytes)),
            Some(WideInteger::Unsigned(_)) => Err(out_of_range("i128")),
            None => self.deserialize_any(visitor),
        }
    }

    integers! {
        deserialize_i8 "i8", deserialize_i16 "i16", deserialize_i32 "i32", deserialize_i64 "i64",
        deserialize_u8 "u8", deserialize_u16 "u16", deserialize_u32 "u32", deserialize_u64 "u64",
    }

    forward_to_deserialize_any! {
        <W: Visitor<'a>>
        bool f32 f64 char str string bytes byte_buf
        unit unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// The elements of an array.
struct Elements<'d, 'a> {
    decoder: &'d mut Decoder<'a>,
    count: usize,
    next: usize,
}

impl<'a> de::SeqAccess<'a> for Elements<'_, 'a> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'a>>(&mut self, seed: T) -> Result<Option<T::Value>, DecodeError> {
        if self.next == self.count {
            return Ok(None);
        }
        let index = self.next;
        self.next += 1;
        seed.deserialize(&mut *self.decoder).map(Some).map_err(|error| error.within(Step::Index(index)))
    }

    fn size_hint(&self) -> Option<usize> {
        // No more than there are bytes, whatever the head of the array says.
        Some((self.count - self.next).min(self.decoder.reader.rest.len()))
    }
}

/// The entries of a map.
struct Entries<'d, 'a> {
    decoder: &'d mut Decoder<'a>,
    left: usize,
    /// The key whose value comes next, encoded.
    key: &'a [u8],
}

impl<'a> de::MapAccess<'a> for Entries<'_, 'a> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'a>>(&mut self, seed: K) -> Result<Option<K::Value>, DecodeError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        self.key = self.decoder.reader.value()?;
        let mut decoder = Decoder { reader: Reader::new(self.key), depth: self.decoder.depth };
        seed.deserialize(Key { decoder: &mut decoder }).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'a>>(&mut self, seed: V) -> Result<V::Value, DecodeError> {
        seed.deserialize(&mut *self.decoder).map_err(|error| {
            let name = match Reader::new(self.key).token() {
                Ok(Token::Text(name)) => name.to_owned(),
                _ => describe(self.key),
            };
            error.within(Step::Field(name))
        })
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left.min(self.decoder.reader.rest.len()))
    }
}

/// A key. JSON has no keys but strings, so one stands for whatever it can be read as.
struct Key<'d, 'a> {
    decoder: &'d mut Decoder<'a>,
}

macro_rules! key_from_text {
    ($($method:ident $visit:ident $type:ty),* $(,)?) => {$(
        fn $method<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, DecodeError> {
            if let Token::Text(text) = self.decoder.peek()?
                && let Ok(value) = text.parse::<$type>()
            {
                return visitor.$visit(value);
            }
            self.decoder.$method(visitor)
        }
    )*};
}

impl<'a> de::Deserializer<'a> for Key<'_, 'a> {
    type Error = DecodeError;

    key_from_text! {
        deserialize_bool visit_bool bool,
        deserialize_i8 visit_i8 i8,
        deserialize_i16 visit_i16 i16,
        deserialize_i32 visit_i32 i32,
        deserialize_i64 visit_i64 i64,
        deserialize_i128 visit_i128 i128,
        deserialize_u8 visit_u8 u8,
        deserialize_u16 visit_u16 u16,
        deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64,
        deserialize_u128 visit_u128 u128,
    }

    fn deserialize_any<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.decoder.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'a>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'a>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.decoder.deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! {
        <W: Visitor<'a>>
        f32 f64 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct identifier
        ignored_any
    }
}

/// An enum: the name of a variant alone, or a map of the name to what the variant holds.
struct Variant<'d, 'a> {
    decoder: &'d mut Decoder<'a>,
    has_content: bool,
}

impl<'a> de::EnumAccess<'a> for Variant<'_, 'a> {
    type Error = DecodeError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'a>>(self, seed: V) -> Result<(V::Value, Self), DecodeError> {
        let Token::Text(name) = self.decoder.reader.token()? else {
            return Err(malformed("the name of a variant is not a string"));
        };
        let deserializer: de::value::BorrowedStrDeserializer<'a, DecodeError> =
            de::value::BorrowedStrDeserializer::new(name);
        Ok((seed.deserialize(deserializer)?, self))
    }
}

impl<'a> de::VariantAccess<'a> for Variant<'_, 'a> {
    type Error = DecodeError;

    fn unit_variant(self) -> Result<(), DecodeError> {
        if self.has_content { de::Deserialize::deserialize(self.decoder) } else { Ok(()) }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'a>>(self, seed: T) -> Result<T::Value, DecodeError> {
        if self.has_content {
            return seed.deserialize(self.decoder);
        }
        // A variant that holds an `Option` or nothing may be written as its name alone.
        seed.deserialize(().into_deserializer())
    }

    fn tuple_variant<V: Visitor<'a>>(self, _length: usize, visitor: V) -> Result<V::Value, DecodeError> {
        if self.has_content {
            return de::Deserializer::deserialize_any(self.decoder, visitor);
        }
        Err(de::Error::invalid_type(Unexpected::UnitVariant, &visitor))
    }

    fn struct_variant<V: Visitor<'a>>(
        self,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.tuple_variant(0, visitor)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Serialize};
    use serde_json::{Value, json};

    use super::*;

    fn from_json<T: de::DeserializeOwned>(value: Value) -> Result<T, String> {
        let bytes = rmp_serde::to_vec_named(&value).expect("JSON can be encoded");
        decode(&bytes).map_err(|error| error.to_string())
    }

    #[derive(Debug, Deserialize, PartialEq, Serialize)]
    enum Shape {
        Point,
        Circle(f64),
        Line(i32, i32),
        Box { width: u8, height: Option<u8> },
    }

    #[derive(Debug, Deserialize, PartialEq, Serialize)]
    struct Limits {
        max: u32,
        names: Vec<String>,
        #[serde(default)]
        by_port: BTreeMap<u16, bool>,
    }

    #[test]
    fn everything_that_json_expresses_is_accepted() {
        assert_eq!(from_json::<f64>(json!(7)), Ok(7.0));
        assert_eq!(from_json::<f32>(json!(-7)), Ok(-7.0));
        assert_eq!(from_json::<i8>(json!(-128)), Ok(-128));
        assert_eq!(from_json::<u64>(json!(u64::MAX)), Ok(u64::MAX));
        assert_eq!(from_json::<u128>(json!(u64::MAX)), Ok(u64::MAX.into()));
        assert_eq!(from_json::<i128>(json!(i64::MIN)), Ok(i64::MIN.into()));
        assert_eq!(from_json::<char>(json!("ß")), Ok('ß'));
        assert_eq!(from_json::<()>(json!(null)), Ok(()));
        assert_eq!(from_json::<Vec<u8>>(json!([1, 2, 255])), Ok(vec![1, 2, 255]));
        assert_eq!(from_json::<(u8, String)>(json!([1, "a"])), Ok((1, "a".to_owned())));
        assert_eq!(from_json::<Option<Option<u8>>>(json!(null)), Ok(None));
        assert_eq!(from_json::<Option<Option<u8>>>(json!(3)), Ok(Some(Some(3))));
        assert_eq!(from_json::<BTreeMap<i64, bool>>(json!({"-3": true})), Ok(BTreeMap::from([(-3, true)])));
        assert_eq!(from_json::<Shape>(json!("Point")), Ok(Shape::Point));
        assert_eq!(from_json::<Shape>(json!({"Point": null})), Ok(Shape::Point));
        assert_eq!(from_json::<Shape>(json!({"Circle": 2})), Ok(Shape::Circle(2.0)));
        assert_eq!(from_json::<Shape>(json!({"Line": [1, -2]})), Ok(Shape::Line(1, -2)));
        assert_eq!(from_json::<Shape>(json!({"Box": {"width": 3}})), Ok(Shape::Box { width: 3, height: None }));
        assert_eq!(
            from_json::<Limits>(json!({"names": ["a"], "max": 2, "by_port": {"80": true}, "unknown": [{}]})),
            Ok(Limits { max: 2, names: vec!["a".to_owned()], by_port: BTreeMap::from([(80, true)]) })
        );
        let nested = json!({"list": [1, -1, 2.5, "x", null, true, {"deep": []}]});
        assert_eq!(from_json::<Value>(nested.clone()), Ok(nested));
    }

    #[test]
    fn what_a_rust_driver_sends_is_accepted() {
        let compact = rmp_serde::to_vec(&Limits { max: 1, names: vec![], by_port: BTreeMap::from([(1, true)]) });
        assert_eq!(decode::<Limits>(&compact.expect("it encodes")).expect("it decodes").max, 1);
        for shape in [Shape::Point, Shape::Circle(0.5), Shape::Line(3, 4), Shape::Box { width: 1, height: Some(2) }] {
            let bytes = rmp_serde::to_vec(&shape).expect("it encodes");
            assert_eq!(decode::<Shape>(&bytes).expect("it decodes"), shape);
        }
        let wide = rmp_serde::to_vec(&(u128::MAX, i128::MIN)).expect("it encodes");
        assert_eq!(decode::<(u128, i128)>(&wide).expect("it decodes"), (u128::MAX, i128::MIN));
        for value in [0, -1, i128::from(u64::MAX), i128::from(i64::MIN), i128::from(u64::MAX) + 1, i128::MAX, i128::MIN]
        {
            let unsigned = value as u128;
            let nested = BTreeMap::from([("a".to_owned(), (Some(value), vec![unsigned]))]);
            let mut bytes = Vec::new();
            nested.serialize(wide::Wide(&mut rmp_serde::Serializer::new(&mut bytes))).expect("it encodes");
            assert_eq!(decode::<BTreeMap<String, (Option<i128>, Vec<u128>)>>(&bytes).expect("it decodes"), nested);
        }
        let mut beyond = Vec::new();
        (1_u128 << 64).serialize(wide::Wide(&mut rmp_serde::Serializer::new(&mut beyond))).expect("it encodes");
        let error = decode::<u64>(&beyond).expect_err("it does not fit").to_string();
        assert_eq!(
            error,
            "expected u64, a whole number from 0 to 18446744073709551615, got an integer outside of its range"
        );
        let long = "x".repeat(70_000);
        let bytes =
            rmp_serde::to_vec(&(long.clone(), vec![0_u16; 20], 1.5_f32, -40_000, i64::MIN)).expect("it encodes");
        let decoded: (String, Vec<u16>, f32, i32, i64) = decode(&bytes).expect("it decodes");
        assert_eq!(decoded, (long, vec![0; 20], 1.5, -40_000, i64::MIN));
    }

    #[test]
    fn errors_name_the_place_and_both_types() {
        let message = |result: Result<Limits, String>| result.expect_err("it does not fit");
        assert_eq!(
            message(from_json(json!({"max": "x", "names": []}))),
            "`max`: expected u32, a whole number from 0 to 4294967295, got a string"
        );
        assert_eq!(
            message(from_json(json!({"max": -1, "names": []}))),
            "`max`: expected u32, a whole number from 0 to 4294967295, got a negative integer"
        );
        assert_eq!(
            message(from_json(json!({"max": 1, "names": ["a", null]}))),
            "`names[1]`: expected a string, got `null`"
        );
        assert_eq!(message(from_json(json!({"max": 1}))), "missing field `names`");
        assert_eq!(
            message(from_json(json!({"max": 1, "names": [], "by_port": {"x": true}}))),
            "`by_port`: expected u16, a whole number from 0 to 65535, got a string"
        );
        let message = |result: Result<(u8, u8), String>| result.expect_err("it does not fit");
        assert_eq!(message(from_json(json!([1, 2, 3]))), "expected an array of 2 elements, got 3 elements");
        assert_eq!(message(from_json(json!([1]))), "expected a tuple of size 2, got 1 element");
        let message = |result: Result<Shape, String>| result.expect_err("it does not fit");
        assert_eq!(
            message(from_json(json!("Sphere"))),
            "unknown variant `Sphere`, expected one of `Point`, `Circle`, `Line`, `Box`"
        );
        assert_eq!(
            message(from_json(json!(4))),
            "expected the name of a variant (one of `Point`, `Circle`, `Line`, `Box`), got an integer"
        );
    }

    #[test]
    fn torn_and_hostile_bytes_are_errors() {
        let whole = rmp_serde::to_vec(&json!([{"a": [1, 2, "three"]}, 4.5])).expect("it encodes");
        for length in 1..whole.len() {
            assert!(Reader::new(&whole[..length]).elements().is_err(), "cut to {length} bytes");
        }
        assert_eq!(Reader::new(&whole).elements().expect("it is whole").len(), 2);
        let huge = [0xdd, 0xff, 0xff, 0xff, 0xff];
        assert!(Reader::new(&huge).elements().is_err());
        assert!(decode::<Vec<u8>>(&huge).is_err());
        assert!(Reader::new(&[0xc1]).elements().is_err());
        let deep = vec![0x91; 100_000];
        assert!(decode::<Value>(&deep).is_err());
        assert!(decode::<String>(&[0xa1, 0xff]).is_err());
    }
}
