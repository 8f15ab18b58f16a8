//! Log records, from the files of OTLP lines that stand beside the span files.
//!
//! Few of them are in memory: a file is read line by line, and lines in which none of the wanted texts is found are stepped over.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use tracer_core::names;
use tracer_core::propagation::TraceParent;
use tracer_core::task::TaskId;

use super::read::otlp::{KeyValue, any_value, pairs};
use super::time;
use crate::known_file::{Identity, KnownFile};
use crate::merging::{Key, Merged};
use crate::read::{Notice, Problem};
use crate::span::{Attributes, SpanId, TraceId};

/// End of the names of the files.
pub(super) const EXTENSION: &str = ".logs.jsonl";

/// A log record.
#[derive(Clone, Debug, PartialEq)]
pub struct LogRecord {
    /// Time of the event, or else that at which it was observed; 0 if neither is known.
    pub time_unix_nano: u64,
    /// Severity as its source named it, or else in OpenTelemetry's words; empty if neither is known.
    pub severity: String,
    /// The message: a text, or any other value.
    pub body: Value,
    /// The span that was current.
    pub span_id: Option<SpanId>,
    /// Its attributes.
    pub attributes: Attributes,
}

impl Serialize for LogRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;

        let mut object = serializer.serialize_struct("LogRecord", 5)?;
        object.serialize_field("time", &(self.time_unix_nano > 0).then(|| time::format(self.time_unix_nano)))?;
        object.serialize_field("severity", &self.severity)?;
        object.serialize_field("body", &self.body)?;
        object.serialize_field("span_id", &self.span_id.map(|id| format!("0x{id}")))?;
        let attributes: serde_json::Map<_, _> = self.attributes.0.iter().cloned().collect();
        object.serialize_field("attributes", &attributes)?;
        object.end()
    }
}

/// A log record with what its file says about where it comes from.
#[derive(Clone, Debug)]
pub struct FoundRecord {
    pub(crate) record: LogRecord,
    /// Number of the severity in OpenTelemetry, from 1; 0 if it is not known.
    pub(crate) severity: u8,
    pub(crate) trace_id: Option<TraceId>,
    /// The attempt of a command that made it, if its resource says so.
    pub(crate) attempt: Option<(TaskId, u32)>,
    /// The context of that attempt.
    pub(crate) stem: Option<(TraceId, SpanId)>,
    pub(crate) pid: Option<u32>,
    /// Name of the instrumentation scope: the module or logger that made it.
    pub(crate) scope: String,
    /// Place of its line: the file's inode, the offset in it, and the number of the record in the line.
    pub(crate) place: (u64, u64, u32),
}

/// `LogsData`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Logs {
    resource_logs: Vec<ResourceLogs>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourceLogs {
    #[serde(default)]
    resource: Resource,
    #[serde(default)]
    scope_logs: Vec<ScopeLogs>,
}

#[derive(Default, Deserialize)]
struct Resource {
    #[serde(default)]
    attributes: Vec<KeyValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ScopeLogs {
    #[serde(default)]
    scope: Scope,
    #[serde(default)]
    log_records: Vec<Record>,
}

#[derive(Default, Deserialize)]
struct Scope {
    #[serde(default)]
    name: String,
}

/// Description of the process of its records, from a resource.
#[derive(Clone, Default)]
struct Process {
    attempt: Option<(TaskId, u32)>,
    stem: Option<(TraceId, SpanId)>,
    pid: Option<u32>,
}

impl Process {
    fn of(resource: Resource) -> Process {
        let attributes = Attributes(pairs(resource.attributes));
        // Attributes from the environment are texts.
        let number = |key: &str| match attributes.get(key)? {
            Value::String(text) => text.parse().ok(),
            value => value.as_u64(),
        };
        let attempt = number(names::ATTEMPT).and_then(|attempt| u32::try_from(attempt).ok());
        let context = attributes.text(names::TRACEPARENT).and_then(|text| TraceParent::parse(text).ok());
        let stem = |context: TraceParent| {
            (TraceId(u128::from_be_bytes(context.trace_id)), SpanId(u64::from_be_bytes(context.span_id)))
        };
        Process {
            attempt: number(names::TASK_ID).map(TaskId).zip(attempt),
            stem: context.map(stem),
            pid: number("process.pid").and_then(|pid| u32::try_from(pid).ok()),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Record {
    time_unix_nano: Value,
    observed_time_unix_nano: Value,
    severity_number: u64,
    severity_text: String,
    body: Value,
    attributes: Vec<KeyValue>,
    trace_id: String,
    span_id: String,
}

/// Names of severities in OpenTelemetry, each for four numbers from 1.
const SEVERITIES: [&str; 6] = ["TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"];

/// Returns the number of a severity that is known by its name alone.
pub fn severity_named(name: &str) -> Option<u8> {
    let name = if name.eq_ignore_ascii_case("warning") { "WARN" } else { name };
    let at = SEVERITIES.iter().position(|known| known.eq_ignore_ascii_case(name))?;
    u8::try_from(at * 4 + 1).ok()
}

impl Record {
    fn into_found(self, process: &Process, scope: &str, place: (u64, u64, u32)) -> FoundRecord {
        let by_name = || severity_named(&self.severity_text).unwrap_or(0);
        let severity = u8::try_from(self.severity_number).ok().filter(|&number| number > 0);
        FoundRecord {
            severity: severity.unwrap_or_else(by_name),
            trace_id: self.trace_id.parse().ok(),
            attempt: process.attempt,
            stem: process.stem,
            pid: process.pid,
            scope: scope.to_owned(),
            place,
            record: self.into_log_record(),
        }
    }

    fn into_log_record(self) -> LogRecord {
        let nanos = |value: &Value| match value {
            Value::String(text) => text.parse().unwrap_or(0),
            number => number.as_u64().unwrap_or(0),
        };
        let named = || {
            let at = usize::try_from(self.severity_number).ok()?.checked_sub(1)? / 4;
            SEVERITIES.get(at).map(|name| (*name).to_owned())
        };
        let time = Some(nanos(&self.time_unix_nano)).filter(|&time| time > 0);
        LogRecord {
            time_unix_nano: time.unwrap_or_else(|| nanos(&self.observed_time_unix_nano)),
            severity: Some(self.severity_text.clone())
                .filter(|text| !text.is_empty())
                .or_else(named)
                .unwrap_or_default(),
            body: any_value(self.body),
            span_id: self.span_id.parse().ok().filter(|id: &SpanId| id.0 != 0),
            attributes: Attributes(pairs(self.attributes)),
        }
    }
}

/// The bytes of lines that are in memory, of all files.
const WINDOWS: usize = 8 << 20;
/// The bytes of records of one file that are put into the order of their times.
const SORTED: usize = 1 << 20;
/// The longest line that is read.
const LINE_LIMIT: usize = 64 << 20;
/// The most files that are left open between two reads.
const OPEN_FILES: usize = 100;
/// Bytes of a record beside those of its line.
const RECORD_BYTES: usize = 512;

/// The files of log records of a folder, read again and again, each time only what is new.
///
/// Records are taken by their times. Those of a file that came later than some others of it are put before them, unless these take more than a bound:
/// then they stand where they came.
#[derive(Debug)]
pub struct RecordTail {
    folder: PathBuf,
    /// Offset behind the last line that was read: a file that is rotated gets another name.
    positions: HashMap<Identity, u64>,
    files: Vec<RecordFile>,
    /// The next record of each file that has more.
    next: Merged<FoundRecord>,
    notices: Vec<Notice>,
}

/// A file that is being read.
#[derive(Debug)]
struct RecordFile {
    known: KnownFile,
    file: Option<File>,
    position: u64,
    /// Bytes that were read ahead, behind those that are done.
    ahead: Vec<u8>,
    done: usize,
    sorted: Merged<FoundRecord>,
    sorted_bytes: usize,
    damaged: usize,
    is_overlong: bool,
}

/// The way in which files are read.
#[derive(Clone, Copy)]
struct Reading<'a> {
    /// Lines in which none of them is found are stepped over, if there are any.
    texts: &'a [String],
    /// Bytes that are read, and those that are sorted.
    window: usize,
    leaves_open: bool,
}

impl RecordTail {
    /// Makes a reader that has read nothing yet.
    pub(crate) fn new(folder: &Path) -> RecordTail {
        RecordTail {
            folder: folder.into(),
            positions: HashMap::new(),
            files: Vec::new(),
            next: Merged::default(),
            notices: Vec::new(),
        }
    }

    /// Begins to read the records that have come since the last time. If there are `texts`, lines in which none of them is found are stepped over.
    pub(crate) fn begin(&mut self, texts: &[String]) {
        let mut positions = HashMap::new();
        (self.files, self.next) = (Vec::new(), Merged::default());
        for path in files(&self.folder) {
            // Rotated away between the listing and now.
            let Ok(metadata) = fs::metadata(&path) else { continue };
            let identity = (metadata.dev(), metadata.ino());
            // If it is shorter, it was begun anew.
            let position = self.positions.get(&identity).copied().filter(|&at| at <= metadata.len()).unwrap_or(0);
            positions.insert(identity, position);
            if position < metadata.len() {
                self.files.push(RecordFile::new(KnownFile { path, identity }, position));
            }
        }
        self.positions = positions;
        for number in 0..self.files.len() {
            self.advance(number, texts);
        }
    }

    /// Returns the place of the next record.
    pub(crate) fn first(&self) -> Option<Key> {
        self.next.first()
    }

    /// Takes the next record.
    pub(crate) fn take(&mut self, texts: &[String]) -> Option<FoundRecord> {
        let (number, found) = self.next.pop()?;
        self.advance(number, texts);
        Some(found)
    }

    /// Takes what is to be said about files that were read to their ends.
    pub(crate) fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    fn advance(&mut self, number: usize, texts: &[String]) {
        let window = (WINDOWS / self.files.len().max(1)).clamp(1 << 10, 1 << 16);
        let reading = Reading { texts, window, leaves_open: self.files.len() <= OPEN_FILES };
        let file = &mut self.files[number];
        match file.take(reading) {
            Ok(Some(found)) => return self.next.push(found.key(), number, found),
            Ok(None) if file.damaged == 0 => {}
            Ok(None) => self.notices.push(Notice {
                path: file.known.path.clone(),
                problem: Problem::Damaged(std::mem::take(&mut file.damaged)),
            }),
            // Removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => self
                .notices
                .push(Notice { path: file.known.path.clone(), problem: Problem::Unreadable(error.to_string()) }),
        }
        self.positions.insert(file.known.identity, file.position);
        (file.file, file.ahead) = (None, Vec::new());
    }
}

impl RecordFile {
    fn new(known: KnownFile, position: u64) -> RecordFile {
        RecordFile {
            known,
            file: None,
            position,
            ahead: Vec::new(),
            done: 0,
            sorted: Merged::default(),
            sorted_bytes: 0,
            damaged: 0,
            is_overlong: false,
        }
    }

    /// Takes the next record.
    fn take(&mut self, reading: Reading<'_>) -> io::Result<Option<FoundRecord>> {
        let most = SORTED.min(reading.window * 16);
        while self.sorted_bytes < most && self.read_line(reading)? {}
        let Some((bytes, found)) = self.sorted.pop() else { return Ok(None) };
        self.sorted_bytes -= bytes;
        Ok(Some(found))
    }

    /// Reads a line. False if no more have come to their end.
    fn read_line(&mut self, reading: Reading<'_>) -> io::Result<bool> {
        let mut searched = 0;
        let end = loop {
            let ahead = &self.ahead[self.done..];
            if let Some(at) = memchr::memchr(b'\n', &ahead[searched..]) {
                break searched + at + 1;
            }
            searched = ahead.len();
            if searched > LINE_LIMIT {
                self.step(searched);
                (searched, self.is_overlong) = (0, true);
            }
            if !self.read_ahead(reading)? {
                // What does not end yet is being written, or will never be.
                return Ok(false);
            }
        };
        let (offset, line) = (self.position, &self.ahead[self.done..self.done + end]);
        let has_text = |text: &String| memchr::memmem::find(line, text.as_bytes()).is_some();
        if std::mem::take(&mut self.is_overlong) {
            self.damaged += 1;
        } else if reading.texts.is_empty() || reading.texts.iter().any(has_text) {
            match serde_json::from_slice::<Logs>(line) {
                Ok(logs) => {
                    let mut found = Vec::new();
                    logs.into_found((self.known.identity.1, offset), &mut |record| found.push(record));
                    let bytes = RECORD_BYTES + line.len() / found.len().max(1);
                    self.sorted_bytes += bytes * found.len();
                    found.into_iter().for_each(|record| self.sorted.push(record.key(), bytes, record));
                }
                Err(_) => self.damaged += 1,
            }
        }
        self.step(end);
        Ok(true)
    }

    fn step(&mut self, length: usize) {
        self.position += length as u64;
        self.done += length;
    }

    /// Reads further. False at the end of the file.
    fn read_ahead(&mut self, reading: Reading<'_>) -> io::Result<bool> {
        let file = match self.file.take() {
            Some(file) => file,
            None => self.known.open()?,
        };
        self.ahead.drain(..std::mem::take(&mut self.done));
        let length = self.ahead.len();
        self.ahead.resize(length + reading.window.max(length), 0);
        let read = file.read_at(&mut self.ahead[length..], self.position + length as u64);
        self.ahead.truncate(length + *read.as_ref().unwrap_or(&0));
        self.file = Some(file).filter(|_| reading.leaves_open);
        match read {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            read => Ok(read? > 0),
        }
    }
}

impl FoundRecord {
    fn key(&self) -> Key {
        let (inode, offset, number) = self.place;
        (self.record.time_unix_nano, inode, offset, number)
    }
}

impl Logs {
    fn into_found(self, (inode, offset): (u64, u64), take: &mut impl FnMut(FoundRecord)) {
        let mut number = 0;
        for ResourceLogs { resource, scope_logs } in self.resource_logs {
            let process = Process::of(resource);
            for ScopeLogs { scope, log_records } in scope_logs {
                for record in log_records {
                    take(record.into_found(&process, &scope.name, (inode, offset, number)));
                    number += 1;
                }
            }
        }
    }
}

/// Returns the files with log records in a folder, by name; of a folder that cannot be listed, none.
fn files(folder: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let is_one = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().ends_with(EXTENSION.as_bytes())) && path.is_file()
    };
    let mut files: Vec<_> = paths.filter(is_one).collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fixture::span;
    use super::*;
    use crate::load::load;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    fn line(records: Value) -> String {
        format!("{}\n", json!({"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}))
    }

    #[test]
    fn records_of_the_trace_are_read_in_order_and_damaged_lines_are_told() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("1.json"), span("job", 1, None, (0, 30)).line()).unwrap();
        let first = line(json!([
            {"timeUnixNano": "30", "severityText": "loud", "severityNumber": 9, "body": {"stringValue": "late"}, "traceId": TRACE, "spanId": "0000000000000001"},
            {"timeUnixNano": "20", "body": {"stringValue": "of another"}, "traceId": "ab".repeat(16)},
            {"timeUnixNano": 10, "severityNumber": 14, "body": {"kvlistValue": {"values": [{"key": "a", "value": {"intValue": "1"}}]}},
             "attributes": [{"key": "k", "value": {"boolValue": true}}], "traceId": TRACE},
        ]));
        let second = line(json!([{"observedTimeUnixNano": "20", "traceId": TRACE}]));
        let damaged = format!("{{\"resourceLogs\":[{{\"{TRACE}\n");
        fs::write(folder.path().join("1.logs.jsonl"), format!("{first}{damaged}nothing of interest\n")).unwrap();
        fs::write(folder.path().join("2.1.logs.jsonl"), format!("{second}{}", damaged.trim_end())).unwrap();
        assert_eq!(load(folder.path()).unwrap().notices, [], "they are no spans");
        let mut tail = RecordTail::new(folder.path());
        let mut records = Vec::new();
        let texts = [TRACE.into()];
        tail.begin(&texts);
        while let Some(found) = tail.take(&texts) {
            records.extend(Some(found.record).filter(|_| found.trace_id == TRACE.parse().ok()));
        }
        let notices = tail.take_notices();
        let found: Vec<_> = records.iter().map(|record| serde_json::to_value(record).unwrap()).collect();
        let expected = [
            json!({"time": "1970-01-01T00:00:00.000000010Z", "severity": "WARN", "body": {"a": 1}, "span_id": null, "attributes": {"k": true}}),
            json!({"time": "1970-01-01T00:00:00.000000020Z", "severity": "", "body": null, "span_id": null, "attributes": {}}),
            json!({"time": "1970-01-01T00:00:00.000000030Z", "severity": "loud", "body": "late", "span_id": "0x0000000000000001", "attributes": {}}),
        ];
        assert_eq!(found, expected);
        assert_eq!(notices.iter().map(|notice| notice.problem.clone()).collect::<Vec<_>>(), [Problem::Damaged(1)]);
        tail.begin(&[]);
        assert!(tail.take(&[]).is_none() && tail.take_notices().is_empty(), "each is read once");
    }

    #[test]
    fn a_folder_without_records_has_none() {
        let mut tail = RecordTail::new(Path::new("/nowhere"));
        tail.begin(&[]);
        assert!(tail.take(&[]).is_none() && tail.take_notices().is_empty());
    }
}
