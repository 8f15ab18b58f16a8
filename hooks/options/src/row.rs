//! Description of an option beside its type: its names, its bounds, and the ways in which its value comes in and goes out.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::{TaskOptions, check_resource, check_retry_on, sort_resources};

/// The longest duration over HTTP and over the ABI, in milliseconds: a year of 365 days.
pub const LONGEST_MS: u64 = 365 * 24 * 3600 * 1000;

/// An option of `T`.
#[derive(Debug)]
pub struct Row<T: 'static> {
    /// Its field, and its method of the builders. With hyphens in place of underscores it is its flag.
    pub name: &'static str,
    /// Its documentation, a line each.
    pub doc: &'static str,
    /// Interface of the option: its kind, names and scope.
    pub face: Face,
    /// Its value.
    pub get: fn(&T) -> Option<Value>,
    /// Sets it to a value of its [kind](Face::kind).
    pub set: fn(&mut T, Value),
}

/// Interface of an option: its kind, names and scope.
#[derive(Clone, Copy, Debug)]
pub struct Face {
    /// Kind of its value.
    pub kind: Kind,
    /// Its name as a JSON field and in the encoded options of the ABI; empty where it is none.
    pub json: &'static str,
    /// Name of the value of its flag; empty for the name of its kind.
    pub value_name: &'static str,
    /// Under which heading the help has its flag; empty for none.
    pub heading: &'static str,
    /// Submissions that have it.
    pub scope: Scope,
    /// Options that contradict it.
    pub excludes: &'static [&'static str],
    /// Options that must be there with it.
    pub requires: &'static [&'static str],
    /// True if it is a field of the C structs of ABI 1.0 to 1.5. The others are encoded.
    pub is_c_field: bool,
}

impl Face {
    /// A flag of tasks.
    pub const PLAIN: Face = Face {
        kind: Kind::Flag,
        json: "",
        value_name: "",
        heading: "",
        scope: Scope::Tasks,
        excludes: &[],
        requires: &[],
        is_c_field: false,
    };
}

/// Submissions that have an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Functions and commands.
    Tasks,
    /// Functions, commands, and calls and creations of actors.
    Any,
    /// Commands.
    Commands,
    /// Submissions of programs and tasks; there is no flag.
    Libraries,
}

/// Kind of an option's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Yes or no.
    Flag,
    /// A text.
    Text {
        /// The most characters over HTTP.
        longest: usize,
    },
    /// A number from 0.
    Count {
        /// The most over HTTP.
        most: u32,
    },
    /// A whole number, which may be below 0.
    Whole {
        /// The least.
        least: i8,
        /// The most.
        most: i8,
    },
    /// A duration.
    Time {
        /// The least, in milliseconds.
        least_ms: i64,
    },
    /// A number of bytes.
    Size {
        /// The least.
        least: u64,
    },
    /// Kinds of failures; with commas between, as a text.
    Failures,
    /// Amounts of named resources.
    Amounts,
}

/// The value of an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Value of [`Kind::Flag`].
    Flag(bool),
    /// Value of [`Kind::Count`], [`Kind::Whole`] and [`Kind::Size`].
    Whole(i64),
    /// Value of [`Kind::Time`].
    Time(Duration),
    /// Value of [`Kind::Text`] and [`Kind::Failures`].
    Text(String),
    /// Value of [`Kind::Amounts`], in the order of their names.
    Amounts(Vec<(String, u64)>),
}

/// A value as it came in, of the right type and not yet checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Raw {
    /// Value of [`Kind::Flag`].
    Flag(bool),
    /// Value of [`Kind::Count`], [`Kind::Whole`], [`Kind::Size`] and [`Kind::Time`], which is in milliseconds.
    Whole(i64),
    /// Value of [`Kind::Text`].
    Text(String),
    /// Value of [`Kind::Failures`].
    Texts(Vec<String>),
    /// Value of [`Kind::Amounts`].
    Wholes(BTreeMap<String, i64>),
}

impl Kind {
    /// Returns the least and the most whole number over HTTP and over the ABI, with the unit in which it counts.
    pub fn range(self) -> Option<(i64, i64, &'static str)> {
        match self {
            Kind::Count { most } => Some((0, most.into(), "")),
            Kind::Whole { least, most } => Some((least.into(), most.into(), "")),
            Kind::Time { least_ms } => Some((least_ms, LONGEST_MS as i64, " milliseconds")),
            Kind::Size { .. } => Some((1, i64::MAX, " bytes")),
            Kind::Flag | Kind::Text { .. } | Kind::Failures | Kind::Amounts => None,
        }
    }
}

/// Reads a value of a kind; none for null.
impl<'de> DeserializeSeed<'de> for Kind {
    type Value = Option<Raw>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<Raw>, D::Error> {
        fn read<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
            deserializer: D,
            raw: fn(T) -> Raw,
        ) -> Result<Option<Raw>, D::Error> {
            Ok(Option::<T>::deserialize(deserializer)?.map(raw))
        }
        match self {
            Kind::Flag => read(deserializer, Raw::Flag),
            Kind::Text { .. } => read(deserializer, Raw::Text),
            Kind::Count { .. } | Kind::Whole { .. } | Kind::Time { .. } | Kind::Size { .. } => {
                read(deserializer, |Whole(number)| Raw::Whole(number))
            }
            Kind::Failures => read(deserializer, Raw::Texts),
            Kind::Amounts => read(deserializer, |amounts: BTreeMap<String, Whole>| {
                Raw::Wholes(amounts.into_iter().map(|(name, Whole(amount))| (name, amount)).collect())
            }),
        }
    }
}

/// A whole number. `7.0` is one too, as JSON Schema has it: to JSON it is the same number as `7`.
struct Whole(i64);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Whole, D::Error> {
        struct OfNumber;

        impl Visitor<'_> for OfNumber {
            type Value = Whole;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number")
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Whole, E> {
                Ok(Whole(number))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Whole, E> {
                let found = |_| E::custom(format!("expected a whole number, found {number}"));
                i64::try_from(number).map(Whole).map_err(found)
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Whole, E> {
                /// From here on not every whole number has a floating point form.
                const EXACT: f64 = 9_007_199_254_740_992.0;
                if number.fract() == 0.0 && number.abs() <= EXACT {
                    return Ok(Whole(number as i64));
                }
                Err(E::custom(format!("expected a whole number, found {number}")))
            }
        }

        deserializer.deserialize_any(OfNumber)
    }
}

impl<T: Default> Row<T> {
    /// Returns its flag, without the hyphens before it.
    pub fn flag(&self) -> String {
        self.name.replace('_', "-")
    }

    /// Returns the paragraphs of its documentation, each in one line.
    pub fn paragraphs(&self) -> Vec<String> {
        let lines: Vec<_> = self.doc.lines().map(str::trim).collect();
        lines.split(|line| line.is_empty()).filter(|lines| !lines.is_empty()).map(|lines| lines.join(" ")).collect()
    }

    /// Returns its default value; none for nothing.
    pub fn default_value(&self) -> Option<Value> {
        (self.get)(&T::default())
    }

    /// Returns whether it was said to be something else than the default.
    pub fn is_set(&self, options: &T) -> bool {
        (self.get)(options) != self.default_value()
    }

    /// Returns the value that came in, or what is wrong with it.
    pub fn check(&self, raw: Raw) -> Result<Value, String> {
        let name = self.face.json;
        let said = |problem: String| format!("`{name}`: {problem}");
        match (self.face.kind, raw) {
            (Kind::Flag, Raw::Flag(flag)) => Ok(Value::Flag(flag)),
            (Kind::Text { longest }, Raw::Text(text)) => match text.chars().count() <= longest {
                true => Ok(Value::Text(text)),
                false => Err(format!("`{name}` has more than {longest} characters")),
            },
            (Kind::Failures, Raw::Texts(kinds)) => {
                for kind in &kinds {
                    check_retry_on(kind).map_err(said)?;
                    if kind.contains(',') {
                        return Err(said(format!("`{kind}` are several kinds in one text")));
                    }
                }
                Ok(Value::Text(kinds.join(",")))
            }
            (Kind::Amounts, Raw::Wholes(amounts)) => {
                let amounts = amounts.iter().map(|(name, &amount)| check_resource(name, amount));
                let amounts = amounts.collect::<Result<Vec<_>, _>>().and_then(sort_resources);
                amounts.map(Value::Amounts).map_err(said)
            }
            (kind, Raw::Whole(number)) => match kind.range() {
                Some((least, most, unit)) if !(least..=most).contains(&number) => {
                    Err(format!("`{name}` is {number}, but takes {least} to {most}{unit}"))
                }
                Some(_) if matches!(kind, Kind::Time { .. }) => {
                    Ok(Value::Time(Duration::from_millis(number.unsigned_abs())))
                }
                Some(_) => Ok(Value::Whole(number)),
                None => Err(format!("`{name}` is {number}, which is of another type")),
            },
            (_, raw) => Err(format!("`{name}` is {raw:?}, which is of another type")),
        }
    }
}

/// The type of an option: how it becomes a [`Value`], and comes from one. What is of another kind is left as it is; a row has the kind of its type.
pub trait Field {
    /// Returns the value; none for nothing.
    fn get(&self) -> Option<Value>;
    /// Takes a value over.
    fn set(&mut self, value: Value);
}

macro_rules! field {
    ($type:ty, $get:expr, $pattern:pat => $set:expr) => {
        impl Field for $type {
            fn get(&self) -> Option<Value> {
                let get: fn(&$type) -> Option<Value> = $get;
                get(self)
            }

            fn set(&mut self, value: Value) {
                if let $pattern = value {
                    *self = $set;
                } else {
                    debug_assert!(false, "{value:?} is of another kind than the option");
                }
            }
        }
    };
}

field!(bool, |flag| Some(Value::Flag(*flag)), Value::Flag(flag) => flag);
field!(u32, |count| Some(Value::Whole((*count).into())), Value::Whole(count) => u32::try_from(count).unwrap_or(u32::MAX));
field!(i8, |number| Some(Value::Whole((*number).into())),
       Value::Whole(number) => i8::try_from(number).unwrap_or(if number < 0 { i8::MIN } else { i8::MAX }));
field!(Option<u64>, |size| size.map(|size| Value::Whole(i64::try_from(size).unwrap_or(i64::MAX))),
       Value::Whole(size) => Some(size.unsigned_abs()));
field!(Duration, |span| Some(Value::Time(*span)), Value::Time(span) => span);
field!(Option<Duration>, |span| span.map(Value::Time), Value::Time(span) => Some(span));
field!(String, |text| Some(Value::Text(text.clone())).filter(|_| !text.is_empty()), Value::Text(text) => text);
field!(Vec<(String, u64)>, |amounts| Some(Value::Amounts(amounts.clone())).filter(|_| !amounts.is_empty()),
       Value::Amounts(amounts) => amounts);

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Flag(flag) => serializer.serialize_bool(*flag),
            Value::Whole(number) => serializer.serialize_i64(*number),
            Value::Time(span) => serializer.serialize_u64(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)),
            Value::Text(text) => serializer.serialize_str(text),
            Value::Amounts(amounts) => serializer.collect_map(amounts.iter().map(|(name, amount)| (name, amount))),
        }
    }
}

/// The options that have no field in the C structs of ABI 1.0 to 1.5, as they go over the ABI: a map of what is said, by the names of the HTTP API.
#[derive(Clone, Copy, Debug)]
pub struct Encoded<'a>(&'a TaskOptions);

impl Encoded<'_> {
    /// Rows of what is said.
    fn said(&self) -> impl Iterator<Item = &'static Row<TaskOptions>> {
        TaskOptions::encodable().filter(|row| row.is_set(self.0))
    }

    /// Lists the names of what is said.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.said().map(|row| row.face.json)
    }
}

impl Serialize for Encoded<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let said: Vec<_> = self.said().collect();
        let mut map = serializer.serialize_map(Some(said.len()))?;
        for row in said {
            map.serialize_entry(row.face.json, &(row.get)(self.0))?;
        }
        map.end()
    }
}

impl TaskOptions {
    /// Returns the options of functions that have no field in the C structs of ABI 1.0 to 1.5.
    fn encodable() -> impl Iterator<Item = &'static Row<TaskOptions>> {
        let is_encodable = |face: &Face| !face.is_c_field && !face.json.is_empty() && face.scope != Scope::Commands;
        TaskOptions::ROWS.iter().filter(move |row| is_encodable(&row.face))
    }

    /// Returns the encoded options; none if all have their defaults.
    pub fn encoded(&self) -> Option<Encoded<'_>> {
        TaskOptions::encodable().any(|row| row.is_set(self)).then_some(Encoded(self))
    }

    /// Takes over what [`encoded`](Self::encoded) has written. An option that is not known is an error, and none is left out in silence.
    pub fn read<'de, D: Deserializer<'de>>(&mut self, deserializer: D) -> Result<(), D::Error> {
        struct OfMap<'a>(&'a mut TaskOptions);

        impl<'de> Visitor<'de> for OfMap<'_> {
            type Value = ();

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of options")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
                while let Some(name) = map.next_key::<String>()? {
                    let Some(row) = TaskOptions::encodable().find(|row| row.face.json == name) else {
                        let known: Vec<_> = TaskOptions::encodable().map(|row| row.face.json).collect();
                        let known = known.join("`, `");
                        return Err(de::Error::custom(format!("unknown option `{name}`, expected one of `{known}`")));
                    };
                    if let Some(raw) = map.next_value_seed(row.face.kind)? {
                        (row.set)(self.0, row.check(raw).map_err(de::Error::custom)?);
                    }
                }
                Ok(())
            }
        }

        deserializer.deserialize_map(OfMap(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ActorOptions;

    fn check_rows<T: Default>(rows: &[Row<T>]) {
        for row in rows {
            let paragraphs = row.paragraphs();
            assert!(paragraphs[0].ends_with('.') && !paragraphs[0].contains("  "), "{}: {paragraphs:?}", row.name);
            assert!(!row.is_set(&T::default()), "{}", row.name);
            // A value of its kind arrives, and is the one that it had.
            let value = match row.face.kind {
                Kind::Flag => Value::Flag(true),
                Kind::Text { .. } => Value::Text("a".into()),
                Kind::Count { .. } | Kind::Whole { .. } | Kind::Size { .. } => Value::Whole(7 << 30),
                Kind::Time { .. } => Value::Time(Duration::from_millis(7)),
                Kind::Failures => Value::Text("panic".into()),
                Kind::Amounts => Value::Amounts(vec![("gpu".into(), 1)]),
            };
            let value = match value {
                Value::Whole(_) if !matches!(row.face.kind, Kind::Size { .. }) => Value::Whole(7),
                value => value,
            };
            let mut options = T::default();
            (row.set)(&mut options, value.clone());
            assert_eq!((row.get)(&options), Some(value), "{}", row.name);
            assert!(row.is_set(&options), "{}", row.name);
        }
        let mut names: Vec<_> = rows.iter().map(|row| row.name).collect();
        for row in rows {
            assert!(
                row.face.excludes.iter().chain(row.face.requires).all(|other| names.contains(other)),
                "{}",
                row.name
            );
        }
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn every_option_has_words_a_default_and_a_value_of_its_kind() {
        check_rows(TaskOptions::ROWS);
        check_rows(ActorOptions::ROWS);
    }

    #[test]
    fn what_is_encoded_is_what_is_said_and_has_no_c_field() {
        assert!(TaskOptions::default().encoded().is_none());
        let with_field = TaskOptions { retries: 3, name: "n".into(), ..TaskOptions::default() };
        assert!(with_field.encoded().is_none());
        let options = TaskOptions { grace: Duration::from_secs(9), trace_runtime: true, ..with_field };
        let bytes = rmp_serde::to_vec(&options.encoded()).unwrap();
        let json = serde_json::to_value(options.encoded()).unwrap();
        assert_eq!(json, serde_json::json!({"grace_ms": 9000, "trace_runtime": true}));
        let mut read = TaskOptions { retries: 3, name: "n".into(), ..TaskOptions::default() };
        read.read(&mut rmp_serde::Deserializer::from_read_ref(&bytes)).unwrap();
        assert_eq!(read, options);
    }

    #[test]
    fn encoded_options_have_golden_bytes() {
        let options = TaskOptions {
            grace: Duration::from_secs(9),
            trace_runtime: true,
            priority: -100,
            queue: "q".into(),
            ..TaskOptions::default()
        };
        let names: Vec<_> = TaskOptions::encodable().map(|row| row.face.json).collect();
        let said: Vec<_> = options.encoded().unwrap().names().collect();
        assert_eq!(said, names, "an option that is new is in here too");
        let bytes = rmp_serde::to_vec(&options.encoded()).unwrap();
        let expected = b"\x84\xadtrace_runtime\xc3\xa8grace_ms\xcd\x23\x28\xa8priority\xd0\x9c\xa5queue\xa1q";
        assert_eq!(bytes.escape_ascii().to_string(), expected.escape_ascii().to_string());
    }

    #[test]
    fn an_encoded_option_that_cannot_be_is_refused() {
        for (json, expected) in [
            (
                r#"{"graces": 1}"#,
                "unknown option `graces`, expected one of `trace_runtime`, `grace_ms`, `priority`, `queue`",
            ),
            (r#"{"retries": 1}"#, "unknown option `retries`"),
            (r#"{"grace_ms": -1}"#, "`grace_ms` is -1, but takes 0 to 31536000000 milliseconds"),
            (r#"{"priority": 101}"#, "`priority` is 101, but takes -100 to 100"),
            (r#"{"grace_ms": 1.5}"#, "expected a whole number, found 1.5"),
            (r#"{"grace_ms": 18446744073709551615}"#, "expected a whole number, found 18446744073709551615"),
            (r#"{"trace_runtime": 1}"#, "invalid type: integer `1`, expected a boolean"),
            ("[]", "invalid type: sequence, expected a map of options"),
        ] {
            let error = TaskOptions::default().read(&mut serde_json::Deserializer::from_str(json)).unwrap_err();
            assert!(error.to_string().starts_with(expected), "{json}: {error}");
        }
    }
}
