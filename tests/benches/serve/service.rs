//! The service under test: a head of the built binary, its proxy and one replica, in a folder of their own.

use std::ffi::OsStr;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::{Failure, Server};

/// The program under test, built as this one was.
const TRACER: &str = env!("CARGO_BIN_EXE_tracer");
const HOOK: &str = "local_tmp_tracing:setup_tracing";

struct Service {
    folder: TempDir,
    port: u16,
    processes: Vec<(String, u32)>,
}

impl Server for Service {
    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn processes(&self) -> Vec<(String, u32)> {
        self.processes.clone()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = tracer(self.folder.path()).args(["stop", "--force"]).output();
    }
}

pub(crate) fn untraced() -> Result<Box<dyn Server>, Failure> {
    of("handlers:app", false)
}

/// Traced, and without metrics.
pub(crate) fn uncounted() -> Result<Box<dyn Server>, Failure> {
    start(&Setup { is_counted: false, ..Setup::of("handlers:app", true) })
}

/// A service of one deployment, and further ones.
pub(crate) struct Setup<'a> {
    pub(crate) import_path: &'a str,
    pub(crate) is_traced: bool,
    pub(crate) is_counted: bool,
    /// Further lines of its file.
    pub(crate) further: &'a str,
    /// True if every process of its place counts, the head and workers too.
    pub(crate) has_all_processes: bool,
}

impl Setup<'_> {
    pub(crate) fn of(import_path: &str, is_traced: bool) -> Setup<'_> {
        Setup { import_path, is_traced, is_counted: true, further: "", has_all_processes: false }
    }
}

pub(crate) fn traced() -> Result<Box<dyn Server>, Failure> {
    of("handlers:app", true)
}

/// Starts a service of one deployment.
pub(crate) fn of(import_path: &str, is_traced: bool) -> Result<Box<dyn Server>, Failure> {
    start(&Setup::of(import_path, is_traced))
}

/// Starts a service.
pub(crate) fn start(setup: &Setup<'_>) -> Result<Box<dyn Server>, Failure> {
    let &Setup { import_path, is_traced, is_counted, further, has_all_processes } = setup;
    let modules = build_handlers()?;
    let folder = tempfile::Builder::new().prefix("serve-").tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    if !is_counted {
        let place = folder.path().join("place");
        fs::DirBuilder::new().mode(0o700).create(&place)?;
        // What is no folder has no files.
        fs::write(place.join("metrics.serving"), "")?;
    }
    let mut head = tracer(folder.path());
    head.args(["start", "--head", "--num-workers", "1", "--module-path"]).arg(modules);
    head.arg("--spans-dir").arg(folder.path().join("spans"));
    if is_traced {
        head.args(["--tracing-startup-hook", HOOK]);
    }
    let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
    let file = folder.path().join("service.toml");
    fs::write(
        &file,
        format!(
            "name = \"bench\"\n[http]\naddress = \"127.0.0.1:{port}\"\n[tracing]\nenabled = {is_traced}\n\
             [[applications]]\nimport_path = \"{import_path}\"\n{further}"
        ),
    )?;
    succeed(head)?;
    let mut service = Service { folder, port, processes: Vec::new() };
    let mut deploy = tracer(service.folder.path());
    deploy.args(["serve", "deploy"]).arg(&file);
    succeed(deploy)?;
    service.processes = processes_of(service.folder.path(), has_all_processes)?;
    Ok(Box::new(service))
}

/// Returns the program, for a place of its own.
pub(crate) fn tracer(place: &Path) -> Command {
    let mut command = Command::new(TRACER);
    command.env("TRACER_TEMP_DIR", place.join("place")).stdin(Stdio::null());
    command
}

/// Runs a command that has to succeed.
pub(crate) fn succeed(mut command: Command) -> Result<(), Failure> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("`{command:?}` failed: {}", String::from_utf8_lossy(&output.stderr)).into())
}

/// Builds the library of the handlers beside the binary, in its profile. Returns the folder.
fn build_handlers() -> Result<PathBuf, Failure> {
    let folder = Path::new(TRACER).parent().ok_or("the binary is in no folder")?;
    let profile = folder.file_name().filter(|name| *name != "debug").unwrap_or(OsStr::new("dev"));
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--package", "handlers", "--profile"]).arg(profile);
    cargo.arg("--target-dir").arg(folder.parent().ok_or("the binary is in no target folder")?);
    succeed(cargo)?;
    Ok(folder.into())
}

/// The processes that a request passes, by the names of their subcommands: those whose command line names this place; all of these, if they all count.
fn processes_of(place: &Path, has_all: bool) -> Result<Vec<(String, u32)>, Failure> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // A process that has just ended has none.
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words: Vec<String> =
            line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into()).collect();
        let role = words.get(1).filter(|role| has_all || matches!(role.as_str(), "proxy" | "replica"));
        if let Some(role) = role.filter(|_| words.iter().any(|word| Path::new(word).starts_with(place))) {
            found.push((role.clone(), pid));
        }
    }
    found.sort();
    if found.is_empty() { Err("the service has no processes".into()) } else { Ok(found) }
}
