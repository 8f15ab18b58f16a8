//! Commits of ended spans: a thread that writes them to the span file a moment after the first one has ended.
//!
//! A span that has ended is in the spool, where a SIGKILL does not reach it, so no request waits for its file. The thread sleeps while
//! nothing ends.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::hook::Recorder;

/// Time from the end of a span to its commit, in which others are collected.
const DELAY: Duration = Duration::from_millis(100);

/// The thread, as requests see it.
pub(super) struct Commits {
    is_asked: Arc<AtomicBool>,
    thread: Thread,
}

impl Commits {
    pub(super) fn start(recorder: &'static Recorder) -> io::Result<Commits> {
        let is_asked = Arc::new(AtomicBool::new(false));
        let own = Arc::clone(&is_asked);
        let run = move || loop {
            while !own.load(Acquire) {
                thread::park();
            }
            let until = Instant::now() + DELAY;
            while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
                thread::park_timeout(left);
            }
            own.store(false, std::sync::atomic::Ordering::Release);
            if let Err(reason) = recorder.commit() {
                eprintln!("tracer: spans cannot be written yet: {reason}");
            }
        };
        let thread = thread::Builder::new().name("tracer-commits".into()).spawn(run)?;
        Ok(Commits { is_asked, thread: thread.thread().clone() })
    }

    /// Says that a span has ended.
    pub(super) fn ask(&self) {
        if !self.is_asked.load(Acquire) && !self.is_asked.swap(true, AcqRel) {
            self.thread.unpark();
        }
    }
}
