//! A head with its workers, in a folder of its own.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::modules::{build_modules, fixture_folder, module_folder};
use super::network::in_network_of;
use super::processes::{self, Process};
use super::run::{Background, Run};
use super::spans::Spans;
use super::wait::{try_wait_until, wait_until};

/// Limit of time for processes to be gone after they were told to end at once.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Settings that a cluster is started with.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    workers: Option<usize>,
    hook: Option<String>,
    arguments: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    queue: Option<String>,
    /// Process in whose network everything runs; none for the network of the tests.
    network: Option<u32>,
}

impl Builder {
    /// `--num-workers`; 1 unless said.
    pub fn workers(mut self, workers: usize) -> Builder {
        self.workers = Some(workers);
        self
    }

    /// `--tracing-startup-hook`; without it nothing is traced.
    pub fn hook(mut self, hook: &str) -> Builder {
        self.hook = Some(hook.into());
        self
    }

    /// Adds a further argument of `tracer start`.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Builder {
        self.arguments.push(argument.as_ref().into());
        self
    }

    /// Adds a variable for every command of this cluster, the one that starts it among them.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Builder {
        self.env.push((name.into(), value.as_ref().into()));
        self
    }

    /// Queue that each task of `tracer submit` goes to; without it they name none.
    pub fn submits_to(mut self, queue: &str) -> Builder {
        self.queue = Some(queue.into());
        self
    }

    /// Runs all commands of this cluster in the network namespace of a process.
    pub fn in_network_of(mut self, pid: u32) -> Builder {
        self.network = Some(pid);
        self
    }

    /// Makes the folder without starting a head.
    #[track_caller]
    pub fn build(self) -> Cluster {
        build_modules();
        let folder = tempfile::Builder::new().prefix("tracer-test-").tempdir().expect("a folder for the test");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).expect("the folder is ours");
        let path = folder.path().canonicalize().expect("the folder exists");
        Cluster { folder: Some(folder), path, builder: self, warnings: RefCell::default() }
    }

    /// Starts the head, and expects that it starts.
    #[track_caller]
    pub fn start(self) -> Cluster {
        let (cluster, run) = self.try_start();
        run.success();
        cluster
    }

    /// Starts the head, or is refused.
    #[track_caller]
    pub fn try_start(self) -> (Cluster, Run) {
        let cluster = self.build();
        let run = cluster.start_head(&[]);
        (cluster, run)
    }
}

/// A place for one head at a time, and everything a test does with it. Dropped, it stops all that was started in it.
pub struct Cluster {
    folder: Option<tempfile::TempDir>,
    path: PathBuf,
    builder: Builder,
    warnings: RefCell<Vec<String>>,
}

impl Cluster {
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Starts a cluster with one worker, with the shipped hook.
    #[track_caller]
    pub fn traced() -> Cluster {
        Cluster::builder().hook(super::HOOK).start()
    }

    /// Starts a cluster with one worker, without a hook.
    #[track_caller]
    pub fn untraced() -> Cluster {
        Cluster::builder().start()
    }

    /// Returns the folder of this test: everything is in it, and commands run in it.
    pub fn folder(&self) -> &Path {
        &self.path
    }

    /// Returns a path in the folder of this test.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Returns the place of the head: `TRACER_TEMP_DIR`.
    pub fn temp_dir(&self) -> PathBuf {
        self.file("place")
    }

    /// `TRACER_SPANS_DIR`.
    pub fn spans_dir(&self) -> PathBuf {
        self.file("spans")
    }

    /// Returns what the lock says of the head; null when there was none or it was stopped.
    pub fn head_record(&self) -> Value {
        let text = fs::read_to_string(self.temp_dir().join("head.lock")).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or(Value::Null)
    }

    #[track_caller]
    pub fn head_pid(&self) -> u32 {
        let pid = self.head_record()["pid"].as_u64().expect("a head is running");
        u32::try_from(pid).expect("a process id")
    }

    #[track_caller]
    pub fn session_dir(&self) -> PathBuf {
        self.head_record()["session_dir"].as_str().expect("a head is running").into()
    }

    /// Returns the text of the head's log.
    pub fn head_log(&self) -> String {
        fs::read_to_string(self.session_dir().join("logs/head.log")).unwrap_or_default()
    }

    /// `program` in the environment of this cluster: nothing of the tests' own tracing in it, this folder as working directory.
    pub fn program(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = match self.builder.network {
            None => Command::new(program),
            Some(pid) => {
                let mut command = in_network_of(pid);
                command.arg(program);
                command
            }
        };
        for (name, _) in std::env::vars_os() {
            let is_ours = |name: &str| {
                ["TRACER_", "OTEL_", "RUST_BACKTRACE", "RUST_LOG"].iter().any(|prefix| name.starts_with(prefix))
                    || ["TRACEPARENT", "TRACESTATE", "BAGGAGE", "COLUMNS"].contains(&name)
            };
            if name.to_str().is_some_and(is_ours) {
                command.env_remove(name);
            }
        }
        command
            .current_dir(&self.path)
            .env(processes::FOLDER_VARIABLE, &self.path)
            .env("TRACER_TEMP_DIR", self.temp_dir())
            .env("TRACER_SPANS_DIR", self.spans_dir())
            .env("TRACER_MODULE_PATH", fixture_folder())
            .env("NO_COLOR", "1")
            .envs(self.builder.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// `tracer`, to be changed before it is run with [`Cluster::run`] or [`Cluster::spawn`].
    pub fn command<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        let mut command = self.program(env!("CARGO_BIN_EXE_tracer"));
        let (first, rest) = arguments.split_at(arguments.len().min(2));
        command.args(first);
        let submits = first.len() == 2 && first[0].as_ref() == "submit" && first[1].as_ref() != "actor";
        if let (true, Some(queue)) = (submits, &self.builder.queue) {
            command.args(["--queue", queue]);
        }
        command.args(rest);
        command
    }

    /// Runs `tracer` to its end.
    #[track_caller]
    pub fn tracer<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Run {
        self.run(self.command(arguments))
    }

    /// Runs a command to its end.
    #[track_caller]
    pub fn run(&self, command: Command) -> Run {
        self.spawn(command).wait()
    }

    /// Starts `tracer` and goes on.
    #[track_caller]
    pub fn tracer_in_background<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Background {
        self.spawn(self.command(arguments))
    }

    /// Starts a command and goes on.
    #[track_caller]
    pub fn spawn(&self, mut command: Command) -> Background {
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let words: Vec<_> = words.map(|word| word.to_string_lossy().into_owned()).collect();
        let places = vec![
            (self.path.clone(), "<folder>"),
            (fixture_folder(), "<fixtures>"),
            (module_folder().to_owned(), "<bin>"),
        ];
        Background::new(child, words.join(" "), places)
    }

    /// Runs `tracer start --head` as this cluster was built, with `further` arguments.
    #[track_caller]
    pub fn start_head(&self, further: &[&str]) -> Run {
        self.run(self.start_command(further))
    }

    /// `tracer start --head` as this cluster was built.
    pub fn start_command(&self, further: &[&str]) -> Command {
        let mut command = self.command(&["start", "--head", "--num-workers"]);
        command.arg(self.builder.workers.unwrap_or(1).to_string());
        if let Some(hook) = &self.builder.hook {
            command.arg(format!("--tracing-startup-hook={hook}"));
        }
        command.args(&self.builder.arguments).args(further);
        command
    }

    /// `tracer submit task`, with arguments as JSON.
    #[track_caller]
    pub fn submit(&self, target: &str, arguments: &[&str]) -> Run {
        self.run(self.submit_command(target, arguments))
    }

    /// `tracer submit task` in the background.
    #[track_caller]
    pub fn submit_in_background(&self, target: &str, arguments: &[&str]) -> Background {
        self.spawn(self.submit_command(target, arguments))
    }

    fn submit_command(&self, target: &str, arguments: &[&str]) -> Command {
        let mut command = self.command(&["submit", "task", target]);
        command.args(arguments);
        command
    }

    /// Kills the head with SIGKILL, and waits until it is gone.
    #[track_caller]
    pub fn kill_head(&self) {
        let pid = self.head_pid();
        processes::kill(pid, Signal::KILL);
        wait_until("the head is gone", || (!processes::is_alive(pid)).then_some(()));
    }

    /// Kills the head, and waits until the next one answers, which its guard has started.
    #[track_caller]
    pub fn kill_head_and_wait_for_the_next(&self) {
        let before = self.head_pid();
        processes::kill(before, Signal::KILL);
        wait_until("another head has come", || {
            let has_come = self.head_record()["pid"].as_u64().is_some_and(|pid| pid != u64::from(before));
            (has_come && self.tracer(&["status"]).output.status.success()).then_some(())
        });
    }

    /// Waits until a head answers, which the guard of the one before has started.
    #[track_caller]
    pub fn wait_for_head(&self) {
        wait_until("a head answers", || self.tracer(&["status"]).output.status.success().then_some(()));
    }

    /// Kills the head and its guard, so that no other head comes by itself, and waits until both are gone.
    #[track_caller]
    pub fn kill_head_and_guard(&self) {
        let record = self.head_record();
        let pids = ["guard_pid", "pid"].map(|name| record[name].as_u64().and_then(|pid| u32::try_from(pid).ok()));
        for pid in pids.into_iter().flatten() {
            processes::kill_if_there(pid, Signal::KILL);
        }
        for pid in pids.into_iter().flatten() {
            wait_until("head and guard are gone", || (!processes::is_alive(pid)).then_some(()));
        }
    }

    /// `tracer stop`.
    #[track_caller]
    pub fn stop(&self) -> Run {
        self.tracer(&["stop"])
    }

    /// Returns the node whose workers run what is submitted here: this one.
    pub fn runner(&self) -> &Cluster {
        self
    }

    /// Returns what stands before each line that a worker of this node writes for a function, at whoever follows it.
    pub fn prefix(&self, function: &str, pid: impl Display) -> String {
        format!("({function} pid={pid}) ")
    }

    /// `tracer status --format json`.
    #[track_caller]
    pub fn status(&self) -> Value {
        self.tracer(&["status", "--format", "json"]).success().json()
    }

    /// Returns the rows of `tracer list workers --format json`.
    #[track_caller]
    pub fn workers(&self) -> Vec<Value> {
        let rows = self.tracer(&["list", "workers", "--format", "json"]).success().json();
        rows["workers"].as_array().expect("workers are a list").clone()
    }

    #[track_caller]
    pub fn worker_pids(&self) -> Vec<u32> {
        let pid = |worker: &Value| u32::try_from(worker["pid"].as_u64()?).ok();
        self.workers().iter().map(|worker| pid(worker).expect("a worker has a pid")).collect()
    }

    /// Returns the newest tasks, as `tracer list tasks --format json` shows them.
    #[track_caller]
    pub fn tasks(&self) -> Vec<Value> {
        let list = self.tracer(&["list", "tasks", "--format", "json"]).success().json();
        list["tasks"].as_array().expect("tasks are a list").clone()
    }

    /// `tracer get ID --format json`.
    #[track_caller]
    pub fn task(&self, id: u64) -> Value {
        self.tracer(&["get", &id.to_string(), "--format", "json"]).success().json()
    }

    /// Waits until a task has ended, and returns what `tracer get` says of it.
    #[track_caller]
    pub fn wait_for_task(&self, id: u64) -> Value {
        wait_until(&format!("task {id} ends"), || {
            let task = self.task(id);
            ["succeeded", "failed", "cancelled"].iter().any(|state| task["state"] == *state).then_some(task)
        })
    }

    /// Returns what is in the span files now.
    pub fn spans(&self) -> Spans {
        Spans::read(&self.spans_dir())
    }

    /// Waits until `is_enough` holds of the spans, and returns them.
    #[track_caller]
    pub fn wait_for_spans(&self, what: &str, is_enough: impl Fn(&Spans) -> bool) -> Spans {
        let mut last = Spans::default();
        let found = try_wait_until(Duration::from_secs(30), &mut || {
            last = self.spans();
            is_enough(&last).then(|| last.clone())
        });
        found.unwrap_or_else(|| panic!("waited in vain for spans: {what}; there are {}", last.describe()))
    }

    /// Waits until `path` exists.
    #[track_caller]
    pub fn wait_for_file(&self, path: &Path) {
        wait_until(&format!("`{}` exists", path.display()), || path.exists().then_some(()));
    }

    /// Returns every process that was started in this cluster and runs.
    pub fn processes(&self) -> Vec<Process> {
        processes::of_folder(&self.path)
    }

    /// Expects that nothing that was started in this cluster is running, or will not be in a moment.
    #[track_caller]
    pub fn assert_nothing_runs(&self) {
        wait_until("nothing of the test is running", || self.processes().is_empty().then_some(()));
    }

    /// Says something if the test fails.
    pub fn note(&self, text: impl Into<String>) {
        self.warnings.borrow_mut().push(text.into());
    }

    fn print_logs(&self) {
        for note in self.warnings.borrow().iter() {
            eprintln!("{note}");
        }
        let sessions = fs::read_dir(self.temp_dir().join("sessions")).into_iter().flatten().flatten();
        for session in sessions {
            let folders = ["logs", "logs/serve"].map(|folder| fs::read_dir(session.path().join(folder)));
            let logs = folders.into_iter().flatten().flatten().flatten();
            let is_text = |path: &Path| path.is_file() && !path.to_string_lossy().contains(".index");
            for log in logs.filter(|log| is_text(&log.path())) {
                let text = fs::read(log.path()).unwrap_or_default();
                let start = text.len().saturating_sub(8192);
                eprintln!("--- {}\n{}", log.path().display(), String::from_utf8_lossy(&text[start..]));
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let was_failing = std::thread::panicking();
        if was_failing {
            self.print_logs();
            // `TRACER_TEST_KEEPS=1` keeps what a test that fails has left.
            if let Some(folder) = self.folder.as_mut().filter(|_| std::env::var_os("TRACER_TEST_KEEPS").is_some()) {
                eprintln!("kept: {}", folder.path().display());
                folder.disable_cleanup(true);
            }
        }
        let running = self.processes();
        for process in &running {
            // A process that a test froze could not end.
            processes::try_kill(process.pid, Signal::CONT);
        }
        if !running.is_empty() && !self.head_record().is_null() {
            let _ = self.command(&["stop", "--force"]).output();
        }
        let left = try_wait_until(END_LIMIT, &mut || self.processes().is_empty().then_some(()));
        if left.is_none() {
            let left = self.processes();
            for process in &left {
                processes::try_kill(process.pid, Signal::KILL);
            }
            let _ = try_wait_until(END_LIMIT, &mut || self.processes().is_empty().then_some(()));
            let list: Vec<_> = left.iter().map(|process| format!("  {} {}", process.pid, process.command)).collect();
            let text = format!("these processes were left running:\n{}", list.join("\n"));
            if was_failing {
                eprintln!("{text}");
            } else {
                self.print_logs();
                drop(self.folder.take());
                panic!("{text}");
            }
        }
    }
}
