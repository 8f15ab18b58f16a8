//! Hearing of changes to the place while the head runs: somebody, or something that cleans up, may remove its files.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::{fs, io};

use rustix::fs::inotify;
use tracer_ipc::session::{Session, socket_path};

/// Interval at which the times of files are set, for those who remove what is old.
const TOUCH_NS: u64 = 6 * 3600 * 1_000_000_000;
/// Interval of looks where the kernel does not tell of changes.
const LOOK_NS: u64 = 2_000_000_000;

/// Wakes the head when something comes into its folders, or goes.
pub(super) struct PlaceWatch {
    watch: OwnedFd,
    /// Device and number of the socket's file.
    socket: Option<(u64, u64)>,
    period_ns: u64,
    /// Time of the next look.
    next_ns: u64,
}

impl PlaceWatch {
    pub(super) fn new(session: &Session) -> io::Result<PlaceWatch> {
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        let flags = inotify::WatchFlags::CREATE
            | inotify::WatchFlags::DELETE
            | inotify::WatchFlags::MOVED_FROM
            | inotify::WatchFlags::MOVED_TO
            | inotify::WatchFlags::DELETE_SELF
            | inotify::WatchFlags::MOVE_SELF;
        let sessions = session.temp_dir().join("sessions");
        let folders = [session.dir(), &sessions];
        // Whoever cuts the journal short has mostly opened it for that, and closes it. The head itself keeps it open.
        let of_place = flags | inotify::WatchFlags::CLOSE_WRITE;
        let is_told = inotify::add_watch(&watch, session.temp_dir(), of_place).is_ok()
            && folders.iter().all(|folder| inotify::add_watch(&watch, *folder, flags).is_ok());
        let period_ns = if is_told { TOUCH_NS } else { LOOK_NS };
        Ok(PlaceWatch { watch, socket: socket_id(session), period_ns, next_ns: period_ns })
    }

    /// Asks to be told of the next change of the journal's contents, and of no further one: somebody may cut it short by its path. The head's own writing
    /// is such a change too, so this is for now and then.
    pub(super) fn watch_journal(&self, session: &Session) {
        let flags = inotify::WatchFlags::MODIFY | inotify::WatchFlags::ONESHOT;
        // Where it cannot be watched, it is looked at.
        let _ = inotify::add_watch(&self.watch, session.temp_dir().join("tasks.journal"), flags);
    }

    /// Readable when something has changed.
    pub(super) fn watched(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    /// Takes in that something has changed.
    pub(super) fn take(&self) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.watch, &mut buffer);
        while reader.next().is_ok() {}
    }

    /// Returns whether to look although nothing was told.
    pub(super) fn is_due(&mut self, now_ns: u64) -> bool {
        let is_due = now_ns >= self.next_ns;
        if is_due {
            self.next_ns = now_ns + self.period_ns;
        }
        is_due
    }

    /// Returns when to look next, in nanoseconds of the monotonic clock.
    pub(super) fn next_ns(&self) -> Option<u64> {
        Some(self.next_ns)
    }

    /// Returns whether the socket is where it was made.
    pub(super) fn has_socket(&self, session: &Session) -> bool {
        self.socket.is_some() && socket_id(session) == self.socket
    }

    /// Notes that the socket was made anew.
    pub(super) fn note_socket(&mut self, session: &Session) {
        self.socket = socket_id(session);
    }
}

fn socket_id(session: &Session) -> Option<(u64, u64)> {
    let found = fs::symlink_metadata(socket_path(session.dir())).ok()?;
    Some((found.dev(), found.ino()))
}
