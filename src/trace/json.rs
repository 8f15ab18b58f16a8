//! The form that every report has, of the command line and of the HTTP API: an object that begins with the version of its schema.
//!
//! What the objects hold is in the guide's chapter `json.md`.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Map, Value};
use tracer_core::value::JsonText;
use tracer_ipc::protocol::{SharedReport, TaskReport};

use crate::time::format as rfc3339;

/// The version of all schemas. It is raised when a field is removed or means another thing, not when one is added.
pub(crate) const VERSION: u32 = 1;

/// Writes a report as the text of an object, `schema_version` first. What is in it stays as it is written.
pub fn object(report: &impl Serialize) -> String {
    let text = serde_json::to_string_pretty(report).expect("reports are plain data");
    with_version(&text, "\n  ", "\n")
}

/// Writes a report as [`object`] does, while it is made: one that is large is never in memory.
pub fn write(report: &impl Serialize, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(WithVersion { out, is_begun: false }, report)?;
    Ok(())
}

/// Adds the version to an object that has fields.
struct WithVersion<'a> {
    out: &'a mut dyn Write,
    is_begun: bool,
}

impl Write for WithVersion<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        if !self.is_begun && !bytes.is_empty() {
            rest = bytes.strip_prefix(b"{").expect("a report is an object");
            write!(self.out, "{{\n  \"schema_version\": {VERSION},")?;
            self.is_begun = true;
        }
        self.out.write_all(rest)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Writes a report as [`object`] does, on one line.
pub fn line(report: &impl Serialize) -> String {
    with_version(&serde_json::to_string(report).expect("reports are plain data"), "", "")
}

/// Writes a report as [`line()`] does, as bytes. A large one is not copied.
pub fn bytes(report: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut bytes = format!("{{\"schema_version\":{VERSION}").into_bytes();
    let start = bytes.len();
    serde_json::to_writer(&mut bytes, report)?;
    assert_eq!(bytes[start], b'{', "a report is an object");
    if bytes[start + 1] == b'}' {
        bytes.remove(start);
    } else {
        bytes[start] = b',';
    }
    Ok(bytes)
}

/// Returns a task's report with its times in the documented form. The result stays the text that it is: parsed, its numbers would be cut to 64 bits.
pub fn task(mut report: TaskReport) -> impl Serialize {
    let result = report.result.take();
    with_result(with_times(&report), result)
}

/// Returns the report of a task of another node, as [`task`] does.
pub fn shared_task(mut report: SharedReport) -> impl Serialize {
    let result = report.result.take();
    with_result(with_times(&report), result)
}

fn with_result(report: Value, result: Option<JsonText>) -> impl Serialize {
    #[derive(Serialize)]
    struct Task {
        #[serde(flatten)]
        rest: Map<String, Value>,
        result: Option<JsonText>,
    }
    let Value::Object(mut rest) = report else { unreachable!("a report is an object") };
    rest.remove("result");
    Task { rest, result }
}

fn with_version(text: &str, indent: &str, end: &str) -> String {
    let fields = text.strip_prefix('{').unwrap_or_else(|| panic!("a report is an object, and not {text}"));
    let space = if indent.is_empty() { "" } else { " " };
    match fields.trim_start() {
        "}" => format!("{{{indent}\"schema_version\":{space}{VERSION}{end}}}"),
        _ => format!("{{{indent}\"schema_version\":{space}{VERSION},{fields}"),
    }
}

/// Returns a report of the head, with each time (`started_unix_nano`) as text of RFC 3339 (`started_time`) and as milliseconds
/// (`started_unix_ms`), which any reader of JSON takes without loss. The result of a task is its own and stays as it is.
pub fn with_times(report: &impl Serialize) -> Value {
    let mut value = serde_json::to_value(report).expect("reports are plain data");
    report_times(&mut value);
    value
}

/// Returns a time with nine decimals always, so that texts are in the order of the times.
pub fn time_text(unix_nano: u64) -> String {
    let text = rfc3339(unix_nano);
    match text.strip_suffix('Z').filter(|text| text.len() == "2026-11-20T19:23:48.123456".len()) {
        Some(text) => format!("{text}000Z"),
        None => text,
    }
}

fn report_times(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(report_times),
        Value::Object(fields) => {
            let mut told = Map::new();
            for (key, mut value) in std::mem::take(fields) {
                let Some(what) = key.strip_suffix("_unix_nano") else {
                    if key != "result" {
                        report_times(&mut value);
                    }
                    told.insert(key, value);
                    continue;
                };
                let nanos = value.as_u64();
                told.insert(format!("{what}_time"), nanos.map(time_text).into());
                told.insert(format!("{what}_unix_ms"), nanos.map(|nanos| nanos / 1_000_000).into());
            }
            *fields = told;
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_report_begins_with_the_version_of_its_schema() {
        assert_eq!(object(&json!({"a": 1})), "{\n  \"schema_version\": 1,\n  \"a\": 1\n}");
        assert_eq!(object(&json!({})), "{\n  \"schema_version\": 1\n}");
        for report in [json!({"a": 1}), json!({}), json!({"a": {"b": []}})] {
            assert_eq!(line(&report).as_bytes(), bytes(&report).unwrap());
        }
        assert_eq!(line(&json!({"a": 1})), r#"{"schema_version":1,"a":1}"#);
    }

    #[test]
    fn times_are_told_as_text_and_as_milliseconds() {
        let report = json!({
            "tasks": [{"id": 1, "started_unix_nano": 1_795_202_628_123_456_789_u64, "ended_unix_nano": null}],
            "result": {"my_unix_nano": 5},
        });
        assert_eq!(
            with_times(&report),
            json!({
                "tasks": [{
                    "id": 1,
                    "started_time": "2026-11-20T19:23:48.123456789Z",
                    "started_unix_ms": 1_795_202_628_123_u64,
                    "ended_time": null,
                    "ended_unix_ms": null,
                }],
                "result": {"my_unix_nano": 5},
            })
        );
    }
}
