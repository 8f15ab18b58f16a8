//! Times of the operating system alone: starting a process, and sending 64 bytes through three processes and back.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::Failure;
use super::report::nanos;

/// The program that does nothing.
pub(crate) const TRUE: &str = "/bin/true";
/// About what a small message takes.
const MESSAGE: usize = 64;
/// Round trips before those that count.
const WARM_UP: usize = 20;

fn spawn_true() -> Result<(), Failure> {
    let status = Command::new(TRUE).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(format!("{TRUE} ended with {status}").into()) }
}

/// Nanoseconds of starting and reaping a process, one after the other.
pub(crate) fn spawn_times(count: usize) -> Result<Vec<f64>, Failure> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let begun = Instant::now();
        spawn_true()?;
        times.push(nanos(begun.elapsed()));
    }
    Ok(times)
}

/// The same with what every command that is looked after needs: its outputs read to their ends, a process group of its own, and what it has used.
///
/// Not the signal when its parent dies: that is one system call more, but for its sake the standard library would copy this program's memory map.
/// Without it, it starts a process as workers do, which share their memory with the child until it runs its program.
fn supervise_true() -> Result<(), Failure> {
    let mut command = Command::new(TRUE);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn()?;
    let mut written = Vec::new();
    for output in [child.stdout.take().map(OwnedFd::from), child.stderr.take().map(OwnedFd::from)] {
        File::from(output.ok_or("no pipe")?).read_to_end(&mut written)?;
    }
    let mut status = 0;
    // SAFETY: all zeroes are a valid rusage; wait4 fills both in for a child that nobody else waits for.
    let reaped = unsafe {
        let mut usage = std::mem::zeroed();
        libc::wait4(i32::try_from(child.id())?, &mut status, 0, &mut usage)
    };
    if reaped > 0 && status == 0 { Ok(()) } else { Err(format!("{TRUE} ended with status {status}").into()) }
}

/// Processes per second that `at_once` threads start and reap.
pub(crate) fn spawns_per_second(count: usize, at_once: usize) -> Result<f64, Failure> {
    per_second(spawn_true, count, at_once)
}

/// Processes per second that `at_once` threads start, look after and reap.
pub(crate) fn supervised_per_second(count: usize, at_once: usize) -> Result<f64, Failure> {
    per_second(supervise_true, count, at_once)
}

fn per_second(spawn_true: fn() -> Result<(), Failure>, count: usize, at_once: usize) -> Result<f64, Failure> {
    let each = count.div_ceil(at_once);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..at_once)
            .map(|_| scope.spawn(|| (0..each).try_for_each(|_| spawn_true().map_err(|error| error.to_string()))))
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked".to_owned())?)
    })?;
    Ok((each * at_once) as f64 / begun.elapsed().as_secs_f64())
}

/// A process of the floor, which ends when its socket is closed, and is killed if it has not.
struct Role(Child);

impl Role {
    /// Starts a copy of this program whose standard input, and output if need be, are sockets.
    fn spawn(role: &str, input: UnixStream, output: Option<UnixStream>) -> Result<Role, Failure> {
        let output = output.map_or_else(Stdio::null, |output| OwnedFd::from(output).into());
        let child = Command::new(std::env::current_exe()?)
            .args(["role", role])
            .stdin(OwnedFd::from(input))
            .stdout(output)
            .spawn()?;
        Ok(Role(child))
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        // Errors mean that it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Nanoseconds of a message from here through a relay process to an echo process and back, with blocking reads.
pub(crate) fn relay_times(count: usize) -> Result<Vec<f64>, Failure> {
    let (mut here, relay_input) = UnixStream::pair()?;
    let (relay_output, echo_input) = UnixStream::pair()?;
    let _relay = Role::spawn("relay", relay_input, Some(relay_output))?;
    let _echo = Role::spawn("echo", echo_input, None)?;
    let mut message = [7; MESSAGE];
    let mut times = Vec::with_capacity(count);
    // The first ones find the processes still starting.
    for number in 0..count + WARM_UP {
        let begun = Instant::now();
        here.write_all(&message)?;
        here.read_exact(&mut message)?;
        if number >= WARM_UP {
            times.push(nanos(begun.elapsed()));
        }
    }
    Ok(times)
}

/// Processes that keep every core busy for as long as this lives.
pub(crate) struct Burners {
    _roles: Vec<(Role, UnixStream)>,
}

impl Burners {
    pub(crate) fn start(count: usize) -> Result<Burners, Failure> {
        let start = || {
            let (here, input) = UnixStream::pair()?;
            Ok((Role::spawn("burner", input, None)?, here))
        };
        Ok(Burners { _roles: (0..count).map(|_| start()).collect::<Result<_, Failure>>()? })
    }
}

/// Runs a copy of this program, in one of its roles.
pub(crate) fn run_role(role: &[String]) -> Result<(), Failure> {
    let socket = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map(UnixStream::from);
    let mut input = socket(std::io::stdin().as_fd())?;
    if role[0] == "burner" {
        // The end of the input is looked for now and then.
        input.set_nonblocking(true)?;
        while input.read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock) {
            (0..1_000_000_u64).for_each(|number| _ = std::hint::black_box(number));
        }
        return Ok(());
    }
    let mut output = if role[0] == "relay" { Some(socket(std::io::stdout().as_fd())?) } else { None };
    let mut message = [0; MESSAGE];
    // The end of the input is the end of the role.
    while input.read_exact(&mut message).is_ok() {
        if let Some(output) = &mut output {
            output.write_all(&message)?;
            output.read_exact(&mut message)?;
        }
        input.write_all(&message)?;
    }
    Ok(())
}
