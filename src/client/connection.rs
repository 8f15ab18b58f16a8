//! One connection to the head, which any number of threads, futures and tasks share.
//!
//! ```text
//!   Driver (blocks)  ──┐                 ┌──────────────────────────┐
//!   Cluster (futures) ─┤  lock, look     │ Exchange: batch, ids,    │  frames   ┌──────┐
//!   tasks (callbacks) ─┼───────────────▶ │ ends, output, answers,   │ ────────▶ │ head │
//!   HTTP (followers) ──┘                 │ who waits for what       │ ◀──────── └──────┘
//!                                        └──────────────────────────┘  one reader at a time
//! ```
//!
//! **Who reads.** Of the threads that wait for something, one reads from the socket, without holding the lock, and wakes the others for what
//! has come. So a program of one thread pays for a lock that nobody contends, and nothing else: there is no thread between the socket and it.
//! The first future that is polled, and whoever asks for it, starts a thread that does the reading from then on.
//!
//! **Who is woken how.** Blocked threads wait on a condition variable and look again ([`Connection::wait_for`]). Futures leave a waker for the
//! tag of a task ([`Connection::poll_for`]). Tasks leave callbacks ([`Connection::on_ended`], [`Connection::on_settled`]). All of them are woken
//! when the lock is free. A [`Follower`] hears of one submission in order, under the lock.
//!
//! **When it breaks** everybody is woken and finds out; it is not made again.

mod actors;
pub mod by_tag;
mod completions;
mod exchange;
mod following;
mod handshake;
mod outbox;
mod spans;
#[cfg(test)]
mod tests;
mod versions;
mod watches;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use tracer_ipc::channel::Sender;
use tracer_ipc::fault;
use tracer_ipc::protocol::frame::FRAME_LIMIT;
use tracer_ipc::protocol::{Query, Reply, Role, Welcome, kind};
use tracer_ipc::spin::is_readable;
use tracer_ipc::stored::{self, Stored, Value};

use self::handshake::{Patience, ReadHalf};
use self::watches::Watch;
use crate::error::DriverError;

pub use self::completions::watched_tag;
pub use self::exchange::{Exchange, Origin, SubmittingTask, Ticket};
pub use self::following::{Follower, TaskOutput};
pub use self::handshake::send_order;
pub use self::outbox::{BATCH, SubmitRequest};
pub use self::watches::{Callback, EndedTasks};

/// A connection to the head of this machine.
pub struct Connection {
    stream: UnixStream,
    welcome: Arc<Welcome>,
    /// True if it asks for rings when they would pay. The head has none for tasks.
    may_have_rings: bool,
    shared: Mutex<Shared>,
    /// Signalled when something has come, and when it is another thread's turn to read.
    changed: Condvar,
    /// Set when nobody uses it any more.
    is_closed: AtomicBool,
    /// Runs leases while tasks wait.
    on_run: OnceLock<Box<dyn Fn(Vec<u8>) + Send + Sync>>,
}

struct Shared {
    exchange: Exchange,
    sender: Sender,
    /// None while a thread reads with it.
    read_half: Option<Box<ReadHalf>>,
    /// True if a thread of its own does the reading.
    has_reader: bool,
    /// Threads that wait for what another one reads.
    waiting: usize,
    /// The reason why it broke. It is not made again.
    broken: Option<String>,
}

type Locked<'a> = MutexGuard<'a, Shared>;

impl AsFd for Connection {
    /// Readable when something has arrived from the head, for callers that wait for other things too. Nothing is read from it but by
    /// the connection itself; see [`Connection::receive_available`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Drop for Connection {
    /// Sends what was submitted, and commits the spans that have ended. What it waited for goes on without it.
    fn drop(&mut self) {
        let shared = self.shared.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Nobody is left to tell of an error; what was not sent is not accepted, and the spans are in the spool.
        let _ = shared.send(&self.stream, false);
        shared.exchange.close();
    }
}

impl Connection {
    /// Connects to the head of a session, in this role.
    pub fn connect(session_dir: &Path, role: Role) -> Result<Connection, DriverError> {
        let (stream, read_half, welcome) = handshake::connect(session_dir, role)?;
        Ok(Connection::new(stream, read_half, welcome, role))
    }

    fn new(stream: UnixStream, read_half: Box<ReadHalf>, welcome: Welcome, role: Role) -> Connection {
        let welcome = Arc::new(welcome);
        let shared = Shared {
            exchange: Exchange::new(Arc::clone(&welcome)),
            sender: Sender::default(),
            read_half: Some(read_half),
            has_reader: false,
            waiting: 0,
            broken: None,
        };
        Connection {
            stream,
            welcome,
            may_have_rings: matches!(role, Role::Driver),
            shared: Mutex::new(shared),
            changed: Condvar::new(),
            is_closed: AtomicBool::new(false),
            on_run: OnceLock::new(),
        }
    }

    /// Returns whether it has broken: its head is gone, or has closed it.
    pub fn has_broken(&self) -> bool {
        self.lock().broken.is_some()
    }

    /// Returns what the head says of itself and of this connection.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// Sets what runs leases while tasks wait.
    pub fn run_with(&self, on_run: impl Fn(Vec<u8>) + Send + Sync + 'static) {
        let _ = self.on_run.set(Box::new(on_run));
    }

    fn lock(&self) -> Locked<'_> {
        // What the lock guards is whole after every statement.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- sending -----------------------------------------------------------------------------------------------------

    /// Does something that does not wait for the head, and sends the frames that come of it.
    pub fn with<R>(&self, act: impl FnOnce(&mut Exchange) -> R) -> R {
        let mut shared = self.lock();
        let result = act(&mut shared.exchange);
        // A broken connection is found by whoever waits.
        let _ = shared.flush(&self.stream);
        drop(self.wake(shared));
        result
    }

    /// Submits a task. It is sent with the next batch. Blocks while too many submissions are unacknowledged, and takes in meanwhile what
    /// comes: so spans of accepted submissions end, and their slots in the spool are free again, however many are submitted in a row.
    pub fn submit(
        &self,
        request: &SubmitRequest<'_>,
        origin: &Origin<'_>,
        follower: Option<Box<dyn Follower>>,
    ) -> Result<Ticket, DriverError> {
        let mut shared = self.lock();
        let ticket = shared.exchange.submit(request, origin, follower)?;
        if shared.exchange.outbox().is_batch_full() {
            shared.send(&self.stream, self.may_have_rings)?;
            drop(self.apply_backpressure(shared)?);
        }
        Ok(ticket)
    }

    /// Takes in what has come, and blocks while more is unacknowledged than may be.
    fn apply_backpressure<'a>(&'a self, mut shared: Locked<'a>) -> Result<Locked<'a>, DriverError> {
        shared = self.take_available(shared)?;
        while shared.exchange.outbox().is_behind() {
            shared.check()?;
            // Also beside a thread that reads: that one may take its time.
            shared = if shared.read_half.is_some() { self.read(shared, None)? } else { self.wait(shared, None) };
        }
        Ok(shared)
    }

    /// Sends what was submitted.
    pub fn send(&self) -> Result<(), DriverError> {
        self.lock().send(&self.stream, self.may_have_rings)
    }

    // ---- the blocking face -------------------------------------------------------------------------------------------

    /// Sends what was submitted, and waits until `look` finds something. None when `deadline` came first.
    pub fn wait_for<R>(
        &self,
        deadline: Option<Instant>,
        mut look: impl FnMut(&mut Exchange) -> Option<R>,
    ) -> Result<Option<R>, DriverError> {
        let mut shared = self.lock();
        if shared.broken.is_none() {
            shared.send(&self.stream, self.may_have_rings)?;
        }
        let mut is_last_look = false;
        loop {
            let found = look(&mut shared.exchange);
            if shared.broken.is_none() {
                shared.flush(&self.stream)?;
            }
            if found.is_some() {
                return Ok(found);
            }
            shared.check()?;
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                if std::mem::replace(&mut is_last_look, true) {
                    return Ok(None);
                }
                // What is there already counts, however late it is.
                shared = self.take_available(shared)?;
                continue;
            }
            shared = if shared.has_reader { self.wait(shared, left) } else { self.read(shared, left)? };
        }
    }

    /// Sends what was submitted, and looks; if there is nothing, once more at what has arrived, without waiting.
    pub fn look_now<R>(&self, mut look: impl FnMut(&mut Exchange) -> Option<R>) -> Result<Option<R>, DriverError> {
        let mut shared = self.lock();
        if shared.broken.is_none() {
            shared.send(&self.stream, self.may_have_rings)?;
        }
        if let Some(found) = look(&mut shared.exchange) {
            return Ok(Some(found));
        }
        shared.check()?;
        shared = self.take_available(shared)?;
        Ok(look(&mut shared.exchange))
    }

    /// Asks the head something, and waits for the answer; none when `deadline` came first. Fails when the head does not answer in time, or has been
    /// stopped by a signal.
    pub fn query(&self, query: &Query, deadline: Option<Instant>) -> Result<Option<Reply>, DriverError> {
        let number = {
            let mut shared = self.lock();
            shared.check()?;
            shared.send(&self.stream, self.may_have_rings)?;
            shared.exchange.ask(query)
        };
        let mut patience = if query.waits_for_an_event() { Patience::without_limit() } else { Patience::new() };
        let mut received = 0;
        loop {
            let next_check = Instant::now() + patience.interval();
            let until = Some(deadline.map_or(next_check, |deadline| deadline.min(next_check)));
            let mut look = |exchange: &mut Exchange| {
                let reply = exchange.take_reply(number);
                if std::mem::replace(&mut received, exchange.received()) != exchange.received() {
                    patience.renew();
                }
                reply
            };
            if let Some(reply) = self.wait_for(until, &mut look)? {
                return Ok(Some(reply));
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(None);
            }
            patience.check(&self.stream)?;
        }
    }

    /// Takes in what has arrived, without waiting.
    pub fn receive_available(&self) -> Result<(), DriverError> {
        self.take_available(self.lock()).map(drop)
    }

    // ---- the face of futures -----------------------------------------------------------------------------------------

    /// Looks once, or has this waker woken by the end of the task with this tag. The first time, starts a thread that reads.
    pub fn poll_for<R>(
        self: &Arc<Self>,
        tag: u64,
        waker: &Waker,
        mut look: impl FnMut(&mut Exchange) -> Option<R>,
    ) -> Poll<Result<R, DriverError>> {
        let mut shared = self.lock();
        let mut looked = || {
            if shared.broken.is_none() {
                shared.send(&self.stream, self.may_have_rings)?;
            }
            if let Some(found) = look(&mut shared.exchange) {
                return Ok(Some(found));
            }
            shared.check()?;
            shared.exchange.watch_end(tag, Watch::Waker(waker.clone()));
            self.start_reader(&mut shared, |_| {})?;
            Ok(None)
        };
        match looked() {
            Ok(None) => Poll::Pending,
            Ok(Some(found)) => Poll::Ready(Ok(found)),
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Adds tasks to a set. Those that have ended are in it as such at once.
    pub fn watch_set(&self, tags: impl Iterator<Item = u64>, set: &Arc<EndedTasks>) {
        let mut shared = self.lock();
        for tag in tags {
            if shared.exchange.has_finished(tag) {
                set.push(tag);
            } else {
                shared.exchange.watch_end(tag, Watch::Set(Arc::clone(set)));
            }
        }
    }

    // ---- the face of tasks and services ------------------------------------------------------------------------------

    /// Starts a thread that does the reading from now on, and says why when nothing comes any more.
    pub fn read_in_thread(self: &Arc<Self>, on_end: impl FnOnce(&str) + Send + 'static) -> Result<(), DriverError> {
        let mut shared = self.lock();
        shared.check()?;
        shared.send(&self.stream, self.may_have_rings)?;
        self.start_reader(&mut shared, on_end)
    }

    /// Calls back when the task has ended, or is forgotten, or the connection breaks; at once if it has ended.
    pub fn on_ended(&self, tag: u64, callback: Callback) -> Result<(), DriverError> {
        let mut shared = self.lock();
        shared.check()?;
        shared.send(&self.stream, self.may_have_rings)?;
        if shared.exchange.has_finished(tag) {
            drop(shared);
            callback();
        } else {
            shared.exchange.watch_end(tag, Watch::Call(callback));
        }
        Ok(())
    }

    /// Calls back when the submission is accepted or refused, or the connection breaks; at once if it was accepted. There is one such callback
    /// for each submission.
    pub fn on_settled(&self, tag: u64, callback: Callback) -> Result<(), DriverError> {
        let mut shared = self.lock();
        shared.check()?;
        shared.send(&self.stream, self.may_have_rings)?;
        if shared.exchange.id_of_tag(tag).is_some() || shared.exchange.has_finished(tag) {
            drop(shared);
            callback();
        } else {
            shared.exchange.on_settled(tag, callback);
        }
        Ok(())
    }

    /// Asks the head something. `on_reply` hears the answer as a [`Follower`] hears of an end, and is dropped if the connection breaks.
    pub fn query_then(&self, query: &Query, on_reply: impl FnOnce(Reply) + Send + 'static) -> Result<(), DriverError> {
        let mut shared = self.lock();
        shared.check()?;
        shared.exchange.ask_for(query, Box::new(on_reply));
        shared.flush(&self.stream)
    }

    /// Reads a large result, which a task that has ended left in a file.
    pub fn load(&self, stored: &Stored) -> Result<Value, DriverError> {
        stored::load(&stored::folder(&self.welcome.session_dir), stored).map_err(DriverError::Stored)
    }

    /// Breaks the connection: what has come makes no sense.
    pub fn fail(&self, reason: &str) {
        drop(self.break_off(self.lock(), reason));
    }

    /// Ends its thread: nobody uses it any more. What was submitted and is not sent is sent first.
    pub fn close(&self) {
        let _ = self.send();
        self.is_closed.store(true, Relaxed);
        // Nothing is read any more. What was sent arrives all the same.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    // ---- reading -----------------------------------------------------------------------------------------------------

    /// Waits for another thread to have read.
    fn wait<'a>(&'a self, mut shared: Locked<'a>, left: Option<Duration>) -> Locked<'a> {
        shared.waiting += 1;
        let mut shared = match left {
            Some(left) => self.changed.wait_timeout(shared, left).unwrap_or_else(PoisonError::into_inner).0,
            None => self.changed.wait(shared).unwrap_or_else(PoisonError::into_inner),
        };
        shared.waiting -= 1;
        shared
    }

    /// Reads once, for all that wait; or waits for the thread that does.
    fn read<'a>(&'a self, mut shared: Locked<'a>, left: Option<Duration>) -> Result<Locked<'a>, DriverError> {
        let Some(mut read_half) = shared.read_half.take() else { return Ok(self.wait(shared, left)) };
        drop(shared);
        // After an interruption the caller looks at its deadline and comes back.
        let is_there = left.is_none_or(|left| is_readable(&self.stream, left));
        let read = if is_there { read_half.read(&self.stream) } else { Ok(()) };
        let mut shared = self.lock();
        // What had come before it broke counts.
        let taken = shared.take_in(&mut read_half);
        shared.read_half = Some(read_half);
        self.notify(shared, read.and(taken))
    }

    /// Takes in what has arrived, without waiting, unless another thread is about to.
    fn take_available<'a>(&'a self, mut shared: Locked<'a>) -> Result<Locked<'a>, DriverError> {
        if shared.read_half.is_none() || !is_readable(&self.stream, Duration::ZERO) {
            return Ok(shared);
        }
        let mut read_half = shared.read_half.take().expect("nobody else has it");
        let read = read_half.read(&self.stream);
        let taken = shared.take_in(&mut read_half);
        shared.read_half = Some(read_half);
        self.notify(shared, read.and(taken))
    }

    /// Tells everyone of what has come, or of why nothing will come any more.
    fn notify<'a>(&'a self, mut shared: Locked<'a>, taken: Result<(), DriverError>) -> Result<Locked<'a>, DriverError> {
        if let Err(error) = taken {
            drop(self.break_off(shared, &error.to_string()));
            return Err(error);
        }
        // Results that nobody asks for are given back.
        let _ = shared.flush(&self.stream);
        if shared.waiting > 0 {
            self.changed.notify_all();
        }
        Ok(self.wake(shared))
    }

    fn break_off<'a>(&'a self, mut shared: Locked<'a>, reason: &str) -> Locked<'a> {
        if shared.broken.is_none() {
            shared.broken = Some(reason.to_owned());
            shared.exchange.break_off();
            // Whoever reads is woken, and the head need not wait.
            let _ = self.stream.shutdown(std::net::Shutdown::Both);
        }
        self.changed.notify_all();
        self.wake(shared)
    }

    /// Wakes futures and calls back, with the lock free meanwhile.
    fn wake<'a>(&'a self, mut shared: Locked<'a>) -> Locked<'a> {
        let Some(woken) = shared.exchange.take_woken() else { return shared };
        drop(shared);
        woken.wake(|lease| match self.on_run.get() {
            Some(on_run) => on_run(lease),
            None => self.fail("the head sent a task to run to a connection that runs none"),
        });
        self.lock()
    }

    fn start_reader(
        self: &Arc<Self>,
        shared: &mut Shared,
        on_end: impl FnOnce(&str) + Send + 'static,
    ) -> Result<(), DriverError> {
        if shared.has_reader {
            return Ok(());
        }
        let connection = Arc::clone(self);
        let thread = std::thread::Builder::new().name("tracer-reader".into());
        thread.spawn(move || on_end(&connection.read_to_end())).map_err(DriverError::Disconnected)?;
        shared.has_reader = true;
        Ok(())
    }

    /// Reads until the connection breaks or is closed, and says why.
    fn read_to_end(&self) -> String {
        loop {
            // The lock is free while nothing comes, and the read half where it belongs.
            let readable = poll(&mut [PollFd::new(&self.stream, PollFlags::IN)], None);
            let mut shared = self.lock();
            while shared.read_half.is_none() {
                shared = self.wait(shared, None);
            }
            if let Some(reason) = &shared.broken {
                return reason.clone();
            }
            if self.is_closed.load(Relaxed) {
                return "it was closed".into();
            }
            let told = match readable {
                Ok(_) | Err(rustix::io::Errno::INTR) => self.take_available(shared),
                Err(error) => self.notify(shared, Err(DriverError::Disconnected(error.into()))),
            };
            // Why it broke is found above.
            drop(told);
        }
    }
}

impl Shared {
    fn check(&self) -> Result<(), DriverError> {
        match &self.broken {
            None => Ok(()),
            Some(_) => Err(DriverError::Disconnected(io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// Sends what was submitted.
    fn send(&mut self, stream: &UnixStream, may_have_rings: bool) -> Result<(), DriverError> {
        let count = self.exchange.outbox().close_batch();
        if count > 0 {
            fault::point("before_submit");
            if let Some(read_half) = &mut self.read_half {
                read_half.spin.request_began();
                if may_have_rings && read_half.receiver.begins_to_ask(&read_half.spin) {
                    self.sender.ask_for_rings(stream).map_err(DriverError::Disconnected)?;
                }
            }
        }
        self.flush(stream)?;
        self.exchange.sent(count);
        Ok(())
    }

    /// Writes the frames that there are.
    fn flush(&mut self, stream: &UnixStream) -> Result<(), DriverError> {
        let Shared { exchange, sender, .. } = self;
        let outbox = exchange.outbox();
        if outbox.frames().is_empty() {
            return Ok(());
        }
        let written = sender.write_all(stream, outbox.frames()).map_err(DriverError::Disconnected);
        outbox.frames_written();
        written
    }

    /// Takes in the frames that have come.
    fn take_in(&mut self, read_half: &mut ReadHalf) -> Result<(), DriverError> {
        let Shared { exchange, sender, .. } = self;
        let ReadHalf { inbox, spin, receiver } = read_half;
        loop {
            let frame = inbox.next_frame(FRAME_LIMIT).map_err(|error| DriverError::Disconnected(error.into()))?;
            match frame {
                None => return Ok(()),
                Some((kind::RINGS, _)) => sender.attach(receiver.attach(inbox)),
                Some((kind::FINISHED, body)) => {
                    exchange.take_frame(kind::FINISHED, body)?;
                    spin.request_ended();
                }
                Some((frame_kind, body)) => exchange.take_frame(frame_kind, body)?,
            }
        }
    }
}
