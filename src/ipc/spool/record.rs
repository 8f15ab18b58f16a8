//! The entries of a span: how name, attributes, events and the rest are laid out in a slot.
//!
//! A record is a sequence of entries, each a tag, a length and a payload. Entries are appended as the span grows and never
//! rewritten, so a reader that stops after the last complete one has the span as it was. The same owned form, [`SpanRecord`], is what
//! tracer keeps for spans it makes without a hook.

use tracer_abi as abi;
use tracer_span_file as span_file;

const ENTRY_NAME: u8 = 1;
const ENTRY_SCOPE: u8 = 2;
const ENTRY_ATTRIBUTE: u8 = 3;
const ENTRY_EVENT: u8 = 4;
const ENTRY_LINK: u8 = 5;
const ENTRY_STATUS_DESCRIPTION: u8 = 6;
const ENTRY_TRACE_STATE: u8 = 7;
const ENTRY_SCOPE_VERSION: u8 = 8;
/// Bytes that are kept of a name that does not fit: the rest of the slot is for attributes.
const CUT_NAME: usize = 512;
/// Ends a name that was cut.
const ELLIPSIS: &str = "…";
/// The tag of an entry and its length.
const HEAD: usize = 5;

/// Appends entries to a fixed piece of memory; an entry that does not fit is left out whole.
pub(super) struct EntryWriter<'a> {
    room: &'a mut [u8],
    len: usize,
    overflow: bool,
}

impl<'a> EntryWriter<'a> {
    pub(super) fn new(room: &'a mut [u8], len: usize) -> EntryWriter<'a> {
        EntryWriter { room, len, overflow: false }
    }

    /// Complete bytes so far.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes that were appended since there were `len`.
    pub(super) fn since(&self, len: usize) -> &[u8] {
        &self.room[len..self.len]
    }

    /// Appends whole entries that were laid out before; false when they do not fit.
    #[inline]
    pub(super) fn entries(&mut self, entries: &[u8]) -> bool {
        let Some(room) = self.room.get_mut(self.len..self.len + entries.len()) else { return false };
        room.copy_from_slice(entries);
        self.len += entries.len();
        true
    }

    /// Appends one entry; false when it does not fit.
    fn entry(&mut self, tag: u8, payload: impl FnOnce(&mut Self)) -> bool {
        let start = self.len;
        self.put(&[tag, 0, 0, 0, 0]);
        payload(self);
        if std::mem::take(&mut self.overflow) {
            self.len = start;
            return false;
        }
        let length = (self.len - start - HEAD) as u32;
        self.room[start + 1..start + HEAD].copy_from_slice(&length.to_le_bytes());
        true
    }

    /// Appends one entry whose length is known, as that of nearly all is, but for its payload, whose room is the result: there is room for
    /// the whole of it, or for nothing.
    #[inline]
    fn room_of_entry(&mut self, tag: u8, len: usize) -> Option<&mut [u8]> {
        let room = self.room.get_mut(self.len..self.len + HEAD + len)?;
        self.len += HEAD + len;
        let (head, payload) = room.split_first_chunk_mut::<HEAD>()?;
        let [a, b, c, d] = (len as u32).to_le_bytes();
        *head = [tag, a, b, c, d];
        Some(payload)
    }

    #[inline]
    fn text(&mut self, tag: u8, text: &[u8]) -> bool {
        let room = self.room_of_entry(tag, text.len());
        room.map(|room| copy_short(room, text)).is_some()
    }

    /// Appends a name. One that does not fit keeps its beginning.
    #[inline]
    pub(super) fn name(&mut self, name: &[u8]) -> bool {
        self.text(ENTRY_NAME, name) || self.cut_name(name)
    }

    /// Appends the beginning of a name that does not fit, with an ellipsis. False, as for all that is cut.
    #[cold]
    fn cut_name(&mut self, name: &[u8]) -> bool {
        let room = self.room.len().saturating_sub(self.len + HEAD + ELLIPSIS.len()).min(CUT_NAME);
        let name = String::from_utf8_lossy(&name[..name.len().min(room + 4)]).into_owned();
        let end = (0..=room.min(name.len())).rev().find(|&end| name.is_char_boundary(end)).unwrap_or(0);
        if end > 0 {
            self.text(ENTRY_NAME, format!("{}{ELLIPSIS}", &name[..end]).as_bytes());
        }
        false
    }

    pub(super) fn scope(&mut self, name: &[u8]) -> bool {
        self.text(ENTRY_SCOPE, name)
    }

    pub(super) fn scope_version(&mut self, version: &[u8]) -> bool {
        self.text(ENTRY_SCOPE_VERSION, version)
    }

    pub(super) fn status_description(&mut self, text: &[u8]) -> bool {
        self.text(ENTRY_STATUS_DESCRIPTION, text)
    }

    pub(super) fn trace_state(&mut self, text: &[u8]) -> bool {
        self.text(ENTRY_TRACE_STATE, text)
    }

    /// # Safety
    ///
    /// What the attribute points to is readable.
    #[inline]
    pub(super) unsafe fn attribute(&mut self, attribute: &abi::KeyValue) -> bool {
        let value = &attribute.value;
        // SAFETY: promised by the caller; each union member is read by its tag.
        unsafe {
            let key = attribute.key.as_bytes();
            match value.tag {
                abi::VALUE_I64 => {
                    let Some(room) = self.room_of_value(key, value.tag, 8) else { return false };
                    room.copy_from_slice(&value.as_.i64_.to_le_bytes());
                    true
                }
                abi::VALUE_STR => {
                    let text = value.as_.str_.as_bytes();
                    let Some(room) = self.room_of_value(key, value.tag, 4 + text.len()) else { return false };
                    let Some((room_of_len, room)) = room.split_first_chunk_mut() else { return false };
                    *room_of_len = (text.len() as u32).to_le_bytes();
                    copy_short(room, text);
                    true
                }
                _ => self.entry(ENTRY_ATTRIBUTE, |writer| writer.put_attribute(attribute)),
            }
        }
    }

    /// Makes room as [`room_of_entry`](Self::room_of_entry) does, for the value of an attribute.
    #[inline]
    fn room_of_value(&mut self, key: &[u8], value_tag: u32, value_len: usize) -> Option<&mut [u8]> {
        let room = self.room_of_entry(ENTRY_ATTRIBUTE, 4 + key.len() + 1 + value_len)?;
        let (room_of_len, room) = room.split_first_chunk_mut()?;
        *room_of_len = (key.len() as u32).to_le_bytes();
        let (room_of_key, room) = room.split_at_mut(key.len());
        copy_short(room_of_key, key);
        let (tag, room) = room.split_first_mut()?;
        *tag = value_tag as u8;
        Some(room)
    }

    /// # Safety
    ///
    /// What the event points to is readable.
    pub(super) unsafe fn event(&mut self, event: &abi::Event, now: u64) -> bool {
        self.entry(ENTRY_EVENT, |writer| {
            let time = if event.time_unix_nano == 0 { now } else { event.time_unix_nano };
            writer.put(&time.to_le_bytes());
            // SAFETY: promised by the caller.
            unsafe {
                writer.put_sized(event.name.as_bytes());
                writer.put_attributes(event.attributes, event.attribute_count);
            }
        })
    }

    /// # Safety
    ///
    /// What the link points to is readable.
    pub(super) unsafe fn link(&mut self, link: &abi::Link) -> bool {
        self.entry(ENTRY_LINK, |writer| {
            writer.put(&link.context.trace_id);
            writer.put(&link.context.span_id);
            writer.put(&[link.context.trace_flags, link.context.is_remote]);
            // SAFETY: promised by the caller.
            unsafe {
                writer.put_sized(link.context.trace_state.as_bytes());
                writer.put_attributes(link.attributes, link.attribute_count);
            }
        })
    }

    unsafe fn put_attributes(&mut self, attributes: *const abi::KeyValue, count: usize) {
        // SAFETY: promised by the caller of the public functions.
        for attribute in unsafe { slice(attributes, count) } {
            // SAFETY: as above.
            unsafe { self.put_attribute(attribute) };
        }
    }

    unsafe fn put_attribute(&mut self, attribute: &abi::KeyValue) {
        // SAFETY: promised by the caller of the public functions; each union member is read by its tag.
        unsafe {
            self.put_sized(attribute.key.as_bytes());
            let value = &attribute.value;
            self.put(&[value.tag as u8]);
            match value.tag {
                abi::VALUE_BOOL => self.put(&[value.as_.bool_]),
                abi::VALUE_I64 => self.put(&value.as_.i64_.to_le_bytes()),
                abi::VALUE_F64 => self.put(&value.as_.f64_.to_le_bytes()),
                abi::VALUE_STR => self.put_sized(value.as_.str_.as_bytes()),
                abi::VALUE_BOOL_ARRAY => self.put_array(value.as_.array, |writer, item: &u8| writer.put(&[*item])),
                abi::VALUE_I64_ARRAY => {
                    self.put_array(value.as_.array, |writer, item: &i64| writer.put(&item.to_le_bytes()));
                }
                abi::VALUE_F64_ARRAY => {
                    self.put_array(value.as_.array, |writer, item: &f64| writer.put(&item.to_le_bytes()));
                }
                abi::VALUE_STR_ARRAY => {
                    self.put_array(value.as_.array, |writer, item: &abi::Str| writer.put_sized(item.as_bytes()));
                }
                _ => {}
            }
        }
    }

    unsafe fn put_array<T>(&mut self, array: abi::Array, mut put: impl FnMut(&mut Self, &T)) {
        self.put(&(array.count as u32).to_le_bytes());
        // SAFETY: promised by the caller of the public functions.
        for item in unsafe { slice(array.ptr.cast::<T>(), array.count) } {
            put(self, item);
        }
    }

    fn put_sized(&mut self, bytes: &[u8]) {
        self.put(&(bytes.len() as u32).to_le_bytes());
        self.put(bytes);
    }

    fn put(&mut self, bytes: &[u8]) {
        match self.room.get_mut(self.len..self.len + bytes.len()) {
            Some(room) if !self.overflow => {
                room.copy_from_slice(bytes);
                self.len += bytes.len();
            }
            _ => self.overflow = true,
        }
    }
}

/// Copies bytes to a room of the same length. Keys, names and most values are so short that two moves, which may overlap, cost less than
/// the call of a function that copies any length.
#[inline]
fn copy_short(room: &mut [u8], bytes: &[u8]) {
    #[inline]
    fn by_ends<const N: usize>(room: &mut [u8], bytes: &[u8]) {
        if let (Some(first), Some(last)) = (bytes.first_chunk::<N>(), bytes.last_chunk::<N>()) {
            if let Some(room) = room.first_chunk_mut() {
                *room = *first;
            }
            if let Some(room) = room.last_chunk_mut() {
                *room = *last;
            }
        }
    }
    match bytes.len() {
        4..=7 => by_ends::<4>(room, bytes),
        8..=15 => by_ends::<8>(room, bytes),
        16..=32 => by_ends::<16>(room, bytes),
        _ => room.copy_from_slice(bytes),
    }
}

/// Returns the whole entries of a record, one after another, each with its head.
pub(super) fn entries_of(mut entries: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (&[_, a, b, c, d], _) = entries.split_first_chunk::<HEAD>()?;
        let (entry, rest) = entries.split_at_checked(HEAD + u32::from_le_bytes([a, b, c, d]) as usize)?;
        entries = rest;
        Some(entry)
    })
}

/// An entry of a log record, borrowed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Field<'a> {
    Name(&'a [u8]),
    Scope(&'a [u8]),
    StatusDescription(&'a [u8]),
    /// Its payload.
    Attribute(&'a [u8]),
    Other,
}

/// Returns what a whole entry holds.
pub(super) fn field_of(entry: &[u8]) -> Option<Field<'_>> {
    let (head, payload) = entry.split_first_chunk::<HEAD>()?;
    Some(match head[0] {
        ENTRY_NAME => Field::Name(payload),
        ENTRY_SCOPE => Field::Scope(payload),
        ENTRY_STATUS_DESCRIPTION => Field::StatusDescription(payload),
        ENTRY_ATTRIBUTE => Field::Attribute(payload),
        _ => Field::Other,
    })
}

/// Appends the attribute of an entry as OTLP's `KeyValue` in JSON. None for one that is not whole, of which a part may have been appended.
pub(super) fn write_attribute_json(line: &mut Vec<u8>, payload: &[u8]) -> Option<()> {
    let mut reader = EntryReader { rest: payload };
    let length = reader.u32()? as usize;
    let key = reader.take(length)?;
    line.extend_from_slice(br#"{"key":"#);
    span_file::json::write_byte_string(line, key);
    line.extend_from_slice(br#","value":"#);
    match u32::from(*reader.rest.first()?) {
        abi::VALUE_I64 => {
            reader.u8()?;
            line.extend_from_slice(br#"{"intValue":""#);
            span_file::json::write_i64(line, i64::from_le_bytes(reader.array()?));
            line.extend_from_slice(br#""}"#);
        }
        abi::VALUE_STR => {
            reader.u8()?;
            let length = reader.u32()? as usize;
            line.extend_from_slice(br#"{"stringValue":"#);
            span_file::json::write_byte_string(line, reader.take(length)?);
            line.push(b'}');
        }
        _ => super::logs::write_value(line, &reader.value()?),
    }
    line.push(b'}');
    Some(())
}

/// # Safety
///
/// `ptr` and `count` describe readable memory, or `count` is 0.
pub unsafe fn slice<'a, T>(ptr: *const T, count: usize) -> &'a [T] {
    if count == 0 || ptr.is_null() {
        return &[];
    }
    // SAFETY: promised by the caller.
    unsafe { std::slice::from_raw_parts(ptr, count) }
}

/// A span in its owned form.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpanRecord {
    /// Its name, the last that was given.
    pub name: String,
    /// The name of its instrumentation scope. The span file has no place for it.
    pub scope: String,
    /// The version of its instrumentation scope; empty for none. The span file has no place for it either.
    pub scope_version: String,
    /// The trace that it belongs to.
    pub trace_id: [u8; 16],
    /// Its own id.
    pub span_id: [u8; 8],
    /// The span that it is a child of; none for a root.
    pub parent_span_id: Option<[u8; 8]>,
    /// True if the parent is in another process.
    pub is_parent_remote: bool,
    /// The W3C trace flags.
    pub trace_flags: u8,
    /// The W3C `tracestate`; empty for none.
    pub trace_state: String,
    /// One of `tracer_abi::SPAN_KIND_*`.
    pub kind: u32,
    /// Time of its start, in nanoseconds since the Unix epoch.
    pub start_time_unix_nano: u64,
    /// Time of its end, in nanoseconds since the Unix epoch; 0 while it has not ended.
    pub end_time_unix_nano: u64,
    /// One of `tracer_abi::SPAN_STATUS_*`.
    pub status: u32,
    /// Description of its status when that is ERROR; empty for any other status.
    pub status_description: String,
    /// Its attributes in the order in which their keys were first set. A key is there once.
    pub attributes: Vec<(String, OwnedValue)>,
    /// Its span events in the order in which they were added.
    pub events: Vec<EventRecord>,
    /// Its links in the order in which they were added.
    pub links: Vec<LinkRecord>,
}

/// A span event in its owned form.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventRecord {
    /// Its name.
    pub name: String,
    /// Time of the event, in nanoseconds since the Unix epoch.
    pub time_unix_nano: u64,
    /// Its attributes.
    pub attributes: Vec<(String, OwnedValue)>,
}

/// A link in its owned form.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkRecord {
    /// The trace of the span that is linked to.
    pub trace_id: [u8; 16],
    /// Span id of the linked span.
    pub span_id: [u8; 8],
    /// W3C trace flags of the linked span.
    pub trace_flags: u8,
    /// True if that span is in another process.
    pub is_remote: bool,
    /// W3C `tracestate` of the linked span; empty for none.
    pub trace_state: String,
    /// The attributes of the link itself.
    pub attributes: Vec<(String, OwnedValue)>,
}

/// An attribute's value in its owned form.
#[derive(Clone, Debug, PartialEq)]
pub enum OwnedValue {
    /// A truth value.
    Bool(bool),
    /// A signed integer, the only kind of integer that OpenTelemetry has.
    I64(i64),
    /// A floating-point number, which may be no number or infinite.
    F64(f64),
    /// A text.
    Str(String),
    /// Truth values.
    BoolArray(Vec<bool>),
    /// Signed integers.
    I64Array(Vec<i64>),
    /// Floating-point numbers.
    F64Array(Vec<f64>),
    /// Texts.
    StrArray(Vec<String>),
}

impl From<&str> for OwnedValue {
    fn from(value: &str) -> OwnedValue {
        OwnedValue::Str(value.into())
    }
}

impl From<bool> for OwnedValue {
    fn from(value: bool) -> OwnedValue {
        OwnedValue::Bool(value)
    }
}

impl From<i64> for OwnedValue {
    fn from(value: i64) -> OwnedValue {
        OwnedValue::I64(value)
    }
}

impl SpanRecord {
    /// Takes in the entries of a record, up to the first that is not whole.
    pub(super) fn read_entries(&mut self, entries: &[u8]) {
        let mut reader = EntryReader { rest: entries };
        while let Some(()) = reader.entry(self) {}
    }

    /// Sets an attribute; the last value of a key wins.
    pub fn set_attribute(&mut self, key: &str, value: OwnedValue) {
        set_attribute(&mut self.attributes, key, value);
    }

    /// Appends the span's line to `buffer`.
    pub fn write_line(&self, buffer: &mut Vec<u8>, resource: &span_file::ResourceJson) {
        let events: Vec<_> = self
            .events
            .iter()
            .map(|event| span_file::Event {
                name: &event.name,
                time_unix_nano: event.time_unix_nano,
                attributes: Owned(&event.attributes),
            })
            .collect();
        let links: Vec<_> = self
            .links
            .iter()
            .map(|link| span_file::Link {
                trace_id: link.trace_id,
                span_id: link.span_id,
                trace_state: &link.trace_state,
                attributes: Owned(&link.attributes),
            })
            .collect();
        let span = span_file::Span {
            name: &self.name,
            trace_id: self.trace_id,
            span_id: self.span_id,
            trace_state: &self.trace_state,
            kind: span_file::SpanKind::from_code(self.kind),
            parent_span_id: self.parent_span_id,
            start_time_unix_nano: self.start_time_unix_nano,
            end_time_unix_nano: self.end_time_unix_nano,
            status: match self.status {
                abi::SPAN_STATUS_OK => span_file::Status::Ok,
                abi::SPAN_STATUS_ERROR => span_file::Status::Error { description: &self.status_description },
                _ => span_file::Status::Unset,
            },
            attributes: Owned(&self.attributes),
            events: &events,
            links: &links,
        };
        span_file::write_line(buffer, &span, resource);
    }
}

fn set_attribute(attributes: &mut Vec<(String, OwnedValue)>, key: &str, value: OwnedValue) {
    match attributes.iter_mut().find(|(known, _)| known == key) {
        Some((_, old)) => *old = value,
        None => attributes.push((key.into(), value)),
    }
}

/// Renders a resource for the span file.
pub fn resource_json(attributes: &[(String, OwnedValue)]) -> span_file::ResourceJson {
    span_file::ResourceJson::new(Owned(attributes), "")
}

/// Attributes as the span file takes them.
#[derive(Clone, Copy, Debug)]
struct Owned<'a>(&'a [(String, OwnedValue)]);

impl span_file::Attributes for Owned<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn key(&self, index: usize) -> &str {
        &self.0[index].0
    }

    fn with_value(&self, index: usize, read: impl FnOnce(span_file::Value<'_>)) {
        match &self.0[index].1 {
            OwnedValue::Bool(value) => read(span_file::Value::Bool(*value)),
            OwnedValue::I64(value) => read(span_file::Value::I64(*value)),
            OwnedValue::F64(value) => read(span_file::Value::F64(*value)),
            OwnedValue::Str(value) => read(span_file::Value::Str(value)),
            OwnedValue::BoolArray(values) => read(span_file::Value::BoolArray(values)),
            OwnedValue::I64Array(values) => read(span_file::Value::I64Array(values)),
            OwnedValue::F64Array(values) => read(span_file::Value::F64Array(values)),
            OwnedValue::StrArray(values) => {
                let values: Vec<&str> = values.iter().map(String::as_str).collect();
                read(span_file::Value::StrArray(&values));
            }
        }
    }
}

/// Copies an attribute that came over the ABI; none for a value of an unknown kind.
///
/// # Safety
///
/// What the attribute points to is readable.
pub unsafe fn own_attribute(attribute: &abi::KeyValue) -> Option<(String, OwnedValue)> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    // SAFETY: promised by the caller; each union member is read by its tag.
    unsafe {
        let value = &attribute.value;
        let owned = match value.tag {
            abi::VALUE_BOOL => OwnedValue::Bool(value.as_.bool_ != 0),
            abi::VALUE_I64 => OwnedValue::I64(value.as_.i64_),
            abi::VALUE_F64 => OwnedValue::F64(value.as_.f64_),
            abi::VALUE_STR => OwnedValue::Str(text(value.as_.str_.as_bytes())),
            abi::VALUE_BOOL_ARRAY => {
                let array = value.as_.array;
                OwnedValue::BoolArray(slice(array.ptr.cast::<u8>(), array.count).iter().map(|&it| it != 0).collect())
            }
            abi::VALUE_I64_ARRAY => {
                OwnedValue::I64Array(slice(value.as_.array.ptr.cast::<i64>(), value.as_.array.count).to_vec())
            }
            abi::VALUE_F64_ARRAY => {
                OwnedValue::F64Array(slice(value.as_.array.ptr.cast::<f64>(), value.as_.array.count).to_vec())
            }
            abi::VALUE_STR_ARRAY => {
                let items = slice(value.as_.array.ptr.cast::<abi::Str>(), value.as_.array.count);
                OwnedValue::StrArray(items.iter().map(|item| text(item.as_bytes())).collect())
            }
            _ => return None,
        };
        Some((text(attribute.key.as_bytes()), owned))
    }
}

/// Reads attributes written one after another as entries.
pub(super) fn read_attributes(entries: &[u8]) -> Vec<(String, OwnedValue)> {
    let mut record = SpanRecord::default();
    record.read_entries(entries);
    record.attributes
}

/// Takes entries apart. Every step returns none at the first byte that is missing.
struct EntryReader<'a> {
    rest: &'a [u8],
}

impl<'a> EntryReader<'a> {
    fn entry(&mut self, record: &mut SpanRecord) -> Option<()> {
        let tag = self.u8()?;
        let length = self.u32()? as usize;
        let mut payload = EntryReader { rest: self.take(length)? };
        match tag {
            ENTRY_NAME => record.name = payload.remainder(),
            ENTRY_SCOPE => record.scope = payload.remainder(),
            ENTRY_SCOPE_VERSION => record.scope_version = payload.remainder(),
            ENTRY_STATUS_DESCRIPTION => record.status_description = payload.remainder(),
            ENTRY_TRACE_STATE => record.trace_state = payload.remainder(),
            ENTRY_ATTRIBUTE => {
                if let Some((key, value)) = payload.attribute() {
                    set_attribute(&mut record.attributes, &key, value);
                }
            }
            ENTRY_EVENT => {
                let time_unix_nano = payload.u64()?;
                let name = payload.text()?;
                record.events.push(EventRecord { name, time_unix_nano, attributes: payload.attributes() });
            }
            ENTRY_LINK => {
                let trace_id = payload.array()?;
                let span_id = payload.array()?;
                let [trace_flags, is_remote] = payload.array()?;
                let (is_remote, trace_state) = (is_remote != 0, payload.text()?);
                let attributes = payload.attributes();
                record.links.push(LinkRecord { trace_id, span_id, trace_flags, is_remote, trace_state, attributes });
            }
            _ => {}
        }
        Some(())
    }

    fn attributes(&mut self) -> Vec<(String, OwnedValue)> {
        let mut attributes = Vec::new();
        while let Some((key, value)) = self.attribute() {
            set_attribute(&mut attributes, &key, value);
        }
        attributes
    }

    fn attribute(&mut self) -> Option<(String, OwnedValue)> {
        let key = self.text()?;
        Some((key, self.value()?))
    }

    fn value(&mut self) -> Option<OwnedValue> {
        Some(match u32::from(self.u8()?) {
            abi::VALUE_BOOL => OwnedValue::Bool(self.u8()? != 0),
            abi::VALUE_I64 => OwnedValue::I64(i64::from_le_bytes(self.array()?)),
            abi::VALUE_F64 => OwnedValue::F64(f64::from_le_bytes(self.array()?)),
            abi::VALUE_STR => OwnedValue::Str(self.text()?),
            abi::VALUE_BOOL_ARRAY => OwnedValue::BoolArray(self.many(|reader| Some(reader.u8()? != 0))?),
            abi::VALUE_I64_ARRAY => OwnedValue::I64Array(self.many(|it| Some(i64::from_le_bytes(it.array()?)))?),
            abi::VALUE_F64_ARRAY => OwnedValue::F64Array(self.many(|it| Some(f64::from_le_bytes(it.array()?)))?),
            abi::VALUE_STR_ARRAY => OwnedValue::StrArray(self.many(Self::text)?),
            _ => return None,
        })
    }

    fn many<T>(&mut self, mut item: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.u32()?;
        // Not pre-sized: the count comes from memory that may be damaged.
        (0..count).map(|_| item(self)).collect()
    }

    fn text(&mut self) -> Option<String> {
        let length = self.u32()? as usize;
        Some(String::from_utf8_lossy(self.take(length)?).into_owned())
    }

    fn remainder(&mut self) -> String {
        String::from_utf8_lossy(std::mem::take(&mut self.rest)).into_owned()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_copy_is_whole_whatever_its_length() {
        for len in 0..100 {
            let bytes: Vec<u8> = (1..=len).collect();
            let mut room = vec![0; bytes.len() + 1];
            copy_short(&mut room[..bytes.len()], &bytes);
            assert_eq!((&room[..bytes.len()], room[bytes.len()]), (&bytes[..], 0), "and nothing beyond");
        }
    }
}
