//! The bodies of answers: whole, or one piece after the other.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Response, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::AbortHandle;
use tracer_core::problem::{self, Problem};

use super::limits::{BODY_BYTES, BODY_TIME};

/// An answer, or what is wrong.
pub(crate) type Answer = Result<Response<Body>, Problem>;

/// An answer's body.
pub(crate) enum Body {
    Whole(Option<Bytes>),
    /// The same, of a size that only a few may have at one time; the permit goes back when all is sent, or the client has gone.
    Large(Option<Bytes>, #[expect(dead_code, reason = "it is held")] OwnedSemaphorePermit),
    Pieces(Pieces),
}

/// Pieces that a task of the runtime makes, for as long as somebody takes them.
pub(crate) struct Pieces {
    pieces: mpsc::Receiver<Bytes>,
    maker: AbortHandle,
}

impl Drop for Pieces {
    /// Notes that the client has gone, or has got all.
    fn drop(&mut self) {
        self.maker.abort();
    }
}

impl Body {
    pub(crate) fn whole(bytes: impl Into<Bytes>) -> Body {
        Body::Whole(Some(bytes.into()))
    }

    /// Returns what `maker` sends.
    pub(crate) fn pieces(pieces: mpsc::Receiver<Bytes>, maker: AbortHandle) -> Body {
        Body::Pieces(Pieces { pieces, maker })
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Body::Whole(bytes) | Body::Large(bytes, _) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Body::Pieces(pieces) => {
                pieces.pieces.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Body::Whole(None) | Body::Large(None, _))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Whole(bytes) | Body::Large(bytes, _) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Body::Pieces(_) => SizeHint::default(),
        }
    }
}

/// Reads a body that is not too long and comes in time.
pub(super) async fn read_body(body: Incoming) -> Result<Bytes, Problem> {
    let too_large = || {
        Problem::new(problem::TOO_LARGE, format!("the body has more than {BODY_BYTES} bytes"))
            .hint("pass large data in a file, and its path as the argument")
    };
    if body.size_hint().lower() > BODY_BYTES as u64 {
        return Err(too_large());
    }
    match in_time(BODY_TIME, Limited::new(body, BODY_BYTES).collect()).await? {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_large()),
        Err(error) => Err(Problem::new(problem::INVALID, format!("the body did not arrive whole: {error}"))),
    }
}

async fn in_time<T>(limit: Duration, future: impl Future<Output = T>) -> Result<T, Problem> {
    let too_slow = |_| {
        let text = format!("the body did not arrive within {} seconds", limit.as_secs());
        Problem::new(problem::TOO_SLOW, text).header(header::CONNECTION, "close")
    };
    tokio::time::timeout(limit, future).await.map_err(too_slow)
}
