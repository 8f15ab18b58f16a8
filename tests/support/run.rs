//! A command that was run, or runs.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Output};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::processes;
use super::wait::{DEADLINE, wait_until, wait_until_within};

/// Result of a command: its exit status and outputs, with verbs to check them.
#[derive(Clone)]
pub struct Run {
    pub(super) command: String,
    /// Placeholders of the folder of the test and of the executable when outputs are compared.
    pub(super) places: Vec<(PathBuf, &'static str)>,
    pub output: Output,
}

impl Run {
    /// Returns its standard output as text.
    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }

    /// Returns its standard error as text.
    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    /// Returns its standard output as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.output.stdout)
            .unwrap_or_else(|error| panic!("standard output is not JSON: {error}\n{}", self.describe()))
    }

    /// Expects exit code 0.
    #[track_caller]
    pub fn success(self) -> Run {
        self.status(0)
    }

    /// Expects an exit code.
    #[track_caller]
    pub fn status(self, code: i32) -> Run {
        assert_eq!(self.output.status.code(), Some(code), "expected exit code {code}\n{}", self.describe());
        self
    }

    /// Expects all of standard output. See [`Run::normalized`] for what is replaced before.
    #[track_caller]
    pub fn stdout(self, expected: &str) -> Run {
        assert_eq!(self.normalized(&self.stdout_text()), expected, "standard output is another\n{}", self.describe());
        self
    }

    /// Expects all of standard error. See [`Run::normalized`] for what is replaced before.
    #[track_caller]
    pub fn stderr(self, expected: &str) -> Run {
        assert_eq!(self.normalized(&self.stderr_text()), expected, "standard error is another\n{}", self.describe());
        self
    }

    /// Expects a part of standard output.
    #[track_caller]
    pub fn stdout_contains(self, part: &str) -> Run {
        let is_in = self.normalized(&self.stdout_text()).contains(part) || self.stdout_text().contains(part);
        assert!(is_in, "standard output does not contain `{part}`\n{}", self.describe());
        self
    }

    /// Expects a part of standard error.
    #[track_caller]
    pub fn stderr_contains(self, part: &str) -> Run {
        let is_in = self.normalized(&self.stderr_text()).contains(part) || self.stderr_text().contains(part);
        assert!(is_in, "standard error does not contain `{part}`\n{}", self.describe());
        self
    }

    /// Returns the text with `<folder>`, `<bin>`, `<session>`, `<pid>`, `<trace>` and `<time>` for what differs from run to run.
    pub fn normalized(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (place, name) in &self.places {
            text = text.replace(&place.display().to_string(), name);
        }
        normalize_words(&text)
    }

    /// Returns a description of the run, for a message.
    pub fn describe(&self) -> String {
        format!(
            "$ {}\n{}\n--- standard output\n{}\n--- standard error\n{}\n---",
            self.command,
            describe_status(self.output.status),
            self.stdout_text(),
            self.stderr_text()
        )
    }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.describe())
    }
}

fn describe_status(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, signal) => format!("killed by signal {}", signal.unwrap_or(0)),
    }
}

/// Replaces the words whose form says that they differ from run to run.
fn normalize_words(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let is_word = |character: char| character.is_ascii_alphanumeric();
        let end = rest.find(|character| !is_word(character)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        let is_number = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
        if is_number && (out.ends_with("pid ") || out.ends_with("pid=")) {
            out.push_str("<pid>");
        } else if word.len() == 32 && word.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            out.push_str("<trace>");
        } else if is_number && word.len() == 19 && after.starts_with('-') {
            // A session is named by its start in nanoseconds and the pid of its head.
            out.push_str("<session>");
            rest = after[1..].trim_start_matches(|character: char| character.is_ascii_digit());
            continue;
        } else {
            out.push_str(word);
        }
        let separator = after.chars().next().map_or(0, char::len_utf8);
        out.push_str(&after[..separator]);
        rest = &after[separator..];
    }
    out
}

/// A command that runs while the test goes on. Dropped, it is killed.
pub struct Background {
    pub(super) child: Child,
    command: String,
    places: Vec<(PathBuf, &'static str)>,
    stdout: Arc<Mutex<Vec<u8>>>,
    stderr: Arc<Mutex<Vec<u8>>>,
    readers: Vec<JoinHandle<()>>,
}

impl Background {
    pub(super) fn new(mut child: Child, command: String, places: Vec<(PathBuf, &'static str)>) -> Background {
        let mut readers = Vec::new();
        let mut collect = |pipe: Option<Box<dyn Read + Send>>| {
            let bytes = Arc::new(Mutex::new(Vec::new()));
            let shared = Arc::clone(&bytes);
            let mut pipe = pipe.expect("it is piped");
            readers.push(std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(count @ 1..) = pipe.read(&mut buffer) {
                    shared.lock().expect("no reader panics").extend_from_slice(&buffer[..count]);
                }
            }));
            bytes
        };
        let stdout = collect(child.stdout.take().map(|pipe| Box::new(pipe) as _));
        let stderr = collect(child.stderr.take().map(|pipe| Box::new(pipe) as _));
        Background { child, command, places, stdout, stderr, readers }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns what it has written to standard output so far.
    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout.lock().expect("no reader panics")).into_owned()
    }

    /// Returns what it has written to standard error so far.
    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr.lock().expect("no reader panics")).into_owned()
    }

    /// Waits until it has written `part` to standard output.
    #[track_caller]
    pub fn wait_for_stdout(&self, part: &str) {
        wait_until(&format!("`{}` writes `{part}` to standard output", self.command), || {
            self.stdout_text().contains(part).then_some(())
        });
    }

    /// Waits until it has written `part` to standard error.
    #[track_caller]
    pub fn wait_for_stderr(&self, part: &str) {
        wait_until(&format!("`{}` writes `{part}` to standard error", self.command), || {
            self.stderr_text().contains(part).then_some(())
        });
    }

    /// Takes its standard input, of a command that was given a pipe for that.
    #[track_caller]
    pub fn take_stdin(&mut self) -> std::process::ChildStdin {
        self.child.stdin.take().expect("its standard input is a pipe")
    }

    /// Returns whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends it a signal.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        processes::kill(self.pid(), signal);
    }

    /// Waits for its end.
    #[track_caller]
    pub fn wait(self) -> Run {
        self.wait_within(DEADLINE)
    }

    /// Waits for its end, as long as a program that works long needs on a busy machine.
    #[track_caller]
    pub fn wait_within(mut self, limit: Duration) -> Run {
        let status = wait_until_within(limit, &format!("`{}` ends", self.command), || {
            self.child.try_wait().expect("it can be waited for")
        });
        // A process that it left behind may hold its outputs open; what has come by then is enough.
        wait_until(&format!("the outputs of `{}` are closed", self.command), || {
            self.readers.iter().all(JoinHandle::is_finished).then_some(())
        });
        let take = |bytes: &Mutex<Vec<u8>>| bytes.lock().expect("no reader panics").clone();
        let output = Output { status, stdout: take(&self.stdout), stderr: take(&self.stderr) };
        Run { command: self.command.clone(), places: self.places.clone(), output }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            eprintln!("$ {} &\n{}{}", self.command, self.stdout_text(), self.stderr_text());
        }
    }
}
