//! Handles: deployments call other deployments, and tasks call them too.

use std::any::type_name;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::Frame;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracer_abi as abi;

use super::body::{Body, BodyError};
use super::context::request_context;
use super::lent::read_headers;
use crate::host;
use crate::remote::{Encoded, array, current_context, with_reason};
use crate::{messagepack, task};

/// The most bytes of a request's body, which is read whole before it is sent.
const BODY_LIMIT: usize = 64 << 20;

/// Returns a handle to a deployment of this session: its name, `application/name` or `service/application/name`. The caller's own application is
/// searched first, then its service, then all.
///
/// Whether there is such a deployment is found out by the first call. Fails where no host of tracer has loaded this module, and where the host is too old.
///
/// ```no_run
/// use tracer_sdk::serve::{Body, CallError, Request, Response, deployment, deployment_handle};
///
/// /// Asks `Model`, in the same trace.
/// #[deployment]
/// async fn front(request: Request<Body>) -> Result<Response<Body>, CallError> {
///     deployment_handle("Model")?.request(request).await
/// }
/// ```
pub fn deployment_handle(deployment: impl Into<String>) -> Result<DeploymentHandle, CallError> {
    host::entry_since(6, "deployments cannot be called", |host| host.host_call).map_err(CallError::refused)?;
    Ok(DeploymentHandle { deployment: deployment.into(), model: String::new(), timeout: None })
}

/// A deployment that is called by its name. Clones are cheap.
///
/// A call goes from this process to a replica's, over a lane of their own: it passes neither the proxy nor the head. It waits for a place like the
/// requests of clients, within the `max_queued_requests` and the `queue_timeout` of the deployment. Its spans, `route_to_replica` and
/// `replica_handle_request`, are below the span that is current where the call is polled first; the deadline of the current request and the
/// baggage go along. A call whose future is dropped is cancelled.
#[derive(Clone, Debug)]
pub struct DeploymentHandle {
    deployment: String,
    model: String,
    timeout: Option<Duration>,
}

impl DeploymentHandle {
    /// Says which model the calls are for: all callers prefer the same replica for it as long as that has room, so that few replicas load it. The handler finds
    /// the model in the header `x-model-id`, and the spans have it as `multiplexed_model_id`.
    pub fn model(mut self, model: impl Into<String>) -> DeploymentHandle {
        self.model = model.into();
        self
    }

    /// Bounds the time of each call, beside the deadline of the request that is handled.
    pub fn timeout(mut self, timeout: Duration) -> DeploymentHandle {
        self.timeout = Some(timeout);
        self
    }

    /// Sends a request and waits for the head of the answer, whose body arrives as it is read. The body of the request is read first, up to 64 MiB.
    ///
    /// # Errors
    ///
    /// When there is no answer of the handler's: see [`CallError::kind`]. An answer of any status is no error.
    pub async fn request<B: Into<Body>>(&self, request: Request<B>) -> Result<Response<Body>, CallError> {
        let (head, body) = request.into_parts();
        let body = body.into().collect(BODY_LIMIT).await.map_err(|error| CallError::refused(error.to_string()))?;
        let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
        let authority = head.uri.authority().map(|authority| authority.as_str());
        let host = head.headers.get(http::header::HOST).and_then(|host| host.to_str().ok());
        let authority = authority.or(host).unwrap_or(&self.deployment);
        let asked = Asked { method: head.method.as_str(), target, authority, headers: &head.headers, body: &body };
        let call = self.begin(&asked)?;
        let (status, headers) = poll_fn(|context| call.answer.poll_head(context)).await?;
        let mut response = Response::new(Body::new(Rest { call }));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        Ok(response)
    }

    /// Calls a method of the deployment's type; [`MethodCall`] takes its arguments.
    ///
    /// ```no_run
    /// # async fn f(text: &str) -> Result<f64, tracer_sdk::serve::CallError> {
    /// use tracer_sdk::serve::deployment_handle;
    ///
    /// let score: f64 = deployment_handle("Model")?.call("predict").arg(text).send().await?;
    /// # Ok(score) }
    /// ```
    pub fn call(&self, method: impl Into<String>) -> MethodCall {
        MethodCall { handle: self.clone(), method: method.into(), arguments: Vec::new(), failure: None }
    }

    fn deadline_unix_nano(&self) -> u64 {
        let nanos = |time: SystemTime| {
            time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(0))
        };
        let own = self.timeout.and_then(|timeout| SystemTime::now().checked_add(timeout)).map(nanos);
        let of_request = request_context().and_then(|context| context.deadline()).map(nanos);
        own.into_iter().chain(of_request).min().unwrap_or(0)
    }

    /// Hands a call to the host.
    fn begin(&self, asked: &Asked<'_>) -> Result<Call, CallError> {
        let host_call = host::entry_since(6, "deployments cannot be called", |host| host.host_call);
        let host_call = host_call.map_err(CallError::refused)?;
        let current = current_context();
        let (parent, baggage) =
            current.as_ref().map_or((None, ""), |(context, baggage)| (Some(context.raw()), baggage));
        let request_id = request_context().map(|context| context.request_id().to_owned()).unwrap_or_default();
        let raw = |(name, value): (&HeaderName, &HeaderValue)| abi::Header {
            name: abi::Str::new(name.as_str()),
            value: abi::Bytes::new(value.as_bytes()),
        };
        let headers: Vec<_> = asked.headers.iter().map(raw).collect();
        let call = abi::Call {
            size: size_of::<abi::Call>(),
            deployment: abi::Str::new(&self.deployment),
            method: abi::Str::new(asked.method),
            target: abi::Str::new(asked.target),
            authority: abi::Str::new(asked.authority),
            headers: headers.as_ptr(),
            header_count: headers.len(),
            body: abi::Bytes::new(asked.body),
            request_id: abi::Str::new(&request_id),
            parent: parent.as_ref().map_or(std::ptr::null(), std::ptr::from_ref),
            baggage: abi::Str::new(baggage),
            deadline_unix_nano: self.deadline_unix_nano(),
            model: abi::Str::new(&self.model),
        };
        let answer = Arc::new(Answer::default());
        let data = Arc::into_raw(Arc::clone(&answer)).cast_mut().cast();
        let mut number = 0;
        // SAFETY: everything is borrowed from locals that outlive the call; `data` is the answer's, until the event that releases it.
        let begun = with_reason(|error| unsafe { host_call(&call, data, Some(on_event), &mut number, error) });
        begun.map_err(CallError::refused)?;
        answer.number.store(number, Ordering::Release);
        Ok(Call { answer })
    }
}

/// A call of a method, with the arguments that it has so far.
#[derive(Clone, Debug)]
#[must_use = "nothing is called before it is sent"]
pub struct MethodCall {
    handle: DeploymentHandle,
    method: String,
    arguments: Vec<Encoded>,
    /// The first thing that is wrong.
    failure: Option<CallError>,
}

impl MethodCall {
    /// Adds the next argument.
    pub fn arg(mut self, argument: impl Serialize) -> MethodCall {
        match task::encode(&argument) {
            Ok(bytes) => self.arguments.push(Encoded::Value(bytes)),
            Err(failure) => {
                let text = format!("argument {} of `{}`: {}", self.arguments.len() + 1, self.method, failure.message);
                self.failure.get_or_insert(CallError::refused(text));
            }
        }
        self
    }

    /// Calls the method and waits for what it returns.
    ///
    /// # Errors
    ///
    /// When the method returned an error or panicked, [`CallError::type_name`] and the message are that error's; else see [`CallError::kind`].
    pub async fn send<T: DeserializeOwned>(self) -> Result<T, CallError> {
        let method = self.method.clone();
        let body = self.begin().await?;
        let bytes = body.collect(BODY_LIMIT).await.map_err(CallError::of_body)?;
        decode(&method, &bytes)
    }

    /// Calls a method that returns [`Values`](super::Values), and returns its values as they come.
    pub async fn stream<T: DeserializeOwned>(self) -> Result<Answers<T>, CallError> {
        let method = self.method.clone();
        let body = self.begin().await?;
        Ok(Answers { method, body, bytes: BytesMut::new(), of: PhantomData })
    }

    /// Returns the body of the answer, once the method has begun to answer.
    async fn begin(self) -> Result<Body, CallError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let body = array(&self.arguments);
        let headers = HeaderMap::new();
        let asked = Asked { method: "", target: &self.method, authority: "", headers: &headers, body: &body };
        let call = self.handle.begin(&asked)?;
        let (status, _) = poll_fn(|context| call.answer.poll_head(context)).await?;
        let body = Body::new(Rest { call });
        if status == StatusCode::OK {
            return Ok(body);
        }
        let bytes = body.collect(BODY_LIMIT).await.map_err(CallError::of_body)?;
        let (type_name, message) = decode::<(String, String)>(&self.method, &bytes)?;
        Err(CallError::of_method(type_name, message))
    }
}

fn decode<T: DeserializeOwned>(method: &str, bytes: &[u8]) -> Result<T, CallError> {
    messagepack::decode(bytes)
        .map_err(|error| CallError::refused(format!("the result of `{method}` is no {}: {error}", type_name::<T>())))
}

/// The values that a method returns one after the other.
#[derive(Debug)]
pub struct Answers<T> {
    method: String,
    body: Body,
    /// Bytes that have come and are no whole value yet.
    bytes: BytesMut,
    of: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Answers<T> {
    /// Returns the next value, and none after the last.
    pub async fn next(&mut self) -> Option<Result<T, CallError>> {
        loop {
            if let Some(length) = self.bytes.first_chunk::<4>() {
                let length = u32::from_le_bytes(*length) as usize;
                if self.bytes.len() - 4 >= length {
                    self.bytes.advance(4);
                    return Some(decode(&self.method, &self.bytes.split_to(length)));
                }
            }
            match self.body.next().await {
                Some(Ok(piece)) => self.bytes.extend_from_slice(&piece),
                Some(Err(error)) => return Some(Err(CallError::of_body(error))),
                None if self.bytes.is_empty() => return None,
                None => {
                    self.bytes.clear();
                    return Some(Err(CallError::refused(format!("the values of `{}` end within one", self.method))));
                }
            }
        }
    }
}

/// A request, as it is handed to the host.
struct Asked<'a> {
    method: &'a str,
    target: &'a str,
    authority: &'a str,
    headers: &'a HeaderMap,
    body: &'a [u8],
}

/// Error of a call to which no handler has answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallError {
    kind: CallErrorKind,
    type_name: String,
    message: String,
}

/// Kind of a [`CallError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallErrorKind {
    /// There is no such deployment, or the call cannot be sent as it is.
    Refused,
    /// The queue of the deployment is full.
    QueueFull,
    /// No replica had a place within the `queue_timeout`.
    Unavailable,
    /// The answer did not come before the deadline.
    Timeout,
    /// The replica died after it had begun the call.
    ReplicaLost,
    /// The handler has failed or panicked before it answered; its span says more.
    HandlerFailed,
    /// The answer broke off half-way.
    Aborted,
}

impl CallError {
    fn refused(message: impl Into<String>) -> CallError {
        CallError { kind: CallErrorKind::Refused, type_name: String::new(), message: message.into() }
    }

    /// Makes the error that a method has returned.
    fn of_method(type_name: String, message: String) -> CallError {
        let kind = match type_name.as_str() {
            "NoSuchMethod" | "arguments" => CallErrorKind::Refused,
            _ => CallErrorKind::HandlerFailed,
        };
        CallError { kind, type_name, message }
    }

    /// Returns the error with which a body broke off.
    fn of_body(error: BodyError) -> CallError {
        match error.0.downcast::<CallError>() {
            Ok(error) => *error,
            Err(error) => CallError::refused(error.to_string()),
        }
    }

    fn of_outcome(outcome: &str, message: String) -> CallError {
        let kind = match outcome {
            "shed" => CallErrorKind::QueueFull,
            "unavailable" => CallErrorKind::Unavailable,
            "timeout" => CallErrorKind::Timeout,
            "replica_lost" => CallErrorKind::ReplicaLost,
            "handler_failed" => CallErrorKind::HandlerFailed,
            "stream_aborted" => CallErrorKind::Aborted,
            _ => CallErrorKind::Refused,
        };
        CallError { kind, type_name: String::new(), message }
    }

    /// Returns the type of the error that a method returned, as its span has it, or `panic`; empty for other errors.
    pub fn type_name(&self) -> &str {
        &self.type_name
    }

    /// Returns its kind.
    pub fn kind(&self) -> CallErrorKind {
        self.kind
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CallError {}

/// The answer of a call, as far as it has come: written by the host's threads, read by the future.
#[derive(Default)]
struct Answer {
    number: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    head: Option<(StatusCode, HeaderMap)>,
    pieces: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
    end: Option<Result<(), CallError>>,
    reader: Option<Waker>,
}

impl Answer {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what has come.
    fn put(&self, put: impl FnOnce(&mut State)) {
        let mut state = self.state();
        put(&mut state);
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    fn poll_head(&self, context: &mut Context<'_>) -> Poll<Result<(StatusCode, HeaderMap), CallError>> {
        let mut state = self.state();
        match (state.head.take(), &state.end) {
            (Some(head), _) => Poll::Ready(Ok(head)),
            (None, Some(Err(error))) => Poll::Ready(Err(error.clone())),
            (None, Some(Ok(()))) => Poll::Ready(Err(CallError::refused("the answer has no head"))),
            (None, None) => {
                state.reader = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    fn poll_frame(&self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut state = self.state();
        if let Some(piece) = state.pieces.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        if let Some(trailers) = state.trailers.take() {
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        match &mut state.end {
            Some(end) => {
                let end = std::mem::replace(end, Ok(()));
                Poll::Ready(end.err().map(|error| Err(BodyError(error.into()))))
            }
            None => {
                state.reader = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// A call on its way, which is cancelled when this is dropped before its end.
struct Call {
    answer: Arc<Answer>,
}

impl Call {
    fn consumed(&self, bytes: usize) {
        let consumed = host::entry_since(6, "deployments cannot be called", |host| host.host_call_consumed);
        if let Ok(consumed) = consumed {
            // SAFETY: the host's function takes any number.
            unsafe { consumed(self.answer.number.load(Ordering::Acquire), bytes) };
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.answer.state().end.is_some() {
            return;
        }
        let cancel = host::entry_since(6, "deployments cannot be called", |host| host.host_call_cancel);
        if let Ok(cancel) = cancel {
            // SAFETY: the host's function takes any number.
            unsafe { cancel(self.answer.number.load(Ordering::Acquire)) };
        }
    }
}

/// The body of an answer.
struct Rest {
    call: Call,
}

impl http_body::Body for Rest {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = self.call.answer.poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(piece) = frame.data_ref()
        {
            self.call.consumed(piece.len());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        let state = self.call.answer.state();
        state.pieces.is_empty() && state.trailers.is_none() && matches!(state.end, Some(Ok(())))
    }
}

/// Called from: any thread of the host's, with the data of a call.
unsafe extern "C" fn on_event(data: *mut c_void, event: *const abi::CallEvent) {
    // SAFETY: the host's event, lent for the call.
    let event = unsafe { host::read_sized(event) };
    if event.kind == abi::CALL_RELEASED {
        // SAFETY: made by `Arc::into_raw` in `begin`, and released once.
        drop(unsafe { Arc::<Answer>::from_raw(data.cast()) });
        return;
    }
    // SAFETY: the answer lives until it is released.
    let answer = unsafe { &*data.cast::<Answer>() };
    // SAFETY: texts and headers of the event are lent for the call.
    let (headers, bytes, outcome, message) = unsafe {
        let text = |text: abi::Str| String::from_utf8_lossy(text.as_bytes()).into_owned();
        let headers = read_headers(event.headers, event.header_count);
        (headers, Bytes::copy_from_slice(event.bytes.as_bytes()), text(event.outcome), text(event.message))
    };
    answer.put(|state| match event.kind {
        abi::CALL_HEAD => {
            let status = u16::try_from(event.status).ok().and_then(|status| StatusCode::from_u16(status).ok());
            state.head = Some((status.unwrap_or(StatusCode::BAD_GATEWAY), headers));
        }
        abi::CALL_BODY => state.pieces.push_back(bytes),
        abi::CALL_TRAILERS => state.trailers = Some(headers),
        abi::CALL_ENDED => state.end = Some(Ok(())),
        abi::CALL_FAILED => state.end = Some(Err(CallError::of_outcome(&outcome, message))),
        _ => {}
    });
}
