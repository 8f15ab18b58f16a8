//! Reports of the threads of the proxy: to the head, and to the main thread.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use tracer_ipc::control;
use tracer_ipc::serving::ProxyReport;

/// The way back to the head.
pub(super) struct Reports {
    pub(super) socket: OwnedFd,
}

impl Reports {
    /// Sends a report. A head that is gone hears of nothing.
    pub(super) fn send(&self, report: &ProxyReport) {
        self.send_with(report, &[]);
    }

    /// Sends a report with files.
    pub(super) fn send_with(&self, report: &ProxyReport, files: &[BorrowedFd<'_>]) {
        if let Err(error) = control::send(&self.socket, report, files) {
            eprintln!("tracer: the proxy cannot report to its head: {error}");
        }
    }
}

/// Asks the main thread to bring spans that have ended to where their hooks want them.
pub(super) struct Commits {
    pub(super) wake: OwnedFd,
    /// True when some have ended, which are brought on after a while, with others.
    pub(super) is_asked: AtomicBool,
    /// True when many have, which are brought on at once.
    pub(super) is_due: AtomicBool,
}

impl Commits {
    /// Asks for it, unless somebody has just now.
    pub(super) fn ask(&self) {
        if !self.is_asked.load(Relaxed) && !self.is_asked.swap(true, Relaxed) {
            self.wake();
        }
    }

    /// Asks for it without a delay. The thread that asks has requests to serve, and the disk may be slow.
    pub(super) fn ask_at_once(&self) {
        if !self.is_due.swap(true, Relaxed) {
            self.wake();
        }
    }

    pub(super) fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}
