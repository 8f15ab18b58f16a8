//! Values on their way between JSON, which people type and read, and MessagePack, which travels.

use std::fmt;

use serde::de::{DeserializeOwned, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// A value that cannot be carried over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueError(String);

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ValueError {}

/// A MessagePack value as JSON. Binary data becomes an array of numbers, a map's key that is no string becomes its text, and a number that
/// JSON does not have becomes null.
pub fn to_json(value: &[u8]) -> Result<serde_json::Value, ValueError> {
    let json: Json =
        rmp_serde::from_slice(value).map_err(|error| ValueError(format!("the result has no form in JSON: {error}")))?;
    Ok(json.0)
}

/// A MessagePack value as a Rust one.
pub fn from_bytes<T: DeserializeOwned>(value: &[u8]) -> Result<T, ValueError> {
    let mut deserializer = rmp_serde::Deserializer::from_read_ref(value).with_human_readable();
    T::deserialize(&mut deserializer)
        .map_err(|error| ValueError(format!("the result is not a {}: {error}", std::any::type_name::<T>())))
}

/// A Rust value as MessagePack, in the form that it has in JSON: structs with the names of their fields, addresses as text.
pub fn to_bytes(value: &impl Serialize) -> Result<Vec<u8>, ValueError> {
    let mut bytes = Vec::new();
    let mut serializer = rmp_serde::Serializer::new(&mut bytes).with_struct_map().with_human_readable();
    value.serialize(&mut serializer).map_err(|error| ValueError(error.to_string()))?;
    Ok(bytes)
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
                other => other.to_string(),
            };
            object.insert(key, value);
        }
        Ok(object.into())
    }
}

/// Makes a MessagePack array of values that are MessagePack already.
pub fn array(values: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::with_capacity(5 + values.iter().map(Vec::len).sum::<usize>());
    match values.len() {
        count @ 0..=15 => out.push(0x90 | count as u8),
        count => {
            out.push(0xdd);
            out.extend_from_slice(&(count as u32).to_be_bytes());
        }
    }
    values.iter().for_each(|value| out.extend_from_slice(value));
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_array_of_values_is_an_array_in_messagepack(values: Vec<(i64, String)>) {
            let parts: Vec<_> = values.iter().map(|value| to_bytes(value).unwrap()).collect();
            let whole: Vec<(i64, String)> = from_bytes(&array(&parts)).unwrap();
            prop_assert_eq!(whole, values);
        }
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
