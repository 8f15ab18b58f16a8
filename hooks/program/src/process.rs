//! The program's process: in the group of its replica, so that whoever ends the group ends it too.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, waitid};

/// Variable that says which spans an OpenTelemetry SDK records.
const SAMPLER: &str = "OTEL_TRACES_SAMPLER";
/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// Pause between two looks at whether it has ended.
const LOOK: Duration = Duration::from_millis(5);
/// Lines of its errors that a refusal shows.
const LINES: usize = 10;
/// The next step where a program is in no folder of `PATH`.
const MISSING: &str = "\n(hint: a program is looked for in the PATH that the head was started with; a service file gives its path, or `env = { PATH = \"…\" }`, and `tracer serve run` \
                       passes the PATH of its shell on)";
/// Bytes of a line that are passed on at once.
const LINE_LIMIT: u64 = 64 << 10;
/// Time in which the last lines of a program that has ended are read.
const READING: Duration = Duration::from_millis(500);

/// A program that runs. It is ended when this is dropped.
pub(crate) struct Process {
    name: String,
    pid: Pid,
    shared: Arc<Shared>,
}

/// The end of a program, for whoever has seen that a connection to it has broken.
pub(crate) struct End(Arc<Shared>);

impl End {
    /// Returns if the program still runs after this time. If it has ended, the replica is about to end in the same way, and so does whatever waits.
    pub(crate) async fn wait_if_it_has_come(&self, limit: Duration) {
        for _ in 0..limit.as_millis() / LOOK.as_millis() {
            if self.0.state().end.is_some() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    end: Option<ExitStatus>,
    /// True from its first answer until it is to end: then its end is that of the replica.
    serves: bool,
    has_read_all: bool,
    lines: VecDeque<String>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    /// Waits until `is_so`, for a limited time.
    fn wait(&self, limit: Duration, is_so: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let waited = self.changed.wait_timeout_while(self.state(), limit, |state| !is_so(state));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Process {
    /// Starts a program. Its output is that of the replica.
    pub(crate) fn start(command: &[String], variables: &BTreeMap<String, String>) -> Result<Process, String> {
        let (program, arguments) = command.split_first().ok_or("`command` is empty")?;
        let name = format!("`{program}`");
        let mut started = Command::new(program);
        started.args(arguments).envs(variables).stdin(Stdio::null()).stderr(Stdio::piped());
        let is_set = |sampler: &std::ffi::OsStr| !sampler.is_empty();
        if !variables.contains_key(SAMPLER) && !std::env::var_os(SAMPLER).as_deref().is_some_and(is_set) {
            // The default of the specification; the SDKs of Deno and Next.js record what a request's context does not want if nothing is set.
            started.env(SAMPLER, "parentbased_always_on");
        }
        let mut child = started.spawn().map_err(|error| {
            let is_missing = error.kind() == io::ErrorKind::NotFound && !program.contains('/');
            let hint = if is_missing { MISSING } else { "" };
            format!("{name} could not be started: {error}{hint}")
        })?;
        let pid = Pid::from_child(&child);
        let shared = Arc::new(Shared::default());
        if let Some(errors) = child.stderr.take() {
            let shared = Arc::clone(&shared);
            thread::spawn(move || pass_on(errors, &shared));
        }
        let (watched, of) = (Arc::clone(&shared), name.clone());
        thread::spawn(move || watch(child, pid, &of, &watched));
        Ok(Process { name, pid, shared })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Notes that the program answers.
    pub(crate) fn serves(&self) {
        self.shared.change(|state| state.serves = true);
    }

    /// Returns what waits for its end.
    pub(crate) fn end(&self) -> End {
        End(Arc::clone(&self.shared))
    }

    /// Returns how it ended, with the last lines of its errors, if it did.
    pub(crate) fn has_ended(&self) -> Option<String> {
        let end = self.shared.state().end?;
        drop(self.shared.wait(READING, |state| state.has_read_all));
        Some(format!("{} {}{}", self.name, in_words(end), self.last_lines()))
    }

    /// Returns the last lines of its errors, for a sentence that goes on after them.
    pub(crate) fn last_lines(&self) -> String {
        let state = self.shared.state();
        match state.lines.is_empty() {
            true => String::new(),
            false => format!(" (its last lines: {})", Vec::from_iter(state.lines.iter().cloned()).join(" | ")),
        }
    }

    fn signal(&self, signal: Signal) {
        let state = self.shared.state();
        if state.end.is_none() {
            // Not reaped while the state is locked, so the pid is its own.
            let _ = kill_process(self.pid, signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.shared.change(|state| state.serves = false);
        for signal in [Signal::TERM, Signal::KILL] {
            self.signal(signal);
            if self.shared.wait(GRACE, |state| state.end.is_some()).end.is_some() {
                return;
            }
        }
    }
}

/// Waits for the end of the program. A replica whose program is gone while it serves ends in the same way.
fn watch(mut child: Child, pid: Pid, name: &str, shared: &Shared) {
    // Left to be reaped: until then nobody else has its number.
    while let Err(rustix::io::Errno::INTR) = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {}
    let mut state = shared.state();
    let Ok(end) = child.wait() else { return };
    state.end = Some(end);
    let serves = state.serves;
    drop(state);
    shared.changed.notify_all();
    if serves {
        drop(shared.wait(READING, |state| state.has_read_all));
        say(&format!("tracer: {name} {} while it served", in_words(end)));
        end_as(end);
    }
}

/// Ends this process as its program has ended.
fn end_as(end: ExitStatus) -> ! {
    if let Some(signal) = end.signal().and_then(Signal::from_named_raw) {
        let _ = kill_process(getpid(), signal);
    }
    std::process::exit(end.code().filter(|code| *code != 0).unwrap_or(1))
}

fn in_words(end: ExitStatus) -> String {
    match (end.code(), end.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, signal) => format!("was ended by signal {}", signal.unwrap_or_default()),
    }
}

/// Passes the program's errors on by lines, and remembers the last ones.
fn pass_on(errors: ChildStderr, shared: &Shared) {
    let mut reader = BufReader::new(errors);
    let mut line = Vec::new();
    while reader.by_ref().take(LINE_LIMIT).read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        // Nothing can be done for a replica whose output nobody takes.
        let _ = std::io::stderr().lock().write_all(&line);
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        line.clear();
        if !text.is_empty() {
            let mut state = shared.state();
            if state.lines.len() == LINES {
                state.lines.pop_front();
            }
            state.lines.push_back(text);
        }
    }
    shared.change(|state| state.has_read_all = true);
}

/// Writes a line to the replica's log.
pub(crate) fn say(line: &str) {
    eprintln!("{line}");
}
