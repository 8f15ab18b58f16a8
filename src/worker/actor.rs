//! The actor of a worker: what it keeps, and what runs beside what.
//!
//! The creation and the calls of ordinary methods run on the main thread, one at a time, in the order of their leases. Calls of concurrent
//! methods begin in that order too, each on a thread of its own, up to a limit: the next one when the one before waits for the first time. A call of an ordinary method waits until
//! they have ended, and holds up those behind it. A lease is claimed when its call begins, and not before.
//!
//! A thread for each call, and not one for all: what is current on a thread, the span first of all, is then that call's alone.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tracer_core::lock::lock;
use tracer_core::task::TaskId;
use tracer_host::hook::{ActorState, LoadedActor};
use tracer_ipc::protocol::Lease;
use tracer_ipc::protocol::wire::Take;

use super::attempt::{Attempts, Began, Function, Version};
use super::results::Results;

/// An actor that was made in this process.
pub(super) struct Living {
    pub(super) id: TaskId,
    pub(super) loaded: LoadedActor,
    pub(super) state: ActorState,
    /// Its module, with the version.
    pub(super) module: (&'static str, Option<Version>),
    /// By their names, those that were called before.
    pub(super) methods: HashMap<Box<str>, &'static Function>,
}

/// Runs the calls of concurrent methods.
pub(super) struct Calls {
    attempts: Arc<Attempts>,
    results: Arc<Results>,
    line: Mutex<Line>,
    /// A call has begun or ended.
    changed: Condvar,
    /// True if there ever was one: most workers have none to wait for. Only the main thread begins any, and waits for them.
    has_begun: AtomicBool,
}

#[derive(Default)]
struct Line {
    /// Claimed, with the time of that, and not taken by a thread yet.
    claimed: VecDeque<(Vec<u8>, Began)>,
    /// Claimed and not ended.
    running: usize,
    /// True if the last of them has not come to its first wait, nor to its end: the next one does not begin before.
    is_beginning: bool,
    threads: usize,
    idle: usize,
}

impl Calls {
    pub(super) fn new(attempts: Arc<Attempts>, results: Arc<Results>) -> Arc<Calls> {
        Arc::new(Calls {
            attempts,
            results,
            line: Mutex::default(),
            changed: Condvar::new(),
            has_begun: AtomicBool::new(false),
        })
    }

    /// Waits until no call runs.
    pub(super) fn wait_for_all(&self) {
        if self.has_begun.load(Relaxed) {
            drop(self.wait_for(1));
        }
    }

    /// Waits until fewer than `limit` calls run. What has ended is told before.
    fn wait_for(&self, limit: usize) -> MutexGuard<'_, Line> {
        let must_wait = |line: &mut Line| line.running >= limit || line.is_beginning;
        let mut line = lock(&self.line);
        if !must_wait(&mut line) {
            return line;
        }
        drop(line);
        // A broken connection is found by the next read.
        let _ = self.results.send();
        self.attempts.reset_usage_baseline();
        let line = lock(&self.line);
        self.changed.wait_while(line, must_wait).unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a call beside those that run, as soon as there is room.
    pub(super) fn begin(self: &Arc<Self>, lease: &Lease<'_>, limit: usize) {
        self.has_begun.store(true, Relaxed);
        let mut line = self.wait_for(limit);
        let Some(claimed) = self.attempts.claim(lease) else { return };
        let mut bytes = Vec::new();
        lease.put(&mut bytes);
        line.claimed.push_back((bytes, claimed));
        line.running += 1;
        line.is_beginning = true;
        if line.idle >= line.claimed.len() {
            self.changed.notify_all();
            return;
        }
        let calls = Arc::clone(self);
        match std::thread::Builder::new().name("tracer-call".into()).spawn(move || calls.run()) {
            Ok(_) => line.threads += 1,
            // Those that there are take it.
            Err(_) if line.threads > 0 => self.changed.notify_all(),
            Err(_) => {
                let call = line.claimed.pop_back();
                drop(line);
                call.iter().for_each(|call| self.run_one(call));
            }
        }
    }

    /// Runs calls for as long as the process lives.
    fn run(&self) {
        loop {
            let mut line = lock(&self.line);
            line.idle += 1;
            line =
                self.changed.wait_while(line, |line| line.claimed.is_empty()).unwrap_or_else(PoisonError::into_inner);
            line.idle -= 1;
            let call = line.claimed.pop_front();
            drop(line);
            call.iter().for_each(|call| self.run_one(call));
        }
    }

    fn run_one(&self, (lease, claimed): &(Vec<u8>, Began)) {
        let has_begun = Cell::new(false);
        let begun = || {
            if !has_begun.replace(true) {
                lock(&self.line).is_beginning = false;
                self.changed.notify_all();
            }
        };
        if let Ok(lease) = Lease::take(&mut Take::new(lease)) {
            self.results.push(&self.attempts.run_beside(&lease, *claimed, &begun), false);
            begun();
            // A broken connection is found by the main thread, when it reads again.
            let _ = self.results.send();
        }
        begun();
        lock(&self.line).running -= 1;
        self.changed.notify_all();
    }
}
