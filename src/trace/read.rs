//! From the bytes of span files to spans.
//!
//! Two formats are told apart object by object, whatever a file is called: that of OpenTelemetry's Python console exporter, in each layout in
//! which it is written, and OTLP in JSON.
//!
//! Nothing in a file is fatal: what is not a span is counted and reported, what comes after it is read.

pub(super) mod otlp;
pub(super) mod python;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs;
use std::io::{self, Read, Seek};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::error::Category;

use super::span::{Kind, Span, SpanFile, SpanLocation, Status, TraceId};
use super::{Loaded, time};
use crate::count::Count;

/// Reason why a folder could not be read at all.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// There is no such folder.
    Missing {
        /// The folder.
        folder: PathBuf,
    },
    /// The folder cannot be listed.
    Unreadable {
        /// The folder.
        folder: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Missing { folder } => write!(
                f,
                "there is no spans folder `{}`: nothing has been traced yet, or the spans are elsewhere",
                folder.display()
            ),
            LoadError::Unreadable { folder, source } => {
                write!(f, "cannot read the spans folder `{}`: {source}", folder.display())
            }
        }
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LoadError::Missing { .. } => None,
            LoadError::Unreadable { source, .. } => Some(source),
        }
    }
}

/// Something in a file that could not be used. It prints as a sentence with the file's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The file.
    pub path: PathBuf,
    /// Problem with a file or a part of it, which was left out.
    pub problem: Problem,
}

/// Problem with a file or a part of it, which was left out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// The file cannot be read; the operating system's words.
    Unreadable(String),
    /// Records or lines that are no spans.
    NotSpans(usize),
    /// Records in the middle of the file that are cut off or damaged.
    Damaged(usize),
    /// The last record is cut off: its writer was killed, or is at it.
    Unfinished,
    /// The file may have spans, in a form that is not read: which one, and what to do.
    OtherForm(&'static str, &'static str),
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.path.file_name().unwrap_or(self.path.as_os_str()).display();
        match &self.problem {
            Problem::Unreadable(reason) => write!(f, "`{name}`: cannot be read: {reason}"),
            Problem::NotSpans(count) => {
                write!(f, "`{name}`: {} skipped that {} not a span", Count(*count, "record"), is_or_are(*count))
            }
            Problem::Damaged(count) => {
                write!(f, "`{name}`: {} skipped that {} damaged", Count(*count, "record"), is_or_are(*count))
            }
            Problem::Unfinished => write!(f, "`{name}`: the last record is cut off"),
            Problem::OtherForm(found, hint) => {
                write!(f, "`{name}` was passed over: expected spans in JSON, found a name of {found} (hint: {hint})")
            }
        }
    }
}

fn is_or_are(count: usize) -> &'static str {
    if count == 1 { "is" } else { "are" }
}

/// Extensions of span files: tracer's and the collector's, those of Ray's own hook, and OTLP lines.
const EXTENSIONS: [&str; 3] = ["json", "txt", "jsonl"];

/// Ends of the names of files beside them: log records and metrics, as OTLP lines too.
const OTHER_SIGNALS: [&str; 2] = [".logs.jsonl", ".metrics.jsonl"];

/// Returns whether a file of that name may have spans.
pub(super) fn is_of_spans(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    path.extension().is_some_and(|extension| EXTENSIONS.iter().any(|known| extension == *known))
        && !OTHER_SIGNALS.iter().any(|other| name.ends_with(other.as_bytes()))
}

/// Returns what a file is of which nothing is read though it may have spans, by its name: one that a collector's file exporter has packed, or has written in
/// protobuf.
fn other_form(path: &Path) -> Option<Problem> {
    let is_packed = |inner: &Path| inner.extension().is_none() || is_of_spans(inner);
    match path.extension()?.to_str()? {
        "gz" | "zst" | "zstd" if is_packed(Path::new(path.file_stem()?)) => {
            Some(Problem::OtherForm("a packed file", "unpack it beside it, with `gunzip --keep` or `unzstd`"))
        }
        "pb" | "binpb" | "proto" => {
            Some(Problem::OtherForm("protobuf", "the collector's file exporter writes JSON with `format: json`"))
        }
        _ => None,
    }
}

/// Lists the files of a folder that may have spans, by name.
pub(super) fn span_files(folder: &Path) -> Result<Vec<(PathBuf, fs::Metadata)>, LoadError> {
    let error = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => LoadError::Missing { folder: folder.into() },
        _ => LoadError::Unreadable { folder: folder.into(), source },
    };
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(error)? {
        let path = entry.map_err(error)?.path();
        // A link to a file is followed; anything that is not a file, a fifo say, could block.
        if is_of_spans(&path)
            && let Ok(metadata) = path.metadata()
            && metadata.is_file()
        {
            paths.push((path, metadata));
        }
    }
    // Which of two duplicates is kept must not depend on the order of the directory.
    paths.sort_by(|left, right| left.0.cmp(&right.0));
    Ok(paths)
}

/// Reads every `*.json`, `*.txt` and `*.jsonl` file in `folder`, not in folders below it.
pub fn load(folder: &Path) -> Result<Loaded, LoadError> {
    let (spans, notices) = Tail::new(folder).read()?;
    Ok(Loaded::new(folder, spans, notices))
}

/// The most texts that are looked for one after the other, before it is faster to read everything.
const NEEDLES: usize = 16;

/// Reads, of a folder as [`load`] does, the traces whose ids begin with one of these digits in lower case, and what commands have made in attempts
/// of theirs. Objects in which no such id is found are not parsed.
pub(crate) fn load_traces(folder: &Path, beginnings: &[String]) -> Result<Loaded, LoadError> {
    let is_wanted = |id: TraceId| {
        let id = id.to_string();
        beginnings.iter().any(|beginning| id.starts_with(beginning.as_str()))
    };
    let (mut spans, mut notices) = (Vec::new(), Vec::new());
    for (path, _) in span_files(folder)? {
        match fs::read(&path) {
            Ok(bytes) => {
                let bytes = if beginnings.len() > NEEDLES { bytes } else { objects_with(&bytes, beginnings) };
                if !bytes.is_empty() {
                    let file = SpanFile { pid: pid_of(&path), path, bytes };
                    // What else is in the file is for those to tell who read all of it.
                    let _ = scan(Arc::new(file), &mut spans);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => notices.push(Notice { path, problem: Problem::Unreadable(error.to_string()) }),
        }
        spans.retain(|span: &Span| is_wanted(span.trace_id) || span.stem().is_some_and(|(id, _)| is_wanted(id)));
    }
    Ok(Loaded::new(folder, spans, notices))
}

/// Returns the objects of a file in which one of the texts is found, in order. In every layout, a line that begins with a brace begins an object.
fn objects_with(bytes: &[u8], texts: &[String]) -> Vec<u8> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for text in texts {
        let finder = memchr::memmem::Finder::new(text.as_bytes());
        let mut from = 0;
        while let Some(found) = finder.find(&bytes[from..]).map(|found| from + found) {
            let start = memchr::memmem::rfind(&bytes[..found], b"\n{").map_or(0, |line| line + 1);
            let end = found + find(&bytes[found..], b"\n{");
            let end = (end + 1).min(bytes.len());
            ranges.push(start..end);
            from = end;
        }
    }
    ranges.sort_by_key(|range| range.start);
    ranges.dedup();
    ranges.into_iter().flat_map(|range| &bytes[range]).copied().collect()
}

/// A folder of span files that is read again and again, each time only what is new.
pub struct Tail {
    folder: PathBuf,
    /// By device and inode: a file that is rotated gets another name.
    files: HashMap<(u64, u64), TailFile>,
    /// Files that were passed over, and reported.
    passed_over: HashSet<PathBuf>,
}

#[derive(Clone, Copy, Default)]
struct TailFile {
    /// Its length when it was read.
    len: u64,
    /// Offset of the end of its last span.
    read: u64,
}

impl Tail {
    /// Makes a reader that has read nothing yet.
    pub fn new(folder: &Path) -> Tail {
        Tail { folder: folder.into(), files: HashMap::new(), passed_over: HashSet::new() }
    }

    /// Reads what was appended since the last time, and says what of that could not be used.
    pub fn read(&mut self) -> Result<(Vec<Span>, Vec<Notice>), LoadError> {
        let (mut spans, mut notices) = (Vec::new(), Vec::new());
        let files = span_files(&self.folder)?;
        notices.extend(self.others());
        for (path, metadata) in files {
            let known = self.files.entry((metadata.dev(), metadata.ino())).or_default();
            if metadata.len() == known.len && known.len > 0 {
                continue;
            }
            if metadata.len() < known.read {
                // It was begun anew.
                *known = TailFile::default();
            }
            match read_from(&path, known.read) {
                Ok(bytes) => {
                    let file = SpanFile { pid: pid_of(&path), path: path.clone(), bytes };
                    known.len = known.read + file.bytes.len() as u64;
                    let scanned = scan(Arc::new(file), &mut spans);
                    // What comes after the last span may be one that is being written.
                    known.read += scanned.spans_end as u64;
                    let problems = scanned.problems.into_iter();
                    notices.extend(problems.map(|problem| Notice { path: path.clone(), problem }));
                }
                // Rotated away between the listing and now.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => notices.push(Notice { path, problem: Problem::Unreadable(error.to_string()) }),
            }
        }
        Ok((spans, notices))
    }
}

impl Tail {
    /// Returns notices of the files that are passed over, of each once.
    fn others(&mut self) -> Vec<Notice> {
        let paths = fs::read_dir(&self.folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut found: Vec<_> = paths
            .filter_map(|path| Some(Notice { problem: other_form(&path).filter(|_| path.is_file())?, path }))
            .filter(|notice| self.passed_over.insert(notice.path.clone()))
            .collect();
        found.sort_by(|one, other| one.path.cmp(&other.path));
        found
    }
}

fn read_from(path: &Path, offset: u64) -> io::Result<Vec<u8>> {
    if offset == 0 {
        return fs::read(path);
    }
    let mut file = fs::File::open(path)?;
    file.seek(io::SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the pid in `<pid>.json`, in the rotated `<pid>.<n>.json` and in `<pid>.otlp.jsonl`. Files of a receiver have spans of other processes.
pub(super) fn pid_of(path: &Path) -> Option<u32> {
    if path.to_str().is_some_and(|path| path.ends_with(".received.jsonl")) {
        return None;
    }
    path.file_name()?.to_str()?.split('.').next()?.parse().ok()
}

/// Fields that are parsed of every span. Everything else is only stepped over.
#[derive(Deserialize)]
struct Header<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    context: HeaderContext<'a>,
    #[serde(borrow, default)]
    kind: Option<Text<'a>>,
    #[serde(borrow, default)]
    parent_id: Option<Text<'a>>,
    #[serde(borrow, default)]
    start_time: Option<Text<'a>>,
    #[serde(borrow, default)]
    end_time: Option<Text<'a>>,
    #[serde(borrow, default)]
    status: Option<HeaderStatus<'a>>,
}

#[derive(Deserialize)]
struct HeaderContext<'a> {
    #[serde(borrow)]
    trace_id: Text<'a>,
    #[serde(borrow)]
    span_id: Text<'a>,
}

#[derive(Deserialize)]
struct HeaderStatus<'a> {
    #[serde(borrow, default)]
    status_code: Option<Text<'a>>,
}

/// A string that is borrowed from the file unless it has escapes. (An `Option<Cow<str>>` would always be copied.)
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl Header<'_> {
    /// Returns the span, or `None` when an id or a time is not one.
    fn into_span(self, file: &Arc<SpanFile>, range: Range<usize>) -> Option<Span> {
        let parent_id = match self.parent_id {
            None => None,
            Some(text) => Some(text.0.parse().ok()?),
        };
        let time = |text: Option<Text<'_>>| text.map_or(Some(None), |text| time::parse(&text.0).map(Some));
        // Python's exporter has no text for the beginning of 1970.
        let (start, end_unix_nano) = (time(self.start_time)?, time(self.end_time)?);
        let end_unix_nano = if start.is_none() { end_unix_nano.or(Some(0)) } else { end_unix_nano };
        Some(Span {
            trace_id: self.context.trace_id.0.parse().ok()?,
            span_id: self.context.span_id.0.parse().ok()?,
            parent_id,
            kind: self.kind.map_or(Kind::Internal, |text| Kind::from_text(&text.0)),
            start_unix_nano: start.unwrap_or(0),
            end_unix_nano,
            running_unix_nano: None,
            clock_shift_ns: 0,
            written: None,
            status: self
                .status
                .and_then(|status| status.status_code)
                .map_or(Status::Unset, |text| Status::from_text(&text.0)),
            name: self.name.0.into_owned(),
            file: file.clone(),
            place: SpanLocation::Console(range),
        })
    }
}

/// Result of scanning a file.
pub(super) struct Scanned {
    pub(super) problems: Vec<Problem>,
    /// Offset of the end of the last object that has spans.
    pub(super) spans_end: usize,
}

/// Appends the spans of a file.
pub(super) fn scan(file: Arc<SpanFile>, spans: &mut Vec<Span>) -> Scanned {
    scan_objects(file, |_, found| spans.append(found))
}

/// Reads the spans of a file, whatever its layout, and hands over those of one object after the other, with its place: an object is read from its brace on, over as many lines as it takes,
/// but never beyond a line that begins with a brace. In every layout such a line begins the next object, so
/// damage cannot spread, and no byte is read more than a few times.
pub(super) fn scan_objects(file: Arc<SpanFile>, mut take: impl FnMut(Range<usize>, &mut Vec<Span>)) -> Scanned {
    let mut found = Vec::new();
    let spans = &mut found;
    let bytes = file.bytes.as_slice();
    let (mut not_spans, mut damaged, mut is_unfinished) = (0, 0, false);
    let (mut at, mut spans_end) = (0, 0);
    let mut next_object = 0;
    loop {
        at += bytes[at..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        match bytes.get(at) {
            None => break,
            Some(b'{') => {}
            Some(_) => {
                not_spans += 1;
                at += find(&bytes[at..], b"\n");
                continue;
            }
        }
        if at >= next_object {
            next_object = (at + find(&bytes[at..], b"\n{") + 1).min(bytes.len());
        }
        let error = match object(&file, at..next_object, spans) {
            Ok(Object { end, spans: count, not_spans: others }) => {
                not_spans += others;
                if count > 0 {
                    spans_end = end;
                    take(at..end, spans);
                    spans.clear();
                }
                at = end;
                continue;
            }
            Err(error) => error,
        };
        if let Ok((IgnoredAny, end)) = first_value(bytes, at..next_object) {
            // An object, but not of a span.
            not_spans += 1;
            at = end;
            continue;
        }
        // An object that breaks off. Another may have been appended to the torn line.
        match salvage(&file, at + 1..next_object, spans) {
            Some(end) => {
                damaged += 1;
                take(at..end, spans);
                spans.clear();
                at = end;
                spans_end = end;
            }
            None => {
                spans.clear();
                if next_object == bytes.len() && error.classify() == Category::Eof {
                    is_unfinished = true;
                } else {
                    damaged += 1;
                }
                at = next_object;
            }
        }
    }
    let mut problems = Vec::new();
    if not_spans > 0 {
        problems.push(Problem::NotSpans(not_spans));
    }
    if damaged > 0 {
        problems.push(Problem::Damaged(damaged));
    }
    if is_unfinished {
        problems.push(Problem::Unfinished);
    }
    Scanned { problems, spans_end }
}

/// Result of reading one object.
struct Object {
    /// Offset of its end.
    end: usize,
    /// Number of its spans.
    spans: usize,
    /// Number of parts that are no spans, though they should be.
    not_spans: usize,
}

/// Reads the object that begins at the start of the range, in either format.
fn object(file: &Arc<SpanFile>, range: Range<usize>, spans: &mut Vec<Span>) -> Result<Object, serde_json::Error> {
    let start = range.start;
    if otlp::is_begun(&file.bytes[range.clone()]) {
        let (traces, end) = first_value::<otlp::Traces<'_>>(&file.bytes, range)?;
        let before = spans.len();
        let not_spans = traces.add_spans(file, spans);
        return Ok(Object { end, spans: spans.len() - before, not_spans });
    }
    let (header, end) = match first_value::<Header<'_>>(&file.bytes, range.clone()) {
        Ok(found) => found,
        // Python writes floats that JSON has no words for. What stands for them here is as long.
        Err(error) => {
            let numbers = python::as_numbers(&file.bytes[range.clone()]).ok_or(error)?;
            let (header, len) = first_value::<Header<'_>>(&numbers, 0..numbers.len())?;
            let end = start + len;
            let span = header.into_span(file, start..end);
            let count = usize::from(span.is_some());
            spans.extend(span);
            return Ok(Object { end, spans: count, not_spans: 1 - count });
        }
    };
    let span = header.into_span(file, start..end);
    let count = usize::from(span.is_some());
    spans.extend(span);
    Ok(Object { end, spans: count, not_spans: 1 - count })
}

/// Looks for a whole object with spans in what follows the start of a damaged one, and returns where it ends.
fn salvage(file: &Arc<SpanFile>, range: Range<usize>, spans: &mut Vec<Span>) -> Option<usize> {
    const STARTS: [&[u8]; 2] = [b"{\"name\"", otlp::START];
    // Events begin in the same way, so there may be several; the bound keeps a hostile line cheap.
    const ATTEMPTS: usize = 64;
    let found = |start| memchr::memmem::find_iter(&file.bytes[range.clone()], start).take(ATTEMPTS);
    let mut objects = STARTS.into_iter().flat_map(found).filter_map(|offset| {
        let object = object(file, range.start + offset..range.end, spans).ok()?;
        (object.spans > 0).then_some(object.end)
    });
    objects.next()
}

/// Parses the value that begins at the start of the range, and returns it with the offset after it.
fn first_value<'a, T: Deserialize<'a>>(bytes: &'a [u8], range: Range<usize>) -> Result<(T, usize), serde_json::Error> {
    let start = range.start;
    let mut values = serde_json::Deserializer::from_slice(&bytes[range]).into_iter::<T>();
    match values.next() {
        Some(value) => value.map(|value| (value, start + values.byte_offset())),
        None => Err(serde::de::Error::custom("there is no value")),
    }
}

/// Returns the offset of the pattern, or the length when it is not there.
fn find(bytes: &[u8], pattern: &[u8]) -> usize {
    memchr::memmem::find(bytes, pattern).unwrap_or(bytes.len())
}

#[cfg(test)]
mod tests;
