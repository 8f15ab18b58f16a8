//! The loop around the reactor: sockets, pipes, processes, signals and the clock.
//!
//! One thread. Each turn has three phases: *choose* (wait for events), *handle* (read all there is and tell the reactor), *respond*
//! (schedule once, write once to each peer). Nothing is written to a peer amid handling, so what a client sees is never
//! ahead of what was decided. In particular the spans of a worker that died are written before anyone is told of its tasks.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};

use super::connection::{Connection, Peer, ReadState, drain};
use super::process::{WorkerCommand, WorkerProcess, describe_exit, kill_command};
use super::reactor::{self, Effects, Loss, Submission};
use super::recovery::{Place, finish_story};
use super::state::{DriverId, Now, Progress, State, WorkerPhase};
use crate::count::Count;
use crate::hook::now_unix_nano;
use crate::protocol::frame::put_frame;
use crate::protocol::wire::{Put, Take, WireError};
use crate::protocol::{
    Accepted, AttemptResult, Finished, Hello, HookChoice, HookFailure, HookReport, Lease, Output, PROTOCOL_VERSION,
    Query, Reply, Role, SpanCounts, StatusReport, StopReport, Stream, Submissions, Welcome, WorkerCounts, WorkerReady,
    kind, put_reply, put_value, take_value,
};
use crate::session::{self, Session};
use crate::spool::ClaimState;
use crate::task::{JobId, Outcome, TaskId, WorkerId};

/// What a head runs with.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct HeadSettings {
    /// How many workers to keep running; at least 1.
    pub(crate) num_workers: usize,
    /// The place of the head: its lock, and the folder of each session. Absolute, as are all paths here.
    pub(crate) temp_dir: PathBuf,
    /// Where span files are written.
    pub(crate) spans_dir: PathBuf,
    /// Folders in which modules are looked for first, in order.
    pub(crate) module_path: Vec<PathBuf>,
    /// The hook that every process runs, tried out already; none for no tracing.
    pub(crate) hook: Option<HookChoice>,
    /// What the hook does with spans, as it said when it was tried out.
    pub(crate) hook_description: String,
}

/// What a head that has started says of itself.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Started {
    /// This process.
    pub(crate) head_pid: u32,
    /// The folder of the session.
    pub(crate) session_dir: PathBuf,
    /// How many workers take leases.
    pub(crate) workers_ready: usize,
    /// Workers that run without the hook, and why.
    pub(crate) hook_failures: Vec<HookFailure>,
    /// Spans of a dead head's processes that were completed.
    pub(crate) recovered: SpanCounts,
    /// Why no worker can be started, if that is so.
    pub(crate) no_worker: Option<String>,
}

/// How the head ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HeadEnd {
    /// It was asked to, by a query or a signal, and nothing is left running.
    Stopped(StopReport),
    /// No worker could be started. Nothing is left running.
    NoWorker(String),
}

/// The grace period of a stop that a signal asked for.
const SIGNAL_GRACE: Duration = Duration::from_secs(10);
/// What a worker's start may take beyond its hook.
const START_ALLOWANCE: Duration = Duration::from_secs(20);
/// Bytes read from a pipe at once.
const READ_SIZE: usize = 64 << 10;

/// Runs a head in this process until it is stopped. `on_started` is called once, when every worker has become ready or
/// it is clear that none will.
pub(crate) fn run(
    settings: HeadSettings,
    mut session: Session,
    on_started: &mut dyn FnMut(&Started, &std::path::Path),
) -> io::Result<HeadEnd> {
    let mut server = Server::new(settings, &session)?;
    server.recover_leavings(&session);
    session.remove_old_sessions();
    let end = server.run(on_started);
    session.close();
    end
}

/// What an epoll event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Listener,
    Signal,
    Connection(u64),
    WorkerExit(WorkerId),
    WorkerOutput(WorkerId, Stream),
    /// A driver whose connection has closed and whose spool is still there, by its pid.
    DriverExit(u32),
}

impl Source {
    fn token(self) -> u64 {
        let (tag, id) = match self {
            Source::Listener => (0, 0),
            Source::Signal => (1, 0),
            Source::Connection(id) => (2, id),
            Source::WorkerExit(worker) => (3, worker.0),
            Source::WorkerOutput(worker, Stream::Stdout) => (4, worker.0),
            Source::WorkerOutput(worker, Stream::Stderr) => (5, worker.0),
            Source::DriverExit(pid) => (6, u64::from(pid)),
        };
        id << 3 | tag
    }

    fn of_token(token: u64) -> Source {
        let id = token >> 3;
        match token & 7 {
            0 => Source::Listener,
            1 => Source::Signal,
            2 => Source::Connection(id),
            3 => Source::WorkerExit(WorkerId(id)),
            4 => Source::WorkerOutput(WorkerId(id), Stream::Stdout),
            5 => Source::WorkerOutput(WorkerId(id), Stream::Stderr),
            _ => Source::DriverExit(id as u32),
        }
    }
}

struct Server {
    state: State,
    world: World,
    listener: UnixListener,
    signals: UnixStream,
    clock: Instant,
    has_said_started: bool,
    recovered_at_start: SpanCounts,
    stop: Option<Stop>,
}

/// A stop that is going on.
struct Stop {
    /// Who asked, and the number of the query.
    asked_by: Vec<(u64, u64)>,
    deadline: Instant,
    is_forced: bool,
    report: StopReport,
}

/// Everything outside of the state: what the reactor's effects act on.
struct World {
    settings: HeadSettings,
    session_dir: PathBuf,
    node_id: String,
    epoll: std::os::fd::OwnedFd,
    connections: HashMap<u64, Connection>,
    next_connection: u64,
    next_job: u64,
    processes: HashMap<WorkerId, Process>,
    /// Connections with something to write.
    dirty: Vec<u64>,
    /// Ends of tasks to tell, encoded, by connection.
    finished: HashMap<u64, Vec<u8>>,
    /// Drivers whose end is waited for, to finish their story.
    ending_drivers: HashMap<u32, std::os::fd::OwnedFd>,
    /// Workers the reactor wants started.
    to_start: Vec<WorkerId>,
    spans: SpanCounts,
    warnings: Vec<String>,
    log: std::fs::File,
}

/// A worker on the server's side.
struct Process {
    worker: WorkerProcess,
    connection: Option<u64>,
    /// Leases to send, encoded.
    leases: Vec<u8>,
    was_killed: bool,
}

impl Server {
    fn new(settings: HeadSettings, session: &Session) -> io::Result<Server> {
        let listener = session.listen().map_err(io::Error::other)?;
        listener.set_nonblocking(true)?;
        let (signals, signal_tx) = UnixStream::pair()?;
        signals.set_nonblocking(true)?;
        for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
            signal_hook::low_level::pipe::register(signal, signal_tx.try_clone()?)?;
        }
        let log = std::fs::OpenOptions::new().create(true).append(true).open(session.dir().join("logs/head.log"))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let world = World {
            session_dir: session.dir().into(),
            node_id: node_id(),
            epoll,
            connections: HashMap::new(),
            next_connection: 1,
            next_job: 1,
            processes: HashMap::new(),
            dirty: Vec::new(),
            finished: HashMap::new(),
            ending_drivers: HashMap::new(),
            to_start: Vec::new(),
            spans: SpanCounts::default(),
            warnings: Vec::new(),
            log,
            settings,
        };
        world.watch(listener.as_fd(), Source::Listener)?;
        world.watch(signals.as_fd(), Source::Signal)?;
        let hook = world.settings.hook.as_ref();
        let mut state = State::new(world.settings.num_workers, hook.is_some_and(|hook| hook.is_required));
        state.hook = hook.map(|hook| hook.import_string.clone());
        Ok(Server {
            state,
            world,
            listener,
            signals,
            clock: Instant::now(),
            has_said_started: false,
            recovered_at_start: SpanCounts::default(),
            stop: None,
        })
    }

    /// Finishes the story of the processes that a dead head left behind.
    fn recover_leavings(&mut self, session: &Session) {
        let loss = Loss {
            error_type: "lost".into(),
            description: "the head of its session died, and it with it".into(),
            attempts: Vec::new(),
        };
        for spool in session.leavings() {
            if crate::spool::Story::open(&spool).ok().and_then(|story| story.pid()).is_some_and(is_alive) {
                continue;
            }
            kill_command(&spool);
            self.world.finish_story(&spool, &loss, None);
        }
        self.recovered_at_start = self.world.spans;
    }

    fn run(&mut self, on_started: &mut dyn FnMut(&Started, &std::path::Path)) -> io::Result<HeadEnd> {
        let now = self.now();
        reactor::start_missing_workers(&mut self.state, &mut self.world);
        self.start_workers(now);
        let mut events: Vec<epoll::Event> = Vec::with_capacity(256);
        let mut buffer = vec![0; READ_SIZE];
        loop {
            self.say_started(on_started);
            if let Some(end) = self.finished() {
                self.world.flush();
                return Ok(end);
            }
            let timeout = self.timeout();
            events.clear();
            match epoll::wait(&self.world.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let now = self.now();
            // Exits last: whatever a worker wrote and reported before it died is taken in first.
            let (exits, others): (Vec<_>, Vec<_>) = events
                .iter()
                .map(|event| Source::of_token(event.data.u64()))
                .partition(|source| matches!(source, Source::WorkerExit(_)));
            for source in others.into_iter().chain(exits) {
                self.handle(source, &mut buffer, now);
            }
            self.respond(now);
        }
    }

    fn now(&self) -> Now {
        Now {
            monotonic_ns: u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX),
            unix_nano: now_unix_nano(),
        }
    }

    fn start_limit_ns(&self) -> u64 {
        let hook = self.world.settings.hook.as_ref().map_or(0, |hook| hook.timeout_ms);
        u64::try_from((Duration::from_millis(hook) + START_ALLOWANCE).as_nanos()).unwrap_or(u64::MAX)
    }

    /// How long to wait for events: until the next limit is reached, or for ever.
    fn timeout(&mut self) -> Option<Timespec> {
        let now = self.now();
        let limit = self.start_limit_ns();
        let tick = reactor::on_tick(&mut self.state, &mut self.world, limit, now)
            .map(|next| Duration::from_nanos(next.saturating_sub(now.monotonic_ns)));
        let stop = self.stop.as_ref().map(|stop| stop.deadline.saturating_duration_since(Instant::now()));
        // A limit is reached a little after the sleep, never a little before.
        let wait = tick.into_iter().chain(stop).min()? + Duration::from_micros(100);
        Some(Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        })
    }

    fn handle(&mut self, source: Source, buffer: &mut [u8], now: Now) {
        match source {
            Source::Listener => self.accept(),
            Source::Signal => {
                while matches!(self.signals.read(buffer), Ok(1..)) {}
                // A second signal does not wait for the grace period.
                let is_second = self.stop.is_some();
                self.begin_stop(None, if is_second { Duration::ZERO } else { SIGNAL_GRACE }, is_second, now);
            }
            Source::Connection(id) => drop(self.read_connection(id, now)),
            Source::WorkerOutput(worker, stream) => self.world.read_output(&self.state, worker, stream, buffer),
            Source::WorkerExit(worker) => self.on_worker_exit(worker, buffer, now),
            Source::DriverExit(pid) => self.world.finish_driver(pid),
        }
    }

    fn respond(&mut self, now: Now) {
        if let Some(stop) = &mut self.stop
            && stop.deadline <= Instant::now()
            && !stop.is_forced
        {
            stop.is_forced = true;
            reactor::on_stop_overdue(&mut self.state, &mut self.world);
        }
        reactor::start_missing_workers(&mut self.state, &mut self.world);
        self.start_workers(now);
        reactor::fail_if_no_worker(&mut self.state, &mut self.world, now);
        reactor::schedule(&mut self.state, &mut self.world, now);
        self.world.flush();
    }

    fn start_workers(&mut self, now: Now) {
        for worker in std::mem::take(&mut self.world.to_start) {
            match self.world.spawn(worker) {
                Ok(pid) => reactor::on_worker_started(&mut self.state, worker, pid, now),
                Err(error) => {
                    let reason = format!("could not be started: {error}");
                    reactor::on_worker_start_failed(&mut self.state, &mut self.world, &reason, now);
                }
            }
        }
    }

    fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if let Err(error) = self.world.add_connection(stream) {
                        self.world.log(format!("a connection could not be taken: {error}"));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.world.log(format!("no connection can be accepted: {error}"));
                    return;
                }
            }
        }
    }

    /// Reads from a connection and handles what has come. True when there may be more.
    fn read_connection(&mut self, id: u64, now: Now) -> bool {
        // Taken out while it is handled, so that handling may look at the others.
        let Some(mut connection) = self.world.connections.remove(&id) else { return false };
        let read = connection.read();
        let handled = self.handle_frames(id, &mut connection, now);
        let reason = match (&read, handled) {
            (_, Err(error)) => Some(error),
            (Err(error), _) => Some(error.to_string()),
            (Ok(ReadState::Closed), _) => Some(String::new()),
            (Ok(ReadState::Open | ReadState::More), Ok(())) => None,
        };
        if let Some(reason) = reason {
            self.close(id, connection, &reason);
            return false;
        }
        if connection.has_backlog() {
            self.world.dirty.push(id);
        }
        self.world.connections.insert(id, connection);
        matches!(read, Ok(ReadState::More))
    }

    /// Forgets a connection. A worker whose connection breaks is of no more use, and is killed if it is not dead already.
    fn close(&mut self, id: u64, connection: Connection, reason: &str) {
        let _ = epoll::delete(&self.world.epoll, connection.as_fd());
        if !reason.is_empty() {
            self.world.log(format!("connection {id} is closed: {reason}"));
        }
        if let Peer::Driver(_) = connection.peer {
            self.world.watch_for_end_of_driver(connection.pid);
        }
        if let Peer::Worker(worker) = connection.peer {
            if let Some(process) = self.world.processes.get_mut(&worker) {
                process.connection = None;
            }
            if self.state.workers.get(&worker).is_some_and(|worker| worker.phase != WorkerPhase::Stopping)
                || !reason.is_empty()
            {
                self.world.kill(worker);
            }
        }
    }

    fn handle_frames(&mut self, id: u64, connection: &mut Connection, now: Now) -> Result<(), String> {
        let Connection { inbox, outbox, peer, pid, is_closing, .. } = connection;
        while !*is_closing {
            let Some((frame_kind, body)) = inbox.next_frame(peer.frame_limit()).map_err(|error| error.to_string())?
            else {
                return Ok(());
            };
            match (*peer, frame_kind) {
                (Peer::Unknown, kind::HELLO) => {
                    let answer = self.on_hello(id, body)?;
                    *peer = answer.peer;
                    *pid = answer.pid;
                    *is_closing = answer.is_refused;
                    outbox.extend_from_slice(&answer.frames);
                }
                (Peer::Driver(job), kind::SUBMIT) => self.on_submit(id, job, body, outbox, now)?,
                (Peer::Driver(_), kind::QUERY) => {
                    let (number, query) = take_value(body).map_err(|error| error.to_string())?;
                    if let Some(reply) = self.on_query(id, number, query, now) {
                        put_reply(outbox, number, &reply);
                    }
                }
                (Peer::Worker(worker), kind::WORKER_READY) => {
                    let ready: WorkerReady = take_value(body).map_err(|error| error.to_string())?;
                    reactor::on_worker_ready(&mut self.state, &mut self.world, worker, ready);
                }
                (Peer::Worker(worker), kind::RESULTS) => {
                    let results = take_all(body, AttemptResult::take).map_err(|error| error.to_string())?;
                    // What the tasks wrote before they ended is shown before they are reported.
                    self.world.read_all_output(&self.state, worker);
                    for result in results {
                        reactor::on_result(&mut self.state, &mut self.world, worker, result, now);
                    }
                }
                _ => return Err(format!("a frame of kind {frame_kind} is not for this end of the connection")),
            }
        }
        Ok(())
    }

    fn on_hello(&mut self, id: u64, body: &[u8]) -> Result<Answer, String> {
        let hello = Hello::decode(body).map_err(|error| error.to_string())?;
        let mut frames = Vec::new();
        let refuse = |mut frames: Vec<u8>, reason: String| {
            put_frame(&mut frames, kind::REFUSED, |out| out.put_str(&reason));
            Ok(Answer { peer: Peer::Unknown, pid: 0, frames, is_refused: true })
        };
        if hello.protocol_version != PROTOCOL_VERSION {
            let reason = format!(
                "the head (tracer {}) speaks version {PROTOCOL_VERSION} of the protocol, but this program speaks version {}",
                crate::VERSION,
                hello.protocol_version
            );
            return refuse(frames, reason);
        }
        let peer = match hello.role {
            Role::Driver => {
                let job = JobId(self.world.next_job);
                self.world.next_job += 1;
                Peer::Driver(job)
            }
            Role::Worker(worker) => match self.world.processes.get_mut(&worker) {
                Some(process) if process.worker.pid() == hello.pid && process.connection.is_none() => {
                    process.connection = Some(id);
                    Peer::Worker(worker)
                }
                _ => {
                    return refuse(frames, format!("the head has not started worker {worker} as process {}", hello.pid));
                }
            },
        };
        let settings = &self.world.settings;
        let welcome = Welcome {
            version: crate::VERSION.into(),
            head_pid: std::process::id(),
            node_id: self.world.node_id.clone(),
            job_id: if let Peer::Driver(job) = peer { job } else { JobId(0) },
            session_dir: self.world.session_dir.clone(),
            spans_dir: settings.spans_dir.clone(),
            module_path: settings.module_path.clone(),
            hook: settings.hook.clone(),
        };
        put_value(&mut frames, kind::WELCOME, &welcome);
        Ok(Answer { peer, pid: hello.pid, frames, is_refused: false })
    }

    fn on_submit(&mut self, id: u64, job: JobId, body: &[u8], outbox: &mut Vec<u8>, now: Now) -> Result<(), String> {
        let submissions = Submissions::decode(body).map_err(|error| error.to_string())?;
        let first_tag = submissions.first_tag;
        if self.state.is_stopping {
            put_frame(outbox, kind::REFUSED, |out| out.put_str("the head is stopping and takes no more tasks"));
            return Ok(());
        }
        let mut first_task = None;
        let mut count = 0;
        for (tag, envelope) in (first_tag..).zip(submissions) {
            let envelope = envelope.map_err(|error| error.to_string())?;
            let submission = Submission { driver: Some(DriverId(id)), tag, job, envelope };
            let task = reactor::on_submission(&mut self.state, &submission, now).map_err(|error| error.to_string())?;
            first_task.get_or_insert(task);
            count += 1;
        }
        if let Some(first_task) = first_task {
            Accepted { first_tag, first_task, count }.encode(outbox);
        }
        Ok(())
    }

    /// Answers a query; none when the answer comes later.
    fn on_query(&mut self, id: u64, number: u64, query: Query, now: Now) -> Option<Reply> {
        let (state, world) = (&mut self.state, &mut self.world);
        Some(match query {
            Query::Status => Reply::Status(Box::new(self.status(now))),
            Query::Tasks { limit } => Reply::Tasks(reactor::list_tasks(state, world, limit)),
            Query::Task { id } => Reply::Task(reactor::get_task(state, world, id).map(Box::new)),
            Query::Workers => Reply::Workers(reactor::list_workers(state, world, now)),
            Query::Cancel { id } => Reply::Cancelled(reactor::on_cancel(state, world, id, now)),
            Query::Stop { grace_ms, force } => {
                self.begin_stop(Some((id, number)), Duration::from_millis(grace_ms), force, now);
                return None;
            }
        })
    }

    fn begin_stop(&mut self, asked_by: Option<(u64, u64)>, grace: Duration, force: bool, now: Now) {
        let unfinished = self.state.counts.waiting + self.state.counts.leased;
        let stop = self.stop.get_or_insert_with(|| Stop {
            asked_by: Vec::new(),
            deadline: Instant::now() + grace,
            is_forced: false,
            report: StopReport { head_pid: std::process::id(), unfinished, ..StopReport::default() },
        });
        stop.asked_by.extend(asked_by);
        stop.deadline = stop.deadline.min(Instant::now() + grace);
        stop.is_forced |= force;
        reactor::on_stop(&mut self.state, &mut self.world, force, now);
    }

    fn on_worker_exit(&mut self, worker: WorkerId, buffer: &mut [u8], now: Now) {
        let Some(mut process) = self.world.processes.remove(&worker) else { return };
        // What it sent before it died counts.
        if let Some(id) = process.connection {
            self.world.processes.insert(worker, process);
            while self.read_connection(id, now) {}
            let Some(again) = self.world.processes.remove(&worker) else { return };
            process = again;
        }
        for stream in [Stream::Stdout, Stream::Stderr] {
            self.world.read_process_output(&self.state, worker, &mut process, stream, buffer);
        }
        let spool = session::worker_spool(&self.world.session_dir, worker);
        // Before it is reaped: its pid, and so its group, is still its own.
        process.worker.kill(&spool);
        let status = match process.worker.try_reap() {
            Ok(Some(status)) => status,
            Ok(None) => {
                self.world.processes.insert(worker, process);
                return;
            }
            Err(error) => {
                self.world.log(format!("worker {worker} cannot be reaped: {error}"));
                return;
            }
        };
        if let Some(connection) = process.connection.and_then(|id| self.world.connections.remove(&id)) {
            let _ = epoll::delete(&self.world.epoll, connection.as_fd());
        }
        let _ = epoll::delete(&self.world.epoll, &process.worker.pidfd);
        if let Some(stop) = &mut self.stop {
            let pids = if process.was_killed { &mut stop.report.killed } else { &mut stop.report.stopped };
            pids.push(process.worker.pid());
        }
        // The reactor asks for claims, which are in the process's ring.
        self.world.processes.insert(worker, process);
        let exit = describe_exit(status);
        let loss = reactor::on_worker_exited(&mut self.state, &mut self.world, worker, &exit, now);
        self.world.processes.remove(&worker);
        if let Some(loss) = loss {
            self.world.finish_story(&spool, &loss, Some(worker));
        }
    }

    fn say_started(&mut self, on_started: &mut dyn FnMut(&Started, &std::path::Path)) {
        let starting = self.state.workers.values().any(|worker| worker.phase == WorkerPhase::Starting);
        let missing = self.state.workers.len() < self.state.workers_wanted && self.state.no_worker.is_none();
        if self.has_said_started || ((starting || missing) && self.state.no_worker.is_none()) {
            return;
        }
        self.has_said_started = true;
        self.state.has_started = true;
        let started = Started {
            head_pid: std::process::id(),
            session_dir: self.world.session_dir.clone(),
            workers_ready: self.state.workers.values().filter(|worker| worker.phase == WorkerPhase::Ready).count(),
            hook_failures: self.hook_failures(),
            recovered: self.recovered_at_start,
            no_worker: self.state.no_worker.clone(),
        };
        on_started(&started, &self.world.session_dir);
        // Also when some are ready: whoever asked for more is told that it did not start, and waits for this end.
        if self.state.no_worker.is_some() {
            let now = self.now();
            self.begin_stop(None, Duration::ZERO, true, now);
        }
    }

    fn hook_failures(&self) -> Vec<HookFailure> {
        self.state
            .workers
            .iter()
            .filter_map(|(&worker_id, worker)| {
                let reason = worker.hook_failure.clone()?;
                Some(HookFailure { worker_id, pid: worker.pid, reason })
            })
            .collect()
    }

    fn finished(&mut self) -> Option<HeadEnd> {
        self.stop.as_ref().filter(|_| self.state.workers.is_empty() && self.world.processes.is_empty())?;
        let stop = self.stop.take()?;
        for (connection, number) in &stop.asked_by {
            if let Some(connection) = self.world.connections.get_mut(connection) {
                put_reply(&mut connection.outbox, *number, &Reply::Stopped(stop.report.clone()));
            }
        }
        self.world.dirty.extend(stop.asked_by.iter().map(|(connection, _)| *connection));
        self.world.log("the head has stopped".into());
        match &self.state.no_worker {
            Some(reason) if stop.asked_by.is_empty() => Some(HeadEnd::NoWorker(reason.clone())),
            _ => Some(HeadEnd::Stopped(stop.report)),
        }
    }

    fn status(&self, now: Now) -> StatusReport {
        let workers = self.state.workers.values();
        let count = |phase: WorkerPhase, is_idle: bool| {
            workers.clone().filter(|worker| worker.phase == phase && worker.leases.is_empty() == is_idle).count()
        };
        let settings = &self.world.settings;
        let hook_failures = self.hook_failures();
        let mut warnings = Vec::new();
        if let Some(reason) = &self.state.no_worker {
            warnings.push(format!("no worker is started any more: {reason}"));
        }
        if let Some(first) = hook_failures.first() {
            warnings.push(format!(
                "the hook failed in {}, whose spans tracer writes itself: {}",
                Count(hook_failures.len(), "worker"),
                first.reason
            ));
        }
        if self.world.spans.unwritten > 0 {
            let spans = Count(self.world.spans.unwritten, "span");
            warnings.push(format!("{spans} of dead processes could not be written to the span folder"));
        }
        warnings.extend(self.world.warnings.iter().cloned());
        StatusReport {
            version: crate::VERSION.into(),
            head_pid: std::process::id(),
            node_id: self.world.node_id.clone(),
            session_dir: self.world.session_dir.clone(),
            spans_dir: settings.spans_dir.clone(),
            uptime_ns: now.monotonic_ns,
            hook: settings.hook.as_ref().map(|hook| HookReport {
                import_string: hook.import_string.clone(),
                library: hook.library.clone(),
                description: settings.hook_description.clone(),
                failed_workers: hook_failures,
            }),
            workers: WorkerCounts {
                wanted: self.state.workers_wanted,
                starting: count(WorkerPhase::Starting, true),
                idle: count(WorkerPhase::Ready, true),
                busy: count(WorkerPhase::Ready, false),
                lost: self.state.workers_lost,
            },
            tasks: self.state.counts,
            spans: self.world.spans,
            warnings,
        }
    }
}

impl World {
    fn watch(&self, fd: BorrowedFd<'_>, source: Source) -> io::Result<()> {
        let data = epoll::EventData::new_u64(source.token());
        Ok(epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)?)
    }

    fn add_connection(&mut self, stream: UnixStream) -> io::Result<()> {
        let id = self.next_connection;
        self.next_connection += 1;
        let connection = Connection::new(stream)?;
        self.watch(connection.as_fd(), Source::Connection(id))?;
        self.connections.insert(id, connection);
        Ok(())
    }

    fn spawn(&mut self, worker: WorkerId) -> io::Result<u32> {
        let command = WorkerCommand {
            temp_dir: &self.settings.temp_dir,
            session_dir: &self.session_dir,
            worker,
            spans_dir: &self.settings.spans_dir,
        };
        let process = WorkerProcess::spawn(&command)?;
        let pid = process.pid();
        self.watch(process.pidfd.as_fd(), Source::WorkerExit(worker))?;
        if let Some(pipe) = &process.stdout {
            self.watch(pipe.as_fd(), Source::WorkerOutput(worker, Stream::Stdout))?;
        }
        if let Some(pipe) = &process.stderr {
            self.watch(pipe.as_fd(), Source::WorkerOutput(worker, Stream::Stderr))?;
        }
        self.processes
            .insert(worker, Process { worker: process, connection: None, leases: Vec::new(), was_killed: false });
        Ok(pid)
    }

    /// Reads what a worker has written to both its outputs.
    fn read_all_output(&mut self, state: &State, worker: WorkerId) {
        let mut buffer = [0; 4096];
        for stream in [Stream::Stdout, Stream::Stderr] {
            self.read_output(state, worker, stream, &mut buffer);
        }
    }

    fn read_output(&mut self, state: &State, worker: WorkerId, stream: Stream, buffer: &mut [u8]) {
        let Some(mut process) = self.processes.remove(&worker) else { return };
        self.read_process_output(state, worker, &mut process, stream, buffer);
        self.processes.insert(worker, process);
    }

    /// Reads what a worker has written: to its log, and to whoever watches the task that it runs.
    fn read_process_output(
        &mut self,
        state: &State,
        worker_id: WorkerId,
        process: &mut Process,
        stream: Stream,
        buffer: &mut [u8],
    ) {
        let watched = state.workers.get(&worker_id).and_then(|worker| {
            let grant = worker.leases.front()?;
            let task = state.tasks.get(grant.task)?;
            let is_running = process.worker.claims.state(grant.number) == ClaimState::Claimed;
            (is_running && task.wants_output && !matches!(task.progress, Progress::Ended(_)))
                .then_some((grant.task, task.driver?))
        });
        let worker_pid = process.worker.pid();
        let WorkerProcess { stdout, stderr, log, .. } = &mut process.worker;
        let mut pieces = Vec::new();
        let take = |bytes: &[u8]| pieces.push(bytes.to_vec());
        let is_open = match stream {
            Stream::Stdout => stdout.as_mut().is_none_or(|pipe| drain(pipe, buffer, take)),
            Stream::Stderr => stderr.as_mut().is_none_or(|pipe| drain(pipe, buffer, take)),
        };
        for bytes in &pieces {
            // A log that cannot be written to, on a full disk, must not keep the task from running.
            let _ = log.write_all(bytes);
            if let Some((task, DriverId(driver))) = watched
                && let Some(connection) = self.connections.get_mut(&driver)
            {
                Output { task, worker_pid, stream, bytes }.encode(&mut connection.outbox);
                self.dirty.push(driver);
            }
        }
        if !is_open {
            let closed: Option<std::os::fd::OwnedFd> = match stream {
                Stream::Stdout => process.worker.stdout.take().map(Into::into),
                Stream::Stderr => process.worker.stderr.take().map(Into::into),
            };
            if let Some(closed) = closed {
                let _ = epoll::delete(&self.epoll, &closed);
            }
        }
    }

    /// Finishes the story of a dead process, and counts what that took.
    fn finish_story(&mut self, spool: &std::path::Path, loss: &Loss, worker: Option<WorkerId>) {
        let place = Place { node_id: &self.node_id, worker };
        match finish_story(spool, &self.settings.spans_dir, loss, place, now_unix_nano()) {
            Ok(counts) => {
                self.spans.recovered += counts.recovered;
                self.spans.closed += counts.closed;
                self.spans.cut += counts.cut;
                self.spans.unrecorded += counts.unrecorded;
            }
            Err(error) => {
                self.spans.unwritten += 1;
                self.log(format!("the spans in `{}` could not be written: {error}", spool.display()));
            }
        }
    }

    /// A driver's connection has closed. If it left a spool it has died, or lives on without the connection; only its end tells.
    fn watch_for_end_of_driver(&mut self, pid: u32) {
        if self.ending_drivers.contains_key(&pid) || self.driver_spools(pid).is_empty() {
            return;
        }
        let pidfd = i32::try_from(pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw)
            .and_then(|pid| rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok());
        match pidfd {
            Some(pidfd) if self.watch(pidfd.as_fd(), Source::DriverExit(pid)).is_ok() => {
                self.ending_drivers.insert(pid, pidfd);
            }
            // It is gone already.
            _ => self.finish_driver(pid),
        }
    }

    /// Finishes the story of a driver that has died.
    fn finish_driver(&mut self, pid: u32) {
        if let Some(pidfd) = self.ending_drivers.remove(&pid) {
            let _ = epoll::delete(&self.epoll, &pidfd);
        }
        let loss = Loss {
            error_type: "lost".into(),
            description: "the process that waited for it died".into(),
            attempts: Vec::new(),
        };
        for spool in self.driver_spools(pid) {
            self.finish_story(&spool, &loss, None);
        }
    }

    fn driver_spools(&self, pid: u32) -> Vec<PathBuf> {
        let prefix = format!("driver-{pid}-");
        let entries = self.session_dir.join("spool").read_dir().into_iter().flatten();
        entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| {
                path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(&prefix))
            })
            .collect()
    }

    /// Sends what the turn has brought about: leases to workers, ends of tasks to drivers.
    fn flush(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for process in self.processes.values_mut().filter(|process| !process.leases.is_empty()) {
            let Some(id) = process.connection else { continue };
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            put_frame(&mut connection.outbox, kind::LEASES, |out| out.put_exact(&process.leases));
            process.leases.clear();
            dirty.push(id);
        }
        for (id, body) in self.finished.drain() {
            if let Some(connection) = self.connections.get_mut(&id) {
                put_frame(&mut connection.outbox, kind::FINISHED, |out| out.put_exact(&body));
                dirty.push(id);
            }
        }
        dirty.sort_unstable();
        dirty.dedup();
        for id in dirty {
            self.write_connection(id);
        }
    }

    fn write_connection(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let wants_room = match connection.write() {
            Ok(true) if connection.is_closing => return self.drop_connection(id, ""),
            Ok(is_done) => !is_done,
            // A worker that cannot be written to is dead or dying; its pidfd says so.
            Err(error) => {
                let text = error.to_string();
                return self.drop_connection(id, &text);
            }
        };
        if wants_room != connection.is_watched_for_room {
            connection.is_watched_for_room = wants_room;
            let mut flags = epoll::EventFlags::IN;
            flags.set(epoll::EventFlags::OUT, wants_room);
            let data = epoll::EventData::new_u64(Source::Connection(id).token());
            let _ = epoll::modify(&self.epoll, connection.as_fd(), data, flags);
        }
    }

    fn drop_connection(&mut self, id: u64, reason: &str) {
        let Some(connection) = self.connections.remove(&id) else { return };
        let _ = epoll::delete(&self.epoll, connection.as_fd());
        if let Peer::Driver(_) = connection.peer {
            self.watch_for_end_of_driver(connection.pid);
        }
        if !reason.is_empty() && connection.peer != Peer::Unknown {
            self.log(format!("connection {id} is closed: {reason}"));
        }
    }
}

impl Effects for World {
    fn lease(&mut self, worker: WorkerId, lease: Lease<'_>) {
        if let Some(process) = self.processes.get_mut(&worker) {
            process.worker.claims.grant(lease.number);
            lease.put(&mut process.leases);
        }
    }

    fn finished(&mut self, driver: DriverId, tag: u64, task: TaskId, attempt: u32, outcome: &Outcome) {
        let body = self.finished.entry(driver.0).or_default();
        Finished::put_parts(body, tag, task, attempt, outcome);
    }

    fn claim_state(&self, worker: WorkerId, lease: u64) -> ClaimState {
        self.processes.get(&worker).map_or(ClaimState::Unknown, |process| process.worker.claims.state(lease))
    }

    fn revoke(&mut self, worker: WorkerId, lease: u64) -> bool {
        self.processes.get(&worker).is_some_and(|process| process.worker.claims.revoke(lease))
    }

    fn start_worker(&mut self, worker: WorkerId) {
        self.to_start.push(worker);
    }

    fn ask_to_end(&mut self, worker: WorkerId) {
        let Some(id) = self.processes.get(&worker).and_then(|process| process.connection) else {
            return self.kill(worker);
        };
        if let Some(connection) = self.connections.get_mut(&id) {
            put_frame(&mut connection.outbox, kind::SHUTDOWN, |_| {});
            self.dirty.push(id);
        }
    }

    fn kill(&mut self, worker: WorkerId) {
        if let Some(process) = self.processes.get_mut(&worker) {
            process.was_killed = true;
            process.worker.kill(&session::worker_spool(&self.session_dir, worker));
        }
    }

    fn log(&mut self, line: String) {
        // Where the log cannot be written, there is nobody to tell.
        let _ = writeln!(self.log, "{} {line}", crate::clock::utc(now_unix_nano()));
    }
}

/// What a hello is answered with.
struct Answer {
    peer: Peer,
    pid: u32,
    frames: Vec<u8>,
    is_refused: bool,
}

fn take_all<'a, T>(
    body: &'a [u8],
    take_one: impl Fn(&mut Take<'a>) -> Result<T, WireError>,
) -> Result<Vec<T>, WireError> {
    let mut take = Take::new(body);
    let mut all = Vec::new();
    while !take.is_empty() {
        all.push(take_one(&mut take)?);
    }
    Ok(all)
}

/// The machine's name, or what stands for it.
fn node_id() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn is_alive(pid: u32) -> bool {
    i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw)
        .is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok())
}
