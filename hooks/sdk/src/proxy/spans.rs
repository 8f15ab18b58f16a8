//! Provider, tracer and span for one version of OpenTelemetry.
//!
//! The parent module says which: `super::api` is the crate, and `super::builder_status` the one thing that
//! differs. This file is loaded once for each.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;
use std::{fmt, ptr};

use smallvec::SmallVec;
use tracer_abi::{self as abi, Str, Tracing};

use super::super::lend::Loan;
use super::super::words::{PlainContext, read_trace_state, unix_nanos};
use super::super::{PROBE_SCOPE, host};
use super::api::baggage::{Baggage, BaggageExt, KeyValueMetadata};
use super::api::trace::{
    Event, Link, SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState,
};
use super::api::{self, Array, Context, ContextGuard, InstrumentationScope, KeyValue, StringValue, Value};
use super::builder_status;
use crate::baggage;
#[cfg(feature = "serve")]
use crate::serve::running as running_request;
use crate::trace_state::{escape, unescape};

/// Number of attributes that are handed over without an allocation.
const INLINE_ATTRIBUTES: usize = 16;
/// Number of tracers that a thread remembers. A program has few scopes; libraries ask for them again at every span.
const REMEMBERED_TRACERS: usize = 16;

/// The provider. All of its tracers and spans are the host's.
#[derive(Clone, Copy, Debug, Default)]
pub struct TracerProvider {}

thread_local! {
    /// Set by the provider when it is asked for [`PROBE_SCOPE`].
    static IS_PROBED: Cell<bool> = const { Cell::new(false) };
    static TRACERS: RefCell<Vec<Tracer>> = const { RefCell::new(Vec::new()) };
}

/// Makes the proxy this copy's global provider.
pub(crate) fn install() {
    api::global::set_tracer_provider(TracerProvider {});
}

/// Returns what is current on this thread, as the headers `traceparent`, `tracestate` and `baggage`; empty for what there is not.
pub(crate) fn current_headers() -> [String; 3] {
    let context = Context::current();
    let span = context.span();
    let span = span.span_context();
    let baggage = context.baggage().to_string();
    if !span.is_valid() {
        return [String::new(), String::new(), baggage];
    }
    let trace_parent = format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), span.trace_flags().to_u8());
    [trace_parent, unescape(span.trace_state().header()), baggage]
}

/// Returns the span that is current on this thread, and the baggage as a header.
pub(crate) fn current_plain() -> (PlainContext, String) {
    let context = Context::current();
    (plain(context.span().span_context()), context.baggage().to_string())
}

/// Returns whether this copy's global provider is the proxy.
pub(crate) fn is_in_place() -> bool {
    IS_PROBED.set(false);
    drop(api::global::tracer(PROBE_SCOPE));
    IS_PROBED.get()
}

impl api::trace::TracerProvider for TracerProvider {
    type Tracer = Tracer;

    fn tracer_with_scope(&self, scope: InstrumentationScope) -> Tracer {
        if scope.name() == PROBE_SCOPE {
            IS_PROBED.set(true);
        }
        let remembered = TRACERS.try_with(|tracers| {
            let mut tracers = tracers.borrow_mut();
            if let Some(tracer) = tracers.iter().find(|tracer| tracer.inner.scope == scope) {
                return tracer.clone();
            }
            let tracer = Tracer::new(scope.clone());
            if tracers.len() < REMEMBERED_TRACERS {
                tracers.push(tracer.clone());
            }
            tracer
        });
        remembered.unwrap_or_else(|_| Tracer::new(scope))
    }
}

/// A tracer for one instrumentation scope. Clones share what they have found out.
#[derive(Clone, Debug)]
pub struct Tracer {
    inner: Arc<TracerInner>,
}

#[derive(Debug)]
struct TracerInner {
    scope: InstrumentationScope,
    /// The host's tracer, from the first span on that was started with a table.
    found: OnceLock<HostTracer>,
}

impl Tracer {
    /// Makes a tracer for `scope`.
    pub(crate) fn new(scope: InstrumentationScope) -> Tracer {
        Tracer { inner: Arc::new(TracerInner { scope, found: OnceLock::new() }) }
    }

    /// Returns the host's tracer; none in a process that is not traced.
    fn host_tracer(&self) -> Option<&HostTracer> {
        if let Some(found) = self.inner.found.get() {
            return Some(found);
        }
        let found = HostTracer::open(host::tracing()?, &self.inner.scope)?;
        // Another thread may have been faster. Its tracer is as good, and ours is given back.
        let _ = self.inner.found.set(found);
        self.inner.found.get()
    }
}

/// A tracer of the host's, given back when it is dropped.
#[derive(Debug)]
struct HostTracer {
    table: &'static Tracing,
    /// Null when nothing that the tracer makes would be recorded.
    handle: *mut c_void,
}

// SAFETY: the contract allows calls for a tracer from any thread.
unsafe impl Send for HostTracer {}
// SAFETY: as above.
unsafe impl Sync for HostTracer {}

impl HostTracer {
    fn open(table: &'static Tracing, scope: &InstrumentationScope) -> Option<HostTracer> {
        let mut attributes = Attributes::default();
        attributes.lend(scope.attributes());
        let scope = abi::Scope {
            size: size_of::<abi::Scope>(),
            name: Str::new(scope.name()),
            version: Str::new(scope.version().unwrap_or_default()),
            schema_url: Str::new(scope.schema_url().unwrap_or_default()),
            attributes: attributes.as_ptr(),
            attribute_count: attributes.len(),
        };
        // SAFETY: the host's function, with its own data and a scope that outlives the call.
        let handle = unsafe { table.tracer?(table.data, &scope) };
        Some(HostTracer { table, handle })
    }
}

impl Drop for HostTracer {
    fn drop(&mut self) {
        if let (Some(release), false) = (self.table.tracer_release, self.handle.is_null()) {
            // SAFETY: the handle came from this table, and this is the only owner.
            unsafe { release(self.handle) };
        }
    }
}

impl api::trace::Tracer for Tracer {
    type Span = Span;

    fn build_with_context(&self, mut builder: SpanBuilder, parent_cx: &Context) -> Span {
        if parent_cx.is_telemetry_suppressed() {
            return Span::unrecorded(SpanContext::NONE);
        }
        let parent_span = parent_cx.span();
        let parent = parent_span.span_context();
        let tracer = self.host_tracer().filter(|tracer| !tracer.handle.is_null());
        let Some((tracer, start)) = tracer.and_then(|tracer| Some((tracer, tracer.table.span_start?))) else {
            return Span::unrecorded(parent.clone());
        };

        let status = builder_status(&mut builder);
        let plain_parent = parent.is_valid().then(|| plain(parent));
        let raw_parent = plain_parent.as_ref().map(PlainContext::raw);
        let mut attributes = Attributes::default();
        attributes.lend(builder.attributes.as_deref().unwrap_or_default());
        let links = builder.links.as_deref().map(Records::links);
        let events = builder.events.as_deref().map(Records::events);
        let (link_pointers, event_pointers) = (Records::pointers(&links), Records::pointers(&events));
        let baggage = Some(parent_cx.baggage()).filter(|baggage| !baggage.is_empty()).map(ToString::to_string);
        let running = running_request();
        let request = abi::SpanStart {
            size: size_of::<abi::SpanStart>(),
            name: Str::new(&builder.name),
            kind: match builder.span_kind {
                None | Some(SpanKind::Internal) => abi::SPAN_KIND_INTERNAL,
                Some(SpanKind::Server) => abi::SPAN_KIND_SERVER,
                Some(SpanKind::Client) => abi::SPAN_KIND_CLIENT,
                Some(SpanKind::Producer) => abi::SPAN_KIND_PRODUCER,
                Some(SpanKind::Consumer) => abi::SPAN_KIND_CONSUMER,
            },
            start_time_unix_nano: builder.start_time.map_or(0, unix_nanos),
            parent: raw_parent.as_ref().map_or(ptr::null(), ptr::from_ref),
            attributes: attributes.as_ptr(),
            attribute_count: attributes.len(),
            links: link_pointers.as_ptr(),
            link_count: link_pointers.len(),
            events: event_pointers.as_ptr(),
            event_count: event_pointers.len(),
            baggage: Str::new(baggage.as_deref().unwrap_or_default()),
            runtime: ptr::null(),
            prefix_id: 0,
            prefix_count: 0,
            additions: ptr::null(),
            request: running.as_ref().map_or(ptr::null(), |running| ptr::from_ref(running.raw())),
        };
        let mut started = abi::SpanStarted::EMPTY;
        // SAFETY: the handle is a tracer of this table; everything in the request outlives the call.
        let handle = unsafe { start(tracer.handle, &request, &mut started) };

        if started.trace_id == [0; 16] && handle.is_null() {
            return Span::unrecorded(parent.clone());
        }
        let trace_state = if started.has_trace_state != 0 && !handle.is_null() {
            // SAFETY: the handle is a span of this table.
            trace_state(&unsafe { read_trace_state(tracer.table, handle) })
        } else {
            parent.trace_state().clone()
        };
        let context = SpanContext::new(
            TraceId::from_bytes(started.trace_id),
            SpanId::from_bytes(started.span_id),
            TraceFlags::new(started.trace_flags),
            false,
            trace_state,
        );
        // SAFETY: the handle is a span of this table, just made, and given to nobody else.
        let mut span = unsafe { Span::owned(tracer.table, handle, started.is_recording != 0, context) };
        if status != Status::Unset {
            api::trace::Span::set_status(&mut span, status);
        }
        span
    }
}

/// A span of the host's: one that the module started, or the task's own on loan.
pub struct Span {
    context: SpanContext,
    handle: Handle,
}

enum Handle {
    /// Nothing is recorded and nothing need be released.
    None,
    /// The module's own span; dropping it ends it.
    Owned { table: &'static Tracing, span: *mut c_void, is_recording: bool },
    /// The task's span.
    Lent(Arc<Loan>),
}

// SAFETY: a span handle may be used from any thread as long as calls do not overlap; every call that uses it takes
// `&mut self`.
unsafe impl Send for Span {}
// SAFETY: as above; what `&self` reads is this side's own.
unsafe impl Sync for Span {}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_recording = api::trace::Span::is_recording(self);
        f.debug_struct("Span").field("context", &self.context).field("is_recording", &is_recording).finish()
    }
}

impl Span {
    fn unrecorded(context: SpanContext) -> Span {
        Span { context, handle: Handle::None }
    }

    /// # Safety
    ///
    /// `span` is null or a span handle of `table`, which passes to the result.
    unsafe fn owned(table: &'static Tracing, span: *mut c_void, is_recording: bool, context: SpanContext) -> Span {
        let handle = if span.is_null() { Handle::None } else { Handle::Owned { table, span, is_recording } };
        Span { context, handle }
    }

    /// Calls `f` with the table and the handle, if the span is recording.
    fn record(&mut self, f: impl FnOnce(&'static Tracing, *mut c_void)) {
        match &self.handle {
            Handle::Owned { table, span, is_recording: true } => f(table, *span),
            Handle::Lent(loan) => loan.with(f),
            Handle::None | Handle::Owned { .. } => {}
        }
    }

    fn record_attributes(&mut self, attributes: &[KeyValue]) {
        self.record(|table, span| {
            let Some(set) = table.span_set_attributes else { return };
            let mut pairs = Attributes::default();
            pairs.lend(attributes);
            // SAFETY: `record` gives a handle of this table; the attributes outlive the call.
            unsafe { set(span, pairs.as_ptr(), pairs.len()) };
        });
    }
}

impl api::trace::Span for Span {
    fn add_event_with_timestamp<T>(&mut self, name: T, timestamp: SystemTime, attributes: Vec<KeyValue>)
    where
        T: Into<Cow<'static, str>>,
    {
        self.record(|table, span| {
            let Some(add) = table.span_add_event else { return };
            let (name, attributes) = (name.into(), Attributes::new(&attributes));
            // SAFETY: `record` gives a handle of this table; the event outlives the call.
            unsafe { add(span, &raw_event(&name, timestamp, &attributes)) };
        });
    }

    fn span_context(&self) -> &SpanContext {
        &self.context
    }

    fn is_recording(&self) -> bool {
        match &self.handle {
            Handle::None => false,
            Handle::Owned { is_recording, .. } => *is_recording,
            Handle::Lent(loan) => loan.is_valid(),
        }
    }

    fn set_attribute(&mut self, attribute: KeyValue) {
        self.record_attributes(&[attribute]);
    }

    fn set_attributes(&mut self, attributes: impl IntoIterator<Item = KeyValue>) {
        if api::trace::Span::is_recording(self) {
            let attributes: SmallVec<[KeyValue; INLINE_ATTRIBUTES]> = attributes.into_iter().collect();
            self.record_attributes(&attributes);
        }
    }

    fn set_status(&mut self, status: Status) {
        self.record(|table, span| {
            let Some(set) = table.span_set_status else { return };
            let (code, description) = match &status {
                // Says nothing, and by the specification changes nothing. `tracing-opentelemetry` sets it on every span.
                Status::Unset => return,
                Status::Ok => (abi::SPAN_STATUS_OK, ""),
                Status::Error { description } => (abi::SPAN_STATUS_ERROR, &**description),
            };
            // SAFETY: `record` gives a handle of this table; the text outlives the call.
            unsafe { set(span, code, Str::new(description)) };
        });
    }

    fn update_name<T>(&mut self, new_name: T)
    where
        T: Into<Cow<'static, str>>,
    {
        self.record(|table, span| {
            let Some(update) = table.span_update_name else { return };
            // SAFETY: `record` gives a handle of this table; the text outlives the call.
            unsafe { update(span, Str::new(&new_name.into())) };
        });
    }

    fn add_link(&mut self, span_context: SpanContext, attributes: Vec<KeyValue>) {
        self.record(|table, span| {
            let Some(add) = table.span_add_link else { return };
            let (context, attributes) = (plain(&span_context), Attributes::new(&attributes));
            // SAFETY: `record` gives a handle of this table; the link outlives the call.
            unsafe { add(span, &raw_link(&context, &attributes)) };
        });
    }

    /// Ends the module's own span. The task's span is not the task's to end.
    fn end(&mut self) {
        self.release();
    }

    fn end_with_timestamp(&mut self, timestamp: SystemTime) {
        // What has ended changes no more, so the host need not keep it. One call ends it and gives it back.
        let Handle::Owned { table, span, is_recording: true } = self.handle else { return self.release() };
        let time = unix_nanos(timestamp);
        if let Some(end_and_release) = table.span_end_and_release {
            self.handle = Handle::None;
            // SAFETY: the handle is this table's, and this was its only owner.
            return unsafe { end_and_release(span, time) };
        }
        if let Some(end) = table.span_end {
            // SAFETY: the handle is this table's and has not been released.
            unsafe { end(span, time) };
        }
        self.release();
    }
}

impl Span {
    /// Gives the module's own span back, which ends it if need be.
    fn release(&mut self) {
        if let Handle::Owned { table, span, .. } = self.handle {
            self.handle = Handle::None;
            if let Some(release) = table.span_release {
                // SAFETY: the handle is this table's, and this was its only owner.
                unsafe { release(span) };
            }
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        self.release();
    }
}

/// Guard of the context that is current while a task runs.
pub(crate) type Guard = ContextGuard;

/// Makes the task's span current on this thread: the lent span, or what is known of its context.
///
/// It begins with an empty context, not with the current one: what an earlier task forgot to detach is not
/// this one's.
pub(crate) fn attach(context: &PlainContext, loan: Option<Arc<Loan>>, baggage: &str) -> Guard {
    let span_context = of_plain(context);
    let attached = Context::new();
    let attached = match loan {
        Some(loan) => attached.with_span(Span { context: span_context, handle: Handle::Lent(loan) }),
        None if context.is_valid() => attached.with_remote_span_context(span_context),
        None => attached,
    };
    if baggage.is_empty() {
        return attached.attach();
    }
    let members = baggage::members(baggage).map(|(key, value, properties)| {
        KeyValueMetadata::new(key.to_owned(), StringValue::from(value), properties.to_owned())
    });
    attached.with_baggage(members.collect::<Baggage>()).attach()
}

/// Links the span that is current in `context`, if there is one, to another one. Returns whether there is.
#[cfg(feature = "serve")]
pub(crate) fn add_link(context: &Context, to: &PlainContext) -> bool {
    let span = context.span();
    if span.span_context().is_valid() {
        span.add_link(of_plain(to), Vec::new());
    }
    span.span_context().is_valid()
}

fn of_plain(context: &PlainContext) -> SpanContext {
    SpanContext::new(
        TraceId::from_bytes(context.trace_id),
        SpanId::from_bytes(context.span_id),
        TraceFlags::new(context.trace_flags),
        context.is_remote,
        trace_state(&context.trace_state),
    )
}

fn plain(context: &SpanContext) -> PlainContext {
    PlainContext {
        trace_id: context.trace_id().to_bytes(),
        span_id: context.span_id().to_bytes(),
        trace_flags: context.trace_flags().to_u8(),
        is_remote: context.is_remote(),
        trace_state: unescape(context.trace_state().header()),
    }
}

/// `header` in this version's type, also with keys that its rules, which are older than the recommendation's, do not allow.
fn trace_state(header: &str) -> TraceState {
    if header.is_empty() {
        return TraceState::NONE;
    }
    let is_taken = |key: &str, value: &str| TraceState::from_key_value([(key, value)]).is_ok();
    TraceState::from_key_value(escape(header, is_taken)).unwrap_or_default()
}

/// Attributes as the host reads them. Borrows from the API's own; up to [`INLINE_ATTRIBUTES`] need no allocation
/// unless there are arrays of strings. They are filled in where they are, because to move them costs more.
#[derive(Default)]
pub(super) struct Attributes<'a> {
    pairs: SmallVec<[abi::KeyValue; INLINE_ATTRIBUTES]>,
    /// Strings that the arrays of strings point to.
    strings: Vec<Vec<Str>>,
    _borrowed: std::marker::PhantomData<&'a KeyValue>,
}

impl<'a> Attributes<'a> {
    pub(super) fn new(attributes: &'a [KeyValue]) -> Attributes<'a> {
        let mut pairs = Attributes::default();
        pairs.lend(attributes);
        pairs
    }

    fn lend(&mut self, attributes: impl IntoIterator<Item = &'a KeyValue>) {
        for KeyValue { key, value, .. } in attributes {
            self.pairs.push(abi::KeyValue { key: Str::new(key.as_str()), value: NO_VALUE });
            // Each kind is written where it stays: a value that is put together elsewhere and then moved is read back before its
            // parts have left the processor, which waits for them.
            let Some(abi::KeyValue { value: place, .. }) = self.pairs.last_mut() else { continue };
            let (tag, as_) = (&mut place.tag, &mut place.as_);
            match value {
                Value::Bool(value) => (*tag, as_.bool_) = (abi::VALUE_BOOL, (*value).into()),
                Value::I64(value) => (*tag, as_.i64_) = (abi::VALUE_I64, *value),
                Value::F64(value) => (*tag, as_.f64_) = (abi::VALUE_F64, *value),
                Value::String(value) => (*tag, as_.str_) = (abi::VALUE_STR, Str::new(value.as_str())),
                Value::Array(values) => match raw_array(values, &mut self.strings) {
                    Some(value) => *place = value,
                    None => drop(self.pairs.pop()),
                },
                // Newer than the contract.
                _ => drop(self.pairs.pop()),
            }
        }
    }

    pub(super) fn as_ptr(&self) -> *const abi::KeyValue {
        self.pairs.as_ptr()
    }

    pub(super) fn len(&self) -> usize {
        self.pairs.len()
    }
}

/// Placeholder of a value before it is one.
const NO_VALUE: abi::Value = abi::Value { tag: abi::VALUE_BOOL, as_: abi::ValueUnion { bool_: 0 } };

/// Returns an array for the host; none for a kind that is newer than the contract.
#[cold]
fn raw_array(values: &Array, strings: &mut Vec<Vec<Str>>) -> Option<abi::Value> {
    fn array<T>(elements: &[T]) -> abi::Array {
        abi::Array { ptr: elements.as_ptr().cast(), count: elements.len() }
    }
    let (tag, array) = match values {
        // A `bool` is a byte, 0 or 1.
        Array::Bool(values) => (abi::VALUE_BOOL_ARRAY, array(values)),
        Array::I64(values) => (abi::VALUE_I64_ARRAY, array(values)),
        Array::F64(values) => (abi::VALUE_F64_ARRAY, array(values)),
        Array::String(values) => {
            let texts: Vec<_> = values.iter().map(|value| Str::new(value.as_str())).collect();
            let array = array(&texts);
            strings.push(texts);
            (abi::VALUE_STR_ARRAY, array)
        }
        _ => return None,
    };
    Some(abi::Value { tag, as_: abi::ValueUnion { array } })
}

fn raw_event(name: &str, time: SystemTime, attributes: &Attributes<'_>) -> abi::Event {
    abi::Event {
        size: size_of::<abi::Event>(),
        name: Str::new(name),
        time_unix_nano: unix_nanos(time),
        attributes: attributes.as_ptr(),
        attribute_count: attributes.len(),
    }
}

fn raw_link(context: &PlainContext, attributes: &Attributes<'_>) -> abi::Link {
    abi::Link {
        size: size_of::<abi::Link>(),
        context: context.raw(),
        attributes: attributes.as_ptr(),
        attribute_count: attributes.len(),
    }
}

/// The links or events that a span begins with, and what they point to. Most spans have none.
struct Records<'a, T> {
    pointers: Vec<*const T>,
    _records: Vec<T>,
    _attributes: Vec<Attributes<'a>>,
    _contexts: Vec<PlainContext>,
}

impl<T> Records<'_, T> {
    fn pointers(records: &Option<Self>) -> &[*const T] {
        records.as_ref().map_or(&[], |records| &records.pointers)
    }
}

impl<'a> Records<'a, abi::Event> {
    fn events(events: &'a [Event]) -> Self {
        let attributes: Vec<_> = events.iter().map(|event| Attributes::new(&event.attributes)).collect();
        let pairs = events.iter().zip(&attributes);
        let records: Vec<_> =
            pairs.map(|(event, attributes)| raw_event(&event.name, event.timestamp, attributes)).collect();
        let pointers = records.iter().map(ptr::from_ref).collect();
        Records { pointers, _records: records, _attributes: attributes, _contexts: Vec::new() }
    }
}

impl<'a> Records<'a, abi::Link> {
    fn links(links: &'a [Link]) -> Self {
        let contexts: Vec<_> = links.iter().map(|link| plain(&link.span_context)).collect();
        let attributes: Vec<_> = links.iter().map(|link| Attributes::new(&link.attributes)).collect();
        let pairs = contexts.iter().zip(&attributes);
        let records: Vec<_> = pairs.map(|(context, attributes)| raw_link(context, attributes)).collect();
        let pointers = records.iter().map(ptr::from_ref).collect();
        Records { pointers, _records: records, _attributes: attributes, _contexts: contexts }
    }
}

/// A request, where none can be handled.
#[cfg(not(feature = "serve"))]
enum NoRequest {}

#[cfg(not(feature = "serve"))]
impl NoRequest {
    fn raw(&self) -> &abi::RunningRequest {
        match *self {}
    }
}

#[cfg(not(feature = "serve"))]
fn running_request() -> Option<NoRequest> {
    None
}
