//! The head as the parent of this process, and the socket that it hands over.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// Asks the kernel for SIGKILL when the parent of this process dies. Returns false if that is not `parent`, which has died before.
///
/// The kernel watches the *thread* that started this process; the head has only one that starts any.
pub(crate) fn die_with(parent: u32) -> io::Result<bool> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    Ok(getppid().is_some_and(|pid| pid.as_raw_nonzero().get().unsigned_abs() == parent))
}

/// Takes over the socket that is standard input, and makes it block. What else reads standard input finds nothing.
pub(crate) fn take_standard_input() -> io::Result<OwnedFd> {
    let socket = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(socket)
}
