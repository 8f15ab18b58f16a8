//! The table that the host drives: [`tracer_abi::Tracing`] over an OpenTelemetry provider.
//!
//! Every function here is called by another library, from any thread. So each one catches panics, and none holds a lock
//! of its own. The rules on what is borrowed and who frees are those of `tracer-abi`.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use opentelemetry::baggage::BaggageExt;
use opentelemetry::trace::{Span as _, SpanBuilder, TraceContextExt, TraceState, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, TraceFlags, TraceId};
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::logs::SdkLoggerProvider;
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SdkTracer, SdkTracerProvider};
use tracer_abi as abi;

use super::builder::Notice;
use super::delivery::Delivery;
use super::direct::{Direct, Handle};
use super::guard::{FLAG_RANDOM, FileFormat, GuardedProcessor, panic_text};
use super::sink::{Reply, Sink};
use super::{additions, convert, logs};
use crate::hook::builder::Tracing;
use crate::hook::running_request;
use crate::runtime::{self, RuntimeContext};

/// The flags that exist. Others may not be passed on.
const FLAGS_KNOWN: u8 = 0x03;
/// Room for attributes that are set after the start. Without it the first one moves all that the span was started with.
const SPARE_ATTRIBUTES: usize = 8;
/// Least time that a shutdown waits, so that exporters hear that they need not pause any more.
const NOTICE_TIME: Duration = Duration::from_millis(50);
/// Limit of time for the end of a processor that keeps spans on the disk.
const DURABLE_TIME: Duration = Duration::from_secs(5);
/// No caller waits longer, and the standard library's clocks can add it.
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Time that a shutdown waits for an answer of a receiver that has never answered; for others, twice their slowest answer.
const PATIENCE_MIN: Duration = Duration::from_millis(500);

/// Target of `data`.
struct Live {
    provider: SdkTracerProvider,
    processors: Vec<Arc<GuardedProcessor>>,
    delivery: Arc<Delivery>,
    sink: Arc<Sink>,
    notices: Vec<Notice>,
    follows_parent: bool,
    /// True if trace ids are the SDK's random ones, and not a generator's of the hook.
    has_random_ids: bool,
    direct: Option<Direct>,
    may_add: bool,
    logs: Option<SdkLoggerProvider>,
    /// Spans that were given up, of all processors.
    lost: AtomicU64,
    is_shut_down: AtomicBool,
}

/// Target of a tracer handle.
struct LiveTracer {
    tracer: SdkTracer,
    live: &'static Live,
}

/// The outcome of a call that has a status and a text.
type Outcome = Result<(), (u32, String)>;

/// Makes a table that lives as long as the process.
pub(super) fn leak(tracing: Tracing) -> *const abi::Tracing {
    let Tracing {
        provider,
        processors,
        delivery,
        notices,
        resource,
        description,
        follows_parent,
        has_random_ids,
        direct,
        may_add,
        logs,
    } = tracing;
    let mut attributes: Vec<abi::KeyValue> = match &resource {
        Some(resource) => {
            let mut pairs: Vec<_> = resource.iter().collect();
            pairs.sort_unstable_by_key(|&(key, _)| key);
            pairs.into_iter().filter_map(|(key, value)| convert::leaked_attribute(key.as_str(), value)).collect()
        }
        None => Vec::new(),
    };
    attributes.shrink_to_fit();
    let attributes: &'static [abi::KeyValue] = Vec::leak(attributes);
    // What a dead process left goes to the first file that there is.
    let span_file = processors.iter().find_map(|processor| processor.span_file());
    let span_file = span_file.and_then(|(path, format)| Some((path.into_os_string().into_string().ok()?, format)));
    let span_file_format = match span_file {
        None => 0,
        Some((_, FileFormat::Console)) => abi::SPAN_FILE_CONSOLE,
        Some((_, FileFormat::Otlp)) => abi::SPAN_FILE_OTLP,
    };
    // A provider that the hook finished tells nothing and takes nothing.
    let (tells, takes) = (delivery.has_routes(), !processors.is_empty());
    let can_hand_back = tells && can_hand_back(&processors);
    let live: &'static Live = Box::leak(Box::new(Live {
        provider,
        processors,
        delivery,
        sink: Arc::default(),
        notices,
        follows_parent,
        has_random_ids,
        direct,
        may_add,
        logs,
        lost: AtomicU64::new(0),
        is_shut_down: AtomicBool::new(false),
    }));
    Box::leak(Box::new(abi::Tracing {
        size: size_of::<abi::Tracing>(),
        data: ptr::from_ref(live).cast_mut().cast(),
        tracer: Some(tracer),
        tracer_release: Some(tracer_release),
        span_start: Some(span_start),
        span_trace_state: Some(span_trace_state),
        span_set_attributes: Some(span_set_attributes),
        span_add_event: Some(span_add_event),
        span_add_link: Some(span_add_link),
        span_set_status: Some(span_set_status),
        span_update_name: Some(span_update_name),
        span_end: Some(span_end),
        span_release: Some(span_release),
        commit: Some(commit),
        flush: Some(flush),
        shutdown: Some(shutdown),
        resource: attributes.as_ptr(),
        resource_count: attributes.len(),
        description: convert::leaked_text(&description),
        listen: tells.then_some(listen as _),
        sink_export: takes.then_some(sink_export as _),
        span_file: convert::leaked_text(span_file.as_ref().map_or("", |(path, _)| path)),
        span_file_format,
        span_end_and_release: Some(span_end_and_release),
        hand_back: can_hand_back.then_some(hand_back as _),
        lost: Some(lost),
        log_export: live.logs.is_some().then_some(log_export as _),
    }))
}

/// Returns whether the host may bring on what the processors have not delivered: none of them exports without saying so, or before it returns.
fn can_hand_back(processors: &[Arc<GuardedProcessor>]) -> bool {
    processors.iter().all(|processor| processor.is_durable() || processor.is_batch_exporter())
}

/// Runs `work`; a panic in it becomes `fallback`. The payload is leaked, because dropping one may panic in turn.
fn caught<T>(fallback: T, work: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(value) => value,
        Err(payload) => {
            std::mem::forget(payload);
            fallback
        }
    }
}

/// # Safety
///
/// `data` is the table's.
unsafe fn live(data: *mut c_void) -> &'static Live {
    // SAFETY: `leak` put a leaked `Live` there.
    unsafe { &*data.cast::<Live>() }
}

/// # Safety
///
/// `span` is null or a handle from `span_start` that is not released, and no other call for it runs.
unsafe fn with_span(span: *mut c_void, work: impl FnOnce(&mut Handle)) {
    if span.is_null() {
        return;
    }
    // SAFETY: the caller's promise: it is a `Handle` that `span_start` boxed, and nobody else has it now.
    let span = unsafe { &mut *span.cast::<Handle>() };
    caught((), || work(span));
}

unsafe extern "C" fn tracer(data: *mut c_void, scope: *const abi::Scope) -> *mut c_void {
    caught(ptr::null_mut(), || {
        // SAFETY: the host passes the table's own `data` and a valid scope.
        let (live, scope) = unsafe { (live(data), convert::scope(scope)) };
        let tracer = LiveTracer { tracer: live.provider.tracer_with_scope(scope), live };
        Box::into_raw(Box::new(tracer)).cast()
    })
}

unsafe extern "C" fn tracer_release(tracer: *mut c_void) {
    if tracer.is_null() {
        return;
    }
    // SAFETY: a tracer handle is a box that `tracer` made, and it is given back once.
    caught((), || drop(unsafe { Box::from_raw(tracer.cast::<LiveTracer>()) }));
}

unsafe extern "C" fn span_start(
    tracer: *mut c_void,
    start: *const abi::SpanStart,
    started: *mut abi::SpanStarted,
) -> *mut c_void {
    if tracer.is_null() || start.is_null() {
        // SAFETY: the host lends `started`.
        unsafe { Started::NOTHING.write(started) };
        return ptr::null_mut();
    }
    // SAFETY: a tracer handle is a box that `tracer` made, and it is not released yet.
    let tracer = unsafe { &*tracer.cast::<LiveTracer>() };
    let span = caught(None, || {
        let (mut space, mut parent_space) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: the host lends a valid `start`, with all it points to, for this call.
        let start = unsafe { convert::sized(start, &mut space) };
        // SAFETY: as above.
        let parent = unsafe { parent_of(start, &mut parent_space) };
        // The call may come from an exporter of this library, through the host: that must not make spans without end.
        let is_suppressed = Context::is_current_telemetry_suppressed();
        let direct = tracer.live.direct.as_ref().filter(|direct| {
            !is_suppressed && direct.takes(parent) && !tracer.live.is_shut_down.load(Ordering::Relaxed)
        });
        let span = match direct {
            Some(direct) => {
                let flags =
                    parent.map_or(FLAG_RANDOM, |parent| parent.trace_flags & FLAGS_KNOWN) | TraceFlags::SAMPLED.to_u8();
                // It is written where it stays: what is put together elsewhere and then moved is read back before its parts have left
                // the processor, which waits for them.
                let tell = |&trace_id: &_, &span_id: &_| {
                    let said = Started { trace_id, span_id, flags, is_recording: true, has_trace_state: false };
                    // SAFETY: the host lends `started`.
                    unsafe { said.write(started) };
                };
                // SAFETY: as above.
                Some(unsafe { direct.start(parent, start, tell) })
            }
            None => {
                // SAFETY: as above.
                let (span, said) = unsafe { build_span(tracer, start, parent, is_suppressed) };
                // SAFETY: the host lends `started`.
                unsafe { said.write(started) };
                span
            }
        };
        Some(span.map_or(ptr::null_mut(), |span| Box::into_raw(span).cast()))
    });
    span.unwrap_or_else(|| {
        // SAFETY: the host lends `started`.
        unsafe { Started::NOTHING.write(started) };
        ptr::null_mut()
    })
}

/// Returns the parent of a span that starts, if it has a valid one.
///
/// # Safety
///
/// The pointers in `start` are valid as long as the result is used.
#[inline]
unsafe fn parent_of<'a>(
    start: &abi::SpanStart,
    space: &'a mut MaybeUninit<abi::SpanContext>,
) -> Option<&'a abi::SpanContext> {
    if start.parent.is_null() {
        return None;
    }
    // SAFETY: promised by the caller.
    let parent = unsafe { convert::sized(start.parent, space) };
    (parent.trace_id != [0; 16] && parent.span_id != [0; 8]).then_some(parent)
}

/// Description of a span that was just started.
struct Started {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    flags: u8,
    is_recording: bool,
    has_trace_state: bool,
}

impl Started {
    /// There is no span, and nothing to propagate.
    const NOTHING: Started =
        Started { trace_id: [0; 16], span_id: [0; 8], flags: 0, is_recording: false, has_trace_state: false };

    /// # Safety
    ///
    /// `started` is null or may be written to, and begins with the size that its owner gave it.
    #[inline]
    unsafe fn write(&self, started: *mut abi::SpanStarted) {
        if started.is_null() {
            return;
        }
        // SAFETY: promised by the caller.
        let size = unsafe { (*started).size };
        let whole = abi::SpanStarted {
            size,
            trace_id: self.trace_id,
            span_id: self.span_id,
            trace_flags: self.flags,
            is_recording: u8::from(self.is_recording),
            has_trace_state: u8::from(self.has_trace_state),
        };
        if size >= size_of::<abi::SpanStarted>() {
            // SAFETY: promised by the caller, and there is room for it.
            unsafe { started.write(whole) };
        } else {
            // SAFETY: promised by the caller; only the `size` bytes that it has are written.
            unsafe { ptr::copy_nonoverlapping((&raw const whole).cast::<u8>(), started.cast::<u8>(), size) };
        }
    }
}

/// Starts a span through the SDK. Returns it when the host needs a handle: it records, or it has a tracestate of its own.
///
/// # Safety
///
/// All that `start` points to is valid during the call.
unsafe fn build_span(
    tracer: &LiveTracer,
    start: &abi::SpanStart,
    parent: Option<&abi::SpanContext>,
    is_suppressed: bool,
) -> (Option<Box<Handle>>, Started) {
    let mut space = MaybeUninit::uninit();
    let running = (!start.runtime.is_null()).then(|| {
        // SAFETY: promised by the caller.
        unsafe { RuntimeContext::of_running(convert::sized(start.runtime, &mut space)) }
    });
    // Samplers and processors see both.
    let _entered = running.map(|running| runtime::enter(Some(running)));
    // SAFETY: what the host has lent is there until the call returns.
    let _handled = unsafe { running_request::enter(start.request) };
    // When no span is made, what travelled so far travels on.
    let passed_on = |parent: &abi::SpanContext| Started {
        trace_id: parent.trace_id,
        span_id: parent.span_id,
        flags: parent.trace_flags & FLAGS_KNOWN,
        is_recording: false,
        has_trace_state: false,
    };
    if let Some(parent) = parent
        && parent.trace_flags & TraceFlags::SAMPLED.to_u8() == 0
        && tracer.live.follows_parent
    {
        // The sampler would say no. Nothing has been converted yet, so that this costs next to nothing.
        let span_id = RandomIdGenerator::default().new_span_id().to_bytes();
        return (None, Started { span_id, ..passed_on(parent) });
    }
    if is_suppressed {
        return (None, parent.map_or(Started::NOTHING, passed_on));
    }

    let mut context = Context::new();
    let mut parent_state = TraceState::NONE;
    if let Some(parent) = parent {
        // SAFETY: promised by the caller.
        let span_context = unsafe { convert::span_context(parent) };
        parent_state = span_context.trace_state().clone();
        context = context.with_remote_span_context(span_context);
    }
    if start.baggage.len > 0 {
        // SAFETY: promised by the caller.
        let header = unsafe { convert::text(start.baggage) };
        context = context.with_baggage(convert::baggage(&header));
    }
    // SAFETY: promised by the caller.
    let mut builder = SpanBuilder::from_name(unsafe { convert::name(start.name) });
    builder.span_kind = Some(convert::kind(start.kind));
    if start.start_time_unix_nano != 0 {
        builder.start_time = Some(convert::time(start.start_time_unix_nano));
    }
    if start.attribute_count > 0 {
        // SAFETY: promised by the caller.
        builder.attributes =
            Some(unsafe { convert::attributes(start.attributes, start.attribute_count, SPARE_ATTRIBUTES) });
    }
    if start.link_count > 0 {
        // SAFETY: promised by the caller.
        let links = unsafe { convert::array(start.links, start.link_count) };
        // SAFETY: promised by the caller.
        let links = links.iter().filter(|link| !link.is_null()).map(|&link| unsafe { convert::link(link) });
        builder = builder.with_links(links.collect());
    }
    if start.event_count > 0 {
        // SAFETY: promised by the caller.
        let events = unsafe { convert::array(start.events, start.event_count) };
        // SAFETY: promised by the caller.
        let events = events.iter().filter(|event| !event.is_null()).map(|&event| unsafe { convert::event(event) });
        builder = builder.with_events(events.collect());
    }

    let span = tracer.tracer.build_with_context(builder, &context);
    let made = span.span_context();
    if !made.is_valid()
        && let Some(parent) = parent
    {
        // The provider has been shut down.
        return (None, passed_on(parent));
    }
    let kept_flags = match parent {
        Some(parent) if made.trace_id() == TraceId::from_bytes(parent.trace_id) => parent.trace_flags & FLAG_RANDOM,
        _ if tracer.live.has_random_ids => FLAG_RANDOM,
        _ => 0,
    };
    if tracer.live.may_add && span.is_recording() {
        // SAFETY: promised by the caller.
        unsafe { additions::notify(&span, start) };
    }
    let has_trace_state = *made.trace_state() != parent_state;
    let started = Started {
        trace_id: made.trace_id().to_bytes(),
        span_id: made.span_id().to_bytes(),
        flags: made.trace_flags().to_u8() & FLAGS_KNOWN | kept_flags,
        is_recording: span.is_recording(),
        has_trace_state,
    };
    let is_needed = started.is_recording || has_trace_state;
    (is_needed.then(|| Box::new(Handle::Sdk(span))), started)
}

unsafe extern "C" fn span_trace_state(span: *mut c_void, text: *mut abi::TextBuffer) {
    if text.is_null() {
        return;
    }
    let mut header = String::new();
    let read = |span: &mut Handle| {
        // The other kind has none.
        if let Handle::Sdk(span) = span {
            header = convert::trace_state_as_sent(span.span_context().trace_state().header());
        }
    };
    // SAFETY: the host passes a span handle.
    unsafe { with_span(span, read) };
    // SAFETY: the host lends the buffer.
    unsafe { (*text).write(&header) };
}

unsafe extern "C" fn span_set_attributes(span: *mut c_void, attributes: *const abi::KeyValue, count: usize) {
    // SAFETY: the host passes a span handle, and valid attributes for this call.
    unsafe {
        with_span(span, |span| match span {
            Handle::Direct(span) => span.set_attributes(convert::array(attributes, count)),
            Handle::Sdk(span) if span.is_recording() => {
                convert::each_attribute(convert::array(attributes, count), |pair| {
                    span.set_attribute(pair);
                });
            }
            Handle::Sdk(_) => {}
        });
    }
}

unsafe extern "C" fn span_add_event(span: *mut c_void, event: *const abi::Event) {
    if event.is_null() {
        return;
    }
    // SAFETY: the host passes a span handle, and a valid event for this call.
    unsafe {
        with_span(span, |span| match span {
            Handle::Direct(span) => span.add_event(event),
            Handle::Sdk(span) if span.is_recording() => {
                let event = convert::event(event);
                span.add_event_with_timestamp(event.name, event.timestamp, event.attributes);
            }
            Handle::Sdk(_) => {}
        });
    }
}

unsafe extern "C" fn span_add_link(span: *mut c_void, link: *const abi::Link) {
    if link.is_null() {
        return;
    }
    // SAFETY: the host passes a span handle, and a valid link for this call.
    unsafe {
        with_span(span, |span| match span {
            Handle::Direct(span) => span.add_link(link),
            Handle::Sdk(span) if span.is_recording() => {
                let link = convert::link(link);
                // As for the links that a span begins with: one to nowhere is dropped.
                if link.span_context.is_valid() {
                    span.add_link(link.span_context, link.attributes);
                }
            }
            Handle::Sdk(_) => {}
        });
    }
}

unsafe extern "C" fn span_set_status(span: *mut c_void, code: u32, description: abi::Str) {
    // SAFETY: the host passes a span handle, and a valid text for this call.
    unsafe {
        with_span(span, |span| {
            if let Some(status) = convert::status(code, description) {
                match span {
                    Handle::Direct(span) => span.set_status(status),
                    Handle::Sdk(span) => span.set_status(status),
                }
            }
        });
    }
}

unsafe extern "C" fn span_update_name(span: *mut c_void, name: abi::Str) {
    // SAFETY: the host passes a span handle, and a valid name for this call.
    unsafe {
        with_span(span, |span| match span {
            Handle::Direct(span) => span.update_name(name.as_bytes()),
            Handle::Sdk(span) => span.update_name(convert::name(name)),
        });
    }
}

unsafe extern "C" fn span_end(span: *mut c_void, end_time_unix_nano: u64) {
    // SAFETY: the host passes a span handle.
    unsafe { with_span(span, |span| span.end(end_time_unix_nano)) };
}

unsafe extern "C" fn span_release(span: *mut c_void) {
    if span.is_null() {
        return;
    }
    // SAFETY: a span handle is a box that `span_start` made, and it is given back once.
    caught((), || unsafe { Box::from_raw(span.cast::<Handle>()) }.release(0));
}

unsafe extern "C" fn span_end_and_release(span: *mut c_void, end_time_unix_nano: u64) {
    if span.is_null() {
        return;
    }
    // SAFETY: as for `span_release`.
    caught((), || unsafe { Box::from_raw(span.cast::<Handle>()) }.release(end_time_unix_nano));
}

unsafe extern "C" fn commit(data: *mut c_void, error: *mut abi::TextBuffer) -> u32 {
    // SAFETY: the host passes the table's own `data`.
    let live = unsafe { live(data) };
    // SAFETY: the host lends the buffer.
    unsafe { report(caught_outcome(|| live.commit()), error) }
}

unsafe extern "C" fn lost(data: *mut c_void) -> u64 {
    // SAFETY: the host passes the table's own `data`.
    unsafe { live(data) }.lost.load(Ordering::Relaxed)
}

unsafe extern "C" fn flush(data: *mut c_void, timeout_ms: u64, error: *mut abi::TextBuffer) -> u32 {
    // SAFETY: the host passes the table's own `data`.
    let live = unsafe { live(data) };
    let outcome = run_within(live, Duration::from_millis(timeout_ms), None, Live::flush);
    // SAFETY: the host lends the buffer.
    unsafe { report(outcome, error) }
}

unsafe extern "C" fn hand_back(data: *mut c_void, timeout_ms: u64, error: *mut abi::TextBuffer) -> u32 {
    // SAFETY: the host passes the table's own `data`.
    let live = unsafe { live(data) };
    let timeout = Duration::from_millis(timeout_ms).min(TIMEOUT_MAX);
    // SAFETY: the host lends the buffer.
    unsafe { report(caught_outcome(|| live.hand_back(timeout)), error) }
}

unsafe extern "C" fn shutdown(data: *mut c_void, timeout_ms: u64, error: *mut abi::TextBuffer) -> u32 {
    // SAFETY: the host passes the table's own `data`.
    let live = unsafe { live(data) };
    let patience: fn(&Live, Instant) -> Option<Instant> = Live::patience;
    let outcome = run_within(live, Duration::from_millis(timeout_ms), Some(patience), Live::shutdown);
    // SAFETY: the host lends the buffer.
    unsafe { report(outcome, error) }
}

unsafe extern "C" fn listen(data: *mut c_void, listener: *const abi::DeliveryListener) -> u32 {
    if listener.is_null() {
        return abi::STATUS_FAILED;
    }
    caught(abi::STATUS_PANICKED, || {
        let mut space = MaybeUninit::uninit();
        // SAFETY: the host passes the table's own `data`, and a listener that lives as long as the process.
        let listens = unsafe {
            let live = live(data);
            live.delivery.listen(convert::sized(listener, &mut space), can_hand_back(&live.processors))
        };
        if listens { abi::STATUS_OK } else { abi::STATUS_FAILED }
    })
}

unsafe extern "C" fn sink_export(
    data: *mut c_void,
    spans: *const abi::FinishedSpans,
    error: *mut abi::TextBuffer,
) -> u32 {
    // SAFETY: the host passes the table's own `data`.
    let live = unsafe { live(data) };
    let take = || {
        let mut space = MaybeUninit::uninit();
        // SAFETY: the host lends the spans for the call.
        let (spans, request) = unsafe {
            let spans = convert::sized(spans, &mut space);
            (spans, spans.request.as_bytes())
        };
        let reply = Reply { data: spans.data, host_delivered: spans.host_delivered, host_refused: spans.host_refused };
        live.sink.take(&live.processors, request, spans.wanted, reply)
    };
    // SAFETY: the host lends the buffer.
    unsafe { report(caught_outcome(take), error) }
}

unsafe extern "C" fn log_export(data: *mut c_void, request: abi::Bytes, error: *mut abi::TextBuffer) -> u32 {
    // SAFETY: the host passes the table's own `data`.
    let live = unsafe { live(data) };
    // SAFETY: the host lends the bytes for the call.
    let request = unsafe { request.as_bytes() };
    let take = || {
        let Some(logs) = &live.logs else { return Ok(()) };
        logs::emit(logs, request).map_err(|reason| (abi::STATUS_FAILED, reason))
    };
    // SAFETY: the host lends the buffer.
    unsafe { report(caught_outcome(take), error) }
}

impl Live {
    fn commit(&self) -> Outcome {
        if !self.processors.iter().any(|processor| processor.is_durable()) {
            return Err((abi::STATUS_NOT_DURABLE, String::new()));
        }
        let errors: Vec<String> = self.processors.iter().filter_map(|processor| processor.commit().err()).collect();
        let lost: Vec<_> = self.processors.iter().filter_map(|processor| processor.take_lost()).collect();
        if lost.is_empty() {
            return if errors.is_empty() { Ok(()) } else { Err((abi::STATUS_FAILED, errors.join("; "))) };
        }
        self.lost.fetch_add(lost.iter().map(|lost| lost.spans).sum(), Ordering::Relaxed);
        let (status, mut reasons) =
            if errors.is_empty() { (abi::STATUS_LOST, lost) } else { (abi::STATUS_FAILED, Vec::new()) };
        reasons.dedup_by(|one, other| one.reason == other.reason);
        let reasons: Vec<_> = reasons.into_iter().map(|lost| lost.reason).chain(errors).collect();
        Err((status, reasons.join("; ")))
    }

    fn flush(&self, timeout: Duration) -> Outcome {
        if self.is_shut_down.load(Ordering::Acquire) {
            return Err((abi::STATUS_ALREADY, String::new()));
        }
        if self.processors.is_empty() {
            return outcome_of(self.provider.force_flush());
        }
        // Not through the provider, which would put all errors into one text.
        let flushed = self.processors.iter().map(|processor| processor.force_flush());
        let logs = self.logs.as_ref().map_or(Ok(()), |logs| outcome_of(logs.force_flush()));
        let outcome = flushed.map(outcome_of).fold(logs, worse);
        // Whoever waits has gone by then, when it takes longer.
        self.sink.flush(timeout);
        outcome
    }

    /// Returns the time until which a shutdown that began `then` waits for answers. None for as long as it may, because there are deliveries
    /// of which nobody tells.
    fn patience(&self, then: Instant) -> Option<Instant> {
        if !self.delivery.has_routes() || !can_hand_back(&self.processors) {
            return None;
        }
        let pulses = self.processors.iter().filter_map(|processor| processor.pulse());
        let until = pulses.map(|pulse| {
            // One that has kept an export waiting for longer than that is not going to answer the next.
            let since = pulse.busy_since.unwrap_or_else(|| pulse.last_answer.map_or(then, |last| last.max(then)));
            (since + (pulse.slowest * 2).max(PATIENCE_MIN)).max(then + NOTICE_TIME)
        });
        until.max()
    }

    /// Leaves to the host what is not delivered, and waits for what is under way no longer than `timeout`.
    fn hand_back(&self, timeout: Duration) -> Outcome {
        let was_shut_down = self.is_shut_down.swap(true, Ordering::AcqRel);
        let deadline = Instant::now() + timeout;
        self.delivery.hand_back();
        self.notices.iter().for_each(|notice| caught((), || notice.0()));
        self.sink.give_back();
        let durable = self.processors.iter().filter(|processor| processor.is_durable());
        let ended = durable.map(|processor| processor.shutdown_with_timeout(DURABLE_TIME));
        let outcome = ended.map(outcome_of).fold(Ok(()), worse);
        self.end_logs(timeout);
        let are_idle = self.processors.iter().all(|processor| processor.wait_until_idle(deadline));
        match outcome {
            _ if was_shut_down => Err((abi::STATUS_ALREADY, String::new())),
            Ok(()) if !are_idle => Err((abi::STATUS_TIMED_OUT, "an export was under way still".to_owned())),
            outcome => outcome,
        }
    }

    /// Delivers the log records that wait. Those that are not delivered in time are in their file, and a second end does nothing.
    fn end_logs(&self, timeout: Duration) {
        if let Some(logs) = &self.logs {
            let _ = logs.shutdown_with_timeout(timeout);
        }
    }

    fn shutdown(&self, timeout: Duration) -> Outcome {
        let was_shut_down = self.is_shut_down.swap(true, Ordering::AcqRel);
        self.notices.iter().for_each(|notice| caught((), || notice.0()));
        // The process's own spans come after those of others, which whoever gave them keeps until they are delivered.
        self.sink.shut_down(timeout / 2);
        self.end_logs(timeout / 2);
        let outcome = outcome_of(self.provider.shutdown_with_timeout(timeout));
        match outcome {
            _ if was_shut_down => Err((abi::STATUS_ALREADY, String::new())),
            Err((abi::STATUS_FAILED, text)) if self.processors.iter().any(|it| it.shutdown_timed_out()) => {
                Err((abi::STATUS_TIMED_OUT, text))
            }
            outcome => outcome,
        }
    }
}

fn outcome_of(result: OTelSdkResult) -> Outcome {
    result.map_err(|error| match error {
        OTelSdkError::AlreadyShutdown => (abi::STATUS_ALREADY, String::new()),
        OTelSdkError::Timeout(after) => (abi::STATUS_TIMED_OUT, format!("it was not done after {after:?}")),
        OTelSdkError::InternalFailure(text) => (abi::STATUS_FAILED, text),
    })
}

/// Returns the outcome to report of two: a failure before a timeout before anything else.
fn worse(first: Outcome, second: Outcome) -> Outcome {
    let rank = |outcome: &Outcome| match outcome {
        Ok(()) => 0,
        Err((abi::STATUS_ALREADY, _)) => 1,
        Err((abi::STATUS_TIMED_OUT, _)) => 2,
        Err(_) => 3,
    };
    if rank(&second) > rank(&first) { second } else { first }
}

fn caught_outcome(work: impl FnOnce() -> Outcome) -> Outcome {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|payload| Err((abi::STATUS_PANICKED, format!("it panicked: {}", panic_text(payload)))))
}

/// Runs `work` on a thread of its own and waits no longer than `timeout`, because processors keep to times of their own (a
/// batch processor's flush takes up to 5 s, whatever was asked), nor than `patience` says, given when the wait began. Work that is late
/// goes on without being waited for.
fn run_within(
    live: &'static Live,
    timeout: Duration,
    patience: Option<fn(&Live, Instant) -> Option<Instant>>,
    work: fn(&'static Live, Duration) -> Outcome,
) -> Outcome {
    let timeout = timeout.min(TIMEOUT_MAX);
    let (done_tx, done_rx) = sync_channel(1);
    let thread = std::thread::Builder::new().name("tracer-flush".to_owned()).spawn(move || {
        // Nobody listens any more when it is late.
        let _ = done_tx.send(caught_outcome(|| work(live, timeout)));
    });
    if thread.is_err() {
        // A process that can have no thread: late is better than not at all.
        return caught_outcome(|| work(live, timeout));
    }
    let began = Instant::now();
    let deadline = began + timeout;
    loop {
        // It moves on with each answer.
        let until = patience.and_then(|patience| patience(live, began)).unwrap_or(deadline).min(deadline);
        match done_rx.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(outcome) => return outcome,
            Err(RecvTimeoutError::Disconnected) => {
                return Err((abi::STATUS_PANICKED, "its thread ended early".to_owned()));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        let again = patience.and_then(|patience| patience(live, began)).unwrap_or(deadline).min(deadline);
        if again <= Instant::now() {
            return Err((abi::STATUS_TIMED_OUT, format!("it was not done after {:?}", again.max(began) - began)));
        }
    }
}

/// # Safety
///
/// `error` is null or a buffer that may be written to.
unsafe fn report(outcome: Outcome, error: *mut abi::TextBuffer) -> u32 {
    let (status, text) = outcome.err().unwrap_or((abi::STATUS_OK, String::new()));
    if !error.is_null() {
        // SAFETY: promised by the caller.
        unsafe { (*error).write(&text) };
    }
    status
}
