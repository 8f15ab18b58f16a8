//! Commits of ended spans: a thread that writes them to the span file a moment after the first one has ended, or as soon as many have.
//!
//! A span that has ended is in the spool, where a SIGKILL does not reach it, so no request waits for its file. The thread sleeps while
//! nothing ends.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use tracer_host::hook::Recorder;

/// Time from the end of a span to its commit, in which others are collected.
const DELAY: Duration = Duration::from_millis(100);

/// The thread, as requests see it.
pub(super) struct Commits {
    asked: Arc<Asked>,
    thread: Thread,
}

#[derive(Default)]
struct Asked {
    /// True when spans have ended, which are written after [`DELAY`], with others.
    is_asked: AtomicBool,
    /// True when many have, which are written at once.
    is_due: AtomicBool,
}

impl Commits {
    pub(super) fn start(recorder: &'static Recorder) -> io::Result<Commits> {
        let asked = Arc::new(Asked::default());
        let own = Arc::clone(&asked);
        let run = move || {
            tracer_ipc::background::yield_to_others();
            loop {
                while !own.is_asked.load(Acquire) && !own.is_due.load(Acquire) {
                    thread::park();
                }
                let until = Instant::now() + DELAY;
                while !own.is_due.load(Acquire) {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    thread::park_timeout(left);
                }
                own.is_asked.store(false, Release);
                own.is_due.store(false, Release);
                if let Err(reason) = recorder.commit() {
                    eprintln!("tracer: spans cannot be written yet: {reason}");
                }
            }
        };
        let thread = thread::Builder::new().name("tracer-commits".into()).spawn(run)?;
        let commits = Commits { asked, thread: thread.thread().clone() };
        let (asked, thread) = (Arc::clone(&commits.asked), commits.thread.clone());
        recorder.set_committer(Box::new(move || {
            if !asked.is_due.swap(true, AcqRel) {
                thread.unpark();
            }
        }));
        Ok(commits)
    }

    /// Says that a span has ended.
    pub(super) fn ask(&self) {
        if !self.asked.is_asked.load(Acquire) && !self.asked.is_asked.swap(true, AcqRel) {
            self.thread.unpark();
        }
    }
}
