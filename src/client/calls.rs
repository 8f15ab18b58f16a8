//! Calls of deployments by code that is no proxy: the router of a process, its lanes, and a thread that reads them.
//!
//! ```text
//!  code: call ──▶ find the deployment ─▶ route ─▶ admit, wait ─▶ lane ──────────────────────────▶ replica
//!                 (once, from the head)  span     (the router    (once for each replica, from        │
//!  sink ◀─────────────────────────────── ends ◀──  and the table) the head)                  ◀───────┘
//! ```
//!
//! The router, the table of replicas, the claims and the frames are those of the proxy, so a call waits in the same queue, counts in the same limits and begins at
//! most once. The state is behind one lock: whoever calls admits its own call and writes it to the lane; the thread reads answers and orders of the head, and keeps
//! deadlines. Neither a span is ended nor a sink told while the lock is held.
//!
//! To wake the thread, which wakes whoever waits, takes longer than a short call does. So while one call follows the other closely, a loop that has nothing else to
//! do [looks](Calls::look) for the answer itself, by the rule of `src/ipc/spin.rs`, and the thread is not woken for it meanwhile.
//!
//! | | |
//! |---|---|
//! | `state` | services, calls on their way, orders of the head |
//! | `call` | one call: its stage, its spans, its end |
//! | `lane` | frames: a lane to one replica |
//! | `figures` | metrics of the calls |

mod call;
mod figures;
mod lane;
mod state;

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use tracer_core::lock::lock;
use tracer_host::hook::{CallRequest, CallSink, Recorder};
use tracer_ipc::calling::connect_as_caller;
use tracer_ipc::session;

use figures::Figures;
use state::{After, State};

/// Tokens of epoll events: this one, services and lanes.
const CONTROL: u64 = 0;
const FIRST_FREE: u64 = 1;
/// Tokens of events that the thread waits for.
const WAKE: u64 = 0;
const READY: u64 = 1;
/// Events that are taken at a time.
const EVENTS: usize = 64;

/// The calling side of a process.
pub struct Calls {
    state: Mutex<State>,
    /// The control socket, lanes, and event descriptors of services.
    epoll: OwnedFd,
    /// Descriptors that the thread waits for: `epoll`, unless somebody looks, and `wake`.
    waiting: OwnedFd,
    /// Wakes the thread when something is due before what it waits for.
    wake: OwnedFd,
    epoch: Instant,
    is_closed: AtomicBool,
}

impl std::fmt::Debug for Calls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Calls").finish_non_exhaustive()
    }
}

impl Calls {
    /// Connects to the head of a session, and starts the thread. `home` is the service and the application whose deployments are found first.
    pub fn connect(
        session_dir: &Path,
        recorder: Option<&'static Recorder>,
        home: Option<(String, String)>,
    ) -> Result<Arc<Calls>, String> {
        let connect = || -> io::Result<Arc<Calls>> {
            let control = connect_as_caller(session_dir)?;
            rustix::io::ioctl_fionbio(&control, true)?;
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            let waiting = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let files =
                [(&epoll, CONTROL, control.as_fd()), (&waiting, WAKE, wake.as_fd()), (&waiting, READY, epoll.as_fd())];
            for (of, token, fd) in files {
                epoll::add(of, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?;
            }
            let figures = Figures::open(session::place_of(session_dir));
            let state = State::new(control, epoll.try_clone()?, recorder, figures, home);
            let calls = Arc::new(Calls {
                state: Mutex::new(state),
                epoll,
                waiting,
                wake,
                epoch: Instant::now(),
                is_closed: AtomicBool::new(false),
            });
            let own = Arc::clone(&calls);
            std::thread::Builder::new().name("tracer-calls".into()).spawn(move || own.run())?;
            Ok(calls)
        };
        connect().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                "deployments cannot be called: no service is deployed\n(hint: `tracer serve deploy service.toml`)"
                    .to_owned()
            }
            _ => format!("deployments cannot be called: {error}"),
        })
    }

    /// Begins a call and returns its number.
    pub fn call(&self, request: CallRequest, sink: CallSink) -> u64 {
        let mut after = After::default();
        let mut state = self.lock();
        state.note_call();
        let number = state.begin(request, sink, self.now(), &mut after);
        self.end_turn(state, after);
        number
    }

    /// Notes that so many bytes of an answer's body were used.
    pub fn consumed(&self, call: u64, bytes: usize) {
        let mut after = After::default();
        let mut state = self.lock();
        state.consumed(call, bytes);
        state.settle(self.now(), &mut after);
        self.end_turn(state, after);
    }

    /// Gives a call up, if it has not ended.
    pub fn cancel(&self, call: u64) {
        let mut after = After::default();
        let mut state = self.lock();
        state.cancel(call, self.now(), &mut after);
        state.settle(self.now(), &mut after);
        self.end_turn(state, after);
    }

    /// Ends the thread. What is on its way then is not answered.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Time since the beginning, in nanoseconds.
    fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Gives the lock back, does what must not be done with it, and wakes the thread if it sleeps for too long.
    fn end_turn(&self, mut state: std::sync::MutexGuard<'_, State>, after: After) {
        state.note_calls();
        let is_earlier = state.next_due_ns().is_some_and(|due| state.sleeps_until_ns.is_none_or(|until| due < until));
        drop(state);
        after.run();
        if is_earlier {
            // One that is awake already looks again anyway.
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }

    /// Returns whether a loop that sleeps should be woken to [look](Self::look): a call was begun that follows another closely, and nobody looks.
    pub fn wants_look(&self) -> bool {
        let state = self.lock();
        !state.is_looked_for && state.will_look()
    }

    /// Looks for the answer to the only call for a moment, if that pays just now, until there is something to read, or in `events`, which the caller waits for
    /// besides. Tells sinks on this thread what has come. Returns whether anything has; if not, the caller sleeps, and the thread reads.
    pub fn look(&self, events: BorrowedFd<'_>) -> bool {
        let mut state = self.lock();
        let look = if state.will_look() { state.spin.begin_look() } else { None };
        state.is_looked_for = look.is_some();
        drop(state);
        let Some(mut look) = look else { return false };
        self.have_thread_read(false);
        let has_found = loop {
            let mut files = [PollFd::new(&self.epoll, PollFlags::IN), PollFd::from_borrowed_fd(events, PollFlags::IN)];
            if poll(&mut files, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
                break true;
            }
            std::thread::yield_now();
            if !self.lock().spin.looks_on(&mut look) {
                break false;
            }
        };
        if has_found {
            self.lock().spin.has_found(look);
            self.turn();
        } else {
            self.lock().is_looked_for = false;
        }
        self.have_thread_read(true);
        has_found
    }

    /// Says whether the thread is woken when there is something to read.
    fn have_thread_read(&self, reads: bool) {
        let flags = if reads { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        // Both are open. Were it refused, the thread would be woken in vain.
        let _ = epoll::modify(&self.waiting, &self.epoll, epoll::EventData::new_u64(READY), flags);
    }

    /// Takes what there is to read, without waiting, and keeps deadlines.
    fn turn(&self) {
        let mut events = [const { MaybeUninit::uninit() }; EVENTS];
        // It is the state's own descriptor, which is open.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, Some(&Timespec::default())) else { return };
        let mut after = After::default();
        let mut state = self.lock();
        for event in &*events {
            match event.data.u64() {
                CONTROL => state.take_orders(self.now(), &mut after),
                token => state.on_ready(token, self.now(), &mut after),
            }
        }
        state.keep_time(self.now(), &mut after);
        state.settle(self.now(), &mut after);
        self.end_turn(state, after);
    }

    /// Reads orders and answers, and keeps deadlines, until it is closed.
    fn run(&self) {
        while !self.is_closed.load(Ordering::Acquire) {
            let mut state = self.lock();
            let due = state.next_due_ns();
            state.sleeps_until_ns = Some(due.unwrap_or(u64::MAX));
            drop(state);
            let timeout = due.map(|due| {
                let left = due.saturating_sub(self.now());
                Timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as _ }
            });
            let mut events = [const { MaybeUninit::uninit() }; 2];
            let woken = match epoll::wait(&self.waiting, &mut events, timeout.as_ref()) {
                Ok((events, _)) => events.iter().any(|event| event.data.u64() == WAKE),
                Err(rustix::io::Errno::INTR) => false,
                // It is open.
                Err(_) => return,
            };
            self.lock().sleeps_until_ns = Some(0);
            if woken {
                let _ = rustix::io::read(&self.wake, &mut [0; 8]);
            }
            self.turn();
        }
    }
}

#[cfg(test)]
#[path = "calls_tests.rs"]
mod tests;
