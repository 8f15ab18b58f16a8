//! Messages between the head and a caller that is no proxy: a replica, a worker or a program whose code calls deployments.
//!
//! A caller connects to a socket of the kind SOCK_SEQPACKET in the session's folder and speaks as over a [control socket](crate::control). It asks the head
//! for a deployment by its name, and for a lane to a replica when its router has found a place there; it gets the table of the service, its number in it,
//! and sockets. Requests go over the lanes: neither the head nor a proxy sees one.
//!
//! ```text
//!  caller                                   head
//!   Find { deployment } ────────────────────▶
//!   ◀──────────────── Service (table, event descriptor), Caller (event descriptor) for each other, Route
//!   Wanted { deployment } ──────────────────▶          the first request after a while without
//!   Lane { replica } ───────────────────────▶
//!   ◀──────────────── Lane (socket, claims)            the replica gets the other end
//!   ◀──────────────── Refresh, ReplicaGone, Route      as the service changes
//! ```

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
use serde::{Deserialize, Serialize};

use crate::serving::Detail;
use crate::session::short_path;

/// Callers that wait to be accepted, at most.
const BACKLOG: i32 = 128;
/// The name of the socket in the session's folder.
const SOCKET: &str = "calls.sock";

/// Report of a caller to the head.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallerReport {
    /// Asks for a deployment. Answered by [`CallerOrder::Route`].
    Find {
        /// The deployment: its name, or `application/name`, or `service/application/name`.
        deployment: String,
        /// Service and application of the caller, which are searched first.
        home: Option<(String, String)>,
    },
    /// A request has come to a deployment of whose next request the head [wants to know](crate::replica_table::ReplicaTable::watch).
    Wanted {
        /// The name of the service.
        service: String,
        /// The deployment's number in the table.
        deployment: u32,
    },
    /// Asks for a lane to a replica at which a request of this caller has a place. Answered by [`CallerOrder::Lane`] or [`CallerOrder::NoLane`].
    Lane {
        /// The name of the service.
        service: String,
        /// The replica's number in the table.
        replica: u32,
    },
}

/// A deployment, as a caller needs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallRoute {
    /// The name of the service.
    pub service: String,
    /// The name of the application.
    pub application: String,
    /// Route prefix of the application.
    pub route_prefix: String,
    /// The name of the deployment.
    pub deployment: String,
    /// Index of the deployment in the table.
    pub index: u32,
    /// For how long a call may wait for a replica.
    pub queue_timeout: Option<Duration>,
    /// True if the service is traced.
    pub is_traced: bool,
    /// Level of detail of the spans of its requests.
    pub detail: Detail,
}

/// Order of the head to a caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallerOrder {
    /// The table of a service and the event descriptor that wakes this caller go along.
    Service {
        /// The name of the service.
        service: String,
        /// The number of this caller in the table.
        caller: u32,
    },
    /// The answer to [`CallerReport::Find`], and again whenever it becomes another one.
    Route {
        /// The deployment, as it was asked for.
        wanted: String,
        /// The deployment, or why there is none.
        route: Result<CallRoute, String>,
    },
    /// Another caller of the same table, with the event descriptor that wakes it.
    Caller {
        /// The name of the service.
        service: String,
        /// Its number in the table.
        caller: u32,
    },
    /// A lane to a replica: a socket and a file of [claims](crate::claims::SharedClaims).
    Lane {
        /// The name of the service.
        service: String,
        /// The replica's number in the table.
        replica: u32,
        /// The replica's name, as spans have it.
        name: String,
    },
    /// There is no such replica any more.
    NoLane {
        /// The name of the service.
        service: String,
        /// The replica's number in the table.
        replica: u32,
    },
    /// The table of a service has changed.
    Refresh {
        /// The name of the service.
        service: String,
    },
    /// A replica has ended and its spans are complete. Its number may be another one's after this.
    ReplicaGone {
        /// The name of the service.
        service: String,
        /// The replica's number in the table.
        replica: u32,
    },
    /// Ask again what was not answered: the head that was asked is gone.
    Again,
    /// A service has ended, with its table.
    ServiceGone {
        /// The name of the service.
        service: String,
    },
}

/// Returns the socket at which a head takes callers.
pub fn socket_path(session_dir: &Path) -> PathBuf {
    session_dir.join(SOCKET)
}

fn new_socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC | flags, None)?)
}

/// Listens for callers. The session's folder is its owner's alone.
pub fn listen_for_callers(session_dir: &Path) -> io::Result<OwnedFd> {
    let socket = new_socket(SocketFlags::NONBLOCK)?;
    short_path(session_dir, |dir| Ok(bind(&socket, &SocketAddrUnix::new(dir.join(SOCKET))?)?))?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Connects to the head of a session as a caller.
pub fn connect_as_caller(session_dir: &Path) -> io::Result<OwnedFd> {
    let socket = new_socket(SocketFlags::empty())?;
    short_path(session_dir, |dir| Ok(connect(&socket, &SocketAddrUnix::new(dir.join(SOCKET))?)?))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control;

    #[test]
    fn a_caller_speaks_to_the_head_also_in_a_folder_with_a_long_name() {
        let folder = tempfile::tempdir().unwrap();
        let long = folder.path().join("x".repeat(120));
        std::fs::create_dir(&long).unwrap();
        let listener = listen_for_callers(&long).unwrap();
        let caller = connect_as_caller(&long).unwrap();
        let head = rustix::net::accept(&listener).unwrap();
        let report = CallerReport::Lane { service: "shop".into(), replica: 3 };
        control::send(&caller, &report, &[]).unwrap();
        assert_eq!(control::receive::<CallerReport>(&head).unwrap().unwrap().0, report);
        assert_eq!(connect_as_caller(folder.path()).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
