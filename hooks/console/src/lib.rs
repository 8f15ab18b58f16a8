//! A tracing hook: every sampled span of a process becomes a line on its standard error.
//!
//! [`setup_tracing`] is the hook; [`ConsoleProcessor`] is its span processor. A line begins with the process, as in
//! `[pid 123] `, because the lines of many processes come together in one terminal or log. It is written as the span ends, with one
//! `write`, by the thread that ends it.
//!
//! What a worker writes to standard error while a task runs is shown to whoever submitted that, so the spans of a task appear
//! there too. They are not on disk: what a dead process could not write is completed by the host.

mod text;

use std::fmt;
use std::io::{self, Stderr, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{Span, SpanData, SpanProcessor};
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
    let processor = ConsoleProcessor::new(format, io::stderr());
    Ok(Tracing::builder().with_span_processor(processor).with_description(description).build())
}

/// Writes each sampled span as one line.
///
/// A line that cannot be written is lost and counted; the next flush says so.
#[derive(Debug)]
pub struct ConsoleProcessor<W = Stderr> {
    format: Format,
    json: ConsoleFormat,
    output: Mutex<Output<W>>,
}

#[derive(Debug)]
struct Output<W> {
    writer: W,
    /// Kept for its memory.
    line: Vec<u8>,
    lost: u64,
    /// Why, of the last one that was lost.
    reason: Option<io::Error>,
}

impl<W: Write> ConsoleProcessor<W> {
    /// A processor that writes to `writer`, which should not buffer: nothing flushes it.
    pub fn new(format: Format, writer: W) -> ConsoleProcessor<W> {
        let output = Output { writer, line: Vec::new(), lost: 0, reason: None };
        ConsoleProcessor { format, json: ConsoleFormat::default(), output: Mutex::new(output) }
    }

    fn lock(&self) -> MutexGuard<'_, Output<W>> {
        // It guards nothing that a panic could leave half-done: a line is begun anew.
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: Write + fmt::Debug + Send + 'static> SpanProcessor for ConsoleProcessor<W> {
    fn on_start(&self, _span: &mut Span, _cx: &Context) {}

    fn on_end(&self, span: SpanData) {
        if !span.span_context.is_sampled() {
            return;
        }
        let mut output = self.lock();
        let Output { writer, line, lost, reason } = &mut *output;
        line.clear();
        line.extend_from_slice(format!("[pid {}] ", std::process::id()).as_bytes());
        match self.format {
            Format::Text => text::write_line(line, &span),
            Format::Json => self.json.write_line(line, &span),
        }
        if let Err(error) = writer.write_all(line) {
            *lost += 1;
            *reason = Some(error);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        let mut output = self.lock();
        match (std::mem::take(&mut output.lost), output.reason.take()) {
            (lost @ 1.., Some(reason)) => Err(OTelSdkError::InternalFailure(format!(
                "{lost} spans could not be written to standard error: {reason}"
            ))),
            _ => Ok(()),
        }
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        self.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.json.set_resource(resource);
    }
}
