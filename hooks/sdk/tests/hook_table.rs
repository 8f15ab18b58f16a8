//! Hooks in this process, driven through the raw table as the host drives them.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::c_void;
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry::baggage::BaggageExt;
use opentelemetry::trace::{Link, Span as _, SpanId, SpanKind, Status, TraceContextExt, TraceId};
use opentelemetry::{Array, Context, KeyValue, Value};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{
    IdGenerator, Sampler, SamplingDecision, SamplingResult, SdkTracerProvider, ShouldSample, Span, SpanData,
    SpanExporter, SpanProcessor,
};
use tracer_abi as abi;
use tracer_sdk::hook::{DurableProcessor, IntoTracing, Tracing, TracingBuilder, export};

// ---- the hook's side -------------------------------------------------------------------------------------------------

/// Keeps what it is given.
#[derive(Clone, Debug, Default)]
struct Capture {
    ended: Arc<Mutex<Vec<SpanData>>>,
    resource: Arc<Mutex<Option<Resource>>>,
    commits: Arc<AtomicU64>,
    fails: Arc<AtomicBool>,
}

impl Capture {
    fn take(&self) -> Vec<SpanData> {
        std::mem::take(&mut self.ended.lock().unwrap())
    }

    #[track_caller]
    fn take_one(&self) -> SpanData {
        let mut spans = self.take();
        assert_eq!(spans.len(), 1, "{spans:?}");
        spans.remove(0)
    }
}

impl SpanProcessor for Capture {
    fn on_start(&self, span: &mut Span, cx: &Context) {
        if let Some(value) = cx.baggage().get("tenant") {
            span.set_attribute(KeyValue::new("tenant", value.clone()));
        }
    }

    fn on_end(&self, span: SpanData) {
        self.ended.lock().unwrap().push(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        if self.fails.load(Ordering::Relaxed) { Err(OTelSdkError::InternalFailure("no room".into())) } else { Ok(()) }
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        SpanProcessor::force_flush(self)
    }

    fn set_resource(&mut self, resource: &Resource) {
        *self.resource.lock().unwrap() = Some(resource.clone());
    }
}

impl DurableProcessor for Capture {
    fn commit(&self) -> Result<(), String> {
        self.commits.fetch_add(1, Ordering::Relaxed);
        if self.fails.load(Ordering::Relaxed) { Err("disk full".into()) } else { Ok(()) }
    }
}

/// The same as an exporter.
impl SpanExporter for Capture {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.ended.lock().unwrap().extend(batch);
        Ok(())
    }
}

// ---- the host's side -------------------------------------------------------------------------------------------------

/// The table of a hook, with the names of its functions.
#[derive(Clone, Copy)]
struct Table(&'static abi::Tracing);

type Setup = Box<dyn FnOnce() -> Tracing>;

thread_local! {
    static SETUP: RefCell<Option<Setup>> = const { RefCell::new(None) };
}

impl Table {
    /// Runs a hook that returns what `setup` returns. A hook is a plain function, so the closure goes by the side.
    fn of<R: IntoTracing>(setup: impl FnOnce() -> R + 'static) -> Table {
        fn hook() -> Tracing {
            SETUP.take().expect("set below")()
        }
        SETUP.set(Some(Box::new(|| setup().into_tracing().expect("the hook succeeds"))));
        let table = export(hook).expect("the hook succeeds");
        // SAFETY: a table lives as long as the process.
        Table(unsafe { &*table })
    }

    fn built(build: impl FnOnce(TracingBuilder) -> TracingBuilder + 'static) -> Table {
        Table::of(|| build(Tracing::builder()).build())
    }

    fn tracer(self, name: &str) -> Tracer {
        let scope = abi::Scope {
            size: size_of::<abi::Scope>(),
            name: abi::Str::new(name),
            version: abi::Str::new("1.2"),
            schema_url: abi::Str::new("https://schema"),
            attributes: ptr::null(),
            attribute_count: 0,
        };
        // SAFETY: `scope` is whole and outlives the call.
        let handle = unsafe { self.0.tracer.unwrap()(self.0.data, &raw const scope) };
        assert!(!handle.is_null());
        Tracer { table: self, handle }
    }

    fn with_text(call: impl FnOnce(*mut abi::TextBuffer) -> u32) -> (u32, String) {
        let mut bytes = [0; 512];
        let mut buffer = abi::TextBuffer::new(&mut bytes);
        let status = call(&raw mut buffer);
        let filled = buffer.filled();
        (status, String::from_utf8_lossy(&bytes[..filled]).into_owned())
    }

    fn commit(self) -> (u32, String) {
        // SAFETY: `data` is the table's.
        Table::with_text(|error| unsafe { self.0.commit.unwrap()(self.0.data, error) })
    }

    fn flush(self, timeout_ms: u64) -> (u32, String) {
        // SAFETY: `data` is the table's.
        Table::with_text(|error| unsafe { self.0.flush.unwrap()(self.0.data, timeout_ms, error) })
    }

    fn shutdown(self, timeout_ms: u64) -> (u32, String) {
        // SAFETY: `data` is the table's.
        Table::with_text(|error| unsafe { self.0.shutdown.unwrap()(self.0.data, timeout_ms, error) })
    }

    fn hand_back(self, timeout_ms: u64) -> (u32, String) {
        // SAFETY: `data` is the table's.
        Table::with_text(|error| unsafe { self.0.hand_back.unwrap()(self.0.data, timeout_ms, error) })
    }

    /// Makes the table tell `told` of its deliveries.
    fn listen(self, told: &'static Told, quiet_ms: u64) {
        let listener = Box::leak(Box::new(abi::DeliveryListener {
            size: size_of::<abi::DeliveryListener>(),
            data: ptr::from_ref(told).cast_mut().cast(),
            in_flight_max: 0,
            host_delivered: Some(host_delivered),
            quiet_ms,
            host_pause: None,
            host_pause_left: None,
            host_log_records_given_up: None,
        }));
        // SAFETY: `data` is the table's, and the listener lives as long as the process.
        assert_eq!(unsafe { self.0.listen.unwrap()(self.0.data, listener) }, abi::STATUS_OK);
    }

    fn resource(self) -> Vec<(String, abi::Value)> {
        // SAFETY: the table says how many there are.
        let pairs = unsafe { std::slice::from_raw_parts(self.0.resource, self.0.resource_count) };
        pairs.iter().map(|pair| (text(pair.key).into_owned(), pair.value)).collect()
    }
}

fn text<'a>(text: abi::Str) -> Cow<'a, str> {
    // SAFETY: only used for texts that outlive the test's use of them.
    String::from_utf8_lossy(unsafe { text.as_bytes() })
}

struct Tracer {
    table: Table,
    handle: *mut c_void,
}

// SAFETY: the contract lets a tracer handle be used from any thread.
unsafe impl Sync for Tracer {}
// SAFETY: as above.
unsafe impl Send for Tracer {}

impl Drop for Tracer {
    fn drop(&mut self) {
        // SAFETY: the handle is given back once.
        unsafe { self.table.0.tracer_release.unwrap()(self.handle) };
    }
}

fn start(name: &str) -> abi::SpanStart {
    abi::SpanStart::new(abi::Str { ptr: name.as_ptr(), len: name.len() }, abi::SPAN_KIND_INTERNAL)
}

fn context(flags: u8, trace_state: &'static str) -> abi::SpanContext {
    abi::SpanContext {
        trace_id: [0xab; 16],
        span_id: [0xcd; 8],
        trace_flags: flags,
        is_remote: 1,
        trace_state: abi::Str::new(trace_state),
        ..abi::SpanContext::INVALID
    }
}

impl Tracer {
    fn start(&self, start: &abi::SpanStart) -> Handle {
        let mut said = abi::SpanStarted {
            size: size_of::<abi::SpanStarted>(),
            trace_id: [9; 16],
            span_id: [9; 8],
            trace_flags: 9,
            is_recording: 9,
            has_trace_state: 9,
        };
        // SAFETY: both structs outlive the call.
        let handle = unsafe { self.table.0.span_start.unwrap()(self.handle, start, &raw mut said) };
        Handle { table: self.table.0, handle, said }
    }

    fn start_named(&self, name: &str) -> Handle {
        self.start(&start(name))
    }

    fn start_below(&self, parent: &abi::SpanContext) -> Handle {
        self.start(&abi::SpanStart { parent, ..start("child") })
    }
}

/// A span handle; released when dropped.
struct Handle {
    table: &'static abi::Tracing,
    handle: *mut c_void,
    said: abi::SpanStarted,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle is given back once.
        unsafe { self.table.span_release.unwrap()(self.handle) };
    }
}

fn pair(key: &'static str, tag: u32, as_: abi::ValueUnion) -> abi::KeyValue {
    abi::KeyValue { key: abi::Str::new(key), value: abi::Value { tag, as_ } }
}

fn int(key: &'static str, value: i64) -> abi::KeyValue {
    pair(key, abi::VALUE_I64, abi::ValueUnion { i64_: value })
}

fn elements<T>(elements: &'static [T]) -> abi::ValueUnion {
    abi::ValueUnion { array: abi::Array { ptr: elements.as_ptr().cast(), count: elements.len() } }
}

impl Handle {
    // SAFETY, for all of these: the handle is valid until it is dropped, and the arguments outlive the calls.

    fn set(&self, attributes: &[abi::KeyValue]) {
        // SAFETY: see above.
        unsafe { self.table.span_set_attributes.unwrap()(self.handle, attributes.as_ptr(), attributes.len()) };
    }

    fn end(&self, unix_nano: u64) {
        // SAFETY: see above.
        unsafe { self.table.span_end.unwrap()(self.handle, unix_nano) };
    }

    fn end_and_release(self, unix_nano: u64) {
        let span = std::mem::ManuallyDrop::new(self);
        // SAFETY: the handle is given back once.
        unsafe { span.table.span_end_and_release.unwrap()(span.handle, unix_nano) };
    }

    fn status(&self, code: u32, description: &str) {
        let description = abi::Str { ptr: description.as_ptr(), len: description.len() };
        // SAFETY: see above.
        unsafe { self.table.span_set_status.unwrap()(self.handle, code, description) };
    }

    fn rename(&self, name: &'static str) {
        // SAFETY: see above.
        unsafe { self.table.span_update_name.unwrap()(self.handle, abi::Str::new(name)) };
    }

    fn event(&self, event: &abi::Event) {
        // SAFETY: see above.
        unsafe { self.table.span_add_event.unwrap()(self.handle, event) };
    }

    fn link(&self, link: &abi::Link) {
        // SAFETY: see above.
        unsafe { self.table.span_add_link.unwrap()(self.handle, link) };
    }

    fn trace_state(&self) -> String {
        Table::with_text(|text| {
            // SAFETY: see above.
            unsafe { self.table.span_trace_state.unwrap()(self.handle, text) };
            0
        })
        .1
    }

    fn use_every_function(&self) {
        self.set(&[int("late", 1)]);
        self.rename("late");
        self.status(abi::SPAN_STATUS_ERROR, "late");
        self.event(&event("late", 0, &[]));
        self.link(&link(context(1, ""), &[]));
        self.trace_state();
        self.end(0);
    }
}

fn event(name: &'static str, time_unix_nano: u64, attributes: &[abi::KeyValue]) -> abi::Event {
    abi::Event {
        size: size_of::<abi::Event>(),
        name: abi::Str::new(name),
        time_unix_nano,
        attributes: attributes.as_ptr(),
        attribute_count: attributes.len(),
    }
}

fn link(context: abi::SpanContext, attributes: &[abi::KeyValue]) -> abi::Link {
    let (attributes, attribute_count) = (attributes.as_ptr(), attributes.len());
    abi::Link { size: size_of::<abi::Link>(), context, attributes, attribute_count }
}

fn at(unix_nano: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(unix_nano)
}

// ---- the tests -------------------------------------------------------------------------------------------------------

#[test]
fn everything_that_is_said_of_a_span_arrives() {
    let capture = Capture::default();
    let processor = capture.clone();
    let table = Table::built(|tracing| tracing.with_span_processor(processor).with_sampler(Sampler::AlwaysOn));
    let tracer = table.tracer("scope");

    const TEXTS: &[abi::Str] = &[abi::Str::new("x"), abi::Str::new("y")];
    let attributes = [
        pair("bool", abi::VALUE_BOOL, abi::ValueUnion { bool_: 1 }),
        int("int", -7),
        pair("float", abi::VALUE_F64, abi::ValueUnion { f64_: 0.5 }),
        pair("text", abi::VALUE_STR, abi::ValueUnion { str_: abi::Str::new("t") }),
        pair("unknown", 99, abi::ValueUnion { i64_: 0 }),
        pair("bools", abi::VALUE_BOOL_ARRAY, elements(&[1_u8, 0])),
        pair("ints", abi::VALUE_I64_ARRAY, elements(&[1_i64, 2])),
        pair("floats", abi::VALUE_F64_ARRAY, elements(&[1.5_f64])),
        pair("texts", abi::VALUE_STR_ARRAY, elements(TEXTS)),
        pair("empty", abi::VALUE_STR_ARRAY, abi::ValueUnion { array: abi::Array { ptr: ptr::null(), count: 0 } }),
    ];
    let first_link = link(context(1, "k=v"), &attributes[1..2]);
    let nowhere = link(abi::SpanContext::INVALID, &[]);
    let first_event = event("begun", 5, &[]);
    let parent = context(1, "rojo=1,congo=2");
    let span = tracer.start(&abi::SpanStart {
        kind: abi::SPAN_KIND_CONSUMER,
        start_time_unix_nano: 1_000,
        parent: &parent,
        attributes: attributes.as_ptr(),
        attribute_count: attributes.len(),
        links: [&raw const first_link, ptr::null(), &raw const nowhere].as_ptr(),
        link_count: 3,
        events: [&raw const first_event].as_ptr(),
        event_count: 1,
        ..start("before")
    });
    assert_eq!(span.said.trace_id, parent.trace_id);
    assert_ne!(span.said.span_id, [0; 8]);
    assert_eq!((span.said.trace_flags, span.said.is_recording, span.said.has_trace_state), (1, 1, 0));
    assert_eq!(span.trace_state(), "rojo=1,congo=2");

    span.rename("after");
    span.set(&[int("late", 1), int("int", 8), pair("unknown", 0, abi::ValueUnion { i64_: 0 })]);
    span.event(&event("moment", 1_500, &attributes[3..4]));
    span.link(&link(context(0, ""), &[]));
    span.link(&nowhere);
    span.status(77, "unknown codes are ignored");
    span.status(abi::SPAN_STATUS_ERROR, "broke");
    span.end(2_000);

    let data = capture.take_one();
    assert_eq!(data.name, "after");
    assert_eq!(data.span_kind, SpanKind::Consumer);
    assert_eq!(data.parent_span_id, SpanId::from_bytes([0xcd; 8]));
    assert!(data.parent_span_is_remote);
    assert_eq!(data.span_context.trace_id(), TraceId::from_bytes([0xab; 16]));
    assert_eq!(data.span_context.span_id().to_bytes(), span.said.span_id);
    assert_eq!(data.span_context.trace_state().header(), "rojo=1,congo=2");
    assert_eq!((data.start_time, data.end_time), (at(1_000), at(2_000)));
    assert_eq!(data.status, Status::error("broke"));
    let expected = [
        KeyValue::new("bool", true),
        KeyValue::new("int", 8),
        KeyValue::new("float", 0.5),
        KeyValue::new("text", "t"),
        KeyValue::new("bools", Value::Array(Array::Bool(vec![true, false]))),
        KeyValue::new("ints", Value::Array(Array::I64(vec![1, 2]))),
        KeyValue::new("floats", Value::Array(Array::F64(vec![1.5]))),
        KeyValue::new("texts", Value::Array(Array::String(vec!["x".into(), "y".into()]))),
        KeyValue::new("empty", Value::Array(Array::String(vec![]))),
        KeyValue::new("late", 1),
    ];
    assert_eq!(data.attributes, expected);
    let events: Vec<_> = data.events.iter().map(|event| (event.name.as_ref(), event.timestamp)).collect();
    assert_eq!(events, [("begun", at(5)), ("moment", at(1_500))]);
    assert_eq!(data.events[1].attributes, [KeyValue::new("text", "t")]);
    let links: Vec<&Link> = data.links.iter().collect();
    assert_eq!(links.len(), 2);
    assert_eq!(links[0].span_context.trace_state().header(), "k=v");
    assert_eq!(links[0].attributes, [KeyValue::new("int", -7)]);
    assert!(links[0].span_context.is_remote() && links[0].span_context.is_sampled());
    assert!(!links[1].span_context.is_sampled());
    let scope = &data.instrumentation_scope;
    assert_eq!((scope.name(), scope.version(), scope.schema_url()), ("scope", Some("1.2"), Some("https://schema")));
}

#[test]
fn a_span_without_a_parent_begins_a_trace_at_the_present() {
    let capture = Capture::default();
    let processor = capture.clone();
    let tracer = Table::built(|tracing| tracing.with_span_processor(processor)).tracer("scope");
    let before = SystemTime::now();
    let one = tracer.start_named("one");
    let invalid = tracer.start_below(&abi::SpanContext::INVALID);
    assert_ne!(one.said.trace_id, [0; 16]);
    assert_ne!(invalid.said.trace_id, one.said.trace_id);
    one.end(0);
    drop(invalid);
    let spans = capture.take();
    assert_eq!(spans.len(), 2);
    for span in spans {
        assert_eq!(span.parent_span_id, SpanId::INVALID);
        assert!(before <= span.start_time && span.start_time <= span.end_time && span.end_time <= SystemTime::now());
    }
}

#[test]
fn a_local_parent_is_not_taken_for_a_remote_one() {
    let capture = Capture::default();
    let processor = capture.clone();
    let tracer = Table::built(|tracing| tracing.with_span_processor(processor)).tracer("scope");
    drop(tracer.start_below(&abi::SpanContext { is_remote: 0, ..context(1, "") }));
    assert!(!capture.take_one().parent_span_is_remote);
}

#[test]
fn releasing_ends_a_span_and_ending_twice_ends_it_once() {
    let capture = Capture::default();
    let processor = capture.clone();
    let tracer = Table::built(|tracing| tracing.with_span_processor(processor)).tracer("scope");
    drop(tracer.start_named("released"));
    assert_eq!(capture.take_one().name, "released");

    let span = tracer.start_named("ended");
    span.end(5);
    span.end(9);
    span.use_every_function();
    drop(span);
    let data = capture.take_one();
    assert_eq!((data.name.as_ref(), data.end_time), ("ended", at(5)));
    assert!(data.attributes.is_empty() && data.events.is_empty() && data.links.is_empty());
}

#[test]
fn a_span_is_ended_and_released_in_one_call() {
    let capture = Capture::default();
    let processor = capture.clone();
    let tracer = Table::built(|tracing| tracing.with_span_processor(processor)).tracer("scope");
    tracer.start_named("then").end_and_release(5);
    assert_eq!(capture.take_one().end_time, at(5));
    let before = SystemTime::now();
    tracer.start_named("now").end_and_release(0);
    let ended = capture.take_one().end_time;
    assert!(before <= ended && ended <= SystemTime::now());
    let ended = tracer.start_named("ended before");
    ended.end(6);
    ended.end_and_release(7);
    assert_eq!(capture.take_one().end_time, at(6));
}

#[test]
fn baggage_reaches_span_processors() {
    let capture = Capture::default();
    let processor = capture.clone();
    let tracer = Table::built(|tracing| tracing.with_span_processor(processor)).tracer("scope");
    drop(tracer.start(&abi::SpanStart { baggage: abi::Str::new("tenant=caf%C3%A9;p=1,x=y"), ..start("s") }));
    assert_eq!(capture.take_one().attributes, [KeyValue::new("tenant", "café")]);
}

#[test]
fn an_unsampled_parent_costs_no_handle_and_keeps_its_trace() {
    let capture = Capture::default();
    let processor = capture.clone();
    let tracer = Table::built(|tracing| tracing.with_span_processor(processor)).tracer("scope");
    let parent = context(0x02, "k=v");
    let span = tracer.start_below(&parent);
    assert!(span.handle.is_null());
    assert_eq!(span.said.trace_id, parent.trace_id);
    assert!(span.said.span_id != [0; 8] && span.said.span_id != parent.span_id);
    assert_eq!((span.said.trace_flags, span.said.is_recording, span.said.has_trace_state), (0x02, 0, 0));
    span.use_every_function();
    drop(span);
    assert!(capture.take().is_empty());
}

#[derive(Clone, Debug)]
struct Deciding {
    decision: SamplingDecision,
    trace_state: Option<(&'static str, &'static str)>,
}

impl ShouldSample for Deciding {
    fn should_sample(
        &self,
        parent_context: Option<&Context>,
        _: TraceId,
        _: &str,
        _: &SpanKind,
        _: &[KeyValue],
        _: &[Link],
    ) -> SamplingResult {
        let parent = parent_context.expect("the SDK passes one").span().span_context().trace_state().clone();
        let trace_state = match self.trace_state {
            Some((key, value)) => parent.insert(key, value).expect("the test's key is valid"),
            None => parent,
        };
        let attributes = vec![KeyValue::new("sampler", "mine")];
        SamplingResult { decision: self.decision.clone(), attributes, trace_state }
    }
}

#[test]
fn a_hooks_own_sampler_decides_and_may_write_the_tracestate() {
    let capture = Capture::default();
    let processor = capture.clone();
    let sampler = Deciding { decision: SamplingDecision::RecordAndSample, trace_state: Some(("mine", "1")) };
    let table = Table::built(|tracing| tracing.with_span_processor(processor).with_sampler(sampler));
    let tracer = table.tracer("scope");
    // Its parent is not sampled, and still the sampler is asked.
    let span = tracer.start_below(&context(0x02, "rojo=1"));
    assert_eq!((span.said.trace_flags, span.said.is_recording, span.said.has_trace_state), (0x03, 1, 1));
    assert_eq!(span.trace_state(), "mine=1,rojo=1");
    drop(span);
    let data = capture.take_one();
    assert_eq!(data.attributes, [KeyValue::new("sampler", "mine")]);
    assert_eq!(data.span_context.trace_state().header(), "mine=1,rojo=1");
}

#[test]
fn a_dropped_span_has_a_handle_only_for_a_tracestate_of_its_own() {
    for (trace_state, has_one) in [(None, false), (Some(("mine", "1")), true)] {
        let capture = Capture::default();
        let processor = capture.clone();
        let sampler = Deciding { decision: SamplingDecision::Drop, trace_state };
        let table = Table::built(|tracing| tracing.with_span_processor(processor).with_sampler(sampler));
        let span = table.tracer("scope").start_below(&context(0x03, "rojo=1"));
        assert_eq!(span.handle.is_null(), !has_one);
        assert_eq!((span.said.trace_flags, span.said.is_recording), (0x02, 0));
        assert_eq!(span.said.has_trace_state, u8::from(has_one));
        assert_eq!(span.trace_state(), if has_one { "mine=1,rojo=1" } else { "" });
        span.use_every_function();
        drop(span);
        assert!(capture.take().is_empty());
    }
}

#[test]
fn a_tracestate_that_the_sdk_refuses_is_not_reported_as_changed() {
    let table = Table::built(|tracing| tracing.with_span_processor(Capture::default()));
    let span = table.tracer("scope").start_below(&context(1, "averylongtenantname@averylongsystem=1"));
    assert_eq!((span.said.is_recording, span.said.has_trace_state), (1, 0));
}

#[test]
fn an_exported_root_span_says_that_its_trace_id_is_random() {
    #[derive(Debug)]
    struct Counting;
    impl opentelemetry_sdk::trace::IdGenerator for Counting {
        fn new_trace_id(&self) -> TraceId {
            TraceId::from(7)
        }
        fn new_span_id(&self) -> SpanId {
            SpanId::from(8)
        }
    }
    let exported = |has_random_ids: bool| {
        let capture = Capture::default();
        let exporter = capture.clone();
        let table = Table::built(move |tracing| {
            let tracing = tracing.with_simple_exporter(exporter);
            if has_random_ids { tracing } else { tracing.with_id_generator(Counting) }
        });
        let root = table.tracer("scope").start_named("root");
        let said = root.said.trace_flags;
        root.end(0);
        table.tracer("scope").start_below(&context(1, "")).end(0);
        assert_eq!(table.flush(60_000), (abi::STATUS_OK, String::new()));
        let flags = capture.take().iter().map(|span| span.span_context.trace_flags().to_u8()).collect::<Vec<_>>();
        (said, flags)
    };
    assert_eq!(exported(true), (0x03, vec![0x03, 0x01]));
    assert_eq!(exported(false), (0x01, vec![0x01, 0x01]));
}

#[test]
fn a_span_that_is_only_recorded_is_not_exported() {
    let exporters = [Capture::default(), Capture::default()];
    let [simple, batch] = exporters.clone();
    let sampler = Deciding { decision: SamplingDecision::RecordOnly, trace_state: None };
    let table =
        Table::built(|tracing| tracing.with_simple_exporter(simple).with_batch_exporter(batch).with_sampler(sampler));
    let span = table.tracer("scope").start_named("recorded");
    assert_eq!((span.said.trace_flags, span.said.is_recording), (2, 1));
    span.end(0);
    assert_eq!(table.flush(60_000), (abi::STATUS_OK, String::new()));
    assert!(exporters.iter().all(|exporter| exporter.take().is_empty()));
}

#[test]
fn exporters_get_what_is_sampled() {
    let exporters = [Capture::default(), Capture::default()];
    let [simple, batch] = exporters.clone();
    let table = Table::built(|tracing| tracing.with_simple_exporter(simple).with_batch_exporter(batch));
    table.tracer("scope").start_named("exported").end(0);
    assert_eq!(table.flush(60_000), (abi::STATUS_OK, String::new()));
    assert!(exporters.iter().all(|exporter| exporter.take_one().name == "exported"));
    assert_eq!(text(table.0.description), "Capture, Capture in batches");
}

#[derive(Debug)]
struct Counting(AtomicU64);

impl IdGenerator for Counting {
    fn new_trace_id(&self) -> TraceId {
        TraceId::from(u128::from(self.0.fetch_add(1, Ordering::Relaxed)))
    }

    fn new_span_id(&self) -> SpanId {
        SpanId::from(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

#[test]
fn a_hooks_own_ids_are_used_for_dropped_spans_too() {
    let table = Table::built(move |tracing| {
        tracing.with_span_processor(Capture::default()).with_id_generator(Counting(AtomicU64::new(1)))
    });
    let tracer = table.tracer("scope");
    let span = tracer.start_named("first");
    assert_eq!((span.said.span_id, span.said.trace_id), (1_u64.to_be_bytes(), 2_u128.to_be_bytes()));
    assert_eq!(tracer.start_below(&context(0, "")).said.span_id, 3_u64.to_be_bytes());
}

#[test]
fn a_finished_provider_works_as_it_is() {
    let capture = Capture::default();
    let processor = capture.clone();
    let table = Table::of(|| {
        SdkTracerProvider::builder().with_sampler(Sampler::AlwaysOn).with_span_processor(processor).build()
    });
    assert_eq!((table.0.resource_count, table.resource().len()), (0, 0));
    assert_eq!(table.commit().0, abi::STATUS_NOT_DURABLE);
    let span = table.tracer("scope").start_below(&context(0, ""));
    assert_eq!(span.said.is_recording, 1);
    span.end(7);
    assert_eq!(capture.take_one().end_time, at(7));
    assert_eq!(table.flush(60_000).0, abi::STATUS_OK);
    capture.fails.store(true, Ordering::Relaxed);
    let (status, text) = table.flush(60_000);
    assert!(status == abi::STATUS_FAILED && text.contains("no room"), "{text}");
    capture.fails.store(false, Ordering::Relaxed);
    assert_eq!(table.shutdown(60_000).0, abi::STATUS_OK);
    assert_eq!(table.shutdown(60_000).0, abi::STATUS_ALREADY);
}

#[test]
fn a_list_of_processors_gets_a_provider_with_defaults() {
    let captures = [Capture::default(), Capture::default()];
    let [first, second] = captures.clone();
    let table = Table::of(|| -> Result<Vec<Box<dyn SpanProcessor>>, String> {
        Ok(vec![Box::new(first) as Box<dyn SpanProcessor>, Box::new(second)])
    });
    let resource = table.resource();
    let keys: Vec<&str> = resource.iter().map(|(key, _)| key.as_str()).collect();
    assert!(keys.is_sorted());
    for key in ["process.pid", "service.instance.id", "service.name", "telemetry.sdk.name"] {
        assert!(keys.contains(&key), "{key} in {keys:?}");
    }
    table.tracer("scope").start_named("both").end(0);
    for capture in captures {
        assert_eq!(capture.take_one().name, "both");
        let resource = capture.resource.lock().unwrap().clone().expect("a processor is told the resource");
        assert_eq!(resource.len(), keys.len());
    }
    assert_eq!(table.commit().0, abi::STATUS_NOT_DURABLE);
}

#[test]
fn the_resource_of_the_table_is_that_of_the_spans() {
    let given = Resource::builder_empty()
        .with_attributes([
            KeyValue::new("service.name", "mine"),
            KeyValue::new("list", Value::Array(Array::String(vec!["a".into()]))),
        ])
        .build();
    let table = Table::built(|tracing| tracing.with_span_processor(Capture::default()).with_resource(given));
    let value = |key: &str| table.resource().into_iter().find(|(found, _)| found == key).expect(key).1;
    // SAFETY: the tags below name the members that are read.
    unsafe {
        assert_eq!(text(value("service.name").as_.str_), "mine");
        assert_eq!(value("process.pid").as_.i64_, i64::from(std::process::id()));
        let list = value("list");
        assert_eq!((list.tag, list.as_.array.count), (abi::VALUE_STR_ARRAY, 1));
        assert_eq!(text(*list.as_.array.ptr.cast::<abi::Str>()), "a");
    }
}

#[test]
fn committing_asks_every_durable_processor() {
    let captures = [Capture::default(), Capture::default()];
    let [first, second] = captures.clone();
    let table = Table::built(move |tracing| {
        tracing
            .with_durable_processor(first)
            .with_span_processor(Capture::default())
            .with_durable_processor(second)
            .with_description("to two files")
    });
    assert_eq!(text(table.0.description), "to two files");
    assert_eq!(table.commit(), (abi::STATUS_OK, String::new()));
    captures[0].fails.store(true, Ordering::Relaxed);
    assert_eq!(table.commit(), (abi::STATUS_FAILED, "disk full".into()));
    assert!(captures.iter().all(|capture| capture.commits.load(Ordering::Relaxed) == 2));
    // A caller that wants no text.
    // SAFETY: `data` is the table's, and a null buffer is allowed.
    assert_eq!(unsafe { table.0.commit.unwrap()(table.0.data, ptr::null_mut()) }, abi::STATUS_FAILED);
}

#[test]
fn after_shutdown_every_call_is_harmless_and_contexts_travel_on() {
    let capture = Capture::default();
    let processor = capture.clone();
    let table = Table::built(|tracing| tracing.with_durable_processor(processor));
    let tracer = table.tracer("scope");
    let open = tracer.start_named("open");
    assert_eq!(table.shutdown(60_000), (abi::STATUS_OK, String::new()));
    assert_eq!(table.shutdown(60_000).0, abi::STATUS_ALREADY);
    assert_eq!(table.flush(60_000).0, abi::STATUS_ALREADY);
    assert_eq!(table.commit().0, abi::STATUS_OK);
    open.use_every_function();
    drop(open);

    let parent = context(0x01, "");
    let late = tracer.start_below(&parent);
    assert!(late.handle.is_null());
    assert_eq!((late.said.trace_id, late.said.span_id), (parent.trace_id, parent.span_id));
    assert_eq!((late.said.trace_flags, late.said.is_recording), (0x01, 0));
    late.use_every_function();
    let root = table.tracer("another").start_named("root");
    assert_eq!((root.said.trace_id, root.said.is_recording), ([0; 16], 0));
    drop(root);
    assert!(capture.take().is_empty());
}

#[test]
fn telemetry_about_telemetry_is_suppressed() {
    let capture = Capture::default();
    let processor = capture.clone();
    let tracer = Table::built(|tracing| tracing.with_span_processor(processor)).tracer("scope");
    let parent = context(0x01, "");
    {
        let _guard = Context::enter_telemetry_suppressed_scope();
        let span = tracer.start_below(&parent);
        assert!(span.handle.is_null());
        assert_eq!((span.said.span_id, span.said.is_recording), (parent.span_id, 0));
    }
    assert!(capture.take().is_empty());
    assert_eq!(tracer.start_below(&parent).said.is_recording, 1);
}

/// Panics wherever it can.
#[derive(Debug)]
struct Panicking;

impl SpanExporter for Panicking {
    async fn export(&self, _batch: Vec<SpanData>) -> OTelSdkResult {
        panic!("export")
    }

    fn force_flush(&self) -> OTelSdkResult {
        panic!("flush")
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        panic!("shutdown")
    }

    fn set_resource(&mut self, _resource: &Resource) {
        panic!("resource")
    }
}

/// Panics too: always, or when it is not guarded only at the end of a span and at shutdown.
#[derive(Debug)]
struct PanickingProcessor {
    is_guarded: bool,
}

impl SpanProcessor for PanickingProcessor {
    fn on_start(&self, _span: &mut Span, _cx: &Context) {
        assert!(!self.is_guarded, "start");
    }

    fn on_end(&self, _span: SpanData) {
        panic!("end")
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        panic!("shutdown")
    }

    fn set_resource(&mut self, _resource: &Resource) {
        assert!(!self.is_guarded, "resource");
    }
}

impl DurableProcessor for PanickingProcessor {
    fn commit(&self) -> Result<(), String> {
        panic!("commit")
    }
}

#[test]
fn a_panicking_exporter_harms_neither_the_process_nor_the_others() {
    let capture = Capture::default();
    let processor = capture.clone();
    let table = Table::built(move |tracing| {
        tracing.with_simple_exporter(Panicking).with_batch_exporter(Panicking).with_span_processor(processor)
    });
    let tracer = table.tracer("scope");
    for round in 0..3 {
        tracer.start_named("span").end(0);
        let (status, text) = table.flush(60_000);
        assert!(status == abi::STATUS_FAILED && text.contains("it panicked: "), "round {round}: {status} {text}");
    }
    assert_eq!(capture.take().len(), 3);
    let (status, text) = table.shutdown(60_000);
    assert!(status == abi::STATUS_FAILED && text.contains("it panicked: shutdown"), "{text}");
}

#[test]
fn a_panicking_processor_is_counted_and_costs_the_others_nothing() {
    let capture = Capture::default();
    let processor = capture.clone();
    let table = Table::built(move |tracing| {
        tracing.with_durable_processor(PanickingProcessor { is_guarded: true }).with_span_processor(processor)
    });
    table.tracer("scope").start_named("span").end(0);
    assert_eq!(capture.take_one().name, "span");
    assert_eq!(table.flush(60_000), (abi::STATUS_FAILED, "a span processor panicked at 2 spans".into()));
    assert_eq!(table.flush(60_000).0, abi::STATUS_OK);
    assert_eq!(table.commit(), (abi::STATUS_FAILED, "the span processor panicked: commit".into()));
}

#[test]
fn a_panic_under_a_finished_provider_does_not_cross_the_table() {
    let processor = PanickingProcessor { is_guarded: false };
    let table = Table::of(|| SdkTracerProvider::builder().with_span_processor(processor).build());
    let tracer = table.tracer("scope");
    let span = tracer.start_named("span");
    span.end(0);
    span.use_every_function();
    drop(span);
    drop(tracer.start_named("released"));
    let (status, text) = table.shutdown(60_000);
    assert_eq!((status, text.as_str()), (abi::STATUS_PANICKED, "it panicked: shutdown"));
}

/// Blocks in `force_flush` until told to go on.
struct Blocking {
    go: Mutex<Receiver<()>>,
}

impl fmt::Debug for Blocking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Blocking")
    }
}

impl Blocking {
    fn new() -> (Blocking, Sender<()>) {
        let (go_tx, go_rx) = channel();
        (Blocking { go: Mutex::new(go_rx) }, go_tx)
    }
}

impl SpanProcessor for Blocking {
    fn on_start(&self, _span: &mut Span, _cx: &Context) {}

    fn on_end(&self, _span: SpanData) {}

    fn force_flush(&self) -> OTelSdkResult {
        let _ = self.go.lock().unwrap().recv();
        Ok(())
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        Err(OTelSdkError::Timeout(timeout))
    }
}

#[test]
fn a_flush_that_blocks_returns_in_the_time_given() {
    let (blocking, go) = Blocking::new();
    let table = Table::built(|tracing| tracing.with_span_processor(blocking));
    let (status, text) = table.flush(1);
    assert_eq!((status, text.as_str()), (abi::STATUS_TIMED_OUT, "it was not done after 1ms"));
    drop(go);
    assert_eq!(table.flush(u64::MAX).0, abi::STATUS_OK);
    assert_eq!(table.shutdown(60_000).0, abi::STATUS_TIMED_OUT);
}

/// The status of each span that a table has told of, in order.
type Told = Mutex<Vec<u32>>;

unsafe extern "C" fn host_delivered(data: *mut c_void, _spans: *const abi::SpanIdentity, count: usize, status: u32) {
    // SAFETY: the data is that of `Table::listen`.
    let told = unsafe { &*data.cast::<Told>() };
    told.lock().unwrap().extend(std::iter::repeat_n(status, count));
}

/// An exporter whose receiver answers when somebody sends on the other end.
#[derive(Debug)]
struct Unanswered {
    began: Sender<()>,
    answer: Mutex<Receiver<()>>,
}

impl Unanswered {
    /// Makes the exporter, what tells that an export has begun, and what answers.
    fn new() -> (Unanswered, Receiver<()>, Sender<()>) {
        let ((began, has_begun), (go, answer)) = (channel(), channel());
        (Unanswered { began, answer: Mutex::new(answer) }, has_begun, go)
    }
}

impl SpanExporter for Unanswered {
    async fn export(&self, _batch: Vec<SpanData>) -> OTelSdkResult {
        let _ = self.began.send(());
        let _ = self.answer.lock().unwrap().recv();
        Ok(())
    }
}

const HOUR_MS: u64 = 3_600_000;

#[test]
fn a_shutdown_does_not_wait_for_a_receiver_that_does_not_answer() {
    let (exporter, has_begun, _go) = Unanswered::new();
    let table = Table::built(|tracing| tracing.with_batch_exporter(exporter));
    let told: &'static Told = Box::leak(Box::default());
    table.listen(told, 0);
    drop(table.tracer("t").start(&start("a")));
    // It may take an hour, and the receiver answers never.
    assert_eq!(table.shutdown(HOUR_MS).0, abi::STATUS_TIMED_OUT);
    has_begun.recv().unwrap();
    assert_eq!(*told.lock().unwrap(), Vec::<u32>::new());
}

#[test]
fn a_shutdown_delivers_all_to_a_receiver_that_answers() {
    let (exporter, has_begun, go) = Unanswered::new();
    let table = Table::built(|tracing| tracing.with_batch_exporter(exporter));
    let told: &'static Told = Box::leak(Box::default());
    table.listen(told, 0);
    drop(table.tracer("t").start(&start("a")));
    let answering = std::thread::spawn(move || {
        has_begun.recv().unwrap();
        go.send(()).unwrap();
    });
    assert_eq!(table.shutdown(HOUR_MS), (abi::STATUS_OK, String::new()));
    answering.join().unwrap();
    assert_eq!(*told.lock().unwrap(), [abi::STATUS_OK]);
}

#[test]
fn what_is_handed_back_is_not_delivered_here() {
    let (exporter, has_begun, go) = Unanswered::new();
    let table = Table::built(|tracing| tracing.with_batch_exporter(exporter));
    let told: &'static Told = Box::leak(Box::default());
    table.listen(told, 0);
    let tracer = table.tracer("t");
    drop(tracer.start(&start("under way")));
    let flushing = std::thread::spawn(move || table.flush(HOUR_MS));
    has_begun.recv().unwrap();
    drop(tracer.start(&start("queued")));
    // Who waits for nothing is answered at once.
    assert_eq!(table.hand_back(0).0, abi::STATUS_TIMED_OUT);
    drop(tracer.start(&start("late")));
    assert_eq!(*told.lock().unwrap(), [abi::STATUS_FULL], "the late one");
    go.send(()).unwrap();
    flushing.join().unwrap();
    assert_eq!(*told.lock().unwrap(), [abi::STATUS_FULL, abi::STATUS_OK], "nobody tells of the one that was queued");
    assert!(has_begun.try_recv().is_err(), "no further export has begun");
}

#[test]
fn a_quiet_table_gives_back_what_ends_and_exports_nothing() {
    let (exporter, has_begun, _go) = Unanswered::new();
    let table = Table::built(|tracing| tracing.with_batch_exporter(exporter));
    let told: &'static Told = Box::leak(Box::default());
    table.listen(told, 30_000);
    drop(table.tracer("t").start(&start("a")));
    assert_eq!(*told.lock().unwrap(), [abi::STATUS_FULL]);
    assert_eq!(table.hand_back(0), (abi::STATUS_OK, String::new()));
    assert!(has_begun.try_recv().is_err(), "nothing was exported");
}

#[test]
fn only_tables_whose_deliveries_are_all_known_can_be_handed_back() {
    let (blocking, _go) = Blocking::new();
    assert!(Table::built(|tracing| tracing.with_span_processor(blocking)).0.hand_back.is_none());
    let (exporter, ..) = Unanswered::new();
    assert!(Table::built(|tracing| tracing.with_simple_exporter(exporter)).0.hand_back.is_none());
    assert!(Table::built(|tracing| tracing).0.hand_back.is_none());
}

#[test]
fn eight_threads_lose_no_span() {
    let capture = Capture::default();
    let processor = capture.clone();
    let tracer = Table::built(|tracing| tracing.with_span_processor(processor)).tracer("scope");
    std::thread::scope(|threads| {
        for thread in 0..8_i64 {
            let tracer = &tracer;
            threads.spawn(move || {
                for number in 0..200 {
                    let name = format!("span {}", number % 10);
                    let span = tracer.start(&start(&name));
                    span.set(&[int("thread", thread), int("number", number)]);
                    span.end(0);
                }
            });
        }
    });
    let spans = capture.take();
    assert_eq!(spans.len(), 1_600);
    for span in &spans {
        let Value::I64(number) = span.attributes[1].value else { panic!("{span:?}") };
        assert_eq!(span.name, format!("span {}", number % 10));
    }
    let mut ids: Vec<[u8; 8]> = spans.iter().map(|span| span.span_context.span_id().to_bytes()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 1_600);
}

#[test]
fn a_hook_that_fails_says_why() {
    fn hook() -> Result<Tracing, String> {
        Err("no collector".into())
    }
    assert_eq!(export(hook), Err("no collector".to_owned()));
}

#[test]
fn null_arguments_are_survived() {
    let table = Table::built(|tracing| tracing.with_span_processor(Capture::default()));
    let tracer = table.tracer("scope");
    // SAFETY: null is what is tested.
    unsafe {
        assert!(table.0.span_start.unwrap()(tracer.handle, ptr::null(), ptr::null_mut()).is_null());
        assert!(table.0.span_start.unwrap()(ptr::null_mut(), &start("s"), ptr::null_mut()).is_null());
        let span = table.0.span_start.unwrap()(tracer.handle, &start("s"), ptr::null_mut());
        table.0.span_set_attributes.unwrap()(span, ptr::null(), 3);
        table.0.span_add_event.unwrap()(span, ptr::null());
        table.0.span_add_link.unwrap()(span, ptr::null());
        table.0.span_trace_state.unwrap()(span, ptr::null_mut());
        table.0.span_release.unwrap()(span);
        table.0.span_release.unwrap()(ptr::null_mut());
        table.0.span_end_and_release.unwrap()(ptr::null_mut(), 1);
        table.0.tracer_release.unwrap()(ptr::null_mut());
    }
}
