//! The loop around the reactor: sockets, pipes, processes, signals and the clock.
//!
//! One thread. Each turn has three phases: *choose* (wait for events), *handle* (read all there is and tell the reactor), *respond*
//! (schedule once, write once to each peer). Nothing is written to a peer amid handling, so what a client sees is never
//! ahead of what was decided. In particular the spans of a worker that died are written before anyone is told of its tasks.

use std::collections::{BTreeSet, HashMap};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use rustix::event::{Timespec, epoll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::connection::{Connection, Peer, ReadState};
use super::figures::{self, Figures};
use super::front::{self, Front};
use super::handover::Handover;
use super::heap::{self, Heap};
use super::journal::{self, Journal, Opened};
use super::logs::{HeadLog, Logs};
use super::oom::{self, OomKills};
use super::place::PlaceWatch;
use super::process::describe_exit;
use super::reactor::deployments::{Services, Version};
use super::reactor::{self, Effects, LeftClaim, LostAttempt, WorkerExit};
use super::recovery::left_by_a_dead_head;
use super::restore::{ReadBack, read_back};
use super::services::ServicesIo;
use super::state::{self, DriverId, Now, Progress, Settings, State, TASK_BYTES, Worker, WorkerPhase};
pub(crate) use tracer_ipc::start_report::{PutAside, Report, Started};

use super::io::{HeadIo, Source};
use super::{guard, watch};
use crate::config::{self, otel};
use crate::control_group::Group;
use crate::count::Count;
use crate::fault;
use crate::hook::SearchPath;
use crate::http_api::HttpSettings;
use crate::identity::{DYING_LIMIT, wait_for_end};
use crate::module_store::ModuleStore;
use crate::protocol::wire::{Take, WireError};
use crate::protocol::{
    ActorMethods, AttemptResult, CancelWhich, Hello, HookChoice, PROTOCOL_VERSION, Query, Reply, Role, SpanCounts,
    StopReport, Stream, Submissions, TracingSettings, Wait, Welcome, WorkerReady, kind, put_refusal, put_reply,
    put_value, take_value,
};
use crate::session::{self, Session};
use crate::spin::{Spin, is_readable};
use crate::spool::Story;
use crate::stored::{self, SpareValues};
use crate::task::{Failure, JobId, Outcome, Refusal, RefusalCode, TaskId, WorkerId};
use tracer_core::clock::now_unix_nano;

/// What a head runs with.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct HeadSettings {
    /// Number of workers to keep running; at least 1.
    pub(crate) num_workers: usize,
    /// The most worker processes there may be; at least `num_workers`.
    pub(crate) max_processes: usize,
    /// The most memory of a worker with what it starts, in bytes; none for no bound.
    pub(crate) worker_memory: Option<u64>,
    /// The most memory of tasks that have not ended, in bytes.
    pub(crate) queue_memory: u64,
    /// What `queue_memory` follows from.
    #[serde(default)]
    pub(crate) queue_memory_source: String,
    /// The most that the logs of the session may take, in bytes.
    pub(crate) max_log_size: u64,
    /// True if nothing is acknowledged before it is on the disk.
    pub(crate) journal_sync: bool,
    /// What tasks may ask for by name, and how much there is of it, in the order of the names.
    pub(crate) resources: Vec<(String, u64)>,
    /// The place of the head: its lock, and the folder of each session. Absolute, as are all paths here.
    pub(crate) temp_dir: PathBuf,
    /// Folders in which modules are looked for first, in order.
    pub(crate) module_path: Vec<PathBuf>,
    /// Why nothing is traced, if it is not for want of a hook.
    pub(crate) tracing_off: Option<String>,
    /// What a person should know about the settings.
    pub(crate) warnings: Vec<String>,
    /// How processes of the session trace. The hook was tried out already.
    pub(crate) tracing: TracingSettings,
    /// The HTTP API; none for a head without.
    pub(crate) http: Option<HttpSettings>,
    /// What the hook does with spans, as it said when it was tried out.
    pub(crate) hook_description: String,
    /// True if the tasks of earlier heads are forgotten.
    #[serde(default)]
    pub(crate) fresh: Option<Fresh>,
}

/// How the tasks of earlier heads are forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Fresh {
    /// True if those that have not ended are given up.
    pub(crate) discards_unfinished: bool,
}

impl HeadSettings {
    /// Those for [`finish_place`] where nobody knows the dead head's own.
    pub(crate) fn of_dead_head(temp_dir: PathBuf, spans_dir: PathBuf) -> HeadSettings {
        HeadSettings {
            num_workers: 1,
            max_processes: 1,
            worker_memory: None,
            queue_memory: u64::MAX,
            queue_memory_source: String::new(),
            max_log_size: config::LOG_SIZE_LEAST,
            journal_sync: false,
            resources: Vec::new(),
            temp_dir,
            module_path: Vec::new(),
            tracing_off: None,
            warnings: Vec::new(),
            tracing: TracingSettings::untraced(spans_dir),
            http: None,
            hook_description: String::new(),
            fresh: None,
        }
    }
}

/// How the head ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HeadEnd {
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
/// What a worker's start may take beyond its hook.
const START_ALLOWANCE: Duration = Duration::from_secs(20);
/// Pause before `accept` is tried again, after it failed for want of file descriptors.
const LISTEN_PAUSE: Duration = Duration::from_millis(50);
/// How soon what a dead worker has left is looked for again, after it was killed.
const ORPHANS_PAUSE: Duration = Duration::from_millis(5);
/// Bytes read from a pipe at once.
const READ_SIZE: usize = 64 << 10;
/// Time that a driver that waits for the end of a single task is not told of its acceptance, in case the end comes too.
const PATIENCE: Duration = Duration::from_micros(150);

/// The most connections with rings. Others that ask for them go on with their sockets.
const RINGED: usize = 16;
/// While it looks into rings it asks the kernel each time after so many looks.
const LOOKS_INTO_RINGS: u32 = 4;

/// Runs a head in this process until it is stopped. `on_started` is called once, when every worker has become ready or
/// it is clear that none will. `program` is readable when the program has ended that this head is embedded in, if it is.
pub(crate) fn run(
    settings: HeadSettings,
    session: Session,
    program: Option<OwnedFd>,
    on_started: &mut dyn FnMut(&Started, &std::path::Path),
) -> io::Result<HeadEnd> {
    let put_aside = match settings.fresh {
        Some(fresh) => put_aside(&session, fresh)?,
        None => None,
    };
    let mut server = Server::new(settings, session)?;
    server.put_aside = put_aside;
    if let Some(program) = program {
        server.io.watch(program.as_fd(), Source::Program)?;
        server.program = Some(program);
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
        stored::remove_others(&stored::folder(server.session.dir()), |_| false);
        server.spare_values.remove_all();
    }
    server.session.close();
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
pub(crate) fn finish_place(settings: HeadSettings, has_program_ended: bool) -> io::Result<()> {
    let place = settings.temp_dir.clone();
    let session =
        Session::open(&place, &settings.tracing.spans_dir, guard::pid(), now_unix_nano()).map_err(io::Error::other)?;
    let mut server = Server::new(HeadSettings { http: None, ..settings }, session)?;
    {
        let _lock = session::lock_leavings(server.session.temp_dir()).map_err(io::Error::other)?;
        server.take_over()?;
    }
    if !has_program_ended {
        // The place is still that of a dead head, for whoever comes when the program has ended.
        return Ok(());
    }
    for pid in server.io.ending.keys().copied().collect::<Vec<_>>() {
        if wait_for_end(pid, PROGRAM_LIMIT) {
            server.io.on_owner_exit(pid);
        }
    }
    server.io.handover.look();
    let handover = &server.io.handover;
    let is_anything_left = handover.spans_waiting() + handover.spans_of_others() > 0 || server.io.spans.unwritten > 0;
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
    /// While no connection can be accepted: when to try again.
    pub(super) listens_again: Option<Instant>,
    /// While something may be left of dead workers: when to look again.
    pub(super) orphans_again: Option<Instant>,
    /// When everybody is looked at who should go on, by the clock that never jumps; none while nothing happens.
    pub(super) look_again: Option<u64>,
    /// While bounded workers are watched: when to look at them again, by the clock that never jumps.
    pub(super) memory_again: Option<u64>,
    pub(super) heap: Heap,
    /// When something is due next, by the clock that never jumps.
    pub(super) next_tick: Option<u64>,
    /// Time at which something is due next in a service, by the monotonic clock.
    pub(super) services_again: Option<u64>,
    pub(super) has_said_started: bool,
    pub(super) recovered_at_start: SpanCounts,
    pub(super) oom_kills: OomKills,
    /// The id that no task had when the journal was opened.
    pub(super) next_task: TaskId,
    /// Versions of services that the head before this one served.
    pub(super) services_left: Vec<Version>,
    /// Tasks that a dead head had accepted and that wait again.
    pub(super) tasks_restored: usize,
    /// Those of them that were running when their head died.
    pub(super) tasks_again: usize,
    /// Tasks that were running when their head died, and are not started again.
    pub(super) tasks_lost: usize,
    pub(super) stop: Option<Stop>,
    /// What is readable when the program has ended that this head is embedded in.
    pub(super) program: Option<OwnedFd>,
    /// That program has ended; until when its spans are waited for.
    pub(super) program_ended: Option<Instant>,
    /// True to look for what is about to come.
    pub(super) spin: Spin,
    pub(super) spare_values: SpareValues,
    /// Warnings about the state of the place, for people.
    pub(super) warnings_at_start: Vec<String>,
    /// Tasks of earlier heads that were forgotten.
    pub(super) put_aside: Option<PutAside>,
}

/// A stop that is going on.
pub(super) struct Stop {
    /// Who asked, and the number of the query.
    asked_by: Vec<(u64, u64)>,
    deadline: Instant,
    is_forced: bool,
    report: StopReport,
}

impl Server {
    fn new(settings: HeadSettings, session: Session) -> io::Result<Server> {
        // First: what cannot be had is said before anything has begun.
        let front = settings.http.map(|http| Front::open(http, session.dir())).transpose().map_err(io::Error::other)?;
        let listener = session.listen().map_err(io::Error::other)?;
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
        let own_hooks = settings.tracing.hook.as_ref().map(crate::hook::owners).unwrap_or_default();
        let mut io = HeadIo {
            session_dir: session.dir().into(),
            node_id: node_id(),
            epoll,
            connections: FxHashMap::default(),
            ringed: Vec::new(),
            next_connection: 1,
            next_job: next_job.0,
            processes: FxHashMap::default(),
            gone_jobs: Vec::new(),
            gone_connections: Vec::new(),
            unused_values: Vec::new(),
            dirty: Vec::new(),
            patient: Vec::new(),
            late: Vec::new(),
            held: Vec::new(),
            finished: FxHashMap::default(),
            has_told_an_end: false,
            ending: HashMap::new(),
            to_start: Vec::new(),
            leased: Vec::new(),
            to_watch: BTreeSet::new(),
            journal,
            journal_failure: None,
            unsynced: Vec::new(),
            unsynced_workers: Vec::new(),
            has_journaled_start: false,
            spans: SpanCounts::default(),
            handover: Handover::new(session::handover_dir(session.dir()), own_hooks)?,
            attempt_spans: Vec::new(),
            open_files: raise_open_files(),
            has_refused: false,
            damaged: None,
            disturbed: None,
            groups: control_groups(),
            warnings: settings.warnings.clone(),
            front,
            services: ServicesIo::default(),
            figures: Figures::open(&figures::path(session.temp_dir())),
            logs,
            log,
            settings,
        };
        if let Some(failure) = io.figures.failure.clone() {
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
        io.watch(io.handover.watched(), Source::Handover)?;
        io.watch(io.journal.watched(), Source::Journal)?;
        if io.settings.journal_sync {
            io.journal.start_syncing()?;
        }
        let state = State::new(settings_of(&io.settings));
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
            clock: Instant::now(),
            listens_again: None,
            orphans_again: None,
            look_again: None,
            memory_again: None,
            heap: Heap::default(),
            next_tick: Some(0),
            services_again: None,
            has_said_started: false,
            recovered_at_start: SpanCounts::default(),
            oom_kills: OomKills::watch(),
            next_task,
            services_left: Vec::new(),
            tasks_restored: 0,
            tasks_again: 0,
            tasks_lost: 0,
            stop: None,
            program: None,
            program_ended: None,
            spin: Spin::default(),
            spare_values,
            warnings_at_start,
            put_aside: None,
        };
        Ok(server)
    }

    /// Takes over what a dead head left behind: its tasks, from the journal, and the story of its processes, from their spools.
    fn take_over(&mut self) -> io::Result<()> {
        let (mut abandoned, mut dying) = (Vec::new(), Vec::new());
        for spool in self.session.leavings() {
            let owner = Story::open(&spool).ok().filter(Story::is_owner_alive).and_then(|story| story.pid());
            match owner {
                // A worker dies with its head, and may be dying still; a driver may live on.
                Some(pid) if !session::is_of_head(&spool) || !wait_for_end(pid, DYING_LIMIT) => {
                    self.io.finish_at_end_of(pid, vec![spool.clone()], left_by_a_dead_head(Vec::new()));
                    // A worker that takes its time to die has begun what it has begun.
                    dying.push(spool);
                }
                _ => abandoned.push(spool),
            }
        }
        let mut claimed: HashMap<TaskId, LeftClaim> = HashMap::new();
        for (task, claim) in abandoned.iter().chain(&dying).flat_map(|spool| left_claims(spool)) {
            let latest = claimed.entry(task).or_insert(claim);
            if claim.attempt > latest.attempt {
                *latest = claim;
            }
        }
        let lost = self.restore(&claimed)?;
        for spool in &abandoned {
            let noted = Story::noted_worker(spool).map(|(pid, _)| pid);
            let pid = noted.or_else(|| Story::open(spool).ok()?.pid());
            let is_here = |lost: &&LostAttempt| claimed.get(&lost.task).map(|claim| claim.worker_pid) == pid;
            let attempts = lost.iter().filter(is_here).cloned().collect();
            self.io.finish_left(spool, &left_by_a_dead_head(attempts));
        }
        reactor::on_attempt_spans(&mut self.state, std::mem::take(&mut self.io.attempt_spans));
        self.io.handover.take_over(&self.session.handovers_left());
        self.recovered_at_start = self.span_counts();
        Ok(())
    }

    /// Reads the journal back. Returns the attempts that were going on when the head died.
    fn restore(&mut self, claimed: &HashMap<TaskId, LeftClaim>) -> io::Result<Vec<LostAttempt>> {
        let now = self.now();
        let ReadBack { next_job, started, services, unread } = read_back(&self.io.journal, &mut self.state)?;
        self.io.next_job = self.io.next_job.max(next_job);
        unread.into_iter().for_each(|line| self.io.log(line));
        self.services_left = services;
        self.state.reserve_ids(self.next_task);
        let lost = reactor::on_restored(&mut self.state, &mut self.io, claimed, &started, now);
        let needed = reactor::value_files(&self.state);
        stored::remove_others(&stored::folder(&self.io.session_dir), |name| needed.contains(name));
        self.tasks_restored = self.state.counts().waiting;
        let is_again = |lost: &&LostAttempt| {
            self.state.task(lost.task).is_some_and(|task| !matches!(task.progress(), Progress::Ended(_)))
        };
        self.tasks_again = lost.iter().filter(is_again).count();
        self.tasks_lost = lost.len() - self.tasks_again;
        self.io.write_journal();
        Ok(lost)
    }

    /// Writes a new journal when most of the old one is about tasks that nobody remembers.
    fn keep_journal_short(&mut self) {
        let open = self.state.counts().waiting + self.state.counts().leased;
        let open_bytes = self.state.open_bytes().saturating_sub(open as u64 * TASK_BYTES);
        if !self.io.journal.needs_compaction(open_bytes) {
            return;
        }
        if let Err(error) = self.io.journal.begin_compaction() {
            self.io.log(format!("the journal cannot be compacted: {error}"));
        }
    }

    fn run(&mut self, on_started: &mut dyn FnMut(&Started, &std::path::Path)) -> io::Result<HeadEnd> {
        let now = self.now();
        reactor::start_missing_workers(&mut self.state, &mut self.io, now);
        self.start_workers(now);
        self.io.start_front();
        let services = std::mem::take(&mut self.services_left);
        self.restore_services(services, now);
        let mut events: Vec<epoll::Event> = Vec::with_capacity(256);
        let mut pieces = Vec::new();
        // How often it has looked into the rings since it has asked the kernel.
        let mut looks = 0;
        let mut buffer = vec![0; READ_SIZE];
        loop {
            self.say_started(on_started);
            if let Some(end) = self.finished() {
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
                self.io.wake_up();
            }
            self.spin.look(|| {
                self.io.find_pieces(&mut pieces);
                looks += 1;
                if looks >= LOOKS_INTO_RINGS || pieces.is_empty() && self.io.ringed.is_empty() {
                    looks = 0;
                    // What goes wrong here goes wrong below too.
                    let _ = wait(&self.io.epoll, &mut events, at_once);
                }
                !pieces.is_empty() || !events.is_empty()
            });
            if events.is_empty() && pieces.is_empty() {
                self.io.fall_asleep(&mut pieces);
            }
            if events.is_empty() && pieces.is_empty() && !will_look && !self.io.late.is_empty() {
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
                self.look_again.get_or_insert(now.monotonic_ns + watch::pause().as_nanos() as u64);
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
            if std::mem::take(&mut self.io.has_told_an_end) {
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
        let ticks = self
            .next_tick
            .into_iter()
            .chain(self.services_again)
            .chain(self.look_again)
            .chain(self.memory_again)
            .chain(self.spare_values.expires_ns())
            .chain(self.place.next_ns());
        let tick = ticks.chain(self.heap.next_ns()).min();
        let tick = tick.map(|next| Duration::from_nanos(next.saturating_sub(now.monotonic_ns)));
        // Once everything is killed there is nothing to wait for but the ends, and they wake the loop.
        let stop = self
            .stop
            .as_ref()
            .filter(|stop| !stop.is_forced)
            .map(|stop| stop.deadline.saturating_duration_since(Instant::now()));
        // A limit is reached a little after the sleep, never a little before.
        let listen = self.listens_again.map(|again| again.saturating_duration_since(Instant::now()));
        let orphans = self.orphans_again.map(|again| again.saturating_duration_since(Instant::now()));
        let handover = self.io.handover.next_ns(now.monotonic_ns);
        let handover = handover.map(|next| Duration::from_nanos(next.saturating_sub(now.monotonic_ns)));
        let program = self.program_ended.map(|limit| limit.saturating_duration_since(Instant::now()));
        let front = self.io.front.as_ref().and_then(Front::next);
        let front = front.map(|next| next.saturating_duration_since(Instant::now()));
        let all = tick.into_iter().chain(stop).chain(listen).chain(handover).chain(orphans).chain(program).chain(front);
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
                let is_second = self.stop.is_some();
                self.begin_stop(None, if is_second { Duration::ZERO } else { SIGNAL_GRACE }, is_second, now);
            }
            Source::Program => self.on_program_ended(now),
            Source::Connection(id) => drop(self.read_connection(id, now)),
            Source::WorkerOutput(worker, stream) => {
                self.io.read_output(&self.state, worker, stream, buffer);
                reactor::on_output(&mut self.state, worker, now);
            }
            Source::WorkerExit(worker) => self.on_worker_exit(worker, buffer, now),
            Source::OwnerExit(pid) => self.io.on_owner_exit(pid),
            Source::Handover => self.io.handover.on_change(),
            Source::Journal => self.io.on_journal_told(),
            Source::Place => {
                self.place.take();
                self.check_place(now);
            }
            Source::FrontExit => self.io.on_front_exit(),
            Source::ServiceControl(process) => self.on_service_control(process, now),
            Source::ServiceExit(process) => self.on_service_exit(process, buffer, now),
            Source::ServiceOutput(process, stream) => self.io.read_service_output(process, stream, buffer),
        }
    }

    fn respond(&mut self, now: Now) {
        if let Some(stop) = &mut self.stop
            && stop.deadline <= Instant::now()
            && !stop.is_forced
        {
            stop.is_forced = true;
            reactor::on_stop_overdue(&mut self.state, &mut self.io);
        }
        if self.place.is_due(now.monotonic_ns) {
            self.session.touch();
            self.check_place(now);
        }
        if self.listens_again.is_some_and(|again| again <= Instant::now())
            && self.io.watch(self.listener.as_fd(), Source::Listener).is_ok()
        {
            self.listens_again = None;
        }
        if self.orphans_again.is_some_and(|again| again <= Instant::now()) {
            self.orphans_again = self.io.end_orphans().then(|| Instant::now() + ORPHANS_PAUSE);
        }
        if self.stop.is_none() {
            self.io.start_front();
        }
        for connection in std::mem::take(&mut self.io.gone_connections) {
            self.end_services_of(connection, now);
        }
        for job in std::mem::take(&mut self.io.gone_jobs) {
            reactor::on_driver_gone(&mut self.state, job);
        }
        reactor::start_missing_workers(&mut self.state, &mut self.io, now);
        self.start_workers(now);
        reactor::fail_if_no_worker(&mut self.state, &mut self.io, now);
        reactor::schedule(&mut self.state, &mut self.io, now);
        for (_, worker, _) in &self.io.held {
            // Its command would write if it were read.
            reactor::on_output(&mut self.state, *worker, now);
        }
        let start_limit = self.start_limit_ns();
        self.next_tick = reactor::on_tick(&mut self.state, &mut self.io, start_limit, now);
        if self.memory_again.is_none_or(|again| again <= now.monotonic_ns) && self.io.has_to_watch() {
            self.memory_again = self.io.watch_memory(&self.state, now.monotonic_ns);
        }
        if self.look_again.is_some_and(|again| again <= now.monotonic_ns) {
            // First: what happens between the two is told.
            self.place.watch_journal(&self.session);
            self.check_journal_length();
            let is_again = self.io.look_after(&self.state);
            self.look_again = is_again.then(|| now.monotonic_ns + watch::pause().as_nanos() as u64);
        }
        if self.heap.is_due(self.state.open_bytes(), now.monotonic_ns) {
            heap::give_back();
        }
        self.turn_services(now);
        self.io.offer_spans(now.monotonic_ns, false);
        self.io.write_journal();
        self.remove_values();
        self.remove_module_copies();
        self.spare_values.expire(now.monotonic_ns);
        self.keep_journal_short();
        self.io.flush();
    }

    /// Removes copies of modules that nobody needs any more, when there are newer ones.
    fn remove_module_copies(&mut self) {
        if !self.state.take_new_versions() {
            return;
        }
        if let Some(needed) = reactor::needed_versions(&self.state) {
            let of_services = self.services.module_versions();
            ModuleStore::of_session(&self.io.session_dir)
                .prune(|version| needed.contains(&version) || of_services.contains(&version.number()));
        }
    }

    /// Removes files of values that nobody needs any more.
    fn remove_values(&mut self) {
        if self.io.unused_values.is_empty() {
            return;
        }
        let folder = stored::folder(&self.io.session_dir);
        let now = self.now().monotonic_ns;
        for name in std::mem::take(&mut self.io.unused_values).iter().filter(|name| !name.is_empty()) {
            self.spare_values.put(&folder.join(name), now);
        }
    }

    fn next_to_start(&mut self) -> Option<WorkerId> {
        let next = &mut self.io.to_start;
        (!next.is_empty()).then(|| next.remove(0))
    }

    fn start_workers(&mut self, now: Now) {
        while let Some(worker) = self.next_to_start() {
            match self.io.spawn(worker) {
                Ok(pid) => reactor::on_worker_started(&mut self.state, worker, pid, now),
                Err(error) => {
                    let mut reason = format!("could not be started: {error}");
                    let mut cause = std::error::Error::source(&error);
                    while let Some(error) = cause {
                        reason.push_str(&format!(": {error}"));
                        cause = error.source();
                    }
                    reactor::on_worker_start_failed(&mut self.state, &mut self.io, &reason, now);
                    if !self.state.has_begun() {
                        // Nothing else wakes the loop, in which it is tried again until the head gives up.
                        reactor::start_missing_workers(&mut self.state, &mut self.io, now);
                    }
                }
            }
        }
    }

    fn accept(&mut self) {
        loop {
            // A worker that is about to connect must not be kept waiting behind drivers that wait for workers.
            let is_worker_awaited = || self.io.processes.values().any(|process| process.connection.is_none());
            if self.io.connections.len() >= self.io.connection_limit() && !is_worker_awaited() {
                return self.stop_listening("as many are open as the limit on open files leaves room for");
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

    /// Looks whether the names of lock, socket and journal still lead to what the head holds. What was removed is made anew; a head that has lost its
    /// place ends.
    fn check_place(&mut self, now: Now) {
        if self.stop.is_some() {
            return;
        }
        match self.session.check() {
            Ok(false) => {}
            Ok(true) => {
                let lock = self.session.temp_dir().join("head.lock");
                self.warn(format!("`{}` was removed or replaced, and was made anew", lock.display()));
            }
            Err(reason) => {
                self.warn(format!("the head ends, because it has lost its place: {reason}"));
                return self.begin_stop(None, SIGNAL_GRACE, false, now);
            }
        }
        if !self.place.has_socket(&self.session) {
            let socket = session::socket_path(self.session.dir());
            let again = self.listen_again().map(|()| "was made anew".to_owned());
            let again = again.unwrap_or_else(|error| format!("cannot be made anew: {error}"));
            self.warn(format!("the socket `{}` was removed or replaced, and {again}", socket.display()));
        }
        if !self.io.journal.check_place() {
            let journal = self.session.temp_dir().join("tasks.journal");
            let text = "was removed or replaced, and is written anew; what was found in its place is kept beside it";
            self.warn(format!("the journal `{}` {text}", journal.display()));
        }
        self.check_journal_length();
    }

    fn check_journal_length(&mut self) {
        if self.io.journal.is_cut_short() {
            let journal = self.session.temp_dir().join("tasks.journal");
            let text = "was cut short by somebody: tasks that were accepted before then are lost if the head is killed\n\
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

    /// Makes the socket anew. Whoever waits at the old one is let in.
    fn listen_again(&mut self) -> io::Result<()> {
        self.accept();
        let _ = std::fs::remove_file(session::socket_path(self.session.dir()));
        let listener = self.session.listen().map_err(io::Error::other)?;
        listener.set_nonblocking(true)?;
        self.place.note_socket(&self.session);
        let _ = epoll::delete(&self.io.epoll, &self.listener);
        self.listener = listener;
        self.listens_again = None;
        self.io.watch(self.listener.as_fd(), Source::Listener)
    }

    /// Leaves those who want to connect waiting for a moment: they would wake the loop again and again.
    fn stop_listening(&mut self, reason: &str) {
        let _ = epoll::delete(&self.io.epoll, &self.listener);
        self.listens_again = Some(Instant::now() + LISTEN_PAUSE);
        // Once, however often it happens.
        if !self.io.has_refused {
            self.io.has_refused = true;
            self.io.log(format!("no connection can be accepted for now: {reason}"));
            let hint = "(hint: a head that is started with a higher `ulimit -n` takes more)";
            self.io.warnings.push(format!("commands had to wait for a connection: {reason}\n{hint}"));
        }
    }

    /// Reads from a connection and handles what has come. True when there may be more.
    fn read_connection(&mut self, id: u64, now: Now) -> bool {
        // Taken out while it is handled, so that handling may look at the others.
        let Some(mut connection) = self.io.connections.remove(&id) else { return false };
        let read = connection.read();
        let handled = self.handle_frames(id, &mut connection, now);
        if let (Peer::Worker(worker) | Peer::Tasks(worker) | Peer::Sink(worker), Err(_)) = (connection.peer, &handled) {
            self.io.break_with(worker, "what came on its connection was no message of a worker");
        }
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
        if std::mem::take(&mut connection.wants_rings) && self.io.ringed.len() < RINGED {
            // Without rings it goes on with its socket.
            if connection.give_rings().is_ok() {
                self.io.ringed.push(id);
            }
        }
        if connection.has_backlog() {
            if std::mem::take(&mut connection.may_wait) { &mut self.io.patient } else { &mut self.io.dirty }.push(id);
        }
        self.io.connections.insert(id, connection);
        matches!(read, Ok(ReadState::More))
    }

    /// Forgets a connection. A worker whose connection breaks is of no more use, and is killed if it is not dead already.
    fn close(&mut self, id: u64, connection: Connection, reason: &str) {
        self.io.unwatch(id, &connection);
        if !reason.is_empty() {
            self.io.log(format!("connection {id} is closed: {reason}"));
        }
        if let Peer::Driver(_) | Peer::Tasks(_) = connection.peer {
            self.io.on_driver_gone(id, connection.peer, connection.pid);
        }
        if let Peer::Sink(_) = connection.peer {
            self.io.handover.on_gone(id);
        }
        if let Peer::Worker(worker) = connection.peer {
            if let Some(process) = self.io.processes.get_mut(&worker) {
                process.connection = None;
            }
            if self.state.workers().get(&worker).is_some_and(|worker| worker.phase() != WorkerPhase::Stopping)
                || !reason.is_empty()
            {
                self.io.kill(worker);
            }
        }
    }

    fn handle_frames(&mut self, id: u64, connection: &mut Connection, now: Now) -> Result<(), String> {
        let Connection { inbox, outbox, peer, pid, is_closing, may_wait, receiver, wants_rings, .. } = connection;
        while !*is_closing {
            let Some((frame_kind, body)) = inbox.next_frame(peer.frame_limit()).map_err(|error| error.to_string())?
            else {
                // A byte that is not a worker's own shifts all that follow, and what then counts for a length might be waited for for ever.
                let expected = [kind::WORKER_READY, kind::RESULTS, kind::RINGS];
                return match (*peer, inbox.next_kind()) {
                    (Peer::Worker(_), Some(next)) if !expected.contains(&next) => {
                        Err(format!("a frame of kind {next} is not for this end of the connection"))
                    }
                    _ => Ok(()),
                };
            };
            match (*peer, frame_kind) {
                (Peer::Unknown, kind::HELLO) => {
                    let answer = self.on_hello(id, body)?;
                    *peer = answer.peer;
                    *pid = answer.pid;
                    *is_closing = answer.is_refused;
                    outbox.extend_from_slice(&answer.frames);
                }
                (Peer::Driver(job), kind::SUBMIT) => {
                    // One alone: its end may come at once, and is all that whoever waits for it needs to hear.
                    *may_wait =
                        outbox.is_empty() && Submissions::decode(body).is_ok_and(|all| all.take(2).count() == 1);
                    self.on_submit(id, Some(job), body, outbox, now)?;
                }
                (Peer::Tasks(_), kind::SUBMIT) => self.on_submit(id, None, body, outbox, now)?,
                (Peer::Driver(_) | Peer::Tasks(_), kind::FORGET) => {
                    for task in take_all(body, Take::u64).map_err(|error| error.to_string())? {
                        reactor::on_result_forgotten(&mut self.state, TaskId(task));
                    }
                }
                (Peer::Driver(_), kind::WATCH) => {
                    let mut take = Take::new(body);
                    let (tag, task) = (take.u64(), take.u64());
                    let (tag, task) =
                        (tag.map_err(|error| error.to_string())?, task.map_err(|error| error.to_string())?);
                    reactor::on_submitted_again(&mut self.state, &mut self.io, TaskId(task), DriverId(id), tag);
                }
                (Peer::Tasks(worker), kind::WAIT) => {
                    let wait = Wait::decode(body).map_err(|error| error.to_string())?;
                    reactor::on_wait(&mut self.state, &mut self.io, worker, &wait, now);
                }
                (Peer::Tasks(worker), kind::GO_ON) => {
                    let number = Take::new(body).u64().map_err(|error| error.to_string())?;
                    reactor::on_go_on(&mut self.state, worker, number);
                }
                (Peer::Driver(_) | Peer::Tasks(_), kind::QUERY) => {
                    let (number, query) = take_value(body).map_err(|error| error.to_string())?;
                    if let Some(reply) = self.on_query(id, number, query, now) {
                        put_reply(outbox, number, &reply);
                    }
                }
                (Peer::Worker(worker), kind::WORKER_READY) => {
                    let ready: WorkerReady = take_value(body).map_err(|error| error.to_string())?;
                    reactor::on_worker_ready(&mut self.state, &mut self.io, worker, ready, now);
                }
                (Peer::Worker(worker), kind::ACTOR_METHODS) => {
                    let methods: ActorMethods = take_value(body).map_err(|error| error.to_string())?;
                    reactor::on_methods(&mut self.state, worker, &methods);
                }
                (Peer::Worker(worker), kind::RESULTS) => {
                    self.io.read_watched_output(&self.state, worker);
                    let mut take = Take::new(body);
                    while !take.is_empty() {
                        let result = AttemptResult::take(&mut take).map_err(|error| error.to_string())?;
                        if let Outcome::Failed(Failure::OutOfMemory { .. }) = result.outcome
                            && let Some(process) = self.io.processes.get_mut(&worker)
                        {
                            process.bound.note_kills();
                        }
                        if let Some(usage) = &result.usage {
                            self.io.tell_usage(&self.state, worker, result.lease, usage);
                        }
                        reactor::on_result(&mut self.state, &mut self.io, worker, result, now);
                    }
                }
                (Peer::Driver(_) | Peer::Worker(_), kind::RINGS) => {
                    receiver.was_asked(inbox);
                    *wants_rings = true;
                }
                (Peer::Sink(_), kind::SPANS_DONE) => {
                    let done = take_value(body).map_err(|error| error.to_string())?;
                    if let Some(line) = self.io.handover.on_done(id, &done, now.monotonic_ns) {
                        self.io.log(line);
                    }
                }
                _ => return Err(format!("a frame of kind {frame_kind} is not for this end of the connection")),
            }
        }
        Ok(())
    }

    fn on_hello(&mut self, id: u64, body: &[u8]) -> Result<Answer, String> {
        let hello = Hello::decode(body).map_err(|error| error.to_string())?;
        let refuse = |code: RefusalCode, reason: String| {
            let mut frames = Vec::new();
            put_refusal(&mut frames, &Refusal::new(code, reason));
            Ok(Answer { peer: Peer::Unknown, pid: 0, frames, is_refused: true })
        };
        let not_started = |worker: WorkerId| {
            let reason = format!("the head has not started worker {worker} as process {}", hello.pid);
            refuse(RefusalCode::UnknownWorker, reason)
        };
        if hello.protocol_version != PROTOCOL_VERSION {
            let reason = format!(
                "the head (tracer {}) speaks version {PROTOCOL_VERSION} of the protocol, but this program speaks version {}",
                crate::VERSION,
                hello.protocol_version
            );
            return refuse(RefusalCode::ProtocolVersion, reason);
        }
        let peer = match hello.role {
            Role::Driver => {
                let job = JobId(self.io.next_job);
                self.io.next_job += 1;
                reactor::on_driver(&mut self.state, job);
                Peer::Driver(job)
            }
            Role::Worker(worker) => match self.io.processes.get_mut(&worker) {
                Some(process) if process.worker.pid() == hello.pid && process.connection.is_none() => {
                    process.connection = Some(id);
                    Peer::Worker(worker)
                }
                _ => return not_started(worker),
            },
            Role::Tasks(worker) => match self.io.processes.get_mut(&worker) {
                Some(process) if process.worker.pid() == hello.pid => {
                    process.tasks_connection = Some(id);
                    Peer::Tasks(worker)
                }
                _ => return not_started(worker),
            },
            Role::Sink(worker) => match self.io.processes.get(&worker) {
                Some(process) if process.worker.pid() == hello.pid => {
                    // A worker that comes when the head stops delivers what it has, and takes nothing over.
                    if self.stop.is_none() {
                        self.io.handover.on_sink(id);
                    }
                    Peer::Sink(worker)
                }
                _ => return not_started(worker),
            },
        };
        let settings = &self.io.settings;
        let welcome = Welcome {
            version: crate::VERSION.into(),
            head_pid: std::process::id(),
            node_id: self.io.node_id.clone(),
            job_id: if let Peer::Driver(job) = peer { job } else { JobId(0) },
            session_dir: self.io.session_dir.clone(),
            module_path: settings.module_path.clone(),
            module_folders: SearchPath { module_path: settings.module_path.clone(), is_complete: false }.folders(),
            tracing: TracingSettings {
                environment: match (peer, &settings.tracing.hook) {
                    // A worker has this process's environment already.
                    (Peer::Driver(_), Some(_)) => otel::for_drivers(),
                    _ => Vec::new(),
                },
                ..settings.tracing.clone()
            },
        };
        let mut frames = Vec::new();
        put_value(&mut frames, kind::WELCOME, &welcome);
        Ok(Answer { peer, pid: hello.pid, frames, is_refused: false })
    }

    /// Takes a batch in. `job` is the driver's; tasks that were submitted by tasks belong to the job of those.
    fn on_submit(
        &mut self,
        id: u64,
        job: Option<JobId>,
        body: &[u8],
        outbox: &mut Vec<u8>,
        now: Now,
    ) -> Result<(), String> {
        self.spin.request_began();
        let batch = Submissions::decode(body).map_err(|error| error.to_string())?;
        let answer = &mut |answer| match answer {
            reactor::Answer::Accepted(accepted) => accepted.encode(outbox),
            reactor::Answer::Refused(refusal) => put_refusal(outbox, &refusal),
        };
        reactor::on_submit(&mut self.state, &mut self.io, (DriverId(id), job), batch, answer, now)
    }

    /// Answers a query; none when the answer comes later.
    fn on_query(&mut self, id: u64, number: u64, query: Query, now: Now) -> Option<Reply> {
        if let Query::Status = query {
            self.check_place(now);
            return Some(Reply::Status(Box::new(self.status(now))));
        }
        let (state, io) = (&mut self.state, &mut self.io);
        Some(match query {
            Query::Status => Reply::Status(Box::new(self.status(now))),
            Query::Tasks { limit, which } => Reply::Tasks(reactor::list_tasks(state, io, limit, &which)),
            Query::Task { id } => Reply::Task(reactor::get_task(state, io, id).map(Box::new)),
            Query::Explain { id } => Reply::Explanation(reactor::explain_task(state, io, id).map(Box::new)),
            Query::Actors => Reply::Actors(self.actors()),
            Query::Actor { wanted } => Reply::Actor(reactor::find_actor(state, &wanted).map(Box::new)),
            Query::Workers => {
                let mut workers = reactor::list_workers(state, io, now);
                workers.append(&mut self.replica_rows(now));
                Reply::Workers(workers)
            }
            Query::Running { job } => Reply::Running(reactor::count_running(state, io, job)),
            Query::Cancel { which, grace_ms } => {
                let grace_ns = grace_ms.map(|grace| grace.saturating_mul(1_000_000));
                Reply::Cancelled(reactor::on_cancel_many(state, io, &which, grace_ns, now))
            }
            Query::Prune(which) => Reply::Pruned(reactor::on_prune(state, io, &which, now)),
            Query::HttpTracing { pid, failures } => {
                if let Some(front) = io.front.as_mut().filter(|front| front.pid() == Some(pid)) {
                    front.hook_failures = failures;
                }
                Reply::Noted
            }
            Query::Service(query) => return self.on_service_query((id, number), query, now),
            Query::Stop { grace_ms, force } => {
                self.begin_stop(Some((id, number)), Duration::from_millis(grace_ms), force, now);
                return None;
            }
        })
    }

    /// The program has ended that this head is embedded in: nobody can get anything from it any more.
    fn on_program_ended(&mut self, now: Now) {
        if let Some(program) = self.program.take() {
            let _ = epoll::delete(&self.io.epoll, &program);
            self.io.log("the program that this head is embedded in has ended".into());
            self.program_ended = Some(Instant::now() + PROGRAM_LIMIT);
            reactor::on_cancel_many(&mut self.state, &mut self.io, &CancelWhich::All, None, now);
            self.begin_stop(None, PROGRAM_GRACE, false, now);
        }
    }

    fn begin_stop(&mut self, asked_by: Option<(u64, u64)>, grace: Duration, force: bool, now: Now) {
        let unfinished = self.state.counts().waiting + self.state.counts().leased;
        let stop = self.stop.get_or_insert_with(|| Stop {
            asked_by: Vec::new(),
            deadline: Instant::now() + grace,
            is_forced: false,
            report: StopReport { head_pid: std::process::id(), unfinished, ..StopReport::default() },
        });
        stop.asked_by.extend(asked_by);
        stop.deadline = stop.deadline.min(Instant::now() + grace);
        stop.is_forced |= force;
        self.io.end_handover(now.monotonic_ns);
        self.stop_services(if force { Duration::ZERO } else { grace }, now);
        reactor::on_stop(&mut self.state, &mut self.io, force, now);
    }

    fn on_worker_exit(&mut self, worker: WorkerId, buffer: &mut [u8], now: Now) {
        let Some(mut process) = self.io.processes.remove(&worker) else { return };
        // What it sent before it died counts.
        if let Some(id) = process.connection {
            self.io.processes.insert(worker, process);
            while self.read_connection(id, now) {}
            let Some(again) = self.io.processes.remove(&worker) else { return };
            process = again;
        }
        let watchers = reactor::watchers(&self.state, worker, |lease| process.worker.claims.state(lease));
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
                self.io.processes.insert(worker, process);
                return;
            }
            // It is gone all the same.
            Err(error) => {
                let cause = format!("ended, and how cannot be learnt: {error}");
                WorkerExit { cause, error_type: "unknown".into(), memory: None }
            }
        };
        if let Some((id, connection)) = process.connection.and_then(|id| self.io.connections.remove_entry(&id)) {
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
        self.io.processes.insert(worker, process);
        let loss = reactor::on_worker_exited(&mut self.state, &mut self.io, worker, &exit, now);
        self.io.processes.remove(&worker);
        self.io.to_watch.remove(&worker);
        self.io.logs.close(worker);
        // Whatever it left behind has become the head's.
        self.orphans_again = Some(Instant::now());
        if let Some(loss) = loss {
            // What was charged is in the journal before the claims are gone that would tell the next head.
            self.io.write_journal();
            self.io.finish_story(&spool, left, &loss, Some(worker));
            reactor::on_attempt_spans(&mut self.state, std::mem::take(&mut self.io.attempt_spans));
        }
    }

    fn say_started(&mut self, on_started: &mut dyn FnMut(&Started, &std::path::Path)) {
        let starting = self.state.workers().starting() > 0;
        let missing =
            self.state.workers().len() < self.state.settings().workers_wanted && self.state.no_worker().is_none();
        if self.has_said_started || ((starting || missing) && self.state.no_worker().is_none()) {
            return;
        }
        self.has_said_started = true;
        self.state.begin();
        let started = Started {
            head_pid: std::process::id(),
            session_dir: self.io.session_dir.clone(),
            workers_ready: self.state.workers().values().filter(|worker| worker.phase() == WorkerPhase::Ready).count(),
            hook_failures: self.hook_failures(),
            recovered: self.recovered_at_start,
            tasks_restored: self.tasks_restored,
            tasks_again: self.tasks_again,
            tasks_lost: self.tasks_lost,
            http: self.io.front.as_ref().map(Front::report),
            no_worker: self.state.no_worker().map(str::to_owned),
            is_hook_to_blame: self.state.is_hook_to_blame(),
            warnings: self.warnings_at_start.iter().cloned().chain(self.public_services()).collect(),
            put_aside: self.put_aside.clone(),
        };
        on_started(&started, &self.io.session_dir);
        // Also when some are ready: whoever asked for more is told that it did not start, and waits for this end.
        if self.state.no_worker().is_some() {
            // What another head had accepted waits for one that can start.
            self.io.journal.suspend();
            let now = self.now();
            self.begin_stop(None, Duration::ZERO, true, now);
        }
    }

    fn finished(&mut self) -> Option<HeadEnd> {
        let has_processes = !self.io.processes.is_empty() || !self.services.are_at_rest();
        self.stop.as_ref().filter(|_| self.state.workers().is_empty() && !has_processes)?;
        // There is no next head in this place that would finish the program's spans.
        if self.program_ended.is_some_and(|limit| !self.io.ending.is_empty() && Instant::now() < limit) {
            return None;
        }
        // It tells its clients how the last tasks have ended, which it has to hear of first.
        let is_forced = self.stop.as_ref().is_some_and(|stop| stop.is_forced);
        self.io.flush();
        if !self.io.front.as_mut().is_none_or(|front| front.end(is_forced)) {
            return None;
        }
        let mut stop = self.stop.take()?;
        stop.report.unfinished = stop.report.unfinished.saturating_sub(self.state.ended_while_stopping());
        self.io.handover.look();
        stop.report.spans_waiting = self.io.handover.spans_waiting();
        stop.report.spans_of_other_hooks = self.io.handover.spans_of_others();
        for (connection, number) in &stop.asked_by {
            if let Some(connection) = self.io.connections.get_mut(connection) {
                put_reply(&mut connection.outbox, *number, &Reply::Stopped(stop.report.clone()));
            }
        }
        self.io.dirty.extend(stop.asked_by.iter().map(|(connection, _)| *connection));
        self.io.log("the head has stopped".into());
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

/// What a hello is answered with.
struct Answer {
    peer: Peer,
    pid: u32,
    frames: Vec<u8>,
    is_refused: bool,
}

/// Waits for events and appends them. An interruption is none.
fn wait(epoll: &OwnedFd, events: &mut Vec<epoll::Event>, timeout: Option<&Timespec>) -> io::Result<()> {
    match epoll::wait(epoll, rustix::buffer::spare_capacity(events), timeout) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
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

/// Returns the settings of a head that decide.
fn settings_of(settings: &HeadSettings) -> Settings {
    let hook = settings.tracing.hook.as_ref();
    let history_bytes_limit = usize::try_from(settings.queue_memory).unwrap_or(usize::MAX);
    let resource = |(name, total): &(String, u64)| state::Resource { name: name.as_str().into(), total: *total };
    let plain = Settings::of_workers(settings.num_workers);
    Settings {
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        max_processes: settings.max_processes,
        resources: settings.resources.iter().map(resource).collect(),
        hook: hook.map(|hook| hook.import_string.clone()),
        is_hook_required: hook.is_some_and(|hook| hook.is_required),
        open_bytes_limit: settings.queue_memory,
        history_bytes_limit: plain.history_bytes_limit.min(history_bytes_limit),
        ..plain
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

/// Returns what the worker whose spool this is had claimed.
fn left_claims(spool: &Path) -> Vec<(TaskId, LeftClaim)> {
    let Some(worker) = session::worker_of_spool(spool) else { return Vec::new() };
    let claimed = match Story::open(spool) {
        Ok(story) => story.pid().map(|pid| (pid, story.claimed_tasks())),
        // A task has removed it, or written over it.
        Err(_) => Story::claimed_tasks_without_spool(spool),
    };
    let Some((worker_pid, claims)) = claimed else { return Vec::new() };
    claims.into_iter().map(|(task, attempt)| (TaskId(task), LeftClaim { attempt, worker, worker_pid })).collect()
}
