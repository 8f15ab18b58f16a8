//! Connections to the program: HTTP/1.1, kept and used again.

use std::sync::{Mutex, PoisonError};
use std::{fmt, io};

use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tracer_sdk::serve::{Body, Request, Response};

/// The most connections that are kept while nothing is asked.
const IDLE: usize = 64;

/// The place where the program listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// A port of 127.0.0.1.
    Port(u16),
    /// The path of a Unix socket.
    Socket(String),
}

impl Address {
    /// Reads a port, or else a path.
    pub(crate) fn of(text: &str) -> Address {
        text.parse().map_or_else(|_| Address::Socket(text.to_owned()), Address::Port)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Port(port) => write!(f, "127.0.0.1:{port}"),
            Address::Socket(path) => write!(f, "`{path}`"),
        }
    }
}

/// The connections to a program.
pub(crate) struct Connections {
    pub(crate) address: Address,
    idle: Mutex<Vec<SendRequest<Body>>>,
}

impl Connections {
    pub(crate) fn to(address: Address) -> Connections {
        Connections { address, idle: Mutex::default() }
    }

    /// Opens a connection, which is driven until it is closed.
    pub(crate) async fn open(&self) -> io::Result<SendRequest<Body>> {
        match &self.address {
            Address::Port(port) => {
                let stream = TcpStream::connect(("127.0.0.1", *port)).await?;
                stream.set_nodelay(true)?;
                drive(stream).await
            }
            Address::Socket(path) => drive(UnixStream::connect(path).await?).await,
        }
    }

    /// Sends a request on a connection that is kept, or else on a new one. A request that a kept connection has not taken, because the program
    /// has just closed it, is sent on the next.
    pub(crate) async fn send(&self, mut request: Request<Body>) -> Result<Response<Incoming>, String> {
        loop {
            let kept = self.take();
            let is_new = kept.is_none();
            let mut connection = match kept {
                Some(connection) => connection,
                None => self.open().await.map_err(|error| format!("{}: {error}", self.address))?,
            };
            if connection.ready().await.is_err() && !is_new {
                continue;
            }
            match connection.try_send_request(request).await {
                Ok(response) => {
                    self.keep(connection);
                    return Ok(response);
                }
                Err(mut error) => match error.take_message() {
                    Some(unsent) if !is_new => request = unsent,
                    _ => return Err(format!("{}: {}", self.address, error.into_error())),
                },
            }
        }
    }

    /// Sends a request on a connection of its own, which may change its protocol with the answer.
    pub(crate) async fn send_alone(&self, request: Request<Body>) -> Result<Response<Incoming>, String> {
        let at = |error: &dyn fmt::Display| format!("{}: {error}", self.address);
        let mut connection = self.open().await.map_err(|error| at(&error))?;
        connection.send_request(request).await.map_err(|error| at(&error))
    }

    fn take(&self) -> Option<SendRequest<Body>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        // One whose response is still on its way is not ready, and stays.
        idle.retain(|connection| !connection.is_closed());
        let ready = idle.iter().rposition(SendRequest::is_ready)?;
        Some(idle.swap_remove(ready))
    }

    fn keep(&self, connection: SendRequest<Body>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE {
            idle.push(connection);
        }
    }
}

async fn drive(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> io::Result<SendRequest<Body>> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    // Its errors are those of its requests.
    tokio::spawn(async move { drop(connection.with_upgrades().await) });
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_a_port_and_anything_else_a_path() {
        assert_eq!(Address::of("8000"), Address::Port(8000));
        assert_eq!(Address::of("/run/a.sock"), Address::Socket("/run/a.sock".into()));
        assert_eq!(Address::of("/run/a.sock").to_string(), "`/run/a.sock`");
    }
}
