//! The guard: the head's parent, which lives as long as anything below it.
//!
//! A task may start processes that leave its group and its session, and may outlive everyone who knows of them. So there are three
//! *subreapers*, one above the other: whatever loses its parents becomes a child of the nearest one that lives. A worker keeps what
//! its tasks leave for as long as it lives. When it has ended, the head kills what has become its child by that. When the head has
//! ended, however it ended, the guard kills what is left below it, until nothing is, and then ends as the head did.
//! None of this needs a cgroup or a PID namespace, or any right. What it cannot hold: processes that daemonize survive when guard, head
//! and worker are all killed before one of them could act.
//!
//! The guard makes no decision and holds no state, and shares the head's memory, so it costs next to nothing.
//!
//! If the guard itself is killed, the head is asked to stop.

use std::fs;
use std::io;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rustix::process::{
    Pid, Signal, WaitOptions, getpid, getppid, kill_process, set_child_subreaper, set_parent_process_death_signal,
    setpgid, wait,
};

use crate::children;

static GUARD: AtomicU32 = AtomicU32::new(0);

/// Returns the guard above this process, if it is a head that has one.
pub(crate) fn pid() -> Option<u32> {
    Some(GUARD.load(Relaxed)).filter(|&pid| pid != 0)
}

/// Attachment of the head to a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attachment {
    /// In a terminal, whose signals the guard passes on.
    Foreground,
    /// On its own; the guard lets go of standard input and output.
    Background,
}

/// Returns the signals that ask a head to end. SIGHUP, which a terminal sends when it is closed, only if it is not ignored: `nohup` says so.
pub(crate) fn ending_signals() -> Vec<i32> {
    let mut signals = vec![libc::SIGTERM, libc::SIGINT];
    // SAFETY: without a new action, the old one is written to memory that is valid for it, and nothing is changed.
    let is_hangup_ignored = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGHUP, std::ptr::null(), &mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    };
    if !is_hangup_ignored {
        signals.push(libc::SIGHUP);
    }
    signals
}

/// Splits this process in two: returns in the head, and never in the guard.
///
/// To be called while the process has one thread: the head begins as a copy of that thread.
pub(crate) fn split(place: Attachment) -> io::Result<()> {
    split_and(place, || Box::new(|| ()))
}

/// The same; when the head has ended in another way than in order, the guard does what `prepare` has returned, once nothing is left below it.
/// `prepare` runs in the guard as soon as there is a head.
pub(crate) fn split_and(place: Attachment, prepare: impl FnOnce() -> Box<dyn FnOnce()>) -> io::Result<()> {
    let guard = getpid();
    set_child_subreaper(Some(guard))?;
    let signals = Signals::block()?;
    // SAFETY: this process has one thread, so no lock is held by another that the copy would not have.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            signals.unblock()?;
            set_parent_process_death_signal(Some(Signal::TERM))?;
            if getppid() != Some(guard) {
                return Err(io::Error::other("the guard of the head has died already"));
            }
            if place == Attachment::Foreground {
                // A Ctrl-C in the terminal reaches the guard, which passes it on; the head must not get it twice.
                setpgid(None, None)?;
            }
            // What a worker leaves that dies becomes the head's, which ends it. What the head leaves becomes the guard's.
            set_child_subreaper(Some(getpid()))?;
            GUARD.store(guard.as_raw_nonzero().get().unsigned_abs(), Relaxed);
            Ok(())
        }
        head => {
            let head = Pid::from_raw(head).expect("fork returns a process id");
            let finish = prepare();
            if place == Attachment::Background {
                let_go();
            }
            let status = watch(head, &signals);
            kill_all();
            if status.code().is_none() {
                let _ = signals.unblock();
                finish();
            }
            end_like(status)
        }
    }
}

/// Lets go of what the command that started this process waits on.
fn let_go() {
    if let Ok(null) = fs::OpenOptions::new().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}

/// Passes signals on to the head and reaps what has ended, until the head has.
fn watch(head: Pid, signals: &Signals) -> ExitStatus {
    use std::os::unix::process::ExitStatusExt;
    loop {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid == head {
                return ExitStatus::from_raw(status.as_raw());
            }
        }
        match signals.next() {
            libc::SIGCHLD => {}
            signal => {
                if let Some(signal) = Signal::from_named_raw(signal) {
                    let _ = kill_process(head, signal);
                }
            }
        }
    }
}

/// Kills the children, and those that become children by that, until there are none.
fn kill_all() {
    loop {
        for child in children::of_this_process() {
            let _ = kill_process(child, Signal::KILL);
        }
        // An error says that there is no child any more.
        if wait(WaitOptions::empty()).is_err() {
            return;
        }
    }
}

/// Ends with the head's exit code, or by the signal that ended the head.
fn end_like(status: ExitStatus) -> ! {
    use std::os::unix::process::ExitStatusExt;
    if let Some(signal) = status.signal().and_then(Signal::from_named_raw) {
        let _ = kill_process(getpid(), signal);
    }
    // The first process of a container does not die of its own signals.
    let code = status.code().unwrap_or_else(|| crate::exit::from_signal(status.signal().unwrap_or(0)).into());
    // SAFETY: it ends the process at once. What is registered to run at exit belongs to the head.
    unsafe { libc::_exit(code) }
}

/// The signals that the guard waits for instead of being interrupted by them.
struct Signals {
    awaited: libc::sigset_t,
    before: libc::sigset_t,
}

impl Signals {
    fn block() -> io::Result<Signals> {
        // SAFETY: the sets are plain memory, and each is filled in before it is read.
        unsafe {
            let mut awaited = std::mem::zeroed();
            let mut before = std::mem::zeroed();
            libc::sigemptyset(&mut awaited);
            for signal in ending_signals().into_iter().chain([libc::SIGCHLD]) {
                libc::sigaddset(&mut awaited, signal);
            }
            match libc::pthread_sigmask(libc::SIG_BLOCK, &awaited, &mut before) {
                0 => Ok(Signals { awaited, before }),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        }
    }

    fn unblock(&self) -> io::Result<()> {
        // SAFETY: the set was filled in by `block`.
        match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Waits for the next one.
    fn next(&self) -> i32 {
        let mut signal = 0;
        // SAFETY: both point to initialized memory. It fails for a set with an invalid signal only.
        unsafe { libc::sigwait(&self.awaited, &mut signal) };
        signal
    }
}
