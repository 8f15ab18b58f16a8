//! Log records and lines of output together, in the order of their times: each with its attempt and its span.
//!
//! ```text
//!   logs of a session and their indexes ─▶ lines   ─┐
//!   <spans>/*.logs.jsonl                ─▶ records ─┴▶ selection ─▶ the newest, or those after a cursor ─▶ spans ─▶ answer
//!   spans of their traces               ──────────────────────────────────────────────────────────────────┘
//! ```
//!
//! All files are read at once, by time, and of each no more is in memory than what is next.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fmt, io};

use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};
use tracer_core::clock::{now_unix_nano, parse_rfc3339};
use tracer_core::parameters;
use tracer_core::problem::{self, Problem};
use tracer_core::task::TaskId;
use tracer_ipc::protocol::Stream;
use tracer_ipc::task_output::{Extent, Owner};

use crate::json;
use crate::live::Live;
use crate::load::load_traces;
use crate::loaded::{Loaded, Trace};
use crate::log_records::{FoundRecord, LogRecord, RecordTail, severity_named};
use crate::owners::Owners;
use crate::read::LoadError;
use crate::span::{Attributes, SpanId, TraceId};
use crate::task_logs::{Line, TaskLogs, task_of};

/// The most bytes of texts and attributes in one answer.
const ANSWER_BYTES: usize = 4 << 20;

/// Origin of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Stdout,
    Stderr,
    /// A log record.
    Record,
}

impl Origin {
    pub(crate) const ALL: [Origin; 3] = [Origin::Stdout, Origin::Stderr, Origin::Record];

    pub fn name(self) -> &'static str {
        match self {
            Origin::Stdout => "stdout",
            Origin::Stderr => "stderr",
            Origin::Record => "record",
        }
    }
}

/// A line of output or a log record.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Of a line, the time at which the head read its beginning; of a record, that of its event. In nanoseconds since the Unix epoch.
    pub unix_nano: u64,
    pub origin: Origin,
    /// The line, or the record's message.
    pub text: String,
    /// True of a line that does not end here: the next entry of its writer goes on with it, if there is one.
    pub is_partial: bool,
    /// The message as it was written, if it is no text.
    body: Option<serde_json::Value>,
    /// Name of the severity of a record; empty if there is none.
    pub severity: String,
    /// Number of the severity in OpenTelemetry, from 1 to 24; 0 if it is not known.
    severity_number: u8,
    /// Attributes of a record.
    pub attributes: Attributes,
    /// Instrumentation scope of a record.
    scope: Option<String>,
    pub task: Option<TaskId>,
    /// Number of the attempt; none for calls of an actor that share their output.
    pub attempt: Option<u32>,
    pub(crate) trace_id: Option<TraceId>,
    pub span_id: Option<SpanId>,
    /// Name of the span, where the span is known.
    pub span_name: Option<String>,
    pub worker_id: Option<u64>,
    pub pid: Option<u32>,
    /// True if it may be another task's: a line that came without a mark, or a record whose span is not kept.
    pub is_approximate: bool,
    place: Place,
}

/// Place of an entry among all: its time, and where it is stored. In texts: `<time>-<inode>-<offset>-<number>`, in hexadecimal digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    unix_nano: u64,
    inode: u64,
    offset: u64,
    number: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:x}-{:x}-{:x}", self.unix_nano, self.inode, self.offset, self.number)
    }
}

impl FromStr for Place {
    type Err = ();

    fn from_str(text: &str) -> Result<Place, ()> {
        let mut parts = text.split('-');
        let mut next = |digits: usize| {
            let part = parts.next().ok_or(())?;
            let is_hex = part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            let part = Some(part).filter(|part| is_hex && (1..=digits).contains(&part.len())).ok_or(())?;
            u64::from_str_radix(part, 16).map_err(|_| ())
        };
        let (unix_nano, inode, offset) = (next(16)?, next(16)?, next(16)?);
        let number = u32::try_from(next(8)?).map_err(|_| ())?;
        if parts.next().is_some() { Err(()) } else { Ok(Place { unix_nano, inode, offset, number }) }
    }
}

impl Entry {
    fn of_line(line: Line) -> Entry {
        let (attempt, trace_id) = match line.owner {
            Owner::Attempt { attempt, trace_id, .. } => {
                (Some(attempt), Some(TraceId(u128::from_be_bytes(trace_id))).filter(|id| id.0 != 0))
            }
            _ => (None, None),
        };
        let (inode, offset) = line.place;
        Entry {
            unix_nano: line.unix_nano,
            origin: if line.stream == Stream::Stdout { Origin::Stdout } else { Origin::Stderr },
            text: line.text,
            is_partial: line.is_partial,
            body: None,
            severity: String::new(),
            severity_number: 0,
            attributes: Attributes::default(),
            scope: None,
            task: task_of(line.owner),
            attempt,
            trace_id,
            span_id: None,
            span_name: None,
            worker_id: Some(line.worker.0),
            pid: Some(line.worker.1),
            is_approximate: line.is_approximate,
            place: Place { unix_nano: line.unix_nano, inode, offset, number: 0 },
        }
    }

    fn of_record(found: FoundRecord) -> Entry {
        let FoundRecord { record, severity, trace_id, attempt, stem, pid, scope, place } = found;
        let (inode, offset, number) = place;
        let (text, body) = match record.body {
            serde_json::Value::String(text) => (text, None),
            serde_json::Value::Null => (String::new(), Some(serde_json::Value::Null)),
            other => (other.to_string(), Some(other)),
        };
        Entry {
            unix_nano: record.time_unix_nano,
            origin: Origin::Record,
            text,
            is_partial: false,
            body,
            severity: record.severity,
            severity_number: severity,
            attributes: record.attributes,
            scope: Some(scope).filter(|scope| !scope.is_empty()),
            task: attempt.map(|(task, _)| task),
            attempt: attempt.map(|(_, attempt)| attempt),
            // What a command logs outside of its spans is of its attempt.
            trace_id: trace_id.or(stem.map(|(trace_id, _)| trace_id)),
            span_id: record.span_id.or(stem.filter(|_| trace_id.is_none()).map(|(_, span_id)| span_id)),
            span_name: None,
            worker_id: None,
            pid,
            is_approximate: false,
            place: Place { unix_nano: record.time_unix_nano, inode, offset, number },
        }
    }

    /// Completes it with what the spans of its trace say.
    fn complete(&mut self, owners: &Owners) {
        match self.span_id {
            Some(span_id) if self.task.is_none() => {
                let attempt = owners.attempt_of(span_id);
                self.task = attempt.map(|(task, _)| task);
                self.attempt = attempt.map(|(_, attempt)| attempt);
            }
            None => self.span_id = self.task.zip(self.attempt).and_then(|attempt| owners.span_of(attempt)),
            _ => {}
        }
        self.span_name = self.span_id.and_then(|span_id| owners.name_of(span_id)).map(str::to_owned);
    }

    /// Returns whether these are the attempts of its trace with its span.
    fn is_in(&self, owners: &Owners) -> bool {
        match self.span_id {
            Some(span_id) => owners.name_of(span_id).is_some(),
            None => self.task.zip(self.attempt).is_none_or(|attempt| owners.span_of(attempt).is_some()),
        }
    }

    /// Returns it as a log record; a line has the name of its stream as severity.
    pub fn into_log_record(self) -> LogRecord {
        let is_record = self.origin == Origin::Record;
        LogRecord {
            time_unix_nano: self.unix_nano,
            severity: if is_record { self.severity } else { self.origin.name().into() },
            body: self.body.unwrap_or_else(|| self.text.into()),
            span_id: self.span_id,
            attributes: self.attributes,
        }
    }

    /// Returns about how many bytes it takes.
    pub fn bytes(&self) -> usize {
        let attributes = self.attributes.0.iter().map(|(key, value)| key.len() + value.to_string().len());
        self.text.len() + attributes.sum::<usize>() + 512
    }
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let is_record = self.origin == Origin::Record;
        let time = Some(self.unix_nano).filter(|&time| time > 0);
        let mut object = serializer.serialize_struct("Entry", 18)?;
        object.serialize_field("time", &time.map(json::time_text))?;
        object.serialize_field("unix_ms", &time.map(|time| time / 1_000_000))?;
        object.serialize_field("unix_nano", &time)?;
        object.serialize_field("stream", self.origin.name())?;
        object.serialize_field("text", &self.text)?;
        object.serialize_field("is_partial", &self.is_partial)?;
        object.serialize_field("severity", &is_record.then_some(&self.severity))?;
        object.serialize_field("severity_number", &is_record.then_some(self.severity_number))?;
        let attributes = || self.attributes.0.iter().cloned().collect::<serde_json::Map<_, _>>();
        object.serialize_field("attributes", &is_record.then(attributes))?;
        object.serialize_field("scope", &self.scope)?;
        object.serialize_field("task_id", &self.task)?;
        object.serialize_field("attempt", &self.attempt)?;
        object.serialize_field("trace_id", &self.trace_id)?;
        object.serialize_field("span_id", &self.span_id)?;
        object.serialize_field("span_name", &self.span_name)?;
        object.serialize_field("worker_id", &self.worker_id)?;
        object.serialize_field("pid", &self.pid)?;
        object.serialize_field("is_approximate", &self.is_approximate)?;
        object.end()
    }
}

/// Tasks whose entries are wanted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tasks {
    pub ids: BTreeSet<TaskId>,
    /// Their traces, as far as they are known.
    pub traces: BTreeSet<TraceId>,
    /// Time of the submission, if it is known: what is older is of another session's task of that id.
    pub since_unix_nano: u64,
}

/// Selection of entries. What is not given lets everything through.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selection {
    pub tasks: Option<Tasks>,
    /// The beginning of a trace's id, in lower case.
    pub trace: Option<String>,
    /// Text that is in the line or message.
    pub text: Option<String>,
    pub origin: Option<Origin>,
    /// Only records of at least this severity; 0 lets lines through too.
    pub least_severity: u8,
    pub since_unix_nano: u64,
    /// Time from which on nothing is wanted; none for no end.
    pub until_unix_nano: Option<u64>,
}

impl Selection {
    pub(crate) fn wants_lines(&self) -> bool {
        self.origin != Some(Origin::Record) && self.least_severity == 0
    }

    pub(crate) fn wants_records(&self) -> bool {
        matches!(self.origin, None | Some(Origin::Record))
    }

    fn is_in_time(&self, unix_nano: u64) -> bool {
        unix_nano >= self.since_unix_nano && self.until_unix_nano.is_none_or(|until| unix_nano < until)
    }

    /// Returns whether a piece of output may have lines that are wanted. `trunk` names the trace that one is shown in.
    pub fn wants(&self, extent: &Extent, trunk: impl Fn(TraceId) -> TraceId) -> bool {
        let is_of_task = |tasks: &Tasks| {
            extent.unix_nano >= tasks.since_unix_nano
                && task_of(extent.owner).is_some_and(|task| tasks.ids.contains(&task))
        };
        let trace_id = match extent.owner {
            Owner::Attempt { trace_id, .. } => Some(TraceId(u128::from_be_bytes(trace_id))).filter(|id| id.0 != 0),
            _ => None,
        };
        // Not by its time, which is that of a piece: a line is of the time at which it begins.
        self.tasks.as_ref().is_none_or(is_of_task) && self.is_of_trace(trace_id, trunk)
    }

    fn is_of_trace(&self, id: Option<TraceId>, trunk: impl Fn(TraceId) -> TraceId) -> bool {
        let Some(beginning) = &self.trace else { return true };
        let begins = |id: TraceId| id.to_string().starts_with(beginning.as_str());
        id.is_some_and(|id| begins(id) || begins(trunk(id)))
    }

    /// Returns whether an entry is of the wanted tasks; none if its span has to be known for that, and is not.
    fn has_task(&self, entry: &Entry, known: &KnownTraces) -> Option<bool> {
        let Some(tasks) = &self.tasks else { return Some(true) };
        if entry.unix_nano < tasks.since_unix_nano {
            return Some(false);
        }
        if let Some(task) = entry.task {
            return Some(tasks.ids.contains(&task));
        }
        let Some((id, span_id)) = entry.trace_id.zip(entry.span_id) else { return Some(false) };
        let owners = known.of(id)?;
        match owners.attempt_of(span_id) {
            Some((task, _)) => Some(tasks.ids.contains(&task)),
            None => owners.name_of(span_id).map(|_| false),
        }
    }

    /// Returns whether no other tasks are known in the trace of an entry than those that are wanted.
    fn has_all_tasks(&self, entry: &Entry, known: &KnownTraces) -> bool {
        let Some(tasks) = &self.tasks else { return true };
        let Some(id) = entry.trace_id.filter(|id| tasks.traces.contains(&known.trunk(*id))) else { return false };
        known.of(id).is_none_or(|owners| owners.tasks().all(|task| tasks.ids.contains(&task)))
    }

    /// Returns whether an entry is wanted, by everything but its task.
    fn fits(&self, entry: &Entry) -> bool {
        self.is_in_time(entry.unix_nano)
            && self.origin.is_none_or(|origin| origin == entry.origin)
            && (self.least_severity == 0 || entry.severity_number >= self.least_severity)
            && self.text.as_ref().is_none_or(|text| entry.text.contains(text.as_str()))
    }

    /// Returns texts of which one is in every line of a file with wanted records; none if each line may have some.
    fn texts(&self, known: &KnownTraces) -> Vec<String> {
        let traces: Vec<String> = match (&self.trace, &self.tasks) {
            (Some(beginning), _) => vec![beginning.clone()],
            (None, Some(tasks)) => tasks.traces.iter().map(TraceId::to_string).collect(),
            (None, None) => return Vec::new(),
        };
        // A line has the id of the attempt's trace too, unless its records came with one of their own.
        let trunks = known.trunks.iter().flat_map(|(part, trunk)| [part.to_string(), trunk.to_string()]);
        let mut texts: Vec<String> = traces.into_iter().chain(trunks).collect();
        texts.sort();
        texts.dedup();
        texts
    }
}

/// Source of spans.
pub enum Spans<'a> {
    /// Spans of one trace, which have been read, with the traces that are parts of it.
    OfTrace(&'a Trace, Vec<TraceId>),
    /// They are read when they are needed, from the files of the folder and from the spools of a session.
    Stored(Option<Live>),
}

/// Attempts of traces.
#[derive(Default)]
struct KnownTraces {
    owners: HashMap<TraceId, Owners>,
    /// Traces of commands, with those that they are part of.
    trunks: HashMap<TraceId, TraceId>,
}

impl KnownTraces {
    /// Returns the trace that one is shown in.
    fn trunk(&self, id: TraceId) -> TraceId {
        self.trunks.get(&id).copied().unwrap_or(id)
    }

    fn of(&self, id: TraceId) -> Option<&Owners> {
        self.owners.get(&self.trunk(id))
    }

    fn take_in(&mut self, loaded: &Loaded, is_wanted: impl Fn(TraceId) -> bool) {
        for (part, trunk) in loaded.parts() {
            if is_wanted(part) || is_wanted(trunk) {
                self.trunks.insert(part, trunk);
            }
        }
        let trunks: BTreeSet<TraceId> = self.trunks.values().copied().collect();
        for trace in loaded.traces.iter().filter(|trace| is_wanted(trace.id) || trunks.contains(&trace.id)) {
            self.owners.insert(trace.id, Owners::of(trace));
        }
    }
}

/// Reader of the entries that a selection lets through. Each is handed on once, however often it reads.
pub struct Reader<'a> {
    selection: Selection,
    folder: PathBuf,
    /// Output of sessions.
    lines: Vec<TaskLogs>,
    records: RecordTail,
    /// Texts of which one is in every line of a file with wanted records; none if no records are read in this round.
    texts: Option<Vec<String>>,
    spans: Spans<'a>,
    known: KnownTraces,
    /// True if the spans of the selection were read in this round, and the traces whose spans were: none is read twice.
    has_learned: bool,
    completed: HashSet<TraceId>,
}

impl<'a> Reader<'a> {
    /// Makes a reader of the log records in a folder of span files, and of the output in the logs of sessions. Nothing is read yet.
    pub fn new<'p>(
        selection: Selection,
        folder: &Path,
        session_dirs: impl IntoIterator<Item = &'p Path>,
        spans: Spans<'a>,
    ) -> Reader<'a> {
        Reader {
            lines: session_dirs.into_iter().map(TaskLogs::of_session).collect(),
            records: RecordTail::new(folder),
            texts: None,
            has_learned: false,
            completed: HashSet::new(),
            folder: folder.into(),
            known: KnownTraces::default(),
            selection,
            spans,
        }
    }

    /// Returns the selection, to widen it.
    pub fn selection(&mut self) -> &mut Selection {
        &mut self.selection
    }

    /// Returns the trace that an entry is shown in.
    pub fn trunk_of(&self, entry: &Entry) -> Option<TraceId> {
        entry.trace_id.map(|id| self.known.trunk(id))
    }

    /// Begins to read what has come since the last time; with `is_last`, lines that have not come to their end too.
    pub(crate) fn begin(&mut self, is_last: bool) -> io::Result<()> {
        self.begin_with(is_last, None)
    }

    /// The same, where so many of the newest entries are enough: of older lines, as few are read as may be.
    pub fn begin_with(&mut self, is_last: bool, newest: Option<usize>) -> io::Result<()> {
        (self.has_learned, self.texts) = (false, None);
        self.completed.clear();
        if self.known.owners.is_empty() {
            self.learn()?;
        }
        let (selection, known) = (&self.selection, &self.known);
        // What a line says is known once it was read.
        let chooses = selection.text.is_some() || selection.origin.is_some() || selection.until_unix_nano.is_some();
        let newest = newest.filter(|_| !chooses);
        for logs in self.lines.iter_mut().filter(|_| selection.wants_lines()) {
            logs.begin(is_last, newest, |extent| selection.wants(extent, |id| known.trunk(id)))?;
        }
        if selection.wants_records() {
            let texts = selection.texts(known);
            // Of tasks that are in no trace, there are no records.
            self.texts = Some(texts).filter(|texts| selection.tasks.is_none() || !texts.is_empty());
        }
        if let Some(texts) = &self.texts {
            self.records.begin(texts);
        }
        Ok(())
    }

    /// Takes a step, and hands on the next entry, if there is one that is wanted. False if there are no more. Their tasks and spans may lack:
    /// [`Reader::complete`] adds them.
    ///
    /// They come in the order of their times, with the exceptions of [`TaskLogs`] and [`RecordTail`].
    pub fn step(&mut self, take: impl FnMut(Entry)) -> io::Result<bool> {
        let logs = self.lines.iter_mut().filter_map(|logs| Some((logs.first()?, logs))).min_by_key(|(key, _)| *key);
        let record = self.records.first().filter(|_| self.texts.is_some());
        match (logs, record) {
            (Some((line, logs)), record) if record.is_none_or(|record| line < record) => {
                let (selection, known) = (&self.selection, &self.known);
                let line = logs.take(|extent| selection.wants(extent, |id| known.trunk(id)))?;
                let entry = line.map(Entry::of_line).filter(|entry| selection.fits(entry));
                entry.into_iter().for_each(take);
            }
            (_, Some(_)) => {
                let found = self.records.take(self.texts.as_deref().unwrap_or_default());
                if let Some(found) = found {
                    self.choose(Entry::of_record(found))?.into_iter().for_each(take);
                }
            }
            (_, None) => return Ok(false),
        }
        Ok(true)
    }

    /// Returns a record if it is wanted.
    fn choose(&mut self, mut entry: Entry) -> io::Result<Option<Entry>> {
        let is_of_trace = |known: &KnownTraces, selection: &Selection, entry: &Entry| {
            selection.is_of_trace(entry.trace_id, |id| known.trunk(id))
        };
        if !self.selection.fits(&entry) || !is_of_trace(&self.known, &self.selection, &entry) {
            return Ok(None);
        }
        let mut has_task = self.selection.has_task(&entry, &self.known);
        if has_task.is_none() && !std::mem::replace(&mut self.has_learned, true) {
            self.learn()?;
            has_task = self.selection.has_task(&entry, &self.known);
        }
        // Without its span, it is known by its trace alone.
        entry.is_approximate = has_task.is_none();
        let is_wanted = has_task.unwrap_or_else(|| self.selection.has_all_tasks(&entry, &self.known));
        Ok(Some(entry).filter(|_| is_wanted))
    }

    /// Takes messages on what could not be read.
    pub fn take_notices(&mut self) -> Vec<String> {
        self.records.take_notices().iter().map(ToString::to_string).collect()
    }

    /// Adds tasks and spans to entries, as far as their spans are found.
    pub fn complete<'e>(&mut self, entries: impl Iterator<Item = &'e mut Entry>) -> io::Result<()> {
        let mut entries: Vec<&mut Entry> = entries.collect();
        let is_known = |known: &KnownTraces, entry: &Entry| {
            let owners = entry.trace_id.and_then(|id| known.of(id));
            owners.is_some_and(|owners| entry.is_in(owners))
        };
        let unknown = entries.iter().filter(|entry| !is_known(&self.known, entry)).filter_map(|entry| entry.trace_id);
        let wanted: BTreeSet<TraceId> = unknown.filter(|id| self.completed.insert(*id)).collect();
        if !wanted.is_empty() {
            self.learn_of(&wanted.iter().map(TraceId::to_string).collect::<Vec<_>>())?;
        }
        for entry in &mut entries {
            if let Some(owners) = entry.trace_id.and_then(|id| self.known.of(id)) {
                entry.complete(owners);
            }
        }
        Ok(())
    }

    /// Reads the spans of the traces that are selected.
    fn learn(&mut self) -> io::Result<()> {
        let beginnings = match (&self.selection.trace, &self.selection.tasks) {
            (Some(beginning), _) => vec![beginning.clone()],
            (None, Some(tasks)) => tasks.traces.iter().map(TraceId::to_string).collect(),
            (None, None) => Vec::new(),
        };
        self.learn_of(&beginnings)
    }

    fn learn_of(&mut self, beginnings: &[String]) -> io::Result<()> {
        if beginnings.is_empty() {
            return Ok(());
        }
        let is_wanted = |id: TraceId| {
            let id = id.to_string();
            beginnings.iter().any(|beginning| id.starts_with(beginning.as_str()))
        };
        let live = match &mut self.spans {
            Spans::OfTrace(trace, parts) => {
                self.known.trunks.extend(parts.iter().map(|part| (*part, trace.id)));
                self.known.owners.entry(trace.id).or_insert_with(|| Owners::of(trace));
                return Ok(());
            }
            Spans::Stored(live) => live,
        };
        // The spools before the files: what is written in between is then in both, and not in neither.
        let open = live.as_mut().map(|live| live.look(now_unix_nano(), is_wanted).spans).unwrap_or_default();
        let mut loaded = match load_traces(&self.folder, beginnings) {
            Ok(loaded) => loaded,
            Err(LoadError::Missing { .. }) => Loaded::empty(&self.folder),
            Err(LoadError::Unreadable { source, .. }) => return Err(source),
        };
        loaded.add(open.into_iter().map(|open| open.span));
        self.known.take_in(&loaded, is_wanted);
        Ok(())
    }
}

/// Entries of a trace and the traces that are parts of it, by time: log records of the folder, and lines from the logs of sessions.
#[derive(Debug, Default)]
pub struct OfTrace {
    /// The first ones, about 4 MiB of them at most.
    pub entries: Vec<Entry>,
    /// Number of the others.
    pub left_out: u64,
    /// Messages on what could not be read.
    pub notices: Vec<String>,
}

/// Reads the first `limit` entries of what was written during a trace.
pub fn of_trace(
    folder: &Path,
    session_dirs: &[PathBuf],
    trace: &Trace,
    parts: Vec<TraceId>,
    limit: usize,
) -> io::Result<OfTrace> {
    let selection = Selection { trace: Some(trace.id.to_string()), ..Selection::default() };
    // A session that has just begun, or has been removed, has no logs.
    let session_dirs =
        session_dirs.iter().map(PathBuf::as_path).filter(|dir| TaskLogs::of_session(dir).folder().is_dir());
    let reader = Reader::new(selection, folder, session_dirs, Spans::OfTrace(trace, parts));
    let Page { entries, left_out, notices, .. } =
        reader.page(Part::Oldest { after: Place::default(), before: None }, limit)?;
    Ok(OfTrace { entries, left_out, notices })
}

/// Part of what a selection lets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The newest, or the newest before a place.
    Newest { before: Option<Place> },
    /// The oldest behind a place, or between two.
    Oldest { after: Place, before: Option<Place> },
}

/// A request for entries, from the parameters of a URL.
#[derive(Clone, Debug, PartialEq)]
pub struct PageRequest {
    /// The task in `task`. What else is known of it is for whoever answers.
    pub task: Option<TaskId>,
    pub selection: Selection,
    pub part: Part,
    pub limit: usize,
}

impl PageRequest {
    /// The parameters that there are.
    pub const PARAMETERS: &[&str] =
        &["task", "trace", "text", "stream", "level", "since", "until", "limit", "before", "after"];
    /// The entries that are answered if the request does not say how many.
    pub(crate) const DEFAULT_LIMIT: usize = 200;
    /// The most entries of one answer.
    pub(crate) const LIMIT: usize = 5000;

    /// Reads the parameters. On failure: what is wrong with one.
    pub fn new(parameters: &[(String, String)]) -> Result<PageRequest, Problem> {
        let text = |name: &str| parameters::text(parameters, name);
        let wrong = |name: &str, found: &str, expected: &str| {
            Problem::new(problem::INVALID, format!("`{name}` is `{}`, but takes {expected}", found.escape_debug()))
        };
        let time = |name: &str| match text(name) {
            None => Ok(None),
            Some(found) => {
                parse_rfc3339(found).map(Some).ok_or_else(|| wrong(name, found, "a time as `2026-11-23T17:00:00Z`"))
            }
        };
        let place = |name: &str| match text(name) {
            None => Ok(None),
            Some(found) => {
                let expected = "what `before` or `after` of an answer is";
                found.parse::<Place>().map(Some).map_err(|()| wrong(name, found, expected))
            }
        };
        let task = parameters::number(parameters, "task", 1, u64::MAX)?.map(TaskId);
        let trace = match text("trace") {
            None => None,
            Some(found) => {
                let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
                let is_id = (1..=32).contains(&found.len()) && found.bytes().all(is_digit);
                let expected = "the id of a trace or its beginning, up to 32 hexadecimal digits in lower case";
                Some(Some(found.to_owned()).filter(|_| is_id).ok_or_else(|| wrong("trace", found, expected))?)
            }
        };
        let origin = match text("stream") {
            None => None,
            Some(found) => {
                let origin = Origin::ALL.into_iter().find(|origin| origin.name() == found);
                Some(origin.ok_or_else(|| wrong("stream", found, "`stdout`, `stderr` or `record`"))?)
            }
        };
        let least_severity = match text("level") {
            None => 0,
            Some(found) => severity_named(found)
                .filter(|_| found != "warning" && found.bytes().all(|byte| byte.is_ascii_lowercase()))
                .ok_or_else(|| wrong("level", found, "`trace`, `debug`, `info`, `warn`, `error` or `fatal`"))?,
        };
        let before = place("before")?;
        let part = match place("after")? {
            None => Part::Newest { before },
            Some(after) => Part::Oldest { after, before },
        };
        let limit = parameters::number(parameters, "limit", 1, Self::LIMIT as u64)?;
        Ok(PageRequest {
            task,
            selection: Selection {
                tasks: task.map(|task| Tasks { ids: BTreeSet::from([task]), ..Tasks::default() }),
                trace,
                text: text("text").map(str::to_owned),
                origin,
                least_severity,
                since_unix_nano: time("since")?.unwrap_or(0),
                until_unix_nano: time("until")?,
            },
            part,
            limit: limit.map_or(Self::DEFAULT_LIMIT, |limit| usize::try_from(limit).unwrap_or(Self::LIMIT)),
        })
    }
}

/// Entries of one answer.
#[derive(Debug, Serialize)]
pub struct Page {
    /// In the order of their times.
    pub entries: Vec<Entry>,
    /// Number of entries of the part that are not here: those before the first, or behind the last of a part that begins at a place.
    pub(crate) left_out: u64,
    /// Place of the first, before which there may be older ones.
    pub(crate) before: Option<String>,
    /// Place of the last, behind which newer ones come.
    pub(crate) after: Option<String>,
    /// Messages on what could not be read.
    pub(crate) notices: Vec<String>,
}

/// Entries that are kept, by their places.
struct Kept {
    part: Part,
    limit: usize,
    entries: BTreeMap<Place, Entry>,
    bytes: usize,
    left_out: u64,
}

impl Kept {
    fn take(&mut self, entry: Entry) {
        let (after, before) = match self.part {
            Part::Newest { before } => (None, before),
            Part::Oldest { after, before } => (Some(after), before),
        };
        if before.is_some_and(|before| entry.place >= before) || after.is_some_and(|after| entry.place <= after) {
            return;
        }
        self.bytes += entry.bytes();
        self.entries.insert(entry.place, entry);
        while self.entries.len() > self.limit || (self.bytes > ANSWER_BYTES && self.entries.len() > 1) {
            let surplus = match self.part {
                Part::Newest { .. } => self.entries.pop_first(),
                Part::Oldest { .. } => self.entries.pop_last(),
            };
            self.bytes -= surplus.map_or(0, |(_, entry)| entry.bytes());
            self.left_out += 1;
        }
    }
}

impl Reader<'_> {
    /// Reads a part of the entries, at most `limit` of them and about 4 MiB.
    pub fn page(mut self, part: Part, limit: usize) -> io::Result<Page> {
        let mut kept = Kept { part, limit, entries: BTreeMap::new(), bytes: 0, left_out: 0 };
        self.begin(true)?;
        while self.step(|entry| kept.take(entry))? {}
        let notices = self.take_notices();
        let mut entries: Vec<Entry> = kept.entries.into_values().collect();
        self.complete(entries.iter_mut())?;
        let place = |entry: Option<&Entry>| entry.map(|entry| entry.place.to_string());
        let (before, after) = (place(entries.first()), place(entries.last()));
        Ok(Page { entries, left_out: kept.left_out, before, after, notices })
    }
}

#[cfg(test)]
#[path = "log_entries_tests.rs"]
mod tests;
