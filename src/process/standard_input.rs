//! Hands the standard input of `tracer submit command --stdin` to the process that runs the command.
//!
//! What goes over is the descriptor itself, not its bytes: the submitter listens on a socket of its own in the session's folder, whose path is in the
//! submission, and the worker that starts the command takes the descriptor there (`SCM_RIGHTS`). So the command reads from the very pipe, file or
//! terminal, as below a shell: in order, at the pace at which it reads, and no process of tracer holds any of it. What it does not read
//! stays for whoever reads next. When the command closes its input, the writer gets SIGPIPE: the submitter gives its own copy away.
//!
//! It is handed over once. An attempt that comes later would find its beginning gone, so there is none.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use tracer_ipc::session::short_path;

/// Time that a worker waits for a submitter that does not answer, because it is stopped for instance.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// The standard input of this process, for the one who asks for it at [`Offer::path`]. Dropped, it is withdrawn.
pub struct Offer {
    path: PathBuf,
}

impl Offer {
    /// Begins to listen in the folder of the session.
    pub fn new(session_dir: &Path) -> io::Result<Offer> {
        let name = format!("input-{}.sock", std::process::id());
        let path = session_dir.join(&name);
        let listener = short_path(session_dir, |dir| {
            // One of a process that had this number before.
            let _ = fs::remove_file(dir.join(&name));
            UnixListener::bind(dir.join(&name))
        })?;
        // The folder is 0700 already; the mode of the socket says the same.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        let offer = Offer { path };
        std::thread::Builder::new().name("standard input".into()).spawn(move || {
            // Until it is handed over: a connection that breaks before has not taken it.
            while let Ok((taker, _)) = listener.accept() {
                if hand_over(&taker).is_ok() {
                    return;
                }
            }
        })?;
        Ok(offer)
    }

    /// Returns where it is handed over. Absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn hand_over(taker: &UnixStream) -> io::Result<()> {
    let input = io::stdin();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    let files = [input.as_fd()];
    rights.push(SendAncillaryMessage::ScmRights(&files));
    sendmsg(taker, &[IoSlice::new(b"i")], &mut rights, SendFlags::NOSIGNAL)?;
    let nothing = fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(nothing)?;
    Ok(())
}

/// Takes the standard input that a submitter offers there.
pub fn take(path: &Path) -> io::Result<OwnedFd> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let stream = short_path(folder, |dir| UnixStream::connect(dir.join(name)))?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(&stream, &mut [IoSliceMut::new(&mut byte)], &mut rights, RecvFlags::CMSG_CLOEXEC)?;
    let mut taken = None;
    for message in rights.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            taken = files.last();
        }
    }
    taken.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}
