//! Runs a deployment of a module: lends it the host's table of functions, and hands it events.
//!
//! What a replica does with requests is a [`ReplicaHost`], in types of Rust; this file alone knows the pointers. Bodies cross the boundary without
//! a copy in both directions: a [`ModulePiece`] is given back to its module when it is dropped, and what is lent to the module is dropped when
//! the module releases it.

use std::ffi::c_void;
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::Mutex;

use tracer_abi as abi;

use super::module::{ParameterDescription, Record, describe_parameters, read_sized, text};
use super::{ActiveSpan, Module, ModuleError, Recorder};
use tracer_core::propagation::TraceContext;
use tracer_core::task::Failure;

/// A deployment of a module that is ready to be run.
#[derive(Clone, Copy, Debug)]
pub struct LoadedDeployment {
    deployment: Record<abi::Deployment>,
}

/// What a replica is told about itself.
#[derive(Clone, Debug)]
pub struct ReplicaSettings<'a> {
    /// A MessagePack array of the arguments of the handler's creation.
    pub arguments: &'a [u8],
    /// The name of the application.
    pub application: &'a str,
    /// The name of the deployment in it.
    pub deployment: &'a str,
    /// The replica's name.
    pub replica: &'a str,
    /// Most requests that are handled at a time.
    pub max_ongoing_requests: u32,
    /// Number of threads that run handlers.
    pub threads: u32,
}

/// The host's answer to a part of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is taken.
    Yes,
    /// It cannot be sent as it is.
    No,
    /// There is no room for it yet.
    Full,
    /// The client has gone.
    Gone,
}

impl Taken {
    fn status(self) -> u32 {
        match self {
            Taken::Yes => abi::STATUS_OK,
            Taken::No => abi::STATUS_FAILED,
            Taken::Full => abi::STATUS_FULL,
            Taken::Gone => abi::STATUS_CANCELLED,
        }
    }
}

/// The host of a replica: where its events come from, and where its answers go.
///
/// `take_events` is called from one thread at a time; everything else from any thread.
pub trait ReplicaHost: Sync {
    /// The handler is made.
    fn ready(&self);
    /// Adds the next events, so many at most. None when there are none; then the event descriptor is not readable until there are.
    fn take_events(&self, limit: usize, events: &mut Vec<ReplicaEvent>);
    /// Begins the response of a request.
    fn respond(&self, request: u64, status: u32, headers: &[(&str, &[u8])], is_last: bool) -> Taken;
    /// Takes the next piece of a response's body, or gives it back with the reason.
    fn send(&self, request: u64, piece: ModulePiece) -> Result<(), (Taken, ModulePiece)>;
    /// Ends a request in good order.
    fn end(&self, request: u64, trailers: &[(&str, &[u8])]) -> Taken;
    /// Ends a request whose handler has failed.
    fn fail(&self, request: u64, failure: Failure);
    /// So many bytes of the request's body were used.
    fn consumed(&self, request: u64, bytes: usize);
    /// The handler has found this route.
    fn set_route(&self, request: u64, route: &str);
    /// The answer to an order: why not, if it was not carried out.
    fn answer(&self, order: u64, failure: Option<String>);
    /// Sends what was answered.
    fn flush(&self);
}

/// Something that happened to a request, or to the replica.
#[derive(Debug)]
pub enum ReplicaEvent {
    /// A request begins.
    Request {
        /// Its number.
        number: u64,
        /// Its head.
        head: Box<Head>,
        /// True if it has no body.
        is_last: bool,
    },
    /// A piece of its body.
    Body {
        /// The number of the request.
        number: u64,
        /// The bytes.
        piece: Vec<u8>,
        /// The trailers, with the last piece.
        trailers: Vec<(String, Vec<u8>)>,
        /// True if nothing follows.
        is_last: bool,
    },
    /// The rest of its body will not come.
    BodyCut(u64),
    /// There is room for the response's body again.
    Room(u64),
    /// Nobody wants the response any more.
    Gone(u64),
    /// Asks whether the handler is healthy.
    Health(u64),
    /// Gives the handler settings, as MessagePack.
    Configure(u64, Vec<u8>),
    /// No request is open and none will come.
    Stop,
}

/// The head of a request.
#[derive(Debug)]
pub struct Head {
    /// Such as `GET`.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// `http` or `https`.
    pub scheme: &'static str,
    /// The host that the client named.
    pub authority: String,
    /// 10, 11 or 20.
    pub version: u32,
    /// Its headers, with names in lower case.
    pub headers: Vec<(String, Vec<u8>)>,
    /// Names it in logs.
    pub request_id: String,
    /// The prefix under which the application is served.
    pub route_prefix: String,
    /// The client's address.
    pub client: String,
    /// When its time is up; 0 for never.
    pub deadline_unix_nano: u64,
    /// The handle of its span, lent until the request has ended; see [`lend`].
    pub span: LentSpan,
    /// The context of that span, or of the request where nothing is recorded.
    pub context: Option<TraceContext>,
    /// The W3C baggage.
    pub baggage: String,
}

/// The handle of a span that is lent to a module.
#[derive(Clone, Copy, Debug)]
pub struct LentSpan(*mut c_void);

// SAFETY: functions of the lent table may be called with it from any thread.
unsafe impl Send for LentSpan {}

/// Lends a span to a module. It has to live until the module has ended the request.
pub fn lend(span: Option<&ActiveSpan>) -> LentSpan {
    LentSpan(span.map_or(ptr::null_mut(), ActiveSpan::handle))
}

/// A piece of a body that belongs to the module, which gets it back when this is dropped.
pub struct ModulePiece(abi::Piece);

// SAFETY: by contract, the bytes do not change, and are released from any thread, once.
unsafe impl Send for ModulePiece {}
// SAFETY: as above.
unsafe impl Sync for ModulePiece {}

impl std::ops::Deref for ModulePiece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: readable until it is released.
        unsafe { self.0.bytes.as_bytes() }
    }
}

impl fmt::Debug for ModulePiece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

impl Drop for ModulePiece {
    fn drop(&mut self) {
        if let Some(release) = self.0.release {
            // SAFETY: the module's function with the module's owner, once.
            unsafe { release(self.0.owner) };
        }
    }
}

impl LoadedDeployment {
    /// Finds a deployment in a module, and gets the module ready.
    pub fn find(
        module: Module,
        name: &str,
        tracing: Option<&'static Recorder>,
    ) -> Result<LoadedDeployment, ModuleError> {
        let deployment = module.deployment(name)?;
        module.get_ready(tracing)?;
        Ok(LoadedDeployment { deployment })
    }

    /// Most requests that a replica handles at a time, by its author; 0 to leave it to the service.
    pub fn max_ongoing_requests(&self) -> u32 {
        self.deployment.max_ongoing_requests
    }

    /// True if the handler can be asked whether it is healthy.
    pub fn has_health(&self) -> bool {
        self.deployment.flags & abi::DEPLOYMENT_HEALTH != 0
    }

    /// True if the handler takes settings while it runs.
    pub fn is_configurable(&self) -> bool {
        self.deployment.flags & abi::DEPLOYMENT_CONFIGURE != 0
    }

    /// The arguments of its creation.
    pub fn parameters(&self) -> Vec<ParameterDescription> {
        describe_parameters(self.deployment.parameters, self.deployment.parameter_count)
    }

    /// Runs a replica on this thread until it has taken [`ReplicaEvent::Stop`]. Everything lent lives as long as the process.
    pub fn serve(
        &self,
        settings: &ReplicaSettings<'_>,
        event_fd: BorrowedFd<'static>,
        host: &'static dyn ReplicaHost,
    ) -> Result<(), String> {
        let Some(on_serve) = self.deployment.on_serve else {
            return Err("the deployment has no function to run".into());
        };
        let leak = |text: &str| abi::Str::new(String::leak(text.to_owned()));
        let lent: &'static Lent = Box::leak(Box::new(Lent { host, events: Mutex::default() }));
        let serving = Box::leak(Box::new(abi::Serving {
            size: size_of::<abi::Serving>(),
            data: ptr::from_ref(lent).cast_mut().cast(),
            arguments: abi::Bytes::new(Vec::leak(settings.arguments.to_vec())),
            application: leak(settings.application),
            deployment: leak(settings.deployment),
            replica: leak(settings.replica),
            max_ongoing_requests: settings.max_ongoing_requests,
            threads: settings.threads,
            event_fd: event_fd.as_raw_fd(),
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
        }));
        let mut reason = [0; 4096];
        let mut error = abi::TextBuffer::new(&mut reason);
        // SAFETY: the module passed the staircase and is ready; what is lent lives as long as the process.
        let status = unsafe { on_serve(self.deployment.original(), serving, &mut error) };
        if status == abi::STATUS_OK {
            return Ok(());
        }
        let filled = error.filled();
        let said = String::from_utf8_lossy(&reason[..filled]).into_owned();
        Err(if said.is_empty() { "the module has not said why".into() } else { said })
    }
}

/// What the table's functions get back.
struct Lent {
    host: &'static dyn ReplicaHost,
    /// The events that the module was given last.
    events: Mutex<Vec<LentEvent>>,
}

/// An event, with everything that its pointers lead to.
struct LentEvent {
    raw: Box<abi::RequestEvent>,
    _head: Option<Box<LentHead>>,
    _headers: Vec<abi::Header>,
    _trailers: Vec<(String, Vec<u8>)>,
}

// SAFETY: its pointers lead to what it owns, and to spans that may be used from any thread.
unsafe impl Send for LentEvent {}

struct LentHead {
    raw: abi::RequestHead,
    context: Option<abi::SpanContext>,
    head: Box<Head>,
}

fn headers_of(headers: &[(String, Vec<u8>)]) -> Vec<abi::Header> {
    let header =
        |(name, value): &(String, Vec<u8>)| abi::Header { name: abi::Str::new(name), value: abi::Bytes::new(value) };
    headers.iter().map(header).collect()
}

fn piece_of(bytes: Vec<u8>) -> abi::Piece {
    if bytes.is_empty() {
        return abi::Piece::EMPTY;
    }
    let owner = Box::new(bytes);
    let bytes = abi::Bytes::new(&owner);
    abi::Piece { bytes, owner: Box::into_raw(owner).cast(), release: Some(release) }
}

unsafe extern "C" fn release(owner: *mut c_void) {
    // SAFETY: made by `piece_of`, and released once.
    drop(unsafe { Box::from_raw(owner.cast::<Vec<u8>>()) });
}

impl LentEvent {
    fn of(event: ReplicaEvent) -> LentEvent {
        let mut raw = Box::new(abi::RequestEvent {
            size: size_of::<abi::RequestEvent>(),
            kind: 0,
            is_last: 0,
            number: 0,
            head: ptr::null(),
            piece: abi::Piece::EMPTY,
            trailers: ptr::null(),
            trailer_count: 0,
        });
        let (mut lent_head, mut headers, mut kept) = (None, Vec::new(), Vec::new());
        let (kind, number) = match event {
            ReplicaEvent::Request { number, head, is_last } => {
                raw.is_last = is_last.into();
                headers = headers_of(&head.headers);
                let lent = LentHead::of(head, &headers);
                raw.head = &raw const lent.raw;
                lent_head = Some(lent);
                (abi::EVENT_REQUEST, number)
            }
            ReplicaEvent::Body { number, piece, trailers, is_last } => {
                raw.is_last = is_last.into();
                raw.piece = piece_of(piece);
                headers = headers_of(&trailers);
                (raw.trailers, raw.trailer_count) = (headers.as_ptr(), headers.len());
                kept = trailers;
                (abi::EVENT_BODY, number)
            }
            ReplicaEvent::BodyCut(number) => (abi::EVENT_BODY_CUT, number),
            ReplicaEvent::Room(number) => (abi::EVENT_ROOM, number),
            ReplicaEvent::Gone(number) => (abi::EVENT_GONE, number),
            ReplicaEvent::Health(order) => (abi::EVENT_HEALTH, order),
            ReplicaEvent::Configure(order, settings) => {
                raw.piece = piece_of(settings);
                (abi::EVENT_CONFIGURE, order)
            }
            ReplicaEvent::Stop => (abi::EVENT_STOP, 0),
        };
        (raw.kind, raw.number) = (kind, number);
        LentEvent { raw, _head: lent_head, _headers: headers, _trailers: kept }
    }
}

impl LentHead {
    fn of(head: Box<Head>, headers: &[abi::Header]) -> Box<LentHead> {
        let raw = abi::RequestHead {
            size: size_of::<abi::RequestHead>(),
            method: abi::Str::new(&head.method),
            target: abi::Str::new(&head.target),
            scheme: abi::Str::new(head.scheme),
            authority: abi::Str::new(&head.authority),
            version: head.version,
            has_length: head.headers.iter().any(|(name, _)| name == "content-length").into(),
            headers: headers.as_ptr(),
            header_count: headers.len(),
            request_id: abi::Str::new(&head.request_id),
            route_prefix: abi::Str::new(&head.route_prefix),
            client: abi::Str::new(&head.client),
            deadline_unix_nano: head.deadline_unix_nano,
            span: head.span.0,
            span_context: ptr::null(),
            baggage: abi::Str::new(&head.baggage),
        };
        let context = head.context.as_ref().map(|context| abi::SpanContext {
            size: size_of::<abi::SpanContext>(),
            trace_id: context.parent.trace_id,
            span_id: context.parent.span_id,
            trace_flags: context.parent.flags,
            is_remote: u8::from(head.span.0.is_null()),
            trace_state: abi::Str::new(&context.trace_state),
        });
        let mut lent = Box::new(LentHead { raw, context, head });
        lent.raw.span_context = lent.context.as_ref().map_or(ptr::null(), ptr::from_ref);
        debug_assert!(lent.raw.method.len == lent.head.method.len());
        lent
    }
}

/// # Safety
///
/// `data` is that of a table that [`LoadedDeployment::serve`] has lent.
unsafe fn lent<'a>(data: *mut c_void) -> &'a Lent {
    // SAFETY: promised by the caller; it lives as long as the process.
    unsafe { &*data.cast::<Lent>() }
}

/// # Safety
///
/// `headers` points to so many of them, all readable for `'a`.
unsafe fn read_headers<'a>(headers: *const abi::Header, count: usize) -> Vec<(&'a str, &'a [u8])> {
    let headers = if count == 0 || headers.is_null() {
        &[]
    } else {
        // SAFETY: promised by the caller.
        unsafe { std::slice::from_raw_parts(headers, count) }
    };
    // SAFETY: as above. A name that is no text has bytes that no name may have, and is found to be none.
    let pair = |header: &abi::Header| unsafe {
        (std::str::from_utf8(header.name.as_bytes()).unwrap_or("\0"), header.value.as_bytes())
    };
    headers.iter().map(pair).collect()
}

unsafe extern "C" fn host_ready(data: *mut c_void) {
    // SAFETY: the host's own data.
    unsafe { lent(data) }.host.ready();
}

unsafe extern "C" fn host_take_events(
    data: *mut c_void,
    events: *mut *const abi::RequestEvent,
    capacity: usize,
) -> usize {
    // SAFETY: the host's own data.
    let lent = unsafe { lent(data) };
    let mut taken = Vec::new();
    lent.host.take_events(capacity, &mut taken);
    let mut own = lent.events.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    own.clear();
    own.extend(taken.into_iter().take(capacity).map(LentEvent::of));
    for (at, event) in own.iter().enumerate() {
        // SAFETY: there is room for `capacity` pointers, by contract; the event lives until the next call.
        unsafe { *events.add(at) = &raw const *event.raw };
    }
    own.len()
}

unsafe extern "C" fn host_respond(data: *mut c_void, request: u64, response: *const abi::ResponseHead) -> u32 {
    // SAFETY: the host's own data; the response is borrowed for the call.
    let (lent, response) = unsafe { (lent(data), read_sized(response)) };
    // SAFETY: as above.
    let headers = unsafe { read_headers(response.headers, response.header_count) };
    lent.host.respond(request, response.status, &headers, response.is_last != 0).status()
}

unsafe extern "C" fn host_send(data: *mut c_void, request: u64, piece: *const abi::Piece) -> u32 {
    // SAFETY: the host's own data; the piece is borrowed for the call, and what it describes is the host's if it is taken.
    let (lent, piece) = unsafe { (lent(data), *piece) };
    match lent.host.send(request, ModulePiece(piece)) {
        Ok(()) => abi::STATUS_OK,
        Err((taken, piece)) => {
            // It stays the module's.
            std::mem::forget(piece);
            taken.status()
        }
    }
}

unsafe extern "C" fn host_end(data: *mut c_void, request: u64, trailers: *const abi::Header, count: usize) -> u32 {
    // SAFETY: the host's own data; the trailers are borrowed for the call.
    let (lent, trailers) = unsafe { (lent(data), read_headers(trailers, count)) };
    lent.host.end(request, &trailers).status()
}

unsafe extern "C" fn host_fail(data: *mut c_void, request: u64, error: *const abi::TaskError) -> u32 {
    // SAFETY: the host's own data; the error is borrowed for the call.
    let (lent, error) = unsafe { (lent(data), read_sized(error)) };
    lent.host.fail(request, super::task::failure_of(&error));
    abi::STATUS_OK
}

unsafe extern "C" fn host_consumed(data: *mut c_void, request: u64, bytes: usize) {
    // SAFETY: the host's own data.
    unsafe { lent(data) }.host.consumed(request, bytes);
}

unsafe extern "C" fn host_set_route(data: *mut c_void, request: u64, route: abi::Str) {
    // SAFETY: the host's own data.
    unsafe { lent(data) }.host.set_route(request, &text(route));
}

unsafe extern "C" fn host_answer(data: *mut c_void, order: u64, status: u32, reason: abi::Str) {
    // SAFETY: the host's own data.
    let host = unsafe { lent(data) }.host;
    host.answer(order, (status != abi::STATUS_OK).then(|| text(reason)));
}

unsafe extern "C" fn host_flush(data: *mut c_void) {
    // SAFETY: the host's own data.
    unsafe { lent(data) }.host.flush();
}
