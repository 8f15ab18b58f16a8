//! Deployments as the host sees them: requests go in as events, and answers come out by the functions of the table.

// The calls of the contract are the test's own host's.
#![allow(clippy::undocumented_unsafe_blocks)]
// What is exported has to be `pub`, though nobody else sees it here.
#![allow(unreachable_pub, missing_docs)]

mod support;

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::ffi::c_void;
use std::future::{Ready, ready};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context as TaskContext, Poll};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use opentelemetry::trace::{TraceContextExt, Tracer};
use opentelemetry::{Context as OtelContext, KeyValue, global};
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use support::{Span, TRACED, module, take_spans, text};
use tracer_abi::*;
use tracer_sdk::serve::{self, Body, HeaderMap, Request, Response, StatusCode, deployment, request_context};

// The deployments.

/// Says hello.
///
/// To whoever asks.
#[deployment]
async fn hello(request: Request<Body>) -> Response<Body> {
    let context = request_context().expect("a handler has a request");
    assert_eq!(context.request_id(), request.extensions().get::<serve::RequestContext>().unwrap().request_id());
    let text = format!("{} {} for {}", request.method(), request.uri(), context.request_id());
    Response::builder().header("x-replica", context.replica()).body(Body::from(text)).unwrap()
}

/// Sends back what it is sent, piece by piece, and the trailers.
#[deployment(max_ongoing_requests = 7)]
async fn echo(request: Request<Body>) -> Response<Body> {
    Response::new(request.into_body())
}

#[derive(Deserialize, Serialize)]
struct Sum {
    terms: Vec<i64>,
}

/// Blocks its thread.
#[deployment]
fn add(input: serve::Json<Sum>) -> Result<serve::Json<i64>, String> {
    let tracer = global::tracer("test");
    tracer.in_span("adding", |_| ());
    assert!(request_context().is_some(), "the request goes along to the pool");
    input.0.terms.iter().try_fold(0i64, |sum, term| sum.checked_add(*term)).map(serve::Json).ok_or("too large".into())
}

#[deployment]
async fn fails(how: String) -> Result<&'static str, Box<dyn std::error::Error + Send + Sync>> {
    match how.as_str() {
        "panic" => panic!("in the handler"),
        "error" => Err("no luck".into()),
        _ => Ok("well"),
    }
}

static BEGUN: AtomicUsize = AtomicUsize::new(0);
static DROPPED: AtomicUsize = AtomicUsize::new(0);

struct Noted;

impl Drop for Noted {
    fn drop(&mut self) {
        assert!(request_context().is_some(), "a future is dropped where its request is current");
        DROPPED.fetch_add(1, Ordering::SeqCst);
    }
}

#[deployment]
async fn never(_: Request<Body>) -> StatusCode {
    let _noted = Noted;
    let _open = global::tracer("test").start("open when it is dropped");
    BEGUN.fetch_add(1, Ordering::SeqCst);
    // Answers nothing, and has somebody look who waits for what happens here.
    request_context().unwrap().set_route("begun");
    std::future::pending().await
}

/// Waits for a while between two spans, so that requests interleave.
#[deployment]
async fn interleaved(request: Request<Body>) -> String {
    let tracer = global::tracer("test");
    let turns = 1 + request.uri().path().len() % 5;
    for _ in 0..turns {
        tokio::task::yield_now().await;
    }
    let id = request_context().expect("it is current after a wait too").request_id().to_owned();
    tracer.in_span("inside", |context| context.span().set_attribute(KeyValue::new("id", id.clone())));
    let baggage = tracer_sdk::current_trace_context().map(|context| context.baggage).unwrap_or_default();
    format!("{id} {baggage}")
}

/// A tower service that is ready once in two polls.
#[derive(Clone, Default)]
struct Slow {
    was_asked: bool,
}

impl tower_service::Service<Request<Body>> for Slow {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, context: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        if std::mem::replace(&mut self.was_asked, true) {
            return Poll::Ready(Ok(()));
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        assert!(std::mem::take(&mut self.was_asked), "it is called when it is ready");
        request_context().unwrap().set_route("/users/{id}");
        ready(Ok(Response::new(Body::from(request.uri().path().to_owned()))))
    }
}

#[deployment]
fn tower() -> Slow {
    Slow::default()
}

pub struct Model {
    path: String,
    temperature: Mutex<f64>,
}

#[derive(Deserialize)]
pub struct Settings {
    temperature: f64,
}

/// A model.
#[deployment(max_ongoing_requests = 64)]
impl Model {
    pub async fn new(path: String, is_broken: Option<bool>) -> Result<Self, String> {
        tokio::task::yield_now().await;
        if path.is_empty() {
            return Err("no path".into());
        }
        assert!(!is_broken.unwrap_or_default(), "broken");
        Ok(Model { path, temperature: Mutex::new(0.0) })
    }

    pub async fn handle(&self, _: Request<Body>) -> Result<String, std::fmt::Error> {
        Ok(format!("{} at {}", self.path, *self.temperature.lock().unwrap()))
    }

    pub async fn health(&self) -> Result<(), String> {
        if *self.temperature.lock().unwrap() > 100.0 { Err("it is too hot".into()) } else { Ok(()) }
    }

    pub async fn reconfigure(&self, settings: Settings) {
        *self.temperature.lock().unwrap() = settings.temperature;
    }
}

/// Writes while it is read, ten pieces of a kilobyte, then trailers; or breaks off.
#[deployment]
async fn stream(how: String) -> Response<Body> {
    let (sender, body) = Body::channel(1);
    tokio::spawn(async move {
        for digit in b'0'..=b'9' {
            if sender.send(vec![digit; 1 << 10]).await.is_err() {
                return;
            }
        }
        if how == "abort" {
            return sender.abort("it broke").await;
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("checksum", "7".parse().unwrap());
        sender.send_trailers(trailers).await.unwrap();
    });
    Response::new(body)
}

// The host.

/// The time that a fact may take.
const DEADLINE: Duration = Duration::from_secs(30);
/// The window of a response.
const WINDOW: usize = 4 << 10;

/// The answer to a request.
#[derive(Clone, Debug, Default, PartialEq)]
struct Answer {
    status: u32,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    trailers: Vec<(String, String)>,
    /// Kind, type and message of the error.
    failure: Option<(u32, String, String)>,
    route: String,
    /// So often the end was told.
    ends: u32,
    is_flushed: bool,
    consumed: usize,
}

impl Answer {
    fn text(&self) -> &str {
        assert_eq!((self.ends, &self.failure), (1, &None), "{self:?}");
        std::str::from_utf8(&self.body).unwrap()
    }
}

#[derive(Default)]
struct Shared {
    events: VecDeque<OwnedEvent>,
    /// Events that the module has seen, kept until it takes the next.
    lent: Vec<OwnedEvent>,
    answers: BTreeMap<u64, Answer>,
    orders: BTreeMap<u64, (u32, String)>,
    is_ready: bool,
    is_signalled: bool,
    /// Bytes of responses that nobody has read; more than the window are not taken.
    unread: BTreeMap<u64, usize>,
    /// Clients read what arrives at once.
    reads: bool,
    /// Pieces that the module has not given back.
    held: usize,
    /// Times that it is told to look again.
    looks: u32,
}

/// A host with one replica, which runs on a thread of its own.
struct Host {
    shared: Arc<(Mutex<Shared>, Condvar)>,
    ours: Arc<UnixStream>,
    replica: Option<JoinHandle<(u32, String, Vec<Span>)>>,
}

/// An event with all that it points to.
struct OwnedEvent {
    raw: RequestEvent,
    _head: Option<Box<(RequestHead, SpanContext)>>,
    _texts: Vec<String>,
    _headers: Vec<Header>,
}

unsafe impl Send for OwnedEvent {}

type Data = (Arc<(Mutex<Shared>, Condvar)>, UnixStream);

unsafe fn with<R>(data: *mut c_void, f: impl FnOnce(&mut Shared, &UnixStream) -> R) -> R {
    let (shared, theirs) = unsafe { &*data.cast::<Data>() };
    let result = f(&mut shared.0.lock().unwrap(), theirs);
    shared.1.notify_all();
    result
}

unsafe fn answer(data: *mut c_void, request: u64, f: impl FnOnce(&mut Answer)) -> u32 {
    unsafe { with(data, |shared, _| f(shared.answers.entry(request).or_default())) };
    STATUS_OK
}

unsafe fn pairs(headers: *const Header, count: usize) -> Vec<(String, String)> {
    let headers = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(headers, count) } };
    let pair =
        |header: &Header| unsafe { (text(header.name), String::from_utf8(header.value.as_bytes().to_vec()).unwrap()) };
    headers.iter().map(pair).collect()
}

unsafe extern "C" fn host_ready(data: *mut c_void) {
    unsafe { with(data, |shared, _| shared.is_ready = true) };
}

unsafe extern "C" fn host_take_events(data: *mut c_void, events: *mut *const RequestEvent, capacity: usize) -> usize {
    let take = |shared: &mut Shared, mut theirs: &UnixStream| {
        shared.lent = (0..capacity.min(3)).map_while(|_| shared.events.pop_front()).collect();
        for (at, event) in shared.lent.iter().enumerate() {
            unsafe { *events.add(at) = &event.raw };
        }
        if shared.lent.is_empty() && std::mem::take(&mut shared.is_signalled) {
            assert_eq!(theirs.read(&mut [0; 8]).unwrap(), 1);
        }
        shared.lent.len()
    };
    unsafe { with(data, take) }
}

unsafe extern "C" fn host_respond(data: *mut c_void, request: u64, response: *const ResponseHead) -> u32 {
    let response = unsafe { &*response };
    assert_eq!(response.size, size_of::<ResponseHead>());
    unsafe {
        answer(data, request, |answer| {
            assert_eq!(answer.status, 0, "a response begins once");
            answer.status = response.status;
            answer.headers = pairs(response.headers, response.header_count);
        })
    }
}

unsafe extern "C" fn host_send(data: *mut c_void, request: u64, piece: *const Piece) -> u32 {
    let piece = unsafe { &*piece };
    let take = |shared: &mut Shared, _: &UnixStream| {
        let unread = shared.unread.entry(request).or_default();
        if *unread >= WINDOW {
            return STATUS_FULL;
        }
        *unread += if shared.reads { 0 } else { piece.bytes.len };
        let answer = shared.answers.entry(request).or_default();
        assert_eq!(answer.ends, 0, "nothing is sent after the end");
        answer.body.extend_from_slice(unsafe { piece.bytes.as_bytes() });
        STATUS_OK
    };
    let status = unsafe { with(data, take) };
    if status == STATUS_OK {
        // Not with the lock, because it may be a piece of this host's that comes back.
        unsafe { piece.release.expect("a module's piece has an owner")(piece.owner) };
    }
    status
}

unsafe extern "C" fn host_end(data: *mut c_void, request: u64, trailers: *const Header, count: usize) -> u32 {
    let end = |answer: &mut Answer| {
        answer.ends += 1;
        answer.trailers = unsafe { pairs(trailers, count) };
    };
    unsafe { answer(data, request, end) }
}

unsafe extern "C" fn host_fail(data: *mut c_void, request: u64, error: *const TaskError) -> u32 {
    let error = unsafe { &*error };
    let fail = |answer: &mut Answer| {
        answer.ends += 1;
        answer.failure = Some(unsafe { (error.kind, text(error.type_name), text(error.message)) });
    };
    unsafe { answer(data, request, fail) }
}

unsafe extern "C" fn host_consumed(data: *mut c_void, request: u64, bytes: usize) {
    unsafe { answer(data, request, |answer| answer.consumed += bytes) };
}

unsafe extern "C" fn host_set_route(data: *mut c_void, request: u64, route: Str) {
    unsafe { answer(data, request, |answer| answer.route = text(route)) };
}

unsafe extern "C" fn host_answer(data: *mut c_void, order: u64, status: u32, reason: Str) {
    unsafe { with(data, |shared, _| assert!(shared.orders.insert(order, (status, text(reason))).is_none())) };
}

unsafe extern "C" fn host_flush(data: *mut c_void) {
    unsafe {
        with(data, |shared, _| shared.answers.values_mut().for_each(|answer| answer.is_flushed |= answer.ends > 0))
    };
}

unsafe extern "C" fn host_look(data: *mut c_void) -> u32 {
    unsafe {
        with(data, |shared, _| {
            let looks = shared.looks.checked_sub(1);
            shared.looks = looks.unwrap_or(0);
            looks.is_some().into()
        })
    }
}

/// A piece of the host's: its bytes, and where it is counted.
type HostPiece = (Vec<u8>, Arc<(Mutex<Shared>, Condvar)>);

unsafe extern "C" fn release(owner: *mut c_void) {
    let piece = unsafe { Box::from_raw(owner.cast::<HostPiece>()) };
    piece.1.0.lock().unwrap().held -= 1;
    piece.1.1.notify_all();
}

/// A request to make.
struct Ask<'a> {
    target: &'a str,
    headers: &'a [(&'a str, &'a str)],
    body: &'a [u8],
    is_last: bool,
    baggage: &'a str,
}

const ASK: Ask<'static> = Ask { target: "/", headers: &[], body: b"", is_last: true, baggage: "" };

fn deployment_named(name: &str) -> &'static Deployment {
    let module = module(&TRACED);
    let records = unsafe { std::slice::from_raw_parts(module.deployments, module.deployment_count) };
    let mut records = records.iter().map(|record| unsafe { &**record });
    records.find(|record| unsafe { text(record.name) } == name).unwrap_or_else(|| panic!("no deployment `{name}`"))
}

impl Host {
    /// A replica of the deployment that takes requests.
    fn of(name: &str) -> Host {
        let host = Host::starting(name, json!([]));
        host.wait("the replica is ready", |shared| shared.is_ready.then_some(()));
        host
    }

    fn starting(name: &str, arguments: Json) -> Host {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let shared = Arc::new((Mutex::new(Shared { reads: true, ..Shared::default() }), Condvar::new()));
        let fd = theirs.as_raw_fd();
        // What the host lends lives as long as the process.
        let data: &'static Data = Box::leak(Box::new((shared.clone(), theirs)));
        let arguments: &'static [u8] = rmp_serde::to_vec(&arguments).unwrap().leak();
        let serving: &'static Serving = Box::leak(Box::new(Serving {
            size: size_of::<Serving>(),
            data: ptr::from_ref(data).cast_mut().cast(),
            arguments: Bytes::new(arguments),
            application: Str::new("shop"),
            deployment: Str::new("front"),
            replica: Str::new("front#1"),
            max_ongoing_requests: 100,
            threads: 1,
            event_fd: fd,
            host_ready: Some(host_ready),
            host_take_events: Some(host_take_events),
            host_respond: Some(host_respond),
            host_send: Some(host_send),
            host_end: Some(host_end),
            host_fail: Some(host_fail),
            host_consumed: Some(host_consumed),
            host_set_route: Some(host_set_route),
            host_answer: Some(host_answer),
            host_flush: Some(host_flush),
            host_look: Some(host_look),
        }));
        let deployment = deployment_named(name);
        let serving = ptr::from_ref(serving) as usize;
        let replica = thread::spawn(move || {
            let mut buffer = [0; 500];
            let mut error = TextBuffer::new(&mut buffer);
            let on_serve = deployment.on_serve.expect("it can serve");
            let status = unsafe { on_serve(deployment, serving as *const Serving, &mut error) };
            let length = error.filled();
            (status, String::from_utf8_lossy(&buffer[..length]).into_owned(), take_spans())
        });
        Host { shared, ours: Arc::new(ours), replica: Some(replica) }
    }

    #[track_caller]
    fn wait<R>(&self, fact: &str, f: impl Fn(&mut Shared) -> Option<R>) -> R {
        let until = Instant::now() + DEADLINE;
        let mut shared = self.shared.0.lock().unwrap();
        loop {
            if let Some(result) = f(&mut shared) {
                return result;
            }
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "waited in vain until {fact}: {:?}", shared.answers);
            shared = self.shared.1.wait_timeout(shared, left).unwrap().0;
        }
    }

    fn put(&self, event: OwnedEvent) {
        let mut shared = self.shared.0.lock().unwrap();
        shared.events.push_back(event);
        if !std::mem::replace(&mut shared.is_signalled, true) {
            (&*self.ours).write_all(&[1]).unwrap();
        }
    }

    fn piece(&self, bytes: &[u8]) -> Piece {
        if bytes.is_empty() {
            return Piece::EMPTY;
        }
        self.shared.0.lock().unwrap().held += 1;
        let owner: Box<HostPiece> = Box::new((bytes.to_vec(), self.shared.clone()));
        let lent = Bytes { ptr: owner.0.as_ptr(), len: owner.0.len() };
        Piece { bytes: lent, owner: Box::into_raw(owner).cast(), release: Some(release) }
    }

    fn event(&self, kind: u32, number: u64, body: &[u8], is_last: bool, trailers: &[(&str, &str)]) -> OwnedEvent {
        let (texts, headers) = owned_headers(trailers);
        let raw = RequestEvent {
            size: size_of::<RequestEvent>(),
            kind,
            is_last: is_last.into(),
            number,
            head: ptr::null(),
            piece: self.piece(body),
            trailers: headers.as_ptr(),
            trailer_count: headers.len(),
        };
        OwnedEvent { raw, _head: None, _texts: texts, _headers: headers }
    }

    fn begin(&self, number: u64, ask: &Ask<'_>) {
        let mut event = self.event(EVENT_REQUEST, number, ask.body, ask.is_last, &[]);
        let (mut texts, headers) = owned_headers(ask.headers);
        let id = format!("id-{number}");
        texts.extend([ask.target.to_owned(), id, ask.baggage.to_owned()]);
        let [.., target, id, baggage] = &texts[..] else { unreachable!("they were just put there") };
        let head = RequestHead {
            size: size_of::<RequestHead>(),
            method: Str::new("POST"),
            target: Str::new(target),
            scheme: Str::new("http"),
            authority: Str::new("localhost:8000"),
            version: 11,
            has_length: headers.iter().any(|header| unsafe { text(header.name) } == "content-length").into(),
            headers: headers.as_ptr(),
            header_count: headers.len(),
            request_id: Str::new(id),
            route_prefix: Str::new("/"),
            client: Str::new("127.0.0.1:4711"),
            deadline_unix_nano: 0,
            span: ptr::null_mut(),
            span_context: ptr::null(),
            baggage: Str::new(baggage),
        };
        let context = SpanContext {
            size: size_of::<SpanContext>(),
            trace_id: (0xabc0_u128 + u128::from(number)).to_be_bytes(),
            span_id: (0xdef0 + number).to_be_bytes(),
            trace_flags: 1,
            is_remote: 0,
            trace_state: Str::EMPTY,
        };
        let mut owned = Box::new((head, context));
        owned.0.span_context = &owned.1;
        event.raw.head = &owned.0;
        event._head = Some(owned);
        (event._texts, event._headers) = (texts, headers);
        self.put(event);
    }

    #[track_caller]
    fn ended(&self, number: u64) -> Answer {
        let ended = |shared: &mut Shared| {
            shared.answers.get(&number).filter(|answer| answer.ends > 0 && answer.is_flushed).cloned()
        };
        self.wait("the request has ended and its answer is flushed", ended)
    }

    #[track_caller]
    fn ask(&self, number: u64, ask: &Ask<'_>) -> Answer {
        self.begin(number, ask);
        self.ended(number)
    }

    #[track_caller]
    fn order(&self, kind: u32, number: u64, body: &[u8]) -> (u32, String) {
        self.put(self.event(kind, number, body, true, &[]));
        self.wait("the order is answered", |shared| shared.orders.get(&number).cloned())
    }

    /// Status, error and the spans of the replica's thread.
    #[track_caller]
    fn stop(mut self) -> (u32, String, Vec<Span>) {
        self.put(self.event(EVENT_STOP, 0, b"", true, &[]));
        let ended = self.replica.take().unwrap().join().unwrap();
        let shared = self.shared.0.lock().unwrap();
        assert_eq!(shared.held, 0, "every piece is given back");
        assert!(shared.answers.values().all(|answer| answer.ends <= 1), "{:?}", shared.answers);
        ended
    }
}

fn owned_headers(headers: &[(&str, &str)]) -> (Vec<String>, Vec<Header>) {
    let texts: Vec<String> =
        headers.iter().flat_map(|(name, value)| [(*name).to_owned(), (*value).to_owned()]).collect();
    let raw = texts.chunks(2).map(|pair| Header { name: Str::new(&pair[0]), value: Bytes::new(pair[1].as_bytes()) });
    let raw = raw.collect();
    (texts, raw)
}

// The tests.

#[test]
fn the_record_describes_deployments() {
    let hello = deployment_named("hello");
    let described = unsafe { (text(hello.doc), text(hello.code_function_name), text(hello.code_file_path)) };
    assert_eq!(described.0, "Says hello.\n\nTo whoever asks.");
    assert_eq!((described.1.as_str(), described.2.as_str()), ("serve::hello", "hooks/sdk/tests/serve.rs"));
    assert_eq!((hello.parameter_count, hello.flags, hello.max_ongoing_requests), (0, 0, 0));
    let model = deployment_named("Model");
    assert_eq!(model.flags, DEPLOYMENT_HEALTH | DEPLOYMENT_CONFIGURE | DEPLOYMENT_CALL);
    assert_eq!((model.parameter_count, model.max_ongoing_requests), (2, 64));
    let names: Vec<_> = (0..2)
        .map(|at| unsafe { &**model.parameters.add(at) })
        .map(|parameter| unsafe { (text(parameter.name), text(parameter.type_name), parameter.is_optional) })
        .collect();
    assert_eq!(names, [("path".into(), "String".into(), 0), ("is_broken".into(), "Option<bool>".into(), 1)]);
    assert_eq!(deployment_named("echo").max_ongoing_requests, 7);
}

#[test]
fn a_request_is_answered_with_its_own_context() {
    let host = Host::of("hello");
    let answer = host.ask(1, &Ask { target: "/cart?x=1", ..ASK });
    assert_eq!((answer.status, answer.text()), (200, "POST /cart?x=1 for id-1"));
    assert_eq!(answer.headers, [("x-replica".into(), "front#1".into())]);
    assert_eq!(host.stop(), (STATUS_OK, String::new(), Vec::new()));
}

#[test]
fn requests_interleave_and_their_contexts_do_not_mix() {
    const COUNT: u64 = 1000;
    let host = Host::of("interleaved");
    for number in 1..=COUNT {
        let (target, baggage) = ("/".repeat(1 + number as usize % 7), format!("n={number}"));
        host.begin(number, &Ask { target: &target, baggage: &baggage, ..ASK });
    }
    for number in 1..=COUNT {
        assert_eq!(host.ended(number).text(), format!("id-{number} n={number}"));
    }
    let (status, error, spans) = host.stop();
    assert_eq!((status, error.as_str(), spans.len()), (STATUS_OK, "", COUNT as usize));
    for span in spans {
        let number: u64 = span.attributes["id"].as_str().unwrap().strip_prefix("id-").unwrap().parse().unwrap();
        let parent = span.parent.expect("it has the request's span above it");
        assert_eq!((parent.trace_id, parent.span_id), (0xabc0 + u128::from(number), 0xdef0 + number));
        assert_eq!(span.releases, 1, "given back, which ends it");
    }
}

#[test]
fn a_function_that_blocks_has_a_thread_and_the_context() {
    let host = Host::of("add");
    let json = [("content-type", "application/json; charset=utf-8")];
    let answer = host.ask(1, &Ask { headers: &json, body: br#"{"terms":[1,2,39]}"#, ..ASK });
    assert_eq!((answer.status, answer.text()), (200, "42"));
    assert_eq!(answer.headers, [("content-type".into(), "application/json".into())]);

    let failed = host.ask(2, &Ask { headers: &json, body: br#"{"terms":[9223372036854775807,1]}"#, ..ASK });
    let failure = (TASK_ERROR_RETURNED, "alloc::string::String".to_owned(), "too large".to_owned());
    assert_eq!(failed.failure, Some(failure));

    let other = host.ask(3, &Ask { body: b"{}", ..ASK });
    assert_eq!(other.status, 415);
    assert!(other.text().contains("expected `content-type: application/json`, found none"), "{other:?}");
    let unfit = host.ask(4, &Ask { headers: &json, body: br#"{"terms":"x"}"#, ..ASK });
    assert_eq!(unfit.status, 422);
    assert_eq!(unfit.headers, [("content-type".into(), "application/problem+json".into())]);
    assert_eq!(host.stop().0, STATUS_OK);
}

#[test]
fn errors_and_panics_fail_the_request_and_the_replica_serves_on() {
    let host = Host::of("fails");
    let (kind, _, message) = host.ask(1, &Ask { body: b"error", ..ASK }).failure.unwrap();
    assert_eq!((kind, message.as_str()), (TASK_ERROR_RETURNED, "no luck"));
    let (kind, type_name, message) = host.ask(2, &Ask { body: b"panic", ..ASK }).failure.unwrap();
    assert_eq!((kind, type_name.as_str(), message.as_str()), (TASK_ERROR_PANICKED, "panic", "in the handler"));
    assert_eq!(host.ask(3, &Ask { body: b"", ..ASK }).text(), "well");
    assert_eq!(host.stop().0, STATUS_OK);
}

#[test]
fn bodies_cross_in_pieces_and_are_given_back() {
    let host = Host::of("echo");
    host.begin(1, &Ask { body: b"one,", is_last: false, ..ASK });
    let has = |text: &'static [u8]| move |shared: &mut Shared| (shared.answers.get(&1)?.body == text).then_some(());
    host.wait("the first piece comes back", has(b"one,"));
    host.put(host.event(EVENT_BODY, 1, b"two,", false, &[]));
    host.wait("the second piece comes back", has(b"one,two,"));
    host.put(host.event(EVENT_BODY, 1, b"three", true, &[("checksum", "7")]));
    let answer = host.ended(1);
    assert_eq!((answer.text(), answer.consumed), ("one,two,three", 13));
    assert_eq!(answer.trailers, [("checksum".into(), "7".into())]);
    assert_eq!(host.stop().0, STATUS_OK);
}

#[test]
fn a_client_that_reads_slowly_holds_up_its_own_response() {
    let host = Host::of("stream");
    host.shared.0.lock().unwrap().reads = false;
    host.begin(1, &ASK);
    host.wait("the window is full", |shared| (*shared.unread.get(&1)? >= WINDOW).then_some(()));
    // The others are not held up.
    host.shared.0.lock().unwrap().reads = true;
    assert_eq!(host.ask(2, &ASK).body.len(), 10 << 10);
    for _ in 0..3 {
        host.wait("the window is full or the response is whole", |shared| {
            let is_whole = shared.answers[&1].ends > 0;
            (is_whole || shared.unread[&1] >= WINDOW).then(|| shared.unread.insert(1, 0))
        });
        host.put(host.event(EVENT_ROOM, 1, b"", false, &[]));
    }
    let answer = host.ended(1);
    let expected: Vec<u8> = (b'0'..=b'9').flat_map(|digit| vec![digit; 1 << 10]).collect();
    assert_eq!((answer.body, answer.trailers), (expected, vec![("checksum".into(), "7".into())]));
    assert_eq!(host.stop().0, STATUS_OK);
}

#[test]
fn a_body_that_breaks_off_fails_what_has_begun() {
    let host = Host::of("stream");
    let answer = host.ask(1, &Ask { body: b"abort", ..ASK });
    assert_eq!((answer.status, answer.body.len()), (200, 10 << 10));
    assert_eq!(answer.failure.unwrap().2, "it broke");

    let echo = Host::of("echo");
    echo.begin(1, &Ask { body: b"half", is_last: false, ..ASK });
    echo.put(echo.event(EVENT_BODY_CUT, 1, b"", false, &[]));
    let answer = echo.ended(1);
    assert_eq!(answer.failure.unwrap().2, "the client did not send the rest of the body");
    assert_eq!((host.stop().0, echo.stop().0), (STATUS_OK, STATUS_OK));
}

#[test]
fn a_body_that_nobody_reads_holds_nobody_up() {
    let host = Host::of("hello");
    host.begin(1, &Ask { body: &[7; 1000], is_last: false, ..ASK });
    let answer = host.ended(1);
    assert_eq!((answer.ends, answer.consumed), (1, 1000));
    // It has ended; what still arrives is nobody's.
    host.put(host.event(EVENT_BODY, 1, b"late", true, &[]));
    host.put(host.event(EVENT_BODY, 99, b"of nobody", true, &[]));
    host.put(host.event(EVENT_GONE, 99, b"", true, &[]));
    host.put(host.event(77, 1, b"of the future", true, &[]));
    assert_eq!(host.ask(2, &ASK).ends, 1);
    assert_eq!(host.stop().0, STATUS_OK);
}

#[test]
fn when_the_client_goes_the_future_is_dropped() {
    let host = Host::of("never");
    host.begin(1, &ASK);
    host.begin(2, &ASK);
    host.wait("both have begun", |_| (BEGUN.load(Ordering::SeqCst) == 2).then_some(()));
    host.put(host.event(EVENT_GONE, 1, b"", true, &[]));
    let (kind, ..) = host.ended(1).failure.unwrap();
    assert_eq!((kind, DROPPED.load(Ordering::SeqCst)), (TASK_ERROR_CANCELLED, 1));
    // At the end of the replica the other one goes too.
    let shared = host.shared.clone();
    let (status, _, spans) = host.stop();
    assert_eq!((status, DROPPED.load(Ordering::SeqCst), spans.len()), (STATUS_OK, 2, 2));
    assert!(spans.iter().all(|span| span.releases == 1), "{spans:?}");
    let shared = shared.0.lock().unwrap();
    assert_eq!(shared.answers[&2].failure.as_ref().unwrap().0, TASK_ERROR_CANCELLED);
}

#[test]
fn a_tower_service_is_polled_until_it_is_ready() {
    let host = Host::of("tower");
    let answer = host.ask(1, &Ask { target: "/users/7", ..ASK });
    assert_eq!((answer.text(), answer.route.as_str()), ("/users/7", "/users/{id}"));
    assert_eq!(host.stop().0, STATUS_OK);
}

#[test]
fn a_type_has_arguments_health_and_settings() {
    let host = Host::starting("Model", json!(["/models/7"]));
    assert_eq!(host.ask(1, &ASK).text(), "/models/7 at 0");
    assert_eq!(host.order(EVENT_HEALTH, 1, b""), (STATUS_OK, String::new()));
    let settings = |value: Json| rmp_serde::to_vec_named(&value).unwrap();
    assert_eq!(host.order(EVENT_CONFIGURE, 2, &settings(json!({"temperature": 200.5}))).0, STATUS_OK);
    assert_eq!(host.ask(2, &ASK).text(), "/models/7 at 200.5");
    assert_eq!(host.order(EVENT_HEALTH, 3, b""), (STATUS_FAILED, "it is too hot".into()));
    let (status, reason) = host.order(EVENT_CONFIGURE, 4, &settings(json!({"temperature": "warm"})));
    assert_eq!(status, STATUS_FAILED);
    assert!(reason.contains("`user_config`") && reason.contains("temperature"), "{reason}");
    assert_eq!(host.stop().0, STATUS_OK);
}

#[test]
fn a_handler_that_cannot_be_made_says_why() {
    let table = [
        (json!([]), "argument 1 (`path`) of `Model` is missing; it takes String"),
        (json!(["/m", true, 1]), "`Model` takes 1 to 2 arguments (path: String, is_broken: Option<bool>), but got 3"),
        (json!([7]), "argument 1 (`path`) of `Model` takes String, but got an integer"),
        (json!([""]), "no path"),
        (json!(["/m", true]), "broken"),
    ];
    for (arguments, expected) in table {
        let host = Host::starting("Model", arguments.clone());
        let mut host = host;
        let (status, error, _) = host.replica.take().unwrap().join().unwrap();
        assert_eq!((status, error.as_str()), (STATUS_FAILED, expected), "{arguments}");
        assert!(!host.shared.0.lock().unwrap().is_ready);
    }
}

#[test]
fn what_is_collected_has_a_limit() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let whole = Body::from("12345").collect(5).await.unwrap();
        assert_eq!(&whole[..], b"12345");
        assert!(Body::from("123456").collect(5).await.unwrap_err().is_too_large());
        let (sender, body) = Body::channel(4);
        for piece in ["12", "34", "56"] {
            sender.send(piece).await.unwrap();
        }
        drop(sender);
        let error = body.collect(5).await.unwrap_err();
        assert_eq!((error.is_too_large(), error.to_string().as_str()), (true, "the body has more than 5 bytes"));
    });
}

/// Set when [`waits_for_go`] may answer.
static GO: AtomicBool = AtomicBool::new(false);

/// Answers when it may, for which it looks by the clock: no event wakes it.
#[deployment]
async fn waits_for_go(_: Request<Body>) -> &'static str {
    while !GO.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    "gone"
}

#[test]
fn an_answer_without_an_event_wakes_the_loop_to_flush() {
    let host = Host::of("waits_for_go");
    host.begin(1, &ASK);
    host.wait("the event is taken", |shared| shared.events.is_empty().then_some(()));
    GO.store(true, Ordering::SeqCst);
    assert_eq!(host.ended(1).text(), "gone");
    assert_eq!(host.stop().0, STATUS_OK);
}

#[test]
fn while_the_host_says_so_the_loop_looks_again_and_takes_what_comes() {
    let host = Host::of("interleaved");
    let set_looks = |looks| host.shared.0.lock().unwrap().looks = looks;
    set_looks(1_000);
    host.ask(1, &ASK);
    host.wait("it has looked as often as it was told", |shared| (shared.looks == 0).then_some(()));
    assert_eq!(host.ask(2, &ASK).text(), "id-2 ", "it slept, and was woken");
    set_looks(u32::MAX);
    (3..100).for_each(|number| assert_eq!(host.ask(number, &ASK).text(), format!("id-{number} ")));
    (100..200).for_each(|number| host.begin(number, &ASK));
    (100..200).for_each(|number| assert_eq!(host.ended(number).text(), format!("id-{number} ")));
    assert_ne!(host.wait("it looks", |shared| Some(shared.looks)), 0);
    assert_eq!(host.stop().0, STATUS_OK);
}

#[test]
fn without_a_request_there_is_no_context() {
    assert!(request_context().is_none());
    serve::set_route("/nowhere");
    assert!(!OtelContext::current().has_active_span());
}
