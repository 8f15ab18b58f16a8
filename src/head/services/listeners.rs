//! The sockets on which a service listens: one for each thread of its proxy, kept open for as long as the service is there.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use tracer_ipc::protocol::{ServiceRefusal, ServiceRefusalCode};

/// Clients that wait to be accepted, at most.
const BACKLOG: i32 = 4096;
/// The most threads of a proxy.
const THREAD_LIMIT: usize = 8;

/// Threads of a proxy: half of the cores.
pub(super) fn threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / 2).clamp(1, THREAD_LIMIT)
}

/// The listeners of an address.
#[derive(Debug)]
pub(super) struct Listeners {
    pub(super) address: SocketAddr,
    pub(super) sockets: Vec<OwnedFd>,
}

impl Listeners {
    /// Listens, unless somebody else does. Port 0 stands for one that is free.
    pub(super) fn open(address: SocketAddr) -> Result<Listeners, ServiceRefusal> {
        Listeners::try_open(address).map_err(|error| refusal(address, &error))
    }

    fn try_open(address: SocketAddr) -> io::Result<Listeners> {
        // Sockets that share a port would not find that it is in use.
        let alone = TcpListener::bind(address)?;
        let address = alone.local_addr()?;
        drop(alone);
        let sockets = (0..threads()).map(|_| shared(address)).collect::<io::Result<_>>()?;
        Ok(Listeners { address, sockets })
    }
}

fn shared(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

fn refusal(address: SocketAddr, error: &io::Error) -> ServiceRefusal {
    let hint = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "\n(hint: another program has this port; `ss -ltnp` shows which, and `address` in `[http]` takes another one)"
        }
        io::ErrorKind::PermissionDenied => "\n(hint: ports below 1024 are for root; take another, such as 8000)",
        io::ErrorKind::AddrNotAvailable => "\n(hint: this machine does not have that address)",
        _ => "",
    };
    let message = format!("a service cannot listen on {address}: {error}{hint}");
    ServiceRefusal { code: ServiceRefusalCode::Address, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_refused_also_when_it_is_shared_and_a_free_one_is_taken() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let open = Listeners::open(any).unwrap();
        assert!(open.address.port() != 0 && open.sockets.len() == threads());
        let refused = Listeners::open(open.address).unwrap_err();
        assert_eq!(refused.code, ServiceRefusalCode::Address);
        assert!(refused.message.contains("another program has this port"), "{}", refused.message);
        let address = open.address;
        drop(open);
        assert_eq!(Listeners::open(address).unwrap().address, address);
    }
}
