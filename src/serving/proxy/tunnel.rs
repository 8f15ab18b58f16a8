//! A connection that speaks another protocol: bytes between the client and a replica, until both have ended.
//!
//! In the lane they are the bodies of the request and of its answer, with the credit of those. The request lasts as long as the connection, and so do
//! its spans. When the replica or the proxy is to end, the client of a WebSocket gets a close frame between two frames, and its answer ends the
//! connection; when the replica is lost, too.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;
use tracer_core::request_names as names;
use tracer_ipc::lane::Reset;

use super::connection::{Connection, Serving};
use super::exchange::{End, Exchange, Piece};
use super::limits;
use super::progress::Progress;
use super::stream::ClientStream;
use super::thread::ProxyThread;
use super::websocket::{Frames, GOING_AWAY, INTERNAL_ERROR, close_frame};

/// Bytes that are read from a client at a time.
const READ: usize = 16 << 10;
/// Looks within which a client that was sent a close frame is to answer it.
const CLOSE_LOOKS: u32 = 5;

/// A connection that speaks another protocol, from the head of the answer on.
pub(super) struct Tunnel {
    exchange: Rc<Exchange>,
    progress: Progress,
    /// Bytes for the client.
    to_write: VecDeque<Bytes>,
    /// Read from the client, and not sent yet.
    to_send: Bytes,
    from_client: Frames,
    from_replica: Frames,
    /// True once the client has got a close frame of the proxy's: what the replica sends after it is dropped.
    has_closed: bool,
    /// Limit of time for the client to answer that frame (RFC 6455, section 7.1.1), once it was sent.
    closing: Option<Pin<Box<Sleep>>>,
    /// True once the client has sent its last byte.
    is_read: bool,
    /// The end of what the replica sends.
    end: Option<End>,
    _serving: Serving,
}

/// End of a tunnel.
enum Over {
    /// Everything has come to its end.
    Ended,
    /// The client has gone, or is cut off.
    ClientGone,
}

impl Tunnel {
    pub(super) fn new(exchange: Rc<Exchange>, progress: Progress, serving: Serving) -> Tunnel {
        Tunnel {
            exchange,
            progress,
            to_write: VecDeque::new(),
            to_send: Bytes::new(),
            from_client: Frames::default(),
            from_replica: Frames::default(),
            has_closed: false,
            closing: None,
            is_read: false,
            end: None,
            _serving: serving,
        }
    }

    /// Passes bytes on in both directions until both have ended.
    pub(super) async fn run(mut self, thread: &Rc<ProxyThread>, connection: &Rc<Connection>, mut stream: ClientStream) {
        let over = poll_fn(|context| {
            if connection.poll_cut(context) {
                return Poll::Ready(Over::ClientGone);
            }
            self.poll(thread, connection, &mut stream, context)
        })
        .await;
        self.finish();
        if let Over::Ended = over {
            let _ = tokio::io::AsyncWriteExt::shutdown(&mut stream).await;
        }
    }

    fn poll(
        &mut self,
        thread: &ProxyThread,
        connection: &Connection,
        stream: &mut ClientStream,
        context: &mut Context<'_>,
    ) -> Poll<Over> {
        if self.poll_client(stream, context).is_err() {
            return Poll::Ready(Over::ClientGone);
        }
        self.poll_replica(context);
        let is_to_end = thread.is_draining() || !self.exchange.lane.is_open();
        match self.end {
            Some(End::Complete) | None if !is_to_end => {}
            Some(End::Complete) => {}
            Some(_) => self.close(INTERNAL_ERROR),
            None => self.close(GOING_AWAY),
        }
        if self.closing.as_mut().is_some_and(|closing| closing.as_mut().poll(context).is_ready()) {
            // It was told, and says nothing.
            return Poll::Ready(Over::Ended);
        }
        let sent = self.progress.sent_bytes;
        let written = self.poll_write(stream, context);
        if self.progress.sent_bytes > sent {
            // Whoever takes a little at a time is not the one that takes nothing.
            connection.set_writing(false);
        }
        connection.set_writing(written.is_pending());
        match written {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(_)) => Poll::Ready(Over::ClientGone),
            Poll::Ready(Ok(())) if self.end.is_some() => Poll::Ready(Over::Ended),
            Poll::Ready(Ok(())) => Poll::Pending,
        }
    }

    /// Reads from the client and sends to the replica, as far as there is room.
    fn poll_client(&mut self, stream: &mut ClientStream, context: &mut Context<'_>) -> io::Result<()> {
        let (exchange, lane) = (Rc::clone(&self.exchange), Rc::clone(&self.exchange.lane));
        while self.end.is_none() {
            if !self.to_send.is_empty() {
                let Poll::Ready(Some(count)) = exchange.poll_room(self.to_send.len(), context) else { return Ok(()) };
                lane.send_data(exchange.number, self.to_send.split_to(count), false);
                continue;
            }
            if self.is_read {
                exchange.end_sending();
                return Ok(());
            }
            let mut buffer = [0; READ];
            let mut buffer = ReadBuf::new(&mut buffer);
            match Pin::new(&mut *stream).poll_read(context, &mut buffer) {
                Poll::Pending => return Ok(()),
                Poll::Ready(read) => read?,
            }
            let bytes = buffer.filled();
            self.is_read = bytes.is_empty();
            self.from_client.take(bytes);
            exchange.received.set(exchange.received.get() + bytes.len() as u64);
            self.to_send = Bytes::copy_from_slice(bytes);
        }
        Ok(())
    }

    /// Takes what the replica sends, a little at a time: what the client does not take stays in the lane.
    fn poll_replica(&mut self, context: &mut Context<'_>) {
        while self.end.is_none() && self.to_write.len() < 4 {
            match self.exchange.poll_piece(context, |_| true) {
                Poll::Pending => return,
                Poll::Ready(Piece::Data(piece)) if !self.has_closed => {
                    self.from_replica.take(&piece);
                    self.to_write.push_back(piece);
                }
                Poll::Ready(Piece::Data(piece)) => self.exchange.took(piece.len()),
                Poll::Ready(Piece::Trailers(_)) => {}
                Poll::Ready(Piece::End(end)) => self.end = Some(end),
            }
        }
    }

    /// Sends a close frame to the client, unless one was sent or the last frame is not whole.
    fn close(&mut self, code: u16) {
        if self.has_closed || self.from_replica.close_code().is_some() || !self.from_replica.is_between_frames() {
            return;
        }
        let frame = close_frame(code);
        self.has_closed = true;
        self.closing = Some(Box::pin(tokio::time::sleep(limits::look() * CLOSE_LOOKS)));
        self.from_replica.take(&frame);
        self.to_write.push_back(Bytes::copy_from_slice(&frame));
    }

    fn poll_write(&mut self, stream: &mut ClientStream, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(first) = self.to_write.front_mut() {
            match Pin::new(&mut *stream).poll_write(context, first) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(count)) => {
                    first.advance(count);
                    self.progress.sent_bytes += count as u64;
                    self.exchange.took(count);
                }
            }
            if first.is_empty() {
                self.to_write.pop_front();
                // There may be more.
                context.waker().wake_by_ref();
            }
        }
        if stream.is_buffered() {
            return Pin::new(stream).poll_flush(context);
        }
        Poll::Ready(Ok(()))
    }

    /// Ends the request. An orderly close is no error, nor is a client that goes.
    fn finish(&mut self) {
        self.progress.close_code = self.from_client.close_code().or(self.from_replica.close_code());
        let code = self.progress.close_code;
        let outcome = match self.end {
            // The client has ended the connection, and not the protocol before it.
            Some(End::Complete) if self.is_read && code.is_none() => names::OUTCOME_CLIENT_GONE,
            Some(End::Complete) => "",
            Some(End::Lost | End::Unclaimed) => names::OUTCOME_REPLICA_LOST,
            // Its time to drain was up after the client was told.
            Some(End::Reset(Reset::Timeout)) if code == Some(GOING_AWAY) => "",
            Some(End::Reset(_)) => names::OUTCOME_STREAM_ABORTED,
            None if code.is_some() => "",
            None => names::OUTCOME_CLIENT_GONE,
        };
        if self.end != Some(End::Complete) {
            self.progress.abandon(Reset::ClientGone);
        }
        match outcome {
            "" => self.progress.finish(),
            outcome => self.progress.finish_as(outcome, None),
        }
    }
}
