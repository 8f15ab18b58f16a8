//! A tracing hook: every sampled span of a process becomes a line on its standard error.
//!
//! [`setup_tracing`] is the hook; [`ConsoleExporter`] is its exporter. A line begins with the process that made the span, as in
//! `[pid 123] `, because the lines of many processes come together in one terminal or log. It is written as the span ends, with one
//! `write`, by the thread that ends it.
//!
//! What a worker writes to standard error while a task runs is shown to whoever submitted that, so the spans of a task appear
//! there too. They are not on disk: what a dead process could not write, another one writes to its own standard error.

mod text;

use std::fmt;
use std::io::{self, Stderr, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use opentelemetry::{Key, Value};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use tracer_local_tmp_tracing::{ConsoleFormat, LineFormat};
use tracer_sdk::hook::Tracing;

/// Names the form of the lines: `text` or `json`. Unset or empty means `text`.
pub const FORMAT_VARIABLE: &str = "TRACER_CONSOLE_FORMAT";

/// The form of the lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people: name, kind, duration, ids, status and attributes.
    #[default]
    Text,
    /// The objects that the default hook writes to files.
    Json,
}

/// A form of lines that does not exist.
#[derive(Debug)]
pub struct FormatError {
    found: String,
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{FORMAT_VARIABLE}` is `{}`, expected `text` or `json`", self.found)
    }
}

impl std::error::Error for FormatError {}

impl std::str::FromStr for Format {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Format, FormatError> {
        match text {
            "" | "text" => Ok(Format::Text),
            "json" => Ok(Format::Json),
            other => Err(FormatError { found: other.to_owned() }),
        }
    }
}

/// Spans to standard error, in the form that [`FORMAT_VARIABLE`] says.
///
/// On failure: it says something else.
pub fn setup_tracing() -> Result<Tracing, FormatError> {
    let format: Format = std::env::var_os(FORMAT_VARIABLE).unwrap_or_default().to_string_lossy().parse()?;
    let description = match format {
        Format::Text => "spans to standard error, one line each",
        Format::Json => "spans to standard error, one JSON object per line",
    };
    let exporter = ConsoleExporter::new(format, io::stderr());
    Ok(Tracing::builder().with_simple_exporter(exporter).with_description(description).build())
}

/// Writes each span as one line. One whose line cannot be written is not exported, which the result says.
#[derive(Debug)]
pub struct ConsoleExporter<W = Stderr> {
    format: Format,
    json: ConsoleFormat,
    /// The process whose spans these are.
    pid: i64,
    output: Mutex<Output<W>>,
}

#[derive(Debug)]
struct Output<W> {
    writer: W,
    /// Kept for its memory.
    line: Vec<u8>,
}

impl<W: Write> ConsoleExporter<W> {
    /// Makes an exporter that writes to `writer`, which should not buffer: nothing flushes it.
    pub fn new(format: Format, writer: W) -> ConsoleExporter<W> {
        let (json, pid) = (ConsoleFormat::default(), i64::from(std::process::id()));
        ConsoleExporter { format, json, pid, output: Mutex::new(Output { writer, line: Vec::new() }) }
    }

    fn lock(&self) -> MutexGuard<'_, Output<W>> {
        // It guards nothing that a panic could leave half-done: a line is begun anew.
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: Write + fmt::Debug + Send + 'static> SpanExporter for ConsoleExporter<W> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let mut output = self.lock();
        let Output { writer, line } = &mut *output;
        for span in &batch {
            line.clear();
            line.extend_from_slice(format!("[pid {}] ", self.pid).as_bytes());
            match self.format {
                Format::Text => text::write_line(line, span),
                Format::Json => self.json.write_line(line, span),
            }
            writer.write_all(line).map_err(|error| {
                OTelSdkError::InternalFailure(format!("spans cannot be written to standard error: {error}"))
            })?;
        }
        Ok(())
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.json.set_resource(resource);
        // Of a dead process's spans, it is that one's.
        self.pid = match resource.get(&Key::from_static_str("process.pid")) {
            Some(Value::I64(pid)) => pid,
            _ => i64::from(std::process::id()),
        };
    }
}
