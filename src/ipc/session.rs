//! The place of a head: its folder, its lock, and the files of a session.
//!
//! ```text
//!   <temp dir>/               0700
//!     head.lock               held by flock for as long as the head lives; says who it is
//!     tasks.journal           what a head has to remember
//!     leavings.lock           held by flock while somebody finishes what a dead head left: the next head, or a reader
//!     values/                 large arguments and results, a file for each
//!     spare_values/           a few of these files that nobody needs any more, for the next values
//!     modules/                copies of modules' libraries
//!     sessions/<time>-<pid>/
//!       head.sock             0600
//!       spool/                a file for each traced process
//!       handover/             spans of the session that wait for an exporter, in files
//!       logs/                 head.log, and the output of each worker
//! ```
//!
//! The lock decides whether a head is running, not a connection that fails: a head that is busy still holds it, and a dead
//! one never does. The head holds a lock on the folder itself, too: systemd-tmpfiles, which removes what is old from folders for temporary files, leaves
//! a locked folder and everything in it alone, and whoever removes `head.lock` does not make room for a second head.

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::identity;
use crate::private_file;
use crate::stored;
use tracer_core::suggestion::shell_word;

/// Sessions whose folders are kept for their logs.
const SESSIONS_KEPT: usize = 5;

/// Record in the lock file of the head that holds the lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeadRecord {
    /// Its process.
    pub pid: u32,
    /// Its version of tracer, for messages to people.
    pub version: String,
    /// The folder of its session. Absolute.
    pub session_dir: PathBuf,
    /// Folder in which this head's processes write their spans.
    pub spans_dir: PathBuf,
    /// Time of its start, in nanoseconds since the Unix epoch.
    pub started_unix_nano: u64,
    /// The head's guard, which ends last.
    pub guard_pid: Option<u32>,
}

/// Error for which a place cannot be used, or no head be reached.
#[derive(Debug)]
pub enum SessionError {
    /// Another head holds the lock.
    Occupied {
        /// The place.
        temp_dir: PathBuf,
        /// Record of its holder in the lock; none while the holder has not written it yet.
        holder: Option<HeadRecord>,
    },
    /// No head is running here.
    NoHead {
        /// The place.
        temp_dir: PathBuf,
    },
    /// The folder belongs to someone else, is a link, or is open to others.
    Unsafe {
        /// The folder, or what is there instead.
        path: PathBuf,
        /// Defect of it, as a clause.
        reason: String,
        /// Next step for the user, as a clause.
        hint: String,
    },
    /// Something else with a file.
    Io {
        /// Operation that failed, as a verb: `open`, `listen on`.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SessionError::Occupied { temp_dir, holder: Some(holder) } => {
                write!(f, "a head is already running in `{}` (pid {}", temp_dir.display(), holder.pid)?;
                write!(f, ", tracer {})", holder.version)?;
                f.write_str("\n(hint: use it, end it with `tracer stop`, or start another with --temp-dir)")
            }
            SessionError::Occupied { temp_dir, holder: None } => {
                write!(f, "a head is already being started in `{}`", temp_dir.display())
            }
            SessionError::NoHead { temp_dir } => {
                write!(f, "no head is running in `{}`", temp_dir.display())?;
                f.write_str("\n(hint: start one with `tracer start --head`, or name its place with --temp-dir)")
            }
            SessionError::Unsafe { path, reason, hint } => {
                write!(f, "`{}` cannot hold a session: {reason}\n(hint: {hint})", path.display())
            }
            SessionError::Io { doing, path, .. } => write!(f, "cannot {doing} `{}`", path.display()),
        }
    }
}

impl std::error::Error for SessionError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SessionError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

fn io_error<'a>(doing: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> SessionError + use<'a> {
    move |source| SessionError::Io { doing, path: path.into(), source }
}

/// A session of a head, for as long as the head lives.
pub struct Session {
    temp_dir: PathBuf,
    dir: PathBuf,
    /// Dropping it releases the lock.
    lock: File,
    record: HeadRecord,
    folder: File,
    /// True if the folder is locked: some file systems lock files only.
    is_folder_locked: bool,
}

impl Session {
    /// Takes the place, or says who has it, and makes the folder of a new session. `guard_pid` is the guard above the head, if there is one.
    pub fn open(
        temp_dir: &Path,
        spans_dir: &Path,
        guard_pid: Option<u32>,
        now_unix_nano: u64,
    ) -> Result<Session, SessionError> {
        make_private(temp_dir)?;
        let temp_dir = &temp_dir.canonicalize().map_err(io_error("find", temp_dir))?;
        let lock_path = temp_dir.join("head.lock");
        let HeldPlace { folder, is_folder_locked, mut lock } = hold_place(temp_dir)?;
        let sessions = temp_dir.join("sessions");
        make_private(&sessions)?;
        let dir = sessions.join(format!("{:019}-{}", now_unix_nano, std::process::id()));
        let [values, spare] = ["values", stored::SPARE_FOLDER].map(|name| temp_dir.join(name));
        for folder in [&dir, &dir.join("spool"), &dir.join("handover"), &dir.join("logs"), &values, &spare] {
            make_private(folder)?;
        }
        let record = HeadRecord {
            pid: std::process::id(),
            version: crate::VERSION.into(),
            session_dir: dir.clone(),
            spans_dir: spans_dir.into(),
            started_unix_nano: now_unix_nano,
            guard_pid,
        };
        write_record(&mut lock, Some(&record)).map_err(io_error("write", &lock_path))?;
        Ok(Session { temp_dir: temp_dir.clone(), dir, lock, record, folder, is_folder_locked })
    }

    /// Goes on with the session of a head that has died, or has made way, whose locks were kept.
    pub fn take_over(
        (temp_dir, spans_dir): (&Path, &Path),
        kept: KeptSession,
        lock: File,
        folder: File,
    ) -> Result<Session, SessionError> {
        let KeptSession { record, is_folder_locked } = kept;
        let (pid, version, spans_dir) = (std::process::id(), crate::VERSION.into(), spans_dir.into());
        let record = HeadRecord { pid, version, spans_dir, ..record };
        let dir = record.session_dir.clone();
        let mut session = Session { temp_dir: temp_dir.into(), dir, lock, record, folder, is_folder_locked };
        let path = session.temp_dir.join("head.lock");
        write_record(&mut session.lock, Some(&session.record)).map_err(io_error("write", &path))?;
        Ok(session)
    }

    /// Returns what a head that goes on with this session needs, with the locks of lock file and folder.
    pub fn to_keep(&self) -> (KeptSession, [BorrowedFd<'_>; 2]) {
        let kept = KeptSession { record: self.record.clone(), is_folder_locked: self.is_folder_locked };
        (kept, [self.lock.as_fd(), self.folder.as_fd()])
    }

    /// Returns the spools of this session.
    pub fn own_spools(&self) -> Vec<PathBuf> {
        spools_of(std::slice::from_ref(&self.dir))
    }

    /// Returns whether the place is still where it was. Somebody may have moved or removed it.
    pub fn is_in_place(&self) -> bool {
        leads_to(&self.temp_dir, &self.folder)
    }

    /// Looks whether the names of the place lead to what the head holds. True if the lock was removed or replaced, and was taken back.
    ///
    /// # Errors
    ///
    /// Why the head has lost its place for good, as a clause.
    pub fn check(&mut self) -> Result<bool, String> {
        if !self.is_in_place() {
            return Err(format!("its folder `{}` was moved or removed", self.temp_dir.display()));
        }
        if !self.dir.is_dir() {
            return Err(format!("the folder of its session, `{}`, was moved or removed", self.dir.display()));
        }
        let path = self.temp_dir.join("head.lock");
        if leads_to(&path, &self.lock) {
            return Ok(false);
        }
        let removed = format!("`{}` was removed or replaced", path.display());
        if !self.is_folder_locked {
            return Err(format!("{removed}, and cannot be taken back safely on this file system"));
        }
        if let Ok(mut other) = open_lock(&path, Opening::Read)
            && flock(&other, FlockOperation::NonBlockingLockShared).is_err()
            && let Some(holder) = read_record(&mut other).filter(|holder| holder.pid != self.record.pid)
        {
            return Err(format!("{removed}, and the head with pid {} has taken it", holder.pid));
        }
        self.take_lock_back(&path).map_err(|error| format!("{removed}, and cannot be made anew: {error}"))?;
        Ok(true)
    }

    /// Makes a new lock, which is held and says who holds it before it has its name. Nobody else does that, while the folder is locked.
    fn take_lock_back(&mut self, path: &Path) -> io::Result<()> {
        let new = self.temp_dir.join("head.lock.new");
        let _ = fs::remove_file(&new);
        let mut lock = OpenOptions::new().create_new(true).read(true).write(true).mode(0o600).open(&new)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        write_record(&mut lock, Some(&self.record))?;
        fs::rename(&new, path)?;
        self.lock = lock;
        Ok(())
    }

    /// Sets the times of what the head needs to now, for those who remove what is old and know nothing of locks.
    pub fn touch(&self) {
        let files = [
            "head.lock",
            "tasks.journal",
            "place.id",
            "metrics",
            "metrics.http",
            "metrics.token",
            "sessions",
            "values",
            stored::SPARE_FOLDER,
        ];
        let mut paths: Vec<_> = files.iter().map(|name| self.temp_dir.join(name)).collect();
        paths.extend([self.temp_dir.clone(), self.dir.clone()]);
        for folder in [self.dir.clone(), self.dir.join("spool"), self.dir.join("logs"), self.temp_dir.join("values")] {
            paths.extend(folder.read_dir().into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())));
        }
        let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
        for path in paths {
            let _ = rustix::fs::utimensat(rustix::fs::CWD, &path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
        }
    }

    /// Returns the folder of this session. Absolute.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the place that the head has taken. Absolute, without symbolic links.
    pub fn temp_dir(&self) -> &Path {
        &self.temp_dir
    }

    /// Listens on the session's socket, which only this user can reach.
    pub fn listen(&self) -> Result<UnixListener, SessionError> {
        let path = socket_path(&self.dir);
        // The folder is 0700 already; the mode of the socket says the same.
        let listener = short_path(&self.dir, |dir| UnixListener::bind(dir.join("head.sock")))
            .map_err(io_error("listen on", &path))?;
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .map_err(io_error("protect", &path))?;
        Ok(listener)
    }

    /// Returns the spools that dead sessions of this place left behind.
    pub fn leavings(&self) -> Vec<PathBuf> {
        spools_of(&self.other_sessions())
    }

    /// Returns the folders for parcels of the other sessions of this place.
    pub fn handovers_left(&self) -> Vec<PathBuf> {
        self.other_sessions().iter().map(|session| handover_dir(session)).collect()
    }

    /// Removes the folders of old sessions, but for the newest few.
    pub fn remove_old_sessions(&self) {
        let mut sessions = self.other_sessions();
        sessions.sort();
        for session in sessions.iter().rev().skip(SESSIONS_KEPT) {
            // What cannot be removed now is tried again by the next head.
            let _ = fs::remove_dir_all(session);
        }
    }

    /// Says that no head is here any more. The lock is released when the session is dropped.
    pub fn close(&mut self) {
        let _ = fs::remove_file(socket_path(&self.dir));
        let _ = write_record(&mut self.lock, None);
    }

    fn other_sessions(&self) -> Vec<PathBuf> {
        let mut sessions = sessions_of(&self.temp_dir);
        sessions.retain(|path| *path != self.dir);
        sessions
    }
}

/// A session, as the head that goes on with it gets it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeptSession {
    record: HeadRecord,
    is_folder_locked: bool,
}

/// A place that is kept from heads.
pub struct HeldPlace {
    folder: File,
    is_folder_locked: bool,
    /// Dropping it lets go of the place.
    lock: File,
}

/// Holds a place, or says who has it. Whoever holds it and is no head, such as somebody who prunes it, is waited for.
pub fn hold_place(temp_dir: &Path) -> Result<HeldPlace, SessionError> {
    /// One refusal is not the last word: whoever looks for a head holds the lock shared for a moment.
    const LIMIT: Duration = Duration::from_millis(100);
    check_owner(temp_dir)?;
    let lock_path = temp_dir.join("head.lock");
    // First: while another head has the folder, no lock is made in it.
    let (folder, is_folder_locked) = lock_folder(temp_dir, &lock_path)?;
    let mut lock = open_lock(&lock_path, Opening::Create)?;
    let limit = |holder: Option<&HeadRecord>| holder.map_or(LIMIT_OF_OTHERS, |_| LIMIT);
    match lock_within(&mut lock, FlockOperation::NonBlockingLockExclusive, limit) {
        Ok(()) => Ok(HeldPlace { folder, is_folder_locked, lock }),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            Err(SessionError::Occupied { temp_dir: temp_dir.into(), holder: read_record(&mut lock) })
        }
        Err(error) => Err(io_error("lock", &lock_path)(error.into())),
    }
}

/// Refuses a place of another user's: what root, for one, made there would keep the owner's own head out.
fn check_owner(temp_dir: &Path) -> Result<(), SessionError> {
    let owner = fs::metadata(temp_dir).map_err(io_error("look at", temp_dir))?.uid();
    let own = rustix::process::geteuid().as_raw();
    if owner == own {
        return Ok(());
    }
    let reason = format!("the place belongs to user {owner}, but this process runs as user {own}");
    Err(io_error("lock", temp_dir)(io::Error::new(io::ErrorKind::PermissionDenied, reason)))
}

/// Returns the folders of all sessions of a place.
pub fn all_sessions(temp_dir: &Path) -> Vec<PathBuf> {
    sessions_of(temp_dir)
}

/// Returns the folders of all sessions of a place.
fn sessions_of(temp_dir: &Path) -> Vec<PathBuf> {
    let entries = temp_dir.join("sessions").read_dir().into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

fn spools_of(sessions: &[PathBuf]) -> Vec<PathBuf> {
    let folders = sessions.iter().filter_map(|session| session.join("spool").read_dir().ok());
    let files: Vec<_> = folders.flatten().filter_map(|entry| Some(entry.ok()?.path())).collect();
    let with = |wanted: &'static str| {
        files.iter().filter(move |path| path.extension().is_some_and(|extension| extension == wanted))
    };
    // Of a spool that somebody has removed, what was granted stays.
    let without_spool = with("grants").map(|path| path.with_extension("spool")).filter(|path| !files.contains(path));
    with("spool").cloned().chain(without_spool).collect()
}

/// Returns the spools of all sessions of a place.
pub fn all_spools(temp_dir: &Path) -> Vec<PathBuf> {
    spools_of(&sessions_of(temp_dir))
}

/// Finds the head of a place.
pub fn find_head(temp_dir: &Path) -> Result<HeadRecord, SessionError> {
    let no_head = || SessionError::NoHead { temp_dir: temp_dir.into() };
    let path = temp_dir.join("head.lock");
    let mut lock = match open_lock(&path, Opening::Read) {
        Err(SessionError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Err(no_head()),
        other => other?,
    };
    if flock(&lock, FlockOperation::NonBlockingLockShared).is_ok() {
        // Nobody holds it exclusively, whatever it says. Closing the file gives the shared lock back.
        return Err(no_head());
    }
    // The lock of one that was killed is held until the kernel has taken the process down.
    read_record(&mut lock).filter(|record| !identity::is_gone_or_going(record.pid)).ok_or_else(no_head)
}

/// Returns the head that was killed in a place and that no other has followed. None while one lives there, and after one that was stopped.
pub fn find_dead_head(temp_dir: &Path) -> Option<HeadRecord> {
    let mut lock = open_lock(&temp_dir.join("head.lock"), Opening::Read).ok()?;
    // Not to wait for one that lives.
    lock_within(&mut lock, FlockOperation::NonBlockingLockShared, |_| Duration::ZERO).ok()?;
    read_record(&mut lock)
}

/// Takes the lock under which what a dead head left is finished, and waits for whoever has it. Dropping the file gives it back.
pub fn lock_leavings(temp_dir: &Path) -> Result<File, SessionError> {
    /// Longer than it takes to write all that the spools of a session can hold.
    const LIMIT: Duration = Duration::from_secs(20);
    let path = temp_dir.join("leavings.lock");
    check_owner(temp_dir)?;
    let mut lock = open_lock(&path, Opening::Create)?;
    lock_within(&mut lock, FlockOperation::NonBlockingLockExclusive, |_| LIMIT)
        .map_err(|error| io_error("lock", &path)(error.into()))?;
    Ok(lock)
}

/// Connects to a session's head.
pub fn connect(session_dir: &Path) -> Result<UnixStream, SessionError> {
    let path = socket_path(session_dir);
    short_path(session_dir, |dir| UnixStream::connect(dir.join("head.sock"))).map_err(io_error("connect to", &path))
}

/// The same without waiting for a head that has more callers than it has accepted: then it fails with `WouldBlock`.
pub fn connect_at_once(session_dir: &Path) -> Result<UnixStream, SessionError> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    let path = socket_path(session_dir);
    let connected = short_path(session_dir, |dir| {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &SocketAddrUnix::new(dir.join("head.sock"))?)?;
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        Ok(stream)
    });
    connected.map_err(io_error("connect to", &path))
}

/// Returns the folder of the place that a session is in: `<place>/sessions/<session>`.
pub fn place_of(session_dir: &Path) -> &Path {
    session_dir.parent().and_then(Path::parent).unwrap_or(session_dir)
}

/// Returns the socket of a session.
pub fn socket_path(session_dir: &Path) -> PathBuf {
    session_dir.join("head.sock")
}

/// Returns the spool of a worker.
pub fn worker_spool(session_dir: &Path, worker: tracer_core::task::WorkerId) -> PathBuf {
    session_dir.join(format!("spool/worker-{worker}.spool"))
}

/// Returns the worker that a spool belongs to; none for a driver's.
pub fn worker_of_spool(spool: &Path) -> Option<tracer_core::task::WorkerId> {
    spool.file_name()?.to_str()?.strip_prefix("worker-")?.strip_suffix(".spool")?.parse().ok()
}

/// Returns the spool of a proxy.
pub fn proxy_spool(session_dir: &Path, process: tracer_core::task::WorkerId) -> PathBuf {
    session_dir.join(format!("spool/proxy-{process}.spool"))
}

/// Returns whether a spool is of a process that ends with its head: a worker, a replica or a proxy.
pub fn is_of_head(spool: &Path) -> bool {
    let name = spool.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    worker_of_spool(spool).is_some() || name.starts_with("proxy-")
}

/// Returns the spool of a driver.
pub fn driver_spool(session_dir: &Path, pid: u32, started_unix_nano: u64) -> PathBuf {
    session_dir.join(format!("spool/driver-{pid}-{started_unix_nano}.spool"))
}

/// The name of a file in a folder for parcels whose coming says that somebody has removed some.
pub const DISCARDED: &str = "discarded";

/// Tells the head, if one runs, that parcels were removed from its folder.
pub fn report_discarded(handover: &Path) -> io::Result<()> {
    let unfinished = handover.join(format!("{DISCARDED}.{}.part", std::process::id()));
    private_file::replace(&handover.join(DISCARDED), &unfinished, b"")
}

/// Returns the folder of a session in which spans wait for an exporter.
pub fn handover_dir(session_dir: &Path) -> PathBuf {
    session_dir.join("handover")
}

/// The same, of the session that a spool is in.
pub fn handover_of_spool(spool: &Path) -> Option<PathBuf> {
    Some(handover_dir(spool.parent()?.parent()?))
}

/// Runs `body` with a name for `dir` that is short enough for a socket's address, which holds 108 bytes only: when the
/// path is too long, by way of an open descriptor.
pub fn short_path<T>(dir: &Path, body: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    const ROOM: usize = 96;
    if dir.as_os_str().len() <= ROOM {
        return body(dir);
    }
    let folder = File::open(dir)?;
    body(Path::new(&format!("/proc/self/fd/{}", folder.as_raw_fd())))
}

/// Time that whoever is no head is waited for: it holds a place for as long as it takes to clean up in it.
const LIMIT_OF_OTHERS: Duration = Duration::from_secs(5);

/// Takes a lock within a limit, which follows from what the lock says of its holder. What a head that was killed held is free only when the kernel has
/// taken the process down, which is waited for whatever the limit is.
fn lock_within(
    lock: &mut File,
    operation: FlockOperation,
    limit: impl Fn(Option<&HeadRecord>) -> Duration,
) -> rustix::io::Result<()> {
    const LIMIT_OF_THE_DEAD: Duration = Duration::from_secs(10);
    let since = Instant::now();
    loop {
        match flock(&*lock, operation) {
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            other => return other,
        }
        let holder = read_record(lock);
        let is_dead = holder.as_ref().is_some_and(|record| identity::is_gone_or_going(record.pid));
        if since.elapsed() >= if is_dead { LIMIT_OF_THE_DEAD } else { limit(holder.as_ref()) } {
            return Err(rustix::io::Errno::WOULDBLOCK);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Mode in which the file of a lock is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Opening {
    /// To look at it, which a file system that cannot be written to allows.
    Read,
    /// To hold it.
    Create,
}

/// Locks the folder of a place. False beside it if its file system locks no folders.
fn lock_folder(temp_dir: &Path, lock_path: &Path) -> Result<(File, bool), SessionError> {
    /// Longest wait, as for `head.lock`.
    const LIMIT: Duration = Duration::from_millis(100);
    let folder = File::open(temp_dir).map_err(io_error("open", temp_dir))?;
    let since = Instant::now();
    loop {
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok((folder, true)),
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(_) => return Ok((folder, false)),
        }
        let holder = open_lock(lock_path, Opening::Read).ok().and_then(|mut lock| read_record(&mut lock));
        match holder {
            Some(holder) if since.elapsed() >= LIMIT && !identity::is_gone_or_going(holder.pid) => {
                return Err(SessionError::Occupied { temp_dir: temp_dir.into(), holder: Some(holder) });
            }
            _ if since.elapsed() >= LIMIT_OF_OTHERS => {
                let reason = "another process holds a lock on the folder, and it is no head that can be found";
                return Err(io_error("lock", temp_dir)(io::Error::new(io::ErrorKind::WouldBlock, reason)));
            }
            _ => {}
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns whether a path is the name of an open file or folder.
fn leads_to(path: &Path, file: &File) -> bool {
    let id = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    fs::symlink_metadata(path).map(id).ok().is_some_and(|found| file.metadata().map(id).ok() == Some(found))
}

fn open_lock(path: &Path, opening: Opening) -> Result<File, SessionError> {
    // A named pipe would keep its reader waiting.
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let lock = OpenOptions::new()
        .read(true)
        .write(opening == Opening::Create)
        .create(opening == Opening::Create)
        .truncate(false)
        .mode(0o600)
        .custom_flags(flags.bits() as i32)
        .open(path)
        .map_err(io_error("open", path))?;
    if lock.metadata().is_ok_and(|found| found.is_file()) {
        return Ok(lock);
    }
    Err(io_error("use", path)(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")))
}

fn read_record(lock: &mut File) -> Option<HeadRecord> {
    let mut text = String::new();
    lock.rewind().ok()?;
    lock.read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

fn write_record(lock: &mut File, record: Option<&HeadRecord>) -> io::Result<()> {
    lock.set_len(0)?;
    lock.rewind()?;
    match record {
        Some(record) => lock.write_all(&serde_json::to_vec(record).map_err(io::Error::other)?),
        None => Ok(()),
    }
}

/// Makes a folder that only this user can enter, or checks one that exists.
fn make_private(path: &Path) -> Result<(), SessionError> {
    let mut has_parent = false;
    loop {
        match DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => break,
            // With a parent that is there, it says that no folder can be made in this one: `/proc` is such a place.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !has_parent => {
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                let parent = parent.ok_or(error).map_err(io_error("create", path))?;
                fs::create_dir_all(parent).map_err(io_error("create", parent))?;
                has_parent = true;
            }
            Err(error) => return Err(io_error("create", path)(error)),
        }
    }
    let another = "name another folder with --temp-dir";
    let refuse = |reason: String| Err(SessionError::Unsafe { path: path.into(), reason, hint: another.into() });
    let metadata = fs::symlink_metadata(path).map_err(io_error("look at", path))?;
    let own = rustix::process::geteuid().as_raw();
    if metadata.is_symlink() {
        return refuse("it is a symbolic link".into());
    }
    if !metadata.is_dir() {
        return refuse("it is not a folder".into());
    }
    if metadata.uid() != own {
        return refuse(format!("it belongs to user {}, but this process runs as user {own}", metadata.uid()));
    }
    let mode = metadata.mode() & 0o777;
    if mode & 0o077 != 0 {
        let reason = format!("others may enter it (its mode is {mode:04o}, expected 0700)");
        let hint = format!("`chmod 700 {}`, or {another}", shell_word(&path.display().to_string()));
        return Err(SessionError::Unsafe { path: path.into(), reason, hint });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn private() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        folder
    }

    #[test]
    fn a_second_head_is_refused_and_told_of_the_first() {
        let folder = private();
        let first = Session::open(folder.path(), Path::new("/spans"), None, 1).unwrap();
        let Err(error) = Session::open(folder.path(), Path::new("/spans"), None, 2) else {
            panic!("two heads in one place")
        };
        let text = error.to_string();
        assert!(text.starts_with(&format!("a head is already running in `{}`", first.temp_dir().display())), "{text}");
        assert!(text.contains(&format!("pid {}", std::process::id())), "{text}");
        assert_eq!(find_head(folder.path()).unwrap().session_dir, first.dir());
    }

    #[test]
    fn a_place_is_free_again_when_its_head_is_gone_whatever_its_lock_says() {
        let folder = private();
        drop(Session::open(folder.path(), Path::new("/spans"), None, 1).unwrap());
        assert!(matches!(find_head(folder.path()), Err(SessionError::NoHead { .. })));
        assert!(Session::open(folder.path(), Path::new("/spans"), None, 2).is_ok());
    }

    #[test]
    fn a_head_waits_for_whoever_holds_its_place_and_is_none() {
        let folder = private();
        // A head that was stopped, and one that was killed, have left their lock.
        for is_stopped in [true, false] {
            let mut before = Session::open(folder.path(), Path::new("/spans"), None, 1).unwrap();
            if is_stopped {
                before.close();
            } else {
                let mut gone = before.record.clone();
                // No process has this number.
                gone.pid = u32::MAX >> 2;
                write_record(&mut before.lock, Some(&gone)).unwrap();
            }
            drop(before);
            let held = hold_place(folder.path()).unwrap();
            assert!(matches!(find_head(folder.path()), Err(SessionError::NoHead { .. })));
            let (tell, told) = std::sync::mpsc::channel();
            let path = folder.path().to_owned();
            let start = std::thread::spawn(move || {
                let started = Session::open(&path, Path::new("/spans"), None, 2).map(|_| ());
                tell.send(started.map_err(|error| error.to_string())).unwrap();
            });
            let early = told.recv_timeout(Duration::from_millis(300));
            assert!(early.is_err(), "it did not wait: {early:?}");
            drop(held);
            assert_eq!(told.recv().unwrap(), Ok(()));
            start.join().unwrap();
        }
    }

    #[test]
    fn a_folder_that_others_may_enter_or_that_is_a_link_is_refused() {
        let folder = private();
        let open = folder.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
        let error = Session::open(&open, Path::new("/spans"), None, 1).err().unwrap().to_string();
        assert!(error.contains("others may enter it (its mode is 0755, expected 0700)"), "{error}");

        let link = folder.path().join("link");
        symlink(private().path(), &link).unwrap();
        let error = Session::open(&link, Path::new("/spans"), None, 1).err().unwrap().to_string();
        assert!(error.contains("it is a symbolic link"), "{error}");

        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(
            Session::open(&file, Path::new("/spans"), None, 1)
                .err()
                .unwrap()
                .to_string()
                .contains("it is not a folder")
        );
    }

    #[test]
    fn a_socket_is_reached_through_a_path_of_any_length() {
        let folder = private();
        let deep = folder.path().join("x".repeat(100)).join("y".repeat(100));
        let session = Session::open(&deep, Path::new("/spans"), None, 1).unwrap();
        let listener = session.listen().unwrap();
        assert_eq!(fs::metadata(socket_path(session.dir())).unwrap().permissions().mode() & 0o777, 0o600);
        let client = connect(session.dir()).unwrap();
        listener.accept().unwrap();
        drop(client);
    }

    #[test]
    fn only_the_newest_sessions_are_kept() {
        let folder = private();
        for time in 1..=10 {
            Session::open(folder.path(), Path::new("/spans"), None, time).unwrap();
        }
        let session = Session::open(folder.path(), Path::new("/spans"), None, 11).unwrap();
        session.remove_old_sessions();
        assert_eq!(session.other_sessions().len(), SESSIONS_KEPT);
    }
}
