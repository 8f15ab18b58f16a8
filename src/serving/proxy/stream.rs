//! The connection of a client, with TLS or without.

use std::io::{self, ErrorKind, IoSlice, Read};
use std::mem;
use std::net;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::limits::LINGER_BYTES;

/// The connection of a client. Bytes are those inside of TLS.
pub(super) enum ClientStream {
    Plain(TcpStream),
    /// Read by whoever polls it and waking nobody: what comes costs no wake-up of the thread.
    Unwatched(net::TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    /// Given up, because the runtime could not watch it again.
    Lost,
}

impl ClientStream {
    /// Returns whether what was written may still wait for a flush.
    pub(super) fn is_buffered(&self) -> bool {
        matches!(self, ClientStream::Tls(_))
    }

    /// Has the runtime watch it, or not: then nobody is woken when something comes. One with TLS is always watched.
    pub(super) fn set_watched(&mut self, is_watched: bool) -> io::Result<()> {
        let changed = match mem::replace(self, ClientStream::Lost) {
            ClientStream::Plain(stream) if !is_watched => stream.into_std().map(ClientStream::Unwatched),
            ClientStream::Unwatched(stream) if is_watched => TcpStream::from_std(stream).map(ClientStream::Plain),
            unchanged => Ok(unchanged),
        };
        *self = changed?;
        Ok(())
    }

    /// Waits for what the client sends and drops some of it. Returns how many bytes they were, 0 at the end. Without TLS the kernel drops them, and nothing is
    /// copied (tcp(7), `MSG_TRUNC`). No memory is held while it waits but what TLS needs.
    pub(super) async fn discard(&mut self) -> io::Result<usize> {
        match self {
            ClientStream::Plain(stream) => {
                let drop_some = || Ok(recv(&*stream, &mut [0; LINGER_BYTES][..], RecvFlags::TRUNC)?.1);
                stream.async_io(Interest::READABLE, drop_some).await
            }
            ClientStream::Tls(_) | ClientStream::Unwatched(_) | ClientStream::Lost => self.read(&mut [0; 4096]).await,
        }
    }
}

fn lost() -> io::Error {
    ErrorKind::NotConnected.into()
}

/// Calls the stream that writes, which is watched for that.
macro_rules! writer {
    ($this:expr, $stream:ident => $call:expr) => {{
        let this = $this.get_mut();
        this.set_watched(true)?;
        match this {
            ClientStream::Plain($stream) => $call,
            ClientStream::Tls($stream) => $call,
            ClientStream::Unwatched(_) | ClientStream::Lost => Poll::Ready(Err(lost())),
        }
    }};
}

impl AsyncRead for ClientStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ClientStream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            ClientStream::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
            ClientStream::Unwatched(stream) => match stream.read(buffer.initialize_unfilled()) {
                Ok(count) => {
                    buffer.advance(count);
                    Poll::Ready(Ok(()))
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            },
            ClientStream::Lost => Poll::Ready(Err(lost())),
        }
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        writer!(self, stream => Pin::new(stream).poll_write(context, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        writer!(self, stream => Pin::new(stream).poll_write_vectored(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            ClientStream::Tls(stream) => stream.is_write_vectored(),
            ClientStream::Plain(_) | ClientStream::Unwatched(_) | ClientStream::Lost => true,
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ClientStream::Plain(stream) => Pin::new(stream).poll_flush(context),
            ClientStream::Tls(stream) => Pin::new(stream).poll_flush(context),
            // Nothing is buffered.
            ClientStream::Unwatched(_) | ClientStream::Lost => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        writer!(self, stream => Pin::new(stream).poll_shutdown(context))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};

    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    struct Counts(AtomicUsize);

    impl Wake for Counts {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_comes_to_one_that_is_not_watched_wakes_nobody_and_is_read_all_the_same() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut client = net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut stream = ClientStream::Plain(listener.accept().await.unwrap().0);
            let counts = Arc::new(Counts(AtomicUsize::new(0)));
            let waker = Waker::from(Arc::clone(&counts));
            let read = |stream: &mut ClientStream| {
                let mut bytes = [0; 8];
                let mut buffer = ReadBuf::new(&mut bytes);
                let polled = Pin::new(stream).poll_read(&mut Context::from_waker(&waker), &mut buffer);
                polled.map(|read| read.map(|()| buffer.filled().to_vec()))
            };
            stream.set_watched(false).unwrap();
            assert!(read(&mut stream).is_pending());
            client.write_all(b"one").unwrap();
            let found = loop {
                if let Poll::Ready(found) = read(&mut stream) {
                    break found.unwrap();
                }
                tokio::task::yield_now().await;
            };
            assert_eq!((found.as_slice(), counts.0.load(Ordering::Relaxed)), (&b"one"[..], 0));
            // What has come meanwhile is heard of once it is watched again, for which writing is enough.
            client.write_all(b"two").unwrap();
            stream.write_all(b"answer").await.unwrap();
            assert!(matches!(stream, ClientStream::Plain(_)));
            let mut bytes = [0; 3];
            stream.read_exact(&mut bytes).await.unwrap();
            assert_eq!(&bytes, b"two");
            let mut answer = [0; 6];
            client.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"answer");
            stream.set_watched(false).unwrap();
            drop(client);
            let end = loop {
                if let Poll::Ready(end) = read(&mut stream) {
                    break end.unwrap();
                }
                tokio::task::yield_now().await;
            };
            assert!(end.is_empty());
        });
    }
}
