//! The I/O side of the head: connections, worker processes, journal and log. Implements the reactor's `Effects`.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustc_hash::FxHashMap;
use rustix::event::epoll;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit, setrlimit};
use tracer_core::clock::now_unix_nano;
use tracer_core::task::{AttemptReport, ModuleVersion, Outcome, Refusal, SpanLink, StopReason, TaskId, WorkerId};
use tracer_host::module_store::ModuleStore;
use tracer_ipc::identity::open_pidfd;
use tracer_ipc::protocol::frame::put_frame;
use tracer_ipc::protocol::{
    Accepted, CommandUsage, Finished, Lease, Output, OutputSize, Period, SpanCounts, Stream, ToAgent, kind,
    put_task_refusal, put_value,
};
use tracer_ipc::spool::{ClaimState, Story};
use tracer_ipc::task_output::{Extent, Nonce, Owner};
use tracer_ipc::{fault, session};
use tracer_process::children;
use tracer_process::control_group::Group;
use tracer_reactor::state::{Death, DriverId, Now, State, TaskEnd};
use tracer_reactor::{Effects, EndedAttempt, Loss, StandIn, Submission, Watcher, Watchers, Why, watchers};

use super::agent::AgentLink;
use super::clients::{Bodies, Clients};
use super::connection::{Connection, OUTPUT_BACKLOG_LIMIT, Peer, drain};
use super::figures::Figures;
use super::front::Front;
use super::guard;
use super::handover::Handover;
use super::journal::{Journal, Submitted};
use super::keeper::{Keeper, Key};
use super::logs::{HeadLog, Logs};
use super::memory::Bound;
use super::output::WorkerOutput;
use super::process::{WorkerCommand, WorkerProcess, kill_command_left_behind};
use super::recovery::{DeadOrigin, Finisher, Folders, finish_opened, finish_story, write_stand_in};
use super::services::ServicesIo;
use super::settings::HeadSettings;
use super::shared_output::SharedOutputs;
use super::source::Source;
use super::watch::Seen;

/// Everything outside of the state, which the reactor's effects act on: connections, worker processes, journal, logs, and spans of the dead.
pub(super) struct HeadIo {
    pub(super) settings: HeadSettings,
    pub(super) session_dir: PathBuf,
    pub(super) node_id: String,
    pub(super) epoll: OwnedFd,
    pub(super) clients: Clients,
    pub(super) workers: WorkerProcesses,
    pub(super) kept: Kept,
    pub(super) stories: Stories,
    pub(super) warnings: Vec<String>,
    /// The HTTP API, if there is one.
    pub(super) front: Option<Front>,
    /// The process that speaks to an engine, if the head has joined one.
    pub(super) agent: Option<AgentLink>,
    /// Output that goes over queues.
    pub(super) shared_outputs: SharedOutputs,
    /// Processes, tables and listeners of services.
    pub(super) services: ServicesIo,
    /// The way to the guard; none without one.
    pub(super) keeper: Option<Keeper>,
    /// Heads of this guard that have died before.
    pub(super) restarts: u64,
    /// Metrics that outlive the head.
    pub(super) figures: Figures,
    /// The logs of the workers' output.
    pub(super) logs: Logs,
    pub(super) log: HeadLog,
}

/// The worker processes, and what the reactor wants of them that is not done yet.
pub(super) struct WorkerProcesses {
    pub(super) processes: FxHashMap<WorkerId, Process>,
    /// Workers the reactor wants started.
    pub(super) to_start: Vec<WorkerId>,
    /// Workers with leases to send.
    pub(super) leased: Vec<WorkerId>,
    /// Workers whose bound on memory the kernel does not hold.
    pub(super) to_watch: BTreeSet<WorkerId>,
    /// The limit of open files before the head raised its own; its workers get this.
    pub(super) open_files: Option<Rlimit>,
    /// Workers that were ended because their connections were of no use any more, and the last of them with its process and the reason.
    pub(super) disturbed: Option<(u64, WorkerId, u32, &'static str)>,
    /// Workers whose spools were found written over, cut short or removed, and the last of them with its process.
    pub(super) damaged: Option<(u64, WorkerId, u32)>,
    /// The control group in which workers get groups of their own; none where that cannot be.
    pub(super) groups: Option<Group>,
}

impl WorkerProcesses {
    /// None yet.
    pub(super) fn new() -> WorkerProcesses {
        WorkerProcesses {
            processes: FxHashMap::default(),
            to_start: Vec::new(),
            leased: Vec::new(),
            to_watch: BTreeSet::new(),
            open_files: raise_open_files(),
            disturbed: None,
            damaged: None,
            groups: control_groups(),
        }
    }
}

/// Returns where this head may make control groups for its workers.
fn control_groups() -> Option<Group> {
    if fault::is_without("control_groups") {
        return None;
    }
    let ours: Vec<_> = std::iter::once(std::process::id()).chain(guard::pid()).collect();
    Group::for_children(&ours)
}

/// Lets this process open as many files as the system allows, and returns what it was allowed before.
fn raise_open_files() -> Option<Rlimit> {
    let before = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: before.maximum, maximum: before.maximum };
    setrlimit(Resource::Nofile, raised).ok().map(|()| before)
}

/// The journal, and what waits until it has been written or is on the disk.
pub(super) struct Kept {
    pub(super) journal: Journal,
    /// Reason why the journal could not be written the last time, if it could not.
    pub(super) failure: Option<String>,
    /// Connections with something that waits until the journal is on the disk.
    pub(super) unsynced: Vec<u64>,
    /// Workers whose leases wait for that: a start is journaled first.
    pub(super) unsynced_workers: Vec<WorkerId>,
    /// True if the start of the lease that comes next was journaled.
    pub(super) has_start: bool,
    /// Files of values that nobody needs any more; they go when the journal has been written.
    pub(super) unused_values: Vec<String>,
}

impl Kept {
    /// Wraps a journal for which nothing waits yet.
    pub(super) fn new(journal: Journal) -> Kept {
        Kept {
            journal,
            failure: None,
            unsynced: Vec::new(),
            unsynced_workers: Vec::new(),
            has_start: false,
            unused_values: Vec::new(),
        }
    }
}

/// Spans of processes that have ended, or are about to.
pub(super) struct Stories {
    /// Processes whose end is waited for, to finish their story, by pid.
    pub(super) ending: HashMap<u32, EndingProcess>,
    /// Counts of the spans that were written for others.
    pub(super) spans: SpanCounts,
    /// Spans that wait for an exporter of the hook's.
    pub(super) handover: Handover,
    /// The spans of attempts that were met while stories of dead processes were finished, for the reactor.
    pub(super) attempt_spans: Vec<(TaskId, SpanLink)>,
}

impl Stories {
    /// None yet.
    pub(super) fn new(handover: Handover) -> Stories {
        Stories { ending: HashMap::new(), spans: SpanCounts::default(), handover, attempt_spans: Vec::new() }
    }
}

/// A process whose end is waited for.
pub(super) struct EndingProcess {
    pidfd: OwnedFd,
    spools: Vec<PathBuf>,
    loss: Loss,
}

/// A worker on the server's side.
pub(super) struct Process {
    pub(super) worker: WorkerProcess,
    pub(super) connection: Option<u64>,
    /// The one on which its tasks submit.
    pub(super) tasks_connection: Option<u64>,
    /// Leases to send, encoded.
    pub(super) leases: Bodies,
    pub(super) output: WorkerOutput,
    pub(super) was_killed: bool,
    /// Reason why it is ended, if its connection is of no use any more.
    pub(super) broken: Option<&'static str>,
    /// Observations of it while it did not go on.
    pub(super) seen: Seen,
    pub(super) bound: Bound,
}

impl Process {
    fn output(&self, stream: Stream) -> Option<BorrowedFd<'_>> {
        match stream {
            Stream::Stdout => self.worker.stdout.as_ref().map(AsFd::as_fd),
            Stream::Stderr => self.worker.stderr.as_ref().map(AsFd::as_fd),
        }
    }
}

/// Returns the pieces of what was read, each with the task that wrote it if a mark says so.
fn owned_pieces<'a>(text: &'a [u8], extents: &[Extent]) -> Vec<(&'a [u8], Option<TaskId>)> {
    let (mut pieces, mut taken) = (Vec::new(), 0);
    let certain = extents.iter().filter(|extent| !extent.is_approximate);
    for extent in certain {
        let Owner::Attempt { task, .. } = extent.owner else { continue };
        let start = usize::try_from(extent.offset).unwrap_or(usize::MAX).min(text.len());
        let end = start.saturating_add(extent.length as usize).min(text.len());
        pieces.extend((start > taken).then(|| (&text[taken..start], None)));
        pieces.push((&text[start..end], Some(task)));
        taken = end;
    }
    pieces.extend((taken < text.len()).then(|| (&text[taken..], None)));
    pieces
}

impl HeadIo {
    pub(super) fn watch(&self, fd: BorrowedFd<'_>, source: Source) -> io::Result<()> {
        let data = epoll::EventData::new_u64(source.token());
        Ok(epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)?)
    }

    /// Has the guard keep something for the next head.
    pub(super) fn keep(&mut self, key: Key, value: &impl serde::Serialize, files: &[BorrowedFd<'_>]) {
        let Some(kept) = self.keeper.as_ref().map(|keeper| keeper.keep(key.clone(), value, files)) else { return };
        if let Err(error) = kept {
            self.log(format!("the guard cannot keep {key:?} for the next head: {error}"));
        }
    }

    /// Has the guard keep it no longer.
    pub(super) fn forget(&self, key: Key) {
        if let Some(keeper) = &self.keeper {
            keeper.forget(key);
        }
    }

    /// The most connections, so that there is room left for the files of the workers, now and when they are replaced.
    pub(super) fn connection_limit(&self) -> usize {
        const FILES_OF_HEAD: usize = 32;
        const FILES_OF_WORKER: usize = 8;
        const FEWEST: usize = 16;
        let allowed = getrlimit(Resource::Nofile).current.and_then(|allowed| usize::try_from(allowed).ok());
        let taken = FILES_OF_HEAD + FILES_OF_WORKER * self.settings.num_workers + self.stories.ending.len();
        allowed.unwrap_or(usize::MAX).saturating_sub(taken).max(FEWEST + self.settings.num_workers)
    }

    pub(super) fn add_connection(&mut self, stream: UnixStream) -> io::Result<()> {
        let id = self.clients.next_connection;
        self.clients.next_connection += 1;
        let connection = Connection::new(stream)?;
        self.watch(connection.as_fd(), Source::Connection(id))?;
        self.clients.connections.insert(id, connection);
        Ok(())
    }

    /// Stops watching a connection, and its rings.
    pub(super) fn unwatch(&mut self, id: u64, connection: &Connection) {
        let _ = epoll::delete(&self.epoll, connection.as_fd());
        self.clients.ringed.retain(|ringed| *ringed != id);
    }

    pub(super) fn spawn(&mut self, worker: WorkerId) -> io::Result<u32> {
        let command = WorkerCommand {
            temp_dir: &self.settings.temp_dir,
            session_dir: &self.session_dir,
            worker,
            tracing: &self.settings.tracing,
        };
        let nonce = Nonce::random()?;
        let mut process = WorkerProcess::spawn(&command)?;
        let pid = process.pid();
        process.claims.set_worker(pid, self.settings.tracing.hook.is_some());
        if let (Some(limit), Some(pid)) = (&self.workers.open_files, i32::try_from(pid).ok().and_then(Pid::from_raw)) {
            // It runs nothing of a user's before the head has answered its hello. At worst it may open more files.
            let _ = prlimit(Some(pid), Resource::Nofile, *limit);
        }
        let set_up = self.logs.open(worker, pid).and_then(|()| self.watch_process(worker, &process));
        if let Err(error) = set_up {
            self.logs.close(worker);
            // Nobody would hear of its end; so it ends here.
            process.kill(&session::worker_spool(&self.session_dir, worker));
            process.reap();
            return Err(error);
        }
        self.workers.processes.insert(
            worker,
            Process {
                worker: process,
                connection: None,
                tasks_connection: None,
                leases: Bodies::default(),
                output: WorkerOutput::new(nonce),
                was_killed: false,
                broken: None,
                seen: Seen::default(),
                bound: Bound::default(),
            },
        );
        if self.settings.worker_memory.is_some() {
            self.bound_memory(worker, None);
        }
        Ok(pid)
    }

    fn watch_process(&self, worker: WorkerId, process: &WorkerProcess) -> io::Result<()> {
        self.watch(process.pidfd.as_fd(), Source::WorkerExit(worker))?;
        if let Some(pipe) = &process.stdout {
            self.watch(pipe.as_fd(), Source::WorkerOutput(worker, Stream::Stdout))?;
        }
        if let Some(pipe) = &process.stderr {
            self.watch(pipe.as_fd(), Source::WorkerOutput(worker, Stream::Stderr))?;
        }
        Ok(())
    }

    /// Reads the output of a worker whose task has ended: if someone watches what it writes, all that it wrote is shown before its end is, even to a driver that is
    /// behind. What nobody watches is read when it comes.
    pub(super) fn read_watched_output(&mut self, state: &State, worker: WorkerId) {
        if state.workers().get(&worker).is_some_and(|worker| !worker.watched().is_empty()) {
            let watchers = watchers(state, worker, |lease| self.claim_state(worker, lease));
            self.drain_output(worker, &watchers);
            // The next task may be another driver's.
            self.release(|_, held| held == worker);
        }
    }

    /// Tells whoever wants the output of a command what an attempt of it has used.
    pub(super) fn report_usage(&mut self, state: &State, worker: WorkerId, lease: u64, usage: &CommandUsage) {
        let Some(worker) = state.workers().get(&worker).filter(|worker| worker.watched().contains(&lease)) else {
            return;
        };
        let grant = worker.leases().iter().find(|grant| grant.number == lease);
        let Some((id, task)) = grant.and_then(|grant| Some((grant.task, state.task(grant.task)?))) else { return };
        if let Some(DriverId(driver)) = task.driver()
            && let Some(connection) = self.clients.connections.get_mut(&driver)
        {
            usage.put_frame(id, &mut connection.outbox);
            self.clients.dirty.push(driver);
        }
    }

    /// Reads what a worker has written, and if a driver that it is for is too far behind, no more until that has caught up.
    pub(super) fn read_output(&mut self, state: &State, worker: WorkerId, stream: Stream, buffer: &mut [u8]) {
        let watchers = watchers(state, worker, |lease| self.claim_state(worker, lease));
        let Some(mut process) = self.workers.processes.remove(&worker) else { return };
        self.read_process_output(&watchers, worker, &mut process, stream, buffer);
        let is_behind = |driver: &u64| {
            self.clients.connections.get(driver).is_some_and(|connection| connection.backlog() > OUTPUT_BACKLOG_LIMIT)
        };
        let of_driver = |&(_, watcher): &(TaskId, Watcher)| match watcher {
            Watcher::Driver(DriverId(driver)) => Some(driver),
            // For it nobody waits.
            Watcher::Origin(..) => None,
        };
        if let Some(driver) = watchers.tasks.iter().filter_map(of_driver).find(is_behind)
            && let Some(pipe) = process.output(stream)
            && epoll::delete(&self.epoll, pipe).is_ok()
        {
            self.clients.held.push((driver, worker, stream));
        }
        self.workers.processes.insert(worker, process);
    }

    /// Reads again the outputs that were held for this driver, or of this worker.
    fn release(&mut self, is_meant: impl Fn(u64, WorkerId) -> bool) {
        for (driver, worker, stream) in std::mem::take(&mut self.clients.held) {
            if !is_meant(driver, worker) {
                self.clients.held.push((driver, worker, stream));
                continue;
            }
            let pipe = self.workers.processes.get(&worker).and_then(|process| process.output(stream));
            if let Some(Err(error)) = pipe.map(|pipe| self.watch(pipe, Source::WorkerOutput(worker, stream))) {
                self.log(format!("the output of worker {worker} is not read any more: {error}"));
            }
        }
    }

    /// Reads what a worker has written: to its log, and to whoever watches the tasks that it runs.
    pub(super) fn read_process_output(
        &mut self,
        watchers: &Watchers,
        worker: WorkerId,
        process: &mut Process,
        stream: Stream,
        buffer: &mut [u8],
    ) {
        let pid = process.worker.pid();
        let Process { worker: WorkerProcess { stdout, stderr, claims, .. }, output, .. } = process;
        let last = || claims.last_attempt().map(|(task, attempt)| (TaskId(task), attempt));
        let unix_nano = now_unix_nano();
        let (mut text, mut extents) = (Vec::new(), Vec::new());
        let take = |bytes: &[u8], is_empty| {
            output.take((stream, bytes, is_empty), last, unix_nano, &mut text, &mut extents);
        };
        let is_open = match stream {
            Stream::Stdout => stdout.as_mut().is_none_or(|pipe| drain(pipe, buffer, take)),
            Stream::Stderr => stderr.as_mut().is_none_or(|pipe| drain(pipe, buffer, take)),
        };
        if !text.is_empty() {
            self.logs.write(worker, &text, &extents);
            self.show_output(watchers, pid, stream, &text, &extents);
        }
        self.report_marking(process, &extents);
        if !is_open {
            let closed: Option<OwnedFd> = match stream {
                Stream::Stdout => process.worker.stdout.take().map(Into::into),
                Stream::Stderr => process.worker.stderr.take().map(Into::into),
            };
            if let Some(closed) = closed {
                let _ = epoll::delete(&self.epoll, &closed);
            }
        }
    }

    /// Sends output to the drivers that watch the tasks of a worker: each gets what its own task wrote, and what has no certain owner.
    fn show_output(&mut self, watchers: &Watchers, worker_pid: u32, stream: Stream, text: &[u8], extents: &[Extent]) {
        if watchers.tasks.is_empty() {
            return;
        }
        for (bytes, owner) in owned_pieces(text, extents) {
            for &(task, watcher) in &watchers.tasks {
                let is_shared = owner.is_none() && watchers.is_shared;
                if owner.is_some_and(|owner| owner != task) {
                    continue;
                }
                let DriverId(driver) = match watcher {
                    Watcher::Driver(driver) => driver,
                    Watcher::Origin(id, from_attempt) => {
                        self.send_to_origin((task, id, from_attempt), (worker_pid, stream), bytes);
                        continue;
                    }
                };
                let Some(connection) = self.clients.connections.get_mut(&driver) else { continue };
                let lost = OutputSize::default();
                Output { task, worker_pid, stream, is_shared, node_id: "", lost, bytes }.encode(&mut connection.outbox);
                self.clients.dirty.push(driver);
            }
        }
    }

    /// Tells a worker which functions it is to mark, if that has changed.
    fn report_marking(&mut self, process: &mut Process, extents: &[Extent]) {
        let orders = process.output.orders(extents, Instant::now());
        if orders.is_empty() {
            return;
        }
        if let Some(id) = process.connection
            && let Some(connection) = self.clients.connections.get_mut(&id)
        {
            put_frame(&mut connection.outbox, kind::MARKING, |out| orders.iter().for_each(|order| order.put(out)));
            self.clients.dirty.push(id);
        }
    }

    /// Finishes the story of a dead process, and counts what that took. `left` is what is known of a spool that is not found any more.
    pub(super) fn finish_story(&mut self, spool: &Path, left: Option<Story>, loss: &Loss, worker: Option<WorkerId>) {
        let place = DeadOrigin { node_id: &self.node_id, worker, session_dir: &self.session_dir };
        let folders = Folders { spans_dir: &self.settings.tracing.spans_dir, handover: self.stories.handover.folder() };
        let mut attempts = Vec::new();
        let finisher = Finisher::Head(place);
        let (counts, error) = match left {
            Some(story) => finish_opened(story, spool, folders, loss, finisher, now_unix_nano(), &mut attempts),
            None => finish_story(spool, folders, loss, finisher, now_unix_nano(), &mut attempts),
        };
        self.stories.attempt_spans.append(&mut attempts);
        self.stories.spans.recovered = self.stories.spans.recovered.saturating_add(counts.recovered);
        self.stories.spans.closed = self.stories.spans.closed.saturating_add(counts.closed);
        self.stories.spans.cut = self.stories.spans.cut.saturating_add(counts.cut);
        self.stories.spans.dropped = self.stories.spans.dropped.saturating_add(counts.dropped);
        self.stories.spans.lost_with_process =
            self.stories.spans.lost_with_process.saturating_add(counts.lost_with_process);
        self.stories.spans.untold = self.stories.spans.untold.saturating_add(counts.untold);
        self.stories.spans.missed = self.stories.spans.missed.saturating_add(counts.missed);
        self.stories.spans.forked = self.stories.spans.forked.saturating_add(counts.forked);
        self.stories.spans.unwritten = self.stories.spans.unwritten.saturating_add(counts.unwritten);
        self.stories.spans.given_up = self.stories.spans.given_up.saturating_add(counts.given_up);
        self.stories.spans.log_records_given_up =
            self.stories.spans.log_records_given_up.saturating_add(counts.log_records_given_up);
        if let Some(error) = error {
            self.log(format!("the spans in `{}` could not be written: {error}", spool.display()));
        }
    }

    /// Notes that the spool of a worker was written over, cut short or removed by something that ran there.
    pub(super) fn note_damage(&mut self, worker: WorkerId, pid: u32) {
        self.workers.damaged = Some((self.workers.damaged.map_or(0, |(count, ..)| count) + 1, worker, pid));
        self.log(format!("the spool of worker {worker} (pid {pid}) was written over, cut short or removed by a task"));
    }

    /// Offers spans that wait to the sinks of workers.
    pub(super) fn offer_spans(&mut self, now_ns: u64, is_last: bool) {
        for offer in self.stories.handover.offers(now_ns, is_last) {
            if let Some(connection) = self.clients.connections.get_mut(&offer.connection) {
                put_value(&mut connection.outbox, kind::SPANS, &offer.spans);
                self.clients.dirty.push(offer.connection);
            } else {
                self.stories.handover.on_gone(offer.connection);
            }
        }
    }

    /// Offers what there is, and tells the sinks that it was all.
    pub(super) fn end_handover(&mut self, now_ns: u64) {
        self.stories.handover.look();
        self.offer_spans(now_ns, true);
        for id in self.stories.handover.sinks().collect::<Vec<_>>() {
            if let Some(connection) = self.clients.connections.get_mut(&id) {
                put_frame(&mut connection.outbox, kind::SHUTDOWN, |_| {});
                self.clients.dirty.push(id);
            }
        }
    }

    /// Notes that a driver's connection has closed, so nothing is held for it any more.
    pub(super) fn on_driver_gone(&mut self, id: u64, peer: Peer, pid: u32) {
        if let Peer::Driver(job) = peer {
            self.clients.gone_jobs.push(job);
            self.clients.gone_connections.push(id);
        }
        self.release(|driver, _| driver == id);
        self.watch_for_end_of_driver(pid);
    }

    /// Notes that a driver's connection has closed. If it left a spool it has died, or lives on without the connection; only its end tells.
    fn watch_for_end_of_driver(&mut self, pid: u32) {
        let spools = self.driver_spools(pid);
        if spools.is_empty() {
            return;
        }
        let loss = Loss {
            why: Why { error_type: "lost".into(), description: "the process that waited for it died".into() },
            of_tasks: Vec::new(),
            attempts: Vec::new(),
        };
        self.finish_at_end_of(pid, spools, loss);
    }

    /// Finishes the story in these spools when their process has ended, which may be now.
    pub(super) fn finish_at_end_of(&mut self, pid: u32, spools: Vec<PathBuf>, loss: Loss) {
        if let Some(ending) = self.stories.ending.get_mut(&pid) {
            let new = spools.into_iter().filter(|spool| !ending.spools.contains(spool)).collect::<Vec<_>>();
            ending.spools.extend(new);
            return;
        }
        match open_pidfd(pid) {
            Some(pidfd) if self.watch(pidfd.as_fd(), Source::OwnerExit(pid)).is_ok() => {
                self.stories.ending.insert(pid, EndingProcess { pidfd, spools, loss });
            }
            // It is gone already.
            _ => spools.iter().for_each(|spool| self.finish_left(spool, &loss)),
        }
    }

    /// Notes that a process whose end was waited for has ended.
    pub(super) fn on_owner_exit(&mut self, pid: u32) {
        let Some(ending) = self.stories.ending.remove(&pid) else { return };
        let _ = epoll::delete(&self.epoll, &ending.pidfd);
        ending.spools.iter().for_each(|spool| self.finish_left(spool, &ending.loss));
    }

    /// Finishes the story in a spool whose process has died, and ends the command that it ran.
    pub(super) fn finish_left(&mut self, spool: &Path, loss: &Loss) {
        if let Ok(story) = Story::open(spool) {
            kill_command_left_behind(&story);
        }
        self.finish_story(spool, None, loss, session::worker_of_spool(spool));
    }

    /// Kills what dead workers have left: children of the head that it has not started. True when there may be more of them.
    pub(super) fn end_orphans(&mut self) -> bool {
        // In a program that has a head inside of it, other children are that program's.
        if guard::pid().is_none() {
            return false;
        }
        let front = self.front.as_ref().and_then(Front::pid);
        let agent = self.agent.as_ref().and_then(AgentLink::pid);
        let own: Vec<_> = self
            .workers
            .processes
            .values()
            .map(|process| process.worker.pid())
            .chain(front)
            .chain(agent)
            .chain(self.services.pids())
            .collect();
        let is_own = |pid: &Pid| own.contains(&pid.as_raw_nonzero().get().unsigned_abs());
        let orphans: Vec<_> = children::of_this_process().into_iter().filter(|pid| !is_own(pid)).collect();
        for &orphan in &orphans {
            // Its own children become the head's when it is gone.
            let _ = kill_process(orphan, Signal::KILL);
            if children::reap(orphan) {
                let pid = orphan.as_raw_nonzero();
                self.log(format!("process {pid}, which a task had left behind, ended with the task's worker"));
            }
        }
        !orphans.is_empty()
    }

    pub(super) fn driver_spools(&self, pid: u32) -> Vec<PathBuf> {
        let prefix = format!("driver-{pid}-");
        let entries = self.session_dir.join("spool").read_dir().into_iter().flatten();
        entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| {
                path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(&prefix))
            })
            .collect()
    }

    /// Writes to the journal which tasks have ended, before anyone is told. When that fails, it is kept and tried again with the next
    /// turn: nobody is made to wait for a disk that is full.
    pub(super) fn write_journal(&mut self) {
        let written = self.kept.journal.write();
        self.note_journal(written);
    }

    /// Says once that the disk has no room for series of metrics, of which so many values are in overflow series.
    pub(super) fn say_no_room_for_metrics(&mut self, overflowed: u64) {
        if let Some(failure) = self.figures.take_failure(overflowed) {
            self.log(failure);
        }
    }

    /// Remembers whether the journal can be written, for whoever asks how the head is doing. True when it could be.
    fn note_journal(&mut self, written: io::Result<()>) -> bool {
        match written {
            Ok(()) => {
                self.kept.failure = None;
                true
            }
            Err(error) => {
                if self.kept.failure.is_none() {
                    self.log(format!("the journal cannot be written: {error}"));
                }
                self.kept.failure = Some(error.to_string());
                false
            }
        }
    }

    /// Sends what the turn has brought about: leases to workers, ends of tasks to drivers.
    pub(super) fn flush(&mut self) {
        let mut dirty = self.clients.take_dirty();
        self.workers.leased.retain(|worker| {
            let Some(process) = self.workers.processes.get_mut(worker) else { return false };
            let connection = process.connection.and_then(|id| Some((id, self.clients.connections.get_mut(&id)?)));
            let Some((id, connection)) = connection else { return true };
            process.leases.put_frames(&mut connection.outbox, kind::LEASES);
            dirty.push(id);
            false
        });
        self.clients.put_finished(&mut dirty);
        if let Some(agent) = self.agent.as_mut().filter(|agent| !agent.outbox.is_empty())
            && let Some(id) = agent.connection
            && let Some(connection) = self.clients.connections.get_mut(&id)
        {
            connection.outbox.append(&mut agent.outbox);
            dirty.push(id);
        }
        dirty.sort_unstable();
        dirty.dedup();
        if self.kept.journal.is_syncing() {
            self.hold_unsynced(&dirty);
        }
        for id in dirty {
            self.write_connection(id);
        }
    }

    /// Holds what drivers are told until what it follows from is on the disk, and leases until their journaled start is.
    fn hold_unsynced(&mut self, dirty: &[u64]) {
        let position = self.kept.journal.written();
        let workers = std::mem::take(&mut self.kept.unsynced_workers);
        if position == self.kept.journal.synced() {
            return;
        }
        self.kept.journal.sync();
        for &id in dirty {
            let Some(connection) = self.clients.connections.get_mut(&id) else { continue };
            let waits = match connection.peer {
                Peer::Unknown | Peer::Sink(_) | Peer::Agent | Peer::Commander => false,
                Peer::Driver(_) | Peer::Tasks(_) => true,
                Peer::Worker(worker) => workers.contains(&worker),
            };
            // What comes after what is held is held too.
            if waits || connection.is_held() {
                connection.hold(position);
                self.kept.unsynced.push(id);
            } else {
                connection.skip_hold();
            }
        }
    }

    /// Sends what is held, once it is on the disk: the head ends.
    pub(super) fn settle(&mut self) {
        if !self.kept.unsynced.is_empty() && self.kept.journal.sync_now().is_ok() {
            self.on_journal_told();
            self.flush();
        }
    }

    /// Notes that the journal has told something: what waited for it may go.
    pub(super) fn on_journal_told(&mut self) {
        for line in self.kept.journal.on_told() {
            self.log(line);
        }
        let synced = self.kept.journal.synced();
        for id in std::mem::take(&mut self.kept.unsynced) {
            let Some(connection) = self.clients.connections.get_mut(&id) else { continue };
            if connection.release(synced) {
                self.clients.dirty.push(id);
            }
            if connection.is_held() {
                self.kept.unsynced.push(id);
            }
        }
        self.kept.unsynced.sort_unstable();
        self.kept.unsynced.dedup();
    }

    pub(super) fn write_connection(&mut self, id: u64) {
        let Some(connection) = self.clients.connections.get_mut(&id) else { return };
        let wants_room = match connection.write() {
            Ok(true) if connection.is_closing && !connection.is_held() => return self.drop_connection(id, ""),
            Ok(is_done) => !is_done,
            // A worker that cannot be written to is dead or dying; its pidfd says so.
            Err(error) => {
                let text = error.to_string();
                return self.drop_connection(id, &text);
            }
        };
        let is_behind = connection.backlog() > OUTPUT_BACKLOG_LIMIT / 2;
        if wants_room != connection.is_watched_for_room {
            connection.is_watched_for_room = wants_room;
            let mut flags = epoll::EventFlags::IN;
            flags.set(epoll::EventFlags::OUT, wants_room);
            let data = epoll::EventData::new_u64(Source::Connection(id).token());
            let _ = epoll::modify(&self.epoll, connection.as_fd(), data, flags);
        }
        if !is_behind {
            self.release(|driver, _| driver == id);
        }
    }

    pub(super) fn drop_connection(&mut self, id: u64, reason: &str) {
        let Some(connection) = self.clients.connections.remove(&id) else { return };
        self.unwatch(id, &connection);
        if let Peer::Driver(_) | Peer::Tasks(_) = connection.peer {
            self.on_driver_gone(id, connection.peer, connection.pid);
        }
        if let Peer::Sink(_) = connection.peer {
            self.stories.handover.on_gone(id);
        }
        if connection.peer == Peer::Agent
            && let Some(agent) = &mut self.agent
        {
            agent.on_gone();
            self.fail_questions();
        }
        if !reason.is_empty() && connection.peer != Peer::Unknown {
            self.log(format!("connection {id} is closed: {reason}"));
        }
    }
}

impl Effects for HeadIo {
    fn drain_output(&mut self, worker: WorkerId, watchers: &Watchers) {
        let mut buffer = [0; 4096];
        let Some(mut process) = self.workers.processes.remove(&worker) else { return };
        for stream in [Stream::Stdout, Stream::Stderr] {
            self.read_process_output(watchers, worker, &mut process, stream, &mut buffer);
        }
        self.workers.processes.insert(worker, process);
    }

    fn lease(&mut self, worker: WorkerId, lease: Lease<'_>) {
        if std::mem::take(&mut self.kept.has_start) {
            self.kept.unsynced_workers.push(worker);
        }
        if let Some(process) = self.workers.processes.get_mut(&worker) {
            process.worker.claims.grant(lease.number, lease.task.0, lease.attempt);
            if process.leases.is_empty() {
                self.workers.leased.push(worker);
            }
            lease.put(process.leases.body());
        }
    }

    fn lease_inline(&mut self, worker: WorkerId, lease: Lease<'_>) {
        self.kept.has_start = false;
        let process = self.workers.processes.get(&worker);
        if let Some(process) = process {
            process.worker.claims.grant_inline(lease.task.0, lease.attempt);
        }
        // A connection that is gone was a process that is about to be.
        if let Some(id) = process.and_then(|process| process.tasks_connection)
            && let Some(connection) = self.clients.connections.get_mut(&id)
        {
            put_frame(&mut connection.outbox, kind::RUN, |out| lease.put(out));
            self.clients.dirty.push(id);
        }
    }

    fn journal_submit(
        &mut self,
        first: TaskId,
        submissions: &[Submission<'_>],
        now: Now,
    ) -> Result<Option<Period>, String> {
        let traces_runtime = submissions.iter().any(|submission| submission.envelope.traces_runtime);
        let start = traces_runtime.then(now_unix_nano);
        let submitted = (first.0..).zip(submissions).map(|(task, submission)| Submitted {
            task: TaskId(task),
            job: submission.job,
            submitted_unix_nano: now.unix_nano,
            envelope: submission.bytes,
        });
        self.kept.journal.submit(submitted).map_err(|error| error.to_string())?;
        Ok(start.map(|start_unix_nano| Period { start_unix_nano, end_unix_nano: now_unix_nano().max(start_unix_nano) }))
    }

    fn count_attempt(&mut self, attempt: &EndedAttempt<'_>) {
        self.figures.count_attempt(attempt);
    }

    fn journal_end(&mut self, task: TaskId, attempt: u32, ended: &TaskEnd) {
        self.figures.count_end(&ended.outcome);
        self.kept.journal.ended(task, attempt, ended);
    }

    fn module_digest(&mut self, version: ModuleVersion) -> Option<[u8; 32]> {
        self.agent.as_mut()?.digests.of(version, &ModuleStore::of_session(&self.session_dir))
    }

    fn stand_in(&mut self, of: &StandIn<'_>) -> Option<SpanLink> {
        self.settings.tracing.hook.as_ref()?;
        let spools = self.workers.processes.keys().map(|worker| session::worker_spool(&self.session_dir, *worker));
        let mut stories = spools.filter_map(|spool| Story::open_to_read(&spool).ok());
        let model = stories.find(|story| !story.resource().is_empty());
        let folders = Folders { spans_dir: &self.settings.tracing.spans_dir, handover: self.stories.handover.folder() };
        let place = DeadOrigin { node_id: &self.node_id, worker: None, session_dir: &self.session_dir };
        match write_stand_in(of, model.as_ref(), folders, Finisher::Head(place), std::process::id()) {
            Ok(link) => {
                fault::point("stood_in");
                self.stories.spans.closed = self.stories.spans.closed.saturating_add(link.is_some().into());
                self.stories.handover.look();
                link
            }
            Err(error) => {
                self.stories.spans.unwritten = self.stories.spans.unwritten.saturating_add(1);
                let attempt = of.lost.attempt;
                self.log(format!("the span of attempt {attempt} at task {} could not be written: {error}", of.task));
                None
            }
        }
    }

    fn journal_start(&mut self, task: TaskId, attempt: u32) -> bool {
        let written = self.kept.journal.started(task, attempt);
        self.kept.has_start = self.kept.journal.is_syncing();
        self.note_journal(written)
    }

    fn journal_bundle(&mut self, first: TaskId, count: u32) -> bool {
        let written = self.kept.journal.bundle(first, count);
        self.note_journal(written)
    }

    fn journal_actor(&mut self, actor: TaskId, attempt: u32, restarts: u32, death: Option<&Death>) {
        self.kept.journal.actor(actor, attempt, restarts, death);
    }

    fn journal_pruned(&mut self, tasks: &[TaskId]) {
        self.kept.journal.pruned(tasks);
    }

    fn journal_attempt(&mut self, task: TaskId, attempt: &AttemptReport, span: Option<SpanLink>) {
        self.kept.journal.attempt(task, attempt, span);
    }

    fn finished(
        &mut self,
        (DriverId(driver), tag): (DriverId, u64),
        task: TaskId,
        attempt: u32,
        outcome: &Outcome,
        ended_unix_nano: Option<u64>,
        past: &[AttemptReport],
    ) {
        self.clients.has_told_an_end = true;
        let body = self.clients.finished.entry(driver).or_default().body();
        Finished::put_parts(body, tag, task, attempt, outcome, ended_unix_nano, past);
    }

    fn claim_state(&self, worker: WorkerId, lease: u64) -> ClaimState {
        self.workers.processes.get(&worker).map_or(ClaimState::Unknown, |process| process.worker.claims.state(lease))
    }

    fn has_begun_inline(&self, worker: WorkerId, task: TaskId, attempt: u32) -> bool {
        self.workers
            .processes
            .get(&worker)
            .is_some_and(|process| process.worker.claims.has_begun_inline(task.0, attempt))
    }

    fn running(&self, worker: WorkerId) -> Option<(u64, u64)> {
        self.workers.processes.get(&worker)?.worker.claims.running()
    }

    fn revoke(&mut self, worker: WorkerId, lease: u64) -> bool {
        self.workers.processes.get(&worker).is_some_and(|process| process.worker.claims.revoke(lease))
    }

    fn start_worker(&mut self, worker: WorkerId) {
        self.workers.to_start.push(worker);
    }

    fn ask_to_end(&mut self, worker: WorkerId) {
        let Some(id) = self.workers.processes.get(&worker).and_then(|process| process.connection) else {
            return self.kill(worker);
        };
        if let Some(connection) = self.clients.connections.get_mut(&id) {
            put_frame(&mut connection.outbox, kind::SHUTDOWN, |_| {});
            self.clients.dirty.push(id);
        }
    }

    fn ask_to_stop(&mut self, worker: WorkerId, task: TaskId, attempt: u32, why: StopReason) {
        if let Some(process) = self.workers.processes.get(&worker) {
            process.worker.claims.ask_to_stop(task.0, attempt, why);
            if let Some(id) = process.tasks_connection
                && let Some(connection) = self.clients.connections.get_mut(&id)
            {
                put_frame(&mut connection.outbox, kind::LOOK, |_| {});
                self.clients.dirty.push(id);
            }
        }
    }

    fn signal_command(&mut self, worker: WorkerId, kill: bool) -> bool {
        self.workers.processes.get(&worker).is_some_and(|process| process.worker.signal_command(kill))
    }

    fn terminate(&mut self, worker: WorkerId) {
        if let Some(process) = self.workers.processes.get(&worker) {
            process.worker.terminate();
        }
    }

    fn bound_memory(&mut self, worker: WorkerId, limit_bytes: Option<u64>) {
        HeadIo::bound_memory(self, worker, limit_bytes);
    }

    fn kill(&mut self, worker: WorkerId) {
        if let Some(process) = self.workers.processes.get_mut(&worker) {
            process.was_killed = true;
            process.worker.kill(&session::worker_spool(&self.session_dir, worker));
        }
    }

    fn give_up_value(&mut self, name: String) {
        self.kept.unused_values.push(name);
    }

    fn answer_later(&mut self, DriverId(driver): DriverId, answer: Result<Accepted, (u64, Refusal)>) {
        let journal = &self.kept.journal;
        let position = (journal.is_syncing() && journal.written() != journal.synced()).then(|| journal.written());
        if let Some(connection) = self.clients.connections.get_mut(&driver) {
            match answer {
                Ok(Accepted { first_tag, first_task, count, .. }) => {
                    let tags = first_tag..first_tag + u64::from(count);
                    connection.fill_gaps(tags, position, |tags| {
                        let mut frame = Vec::new();
                        let first_task = TaskId(first_task.0 + (tags.start - first_tag));
                        let count = (tags.end - tags.start) as u32;
                        Accepted { first_tag: tags.start, first_task, count, journaled: None }.encode(&mut frame);
                        frame
                    });
                }
                Err((tag, refusal)) => connection.fill_gaps(tag..tag + 1, position, |_| {
                    let mut frame = Vec::new();
                    put_task_refusal(&mut frame, tag, &refusal);
                    frame
                }),
            }
            self.clients.dirty.push(driver);
            if position.is_some() {
                self.kept.unsynced.push(driver);
                self.kept.journal.sync();
            }
        }
    }

    fn take_written(&mut self, import: TaskId) -> OutputSize {
        self.shared_outputs.take_written(import)
    }

    fn to_agent(&mut self, message: &ToAgent) -> bool {
        if matches!(message, ToAgent::Share { .. } | ToAgent::ShareBundle { .. }) {
            fault::point("task_journaled");
        }
        self.agent.as_mut().is_some_and(|agent| agent.notify(message))
    }

    fn log(&mut self, line: String) {
        self.log.write(&format!(
            "{} {}\n",
            tracer_core::clock::utc(now_unix_nano()),
            tracer_core::escape::lines(&line)
        ));
    }
}
