//! TLS of clients: certificates that are read again when their files change, and handshakes.
//!
//! Each handshake looks whether a file has changed, so that nothing runs while none does. New files that cannot be used change nothing but what
//! is said: in the proxy's log and by `tracer serve status`. Connections keep the keys that they were opened with.
//!
//! Sessions are resumed with tickets (RFC 8446, section 2.2; RFC 5077), whose keys no other process has and the next proxy makes anew. Nothing is taken
//! before a handshake is complete (no 0-RTT), because that could be sent twice by whoever is on the way.

use std::future::{Future, poll_fn};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::Ticketer;
use tokio_rustls::rustls::server::ProducesTickets;
use tokio_rustls::rustls::{self, ServerConfig};
use tracer_ipc::serving::{CertificateReport, ProxyReport, Tls};

use super::connection::Connection;
use super::reports::Reports;
use super::stream::ClientStream;
use crate::certificates::{Certificates, Pair, provider};

/// First byte of a record with a handshake (RFC 8446, section 5.1).
const HANDSHAKE: u8 = 22;

/// Certificates as connections use them.
pub(super) struct Certified {
    tls: Tls,
    now: Mutex<Current>,
    tickets: Arc<dyn ProducesTickets>,
    reports: Arc<Reports>,
}

struct Current {
    config: Arc<ServerConfig>,
    certificates: Arc<Certificates>,
    /// The files when they were read last, whether they could be used or not.
    stamps: Vec<Stamp>,
}

/// Mark that tells one content of a file from another without reading it: device, inode, length, and the time of the last change.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

fn stamp(path: &Path) -> Stamp {
    let found = std::fs::metadata(path).ok()?;
    Some((found.dev(), found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
}

fn files(tls: &Tls) -> impl Iterator<Item = &PathBuf> {
    let names = tls.names.iter().flat_map(|name| [&name.certificate, &name.key]);
    [&tls.certificate, &tls.key].into_iter().chain(names)
}

impl Certified {
    /// Reads the certificates of a service; those that `before` has, if the service names the same files and they cannot be used now.
    pub(super) fn read(
        tls: &Tls,
        before: Option<&Arc<Certified>>,
        reports: &Arc<Reports>,
    ) -> Result<Arc<Certified>, String> {
        if let Some(before) = before.filter(|before| before.tls == *tls) {
            before.config();
            return Ok(Arc::clone(before));
        }
        let tickets = Ticketer::new().map_err(|error| format!("keys of tickets cannot be made: {error}"))?;
        let stamps = files(tls).map(|path| stamp(path)).collect();
        let certificates = Certificates::read(tls).map_err(|error| error.reason)?;
        let (config, certificates) = configure(certificates, &tickets)?;
        let now = Mutex::new(Current { config, certificates, stamps });
        let certified = Certified { tls: tls.clone(), now, tickets, reports: Arc::clone(reports) };
        certified.report(None);
        Ok(Arc::new(certified))
    }

    /// Returns the configuration of the next handshake, with the certificates that the files have now, if they can be used.
    fn config(&self) -> Arc<ServerConfig> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        // Before they are read, so that a change meanwhile is seen by the next one.
        let stamps: Vec<_> = files(&self.tls).map(|path| stamp(path)).collect();
        if stamps == now.stamps {
            return Arc::clone(&now.config);
        }
        now.stamps = stamps;
        let read = Certificates::read(&self.tls).map_err(|error| error.reason);
        let failure = match read.and_then(|read| configure(read, &self.tickets)) {
            Ok((config, certificates)) => {
                (now.config, now.certificates) = (config, certificates);
                eprintln!("tracer: the certificates have changed, and are used from now on");
                None
            }
            Err(reason) => {
                eprintln!("tracer: the certificates have changed and cannot be used; those before are: {reason}");
                Some(reason)
            }
        };
        let config = Arc::clone(&now.config);
        drop(now);
        self.report(failure);
        config
    }

    fn report(&self, failure: Option<String>) {
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let pairs = &now.certificates.pairs;
        self.reports.send(&ProxyReport::Certificates(CertificateReport {
            failure,
            validity: pairs.iter().map(|pair| (pair.path.clone(), pair.validity)).collect(),
            warnings: pairs.iter().flat_map(Pair::warnings).collect(),
        }));
    }
}

fn configure(
    certificates: Certificates,
    tickets: &Arc<dyn ProducesTickets>,
) -> Result<(Arc<ServerConfig>, Arc<Certificates>), String> {
    let certificates = Arc::new(certificates);
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| format!("TLS cannot be set up: {error}"))?;
    let mut config = builder
        .with_no_client_auth()
        .with_cert_resolver(Arc::clone(&certificates) as Arc<dyn rustls::server::ResolvesServerCert>);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config.ticketer = Arc::clone(tickets);
    Ok((Arc::new(config), certificates))
}

/// Reason why a handshake has failed, as metrics have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// It was not complete in time.
    TooSlow,
    /// The client has gone, or the connection is cut.
    Gone,
    /// The client does not speak TLS.
    NotTls,
    /// The client and this server do not agree, or the client has broken the protocol.
    Protocol,
}

impl Failed {
    /// Returns the value of `error.type`.
    pub(super) fn error_type(self) -> &'static str {
        match self {
            Failed::TooSlow => "timeout",
            Failed::Gone => "connection_closed",
            Failed::NotTls => "not_tls",
            Failed::Protocol => "handshake_failure",
        }
    }
}

/// Result of a handshake: the connection, or the reason why there is none, with the connection where it can be answered without TLS.
pub(super) type Shaken = Result<ClientStream, (Failed, Option<ClientStream>)>;

/// Shakes hands with a client, in the time that the head of a request has. Not more than 64 KiB are taken before the handshake is complete.
pub(super) async fn shake_hands(certified: &Certified, stream: TcpStream, connection: &Connection) -> Shaken {
    connection.begins_handshake();
    let shaken = {
        let mut shaking = std::pin::pin!(shake(certified, stream));
        poll_fn(|context| {
            if connection.poll_cut(context) {
                return Poll::Ready(Err((Failed::Gone, None)));
            }
            if connection.is_refusing() {
                return Poll::Ready(Err((Failed::TooSlow, None)));
            }
            shaking.as_mut().poll(context)
        })
        .await
    };
    if shaken.is_ok() {
        connection.ends_handshake();
    }
    shaken
}

async fn shake(certified: &Certified, stream: TcpStream) -> Shaken {
    let mut first = [0];
    match stream.peek(&mut first).await {
        Ok(1) if first[0] == HANDSHAKE => {}
        Ok(1) => return Err((Failed::NotTls, Some(ClientStream::Plain(stream)))),
        Ok(_) | Err(_) => return Err((Failed::Gone, None)),
    }
    match TlsAcceptor::from(certified.config()).accept(stream).await {
        Ok(stream) => Ok(ClientStream::Tls(Box::new(stream))),
        Err(error) if is_protocol(&error) => Err((Failed::Protocol, None)),
        Err(_) => Err((Failed::Gone, None)),
    }
}

fn is_protocol(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_written_anew_or_replaced_has_another_stamp() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.pem");
        assert_eq!(stamp(&path), None);
        std::fs::write(&path, "1").unwrap();
        let first = stamp(&path);
        assert!(first.is_some() && first == stamp(&path));
        std::fs::write(folder.path().join("b.pem"), "2").unwrap();
        std::fs::rename(folder.path().join("b.pem"), &path).unwrap();
        let second = stamp(&path);
        assert_ne!(first, second);
        std::fs::write(&path, "longer").unwrap();
        assert_ne!(second, stamp(&path));
    }

    #[test]
    fn errors_of_the_protocol_are_told_from_those_of_the_connection() {
        let broken = io::Error::new(io::ErrorKind::InvalidData, rustls::Error::HandshakeNotComplete);
        assert!(is_protocol(&broken) && !is_protocol(&io::ErrorKind::UnexpectedEof.into()));
    }
}
