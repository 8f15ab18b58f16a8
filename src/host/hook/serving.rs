//! Runs a deployment of a module: the table that a replica lends to it, in safe types.
//!
//! The module runs a loop of its own on the thread that calls [`LoadedDeployment::serve`]. It asks for [events](RequestEvents) and answers
//! through the table, whose functions are those of a [`RequestHost`]. The spans of requests are kept here from the event of a request to the
//! call that ends it, because that is how long they are lent.

mod events;

use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

pub use events::{NewRequest, RequestEvents};
use rustc_hash::FxHashMap;
use tracer_abi as abi;
use tracer_core::lock::lock;
use tracer_core::task::Failure;
use tracer_ipc::spool::record::slice;

use super::module::{ParameterDescription, Record, describe_parameters};
use super::records::text;
use super::task::failure_of;
use crate::hook::error::ModuleError;
use crate::hook::module::Module;
use crate::hook::recorder::{ActiveSpan, Recorder};

/// A deployment that can be served.
#[derive(Clone, Copy, Debug)]
pub struct LoadedDeployment {
    deployment: Record<abi::Deployment>,
}

/// Settings of a replica, lent for as long as the process lives.
#[derive(Clone, Copy, Debug)]
pub struct ServingSettings {
    /// Arguments of the handler's creation, a MessagePack array.
    pub arguments: &'static [u8],
    /// The name of the application.
    pub application: &'static str,
    /// The name of the deployment.
    pub deployment: &'static str,
    /// The name of the replica.
    pub replica: &'static str,
    /// Number of requests at a time.
    pub max_ongoing_requests: u32,
    /// Number of threads of its runtime.
    pub threads: u32,
    /// Readable while there are events.
    pub event_fd: BorrowedFd<'static>,
}

/// Host side of the functions of the table. They are called from any thread, [`take_events`](Self::take_events) from one at a time.
pub trait RequestHost: Sync {
    /// Notes that the handler is made.
    fn ready(&self);
    /// Adds the events that there are.
    fn take_events(&self, events: &mut RequestEvents);
    /// Begins a response.
    fn respond(&self, request: u64, response: &ModuleResponse<'_>) -> Answered;
    /// Takes the next piece of a response's body, or gives it back.
    fn send(&self, request: u64, piece: ModulePiece) -> Result<(), (Answered, ModulePiece)>;
    /// Notes that the request has ended in good order. Its span is no longer lent.
    fn end(&self, request: u64, trailers: ModuleHeaders<'_>, span: Option<ActiveSpan>) -> Answered;
    /// Notes that the request has ended without a whole response. Its span is no longer lent.
    fn fail(&self, request: u64, failure: Failure, span: Option<ActiveSpan>);
    /// Notes that so many bytes of a request's body were used.
    fn consumed(&self, request: u64, bytes: usize);
    /// Notes that the handler has found a route.
    fn set_route(&self, request: u64, route: &str);
    /// The answer to an order.
    fn answer(&self, order: u64, outcome: Result<(), String>);
    /// Sends what was answered.
    fn flush(&self);
    /// Returns whether the module is to look for events again before it sleeps.
    fn look(&self) -> bool;
}

/// Outcome of handing over a part of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// It is taken.
    Taken,
    /// The client reads too slowly.
    Full,
    /// Nobody wants it any more.
    Gone,
    /// It cannot be sent as it is.
    Unsendable,
}

impl Answered {
    fn status(self) -> u32 {
        match self {
            Answered::Taken => abi::STATUS_OK,
            Answered::Full => abi::STATUS_FULL,
            Answered::Gone => abi::STATUS_CANCELLED,
            Answered::Unsendable => abi::STATUS_FAILED,
        }
    }
}

/// The head of a response.
#[derive(Clone, Copy, Debug)]
pub struct ModuleResponse<'a> {
    /// Its status, which is not checked.
    pub status: u32,
    /// True if there is neither body nor trailers.
    pub is_last: bool,
    /// Its headers.
    pub headers: ModuleHeaders<'a>,
}

/// Headers of a module's, not checked.
#[derive(Clone, Copy, Debug)]
pub struct ModuleHeaders<'a>(&'a [abi::Header]);

impl<'a> ModuleHeaders<'a> {
    /// Returns whether there is none.
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Names and values.
    pub fn iter(self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone {
        // SAFETY: the headers are lent for the call, with what they point to.
        self.0.iter().map(|header| unsafe { (header.name.as_bytes(), header.value.as_bytes()) })
    }
}

/// Bytes of a module's, given back when they are dropped.
#[derive(Debug)]
pub struct ModulePiece(abi::Piece);

// SAFETY: by contract of the ABI the bytes do not change, and are given back from any thread.
unsafe impl Send for ModulePiece {}
// SAFETY: as above.
unsafe impl Sync for ModulePiece {}

impl From<Vec<u8>> for ModulePiece {
    /// Bytes of this side's, as a module would give them.
    fn from(bytes: Vec<u8>) -> ModulePiece {
        ModulePiece(events::give(bytes))
    }
}

impl std::ops::Deref for ModulePiece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: readable until they are given back.
        unsafe { self.0.bytes.as_bytes() }
    }
}

impl Drop for ModulePiece {
    fn drop(&mut self) {
        if let Some(release) = self.0.release {
            // SAFETY: the module's function with its own owner, once.
            unsafe { release(self.0.owner) };
        }
    }
}

/// Data of the table, which its functions get back.
struct Lent {
    host: &'static dyn RequestHost,
    events: Mutex<RequestEvents>,
    /// The spans of open requests.
    spans: Mutex<FxHashMap<u64, ActiveSpan>>,
}

impl LoadedDeployment {
    /// Finds a deployment in a module, and gets the module ready to run it.
    pub fn find(
        module: Module,
        name: &str,
        tracing: Option<&'static Recorder>,
    ) -> Result<LoadedDeployment, ModuleError> {
        let deployment = module.deployment(name)?;
        module.get_ready(tracing)?;
        Ok(LoadedDeployment { deployment })
    }

    /// Returns whether it takes settings while it runs.
    pub fn is_configurable(&self) -> bool {
        self.deployment.flags & abi::DEPLOYMENT_CONFIGURE != 0
    }

    /// Returns whether its methods can be called.
    pub fn takes_calls(&self) -> bool {
        self.deployment.flags & abi::DEPLOYMENT_CALL != 0
    }

    /// Returns whether it can be asked if it is healthy.
    pub fn has_health(&self) -> bool {
        self.deployment.flags & abi::DEPLOYMENT_HEALTH != 0
    }

    /// Returns the number of requests that a replica handles at a time, if its author says so.
    pub fn max_ongoing_requests(&self) -> Option<u32> {
        Some(self.deployment.max_ongoing_requests).filter(|limit| *limit > 0)
    }

    /// Returns the function with the largest batches, and the number of requests in one; none if it collects none.
    pub fn largest_batch(&self) -> Option<(String, u32)> {
        let abi::Deployment { batch_function, max_batch_size, .. } = *self.deployment;
        (max_batch_size > 0).then(|| (text(batch_function), max_batch_size))
    }

    /// Returns the arguments of its creation.
    pub fn parameters(&self) -> Vec<ParameterDescription> {
        describe_parameters(self.deployment.parameters, self.deployment.parameter_count)
    }

    /// Returns the qualified name of the function or type, its file and its line.
    pub fn code(&self) -> (String, String, u32) {
        let abi::Deployment { code_function_name, code_file_path, code_line_number, .. } = *self.deployment;
        (text(code_function_name), text(code_file_path), code_line_number)
    }

    /// Makes the handler on this thread and runs it until it has taken the event that ends it. Fails with the module's reason.
    pub fn serve(&self, settings: &ServingSettings, host: &'static dyn RequestHost) -> Result<(), String> {
        let Some(on_serve) = self.deployment.on_serve else {
            return Err("the deployment has no function to call".into());
        };
        let lent = Box::leak(Box::new(Lent { host, events: Mutex::default(), spans: Mutex::default() }));
        let serving = Box::leak(Box::new(table(settings, std::ptr::from_mut(lent).cast())));
        let mut reason = [0; 4096];
        let mut error = abi::TextBuffer::new(&mut reason);
        // SAFETY: the module passed the staircase and is ready; the table lives as long as the process.
        let status = unsafe { on_serve(self.deployment.original(), serving, &mut error) };
        if status == abi::STATUS_OK {
            return Ok(());
        }
        let filled = error.filled();
        Err(String::from_utf8_lossy(&reason[..filled]).into_owned())
    }
}

fn table(settings: &ServingSettings, data: *mut c_void) -> abi::Serving {
    abi::Serving {
        size: size_of::<abi::Serving>(),
        data,
        arguments: abi::Bytes::new(settings.arguments),
        application: abi::Str::new(settings.application),
        deployment: abi::Str::new(settings.deployment),
        replica: abi::Str::new(settings.replica),
        max_ongoing_requests: settings.max_ongoing_requests,
        threads: settings.threads,
        event_fd: settings.event_fd.as_raw_fd(),
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
    }
}

impl Lent {
    /// Takes the span of a request that ends.
    fn take_span(&self, request: u64) -> Option<ActiveSpan> {
        lock(&self.spans).remove(&request)
    }

    fn take_events(&self, capacity: usize, mut take: impl FnMut(usize, *const abi::RequestEvent)) -> usize {
        let mut events = lock(&self.events);
        if events.were_all_taken() {
            events.clear();
            self.host.take_events(&mut events);
            events.lay_out();
            if !events.spans.is_empty() {
                lock(&self.spans).extend(events.spans.drain(..));
            }
        }
        let taken = events.take(capacity);
        taken.iter().enumerate().for_each(|(at, event)| take(at, event));
        taken.len()
    }
}

/// Runs `body` with what the table was lent with. A panic becomes `failed`.
///
/// # Safety
///
/// `data` is that of [`LoadedDeployment::serve`].
unsafe fn with<R>(data: *mut c_void, failed: R, body: impl FnOnce(&'static Lent) -> R) -> R {
    // SAFETY: promised by the caller; it lives as long as the process, and all in it may be used from any thread.
    let lent = unsafe { &*data.cast::<Lent>() };
    catch_unwind(AssertUnwindSafe(|| body(lent))).unwrap_or(failed)
}

unsafe extern "C" fn host_ready(data: *mut c_void) {
    // SAFETY: by contract of the ABI, for this and the functions that follow: `data` is the table's, and what is pointed to is lent for the call.
    unsafe { with(data, (), |lent| lent.host.ready()) };
}

unsafe extern "C" fn host_take_events(
    data: *mut c_void,
    events: *mut *const abi::RequestEvent,
    capacity: usize,
) -> usize {
    // SAFETY: as above; there is a place for as many as is said.
    unsafe { with(data, 0, |lent| lent.take_events(capacity, |at, event| events.add(at).write(event))) }
}

unsafe extern "C" fn host_respond(data: *mut c_void, request: u64, response: *const abi::ResponseHead) -> u32 {
    let body = |lent: &'static Lent| {
        // SAFETY: as above.
        let (response, headers) = unsafe {
            let response = super::records::read_sized(response);
            let headers = slice(response.headers, response.header_count);
            (response, headers)
        };
        let response =
            ModuleResponse { status: response.status, is_last: response.is_last != 0, headers: ModuleHeaders(headers) };
        lent.host.respond(request, &response).status()
    };
    // SAFETY: as above.
    unsafe { with(data, abi::STATUS_FAILED, body) }
}

unsafe extern "C" fn host_send(data: *mut c_void, request: u64, piece: *const abi::Piece) -> u32 {
    let body = |lent: &'static Lent| {
        // SAFETY: as above; it is this side's, unless it is given back.
        let piece = ModulePiece(unsafe { piece.read() });
        match lent.host.send(request, piece) {
            Ok(()) => abi::STATUS_OK,
            Err((answered, piece)) => {
                // It stays the module's.
                std::mem::forget(piece);
                answered.status()
            }
        }
    };
    // SAFETY: as above.
    unsafe { with(data, abi::STATUS_CANCELLED, body) }
}

unsafe extern "C" fn host_end(data: *mut c_void, request: u64, trailers: *const abi::Header, count: usize) -> u32 {
    let body = |lent: &'static Lent| {
        // SAFETY: as above.
        let trailers = ModuleHeaders(unsafe { slice(trailers, count) });
        lent.host.end(request, trailers, lent.take_span(request)).status()
    };
    // SAFETY: as above.
    unsafe { with(data, abi::STATUS_FAILED, body) }
}

unsafe extern "C" fn host_fail(data: *mut c_void, request: u64, error: *const abi::TaskError) -> u32 {
    let body = |lent: &'static Lent| {
        // SAFETY: as above.
        let failure = unsafe { failure_of(error) };
        lent.host.fail(request, failure, lent.take_span(request));
        abi::STATUS_OK
    };
    // SAFETY: as above.
    unsafe { with(data, abi::STATUS_FAILED, body) }
}

unsafe extern "C" fn host_consumed(data: *mut c_void, request: u64, bytes: usize) {
    // SAFETY: as above.
    unsafe { with(data, (), |lent| lent.host.consumed(request, bytes)) };
}

unsafe extern "C" fn host_set_route(data: *mut c_void, request: u64, route: abi::Str) {
    // SAFETY: as above.
    unsafe { with(data, (), |lent| lent.host.set_route(request, &text(route))) };
}

unsafe extern "C" fn host_answer(data: *mut c_void, order: u64, status: u32, reason: abi::Str) {
    let body = |lent: &'static Lent| {
        let outcome = if status == abi::STATUS_OK { Ok(()) } else { Err(text(reason)) };
        lent.host.answer(order, outcome);
    };
    // SAFETY: as above.
    unsafe { with(data, (), body) };
}

unsafe extern "C" fn host_flush(data: *mut c_void) {
    // SAFETY: as above.
    unsafe { with(data, (), |lent| lent.host.flush()) };
}

unsafe extern "C" fn host_look(data: *mut c_void) -> u32 {
    // SAFETY: as above.
    unsafe { with(data, 0, |lent| lent.host.look().into()) }
}
