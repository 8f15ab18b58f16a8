//! Spans that the SDK makes itself, by the host's table, without any copy of OpenTelemetry.

use std::ffi::c_void;
use std::ptr;
use std::sync::Mutex;

use tracer_abi::{self as abi, Str, Tracing};

use super::words::{PlainContext, read_trace_state};
use super::{Held, Lender, Lent, attach};
use crate::host;
use crate::task::Failure;

/// The instrumentation scope, which is that of the host's own spans.
const SCOPE: &str = "tracer";

/// An INTERNAL span of the SDK's. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct OwnSpan {
    table: &'static Tracing,
    span: *mut c_void,
    context: PlainContext,
}

// SAFETY: the contract allows calls for a span from any thread. They do not overlap: while it is lent the loan's lock sees to that, and before
// and after there is one owner.
unsafe impl Send for OwnSpan {}

/// The beginning of an [`OwnSpan`].
pub(crate) struct OwnSpanStart<'a> {
    pub(crate) name: &'a str,
    pub(crate) parent: &'a PlainContext,
    pub(crate) baggage: &'a str,
    pub(crate) links: &'a [&'a PlainContext],
    pub(crate) attributes: &'a [(&'static str, Attribute<'a>)],
}

/// The value of an attribute.
#[derive(Clone, Copy)]
pub(crate) enum Attribute<'a> {
    Str(&'a str),
    I64(i64),
}

impl OwnSpan {
    /// Starts a span; none in a process that is not traced, and for a parent that is not sampled.
    pub(crate) fn start(start: &OwnSpanStart<'_>) -> Option<OwnSpan> {
        let table = host::tracing()?;
        let (tracer, span_start) = (tracer(table)?, table.span_start?);
        let parent = start.parent.raw();
        let attributes: Vec<_> = start.attributes.iter().map(raw_attribute).collect();
        let links: Vec<_> = start.links.iter().map(|context| raw_link(context)).collect();
        let links: Vec<_> = links.iter().map(ptr::from_ref).collect();
        let request = abi::SpanStart {
            parent: &parent,
            attributes: attributes.as_ptr(),
            attribute_count: attributes.len(),
            links: links.as_ptr(),
            link_count: links.len(),
            baggage: Str::new(start.baggage),
            ..abi::SpanStart::new(Str::new(start.name), abi::SPAN_KIND_INTERNAL)
        };
        let mut started = abi::SpanStarted::EMPTY;
        // SAFETY: a tracer of this table; everything in the request outlives the call.
        let span = unsafe { span_start(tracer, &request, &mut started) };
        if span.is_null() {
            return None;
        }
        let trace_state = match started.has_trace_state {
            0 => start.parent.trace_state.clone(),
            // SAFETY: a span of this table.
            _ => unsafe { read_trace_state(table, span) },
        };
        let (trace_id, span_id, trace_flags) = (started.trace_id, started.span_id, started.trace_flags);
        let context = PlainContext { trace_id, span_id, trace_flags, is_remote: false, trace_state };
        Some(OwnSpan { table, span, context })
    }

    /// Returns the span's context.
    pub(crate) fn context(&self) -> &PlainContext {
        &self.context
    }

    /// Returns a context in which it is current, with this baggage, and the loan: the span is not used until the loan is dropped, and ended after that.
    pub(crate) fn lend(&self, baggage: &str) -> (Held, Option<Lender>) {
        let context = self.context.raw();
        let lent = Lent { span: self.span, context: &context, baggage: Str::new(baggage), is_guarded: false };
        // SAFETY: the texts outlive the call; the caller keeps the span until the loan has ended.
        unsafe { attach(lent) }.into_held()
    }

    /// Notes that what it is about has failed: status, `error.type` and the exception.
    pub(crate) fn fail(&self, error_type: &str, failure: &Failure) {
        let attributes = [("error.type", Attribute::Str(error_type))];
        let attributes = attributes.each_ref().map(raw_attribute);
        let exception = [
            ("exception.type", Attribute::Str(error_type)),
            ("exception.message", Attribute::Str(&failure.message)),
            ("exception.stacktrace", Attribute::Str(&failure.stacktrace)),
        ];
        let count = if failure.stacktrace.is_empty() { 2 } else { 3 };
        let exception = exception.each_ref().map(raw_attribute);
        let event = abi::Event {
            size: size_of::<abi::Event>(),
            name: Str::new("exception"),
            time_unix_nano: 0,
            attributes: exception.as_ptr(),
            attribute_count: count,
        };
        // SAFETY: a span of this table that is not lent; what is pointed to outlives the calls.
        unsafe {
            if let Some(set) = self.table.span_set_attributes {
                set(self.span, attributes.as_ptr(), attributes.len());
            }
            if let Some(add) = self.table.span_add_event {
                add(self.span, &event);
            }
            if let Some(set) = self.table.span_set_status {
                set(self.span, abi::SPAN_STATUS_ERROR, Str::new(&failure.message));
            }
        }
    }
}

impl Drop for OwnSpan {
    fn drop(&mut self) {
        if let Some(release) = self.table.span_release {
            // SAFETY: a span of this table, whose only owner this was.
            unsafe { release(self.span) };
        }
    }
}

/// A tracer of a table, which both live as long as the process.
struct OwnTracer(&'static Tracing, *mut c_void);

// SAFETY: the contract allows calls for a tracer from any thread.
unsafe impl Send for OwnTracer {}

/// Returns the tracer of this table; none when nothing that it makes would be recorded.
fn tracer(table: &'static Tracing) -> Option<*mut c_void> {
    static TRACER: Mutex<Option<OwnTracer>> = Mutex::new(None);
    let mut known = TRACER.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(OwnTracer(of, tracer)) = *known
        && ptr::eq(of, table)
    {
        return Some(tracer);
    }
    let scope = abi::Scope {
        size: size_of::<abi::Scope>(),
        name: Str::new(SCOPE),
        version: Str::new(env!("CARGO_PKG_VERSION")),
        schema_url: Str::EMPTY,
        attributes: ptr::null(),
        attribute_count: 0,
    };
    // SAFETY: the host's function, with its own data and a scope that outlives the call.
    let tracer = unsafe { table.tracer?(table.data, &scope) };
    *known = (!tracer.is_null()).then_some(OwnTracer(table, tracer));
    (!tracer.is_null()).then_some(tracer)
}

fn raw_attribute(&(key, value): &(&'static str, Attribute<'_>)) -> abi::KeyValue {
    let (tag, as_) = match value {
        Attribute::Str(text) => (abi::VALUE_STR, abi::ValueUnion { str_: Str::new(text) }),
        Attribute::I64(number) => (abi::VALUE_I64, abi::ValueUnion { i64_: number }),
    };
    abi::KeyValue { key: Str::new(key), value: abi::Value { tag, as_ } }
}

fn raw_link(context: &PlainContext) -> abi::Link {
    abi::Link { size: size_of::<abi::Link>(), context: context.raw(), attributes: ptr::null(), attribute_count: 0 }
}
