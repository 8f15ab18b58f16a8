//! Series of metrics in a mapped file: counters and histograms that outlive the process that counts.
//!
//! A file has one writer, and readers that read it as any file. So a count costs its writer a few stores and no system call, a scrape costs
//! it nothing, and after SIGKILL the next process goes on with the counts that it finds: no counter goes back. The kernel writes the pages to
//! the disk when it likes; after a power failure some of the last counts may be missing.
//!
//! ```text
//!   ┌────────┬──────────────────────────────┬─────┬──────────────────────────┐
//!   │ header │ series: metric, attributes,  │ ... │ an overflow series       │   words of 64 bits, little-endian
//!   │        │ count, sum, buckets,         │     │ for each metric          │
//!   │        │ an exemplar for each bucket  │     │                          │
//!   └────────┴──────────────────────────────┴─────┴──────────────────────────┘
//! ```
//!
//! Room on the disk is taken before a page is written to: for the header and the overflow series when the file is opened, for others before they
//! are made. Where there is none for a series, its values go to the metric's overflow series, and the header counts them. Where there is
//! none for the file, its writer has them in memory, and moves them when there is.
//!
//! Histograms have the boundaries of [`BOUNDARIES`]. An exemplar has a checksum, so that a reader drops one that is being replaced.
//! A file that is damaged, or of another version, is begun anew. What modules count with instruments of their own is in [`instruments`].

pub mod instruments;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, FlockOperation, MemfdFlags, fallocate, flock, ftruncate, memfd_create};
use rustix::io::Errno;
use tracer_core::metric_names::{KEPT, MetricKind, OVERFLOW};

use crate::shared_memory::RescuedMemory;

/// Upper boundaries of the buckets of histograms, in seconds: powers of two from 2⁻¹³ (0.12 ms) to 2¹³ (2 h 17 min). The bucket above the last
/// has the rest.
pub const BOUNDARIES: [f64; 27] = {
    let mut all = [0.0; 27];
    let mut value = 1.0 / 8192.0;
    let mut index = 0;
    while index < all.len() {
        all[index] = value;
        value *= 2.0;
        index += 1;
    }
    all
};

/// Number of buckets of a histogram.
pub const BUCKETS: usize = BOUNDARIES.len() + 1;
/// Series of one metric. Further combinations of attributes share one, with the attribute `otel.metric.overflow`.
pub const SERIES_LIMIT: usize = 2000;
/// Bytes of the attributes of a series. Longer ones share the same series.
const ATTRIBUTES_LIMIT: usize = ATTRIBUTE_WORDS * 8;

const MAGIC: u64 = u64::from_le_bytes(*b"TRACERM1");
const HEADER: usize = 8;
const USED_AT: usize = 1;
/// Values that are in an overflow series because the disk had no room for one of their own.
const OVERFLOWED_AT: usize = 2;
/// Series in a file, of all metrics. What nobody writes to takes no room.
const CAPACITY: usize = 30_720;
const _: () = assert!(KEPT.len() * SERIES_LIMIT <= CAPACITY);
/// Words of a file: behind the others, each metric has its overflow series at its position in [`KEPT`].
const WORDS: usize = HEADER + (CAPACITY + KEPT.len()) * SERIES_WORDS;
const WORD: usize = size_of::<u64>();
/// First byte of the overflow series.
const OVERFLOW_AT: usize = (HEADER + CAPACITY * SERIES_WORDS) * WORD;
/// Bytes of the disk that are taken at once for further series.
const ROOM: usize = 16 << 10;
/// Time after which the disk is asked again for room that it did not have.
const RETRY: Duration = Duration::from_secs(1);

const KIND_AT: usize = 0;
const ATTRIBUTES_AT: usize = 1;
const ATTRIBUTE_WORDS: usize = 32;
const COUNT_AT: usize = ATTRIBUTES_AT + ATTRIBUTE_WORDS;
const SUM_AT: usize = COUNT_AT + 1;
const BUCKETS_AT: usize = SUM_AT + 1;
const EXEMPLARS_AT: usize = BUCKETS_AT + BUCKETS;
const EXEMPLAR_WORDS: usize = 6;
const SERIES_WORDS: usize = 256;
const _: () = assert!(EXEMPLARS_AT + BUCKETS * EXEMPLAR_WORDS <= SERIES_WORDS);

/// Age from which an exemplar is replaced by another, in nanoseconds.
const EXEMPLAR_LIVES_NS: u64 = 1_000_000_000;

/// Folder of the place in which threads of proxies have their files.
pub const SERVING_FOLDER: &str = "metrics.serving";
/// Files in a folder, of threads that count at the same time.
const FILES_LIMIT: usize = 1024;

/// A measured value with the span in which it was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exemplar {
    /// The value, in the metric's unit.
    pub value: f64,
    /// Time of the measurement, in nanoseconds since the Unix epoch.
    pub unix_nano: u64,
    /// Trace of the span.
    pub trace_id: [u8; 16],
    /// The span.
    pub span_id: [u8; 8],
}

/// A series of a file: the place to count at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SeriesIndex(u32);

/// A series as a reader finds it.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Position of its metric in [`KEPT`].
    pub metric: usize,
    /// Keys and values of its attributes, in the order in which they were given.
    pub attributes: Vec<(String, String)>,
    /// Number of values, or the sum of a counter.
    pub count: u64,
    /// Sum of the values of a histogram.
    pub sum: f64,
    /// Number of values in each bucket of a histogram.
    pub buckets: [u64; BUCKETS],
    /// The latest exemplar of each bucket.
    pub exemplars: [Option<Exemplar>; BUCKETS],
}

/// The file, as the one process has it that counts.
#[derive(Debug)]
pub struct SeriesFile {
    memory: RescuedMemory,
    place: Place,
    /// The file, which is locked if others may want it; none while the disk has no room for it, and its values are in memory alone.
    file: Option<File>,
    /// Bytes of the file, from the first on, for which the disk has room.
    room: usize,
    known: HashMap<(usize, Box<[u8]>), SeriesIndex>,
    /// Series of each metric.
    of_metric: Vec<usize>,
    no_room: Option<NoRoom>,
    /// True if a series was refused for which there may be room later.
    is_refused: bool,
}

/// The path of a file, or the folder of which the first is taken that nobody has locked.
#[derive(Clone, Debug)]
enum Place {
    File(PathBuf),
    Folder(PathBuf),
}

/// The disk that has had no room.
#[derive(Debug)]
struct NoRoom {
    /// Error that it gave first.
    reason: String,
    /// Time of the next try.
    again: Instant,
    is_said: bool,
}

/// A file that is open, or what stands for it, with the series in it.
struct Opened {
    memory: RescuedMemory,
    file: Option<File>,
    room: usize,
    known: HashMap<(usize, Box<[u8]>), SeriesIndex>,
    of_metric: Vec<usize>,
}

impl SeriesFile {
    /// Opens the file at this path, which is made if it is not there or makes no sense, and goes on with the counts that are in it. Its mode is 0600.
    pub fn open(path: &Path) -> io::Result<SeriesFile> {
        SeriesFile::of_place(Place::File(path.into()))
    }

    /// Opens the first file of a folder that no living process has locked, and locks it until this value or its process is gone. The counts of
    /// whoever had it before go on. The folder is made if it is not there.
    pub fn open_free(folder: &Path) -> io::Result<SeriesFile> {
        SeriesFile::of_place(Place::Folder(folder.into()))
    }

    fn of_place(place: Place) -> io::Result<SeriesFile> {
        let (opened, no_room) = match place.open() {
            Ok(opened) => (opened, None),
            Err(error) if is_no_room(&error) => (in_memory()?, Some(NoRoom::new(&error))),
            Err(error) => return Err(error),
        };
        let Opened { memory, file, room, known, of_metric } = opened;
        Ok(SeriesFile { memory, place, file, room, known, of_metric, no_room, is_refused: false })
    }

    fn word(&self, SeriesIndex(index): SeriesIndex, at: usize) -> &AtomicU64 {
        &self.memory.words()[HEADER + index as usize * SERIES_WORDS + at]
    }

    /// Returns the series of a metric, by its position in [`KEPT`], with these attributes; makes it if there is none.
    ///
    /// Where there may be no further one, and while the disk has no room for one, returns the metric's overflow series: see [`take_refused`].
    ///
    /// [`take_refused`]: SeriesFile::take_refused
    pub fn series(&mut self, metric: usize, attributes: &[(&str, &str)]) -> SeriesIndex {
        if self.file.is_none() && self.may_try() {
            let opened = self.open_again();
            self.note(opened);
        }
        let key = encode(attributes);
        if let Some(&known) = self.known.get(&(metric, key.as_slice().into())) {
            return known;
        }
        if key.len() > ATTRIBUTES_LIMIT || self.of_metric[metric] >= SERIES_LIMIT - 1 {
            return overflow_of(metric);
        }
        if self.make_room() {
            return self.add(metric, key);
        }
        let overflowed = &self.memory.words()[OVERFLOWED_AT];
        overflowed.store(overflowed.load(Relaxed).wrapping_add(1), Relaxed);
        self.is_refused = true;
        overflow_of(metric)
    }

    /// Returns whether one of the series since this was asked last was refused because the disk had no room. Nobody may remember it then: the next
    /// value is to ask again.
    pub fn take_refused(&mut self) -> bool {
        std::mem::take(&mut self.is_refused)
    }

    /// Returns, once, what is to be said of a disk that has no room.
    pub fn take_failure(&mut self) -> Option<String> {
        let no_room = self.no_room.as_mut().filter(|no_room| !no_room.is_said)?;
        no_room.is_said = true;
        let (Place::File(path) | Place::Folder(path)) = &self.place;
        Some(format!(
            "the disk of `{}` has no room for further series of metrics, whose values are counted with \
             `{OVERFLOW}` until it has: {}",
            path.display(),
            no_room.reason
        ))
    }

    /// Returns how many values are in overflow series because the disk had no room, where they are in memory alone: no reader of the file finds these.
    pub fn unwritten(&self) -> u64 {
        if self.file.is_some() { 0 } else { self.memory.words()[OVERFLOWED_AT].load(Relaxed) }
    }

    /// Takes room for one more series. Returns whether there is some.
    fn make_room(&mut self) -> bool {
        let Some(file) = &self.file else { return false };
        let used = self.used();
        if used >= CAPACITY {
            return false;
        }
        let end = (HEADER + (used + 1) * SERIES_WORDS) * WORD;
        if end <= self.room {
            return true;
        }
        if !self.may_try() {
            return false;
        }
        let taken = take_room(file, &mut self.room, end, OVERFLOW_AT).map_err(io::Error::from);
        self.note(taken)
    }

    /// Puts the file in the place of the memory that stands for it.
    fn open_again(&mut self) -> io::Result<()> {
        let Opened { memory, file, room, known, of_metric } = self.place.open()?;
        let before = std::mem::replace(&mut self.memory, memory);
        (self.file, self.room, self.known, self.of_metric) = (file, room, known, of_metric);
        self.add_overflow(&before);
        Ok(())
    }

    /// Returns whether the disk may be asked for room: it has not refused some just now.
    fn may_try(&self) -> bool {
        self.no_room.as_ref().is_none_or(|no_room| Instant::now() >= no_room.again)
    }

    /// Remembers what the disk has answered. Returns whether it had room.
    fn note(&mut self, answer: io::Result<()>) -> bool {
        match answer {
            Ok(()) => true,
            Err(error) => {
                let no_room = self.no_room.get_or_insert_with(|| NoRoom::new(&error));
                no_room.again = Instant::now() + RETRY;
                false
            }
        }
    }

    fn used(&self) -> usize {
        usize::try_from(self.memory.words()[USED_AT].load(Relaxed)).map_or(CAPACITY, |used| used.min(CAPACITY))
    }

    /// Adds what is in overflow series of other memory.
    fn add_overflow(&self, other: &RescuedMemory) {
        let load = |at: usize| other.words()[at].load(Relaxed);
        let overflowed = &self.memory.words()[OVERFLOWED_AT];
        overflowed.store(overflowed.load(Relaxed).wrapping_add(load(OVERFLOWED_AT)), Relaxed);
        for metric in 0..KEPT.len() {
            let index = overflow_of(metric);
            let begin = HEADER + index.0 as usize * SERIES_WORDS;
            self.count(index, load(begin + COUNT_AT));
            let sum = self.word(index, SUM_AT);
            sum.store((f64::from_bits(sum.load(Relaxed)) + f64::from_bits(load(begin + SUM_AT))).to_bits(), Relaxed);
            for bucket in 0..BUCKETS {
                self.count_at(index, BUCKETS_AT + bucket, load(begin + BUCKETS_AT + bucket));
                let words: [u64; EXEMPLAR_WORDS] =
                    std::array::from_fn(|at| load(begin + EXEMPLARS_AT + bucket * EXEMPLAR_WORDS + at));
                if let Some(exemplar) = decode_exemplar(&words) {
                    self.set_exemplar(index, bucket, &exemplar);
                }
            }
        }
    }

    /// Adds a series, for which there is room.
    fn add(&mut self, metric: usize, key: Vec<u8>) -> SeriesIndex {
        let used = self.used();
        let index = SeriesIndex(used as u32);
        let mut padded = key.clone();
        padded.resize(ATTRIBUTES_LIMIT, 0);
        for (at, word) in padded.chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(word.try_into().expect("chunks of eight bytes"));
            self.word(index, ATTRIBUTES_AT + at).store(word, Relaxed);
        }
        self.word(index, KIND_AT).store((metric as u64) << 32 | key.len() as u64, Relaxed);
        self.memory.words()[USED_AT].store(used as u64 + 1, Release);
        self.of_metric[metric] += 1;
        self.known.insert((metric, key.into()), index);
        index
    }

    /// Adds to a counter.
    pub fn count(&self, series: SeriesIndex, more: u64) {
        self.count_at(series, COUNT_AT, more);
    }

    fn count_at(&self, series: SeriesIndex, at: usize, more: u64) {
        let count = self.word(series, at);
        count.store(count.load(Relaxed).wrapping_add(more), Relaxed);
    }

    /// Adds a value to a histogram. Values that are no numbers count as 0.
    pub fn observe(&self, series: SeriesIndex, value: f64) -> usize {
        let value = if value.is_finite() { value.max(0.0) } else { 0.0 };
        let bucket = bucket_of(value);
        let sum = self.word(series, SUM_AT);
        sum.store((f64::from_bits(sum.load(Relaxed)) + value).to_bits(), Relaxed);
        self.count_at(series, BUCKETS_AT + bucket, 1);
        bucket
    }

    /// Returns whether a bucket has no exemplar, or one that is old at this time.
    pub fn wants_exemplar(&self, series: SeriesIndex, bucket: usize, now_unix_nano: u64) -> bool {
        let time = self.word(series, EXEMPLARS_AT + bucket * EXEMPLAR_WORDS + 1).load(Relaxed);
        // Also one of the future: the clock was set back.
        time.abs_diff(now_unix_nano) >= EXEMPLAR_LIVES_NS
    }

    /// Puts an exemplar in the place of the one that a bucket has.
    pub fn set_exemplar(&self, series: SeriesIndex, bucket: usize, exemplar: &Exemplar) {
        let at = EXEMPLARS_AT + bucket * EXEMPLAR_WORDS;
        for (offset, word) in exemplar_words(exemplar).into_iter().enumerate() {
            self.word(series, at + offset).store(word, Relaxed);
        }
    }
}

impl NoRoom {
    fn new(error: &io::Error) -> NoRoom {
        NoRoom { reason: error.to_string(), again: Instant::now() + RETRY, is_said: false }
    }
}

impl Place {
    /// Opens the file, with room for its header, for the series that are in it and for those of the overflow.
    fn open(&self) -> io::Result<Opened> {
        let file = match self {
            Place::File(path) => open_file(path)?,
            Place::Folder(folder) => lock_free_file(folder)?.1,
        };
        let bytes = (WORDS * WORD) as u64;
        let mut magic = [0; 8];
        // A shorter one is of a version with fewer metrics.
        let is_known = (HEADER as u64 * 8..=bytes).contains(&file.metadata()?.len()) && {
            file.read_exact_at(&mut magic, 0)?;
            u64::from_le_bytes(magic) == MAGIC
        };
        if !is_known {
            file.set_len(0)?;
        }
        file.set_len(bytes)?;
        let used = if is_known { read_used(&file)? } else { 0 };
        let mut room = 0;
        take_room(&file, &mut room, (HEADER + used * SERIES_WORDS) * WORD, OVERFLOW_AT)?;
        take_room(&file, &mut { OVERFLOW_AT }, WORDS * WORD, WORDS * WORD)?;
        if !is_known {
            file.write_all_at(&MAGIC.to_le_bytes(), 0)?;
        }
        let mut known = HashMap::new();
        let mut of_metric = vec![0; KEPT.len()];
        for (index, metric, attributes) in read_file(&file)? {
            known.insert((metric, attributes.into()), index);
            of_metric[metric] += 1;
        }
        Ok(Opened { memory: RescuedMemory::of_file(&file, WORDS)?, file: Some(file), room, known, of_metric })
    }
}

/// Makes what stands for a file for which the disk has no room: memory with its overflow series.
fn in_memory() -> io::Result<Opened> {
    let file = File::from(memfd_create(c"tracer-metrics", MemfdFlags::CLOEXEC)?);
    ftruncate(&file, (WORDS * WORD) as u64)?;
    let memory = RescuedMemory::of_file(file, WORDS)?;
    Ok(Opened { memory, file: None, room: 0, known: HashMap::new(), of_metric: vec![0; KEPT.len()] })
}

fn is_no_room(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Returns the series of what finds no other one of a metric.
fn overflow_of(metric: usize) -> SeriesIndex {
    SeriesIndex((CAPACITY + metric) as u32)
}

/// Takes room on the disk for a file up to this byte, from that on up to which there is some. A page that is mapped and for which there is none could
/// not be written to.
fn take_room(file: &File, room: &mut usize, end: usize, limit: usize) -> Result<(), Errno> {
    if end <= *room {
        return Ok(());
    }
    let upto = end.next_multiple_of(ROOM).min(limit);
    match fallocate(file, FallocateFlags::empty(), *room as u64, (upto - *room) as u64) {
        // A file system that cannot promise room has to do without.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            *room = upto;
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Returns the first file of a folder that no living process has locked, and the same file again, which holds the lock.
fn lock_free_file(folder: &Path) -> io::Result<(File, File)> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    for number in 0..FILES_LIMIT {
        let file = open_file(&folder.join(number.to_string()))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok((file.try_clone()?, file)),
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::other(format!("all {FILES_LIMIT} files in `{}` are in use", folder.display())))
}

fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Reads the series of all files of a folder, and adds up those of one metric with the same attributes. There are none where there is no folder.
pub fn read_folder(folder: &Path) -> io::Result<Vec<Series>> {
    let mut all: Vec<Series> = Vec::new();
    let mut places: HashMap<(usize, Vec<(String, String)>), usize> = HashMap::new();
    let entries = match folder.read_dir() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(all),
        entries => entries?,
    };
    for entry in entries {
        for series in read(&entry?.path())? {
            match places.entry((series.metric, series.attributes.clone())) {
                Entry::Occupied(place) => all[*place.get()].add(&series),
                Entry::Vacant(place) => {
                    place.insert(all.len());
                    all.push(series);
                }
            }
        }
    }
    Ok(all)
}

impl Series {
    /// Adds the counts of another series. Of two exemplars of a bucket the later one stays.
    fn add(&mut self, other: &Series) {
        self.count = self.count.wrapping_add(other.count);
        self.sum += other.sum;
        for (own, other) in self.buckets.iter_mut().zip(other.buckets) {
            *own = own.wrapping_add(other);
        }
        for (own, other) in self.exemplars.iter_mut().zip(other.exemplars) {
            let time = |exemplar: Option<Exemplar>| exemplar.map_or(0, |exemplar| exemplar.unix_nano);
            if time(other) > time(*own) {
                *own = other;
            }
        }
    }
}

/// Reads the series of a file, which may be written to meanwhile. There are none where there is no file.
pub fn read(path: &Path) -> io::Result<Vec<Series>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let words = read_words(&file)?;
    let mut all: Vec<_> = words.chunks_exact(SERIES_WORDS).filter_map(series).collect();
    let overflow = read_overflow(&file)?;
    for (metric, words) in overflow.chunks_exact(SERIES_WORDS).enumerate() {
        let of_overflow = of_words(words, metric, vec![(OVERFLOW.to_owned(), "true".to_owned())]);
        let is_it = |found: &&mut Series| (found.metric, &found.attributes) == (metric, &of_overflow.attributes);
        match all.iter_mut().find(is_it) {
            _ if of_overflow.count == 0 => {}
            // Versions before this one had it among the others.
            Some(found) => found.add(&of_overflow),
            None => all.push(of_overflow),
        }
    }
    Ok(all)
}

/// Returns how many values of a file's series are counted with the attribute of the overflow because the disk had no room for series of their own.
pub fn read_overflowed(path: &Path) -> io::Result<u64> {
    match File::open(path) {
        Ok(file) => Ok(read_header(&file)?.map_or(0, |header| header[OVERFLOWED_AT])),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}

/// Returns the words of the header; none of a file that makes no sense.
fn read_header(file: &File) -> io::Result<Option<[u64; HEADER]>> {
    if file.metadata()?.len() < (HEADER * WORD) as u64 {
        return Ok(None);
    }
    let words = read_at(file, 0, HEADER)?;
    let header: [u64; HEADER] = std::array::from_fn(|at| words[at]);
    Ok((header[0] == MAGIC).then_some(header))
}

/// Returns the number of series in a file but those of the overflow; none of a file that makes no sense.
fn read_used(file: &File) -> io::Result<usize> {
    let header = read_header(file)?;
    Ok(header.map_or(0, |header| usize::try_from(header[USED_AT]).map_or(CAPACITY, |used| used.min(CAPACITY))))
}

fn read_at(file: &File, at: usize, words: usize) -> io::Result<Vec<u64>> {
    let mut bytes = vec![0; words * WORD];
    file.read_exact_at(&mut bytes, at as u64)?;
    Ok(bytes.chunks_exact(WORD).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).collect())
}

/// Returns the words of all series that are in use but those of the overflow; none of a file that makes no sense.
fn read_words(file: &File) -> io::Result<Vec<u64>> {
    let used = read_used(file)?;
    read_at(file, HEADER * WORD, used * SERIES_WORDS)
}

/// Returns the words of the overflow series; none of a file that makes no sense, or is of a version before them.
fn read_overflow(file: &File) -> io::Result<Vec<u64>> {
    if read_header(file)?.is_none() || file.metadata()?.len() < (WORDS * WORD) as u64 {
        return Ok(Vec::new());
    }
    read_at(file, OVERFLOW_AT, KEPT.len() * SERIES_WORDS)
}

fn read_file(file: &File) -> io::Result<Vec<(SeriesIndex, usize, Vec<u8>)>> {
    let words = read_words(file)?;
    let all = words.chunks_exact(SERIES_WORDS).zip(0..);
    Ok(all.filter_map(|(words, index)| named(words).map(|(metric, key)| (SeriesIndex(index), metric, key))).collect())
}

/// Returns the metric of a series and its encoded attributes; none of one that makes no sense.
fn named(words: &[u64]) -> Option<(usize, Vec<u8>)> {
    let (metric, length) = ((words[KIND_AT] >> 32) as usize, (words[KIND_AT] & 0xFFFF_FFFF) as usize);
    if metric >= KEPT.len() || length > ATTRIBUTES_LIMIT {
        return None;
    }
    let mut key: Vec<u8> =
        words[ATTRIBUTES_AT..][..ATTRIBUTE_WORDS].iter().flat_map(|word| word.to_le_bytes()).collect();
    key.truncate(length);
    Some((metric, key))
}

fn series(words: &[u64]) -> Option<Series> {
    let (metric, key) = named(words)?;
    Some(of_words(words, metric, decode(&key)?))
}

fn of_words(words: &[u64], metric: usize, attributes: Vec<(String, String)>) -> Series {
    let mut buckets = [0; BUCKETS];
    buckets.copy_from_slice(&words[BUCKETS_AT..][..BUCKETS]);
    let exemplar = |bucket: usize| decode_exemplar(&words[EXEMPLARS_AT + bucket * EXEMPLAR_WORDS..][..EXEMPLAR_WORDS]);
    Series {
        metric,
        attributes,
        count: match KEPT[metric].kind {
            MetricKind::Histogram => buckets.iter().fold(0, |sum, count| sum.wrapping_add(*count)),
            _ => words[COUNT_AT],
        },
        sum: Some(f64::from_bits(words[SUM_AT])).filter(|sum| sum.is_finite()).unwrap_or(0.0),
        buckets,
        exemplars: std::array::from_fn(exemplar),
    }
}

/// Returns the bucket of a value that is not negative: the first whose boundary is not below it. The boundaries are powers of two, so it is the
/// exponent, rounded up.
#[inline]
fn bucket_of(value: f64) -> usize {
    const MANTISSA: u64 = 1 << 52;
    /// Biased exponent of the first boundary.
    const FIRST: u64 = BOUNDARIES[0].to_bits() / MANTISSA;
    let exponent = value.to_bits().div_ceil(MANTISSA);
    exponent.saturating_sub(FIRST).min(BUCKETS as u64 - 1) as usize
}

/// Keys and values, each with a zero byte behind it, of which they have none.
fn encode(attributes: &[(&str, &str)]) -> Vec<u8> {
    let texts = attributes.iter().flat_map(|(key, value)| [*key, *value]);
    texts.flat_map(|text| text.bytes().filter(|byte| *byte != 0).chain([0])).collect()
}

fn decode(key: &[u8]) -> Option<Vec<(String, String)>> {
    let text = std::str::from_utf8(key).ok()?;
    let texts: Vec<_> = text.split_terminator('\0').collect();
    let pairs = texts.chunks(2).map(|pair| match pair {
        [key, value] if !key.is_empty() => Some(((*key).to_owned(), (*value).to_owned())),
        _ => None,
    });
    pairs.collect()
}

fn exemplar_words(exemplar: &Exemplar) -> [u64; EXEMPLAR_WORDS] {
    let half = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    let [low, high] = [half(&exemplar.trace_id[..8]), half(&exemplar.trace_id[8..])];
    let words = [exemplar.value.to_bits(), exemplar.unix_nano, low, high, half(&exemplar.span_id)];
    let [a, b, c, d, e] = words;
    [a, b, c, d, e, checksum(&words)]
}

fn decode_exemplar(words: &[u64]) -> Option<Exemplar> {
    let &[value, unix_nano, low, high, span, sum] = words else { return None };
    let is_whole = unix_nano > 0 && checksum(&[value, unix_nano, low, high, span]) == sum;
    let value = Some(f64::from_bits(value)).filter(|value| is_whole && value.is_finite())?;
    let mut trace_id = [0; 16];
    trace_id[..8].copy_from_slice(&low.to_le_bytes());
    trace_id[8..].copy_from_slice(&high.to_le_bytes());
    Some(Exemplar { value, unix_nano, trace_id, span_id: span.to_le_bytes() })
}

/// FNV-1a over the words.
fn checksum(words: &[u64]) -> u64 {
    words.iter().fold(0xCBF2_9CE4_8422_2325, |sum, word| (sum ^ word).wrapping_mul(0x100_0000_01B3).rotate_left(17))
}

#[cfg(test)]
mod tests {
    use tracer_core::metric_names::{TASK_DURATION, TASKS_ENDED};

    use super::*;

    fn exemplar(value: f64, unix_nano: u64) -> Exemplar {
        Exemplar { value, unix_nano, trace_id: [7; 16], span_id: [9; 8] }
    }

    #[test]
    fn files_of_a_folder_are_of_one_writer_each_and_their_counts_add_up() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("metrics.serving");
        assert_eq!(read_folder(&folder).unwrap(), []);
        let count = |file: &mut SeriesFile, more, unix_nano| {
            let ended = file.series(TASKS_ENDED, &[("tracer.state", "failed")]);
            file.count(ended, more);
            let ran = file.series(TASK_DURATION, &[("tracer.function", "a")]);
            let bucket = file.observe(ran, 0.25);
            file.set_exemplar(ran, bucket, &exemplar(0.25, unix_nano));
        };
        let (mut first, mut second) =
            (SeriesFile::open_free(&folder).unwrap(), SeriesFile::open_free(&folder).unwrap());
        count(&mut first, 1, 5);
        count(&mut second, 10, 3);
        // The next one has the file of one that has ended, and its counts.
        drop(first);
        let mut third = SeriesFile::open_free(&folder).unwrap();
        count(&mut third, 100, 4);
        assert_eq!(folder.read_dir().unwrap().count(), 2);
        let mut all = read_folder(&folder).unwrap();
        all.sort_by_key(|series| std::cmp::Reverse(series.metric));
        assert_eq!((all.len(), all[0].count), (2, 111));
        assert_eq!((all[1].count, all[1].sum), (3, 0.75));
        let bucket = bucket_of(0.25);
        assert_eq!((all[1].buckets[bucket], all[1].exemplars[bucket]), (3, Some(exemplar(0.25, 4))));
    }

    #[test]
    fn the_next_process_goes_on_with_the_counts_of_one_that_was_killed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics");
        for round in 1..=3 {
            let mut file = SeriesFile::open(&path).unwrap();
            let ended = file.series(TASKS_ENDED, &[("tracer.state", "failed")]);
            file.count(ended, 5);
            let ran = file.series(TASK_DURATION, &[("tracer.function", "a.b"), ("error.type", "panic")]);
            let bucket = file.observe(ran, 0.3);
            assert!(round > 1 || file.wants_exemplar(ran, bucket, 10_000_000_000));
            file.set_exemplar(ran, bucket, &exemplar(0.3, 10_000_000_000));
            assert!(!file.wants_exemplar(ran, bucket, 10_500_000_000));
            assert!(file.wants_exemplar(ran, bucket, 11_500_000_000));
            // Nothing is said at its end: dropping a mapping writes nothing.
            let all = read(&path).unwrap();
            assert_eq!(all.len(), 2);
            assert_eq!((all[0].metric, all[0].count), (TASKS_ENDED, 5 * round));
            assert_eq!(
                all[1].attributes,
                [("tracer.function".into(), "a.b".into()), ("error.type".into(), "panic".into())]
            );
            assert_eq!((all[1].count, all[1].buckets[bucket]), (round, round));
            assert!((all[1].sum - 0.3 * round as f64).abs() < 1e-9);
            assert_eq!(all[1].exemplars[bucket], Some(exemplar(0.3, 10_000_000_000)));
            assert_eq!(BOUNDARIES[bucket], 0.5);
        }
    }

    #[test]
    fn values_are_in_the_first_bucket_whose_boundary_is_not_below_them() {
        assert_eq!(bucket_of(0.0), 0);
        assert_eq!(bucket_of(1.0 / 8192.0), 0);
        assert_eq!(bucket_of(1.0), 13);
        assert_eq!(bucket_of(1.001), 14);
        assert_eq!(bucket_of(8192.0), 26);
        assert_eq!(bucket_of(1e12), BUCKETS - 1);
        let beside = |value: f64| [value.next_down(), value, value.next_up()];
        for value in BOUNDARIES.into_iter().flat_map(beside).chain([f64::MIN_POSITIVE / 2.0, f64::MAX]) {
            assert_eq!(bucket_of(value), BOUNDARIES.partition_point(|boundary| *boundary < value), "{value}");
        }
    }

    #[test]
    fn beyond_the_limit_series_share_one_that_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics");
        let mut file = SeriesFile::open(&path).unwrap();
        for number in 0..SERIES_LIMIT + 500 {
            let series = file.series(TASK_DURATION, &[("tracer.function", &number.to_string())]);
            file.observe(series, 1.0);
        }
        let long = "x".repeat(ATTRIBUTES_LIMIT);
        let series = file.series(TASKS_ENDED, &[("tracer.state", &long)]);
        file.count(series, 1);
        let all = read(&path).unwrap();
        assert_eq!(all.iter().filter(|series| series.metric == TASK_DURATION).count(), SERIES_LIMIT);
        let overflow: Vec<_> =
            all.iter().filter(|series| series.attributes == [(OVERFLOW.into(), "true".into())]).collect();
        assert_eq!(overflow.iter().map(|series| series.count).collect::<Vec<_>>(), [501, 1]);
        let counted: u64 = all.iter().filter(|series| series.metric == TASK_DURATION).map(|series| series.count).sum();
        assert_eq!(counted as usize, SERIES_LIMIT + 500);
    }

    #[test]
    fn what_was_counted_without_a_file_is_in_it_as_soon_as_there_is_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics");
        let function = [("tracer.function", "a")];
        let mut before = SeriesFile::open(&path).unwrap();
        let ran = before.series(TASK_DURATION, &function);
        before.observe(ran, 0.5);
        drop(before);
        let now = Instant::now();
        let no_room = NoRoom { reason: "no room".into(), again: now + Duration::from_secs(3600), is_said: false };
        let Opened { memory, file, room, known, of_metric } = in_memory().unwrap();
        let place = Place::File(path.clone());
        let no_room = Some(no_room);
        let mut file = SeriesFile { memory, place, file, room, known, of_metric, no_room, is_refused: false };
        for value in [0.25, 1.0] {
            let ran = file.series(TASK_DURATION, &function);
            assert!(file.take_refused(), "nobody may remember it");
            let bucket = file.observe(ran, value);
            file.set_exemplar(ran, bucket, &exemplar(value, 7));
        }
        let ended = file.series(TASKS_ENDED, &[("tracer.state", "failed")]);
        assert!(file.take_refused());
        file.count(ended, 5);
        assert_eq!((file.unwritten(), read_overflowed(&path).unwrap()), (3, 0));
        assert_eq!(read(&path).unwrap().len(), 1, "there is no file for it");
        let said = file.take_failure().unwrap();
        assert!(said.contains("no room") && file.take_failure().is_none(), "{said}");
        // There is room again.
        file.no_room.as_mut().unwrap().again = now;
        let ran = file.series(TASK_DURATION, &function);
        assert!(!file.take_refused());
        file.observe(ran, 0.5);
        // What is remembered of before is the same series.
        file.count(ended, 2);
        assert_eq!((file.unwritten(), read_overflowed(&path).unwrap()), (0, 3));
        let all = read(&path).unwrap();
        let overflow = [(OVERFLOW.to_owned(), "true".to_owned())];
        assert_eq!(
            all.iter().map(|series| series.metric).collect::<Vec<_>>(),
            [TASK_DURATION, TASK_DURATION, TASKS_ENDED]
        );
        assert_eq!((all[0].count, all[0].sum), (2, 1.0));
        assert_eq!((all[1].count, all[1].sum, &*all[1].attributes), (2, 1.25, &overflow[..]));
        assert_eq!(all[1].exemplars[bucket_of(0.25)], Some(exemplar(0.25, 7)));
        assert_eq!((all[2].count, &*all[2].attributes), (7, &overflow[..]));
    }

    #[test]
    fn an_overflow_that_a_version_before_has_among_its_series_is_the_same_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics");
        let mut file = SeriesFile::open(&path).unwrap();
        let key = encode(&[(OVERFLOW, "true")]);
        assert!(file.make_room());
        let old = file.add(TASKS_ENDED, key);
        file.count(old, 3);
        drop(file);
        // Theirs had no other.
        OpenOptions::new().write(true).open(&path).unwrap().set_len(OVERFLOW_AT as u64).unwrap();
        assert_eq!(read(&path).unwrap().iter().map(|series| series.count).collect::<Vec<_>>(), [3]);
        let mut file = SeriesFile::open(&path).unwrap();
        let long = file.series(TASKS_ENDED, &[("tracer.state", &"x".repeat(ATTRIBUTES_LIMIT))]);
        file.count(long, 2);
        assert_eq!(read(&path).unwrap().iter().map(|series| series.count).collect::<Vec<_>>(), [5]);
    }

    #[test]
    fn a_damaged_file_is_begun_anew_and_one_that_is_cut_short_costs_counts_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics");
        for contents in [&b""[..], b"no metrics", &[0xFF; 100_000]] {
            std::fs::write(&path, contents).unwrap();
            assert_eq!(read(&path).unwrap(), []);
            let mut file = SeriesFile::open(&path).unwrap();
            let series = file.series(TASKS_ENDED, &[]);
            file.count(series, 1);
            assert_eq!(read(&path).unwrap()[0].count, 1);
            // Somebody cuts the file short while it is mapped.
            OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
            file.count(series, 1);
            assert_eq!(read(&path).unwrap(), []);
        }
    }

    #[test]
    fn whatever_a_file_has_is_read_without_harm() {
        use proptest::prelude::*;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics");
        proptest!(ProptestConfig::with_cases(64), |(seed in any::<u64>(), used in 0_u64..8, flips in 1_usize..40)| {
            let mut file = SeriesFile::open(&path).unwrap();
            let series = file.series(TASK_DURATION, &[("tracer.function", "a")]);
            let bucket = file.observe(series, 1.0);
            file.set_exemplar(series, bucket, &exemplar(1.0, 5));
            drop(file);
            let mut bytes = std::fs::read(&path).unwrap();
            bytes[8..16].copy_from_slice(&used.to_le_bytes());
            let mut random = seed;
            for _ in 0..flips {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = 16 + (random >> 20) as usize % (SERIES_WORDS * 16);
                bytes[at] ^= random as u8;
            }
            std::fs::write(&path, &bytes).unwrap();
            prop_assert!(read(&path).unwrap().len() as u64 <= used);
            let mut file = SeriesFile::open(&path).unwrap();
            let series = file.series(TASKS_ENDED, &[]);
            file.count(series, 1);
            std::fs::remove_file(&path).unwrap();
        });
    }
}
