//! The request that a thread works for.

use std::cell::RefCell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::lent::HostTable;
use crate::proxy::Held;

/// The request that is handled: its id, where it belongs, and until when its answer is wanted.
///
/// Each request has it in its extensions too. Clones are cheap and share one request.
#[derive(Clone)]
pub struct RequestContext(Arc<Inner>);

pub(super) struct Inner {
    /// The host's table and the request's number in it; none for a hook, which is not the one that handles it.
    pub(super) host: Option<(HostTable, u64)>,
    pub(super) application: &'static str,
    pub(super) deployment: &'static str,
    pub(super) replica: &'static str,
    pub(super) request_id: String,
    pub(super) route_prefix: String,
    pub(super) client: String,
    pub(super) model: String,
    pub(super) deadline_unix_nano: u64,
}

impl RequestContext {
    pub(super) fn new(inner: Inner) -> RequestContext {
        RequestContext(Arc::new(inner))
    }

    /// Returns the id that the client and the access log see (`x-request-id`). A client may choose it, so two requests may have the same.
    pub fn request_id(&self) -> &str {
        &self.0.request_id
    }

    /// Returns the name of the application.
    pub fn application(&self) -> &'static str {
        self.0.application
    }

    /// Returns the deployment's name in the application.
    pub fn deployment(&self) -> &'static str {
        self.0.deployment
    }

    /// Returns the replica that handles the request.
    pub fn replica(&self) -> &'static str {
        self.0.replica
    }

    /// Returns the prefix under which the application is served; `/` for all.
    pub fn route_prefix(&self) -> &str {
        &self.0.route_prefix
    }

    /// Returns the client's address, as `address:port`; empty when unknown.
    pub fn client(&self) -> &str {
        &self.0.client
    }

    /// Returns the model that the request is for, as its header `x-model-id` or its caller says; empty if neither does.
    pub fn model(&self) -> &str {
        &self.0.model
    }

    /// Returns the time after which the answer is not wanted, if there is one.
    pub fn deadline(&self) -> Option<SystemTime> {
        let nanos = Some(self.0.deadline_unix_nano).filter(|&nanos| nanos != 0)?;
        Some(SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos))
    }

    /// Says which route the handler has found, such as `/users/{id}`: the attribute `http.route` of the request's spans. Of several the last counts. In a
    /// hook it does nothing.
    pub fn set_route(&self, route: &str) {
        if let Some((host, number)) = &self.0.host {
            host.set_route(*number, route);
        }
    }

    /// Returns the request that a hook is told of.
    #[cfg(feature = "hooks")]
    fn of_hook(request: crate::hook::RunningRequest) -> RequestContext {
        let deadline = request.deadline.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
        RequestContext::new(Inner {
            host: None,
            application: request.application,
            deployment: request.deployment,
            replica: request.replica,
            request_id: request.request_id,
            route_prefix: request.route_prefix,
            client: request.client,
            model: request.model,
            deadline_unix_nano: deadline.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)),
        })
    }
}

impl fmt::Debug for RequestContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("RequestContext");
        debug.field("request_id", &self.request_id()).field("application", &self.application());
        debug.field("deployment", &self.deployment()).field("replica", &self.replica()).finish_non_exhaustive()
    }
}

/// The current request, as the ABI has it.
#[cfg(any(feature = "otel-0-31", feature = "otel-0-32", feature = "otel-0-33"))]
pub(crate) struct Running {
    raw: tracer_abi::RunningRequest,
    /// Owner of the texts that `raw` points to.
    _context: RequestContext,
}

#[cfg(any(feature = "otel-0-31", feature = "otel-0-32", feature = "otel-0-33"))]
impl Running {
    /// Returns it as the ABI has it. Its texts are there as long as this value is.
    pub(crate) fn raw(&self) -> &tracer_abi::RunningRequest {
        &self.raw
    }
}

/// Returns the request that runs on this thread, to be told to a hook.
#[cfg(any(feature = "otel-0-31", feature = "otel-0-32", feature = "otel-0-33"))]
pub(crate) fn running() -> Option<Running> {
    let context = CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()?;
    let text = tracer_abi::Str::new;
    let raw = tracer_abi::RunningRequest {
        size: size_of::<tracer_abi::RunningRequest>(),
        request_id: text(context.request_id()),
        application: text(context.application()),
        deployment: text(context.deployment()),
        replica: text(context.replica()),
        route_prefix: text(context.route_prefix()),
        client: text(context.client()),
        deadline_unix_nano: context.0.deadline_unix_nano,
        model: text(context.model()),
    };
    Some(Running { raw, _context: context })
}

thread_local! {
    static CURRENT: RefCell<Option<RequestContext>> = const { RefCell::new(None) };
}

/// Returns the request that runs on this thread, or none outside of a handler. Threads and futures that a handler starts are outside; take the
/// value along.
///
/// In a hook, a span processor's `on_start` and a sampler are told the request for which a span starts: that of the handler which makes it, and of the span
/// around the handler. `on_end` is told nothing.
pub fn request_context() -> Option<RequestContext> {
    let own = CURRENT.try_with(|current| current.borrow().clone()).ok().flatten();
    #[cfg(feature = "hooks")]
    let own = own.or_else(|| crate::hook::running_request().map(RequestContext::of_hook));
    own
}

/// Says which route the handler of the current request has found: see [`RequestContext::set_route`].
pub fn set_route(route: &str) {
    if let Some(context) = request_context() {
        context.set_route(route);
    }
}

/// The request that a handler runs for, with its span, to be taken along to a future that outlives the handler's call, such as one that serves a WebSocket:
/// spans, tasks and calls of that future belong to the request then.
///
/// ```
/// use tracer_sdk::serve::{RequestScope, request_context};
///
/// async fn later() {
///     // Here `request_context()` is that of the request, and spans are below its span.
///     let _ = request_context();
/// }
///
/// # fn handler() {
/// let scope = RequestScope::current();
/// let _future = scope.run(later());
/// # }
/// ```
#[derive(Clone)]
pub struct RequestScope {
    held: Held,
    context: Option<RequestContext>,
}

impl RequestScope {
    /// Returns the scope of what runs on this thread; an empty one outside of a handler.
    pub fn current() -> RequestScope {
        RequestScope { held: Held::current(), context: request_context() }
    }

    /// Returns a future that is polled within the scope.
    pub async fn run<F: Future>(self, future: F) -> F::Output {
        let mut future = pin!(future);
        poll_fn(|waker| {
            let _current = (self.held.attach(), enter(self.context.clone()));
            future.as_mut().poll(waker)
        })
        .await
    }
}

impl fmt::Debug for RequestScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestScope").field("context", &self.context).finish_non_exhaustive()
    }
}

/// Makes `context` current until the guard is dropped.
pub(super) fn enter(context: Option<RequestContext>) -> Entered {
    Entered(CURRENT.replace(context))
}

pub(super) struct Entered(Option<RequestContext>);

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}
