//! Connections of clients: how long each may take, when it is closed, and what it is told then.

pub(super) mod conversation;

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use http::HeaderMap;

use super::activity::{Activity, Stage, Verdict};
use super::exchange::Exchange;
use super::pace::Pace;
use super::refusals::{self, Refused};
use super::settings::Settings;
use super::thread::ProxyThread;
use super::tunnel::Tunnel;
use super::{limits, rounds};
use crate::request_head::{self};

/// Schemes of URLs.
const HTTP: &str = "http";
pub(super) const HTTPS: &str = "https";

/// The other end of a connection.
pub(super) struct Peer {
    ip: IpAddr,
    /// Its address.
    pub(super) address: String,
    /// Address and port.
    pub(super) text: String,
}

/// Reason why nothing more is read from a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusing {
    /// It is no request.
    Head(request_head::Refusal),
    /// It is too slow.
    TooSlow,
}

/// A connection, as its requests and whoever looks after it see it.
pub(super) struct Connection {
    pub(super) peer: Rc<Peer>,
    thread: Rc<ProxyThread>,
    activity: RefCell<Activity>,
    is_2: Cell<bool>,
    /// Bodies of requests that have been answered and are still read.
    late_bodies: Cell<u32>,
    /// State of its rest: it has been answered, and asks for nothing more.
    resting: Resting,
    /// State of a slow head, which is read in rounds.
    slow: Cell<Slow>,
    /// The requests of HTTP/2 that are under way.
    paces: RefCell<Vec<Rc<Pace>>>,
    /// True once a client of HTTP/2 is told to go.
    is_leaving: Cell<bool>,
    /// True if the client speaks TLS.
    is_secure: Cell<bool>,
    /// True once the client has sent something.
    has_opened: Cell<bool>,
    refusing: Cell<Option<Refusing>>,
    is_cut: Cell<bool>,
    /// True while a request asks for another protocol and is not answered.
    is_upgrading: Cell<bool>,
    /// The tunnel that follows the answer which is being written.
    tunnel: RefCell<Option<Tunnel>>,
    waker: RefCell<Option<Waker>>,
}

/// State of a connection that may ask for nothing more.
#[derive(Default)]
struct Resting {
    /// True while it is among those that have been answered.
    is_noted: Cell<bool>,
    /// True if it was answered since the last round over those.
    was_answered: Cell<bool>,
    /// True if nothing is kept for it but the socket, once it has nothing to do.
    is_due: Cell<bool>,
}

/// Reading of a head that may come in small pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slow {
    /// No slow head: bytes are read as they come.
    Not,
    /// Wait for the next round.
    Waits,
    /// Permission to read once, which its round has given.
    MayRead,
}

/// A request of a connection, until its answer is written or given up.
pub(super) struct Serving {
    connection: Rc<Connection>,
    /// None over HTTP/1, where the connection has one request at a time.
    pace: Option<Rc<Pace>>,
}

impl Serving {
    pub(super) fn begin(connection: &Rc<Connection>, pace: Option<Rc<Pace>>) -> Serving {
        connection.activity.borrow_mut().begin_request();
        connection.resting.is_due.set(false);
        connection.thread.spinning.request_began();
        Serving { connection: Rc::clone(connection), pace }
    }

    /// Notes whether a piece of the answer was given that now waits for the client.
    pub(super) fn gave(&self, is_waiting: bool) {
        if let Some(pace) = &self.pace {
            pace.gave(is_waiting, self.connection.thread.look());
        }
    }

    /// Returns what counts the bytes of an answer that wait for the client.
    pub(super) fn count_unwritten(&self, exchange: &Rc<Exchange>) -> Rc<Unwritten> {
        let pace = self.pace.clone().map(|pace| (pace, Rc::clone(&self.connection.thread)));
        Rc::new(Unwritten { exchange: Rc::clone(exchange), pace, bytes: Cell::new(0) })
    }
}

/// Bytes of an answer that its connection has and has not written.
/// They count against the window of the answer, so that a client that reads slowly takes no more memory than that.
pub(super) struct Unwritten {
    exchange: Rc<Exchange>,
    /// Of a stream of HTTP/2, with what knows the time.
    pace: Option<(Rc<Pace>, Rc<ProxyThread>)>,
    bytes: Cell<usize>,
}

impl Unwritten {
    /// Returns whether there are any.
    pub(super) fn is_any(&self) -> bool {
        self.bytes.get() > 0
    }

    /// Notes that a piece is given to the connection.
    pub(super) fn gave(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() + bytes);
    }

    /// Notes that a piece is written, or wanted no more.
    pub(super) fn took(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() - bytes);
        if let Some((pace, thread)) = &self.pace {
            pace.gave(self.is_any(), thread.look());
        }
        self.exchange.took(bytes);
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(own) = &self.pace {
            self.connection.paces.borrow_mut().retain(|pace| !Rc::ptr_eq(pace, own));
        }
        self.connection.activity.borrow_mut().end_request(self.connection.thread.look());
        self.connection.thread.spinning.request_ended();
        self.connection.was_answered();
    }
}

/// The body of a request that has been answered, while it is still read.
pub(super) struct LateBody(Rc<Connection>);

impl LateBody {
    pub(super) fn new(connection: &Rc<Connection>) -> LateBody {
        connection.late_bodies.set(connection.late_bodies.get() + 1);
        LateBody(Rc::clone(connection))
    }
}

impl Drop for LateBody {
    fn drop(&mut self) {
        self.0.late_bodies.set(self.0.late_bodies.get() - 1);
        self.0.wake();
    }
}

impl Connection {
    pub(super) fn new(thread: &Rc<ProxyThread>, address: SocketAddr) -> Rc<Connection> {
        let ip = address.ip().to_canonical();
        let now = thread.look();
        let text = SocketAddr::new(ip, address.port()).to_string();
        Rc::new(Connection {
            peer: Rc::new(Peer { ip, address: ip.to_string(), text }),
            thread: Rc::clone(thread),
            activity: RefCell::new(Activity::new(now)),
            is_2: Cell::new(false),
            late_bodies: Cell::new(0),
            resting: Resting::default(),
            slow: Cell::new(Slow::Not),
            paces: RefCell::default(),
            is_leaving: Cell::new(false),
            is_secure: Cell::new(false),
            has_opened: Cell::new(false),
            refusing: Cell::new(None),
            is_cut: Cell::new(false),
            is_upgrading: Cell::new(false),
            tunnel: RefCell::default(),
            waker: RefCell::default(),
        })
    }

    pub(super) fn stage(&self) -> Stage {
        self.activity.borrow().stage
    }

    /// Says that something has come, and what it was the end of.
    pub(super) fn came(&self, stage: Stage, is_new_head: bool) {
        self.activity.borrow_mut().came(stage, is_new_head, self.thread.look());
    }

    /// Says that a handshake of TLS is under way.
    pub(super) fn begins_handshake(&self) {
        self.is_secure.set(true);
        self.activity.borrow_mut().begins_handshake();
    }

    /// Says that it is complete.
    pub(super) fn ends_handshake(&self) {
        self.came(Stage::Idle, false);
    }

    /// Returns the scheme that the peer speaks.
    pub(super) fn own_scheme(&self) -> &'static str {
        if self.is_secure.get() { HTTPS } else { HTTP }
    }

    /// Returns the scheme of the URL that the client has asked for: what a trusted peer says of it, else what the peer speaks.
    pub(super) fn scheme(&self, headers: &HeaderMap, settings: &Settings) -> &'static str {
        let said = || headers.get("x-forwarded-proto").map(|value| value.as_bytes().trim_ascii());
        match said().filter(|_| self.is_trusted(settings)) {
            Some(said) if said.eq_ignore_ascii_case(HTTPS.as_bytes()) => HTTPS,
            Some(said) if said.eq_ignore_ascii_case(HTTP.as_bytes()) => HTTP,
            _ => self.own_scheme(),
        }
    }

    /// Says that the first bytes of the client have come.
    pub(super) fn opens(&self) {
        self.has_opened.set(true);
        self.came(Stage::Idle, false);
    }

    /// Says whether hyper waits for the client to send.
    pub(super) fn set_reading(&self, is_reading: bool) {
        self.activity.borrow_mut().reads(is_reading, self.thread.look());
    }

    /// Says whether hyper waits for the client to take.
    pub(super) fn set_writing(&self, is_writing: bool) {
        self.activity.borrow_mut().writes(is_writing, self.thread.look());
    }

    /// Says whether a request asks for another protocol and is not answered: nothing more is read before it is.
    pub(super) fn set_upgrading(&self, is_upgrading: bool) {
        self.is_upgrading.set(is_upgrading);
    }

    pub(super) fn is_upgrading(&self) -> bool {
        self.is_upgrading.get()
    }

    /// Says what the connection speaks after the answer that is being written.
    pub(super) fn upgrade(&self, tunnel: Tunnel) {
        *self.tunnel.borrow_mut() = Some(tunnel);
    }

    /// Says that nothing more is read.
    pub(super) fn refuse(&self, why: Refusing) {
        self.refusing.set(Some(why));
    }

    pub(super) fn is_refusing(&self) -> bool {
        self.refusing.get().is_some()
    }

    /// Returns whether the next answer is the last one.
    pub(super) fn is_closing(&self) -> bool {
        !self.is_2.get() && self.thread.is_draining()
    }

    /// Returns whether what the peer says of others is believed.
    pub(super) fn is_trusted(&self, settings: &Settings) -> bool {
        settings.http.trusted_proxies.contains(&self.peer.ip)
    }

    /// Returns the address of the client, if it is not the peer's.
    pub(super) fn client(&self, headers: &HeaderMap, settings: &Settings) -> Option<String> {
        let trusted = &settings.http.trusted_proxies;
        if !self.is_trusted(settings) {
            return None;
        }
        super::headers::client_of(headers, |address| trusted.contains(address)).map(|address| address.to_string())
    }

    /// Returns the reason why the body of a request has not come to its end.
    pub(super) fn why_broken(&self) -> Refused {
        match self.refusing.get() {
            Some(Refusing::Head(refusal)) => Refused::bad(refusals::of_head(refusal).kind, refusal.to_string()),
            Some(Refusing::TooSlow) => Refused::too_slow(),
            None => Refused::client_gone(),
        }
    }

    /// Returns for how many looks it has had nothing to do; none if it has.
    pub(super) fn idle_for(&self, now: u32) -> Option<u32> {
        self.activity.borrow().idle_for(now)
    }

    /// Returns in how many looks it is to be looked at again; none if it has something to do.
    pub(super) fn rests_for(&self, now: u32) -> Option<u32> {
        self.activity.borrow().rests_for(now)
    }

    /// Notes that a request of it has ended.
    fn was_answered(self: &Rc<Self>) {
        if self.is_2.get() {
            return;
        }
        self.resting.was_answered.set(true);
        if !self.resting.is_noted.replace(true) {
            rounds::was_answered(&self.thread, Rc::clone(self));
        }
    }

    /// Has it rest if it was not answered since this was asked last. False if it was.
    pub(super) fn begins_rest(&self) -> bool {
        if self.resting.was_answered.replace(false) {
            return false;
        }
        self.resting.is_noted.set(false);
        self.resting.is_due.set(true);
        self.wake();
        true
    }

    /// Returns whether nothing needs to be kept for it but the socket.
    fn rests(&self) -> bool {
        self.resting.is_due.get() && self.is_at_rest()
    }

    /// Says whether the head of a request comes in small pieces.
    pub(super) fn set_slow(self: &Rc<Self>, is_slow: bool) {
        match (self.slow.get(), is_slow) {
            (Slow::Not, true) => {
                self.slow.set(Slow::Waits);
                rounds::became_slow(&self.thread, Rc::clone(self));
            }
            (Slow::Waits | Slow::MayRead, false) => self.slow.set(Slow::Not),
            _ => {}
        }
    }

    /// Returns whether it is read in rounds.
    pub(super) fn is_slow(&self) -> bool {
        self.slow.get() != Slow::Not
    }

    /// Has it read what has come of a slow head. False if it has none any more.
    pub(super) fn may_read_slowly(&self) -> bool {
        if self.is_slow() {
            self.slow.set(Slow::MayRead);
            self.wake();
        }
        self.is_slow()
    }

    /// Returns whether it may be read now, once if its head is slow.
    pub(super) fn takes_turn(&self) -> bool {
        match self.slow.get() {
            Slow::Not => true,
            Slow::Waits => false,
            Slow::MayRead => {
                self.slow.set(Slow::Waits);
                true
            }
        }
    }

    /// Closes it, whatever it has.
    pub(super) fn cut(&self) {
        self.is_cut.set(true);
        self.wake();
    }

    /// Wakes its task, which looks at it.
    pub(super) fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Looks how long it has taken.
    pub(super) fn look(&self, now: u32) {
        let verdict = self.activity.borrow().judge(now);
        match verdict {
            Verdict::Fine => {}
            Verdict::Close => self.cut(),
            Verdict::Idle(looks) if self.is_2.get() && looks <= limits::IDLE_LOOKS + limits::HEAD_LOOKS => {
                self.is_leaving.set(true);
                self.wake();
            }
            Verdict::Idle(_) => self.cut(),
            Verdict::TooSlow if self.is_refusing() => {}
            Verdict::TooSlow => {
                self.refuse(Refusing::TooSlow);
                self.wake();
            }
        }
        let paces = self.paces.borrow();
        let is_any_held = paces.iter().any(|pace| pace.is_held());
        paces.iter().for_each(|pace| pace.look(now, is_any_held));
    }

    /// Begins a request of HTTP/2.
    fn begin_stream(&self) -> Rc<Pace> {
        let pace = Rc::new(Pace::default());
        self.paces.borrow_mut().push(Rc::clone(&pace));
        pace
    }

    /// Returns whether everything that was asked is answered and written.
    fn is_done(&self) -> bool {
        self.activity.borrow().is_done()
    }

    /// Returns whether no byte of a request has come that is not answered, and taken.
    fn is_at_rest(&self) -> bool {
        self.is_done() && self.stage() == Stage::Idle && self.late_bodies.get() == 0 && !self.is_refusing()
    }

    /// Returns whether it may end here: this proxy ends, and no byte of a request has come that is not answered. Another proxy cannot have a connection
    /// with TLS, whose client may be asking at this moment; so that one is closed after one more answer, if its service goes on.
    fn may_leave(&self) -> bool {
        let is_kept = self.is_secure.get() && self.thread.has_heir();
        self.thread.is_draining() && !is_kept && self.is_at_rest()
    }

    /// Returns whether a connection of HTTP/2 ends for no fault of its client.
    pub(super) fn is_ending_well(&self) -> bool {
        self.thread.is_draining() || self.is_leaving.get()
    }

    /// Returns how long the client waits until it is refused. None if it is not told.
    pub(super) fn take_refusal_turn(&self) -> Option<Duration> {
        self.thread.take_refusal_turn()
    }

    /// Returns true when the connection is to be dropped as it is.
    pub(super) fn poll_cut(&self, context: &mut Context<'_>) -> bool {
        *self.waker.borrow_mut() = Some(context.waker().clone());
        self.is_cut.get()
    }
}
