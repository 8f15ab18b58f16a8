//! Looks now and then whether everybody goes on who should: connections that say nothing, workers that do not begin what they are given.
//!
//! A task may read from its worker's socket, write to it, or put another file in its place. Then messages are lost, and nobody would say so.
//! What is found is counted in looks and not by a clock, so that a head which was stopped itself, or a machine that slept, accuses nobody.

use std::time::Duration;

use tracer_core::task::WorkerId;
use tracer_ipc::fault;
use tracer_ipc::protocol::INLINE_LEASE;
use tracer_ipc::spool::ClaimState;
use tracer_reactor::Effects;
use tracer_reactor::state::{State, WorkerPhase};

use super::connection::Peer;
use super::io::HeadIo;

/// Looks for which a connection may say nothing of who it is.
const HELLO_LOOKS: u32 = 10;
/// Looks for which a part of a worker's message may wait for the rest.
const TORN_LOOKS: u32 = 10;
/// Looks for which a worker may leave what it was given.
const BEGIN_LOOKS: u32 = 20;
/// Looks for which a worker may keep the result of a task that has ended. Spans are written before it is sent, perhaps to a slow disk.
const RESULT_LOOKS: u32 = 90;

/// An observation of something that should go on, and the number of looks in a row that found the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    what: u64,
    looks: u32,
}

impl Seen {
    /// Notes how it looks now. Returns how often it has looked so before, in a row.
    fn look(&mut self, what: u64) -> u32 {
        *self = Seen { what, looks: if self.what == what { self.looks + 1 } else { 0 } };
        self.looks
    }
}

/// Returns how long after something has happened everybody is looked at.
pub(super) fn pause() -> Duration {
    // Tests do not want to wait.
    Duration::from_millis(fault::setting("look_ms").unwrap_or(1_000))
}

impl HeadIo {
    /// Looks at everybody once. True when somebody is to be looked at again, even if nothing happens until then.
    pub(super) fn look_after(&mut self, state: &State) -> bool {
        let is_anybody_silent = self.look_after_connections();
        let mut is_anybody_late = false;
        let mut late = Vec::new();
        for (&worker, process) in &mut self.workers.processes {
            let Some(known) = state.workers().get(&worker).filter(|known| known.phase() == WorkerPhase::Ready) else {
                continue;
            };
            let Some(front) = known.leases().front().filter(|_| !known.runs_inline()) else { continue };
            let number = front.number & !INLINE_LEASE;
            let is_unbegun = process.worker.claims.state(number) == ClaimState::Granted;
            let is_running = process.worker.claims.running().is_some_and(|(running, _)| running == number);
            if is_running || !is_unbegun && known.is_of_actor() {
                continue;
            }
            is_anybody_late = true;
            let looks = process.seen.look(number << 1 | u64::from(is_unbegun));
            if is_unbegun && looks >= BEGIN_LOOKS {
                late.push((worker, "it did not begin a task that it was given"));
            } else if !is_unbegun && looks >= RESULT_LOOKS {
                late.push((worker, "it did not report the end of its task"));
            }
        }
        for (worker, what) in late {
            self.break_with(worker, what);
        }
        is_anybody_silent || is_anybody_late
    }

    fn look_after_connections(&mut self) -> bool {
        let mut is_anybody_silent = false;
        let (mut unknown, mut torn) = (Vec::new(), Vec::new());
        for (&id, connection) in &mut self.clients.connections {
            match connection.peer {
                Peer::Unknown => {
                    is_anybody_silent = true;
                    if connection.seen.look(0) >= HELLO_LOOKS {
                        unknown.push(id);
                    }
                }
                Peer::Worker(worker) | Peer::Tasks(worker) | Peer::Sink(worker) if connection.inbox.is_torn() => {
                    is_anybody_silent = true;
                    if connection.seen.look(connection.inbox.unread() as u64) >= TORN_LOOKS {
                        torn.push(worker);
                    }
                }
                _ => {}
            }
        }
        for id in unknown {
            self.log(format!("connection {id} is closed: it sent no hello"));
            self.drop_connection(id, "");
        }
        for worker in torn {
            self.break_with(worker, "it sent the beginning of a message and no more");
        }
        is_anybody_silent
    }

    /// Ends a worker whose connection is of no use any more. What it has not begun goes to others.
    pub(super) fn break_with(&mut self, worker: WorkerId, what: &'static str) {
        let Some(process) = self.workers.processes.get_mut(&worker).filter(|process| process.broken.is_none()) else {
            return;
        };
        process.broken = Some(what);
        let pid = process.worker.pid();
        self.workers.disturbed = Some((self.workers.disturbed.map_or(0, |(count, ..)| count) + 1, worker, pid, what));
        self.log(format!(
            "worker {worker} (pid {pid}) is ended, because {what}: has a task used its connection to the head?"
        ));
        Effects::kill(self, worker);
    }
}
