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

/// A service, with its head.
pub(crate) struct Service {
    folder: TempDir,
    port: u16,
    is_traced: bool,
    has_tls: bool,
    processes: Vec<(String, u32)>,
    head: u32,
}

impl Server for Service {
    fn url(&self) -> String {
        format!("{}://127.0.0.1:{}", if self.has_tls { "https" } else { "http" }, self.port)
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

/// Traced, and without metrics.
pub(crate) fn uncounted() -> Result<Box<dyn Server>, Failure> {
    let folder = new_folder()?;
    let place = folder.path().join("place");
    fs::DirBuilder::new().mode(0o700).create(&place)?;
    // What is no folder has no files.
    fs::write(place.join("metrics.serving"), "")?;
    Ok(Box::new(Service::start_in(folder, &one("handlers:app"), true, &[])?))
}

fn new_folder() -> Result<TempDir, Failure> {
    Ok(tempfile::Builder::new().prefix("serve-").tempdir_in(env!("CARGO_TARGET_TMPDIR"))?)
}

/// Starts a service of one deployment.
pub(crate) fn of(import_path: &str, is_traced: bool) -> Result<Box<dyn Server>, Failure> {
    Ok(Box::new(Service::start(&one(import_path), is_traced, &[])?))
}

/// Returns the applications of a service file: one, of one deployment.
pub(crate) fn one(import_path: &str) -> String {
    format!("[[applications]]\nimport_path = \"{import_path}\"\n")
}

impl Service {
    /// Starts a service of these applications, as a service file has them, in a head with these variables.
    pub(crate) fn start(applications: &str, is_traced: bool, variables: &[(&str, &str)]) -> Result<Service, Failure> {
        Service::start_in(new_folder()?, applications, is_traced, variables)
    }

    fn start_in(
        folder: TempDir,
        applications: &str,
        is_traced: bool,
        variables: &[(&str, &str)],
    ) -> Result<Service, Failure> {
        let modules = build("handlers", "handlers")?;
        if applications.contains("interop:") {
            build("interop", "interop")?;
        }
        let mut head = tracer(folder.path());
        head.args(["start", "--head", "--num-workers", "1", "--module-path"]).arg(modules);
        head.arg("--spans-dir").arg(folder.path().join("spans")).envs(variables.iter().copied());
        if is_traced {
            head.args(["--tracing-startup-hook", HOOK]);
        }
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        succeed(head)?;
        let has_tls = applications.contains("[http.tls]");
        let mut service = Service { folder, port, is_traced, has_tls, processes: Vec::new(), head: 0 };
        succeed(service.deploy(applications)?)?;
        service.find_processes()?;
        Ok(service)
    }

    /// Returns the command that deploys other applications in the place of those there are.
    pub(crate) fn deploy(&self, applications: &str) -> Result<Command, Failure> {
        let Service { port, is_traced, .. } = self;
        let file = self.folder.path().join("service.toml");
        let http = format!("[http]\naddress = \"127.0.0.1:{port}\"\n[tracing]\nenabled = {is_traced}\n");
        fs::write(&file, format!("name = \"bench\"\n{http}{applications}"))?;
        let mut deploy = tracer(self.folder.path());
        deploy.args(["serve", "deploy"]).arg(&file);
        Ok(deploy)
    }

    /// The address as sockets have it.
    pub(crate) fn address(&self) -> (&'static str, u16) {
        ("127.0.0.1", self.port)
    }

    /// Returns the process of the head that there is now.
    pub(crate) fn current_head(&self) -> Result<i32, Failure> {
        let text = fs::read_to_string(self.folder.path().join("place/head.lock"))?;
        let pid = text.split_once("\"pid\":").and_then(|(_, rest)| rest.split([',', '}']).next()?.parse().ok());
        pid.ok_or_else(|| format!("no head is in `{text}`").into())
    }

    /// All its processes, by name: the head too.
    pub(crate) fn all_processes(&self) -> Vec<(String, u32)> {
        [("head".to_owned(), self.head)].into_iter().chain(self.processes()).collect()
    }

    /// Every process of its place, the head and workers too.
    pub(crate) fn place_processes(&self) -> Result<Vec<u32>, Failure> {
        let of_place = |(_, words): &(u32, Vec<String>)| is_of(self.folder.path(), words).is_some();
        Ok(command_lines()?.into_iter().filter(of_place).map(|(pid, _)| pid).chain([self.head]).collect())
    }

    fn find_processes(&mut self) -> Result<(), Failure> {
        (self.processes, self.head) = processes_of(self.folder.path())?;
        Ok(())
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

/// Builds an example of a package of fixtures, in the profile of the binary. Returns the folder.
pub(crate) fn build(package: &str, example: &str) -> Result<PathBuf, Failure> {
    let folder = Path::new(TRACER).parent().ok_or("the binary is in no folder")?;
    let profile = folder.file_name().filter(|name| *name != "debug").unwrap_or(OsStr::new("dev"));
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--package", package, "--example", example, "--profile"]).arg(profile);
    cargo.arg("--target-dir").arg(folder.parent().ok_or("the binary is in no target folder")?);
    succeed(cargo)?;
    Ok(folder.join("examples"))
}

/// The command lines of all processes, in words.
fn command_lines() -> Result<Vec<(u32, Vec<String>)>, Failure> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // A process that has just ended has none.
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        found.push((pid, line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into()).collect()));
    }
    Ok(found)
}

/// Returns the session that a command line names, if it is of this place.
fn is_of<'a>(place: &Path, words: &'a [String]) -> Option<&'a String> {
    words.iter().find(|word| Path::new(word).starts_with(place))
}

/// The processes that a request passes, by the names of their subcommands: those whose command line names this place. Besides, the head's,
/// whose session is named after it.
fn processes_of(place: &Path) -> Result<(Vec<(String, u32)>, u32), Failure> {
    let (mut found, mut head) = (Vec::new(), None);
    for (pid, words) in command_lines()? {
        let role = words.get(1).filter(|role| matches!(role.as_str(), "proxy" | "replica"));
        if let (Some(role), Some(session)) = (role, is_of(place, &words)) {
            found.push((role.clone(), pid));
            head = session.rsplit_once('-').and_then(|(_, pid)| pid.parse().ok()).or(head);
        }
    }
    found.sort();
    Ok((found, head.ok_or("the service has no processes")?))
}
