//! Log records, from the files of OTLP lines that stand beside the span files.
//!
//! Nothing of them is kept: a file is read line by line, and lines in which none of the wanted texts is found are stepped over.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::read::otlp::{KeyValue, any_value, pairs};
use super::{Attributes, Notice, Problem, SpanId, TraceId, time};
use crate::names;
use crate::propagation::TraceParent;
use crate::task::TaskId;

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
pub(crate) struct FoundRecord {
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
pub(crate) fn severity_named(name: &str) -> Option<u8> {
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

/// The files of log records of a folder, read again and again, each time only what is new.
#[derive(Debug)]
pub(crate) struct RecordTail {
    folder: PathBuf,
    /// Offset behind the last line that was read, by device and inode: a file that is rotated gets another name.
    positions: HashMap<(u64, u64), u64>,
}

impl RecordTail {
    /// Makes a reader that has read nothing yet.
    pub(crate) fn new(folder: &Path) -> RecordTail {
        RecordTail { folder: folder.into(), positions: HashMap::new() }
    }

    /// Reads the records that have come since the last time, file by file, and says what could not be read. If there are `texts`, lines in which none of
    /// them is found are stepped over.
    pub(crate) fn read(&mut self, texts: &[String], mut take: impl FnMut(FoundRecord)) -> Vec<Notice> {
        let mut notices = Vec::new();
        for path in files(&self.folder) {
            match self.read_file(&path, texts, &mut take) {
                Ok(0) => {}
                Ok(damaged) => notices.push(Notice { path, problem: Problem::Damaged(damaged) }),
                // Rotated away between the listing and now.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => notices.push(Notice { path, problem: Problem::Unreadable(error.to_string()) }),
            }
        }
        notices
    }

    fn read_file(&mut self, path: &Path, texts: &[String], take: &mut impl FnMut(FoundRecord)) -> io::Result<usize> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        let position = self.positions.entry((metadata.dev(), metadata.ino())).or_default();
        if metadata.len() < *position {
            // It was begun anew.
            *position = 0;
        }
        if metadata.len() == *position {
            return Ok(0);
        }
        let mut file = BufReader::with_capacity(1 << 16, file);
        file.seek(SeekFrom::Start(*position))?;
        let (mut line, mut damaged) = (Vec::new(), 0);
        loop {
            line.clear();
            let length = file.read_until(b'\n', &mut line)?;
            // What does not end yet is being written, or will never be.
            if line.last() != Some(&b'\n') {
                return Ok(damaged);
            }
            let offset = *position;
            *position += length as u64;
            if !texts.is_empty() && !texts.iter().any(|text| memchr::memmem::find(&line, text.as_bytes()).is_some()) {
                continue;
            }
            match serde_json::from_slice::<Logs>(&line) {
                Ok(logs) => logs.into_found((metadata.ino(), offset), take),
                Err(_) => damaged += 1,
            }
        }
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
    use super::super::load;
    use super::*;

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
        let notices = tail.read(&[TRACE.into()], |found| {
            records.extend(Some(found.record).filter(|_| found.trace_id == TRACE.parse().ok()));
        });
        records.sort_by_key(|record| record.time_unix_nano);
        let found: Vec<_> = records.iter().map(|record| serde_json::to_value(record).unwrap()).collect();
        let expected = [
            json!({"time": "1970-01-01T00:00:00.000000010Z", "severity": "WARN", "body": {"a": 1}, "span_id": null, "attributes": {"k": true}}),
            json!({"time": "1970-01-01T00:00:00.000000020Z", "severity": "", "body": null, "span_id": null, "attributes": {}}),
            json!({"time": "1970-01-01T00:00:00.000000030Z", "severity": "loud", "body": "late", "span_id": "0x0000000000000001", "attributes": {}}),
        ];
        assert_eq!(found, expected);
        assert_eq!(notices.iter().map(|notice| notice.problem.clone()).collect::<Vec<_>>(), [Problem::Damaged(1)]);
        assert_eq!(tail.read(&[], |found| panic!("again: {found:?}")), [], "each is read once");
    }

    #[test]
    fn a_folder_without_records_has_none() {
        let notices = RecordTail::new(Path::new("/nowhere")).read(&[], |found| panic!("{found:?}"));
        assert_eq!(notices, []);
    }
}
