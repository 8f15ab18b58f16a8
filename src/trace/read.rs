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
use std::hash::{BuildHasher as _, RandomState};
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, fs, io};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::error::Category;
use tracer_core::count::Count;

use super::span::{Found, Kind, Maker, Origin, Part, Span, SpanFile, Status, TraceId};
use super::time;

/// Reason why a folder could not be read at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// There is no such folder.
    #[error("there is no spans folder `{}`: nothing has been traced yet, or the spans are elsewhere", .folder.display())]
    Missing {
        /// The folder.
        folder: PathBuf,
    },
    /// The folder cannot be listed.
    #[error("cannot read the spans folder `{}`: {source}", .folder.display())]
    Unreadable {
        /// The folder.
        folder: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
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

impl Problem {
    /// Returns the problem of a piece that others follow.
    fn in_the_middle(self) -> Problem {
        if self == Problem::Unfinished { Problem::Damaged(1) } else { self }
    }
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
pub fn span_files(folder: &Path) -> Result<Vec<(PathBuf, fs::Metadata)>, LoadError> {
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
        let mut spans = Vec::new();
        let notices = self.read_each(|span| spans.push(span))?;
        Ok((spans, notices))
    }

    /// Hands over what was appended since the last time, span by span, and says what of that could not be used.
    pub fn read_each(&mut self, mut take: impl FnMut(Span)) -> Result<Vec<Notice>, LoadError> {
        let mut notices = Vec::new();
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
            let mut read = known.read;
            let problems = fs::File::open(&path).and_then(|file| {
                read_pieces(&file, &path, read..metadata.len(), |place, spans| {
                    spans.drain(..).for_each(&mut take);
                    read = place.end;
                })
            });
            match problems {
                Ok(problems) => {
                    // What comes after the last span may be one that is being written.
                    *known = TailFile { len: metadata.len(), read };
                    let problems = problems.into_iter();
                    notices.extend(problems.map(|problem| Notice { path: path.clone(), problem }));
                }
                // Rotated away between the listing and now.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => notices.push(Notice { path, problem: Problem::Unreadable(error.to_string()) }),
            }
        }
        Ok(notices)
    }
}

impl Tail {
    /// Returns notices of the files that are passed over, of each once.
    fn others(&mut self) -> Vec<Notice> {
        let mut found = other_files(&self.folder);
        found.retain(|notice| self.passed_over.insert(notice.path.clone()));
        found
    }
}

/// Returns notices of the files of a folder that are passed over though they may have spans.
pub fn other_files(folder: &Path) -> Vec<Notice> {
    let paths = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<_> = paths
        .filter_map(|path| Some(Notice { problem: other_form(&path).filter(|_| path.is_file())?, path }))
        .collect();
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found
}

/// Bytes of a file that are read at a time.
pub(super) const CHUNK: usize = 4 << 20;
/// The longest object that is read whole.
const LONGEST_OBJECT: usize = 64 << 20;

/// Reads a part of a file piece by piece: each is handed over with its offset, and whether it is the last. It ends with an object, unless it is the last or
/// the object is too long.
pub(super) fn each_piece(file: &fs::File, part: Range<u64>, mut take: impl FnMut(&[u8], u64, bool)) -> io::Result<()> {
    let (mut at, mut piece, mut bytes) = (part.start, CHUNK, Vec::new());
    while at < part.end {
        let wanted = usize::try_from(part.end - at).unwrap_or(usize::MAX).min(piece);
        bytes.resize(wanted, 0);
        let mut filled = 0;
        while filled < wanted {
            match file.read_at(&mut bytes[filled..], at + filled as u64)? {
                0 => break,
                read => filled += read,
            }
        }
        bytes.truncate(filled);
        let is_last = filled < wanted || at + filled as u64 >= part.end;
        // The last object goes to the next piece: it may go on there.
        let whole = if is_last { filled } else { memchr::memmem::rfind(&bytes, b"\n{").map_or(0, |end| end + 1) };
        if whole == 0 && !is_last && piece < LONGEST_OBJECT {
            piece *= 2;
            continue;
        }
        let whole = if whole == 0 { filled } else { whole };
        take(&bytes[..whole], at, is_last);
        if whole == 0 {
            break;
        }
        if piece > CHUNK {
            bytes = Vec::new();
        }
        (at, piece) = (at + whole as u64, CHUNK);
    }
    Ok(())
}

/// Reads a part of a file piece by piece, and hands over the spans of each object with its place. What is cut off at the end is left for the next time.
pub(super) fn read_pieces(
    file: &fs::File,
    path: &Path,
    part: Range<u64>,
    mut take: impl FnMut(Range<u64>, &mut Vec<Span>),
) -> io::Result<Vec<Problem>> {
    let mut scanner = Scanner::new(SpanFile::stored(path, pid_of(path), &file.metadata()?));
    let mut problems = Vec::new();
    each_piece(file, part, |bytes, offset, is_last| {
        for problem in scanner.scan(bytes, offset, &mut take) {
            add_problem(&mut problems, if is_last { problem } else { problem.in_the_middle() });
        }
    })?;
    Ok(problems)
}

/// Adds what was wrong with a piece to what was wrong with those before.
fn add_problem(problems: &mut Vec<Problem>, new: Problem) {
    for known in problems.iter_mut() {
        match (known, &new) {
            (Problem::NotSpans(count), Problem::NotSpans(more)) | (Problem::Damaged(count), Problem::Damaged(more)) => {
                *count += more;
                return;
            }
            _ => {}
        }
    }
    problems.push(new);
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
    fn into_span(self, scanner: &mut Scanner, offset: u64, text: &[u8]) -> Option<Span> {
        let parent_id = match self.parent_id {
            None => None,
            Some(text) => Some(text.0.parse().ok()?),
        };
        let time = |text: Option<Text<'_>>| text.map_or(Some(None), |text| time::parse(&text.0).map(Some));
        // Python's exporter has no text for the beginning of 1970.
        let (start, end_unix_nano) = (time(self.start_time)?, time(self.end_time)?);
        let end_unix_nano = if start.is_none() { end_unix_nano.or(Some(0)) } else { end_unix_nano };
        // It is the last part in nearly all files, so what follows is all of it and little else.
        let resource = memchr::memmem::find(text, b"\"resource\"").map(|start| &text[start..]);
        let group = scanner.number_of([Some(resource.unwrap_or(text)), None]);
        let maker = |file| Maker { resource: Part { offset, len: text.len() as u32 }, ..Maker::new(file) };
        let origin = scanner.origin(self.context.trace_id.0.parse().ok()?, group, &self.name.0, maker);
        let found = Found {
            span_id: self.context.span_id.0.parse().ok()?,
            parent_id,
            kind: self.kind.map_or(Kind::Internal, |text| Kind::from_text(&text.0)),
            start_unix_nano: start.unwrap_or(0),
            end_unix_nano,
            status: self
                .status
                .and_then(|status| status.status_code)
                .map_or(Status::Unset, |text| Status::from_text(&text.0)),
            marks: 0,
            origin,
            offset,
            text,
        };
        Some(found.into())
    }
}

/// Bytes of a file that are in memory.
pub(super) struct Piece<'a> {
    bytes: &'a [u8],
    /// Their place in the file.
    offset: u64,
}

impl Piece<'_> {
    /// Returns where a part is that was borrowed from these bytes.
    fn part(&self, part: Option<&[u8]>) -> Part {
        let Some(part) = part else { return Part::default() };
        let start = part.as_ptr() as usize - self.bytes.as_ptr() as usize;
        Part { offset: self.offset + start as u64, len: part.len() as u32 }
    }
}

/// The most names, makers and origins of a file that are known at a time.
const KNOWN: usize = 4096;

/// Finds the spans in the bytes of a file. What they have in common they share.
pub(super) struct Scanner {
    file: Arc<SpanFile>,
    names: HashSet<Arc<str>>,
    makers: HashMap<u64, Arc<Maker>>,
    /// By trace, and by the numbers of what made the spans and of their name.
    origins: HashMap<(TraceId, [u64; 2]), Arc<Origin>>,
    hasher: RandomState,
}

impl Scanner {
    pub(super) fn new(file: SpanFile) -> Scanner {
        Scanner {
            file: Arc::new(file),
            names: HashSet::new(),
            makers: HashMap::new(),
            origins: HashMap::new(),
            hasher: RandomState::new(),
        }
    }

    fn name(&mut self, text: &str) -> Arc<str> {
        if let Some(name) = self.names.get(text) {
            return Arc::clone(name);
        }
        if self.names.len() == KNOWN {
            self.names.clear();
        }
        let name: Arc<str> = text.into();
        self.names.insert(Arc::clone(&name));
        name
    }

    /// Returns a number for the texts that makers of spans differ by.
    fn number_of(&self, texts: [Option<&[u8]>; 2]) -> u64 {
        self.hasher.hash_one(texts)
    }

    /// Returns the origin of spans of a trace and of this name, whose maker has this number.
    fn origin(
        &mut self,
        trace_id: TraceId,
        maker: u64,
        name: &str,
        make: impl FnOnce(Arc<SpanFile>) -> Maker,
    ) -> Arc<Origin> {
        let key = (trace_id, [maker, self.hasher.hash_one(name)]);
        if let Some(origin) = self.origins.get(&key) {
            return Arc::clone(origin);
        }
        if self.makers.len() == KNOWN && !self.makers.contains_key(&maker) {
            self.makers.clear();
        }
        let maker = self.makers.entry(maker).or_insert_with(|| Arc::new(make(Arc::clone(&self.file))));
        let maker = Arc::clone(maker);
        if self.origins.len() == KNOWN {
            self.origins.clear();
        }
        let origin = Arc::new(Origin::new(maker, trace_id, self.name(name)));
        self.origins.insert(key, Arc::clone(&origin));
        origin
    }

    /// Reads the spans of a piece of the file, whatever its layout, and hands over those of one object after the other, with its place in the file: an
    /// object is read from its brace on, over as many lines as it takes, but never beyond a line that begins with a brace. In every layout such a line
    /// begins the next object, so damage cannot spread, and no byte is read more than a few times. Returns what could not be used.
    pub(super) fn scan(
        &mut self,
        bytes: &[u8],
        offset: u64,
        mut take: impl FnMut(Range<u64>, &mut Vec<Span>),
    ) -> Vec<Problem> {
        let mut found = Vec::new();
        let spans = &mut found;
        let piece = Piece { bytes, offset };
        let mut take = |range: Range<usize>, spans: &mut Vec<Span>| {
            take(offset + range.start as u64..offset + range.end as u64, spans);
            spans.clear();
        };
        let (mut not_spans, mut damaged, mut is_unfinished) = (0, 0, false);
        let mut at = 0;
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
            let error = match object(&piece, at..next_object, self, spans) {
                Ok(Object { end, spans: count, not_spans: others }) => {
                    not_spans += others;
                    if count > 0 {
                        take(at..end, spans);
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
            match salvage(&piece, at + 1..next_object, self, spans) {
                Some(end) => {
                    damaged += 1;
                    take(at..end, spans);
                    at = end;
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
        problems
    }
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
fn object(
    piece: &Piece<'_>,
    range: Range<usize>,
    scanner: &mut Scanner,
    spans: &mut Vec<Span>,
) -> Result<Object, serde_json::Error> {
    let Piece { bytes, offset } = *piece;
    let start = range.start;
    if otlp::is_begun(&bytes[range.clone()]) {
        let (traces, end) = first_value::<otlp::Traces<'_>>(bytes, range)?;
        let before = spans.len();
        let not_spans = traces.add_spans(piece, scanner, spans);
        return Ok(Object { end, spans: spans.len() - before, not_spans });
    }
    let numbers;
    let (header, end) = match first_value::<Header<'_>>(bytes, range.clone()) {
        Ok(found) => found,
        // Python writes floats that JSON has no words for. What stands for them here is as long.
        Err(error) => {
            numbers = python::as_numbers(&bytes[range]).ok_or(error)?;
            let (header, len) = first_value::<Header<'_>>(&numbers, 0..numbers.len())?;
            (header, start + len)
        }
    };
    let span = header.into_span(scanner, offset + start as u64, &bytes[start..end]);
    let count = usize::from(span.is_some());
    spans.extend(span);
    Ok(Object { end, spans: count, not_spans: 1 - count })
}

/// Looks for a whole object with spans in what follows the start of a damaged one, and returns where it ends.
fn salvage(piece: &Piece<'_>, range: Range<usize>, scanner: &mut Scanner, spans: &mut Vec<Span>) -> Option<usize> {
    const STARTS: [&[u8]; 2] = [b"{\"name\"", otlp::START];
    // Events begin in the same way, so there may be several; the bound keeps a hostile line cheap.
    const ATTEMPTS: usize = 64;
    let found = |start| memchr::memmem::find_iter(&piece.bytes[range.clone()], start).take(ATTEMPTS);
    let mut objects = STARTS.into_iter().flat_map(found).filter_map(|offset| {
        let object = object(piece, range.start + offset..range.end, scanner, spans).ok()?;
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
pub(super) fn find(bytes: &[u8], pattern: &[u8]) -> usize {
    memchr::memmem::find(bytes, pattern).unwrap_or(bytes.len())
}

#[cfg(test)]
mod tests;
