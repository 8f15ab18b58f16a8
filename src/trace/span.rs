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

use super::read::otlp::OtlpPlace;
use super::read::python;
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

/// Role of a span in the life of a task.
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

/// Status of a span.
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
    /// Its kind.
    pub kind: Kind,
    /// Time of its start.
    pub start_unix_nano: u64,
    /// Time of its end; `None` when the writer did not say, or it has not ended.
    pub end_unix_nano: Option<u64>,
    /// Time at which it was seen running; `None` for a span that was read from a file.
    pub running_unix_nano: Option<u64>,
    /// Time by which these three are later than they are stored, in nanoseconds; see [`Trace::on_one_clock`](super::Trace::on_one_clock).
    pub clock_shift_ns: i64,
    /// Its status.
    pub status: Status,
    /// Id and parent as they were written, where they are others here; see [`shared_ids`](super::shared_ids).
    pub(super) written: Option<Box<(SpanId, Option<SpanId>)>>,
    pub(super) file: Arc<SpanFile>,
    pub(super) place: SpanLocation,
}

/// Location of a span in a file's bytes.
#[derive(Clone, Debug)]
pub(super) enum SpanLocation {
    /// The object, in the format of the Python console exporter.
    Console(Range<usize>),
    /// The parts of an OTLP object.
    Otlp(OtlpPlace),
}

/// Attributes in the order in which they were written. Of several with the same key the last one holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attributes(pub Vec<(String, Value)>);

impl Attributes {
    /// Returns the value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().rev().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    /// Returns the value of `key` when it is a string.
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
    /// Its time; `None` when the text is not a time.
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
    /// Attributes of the reference.
    pub attributes: Attributes,
}

/// All that is parsed on demand, at once.
#[derive(Debug, Default)]
pub(super) struct Details {
    /// The W3C `tracestate`.
    pub(super) trace_state: String,
    pub(super) status_description: Option<String>,
    pub(super) attributes: Attributes,
    pub(super) events: Vec<SpanEvent>,
    /// Each with its `tracestate`.
    pub(super) links: Vec<(SpanLink, String)>,
    /// The resource as it was written; the same text for every span of a process.
    pub(super) resource: String,
}

/// The parts of a span that are parsed on demand.
#[derive(Default, Deserialize)]
struct Parts<'a> {
    #[serde(borrow, default)]
    context: Option<&'a RawValue>,
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
    #[serde(default)]
    schema_url: String,
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
    #[serde(default)]
    trace_state: String,
}

#[derive(Deserialize)]
struct TraceStatePart {
    #[serde(default)]
    trace_state: String,
}

impl Span {
    /// From its start to its end, or to when it was seen running; 0 when neither is known or it is before the start.
    pub fn duration_ns(&self) -> u64 {
        let end = self.end_unix_nano.or(self.running_unix_nano);
        end.map_or(0, |end| end.saturating_sub(self.start_unix_nano))
    }

    /// Returns whether it was running when it was looked at.
    pub fn is_running(&self) -> bool {
        self.end_unix_nano.is_none() && self.running_unix_nano.is_some()
    }

    /// Returns whether another span has the id with which it was written.
    pub(super) fn is_separated(&self) -> bool {
        self.written.as_ref().is_some_and(|written| written.0 != self.span_id)
    }

    /// Returns the description of the status, beyond its code.
    pub fn status_description(&self) -> Option<String> {
        let text = self.text();
        part::<StatusPart>(parts(&text).status)?.description
    }

    /// Returns its attributes.
    pub fn attributes(&self) -> Attributes {
        let text = self.text();
        part(parts(&text).attributes).unwrap_or_default()
    }

    /// Returns one attribute.
    pub fn attribute(&self, key: &str) -> Option<Value> {
        let attributes = self.attributes();
        attributes.get(key).cloned()
    }

    /// Returns whether the span as it was written has this name in it, in whatever place.
    pub(super) fn mentions(&self, name: &str) -> bool {
        let (SpanLocation::Console(range) | SpanLocation::Otlp(OtlpPlace { span: range, .. })) = &self.place;
        String::from_utf8_lossy(&self.file.bytes[range.clone()]).contains(name)
    }

    /// Returns its events, in order.
    pub fn events(&self) -> Vec<SpanEvent> {
        let text = self.text();
        events(parts(&text).events)
    }

    /// Returns its links, in order. Those without valid ids are left out.
    pub fn links(&self) -> Vec<SpanLink> {
        let text = self.text();
        links(parts(&text).links).map(|(link, _)| link).collect()
    }

    /// Parses the parts that are parsed on demand.
    pub(super) fn details(&self) -> Details {
        let text = self.text();
        let parts = parts(&text);
        let context = part::<TraceStatePart>(parts.context);
        Details {
            trace_state: context.map(|context| trace_state(&context.trace_state)).unwrap_or_default(),
            status_description: part::<StatusPart>(parts.status).and_then(|status| status.description),
            attributes: part(parts.attributes).unwrap_or_default(),
            events: events(parts.events),
            links: links(parts.links).collect(),
            resource: parts.resource.map(|resource| resource.get().to_owned()).unwrap_or_default(),
        }
    }

    /// Returns the attributes of the resource: what the process that made the span says about itself.
    pub fn resource(&self) -> Attributes {
        if let SpanLocation::Otlp(place) = &self.place {
            return place.resource(&self.file.bytes);
        }
        let text = self.text();
        resource(parts(&text).resource.map_or("", RawValue::get)).0
    }

    /// Returns the process that made the span: from its resource, else from the file's name.
    pub fn pid(&self) -> Option<u32> {
        self.process().0
    }

    /// Returns the process as [`Span::pid`] does, and the name of its service, from one reading of the resource.
    pub fn pid_and_service(&self) -> (Option<u32>, String) {
        let resource = self.resource();
        let service = resource.text("service.name").unwrap_or_default().to_owned();
        (process(&resource, self.file.pid).0, service)
    }

    /// Identity of the process that made the span, which no other has, not even one of the same pid.
    pub(super) fn process(&self) -> (Option<u32>, Option<String>) {
        process(&self.resource(), self.file.pid)
    }

    /// Returns the process that the file is named by.
    pub(super) fn pid_of_file(&self) -> Option<u32> {
        self.file.pid
    }

    /// Returns the context of the attempt of the command that made the span, if its resource names it.
    pub(super) fn stem(&self) -> Option<(TraceId, SpanId)> {
        match &self.place {
            SpanLocation::Otlp(place) => place.stem,
            SpanLocation::Console(_) => None,
        }
    }

    /// Returns whether the span says that its parent is of its own process.
    pub(super) fn has_local_parent(&self) -> bool {
        matches!(&self.place, SpanLocation::Otlp(place) if place.has_local_parent)
    }

    /// Returns the file it was read from.
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// Returns the object on one line, without spaces between its parts.
    pub fn compact_text(&self) -> String {
        let text = self.text();
        let compact = || serde_json::to_string(&serde_json::from_str::<Value>(&text)?);
        // It was parsed when it was read.
        compact().unwrap_or_else(|_: serde_json::Error| text.replace('\n', " "))
    }

    /// Returns the object as it was written, or, of a span in OTLP, what the other format has for it. What is not UTF-8 is replaced, and floats that
    /// are no JSON are strings.
    pub fn text(&self) -> Cow<'_, str> {
        match &self.place {
            SpanLocation::Console(range) => {
                python::as_strings(String::from_utf8_lossy(&self.file.bytes[range.clone()]))
            }
            SpanLocation::Otlp(place) => place.text(self).into(),
        }
    }
}

fn parts(text: &str) -> Parts<'_> {
    serde_json::from_str(text).unwrap_or_default()
}

/// Parses a part; one of another shape than expected is taken for absent: the span is shown without it, and its text is still whole.
fn part<'a, T: Deserialize<'a>>(raw: Option<&'a RawValue>) -> Option<T> {
    serde_json::from_str(raw?.get()).ok()
}

/// Identity of a process, by the resource of its spans or else by its file.
pub(super) fn process(resource: &Attributes, pid_of_file: Option<u32>) -> (Option<u32>, Option<String>) {
    let pid = resource.get("process.pid").and_then(|pid| match pid {
        Value::Number(pid) => u32::try_from(pid.as_u64()?).ok(),
        Value::String(pid) => pid.parse().ok(),
        _ => None,
    });
    (pid.or(pid_of_file), resource.text("service.instance.id").map(Into::into))
}

/// Returns the attributes and the schema of a resource.
pub(super) fn resource(text: &str) -> (Attributes, String) {
    // SDK 1.1 had no object around the attributes.
    match serde_json::from_str::<ResourcePart>(text) {
        Ok(resource) => (resource.attributes, resource.schema_url),
        Err(_) => (serde_json::from_str(text).unwrap_or_default(), String::new()),
    }
}

fn events(raw: Option<&RawValue>) -> Vec<SpanEvent> {
    let events: Vec<EventPart> = part(raw).unwrap_or_default();
    let event = |event: EventPart| SpanEvent {
        name: event.name,
        time_unix_nano: event.timestamp.as_deref().and_then(time::parse),
        attributes: event.attributes,
    };
    events.into_iter().map(event).collect()
}

fn links(raw: Option<&RawValue>) -> impl Iterator<Item = (SpanLink, String)> {
    let links: Vec<LinkPart> = part(raw).unwrap_or_default();
    let link = |link: LinkPart| {
        let (trace_id, span_id) = (link.context.trace_id.parse().ok()?, link.context.span_id.parse().ok()?);
        Some((SpanLink { trace_id, span_id, attributes: link.attributes }, trace_state(&link.context.trace_state)))
    };
    links.into_iter().filter_map(link)
}

/// Reads the `tracestate` back from what Python's `str` makes of it: `['{key=a, value=1}', '{key=b, value=2}']`.
fn trace_state(text: &str) -> String {
    let mut rest = text.trim_start_matches('[');
    let mut members = Vec::new();
    while let Some(quote) = rest.chars().next().filter(|quote| matches!(quote, '\'' | '"')) {
        let (mut member, mut is_escaped, mut end) = (String::new(), false, rest.len());
        for (at, c) in rest.char_indices().skip(1) {
            match c {
                _ if is_escaped => {
                    member.push(c);
                    is_escaped = false;
                }
                '\\' => is_escaped = true,
                c if c == quote => {
                    end = at + 1;
                    break;
                }
                c => member.push(c),
            }
        }
        let member = member.strip_prefix("{key=").and_then(|member| member.strip_suffix('}'));
        members.extend(
            member.and_then(|member| member.split_once(", value=")).map(|(key, value)| format!("{key}={value}")),
        );
        rest = rest[end..].trim_start_matches([',', ' ']);
    }
    members.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_state_is_read_back_from_the_form_of_python() {
        for (text, expected) in [
            ("[]", ""),
            ("", ""),
            ("['{key=rojo, value=1}']", "rojo=1"),
            ("['{key=rojo, value=1}', '{key=congo, value=t61r}']", "rojo=1,congo=t61r"),
            (r#"["{key=a, value=it's}", '{key=b, value="x\\y"}']"#, r#"a=it's,b="x\y""#),
            ("['{key=rojo, val", ""),
            ("nonsense", ""),
        ] {
            assert_eq!(trace_state(text), expected, "{text}");
        }
    }
}
