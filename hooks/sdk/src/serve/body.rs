//! Bodies of requests and responses.

use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use tokio::sync::mpsc;

use super::exchange::Mailbox;

type AnyError = Box<dyn Error + Send + Sync>;
type AnyBody = Pin<Box<dyn http_body::Body<Data = Bytes, Error = BodyError> + Send>>;

/// The body of a request or a response: bytes that are there, or that arrive in pieces, and trailers.
///
/// A body that the handler does not read to its end is dropped with it. Pieces of up to any size are taken; none of them is copied.
pub struct Body(Kind);

enum Kind {
    Full(Bytes),
    /// Body of a request, which arrives in pieces.
    Incoming(Arc<Mailbox>),
    Channel(mpsc::Receiver<Result<Frame<Bytes>, BodyError>>),
    Any(AnyBody),
}

impl Body {
    /// No bytes.
    pub fn empty() -> Body {
        Body(Kind::Full(Bytes::new()))
    }

    /// Any body of the crate `http-body`.
    pub fn new<B>(body: B) -> Body
    where
        B: http_body::Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<AnyError>,
    {
        let mut body = Some(body);
        // One of this type as it is.
        if let Some(own) = (&mut body as &mut dyn std::any::Any).downcast_mut::<Option<Body>>() {
            return own.take().unwrap_or_default();
        }
        body.map_or_else(Body::empty, |body| Body(Kind::Any(Box::pin(Foreign(Box::pin(body))))))
    }

    /// Returns a body that is written while it is sent, and the end to write to. At most `pieces` wait to be sent, at least 1.
    pub fn channel(pieces: usize) -> (Sender, Body) {
        let (sender, receiver) = mpsc::channel(pieces.max(1));
        (Sender(sender), Body(Kind::Channel(receiver)))
    }

    pub(super) fn incoming(mailbox: Arc<Mailbox>) -> Body {
        Body(Kind::Incoming(mailbox))
    }

    /// Reads the body to its end. Of more than `limit` bytes nothing is returned but the error.
    pub async fn collect(mut self, limit: usize) -> Result<Bytes, BodyError> {
        if let Kind::Full(bytes) = &mut self.0 {
            let bytes = std::mem::take(bytes);
            return if bytes.len() > limit { Err(BodyError::too_large(limit)) } else { Ok(bytes) };
        }
        let (mut first, mut rest) = (Bytes::new(), BytesMut::new());
        while let Some(piece) = self.next().await {
            let piece = piece?;
            if first.len() + rest.len() + piece.len() > limit {
                return Err(BodyError::too_large(limit));
            }
            if first.is_empty() && rest.is_empty() {
                first = piece;
            } else {
                rest.extend_from_slice(&std::mem::take(&mut first));
                rest.extend_from_slice(&piece);
            }
        }
        Ok(if rest.is_empty() { first } else { rest.freeze() })
    }

    /// Returns the next piece of the body, and none at its end. Trailers are passed over.
    pub async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        loop {
            let frame = poll_fn(|context| http_body::Body::poll_frame(Pin::new(&mut *self), context)).await?;
            match frame.map(Frame::into_data) {
                Ok(Ok(bytes)) if bytes.is_empty() => {}
                Ok(Ok(bytes)) => return Some(Ok(bytes)),
                Ok(Err(_)) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl Default for Body {
    fn default() -> Body {
        Body::empty()
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.0 {
            Kind::Full(bytes) => return write!(f, "Body({} bytes)", bytes.len()),
            Kind::Incoming(_) => "incoming",
            Kind::Channel(_) => "channel",
            Kind::Any(_) => "any",
        };
        write!(f, "Body({kind})")
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.0 {
            Kind::Full(bytes) if bytes.is_empty() => Poll::Ready(None),
            Kind::Full(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Kind::Incoming(mailbox) => mailbox.poll_frame(context),
            Kind::Channel(receiver) => receiver.poll_recv(context),
            Kind::Any(body) => body.as_mut().poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Full(bytes) => bytes.is_empty(),
            Kind::Incoming(mailbox) => mailbox.is_at_end(),
            Kind::Channel(_) => false,
            Kind::Any(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Incoming(mailbox) => mailbox.size_hint(),
            Kind::Channel(_) => SizeHint::default(),
            Kind::Any(body) => body.size_hint(),
        }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if let Kind::Incoming(mailbox) = &self.0 {
            mailbox.abandon();
        }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Body {
        Body(Kind::Full(bytes))
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Body {
        Bytes::from(bytes).into()
    }
}

impl From<String> for Body {
    fn from(text: String) -> Body {
        Bytes::from(text).into()
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Body {
        Bytes::from_static(text.as_bytes()).into()
    }
}

impl From<()> for Body {
    fn from((): ()) -> Body {
        Body::empty()
    }
}

/// The end of [`Body::channel`] that is written to. The body ends when it is dropped.
#[derive(Clone, Debug)]
pub struct Sender(mpsc::Sender<Result<Frame<Bytes>, BodyError>>);

impl Sender {
    /// Sends the next piece, and waits while as many as may are on their way. Fails when nobody reads the body any more.
    pub async fn send(&self, bytes: impl Into<Bytes>) -> Result<(), BodyError> {
        self.send_frame(Ok(Frame::data(bytes.into()))).await
    }

    /// Sends trailers, after which nothing may follow.
    pub async fn send_trailers(self, trailers: HeaderMap) -> Result<(), BodyError> {
        self.send_frame(Ok(Frame::trailers(trailers))).await
    }

    /// Cuts the body short: the client sees that it is not whole.
    pub async fn abort(self, error: impl Into<AnyError>) {
        let _ = self.send_frame(Err(BodyError(error.into()))).await;
    }

    async fn send_frame(&self, frame: Result<Frame<Bytes>, BodyError>) -> Result<(), BodyError> {
        self.0.send(frame).await.map_err(|_| BodyError("nobody reads the body any more".into()))
    }
}

/// Error of a body that is not whole.
#[derive(Debug)]
pub struct BodyError(pub(super) AnyError);

impl BodyError {
    fn too_large(limit: usize) -> BodyError {
        BodyError(Box::new(TooLarge { limit }))
    }

    /// Returns whether the body had more bytes than [`Body::collect`] was to take.
    pub fn is_too_large(&self) -> bool {
        self.0.is::<TooLarge>()
    }
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for BodyError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

#[derive(Debug)]
struct TooLarge {
    limit: usize,
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the body has more than {} bytes", self.limit)
    }
}

impl Error for TooLarge {}

/// A body of other types.
struct Foreign<B>(Pin<Box<B>>);

impl<B> http_body::Body for Foreign<B>
where
    B: http_body::Body,
    B::Error: Into<AnyError>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.0.as_mut().poll_frame(context).map(|frame| {
            frame.map(|frame| match frame {
                // Data that is `Bytes` already is not copied by this.
                Ok(frame) => Ok(frame.map_data(|mut data| data.copy_to_bytes(data.remaining()))),
                Err(error) => Err(BodyError(error.into())),
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
