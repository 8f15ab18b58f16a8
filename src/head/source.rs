//! Sources of events, as numbers that epoll keeps.

use tracer_core::task::WorkerId;
use tracer_ipc::protocol::Stream;

/// Source of an epoll event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Listener,
    Signal,
    /// The program that this head is embedded in has ended.
    Program,
    Connection(u64),
    WorkerExit(WorkerId),
    WorkerOutput(WorkerId, Stream),
    /// A process that is not a worker of this head and whose spool is still there, by its pid.
    OwnerExit(u32),
    /// Spans wait for an exporter.
    Handover,
    /// The process of the HTTP API has ended.
    FrontExit,
    /// The agent has ended.
    AgentExit,
    /// A process of a service has said something, or can be told more.
    ServiceControl(WorkerId),
    /// A process of a service has ended.
    ServiceExit(WorkerId),
    ServiceOutput(WorkerId, Stream),
    /// Callers of deployments want to connect.
    CallerListener,
    /// A caller of deployments has said something, or can be told more.
    Caller(u64),
    /// A thread of the journal has something to tell.
    Journal,
    /// Something has changed in the folders of the place and of the session.
    Place,
}

impl Source {
    pub(super) fn token(self) -> u64 {
        let (tag, id) = match self {
            Source::Listener => (0, 0),
            Source::Signal => (1, 0),
            Source::Program => (1, 1),
            Source::Connection(id) => (2, id),
            Source::WorkerExit(worker) => (3, worker.0),
            Source::WorkerOutput(worker, Stream::Stdout) => (4, worker.0),
            Source::WorkerOutput(worker, Stream::Stderr) => (5, worker.0),
            Source::OwnerExit(pid) => (6, u64::from(pid)),
            Source::Handover => (7, 0),
            Source::FrontExit => (8, 0),
            Source::AgentExit => (8, 1),
            Source::Journal => (9, 0),
            Source::Place => (9, 1),
            Source::ServiceControl(process) => (10, process.0),
            Source::ServiceExit(process) => (11, process.0),
            Source::ServiceOutput(process, Stream::Stdout) => (12, process.0),
            Source::ServiceOutput(process, Stream::Stderr) => (13, process.0),
            Source::CallerListener => (14, 0),
            Source::Caller(id) => (14, id),
        };
        id << 4 | tag
    }

    pub(super) fn of_token(token: u64) -> Source {
        let id = token >> 4;
        match token & 15 {
            0 => Source::Listener,
            1 if id == 0 => Source::Signal,
            1 => Source::Program,
            2 => Source::Connection(id),
            3 => Source::WorkerExit(WorkerId(id)),
            4 => Source::WorkerOutput(WorkerId(id), Stream::Stdout),
            5 => Source::WorkerOutput(WorkerId(id), Stream::Stderr),
            6 => Source::OwnerExit(id as u32),
            7 => Source::Handover,
            8 if id == 0 => Source::FrontExit,
            8 => Source::AgentExit,
            10 => Source::ServiceControl(WorkerId(id)),
            11 => Source::ServiceExit(WorkerId(id)),
            12 => Source::ServiceOutput(WorkerId(id), Stream::Stdout),
            13 => Source::ServiceOutput(WorkerId(id), Stream::Stderr),
            14 if id == 0 => Source::CallerListener,
            14 => Source::Caller(id),
            _ if id == 0 => Source::Journal,
            _ => Source::Place,
        }
    }
}
