//! Calls of deployments by the code of a module: the entries of the host's table, in safe types.
//!
//! The functions here translate between the ABI and a [`CallHost`], and let no panic out. A process that cannot call deployments has no such host, and says so.

use std::ffi::c_void;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use tracer_abi as abi;
use tracer_core::http_field;
use tracer_core::propagation::{TraceContext, TraceParent};
use tracer_ipc::spool::record::slice;

use super::records::{guard, read_sized, text, utf8};

/// Sends requests to replicas. Calls are named by numbers, which mean something in this process only.
pub trait CallHost: Sync {
    /// Begins a call and returns its number. `sink` is told what comes of it, and dropped when nothing more does.
    fn call(&self, request: CallRequest, sink: CallSink) -> Result<u64, String>;
    /// Notes that so many bytes of an answer's body were used.
    fn consumed(&self, call: u64, bytes: usize);
    /// Gives a call up, if it has not ended.
    fn cancel(&self, call: u64);
}

/// Headers, with names in lower case.
pub type CallHeaders = Vec<(String, Vec<u8>)>;

/// A call of a deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallRequest {
    /// The deployment: its name, `application/name` or `service/application/name`.
    pub deployment: String,
    /// The method of HTTP; empty for a call of a method of the deployment.
    pub method: String,
    /// Path and query, or the name of the method.
    pub target: String,
    /// The host that the request is for; empty for none.
    pub authority: String,
    /// Headers.
    pub headers: CallHeaders,
    /// The whole body.
    pub body: Vec<u8>,
    /// The id of the request that the call is made for; empty for a new one.
    pub request_id: String,
    /// The span that is current where it is called.
    pub parent: Option<TraceContext>,
    /// The current W3C baggage.
    pub baggage: String,
    /// Time after which the answer is not wanted, in nanoseconds since the Unix epoch; 0 for never.
    pub deadline_unix_nano: u64,
    /// The model that the call is for; empty for none.
    pub model: String,
}

/// Something has come of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallEvent {
    /// The answer begins.
    Head(u16, CallHeaders),
    /// A piece of its body.
    Body(Vec<u8>),
    /// Trailers.
    Trailers(CallHeaders),
    /// The answer is whole.
    Ended,
    /// There is no answer, or no more of it.
    Failed {
        /// Outcome in a word, as the attribute `tracer.outcome` has it.
        outcome: &'static str,
        /// Reason for people.
        message: String,
    },
}

/// Takes the events of one call.
pub type CallSink = Box<dyn Fn(CallEvent) + Send + Sync>;

static CALL_HOST: OnceLock<&'static dyn CallHost> = OnceLock::new();

/// Offers a host to every module of this process. The first one stays.
pub fn offer_calls(host: &'static dyn CallHost) {
    let _ = CALL_HOST.set(host);
}

fn host() -> Result<&'static dyn CallHost, String> {
    CALL_HOST.get().copied().ok_or_else(|| {
        "deployments can be called in a handler or a task, but this process runs neither\n\
         (hint: call them in a function with `#[deployment]` or `#[task]`)"
            .into()
    })
}

/// The sink of a module: its function and its data, which is released when this is dropped.
struct ModuleSink {
    data: *mut c_void,
    on_event: unsafe extern "C" fn(data: *mut c_void, event: *const abi::CallEvent),
}

// SAFETY: by contract of the ABI events come from any thread.
unsafe impl Send for ModuleSink {}
// SAFETY: as above, and from one thread at a time for one call, to which `CallHost` keeps.
unsafe impl Sync for ModuleSink {}

impl fmt::Debug for ModuleSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModuleSink").finish_non_exhaustive()
    }
}

impl ModuleSink {
    fn notify(&self, event: &CallEvent) {
        let headers = match event {
            CallEvent::Head(_, headers) | CallEvent::Trailers(headers) => headers.as_slice(),
            _ => &[],
        };
        let raw: Vec<_> = headers.iter().map(raw_header).collect();
        let mut told = empty_event(0);
        (told.headers, told.header_count) = (raw.as_ptr(), raw.len());
        match event {
            CallEvent::Head(status, _) => (told.kind, told.status) = (abi::CALL_HEAD, u32::from(*status)),
            CallEvent::Body(bytes) => (told.kind, told.bytes) = (abi::CALL_BODY, abi::Bytes::new(bytes)),
            CallEvent::Trailers(_) => told.kind = abi::CALL_TRAILERS,
            CallEvent::Ended => told.kind = abi::CALL_ENDED,
            CallEvent::Failed { outcome, message } => {
                told.kind = abi::CALL_FAILED;
                (told.outcome, told.message) = (abi::Str::new(outcome), abi::Str::new(message));
            }
        }
        // SAFETY: the module's function with its own data; the event outlives the call.
        unsafe { (self.on_event)(self.data, &told) };
    }
}

impl Drop for ModuleSink {
    fn drop(&mut self) {
        // SAFETY: as in `tell`, once.
        unsafe { (self.on_event)(self.data, &empty_event(abi::CALL_RELEASED)) };
    }
}

fn raw_header((name, value): &(String, Vec<u8>)) -> abi::Header {
    abi::Header { name: abi::Str::new(name), value: abi::Bytes::new(value) }
}

fn empty_event(kind: u32) -> abi::CallEvent {
    abi::CallEvent {
        size: size_of::<abi::CallEvent>(),
        kind,
        status: 0,
        headers: std::ptr::null(),
        header_count: 0,
        bytes: abi::Bytes::new(&[]),
        outcome: abi::Str::new(""),
        message: abi::Str::new(""),
    }
}

/// Returns a call as a module has said it.
///
/// # Safety
///
/// Everything that `call` points to is lent for the call.
unsafe fn request(call: &abi::Call) -> Result<CallRequest, String> {
    // SAFETY: promised by the caller, for all of the function.
    unsafe {
        let parent = call.parent.as_ref().map(|_| {
            let parent = read_sized(call.parent);
            let ids = TraceParent { trace_id: parent.trace_id, span_id: parent.span_id, flags: parent.trace_flags };
            TraceContext { parent: ids, trace_state: text(parent.trace_state) }
        });
        let header = |header: &abi::Header| {
            let name = utf8(header.name, "name of a header")?.to_ascii_lowercase();
            let value = header.value.as_bytes();
            if !http_field::is_token(name.as_bytes()) || !http_field::is_value(value) {
                return Err(format!("`{}` is no header that can be sent", name.escape_debug()));
            }
            Ok((name, value.to_vec()))
        };
        let visible = |part: abi::Str, what: &str| {
            let found = utf8(part, what)?;
            match found.bytes().all(|byte| byte.is_ascii_graphic()) {
                true => Ok(found.to_owned()),
                false => Err(format!("the {what} has characters that none may have: `{}`", found.escape_debug())),
            }
        };
        let headers = slice(call.headers, call.header_count).iter().map(header).collect::<Result<_, String>>()?;
        Ok(CallRequest {
            deployment: utf8(call.deployment, "name of the deployment")?.to_owned(),
            method: visible(call.method, "method")?,
            target: visible(call.target, "target")?,
            authority: visible(call.authority, "host")?,
            headers,
            body: call.body.as_bytes().to_vec(),
            request_id: visible(call.request_id, "request id")?,
            baggage: if parent.is_some() { utf8(call.baggage, "baggage")?.to_owned() } else { String::new() },
            parent,
            deadline_unix_nano: call.deadline_unix_nano,
            model: visible(call.model, "name of the model")?,
        })
    }
}

pub(super) unsafe extern "C" fn host_call(
    call: *const abi::Call,
    data: *mut c_void,
    on_event: Option<unsafe extern "C" fn(data: *mut c_void, event: *const abi::CallEvent)>,
    number: *mut u64,
    error: *mut abi::TextBuffer,
) -> u32 {
    // SAFETY: everything is lent for the call, by contract of the ABI.
    unsafe {
        guard(error, || {
            let on_event = on_event.ok_or("a call has no function for its events")?;
            let sink = ModuleSink { data, on_event };
            let request = request(&read_sized(call))?;
            *number = host()?.call(request, Box::new(move |event| sink.notify(&event)))?;
            Ok(abi::STATUS_OK)
        })
    }
}

pub(super) unsafe extern "C" fn host_call_consumed(number: u64, bytes: usize) {
    let _ = catch_unwind(AssertUnwindSafe(|| host().map(|host| host.consumed(number, bytes))));
}

pub(super) unsafe extern "C" fn host_call_cancel(number: u64) {
    let _ = catch_unwind(AssertUnwindSafe(|| host().map(|host| host.cancel(number))));
}
