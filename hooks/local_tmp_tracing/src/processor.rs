//! From a span's end to the file.
//!
//! A span is rendered when it has ended, into the [queue](LineQueue) of the process's span file, and stays there until somebody asks for it
//! to be on disk: the host with a commit, before it sends the result of a task; a flush; or the queue itself, when it holds enough. When
//! threads end spans faster than the disk takes them, they wait for it.
//!
//! Counting of the spans that a refusing disk costs, which the next commit reports.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry::trace::{Event, Link};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{Span, SpanData, SpanProcessor};
use tracer_sdk::hook::{AttributeValue, DurableProcessor, FileFormat, LostSpans, RenderedSpan, SpanWriter};
use tracer_span_file::{Counts, LineQueue, ResourceJson, Rotation, SpanDirError, SpanFile, dir_from_env};

use crate::span_data::{self, resource_json, write_span};

/// Rendering of a span as a line of a file.
pub trait LineFormat: std::fmt::Debug + Send + 'static {
    /// Takes what all spans of the process have in common. Called before the first span.
    fn set_resource(&mut self, resource: &Resource);

    /// The same format for spans of another process, with that one's resource.
    fn of_resource(&self, resource: &Resource) -> Self
    where
        Self: Sized;

    /// Appends one line, line feed included, to `buffer`. On the path of every span, under a lock.
    fn write_line(&self, buffer: &mut Vec<u8>, span: &SpanData);

    /// True if [`push_name`](Self::push_name) and the others after it are there: then spans that nobody else gets are
    /// rendered as they grow, which is cheaper by far.
    const RENDERS: bool = false;

    /// Renders a name: see [`SpanWriter::push_name`].
    fn push_name(_rendered: &mut Vec<u8>, _name: &[u8]) {}

    /// Renders a key: see [`SpanWriter::push_key`].
    fn push_key(_rendered: &mut Vec<u8>, _key: &[u8]) {}

    /// Renders a value: see [`SpanWriter::push_value`].
    fn push_value(_rendered: &mut Vec<u8>, _value: AttributeValue<'_>) {}

    /// Renders an event: see [`SpanWriter::push_event`].
    fn push_event(_rendered: &mut Vec<u8>, _event: &Event) {}

    /// Renders a link: see [`SpanWriter::push_link`].
    fn push_link(_rendered: &mut Vec<u8>, _link: &Link) {}

    /// Appends one line, as [`write_line`](Self::write_line) does.
    fn write_rendered_line(&self, _buffer: &mut Vec<u8>, _span: &RenderedSpan<'_>) {}

    /// Returns the form, if the host knows it: then it appends to the file what the process has left when it died.
    fn known(&self) -> Option<FileFormat> {
        None
    }
}

/// The format of `<pid>.json`: the keys of the OpenTelemetry Python console exporter.
#[derive(Debug)]
pub struct ConsoleFormat {
    /// The end of every line.
    resource: ResourceJson,
}

impl Default for ConsoleFormat {
    fn default() -> ConsoleFormat {
        ConsoleFormat { resource: ResourceJson::new(&[][..], "") }
    }
}

impl LineFormat for ConsoleFormat {
    fn set_resource(&mut self, resource: &Resource) {
        self.resource = resource_json(resource);
    }

    fn of_resource(&self, resource: &Resource) -> ConsoleFormat {
        ConsoleFormat { resource: resource_json(resource) }
    }

    fn write_line(&self, buffer: &mut Vec<u8>, span: &SpanData) {
        write_span(buffer, span, &self.resource);
    }

    const RENDERS: bool = true;

    fn push_name(rendered: &mut Vec<u8>, name: &[u8]) {
        tracer_span_file::push_name(rendered, name);
    }

    fn push_key(rendered: &mut Vec<u8>, key: &[u8]) {
        tracer_span_file::push_key(rendered, key);
    }

    fn push_value(rendered: &mut Vec<u8>, value: AttributeValue<'_>) {
        span_data::push_value(rendered, value);
    }

    fn push_event(rendered: &mut Vec<u8>, event: &Event) {
        span_data::push_event(rendered, event);
    }

    fn push_link(rendered: &mut Vec<u8>, link: &Link) {
        span_data::push_link(rendered, link);
    }

    fn write_rendered_line(&self, buffer: &mut Vec<u8>, span: &RenderedSpan<'_>) {
        span_data::write_rendered_span(buffer, span, &self.resource);
    }

    fn known(&self) -> Option<FileFormat> {
        Some(FileFormat::Console)
    }
}

/// Writes each sampled span to the span file of this process, `<pid>.json` unless made for another format.
///
/// Clones share one file and one buffer; keep one to read the [`counts`](Self::counts). A process forked from this one writes nothing: its span ids would repeat its parent's, and
/// the file is its parent's too. Dropping it writes nothing; a commit, flush or shutdown does.
#[derive(Debug)]
pub struct FileProcessor<F = ConsoleFormat> {
    shared: Arc<Shared<F>>,
}

impl<F> Clone for FileProcessor<F> {
    fn clone(&self) -> FileProcessor<F> {
        FileProcessor { shared: Arc::clone(&self.shared) }
    }
}

#[derive(Debug)]
struct Shared<F> {
    path: PathBuf,
    queue: LineQueue<F>,
}

impl FileProcessor {
    /// Checks the folder, creating it if it is missing. Creates no file.
    pub fn try_new(dir: &Path, rotation: Rotation) -> Result<FileProcessor, SpanDirError> {
        let file = SpanFile::try_new(dir, std::process::id(), rotation)?;
        Ok(FileProcessor::new(file, ConsoleFormat::default()))
    }

    /// Returns a processor for the folder that `TRACER_SPANS_DIR` says, else `/tmp/spans`, with [`Rotation::from_env`].
    pub fn in_env_dir() -> Result<FileProcessor, SpanDirError> {
        FileProcessor::try_new(&dir_from_env(), Rotation::from_env())
    }
}

impl<F: LineFormat> FileProcessor<F> {
    /// Returns a processor for another format, whose lines go to `<pid>.<extension>`. Checks the folder as
    /// [`try_new`](FileProcessor::try_new) does.
    pub fn try_with_format(
        dir: &Path,
        extension: &'static str,
        rotation: Rotation,
        format: F,
    ) -> Result<FileProcessor<F>, SpanDirError> {
        let file = SpanFile::try_with_extension(dir, std::process::id(), extension, rotation)?;
        Ok(FileProcessor::new(file, format))
    }

    fn new(file: SpanFile, format: F) -> FileProcessor<F> {
        let shared = Shared { path: file.path(), queue: LineQueue::new(file, format) };
        FileProcessor { shared: Arc::new(shared) }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Counts of the lines so far, by what became of them.
    pub fn counts(&self) -> Counts {
        self.shared.queue.counts()
    }
}

impl<F: LineFormat> SpanProcessor for FileProcessor<F> {
    fn on_start(&self, _span: &mut Span, _cx: &Context) {}

    fn on_end(&self, span: SpanData) {
        if !span.span_context.is_sampled() {
            return;
        }
        self.shared.queue.append(std::iter::once(&span), |format, lines, span| format.write_line(lines, span));
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.commit().map_err(OTelSdkError::InternalFailure)
    }

    /// Writes what there is and closes the file. What is written after that all the same opens it again.
    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        let flushed = self.force_flush();
        self.shared.queue.close();
        flushed
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.shared.queue.with_state(|format| format.set_resource(resource));
    }
}

impl<F: LineFormat> SpanWriter for Shared<F> {
    fn push_name(&self, rendered: &mut Vec<u8>, name: &[u8]) {
        F::push_name(rendered, name);
    }

    fn push_key(&self, rendered: &mut Vec<u8>, key: &[u8]) {
        F::push_key(rendered, key);
    }

    fn push_value(&self, rendered: &mut Vec<u8>, value: AttributeValue<'_>) {
        F::push_value(rendered, value);
    }

    fn push_event(&self, rendered: &mut Vec<u8>, event: &Event) {
        F::push_event(rendered, event);
    }

    fn push_link(&self, rendered: &mut Vec<u8>, link: &Link) {
        F::push_link(rendered, link);
    }

    fn on_end(&self, span: &RenderedSpan<'_>) {
        self.queue.append(std::iter::once(span), |format, lines, span| format.write_rendered_line(lines, span));
    }

    fn on_end_all<'a>(&self, spans: &mut dyn Iterator<Item = RenderedSpan<'a>>) {
        self.queue.append(spans, |format, lines, span| format.write_rendered_line(lines, &span));
    }
}

impl<F: LineFormat> DurableProcessor for FileProcessor<F> {
    fn commit(&self) -> Result<(), String> {
        let waiting = |waiting| if waiting == 1 { "1 span waits".to_owned() } else { format!("{waiting} spans wait") };
        let committed = self.shared.queue.commit();
        committed.map_err(|error| format!("{} ({} in memory)", error.reason, waiting(error.waiting)))
    }

    fn changes_spans(&self) -> bool {
        false
    }

    fn take_lost(&self) -> Option<LostSpans> {
        let spans = self.shared.queue.take_dropped();
        let reason = || format!("span file `{}` could not be written, and memory was full", self.shared.path.display());
        (spans > 0).then(|| LostSpans { spans, reason: reason() })
    }

    fn span_file(&self) -> Option<(PathBuf, FileFormat)> {
        Some((self.shared.path.clone(), self.shared.queue.with_state(|format| format.known())?))
    }

    fn span_writer(&self) -> Option<Arc<dyn SpanWriter>> {
        let shared = Arc::clone(&self.shared);
        F::RENDERS.then_some(shared as _)
    }

    fn take_over(&self, resource: &Resource, spans: Vec<SpanData>) -> Result<(), String> {
        let queue = &self.shared.queue;
        let format = queue.with_state(|format| format.of_resource(resource));
        let mut lines = Vec::new();
        for span in spans.iter().filter(|span| span.span_context.is_sampled()) {
            format.write_line(&mut lines, span);
        }
        // What could not be written before comes first; whoever gave these spans keeps them meanwhile.
        queue.write_through(&lines).map_err(|error| error.reason)
    }
}
