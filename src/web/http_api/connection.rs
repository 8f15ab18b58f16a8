//! Connections: how many, how slow they may be, and which one goes when there are too many.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::AbortHandle;
use tokio::time::Sleep;
use tracer_core::lock::lock;

use super::limits::CONNECTIONS;

/// A client's socket. What is written to it has to be taken within a time, or it is closed.
pub(crate) struct Socket<S> {
    stream: S,
    limit: Duration,
    /// Runs while the client takes nothing.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Socket<S> {
    pub(crate) fn new(stream: S, limit: Duration) -> Socket<S> {
        Socket { stream, limit, stalled: None }
    }

    fn watch<T>(&mut self, written: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let limit = self.limit;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its answers")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Socket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.watch(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.watch(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.watch(shut, context)
    }
}

/// State of a connection.
#[derive(Default)]
pub(crate) struct Known {
    /// Requests on it that were let in and are not answered.
    served: AtomicUsize,
    /// Time since which it has none of them.
    waits_since: Mutex<Option<Instant>>,
}

impl Known {
    /// Notes that a request was let in.
    pub(crate) fn begin(&self) {
        self.served.fetch_add(1, Relaxed);
    }

    /// Notes that it was answered.
    pub(crate) fn end(&self) {
        if self.served.fetch_sub(1, Relaxed) == 1 {
            *lock(&self.waits_since) = Some(Instant::now());
        }
    }

    fn waits_since(&self) -> Option<Instant> {
        if self.served.load(Relaxed) == 0 { *lock(&self.waits_since) } else { None }
    }
}

/// State of a connection, and the handle that closes it.
type Open = (Arc<Known>, Option<AbortHandle>);

/// The connections that are open.
#[derive(Default)]
pub(crate) struct Connections {
    open: Mutex<HashMap<u64, Open>>,
    next: Mutex<u64>,
}

impl Connections {
    /// Makes room for one more: if there are too many, the one goes that has waited longest without a request that was let in. None when
    /// all of them have one.
    pub(crate) fn admit(&self) -> Option<(u64, Arc<Known>)> {
        let mut open = lock(&self.open);
        if open.len() >= CONNECTIONS {
            let waiting = open.iter().filter_map(|(&id, (known, _))| Some((known.waits_since()?, id)));
            let (_, id) = waiting.min()?;
            if let Some((_, Some(connection))) = open.remove(&id) {
                connection.abort();
            }
        }
        let mut next = lock(&self.next);
        *next += 1;
        let known = Arc::new(Known { waits_since: Mutex::new(Some(Instant::now())), ..Known::default() });
        open.insert(*next, (Arc::clone(&known), None));
        Some((*next, known))
    }

    /// Says how a connection is closed.
    pub(crate) fn started(&self, id: u64, connection: AbortHandle) {
        if let Some((_, handle)) = lock(&self.open).get_mut(&id) {
            *handle = Some(connection);
        }
    }

    pub(crate) fn ended(&self, id: u64) {
        lock(&self.open).remove(&id);
    }

    pub(crate) fn count(&self) -> usize {
        lock(&self.open).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_that_has_waited_longest_makes_room_and_those_that_are_served_stay() {
        let connections = Connections::default();
        let mut admitted: Vec<_> = (0..CONNECTIONS).map(|_| connections.admit().unwrap()).collect();
        admitted.iter().skip(1).for_each(|(_, known)| known.begin());
        // The first waits, and goes for the next.
        let (last, _) = connections.admit().unwrap();
        assert_eq!(connections.count(), CONNECTIONS);
        // Now the one that came last waits alone, and goes in turn.
        let (newest, known) = connections.admit().unwrap();
        known.begin();
        assert!(newest > last);
        assert!(connections.admit().is_none(), "all are served");
        admitted[5].1.end();
        assert!(connections.admit().is_some());
        connections.ended(admitted.pop().unwrap().0);
        assert_eq!(connections.count(), CONNECTIONS - 1);
    }
}
