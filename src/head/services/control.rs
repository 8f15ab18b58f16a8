//! The head's end of a control socket, which never makes the head wait.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tracer_ipc::calling::CallerOrder;
use tracer_ipc::control;
use tracer_ipc::serving::{ProxyOrder, ReplicaOrder};

/// An order to a process of a service, or to a caller of its deployments.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Order {
    Proxy(ProxyOrder),
    Replica(ReplicaOrder),
    Caller(CallerOrder),
}

/// A control socket, with the orders that have not gone yet.
#[derive(Debug)]
pub(super) struct Control {
    socket: OwnedFd,
    waiting: VecDeque<(Order, Vec<OwnedFd>)>,
    /// True once nobody takes orders any more. Reports may be left all the same: a proxy hands its last connections over and ends.
    is_deaf: bool,
    /// True once every report was taken and there will be none.
    is_closed: bool,
}

impl Control {
    /// Makes both ends; the process gets the one that is returned.
    pub(super) fn pair() -> io::Result<(Control, OwnedFd)> {
        let (socket, other) = control::pair()?;
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok((Control::of(socket), other))
    }

    /// Wraps a socket that does not block.
    pub(super) fn of(socket: OwnedFd) -> Control {
        Control { socket, waiting: VecDeque::new(), is_deaf: false, is_closed: false }
    }

    /// Sends an order when there is room. Files go along and are the head's no longer.
    pub(super) fn order(&mut self, order: Order, files: Vec<OwnedFd>) -> io::Result<()> {
        self.waiting.push_back((order, files));
        self.send()
    }

    /// Sends what there is room for.
    pub(super) fn send(&mut self) -> io::Result<()> {
        while let Some((order, files)) = self.waiting.front().filter(|_| !self.is_deaf) {
            let files: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
            match control::send(&self.socket, order, &files) {
                Ok(()) => drop(self.waiting.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // Its process is gone or going, and is heard of by its end.
                Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                    self.is_deaf = true;
                    self.waiting.clear();
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns whether orders wait for room.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes a report with its files. None when there is no further one; the flag says whether there will be any.
    pub(super) fn report<R: DeserializeOwned>(&mut self) -> io::Result<Option<(R, Vec<OwnedFd>)>> {
        loop {
            match control::receive(&self.socket) {
                Ok(Some(report)) => return Ok(Some(report)),
                Ok(None) => {
                    (self.is_deaf, self.is_closed) = (true, true);
                    return Ok(None);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                // Said once, before the reports that are left, when the process has ended with an order that it had not read.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => self.is_deaf = true,
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns whether there will be no further report.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use tracer_ipc::serving::ProxyReport;

    use super::*;

    #[test]
    fn reports_of_a_process_that_has_ended_are_taken_though_it_left_orders_unread() {
        for is_ordered_again in [false, true] {
            let (mut control, process) = Control::pair().unwrap();
            control.order(Order::Proxy(ProxyOrder::Refresh), Vec::new()).unwrap();
            let connection = std::fs::File::open("/dev/null").unwrap();
            for _ in 0..3 {
                control::send(&process, &ProxyReport::Connection, &[connection.as_fd()]).unwrap();
            }
            control::send(&process, &ProxyReport::Drained, &[]).unwrap();
            drop(process);
            if is_ordered_again {
                control.order(Order::Proxy(ProxyOrder::Refresh), Vec::new()).unwrap();
            }
            let mut files = 0;
            while let Some((_, with)) = control.report::<ProxyReport>().unwrap() {
                files += with.len();
            }
            assert_eq!(files, 3);
            assert!(control.is_closed() && !control.has_waiting());
        }
    }
}
