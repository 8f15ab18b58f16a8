//! The head's side of the HTTP API's process: it is started again when it ends.

use std::os::fd::AsFd;
use std::time::Instant;

use tracer_reactor::Effects;

use super::{LOG_SHARE, START_AGAIN};
use crate::io::HeadIo;
use crate::process::{FrontCommand, FrontProcess, describe_exit};
use crate::source::Source;

impl HeadIo {
    /// Starts the process of the HTTP API, if there is one and it is time.
    pub(crate) fn start_front(&mut self) {
        let Some(front) = &mut self.front else { return };
        let is_due = front.process.is_none() && front.start_at.is_some_and(|start_at| start_at <= Instant::now());
        let Some(listener) = front.listener.as_ref().filter(|_| is_due) else { return };
        front.start_at = None;
        let settings = &self.settings;
        let command = FrontCommand {
            temp_dir: &settings.temp_dir,
            session_dir: &self.session_dir,
            tracing: &settings.tracing,
            listener: listener.as_fd(),
            log_limit: settings.max_log_size / LOG_SHARE,
        };
        let started = FrontProcess::spawn(&command);
        let watched = started.and_then(|process| match self.watch(process.pidfd.as_fd(), Source::FrontExit) {
            Ok(()) => Ok(process),
            Err(error) => {
                // Nobody would hear of its end.
                process.kill();
                Err(error)
            }
        });
        let Some(front) = &mut self.front else { return };
        match watched {
            Ok(process) => front.process = Some(process),
            Err(error) => {
                front.start_at = Some(Instant::now() + START_AGAIN);
                front.restarts += 1;
                front.last_end = Some(format!("could not be started: {error}"));
                self.log(format!("the process of the HTTP API could not be started: {error}"));
            }
        }
    }

    /// Notes that the process of the HTTP API has ended.
    pub(crate) fn on_front_exit(&mut self) {
        let Some(front) = &mut self.front else { return };
        let Some(process) = &mut front.process else { return };
        let exit = match process.try_reap() {
            Ok(None) => return,
            Ok(Some(status)) => describe_exit(status).cause,
            Err(error) => format!("ended, and its exit status cannot be read: {error}"),
        };
        let _ = rustix::event::epoll::delete(&self.epoll, &process.pidfd);
        front.process = None;
        front.hook_failures.clear();
        if front.listener.is_some() {
            front.start_at = Some(Instant::now() + START_AGAIN);
            front.restarts += 1;
            self.log(format!("the process of the HTTP API {exit}; it is started again"));
        }
        let Some(front) = &mut self.front else { return };
        front.last_end = Some(exit);
    }
}
