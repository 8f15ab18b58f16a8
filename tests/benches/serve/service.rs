//! The service under test: a head of the built binary, its proxy and one replica, in a folder of their own.

use std::ffi::OsStr;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::{Failure, Server};

/// The program under test, built as this one was.
const TRACER: &str = env!("CARGO_BIN_EXE_tracer");
const HOOK: &str = "local_tmp_tracing:setup_tracing";

pub(crate) struct Service {
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

pub(crate) fn traced() -> Result<Box<dyn Server>, Failure> {
    of("handlers:app", true)
}

/// Starts a service of one deployment.
pub(crate) fn of(import_path: &str, is_traced: bool) -> Result<Box<dyn Server>, Failure> {
    Ok(Box::new(start(import_path, is_traced)?))
}

/// The same, whose head can be killed.
pub(crate) fn start(import_path: &str, is_traced: bool) -> Result<Service, Failure> {
    let modules = build_handlers()?;
    let folder = tempfile::Builder::new().prefix("serve-").tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
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
             [[applications]]\nimport_path = \"{import_path}\"\n"
        ),
    )?;
    succeed(head)?;
    let mut service = Service { folder, port, processes: Vec::new() };
    let mut deploy = tracer(service.folder.path());
    deploy.args(["serve", "deploy"]).arg(&file);
    succeed(deploy)?;
    service.processes = processes_of(service.folder.path())?;
    Ok(service)
}

impl Service {
    /// Returns the process of the head.
    pub(crate) fn head(&self) -> Result<i32, Failure> {
        let text = fs::read_to_string(self.folder.path().join("place/head.lock"))?;
        let pid = text.split_once("\"pid\":").and_then(|(_, rest)| rest.split([',', '}']).next()?.parse().ok());
        pid.ok_or_else(|| format!("no head is in `{text}`").into())
    }
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

/// The processes that a request passes, by the names of their subcommands: those whose command line names this place.
fn processes_of(place: &Path) -> Result<Vec<(String, u32)>, Failure> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // A process that has just ended has none.
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words: Vec<String> =
            line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into()).collect();
        let role = words.get(1).filter(|role| matches!(role.as_str(), "proxy" | "replica"));
        if let Some(role) = role.filter(|_| words.iter().any(|word| Path::new(word).starts_with(place))) {
            found.push((role.clone(), pid));
        }
    }
    found.sort();
    if found.is_empty() { Err("the service has no processes".into()) } else { Ok(found) }
}
