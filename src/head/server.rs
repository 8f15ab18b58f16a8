//! The loop around the reactor: sockets, pipes, processes, signals and the clock.
//!
//! One thread. Each turn has three phases: *choose* (wait for events), *handle* (read all there is and tell the reactor), *respond*
//! (schedule once, write once to each peer). Nothing is written to a peer amid handling, so what a client sees is never
//! ahead of what was decided. In particular the spans of a worker that died are written before anyone is told of its tasks.

use std::io::{self, Read};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use tracer_core::clock::now_unix_nano;
use tracer_core::count::Count;
use tracer_core::task::{JobId, TaskId, WorkerId};
use tracer_host::module_store::ModuleStore;
use tracer_ipc::identity::wait_for_end;
use tracer_ipc::place_file;
use tracer_ipc::protocol::order::{HeadFacts, Order, OrderAnswer};
use tracer_ipc::protocol::{
    CancelWhich, HookChoice, Reply, SpanCounts, StopReport, Stream, ToAgent, put_reply, spoken_version,
};
use tracer_ipc::session::{self, Session};
use tracer_ipc::spin::{Spin, is_readable};
use tracer_ipc::spool::Story;
use tracer_ipc::start_report::{PutAside, Started};
use tracer_ipc::stored::{self, SpareValues};
use tracer_reactor::deployments::{Left, Services, Version};
use tracer_reactor::state::{self, Now, State, Unfinished, Worker};
use tracer_reactor::{Effects, WorkerExit};

use super::agent::AgentLink;
use super::clients::Clients;
use super::figures::Figures;
use super::front::{self, Front};
use super::guard::Inherited;
use super::handover::Handover;
use super::heap::Heap;
use super::io::{HeadIo, Kept, Stories, WorkerProcesses};
use super::journal::{self, Journal, Opened};
use super::keeper::{AllKept, Key};
use super::logs::{HeadLog, Logs};
use super::oom::{self, OomKills};
use super::place::PlaceWatch;
use super::process::describe_exit;
use super::services::ServicesIo;
use super::settings::{Fresh, HeadSettings, settings_of};
use super::shared_output::SharedOutputs;
use super::source::Source;
use super::{guard, watch};

mod frames;
mod listen;
mod start;

/// The end of a head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeadEnd {
    /// It was asked to, by a query or a signal, and nothing is left running.
    Stopped(StopReport),
    /// No worker could be started. Nothing is left running.
    NoWorker {
        reason: String,
        /// True if the hook may be why.
        is_hook_to_blame: bool,
        session_dir: PathBuf,
    },
}

/// The grace period of a stop that a signal asked for.
const SIGNAL_GRACE: Duration = Duration::from_secs(10);
/// Time that tasks may take to end when the program has ended that the head is embedded in.
const PROGRAM_GRACE: Duration = Duration::from_secs(1);
/// Time that that program may take to be gone once it has let go of the head, so that its spans can be finished.
const PROGRAM_LIMIT: Duration = Duration::from_secs(3);
/// Time within which a worker must start, beyond that of its hook.
const START_ALLOWANCE: Duration = Duration::from_secs(20);
/// Pause before `accept` is tried again, after it failed for want of file descriptors.
const LISTEN_PAUSE: Duration = Duration::from_millis(50);
/// Interval at which processes that a dead worker has left are looked for again, after they were killed.
const ORPHANS_PAUSE: Duration = Duration::from_millis(5);
/// Bytes read from a pipe at once.
const READ_SIZE: usize = 64 << 10;
/// Time that a driver that waits for the end of a single task is not told of its acceptance, in case the end comes too.
const PATIENCE: Duration = Duration::from_micros(150);

/// The most connections with rings. Others that ask for them go on with their sockets.
const RINGED: usize = 16;
/// Number of looks into rings between two questions to the kernel.
const LOOKS_INTO_RINGS: u32 = 4;

/// The program that a head is embedded in.
pub struct Program {
    /// Readable once the program has ended, or has let go of its head.
    pub alive: OwnedFd,
    /// True if others use the place too; else the head removes it at its end, unless spans wait there for an exporter.
    pub keeps_place: bool,
}

/// Runs a head in this process until it is stopped. `on_started` is called once, when every worker has become ready or
/// it is clear that none will. `program` is there for a head that is embedded in one.
pub fn run(
    settings: HeadSettings,
    session: Session,
    inherited: Option<Inherited>,
    program: Option<Program>,
    on_started: &mut dyn FnMut(&Started, &std::path::Path),
) -> io::Result<HeadEnd> {
    let put_aside = match settings.fresh {
        Some(fresh) => put_aside(&session, fresh)?,
        None => None,
    };
    let mut server = Server::new(settings, session, inherited)?;
    server.found.put_aside = put_aside;
    let owns_place = program.as_ref().is_some_and(|program| !program.keeps_place);
    if let Some(Program { alive, .. }) = program {
        server.io.watch(alive.as_fd(), Source::Program)?;
        server.program = Some(alive);
    }
    {
        // Whoever reads traces may be at it.
        let _lock = session::lock_leavings(server.session.temp_dir()).map_err(io::Error::other)?;
        server.take_over()?;
    }
    server.session.remove_old_sessions();
    let end = server.run(on_started);
    // Elsewhere it may be another head's by now.
    if server.session.is_in_place() {
        let needed = tracer_reactor::value_files(&server.state);
        stored::remove_others(&stored::folder(server.session.dir()), |name| needed.contains(name));
        server.spare_values.remove_all();
    }
    if server.restart.is_none() {
        server.session.close();
    }
    if let Ok(HeadEnd::Stopped(stopped)) = &end
        && owns_place
        && stopped.spans_waiting + stopped.spans_of_other_hooks == 0
    {
        // While its lock is held: whoever finishes the place of a dead head finds it whole or not at all.
        let _ = std::fs::remove_dir_all(server.session.temp_dir());
    }
    end
}

/// Puts the journal of earlier heads aside, unless it has tasks that are not to be given up.
fn put_aside(session: &Session, Fresh { discards_unfinished }: Fresh) -> io::Result<Option<PutAside>> {
    let journal = session.temp_dir().join("tasks.journal");
    journal::put_aside(&journal, discards_unfinished, now_unix_nano()).map_err(io::Error::other)
}

/// Brings to its end what a dead head has left in a place in which no other head will start, as the next head would: completes the spans of its
/// processes, and writes down how its tasks ended. `has_program_ended` says whether the program whose head it was is gone, or going; then that
/// program's spans are completed too. The place is removed, unless spans wait there for an exporter or the program still uses it.
pub fn finish_place(settings: HeadSettings, has_program_ended: bool) -> io::Result<()> {
    let place = settings.temp_dir.clone();
    let session =
        Session::open(&place, &settings.tracing.spans_dir, guard::pid(), now_unix_nano()).map_err(io::Error::other)?;
    let mut server = Server::new(HeadSettings { http: None, engine: None, ..settings }, session, None)?;
    {
        let _lock = session::lock_leavings(server.session.temp_dir()).map_err(io::Error::other)?;
        server.take_over()?;
    }
    if !has_program_ended {
        // The place is still that of a dead head, for whoever comes when the program has ended.
        return Ok(());
    }
    for pid in server.io.stories.ending.keys().copied().collect::<Vec<_>>() {
        if wait_for_end(pid, PROGRAM_LIMIT) {
            server.io.on_owner_exit(pid);
        }
    }
    server.io.stories.handover.look();
    let handover = &server.io.stories.handover;
    let is_anything_left =
        handover.spans_waiting() + handover.spans_of_others() > 0 || server.io.stories.spans.unwritten > 0;
    server.session.close();
    if is_anything_left { Ok(()) } else { std::fs::remove_dir_all(place) }
}

/// The head's one thread: the state that the reactor decides over, and all that it acts on.
pub(super) struct Server {
    pub(super) state: State,
    pub(super) services: Services,
    pub(super) io: HeadIo,
    pub(super) session: Session,
    pub(super) place: PlaceWatch,
    pub(super) listener: UnixListener,
    pub(super) signals: UnixStream,
    pub(super) clock: Instant,
    /// Leavings of the head before this one, of services, until they are taken over.
    pub(super) left: Option<Left>,
    pub(super) due: Due,
    pub(super) heap: Heap,
    pub(super) has_said_started: bool,
    /// Leavings of earlier heads.
    pub(super) found: Found,
    pub(super) oom_kills: OomKills,
    pub(super) stop: Option<Stop>,
    pub(super) drain: Option<Drain>,
    /// Set while this head ends for another program, which goes on in its place.
    pub(super) restart: Option<Restart>,
    /// A descriptor that is readable when the program has ended that this head is embedded in.
    pub(super) program: Option<OwnedFd>,
    /// Set when that program has ended: the time until which its spans are waited for.
    pub(super) program_ended: Option<Instant>,
    /// True to look for what is about to come.
    pub(super) spin: Spin,
    pub(super) spare_values: SpareValues,
}

/// Times at which something is due, beside the deadlines of those that keep their own. None for what is not.
#[derive(Default)]
pub(super) struct Due {
    /// Connections are accepted again.
    pub(super) listen: Option<Instant>,
    /// The next look for processes that dead workers have left.
    pub(super) orphans: Option<Instant>,
    /// The next look at everybody who should go on, by the monotonic clock; none while nothing happens.
    pub(super) look: Option<u64>,
    /// The next look at bounded workers, by the monotonic clock; none while none is watched.
    pub(super) memory: Option<u64>,
    /// The next deadline of the reactor, by the monotonic clock.
    pub(super) tick: Option<u64>,
    /// The next deadline of a service, by the monotonic clock.
    pub(super) services: Option<u64>,
}

impl Due {
    /// Returns the first of the times by the monotonic clock.
    fn next_ns(&self) -> Option<u64> {
        self.tick.into_iter().chain(self.services).chain(self.look).chain(self.memory).min()
    }

    /// Returns the first of the other times.
    fn next(&self) -> Option<Instant> {
        self.listen.into_iter().chain(self.orphans).min()
    }
}

/// Leavings of earlier heads of the place, as they were found at the start.
pub(super) struct Found {
    /// Counts of the spans that were written for dead processes.
    pub(super) recovered: SpanCounts,
    /// The id that no task had when the journal was opened.
    pub(super) next_task: TaskId,
    /// Versions of services that the head before this one served.
    pub(super) services: Vec<Version>,
    /// Number of tasks that an earlier head had accepted and that wait again.
    pub(super) restored: usize,
    /// Number of these that were running when their head died.
    pub(super) again: usize,
    /// Number of tasks that were running when their head died, and are not started again.
    pub(super) lost: usize,
    /// Warnings about the state of the place, for people.
    pub(super) warnings: Vec<String>,
    /// Tasks that were forgotten.
    pub(super) put_aside: Option<PutAside>,
}

impl Found {
    /// Returns what is known before anything was read back.
    fn new(next_task: TaskId, warnings: Vec<String>) -> Found {
        Found {
            recovered: SpanCounts::default(),
            next_task,
            services: Vec::new(),
            restored: 0,
            again: 0,
            lost: 0,
            warnings,
            put_aside: None,
        }
    }
}

/// A connection that waits for the end of the head, with the number of its query; none for an [order](Order).
type AskedBy = (u64, Option<u64>);

/// A stop that is going on.
pub(super) struct Stop {
    asked_by: Vec<AskedBy>,
    deadline: Instant,
    is_forced: bool,
    /// True once the last worker has ended, and those who wait for tasks that are kept were told so.
    has_told_kept: bool,
    report: StopReport,
}

/// A stop that begins when the tasks have ended.
pub(super) struct Drain {
    asked_by: Vec<AskedBy>,
    grace: Duration,
}

/// A stop after which another program goes on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Restart {
    /// True if the processes of services go on, since that program understands them.
    keeps_services: bool,
}

impl Server {
    fn new(settings: HeadSettings, session: Session, inherited: Option<Inherited>) -> io::Result<Server> {
        let (keeper, mut kept, restarts, is_replaced, failure) = match inherited {
            Some(Inherited { keeper, kept, restarts, is_replaced, failure }) => {
                (Some(keeper), kept, restarts, is_replaced, failure)
            }
            None => (None, AllKept::new(), 0, false, None),
        };
        // First: what cannot be had is said before anything has begun.
        let port = kept.remove(&Key::Front).and_then(|kept| kept.files.into_iter().next()).map(TcpListener::from);
        // The settings may name another port by now.
        let is_wanted = |port: &TcpListener| {
            let address = settings.http.map(|http| http.address.get());
            let bound = port.local_addr().ok();
            address.is_some_and(|address| bound.is_some_and(|bound| address.port() == 0 || bound == address))
        };
        let port = port.filter(is_wanted);
        let front =
            settings.http.map(|http| Front::open(http, session.dir(), port)).transpose().map_err(io::Error::other)?;
        let listener = match kept.remove(&Key::Socket).and_then(|kept| kept.files.into_iter().next()) {
            Some(socket) => UnixListener::from(socket),
            None => session.listen().map_err(io::Error::other)?,
        };
        listener.set_nonblocking(true)?;
        let place = PlaceWatch::new(&session)?;
        let (signals, signal_tx) = UnixStream::pair()?;
        signals.set_nonblocking(true)?;
        for signal in guard::ending_signals() {
            signal_hook::low_level::pipe::register(signal, signal_tx.try_clone()?)?;
        }
        // The head's own log is short, but nothing bounds how often it has something to say.
        let of_head = settings.max_log_size / 16;
        let of_front = settings.http.map_or(0, |_| settings.max_log_size / front::LOG_SHARE);
        let logs = Logs::new(session.dir().join("logs"), settings.max_log_size - of_head - of_front);
        let log = HeadLog::open(session.dir().join("logs/head.log"), of_head)?;
        let journal = session.temp_dir().join("tasks.journal");
        let Opened { journal, torn, damage, next_task, next_job } =
            Journal::open(&journal, now_unix_nano()).map_err(io::Error::other)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let (agent, node_id) = match &settings.engine {
            None => (None, host_name()),
            Some(engine) => {
                let (place, life) = place_file::begin_life(session.temp_dir(), now_unix_nano())?;
                let node_id = place_file::node_id(&host_name(), place);
                (Some(AgentLink::new(engine.clone(), place, life)), node_id)
            }
        };
        let own_hooks = settings.tracing.hook.as_ref().map(tracer_host::hook::owners).unwrap_or_default();
        let mut io = HeadIo {
            session_dir: session.dir().into(),
            node_id,
            epoll,
            clients: Clients::new(next_job),
            workers: WorkerProcesses::new(),
            kept: Kept::new(journal),
            stories: Stories::new(Handover::new(session::handover_dir(session.dir()), own_hooks)?),
            warnings: settings.warnings.clone(),
            front,
            agent,
            shared_outputs: SharedOutputs::default(),
            services: ServicesIo::default(),
            keeper,
            restarts,
            figures: Figures::open(&tracer_ipc::http_place::head_metrics_path(session.temp_dir())),
            logs,
            log,
            settings,
        };
        io.figures.begin(&io.session_dir);
        if let Some(failure) = io.figures.failure.clone() {
            io.log(failure.clone());
            io.warnings.push(failure);
        }
        if let Some(failure) = failure {
            io.log(failure.clone());
            io.warnings.push(failure);
        }
        if torn > 0 {
            let bytes = Count(torn, "byte");
            io.log(format!("the journal ended in {bytes} that were no whole record; they were cut off"));
        }
        let warnings_at_start: Vec<_> = damage.iter().map(ToString::to_string).collect();
        for warning in &warnings_at_start {
            io.log(warning.clone());
            io.warnings.push(warning.clone());
        }
        io.watch(listener.as_fd(), Source::Listener)?;
        io.watch(signals.as_fd(), Source::Signal)?;
        io.watch(place.watched(), Source::Place)?;
        io.watch(io.stories.handover.watched(), Source::Handover)?;
        io.watch(io.kept.journal.watched(), Source::Journal)?;
        if io.settings.journal_sync {
            io.kept.journal.start_syncing()?;
        }
        let mut state = State::new(state::Settings { node_id: io.node_id.clone(), ..settings_of(&io.settings) });
        if restarts > 0 {
            // Its processes, their spools and their logs are there.
            state.processes_mut().reserve(last_process(session.dir()));
        }
        let left = io.take_over_services(kept, is_replaced);
        let spare_values = SpareValues::new(&stored::folder(session.dir()));
        let server = Server {
            state,
            services: Services::new(
                io.settings.resources.clone(),
                io.settings.max_processes.saturating_sub(io.settings.num_workers),
            ),
            io,
            session,
            place,
            listener,
            signals,
            clock: guard::clock(),
            left,
            due: Due { tick: Some(0), ..Due::default() },
            heap: Heap::default(),
            has_said_started: false,
            found: Found::new(next_task, warnings_at_start),
            oom_kills: OomKills::watch(),
            stop: None,
            drain: None,
            restart: None,
            program: None,
            program_ended: None,
            spin: Spin::default(),
            spare_values,
        };
        Ok(server)
    }

    fn run(&mut self, on_started: &mut dyn FnMut(&Started, &std::path::Path)) -> io::Result<HeadEnd> {
        let now = self.now();
        if let Some(place) = self.io.agent.as_ref().map(AgentLink::place) {
            // An engine has more to say soon.
            tracer_ipc::background::batch_wakeups();
            let job = JobId(self.io.clients.next_job);
            self.io.clients.next_job += 1;
            tracer_reactor::on_driver(&mut self.state, job);
            tracer_reactor::on_joined(&mut self.state, place, job);
        }
        tracer_reactor::start_missing_workers(&mut self.state, &mut self.io, now);
        self.start_workers(now);
        self.io.start_front();
        self.io.start_agent();
        let services = std::mem::take(&mut self.found.services);
        let services = self.take_over_services(services, now);
        self.restore_services(services, now);
        self.close_spare_listeners();
        if let Some(keeper) = &self.io.keeper {
            keeper.has_begun();
        }
        let mut events: Vec<epoll::Event> = Vec::with_capacity(256);
        let mut pieces = Vec::new();
        // How often it has looked into the rings since it has asked the kernel.
        let mut looks = 0;
        let mut buffer = vec![0; READ_SIZE];
        loop {
            self.say_started(on_started);
            if let Some(end) = self.finished(self.now()) {
                self.io.write_journal();
                self.io.flush();
                self.io.settle();
                return Ok(end);
            }
            events.clear();
            pieces.clear();
            let at_once = Some(&Timespec { tv_sec: 0, tv_nsec: 0 });
            let will_look = self.spin.will_look();
            if will_look {
                self.io.clients.wake_up();
            }
            self.spin.look(|| {
                self.io.clients.find_pieces(&mut pieces);
                looks += 1;
                if looks >= LOOKS_INTO_RINGS || pieces.is_empty() && self.io.clients.ringed.is_empty() {
                    looks = 0;
                    // What goes wrong here goes wrong below too.
                    let _ = wait(&self.io.epoll, &mut events, at_once);
                }
                !pieces.is_empty() || !events.is_empty()
            });
            if events.is_empty() && pieces.is_empty() {
                self.io.clients.fall_asleep(&mut pieces);
            }
            if events.is_empty() && pieces.is_empty() && !will_look && !self.io.clients.late.is_empty() {
                // An epoll instance waits for whole milliseconds.
                let _ = is_readable(&self.io.epoll, PATIENCE);
                wait(&self.io.epoll, &mut events, at_once)?;
            }
            if events.is_empty() && pieces.is_empty() {
                self.io.flush();
                let timeout = self.timeout();
                wait(&self.io.epoll, &mut events, timeout.as_ref())?;
            }
            let now = self.now();
            if !(events.is_empty() && pieces.is_empty()) {
                self.due.look.get_or_insert(now.monotonic_ns + watch::pause().as_nanos() as u64);
            }
            // Exits last: whatever a worker wrote and reported before it died is taken in first.
            let (exits, others): (Vec<_>, Vec<_>) = events
                .iter()
                .map(|event| Source::of_token(event.data.u64()))
                .partition(|source| matches!(source, Source::WorkerExit(_)));
            let pieces = pieces.iter().map(|id| Source::Connection(*id));
            for source in pieces.chain(others).chain(exits) {
                self.handle(source, &mut buffer, now);
            }
            self.respond(now);
            if std::mem::take(&mut self.io.clients.has_told_an_end) {
                self.spin.request_ended();
            }
        }
    }

    fn now(&self) -> Now {
        Now {
            monotonic_ns: u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX),
            unix_nano: now_unix_nano(),
        }
    }

    fn start_limit_ns(&self) -> u64 {
        let all = |hook: &HookChoice| hook.timeout_ms.saturating_mul(1 + hook.further.len() as u64);
        let hook = self.io.settings.tracing.hook.as_ref().map_or(0, all);
        u64::try_from((Duration::from_millis(hook) + START_ALLOWANCE).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns the time to wait for events: until the next limit is reached, or for ever.
    fn timeout(&mut self) -> Option<Timespec> {
        let now = self.now();
        let of_others =
            self.spare_values.expires_ns().into_iter().chain(self.place.next_ns()).chain(self.heap.next_ns());
        let tick = of_others.chain(self.due.next_ns()).min();
        let tick = tick.map(|next| Duration::from_nanos(next.saturating_sub(now.monotonic_ns)));
        // Once everything is killed there is nothing to wait for but the ends, and they wake the loop.
        let stop = self
            .stop
            .as_ref()
            .filter(|stop| !stop.is_forced)
            .map(|stop| stop.deadline.saturating_duration_since(Instant::now()));
        // A limit is reached a little after the sleep, never a little before.
        let due = self.due.next().map(|again| again.saturating_duration_since(Instant::now()));
        let handover = self.io.stories.handover.next_ns(now.monotonic_ns);
        let handover = handover.map(|next| Duration::from_nanos(next.saturating_sub(now.monotonic_ns)));
        let program = self.program_ended.map(|limit| limit.saturating_duration_since(Instant::now()));
        let front = self.io.front.as_ref().and_then(Front::next);
        let front = front.map(|next| next.saturating_duration_since(Instant::now()));
        let agent = self.io.agent.as_ref().and_then(AgentLink::next);
        let agent = agent.map(|next| next.saturating_duration_since(Instant::now()));
        let all = tick.into_iter().chain(stop).chain(due).chain(handover).chain(program).chain(front).chain(agent);
        let wait = all.min()? + Duration::from_micros(100);
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
                let is_second = self.stop.is_some() && self.restart.is_none();
                let grace = if is_second { Duration::ZERO } else { SIGNAL_GRACE };
                self.begin_stop(None, grace, Unfinished::Kept, is_second, now);
            }
            Source::Program => self.on_program_ended(now),
            Source::Connection(id) => drop(self.read_connection(id, now)),
            Source::WorkerOutput(worker, stream) => {
                self.io.read_output(&self.state, worker, stream, buffer);
                tracer_reactor::on_output(&mut self.state, worker, now);
            }
            Source::WorkerExit(worker) => self.on_worker_exit(worker, buffer, now),
            Source::OwnerExit(pid) => self.io.on_owner_exit(pid),
            Source::Handover => self.io.stories.handover.on_change(),
            Source::Journal => self.io.on_journal_told(),
            Source::Place => {
                self.place.take();
                self.check_place(now);
            }
            Source::FrontExit => self.io.on_front_exit(),
            Source::AgentExit => self.on_agent_exit(now),
            Source::ServiceControl(process) => self.on_service_control(process, now),
            Source::ServiceExit(process) => self.on_service_exit(process, buffer, now),
            Source::ServiceOutput(process, stream) => self.io.read_service_output(process, stream, buffer),
            Source::CallerListener => self.io.accept_callers(),
            Source::Caller(id) => self.on_caller(id, now),
        }
    }

    fn respond(&mut self, now: Now) {
        if let Some(stop) = &mut self.stop
            && stop.deadline <= Instant::now()
            && !stop.is_forced
        {
            stop.is_forced = true;
            tracer_reactor::on_stop_overdue(&mut self.state, &mut self.io);
        }
        if self.stop.is_some() {
            tracer_reactor::end_stuck(&self.state, &mut self.io);
        }
        if self.place.is_due(now.monotonic_ns) {
            self.session.touch();
            self.check_place(now);
        }
        if self.due.listen.is_some_and(|again| again <= Instant::now())
            && self.io.watch(self.listener.as_fd(), Source::Listener).is_ok()
        {
            self.due.listen = None;
        }
        if self.due.orphans.is_some_and(|again| again <= Instant::now()) {
            self.due.orphans = self.io.end_orphans().then(|| Instant::now() + ORPHANS_PAUSE);
        }
        if let Some(grace) = self.drain.as_ref().map(|drain| drain.grace)
            && !tracer_reactor::has_own_tasks(&self.state)
        {
            self.begin_stop(None, grace, Unfinished::Kept, false, now);
        }
        if self.stop.is_none() {
            self.io.start_front();
            self.io.start_agent();
        }
        for connection in std::mem::take(&mut self.io.clients.gone_connections) {
            self.end_services_of(connection, now);
        }
        for job in std::mem::take(&mut self.io.clients.gone_jobs) {
            tracer_reactor::on_driver_gone(&mut self.state, job);
        }
        tracer_reactor::start_missing_workers(&mut self.state, &mut self.io, now);
        self.start_workers(now);
        tracer_reactor::fail_if_no_worker(&mut self.state, &mut self.io, now);
        tracer_reactor::schedule(&mut self.state, &mut self.io, now);
        if self.io.agent.is_some() {
            self.report_free_slots();
        }
        for (_, worker, _) in &self.io.clients.held {
            // Its command would write if it were read.
            tracer_reactor::on_output(&mut self.state, *worker, now);
        }
        let start_limit = self.start_limit_ns();
        self.due.tick = tracer_reactor::on_tick(&mut self.state, &mut self.io, start_limit, now);
        if self.due.memory.is_none_or(|again| again <= now.monotonic_ns) && self.io.has_to_watch() {
            self.due.memory = self.io.watch_memory(&self.state, now.monotonic_ns);
        }
        if self.due.look.is_some_and(|again| again <= now.monotonic_ns) {
            // First: what happens between the two is told.
            self.place.watch_journal(&self.session);
            self.check_journal_length();
            let is_again = self.io.look_after(&self.state);
            self.due.look = is_again.then(|| now.monotonic_ns + watch::pause().as_nanos() as u64);
        }
        if self.heap.is_due(self.state.open_bytes(), now.monotonic_ns) {
            tracer_process::allocator::trim();
        }
        self.turn_services(now);
        self.io.offer_spans(now.monotonic_ns, false);
        self.io.say_no_room_for_metrics(0);
        self.io.log.write_waiting();
        self.io.write_journal();
        self.remove_values();
        self.remove_module_copies();
        self.spare_values.expire(now.monotonic_ns);
        self.keep_journal_short();
        self.io.flush();
    }

    /// Tells the agent how many slots are free for tasks of queues, if that has changed.
    fn report_free_slots(&mut self) {
        let free = tracer_reactor::free_for_imports(&self.state);
        let Some(agent) = self.io.agent.as_mut().filter(|agent| agent.connection.is_some()) else { return };
        if agent.told_free.as_ref() != Some(&free) {
            agent.notify(&free);
            agent.told_free = Some(free);
        }
    }

    /// Notes that the agent has ended: what it sent before counts.
    fn on_agent_exit(&mut self, now: Now) {
        let (connection, pid) = self.io.agent.as_ref().map_or((None, None), |agent| (agent.connection, agent.pid()));
        if let Some(id) = connection {
            while self.read_connection(id, now) {}
            self.io.drop_connection(id, "");
        }
        self.io.on_agent_exit();
        if let Some(pid) = pid.filter(|_| self.io.agent.as_ref().is_some_and(|agent| agent.pid().is_none())) {
            // Values that it was about to bring, and whose names nobody knows.
            let its_own = format!("{pid}-");
            let known = tracer_reactor::value_files(&self.state);
            let folder = stored::folder(&self.io.session_dir);
            stored::remove_others(&folder, |name| !name.starts_with(&its_own) || known.contains(name));
        }
    }

    /// Removes copies of modules that nobody needs any more, when there are newer ones.
    fn remove_module_copies(&mut self) {
        if !self.state.take_new_versions() {
            return;
        }
        if let Some(needed) = tracer_reactor::needed_versions(&self.state) {
            let of_services = self.services.module_versions();
            ModuleStore::of_session(&self.io.session_dir)
                .prune(|version| needed.contains(&version) || of_services.contains(&version.number()));
        }
    }

    /// Removes files of values that nobody needs any more.
    fn remove_values(&mut self) {
        if self.io.kept.unused_values.is_empty() {
            return;
        }
        let folder = stored::folder(&self.io.session_dir);
        let now = self.now().monotonic_ns;
        for name in std::mem::take(&mut self.io.kept.unused_values).iter().filter(|name| !name.is_empty()) {
            self.spare_values.put(&folder.join(name), now);
        }
    }

    fn next_to_start(&mut self) -> Option<WorkerId> {
        let next = &mut self.io.workers.to_start;
        (!next.is_empty()).then(|| next.remove(0))
    }

    fn start_workers(&mut self, now: Now) {
        while let Some(worker) = self.next_to_start() {
            match self.io.spawn(worker) {
                Ok(pid) => tracer_reactor::on_worker_started(&mut self.state, worker, pid, now),
                Err(error) => {
                    let mut reason = format!("could not be started: {error}");
                    let mut cause = std::error::Error::source(&error);
                    while let Some(error) = cause {
                        reason.push_str(&format!(": {error}"));
                        cause = error.source();
                    }
                    tracer_reactor::on_worker_start_failed(&mut self.state, &mut self.io, &reason, now);
                    if !self.state.has_begun() {
                        // Nothing else wakes the loop, in which it is tried again until the head gives up.
                        tracer_reactor::start_missing_workers(&mut self.state, &mut self.io, now);
                    }
                }
            }
        }
    }

    fn check_journal_length(&mut self) {
        if self.io.kept.journal.is_cut_short() {
            let journal = self.session.temp_dir().join("tasks.journal");
            let text = "was truncated by another process: tasks that were accepted before then are lost if the head is killed\n\
                        (hint: when they have ended, `tracer stop` and `tracer start --head --fresh` begin a whole one)";
            self.warn(format!("the journal `{}` {text}", journal.display()));
        }
    }

    /// Says something in the log, and in `tracer status` from now on.
    fn warn(&mut self, text: String) {
        if !self.io.warnings.contains(&text) {
            self.io.log(text.clone());
            self.io.warnings.push(text);
        }
    }

    /// Notes that the program has ended that this head is embedded in: nobody can get anything from it any more.
    fn on_program_ended(&mut self, now: Now) {
        if let Some(program) = self.program.take() {
            let _ = epoll::delete(&self.io.epoll, &program);
            self.io.log("the program that this head is embedded in has ended".into());
            self.program_ended = Some(Instant::now() + PROGRAM_LIMIT);
            tracer_reactor::on_cancel_many(&mut self.state, &mut self.io, &CancelWhich::All, None, now);
            self.begin_stop(None, PROGRAM_GRACE, Unfinished::Discarded, false, now);
        }
    }

    /// Accepts nothing of drivers any more, and stops when the tasks have ended that are here.
    fn begin_drain(&mut self, asked_by: AskedBy, grace: Duration) {
        let drain = self.drain.get_or_insert_with(|| Drain { asked_by: Vec::new(), grace });
        drain.asked_by.push(asked_by);
        drain.grace = drain.grace.min(grace);
        tracer_reactor::on_drain(&mut self.state);
        self.io.to_agent(&ToAgent::Stopping);
    }

    fn begin_stop(&mut self, asked_by: Option<AskedBy>, grace: Duration, lot: Unfinished, force: bool, now: Now) {
        if self.restart.take().is_some() {
            // Whoever came meanwhile is told.
            self.due.listen = Some(Instant::now());
            self.io.log("the head is told to stop, and no other program goes on".into());
        }
        if let Some(keeper) = &self.io.keeper {
            keeper.stops();
        }
        self.stop_services(if force { Duration::ZERO } else { grace }, now);
        self.begin_end(asked_by, grace, lot, force, now);
    }

    /// Ends what is this head's own for another program, which goes on in its place: with its session, its tasks, the sockets on which it listens and, if it
    /// speaks the same protocol, the processes of its services. Whoever connects from now on waits for that program. Fails with nothing done.
    fn begin_restart(&mut self, asked_by: AskedBy, order: Order, now: Now) -> Result<(), String> {
        let (Some(executable), Some(settings)) = (order.executable, order.settings) else {
            return Err("the order names no program that goes on, or no settings".into());
        };
        if self.program.is_some() {
            return Err("the head belongs to a program, with which it ends".into());
        }
        if self.stop.is_some() || self.drain.is_some() {
            return Err("the head is stopping already".into());
        }
        let keeps_services = order.protocol_version == spoken_version();
        self.keep_head_for_another();
        let Some(keeper) = &self.io.keeper else { return Err("the head has no guard that could start another".into()) };
        keeper
            .replace(executable.clone(), settings, keeps_services)
            .map_err(|error| format!("its guard is gone: {error}"))?;
        self.io.log(format!("the head makes way for `{}`", executable.display()));
        self.restart = Some(Restart { keeps_services });
        let _ = epoll::delete(&self.io.epoll, &self.listener);
        self.due.listen = None;
        let grace = Duration::from_millis(order.grace_ms);
        if !keeps_services {
            self.stop_services(grace, now);
        }
        self.begin_end(Some(asked_by), grace, Unfinished::Kept, order.force, now);
        Ok(())
    }

    /// Follows an order, or says why not; none when the answer comes later.
    fn on_order(&mut self, id: u64, order: Order, now: Now) -> Option<OrderAnswer> {
        let (asked_by, grace) = ((id, None), Duration::from_millis(order.grace_ms));
        let refused = match &*order.order {
            Order::STATUS => return Some(OrderAnswer { head: self.facts(), ..OrderAnswer::default() }),
            Order::DRAIN if self.stop.is_none() => {
                self.begin_drain(asked_by, grace);
                return None;
            }
            Order::STOP | Order::DRAIN => {
                let lot = if order.discard { Unfinished::Discarded } else { Unfinished::Kept };
                self.begin_stop(Some(asked_by), grace, lot, order.force, now);
                return None;
            }
            Order::RESTART => match self.begin_restart(asked_by, order, now) {
                Ok(()) => return None,
                Err(reason) => reason,
            },
            other => format!("the head (tracer {}) knows no order `{other}`", tracer_ipc::VERSION),
        };
        Some(OrderAnswer { refused: Some(refused), head: self.facts(), stopped: None })
    }

    /// Returns what whoever gives an order may want to know.
    fn facts(&self) -> HeadFacts {
        let counts = self.state.counts();
        HeadFacts {
            version: tracer_ipc::VERSION.into(),
            protocol_version: spoken_version(),
            head_pid: std::process::id(),
            guard_pid: guard::pid(),
            session_dir: self.io.session_dir.clone(),
            waiting: counts.waiting,
            running: counts.leased,
            workers: self.state.workers().len(),
            actors: self.state.workers().of_actors(),
            services: self.services.all().filter(|(_, served)| served.is_there()).count(),
            service_processes: self.io.services.pids().count(),
            is_stopping: self.stop.is_some() || self.drain.is_some(),
            is_embedded: self.program.is_some(),
            start: self.io.settings.start.clone(),
        }
    }

    fn begin_end(&mut self, asked_by: Option<AskedBy>, grace: Duration, lot: Unfinished, force: bool, now: Now) {
        let unfinished = self.state.counts().waiting + self.state.counts().leased;
        let drained_for = self.drain.take().map(|drain| drain.asked_by).unwrap_or_default();
        let stop = self.stop.get_or_insert_with(|| Stop {
            asked_by: Vec::new(),
            deadline: Instant::now() + grace,
            is_forced: false,
            has_told_kept: false,
            report: StopReport { head_pid: std::process::id(), unfinished, ..StopReport::default() },
        });
        stop.asked_by.extend(drained_for.into_iter().chain(asked_by));
        stop.deadline = stop.deadline.min(Instant::now() + grace);
        stop.is_forced |= force;
        self.io.end_handover(now.monotonic_ns);
        // Before it hears what is given back: that is for other nodes alone.
        self.io.to_agent(&ToAgent::Stopping);
        tracer_reactor::on_stop(&mut self.state, &mut self.io, lot, force, now);
    }

    fn on_worker_exit(&mut self, worker: WorkerId, buffer: &mut [u8], now: Now) {
        let Some(mut process) = self.io.workers.processes.remove(&worker) else { return };
        // What it sent before it died counts.
        if let Some(id) = process.connection {
            self.io.workers.processes.insert(worker, process);
            while self.read_connection(id, now) {}
            let Some(again) = self.io.workers.processes.remove(&worker) else { return };
            process = again;
        }
        let watchers = tracer_reactor::watchers(&self.state, worker, |lease| process.worker.claims.state(lease));
        for stream in [Stream::Stdout, Stream::Stderr] {
            self.io.read_process_output(&watchers, worker, &mut process, stream, buffer);
        }
        let spool = session::worker_spool(&self.io.session_dir, worker);
        // Before it is reaped: its pid, and so its group, is still its own.
        process.worker.kill(&spool);
        let counter = oom::counter_of(process.worker.pid());
        let exit = match process.worker.try_reap() {
            Ok(Some(status)) => process.bound.end(self.oom_kills.explain(describe_exit(status), counter)),
            Ok(None) => {
                self.io.workers.processes.insert(worker, process);
                return;
            }
            // It is gone all the same.
            Err(error) => {
                let cause = format!("ended, and its exit status cannot be read: {error}");
                WorkerExit { cause, error_type: "unknown".into(), memory: None }
            }
        };
        if let Some((id, connection)) = process.connection.and_then(|id| self.io.clients.connections.remove_entry(&id))
        {
            self.io.unwatch(id, &connection);
        }
        let _ = epoll::delete(&self.io.epoll, &process.worker.pidfd);
        if let Some(stop) = &mut self.stop {
            let pids = if process.was_killed { &mut stop.report.killed } else { &mut stop.report.stopped };
            pids.push(process.worker.pid());
        }
        let exit = match process.broken {
            Some(what) => WorkerExit { cause: format!("was ended, because {what}"), ..exit },
            None => exit,
        };
        let was_asked = self.state.workers().get(&worker).is_some_and(Worker::was_asked_to_end);
        let is_gone = !spool.exists() && !was_asked;
        let left = if is_gone { process.worker.claims.story() } else { None };
        if is_gone || process.worker.claims.is_damaged() || left.as_ref().is_some_and(Story::is_damaged) {
            self.io.note_damage(worker, process.worker.pid());
        }
        // The reactor asks for claims, which are in the process's ring.
        self.io.workers.processes.insert(worker, process);
        let loss = tracer_reactor::on_worker_exited(&mut self.state, &mut self.io, worker, &exit, now);
        self.io.workers.processes.remove(&worker);
        self.io.workers.to_watch.remove(&worker);
        self.io.logs.close(worker);
        // Whatever it left behind has become the head's.
        self.due.orphans = Some(Instant::now());
        if let Some(loss) = loss {
            // What was charged is in the journal before the claims are gone that would tell the next head.
            self.io.write_journal();
            self.io.finish_story(&spool, left, &loss, Some(worker));
            tracer_reactor::on_attempt_spans(&mut self.state, std::mem::take(&mut self.io.stories.attempt_spans));
        }
    }

    fn finished(&mut self, now: Now) -> Option<HeadEnd> {
        let do_services_go_on = self.restart.is_some_and(|restart| restart.keeps_services);
        let has_processes =
            !self.io.workers.processes.is_empty() || !(do_services_go_on || self.services.are_at_rest());
        let stop = self.stop.as_mut().filter(|_| self.state.workers().is_empty() && !has_processes)?;
        if !std::mem::replace(&mut stop.has_told_kept, true) {
            stop.report.kept = tracer_reactor::on_workers_gone(&mut self.state, &mut self.io, now);
            // Attempts that were cut short are in the journal before anyone is told.
            self.io.write_journal();
        }
        // There is no next head in this place that would finish the program's spans.
        if self.program_ended.is_some_and(|limit| !self.io.stories.ending.is_empty() && Instant::now() < limit) {
            return None;
        }
        // It tells its clients how the last tasks have ended, which it has to hear of first.
        let is_forced = self.stop.as_ref().is_some_and(|stop| stop.is_forced);
        self.io.flush();
        if !self.io.front.as_mut().is_none_or(|front| front.end(is_forced, self.restart.is_some())) {
            return None;
        }
        let is_settled = !tracer_reactor::has_unsettled(&self.state);
        if !self.io.agent.as_mut().is_none_or(|agent| agent.end(is_settled, is_forced)) {
            return None;
        }
        let mut stop = self.stop.take()?;
        stop.report.unfinished = stop.report.unfinished.saturating_sub(self.state.ended_while_stopping());
        self.io.stories.handover.look();
        stop.report.spans_waiting = self.io.stories.handover.spans_waiting();
        stop.report.spans_of_other_hooks = self.io.stories.handover.spans_of_others();
        let answer = OrderAnswer { refused: None, head: self.facts(), stopped: Some(stop.report.clone()) };
        for (connection, number) in &stop.asked_by {
            let Some(connection) = self.io.clients.connections.get_mut(connection) else { continue };
            match number {
                Some(number) => {
                    put_reply(&mut connection.outbox, *number, &Reply::Stopped(stop.report.clone()));
                }
                None => answer.encode(&mut connection.outbox),
            }
        }
        self.io.clients.dirty.extend(stop.asked_by.iter().map(|(connection, _)| *connection));
        let goes_on = if self.restart.is_some() { "; another program goes on" } else { "" };
        self.io.log(format!("the head has stopped{goes_on}"));
        match self.state.no_worker() {
            Some(reason) if stop.asked_by.is_empty() => Some(HeadEnd::NoWorker {
                reason: reason.to_owned(),
                is_hook_to_blame: self.state.is_hook_to_blame(),
                session_dir: self.io.session_dir.clone(),
            }),
            _ => Some(HeadEnd::Stopped(stop.report)),
        }
    }
}

/// Returns the highest number of a process that has files in the folder of a session.
fn last_process(session_dir: &Path) -> WorkerId {
    let mut folders = vec![session_dir.join("spool"), session_dir.join("logs"), session_dir.join("logs/serve")];
    let names = folders.drain(..).filter_map(|folder| folder.read_dir().ok()).flatten();
    let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let number = |name: String| {
        let rest = name.strip_prefix("worker-").or(name.strip_prefix("proxy-"))?;
        rest.split(['-', '.']).next()?.parse().ok()
    };
    WorkerId(names.filter_map(number).max().unwrap_or(0))
}

/// Waits for events and appends them. An interruption is none.
fn wait(epoll: &OwnedFd, events: &mut Vec<epoll::Event>, timeout: Option<&Timespec>) -> io::Result<()> {
    match epoll::wait(epoll, rustix::buffer::spare_capacity(events), timeout) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Returns the name of this machine.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
