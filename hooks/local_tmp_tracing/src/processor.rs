//! From a span's end to the file.
//!
//! A span is rendered when it has ended, into a buffer that all threads share, and stays there until somebody asks for it to be
//! on disk: the host with a commit, before it sends the result of a task; a flush; or the buffer itself, when it holds
//! [`WRITE_AT`] bytes. So a burst of spans costs one `write`, and a lonely one is not delayed beyond its task.
//!
//! Two locks, always taken in this order: `file`, for the length of a write, and `buffer`, for the length of a copy. A
//! thread that ends spans waits for the second only.
//!
//! What cannot be written is kept for the next attempt, up to [`KEEP`] bytes. Beyond that spans are dropped, counted, and
//! reported by the next commit.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry::trace::{Event, Link};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{Span, SpanData, SpanProcessor};
use tracer_sdk::hook::{AttributeValue, DurableProcessor, FileFormat, RenderedSpan, SpanWriter};
use tracer_span_file::{Counts, ResourceJson, Rotation, SpanDirError, SpanFile, dir_from_env};

use crate::span_data::{self, resource_json, write_span};

/// The buffer is written when it holds this much, whether or not somebody asks. Half of it would cost the kernel a third more for each span.
const WRITE_AT: usize = 128 << 10;
/// How much is kept in memory while the file cannot be written.
const KEEP: usize = 8 << 20;
/// While spans are dropped, every so many of them another attempt is made: perhaps nobody commits.
const RETRY_EVERY: u64 = 1_024;

/// How a span becomes a line of a file.
pub trait LineFormat: std::fmt::Debug + Send + 'static {
    /// Takes what all spans of the process have in common. Called before the first span.
    fn set_resource(&mut self, resource: &Resource);

    /// The same format for spans of another process, with that one's resource.
    fn of_resource(&self, resource: &Resource) -> Self
    where
        Self: Sized;

    /// Appends one line, line feed included, to `buffer`. On the path of every span, under a lock.
    fn write_line(&self, buffer: &mut Vec<u8>, span: &SpanData);

    /// Whether [`push_name`](Self::push_name) and the others after it are there: then spans that nobody else gets are
    /// rendered as they grow, which is cheaper by far.
    const RENDERS: bool = false;

    /// As [`SpanWriter::push_name`] says.
    fn push_name(_rendered: &mut Vec<u8>, _name: &[u8]) {}

    /// As [`SpanWriter::push_key`] says.
    fn push_key(_rendered: &mut Vec<u8>, _key: &[u8]) {}

    /// As [`SpanWriter::push_value`] says.
    fn push_value(_rendered: &mut Vec<u8>, _value: AttributeValue<'_>) {}

    /// As [`SpanWriter::push_event`] says.
    fn push_event(_rendered: &mut Vec<u8>, _event: &Event) {}

    /// As [`SpanWriter::push_link`] says.
    fn push_link(_rendered: &mut Vec<u8>, _link: &Link) {}

    /// Appends one line, as [`write_line`](Self::write_line) does.
    fn write_rendered_line(&self, _buffer: &mut Vec<u8>, _span: &RenderedSpan<'_>) {}

    /// The form, if the host knows it: then it appends to the file what the process has left when it died.
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
    pid: u32,
    buffer: Mutex<Buffer<F>>,
    file: Mutex<Output>,
    /// How many bytes wait in [`Output::unwritten`], so that [`KEEP`] can be tested without its lock.
    unwritten_len: AtomicUsize,
    /// Spans dropped since the last commit, which reports them.
    dropped: AtomicU64,
}

/// Lines that nobody has tried to write yet.
#[derive(Debug)]
struct Buffer<F> {
    bytes: Vec<u8>,
    format: F,
}

#[derive(Debug)]
struct Output {
    file: SpanFile,
    /// Lines that come before those in the buffer: an earlier attempt to write them failed, or they are being written.
    unwritten: Vec<u8>,
}

impl FileProcessor {
    /// Checks the folder, creating it if it is missing. Creates no file.
    pub fn try_new(dir: &Path, rotation: Rotation) -> Result<FileProcessor, SpanDirError> {
        let file = SpanFile::try_new(dir, std::process::id(), rotation)?;
        Ok(FileProcessor::new(file, ConsoleFormat::default()))
    }

    /// A processor for the folder that `TRACER_SPANS_DIR` says, else `/tmp/spans`, with [`Rotation::from_env`].
    pub fn in_env_dir() -> Result<FileProcessor, SpanDirError> {
        FileProcessor::try_new(&dir_from_env(), Rotation::from_env())
    }
}

impl<F: LineFormat> FileProcessor<F> {
    /// A processor for another format, whose lines go to `<pid>.<extension>`. Checks the folder as
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
        let shared = Shared {
            path: file.path(),
            pid: file.pid(),
            buffer: Mutex::new(Buffer { bytes: Vec::new(), format }),
            file: Mutex::new(Output { file, unwritten: Vec::new() }),
            unwritten_len: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
        };
        FileProcessor { shared: Arc::new(shared) }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// What became of the lines so far. Spans dropped lately are counted at the next commit.
    pub fn counts(&self) -> Counts {
        self.shared.lock_file().file.counts()
    }
}

impl<F> Shared<F> {
    // Neither lock guards anything that a panic could leave half-done: lines are appended whole, or cut off again.

    fn lock_file(&self) -> MutexGuard<'_, Output> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_buffer(&self) -> MutexGuard<'_, Buffer<F>> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts everything that is buffered into the file, in order. On failure the lines that are not in the file wait for the
    /// next attempt.
    fn write(&self, output: &mut Output) -> Result<(), String> {
        {
            let mut buffer = self.lock_buffer();
            if output.unwritten.is_empty() {
                std::mem::swap(&mut output.unwritten, &mut buffer.bytes);
            } else {
                output.unwritten.append(&mut buffer.bytes);
            }
            self.unwritten_len.store(output.unwritten.len(), Ordering::Relaxed);
        }
        if output.unwritten.is_empty() {
            return Ok(());
        }
        let own = std::process::id();
        let result = if own == self.pid {
            output.file.append(&output.unwritten).map_err(|error| (error.consumed(), error.to_string()))
        } else {
            self.dropped.fetch_add(count_lines(&output.unwritten), Ordering::Relaxed);
            let text = format!(
                "process {own} was forked from process {} after that had set up tracing, so its spans are dropped\n\
                 (hint: start programs with exec, which gives them tracing of their own)",
                self.pid
            );
            Err((output.unwritten.len(), text))
        };
        let consumed = result.as_ref().err().map_or(output.unwritten.len(), |(consumed, _)| *consumed);
        output.unwritten.drain(..consumed);
        self.unwritten_len.store(output.unwritten.len(), Ordering::Relaxed);
        if output.unwritten.is_empty() {
            let mut buffer = self.lock_buffer();
            if buffer.bytes.is_empty() {
                // It gets its memory back, which is in the cache.
                std::mem::swap(&mut output.unwritten, &mut buffer.bytes);
            }
        }
        result.map_err(|(_, text)| text)
    }

    /// Takes the lines of spans that have ended.
    fn append<T>(&self, spans: impl Iterator<Item = T>, write_line: impl Fn(&F, &mut Vec<u8>, T)) {
        let mut is_due = false;
        {
            let mut buffer = self.lock_buffer();
            let Buffer { bytes, format } = &mut *buffer;
            for span in spans {
                is_due |= if bytes.len() + self.unwritten_len.load(Ordering::Relaxed) < KEEP {
                    let before = bytes.len();
                    write_line(format, bytes, span);
                    // Once per so many bytes, not once per span, in case nothing can be written now.
                    before / WRITE_AT != bytes.len() / WRITE_AT
                } else {
                    self.dropped.fetch_add(1, Ordering::Relaxed).is_multiple_of(RETRY_EVERY)
                };
            }
        }
        if is_due {
            self.try_write();
        }
    }

    /// Writes when nobody else is writing just now.
    fn try_write(&self) {
        if let Ok(mut output) = self.file.try_lock() {
            // The next commit reports it: the lines wait for it, or are counted.
            let _ = self.write(&mut output);
        }
    }
}

fn count_lines(lines: &[u8]) -> u64 {
    lines.iter().filter(|&&byte| byte == b'\n').count() as u64
}

impl<F: LineFormat> SpanProcessor for FileProcessor<F> {
    fn on_start(&self, _span: &mut Span, _cx: &Context) {}

    fn on_end(&self, span: SpanData) {
        if !span.span_context.is_sampled() {
            return;
        }
        self.shared.append(std::iter::once(&span), |format, buffer, span| format.write_line(buffer, span));
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.commit().map_err(OTelSdkError::InternalFailure)
    }

    /// Writes what there is and closes the file. What is written after that all the same opens it again.
    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        let flushed = self.force_flush();
        if std::process::id() == self.shared.pid {
            self.shared.lock_file().file.close();
        }
        flushed
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.shared.lock_buffer().format.set_resource(resource);
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
        self.append(std::iter::once(span), |format, buffer, span| format.write_rendered_line(buffer, span));
    }

    fn on_end_all<'a>(&self, spans: &mut dyn Iterator<Item = RenderedSpan<'a>>) {
        self.append(spans, |format, buffer, span| format.write_rendered_line(buffer, &span));
    }
}

impl<F: LineFormat> DurableProcessor for FileProcessor<F> {
    fn commit(&self) -> Result<(), String> {
        let shared = &*self.shared;
        let mut output = shared.lock_file();
        let result = shared.write(&mut output);
        let dropped = shared.dropped.swap(0, Ordering::Relaxed);
        output.file.count_dropped(dropped);
        let waiting = count_lines(&output.unwritten);
        match result {
            Ok(()) if dropped == 0 => Ok(()),
            Ok(()) => Err(format!(
                "{dropped} spans were dropped while span file `{}` could not be written; it can be written again",
                shared.path.display()
            )),
            Err(text) => Err(format!("{text} ({waiting} spans wait in memory, {dropped} were dropped)")),
        }
    }

    fn span_file(&self) -> Option<(PathBuf, FileFormat)> {
        Some((self.shared.path.clone(), self.shared.lock_buffer().format.known()?))
    }

    fn span_writer(&self) -> Option<Arc<dyn SpanWriter>> {
        let shared = Arc::clone(&self.shared);
        F::RENDERS.then_some(shared as _)
    }

    fn take_over(&self, resource: &Resource, spans: Vec<SpanData>) -> Result<(), String> {
        let shared = &*self.shared;
        let format = shared.lock_buffer().format.of_resource(resource);
        let mut lines = Vec::new();
        for span in spans.iter().filter(|span| span.span_context.is_sampled()) {
            format.write_line(&mut lines, span);
        }
        {
            let mut output = shared.lock_file();
            // What could not be written before comes first; whoever gave these spans keeps them meanwhile.
            shared.write(&mut output)?;
            let written = output.file.append(&lines);
            if let Err(error) = written {
                // Some are in the file: the others follow them, and the caller must not give all of them again.
                let consumed = error.consumed();
                if consumed == 0 {
                    return Err(error.to_string());
                }
                output.unwritten.extend_from_slice(&lines[consumed..]);
                shared.unwritten_len.store(output.unwritten.len(), Ordering::Relaxed);
            }
        }
        Ok(())
    }
}
