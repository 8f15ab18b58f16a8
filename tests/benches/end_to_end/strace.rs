//! System calls of a process that runs, as strace counts them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::Failure;

/// Calls by their names, and how often each was made.
pub(crate) type Calls = BTreeMap<String, u64>;

/// A worker asks for what a task has used if that has run for long, as every task does under strace.
const NOT_COUNTED: &str = "getrusage";

/// Returns the reason why nothing can be counted, if there is one.
pub(crate) fn obstacle() -> Option<Failure> {
    let attempt = || {
        let folder = tempfile::tempdir()?;
        // Ends with its input.
        let mut cat = Command::new("cat").stdin(Stdio::piped()).spawn()?;
        let counted = Counter::attach(cat.id(), &folder.path().join("cat")).and_then(Counter::finish);
        cat.wait()?;
        counted
    };
    attempt().err()
}

/// The strace of a process that runs.
pub(crate) struct Counter {
    strace: Child,
    table: PathBuf,
    /// Standard error of strace, which is kept open: writing to a closed one must not kill it.
    _stderr: BufReader<ChildStderr>,
}

impl Counter {
    /// Returns when every call counts.
    pub(crate) fn attach(pid: u32, table: &Path) -> Result<Counter, Failure> {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-c", "-p", &pid.to_string(), "-o"]).arg(table);
        let strace = strace.stdin(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut strace = strace.map_err(|error| format!("strace: {error} (hint: apt-get install strace)"))?;
        let mut said = String::new();
        let mut stderr = BufReader::new(strace.stderr.take().ok_or("no pipe")?);
        stderr.read_line(&mut said)?;
        let counter = Counter { strace, table: table.into(), _stderr: stderr };
        if said.contains(" attached") {
            return Ok(counter);
        }
        Err(format!("strace cannot attach to process {pid}: {}", said.trim()).into())
    }

    /// Returns the calls since then.
    pub(crate) fn finish(mut self) -> Result<Calls, Failure> {
        self.interrupt();
        self.strace.wait()?;
        read(&self.table)
    }

    /// Asks strace to leave the process alone.
    fn interrupt(&self) {
        // An error means that it has ended.
        let _ = kill_process(Pid::from_child(&self.strace), Signal::INT);
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        if let Ok(None) = self.strace.try_wait() {
            self.interrupt();
            let _ = self.strace.wait();
        }
    }
}

/// Reads the table of `strace -c`: for each call a line that ends with its count, the errors if there were any, and its name.
pub(crate) fn read(table: &Path) -> Result<Calls, Failure> {
    let text = fs::read_to_string(table)?;
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let calls = lines.filter_map(|words| match words[..] {
        [.., "total" | NOT_COUNTED] => None,
        [_, _, _, count, .., name] => Some((name.to_owned(), count.parse().ok()?)),
        _ => None,
    });
    Ok(calls.collect())
}
