//! A host in the test's own process: it loads this program's record as it would a library's, runs tasks through it, and
//! keeps what arrives at the table it lends, field by field.
//!
//! Spans are kept by the thread that starts them, so tests do not see one another's.

// Every test program uses a part of it.
#![allow(dead_code)]
// It is the host: that its pointers are good is what the tests set up.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once};

use serde_json::{Value as Json, json};
use tracer_abi::*;

/// A span's context.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Context {
    pub(crate) trace_id: u128,
    pub(crate) span_id: u64,
    pub(crate) flags: u8,
    pub(crate) is_remote: bool,
    pub(crate) trace_state: String,
}

/// Record of what the table was told about a span.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Span {
    /// Name, version, schema URL and attributes of the instrumentation scope.
    pub(crate) scope: (String, String, String, Json),
    pub(crate) name: String,
    pub(crate) kind: u32,
    pub(crate) start: u64,
    pub(crate) parent: Option<Context>,
    pub(crate) attributes: Json,
    pub(crate) links: Vec<(Context, Json)>,
    pub(crate) events: Vec<(String, u64, Json)>,
    pub(crate) baggage: String,
    pub(crate) status: Option<(u32, String)>,
    /// The times it was ended at; 0 is now.
    pub(crate) ends: Vec<u64>,
    pub(crate) releases: u32,
    /// Its own.
    pub(crate) context: Context,
}

/// Kind of span that the table makes; set by a test for its thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Making {
    Recorded,
    /// Ids and no handle.
    Dropped,
    /// A handle that does not record.
    Unrecorded,
    /// Recorded, with a tracestate that the sampler made.
    WithTraceState,
}

#[derive(Debug)]
pub(crate) struct Shared(pub(crate) Mutex<Span>);

thread_local! {
    static SPANS: RefCell<Vec<Arc<Shared>>> = const { RefCell::new(Vec::new()) };
    static MAKING: RefCell<Making> = const { RefCell::new(Making::Recorded) };
}

static LOG: Mutex<Vec<(u32, String)>> = Mutex::new(Vec::new());

pub(crate) fn make(making: Making) {
    MAKING.set(making);
}

/// Returns the spans that this thread has started, in order. They are not returned again.
pub(crate) fn take_spans() -> Vec<Span> {
    SPANS.take().iter().map(|span| span.0.lock().expect("no test panics in a table's function").clone()).collect()
}

/// Returns what the module wrote to the host's log.
pub(crate) fn log() -> Vec<(u32, String)> {
    LOG.lock().expect("nobody panics with it").clone()
}

pub(crate) unsafe fn text(text: Str) -> String {
    String::from_utf8(unsafe { text.as_bytes() }.to_vec()).expect("the module sends UTF-8")
}

unsafe fn slice<'a, T>(ptr: *const T, count: usize) -> &'a [T] {
    if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(ptr, count) } }
}

unsafe fn attributes(ptr: *const KeyValue, count: usize) -> Json {
    let value = |value: &Value| unsafe {
        let array = value.as_.array;
        match value.tag {
            VALUE_BOOL => json!(value.as_.bool_ != 0),
            VALUE_I64 => json!(value.as_.i64_),
            VALUE_F64 => json!(value.as_.f64_),
            VALUE_STR => json!(text(value.as_.str_)),
            VALUE_BOOL_ARRAY => slice(array.ptr.cast::<u8>(), array.count).iter().map(|byte| *byte != 0).collect(),
            VALUE_I64_ARRAY => json!(slice(array.ptr.cast::<i64>(), array.count)),
            VALUE_F64_ARRAY => json!(slice(array.ptr.cast::<f64>(), array.count)),
            VALUE_STR_ARRAY => slice(array.ptr.cast::<Str>(), array.count).iter().map(|item| text(*item)).collect(),
            tag => panic!("unknown tag {tag}"),
        }
    };
    unsafe {
        slice(ptr, count)
            .iter()
            .map(|pair| (text(pair.key), value(&pair.value)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }
}

unsafe fn context(raw: &SpanContext) -> Context {
    assert_eq!(raw.size, size_of::<SpanContext>());
    Context {
        trace_id: u128::from_be_bytes(raw.trace_id),
        span_id: u64::from_be_bytes(raw.span_id),
        flags: raw.trace_flags,
        is_remote: raw.is_remote != 0,
        trace_state: unsafe { text(raw.trace_state) },
    }
}

unsafe fn event(raw: &Event) -> (String, u64, Json) {
    assert_eq!(raw.size, size_of::<Event>());
    unsafe { (text(raw.name), raw.time_unix_nano, attributes(raw.attributes, raw.attribute_count)) }
}

unsafe fn link(raw: &Link) -> (Context, Json) {
    assert_eq!(raw.size, size_of::<Link>());
    unsafe { (context(&raw.context), attributes(raw.attributes, raw.attribute_count)) }
}

type ScopeRecord = (String, String, String, Json);

unsafe extern "C" fn tracer(data: *mut c_void, scope: *const Scope) -> *mut c_void {
    assert_eq!(data as usize, 7, "the table's data comes back");
    let scope = unsafe { &*scope };
    assert_eq!(scope.size, size_of::<Scope>());
    let record: ScopeRecord = unsafe {
        let attributes = attributes(scope.attributes, scope.attribute_count);
        (text(scope.name), text(scope.version), text(scope.schema_url), attributes)
    };
    if record.0 == "unwanted" { ptr::null_mut() } else { Box::into_raw(Box::new(record)).cast() }
}

unsafe extern "C" fn tracer_release(tracer: *mut c_void) {
    drop(unsafe { Box::from_raw(tracer.cast::<ScopeRecord>()) });
}

fn new_span(span: Span) -> (Arc<Shared>, *mut c_void) {
    let shared = Arc::new(Shared(Mutex::new(span)));
    (shared.clone(), Arc::into_raw(shared).cast_mut().cast())
}

unsafe extern "C" fn span_start(
    tracer: *mut c_void,
    start: *const SpanStart,
    started: *mut SpanStarted,
) -> *mut c_void {
    static NEXT: AtomicU64 = AtomicU64::new(0x100);
    let (start, started) = unsafe { (&*start, &mut *started) };
    assert_eq!(start.size, size_of::<SpanStart>());
    assert_eq!(started.size, size_of::<SpanStarted>());
    let parent = unsafe { start.parent.as_ref().map(|parent| context(parent)) };
    let span_id = NEXT.fetch_add(1, Ordering::Relaxed);
    let making = MAKING.with_borrow(|making| *making);
    let own = Context {
        trace_id: parent.as_ref().map_or(u128::from(span_id) << 64, |parent| parent.trace_id),
        span_id,
        flags: u8::from(!matches!(making, Making::Dropped | Making::Unrecorded)),
        is_remote: false,
        trace_state: String::new(),
    };
    started.trace_id = own.trace_id.to_be_bytes();
    started.span_id = own.span_id.to_be_bytes();
    started.trace_flags = own.flags;
    started.is_recording = own.flags;
    started.has_trace_state = (making == Making::WithTraceState).into();
    let span = unsafe {
        Span {
            scope: (*tracer.cast::<ScopeRecord>()).clone(),
            name: text(start.name),
            kind: start.kind,
            start: start.start_time_unix_nano,
            parent,
            attributes: attributes(start.attributes, start.attribute_count),
            links: slice(start.links, start.link_count).iter().map(|raw| link(&**raw)).collect(),
            events: slice(start.events, start.event_count).iter().map(|raw| event(&**raw)).collect(),
            baggage: text(start.baggage),
            status: None,
            ends: Vec::new(),
            releases: 0,
            context: own,
        }
    };
    let (shared, handle) = new_span(span);
    SPANS.with_borrow_mut(|spans| spans.push(shared));
    if making == Making::Dropped { ptr::null_mut() } else { handle }
}

unsafe fn change(span: *mut c_void, f: impl FnOnce(&mut Span)) {
    f(&mut unsafe { &*span.cast::<Shared>() }.0.lock().expect("no test panics in a table's function"));
}

unsafe extern "C" fn span_trace_state(_span: *mut c_void, text: *mut TextBuffer) {
    // Longer than the first buffer that the module offers.
    let long = format!("made=here,long={}", "x".repeat(240));
    let long = format!("{long},longer={},longest={}", "y".repeat(250), "z".repeat(250));
    unsafe { (*text).write(&long) };
}

unsafe extern "C" fn span_set_attributes(span: *mut c_void, pairs: *const KeyValue, count: usize) {
    let Json::Object(pairs) = (unsafe { attributes(pairs, count) }) else { unreachable!("attributes make an object") };
    let extend = |span: &mut Span| span.attributes.as_object_mut().expect("it is an object").extend(pairs);
    unsafe { change(span, extend) };
}

unsafe extern "C" fn span_add_event(span: *mut c_void, raw: *const Event) {
    unsafe { change(span, |span| span.events.push(event(&*raw))) };
}

unsafe extern "C" fn span_add_link(span: *mut c_void, raw: *const Link) {
    unsafe { change(span, |span| span.links.push(link(&*raw))) };
}

unsafe extern "C" fn span_set_status(span: *mut c_void, code: u32, description: Str) {
    unsafe { change(span, |span| span.status = Some((code, text(description)))) };
}

unsafe extern "C" fn span_update_name(span: *mut c_void, name: Str) {
    unsafe { change(span, |span| span.name = text(name)) };
}

unsafe extern "C" fn span_end(span: *mut c_void, time: u64) {
    unsafe { change(span, |span| span.ends.push(time)) };
}

unsafe extern "C" fn span_release(span: *mut c_void) {
    unsafe {
        change(span, |span| span.releases += 1);
        drop(Arc::from_raw(span.cast::<Shared>()));
    }
}

unsafe extern "C" fn span_end_and_release(span: *mut c_void, time: u64) {
    unsafe {
        span_end(span, time);
        span_release(span);
    }
}

unsafe extern "C" fn host_log(level: u32, line: Str) {
    LOG.lock().expect("nobody panics with it").push((level, unsafe { text(line) }));
}

static TABLE: Tracing = Tracing {
    size: size_of::<Tracing>(),
    data: 7 as *mut c_void,
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
    commit: None,
    flush: None,
    shutdown: None,
    resource: ptr::null(),
    resource_count: 0,
    description: Str::EMPTY,
    listen: None,
    sink_export: None,
    span_file: Str::EMPTY,
    span_file_format: 0,
    span_end_and_release: Some(span_end_and_release),
    hand_back: None,
    lost: None,
    log_export: None,
};

const fn host(tracing: *const Tracing) -> Host {
    Host {
        // As a host that is older than what tasks submit with.
        size: std::mem::offset_of!(Host, host_submit),
        abi_major: ABI_MAJOR,
        abi_minor: 0,
        tracing,
        host_log: Some(host_log),
        host_submit: None,
        host_wait: None,
        host_take: None,
        host_watch: None,
        host_task_id: None,
        host_forget: None,
        host_is_cancelled: None,
        host_find_actor: None,
        host_end_actor: None,
        host_log_record: None,
        log_severity: 0,
        log_events: 0,
        host_call: None,
        host_call_consumed: None,
        host_call_cancel: None,
        host_instrument: None,
        host_measure: None,
        host_exemplar: None,
        host_observe: None,
    }
}

pub(crate) static TRACED: Host = host(&TABLE);
pub(crate) static UNTRACED: Host = host(ptr::null());

/// Loads a record with `host`; status and error text.
pub(crate) fn load(module: &Module, host: &'static Host) -> (u32, String) {
    let mut buffer = [0; 500];
    let mut error = TextBuffer::new(&mut buffer);
    let status = unsafe { module.on_load.expect("it has one")(host, &mut error) };
    let length = error.filled();
    (status, String::from_utf8_lossy(&buffer[..length]).into_owned())
}

/// This program's record, loaded.
pub(crate) fn module(host: &'static Host) -> &'static Module {
    static LOADED: Once = Once::new();
    let module = unsafe { &*tracer_sdk::export::module() };
    LOADED.call_once(|| assert_eq!(load(module, host), (STATUS_OK, String::new())));
    module
}

pub(crate) fn task(module: &'static Module, name: &str) -> &'static Task {
    let tasks = unsafe { slice(module.tasks, module.task_count) };
    let mut tasks = tasks.iter().map(|task| unsafe { &**task });
    tasks.find(|task| unsafe { text(task.name) } == name).unwrap_or_else(|| panic!("no task is called `{name}`"))
}

/// An error as the host takes it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Failed {
    pub(crate) kind: u32,
    pub(crate) type_name: String,
    pub(crate) message: String,
    pub(crate) location: String,
    pub(crate) stacktrace: String,
}

/// Outcome of a call.
#[derive(Debug)]
pub(crate) struct Called {
    pub(crate) status: u32,
    pub(crate) result: Result<Json, Failed>,
    /// Record of the task's own span.
    pub(crate) task_span: Span,
    /// Handle of that span, to look at again later.
    pub(crate) task_handle: Arc<Shared>,
    /// The spans that the task started on its thread.
    pub(crate) spans: Vec<Span>,
    /// The parts of the call, in order.
    pub(crate) phases: Vec<u32>,
}

impl Called {
    /// Kind and message of the error.
    #[track_caller]
    pub(crate) fn error(self) -> (u32, String) {
        let failed = self.result.expect_err("the task fails");
        (failed.kind, failed.message)
    }
}

/// A call as it is about to be made.
pub(crate) struct Call {
    pub(crate) host: &'static Host,
    pub(crate) arguments: Vec<u8>,
    pub(crate) baggage: &'static str,
    pub(crate) context: Context,
    /// True if the task's span is recorded, and so lent.
    pub(crate) is_recorded: bool,
}

impl Call {
    /// Makes a call in a traced process, with arguments as on a command line.
    pub(crate) fn new(arguments: Json) -> Call {
        let trace_state = "vendor=1,other=2".to_owned();
        Call {
            host: &TRACED,
            arguments: rmp_serde::to_vec(&arguments).expect("JSON can be encoded"),
            baggage: "",
            context: Context { trace_id: 0xabc, span_id: 0xdef, flags: 1, is_remote: false, trace_state },
            is_recorded: true,
        }
    }

    pub(crate) fn run(self, name: &str) -> Called {
        let module = module(self.host);
        self.run_in(module, name)
    }

    pub(crate) fn run_in(self, module: &'static Module, name: &str) -> Called {
        let (shared, handle) = new_span(Span { name: "the task".into(), attributes: json!({}), ..Span::default() });
        let raw_context = SpanContext {
            size: size_of::<SpanContext>(),
            trace_id: self.context.trace_id.to_be_bytes(),
            span_id: self.context.span_id.to_be_bytes(),
            trace_flags: self.context.flags,
            is_remote: self.context.is_remote.into(),
            trace_state: Str::new(&self.context.trace_state),
        };
        let mut calls = Vec::<Result<Json, Failed>>::new();
        let call = TaskCall {
            size: size_of::<TaskCall>(),
            arguments: Bytes::new(&self.arguments),
            span: if self.is_recorded { handle } else { ptr::null_mut() },
            span_context: &raw_context,
            baggage: Str::new(self.baggage),
            task_id: 11,
            attempt: 2,
            job_id: 33,
            worker_id: 44,
            data: ptr::from_mut(&mut calls).cast(),
            host_result: Some(host_result),
            host_error: Some(host_error),
            node_id: Str::new("node"),
            host_phase: Some(host_phase),
            actor_id: 0,
            state: ptr::null_mut(),
            argument_values: ptr::null(),
            argument_value_count: 0,
            host_result_part: None,
        };
        let task = task(module, name);
        take_spans();
        PHASES.take();
        let status = unsafe { task.on_run.expect("it has one")(task, &call) };
        let task_span = shared.0.lock().expect("nobody panics with it").clone();
        assert_eq!(calls.len(), 1, "exactly one callback is called");
        let result = calls.pop().expect("there is one");
        assert_eq!(status, if result.is_ok() { STATUS_OK } else { STATUS_FAILED });
        Called { status, result, task_span, task_handle: shared, spans: take_spans(), phases: PHASES.take() }
    }
}

thread_local! {
    /// The parts of the call that is going on, as the module told of them.
    static PHASES: std::cell::RefCell<Vec<u32>> = const { std::cell::RefCell::new(Vec::new()) };
}

unsafe extern "C" fn host_phase(_data: *mut c_void, phase: u32) {
    PHASES.with_borrow_mut(|phases| phases.push(phase));
}

unsafe extern "C" fn host_result(data: *mut c_void, value: Bytes) {
    let value = rmp_serde::from_slice(unsafe { value.as_bytes() }).expect("the result is MessagePack");
    unsafe { &mut *data.cast::<Vec<Result<Json, Failed>>>() }.push(Ok(value));
}

unsafe extern "C" fn host_error(data: *mut c_void, error: *const TaskError) {
    let error = unsafe { &*error };
    assert_eq!(error.size, size_of::<TaskError>());
    let failed = unsafe {
        Failed {
            kind: error.kind,
            type_name: text(error.type_name),
            message: text(error.message),
            location: text(error.location),
            stacktrace: text(error.stacktrace),
        }
    };
    unsafe { &mut *data.cast::<Vec<Result<Json, Failed>>>() }.push(Err(failed));
}
