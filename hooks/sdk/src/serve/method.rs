//! Methods of a deployment that are called by its handle: arguments and answers as MessagePack, and values that come one after the other.

use std::marker::PhantomData;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use http::{Request, Response};
use serde::Serialize;

use super::body::{Body, BodyError, Sender};
use super::handler::{Handled, Handler};
use crate::items::ParameterItem;
use crate::task::{self, Arguments, Failure};

/// The most bytes of a call's arguments.
const ARGUMENTS_LIMIT: usize = 64 << 20;

/// Name of the method that a request calls, in its extensions.
#[derive(Clone, Debug)]
pub(super) struct CalledMethod(pub(super) Arc<str>);

/// Answers a call of a method.
pub(super) async fn answer(
    handler: Arc<dyn Handler>,
    CalledMethod(method): CalledMethod,
    request: Request<Body>,
) -> Handled {
    let arguments = request.into_body().collect(ARGUMENTS_LIMIT).await;
    let arguments = arguments.map_err(|error| Failure::runtime(format!("the arguments cannot be read: {error}")))?;
    match handler.call_method(&method, arguments) {
        Some(called) => called.await,
        None => Err(Failure::no_method(&method, handler.methods())),
    }
}

/// Returns the arguments of a method.
#[doc(hidden)]
pub fn method_arguments<'a>(
    name: &'static str,
    parameters: &'static [ParameterItem],
    bytes: &'a Bytes,
) -> Result<Arguments<'a>, Failure> {
    Arguments::of_creation(name, parameters, bytes)
}

/// Returns the answer of a method that returned a value.
#[doc(hidden)]
pub fn method_answer(value: Vec<u8>) -> Response<Body> {
    Response::new(Body::from(value))
}

/// Values that a method returns one after the other; the caller takes them with
/// [`MethodCall::stream`](super::MethodCall::stream).
///
/// ```
/// use tracer_sdk::serve::{Body, Request, Response, Values, deployment};
///
/// struct Counter;
///
/// #[deployment]
/// impl Counter {
///     pub fn new() -> Counter {
///         Counter
///     }
///
///     pub async fn handle(&self, _: Request<Body>) -> Response<Body> {
///         Response::new(Body::empty())
///     }
///
///     pub async fn count(&self, to: u32) -> Values<u32> {
///         let (sender, values) = Values::channel(8);
///         tokio::spawn(async move {
///             for number in 1..=to {
///                 if sender.send(&number).await.is_err() {
///                     break;
///                 }
///             }
///         });
///         values
///     }
/// }
/// ```
#[derive(Debug)]
pub struct Values<T> {
    body: Body,
    of: PhantomData<fn(T)>,
}

/// Sending end of [`Values`]. Dropped, it ends them in good order.
#[derive(Debug)]
pub struct ValueSender<T> {
    sender: Sender,
    of: PhantomData<fn(T)>,
}

impl<T: Serialize> Values<T> {
    /// Makes both ends. At most `count` values wait to be sent, at least 1.
    pub fn channel(count: usize) -> (ValueSender<T>, Values<T>) {
        let (sender, body) = Body::channel(count);
        (ValueSender { sender, of: PhantomData }, Values { body, of: PhantomData })
    }

    #[doc(hidden)]
    pub fn into_response(self) -> Response<Body> {
        Response::new(self.body)
    }
}

impl<T: Serialize> ValueSender<T> {
    /// Sends a value, when there is room for it. Fails when nobody wants it any more, or when it cannot be encoded.
    pub async fn send(&self, value: &T) -> Result<(), BodyError> {
        let bytes = task::encode(value).map_err(|failure| BodyError(failure.message.into()))?;
        let length = u32::try_from(bytes.len()).map_err(|error| BodyError(error.into()))?;
        let mut piece = BytesMut::with_capacity(bytes.len() + 4);
        piece.put_u32_le(length);
        piece.extend_from_slice(&bytes);
        self.sender.send(piece.freeze()).await
    }

    /// Ends the values with an error: the caller sees that they broke off.
    pub async fn abort(self, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) {
        self.sender.abort(error).await;
    }
}
