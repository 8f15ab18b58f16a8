//! Values on their way between JSON, which people type and read, and MessagePack, which travels.

use serde::{Serialize, de::DeserializeOwned};

/// A value that cannot be carried over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueError(String);

impl std::fmt::Display for ValueError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ValueError {}

/// A MessagePack value as JSON. Binary data becomes an array of numbers; map keys that are not strings become their text.
pub fn to_json(value: &[u8]) -> Result<serde_json::Value, ValueError> {
    rmp_serde::from_slice(value).map_err(|error| ValueError(format!("the result has no form in JSON: {error}")))
}

/// A MessagePack value as a Rust one.
pub fn from_bytes<T: DeserializeOwned>(value: &[u8]) -> Result<T, ValueError> {
    rmp_serde::from_slice(value)
        .map_err(|error| ValueError(format!("the result is not a {}: {error}", std::any::type_name::<T>())))
}

/// A Rust value as MessagePack, with the names of fields.
pub fn to_bytes(value: &impl Serialize) -> Result<Vec<u8>, ValueError> {
    rmp_serde::to_vec_named(value).map_err(|error| ValueError(error.to_string()))
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
}
