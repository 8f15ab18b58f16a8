//! A head for the life of the program: a child process, in a place of its own.
//!
//! The program holds the one end of a pipe whose other end is the head's standard input. However the program ends, the kernel closes it,
//! and the head ends with all that is below it. The head is in a session of its own, so a Ctrl-C in the terminal reaches the program alone.

use std::fs::{self, DirBuilder};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::init::InitError;
use tracer_core::task::describe_exit;
use tracer_ipc::environment;
use tracer_ipc::start_report::Report;

/// The environment variable that names the executable of tracer.
pub const EXECUTABLE_VARIABLE: &str = "TRACER_EXECUTABLE";
/// Time within which a head must end that nobody needs any more.
pub(super) const END_LIMIT: Duration = Duration::from_secs(10);
/// Name of the executable.
const EXECUTABLE: &str = "tracer";

/// A running head that ends with this program.
#[derive(Debug)]
pub(super) struct Embedded {
    /// The guard above the head. Its standard input is what keeps it.
    child: Child,
    executable: PathBuf,
    place: PathBuf,
    session_dir: PathBuf,
    has_ended: bool,
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.end(END_LIMIT, false);
    }
}

impl Embedded {
    /// Starts a head with these arguments of `tracer start`, and waits until its workers are ready.
    pub(super) fn start(executable: Option<&Path>, arguments: &[std::ffi::OsString]) -> Result<Embedded, InitError> {
        let executable = find(executable)?;
        let place = make_place().map_err(|source| InitError::Place { source })?;
        let started = Embedded::start_in(&executable, &place, arguments);
        if started.is_err() {
            let _ = fs::remove_dir_all(&place);
        }
        started
    }

    fn start_in(executable: &Path, place: &Path, arguments: &[std::ffi::OsString]) -> Result<Embedded, InitError> {
        let not_started = |reason: String| InitError::NotStarted { executable: executable.into(), reason };
        let mut child = Command::new(executable)
            .args(["start", "--head", "--embedded", "--temp-dir"])
            .arg(place)
            .args(arguments)
            // So that a `tracer` that a task runs finds this head.
            .env(environment::TEMP_DIR_VARIABLE, place)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // What a hook itself has to say is for the user.
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(|error| not_started(error.to_string()))?;
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        let read = BufReader::new(stdout).read_line(&mut line);
        let report = read.ok().and_then(|_| serde_json::from_str(&line).ok());
        match report {
            Some(Report::Started(started)) if started.no_worker.is_none() => {
                let (executable, place) = (executable.into(), place.into());
                Ok(Embedded { child, executable, place, session_dir: started.session_dir, has_ended: false })
            }
            Some(Report::Started(started)) => {
                let _ = child.wait();
                Err(not_started(started.no_worker.unwrap_or_default()))
            }
            Some(Report::Refused { message, .. }) => {
                let _ = child.wait();
                Err(not_started(message))
            }
            None => {
                drop(child.stdin.take());
                let cause = child.wait().map_or_else(|error| error.to_string(), |status| describe_exit(status).0);
                Err(not_started(format!("it {cause} before it was ready")))
            }
        }
    }

    pub(super) fn session_dir(&self) -> &Path {
        &self.session_dir
    }

    /// Lets go of the head, and waits until it has ended and nothing is left of it. After `limit` it is killed. Its place stays
    /// if spans wait there for an exporter.
    pub(super) fn end(&mut self, limit: Duration, keeps_place: bool) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        drop(self.child.stdin.take());
        let deadline = Instant::now() + limit;
        if !ends_until(&mut self.child, deadline) {
            // The guard; the head and its workers end with it.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if !keeps_place && self.place.exists() {
            // The head removes its place itself, unless it was killed. Then spans of its processes may be in there that nobody has finished.
            self.finish_place();
        }
    }

    /// Has what a dead head left finished, and its place removed; it stays when that fails, or when spans wait there for an exporter.
    fn finish_place(&self) {
        let finished = Command::new(&self.executable)
            .arg("finish-place")
            .arg(&self.place)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn();
        if let Ok(mut child) = finished
            && !ends_until(&mut child, Instant::now() + END_LIMIT)
        {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub(super) fn place(&self) -> &Path {
        &self.place
    }
}

/// Waits for the end of a child. False if that did not come in time.
fn ends_until(child: &mut Child, deadline: Instant) -> bool {
    let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty());
    loop {
        match child.try_wait() {
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => return true,
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok(pidfd) = &pidfd else { return child.wait().is_ok() };
        if left.is_zero() {
            return false;
        }
        let timeout =
            Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() };
        let _ = poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&timeout));
    }
}

/// Returns a folder that only this user can enter, and that nobody else has.
fn make_place() -> io::Result<PathBuf> {
    loop {
        let name = tracer_host::hook::random::<8>().map(|byte| format!("{byte:02x}")).concat();
        let place = std::env::temp_dir().join(format!("tracer-embedded-{name}"));
        match DirBuilder::new().mode(0o700).create(&place) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => return other.map(|()| place),
        }
    }
}

/// Finds the executable of tracer: what was said, what the environment says, beside this program, on the `PATH`.
fn find(said: Option<&Path>) -> Result<PathBuf, InitError> {
    let variable = std::env::var_os(EXECUTABLE_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
    // What was said counts alone: another version in its place would be a riddle.
    if let Some(path) = said.map(Path::to_path_buf).or(variable) {
        return if is_executable(&path) { Ok(path) } else { Err(InitError::NoExecutable { looked: vec![path] }) };
    }
    let own = std::env::current_exe().ok();
    let beside = own.as_deref().and_then(Path::parent);
    // Tests and examples are in a folder below the one of the programs.
    let below = beside.filter(|folder| ["deps", "examples"].iter().any(|name| folder.ends_with(name)));
    let folders = beside.into_iter().chain(below.and_then(Path::parent)).map(Path::to_path_buf);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let looked: Vec<PathBuf> =
        folders.chain(std::env::split_paths(&path)).map(|folder| folder.join(EXECUTABLE)).collect();
    match looked.iter().find(|path| is_executable(path)) {
        Some(found) => Ok(found.clone()),
        None => Err(InitError::NoExecutable { looked }),
    }
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_executable_that_was_named_is_the_only_one_that_counts() {
        assert_eq!(find(Some(Path::new("/bin/sh"))).expect("there is a shell"), Path::new("/bin/sh"));
        let text = tempfile::NamedTempFile::new().expect("a file that nobody may execute");
        for wrong in [Path::new("/no/such/tracer"), text.path(), Path::new("/bin")] {
            let error = find(Some(wrong)).expect_err("that is no executable").to_string();
            assert!(
                error.contains(&format!("`{}`", wrong.display())) && error.contains(EXECUTABLE_VARIABLE),
                "{error}"
            );
        }
    }

    #[test]
    fn every_place_is_private_and_new() {
        let (one, other) = (make_place().expect("a place"), make_place().expect("a place"));
        assert_ne!(one, other);
        for place in [one, other] {
            assert_eq!(fs::metadata(&place).expect("it is there").permissions().mode() & 0o777, 0o700);
            fs::remove_dir(place).expect("it is empty");
        }
    }
}
