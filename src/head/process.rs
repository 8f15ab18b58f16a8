//! Starts and ends worker processes; on the head's side the only place that spawns or signals.
//!
//! A worker leads its own process group, so that a signal reaches what it started, and a Ctrl-C in the terminal of
//! a head in the foreground does not reach it behind the head's back. It asks the kernel for SIGKILL when the head
//! dies, and checks that it was not too late for that. Processes of services are started by the guard, and end with that. The process is identified by a pidfd, so a recycled pid is never
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
use tracer_core::task::WorkerId;
use tracer_host::static_tls;
use tracer_ipc::background::as_usual;
use tracer_ipc::environment::SERVICE_VARIABLE;
use tracer_ipc::protocol::TracingSettings;
use tracer_ipc::spool::{ClaimRing, SLOT_COUNT, Story};
use tracer_reactor::WorkerExit;

use super::keeper::{Keeper, Key, StartedProcess};

/// Arguments of a worker's start.
pub(super) struct WorkerCommand<'a> {
    pub(super) temp_dir: &'a Path,
    pub(super) session_dir: &'a Path,
    pub(super) worker: WorkerId,
    pub(super) tracing: &'a TracingSettings,
}

/// A worker process, from its start until it is reaped.
pub(super) struct WorkerProcess {
    child: Parentage,
    pub(super) pidfd: OwnedFd,
    pub(super) claims: ClaimRing,
    pub(super) stdout: Option<ChildStdout>,
    pub(super) stderr: Option<ChildStderr>,
}

/// The parent of a process, who can say how it has ended.
enum Parentage {
    /// This head.
    Head(Child),
    /// The guard, which reaps it when it is kept no longer.
    Guard { pid: u32, number: u64, keeper: Keeper },
}

impl Parentage {
    /// Returns the pid, which is its own until it is reaped.
    fn pid(&self) -> Option<Pid> {
        match self {
            Parentage::Head(child) => Some(Pid::from_child(child)),
            Parentage::Guard { pid, .. } => Pid::from_raw(i32::try_from(*pid).ok()?),
        }
    }

    fn signal_group(&self, signal: Signal) {
        // Not reaped yet, so its pid is its own. Errors mean that it is gone already.
        if let Some(pid) = self.pid() {
            let _ = kill_process_group(pid, signal);
        }
    }
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
        let spool = tracer_ipc::session::worker_spool(command.session_dir, command.worker);
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
        static_tls::reserve(&mut program);
        program.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        WorkerProcess::of(&mut program, claims)
    }

    fn of(program: &mut Command, claims: ClaimRing) -> io::Result<WorkerProcess> {
        let mut child = as_usual(|| program.spawn()).map_err(|error| named(program, &error))?;
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
            Ok(pidfd) => Ok(WorkerProcess { child: Parentage::Head(child), pidfd, claims, stdout, stderr }),
            Err(error) => {
                // It has not been told of any task; it must not be left behind.
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// Has the guard start a process of a service, whose spool is made. Its output comes in pipes. `value` is for the head that comes after this one.
    pub(super) fn spawn_for_service(
        command: ServiceCommand<'_>,
        value: &impl serde::Serialize,
    ) -> io::Result<WorkerProcess> {
        let claims = ClaimRing::create(command.spool, command.slots).map_err(io::Error::other)?;
        let spool = command.spool;
        let spawned = command.spawn(value).and_then(|(started, number, keeper)| {
            let files = [started.pidfd, started.stdout, started.stderr];
            WorkerProcess::of_guard(started.pid, number, keeper, files, claims)
        });
        if spawned.is_err() {
            let _ = Story::remove(spool);
        }
        spawned
    }

    /// A process that the guard has started, with its pidfd and its outputs.
    pub(super) fn of_guard(
        pid: u32,
        number: u64,
        keeper: Keeper,
        [pidfd, stdout, stderr]: [OwnedFd; 3],
        claims: ClaimRing,
    ) -> io::Result<WorkerProcess> {
        for pipe in [&stdout, &stderr] {
            rustix::io::ioctl_fionbio(pipe, true)?;
        }
        let child = Parentage::Guard { pid, number, keeper };
        Ok(WorkerProcess { child, pidfd, claims, stdout: Some(stdout.into()), stderr: Some(stderr.into()) })
    }

    pub(super) fn pid(&self) -> u32 {
        match &self.child {
            Parentage::Head(child) => child.id(),
            Parentage::Guard { pid, .. } => *pid,
        }
    }

    /// Sends SIGTERM, or SIGKILL, to the command that the worker runs and its group. False when there is none.
    pub(super) fn signal_command(&self, kill: bool) -> bool {
        let group = self.claims.command_group().and_then(|group| Pid::from_raw(i32::try_from(group).ok()?));
        let signal = if kill { Signal::KILL } else { Signal::TERM };
        group.is_some_and(|group| kill_process_group(group, signal).is_ok())
    }

    /// Sends SIGTERM to the worker and its group.
    pub(super) fn terminate(&self) {
        self.child.signal_group(Signal::TERM);
    }

    /// Kills the worker, its group, and the command it runs.
    pub(super) fn kill(&self, spool: &Path) {
        self.child.signal_group(Signal::KILL);
        if let Ok(story) = Story::open(spool) {
            kill_command_left_behind(&story);
        }
    }

    /// Waits for the end of a process that was killed, and reaps it.
    pub(super) fn reap(&mut self) {
        match &mut self.child {
            // It fails only when there is nothing to reap.
            Parentage::Head(child) => drop(child.wait()),
            Parentage::Guard { number, keeper, .. } => keeper.forget(Key::Process(*number)),
        }
    }

    /// Reaps the process if it has ended; the guard's when its story is [over](Self::reap).
    pub(super) fn try_reap(&mut self) -> io::Result<Option<ExitStatus>> {
        match &mut self.child {
            Parentage::Head(child) => child.try_wait(),
            Parentage::Guard { number, keeper, .. } => keeper.how_ended(*number),
        }
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
    /// The number of the process, and the way to the guard, which starts it.
    pub(super) number: u64,
    pub(super) keeper: Keeper,
    /// The ends of its control socket: the process's and the head's.
    pub(super) control: (OwnedFd, BorrowedFd<'a>),
    pub(super) spool: &'a Path,
    /// The number of spans that its spool has room for.
    pub(super) slots: usize,
    /// Variables of its environment, besides those of the session.
    pub(super) env: &'a BTreeMap<String, String>,
    /// The folder that it runs in; none for the head's.
    pub(super) cwd: Option<&'a Path>,
}

impl ServiceCommand<'_> {
    fn spawn(self, value: &impl serde::Serialize) -> io::Result<(StartedProcess, u64, Keeper)> {
        let mut program = own_program()?;
        let guard = super::guard::pid().ok_or_else(|| io::Error::other("this head has no guard"))?;
        program.arg(self.role).arg(self.session_dir).arg(guard.to_string());
        give_environment(&mut program, self.temp_dir, self.tracing);
        program.env(SERVICE_VARIABLE, self.service);
        program.envs(self.env);
        static_tls::reserve(&mut program);
        if let Some(folder) = self.cwd {
            program.current_dir(folder);
        }
        let started = self.keeper.start(self.number, &program, value, (&self.control.0, self.control.1))?;
        Ok((started, self.number, self.keeper))
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

/// Arguments of the agent's start.
pub(super) struct AgentCommand<'a> {
    pub(super) temp_dir: &'a Path,
    pub(super) session_dir: &'a Path,
    pub(super) tracing: &'a TracingSettings,
}

/// A process beside the head, from its start until it is reaped: that of the HTTP API, or the agent.
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
        static_tls::reserve(&mut program);
        program.stdin(Stdio::from(command.listener.try_clone_to_owned()?));
        FrontProcess::start(&mut program, log)
    }

    /// Starts the agent.
    pub(super) fn spawn_agent(command: &AgentCommand<'_>) -> io::Result<FrontProcess> {
        let log_path = command.session_dir.join("logs/agent.log");
        let log = OpenOptions::new().create(true).append(true).mode(0o600).open(log_path)?;
        let mut program = own_program()?;
        program.arg("agent").arg("--session").arg(command.session_dir);
        program.arg("--head-pid").arg(std::process::id().to_string());
        give_environment(&mut program, command.temp_dir, command.tracing);
        program.stdin(Stdio::null());
        FrontProcess::start(&mut program, log)
    }

    fn start(program: &mut Command, log: std::fs::File) -> io::Result<FrontProcess> {
        program.process_group(0).stdout(Stdio::from(log.try_clone()?)).stderr(Stdio::from(log));
        let mut child = as_usual(|| program.spawn())?;
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
        .env(tracer_ipc::environment::TEMP_DIR_VARIABLE, temp_dir)
        // What the head was started in is not the context of the tasks.
        .env_remove(tracer_core::propagation::TRACEPARENT)
        .env_remove(tracer_core::propagation::TRACESTATE)
        .env_remove(tracer_core::propagation::BAGGAGE);
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
pub fn describe_exit(status: ExitStatus) -> WorkerExit {
    let (cause, error_type) = tracer_core::task::describe_exit(status);
    WorkerExit { cause, error_type, memory: None }
}
