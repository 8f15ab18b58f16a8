//! A replica: one process that handles the requests of a deployment, as a module's own loop.
//!
//! The head starts it with a [control socket](tracer_ipc::control) as standard input. It makes the handler, says that it is ready, and gets a
//! [lane](tracer_ipc::lane) from each caller. From then on the module's loop waits for one descriptor, an epoll over all of that:
//!
//! ```text
//!   lanes, control socket, timer ─▶ epoll ─▶ the module's loop: host_take_events ─▶ a turn: read, claim, open spans
//!                                                              handlers run       ─▶ host_respond, host_send, host_end: frames are queued,
//!                                                                                    spans end
//!                                                              host_flush         ─▶ one write for each lane
//! ```
//!
//! While requests follow each other closely, one at a time, the loop does not sleep between them (`spinning`).
//!
//! No thread is woken for a request, and none handles one but the module's. A request's span begins before its claim, and ends before its
//! last frame is written.

mod commits;
mod inbox;
mod lane;
mod outbox;
mod program;
mod request;
mod span;
mod spinning;
mod tasks;
mod turn;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};
use std::{io, mem};

use commits::Commits;
use lane::Lane;
use request::place;
use rustc_hash::FxHashMap;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
use span::Names;
use spinning::Spinning;
use tasks::HandlerTasks;
use tracer_core::lock::lock;
use tracer_core::task::{Failure, ModuleVersion};
use tracer_core::value;
use tracer_host::hook::{
    ActiveSpan, Answered, HookError, LoadedDeployment, Located, Module, ModuleHeaders, ModulePiece, ModuleResponse,
    Recorder, RequestEvents, RequestHost, SearchPath, ServingSettings, offer_calls, offer_metrics, offer_tasks,
};
use tracer_host::module_store::{CopyError, ModuleStore, Taken};
use tracer_ipc::control;
use tracer_ipc::serving::{ReplicaBegin, ReplicaOrder, ReplicaReport, attribute_of};
use tracer_ipc::spool::Spool;
use turn::Turns;

use super::calling::ProcessCalls;
use super::usage;

/// Limit of time for a hook to deliver what it has queued when the replica ends.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);
/// The time that callers may take to read what is left when the module has ended.
const LAST_WRITES: Duration = Duration::from_secs(5);

/// Tokens of epoll events: one of these, or a lane.
const CONTROL: u64 = 0;
const WAKE: u64 = 1;
const TIMER: u64 = 2;
const LANES: u64 = 3;

/// The number of the settings that the handler gets before anything else.
const FIRST_CONFIGURE: u64 = u64::MAX;
/// The question for health that is asked before the replica is ready.
const FIRST_HEALTH: u64 = u64::MAX - 1;

/// Runs a replica until the head tells it to end or is gone. Standard input is its control socket.
pub fn run(session_dir: &Path, head_pid: u32) -> Result<(), ReplicaError> {
    usage::die_with_parent(head_pid).map_err(ReplicaError::Orphaned)?;
    tracer_process::parent::end_without_head(session_dir).map_err(ReplicaError::Orphaned)?;
    let control = tracer_process::parent::take_standard_input().map_err(ReplicaError::Control)?;
    let begin = first_order(&control).map_err(ReplicaError::Control)?;
    let served = serve(session_dir, control.as_fd(), begin);
    let report = match &served {
        Ok(()) => ReplicaReport::Drained,
        Err(reason) => ReplicaReport::Failed { reason: reason.clone() },
    };
    send(control.as_fd(), &report).map_err(ReplicaError::Control)?;
    served.map_err(ReplicaError::Failed)
}

fn first_order(control: &OwnedFd) -> io::Result<ReplicaBegin> {
    let unexpected =
        |found: &str| io::Error::other(format!("expected the order to begin with its file, found {found}"));
    match control::receive::<ReplicaOrder>(control)? {
        Some((ReplicaOrder::Begin, mut files)) => match files.pop() {
            Some(file) => control::receive_long(file),
            None => Err(unexpected("no file")),
        },
        Some((order, _)) => Err(unexpected(&format!("{order:?}"))),
        None => Err(unexpected("the end of the socket")),
    }
}

/// Makes the handler and runs it. Fails with a reason for people.
fn serve(session_dir: &Path, control: BorrowedFd<'_>, begin: ReplicaBegin) -> Result<(), String> {
    let spool: &'static Spool = Spool::attach(&begin.spool).map(leak).map_err(|error| error.to_string())?;
    tracer_host::hook::note_in(session_dir);
    let (recorder, hook_failure) = super::set_up_tracing(&begin.tracing, spool);
    let outcome = serve_traced(session_dir, control, begin, spool, recorder, hook_failure.as_ref());
    if let Some(recorder) = recorder
        && let Err(reason) = recorder.shutdown(SHUTDOWN_LIMIT)
    {
        eprintln!("tracer: the spans of this replica could not be delivered: {reason}");
    }
    outcome
}

fn serve_traced(
    session_dir: &Path,
    control: BorrowedFd<'_>,
    begin: ReplicaBegin,
    spool: &'static Spool,
    recorder: Option<&'static Recorder>,
    hook_failure: Option<&HookError>,
) -> Result<(), String> {
    let deployment = &begin.deployment;
    let arguments = match deployment.program() {
        Some(_) => {
            let variables = program::exporting(session_dir, &begin.service, begin.worker);
            program::arguments(deployment, &program::socket(session_dir, begin.worker), variables)?
        }
        None => deployment.arguments.clone(),
    };
    let arguments = value::to_bytes(&arguments).map_err(|error| format!("its arguments: {error}"))?;
    let loaded = load(session_dir, &begin)?;
    let attribute = attribute_of(&deployment.import_path);
    // Before any code of the module's runs.
    offer_tasks(leak(HandlerTasks::new(session_dir, recorder)));
    let home = (begin.service.clone(), begin.application.clone());
    let calls: &'static ProcessCalls = leak(ProcessCalls::new(session_dir, recorder, Some(home)));
    offer_calls(calls);
    offer_metrics(tracer_ipc::session::place_of(session_dir));
    let handler = LoadedDeployment::find(loaded.module, attribute, recorder).map_err(|error| error.to_string())?;
    let names = names_of(&begin, &handler, loaded.version.clone());
    let settings = match &deployment.user_config {
        Some(_) if !handler.is_configurable() => return Err(not_configurable(&names)),
        Some(config) => Some(value::to_bytes(config).map_err(|error| format!("its user_config: {error}"))?),
        None => None,
    };
    let ready = ReplicaReport::Ready {
        tracing: recorder.map_or_else(|| "none".into(), Recorder::description),
        hook_failure: hook_failure.map(ToString::to_string),
        module_version: loaded.version,
        is_configurable: handler.is_configurable(),
    };
    let failed = |error: io::Error| format!("its descriptors cannot be made: {error}");
    let control = control.try_clone_to_owned().map_err(failed)?;
    let replica = Replica::new(control, spool, (recorder, calls), names, ready, &handler).map_err(failed)?;
    let replica: &'static Replica = leak(replica);
    calls.set_loop(move || replica.wake());
    replica.turns().first_settings = settings;
    let settings = ServingSettings {
        arguments: arguments.leak(),
        application: replica.names.application,
        deployment: replica.names.deployment,
        replica: replica.names.replica,
        max_ongoing_requests: deployment.ongoing_limit(),
        threads: deployment.threads.max(1),
        event_fd: replica.epoll.as_fd(),
    };
    let served = handler.serve(&settings, replica);
    replica.write_the_rest();
    served?;
    match lock(&replica.failure).take() {
        Some(reason) => Err(reason),
        None if replica.is_stopping.load(Acquire) => Ok(()),
        None => Err("the module ended its loop without being asked to".into()),
    }
}

/// A module that was loaded.
struct Loaded {
    module: Module,
    /// Name of its version in spans and reports, if there are versions of it.
    version: Option<String>,
    /// Keeps the copy from being deleted.
    _taken: Option<Taken>,
}

/// Loads the module, from its private copy where there is one.
fn load(session_dir: &Path, begin: &ReplicaBegin) -> Result<Loaded, String> {
    let path = &begin.deployment.import_path;
    let name = path.rsplit_once(':').map_or(&**path, |(module, _)| module);
    let search = SearchPath { module_path: begin.module_folders.clone(), is_complete: true };
    let store = ModuleStore::of_session(session_dir);
    let said = begin.deployment.module_version.and_then(ModuleVersion::of_number);
    let taken = if said.is_some() { None } else { take_copy(&search, &store, name)? };
    let version = said.or(taken.as_ref().map(|taken| taken.version));
    let Some((version, stored)) = version.and_then(|version| Some((version, store.find(version)?))) else {
        if let Some(version) = version {
            eprintln!(
                "tracer: warning: version {version} of module `{name}` is not kept any more, so the module is loaded as it is now"
            );
        }
        let module = Module::load(&search, name).map_err(|error| error.to_string())?;
        return Ok(Loaded { module, version: None, _taken: taken });
    };
    let version = stored.name(version);
    let module = Module::load_copy(name, &stored, String::leak(version.clone())).map_err(|error| error.to_string())?;
    Ok(Loaded { module, version: Some(version), _taken: taken })
}

fn take_copy(search: &SearchPath, store: &ModuleStore, name: &str) -> Result<Option<Taken>, String> {
    match search.locate(name).map_err(|error| error.to_string())? {
        Located::BuiltIn(_) => Ok(None),
        Located::Library(library) => match store.take(&library) {
            Ok(taken) => Ok(taken),
            Err(error @ CopyError::Incomplete { .. }) => Err(error.to_string()),
            Err(error @ CopyError::Io { .. }) => {
                let library = library.display();
                eprintln!(
                    "tracer: warning: there is no copy of `{library}`, so it must not be overwritten while it is served: {error}"
                );
                Ok(None)
            }
        },
    }
}

fn names_of(begin: &ReplicaBegin, handler: &LoadedDeployment, module_version: Option<String>) -> Names {
    let kept = |text: &str| -> &'static str { String::leak(text.to_owned()) };
    Names {
        span: Names::span_of(&begin.deployment.name),
        application: kept(&begin.application),
        deployment: kept(&begin.deployment.name),
        replica: kept(&begin.name),
        route_prefix: kept(&begin.route_prefix),
        node_id: begin.node_id.clone(),
        module_version,
        pid: std::process::id(),
        worker: begin.worker.0,
        code: handler.code(),
    }
}

fn not_configurable(names: &Names) -> String {
    format!(
        "deployment `{}` has a `user_config`, and its handler takes none\n\
         (hint: give it `pub async fn reconfigure(&self, settings: T)`, or remove the `user_config`)",
        names.deployment
    )
}

/// Returns a `user_config` as MessagePack.
fn settings(file: OwnedFd) -> Result<Vec<u8>, String> {
    let config: serde_json::Value = control::receive_long(file).map_err(|error| error.to_string())?;
    value::to_bytes(&config).map_err(|error| error.to_string())
}

/// Sends a report, and waits if the head does not read.
fn send(control: BorrowedFd<'_>, report: &ReplicaReport) -> io::Result<()> {
    loop {
        match control::send(control, report, &[]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(&control, PollFlags::OUT)], None)?;
            }
            sent => return sent,
        }
    }
}

/// Host of a replica, which the functions of the module's table work on. Lives as long as the process.
struct Replica {
    control: OwnedFd,
    epoll: OwnedFd,
    wake: OwnedFd,
    timer: OwnedFd,
    spool: &'static Spool,
    recorder: Option<&'static Recorder>,
    names: Names,
    has_health: bool,
    is_configurable: bool,
    takes_calls: bool,
    lanes: RwLock<FxHashMap<u32, Arc<Lane>>>,
    /// Lanes that have something to write.
    dirty: Mutex<Vec<Arc<Lane>>>,
    turns: Mutex<Turns>,
    spinning: Spinning,
    /// Calls of the handler.
    calls: &'static ProcessCalls,
    /// Orders that the module has not answered.
    orders: Mutex<Vec<u64>>,
    /// Report that is sent when the handler is made.
    ready: Mutex<Option<ReplicaReport>>,
    /// The same once it was sent, for a head that has not heard it.
    said: Mutex<Option<ReplicaReport>>,
    /// Reason why the replica ends, if that is a failure.
    failure: Mutex<Option<String>>,
    /// True from the order to drain on.
    is_stopping: AtomicBool,
    /// True when spans have ended that are not committed.
    has_ended_spans: AtomicBool,
    /// Thread that commits them.
    commits: Option<Commits>,
}

impl Replica {
    fn new(
        control: OwnedFd,
        spool: &'static Spool,
        (recorder, calls): (Option<&'static Recorder>, &'static ProcessCalls),
        names: Names,
        ready: ReplicaReport,
        handler: &LoadedDeployment,
    ) -> io::Result<Replica> {
        rustix::io::ioctl_fionbio(&control, true)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        for (token, fd) in [(CONTROL, &control), (WAKE, &wake), (TIMER, &timer)] {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?;
        }
        Ok(Replica {
            control,
            epoll,
            wake,
            timer,
            spool,
            recorder,
            names,
            has_health: handler.has_health(),
            is_configurable: handler.is_configurable(),
            takes_calls: handler.takes_calls(),
            lanes: RwLock::default(),
            dirty: Mutex::default(),
            turns: Mutex::default(),
            spinning: Spinning::default(),
            calls,
            orders: Mutex::default(),
            ready: Mutex::new(Some(ready)),
            said: Mutex::default(),
            failure: Mutex::default(),
            is_stopping: AtomicBool::new(false),
            has_ended_spans: AtomicBool::new(false),
            commits: recorder.map(Commits::start).transpose()?,
        })
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        lock(&self.turns)
    }

    fn lanes(&self) -> RwLockReadGuard<'_, FxHashMap<u32, Arc<Lane>>> {
        self.lanes.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn lanes_mut(&self) -> RwLockWriteGuard<'_, FxHashMap<u32, Arc<Lane>>> {
        self.lanes.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the lane of a request, and its number there.
    fn find(&self, request: u64) -> (Option<Arc<Lane>>, u32) {
        let (lane, id) = place(request);
        (self.lanes().get(&lane).cloned(), id)
    }

    /// Notes that a lane has something to write.
    fn note(&self, lane: &Arc<Lane>) {
        if lane.becomes_dirty() {
            lock(&self.dirty).push(Arc::clone(lane));
        }
    }

    /// Writes once to each lane that has something.
    fn flush_lanes(&self) {
        let mut dirty = mem::take(&mut *lock(&self.dirty));
        for lane in dirty.drain(..) {
            self.flush_lane(&lane);
        }
        let mut kept = lock(&self.dirty);
        if kept.is_empty() {
            // Its memory is used again.
            *kept = dirty;
        }
    }

    /// Writes what a lane has, and sees to it that the rest is written when there is room.
    fn flush_lane(&self, lane: &Lane) {
        lane.flush(|is_blocked| {
            let room = if is_blocked { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
            let data = epoll::EventData::new_u64(LANES + u64::from(lane.id));
            // The lane may be closed by now.
            let _ = epoll::modify(&self.epoll, lane.as_fd(), data, epoll::EventFlags::IN | room);
        });
    }

    /// Drops a closed lane, and with it its socket, when the module has ended the last of its requests.
    fn forget_if_over(&self, lane: &Lane) {
        if lane.is_over() {
            self.lanes_mut().remove(&lane.id);
        }
    }

    /// Makes the descriptor readable.
    fn wake(&self) {
        // It fails when it is readable.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Has spans that have ended put into the span file, if there is one. The spool has them already.
    fn commit(&self) {
        if let Some(commits) = self.commits.as_ref().filter(|_| self.has_ended_spans.swap(false, AcqRel)) {
            commits.ask();
        }
    }

    /// Returns whether nothing is to be answered or written.
    fn is_idle(&self) -> bool {
        self.lanes().values().all(|lane| lane.is_idle())
    }

    /// Waits, for a while, until callers have taken what is left.
    fn write_the_rest(&self) {
        let deadline = Instant::now() + LAST_WRITES;
        let lanes: Vec<_> = self.lanes().values().cloned().collect();
        for lane in lanes {
            self.flush_lane(&lane);
            while lane.state().is_blocked {
                let left = deadline.saturating_duration_since(Instant::now());
                let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
                let polled = poll(&mut [PollFd::new(&*lane, PollFlags::OUT)], Some(&timeout));
                if left.is_zero() || matches!(polled, Ok(0)) {
                    return;
                }
                self.flush_lane(&lane);
            }
        }
    }

    fn expect_answer(&self, order: u64) {
        lock(&self.orders).push(order);
    }

    fn report(&self, report: &ReplicaReport) {
        if let Err(error) = send(self.control.as_fd(), report) {
            self.end_without_head(&format!("the head cannot be told: {error}"));
        }
    }

    /// Ends this process: nobody would hear of what it does. Whoever comes after the head finds its spans in the spool.
    fn end_without_head(&self, reason: &str) -> ! {
        self.spool.keep();
        eprintln!("tracer: replica {} ends: {reason}", self.names.replica);
        std::process::exit(tracer_core::exit::FAILED.into());
    }

    /// Notes that the handler is made, and has its settings.
    fn say_ready(&self) {
        let ready = lock(&self.ready).take();
        if let Some(ready) = ready {
            *lock(&self.said) = Some(ready.clone());
            self.report(&ready);
        }
    }

    /// Notes that the handler has taken its first settings, or has not.
    fn first_configured(&self, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => self.get_well(),
            Err(reason) => self.fail_start(format!("it did not take its `user_config`: {reason}")),
        }
    }

    /// Asks the handler whether it is well before anybody hears that the replica is ready.
    fn get_well(&self) {
        if self.has_health {
            self.turns().asks_for_first_health = true;
            self.wake();
        } else {
            self.say_ready();
        }
    }

    /// Notes that the handler has said for the first time whether it is well.
    fn first_health(&self, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => self.say_ready(),
            Err(reason) => self.fail_start(format!("its handler is not well: {reason}")),
        }
    }

    /// Gives up a replica that cannot get ready.
    fn fail_start(&self, reason: String) {
        *lock(&self.failure) = Some(reason);
        self.is_stopping.store(true, std::sync::atomic::Ordering::Release);
        self.wake();
    }
}

impl RequestHost for Replica {
    fn ready(&self) {
        // Without the lock, which `get_well` takes.
        let has_settings = self.turns().first_settings.is_some();
        if !has_settings {
            self.get_well();
        }
    }

    fn take_events(&self, events: &mut RequestEvents) {
        let mut turns = self.turns();
        self.turn(&mut turns, events);
    }

    fn respond(&self, request: u64, response: &ModuleResponse<'_>) -> Answered {
        let (Some(lane), id) = self.find(request) else { return Answered::Gone };
        let answered = lane.respond(id, response);
        self.note(&lane);
        answered
    }

    fn send(&self, request: u64, piece: ModulePiece) -> Result<(), (Answered, ModulePiece)> {
        let (Some(lane), id) = self.find(request) else { return Err((Answered::Gone, piece)) };
        lane.send(id, piece)?;
        self.note(&lane);
        Ok(())
    }

    fn end(&self, request: u64, trailers: ModuleHeaders<'_>, span: Option<ActiveSpan>) -> Answered {
        self.spinning.request_ended();
        let (Some(lane), id) = self.find(request) else { return Answered::Gone };
        let answered = lane.end(id, trailers, span);
        self.has_ended_spans.store(true, std::sync::atomic::Ordering::Release);
        self.note(&lane);
        if answered == Answered::Gone {
            self.forget_if_over(&lane);
        }
        answered
    }

    fn fail(&self, request: u64, failure: Failure, span: Option<ActiveSpan>) {
        self.spinning.request_ended();
        let (Some(lane), id) = self.find(request) else { return };
        lane.fail(id, failure, span);
        self.has_ended_spans.store(true, std::sync::atomic::Ordering::Release);
        self.note(&lane);
        self.forget_if_over(&lane);
    }

    fn consumed(&self, request: u64, bytes: usize) {
        let (Some(lane), id) = self.find(request) else { return };
        // The caller may wait for it, and the module need not flush for it.
        if lane.consumed(id, bytes) {
            self.flush_lane(&lane);
        }
    }

    fn set_route(&self, request: u64, route: &str) {
        if let (Some(lane), id) = self.find(request) {
            lane.set_route(id, route);
        }
    }

    fn answer(&self, order: u64, outcome: Result<(), String>) {
        if order == FIRST_CONFIGURE {
            return self.first_configured(outcome);
        }
        if order == FIRST_HEALTH {
            return self.first_health(outcome);
        }
        let mut orders = lock(&self.orders);
        let Some(at) = orders.iter().position(|&open| open == order) else { return };
        orders.swap_remove(at);
        drop(orders);
        self.report(&ReplicaReport::Answered { order, failure: outcome.err() });
    }

    fn flush(&self) {
        self.flush_lanes();
        self.commit();
        if self.is_stopping.load(Acquire) {
            self.wake();
        }
    }

    fn look(&self) -> bool {
        match self.spinning.open() {
            // It may wait for the answer to a call of its own.
            1 => self.calls.look(self.epoll.as_fd()),
            _ => self.spinning.look(),
        }
    }
}

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// Error that ends a replica. The head sees it end and says so.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// The process that started it is gone.
    #[error("a replica is started by a head only: {0}")]
    Orphaned(io::Error),
    /// Its control socket cannot be used.
    #[error("its control socket, which is standard input, cannot be used: {0}")]
    Control(io::Error),
    /// Its handler could not be made, or has ended by itself.
    #[error("{0}")]
    Failed(String),
}
