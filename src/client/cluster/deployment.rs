//! Calls of deployments by a program: requests and methods, answered while the program waits.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tracer_core::clock::now_unix_nano;
use tracer_core::lock::lock;
use tracer_core::{request_names as names, value};
use tracer_host::hook::{CallEvent, CallHeaders, CallRequest};

use super::connected::Cluster;
use super::current;
use crate::calls::Calls;

/// A deployment that is called by its name. Clones are cheap.
///
/// A call goes from this process to a replica's: it passes neither the proxy nor the head, and waits for a place as requests of clients do. Its spans are below
/// the span that OpenTelemetry has current on this thread, or below what [`Init::parent`](super::Init::parent) says.
#[derive(Clone, Debug)]
pub struct DeploymentHandle {
    cluster: Cluster,
    deployment: String,
    timeout: Option<Duration>,
}

/// A call of a method of a deployment, with the arguments that it has so far.
#[derive(Debug)]
#[must_use = "nothing is called before it is sent"]
pub struct DeploymentCall {
    handle: DeploymentHandle,
    request: CallRequest,
    arguments: Vec<Vec<u8>>,
    failure: Option<DeploymentError>,
}

/// An answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeploymentAnswer {
    /// The status of HTTP.
    pub status: u16,
    /// Headers, with names in lower case.
    pub headers: CallHeaders,
    /// The body.
    pub body: Vec<u8>,
}

/// Error of a call that has no answer, or whose method has failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct DeploymentError {
    error_type: String,
    message: String,
}

impl DeploymentError {
    fn new(error_type: &str, message: impl Into<String>) -> DeploymentError {
        DeploymentError { error_type: error_type.to_owned(), message: message.into() }
    }

    /// Returns the type of the error that a method returned, or `panic`; of another failure what became of the call, such as `unavailable`, `timeout`,
    /// `shed`, `replica_lost` or `refused`.
    pub fn error_type(&self) -> &str {
        &self.error_type
    }
}

impl Cluster {
    /// Returns a handle to a deployment of a service: its name, `application/name` or `service/application/name`.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let cluster = tracer::init()?;
    /// let model = cluster.deployment("Model");
    /// let score: f64 = model.call("score").arg("some text").send()?;
    /// let page = model.request("GET", "/status", &[], Vec::new())?;
    /// # let _ = (score, page);
    /// # Ok(()) }
    /// ```
    pub fn deployment(&self, deployment: impl Into<String>) -> DeploymentHandle {
        DeploymentHandle { cluster: self.clone(), deployment: deployment.into(), timeout: None }
    }

    fn calls(&self) -> Result<Arc<Calls>, DeploymentError> {
        let mut calls = lock(&self.0.calls);
        if let Some(calls) = &*calls {
            return Ok(Arc::clone(calls));
        }
        let made = Calls::connect(&self.0.session_dir, self.0.recorder, None);
        let made = made.map_err(|reason| DeploymentError::new(names::OUTCOME_REFUSED, reason))?;
        Ok(Arc::clone(calls.insert(made)))
    }
}

impl DeploymentHandle {
    /// Bounds the time of each call.
    pub fn timeout(mut self, timeout: Duration) -> DeploymentHandle {
        self.timeout = Some(timeout);
        self
    }

    /// Begins a call of a public method of the deployment's type.
    pub fn call(&self, method: impl Into<String>) -> DeploymentCall {
        let request = CallRequest { target: method.into(), ..CallRequest::default() };
        DeploymentCall { handle: self.clone(), request, arguments: Vec::new(), failure: None }
    }

    /// Sends a request and waits for the whole answer. One of any status is no error.
    pub fn request(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Result<DeploymentAnswer, DeploymentError> {
        let headers = headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.as_bytes().to_vec()));
        let (method, target) = (method.to_owned(), target.to_owned());
        let authority = self.deployment.clone();
        let headers = headers.collect();
        let answer = self.begin(CallRequest { method, target, authority, headers, body, ..CallRequest::default() })?;
        let (status, headers) = answer.head()?;
        Ok(DeploymentAnswer { status, headers, body: answer.rest()? })
    }

    fn begin(&self, mut request: CallRequest) -> Result<Answer, DeploymentError> {
        let inner = &self.cluster.0;
        let carrier = current::carrier().unwrap_or_else(|| inner.parent.clone());
        request.deployment = self.deployment.clone();
        (request.parent, request.baggage) = (carrier.trace_context, carrier.baggage);
        let timeout = self.timeout.map(|timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        request.deadline_unix_nano = timeout.map_or(0, |timeout| now_unix_nano().saturating_add(timeout));
        let calls = self.cluster.calls()?;
        let state = Arc::new(Shared::default());
        let sink = Arc::clone(&state);
        let number = calls.call(request, Box::new(move |event| sink.put(event)));
        Ok(Answer { calls, number, state })
    }
}

impl DeploymentCall {
    /// Adds the next argument.
    pub fn arg(mut self, argument: impl Serialize) -> DeploymentCall {
        match value::to_bytes(&argument) {
            Ok(bytes) => self.arguments.push(bytes),
            Err(error) => {
                let text = format!("argument {} of `{}`: {error}", self.arguments.len() + 1, self.request.target);
                self.failure.get_or_insert(DeploymentError::new(names::OUTCOME_REFUSED, text));
            }
        }
        self
    }

    /// Calls the method and waits for what it returns.
    pub fn send<T: DeserializeOwned>(self) -> Result<T, DeploymentError> {
        let method = self.request.target.clone();
        let answer = self.begin()?;
        decode(&method, &answer.rest()?)
    }

    /// Calls a method that returns its values one after the other, and returns them as they come.
    pub fn stream<T: DeserializeOwned>(self) -> Result<DeploymentValues<T>, DeploymentError> {
        let method = self.request.target.clone();
        let answer = self.begin()?;
        Ok(DeploymentValues { method, answer, bytes: Vec::new(), of: PhantomData })
    }

    fn begin(mut self) -> Result<Answer, DeploymentError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let count = u32::try_from(self.arguments.len()).unwrap_or(u32::MAX);
        self.request.body.push(0xdd);
        self.request.body.extend_from_slice(&count.to_be_bytes());
        self.arguments.iter().for_each(|argument| self.request.body.extend_from_slice(argument));
        let method = self.request.target.clone();
        let answer = self.handle.begin(self.request)?;
        if answer.head()?.0 == 200 {
            return Ok(answer);
        }
        let (error_type, message): (String, String) = decode(&method, &answer.rest()?)?;
        Err(DeploymentError { error_type, message })
    }
}

fn decode<T: DeserializeOwned>(method: &str, bytes: &[u8]) -> Result<T, DeploymentError> {
    let expected = std::any::type_name::<T>();
    let other = |error| DeploymentError::new("result", format!("the result of `{method}` is no {expected}: {error}"));
    value::from_bytes(bytes).map_err(other)
}

/// The values that a method returns one after the other.
#[derive(Debug)]
pub struct DeploymentValues<T> {
    method: String,
    answer: Answer,
    /// Bytes that have come and are no whole value yet.
    bytes: Vec<u8>,
    of: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Iterator for DeploymentValues<T> {
    type Item = Result<T, DeploymentError>;

    fn next(&mut self) -> Option<Result<T, DeploymentError>> {
        loop {
            if let Some(length) = self.bytes.first_chunk::<4>() {
                let end = (u32::from_le_bytes(*length) as usize).saturating_add(4);
                if self.bytes.len() >= end {
                    let value = decode(&self.method, &self.bytes[4..end]);
                    self.bytes.drain(..end);
                    return Some(value);
                }
            }
            match self.answer.next() {
                Ok(Some(piece)) => self.bytes.extend_from_slice(&piece),
                Ok(None) if self.bytes.is_empty() => return None,
                Ok(None) => {
                    self.bytes.clear();
                    let text = format!("the values of `{}` end within one", self.method);
                    return Some(Err(DeploymentError::new("result", text)));
                }
                Err(error) => {
                    self.bytes.clear();
                    return Some(Err(error));
                }
            }
        }
    }
}

/// A call on its way, which is cancelled when this is dropped before its end.
#[derive(Debug)]
struct Answer {
    calls: Arc<Calls>,
    number: u64,
    state: Arc<Shared>,
}

/// The answer, as far as it has come.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    has_come: Condvar,
}

#[derive(Debug, Default)]
struct State {
    head: Option<(u16, CallHeaders)>,
    pieces: VecDeque<Vec<u8>>,
    end: Option<Result<(), DeploymentError>>,
}

impl Shared {
    fn put(&self, event: CallEvent) {
        let mut state = lock(&self.state);
        match event {
            CallEvent::Head(status, headers) => state.head = Some((status, headers)),
            CallEvent::Body(bytes) => state.pieces.push_back(bytes),
            CallEvent::Trailers(_) => {}
            CallEvent::Ended => state.end = Some(Ok(())),
            CallEvent::Failed { outcome, message } => state.end = Some(Err(DeploymentError::new(outcome, message))),
        }
        drop(state);
        self.has_come.notify_all();
    }

    /// Waits until there is what is looked for.
    fn wait<T>(&self, mut look: impl FnMut(&mut State) -> Option<T>) -> T {
        let mut state = lock(&self.state);
        loop {
            if let Some(found) = look(&mut state) {
                return found;
            }
            state = self.has_come.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Answer {
    fn head(&self) -> Result<(u16, CallHeaders), DeploymentError> {
        self.state.wait(|state| match (state.head.take(), &state.end) {
            (Some(head), _) => Some(Ok(head)),
            (None, Some(Err(error))) => Some(Err(error.clone())),
            (None, Some(Ok(()))) => Some(Err(DeploymentError::new("result", "the answer has no head"))),
            (None, None) => None,
        })
    }

    /// Waits for the next piece of the body; none at its end.
    fn next(&self) -> Result<Option<Vec<u8>>, DeploymentError> {
        let next = self.state.wait(|state| match (state.pieces.pop_front(), &state.end) {
            (Some(piece), _) => Some(Ok(Some(piece))),
            (None, Some(end)) => Some(end.clone().map(|()| None)),
            (None, None) => None,
        });
        if let Ok(Some(piece)) = &next {
            self.calls.consumed(self.number, piece.len());
        }
        next
    }

    fn rest(&self) -> Result<Vec<u8>, DeploymentError> {
        let mut body = Vec::new();
        while let Some(piece) = self.next()? {
            body.extend_from_slice(&piece);
        }
        Ok(body)
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.calls.cancel(self.number);
    }
}
