//! Starts and ends worker processes; on the head's side the only place that spawns or signals.
//!
//! A worker leads its own process group, so that a signal reaches what it started, and a Ctrl-C in the terminal of
//! a head in the foreground does not reach it behind the head's back. It asks the kernel for SIGKILL when the head
//! dies, and checks that it was not too late for that. The process is identified by a pidfd, so a recycled pid is never
//! signalled.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};

use super::reactor::WorkerExit;
use crate::environment::SERVICE_VARIABLE;
use crate::protocol::TracingSettings;
use crate::spool::{ClaimRing, SLOT_COUNT, Story};
use crate::task::WorkerId;

/// Arguments of a worker's start.
pub(super) struct WorkerCommand<'a> {
    pub(super) temp_dir: &'a Path,
    pub(super) session_dir: &'a Path,
    pub(super) worker: WorkerId,
    pub(super) tracing: &'a TracingSettings,
}

/// A worker process, from its start until it is reaped.
pub(super) struct WorkerProcess {
    child: Child,
    pub(super) pidfd: OwnedFd,
    pub(super) claims: ClaimRing,
    pub(super) stdout: Option<ChildStdout>,
    pub(super) stderr: Option<ChildStderr>,
}

/// This program, to be started again. When its file was replaced while it runs, that is the one that runs, and not the new one.
fn own_program() -> io::Result<Command> {
    let path = std::env::current_exe()?;
    Ok(Command::new(if path.exists() { path.as_path() } else { Path::new("/proc/self/exe") }))
}

/// Returns the error of a program that could not be started, with its name.
fn named(program: &Command, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("`{}`: {error}", program.get_program().display()))
}

impl WorkerProcess {
    /// Starts a worker: makes its spool, its log and its process.
    pub(super) fn spawn(command: &WorkerCommand<'_>) -> io::Result<WorkerProcess> {
        let spool = crate::session::worker_spool(command.session_dir, command.worker);
        let claims = ClaimRing::create(&spool, SLOT_COUNT).map_err(io::Error::other)?;
        let spawned = WorkerProcess::spawn_with(command, claims);
        if spawned.is_err() {
            let _ = Story::remove(&spool);
        }
        spawned
    }

    fn spawn_with(command: &WorkerCommand<'_>, claims: ClaimRing) -> io::Result<WorkerProcess> {
        let mut program = own_program()?;
        program.arg("worker").arg(command.session_dir).arg(command.worker.to_string());
        program.arg(std::process::id().to_string());
        give_environment(&mut program, command.temp_dir, command.tracing);
        program.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        WorkerProcess::of(&mut program, claims)
    }

    fn of(program: &mut Command, claims: ClaimRing) -> io::Result<WorkerProcess> {
        let mut child = program.spawn().map_err(|error| named(program, &error))?;
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let set_up = || -> io::Result<OwnedFd> {
            for pipe in [stdout.as_ref().map(AsFd::as_fd), stderr.as_ref().map(AsFd::as_fd)].into_iter().flatten() {
                rustix::io::ioctl_fionbio(pipe, true)?;
            }
            Ok(pidfd?)
        };
        use std::os::fd::AsFd;
        match set_up() {
            Ok(pidfd) => Ok(WorkerProcess { child, pidfd, claims, stdout, stderr }),
            Err(error) => {
                // It has not been told of any task; it must not be left behind.
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// Starts a process of a service, whose spool is made. Its output comes in pipes.
    pub(super) fn spawn_for_service(command: ServiceCommand<'_>) -> io::Result<WorkerProcess> {
        let claims = ClaimRing::create(command.spool, command.slots).map_err(io::Error::other)?;
        let spool = command.spool;
        let spawned = command.program().and_then(|mut program| WorkerProcess::of(&mut program, claims));
        if spawned.is_err() {
            let _ = Story::remove(spool);
        }
        spawned
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGTERM, or SIGKILL, to the command that the worker runs and its group. False when there is none.
    pub(super) fn signal_command(&self, kill: bool) -> bool {
        let group = self.claims.command_group().and_then(|group| Pid::from_raw(i32::try_from(group).ok()?));
        let signal = if kill { Signal::KILL } else { Signal::TERM };
        group.is_some_and(|group| kill_process_group(group, signal).is_ok())
    }

    /// Sends SIGTERM to the worker and its group.
    pub(super) fn terminate(&self) {
        // Not reaped yet, so its pid is its own. Errors mean that it is gone already.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::TERM);
    }

    /// Kills the worker, its group, and the command it runs.
    pub(super) fn kill(&self, spool: &Path) {
        // Not reaped yet, so its pid is its own. Errors mean that it is gone already.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        if let Ok(story) = Story::open(spool) {
            kill_command_left_behind(&story);
        }
    }

    /// Waits for the end of a process that was killed, and reaps it.
    pub(super) fn reap(&mut self) {
        // It fails only when there is nothing to reap.
        let _ = self.child.wait();
    }

    /// Reaps the process if it has ended.
    pub(super) fn try_reap(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }
}

/// Command line and environment of a process of a service.
pub(super) struct ServiceCommand<'a> {
    /// `proxy` or `replica`.
    pub(super) role: &'static str,
    /// The name of the service.
    pub(super) service: &'a str,
    pub(super) temp_dir: &'a Path,
    pub(super) session_dir: &'a Path,
    pub(super) tracing: &'a TracingSettings,
    /// The process's end of its control socket.
    pub(super) control: OwnedFd,
    pub(super) spool: &'a Path,
    /// The number of spans that its spool has room for.
    pub(super) slots: usize,
    /// Variables of its environment, besides those of the session.
    pub(super) env: &'a BTreeMap<String, String>,
    /// The folder that it runs in; none for the head's.
    pub(super) cwd: Option<&'a Path>,
}

impl ServiceCommand<'_> {
    fn program(self) -> io::Result<Command> {
        let mut program = own_program()?;
        program.arg(self.role).arg(self.session_dir).arg(std::process::id().to_string());
        give_environment(&mut program, self.temp_dir, self.tracing);
        program.env(SERVICE_VARIABLE, self.service);
        program.envs(self.env).process_group(0).stdin(Stdio::from(self.control));
        program.stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(folder) = self.cwd {
            program.current_dir(folder);
        }
        Ok(program)
    }
}

/// Arguments of the start of the HTTP API's process.
pub(super) struct FrontCommand<'a> {
    pub(super) temp_dir: &'a Path,
    pub(super) session_dir: &'a Path,
    pub(super) tracing: &'a TracingSettings,
    /// Socket on which it accepts.
    pub(super) listener: BorrowedFd<'a>,
    /// The most that its log may take, in bytes.
    pub(super) log_limit: u64,
}

/// The process of the HTTP API, from its start until it is reaped.
pub(super) struct FrontProcess {
    child: Child,
    pub(super) pidfd: OwnedFd,
}

impl FrontProcess {
    pub(super) fn spawn(command: &FrontCommand<'_>) -> io::Result<FrontProcess> {
        let log_path = command.session_dir.join("logs/http.log");
        let log = OpenOptions::new().create(true).append(true).mode(0o600).open(log_path)?;
        let mut program = own_program()?;
        program.arg("http").arg(command.session_dir).arg(std::process::id().to_string());
        program.arg(command.log_limit.to_string());
        give_environment(&mut program, command.temp_dir, command.tracing);
        let mut child = program
            .process_group(0)
            .stdin(Stdio::from(command.listener.try_clone_to_owned()?))
            .stdout(Stdio::from(log.try_clone()?))
            .stderr(Stdio::from(log))
            .spawn()?;
        match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(pidfd) => Ok(FrontProcess { child, pidfd }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error.into())
            }
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end.
    pub(super) fn terminate(&self) {
        // Not reaped yet, so its pid is its own. Errors mean that it is gone already.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
    }

    pub(super) fn kill(&self) {
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
    }

    /// Reaps the process if it has ended.
    pub(super) fn try_reap(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }
}

/// Sets the part of the environment that every process has from its head.
fn give_environment(command: &mut Command, temp_dir: &Path, tracing: &TracingSettings) {
    command
        .envs(tracing.variables())
        // So that a task that calls tracer reaches its own head.
        .env(crate::config::TEMP_DIR_VARIABLE, temp_dir)
        // What the head was started in is not the context of the tasks.
        .env_remove(crate::propagation::TRACEPARENT)
        .env_remove(crate::propagation::TRACESTATE)
        .env_remove(crate::propagation::BAGGAGE);
}

/// Kills the process group of the command that a worker was running when it ended, if its leader is the very process that was started: a spool
/// that a task has written over could name any group. What loses its leader before is the head's child then, and ended as such.
pub(super) fn kill_command_left_behind(story: &Story) {
    let group = story.identified_command_group().and_then(|group| Pid::from_raw(i32::try_from(group).ok()?));
    let of_head = [Some(std::process::id()), super::guard::pid()];
    if let Some(group) = group.filter(|group| !of_head.contains(&Some(group.as_raw_nonzero().get().unsigned_abs()))) {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// Describes how a worker ended, in words and for `error.type`.
pub(crate) fn describe_exit(status: ExitStatus) -> WorkerExit {
    let (cause, error_type) = tracer_core::task::describe_exit(status);
    WorkerExit { cause, error_type, memory: None }
}
