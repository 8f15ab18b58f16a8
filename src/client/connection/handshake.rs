//! The beginning of a connection: hello, and the head's welcome, within the time that a head may take to answer.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use tracer_core::codec::WireError;
use tracer_core::task::Refusal;
use tracer_ipc::channel::Receiver;
use tracer_ipc::protocol::frame::{FRAME_LIMIT, FrameBuffer};
use tracer_ipc::protocol::order::{ORDER, Order, OrderAnswer};
use tracer_ipc::protocol::{Hello, Role, Welcome, kind, take_value};
use tracer_ipc::session::{self, SessionError};
use tracer_ipc::spin::{Spin, is_readable};
use tracer_ipc::{fault, identity};

use crate::error::DriverError;

/// The time that a head has to answer. Longer than any of its turns, on a machine that is busy.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// The interval at which a waiting driver checks that the head was not stopped, which nobody waits out.
const ANSWER_LOOKS: Duration = Duration::from_secs(1);

/// The receiving side of a connection, which one thread at a time has.
pub(super) struct ReadHalf {
    pub(super) inbox: FrameBuffer,
    pub(super) spin: Spin,
    pub(super) receiver: Receiver,
}

impl ReadHalf {
    pub(super) fn new() -> Box<ReadHalf> {
        // Boxed: it is handed from thread to thread.
        Box::new(ReadHalf {
            inbox: FrameBuffer::default(),
            spin: Spin::default().for_answers(),
            receiver: Receiver::default(),
        })
    }

    /// Reads once, and waits for something to come if need be.
    pub(super) fn read(&mut self, stream: &UnixStream) -> Result<(), DriverError> {
        let ReadHalf { inbox, spin, receiver } = self;
        loop {
            match receiver.wait(stream, inbox, spin) {
                Ok(0) => return Err(DriverError::Disconnected(io::ErrorKind::UnexpectedEof.into())),
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(DriverError::Disconnected(error)),
            }
        }
    }
}

/// Connects to the head of a session, and says hello in this role.
pub(super) fn connect(session_dir: &Path, role: Role) -> Result<(UnixStream, Box<ReadHalf>, Welcome), DriverError> {
    let mut stream = connect_in_time(session_dir)?;
    let mut hello = Vec::new();
    Hello::of_this_process(role).encode(&mut hello);
    stream.write_all(&hello).map_err(DriverError::Disconnected)?;
    let mut read_half = ReadHalf::new();
    loop {
        let frame = read_half.inbox.next_frame(FRAME_LIMIT);
        match frame.map_err(|error| DriverError::Disconnected(error.into()))? {
            Some((kind::WELCOME, body)) => {
                let welcome = take_value(body)?;
                return Ok((stream, read_half, welcome));
            }
            Some((kind::REFUSED, body)) => return Err(DriverError::Refused(Refusal::decode(body)?)),
            Some(_) => return Err(DriverError::Protocol(WireError::UnknownValue("answer to hello"))),
            None => {
                let mut patience = Patience::new();
                while !is_readable(&stream, patience.interval()) {
                    patience.check(&stream)?;
                }
                read_half.read(&stream)?;
            }
        }
    }
}

/// Sends an order to a head of any version, and waits for its answer for as long as it takes.
/// A head of a version that knows no orders closes the connection.
pub fn send_order(session_dir: &Path, order: &Order) -> Result<OrderAnswer, DriverError> {
    let mut stream = connect_in_time(session_dir)?;
    let mut bytes = Vec::new();
    order.encode(&mut bytes);
    stream.write_all(&bytes).map_err(DriverError::Disconnected)?;
    let mut read_half = ReadHalf::new();
    let mut patience = if order.order == Order::STATUS { Patience::new() } else { Patience::without_limit() };
    loop {
        let frame = read_half.inbox.next_frame(FRAME_LIMIT);
        match frame.map_err(|error| DriverError::Disconnected(error.into()))? {
            Some((ORDER, body)) => {
                return serde_json::from_slice(body)
                    .map_err(|_| DriverError::Protocol(WireError::UnknownValue("answer to an order")));
            }
            Some(_) => return Err(DriverError::Protocol(WireError::UnknownValue("answer to an order"))),
            None => {
                while !is_readable(&stream, patience.interval()) {
                    patience.check(&stream)?;
                }
                read_half.read(&stream)?;
            }
        }
    }
}

/// Connects to the socket of a session. The kernel makes callers wait when many have come whom the head has not accepted.
fn connect_in_time(session_dir: &Path) -> Result<UnixStream, DriverError> {
    let since = Instant::now();
    loop {
        match session::connect_at_once(session_dir) {
            Err(SessionError::Io { source, .. }) if source.kind() == io::ErrorKind::WouldBlock => {
                let waited = since.elapsed();
                if waited >= answer_limit() {
                    return Err(DriverError::NoAnswer { head_pid: None, is_stopped: false, waited });
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            other => return other.map_err(DriverError::Session),
        }
    }
}

fn answer_limit() -> Duration {
    fault::setting("answer_ms").map_or(ANSWER_LIMIT, Duration::from_millis)
}

/// A wait for an answer of the head, which ends when the head takes too long or was stopped by a signal.
pub(super) struct Patience {
    since: Instant,
    /// None where the answer comes when something happens.
    limit: Option<Duration>,
    looks_stopped: u32,
}

impl Patience {
    /// Begins a wait for an answer that the head has at once.
    pub(super) fn new() -> Patience {
        Patience { since: Instant::now(), limit: Some(answer_limit()), looks_stopped: 0 }
    }

    /// Begins a wait for an answer that comes when something happens: only a head that was stopped ends it.
    pub(super) fn without_limit() -> Patience {
        Patience { limit: None, ..Patience::new() }
    }

    /// Starts the time anew, because the head has sent something.
    pub(super) fn renew(&mut self) {
        *self = Patience { limit: self.limit, ..Patience::new() };
    }

    /// Returns the time to wait until the next [`check`](Self::check).
    pub(super) fn interval(&self) -> Duration {
        let left = self.limit.map(|limit| limit.saturating_sub(self.since.elapsed()));
        left.map_or(ANSWER_LOOKS, |left| left.min(ANSWER_LOOKS))
    }

    /// Fails when the head does not answer in time, or will not answer.
    pub(super) fn check(&mut self, stream: &UnixStream) -> Result<(), DriverError> {
        let head_pid = rustix::net::sockopt::socket_peercred(stream).ok();
        let head_pid = head_pid.map(|peer| peer.pid.as_raw_nonzero().get().unsigned_abs());
        self.looks_stopped = if head_pid.is_some_and(identity::is_stopped) { self.looks_stopped + 1 } else { 0 };
        let waited = self.since.elapsed();
        // Twice, because a debugger stops a process for moments only.
        let is_stopped = self.looks_stopped >= 2;
        if is_stopped || self.limit.is_some_and(|limit| waited >= limit) {
            return Err(DriverError::NoAnswer { head_pid, is_stopped, waited });
        }
        Ok(())
    }
}
