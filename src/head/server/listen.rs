//! The socket of the head: connections are accepted while there is room, and the place is watched that it stands in.

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::event::epoll;
use tracer_ipc::session;
use tracer_reactor::Effects;
use tracer_reactor::state::{Now, Unfinished};

use super::{LISTEN_PAUSE, SIGNAL_GRACE, Server};
use crate::source::Source;

impl Server {
    pub(super) fn accept(&mut self) {
        loop {
            // A worker that is about to connect must not be kept waiting behind drivers that wait for workers.
            let is_worker_awaited = || self.io.workers.processes.values().any(|process| process.connection.is_none());
            if self.io.clients.connections.len() >= self.io.connection_limit() && !is_worker_awaited() {
                return self.stop_listening("the limit on open files is reached");
            }
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if let Err(error) = self.io.add_connection(stream) {
                        self.io.log(format!("a connection could not be taken: {error}"));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.stop_listening(&error.to_string()),
            }
        }
    }

    /// Makes the socket anew. Whoever waits at the old one is let in.
    pub(super) fn listen_again(&mut self) -> io::Result<()> {
        self.accept();
        let _ = std::fs::remove_file(session::socket_path(self.session.dir()));
        let listener = self.session.listen().map_err(io::Error::other)?;
        listener.set_nonblocking(true)?;
        self.place.note_socket(&self.session);
        let _ = epoll::delete(&self.io.epoll, &self.listener);
        self.listener = listener;
        self.keep_head_again();
        self.due.listen = None;
        self.io.watch(self.listener.as_fd(), Source::Listener)
    }

    /// Leaves those who want to connect waiting for a moment: they would wake the loop again and again.
    pub(super) fn stop_listening(&mut self, reason: &str) {
        let _ = epoll::delete(&self.io.epoll, &self.listener);
        self.due.listen = Some(Instant::now() + LISTEN_PAUSE);
        // Once, however often it happens.
        if !self.io.clients.has_refused {
            self.io.clients.has_refused = true;
            self.io.log(format!("no connection can be accepted for now: {reason}"));
            let hint = "(hint: a head that is started with a higher `ulimit -n` takes more)";
            self.io.warnings.push(format!("commands had to wait for a connection: {reason}\n{hint}"));
        }
    }

    /// Looks whether the names of lock, socket and journal still lead to what the head holds. What was removed is made anew; a head that has lost its
    /// place ends.
    pub(super) fn check_place(&mut self, now: Now) {
        if self.stop.is_some() {
            return;
        }
        match self.session.check() {
            Ok(false) => {}
            Ok(true) => {
                let lock = self.session.temp_dir().join("head.lock");
                self.warn(format!("`{}` was removed or replaced, and was made anew", lock.display()));
                self.keep_head_again();
            }
            Err(reason) => {
                self.warn(format!("the head ends, because it has lost its place: {reason}"));
                return self.begin_stop(None, SIGNAL_GRACE, Unfinished::Kept, false, now);
            }
        }
        if !self.place.has_socket(&self.session) {
            let socket = session::socket_path(self.session.dir());
            let again = self.listen_again().map(|()| "was made anew".to_owned());
            let again = again.unwrap_or_else(|error| format!("cannot be made anew: {error}"));
            self.warn(format!("the socket `{}` was removed or replaced, and {again}", socket.display()));
        }
        if !self.io.kept.journal.check_place() {
            let journal = self.session.temp_dir().join("tasks.journal");
            let text =
                "was removed or replaced, and is written anew; the file that was found in its place is kept beside it";
            self.warn(format!("the journal `{}` {text}", journal.display()));
        }
        self.check_journal_length();
    }
}
