//! Log records of this process: modules hand them to the host, which keeps them out of a SIGKILL's reach and brings them to the file of log records.
//!
//! ```text
//!   event ─▶ SDK ─▶ host_log_record ─▶ buffer beside the spool ──┬─▶ <spans>/<pid>.logs.jsonl
//!                                        (mapped: survives)      └─▶ hooks that take log records
//! ```
//!
//! The buffer is made for the first record, with a thread that empties it after a moment. A [commit](super::Recorder::commit) empties it too, so that
//! whoever sees that a task has ended finds its records. A process that logs nothing pays one load of a flag for each commit.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, OnceLock};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use tracer_abi as abi;
use tracer_core::clock::now_unix_nano;
use tracer_core::lock::lock;
use tracer_core::{LogEvents, LogLevel, LogSettings};
use tracer_ipc::spool::Spool;
use tracer_ipc::spool::logs::{LogBuffer, count, export_request, line_head, write_line};
use tracer_ipc::spool::record::OwnedValue;
use tracer_ipc::{fault, fork};
use tracer_span_file::{Rotation, SpanFile};

use super::log::log;
use super::records::read_sized;

/// Longest time that a record waits for its line.
const LINGER: Duration = Duration::from_millis(200);

/// Time after which a line is tried again that could not be written.
const RETRY: Duration = Duration::from_secs(1);

/// Extension of the names of the files with log records.
pub const EXTENSION: &str = "logs.jsonl";

static LOGS: OnceLock<Logs> = OnceLock::new();

/// The records of this process.
struct Logs {
    settings: LogSettings,
    spans_dir: PathBuf,
    spool: Option<&'static Spool>,
    sinks: Vec<LogSink>,
    /// True if there are records in the buffer.
    has_records: AtomicBool,
    state: Mutex<State>,
}

/// A hook's table as a place to bring log records to.
pub(super) struct LogSink {
    data: *mut c_void,
    log_export: unsafe extern "C" fn(*mut c_void, request: abi::Bytes, error: *mut abi::TextBuffer) -> u32,
}

// SAFETY: the table may be used from any thread by contract, and the pointer in it lives as long as the process.
unsafe impl Send for LogSink {}
// SAFETY: as above.
unsafe impl Sync for LogSink {}

impl LogSink {
    /// Returns the sink of a table, if it takes log records.
    pub(super) fn of(table: &abi::Tracing) -> Option<LogSink> {
        Some(LogSink { data: table.data, log_export: table.log_export? })
    }

    fn take(&self, request: &[u8]) -> Result<(), String> {
        let mut reason = [0; 1024];
        let mut error = abi::TextBuffer::new(&mut reason);
        // SAFETY: the hook's function with the hook's data; the request outlives the call.
        let status = unsafe { (self.log_export)(self.data, abi::Bytes::new(request), &mut error) };
        let filled = error.filled();
        if status == abi::STATUS_OK { Ok(()) } else { Err(String::from_utf8_lossy(&reason[..filled]).into_owned()) }
    }
}

#[derive(Default)]
struct State {
    open: Option<Open>,
    /// Time since which lines cannot be written, or were tried last; none while they can.
    failed: Option<Instant>,
    /// True if a hook has taken no records, which has been said.
    is_refused: bool,
    /// Records that found no room.
    lost: u64,
}

/// Buffer and file, from the first record on.
struct Open {
    buffer: LogBuffer,
    file: SpanFile,
    resource: Vec<(String, OwnedValue)>,
    /// The beginning of every line.
    head: Vec<u8>,
    line: Vec<u8>,
    /// The thread that writes what nothing else has written.
    writer: Option<Thread>,
}

/// Takes log records from now on, for as long as the process lives. The first call counts.
pub(super) fn take_from(settings: LogSettings, spans_dir: &Path, spool: Option<&'static Spool>, sinks: Vec<LogSink>) {
    let _ = LOGS.set(Logs {
        settings,
        spans_dir: spans_dir.into(),
        spool,
        sinks,
        has_records: AtomicBool::new(false),
        state: Mutex::default(),
    });
}

/// Fills in what modules are told about log records.
pub(super) fn notify(host: &mut abi::Host) {
    let Some(logs) = LOGS.get() else { return };
    host.host_log_record = Some(host_log_record);
    host.log_severity = logs.settings.level.severity();
    host.log_events = match (logs.settings.events, logs.settings.level) {
        (LogEvents::Span, _) | (_, LogLevel::Off) => abi::EVENTS_AS_SPAN_EVENTS,
        (LogEvents::Log, _) => abi::EVENTS_AS_LOG_RECORDS,
        (LogEvents::Both, _) => abi::EVENTS_AS_LOG_RECORDS | abi::EVENTS_AS_SPAN_EVENTS,
    };
}

/// Writes the records that are not in the file yet, if there are any. What cannot be written stays, and is said.
pub(super) fn write_out() {
    if let Some(logs) = LOGS.get()
        && logs.has_records.load(Acquire)
    {
        logs.try_to_write_out();
    }
}

unsafe extern "C" fn host_log_record(record: *const abi::LogRecord) -> u32 {
    let take = || {
        // SAFETY: lent for the call, by contract of the ABI; all bits zero are a record without anything.
        let record: abi::LogRecord = unsafe { read_sized(record) };
        match LOGS.get() {
            // A copy of this process has the same buffer, and must not touch it.
            Some(_) if fork::is_copy() => abi::STATUS_FAILED,
            // SAFETY: as above.
            Some(logs) => unsafe { logs.take(&record) },
            None => abi::STATUS_FAILED,
        }
    };
    catch_unwind(AssertUnwindSafe(take)).unwrap_or(abi::STATUS_PANICKED)
}

impl Logs {
    /// # Safety
    ///
    /// What the record points to is readable.
    unsafe fn take(&'static self, record: &abi::LogRecord) -> u32 {
        if record.severity < self.settings.level.severity() && record.severity != 0 {
            return abi::STATUS_OK;
        }
        let mut state = lock(&self.state);
        if state.open.is_none() {
            match self.open() {
                Ok(open) => state.open = Some(open),
                Err(reason) => return state.lose(&reason),
            }
        }
        if !state.open.as_ref().is_some_and(|open| open.buffer.has_room()) && !state.is_failing() {
            self.write_out(&mut state);
        }
        let Some(open) = &mut state.open else { return abi::STATUS_FAILED };
        // SAFETY: promised by the caller.
        if !unsafe { open.buffer.append(record, now_unix_nano()) } {
            return state.lose("the file of log records cannot be written");
        }
        if !self.has_records.swap(true, Release)
            && let Some(writer) = &open.writer
        {
            writer.unpark();
        }
        abi::STATUS_OK
    }

    fn open(&'static self) -> Result<Open, String> {
        let file = SpanFile::try_with_extension(&self.spans_dir, std::process::id(), EXTENSION, Rotation::from_env())
            .map_err(|error| error.to_string())?;
        let made = self.spool.map_or_else(LogBuffer::private, |spool| LogBuffer::create(spool.path()));
        let buffer = made.map_err(|error| format!("there is no space for them: {error}"))?;
        let resource: Vec<(String, OwnedValue)> = self.spool.map(Spool::resource).unwrap_or_default();
        let thread = thread::Builder::new().name("tracer-logs".into()).spawn(move || {
            loop {
                while !self.has_records.load(Acquire) {
                    thread::park();
                }
                thread::sleep(LINGER);
                self.try_to_write_out();
            }
        });
        // Without the thread, records are written when a task ends.
        let writer = thread.ok().map(|thread| thread.thread().clone());
        Ok(Open { buffer, file, head: line_head(&resource), resource, line: Vec::new(), writer })
    }

    /// Gives records to the hooks that take some.
    fn hand_on(&self, resource: &[(String, OwnedValue)], records: &[u8]) -> Result<(), String> {
        if self.sinks.is_empty() || records.is_empty() {
            return Ok(());
        }
        let request = export_request(resource, records);
        self.sinks.iter().map(|sink| sink.take(&request)).fold(Ok(()), Result::and)
    }

    /// Writes the records, unless that has failed just now.
    fn try_to_write_out(&self) {
        let mut state = lock(&self.state);
        if !state.is_failing() {
            self.write_out(&mut state);
        }
    }

    fn write_out(&self, state: &mut State) {
        let Some(open) = &mut state.open else { return };
        open.line.clear();
        write_line(&mut open.line, &open.head, open.buffer.records());
        let written = if open.line.is_empty() { Ok(()) } else { open.file.append(&open.line) };
        match written {
            Ok(()) => {
                fault::point("log_records_written");
                let exported = self.hand_on(&open.resource, open.buffer.records());
                if let Err(reason) = exported
                    && !std::mem::replace(&mut state.is_refused, true)
                {
                    log(&format!("log records are in their file, but a hook does not take them: {reason}"));
                }
                open.buffer.clear();
                self.has_records.store(false, Relaxed);
                state.failed = None;
            }
            Err(error) => {
                let waiting = count(open.buffer.records());
                if state.failed.replace(Instant::now()).is_none() {
                    log(&format!("log records cannot be written, {waiting} wait: {error}"));
                }
            }
        }
    }
}

impl State {
    /// Returns whether a line could not be written just now, so that nobody tries it again yet.
    fn is_failing(&self) -> bool {
        self.failed.is_some_and(|then| then.elapsed() < RETRY)
    }

    /// Counts a record that is lost, and says so for the first and then ever more rarely.
    fn lose(&mut self, reason: &str) -> u32 {
        self.lost += 1;
        if self.lost.is_power_of_two() {
            log(&format!("log records lost: {}, because {reason}", self.lost));
        }
        abi::STATUS_FULL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logs(spans_dir: &Path) -> &'static Logs {
        Box::leak(Box::new(Logs {
            settings: LogSettings::default(),
            spans_dir: spans_dir.into(),
            spool: None,
            sinks: Vec::new(),
            has_records: AtomicBool::new(false),
            state: Mutex::default(),
        }))
    }

    fn take(logs: &'static Logs, severity: u32) -> u32 {
        let record = abi::LogRecord {
            size: size_of::<abi::LogRecord>(),
            time_unix_nano: 0,
            span_context: std::ptr::null(),
            severity,
            severity_text: abi::Str::EMPTY,
            target: abi::Str::EMPTY,
            body: abi::Str::new("said"),
            attributes: std::ptr::null(),
            attribute_count: 0,
        };
        // SAFETY: all that it points to lives as long as the program.
        unsafe { logs.take(&record) }
    }

    fn lines(folder: &Path) -> usize {
        let path = folder.join(format!("{}.{EXTENSION}", std::process::id()));
        std::fs::read_to_string(path).map_or(0, |text| text.matches("said").count())
    }

    #[test]
    fn a_full_buffer_is_written_and_what_is_below_the_level_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let logs = logs(folder.path());
        assert_eq!(take(logs, abi::SEVERITY_DEBUG), abi::STATUS_OK);
        assert!(!logs.has_records.load(Acquire), "it is below the level");
        const RECORDS: usize = 20_000;
        (0..RECORDS).for_each(|_| assert_eq!(take(logs, abi::SEVERITY_INFO), abi::STATUS_OK));
        logs.write_out(&mut lock(&logs.state));
        assert_eq!(lines(folder.path()), RECORDS);
        assert_eq!(lock(&logs.state).lost, 0);
    }

    #[test]
    fn records_wait_while_their_file_cannot_be_written_and_those_beyond_that_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let logs = logs(folder.path());
        // A folder stands where the file is to be.
        let path = folder.path().join(format!("{}.{EXTENSION}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        let taken = (0..20_000).filter(|_| take(logs, abi::SEVERITY_INFO) == abi::STATUS_OK).count();
        assert!((1000..20_000).contains(&taken), "{taken} wait");
        assert_eq!(lock(&logs.state).lost, 20_000 - taken as u64);
        std::fs::remove_dir(&path).unwrap();
        logs.write_out(&mut lock(&logs.state));
        assert_eq!(lines(folder.path()), taken);
        assert_eq!(take(logs, abi::SEVERITY_INFO), abi::STATUS_OK);
    }
}
