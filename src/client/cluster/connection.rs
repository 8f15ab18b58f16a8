//! One connection that many threads use.
//!
//! Of the threads that wait for something, one reads from the socket, without holding the lock, and wakes the others for what has come.
//! So a program of one thread pays for a lock that nobody contends, and nothing else: there is no thread between the socket and it.
//! The first future that is polled starts a thread that does the reading from then on.

use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::completed::EndedTasks;
use super::output::{Followed, Following};
use crate::driver::{Driver, DriverError, Ticket};
use tracer_ipc::protocol::{Query, Reply};

pub(super) struct Connection {
    stream: UnixStream,
    link: Mutex<Link>,
    /// What has come, or that it is another thread's turn to read.
    changed: Condvar,
    /// Nobody uses it any more.
    is_closed: AtomicBool,
}

struct Link {
    driver: Driver,
    /// Whether some thread has the inbox and reads.
    is_read: bool,
    /// Whether a thread of its own does the reading.
    has_reader: bool,
    /// Threads that wait for what another one reads.
    waiting: usize,
    /// Why it broke. It is not made again.
    broken: Option<String>,
    /// Who wants to know of the end of a task, by its tag.
    watches: HashMap<u64, Watch>,
    to_wake: Vec<Waker>,
    /// Whose output somebody reads.
    following: Following,
    /// What was submitted last.
    last_target: Arc<str>,
}

/// Who wants to know of the end of a task.
pub(super) enum Watch {
    /// A future.
    Waker(Waker),
    /// A set of tasks, and whoever waits for that.
    Set(Arc<EndedTasks>),
}

impl Connection {
    pub(super) fn new(mut driver: Driver) -> std::io::Result<Arc<Connection>> {
        driver.keep_on_when_refused();
        driver.allow_rings();
        Ok(Arc::new(Connection {
            stream: driver.stream()?,
            link: Mutex::new(Link {
                driver,
                is_read: false,
                has_reader: false,
                waiting: 0,
                broken: None,
                watches: HashMap::new(),
                to_wake: Vec::new(),
                following: Following::default(),
                last_target: "".into(),
            }),
            changed: Condvar::new(),
            is_closed: AtomicBool::new(false),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Link> {
        // What the lock guards is whole after every statement.
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the driver that does not wait for the head.
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut Driver) -> R) -> R {
        act(&mut self.lock().driver)
    }

    /// Submits something. Returns what it is called, too, of which there is one text however often the same is submitted; and where its
    /// output comes if that is followed.
    pub(super) fn submit(
        &self,
        target: &str,
        is_followed: bool,
        act: impl FnOnce(&mut Driver) -> Result<Ticket, DriverError>,
    ) -> (Result<Ticket, DriverError>, Arc<str>, Option<Arc<Followed>>) {
        let mut link = self.lock();
        if *link.last_target != *target {
            link.last_target = target.into();
        }
        let target = Arc::clone(&link.last_target);
        let submitted = act(&mut link.driver);
        let followed = submitted.as_ref().ok().filter(|_| is_followed).map(|ticket| link.following.begin(ticket.tag()));
        // Whoever submits and submits takes in what has come, and must not keep that to himself.
        if link.driver.received_during_submit() {
            drop(self.tell(link, None));
        }
        (submitted, target, followed)
    }

    /// Sends what was submitted.
    pub(super) fn send(&self) -> Result<(), DriverError> {
        self.lock().send()
    }

    /// Sends what was submitted, and waits until `look` finds something. None when `deadline` came first.
    pub(super) fn wait_for<R>(
        &self,
        deadline: Option<Instant>,
        mut look: impl FnMut(&mut Driver) -> Option<R>,
    ) -> Result<Option<R>, DriverError> {
        let mut link = self.lock();
        if link.broken.is_none() {
            link.send()?;
        }
        let mut is_last_look = false;
        loop {
            if let Some(found) = look(&mut link.driver) {
                return Ok(Some(found));
            }
            link.check()?;
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                if std::mem::replace(&mut is_last_look, true) {
                    return Ok(None);
                }
                // What is there already counts, however late it is.
                let taken = link.driver.receive_what_is_there();
                link = self.tell(link, taken.as_ref().err());
                continue;
            }
            link = if link.is_read || link.has_reader { self.wait(link, left) } else { self.read(link, left)? };
        }
    }

    /// Waits for another thread to have read.
    fn wait<'a>(&'a self, mut link: MutexGuard<'a, Link>, left: Option<Duration>) -> MutexGuard<'a, Link> {
        link.waiting += 1;
        let mut link = match left {
            Some(left) => self.changed.wait_timeout(link, left).unwrap_or_else(PoisonError::into_inner).0,
            None => self.changed.wait(link).unwrap_or_else(PoisonError::into_inner),
        };
        link.waiting -= 1;
        link
    }

    /// Reads once, for all that wait.
    fn read<'a>(
        &'a self,
        mut link: MutexGuard<'a, Link>,
        left: Option<Duration>,
    ) -> Result<MutexGuard<'a, Link>, DriverError> {
        let mut read_half = link.driver.take_read_half();
        link.is_read = true;
        drop(link);
        let is_there = left.is_none_or(|left| self.is_readable_within(left));
        let read = if is_there { read_half.read(&self.stream) } else { Ok(()) };
        let mut link = self.lock();
        link.is_read = false;
        let taken = read.and(link.driver.restore_read_half(read_half));
        let link = self.tell(link, taken.as_ref().err());
        taken.map(|()| link)
    }

    /// Tells everyone of what has come.
    fn tell<'a>(&'a self, mut link: MutexGuard<'a, Link>, failure: Option<&DriverError>) -> MutexGuard<'a, Link> {
        if let Some(failure) = failure {
            link.broken.get_or_insert_with(|| failure.to_string());
        }
        link.take_woken();
        if link.waiting > 0 {
            self.changed.notify_all();
        }
        if link.to_wake.is_empty() {
            return link;
        }
        // A waker may do anything, such as poll a future here and now.
        let to_wake = std::mem::take(&mut link.to_wake);
        drop(link);
        to_wake.into_iter().for_each(Waker::wake);
        self.lock()
    }

    fn is_readable_within(&self, left: Duration) -> bool {
        let timeout =
            Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() };
        // After an interruption the caller looks at its deadline and comes back.
        matches!(poll(&mut [PollFd::new(&self.stream, PollFlags::IN)], Some(&timeout)), Ok(1..))
    }

    /// Looks once, or has the watch kept until the task has ended. The first time, starts a thread that reads.
    pub(super) fn look_or_watch<R>(
        self: &Arc<Self>,
        mut look: impl FnMut(&mut Driver) -> Option<R>,
        watch: impl FnOnce() -> (u64, Watch),
    ) -> Result<Option<R>, DriverError> {
        let mut link = self.lock();
        if link.broken.is_none() {
            link.send()?;
        }
        if let Some(found) = look(&mut link.driver) {
            return Ok(Some(found));
        }
        link.check()?;
        let (tag, watch) = watch();
        link.watch(tag, watch);
        self.start_reader(&mut link)?;
        Ok(None)
    }

    /// Has a thread do the reading from now on.
    pub(super) fn ensure_reader(self: &Arc<Self>) -> Result<(), DriverError> {
        let mut link = self.lock();
        link.check()?;
        link.send()?;
        self.start_reader(&mut link)
    }

    fn start_reader(self: &Arc<Self>, link: &mut Link) -> Result<(), DriverError> {
        if link.has_reader {
            return Ok(());
        }
        let connection = Arc::clone(self);
        let thread = std::thread::Builder::new().name("tracer-driver".into());
        thread.spawn(move || connection.read_to_end()).map_err(DriverError::Disconnected)?;
        link.has_reader = true;
        Ok(())
    }

    fn read_to_end(&self) {
        loop {
            // The lock is free while nothing comes, and the inbox where it belongs.
            let readable = poll(&mut [PollFd::new(&self.stream, PollFlags::IN)], None);
            let mut link = self.lock();
            while link.is_read {
                link = self.wait(link, None);
            }
            if self.is_closed.load(Relaxed) || link.broken.is_some() {
                return;
            }
            let taken = match readable {
                Ok(_) => link.driver.receive_what_is_there(),
                Err(rustix::io::Errno::INTR) => Ok(()),
                Err(error) => Err(DriverError::Disconnected(error.into())),
            };
            drop(self.tell(link, taken.as_ref().err()));
        }
    }

    /// Adds tasks to a set. Those that have ended are in it as such at once.
    pub(super) fn watch_set(&self, tags: impl Iterator<Item = u64>, set: &Arc<EndedTasks>) {
        let mut link = self.lock();
        for tag in tags {
            if link.driver.has_finished(tag) {
                set.push(tag);
            } else {
                link.watch(tag, Watch::Set(Arc::clone(set)));
            }
        }
    }

    /// Nobody asks for these tasks any more.
    pub(super) fn forget(&self, tags: impl Iterator<Item = u64>) {
        let mut link = self.lock();
        for tag in tags {
            link.watches.remove(&tag);
            link.driver.forget(tag);
        }
    }

    /// Asks the head something, and waits for the answer.
    pub(super) fn query(&self, query: &Query, deadline: Option<Instant>) -> Result<Option<Reply>, DriverError> {
        let number = {
            let mut link = self.lock();
            link.check()?;
            link.driver.ask(query)?
        };
        self.wait_for(deadline, |driver| driver.take_reply(number))
    }

    /// Nobody uses it any more: ends its thread. What was submitted and is not sent is sent first.
    pub(super) fn close(&self) {
        let _ = self.send();
        self.is_closed.store(true, Relaxed);
        // Nothing is read any more. What was sent arrives all the same.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

impl Link {
    fn check(&self) -> Result<(), DriverError> {
        match &self.broken {
            None => Ok(()),
            Some(_) => Err(DriverError::Disconnected(std::io::ErrorKind::UnexpectedEof.into())),
        }
    }

    fn send(&mut self) -> Result<(), DriverError> {
        self.driver.send()
    }

    fn watch(&mut self, tag: u64, watch: Watch) {
        self.driver.track_completions(true);
        self.watches.insert(tag, watch);
    }

    /// Finds who waits for what has ended.
    fn take_woken(&mut self) {
        let Link { driver, watches, to_wake, broken, following, .. } = self;
        following.take_in(driver, to_wake);
        let mut tell = |tag: u64, watch: Watch| match watch {
            Watch::Waker(waker) => to_wake.push(waker),
            Watch::Set(set) => to_wake.extend(set.push(tag)),
        };
        if broken.is_some() {
            for (_, watch) in watches.drain() {
                match watch {
                    Watch::Waker(waker) => to_wake.push(waker),
                    Watch::Set(set) => to_wake.extend(set.take_waker()),
                }
            }
        } else if !watches.is_empty() {
            for tag in driver.take_newly_finished() {
                if let Some(watch) = watches.remove(&tag) {
                    tell(tag, watch);
                }
            }
        }
        if watches.is_empty() {
            driver.track_completions(false);
        }
    }
}
