//! Translation that needs no OpenTelemetry: texts, times, and the context of a span in plain words.
#![cfg_attr(not(any(feature = "otel-0-31", feature = "otel-0-32", feature = "otel-0-33")), allow(dead_code))]

use std::borrow::Cow;
use std::ffi::c_void;
use std::time::{SystemTime, UNIX_EPOCH};

use tracer_abi::{SpanContext, Str, TextBuffer, Tracing};

use crate::host::read_sized;

/// A span's context, whichever version of OpenTelemetry it came from or goes to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PlainContext {
    pub(crate) trace_id: [u8; 16],
    pub(crate) span_id: [u8; 8],
    pub(crate) trace_flags: u8,
    pub(crate) is_remote: bool,
    /// The header; empty for none.
    pub(crate) trace_state: String,
}

impl PlainContext {
    pub(crate) fn is_valid(&self) -> bool {
        self.trace_id != [0; 16] && self.span_id != [0; 8]
    }

    /// The same for the host. Borrows the tracestate.
    pub(crate) fn raw(&self) -> SpanContext {
        SpanContext {
            size: size_of::<SpanContext>(),
            trace_id: self.trace_id,
            span_id: self.span_id,
            trace_flags: self.trace_flags,
            is_remote: self.is_remote.into(),
            trace_state: Str::new(&self.trace_state),
        }
    }
}

/// # Safety
///
/// `context` is null or points to a context that is valid for the duration of the call.
pub(crate) unsafe fn read_context(context: *const SpanContext) -> PlainContext {
    if context.is_null() {
        return PlainContext::default();
    }
    // SAFETY: promised by the caller.
    let raw = unsafe { read_sized(context) };
    PlainContext {
        trace_id: raw.trace_id,
        span_id: raw.span_id,
        trace_flags: raw.trace_flags,
        is_remote: raw.is_remote != 0,
        // SAFETY: promised by the caller.
        trace_state: unsafe { read_text(raw.trace_state) }.into_owned(),
    }
}

/// Decodes a text of the host's, lossily.
///
/// # Safety
///
/// The text stays valid for `'a`.
pub(crate) unsafe fn read_text<'a>(text: Str) -> Cow<'a, str> {
    // SAFETY: promised by the caller.
    String::from_utf8_lossy(unsafe { text.as_bytes() })
}

/// Nanoseconds since the epoch. 0 means now, so a time before the epoch becomes 1.
pub(crate) fn unix_nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    u64::try_from(since).unwrap_or(u64::MAX).max(1)
}

/// Reads the tracestate of a span.
///
/// # Safety
///
/// `span` is a handle of `table`.
pub(crate) unsafe fn read_trace_state(table: &Tracing, span: *mut c_void) -> String {
    let Some(read) = table.span_trace_state else { return String::new() };
    // A tracestate need not be longer than this to be carried everywhere.
    let mut buffer = vec![0; 512];
    loop {
        let mut text = TextBuffer::new(&mut buffer);
        // SAFETY: promised by the caller; the buffer outlives the call.
        unsafe { read(span, &mut text) };
        let (length, filled) = (text.len, text.filled());
        if length <= buffer.len() {
            return String::from_utf8_lossy(&buffer[..filled]).into_owned();
        }
        buffer.resize(length, 0);
    }
}
