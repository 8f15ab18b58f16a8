//! Files and facts that outlive a head, which its guard keeps, and what the two say to each other.
//!
//! A service goes on when its head is killed: the guard has started its processes, so they are the guard's children, and holds another
//! descriptor of every file that connects them to a head. The next head begins as a copy of the guard, with all of these files. Nobody connects
//! again, and what a process has reported meanwhile is still in its socket.
//!
//! Messages travel as over any [control socket](tracer_ipc::control), one pair for each head. The guard looks into no value: what it keeps is for
//! the next head.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tracer_ipc::control;

/// Owner of something that is kept.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Key {
    /// Settings of the head, and the session; with the locks of the place.
    Head,
    /// The socket of the head.
    Socket,
    /// The port of the HTTP API.
    Front,
    /// The socket for callers of deployments.
    CallerSocket,
    /// The state of a service, as the reactor has it.
    Service(String),
    /// The table of a service.
    Table(String),
    /// The listeners of a service at an address.
    Listeners(String, SocketAddr),
    /// The event descriptor that wakes a caller of a service.
    Waker(String, u32),
    /// A process of a service, by its number.
    Process(u64),
    /// A caller of deployments that is connected.
    Caller(u64),
}

/// Something that is kept.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// MessagePack of the head's.
    pub(super) value: Vec<u8>,
    pub(super) files: Vec<OwnedFd>,
    /// The process, if it is one: a child of the guard, which is reaped when it is kept no longer. Its files are its control socket, its pidfd and its
    /// outputs.
    pub(super) pid: Option<u32>,
}

impl Kept {
    /// Reads the value.
    pub(super) fn value<T: DeserializeOwned>(&self) -> io::Result<T> {
        rmp_serde::from_slice(&self.value).map_err(io::Error::other)
    }

    /// Takes a file, by its position at first.
    pub(super) fn file(&self, at: usize) -> io::Result<OwnedFd> {
        let missing = || io::Error::other("a file of it is missing");
        self.files.get(at).ok_or_else(missing)?.try_clone()
    }
}

/// Everything that is kept.
pub(super) type AllKept = BTreeMap<Key, Kept>;

/// A head's message to its guard.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToGuard {
    /// Keep this, in place of what was kept of it. Its files go along.
    Keep {
        /// Its owner.
        key: Key,
        /// MessagePack.
        value: Vec<u8>,
    },
    /// Keep this no longer. A process that is not kept is ended.
    Forget {
        /// Its owner.
        key: Key,
    },
    /// Start a process, as the [order](StartOrder) in the first file says. The next files are the ends of its control socket: its own, which it gets as
    /// standard input, and the head's. Answered by [`FromGuard::Started`].
    Start {
        /// Its number.
        process: u64,
        /// MessagePack.
        value: Vec<u8>,
    },
    /// Say how a process has ended. Answered by [`FromGuard::Ended`].
    HowEnded {
        /// Its number.
        process: u64,
    },
    /// This head has begun: it has taken over what was kept.
    HasBegun,
    /// This head ends all of it in order: no other is to come after it.
    Stops,
    /// This head ends for another program, which is to go on as the guard.
    Replace(Replacement),
}

/// A program that goes on in the place of the one that the guard and its head are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Replacement {
    /// The program.
    pub(super) executable: PathBuf,
    /// The file with the settings of its head, in JSON.
    pub(super) settings: PathBuf,
    /// True if it goes on with the processes of services; else they have ended.
    pub(super) keeps_services: bool,
}

/// The guard's answer to its head.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromGuard {
    /// The pid of a process that was started, with its pidfd and its outputs; or why it was not.
    Started(Result<u32, String>),
    /// Wait status of a process that has ended; none of one that has not.
    Ended(Option<i32>),
}

/// Program, arguments, environment and folder of a process that is to be started.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StartOrder {
    program: Vec<u8>,
    arguments: Vec<Vec<u8>>,
    /// Variables beside those that the guard has; none for one that it is not to have.
    variables: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    folder: Option<PathBuf>,
}

impl StartOrder {
    fn of(command: &Command) -> StartOrder {
        StartOrder {
            program: command.get_program().as_bytes().to_vec(),
            arguments: command.get_args().map(|argument| argument.as_bytes().to_vec()).collect(),
            variables: command
                .get_envs()
                .map(|(name, value)| (name.as_bytes().to_vec(), value.map(|value| value.as_bytes().to_vec())))
                .collect(),
            folder: command.get_current_dir().map(Into::into),
        }
    }

    /// Applies it to the program of a command that `begin` makes.
    pub(super) fn command(self, begin: impl FnOnce(OsString) -> Command) -> Command {
        let mut command = begin(OsString::from_vec(self.program));
        command.args(self.arguments.into_iter().map(OsString::from_vec));
        for (name, value) in self.variables {
            match value {
                Some(value) => command.env(OsString::from_vec(name), OsString::from_vec(value)),
                None => command.env_remove(OsString::from_vec(name)),
            };
        }
        if let Some(folder) = self.folder {
            command.current_dir(folder);
        }
        command
    }
}

/// A process that the guard has started.
#[derive(Debug)]
pub(super) struct StartedProcess {
    pub(super) pid: u32,
    pub(super) pidfd: OwnedFd,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

/// The head's end of the connection to its guard.
#[derive(Debug)]
pub(super) struct Keeper {
    socket: OwnedFd,
}

impl Keeper {
    pub(super) fn of(socket: OwnedFd) -> Keeper {
        Keeper { socket }
    }

    /// Another descriptor of the same connection.
    pub(super) fn try_clone(&self) -> io::Result<Keeper> {
        Ok(Keeper { socket: self.socket.try_clone()? })
    }

    /// Has something kept. A guard that is gone keeps nothing, and the head ends with it.
    pub(super) fn keep(&self, key: Key, value: &impl Serialize, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let value = rmp_serde::to_vec_named(value).map_err(io::Error::other)?;
        control::send(&self.socket, &ToGuard::Keep { key, value }, files)
    }

    /// Has something kept no longer.
    pub(super) fn forget(&self, key: Key) {
        let _ = control::send(&self.socket, &ToGuard::Forget { key }, &[]);
    }

    /// Says that this head has begun.
    pub(super) fn has_begun(&self) {
        let _ = control::send(&self.socket, &ToGuard::HasBegun, &[]);
    }

    /// Says that this head ends all of it.
    pub(super) fn stops(&self) {
        let _ = control::send(&self.socket, &ToGuard::Stops, &[]);
    }

    /// Has another program go on when this head has ended.
    pub(super) fn replace(&self, executable: PathBuf, settings: PathBuf, keeps_services: bool) -> io::Result<()> {
        let replacement = Replacement { executable, settings, keeps_services };
        control::send(&self.socket, &ToGuard::Replace(replacement), &[])
    }

    /// Has a process started as `command` says, with these ends of its control socket: its own, and the head's.
    pub(super) fn start(
        &self,
        process: u64,
        command: &Command,
        value: &impl Serialize,
        (own, of_head): (&OwnedFd, BorrowedFd<'_>),
    ) -> io::Result<StartedProcess> {
        let order = control::send_long(&StartOrder::of(command))?;
        let value = rmp_serde::to_vec_named(value).map_err(io::Error::other)?;
        let files = [order.as_fd(), own.as_fd(), of_head];
        match self.ask(&ToGuard::Start { process, value }, &files)? {
            (FromGuard::Started(Ok(pid)), files) => match <[OwnedFd; 3]>::try_from(files) {
                Ok([pidfd, stdout, stderr]) => Ok(StartedProcess { pid, pidfd, stdout, stderr }),
                Err(_) => Err(io::Error::other("the guard has not passed its files on")),
            },
            (FromGuard::Started(Err(reason)), _) => Err(io::Error::other(reason)),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Returns how a process has ended; none when it has not.
    pub(super) fn how_ended(&self, process: u64) -> io::Result<Option<ExitStatus>> {
        match self.ask(&ToGuard::HowEnded { process }, &[])? {
            (FromGuard::Ended(status), _) => Ok(status.map(ExitStatus::from_raw)),
            (other, _) => Err(unexpected(&other)),
        }
    }

    fn ask(&self, question: &ToGuard, files: &[BorrowedFd<'_>]) -> io::Result<(FromGuard, Vec<OwnedFd>)> {
        control::send(&self.socket, question, files)?;
        control::receive(&self.socket)?.ok_or_else(|| io::Error::other("the guard of the head is gone"))
    }
}

fn unexpected(answer: &FromGuard) -> io::Error {
    io::Error::other(format!("the guard has answered something else: {answer:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_arrives_as_it_was_made() {
        let mut command = Command::new("/bin/true");
        command.args(["a b", ""]).env("ONE", "1").env_remove("TWO").current_dir("/tmp");
        let bytes = rmp_serde::to_vec_named(&StartOrder::of(&command)).unwrap();
        let order: StartOrder = rmp_serde::from_slice(&bytes).unwrap();
        assert_eq!(format!("{:?}", order.command(Command::new)), format!("{command:?}"));
    }
}
