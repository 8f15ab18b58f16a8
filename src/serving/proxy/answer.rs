//! The body of an answer on its way to the client.
//!
//! The last byte is given to the connection when the spans of the request have ended, and not before. Where the length of the body says which
//! byte is the last, that one is held back until the replica has said that nothing follows.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::Sleep;
use tracer_core::request_names as names;
use tracer_ipc::lane::Reset;

use super::connection::{Serving, Unwritten};
use super::exchange::{End, Exchange, Piece};
use super::grpc;
use super::progress::Progress;
use super::refusals::Refused;

/// A body.
pub(super) enum Answer {
    /// All of it.
    Whole {
        /// The body that the client gets.
        bytes: Bytes,
        /// The request counts as one that is served until this is written.
        serving: Serving,
    },
    /// One that is passed on while it comes from a replica.
    Stream(Box<Stream>),
    /// None: the connection speaks another protocol from here on.
    Upgraded,
}

/// An answer that comes from a replica.
pub(super) struct Stream {
    exchange: Rc<Exchange>,
    unwritten: Rc<Unwritten>,
    progress: Progress,
    /// Bytes that are to follow, if that is known.
    left: Option<u64>,
    deadline: Option<Pin<Box<Sleep>>>,
    is_over: bool,
    /// True while the connection may hold a part of the answer that it has not tried to write.
    is_buffered: bool,
    /// True if it breaks off as soon as that is written.
    is_cut: bool,
    serving: Serving,
}

/// Bytes that the connection has to write.
pub(super) struct Given {
    piece: Bytes,
    /// Of a piece of a stream, its length, and what counts it.
    counted: Option<(usize, Rc<Unwritten>)>,
}

impl Given {
    /// Gives a piece that counts until it is written.
    fn counted(piece: Bytes, unwritten: &Rc<Unwritten>) -> Given {
        unwritten.gave(piece.len());
        Given { counted: Some((piece.len(), Rc::clone(unwritten))), piece }
    }
}

impl Buf for Given {
    fn remaining(&self) -> usize {
        self.piece.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.piece.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.piece.advance(count);
    }

    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        self.piece.copy_to_bytes(count)
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        if let Some((length, unwritten)) = self.counted.take() {
            unwritten.took(length);
        }
    }
}

/// A body that does not come to its end: the connection is closed, or the stream reset.
#[derive(Debug, thiserror::Error)]
#[error("the answer has broken off")]
pub(super) struct Cut;

impl Stream {
    pub(super) fn new(
        exchange: Rc<Exchange>,
        progress: Progress,
        left: Option<u64>,
        deadline: Option<Pin<Box<Sleep>>>,
        serving: Serving,
    ) -> Stream {
        let unwritten = serving.count_unwritten(&exchange);
        Stream {
            exchange,
            unwritten,
            progress,
            left,
            deadline,
            is_over: false,
            is_buffered: true,
            is_cut: false,
            serving,
        }
    }

    /// Ends an answer that cannot be whole. A call of gRPC has trailers to say why; of anything else the rest is missing, which clients see.
    fn abort(&mut self, outcome: &'static str, reason: Reset) -> Result<Frame<Given>, Cut> {
        self.is_over = true;
        self.progress.abandon(reason);
        let trailers = self.progress.is_grpc.then(|| {
            let refused = match outcome {
                names::OUTCOME_TIMEOUT => Refused::timeout(),
                names::OUTCOME_DRAINED => Refused::drained(),
                names::OUTCOME_REPLICA_LOST => Refused::lost(),
                _ => Refused::failed(self.progress.request_id()),
            };
            let status = refused.grpc_status();
            self.progress.grpc_status = Some(status);
            grpc::trailers(status, refused.problem.detail())
        });
        self.progress.finish_as(outcome, None);
        trailers.map(Frame::trailers).ok_or(Cut)
    }

    /// Gives the next frame. hyper drops what it has buffered when a body fails, so it is made to write that before.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Given>, Cut>>> {
        if std::mem::take(&mut self.is_cut) {
            return Poll::Ready(Some(Err(Cut)));
        }
        let mut next = self.poll_frame(context);
        if self.is_buffered && matches!(next, Poll::Ready(Some(Err(Cut)))) {
            self.is_cut = true;
            context.waker().wake_by_ref();
            next = Poll::Pending;
        }
        self.is_buffered = next.is_ready();
        next
    }

    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Given>, Cut>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        if self.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(context).is_ready()) {
            return Poll::Ready(Some(self.abort(names::OUTCOME_TIMEOUT, Reset::Timeout)));
        }
        let left = self.left;
        let is_before_the_end = |piece: &Bytes| left.is_none_or(|left| (piece.len() as u64) < left);
        match ready!(self.exchange.poll_piece(context, is_before_the_end)) {
            Piece::Data(piece) => {
                let length = piece.len() as u64;
                if self.left.is_some_and(|left| length > left) {
                    return Poll::Ready(Some(self.abort(names::OUTCOME_STREAM_ABORTED, Reset::ClientGone)));
                }
                self.left = self.left.map(|left| left - length);
                self.progress.sent_bytes += length;
                if self.left.unwrap_or(0) == 0 && self.exchange.is_all_taken() {
                    self.is_over = true;
                    self.progress.finish();
                }
                Poll::Ready(Some(Ok(Frame::data(Given::counted(piece, &self.unwritten)))))
            }
            Piece::Trailers(trailers) => {
                if self.progress.is_grpc {
                    self.progress.grpc_status = grpc::status(&trailers);
                }
                self.is_over = true;
                self.progress.finish();
                Poll::Ready(Some(Ok(Frame::trailers(trailers))))
            }
            Piece::End(End::Complete) if self.left.unwrap_or(0) == 0 => {
                self.is_over = true;
                self.progress.finish();
                Poll::Ready(None)
            }
            Piece::End(end) => {
                let outcome = match end {
                    End::Lost | End::Unclaimed => names::OUTCOME_REPLICA_LOST,
                    End::Reset(Reset::Timeout) => names::OUTCOME_DRAINED,
                    End::Complete | End::Reset(_) => names::OUTCOME_STREAM_ABORTED,
                };
                Poll::Ready(Some(self.abort(outcome, Reset::ClientGone)))
            }
        }
    }
}

impl Body for Answer {
    type Data = Given;
    type Error = Cut;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Given>, Cut>>> {
        match self.get_mut() {
            Answer::Whole { bytes, .. } if bytes.is_empty() => Poll::Ready(None),
            Answer::Whole { bytes, serving } => {
                serving.gave(true);
                Poll::Ready(Some(Ok(Frame::data(Given { piece: std::mem::take(bytes), counted: None }))))
            }
            Answer::Stream(stream) => {
                let next = stream.poll_next(context);
                stream.serving.gave(matches!(next, Poll::Ready(Some(_))) || stream.unwritten.is_any());
                next
            }
            Answer::Upgraded => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Answer::Whole { bytes, .. } => bytes.is_empty(),
            Answer::Stream(stream) => stream.is_over && !stream.is_cut,
            Answer::Upgraded => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Answer::Whole { bytes, .. } => SizeHint::with_exact(bytes.len() as u64),
            Answer::Stream(stream) => stream.left.map(SizeHint::with_exact).unwrap_or_default(),
            Answer::Upgraded => SizeHint::with_exact(0),
        }
    }
}
