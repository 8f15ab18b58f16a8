//! Values on their way between JSON, which people type and read, and MessagePack, which travels.

use std::fmt;
use std::io::{self, Read, Write};

use rmp_serde::decode::{ReadSlice, Reference};
use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

mod json;
// The same on both sides of the boundary to modules.
#[path = "../../hooks/sdk/src/wide.rs"]
mod wide;

pub use json::{Json as JsonText, from_json};

/// A value that cannot be carried over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ValueError(String);

/// Limit of the nesting of a value, as in the arguments of a task and in JSON that is read. A deeper value is refused: its reader needs stack for
/// every level.
pub const DEPTH_LIMIT: usize = 128;

/// The longest text, in bytes, of a key that is not a string. Each level of keys in keys doubles it.
const KEY_LIMIT: usize = 64 << 10;

/// Returns a MessagePack value as JSON. Binary data becomes an array of numbers, a map's key that is no string becomes its text, and a number that
/// JSON does not have becomes null.
pub fn to_json(value: &[u8]) -> Result<serde_json::Value, ValueError> {
    let json: Result<Json, _> = Deserialize::deserialize(&mut deserializer(value, DEPTH_LIMIT));
    json.map(|json| json.0).map_err(|error| ValueError(format!("the result has no form in JSON: {}", words(error))))
}

/// Returns a MessagePack value as a Rust one, which may borrow from it.
pub fn from_bytes<'a, T: Deserialize<'a>>(value: &'a [u8]) -> Result<T, ValueError> {
    // Without integers of more than 64 bits nothing has to be rewritten, and texts and bytes can be borrowed.
    if let Ok(read) = T::deserialize(&mut deserializer(value, DEPTH_LIMIT).with_human_readable()) {
        return Ok(read);
    }
    let mut deserializer = rmp_serde::Deserializer::new(Plain { rest: value, skip: 0, is_extension: false });
    deserializer.set_max_depth(DEPTH_LIMIT + 1);
    T::deserialize(&mut deserializer.with_human_readable())
        .map_err(|error| ValueError(format!("the result is not a {}: {}", std::any::type_name::<T>(), words(error))))
}

/// Plain data that a process of ours has written as MessagePack.
pub fn plain_from_bytes<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    // A result as deep as it may be is in some of it.
    T::deserialize(&mut deserializer(bytes, DEPTH_LIMIT + 32)).ok()
}

/// Reads what is nested in up to `depth` levels.
fn deserializer(bytes: &[u8], depth: usize) -> rmp_serde::Deserializer<rmp_serde::decode::ReadRefReader<'_, [u8]>> {
    let mut deserializer = rmp_serde::Deserializer::from_read_ref(bytes);
    // At its own limit it refuses already.
    deserializer.set_max_depth(depth + 1);
    deserializer
}

fn words(error: rmp_serde::decode::Error) -> String {
    match error {
        rmp_serde::decode::Error::DepthLimitExceeded => format!("it is nested deeper than {DEPTH_LIMIT} levels"),
        other => other.to_string(),
    }
}

/// Returns a Rust value as MessagePack, in the form that it has in JSON: structs with the names of their fields, addresses as text.
pub fn to_bytes(value: &impl Serialize) -> Result<Vec<u8>, ValueError> {
    let mut bytes = Vec::new();
    write(value, &mut bytes)?;
    Ok(bytes)
}

/// Writes a Rust value as [`to_bytes`] has it.
pub fn write(value: &impl Serialize, out: &mut impl Write) -> Result<(), ValueError> {
    let mut serializer = rmp_serde::Serializer::new(out).with_struct_map().with_human_readable();
    value.serialize(wide::Wide(&mut serializer)).map_err(|error| ValueError(error.to_string()))
}

/// Bytes as `rmp-serde` reads them: an integer of 128 bits is 16 plain bytes there, and not an extension. Both take as many bytes, so only the
/// two before them are exchanged.
struct Plain<'a> {
    rest: &'a [u8],
    /// Bytes behind a marker that are no marker.
    skip: usize,
    /// True if what comes next is the type of an extension of 16 bytes.
    is_extension: bool,
}

impl Read for Plain<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = buffer.len().min(self.rest.len());
        let (read, rest) = self.rest.split_at(count);
        buffer[..count].copy_from_slice(read);
        self.rest = rest;
        if self.skip > 0 {
            if std::mem::take(&mut self.is_extension) && count == 1 {
                // In the place of the type: how many bytes there are.
                buffer[0] = 16;
            }
            self.skip = self.skip.saturating_sub(count);
            return Ok(count);
        }
        if let (1, Some(marker)) = (count, buffer.first_mut()) {
            self.skip = match *marker {
                0xcc | 0xd0 | 0xc4 | 0xd9 | 0xd4..=0xd7 => 1,
                0xcd | 0xd1 | 0xc5 | 0xda | 0xdc | 0xde | 0xc7 => 2,
                0xc8 => 3,
                0xca | 0xce | 0xd2 | 0xc6 | 0xdb | 0xdd | 0xdf => 4,
                0xc9 => 5,
                0xcb | 0xcf | 0xd3 => 8,
                0xd8 => 1,
                _ => 0,
            };
            let is_wide = |kind: &u8| [wide::SIGNED, wide::UNSIGNED].contains(&(*kind as i8));
            if *marker == 0xd8 && self.rest.first().is_some_and(is_wide) {
                *marker = 0xc4;
                self.is_extension = true;
            }
        }
        Ok(count)
    }
}

impl<'a> ReadSlice<'a> for Plain<'a> {
    fn read_slice<'b>(&'b mut self, length: usize) -> Result<Reference<'a, 'b, [u8]>, io::Error> {
        let (read, rest) = self.rest.split_at_checked(length).ok_or(io::ErrorKind::UnexpectedEof)?;
        self.rest = rest;
        Ok(Reference::Borrowed(read))
    }
}

/// A JSON value, read from a format that has more than JSON has.
struct Json(serde_json::Value);

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(JsonVisitor).map(Json)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = serde_json::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
        Ok(value.into())
    }

    fn visit_bytes<E>(self, value: &[u8]) -> Result<Self::Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(serde_json::Value::Null)
    }

    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(serde_json::Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut array = Vec::new();
        while let Some(Json(item)) = items.next_element()? {
            array.push(item);
        }
        Ok(array.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut object = serde_json::Map::new();
        while let Some((Json(key), Json(value))) = entries.next_entry()? {
            let key = match key {
                serde_json::Value::String(text) => text,
                other => key_text(&other)?,
            };
            object.insert(key, value);
        }
        Ok(object.into())
    }
}

/// Returns the text of a key that is not a string.
fn key_text<E: de::Error>(key: &serde_json::Value) -> Result<String, E> {
    let text = key.to_string();
    if text.len() > KEY_LIMIT {
        return Err(E::custom(format!("the key of a map has {} bytes as text, at most {KEY_LIMIT}", text.len())));
    }
    Ok(text)
}

/// Makes a MessagePack array of values that are MessagePack already.
pub fn array(values: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::with_capacity(5 + values.iter().map(Vec::len).sum::<usize>());
    put_array_header(&mut out, values.len());
    values.iter().for_each(|value| out.extend_from_slice(value));
    out
}

/// Returns the elements of a MessagePack array, of which some are replaced: by each value the one with its index.
pub fn replaced<'a>(
    array_bytes: &'a [u8],
    values: impl IntoIterator<Item = (u32, &'a [u8])>,
) -> Result<Vec<&'a [u8]>, ValueError> {
    let mut elements = elements(array_bytes).ok_or_else(|| ValueError("the arguments are no array".into()))?;
    for (index, value) in values {
        let count = elements.len();
        let element = elements
            .get_mut(index as usize)
            .ok_or_else(|| ValueError(format!("there is no argument {} among {count}", u64::from(index) + 1)))?;
        *element = value;
    }
    Ok(elements)
}

/// Puts values in the places of a MessagePack array: each with its index, in their order. Everything else stays as it is.
pub fn fill<'a>(
    array_bytes: &'a [u8],
    values: impl IntoIterator<Item = (u32, &'a [u8])>,
) -> Result<Vec<u8>, ValueError> {
    let elements = replaced(array_bytes, values)?;
    let mut out = Vec::with_capacity(5 + elements.iter().map(|element| element.len()).sum::<usize>());
    put_array_header(&mut out, elements.len());
    elements.iter().for_each(|element| out.extend_from_slice(element));
    Ok(out)
}

/// Returns the elements of a MessagePack array that fills `bytes`; none when it is not one.
pub fn elements(bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let (count, mut rest) = match *bytes.first()? {
        marker @ 0x90..=0x9f => (usize::from(marker & 0x0f), &bytes[1..]),
        0xdc => (length::<2>(&bytes[1..])?, &bytes[3..]),
        0xdd => (length::<4>(&bytes[1..])?, &bytes[5..]),
        _ => return None,
    };
    let mut elements = Vec::with_capacity(count.min(bytes.len()));
    for _ in 0..count {
        let (element, after) = rest.split_at_checked(value_length(rest)?)?;
        elements.push(element);
        rest = after;
    }
    rest.is_empty().then_some(elements)
}

/// Returns a big-endian length of `N` bytes.
fn length<const N: usize>(bytes: &[u8]) -> Option<usize> {
    Some(bytes.get(..N)?.iter().fold(0, |length, &byte| length << 8 | usize::from(byte)))
}

/// Returns the length in bytes of the first of these values, whatever it holds.
fn value_length(bytes: &[u8]) -> Option<usize> {
    let mut place = 0;
    let mut values_left = 1_usize;
    while values_left > 0 {
        values_left -= 1;
        let rest = bytes.get(place..)?;
        let after = rest.get(1..)?;
        let (own, inside) = match rest[0] {
            0x00..=0x7f | 0xc0 | 0xc2 | 0xc3 | 0xe0..=0xff => (1, 0),
            marker @ 0x80..=0x8f => (1, 2 * usize::from(marker & 0x0f)),
            marker @ 0x90..=0x9f => (1, usize::from(marker & 0x0f)),
            marker @ 0xa0..=0xbf => (1 + usize::from(marker & 0x1f), 0),
            0xc1 => return None,
            0xc4 | 0xd9 => (2 + length::<1>(after)?, 0),
            0xc5 | 0xda => (3 + length::<2>(after)?, 0),
            0xc6 | 0xdb => (5 + length::<4>(after)?, 0),
            0xc7 => (3 + length::<1>(after)?, 0),
            0xc8 => (4 + length::<2>(after)?, 0),
            0xc9 => (6 + length::<4>(after)?, 0),
            0xcc | 0xd0 => (2, 0),
            0xcd | 0xd1 => (3, 0),
            0xca | 0xce | 0xd2 => (5, 0),
            0xcb | 0xcf | 0xd3 => (9, 0),
            marker @ 0xd4..=0xd8 => (2 + (1 << (marker - 0xd4)), 0),
            0xdc => (3, length::<2>(after)?),
            0xdd => (5, length::<4>(after)?),
            0xde => (3, 2 * length::<2>(after)?),
            0xdf => (5, 2 * length::<4>(after)?),
        };
        place += own;
        values_left += inside;
    }
    (place <= bytes.len()).then_some(place)
}

fn put_array_header(out: &mut Vec<u8>, count: usize) {
    match count {
        0..=15 => out.push(0x90 | count as u8),
        _ => {
            out.push(0xdd);
            out.extend_from_slice(&(count as u32).to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn values_take_the_places_that_they_are_put_in(
            values in prop::collection::vec((any::<i64>(), ".{0,40}", any::<Option<f32>>(), any::<[bool; 3]>()), 0..20),
            at: prop::sample::Index, new: (u64, Option<i8>),
        ) {
            let parts: Vec<_> = values.iter().map(|value| to_bytes(value).unwrap()).collect();
            prop_assert_eq!(fill(&array(&parts), []).unwrap(), array(&parts));
            prop_assume!(!parts.is_empty());
            let (at, new) = (at.index(parts.len()), to_bytes(&new).unwrap());
            let mut expected = parts.clone();
            expected[at].clone_from(&new);
            prop_assert_eq!(fill(&array(&parts), [(at as u32, new.as_slice())]).unwrap(), array(&expected));
            prop_assert!(fill(&array(&parts), [(parts.len() as u32, new.as_slice())]).is_err());
        }

        #[test]
        fn hostile_arrays_are_refused_without_a_panic(bytes: Vec<u8>) {
            let _ = fill(&bytes, [(0, [0xc0].as_slice())]);
        }

        #[test]
        fn an_array_of_values_is_an_array_in_messagepack(values: Vec<(i64, String)>) {
            let parts: Vec<_> = values.iter().map(|value| to_bytes(value).unwrap()).collect();
            let whole: Vec<(i64, String)> = from_bytes(&array(&parts)).unwrap();
            prop_assert_eq!(whole, values);
        }
    }

    /// Returns a list in a list and so on, `depth` of them.
    fn nested(begin: &[u8], depth: usize) -> Vec<u8> {
        let mut bytes = begin.repeat(depth);
        bytes.push(1);
        bytes
    }

    /// Readers of a result, the head above all, must not run out of stack.
    #[test]
    fn what_is_nested_too_deep_is_refused_and_the_deepest_needs_little_stack() {
        let work = || {
            for begin in [&b"\x91"[..], b"\x81\xa1x", b"\xdd\0\0\0\x01"] {
                let json = to_json(&nested(begin, DEPTH_LIMIT)).unwrap();
                let bytes = to_bytes(&json).unwrap();
                assert_eq!(to_json(&bytes).unwrap(), json);
                assert_eq!(from_bytes::<serde_json::Value>(&bytes).unwrap(), json);
                let message = to_bytes(&[[Some((1, &json))]]).unwrap();
                assert_eq!(plain_from_bytes(&message), Some([[Some((1, json))]]), "a message with it is read");
                for depth in [DEPTH_LIMIT + 1, 1_000, 1_000_000] {
                    let bytes = nested(begin, depth);
                    let error = to_json(&bytes).unwrap_err().to_string();
                    assert_eq!(error, "the result has no form in JSON: it is nested deeper than 128 levels");
                    let error = from_bytes::<serde_json::Value>(&bytes).unwrap_err().to_string();
                    assert!(error.ends_with(": it is nested deeper than 128 levels"), "{error}");
                }
            }
        };
        std::thread::Builder::new().stack_size(1 << 20).spawn(work).unwrap().join().unwrap();
    }

    #[test]
    fn keys_in_keys_do_not_double_without_end() {
        let keys = |depth: usize| [[0x81].repeat(depth), [0].repeat(depth + 1)].concat();
        assert_eq!(to_json(&keys(2)).unwrap(), serde_json::json!({"{\"0\":0}": 0}));
        let error = to_json(&keys(100)).unwrap_err().to_string();
        assert!(error.contains("the key of a map has") && error.ends_with("at most 65536"), "{error}");
    }

    #[test]
    fn values_of_every_kind_are_stepped_over() {
        let long = |count: usize| "x".repeat(count);
        let list = |count: usize| (0..count).collect::<Vec<_>>();
        let map = |count: u32| (0..count).map(|key| (key, long(3))).collect::<std::collections::BTreeMap<_, _>>();
        let sizes = [0, 1, 15, 16, 31, 32, 255, 256, 65_535, 65_536];
        let mut parts =
            vec![vec![0xc4, 2, 1, 2], vec![0xc5, 0, 1, 9], vec![0xc6, 0, 0, 0, 1, 9], vec![0xd4, 1, 7], vec![0xd8, 1]];
        parts[4].extend([0; 16]);
        parts.extend([vec![0xc7, 2, 1, 0, 0], vec![0xc8, 0, 1, 1, 0], vec![0xc9, 0, 0, 0, 0, 1]]);
        for size in sizes {
            parts.extend(
                [to_bytes(&long(size)), to_bytes(&list(size)), to_bytes(&map(size as u32))].map(Result::unwrap),
            );
        }
        for number in [0, 127, 128, -1, -32, -33, -129, -32_769, -2_147_483_649, 256, 65_536, 4_294_967_296_i64] {
            parts.push(to_bytes(&number).unwrap());
        }
        parts.extend([to_bytes(&1.5_f32), to_bytes(&1.5_f64), to_bytes(&true), to_bytes(&())].map(Result::unwrap));
        let whole = array(&parts);
        assert_eq!(elements(&whole).unwrap(), parts);
        for (index, part) in parts.iter().enumerate() {
            assert_eq!(value_length(part), Some(part.len()), "part {index}");
            assert!(part.len() == 1 || value_length(&part[..part.len() - 1]).is_none(), "part {index}");
        }
        let mut expected = parts.clone();
        expected[7] = vec![0xc0];
        assert_eq!(fill(&whole, [(7, [0xc0].as_slice())]).unwrap(), array(&expected));
    }

    #[test]
    fn json_survives_the_way_there_and_back() {
        let json = serde_json::json!({"a": [1, -2, 1.5, null, true, "x"], "b": {"c": 18446744073709551615u64}});
        assert_eq!(to_json(&to_bytes(&json).unwrap()).unwrap(), json);
    }

    #[test]
    fn what_json_does_not_have_gets_the_form_nearest_to_it() {
        let map = std::collections::BTreeMap::from([(1u8, f64::NAN), (2, 0.5)]);
        assert_eq!(to_json(&to_bytes(&map).unwrap()).unwrap(), serde_json::json!({"1": null, "2": 0.5}));
        assert_eq!(to_json(&[0xc4, 2, 7, 8]).unwrap(), serde_json::json!([7, 8]), "binary data");
        let address: std::net::Ipv4Addr = "127.0.0.1".parse().unwrap();
        let bytes = to_bytes(&address).unwrap();
        assert_eq!(to_json(&bytes).unwrap(), serde_json::json!("127.0.0.1"));
        assert_eq!(from_bytes::<std::net::Ipv4Addr>(&bytes).unwrap(), address);
        assert!(to_json(&[0x92, 1]).unwrap_err().to_string().starts_with("the result has no form in JSON"));
    }
}
