//! The JSON of a value, and what of the value JSON cannot say.
//!
//! Integers of 128 bits are numbers with all their digits. Binary data is an array of numbers, and a key that is no text is its text: a task takes both
//! back as what they were. A number that JSON does not have (NaN, infinity) is `null`, and two keys with one text are both there: that is lost, and
//! said with its place.

use std::collections::HashSet;
use std::fmt;

use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::{DEPTH_LIMIT, KEY_LIMIT, ValueError, deserializer, wide, words};
use crate::count::Count;

/// The most places that are named.
const NAMED_LIMIT: usize = 3;

/// A value as JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Json {
    text: String,
    /// Losses: parts of it that JSON cannot represent, as clauses that begin with the place; the first few of them.
    lost: Vec<String>,
    lost_count: usize,
}

impl Json {
    /// Returns the JSON of a MessagePack value.
    pub fn of(value: &[u8]) -> Result<Json, ValueError> {
        let mut writer = Writer::default();
        let written = ValueWriter(&mut writer).deserialize(&mut deserializer(value, DEPTH_LIMIT));
        written.map_err(|error| ValueError(format!("the result has no form in JSON: {}", words(error))))?;
        Ok(Json { text: writer.text, lost: writer.lost, lost_count: writer.lost_count })
    }

    /// Returns the first characters of a MessagePack value's JSON, with `…` if that is not all; none of what has no form in JSON. It costs the same
    /// for a value of any size.
    pub fn beginning(value: &[u8], limit: usize) -> Option<String> {
        let mut writer = Writer { limit, ..Writer::default() };
        let written = ValueWriter(&mut writer).deserialize(&mut deserializer(value, DEPTH_LIMIT));
        let mut text = writer.text;
        match text.char_indices().nth(limit) {
            Some((end, _)) => {
                text.truncate(end);
                text.push('…');
            }
            None => written.ok()?,
        }
        Some(text)
    }

    /// Returns the JSON of no value.
    pub fn null() -> Json {
        Json { text: "null".into(), lost: Vec::new(), lost_count: 0 }
    }

    /// Returns the text, in one line.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Describes the loss in JSON, as a sentence; none if there is none.
    pub fn loss(&self) -> Option<String> {
        let more = self.lost_count - self.lost.len();
        let more = if more > 0 { format!("; and {} more", Count(more, "place")) } else { String::new() };
        (self.lost_count > 0).then(|| format!("JSON cannot say all of the result: {}{more}", self.lost.join("; ")))
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// In JSON the value itself; elsewhere its text, with what was lost.
impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            let raw: &RawValue = serde_json::from_str(&self.text).map_err(serde::ser::Error::custom)?;
            return raw.serialize(serializer);
        }
        (&self.text, &self.lost, self.lost_count).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        if deserializer.is_human_readable() {
            let raw: Box<RawValue> = Deserialize::deserialize(deserializer)?;
            return Ok(Json { text: raw.get().into(), ..Json::null() });
        }
        let (text, lost, lost_count): (_, Vec<_>, _) = Deserialize::deserialize(deserializer)?;
        Ok(Json { text, lost_count: std::cmp::max(lost_count, lost.len()), lost })
    }
}

/// Output, and the path of the value that is being written.
struct Writer {
    text: String,
    /// Number of characters behind which nothing more is wanted.
    limit: usize,
    path: Vec<Step>,
    lost: Vec<String>,
    lost_count: usize,
}

enum Step {
    Index(usize),
    Key(String),
}

impl Default for Writer {
    fn default() -> Writer {
        Writer { text: String::new(), limit: usize::MAX, path: Vec::new(), lost: Vec::new(), lost_count: 0 }
    }
}

impl Writer {
    fn push(&mut self, value: impl fmt::Display) {
        use fmt::Write;
        // Writing to a string cannot fail.
        let _ = write!(self.text, "{value}");
    }

    /// Fails once there is more than is wanted. A character has four bytes at most.
    fn check_limit<E: de::Error>(&self) -> Result<(), E> {
        match self.text.len() / 4 > self.limit {
            true => Err(E::custom("no more of it is wanted")),
            false => Ok(()),
        }
    }

    fn push_text(&mut self, text: &str) {
        let text = match self.limit.checked_add(1).and_then(|end| text.char_indices().nth(end)) {
            Some((end, _)) => &text[..end],
            None => text,
        };
        self.text.push_str(&serde_json::to_string(text).expect("a text has a form in JSON"));
    }

    /// Notes that something is lost here.
    fn lose(&mut self, what: &str) {
        self.lost_count += 1;
        if self.lost.len() < NAMED_LIMIT {
            let mut place = String::new();
            for step in &self.path {
                match step {
                    Step::Index(index) => place.push_str(&format!("[{index}]")),
                    Step::Key(key) if place.is_empty() => place.push_str(key),
                    Step::Key(key) => place.push_str(&format!(".{key}")),
                }
            }
            let place = if place.is_empty() { "it".into() } else { format!("`{place}`") };
            self.lost.push(format!("{place} {what}"));
        }
    }
}

/// Serializer that writes the next value.
struct ValueWriter<'w>(&'w mut Writer);

impl<'de> DeserializeSeed<'de> for ValueWriter<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueWriter<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        self.0.push(value);
        Ok(())
    }

    fn visit_i64<E>(self, value: i64) -> Result<(), E> {
        self.0.push(value);
        Ok(())
    }

    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        self.0.push(value);
        Ok(())
    }

    fn visit_f64<E>(self, value: f64) -> Result<(), E> {
        match serde_json::Number::from_f64(value) {
            Some(number) => self.0.push(number),
            None => {
                let what = match (value.is_nan(), value > 0.0) {
                    (true, _) => "is NaN",
                    (_, true) => "is infinite",
                    (_, false) => "is minus infinity",
                };
                self.0.lose(&format!("{what}, which is written as null"));
                self.0.push("null");
            }
        }
        Ok(())
    }

    fn visit_str<E>(self, value: &str) -> Result<(), E> {
        self.0.push_text(value);
        Ok(())
    }

    fn visit_bytes<E>(self, value: &[u8]) -> Result<(), E> {
        self.0.push("[");
        for (nth, byte) in value.iter().enumerate().take(self.0.limit.saturating_add(1)) {
            self.0.push(format_args!("{}{byte}", if nth == 0 { "" } else { "," }));
        }
        self.0.push("]");
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.0.push("null");
        Ok(())
    }

    /// An extension of MessagePack.
    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let Extension(kind, bytes) = Deserialize::deserialize(deserializer)?;
        match (kind, <[u8; 16]>::try_from(&*bytes)) {
            (wide::SIGNED, Ok(bytes)) => self.0.push(i128::from_be_bytes(bytes)),
            (wide::UNSIGNED, Ok(bytes)) => self.0.push(u128::from_be_bytes(bytes)),
            _ => {
                self.0.lose(&format!("is a MessagePack extension of type {kind}, which is written as its bytes"));
                self.visit_bytes(&bytes)?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        self.0.push("[");
        for index in 0.. {
            let before = self.0.text.len();
            if index > 0 {
                self.0.push(",");
            }
            self.0.check_limit()?;
            self.0.path.push(Step::Index(index));
            let is_there = items.next_element_seed(ValueWriter(self.0))?.is_some();
            self.0.path.pop();
            if !is_there {
                self.0.text.truncate(before);
                break;
            }
        }
        self.0.push("]");
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        self.0.push("{");
        let (mut keys, mut is_first, mut has_other_keys) = (HashSet::new(), true, false);
        let mut doubled = Vec::new();
        loop {
            self.0.check_limit()?;
            let mut key = Writer::default();
            if entries.next_key_seed(ValueWriter(&mut key))?.is_none() {
                break;
            }
            let key = if key.text.starts_with('"') {
                serde_json::from_str(&key.text).map_err(de::Error::custom)?
            } else {
                has_other_keys = true;
                key.text
            };
            if key.len() > KEY_LIMIT {
                let length = key.len();
                let reason = format!("the key of a map has {length} bytes as text, at most {KEY_LIMIT}");
                return Err(de::Error::custom(reason));
            }
            if !std::mem::take(&mut is_first) {
                self.0.push(",");
            }
            self.0.push_text(&key);
            self.0.push(":");
            if !keys.insert(key.clone()) {
                doubled.push(key.clone());
            }
            self.0.path.push(Step::Key(key));
            entries.next_value_seed(ValueWriter(self.0))?;
            self.0.path.pop();
        }
        if has_other_keys {
            for key in doubled {
                self.0.lose(&format!("has several keys that are `{key}` as text"));
            }
        }
        self.0.push("}");
        Ok(())
    }
}

/// The type of an extension and its bytes.
struct Extension(i8, Vec<u8>);

impl<'de> Deserialize<'de> for Extension {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Extension, D::Error> {
        struct Parts;
        impl<'de> Visitor<'de> for Parts {
            type Value = Extension;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an extension")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Extension, A::Error> {
                let missing = || de::Error::custom("a part of an extension is missing");
                let kind = parts.next_element()?.ok_or_else(missing)?;
                let OwnBytes(bytes) = parts.next_element()?.ok_or_else(missing)?;
                Ok(Extension(kind, bytes))
            }
        }
        deserializer.deserialize_tuple(2, Parts)
    }
}

/// Bytes, which serde takes for a list of numbers otherwise.
struct OwnBytes(Vec<u8>);

impl<'de> Deserialize<'de> for OwnBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OwnBytes, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = OwnBytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<OwnBytes, E> {
                Ok(OwnBytes(bytes.to_vec()))
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

/// Returns a value that was written as JSON, as MessagePack. Integers of more than 64 bits keep all their digits, if they have at most 128 bits.
pub fn from_json(text: &RawValue) -> Result<Vec<u8>, ValueError> {
    let mut bytes = Vec::new();
    super::write(&Input(text), &mut bytes)?;
    Ok(bytes)
}

/// JSON text that is written as the value that it is.
struct Input<'a>(&'a RawValue);

impl Serialize for Input<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = self.0.get();
        if !has_long_number(text) {
            let value: serde_json::Value = serde_json::from_str(text).map_err(serde::ser::Error::custom)?;
            return value.serialize(serializer);
        }
        let text_error = serde::ser::Error::custom::<serde_json::Error>;
        match text.trim_start().as_bytes().first() {
            Some(b'[') => {
                let items: Vec<&RawValue> = serde_json::from_str(text).map_err(text_error)?;
                serializer.collect_seq(items.into_iter().map(Input))
            }
            Some(b'{') => {
                let entries: Entries<'_> = serde_json::from_str(text).map_err(text_error)?;
                serializer.collect_map(entries.0.into_iter().map(|(key, value)| (key, Input(value))))
            }
            _ => {
                let number = text.trim();
                if let Ok(value) = number.parse::<i128>() {
                    return serializer.serialize_i128(value);
                }
                if let Ok(value) = number.parse::<u128>() {
                    return serializer.serialize_u128(value);
                }
                let value: serde_json::Value = serde_json::from_str(text).map_err(text_error)?;
                value.serialize(serializer)
            }
        }
    }
}

/// Returns whether there may be an integer in it that does not fit 64 bits.
fn has_long_number(text: &str) -> bool {
    let mut digits = 0;
    text.bytes().any(|byte| {
        digits = if byte.is_ascii_digit() { digits + 1 } else { 0 };
        digits >= 19
    })
}

/// The entries of an object, in their order.
struct Entries<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Entries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Entries<'de>, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<'de>, A::Error> {
                let mut entries: Vec<(String, &RawValue)> = Vec::new();
                while let Some((key, value)) = map.next_entry::<String, &RawValue>()? {
                    // As in any other object the last one counts.
                    entries.retain(|(known, _)| *known != key);
                    entries.push((key, value));
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::value::{from_bytes, to_bytes};

    fn raw(text: &str) -> Box<RawValue> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn wide_integers_are_numbers_there_and_back() {
        for value in [0, -1, i128::from(u64::MAX), i128::from(i64::MIN), 1 << 64, -(1 << 100), i128::MAX, i128::MIN] {
            let nested = BTreeMap::from([("a".to_owned(), vec![(Some(value), value as u128)])]);
            let bytes = to_bytes(&nested).unwrap();
            assert_eq!(from_bytes::<BTreeMap<String, Vec<(Option<i128>, u128)>>>(&bytes).unwrap(), nested);
            let json = Json::of(&bytes).unwrap();
            assert_eq!(json.text(), serde_json::to_string(&nested).unwrap());
            assert_eq!(json.loss(), None);
            assert_eq!(from_json(&raw(json.text())).unwrap(), bytes, "{json}");
        }
        let beyond = "340282366920938463463374607431768211456";
        assert_eq!(Json::of(&from_json(&raw(beyond)).unwrap()).unwrap().text(), "3.402823669209385e+38");
        let digits = r#"{"b": "12345678901234567890123", "a": [1.5, null, 12345678901234567890123], "b": 1}"#;
        let json = Json::of(&from_json(&raw(digits)).unwrap()).unwrap();
        assert_eq!(json.text(), r#"{"a":[1.5,null,12345678901234567890123],"b":1}"#);
    }

    #[test]
    fn the_beginning_of_a_value_is_as_long_as_is_wanted() {
        let beginning = |value: &serde_json::Value| Json::beginning(&to_bytes(value).unwrap(), 10);
        for (value, expected) in [
            (serde_json::json!(1234), "1234"),
            (serde_json::json!("12345678"), "\"12345678\""),
            (serde_json::json!("äöüäöüäöüä"), "\"äöüäöüäöü…"),
            (serde_json::json!(["a", "b", "c", "d"]), "[\"a\",\"b\",\"…"),
            (serde_json::json!({"key": {"other": [1, 2, 3]}}), "{\"key\":{\"o…"),
            (serde_json::json!("x".repeat(1 << 20)), "\"xxxxxxxxx…"),
        ] {
            assert_eq!(beginning(&value).unwrap(), expected);
        }
        // What is behind it is not looked at, be there a million of them or something else than a value.
        let mut many = to_bytes(&vec![7_u8; 1 << 20]).unwrap();
        many.truncate(100);
        assert_eq!(Json::beginning(&many, 10).unwrap(), "[7,7,7,7,7…");
        assert_eq!(Json::beginning(&many, 1000), None);
        let text = Json::beginning(&crate::value::to_bytes(&[0_u8; 3]).unwrap(), 80);
        assert_eq!(text.unwrap(), "[0,0,0]");
    }

    #[test]
    fn what_json_cannot_say_is_said_with_its_place() {
        let value = [(0.5, f64::NAN), (f64::INFINITY, 1.0)].map(|(x, y)| BTreeMap::from([("x", x), ("y", y)]));
        let json = Json::of(&to_bytes(&value).unwrap()).unwrap();
        assert_eq!(json.text(), r#"[{"x":0.5,"y":null},{"x":null,"y":1.0}]"#);
        assert_eq!(
            json.loss().unwrap(),
            "JSON cannot say all of the result: `[0].y` is NaN, which is written as null; `[1].x` is infinite, which is written as null"
        );
        let json = Json::of(&to_bytes(&f64::NEG_INFINITY).unwrap()).unwrap();
        assert!(json.loss().unwrap().ends_with(": it is minus infinity, which is written as null"));
        let many = Json::of(&to_bytes(&vec![f64::NAN; 10]).unwrap()).unwrap();
        assert!(
            many.loss().unwrap().ends_with("; and 7 places more") || many.loss().unwrap().ends_with("7 places more")
        );
        let keys = [&[0x82, 0x01, 0x00][..], &[0xa1, b'1', 0x00]].concat();
        assert!(Json::of(&keys).unwrap().loss().unwrap().contains("several keys that are `1` as text"));
        let plain = BTreeMap::from([(1, serde_json::json!(["a", {"b": null}]))]);
        assert_eq!(Json::of(&to_bytes(&plain).unwrap()).unwrap().loss(), None);
    }

    #[test]
    fn it_is_the_same_as_the_tree() {
        let json = serde_json::json!({"a": [1, -2, 1.5, null, true, "x\n\"é"], "b": {"c": 18446744073709551615u64}, "d": [], "e": {}});
        let text = Json::of(&to_bytes(&json).unwrap()).unwrap();
        assert_eq!(text.text(), json.to_string());
        assert_eq!(serde_json::to_value(&text).unwrap(), json);
        let message = to_message(&text);
        assert_eq!(message, text);
    }

    fn to_message(json: &Json) -> Json {
        rmp_serde::from_slice(&rmp_serde::to_vec_named(json).unwrap()).unwrap()
    }

    #[test]
    fn what_is_nested_deepest_needs_little_stack() {
        let work = || {
            for begin in [&b"\x91"[..], b"\x81\xa1x", b"\x81"] {
                for depth in [DEPTH_LIMIT, 1_000, 1_000_000] {
                    let bytes = [begin.repeat(depth), vec![1; depth + 1]].concat();
                    let _ = Json::of(&bytes);
                }
            }
            let deep = format!("{}12345678901234567890123{}", "[".repeat(100), "]".repeat(100));
            assert_eq!(Json::of(&from_json(&raw(&deep)).unwrap()).unwrap().text(), deep);
        };
        std::thread::Builder::new().stack_size(1 << 20).spawn(work).unwrap().join().unwrap();
    }
}
