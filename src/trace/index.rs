//! An index of a folder of span files, and of the spools of the session that writes there: for each trace a row of figures, for each stretch of its
//! spans in a file the position. The bytes of files are read again when somebody asks for a trace, so memory grows with the number of spans
//! and not with their size, and it is bounded: what is oldest goes first, and a trace of which positions are gone is looked for in the files.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracer_core::names;
use tracer_core::task::TaskId;

use super::owners::attempt_of;
use super::query::matching::Outline;
use super::read::{CHUNK, Scanner, is_of_spans, pid_of, read_pieces, span_files};
use super::select::is_submission;
use super::span::SpanFile;
use crate::differences::Differences;
use crate::list::Row;
use crate::live::{Live, LiveSpan};
use crate::loaded::{Gathering, Loaded, Trace};
use crate::query::Query;
use crate::read::{LoadError, Notice, Problem};
use crate::region::{Point, Region};
use crate::select::FindError;
use crate::span::{Kind, Span, SpanId, Status, TraceId};

mod older;

pub use older::Older;

/// The most bytes of an index, unless it is said.
pub const INDEX_BYTES: usize = 64 << 20;
/// Traces with more spans are listed with the figures of their row; those with fewer are read, so that spans that were written twice count once.
const COUNTED: u32 = 1000;
/// Traces with new spans that are told apart at a look; of more it is said that all have changed.
const TOUCHED: usize = 1 << 16;
/// Spans on either side that differences are counted in.
const SAMPLE: usize = 20_000;
/// Bytes of names of spans that are kept.
const NAME_BYTES: usize = 2 << 20;
/// Number of a name, or of a run, that there is none of.
const NONE: u32 = u32::MAX;

/// An index of span files and spools.
pub struct Index {
    folder: PathBuf,
    limit: usize,
    files: Vec<IndexedFile>,
    /// Numbers of files by device and inode: a file that is rotated gets another name.
    numbers: HashMap<(u64, u64), usize>,
    rows: Vec<TraceRow>,
    table: Table,
    /// Numbers of rows by start.
    order: Vec<u32>,
    runs: VecDeque<Run>,
    /// Number of runs that have gone from the front.
    first_run: u32,
    lost_rows: LostRows,
    names: Names,
    /// Traces of commands that may be parts of other traces, with these.
    stems: HashMap<TraceId, TraceId>,
    live: Option<(PathBuf, Live)>,
    /// Spans that the last look has found in spools, by trace.
    spooled: HashMap<TraceId, Vec<Span>>,
    in_spools: HashMap<(TraceId, SpanId), bool>,
    open: Vec<LiveSpan>,
    /// Traces with spans in spools of dead processes.
    orphaned: HashSet<TraceId>,
    /// Traces with new spans in files since the last look, [`TOUCHED`] at most.
    touched: HashSet<TraceId>,
}

/// Rows that have gone.
#[derive(Clone, Copy, Default)]
struct LostRows {
    count: u64,
    /// The latest end of their traces.
    until_unix_nano: u64,
}

/// A span file.
struct IndexedFile {
    path: PathBuf,
    pid: Option<u32>,
    /// Its length when it was read.
    len: u64,
    /// Offset up to which it was read.
    read: u64,
    /// True if a worker writes it: spans of attempts are in it.
    is_of_worker: bool,
    /// Start and trace of the newest submission in it.
    submission: Option<(u64, TraceId)>,
}

impl IndexedFile {
    fn new(path: PathBuf, pid: Option<u32>) -> IndexedFile {
        IndexedFile { path, pid, len: 0, read: 0, is_of_worker: false, submission: None }
    }
}

/// Figures of a trace.
#[derive(Clone, Copy, Debug)]
struct TraceRow {
    /// The id, in halves: so a row takes 64 bytes.
    id: [u64; 2],
    start_unix_nano: u64,
    end_unix_nano: u64,
    /// Start of the first span without a parent; the greatest number if there is none.
    root_unix_nano: u64,
    /// Two bits for each name.
    bloom: u64,
    root: u32,
    spans: u32,
    errors: u32,
    /// Number of the run that was read last, or `NONE`.
    last_run: u32,
}

/// A stretch of a file with spans of one trace, and with spans of other traces only if they are in the same object.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// 40 bits of the offset, and above them 24 of the file's number.
    place: u64,
    len: u32,
    /// Number of the run of the same trace before this one, or `NONE`.
    before: u32,
}

impl Run {
    const OFFSET_BITS: u32 = 40;

    fn file(&self) -> usize {
        (self.place >> Run::OFFSET_BITS) as usize
    }

    fn offset(&self) -> u64 {
        self.place & ((1 << Run::OFFSET_BITS) - 1)
    }
}

/// Numbers of rows by the ids of traces, in open addressing.
#[derive(Default)]
struct Table {
    /// `NONE` for a free place. The length is a power of two.
    places: Vec<u32>,
}

impl Table {
    fn place(&self, id: TraceId, rows: &[TraceRow]) -> usize {
        let mask = self.places.len() - 1;
        // Ids are random, in their lower half at least.
        let mut at = (id.0 as u64 ^ (id.0 >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> 7 & mask;
        while self.places[at] != NONE && rows[self.places[at] as usize].trace_id() != id {
            at = (at + 1) & mask;
        }
        at
    }

    fn find(&self, id: TraceId, rows: &[TraceRow]) -> Option<usize> {
        if self.places.is_empty() {
            return None;
        }
        Some(self.places[self.place(id, rows)]).filter(|row| *row != NONE).map(|row| row as usize)
    }

    /// Makes the table anew for more rows than there are.
    fn build(&mut self, rows: &[TraceRow]) {
        let places = (rows.len() * 2).next_power_of_two().max(64);
        self.places = vec![NONE; places];
        for (number, row) in rows.iter().enumerate() {
            let place = self.place(row.trace_id(), rows);
            self.places[place] = number as u32;
        }
    }
}

/// Names of spans.
#[derive(Default)]
struct Names {
    numbers: HashMap<Arc<str>, u32>,
    texts: Vec<Arc<str>>,
    bytes: usize,
    /// True if there are further ones.
    is_full: bool,
}

impl Names {
    fn number(&mut self, name: &str) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        if self.bytes + name.len() > NAME_BYTES {
            self.is_full = true;
            return NONE;
        }
        let (text, number) = (Arc::<str>::from(name), self.texts.len() as u32);
        self.bytes += name.len() + 96;
        self.texts.push(Arc::clone(&text));
        self.numbers.insert(text, number);
        number
    }

    /// Returns two bits for a name; all of them for one that is not kept.
    fn bits(number: u32) -> u64 {
        let hash = u64::from(number).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        if number == NONE { u64::MAX } else { 1 << (hash >> 58) | 1 << (hash >> 52 & 63) }
    }
}

impl TraceRow {
    fn new(id: TraceId) -> TraceRow {
        TraceRow {
            id: [(id.0 >> 64) as u64, id.0 as u64],
            start_unix_nano: u64::MAX,
            end_unix_nano: 0,
            root_unix_nano: u64::MAX,
            bloom: 0,
            root: NONE,
            spans: 0,
            errors: 0,
            last_run: NONE,
        }
    }

    fn trace_id(&self) -> TraceId {
        TraceId(u128::from(self.id[0]) << 64 | u128::from(self.id[1]))
    }

    fn add(&mut self, span: &Span, name: u32) {
        let end = span.end_unix_nano().or(span.running_unix_nano()).unwrap_or(0).max(span.start_unix_nano);
        self.start_unix_nano = self.start_unix_nano.min(span.start_unix_nano);
        self.end_unix_nano = self.end_unix_nano.max(end);
        let is_root = span.parent_id().is_none();
        if is_root && span.start_unix_nano < self.root_unix_nano || self.spans == 0 {
            self.root = name;
        }
        if is_root {
            self.root_unix_nano = self.root_unix_nano.min(span.start_unix_nano);
        }
        self.bloom |= Names::bits(name);
        self.spans = self.spans.saturating_add(1);
        self.errors = self.errors.saturating_add(u32::from(span.status == Status::Error));
    }
}

/// Reach of an answer into the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Reach {
    /// Number of traces in the index.
    pub traces: usize,
    /// Bytes that the index takes.
    pub bytes: usize,
    /// True if older traces have left the index, or their positions have. A trace that is named is looked for in the files.
    pub is_cut: bool,
    /// Number of older traces that were read from the files for this answer; none if it has only traces of the index, because it needs no others or asks
    /// for all.
    pub scanned: Option<usize>,
}

/// Traces that have changed between two looks, but for the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// These.
    Traces(Vec<TraceId>),
    /// Any: files are gone, or were begun anew.
    All,
}

impl Changed {
    /// Returns whether there is no change.
    pub fn is_nothing(&self) -> bool {
        matches!(self, Changed::Traces(traces) if traces.is_empty())
    }

    /// Returns whether a trace, or one of its parts, may have changed.
    pub fn has(&self, id: TraceId, parts: &[TraceId]) -> bool {
        match self {
            Changed::Traces(traces) => traces.iter().any(|changed| *changed == id || parts.contains(changed)),
            Changed::All => true,
        }
    }
}

/// Traces that a question is about.
#[derive(Clone, Debug, Default)]
pub struct Among {
    /// The question that finds them.
    pub query: Query,
    /// Region that they are in.
    pub region: Region,
}

impl Index {
    /// Makes an index of a folder, of which nothing has been read, that takes so many bytes at most.
    pub fn new(folder: &Path, limit: usize) -> Index {
        Index {
            folder: folder.into(),
            limit,
            files: Vec::new(),
            numbers: HashMap::new(),
            rows: Vec::new(),
            table: Table::default(),
            order: Vec::new(),
            runs: VecDeque::new(),
            first_run: 0,
            lost_rows: LostRows::default(),
            names: Names::default(),
            stems: HashMap::new(),
            live: None,
            spooled: HashMap::new(),
            in_spools: HashMap::new(),
            open: Vec::new(),
            orphaned: HashSet::new(),
            touched: HashSet::new(),
        }
    }

    /// Returns the folder of the span files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the spans that were open at the last look.
    pub fn open(&self) -> &[LiveSpan] {
        &self.open
    }

    /// Returns whether a trace had spans at the last look in spools of dead processes, which nobody has completed yet.
    pub fn is_orphaned(&self, id: TraceId) -> bool {
        self.orphaned.contains(&id)
    }

    /// Returns the traces of commands that are parts of a trace.
    pub fn parts_of(&self, id: TraceId) -> Vec<TraceId> {
        self.stems.iter().filter(|(_, stem)| **stem == id).map(|(part, _)| *part).collect()
    }

    /// Returns how far the index reaches back.
    pub fn reach(&self) -> Reach {
        let is_cut = self.lost_rows.count > 0 || self.first_run > 0;
        Reach { traces: self.rows.len(), bytes: self.bytes(), is_cut, scanned: None }
    }

    /// Returns the bytes that the index takes.
    fn bytes(&self) -> usize {
        self.rows.capacity() * size_of::<TraceRow>()
            + self.runs.capacity() * size_of::<Run>()
            + (self.table.places.len() + self.order.capacity()) * 4
            + self.names.bytes
            + self.stems.capacity() * 40
    }

    /// Reads what is new, at the time `now_unix_nano`, from the files and from the spools of `session_dir`; without a session nothing is open. Returns
    /// what has changed, and what could not be read. A folder that does not exist holds nothing.
    pub fn look(
        &mut self,
        session_dir: Option<&Path>,
        now_unix_nano: u64,
    ) -> Result<(Changed, Vec<Notice>), LoadError> {
        if self.live.as_ref().map(|(session, _)| session.as_path()) != session_dir {
            self.live = session_dir.map(|session| (session.into(), Live::new(session)));
        }
        // The spools before the files: what is written in between is then in both, and not in neither.
        let look = self.live.as_mut().map(|(_, live)| live.look(now_unix_nano, |_| true)).unwrap_or_default();
        let (is_anew, notices) = self.read_files()?;
        let in_spools: HashMap<(TraceId, SpanId), bool> =
            look.spans.iter().map(|live| ((live.span.trace_id(), live.span.span_id), live.span.is_running())).collect();
        let mut changed = std::mem::take(&mut self.touched);
        let is_anew = is_anew || changed.len() == TOUCHED;
        for (new, old) in [(&in_spools, &self.in_spools), (&self.in_spools, &in_spools)] {
            changed.extend(new.iter().filter(|(key, state)| old.get(*key) != Some(*state)).map(|((id, _), _)| *id));
        }
        self.in_spools = in_spools;
        self.open = look.spans.iter().filter(|live| live.span.is_running()).cloned().collect();
        self.orphaned = look.orphaned;
        self.spooled.clear();
        for live in look.spans {
            self.spooled.entry(live.span.trace_id()).or_default().push(live.span);
        }
        let changed = if is_anew { Changed::All } else { Changed::Traces(changed.into_iter().collect()) };
        Ok((changed, notices))
    }

    /// Reads what was appended to the files. Returns whether all was read anew.
    fn read_files(&mut self) -> Result<(bool, Vec<Notice>), LoadError> {
        let error = |source: io::Error| LoadError::Unreadable { folder: self.folder.clone(), source };
        let mut found = Vec::new();
        let entries = match fs::read_dir(&self.folder) {
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => {
                let is_anew = !self.rows.is_empty();
                self.forget_files();
                return Ok((is_anew, Vec::new()));
            }
            entries => entries.map_err(error)?,
        };
        for entry in entries {
            let path = entry.map_err(error)?.path();
            // A link to a file is followed; anything that is not a file, a fifo say, could block.
            if is_of_spans(&path)
                && let Ok(metadata) = path.metadata()
                && metadata.is_file()
            {
                found.push((path, (metadata.dev(), metadata.ino()), metadata.len()));
            }
        }
        // Which of two duplicates is kept must not depend on the order of the directory.
        found.sort();
        let is_gone_or_cut = |index: &Index| {
            let found: HashMap<_, _> = found.iter().map(|(_, identity, len)| (*identity, *len)).collect();
            index
                .numbers
                .iter()
                .any(|(identity, number)| found.get(identity).is_none_or(|len| *len < index.files[*number].read))
        };
        let is_anew = is_gone_or_cut(self);
        if is_anew {
            // Rows have figures of files that are gone, or were begun anew.
            self.forget_files();
        }
        let mut notices = Vec::new();
        for (path, identity, len) in found {
            let number = *self.numbers.entry(identity).or_insert_with(|| {
                self.files.push(IndexedFile::new(path.clone(), pid_of(&path)));
                self.files.len() - 1
            });
            let file = &mut self.files[number];
            if file.path != path {
                file.path = path;
            }
            if len == file.len {
                continue;
            }
            match self.read_file(number, len, &mut notices) {
                // Not only in the end: a folder may have more files than there is room for.
                Ok(()) if self.bytes() > self.limit.saturating_mul(2) => self.keep_bound(),
                Ok(()) => {}
                // Rotated away between the listing and now.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => notices.push(Notice {
                    path: self.files[number].path.clone(),
                    problem: Problem::Unreadable(error.to_string()),
                }),
            }
        }
        if is_anew || !self.touched.is_empty() {
            self.keep_bound();
            self.sort();
        }
        Ok((is_anew, notices))
    }

    fn sort(&mut self) {
        self.order = (0..self.rows.len() as u32).collect();
        self.order.sort_by_key(|number| {
            let row = &self.rows[*number as usize];
            (row.start_unix_nano, row.id)
        });
    }

    fn forget_files(&mut self) {
        self.files.clear();
        self.numbers.clear();
        self.rows.clear();
        self.table = Table::default();
        self.order.clear();
        self.runs.clear();
        self.first_run = 0;
        self.lost_rows = LostRows::default();
        self.stems.clear();
        self.touched.clear();
    }

    /// Reads a file on to its end, in pieces.
    fn read_file(&mut self, number: usize, len: u64, notices: &mut Vec<Notice>) -> io::Result<()> {
        let path = self.files[number].path.clone();
        let file = File::open(&path)?;
        let from = self.files[number].read;
        let problems = read_pieces(&file, &path, from..len, |place, found| {
            self.take(number, &place, found);
            self.files[number].read = place.end;
        })?;
        self.files[number].len = len;
        notices.extend(problems.into_iter().map(|problem| Notice { path: path.clone(), problem }));
        Ok(())
    }

    /// Takes in the spans of one object.
    fn take(&mut self, file: usize, place: &Range<u64>, spans: &[Span]) {
        for span in spans {
            if self.touched.len() < TOUCHED {
                self.touched.insert(span.trace_id());
            }
            let name = self.names.number(span.name());
            let number = match self.table.find(span.trace_id(), &self.rows) {
                Some(number) => number,
                None => {
                    self.rows.push(TraceRow::new(span.trace_id()));
                    if self.rows.len() * 2 > self.table.places.len() {
                        self.table.build(&self.rows);
                    } else {
                        let at = self.table.place(span.trace_id(), &self.rows);
                        self.table.places[at] = self.rows.len() as u32 - 1;
                    }
                    self.rows.len() - 1
                }
            };
            let row = &mut self.rows[number];
            row.add(span, name);
            let last = row.last_run.checked_sub(self.first_run).filter(|_| row.last_run != NONE);
            let last = last.and_then(|at| self.runs.get_mut(at as usize));
            let follows = |run: &Run| {
                let end = run.offset() + u64::from(run.len);
                // A line feed, and what else is between two objects, is a few bytes.
                run.file() == file && end <= place.end && place.start <= end + 8
            };
            match last.filter(|run| follows(run)) {
                Some(run) if place.end - run.offset() <= CHUNK as u64 => {
                    run.len = (place.end - run.offset()) as u32;
                }
                _ => {
                    let before = row.last_run;
                    row.last_run = self.first_run + self.runs.len() as u32;
                    let place_bits = (file as u64) << Run::OFFSET_BITS | place.start;
                    self.runs.push_back(Run { place: place_bits, len: (place.end - place.start) as u32, before });
                }
            }
            if let Some((stem, _)) = span.stem().filter(|(stem, _)| *stem != span.trace_id()) {
                self.stems.insert(span.trace_id(), stem);
            }
            let is_attempt = span.kind == Kind::Consumer && span.name().ends_with(names::REMOTE_WORKER_SUFFIX);
            let file = &mut self.files[file];
            file.is_of_worker |= is_attempt;
            if is_submission(span) && file.submission.is_none_or(|(start, _)| start <= span.start_unix_nano) {
                file.submission = Some((span.start_unix_nano, span.trace_id()));
            }
        }
    }

    /// Lets the oldest go until the bound is kept: positions first, and rows when these alone take too much.
    fn keep_bound(&mut self) {
        while self.bytes() > self.limit {
            let rows = self.rows.len() * size_of::<TraceRow>();
            if self.runs.len() * size_of::<Run>() >= rows / 2 && self.runs.len() > 1 {
                let surplus = self.runs.len().div_ceil(4);
                self.runs.drain(..surplus);
                self.runs.shrink_to_fit();
                self.first_run += surplus as u32;
            } else if self.rows.len() > 1 {
                // By their starts: files are read one after the other.
                let surplus = self.rows.len().div_ceil(4);
                let mut starts: Vec<_> = self.rows.iter().map(|row| (row.start_unix_nano, row.id)).collect();
                let (_, last, _) = starts.select_nth_unstable(surplus - 1);
                let last = *last;
                let LostRows { count, mut until_unix_nano } = self.lost_rows;
                self.rows.retain(|row| {
                    let is_kept = (row.start_unix_nano, row.id) > last;
                    if !is_kept {
                        until_unix_nano = until_unix_nano.max(row.end_unix_nano);
                    }
                    is_kept
                });
                self.rows.shrink_to_fit();
                self.order = Vec::new();
                self.table.build(&self.rows);
                self.lost_rows = LostRows { count: count + surplus as u64, until_unix_nano };
            } else {
                return;
            }
        }
        // The vectors grow by doubling, which may be all of the bound.
        if self.bytes() > self.limit / 2 {
            self.rows.shrink_to_fit();
            self.runs.shrink_to_fit();
        }
    }

    /// Returns the spans of traces, parts of them that are traces of commands included. Those of which positions are gone are looked for in all files.
    fn load(&self, ids: &[TraceId]) -> Loaded {
        let mut wanted: HashSet<TraceId> = ids.iter().copied().collect();
        wanted.extend(self.stems.iter().filter(|(_, stem)| ids.contains(stem)).map(|(part, _)| *part));
        wanted.extend(ids.iter().filter_map(|id| self.stems.get(id)));
        self.load_alone(&wanted)
    }

    /// The same, of these traces and no others.
    fn load_alone(&self, wanted: &HashSet<TraceId>) -> Loaded {
        let (mut gathering, mut runs, mut lost) = (Gathering::new(&self.folder), Vec::new(), HashSet::new());
        for id in wanted {
            let Some(row) = self.table.find(*id, &self.rows).map(|number| &self.rows[number]) else { continue };
            let mut at = row.last_run;
            while at != NONE {
                match at.checked_sub(self.first_run).and_then(|at| self.runs.get(at as usize)) {
                    Some(run) => {
                        runs.push(*run);
                        at = run.before;
                    }
                    None => {
                        lost.insert(*id);
                        break;
                    }
                }
            }
        }
        // By file and offset, as one who reads all of them finds the spans.
        runs.sort_by_key(|run| run.place);
        runs.dedup_by_key(|run| run.place);
        let mut open: Option<(usize, File, Scanner)> = None;
        let mut bytes = Vec::new();
        for run in runs {
            if open.as_ref().is_none_or(|(number, ..)| *number != run.file()) {
                let IndexedFile { path, pid, .. } = &self.files[run.file()];
                open = File::open(path).ok().and_then(|file| {
                    let scanner = Scanner::new(SpanFile::stored(path, *pid, &file.metadata().ok()?));
                    Some((run.file(), file, scanner))
                });
            }
            let Some((_, file, scanner)) = &mut open else { continue };
            if bytes.len() < run.len as usize {
                bytes = vec![0; run.len as usize];
            }
            let bytes = &mut bytes[..run.len as usize];
            // A file that is gone is noticed at the next look.
            if file.read_exact_at(bytes, run.offset()).is_err() {
                continue;
            }
            scanner.scan(bytes, run.offset(), |_, found| {
                found
                    .drain(..)
                    .filter(|span| wanted.contains(&span.trace_id()) && !lost.contains(&span.trace_id()))
                    .for_each(|span| gathering.take(span));
            });
        }
        if !lost.is_empty() {
            self.search(|id| lost.contains(&id), |span| gathering.take(span));
        }
        let mut loaded = gathering.finish(Vec::new());
        loaded.add(wanted.iter().filter_map(|id| self.spooled.get(id)).flatten().cloned());
        loaded
    }

    /// Calls `take` for each trace of the files and spools, with all its spans; a few traces are in memory at a time. They come in the order of their
    /// starts, or, where there are more than an index has room for, in several passes over the files, each in that order.
    pub fn each_trace(mut self, mut take: impl FnMut(&Trace)) {
        if !self.reach().is_cut {
            return self.each_indexed_trace(&mut take);
        }
        let all = self.all_traces();
        self.forget_files();
        for pass in 0..all.passes() {
            let mut index = all.index(pass);
            let spooled = self.spooled.iter().filter(|(_, spans)| spans.iter().any(|span| all.is_in(pass, span)));
            index.spooled = spooled.map(|(id, spans)| (*id, spans.clone())).collect();
            index.each_indexed_trace(&mut take);
        }
    }

    fn each_indexed_trace(&self, take: &mut impl FnMut(&Trace)) {
        /// Limits on the traces, and on the spans of several traces, that are in memory at a time.
        const TRACES: usize = 1024;
        const SPANS: usize = 8192;
        let mut parts: HashMap<TraceId, Vec<TraceId>> = HashMap::new();
        for part in self.stems.keys() {
            parts.entry(self.trunk_of(*part)).or_default().push(*part);
        }
        let trunks: HashSet<TraceId> = parts.keys().copied().collect();
        let mut newest_first: Vec<TraceId> = self.newest_first().map(|(_, id)| id).collect();
        let mut wanted = HashSet::new();
        let mut spans = 0;
        while let Some(id) = newest_first.pop() {
            // Parts of a trace are read with it, or with the first of them.
            let trunk = self.trunk_of(id);
            let with_parts = match parts.remove(&trunk) {
                Some(parts) => parts,
                None if trunks.contains(&trunk) => continue,
                None => Vec::new(),
            };
            for id in with_parts.into_iter().chain([trunk]) {
                spans += self.outline(id).spans as usize;
                wanted.insert(id);
            }
            if wanted.len() >= TRACES || spans >= SPANS {
                self.load_alone(&wanted).traces.iter().for_each(&mut *take);
                wanted.clear();
                spans = 0;
            }
        }
        if !wanted.is_empty() {
            self.load_alone(&wanted).traces.iter().for_each(take);
        }
    }

    /// Returns the trace that a trace of a command may be part of, or else its own id.
    fn trunk_of(&self, id: TraceId) -> TraceId {
        /// Commands within commands name the outermost trace, so more steps are a circle.
        const STEPS: usize = 8;
        let steps = std::iter::successors(Some(id), |id| self.stems.get(id).copied());
        steps.take(STEPS).last().unwrap_or(id)
    }

    /// Reads all files for the spans of traces.
    fn search(&self, is_wanted: impl Fn(TraceId) -> bool, mut take: impl FnMut(Span)) {
        for IndexedFile { path, read, .. } in &self.files {
            let Ok(file) = File::open(path) else { continue };
            // What cannot be read was said when it was read first.
            let _ = read_pieces(&file, path, 0..*read, |_, found| {
                found.drain(..).filter(|span| is_wanted(span.trace_id())).for_each(&mut take);
            });
        }
    }

    /// Loads the trace that a text means: its id, the beginning of its id if no other begins so, or `last`.
    pub fn find(&self, text: &str) -> Result<Trace, FindError> {
        let ids: Vec<TraceId> = if text == "last" {
            self.last().into_iter().collect()
        } else {
            let digits = text.strip_prefix("0x").unwrap_or(text).to_ascii_lowercase();
            let is_id = (1..=32).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            let bits = 4 * digits.len() as u32;
            let beginning = u128::from_str_radix(&digits, 16).unwrap_or(0);
            let begins = |id: &TraceId| is_id && id.0.checked_shr(128 - bits).unwrap_or(0) == beginning;
            let known = self.rows.iter().map(TraceRow::trace_id).chain(self.spooled.keys().copied()).filter(begins);
            let mut known: Vec<TraceId> = known.collect();
            if known.is_empty() && is_id && self.reach().is_cut {
                let mut found = HashSet::new();
                self.search(|id| begins(&id), |span| found.extend([span.trace_id()]));
                known = found.into_iter().collect();
            }
            known.sort();
            known.dedup();
            known
        };
        let lost: Vec<&TraceId> = ids.iter().filter(|id| self.table.find(**id, &self.rows).is_none()).collect();
        let mut loaded = self.load(&ids);
        if !lost.is_empty() && self.reach().is_cut {
            let mut spans = Vec::new();
            self.search(|id| lost.contains(&&id), |span| spans.push(span));
            loaded.add(spans);
        }
        if text == "last" && loaded.traces.len() > 1 {
            // A trace of a command that is part of one, or is not.
            loaded.traces.retain(|trace| ids.contains(&trace.id));
        } else if !ids.is_empty() {
            let parts: Vec<TraceId> =
                loaded.traces.iter().map(|trace| trace.id).filter(|id| !ids.contains(id)).collect();
            if parts.len() < loaded.traces.len() {
                loaded.traces.retain(|trace| !parts.contains(&trace.id));
            }
        }
        let found = loaded.find(text).map(|trace| trace.id).map_err(|error| match error {
            FindError::Unknown { text, folder, .. } => FindError::Unknown { text, folder, traces: self.rows.len() },
            FindError::Empty { folder } if !self.rows.is_empty() => {
                FindError::Unknown { text: text.into(), folder, traces: self.rows.len() }
            }
            error => error,
        })?;
        let at = loaded.traces.iter().position(|trace| trace.id == found).unwrap_or(0);
        Ok(loaded.traces.swap_remove(at))
    }

    /// Returns the trace of the last submission or request of a service, or, where there was neither, the one that started last: see [`Loaded::last`].
    fn last(&self) -> Option<TraceId> {
        let is_attempt =
            |span: &Span| span.kind == Kind::Consumer && span.name().ends_with(names::REMOTE_WORKER_SUFFIX);
        let spooled = || self.spooled.values().flatten();
        let mut workers: HashSet<Option<u32>> =
            self.files.iter().filter(|file| file.is_of_worker).map(|file| file.pid).collect();
        workers.extend(spooled().filter(|span| is_attempt(span)).map(|span| span.pid_of_file()));
        let of_files = self.files.iter().filter_map(|file| Some((file.submission?, file.pid)));
        let of_spools = spooled()
            .filter(|span| is_submission(span))
            .map(|span| ((span.start_unix_nano, span.trace_id()), span.pid_of_file()));
        let all: Vec<_> = of_files.chain(of_spools).collect();
        let newest = |all: &mut dyn Iterator<Item = (u64, TraceId)>| all.max().map(|(_, id)| id);
        let outside =
            newest(&mut all.iter().filter(|(_, pid)| !workers.contains(pid)).map(|(submission, _)| *submission));
        outside
            .or_else(|| newest(&mut all.iter().map(|(submission, _)| *submission)))
            .or_else(|| self.newest_first().next().map(|(_, id)| id))
    }

    /// Returns all traces with their starts, the newest first: those of the files, and those that are in spools alone.
    fn newest_first(&self) -> impl Iterator<Item = (u64, TraceId)> {
        let mut alone: Vec<(u64, TraceId)> = self
            .spooled
            .iter()
            .filter(|(id, _)| self.table.find(**id, &self.rows).is_none())
            .map(|(id, spans)| (spans.iter().map(|span| span.start_unix_nano).min().unwrap_or(0), *id))
            .collect();
        alone.sort();
        let mut written = self.order.iter().rev().map(|number| {
            let row = &self.rows[*number as usize];
            (row.start_unix_nano, row.trace_id())
        });
        let mut next = written.next();
        std::iter::from_fn(move || match (next, alone.last()) {
            (Some(row), Some(one)) if row < *one => alone.pop(),
            (Some(row), _) => {
                next = written.next();
                Some(row)
            }
            (None, _) => alone.pop(),
        })
    }

    /// Returns whether positions of a trace are gone: only all files together have it.
    fn is_lost(&self, row: &TraceRow) -> bool {
        let mut at = row.last_run;
        while at != NONE {
            match at.checked_sub(self.first_run).and_then(|at| self.runs.get(at as usize)) {
                Some(run) => at = run.before,
                None => return true,
            }
        }
        false
    }

    /// Returns the figures of a trace, with what is in spools.
    fn outline(&self, id: TraceId) -> TraceRow {
        let row = self.table.find(id, &self.rows).map_or_else(|| TraceRow::new(id), |number| self.rows[number]);
        let Some(spooled) = self.spooled.get(&id) else { return row };
        let mut row = row;
        for span in spooled {
            let name = self.names.numbers.get(span.name()).copied().unwrap_or(NONE);
            let (root, had_root) = (row.root, row.spans > 0);
            row.add(span, name);
            if name == NONE && had_root {
                row.root = root;
            }
        }
        row
    }

    /// Calls `take` for each trace that is asked for, newest first, with its figures, and with its spans if they were read to know. A trace of a command
    /// that is part of another one is not among them. Those that it takes the spans to know, but whose positions are gone, are deferred. `take` returns
    /// whether it wants more; returns how many were not asked for.
    fn each(
        &self,
        among: &Among,
        deferred: &mut HashSet<TraceId>,
        mut take: impl FnMut(&TraceRow, Option<Trace>) -> bool,
    ) -> usize {
        let mut others = 0;
        let trunks: HashSet<&TraceId> = self.stems.values().collect();
        for (_, id) in self.newest_first() {
            let row = self.outline(id);
            let may_have_name = |fits: &dyn Fn(&str) -> bool| {
                self.names.is_full
                    || self.spooled.contains_key(&id)
                    || self.names.texts.iter().enumerate().any(|(number, name)| {
                        let bits = Names::bits(number as u32);
                        row.bloom & bits == bits && fits(name)
                    })
            };
            let outline = Outline {
                id,
                start_unix_nano: row.start_unix_nano,
                end_unix_nano: row.end_unix_nano,
                has_error: row.errors > 0,
                is_running: self.spooled.get(&id).is_some_and(|spans| spans.iter().any(Span::is_running)),
                may_have_name: &may_have_name,
            };
            let is_whole = !self.stems.contains_key(&id) && !trunks.contains(&id);
            let known = if is_whole { among.query.matches_outline(&outline) } else { None };
            let is_in_region = |start, duration| among.region.has(start, duration);
            let trace = match known {
                Some(false) => {
                    others += 1;
                    continue;
                }
                Some(true) => {
                    if !is_in_region(row.start_unix_nano, row.end_unix_nano - row.start_unix_nano) {
                        others += 1;
                        continue;
                    }
                    None
                }
                None if self.is_lost(&row) => {
                    if is_whole && !is_in_region(row.start_unix_nano, row.end_unix_nano - row.start_unix_nano) {
                        others += 1;
                    } else {
                        deferred.insert(id);
                    }
                    continue;
                }
                None => {
                    let mut loaded = self.load(&[id]);
                    // It has become a part of another one.
                    let Some(at) = loaded.traces.iter().position(|trace| trace.id == id) else { continue };
                    let trace = loaded.traces.swap_remove(at);
                    if !is_in_region(trace.start_unix_nano(), trace.duration_ns())
                        || !(among.query.is_empty() || among.query.matches(&trace))
                    {
                        others += 1;
                        continue;
                    }
                    Some(trace)
                }
            };
            if !take(&row, trace) {
                break;
            }
        }
        others
    }

    /// Hands over the newest `limit` traces that are asked for, a small one with its spans. Returns how many were left out, how many were not asked for,
    /// and, if there are fewer than `limit`, what is not in the index.
    pub fn list_each(&self, among: &Among, limit: usize, mut take: impl FnMut(Row, Option<Trace>)) -> Listed {
        let (mut listed, mut left_out) = (0, 0);
        let mut deferred = HashSet::new();
        let filtered_out = self.each(among, &mut deferred, |row, trace| {
            if listed == limit {
                left_out += 1;
                return true;
            }
            listed += 1;
            let id = row.trace_id();
            let trace = trace.or_else(|| {
                let is_small = row.spans <= COUNTED && !self.is_lost(row);
                let loaded = is_small.then(|| self.load(&[id]))?;
                loaded.traces.into_iter().find(|trace| trace.id == id)
            });
            take(trace.as_ref().map_or_else(|| self.row(row), Row::new), trace);
            true
        });
        let older = if listed < limit { self.older(among, deferred) } else { None };
        Listed { left_out, filtered_out, older }
    }

    fn row(&self, row: &TraceRow) -> Row {
        Row {
            trace_id: row.trace_id(),
            root: self.names.texts.get(row.root as usize).map(|name| name.to_string()).unwrap_or_default(),
            does: None,
            start_unix_nano: row.start_unix_nano,
            end_unix_nano: row.end_unix_nano,
            duration_ns: row.end_unix_nano - row.start_unix_nano,
            spans: row.spans as usize,
            errors: row.errors as usize,
        }
    }

    /// Adds the starts and durations of the traces that are asked for, for a heat map. Returns what is not in the index.
    pub fn points(&self, among: &Among, points: &mut Vec<Point>) -> Option<Older> {
        let mut deferred = HashSet::new();
        self.each(among, &mut deferred, |row, trace| {
            points.push(trace.map_or_else(
                || (row.start_unix_nano, row.end_unix_nano - row.start_unix_nano, row.errors > 0),
                |trace| (trace.start_unix_nano(), trace.duration_ns(), trace.error_count() > 0),
            ));
            true
        });
        self.older(among, deferred)
    }

    /// Adds traces of the region and others that the query finds, the newest of either side with 20,000 spans together, for their differences. Returns
    /// what is not in the index, if there is room for it.
    pub fn sample(&self, among: &Among, sample: &mut Sample) -> Option<Older> {
        let all = Among { query: among.query.clone(), region: Region::default() };
        let (mut deferred, mut lost) = (HashSet::new(), Vec::new());
        self.each(&all, &mut deferred, |row, trace| {
            let (start, duration) = trace.as_ref().map_or_else(
                || (row.start_unix_nano, row.end_unix_nano - row.start_unix_nano),
                |trace| (trace.start_unix_nano(), trace.duration_ns()),
            );
            let is_selected = among.region.has(start, duration);
            if sample.has_room(is_selected) {
                let id = row.trace_id();
                if trace.is_none() && self.is_lost(row) {
                    lost.push(id);
                    return true;
                }
                let loaded = || self.load(&[id]).traces.into_iter().find(|trace| trace.id == id);
                if let Some(trace) = trace.or_else(loaded) {
                    sample.add(trace, is_selected);
                }
            }
            !sample.is_full()
        });
        deferred.extend(lost);
        // The others may be from before the region.
        if sample.is_full() { None } else { self.older_since(among, 0, deferred) }
    }
}

/// Counts of a list, without its rows.
pub struct Listed {
    /// Number of further traces that are asked for.
    pub left_out: usize,
    /// Number of traces that are not asked for.
    pub filtered_out: usize,
    /// Traces that are not in the index; none if they are not needed.
    pub older: Option<Older>,
}

/// Traces whose differences are wanted.
#[derive(Default)]
pub struct Sample {
    /// Spans of the others, and of the selected ones.
    spans: [usize; 2],
    traces: Vec<(Trace, bool)>,
}

impl Sample {
    fn has_room(&self, is_selected: bool) -> bool {
        self.spans[usize::from(is_selected)] < SAMPLE
    }

    fn is_full(&self) -> bool {
        self.spans.iter().all(|spans| *spans >= SAMPLE)
    }

    fn add(&mut self, trace: Trace, is_selected: bool) {
        self.spans[usize::from(is_selected)] += trace.spans.len();
        self.traces.push((trace, is_selected));
    }

    /// Compares the two sides.
    pub fn differences(self, limit: usize) -> Differences {
        Differences::new(self.traces, limit)
    }
}

/// Finds, among the traces in a folder of span files with attempts of these tasks, the one in which such an attempt began last.
pub fn last_trace_of(folder: &Path, tasks: &BTreeSet<TaskId>) -> Result<Option<TraceId>, LoadError> {
    let mut last = None;
    for (path, metadata) in span_files(folder)? {
        let Ok(file) = File::open(&path) else { continue };
        // What cannot be read is said by whoever shows spans.
        let _ = read_pieces(&file, &path, 0..metadata.len(), |_, found| {
            let of_tasks = found.iter().filter(|span| attempt_of(span).is_some_and(|(task, _)| tasks.contains(&task)));
            last = last.max(of_tasks.map(|span| (span.start_unix_nano, span.trace_id())).max());
            found.clear();
        });
    }
    Ok(last.map(|(_, id)| id))
}

#[cfg(test)]
mod tests;
