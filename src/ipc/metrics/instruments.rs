//! Instruments that modules make, and their values, in a mapped file for each process that has some.
//!
//! A process takes the first file of its place's folder that nobody has locked, and goes on with the sums that it finds, so no counter goes
//! back when a worker dies. Values that mean something while their process lives only (gauges, up-down counters) begin anew.
//! Any thread counts, with atomic operations on the mapping; the lock is for new instruments and new series only.
//!
//! ```text
//!   ┌────────┬───────────────────────────┬──────────────────────┬─────┐
//!   │ header │ definition: name, unit, … │ series: attributes,  │ ... │   words of 64 bits, little-endian;
//!   │        │ boundaries                │ value or buckets, …  │     │   each record says how many it has
//!   └────────┴───────────────────────────┴──────────────────────┴─────┘
//! ```
//!
//! Observers are asked for their values by whoever reads: a word of the header is the number of the round that is asked for, another the last
//! round that was answered, and a thread of the process sleeps on the first (a futex). Nothing runs while nobody reads.
//!
//! The kinds of instruments are those of OpenTelemetry: <https://opentelemetry.io/docs/specs/otel/metrics/api/>.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::futex;
use rustix::time::{ClockId, clock_gettime};
use tracer_core::lock::lock;
use tracer_core::metric_names::OVERFLOW;

use super::{
    EXEMPLAR_LIVES_NS, EXEMPLAR_WORDS, Exemplar, SERIES_LIMIT, WORD, decode_exemplar, exemplar_words, lock_free_file,
    take_room,
};
use crate::identity::birth;
use crate::shared_memory::RescuedMemory;

/// Folder of the place in which processes that run modules have their files.
pub const MODULES_FOLDER: &str = "metrics.modules";
/// Most instruments of a process.
pub const INSTRUMENTS_LIMIT: usize = 1000;
/// Most boundaries of a histogram.
pub const BOUNDARIES_LIMIT: usize = 200;
/// Boundaries of a histogram whose maker says none, as OpenTelemetry's specification has them.
pub const DEFAULT_BOUNDARIES: [f64; 15] =
    [0.0, 5.0, 10.0, 25.0, 50.0, 75.0, 100.0, 250.0, 500.0, 750.0, 1000.0, 2500.0, 5000.0, 7500.0, 10000.0];

const MAGIC: u64 = u64::from_le_bytes(*b"TRACERI1");
/// Words of a file. What nobody writes to takes no room.
const WORDS: usize = 4 << 20;
/// Most bytes of the texts of a record.
const TEXT_LIMIT: usize = 4096;

const HEADER: usize = 16;
const USED_AT: usize = 1;
const PID_AT: usize = 2;
const BIRTH_AT: usize = 3;
const ASKED_AT: usize = 4;
const ANSWERED_AT: usize = 5;
const OBSERVERS_AT: usize = 6;

const DEFINITION: u64 = 1;
const SERIES: u64 = 2;
/// Words before the texts of a record.
const RECORD_HEAD: usize = 1;

// Values of a series, behind its texts.
const VALUE_AT: usize = 0;
/// Sum of the processes before this one, of an observable counter.
const BASE_AT: usize = 1;
/// Round in which it was observed last; not 0 once it has a value.
const ROUND_AT: usize = 2;
const EXEMPLAR_AT: usize = 3;
const PLAIN_WORDS: usize = EXEMPLAR_AT + EXEMPLAR_WORDS;
/// Words before the buckets of a histogram: the sum of its values.
const BUCKETS_AT: usize = 1;

/// Kind of an instrument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum InstrumentKind {
    /// A sum that only grows.
    Counter = 1,
    /// A sum that grows and shrinks.
    UpDownCounter = 2,
    /// A distribution of values.
    Histogram = 3,
    /// The latest value.
    Gauge = 4,
    /// A sum that only grows, as an observer tells it.
    ObservableCounter = 5,
    /// A sum that grows and shrinks, as an observer tells it.
    ObservableUpDownCounter = 6,
    /// The latest value, as an observer tells it.
    ObservableGauge = 7,
}

impl InstrumentKind {
    /// Returns the kind with this number.
    pub fn of(number: u32) -> Option<InstrumentKind> {
        use InstrumentKind::*;
        [Counter, UpDownCounter, Histogram, Gauge, ObservableCounter, ObservableUpDownCounter, ObservableGauge]
            .into_iter()
            .find(|kind| *kind as u32 == number)
    }

    /// Returns whether its values come from observers.
    pub fn is_observable(self) -> bool {
        use InstrumentKind::*;
        matches!(self, ObservableCounter | ObservableUpDownCounter | ObservableGauge)
    }

    /// Returns whether its values only grow, and so outlive the process.
    pub fn is_monotonic(self) -> bool {
        matches!(self, InstrumentKind::Counter | InstrumentKind::Histogram | InstrumentKind::ObservableCounter)
    }

    /// Returns whether it has the latest value of each process, which are not added up.
    pub fn is_gauge(self) -> bool {
        matches!(self, InstrumentKind::Gauge | InstrumentKind::ObservableGauge)
    }
}

/// Type of an instrument's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NumberType {
    /// Integers of 64 bits without a sign.
    U64 = 1,
    /// Integers of 64 bits.
    I64 = 2,
    /// Floating-point numbers of 64 bits.
    F64 = 3,
}

impl NumberType {
    /// Returns the type with this number.
    pub fn of(number: u32) -> Option<NumberType> {
        [NumberType::U64, NumberType::I64, NumberType::F64].into_iter().find(|kind| *kind as u32 == number)
    }

    /// Returns the sum of two values by their bits.
    fn sum(self, one: u64, other: u64) -> u64 {
        match self {
            NumberType::U64 | NumberType::I64 => one.wrapping_add(other),
            NumberType::F64 => (f64::from_bits(one) + f64::from_bits(other)).to_bits(),
        }
    }

    /// Returns the value with these bits.
    pub fn value(self, bits: u64) -> f64 {
        match self {
            NumberType::U64 => bits as f64,
            NumberType::I64 => bits.cast_signed() as f64,
            NumberType::F64 => f64::from_bits(bits),
        }
    }

    fn is_below_zero(self, bits: u64) -> bool {
        match self {
            NumberType::U64 => false,
            NumberType::I64 => bits.cast_signed() < 0,
            NumberType::F64 => f64::from_bits(bits) < 0.0,
        }
    }
}

/// An instrument, as its maker describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Definition {
    /// Its name.
    pub name: String,
    /// Unit by UCUM; empty for none.
    pub unit: String,
    /// Description for people; empty for none.
    pub description: String,
    /// Name of the instrumentation scope.
    pub scope: String,
    /// Version of the scope; empty for none.
    pub scope_version: String,
    /// Kind of the instrument.
    pub kind: InstrumentKind,
    /// Type of its values.
    pub number: NumberType,
    /// Upper boundaries of a histogram's buckets, each above the one before.
    pub boundaries: Vec<f64>,
}

impl Definition {
    /// Returns what makes two definitions the same instrument.
    fn identity(&self) -> Identity {
        let [name, unit] = [&self.name, &self.unit].map(Clone::clone);
        let boundaries = self.boundaries.iter().map(|boundary| boundary.to_bits()).collect();
        let scope = (self.scope.clone(), self.scope_version.clone());
        (name, unit, scope, self.kind, self.number, boundaries)
    }

    fn texts(&self) -> Vec<u8> {
        let texts = [&self.name, &self.unit, &self.description, &self.scope, &self.scope_version];
        let mut encoded = Vec::new();
        for text in texts {
            encoded.extend(text.bytes().filter(|byte| *byte != 0));
            encoded.push(0);
        }
        encoded
    }

    fn value_words(&self) -> usize {
        match self.kind {
            InstrumentKind::Histogram => BUCKETS_AT + (self.boundaries.len() + 1) * (1 + EXEMPLAR_WORDS),
            _ => PLAIN_WORDS,
        }
    }

    /// Returns the bucket of a value: the first whose boundary is not below it.
    #[inline]
    pub fn bucket_of(&self, value: f64) -> usize {
        self.boundaries.partition_point(|boundary| *boundary < value)
    }
}

type Identity = (String, String, (String, String), InstrumentKind, NumberType, Vec<u64>);

/// A value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum AttributeValue {
    /// A text.
    Text(String),
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// True or false.
    Bool(bool),
}

impl AttributeValue {
    /// Returns it as the value of a label.
    pub fn text(&self) -> String {
        match self {
            AttributeValue::Text(text) => text.clone(),
            AttributeValue::Int(value) => value.to_string(),
            AttributeValue::Float(value) => value.to_string(),
            AttributeValue::Bool(value) => value.to_string(),
        }
    }
}

/// Attributes of a series, by key.
pub type Attributes = Vec<(String, AttributeValue)>;

/// Encodes attributes: sorted by key, of which the last one of a name counts.
fn encode(attributes: &Attributes) -> Vec<u8> {
    let mut sorted: Vec<_> = attributes.iter().collect();
    sorted.sort_by(|one, other| one.0.cmp(&other.0));
    let mut encoded = Vec::new();
    for (index, (key, value)) in sorted.iter().enumerate() {
        if sorted.get(index + 1).is_some_and(|next| next.0 == *key) {
            continue;
        }
        let kind = match value {
            AttributeValue::Text(_) => b's',
            AttributeValue::Int(_) => b'i',
            AttributeValue::Float(_) => b'd',
            AttributeValue::Bool(_) => b'b',
        };
        encoded.extend(key.bytes().filter(|byte| *byte != 0).chain([0, kind]));
        encoded.extend(value.text().bytes().filter(|byte| *byte != 0).chain([0]));
    }
    encoded
}

fn decode(encoded: &[u8]) -> Option<Attributes> {
    let text = std::str::from_utf8(encoded).ok()?;
    let texts: Vec<_> = text.split_terminator('\0').collect();
    let pairs = texts.chunks(2).map(|pair| {
        let [key, value] = pair else { return None };
        let (kind, value) = value.split_at_checked(1)?;
        let value = match kind {
            "s" => AttributeValue::Text(value.to_owned()),
            "i" => AttributeValue::Int(value.parse().ok()?),
            "d" => AttributeValue::Float(value.parse().ok()?),
            "b" => AttributeValue::Bool(value.parse().ok()?),
            _ => return None,
        };
        Some(((*key).to_owned(), value))
    });
    pairs.collect()
}

/// A series of a file: the place of its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeriesPlace(u32);

/// An instrument of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstrumentIndex(u32);

impl InstrumentIndex {
    /// Returns its number in the file.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// The file, as the process has it that counts.
#[derive(Debug)]
pub struct InstrumentFile {
    memory: RescuedMemory,
    /// The file, which is locked.
    file: File,
    shape: Mutex<Shape>,
}

/// Records of the file.
#[derive(Debug, Default)]
struct Shape {
    instruments: Vec<OfInstrument>,
    known: HashMap<Identity, InstrumentIndex>,
    /// Bytes of the file for which the disk has room.
    room: usize,
}

#[derive(Debug)]
struct OfInstrument {
    value_words: usize,
    series: HashMap<Box<[u8]>, SeriesPlace>,
    /// The series of what finds no room.
    overflow: Option<SeriesPlace>,
    /// Reason why the last one found none.
    refused: Option<Refusal>,
}

/// Reason why attributes have no series of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The instrument has as many series as one may have.
    Many,
    /// The texts of the attributes are too long.
    Long,
    /// The file is full.
    FileFull,
    /// The disk has no room.
    Disk(Errno),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Many => write!(f, "an instrument has at most {SERIES_LIMIT} series"),
            Refusal::Long => write!(f, "they have more than {TEXT_LIMIT} bytes"),
            Refusal::FileFull => write!(f, "the file of the process's series has at most {} MiB", WORDS >> 17),
            Refusal::Disk(error) => write!(f, "the disk of the series has no room: {}", io::Error::from(*error)),
        }
    }
}

impl InstrumentFile {
    /// Opens the first file of a folder that no living process has locked, and goes on with the sums in it; the folder is made if it is not there.
    pub fn open_free(folder: &Path) -> io::Result<InstrumentFile> {
        let (file, lock) = lock_free_file(folder)?;
        let bytes = (WORDS * size_of::<u64>()) as u64;
        let mut magic = [0; 8];
        let is_known = file.metadata()?.len() == bytes && {
            file.read_exact_at(&mut magic, 0)?;
            u64::from_le_bytes(magic) == MAGIC
        };
        if !is_known {
            file.set_len(0)?;
            file.set_len(bytes)?;
            file.write_all_at(&MAGIC.to_le_bytes(), 0)?;
        }
        let words = read_words(&file)?;
        let memory = RescuedMemory::of_file(file, WORDS)?;
        let own = InstrumentFile { memory, file: lock, shape: Mutex::default() };
        own.take_over(&words);
        Ok(own)
    }

    /// Learns the records of whoever had the file before, and begins anew what ended with that process.
    fn take_over(&self, words: &[u64]) {
        let mut shape = Shape::default();
        let mut definitions: Vec<Definition> = Vec::new();
        let mut used = HEADER;
        for record in records(words) {
            match record.kind {
                DEFINITION => {
                    let Some(definition) = definition_of(&record) else { break };
                    let index = InstrumentIndex(definitions.len() as u32);
                    shape.known.insert(definition.identity(), index);
                    let value_words = definition.value_words();
                    shape.instruments.push(OfInstrument::new(value_words));
                    definitions.push(definition);
                }
                _ => {
                    let Some(definition) = definitions.get(record.instrument) else { break };
                    if record.values.len() != definition.value_words() {
                        break;
                    }
                    let place = SeriesPlace((record.at + record.words - record.values.len()) as u32);
                    self.begin_anew(definition, place);
                    let own = &mut shape.instruments[record.instrument];
                    if record.text == overflow() {
                        own.overflow = Some(place);
                    }
                    own.series.insert(record.text.into(), place);
                }
            }
            used = record.at + record.words;
        }
        // What follows a record that makes no sense is lost.
        self.header(USED_AT).store((used - HEADER) as u64, Relaxed);
        let pid = std::process::id();
        self.header(OBSERVERS_AT).store(0, Relaxed);
        self.header(ANSWERED_AT).store(self.header(ASKED_AT).load(Relaxed), Relaxed);
        self.header(BIRTH_AT).store(birth(pid).unwrap_or(0), Relaxed);
        self.header(PID_AT).store(pid.into(), Release);
        *lock(&self.shape) = shape;
    }

    fn begin_anew(&self, definition: &Definition, place: SeriesPlace) {
        if definition.kind == InstrumentKind::ObservableCounter {
            let (value, base) = (self.value(place, VALUE_AT), self.value(place, BASE_AT));
            base.store(definition.number.sum(base.load(Relaxed), value.swap(0, Relaxed)), Relaxed);
        } else if !definition.kind.is_monotonic() {
            self.value(place, VALUE_AT).store(0, Relaxed);
            self.value(place, ROUND_AT).store(0, Relaxed);
        }
    }

    fn header(&self, at: usize) -> &AtomicU64 {
        &self.memory.words()[at]
    }

    fn value(&self, SeriesPlace(place): SeriesPlace, at: usize) -> &AtomicU64 {
        &self.memory.words()[place as usize + at]
    }

    /// Returns the instrument of a definition, which is added if it is not there. None if there is no room.
    pub fn define(&self, definition: &Definition) -> Option<InstrumentIndex> {
        let mut shape = lock(&self.shape);
        let identity = definition.identity();
        if let Some(known) = shape.known.get(&identity) {
            return Some(*known);
        }
        let texts = definition.texts();
        let is_in_order = definition.boundaries.is_sorted_by(|one, next| one < next);
        if shape.instruments.len() == INSTRUMENTS_LIMIT
            || definition.boundaries.len() > BOUNDARIES_LIMIT
            || !is_in_order
            || texts.len() > TEXT_LIMIT
        {
            return None;
        }
        let numbers = [definition.kind as u64, definition.number as u64];
        let boundaries = definition.boundaries.iter().map(|boundary| boundary.to_bits());
        let values: Vec<_> = numbers.into_iter().chain(boundaries).collect();
        let index = InstrumentIndex(shape.instruments.len() as u32);
        let room = &mut shape.room;
        self.append(room, DEFINITION, index, &texts, &values).ok()?;
        let mut own = OfInstrument::new(definition.value_words());
        // There is always room for what finds none.
        let overflow = overflow();
        let place = self.append(room, SERIES, index, &overflow, &vec![0; own.value_words]).ok()?;
        own.series.insert(overflow.into(), place);
        own.overflow = Some(place);
        shape.instruments.push(own);
        shape.known.insert(identity, index);
        Some(index)
    }

    /// Returns the series of an instrument with these attributes, which is made if there is none; that of the overflow where there is
    /// no room.
    pub fn series(&self, instrument: InstrumentIndex, attributes: &Attributes) -> Option<SeriesPlace> {
        let mut shape = lock(&self.shape);
        let Shape { instruments, room, .. } = &mut *shape;
        let own = &mut instruments[instrument.0 as usize];
        let key = encode(attributes);
        if let Some(known) = own.series.get(key.as_slice()) {
            return Some(*known);
        }
        let added = match () {
            () if own.series.len() >= SERIES_LIMIT => Err(Refusal::Many),
            () if key.len() > TEXT_LIMIT => Err(Refusal::Long),
            () => self.append(room, SERIES, instrument, &key, &vec![0; own.value_words]),
        };
        match added {
            Ok(place) => {
                own.series.insert(key.into(), place);
                Some(place)
            }
            Err(refusal) => {
                own.refused = Some(refusal);
                own.overflow
            }
        }
    }

    /// Returns the series of an instrument's values whose attributes have none of their own, and the reason why the last one has none.
    pub fn overflow(&self, instrument: InstrumentIndex) -> (Option<SeriesPlace>, Option<Refusal>) {
        let own = &lock(&self.shape).instruments[instrument.0 as usize];
        (own.overflow, own.refused)
    }

    /// Appends a record, and returns the place of its values.
    fn append(
        &self,
        room: &mut usize,
        kind: u64,
        instrument: InstrumentIndex,
        text: &[u8],
        values: &[u64],
    ) -> Result<SeriesPlace, Refusal> {
        let used = self.header(USED_AT).load(Relaxed) as usize;
        let at = HEADER + used;
        let text_words = text.len().div_ceil(8);
        let words = RECORD_HEAD + text_words + values.len();
        let end = at.checked_add(words).filter(|end| *end <= WORDS).ok_or(Refusal::FileFull)?;
        take_room(&self.file, room, end * WORD, WORDS * WORD).map_err(Refusal::Disk)?;
        let memory = &self.memory.words()[at..end];
        memory[0]
            .store(kind | (words as u64) << 8 | (text.len() as u64) << 24 | u64::from(instrument.0) << 40, Relaxed);
        for (word, bytes) in memory[RECORD_HEAD..].iter().zip(text.chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(padded), Relaxed);
        }
        for (word, value) in memory[RECORD_HEAD + text_words..].iter().zip(values) {
            word.store(*value, Relaxed);
        }
        self.header(USED_AT).store((used + words) as u64, Release);
        Ok(SeriesPlace((at + RECORD_HEAD + text_words) as u32))
    }

    /// Takes a value, by its bits, at a series of an instrument with this definition. Returns the bucket whose exemplar it may be; none for a value
    /// that the instrument does not take: a negative one of a counter, one that is no number.
    ///
    /// `round` is that of the observers that run, and not 0.
    #[inline]
    pub fn measure(&self, definition: &Definition, place: SeriesPlace, bits: u64, round: u64) -> Option<usize> {
        let number = definition.number;
        if number == NumberType::F64 && !f64::from_bits(bits).is_finite() {
            return None;
        }
        match definition.kind {
            InstrumentKind::Counter | InstrumentKind::UpDownCounter => {
                if definition.kind == InstrumentKind::Counter && number.is_below_zero(bits) {
                    return None;
                }
                self.add(number, self.value(place, VALUE_AT), bits);
            }
            InstrumentKind::Histogram => {
                if number.is_below_zero(bits) {
                    return None;
                }
                let value = number.value(bits);
                let bucket = definition.bucket_of(value);
                self.value(place, BUCKETS_AT + bucket).fetch_add(1, Relaxed);
                self.add(NumberType::F64, self.value(place, VALUE_AT), value.to_bits());
                return Some(bucket);
            }
            InstrumentKind::ObservableCounter => {
                let value = self.value(place, VALUE_AT);
                let before = value.swap(bits, Relaxed);
                // The sum began anew.
                if number.value(bits) < number.value(before) {
                    self.add(number, self.value(place, BASE_AT), before);
                }
            }
            _ => self.value(place, VALUE_AT).store(bits, Relaxed),
        }
        let round_at = self.value(place, ROUND_AT);
        if round_at.load(Relaxed) != round {
            round_at.store(round, Relaxed);
        }
        Some(0)
    }

    #[inline]
    fn add(&self, number: NumberType, word: &AtomicU64, bits: u64) {
        if number == NumberType::F64 {
            let _ = word.fetch_update(Relaxed, Relaxed, |before| Some(number.sum(before, bits)));
        } else {
            word.fetch_add(bits, Relaxed);
        }
    }

    fn exemplar_at(&self, definition: &Definition, bucket: usize) -> usize {
        match definition.kind {
            InstrumentKind::Histogram => BUCKETS_AT + definition.boundaries.len() + 1 + bucket * EXEMPLAR_WORDS,
            _ => EXEMPLAR_AT,
        }
    }

    /// Returns whether a bucket has no exemplar, or one that is old at this time.
    #[inline]
    pub fn wants_exemplar(&self, definition: &Definition, place: SeriesPlace, bucket: usize, now: u64) -> bool {
        let time = self.value(place, self.exemplar_at(definition, bucket) + 1).load(Relaxed);
        time.abs_diff(now) >= EXEMPLAR_LIVES_NS
    }

    /// Puts an exemplar in the place of the one that a bucket has. Of two at the same time, readers may find neither.
    pub fn set_exemplar(&self, definition: &Definition, place: SeriesPlace, bucket: usize, exemplar: &Exemplar) {
        let at = self.exemplar_at(definition, bucket);
        for (offset, word) in exemplar_words(exemplar).into_iter().enumerate() {
            self.value(place, at + offset).store(word, Relaxed);
        }
    }

    /// Tells readers that there are so many observers to ask.
    pub fn set_observers(&self, count: usize) {
        self.header(OBSERVERS_AT).store(count as u64, Release);
    }

    /// Waits until readers ask for a round, and returns its number. Readers of a file that this process maps wake it.
    pub fn wait_for_round(&self) -> u64 {
        loop {
            let (asked, answered) = (self.header(ASKED_AT).load(Acquire), self.header(ANSWERED_AT).load(Relaxed));
            if asked != answered {
                return asked;
            }
            let _ = futex::wait(half(self.header(ASKED_AT)), futex::Flags::empty(), asked as u32, None);
        }
    }

    /// Tells readers that all observers have been asked in a round.
    pub fn answer_round(&self, round: u64) {
        self.header(ANSWERED_AT).store(round, Release);
        let _ = futex::wake(half(self.header(ANSWERED_AT)), futex::Flags::empty(), i32::MAX as u32);
    }
}

impl OfInstrument {
    fn new(value_words: usize) -> OfInstrument {
        OfInstrument { value_words, series: HashMap::new(), overflow: None, refused: None }
    }
}

/// Returns the lower half of a word, for a futex.
fn half(word: &AtomicU64) -> &AtomicU32 {
    let halves = std::ptr::from_ref(word).cast::<AtomicU32>();
    let lower = if cfg!(target_endian = "little") { 0 } else { 1 };
    // SAFETY: a word of 64 bits has two halves, both aligned, and is never written without an atomic operation.
    unsafe { &*halves.add(lower) }
}

fn overflow() -> Vec<u8> {
    encode(&vec![(OVERFLOW.to_owned(), AttributeValue::Bool(true))])
}

/// A record of a file.
struct Record<'a> {
    kind: u64,
    instrument: usize,
    /// Position of its first word in the file.
    at: usize,
    words: usize,
    text: Vec<u8>,
    values: &'a [u64],
}

/// Reads the words behind the header that are in use; none of a file that makes no sense.
fn read_words(file: &File) -> io::Result<Vec<u64>> {
    let header = read_header(file)?;
    if header[0] != MAGIC {
        return Ok(Vec::new());
    }
    let used = usize::try_from(header[USED_AT]).unwrap_or(WORDS).min(WORDS - HEADER);
    let mut bytes = vec![0; used * 8];
    file.read_exact_at(&mut bytes, HEADER as u64 * 8)?;
    Ok(bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).collect())
}

fn read_header(file: &File) -> io::Result<[u64; HEADER]> {
    let mut bytes = [0; HEADER * 8];
    if file.metadata()?.len() >= bytes.len() as u64 {
        file.read_exact_at(&mut bytes, 0)?;
    }
    let word = |at: usize| u64::from_le_bytes(bytes[at * 8..][..8].try_into().expect("eight bytes"));
    Ok(std::array::from_fn(word))
}

/// Returns the records of the words behind the header, up to the first that makes no sense.
fn records(words: &[u64]) -> impl Iterator<Item = Record<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let head = *words.get(at)?;
        let (kind, length) = (head & 0xFF, (head >> 8 & 0xFFFF) as usize);
        let (text, instrument) = ((head >> 24 & 0xFFFF) as usize, (head >> 40) as usize);
        let text_words = text.div_ceil(8);
        let record = words.get(at..at + length)?;
        if !matches!(kind, DEFINITION | SERIES) || length < RECORD_HEAD + text_words {
            return None;
        }
        let mut bytes: Vec<u8> =
            record[RECORD_HEAD..][..text_words].iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(text);
        let values = &record[RECORD_HEAD + text_words..];
        let found = Record { kind, instrument, at: HEADER + at, words: length, text: bytes, values };
        at += length;
        Some(found)
    })
}

fn definition_of(record: &Record<'_>) -> Option<Definition> {
    let text = std::str::from_utf8(&record.text).ok()?;
    let texts: Vec<_> = text.split_terminator('\0').map(str::to_owned).collect();
    let [name, unit, description, scope, scope_version] = <[String; 5]>::try_from(texts).ok()?;
    let (&[kind, number], boundaries) = record.values.split_first_chunk::<2>()?;
    let boundaries: Vec<_> = boundaries.iter().map(|bits| f64::from_bits(*bits)).collect();
    let is_in_order = boundaries.len() <= BOUNDARIES_LIMIT && boundaries.is_sorted_by(|one, next| one < next);
    Some(Definition {
        name,
        unit,
        description,
        scope,
        scope_version,
        kind: InstrumentKind::of(u32::try_from(kind).ok()?)?,
        number: NumberType::of(u32::try_from(number).ok()?)?,
        boundaries: Some(boundaries).filter(|_| is_in_order)?,
    })
}

/// An instrument with its series, of all processes.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// The instrument. Of two descriptions the first one is taken.
    pub definition: Definition,
    /// Its series.
    pub series: Vec<MeasuredSeries>,
}

/// A series of an instrument.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredSeries {
    /// Its attributes, by key.
    pub attributes: Attributes,
    /// The process whose value it is; none for the sum of all.
    pub pid: Option<u32>,
    /// Bits of the value; those of a histogram's sum, a floating-point number.
    pub bits: u64,
    /// Number of values in each bucket of a histogram.
    pub buckets: Vec<u64>,
    /// Exemplar of each bucket; one for other kinds.
    pub exemplars: Vec<Option<Exemplar>>,
}

impl MeasuredSeries {
    fn add(&mut self, number: NumberType, other: &MeasuredSeries) {
        self.bits = number.sum(self.bits, other.bits);
        for (own, other) in self.buckets.iter_mut().zip(&other.buckets) {
            *own = own.wrapping_add(*other);
        }
        for (own, other) in self.exemplars.iter_mut().zip(&other.exemplars) {
            let time = |exemplar: &Option<Exemplar>| exemplar.map_or(0, |exemplar| exemplar.unix_nano);
            if time(other) > time(own) {
                *own = *other;
            }
        }
    }
}

fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    match folder.read_dir() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries?.map(|entry| Ok(entry?.path())).collect(),
    }
}

/// Reads all files of a folder, and adds up what is of one instrument with the same attributes. There is nothing where there is no folder.
pub fn read_folder(folder: &Path) -> io::Result<Vec<Measured>> {
    let mut all: Vec<Measured> = Vec::new();
    let mut places: HashMap<Identity, usize> = HashMap::new();
    let mut places_of_series: HashMap<(usize, Option<u32>, Vec<u8>), usize> = HashMap::new();
    for path in files(folder)? {
        for measured in read(&path)? {
            let place = *places.entry(measured.definition.identity()).or_insert_with(|| {
                all.push(Measured { definition: measured.definition.clone(), series: Vec::new() });
                all.len() - 1
            });
            let number = match measured.definition.kind {
                InstrumentKind::Histogram => NumberType::F64,
                _ => measured.definition.number,
            };
            for series in measured.series {
                match places_of_series.entry((place, series.pid, encode(&series.attributes))) {
                    Entry::Occupied(found) => all[place].series[*found.get()].add(number, &series),
                    Entry::Vacant(vacant) => {
                        vacant.insert(all[place].series.len());
                        all[place].series.push(series);
                    }
                }
            }
        }
    }
    Ok(all)
}

/// Reads a file, which may be written to meanwhile.
fn read(path: &Path) -> io::Result<Vec<Measured>> {
    let file = File::open(path)?;
    let header = read_header(&file)?;
    let words = read_words(&file)?;
    let pid = u32::try_from(header[PID_AT]).unwrap_or(0);
    let living = (birth(pid) == Some(header[BIRTH_AT])).then_some(pid);
    let mut all: Vec<Measured> = Vec::new();
    for record in records(&words) {
        if record.kind == DEFINITION {
            let Some(definition) = definition_of(&record) else { break };
            all.push(Measured { definition, series: Vec::new() });
            continue;
        }
        let Some(Measured { definition, series }) = all.get_mut(record.instrument) else { break };
        if record.values.len() != definition.value_words() {
            break;
        }
        series.extend(series_of(definition, &record, living, header[ANSWERED_AT]));
    }
    Ok(all)
}

/// Returns the series of a record, if it has a value.
fn series_of(
    definition: &Definition,
    record: &Record<'_>,
    living: Option<u32>,
    answered: u64,
) -> Option<MeasuredSeries> {
    let (kind, values) = (definition.kind, record.values);
    let attributes = decode(&record.text)?;
    let exemplar = |words: &[u64]| decode_exemplar(words);
    if kind == InstrumentKind::Histogram {
        let (buckets, exemplars) = values[BUCKETS_AT..].split_at(definition.boundaries.len() + 1);
        if buckets.iter().all(|count| *count == 0) {
            return None;
        }
        return Some(MeasuredSeries {
            attributes,
            pid: None,
            bits: values[VALUE_AT],
            buckets: buckets.to_vec(),
            exemplars: exemplars.chunks_exact(EXEMPLAR_WORDS).map(exemplar).collect(),
        });
    }
    let has_value = match kind {
        _ if values[ROUND_AT] == 0 => false,
        kind if kind.is_monotonic() => true,
        kind if kind.is_observable() => living.is_some() && values[ROUND_AT] >= answered,
        _ => living.is_some(),
    };
    has_value.then(|| MeasuredSeries {
        attributes,
        pid: living.filter(|_| kind.is_gauge()),
        bits: match kind {
            InstrumentKind::ObservableCounter => definition.number.sum(values[BASE_AT], values[VALUE_AT]),
            _ => values[VALUE_AT],
        },
        buckets: Vec::new(),
        exemplars: vec![exemplar(&values[EXEMPLAR_AT..][..EXEMPLAR_WORDS])],
    })
}

/// Asks the observers of all living processes of a folder for their values, and waits for them at most this long. Values that have not come by
/// then are those of the round before.
pub fn ask_observers(folder: &Path, patience: Duration) -> io::Result<()> {
    let deadline = Instant::now() + patience;
    let mut asked = Vec::new();
    for path in files(folder)? {
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        let header = read_header(&file)?;
        let pid = u32::try_from(header[PID_AT]).unwrap_or(0);
        if header[0] != MAGIC || header[OBSERVERS_AT] == 0 || birth(pid) != Some(header[BIRTH_AT]) {
            continue;
        }
        let memory = RescuedMemory::of_file(file, HEADER)?;
        let round = memory.words()[ASKED_AT].fetch_add(1, AcqRel) + 1;
        let _ = futex::wake(half(&memory.words()[ASKED_AT]), futex::Flags::empty(), 1);
        asked.push((memory, round));
    }
    for (memory, round) in asked {
        let word = &memory.words()[ANSWERED_AT];
        loop {
            let answered = word.load(Acquire);
            let left = deadline.saturating_duration_since(Instant::now());
            if answered >= round || left.is_zero() {
                break;
            }
            let left = futex::Timespec::try_from(left).unwrap_or(futex::Timespec { tv_sec: 0, tv_nsec: 1_000_000 });
            let _ = futex::wait(half(word), futex::Flags::empty(), answered as u32, Some(&left));
        }
    }
    Ok(())
}

/// Returns the time for exemplars, in nanoseconds since the Unix epoch, by the kernel's coarse clock: a few milliseconds old, and cheap.
#[inline]
pub fn exemplar_time() -> u64 {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    now.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec.cast_unsigned())
}

#[cfg(test)]
#[path = "instruments_tests.rs"]
mod tests;
