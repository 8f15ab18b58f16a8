//! A cluster of the release binary in a folder of its own, which is stopped and removed however this program ends.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::de::DeserializeOwned;
use tempfile::TempDir;
use tracer::Driver;
use tracer::protocol::{HttpReport, Query, Reply, WorkerState};

use super::Failure;
use super::process::ProcessFigures;

/// The program under test, built as this one was.
const TRACER: &str = env!("CARGO_BIN_EXE_tracer");
/// The default hook.
pub(crate) const HOOK: &str = "local_tmp_tracing:setup_tracing";
pub(crate) const WORKERS: usize = 2;

/// True if processes that are started from now on spin for a while before they sleep.
pub(crate) static HAS_SPINNING: AtomicBool = AtomicBool::new(true);

/// The folders of running clusters, for the thread that waits for signals.
static RUNNING: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn running() -> MutexGuard<'static, Vec<PathBuf>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn forget(folder: &Path) {
    running().retain(|other| other != folder);
}

/// On Ctrl-C and SIGTERM, stops the cluster, removes its folder, and ends this program.
pub(crate) fn stop_on_signals() {
    use std::io::Read;
    let Ok((mut signals, sender)) = std::os::unix::net::UnixStream::pair() else { return };
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let Ok(sender) = sender.try_clone() else { return };
        if signal_hook::low_level::pipe::register(signal, sender).is_err() {
            return;
        }
    }
    std::thread::spawn(move || {
        if signals.read_exact(&mut [0]).is_ok() {
            // Held until the end, so that no cluster is started in between.
            let running = running();
            for folder in &*running {
                let _ = stop(folder, &["--force"]);
                let _ = std::fs::remove_dir_all(folder);
            }
            std::process::exit(130);
        }
    });
}

/// The hook that is measured: the shipped library beside the binary.
pub(crate) struct Hook {
    library: Option<PathBuf>,
}

impl Hook {
    /// Finds the library beside the binary, building it if it is missing. When it cannot be built, the hook that is built into
    /// the binary is measured instead.
    pub(crate) fn find() -> Result<Hook, Failure> {
        let library = library("local_tmp_tracing")?;
        Ok(Hook { library: library.is_file().then_some(library) })
    }

    /// Returns the origin of the hook, in words.
    pub(crate) fn place(&self) -> String {
        self.library.as_ref().map_or_else(|| "built in".into(), |library| library.display().to_string())
    }
}

/// Builds a module, which clusters find by its name.
pub(crate) fn build(module: &str) -> Result<(), Failure> {
    let library = library(module)?;
    if library.is_file() { Ok(()) } else { Err(format!("there is no `{}`", library.display()).into()) }
}

/// Returns the path of a module that was built: beside the binary or, of a fixture, among the examples.
pub(crate) fn library_path(package: &str) -> Result<PathBuf, Failure> {
    let folder = Path::new(TRACER).parent().ok_or("the binary is in no folder")?;
    let folder = if is_fixture(package) { folder.join(FIXTURES) } else { folder.into() };
    Ok(folder.join(format!("lib{package}.so")))
}

/// Folder of the fixtures' libraries, below that of the binary: cargo's for examples.
const FIXTURES: &str = "examples";

fn is_fixture(package: &str) -> bool {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(package).is_dir()
}

/// Returns the library of a package, built from what is there now: an older one would be measured without a word.
fn library(package: &str) -> Result<PathBuf, Failure> {
    let library = library_path(package)?;
    let folder = Path::new(TRACER).parent().ok_or("the binary is in no folder")?;
    super::say(&format!("building lib{package}.so"));
    let mut build = cargo("build");
    // Beside the binary, wherever that is.
    build.args(["--package", package, "--target-dir"]).arg(folder.parent().ok_or("the binary is in no target folder")?);
    if is_fixture(package) {
        build.args(["--example", package]);
    }
    let built = build.stdout(Stdio::null()).status();
    if !built.is_ok_and(|status| status.success()) {
        super::say("it cannot be built");
    }
    Ok(library)
}

/// Returns a command of cargo's for this workspace, in the profile that this program was built in.
pub(crate) fn cargo(subcommand: &str) -> Command {
    let folder = Path::new(TRACER).parent().and_then(Path::file_name);
    let profile = folder.filter(|name| *name != "debug").unwrap_or(OsStr::new("dev"));
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args([subcommand, "--quiet", "--profile"]).arg(profile).current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo
}

/// A folder for one cluster: its place and its spans. On disk, under cargo's target folder.
pub(crate) struct Place {
    folder: TempDir,
}

impl Place {
    pub(crate) fn new() -> Result<Place, Failure> {
        Ok(Place { folder: tempfile::Builder::new().prefix("end_to_end-").tempdir_in(env!("CARGO_TARGET_TMPDIR"))? })
    }

    fn spans_dir(&self) -> PathBuf {
        spans_dir(self.folder.path())
    }

    /// Returns the place of the head, which that makes.
    pub(crate) fn temp_dir(&self) -> PathBuf {
        temp_dir(self.folder.path())
    }

    fn span_files(&self) -> Result<Vec<PathBuf>, Failure> {
        match std::fs::read_dir(self.spans_dir()) {
            Ok(entries) => Ok(entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    /// Bytes in the span files.
    pub(crate) fn span_bytes(&self) -> Result<u64, Failure> {
        self.span_files()?.iter().map(|path| Ok(path.metadata()?.len())).sum()
    }

    /// Lines in the span files: spans.
    pub(crate) fn span_lines(&self) -> Result<usize, Failure> {
        self.span_files()?.iter().map(|path| Ok(memchr::memchr_iter(b'\n', &std::fs::read(path)?).count())).sum()
    }
}

fn spans_dir(folder: &Path) -> PathBuf {
    folder.join("spans")
}

fn temp_dir(folder: &Path) -> PathBuf {
    folder.join("place")
}

/// Returns a command whose environment says where the cluster is, and nothing else about tracing.
fn command(program: impl AsRef<OsStr>, folder: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        let is_ours = name.starts_with("TRACER_") || name.starts_with("OTEL_");
        if is_ours || ["TRACEPARENT", "TRACESTATE", "BAGGAGE"].contains(&name.as_str()) {
            command.env_remove(name);
        }
    }
    command.env("TRACER_TEMP_DIR", temp_dir(folder)).env("TRACER_SPANS_DIR", spans_dir(folder));
    command.env("TRACER_MODULE_PATH", Path::new(TRACER).with_file_name(FIXTURES));
    if !HAS_SPINNING.load(Ordering::Relaxed) {
        command.env("TRACER_TEST_SPINNING", "never");
    }
    command.stdin(Stdio::null());
    command
}

/// Runs a command to its end and returns what it printed.
fn output(mut command: Command) -> Result<Vec<u8>, Failure> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let program = command.get_program().to_string_lossy().into_owned();
    Err(format!("`{program}` ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr)).into())
}

/// Runs `tracer` with these arguments to its end.
pub(crate) fn run_tracer(place: &Place, arguments: &[&str]) -> Result<(), Failure> {
    let mut run = command(TRACER, place.folder.path());
    run.args(arguments);
    output(run).map(drop)
}

fn stop(folder: &Path, flags: &[&str]) -> Result<(), Failure> {
    let mut stop = command(TRACER, folder);
    stop.arg("stop").args(flags);
    output(stop).map(drop)
}

/// A head with its two workers.
pub(crate) struct Cluster<'a> {
    place: &'a Place,
    is_running: bool,
}

impl<'a> Cluster<'a> {
    /// Starts a cluster; returns when `tracer start` has ended, which is when the workers are ready.
    pub(crate) fn start(place: &'a Place, hook: Option<&Hook>) -> Result<Cluster<'a>, Failure> {
        Cluster::start_in(place, hook, None)
    }

    /// The same with another number of workers.
    pub(crate) fn start_with(place: &'a Place, hook: Option<&Hook>, workers: usize) -> Result<Cluster<'a>, Failure> {
        Cluster::start_command(place, hook, command(TRACER, place.folder.path()), workers, &[])
    }

    /// The same with two workers and an HTTP API.
    pub(crate) fn start_with_http(place: &'a Place, hook: Option<&Hook>) -> Result<Cluster<'a>, Failure> {
        let start = command(TRACER, place.folder.path());
        Cluster::start_command(place, hook, start, WORKERS, &["--http", "127.0.0.1:0"])
    }

    /// The same with these flags of `tracer start`, which come last.
    pub(crate) fn start_with_flags(
        place: &'a Place,
        hook: Option<&Hook>,
        flags: &[&str],
    ) -> Result<Cluster<'a>, Failure> {
        Cluster::start_command(place, hook, command(TRACER, place.folder.path()), WORKERS, flags)
    }

    /// The same of a node without workers, which only submits to queues.
    pub(crate) fn start_to_submit(
        place: &'a Place,
        hook: Option<&Hook>,
        flags: &[&str],
    ) -> Result<Cluster<'a>, Failure> {
        Cluster::start_command(place, hook, command(TRACER, place.folder.path()), 0, flags)
    }

    /// Returns the URL of its HTTP API, and a token that reads.
    pub(crate) fn http(&self) -> Result<(String, String), Failure> {
        let http = self.http_report()?;
        Ok((http.url, std::fs::read_to_string(http.viewer_token_path)?.trim_end().to_owned()))
    }

    /// Returns what the head says of the process that serves the HTTP API.
    pub(crate) fn http_report(&self) -> Result<HttpReport, Failure> {
        let mut driver = Driver::connect(&temp_dir(self.place.folder.path()))?;
        let Reply::Status(status) = driver.query(&Query::Status)? else {
            return Err("the head answered another question".into());
        };
        Ok(status.http.ok_or("there is no HTTP API")?)
    }

    /// The same in a control group, whose file for processes this is.
    pub(crate) fn start_in(
        place: &'a Place,
        hook: Option<&Hook>,
        group: Option<&Path>,
    ) -> Result<Cluster<'a>, Failure> {
        let start = match group {
            None => command(TRACER, place.folder.path()),
            Some(group) => {
                let mut shell = command("sh", place.folder.path());
                shell.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(group).arg(TRACER);
                shell
            }
        };
        Cluster::start_command(place, hook, start, WORKERS, &[])
    }

    fn start_command(
        place: &'a Place,
        hook: Option<&Hook>,
        mut start: Command,
        workers: usize,
        further: &[&str],
    ) -> Result<Cluster<'a>, Failure> {
        start.args(["start", "--head", "--num-workers", &workers.to_string()]).args(further);
        if hook.is_some() {
            start.args(["--tracing-startup-hook", HOOK, "--tracing-required"]);
        }
        running().push(place.folder.path().into());
        let cluster = Cluster { place, is_running: true };
        output(start)?;
        Ok(cluster)
    }

    /// Ends the head and what runs, without waiting for it.
    pub(crate) fn stop_at_once(mut self) -> Result<(), Failure> {
        self.is_running = false;
        let stopped = stop(self.place.folder.path(), &["--force"]);
        forget(self.place.folder.path());
        stopped
    }

    pub(crate) fn stop(mut self) -> Result<(), Failure> {
        self.is_running = false;
        let stopped = stop(self.place.folder.path(), &[]);
        forget(self.place.folder.path());
        stopped
    }

    /// Runs `tracer submit task` to its end.
    pub(crate) fn submit_once(&self) -> Result<(), Failure> {
        let mut submit = command(TRACER, self.place.folder.path());
        submit.args(["submit", "task", "demo:my_function"]);
        let printed = output(submit)?;
        if printed.trim_ascii() == b"1" {
            return Ok(());
        }
        Err(format!("`tracer submit task` printed `{}`, expected `1`", String::from_utf8_lossy(&printed)).into())
    }

    /// Runs `tracer submit task` to its end, which is a good one.
    pub(crate) fn submit_and_wait(&self, target: &str, arguments: &[&str]) -> Result<(), Failure> {
        let mut submit = command(TRACER, self.place.folder.path());
        submit.args(["submit", "task", target]).args(arguments);
        output(submit).map(drop)
    }

    /// Starts `tracer submit task` and goes on.
    pub(crate) fn submit(&self, target: &str, arguments: &[&str], flags: &[&str]) -> Result<Child, Failure> {
        let mut submit = command(TRACER, self.place.folder.path());
        submit.args(["submit", "task", target]).args(arguments).args(flags);
        Ok(submit.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?)
    }

    /// Starts `tracer submit command` and goes on; nobody takes what the command writes.
    pub(crate) fn submit_command(&self, flags: &[&str], line: &[&str]) -> Result<Child, Failure> {
        let mut submit = command(TRACER, self.place.folder.path());
        submit.args(["submit", "command", "--no-wait"]).args(flags).arg("--").args(line);
        Ok(submit.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?)
    }

    /// Returns the folder of the span files.
    pub(crate) fn spans_dir(&self) -> PathBuf {
        self.place.spans_dir()
    }

    /// Returns the workers that are ready and have nothing to do.
    pub(crate) fn idle_workers(&self) -> Result<Vec<u32>, Failure> {
        let mut driver = Driver::connect(&temp_dir(self.place.folder.path()))?;
        let Reply::Workers(workers) = driver.query(&Query::Workers)? else {
            return Err("the head answered another question".into());
        };
        Ok(workers.into_iter().filter(|worker| worker.state == WorkerState::Idle).map(|worker| worker.pid).collect())
    }

    /// Runs a driver in a process of its own, and returns what it found.
    pub(crate) fn drive<T: DeserializeOwned>(&self, role: &[String]) -> Result<T, Failure> {
        Ok(serde_json::from_slice(&output(self.driver(role)?)?)?)
    }

    /// The same under a program that takes the driver's command line after its own.
    pub(crate) fn drive_under<T: DeserializeOwned>(&self, under: &[OsString], role: &[String]) -> Result<T, Failure> {
        Ok(serde_json::from_slice(&output(self.driver_under(under, role)?)?)?)
    }

    /// Returns a driver that is to be started.
    pub(crate) fn driver(&self, role: &[String]) -> Result<Command, Failure> {
        self.driver_under(&[], role)
    }

    fn driver_under(&self, under: &[OsString], role: &[String]) -> Result<Command, Failure> {
        let own = std::env::current_exe()?.into_os_string();
        let line: Vec<_> = under.iter().chain([&own]).collect();
        let mut driver = command(line[0], self.place.folder.path());
        driver.args(&line[1..]).arg("role").args(role).arg(temp_dir(self.place.folder.path()));
        Ok(driver)
    }

    /// Returns the head and its agent as they are now.
    pub(crate) fn head_and_agent(&self) -> Result<[ProcessFigures; 2], Failure> {
        let head_pid = Driver::connect(&temp_dir(self.place.folder.path()))?.welcome().head_pid;
        let children = std::fs::read_to_string(format!("/proc/{head_pid}/task/{head_pid}/children"))?;
        let is_agent = |pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).nth(1) == Some(b"agent")
        };
        let agent = children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(is_agent);
        let agent = agent.ok_or("the head has no agent")?;
        Ok([ProcessFigures::of("head".into(), head_pid)?, ProcessFigures::of("agent".into(), agent)?])
    }

    /// Returns the number of tasks of other nodes that the head has.
    pub(crate) fn imports(&self) -> Result<usize, Failure> {
        let mut driver = Driver::connect(&temp_dir(self.place.folder.path()))?;
        let Reply::Status(status) = driver.query(&Query::Status)? else {
            return Err("the head answered another question".into());
        };
        Ok(status.engine.ok_or("the head has joined no engine")?.imports)
    }

    /// Returns the head and each worker as they are now.
    pub(crate) fn processes(&self) -> Result<Vec<ProcessFigures>, Failure> {
        let mut driver = Driver::connect(&temp_dir(self.place.folder.path()))?;
        let Reply::Workers(workers) = driver.query(&Query::Workers)? else {
            return Err("the head answered another question".into());
        };
        let mut found = vec![ProcessFigures::of("head".into(), driver.welcome().head_pid)?];
        for worker in workers {
            found.push(ProcessFigures::of(format!("worker {}", worker.id), worker.pid)?);
        }
        Ok(found)
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        if self.is_running {
            // On the way out of a failure, which is what will be reported.
            let _ = stop(self.place.folder.path(), &["--force"]);
            forget(self.place.folder.path());
        }
    }
}
