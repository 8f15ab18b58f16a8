//! One span as it was read: what a list needs at once, the rest when it is asked for.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;
use tracer_core::names;

use super::read::{otlp, python};
use super::time;

/// The id of a trace. It prints as 32 hexadecimal digits, and is read with or without `0x`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceId(pub u128);

/// The id of a span. It prints as 16 hexadecimal digits, and is read with or without `0x`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanId(pub u64);

/// A text that is not an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {} hexadecimal digits that are not all zero", .digits)]
pub struct ParseIdError {
    digits: usize,
}

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

/// A file with spans.
pub(super) struct SpanFile {
    pub(super) path: PathBuf,
    /// From the file's name.
    pub(super) pid: Option<u32>,
    pub(super) bytes: Bytes,
}

/// Place of the bytes of a file.
pub(super) enum Bytes {
    /// In memory: no file has them.
    Here(Vec<u8>),
    /// In the file of this device and inode, which may have another name by now.
    Stored(u64, u64),
}

/// A part of a file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Part {
    pub(super) offset: u64,
    pub(super) len: u32,
}

impl SpanFile {
    /// Returns a file that is stored, of which parts are read when they are asked for.
    pub(super) fn stored(path: &Path, pid: Option<u32>, metadata: &Metadata) -> SpanFile {
        SpanFile { path: path.into(), pid, bytes: Bytes::Stored(metadata.dev(), metadata.ino()) }
    }

    /// Reads a part. Of a file that is gone it is empty.
    fn read(&self, part: Part) -> Cow<'_, [u8]> {
        let len = part.len as usize;
        match &self.bytes {
            Bytes::Here(bytes) => {
                let part = usize::try_from(part.offset).ok().and_then(|start| bytes.get(start..start + len));
                part.unwrap_or_default().into()
            }
            Bytes::Stored(dev, ino) => {
                let mut bytes = vec![0; len];
                let read = self.open((*dev, *ino)).and_then(|file| file.read_exact_at(&mut bytes, part.offset).ok());
                if read.is_some() { bytes.into() } else { Cow::default() }
            }
        }
    }

    /// Opens the file, also if it was rotated since it was read.
    fn open(&self, identity: (u64, u64)) -> Option<File> {
        let is_it = |metadata: Metadata| (metadata.dev(), metadata.ino()) == identity;
        if let Some(file) = File::open(&self.path).ok().filter(|file| file.metadata().is_ok_and(is_it)) {
            return Some(file);
        }
        let beside = fs::read_dir(self.path.parent()?).ok()?.flatten();
        let renamed = beside.map(|entry| entry.path()).find(|path| path.metadata().is_ok_and(is_it))?;
        File::open(renamed).ok()
    }
}

impl fmt::Debug for SpanFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SpanFile").field(&self.path).finish()
    }
}

/// A process: its pid and the id of its instance.
pub(super) type Process = (Option<u32>, Option<String>);

/// Source of spans: a file, and what its resource says.
#[derive(Debug)]
pub(super) struct Maker {
    pub(super) file: Arc<SpanFile>,
    /// True for OTLP, false for the format of the Python console exporter.
    pub(super) is_otlp: bool,
    /// The object `resource`, empty for none; in the other format, a span with the resource.
    pub(super) resource: Part,
    /// The text `schemaUrl` of the resource in OTLP, with its quotes; empty for none.
    pub(super) schema_url: Part,
    /// Context of the attempt of a command, if the resource names it.
    pub(super) stem: Option<(TraceId, SpanId)>,
    /// The process, and the name of its service, once somebody has asked.
    pub(super) process: OnceLock<(Process, String)>,
}

impl Maker {
    pub(super) fn new(file: Arc<SpanFile>) -> Maker {
        Maker {
            file,
            is_otlp: false,
            resource: Part::default(),
            schema_url: Part::default(),
            stem: None,
            process: OnceLock::new(),
        }
    }
}

/// Part that many spans of a trace have in common, and parts that few have at all.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(super) maker: Arc<Maker>,
    pub(super) trace_id: TraceId,
    pub(super) name: Arc<str>,
    pub(super) running_unix_nano: Option<u64>,
    pub(super) clock_shift_ns: i64,
    /// Id and parent as they were written, where they are others here; see [`shared_ids`](super::shared_ids).
    pub(super) written: Option<(SpanId, Option<SpanId>)>,
}

impl Origin {
    pub(super) fn new(maker: Arc<Maker>, trace_id: TraceId, name: Arc<str>) -> Origin {
        Origin { maker, trace_id, name, running_unix_nano: None, clock_shift_ns: 0, written: None }
    }
}

/// Origins that take the place of others, so that spans which had one in common still have.
#[derive(Debug, Default)]
pub(super) struct Replaced(HashMap<(usize, i64), (Arc<Origin>, Arc<Origin>)>);

/// A span that has ended, or is running: what a list needs at once. Attributes, events, links and resource are read from its file at each call, because
/// most spans are never asked for them.
#[derive(Clone, Debug)]
pub struct Span {
    /// Its id, unique in its trace.
    pub span_id: SpanId,
    /// 0 for none.
    parent_id: u64,
    /// Time of its start.
    pub start_unix_nano: u64,
    /// The greatest number for none.
    end_unix_nano: u64,
    origin: Arc<Origin>,
    /// Place of its object in the file.
    offset: u64,
    len: u32,
    /// Its kind.
    pub kind: Kind,
    /// Its status.
    pub status: Status,
    marks: u8,
}

/// The span says that its parent is of its own process.
pub(super) const HAS_LOCAL_PARENT: u8 = 1;
/// The span has the name of an offset of a clock in it, in whatever place.
const HAS_CLOCK: u8 = 2;
/// The span has the name of the mark of those that stand in for others in it, in whatever place.
const MAY_STAND_IN: u8 = 4;

/// A span that is being read.
pub(super) struct Found<'a> {
    pub(super) span_id: SpanId,
    pub(super) parent_id: Option<SpanId>,
    pub(super) kind: Kind,
    pub(super) status: Status,
    pub(super) start_unix_nano: u64,
    pub(super) end_unix_nano: Option<u64>,
    pub(super) marks: u8,
    pub(super) origin: Arc<Origin>,
    pub(super) offset: u64,
    /// The object.
    pub(super) text: &'a [u8],
}

impl From<Found<'_>> for Span {
    fn from(found: Found<'_>) -> Span {
        let mentions = |name: &str| memchr::memmem::find(found.text, name.as_bytes()).is_some();
        let mut marks = found.marks;
        // Only spans of attempts are asked for these.
        if found.kind == Kind::Consumer {
            marks |= if mentions(names::CLOCK_OFFSET_NS) { HAS_CLOCK } else { 0 };
            marks |= if mentions(names::STAND_IN) { MAY_STAND_IN } else { 0 };
        }
        let mut span = Span {
            span_id: found.span_id,
            parent_id: 0,
            start_unix_nano: found.start_unix_nano,
            end_unix_nano: 0,
            origin: found.origin,
            offset: found.offset,
            len: found.text.len() as u32,
            kind: found.kind,
            status: found.status,
            marks,
        };
        span.set_parent_id(found.parent_id);
        span.set_end_unix_nano(found.end_unix_nano);
        span
    }
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
    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.origin.name
    }

    /// Returns the trace that it belongs to.
    pub fn trace_id(&self) -> TraceId {
        self.origin.trace_id
    }

    /// Returns the id of its parent, which need not be in the same folder.
    pub fn parent_id(&self) -> Option<SpanId> {
        Some(SpanId(self.parent_id)).filter(|id| id.0 != 0)
    }

    pub(super) fn set_parent_id(&mut self, parent_id: Option<SpanId>) {
        self.parent_id = parent_id.map_or(0, |id| id.0);
    }

    /// Returns the time of its end; none when the writer did not say, or it has not ended.
    pub fn end_unix_nano(&self) -> Option<u64> {
        Some(self.end_unix_nano).filter(|end| *end != u64::MAX)
    }

    #[cfg(test)]
    pub(super) fn run(&mut self, running_unix_nano: u64) {
        self.set_end_unix_nano(None);
        Arc::make_mut(&mut self.origin).running_unix_nano = Some(running_unix_nano);
    }

    fn set_end_unix_nano(&mut self, end_unix_nano: Option<u64>) {
        self.end_unix_nano = end_unix_nano.map_or(u64::MAX, |end| end.min(u64::MAX - 1));
    }

    /// Returns the time at which it was seen running; none for a span that was read from a file.
    pub fn running_unix_nano(&self) -> Option<u64> {
        self.origin.running_unix_nano
    }

    /// Returns the time by which start and end are later than they are stored, in nanoseconds; see
    /// [`Trace::on_one_clock`](super::Trace::on_one_clock).
    pub fn clock_shift_ns(&self) -> i64 {
        self.origin.clock_shift_ns
    }

    /// Moves the span in time.
    pub(super) fn shift(&mut self, shift_ns: i64, replaced: &mut Replaced) {
        let by_ns = shift_ns.saturating_sub(self.clock_shift_ns());
        if by_ns == 0 {
            return;
        }
        self.start_unix_nano = self.start_unix_nano.saturating_add_signed(by_ns);
        self.set_end_unix_nano(self.end_unix_nano().map(|end| end.saturating_add_signed(by_ns)));
        self.replace_origin(replaced, shift_ns, |origin| {
            origin.clock_shift_ns = shift_ns;
            origin.running_unix_nano = origin.running_unix_nano.map(|at| at.saturating_add_signed(by_ns));
        });
    }

    /// Makes the span one of another trace, in which it has this parent if it had none.
    pub(super) fn join(&mut self, (trace_id, parent_id): (TraceId, SpanId), replaced: &mut Replaced) {
        if self.parent_id == 0 {
            self.parent_id = parent_id.0;
        }
        self.replace_origin(replaced, 0, |origin| origin.trace_id = trace_id);
    }

    /// Changes the origin. What `key` is the same for is changed in the same way.
    fn replace_origin(&mut self, replaced: &mut Replaced, key: i64, change: impl FnOnce(&mut Origin)) {
        // The old one is kept, so that no other gets its address.
        let (_, new) = replaced.0.entry((Arc::as_ptr(&self.origin).addr(), key)).or_insert_with(|| {
            let mut new = Origin::clone(&self.origin);
            change(&mut new);
            (Arc::clone(&self.origin), Arc::new(new))
        });
        self.origin = Arc::clone(new);
    }

    /// Gives the span another id and parent than it was written with.
    pub(super) fn rewrite(&mut self, span_id: SpanId, parent_id: Option<SpanId>) {
        Arc::make_mut(&mut self.origin).written = Some((self.span_id, self.parent_id()));
        self.span_id = span_id;
        self.set_parent_id(parent_id);
    }

    /// Gives the span back the id and the parent that it was written with.
    pub(super) fn restore(&mut self) {
        if let Some((span_id, parent_id)) = self.origin.written {
            Arc::make_mut(&mut self.origin).written = None;
            self.span_id = span_id;
            self.set_parent_id(parent_id);
        }
    }

    /// Returns whether it has another id or parent than it was written with.
    pub(super) fn is_rewritten(&self) -> bool {
        self.origin.written.is_some()
    }

    /// From its start to its end, or to when it was seen running; 0 when neither is known or it is before the start.
    pub fn duration_ns(&self) -> u64 {
        let end = self.end_unix_nano().or(self.running_unix_nano());
        end.map_or(0, |end| end.saturating_sub(self.start_unix_nano))
    }

    /// Returns whether it was running when it was looked at.
    pub fn is_running(&self) -> bool {
        self.end_unix_nano().is_none() && self.running_unix_nano().is_some()
    }

    /// Returns whether another span has the id with which it was written.
    pub(super) fn is_separated(&self) -> bool {
        self.origin.written.is_some_and(|(span_id, _)| span_id != self.span_id)
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

    /// Returns whether the span may say how far its clock was off.
    pub(super) fn has_clock(&self) -> bool {
        self.marks & HAS_CLOCK != 0
    }

    /// Returns whether the span may stand in for another one; see [`stand_ins`](super::stand_ins).
    pub(super) fn may_stand_in(&self) -> bool {
        self.marks & MAY_STAND_IN != 0
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
        let text = self.read(self.origin.maker.resource);
        if self.origin.maker.is_otlp {
            return otlp::resource(&text);
        }
        let text = console_text(text);
        resource(parts(&text).resource.map_or("", RawValue::get)).0
    }

    /// Returns the process that made the span: from its resource, else from the file's name.
    pub fn pid(&self) -> Option<u32> {
        self.process().0
    }

    /// Returns the process as [`Span::pid`] does, and the name of its service.
    pub fn pid_and_service(&self) -> (Option<u32>, String) {
        let (process, service) = self.maker();
        (process.0, service.clone())
    }

    /// Identity of the process that made the span, which no other has, not even one of the same pid.
    pub(super) fn process(&self) -> &Process {
        &self.maker().0
    }

    fn maker(&self) -> &(Process, String) {
        self.origin.maker.process.get_or_init(|| {
            let resource = self.resource();
            let service = resource.text("service.name").unwrap_or_default().to_owned();
            (process(&resource, self.origin.maker.file.pid), service)
        })
    }

    /// Returns the process that the file is named by.
    pub(super) fn pid_of_file(&self) -> Option<u32> {
        self.origin.maker.file.pid
    }

    /// Returns the context of the attempt of the command that made the span, if its resource names it.
    pub(super) fn stem(&self) -> Option<(TraceId, SpanId)> {
        self.origin.maker.stem
    }

    /// Returns whether the span says that its parent is of its own process.
    pub(super) fn has_local_parent(&self) -> bool {
        self.marks & HAS_LOCAL_PARENT != 0
    }

    /// Returns the file it was read from.
    pub fn path(&self) -> &Path {
        &self.origin.maker.file.path
    }

    /// Returns the object on one line, without spaces between its parts.
    pub fn compact_text(&self) -> String {
        let text = self.text();
        let compact = || serde_json::to_string(&serde_json::from_str::<Value>(&text)?);
        // It was parsed when it was read.
        compact().unwrap_or_else(|_: serde_json::Error| text.replace('\n', " "))
    }

    /// Returns the object as it was written, or, of a span in OTLP, what the other format has for it. What is not UTF-8 is replaced, and floats that
    /// are no JSON are strings. Of a span whose file is gone it is empty.
    pub fn text(&self) -> Cow<'_, str> {
        let object = self.read(Part { offset: self.offset, len: self.len });
        if !self.origin.maker.is_otlp {
            let text = console_text(object);
            return if text.is_empty() { "{}".into() } else { text };
        }
        otlp::text(self, &object, &self.read(self.origin.maker.resource), &self.read(self.origin.maker.schema_url))
            .into()
    }

    fn read(&self, part: Part) -> Cow<'_, [u8]> {
        if part.len == 0 { Cow::default() } else { self.origin.maker.file.read(part) }
    }
}

/// Returns what was read in the format of the Python console exporter as text.
fn console_text(bytes: Cow<'_, [u8]>) -> Cow<'_, str> {
    python::as_strings(match bytes {
        Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes),
        Cow::Owned(bytes) => String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
            .into(),
    })
}

fn parts(text: &str) -> Parts<'_> {
    serde_json::from_str(text).unwrap_or_default()
}

/// Parses a part; one of another shape than expected is taken for absent: the span is shown without it, and its text is still whole.
fn part<'a, T: Deserialize<'a>>(raw: Option<&'a RawValue>) -> Option<T> {
    serde_json::from_str(raw?.get()).ok()
}

/// Identity of a process, by the resource of its spans or else by its file.
pub(super) fn process(resource: &Attributes, pid_of_file: Option<u32>) -> Process {
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
