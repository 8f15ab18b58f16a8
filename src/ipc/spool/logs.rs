//! Log records on their way to the file of a process: a mapped file beside its spool, so that no SIGKILL loses one.
//!
//! A record is appended to the [`LogBuffer`], and is out of the process's reach at once. When its spans are committed, after a moment, or when the
//! buffer is full, all of its records become one line of OTLP JSON in `<pid>.logs.jsonl`, and the buffer is empty again. Whoever finishes the story of a
//! dead process does the same with what is left in it. A process may die between the line and the emptying: the line that follows from the buffer
//! is then the last of the file already, so that it is known.
//!
//! ```text
//!   header   magic, version, bytes of complete records
//!   records  length, severity, flags, dropped attributes, time, trace id, span id, entries
//! ```
//!
//! The entries are those of a [span's record](super::record): the body as its name, the target as its scope, the severity's name as the status. The file
//! is made for the first record; a process that logs nothing has none.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, any_value};
use opentelemetry_proto::tonic::logs::v1 as proto;
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;
use tracer_abi as abi;
use tracer_span_file::json;

use super::layout::back;
use super::otlp::attributes;
use super::record::{EntryWriter, Field, OwnedValue, SpanRecord, field_of, slice};
use crate::pages::{FileExt, Pages};

const MAGIC: u64 = u64::from_le_bytes(*b"TRACERLG");
const VERSION: u32 = 1;
/// Bytes before the records.
const RECORDS_OFFSET: usize = 64;
const FILE_SIZE: usize = 512 * 1024;
/// Bytes for records.
pub const CAPACITY: usize = FILE_SIZE - RECORDS_OFFSET;
/// Bytes of a record at most. What does not fit is cut.
pub const RECORD_LIMIT: usize = 64 * 1024;
/// Bytes of a body at most; then there is room for attributes.
const BODY_LIMIT: usize = 32 * 1024;
/// Bytes of the other texts at most.
const TEXT_LIMIT: usize = 1024;
/// Fixed part of a record.
const HEAD: usize = 40;
/// Ends a text that was cut.
const ELLIPSIS: &str = "…";

#[repr(C)]
struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    unused: AtomicU32,
    /// Bytes of complete records.
    len: AtomicU64,
}

/// Returns the file with the log records of the process that a spool belongs to.
pub fn path_of(spool: &Path) -> PathBuf {
    spool.with_extension("logs")
}

/// The owner's side: takes records and gives them back, all together.
#[derive(Debug)]
pub struct LogBuffer {
    pages: Pages,
    len: usize,
}

impl LogBuffer {
    /// Makes the file beside a spool, private to the user, with all the space that it will ever need.
    pub fn create(spool: &Path) -> io::Result<LogBuffer> {
        let path = path_of(spool);
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        let made = file.set_len(FILE_SIZE as u64).and_then(|()| back(&file, 0, FILE_SIZE));
        let pages = made.and_then(|()| Pages::shared(&file, FILE_SIZE)).inspect_err(|_| {
            let _ = std::fs::remove_file(&path);
        })?;
        Ok(LogBuffer::over(pages))
    }

    /// Takes memory of this process's own, for one that has no spool: then nothing survives it.
    pub fn private() -> io::Result<LogBuffer> {
        Pages::private(FILE_SIZE).map(LogBuffer::over)
    }

    fn over(pages: Pages) -> LogBuffer {
        let buffer = LogBuffer { pages, len: 0 };
        buffer.header().version.store(VERSION, Relaxed);
        buffer.header().magic.store(MAGIC, Release);
        buffer
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping is page-aligned and larger than a header, whose fields are atomics.
        unsafe { self.pages.base().cast::<Header>().as_ref() }
    }

    /// Returns whether the next record surely has room.
    pub fn has_room(&self) -> bool {
        CAPACITY - self.len >= RECORD_LIMIT
    }

    /// Appends a record; one that is too long is cut. False if there is no room, which [`has_room`](Self::has_room) tells before.
    ///
    /// # Safety
    ///
    /// What the record points to is readable.
    pub unsafe fn append(&mut self, record: &abi::LogRecord, now_unix_nano: u64) -> bool {
        if !self.has_room() {
            return false;
        }
        // SAFETY: within the mapping, by the check above; only this process writes there, and it has this buffer for itself. Others read the
        // file once it has died.
        let room = unsafe {
            let start = self.pages.base().add(RECORDS_OFFSET + self.len);
            std::slice::from_raw_parts_mut(start.as_ptr(), RECORD_LIMIT)
        };
        // SAFETY: promised by the caller.
        self.len += unsafe { write_record(room, record, now_unix_nano) };
        self.header().len.store(self.len as u64, Release);
        true
    }

    /// Returns the records, one after another.
    pub fn records(&self) -> &[u8] {
        // SAFETY: within the mapping; nobody writes there while this is borrowed.
        unsafe { std::slice::from_raw_parts(self.pages.base().add(RECORDS_OFFSET).as_ptr(), self.len) }
    }

    /// Forgets the records: they are where they belong.
    pub fn clear(&mut self) {
        self.len = 0;
        self.header().len.store(0, Release);
    }
}

/// Writes a record, and returns its length.
///
/// # Safety
///
/// What the record points to is readable.
unsafe fn write_record(room: &mut [u8], record: &abi::LogRecord, now_unix_nano: u64) -> usize {
    // SAFETY: promised by the caller.
    let (context, body, target, severity_text, attributes) = unsafe {
        (
            record.span_context.as_ref().filter(|context| context.trace_id != [0; 16]),
            record.body.as_bytes(),
            record.target.as_bytes(),
            record.severity_text.as_bytes(),
            slice(record.attributes, record.attribute_count),
        )
    };
    let mut writer = EntryWriter::new(room, HEAD);
    cut(body, BODY_LIMIT, |body| writer.name(body));
    cut(target, TEXT_LIMIT, |target| writer.scope(target));
    if !severity_text.is_empty() {
        cut(severity_text, TEXT_LIMIT, |text| writer.status_description(text));
    }
    let mut dropped = 0_u16;
    for attribute in attributes {
        // SAFETY: promised by the caller.
        if !unsafe { writer.attribute(attribute) } {
            dropped = dropped.saturating_add(1);
        }
    }
    let len = writer.len();
    let time = if record.time_unix_nano == 0 { now_unix_nano } else { record.time_unix_nano };
    room[..4].copy_from_slice(&(len as u32).to_le_bytes());
    room[4] = record.severity.min(24) as u8;
    room[5] = context.map_or(0, |context| context.trace_flags);
    room[6..8].copy_from_slice(&dropped.to_le_bytes());
    room[8..16].copy_from_slice(&time.to_le_bytes());
    room[16..32].copy_from_slice(&context.map_or([0; 16], |context| context.trace_id));
    room[32..40].copy_from_slice(&context.map_or([0; 8], |context| context.span_id));
    len
}

/// Puts a text, or the beginning of one that is longer than the limit, with an ellipsis.
fn cut(text: &[u8], limit: usize, put: impl FnOnce(&[u8]) -> bool) {
    if text.len() <= limit {
        put(text);
        return;
    }
    let text = String::from_utf8_lossy(&text[..limit]);
    let end = (0..=limit.min(text.len()) - ELLIPSIS.len()).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    put(format!("{}{ELLIPSIS}", &text[..end]).as_bytes());
}

/// Reads the records that a process has left in its file; none if it has no such file, or one that is damaged.
pub fn left_behind(spool: &Path) -> io::Result<Vec<u8>> {
    let file = match File::open(path_of(spool)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened?,
    };
    let mut header = [0; 24];
    if let Err(error) = file.read_exact_at(&mut header, 0) {
        return if error.kind() == io::ErrorKind::UnexpectedEof { Ok(Vec::new()) } else { Err(error) };
    }
    let number = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
    let len = number(16);
    if number(0) != MAGIC || number(8) as u32 != VERSION || len > CAPACITY as u64 {
        return Ok(Vec::new());
    }
    let mut records = vec![0; len as usize];
    let mut filled = 0;
    while filled < records.len() {
        match file.read_at(&mut records[filled..], (RECORDS_OFFSET + filled) as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    records.truncate(filled);
    Ok(records)
}

/// Removes the file of a process that has died: its records are where they belong.
pub fn remove(spool: &Path) -> io::Result<()> {
    match std::fs::remove_file(path_of(spool)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// A record, as it is in the buffer. Nothing in it is believed: every length is checked.
#[derive(Clone, Copy, Debug)]
struct Record<'a> {
    severity: u8,
    flags: u8,
    dropped: u16,
    time_unix_nano: u64,
    trace_id: &'a [u8; 16],
    span_id: &'a [u8; 8],
    entries: &'a [u8],
}

impl<'a> Record<'a> {
    /// Takes the first record of `records`; none at the end, and where something else is there.
    fn take(records: &mut &'a [u8]) -> Option<Record<'a>> {
        let length = u32::from_le_bytes(*records.first_chunk()?) as usize;
        let (record, rest) = records.split_at_checked(length)?;
        let (head, entries) = record.split_first_chunk::<HEAD>()?;
        *records = rest;
        Some(Record {
            severity: head[4].min(24),
            flags: head[5],
            dropped: u16::from_le_bytes([head[6], head[7]]),
            time_unix_nano: u64::from_le_bytes(*head[8..].first_chunk()?),
            trace_id: head[16..].first_chunk()?,
            span_id: head[32..].first_chunk()?,
            entries,
        })
    }

    /// Returns the texts, of each kind the last one; empty where there is none.
    fn fields(&self) -> Fields<'a> {
        let mut fields = Fields::default();
        for field in super::record::entries_of(self.entries).filter_map(field_of) {
            match field {
                Field::Name(text) => fields.body = text,
                Field::Scope(text) => fields.target = text,
                Field::StatusDescription(text) => fields.severity_text = text,
                Field::Attribute(_) | Field::Other => {}
            }
        }
        fields
    }

    /// Returns whether it is in a span.
    fn has_span(&self) -> bool {
        *self.trace_id != [0; 16]
    }
}

/// Texts of a record.
#[derive(Clone, Copy, Debug, Default)]
struct Fields<'a> {
    body: &'a [u8],
    target: &'a [u8],
    severity_text: &'a [u8],
}

/// Names of severities in OpenTelemetry, each for four numbers from 1.
const SEVERITIES: [&[u8]; 6] = [b"TRACE", b"DEBUG", b"INFO", b"WARN", b"ERROR", b"FATAL"];

/// Returns the name of a severity: as its source has it, or else OpenTelemetry's.
fn severity_name<'a>(fields: &Fields<'a>, severity: u8) -> &'a [u8] {
    let of_otel = || severity.checked_sub(1).and_then(|at| SEVERITIES.get(usize::from(at / 4)).copied());
    if fields.severity_text.is_empty() { of_otel().unwrap_or_default() } else { fields.severity_text }
}

/// Counts the records.
pub fn count(mut records: &[u8]) -> usize {
    std::iter::from_fn(|| Record::take(&mut records)).count()
}

/// Renders the beginning of every line of a process: its resource.
pub fn line_head(resource: &[(String, OwnedValue)]) -> Vec<u8> {
    let mut head = br#"{"resourceLogs":[{"resource":{"attributes":["#.to_vec();
    for (index, (key, value)) in resource.iter().enumerate() {
        if index > 0 {
            head.push(b',');
        }
        head.extend_from_slice(br#"{"key":"#);
        json::write_string(&mut head, key);
        head.extend_from_slice(br#","value":"#);
        write_owned(&mut head, value);
        head.push(b'}');
    }
    head.extend_from_slice(br#"]},"scopeLogs":["#);
    head
}

/// Appends one line of OTLP JSON (`LogsData`) with all the records; nothing if there are none.
pub fn write_line(line: &mut Vec<u8>, head: &[u8], mut records: &[u8]) {
    let start = line.len();
    line.extend_from_slice(head);
    let mut scope: Option<&[u8]> = None;
    while let Some(record) = Record::take(&mut records) {
        let fields = record.fields();
        if scope == Some(fields.target) {
            line.push(b',');
        } else {
            if scope.is_some() {
                line.extend_from_slice(b"]},");
            }
            line.extend_from_slice(br#"{"scope":{"name":"#);
            json::write_byte_string(line, fields.target);
            line.extend_from_slice(br#"},"logRecords":["#);
            scope = Some(fields.target);
        }
        write_json(line, &record, &fields);
    }
    match scope {
        Some(_) => line.extend_from_slice(b"]}]}]}\n"),
        None => line.truncate(start),
    }
}

fn write_json(line: &mut Vec<u8>, record: &Record<'_>, fields: &Fields<'_>) {
    line.extend_from_slice(br#"{"timeUnixNano":""#);
    write_u64(line, record.time_unix_nano);
    line.push(b'"');
    if record.severity > 0 {
        line.extend_from_slice(br#","severityNumber":"#);
        json::write_i64(line, record.severity.into());
    }
    let name = severity_name(fields, record.severity);
    if !name.is_empty() {
        line.extend_from_slice(br#","severityText":"#);
        json::write_byte_string(line, name);
    }
    line.extend_from_slice(br#","body":{"stringValue":"#);
    json::write_byte_string(line, fields.body);
    line.push(b'}');
    let mut has_attributes = false;
    for field in super::record::entries_of(record.entries).filter_map(field_of) {
        let Field::Attribute(payload) = field else { continue };
        let before = line.len();
        line.extend_from_slice(if has_attributes { b"," } else { br#","attributes":["# });
        if super::record::write_attribute_json(line, payload).is_some() {
            has_attributes = true;
        } else {
            line.truncate(before);
        }
    }
    if has_attributes {
        line.push(b']');
    }
    if record.dropped > 0 {
        line.extend_from_slice(br#","droppedAttributesCount":"#);
        json::write_i64(line, record.dropped.into());
    }
    if record.has_span() {
        line.extend_from_slice(br#","flags":"#);
        json::write_i64(line, record.flags.into());
        line.extend_from_slice(br#","traceId":""#);
        json::write_hex(line, record.trace_id);
        line.extend_from_slice(br#"","spanId":""#);
        json::write_hex(line, record.span_id);
        line.push(b'"');
    }
    line.push(b'}');
}

/// Appends a number of nanoseconds. Times after 2262 are written as that, which OTLP's readers take too.
fn write_u64(line: &mut Vec<u8>, number: u64) {
    json::write_i64(line, i64::try_from(number).unwrap_or(i64::MAX));
}

/// Appends a value as OTLP's `AnyValue`.
fn write_owned(line: &mut Vec<u8>, value: &OwnedValue) {
    fn array<T>(line: &mut Vec<u8>, values: &[T], owned: impl Fn(&T) -> OwnedValue) {
        line.extend_from_slice(br#"{"arrayValue":{"values":["#);
        for (index, value) in values.iter().enumerate() {
            if index > 0 {
                line.push(b',');
            }
            write_owned(line, &owned(value));
        }
        line.extend_from_slice(b"]}}");
    }
    match value {
        OwnedValue::Bool(value) => {
            line.extend_from_slice(br#"{"boolValue":"#);
            json::write_bool(line, *value);
            line.push(b'}');
        }
        OwnedValue::I64(value) => {
            line.extend_from_slice(br#"{"intValue":""#);
            json::write_i64(line, *value);
            line.extend_from_slice(br#""}"#);
        }
        OwnedValue::F64(value) => {
            line.extend_from_slice(br#"{"doubleValue":"#);
            json::write_f64(line, *value);
            line.push(b'}');
        }
        OwnedValue::Str(value) => {
            line.extend_from_slice(br#"{"stringValue":"#);
            json::write_string(line, value);
            line.push(b'}');
        }
        OwnedValue::BoolArray(values) => array(line, values, |value| OwnedValue::Bool(*value)),
        OwnedValue::I64Array(values) => array(line, values, |value| OwnedValue::I64(*value)),
        OwnedValue::F64Array(values) => array(line, values, |value| OwnedValue::F64(*value)),
        OwnedValue::StrArray(values) => array(line, values, |value| OwnedValue::Str(value.clone())),
    }
}

/// Appends the value of an attribute of a rare kind.
pub(super) fn write_value(line: &mut Vec<u8>, value: &OwnedValue) {
    write_owned(line, value);
}

/// Encodes the records as an `ExportLogsServiceRequest`, for exporters.
pub fn export_request(resource: &[(String, OwnedValue)], mut records: &[u8]) -> Vec<u8> {
    let mut scope_logs: Vec<proto::ScopeLogs> = Vec::new();
    while let Some(record) = Record::take(&mut records) {
        let mut read = SpanRecord::default();
        read.read_entries(record.entries);
        let severity_text = String::from_utf8_lossy(severity_name(&record.fields(), record.severity)).into_owned();
        let id = |bytes: &[u8]| if record.has_span() { bytes.to_vec() } else { Vec::new() };
        let log_record = proto::LogRecord {
            time_unix_nano: record.time_unix_nano,
            observed_time_unix_nano: record.time_unix_nano,
            severity_number: record.severity.into(),
            severity_text,
            body: Some(AnyValue { value: Some(any_value::Value::StringValue(read.name)) }),
            attributes: attributes(read.attributes),
            dropped_attributes_count: record.dropped.into(),
            flags: record.flags.into(),
            trace_id: id(record.trace_id),
            span_id: id(record.span_id),
            ..proto::LogRecord::default()
        };
        let is_of = |group: &proto::ScopeLogs| group.scope.as_ref().is_some_and(|scope| scope.name == read.scope);
        match scope_logs.iter_mut().find(|group| is_of(group)) {
            Some(group) => group.log_records.push(log_record),
            None => scope_logs.push(proto::ScopeLogs {
                scope: Some(InstrumentationScope { name: read.scope, ..InstrumentationScope::default() }),
                log_records: vec![log_record],
                schema_url: String::new(),
            }),
        }
    }
    let resource = Resource { attributes: attributes(resource.to_vec()), ..Resource::default() };
    let group = proto::ResourceLogs { resource: Some(resource), scope_logs, schema_url: String::new() };
    ExportLogsServiceRequest { resource_logs: vec![group] }.encode_to_vec()
}

/// Reads bytes as records, whatever they are, and renders them in both forms. For fuzzing.
pub fn render_any(bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut line = Vec::new();
    write_line(&mut line, &line_head(&[]), bytes);
    (line, export_request(&[], bytes))
}

#[cfg(test)]
#[path = "logs_tests.rs"]
mod tests;
