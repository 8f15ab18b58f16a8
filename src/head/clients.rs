//! The connections of drivers, workers and tasks, and what is on its way to them.

use rustc_hash::FxHashMap;
use tracer_core::task::{JobId, WorkerId};
use tracer_ipc::protocol::frame::{FRAME_TARGET, put_frame};
use tracer_ipc::protocol::wire::Put;
use tracer_ipc::protocol::{Stream, kind};

use super::connection::Connection;

/// The connections, and what a turn has brought about for those who hold them.
pub(super) struct Clients {
    pub(super) connections: FxHashMap<u64, Connection>,
    /// Connections with rings.
    pub(super) ringed: Vec<u64>,
    pub(super) next_connection: u64,
    pub(super) next_job: u64,
    /// The jobs of drivers that are gone, for the reactor.
    pub(super) gone_jobs: Vec<JobId>,
    /// The connections of drivers that are gone, for services that end with them.
    pub(super) gone_connections: Vec<u64>,
    /// Connections with something to write.
    pub(super) dirty: Vec<u64>,
    /// Connections whose backlog may wait for the next turn, if that begins soon.
    pub(super) patient: Vec<u64>,
    /// Connections whose backlog has waited for a turn.
    pub(super) late: Vec<u64>,
    /// Outputs of workers that are not read until a driver has taken in what it was sent, by that driver's connection.
    pub(super) held: Vec<(u64, WorkerId, Stream)>,
    /// Ends of tasks to tell, encoded, by connection.
    pub(super) finished: FxHashMap<u64, Bodies>,
    /// True if drivers were told how tasks ended since this was asked.
    pub(super) has_told_an_end: bool,
    /// True if it was said that a connection had to wait.
    pub(super) has_refused: bool,
}

impl Clients {
    /// None yet. The first job gets this number.
    pub(super) fn new(next_job: JobId) -> Clients {
        Clients {
            connections: FxHashMap::default(),
            ringed: Vec::new(),
            next_connection: 1,
            next_job: next_job.0,
            gone_jobs: Vec::new(),
            gone_connections: Vec::new(),
            dirty: Vec::new(),
            patient: Vec::new(),
            late: Vec::new(),
            held: Vec::new(),
            finished: FxHashMap::default(),
            has_told_an_end: false,
            has_refused: false,
        }
    }

    /// Returns the connections with something to write, those included that have waited for a turn; from now on those wait that may.
    pub(super) fn take_dirty(&mut self) -> Vec<u64> {
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.append(&mut self.late);
        std::mem::swap(&mut self.late, &mut self.patient);
        dirty
    }

    /// Moves the ends of tasks into the outboxes of their connections, and adds these.
    pub(super) fn put_finished(&mut self, dirty: &mut Vec<u64>) {
        for (id, mut bodies) in self.finished.drain() {
            if let Some(connection) = self.connections.get_mut(&id) {
                bodies.put_frames(&mut connection.outbox, kind::FINISHED);
                dirty.push(id);
            }
        }
    }

    /// Lets clients send through their rings from now on.
    pub(super) fn wake_up(&mut self) {
        for id in &self.ringed {
            if let Some(connection) = self.connections.get_mut(id) {
                connection.receiver.wake_up();
            }
        }
    }

    /// Adds the connections to whose rings something has come.
    pub(super) fn find_pieces(&mut self, found: &mut Vec<u64>) {
        let has_piece = |connection: &mut Connection| connection.receiver.has_piece();
        found.extend(self.ringed.iter().copied().filter(|id| self.connections.get_mut(id).is_some_and(has_piece)));
    }

    /// Clients do not send through their rings any more. Adds the connections to whose rings something has come before.
    pub(super) fn fall_asleep(&mut self, found: &mut Vec<u64>) {
        for id in &self.ringed {
            if let Some(connection) = self.connections.get_mut(id) {
                connection.receiver.fall_asleep();
            }
        }
        self.find_pieces(found);
    }
}

/// Messages of one kind on their way into frames: into one, or into several when they are large.
#[derive(Debug, Default)]
pub(super) struct Bodies {
    /// Each of them is a frame's.
    full: Vec<Vec<u8>>,
    last: Vec<u8>,
}

impl Bodies {
    /// Returns where the next message goes.
    pub(super) fn body(&mut self) -> &mut Vec<u8> {
        if self.last.len() >= FRAME_TARGET {
            self.full.push(std::mem::take(&mut self.last));
        }
        &mut self.last
    }

    pub(super) fn is_empty(&self) -> bool {
        self.full.is_empty() && self.last.is_empty()
    }

    /// Moves everything to `out`.
    pub(super) fn put_frames(&mut self, out: &mut Vec<u8>, kind: u8) {
        for body in self.full.drain(..) {
            put_frame(out, kind, |out| out.put_exact(&body));
        }
        put_frame(out, kind, |out| out.put_exact(&self.last));
        self.last.clear();
        self.last.shrink_to(FRAME_TARGET);
    }
}

#[cfg(test)]
mod tests {
    use tracer_ipc::protocol::frame::{FRAME_LIMIT, FrameBuffer, PAYLOAD_LIMIT};

    use super::*;

    #[test]
    fn large_messages_of_one_turn_do_not_make_a_frame_that_nobody_takes() {
        let mut bodies = Bodies::default();
        let large = vec![7; PAYLOAD_LIMIT / 2];
        for _ in 0..3 {
            bodies.body().extend_from_slice(&large);
        }
        bodies.body().push(8);
        let mut out = Vec::new();
        bodies.put_frames(&mut out, kind::LEASES);
        assert!(bodies.is_empty());
        let mut inbox = FrameBuffer::new();
        let (mut stream, mut lengths) = (out.as_slice(), Vec::new());
        while inbox.read_from(&mut stream).unwrap() > 0 {
            while let Some((_, body)) = inbox.next_frame(FRAME_LIMIT).expect("it is not too long") {
                lengths.push(body.len());
            }
        }
        assert_eq!(lengths, [large.len(), large.len(), large.len(), 1]);
    }

    #[test]
    fn small_messages_share_a_frame() {
        let mut bodies = Bodies::default();
        (0..1000).for_each(|_| bodies.body().extend_from_slice(&[7; 100]));
        let mut out = Vec::new();
        bodies.put_frames(&mut out, kind::LEASES);
        assert_eq!(out.len(), 5 + 100_000);
    }
}
