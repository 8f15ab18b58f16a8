//! The types of the contract become OpenTelemetry's.
//!
//! Everything that comes in is borrowed for one call, so everything is copied here; keys and names go through
//! [`Interner`]. What cannot be understood is left out: a value with an unknown tag, a
//! tracestate member that OpenTelemetry refuses, a baggage member without a name.

use std::borrow::Cow;
use std::mem::MaybeUninit;
use std::slice;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry::baggage::KeyValueMetadata;
use opentelemetry::trace::{Event, Link, SpanContext, SpanKind, Status, TraceFlags, TraceState};
use opentelemetry::{Array, InstrumentationScope, Key, KeyValue, SpanId, StringValue, TraceId, Value};
use tracer_abi as abi;

use super::intern::{Interner, with_interner};
use crate::trace_state::{escape, unescape};

/// Reads a struct that begins with its size. A pointer to a struct of our size or a larger one is used as it is.
///
/// # Safety
///
/// `pointer` is to a struct of the contract that begins with its size, is valid as long as the result is used, and
/// all of whose fields may be zero. `T` is that struct.
pub(super) unsafe fn sized<T>(pointer: *const T, space: &mut MaybeUninit<T>) -> &T {
    // SAFETY: the caller's promise: the first field is a `usize` that holds the size.
    let size = unsafe { pointer.cast::<usize>().read() };
    if size >= size_of::<T>() {
        // SAFETY: the caller's promise, and the struct is at least as large as ours.
        return unsafe { &*pointer };
    }
    *space = MaybeUninit::zeroed();
    // SAFETY: `size` bytes are there to be read, and fewer than `space` has. Zero is valid for the rest.
    unsafe {
        std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), space.as_mut_ptr().cast::<u8>(), size);
        space.assume_init_ref()
    }
}

/// # Safety
///
/// `pointer` and `count` describe an array that is valid for `'a`, or one of them is 0.
pub(super) unsafe fn array<'a, T>(pointer: *const T, count: usize) -> &'a [T] {
    if pointer.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: promised by the caller.
    unsafe { slice::from_raw_parts(pointer, count) }
}

/// # Safety
///
/// As for [`abi::Str::as_bytes`].
pub(super) unsafe fn text<'a>(text: abi::Str) -> Cow<'a, str> {
    // SAFETY: promised by the caller.
    String::from_utf8_lossy(unsafe { text.as_bytes() })
}

/// # Safety
///
/// As for [`abi::Str::as_bytes`].
pub(super) unsafe fn name(name: abi::Str) -> Cow<'static, str> {
    // SAFETY: promised by the caller.
    let bytes = unsafe { name.as_bytes() };
    with_interner(|interner| interner.intern(bytes))
}

/// `None` for an empty string.
unsafe fn optional(string: abi::Str) -> Option<String> {
    // SAFETY: promised by the caller.
    (string.len > 0).then(|| unsafe { text(string) }.into_owned())
}

/// 0 means now.
pub(super) fn time(unix_nano: u64) -> SystemTime {
    match unix_nano {
        0 => opentelemetry::time::now(),
        nanos => UNIX_EPOCH + Duration::from_nanos(nanos),
    }
}

/// 0 means now.
#[inline]
pub(super) fn unix_nano(unix_nano: u64) -> u64 {
    match unix_nano {
        0 => opentelemetry::time::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64),
        nanos => nanos,
    }
}

pub(super) fn kind(kind: u32) -> SpanKind {
    match kind {
        abi::SPAN_KIND_SERVER => SpanKind::Server,
        abi::SPAN_KIND_CLIENT => SpanKind::Client,
        abi::SPAN_KIND_PRODUCER => SpanKind::Producer,
        abi::SPAN_KIND_CONSUMER => SpanKind::Consumer,
        _ => SpanKind::Internal,
    }
}

/// # Safety
///
/// As for [`abi::Str::as_bytes`].
pub(super) unsafe fn status(code: u32, description: abi::Str) -> Option<Status> {
    match code {
        abi::SPAN_STATUS_UNSET => Some(Status::Unset),
        abi::SPAN_STATUS_OK => Some(Status::Ok),
        // SAFETY: promised by the caller.
        abi::SPAN_STATUS_ERROR => Some(Status::error(unsafe { text(description) }.into_owned())),
        _ => None,
    }
}

/// Copies attributes, with room for `spare` more.
///
/// # Safety
///
/// `pointer` and `count` describe an array of attributes that, with all they point to, is valid during the call, or one of
/// them is 0.
pub(super) unsafe fn attributes(pointer: *const abi::KeyValue, count: usize, spare: usize) -> Vec<KeyValue> {
    // SAFETY: promised by the caller.
    let pairs = unsafe { array(pointer, count) };
    let mut attributes = Vec::with_capacity(pairs.len() + spare);
    // SAFETY: promised by the caller.
    unsafe { each_attribute(pairs, |attribute| attributes.push(attribute)) };
    attributes
}

/// Copies attributes one after another.
///
/// # Safety
///
/// What `pairs` point to is valid during the call.
pub(super) unsafe fn each_attribute(pairs: &[abi::KeyValue], mut take: impl FnMut(KeyValue)) {
    with_interner(|interner| {
        for pair in pairs {
            // SAFETY: promised by the caller.
            if let Some(attribute) = unsafe { attribute(interner, pair) } {
                take(attribute);
            }
        }
    });
}

/// # Safety
///
/// What `pair` points to is valid during the call.
#[inline]
unsafe fn attribute(interner: &Interner, pair: &abi::KeyValue) -> Option<KeyValue> {
    // SAFETY: promised by the caller.
    let value = unsafe { value(interner, &pair.value) }?;
    // SAFETY: promised by the caller.
    let key = match interner.intern(unsafe { pair.key.as_bytes() }) {
        Cow::Borrowed(key) => Key::from_static_str(key),
        Cow::Owned(key) => Key::from(key),
    };
    Some(KeyValue::new(key, value))
}

/// # Safety
///
/// What `value` points to is valid during the call, and the member that its tag names is the one that was written.
#[inline]
unsafe fn value(interner: &Interner, value: &abi::Value) -> Option<Value> {
    // SAFETY: the caller promises it for the member that the tag names; every arm below reads that member only.
    unsafe {
        Some(match value.tag {
            abi::VALUE_BOOL => Value::Bool(value.as_.bool_ != 0),
            abi::VALUE_I64 => Value::I64(value.as_.i64_),
            abi::VALUE_F64 => Value::F64(value.as_.f64_),
            abi::VALUE_STR => Value::String(string(interner, value.as_.str_)),
            tag => return array_value(interner, tag, value.as_.array).map(Value::Array),
        })
    }
}

/// Returns the values of an array; `None` when there is none of this tag.
///
/// # Safety
///
/// As for [`value`].
pub(super) unsafe fn array_of(tag: u32, value: abi::ValueUnion) -> Option<Array> {
    // SAFETY: promised by the caller: every tag of an array names this member, and it is not read for another.
    with_interner(|interner| unsafe { array_value(interner, tag, value.array) })
}

/// Returns the rarer half of [`value`].
///
/// # Safety
///
/// As for [`value`].
#[cold]
unsafe fn array_value(interner: &Interner, tag: u32, elements: abi::Array) -> Option<Array> {
    // SAFETY: promised by the caller.
    unsafe {
        Some(match tag {
            abi::VALUE_BOOL_ARRAY => {
                let bytes = array(elements.ptr.cast::<u8>(), elements.count);
                Array::Bool(bytes.iter().map(|&byte| byte != 0).collect())
            }
            abi::VALUE_I64_ARRAY => Array::I64(array(elements.ptr.cast::<i64>(), elements.count).to_vec()),
            abi::VALUE_F64_ARRAY => Array::F64(array(elements.ptr.cast::<f64>(), elements.count).to_vec()),
            abi::VALUE_STR_ARRAY => {
                let texts = array(elements.ptr.cast::<abi::Str>(), elements.count);
                Array::String(texts.iter().map(|&text| string(interner, text)).collect())
            }
            _ => return None,
        })
    }
}

/// Values up to this length are looked up as names are. Many say the same again and again, such as the name of a function; longer
/// ones are rarely the same twice.
const REPEATING_LEN: usize = 48;

unsafe fn string(interner: &Interner, string: abi::Str) -> StringValue {
    if string.len > REPEATING_LEN {
        // SAFETY: promised by the caller.
        return StringValue::from(unsafe { text(string) }.into_owned());
    }
    // SAFETY: promised by the caller.
    match interner.intern(unsafe { string.as_bytes() }) {
        Cow::Borrowed(text) => StringValue::from(text),
        Cow::Owned(text) => StringValue::from(text),
    }
}

/// # Safety
///
/// `pointer` is to an event that, with all it points to, is valid during the call.
pub(super) unsafe fn event(pointer: *const abi::Event) -> Event {
    let mut space = MaybeUninit::uninit();
    // SAFETY: promised by the caller.
    unsafe {
        let event = sized(pointer, &mut space);
        Event::new(
            name(event.name),
            time(event.time_unix_nano),
            attributes(event.attributes, event.attribute_count, 0),
            0,
        )
    }
}

/// # Safety
///
/// `pointer` is to a link that, with all it points to, is valid during the call.
pub(super) unsafe fn link(pointer: *const abi::Link) -> Link {
    let mut space = MaybeUninit::uninit();
    // SAFETY: promised by the caller.
    unsafe {
        let link = sized(pointer, &mut space);
        Link::new(span_context(&link.context), attributes(link.attributes, link.attribute_count, 0), 0)
    }
}

/// # Safety
///
/// What `context` points to is valid during the call.
pub(super) unsafe fn span_context(context: &abi::SpanContext) -> SpanContext {
    SpanContext::new(
        TraceId::from_bytes(context.trace_id),
        SpanId::from_bytes(context.span_id),
        TraceFlags::new(context.trace_flags),
        context.is_remote != 0,
        // SAFETY: promised by the caller.
        unsafe { trace_state(context.trace_state) },
    )
}

unsafe fn trace_state(header: abi::Str) -> TraceState {
    if header.len == 0 {
        return TraceState::NONE;
    }
    // SAFETY: promised by the caller.
    parse_trace_state(&unsafe { text(header) })
}

/// Returns a tracestate in OpenTelemetry's type, also with keys that only the second level of the recommendation allows.
pub(super) fn parse_trace_state(header: &str) -> TraceState {
    if header.is_empty() {
        return TraceState::NONE;
    }
    let is_taken = |key: &str, value: &str| TraceState::from_key_value([(key, value)]).is_ok();
    TraceState::from_key_value(escape(header, is_taken)).unwrap_or(TraceState::NONE)
}

/// Returns the `tracestate` that came, of what [`TraceState::header`](opentelemetry::trace::TraceState::header) returns in a hook. OpenTelemetry's
/// type holds no keys that only level 2 of W3C Trace Context allows, so such members are in it under other keys; an exporter that does
/// not call this sends them so.
pub fn trace_state_as_sent(header: String) -> String {
    unescape(header)
}

/// Returns the members of a W3C baggage header.
pub(super) fn baggage(header: &str) -> Vec<KeyValueMetadata> {
    let members = crate::baggage::members(header);
    members.map(|(key, value, properties)| KeyValueMetadata::new(key.to_owned(), value, properties)).collect()
}

/// # Safety
///
/// `pointer` is to a scope that, with all it points to, is valid during the call.
pub(super) unsafe fn scope(pointer: *const abi::Scope) -> InstrumentationScope {
    let mut space = MaybeUninit::uninit();
    // SAFETY: promised by the caller.
    unsafe {
        let scope = sized(pointer, &mut space);
        let mut builder = InstrumentationScope::builder(text(scope.name).into_owned());
        if let Some(version) = optional(scope.version) {
            builder = builder.with_version(version);
        }
        if let Some(schema_url) = optional(scope.schema_url) {
            builder = builder.with_schema_url(schema_url);
        }
        if scope.attribute_count > 0 {
            builder = builder.with_attributes(attributes(scope.attributes, scope.attribute_count, 0));
        }
        builder.build()
    }
}

/// Returns a text that lives as long as the process.
pub(super) fn leaked_text(text: &str) -> abi::Str {
    abi::Str::new(Box::leak(text.to_owned().into_boxed_str()))
}

/// Returns an attribute that lives as long as the process, or `None` when the contract has no form for its value.
pub(super) fn leaked_attribute(key: &str, value: &Value) -> Option<abi::KeyValue> {
    fn list<T: 'static>(elements: Vec<T>) -> abi::Array {
        let elements: &'static [T] = Vec::leak(elements);
        abi::Array { ptr: elements.as_ptr().cast(), count: elements.len() }
    }
    let (tag, as_) = match value {
        Value::Bool(value) => (abi::VALUE_BOOL, abi::ValueUnion { bool_: u8::from(*value) }),
        Value::I64(value) => (abi::VALUE_I64, abi::ValueUnion { i64_: *value }),
        Value::F64(value) => (abi::VALUE_F64, abi::ValueUnion { f64_: *value }),
        Value::String(value) => (abi::VALUE_STR, abi::ValueUnion { str_: leaked_text(value.as_str()) }),
        Value::Array(Array::Bool(values)) => {
            let array = list(values.iter().map(|&value| u8::from(value)).collect());
            (abi::VALUE_BOOL_ARRAY, abi::ValueUnion { array })
        }
        Value::Array(Array::I64(values)) => (abi::VALUE_I64_ARRAY, abi::ValueUnion { array: list(values.clone()) }),
        Value::Array(Array::F64(values)) => (abi::VALUE_F64_ARRAY, abi::ValueUnion { array: list(values.clone()) }),
        Value::Array(Array::String(values)) => {
            let array = list(values.iter().map(|value| leaked_text(value.as_str())).collect());
            (abi::VALUE_STR_ARRAY, abi::ValueUnion { array })
        }
        _ => return None,
    };
    Some(abi::KeyValue { key: leaked_text(key), value: abi::Value { tag, as_ } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_struct_of_an_older_author_is_filled_up_with_zeros() {
        let whole = abi::Event {
            size: size_of::<usize>() + size_of::<abi::Str>(),
            name: abi::Str::new("short"),
            time_unix_nano: 7,
            attributes: std::ptr::null(),
            attribute_count: 9,
        };
        let mut space = MaybeUninit::uninit();
        // SAFETY: `whole` outlives the use, and an event of zeros is valid.
        let read = unsafe { sized(&raw const whole, &mut space) };
        // SAFETY: the name is a literal.
        assert_eq!(unsafe { text(read.name) }, "short");
        assert_eq!((read.time_unix_nano, read.attribute_count), (0, 0));
    }
}
