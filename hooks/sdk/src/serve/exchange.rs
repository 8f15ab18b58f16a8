//! One request and its response: the mailbox that the request's body arrives in, and the future that answers.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body as _, Frame, SizeHint};

use super::body::{Body, BodyError};
use super::context::{self, RequestContext};
use super::handler::{Boxed, Handled, Handler};
use super::lent::{HostTable, Taken};
use super::method::{self, CalledMethod};
use super::upgrade;
use crate::proxy::{Held, Lender};
use crate::task::Failure;
use crate::{panics, runtime};

/// The queue of a request's body between the loop, which takes pieces from the host, and the handler; and the wakers of both bodies.
pub(crate) struct Mailbox {
    host: HostTable,
    number: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    pieces: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
    /// Bytes that are still to come and not yet read, if the client has said how many.
    left: Option<u64>,
    is_complete: bool,
    is_cut: bool,
    /// Nobody reads it any more: what arrives is passed over.
    is_abandoned: bool,
    reader: Option<Waker>,
    has_room: bool,
    writer: Option<Waker>,
}

impl Mailbox {
    pub(super) fn new(host: HostTable, number: u64, length: Option<u64>) -> Mailbox {
        let state = State { left: length, ..State::default() };
        Mailbox { host, number, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what has arrived.
    pub(super) fn put(&self, piece: Bytes, is_last: bool, trailers: Option<HeaderMap>) {
        let mut state = self.state();
        state.is_complete |= is_last;
        state.trailers = trailers;
        if state.is_abandoned {
            drop(state);
            self.host.consumed(self.number, piece.len());
            return;
        }
        if !piece.is_empty() {
            state.pieces.push_back(piece);
        }
        let reader = state.reader.take();
        drop(state);
        wake(reader);
    }

    /// Notes that the rest of the body will not come.
    pub(super) fn cut(&self) {
        let mut state = self.state();
        (state.is_complete, state.is_cut) = (true, true);
        let reader = state.reader.take();
        drop(state);
        wake(reader);
    }

    /// Notes that there is room for the response's body.
    pub(super) fn room(&self) {
        let mut state = self.state();
        state.has_room = true;
        let writer = state.writer.take();
        drop(state);
        wake(writer);
    }

    pub(super) fn poll_frame(&self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut state = self.state();
        if let Some(piece) = state.pieces.pop_front() {
            state.left = state.left.map(|left| left.saturating_sub(piece.len() as u64));
            drop(state);
            self.host.consumed(self.number, piece.len());
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        if std::mem::take(&mut state.is_cut) {
            let error = std::io::Error::new(ErrorKind::UnexpectedEof, "the client did not send the rest of the body");
            return Poll::Ready(Some(Err(BodyError(error.into()))));
        }
        if state.is_complete {
            return Poll::Ready(state.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
        }
        state.reader = Some(context.waker().clone());
        Poll::Pending
    }

    pub(super) fn is_at_end(&self) -> bool {
        let state = self.state();
        state.is_complete && state.pieces.is_empty() && state.trailers.is_none() && !state.is_cut
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        let state = self.state();
        let waiting: usize = state.pieces.iter().map(Bytes::len).sum();
        match state.left {
            _ if state.is_complete && !state.is_cut => SizeHint::with_exact(waiting as u64),
            Some(left) => SizeHint::with_exact(left),
            None => {
                let mut hint = SizeHint::new();
                hint.set_lower(waiting as u64);
                hint
            }
        }
    }

    /// Notes that nobody reads the body any more: all of it counts as read, so that the client is not held up.
    pub(super) fn abandon(&self) {
        let mut state = self.state();
        state.is_abandoned = true;
        let waiting: usize = state.pieces.drain(..).map(|piece| piece.len()).sum();
        drop(state);
        self.host.consumed(self.number, waiting);
    }

    /// Begins the response.
    pub(super) fn begin(&self, status: StatusCode, headers: &HeaderMap, is_last: bool) -> Taken {
        self.host.respond(self.number, status.as_u16(), headers, is_last)
    }

    fn poll_room(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if std::mem::take(&mut state.has_room) {
            return Poll::Ready(());
        }
        state.writer = Some(context.waker().clone());
        Poll::Pending
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// The end of a request.
pub(super) enum Ending {
    Whole(Option<HeaderMap>),
    Failed(Failure),
}

/// The future of one request: whatever is the request's own is current while it is polled or dropped, and at no other time.
///
/// However it ends, also by being dropped, it gives the span back and then tells the host, once.
pub(super) struct Exchange {
    future: Option<Boxed<Ending>>,
    held: Held,
    lender: Option<Lender>,
    context: RequestContext,
    mailbox: Arc<Mailbox>,
    /// Called when the host has been told the end.
    on_end: Box<dyn Fn(u64) + Send>,
}

impl Exchange {
    pub(super) fn new(
        handler: Arc<dyn Handler>,
        request: Request<Body>,
        mailbox: Arc<Mailbox>,
        current: (Held, Option<Lender>),
        context: RequestContext,
        on_end: Box<dyn Fn(u64) + Send>,
    ) -> Exchange {
        let (held, lender) = current;
        let future = Some(Box::pin(answer(handler, request, mailbox.clone())) as _);
        Exchange { future, held, lender, context, mailbox, on_end }
    }

    /// Drops the handler's future and gives the span back, then says how the request ended.
    fn finish(&mut self, ending: Ending) {
        let dropped = {
            let _current = (self.held.attach(), context::enter(Some(self.context.clone())));
            let future = self.future.take();
            panics::catch(move || drop(future))
        };
        let ending = match (ending, dropped) {
            (Ending::Whole(_), Err(panic)) => Ending::Failed(Failure::of_panic(panic)),
            (ending, _) => ending,
        };
        self.held = Held::default();
        self.lender = None;
        let (host, number) = (self.mailbox.host, self.mailbox.number);
        match ending {
            Ending::Whole(trailers) => host.end(number, trailers.as_ref()),
            Ending::Failed(failure) => host.fail(number, &failure),
        }
        (self.on_end)(number);
    }
}

impl Future for Exchange {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let polled = {
            let this = &mut *self;
            let Some(future) = &mut this.future else { return Poll::Ready(()) };
            let _current = (this.held.attach(), context::enter(Some(this.context.clone())), runtime::enter(None));
            panics::catch(|| future.as_mut().poll(cx))
        };
        let ending = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(ending)) => ending,
            Err(panic) => Ending::Failed(Failure::of_panic(panic)),
        };
        self.finish(ending);
        Poll::Ready(())
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if self.future.is_some() {
            self.finish(Ending::Failed(Failure::cancelled()));
        }
    }
}

/// A handler that was called.
enum Called {
    Handler(Boxed<Handled>),
    /// Answer through a connection within the process.
    Upgrade(Boxed<Ending>),
}

/// Calls the handler, in the way that the request asks for.
fn call(handler: Arc<dyn Handler>, request: Request<Body>, mailbox: &Arc<Mailbox>) -> Called {
    if upgrade::is_asked(&request) {
        return Called::Upgrade(Box::pin(upgrade::answer(handler, request, mailbox.clone())));
    }
    Called::Handler(match request.extensions().get::<CalledMethod>().cloned() {
        Some(called) => Box::pin(method::answer(handler, called, request)),
        None => handler.call(request),
    })
}

/// Calls the handler, and sends what it answers.
///
/// Its future is allocated for each request. It is small, because what is rare has boxes of its own and the request is the handler's alone
/// when it waits: the allocator keeps blocks of at most 1 KiB at hand.
async fn answer(handler: Arc<dyn Handler>, request: Request<Body>, mailbox: Arc<Mailbox>) -> Ending {
    let handled = match call(handler, request, &mailbox) {
        Called::Handler(handled) => handled.await,
        Called::Upgrade(ending) => return ending.await,
    };
    match handled {
        Ok(response) => respond(&mailbox, response).await,
        Err(failure) => Ending::Failed(failure),
    }
}

/// Sends the head of a response at once. The future that it returns sends the body.
pub(super) fn respond(mailbox: &Mailbox, response: Response<Body>) -> impl Future<Output = Ending> + Send {
    let (head, body) = response.into_parts();
    let is_last = body.is_end_stream();
    let begun = match mailbox.begin(head.status, &head.headers, is_last) {
        Taken::Yes if is_last => Err(Ending::Whole(None)),
        Taken::Yes => Ok(body),
        _ => Err(Ending::Failed(Failure::cancelled())),
    };
    async move {
        match begun {
            Ok(body) => stream(mailbox, body).await,
            Err(ending) => ending,
        }
    }
}

/// Sends a response's body.
async fn stream(mailbox: &Mailbox, mut body: Body) -> Ending {
    loop {
        let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await else {
            return Ending::Whole(None);
        };
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => return Ending::Failed(Failure::returned(&error, error.to_string())),
        };
        match frame.into_data() {
            Ok(piece) => {
                if send(mailbox, piece).await.is_err() {
                    return Ending::Failed(Failure::cancelled());
                }
            }
            Err(frame) => return Ending::Whole(frame.into_trailers().ok()),
        }
    }
}

/// Nobody wants the rest of a response.
pub(super) struct Unwanted;

/// Sends a piece of a response's body, as there is room for it.
pub(super) async fn send(mailbox: &Mailbox, mut piece: Bytes) -> Result<(), Unwanted> {
    while !piece.is_empty() {
        match mailbox.host.send(mailbox.number, piece) {
            Ok(()) => break,
            Err((Taken::Full, back)) => piece = back,
            Err(_) => return Err(Unwanted),
        }
        poll_fn(|context| mailbox.poll_room(context)).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::handler::{IntoResponse, asynchronous};
    use super::*;

    /// The largest block that glibc keeps for the thread that freed it.
    const KEPT_AT_HAND: usize = 1032;

    #[test]
    fn the_future_of_a_request_is_small() {
        let size = size_of::<usize>();
        // SAFETY: the size says that nothing follows it.
        let host = unsafe { HostTable::new((&raw const size).cast()) };
        let handler = asynchronous(|_: Request<Body>| async { StatusCode::OK }, StatusCode::into_response);
        let mailbox = Arc::new(Mailbox::new(host, 1, None));
        let size = size_of_val(&answer(handler, Request::new(Body::empty()), mailbox));
        assert!(size <= KEPT_AT_HAND, "{size} bytes");
    }
}
