//! Deployments: functions, types and tower services that answer HTTP requests (feature `serve`).
//!
//! ```
//! use tracer_sdk::serve::{Body, Request, Response, deployment};
//!
//! /// Says hello.
//! #[deployment]
//! async fn hello(request: Request<Body>) -> Response<Body> {
//!     let name = request.uri().path().trim_start_matches('/').to_owned();
//!     Response::new(Body::from(format!("hello, {name}\n")))
//! }
//! ```
//!
//! A request is the types of the crates `http`, `http-body` and `bytes`, so that code which is written for hyper, axum or tonic takes it as it is.
//!
//! # The life of a request
//!
//! ```text
//!   host                                        module: one loop for each replica
//!    │ on_serve(deployment, serving) ──────────▶ a Tokio runtime; the handler is made in it
//!    │ ◀─ host_ready ──────────────────────────
//!    │  a request is claimed, its span opened
//!    │  event_fd is readable ──────────────────▶ host_take_events: all that there are
//!    │                                           a future for each request, polled with the request's span,
//!    │                                           baggage and RequestContext current, and at no other time
//!    │ ◀─ host_respond, host_send… ────────────  the response and its body
//!    │                                           the future is dropped, the loan of the span ends
//!    │ ◀─ host_end / host_fail ────────────────  an error, a panic: the host answers 500
//!    │ ◀─ host_flush ──────────────────────────  once for all that was answered meanwhile
//!    ▼ the client goes: EVENT_GONE ────────────▶ the future is dropped
//! ```
//!
//! Pieces of bodies cross the boundary without a copy: each has an owner, who is told when it is no longer used. A handler that reads slowly holds up its
//! own client, because the host lets a window of bytes arrive and no more; a client that reads slowly holds up its own response.
//!
//! # WebSockets
//!
//! A handler may answer 101 and take the connection over, as axum's `WebSocketUpgrade` does: the request is served by hyper, so `hyper::upgrade` works.
//! The request, its span and its place in the replica's limit last until the connection is closed. What serves it runs in a future of its own, outside of the
//! request; [`RequestScope`] brings it back in.

mod batch;
mod body;
mod context;
mod exchange;
mod handle;
mod handler;
mod lent;
mod method;
mod models;
mod replica;
mod upgrade;

pub use batch::{BatchError, batch};
#[doc(hidden)]
pub use batch::{BatchFunction, BatchPoint, Outputs, adopt, on_a_thread};
pub use body::{Body, BodyError, Sender};
pub use bytes::Bytes;
#[cfg(any(feature = "otel-0-31", feature = "otel-0-32", feature = "otel-0-33"))]
pub(crate) use context::running;
pub use context::{RequestContext, RequestScope, request_context, set_route};
pub use handle::{Answers, CallError, CallErrorKind, DeploymentHandle, MethodCall, deployment_handle};
#[doc(hidden)]
pub use handler::{Creation, Handled, Handler, asynchronous, blocking, service};
pub use handler::{FromRequest, IntoResponse, Json};
pub use http::{self, HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
pub use method::{ValueSender, Values};
#[doc(hidden)]
pub use method::{method_answer, method_arguments};
pub use models::Models;
pub(crate) use replica::serve;
use serde::de::DeserializeOwned;
/// Makes a function or a type a deployment, under its name: what `tracer serve run module:name` serves.
///
/// - An `async fn` of one argument that implements [`FromRequest`], such as `Request<Body>` or [`Json`], and whose result implements
///   [`IntoResponse`], or is a `Result` of one with an error that can be displayed. Requests run beside each other on the replica's loop.
/// - A plain function of that kind. Each request has a thread of a pool.
/// - A plain function without arguments that returns a tower `Service` of `http` requests, such as an `axum::Router`. It runs once in each replica.
/// - An `impl` block with `pub fn new`, which may be `async`, takes the deployment's arguments and runs once in each replica, and `pub async fn handle(&self,
///   request)`. `pub async fn health(&self)` says whether the replica is healthy; `pub async fn reconfigure(&self, settings: T)` takes the
///   deployment's `user_config` while it serves. Both return nothing, or a `Result` of nothing.
///
/// The other public `async` methods with `&self` of such a type can be called by other deployments and by tasks, through a [`DeploymentHandle`]: their arguments and
/// results are those of tasks, and [`Values`] come one after the other.
///
/// An `Err` and a panic are answered with status 500 and say nothing of the inside; the request's span has the exception. The limit of requests that a
/// replica handles at a time is the service's, unless `#[deployment(max_ongoing_requests = 64)]` says otherwise.
pub use tracer_macros::deployment;

use crate::items::ParameterItem;
use crate::messagepack;
use crate::task::{Arguments, Failure};

/// A deployment, as [`deployment`] describes it.
#[doc(hidden)]
#[derive(Debug)]
pub struct DeploymentItem {
    /// The name of the function or type.
    pub name: &'static str,
    /// Its documentation.
    pub doc: &'static str,
    /// The crate it is in.
    pub crate_name: &'static str,
    /// The version of that crate.
    pub crate_version: &'static str,
    /// Its name with the path to it.
    pub function_name: &'static str,
    /// The file it is in.
    pub file: &'static str,
    /// The line in it, from 1.
    pub line: u32,
    /// The parameters of its creation.
    pub parameters: &'static [ParameterItem],
    /// The `DEPLOYMENT_` flags of the contract.
    pub flags: u32,
    /// The most requests that a replica handles at a time; 0 when it does not say.
    pub max_ongoing_requests: u32,
    /// The function with the largest batches and their size, of those that collect requests.
    pub batch: Option<(&'static str, u32)>,
    /// Decodes the arguments and makes the handler.
    pub create: fn(&mut Arguments<'_>) -> Result<Creation, Failure>,
}

inventory::collect!(DeploymentItem);

/// Decodes the settings that a deployment is given, its `user_config`.
#[doc(hidden)]
pub fn settings<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    messagepack::decode(bytes).map_err(|error| {
        let expected = std::any::type_name::<T>();
        Failure::runtime(format!("the settings (`user_config`) do not fit {expected}: {error}"))
    })
}
