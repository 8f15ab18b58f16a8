//! One span as it was read: what a list needs at once, the rest when it is asked for.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::time;

/// The id of a trace. It prints as 32 hexadecimal digits, and is read with or without `0x`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceId(pub u128);

/// The id of a span. It prints as 16 hexadecimal digits, and is read with or without `0x`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanId(pub u64);

/// A text that is not an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseIdError {
    digits: usize,
}

impl fmt::Display for ParseIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {} hexadecimal digits that are not all zero", self.digits)
    }
}

impl std::error::Error for ParseIdError {}

impl FromStr for TraceId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<TraceId, ParseIdError> {
        parse_id(text, 32).map(TraceId)
    }
}

impl FromStr for SpanId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<SpanId, ParseIdError> {
        parse_id(text, 16).and_then(|id| u64::try_from(id).map(SpanId).map_err(|_| ParseIdError { digits: 16 }))
    }
}

fn parse_id(text: &str, digits: usize) -> Result<u128, ParseIdError> {
    let text = text.strip_prefix("0x").unwrap_or(text);
    // `from_str_radix` alone would take a sign.
    let is_id = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let id = if is_id { u128::from_str_radix(text, 16).unwrap_or(0) } else { 0 };
    if id == 0 { Err(ParseIdError { digits }) } else { Ok(id) }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TraceId({self})")
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SpanId({self})")
    }
}

impl Serialize for TraceId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for SpanId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What a span stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A step inside a process; also what a kind that is not known is taken for.
    Internal,
    /// Answers a remote call.
    Server,
    /// Makes a remote call.
    Client,
    /// Sends work that is done later.
    Producer,
    /// Does work that was sent.
    Consumer,
}

impl Kind {
    pub(super) fn from_text(text: &str) -> Kind {
        match text.strip_prefix("SpanKind.").unwrap_or(text) {
            "SERVER" => Kind::Server,
            "CLIENT" => Kind::Client,
            "PRODUCER" => Kind::Producer,
            "CONSUMER" => Kind::Consumer,
            _ => Kind::Internal,
        }
    }
}

/// How a span ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Nothing was said, which means that it went well.
    Unset,
    /// Explicitly well.
    Ok,
    /// It failed; see [`Span::status_description`].
    Error,
}

impl Status {
    pub(super) fn from_text(text: &str) -> Status {
        match text.strip_prefix("StatusCode.").unwrap_or(text) {
            "OK" => Status::Ok,
            "ERROR" => Status::Error,
            _ => Status::Unset,
        }
    }
}

/// A file with its contents.
pub(super) struct SpanFile {
    pub(super) path: PathBuf,
    /// From the file's name.
    pub(super) pid: Option<u32>,
    pub(super) bytes: Vec<u8>,
}

impl fmt::Debug for SpanFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SpanFile").field(&self.path).finish()
    }
}

/// A span that has ended, or is running. Attributes, events, links and resource are parsed at each call, because most spans are never asked for them.
#[derive(Clone, Debug)]
pub struct Span {
    /// Its name.
    pub name: String,
    /// The trace it belongs to.
    pub trace_id: TraceId,
    /// Its id, unique in its trace.
    pub span_id: SpanId,
    /// The id of its parent, which need not be in the same folder.
    pub parent_id: Option<SpanId>,
    /// What it stands for.
    pub kind: Kind,
    /// When it started.
    pub start_unix_nano: u64,
    /// When it ended; `None` when the writer did not say, or it has not ended.
    pub end_unix_nano: Option<u64>,
    /// When it was seen running; `None` for a span that was read from a file.
    pub running_unix_nano: Option<u64>,
    /// How it ended.
    pub status: Status,
    pub(super) file: Arc<SpanFile>,
    /// Where in the file's bytes the object is.
    pub(super) range: Range<usize>,
}

/// Attributes in the order in which they were written. Of several with the same key the last one holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attributes(pub Vec<(String, Value)>);

impl Attributes {
    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().rev().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    /// The value of `key` when it is a string.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }
}

impl<'de> Deserialize<'de> for Attributes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Attributes, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Attributes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object or null")
            }

            fn visit_unit<E>(self) -> Result<Attributes, E> {
                Ok(Attributes::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Attributes, A::Error> {
                let mut attributes = Attributes::default();
                while let Some(entry) = map.next_entry()? {
                    attributes.0.push(entry);
                }
                Ok(attributes)
            }
        }
        deserializer.deserialize_any(InOrder)
    }
}

/// Something that happened during a span.
#[derive(Clone, Debug, PartialEq)]
pub struct SpanEvent {
    /// Its name, such as `exception`.
    pub name: String,
    /// When; `None` when the text is not a time.
    pub time_unix_nano: Option<u64>,
    /// Its attributes.
    pub attributes: Attributes,
}

/// A reference to another span.
#[derive(Clone, Debug, PartialEq)]
pub struct SpanLink {
    /// The other span's trace.
    pub trace_id: TraceId,
    /// The other span.
    pub span_id: SpanId,
    /// What is said about the reference.
    pub attributes: Attributes,
}

/// The parts of a span that are parsed on demand.
#[derive(Default, Deserialize)]
struct Parts<'a> {
    #[serde(borrow, default)]
    status: Option<&'a RawValue>,
    #[serde(borrow, default)]
    attributes: Option<&'a RawValue>,
    #[serde(borrow, default)]
    events: Option<&'a RawValue>,
    #[serde(borrow, default)]
    links: Option<&'a RawValue>,
    #[serde(borrow, default)]
    resource: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct StatusPart {
    #[serde(default)]
    description: Option<String>,
}

#[derive(Deserialize)]
struct ResourcePart {
    attributes: Attributes,
}

#[derive(Deserialize)]
struct EventPart {
    name: String,
    #[serde(default)]
    timestamp: Option<String>,
    #[serde(default)]
    attributes: Attributes,
}

#[derive(Deserialize)]
struct LinkPart {
    context: LinkContextPart,
    #[serde(default)]
    attributes: Attributes,
}

#[derive(Deserialize)]
struct LinkContextPart {
    trace_id: String,
    span_id: String,
}

impl Span {
    /// From its start to its end, or to when it was seen running; 0 when neither is known or it is before the start.
    pub fn duration_ns(&self) -> u64 {
        let end = self.end_unix_nano.or(self.running_unix_nano);
        end.map_or(0, |end| end.saturating_sub(self.start_unix_nano))
    }

    /// Whether it was running when it was looked at.
    pub fn is_running(&self) -> bool {
        self.end_unix_nano.is_none() && self.running_unix_nano.is_some()
    }

    /// What the status says beyond its code.
    pub fn status_description(&self) -> Option<String> {
        let text = self.text();
        part::<StatusPart>(parts(&text).status)?.description
    }

    /// Its attributes.
    pub fn attributes(&self) -> Attributes {
        let text = self.text();
        part(parts(&text).attributes).unwrap_or_default()
    }

    /// One attribute.
    pub fn attribute(&self, key: &str) -> Option<Value> {
        let attributes = self.attributes();
        attributes.get(key).cloned()
    }

    /// Its events, in order.
    pub fn events(&self) -> Vec<SpanEvent> {
        let text = self.text();
        let events: Vec<EventPart> = part(parts(&text).events).unwrap_or_default();
        let event = |event: EventPart| SpanEvent {
            name: event.name,
            time_unix_nano: event.timestamp.as_deref().and_then(time::parse),
            attributes: event.attributes,
        };
        events.into_iter().map(event).collect()
    }

    /// Its links, in order. Those without valid ids are left out.
    pub fn links(&self) -> Vec<SpanLink> {
        let text = self.text();
        let links: Vec<LinkPart> = part(parts(&text).links).unwrap_or_default();
        let link = |link: LinkPart| {
            let (trace_id, span_id) = (link.context.trace_id.parse().ok()?, link.context.span_id.parse().ok()?);
            Some(SpanLink { trace_id, span_id, attributes: link.attributes })
        };
        links.into_iter().filter_map(link).collect()
    }

    /// The attributes of the resource: what the process that made the span says about itself.
    pub fn resource(&self) -> Attributes {
        let text = self.text();
        let raw = parts(&text).resource;
        // SDK 1.1 had no object around the attributes.
        match part::<ResourcePart>(raw) {
            Some(resource) => resource.attributes,
            None => part(raw).unwrap_or_default(),
        }
    }

    /// The process that made the span: from its resource, else from the file's name.
    pub fn pid(&self) -> Option<u32> {
        self.process().0
    }

    /// What tells the process that made the span from all others, two of one pid included.
    pub(super) fn process(&self) -> (Option<u32>, Option<String>) {
        let resource = self.resource();
        let pid = resource.get("process.pid").and_then(|pid| match pid {
            Value::Number(pid) => u32::try_from(pid.as_u64()?).ok(),
            Value::String(pid) => pid.parse().ok(),
            _ => None,
        });
        (pid.or(self.file.pid), resource.text("service.instance.id").map(Into::into))
    }

    /// The file it was read from.
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// The object as it was written. What is not UTF-8 is replaced.
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.file.bytes[self.range.clone()])
    }
}

fn parts(text: &str) -> Parts<'_> {
    serde_json::from_str(text).unwrap_or_default()
}

/// A part of another shape than expected is taken for absent: the span is shown without it, and its text is still whole.
fn part<'a, T: Deserialize<'a>>(raw: Option<&'a RawValue>) -> Option<T> {
    serde_json::from_str(raw?.get()).ok()
}
