//! The guard: the head's parent, which lives as long as anything below it.
//!
//! A task may start processes that leave its group and its session, and may outlive everyone who knows of them. So there are three
//! *subreapers*, one above the other: whatever loses its parents becomes a child of the nearest one that lives. A worker keeps what
//! its tasks leave for as long as it lives. When it has ended, the head kills what has become its child by that. When the head has
//! ended, however it ended, the guard kills what is left below it, until nothing is, and then ends as the head did.
//! None of this needs a cgroup or a PID namespace, or any right. What it cannot hold: processes that daemonize survive when guard, head
//! and worker are all killed before one of them could act.
//!
//! A service outlives its head. The guard starts the processes of services, for the head, so that they are its own children and not the head's, and
//! keeps their files and what the head knows of them (`keeper`). When the head dies while there are any, another one begins as
//! a copy of the guard and goes on with them. So it is again and again, unless none has taken over within ten seconds, or heads end by
//! themselves one after the other: then all of it ends. A head that no service has ends as it always did, and so does that of a program.
//!
//! A new version goes on in the same way: when the head has ended for it, the guard runs the other program in its own process, so that all children stay its
//! children and all files open. What it hands over are numbers of files and what heads have said of them.
//!
//! The guard looks into nothing that it keeps, and shares the head's memory, so it costs next to nothing.
//!
//! If the guard itself is killed, the kernel kills the processes of services, whose parent it is, and the head is asked to stop.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::FdFlags;
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, WaitOptions, getpid, getppid, getrlimit, kill_process, pidfd_open,
    set_child_subreaper, set_parent_process_death_signal, setpgid, setrlimit, wait, waitpid,
};
use serde::{Deserialize, Serialize};
use tracer_core::lock::lock;
use tracer_ipc::control;
use tracer_ipc::session::Session;
use tracer_ipc::spin::is_readable;
use tracer_process::children;
use tracer_process::parent::head_limit;

use super::keeper::{AllKept, FromGuard, Keeper, Kept, Key, Replacement, StartOrder, ToGuard};
use super::settings::HeadSettings;

static GUARD: AtomicU32 = AtomicU32::new(0);
/// Time that all heads of a guard count from.
static CLOCK: OnceLock<Instant> = OnceLock::new();
/// Inheritance of a head from its guard, until it takes it.
static INHERITED: Mutex<Option<Inherited>> = Mutex::new(None);

/// A head that has lived for so long has not died of its start.
const LONG_LIFE: Duration = Duration::from_secs(10);
/// Heads that may end by themselves, one after the other and each soon after its start, before all of it ends.
const OWN_ENDS_LIMIT: u32 = 5;
/// Pause before the next head, for each that has ended soon after its start, and at most.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_LIMIT: Duration = Duration::from_millis(500);

/// Returns the guard above this process, if it is a head that has one.
pub fn pid() -> Option<u32> {
    Some(GUARD.load(Relaxed)).filter(|&pid| pid != 0)
}

/// Returns the time that the head counts from, which is the same for all heads of a guard.
pub(crate) fn clock() -> Instant {
    *CLOCK.get_or_init(Instant::now)
}

/// Inheritance of a head from its guard.
#[derive(Debug)]
pub struct Inherited {
    /// The way to the guard.
    pub(super) keeper: Keeper,
    /// Leavings of the heads before it; nothing for the first.
    pub(super) kept: AllKept,
    /// Number of heads that have ended before it.
    pub(super) restarts: u64,
    /// True if the head before it has made way for this program.
    pub(super) is_replaced: bool,
    /// The reason why another program does not go on that was to.
    pub(super) failure: Option<String>,
}

impl Inherited {
    /// Goes on with the session of the head before this one. None for the first.
    pub fn session(&self, settings: &HeadSettings) -> io::Result<Option<Session>> {
        let Some(head) = self.kept.get(&Key::Head) else { return Ok(None) };
        let (lock, folder) = (File::from(head.file(1)?), File::from(head.file(2)?));
        let folders = (settings.temp_dir.as_path(), settings.tracing.spans_dir.as_path());
        Session::take_over(folders, head.value()?, lock, folder).map(Some).map_err(io::Error::other)
    }
}

/// Takes what this head has from its guard. None without a guard, and when it was taken.
pub fn take_inherited() -> Option<Inherited> {
    lock(&INHERITED).take()
}

/// Returns the settings that the head before this one had, if it has left processes of services.
pub fn inherited_settings() -> Option<HeadSettings> {
    let inherited = lock(&INHERITED);
    let head = inherited.as_ref()?.kept.get(&Key::Head)?;
    head.file(0).and_then(tracer_ipc::control::receive_long).ok()
}

/// Attachment of the head to a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Attachment {
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

/// Splits this process in two: returns in the head, and never in the guard. When the head dies while processes of services live, the guard splits off
/// another one, which returns here too, with [what was kept](take_inherited).
///
/// To be called while the process has one thread: a head begins as a copy of that thread.
pub fn split(place: Attachment) -> io::Result<()> {
    split_as(place, Heads::OneAfterAnother, || Box::new(|| ()))
}

/// The same of a head that no other comes after. When it has ended in another way than in order, the guard does what `prepare` has returned, once
/// nothing is left below it. `prepare` runs in the guard as soon as there is a head.
pub fn split_and(place: Attachment, prepare: impl FnOnce() -> Box<dyn FnOnce()>) -> io::Result<()> {
    split_as(place, Heads::One, prepare)
}

fn split_as(place: Attachment, heads: Heads, prepare: impl FnOnce() -> Box<dyn FnOnce()>) -> io::Result<()> {
    set_child_subreaper(Some(getpid()))?;
    clock();
    let signals = Signals::block()?;
    let Some(guard) = Guard::begin(place, heads, &signals)? else { return Ok(()) };
    let finish = prepare();
    if place == Attachment::Background {
        let_go();
    }
    guard.run(&signals, finish)
}

/// Goes on as the guard that this process was when it ran another program, which has left its state in this file. Returns in the head, as [`split`] does, with
/// how it is attached.
pub fn resume(state: i32) -> io::Result<Attachment> {
    set_child_subreaper(Some(getpid()))?;
    // They were never let through since the other program blocked them.
    let signals = Signals { before: no_signals(), ..Signals::block()? };
    let mut guard = Guard::of_state(state, &signals)?;
    let place = guard.place;
    // Whatever keeps a process from being made may be over in a moment.
    let is_head = loop {
        match guard.start_another(&signals) {
            Ok(is_head) => break is_head,
            Err(error) if !guard.may_try_again(&signals) => return Err(error),
            Err(_) => {}
        }
    };
    if !is_head {
        guard.run(&signals, Box::new(|| ()))?;
    }
    Ok(place)
}

/// Lets go of what the command that started this process waits on.
fn let_go() {
    if let Ok(null) = fs::OpenOptions::new().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}

/// Succession of heads: whether one comes after one that has died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heads {
    /// One comes if processes of services live.
    OneAfterAnother,
    /// None does.
    One,
}

/// The guard, with what it keeps.
struct Guard {
    place: Attachment,
    heads: Heads,
    head: Pid,
    /// The way to the head; none once that has closed it.
    socket: Option<OwnedFd>,
    /// Readable when a signal waits.
    signals: OwnedFd,
    kept: AllKept,
    /// The limit of open files before the guard raised its own.
    open_files: Option<Rlimit>,
    /// True if the head ends all of it in order.
    is_stopping: bool,
    /// The program that goes on when the head has ended.
    replacement: Option<Replacement>,
    /// True if the next head comes after one of another program.
    is_replaced: bool,
    /// The reason why another program does not go on that was to, for the next head.
    failure: Option<String>,
    /// Time at which the head has taken over.
    has_begun: Option<Instant>,
    /// Time since which there is no head that has taken over.
    headless_since: Option<Instant>,
    restarts: u64,
    /// Heads in a row that have ended soon after their start; and those of them that nobody has killed.
    short_lives: u32,
    own_ends: u32,
}

impl Guard {
    /// Splits the head off. None in the head.
    fn begin(place: Attachment, heads: Heads, signals: &Signals) -> io::Result<Option<Guard>> {
        let (socket, of_head) = control::pair()?;
        let Some(head) = fork_head(place, signals)? else {
            drop(socket);
            pass_to_head(Inherited {
                keeper: Keeper::of(of_head),
                kept: AllKept::new(),
                restarts: 0,
                is_replaced: false,
                failure: None,
            });
            return Ok(None);
        };
        Ok(Some(Guard {
            place,
            heads,
            head,
            socket: Some(socket),
            signals: signals.file()?,
            kept: AllKept::new(),
            open_files: None,
            is_stopping: false,
            replacement: None,
            is_replaced: false,
            failure: None,
            has_begun: None,
            headless_since: None,
            restarts: 0,
            short_lives: 0,
            own_ends: 0,
        }))
    }

    /// Does what a guard does. Returns in each further head, and ends as the last one did. `finish` is called when that has ended in another way than in order.
    fn run(mut self, signals: &Signals, finish: Box<dyn FnOnce()>) -> io::Result<()> {
        let status = 'heads: loop {
            let status = self.watch(signals);
            if let Some(replacement) = self.replacement.take().filter(|_| !self.is_stopping) {
                let error = self.become_another(&replacement);
                let executable = replacement.executable.display();
                self.failure = Some(format!(
                    "`{executable}` cannot go on in the place of this head, which goes on itself: {error}"
                ));
            }
            loop {
                if !self.may_start_another(&status, signals) {
                    break 'heads status;
                }
                match self.start_another(signals) {
                    Ok(true) => return Ok(()),
                    Ok(false) => continue 'heads,
                    // One that cannot be started counts as one that has ended.
                    Err(_) => {}
                }
            }
        };
        // The locks of the place are among what it keeps.
        drop(self);
        kill_all();
        if status.code().is_none() {
            let _ = signals.unblock();
            finish();
        }
        end_like(status)
    }

    /// Runs another program in this process, which goes on with what is kept. Returns only if it cannot.
    fn become_another(&mut self, replacement: &Replacement) -> io::Error {
        if !replacement.keeps_services {
            // They begin anew, behind the same listeners.
            let goes_on = |key: &Key| matches!(key, Key::Head | Key::Socket | Key::Front | Key::Listeners(..));
            self.kept.retain(|key, _| goes_on(key));
        }
        let files = self.kept.values().flat_map(|kept| &kept.files);
        let exec = || -> io::Result<io::Error> {
            let kept = self.kept.iter().map(|(key, kept)| {
                let files = kept.files.iter().map(AsRawFd::as_raw_fd).collect();
                Ok(KeptOver { key: serde_json::to_value(key)?, value: kept.value.clone(), files, pid: kept.pid })
            });
            let state = State {
                place: self.place,
                restarts: self.restarts,
                elapsed_ns: u64::try_from(clock().elapsed().as_nanos()).unwrap_or(u64::MAX),
                open_files: self.open_files.map(|before| (before.current, before.maximum)),
                settings: replacement.settings.clone(),
                kept: kept.collect::<io::Result<_>>()?,
            };
            let state = control::send_long(&serde_json::to_string(&state)?)?;
            rustix::io::fcntl_setfd(&state, FdFlags::empty())?;
            for file in files.clone() {
                rustix::io::fcntl_setfd(file, FdFlags::empty())?;
            }
            let mut command = Command::new(&replacement.executable);
            command.args(["head", "--go-on", &state.as_raw_fd().to_string()]);
            // SAFETY: the closure calls nothing but functions on signal sets, between which nothing else runs in this process, which has one thread.
            unsafe { command.pre_exec(|| Signals::block().map(drop)) };
            Ok(command.exec())
        };
        let error = exec().unwrap_or_else(|error| error);
        for file in files {
            let _ = rustix::io::fcntl_setfd(file, FdFlags::CLOEXEC);
        }
        error
    }

    /// Takes the state that another program has left, of which this process was the guard.
    fn of_state(file: i32, signals: &Signals) -> io::Result<Guard> {
        let state: String = control::receive_long(adopt(file)?)?;
        let state: State = serde_json::from_str(&state)?;
        let since = Duration::from_nanos(state.elapsed_ns);
        let _ = CLOCK.set(Instant::now().checked_sub(since).unwrap_or_else(Instant::now));
        let mut kept = AllKept::new();
        for KeptOver { key, value, files, pid } in state.kept {
            let files = files.into_iter().map(adopt).collect::<io::Result<_>>()?;
            // What this version does not know ends here: its files are closed, and its process is nobody's.
            if let Ok(key) = serde_json::from_value(key) {
                kept.insert(key, Kept { value, files, pid });
            }
        }
        let settings: HeadSettings = serde_json::from_slice(&fs::read(&state.settings)?)?;
        let head = kept.get_mut(&Key::Head).and_then(|head| head.files.first_mut());
        *head.ok_or_else(|| io::Error::other("the session was not kept"))? = control::send_long(&settings)?;
        let _ = fs::remove_file(&state.settings);
        Ok(Guard {
            place: state.place,
            heads: Heads::OneAfterAnother,
            head: getpid(),
            socket: None,
            signals: signals.file()?,
            kept,
            open_files: state.open_files.map(|(current, maximum)| Rlimit { current, maximum }),
            is_stopping: false,
            replacement: None,
            is_replaced: true,
            failure: None,
            has_begun: None,
            headless_since: None,
            restarts: state.restarts,
            short_lives: 0,
            own_ends: 0,
        })
    }

    /// Splits the next head off. True in that head.
    fn start_another(&mut self, signals: &Signals) -> io::Result<bool> {
        let (socket, of_head) = control::pair()?;
        self.restarts += 1;
        let guard = getpid();
        let forked = fork_head(self.place, signals).inspect_err(|_| {
            if getpid() != guard {
                // SAFETY: it ends this copy of the guard at once, which nobody guards.
                unsafe { libc::_exit(1) }
            }
        });
        let Some(head) = forked? else {
            drop((socket, self.socket.take()));
            if let Some(before) = self.open_files.take() {
                // The head finds what it was allowed, as the first one did.
                let _ = setrlimit(Resource::Nofile, before);
            }
            pass_to_head(Inherited {
                keeper: Keeper::of(of_head),
                kept: std::mem::take(&mut self.kept),
                restarts: self.restarts,
                is_replaced: self.is_replaced,
                failure: self.failure.take(),
            });
            return Ok(true);
        };
        (self.is_replaced, self.failure) = (false, None);
        self.head = head;
        self.socket = Some(socket);
        Ok(false)
    }

    /// Passes signals on to the head, keeps what it says, and ends what nobody has, until the head has ended.
    fn watch(&mut self, signals: &Signals) -> ExitStatus {
        use std::os::unix::process::ExitStatusExt;
        loop {
            if let Ok(Some((_, status))) = waitpid(Some(self.head), WaitOptions::NOHANG) {
                // What it has said before it died counts.
                while self.hear() {}
                return ExitStatus::from_raw(status.as_raw());
            }
            self.end_strays();
            let left = self.headless_since.map(|since| head_limit().saturating_sub(since.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                let _ = kill_process(self.head, Signal::KILL);
            }
            let (has_signal, has_message) = self.wait(left.filter(|left| !left.is_zero()));
            while has_message && self.hear() {}
            if has_signal
                && let signal @ 1.. = signals.next(&self.signals)
                && signal != libc::SIGCHLD
                && let Some(signal) = Signal::from_named_raw(signal)
            {
                let _ = kill_process(self.head, signal);
            }
        }
    }

    /// Waits until there is a signal or a message, or the time is up.
    fn wait(&self, limit: Option<Duration>) -> (bool, bool) {
        let limit = limit.map(|limit| Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        let mut files = vec![PollFd::new(&self.signals, PollFlags::IN)];
        files.extend(self.socket.as_ref().map(|socket| PollFd::new(socket, PollFlags::IN)));
        let is_ready = |file: Option<&PollFd<'_>>| file.is_some_and(|file| !file.revents().is_empty());
        match poll(&mut files, limit.as_ref()) {
            Ok(_) => (is_ready(files.first()), is_ready(files.get(1))),
            Err(_) => (false, false),
        }
    }

    /// Takes a message of the head. False when there is none now.
    fn hear(&mut self) -> bool {
        let Some(socket) = &self.socket else { return false };
        if !is_readable(socket, Duration::ZERO) {
            return false;
        }
        match control::receive::<ToGuard>(socket) {
            Ok(Some((message, files))) => {
                self.follow(message, files);
                true
            }
            // The head has closed it, or says what no head says.
            Ok(None) | Err(_) => {
                self.socket = None;
                false
            }
        }
    }

    fn follow(&mut self, message: ToGuard, files: Vec<OwnedFd>) {
        match message {
            ToGuard::Keep { key, value } => {
                self.raise_open_files();
                // Those of a process are its own.
                let before = self.kept.remove(&key).unwrap_or_default();
                let (files, pid) = if before.pid.is_some() { (before.files, before.pid) } else { (files, None) };
                self.kept.insert(key, Kept { value, files, pid });
            }
            ToGuard::Forget { key } => {
                if self.kept.remove(&key).is_some_and(|kept| kept.pid.is_some()) {
                    self.end_strays();
                }
            }
            ToGuard::Start { process, value } => {
                self.raise_open_files();
                let (answer, files) = match self.start(process, value, files) {
                    Ok((pid, files)) => (Ok(pid), files),
                    Err(error) => (Err(error.to_string()), Vec::new()),
                };
                self.answer(&FromGuard::Started(answer), &files);
            }
            ToGuard::HowEnded { process } => {
                let pid = self.kept.get(&Key::Process(process)).and_then(|kept| pid_of(kept.pid));
                self.answer(&FromGuard::Ended(pid.and_then(children::ended_status)), &[]);
            }
            ToGuard::HasBegun => {
                self.has_begun = Some(Instant::now());
                self.headless_since = None;
            }
            ToGuard::Stops => self.is_stopping = true,
            ToGuard::Replace(replacement) => self.replacement = Some(replacement),
        }
    }

    fn answer(&self, answer: &FromGuard, files: &[OwnedFd]) {
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        if let Some(socket) = &self.socket {
            // A head that is gone needs no answer.
            let _ = control::send(socket, answer, &files);
        }
    }

    /// Starts a process of a service, and keeps it. Returns its pid, and files for the head.
    fn start(&mut self, process: u64, value: Vec<u8>, files: Vec<OwnedFd>) -> io::Result<(u32, Vec<OwnedFd>)> {
        let [order, own, of_head] =
            <[OwnedFd; 3]>::try_from(files).map_err(|_| io::Error::other("expected an order and two sockets"))?;
        let order: StartOrder = control::receive_long(order)?;
        let mut command = order.command(Command::new);
        command.process_group(0).stdin(Stdio::from(own)).stdout(Stdio::piped()).stderr(Stdio::piped());
        // SAFETY: the closure calls nothing but `pthread_sigmask`, which a forked process may call; it takes the guard's signals off the mask.
        unsafe { command.pre_exec(unblock_all) };
        let mut child = command
            .spawn()
            .map_err(|error| io::Error::new(error.kind(), format!("`{}`: {error}", command.get_program().display())))?;
        let pid = Pid::from_child(&child);
        let set_up = || -> io::Result<Vec<OwnedFd>> {
            let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
            let missing = || io::Error::other("it has no outputs");
            let stdout: OwnedFd = child.stdout.take().ok_or_else(missing)?.into();
            let stderr: OwnedFd = child.stderr.take().ok_or_else(missing)?.into();
            Ok(vec![pidfd, stdout, stderr])
        };
        // One that cannot be set up is not kept, and is ended as such.
        let files = { set_up }()?;
        let for_head = files.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
        let kept = std::iter::once(of_head).chain(files).collect();
        let number = pid.as_raw_nonzero().get().unsigned_abs();
        self.kept.insert(Key::Process(process), Kept { value, files: kept, pid: Some(number) });
        Ok((number, for_head))
    }

    /// Lets this process have as many files open as the system allows: it has those of every process of a service.
    fn raise_open_files(&mut self) {
        if self.open_files.is_none() {
            let before = getrlimit(Resource::Nofile);
            let raised = Rlimit { current: before.maximum, maximum: before.maximum };
            self.open_files = setrlimit(Resource::Nofile, raised).ok().map(|()| before);
        }
    }

    /// Kills children that are neither the head nor kept: what dead processes have left.
    fn end_strays(&self) {
        let kept: Vec<_> = self.kept.values().filter_map(|kept| pid_of(kept.pid)).collect();
        for child in children::of_this_process() {
            if child != self.head && !kept.contains(&child) {
                let _ = kill_process(child, Signal::KILL);
                // Its end wakes the guard, if it is not gone by now.
                children::reap(child);
            }
        }
    }

    /// Decides whether another head comes after one that has ended so, and waits until it may.
    fn may_start_another(&mut self, status: &ExitStatus, signals: &Signals) -> bool {
        use std::os::unix::process::ExitStatusExt;
        let lived = self.has_begun.take().map(|begun| begun.elapsed());
        let has_processes = self.kept.keys().any(|key| matches!(key, Key::Process(_)));
        let is_wanted = has_processes || self.failure.is_some();
        if self.heads == Heads::One || self.is_stopping || !is_wanted || !self.kept.contains_key(&Key::Head) {
            return false;
        }
        let since = *self.headless_since.get_or_insert_with(Instant::now);
        let is_short = lived.is_none_or(|lived| lived < LONG_LIFE);
        self.short_lives = if is_short { self.short_lives + 1 } else { 0 };
        let is_own = status.signal() != Some(libc::SIGKILL);
        self.own_ends = if is_short && is_own { self.own_ends + 1 } else { 0 };
        if since.elapsed() >= head_limit() || self.own_ends > OWN_ENDS_LIMIT {
            return false;
        }
        self.pause(signals)
    }

    /// Decides whether a head that could not be started is tried again, and waits until then.
    fn may_try_again(&mut self, signals: &Signals) -> bool {
        let since = *self.headless_since.get_or_insert_with(Instant::now);
        self.short_lives += 1;
        since.elapsed() < head_limit() && self.pause(signals)
    }

    /// Waits for longer the more heads have ended soon after their start. False if it is to end meanwhile.
    fn pause(&mut self, signals: &Signals) -> bool {
        let pause = (PAUSE * self.short_lives.saturating_sub(1)).min(PAUSE_LIMIT);
        let until = Instant::now() + pause;
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            self.end_strays();
            if self.wait(Some(left)).0 && !matches!(signals.next(&self.signals), 0 | libc::SIGCHLD) {
                return false;
            }
        }
        true
    }
}

/// Splits a head off. None in the head.
fn fork_head(place: Attachment, signals: &Signals) -> io::Result<Option<Pid>> {
    let guard = getpid();
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
            Ok(None)
        }
        head => Ok(Some(Pid::from_raw(head).expect("fork returns a process id"))),
    }
}

fn pass_to_head(inherited: Inherited) {
    *lock(&INHERITED) = Some(inherited);
}

/// Takes a file that another program has left open in this process.
fn adopt(file: i32) -> io::Result<OwnedFd> {
    // SAFETY: asking for the flags of a number that is no open file is an error, and nothing else.
    if unsafe { libc::fcntl(file, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, it was left open for this process alone, and each number is adopted once.
    let file = unsafe { OwnedFd::from_raw_fd(file) };
    rustix::io::fcntl_setfd(&file, FdFlags::CLOEXEC)?;
    Ok(file)
}

/// State of a guard whose process goes on as another program, in JSON. As with an [order](tracer_ipc::protocol::order), fields are added, and none changes its
/// meaning.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    place: Attachment,
    restarts: u64,
    /// Time since the [clock](clock) began, in nanoseconds.
    #[serde(default)]
    elapsed_ns: u64,
    /// The limits of open files that a head finds, current and maximum, if the guard has raised its own.
    #[serde(default)]
    open_files: Option<(Option<u64>, Option<u64>)>,
    /// The file with the settings of the next head.
    settings: PathBuf,
    kept: Vec<KeptOver>,
}

/// Something that is [kept](Kept) while the guard becomes another program.
#[derive(Debug, Serialize, Deserialize)]
struct KeptOver {
    /// Its [`Key`], of which another version may know fewer.
    key: serde_json::Value,
    value: Vec<u8>,
    files: Vec<i32>,
    pid: Option<u32>,
}

fn pid_of(pid: Option<u32>) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid?).ok()?)
}

/// Returns the set of no signals.
fn no_signals() -> libc::sigset_t {
    // SAFETY: the set is plain memory, which is filled in before it is returned.
    unsafe {
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        none
    }
}

/// Takes all signals off the mask of a process that is about to run another program.
fn unblock_all() -> io::Result<()> {
    // SAFETY: the set is plain memory, which is filled in before it is read.
    unsafe {
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        match libc::pthread_sigmask(libc::SIG_SETMASK, &none, std::ptr::null_mut()) {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
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
    let code = status.code().unwrap_or_else(|| tracer_core::exit::from_signal(status.signal().unwrap_or(0)).into());
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

    /// Returns a descriptor that is readable while a signal waits.
    fn file(&self) -> io::Result<OwnedFd> {
        // SAFETY: the set was filled in by `block`; what is returned is a new descriptor, or -1.
        let file = unsafe { libc::signalfd(-1, &self.awaited, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made it, and nobody else has it.
        Ok(unsafe { OwnedFd::from_raw_fd(file) })
    }

    /// Lets all through that were let through before.
    fn unblock(&self) -> io::Result<()> {
        // SAFETY: the set was filled in by `block`.
        match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Takes the next signal; 0 when none waits.
    fn next(&self, file: &OwnedFd) -> i32 {
        let mut bytes = [0; size_of::<libc::signalfd_siginfo>()];
        match rustix::io::read(file, &mut bytes) {
            // The number is the first field.
            Ok(4..) => i32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            _ => 0,
        }
    }
}
