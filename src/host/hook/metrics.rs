//! Metrics of this process's modules: instruments that they make, and values, which the host counts in a mapped file of the place.
//!
//! ```text
//!   counter.add ─▶ SDK ─▶ host_measure ─▶ series of a mapped file ─▶ GET /metrics, OTLP
//!                                         (survives the process)
//! ```
//!
//! The file is made for the first instrument, the thread that asks observers for the first observer. A value costs a look-up by the bytes of its
//! attributes, without a lock for the series that were used last, and an atomic addition; nothing runs in between.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};
use std::thread;

use rustc_hash::FxSeededState;
use smallvec::SmallVec;
use tracer_abi as abi;
use tracer_core::lock::lock;
use tracer_ipc::metrics::Exemplar;
use tracer_ipc::metrics::instruments::{
    AttributeValue, Attributes, BOUNDARIES_LIMIT, DEFAULT_BOUNDARIES, Definition, INSTRUMENTS_LIMIT, InstrumentFile,
    InstrumentIndex, InstrumentKind, MODULES_FOLDER, NumberType, SeriesPlace, exemplar_time,
};
use tracer_ipc::spool::record::slice;

use super::log::log;
use super::records::{read_sized, text};

/// Combinations of attributes, as they were given, whose series an instrument remembers. Further ones are looked up in order.
const REMEMBERED: usize = 4096;
/// Bytes of attributes that are looked up without an allocation.
const INLINE_KEY: usize = 256;
/// Series that an instrument has at hand, each in the place that its attributes lead to.
const AT_HAND: usize = 16;
/// Bit of the trace flags: the trace is sampled.
const SAMPLED: u8 = 1;

static METRICS: OnceLock<Metrics> = OnceLock::new();

thread_local! {
    /// Round of the observers that run on this thread; 0 while none do.
    static ROUND: Cell<u64> = const { Cell::new(0) };
}

/// The instruments of this process.
struct Metrics {
    folder: PathBuf,
    file: OnceLock<Option<InstrumentFile>>,
    instruments: Mutex<HashMap<u32, &'static Instrument>>,
    observers: Mutex<Vec<Observer>>,
}

/// An instrument, as modules have a pointer to it.
struct Instrument {
    definition: Definition,
    index: InstrumentIndex,
    file: &'static InstrumentFile,
    /// Series by the bytes of attributes as they were given.
    places: RwLock<HashMap<Box<[u8]>, &'static Remembered, FxSeededState>>,
    /// Series that were looked up last, to be found without a lock; null where there is none.
    at_hand: [AtomicPtr<Remembered>; AT_HAND],
    /// The series without attributes.
    plain: OnceLock<SeriesPlace>,
    /// True if it was said that attributes have no series of their own.
    has_overflown: AtomicBool,
}

/// A series with the bytes of attributes that lead to it. It is never freed.
struct Remembered {
    key: Box<[u8]>,
    place: SeriesPlace,
}

/// A module's function that measures.
#[derive(Clone, Copy)]
struct Observer {
    data: *mut c_void,
    observe: unsafe extern "C" fn(data: *mut c_void),
}

// SAFETY: by contract of the ABI, it is called from a thread of the host's.
unsafe impl Send for Observer {}

/// Keeps what modules of this process measure in a folder of this place, from now on. The first call counts.
pub fn offer_metrics(place: &Path) {
    let _ = METRICS.set(Metrics {
        folder: place.join(MODULES_FOLDER),
        file: OnceLock::new(),
        instruments: Mutex::default(),
        observers: Mutex::default(),
    });
}

/// Fills in what modules are told about metrics.
pub(super) fn notify(host: &mut abi::Host) {
    if METRICS.get().is_some() {
        host.host_instrument = Some(host_instrument);
        host.host_measure = Some(host_measure);
        host.host_exemplar = Some(host_exemplar);
        host.host_observe = Some(host_observe);
    }
}

unsafe extern "C" fn host_instrument(instrument: *const abi::Instrument) -> *mut c_void {
    let find = || {
        // SAFETY: lent for the call, by contract of the ABI.
        let definition = unsafe { definition(&read_sized(instrument)) };
        METRICS.get().and_then(|metrics| metrics.instrument(definition))
    };
    let found = catch_unwind(AssertUnwindSafe(find)).ok().flatten();
    found.map_or(std::ptr::null_mut(), |found| std::ptr::from_ref(found).cast_mut().cast())
}

/// # Safety
///
/// Everything is borrowed for the call.
unsafe fn definition(instrument: &abi::Instrument) -> Option<Definition> {
    let kind = InstrumentKind::of(instrument.kind)?;
    let boundaries = match kind {
        InstrumentKind::Histogram if instrument.boundaries.is_null() => &DEFAULT_BOUNDARIES[..],
        // SAFETY: promised by the caller.
        InstrumentKind::Histogram => unsafe { slice(instrument.boundaries, instrument.boundary_count) },
        _ => &[],
    };
    Some(Definition {
        name: text(instrument.name),
        unit: text(instrument.unit),
        description: text(instrument.description),
        scope: text(instrument.scope),
        scope_version: text(instrument.scope_version),
        kind,
        number: NumberType::of(instrument.number)?,
        boundaries: boundaries.to_vec(),
    })
}

impl Metrics {
    /// Returns the file, which is opened for the first instrument.
    fn file(&'static self) -> Option<&'static InstrumentFile> {
        let open = || match InstrumentFile::open_free(&self.folder) {
            Ok(file) => Some(file),
            Err(error) => {
                let folder = self.folder.display();
                log(&format!("what modules measure is not kept, there is no file for it in `{folder}`: {error}"));
                None
            }
        };
        self.file.get_or_init(open).as_ref()
    }

    fn instrument(&'static self, definition: Option<Definition>) -> Option<&'static Instrument> {
        let Some(definition) = definition.filter(|definition| !definition.name.is_empty()) else {
            log("an instrument is not made: it has no name, or is of a kind that this version does not know");
            return None;
        };
        let file = self.file()?;
        let Some(index) = file.define(&definition) else {
            log(&format!(
                "instrument `{}` is not made: a process has at most {INSTRUMENTS_LIMIT}, a histogram at most {BOUNDARIES_LIMIT} \
                 boundaries, each above the one before, and the texts at most 4 KiB; and their disk has to have room",
                definition.name
            ));
            return None;
        };
        let mut instruments = lock(&self.instruments);
        let made = || {
            // Who chooses values of attributes does not know which of them collide.
            let seed = RandomState::new().hash_one(0) as usize;
            let places = RwLock::new(HashMap::with_hasher(FxSeededState::with_seed(seed)));
            let (at_hand, plain, has_overflown) = Default::default();
            &*Box::leak(Box::new(Instrument { definition, index, file, places, at_hand, plain, has_overflown }))
        };
        Some(*instruments.entry(index.number()).or_insert_with(made))
    }

    fn observe(&'static self, observer: Observer) -> u32 {
        let Some(file) = self.file() else { return abi::STATUS_FAILED };
        let mut observers = lock(&self.observers);
        if observers.is_empty() {
            let asker = thread::Builder::new().name("tracer-observe".into()).spawn(move || self.ask_observers(file));
            if let Err(error) = asker {
                log(&format!("observers of metrics are not asked, there is no thread for it: {error}"));
                return abi::STATUS_FAILED;
            }
        }
        observers.push(observer);
        file.set_observers(observers.len());
        abi::STATUS_OK
    }

    fn ask_observers(&self, file: &InstrumentFile) -> ! {
        loop {
            let round = file.wait_for_round();
            ROUND.set(round);
            let mut asked = 0;
            // One may be added meanwhile, also by another.
            while let Some(observer) = { lock(&self.observers).get(asked).copied() } {
                // SAFETY: the module's function with its own data, one at a time.
                unsafe { (observer.observe)(observer.data) };
                asked += 1;
            }
            ROUND.set(0);
            file.answer_round(round);
        }
    }
}

unsafe extern "C" fn host_measure(instrument: *mut c_void, measurement: *const abi::Measurement) -> u32 {
    let take = || {
        // SAFETY: an instrument of `host_instrument`, which is never freed.
        let Some(instrument) = (unsafe { instrument.cast::<Instrument>().as_ref() }) else { return abi::STATUS_FAILED };
        // SAFETY: lent for the call, by contract of the ABI.
        unsafe { instrument.measure(&read_measurement(measurement)) }
    };
    catch_unwind(AssertUnwindSafe(take)).unwrap_or(abi::STATUS_PANICKED)
}

unsafe extern "C" fn host_exemplar(instrument: *mut c_void, measurement: *const abi::Measurement) {
    let take = || {
        // SAFETY: an instrument of `host_instrument`, which is never freed.
        let Some(instrument) = (unsafe { instrument.cast::<Instrument>().as_ref() }) else { return };
        // SAFETY: lent for the call, by contract of the ABI.
        unsafe { instrument.add_exemplar(&read_measurement(measurement)) }
    };
    let _ = catch_unwind(AssertUnwindSafe(take));
}

unsafe extern "C" fn host_observe(data: *mut c_void, observe: Option<unsafe extern "C" fn(data: *mut c_void)>) -> u32 {
    let add = || match (METRICS.get(), observe) {
        (Some(metrics), Some(observe)) => metrics.observe(Observer { data, observe }),
        _ => abi::STATUS_FAILED,
    };
    catch_unwind(AssertUnwindSafe(add)).unwrap_or(abi::STATUS_PANICKED)
}

/// # Safety
///
/// The measurement is lent for the call.
unsafe fn read_measurement(measurement: *const abi::Measurement) -> abi::Measurement {
    // SAFETY: promised by the caller.
    unsafe { read_sized(measurement) }
}

impl Instrument {
    /// # Safety
    ///
    /// What the measurement points to is readable.
    unsafe fn measure(&self, measurement: &abi::Measurement) -> u32 {
        let is_observable = self.definition.kind.is_observable();
        let round = if is_observable { ROUND.get() } else { 1 };
        if round == 0 {
            return abi::STATUS_FAILED;
        }
        // SAFETY: promised by the caller.
        let Some(place) = (unsafe { self.place(measurement) }) else { return abi::STATUS_FULL };
        // SAFETY: all members of the union are of the same size, and all bits are a value of each.
        let bits = unsafe { measurement.value.u64_ };
        let Some(bucket) = self.file.measure(&self.definition, place, bits, round) else { return abi::STATUS_REFUSED };
        if is_observable || !self.file.wants_exemplar(&self.definition, place, bucket, exemplar_time()) {
            return abi::STATUS_OK;
        }
        if measurement.span_context.is_null() {
            return abi::STATUS_WANTS_SPAN;
        }
        // SAFETY: promised by the caller.
        unsafe { self.set_exemplar(place, bucket, bits, measurement.span_context) };
        abi::STATUS_OK
    }

    /// # Safety
    ///
    /// What the measurement points to is readable.
    unsafe fn add_exemplar(&self, measurement: &abi::Measurement) {
        if measurement.span_context.is_null() {
            return;
        }
        // SAFETY: promised by the caller, for this and what follows.
        if let Some(place) = unsafe { self.place(measurement) } {
            // SAFETY: all members of the union are of the same size, and all bits are a value of each.
            let bits = unsafe { measurement.value.u64_ };
            let bucket = self.definition.bucket_of(self.definition.number.value(bits));
            // SAFETY: as above.
            unsafe { self.set_exemplar(place, bucket, bits, measurement.span_context) };
        }
    }

    /// # Safety
    ///
    /// The context is readable.
    unsafe fn set_exemplar(&self, place: SeriesPlace, bucket: usize, bits: u64, context: *const abi::SpanContext) {
        // SAFETY: promised by the caller.
        let context: abi::SpanContext = unsafe { read_sized(context) };
        if context.trace_flags & SAMPLED != 0 && context.trace_id != [0; 16] {
            let (trace_id, span_id) = (context.trace_id, context.span_id);
            let value = self.definition.number.value(bits);
            let exemplar = Exemplar { value, unix_nano: exemplar_time(), trace_id, span_id };
            self.file.set_exemplar(&self.definition, place, bucket, &exemplar);
        }
    }

    /// Returns the series of a measurement.
    ///
    /// # Safety
    ///
    /// What the measurement points to is readable.
    unsafe fn place(&self, measurement: &abi::Measurement) -> Option<SeriesPlace> {
        // SAFETY: promised by the caller.
        let given = unsafe { slice(measurement.attributes, measurement.attribute_count) };
        if given.is_empty() {
            if let Some(place) = self.plain.get() {
                return Some(*place);
            }
            let place = self.file.series(self.index, &Attributes::new())?;
            return Some(*self.plain.get_or_init(|| place));
        }
        // SAFETY: promised by the caller.
        let at_hand = &self.at_hand[unsafe { mixed(given) } % AT_HAND];
        // SAFETY: null, or what is remembered for good.
        if let Some(remembered) = unsafe { at_hand.load(Acquire).as_ref() }
            // SAFETY: promised by the caller.
            && unsafe { is_key_of(&remembered.key, given) }
        {
            return Some(remembered.place);
        }
        // SAFETY: promised by the caller.
        let key = unsafe { key_of(given) };
        let known = self.places.read().unwrap_or_else(PoisonError::into_inner).get(key.as_slice()).copied();
        if let Some(known) = known {
            at_hand.store(std::ptr::from_ref(known).cast_mut(), Release);
            return Some(known.place);
        }
        // SAFETY: promised by the caller.
        let place = self.file.series(self.index, &unsafe { attributes(given) })?;
        self.say_overflow(place);
        let mut places = self.places.write().unwrap_or_else(PoisonError::into_inner);
        if places.len() < REMEMBERED {
            places
                .entry(key.as_slice().into())
                .or_insert_with_key(|key| Box::leak(Box::new(Remembered { key: key.clone(), place })));
        }
        Some(place)
    }

    /// Says once if values are counted without their attributes.
    fn say_overflow(&self, place: SeriesPlace) {
        if self.has_overflown.load(Relaxed) {
            return;
        }
        if let (Some(overflow), Some(refusal)) = self.file.overflow(self.index)
            && overflow == place
            && !self.has_overflown.swap(true, Relaxed)
        {
            log(&format!(
                "metric `{}`: values with further attributes are added up in one series, with `otel.metric.overflow`, because {refusal} \
                 (this is said once)",
                self.definition.name
            ));
        }
    }
}

/// Returns a number that most attributes which differ have different ones of: of the lengths of texts and their last bytes, and of other values.
///
/// # Safety
///
/// What the attributes point to is readable.
unsafe fn mixed(given: &[abi::KeyValue]) -> usize {
    let mut mixed = given.len() as u64;
    for attribute in given {
        let value = &attribute.value;
        // SAFETY: promised by the caller; the tag says which member of the union is set.
        let own = unsafe {
            match value.tag {
                abi::VALUE_BOOL => u64::from(value.as_.bool_),
                abi::VALUE_I64 => value.as_.i64_.cast_unsigned(),
                abi::VALUE_F64 => value.as_.f64_.to_bits(),
                abi::VALUE_STR => {
                    let bytes = value.as_.str_.as_bytes();
                    bytes.last_chunk().map_or_else(
                        || bytes.iter().fold(bytes.len() as u64, |sum, byte| sum << 8 | u64::from(*byte)),
                        |last| u64::from_le_bytes(*last) ^ bytes.len() as u64,
                    )
                }
                _ => 0,
            }
        };
        // The golden ratio: each bit of a value reaches the upper ones.
        mixed = (mixed.rotate_left(5) ^ own).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    (mixed >> 32) as usize
}

/// Returns whether [`key_of`] of attributes is this, without making it.
///
/// # Safety
///
/// What the attributes point to is readable.
unsafe fn is_key_of(key: &[u8], given: &[abi::KeyValue]) -> bool {
    let mut rest = key;
    let mut take = |bytes: &[u8]| match rest.split_at_checked(bytes.len()) {
        Some((start, left)) if is_same(start, bytes) => {
            rest = left;
            true
        }
        _ => false,
    };
    for attribute in given {
        let value = &attribute.value;
        // SAFETY: promised by the caller; the tag says which member of the union is set.
        let is_same = unsafe {
            take(attribute.key.as_bytes())
                && take(&[0xFF, value.tag as u8])
                && match value.tag {
                    abi::VALUE_BOOL => take(&[value.as_.bool_]),
                    abi::VALUE_I64 => take(&value.as_.i64_.to_le_bytes()),
                    abi::VALUE_F64 => take(&value.as_.f64_.to_le_bytes()),
                    abi::VALUE_STR => take(value.as_.str_.as_bytes()) && take(&[0xFF]),
                    _ => true,
                }
        };
        if !is_same {
            return false;
        }
    }
    rest.is_empty()
}

/// Returns whether two texts of the same length are the same. Most are short, and a call that compares any length takes longer than comparing them.
#[inline]
fn is_same(one: &[u8], other: &[u8]) -> bool {
    /// The first and the last bytes, which are all where there are no more than twice as many.
    #[inline]
    fn ends<const N: usize>(bytes: &[u8]) -> Option<[&[u8; N]; 2]> {
        Some([bytes.first_chunk()?, bytes.last_chunk()?])
    }
    match one.len() {
        0..4 => one.iter().eq(other),
        4..8 => ends::<4>(one) == ends::<4>(other),
        8..=16 => ends::<8>(one) == ends::<8>(other),
        _ => one == other,
    }
}

/// Returns the bytes of attributes as they were given, which differ where the attributes do.
///
/// # Safety
///
/// What the attributes point to is readable.
unsafe fn key_of(attributes: &[abi::KeyValue]) -> SmallVec<[u8; INLINE_KEY]> {
    let mut key = SmallVec::new();
    for attribute in attributes {
        let value = &attribute.value;
        // SAFETY: promised by the caller, for this and what follows; the tag says which member of the union is set.
        unsafe {
            key.extend_from_slice(attribute.key.as_bytes());
            // No text has this byte.
            key.extend_from_slice(&[0xFF, value.tag as u8]);
            match value.tag {
                abi::VALUE_BOOL => key.push(value.as_.bool_),
                abi::VALUE_I64 => key.extend_from_slice(&value.as_.i64_.to_le_bytes()),
                abi::VALUE_F64 => key.extend_from_slice(&value.as_.f64_.to_le_bytes()),
                abi::VALUE_STR => {
                    key.extend_from_slice(value.as_.str_.as_bytes());
                    key.push(0xFF);
                }
                _ => {}
            }
        }
    }
    key
}

/// Returns attributes as series have them. Arrays are left out.
///
/// # Safety
///
/// What the attributes point to is readable.
unsafe fn attributes(given: &[abi::KeyValue]) -> Attributes {
    let attribute = |attribute: &abi::KeyValue| {
        let value = &attribute.value;
        // SAFETY: promised by the caller; the tag says which member of the union is set.
        unsafe {
            let value = match value.tag {
                abi::VALUE_BOOL => AttributeValue::Bool(value.as_.bool_ != 0),
                abi::VALUE_I64 => AttributeValue::Int(value.as_.i64_),
                abi::VALUE_F64 => AttributeValue::Float(value.as_.f64_),
                abi::VALUE_STR => AttributeValue::Text(text(value.as_.str_)),
                _ => return None,
            };
            Some((text(attribute.key), value))
        }
    };
    given.iter().filter_map(attribute).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(key: &'static str, value: abi::Value) -> abi::KeyValue {
        abi::KeyValue { key: abi::Str::new(key), value }
    }

    fn text_of(text: &'static str) -> abi::Value {
        abi::Value { tag: abi::VALUE_STR, as_: abi::ValueUnion { str_: abi::Str::new(text) } }
    }

    #[test]
    fn attributes_are_compared_with_a_key_as_if_they_were_made_one() {
        let int = |value| abi::Value { tag: abi::VALUE_I64, as_: abi::ValueUnion { i64_: value } };
        let float = |value| abi::Value { tag: abi::VALUE_F64, as_: abi::ValueUnion { f64_: value } };
        let flag = |value| abi::Value { tag: abi::VALUE_BOOL, as_: abi::ValueUnion { bool_: value } };
        let all = [
            vec![],
            vec![pair("a", text_of("b"))],
            vec![pair("a", text_of("bc"))],
            vec![pair("ab", text_of("c"))],
            vec![pair("a", text_of(""))],
            vec![pair("a", text_of("abcd"))],
            vec![pair("a", text_of("abcdefg"))],
            vec![pair("a", text_of("abcdeeg"))],
            vec![pair("a", text_of("abcdefgh"))],
            vec![pair("a", text_of("abcdefghijklmnop"))],
            vec![pair("a", text_of("abcdefghiiklmnop"))],
            vec![pair("a", text_of("a text of more than sixteen bytes"))],
            vec![pair("a", int(1))],
            vec![pair("a", float(1.0))],
            vec![pair("a", flag(1))],
            vec![pair("a", flag(0))],
            vec![pair("a", flag(1)), pair("b", text_of("c"))],
            vec![pair("b", text_of("c")), pair("a", flag(1))],
        ];
        for (at, one) in all.iter().enumerate() {
            for (other_at, other) in all.iter().enumerate() {
                // SAFETY: all texts are static.
                let (key, is_it) = unsafe { (key_of(one), is_key_of(&key_of(one), other)) };
                assert_eq!(is_it, at == other_at, "{key:?} and number {other_at}");
            }
            // SAFETY: as above.
            assert_eq!(unsafe { mixed(one) }, unsafe { mixed(&one.clone()) });
        }
    }
}
