//! Series of metrics in a mapped file: counters and histograms that outlive the process that counts.
//!
//! A file has one writer, and readers that read it as any file. So a count costs its writer a few stores and no system call, a scrape costs
//! it nothing, and after SIGKILL the next process goes on with the counts that it finds: no counter goes back. The kernel writes the pages to
//! the disk when it likes; after a power failure some of the last counts may be missing.
//!
//! ```text
//!   ┌────────┬──────────────────────────────┬─────┐
//!   │ header │ series: metric, attributes,  │ ... │   words of 64 bits, little-endian
//!   │        │ count, sum, buckets,         │     │
//!   │        │ an exemplar for each bucket  │     │
//!   └────────┴──────────────────────────────┴─────┘
//! ```
//!
//! Histograms have the boundaries of [`BOUNDARIES`]. An exemplar has a checksum, so that a reader drops one that is being replaced.
//! A file that is damaged, or of another version, is begun anew. What modules count with instruments of their own is in [`instruments`].

pub mod instruments;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

use rustix::fs::{FlockOperation, flock};
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
/// Series in a file, of all metrics. What nobody writes to takes no room.
const CAPACITY: usize = 30_720;
const _: () = assert!(KEPT.len() * SERIES_LIMIT <= CAPACITY);

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
    /// The file that is locked, if others may want it.
    _lock: Option<File>,
    known: HashMap<(usize, Box<[u8]>), SeriesIndex>,
    /// Series of each metric.
    of_metric: Vec<usize>,
}

impl SeriesFile {
    /// Opens the file at this path, which is made if it is not there or makes no sense, and goes on with the counts that are in it. Its mode is 0600.
    pub fn open(path: &Path) -> io::Result<SeriesFile> {
        SeriesFile::of_file(open_file(path)?, None)
    }

    /// Opens the first file of a folder that no living process has locked, and locks it until this value or its process is gone. The counts of
    /// whoever had it before go on. The folder is made if it is not there.
    pub fn open_free(folder: &Path) -> io::Result<SeriesFile> {
        let (file, lock) = lock_free_file(folder)?;
        SeriesFile::of_file(file, Some(lock))
    }

    fn of_file(file: File, lock: Option<File>) -> io::Result<SeriesFile> {
        let words = HEADER + CAPACITY * SERIES_WORDS;
        let bytes = (words * size_of::<u64>()) as u64;
        let mut magic = [0; 8];
        // A shorter one is of a version with fewer metrics.
        let is_known = (HEADER as u64 * 8..=bytes).contains(&file.metadata()?.len()) && {
            file.read_exact_at(&mut magic, 0)?;
            u64::from_le_bytes(magic) == MAGIC
        };
        if is_known {
            file.set_len(bytes)?;
        } else {
            file.set_len(0)?;
            file.set_len(bytes)?;
            file.write_all_at(&MAGIC.to_le_bytes(), 0)?;
        }
        let series = read_file(&file)?;
        let mut known = HashMap::new();
        let mut of_metric = vec![0; KEPT.len()];
        for (index, metric, attributes) in series {
            known.insert((metric, attributes.into()), index);
            of_metric[metric] += 1;
        }
        Ok(SeriesFile { memory: RescuedMemory::of_file(file, words)?, _lock: lock, known, of_metric })
    }

    fn word(&self, SeriesIndex(index): SeriesIndex, at: usize) -> &AtomicU64 {
        &self.memory.words()[HEADER + index as usize * SERIES_WORDS + at]
    }

    /// Returns the series of a metric, by its position in [`KEPT`], with these attributes; makes it if there is none.
    pub fn series(&mut self, metric: usize, attributes: &[(&str, &str)]) -> SeriesIndex {
        let overflow = [(OVERFLOW, "true")];
        let mut key = encode(attributes);
        loop {
            if let Some(&known) = self.known.get(&(metric, key.as_slice().into())) {
                return known;
            }
            let is_overflow = attributes.len() == 1 && attributes[0] == overflow[0] || key == encode(&overflow);
            if is_overflow || (key.len() <= ATTRIBUTES_LIMIT && self.of_metric[metric] < SERIES_LIMIT - 1) {
                return self.add(metric, key);
            }
            key = encode(&overflow);
        }
    }

    fn add(&mut self, metric: usize, key: Vec<u8>) -> SeriesIndex {
        let used = self.memory.words()[USED_AT].load(Relaxed).min(CAPACITY as u64 - 1);
        let index = SeriesIndex(used as u32);
        let mut padded = key.clone();
        padded.resize(ATTRIBUTES_LIMIT, 0);
        for (at, word) in padded.chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(word.try_into().expect("chunks of eight bytes"));
            self.word(index, ATTRIBUTES_AT + at).store(word, Relaxed);
        }
        self.word(index, KIND_AT).store((metric as u64) << 32 | key.len() as u64, Relaxed);
        self.memory.words()[USED_AT].store(used + 1, Release);
        self.of_metric[metric] += 1;
        self.known.insert((metric, key.into()), index);
        index
    }

    /// Adds to a counter.
    pub fn count(&self, series: SeriesIndex, more: u64) {
        let count = self.word(series, COUNT_AT);
        count.store(count.load(Relaxed).wrapping_add(more), Relaxed);
    }

    /// Adds a value to a histogram. Values that are no numbers count as 0.
    pub fn observe(&self, series: SeriesIndex, value: f64) -> usize {
        let value = if value.is_finite() { value.max(0.0) } else { 0.0 };
        let bucket = bucket_of(value);
        let sum = self.word(series, SUM_AT);
        sum.store((f64::from_bits(sum.load(Relaxed)) + value).to_bits(), Relaxed);
        let in_bucket = self.word(series, BUCKETS_AT + bucket);
        in_bucket.store(in_bucket.load(Relaxed).wrapping_add(1), Relaxed);
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
    Ok(words.chunks_exact(SERIES_WORDS).filter_map(series).collect())
}

/// Returns the words of all series that are in use; none of a file that makes no sense.
fn read_words(file: &File) -> io::Result<Vec<u64>> {
    let mut header = [0; HEADER * 8];
    if file.metadata()?.len() < header.len() as u64 {
        return Ok(Vec::new());
    }
    file.read_exact_at(&mut header, 0)?;
    let word = |at: usize| u64::from_le_bytes(header[at * 8..][..8].try_into().expect("eight bytes"));
    if word(0) != MAGIC {
        return Ok(Vec::new());
    }
    let used = usize::try_from(word(USED_AT)).unwrap_or(CAPACITY).min(CAPACITY);
    let mut bytes = vec![0; used * SERIES_WORDS * 8];
    file.read_exact_at(&mut bytes, HEADER as u64 * 8)?;
    Ok(bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).collect())
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
    let mut buckets = [0; BUCKETS];
    buckets.copy_from_slice(&words[BUCKETS_AT..][..BUCKETS]);
    let exemplar = |bucket: usize| decode_exemplar(&words[EXEMPLARS_AT + bucket * EXEMPLAR_WORDS..][..EXEMPLAR_WORDS]);
    Some(Series {
        metric,
        attributes: decode(&key)?,
        count: match KEPT[metric].kind {
            MetricKind::Histogram => buckets.iter().fold(0, |sum, count| sum.wrapping_add(*count)),
            _ => words[COUNT_AT],
        },
        sum: Some(f64::from_bits(words[SUM_AT])).filter(|sum| sum.is_finite()).unwrap_or(0.0),
        buckets,
        exemplars: std::array::from_fn(exemplar),
    })
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
