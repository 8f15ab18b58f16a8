//! One attempt at a replica: a request in a lane, and what has come of its answer.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tracer_core::request_names as names;
use tracer_ipc::lane::{Body, Frame, Headers, Incoming, LaneError, Outgoing, Reset, is_final};

use super::headers;
use super::lanes::Lane;

/// A piece of a body from this length on stays in the memory that it was read into.
const LONG: usize = 16 << 10;

/// A client that takes longer than this for half a window is slow.
/// Long pieces for it are copied, so that each keeps its own memory, and not a whole block in which pieces came for others that are done with them.
const SLOW: Duration = Duration::from_millis(20);
/// Credits without a slow one after which a client is not slow any more: the kernel takes much at once of what it reads later.
const QUICK_CREDITS: u32 = 16;

/// Outcome of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// With an answer.
    Complete,
    /// By the replica, for this reason.
    Reset(Reset),
    /// The replica does not have it any more, and has not begun it.
    Unclaimed,
    /// The replica is lost, and had begun it.
    Lost,
}

/// Received part of an answer.
#[derive(Debug)]
pub(super) enum Piece {
    /// Bytes of the body.
    Data(Bytes),
    /// Trailers, and nothing after them.
    Trailers(HeaderMap),
    /// Nothing follows.
    End(End),
}

/// An attempt.
#[derive(Debug)]
pub(super) struct Exchange {
    /// Its stage.
    pub(super) lane: Rc<Lane>,
    /// Its number there.
    pub(super) number: u32,
    /// Bytes of the body that the client has sent so far.
    pub(super) received: Cell<u64>,
    /// True if the whole request was sent.
    pub(super) is_sent: Cell<bool>,
    state: RefCell<State>,
}

#[derive(Debug)]
struct State {
    incoming: Incoming,
    outgoing: Outgoing,
    head: Option<(StatusCode, HeaderMap)>,
    /// The handler's own route, with the head of the answer.
    route: Option<Bytes>,
    /// True if the head says that the program which is served has not answered.
    has_program_failed: bool,
    pieces: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
    end: Option<End>,
    /// True if the replica has said anything, which it does only of what it has begun.
    has_begun: bool,
    /// Waker of the one that waits for the answer.
    reader: Option<Waker>,
    /// Waker of the one that waits for room in the other direction.
    sender: Option<Waker>,
    /// Time of the last credit, at first of the request.
    credited: Instant,
    /// Credits since the last one for what was taken slowly.
    quick_credits: u32,
}

impl Exchange {
    pub(super) fn new(lane: Rc<Lane>, number: u32, is_sent: bool) -> Exchange {
        let state = State {
            incoming: Incoming::answer(),
            outgoing: Outgoing::default(),
            head: None,
            route: None,
            has_program_failed: false,
            pieces: VecDeque::new(),
            trailers: None,
            end: None,
            has_begun: false,
            reader: None,
            sender: None,
            credited: Instant::now(),
            quick_credits: QUICK_CREDITS,
        };
        Exchange { lane, number, received: Cell::new(0), is_sent: Cell::new(is_sent), state: RefCell::new(state) }
    }

    /// Takes a frame of the answer, which came in `bytes`.
    pub(super) fn on_frame(&self, frame: &Frame<'_>, bytes: &Bytes) -> Result<(), LaneError> {
        let mut state = self.state.borrow_mut();
        state.incoming.on_frame(frame)?;
        match frame.body {
            Body::Credit(credit) => {
                state.outgoing.on_credit(credit)?;
                wake(&mut state.sender);
            }
            // Answers in between, such as 103, are not passed on.
            Body::Head(status, headers) if is_final(status) => {
                let status = StatusCode::from_u16(status).map_err(|_| LaneError::Text("status"))?;
                for (name, value) in headers.iter().filter(|(name, _)| name.starts_with("tracer-")) {
                    match name {
                        names::ROUTE_HEADER => state.route = Some(bytes.slice_ref(value)),
                        names::OUTCOME_HEADER => state.has_program_failed = true,
                        _ => {}
                    }
                }
                state.head = Some((status, header_map(headers, bytes)));
            }
            Body::Data([]) => {}
            Body::Data(piece) if piece.len() < LONG || state.quick_credits < QUICK_CREDITS => {
                state.pieces.push_back(Bytes::copy_from_slice(piece))
            }
            Body::Data(piece) => state.pieces.push_back(bytes.slice_ref(piece)),
            Body::Trailers(trailers) => state.trailers = Some(header_map(trailers, bytes)),
            Body::Reset(Reset::Refused) if !state.has_begun && self.lane.revoke(self.number) => {
                state.end = Some(End::Unclaimed);
            }
            Body::Reset(reason) => state.end = Some(End::Reset(reason)),
            Body::Head(..) | Body::Open(..) | Body::Drain => {}
        }
        state.has_begun |= !matches!(frame.body, Body::Reset(_));
        if frame.is_last && state.end.is_none() {
            state.end = Some(End::Complete);
        }
        if !matches!(frame.body, Body::Credit(_)) {
            wake(&mut state.reader);
        }
        if state.end.is_some() {
            wake(&mut state.sender);
        }
        Ok(())
    }

    /// Ends it from outside. What has come of the answer stays.
    pub(super) fn end(&self, end: End) {
        let mut state = self.state.borrow_mut();
        state.end.get_or_insert(end);
        wake(&mut state.reader);
        wake(&mut state.sender);
    }

    /// Ends the body of the request, if it has not ended.
    pub(super) fn end_sending(&self) {
        if !self.is_sent.replace(true) && !self.is_over() {
            self.lane.send_data(self.number, Bytes::new(), true);
        }
    }

    /// Makes whoever reads the answer look again.
    pub(super) fn wake_reader(&self) {
        wake(&mut self.state.borrow_mut().reader);
    }

    /// Returns whether nothing more comes from the replica.
    pub(super) fn is_over(&self) -> bool {
        self.state.borrow().end.is_some()
    }

    /// Returns whether the replica has said anything.
    pub(super) fn has_begun(&self) -> bool {
        self.state.borrow().has_begun
    }

    /// Waits for the head of the answer, or for an end without one.
    pub(super) fn poll_head(&self, context: &mut Context<'_>) -> Poll<Result<(StatusCode, HeaderMap), End>> {
        let mut state = self.state.borrow_mut();
        match (state.head.take(), state.end) {
            (Some(head), _) => Poll::Ready(Ok(head)),
            (None, Some(end)) => Poll::Ready(Err(end)),
            (None, None) => {
                set(&mut state.reader, context);
                Poll::Pending
            }
        }
    }

    /// Takes the handler's own route, if the head of the answer has one.
    pub(super) fn take_route(&self) -> Option<Bytes> {
        self.state.borrow_mut().route.take()
    }

    /// Returns whether the program that is served has not answered.
    pub(super) fn has_program_failed(&self) -> bool {
        self.state.borrow().has_program_failed
    }

    /// Waits for the end.
    pub(super) fn poll_end(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.borrow_mut();
        if state.end.is_some() {
            return Poll::Ready(());
        }
        set(&mut state.reader, context);
        Poll::Pending
    }

    /// Waits for the next piece of the body. `may_take` says whether this one may be taken before more has come. Whoever takes it says with
    /// [`took`](Self::took) when its memory is free: so much more may come.
    pub(super) fn poll_piece(&self, context: &mut Context<'_>, may_take: impl FnOnce(&Bytes) -> bool) -> Poll<Piece> {
        let mut state = self.state.borrow_mut();
        let is_ready = match (state.pieces.front(), state.end) {
            (Some(_), Some(_)) => true,
            (Some(first), None) => state.pieces.len() > 1 || may_take(first),
            (None, end) => end.is_some(),
        };
        if !is_ready {
            set(&mut state.reader, context);
            return Poll::Pending;
        }
        if let Some(piece) = state.pieces.pop_front() {
            return Poll::Ready(Piece::Data(piece));
        }
        if let Some(trailers) = state.trailers.take() {
            return Poll::Ready(Piece::Trailers(trailers));
        }
        Poll::Ready(Piece::End(state.end.unwrap_or(End::Lost)))
    }

    /// Notes that bytes of pieces are written, or wanted no more.
    pub(super) fn took(&self, bytes: usize) {
        let mut state = self.state.borrow_mut();
        let Some(credit) = state.incoming.took(u32::try_from(bytes).unwrap_or(u32::MAX)) else { return };
        let now = Instant::now();
        let is_slow = now.duration_since(state.credited) > SLOW;
        state.quick_credits = if is_slow { 0 } else { state.quick_credits.saturating_add(1) };
        state.credited = now;
        drop(state);
        if self.lane.has(self) {
            self.lane.credit(self.number, credit);
        }
    }

    /// Returns whether the whole answer has come and was taken.
    pub(super) fn is_all_taken(&self) -> bool {
        let state = self.state.borrow();
        state.end == Some(End::Complete) && state.pieces.is_empty() && state.trailers.is_none()
    }

    /// Returns the body, if all of it has come and it is one piece at most, without trailers.
    pub(super) fn whole_body(&self) -> Option<Bytes> {
        let mut state = self.state.borrow_mut();
        let is_whole = state.end == Some(End::Complete) && state.trailers.is_none() && state.pieces.len() <= 1;
        is_whole.then(|| state.pieces.pop_front().unwrap_or_default())
    }

    /// Waits for the end, as the one who sends.
    pub(super) fn poll_over(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.borrow_mut();
        if state.end.is_some() {
            return Poll::Ready(());
        }
        set(&mut state.sender, context);
        Poll::Pending
    }

    /// Takes what there is room for in the other direction, of so many bytes, or waits for it. None when it has ended.
    pub(super) fn poll_room(&self, bytes: usize, context: &mut Context<'_>) -> Poll<Option<usize>> {
        let mut state = self.state.borrow_mut();
        if state.end.is_some() {
            return Poll::Ready(None);
        }
        if self.lane.has_room() {
            let count = state.outgoing.take(bytes);
            if count > 0 || bytes == 0 {
                return Poll::Ready(Some(count));
            }
        } else {
            self.lane.wait_for_room(context.waker());
        }
        set(&mut state.sender, context);
        Poll::Pending
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

fn set(waker: &mut Option<Waker>, context: &Context<'_>) {
    match waker {
        Some(known) => known.clone_from(context.waker()),
        None => *waker = Some(context.waker().clone()),
    }
}

/// Headers of a frame that go on to the client, in the memory that they came in: they are written soon.
fn header_map(headers: Headers<'_>, bytes: &Bytes) -> HeaderMap {
    let mut map = HeaderMap::with_capacity(headers.len() + 4);
    let named = || headers.iter().filter(|(name, _)| *name == "connection").map(|(_, value)| value);
    let names_some = named().next().is_some();
    for (name, value) in headers.iter() {
        let is_replicas = matches!(name, names::ROUTE_HEADER | names::OUTCOME_HEADER);
        let is_of_connection = headers::is_hop_by_hop(name) || name == "te";
        if is_replicas || is_of_connection || (names_some && headers::names(named(), name)) {
            continue;
        }
        // They were checked when the frame was taken apart.
        let value = HeaderValue::from_maybe_shared(bytes.slice_ref(value));
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), value) {
            map.append(name, value);
        }
    }
    map
}

#[cfg(test)]
mod tests {
    use tracer_ipc::lane;

    use super::*;

    #[test]
    fn an_answer_keeps_what_is_the_clients() {
        let mut frame = Vec::new();
        let headers: [(&str, &[u8]); 5] = [
            ("connection", b"x-a, close"),
            ("x-a", b"1"),
            ("transfer-encoding", b"chunked"),
            ("etag", b"e"),
            ("etag", b"f"),
        ];
        lane::put_head(&mut frame, 1, true, 200, headers);
        let bytes = Bytes::from(frame);
        let Body::Head(_, headers) = Frame::decode(bytes[4], &bytes[5..]).unwrap().body else { panic!() };
        let map = header_map(headers, &bytes);
        let found: Vec<_> = map.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        assert_eq!(found, [("etag", &b"e"[..]), ("etag", b"f")]);
    }
}
