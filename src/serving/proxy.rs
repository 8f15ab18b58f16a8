//! The proxy: the process that speaks to the clients of a service.
//!
//! ```text
//!  clients          proxy                                                    replicas
//!  ┌───────┐  TCP  ┌──────────────────────────────────────────────────┐ lane ┌────────┐
//!  │ h1 h2 │─────▶ │ thread: scanner, hyper │ route │ admit │ exchange │────▶ │        │
//!  │       │◀───── │ thread: …                                        │◀──── │        │
//!  └───────┘       └───────────────▲──────────────────────────────────┘      └────────┘
//!                       main thread │ control socket: orders, reports
//!                                  head
//! ```
//!
//! It is started by the head with a [control socket](tracer_ipc::control) as standard input, from which it takes
//! [orders](tracer_ipc::serving::ProxyOrder). The main thread hands them to threads which each have a runtime, a listener, a router
//! and lanes of their own, and share nothing but the table of replicas. A request stays on the thread that has accepted its connection.
//!
//! | | |
//! |---|---|
//! | `thread` | orders, lanes and connections of one thread |
//! | `connection`, `socket`, `activity`, `limits` | a client: scanned bytes, time limits, refusals below HTTP |
//! | `tls`, `stream` | certificates that are read again when their files change, handshakes, a client with TLS or without |
//! | `request`, `upload`, `answer` | a request: route, place, attempts; its body in, its answer out |
//! | `admission` | the router, with those who wait in it |
//! | `lanes`, `exchange`, `outbox` | frames: a lane, one attempt in it, what is to be written |
//! | `spinning` | when the loop does not sleep |
//! | `headers`, `grpc`, `refusals` | what goes on, what does not, and what clients are told |
//! | `progress`, `figures` | spans, the access log, metrics, and what becomes of a request whose client goes |
//!
//! Nothing of it runs while no request does.

mod access_log;
mod activity;
mod admission;
mod answer;
mod connection;
mod exchange;
mod figures;
mod grpc;
mod headers;
mod inbox;
mod lanes;
mod limits;
mod outbox;
mod pace;
mod progress;
mod refusals;
mod reports;
mod request;
mod rounds;
mod settings;
mod socket;
mod spinning;
mod stream;
mod thread;
mod tls;
mod tunnel;
mod upload;
mod websocket;

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use limits::Room;
use reports::{Commits, Reports};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::{Resource, getrlimit};
use settings::Settings;
use thread::{Begin, Countdown, Order, Telling};
use tls::Certified;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tracer_host::hook::{OwnSettings, Recorder, random, run_hook};
use tracer_ipc::control;
use tracer_ipc::replica_table::{CallerIndex, ReplicaIndex, ReplicaTable};
use tracer_ipc::serving::{ProxyBegin, ProxyOrder, ProxyReport, ProxySettings};
use tracer_ipc::spool::{Spool, SpoolError};
use tracer_process::parent;

/// Limit of time for a hook to deliver what it has queued when the process ends.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(2);

/// Error that ends the proxy. The head sees it end and starts another one.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// The process that started it is gone.
    #[error("a proxy is started by a head only, which is not this one's parent")]
    Orphaned,
    /// Something with the operating system.
    #[error("the proxy cannot {doing}")]
    Io {
        /// The failed action: a verb with its object.
        doing: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// Its spool cannot be used.
    #[error("{0}")]
    Spool(SpoolError),
    /// The head has said something that is not for a proxy.
    #[error("the head said something that this proxy cannot take: {0}")]
    Order(String),
}

fn io_error(doing: &'static str) -> impl FnOnce(io::Error) -> ProxyError {
    move |source| ProxyError::Io { doing, source }
}

/// The main thread.
struct Proxy {
    session_dir: PathBuf,
    control: OwnedFd,
    reports: Arc<Reports>,
    commits: Arc<Commits>,
    started: Option<Started>,
    /// The thread that took the last connection that was handed over.
    last_taker: usize,
}

/// State after the first order.
struct Started {
    table: Arc<ReplicaTable>,
    recorder: Option<&'static Recorder>,
    orders: Vec<UnboundedSender<Order>>,
    threads: Vec<JoinHandle<io::Result<()>>>,
    /// The certificates of the settings that it has.
    certified: Option<Arc<Certified>>,
    /// Reason why its hook failed, if it did.
    hook_failure: Option<String>,
}

impl Started {
    /// Returns the description of its tracing.
    fn tracing(&self) -> String {
        self.recorder.map_or_else(|| "none".into(), Recorder::description)
    }
}

/// Serves until the head says that it is enough, or is gone. Standard input is the control socket.
pub fn run(session_dir: &Path, head_pid: u32) -> Result<(), ProxyError> {
    if !parent::die_with(head_pid).map_err(io_error("be ended with the head"))? {
        return Err(ProxyError::Orphaned);
    }
    parent::end_without_head(session_dir).map_err(io_error("be ended without a head"))?;
    let control = parent::take_standard_input().map_err(io_error("take over its control socket"))?;
    let reports = control.try_clone().map_err(io_error("take over its control socket"))?;
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let wake = wake.map_err(|error| io_error("make an event descriptor")(error.into()))?;
    let mut proxy = Proxy {
        session_dir: session_dir.into(),
        control,
        reports: Arc::new(Reports { socket: reports }),
        commits: Arc::new(Commits { wake, is_asked: AtomicBool::new(false), is_due: AtomicBool::new(false) }),
        started: None,
        last_taker: 0,
    };
    let followed = proxy.follow();
    proxy.end();
    followed
}

impl Proxy {
    /// Follows orders until there are no more.
    fn follow(&mut self) -> Result<(), ProxyError> {
        tracer_ipc::background::yield_to_others();
        let mut commit_at: Option<Instant> = None;
        loop {
            let left = commit_at.map(|at| at.saturating_duration_since(Instant::now()));
            let (has_order, has_ended) = self.wait(left).map_err(io_error("wait for orders"))?;
            if has_ended {
                commit_at.get_or_insert_with(|| Instant::now() + limits::WRITE);
            }
            if self.commits.is_due.load(Relaxed) || commit_at.is_some_and(|at| at <= Instant::now()) {
                commit_at = None;
                self.commit();
            }
            if !has_order {
                continue;
            }
            let received = control::receive(&self.control).map_err(io_error("take an order"))?;
            let Some((order, files)) = received else { return Ok(()) };
            match order {
                ProxyOrder::Drain { timeout, has_heir } => {
                    self.drain_threads(timeout, has_heir);
                    return self.drain(timeout);
                }
                order => self.take_order(order, files.into())?,
            }
        }
    }

    /// Waits for an order or for the end of spans; for an order alone, and no longer than this, while the end of some is known.
    fn wait(&self, left: Option<Duration>) -> io::Result<(bool, bool)> {
        let timeout = left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        let mut files = [PollFd::new(&self.control, PollFlags::IN), PollFd::new(&self.commits.wake, PollFlags::IN)];
        match poll(&mut files, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok((false, false)),
            Err(error) => return Err(error.into()),
        }
        let [has_order, has_ended] = files.map(|file| !file.revents().is_empty());
        if has_ended {
            let _ = rustix::io::read(&self.commits.wake, &mut [0; 8]);
        }
        Ok((has_order, has_ended))
    }

    fn commit(&self) {
        self.commits.is_asked.store(false, Relaxed);
        self.commits.is_due.store(false, Relaxed);
        if let Some(recorder) = self.started.as_ref().and_then(|started| started.recorder) {
            // What cannot be written now stays in the spool, and is counted.
            let _ = recorder.commit();
        }
    }

    fn take_order(&mut self, order: ProxyOrder, mut files: VecDeque<OwnedFd>) -> Result<(), ProxyError> {
        match (order, &self.started) {
            (ProxyOrder::Begin(begin), None) => self.begin(*begin, files),
            (ProxyOrder::Configure, Some(started)) => {
                let file = files.pop_front().ok_or_else(|| missing("settings"))?;
                let settings: ProxySettings = control::receive_long(file).map_err(io_error("read its settings"))?;
                let settings = Arc::new(settings);
                let wanted = settings.http.tls.as_ref();
                let certified = wanted.map(|tls| Certified::read(tls, started.certified.as_ref(), &self.reports));
                let certified = certified.transpose().and_then(|certified| {
                    Settings::new(&settings, certified.clone(), &started.table).map(|_| certified)
                });
                let report = |failure| ProxyReport::Configured { revision: settings.revision, failure };
                match certified {
                    Err(failure) => {
                        eprintln!("tracer: the proxy cannot use its settings: {failure}");
                        self.reports.send(&report(Some(failure)));
                    }
                    Ok(certified) => {
                        let done = self.countdown(report(None));
                        let order = || Order::Settings(Arc::clone(&settings), certified.clone(), Arc::clone(&done));
                        self.notify(order);
                        self.keep_certified(certified.clone());
                    }
                }
                Ok(())
            }
            (ProxyOrder::Lanes { replica: number, name }, Some(started)) => {
                let replica = replica(&started.table, number)?;
                let done = self.countdown(ProxyReport::LanesTaken { replica: number });
                let name: Arc<str> = name.into();
                for orders in &started.orders {
                    let (Some(socket), Some(claims)) = (files.pop_front(), files.pop_front()) else {
                        return Err(missing("a lane for each thread"));
                    };
                    let (name, done) = (Arc::clone(&name), Arc::clone(&done));
                    let _ = orders.send(Order::Lane { replica, name, socket, claims, done });
                }
                Ok(())
            }
            (ProxyOrder::Caller { caller: number }, Some(started)) => {
                let caller = caller(&started.table, number)?;
                let wake = Arc::new(files.pop_front().ok_or_else(|| missing("an event descriptor"))?);
                self.notify(|| Order::Caller(caller, Arc::clone(&wake)));
                Ok(())
            }
            (ProxyOrder::Tell, Some(started)) => {
                let telling = Arc::new(Telling {
                    reports: Arc::clone(&self.reports),
                    tracing: started.tracing(),
                    hook_failure: started.hook_failure.clone(),
                    lanes: Mutex::default(),
                });
                self.notify(|| Order::Tell(Arc::clone(&telling)));
                Ok(())
            }
            (ProxyOrder::Refresh, Some(_)) => {
                self.notify(|| Order::Refresh);
                Ok(())
            }
            (ProxyOrder::ReplicaGone { replica: number }, Some(started)) => {
                let replica = replica(&started.table, number)?;
                self.notify(|| Order::Gone(replica));
                Ok(())
            }
            (ProxyOrder::Connection, Some(started)) => {
                let socket = files.pop_front().ok_or_else(|| missing("a connection"))?;
                self.last_taker = (self.last_taker + 1) % started.orders.len();
                // A thread that has ended has failed, which is seen when it is joined.
                let _ = started.orders[self.last_taker].send(Order::Connection(socket));
                Ok(())
            }
            (ProxyOrder::Begin(_), Some(_)) => Err(ProxyError::Order("it is to begin, and has begun".into())),
            (order, _) => Err(ProxyError::Order(format!("{order:?} before it has begun"))),
        }
    }

    /// Sets up tracing, and starts the threads.
    fn begin(&mut self, begin: ProxyBegin, mut files: VecDeque<OwnedFd>) -> Result<(), ProxyError> {
        let spool: &'static Spool = Box::leak(Box::new(Spool::attach(&begin.spool).map_err(ProxyError::Spool)?));
        tracer_host::hook::note_in(&self.session_dir);
        let (recorder, hook_failure) = set_up_tracing(&begin, spool);
        if let Some(recorder) = recorder {
            let commits = Arc::clone(&self.commits);
            recorder.set_committer(Box::new(move || commits.ask_at_once()));
        }
        let table = files.pop_front().ok_or_else(|| missing("a table"))?;
        let table = Arc::new(ReplicaTable::attach(&table).map_err(io_error("map the table of replicas"))?);
        let count = begin.callers.len();
        let service: Arc<str> = begin.service.as_str().into();
        if count == 0 || files.len() != 2 * count {
            return Err(missing("a listener and an event descriptor for each thread"));
        }
        let wakes: Vec<_> = files.split_off(count).into_iter().map(Arc::new).collect();
        let callers = begin.callers.iter().map(|&number| caller(&table, number)).collect::<Result<Vec<_>, _>>()?;
        let room = Arc::new(Room::of(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)));
        let mut started = Started {
            table: Arc::clone(&table),
            recorder,
            orders: Vec::with_capacity(count),
            threads: Vec::new(),
            certified: None,
            hook_failure: hook_failure.clone(),
        };
        for ((listener, wake), &caller) in files.into_iter().zip(&wakes).zip(&callers) {
            let listener = TcpListener::from(listener);
            listener.set_nonblocking(true).map_err(io_error("take over a listener"))?;
            let own_wake = wake.try_clone().map_err(io_error("take over an event descriptor"))?;
            rustix::io::ioctl_fionbio(&own_wake, true).map_err(|error| io_error("take over a wake")(error.into()))?;
            let begin = Begin {
                table: Arc::clone(&table),
                caller,
                listener,
                wake: own_wake,
                recorder,
                propagators: begin.tracing.propagators,
                session_dir: self.session_dir.clone(),
                service: Arc::clone(&service),
                log_limit: begin.log_limit,
                room: Arc::clone(&room),
                seed: u64::from_ne_bytes(random()),
                reports: Arc::clone(&self.reports),
                commits: Arc::clone(&self.commits),
            };
            let (orders, taken) = unbounded_channel();
            for (&other, wake) in callers.iter().zip(&wakes).filter(|(other, _)| **other != caller) {
                let _ = orders.send(Order::Caller(other, Arc::clone(wake)));
            }
            let spawned = std::thread::Builder::new()
                .name(format!("proxy-{}", caller.get()))
                .spawn(move || thread::serving::run(begin, taken));
            started.threads.push(spawned.map_err(io_error("start a thread"))?);
            started.orders.push(orders);
        }
        let ready = ProxyReport::Ready { tracing: started.tracing(), hook_failure };
        self.started = Some(started);
        self.reports.send(&ready);
        Ok(())
    }

    /// Sends a report when all threads have dropped it.
    fn countdown(&self, report: ProxyReport) -> Arc<Countdown> {
        Arc::new(Countdown { reports: Arc::clone(&self.reports), report })
    }

    fn keep_certified(&mut self, certified: Option<Arc<Certified>>) {
        if let Some(started) = &mut self.started {
            started.certified = certified;
        }
    }

    /// Gives all threads an order.
    fn notify(&self, order: impl Fn() -> Order) {
        for orders in self.started.iter().flat_map(|started| &started.orders) {
            // A thread that has ended has failed, which is seen when it is joined.
            let _ = orders.send(order());
        }
    }

    /// Has each thread drain, and says when none of them accepts connections any more.
    fn drain_threads(&self, timeout: Duration, has_heir: bool) {
        let done = self.countdown(ProxyReport::AcceptsNoMore);
        self.notify(|| Order::Drain { timeout, has_heir, done: Arc::clone(&done) });
    }

    /// Follows what still concerns it while its threads end, and says when they have.
    fn drain(&mut self, timeout: Duration) -> Result<(), ProxyError> {
        // The threads keep to the time; this is for one that does not.
        let deadline = Instant::now() + timeout + Duration::from_secs(5);
        let is_running = |started: &Started| started.threads.iter().any(|thread| !thread.is_finished());
        while self.started.as_ref().is_some_and(is_running) && Instant::now() < deadline {
            let (has_order, has_ended) =
                self.wait(Some(Duration::from_millis(5))).map_err(io_error("wait for orders"))?;
            if has_ended {
                self.commit();
            }
            if !has_order {
                continue;
            }
            match control::receive(&self.control).map_err(io_error("take an order"))? {
                None => return Ok(()),
                Some((ProxyOrder::Drain { timeout, has_heir }, _)) => self.drain_threads(timeout, has_heir),
                Some((order, files)) => self.take_order(order, files.into())?,
            }
        }
        self.commit();
        self.reports.send(&ProxyReport::Drained);
        Ok(())
    }

    /// Delivers what the hook has queued.
    fn end(&mut self) {
        let Some(started) = self.started.take() else { return };
        for thread in started.threads {
            if thread.is_finished()
                && let Ok(Err(error)) = thread.join()
            {
                eprintln!("tracer: a thread of the proxy has failed: {error}");
            }
        }
        if let Some(Err(reason)) = started.recorder.map(|recorder| recorder.shutdown(SHUTDOWN_LIMIT)) {
            eprintln!("tracer: the spans of the proxy could not be delivered: {reason}");
        }
    }
}

fn missing(what: &str) -> ProxyError {
    io_error("follow an order")(io::Error::new(ErrorKind::InvalidData, format!("{what} should have come with it")))
}

fn replica(table: &ReplicaTable, number: u32) -> Result<ReplicaIndex, ProxyError> {
    table.replica(number as usize).ok_or_else(|| ProxyError::Order(format!("the table has no replica {number}")))
}

fn caller(table: &ReplicaTable, number: u32) -> Result<CallerIndex, ProxyError> {
    table.caller(number as usize).ok_or_else(|| ProxyError::Order(format!("the table has no caller {number}")))
}

fn set_up_tracing(begin: &ProxyBegin, spool: &'static Spool) -> (Option<&'static Recorder>, Option<String>) {
    let Some(hook) = &begin.tracing.hook else { return (None, None) };
    let run = run_hook(hook, OwnSettings::of_session(&begin.tracing), Some(spool), Duration::ZERO);
    let failures: Vec<_> = run.failure.iter().chain(&run.further_failures).map(ToString::to_string).collect();
    failures.iter().for_each(|failure| eprintln!("tracer: a hook failed in the proxy: {failure}"));
    (run.recorder, failures.into_iter().next())
}
