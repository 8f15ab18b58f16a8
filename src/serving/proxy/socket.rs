//! The socket of a client: what comes over HTTP/1 is scanned before hyper sees it.

use std::collections::VecDeque;
use std::future::Future;
use std::io::{self, ErrorKind, IoSlice, Read};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::Sleep;
use tracer_ipc::fault;

use super::activity::Stage;
use super::connection::{Connection, Refusing};
use super::limits;
use super::stream::ClientStream;
use crate::request_head::Scanner;

/// A piece of a head with fewer bytes is small,
const SMALL: usize = 256;
/// and a head with more of them than these is slow.
const SMALL_PIECES: u32 = 2;

/// Connection preface of HTTP/2.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A client's socket, as hyper reads and writes it.
pub(super) struct Socket {
    stream: ClientStream,
    connection: Rc<Connection>,
    /// Read to tell the versions of HTTP from each other, and not looked at yet.
    ahead: Vec<u8>,
    /// The part that has come of a head: hyper gets it when all of it has come and has one reading. What hyper refuses by itself has no answer that
    /// says why.
    held: Vec<u8>,
    /// Looked at, and more than there was room for when hyper might have it.
    released: VecDeque<u8>,
    /// Small pieces of the head that comes.
    small_pieces: u32,
    /// None for HTTP/2.
    scanner: Option<Scanner>,
    /// True once the client has sent all that it will.
    has_client_ended: bool,
    closing: Closing,
}

/// Closing of a connection. Over HTTP/2 it waits for its turn among refused clients where the client is the cause, so that one that comes back at once takes a
/// small share of the thread.
enum Closing {
    NotBegun,
    Waiting(Pin<Box<Sleep>>),
    Begun,
}

/// The beginning of what a client sends.
pub(super) struct Opening {
    is_2: bool,
    ahead: Vec<u8>,
}

impl Opening {
    /// Reads until it is known which version of HTTP comes, which it is with the first byte if it cannot be HTTP/2. None when the client goes before
    /// that.
    pub(super) async fn read(
        stream: &mut ClientStream,
        connection: &Connection,
        may_be_2: bool,
    ) -> io::Result<Option<Opening>> {
        let mut ahead = Vec::new();
        let is_2 = loop {
            let known = ahead.len().min(PREFACE.len());
            if ahead[..known] != PREFACE[..known] || (!may_be_2 && known > 0) {
                break false;
            }
            if ahead.len() >= PREFACE.len() {
                break true;
            }
            let mut rest = [0; PREFACE.len()];
            let count = stream.read(&mut rest[..PREFACE.len() - ahead.len()]).await?;
            if count == 0 {
                return Ok(None);
            }
            ahead.extend_from_slice(&rest[..count]);
            connection.opens();
        };
        Ok(Some(Opening { is_2, ahead }))
    }
}

impl Socket {
    /// Makes the socket of a client that has sent this, with whether that is HTTP/2.
    pub(super) fn new(stream: ClientStream, connection: Rc<Connection>, opening: Opening) -> (bool, Socket) {
        let scanner = (!opening.is_2).then(Scanner::default);
        let Opening { is_2, ahead } = opening;
        let (held, released) = (Vec::new(), VecDeque::new());
        let (has_client_ended, closing) = (false, Closing::NotBegun);
        (
            is_2,
            Socket { stream, connection, ahead, held, released, small_pieces: 0, scanner, has_client_ended, closing },
        )
    }

    /// Returns the socket itself.
    pub(super) fn into_stream(self) -> ClientStream {
        self.stream
    }

    /// Returns whether nothing has come behind the head that was read last.
    pub(super) fn is_at_rest(&self) -> bool {
        self.ahead.is_empty() && self.released.is_empty() && self.scanner.as_ref().is_some_and(Scanner::is_idle)
    }

    /// Looks at bytes that came last into the buffer, and takes those out that hyper must not see, or not yet.
    fn scan(&mut self, buffer: &mut ReadBuf<'_>, before: usize) -> io::Result<()> {
        let Some(scanner) = &mut self.scanner else { return Ok(()) };
        let came = &buffer.filled()[before..];
        let was_in_head = scanner.is_in_head() && !scanner.is_idle();
        let taken = scanner.take(came);
        let stage = match (scanner.is_idle(), scanner.is_in_head()) {
            (true, _) => Stage::Idle,
            (false, true) => Stage::Head,
            (false, false) => Stage::Body,
        };
        // What was in a head and is in one again has begun another, if what has come is not all of the same.
        let is_new_head = !was_in_head || scanner.has_begun_head();
        self.connection.came(stage, is_new_head);
        if is_new_head || stage != Stage::Head {
            self.small_pieces = 0;
        }
        self.small_pieces += u32::from(came.len() < SMALL);
        let is_slow = stage == Stage::Head && self.small_pieces > SMALL_PIECES;
        self.connection.set_slow(is_slow);
        // Its rounds read it.
        self.stream.set_watched(!is_slow)?;
        let is_whole = taken.is_ok() && stage != Stage::Head;
        let passed = if is_whole { came.len() } else { scanner.passed() };
        let is_in_head = scanner.is_in_head();
        if passed > 0 && !self.held.is_empty() {
            // The head of which a part was held has come to its end.
            let mut released = std::mem::take(&mut self.held);
            released.extend_from_slice(&came[..passed]);
            self.released = released.into();
        }
        if taken.is_ok() {
            self.held.extend_from_slice(&came[passed..]);
        }
        buffer.set_filled(if self.released.is_empty() { before + passed } else { before });
        match taken {
            Ok(()) => Ok(()),
            Err(refusal) => {
                self.connection.refuse(Refusing::Head(refusal));
                // The request that a body belongs to is under way, and gets the refusal for an answer; first what came before that, which may be its
                // head.
                if is_in_head || passed > 0 { Ok(()) } else { Err(ErrorKind::InvalidData.into()) }
            }
        }
    }

    /// Waits until a connection may be closed.
    fn poll_closing(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            self.closing = match &mut self.closing {
                Closing::Begun => return Poll::Ready(()),
                Closing::Waiting(turn) => {
                    ready!(turn.as_mut().poll(context));
                    Closing::Begun
                }
                // One of HTTP/1 has waited for its turn before it was told why.
                Closing::NotBegun if self.scanner.is_some() => Closing::Begun,
                Closing::NotBegun if self.has_client_ended || self.connection.is_ending_well() => Closing::Begun,
                Closing::NotBegun => match self.connection.take_refusal_turn() {
                    Some(wait) => Closing::Waiting(Box::pin(tokio::time::sleep(wait))),
                    None => Closing::Begun,
                },
            };
        }
    }

    /// Gives hyper what it may have.
    fn give_released(&mut self, buffer: &mut ReadBuf<'_>) -> io::Result<()> {
        let count = self.released.len().min(buffer.remaining());
        self.released.read_exact(buffer.initialize_unfilled_to(count))?;
        buffer.advance(count);
        if self.released.is_empty() {
            self.released = VecDeque::new();
        }
        Ok(())
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.released.is_empty() {
            return Poll::Ready(this.give_released(buffer));
        }
        if this.connection.is_refusing() {
            return match this.connection.stage() {
                Stage::Body => Poll::Ready(Err(ErrorKind::InvalidData.into())),
                // Whoever has the connection refuses it when what was asked before is answered.
                Stage::Idle | Stage::Head | Stage::Handshake => Poll::Pending,
            };
        }
        if this.connection.is_upgrading() {
            // What comes next may be no HTTP. The answer to the request is written by the same task, which reads again after it.
            return Poll::Pending;
        }
        if !this.connection.takes_turn() {
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let mut in_this_turn = 0;
        loop {
            if !this.ahead.is_empty() {
                let count = this.ahead.len().min(buffer.remaining());
                buffer.put_slice(&this.ahead[..count]);
                this.ahead.drain(..count);
            } else {
                // One with a slow head is woken in its round and not by each piece, which would cost as much as a request.
                let mut nobody = Context::from_waker(Waker::noop());
                let woken = if this.connection.is_slow() { &mut nobody } else { &mut *context };
                let read = Pin::new(&mut this.stream).poll_read(woken, buffer);
                this.connection.set_reading(read.is_pending());
                this.has_client_ended |= matches!(&read, Poll::Ready(read) if read.is_err());
                ready!(read)?;
                if buffer.filled().len() == before {
                    this.has_client_ended = true;
                    return Poll::Ready(Ok(()));
                }
            }
            in_this_turn += buffer.filled().len() - before;
            this.scan(buffer, before)?;
            if !this.released.is_empty() {
                return Poll::Ready(this.give_released(buffer));
            }
            if buffer.filled().len() > before {
                return Poll::Ready(Ok(()));
            }
            if this.connection.is_refusing() || this.connection.is_slow() {
                return Poll::Pending;
            }
            if in_this_turn >= limits::HEAD_TURN {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        fault::point("answer_written");
        self.connection.set_writing(written.is_pending());
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        fault::point("answer_written");
        self.connection.set_writing(written.is_pending());
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if self.stream.is_buffered() {
            self.connection.set_writing(flushed.is_pending());
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_closing(context));
        let shut_down = Pin::new(&mut self.stream).poll_shutdown(context);
        self.connection.set_writing(shut_down.is_pending());
        shut_down
    }
}
