//! Attributes that samplers and span processors put on a span while it starts, told to the host, which completes the spans of a process that died.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry::trace::Status;
use opentelemetry::{Array, KeyValue, Value};
use opentelemetry_sdk::trace::Span;
use tracer_abi as abi;

use super::convert;

/// Tells the host what is on a span that it was not asked to start with.
///
/// The SDK does not say who has set what: the difference is what stands behind the attributes, events and links of the request.
///
/// # Safety
///
/// The pointers in `start` are valid during the call.
pub(super) unsafe fn notify(span: &Span, start: &abi::SpanStart) {
    if start.additions.is_null() {
        return;
    }
    let mut space = MaybeUninit::uninit();
    // SAFETY: promised by the caller.
    let host: &abi::SpanAdditions = unsafe { convert::sized(start.additions, &mut space) };
    let Some(now) = span.exported_data() else { return };
    // SAFETY: promised by the caller.
    let name = unsafe { convert::text(start.name) };
    if let (Some(update), true) = (host.host_update_name, now.name != name) {
        // SAFETY: the host's function with the host's data; the text outlives the call.
        unsafe { update(host.data, abi::Str::new(&now.name)) };
    }
    // SAFETY: as above. A value of an unknown kind was left out.
    let asked = unsafe { convert::attributes(start.attributes, start.attribute_count, 0) }.len();
    let added = now.attributes.get(asked..).unwrap_or_default();
    if let (Some(set), false) = (host.host_set_attributes, added.is_empty()) {
        // SAFETY: as above.
        lend(added, |pairs| unsafe { set(host.data, pairs.as_ptr(), pairs.len()) });
    }
    for event in now.events.events.iter().skip(start.event_count) {
        lend(&event.attributes, |pairs| {
            let told = abi::Event {
                size: size_of::<abi::Event>(),
                name: abi::Str::new(&event.name),
                time_unix_nano: unix_nanos(event.timestamp),
                attributes: pairs.as_ptr(),
                attribute_count: pairs.len(),
            };
            if let Some(add) = host.host_add_event {
                // SAFETY: as above.
                unsafe { add(host.data, &told) };
            }
        });
    }
    for link in now.links.links.iter().skip(start.link_count) {
        let state = link.span_context.trace_state().header();
        lend(&link.attributes, |pairs| {
            let told = abi::Link {
                size: size_of::<abi::Link>(),
                context: abi::SpanContext {
                    size: size_of::<abi::SpanContext>(),
                    trace_id: link.span_context.trace_id().to_bytes(),
                    span_id: link.span_context.span_id().to_bytes(),
                    trace_flags: link.span_context.trace_flags().to_u8(),
                    is_remote: link.span_context.is_remote().into(),
                    trace_state: abi::Str::new(&state),
                },
                attributes: pairs.as_ptr(),
                attribute_count: pairs.len(),
            };
            if let Some(add) = host.host_add_link {
                // SAFETY: as above.
                unsafe { add(host.data, &told) };
            }
        });
    }
    let status = match &now.status {
        Status::Unset => None,
        Status::Ok => Some((abi::SPAN_STATUS_OK, "")),
        Status::Error { description } => Some((abi::SPAN_STATUS_ERROR, &**description)),
    };
    if let (Some(set), Some((code, description))) = (host.host_set_status, status) {
        // SAFETY: as above.
        unsafe { set(host.data, code, abi::Str::new(description)) };
    }
}

fn unix_nanos(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// Lends attributes in the form of the contract. Those whose values it has no form for are left out.
fn lend(attributes: &[KeyValue], work: impl FnOnce(&[abi::KeyValue])) {
    // What arrays of texts and of truth values are lent as.
    let texts: Vec<Vec<abi::Str>> = attributes
        .iter()
        .map(|pair| match &pair.value {
            Value::Array(Array::String(texts)) => texts.iter().map(|text| abi::Str::new(text.as_str())).collect(),
            _ => Vec::new(),
        })
        .collect();
    let array = |ptr: *const c_void, count| abi::ValueUnion { array: abi::Array { ptr, count } };
    let pair = |(pair, texts): (&KeyValue, &Vec<abi::Str>)| {
        let (tag, as_) = match &pair.value {
            Value::Bool(value) => (abi::VALUE_BOOL, abi::ValueUnion { bool_: u8::from(*value) }),
            Value::I64(value) => (abi::VALUE_I64, abi::ValueUnion { i64_: *value }),
            Value::F64(value) => (abi::VALUE_F64, abi::ValueUnion { f64_: *value }),
            Value::String(value) => (abi::VALUE_STR, abi::ValueUnion { str_: abi::Str::new(value.as_str()) }),
            // A truth value is a byte, 0 or 1.
            Value::Array(Array::Bool(all)) => (abi::VALUE_BOOL_ARRAY, array(all.as_ptr().cast(), all.len())),
            Value::Array(Array::I64(all)) => (abi::VALUE_I64_ARRAY, array(all.as_ptr().cast(), all.len())),
            Value::Array(Array::F64(all)) => (abi::VALUE_F64_ARRAY, array(all.as_ptr().cast(), all.len())),
            Value::Array(Array::String(_)) => (abi::VALUE_STR_ARRAY, array(texts.as_ptr().cast(), texts.len())),
            _ => return None,
        };
        Some(abi::KeyValue { key: abi::Str::new(pair.key.as_str()), value: abi::Value { tag, as_ } })
    };
    let pairs: Vec<_> = attributes.iter().zip(&texts).filter_map(pair).collect();
    work(&pairs);
}
