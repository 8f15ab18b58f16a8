//! The lanes of one thread: frames in and out, and which request has which number.
//!
//! What is written to a lane is collected, and written when all that was ready in this turn of the loop has been looked at, or enough requests
//! have come together. What can be read is taken in at once, however many frames of however many requests it is.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tracer_ipc::claims::{CLAIM_COUNT, SharedClaims};
use tracer_ipc::lane::{self, Body, LEAST_ROOM, LaneError, Numbers, Opening, Reset};
use tracer_ipc::replica_table::ReplicaIndex;

use super::exchange::{End, Exchange};
use super::inbox::Inbox;
use super::outbox::Outbox;

/// The most bytes that may wait to be written to a lane.
const LANE_BYTES: usize = 16 << 20;
/// Requests with which a lane is written before the turn is over: its replica handles them while the proxy takes in others, on another core.
const EARLY: u32 = 8;
/// Time in nanoseconds in which another process is awake, on a busy machine. A replica that is awake and done with all it has by then gets one request more.
const QUICK_NS: u64 = 100_000;
/// Pause before something is written again to a lane that cannot be watched.
const WRITE_PAUSE: Duration = Duration::from_millis(10);

/// A lane to one replica.
#[derive(Debug)]
pub(super) struct Lane {
    /// The replica's number in the table.
    pub(super) replica: ReplicaIndex,
    /// The replica's name.
    pub(super) name: Rc<str>,
    socket: UnixStream,
    claims: SharedClaims,
    numbers: RefCell<Numbers>,
    /// By the entry of their claims.
    exchanges: RefCell<Vec<Option<Rc<Exchange>>>>,
    /// Bytes that were read and are no whole frame yet.
    inbox: RefCell<Inbox>,
    outbox: RefCell<Outbox>,
    /// Wakers of those that wait for room in the outbox, or for a number.
    waiting: RefCell<Vec<Waker>>,
    /// True while it is among those that are to be written.
    is_dirty: Cell<bool>,
    /// Requests that were opened since it was written.
    opened: Cell<u32>,
    /// True if no further request is sent there.
    is_closed: Cell<bool>,
    flush: Rc<Flush>,
}

/// The lanes that are to be written in this turn of the loop, and who writes them.
#[derive(Debug, Default)]
pub(super) struct Flush {
    dirty: RefCell<Vec<Rc<Lane>>>,
    waker: RefCell<Option<Waker>>,
}

/// Reason of the end of a lane.
#[derive(Debug)]
pub(super) enum LaneEnd {
    /// The replica has closed it.
    Closed,
    /// The replica has sent what none may send.
    Broken(String),
}

impl Lane {
    /// Makes a lane over this socket, which does not block, and what reads it.
    ///
    /// That is told of what can be read and of nothing else: a socket that is watched in both directions wakes the loop each time that its
    /// replica has read something.
    pub(super) fn new(
        replica: ReplicaIndex,
        name: Rc<str>,
        socket: UnixStream,
        claims: SharedClaims,
        flush: Rc<Flush>,
    ) -> io::Result<(Rc<Lane>, pipe::Receiver)> {
        // It is read as a pipe is.
        let reader = pipe::Receiver::from_owned_fd_unchecked(OwnedFd::from(socket.try_clone()?))?;
        let lane = Lane {
            replica,
            name,
            socket,
            claims,
            numbers: RefCell::default(),
            exchanges: RefCell::new(vec![None; CLAIM_COUNT]),
            inbox: RefCell::default(),
            outbox: RefCell::default(),
            waiting: RefCell::default(),
            is_dirty: Cell::new(false),
            opened: Cell::new(0),
            is_closed: Cell::new(false),
            flush,
        };
        Ok((Rc::new(lane), reader))
    }

    /// Returns whether requests may be sent there.
    pub(super) fn is_open(&self) -> bool {
        !self.is_closed.get()
    }

    /// Takes a number, when there is one.
    pub(super) fn poll_number(&self, context: &mut Context<'_>) -> Poll<u32> {
        match self.numbers.borrow_mut().take() {
            Some(number) => Poll::Ready(number),
            None => {
                self.wait_for_room(context.waker());
                Poll::Pending
            }
        }
    }

    /// Returns how many requests its replica is done with in the time of waking another one; 0 when nobody knows.
    pub(super) fn quick_room(&self) -> u64 {
        QUICK_NS.checked_div(self.claims.handling_ns()).unwrap_or(0)
    }

    /// Gives a number back that nothing was sent under.
    pub(super) fn give_back(&self, number: u32) {
        self.numbers.borrow_mut().give_back(number);
        self.wake_waiting();
    }

    /// Sends a request under a number that was taken.
    pub(super) fn open<'h>(
        self: &Rc<Lane>,
        number: u32,
        is_last: bool,
        opening: &Opening<'_>,
        headers: impl IntoIterator<Item = (&'h str, &'h [u8])>,
    ) -> Rc<Exchange> {
        let exchange = Rc::new(Exchange::new(Rc::clone(self), number, is_last));
        self.exchanges.borrow_mut()[entry(number)] = Some(Rc::clone(&exchange));
        self.claims.grant(number.into());
        self.put(|out| lane::put_open(out, number, is_last, opening, headers));
        self.opened.set(self.opened.get() + 1);
        if self.opened.get() >= EARLY {
            self.write_early();
        }
        exchange
    }

    /// Sends a piece of a body.
    pub(super) fn send_data(self: &Rc<Lane>, number: u32, piece: Bytes, is_last: bool) {
        let header = lane::data_header(number, is_last, piece.len());
        self.outbox.borrow_mut().put(|out| out.extend_from_slice(&header));
        self.outbox.borrow_mut().put_piece(piece);
        self.mark_dirty();
    }

    /// Sends trailers.
    pub(super) fn send_trailers<'h>(
        self: &Rc<Lane>,
        number: u32,
        trailers: impl IntoIterator<Item = (&'h str, &'h [u8])>,
    ) {
        self.put(|out| lane::put_trailers(out, number, trailers));
    }

    /// Gives credit for bytes that were taken.
    pub(super) fn credit(self: &Rc<Lane>, number: u32, bytes: u32) {
        self.put(|out| lane::put_credit(out, number, bytes));
    }

    /// Ends a request in both directions.
    pub(super) fn reset(self: &Rc<Lane>, number: u32, reason: Reset) {
        self.revoke(number);
        self.put(|out| lane::put_reset(out, number, reason));
    }

    /// Takes a request back. False when the replica has begun it.
    pub(super) fn revoke(&self, number: u32) -> bool {
        self.claims.revoke(number.into())
    }

    /// Returns whether an attempt has its number still.
    pub(super) fn has(&self, exchange: &Exchange) -> bool {
        let exchanges = self.exchanges.borrow();
        exchanges[entry(exchange.number)].as_ref().is_some_and(|known| known.number == exchange.number)
    }

    /// Forgets a request that has ended in both directions. False when it was forgotten before.
    pub(super) fn forget(&self, number: u32) -> bool {
        let mut exchanges = self.exchanges.borrow_mut();
        let place = &mut exchanges[entry(number)];
        if place.as_ref().is_none_or(|exchange| exchange.number != number) {
            return false;
        }
        *place = None;
        self.numbers.borrow_mut().give_back(number);
        self.wake_waiting();
        true
    }

    /// Returns whether bytes of bodies may be sent.
    pub(super) fn has_room(&self) -> bool {
        self.outbox.borrow().len() < LANE_BYTES
    }

    /// Keeps a waker, to be woken when there may be room, or a number.
    pub(super) fn wait_for_room(&self, waker: &Waker) {
        self.waiting.borrow_mut().push(waker.clone());
    }

    fn wake_waiting(&self) {
        self.waiting.borrow_mut().drain(..).for_each(Waker::wake);
    }

    fn put(self: &Rc<Lane>, put: impl FnOnce(&mut Vec<u8>)) {
        self.outbox.borrow_mut().put(put);
        self.mark_dirty();
    }

    /// Marks it to be written at the end of this turn.
    fn mark_dirty(self: &Rc<Lane>) {
        if !self.is_dirty.replace(true) {
            self.flush.dirty.borrow_mut().push(Rc::clone(self));
            if let Some(waker) = self.flush.waker.borrow_mut().take() {
                waker.wake();
            }
        }
    }

    /// Writes what there is before the end of the turn, which does all else.
    fn write_early(&self) {
        let _ = self.write_outbox();
    }

    fn write_outbox(&self) -> io::Result<bool> {
        self.opened.set(0);
        self.outbox.borrow_mut().write(|slices| (&self.socket).write_vectored(slices))
    }

    /// Writes what there is, and goes on later with what cannot be written now.
    fn write(self: &Rc<Lane>) {
        self.is_dirty.set(false);
        match self.write_outbox() {
            Ok(true) if self.waiting.borrow().is_empty() => {}
            Ok(true) => self.wake_waiting(),
            Ok(false) => {
                self.is_dirty.set(true);
                let lane = Rc::clone(self);
                drop(tokio::task::spawn_local(async move {
                    lane.writable().await;
                    lane.is_dirty.set(false);
                    lane.mark_dirty();
                }));
            }
            // Whoever reads it sees the end, after what has come before it.
            Err(_) => {}
        }
    }

    /// Waits until something can be written.
    async fn writable(&self) {
        let watched = self.socket.try_clone().and_then(|own| pipe::Sender::from_owned_fd_unchecked(OwnedFd::from(own)));
        match watched {
            Ok(watched) => drop(watched.writable().await),
            // There are too many files. It is tried again.
            Err(_) => tokio::time::sleep(WRITE_PAUSE).await,
        }
    }

    /// Takes frames in until the lane ends. `on_read` is called when something has come, and `on_over` is told each
    /// request that has ended.
    pub(super) async fn read(
        self: &Rc<Lane>,
        mut reader: pipe::Receiver,
        on_read: impl Fn(),
        mut on_over: impl FnMut(&Rc<Exchange>),
    ) -> LaneEnd {
        loop {
            let read = poll_fn(|context| {
                let mut inbox = self.inbox.borrow_mut();
                pin!(reader.read_buf(inbox.room())).poll(context)
            });
            match read.await {
                Ok(0) => return LaneEnd::Closed,
                Ok(count) => self.inbox.borrow_mut().note_read(count),
                // The replica was killed with something unread.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return LaneEnd::Closed,
                Err(error) => return LaneEnd::Broken(error.to_string()),
            }
            on_read();
            if let Err(error) = self.take_frames(&mut on_over) {
                return LaneEnd::Broken(error.to_string());
            }
        }
    }

    /// Takes frames in that a replica had written before its end and that nobody has read yet: an answer may be whole with them.
    pub(super) fn read_rest(self: &Rc<Lane>, mut on_over: impl FnMut(&Rc<Exchange>)) {
        let mut bytes = vec![0; LEAST_ROOM];
        loop {
            match rustix::io::read(&self.socket, &mut bytes) {
                Err(rustix::io::Errno::INTR) => continue,
                Ok(0) | Err(_) => return,
                Ok(count) => self.inbox.borrow_mut().room().extend_from_slice(&bytes[..count]),
            }
            if self.take_frames(&mut on_over).is_err() {
                return;
            }
        }
    }

    fn take_frames(self: &Rc<Lane>, on_over: &mut impl FnMut(&Rc<Exchange>)) -> Result<(), LaneError> {
        let bytes = self.inbox.borrow_mut().take_whole()?;
        for frame in lane::frames(&bytes) {
            let frame = frame?;
            if matches!(frame.body, Body::Drain) {
                self.is_closed.set(true);
                // Connections of another protocol are told that they are to end.
                self.exchanges.borrow().iter().flatten().for_each(|exchange| exchange.wake_reader());
                continue;
            }
            let exchange = self.exchanges.borrow()[entry(frame.request)].clone();
            // What is said of a request that was ended here was on its way then.
            let Some(exchange) = exchange.filter(|exchange| exchange.number == frame.request) else { continue };
            exchange.on_frame(&frame, &bytes)?;
            if exchange.is_over() {
                on_over(&exchange);
            }
        }
        Ok(())
    }

    /// Closes it, and returns what was in it. Requests that had not begun have ended then.
    pub(super) fn close(&self) -> Vec<Rc<Exchange>> {
        self.is_closed.set(true);
        // The other end sees it, whoever holds this one.
        let _ = self.socket.shutdown(Shutdown::Both);
        let all: Vec<_> = self.exchanges.borrow_mut().iter_mut().filter_map(Option::take).collect();
        for exchange in &all {
            self.numbers.borrow_mut().give_back(exchange.number);
            if !exchange.has_begun() && self.revoke(exchange.number) {
                exchange.end(End::Unclaimed);
            }
        }
        // Those who wait for a number see that it is closed.
        self.wake_waiting();
        all
    }
}

fn entry(number: u32) -> usize {
    number as usize % CLAIM_COUNT
}

impl Flush {
    /// Writes lanes for as long as the thread runs.
    pub(super) async fn run(&self) {
        let mut lanes = Vec::new();
        poll_fn::<(), _>(|context| {
            std::mem::swap(&mut lanes, &mut self.dirty.borrow_mut());
            lanes.drain(..).for_each(|lane: Rc<Lane>| lane.write());
            *self.waker.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use tracer_ipc::replica_table::{Capacity, ReplicaTable};

    use super::*;

    /// Runs `test` with a lane that nobody reads, two requests in it that their replica has begun, and the replica's end.
    fn with_lane(test: impl FnOnce(Rc<Lane>, [Rc<Exchange>; 2], UnixStream)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let (table, _) = ReplicaTable::create(Capacity { replicas: 1, callers: 1, deployments: 1 }).unwrap();
        let (claims, _) = SharedClaims::create().unwrap();
        let (own, other) = UnixStream::pair().unwrap();
        own.set_nonblocking(true).unwrap();
        let _runtime = runtime.enter();
        // Its reader is dropped unused: what comes is read by nobody but `read_rest`.
        let (lane, _) = Lane::new(table.replica(0).unwrap(), "app#1".into(), own, claims, Rc::default()).unwrap();
        let exchanges = [(); 2].map(|()| open(&lane));
        assert!(exchanges.iter().all(|exchange| lane.claims.claim(exchange.number.into())));
        test(lane, exchanges, other);
    }

    fn open(lane: &Rc<Lane>) -> Rc<Exchange> {
        let opening = Opening {
            trace_id: [0; 16],
            span_id: [0; 8],
            trace_flags: 0,
            deadline_unix_nano: 0,
            is_secure: false,
            version: 11,
            method: "GET",
            authority: "",
            target: "/",
            request_id: "",
            client: "",
        };
        let number = lane.numbers.borrow_mut().take().unwrap();
        lane.open(number, true, &opening, [])
    }

    fn answer(number: u32, body: &[u8]) -> Vec<u8> {
        let mut frames = Vec::new();
        lane::put_head(&mut frames, number, false, 200, [("etag", &b"e"[..])]);
        frames.extend(lane::data_header(number, true, body.len()));
        frames.extend_from_slice(body);
        frames
    }

    fn rest(lane: &Rc<Lane>) -> Vec<u32> {
        let mut over = Vec::new();
        lane.read_rest(|exchange| over.push(exchange.number));
        over
    }

    #[test]
    fn an_answer_that_a_lost_replica_had_written_is_whole_and_one_that_was_torn_is_lost() {
        with_lane(|lane, [whole, torn], mut other| {
            // More than is read at once, in a frame after the other.
            let long = vec![7; lane::DATA_LIMIT];
            let mut frames = Vec::new();
            lane::put_head(&mut frames, whole.number, false, 200, []);
            for is_last in [false, true] {
                frames.extend(lane::data_header(whole.number, is_last, long.len()));
                frames.extend_from_slice(&long);
            }
            let half = answer(torn.number, b"hello");
            frames.extend_from_slice(&half[..half.len() - 1]);
            other.write_all(&frames).unwrap();
            drop(other);
            assert_eq!(rest(&lane), [whole.number]);
            assert!(whole.is_over() && whole.has_begun() && !torn.is_over() && torn.has_begun());
            let left = lane.close();
            assert_eq!(left.len(), 2, "nobody has forgotten them, which is the thread's part");
            torn.end(End::Lost);
            let mut context = Context::from_waker(Waker::noop());
            assert_eq!(whole.poll_end(&mut context), Poll::Ready(()));
            assert!(matches!(torn.poll_head(&mut context), Poll::Ready(Ok((status, _))) if status == 200));
        });
    }

    #[test]
    fn the_rest_goes_on_where_the_reader_was_in_the_middle_of_a_frame() {
        with_lane(|lane, [first, second], mut other| {
            let frames = [answer(first.number, b"one"), answer(second.number, b"two")].concat();
            let (before, after) = frames.split_at(frames.len() / 2 + 3);
            lane.inbox.borrow_mut().room().extend_from_slice(before);
            other.write_all(after).unwrap();
            other.shutdown(Shutdown::Write).unwrap();
            assert_eq!(rest(&lane), [first.number, second.number]);
            assert_eq!([first, second].map(|exchange| exchange.whole_body().unwrap()), ["one", "two"]);
        });
    }

    #[test]
    fn what_is_no_frame_ends_the_rest_and_what_came_before_it_counts() {
        with_lane(|lane, [first, second], mut other| {
            other.write_all(&answer(first.number, b"one")).unwrap();
            assert_eq!(rest(&lane), [first.number], "the replica may be there still, and nothing waits for it");
            other.write_all(&u32::MAX.to_le_bytes()).unwrap();
            other.write_all(&answer(second.number, b"two")).unwrap();
            assert_eq!(rest(&lane), [0; 0]);
            assert!(!second.is_over());
        });
    }

    /// Nobody runs what writes lanes at the end of a turn.
    #[test]
    fn a_replica_gets_some_requests_while_others_of_the_same_turn_are_taken_in() {
        with_lane(|lane, [first, _], mut other| {
            other.set_nonblocking(true).unwrap();
            let mut bytes = [0; 4096];
            let mut read = || other.read(&mut bytes).map(|count| bytes[..count].to_vec());
            (2..EARLY - 1).for_each(|_| drop(open(&lane)));
            assert_eq!(read().unwrap_err().kind(), io::ErrorKind::WouldBlock);
            let last = open(&lane);
            let frames = read().unwrap();
            assert_eq!(lane::whole_frames(&frames).unwrap(), frames.len());
            let has = |exchange: &Exchange| frames.windows(4).any(|bytes| bytes == exchange.number.to_le_bytes());
            assert!(has(&first) && has(&last));
            lane.write();
            assert_eq!(read().unwrap_err().kind(), io::ErrorKind::WouldBlock, "they are written once");
        });
    }

    #[test]
    fn a_replica_has_room_for_the_requests_that_it_handles_before_another_one_is_awake() {
        with_lane(|lane, _, _| {
            assert_eq!(lane.quick_room(), 0, "nobody knows how long it takes");
            lane.claims.note_handled(QUICK_NS / 4);
            assert_eq!(lane.quick_room(), 4);
            lane.claims.note_handled(u64::MAX);
            assert_eq!(lane.quick_room(), 3, "it was held up once");
            (0..100).for_each(|_| lane.claims.note_handled(QUICK_NS * 2));
            assert_eq!(lane.quick_room(), 0, "it has become slow");
        });
    }
}
