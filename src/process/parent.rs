//! The head as the parent of this process, and the socket that it hands over. A process of a service outlives its head, and no other, for a while.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, getpgrp, getpid, getppid, kill_process, kill_process_group, pidfd_open,
    set_parent_process_death_signal,
};
use tracer_ipc::{fault, session};

/// Time that a process of a service leaves to the guard, which ends it in order, before it ends itself.
const GUARDS_TIME: Duration = Duration::from_secs(1);
/// Pause between two looks for the head that comes after one that has died.
const LOOK: Duration = Duration::from_millis(100);

/// Returns the time within which a head must have taken over what the one before it has left; else all of it ends.
pub fn head_limit() -> Duration {
    Duration::from_millis(fault::setting("head_limit_ms").unwrap_or(10_000))
}

/// Has this process end, with its group if that is its own, when its head has died and none has taken its session over in time, though the guard, which
/// would end it, does nothing: it may be stopped. A thread waits for that, so that a handler which blocks does not keep the process.
///
/// A process that finds no head is somebody's own, and is left alone.
pub fn end_without_head(session_dir: &Path) -> io::Result<()> {
    let session_dir = session_dir.to_owned();
    let watch = move || {
        let Some(mut head) = head_of(&session_dir) else { return };
        loop {
            while let Err(rustix::io::Errno::INTR) = poll(&mut [PollFd::new(&head, PollFlags::IN)], None) {}
            let died = Instant::now();
            head = loop {
                if let Some(next) = head_of(&session_dir) {
                    break next;
                }
                if died.elapsed() >= head_limit() + GUARDS_TIME {
                    // Its log leads to whoever reads nothing now. Spans are in the spool.
                    if getpgrp() == getpid() {
                        let _ = kill_process_group(getpid(), Signal::KILL);
                    }
                    let _ = kill_process(getpid(), Signal::KILL);
                }
                std::thread::sleep(LOOK);
            };
        }
    };
    std::thread::Builder::new().name("head-watch".into()).stack_size(64 << 10).spawn(watch).map(drop)
}

/// Returns a descriptor of the process that is the head of a session now.
fn head_of(session_dir: &PathBuf) -> Option<OwnedFd> {
    let find = || {
        let head = session::find_head(session::place_of(session_dir)).ok()?;
        (head.session_dir == *session_dir).then_some(head.pid)
    };
    let pid = find()?;
    let head = pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()?;
    // The number was its own still when the descriptor was made.
    (find() == Some(pid)).then_some(head)
}

/// Asks the kernel for SIGKILL when the parent of this process dies. Returns false if that is not `parent`, which has died before.
///
/// The kernel watches the *thread* that started this process; the head has only one that starts any.
pub fn die_with(parent: u32) -> io::Result<bool> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    Ok(getppid().is_some_and(|pid| pid.as_raw_nonzero().get().unsigned_abs() == parent))
}

/// Takes over the socket that is standard input, and makes it block. What else reads standard input finds nothing.
pub fn take_standard_input() -> io::Result<OwnedFd> {
    let socket = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(socket)
}
