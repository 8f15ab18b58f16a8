//! Limits of the proxy for clients, besides those of the service file.

use std::time::Duration;

/// Interval between two looks at the connections: the precision of the times below.
pub(super) const LOOK: Duration = Duration::from_secs(1);
/// Looks in which the head of a request may come.
pub(super) const HEAD_LOOKS: u32 = 10;
/// Looks between bytes of a body, or of an answer that nobody takes.
pub(super) const STALL_LOOKS: u32 = 30;
/// Looks in which a connection may have nothing to do.
pub(super) const IDLE_LOOKS: u32 = 75;
/// Connections of a proxy, at most.
pub(super) const CONNECTIONS: usize = 20_000;

/// HTTP/2: requests on one connection at one time.
pub(super) const STREAMS: u32 = 128;
/// HTTP/2: requests that a client has reset and the proxy has not taken notice of.
pub(super) const PENDING_RESETS: usize = 20;
/// HTTP/2: what a client may send of one body before it is taken.
pub(super) const STREAM_WINDOW: u32 = 256 << 10;
/// HTTP/2: the same of all bodies on a connection.
pub(super) const CONNECTION_WINDOW: u32 = 4 << 20;

/// Time for a client to see that it was refused before the connection is closed.
pub(super) const LINGER: Duration = Duration::from_secs(1);
/// Limit of time that requests of a lost replica wait for its spans to be complete.
pub(super) const GONE: Duration = Duration::from_secs(2);
/// Interval between two writes of collected spans and log lines.
pub(super) const WRITE: Duration = Duration::from_millis(100);

/// Connections that one of `threads` may have, of a process that may have `files` open.
pub(super) fn connections(files: u64, threads: usize) -> usize {
    let files = usize::try_from(files).unwrap_or(usize::MAX);
    (CONNECTIONS.min(files / 4 * 3) / threads.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_a_quarter_of_the_files_for_all_else() {
        assert_eq!((connections(1024, 1), connections(1024, 2), connections(1 << 20, 2)), (768, 384, 10_000));
        assert_eq!(connections(0, 3), 1);
    }
}
