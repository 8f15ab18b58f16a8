//! The server of the page: connections, and the look at the source while pages follow it.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::AsyncReadExt;
use tokio::sync::{Semaphore, watch};

use super::links::Links;
use super::source::Source;
use crate::http_api::connection::Socket;
use crate::http_api::limits;

/// The shortest time between two looks while a page follows.
const INTERVAL: Duration = Duration::from_millis(100);
/// Looking takes at most this part of the time.
const LOOK_SHARE: u32 = 4;
/// Connections at one time; further ones wait until one has ended. A browser has six to a server.
const CONNECTIONS: usize = 128;
/// Pause when no connection can be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Threads that read files, each for one request.
const READERS: usize = 4;

/// State that requests share.
pub(super) struct Shared {
    pub(super) address: SocketAddr,
    pub(super) links: Arc<Links>,
    pub(super) source: Arc<Source>,
    /// The revision of the last look, for the pages that follow.
    revisions: watch::Sender<u64>,
    /// True if somebody looks again and again.
    is_looking: AtomicBool,
}

/// Serves until `ended` is readable.
pub(super) fn run(
    listener: TcpListener,
    address: SocketAddr,
    links: Arc<Links>,
    source: Arc<Source>,
    ended: UnixStream,
) -> io::Result<()> {
    let shared =
        Shared { address, links, source, revisions: watch::Sender::new(0), is_looking: AtomicBool::new(false) };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(READERS)
        .build()?;
    let served = runtime.block_on(serve(Arc::new(shared), listener, ended));
    // Whoever still reads files is not waited for.
    runtime.shutdown_background();
    served
}

async fn serve(shared: Arc<Shared>, listener: TcpListener, ended: UnixStream) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    ended.set_nonblocking(true)?;
    let mut ended = tokio::net::UnixStream::from_std(ended)?;
    let accepting = tokio::spawn(accept(shared, listener));
    let mut byte = [0];
    let _ = ended.read(&mut byte).await;
    accepting.abort();
    Ok(())
}

async fn accept(shared: Arc<Shared>, listener: tokio::net::TcpListener) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let _place = place;
            let service = service_fn(|request| {
                let shared = Arc::clone(&shared);
                async move { Ok::<_, Infallible>(shared.answer(request).await) }
            });
            let stream = Socket::new(stream, limits::WRITE_TIME);
            // An error is the client's: it has gone, or sends what is no HTTP.
            let _ = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(limits::HEAD_TIME)
                .max_buf_size(limits::HEAD_BYTES)
                .max_headers(limits::HEADERS)
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

impl Shared {
    /// Follows the revisions. While anybody does, the source is looked at again and again.
    pub(super) fn follow(self: &Arc<Self>) -> watch::Receiver<u64> {
        let revisions = self.revisions.subscribe();
        if !self.is_looking.swap(true, Ordering::Relaxed) {
            tokio::spawn(Arc::clone(self).look_while_followed());
        }
        revisions
    }

    async fn look_while_followed(self: Arc<Self>) {
        while self.revisions.receiver_count() > 0 {
            let own = Arc::clone(&self);
            let start = Instant::now();
            let looked = tokio::task::spawn_blocking(move || own.source.look().ok().map(|watched| watched.revision));
            if let Ok(Some(revision)) = looked.await {
                self.revisions.send_if_modified(|known| std::mem::replace(known, revision) != revision);
            }
            tokio::time::sleep(INTERVAL.max(start.elapsed() * LOOK_SHARE)).await;
        }
        // Without an await since the count was read: whoever subscribes now finds that nobody looks.
        self.is_looking.store(false, Ordering::Relaxed);
    }
}
