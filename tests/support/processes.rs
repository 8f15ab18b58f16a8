//! Processes as the kernel shows them. They are found by a variable in their environment, which everything that a test starts
//! inherits, however many processes are in between; never by name.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// The variable that names the folder of the test that started a process.
pub(super) const FOLDER_VARIABLE: &str = "TEST_FOLDER";

/// A running process.
#[derive(Clone, Debug)]
pub struct Process {
    pub pid: u32,
    /// Its command line, separated by blanks.
    pub command: String,
}

/// Returns the processes that the test of `folder` has started, directly or not, and that have not ended.
pub(super) fn of_folder(folder: &Path) -> Vec<Process> {
    let entry = [FOLDER_VARIABLE.as_bytes(), b"=", folder.as_os_str().as_bytes()].concat();
    let pids = fs::read_dir("/proc").into_iter().flatten().filter_map(|entry| pid_of(&entry.ok()?.file_name()));
    pids.filter_map(|pid| {
        // A zombie has no environment any more, which is right: it has ended.
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        environment
            .split(|&byte| byte == 0)
            .any(|variable| variable == entry)
            .then(|| Process { pid, command: command_of(pid) })
    })
    .collect()
}

fn pid_of(name: &OsStr) -> Option<u32> {
    name.to_str()?.parse().ok()
}

fn command_of(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim_end_matches('\0').replace('\0', " ")
}

fn to_pid(pid: u32) -> Pid {
    i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id")
}

/// Returns whether a process runs. One that has ended and was not reaped does not.
pub fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let is_zombie = stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'));
    test_kill_process(to_pid(pid)).is_ok() && !is_zombie
}

/// Sends a signal to a process that runs.
#[track_caller]
pub fn kill(pid: u32, signal: Signal) {
    kill_process(to_pid(pid), signal).unwrap_or_else(|error| panic!("{signal:?} for process {pid}: {error}"));
}

/// Sends a signal to a process of a list that may be older than the process's death. Returns whether it was still there.
#[track_caller]
pub fn kill_if_there(pid: u32, signal: Signal) -> bool {
    match kill_process(to_pid(pid), signal) {
        Ok(()) => true,
        Err(rustix::io::Errno::SRCH) => false,
        Err(error) => panic!("{signal:?} for process {pid}: {error}"),
    }
}

pub(super) fn try_kill(pid: u32, signal: Signal) {
    let _ = kill_process(to_pid(pid), signal);
}
