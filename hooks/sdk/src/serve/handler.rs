//! Handlers: functions and types that answer requests, behind one trait.

use std::fmt::Display;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use pin_project_lite::pin_project;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tower_service::Service;

use super::body::{Body, BodyError};
use super::context;
use crate::proxy::Held;
use crate::task::Failure;

/// The response, or why there is none: then the host answers.
pub type Handled = Result<Response<Body>, Failure>;

/// A future in a box.
pub(super) type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A handler, once it is made: creation may wait for what it needs.
pub type Creation = Boxed<Result<Arc<dyn Handler>, Failure>>;

/// A handler of a replica's requests.
pub trait Handler: Send + Sync + 'static {
    /// Answers a request.
    fn call(&self, request: Request<Body>) -> Boxed<Handled>;

    /// Names the methods that can be called.
    fn methods(&self) -> &'static [&'static str] {
        &[]
    }

    /// Calls a method with these arguments, a MessagePack array; none if there is no such method.
    fn call_method(&self, method: &str, arguments: Bytes) -> Option<Boxed<Handled>> {
        let _ = (method, arguments);
        None
    }

    /// Finds out whether the handler is healthy. Called only for deployments that have [`tracer_abi::DEPLOYMENT_HEALTH`].
    fn health(&self) -> Boxed<Result<(), Failure>> {
        Box::pin(async { Ok(()) })
    }

    /// Takes settings, a MessagePack value. Called only for deployments that have [`tracer_abi::DEPLOYMENT_CONFIGURE`].
    fn reconfigure(&self, settings: Bytes) -> Boxed<Result<(), Failure>> {
        let _ = settings;
        Box::pin(async { Err(Failure::runtime("the deployment takes no settings")) })
    }
}

/// The argument of a handler: the request, or what is made of it.
#[diagnostic::on_unimplemented(
    message = "a handler takes a request, and `{Self}` is not made of one",
    label = "not the argument of a handler",
    note = "take `Request<Body>`, `Request<Bytes>`, `Json<T>` of a `T: serde::Deserialize`, `Bytes` or `String`"
)]
pub trait FromRequest: Sized + Send + 'static {
    /// Makes it, or the response that refuses the request.
    fn from_request(request: Request<Body>) -> impl Future<Output = Result<Self, Response<Body>>> + Send;
}

/// The most bytes of a body that are read for a handler that takes it whole.
const WHOLE_BODY: usize = 64 << 20;

impl FromRequest for Request<Body> {
    async fn from_request(request: Request<Body>) -> Result<Self, Response<Body>> {
        Ok(request)
    }
}

impl FromRequest for Request<Bytes> {
    async fn from_request(request: Request<Body>) -> Result<Self, Response<Body>> {
        let (head, body) = request.into_parts();
        Ok(Request::from_parts(head, whole(body).await?))
    }
}

impl FromRequest for Bytes {
    async fn from_request(request: Request<Body>) -> Result<Self, Response<Body>> {
        whole(request.into_body()).await
    }
}

impl FromRequest for String {
    async fn from_request(request: Request<Body>) -> Result<Self, Response<Body>> {
        let bytes = whole(request.into_body()).await?;
        String::from_utf8(bytes.into())
            .map_err(|error| refusal(StatusCode::BAD_REQUEST, format!("the body is not UTF-8: {error}")))
    }
}

impl<T: DeserializeOwned + Send + 'static> FromRequest for Json<T> {
    async fn from_request(request: Request<Body>) -> Result<Self, Response<Body>> {
        let kind = request.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
        if !is_json(kind) {
            let found = String::from_utf8_lossy(kind);
            let found = if found.is_empty() { "none".into() } else { format!("`{found}`") };
            let text = format!("expected `content-type: application/json`, found {found}");
            return Err(refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
        }
        let bytes = whole(request.into_body()).await?;
        let value = serde_json::from_slice(&bytes);
        value
            .map(Json)
            .map_err(|error| refusal(StatusCode::UNPROCESSABLE_ENTITY, format!("the body does not fit: {error}")))
    }
}

/// Returns whether a content type is `application/json`, or another kind of JSON, with or without parameters.
fn is_json(kind: &[u8]) -> bool {
    let kind = kind.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii().to_ascii_lowercase();
    kind == b"application/json" || (kind.starts_with(b"application/") && kind.ends_with(b"+json"))
}

async fn whole(body: Body) -> Result<Bytes, Response<Body>> {
    body.collect(WHOLE_BODY).await.map_err(|error: BodyError| {
        let status = if error.is_too_large() { StatusCode::PAYLOAD_TOO_LARGE } else { StatusCode::BAD_REQUEST };
        refusal(status, error.to_string())
    })
}

/// Returns a refusal as the service's own are: `application/problem+json` (RFC 9457).
fn refusal(status: StatusCode, detail: String) -> Response<Body> {
    #[derive(Serialize)]
    struct Problem<'a> {
        title: &'a str,
        status: u16,
        detail: String,
    }
    let title = status.canonical_reason().unwrap_or_default();
    let problem = Problem { title, status: status.as_u16(), detail };
    let mut response = json(status, &problem).unwrap_or_default();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response
}

/// A value as JSON: of a request's body, or for a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Json<T>(pub T);

/// The result of a handler: a response, or what becomes one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no response",
    label = "not the result of a handler",
    note = "return `Response<Body>`, `Json<T>` of a `T: serde::Serialize`, `String`, `&'static str`, `Bytes`, `StatusCode`, `()`, or a `Result` of one of them"
)]
pub trait IntoResponse {
    /// Makes the response.
    fn into_response(self) -> Handled;
}

impl<B> IntoResponse for Response<B>
where
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    fn into_response(self) -> Handled {
        Ok(self.map(Body::new))
    }
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Handled {
        json(StatusCode::OK, &self.0)
    }
}

fn json<T: Serialize>(status: StatusCode, value: &T) -> Handled {
    let bytes = serde_json::to_vec(value)
        .map_err(|error| Failure::runtime(format!("the response cannot be written as JSON: {error}")))?;
    Ok(typed(status, HeaderValue::from_static("application/json"), bytes.into()))
}

fn typed(status: StatusCode, kind: HeaderValue, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

macro_rules! typed {
    ($($from:ty => $kind:literal)*) => {$(
        impl IntoResponse for $from {
            fn into_response(self) -> Handled {
                Ok(typed(StatusCode::OK, HeaderValue::from_static($kind), self.into()))
            }
        }
    )*};
}
typed! {
    String => "text/plain; charset=utf-8"
    &'static str => "text/plain; charset=utf-8"
    Bytes => "application/octet-stream"
    Vec<u8> => "application/octet-stream"
}

impl IntoResponse for StatusCode {
    fn into_response(self) -> Handled {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self;
        Ok(response)
    }
}

impl IntoResponse for () {
    fn into_response(self) -> Handled {
        StatusCode::NO_CONTENT.into_response()
    }
}

pin_project! {
    /// The future of a call: makes the argument of the request, then runs the handler. One of both is in memory at a time, where an `async`
    /// block would keep the request beside each of them.
    struct Call<F, A, R> {
        functions: Arc<F>,
        #[pin]
        step: Step<A, R>,
    }
}

pin_project! {
    #[project = StepProjection]
    enum Step<A, R> {
        Reading { #[pin] argument: A },
        Running { #[pin] returned: R },
    }
}

impl<T, F, A, R, O> Future for Call<(F, O), A, R>
where
    A: Future<Output = Result<T, Response<Body>>>,
    F: Fn(T) -> R,
    R: Future,
    O: Fn(R::Output) -> Handled,
{
    type Output = Handled;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Handled> {
        let mut this = self.project();
        let (handle, respond) = &**this.functions;
        loop {
            let returned = match this.step.as_mut().project() {
                StepProjection::Reading { argument } => match ready!(argument.poll(context)) {
                    Ok(argument) => handle(argument),
                    Err(refused) => return Poll::Ready(Ok(refused)),
                },
                StepProjection::Running { returned } => return returned.poll(context).map(respond),
            };
            this.step.set(Step::Running { returned });
        }
    }
}

/// Returns an `async` function as a handler. `respond` makes the response of what the function returns.
pub fn asynchronous<T, F, R, O>(handle: F, respond: O) -> Arc<dyn Handler>
where
    T: FromRequest,
    F: Fn(T) -> R + Send + Sync + 'static,
    R: Future + Send + 'static,
    O: Fn(R::Output) -> Handled + Send + Sync + 'static,
{
    struct Asynchronous<T, F>(Arc<F>, std::marker::PhantomData<fn(T)>);

    impl<T, F, R, O> Handler for Asynchronous<T, (F, O)>
    where
        T: FromRequest,
        F: Fn(T) -> R + Send + Sync + 'static,
        R: Future + Send + 'static,
        O: Fn(R::Output) -> Handled + Send + Sync + 'static,
    {
        fn call(&self, request: Request<Body>) -> Boxed<Handled> {
            Box::pin(Call { functions: self.0.clone(), step: Step::Reading { argument: T::from_request(request) } })
        }
    }

    Arc::new(Asynchronous(Arc::new((handle, respond)), std::marker::PhantomData))
}

/// Returns a function that blocks as a handler: each call has a thread of the runtime's pool.
pub fn blocking<T, F>(f: F) -> Arc<dyn Handler>
where
    T: FromRequest,
    F: Fn(T) -> Handled + Send + Sync + 'static,
{
    let f = Arc::new(f);
    let call = move |argument: T| {
        let f = f.clone();
        async move {
            let (held, current) = (Held::current(), context::request_context());
            let call = move || {
                let _current = (held.attach(), context::enter(current));
                crate::panics::catch(|| f(argument))
            };
            match tokio::task::spawn_blocking(call).await {
                Ok(Ok(handled)) => handled,
                Ok(Err(panic)) => Err(crate::task::Failure::of_panic(panic)),
                Err(error) => {
                    Err(Failure::runtime(format!("the thread of the request ended without a response: {error}")))
                }
            }
        }
    };
    asynchronous(call, std::convert::identity)
}

/// Returns a tower service as a handler. Each request has a clone of it, as tower's users expect.
pub fn service<S, B>(service: S) -> Arc<dyn Handler>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Error: Display,
    S::Future: Send,
    Response<B>: IntoResponse,
{
    struct Tower<S>(S);

    impl<S, B> Handler for Tower<S>
    where
        S: Service<Request<Body>, Response = Response<B>> + Clone + Send + Sync + 'static,
        S::Error: Display,
        S::Future: Send,
        Response<B>: IntoResponse,
    {
        fn call(&self, request: Request<Body>) -> Boxed<Handled> {
            let mut service = self.0.clone();
            Box::pin(async move {
                let failed = |error: S::Error| Failure::returned(&error, format!("{error:#}"));
                std::future::poll_fn(|context| service.poll_ready(context)).await.map_err(failed)?;
                service.call(request).await.map_err(failed)?.into_response()
            })
        }
    }

    Arc::new(Tower(service))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read_whole(request: Request<Body>) -> Result<String, BodyError> {
        let bytes = request.into_body().collect(WHOLE_BODY).await?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    #[test]
    fn the_future_of_a_call_has_nothing_twice() {
        let respond = |returned: Result<String, BodyError>| returned.unwrap_or_default().into_response();
        let called = asynchronous(read_whole, respond).call(Request::new(Body::empty()));
        let of_function = size_of_val(&read_whole(Request::new(Body::empty())));
        assert!(size_of_val(&*called) <= of_function + 32, "{} of {of_function} bytes", size_of_val(&*called));
    }
}
