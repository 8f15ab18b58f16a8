//! The way of the output of shared tasks through the head, from the agent to drivers and back.

use tracer_core::task::TaskId;
use tracer_core::{ClusterTaskId, PlaceId};
use tracer_ipc::protocol::{Output, OutputSize, SharedEnd, SharedOutput, Stream, ToAgent, Written};
use tracer_reactor::state::{DriverId, State};

use super::{AGENT_BACKLOG_LIMIT, Arrived, pieces};
use crate::connection::OUTPUT_BACKLOG_LIMIT;
use crate::io::HeadIo;

impl HeadIo {
    /// Has the agent send the origin of an import what that has written.
    pub(crate) fn send_to_origin(
        &mut self,
        (task, id, from_attempt): (TaskId, ClusterTaskId, u32),
        (worker_pid, stream): (u32, Stream),
        bytes: &[u8],
    ) {
        let Some(agent) = &mut self.agent else { return };
        let connection = agent.connection.and_then(|id| self.clients.connections.get(&id));
        let backlog = connection.map_or(0, |connection| connection.backlog());
        let size = self.shared_outputs.written.entry(task).or_default();
        for bytes in pieces(bytes) {
            let before = Written { from_attempt, size: *size };
            *size = size.plus(OutputSize::of(bytes));
            if backlog + agent.outbox.len() <= AGENT_BACKLOG_LIMIT {
                let output = SharedOutput { before, worker_pid, stream, bytes: bytes.into() };
                agent.notify(&ToAgent::Output { id, output });
            }
        }
    }

    /// Shows the driver that follows a task in a queue what that has written at a node.
    pub(crate) fn show_shared_output(
        &mut self,
        state: &State,
        task: TaskId,
        (place, node_id): (PlaceId, &str),
        output: &SharedOutput,
    ) {
        let Some(follower) = tracer_reactor::follower_in_queue(state, task) else { return };
        let arrived = self.shared_outputs.arrived.entry(task).or_insert_with(Arrived::nothing);
        let Some(DriverId(driver)) = follower else {
            if arrived.told.replace(place) != Some(place)
                && let Some(agent) = &mut self.agent
            {
                agent.notify(&ToAgent::NotFollowed(task, place));
            }
            return;
        };
        let Some(connection) = self.clients.connections.get_mut(&driver) else { return };
        if connection.backlog() > OUTPUT_BACKLOG_LIMIT {
            return;
        }
        let Some(lost) = arrived.take_in(output) else { return };
        let SharedOutput { worker_pid, stream, bytes, .. } = output;
        Output { task, worker_pid: *worker_pid, stream: *stream, is_shared: false, node_id, lost, bytes }
            .encode(&mut connection.outbox);
        self.clients.dirty.push(driver);
    }

    /// Tells the driver that follows a task in a queue what has not arrived of its output, before it hears of the end.
    pub(crate) fn end_shared_output(&mut self, state: &State, task: TaskId, end: &[u8]) {
        let arrived = self.shared_outputs.arrived.remove(&task).unwrap_or_else(Arrived::nothing);
        let Some(Some(DriverId(driver))) = tracer_reactor::follower_in_queue(state, task) else { return };
        let Ok(SharedEnd { written: Some(written), node_id, worker, .. }) = SharedEnd::decode(end) else { return };
        if let Some(lost) = arrived.missing(written)
            && let Some(connection) = self.clients.connections.get_mut(&driver)
        {
            let worker_pid = worker.map_or(0, |(_, pid)| pid);
            Output { task, worker_pid, stream: Stream::Stderr, is_shared: false, node_id: &node_id, lost, bytes: &[] }
                .encode(&mut connection.outbox);
            self.clients.dirty.push(driver);
        }
    }

    /// Forgets the output of a task in a queue that has ended otherwise.
    pub(crate) fn forget_shared_output(&mut self, task: TaskId) {
        self.shared_outputs.arrived.remove(&task);
    }
}
